"""Rows for trainers that tokenize themselves: which turns are trained, and their rewards."""

from __future__ import annotations

from collections.abc import Container
from typing import Any

from livestream_env.adapters.setup import Setup
from livestream_env.tokens import Source, Span, TokenSequence, source_of
from livestream_env.types import Action, Trajectory


class TurnRenderer:
    """Renders each turn as one token behind one of the prompt, so that maskers pick whole turns.

    A turn in which nothing was sampled, because the context was full, has no token.
    """

    def render(
        self, trajectory: Trajectory, agents: Container[str] | None = None
    ) -> list[TokenSequence]:
        """Render a trajectory, the turns of `agents` as sampled and those of others as prompts."""
        spans = [Span(0, 1, Source.PROMPT)]
        for at, turn in enumerate(trajectory.turns):
            is_own = (
                turn.agent not in trajectory.partners if agents is None else turn.agent in agents
            )
            start = spans[-1].stop
            stop = start + (not _is_empty(turn.action))
            spans.append(Span(start, stop, source_of(turn) if is_own else Source.PROMPT, at))
        ids = tuple(range(spans[-1].stop))
        own = [turn.agent for turn in trajectory.turns if agents is None or turn.agent in agents]
        return [TokenSequence(ids, None, tuple(spans), agent=own[0] if own else "host")]


def _is_empty(action: Action) -> bool:
    is_full = any(event.kind == "context_full" for event in action.events)
    return is_full or action.token_ids == ()


def trained_turns(setup: Setup, trajectory: Trajectory) -> dict[str, dict[str, Any]]:
    """Return of each trained agent its `reward`, its `turns` with a reward each, and `excluded`.

    JSON values, for trainers elsewhere that hold the tokens of the turns. Where `excluded` says
    why nothing of the agent may be trained, there are no turns and no reward.
    """
    rows = setup.rows(trajectory, TurnRenderer())
    return {
        row.agent: {
            "reward": row.reward if row.excluded is None else None,
            "turns": [
                {"turn": one.turn, "reward": one.reward}
                for one in (row.turns if row.excluded is None else ())
            ],
            "excluded": row.excluded,
        }
        for row in rows
    }
