"""Trajectories into training rows: each agent with its own tokens, reward and group advantage.

A row is kept or excluded for each (trajectory, agent, context). An excluded one stays in the list
with its reason and counts nowhere: the advantages of the others are what they would be without it.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Literal, TypeAlias

from livestream_env.advantages import Preset, is_flat
from livestream_env.agent_views import HOST, AgentViews
from livestream_env.errors import EmptyMaskError, PrefixMismatch, UnsupportedTemplate, did_you_mean
from livestream_env.estimators import Estimator, Members, find_estimator
from livestream_env.masking import REPLY, TOOL_CALLS
from livestream_env.policy_versions import checkpoint_name as checkpoint_name
from livestream_env.policy_versions import stamp_version as stamp_version
from livestream_env.policy_versions import versions_behind
from livestream_env.rewards import SILENT, Rubric, make_rubric, score_each, weighed_alike
from livestream_env.room_index import RoomIndex
from livestream_env.rooms import Room
from livestream_env.rows import TrainedTurn
from livestream_env.rows import TrainingRow as TrainingRow
from livestream_env.rows import split_rows as split_rows
from livestream_env.rows import to_step_rows as to_step_rows
from livestream_env.tokens import Masker, Renderer, Sample, TokenSequence
from livestream_env.types import Rewards, Score, Status, Trajectory

AGENTS: Mapping[str, Masker] = {"tool_caller": TOOL_CALLS, "replier": REPLY}
"""The two agents, each with its masker."""
Scorer = Callable[[Trajectory, Room | None], Rewards]
Version: TypeAlias = str | int


def training_rows(
    trajectories: Sequence[Trajectory],
    renderers: Renderer | Mapping[str, Renderer],
    *,
    agents: Mapping[str, Masker] = AGENTS,
    rubric: str | Scorer | None = "multi22",
    rooms: Iterable[Room] | None = None,
    advantages: str | Preset | Estimator | None = "verl",
    key: Literal["agent", "global"] = "agent",
    flat: Literal["keep", "exclude"] = "keep",
    current_version: Version | Mapping[str, Version] | None = None,
    max_staleness: int | None = None,
    mixed_versions: Literal["exclude", "oldest"] = "exclude",
) -> list[TrainingRow]:
    """Make the rows of each agent, in the order of trajectories, agents and contexts.

    A trajectory has one row for each context in which the agent sampled: one while every prompt
    extends the last, more where the template rewrites the past or the agent's own prompt is another
    tokenizer's. They share reward and advantage, and each sampled turn is in one of them.

    Args:
        renderers: one for all, or one for each agent, whose tokenizers may differ. Turns of agents
            with another renderer, and of partners, are shown from their text.
        agents: what is trained, and by which masker. A trajectory of one `host` may be trained as
            two agents, which its turns are told apart for by the masker; `host` on a trajectory of
            two agents trains both on the mean of their totals. Partners have no rows.
        rubric: a preset's name or `(trajectory, room) -> Rewards`; `None` takes the rewards that
            the trajectories have.
        rooms: where the rooms of the trajectories are found, with their keys; by default among the
            bundled and the generated ones.
        advantages: a preset of `advantages.PRESETS`, `gdpo`, `gigpo`, or a function of `Members`;
            `None` leaves them at 0, for a trainer that compares rewards itself.
        key: `agent` compares an agent with itself (Dr.MAS), `global` gives every agent the
            advantage of the trained agents' mean total.
        flat: whether groups whose rewards are equal for an agent are kept, with advantage 0, or
            excluded for that agent, as dynamic sampling does.
        current_version: the policy's version, for all or for each agent: a number, or a name that
            ends in one, as `Turn.policy_version` has it.
        max_staleness: rows that are more versions behind are excluded.
        mixed_versions: a row sampled by several versions is excluded, or counts as its oldest.

    Raises:
        TypeError: an argument of another kind, such as a tokenizer in place of its renderer.
        ValueError: an unknown name, an agent without renderer, a trajectory without the rewards or
            versions that are asked for.
    """
    _check_kinds(trajectories, agents)
    _check_options(key, flat, mixed_versions, current_version, max_staleness)
    estimator = None if advantages is None else find_estimator(advantages, key)
    named = _renderer_of_each(renderers, agents)
    members: list[_Member] = []
    for index, (trajectory, group, name) in enumerate(_named(trajectories)):
        views = AgentViews(trajectory, agents, named)
        for agent in agents:
            if agent not in trajectory.partners:
                member = _Member(index, trajectory, agent, group, name)
                _fill(member, views)
                members.append(member)
    _check_versions(members, current_version, max_staleness, mixed_versions)
    _score(members, rubric, rooms)
    _compare(members, estimator, flat)
    return [row for member in members for row in member.rows()]


def _check_kinds(trajectories: object, agents: object) -> None:
    if isinstance(trajectories, Trajectory):
        raise TypeError("`training_rows` got one trajectory; pass a list of them, a group at least")
    if not isinstance(agents, Mapping):
        raise TypeError(f"`agents` is {agents!r}; it maps the name of each agent to its masker")
    for agent, masker in agents.items():
        if not callable(masker):
            raise TypeError(
                f"`agents` has {masker!r} for `{agent}`; give a masker, such as `REPLY`"
            )


def _check_options(
    key: str, flat: str, mixed: str, current: object, max_staleness: int | None
) -> None:
    for name, given, known in (
        ("key", key, ("agent", "global")),
        ("flat", flat, ("keep", "exclude")),
        ("mixed_versions", mixed, ("exclude", "oldest")),
    ):
        if given not in known:
            raise ValueError(f"`{name}` is {given!r}; it is `{known[0]}` or `{known[1]}`")
    if (current is None) != (max_staleness is None):
        raise ValueError("`max_staleness` and `current_version` go together; give both or none")
    if max_staleness is not None and max_staleness < 0:
        raise ValueError(f"`max_staleness` is {max_staleness}; it is a number of versions from 0")


# --- what is compared -------------------------------------------------------------------------


@dataclass(slots=True)
class _Part:
    """One context of a member."""

    sequence: TokenSequence
    sample: Sample
    turns: tuple[TrainedTurn, ...]
    excluded: str | None = None


@dataclass(slots=True)
class _Member:
    """What one agent did in one trajectory."""

    index: int
    trajectory: Trajectory
    agent: str
    group: str
    name: str
    parts: list[_Part] = field(default_factory=list)
    excluded: str | None = None
    rewards: Rewards | None = None
    reward: float | None = None
    advantage: float | dict[int, float] | None = None
    """Of all trained tokens, or by turn."""

    @property
    def counts(self) -> bool:
        return self.excluded is None and any(part.excluded is None for part in self.parts)

    @property
    def turns(self) -> tuple[TrainedTurn, ...]:
        return tuple([turn for part in self.parts for turn in part.turns])

    @property
    def length(self) -> int:
        kept = [part.sample for part in self.parts if part.excluded is None]
        return sum(sum(sample.loss_mask) for sample in kept)

    def rows(self) -> list[TrainingRow]:
        row = TrainingRow(
            self.agent,
            self.group,
            self.name,
            self.index,
            reward=self.reward,
            excluded=self.excluded,
        )
        if not self.parts:
            return [row]
        return [self._row(row, part) for part in self.parts]

    def _row(self, row: TrainingRow, part: _Part) -> TrainingRow:
        excluded = part.excluded or self.excluded
        advantage = None if excluded else self._advantage(part)
        sample = replace(part.sample, reward=self.reward, advantage=advantage)
        return replace(
            row, sequence=part.sequence, sample=sample, turns=part.turns, excluded=excluded
        )

    def _advantage(self, part: _Part) -> float | tuple[float, ...] | None:
        if not isinstance(self.advantage, dict):
            return self.advantage
        values = [0.0] * len(part.sample.token_ids)
        for span in part.sequence.spans:
            if span.source.is_sampled and span.turn in self.advantage:
                for at in range(span.start, min(span.stop, len(values))):
                    values[at] = self.advantage[span.turn] * part.sample.loss_mask[at]
        return tuple(values)


def _named(trajectories: Sequence[Trajectory]) -> Iterable[tuple[Trajectory, str, str]]:
    """Yield each trajectory with its group and its own name."""
    seen: Counter[str] = Counter()
    for trajectory in trajectories:
        if not isinstance(trajectory, Trajectory):
            made = type(trajectory).__name__
            raise TypeError(f"`trajectories` holds a `{made}`; give one flat list of trajectories")
        comments = "+".join(trajectory.comment_ids)
        group = trajectory.group or f"{trajectory.room_id}:{comments}:{trajectory.seed}"
        yield trajectory, group, f"{group}#{seen[group]}"
        seen[group] += 1


# --- tokens -----------------------------------------------------------------------------------


def _renderer_of_each(
    renderers: Renderer | Mapping[str, Renderer], agents: Mapping[str, Masker]
) -> dict[str, Renderer]:
    if hasattr(renderers, "render"):
        return dict.fromkeys(agents, renderers)
    if not isinstance(renderers, Mapping):
        made = type(renderers).__name__
        raise TypeError(f"`renderers` is a `{made}`; give `ChatTemplateRenderer(tokenizer)`")
    for agent in agents:
        if agent not in renderers:
            raise ValueError(f"no renderer for agent `{agent}`.{did_you_mean(agent, renderers)}")
    return {agent: renderers[agent] for agent in agents}


def _fill(member: _Member, views: AgentViews) -> None:
    """Give a member its tokens, or the reason why it has none."""
    trajectory = member.trajectory
    if trajectory.status is Status.RUNNING:
        member.excluded = "running: the episode had not ended"
    elif trajectory.status is Status.ENV_ERROR:
        causes = [fault.detail for fault in trajectory.faults[-1:]]
        member.excluded = ": ".join(["env_error", *(causes or ["infrastructure failed"])])
    else:
        try:
            member.parts = [
                _Part(view.sequence, view.sample, _turns_of(trajectory, view.turns))
                for view in views.of(member.agent)
            ]
        except EmptyMaskError as error:
            member.excluded = f"empty_mask: {error}"
        except PrefixMismatch as error:
            member.excluded = f"prefix_mismatch: {error}"
        except UnsupportedTemplate as error:
            member.excluded = f"unsupported_template: {error}"


def _turns_of(trajectory: Trajectory, trained: Sequence[int]) -> tuple[TrainedTurn, ...]:
    made = []
    for at in trained:
        turn = trajectory.turns[at]
        made.append(TrainedTurn(at, turn.agent, turn.state_key, None, turn.policy_version))
    return tuple(made)


# --- versions ---------------------------------------------------------------------------------


def _check_versions(
    members: Sequence[_Member],
    current: Version | Mapping[str, Version] | None,
    most: int | None,
    mixed: Literal["exclude", "oldest"],
) -> None:
    """Exclude the contexts that several versions sampled, and those of versions too old."""
    for member in members:
        for part in member.parts:
            versions = {turn.policy_version for turn in part.turns}
            if len(versions) > 1 and mixed == "exclude":
                told = ", ".join(sorted(str(version) for version in versions))
                part.excluded = f"mixed_versions: sampled by {told}"
            elif current is not None and most is not None:
                behind = max(_behind(member, current, version) for version in versions)
                if behind > most:
                    part.excluded = f"stale: {behind} versions behind, {most} are allowed"


def _behind(member: _Member, current: Version | Mapping[str, Version], version: str | None) -> int:
    newest = current.get(member.agent) if isinstance(current, Mapping) else current
    if newest is None:
        raise ValueError(f"`current_version` names none of agent `{member.agent}`")
    if version is None:
        raise ValueError(
            f"a turn of `{member.agent}` in trajectory {member.index} has no `policy_version`, so"
            " nobody can tell whether it is stale; see `stamp_version`"
        )
    return versions_behind(newest, version)


# --- rewards ----------------------------------------------------------------------------------


def _score(
    members: Sequence[_Member], rubric: str | Scorer | None, rooms: Iterable[Room] | None
) -> None:
    """Give every member that counts its rewards, or exclude it with the reason."""
    counted = {member.index: member for member in members if member.counts}
    made, problems = _rewards(list(counted.values()), rubric, rooms)
    for member in members:
        member.rewards = made.get(member.index)
        if member.counts and member.rewards is not None:
            member.reward = member.rewards.total(member.agent)
            if member.reward is None:
                member.excluded = _unscored(member, problems.get(member.index, ""))


def _rewards(
    played: Sequence[_Member], rubric: str | Scorer | None, rooms: Iterable[Room] | None
) -> tuple[dict[int, Rewards], dict[int, str]]:
    """Return the rewards by the trajectory's index, and why rooms are missing."""
    if rubric is None:
        for member in played:
            if member.trajectory.rewards is None:
                raise ValueError(
                    f"trajectory {member.index} has no rewards; score it first, or name a `rubric`"
                )
        return {m.index: m.trajectory.rewards or Rewards() for m in played}, {}
    scorer: Scorer = make_rubric(rubric) if isinstance(rubric, str) else rubric
    index = RoomIndex(rooms)
    found = {m.index: index.find(m.trajectory.room_id, m.trajectory.content_hash) for m in played}
    scored = score_each(scorer, [(m.trajectory, found[m.index][0]) for m in played])
    made = dict(zip(found, scored, strict=True))
    if isinstance(scorer, Rubric) and scorer.group_hooks:
        for group in _by(played, lambda member: member.group).values():
            before = [made[m.index] for m in group]
            room = found[group[0].index][0]
            after = scorer.with_group_scores(before, [m.trajectory for m in group], room)
            made |= {m.index: one for m, one in zip(group, after, strict=True)}
    return made, {index: problem for index, (_, problem) in found.items()}


