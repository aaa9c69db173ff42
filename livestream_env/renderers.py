"""Trajectories as the tokens that the policy saw and sampled, for any chat template.

Recorded ids are copied. What lies between two turns is what the template would have produced: the
conversation is rendered with and without the turn and what followed it, and the difference behind
the turn's end is encoded in one go. Where the template shows a turn otherwise than it was sampled,
a new sequence starts, because a token is trained only in the context it was sampled in.
"""

from __future__ import annotations

import json
import warnings
from collections.abc import Container, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import date
from typing import Any, Literal

from livestream_env.chat_templates import (
    ChatTemplate,
    Item,
    Outline,
    Plan,
    Remembered,
    call_ids_of,
    outline,
)
from livestream_env.codec import Codec, Segment, Spans
from livestream_env.errors import PrefixMismatch, UnsupportedTemplate
from livestream_env.tokens import Sample as Sample
from livestream_env.tokens import Sampled as Sampled
from livestream_env.tokens import Source as Source
from livestream_env.tokens import Span as Span
from livestream_env.tokens import TokenSequence as TokenSequence
from livestream_env.tokens import source_of
from livestream_env.types import Message, ToolCall, ToolSpec, Trajectory, Turn, freeze

AfterStop = Literal["template", "bare", "doubled"]
OnRewrite = Literal["split", "keep"]


@dataclass(frozen=True, slots=True)
class _Boundary:
    """What a template puts between a sampled turn and the next: before the ids are known."""

    plan: Plan
    tail: int
    """Position of the first item behind the turn's words."""
    fault: str
    """How the template shows the turn otherwise, or an empty string."""
    inside: tuple[int, ...]
    """Control tokens of the turn before `tail`."""
    behind: tuple[tuple[int, int], ...]
    """(position, id) of the control tokens from `tail` to the next words."""
    segments: dict[int, Segment] = field(default_factory=dict)
    """What follows, by the position of the cut."""


class _Talk:
    """A conversation that grows, and its messages without their words."""

    def __init__(self, messages: Sequence[Message], tools: tuple[ToolSpec, ...], day: date) -> None:
        self.messages = list(messages)
        self.opened = len(messages)
        """How many messages it started with."""
        self.outlines = list(map(outline, messages))
        self.tools = tools
        self.day = day

    def add(self, messages: Iterable[Message]) -> None:
        for message in messages:
            self.messages.append(message)
            self.outlines.append(outline(message))

    def window(self, at: int, end: int, is_local: bool) -> tuple[list[Outline], int]:
        """Return the messages before `end` that decide what follows turn `at`, and its position
        among them.

        Tool results depend on the turn before; a viewer's message may change how every turn since
        the last one is shown.
        """
        messages = self.messages
        asked = at - 1
        while asked >= 0 and messages[asked].role != "user":
            asked -= 1
        if not is_local or asked < 0:
            chosen = list(range(end))
        else:
            start = asked
            if all(messages[i].role == "tool" for i in range(at + 1, end)):
                start = at - 1
                while messages[start].role not in ("assistant", "user"):
                    start -= 1
            head = [0] if messages[0].role == "system" and asked else []
            chosen = [*head, *([asked] if start > asked else []), *range(start, end)]
        turn = chosen.index(at)
        outlines = [self.outlines[i] for i in chosen]
        if not outlines[turn].texts:
            outlines[turn] = outline(messages[at], stand_in=True)
        return outlines, turn


