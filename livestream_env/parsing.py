"""Model text and chat messages into actions.

One function a dialect, in one table. What looks like a call but cannot be parsed becomes a
`ToolCall` with an `error`, which the episode answers with an error result: never silently a
reply, never an exception, and nothing is repaired into another meaning. A call drafted while
thinking is no call.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any

from livestream_env.errors import InvalidAction
from livestream_env.types import EMPTY, Action, FrozenDict, Message, ToolCall, TurnEvent, freeze
from livestream_env.words import clean_text

ACCEPTED = (
    "pass an `Action`, a model's raw text, or an OpenAI message"
    ' `{"role": "assistant", "content": ..., "tool_calls": [...]}`'
)
Dialect = Callable[[str, str], tuple[str, tuple[ToolCall, ...]]]
"""(text after thinking, prefix of call ids) -> (what is said, calls)."""

_SCALARS = frozenset({str, int, float, bool, type(None)})
_END_TOKENS = re.compile(
    r"(?:\s*(?:<\|im_end\|>|<\|endoftext\|>|<\|eot_id\|>|<\|end_of_text\|>|<\|end\|>|</s>))+\s*\Z"
)
_BARE_CALL = re.compile(r'^[ \t]*\{\s*"(?:name|arguments)"\s*:', re.MULTILINE)


def to_action(given: object, *, turn: int = 0) -> Action:
    """Turn what `step` was given into an action of the record.

    Calls without an id of their own become `call_{turn}_{index}`, arguments are frozen, and lone
    surrogates become U+FFFD, with an event.

    Raises:
        InvalidAction: it is neither an `Action`, nor text, nor an assistant message.
    """
    if isinstance(given, str):
        return parse_text(given, turn=turn)
    if isinstance(given, Action):
        return _scrubbed(_checked(given, turn))
    if isinstance(given, Message):
        return _scrubbed(_checked(Action(given), turn))
    if isinstance(given, Mapping):
        return _scrubbed(_checked(parse_message(given, turn=turn), turn))
    raise InvalidAction(f"got a `{type(given).__name__}`; {ACCEPTED}")


def parse_text(text: str, dialect: str | None = None, *, turn: int = 0) -> Action:
    """Parse a model's raw text; the dialect is found from the text where it is not named."""
    reasoning, said = _split_thinking(text) if "think>" in text else ("", text)
    said = _without_end(said)
    if dialect is None:
        dialect = "hermes" if "<tool_call>" in said else "json" if "{" in said else None
    if dialect is None:
        action = Action(Message("assistant", said.strip(), (), None, reasoning))
    else:
        content, calls = DIALECTS[dialect](said, f"call_{turn}_")
        action = Action(Message("assistant", content, calls, None, reasoning))
    return _scrubbed(action) if "\\u" in text or not _is_clean(text) else action


def _without_end(text: str) -> str:
    """Drop end tokens at the end of the text."""
    if text.endswith((">", "\n", " ")) and not text.endswith("</tool_call>"):
        return _END_TOKENS.sub("", text)
    return text


def _split_thinking(text: str) -> tuple[str, str]:
    """Split into thinking and what follows the last `</think>`; unclosed thinking says nothing."""
    head, close, tail = text.rpartition("</think>")
    if close:
        return head.strip().removeprefix("<think>").strip(), tail
    before, opened, thinking = text.partition("<think>")
    return (thinking.strip(), before) if opened else ("", text)


def _hermes(text: str, prefix: str) -> tuple[str, tuple[ToolCall, ...]]:
    """`<tool_call>{"name": ..., "arguments": {...}}</tool_call>`, any number."""
    said, opened, rest = text.partition("<tool_call>")
    calls: list[ToolCall] = []
    while opened:
        body, closed, rest = rest.partition("</tool_call>")
        if not closed:
            calls.append(_faulty("unclosed", "no `</tool_call>`", body, f"{prefix}{len(calls)}"))
            break
        _read_objects(body.strip(), prefix, calls)
        between, opened, rest = rest.partition("<tool_call>")
        said += between
    return said.strip(), tuple(calls)


