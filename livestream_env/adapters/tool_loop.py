"""Rooms for trainers whose own loop calls tools one by one and tells the whole only at the end.

Such a loop shows neither the messages around the calls nor the reply. So calls run as they come,
in an episode that lasts, and at the end its transcript is gone through once more with the results
that the policy saw, as the package's own loop would have.
"""

from __future__ import annotations

import json
import sys
from collections import defaultdict, deque
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from livestream_env.adapters.setup import Setup, TaskRow
from livestream_env.drivers import failed_trajectory
from livestream_env.env import LiveRoomEnv, cause_of
from livestream_env.errors import SandboxError
from livestream_env.parsing import to_action
from livestream_env.types import (
    Action,
    Message,
    Observation,
    ToolCall,
    ToolResult,
    Trajectory,
    freeze,
)

FAILED = json.dumps({"error": "env_error"})
"""What a call is told whose environment failed; nothing of such an episode is trained."""


def live_setup(setup: Setup) -> Setup:
    """Return the setup in which calls run as they come: never at an end, never scored."""
    lasting = {"rubric": None, "process": False, "max_turns": sys.maxsize}
    return Setup(setup.room, **{**setup.options, **lasting})


class ToolLoop:
    """One room, one episode after another.

    Args:
        setup: how a transcript is scored.
        live: `live_setup` of it.
    """

    def __init__(self, setup: Setup, live: Setup) -> None:
        self._setup, self._live_setup = setup, live
        self._live: LiveRoomEnv | None = None
        self._row: TaskRow | None = None
        self._results: dict[str, deque[ToolResult | SandboxError]] = {}
        self._never_opened: Trajectory | None = None
        self.cause: str | None = None
        """Why the environment failed."""

    def begin(self, row: TaskRow) -> Observation | None:
        """Open the episode of a row; `None` where the environment failed."""
        self.close()
        self._row, self._results = row, defaultdict(deque)
        self._never_opened = self.cause = None
        self._live = self._live_setup.make_env(row.room)
        try:
            return self._live.reset(**self._setup.opening(row))[0]
        except SandboxError as error:
            self.cause = cause_of(error)
            self._never_opened = failed_trajectory(self._live, row.seed, self.cause)
            return None

    def call(self, name: str, arguments: Mapping[str, Any]) -> str:
        """Run a call and return the text of its result, `FAILED` where the environment failed."""
        live = self._live
        assert live is not None
        if self.cause is not None:
            return FAILED
        call = ToolCall(f"call_{len(live.episode.turns)}", name, freeze(arguments))
        try:
            results = [
                live.run_call(due)
                for due in live.begin_step(Action(Message("assistant", "", (call,))))
            ]
        except SandboxError as error:
            live.fail_step(error)
            self._results[name].append(error)
            self.cause = cause_of(error)
            return FAILED
        self._results[name].extend(results)
        return live.finish_step(results)[0].messages[0].content

    def played(
        self, transcript: Sequence[Mapping[str, Any]], *, is_cut: bool = False
    ) -> Trajectory:
        """Go through a transcript as the package's loop would have.

        Args:
            transcript: OpenAI messages; those of the assistant count.
            is_cut: the token limit cut the last one.
        """
        assert self._row is not None
        if self._never_opened is not None:
            return self._never_opened
        env = self._setup.make_env(self._row.room)
        try:
            env.reset(**self._setup.opening(self._row))
            self._go_through(env, transcript, is_cut)
        except SandboxError as error:
            return failed_trajectory(env, self._row.seed, cause_of(error))
        else:
            return env.trajectory
        finally:
            env.close()

    def _go_through(
        self, env: LiveRoomEnv, messages: Sequence[Mapping[str, Any]], is_cut: bool
    ) -> None:
        last = len(messages) - 1
        for at, message in enumerate(messages):
            if message["role"] != "assistant":
                continue
            action = to_action(message, turn=len(env.episode.turns), tools=env.episode.specs)
            if at == last and is_cut:
                action = replace(action, stop="length")
            calls = env.begin_step(action)
            if at == last and action.message.tool_calls and not is_cut:
                break
            try:
                env.finish_step([self._result(env, call) for call in calls])
            except SandboxError as error:
                env.fail_step(error)
            if env.episode.done:
                return
        env.episode.abort("turns")
        env.finish_step(())

    def _result(self, env: LiveRoomEnv, call: ToolCall) -> ToolResult:
        """Return the result that the policy saw; loops answer calls of unknown tools themselves."""
        known = self._results.get(call.name)
        made = known.popleft() if known else env.run_call(call)
        if isinstance(made, SandboxError):
            raise made
        return replace(made, call_id=call.id)

    def close(self) -> None:
        """Release the sandbox; closing twice is fine."""
        if self._live is not None:
            self._live.close()
        self._live = None
