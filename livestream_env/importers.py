"""Others' trajectories: OpenAI messages, tau-bench, ShareGPT with tools, ToolBench answers.

Texts are copied, not mended; where calls, results or the conversation itself cannot be told from a
record, it is refused with the reason. What the other side does not know is left open: no comment
ids, no seed, an empty content hash; the room is the file's stem and the agent `host`.

The status is `ok` (`replied`) where the last assistant message makes no call, whoever speaks after
it, and `policy_truncated` (`no_reply`) where it does; ToolBench's `Finish` with an answer is `ok`
(`tools_done`). Rewards that the record has become one score.
"""

from __future__ import annotations

import math
import os
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, get_args

from pydantic import ValidationError

from livestream_env.conversations import (
    FIRST_THOUGHT,
    Refused,
    is_list,
    json_within,
    kind_of,
    parsed_json,
)
from livestream_env.conversations import from_messages as from_messages
from livestream_env.errors import did_you_mean
from livestream_env.export import RESULT_SEPARATOR
from livestream_env.types import Rewards, Score, Status, StopReason, Trajectory

Format = Literal["trajectories", "log", "messages", "tau_bench", "sharegpt", "toolbench"]
FORMATS: tuple[Format, ...] = get_args(Format)


@dataclass(frozen=True, slots=True)
class Imported:
    """What a file held."""

    trajectories: tuple[Trajectory, ...]
    refused: tuple[tuple[str, str], ...]
    """(where, reason): `line 3` of JSON Lines, `[3]` of a list, `$` for the whole file."""


def load_trajectories(path: str | os.PathLike[str], format: Format | None = None) -> Imported:
    """Read a file of JSON or JSON Lines, ours (`trajectories`, or the lines of a `log`) or others'.

    Args:
        format: of every record; by default it is found for each.

    Raises:
        ValueError: no format has that name.
        OSError: the file cannot be read.
    """
    if format is not None and format not in FORMATS:
        known = ", ".join(f"`{name}`" for name in FORMATS)
        raise ValueError(f"got `{format}`; use {known}.{did_you_mean(str(format), FORMATS)}")
    loaded: list[Trajectory] = []
    refused: list[tuple[str, str]] = []
    for where, record in records_of(Path(path)):
        try:
            loaded.append(read_record(record, Path(path).stem, format))
        except Refused as error:
            refused.append((where, str(error)))
    return Imported(tuple(loaded), tuple(refused))


# --- files -----------------------------------------------------------------------------------


def records_of(path: Path) -> Iterator[tuple[str, Any]]:
    """Yield where each record is and what it holds: an exception where it is no JSON."""
    try:
        text = path.read_bytes().decode("utf-8-sig")
    except UnicodeDecodeError as error:
        yield "$", Refused(f"the file is not UTF-8 ({error.reason} at byte {error.start})")
        return
    whole = parsed_json(text)
    if isinstance(whole, list) and not _is_conversation(whole):
        yield from ((f"[{i}]", record) for i, record in enumerate(whole))
        return
    if not isinstance(whole, Refused):
        yield "$", whole
        return
    numbered = enumerate(text.split("\n"), 1)
    lines = [(f"line {i}", parsed_json(line)) for i, line in numbered if line.strip()]
    broken = all(isinstance(record, Refused) for _, record in lines)
    yield from [("$", whole)] if broken else lines


def read_record(record: Any, stem: str, format: Format | None = None) -> Trajectory:
    """Return the trajectory of one record of a file with that stem.

    Raises:
        Refused: it holds none.
    """
    if isinstance(record, Refused):
        raise record
    name = format or _format_of(record)
    made = _READERS[name](record, stem)
    if name in ("trajectories", "log"):
        return made
    return made.model_copy(update={"room_id": stem, "versions": {"imported_from": name}})


def _format_of(record: Any) -> Format:
    if _is_conversation(record):
        return "messages"
    if not isinstance(record, Mapping):
        raise Refused(f"a record is an object or a list of messages, not {kind_of(record)}")
    for key, name in _KEYS.items():
        if key in record:
            return name
    if isinstance(record.get("messages_display"), str):
        raise Refused("`messages_display` is flat text: its tool calls are lost")
    keys = ", ".join(f"`{str(key)[:30]}`" for key in list(record)[:6])
    raise Refused(f"no conversation: its keys are {keys or 'none'}, none of {', '.join(_KEYS)}")


_KEYS: dict[str, Format] = {
    "turns": "trajectories",
    "trajectory": "log",
    "traj": "tau_bench",
    "answer_generation": "toolbench",
    "conversations": "sharegpt",
    "messages": "messages",
}


def _is_conversation(value: Any) -> bool:
    """Return whether it is a list of chat messages."""
    return (
        is_list(value)
        and bool(value)
        and all(isinstance(one, Mapping) and "role" in one for one in value)
    )


# --- formats ---------------------------------------------------------------------------------


def _specs(given: Any) -> list[Any]:
    """Return the tools of a record: a list, or one as JSON text."""
    tools = json_within(given or [], "`tools`")
    if not is_list(tools):
        raise Refused(f"`tools` is {kind_of(tools)}, not a list")
    return list(tools)