def _bare_json(text: str, prefix: str) -> tuple[str, tuple[ToolCall, ...]]:
    """`{"name": ..., "arguments": {...}}` objects one after another, after any text."""
    start = _BARE_CALL.search(text)
    if start is None:
        return text.strip(), ()
    calls: list[ToolCall] = []
    _read_objects(text[start.start() :].strip(), prefix, calls)
    return text[: start.start()].strip(), tuple(calls)


DIALECTS: dict[str, Dialect] = {"hermes": _hermes, "json": _bare_json}


def _read_objects(body: str, prefix: str, calls: list[ToolCall]) -> None:
    """Append the calls of the JSON objects that follow one another; stop at the first that is
    none."""
    position, end = 0, len(body)
    if not end:
        calls.append(
            _faulty("invalid_json", "nothing between the tags", body, f"{prefix}{len(calls)}")
        )
    while position < end:
        try:
            value, position = _DECODER.raw_decode(body, position)
        except (ValueError, RecursionError) as error:
            fault, raw = _json_fault(error, body), body[position:]
            calls.append(_faulty("invalid_json", fault, raw, f"{prefix}{len(calls)}"))
            return
        calls.append(_call(value, body, f"{prefix}{len(calls)}"))
        while position < end and body[position] in " \t\r\n,":
            position += 1


