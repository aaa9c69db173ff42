"""Credit inside a trajectory: advantages of steps, of turns, and of agents that take turns."""

from __future__ import annotations

from collections.abc import Hashable, Mapping, Sequence
from difflib import SequenceMatcher
from itertools import chain
from typing import Literal, TypeAlias

import numpy as np
from numpy.typing import NDArray

from livestream_env.errors import did_you_mean
from livestream_env.group_norms import (
    FloatArray,
    Ids,
    Preset,
    Values,
    check_finite,
    check_length,
    group_advantages,
    group_codes,
    named_arrays,
    no_overflow,
    to_array,
)


def to_step_rewards(
    values: Mapping[str, Values], turns: Sequence[Sequence[str]]
) -> list[FloatArray]:
    """Give each turn the value of the agent that took it; shape (turns,) per trajectory.

    Two agents that share weights learn from these the same as from a row for each agent.

    Args:
        values: rewards or advantages of each agent, shape (N,).
        turns: the agent of each turn, of each of N trajectories.
    """
    arrays = named_arrays(values)
    check_length("turns", turns, len(next(iter(arrays.values()))))
    for agent in {agent for row in turns for agent in row} - set(arrays):
        raise ValueError(f"no values of agent `{agent}`.{did_you_mean(agent, arrays)}")
    return [np.array([arrays[agent][i] for agent in row]) for i, row in enumerate(turns)]


@no_overflow()
def discounted_returns(rewards: Values, gamma: float) -> FloatArray:
    """Return R_t = r_t + gamma R_(t+1) of one trajectory; shape (T,).

    With the verifier's scores and gamma .3 it is the turn reward of MAPoRL (arXiv 2502.18439).
    """
    check_finite("gamma", gamma)
    values = to_array(rewards)
    return _returns(values, np.zeros(len(values), dtype=np.intp), gamma)


def _returns(rewards: FloatArray, owners: NDArray[np.intp], gamma: float) -> FloatArray:
    """Return the discounted returns of trajectories that lie one behind the other."""
    lasts = np.flatnonzero(np.diff(owners, append=-1))
    to_end = np.repeat(lasts, np.diff(lasts, prepend=-1)) - np.arange(len(rewards))
    by_distance = np.argsort(to_end, kind="stable")
    returns = rewards.copy()
    for rows in np.split(by_distance, np.cumsum(np.bincount(to_end)))[1:]:
        returns[rows] += gamma * returns[rows + 1]
    return returns


_GIGPO = {"mean": ("dr_grpo", "prime_rl"), "mean_std": ("verl", "roll")}
"""Of each mode the preset of episodes, where one alone keeps its reward, and of steps."""


@no_overflow()
def gigpo(
    step_rewards: Sequence[Values],
    anchors: Sequence[Sequence[Hashable]],
    groups: Ids | None = None,
    *,
    mode: Literal["mean", "mean_std"] = "mean",
    gamma: float = 0.95,
    weight: float = 1.0,
    similarity: float | None = None,
    steps: Sequence[Sequence[int]] | None = None,
) -> list[FloatArray]:
    """Compare episodes in their group and steps that left the same state; shape (T,) each.

    A = A_E + weight * A_S (arXiv 2505.10978). A_E compares the sums of rewards, one for each
    trajectory; A_S the discounted returns of the group's steps with equal anchors. `mean` is the
    paper's and ROLL's example, `mean_std` the default of the Dr.MAS code. A trajectory with a
    missing reward is excluded.

    Args:
        step_rewards: of each trajectory, the reward of each row.
        anchors: of each row the state before it, such as `state_key`.
        groups: of each trajectory.
        similarity: anchors are texts, and those with at least this difflib ratio count as equal
            (the Dr.MAS code takes .95).
        steps: of each row its environment step, where several agents share one: neighbours with
            one step share its reward and its return.

    Raises:
        ValueError: an unknown mode, or shapes that do not match.
    """
    if mode not in _GIGPO:
        raise ValueError(f"no GiGPO mode `{mode}`; give `mean` or `mean_std`")
    check_finite("gamma", gamma)
    check_finite("weight", weight)
    of_episodes, of_steps = _GIGPO[mode]
    lengths = [len(row) for row in step_rewards]
    _check_rows("anchors", anchors, lengths)
    rewards = to_array(list(chain.from_iterable(step_rewards)), "step_rewards")
    owners = np.repeat(np.arange(len(lengths)), lengths)
    is_first = _step_starts(steps, lengths, owners)
    totals = np.bincount(owners[is_first], rewards[is_first], minlength=len(lengths))
    totals = np.where(np.asarray(lengths, dtype=np.intp) == 0, np.nan, totals)  # no return of 0
    returns = _returns(rewards[is_first], owners[is_first], gamma)[np.cumsum(is_first) - 1]
    returns[np.isnan(totals)[owners]] = np.nan
    keys = _states(anchors, group_codes(groups, len(lengths)), np.isnan(totals))
    if similarity is not None:
        keys = _merged(keys, similarity)
    advantages = group_advantages(totals, of_episodes, groups=groups)[owners]
    advantages += weight * group_advantages(returns, of_steps, groups=keys)
    return np.split(advantages, np.cumsum(lengths, dtype=np.intp))[:-1]


def _check_rows(name: str, values: Sequence[Sequence[object]], lengths: Sequence[int]) -> None:
    check_length(name, values, len(lengths))
    for i, length in enumerate(lengths):
        if len(values[i]) != length:
            check_length(f"{name}[{i}]", values[i], length)


