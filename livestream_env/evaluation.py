"""How well agents do on the comments of rooms: played, scored, and told with its uncertainty.

An episode that infrastructure failed, and one that a judge gave no verdict on, is counted and
shown apart: it is in no mean, and never 0.
"""

from __future__ import annotations

import queue
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from typing import Any

from livestream_env.drivers import Agent, Seed, rollout
from livestream_env.env import LiveRoomEnv
from livestream_env.evidence import Reading
from livestream_env.measures import Interval, bootstrap_interval, pass_power
from livestream_env.reflection import Recovery, recoveries
from livestream_env.rewards import Rubric, correctness, make_rubric, score_all
from livestream_env.rooms import Comment, Room
from livestream_env.types import Action, Observation, Rewards, Status, Trajectory

Scorer = Callable[[Trajectory, Room | None], Rewards]
SUCCESS = 0.8
"""Least total of an episode that passes."""
OFTEN = 0.5
"""Share of replies that abstain from which a host is told to dodge."""
TOTAL = "total"
NOTHING_MISSED = Recovery(0, 0)
BLACK_BOX = Rubric((correctness("room"),), weights={"replier": {"correctness": 1.0}})
"""For hosts whose look-ups are not known: what the reply states, against the whole room."""


class RecordedAgent:
    """The host of that night, as a black box: it says what was answered, and looks nothing up."""

    def __init__(self, room: Room) -> None:
        self.room = room

    def start(self, observation: Observation, *, seed: Seed | None) -> _Recorded:
        """Return the agent of one episode; comments that were not answered are skipped."""
        return _Recorded([self.room.comment(one.comment_id) for one in observation.comments])

    def act(self, messages: Any, tools: Any) -> Action:
        """Refuse: the agent of an episode is made by `start`."""
        raise RuntimeError("call `start(observation, seed=...)` first; `rollout` does")


class _Recorded:
    def __init__(self, comments: Sequence[Comment]) -> None:
        self._comments = comments

    def act(self, messages: Any, tools: Any) -> Action:
        replies = {c.comment_id: c.recorded_reply for c in self._comments if c.recorded_reply}
        if not replies:
            return Action.skip()
        skipped = tuple(c.comment_id for c in self._comments if c.comment_id not in replies)
        said = "\n".join(reply.text for reply in replies.values())
        channel = next(iter(replies.values())).channel
        return replace(Action.reply(said, channel=channel), skips=skipped)


def recorded_seeds(env: LiveRoomEnv, seeds: Iterable[int]) -> list[int]:
    """Return the seeds whose comments, one at least, were answered that night."""
    kept = []
    for seed in seeds:
        env.reset(seed=seed)
        assert env.room is not None
        comments = map(env.room.comment, env.trajectory.comment_ids)
        kept += [seed] if any(comment.recorded_reply for comment in comments) else []
    return kept


# --- results ----------------------------------------------------------------------------------


def value_of(trajectory: Trajectory, name: str = TOTAL) -> float | None:
    """Return a total of a trajectory (`total`, or an agent's name), or the score of a hook.

    A failed episode has none.
    """
    rewards = trajectory.rewards
    if rewards is None or trajectory.status is Status.ENV_ERROR:
        return None
    if name == TOTAL:
        return rewards.total()
    own = [score for score in rewards.scores if score.name == name and score.turn is None]
    return own[0].value if own else rewards.total(name)


@dataclass(frozen=True, slots=True)
class Result:
    """What one episode came to."""

    room_id: str
    comment_ids: tuple[str, ...]
    seed: int
    repeat: int
    trajectory: Trajectory
    """With its rewards and group."""
    intents: tuple[str, ...] = ()
    level: str = ""
    """Of a comment of a generated room."""
    abstains: bool | None = None
    """Whether the reply says that it cannot tell; `None` without a reply."""
    look_ups: int = 0
    recovery: Recovery = NOTHING_MISSED

    @property
    def task(self) -> tuple[str, tuple[str, ...], int]:
        """What was asked: episodes of one task are alike but for the agent's draws."""
        return self.room_id, self.comment_ids, self.seed

    @property
    def is_failed(self) -> bool:
        """Whether infrastructure failed."""
        return self.trajectory.status is Status.ENV_ERROR

    def value(self, name: str = TOTAL) -> float | None:
        """Return a total (`total`, or an agent's name), or the score of a hook."""
        return value_of(self.trajectory, name)


