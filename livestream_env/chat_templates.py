"""Chat templates rendered without showing them a word that is not ours.

Every text of a viewer, a tool or a policy goes into the template as a sentinel; what comes out is
a plan of scaffold, control tokens and places for texts. Control tokens are found in the scaffold
alone, so no text can become one, and plans depend on the shape of a conversation only, so they are
remembered by shape. Each sentinel carries a probe that shows what the template does to the text.
"""

from __future__ import annotations

import html
import itertools
import json
import re
import secrets
from collections.abc import Callable, Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import date
from typing import Any, Generic, NamedTuple, TypeVar

from livestream_env.errors import UnsupportedTemplate
from livestream_env.tokens import Source
from livestream_env.types import Message, ToolCall, ToolSpec
from livestream_env.words import clean_text

Transform = Callable[[str], str]
_PROBE = "\"\\\n面<&'"
_PLAIN_NAME = re.compile(r"[\w.:-]{1,64}").fullmatch
_ALPHABET = "abcdefghjkmnpqrtuvwxyz"
_KEPT = 4096
_NO_EDGES = ("", "")
V = TypeVar("V")
_DATE_FORMATS = re.compile(r"strftime_now\(\s*(['\"])(.*?)\1\s*\)").findall
_TELL_DATE = '{% macro strftime_now(format) %}{{ dates_told[format] }}{% endmacro %}{{ "" }}'
"""Templates that ask for today are told the day of the rollout; `apply_chat_template` passes no
functions."""


def _json(text: str) -> str:
    return json.dumps(text, ensure_ascii=False)[1:-1]


def _ascii_json(text: str) -> str:
    return json.dumps(text)[1:-1]


def _html_json(text: str) -> str:
    """Escape as Jinja's own `tojson` does."""
    escaped = _ascii_json(text).replace("<", "\\u003c").replace(">", "\\u003e")
    return escaped.replace("&", "\\u0026").replace("'", "\\u0027")


def _identity(text: str) -> str:
    return text


def _markup(text: str) -> str:
    """Escape as Jinja's `e` filter does."""
    return html.escape(text).replace("&#x27;", "&#39;").replace("&quot;", "&#34;")


def _transforms() -> dict[str, Transform]:
    """Return what templates do to texts, by what becomes of the probe; JSON within JSON too."""
    single = (_identity, _json, _ascii_json, _html_json, _markup)
    known: dict[str, Transform] = {}
    for outer, inner in itertools.product(single, single):
        known.setdefault(outer(inner(_PROBE)), lambda t, o=outer, i=inner: o(i(t)))  # type: ignore[misc]
    return {**known, **{once(_PROBE): once for once in reversed(single)}}


_TRANSFORMS = _transforms()


class Outline(NamedTuple):
    """A message without its words."""

    shape: Hashable
    texts: tuple[str, ...]
    """What the sentinels stand for, edges of white space apart."""
    call_ids: tuple[str, ...] = ()


class Slot(NamedTuple):
    """A place for words."""

    kind: str
    """`text`, `name` for a text that is a tool's name, `call_id`, or `tool` for a string of a tool
    schema."""
    number: int
    transform: Transform
    source: Source


class Item(NamedTuple):
    """One stretch of a rendered plan: scaffold text, a control token or a slot."""

    start: int
    stop: int
    text: str
    control: int | None = None
    slot: Slot | None = None


@dataclass(frozen=True, slots=True)
class Plan:
    """A rendered conversation, sentinels in place of its words."""

    text: str
    items: tuple[Item, ...]
    dropped: tuple[str, ...] = ()
    """What the template refused to show: `thinking`, `calls` (all of a turn but the last)."""

    def texts(self, start: int = 0) -> list[tuple[int, int]]:
        """Return (number, position in `items`) of the texts that start at character `start` on.

        A name is told once, since results may repeat it.
        """
        found: list[tuple[int, int]] = []
        names: set[int] = set()
        for at, item in enumerate(self.items):
            slot = item.slot
            if slot is None or slot.kind not in ("text", "name") or item.start < start:
                continue
            if slot.number not in names:
                found.append((slot.number, at))
            if slot.kind == "name":
                names.add(slot.number)
        return found

    def since(self, start: int) -> tuple[Item, ...]:
        """Return what follows character `start`; a scaffold item is cut there."""
        kept = [item for item in self.items if item.stop > start]
        if kept and kept[0].start < start:
            first = kept[0]
            kept[0] = first._replace(start=start, text=first.text[start - first.start :])
        return tuple(kept)


