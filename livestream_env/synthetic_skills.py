"""Comments of one look-up, and of several or a write: one function a skill.

A skill that the room cannot show at that second returns `None`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any

from livestream_env.pricing import quote
from livestream_env.rooms import Product, Sku, promotions_of
from livestream_env.synthetic_goods import Raw
from livestream_env.synthetic_key import FIELD_INTENTS, Draft, Teller, known, record_of
from livestream_env.synthetic_world import Said
from livestream_env.words import format_amount

Skill = Callable[[Teller], Draft | None]


# --- level 1 ---------------------------------------------------------------------------------


def _field(field: str) -> Skill:
    def ask_field(t: Teller) -> Draft | None:
        product = t.pick(lambda p: known(p, field) is not None)
        return None if product is None else _field_draft(t, product, field)

    return ask_field


def _field_draft(t: Teller, product: Product, field: str) -> Draft:
    drafted = t.draft(field, t.field_ask(product, field), ref=t.ref(product))
    return t.asking(drafted, field, product)


def _attribute(t: Teller) -> Draft | None:
    product = t.pick(lambda p: p.attributes)
    if product is None:
        return None
    attr = t.rng.choice(list(product.attributes))
    t.keep(attr)
    drafted = t.draft("attribute", _attribute_ask(t, product, attr), ref=t.ref(product), attr=attr)
    return t.asking(drafted, attr, product)


def _attribute_ask(t: Teller, product: Product, attr: str) -> Raw:
    record = record_of(product)
    return t.ask("params", [record], facts=[{"record": record, "field": attr}])


def _promotion(t: Teller) -> Draft | None:
    phrases = t.world.stock.phrases
    found = []
    for product in t.products:
        held = promotions_of(t.now.room, product)
        kinds = [promotion.kind for promotion in held]
        found += [(product, p) for p in held if kinds.count(p.kind) == 1]
    chosen = t.any_of(found)
    if chosen is None:
        return None
    product, promotion = chosen
    record, phrase = f"promotion:{promotion.promotion_id}", phrases[promotion.promotion_id]
    fact = {"record": record, "field": "text", "text": [phrase]}
    ask = t.ask("promo", [record_of(product)], facts=[fact])
    return t.draft(promotion.kind, ask, ref=t.ref(product))


def _sku(field: str) -> Skill:
    def ask_sku(t: Teller) -> Draft | None:
        product = t.pick(lambda p: any(known(sku, field) is not None for sku in p.skus))
        if product is None:
            return None
        sku = t.rng.choice([sku for sku in product.skus if known(sku, field) is not None])
        return t.draft(field, _sku_ask(t, sku, field), ref=t.spec(product, sku))

    return ask_sku


def _sku_ask(t: Teller, sku: Sku, field: str, **parts: Any) -> Raw:
    record, extras = f"sku:{sku.sku_id}", []
    if field == "price" and known(sku, "coupon_price") is not None:
        extras = [{"record": record, "field": "coupon_price"}]
    facts = [{"record": record, "field": field}]
    return t.ask(FIELD_INTENTS[field], [record], facts=facts, extras=extras, **parts)


def _faq(t: Teller) -> Draft | None:
    topics = t.topics_of(t.current, "room") + t.topics_of(t.current, "merchant")
    chosen = t.any_of(topics)
    return chosen and t.said(t.topic_words(chosen[0]), t.answer_ask(chosen[1]))


def _product_faq(t: Teller) -> Draft | None:
    chosen = t.any_of(t.topics_of(t.current, "product"))
    if chosen is None:
        return None
    ref = t.words("refs", "current")
    return t.said(t.topic_words(chosen[0], ref=ref), t.answer_ask(chosen[1]))


def _recall(t: Teller) -> Draft | None:
    said = t.any_of([s for s in said_so_far(t, "recall") if s.start_s <= t.at_s])
    if said is None:
        return None
    record = f"script:{said.segment_id}"
    fact = {"record": record, "field": "text", "text": [said.phrase]}
    words = t.rng.choice(t.show["recalls"][said.topic]["asks"])
    return t.said(words, t.ask("recall", [record], facts=[fact]))


def said_so_far(t: Teller, kind: str) -> list[Said]:
    """List the segments of a kind that the host has said."""
    return [said for said in t.world.said if said.kind == kind and said.start_s <= t.at_s]


def _spoken(*names: str) -> Skill:
    """Draw from lines that only a rule, or nothing, answers."""

    def speak(t: Teller) -> Draft | None:
        name = t.rng.choice(names)
        words = t.table("spoken")[name]
        ask = t.ask(words["intent"], acts=[words["act"]])
        drafted = t.said(t.rng.choice(words["lines"]), ask)
        state = {"handed_off": True} if words["act"] == "hand_off" else None
        return replace(drafted, state=state, is_clean=name == "noise")

    return speak


# --- level 2 ---------------------------------------------------------------------------------


def _two_facts(t: Teller) -> Draft | None:
    product = t.pick(lambda p: known(p, "price") is not None)
    if product is None:
        return None
    fields = [field for field in FIELD_INTENTS if known(product, field) is not None]
    fields += ["attribute"] if product.attributes else []
    words, asks = [], []
    for field in t.rng.sample(fields, 2):
        attr = t.rng.choice(list(product.attributes)) if field == "attribute" else ""
        t.keep(attr)
        words.append(t.words("fragments", field).format(attr=attr))
        is_field = field != "attribute"
        ask = t.field_ask(product, field) if is_field else _attribute_ask(t, product, attr)
        asks.append(_unrivalled(ask))
    return t.draft("two_facts", *asks, ref=t.ref(product), a=words[0], b=words[1])


def _multi(t: Teller) -> Draft | None:
    first = t.rng.choice((_field("price"), _field("stock"), _field("link_no"), _attribute))(t)
    second = _faq(t)
    if first is None or second is None:
        return None
    t.keep(*first.kept)
    asks = [*map(_unrivalled, first.asks), *second.asks]
    return t.draft("multi", *asks, a=first.text, b=second.text)


def _unrivalled(ask: Raw) -> Raw:
    """Leave out numbers that are wrong here: beside it they may be another question's answer."""
    return {part: value for part, value in ask.items() if part != "must_not"}