@dataclass(frozen=True, slots=True)
class Evaluation:
    """What the episodes of one agent came to."""

    agent: str
    rubric: str
    results: tuple[Result, ...]
    success: float = SUCCESS

    def mean(self, name: str = TOTAL) -> float | None:
        """Return the mean of a total or hook over the episodes that have it."""
        return _mean(value for value, _ in self._known(name))

    def interval(self, name: str = TOTAL) -> Interval | None:
        """Return the 95 % bootstrap interval of the mean, whole tasks drawn at a time."""
        known = self._known(name)
        return bootstrap_interval([v for v, _ in known], [r.task for _, r in known])

    def _known(self, name: str) -> list[tuple[float, Result]]:
        return [(v, result) for result in self.results if (v := result.value(name)) is not None]

    @property
    def names(self) -> tuple[str, ...]:
        """The agents that were scored, then the hooks."""
        scores = [s for r in self.results for s in _episode_scores(r)]
        agents = dict.fromkeys(score.agent for score in scores)
        return (*agents, *dict.fromkeys(score.name for score in scores))

    @property
    def pass_powers(self) -> dict[int, float]:
        """pass^k of every k up to the fewest tries of a task: the mean over the tasks.

        A task of which some episodes have no total counts with those that have one.
        """
        totals: dict[Any, list[float]] = {}
        for value, result in self._known(TOTAL):
            totals.setdefault(result.task, []).append(value)
        counts = [(sum(v >= self.success - 1e-9 for v in t), len(t)) for t in totals.values()]
        fewest = min((n for _, n in counts), default=0)
        powers = range(1, fewest + 1)
        return {k: sum(pass_power(c, n, k) for c, n in counts) / len(counts) for k in powers}

    @property
    def by_intent(self) -> dict[str, tuple[float, int]]:
        """(mean total, episodes) of each intent; one of several questions counts for each."""
        return self._by(lambda result: result.intents)

    @property
    def by_level(self) -> dict[str, tuple[float, int]]:
        """(mean total, episodes) of each level of generated comments."""
        return self._by(lambda result: (result.level,) if result.level else ())

    def _by(self, keys: Callable[[Result], Iterable[str]]) -> dict[str, tuple[float, int]]:
        found: dict[str, list[float]] = {}
        for value, result in self._known(TOTAL):
            for key in dict.fromkeys(keys(result)):
                found.setdefault(key, []).append(value)
        return {key: (sum(v) / len(v), len(v)) for key, v in sorted(found.items())}

    @property
    def failures(self) -> dict[str, int]:
        """Episodes without a total, by cause: `env_error`, or why a score is missing."""
        causes = [_cause(result) for result in self.results if result.value() is None]
        return dict(Counter(causes).most_common())

    @property
    def missing(self) -> dict[str, dict[str, int]]:
        """Scores without a value: {hook: {cause: episodes}}."""
        found: dict[str, Counter[str]] = {}
        for result in self.results:
            for score in _episode_scores(result):
                if score.value is None:
                    found.setdefault(score.name, Counter())[score.cause or "no value"] += 1
        return {name: dict(counts) for name, counts in found.items()}

    @property
    def abstain_rate(self) -> float | None:
        """The share of replies that say they cannot tell."""
        return _mean(r.abstains for r in self.results if r.abstains is not None)

    @property
    def recovery(self) -> Recovery:
        """Missed look-ups of all episodes, and those made good."""
        counts = [result.recovery for result in self.results]
        return Recovery(sum(c.recovered for c in counts), sum(c.missed for c in counts))

    @property
    def look_ups_each(self) -> float | None:
        """Tool calls an episode that infrastructure did not fail."""
        return _mean(r.look_ups for r in self.results if not r.is_failed)

    @property
    def trajectories(self) -> list[Trajectory]:
        """The episodes, with rewards and groups."""
        return [result.trajectory for result in self.results]

    @property
    def warnings(self) -> list[str]:
        """What the mean alone does not say, one line each."""
        said = []
        dodges = self.abstain_rate
        if dodges is not None and dodges > OFTEN:
            said.append(f"{self.agent} dodges: {dodges:.0%} of its replies say they cannot tell")
        if self.failures:
            causes = ", ".join(f"{count} {cause}" for cause, count in self.failures.items())
            said.append(f"{self.agent}: episodes without a total, in no mean: {causes}")
        return said

    def summary(self) -> dict[str, Any]:
        """Return all of it as JSON values."""
        means = {name: self.mean(name) for name in (TOTAL, *self.names)}
        intervals = {name: self.interval(name) for name in means}
        return {
            "agent": self.agent,
            "rubric": self.rubric,
            "episodes": len(self.results),
            "scored": len(self._known(TOTAL)),
            "means": means,
            "intervals": {k: None if i is None else list(i) for k, i in intervals.items()},
            "success_from": self.success,
            "pass_powers": {str(k): value for k, value in self.pass_powers.items()},
            "by_intent": {k: {"mean": m, "episodes": n} for k, (m, n) in self.by_intent.items()},
            "by_level": {k: {"mean": m, "episodes": n} for k, (m, n) in self.by_level.items()},
            "failures": self.failures,
            "missing": self.missing,
            "abstain_rate": self.abstain_rate,
            "recovery": {**self.recovery._asdict(), "rate": self.recovery.rate},
            "look_ups_each": self.look_ups_each,
            "warnings": self.warnings,
        }


