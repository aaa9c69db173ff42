"""Group advantages, with one preset per trainer.

Trainers share the name GRPO and not its numbers: they differ in the standard deviation, in what is
added to it, and in what a group of one gets. A preset does what its trainer does.

None or NaN is a missing reward, not a reward of 0: it is out of every mean, and NaN comes out.

Sums and squares are taken of rewards divided by a power of two, which changes no digit, so they do
not overflow; an advantage that is itself too large for a float raises.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, Literal, TypeAlias

import numpy as np
from numpy.typing import NDArray

from livestream_env.errors import EmptyMaskError, did_you_mean

FloatArray: TypeAlias = NDArray[np.float64]
Values: TypeAlias = Sequence[float | None] | NDArray[Any]
Ids: TypeAlias = Sequence[Hashable] | NDArray[Any]


@dataclass(frozen=True, slots=True)
class Preset:
    """How a trainer turns the rewards of a group into advantages."""

    trainer: str
    """The trainer, and the setting of it."""
    source: str
    """Where the formula was read."""
    divisor: Literal["std", "none", "leave_one_out", "mean"] = "std"
    """By what the distance from the group's mean is divided; `leave_one_out` is (n - 1) / n."""
    ddof: Literal[0, 1] = 1
    """1 for the standard deviation of a sample, 0 for that of a population."""
    epsilon: float = 1e-6
    """What is added to the standard deviation."""
    min_std: float = 0.0
    """A group with no larger standard deviation gets 0."""
    alone: Literal["reward", "zero"] = "zero"
    """What a group of one gets."""
    best_only: bool = False
    """Whether the best alone is rewarded, by its lead over the second."""
    whitens: bool = False
    """Whether all groups together are whitened over their trained tokens at last."""


_VERL = "verl/trainer/ppo/core_algos.py"
PRESETS: dict[str, Preset] = {
    "verl": Preset("verl `grpo`", _VERL, alone="reward"),
    "drmas": Preset("Dr.MAS (arXiv 2602.08847)", f"DrMAS: {_VERL}", alone="reward"),
    # torch's standard deviation of one sample is NaN; a lone rollout of slime then trains nothing
    "slime": Preset("slime `grpo`", "slime/ray/rollout.py"),
    "roll": Preset("ROLL `mean_std`", "roll/pipeline/agentic/utils.py", min_std=1e-6),
    "roll_mean": Preset("ROLL `mean`", "roll/pipeline/agentic/utils.py", divisor="none"),
    "trl": Preset('TRL `scale_rewards="group"`', "trl/trainer/grpo_trainer.py", epsilon=1e-4),
    "openrlhf": Preset(
        "OpenRLHF `group_norm`, which refuses groups of one",
        "openrlhf/trainer/ppo_utils/experience_maker.py",
        epsilon=1e-9,
    ),
    "rllm": Preset("rLLM", "rllm/trainer/algorithms/rl_algo.py", ddof=0, alone="reward"),
    "dr_grpo": Preset(
        "Dr.GRPO (arXiv 2503.20783), verl `norm_adv_by_std_in_grpo=False`",
        _VERL,
        divisor="none",
        alone="reward",
    ),
    "prime_rl": Preset(
        "prime-rl `grpo`", "prime_rl/orchestrator/algo/advantage.py", divisor="none"
    ),
    "rloo": Preset("verl `rloo`", _VERL, divisor="leave_one_out", alone="reward"),
    "maxrl": Preset(
        "MaxRL (arXiv 2602.02710), prime-rl `max_rl`",
        "prime_rl/orchestrator/algo/max_rl.py",
        divisor="mean",
    ),
    "reinforce_pp": Preset(
        "REINFORCE++ (arXiv 2501.03262), verl `reinforce_plus_plus_baseline`",
        _VERL,
        divisor="none",
        alone="reward",
        whitens=True,
    ),
    "grpo_passk": Preset(
        "verl `grpo_passk`, which refuses groups of one (arXiv 2503.19595)", _VERL, best_only=True
    ),
    "passk": Preset(
        "verl `grpo_passk` with `norm_adv_by_std_in_grpo=False`",
        _VERL,
        divisor="none",
        best_only=True,
    ),
}
"""The presets by name."""


