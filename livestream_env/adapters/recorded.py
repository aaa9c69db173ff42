"""Sequences of the ids that a trajectory holds, for trainers that render prompts themselves."""

from __future__ import annotations

from collections.abc import Container
from dataclasses import dataclass, field

from livestream_env.tokens import Source, Span, TokenSequence, source_of
from livestream_env.types import Trajectory


@dataclass(slots=True)
class _Growing:
    agent: str
    ids: list[int] = field(default_factory=list)
    logprobs: list[float] | None = field(default_factory=list)
    spans: list[Span] = field(default_factory=list)


class RecordedRenderer:
    """Renders trajectories whose actions hold prompt ids and ids, whatever template made them.

    A sequence goes on while each prompt begins with all before it.
    """

    def render(
        self, trajectory: Trajectory, agents: Container[str] | None = None
    ) -> list[TokenSequence]:
        """Render a trajectory, the turns of `agents` as sampled and those of others as prompts."""
        grown: list[_Growing] = []
        for index, turn in enumerate(trajectory.turns):
            prompt, ids = turn.action.prompt_ids, turn.action.token_ids
            if prompt is None or ids is None:
                continue
            if not grown or list(prompt[: len(grown[-1].ids)]) != grown[-1].ids:
                grown.append(_Growing(turn.agent))
            is_own = agents is None or turn.agent in agents
            source = source_of(turn) if is_own else Source.PROMPT
            growing, end = grown[-1], len(prompt) + len(ids)
            growing.spans.append(Span(len(growing.ids), len(prompt), Source.PROMPT, index - 1))
            growing.spans.append(Span(len(prompt), end, source, index))
            if growing.logprobs is not None and turn.action.logprobs is not None:
                growing.logprobs += [0.0] * (len(prompt) - len(growing.ids))
                growing.logprobs += turn.action.logprobs
            else:
                growing.logprobs = None
            growing.ids[:] = [*prompt, *ids]
        return [
            TokenSequence(
                tuple(one.ids),
                None if one.logprobs is None else tuple(one.logprobs),
                tuple(one.spans),
                agent=one.agent,
            )
            for one in grown
        ]
