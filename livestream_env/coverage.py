"""What a reply covers of what was asked: facts stated, comments answered."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

from livestream_env.rooms import Comment, Moment, Room, Statement, promotions_of, room_as_of
from livestream_env.tools import faq_fact, product_facts
from livestream_env.types import Action, Trajectory
from livestream_env.words import fold, format_amount


def facts_stated(room: Room, trajectory: Trajectory) -> tuple[int, int]:
    """Count the facts that the comments' key asks for, as (stated in the last reply, asked).

    A fact with phrases is stated by one of them; any other by its value as of the comment, as a
    whole number or text. Facts that are not known cannot be stated and are not counted.
    """
    reply = _said(trajectory)
    stated = asked = 0
    for comment in map(room.comment, trajectory.comment_ids):
        values = values_of(room_as_of(room, comment.at_s, comment=comment))
        for ask in comment.expected.asks if comment.expected else ():
            facts = [fact for fact in ask.facts if fact.kind != "unknown"]
            asked += len(facts)
            stated += sum(states_fact(reply, fact, values) for fact in facts)
    return stated, asked


def states_fact(reply: str, fact: Statement, values: Values) -> bool:
    """Return whether a reply states a fact of the key, by its phrases or its value as of then."""
    if fact.text:
        return any(fold(phrase) in fold(reply) for phrase in fact.text)
    if fact.value is not None:
        return _holds(reply, fact.value)
    records = [record for record in (fact.record, fact.other) if record is not None]
    return all(_holds(reply, values.get((record, fact.field))) for record in records)


Values = Mapping[tuple[str, str | None], Any]
"""What each (record, field) of a room holds."""


def values_of(moment: Moment) -> Values:
    """Return what the records of a room hold as of a moment."""
    room = moment.room
    facts = [faq_fact(faq) for faq in room.faqs]
    for product in room.products:
        facts += product_facts(product, promotions_of(room, product), "")
    return {(fact.record, fact.field): fact.value for fact in facts}


def _holds(reply: str, value: Any) -> bool:
    """Return whether the reply holds the value; a number only as a whole one."""
    if isinstance(value, str):
        return value in reply
    if value is None:
        return False
    number = format_amount(value)
    zeros = "0*" if "." in number else r"(?:\.0+)?"
    return re.search(rf"(?<![\d.]){re.escape(number)}{zeros}(?!\.?\d)", reply) is not None


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
        is_rejected = any(event.kind in ("reminder", "cut") for event in turn.events)
        if action.message.tool_calls or is_rejected or trajectory.reply is None:
            continue
        found |= _answered_by(action, trajectory.comment_ids)
    repeats = {c for c in trajectory.comment_ids if room.comment(c).same_as in found}
    return found | repeats


def _answered_by(action: Action, comment_ids: tuple[str, ...]) -> set[str]:
    if not (action.message.content.strip() or action.speech):
        return set()
    skipped = comment_ids if "*" in action.skips else action.skips
    return (set(action.covers) or set(comment_ids) - set(skipped)) & set(comment_ids)
