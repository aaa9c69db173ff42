"""`RecordingSandbox`: another sandbox, whose answers are written down.

An answer is kept under room, open comments, state, tool and arguments, so whoever asks the same in
the same situation is told the same. The seed is not part of it.
"""

from __future__ import annotations

import os
import time
from collections.abc import Generator, Sequence
from typing import TYPE_CHECKING, Any, Literal, NamedTuple

from livestream_env.errors import ReplayMismatch, RoomMismatch, SandboxTimeout
from livestream_env.sandbox.local import LocalSandbox
from livestream_env.sandbox.recording_file import RecordingFile, recording_file
from livestream_env.sandbox.recording_lines import (
    CallLine,
    Place,
    Redact,
    ResetLine,
    redacted,
    redacted_call,
)
from livestream_env.sandbox.replay import first_of, last_of, warn_of_faults
from livestream_env.sandbox.steps import Steps, arun_steps, run_steps
from livestream_env.types import RoomView, ToolCall, ToolResult, ToolSpec, TurnEvent

if TYPE_CHECKING:
    from livestream_env.sandbox import Sandbox

_POLL_S = 0.005


class _Mark(NamedTuple):
    """What a recording sandbox knows after some call."""

    place: Place
    ran: int
    """Calls that the inner sandbox has run."""
    missed: tuple[ToolCall, ...]
    """Calls that changed the state and were replayed: the inner sandbox is to run them first."""


