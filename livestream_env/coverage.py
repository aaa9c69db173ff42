"""What a reply covers of what was asked: facts stated, comments answered."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

from livestream_env.pricing import quote
from livestream_env.rooms import Comment, Moment, Room, Statement, promotions_of, room_as_of
from livestream_env.tools import faq_fact, product_facts
from livestream_env.types import Action, Trajectory
from livestream_env.words import fold, format_amount


def facts_stated(room: Room, trajectory: Trajectory) -> tuple[int, int]:
    """Count the facts that the comments' key asks for, as (stated in the last reply, asked).

    A fact with phrases is stated by one of them; any other by its value as of the comment. Numbers
    count as whole ones, and what is denied is not stated. Facts that are not known cannot be stated
    and are not counted.
    """
    reply = _said(trajectory)
    stated = asked = 0
    for comment in map(room.comment, trajectory.comment_ids):
        moment = room_as_of(room, comment.at_s, comment=comment)
        values = values_of(moment)
        for ask in comment.expected.asks if comment.expected else ():
            facts = [fact for fact in ask.facts if fact.kind != "unknown"]
            asked += len(facts)
            known = [with_total(fact, moment) for fact in facts]
            stated += sum(states_fact(reply, fact, values) for fact in known)
    return stated, asked


def with_total(fact: Statement, moment: Moment) -> Statement:
    """Return a fact of the key; a quote without a value with what its lines come to."""
    if fact.record != "quote" or fact.value is not None:
        return fact
    return fact.model_copy(update={"value": quote(moment.room, fact.lines).total})


def states_fact(reply: str, fact: Statement, values: Values) -> bool:
    """Return whether a reply states a fact of the key, by its phrases or its value as of then."""
    if fact.text:
        return any(occurs(phrase, reply) for phrase in fact.text)
    if fact.value is not None:
        return holds(reply, fact.value)
    records = [record for record in (fact.record, fact.other) if record is not None]
    return all(holds(reply, values.get((record, fact.field))) for record in records)


Values = Mapping[tuple[str, str | None], Any]
"""What each (record, field) of a room holds."""


def values_of(moment: Moment) -> Values:
    """Return what the records of a room hold as of a moment."""
    room = moment.room
    facts = [faq_fact(faq) for faq in room.faqs]
    for product in room.products:
        facts += product_facts(product, promotions_of(room, product), "")
    return {(fact.record, fact.field): fact.value for fact in facts}


def occurs(phrase: str, text: str) -> bool:
    """Return whether a text says a phrase, in whole numbers and with no denial before it."""
    wanted = _plain(phrase)
    before = r"(?<!\d)(?<!\d\.)" if wanted[:1].isdigit() else ""
    after = r"(?!\.?\d)" if wanted[-1:].isdigit() else ""
    said, pattern = _plain(text), f"{before}{re.escape(wanted)}{after}"
    return any(not _is_denied(said, found.start()) for found in re.finditer(pattern, said))


_MONEY = re.compile(
    r"[¥$]\s*(\d+(?:\.\d+)?)(?:\s*(?:元|块钱?))?"
    r"|(?<!\d)(\d+(?:\.\d+)?)\s*(?:元|块钱?|(?:dollars?|bucks?|yuan)\b)"
)
_THOUSANDS = re.compile(r"(?<=\d),(?=\d{3}(?!\d))")
_DENIAL = re.compile(
    r"(?:不|没|没有|不是|不再是|并非|绝非)\s*[¥$]?$"
    r"|(?:\bnot|n't|\bnever|\bno longer|\bisnt)(?: (?:a|an|the|for|at|over|in|within))*\s*\W?$"
)
"""What stands before something that is denied."""
_NEAR = 40
"""So many characters before a phrase may deny it."""


def _is_denied(text: str, start: int) -> bool:
    return _DENIAL.search(text[max(0, start - _NEAR) : start]) is not None


def _plain(text: str) -> str:
    """Return a text's key in which sums of money are written alike."""
    folded = _THOUSANDS.sub("", fold(text).replace("’", "'"))
    return _MONEY.sub(lambda found: f"${found[1] or found[2]} ", folded)


def without_money(text: str) -> str:
    """Return a text's key without the sums that are written as money."""
    return _MONEY.sub(" ", _THOUSANDS.sub("", fold(text)))


def holds(reply: str, value: Any) -> bool:
    """Return whether a reply holds a value, a number only as a whole one."""
    if value is None:
        return False
    if isinstance(value, str):
        return occurs(value, reply)
    number = format_amount(value)
    zeros = "0*" if "." in number else r"(?:\.0+)?"
    pattern = rf"(?<!\d)(?<!\d\.){re.escape(number)}{zeros}(?!\.?\d)"
    said = _THOUSANDS.sub("", fold(reply))
    return any(not _is_denied(said, found.start()) for found in re.finditer(pattern, said))


def _said(trajectory: Trajectory) -> str:
    """Return the text of the reply that ended the episode, bullet and speech."""
    if trajectory.reply is None:
        return ""
    action = trajectory.turns[-1].action
    return "\n".join(filter(None, (action.message.content, action.speech)))


def comment_f1(room: Room, trajectory: Trajectory) -> float:
    """Return the F1 of the comments that were answered against those that were due.

    Due is a comment whose key lists any act but `ignore`, or that has no key; one that repeats
    another is due as that one is. 1.0 where none was due and none was answered.
    """
    due = {c for c in trajectory.comment_ids if _is_due(room, room.comment(c))}
    answered = answered_comments(room, trajectory)
    if not due and not answered:
        return 1.0
    return 2 * len(due & answered) / (len(due) + len(answered))


def _is_due(room: Room, comment: Comment) -> bool:
    if comment.same_as is not None and comment.expected is None:
        return _is_due(room, room.comment(comment.same_as))
    asks = comment.expected.asks if comment.expected is not None else ()
    return not asks or any(act != "ignore" for ask in asks for act in ask.acts)


def answered_comments(room: Room, trajectory: Trajectory) -> set[str]:
    """Return the comments that the replies of the episode answered, repeats included."""
    found: set[str] = set()
    for turn in trajectory.turns:
        action = turn.action
        if turn.agent == "tool_caller":
            continue
        is_rejected = any(event.kind in ("reminder", "cut") for event in turn.events)
        if action.message.tool_calls or is_rejected or trajectory.reply is None:
            continue
        found |= answered_by(action, trajectory.comment_ids)
    repeats = {c for c in trajectory.comment_ids if room.comment(c).same_as in found}
    return found | repeats


def answered_by(action: Action, comment_ids: tuple[str, ...]) -> set[str]:
    """Return which of the comments a reply answers; one that skips all of them and yet says
    something answers them."""
    if not (action.message.content.strip() or action.speech):
        return set()
    skipped = comment_ids if "*" in action.skips else action.skips
    return (set(action.covers) or set(comment_ids) - set(skipped) or set(comment_ids)) & set(
        comment_ids
    )
