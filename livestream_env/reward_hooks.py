"""Verifiable reward hooks: what an episode stated, helped, looked up and did, against the key."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import pairwise
from typing import Any, Literal, NamedTuple

from livestream_env.claims import Claim
from livestream_env.coverage import answered_comments, states_fact
from livestream_env.evidence import LookUp, Reading, dodges
from livestream_env.keywords import has_han
from livestream_env.pricing import quote
from livestream_env.rooms import Ask, Check, Room, Statement
from livestream_env.types import Score, State, Trajectory
from livestream_env.words import asks, fold

Grounding = Literal["trajectory", "room"]
REPEAT_COST = 0.25
USELESS_COST = 0.5
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


def _score(
    name: str, agent: str, value: float | None, reason: str = "", cause: Any = None
) -> Score:
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
        return _score("correctness", "replier", None, "the room is not known", "no_truth")
    faults, supported, total = _faults(reading, grounding)
    share = f"{supported}/{total} claims supported"
    reason = "; ".join((share, *faults)) if faults else share
    wrong = [fault for fault in faults if not fault.startswith(("lucky", "abstain"))]
    return _score("correctness", "replier", 0.0 if wrong else 1.0, reason)


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
        faults += _two_values(claims, reading.rounds[number].text)
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
    if claim.kind in ("product", "link"):
        return known
    if grounding == "room":
        return "lucky" if known == "supported" else known
    return verdict


def _is_asked_total(reading: Reading, claim: Claim) -> bool:
    """Whether an amount is what `quote` comes to for things that were seen: those that the key
    asks the total of, or pieces of the claim's own product."""
    assert reading.world is not None
    room = reading.world.moment.room
    for _, _, ask in reading.asks():
        for fact in (*ask.facts, *ask.extras):
            is_its = claim.sku is None or claim.sku in [item for item, _ in fact.lines]
            if fact.record == "quote" and is_its and _seen_all(reading, fact.lines):
                total = quote(room, fact.lines).total if fact.value is None else fact.value
                if total == claim.value:
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
        return "supported" if _searched(reading, number) else "unsupported"
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
    return all(_is_met(need, seen) for need in wanted)


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
    return found


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
        return _score("helpfulness", "replier", None, "no key", "no_truth")
    parts = [_answered(reading, number, comment, ask, grounding) for number, comment, ask in asked]
    value = sum(parts) / len(parts) * _relevance(reading)
    return _score("helpfulness", "replier", value, f"{sum(p > 0 for p in parts)}/{len(parts)} asks")


def _answered(
    reading: Reading, number: int, comment_id: str, ask: Ask, grounding: Grounding
) -> float:
    """Return how far one question was met, by the best of its right acts."""
    one = reading.rounds[number]
    is_left = one.reply is None or comment_id not in _answered_in(reading, number)
    if "ignore" in ask.acts and is_left:
        return 1.0
    if is_left:
        return 0.0
    return max(_acted(reading, number, ask, act, grounding) for act in ask.acts)


def _answered_in(reading: Reading, number: int) -> set[str]:
    if len(reading.rounds) == 1:
        assert reading.room is not None
        return answered_comments(reading.room, reading.trajectory)
    reply = reading.rounds[number].reply
    return set() if reply is None else {comment for comment, _ in reading.rounds[number].asks}


def _acted(reading: Reading, number: int, ask: Ask, act: str, grounding: Grounding) -> float:
    one = reading.rounds[number]
    if not one.text.strip():
        return 0.0
    is_dodge = dodges(reading.claims[number])
    if act == "answer":
        told = _stated(reading, number, ask, grounding)
        return 0.0 if is_dodge and not ask.facts else told
    if act == "ask":
        slots = [fold(slot) in fold(one.text) for slot in ask.ask_for]
        return float(asks(one.text)) * (sum(slots) / len(slots) if slots else 1.0)
    if act == "hand_off":
        return float(one.hands_off and (not is_dodge or _SOMEONE.search(one.text) is not None))
    return float(not is_dodge and (act == "chat" or not _must_nots(reading)))


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
    assert reading.world is not None
    looks = grounding == "trajectory"
    is_worded = bool(fact.text) or fact.field == "link_no"
    text = reading.rounds[number].text if is_worded else reading.unlinked(number)
    said = fact.kind != "unknown" and states_fact(text, fact, reading.world.values)
    seen = _records_before(reading, number)
    if fact.kind == "unknown":
        return _abstains(reading, number) and (
            not looks or fact.record is None or fact.record in seen
        )
    if fact.kind == "absent":
        kinds = {claim.kind for claim in reading.claims[number]}
        return (said or "absent" in kinds) and (not looks or _searched(reading, number))
    return said and (not looks or _was_seen(fact, seen))


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
    if any(_copies(one.text, told) for one in reading.rounds):
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
    if '{"' in text or '":' in text:
        return True
    least = COPIED_CHARACTERS * (1 if has_han(text) else LATIN_PER_HAN)
    pieces = [text[i : i + least] for i in range(0, max(0, len(text) - least + 1), 10)]
    return any(piece in content for content in told for piece in pieces)