def _episode_scores(result: Result) -> list[Any]:
    rewards = result.trajectory.rewards
    return [s for s in rewards.scores if s.turn is None] if rewards is not None else []


def _cause(result: Result) -> str:
    if result.is_failed:
        return "env_error"
    causes = [s.cause for s in _episode_scores(result) if s.value is None and s.cause]
    told = [cause for cause in causes if cause not in ("no_truth", "not_applicable")]
    return str((told or causes or ["not scored"])[0])


def _mean(values: Iterable[float]) -> float | None:
    known = list(values)
    return sum(known) / len(known) if known else None


# --- playing ----------------------------------------------------------------------------------


def evaluate(
    source: str | Room | Callable[[], LiveRoomEnv],
    agent: Agent | Callable[[Room], Agent],
    *,
    repeat: int = 1,
    seeds: Sequence[int] | None = None,
    rubric: str | Scorer = "single4",
    workers: int = 1,
    rubric_name: str | None = None,
    name: str | None = None,
    success: float = SUCCESS,
    tell: Callable[[Result], None] | None = None,
) -> Evaluation:
    """Play every comment `repeat` times and score what was played.

    Equal arguments give equal results, whatever the number of workers.

    Args:
        source: rooms as `gym.make`'s `room=` names them, or what makes an environment.
        agent: an agent, or what makes the agent of a room, such as `ScriptedAgent`.
        repeat: episodes of each seed; the agent of the i-th is seeded with (seed, i).
        seeds: of the environment; by default each comment once.
        rubric_name: what the table and `Trajectory.versions` call a rubric given as an object.
        workers: threads, each with an environment of its own.
        name: what the tables call the agent; by default its class.
        success: least total of an episode that passes, for `pass_powers`.
        tell: is called with each result as it is there, in no order.

    Raises:
        ValueError: `repeat` or `workers` is below 1, or no rubric has that name.
    """
    for what, count in (("repeat", repeat), ("workers", workers)):
        if count < 1:
            raise ValueError(f"`{what}` is {count}; it is a whole number from 1")
    scorer = make_rubric(rubric) if isinstance(rubric, str) else rubric
    scored_by = rubric_name or _named(rubric)
    make_env = source if callable(source) else lambda: LiveRoomEnv(source, rubric=None)
    first = make_env()
    tasks = [
        (s, i) for s in (range(first.tasks) if seeds is None else seeds) for i in range(repeat)
    ]
    envs: queue.SimpleQueue[LiveRoomEnv] = queue.SimpleQueue()
    envs.put(first)
    for _ in range(1, min(workers, len(tasks))):
        envs.put(make_env())

    def played(task: tuple[int, int]) -> Result:
        env = envs.get()
        try:
            result = _played(env, agent, task, scorer, scored_by)
        finally:
            envs.put(env)
        if tell is not None:
            tell(result)
        return result

    if workers == 1:
        results = list(map(played, tasks))
    else:
        with ThreadPoolExecutor(workers) as pool:
            results = list(pool.map(played, tasks))
    return Evaluation(name or _name_of(agent), scored_by, tuple(results), success)