@contextmanager
def no_overflow() -> Iterator[None]:
    """Raise `ValueError` where a number grows beyond what a float holds."""
    try:
        with np.errstate(over="raise"):
            yield
    except FloatingPointError as error:
        raise ValueError(
            "rewards, weights or costs are so large that a float cannot hold what is made of them;"
            " scale them down"
        ) from error


@no_overflow()
def group_advantages(
    rewards: Values,
    preset: str | Preset = "verl",
    *,
    groups: Ids | None = None,
    lengths: Sequence[int] | None = None,
) -> FloatArray:
    """Compare each reward with the others of its group; shape (N,).

    A missing reward (None or NaN) counts nowhere and gives NaN. A group that this leaves with
    fewer than two rewards is all NaN; one that had a single row from the start follows the
    preset's own rule. Equal rewards give 0.

    Args:
        rewards: shape (N,), of any number of groups.
        preset: a name in `PRESETS`, or a preset of one's own.
        groups: the group of each row, any hashable ids, so a key of several parts is
            `list(zip(rooms, agents))`; without it all rows are one group.
        lengths: the trained tokens of each row, for presets that whiten over tokens; 1 without.

    Raises:
        ValueError: an infinite reward or advantage, an unknown preset, or arguments of different
            lengths.
        EmptyMaskError: `lengths` leaves no token to whiten over.
    """
    rule = preset if isinstance(preset, Preset) else _find_preset(preset)
    values = to_array(rewards)
    codes = group_codes(groups, len(values))
    sizes = np.bincount(codes)
    known = ~np.isnan(values)
    counts = np.bincount(codes[known], minlength=len(sizes))
    known &= ((counts > 1) | (sizes == 1))[codes]
    advantages = np.full(len(values), np.nan)
    advantages[known] = _advantages(values[known], codes[known], counts, rule)
    return whiten(advantages, lengths) if rule.whitens else advantages


def _find_preset(name: str) -> Preset:
    if name not in PRESETS:
        raise ValueError(
            f"no advantage preset `{name}`; there are {', '.join(f'`{p}`' for p in PRESETS)}."
            + did_you_mean(name, PRESETS)
        )
    return PRESETS[name]


def _advantages(
    values: FloatArray, codes: NDArray[np.intp], counts: NDArray[np.intp], rule: Preset
) -> FloatArray:
    scaled, powers = _scaled(values, codes, counts)
    means = _means(scaled, codes, counts)
    centred = scaled - means[codes]
    divisors = _divisors(centred, codes, counts, means, powers, rule)
    divisors[flat_groups(values, codes, counts)] = 0
    gains = _leads(scaled, codes) if rule.best_only else centred
    by = divisors[codes]
    advantages = np.divide(gains, by, out=np.zeros_like(gains), where=by > 0)
    if rule.divisor in ("none", "leave_one_out"):
        advantages = np.ldexp(advantages, powers[codes])
    if rule.alone == "reward":
        alone = counts[codes] == 1
        advantages[alone] = values[alone]
    return advantages


def _scaled(
    values: FloatArray, codes: NDArray[np.intp], counts: NDArray[np.intp]
) -> tuple[FloatArray, NDArray[np.int32]]:
    """Divide each group that leaves [-1, 1] by the power of two that brings it there; and return
    the powers."""
    highest = np.zeros(len(counts))
    np.maximum.at(highest, codes, np.abs(values))
    powers = np.maximum(np.frexp(highest)[1], 0)
    return np.ldexp(values, -powers[codes]), powers


def _means(values: FloatArray, codes: NDArray[np.intp], counts: NDArray[np.intp]) -> FloatArray:
    sums = np.bincount(codes, values, minlength=len(counts))
    return sums / np.maximum(counts, 1)


