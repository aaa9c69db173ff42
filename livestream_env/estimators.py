"""Advantages of one agent's rows: what they are made of, and the ways to make them by name."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Literal

from livestream_env.advantages import (
    PRESETS,
    Preset,
    agent_advantages,
    gdpo,
    gigpo,
    group_advantages,
)
from livestream_env.errors import did_you_mean
from livestream_env.rows import TrainedTurn
from livestream_env.types import Trajectory


@dataclass(frozen=True, slots=True)
class Members:
    """What the advantages of one agent are made of: the N trajectories that have a row for it."""

    agent: str
    groups: tuple[str, ...]
    rewards: tuple[float, ...]
    """The agent's totals."""
    totals: Mapping[str, tuple[float | None, ...]]
    """The totals of each trained agent; `None` where it has no row for that trajectory."""
    scores: Mapping[str, tuple[float | None, ...]]
    """The agent's weighed scores, by name."""
    weights: Mapping[str, float]
    """Of each score."""
    turns: tuple[tuple[TrainedTurn, ...], ...]
    lengths: tuple[int, ...]
    """How many tokens are trained."""
    trajectories: tuple[Trajectory, ...]

    @property
    def turn_rewards(self) -> list[list[float | None]]:
        """The reward of each trained turn: its own scores, and in the last one the total."""
        return [[turn.reward for turn in turns] for turns in self.turns]

    @property
    def anchors(self) -> list[list[str]]:
        """The state that each trained turn was chosen in.

        Raises:
            ValueError: a turn has none, as in records of other origin.
        """
        if any(not turn.state_key for turns in self.turns for turn in turns):
            raise ValueError("a turn has no `state_key`; compare states by anchors of your own")
        return [[turn.state_key for turn in turns] for turns in self.turns]


Estimator = Callable[[Members], Any]
"""Returns for each member its advantage, or one for each of its trained turns."""
ESTIMATORS: dict[str, Estimator] = {
    "gdpo": lambda m: gdpo(m.scores, weights=m.weights, groups=m.groups, lengths=m.lengths),
    "gigpo": lambda m: gigpo(m.turn_rewards, m.anchors, m.groups),
}
"""Estimators by name, beside the presets of `advantages.PRESETS`."""


def find_estimator(given: str | Preset | Estimator, key: Literal["agent", "global"]) -> Estimator:
    """Return the estimator of that name or preset.

    Raises:
        ValueError: there is none, or it has no `global` form.
    """
    if isinstance(given, str) and given not in PRESETS:
        if given not in ESTIMATORS:
            known = (*PRESETS, *ESTIMATORS)
            told = ", ".join(f"`{name}`" for name in known)
            raise ValueError(
                f"no advantages `{given}`; there are {told}.{did_you_mean(given, known)}"
            )
        given = ESTIMATORS[given]
    if isinstance(given, (str, Preset)):
        preset = given
        if key == "global":
            return lambda m: agent_advantages(m.totals, m.groups, preset=preset, key=key)[m.agent]
        return lambda m: group_advantages(m.rewards, preset, groups=m.groups, lengths=m.lengths)
    if key == "global":
        raise ValueError("`key='global'` goes with a preset of group advantages")
    return given
