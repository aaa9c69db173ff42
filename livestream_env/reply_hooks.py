"""Verifiable hooks for the replier: what a reply states, whether it helps, how long it is."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import pairwise
from typing import Any, Literal

from livestream_env.claims import Claim
from livestream_env.coverage import (
    answered_by,
    answered_comments,
    holds,
    occurs,
    states_fact,
    with_total,
    without_money,
)
from livestream_env.evidence import LookUp, Reading, dodges
from livestream_env.keywords import has_han
from livestream_env.pricing import quote
from livestream_env.rooms import Ask, Room, Statement
from livestream_env.services import services
from livestream_env.types import Score, Trajectory
from livestream_env.words import asks, fold

Grounding = Literal["trajectory", "room"]
EXTRAS_SHARE = 0.2
COPIED_CHARACTERS = 120
"""So long a stretch of a result is a copy."""
LATIN_PER_HAN = 3
"""Characters of a text without Chinese that say as much as one of Chinese."""
PADDING = 4
"""Replies may be so many times as long as a bullet for each comment."""
MOST_PIECES = 6
MOST_ITEMS = 24
"""Totals are tried for so many pieces of so many things."""


@dataclass(frozen=True, slots=True)
class Hook:
    """A verifiable hook; as a reward hook, `hook(trajectory, room)`."""

    name: str
    agent: str
    of: Callable[[Reading], Score | list[Score]]

    def __call__(self, trajectory: Trajectory, room: Room | None) -> Score | list[Score]:
        return self.of(Reading(trajectory, room))


def made_score(
    name: str, agent: str, value: float | None, reason: str = "", cause: Any = None
) -> Score:
    """Return a score of the episode, rounded as records keep it."""
    value = None if value is None else round(value, 6)
    return Score(name, value, 1.0, agent, None, reason, cause)


# --- correctness ------------------------------------------------------------------------------


def correctness(grounding: Grounding = "trajectory") -> Hook:
    """Make the hook for what the reply states: 1 where every claim is supported, else 0.

    With `trajectory` the facts and the prompt of this episode count; with `room` all that the room
    holds as of the comments, and what is true but was not looked up is told as `lucky`. The
    fraction of supported claims is in the reason.
    """
    return Hook("correctness", "replier", partial(_correctness, grounding=grounding))


def _correctness(reading: Reading, grounding: Grounding = "trajectory") -> Score:
    if grounding == "room" and reading.world is None:
        return made_score("correctness", "replier", None, "the room is not known", "no_truth")
    faults, supported, total = _faults(reading, grounding)
    share = f"{supported}/{total} claims supported"
    reason = "; ".join((share, *faults)) if faults else share
    wrong = [fault for fault in faults if not fault.startswith(("lucky", "abstain"))]
    return made_score("correctness", "replier", 0.0 if wrong else 1.0, reason)


def _faults(reading: Reading, grounding: Grounding) -> tuple[list[str], int, int]:
    """Return what is wrong or remarkable in the replies, supported claims and all of them."""
    faults: list[str] = []
    supported = total = 0
    for number, claims in enumerate(reading.claims):
        for claim in claims:
            total += 1
            verdict = _verdict(reading, grounding, number, claim)
            supported += verdict in ("supported", "lucky")
            if verdict != "supported":
                faults.append(f"{verdict}: {claim.label}")
        for service in sorted(services(reading.rounds[number].text, reading.language)):
            total += 1
            verdict = _service_verdict(reading, grounding, service)
            supported += verdict in ("supported", "lucky")
            if verdict != "supported":
                faults.append(f"{verdict}: {service}")
        faults += _two_values(claims, reading.rounds[number].text)
        faults += _wrong_links(reading, number)
    faults += _must_nots(reading)
    return faults, supported, total


def _verdict(reading: Reading, grounding: Grounding, number: int, claim: Claim) -> str:
    if claim.kind in ("abstain", "absent", "act"):
        return _own_act(reading, number, claim)
    verdict: str = reading.seen.verdict(claim)
    if verdict == "supported" or reading.world is None:
        return verdict
    if claim.kind.startswith("price.") and _is_asked_total(reading, claim):
        return "supported"
    known = reading.world.ground.verdict(claim)
    if claim.kind == "link" and grounding == "trajectory" and known == "supported":
        return known if claim.value in reading.met_links else "unsupported"
    if claim.kind in ("product", "link"):
        return known
    if grounding == "room":
        return "lucky" if known == "supported" else known
    return verdict


def _service_verdict(reading: Reading, grounding: Grounding, service: str) -> str:
    if service in reading.seen.services:
        return "supported"
    world = reading.world if grounding == "room" else None
    return "lucky" if world is not None and service in world.ground.services else "unsupported"


def _is_asked_total(reading: Reading, claim: Claim) -> bool:
    """Whether an amount is what `quote` comes to for things that were seen: those that the key
    asks the total of, or pieces of the claim's own product."""
    assert reading.world is not None
    room = reading.world.moment.room
    for _, _, ask in reading.asks():
        for fact in (*ask.facts, *ask.extras):
            is_its = claim.sku is None or claim.sku in [item for item, _ in fact.lines]
            if fact.record != "quote" or not is_its or not _seen_all(reading, fact.lines):
                continue
            if with_total(fact, reading.world.moment).value == claim.value:
                return True
    own = [p for p in room.products if claim.product in (None, p.product_id)]
    items = [p.product_id for p in own if f"product:{p.product_id}" in reading.priced]
    items += [s.sku_id for p in own for s in p.skus if f"sku:{s.sku_id}" in reading.priced]
    if claim.sku is not None:
        items = [item for item in items if item == claim.sku]
    most = MOST_PIECES if claim.kind in ("price.total", "price.bundle") else 1
    pieces = [claim.pieces] if claim.pieces else range(1, most + 1)
    return any(
        quote(room, [(item, count)]).total == claim.value
        for item in items[:MOST_ITEMS]
        for count in pieces
    )