def _divisors(
    centred: FloatArray,
    codes: NDArray[np.intp],
    counts: NDArray[np.intp],
    means: FloatArray,
    powers: NDArray[np.int32],
    rule: Preset,
) -> FloatArray:
    """Return what each group's gains are divided by; 0 where it gets nothing."""
    if rule.divisor == "none":
        return np.ones(len(counts))
    if rule.divisor == "mean":
        return np.maximum(means, 0)
    if rule.divisor == "leave_one_out":
        return (counts - 1) / np.maximum(counts, 1)
    squares = np.bincount(codes, centred**2, minlength=len(counts))
    stds = np.sqrt(squares / np.maximum(counts - rule.ddof, 1))
    lowest, added = np.ldexp(rule.min_std, -powers), np.ldexp(rule.epsilon, -powers)
    return np.where(stds > lowest, stds + added, 0)


def _leads(values: FloatArray, codes: NDArray[np.intp]) -> FloatArray:
    """Return the best row's lead over the second of its group, and 0 for all others."""
    order = np.lexsort((-values, codes))
    ranked, group = values[order], codes[order]
    is_first = np.diff(group, prepend=-1) != 0
    leads = np.zeros_like(values)
    leads[order[:-1]] = np.where(is_first[:-1] & ~is_first[1:], ranked[:-1] - ranked[1:], 0)
    return leads


def flat_groups(
    values: FloatArray, codes: NDArray[np.intp], counts: NDArray[np.intp]
) -> NDArray[np.bool_]:
    """Return which groups hold equal values but for the noise of floats; shape (len(counts),)."""
    scaled, powers = _scaled(values, codes, counts)
    highest, lowest = np.full(len(counts), -np.inf), np.full(len(counts), np.inf)
    np.maximum.at(highest, codes, scaled)
    np.minimum.at(lowest, codes, scaled)
    one = np.ldexp(1.0, -powers)
    tolerance = 1e-6 * np.maximum(one, np.abs(_means(scaled, codes, counts)))
    return np.asarray(highest - lowest <= tolerance)


def is_flat(rewards: Values, groups: Ids | None = None) -> NDArray[np.bool_]:
    """Return for each row whether its group's rewards are all equal; shape (N,).

    These are the groups that dynamic sampling drops; one with fewer than two rewards is among
    them.
    """
    values = to_array(rewards)
    codes = group_codes(groups, len(values))
    known = ~np.isnan(values)
    counts = np.bincount(codes[known], minlength=int(codes.max(initial=-1)) + 1)
    return flat_groups(values[known], codes[known], counts)[codes]


@no_overflow()
def whiten(values: FloatArray, lengths: Sequence[int] | None = None) -> FloatArray:
    """Shift and scale to mean 0 and variance 1 over tokens, as verl's `masked_whiten` does.

    `lengths`, shape (N,), says how many tokens share each value; NaN counts nowhere.
    """
    centred, deviation = centre(values, lengths)
    return np.asarray(centred / np.hypot(deviation, 1e-4))


def centre(values: FloatArray, lengths: Sequence[int] | None = None) -> tuple[FloatArray, float]:
    """Return the values without their mean over tokens, and their standard deviation over tokens.

    Raises:
        ValueError: a length below 0.
        EmptyMaskError: no value that is there has a token.
    """
    tokens = np.ones(len(values)) if lengths is None else np.array(lengths, dtype=np.float64)
    check_length("lengths", tokens, len(values))
    if not (tokens >= 0).all():
        raise ValueError(f"`lengths` holds {tokens.min():g}; give the number of trained tokens")
    tokens = np.where(np.isnan(values), 0, tokens)
    total = tokens.sum()
    if np.isnan(values).all():
        return values.copy(), 0.0
    if not total:
        raise EmptyMaskError("all `lengths` are 0: no token is trained; leave such batches out")
    power = max(np.frexp(np.nanmax(np.abs(values)))[1], 0)
    scaled = np.ldexp(values, -power)
    scaled -= np.nansum(scaled * tokens) / total
    variance = np.nansum(scaled**2 * tokens) / max(total - 1, 1)
    return np.ldexp(scaled, power), float(np.ldexp(np.sqrt(variance), power))


