"""Token sequences of an episode, where each token came from, and the layouts trainers ask for.

A sequence is one context that grew: everything in it was seen by the policy in this order. The
layouts differ in what they leave out and how they index; none of them changes an id.
"""

from __future__ import annotations

from collections.abc import Callable, Container, Iterator, Mapping
from dataclasses import dataclass
from enum import StrEnum
from typing import Protocol

from livestream_env.errors import EmptyMaskError
from livestream_env.types import Message, ToolSpec, Trajectory, Turn


class Source(StrEnum):
    """Where a token came from."""

    PROMPT = "prompt"
    """The texts of system, user, reminder and of turns shown again in a later prompt."""
    SCAFFOLD = "scaffold"
    """What the chat template adds: headers, ends of turns, tool schemas, generation prompt."""
    TOOL_RESULT = "tool_result"
    TOOL_CALL = "tool_call"
    """All ids sampled in a turn with calls, thinking included; of a tool caller, every turn."""
    REPLY = "reply"
    """All ids sampled in any other turn; of a replier, every turn."""

    @property
    def is_sampled(self) -> bool:
        """Whether the policy sampled it."""
        return self in (Source.TOOL_CALL, Source.REPLY)


@dataclass(frozen=True, slots=True)
class Span:
    """Tokens `start` to `stop` (exclusive), all of one source."""

    start: int
    stop: int
    source: Source
    turn: int = -1
    """Index into `Trajectory.turns`: the turn that was sampled, or that the text followed; -1 for
    what came before the first."""


@dataclass(frozen=True, slots=True)
class Sample:
    """One training example, every field of length T."""

    token_ids: tuple[int, ...]
    loss_mask: tuple[int, ...]
    """1 where the token is trained."""
    logprobs: tuple[float, ...] | None
    """Log-probabilities that the policy sampled with, 0.0 where it did not sample; `None` where
    they were not recorded."""
    advantage: float | tuple[float, ...] | None = None
    reward: float | None = None
    exact: bool = True
    """Whether the trained ids are the ones that were sampled, not made from text."""


@dataclass(frozen=True, slots=True)
class Sampled:
    """What an engine generated after a prompt."""

    token_ids: tuple[int, ...]
    """End-of-turn token included where it was sampled."""
    logprobs: tuple[float, ...] | None = None
    stop: str = "stop"
    """`stop`, or `length` where the token limit cut it."""


@dataclass(frozen=True, slots=True)
class Response:
    """A prompt and what follows it: `loss_mask` and `logprobs` are of the response alone."""

    prompt_ids: tuple[int, ...]
    response_ids: tuple[int, ...]
    loss_mask: tuple[int, ...]
    logprobs: tuple[float, ...] | None
    turn: int | None = None
    """The turn that the response is; `None` where it is the whole sequence."""


@dataclass(frozen=True, slots=True)
class Shifted:
    """Next-token form, each field of length T - 1: `labels[i]` is predicted at `input_ids[i]`."""

    input_ids: tuple[int, ...]
    labels: tuple[int, ...]
    loss_mask: tuple[int, ...]
    logprobs: tuple[float, ...] | None


