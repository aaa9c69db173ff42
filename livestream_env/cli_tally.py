"""What a set of played episodes came to: endings, calls, facts stated of those asked."""

from __future__ import annotations

import re
from collections import Counter
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from livestream_env.rooms import Moment, Room, Statement
    from livestream_env.types import Trajectory


@dataclass
class Tally:
    """What a summary counts of the trajectories of one agent."""

    episodes: int = 0
    stop_reasons: Counter[str] = field(default_factory=Counter)
    env_errors: int = 0
    causes: list[str] = field(default_factory=list)
    """Of failed episodes, at most one each."""
    calls: int = 0
    stated: int = 0
    asked: int = 0
    seconds: float = 0.0

    def add(self, trajectory: Trajectory, seconds: float = 0.0, room: Room | None = None) -> None:
        """Count a trajectory; with its room, also the facts that its reply states."""
        from livestream_env.types import Status

        self.episodes += 1
        self.seconds += seconds
        self.stop_reasons[str(trajectory.stop_reason)] += 1
        self.calls += sum(len(turn.action.message.tool_calls) for turn in trajectory.turns)
        if trajectory.status is Status.ENV_ERROR:
            self.env_errors += 1
            self.causes += [fault.detail for fault in trajectory.faults[-1:]]
        if room is not None:
            stated, asked = facts_stated(room, trajectory)
            self.stated += stated
            self.asked += asked

    @property
    def calls_each(self) -> float:
        """Tool calls an episode."""
        return self.calls / self.episodes if self.episodes else 0.0

    def row(self, name: str) -> tuple[str, ...]:
        """Return the row of the demo's table."""
        replied, unruled = self.stop_reasons["replied"], self.stop_reasons["replied_without_rule"]
        facts = f"{self.stated} / {self.asked}"
        counts = (str(self.episodes), str(replied), str(unruled), facts)
        return (name, *counts, f"{self.calls_each:.1f}", f"{self.seconds:.2f}")


def facts_stated(room: Room, trajectory: Trajectory) -> tuple[int, int]:
    """Count the facts that the comments' key asks for, as (stated in the last reply, asked).

    A fact with phrases is stated by one of them; any other by its value as of the comment, as a
    whole number or text. Facts that are not known cannot be stated and are not counted.
    """
    from livestream_env.rooms import room_as_of

    reply = trajectory.reply or ""
    stated = asked = 0
    for comment in map(room.comment, trajectory.comment_ids):
        moment = room_as_of(room, comment.at_s, comment=comment)
        for ask in comment.expected.asks if comment.expected else ():
            facts = [fact for fact in ask.facts if fact.kind != "unknown"]
            asked += len(facts)
            stated += sum(_states(reply, fact, moment) for fact in facts)
    return stated, asked


def _states(reply: str, fact: Statement, moment: Moment) -> bool:
    from livestream_env.words import fold

    if fact.text:
        return any(fold(phrase) in fold(reply) for phrase in fact.text)
    if fact.value is not None:
        return _holds(reply, fact.value)
    records = [record for record in (fact.record, fact.other) if record is not None]
    values = _values_of(moment)
    return all(_holds(reply, values.get((record, fact.field))) for record in records)


def _values_of(moment: Moment) -> dict[tuple[str, str | None], Any]:
    from livestream_env.rooms import promotions_of
    from livestream_env.tools import faq_fact, product_facts

    room = moment.room
    facts = [faq_fact(faq) for faq in room.faqs]
    for product in room.products:
        facts += product_facts(product, promotions_of(room, product), "")
    return {(fact.record, fact.field): fact.value for fact in facts}


def _holds(reply: str, value: Any) -> bool:
    """Return whether the reply holds the value; a number only as a whole one."""
    from livestream_env.words import format_amount

    if isinstance(value, str):
        return value in reply
    if value is None:
        return False
    number = format_amount(value)
    zeros = "0*" if "." in number else r"(?:\.0+)?"
    return re.search(rf"(?<![\d.]){re.escape(number)}{zeros}(?!\.?\d)", reply) is not None