def _price_coupon(t: Teller) -> Draft | None:
    product = t.pick(
        lambda p: known(p, "price") is not None and known(p, "coupon_price") is not None
    )
    if product is None:
        return None
    record = record_of(product)
    facts = [{"record": record, "field": field} for field in ("price", "coupon_price")]
    ask = t.ask("price", [record], facts=facts, must_not=t.rivals(product, "price"))
    return t.draft("price_coupon", ask, ref=t.ref(product))


def _compare(t: Teller) -> Draft | None:
    field = t.rng.choice(("price", "stock", "attribute"))
    first = t.pick(lambda p: p.attributes if field == "attribute" else known(p, field) is not None)
    if first is None:
        return None
    attr = t.rng.choice(list(first.attributes)) if field == "attribute" else ""
    second = t.any_of(_comparable(t, first, field, attr))
    if second is None:
        return None
    t.keep(attr)
    records = [record_of(first), record_of(second)]
    fact = {"kind": "compare", "record": records[0], "other": records[1], "field": attr or field}
    ask = t.ask("compare", records, facts=[fact])
    refs = {"ref": t.ref(first), "ref2": t.ref(second)}
    return t.draft(f"compare_{field}", ask, **refs, attr=attr)


def _comparable(t: Teller, first: Product, field: str, attr: str) -> list[Product]:
    """List what can be compared, if possible of the same kind."""
    holds = [
        p
        for p in t.products
        if p is not first and (attr in p.attributes if attr else known(p, field) is not None)
    ]
    kind = t.world.goods[first.product_id].kind
    return [p for p in holds if t.world.goods[p.product_id].kind is kind] or holds


def _total_one(t: Teller) -> Draft | None:
    product = t.pick(lambda p: known(p, "price") is not None)
    if product is None:
        return None
    ask, pieces = _total_ask(t, [product])
    slots = {"n": _number(t, pieces[0]), "unit": t.world.goods[product.product_id].unit}
    return None if ask is None else t.draft("total_one", ask, ref=t.ref(product), **slots)


