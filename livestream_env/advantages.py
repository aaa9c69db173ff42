"""Advantages of groups, of agents, of several rewards at once; and whether they can be trusted.

All of it is imported from here; the presets of one group are in `group_norms`, steps and turns in
`turn_credit`. A missing reward is None or NaN throughout, and its advantage is NaN.
"""

from __future__ import annotations

import math
import warnings
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np

from livestream_env.group_norms import PRESETS as PRESETS
from livestream_env.group_norms import (
    FloatArray,
    Ids,
    Values,
    centre,
    check_length,
    flat_groups,
    group_codes,
    matched,
    named_arrays,
    no_overflow,
    to_array,
    whiten,
)
from livestream_env.group_norms import Preset as Preset
from livestream_env.group_norms import group_advantages as group_advantages
from livestream_env.group_norms import is_flat as is_flat
from livestream_env.group_norms import length_adjusted as length_adjusted
from livestream_env.turn_credit import at_grpo as at_grpo
from livestream_env.turn_credit import discounted_returns as discounted_returns
from livestream_env.turn_credit import gigpo as gigpo
from livestream_env.turn_credit import mt_grpo as mt_grpo
from livestream_env.turn_credit import rae as rae
from livestream_env.turn_credit import to_step_rewards as to_step_rewards


@no_overflow()
def agent_advantages(
    rewards: Mapping[str, Values],
    groups: Ids | None = None,
    *,
    preset: str | Preset = "verl",
    key: Literal["agent", "global"] = "agent",
) -> dict[str, FloatArray]:
    """Give each agent its own advantages; shape (N,) each, a row per trajectory.

    With `key="agent"` (Dr.MAS, arXiv 2602.08847) an agent is compared with itself in the other
    trajectories of the group. With `"global"` all get the advantage of the trajectory's mean
    reward, which is missing where one agent's is: what Dr.MAS argues against, for comparison.
    """
    values = named_arrays(rewards)
    if key == "agent":
        return {
            agent: group_advantages(own, preset, groups=groups) for agent, own in values.items()
        }
    if key != "global":
        raise ValueError(f"no advantage key `{key}`; give `agent` or `global`")
    shared = np.mean(list(values.values()), axis=0)
    return {agent: group_advantages(shared, preset, groups=groups) for agent in values}


@no_overflow()
def sum_then_normalize(
    rewards: Mapping[str, Values],
    *,
    weights: Mapping[str, float] | None = None,
    groups: Ids | None = None,
    preset: str | Preset = "trl",
) -> FloatArray:
    """Weigh and add several rewards, then compare the sums inside the group; shape (N,).

    A row without one of the rewards has no sum and is excluded.
    """
    values = named_arrays(rewards)
    total = sum(weight * values[name] for name, weight in matched(values, weights).items())
    return group_advantages(np.asarray(total), preset, groups=groups)


@no_overflow()
def normalize_then_sum(
    rewards: Mapping[str, Values],
    *,
    weights: Mapping[str, float] | None = None,
    groups: Ids | None = None,
    preset: str | Preset = "trl",
    whitens: bool = True,
) -> FloatArray:
    """Compare each reward inside the group, then weigh and add; shape (N,).

    So no reward drowns another by its scale. A reward that a row lacks adds nothing to it; a row
    without any is excluded. TRL's `multi_objective_aggregation="normalize_then_sum"`, which at
    last standardizes over all rows: `whitens`, with the 1e-4 that TRL adds.
    """
    values = named_arrays(rewards)
    parts = np.array(
        [
            weight * group_advantages(values[name], preset, groups=groups)
            for name, weight in matched(values, weights).items()
        ]
    )
    total = np.where(np.isnan(parts).all(axis=0), np.nan, np.nansum(parts, axis=0))
    if not whitens:
        return total
    centred, deviation = centre(total)
    return np.asarray(centred / (deviation + 1e-4))


def gdpo(
    rewards: Mapping[str, Values],
    *,
    weights: Mapping[str, float] | None = None,
    groups: Ids | None = None,
    lengths: Sequence[int] | None = None,
) -> FloatArray:
    """`normalize_then_sum` as verl's `gdpo` does it, whitened over trained tokens; shape (N,)."""
    total = normalize_then_sum(
        rewards, weights=weights, groups=groups, preset="verl", whitens=False
    )
    return whiten(total, lengths)


