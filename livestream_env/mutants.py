"""Probes: copies of a good episode with one fault each, to see whether a reward notices it."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import NamedTuple

from livestream_env.evidence import RULE_TOOL, Reading
from livestream_env.keywords import has_han
from livestream_env.rewards import Rubric
from livestream_env.rooms import Product, Room
from livestream_env.tools import wording
from livestream_env.types import (
    Action,
    Fact,
    Message,
    Rewards,
    ToolCall,
    ToolResult,
    Trajectory,
    Turn,
    freeze,
)
from livestream_env.words import format_amount

SORRY = {
    "zh": "抱歉，这个暂时不清楚，请以商品页面为准哦",
    "en": "Sorry, I am not sure about that; please see the product page.",
}
PROMISE = {
    "zh": "，保证全网最低价，终身免费退换",
    "en": "; we guarantee the lowest price anywhere and free returns for life",
}
_NUMBER = re.compile(
    r"(?P<money>(?<=[$¥￥])\d+(?:\.\d+)?|(?<![\d.])\d+(?:\.\d+)?(?=\s*[元块]))"
    r"|(?<![\d.])\d+(?:\.\d+)?(?=\s*(?:[件%天折]|个|小时|left|hours|days))"
)
"""Numbers that state a price, a stock, a share or a time."""
_LINK = re.compile(r"(?<![\d.])\d+(?=\s*号)|(?<=link )\d+", re.IGNORECASE)
_STEPS = (8, 13, 27, 41)


class Bench(NamedTuple):
    """A good episode with a reply, beside its room."""

    trajectory: Trajectory
    room: Room | None
    reading: Reading

    @property
    def text(self) -> str:
        """The last reply."""
        return self.reading.trajectory.turns[-1].action.message.content

    @property
    def language(self) -> str:
        """The language of the reply."""
        return "zh" if has_han(self.text) else "en"


Probe = Callable[[Bench], Trajectory | None]


def probes(trajectory: Trajectory, room: Room | None) -> list[tuple[str, Trajectory]]:
    """Return (name, mutant) of every fault that can be put into a good episode.

    A mutant has no rewards. An episode that does not end with a reply has none; neither has a
    fault that would be none here, as `sorry` where nothing is known, or another product that costs
    the same.
    """
    if not (trajectory.reply or "").strip():
        return []
    bench = Bench(trajectory, room, Reading(trajectory, room))
    made = ((name, probe(bench)) for name, probe in PROBES.items())
    return [(name, mutant) for name, mutant in made if mutant is not None]


def with_reply(trajectory: Trajectory, text: str) -> Trajectory:
    """Return the episode with another last reply, and without rewards."""
    turn = trajectory.turns[-1]
    action = replace(
        turn.action,
        message=Message("assistant", text),
        token_ids=None,
        logprobs=None,
        prompt_ids=None,
        speech=None,
    )
    return _with_turns(trajectory, [*trajectory.turns[:-1], replace(turn, action=action)])


def _with_turns(trajectory: Trajectory, turns: Sequence[Turn]) -> Trajectory:
    return trajectory.model_copy(update={"turns": tuple(turns), "rewards": None})


# --- the reply's faults -----------------------------------------------------------------------


def _wrong_number(bench: Bench) -> Trajectory | None:
    """Change the first number that states something to one that nothing in the room states."""
    text = wrong_number(bench.text, bench.trajectory, bench.room)
    return None if text is None else with_reply(bench.trajectory, text)


def wrong_number(text: str, trajectory: Trajectory, room: Room | None) -> str | None:
    """Return a reply with its first price, stock, share or time wrong; `None` without one."""
    found = _NUMBER.search(text)
    if found is None:
        return None
    return text[: found.start()] + _unheard(found[0], trajectory, room) + text[found.end() :]


def _unheard(number: str, trajectory: Trajectory, room: Room | None) -> str:
    """Return a number near to one given that occurs nowhere in the episode or the room."""
    heard = "\n".join(message.content for message in trajectory.messages)
    heard += room.model_dump_json() if room is not None else ""
    known = set(re.findall(r"\d+(?:\.\d+)?", heard))
    made = (format_amount(float(number) + step * scale) for scale in (1, 7) for step in _STEPS)
    return next((one for one in made if one not in known), "98765")


def _two_prices(bench: Bench) -> Trajectory | None:
    """State another price beside the first one."""
    found = next((m for m in _NUMBER.finditer(bench.text) if m["money"]), None)
    if found is None:
        return None
    other = _unheard(found[0], bench.trajectory, bench.room)
    said = f"元或者{other}" if bench.language == "zh" else f" or ${other}"
    text = bench.text[: found.end()] + said + bench.text[found.end() :]
    return with_reply(bench.trajectory, text)


def _wrong_product(bench: Bench) -> Trajectory | None:
    """Say the same of another product, of which none of it is true."""
    found, numbers = _LINK.search(bench.text), _stated(bench.text)
    products = {str(product.link_no): product for product in _products(bench)}
    if found is None or found[0] not in products or not numbers & _values_of(products[found[0]]):
        return None
    for product in products.values():
        is_other = product.link_no is not None and str(product.link_no) != found[0]
        if is_other and not numbers & _values_of(product):
            return with_reply(bench.trajectory, _relinked(bench.text, found[0], product))
    return None


def _relinked(text: str, link: str, product: Product) -> str:
    other = str(product.link_no)
    return _LINK.sub(lambda match: other if match[0] == link else match[0], text)


def _stated(text: str) -> set[float]:
    return {float(match[0]) for match in _NUMBER.finditer(text)}


def _products(bench: Bench) -> tuple[Product, ...]:
    if bench.reading.world is None:
        return ()
    return bench.reading.world.moment.room.products


def _values_of(product: Product) -> set[float]:
    """Return the numbers that hold of a product or one of its SKUs."""
    prices = [product.lowest("price"), product.lowest("coupon_price")]
    prices += [p for sku in product.variants for p in (sku.price, sku.coupon_price)]
    amounts = [n for p in prices if p is not None for n in (p.amount, p.high, p.list_amount)]
    stocks = [product.total_stock, *(sku.stock for sku in product.variants)]
    return {float(n) for n in (*amounts, *stocks) if n is not None}


def _wrong_sku(bench: Bench) -> Trajectory | None:
    """Say the same of another SKU of the product, of which none of it is true."""
    numbers = _stated(bench.text)
    for product in _products(bench) if numbers else ():
        for sku in product.skus:
            if not sku.spec or not all(value in bench.text for value in sku.spec.values()):
                continue
            if not numbers & _values_of(_only(product, sku.sku_id)):
                continue
            for other in product.skus:
                if other.spec.keys() == sku.spec.keys() and not numbers & _values_of(
                    _only(product, other.sku_id)
                ):
                    return with_reply(bench.trajectory, _swapped(bench.text, sku.spec, other.spec))
    return None


def _only(product: Product, sku_id: str) -> Product:
    skus = tuple(sku for sku in product.skus if sku.sku_id == sku_id)
    return product.model_copy(update={"skus": skus})


def _swapped(text: str, spec: Mapping[str, str], other: Mapping[str, str]) -> str:
    for name, value in spec.items():
        text = text.replace(value, other[name])
    return text


def _added_promise(bench: Bench) -> Trajectory | None:
    return with_reply(bench.trajectory, bench.text.rstrip("。.") + PROMISE[bench.language])


def _sorry(bench: Bench) -> Trajectory | None:
    """Dodge where an answer is known."""
    asks = [ask for _, _, ask in bench.reading.asks()]
    due = [a for a in asks if any(f.kind in ("value", "compare") for f in a.facts)]
    if not due:
        return None
    return with_reply(bench.trajectory, SORRY[bench.language])


def _result_dump(bench: Bench) -> Trajectory | None:
    """Say the first search result as it came."""
    results = [(call, r) for t in bench.trajectory.turns for call, r in _answered(t)]
    found = [r.content for call, r in results if call.name != RULE_TOOL and r.data]
    return with_reply(bench.trajectory, found[0]) if found else None


def _empty_reply(bench: Bench) -> Trajectory | None:
    return with_reply(bench.trajectory, "")


# --- the look-ups' faults ---------------------------------------------------------------------


def _answered(turn: Turn) -> Iterator[tuple[ToolCall, ToolResult]]:
    return zip(turn.action.message.tool_calls, turn.results, strict=False)


def _missing_look_up(bench: Bench) -> Trajectory | None:
    """Take out every look-up that brought one needed record which the prompt does not hold."""
    prompt = {fact.record for fact in bench.trajectory.evidence}
    needs = [need for _, _, ask in bench.reading.asks() for need in ask.needed]
    options = [{need} if isinstance(need, str) else set(need) for need in needs]
    wanted = next((one for one in options if not one & prompt), None)
    if wanted is None:
        return None
    turns = [_without_records(turn, wanted) for turn in bench.trajectory.turns]
    kept = [turn for turn in turns if turn is not None]
    return None if turns == list(bench.trajectory.turns) else _with_turns(bench.trajectory, kept)


def _without_records(turn: Turn, records: set[str]) -> Turn | None:
    """Return a turn without the calls whose results hold one of the records; `None`: no call is
    left."""
    calls = turn.action.message.tool_calls
    dropped = {r.call_id for r in turn.results if any(fact.record in records for fact in r.data)}
    if not dropped:
        return turn
    kept = tuple(call for call in calls if call.id not in dropped)
    if not kept:
        return None
    message = replace(turn.action.message, tool_calls=kept)
    return replace(
        turn,
        action=Action(message),
        results=tuple(r for r in turn.results if r.call_id not in dropped),
        messages=tuple(m for m in turn.messages if m.tool_call_id not in dropped),
    )


def _wrong_rule(bench: Bench) -> Trajectory | None:
    """Look up the rule of another intent, with the result that this gives."""
    if bench.room is None or not bench.reading.rounds[-1].asks:
        return None
    asked = {ask.intent for _, _, ask in bench.reading.asks()}
    others = [r for r in bench.room.reply_rules if r.intent not in asked and r.intent != "*"]
    turns, changed = list(bench.trajectory.turns), False
    for i, turn in enumerate(turns):
        if not others or not any(call.name == RULE_TOOL for call, _ in _answered(turn)):
            continue
        rule, changed = others[0], True
        turns[i] = _with_rule(turn, rule.rule_id, rule.intent, rule.rule, bench.room.language)
    return _with_turns(bench.trajectory, turns) if changed and asked else None


def _with_rule(turn: Turn, rule_id: str, intent: str, rule: str, language: str) -> Turn:
    names = wording(language)["fields"]
    entry = {names["intent"]: intent, names["rule"]: rule}
    content = json.dumps({names["results"]: [entry]}, ensure_ascii=False, separators=(",", ":"))
    record = f"rule:{rule_id}"
    facts = (Fact(record, "rule", rule, None, rule), Fact(record, "intent", intent, None, intent))
    ids = {call.id for call in turn.action.message.tool_calls if call.name == RULE_TOOL}
    calls = tuple(
        replace(call, arguments=freeze({"intent": intent})) if call.id in ids else call
        for call in turn.action.message.tool_calls
    )
    return replace(
        turn,
        action=Action(replace(turn.action.message, tool_calls=calls)),
        results=tuple(
            replace(r, content=content, data=facts, error=None) if r.call_id in ids else r
            for r in turn.results
        ),
        messages=tuple(
            replace(m, content=content) if m.tool_call_id in ids else m for m in turn.messages
        ),
    )


PROBES: dict[str, Probe] = {
    "wrong_number": _wrong_number,
    "wrong_product": _wrong_product,
    "wrong_sku": _wrong_sku,
    "added_promise": _added_promise,
    "two_prices": _two_prices,
    "missing_look_up": _missing_look_up,
    "wrong_rule": _wrong_rule,
    "sorry": _sorry,
    "result_dump": _result_dump,
    "empty_reply": _empty_reply,
}
"""The faults by name."""


# --- trying a rubric --------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Probed:
    """What a rubric made of one kind of fault."""

    name: str
    tried: int
    lowered: int
    """Mutants whose total is below that of the episode they come from."""
    drop: float
    """Mean of what the total fell by."""
    missed: tuple[Trajectory, ...] = ()
    """Mutants whose total did not fall."""

    @property
    def share(self) -> float | None:
        """The share of mutants that lower the total."""
        return self.lowered / self.tried if self.tried else None


def probe(
    played: Sequence[tuple[Trajectory, Room | None]],
    rubric: Rubric | Callable[[Trajectory, Room | None], Rewards],
    *,
    good: float = 0.0,
) -> tuple[list[Probed], list[tuple[Trajectory, float]]]:
    """Score episodes whose total is at least `good`, and their mutants.

    Returns a line for each kind of fault, and every episode (label 1) and mutant (label 0) with
    its rewards, for `reward_report`.
    """
    drops: dict[str, list[tuple[float, Trajectory]]] = {name: [] for name in PROBES}
    labelled: list[tuple[Trajectory, float]] = []
    for trajectory, room in played:
        rewards = rubric(trajectory, room)
        total = rewards.total()
        if total is None or total < good - 1e-9:
            continue
        labelled.append((trajectory.model_copy(update={"rewards": rewards}), 1.0))
        for name, mutant in probes(trajectory, room):
            scored = mutant.model_copy(update={"rewards": rubric(mutant, room)})
            if scored.reward is not None:
                drops[name].append((total - scored.reward, scored))
                labelled.append((scored, 0.0))
    return [_probed(name, made) for name, made in drops.items()], labelled


def _probed(name: str, drops: Sequence[tuple[float, Trajectory]]) -> Probed:
    missed = tuple(mutant for drop, mutant in drops if drop <= 1e-9)
    mean = sum(drop for drop, _ in drops) / len(drops) if drops else 0.0
    return Probed(name, len(drops), len(drops) - len(missed), mean, missed)
