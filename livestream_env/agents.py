"""Agents without a model: the scripted expert that reads the key, and the random one.

They are fakes for tests, floors and ceilings for reports, and examples of the `Agent` protocol.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np

from livestream_env.drivers import Seed
from livestream_env.findings import (
    SENTENCE_END,
    Call,
    Findings,
    joined,
    not_started,
    offered,
    phrases,
    say,
    tools_language,
)
from livestream_env.rooms import (
    Ask,
    Check,
    Comment,
    Expected,
    Product,
    Room,
    Statement,
    room_as_of,
)
from livestream_env.spaces import random_action
from livestream_env.tools import wording
from livestream_env.types import Action, Message, Observation, ToolSpec
from livestream_env.words import asks, fold, format_amount, link_numbers


class ScriptedAgent:
    """The expert: `Expected` tells it what to look up; what it says comes from its tool results.

    For a comment without `Expected` it searches the comment, looks up the nearest known rule, and
    replies by what it found.
    """

    def __init__(self, room: Room) -> None:
        self.room = room

    def start(self, observation: Observation, *, seed: Seed | None) -> _Script:
        """Return the agent of one episode; `seed` changes nothing."""
        comments = [self.room.comment(view.comment_id) for view in observation.comments]
        return _Script(self.room, comments, tools_language(observation.tools, self.room.language))

    def act(self, messages: Sequence[Message], tools: Sequence[ToolSpec]) -> Action:
        """Refuse: the agent of an episode is made by `start`, which drivers call."""
        not_started()


@dataclass(frozen=True, slots=True)
class _Task:
    """One comment, or what its viewer said next, with its key."""

    text: str
    expected: Expected | None
    comment_id: str = ""

    @property
    def asks(self) -> tuple[Ask, ...]:
        return self.expected.asks if self.expected is not None else ()

    @property
    def state(self) -> Mapping[str, Any]:
        state = self.expected.state if self.expected is not None else None
        return state if isinstance(state, dict) else {}

    @property
    def is_reworded(self) -> bool:
        """Whether a search in the viewer's own words comes back empty."""
        return self.expected is not None and "skill=reword" in self.expected.provenance

    @property
    def is_ignored(self) -> bool:
        return bool(self.asks) and all(ask.acts[0] == "ignore" for ask in self.asks)


@dataclass(slots=True)
class _Draft:
    """What a reply holds, in this order; extras are left out where it would be too long."""

    told: list[str] = field(default_factory=list)
    extras: list[str] = field(default_factory=list)
    questions: list[str] = field(default_factory=list)


