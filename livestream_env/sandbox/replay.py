"""`ReplaySandbox`: a recording answers; and how episodes and calls are found in one."""

from __future__ import annotations

import json
import os
import warnings
from collections.abc import Sequence
from typing import Any, TypeVar

from livestream_env.errors import CommentNotFound, ReplayMismatch, RoomMismatch, SandboxError
from livestream_env.sandbox.recording_file import RecordingFile, recording_file
from livestream_env.sandbox.recording_lines import CallLine, Place, ResetLine
from livestream_env.tools import compiled_schema, error_content, schema_fault
from livestream_env.types import RoomView, ToolCall, ToolResult, ToolSpec, TurnEvent

LONGEST_SHOWN = 300


class ReplaySandbox:
    """Answers from a recording, without whatever was recorded.

    Args:
        file: the recording; its lines are shared by the process.
        content_hash: of the room to play, where the file holds several with such comments.
        nearest: answer what was not recorded by the most alike call of that tool in that room,
            with the event `nearest`; by default `ReplayMismatch` is raised.
    """

    def __init__(
        self,
        file: str | os.PathLike[str],
        *,
        content_hash: str | None = None,
        nearest: bool = False,
    ) -> None:
        self.path = os.fspath(file)
        self.content_hash = content_hash
        self.nearest = nearest
        self._file: RecordingFile | None = read_recording(self.path)
        self._opening = next(iter(self._file.openings.values()))
        self._places: list[Place] = []

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_file": None}

    @property
    def file(self) -> RecordingFile:
        """The recording."""
        if self._file is None:
            self._file = read_recording(self.path)
        return self._file

    @property
    def specs(self) -> tuple[ToolSpec, ...]:
        """The tools of the episode's recording; before `reset`, of the first one."""
        return self._opening.tools

    def reset(self, *, seed: int, comments: Sequence[str]) -> RoomView:
        """Start an episode that was recorded; `seed` changes nothing.

        Raises:
            ReplayMismatch: no episode on these comments was recorded.
            RoomMismatch: it was, but of another room.
        """
        self._opening = find_opening(self.file, tuple(comments), self.content_hash)
        self._places = [self._opening.place]
        return self._opening.view

    def call(self, call: ToolCall) -> ToolResult:
        """Answer as recorded; unknown tools and wrong arguments are the policy's mistakes.

        Raises:
            ReplayMismatch: the call was not recorded, and `nearest` is off or finds nothing.
        """
        place = last_of(self._places)
        result = self._answer(place, call)
        self._places.append(place.after(result.state))
        return result

    def _answer(self, place: Place, call: ToolCall) -> ToolResult:
        found = self.file.answers.get(place.key(call))
        if found is not None:
            return found.result.result(call.id)
        refusal = refused(self._opening, call)
        if refusal is not None:
            return refusal
        near = self.file.nearest(place, call)
        if near is None or not self.nearest:
            raise _unrecorded(self.path, call, near)
        return near.result.result(call.id, TurnEvent("nearest", _asked(near), call.id))

    def fork(self, at_call: int | None = None) -> ReplaySandbox:
        """Return a sandbox in the state after the first `at_call` calls, by default after all."""
        forked = object.__new__(ReplaySandbox)
        forked.__dict__.update(self.__dict__)
        forked._places = first_of(self._places, at_call)
        return forked

    def log(self) -> Sequence[TurnEvent]:
        """Return nothing: no transport is involved."""
        return ()

    def close(self) -> None:
        """Forget the episode."""
        self._places = []


def read_recording(file: str | os.PathLike[str]) -> RecordingFile:
    """Read a recording that is to be answered from.

    Raises:
        FileNotFoundError: there is none.
        ValueError: it holds no episode.

    Warns:
        RuntimeWarning: lines cannot be read.
    """
    found = recording_file(file)
    if not found.path.is_file():
        raise FileNotFoundError(f"no recording `{os.fspath(file)}`")
    warn_of_faults(found)
    if not found.openings:
        raise ValueError(f"`{os.fspath(file)}` holds no recorded episode: no line is a `reset`")
    return found


def warn_of_faults(file: RecordingFile) -> None:
    """Warn of lines that cannot be read."""
    if not file.faults:
        return
    number = min(file.faults)
    more = f" and {len(file.faults) - 1} more" if len(file.faults) > 1 else ""
    what = "is cut" if number == file.torn else f"cannot be read ({file.faults[number]})"
    warnings.warn(
        f"`{file.path.name}`: line {number} {what}{more}, and is left out",
        RuntimeWarning,
        stacklevel=3,
    )