# --- rule and tools ---------------------------------------------------------------------------


def _rule(reading: Reading) -> Score:
    """Score the rule: looked up last, of the right intent, its checkable clauses met."""
    parts = [_rule_followed(reading, number) for number in range(len(reading.rounds))]
    reasons = [reason for _, reason in parts if reason]
    value = sum(value for value, _ in parts) / len(parts)
    return _score("rule", "tool_caller", value, "; ".join(reasons))


def _rule_followed(reading: Reading, number: int) -> tuple[float, str]:
    one = reading.rounds[number]
    rules = [c for c in one.look_ups if c.is_rule and c.result.error is None]
    if not rules:
        return 0.0, "no rule was looked up"
    after = [c for c in one.look_ups if c.turn > rules[-1].turn and not c.is_rule]
    if after:
        return 0.0, f"`{after[0].call.name}` after the rule"
    missed = _missed_intents(reading, number, rules)
    if missed:
        return 0.0, f"no rule for {', '.join(missed)}"
    checks = _checks(reading, rules)
    if not checks or one.reply is None:
        return 1.0, ""
    broken = [check.kind for check in checks if not _meets(check, reading, number)]
    value = 1 - len(broken) / len(checks)
    return value, f"breaks {', '.join(broken)}" if broken else ""


def _missed_intents(reading: Reading, number: int, rules: Sequence[LookUp]) -> list[str]:
    """Return the intents that a round asks about and whose rule was not looked up."""
    if reading.world is None:
        return []
    found = {fold(str(f.value)) for c in rules for f in c.result.data if f.field == "intent"}
    known = {fold(rule.intent) for rule in reading.world.moment.room.reply_rules}
    wanted = {
        ask.intent if fold(ask.intent) in known else "*"
        for i, _, ask in reading.asks()
        if i == number and ask.acts != ("ignore",)
    }
    return sorted(intent for intent in wanted if fold(intent) not in found)


def _checks(reading: Reading, rules: Sequence[LookUp]) -> list[Check]:
    if reading.room is None:
        return []
    ids = {record.partition(":")[2] for c in rules for record in c.records}
    return [c for rule in reading.room.reply_rules if rule.rule_id in ids for c in rule.checks]


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
    """Those of them that brought something needed."""
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
    useful = [c for c in distinct.values() if any(_is_met(n, c.records) for n in needed)]
    idle = [c for c in distinct.values() if c not in useful]
    tried = _neutral(reading, idle, bool(useful))
    return _Use(needed, look_ups, list(distinct.values()), useful, tried)


def _counts(look_up: LookUp) -> bool:
    """Whether a call counts as a look-up: neither the rule's, nor a write, nor refused."""
    refused = look_up.result.error in ("tool_limit", "tool_not_available")
    return not (look_up.is_rule or look_up.result.state is not None or refused)


def _tool_use(reading: Reading) -> Score:
    """Score the look-ups: F1 of the records that were needed, repeats and useless calls cost."""
    use = _use(reading)
    if use is None:
        return _score("tool_use", "tool_caller", None, "no key", "no_truth")
    repeats = len(use.look_ups) - len(use.distinct)
    counted = len(use.distinct) - use.tried
    reason = f"{len(use.useful)} useful of {len(use.look_ups)} look-ups"
    if not use.needed:
        value = 1 - USELESS_COST * counted - REPEAT_COST * repeats
        return _score("tool_use", "tool_caller", max(0.0, value), reason)
    seen = reading.shown.union(*(c.records for c in use.distinct))
    recall = sum(_is_met(need, seen) for need in use.needed) / len(use.needed)
    precision = len(use.useful) / counted if counted else 1.0
    total = recall + precision
    f1 = 2 * recall * precision / total if total else 0.0
    reason += f", {recall:.0%} of {len(use.needed)} needed records"
    return _score("tool_use", "tool_caller", max(0.0, f1 - REPEAT_COST * repeats), reason)


def _neutral(reading: Reading, idle: Sequence[LookUp], found: bool) -> int:
    """Count idle searches that were worth a try, two at most for each comment: any where the thing
    is not to be had, empty ones where other words found it."""
    asked = [fact.kind for _, _, ask in reading.asks() for fact in ask.facts]
    if "absent" in asked or "unknown" in asked:
        tries = sum("search" in c.call.name and c.result.error is None for c in idle)
    else:
        tries = sum(c.is_empty for c in idle) if found else 0
    return min(tries, 2 * len(reading.trajectory.comment_ids))


def _is_met(need: str | tuple[str, ...], records: Any) -> bool:
    return any(one in records for one in ((need,) if isinstance(need, str) else need))


# --- state, length, guard, course -------------------------------------------------------------


