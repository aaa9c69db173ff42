"""Figures of a run while it trains: one flat dictionary, as trainers' loggers take it.

A figure that is not known has no key: nothing failed or unscored is a 0 in a mean.
`docs/diagnosing.md` says what each one tells.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Hashable, Iterable, Iterator, Sequence

import numpy as np

from livestream_env.conduct import (
    abstention,
    act_confusion,
    explicit_query,
    faq_utilisation,
)
from livestream_env.diagnostics import group_of
from livestream_env.episode import NOT_EXECUTED
from livestream_env.evidence import Reading, Round
from livestream_env.group_norms import flat_groups
from livestream_env.judge_budget import Budget
from livestream_env.measures import codes_of
from livestream_env.reflection import recoveries_of
from livestream_env.rooms import Room
from livestream_env.stability import stability_report
from livestream_env.types import (
    MISSING_CAUSES,
    Channel,
    MissingCause,
    Score,
    Status,
    StopReason,
    Trajectory,
)

NO_VERDICT: tuple[MissingCause, ...] = ("judge_error", "refused", "timeout")
"""Why the score of a judge is missing."""
Figures = dict[str, float | None]


def metrics(
    trajectories: Iterable[Trajectory],
    *,
    rooms: Iterable[Room] = (),
    budgets: Iterable[Budget] = (),
) -> dict[str, float]:
    """Return the figures of the trajectories of a training step, or of any other set.

    Args:
        rooms: with their keys; figures that ask what was right are of the trajectories of these.
        budgets: meters of judges, whose figures are sums over the process so far.

    Raises:
        TypeError: one trajectory was given, and not several.
    """
    if isinstance(trajectories, Trajectory):
        raise TypeError("`metrics` got one trajectory; pass a list of them")
    played = list(trajectories)
    known = {room.content_hash: room for room in rooms}
    ended = [t for t in played if t.stop_reason is not None and t.status is not Status.ENV_ERROR]
    readings = [Reading(t, known.get(t.content_hash)) for t in ended]
    groups = [_group(trajectory, i) for i, trajectory in enumerate(ended)]
    figures: Figures = {"episodes": len(played)}
    figures |= _endings(played) if played else {}
    figures |= _rewards(ended, groups)
    figures |= _calls(ended)
    figures |= _acts(readings)
    figures |= _replies(readings, groups)
    figures |= _verdicts(ended) | _spendings(budgets)
    return {key: float(figure) for key, figure in figures.items() if figure is not None}


def _group(trajectory: Trajectory, number: int) -> Hashable:
    """Return what training compares: the group that was played, else those of one comment."""
    return trajectory.group if trajectory.group is not None else group_of(trajectory, number)


def _mean(values: Iterable[float]) -> float | None:
    known = list(values)
    return sum(known) / len(known) if known else None


# --- endings ----------------------------------------------------------------------------------


def _endings(played: Sequence[Trajectory]) -> Figures:
    count, stability = len(played), stability_report(played, periods=1)
    stops = Counter(t.stop_reason for t in played)
    return {
        **{key: stops[reason] / count for reason, key in _STOPS.items()},
        "env_error/share": stability.failure_rate,
        "env_error/at_reset": stability.failed_at_reset / count,
        "env_error/biases": len(stability.biased),
        **{f"env_error/cause/{cause}": n / count for cause, n in stability.causes.items()},
        "sandbox/retries": stability.retries / count,
        "sandbox/rebuilds": stability.rebuilds / count,
    }


_STOPS = {reason: f"stop/{reason or 'running'}" for reason in (*StopReason, None)}


# --- rewards ----------------------------------------------------------------------------------


def _rewards(ended: Sequence[Trajectory], groups: Sequence[Hashable]) -> Figures:
    """Return the figures of every total and hook."""
    values: dict[str, list[tuple[float | None, Hashable]]] = {}
    absent: Counter[tuple[str, str | None]] = Counter()
    hooks: dict[str, None] = {}
    turns: dict[str, list[float]] = {}
    for trajectory, group in zip(ended, groups, strict=True):
        for name, total in _totals(trajectory):
            values.setdefault(name, []).append((total, group))
        for score in _scores(trajectory):
            name = f"{score.agent}/{score.name}"
            if score.turn is None:
                values.setdefault(name, []).append((score.value, group))
                hooks[name] = None
                if score.value is None:
                    absent[name, score.cause] += 1
            elif score.value is not None:
                turns.setdefault(name, []).append(score.value)
    figures: Figures = {}
    for name, rows in values.items():
        figures |= _of_stream(f"reward/{name}", rows)
    for name in hooks:
        for cause in MISSING_CAUSES:
            figures[f"reward/{name}/unscored/{cause}"] = absent[name, cause] / len(values[name])
    return figures | {f"reward/{name}/turn_mean": _mean(found) for name, found in turns.items()}


def _scores(trajectory: Trajectory) -> Sequence[Score]:
    return trajectory.rewards.scores if trajectory.rewards is not None else ()


def _totals(trajectory: Trajectory) -> Iterator[tuple[str, float | None]]:
    weighed = [s for s in _scores(trajectory) if s.turn is None and s.weight]
    if trajectory.rewards is None or not weighed:
        return
    yield "total", trajectory.rewards.total()
    for agent in dict.fromkeys(score.agent for score in weighed):
        yield f"{agent}/total", trajectory.rewards.total(agent)


def _of_stream(name: str, rows: Sequence[tuple[float | None, Hashable]]) -> Figures:
    known = [(value, group) for value, group in rows if value is not None]
    deviation, flat = _inside([value for value, _ in known], [group for _, group in known])
    return {
        f"{name}/mean": _mean(value for value, _ in known),
        f"{name}/group_std": deviation,
        f"{name}/flat_groups": flat,
        f"{name}/unscored/all": 1 - len(known) / len(rows),
    }


def _inside(
    values: Sequence[float], groups: Sequence[Hashable]
) -> tuple[float | None, float | None]:
    """Return the mean over groups of two and more of their standard deviation (ddof 1), and the
    share of these groups whose values are equal."""
    if len(set(groups)) == len(groups):
        return None, None
    known, codes = np.array(values, float), codes_of(groups)
    counts = np.bincount(codes)
    several = counts > 1
    means = np.bincount(codes, known) / counts
    squares = np.bincount(codes, (known - means[codes]) ** 2)
    deviations = np.sqrt(squares[several] / (counts[several] - 1))
    flat = flat_groups(known, codes, counts)[several]
    return float(deviations.mean()), float(flat.mean())


# --- what was done ----------------------------------------------------------------------------


def _calls(ended: Sequence[Trajectory]) -> Figures:
    """Count turns and calls an episode."""
    if not ended:
        return {}
    counts = dict.fromkeys(("turns", *(f"calls/{name}" for name in _CALLS)), 0)
    for turn in (turn for trajectory in ended for turn in trajectory.turns):
        calls = turn.action.message.tool_calls
        parsed = [call.error is None for call in calls]
        ran = [r.error for is_read, r in zip(parsed, turn.results, strict=False) if is_read]
        counts["turns"] += 1
        counts["calls/attempted"] += len(calls)
        counts["calls/parsed"] += sum(parsed)
        counts["calls/executed"] += sum(error not in NOT_EXECUTED for error in ran)
        counts["calls/over_limit"] += ran.count("tool_limit")
    return {name: count / len(ended) for name, count in counts.items()}


_CALLS = ("attempted", "parsed", "executed", "over_limit")


def _acts(readings: Sequence[Reading]) -> Figures:
    """Tell how the episodes were gone about."""
    if not readings:
        return {}
    dodges = [reading.abstains for reading in readings if reading.abstains is not None]
    reasons = Counter(map(abstention, readings))
    counted = [recoveries_of(reading) for reading in readings]
    missed = sum(one.missed for one in counted)
    return {
        "abstain/share": _mean(dodges),
        "abstain/justified": reasons["justified"] / len(dodges) if dodges else None,
        "abstain/unjustified": reasons["unjustified"] / len(dodges) if dodges else None,
        "hand_off/share": _mean(any(one.hands_off for one in r.rounds) for r in readings),
        "recovery/missed": missed / len(readings),
        "recovery/rate": sum(one.recovered for one in counted) / missed if missed else None,
        **_against_key([(r.trajectory, r.room) for r in readings if r.room is not None]),
    }


def _against_key(keyed: Sequence[tuple[Trajectory, Room]]) -> Figures:
    acts = act_confusion(keyed)
    right = sum(count for (due, taken), count in acts.items() if due == taken)
    clear = [explicit_query(trajectory, room).value for trajectory, room in keyed]
    return {
        "acts/right": right / acts.total() if acts else None,
        "explicit_query": _mean(value for value in clear if value is not None),
        "faq_utilisation": faq_utilisation(keyed),
    }


def _replies(readings: Sequence[Reading], groups: Sequence[Hashable]) -> Figures:
    """Tell how long replies are, and how much those of a group differ."""
    lengths: dict[Channel, list[int]] = {"danmaku": [], "speech": []}
    members: dict[Hashable, list[str]] = {}
    for reading, group in zip(readings, groups, strict=True):
        for channel, text in (said for one in reading.rounds for said in _said(one)):
            lengths[channel].append(len(text))
        last = reading.rounds[-1].text
        members.setdefault(group, []).extend([last] if last.strip() else [])
    several = [texts for texts in members.values() if len(texts) > 1]
    return {
        **{f"reply/{channel}/characters": _mean(found) for channel, found in lengths.items()},
        "group/replies": _mean(len(texts) for texts in several),
        "group/distinct_replies": _mean(len(set(texts)) for texts in several),
    }


def _said(one: Round) -> Iterator[tuple[Channel, str]]:
    """Yield what a reply says on each channel that it uses."""
    if one.reply is None:
        return
    if one.reply.message.content.strip():
        yield one.reply.channel, one.reply.message.content
    if one.reply.speech:
        yield "speech", one.reply.speech


# --- judges -----------------------------------------------------------------------------------


def _verdicts(ended: Sequence[Trajectory]) -> Figures:
    """Return which share of the scores of judges has no verdict.

    A judge's are the scores that `Trajectory.versions` names a judge for, and those of every hook
    that failed like a judge.
    """
    scores = [score for trajectory in ended for score in _scores(trajectory)]
    judges = {key for trajectory in ended for key in trajectory.versions if key[:6] == "judge:"}
    names = {key[6:].partition("/")[0] for key in judges}
    names |= {score.name for score in scores if score.cause in NO_VERDICT}
    judged = [score for score in scores if score.name in names]
    if not judged:
        return {}
    causes = Counter(score.cause for score in judged if score.cause in NO_VERDICT)
    shares = {f"judge/errors/{cause}": causes[cause] / len(judged) for cause in NO_VERDICT}
    return {"judge/errors/all": causes.total() / len(judged), **shares}


def _spendings(budgets: Iterable[Budget]) -> Figures:
    meters = list({id(budget): budget for budget in budgets}.values())
    if not meters:
        return {}
    sent = sum(meter.sent for meter in meters)
    return {
        "judge/requests": sent,
        "judge/unanswered": sent - sum(meter.requests for meter in meters),
        "judge/cached": sum(meter.cached for meter in meters),
        "judge/tokens": sum(meter.prompt_tokens + meter.completion_tokens for meter in meters),
        "judge/cost": sum(meter.spent for meter in meters) if _priced(meters) else None,
        "judge/latency_s": sum(meter.seconds for meter in meters) / sent if sent else None,
    }


def _priced(meters: Sequence[Budget]) -> bool:
    return any(meter.prices for meter in meters)