def _played(
    env: LiveRoomEnv, agent: Any, task: tuple[int, int], scorer: Scorer, rubric: str
) -> Result:
    seed, repeat = task
    trajectory = rollout(env, agent, seed=seed, agent_seed=task)
    room = env.room if trajectory.prompts else None
    group = f"{trajectory.room_id}:{'+'.join(trajectory.comment_ids)}:{seed}"
    rewards = score_all(scorer, [trajectory], room)[0] if trajectory.prompts else Rewards()
    judges = scorer.versions if isinstance(scorer, Rubric) else {}
    versions = {**trajectory.versions, **judges, "rubric": rubric}
    update = {"group": group, "rewards": rewards, "versions": versions}
    made = Result(
        trajectory.room_id,
        trajectory.comment_ids,
        seed,
        repeat,
        trajectory.model_copy(update=update),
        look_ups=sum(len(turn.action.message.tool_calls) for turn in trajectory.turns),
    )
    return made if room is None else replace(made, **_of_key(trajectory, room))


def _of_key(trajectory: Trajectory, room: Room) -> Mapping[str, Any]:
    """Return what the room tells about an episode beside its score."""
    keys = [room.comment(one).expected for one in trajectory.comment_ids]
    asks = [ask for key in keys if key is not None for ask in key.asks]
    parts = [part for key in keys if key is not None for part in key.provenance.split(";")]
    levels = [part[6:] for part in parts if part.startswith("level=")]
    return {
        "intents": tuple(dict.fromkeys(ask.intent for ask in asks)),
        "level": max(levels, default=""),
        "abstains": Reading(trajectory, room).abstains,
        "recovery": recoveries(trajectory, room),
    }


def _named(rubric: Any) -> str:
    return rubric if isinstance(rubric, str) else _name_of(rubric)


def _name_of(given: Any) -> str:
    return str(getattr(given, "__name__", None) or type(given).__name__)


# --- tables -----------------------------------------------------------------------------------


def comparison(evaluations: Sequence[Evaluation]) -> tuple[list[str], list[list[str]]]:
    """Return the table of several agents on one rubric, as header and rows of text.

    Raises:
        ValueError: they were scored by different rubrics.
    """
    rubrics = {one.rubric for one in evaluations}
    if len(rubrics) > 1:
        raise ValueError(f"got evaluations by {', '.join(sorted(rubrics))}; compare by one rubric")
    names = list(dict.fromkeys(name for one in evaluations for name in one.names))
    most = max((max(one.pass_powers, default=1) for one in evaluations), default=1)
    header = ["agent", "episodes", "failed", TOTAL, "95 %", *names, "pass^1"]
    header += [f"pass^{most}"] if most > 1 else []
    header += ["abstain", "recovery", "calls"]
    return header, [_row(one, names, most) for one in evaluations]


def _row(one: Evaluation, names: Sequence[str], most: int) -> list[str]:
    interval = one.interval()
    powers = [one.pass_powers.get(k) for k in ((1,) if most == 1 else (1, most))]
    numbers = [one.mean(name) for name in names] + powers + [one.abstain_rate, one.recovery.rate]
    bounds = "-" if interval is None else f"{interval.low:.3f}-{interval.high:.3f}"
    failed = sum(one.failures.values())
    counts = [one.agent, str(len(one.results)), str(failed), shown(one.mean()), bounds]
    each = one.look_ups_each
    return [*counts, *map(shown, numbers), "-" if each is None else f"{each:.1f}"]


def shown(number: float | None) -> str:
    """Write a number of a table, `-` where it is not known."""
    return "-" if number is None else f"{number:.3f}"


def markdown(header: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """Write a table in Markdown."""
    lines = [header, ["---"] * len(header), *rows]
    cells = ([cell.replace("|", "\\|").replace("\n", " ") for cell in line] for line in lines)
    return "".join(f"| {' | '.join(line)} |\n" for line in cells)