def credit_sign_error(mixed: Values, per_agent: Mapping[str, Values]) -> float:
    """Return the share of (trajectory, agent) pairs that a mixed advantage pushes the wrong way.

    Pairs where either is missing do not count; NaN where none is left.
    """
    own = np.array(list(named_arrays(per_agent).values()))
    shared = to_array(mixed, "mixed")
    check_length("mixed", shared, own.shape[1])
    products = np.sign(own) * np.sign(shared)
    products = products[~np.isnan(products)]
    return float((products < 0).mean()) if products.size else math.nan


def zero_variance(rewards: Values, groups: Ids, agents: Sequence[str]) -> dict[str, float]:
    """Return, for each agent, the share of its groups in which all rewards are equal.

    Only groups with two rewards or more count; NaN for an agent without any.

    Args:
        rewards: shape (N,), a row per trajectory and agent.
        groups: the group of each row.
        agents: the agent of each row.
    """
    values = to_array(rewards)
    keys = list(zip(agents, groups, strict=True))
    codes = group_codes(keys, len(values))
    known = ~np.isnan(values)
    owners = np.array([agent for agent, _ in dict.fromkeys(keys)])
    counts = np.bincount(codes[known], minlength=len(owners))
    flat = flat_groups(values[known], codes[known], counts)
    shares: dict[str, float] = {}
    for agent in dict.fromkeys(agents):
        own = flat[(owners == agent) & (counts > 1)]
        shares[agent] = float(own.mean()) if own.size else math.nan
    return shares


@dataclass(frozen=True, slots=True)
class FailureBias:
    """How failures go together with something that the policy decides."""

    correlation: float
    """Pearson's r between failed (1 or 0) and the feature; NaN if either never varies."""
    p: float
    """How often a random assignment of the failures correlates as much; 1 if nothing varies."""

    @property
    def is_biased(self) -> bool:
        """Whether exclusion would favour some behaviour of the policy (p < .01)."""
        return self.p < 0.01


def failure_bias(
    failed: Sequence[bool], feature: Values, *, permutations: int = 1999, seed: int = 0
) -> FailureBias:
    """Test whether failed episodes may be excluded, and warn if not.

    Exclusion is neutral only if failing does not depend on the policy, which else may learn to
    provoke time-outs to escape bad scores.

    Args:
        failed: of each episode, whether infrastructure failed it.
        feature: what the policy did in it, such as turns taken, or 1 where it chose some tool.
        permutations: of the failures over the episodes; p is exact but for their number.
        seed: of the permutations.

    Warns:
        RuntimeWarning: p is below .01.
    """
    bias = measured_bias(failed, feature, permutations=permutations, seed=seed)
    if bias.is_biased:
        warnings.warn(
            f"failures go with the feature (r = {bias.correlation:.2f}, p = {bias.p:.4f}): "
            "excluding failed episodes changes what the policy learns; find their cause",
            RuntimeWarning,
            stacklevel=2,
        )
    return bias


@no_overflow()
def measured_bias(
    failed: Sequence[bool], feature: Values, *, permutations: int = 1999, seed: int = 0
) -> FailureBias:
    """Test as `failure_bias`, and warn of nothing."""
    is_failed = np.array(failed, dtype=np.bool_)
    values = to_array(feature, "feature")
    check_length("feature", values, len(is_failed))
    is_failed, values = is_failed[~np.isnan(values)], values[~np.isnan(values)]
    rows, failures = len(values), int(is_failed.sum())
    if not 0 < failures < rows or not np.ptp(values):
        return FailureBias(math.nan, 1.0)
    centred, of_feature = centre(values)
    random = np.random.default_rng(seed)
    drawn = [
        centred[random.choice(rows, failures, replace=False, shuffle=False)].sum()
        for _ in range(permutations)
    ]
    # with the failures' number fixed, r is their sum times a constant
    seen = float(centred[is_failed].sum())
    as_extreme = np.abs(drawn) >= abs(seen) - 1e-9 * float(np.abs(centred).max())
    rate = failures / rows
    deviation = of_feature * math.sqrt((rows - 1) / rows * rate * (1 - rate))
    return FailureBias(seen / rows / deviation, float(1 + as_extreme.sum()) / (1 + permutations))