@dataclass(slots=True)
class _Growing:
    """A sequence being built."""

    talk: _Talk
    agent: str
    ids: list[int] = field(default_factory=list)
    spans: list[Span] = field(default_factory=list)
    logprobs: list[float] | None = field(default_factory=list)
    exact: bool = True
    shown: int = 0
    """How many messages of the talk the ids show."""

    def add_context(self, ids: Sequence[int], spans: Spans, turn: int) -> None:
        at = len(self.ids)
        for length, source in spans:
            if length:
                self.spans.append(Span(at, at + length, source, turn))
                at += length
        self.ids.extend(ids)
        if self.logprobs is not None:
            self.logprobs.extend([0.0] * len(ids))

    def add_turn(
        self, ids: Sequence[int], logprobs: Sequence[float] | None, source: Source, turn: int
    ) -> None:
        self.spans.append(Span(len(self.ids), len(self.ids) + len(ids), source, turn))
        self.ids.extend(ids)
        if logprobs is None:
            self.logprobs = None
        elif self.logprobs is not None:
            self.logprobs.extend(logprobs)

    def finished(self) -> TokenSequence:
        return TokenSequence(
            tuple(self.ids),
            None if self.logprobs is None else tuple(self.logprobs),
            tuple(self.spans),
            self.exact,
            tuple(self.talk.messages[: self.shown]),
            self.talk.tools,
            self.agent,
        )