def outline(message: Message, *, stand_in: bool = False) -> Outline:
    """Take the words out of a message.

    Args:
        stand_in: give a message without any words one, so that it can be located.
    """
    texts: list[str] = []

    def text_shape(text: str) -> Hashable:
        core = text.strip()
        if not core:
            return text
        texts.append(core)
        if len(core) == len(text):
            return _NO_EDGES
        lead = text.index(core)
        return (text[:lead], text[lead + len(core) :])

    def leaf(value: Any) -> Hashable:
        if isinstance(value, str):
            return ("s", text_shape(value))
        if isinstance(value, Mapping):
            return ("d", tuple((key_shape(key), leaf(item)) for key, item in value.items()))
        if isinstance(value, (list, tuple)):
            return ("l", tuple(map(leaf, value)))
        return ("v", type(value).__name__, repr(value), value)

    def key_shape(key: str) -> Hashable:
        return key if _PLAIN_NAME(key) else ("k", text_shape(key))

    def call_shape(call: ToolCall) -> Hashable:
        before = len(texts)
        arguments = leaf(call.arguments)
        if len(texts) > before and _PLAIN_NAME(call.name):
            return (call.name, arguments)
        texts.insert(before, call.name)  # a call without words is located by its name
        return (None, arguments)

    if message.role == "tool":
        shape: Hashable = ("tool", text_shape(message.content))
        return Outline(shape, tuple(texts), (message.tool_call_id or "",))
    if message.role != "assistant":
        return Outline((message.role, text_shape(message.content)), tuple(texts))
    said, calls = _with_raw_calls(message)
    reasoning = text_shape(message.reasoning)
    content = text_shape(said)
    call_shapes = tuple(map(call_shape, calls))
    if stand_in and not texts and not calls:
        content = text_shape("x")
    shape = ("assistant", reasoning, content, call_shapes)
    return Outline(shape, tuple(texts), tuple([call.id for call in calls]))


def _with_raw_calls(message: Message) -> tuple[str, tuple[ToolCall, ...]]:
    """Return content and calls; a call that could not be parsed is shown as the text it was."""
    raw = [call.raw for call in message.tool_calls if call.raw]
    if not raw:
        return message.content, message.tool_calls
    said = "\n".join(filter(None, (message.content, *raw)))
    return said, tuple(call for call in message.tool_calls if not call.raw)


class _Tools(NamedTuple):
    """Tool schemas as the template is given them."""

    number: int
    """Stands for the tools in keys."""
    schemas: list[Any]
    texts: tuple[str, ...]


class Remembered(dict[Any, V], Generic[V]):
    """Values by key; forgotten all at once where they grow too many."""

    def __setitem__(self, key: Any, value: V) -> None:
        if len(self) >= _KEPT:
            self.clear()
        super().__setitem__(key, value)


