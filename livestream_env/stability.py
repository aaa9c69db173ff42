"""How stable the environment was: what failed, when, and whether it goes with what was done."""

from __future__ import annotations

import math
import re
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import pairwise

from livestream_env.advantages import FailureBias, measured_bias
from livestream_env.sandbox.faults import FAILING, PLAN
from livestream_env.types import Status, StopReason, Trajectory, Turn

PERIODS = 10
RARE = 5
"""Turns that a tool must have been called in for its correlation to be told."""
_TYPED = re.compile(r"([A-Z]\w+): ")
_RAISED = re.compile(r"failed(?: at reset)?: ([A-Z]\w+)\(")


@dataclass(frozen=True, slots=True)
class Period:
    """A stretch of the run."""

    episodes: int
    causes: dict[str, int]
    """Failed episodes by cause."""


@dataclass(frozen=True, slots=True)
class Stability:
    """What a run says about its environment."""

    sessions: int
    """Episodes, those included that failed at reset."""
    failed: int
    failed_at_reset: int
    causes: dict[str, int]
    """Failed episodes by cause, the commonest first."""
    retries: int
    """Attempts of calls and resets that failed and were made again."""
    rebuilds: int
    """Sessions that a server built anew."""
    faults: dict[str, int]
    """Faults and retries below the episodes, by kind."""
    periods: tuple[Period, ...]
    """The run in its order, in equal parts."""
    by_turn: FailureBias
    """Of turns with calls: failing against the number of the turn."""
    by_tool: dict[str, FailureBias]
    """Of turns with calls: failing against whether the tool was called."""

    @property
    def failure_rate(self) -> float:
        """Share of episodes that failed; 0 of none."""
        return self.failed / self.sessions if self.sessions else 0.0

    @property
    def biased(self) -> tuple[str, ...]:
        """What failures go with (p < .01): leaving those episodes out is not neutral then."""
        found = [f"tool {tool}" for tool, bias in self.by_tool.items() if bias.is_biased]
        return (*(("turn",) if self.by_turn.is_biased else ()), *found)


def stability_report(trajectories: Iterable[Trajectory], *, periods: int = PERIODS) -> Stability:
    """Count failures of infrastructure in trajectories, given in the order of the run."""
    played = list(trajectories)
    failed = [t for t in played if t.status is Status.ENV_ERROR]
    below = [
        event
        for trajectory in played
        for event in trajectory.faults
        if event.kind not in (PLAN, *_ENDS)
    ]
    faults = Counter(event.kind for event in below)
    by_turn, by_tool = _biases(played)
    return Stability(
        sessions=len(played),
        failed=len(failed),
        failed_at_reset=sum(not t.prompts for t in failed),
        causes=_ordered(Counter(map(cause_of_failure, failed))),
        retries=sum(map(_retries, played)),
        rebuilds=faults["session_rebuilt"],
        faults=_ordered(faults),
        periods=tuple(_period(part) for part in _parts(played, periods)),
        by_turn=by_turn,
        by_tool=by_tool,
    )


_ENDS = (str(StopReason.ENV_ERROR), str(StopReason.ABORTED))


def cause_of_failure(trajectory: Trajectory) -> str:
    """Return the kind of failure: an exception's name, `aborted`, or `SandboxError` for others."""
    if trajectory.stop_reason is StopReason.ABORTED:
        return "aborted"
    text = trajectory.faults[-1].detail if trajectory.faults else ""
    found = _TYPED.match(text) or _RAISED.search(text)
    return found[1] if found else "SandboxError"


def _retries(trajectory: Trajectory) -> int:
    """Count the attempts that another followed: a client tells of those alone, a fault plan of the
    last one too."""
    kinds = Counter(event.kind for event in trajectory.faults)
    planned = sum(kinds[kind] for kind in (*FAILING, "reset_fail"))
    has_failed = trajectory.stop_reason is StopReason.ENV_ERROR
    return kinds["sandbox_retry"] + max(0, planned - has_failed)


def _ordered(counts: Counter[str]) -> dict[str, int]:
    return dict(sorted(counts.items(), key=lambda one: (-one[1], one[0])))


def _parts(played: Sequence[Trajectory], periods: int) -> list[Sequence[Trajectory]]:
    count = max(1, min(periods, len(played)))
    edges = [len(played) * i // count for i in range(count + 1)]
    return [played[a:b] for a, b in pairwise(edges)]


def _period(played: Sequence[Trajectory]) -> Period:
    causes = Counter(cause_of_failure(t) for t in played if t.status is Status.ENV_ERROR)
    return Period(len(played), _ordered(causes))


def _biases(played: Sequence[Trajectory]) -> tuple[FailureBias, dict[str, FailureBias]]:
    """Test turns with calls, for an episode that fails is short because it failed."""
    turns = [
        (number, turn)
        for trajectory in played
        for number, turn in enumerate(trajectory.turns)
        if turn.action.message.tool_calls
    ]
    has_failed = [_has_failed(turn) for _, turn in turns]
    tools = Counter(name for _, turn in turns for name in _tools(turn))
    by_turn = _bias(has_failed, [float(number) for number, _ in turns])
    by_tool = {
        tool: _bias(has_failed, [float(tool in _tools(turn)) for _, turn in turns])
        for tool, count in sorted(tools.items())
        if count >= RARE
    }
    return by_turn, by_tool


def _bias(failed: Sequence[bool], feature: Sequence[float]) -> FailureBias:
    return measured_bias(failed, feature) if any(failed) else FailureBias(math.nan, 1.0)


def _has_failed(turn: Turn) -> bool:
    return any(event.kind == StopReason.ENV_ERROR for event in turn.events)


def _tools(turn: Turn) -> set[str]:
    return {call.name for call in turn.action.message.tool_calls}