def _scores_of(rewards: Rewards, agent: str) -> list[Score]:
    return [score for score in rewards.scores if agent in (HOST, score.agent)]


def _unscored(member: _Member, problem: str) -> str:
    """Return why an agent has no total."""
    scores = _scores_of(member.rewards or Rewards(), member.agent)
    absent = [s for s in scores if s.turn is None and s.value is None]
    if not absent:
        return f"unscored: the rubric says nothing of `{member.agent}`"
    score = next((s for s in absent if s.cause not in SILENT), absent[0])
    why = "; ".join(filter(None, (score.reason, problem)))
    return f"{score.cause or 'unscored'}: `{score.name}` has no value{': ' if why else ''}{why}"


# --- advantages -------------------------------------------------------------------------------


def _compare(
    members: Sequence[_Member], estimator: Estimator | None, flat: Literal["keep", "exclude"]
) -> None:
    """Give every member that counts its advantage, or exclude it with the reason."""
    for group in _by(members, lambda member: (member.agent, member.group)).values():
        _weigh_alike(group)
        counted = [member for member in group if member.counts]
        if len(counted) == 1 and len(group) > 1:
            counted[0].excluded = f"lone: the {len(group) - 1} others of its group are excluded"
        elif flat == "exclude" and counted and is_flat([m.reward for m in counted]).all():
            for member in counted:
                member.excluded = "flat: all rewards of its group are equal"
    if estimator is None:
        for member in members:
            member.advantage = 0.0 if member.counts else None
        return
    totals = {(m.index, m.agent): m.reward for m in members if m.counts}
    names = list(dict.fromkeys(member.agent for member in members))
    for agent, own in _by(members, lambda member: member.agent).items():
        counted = [member for member in own if member.counts]
        if counted:
            by_agent = {
                name: tuple([totals.get((m.index, name)) for m in counted]) for name in names
            }
            _take(counted, estimator(_members(agent, counted, by_agent)))