class ChatTemplate:
    """A tokenizer's chat template as plans.

    Args:
        tokenizer: a Hugging Face tokenizer.
        chat_template: a template in place of the tokenizer's.
        variables: further variables of the template, such as `enable_thinking`.
        find_controls: (start, stop, id) of each control token in a scaffold text.

    Raises:
        UnsupportedTemplate: the template shows no tool calls or results, or changes texts in a way
            that is not known.
    """

    def __init__(
        self,
        tokenizer: Any,
        *,
        chat_template: str | None,
        variables: Mapping[str, Any],
        find_controls: Callable[[str], Sequence[tuple[int, int, int]]],
    ) -> None:
        self._tokenizer = tokenizer
        self._template = _template_of(tokenizer, chat_template)
        self._variables = dict(variables)
        self._find_controls = find_controls
        self._nonce = "".join(secrets.choice(_ALPHABET) for _ in range(9))
        self._find_slots = re.compile(
            rf"{self._nonce}([{''.join(_KINDS)}])(\d+)\.(.*?)\.(\d+){self._nonce}"
            rf"|{self._nonce[:5]}(\d{{4}})",
            re.DOTALL,
        ).finditer
        self._plans = Remembered[Plan]()
        self._tools = Remembered[_Tools]()
        self._numbers = itertools.count()
        self.control_text: re.Pattern[str] | None = None
        self._as_text = False
        self._date_formats = [fmt for _, fmt in _DATE_FORMATS(self._template)]
        if self._date_formats:
            self._template = _TELL_DATE + self._template

    def plan(
        self,
        outlines: Sequence[Outline],
        tools: tuple[ToolSpec, ...],
        *,
        generate: bool,
        on: date,
    ) -> Plan:
        """Return the plan of a conversation, with the generation prompt where `generate`."""
        key = (self.key(outlines, tools, on), generate)
        plan = self._plans.get(key)
        if plan is None:
            plan = self._plans[key] = self._render(outlines, tools, generate, on)
        return plan

    def key(self, outlines: Sequence[Outline], tools: tuple[ToolSpec, ...], on: date) -> Hashable:
        """Return what decides the plan of a conversation."""
        shapes = tuple([o.shape for o in outlines])
        day = on if self._date_formats else None
        return shapes, call_ids_of(outlines)[0], self._masked_tools(tools).number, day

    def tool_texts(self, tools: tuple[ToolSpec, ...]) -> tuple[str, ...]:
        """Return the strings of the tool schemas that are shown as text."""
        return self._masked_tools(tools).texts

    def probe_arguments(self, shows: Callable[[], bool]) -> bool:
        """Find the form of arguments that the template shows: objects, else JSON text.

        Raises:
            UnsupportedTemplate: the template refuses both.
        """
        refused: list[UnsupportedTemplate] = []
        for self._as_text in (False, True):
            self._plans.clear()
            try:
                if shows():
                    return True
            except UnsupportedTemplate as error:
                refused.append(error)
        if len(refused) == 2:
            raise refused[0]
        return False

    def _render(
        self,
        outlines: Sequence[Outline],
        tools: tuple[ToolSpec, ...],
        generate: bool,
        on: date,
    ) -> Plan:
        dressed = _Dressing(self._nonce, call_ids_of(outlines)[0], self._as_text)
        messages = [dressed.message(o.shape) for o in outlines]
        schemas = self._masked_tools(tools).schemas
        shown, dropped = self._apply(messages, schemas, generate, on)
        return Plan(shown, tuple(self._items(shown, dressed.sources)), dropped)

    def _apply(
        self, messages: list[dict[str, Any]], tools: list[Any], generate: bool, day: date
    ) -> tuple[str, tuple[str, ...]]:
        """Render, showing less where the template refuses: no thinking, then one call a turn."""
        first: Exception | None = None
        for dropped, less in _ATTEMPTS.items():
            try:
                shown = self._template_text(list(map(less, messages)), tools, generate, day)
                return shown, dropped
            except Exception as error:  # a template raises what it likes
                first = first or error
        raise UnsupportedTemplate(
            f"the chat template refuses the conversation {[m['role'] for m in messages]}: {first}"
        ) from first

    def _template_text(
        self, messages: list[dict[str, Any]], tools: list[Any], generate: bool, day: date
    ) -> str:
        variables = dict(self._variables)
        if self._date_formats:
            variables["dates_told"] = {fmt: day.strftime(fmt) for fmt in self._date_formats}
        text = self._tokenizer.apply_chat_template(
            messages,
            tools=tools or None,
            chat_template=self._template,
            add_generation_prompt=generate,
            tokenize=False,
            **variables,
        )
        return str(text)

    def _items(self, shown: str, sources: Sequence[Source]) -> Iterable[Item]:
        at = 0
        for match in self._find_slots(shown):
            yield from self._scaffold(shown, at, match.start())
            at = match.end()
            kind, index, probe, again, call_id = match.groups()
            if call_id is not None:
                slot = Slot("call_id", int(call_id), _identity, Source.SCAFFOLD)
            elif (transform := _TRANSFORMS.get(probe)) is None or index != again:
                raise UnsupportedTemplate(
                    f"the chat template turns {_PROBE!r} into {probe!r}, which is no known "
                    "escaping; give a `chat_template` that shows texts as they are or as JSON"
                )
            else:
                source = sources[int(index)] if kind == "s" else Source.SCAFFOLD
                slot = Slot(_KINDS[kind], int(index), transform, source)
            yield Item(match.start(), at, "", None, slot)
        yield from self._scaffold(shown, at, len(shown))

    def _scaffold(self, shown: str, start: int, stop: int) -> Iterable[Item]:
        piece = shown[start:stop]
        if self._nonce in piece.lower():
            raise UnsupportedTemplate(
                "the chat template cuts or changes texts; give a `chat_template` that shows them "
                "as they are or as JSON"
            )
        at = 0
        for lo, hi, control in self._find_controls(piece):
            if lo > at:
                yield Item(start + at, start + lo, piece[at:lo])
            yield Item(start + lo, start + hi, piece[lo:hi], control)
            at = hi
        if at < len(piece):
            yield Item(start + at, stop, piece[at:])

    def _masked_tools(self, tools: tuple[ToolSpec, ...]) -> _Tools:
        """Return the schemas for the template; a string that spells a control is a slot."""
        known = self._tools.get(tools)
        if known is not None:
            return known
        texts: list[str] = []

        def masked(value: Any) -> Any:
            if isinstance(value, str):
                if self.control_text is None or not self.control_text.search(value):
                    return clean_text(value)
                texts.append(value)
                return sentinel(self._nonce, "t", len(texts) - 1)
            if isinstance(value, Mapping):
                return {masked(key): masked(item) for key, item in value.items()}
            return [masked(item) for item in value] if isinstance(value, list) else value

        schemas = [masked(tool.to_openai()) for tool in tools]
        known = self._tools[tools] = _Tools(next(self._numbers), schemas, tuple(texts))
        return known


