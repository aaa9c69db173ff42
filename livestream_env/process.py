"""Scores of turns without labels: how much each turn raised the chance of a good end.

After every turn the episode is forked and played to its end k times; the mean outcome is the value
of that situation, and a turn's score is what the value rose by. That takes an environment and an
agent, so it is done once and written into the trajectory, where a hook reads it.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import pairwise
from math import hypot
from typing import Any, NamedTuple

import numpy as np

from livestream_env.drivers import Agent, play_on
from livestream_env.env import LiveRoomEnv
from livestream_env.rewards import make_rubric
from livestream_env.rooms import Room
from livestream_env.types import Rewards, Score, Status, Trajectory

MONTE_CARLO = "monte_carlo"
"""Name of the scores."""


class Value(NamedTuple):
    """The mean outcome from one situation on."""

    mean: float | None
    """`None` where no continuation could be scored."""
    standard_error: float
    played: int
    """Continuations that were scored."""


def monte_carlo_values(
    env: LiveRoomEnv,
    agent: Agent,
    k: int,
    *,
    rubric: str | Callable[[Trajectory, Room | None], Rewards],
    of: str | None = None,
    seed: int = 0,
) -> list[Score]:
    """Score the turns of the episode that `env` has played by k continuations of `agent` each.

    The score of turn t is V(t + 1) - V(t); the reason holds both values and the standard error.
    The end of a finished episode is worth its own outcome. A continuation starts an agent that
    keeps state anew, with the conversation so far as its first observation.

    Args:
        env: standing after the last turn; it is left as it is.
        of: the agent whose total counts; by default that of all.
        seed: continuation i from turn t is seeded with (seed, t * k + i).

    Raises:
        ValueError: `k` is below 1, or no rubric has that name.
        ResetNeeded: there is no episode.
    """
    if k < 1:
        raise ValueError(f"`k` is {k}; it is a whole number from 1")
    scorer = make_rubric(rubric) if isinstance(rubric, str) else rubric
    trajectory = env.trajectory
    values = []
    for turn in range(len(trajectory.turns) + 1):
        if turn == len(trajectory.turns) and env.episode.done:
            values.append(_value([_outcome(scorer, trajectory, env.room, of)]))
            continue
        seeds = [(seed, turn * k + i) for i in range(k)]
        ends = [play_on(env.fork(turn), agent, seed=one) for one in seeds]
        values.append(_value([_outcome(scorer, end, env.room, of) for end in ends]))
    return [
        _turn_score(trajectory.turns[turn].agent, turn, before, after)
        for turn, (before, after) in enumerate(pairwise(values))
    ]


def _outcome(scorer: Any, end: Trajectory, room: Room | None, of: str | None) -> float | None:
    if end.status is Status.ENV_ERROR:
        return None
    total: float | None = scorer(end, room).total(of)
    return total


def _value(outcomes: Sequence[float | None]) -> Value:
    known = [outcome for outcome in outcomes if outcome is not None]
    if not known:
        return Value(None, 0.0, 0)
    return Value(float(np.mean(known)), float(np.std(known) / len(known) ** 0.5), len(known))


def _turn_score(agent: str, turn: int, before: Value, after: Value) -> Score:
    if before.mean is None or after.mean is None:
        why = "no continuation could be scored"
        return Score(MONTE_CARLO, None, 1.0, agent, turn, why, "judge_error")
    error = hypot(before.standard_error, after.standard_error)
    reason = f"{before.mean:.3f} -> {after.mean:.3f}, s.e. {error:.3f}, k = {before.played}"
    return Score(MONTE_CARLO, round(after.mean - before.mean, 6), 1.0, agent, turn, reason)


def with_scores(trajectory: Trajectory, scores: Sequence[Score]) -> Trajectory:
    """Return the trajectory with these scores beside the ones it has; equal names are replaced."""
    names = {score.name for score in scores}
    kept = trajectory.rewards.scores if trajectory.rewards is not None else ()
    made = (*(score for score in kept if score.name not in names), *scores)
    return trajectory.model_copy(update={"rewards": Rewards(made)})


def recorded_turns(trajectory: Trajectory, room: Room | None = None) -> list[Score]:
    """Read the scores that `monte_carlo_values` gave, as a hook; none where there are none."""
    kept = trajectory.rewards.scores if trajectory.rewards is not None else ()
    return [score for score in kept if score.name == MONTE_CARLO]