def _state(reading: Reading) -> Score:
    """Score the state of the room at the end against the key's."""
    wanted = [k.state for r in reading.rounds for _, k in r.asks if k and k.state is not None]
    if reading.trajectory.state is None or not wanted:
        cause = "no_truth" if reading.room is None else "not_applicable"
        return _score("state", "tool_caller", None, "no state is asked for", cause)
    reached = [state_reached(reading.trajectory.state, predicate) for predicate in wanted]
    value = sum(reached) / len(reached)
    return _score("state", "tool_caller", value, f"{sum(reached)}/{len(reached)} reached")


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


def length(low: int = 10, full: int = 40, high: int = 60) -> Hook:
    """Make the hook for a reply's characters: rising to 1 at `low`, 1 up to `full`, 0 from `high`.

    It earns nothing where correctness does not. Three characters of a text without Chinese count
    as one; speech counts 4.5 characters a second, like text.
    """

    return Hook("length", "replier", partial(_length, low=low, full=full, high=high))


def _length(reading: Reading, *, low: int, full: int, high: int) -> Score:
    if _correctness(reading).value != 1.0:
        return _score("length", "replier", 0.0, "the reply is not correct")
    text = reading.rounds[-1].text
    count = len(text) if has_han(text) else len(text) / LATIN_PER_HAN
    return _score(
        "length", "replier", length_band(count, low, full, high), f"{len(text)} characters"
    )


def length_band(count: float, low: int = 10, full: int = 40, high: int = 60) -> float:
    """Return the band's value: `count / low` below `low`, 1 to `full`, linear to 0 at `high`."""
    if count < low:
        return count / low
    return min(1.0, max(0.0, (high - count) / (high - full)))


def _efficiency(reading: Reading) -> Score:
    """Score how little the viewer waited: 1 / (1 + look-ups beyond the needed, and rules beyond
    one for each intent)."""
    use = _use(reading)
    if use is None:
        return _score("efficiency", "tool_caller", None, "no key", "no_truth")
    extra = max(0, len(use.look_ups) - use.tried - len(use.needed))
    for number, one in enumerate(reading.rounds):
        rules = {record for c in one.look_ups if c.is_rule for record in c.records}
        intents = {ask.intent for i, _, ask in reading.asks() if i == number}
        extra += max(0, len(rules) - max(1, len(intents)))
    return _score("efficiency", "tool_caller", 1 / (1 + extra), f"{extra} extra look-ups")


def progress(reading: Reading) -> list[Score]:
    """Score each turn by the share of needed records that it brought: the potential's rise.

    The scores of an episode sum to the share at its end, whatever the path.
    """
    needed = list(dict.fromkeys(need for _, _, ask in reading.asks() for need in ask.needed))
    if not needed:
        return []
    seen = set(reading.shown)
    made, before = [], sum(_is_met(need, seen) for need in needed) / len(needed)
    for number, turn in enumerate(reading.trajectory.turns):
        seen |= {fact.record for result in turn.results for fact in result.data}
        now = sum(_is_met(need, seen) for need in needed) / len(needed)
        made.append(Score("progress", round(now - before, 6), 1.0, "tool_caller", number))
        before = now
    return made


def _process(reading: Reading) -> Score:
    """Score the course of the episode: the share of needed records seen, the rule followed."""
    rule, tools = _rule(reading), _tool_use(reading)
    known = [score.value for score in (rule, tools) if score.value is not None]
    return _score("process", "tool_caller", sum(known) / len(known), "mean of rule and tool use")


def _outcome(reading: Reading) -> Score:
    """Score the result: helpful as far as it is correct."""
    correct, helpful = _correctness(reading), _helpfulness(reading)
    if helpful.value is None or correct.value is None:
        return _score("outcome", "replier", correct.value, "correctness alone: no key")
    return _score("outcome", "replier", correct.value * helpful.value)


def _tool_valid(reading: Reading) -> Score:
    """Score the share of calls that ran without the policy's own mistake."""
    calls = [c for one in reading.rounds for c in one.look_ups]
    if not calls:
        return _score("tool_valid", "tool_caller", None, "no call", "not_applicable")
    valid = sum(c.result.error is None for c in calls)
    return _score("tool_valid", "tool_caller", valid / len(calls), f"{valid}/{len(calls)} valid")


HOOKS: dict[str, Hook] = {
    "correctness": correctness(),
    "helpfulness": helpfulness(),
    "rule": Hook("rule", "tool_caller", _rule),
    "tool_use": Hook("tool_use", "tool_caller", _tool_use),
    "state": Hook("state", "tool_caller", _state),
    "length": length(),
    "outcome": Hook("outcome", "replier", _outcome),
    "process": Hook("process", "tool_caller", _process),
    "efficiency": Hook("efficiency", "tool_caller", _efficiency),
    "tool_valid": Hook("tool_valid", "tool_caller", _tool_valid),
    "progress": Hook("progress", "tool_caller", progress),
}
"""The verifiable hooks by name."""
