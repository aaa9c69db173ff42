"""Verifiable hooks: the rule, the look-ups, the state and the course, against the key.

`HOOKS` names them all, those of `reply_hooks` too.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from livestream_env.evidence import LookUp, Reading
from livestream_env.reply_hooks import (
    Hook,
    correctness,
    helpfulness,
    is_met,
    length,
    made_score,
    outcome,
)
from livestream_env.rooms import Check
from livestream_env.types import Score, State
from livestream_env.words import asks, fold

REPEAT_COST = 0.25
USELESS_COST = 0.5


# --- rule and tools ---------------------------------------------------------------------------


def _rule(reading: Reading) -> Score:
    """Score the rule: looked up last, of the right intent, its checkable clauses met. Beyond one
    rule to spare for each intent asked for, more rules cost in proportion."""
    parts = [_rule_followed(reading, number) for number in range(len(reading.rounds))]
    reasons = [reason for _, reason in parts if reason]
    value = sum(value for value, _ in parts) / len(parts)
    return made_score("rule", "tool_caller", value, "; ".join(reasons))


def _rule_followed(reading: Reading, number: int) -> tuple[float, str]:
    one = reading.rounds[number]
    rules = [c for c in one.look_ups if c.is_rule and c.result.error is None]
    if not rules:
        return 0.0, "no rule was looked up"
    after = [c for c in one.look_ups if c.turn > rules[-1].turn and not c.is_rule]
    if after:
        return 0.0, f"`{after[0].call.name}` after the rule"
    wanted = _wanted_intents(reading, number)
    found = {fold(str(f.value)) for c in rules for f in c.result.data if f.field == "intent"}
    missed = sorted(intent for intent in wanted or () if fold(intent) not in found)
    if missed:
        return 0.0, f"no rule for {', '.join(missed)}"
    spare = max(1, len(wanted or ()))
    share = min(1.0, 2 * spare / len(found)) if wanted is not None and found else 1.0
    reasons = [f"{len(found)} rules, asked for {len(wanted or ())}"] if share < 1 else []
    checks = _checks(reading, rules, wanted) if one.reply is not None else []
    broken = [check.kind for check in checks if not _meets(check, reading, number)]
    if broken:
        reasons.append(f"breaks {', '.join(broken)}")
        share *= 1 - len(broken) / len(checks)
    return share, "; ".join(reasons)


def _wanted_intents(reading: Reading, number: int) -> set[str] | None:
    """Return the intents that a round asks about, `*` for one that has no rule where the room is;
    `None` without a key."""
    mine = [ask for i, _, ask in reading.asks() if i == number]
    if reading.world is None or not mine:
        return None
    known = reading.world.intents
    return {
        ask.intent if fold(ask.intent) in known else "*" for ask in mine if ask.acts != ("ignore",)
    }


def _checks(reading: Reading, rules: Sequence[LookUp], wanted: set[str] | None) -> list[Check]:
    """Return the clauses of the rules that were looked up, with a key of those it asks for: more
    rules make a broken clause no smaller, and bring none that the reply has to meet."""
    if reading.room is None:
        return []
    ids = {record.partition(":")[2] for c in rules for record in c.records}
    intents = None if wanted is None else set(map(fold, wanted))
    return [
        check
        for rule in reading.room.reply_rules
        if rule.rule_id in ids and (intents is None or fold(rule.intent) in intents)
        for check in rule.checks
    ]


def _meets(check: Check, reading: Reading, number: int) -> bool:
    one = reading.rounds[number]
    text = one.text
    mentions = any(fold(phrase) in fold(text) for phrase in check.any_of)
    if check.kind == "must_mention":
        return mentions
    if check.kind == "must_not_promise":
        return not mentions
    if check.kind == "must_ask":
        return asks(text) and (mentions or not check.any_of)
    if check.kind == "must_add_link_number":
        return any(claim.kind == "link" for claim in reading.claims[number])
    bullet = one.reply.message.content if one.reply is not None else ""
    return len(bullet) <= (check.limit or 0)


class _Use(NamedTuple):
    """What the look-ups of an episode were good for; the rules' are not among them."""

    needed: list[str | tuple[str, ...]]
    look_ups: list[LookUp]
    distinct: list[LookUp]
    """One of each that brought the same."""
    useful: list[LookUp]
    """Those of them that brought something needed, at most one for each need."""
    tried: int
    """Others of them that were worth a try."""