def _seen_all(reading: Reading, lines: Sequence[tuple[str, int]]) -> bool:
    priced = reading.priced
    return bool(lines) and all(
        f"product:{item}" in priced or f"sku:{item}" in priced for item, _ in lines
    )


def _own_act(reading: Reading, number: int, claim: Claim) -> str:
    """Judge what the host says of itself: what it did, and that a thing is not to be had."""
    if claim.kind == "act":
        tool = _TOOL_OF_ACT[str(claim.value)]
        calls = _calls_before(reading, number)
        done = any(c.call.name == tool and c.result.error is None for c in calls)
        return "supported" if done else "unsupported"
    if claim.kind == "absent":
        if not _searched(reading, number):
            return "unsupported"
        return "contradicted" if _found_asked(reading, number) else "supported"
    return "abstain_unjustified" if _holds_asked(reading, number) else "supported"


_TOOL_OF_ACT = {"moved": "move_product", "shown": "show_image", "handed_off": "hand_off"}


def _calls_before(reading: Reading, number: int) -> list[LookUp]:
    """Return every call up to the reply of a round."""
    return [look_up for one in reading.rounds[: number + 1] for look_up in one.look_ups]


def _holds_asked(reading: Reading, number: int) -> bool:
    """Whether the evidence holds every record that a round's questions need."""
    mine = [ask for i, _, ask in reading.asks() if i == number]
    wanted = [need for ask in mine for need in ask.needed]
    if not wanted or any(fact.kind == "unknown" for ask in mine for fact in ask.facts):
        return False
    seen = _records_before(reading, number)
    return all(is_met(need, seen) for need in wanted)


def _found_asked(reading: Reading, number: int) -> bool:
    """Whether what a round asks about is sold, and was found."""
    mine = [ask for i, _, ask in reading.asks() if i == number]
    if any(fact.kind == "absent" for ask in mine for fact in ask.facts):
        return False
    needs = [need for ask in mine for need in ask.needed]
    records = [one for need in needs for one in ((need,) if isinstance(need, str) else need)]
    is_sold = any(record.startswith(("product:", "sku:")) for record in records)
    return is_sold and _holds_asked(reading, number)


