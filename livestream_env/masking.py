"""Loss masks: which tokens of a sequence are trained.

A masker is any callable that takes a `TokenSequence` and returns a `Sample`. The stock ones pick
by source; `TokenSequence.sample` builds others from a choice of spans.
"""

from __future__ import annotations

from dataclasses import dataclass

from livestream_env.token_view import show as show
from livestream_env.tokens import Sample, Source, Span, TokenSequence, source_of
from livestream_env.types import Trajectory


@dataclass(frozen=True, slots=True)
class SourceMasker:
    """Trains the spans of some sources."""

    sources: tuple[Source, ...]
    cut: bool = False
    """Whether all behind the last trained span is dropped."""

    def __call__(self, sequence: TokenSequence) -> Sample:
        """Mask a sequence.

        Raises:
            EmptyMaskError: the sequence holds no span of these sources.
        """
        return sequence.sample(self.trains, cut=self.cut)

    def trains(self, span: Span) -> bool:
        """Return whether a sampled span is trained."""
        return span.source in self.sources

    def turns(self, trajectory: Trajectory) -> tuple[bool, ...]:
        """Return which turns are trained, for trainers that know whole turns alone.

        Partners' are not. With `cut`, the turns behind the last trained one are left out.
        """
        partners = trajectory.partners
        trained = [
            turn.agent not in partners and source_of(turn) in self.sources
            for turn in trajectory.turns
        ]
        if self.cut:
            while trained and not trained[-1]:
                trained.pop()
        return tuple(trained)


END_TO_END = SourceMasker((Source.TOOL_CALL, Source.REPLY))
"""Trains all that was sampled."""
TOOL_CALLS = SourceMasker((Source.TOOL_CALL,), cut=True)
"""Trains tool turns and drops what follows the last of them, its results included."""
REPLY = SourceMasker((Source.REPLY,))
"""Trains replies; all before is context."""
MASKERS = {"end_to_end": END_TO_END, "tool_calls": TOOL_CALLS, "reply": REPLY}
"""The stock maskers by name."""
