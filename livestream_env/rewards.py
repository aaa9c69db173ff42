"""Rewards: rubrics that weigh what hooks say of an episode, for each agent.

The hooks of `HOOKS` are verifiable: they read the record, the facts it saw and the key of its room,
and need no model. A hook without ground truth says `no_truth`; a failed judge says why; neither is
0. A failed episode has no scores at all.
"""

from __future__ import annotations

import asyncio
import inspect
import math
import threading
from collections import defaultdict
from collections.abc import Awaitable, Callable, Collection, Mapping, Sequence
from dataclasses import replace
from numbers import Real
from typing import Any, Literal

from livestream_env.background import run_in_background
from livestream_env.errors import JudgeError, did_you_mean
from livestream_env.evidence import Reading
from livestream_env.guard import guard_score
from livestream_env.reply_hooks import Hook as Hook
from livestream_env.reply_hooks import correctness as correctness
from livestream_env.reply_hooks import helpfulness as helpfulness
from livestream_env.reply_hooks import length as length
from livestream_env.reward_hooks import HOOKS as HOOKS
from livestream_env.rooms import Room
from livestream_env.types import Rewards as Rewards
from livestream_env.types import Score as Score
from livestream_env.types import Status, StopReason, Trajectory, checked_rewards

RewardHook = Callable[[Trajectory, Room | None], Any]
"""Returns a `Score`, several, or a number; may be async; raises `JudgeError` without a verdict."""
GroupHook = Callable[[Sequence[Trajectory], Room | None], Sequence[Score]]
Gate = Literal["helpful", "outcome"]


