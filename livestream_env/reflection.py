"""How an agent takes a miss: whether it looks again, and better."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import NamedTuple

from livestream_env.evidence import LookUp, Reading, Round
from livestream_env.rooms import Ask, Room
from livestream_env.types import Trajectory
from livestream_env.words import fold

Brings = Callable[[LookUp, frozenset[str]], frozenset[str]]
"""Of what is wanted, that which a look-up brought."""
_HIT = frozenset({"a hit"})
"""What a search is wanted for where no key says more."""


class Recovery(NamedTuple):
    """Look-ups that missed, and those that a later, other one of the same round made good."""

    recovered: int
    missed: int

    @property
    def rate(self) -> float | None:
        """The share made good; `None` where nothing was missed."""
        return self.recovered / self.missed if self.missed else None


def recoveries(trajectory: Trajectory, room: Room | None = None) -> Recovery:
    """Count the look-ups of an episode that missed, and those made good before the reply.

    With a key, a search misses that holds none of the records still needed, and a rule look-up
    that gives no rule of a question still without one; without, those that are empty or refused.
    A look-up is made good by a later one with other arguments that holds what was missing.
    """
    return recoveries_of(Reading(trajectory, room))


def recoveries_of(reading: Reading) -> Recovery:
    """Count as `recoveries` does, for who has the reading."""
    recovered = missed = 0
    for number, one in enumerate(reading.rounds):
        asks = [ask for i, _, ask in reading.asks() if i == number]
        for counted in (_of_searches(reading, one, asks), _of_rules(reading, one, asks)):
            recovered, missed = recovered + counted.recovered, missed + counted.missed
    return Recovery(recovered, missed)


def _of_searches(reading: Reading, one: Round, asks: Sequence[Ask]) -> Recovery:
    searches = [c for c in one.look_ups if not c.is_rule and c.result.state is None]
    if not asks:
        return _counted(searches, _HIT, lambda c, wanted: wanted if c.records else frozenset())
    needs = {str(need): need for ask in asks for need in ask.needed}
    seen = {fact.record for fact in reading.trajectory.evidence}

    def holds(need: str, records: frozenset[str] | set[str]) -> bool:
        options = needs[need]
        return any(r in records for r in ((options,) if isinstance(options, str) else options))

    def brings(look_up: LookUp, wanted: frozenset[str]) -> frozenset[str]:
        return frozenset(need for need in wanted if holds(need, look_up.records))

    return _counted(searches, frozenset(n for n in needs if not holds(n, seen)), brings)


def _of_rules(reading: Reading, one: Round, asks: Sequence[Ask]) -> Recovery:
    rules = [c for c in one.look_ups if c.is_rule]
    wanted = _intents(reading, asks)
    if not wanted:
        return _counted(rules, _HIT, lambda c, w: w if c.result.error is None else frozenset())
    return _counted(rules, wanted, lambda c, w: w & _found_intents(c))


def _intents(reading: Reading, asks: Sequence[Ask]) -> frozenset[str]:
    """Return the intents whose rules the questions call for, `*` where they have none."""
    if reading.world is None:
        return frozenset()
    known = {fold(rule.intent) for rule in reading.world.moment.room.reply_rules}
    due = [fold(ask.intent) for ask in asks if ask.acts != ("ignore",)]
    return frozenset(intent if intent in known else "*" for intent in due)


def _found_intents(look_up: LookUp) -> frozenset[str]:
    return frozenset(fold(str(f.value)) for f in look_up.result.data if f.field == "intent")


def _counted(look_ups: Sequence[LookUp], wanted: frozenset[str], brings: Brings) -> Recovery:
    """Walk the look-ups of a round; one that brings nothing wanted is a miss."""
    waiting: list[LookUp] = []
    recovered = missed = 0
    for look_up in look_ups:
        if not wanted:
            break
        found = brings(look_up, wanted)
        if found:
            recovered += sum(_differs(miss, look_up) for miss in waiting)
            waiting = []
        else:
            missed += 1
            waiting.append(look_up)
        wanted -= found
    return Recovery(recovered, missed)


def _differs(miss: LookUp, hit: LookUp) -> bool:
    before, after = miss.call, hit.call
    return (before.name, before.arguments.canonical) != (after.name, after.arguments.canonical)