def _step_starts(
    steps: Sequence[Sequence[int]] | None, lengths: Sequence[int], owners: NDArray[np.intp]
) -> NDArray[np.bool_]:
    """Return which rows begin an environment step; shape (rows,)."""
    if steps is None:
        return np.ones(len(owners), dtype=np.bool_)
    _check_rows("steps", steps, lengths)
    flat = np.array([*chain.from_iterable(steps)], dtype=np.intp)
    return np.asarray((np.diff(flat, prepend=-1) != 0) | (np.diff(owners, prepend=-1) != 0))


_State: TypeAlias = tuple[int, Hashable] | None
"""A group and an anchor in it; None in an excluded trajectory."""


def _states(
    anchors: Sequence[Sequence[Hashable]],
    groups: NDArray[np.intp],
    is_excluded: NDArray[np.bool_],
) -> list[_State]:
    states: list[_State] = []
    for row, group, excluded in zip(anchors, groups.tolist(), is_excluded, strict=True):
        states += [None if excluded else (group, anchor) for anchor in row]
    return states


def _merged(keys: list[_State], ratio: float) -> list[_State]:
    """Put the first similar anchor of the group in place of each."""
    known: dict[int, list[str]] = {}
    first: dict[_State, _State] = {None: None}
    for group, anchor in filter(None, dict.fromkeys(keys)):
        if not isinstance(anchor, str):
            raise ValueError(f"similar anchors are texts, not `{type(anchor).__name__}`")
        earlier = known.setdefault(group, [])
        same = next((text for text in earlier if _is_similar(anchor, text, ratio)), None)
        if same is None:
            earlier.append(anchor)
        first[group, anchor] = (group, anchor if same is None else same)
    return [first[key] for key in keys]


def _is_similar(text: str, other: str, ratio: float) -> bool:
    matcher = SequenceMatcher(None, text, other)
    bounds = (matcher.real_quick_ratio, matcher.quick_ratio, matcher.ratio)
    return all(bound() >= ratio for bound in bounds)


@no_overflow()
def mt_grpo(
    turn_rewards: Values,
    outcome_rewards: Values,
    *,
    form: Literal["aae", "cae", "atropos"] = "aae",
    coefficient: float | None = None,
    groups: Ids | None = None,
    has_result: Sequence[bool] | None = None,
    preset: str | Preset = "verl",
) -> tuple[FloatArray, FloatArray]:
    """Return the advantages before and after the first tool result; shape (N,) each.

    Behind the result it is A_O, the outcome's. Before it (arXiv 2505.11821 and its code; the two
    public versions disagree on where the coefficient c goes):

    - `aae`: A_O + c * A_T, c 1 by default;
    - `cae`: the advantage of r_T + c * r_O, c 1 by default, called the discount;
    - `atropos` (NousResearch/atropos#162): A_T + c * A_O, c .5 by default.

    Rows without a tool result (`has_result`) get the advantage of the added rewards throughout.
    """
    defaults = {"aae": 1.0, "cae": 1.0, "atropos": 0.5}
    if form not in defaults:
        raise ValueError(f"no MT-GRPO form `{form}`; give `aae`, `cae` or `atropos`")
    c = defaults[form] if coefficient is None else coefficient
    check_finite("coefficient", c)
    turn = to_array(turn_rewards, "turn_rewards")
    outcome = to_array(outcome_rewards, "outcome_rewards")
    check_length("outcome_rewards", outcome, len(turn))
    added = turn + (c if form == "cae" else 1.0) * outcome
    of_turn, of_outcome, of_both = (
        group_advantages(values, preset, groups=groups) for values in (turn, outcome, added)
    )
    before = {
        "aae": of_outcome + c * of_turn,
        "cae": of_both,
        "atropos": of_turn + c * of_outcome,
    }[form]
    if has_result is None:
        return before, of_outcome
    check_length("has_result", has_result, len(turn))
    shown = np.array(has_result, dtype=np.bool_)
    return np.where(shown, before, of_both), np.where(shown, of_outcome, of_both)


@no_overflow()
def at_grpo(
    local: Values,
    team: Values,
    groups: Ids,
    agents: Sequence[str],
    turns: Sequence[int],
    *,
    alpha: float = 1.0,
    preset: str | Preset = "verl",
) -> FloatArray:
    """Compare alpha * team + local inside (group, agent, turn); shape (N,), a row per candidate.

    AT-GRPO (arXiv 2510.11062) samples the candidates of a turn from one state.
    """
    check_finite("alpha", alpha)
    rewards = alpha * to_array(team, "team") + to_array(local, "local")
    return group_advantages(rewards, preset, groups=list(zip(groups, agents, turns, strict=True)))


@no_overflow()
def rae(
    rewards: Values,
    agents: Sequence[str],
    *,
    decay: float = 0.95,
    baselines: Mapping[str, float] | None = None,
) -> tuple[FloatArray, dict[str, float]]:
    """Compare each reward with the moving average of its agent; shape (N,), and the averages.

    SPIRAL (arXiv 2506.24119): a row is compared before it moves the average, which starts at 0;
    hand in the returned averages with the next batch. A missing reward moves nothing.
    """
    values = to_array(rewards)
    check_length("agents", agents, len(values))
    averages = dict(baselines or {})
    for name, value in (("decay", decay), *averages.items()):
        check_finite(name, value)
    advantages = np.full(len(values), np.nan)
    for i, agent in enumerate(agents):
        if not np.isnan(values[i]):
            average = averages.get(agent, 0.0)
            advantages[i] = values[i] - average
            averages[agent] = decay * average + (1 - decay) * float(values[i])
    return advantages, averages