@dataclass(frozen=True, slots=True)
class TokenSequence:
    """The tokens of one growing context; `spans` tile [0, T).

    Every layout takes a masker, by default the one that trains all that was sampled; where a
    masker cuts the sequence, the layout is of what is kept.
    """

    token_ids: tuple[int, ...]
    logprobs: tuple[float, ...] | None
    """0.0 where the policy did not sample; `None` where a sampled turn has none recorded."""
    spans: tuple[Span, ...]
    exact: bool = True
    """Whether every sampled id was recorded, none made from text."""
    messages: tuple[Message, ...] = ()
    """The conversation that the tokens show, the last sampled message included."""
    tools: tuple[ToolSpec, ...] = ()
    agent: str = "host"

    def __post_init__(self) -> None:
        for name in ("token_ids", "logprobs", "spans"):
            value = getattr(self, name)
            if value is not None and type(value) is not tuple:
                object.__setattr__(self, name, tuple(value))
        length, end = len(self.token_ids), 0
        for span in self.spans:
            if span.start != end or span.stop < span.start:
                raise ValueError(
                    f"span {span.start}:{span.stop} starts at {span.start} where {end} is due; "
                    "spans follow each other from 0 to the number of tokens"
                )
            end = span.stop
        if end != length or (self.logprobs is not None and len(self.logprobs) != length):
            given = "none" if self.logprobs is None else len(self.logprobs)
            raise ValueError(
                f"got {length} token ids, {given} logprobs and spans up to {end}; "
                "they are of one length"
            )

    def __len__(self) -> int:
        return len(self.token_ids)

    @property
    def turns(self) -> tuple[int, ...]:
        """Indexes of the turns that were sampled in this sequence."""
        return tuple(span.turn for span in self.spans if span.source.is_sampled)

    def sample(self, trains: Callable[[Span], bool], *, cut: bool = False) -> Sample:
        """Mask the sampled spans that `trains` picks; `cut` drops all behind the last of them.

        Spans that the policy did not sample are never trained, so `trains` is not asked for them.

        Raises:
            EmptyMaskError: no token would be trained.
        """
        picked = [s for s in self.spans if s.source.is_sampled and trains(s) and s.stop > s.start]
        if not picked:
            sampled = sorted({s.source.value for s in self.spans if s.source.is_sampled})
            held = " and ".join(sampled) if sampled else "nothing that was sampled"
            raise EmptyMaskError(f"no token of the sequence would be trained; it holds {held}")
        stop = picked[-1].stop if cut else len(self.token_ids)
        mask = [0] * stop
        for span in picked:
            mask[span.start : span.stop] = [1] * (span.stop - span.start)
        logprobs = None if self.logprobs is None else self.logprobs[:stop]
        return Sample(self.token_ids[:stop], tuple(mask), logprobs, exact=self.exact)

    def full(self, masker: Masker | None = None) -> Sample:
        """Return prompt and all, as AReaL, ROLL and ART take it."""
        return _all_sampled(self) if masker is None else masked(self, masker)

    def response_only(self, masker: Masker | None = None) -> Response:
        """Return what follows the first prompt, as verl, SkyRL and slime take it."""
        first = next((span.start for span in self.spans if span.source.is_sampled), len(self))
        return _response(self.full(masker), first, None, None)

    def shifted(self, masker: Masker | None = None) -> Shifted:
        """Return the next-token form, as OpenRLHF takes it; shift once, here or in the trainer."""
        sample = self.full(masker)
        logprobs = None if sample.logprobs is None else sample.logprobs[1:]
        ids = sample.token_ids
        return Shifted(ids[:-1], ids[1:], sample.loss_mask[1:], logprobs)

    def action_ranges(self, masker: Masker | None = None) -> tuple[tuple[int, int], ...]:
        """Return (start, stop) of each trained stretch of a turn, in tokens of the sequence."""
        mask = self.full(masker).loss_mask
        return tuple(
            (start, stop)
            for span in self.spans
            if span.source.is_sampled
            for start, stop in _runs(mask, span.start, min(span.stop, len(mask)))
        )

    def rows_per_turn(self, masker: Masker | None = None) -> tuple[Response, ...]:
        """Return a row for each trained turn, all before it as its prompt.

        ROLL's step form and rLLM take it so.
        """
        sample = self.full(masker)
        return tuple(
            _response(sample, span.start, span.stop, span.turn)
            for span in self.spans
            if span.source.is_sampled and any(sample.loss_mask[span.start : span.stop])
        )

    def per_token_rewards(
        self, given: Trajectory | Mapping[int, float | None], masker: Masker | None = None
    ) -> tuple[float, ...]:
        """Return rewards of shape (T,), each turn's on its last token; SkyRL takes it so.

        The rewards of turns that the masker cuts away move to the last trained token, so that
        their sum stays.

        Args:
            given: a trajectory whose turns have rewards, or the rewards by the turn's index.

        Raises:
            ValueError: no turn of the sequence has a reward: an unscored episode is not worth 0.
        """
        sample = self.full(masker)
        if isinstance(given, Trajectory):
            given = {turn: given.turns[turn].reward for turn in self.turns}
        if all(given.get(turn) is None for turn in self.turns):
            raise ValueError("no turn of the sequence has a reward; score the trajectory first")
        rewards = [0.0] * len(sample.token_ids)
        last = len(rewards) - 1 - sample.loss_mask[::-1].index(1)
        for span in self.spans:
            if span.source.is_sampled and (reward := given.get(span.turn)) is not None:
                kept = span.start < span.stop <= len(rewards)
                rewards[span.stop - 1 if kept else last] += reward
        return tuple(rewards)