class Rubric:
    """Weighs hooks for each agent.

    Args:
        hooks: callables `(trajectory, room)`, or names of `HOOKS`.
        weights: {agent: {score name: weight}}; a score without a weight is logged, never trained.
            By default each score counts for its own agent with its own weight.
        missing: `renormalise` shares the weight of `no_truth` and `not_applicable` out among that
            agent's other scores; `none` makes the agent's total `None`.
        gate: `helpful`: correctness and length are 0 where nothing that was asked is covered and
            an answer was right; `outcome`: efficiency counts only where the outcome is above 0.
        veto: names of scores that make the replier's total 0 where they are 0. The replier's are
            the scores that its hooks or `weights` give to it.
        group_hooks: callables of all trajectories of a group, for `score_group`.
        timeout_s: limit of each hook that is not built in; past it the score is missing.
    """

    def __init__(
        self,
        hooks: Sequence[RewardHook | str],
        *,
        weights: Mapping[str, Mapping[str, float]] | None = None,
        missing: Literal["renormalise", "none"] = "renormalise",
        gate: Gate | None = None,
        veto: Sequence[str] = (),
        group_hooks: Sequence[GroupHook] = (),
        timeout_s: float = 60.0,
    ) -> None:
        if missing not in ("renormalise", "none"):
            raise ValueError(f"`missing` is {missing!r}; it is `renormalise` or `none`")
        if gate not in (None, "helpful", "outcome"):
            raise ValueError(f"`gate` is {gate!r}; it is `helpful`, `outcome` or None")
        if isinstance(hooks, str) or isinstance(veto, str):
            raise TypeError("`hooks` and `veto` are lists of names; write `[...]` round one")
        self.hooks = tuple(map(_hook, hooks))
        _check_weights(weights or {})
        if not group_hooks and all(one is guard_score or type(one) is Hook for one in self.hooks):
            _check_names(self.hooks, weights or {}, veto)
        self.weights = weights
        self.missing = missing
        self.gate = gate
        self.veto = tuple(veto)
        self.group_hooks = tuple(group_hooks)
        self.timeout_s = timeout_s

    def __call__(self, trajectory: Trajectory, room: Room | None = None) -> Rewards:
        """Score an episode; a failed one has no scores.

        Raises:
            TypeError: a hook is async (use `ascore`), or returns something else than scores.
        """
        if trajectory.status is Status.ENV_ERROR:
            return Rewards()
        reading = Reading(trajectory, room)
        scores: list[Score] = []
        for hook in self.hooks:
            scores += self._run(hook, reading)
        return self._weighed(reading, scores)

    async def ascore(self, trajectory: Trajectory, room: Room | None = None) -> Rewards:
        """Score an episode, awaiting the hooks that are async, all at once."""
        if trajectory.status is Status.ENV_ERROR:
            return Rewards()
        reading = Reading(trajectory, room)
        made = await asyncio.gather(*(self._arun(hook, reading) for hook in self.hooks))
        return self._weighed(reading, [score for scores in made for score in scores])

    def score_group(
        self, trajectories: Sequence[Trajectory], room: Room | None = None
    ) -> list[Rewards]:
        """Score the members of a group alike: a score that is missing for one counted member
        weighs for none of them."""
        made = [self(trajectory, room) for trajectory in trajectories]
        return weighed_alike(self.with_group_scores(made, trajectories, room))

    async def ascore_group(
        self, trajectories: Sequence[Trajectory], room: Room | None = None
    ) -> list[Rewards]:
        """Score the members of a group as `score_group`, awaiting the hooks that are async."""
        made = await asyncio.gather(*(self.ascore(one, room) for one in trajectories))
        return weighed_alike(self.with_group_scores(made, trajectories, room))

    @property
    def is_async(self) -> bool:
        """Whether a hook has to be awaited, or is better awaited, as judges are."""
        return any(_is_async(getattr(hook, "ascore", hook)) for hook in self.hooks)

    @property
    def versions(self) -> dict[str, str]:
        """Models and prompts of the judges among the hooks, for `Trajectory.versions`."""
        told = [getattr(hook, "versions", {}) for hook in self.hooks]
        return {key: str(value) for versions in told for key, value in versions.items()}

    def with_group_scores(
        self, made: Sequence[Rewards], trajectories: Sequence[Trajectory], room: Room | None = None
    ) -> list[Rewards]:
        """Add what the group hooks say of the members that infrastructure did not fail."""
        rewards = list(made)
        counted = [i for i, t in enumerate(trajectories) if t.status is not Status.ENV_ERROR]
        for hook in self.group_hooks:
            scores = hook([trajectories[i] for i in counted], room)
            for i, score in zip(counted, scores, strict=True):
                reading = Reading(trajectories[i], room)
                rewards[i] = self._weighed(reading, [*rewards[i].scores, score])
        return rewards

    def _run(self, hook: RewardHook, reading: Reading) -> list[Score]:
        if isinstance(hook, Hook):
            return _as_scores(hook.name, hook.of(reading))
        name = name_of(hook)
        try:
            made = _within(self.timeout_s, hook, reading)
            if inspect.isawaitable(made):
                _close(made)
                raise TypeError(
                    f"hook `{name}` returns an awaitable; make it an `async def` and use "
                    "`await rubric.ascore(...)`"
                )
        except JudgeError as error:
            return [self._missing(name, hook, str(error), "judge_error")]
        except TimeoutError as error:
            return [self._missing(name, hook, self._late(error), "timeout")]
        return _as_scores(name, made)

    async def _arun(self, hook: RewardHook, reading: Reading) -> list[Score]:
        judge = getattr(hook, "ascore", hook)
        if isinstance(hook, Hook) or not _is_async(judge):
            return await asyncio.to_thread(self._run, hook, reading)
        name = name_of(hook)
        try:
            made = await asyncio.wait_for(judge(reading.trajectory, reading.room), self.timeout_s)
        except JudgeError as error:
            return [self._missing(name, hook, str(error), "judge_error")]
        except TimeoutError as error:
            return [self._missing(name, hook, self._late(error), "timeout")]
        return _as_scores(name, made)

    def _late(self, error: TimeoutError) -> str:
        """Return why a hook came too late: its own words, else this rubric's limit."""
        return str(error) or f"over {self.timeout_s} s"

    def _missing(self, name: str, hook: RewardHook, reason: str, cause: Any) -> Score:
        return Score(name, None, 1.0, getattr(hook, "agent", "host"), None, reason, cause)

    def _weighed(self, reading: Reading, scores: list[Score]) -> Rewards:
        repliers = self._names_of_replier(scores)
        made = self._with_weights(scores)
        if reading.trajectory.stop_reason is StopReason.TOOLS_DONE:
            made = [_without_replier(score) if score.name in repliers else score for score in made]
        elif not any(one.text.strip() or (one.reply and one.reply.skips) for one in reading.rounds):
            made = [_of_no_reply(score) if score.name in repliers else score for score in made]
        made = _gated(reading, made, self.gate)
        if any(score.name in self.veto and score.value == 0 for score in made):
            made = [_vetoed(score) if score.name in repliers else score for score in made]
        return Rewards(tuple(map(_loudly, made) if self.missing == "none" else made))

    def _names_of_replier(self, scores: Sequence[Score]) -> set[str]:
        """Return the scores that are for what was replied: the replier's by hook or by weight."""
        weighed = self.weights.get("replier", {}) if self.weights is not None else {}
        return {score.name for score in scores if score.agent == "replier"} | set(weighed)

    def _with_weights(self, scores: Sequence[Score]) -> list[Score]:
        if self.weights is None:
            return list(scores)
        made = []
        for score in scores:
            holders = [
                (a, names[score.name]) for a, names in self.weights.items() if score.name in names
            ]
            agent, weight = holders[0] if holders else (score.agent, 0.0)
            made.append(replace(score, agent=agent, weight=weight))
        return made


