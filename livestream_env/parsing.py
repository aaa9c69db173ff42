"""Model text and chat messages into actions.

What looks like a call but cannot be parsed becomes a `ToolCall` with an `error`, which the episode
answers with an error result: never silently a reply, never an exception, and nothing is repaired
into another meaning. A call drafted while thinking is no call.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from livestream_env.calls import call_of, plain_call, unfit
from livestream_env.dialects import END_TOKENS, has_channels, may_quote, read_calls, without_calls
from livestream_env.errors import InvalidAction
from livestream_env.markup import read_markup
from livestream_env.types import (
    EMPTY,
    Action,
    FrozenDict,
    Message,
    ToolCall,
    ToolSpec,
    TurnEvent,
    freeze,
)
from livestream_env.words import clean_text

ACCEPTED = (
    "pass an `Action`, a model's raw text, or an OpenAI message"
    ' `{"role": "assistant", "content": ..., "tool_calls": [...]}`'
)
_PLAIN = frozenset({str, int, bool, type(None)})
_MAY_CALL = re.compile(r"[{\[(｛＜✿]|Action:|行动[:：]").search
"""What a text without `<` must hold to hold a call."""
_THINK_TAG = re.compile("</?think>")


def to_action(given: object, *, turn: int = 0, tools: Sequence[ToolSpec] = ()) -> Action:
    """Turn what `step` was given into an action of the record.

    Calls without an id of their own become `call_{turn}_{index}`, arguments are frozen, and lone
    surrogates become U+FFFD, with an event.

    Raises:
        InvalidAction: it is neither an `Action`, nor text, nor an assistant message.
    """
    if isinstance(given, str):
        if (call := plain_call(given, turn)) is not None:
            return Action(Message("assistant", "", (call,)))
        return parse_text(given, turn=turn, tools=tools)
    if isinstance(given, Action):
        return _scrubbed(_checked(given, turn))
    if isinstance(given, Message):
        return _scrubbed(_checked(Action(given), turn))
    if isinstance(given, Mapping):
        return _scrubbed(_checked(parse_message(given, turn=turn, tools=tools), turn))
    raise InvalidAction(f"got a `{type(given).__name__}`; {ACCEPTED}")


def parse_text(
    text: str, dialect: str | None = None, *, turn: int = 0, tools: Sequence[ToolSpec] = ()
) -> Action:
    """Parse a model's raw text; the dialect is found from the text where it is not named.

    Args:
        dialect: a key of `DIALECTS`; calls of another dialect are errors then.
        tools: the schemas that type the values of dialects which write them as text.

    Raises:
        ValueError: there is no such dialect.
    """
    if dialect is None and (call := plain_call(text, turn)) is not None:
        return Action(Message("assistant", "", (call,)))
    reasoning, said = _split_thinking(text) if "think>" in text else ("", text)
    said = _without_end(said)
    if dialect is None and "<" not in said and _MAY_CALL(said) is None:
        action = Action(Message("assistant", said.strip(), (), None, reasoning))
    else:
        read = read_calls(said, f"call_{turn}_", dialect, tools)
        if read.thinking:
            reasoning = f"{reasoning}\n{read.thinking}".strip()
        content = read.said.strip()
        if not read.calls and "<" in content:
            action = _marked(content, reasoning)
        else:
            action = Action(Message("assistant", content, tuple(read.calls), None, reasoning))
    return _scrubbed(action) if "\\u" in text or not _is_clean(text) else action


def _marked(content: str, reasoning: str) -> Action:
    """Read a reply's markup, where it has any."""
    marked = read_markup(content)
    if marked is None:
        return Action(Message("assistant", content, (), None, reasoning))
    return Action(
        Message("assistant", marked.bullet, (), None, reasoning),
        covers=marked.covers,
        skips=marked.skips,
        speech=marked.speech,
        extras=freeze(marked.extras),
    )


def _without_end(text: str) -> str:
    """Drop end tokens at the end of the text."""
    if not text.endswith((">", "\n", " ")) or text.endswith("</tool_call>"):
        return text
    end = _past_blanks(text, len(text))
    while text.endswith(END_TOKENS, 0, end):
        end = _past_blanks(text, text.rindex("<", 0, end))
    return text[:end]


def _past_blanks(text: str, end: int) -> int:
    while end and text[end - 1].isspace():
        end -= 1
    return end


def _split_thinking(text: str) -> tuple[str, str]:
    """Split into what is thought and what is said; unclosed thinking is thought to the end.

    A thought ends at the last `</think>` before the next `<think>`; a first `</think>` that nothing
    opened ends one that the prompt began. A tag that a call quotes, such as one in a viewer's text,
    ends and begins nothing.
    """
    if has_channels(text):
        return "", text
    seen = without_calls(text) if may_quote(text, text.rfind("think>")) else text
    tags = list(_THINK_TAG.finditer(seen))
    thoughts: list[str] = []
    said: list[str] = []
    thinks = bool(tags) and tags[0][0] == "</think>"
    position = 0
    for i, tag in enumerate(tags):
        begins = tag[0] == "<think>"
        if begins != thinks and (begins or i + 1 == len(tags) or tags[i + 1][0] == "<think>"):
            (said if begins else thoughts).append(text[position : tag.start()])
            thinks, position = begins, tag.end()
    (thoughts if thinks else said).append(text[position:])
    return (
        "\n".join(filter(None, map(str.strip, thoughts))),
        "\n".join(part for part in said if part.strip()),
    )


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