def _two_values(claims: Sequence[Claim], text: str) -> list[str]:
    """Return contradictions: two amounts of one kind for one thing, or one amount or another."""
    found = []
    prices = [c for c in claims if c.kind in ("price.plain", "price.list", "price.coupon")]
    for first, second in pairwise(sorted(prices, key=lambda claim: claim.start)):
        is_same = (first.kind, first.product) == (second.kind, second.product)
        if not is_same or first.value == second.value or first.sku != second.sku:
            continue
        hedges = _EITHER.search(text, first.stop, second.start) is not None
        if hedges or first.kind != "price.plain":
            found.append(f"two values: {first.label} and {second.label}")
    hedged = (match.groups() for match in _HEDGED.finditer(fold(text)))
    found += [f"two values: {one} or {other}" for one, other in hedged if one != other]
    return found


def _wrong_links(reading: Reading, number: int) -> list[str]:
    """Return the links that a reply gives to another product than the one it names beside them."""
    text = reading.rounds[number].text
    named = {one.product_id: one.name for one in reading.product_names}
    by_link: dict[Any, str] = {one.link_no: one.product_id for one in reading.product_names}
    pairs = [c for c in reading.claims[number] if c.kind in ("product", "link")]
    found = []
    for first, second in pairwise(sorted(pairs, key=lambda claim: claim.start)):
        link, product = (first, second) if first.kind == "link" else (second, first)
        owner = by_link.get(link.value)
        if product.kind != "product" or owner is None or product.value not in named:
            continue
        joins = (_IS if first is link else _AT).fullmatch(text, first.stop, second.start)
        if joins and owner != product.value and fold(product.text) not in fold(named[owner]):
            found.append(f"wrong_product: {link.label}")
    return found


_AT = re.compile(r"\s*(?:就?[在是为]|[（(【:：]|is(?: at| under| on)?|at|under|on)?\s*")
_IS = re.compile(r"\s*(?:的|就?是|[:：=]|is)\s*(?:the\s+)?")
"""What stands between a product and its link, and between a link and its product."""
_AMOUNT = r"(\d+(?:\.\d+)?)"
_HEDGED = re.compile(
    rf"(?:可能|也许|或许|maybe|perhaps)[^\d，。；;]{{0,8}}{_AMOUNT}\s*(?:元|块钱?)?\s*[,，]?\s*"
    rf"(?:也?可能|也许|或许?者?|要么|or\b|maybe|perhaps)[^\d，。；;]{{0,10}}{_AMOUNT}(?!\.?\d)"
    r"\s*(?:元|块)"
)
"""One amount of money or another, one of which no claim may tell."""
_EITHER = re.compile(r"或|要么|要不|\bor\b|\beither\b", re.IGNORECASE)


def _must_nots(reading: Reading) -> list[str]:
    return [
        f"must not say: {statement.record or ''} {statement.field or ''}".rstrip()
        for number, _, ask in reading.asks()
        for statement in ask.must_not
        if _says(reading, number, statement)
    ]


def _says(reading: Reading, number: int, statement: Statement) -> bool:
    """Whether a reply makes a statement: by its phrases, or by a claim of its value."""
    assert reading.world is not None
    text, value = reading.rounds[number].text, statement.value
    if statement.text or isinstance(value, str) or value is None:
        return states_fact(text, statement, reading.world.values)
    claims = [c for c in reading.claims[number] if c.kind not in ("link", "product")]
    return any(claim.value == value for claim in claims)


# --- helpfulness ------------------------------------------------------------------------------


def helpfulness(grounding: Grounding = "trajectory") -> Hook:
    """Make the hook for what was asked and is stated, right and looked up; the mean over the
    questions. With `room`, for hosts whose calls are not known, nothing needs a look-up."""
    return Hook("helpfulness", "replier", partial(_helpfulness, grounding=grounding))


def _helpfulness(reading: Reading, grounding: Grounding = "trajectory") -> Score:
    asked = list(reading.asks())
    if reading.world is None or not asked:
        return made_score("helpfulness", "replier", None, "no key", "no_truth")
    parts = [_answered(reading, number, comment, ask, grounding) for number, comment, ask in asked]
    value = sum(parts) / len(parts) * _relevance(reading)
    met = sum(part > 0 for part in parts)
    return made_score("helpfulness", "replier", value, f"{met}/{len(parts)} asks")


