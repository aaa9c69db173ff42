"""Guardrails on what a host says: forbidden words, promises, contacts, personal data, prices.

`check` reads a reply against the conversation it follows, as plain OpenAI messages, and needs
neither a room nor a model; `guarded` puts it behind an agent, `guard_score` makes it a reward hook.
What the words of the lists are and what is done about them is data: `data/guard/*.json`.
"""

from __future__ import annotations

import inspect
import os
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import islice
from typing import TYPE_CHECKING, Any, Literal

from livestream_env.guard_checks import leaked_text, personal_data, wrong_prices
from livestream_env.guard_lexicon import Hit, Kind, Lexicons, Severity, load_lexicons
from livestream_env.guard_text import (
    Conversation,
    View,
    read,
    with_letters,
    without_breaks,
    without_gaps,
)
from livestream_env.types import Action, Message, Score, ToolSpec, Trajectory, TurnEvent
from livestream_env.words import asks

if TYPE_CHECKING:
    from livestream_env.rooms import Room

LexiconSource = Lexicons | str | os.PathLike[str] | Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class Finding:
    """One thing that a reply must not say."""

    kind: str
    """`absolute`, `medical`, `promise`, `contact`, `pii`, `abuse`, `price`, `leak`, `gambling`,
    `minors`, `politics`, or a kind of your own lexicon."""
    text: str
    """As it stands in the reply."""
    start: int
    stop: int
    reason: str
    severity: Severity


@dataclass(frozen=True, slots=True)
class Verdict:
    """What is wrong with a reply, and what to do about it."""

    findings: tuple[Finding, ...]
    """In the order of the reply."""
    action: Literal["pass", "block", "replace"]
    """`block`: say nothing; `replace`: say `replacement`."""
    replacement: str | None = None
    """A neutral sentence that claims nothing, where the action is `replace`."""

    @property
    def ok(self) -> bool:
        """Whether nothing was found."""
        return not self.findings


def check(
    messages: Sequence[Any],
    reply: str,
    *,
    lexicons: LexiconSource | None = None,
    language: Literal["zh", "en"] | None = None,
) -> Verdict:
    """Judge a reply against the conversation before it.

    Args:
        messages: OpenAI messages or our own: what system, tools and the prompt say is a source of
            promises, what viewers say is not.
        lexicons: word lists of your own, see `load_lexicons`; load them once for many replies.
        language: of the replacement; by default that of the reply.

    Raises:
        TypeError: `messages` are no messages, or `reply` is no text.
        ValueError: the lexicons break their format, or there is no such language.
    """
    if not isinstance(reply, str):
        raise TypeError(f"`reply` is a `{type(reply).__name__}`; pass the text of the reply")
    if language not in (None, "zh", "en"):
        raise ValueError(f"`language` is {language!r}; choose `zh`, `en` or None")
    lists = load_lexicons(lexicons)
    if not reply:
        return Verdict((), "pass")
    hits = _hits(reply, Conversation(messages), lists)
    if not hits:
        return Verdict((), "pass")
    findings = tuple(_finding(reply, *hit, lists) for hit in hits)
    return _judged(findings, lists, language or _language(reply))


MOST = 100
"""Findings of one kind that are looked for."""


def _judged(findings: tuple[Finding, ...], lists: Lexicons, language: str) -> Verdict:
    kinds = [lists.kinds[finding.kind] for finding in findings]
    if any(kind.action == "block" for kind in kinds):
        return Verdict(findings, "block")
    worst = min(kinds, key=lambda kind: ("high", "medium", "low").index(kind.severity))
    return Verdict(findings, "replace", _replacement(worst, lists, language))


def _replacement(kind: Kind, lists: Lexicons, language: str) -> str:
    own = kind.replacements
    return own.get("lexicons") or own.get(language) or _NEUTRAL[language]


_NEUTRAL = {
    "zh": "亲，商品情况请以页面说明为准哦。",
    "en": "Please check the product page for the details.",
}


def _language(text: str) -> str:
    return "zh" if re.search("[\u3400-\u9fff]", text) else "en"