def _total_two(t: Teller) -> Draft | None:
    if len(t.products) < 2:
        return None
    two = t.rng.sample(t.products, 2)
    ask, pieces = _total_ask(t, two)
    units = [t.world.goods[product.product_id].unit for product in two]
    slots = {"unit": units[0], "unit2": units[1]}
    slots |= {"n": str(pieces[0]), "m": str(pieces[1])}
    if ask is None:
        return None
    return t.draft("total_two", ask, ref=t.ref(two[0]), ref2=t.ref(two[1]), **slots)


def _number(t: Teller, pieces: int) -> str:
    return str(t.rng.choice(t.show["numbers"][str(pieces)]))


def _total_ask(t: Teller, products: Sequence[Product]) -> tuple[Raw | None, list[int]]:
    """Ask for the total of some pieces of each product, where it can be known."""
    pieces = [t.rng.randint(2 if len(products) == 1 else 1, 3) for _ in products]
    lines = [(p.product_id, n) for p, n in zip(products, pieces, strict=True)]
    total = quote(t.now.room, lines).total
    if total is None:
        return None, pieces
    fact = {"record": "quote", "field": "total", "lines": [list(line) for line in lines]}
    plain = sum(n * (known(p, "price") or 0) for p, n in zip(products, pieces, strict=True))
    wrong = [] if round(plain, 2) == total else [{**fact, "value": round(plain, 2)}]
    records = [record_of(product) for product in products]
    return t.ask("total", records, facts=[{**fact, "value": total}], must_not=wrong), pieces


def _move(t: Teller) -> Draft | None:
    product = t.any_of(t.products[3:])
    if product is None:
        return None
    state = {"product": product.product_id, "position_at_most": t.rng.choice((1, 2))}
    ask = t.ask("order", [record_of(product)])
    return replace(t.draft("move", ask, ref=t.ref(product)), state=state)


def _image(t: Teller) -> Draft | None:
    product = t.pick(lambda p: p.images)
    if product is None:
        return None
    good = t.world.goods[product.product_id]
    image = t.rng.choice(product.images)
    ask = t.ask("image", [record_of(product)])
    words = t.trades[good.trade]["images"][image]
    drafted = t.draft("image", ask, ref=t.ref(product), img=words)
    return replace(drafted, state={"product": product.product_id, "image": image})


def _ask_spec(t: Teller) -> Draft | None:
    """Leave the variant open where its price depends on it."""
    product = t.pick(lambda p: len({known(sku, "price") for sku in p.skus} - {None}) > 1)
    if product is None:
        return None
    sku = t.rng.choice([sku for sku in product.skus if known(sku, "price") is not None])
    axes = list(sku.spec)
    spec = t.spec_words(sku)
    answer = t.words("skills", "spec_answer").format(spec=spec)
    unit = t.world.goods[product.product_id].unit
    drafted = t.draft("ask_spec", _clarify(t, axes), ref=t.ref(product), unit=unit)
    told = {"text": answer, "when": axes, "expected": {"asks": [_sku_ask(t, sku, "price")]}}
    vague = {"text": t.words("skills", "spec_vague"), "expected": {"asks": [_clarify(t, axes)]}}
    return replace(drafted, follow_ups=(told, vague))


def _clarify(t: Teller, slots: Sequence[str]) -> Raw:
    return t.ask("clarify", acts=["ask"], ask_for=list(slots))


def _ask_size(t: Teller) -> Draft | None:
    guides = {a.scope: a for a in t.world.answers if a.topic == "size"}
    product = t.pick(lambda p: f"product:{p.product_id}" in guides)
    if product is None:
        return None
    guide, size = guides[f"product:{product.product_id}"], t.rng.randrange(4)
    height = (guide.bounds[0] - 3, *(bound + 2 for bound in guide.bounds))[size]
    words = t.show["size_faq"]
    slots = [words["height"], words["weight"]]
    weight = words["weights"][size]
    told = t.words("skills", "size_answer").format(height=height, weight=weight)
    record = f"faq:{guide.faq_id}"
    fact = {"record": record, "field": "answer", "text": [guide.phrases[size]]}
    sized = t.ask(words["intent"], [record], facts=[fact])
    follow_up = {"text": told, "when": slots, "expected": {"asks": [sized]}}
    drafted = t.draft("ask_size", _clarify(t, slots), ref=t.ref(product))
    return replace(drafted, follow_ups=(follow_up,))