class ChatTemplateRenderer:
    """Renders conversations into tokens by a Hugging Face tokenizer and its chat template.

    Safe to share between threads as far as the tokenizer is.

    Args:
        tokenizer: a fast tokenizer with a chat template that shows tools.
        chat_template: a template in place of the tokenizer's own.
        stop_ids: ids that the engine stops at; by default the tokenizer's end token, what the
            template ends a reply with, and the end tokens of the known model families.
        on_rewrite: what to do where the template shows a sampled turn otherwise than it was
            sampled: start a new sequence (`split`), or go on (`keep`), which is right where the
            engine is given ids and never renders again.
        after_stop: what follows a sampled end token: the template's own text, nothing of its white
            space (`bare`), or the end token once more (`doubled`), as some trainers build it.
        variables: further variables of the template, such as `enable_thinking`.

    Raises:
        UnsupportedTemplate: the tokenizer is not a fast one, or the template shows no system text,
            tool calls or tool results.
    """

    def __init__(
        self,
        tokenizer: Any,
        *,
        chat_template: str | None = None,
        stop_ids: Iterable[int] | None = None,
        on_rewrite: OnRewrite = "split",
        after_stop: AfterStop = "template",
        **variables: Any,
    ) -> None:
        self.tokenizer = tokenizer
        self.on_rewrite = on_rewrite
        self.after_stop = after_stop
        self._codec = Codec(tokenizer)
        self._template = ChatTemplate(
            tokenizer,
            chat_template=chat_template,
            variables=variables,
            find_controls=self._codec.find_controls,
        )
        self._template.control_text = self._codec.control_text
        self._boundaries = Remembered[_Boundary]()
        self._agrees = Remembered[bool]()
        self._prompts = Remembered[Segment]()
        self._is_local = True
        self.stop_ids = self._codec.stop_ids
        """Ids that end a turn."""
        self._probe()
        self._is_local = self._probe_windows()
        self.stop_ids = self._probe_stops() if stop_ids is None else frozenset(stop_ids)

    def render(
        self, trajectory: Trajectory, agents: Container[str] | None = None
    ) -> list[TokenSequence]:
        """Render a trajectory; one sequence while every prompt extends the last.

        Only turns of `agents`, by default of all but the trajectory's partners, are sampled turns;
        those of others are shown in the prompts that follow them, as text: they may be another
        tokenizer's.

        Raises:
            PrefixMismatch: a turn without recorded ids is one that the template cannot show.
            UnsupportedTemplate: the template refuses the conversation.
        """
        names = agents
        if names is None:
            names = {turn.agent for turn in trajectory.turns}.difference(trajectory.partners)
        grown = self._render(trajectory, names, self._is_local)
        if self._is_local and not all(map(self._whole_agrees, grown)):
            grown = self._render(trajectory, names, False)
        return [growing.finished() for growing in grown]

    def prompt_ids(
        self,
        messages: Sequence[Message | Mapping[str, Any]],
        tools: Sequence[ToolSpec | Mapping[str, Any]] = (),
    ) -> tuple[int, ...]:
        """Return what the policy is given after `messages`, generation prompt included.

        Equal to the template's own tokens where no text holds a control token.
        """
        talk = _Talk(list(map(_as_message, messages)), tuple(map(_as_spec, tools)), date.today())
        return tuple(self._prompt(talk)[0])

    def continue_ids(
        self, sequence: TokenSequence, new_messages: Sequence[Message | Mapping[str, Any]]
    ) -> tuple[int, ...]:
        """Return the ids that follow the sequence's last sampled turn: `new_messages` and the
        generation prompt.

        Raises:
            PrefixMismatch: the template shows the turn otherwise than it was sampled, and
                `on_rewrite` is `split`; go on with `prompt_ids` of the whole conversation.
            ValueError: the sequence does not end with a sampled turn, or holds no messages.
        """
        last = sequence.spans[-1] if sequence.spans else None
        if last is None or not last.source.is_sampled or not sequence.messages:
            raise ValueError(
                "the sequence does not end with a sampled turn whose messages it holds; pass one "
                "that `render` or `TokenAgent` made"
            )
        talk = _Talk(sequence.messages, sequence.tools, date.today())
        talk.add(map(_as_message, new_messages))
        at = len(sequence.messages) - 1
        sampled = sequence.token_ids[last.start :]
        return tuple(self._continue(talk, at, sampled, self._is_local)[0])

    # --- a trajectory ------------------------------------------------------------------------

    def _render(
        self, trajectory: Trajectory, agents: Container[str], is_local: bool
    ) -> list[_Growing]:
        sequences: list[_Growing] = []
        current: _Growing | None = None
        talks = _talks(trajectory)
        told: list[Message] = []
        for index, turn in enumerate(trajectory.turns):
            if turn.agent in agents:
                talk = talks[turn.agent]
                talk.add(told[len(talk.messages) - talk.opened :])
                growing = self._grown(current, talk, turn, index, is_local)
                if growing is not current:
                    sequences.append(growing)
                talk.add([turn.action.message])
                growing.shown = len(talk.messages)
                self._take_turn(growing, turn, index, is_local)
                current = growing
            else:
                current = None
            told += (turn.action.message, *turn.messages)
        return sequences

    def _grown(
        self, current: _Growing | None, talk: _Talk, turn: Turn, index: int, is_local: bool
    ) -> _Growing:
        """Return the sequence that holds the prompt of a turn: the current one, grown, or a new."""
        given = turn.action.prompt_ids
        if current is not None and current.talk is talk:
            ids, spans = self._between(current, talk, given is None, is_local)
            if given is not None:
                ids, spans = _recorded(current, given, ids, spans)
            if ids is not None:
                current.add_context(ids, spans, index - 1)
                return current
        growing = _Growing(talk, turn.agent)
        growing.add_context(*self._opening(talk, given), -1)
        return growing

    def _between(
        self, current: _Growing, talk: _Talk, must_show: bool, is_local: bool
    ) -> tuple[list[int] | None, Spans]:
        """Return what the template puts behind the current sequence; `None` where it rewrites."""
        sampled = current.ids[current.spans[-1].start :]
        try:
            return self._continue(talk, current.shown - 1, sampled, is_local)
        except PrefixMismatch:
            return None, []
        except UnsupportedTemplate:
            if must_show:
                raise
            return None, []

    def _opening(self, talk: _Talk, given: tuple[int, ...] | None) -> tuple[Sequence[int], Spans]:
        """Return the prompt of a new sequence: the recorded one, its parts told where they are
        those of the template."""
        try:
            ids, spans = self._prompt(talk)
        except UnsupportedTemplate:
            if given is None:
                raise
            ids, spans = [], []
        if given is not None and tuple(ids) != given:
            return list(given), [(len(given), Source.PROMPT)]
        return ids, spans

    def _take_turn(self, growing: _Growing, turn: Turn, index: int, is_local: bool) -> None:
        action = turn.action
        ids, logprobs = action.token_ids, action.logprobs
        if ids is None:
            ids, logprobs = self._turn_ids(growing.talk, action.stop, is_local), None
            growing.exact = False
        elif logprobs is not None and len(logprobs) != len(ids):
            raise ValueError(
                f"turn {index} has {len(ids)} token ids and {len(logprobs)} logprobs; record one "
                "for each id, or none"
            )
        growing.add_turn(ids, logprobs, source_of(turn), index)

    # --- prompts and boundaries --------------------------------------------------------------

    def _plan(self, outlines: Sequence[Outline], talk: _Talk, *, generate: bool = True) -> Plan:
        return self._template.plan(outlines, talk.tools, generate=generate, on=talk.day)

    def _prompt(self, talk: _Talk) -> tuple[list[int], Spans]:
        key = self._template.key(talk.outlines, talk.tools, talk.day)
        segment = self._prompts.get(key)
        if segment is None:
            segment = self._prompts[key] = self._codec.compile(
                self._plan(talk.outlines, talk).items
            )
        return self._emit(segment, talk.outlines, talk)

    def _continue(
        self, talk: _Talk, at: int, sampled: Sequence[int], is_local: bool
    ) -> tuple[list[int], Spans]:
        """Return what follows turn `at` of a talk, sampled as `sampled`."""
        outlines, turn = talk.window(at, len(talk.messages), is_local)
        boundary = self._boundary(outlines, turn, talk)
        cut, fault = self._cut(boundary, sampled)
        if fault and self.on_rewrite == "split":
            raise PrefixMismatch(
                f"the template shows message {at} otherwise than it was sampled: {fault}; start a "
                "new sequence with `prompt_ids`, or use `on_rewrite='keep'`"
            )
        segment = boundary.segments.get(cut)
        if segment is None:
            segment = self._codec.compile(boundary.plan.items[cut:])
            boundary.segments[cut] = segment
        ids, spans = self._emit(segment, outlines, talk)
        return self._with_stop_style(ids, spans, sampled)

    def _boundary(self, outlines: list[Outline], turn: int, talk: _Talk) -> _Boundary:
        key = (self._template.key(outlines, talk.tools, talk.day), turn)
        boundary = self._boundaries.get(key)
        if boundary is None:
            boundary = self._boundaries[key] = self._made_boundary(outlines, turn, talk)
        return boundary

    def _made_boundary(self, outlines: list[Outline], turn: int, talk: _Talk) -> _Boundary:
        before = self._plan(outlines[:turn], talk)
        plan = self._plan(outlines, talk)
        start, fault = len(before.text), ""
        if not plan.text.startswith(before.text):
            fault = "what came before it is shown otherwise once the turn is there"
            start = _common(before.text, plan.text)
        tail, words_fault = _turn_end(plan, outlines, turn, start)
        shown = [item for item in plan.items[:tail] if item.start >= start]
        inside = tuple([item.control for item in shown if item.control is not None])
        behind = _controls_behind(plan.items, tail)
        return _Boundary(plan, tail, fault or words_fault, inside, behind)

    def _cut(self, boundary: _Boundary, sampled: Sequence[int]) -> tuple[int, str]:
        """Return the position of the first item behind the turn, and what is wrong with it."""
        behind = boundary.behind
        stops = [(at, token) for at, token in behind if token in self.stop_ids]
        last = sampled[-1] if sampled else None
        fault = boundary.fault
        if last not in self._codec.control_ids:
            cut = (*stops, *behind, (boundary.tail, None))[0][0]
        else:
            ends = (stops or behind)[:1] if last in self.stop_ids else behind
            same = next((at for at, token in ends if token == last), None)
            if same is None:
                fault = fault or "it ends with another token"
                same = ends[0][0] if ends and last in self.stop_ids else boundary.tail - 1
            cut = same + 1
        shown = [*boundary.inside, *(token for at, token in behind if at < cut)]
        if shown != [token for token in sampled if token in self._codec.control_ids]:
            fault = fault or "its control tokens are others"
        return cut, fault

    def _turn_ids(self, talk: _Talk, stop: str | None, is_local: bool) -> tuple[int, ...]:
        """Return the ids of the last message as the template shows it, its end token included."""
        at = len(talk.messages) - 1
        located, turn = talk.window(at, at + 1, is_local)
        before = self._plan(located[:turn], talk)
        whole = self._plan(located, talk, generate=False)
        tail, fault = _turn_end(whole, located, turn, len(before.text))
        outlines = [*located[:turn], talk.outlines[at]]
        plan = self._plan(outlines, talk, generate=False)
        if not plan.text.startswith(before.text):
            fault = "what came before it is shown otherwise once the turn is there"
        if fault:
            raise PrefixMismatch(
                f"message {at} has no recorded ids and the template cannot show it as it was "
                f"sampled: {fault}; record ids, strip thinking, or use another template"
            )
        items = plan.since(len(before.text))
        least = len(items) - (len(whole.items) - tail)
        ends = [i for i in range(least, len(items)) if items[i].control in self.stop_ids]
        items = items[: ends[0] + 1] if ends else items
        ids, _ = self._emit(self._codec.compile(items), outlines, talk)
        if stop == "length":
            return tuple(ids[:-1] if ends else ids)
        return tuple(ids if ends else [*ids, *self._end_of(located, talk)])

    def _end_of(self, outlines: list[Outline], talk: _Talk) -> list[int]:
        """Return the end token that the template shows only once a message follows."""
        calls = talk.messages[-1].tool_calls
        following = [Message("tool", "r", (), call.id) for call in calls] or [_ASKED]
        turn = len(outlines) - 1
        outlines = [*outlines, *map(outline, following)]
        boundary = self._boundary(outlines, turn, talk)
        return [token for _, token in boundary.behind if token in self.stop_ids][:1]

    def _whole_agrees(self, growing: _Growing) -> bool:
        """Check the last boundary of a sequence against that of the whole conversation."""
        talk, end = growing.talk, growing.shown - 1
        turns = [i for i in range(end) if talk.messages[i].role == "assistant"]
        if sum(span.source.is_sampled for span in growing.spans) < 2 or len(turns) < 2:
            return True
        key = (self._template.key(talk.outlines[:end], talk.tools, talk.day), turns[-1])
        agrees = self._agrees.get(key)
        if agrees is None:
            agrees = self._agrees[key] = self._same_boundary(talk, turns[-1], end)
        return agrees

    def _same_boundary(self, talk: _Talk, at: int, end: int) -> bool:
        """Whether a window shows what follows a turn as the whole conversation does."""
        seen = []
        for is_local in (True, False):
            outlines, turn = talk.window(at, end, is_local)
            boundary = self._boundary(outlines, turn, talk)
            items = boundary.plan.items[boundary.tail :]
            shown = [(i.text, i.control, i.slot and i.slot.kind) for i in items]
            seen.append((bool(boundary.fault), shown))
        return seen[0] == seen[1]

    def _emit(
        self, segment: Segment, outlines: Sequence[Outline], talk: _Talk
    ) -> tuple[list[int], Spans]:
        """Encode a segment, words in their places; return ids and (length, source) of spans."""
        texts = [text for o in outlines for text in o.texts]
        words = {
            "text": texts,
            "name": texts,
            "call_id": call_ids_of(outlines)[1],
            "tool": self._template.tool_texts(talk.tools),
        }
        return self._codec.encode(segment, words)

    def _with_stop_style(
        self, ids: list[int], spans: list[tuple[int, Source]], sampled: Sequence[int]
    ) -> tuple[list[int], list[tuple[int, Source]]]:
        """Follow the end token as `after_stop` says."""
        if self.after_stop == "template" or not sampled or sampled[-1] not in self.stop_ids:
            return ids, spans
        if self.after_stop == "doubled":
            return [sampled[-1], *ids], [(1, Source.SCAFFOLD), *spans]
        if ids and not self._codec.decode(ids[:1]).strip():
            length, source = spans[0]
            return ids[1:], [(length - 1, source), *spans[1:]]
        return ids, spans

    # --- what the template can do ------------------------------------------------------------

    def _probe(self) -> None:
        """Learn how the template shows arguments.

        Raises:
            UnsupportedTemplate: it shows no system text, user text, tool calls or tool results.
        """
        whats = ("system text", "user text", "tool calls", "tool results")
        lacks: list[str] = []

        def shows() -> bool:
            talk = _Talk([*_OPENING, _CALL, _RESULT], (_PROBE_TOOL,), date.today())
            seen = {index for index, _ in self._plan(talk.outlines, talk).texts()}
            lacks[:] = [what for index, what in enumerate(whats) if index not in seen]
            return not lacks

        if not self._template.probe_arguments(shows):
            raise UnsupportedTemplate(
                f"the chat template does not show {', '.join(lacks)}; pass a `chat_template` for "
                "tool use"
            )
        self._warn_of_open_roles()

    def _probe_windows(self) -> bool:
        """Return whether windows give the boundaries that whole conversations give."""
        said = Message("assistant", "y")
        messages = [*_OPENING, said, _ASKED, *[_CALL, _RESULT] * 3, said, _ASKED]
        talk = _Talk(messages, (_PROBE_TOOL,), date.today())
        turns = [i for i, m in enumerate(messages) if m.role == "assistant"]
        ends = [*turns[1:], len(messages)]
        try:
            return all(map(self._same_boundary, [talk] * len(turns), turns, ends))
        except UnsupportedTemplate:
            return False

    def _probe_stops(self) -> frozenset[int]:
        """Return the end tokens: the known ones and what the template ends a last reply with, less
        those that open the next message, as `<|user|>` does behind the end tokens of some."""
        talk = _Talk([*_OPENING, Message("assistant", "y"), _ASKED], (), date.today())
        last = self._plan(talk.outlines[:-1], talk, generate=False)
        whole = self._plan(talk.outlines, talk)
        _, shown = last.texts()[-1]
        ends = {token for _, token in _controls_behind(last.items, shown + 1)[:1]}
        _, shown = whole.texts()[-2]
        opens = {token for _, token in _controls_behind(whole.items, shown + 1)[1:]}
        return (self._codec.stop_ids - opens) | ends

    def _warn_of_open_roles(self) -> None:
        talk = _Talk(_OPENING, (), date.today())
        plan = self._plan(talk.outlines, talk)
        _, asked = plan.texts()[-1]
        if all(item.control is None for item in plan.items[asked + 1 :]):
            warnings.warn(
                "the chat template parts roles by plain text, which a viewer can type: texts "
                "cannot be kept from acting as headers",
                stacklevel=4,
            )