def _finding(reply: str, kind: str, start: int, stop: int, lists: Lexicons) -> Finding:
    known = lists.kinds[kind]
    return Finding(kind, reply[start:stop], start, stop, known.reason, known.severity)


def _hits(reply: str, conversation: Conversation, lists: Lexicons) -> list[tuple[str, int, int]]:
    """Return kind and place of all that is found; of two that overlap within a kind, the first."""
    plain = read(reply)
    close = without_gaps(plain)
    spelled = with_letters(close)
    broken = without_breaks(close)
    found: list[tuple[int, int, str]] = []
    for view in filter(None, (close, spelled, broken)):
        words = lists.words(view)
        for kind in lists.kinds.values():
            hits = (
                hit
                for hit in kind.find(view, words)
                if _counts(hit, view, kind, conversation, lists)
            )
            if view is broken:
                hits = (hit for hit in hits if _is_across(hit, view, reply))
            found.extend(_placed(view, islice(hits, MOST)))
    for look in (wrong_prices, personal_data, leaked_text):
        hits = (hit for hit in look(plain, conversation) if hit.kind in lists.kinds)
        found.extend(_placed(plain, islice(hits, MOST)))
    kept: list[tuple[str, int, int]] = []
    ends: dict[str, int] = {}
    for start, stop, name in sorted(found):
        if start >= ends.get(name, 0):
            kept.append((name, start, stop))
            ends[name] = stop
    return kept


def _placed(view: View, hits: Iterable[Hit]) -> Iterator[tuple[int, int, str]]:
    for hit in hits:
        yield (*view.span(hit.start, hit.stop), hit.kind)


def _is_across(hit: Hit, view: View, reply: str) -> bool:
    """Tell whether a hit lies across a break; the others are found with the breaks in place."""
    start, stop = view.span(hit.start, hit.stop)
    return without_gaps(read(reply[start:stop])).text != view.text[hit.start : hit.stop]


_REACH = 24
"""Characters around a hit that are read for what negates it."""


def _counts(hit: Hit, view: View, kind: Kind, conversation: Conversation, lists: Lexicons) -> bool:
    """Tell whether a hit is said in earnest and nothing allows it."""
    text = view.text
    if kind.negatable:
        before = text[max(0, hit.start - _REACH) : hit.start]
        if lists.negated_before.search(before) or lists.negated_after.match(text, hit.stop):
            return False
        if any(_within(text, name, hit) for name in conversation.names):
            return False
    said = text[hit.start : hit.stop]
    source = kind.source_of(said + text[hit.stop : hit.stop + 4] if kind.needs_source else said)
    if source is None:
        return True
    if source not in conversation.allowed:
        conversation.allowed[source] = _is_sourced(source, conversation, lists)
    return not conversation.allowed[source]


def _within(text: str, name: str, hit: Hit) -> bool:
    """Tell whether the hit is part of a product's name there."""
    start = text.find(name, max(0, hit.stop - len(name)), hit.start + len(name))
    return start >= 0


def _is_sourced(source: str, conversation: Conversation, lists: Lexicons) -> bool:
    """Tell whether a trusted text says it, neither denied nor asked."""
    text = conversation.trusted
    for match in re.finditer(source, text):
        clause = re.split(r"[,。;!?\"]", text[max(0, match.start() - _REACH) : match.start()])[-1]
        rest = re.split(r"[,。;!?\"]", text[match.end() : match.end() + _REACH])[0]
        tail = text[match.end() + len(rest) : match.end() + len(rest) + 1]
        denied = _DENIES.search(clause) or lists.negated_after.match(rest)
        if not denied and not asks(rest + tail):
            return True
    return False


_DENIES = re.compile(
    "不(?![同仅但光止只])|没|无(?!理由|忧|条件)|别(?!的)|勿|禁止|(?<![a-z])(?:not|no|never|cannot|without"
    "|avoid)(?![a-z])|n't"
)


