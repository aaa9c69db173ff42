"""The words around an episode: first messages, reminder and tool-result text, from Jinja templates.

Bundled templates exist in `zh` and `en`. A user's own replace them, so that a model distilled on a
production format meets that format: `prompt=` names a folder with `system.j2`, `user.j2`,
`reminder.j2` (those that are missing are the bundled ones) or is a callable; `result_format=`
names a file or is a callable. Templates run in Jinja's sandbox; values are written by the `json`
filter as JSON text.
"""

from __future__ import annotations

import json
import os
from collections import OrderedDict
from collections.abc import Callable, Mapping, Sequence
from functools import lru_cache
from pathlib import Path
from typing import Any, NamedTuple, Protocol

from livestream_env._resources import data_file
from livestream_env.errors import TemplateError
from livestream_env.templates import changed_ns, render_file
from livestream_env.types import Message, RoomView, ToolCall, ToolResult, ToolSpec
from livestream_env.words import fold

ResultFormat = Callable[[ToolCall, ToolResult], str]


class Prompt(Protocol):
    """Makes the first messages of an episode."""

    def __call__(
        self, view: RoomView, tools: Sequence[ToolSpec], /, *, max_same_tool: int
    ) -> Sequence[Message]:
        """Return system and user message."""
        ...


class TemplatePrompt:
    """First messages and reminder from the templates of a folder; missing ones are the bundled
    ones."""

    def __init__(self, folder: str | None, language: str) -> None:
        self._folder = folder
        self._language = language
        self._made: OrderedDict[tuple[int, ...], _Made] = OrderedDict()

    def __reduce__(self) -> tuple[Any, ...]:
        return make_prompt, (self._folder, self._language)

    def __call__(
        self, view: RoomView, tools: Sequence[ToolSpec], /, *, max_same_tool: int
    ) -> tuple[Message, ...]:
        """Return system and user message; one view object is rendered once for the same tools."""
        tools = tuple(tools)
        key = (id(view), id(tools), max_same_tool)
        found = self._made.get(key)
        if found is not None:
            return found.messages
        values = _values(view, tools, max_same_tool)
        messages = (
            Message("system", self._render("system.j2", values)),
            Message("user", self._render("user.j2", values)),
        )
        self._made[key] = _Made(view, tools, messages)
        while len(self._made) > 1024:
            self._made.popitem(last=False)
        return messages

    def reminder(self) -> str:
        """Return what an agent is told that replies without having looked up the rule."""
        return self._render("reminder.j2", {})

    def _render(self, name: str, values: Mapping[str, Any]) -> str:
        own = Path(self._folder, name) if self._folder is not None else None
        path = own if own is not None and own.is_file() else _bundled(self._language, name)
        return render_file(str(path), changed_ns(path), values)


class _Made(NamedTuple):
    """Messages, and what they were made of: kept, so that no other object gets its `id`."""

    view: RoomView
    tools: tuple[ToolSpec, ...]
    messages: tuple[Message, ...]


def make_prompt(prompt: str | os.PathLike[str] | Prompt | None, language: str) -> Prompt:
    """Return the prompt that `gym.make`'s `prompt=` names.

    Raises:
        TemplateError: the folder does not exist or holds no template.
    """
    if callable(prompt):
        return prompt
    if prompt is None:
        return _template_prompt(None, language, ())
    folder = os.fspath(prompt)
    names = ("system.j2", "user.j2", "reminder.j2")
    changed = tuple(changed_ns(Path(folder, name)) for name in names)
    if not any(changed):
        raise TemplateError(f"`prompt={folder!r}` is no folder with one of {', '.join(names)}")
    return _template_prompt(folder, language, changed)


@lru_cache(maxsize=64)
def _template_prompt(folder: str | None, language: str, _: tuple[int, ...]) -> TemplatePrompt:
    return TemplatePrompt(folder, language)


def reminder_text(prompt: Prompt, language: str) -> str:
    """Return the prompt's own reminder, or the bundled one where it is a plain callable."""
    if isinstance(prompt, TemplatePrompt):
        return prompt.reminder()
    return _template_prompt(None, language, ()).reminder()


def make_result_format(
    result_format: str | os.PathLike[str] | ResultFormat | None,
) -> ResultFormat | None:
    """Return what turns a result into the text of its message; `None` leaves the compact JSON.

    A template file is given `call`, `result` and `content`, the JSON decoded.

    Raises:
        TemplateError: the file cannot be read.
    """
    if result_format is None or callable(result_format):
        return result_format
    path = os.fspath(result_format)
    if not os.path.isfile(path):
        raise TemplateError(f"`result_format={path!r}` is no template file")
    return _TemplateFormat(path, changed_ns(Path(path)))


class _TemplateFormat:
    """Text of a tool message from a template file."""

    def __init__(self, path: str, changed: int) -> None:
        self._path = path
        self._changed = changed

    def __call__(self, call: ToolCall, result: ToolResult) -> str:
        values = {"call": call, "result": result, "content": json.loads(result.content)}
        return render_file(self._path, self._changed, values)


def _values(view: RoomView, tools: Sequence[ToolSpec], max_same_tool: int) -> dict[str, Any]:
    zh = view.language == "zh"
    viewer, said = ("观众", "弹幕") if zh else ("viewer", "text")
    host, copy = ("主播", "主播（观众）") if zh else ("host", "host (viewer)")
    several = len(view.comments) > 1
    return {
        "view": view,
        "tools": tools,
        "rule_tool": any(spec.name == "get_reply_rule" for spec in tools),
        "max_same_tool": max_same_tool,
        "history": [
            {host if h.is_host else copy if fold(h.by) == host else h.by: h.text}
            for h in view.history
        ],
        "comments": [
            {**({"id": c.comment_id} if several else {}), viewer: c.viewer, said: c.text}
            for c in view.comments
        ],
        "faqs": [
            {"问题": f.question, "答案": f.answer}
            if zh
            else {"question": f.question, "answer": f.answer}
            for f in view.faqs
        ],
    }


def _bundled(language: str, name: str) -> Path:
    return data_file("prompts") / language / name
