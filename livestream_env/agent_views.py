"""One trajectory as the tokens of each agent: its own turns sampled, all else context.

Agents may have their own tokenizers: what another renderer's agent sampled is shown from its text.
Nobody's logprobs are missing because somebody else's are.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from livestream_env.errors import EmptyMaskError
from livestream_env.tokens import Masker, Renderer, Sample, Source, TokenSequence, masked
from livestream_env.types import Trajectory

HOST = "host"


@dataclass(frozen=True, slots=True)
class AgentView:
    """One context in which an agent sampled what is trained."""

    sequence: TokenSequence
    """With the turns of others as context."""
    sample: Sample
    turns: tuple[int, ...]
    """The trained turns."""


class AgentViews:
    """A trajectory as each of its trained agents sees it; renders once for those that share.

    Raises:
        ValueError: the ids of one host are given to several renderers.
    """

    def __init__(
        self,
        trajectory: Trajectory,
        agents: Mapping[str, Masker],
        renderers: Mapping[str, Renderer],
    ) -> None:
        self.trajectory = trajectory
        self.agents = agents
        self.renderers = renderers
        self._rendered: dict[tuple[int, frozenset[str]], list[TokenSequence]] = {}
        self._acting = {turn.agent for turn in trajectory.turns}
        self._check_renderers()

    def of(self, agent: str) -> list[AgentView]:
        """Return the contexts in which an agent sampled what its masker trains.

        Raises:
            EmptyMaskError: there is none.
            TypeError, ValueError: what a masker gave is no sample of the sequence.
            PrefixMismatch, UnsupportedTemplate: the template cannot show the trajectory.
        """
        own = self._own(agent)
        turns = {i for i, turn in enumerate(self.trajectory.turns) if turn.agent in own}
        if not turns:
            raise EmptyMaskError(f"`{agent}` took no turn")
        views: list[AgentView] = []
        problem = EmptyMaskError(f"the masker of `{agent}` trains no token")
        for sequence in self._sequences(agent, own):
            seen = _with_context(sequence, turns)
            try:
                sample = masked(seen, self.agents[agent])
            except EmptyMaskError as error:
                problem = error
                continue
            if trained := _trained_turns(seen, sample):
                made = _with_own_record(seen, sample, trained, self.trajectory)
                views.append(AgentView(seen, made, trained))
        if not views:
            raise problem
        return views

    def _own(self, agent: str) -> set[str]:
        """Return whose turns are the agent's: its own, those of all, or those of the one host."""
        if agent in self.trajectory.prompts or agent in self._acting:
            return {agent}
        if agent == HOST:
            return self._acting - set(self.trajectory.partners)
        return self._acting & {HOST}

    def _check_renderers(self) -> None:
        used = {id(self.renderers[agent]) for agent in self.agents if self._own(agent) == {HOST}}
        actions = [turn.action for turn in self.trajectory.turns if turn.agent == HOST]
        if len(used) > 1 and any(action.token_ids is not None for action in actions):
            raise ValueError(
                "a trajectory of one host holds the ids of one tokenizer; train it with one"
                " renderer, or leave its ids out"
            )

    def _sequences(self, agent: str, own: set[str]) -> list[TokenSequence]:
        """Render the turns of all trained agents that share the renderer; the rest is prompts."""
        renderer = self.renderers[agent]
        partners = self.trajectory.partners
        sharing = {n for n in self._acting if self.renderers.get(n) is renderer} - set(partners)
        key = id(renderer), frozenset(sharing | own)
        if key not in self._rendered:
            self._rendered[key] = renderer.render(self.trajectory, key[1])
        return self._rendered[key]


def _with_context(sequence: TokenSequence, own: set[int]) -> TokenSequence:
    """Return the sequence with the turns of others as context, which no masker can train."""
    if own.issuperset(sequence.turns):
        return sequence
    spans = [
        replace(span, source=Source.PROMPT)
        if span.source.is_sampled and span.turn not in own
        else span
        for span in sequence.spans
    ]
    return replace(sequence, spans=tuple(spans))


def _trained_turns(sequence: TokenSequence, sample: Sample) -> tuple[int, ...]:
    return tuple(
        [
            span.turn
            for span in sequence.spans
            if span.source.is_sampled and any(sample.loss_mask[span.start : span.stop])
        ]
    )


def _with_own_record(
    sequence: TokenSequence, sample: Sample, trained: Sequence[int], trajectory: Trajectory
) -> Sample:
    """Return the sample with the logprobs of the trained turns, whatever is known of others."""
    actions = {turn: trajectory.turns[turn].action for turn in trained}
    exact = all(action.token_ids is not None for action in actions.values())
    if any(action.logprobs is None for action in actions.values()):
        return replace(sample, logprobs=None, exact=exact)
    logprobs = [0.0] * len(sample.token_ids)
    for span in sequence.spans:
        if span.source.is_sampled and span.turn in actions:
            own = actions[span.turn].logprobs or ()
            stop = min(span.stop, len(logprobs))
            logprobs[span.start : stop] = own[: stop - span.start]
    return replace(sample, logprobs=tuple(logprobs), exact=exact)