Masker = Callable[[TokenSequence], Sample]


def masked(sequence: TokenSequence, masker: Masker) -> Sample:
    """Return what a masker trains of a sequence: of its first tokens, some that were sampled.

    Raises:
        TypeError: the masker gave no `Sample`.
        ValueError: it gave other tokens, or a mask of another length, of something else than 0 and
            1, or of tokens that were not sampled.
    """
    made = masker(sequence)
    if not isinstance(made, Sample):
        raise TypeError(f"the masker {masker!r} gave {made!r:.100}; a masker gives a `Sample`")
    if problem := _problem(sequence, made):
        raise ValueError(f"the masker {masker!r} gave {problem}; `sequence.sample` makes a sample")
    return made


def _problem(sequence: TokenSequence, made: Sample) -> str | None:
    length = len(made.token_ids)
    if made.token_ids != sequence.token_ids[:length]:
        return "ids that are not the first of the sequence, as a tuple"
    for name, values in (("loss mask", made.loss_mask), ("logprobs", made.logprobs)):
        if values is not None and (type(values) is not tuple or len(values) != length):
            return f"{length} ids and a {name} of {len(values)}; both are tuples of one length"
    try:
        bits = bytes(made.loss_mask)
    except (TypeError, ValueError):
        bits = b"?"
    if bits.count(0) + bits.count(1) < len(bits):
        return "a loss mask of something else than 0 and 1"
    sampled = [
        bits.count(1, one.start, one.stop) for one in sequence.spans if one.source.is_sampled
    ]
    if sum(sampled) < bits.count(1):
        return f"a loss mask with {bits.count(1) - sum(sampled)} tokens that were not sampled"
    return None


class Renderer(Protocol):
    """Makes token sequences of a trajectory."""

    def render(
        self, trajectory: Trajectory, agents: Container[str] | None = None
    ) -> list[TokenSequence]:
        """Render a trajectory, the turns of `agents` as sampled and those of others as prompts.

        `None` stands for all agents but the trajectory's partners.
        """
        ...


def source_of(turn: Turn) -> Source:
    """Return the source of a turn's sampled tokens: by the agent where there are two.

    A message that holds a call, one that failed to parse included, is a tool turn.
    """
    if turn.agent == "tool_caller":
        return Source.TOOL_CALL
    if turn.agent == "replier" or not turn.action.message.tool_calls:
        return Source.REPLY
    return Source.TOOL_CALL


def _all_sampled(sequence: TokenSequence) -> Sample:
    return sequence.sample(lambda _: True)


def _response(sample: Sample, start: int, stop: int | None, turn: int | None) -> Response:
    ids, logprobs = sample.token_ids, sample.logprobs
    kept = None if logprobs is None else logprobs[start:stop]
    return Response(ids[:start], ids[start:stop], sample.loss_mask[start:stop], kept, turn)


def _runs(mask: tuple[int, ...], start: int, stop: int) -> Iterator[tuple[int, int]]:
    """Yield the stretches of ones between `start` and `stop`."""
    at = start
    while at < stop:
        if not mask[at]:
            at += 1
            continue
        end = at
        while end < stop and mask[end]:
            end += 1
        yield at, end
        at = end