class RecordingSandbox:
    """Another sandbox whose answers are appended to a file.

    Args:
        inner: the sandbox that is asked.
        file: made where missing; what it holds already stands.
        mode: with `all`, every call is passed on. With `read_through`, what is recorded is
            replayed, and what is not is asked once, whatever the threads and processes of this
            host, and appended; so all see the same.
        redact: changes texts before they are written, such as personal data to asterisks. With
            `read_through` its result is what the policy sees, the first time too.
        content_hash: of the room of `inner`, so that `read_through` need not ask for it.
        wait_s: seconds to wait for the answer to a question that someone else is asking.
    """

    def __init__(
        self,
        inner: Sandbox,
        file: str | os.PathLike[str],
        *,
        mode: Literal["all", "read_through"] = "all",
        redact: Redact | None = None,
        content_hash: str | None = None,
        wait_s: float = 60.0,
    ) -> None:
        if mode not in ("all", "read_through"):
            raise ValueError(f"`mode` is {mode!r}; it is `all` or `read_through`")
        self.inner = inner
        self.path = os.fspath(file)
        self.mode = mode
        self.redact = redact
        self.wait_s = wait_s
        self.content_hash = content_hash or getattr(
            getattr(inner, "room", None), "content_hash", None
        )
        self._file: RecordingFile | None = None
        self._opening: ResetLine | None = None
        self._is_inner_asked = self._is_inner_open = False
        self._seed = 0
        self._marks: list[_Mark] = []

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_file": None}

    @property
    def file(self) -> RecordingFile:
        """The recording."""
        if self._file is None:
            self._file = recording_file(self.path)
            warn_of_faults(self._file)
        return self._file

    @property
    def specs(self) -> tuple[ToolSpec, ...]:
        """The tools: as recorded where the episode was, else those of the inner sandbox."""
        if self._opening is None or self._is_inner_open:
            return self.inner.specs
        return self._opening.tools

    def reset(self, *, seed: int, comments: Sequence[str]) -> RoomView:
        """Start an episode; with `read_through`, as recorded where it is."""
        self._seed, asked = seed, tuple(comments)
        self._is_inner_asked = self._is_inner_open = False
        self._opening, self._marks = None, []
        if self.mode == "all":
            view = self._open_inner(asked)
            opening = self._reset_line(view)
            self.file.add(opening)
        else:
            opening = self._opening_once(asked)
            view = opening.view
        self._opening = opening
        self._check_tools(opening)
        self._marks = [_Mark(opening.place, 0, ())]
        return view

    def _opening_once(self, comments: tuple[str, ...]) -> ResetLine:
        """Return the recorded start; where there is none, ask for it and record it."""
        view = None
        if self.content_hash is None:
            view = self._open_inner(comments)
            self.content_hash = view.content_hash
        key = (self.content_hash, comments)
        waited_s = 0.0
        while (found := self.file.openings.get(key)) is None and not self.file.claim(key):
            time.sleep(_POLL_S)
            waited_s = self._waited(waited_s, "the episode")
        if found is not None:
            return found
        try:
            self.file.refresh()
            found = self.file.openings.get(key)
            if found is None:
                line = self._reset_line(view or self._open_inner(comments))
                found = self.file.add(line)
            return found
        finally:
            self.file.release(key)

    def _open_inner(self, comments: tuple[str, ...]) -> RoomView:
        self._is_inner_asked = True
        view = self.inner.reset(seed=self._seed, comments=comments)
        if self.content_hash not in (None, view.content_hash):
            raise RoomMismatch(
                f"the sandbox to record holds room `{view.room_id}` ({view.content_hash}), not"
                f" the one of {self.content_hash}"
            )
        self._is_inner_open = True
        return view

    def _check_tools(self, opening: ResetLine) -> None:
        """Refuse a recording with other tools, whose answers would not fit the calls."""
        is_known = self._is_inner_open or isinstance(self.inner, LocalSandbox)
        if is_known and opening.tools != self.inner.specs:
            names = ", ".join(spec.name for spec in opening.tools)
            raise ReplayMismatch(
                f"`{self.path}` was recorded with other tools, or in another language, than the"
                f" sandbox has now: {names}; record into another file"
            )

    def call(self, call: ToolCall) -> ToolResult:
        """Run one call, or replay it."""
        return run_steps(self._steps(call), self.inner)

    async def acall(self, call: ToolCall) -> ToolResult:
        """Run one call as `call` does, awaiting the inner sandbox."""
        return await arun_steps(self._steps(call), self.inner)

    def _steps(self, call: ToolCall) -> Steps:
        mark = last_of(self._marks)
        asked = call if self.redact is None else redacted_call(call, self.redact)
        if self.mode == "read_through":
            return self._call_once(mark, call, asked)
        return self._call_always(mark, call, asked)

    def _call_always(self, mark: _Mark, call: ToolCall, asked: ToolCall) -> Steps:
        result: ToolResult = yield call
        line = self._call_line(mark.place, asked, result)
        self.file.add(line)
        self._marks.append(_Mark(mark.place.after(line.result.state), mark.ran + 1, ()))
        return result

    def _call_once(self, mark: _Mark, call: ToolCall, asked: ToolCall) -> Steps:
        """Replay what is recorded; what is not, one caller asks while others wait for it."""
        key = mark.place.key(asked)
        waited_s = 0.0
        while (found := self.file.answers.get(key)) is None and not self.file.claim(key):
            yield _POLL_S
            waited_s = self._waited(waited_s, f"`{call.name}`")
        if found is not None:
            return self._replayed(mark, call, found)
        try:
            self.file.refresh()
            found = self.file.answers.get(key)
            if found is not None:
                return self._replayed(mark, call, found)
            yield from self._catch_up(mark)
            result: ToolResult = yield call
            found = self.file.add(self._call_line(mark.place, asked, result))
        finally:
            self.file.release(key)
        place, ran = mark.place.after(found.result.state), mark.ran + len(mark.missed) + 1
        self._marks.append(_Mark(place, ran, ()))
        return found.result.result(call.id)

    def _waited(self, waited_s: float, what: str) -> float:
        """Count another wait for an answer that someone else is asking for."""
        if waited_s > self.wait_s:
            raise SandboxTimeout(
                f"{what} is being asked by another thread or process, without an answer for"
                f" {self.wait_s:g} s"
            )
        return waited_s + _POLL_S

    def _replayed(self, mark: _Mark, call: ToolCall, found: CallLine) -> ToolResult:
        state = found.result.state
        missed = mark.missed if state is None else (*mark.missed, call)
        self._marks.append(_Mark(mark.place.after(state), mark.ran, missed))
        return found.result.result(call.id)

    def _catch_up(self, mark: _Mark) -> Generator[ToolCall, ToolResult, None]:
        """Bring the inner sandbox to where the episode stands."""
        if not self._is_inner_open:
            self._open_inner(mark.place.comments)
            assert self._opening is not None
            self._check_tools(self._opening)
        for call in mark.missed:
            result = yield call
            if result.state is None:
                raise ReplayMismatch(
                    f"`{call.name}` changed the state when `{self.path}` was recorded and no"
                    " longer does; record into another file"
                )

    def _reset_line(self, view: RoomView) -> ResetLine:
        line = ResetLine.of(view, self.inner.specs)
        return line if self.redact is None else redacted(line, self.redact)

    def _call_line(self, place: Place, call: ToolCall, result: ToolResult) -> CallLine:
        line = CallLine.of(place, call, result)
        return line if self.redact is None else redacted(line, self.redact)

    def fork(self, at_call: int | None = None) -> RecordingSandbox:
        """Return a sandbox in the state after the first `at_call` calls, by default after all."""
        marks = first_of(self._marks, at_call)
        mark = marks[-1]
        if not self._is_inner_open:
            self._open_inner(mark.place.comments)
        forked = object.__new__(RecordingSandbox)
        forked.__dict__.update(self.__dict__)
        forked.inner = self.inner.fork(mark.ran)
        forked._marks = marks
        return forked

    def log(self) -> Sequence[TurnEvent]:
        """Return the inner sandbox's faults of this episode."""
        return self.inner.log() if self._is_inner_asked else ()

    def close(self) -> None:
        """Forget the episode and close the inner sandbox."""
        self._marks = []
        self.inner.close()
