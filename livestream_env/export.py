"""Trajectories as SFT data sets: a student for tool calls, one for replies, or one for both.

A view says which turns are trained, by the same rule as the masker of that name; a format says how
that is written. What a format cannot hold is left out with a reason, never trained otherwise than
the view says: of plain messages, trainers train every assistant message.
"""

from __future__ import annotations

import json
import os
import re
import tempfile
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Literal, get_args

from livestream_env.errors import (
    EmptyMaskError,
    PrefixMismatch,
    UnsupportedTemplate,
    did_you_mean,
    missing_dependency,
)
from livestream_env.masking import MASKERS
from livestream_env.tokens import Renderer, TokenSequence, source_of
from livestream_env.types import Action, Message, Status, ToolSpec, Trajectory, Turn
from livestream_env.words import clean_text

View = Literal["tool_calls", "reply", "end_to_end"]
Format = Literal["messages", "prompt_completion", "tokens", "sharegpt", "verl"]
VIEWS: tuple[View, ...] = get_args(View)
FORMATS: tuple[Format, ...] = get_args(Format)
NOT_TRAINED = -100
"""The label that cross entropy leaves out."""

Row = dict[str, Any]


@dataclass(frozen=True, slots=True)
class Export:
    """Training rows, and what none could be made of."""

    format: Format
    rows: tuple[Row, ...]
    """JSON-shaped; in the order of the trajectories."""
    excluded: tuple[tuple[int, str], ...]
    """(index of the trajectory, reason); one that has rows may stand here for what they lack."""


class _Unfit(ValueError):
    """The format cannot hold the conversation."""


def export_sft(
    trajectories: Iterable[Trajectory],
    *,
    view: View = "end_to_end",
    format: Format = "messages",
    strip_thinking: bool = False,
    renderer: Renderer | None = None,
) -> Export:
    """Make the rows of an SFT data set; `docs/export.md` says what each format holds.

    Args:
        view: `tool_calls` trains tool turns and cuts behind the last, `reply` trains replies,
            `end_to_end` both.
        strip_thinking: leave out the reasoning of every assistant message and what it has in
            `<think>` tags. Recorded token ids are left out with it: `tokens` renders from text.
        renderer: makes the token sequences of `tokens`.

    Raises:
        ValueError: no view or format has that name, or `tokens` was asked for without a renderer.
    """
    for given, known in ((view, VIEWS), (format, FORMATS)):
        if given not in known:
            hint = did_you_mean(str(given), known)
            raise ValueError(f"got `{given}`; use {', '.join(f'`{k}`' for k in known)}.{hint}")
    if format == "tokens" and renderer is None:
        raise ValueError(
            "`tokens` needs a renderer; pass `renderer=ChatTemplateRenderer(tokenizer)`"
        )
    rows: list[Row] = []
    excluded: list[tuple[int, str]] = []
    for index, trajectory in enumerate(trajectories):
        try:
            _check_status(trajectory)
            prepared = _prepared(trajectory, strip_thinking, keep_ids=format == "tokens")
            if renderer is not None and format == "tokens":
                rows += _token_rows(renderer.render(prepared), view)
                continue
            for conversation in _conversations(prepared, view):
                made, left_out = _MAKERS[format](conversation, view)
                rows += map(_plain, made)
                excluded += [(index, reason) for reason in left_out]
        except (_Unfit, EmptyMaskError, PrefixMismatch, UnsupportedTemplate) as error:
            excluded.append((index, str(error)))
    return Export(format, tuple(rows), tuple(excluded))


def write_export(export: Export, path: str | os.PathLike[str]) -> None:
    """Write the rows: parquet for `verl`, else JSON Lines. The file is there whole or not at all.

    Raises:
        MissingDependency: `pyarrow` is needed for parquet.
    """
    write_rows(export.rows, path, schema=_verl_schema if export.format == "verl" else None)