def score_all(
    rubric: Callable[[Trajectory, Room | None], Rewards],
    trajectories: Sequence[Trajectory],
    room: Room | None,
) -> list[Rewards]:
    """Score trajectories of one room, several as a group, and wait for hooks that are async."""
    if isinstance(rubric, Rubric) and len(trajectories) > 1:
        if rubric.is_async:
            return run_in_background(rubric.ascore_group(trajectories, room))
        return rubric.score_group(trajectories, room)
    return score_each(rubric, [(trajectory, room) for trajectory in trajectories])


def score_each(
    rubric: Callable[[Trajectory, Room | None], Rewards],
    pairs: Sequence[tuple[Trajectory, Room | None]],
) -> list[Rewards]:
    """Score each trajectory by itself; hooks that are async are awaited together."""
    if not (isinstance(rubric, Rubric) and rubric.is_async):
        return [checked_rewards(rubric(trajectory, room)) for trajectory, room in pairs]

    async def scored(rubric: Rubric) -> list[Rewards]:
        return await asyncio.gather(*(rubric.ascore(one, room) for one, room in pairs))

    return run_in_background(scored(rubric))


SILENT = ("no_truth", "not_applicable")
"""Causes that share a score's weight out among the others; any other makes the total missing."""


def weighed_alike(rewards: Sequence[Rewards]) -> list[Rewards]:
    """Let a score of the episode that one lacks, for no fault of a judge, weigh for none.

    Its weight is shared out among that agent's other scores.
    """
    silent = {
        (score.agent, score.name)
        for one in rewards
        for score in one.scores
        if score.turn is None and score.cause in SILENT
    }
    return [_without(one, silent) for one in rewards] if silent else list(rewards)


def _without(rewards: Rewards, silent: Collection[tuple[str, str]]) -> Rewards:
    whole, left = defaultdict[str, float](float), defaultdict[str, float](float)
    for score in rewards.scores:
        if score.turn is None:
            whole[score.agent] += score.weight
            if (score.agent, score.name) not in silent:
                left[score.agent] += score.weight
    made = []
    for score in rewards.scores:
        if score.turn is None:
            is_silent = (score.agent, score.name) in silent
            share = 0.0 if is_silent else whole[score.agent] / (left[score.agent] or 1.0)
            score = replace(score, weight=score.weight * share)
        made.append(score)
    return Rewards(tuple(made))


def _gated(reading: Reading, scores: list[Score], gate: Gate | None) -> list[Score]:
    by_name = {score.name: score for score in scores}
    if gate == "helpful" and _is_evasive(reading, by_name.get("helpfulness")):
        why = "nothing asked is covered"
        return [_closed(s, ("correctness", "length"), why) for s in scores]
    outcome = by_name["outcome"].value if "outcome" in by_name else None
    if gate == "outcome" and outcome is not None and outcome <= 0:
        return [_closed(s, ("efficiency",), "no outcome") for s in scores]
    return scores


def _without_replier(score: Score) -> Score:
    """Take the score of a reply where nobody had the replier's seat."""
    return replace(score, value=None, weight=0.0, reason="no replier", cause="not_applicable")


def _of_no_reply(score: Score) -> Score:
    return score if score.value is None else replace(score, value=0.0, reason="no reply")


def _vetoed(score: Score) -> Score:
    return replace(score, value=0.0, reason=f"vetoed; {score.reason}") if score.value else score


def _loudly(score: Score) -> Score:
    """Let a silent score make the total missing: it keeps its cause in the reason alone."""
    if score.cause not in SILENT:
        return score
    return replace(score, cause=None, reason=f"{score.cause}: {score.reason}")


def _closed(score: Score, names: Collection[str], why: str) -> Score:
    if score.name not in names or not score.value:
        return score
    return replace(score, value=0.0, reason=f"gate: {why}; {score.reason}")


def _is_evasive(reading: Reading, helpful: Score | None) -> bool:
    due = [ask for _, _, ask in reading.asks() if ask.acts[0] == "answer" and ask.facts]
    abstains = any(claim.kind == "abstain" for claims in reading.claims for claim in claims)
    return bool(due or abstains) and helpful is not None and helpful.value == 0.0


def _hook(given: RewardHook | str) -> RewardHook:
    if callable(given):
        return given
    if given == "guard":
        return guard_score
    if given not in HOOKS:
        known = (*HOOKS, "guard")
        raise ValueError(f"no hook is called `{given}`.{did_you_mean(str(given), known)}")
    return HOOKS[given]