class _Script:
    """The scripted agent of one episode: look-ups, those that need their results, a second try,
    the rules, the reply."""

    def __init__(self, room: Room, comments: Sequence[Comment], language: str) -> None:
        self._room = room
        self._language = language
        self._words = phrases(language)
        self._comments = comments
        self._tasks = [_Task(c.text, c.expected, c.comment_id) for c in comments]
        self._follow_ups = {f.text: f.expected for c in comments for f in c.follow_ups}
        self._same_tool = 2 * len(comments)
        self._used: Counter[str] = Counter()
        self._waiting: list[_Task] = []
        self._stage = 0

    def act(self, messages: Sequence[Message], tools: Sequence[ToolSpec]) -> Action:
        """Return the next step of the script."""
        if messages[-1].role == "user" and self._stage:
            self._hear(messages[-1].content)
        found = Findings(messages, self._room, self._language)
        for stage in _STAGES[self._stage :]:
            self._stage += 1
            calls = self._affordable(offered(stage(self, found), tools))
            if calls:
                return Action.calls(*calls)
        return self._reply(found)

    def _hear(self, text: str) -> None:
        """Start again with what the viewer's answer asks for, or after a reminder as before."""
        self._stage = 0
        self._used.clear()
        if text in self._follow_ups:
            self._tasks = [_Task(text, self._follow_ups[text])]

    def _affordable(self, calls: Sequence[Call]) -> list[Call]:
        kept = []
        for call in calls:
            if self._used[call[0]] < self._same_tool:
                self._used[call[0]] += 1
                kept.append(call)
        return kept

    # --- look-ups -----------------------------------------------------------------------------

    def _look_up(self, found: Findings) -> list[Call]:
        """Look up what each question needs first; `needed` is in the order of the look-ups."""
        calls = self._searches(self._missing(found, first=True))
        for task in self._tasks:
            if task.is_reworded:
                calls.append(("search_product_by_keyword", {"keyword": _query(task.text)}))
            calls += self._absent(task) if task.asks else self._search_of(task)
            calls += [] if self._is_waiting(task, found) else self._writes(task)
        self._waiting = [task for task in self._tasks if self._is_waiting(task, found)]
        return calls

    def _look_further(self, found: Findings) -> list[Call]:
        """Look up and do what the first results name."""
        calls = self._searches(self._missing(found))
        return calls + [call for task in self._waiting for call in self._writes(task)]

    def _look_again(self, found: Findings) -> list[Call]:
        return self._searches(self._missing(found, reworded=True), again=True)

    def _is_waiting(self, task: _Task, found: Findings) -> bool:
        """Tell whether what is to be done depends on a look-up that was not made yet."""
        return bool(task.state and _unseen(task.asks, found))

    def _missing(
        self, found: Findings, *, first: bool = False, reworded: bool = False
    ) -> list[str]:
        """Return the needed records that no tool result holds yet."""
        tasks = [task for task in self._tasks if reworded or not task.is_reworded]
        asks = [ask for task in tasks for ask in task.asks]
        return _unseen(asks, found, first=first)

    def _searches(self, records: Sequence[str], *, again: bool = False) -> list[Call]:
        products = [p for record in records if (p := self._product(record)) is not None]
        calls = [_product_search(products, by_name=again)] if products else []
        for record in records:
            kind, _, name = record.partition(":")
            if kind == "faq":
                faq = next(faq for faq in self._room.faqs if faq.faq_id == name)
                phrasings = (faq.question, *faq.similar)
                query = self._scoped(phrasings[-1 if again else 0], faq.scope)
                calls.append(("search_faq", {"query": query[:200]}))
            elif kind == "script":
                segment = next(s for s in self._room.script if s.segment_id == name)
                calls.append(("search_script", {"query": _query(segment.text)}))
            elif kind == "comment":
                calls.append(("search_comments", {"query": _query(self._room.comment(name).text)}))
        return calls

    def _scoped(self, question: str, scope: str) -> str:
        """Name a product of the FAQ's scope by its link, where the current one is not of it."""
        latest = max(self._comments, key=lambda comment: comment.at_s)
        now = room_as_of(self._room, latest.at_s, comment=latest)
        holders = [product for product in now.room.products if scope in product.scopes]
        links = [p.link_no for p in holders if p.link_no is not None]
        is_current = any(p.product_id == now.current_product for p in holders)
        if is_current or scope == "room" or not links:
            return question
        return f"{self._words['link'].format(link_no=links[0])} {question}"

    def _absent(self, task: _Task) -> list[Call]:
        """Search what the room does not sell, to know that it does not."""
        names = [s.text[0] for a in task.asks for s in a.facts if s.kind == "absent" and s.text]
        return [("search_product_by_keyword", {"keyword": _query(name)}) for name in names]

    def _search_of(self, task: _Task) -> list[Call]:
        query = _query(task.text)
        return [("search_faq", {"query": query}), ("search_product_by_keyword", {"keyword": query})]

    def _product(self, record: str) -> Product | None:
        """Return the product that a search for the record has to find."""
        kind, _, name = record.partition(":")
        scopes = [p.scope for p in self._room.all_promotions if p.promotion_id == name]
        for product in self._room.products:
            if kind == "product" and product.product_id == name:
                return product
            if kind == "sku" and any(sku.sku_id == name for sku in product.variants):
                return product
            if kind == "promotion" and any(scope in product.scopes for scope in scopes):
                return product
        return None

    def _writes(self, task: _Task) -> list[Call]:
        state = task.state
        product = self._product(f"product:{state.get('product')}")
        link_no = product.link_no if product is not None else None
        position = state.get("position", state.get("position_at_most"))
        calls: list[Call] = []
        if link_no is not None and position is not None:
            calls.append(("move_product", {"link_no": link_no, "position": position}))
        if link_no is not None and "image" in state:
            calls.append(("show_image", {"link_no": link_no, "image": state["image"]}))
        if state.get("handed_off") or any(ask.acts[0] == "hand_off" for ask in task.asks):
            calls.append(("hand_off", {"reason": _query(task.text)}))
        return calls

    def _look_up_rules(self, _: Findings) -> list[Call]:
        intents = [
            intent
            for task in self._tasks
            for intent in ([ask.intent for ask in task.asks] or [_query(task.text)[:100]])
        ]
        intents = list(dict.fromkeys(intents))[:8]
        return [("get_reply_rule", {"intent": intents[0] if len(intents) == 1 else intents})]

    def _look_up_known_rule(self, found: Findings) -> list[Call]:
        if found.rules or not found.known_intents:
            return []
        return [("get_reply_rule", {"intent": found.known_intents[0]})]

    # --- the reply ----------------------------------------------------------------------------

    def _reply(self, found: Findings) -> Action:
        ignored = [task.comment_id for task in self._tasks if task.is_ignored]
        if len(ignored) == len(self._tasks):
            return Action.skip()
        draft = _Draft()
        for task in self._tasks:
            if not task.is_ignored:
                self._answer(task, found, draft)
        return replace(Action.reply(self._by_rules(draft, found)), skips=tuple(ignored))

    def _answer(self, task: _Task, found: Findings, draft: _Draft) -> None:
        told: list[str] = self._done(found) if task.state else []
        for ask in task.asks:
            act = ask.acts[0]
            told += [self._statement(statement, found) for statement in ask.facts]
            if act == "ask":
                draft.questions.append(self._question(ask.ask_for))
            elif act in ("hand_off", "decline", "chat"):
                told.append(self._words[act])
            extras = [e for e in ask.extras if e.record is None or self._is_found(e, found)]
            draft.extras += [self._statement(extra, found) for extra in extras]
        if not task.asks:
            told.append(self._unlabelled(found))
        asked_back = any(ask.acts[0] == "ask" for ask in task.asks)
        draft.told += told or ([] if asked_back else [self._words["fallback"]])

    def _question(self, slots: Sequence[str]) -> str:
        words = self._words
        return str(
            words["ask"].format(slots=words["and"].join(slots)) if slots else words["question"]
        )

    def _done(self, found: Findings) -> list[str]:
        """Say what the writes did."""
        fields = wording(self._language)["fields"]
        said = []
        for name, result in found.written.items():
            if name != "reason":
                link_no, value = result.get(fields["link_no"]), result[fields[name]]
                said.append(self._words[name].format(link_no=link_no, value=value))
        return said

    def _is_found(self, statement: Statement, found: Findings) -> bool:
        key = statement.record or "", statement.field or ""
        return statement.record == "quote" or found.values.get(key) is not None

    def _statement(self, statement: Statement, found: Findings) -> str:
        words = self._words
        if statement.kind == "absent":
            return str(words["absent"].format(name="".join(statement.text[:1])))
        if statement.record == "quote":
            total = found.total(statement.lines)
            known = words["total"] if total is not None else words["no_total"]
            return str(known.format(value=format_amount(total or 0)))
        records = [r for r in (statement.record, statement.other) if r is not None]
        said = [say(found, record, statement.field or "", statement.text) for record in records]
        return str(words["joiner"].join(said))

    def _unlabelled(self, found: Findings) -> str:
        """Answer by the first FAQ found, else by the first product's coupon price."""
        longest = self._room.limits.bullet_characters - len(self._words["prefix"])
        for (_, name), value in found.values.items():
            if name == "answer" and value:
                return _fitting(str(value), longest)
        for record, name in found.values:
            if name == "coupon_price":
                return say(found, record, name)
        return str(self._words["fallback"])

    def _by_rules(self, draft: _Draft, found: Findings) -> str:
        """Word the draft as the looked-up rules ask for, with as many extras as there is room."""
        rules = [rule for rule in self._room.reply_rules if rule.rule in found.rules]
        checks = [check for rule in rules for check in rule.checks]
        limits = [check.limit for check in checks if check.limit is not None]
        longest = min([self._room.limits.bullet_characters, *limits])
        text = self._worded(draft, checks)
        while len(text) > longest and draft.extras:
            draft.extras.pop()
            text = self._worded(draft, checks)
        return text

    def _worded(self, draft: _Draft, checks: Sequence[Check]) -> str:
        """Word the draft, and add what a check asks for that it does not hold."""
        parts, questions = [*draft.told, *draft.extras], list(draft.questions)
        for check in checks:
            text = "".join([*parts, *questions])
            mentioned = not check.any_of or any(fold(p) in fold(text) for p in check.any_of)
            if check.kind == "must_mention" and not mentioned:
                parts.append(check.any_of[0])
            elif check.kind == "must_ask" and not (asks(text) and mentioned):
                questions.append(self._question(check.any_of))
            elif check.kind == "must_add_link_number" and not link_numbers(text):
                link_no = self._link_no()
                parts += [] if link_no is None else [self._words["link"].format(link_no=link_no)]
        return joined(self._language, [*parts, *questions])

    def _link_no(self) -> int | None:
        """Return the link number of what is talked about: of a needed product, else the current."""
        for task in self._tasks:
            for ask in task.asks:
                for needed in ask.needed:
                    record = needed if isinstance(needed, str) else needed[0]
                    product = self._product(record)
                    if product is not None and product.link_no is not None:
                        return product.link_no
        return _current_link(self._room, self._comments)


