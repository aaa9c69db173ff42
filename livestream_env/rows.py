"""Rows of tokens as trainers take them; what splits them among workers and joins them.

A row holds what one agent sampled in one growing context, with that agent's own reward and
advantage. Whoever trains two agents on one trajectory gets a row for each; the masks of the two
never overlap.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from livestream_env.errors import did_you_mean
from livestream_env.tokens import Response, Sample, Shifted, TokenSequence


@dataclass(frozen=True, slots=True)
class TrainedTurn:
    """A turn of which a row trains tokens."""

    turn: int
    """Index into `Trajectory.turns`."""
    agent: str
    """Who took it."""
    state_key: str
    """Key of the situation that it was chosen in."""
    reward: float | None = None
    """The agent's scores of this turn, and with its last trained turn its total; `None` where the
    total is missing."""
    policy_version: str | None = None


@dataclass(frozen=True, slots=True)
class TrainingRow:
    """What one agent sampled in one context of one trajectory, or why it is not trained."""

    agent: str
    group_id: str
    trajectory_id: str
    """Unique among the rows of one call: the group, `#`, and which member of it this is."""
    index: int
    """Position of the trajectory among those given."""
    sequence: TokenSequence | None = None
    """The context and what was sampled; turns of other agents are context. `None` where nothing
    could be rendered."""
    sample: Sample | None = None
    """What the masker kept, with reward and advantage; `None` where it trains nothing."""
    turns: tuple[TrainedTurn, ...] = ()
    """The trained turns."""
    reward: float | None = None
    """The agent's total; `None` where it is missing, and in rows of several agents."""
    excluded: str | None = None
    """`None`, or why the row must not be trained, as `cause: detail`. Causes are `running`,
    `env_error`, `empty_mask`, `prefix_mismatch`, `unsupported_template`, `mixed_versions`, `stale`,
    `unscored`, those of a missing score (`judge_error`, `no_truth`, ...), `lone`, `flat` and
    `no_advantage`."""

    @property
    def token_ids(self) -> tuple[int, ...]:
        """Ids, shape (T,)."""
        return self.full().token_ids

    @property
    def loss_mask(self) -> tuple[int, ...]:
        """1 where the token is trained, shape (T,)."""
        return self.full().loss_mask

    @property
    def logprobs(self) -> tuple[float, ...] | None:
        """Log-probabilities that the policy sampled with, shape (T,)."""
        return self.full().logprobs

    @property
    def advantage(self) -> float | tuple[float, ...] | None:
        """One for all trained tokens, one a token (shape (T,)), or `None` in an excluded row."""
        return None if self.sample is None else self.sample.advantage

    @property
    def advantages(self) -> tuple[float, ...]:
        """The advantage of each token, shape (T,); 0.0 where none is trained."""
        sample = self.full()
        if sample.advantage is None:
            raise ValueError(f"the row has no advantage; it is excluded ({self.excluded})")
        if isinstance(sample.advantage, tuple):
            return sample.advantage
        return tuple([sample.advantage * bit for bit in sample.loss_mask])

    @property
    def policy_version(self) -> str | None:
        """The version that sampled all trained turns; `None` where it is not known, or not one."""
        versions = {turn.policy_version for turn in self.turns}
        return versions.pop() if len(versions) == 1 else None

    # --- layouts ------------------------------------------------------------------------------

    def full(self) -> Sample:
        """Return prompt and all, as AReaL, ROLL and ART take it.

        Raises:
            ValueError: the row has no tokens; `excluded` says why.
        """
        if self.sample is None:
            raise ValueError(f"the row has no tokens; it is excluded ({self.excluded})")
        return self.sample

    def response_only(self) -> Response:
        """Return what follows the first prompt, as verl, SkyRL and slime take it."""
        return self._whole().response_only(self._masked)

    def shifted(self) -> Shifted:
        """Return the next-token form, as OpenRLHF takes it."""
        return self._whole().shifted(self._masked)

    def action_ranges(self) -> tuple[tuple[int, int], ...]:
        """Return (start, stop) of each trained stretch of a turn."""
        return self._whole().action_ranges(self._masked)

    def rows_per_turn(self) -> tuple[Response, ...]:
        """Return a row a trained turn, all before it as its prompt, as rLLM takes it."""
        return self._whole().rows_per_turn(self._masked)

    def per_token_rewards(self) -> tuple[float, ...]:
        """Return rewards of shape (T,), each trained turn's on its last token, as for SkyRL."""
        rewards = {turn.turn: turn.reward for turn in self.turns}
        return self._whole().per_token_rewards(rewards, self._masked)

    def to_roll(self) -> list[dict[str, Any]]:
        """Return a dict a trained turn, with the names and lengths of ROLL's step batches.

        ROLL normalises over `traj_group_id` and sums returns over `traj_id` in the order of `step`:
        both name the agent, so that each agent is compared with itself.

        Raises:
            ValueError: the row is excluded, or of several agents.
        """
        if self.excluded is not None or self.reward is None:
            why = self.excluded or f"it is of {self.agent}, and each has its own reward"
            raise ValueError(f"the row has no reward to give to ROLL: {why}")
        told = {turn.turn: turn for turn in self.turns}
        return [self._roll_step(row, told[row.turn or 0]) for row in self.rows_per_turn()]

    def _roll_step(self, row: Response, turn: TrainedTurn) -> dict[str, Any]:
        before, after = len(row.prompt_ids), len(row.response_ids)
        length = before + after
        logprobs = None if row.logprobs is None else ([0.0] * before + [*row.logprobs])[1:]
        return {
            "input_ids": [*row.prompt_ids, *row.response_ids],
            "attention_mask": [1] * length,
            "position_ids": list(range(length)),
            "response_mask": [0] * before + [*row.loss_mask],
            "prompt_mask": [1] * before + [0] * after,
            "scores": [0.0] * (length - 1) + [turn.reward],
            "infer_logprobs": logprobs,
            "traj_group_id": f"{self.group_id}/{self.agent}",
            "traj_id": f"{self.trajectory_id}/{self.agent}",
            "step": turn.turn,
            "state_hash": turn.state_key,
            "step_scores": turn.reward,
            "episode_scores": self.reward,
        }

    def _whole(self) -> TokenSequence:
        self.full()
        assert self.sequence is not None
        return self.sequence

    def _masked(self, _: TokenSequence) -> Sample:
        return self.full()


