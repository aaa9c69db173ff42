"""How a host goes about it: which act each step was, use of FAQs, the wording of look-ups."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from typing import Literal

from livestream_env.evidence import Reading
from livestream_env.reply_hooks import is_stated
from livestream_env.rooms import Ask, Room
from livestream_env.types import Score, Trajectory
from livestream_env.words import asks, fold, link_numbers

ACTS = ("reply", "ask", "hand_off", "ignore")
_AS_REPLY = ("answer", "decline", "chat")
Played = Iterable[tuple[Trajectory, Room]]


def act_confusion(played: Played) -> Counter[tuple[str, str]]:
    """Count (right act, act taken) of every question of the key.

    Answering, declining and chatting are all a reply; where several acts are right, the one that
    was taken counts as right.
    """
    counts: Counter[tuple[str, str]] = Counter()
    for trajectory, room in played:
        reading = Reading(trajectory, room)
        for number, comment_id, ask in reading.asks():
            taken = _act_taken(reading, number, comment_id)
            right = ["reply" if act in _AS_REPLY else act for act in ask.acts]
            counts[taken if taken in right else right[0], taken] += 1
    return counts


def _act_taken(reading: Reading, number: int, comment_id: str) -> str:
    one = reading.rounds[number]
    skips = () if one.reply is None else one.reply.skips
    if not one.text.strip() or comment_id in skips or "*" in skips:
        return "ignore"
    if one.hands_off:
        return "hand_off"
    return "ask" if asks(one.text) else "reply"


def abstention(reading: Reading) -> Literal["justified", "unjustified"] | None:
    """Return whether the last reply had reason to say that it cannot tell; `None` where it does
    not say so.

    With a key there is reason where declining or handing off is right, where what is asked is not
    known and was looked up, or where it is not to be had and a search came back empty; without a
    key, where a search of the round came back empty.
    """
    if not reading.abstains:
        return None
    number = len(reading.rounds) - 1
    mine = [ask for i, _, ask in reading.asks() if i == number]
    has_reason = any(look_up.is_empty for look_up in reading.rounds[number].look_ups)
    if mine:
        has_reason = any(_may_abstain(reading, number, ask, has_reason) for ask in mine)
    return "justified" if has_reason else "unjustified"


def _may_abstain(reading: Reading, number: int, ask: Ask, searched_in_vain: bool) -> bool:
    if "decline" in ask.acts or "hand_off" in ask.acts:
        return True
    if searched_in_vain and any(fact.kind == "absent" for fact in ask.facts):
        return True
    unknown = [fact for fact in ask.facts if fact.kind == "unknown"]
    return any(is_stated(reading, number, fact) for fact in unknown)


def faq_utilisation(played: Played) -> float | None:
    """Return the share of episodes that need an FAQ whose reply states one that was looked up.

    `None` where no episode needs one.
    """
    relevant = used = 0
    for trajectory, room in played:
        reading = Reading(trajectory, room)
        facts = [
            (number, fact)
            for number, _, ask in reading.asks()
            for fact in ask.facts
            if fact.record is not None and fact.record.startswith("faq:")
        ]
        relevant += bool(facts)
        used += any(is_stated(reading, number, fact) for number, fact in facts)
    return used / relevant if relevant else None


def explicit_query(trajectory: Trajectory, room: Room | None) -> Score:
    """Score how many searches name what is meant: a link number, or two letters in a row of the
    name or question of a needed record. For monitoring; it asks nothing of a key without needs."""
    reading = Reading(trajectory, room)
    needed = {
        record
        for _, _, ask in reading.asks()
        for need in ask.needed
        for record in ((need,) if isinstance(need, str) else need)
    }
    queries = [
        str(text)
        for one in reading.rounds
        for look_up in one.look_ups
        if look_up.call.name.startswith("search_")
        for text in look_up.call.arguments.values()
    ]
    if reading.world is None or not needed or not queries:
        return Score("explicit_query", None, 1.0, "tool_caller", None, "", "not_applicable")
    names = list(_names(reading, needed))
    clear = sum(any(_overlaps(query, name, link) for name, link in names) for query in queries)
    reason = f"{clear}/{len(queries)} searches name what is meant"
    return Score("explicit_query", round(clear / len(queries), 6), 1.0, "tool_caller", None, reason)


def _names(reading: Reading, needed: set[str]) -> Iterable[tuple[str, int | None]]:
    assert reading.world is not None
    room = reading.world.moment.room
    for product in room.products:
        records = {f"product:{product.product_id}", *(f"sku:{s.sku_id}" for s in product.skus)}
        if records & needed:
            yield product.name, product.link_no
    for faq in room.faqs:
        if f"faq:{faq.faq_id}" in needed:
            yield faq.question, None
    for segment in room.script:
        if f"script:{segment.segment_id}" in needed:
            yield segment.text, None


def _overlaps(query: str, name: str, link_no: int | None) -> bool:
    if link_no is not None and link_no in link_numbers(query):
        return True
    folded = fold(query)
    return any(folded[i : i + 2] in fold(name) for i in range(len(folded) - 1))
