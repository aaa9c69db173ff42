"""Rows for trainers that tokenize themselves: which turns are trained, and their rewards."""

from __future__ import annotations

from collections.abc import Container

from livestream_env.tokens import Source, Span, TokenSequence, source_of
from livestream_env.types import Trajectory


class TurnRenderer:
    """Renders each turn as one token behind one of the prompt, so that maskers pick whole turns."""

    def render(
        self, trajectory: Trajectory, agents: Container[str] | None = None
    ) -> list[TokenSequence]:
        """Render a trajectory, the turns of `agents` as sampled and those of others as prompts."""
        spans = [Span(0, 1, Source.PROMPT)]
        for at, turn in enumerate(trajectory.turns):
            is_own = (
                turn.agent not in trajectory.partners if agents is None else turn.agent in agents
            )
            spans.append(Span(at + 1, at + 2, source_of(turn) if is_own else Source.PROMPT, at))
        ids = tuple(range(len(spans)))
        own = [turn.agent for turn in trajectory.turns if agents is None or turn.agent in agents]
        return [TokenSequence(ids, None, tuple(spans), agent=own[0] if own else "host")]