# --- shared weights ---------------------------------------------------------------------------


def to_step_rows(rows: Iterable[TrainingRow]) -> list[TrainingRow]:
    """Join what agents on shared weights trained in one context: the step-reward form.

    The rows of two agents become one, whose tokens have the advantage of the agent that sampled
    them: one pass over the tokens instead of two, and, where losses of tokens are added, the
    gradient of both. Excluded rows are left out.
    """
    joined: dict[tuple[str, tuple[int, ...]], TrainingRow] = {}
    for row in rows:
        if row.excluded is None:
            context = (row.trajectory_id, row._whole().token_ids)
            known = joined.get(context)
            joined[context] = row if known is None else _joined(known, row)
    return list(joined.values())


def _joined(row: TrainingRow, other: TrainingRow) -> TrainingRow:
    samples = [row.full(), other.full()]
    longest = max(samples, key=lambda sample: len(sample.token_ids))
    length = len(longest.token_ids)
    masks = [_padded(sample.loss_mask, length, 0) for sample in samples]
    if any(a and b for a, b in zip(*masks, strict=True)):
        raise ValueError(
            f"`{row.agent}` and `{other.agent}` train the same tokens of `{row.trajectory_id}`;"
            " rows that are joined train different ones"
        )
    advantages = [_padded(one.advantages, length, 0.0) for one in (row, other)]
    sample = Sample(
        longest.token_ids,
        tuple([a | b for a, b in zip(*masks, strict=True)]),
        _logprobs(samples, masks),
        tuple([sum(pair) for pair in zip(*advantages, strict=True)]),
        exact=all(one.exact for one in samples),
    )
    turns = sorted((*row.turns, *other.turns), key=lambda turn: turn.turn)
    return replace(
        row,
        agent=f"{row.agent}+{other.agent}",
        sequence=_with_all_sampled(row._whole(), other._whole()),
        sample=sample,
        turns=tuple(turns),
        reward=None,
    )


def _padded(values: Sequence[Any], length: int, filler: float) -> list[Any]:
    return [*values, *[filler] * (length - len(values))]


def _logprobs(samples: Sequence[Sample], masks: Sequence[list[int]]) -> tuple[float, ...] | None:
    """Return each token's log-probability from the sample that trains it."""
    logprobs = [0.0] * len(masks[0])
    for sample, mask in zip(samples, masks, strict=True):
        if sample.logprobs is None:
            return None
        for at, bit in enumerate(mask):
            if bit:
                logprobs[at] = sample.logprobs[at]
    return tuple(logprobs)


def _with_all_sampled(sequence: TokenSequence, other: TokenSequence) -> TokenSequence:
    """Return the sequence with the spans that either of the two counts as sampled."""
    pairs = zip(sequence.spans, other.spans, strict=True)
    return replace(sequence, spans=tuple([b if b.source.is_sampled else a for a, b in pairs]))


# --- several sets of weights ------------------------------------------------------------------


def split_rows(
    rows: Iterable[TrainingRow], clusters: Mapping[str, str]
) -> dict[str, list[TrainingRow]]:
    """Return the rows that each cluster trains; excluded ones are left out.

    Args:
        clusters: the cluster that trains each agent; two agents may share one.

    Raises:
        ValueError: an agent belongs to no cluster.
    """
    split: dict[str, list[TrainingRow]] = {cluster: [] for cluster in clusters.values()}
    for row in rows:
        if row.agent not in clusters:
            hint = did_you_mean(row.agent, clusters)
            raise ValueError(f"agent `{row.agent}` belongs to no cluster in `clusters`.{hint}")
        if row.excluded is None:
            split[clusters[row.agent]].append(row)
    return split