def _answered(
    reading: Reading, number: int, comment_id: str, ask: Ask, grounding: Grounding
) -> float:
    """Return how far one question was met, by the best of its right acts."""
    if comment_id not in _answered_in(reading, number):
        return float("ignore" in ask.acts)
    if ask.acts == ("ignore",) and _is_unmarked(reading, number):
        return 1.0
    return max(_acted(reading, number, ask, act, grounding) for act in ask.acts)


def _answered_in(reading: Reading, number: int) -> set[str]:
    """Return which comments of a round its reply answers, repeats included."""
    if len(reading.rounds) == 1:
        assert reading.room is not None
        return answered_comments(reading.room, reading.trajectory)
    one = reading.rounds[number]
    ids = tuple(dict.fromkeys(comment for comment, _ in one.asks))
    return set() if one.reply is None else answered_by(one.reply, ids)


def _is_unmarked(reading: Reading, number: int) -> bool:
    """Whether a reply does not tell which of several comments it answers: it is for those that
    are due."""
    one = reading.rounds[number]
    marks = one.reply is not None and (one.reply.covers or one.reply.skips)
    due = [ask for i, _, ask in reading.asks() if i == number and ask.acts != ("ignore",)]
    return bool(due) and not marks


def _acted(reading: Reading, number: int, ask: Ask, act: str, grounding: Grounding) -> float:
    one = reading.rounds[number]
    if act == "ignore" or not _says_something(reading, one.text, act):
        return 0.0
    is_dodge = dodges(claim.kind for claim in reading.claims[number])
    is_dodge = is_dodge and not _tells(reading, number, grounding)
    if act == "answer":
        told = _stated(reading, number, ask, grounding)
        return 0.0 if is_dodge and not ask.facts else told
    if act == "ask":
        slots = [fold(slot) in fold(one.text) for slot in ask.ask_for]
        return float(asks(one.text)) * (sum(slots) / len(slots) if slots else 1.0)
    if act == "hand_off":
        return float(one.hands_off and (not is_dodge or _SOMEONE.search(one.text) is not None))
    return float(not is_dodge and (act == "chat" or not _must_nots(reading)))


def _tells(reading: Reading, number: int, grounding: Grounding) -> bool:
    """Whether a reply states a fact that a round asks for, so that it is no dodge."""
    return any(
        is_stated(reading, number, fact, grounding)
        for i, _, ask in reading.asks()
        for fact in ask.facts
        if i == number and fact.kind != "unknown"
    )


def _says_something(reading: Reading, text: str, act: str) -> bool:
    """Whether a reply has words of its own: more than the viewer's; to chat, a sign is enough."""
    assert reading.room is not None
    said = fold(text)
    asked = map(reading.room.comment, reading.trajectory.comment_ids)
    for question in sorted((fold(comment.text) for comment in asked), key=len, reverse=True):
        if question and question in said:
            said = said.replace(question, "")
            act = ""
    return bool(said.strip()) if act == "chat" else any(map(str.isalnum, said))


_SOMEONE = re.compile(
    r"人工|客服|同事|专人|售后|\b(?:colleagues?|support|team|someone|staff|human)\b", re.IGNORECASE
)
"""Whom a viewer may be handed to."""


def _abstains(reading: Reading, number: int) -> bool:
    return any(claim.kind == "abstain" for claim in reading.claims[number])


def _stated(reading: Reading, number: int, ask: Ask, grounding: Grounding) -> float:
    """Return four fifths for the facts that were asked, one for extras that help."""
    met = [is_stated(reading, number, fact, grounding) for fact in ask.facts]
    facts = sum(met) / len(met) if met else 1.0
    extras = [is_stated(reading, number, extra, "room") for extra in ask.extras]
    if not extras:
        return facts
    return facts * (1 - EXTRAS_SHARE) + facts * EXTRAS_SHARE * (sum(extras) / len(extras))