_STAGES = (
    _Script._look_up,
    _Script._look_further,
    _Script._look_again,
    _Script._look_up_rules,
    _Script._look_up_known_rule,
)


def _unseen(asks: Sequence[Ask], found: Findings, *, first: bool = False) -> list[str]:
    """Return the records needed but not found, of each question `first` those of its first tool."""
    seen = {record for record, _ in found.values}
    missing: dict[str, None] = {}
    for ask in asks:
        tool = ""
        for needed in ask.needed:
            options = (needed,) if isinstance(needed, str) else needed
            tool = tool or _tool_of(options[0])
            if first and _tool_of(options[0]) != tool:
                break
            if not seen.intersection(options):
                missing[options[0]] = None
    return list(missing)


def _tool_of(record: str) -> str:
    """Return what tells the tools apart that find records."""
    kind = record.partition(":")[0]
    return kind if kind in ("faq", "script", "comment") else "product"


def _current_link(room: Room, comments: Sequence[Comment]) -> int | None:
    """Return the link number of the product being explained, as the prompt names it."""
    latest = max(comments, key=lambda comment: comment.at_s)
    current = room_as_of(room, latest.at_s, comment=latest).current_product
    return next((p.link_no for p in room.products if p.product_id == current), None)


def _query(text: str) -> str:
    """Make an argument of a text: within the tools' limits, and never empty."""
    return text.strip()[:200] or "?"