def _check_weights(weights: Mapping[str, Mapping[str, float]]) -> None:
    """Raise `ValueError` for a weight that is no finite number, or a score that two agents hold."""
    holders: dict[str, str] = {}
    for agent, names in weights.items():
        for name, weight in names.items():
            if not math.isfinite(weight):
                raise ValueError(f"the weight of `{name}` is {weight}; it is a finite number")
            if name in holders:
                raise ValueError(
                    f"`weights` gives `{name}` to `{holders[name]}` and to `{agent}`; "
                    "a score belongs to one agent"
                )
            holders[name] = agent


def _check_names(
    hooks: Sequence[RewardHook], weights: Mapping[str, Mapping[str, float]], veto: Sequence[str]
) -> None:
    """Raise `ValueError` for a weight or a veto of a score that no built-in hook makes."""
    made = {"guard" if hook is guard_score else name_of(hook) for hook in hooks}
    for name in (*(name for names in weights.values() for name in names), *veto):
        if name not in made:
            known = ", ".join(f"`{one}`" for one in sorted(made)) or "none"
            raise ValueError(
                f"no hook makes a score `{name}`; the hooks make {known}.{did_you_mean(name, made)}"
            )


def name_of(hook: Any) -> str:
    """Return the name that a hook's scores go by."""
    return str(getattr(hook, "name", None) or getattr(hook, "__name__", type(hook).__name__))


def _as_scores(name: str, made: Any) -> list[Score]:
    if isinstance(made, Score):
        return [made]
    if isinstance(made, Real) and not isinstance(made, bool):
        return [Score(name, float(made))]
    if isinstance(made, (list, tuple)) and all(isinstance(one, Score) for one in made):
        return list(made)
    raise TypeError(f"hook `{name}` returned {made!r:.80}; it returns a `Score` or a number")


def _within(timeout_s: float, hook: RewardHook, reading: Reading) -> Any:
    """Run a user's hook in a thread of its own, so that one that never ends costs one thread."""
    made: list[Any] = []
    failed: list[BaseException] = []

    def run() -> None:
        try:
            made.append(hook(reading.trajectory, reading.room))
        except BaseException as error:
            failed.append(error)

    runner = threading.Thread(target=run, daemon=True)
    runner.start()
    runner.join(timeout_s)
    if failed:
        raise failed[0]
    if not made:
        raise TimeoutError
    return made[0]


def _is_async(hook: Any) -> bool:
    return inspect.iscoroutinefunction(hook) or inspect.iscoroutinefunction(type(hook).__call__)


def _close(made: Awaitable[Any]) -> None:
    if inspect.iscoroutine(made):
        made.close()


_REPLIER = {"correctness": 0.5, "helpfulness": 0.5}
_TOOL_CALLER = {"rule": 0.5, "tool_use": 0.5}
_FOUR = ("correctness", "helpfulness", "rule", "tool_use")
PRESETS: dict[str, Rubric] = {
    "single4": Rubric(
        _FOUR, weights={"replier": _REPLIER, "tool_caller": _TOOL_CALLER}, gate="helpful"
    ),
    "multi22": Rubric(
        _FOUR, weights={"replier": _REPLIER, "tool_caller": _TOOL_CALLER}, gate="helpful"
    ),
    "multi40_60": Rubric(
        _FOUR,
        weights={
            "replier": {"correctness": 0.4, "helpfulness": 0.6},
            "tool_caller": {"rule": 0.4, "tool_use": 0.6},
        },
        gate="helpful",
    ),
    "agent50_30_20": Rubric(
        ("outcome", "process", "efficiency"),
        weights={"host": {"outcome": 0.5, "process": 0.3, "efficiency": 0.2}},
        gate="outcome",
    ),
    "dialogue": Rubric(
        ("correctness", "helpfulness", "length", "efficiency", "guard"),
        weights={
            "replier": {"correctness": 0.4, "helpfulness": 0.3, "length": 0.1, "efficiency": 0.2}
        },
        gate="helpful",
        veto=("guard",),
    ),
}
"""Rubrics by name: one agent with four scores, two agents with two each, and others."""


def make_rubric(rubric: str) -> Rubric:
    """Return the preset of that name.

    Raises:
        ValueError: there is none.
    """
    if rubric not in PRESETS:
        known = ", ".join(f"`{name}`" for name in PRESETS)
        raise ValueError(f"`rubric` is {rubric!r}; use {known}.{did_you_mean(rubric, PRESETS)}")
    return PRESETS[rubric]