def _ask_budget(t: Teller) -> Draft | None:
    found = [(label, group) for label, group in groups_now(t) if _limit(group) is not None]
    chosen = t.any_of(found)
    if chosen is None:
        return None
    label, group = chosen
    t.keep(label)
    best = min(group, key=lambda p: known(p, "price"))
    record = record_of(best)
    recommended = t.ask(
        "recommend",
        [record_of(product) for product in group],
        facts=[{"record": record, "field": "link_no"}],
        extras=[{"record": record, "field": "price"}],
    )
    slot = t.show["budget_slot"]
    answer = t.words("skills", "budget_answer").format(x=_limit(group))
    follow_up = {"text": answer, "when": [slot], "expected": {"asks": [recommended]}}
    return replace(t.draft("ask_budget", _clarify(t, [slot]), kind=label), follow_ups=(follow_up,))


def _limit(group: Sequence[Product]) -> int | None:
    """Return a budget that only the cheapest of the group keeps to."""
    first, second = sorted(known(product, "price") for product in group)[:2]
    limit = int(first) + 1
    return limit if limit < second else None


def groups_now(t: Teller) -> Iterator[tuple[str, list[Product]]]:
    """Yield the groups of two or three products in the room, all of them with a price."""
    for label, names in t.groups.items():
        group = [p for p in map(t.product, names) if p is not None]
        if len(group) > 1 and all(known(product, "price") is not None for product in group):
            yield label, group


def _absent(t: Teller) -> Draft | None:
    own = {good.trade for good in t.world.goods.values()}
    things = list(t.table("absent"))
    for trade, words in t.trades.items():
        things += [] if trade in own else [kind["name"] for kind in words["kinds"]]
    thing = t.rng.choice(things)
    t.keep(thing)
    return t.draft("absent", _absent_ask(t, thing), thing=thing)


def _absent_ask(t: Teller, name: str) -> Raw:
    return t.ask("absent", facts=[{"kind": "absent", "text": [name]}])


def _withdrawn(t: Teller) -> Draft | None:
    events = t.world.room.events
    gone = [e.target for e in events if e.kind == "withdrawn" and e.at_s <= t.at_s]
    if not gone:
        return None
    short = t.world.goods[gone[0].removeprefix("product:")].short
    t.keep(short)
    return t.draft("withdrawn", _absent_ask(t, short), ref=short)


def _unknown(t: Teller) -> Draft | None:
    """Ask for what the room does not say of a product or a variant."""
    found = [pair for p in t.products for pair in _unknown_fields(t, p)]
    chosen = t.any_of(found)
    if chosen is None:
        return None
    product, holder, field = chosen
    is_sku = isinstance(holder, Sku)
    record = f"sku:{holder.sku_id}" if isinstance(holder, Sku) else record_of(product)
    ref = t.spec(product, holder) if isinstance(holder, Sku) else t.ref(product)
    ask = t.ask("unknown", [record], facts=[{"kind": "unknown", "record": record, "field": field}])
    if is_sku or field in FIELD_INTENTS:
        return t.draft(field, ask, ref=ref)
    t.keep(field)
    return t.draft("attribute", ask, ref=ref, attr=field)


def _unknown_fields(t: Teller, product: Product) -> list[tuple[Product, Product | Sku, str]]:
    attributes = t.trades[t.world.goods[product.product_id].trade]["attributes"]
    found: list[tuple[Product, Product | Sku, str]] = [
        (product, product, attr) for attr in attributes if attr not in product.attributes
    ]
    for sku in product.variants:
        holder = sku if product.skus else product
        missing = [f for f in ("price", "stock") if known(sku, f) is None]
        found += [(product, holder, field) for field in missing]
    return found