def write_rows(
    rows: Iterable[Row],
    path: str | os.PathLike[str],
    *,
    schema: Callable[[Any], Any] | None = None,
) -> int:
    """Write JSON Lines, or parquet by the schema that `schema` makes of `pyarrow`; return how many.

    The file is there whole or not at all.

    Raises:
        MissingDependency: `pyarrow` is needed for parquet.
    """
    target, made = Path(path), list(map(_plain, rows))
    with tempfile.TemporaryDirectory(dir=target.parent, prefix=".export-") as folder:
        whole = Path(folder, target.name)
        if schema is not None:
            _write_parquet(made, whole, schema)
        else:
            with open(whole, "w", encoding="utf-8", newline="\n") as out:
                out.writelines(f"{_json(row)}\n" for row in made)
        os.replace(whole, target)
    return len(made)


# --- what was said ---------------------------------------------------------------------------


def _check_status(trajectory: Trajectory) -> None:
    if trajectory.status is Status.RUNNING:
        raise _Unfit("the episode had not ended (status running)")
    if trajectory.status is Status.ENV_ERROR:
        causes = [fault.detail for fault in trajectory.faults[-1:]]
        raise _Unfit(": ".join(["infrastructure failed (status env_error)", *causes]))


def _prepared(trajectory: Trajectory, strip_thinking: bool, *, keep_ids: bool) -> Trajectory:
    """Return the trajectory with each assistant message as the policy would write it.

    Turns that keep their recorded ids are left alone: their ids hold what was written.
    """
    turns = []
    for index, turn in enumerate(trajectory.turns):
        action = turn.action
        if strip_thinking or not keep_ids or action.token_ids is None:
            message = _written(action)
            if strip_thinking:
                message = _without_thinking(message, index)
            action = replace(
                action, message=message, token_ids=None, logprobs=None, prompt_ids=None
            )
        turns.append(replace(turn, action=action))
    return trajectory.model_copy(update={"turns": tuple(turns)})


def _written(action: Action) -> Message:
    """Return the message with the markup that covers, skips, speech and extras were read from."""
    text = action.message.content
    attributes = {"to": ",".join(action.covers)} if action.covers else {}
    attributes |= {str(kind): str(value) for kind, value in action.extras.items()}
    if attributes:
        inside = "".join(f' {name}="{value}"' for name, value in attributes.items())
        text = f"<reply{inside}>{text}</reply>"
    if action.speech is not None:
        text += f"<speech>{action.speech}</speech>"
    if action.skips:
        text += f'<skip ids="{",".join(action.skips)}"/>'
    return replace(action.message, content=text)


_THOUGHT = re.compile(r"(?:<think>|\A)(?:(?!<think>).)*</think>\s*|<think>.*\Z", re.DOTALL)
"""A thought ends at the last `</think>` before the next `<think>`, or with the text; the prompt may
have begun the first one."""


def _without_thinking(message: Message, turn: int) -> Message:
    said = message.content
    while "think>" in said and (shorter := _THOUGHT.sub("", said)) != said:
        said = shorter
    if message.content.strip() and not said.strip() and not message.tool_calls:
        raise _Unfit(f"turn {turn} says nothing once its thinking is stripped")
    return replace(message, content=said, reasoning="")


# --- who is trained --------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class _Conversation:
    """What one agent saw and said."""

    messages: tuple[Message, ...]
    trained: tuple[bool, ...]
    """Of each message."""
    tools: tuple[ToolSpec, ...]

    def cut(self, stop: int) -> _Conversation:
        """Return the first `stop` messages."""
        return _Conversation(self.messages[:stop], self.trained[:stop], self.tools)

    @property
    def last_trained(self) -> int:
        """Index of the last message that is trained, -1 where none is."""
        return max((i for i, is_trained in enumerate(self.trained) if is_trained), default=-1)

    def stretches(self, *, single: bool) -> list[tuple[int, int]]:
        """Return (start, stop) of what is trained without another assistant message between.

        `single`: of each trained message.
        """
        found: list[tuple[int, int]] = []
        is_open = False
        for i, (message, is_trained) in enumerate(zip(self.messages, self.trained, strict=True)):
            if is_trained and is_open and not single:
                found[-1] = (found[-1][0], i + 1)
            elif is_trained:
                found.append((i, i + 1))
            if message.role == "assistant":
                is_open = is_trained
        return found