_ASKED = Message("user", "u")
_OPENING = (Message("system", "s"), _ASKED)
_CALL = Message("assistant", "", (ToolCall("call_0_0", "look_up", freeze({"a": "b"})),))
_RESULT = Message("tool", "r", (), "call_0_0")
_PROBE_TOOL = ToolSpec(
    "look_up",
    "Look a word up.",
    freeze({"type": "object", "properties": {"a": {"type": "string", "description": "word"}}}),
)


def _turn_end(plan: Plan, outlines: Sequence[Outline], turn: int, start: int) -> tuple[int, str]:
    """Return the position behind the words of a turn, and what the template does to them."""
    low = sum(len(o.texts) for o in outlines[:turn])
    high = low + len(outlines[turn].texts)
    texts = plan.texts(start)
    later = next((at for index, at in texts if index >= high), len(plan.items))
    mine = [(index, at) for index, at in texts if low <= index < high and at < later]
    if not mine:
        begin = (at for at, item in enumerate(plan.items) if item.stop > start)
        return next(begin, len(plan.items)), "nothing of it is shown"
    kept = [index for index, _ in mine] == list(range(low, high)) or "calls" in plan.dropped
    fault = "" if kept else "parts of it are dropped, repeated or in another order"
    return mine[-1][1] + 1, fault