def _stale(t: Teller) -> Draft | None:
    """Ask about a price that the host got wrong."""
    for said in t.rng.sample(said_so_far(t, "stale"), len(said_so_far(t, "stale"))):
        product = t.product(said.this)
        value = None if product is None else known(product, "coupon_price")
        if product is None or value is None or value == said.price:
            continue
        record = record_of(product)
        fact = {"record": record, "field": "coupon_price"}
        wrong = {**fact, "value": said.price}
        ask = t.ask("price", [record], facts=[{**fact, "value": value}], must_not=[wrong])
        price = t.money(format_amount(said.price))
        return t.draft("stale", ask, ref=t.ref(product), price=price)
    return None


def _ellipsis(t: Teller) -> Draft | None:
    """Go on from the viewer's own question before: the same for another variant."""
    product = t.pick(lambda p: _neighbours(p))
    if product is None:
        return None
    first, second, value = t.rng.choice(_neighbours(product))
    ref, spec = t.ref(product), t.spec_words(first)
    slots = {"ref": ref, "spec": spec, "n": first.stock}
    history = (
        _line(t, t.viewer, "ellipsis_question", slots, t.at_s - 12),
        _line(t, "host", "ellipsis_reply", slots, t.at_s - 7),
    )
    fact = {"record": f"sku:{second.sku_id}", "field": "stock"}
    is_wrong = first.stock != second.stock and str(first.stock) not in t.spec_words(second)
    wrong = [{**fact, "value": first.stock}] if is_wrong else []
    ask = _sku_ask(t, second, "stock", must_not=wrong)
    return replace(t.draft("ellipsis", ask, spec=value), history=history)


def _neighbours(product: Product) -> list[tuple[Sku, Sku, str]]:
    """List pairs of variants that differ in one thing, with the second one's, both in stock."""
    found = []
    for first in product.skus:
        for second in product.skus:
            other = [v for axis, v in second.spec.items() if first.spec.get(axis) != v]
            if len(other) == 1 and first.stock is not None and second.stock is not None:
                found.append((first, second, other[0]))
    return found


def _line(t: Teller, by: str, skill: str, slots: Mapping[str, Any], at_s: int) -> Raw:
    return {"by": by, "text": t.words("skills", skill).format(**slots), "at_s": at_s}


def _repeat(t: Teller) -> Draft | None:
    """Ask again what the same viewer asked before."""
    earlier = t.any_of([e for e in t.earlier if e.field in FIELD_INTENTS])
    product = None if earlier is None else t.product(earlier.product_id)
    if earlier is None or product is None or known(product, earlier.field) is None:
        return None
    text = t.words("skills", earlier.field).format(ref=t.name(product))
    drafted = t.draft("repeat", t.field_ask(product, earlier.field), text=text)
    return replace(drafted, same_as=earlier.comment_id, viewer=earlier.viewer)


CHATTER: dict[str, Skill] = {"chat": _spoken("chat", "chat", "robot", "noise", "abuse")}
"""Comments that ask nothing."""
ONE_LOOK_UP: dict[str, Skill] = {
    "price": _field("price"),
    "stock": _field("stock"),
    "coupon_price": _field("coupon_price"),
    "link_no": _field("link_no"),
    "merchant": _field("merchant"),
    "attribute": _attribute,
    "promotion": _promotion,
    "sku_price": _sku("price"),
    "sku_stock": _sku("stock"),
    "faq": _faq,
    "product_faq": _product_faq,
    "recall": _recall,
    "decline": _spoken("bargain", "claims", "offsite"),
}
SEVERAL_LOOK_UPS: dict[str, Skill] = {
    "two_facts": _two_facts,
    "multi": _multi,
    "price_coupon": _price_coupon,
    "compare": _compare,
    "total_one": _total_one,
    "total_two": _total_two,
    "move": _move,
    "image": _image,
    "hand_off": _spoken("dispute", "bulk"),
    "ask_spec": _ask_spec,
    "ask_size": _ask_size,
    "ask_budget": _ask_budget,
    "absent": _absent,
    "withdrawn": _withdrawn,
    "unknown": _unknown,
    "stale": _stale,
    "ellipsis": _ellipsis,
    "repeat": _repeat,
}