def _template_of(tokenizer: Any, chat_template: str | None) -> str:
    """Return the template for tool use as text."""
    try:
        return str(tokenizer.get_chat_template(chat_template, tools=[{}]))
    except (ValueError, AttributeError) as error:
        raise UnsupportedTemplate(
            f"`{type(tokenizer).__name__}` has no chat template; pass `chat_template`"
        ) from error


def call_ids_of(outlines: Sequence[Outline]) -> tuple[tuple[int, ...], list[str]]:
    """Number the call ids of a conversation by first appearance; return numbers and ids."""
    seen: dict[str, int] = {}
    pattern = tuple([seen.setdefault(i, len(seen)) for o in outlines for i in o.call_ids])
    return pattern, list(seen)


_KINDS = {"s": "text", "n": "name", "t": "tool"}
"""Kinds of slots by the letter that their sentinels hold."""


def sentinel(nonce: str, kind: str, index: int) -> str:
    """Return the sentinel of a text: nonce, number, probe, number, nonce."""
    return f"{nonce}{kind}{index}.{_PROBE}.{index}{nonce}"


class _Dressing:
    """Makes messages for the template from shapes, numbering sentinels as it goes."""

    def __init__(self, nonce: str, call_ids: Iterable[int], as_text: bool) -> None:
        self._nonce = nonce
        self._call_ids = iter(call_ids)
        self.sources: list[Source] = []
        """Of the texts, in order."""
        self._source = Source.PROMPT
        self._names: dict[str, str] = {}
        self._as_text = as_text

    def message(self, shape: Any) -> dict[str, Any]:
        role = shape[0]
        self._source = Source.TOOL_RESULT if role == "tool" else Source.PROMPT
        if role == "tool":
            content = self._text(shape[1])
            call_id = self._call_id()
            name = self._names.get(call_id, "tool")
            return {"role": role, "content": content, "tool_call_id": call_id, "name": name}
        if role != "assistant":
            return {"role": role, "content": self._text(shape[1])}
        message: dict[str, Any] = {"role": role}
        reasoning = self._text(shape[1])
        message["content"] = self._text(shape[2])
        if reasoning:
            for key in ("reasoning_content", "reasoning", "thinking"):
                message[key] = reasoning
        if shape[3]:
            message["tool_calls"] = [self._call(*call) for call in shape[3]]
        return message

    def _call(self, name: str | None, arguments: Any) -> dict[str, Any]:
        call_id = self._call_id()
        shown = self._sentinel("n") if name is None else name
        values = self._leaf(arguments)
        self._names[call_id] = shown
        given = json.dumps(values, ensure_ascii=False) if self._as_text else values
        return {
            "type": "function",
            "id": call_id,
            "function": {"name": shown, "arguments": given},
        }

    def _text(self, shape: Any) -> str:
        if isinstance(shape, str):
            return shape
        lead, trail = shape
        return f"{lead}{self._sentinel('s')}{trail}"

    def _sentinel(self, kind: str) -> str:
        self.sources.append(self._source)
        return sentinel(self._nonce, kind, len(self.sources) - 1)

    def _call_id(self) -> str:
        """Return nine letters and digits, which is all that some templates take."""
        return f"{self._nonce[:5]}{next(self._call_ids):04d}"

    def _leaf(self, shape: Any) -> Any:
        kind = shape[0]
        if kind == "s":
            return self._text(shape[1])
        if kind == "d":
            return {self._key(key): self._leaf(item) for key, item in shape[1]}
        if kind == "l":
            return [self._leaf(item) for item in shape[1]]
        return shape[3]

    def _key(self, shape: Any) -> str:
        return shape if isinstance(shape, str) else self._text(shape[1])


def _all(message: dict[str, Any]) -> dict[str, Any]:
    return message


def _no_thinking(message: dict[str, Any]) -> dict[str, Any]:
    hidden = ("reasoning_content", "reasoning", "thinking")
    return {key: value for key, value in message.items() if key not in hidden}


def _last_call(message: dict[str, Any]) -> dict[str, Any]:
    if "tool_calls" not in message:
        return message
    return {**message, "tool_calls": message["tool_calls"][-1:]}


def _least(message: dict[str, Any]) -> dict[str, Any]:
    return _last_call(_no_thinking(message))


_ATTEMPTS: dict[tuple[str, ...], Callable[[dict[str, Any]], dict[str, Any]]] = {
    (): _all,
    ("thinking",): _no_thinking,
    ("calls",): _last_call,
    ("thinking", "calls"): _least,
}