def _controls_behind(items: Sequence[Item], tail: int) -> tuple[tuple[int, int], ...]:
    """Return (position, id) of the control tokens from `tail` to the next words."""
    stop = next((at for at in range(tail, len(items)) if items[at].slot is not None), len(items))
    shown = [(at, items[at].control) for at in range(tail, stop)]
    return tuple([(at, token) for at, token in shown if token is not None])


def _common(first: str, second: str) -> int:
    """Return the length of the common beginning."""
    both = zip(first, second, strict=False)
    return next((i for i, (a, b) in enumerate(both) if a != b), min(len(first), len(second)))


def _starts(whole: tuple[int, ...], beginning: list[int]) -> bool:
    return list(whole[: len(beginning)]) == beginning


def _recorded(
    current: _Growing, given: tuple[int, ...], ids: list[int] | None, spans: Spans
) -> tuple[list[int] | None, Spans]:
    """Return what a recorded prompt adds to a sequence; `None` where it does not extend it.

    Its parts are known where they are those of the template, `ids`.
    """
    if not _starts(given, current.ids):
        return None, []
    rest = list(given[len(current.ids) :])
    if rest == ids:
        return ids, spans
    told = current.talk.messages[current.shown :]
    is_result = all(message.role == "tool" for message in told)
    return rest, [(len(rest), Source.TOOL_RESULT if is_result else Source.PROMPT)]


