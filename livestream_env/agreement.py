"""How far two raters agree, and what a rater's noise does: pure functions of numbers."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Literal, NamedTuple

import numpy as np
from numpy.typing import NDArray

Side = Literal["first", "second", "same"]


def confusion(truth: Sequence[int], given: Sequence[int], classes: int) -> NDArray[np.int64]:
    """Count how often each class was given for each true one, shape (classes, classes).

    Raises:
        ValueError: a label is no whole number from 0 to `classes` - 1, or one has no partner.
    """
    table = np.zeros((classes, classes), dtype=np.int64)
    for labels in zip(truth, given, strict=True):
        for label in labels:
            if not isinstance(label, (int, np.integer)) or not 0 <= label < classes:
                raise ValueError(
                    f"a label is {label!r}; give whole numbers from 0 to {classes - 1}"
                )
        table[labels] += 1
    return table


def kappa(
    table: NDArray[np.int64], *, weights: Literal["plain", "quadratic"] = "plain"
) -> float | None:
    """Return Cohen's kappa of a confusion table; `None` where chance alone makes raters agree.

    Raises:
        ValueError: `weights` is unknown, or the table none of counts.
    """
    if weights not in ("plain", "quadratic"):
        raise ValueError(f"no weights `{weights}`; give `plain` or `quadratic`")
    if table.ndim != 2 or len(set(table.shape)) > 1 or (table < 0).any():
        raise ValueError(f"a table of shape {table.shape} is no square one of counts from 0")
    n = table.sum()
    if not n:
        return None
    grid = np.arange(len(table))
    apart = grid[:, None] - grid[None, :]
    cost = (apart != 0).astype(float) if weights == "plain" else apart.astype(float) ** 2
    expected = np.outer(table.sum(axis=1), table.sum(axis=0)) / n
    by_chance = float((cost * expected).sum())
    return 1 - float((cost * table).sum()) / by_chance if by_chance else None


def wilson(successes: int, n: int, *, z: float = 1.959964) -> tuple[float, float]:
    """Return the Wilson interval of a share, 95 % by default; (0, 1) where n is 0.

    Raises:
        ValueError: there are more successes than n, or less than none.
    """
    if not 0 <= successes <= n:
        raise ValueError(f"{successes} successes of {n}; give from 0 to n")
    if not n:
        return 0.0, 1.0
    share, z2 = successes / n, z * z / n
    middle = (share + z2 / 2) / (1 + z2)
    half = z * math.sqrt(share * (1 - share) / n + z2 / (4 * n)) / (1 + z2)
    return middle - half, middle + half


class Repeated(NamedTuple):
    """What asking the same twice shows."""

    same: float
    """Share of equal scores."""
    noise: float
    """Standard deviation of one score around its mean."""


def retest(first: Sequence[float], second: Sequence[float]) -> Repeated | None:
    """Compare the scores of two rounds on the same cases; `None` where there is no case.

    Raises:
        ValueError: the rounds are not of the same length, or a score is no number.
    """
    apart = _finite("scores", [a - b for a, b in zip(first, second, strict=True)])
    if not apart.size:
        return None
    return Repeated(float(np.mean(apart == 0)), float(np.sqrt(np.mean(apart**2) / 2)))


def noise_of_mean(noise: float, votes: int) -> float:
    """Return the noise of the mean of several votes, where their errors are independent."""
    if votes < 1:
        raise ValueError(f"`votes` is {votes}; it is 1 or more")
    return noise / math.sqrt(votes)


def majority_right(share: float, votes: int) -> float:
    """Return how often the majority of an odd number of independent votes is right, each of which
    is with probability `share`.

    Raises:
        ValueError: `votes` is even, or `share` is no probability.
    """
    if votes % 2 == 0 or votes < 1 or not 0 <= share <= 1:
        raise ValueError(f"{votes} votes, each right with {share}; give an odd number and a share")
    return sum(
        math.comb(votes, right) * share**right * (1 - share) ** (votes - right)
        for right in range(votes // 2 + 1, votes + 1)
    )


def signal_left(spread: float, noise: float) -> float | None:
    """Return the correlation of noisy scores with the truth, whose spread in a group is given.

    `None` where nothing varies.

    Raises:
        ValueError: one of them is no number from 0.
    """
    if not (0 <= spread < math.inf and 0 <= noise < math.inf):
        raise ValueError(f"a spread of {spread} and a noise of {noise}; give numbers from 0")
    total = math.hypot(spread, noise)
    return spread / total if total else None


class Positions(NamedTuple):
    """What showing pairs in both orders shows."""

    n: int
    flip_rate: float
    """Share of pairs whose winner depends on the order."""
    bias: float
    """Share that flips to the reply shown first, less the share that flips to the second."""


def position_bias(orders: Sequence[tuple[Side, Side]]) -> Positions | None:
    """Compare verdicts on pairs: as they are, and with the two exchanged, each by place.

    `None` where there is no pair.
    """
    if not orders:
        return None
    leanings = [_leaning(*verdicts) for verdicts in orders]
    n = len(leanings)
    flips = sum(leaning is not None for leaning in leanings)
    return Positions(n, flips / n, sum(leaning or 0 for leaning in leanings) / n)


def consistent_winner(straight: Side, exchanged: Side) -> Side | None:
    """Return which reply won in both orders, by its place in the first; `None` after a flip."""
    opposite: dict[Side, Side] = {"first": "second", "second": "first", "same": "same"}
    return straight if opposite[exchanged] == straight else None


def _leaning(straight: Side, exchanged: Side) -> int | None:
    """Return 1 for a flip to the first place, -1 to the second, `None` for no flip."""
    if consistent_winner(straight, exchanged) is not None:
        return None
    places = {"first": 1, "second": -1, "same": 0}
    return 1 if places[straight] + places[exchanged] > 0 else -1


def length_slope(
    lengths: Sequence[int], values: Sequence[float], labels: Sequence[int] | None = None
) -> float | None:
    """Return what 100 more characters add to a value, by least squares; `None` for one length.

    With `labels` only rows of equal labels are compared, so that neither a judge that is always
    right nor one that always says the same has a slope.

    Raises:
        ValueError: there is not one number for each length.
    """
    for name, given in (("values", values), ("labels", labels)):
        if given is not None and len(given) != len(lengths):
            raise ValueError(f"{len(lengths)} lengths have {len(given)} {name}; give one for each")
    x, y = _finite("lengths", lengths) / 100, _finite("values", values)
    classes = np.zeros(len(x)) if labels is None else np.asarray(labels)
    for label in np.unique(classes):
        rows = classes == label
        x[rows] -= x[rows].mean()
        y[rows] -= y[rows].mean()
    squares = float((x**2).sum())
    return float((x * y).sum()) / squares if squares > 1e-12 else None


def _finite(name: str, values: Sequence[float]) -> NDArray[np.float64]:
    array = np.array(values, dtype=np.float64)
    if not np.isfinite(array).all():
        raise ValueError(f"the {name} hold what is no finite number; leave such rows out")
    return array
