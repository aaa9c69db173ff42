"""What a reward does to training: whether it separates good replies from bad inside groups.

Group-relative training sees only differences inside a group, so a reward that tells easy comments
from hard ones, and not good replies from bad, looks well by its global figures and teaches nothing.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Hashable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import combinations
from typing import Any

import numpy as np

from livestream_env.errors import MixedVersions
from livestream_env.evaluation import OFTEN, TOTAL, value_of
from livestream_env.evidence import Reading
from livestream_env.exploits import hack_agents as hack_agents
from livestream_env.exploits import try_hacks as try_hacks
from livestream_env.group_norms import flat_groups
from livestream_env.measures import Order, Spread, codes_of, correlation, order, spread
from livestream_env.mutants import probe as probe
from livestream_env.mutants import probes as probes
from livestream_env.types import Score, Status, Trajectory

MARGIN = 0.1
"""How far the measured p should lie above the break-even."""
PAID_FOR_BEING_RIGHT = ("correctness", "length")
"""Scores that a reply earns which states nothing."""
PAID_FOR_HELPING = ("helpfulness",)


@dataclass(frozen=True, slots=True)
class Stream:
    """One number of every trajectory: a total, or the score of a hook."""

    name: str
    count: int
    missing: Mapping[str, int]
    """Trajectories without it, by cause."""
    mean: float | None
    at_zero: float | None
    at_one: float | None
    """Shares of 0 and of 1."""
    groups: int
    """Groups with at least two values."""
    zero_variance: float | None
    """Share of these whose values are all equal: they train nothing."""
    spread: Spread
    everywhere: Order
    """All pairs of trajectories whose labels differ."""
    inside: Order
    """Those of one comment."""


@dataclass(frozen=True, slots=True)
class BreakEven:
    """When answering pays more than saying sorry.

    With weights a for what a reply earns that states nothing and b for helping, an answer that is
    right with probability p pays p (a + b), and saying sorry pays a.
    """

    agent: str
    a: float
    b: float
    p: float | None
    """What the replies that try earned, as a share of a + b: in the model above, how often they
    are right."""
    sorry: float | None
    """What those that say sorry earned, as a share of a + b: a gate keeps it below a / (a + b)."""

    @property
    def at(self) -> float:
        """The p from which answering pays more, a / (a + b)."""
        return self.a / (self.a + self.b)

    @property
    def is_near(self) -> bool:
        """Whether the measured p is not above it by a safe margin."""
        return self.p is not None and self.p < self.at + MARGIN


@dataclass(frozen=True, slots=True)
class RewardReport:
    """What rewards of a set of trajectories say, and what they are worth to training."""

    trajectories: int
    failed: int
    """Failed by infrastructure, or not scored: in none of the numbers."""
    labelled: int
    streams: tuple[Stream, ...]
    correlations: Mapping[tuple[str, str], float | None]
    break_evens: tuple[BreakEven, ...]
    abstain_rate: float | None
    versions: Mapping[str, str] = field(default_factory=dict)

    def stream(self, name: str) -> Stream:
        """Return the stream of that name: `total`, an agent or a hook.

        Raises:
            KeyError: there is none.
        """
        for one in self.streams:
            if one.name == name:
                return one
        raise KeyError(name)

    @property
    def warnings(self) -> list[str]:
        """What should be mended before training, one line each."""
        said = [warning for one in self.streams for warning in _stream_warnings(one)]
        for one in self.break_evens:
            if one.is_near:
                said.append(
                    f"{one.agent}: answering pays from p = {one.at:.3f} on, and p is {one.p:.3f}:"
                    " training may settle on saying sorry; give helpfulness more weight or a gate"
                )
        if self.abstain_rate is not None and self.abstain_rate > OFTEN:
            said.append(f"{self.abstain_rate:.0%} of the replies say they cannot tell")
        return said

    def summary(self) -> dict[str, Any]:
        """Return all of it as JSON values."""
        return {
            "trajectories": self.trajectories,
            "failed": self.failed,
            "labelled": self.labelled,
            "streams": {one.name: _stream_summary(one) for one in self.streams},
            "correlations": {f"{a}/{b}": r for (a, b), r in self.correlations.items()},
            "break_even": {
                one.agent: {"a": one.a, "b": one.b, "at": one.at, "p": one.p, "sorry": one.sorry}
                for one in self.break_evens
            },
            "abstain_rate": self.abstain_rate,
            "versions": dict(self.versions),
            "warnings": self.warnings,
        }


def _stream_warnings(one: Stream) -> list[str]:
    said = []
    if one.zero_variance is not None and one.zero_variance > OFTEN:
        said.append(f"{one.name}: {one.zero_variance:.0%} of the groups have no variance")
    inside, everywhere = one.inside.auc, one.everywhere.auc
    if inside is not None and everywhere is not None and inside < 0.6 < 0.8 <= everywhere:
        said.append(
            f"{one.name}: AUC {everywhere:.2f} over all, {inside:.2f} inside groups: it tells"
            " comments apart, not replies"
        )
    return said


def _stream_summary(one: Stream) -> dict[str, Any]:
    return {
        "count": one.count,
        "missing": dict(one.missing),
        "mean": one.mean,
        "at_zero": one.at_zero,
        "at_one": one.at_one,
        "groups": one.groups,
        "zero_variance": one.zero_variance,
        "within": one.spread.within,
        "between": one.spread.between,
        "within_share": one.spread.within_share,
        "auc": one.everywhere.auc,
        "accuracy": one.everywhere.accuracy,
        "auc_inside": one.inside.auc,
        "accuracy_inside": one.inside.accuracy,
        "pairs_inside": one.inside.pairs,
    }


# --- the report -------------------------------------------------------------------------------


def reward_report(
    trajectories: Sequence[Trajectory], labels: Sequence[float | None] | None = None
) -> RewardReport:
    """Report on trajectories with rewards.

    Groups are of one comment (or burst) of one room; each agent's total and each hook is a stream
    of its own.

    Args:
        labels: how good each trajectory is, such as 1 and 0; `None` where it is not known.

    Raises:
        ValueError: there are not as many labels as trajectories.
        MixedVersions: the trajectories were scored by different rubrics or judges, or made with
            different versions of the package or embedder.
    """
    if labels is not None and len(labels) != len(trajectories):
        raise ValueError(f"got {len(labels)} labels for {len(trajectories)} trajectories")
    versions = one_version(trajectories)
    given = labels if labels is not None else [None] * len(trajectories)
    rows = [(t, y) for t, y in zip(trajectories, given, strict=True) if _is_scored(t)]
    scored = [trajectory for trajectory, _ in rows]
    truths = [None if label is None else float(label) for _, label in rows]
    groups = [group_of(trajectory, i) for i, trajectory in enumerate(scored)]
    agents, hooks = _names(scored)
    values = {
        name: [value_of(trajectory, name) for trajectory in scored]
        for name in (TOTAL, *agents, *hooks)
    }
    dodges = [Reading(trajectory, None).abstains for trajectory in scored]
    known = [dodge for dodge in dodges if dodge is not None]
    return RewardReport(
        trajectories=len(trajectories),
        failed=len(trajectories) - len(scored),
        labelled=sum(truth is not None for truth in truths),
        streams=tuple(_stream(n, v, truths, groups, scored) for n, v in values.items()),
        correlations={(a, b): correlation(values[a], values[b]) for a, b in combinations(hooks, 2)},
        break_evens=tuple(
            made for agent in agents if (made := _break_even(agent, scored, dodges)) is not None
        ),
        abstain_rate=sum(known) / len(known) if known else None,
        versions=versions,
    )


def _is_scored(trajectory: Trajectory) -> bool:
    is_failed = trajectory.status is Status.ENV_ERROR
    return not is_failed and trajectory.rewards is not None and bool(trajectory.rewards.scores)


def one_version(trajectories: Sequence[Trajectory]) -> dict[str, str]:
    """Return the versions of a set: rubric, judges, package, embedder.

    Raises:
        MixedVersions: two trajectories differ in one of them.
    """
    found: dict[str, str] = {}
    for trajectory in trajectories:
        for name, version in trajectory.versions.items():
            if found.setdefault(name, version) != version:
                raise MixedVersions(
                    f"`{name}` is `{found[name]}` in some trajectories and `{version}` in others;"
                    " rewards of two versions cannot be compared: report on them apart, or score"
                    " all of them again"
                )
    return found


def group_of(trajectory: Trajectory, number: int) -> Hashable:
    """Return what the trajectories of one comment share, whatever their seeds; `number` where it
    belongs to no known comment or group."""
    if trajectory.comment_ids:
        return trajectory.room_id, trajectory.content_hash, trajectory.comment_ids
    return trajectory.group if trajectory.group is not None else number


def _names(scored: Sequence[Trajectory]) -> tuple[list[str], list[str]]:
    scores = [score for trajectory in scored for score in _scores(trajectory)]
    agents = list(dict.fromkeys(score.agent for score in scores))
    hooks = list(dict.fromkeys(score.name for score in scores))
    return agents, [name for name in hooks if name not in agents and name != TOTAL]


def _scores(trajectory: Trajectory) -> list[Score]:
    scores = trajectory.rewards.scores if trajectory.rewards is not None else ()
    return [score for score in scores if score.turn is None]


def _stream(
    name: str,
    values: Sequence[float | None],
    truths: Sequence[float | None],
    groups: Sequence[Hashable],
    scored: Sequence[Trajectory],
) -> Stream:
    rows = [(v, y, g) for v, y, g in zip(values, truths, groups, strict=True) if v is not None]
    known = np.array([v for v, _, _ in rows], float)
    grouped = [g for _, _, g in rows]
    told = [(v, y, g) for v, y, g in rows if y is not None]
    triple = ([v for v, _, _ in told], [y for _, y, _ in told], [g for _, _, g in told])
    count, flat = _flat(known, grouped)
    causes = Counter(_cause(t, name) for v, t in zip(values, scored, strict=True) if v is None)
    return Stream(
        name=name,
        count=len(known),
        missing=dict(causes),
        mean=float(known.mean()) if len(known) else None,
        at_zero=float((np.abs(known) < 1e-6).mean()) if len(known) else None,
        at_one=float((np.abs(known - 1) < 1e-6).mean()) if len(known) else None,
        groups=count,
        zero_variance=flat / count if count else None,
        spread=spread(known.tolist(), grouped),
        everywhere=order(*triple[:2]),
        inside=order(*triple),
    )


def _flat(values: Any, groups: Sequence[Hashable]) -> tuple[int, int]:
    """Count the groups of two and more values, and those of them whose values are equal."""
    if not len(values):
        return 0, 0
    codes = codes_of(groups)
    counts = np.bincount(codes)
    several = counts >= 2
    return int(several.sum()), int((flat_groups(values, codes, counts) & several).sum())


def _cause(trajectory: Trajectory, name: str) -> str:
    """Return why a stream has no value: the hook's cause, for a total the first of its hooks'."""
    scores = _scores(trajectory)
    own = [score for score in scores if score.name == name]
    its = own or [s for s in scores if name in (TOTAL, s.agent)]
    causes = [str(score.cause) for score in its if score.value is None and score.cause]
    told = [cause for cause in causes if cause not in ("no_truth", "not_applicable")]
    return (told or causes or ["absent"])[0]


def _break_even(
    agent: str, scored: Sequence[Trajectory], dodges: Sequence[bool | None]
) -> BreakEven | None:
    """Return the break-even of an agent whose weights pay for being right and for helping."""
    paid: dict[bool, list[float]] = {True: [], False: []}
    a = b = 0.0
    for trajectory, dodge in zip(scored, dodges, strict=True):
        own = [score for score in _scores(trajectory) if score.agent == agent]
        right = [score for score in own if score.name in PAID_FOR_BEING_RIGHT]
        helping = [score for score in own if score.name in PAID_FOR_HELPING]
        if not right or not helping:
            continue
        a, b = sum(s.weight for s in right), sum(s.weight for s in helping)
        values = [(s.value, s.weight) for s in (*right, *helping)]
        known = [value * weight for value, weight in values if value is not None]
        if dodge is not None and len(known) == len(values) and a + b > 0:
            paid[dodge].append(sum(known) / (a + b))
    if a + b <= 0:
        return None
    p, sorry = (sum(p) / len(p) if p else None for p in (paid[False], paid[True]))
    return BreakEven(agent, a, b, p, sorry)