def _weigh_alike(group: Sequence[_Member]) -> None:
    """Let the scores weigh that all members that count have."""
    counted = [member for member in group if member.counts]
    alike = weighed_alike([member.rewards or Rewards() for member in counted])
    for member, rewards in zip(counted, alike, strict=True):
        member.rewards = rewards
        member.reward = rewards.total(member.agent)
        if member.reward is None:
            member.excluded = "unscored: no score is known of every member of its group"
        else:
            _reward_turns(member)


def _reward_turns(member: _Member) -> None:
    """Give each trained turn its own scores, and the last one the total."""
    scores = _scores_of(member.rewards or Rewards(), member.agent)
    last = max(turn.turn for turn in member.turns)
    for part in member.parts:
        made = []
        for turn in part.turns:
            reward = _turn_reward([score for score in scores if score.turn == turn.turn])
            if reward is not None and turn.turn == last:
                reward += member.reward or 0.0
            made.append(replace(turn, reward=reward))
        part.turns = tuple(made)


def _turn_reward(scores: Sequence[Score]) -> float | None:
    """Return the weighed sum of a turn's scores; `None` where a judge gave no verdict."""
    if any(score.value is None and score.cause not in SILENT for score in scores):
        return None
    return sum(score.weight * score.value for score in scores if score.value is not None)


