"""What a set of played episodes came to: endings, calls, facts stated of those asked."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from livestream_env.rooms import Room
    from livestream_env.types import Trajectory


@dataclass
class Tally:
    """What a summary counts of the trajectories of one agent."""

    episodes: int = 0
    stop_reasons: Counter[str] = field(default_factory=Counter)
    env_errors: int = 0
    causes: list[str] = field(default_factory=list)
    """Of failed episodes, at most one each."""
    calls: int = 0
    stated: int = 0
    asked: int = 0
    seconds: float = 0.0

    def add(self, trajectory: Trajectory, seconds: float = 0.0, room: Room | None = None) -> None:
        """Count a trajectory; with its room, also the facts that its reply states."""
        from livestream_env.types import Status

        self.episodes += 1
        self.seconds += seconds
        self.stop_reasons[str(trajectory.stop_reason)] += 1
        self.calls += sum(len(turn.action.message.tool_calls) for turn in trajectory.turns)
        if trajectory.status is Status.ENV_ERROR:
            self.env_errors += 1
            self.causes += [fault.detail for fault in trajectory.faults[-1:]]
        if room is not None:
            from livestream_env.coverage import facts_stated

            stated, asked = facts_stated(room, trajectory)
            self.stated += stated
            self.asked += asked

    @property
    def calls_each(self) -> float:
        """Tool calls an episode."""
        return self.calls / self.episodes if self.episodes else 0.0

    def row(self, name: str) -> tuple[str, ...]:
        """Return the row of the demo's table."""
        replied, unruled = self.stop_reasons["replied"], self.stop_reasons["replied_without_rule"]
        facts = f"{self.stated} / {self.asked}"
        counts = (str(self.episodes), str(replied), str(unruled), facts)
        return (name, *counts, f"{self.calls_each:.1f}", f"{self.seconds:.2f}")