def _talks(trajectory: Trajectory) -> dict[str, _Talk]:
    """Return the conversation of each agent; those of one prompt and the same tools share it."""
    shared: dict[Any, _Talk] = {}
    talks: dict[str, _Talk] = {}
    for agent in dict.fromkeys(turn.agent for turn in trajectory.turns):
        opening, tools = trajectory.prompts[agent], trajectory.tools[agent]
        known = shared.get((opening, tools)) or _Talk(opening, tools, _day(trajectory))
        talks[agent] = shared[opening, tools] = known
    return talks


def _day(trajectory: Trajectory) -> date:
    """Return the day of the rollout where it was, for templates that tell the date."""
    started = trajectory.turns[0].started_s if trajectory.turns else 0.0
    return date.fromtimestamp(started) if started else date.today()


def _as_message(given: Message | Mapping[str, Any]) -> Message:
    """Read an OpenAI chat message."""
    if isinstance(given, Message):
        return given
    calls = tuple(map(_as_call, given.get("tool_calls") or ()))
    reasoning = str(given.get("reasoning_content") or given.get("reasoning") or "")
    content = given.get("content") or ""
    if not isinstance(content, str):
        content = "".join(map(_part_text, content))
    return Message(given["role"], content, calls, given.get("tool_call_id"), reasoning)


def _part_text(part: Mapping[str, Any]) -> str:
    if part.get("type") != "text":
        raise ValueError(f"got a content part of type `{part.get('type')}`; only text is rendered")
    return str(part["text"])


def _as_call(given: Mapping[str, Any]) -> ToolCall:
    function = given.get("function", given)
    arguments = function.get("arguments") or {}
    raw = arguments if isinstance(arguments, str) else None
    if raw is not None:
        try:
            arguments = json.loads(raw)
        except ValueError:
            arguments = None
    call_id = str(given.get("id") or "")
    if isinstance(arguments, Mapping):
        return ToolCall(call_id, function["name"], freeze(arguments))
    return ToolCall(call_id, function["name"], raw=raw or repr(arguments))


def _as_spec(given: ToolSpec | Mapping[str, Any]) -> ToolSpec:
    if isinstance(given, ToolSpec):
        return given
    function = given.get("function", given)
    parameters = function.get("parameters") or {"type": "object", "properties": {}}
    return ToolSpec(function["name"], function.get("description", ""), freeze(parameters))