def _conversations(trajectory: Trajectory, view: View) -> list[_Conversation]:
    """Return the conversation of each agent that has turns to train.

    As in token sequences, an agent sees its own prompt, then all that was said by any agent.
    """
    masker, turns = MASKERS[view], trajectory.turns
    partners = trajectory.partners
    is_trained = [t.agent not in partners and source_of(t) in masker.sources for t in turns]
    agents = dict.fromkeys(turn.agent for turn, one in zip(turns, is_trained, strict=True) if one)
    if not agents:
        raise _Unfit(f"no turn is trained by `{view}`")
    made = []
    for agent in agents:
        messages = list(trajectory.prompts[agent])
        trained = [False] * len(messages)
        for turn, one in zip(turns, is_trained, strict=True):
            messages += _turn_messages(turn)
            trained += (one and turn.agent == agent, *(False for _ in turn.messages))
        whole = _Conversation(tuple(messages), tuple(trained), trajectory.tools[agent])
        made.append(whole.cut(whole.last_trained + 1) if masker.cut else whole)
    return made


def _turn_messages(turn: Turn) -> tuple[Message, ...]:
    return (turn.action.message, *turn.messages)


def _wholly_trained(conversation: _Conversation) -> tuple[_Conversation | None, str | None]:
    """Cut before the first assistant message that is not to be trained; say what is left out."""
    pairs = zip(conversation.messages, conversation.trained, strict=True)
    other = [i for i, (m, trained) in enumerate(pairs) if m.role == "assistant" and not trained]
    if not other or other[0] > conversation.last_trained:
        return conversation, None
    kept = conversation.cut(other[0])
    kept = kept.cut(kept.last_trained + 1)
    reason = (
        "turns behind an assistant message that this view does not train: the format trains every "
        "one of a row; use `prompt_completion` or `tokens`"
    )
    return (kept if any(kept.trained) else None), reason


# --- formats ---------------------------------------------------------------------------------


def _token_rows(sequences: Sequence[TokenSequence], view: View) -> list[Row]:
    rows: list[Row] = []
    fault = EmptyMaskError("the trajectory has no token sequence")
    for sequence in sequences:
        try:
            sample = MASKERS[view](sequence)
        except EmptyMaskError as error:
            fault = error
            continue
        pairs = zip(sample.token_ids, sample.loss_mask, strict=True)
        rows.append(
            {
                "input_ids": list(sample.token_ids),
                "labels": [token if trained else NOT_TRAINED for token, trained in pairs],
                "attention_mask": [1] * len(sample.token_ids),
            }
        )
    if not rows:
        raise fault
    return rows


Made = tuple[list[Row], list[str]]


def _message_rows(conversation: _Conversation, view: View) -> Made:
    if view == "reply":
        return _prompt_rows(conversation, view)
    kept, reason = _wholly_trained(conversation)
    tools = [spec.to_openai() for spec in conversation.tools]
    rows = [] if kept is None else [{"messages": _chat(kept.messages), "tools": tools}]
    return rows, [] if reason is None else [reason]


def _prompt_rows(conversation: _Conversation, view: View) -> Made:
    tools = [spec.to_openai() for spec in conversation.tools]
    chat = _chat(conversation.messages)
    parts = conversation.stretches(single=view == "reply")
    rows = [{"prompt": chat[:i], "completion": chat[i:end], "tools": tools} for i, end in parts]
    return rows, []


def _verl_rows(conversation: _Conversation, _: View) -> Made:
    messages = _chat(conversation.messages)
    for message in messages:
        for call in message.get("tool_calls", ()):
            call["function"]["arguments"] = _json(call["function"]["arguments"])
    row = {
        "messages": messages,
        "tools": _json([spec.to_openai() for spec in conversation.tools]),
        "enable_thinking": any(message.reasoning for message in conversation.messages),
        "loss_mask": [int(one) for one in conversation.trained],
    }
    return [row], []


def _sharegpt_rows(conversation: _Conversation, view: View) -> Made:
    if view == "reply":
        stops = [stop for _, stop in conversation.stretches(single=True)]
        return [_sharegpt_row(conversation.cut(stop)) for stop in stops], []
    kept, reason = _wholly_trained(conversation)
    rows = [] if kept is None else [_sharegpt_row(kept.cut(kept.last_trained + 1))]
    return rows, [] if reason is None else [reason]


_MAKERS: dict[str, Callable[[_Conversation, View], Made]] = {
    "messages": _message_rows,
    "prompt_completion": _prompt_rows,
    "sharegpt": _sharegpt_rows,
    "verl": _verl_rows,
}