def _product_search(products: Sequence[Product], *, by_name: bool) -> Call:
    """Search products at once: by their link numbers, or by name."""
    links = [product.link_no for product in products]
    names = " ".join(dict.fromkeys(product.name for product in products))
    keyword = names if by_name or None in links else "、".join(f"{link}号链接" for link in links)
    return "search_product_by_keyword", {"keyword": keyword[:200]}


def _fitting(text: str, length: int) -> str:
    """Return as many whole sentences as fit; where not even one does, its beginning."""
    kept = ""
    for sentence in SENTENCE_END.split(text):
        if len(kept) + len(sentence) > length:
            break
        kept += sentence
    return kept or text[:length]


# --- the random agent ------------------------------------------------------------------------


class RandomAgent:
    """Draws calls and replies at random: a floor, and a check of spaces and parallel runs."""

    def __init__(self, seed: int = 0) -> None:
        self.seed = seed

    def start(self, observation: Observation, *, seed: Seed | None) -> _Random:
        """Return the agent of one episode, drawing from its own generator."""
        own = seed if isinstance(seed, tuple) else (seed or 0,)
        texts = [_query(comment.text)[:100] for comment in observation.comments]
        return _Random(np.random.default_rng((self.seed, *own)), texts)

    def act(self, messages: Sequence[Message], tools: Sequence[ToolSpec]) -> Action:
        """Refuse: the agent of an episode is made by `start`, which drivers call."""
        not_started()


class _Random:
    """The random agent of one episode."""

    def __init__(self, rng: np.random.Generator, texts: Sequence[str]) -> None:
        self._rng = rng
        self._texts = texts

    def act(self, messages: Sequence[Message], tools: Sequence[ToolSpec]) -> Action:
        """Draw a call of one of the tools, or a reply."""
        return random_action(self._rng, tools, self._texts, language=tools_language(tools))