def _members(
    agent: str, counted: Sequence[_Member], totals: Mapping[str, tuple[float | None, ...]]
) -> Members:
    rows = [
        {_name_of(s, agent): s for s in _scores_of(m.rewards or Rewards(), agent) if _weighs(s)}
        for m in counted
    ]
    names = dict.fromkeys(name for row in rows for name in row)
    return Members(
        agent,
        tuple([member.group for member in counted]),
        tuple([member.reward or 0.0 for member in counted]),
        totals,
        {name: tuple([row[name].value if name in row else None for row in rows]) for name in names},
        {name: _weight(name, rows) for name in names},
        tuple([member.turns for member in counted]),
        tuple([member.length for member in counted]),
        tuple([member.trajectory for member in counted]),
    )


def _weighs(score: Score) -> bool:
    return score.turn is None and score.weight != 0


def _name_of(score: Score, agent: str) -> str:
    return f"{score.agent}/{score.name}" if agent == HOST else score.name


def _weight(name: str, rows: Sequence[Mapping[str, Score]]) -> float:
    weights = {row[name].weight for row in rows if name in row}
    if len(weights) > 1:
        raise ValueError(f"score `{name}` weighs {sorted(weights)}; score all with one rubric")
    return weights.pop()


def _take(counted: Sequence[_Member], made: Any) -> None:
    """Take what an estimator returned.

    Raises:
        ValueError: not one advantage for each member, or for each of its trained turns.
    """
    if len(made) != len(counted):
        raise ValueError(f"got advantages of {len(made)} members; there are {len(counted)}")
    for member, value in zip(counted, made, strict=True):
        if not hasattr(value, "__len__"):
            member.advantage = float(value)
            is_known = member.advantage == member.advantage
        else:
            if len(value) != len(member.turns):
                raise ValueError(
                    f"got {len(value)} advantages for the {len(member.turns)} trained turns of"
                    f" `{member.agent}` in trajectory {member.index}"
                )
            pairs = zip(member.turns, map(float, value), strict=True)
            member.advantage = {turn.turn: one for turn, one in pairs}
            is_known = all(one == one for one in member.advantage.values())
        if not is_known:
            member.excluded = "no_advantage: the estimator gave none"


def _by(members: Iterable[_Member], key: Callable[[_Member], Any]) -> dict[Any, list[_Member]]:
    made: dict[Any, list[_Member]] = defaultdict(list)
    for member in members:
        made[key(member)].append(member)
    return made