class Guarded:
    """An agent whose replies are checked before they are said; made by `guarded`."""

    def __init__(
        self,
        agent: Any,
        lexicons: Lexicons,
        language: Literal["zh", "en"] | None,
        parse: Callable[..., Action] | None,
    ) -> None:
        self.agent = agent
        self.lexicons = lexicons
        self.language = language
        self.parse = parse

    def start(self, observation: Any, *, seed: Any) -> Guarded:
        """Return the guarded agent of one episode."""
        agent = self.agent
        started = agent.start(observation, seed=seed) if hasattr(agent, "start") else agent
        return Guarded(started, self.lexicons, self.language, self.parse)

    def act(self, messages: Sequence[Message], tools: Sequence[ToolSpec]) -> Any:
        """Return the agent's action, its reply replaced or left out; awaitable where its own is."""
        given = self.agent.act(messages, tools)
        if inspect.isawaitable(given):
            return self._awaited(given, messages, tools)
        return self._guarded(given, messages, tools)

    async def _awaited(
        self, given: Any, messages: Sequence[Message], tools: Sequence[ToolSpec]
    ) -> Action:
        return self._guarded(await given, messages, tools)

    def _guarded(
        self, given: Any, messages: Sequence[Message], tools: Sequence[ToolSpec]
    ) -> Action:
        action = self._action(given, tools)
        if action.message.tool_calls:
            return action
        bullet = self._check(messages, action.message.content)
        speech = self._check(messages, action.speech or "")
        verdicts = (bullet, speech)
        findings = [finding for verdict in verdicts for finding in verdict.findings]
        if not findings:
            return action
        noted = tuple(TurnEvent("guard", f"{f.kind}: {f.text} ({f.reason})") for f in findings)
        events = (*action.events, *noted)
        if any(verdict.action == "block" for verdict in verdicts):
            return replace(Action.skip(action.covers or "*"), events=events)
        content = action.message.content if bullet.ok else bullet.replacement or ""
        return Action(
            Message("assistant", content),
            covers=action.covers,
            skips=action.skips,
            channel=action.channel,
            speech=action.speech if speech.ok else speech.replacement,
            extras=action.extras,
            events=events,
        )

    def _action(self, given: Any, tools: Sequence[ToolSpec]) -> Action:
        if isinstance(given, Action):
            return given
        if self.parse is None:
            raise TypeError(
                f"the guarded agent returned a `{type(given).__name__}`, not an `Action`; give"
                " `guarded(agent, parse=to_action)`, from `livestream_env.parsing`"
            )
        return self.parse(given, tools=tools)

    def _check(self, messages: Sequence[Message], text: str) -> Verdict:
        return check(messages, text, lexicons=self.lexicons, language=self.language)


def guarded(
    agent: Any,
    *,
    lexicons: LexiconSource | None = None,
    language: Literal["zh", "en"] | None = None,
    parse: Callable[..., Action] | None = None,
) -> Guarded:
    """Wrap an agent, sync or async: a bad reply is replaced or left out, each finding an event.

    A reply that was replaced has no token ids, since nobody sampled it. `parse` reads what the
    agent returns where that is no `Action`: `to_action` of `livestream_env.parsing`.
    """
    return Guarded(agent, load_lexicons(lexicons), language, parse)


def guard_score(trajectory: Trajectory, room: Room | None = None) -> Score:
    """Return 1.0 where no reply breaks the guard, 0.0 where one does; for use as a veto.

    What `guarded` has replaced counts as said. An episode without a reply says nothing wrong.
    """
    agent = "replier" if "replier" in trajectory.prompts else "host"
    messages = list(trajectory.prompts.get(agent, ()))
    wrong: list[str] = []
    for turn in trajectory.turns:
        action = turn.action
        wrong += [event.detail for event in action.events if event.kind == "guard"]
        if turn.agent in ("host", "replier") and not action.message.tool_calls:
            for text in (action.message.content, action.speech or ""):
                wrong += [f"{f.kind}: {f.text}" for f in check(messages, text).findings]
        messages.append(action.message)
        messages.extend(turn.messages)
    reason = "; ".join(dict.fromkeys(wrong))
    return Score("guard", 0.0 if wrong else 1.0, agent="replier", reason=reason)