def _chat(messages: Sequence[Message]) -> list[Row]:
    """Return OpenAI chat messages, arguments as objects and results with their tool's name."""
    names: dict[str | None, str] = {}
    made = []
    for message in messages:
        _check_calls(message)
        chat = message.to_openai()
        for call, entry in zip(message.tool_calls, chat.get("tool_calls", ()), strict=True):
            entry["function"]["arguments"] = call.arguments
            names[call.id] = call.name
        if message.role == "tool":
            chat["name"] = names.get(message.tool_call_id, "")
        made.append(chat)
    return made


def _check_calls(message: Message) -> None:
    for call in message.tool_calls:
        if call.error is not None:
            raise _Unfit(
                f"a call could not be read ({call.error}); the format holds calls with arguments, "
                "use `tokens`"
            )


RESULT_SEPARATOR = "\n</tool_response>\n<tool_response>\n"
"""What LLaMA-Factory itself puts between the results of one turn."""
_ASKS, _ANSWERS = ("human", "observation"), ("gpt", "function_call")


def _sharegpt_row(conversation: _Conversation) -> Row:
    """Write in LLaMA-Factory's tags, which alternate and end with an answer."""
    messages = list(conversation.messages)
    system = messages.pop(0).content if messages and messages[0].role == "system" else ""
    lines: list[Row] = []
    for message in messages:
        tag, value = _sharegpt_line(message)
        if tag == "observation" and lines and lines[-1]["from"] == tag:
            lines[-1]["value"] += RESULT_SEPARATOR + value
            continue
        if tag not in (_ANSWERS if len(lines) % 2 else _ASKS):
            before = f"`{lines[-1]['from']}`" if lines else "the beginning"
            raise _Unfit(f"`{tag}` follows {before}, and ShareGPT's tags alternate; use `messages`")
        lines.append({"from": tag, "value": value})
    specs = [spec.to_openai()["function"] for spec in conversation.tools]
    return {"conversations": lines, "system": system, "tools": _json(specs)}


def _sharegpt_line(message: Message) -> tuple[str, str]:
    _check_calls(message)
    if message.role == "user":
        return "human", message.content
    if message.role == "tool":
        return "observation", message.content
    if message.role == "system":
        raise _Unfit("ShareGPT has one system text, at the beginning; use `messages`")
    if "</think>" in message.reasoning:
        raise _Unfit("the thinking of a turn holds `</think>`; ShareGPT marks its end by it")
    thought = f"<think>\n{message.reasoning}\n</think>\n\n" if message.reasoning else ""
    if not message.tool_calls:
        return "gpt", thought + message.content
    if message.content.strip():
        raise _Unfit("a turn has text beside its calls, which ShareGPT cannot hold; use `messages`")
    calls = [{"name": call.name, "arguments": call.arguments} for call in message.tool_calls]
    return "function_call", thought + _json(calls[0] if len(calls) == 1 else calls)


def _json(value: object) -> str:
    return json.dumps(value, ensure_ascii=False)


def _plain(row: Row) -> Row:
    """Copy into plain JSON types, without lone surrogates: no file can hold them."""
    copy: Row = json.loads(clean_text(_json(row)))
    return copy


def _write_parquet(rows: Sequence[Row], path: Path, schema: Callable[[Any], Any]) -> None:
    """Write with a fixed schema: one that is guessed fills what differs between rows with nulls."""
    try:
        import pyarrow as pa
        import pyarrow.parquet as pq
    except ImportError as error:
        raise missing_dependency("pyarrow", extra="export") from error
    pq.write_table(pa.Table.from_pylist(list(rows), schema=schema(pa)), path)


def _verl_schema(pa: Any) -> Any:
    text = pa.string()
    function = pa.struct({"name": text, "arguments": text})
    calls = pa.list_(pa.struct({"id": text, "type": text, "function": function}))
    texts = dict.fromkeys(("role", "content", "reasoning_content", "name", "tool_call_id"), text)
    return pa.schema(
        {
            "messages": pa.list_(pa.struct({**texts, "tool_calls": calls})),
            "tools": text,
            "enable_thinking": pa.bool_(),
            "loss_mask": pa.list_(pa.int8()),
        }
    )