def find_opening(
    file: RecordingFile, comments: tuple[str, ...], content_hash: str | None
) -> ResetLine:
    """Return the recorded start of an episode on these comments.

    Raises:
        ReplayMismatch: there is none, or there are several and no `content_hash`.
        RoomMismatch: there is one, but of another room.
    """
    fitting = [line for line in file.openings.values() if line.comments == comments]
    mine = [line for line in fitting if content_hash in (None, line.content_hash)]
    if len(mine) == 1:
        return mine[0]
    asked = "+".join(comments)
    if mine:
        rooms = ", ".join(f"`{line.view.room_id}` ({line.content_hash})" for line in mine)
        raise ReplayMismatch(f"`{asked}` was recorded of rooms {rooms}; give a `content_hash`")
    if fitting:
        view = fitting[0].view
        raise RoomMismatch(
            f"the recording of `{asked}` is of room `{view.room_id}` ({view.content_hash}), not of"
            f" {content_hash}; record it again"
        )
    known = ", ".join("+".join(line.comments) for line in file.openings.values())
    raise ReplayMismatch(
        f"`{file.path.name}` holds no episode on `{asked}`; it has {_clipped(known)}"
    )


def choose_opening(
    openings: Sequence[ResetLine],
    seed: int,
    *,
    room: str | None = None,
    comment: str | Sequence[str] | None = None,
) -> ResetLine:
    """Return the episode that a seed visits, of those of a room and on a comment or burst.

    Raises:
        CommentNotFound: none is.
    """
    asked = (comment,) if isinstance(comment, str) else comment and tuple(comment)
    fitting = [
        line
        for line in openings
        if room in (None, line.view.room_id) and asked in (None, line.comments)
    ]
    if not fitting:
        of_room = "" if room is None else f" of room `{room}`"
        known = ", ".join("+".join(line.comments) for line in openings)
        raise CommentNotFound(
            f"no episode on `{comment}`{of_room} is recorded; there are {_clipped(known)}"
        )
    return fitting[seed % len(fitting)]


def refused(opening: ResetLine, call: ToolCall) -> ToolResult | None:
    """Return what the policy is told of a call that no tool takes, as `LocalSandbox` words it."""
    language = opening.view.language
    spec = next((spec for spec in opening.tools if spec.name == call.name), None)
    if spec is None:
        known = ", ".join(spec.name for spec in opening.tools)
        content = error_content(language, "unknown_tool", given=call.name, known=known)
        return ToolResult(call.id, content, error="unknown_tool")
    fault = schema_fault(compiled_schema(json.dumps(spec.parameters)), call.arguments)
    if fault is None:
        return None
    content = error_content(language, "invalid_arguments", problem=fault)
    return ToolResult(call.id, content, error="invalid_arguments")


def _unrecorded(path: str, call: ToolCall, near: CallLine | None) -> ReplayMismatch:
    arguments = json.dumps(call.arguments, ensure_ascii=False)
    known = "no call of it is" if near is None else f"the nearest that is: {_asked(near)}"
    return ReplayMismatch(
        f"`{call.name}({_clipped(arguments)})` is not recorded in `{path}` for these comments and"
        f" this state; {known}"
    )


def _asked(line: CallLine) -> str:
    """Write a recorded call."""
    arguments = json.dumps(line.arguments, ensure_ascii=False)
    return f"{line.tool}({_clipped(arguments)}) of {'+'.join(line.comments)}"


def _clipped(text: str) -> str:
    return text if len(text) <= LONGEST_SHOWN else text[: LONGEST_SHOWN - 1] + "…"


P = TypeVar("P")


def last_of(marks: Sequence[P]) -> P:
    """Return the mark after the latest call.

    Raises:
        SandboxError: there is no episode.
    """
    if not marks:
        raise SandboxError("the sandbox has no episode; call `reset` first")
    return marks[-1]


def first_of(marks: list[P], at_call: int | None) -> list[P]:
    """Return what a fork keeps: the mark at the start, and those of the first calls.

    Raises:
        ValueError: fewer calls were made.
    """
    last_of(marks)
    made = len(marks) - 1
    calls = made if at_call is None else at_call
    if not 0 <= calls <= made:
        raise ValueError(f"`at_call` is {at_call}; {made} calls were made")
    return marks[: calls + 1]
