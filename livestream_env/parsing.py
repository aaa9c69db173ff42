"""Model text and chat messages into actions.

One function a dialect, in one table. What looks like a call but cannot be parsed becomes a
`ToolCall` with an `error`, which the episode answers with an error result: never silently a
reply, never an exception, and nothing is repaired into another meaning. A call drafted while
thinking is no call.
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
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

_PLAIN = frozenset({str, int, bool, type(None)})
_SCALARS = _PLAIN | {float}
_OPEN, _CLOSE = "<tool_call>", "</tool_call>"
_END_TOKENS = ("<|im_end|>", "<|endoftext|>", "<|eot_id|>", "<|end_of_text|>", "<|end|>", "</s>")
_BARE_CALL = re.compile(
    r"""^[ \t]*(?=(?:\[\s*)?\{\s*"(?:name|arguments)"\s*:)
    | (?:(?<=[。！？；：.!?;])|(?<=[^"]:))[ \t]*(?=\{\s*"name"\s*:\s*"[^"]*"\s*,\s*"arguments"\s*:)
    """,
    re.MULTILINE | re.VERBOSE,
)
"""Where a call begins: a line, or what follows the end of a sentence (我来查：{"name": ...})."""
_CALL = re.compile(rf"{_OPEN}\s*|</think>\s*(?=\{{)|{_BARE_CALL.pattern}", _BARE_CALL.flags)
_MARKS = "“”‘’＂：，；｛｝［］【】"
DEEPEST = 64
"""Levels that arguments may be nested: more than any tool takes, and every writer can hold it."""


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
    if text.endswith((">", "\n", " ")) and not text.endswith(_CLOSE):
        text = text.rstrip()
        while text.endswith(_END_TOKENS):
            text = text[: text.rindex("<")].rstrip()
    return text


def _split_thinking(text: str) -> tuple[str, str]:
    """Split into thinking and what follows the last `</think>`; unclosed thinking says nothing.

    A tag that a call's JSON quotes, such as one in a viewer's text, ends and begins nothing.
    """
    seen = _without_json(text) if 0 <= text.find("{") < text.rfind("think>") else text
    end = seen.rfind("</think>")
    start = 0 if end < 0 else end + len("</think>")
    thinking = text[: max(end, 0)].strip().removeprefix("<think>").strip()
    opened = seen.find("<think>", start)
    if opened < 0:
        return thinking, text[start:]
    draft = text[opened + len("<think>") :].strip()
    return f"{thinking}\n{draft}".strip(), text[start:opened]


def _without_json(text: str) -> str:
    """Blank the JSON of every call of the text."""
    pieces: list[str] = []
    position = 0
    while (call := _CALL.search(text, position)) is not None:
        try:
            _, end = _DECODER.raw_decode(text, call.end())
        except (ValueError, RecursionError):
            end = call.end()
        pieces += text[position : call.end()], " " * (end - call.end())
        position = max(end, call.start() + 1)
        pieces += text[end:position]
    return "".join(pieces) + text[position:]


def _hermes(text: str, prefix: str) -> tuple[str, tuple[ToolCall, ...]]:
    """`<tool_call>{"name": ..., "arguments": {...}}</tool_call>`, any number."""
    said, opened, rest = text.partition(_OPEN)
    calls: list[ToolCall] = []
    while opened:
        body, closed, after = rest.partition(_CLOSE)
        known = len(calls)
        if not closed:
            calls.append(_faulty("unclosed", f"no `{_CLOSE}`", body, f"{prefix}{known}"))
            break
        _read_objects(body.strip(), prefix, calls)
        if calls[-1].error is not None and (end := _end_beyond(rest, len(body))) is not None:
            del calls[known:]
            _read_objects(rest[:end].strip(), prefix, calls)
            after = rest[end + len(_CLOSE) :]
        between, opened, rest = after.partition(_OPEN)
        said += between
    return said.strip(), tuple(calls)


def _end_beyond(rest: str, cut: int) -> int | None:
    """Return where the call ends whose JSON quotes the closing tag at `cut`, if it does."""
    try:
        _, end = _DECODER.raw_decode(rest, len(rest) - len(rest.lstrip()))
    except (ValueError, RecursionError):
        return None
    end = rest.find(_CLOSE, end)
    return end if end > cut else None


def _bare_json(text: str, prefix: str) -> tuple[str, tuple[ToolCall, ...]]:
    """`{"name": ..., "arguments": {...}}` objects, with any text before, between and after."""
    calls: list[ToolCall] = []
    said, end = "", 0
    while (start := _BARE_CALL.search(text, end)) is not None:
        said += text[end : start.start()]
        end = _read_objects(text, prefix, calls, start.end(), in_prose=True)
    return (said + text[end:]).strip(), tuple(calls)


DIALECTS: dict[str, Dialect] = {"hermes": _hermes, "json": _bare_json}


def _read_objects(
    body: str, prefix: str, calls: list[ToolCall], position: int = 0, *, in_prose: bool = False
) -> int:
    """Append the calls of the JSON objects that follow one another and return where they end.

    What is no JSON is a faulty call up to the next that begins like one; `in_prose` it is one
    only where it begins like an object.
    """
    end = len(body)
    if not end:
        problem = "nothing between the tags"
        calls.append(_faulty("invalid_json", problem, body, f"{prefix}{len(calls)}"))
    while position < end:
        start = position
        try:
            value, position = _DECODER.raw_decode(body, position)
        except (ValueError, RecursionError) as error:
            following = _BARE_CALL.search(body, start + 1)
            position = end if following is None else following.end()
            raw = body[start:position].strip()
            calls.append(_faulty("invalid_json", _json_fault(error), raw, f"{prefix}{len(calls)}"))
        else:
            calls.append(_call(value, body[start:position], f"{prefix}{len(calls)}"))
        while position < end and body[position] in " \t\r\n,":
            position += 1
        if in_prose and body[position : position + 1] not in ("{", "["):
            break
    return position


def _pairs(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    made = dict(pairs)
    if len(made) != len(pairs):
        keys = [key for key, _ in pairs]
        twice = next(key for key in keys if keys.count(key) > 1)
        raise ValueError(f"the key `{clean_text(twice)[:50]}` occurs twice")
    return made


def _no_constant(name: str) -> None:
    raise ValueError(f"`{name}` is no JSON value")


def _finite(digits: str) -> float:
    number = float(digits)
    if math.isinf(number):
        raise ValueError(f"the number `{digits[:20]}` is too large")
    return number


_DECODER = json.JSONDecoder(
    object_pairs_hook=_pairs, parse_constant=_no_constant, parse_float=_finite
)


def _json_fault(error: BaseException) -> str:
    if isinstance(error, RecursionError):
        return "nested too deeply"
    if not isinstance(error, json.JSONDecodeError):
        fault = str(error)
        return "a number has too many digits" if "int_max_str_digits" in fault else fault
    found = error.doc[error.pos : error.pos + 1]
    hint = "; quotes, colons, commas and brackets of JSON are ASCII"
    return f"{error}{hint if found and found in _MARKS else ''}"


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
    """Return arguments given as object or as JSON text; none, null and blank text are `{}`."""
    if isinstance(value, str) and value.strip():
        try:
            value = _DECODER.decode(value)
        except (ValueError, RecursionError) as error:
            return EMPTY, f"invalid_json: arguments: {_json_fault(error)}"
    if value is None or (isinstance(value, str) and not value.strip()):
        return EMPTY, None
    if not isinstance(value, Mapping):
        return EMPTY, f"invalid_arguments: an object is needed, not {type(value).__name__}"
    fault = _unfit(value)
    return (freeze(value), None) if fault is None else (EMPTY, f"invalid_arguments: {fault}")


def _unfit(value: object, levels: int = DEEPEST) -> str | None:
    """Return why a value is no argument, or `None`."""
    if isinstance(value, float) and not math.isfinite(value):
        return f"`{value}` is no JSON value"
    if value is None or isinstance(value, (str, int, float)):
        return None
    if not levels:
        return "nested too deeply"
    if isinstance(value, (list, tuple)):
        items: Iterator[object] = iter(value)
    elif isinstance(value, dict) and all(isinstance(key, str) for key in value):
        items = iter(value.values())
    else:
        return f"`{type(value).__name__}` is no JSON type"
    return next((fault for item in items if (fault := _unfit(item, levels - 1))), None)


def _faulty(code: str, problem: str, raw: str, call_id: str) -> ToolCall:
    return ToolCall(call_id, "", EMPTY, f"{code}: {problem}", raw)


def _scrubbed(action: Action) -> Action:
    """Replace lone surrogates by U+FFFD, with an event; the same object where there is none."""
    message = action.message
    texts = [message.content, message.reasoning, action.speech or "", *action.covers]
    for call in message.tool_calls:
        texts += (call.id, call.name, call.raw or "")
    objects = (action.extras, *(call.arguments for call in message.tool_calls))
    if _is_clean("".join((*texts, *action.skips))) and all(map(_is_clean, objects)):
        return action
    clean = replace(
        message,
        content=clean_text(message.content),
        reasoning=clean_text(message.reasoning),
        tool_calls=tuple(map(_scrubbed_call, message.tool_calls)),
    )
    return replace(
        action,
        message=clean,
        speech=None if action.speech is None else clean_text(action.speech),
        covers=tuple(map(clean_text, action.covers)),
        skips=tuple(map(clean_text, action.skips)),
        extras=freeze(_cleaned(action.extras)),
        events=(*action.events, TurnEvent("surrogates_replaced")),
    )


def _scrubbed_call(call: ToolCall) -> ToolCall:
    raw = None if call.raw is None else clean_text(call.raw)
    arguments = freeze(_cleaned(call.arguments))
    return replace(
        call, id=clean_text(call.id), name=clean_text(call.name), arguments=arguments, raw=raw
    )


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
        return replace(action, message=replace(action.message, reasoning=reasoning))
    made = _own_calls([_openai_call(call) for call in calls], turn)
    thinking, said = _split_thinking(content)
    text = _without_end(said).strip()
    return Action(Message("assistant", text, made, None, reasoning or thinking))


def _openai_call(call: Mapping[str, Any]) -> ToolCall:
    function = call.get("function", call)
    given = function.get("arguments") if isinstance(function, Mapping) else None
    raw = given if isinstance(given, str) else str(function)
    made = _call(function, raw, str(call.get("id") or ""))
    fault = _unfit(made.arguments)
    if fault is None:
        return made
    return ToolCall(made.id, made.name, EMPTY, f"invalid_arguments: {fault}", raw)


def _content_text(content: object) -> str:
    if content is None:
        return ""
    if isinstance(content, str):
        return content
    if isinstance(content, (list, tuple)):
        return "".join(map(_part_text, content))
    raise InvalidAction(f"got content of type `{type(content).__name__}`; it is text or parts")


def _part_text(part: object) -> str:
    if isinstance(part, str):
        return part
    if isinstance(part, Mapping):
        return str(part.get("text", "")) if part.get("type") == "text" else ""
    raise InvalidAction(
        f'got a content part of type `{type(part).__name__}`; it is `{{"type": "text", ...}}`'
    )


_SEQUENCES = ("token_ids", "logprobs", "prompt_ids", "covers", "skips")


def _checked(action: Action, turn: int) -> Action:
    """Check an action that a caller built; give its calls ids and arguments of the record's own."""
    message = action.message
    if not isinstance(message, Message) or message.role != "assistant":
        raise InvalidAction("an action's message is a `Message` of role `assistant`")
    texts = (message.content, message.reasoning, action.speech or "")
    if not all(isinstance(text, str) for text in texts):
        raise InvalidAction(f"an action's content, reasoning and speech are text; got {texts!r}")
    if action.channel not in ("danmaku", "speech"):
        raise InvalidAction(f"invalid_channel: got `{action.channel}`; use `danmaku` or `speech`")
    own: dict[str, Any] = {}
    for name in _SEQUENCES:
        value = getattr(action, name)
        if value is not None and type(value) is not tuple:
            own[name] = _own_tuple(name, value)
    if type(action.extras) is not FrozenDict:
        own["extras"] = _own_object("extras", action.extras)
    if message.tool_calls:
        own["message"] = replace(message, tool_calls=_own_calls(message.tool_calls, turn))
    action = replace(action, **own) if own else action
    ids, logprobs = action.token_ids, action.logprobs
    if logprobs is not None and len(logprobs) != len(ids or ()):
        raise InvalidAction(f"got {len(logprobs)} logprobs for {len(ids or ())} token ids")
    return action


def _own_tuple(name: str, value: object) -> tuple[Any, ...]:
    if not isinstance(value, Sequence) or isinstance(value, str):
        raise InvalidAction(f"an action's `{name}` is a tuple, not {value!r}")
    return tuple(value)


def _own_object(name: str, value: object) -> FrozenDict:
    if type(value) is FrozenDict and _PLAIN.issuperset(map(type, value.values())):
        return value
    fault = _unfit(value) if isinstance(value, dict) else f"got {value!r}"
    if not isinstance(value, dict) or fault is not None:
        raise InvalidAction(f"`{name}` is an object of JSON values: {fault}")
    return value if isinstance(value, FrozenDict) else freeze(value)


def _own_calls(calls: Sequence[ToolCall], turn: int) -> tuple[ToolCall, ...]:
    """Return the calls with ids that differ from each other, and frozen arguments."""
    for call in calls:
        if not isinstance(call, ToolCall) or not isinstance(call.name, str):
            raise InvalidAction(f"got the call {call!r}; an action's calls are `ToolCall`s")
    taken = {call.id for call in calls}
    seen: set[str] = set()
    made: list[ToolCall] = []
    for i, call in enumerate(calls):
        call_id = call.id
        if not call_id or call_id in seen:
            call_id = f"call_{turn}_{i}"
            while call_id in taken:
                call_id += "_"
            taken.add(call_id)
        seen.add(call_id)
        arguments = _own_object("arguments", call.arguments)
        made.append(ToolCall(call_id, call.name, arguments, call.error, call.raw))
    return tuple(made)