def _use(reading: Reading) -> _Use | None:
    """Sort the look-ups of an episode; `None` without a key."""
    if not any(key is not None for one in reading.rounds for _, key in one.asks):
        return None
    needed = list(dict.fromkeys(need for _, _, ask in reading.asks() for need in ask.needed))
    look_ups = [c for one in reading.rounds for c in one.look_ups if _counts(c)]
    distinct: dict[Any, LookUp] = {}
    for look_up in look_ups:
        key = look_up.records or (look_up.call.name, look_up.call.arguments.canonical)
        distinct.setdefault(key, look_up)
    useful = _useful(list(distinct.values()), needed)
    idle = [c for c in distinct.values() if c not in useful]
    tried = _neutral(reading, idle, bool(useful))
    return _Use(needed, look_ups, list(distinct.values()), useful, tried)


def _useful(look_ups: Sequence[LookUp], needed: Sequence[str | tuple[str, ...]]) -> list[LookUp]:
    """Return look-ups that each brought a need of its own, as many as there can be."""
    by_need: dict[int, LookUp] = {}

    def takes(look_up: LookUp, tried: set[int]) -> bool:
        for i, need in enumerate(needed):
            if i in tried or not is_met(need, look_up.records):
                continue
            tried.add(i)
            if i not in by_need or takes(by_need[i], tried):
                by_need[i] = look_up
                return True
        return False

    return [look_up for look_up in look_ups if takes(look_up, set())]


def _counts(look_up: LookUp) -> bool:
    """Whether a call counts as a look-up: neither the rule's, nor a write, nor refused."""
    refused = look_up.result.error in ("tool_limit", "tool_not_available")
    return not (look_up.is_rule or look_up.result.state is not None or refused)


def _tool_use(reading: Reading) -> Score:
    """Score the look-ups: F1 of the records that were needed, repeats and useless calls cost."""
    use = _use(reading)
    if use is None:
        return made_score("tool_use", "tool_caller", None, "no key", "no_truth")
    repeats = len(use.look_ups) - len(use.distinct)
    counted = len(use.distinct) - use.tried
    reason = f"{len(use.useful)} useful of {len(use.look_ups)} look-ups"
    if not use.needed:
        value = 1 - USELESS_COST * counted - REPEAT_COST * repeats
        return made_score("tool_use", "tool_caller", max(0.0, value), reason)
    seen = reading.shown.union(*(c.records for c in use.distinct))
    recall = sum(is_met(need, seen) for need in use.needed) / len(use.needed)
    precision = len(use.useful) / counted if counted else 1.0
    total = recall + precision
    f1 = 2 * recall * precision / total if total else 0.0
    reason += f", {recall:.0%} of {len(use.needed)} needed records"
    return made_score("tool_use", "tool_caller", max(0.0, f1 - REPEAT_COST * repeats), reason)


def _neutral(reading: Reading, idle: Sequence[LookUp], found: bool) -> int:
    """Count idle searches that were worth a try, two at most for each comment: any where the thing
    is not to be had, empty ones where other words found it."""
    asked = [fact.kind for _, _, ask in reading.asks() for fact in ask.facts]
    if "absent" in asked or "unknown" in asked:
        tries = sum("search" in c.call.name and c.result.error is None for c in idle)
    else:
        tries = sum(c.is_empty for c in idle) if found else 0
    return min(tries, 2 * len(reading.trajectory.comment_ids))


# --- state and course -------------------------------------------------------------------------


