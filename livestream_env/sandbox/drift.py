"""Whether a live sandbox still answers as it did when a recording was made."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING

from livestream_env.sandbox.recording_file import RecordingFile
from livestream_env.sandbox.recording_lines import (
    CallLine,
    RecordedResult,
    ResetLine,
    state_digest,
)
from livestream_env.types import RoomView, ToolCall

if TYPE_CHECKING:
    from livestream_env.sandbox import Sandbox


@dataclass(frozen=True, slots=True)
class Drift:
    """A line that a live sandbox answers otherwise."""

    number: int
    """Number of the line in the file."""
    line: ResetLine | CallLine
    live: RoomView | RecordedResult | None
    """What is answered today; `None` where the call cannot be made: the calls that led to its
    state are not recorded."""


def find_drift(
    file: RecordingFile, make_live: Callable[[ResetLine], Sandbox], *, seed: int = 0
) -> Iterator[Drift]:
    """Ask a live sandbox all that a recording holds, and yield what it answers otherwise."""
    numbers = {id(line): number for number, line in file.lines.items()}
    for opening in file.openings.values():
        live = make_live(opening)
        try:
            view = live.reset(seed=seed, comments=opening.comments)
            if view != opening.view:
                yield Drift(numbers[id(opening)], opening, view)
            for line, answer in _answers(file, opening, live, seed):
                if answer is None or not _is_equal(line.result, answer):
                    yield Drift(numbers[id(line)], line, answer)
        finally:
            live.close()


def _answers(
    file: RecordingFile, opening: ResetLine, live: Sandbox, seed: int
) -> Iterator[tuple[CallLine, RecordedResult | None]]:
    """Make the calls of an episode, look-ups of one state together, each write on its own."""
    key = opening.content_hash, opening.comments
    lines = [line for line in file.answers.values() if (line.content_hash, line.comments) == key]
    ways = _ways(opening, lines)
    stands: str | None = None
    for line in sorted(lines, key=lambda line: (line.state, line.result.state is not None)):
        way = ways.get(line.state)
        if way is None:
            yield line, None
            continue
        if stands != line.state:
            live.reset(seed=seed, comments=opening.comments)
            for call in way:
                live.call(call)
        yield line, RecordedResult.of(live.call(_call_of(line)))
        stands = None if line.result.state is not None else line.state


def _ways(opening: ResetLine, lines: list[CallLine]) -> dict[str, tuple[ToolCall, ...]]:
    """Return the recorded writes that lead to each state, the fewest."""
    ways: dict[str, tuple[ToolCall, ...]] = {state_digest(opening.view.state): ()}
    todo = list(ways)
    writes = [line for line in lines if line.result.state is not None]
    for state in todo:
        for line in writes:
            assert line.result.state is not None
            reached = state_digest(line.result.state)
            if line.state == state and reached not in ways:
                ways[reached] = (*ways[state], _call_of(line))
                todo.append(reached)
    return ways


def _call_of(line: CallLine) -> ToolCall:
    return ToolCall("verify", line.tool, line.arguments)


def _is_equal(recorded: RecordedResult, live: RecordedResult) -> bool:
    return all(
        getattr(recorded, name) == getattr(live, name)
        for name in ("content", "data", "error", "state")
    )