def is_stated(
    reading: Reading, number: int, fact: Statement, grounding: Grounding = "trajectory"
) -> bool:
    """Return whether a reply states a fact of the key, and with `trajectory` looked it up."""
    seen = _records_before(reading, number)
    looks = grounding == "trajectory"
    if fact.kind == "unknown":
        return _abstains(reading, number) and (
            not looks or fact.record is None or fact.record in seen
        )
    if fact.kind == "absent":
        return _says_absent(reading, number, fact) and (not looks or _searched(reading, number))
    return _is_told(reading, number, fact, grounding) and (not looks or _was_seen(fact, seen))


def _says_absent(reading: Reading, number: int, fact: Statement) -> bool:
    """Whether a reply says that a thing is not to be had, not merely its name."""
    if any(claim.kind == "absent" for claim in reading.claims[number]):
        return True
    text = reading.rounds[number].text
    return _NO.search(fold(text)) is not None and any(fold(one) in fold(text) for one in fact.text)


_NO = re.compile(r"没|无|不|未|\b(?:no|not|none|never|without|cannot|unavailable)\b|n['’]t\b")


def _is_told(reading: Reading, number: int, fact: Statement, grounding: Grounding) -> bool:
    """Whether a reply states a fact: by its words, or by a claim of its value that holds."""
    assert reading.world is not None
    if fact.text:
        return any(_says_phrase(reading, number, phrase, grounding) for phrase in fact.text)
    fact = with_total(fact, reading.world.moment)
    values = [fact.value]
    if fact.value is None:
        records = [record for record in (fact.record, fact.other) if record is not None]
        values = [reading.world.values.get((record, fact.field)) for record in records]
    return all(_says_value(reading, number, fact, value, grounding) for value in values)


def _says_phrase(reading: Reading, number: int, phrase: str, grounding: Grounding) -> bool:
    """Whether a phrase is said, and not in a statement that does not hold."""
    if not occurs(phrase, reading.rounds[number].text):
        return False
    key = fold(phrase)
    told = [c for c in reading.claims[number] if c.kind not in ("abstain", "product", "link")]
    its = [c for c in told if fold(c.text) in key or key in fold(c.text)]
    return not its or any(_is_right(reading, grounding, number, claim) for claim in its)


def _says_value(
    reading: Reading, number: int, fact: Statement, value: Any, grounding: Grounding
) -> bool:
    """Whether a value is said. A price or a stock is where a claim of it holds; money without a
    claim is denied, asked or told of a condition, while a bare number may still be meant."""
    text = reading.rounds[number].text if fact.field == "link_no" else reading.unlinked(number)
    kinds = _KINDS_OF_FIELD.get("price" if fact.record == "quote" else fact.field or "")
    if kinds is None or not isinstance(value, (int, float)):
        return holds(text, value)
    its = [claim for claim in reading.claims[number] if _is_value(claim, value)]
    if its:
        its = [claim for claim in its if claim.kind.startswith(kinds)]
        return any(_is_right(reading, grounding, number, claim) for claim in its)
    return holds(without_money(text), value)


_KINDS_OF_FIELD = {"price": ("price.",), "coupon_price": ("price.",), "stock": ("stock", "count")}


def _is_value(claim: Claim, value: float) -> bool:
    """Whether a claim is of a value: about, within two per cent; a stock of 0 may be said so."""
    if isinstance(claim.value, str):
        return claim.value == "out" and value == 0
    return abs(claim.value - value) <= (0.02 * abs(value) if claim.approx else 0.005)


def _is_right(reading: Reading, grounding: Grounding, number: int, claim: Claim) -> bool:
    return _verdict(reading, grounding, number, claim) in ("supported", "lucky")


def _records_before(reading: Reading, number: int) -> frozenset[str]:
    return reading.shown.union(*(c.records for c in _calls_before(reading, number)))


def _was_seen(fact: Statement, seen: frozenset[str]) -> bool:
    """Whether what a fact is about was looked up; of a quote, the things that it counts."""
    records = [record for record in (fact.record, fact.other) if record]
    records = [record for record in records if record != "quote"]
    return all(record in seen for record in records)


def _searched(reading: Reading, number: int) -> bool:
    calls = _calls_before(reading, number)
    return any("search" in c.call.name and c.result.error is None for c in calls)