def _state(reading: Reading) -> Score:
    """Score the state of the room at the end against the key's."""
    wanted = [k.state for r in reading.rounds for _, k in r.asks if k and k.state is not None]
    if reading.trajectory.state is None or not wanted:
        cause = "no_truth" if reading.room is None else "not_applicable"
        return made_score("state", "tool_caller", None, "no state is asked for", cause)
    reached = [state_reached(reading.trajectory.state, predicate) for predicate in wanted]
    value = sum(reached) / len(reached)
    return made_score("state", "tool_caller", value, f"{sum(reached)}/{len(reached)} reached")


def state_reached(state: State, predicate: Mapping[str, Any] | Sequence[str]) -> bool:
    """Return whether a state meets a key's predicate, or has the exact product order."""
    if not isinstance(predicate, Mapping):
        return state.product_order == tuple(predicate)
    product, order = predicate.get("product"), state.product_order
    if "position_at_most" in predicate:
        most = predicate["position_at_most"]
        if product not in order or order.index(product) >= most:
            return False
    if "image" in predicate and state.shown_image != (product, predicate["image"]):
        return False
    return not predicate.get("handed_off") or bool(state.hand_offs)


def _efficiency(reading: Reading) -> Score:
    """Score how little the viewer waited: 1 / (1 + look-ups beyond the needed, and rules beyond
    one for each intent)."""
    use = _use(reading)
    if use is None:
        return made_score("efficiency", "tool_caller", None, "no key", "no_truth")
    extra = max(0, len(use.look_ups) - use.tried - len(use.needed))
    for number, one in enumerate(reading.rounds):
        rules = {record for c in one.look_ups if c.is_rule for record in c.records}
        intents = {ask.intent for i, _, ask in reading.asks() if i == number}
        extra += max(0, len(rules) - max(1, len(intents)))
    return made_score("efficiency", "tool_caller", 1 / (1 + extra), f"{extra} extra look-ups")


def progress(reading: Reading) -> list[Score]:
    """Score each turn by the share of needed records that it brought: the potential's rise.

    The scores of an episode sum to the share at its end, whatever the path.
    """
    needed = list(dict.fromkeys(need for _, _, ask in reading.asks() for need in ask.needed))
    if not needed:
        return []
    seen = set(reading.shown)
    made, before = [], sum(is_met(need, seen) for need in needed) / len(needed)
    for number, turn in enumerate(reading.trajectory.turns):
        seen |= {fact.record for result in turn.results for fact in result.data}
        now = sum(is_met(need, seen) for need in needed) / len(needed)
        made.append(Score("progress", round(now - before, 6), 1.0, "tool_caller", number))
        before = now
    return made


def _process(reading: Reading) -> Score:
    """Score the course of the episode: the mean of the rule followed and the look-ups' use."""
    rule, tools = _rule(reading), _tool_use(reading)
    known = [score.value for score in (rule, tools) if score.value is not None]
    value = sum(known) / len(known)
    return made_score("process", "tool_caller", value, "mean of rule and tool use")


def _tool_valid(reading: Reading) -> Score:
    """Score the share of calls that ran without the policy's own mistake."""
    calls = [c for one in reading.rounds for c in one.look_ups]
    if not calls:
        return made_score("tool_valid", "tool_caller", None, "no call", "not_applicable")
    valid = sum(c.result.error is None for c in calls)
    return made_score(
        "tool_valid", "tool_caller", valid / len(calls), f"{valid}/{len(calls)} valid"
    )


HOOKS: dict[str, Hook] = {
    "correctness": correctness(),
    "helpfulness": helpfulness(),
    "rule": Hook("rule", "tool_caller", _rule),
    "tool_use": Hook("tool_use", "tool_caller", _tool_use),
    "state": Hook("state", "tool_caller", _state),
    "length": length(),
    "outcome": Hook("outcome", "replier", outcome),
    "process": Hook("process", "tool_caller", _process),
    "efficiency": Hook("efficiency", "tool_caller", _efficiency),
    "tool_valid": Hook("tool_valid", "tool_caller", _tool_valid),
    "progress": Hook("progress", "tool_caller", progress),
}
"""The verifiable hooks by name."""