def _pairs(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    made = dict(pairs)
    if len(made) != len(pairs):
        raise ValueError("a key occurs twice")
    return made


def _no_constant(name: str) -> None:
    raise ValueError(f"`{name}` is no JSON value")


_DECODER = json.JSONDecoder(object_pairs_hook=_pairs, parse_constant=_no_constant)


def _json_fault(error: BaseException, body: str) -> str:
    if isinstance(error, RecursionError):
        return "nested too deeply"
    fault = str(error)
    if any(mark in body for mark in "“”：，"):
        fault += "; quotes, colons and commas of JSON are ASCII"
    return fault


def _call(value: object, raw: str, call_id: str) -> ToolCall:
    if not isinstance(value, dict):
        problem = "a call is an object with `name` and `arguments`"
        return _faulty("invalid_json", problem, raw, call_id)
    name = value.get("name")
    if not isinstance(name, str) or not name.strip():
        return _faulty("missing_name", 'add `"name": "..."`', raw, call_id)
    given = value.get("arguments")
    if type(given) is dict and _SCALARS.issuperset(map(type, given.values())):
        return ToolCall(call_id, name.strip(), FrozenDict(given))
    arguments, fault = _arguments(given)
    if fault is not None:
        return ToolCall(call_id, name.strip(), EMPTY, fault, raw)
    return ToolCall(call_id, name.strip(), arguments)


def _arguments(value: object) -> tuple[FrozenDict, str | None]:
    """Return arguments given as object or as JSON text; none, null and empty text are `{}`."""
    if isinstance(value, str) and value.strip():
        try:
            value = _DECODER.decode(value)
        except (ValueError, RecursionError) as error:
            return EMPTY, f"invalid_json: arguments: {_json_fault(error, str(value))}"
    if value is None or value == "":
        return EMPTY, None
    if not isinstance(value, Mapping):
        return EMPTY, f"invalid_arguments: an object is needed, not {type(value).__name__}"
    return _frozen(value)


def _frozen(value: Mapping[str, Any]) -> tuple[FrozenDict, str | None]:
    try:
        return freeze(value), None
    except RecursionError:
        return EMPTY, "invalid_arguments: nested too deeply"


def _faulty(code: str, problem: str, raw: str, call_id: str) -> ToolCall:
    return ToolCall(call_id, "", EMPTY, f"{code}: {problem}", raw)


def _scrubbed(action: Action) -> Action:
    """Replace lone surrogates by U+FFFD, with an event; the same object where there is none."""
    message = action.message
    texts = (message.content, message.reasoning, action.speech or "")
    calls = [(call.name, call.arguments) for call in message.tool_calls]
    if all(map(_is_clean, texts)) and all(_is_clean(n) and _is_clean(a) for n, a in calls):
        return action
    clean = replace(
        message,
        content=clean_text(message.content),
        reasoning=clean_text(message.reasoning),
        tool_calls=tuple(map(_scrubbed_call, message.tool_calls)),
    )
    speech = None if action.speech is None else clean_text(action.speech)
    events = (*action.events, TurnEvent("surrogates_replaced"))
    return replace(action, message=clean, speech=speech, events=events)


def _scrubbed_call(call: ToolCall) -> ToolCall:
    raw = None if call.raw is None else clean_text(call.raw)
    arguments = freeze(_cleaned(call.arguments))
    return replace(call, name=clean_text(call.name), arguments=arguments, raw=raw)


def _is_clean(value: object) -> bool:
    if isinstance(value, str):
        return value.isascii() or _encodes(value)
    if isinstance(value, dict):
        return all(_is_clean(key) and _is_clean(item) for key, item in value.items())
    return not isinstance(value, list) or all(map(_is_clean, value))


def _encodes(text: str) -> bool:
    try:
        text.encode()
    except UnicodeEncodeError:
        return False
    return True


def _cleaned(value: Any) -> Any:
    if isinstance(value, str):
        return clean_text(value)
    if isinstance(value, Mapping):
        return {clean_text(key): _cleaned(item) for key, item in value.items()}
    if isinstance(value, list):
        return [_cleaned(item) for item in value]
    return value


# --- OpenAI messages -------------------------------------------------------------------------


def parse_message(message: Mapping[str, Any], *, turn: int = 0) -> Action:
    """Turn an OpenAI assistant message into an action; arguments may be an object or JSON text.

    Without `tool_calls`, the content is parsed as a model's text.

    Raises:
        InvalidAction: the message has another role or another shape.
    """
    role = message.get("role", "assistant")
    if role != "assistant":
        raise InvalidAction(f"got a message of role `{role}`; an action has role `assistant`")
    content = _content_text(message.get("content"))
    calls = message.get("tool_calls") or ()
    if not isinstance(calls, (list, tuple)) or not all(isinstance(c, Mapping) for c in calls):
        raise InvalidAction(f"got `tool_calls` {calls!r}; it is a list of objects")
    reasoning = str(message.get("reasoning_content") or message.get("reasoning") or "")
    if not calls:
        action = parse_text(content, turn=turn)
        if not reasoning:
            return action
        said = action.message
        return Action(Message("assistant", said.content, said.tool_calls, None, reasoning))
    made = tuple(_openai_call(call, f"call_{turn}_{i}") for i, call in enumerate(calls))
    thinking, said_text = _split_thinking(content)
    return Action(Message("assistant", said_text.strip(), made, None, reasoning or thinking))


def _openai_call(call: Mapping[str, Any], made_id: str) -> ToolCall:
    function = call.get("function", call)
    return _call(function, str(function), str(call.get("id") or made_id))


def _content_text(content: object) -> str:
    if content is None:
        return ""
    if isinstance(content, str):
        return content
    if isinstance(content, (list, tuple)):
        parts = [part for part in content if isinstance(part, Mapping)]
        return "".join(str(part.get("text", "")) for part in parts if part.get("type") == "text")
    raise InvalidAction(f"got content of type `{type(content).__name__}`; it is text or parts")


def _checked(action: Action, turn: int) -> Action:
    """Check an action that a caller built; give its calls ids and arguments of the record's own."""
    message = action.message
    if not isinstance(message, Message) or message.role != "assistant":
        raise InvalidAction("an action's message is a `Message` of role `assistant`")
    if not isinstance(message.content, str):
        raise InvalidAction(f"an action's content is text, not {message.content!r}")
    if action.channel not in ("danmaku", "speech"):
        raise InvalidAction(f"invalid_channel: got `{action.channel}`; use `danmaku` or `speech`")
    if not message.tool_calls:
        return action
    seen: set[str] = set()
    calls = tuple(_own(call, f"call_{turn}_{i}", seen) for i, call in enumerate(message.tool_calls))
    return replace(action, message=replace(message, tool_calls=calls))


def _own(call: ToolCall, made_id: str, seen: set[str]) -> ToolCall:
    """Return the call with an id that no other call of its message has, and frozen arguments."""
    call_id = call.id if call.id and call.id not in seen else made_id
    seen.add(call_id)
    arguments = call.arguments if type(call.arguments) is FrozenDict else freeze(call.arguments)
    return ToolCall(call_id, call.name, arguments, call.error, call.raw)