def _relevance(reading: Reading) -> float:
    """Return 1 for replies in words of their own; less where they pad, 0 where they copy results.

    Padding costs in proportion: beyond six claims and three for each question, and beyond
    `PADDING` times the bullet's length for each comment.
    """
    told = [message.content for turn in reading.trajectory.turns for message in turn.messages]
    if _recites(reading) or any(_copies(one.text, told) for one in reading.rounds):
        return 0.0
    stated = sum(map(len, reading.claims))
    allowed = 6 + 3 * sum(1 for _ in reading.asks())
    assert reading.room is not None
    bullet = reading.room.limits.bullet_characters
    longest = PADDING * bullet * max(1, len(reading.trajectory.comment_ids))
    said = max(len(one.text) for one in reading.rounds)
    return min(1.0, allowed / max(1, stated), longest / max(1, said))


def _copies(text: str, told: Sequence[str]) -> bool:
    """Whether a reply holds JSON, or a long stretch of a result word for word."""
    if _JSON.search(text):
        return True
    least = COPIED_CHARACTERS * _width(text)
    pieces = [text[i : i + least] for i in range(0, max(0, len(text) - least + 1), 10)]
    return any(piece in content for content in told for piece in pieces)


_JSON = re.compile(r"[{\[]\s*[{\"'“]\s*\w|[\"'”]\s*[:：]\s*[\[{\"'“\d]")
"""What only JSON, or what comes of it, looks like."""


def _recites(reading: Reading) -> bool:
    """Whether a reply says a rule that was looked up, which tells the host how to reply."""
    facts = [f for one in reading.rounds for c in one.look_ups for f in c.result.data if c.is_rule]
    rules = {fold(str(fact.value)).rstrip("。.") for fact in facts if fact.field == "rule"}
    long = [rule for rule in rules if len(rule) >= _LEAST_RULE * _width(rule)]
    return any(rule in fold(one.text) for one in reading.rounds for rule in long)


_LEAST_RULE = 8
"""Characters of a rule that nobody says by chance."""


def _width(text: str) -> int:
    """Return how many characters of a text say as much as one of Chinese."""
    return 1 if has_han(text) else LATIN_PER_HAN


def is_met(need: str | tuple[str, ...], records: Any) -> bool:
    """Return whether a need, or one of its alternatives, is among records."""
    return any(one in records for one in ((need,) if isinstance(need, str) else need))


# --- outcome and length -----------------------------------------------------------------------


def outcome(reading: Reading) -> Score:
    """Score the result: helpful as far as it is correct."""
    correct, helpful = _correctness(reading), _helpfulness(reading)
    if helpful.value is None or correct.value is None:
        return made_score("outcome", "replier", correct.value, "correctness alone: no key")
    return made_score("outcome", "replier", correct.value * helpful.value)


def length(low: int = 10, full: int = 40, high: int = 60) -> Hook:
    """Make the hook for a reply's characters: rising to 1 at `low`, 1 up to `full`, 0 from `high`.

    It earns nothing where correctness does not. Three characters of a text without Chinese count
    as one; speech counts 4.5 characters a second, like text.
    """

    return Hook("length", "replier", partial(_length, low=low, full=full, high=high))


def _length(reading: Reading, *, low: int, full: int, high: int) -> Score:
    last = reading.rounds[-1]
    is_skipped = last.reply is not None and last.reply.skips and not last.text.strip()
    if is_skipped and _is_to_ignore(reading):
        return made_score("length", "replier", None, "nothing is to be said", "not_applicable")
    if _correctness(reading).value != 1.0:
        return made_score("length", "replier", 0.0, "the reply is not correct")
    text = last.text.strip()
    count = len(text) / _width(text)
    return made_score(
        "length", "replier", length_band(count, low, full, high), f"{len(text)} characters"
    )


def _is_to_ignore(reading: Reading) -> bool:
    number = len(reading.rounds) - 1
    mine = [ask for i, _, ask in reading.asks() if i == number]
    return bool(mine) and all("ignore" in ask.acts for ask in mine)


def length_band(count: float, low: int = 10, full: int = 40, high: int = 60) -> float:
    """Return the band's value: `count / low` below `low`, 1 to `full`, linear to 0 at `high`."""
    if count < low:
        return count / low
    return min(1.0, max(0.0, (high - count) / (high - full)))