@no_overflow()
def length_adjusted(
    rewards: Values,
    costs: Mapping[str, Values],
    *,
    weights: Mapping[str, float],
    groups: Ids | None = None,
) -> FloatArray:
    """Take from each reward what its rollout cost, beside the costliest of its group.

    r' = r - mean(r) * sum of weight * cost / max(cost), which prime-rl puts before the group's
    mean is taken away; costs are output tokens, input tokens or turns; shape (N,). A row that
    lacks a cost is missing.

    Raises:
        ValueError: a cost without a weight, or a weight without a cost; a result that is infinite.
    """
    values = to_array(rewards)
    codes = group_codes(groups, len(values))
    known = ~np.isnan(values)
    counts = np.bincount(codes[known], minlength=int(codes.max(initial=-1)) + 1)
    share = np.zeros(len(values))
    for name, weight in matched(costs, weights).items():
        cost = to_array(costs[name], name)
        check_length(name, cost, len(values))
        highest = np.zeros(len(counts))
        np.fmax.at(highest, codes[known], cost[known])
        by = highest[codes]
        share += weight * np.divide(cost, by, out=np.zeros_like(cost), where=by > 0)
    scaled, powers = _scaled(values[known], codes[known], counts)
    means = np.ldexp(_means(scaled, codes[known], counts), powers)
    return np.asarray(values - means[codes] * share)


def to_array(values: Values, name: str = "rewards") -> FloatArray:
    """Return values as floats with NaN for None; shape (N,).

    Raises:
        ValueError: an infinity, or more than one dimension.
    """
    array = np.array(values, dtype=np.float64)
    if array.ndim != 1:
        raise ValueError(f"`{name}` has shape {array.shape}; one number per trajectory is expected")
    if np.isinf(array).any():
        row = int(np.flatnonzero(np.isinf(array))[0])
        raise ValueError(
            f"`{name}` holds {array[row]} in row {row}; give a finite number, or None for none"
        )
    return array


def named_arrays(rewards: Mapping[str, Values]) -> dict[str, FloatArray]:
    """Return several rewards of the same rows as arrays, after checking that they are."""
    arrays = {name: to_array(values, name) for name, values in rewards.items()}
    if not arrays:
        raise ValueError("no rewards were given; name at least one")
    rows = len(next(iter(arrays.values())))
    for name, array in arrays.items():
        check_length(name, array, rows)
    return arrays


def group_codes(groups: Ids | None, rows: int) -> NDArray[np.intp]:
    """Number groups in order of appearance; shape (rows,)."""
    if groups is None:
        return np.zeros(rows, dtype=np.intp)
    check_length("groups", groups, rows)
    numbers: dict[Hashable, int] = {}
    return np.fromiter((numbers.setdefault(g, len(numbers)) for g in groups), np.intp, count=rows)


def check_length(name: str, values: Sequence[Any] | NDArray[Any], rows: int) -> None:
    """Raise unless there is one of `values` per row."""
    if len(values) != rows:
        raise ValueError(f"`{name}` has {len(values)} entries for {rows} rows; give one per row")


def matched(named: Mapping[str, Any], weights: Mapping[str, float] | None) -> Mapping[str, float]:
    """Return the weights, 1 each without any, after checking that the names are the same."""
    if weights is None:
        return dict.fromkeys(named, 1.0)
    if wrong := set(named) ^ set(weights):
        name = min(wrong)
        missing, known = ("weight", weights) if name in named else ("values", named)
        raise ValueError(f"`{name}` has no {missing}; give both.{did_you_mean(name, known)}")
    for name, weight in weights.items():
        check_finite(f"weights[{name!r}]", weight)
    return weights


def check_finite(name: str, value: float) -> None:
    """Raise unless it is a number, and no infinity."""
    if not np.isfinite(value):
        raise ValueError(f"`{name}` is {value}; give a finite number")
