"""Conversations in the OpenAI chat format, as trajectories.

Texts are copied, not mended; where calls, results or the conversation itself cannot be told, it is
refused with the place and the reason.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Literal

from livestream_env.calls import call_of, json_fault, unfit
from livestream_env.dialects import read_calls
from livestream_env.types import (
    Action,
    Message,
    Status,
    StopReason,
    ToolCall,
    ToolResult,
    ToolSpec,
    Trajectory,
    Turn,
    freeze,
)
from livestream_env.words import clean_text

FIRST_THOUGHT = re.compile(r"\s*<think>\n?(.*?)\n?</think>\s*", re.DOTALL)
"""Thinking in tags at the beginning of a text."""


class Refused(ValueError):
    """A record does not hold a conversation that can be read."""


def from_messages(
    messages: Sequence[Mapping[str, Any]],
    tools: Sequence[ToolSpec | Mapping[str, Any]] = (),
    *,
    room_id: str = "imported",
) -> Trajectory:
    """Make a trajectory of an OpenAI conversation.

    Arguments may be JSON text or an object, calls may stand in the older `function_call` or as
    Hermes text (`<tool_call>`), content may be parts. Thinking stands in `reasoning_content`, in a
    part, or in `<think>` tags at the beginning. Results belong to calls by id, else in order; one
    result text for several calls stands at the first.

    Raises:
        ValueError: what is given is no conversation with an assistant, or its calls are lost.
    """
    if not is_list(messages):
        raise Refused(f"the messages are {kind_of(messages)}, not a list")
    prompt: list[Message] = []
    turns: list[_Growing] = []
    for index, given in enumerate(messages):
        where = f"message {index}"
        if not isinstance(given, Mapping):
            raise Refused(f"{where} is {kind_of(given)}, not an object")
        role = _ROLES.get(str(given.get("role")))
        said = _said(given, where)
        if role is None:
            raise Refused(f"{where} has the role `{str(given.get('role'))[:50]}`")
        if role == "assistant":
            turns.append(_turn(said, given, where, len(turns)))
        elif role == "tool":
            if not turns:
                raise Refused(f"{where} is a tool result without a call: the calls are lost")
            turns[-1].add_result(said.text, given, where)
        else:
            (turns[-1].messages if turns else prompt).append(Message(role, said.text))
    if not turns:
        raise Refused("there is no assistant message")
    has_replied = not turns[-1].action.message.tool_calls
    return Trajectory(
        room_id=room_id,
        content_hash="",
        comment_ids=(),
        seed=None,
        prompts={"host": tuple(prompt)},
        tools={"host": tuple(_spec(tool) for tool in tools)},
        turns=tuple(turn.finished() for turn in turns),
        status=Status.OK if has_replied else Status.POLICY_TRUNCATED,
        stop_reason=StopReason.REPLIED if has_replied else StopReason.NO_REPLY,
        versions={"imported_from": "messages"},
    )


_ROLES: dict[str, Literal["system", "user", "assistant", "tool"]] = {
    "system": "system",
    "developer": "system",
    "user": "user",
    "assistant": "assistant",
    "tool": "tool",
    "function": "tool",
}


@dataclass(slots=True)
class _Said:
    """The content of one message."""

    text: str = ""
    reasoning: str = ""
    calls: list[Any] = field(default_factory=list)


@dataclass(slots=True)
class _Growing:
    """A turn whose results are still to come."""

    action: Action
    open: list[ToolCall]
    results: list[ToolResult] = field(default_factory=list)
    messages: list[Message] = field(default_factory=list)

    def add_result(self, text: str, given: Mapping[str, Any], where: str) -> None:
        """Give a result to the open call that it names by id or tool, else to the first."""
        call_id, name = given.get("tool_call_id"), given.get("name")
        if not self.action.message.tool_calls:
            raise Refused(f"{where} is a tool result without a call: the calls are lost")
        fitting = [c for c in self.open if call_id in (None, "", c.id)]
        if call_id in (None, "") and given.get("role") == "function" and name is not None:
            fitting = [c for c in fitting if c.name == name]
        if not fitting:
            raise Refused(f"{where} is the result of no call that waits for one")
        self.open.remove(fitting[0])
        self.results.append(ToolResult(fitting[0].id, text))
        self.messages.append(Message("tool", text, (), fitting[0].id))

    def finished(self) -> Turn:
        """Return the turn."""
        return Turn("host", self.action, tuple(self.results), tuple(self.messages))


def _turn(said: _Said, given: Mapping[str, Any], where: str, turn: int) -> _Growing:
    text, reasoning = said.text, said.reasoning
    if not reasoning and (thought := FIRST_THOUGHT.match(text)):
        text, reasoning = text[thought.end() :], thought[1]
    prefix = f"call_{turn}_"
    listed = _calls_of(given, where) or said.calls
    calls = [_call(one, f"{prefix}{i}") for i, one in enumerate(listed)]
    for i, call in enumerate(calls):
        if any(call.id == other.id for other in calls[:i]):
            calls[i] = replace(call, id=f"{prefix}{i}")
    if not calls and "<tool_call>" in text:
        read = read_calls(text, prefix, "hermes")
        calls, text = read.calls, read.said.strip() if read.calls else text
    if not calls and given.get("content") is None:
        raise Refused(f"{where} says nothing and calls nothing: its calls are lost")
    message = Message("assistant", text, tuple(calls), None, reasoning)
    return _Growing(Action(message), list(calls))


def _calls_of(given: Mapping[str, Any], where: str) -> Sequence[Any]:
    calls = given.get("tool_calls")
    if not calls and given.get("function_call"):
        calls = [given["function_call"]]
    if calls is not None and not is_list(calls):
        raise Refused(f"the `tool_calls` of {where} are {kind_of(calls)}, not a list")
    listed: Sequence[Any] = calls or ()
    return listed


def _call(given: Any, default_id: str) -> ToolCall:
    """Read a call; one that the policy got wrong is kept, with its error."""
    function = given.get("function", given) if isinstance(given, Mapping) else given
    arguments = function.get("arguments") if isinstance(function, Mapping) else None
    raw = arguments if isinstance(arguments, str) else str(function)
    own_id = given.get("id") if isinstance(given, Mapping) else None
    return call_of(function, raw, own_id if isinstance(own_id, str) and own_id else default_id)


def _said(given: Mapping[str, Any], where: str) -> _Said:
    content = given.get("content")
    thinking = given.get("reasoning_content") or given.get("reasoning") or ""
    if not isinstance(thinking, str):
        raise Refused(f"the reasoning of {where} is {kind_of(thinking)}, not text")
    said = _Said(reasoning=thinking)
    if content is None or isinstance(content, str):
        said.text = content or ""
        return said
    if not is_list(content):
        raise Refused(f"the content of {where} is {kind_of(content)}, not text or parts")
    for part in content:
        _take_part(part, said, where)
    return said


def _take_part(part: Any, said: _Said, where: str) -> None:
    kind = part.get("type") if isinstance(part, Mapping) else "text"
    value = part.get("text", part.get("value")) if isinstance(part, Mapping) else part
    if kind == "text" and isinstance(value, str):
        said.text += value
    elif kind == "reasoning" and isinstance(value, str):
        said.reasoning += value
    elif kind == "tool_call":
        said.calls.append(json_within(value, f"a `tool_call` part of {where}"))
    else:
        raise Refused(f"{where} has a part of type `{str(kind)[:50]}` that is not text")


def _spec(given: Any) -> ToolSpec:
    if isinstance(given, ToolSpec):
        return given
    function = given.get("function", given) if isinstance(given, Mapping) else None
    name = function.get("name") if isinstance(function, Mapping) else None
    if not isinstance(function, Mapping) or not isinstance(name, str):
        raise Refused(f"a tool has no name: {str(given)[:80]}")
    parameters = function.get("parameters") or {"type": "object", "properties": {}}
    fault = unfit(parameters) if isinstance(parameters, dict) else f"got {kind_of(parameters)}"
    if fault is not None:
        raise Refused(f"the parameters of the tool `{name[:50]}` are no schema: {fault}")
    return ToolSpec(name, str(function.get("description") or ""), freeze(parameters))


# --- JSON ------------------------------------------------------------------------------------


def parsed_json(text: str) -> Any:
    """Return the value without lone surrogates, or a `Refused` that says why there is none."""
    try:
        value = json.loads(text)
        if r"\ud" in text.lower():
            value = json.loads(clean_text(json.dumps(value, ensure_ascii=False)))
    except (ValueError, RecursionError) as error:
        return Refused(f"not JSON ({json_fault(error)})")
    return value


def json_within(value: Any, what: str) -> Any:
    """Return the value; of JSON text, what it says."""
    if not isinstance(value, str):
        return value
    parsed = parsed_json(value)
    if isinstance(parsed, Refused):
        raise Refused(f"{what} is {parsed}")
    return parsed


def is_list(value: object) -> bool:
    """Return whether it is a sequence that is no text."""
    return isinstance(value, Sequence) and not isinstance(value, (str, bytes))


def kind_of(value: object) -> str:
    """Name the type of a value for an error."""
    return "null" if value is None else f"a {type(value).__name__}"
