"""Numbers of a report: intervals, pass^k, how well rewards order good and bad, where they vary."""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from math import comb
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

FloatArray = NDArray[np.float64]
RESAMPLES = 1000
_CELLS = 2_000_000
"""Draws that a bootstrap holds at a time."""


class Interval(NamedTuple):
    """The bounds of a confidence interval."""

    low: float
    high: float


def bootstrap_interval(
    values: Sequence[float],
    clusters: Sequence[Hashable] | None = None,
    *,
    level: float = 0.95,
    resamples: int = RESAMPLES,
    seed: int = 0,
) -> Interval | None:
    """Return the percentile bootstrap interval of a mean; `None` of fewer than two draws.

    Args:
        values: shape (N,).
        clusters: of each value, shape (N,): values of one cluster are drawn together, as the
            episodes of one comment have to be, which are alike.
    """
    codes = np.arange(len(values)) if clusters is None else codes_of(clusters)
    sums = np.bincount(codes, weights=np.asarray(values, float))
    sizes = np.bincount(codes)
    if len(sums) < 2:
        return None
    rng = np.random.default_rng(seed)
    means = []
    rows = max(1, _CELLS // len(sums))
    for start in range(0, resamples, rows):
        drawn = rng.integers(len(sums), size=(min(rows, resamples - start), len(sums)))
        means.append(sums[drawn].sum(axis=1) / sizes[drawn].sum(axis=1))
    tails = [50 - 50 * level, 50 + 50 * level]
    low, high = np.percentile(np.concatenate(means), tails)
    return Interval(float(low), float(high))


def codes_of(names: Sequence[Hashable]) -> NDArray[np.intp]:
    """Number names in the order of their first occurrence; shape (N,)."""
    numbers: dict[Hashable, int] = {}
    return np.array([numbers.setdefault(name, len(numbers)) for name in names], np.intp)


def pass_power(passed: int, tries: int, k: int) -> float:
    """Estimate the chance that k tries in a row pass, C(c, k) / C(n, k), as tau-bench's pass^k.

    Raises:
        ValueError: `k` is not 1 to `tries`, or `passed` not 0 to `tries`.
    """
    if not 0 <= passed <= tries:
        raise ValueError(f"`passed` is {passed}; of {tries} tries it is 0 to {tries}")
    if not 1 <= k <= tries:
        raise ValueError(f"`k` is {k}; of {tries} tries it is a whole number from 1 to {tries}")
    return comb(passed, k) / comb(tries, k)


class Order(NamedTuple):
    """How rewards order the pairs of rows whose labels differ."""

    right: int
    tied: int
    pairs: int

    @property
    def accuracy(self) -> float | None:
        """The share of pairs whose better row has the higher reward; a tie is not right."""
        return self.right / self.pairs if self.pairs else None

    @property
    def auc(self) -> float | None:
        """The same with a tie as half right: the area under the ROC curve."""
        return (self.right + self.tied / 2) / self.pairs if self.pairs else None


def order(
    rewards: Sequence[float], labels: Sequence[float], groups: Sequence[Hashable] | None = None
) -> Order:
    """Compare rewards with labels, each of shape (N,): all pairs, or those inside groups."""
    values, truths = np.asarray(rewards, float), np.asarray(labels, float)
    codes = np.zeros(len(values), np.intp) if groups is None else codes_of(groups)
    right = tied = pairs = 0
    for rows in _rows_of(codes):
        for label in np.unique(truths[rows])[1:]:
            better = values[rows][truths[rows] == label]
            worse = np.sort(values[rows][truths[rows] < label])
            below, up_to = np.searchsorted(worse, better), np.searchsorted(worse, better, "right")
            right += int(below.sum())
            tied += int((up_to - below).sum())
            pairs += len(better) * len(worse)
    return Order(right, tied, pairs)


def _rows_of(codes: NDArray[np.intp]) -> list[NDArray[np.intp]]:
    """Return the row numbers of each group."""
    if not len(codes):
        return []
    sorted_rows = np.argsort(codes, kind="stable")
    return np.split(sorted_rows, np.flatnonzero(np.diff(codes[sorted_rows])) + 1)


class Spread(NamedTuple):
    """Where rewards vary."""

    within: float
    """Variance inside groups: what group-relative training sees."""
    between: float
    """Variance of the groups' means: what it does not see."""

    @property
    def within_share(self) -> float | None:
        """The share of all variance that lies inside groups."""
        whole = self.within + self.between
        return self.within / whole if whole > 1e-12 else None


def spread(values: Sequence[float], groups: Sequence[Hashable]) -> Spread:
    """Split the variance of values, shape (N,), into that inside and that between groups."""
    given, codes = np.asarray(values, float), codes_of(groups)
    if not len(given):
        return Spread(0.0, 0.0)
    means = (np.bincount(codes, weights=given) / np.bincount(codes))[codes]
    return Spread(float(np.mean((given - means) ** 2)), float(np.var(means)))


def correlation(first: Sequence[float | None], second: Sequence[float | None]) -> float | None:
    """Return Pearson's r over the rows that both know; `None` where either does not vary."""
    both = [(a, b) for a, b in zip(first, second, strict=True) if a is not None and b is not None]
    if len(both) < 2:
        return None
    columns: FloatArray = np.array(both, float).T
    if (columns.std(axis=1) < 1e-9).any():
        return None
    shifted = columns - columns.mean(axis=1, keepdims=True)
    return float((shifted[0] * shifted[1]).mean() / columns.std(axis=1).prod())