def _read_own(record: Any, _: str) -> Trajectory:
    try:
        return Trajectory.model_validate(record)
    except ValidationError as error:
        raise Refused(f"no trajectory: {fault_of(error)}") from error


def fault_of(error: ValidationError) -> str:
    """Say how many faults a value has, and where the first one is."""
    first = error.errors(include_url=False)[0]
    place = ".".join(map(str, first["loc"])) or "$"
    return f"{error.error_count()} faults, first `{place}`: {first['msg']}"


def _read_log_line(record: Any, stem: str) -> Trajectory:
    _expect(record, "trajectory")
    return _read_own(record["trajectory"], stem)


def _read_messages(record: Any, stem: str) -> Trajectory:
    if _is_conversation(record):
        return from_messages(record)
    _expect(record, "messages")
    return from_messages(record["messages"], _specs(record.get("tools")))


def _read_tau_bench(record: Any, stem: str) -> Trajectory:
    _expect(record, "traj")
    made = from_messages(record["traj"], _specs(record.get("tools")))
    group = f"{stem}/{record['task_id']}" if "task_id" in record else None
    return made.model_copy(update={"group": group, "rewards": _rewards(record.get("reward"))})


def _read_toolbench(record: Any, _: str) -> Trajectory:
    """Read the path that a search tree ended with; branches that were left are not trajectories."""
    _expect(record, "answer_generation")
    answer = record["answer_generation"]
    if not isinstance(answer, Mapping) or not answer.get("train_messages"):
        raise Refused("`train_messages` is missing: the search found no path to its end")
    if not is_list(answer["train_messages"]):
        raise Refused(f"`train_messages` is {kind_of(answer['train_messages'])}, not a list")
    made = from_messages(answer["train_messages"][-1], _specs(answer.get("function")))
    won = record.get("win")
    update: dict[str, Any] = {"rewards": _rewards(float(won) if isinstance(won, bool) else None)}
    ends = [c for c in made.turns[-1].action.message.tool_calls if c.name == "Finish"]
    if any(call.arguments.get("return_type") == "give_answer" for call in ends):
        update |= {"status": Status.OK, "stop_reason": StopReason.TOOLS_DONE}
    return made.model_copy(update=update)


_TAGS = {
    "system": "system",
    "human": "user",
    "user": "user",
    "gpt": "assistant",
    "assistant": "assistant",
    "function_call": "assistant",
    "observation": "tool",
    "tool": "tool",
}


def _read_sharegpt(record: Any, _: str) -> Trajectory:
    _expect(record, "conversations")
    if not is_list(record["conversations"]):
        raise Refused(f"`conversations` is {kind_of(record['conversations'])}, not a list")
    system = record.get("system")
    messages: list[dict[str, Any]] = [{"role": "system", "content": system}] if system else []
    for index, line in enumerate(record["conversations"]):
        where = f"conversation line {index}"
        if not isinstance(line, Mapping):
            raise Refused(f"{where} is {kind_of(line)}, not an object")
        tag = str(line.get("from", line.get("role")))
        value = line.get("value", line.get("content"))
        if tag not in _TAGS:
            raise Refused(f"{where} is from `{tag[:50]}`")
        if tag == "function_call":
            messages.append(_sharegpt_calls(value, where))
        elif tag == "observation":
            calls = messages[-1].get("tool_calls", ()) if messages else ()
            messages += _observations(value, len(calls))
        else:
            messages.append({"role": _TAGS[tag], "content": value})
    return from_messages(messages, _specs(record.get("tools")))


def _sharegpt_calls(value: Any, where: str) -> dict[str, Any]:
    reasoning = ""
    if isinstance(value, str) and (thought := FIRST_THOUGHT.match(value)):
        value, reasoning = value[thought.end() :], thought[1]
    calls = json_within(value, where)
    listed = calls if isinstance(calls, list) else [calls]
    made: dict[str, Any] = {"role": "assistant", "content": "", "tool_calls": listed}
    return made | {"reasoning_content": reasoning}


def _observations(value: Any, calls: int) -> list[dict[str, Any]]:
    """Take the results of several calls apart where the separator does."""
    parts = value.split(RESULT_SEPARATOR) if calls > 1 and isinstance(value, str) else [value]
    kept = parts if len(parts) == calls else [value]
    return [{"role": "tool", "content": part} for part in kept]


_READERS: dict[Format, Callable[[Any, str], Trajectory]] = {
    "trajectories": _read_own,
    "log": _read_log_line,
    "messages": _read_messages,
    "tau_bench": _read_tau_bench,
    "sharegpt": _read_sharegpt,
    "toolbench": _read_toolbench,
}


def _expect(record: Any, key: str) -> None:
    if not isinstance(record, Mapping) or key not in record:
        raise Refused(f"a record of this format is an object with `{key}`")


def _rewards(value: Any) -> Rewards | None:
    is_number = isinstance(value, (int, float)) and not isinstance(value, bool)
    if not is_number or not math.isfinite(value):
        return None
    return Rewards((Score("reward", float(value)),))