def parse_message(
    message: Mapping[str, Any],
    dialect: str | None = None,
    *,
    turn: int = 0,
    tools: Sequence[ToolSpec] = (),
) -> Action:
    """Turn an OpenAI assistant message into an action; arguments may be an object or JSON text.

    The older key `function_call` is read like one call. Without calls, the content is parsed as a
    model's text, in the dialect that is named or found.

    Raises:
        InvalidAction: the message has another role or another shape.
        ValueError: there is no such dialect.
    """
    role = message.get("role", "assistant")
    if role != "assistant":
        raise InvalidAction(f"got a message of role `{role}`; an action has role `assistant`")
    content = _content_text(message.get("content"))
    calls = message.get("tool_calls") or ()
    if not calls and message.get("function_call"):
        calls = (message["function_call"],)
    if not isinstance(calls, (list, tuple)) or not all(isinstance(c, Mapping) for c in calls):
        raise InvalidAction(f"got `tool_calls` {calls!r}; it is a list of objects")
    reasoning = str(message.get("reasoning_content") or message.get("reasoning") or "")
    if not calls:
        action = parse_text(content, dialect, turn=turn, tools=tools)
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
    made = call_of(function, raw, str(call.get("id") or ""))
    fault = unfit(made.arguments)
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


_SEQUENCES = ("token_ids", "logprobs", "prompt_ids", "covers", "skips", "events")


def _checked(action: Action, turn: int) -> Action:
    """Check an action that a caller built; give its calls ids and arguments of the record's own."""
    message = action.message
    if not isinstance(message, Message) or message.role != "assistant":
        raise InvalidAction("an action's message is a `Message` of role `assistant`")
    texts = (message.content, message.reasoning, action.speech or "")
    if not all(isinstance(text, str) for text in texts):
        raise InvalidAction(
            f"an action's content, reasoning and speech are text; got {str(texts)[:200]}"
        )
    if not isinstance(message.tool_call_id, str | None):
        raise InvalidAction(f"an action's `tool_call_id` is text, not {message.tool_call_id!r}")
    if action.channel not in ("danmaku", "speech"):
        raise InvalidAction(f"invalid_channel: got `{action.channel}`; use `danmaku` or `speech`")
    own: dict[str, Any] = {}
    for name in _SEQUENCES:
        value = getattr(action, name)
        if value is None and name in _MAY_LACK:
            continue
        if type(value) is not tuple:
            value = own[name] = _own_tuple(name, value)
        if not _KINDS[name].issuperset(map(type, value)):
            kinds = " or ".join(sorted(kind.__name__ for kind in _KINDS[name]))
            raise InvalidAction(f"an action's `{name}` holds {kinds}; got {str(value)[:200]!r}")
    if type(action.extras) is not FrozenDict:
        own["extras"] = _own_object("extras", action.extras)
    if not isinstance(message.tool_calls, tuple | list):
        raise InvalidAction(
            f"an action's `tool_calls` are a tuple, not {str(message.tool_calls)[:200]}"
        )
    if message.tool_calls:
        own["message"] = replace(message, tool_calls=_own_calls(message.tool_calls, turn))
    action = replace(action, **own) if own else action
    ids, logprobs = action.token_ids, action.logprobs
    if logprobs is not None and len(logprobs) != len(ids or ()):
        raise InvalidAction(f"got {len(logprobs)} logprobs for {len(ids or ())} token ids")
    return action


_MAY_LACK = frozenset({"token_ids", "logprobs", "prompt_ids"})
_KINDS: dict[str, frozenset[type]] = {
    "token_ids": frozenset({int}),
    "prompt_ids": frozenset({int}),
    "logprobs": frozenset({int, float}),
    "covers": frozenset({str}),
    "skips": frozenset({str}),
    "events": frozenset({TurnEvent}),
}
_TEXT = frozenset({str, type(None)})


def _own_tuple(name: str, value: object) -> tuple[Any, ...]:
    if not isinstance(value, Sequence) or isinstance(value, str):
        raise InvalidAction(f"an action's `{name}` is a tuple, not {str(value)[:200]!r}")
    return tuple(value)


def _own_object(name: str, value: object) -> FrozenDict:
    if (
        type(value) is FrozenDict
        and _PLAIN.issuperset(map(type, value.values()))
        and _TEXT.issuperset(map(type, value))
        and None not in value
    ):
        return value
    fault = unfit(value) if isinstance(value, dict) else f"got {value!r}"
    if not isinstance(value, dict) or fault is not None:
        raise InvalidAction(f"`{name}` is an object of JSON values: {fault}")
    return value if isinstance(value, FrozenDict) else freeze(value)


def _own_calls(calls: Sequence[ToolCall], turn: int) -> tuple[ToolCall, ...]:
    """Return the calls with ids that differ from each other, and frozen arguments."""
    for call in calls:
        is_call = isinstance(call, ToolCall) and isinstance(call.name, str)
        if not is_call or not _TEXT.issuperset(map(type, (call.id, call.error, call.raw))):
            raise InvalidAction(
                f"got the call {str(call)[:200]}; an action's calls are `ToolCall`s"
            )
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
