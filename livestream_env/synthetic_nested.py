"""Comments of nested look-ups: the second one needs what the first one found, or other words.

The product is named as the cheapest of its kind, by what the host said, by what somebody asked
before, or by emoji that no search finds.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from livestream_env.rooms import Product
from livestream_env.synthetic_key import FIELD_INTENTS, Draft, Teller, known, record_of
from livestream_env.synthetic_skills import Skill, groups_now, said_so_far
from livestream_env.synthetic_world import Answer

_OLD_S = 62
"""Seconds after which what was said has left the prompt."""


def _extreme(t: Teller) -> tuple[str, list[Product], Product] | None:
    """Return words for the cheapest or dearest of a group, the group, and which one it is."""
    found = []
    for label, group in groups_now(t):
        for name, sign in (("cheapest", 1), ("dearest", -1)):
            best = sorted(group, key=lambda product: known(product, "price"))[::sign][0]
            if _is_clear(group, best, sign):
                found.append((label, name, group, best))
    chosen = t.any_of(found)
    if chosen is None:
        return None
    label, name, group, best = chosen
    t.keep(label)
    return t.words("refs", name).format(kind=label), group, best


def _is_clear(group: Sequence[Product], best: Product, sign: int) -> bool:
    """Tell whether the best is so by price and by coupon price, with no other like it."""
    others = [p for p in group if p is not best]
    return all(
        sign * _paid(best, fields) < sign * _paid(other, fields)
        for other in others
        for fields in (("price",), ("coupon_price", "price"))
    )


def _paid(product: Product, fields: Sequence[str]) -> float:
    return float(next(v for field in fields if (v := known(product, field)) is not None))


def _cheapest_faq(t: Teller) -> Draft | None:
    extreme = _extreme(t)
    if extreme is None:
        return None
    ref, group, best = extreme
    chosen = t.any_of(t.topics_of(best, "product"))
    if chosen is None:
        return None
    extras = [{"record": record_of(best), "field": "link_no"}]
    ask = t.answer_ask(chosen[1], *map(record_of, group), extras=extras)
    return t.said(t.topic_words(chosen[0], ref=ref), ask)


def _name_faq(t: Teller) -> Draft | None:
    product = t.any_of([p for p in t.products if p is not t.current])
    chosen = None if product is None else t.any_of(t.topics_of(product, "product"))
    if product is None or chosen is None:
        return None
    ask = t.answer_ask(chosen[1], record_of(product))
    return t.said(t.topic_words(chosen[0], ref=t.name(product)), ask)


def _shop_faq(t: Teller) -> Draft | None:
    """Ask about another shop's terms, naming only one of its products."""
    product = t.any_of([p for p in t.products if p.merchant != t.current.merchant])
    if product is None:
        return None
    own = [pair for pair in t.topics_of(product, "merchant") if pair[1].scope != "room"]
    chosen: tuple[str, Answer] | None = t.any_of(own)
    if chosen is None:
        return None
    ask = t.answer_ask(chosen[1], record_of(product))
    return t.draft("shop_faq", ask, ref=t.name(product), ask=t.topic_words(chosen[0]))


def _hook(t: Teller) -> Draft | None:
    """Ask for a value of the product that the script names."""
    said = t.any_of([s for s in said_so_far(t, "hook") if s.end_s + _OLD_S < t.at_s])
    this = None if said is None else t.product(said.this)
    other = None if said is None else t.product(said.other)
    if said is None or this is None or other is None or other is t.current:
        return None
    field = t.any_of([field for field in FIELD_INTENTS if known(other, field) is not None])
    words = t.rng.choice(t.show["hooks"][said.topic]["refs"])
    ref = words.format(ref=t.ref(this)) if "{ref}" in words else words
    asked = t.field_ask(other, str(field))
    ask = {**asked, "needed": [f"script:{said.segment_id}", *asked["needed"]]}
    return t.draft(str(field), ask, ref=ref)


def _cheapest_move(t: Teller) -> Draft | None:
    extreme = _extreme(t)
    if extreme is None or t.products[0] is extreme[2]:
        return None
    ref, group, best = extreme
    ask = t.ask("order", [record_of(product) for product in group])
    state = {"product": best.product_id, "position_at_most": 1}
    return replace(t.draft("cheapest_move", ask, ref=ref), state=state)


def _asked_before(t: Teller) -> Draft | None:
    """Refer to the product that somebody asked about before."""
    fields = [earlier.field for earlier in t.earlier]
    found = [e for e in t.earlier if e.field not in FIELD_INTENTS and fields.count(e.field) == 1]
    earlier = t.any_of(found)
    product = None if earlier is None else t.product(earlier.product_id)
    if earlier is None or product is None:
        return None
    field = t.any_of([f for f in ("price", "stock", "link_no") if known(product, f) is not None])
    asked = t.field_ask(product, str(field))
    ask = {**asked, "needed": [f"comment:{earlier.comment_id}", *asked["needed"]]}
    t.keep(earlier.field)
    frag = t.words("fragments", str(field))
    return t.draft("asked_before", ask, attr=earlier.field, frag=frag)


def _reword(t: Teller) -> Draft | None:
    """Name a product by emoji or initials, which no search finds."""
    names = [good.raw["name"] for good in t.world.goods.values()]
    found = []
    for product in t.products:
        kind = t.world.goods[product.product_id].kind
        if sum(kind["name"] in name for name in names) == 1:
            found += [(product, thing) for thing in kind["indirect"]]
    chosen = t.any_of(found)
    if chosen is None:
        return None
    product, thing = chosen
    field = t.any_of([f for f in ("price", "stock") if known(product, f) is not None])
    if field is None:
        return None
    drafted = t.draft(f"reword_{field}", t.field_ask(product, field), thing=thing)
    return replace(drafted, is_clean=True)


NESTED_LOOK_UPS: dict[str, Skill] = {
    "cheapest_faq": _cheapest_faq,
    "name_faq": _name_faq,
    "shop_faq": _shop_faq,
    "hook": _hook,
    "cheapest_move": _cheapest_move,
    "asked_before": _asked_before,
    "reword": _reword,
}
