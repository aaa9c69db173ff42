"""Trying a judge on labelled cases: does it agree with people, with itself, in both orders?"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from itertools import combinations

import numpy as np
from numpy.typing import NDArray

from livestream_env.agreement import (
    Positions,
    Repeated,
    confusion,
    consistent_winner,
    kappa,
    length_slope,
    position_bias,
    retest,
    wilson,
)
from livestream_env.background import run_in_background
from livestream_env.judge_cases import LabelledCase
from livestream_env.judges import ChatJudge, Comparison, Judgement

CLASSES = 3
ENOUGH_KAPPA = 0.6
ENOUGH_JUDGED = 0.9
"""Share of the cases that need a verdict."""


@dataclass(frozen=True, slots=True)
class Calibration:
    """What a judge did with labelled cases."""

    cases: int
    failures: dict[str, int]
    """Judgements and comparisons without a verdict, by cause."""
    problem: str
    """What was wrong with the first of them."""
    table: NDArray[np.int64]
    """How often each score was given for each label, shape (3, 3)."""
    repeated: Repeated | None
    """The same cases asked twice."""
    positions: Positions | None
    """Pairs of replies to one comment, shown in both orders."""
    pairs_right: int
    """Pairs whose better reply won in both orders."""
    slope: float | None
    """What 100 more characters add to the score, beyond what the label says."""
    versions: dict[str, str] = field(default_factory=dict)

    @property
    def judged(self) -> int:
        """Cases with a verdict."""
        return int(self.table.sum())

    @property
    def right(self) -> int:
        """Cases whose score is the label."""
        return int(self.table.trace())

    @property
    def right_interval(self) -> tuple[float, float]:
        """Wilson interval of the share of right scores."""
        return wilson(self.right, self.judged)

    @property
    def plain_kappa(self) -> float | None:
        """Agreement with the labels beyond chance."""
        return kappa(self.table)

    @property
    def quadratic_kappa(self) -> float | None:
        """Agreement with the labels beyond chance, near misses counting in part."""
        return kappa(self.table, weights="quadratic")

    @property
    def is_enough(self) -> bool:
        """Whether the judge may be trained on: it agrees, and gives a verdict nearly always."""
        has_judged = self.judged >= ENOUGH_JUDGED * self.cases
        return has_judged and self.plain_kappa is not None and self.plain_kappa >= ENOUGH_KAPPA


def calibrate(
    judge_of: Callable[[str, str], ChatJudge],
    cases: Sequence[LabelledCase],
    *,
    workers: int = 8,
    done: Callable[[], None] = lambda: None,
) -> Calibration:
    """Ask about each case twice, and about each pair of answers to one comment in both orders.

    `judge_of` is given metric and language; `done` is called after each judgement.

    Raises:
        ValueError: a label is none of 0, 1, 2.
    """
    for case in cases:
        if case.label not in range(CLASSES):
            raise ValueError(f"`{case.case_id}` has the label {case.label!r}; give 0, 1 or 2")
    judges = {
        key: judge_of(*key) for key in dict.fromkeys((c.metric, c.case.language) for c in cases)
    }
    pairs = list(_pairs(cases))
    return run_in_background(_calibrate(judges, cases, pairs, asyncio.Semaphore(workers), done))


Judges = dict[tuple[str, str], ChatJudge]
Pair = tuple[LabelledCase, LabelledCase]


async def _calibrate(
    judges: Judges,
    cases: Sequence[LabelledCase],
    pairs: Sequence[Pair],
    gate: asyncio.Semaphore,
    done: Callable[[], None],
) -> Calibration:
    async def judge(one: LabelledCase, round_number: int) -> Judgement:
        asked = judges[one.metric, one.case.language]
        async with gate:
            judged = await asked.ajudge(one.case, first_sample=round_number * asked.votes)
        done()
        return judged

    async def compare(pair: Pair, exchanged: bool) -> Comparison:
        first, second = reversed(pair) if exchanged else pair
        asked = judges[first.metric, first.case.language]
        async with gate:
            compared = await asked.acompare(first.case, second.case)
        done()
        return compared

    first = await asyncio.gather(*(judge(one, 0) for one in cases))
    second = await asyncio.gather(*(judge(one, 1) for one in cases))
    straight = await asyncio.gather(*(compare(pair, False) for pair in pairs))
    exchanged = await asyncio.gather(*(compare(pair, True) for pair in pairs))
    return _summed(cases, first, second, straight, exchanged, judges.values())


def _summed(
    cases: Sequence[LabelledCase],
    first: Sequence[Judgement],
    second: Sequence[Judgement],
    straight: Sequence[Comparison],
    exchanged: Sequence[Comparison],
    judges: Iterable[ChatJudge],
) -> Calibration:
    judged = [(c, j.value) for c, j in zip(cases, first, strict=True) if j.value is not None]
    twice = [
        (a.value, b.value)
        for a, b in zip(first, second, strict=True)
        if a.value is not None and b.value is not None
    ]
    orders = [
        (a.better, b.better)
        for a, b in zip(straight, exchanged, strict=True)
        if a.better is not None and b.better is not None
    ]
    came: list[Judgement | Comparison] = [*first, *second, *straight, *exchanged]
    failed = [one for one in came if one.cause]
    causes = [one.cause for one in failed if one.cause]
    top = CLASSES - 1
    replied = [(c, value) for c, value in judged if c.case.reply]
    return Calibration(
        cases=len(cases),
        failures={cause: causes.count(cause) for cause in sorted(set(causes))},
        problem=failed[0].reason if failed else "",
        table=confusion(
            [case.label for case, _ in judged], [round(v * top) for _, v in judged], CLASSES
        ),
        repeated=retest([a for a, _ in twice], [b for _, b in twice]),
        positions=position_bias(orders),
        pairs_right=sum(consistent_winner(*order) == "first" for order in orders),
        slope=length_slope(
            [len(case.case.reply) for case, _ in replied],
            [value for _, value in replied],
            [case.label for case, _ in replied],
        ),
        versions={key: value for judge in judges for key, value in judge.versions.items()},
    )


def _pairs(cases: Sequence[LabelledCase]) -> Iterable[Pair]:
    """Yield pairs of answers to one comment, the one with the higher label first."""
    situations: dict[tuple[str, str, str], list[LabelledCase]] = {}
    for case in cases:
        key = (case.metric, case.case.language, case.situation)
        situations.setdefault(key, []).append(case)
    for group in situations.values():
        ranked = sorted(group, key=lambda case: -case.label)
        yield from ((a, b) for a, b in combinations(ranked, 2) if a.label > b.label)
