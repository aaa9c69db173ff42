"""What a room's parts say about each other: faults, notes, and counts of the key.

A fault would break an episode or its reward, often without a sound; a note tells a person of what
is allowed but may not be meant. Faults of single values are the schema's.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from typing import Any, TypeVar

from livestream_env.errors import Issue, did_you_mean
from livestream_env.rooms import (
    Ask,
    Comment,
    Event,
    Expected,
    FollowUp,
    Product,
    Promotion,
    Room,
    Statement,
    room_as_of,
)
from livestream_env.words import Price, fold

T = TypeVar("T")

IDS = {
    "products": "product_id",
    "skus": "sku_id",
    "faqs": "faq_id",
    "script": "segment_id",
    "reply_rules": "rule_id",
    "promotions": "promotion_id",
    "comments": "comment_id",
}
_RECORDS = {
    "product": "products",
    "sku": "skus",
    "faq": "faqs",
    "rule": "reply_rules",
    "script": "script",
    "comment": "comments",
    "promotion": "promotions",
}
_GOODS = {"product": "products", "sku": "skus"}
_PRODUCT_FIELDS = ("name", "link_no", "merchant", "price", "coupon_price", "stock", "barcode")
_FIELDS = {
    "sku": ("spec", "price", "coupon_price", "stock", "barcode"),
    "faq": ("question", "answer"),
    "rule": ("intent", "rule"),
    "script": ("text", "start_s", "end_s"),
    "comment": ("text", "reply"),
    "promotion": ("text", "kind", "threshold", "amount", "rate", "cap", "starts_s", "ends_s"),
}
_STATE_KEYS = ("product", "position_at_most", "position", "image", "handed_off")
_HINTED = 1000
"""Names among which the nearest is looked for; a longer list would take seconds."""


Names = Mapping[str, Sequence[tuple[str, str]]]
"""(JSON path, name) of what a room declares, by the part that declares it."""


def declared_names(raw: Mapping[str, Any]) -> Names:
    """Collect the ids, merchants and intents of a room given as JSON, faulty items included."""
    names: dict[str, list[tuple[str, str]]] = {part: [] for part in IDS}
    for part in IDS.keys() - {"skus"}:
        names[part] = _texts(raw.get(part), part, IDS[part])
    products = raw.get("products")
    for i, product in _objects(products):
        at = f"products[{i}]"
        names["skus"] += _texts(product.get("skus"), f"{at}.skus", "sku_id")
        names["promotions"] += _texts(product.get("promotions"), f"{at}.promotions", "promotion_id")
    names["merchants"] = _texts(products, "products", "merchant")
    names["merchants"] += _texts(products, "products", "商家名")
    names["intents"] = _texts(raw.get("reply_rules"), "reply_rules", "intent")
    return names


def _texts(items: Any, path: str, key: str) -> list[tuple[str, str]]:
    values = ((i, item.get(key)) for i, item in _objects(items))
    return [(f"{path}[{i}].{key}", value) for i, value in values if isinstance(value, str)]


def _objects(items: Any) -> list[tuple[int, Mapping[str, Any]]]:
    if not isinstance(items, list | tuple):
        return []
    return [(i, item) for i, item in enumerate(items) if isinstance(item, Mapping)]


def check_references(room: Room, *, names: Names | None = None) -> list[Issue]:
    """Return every dangling reference, repeated id and impossible value of the room.

    `names` are what the file declares, where some of its items are too faulty to be in `room`:
    those are `None`, and passed over.
    """
    return list(_Check(room, names or declared_names(room.model_dump())).issues())


def shown(text: str) -> str:
    """Cut a text short and escape what is no plain character, for error texts."""
    text = text if len(text) <= 60 else f"{text[:57]}..."
    return text if text.isprintable() else repr(text)[1:-1]


def _sound(items: Sequence[T | None]) -> Iterator[tuple[int, T]]:
    return ((i, item) for i, item in enumerate(items) if item is not None)


class _Check:
    """One pass over a room that yields an `Issue` for each fault between its parts."""

    def __init__(self, room: Room, names: Names) -> None:
        self.room = room
        self.declared = names
        self.names = {part: {name for _, name in found} for part, found in names.items()}
        self.names["goods"] = self.names["products"] | self.names["skus"]
        self.intents = {fold(intent) for intent in self.names["intents"]}
        self.products = {p.product_id: p for _, p in _sound(room.products)}
        self.comments = {c.comment_id: c for _, c in _sound(room.comments)}
        self.ending: dict[str, None] = {}
        """Comments whose `same_as` leads to an end, not round a circle."""

    def issues(self) -> Iterator[Issue]:
        yield from self._repeats()
        for i, product in _sound(self.room.products):
            yield from self._product_parts(f"products[{i}]", product)
        for i, promotion in _sound(self.room.promotions):
            yield from self._promotion(f"promotions[{i}]", promotion)
        for i, faq in _sound(self.room.faqs):
            yield from self._scope(f"faqs[{i}].scope", faq.scope)
        for i, rule in _sound(self.room.reply_rules):
            yield from self._scope(f"reply_rules[{i}].scope", rule.scope)
        for i, segment in _sound(self.room.script):
            yield from self._product(f"script[{i}].product_id", segment.product_id)
        for i, event in _sound(self.room.events):
            yield from self._event(f"events[{i}]", event)
        for i, comment in _sound(self.room.comments):
            yield from self._comment(f"comments[{i}]", comment)

    # --- the world ----------------------------------------------------------------------------

    def _repeats(self) -> Iterator[Issue]:
        for part in IDS:
            yield from _twice("the id", self.declared[part], "make ids unique in the whole room")
        links = [
            (f"products[{i}].link_no", str(product.link_no))
            for i, product in _sound(self.room.products)
            if product.link_no is not None
        ]
        yield from _twice("link number", links, "give each product its own")
        rules = [
            (f"reply_rules[{i}].intent", f"{fold(rule.intent)} ({rule.scope})")
            for i, rule in _sound(self.room.reply_rules)
        ]
        yield from _twice("intent (scope)", rules, "merge the rules, or narrow one scope")

    def _product_parts(self, path: str, product: Product) -> Iterator[Issue]:
        for field in ("price", "coupon_price", "stock") if product.skus else ():
            if getattr(product, field) is not None:
                problem = "a product with SKUs takes this from them"
                yield Issue(f"{path}.{field}", problem, "remove it here")
        for j, sku in enumerate(product.skus):
            own = sku.sku_id == product.product_id and len(product.skus) == 1
            if sku.sku_id in self.names["products"] and not own:
                problem = f"`{shown(sku.sku_id)}` is also the id of a product"
                remedy = "give the SKU an id of its own: a quote's lines name either by id"
                yield Issue(f"{path}.skus[{j}].sku_id", problem, remedy)
        for key in product.attributes:
            if key in (*_PRODUCT_FIELDS, "image", "images", "position"):
                problem = "is the name of a product's own field"
                yield Issue(f"{path}.attributes.{key}", problem, "move it there, or rename it")
        for j, promotion in enumerate(product.promotions):
            yield from self._promotion(f"{path}.promotions[{j}]", promotion)

    def _promotion(self, path: str, promotion: Promotion) -> Iterator[Issue]:
        if promotion.scope is not None:
            yield from self._scope(f"{path}.scope", promotion.scope)
        starts, ends = promotion.starts_s, promotion.ends_s
        if starts is not None and ends is not None and ends <= starts:
            problem = f"`ends_s` {ends} is not after `starts_s` {starts}: it never holds"
            yield Issue(f"{path}.ends_s", problem, "correct one, both in seconds of the show")

    def _scope(self, path: str, scope: str) -> Iterator[Issue]:
        kind, _, name = scope.partition(":")
        if kind in ("product", "merchant") and scope != kind:
            yield from self._known(path, kind, name, self.names[f"{kind}s"])
        elif scope != "room":
            problem = f"got `{shown(scope)}`"
            yield Issue(path, problem, "use `room`, `merchant:NAME` or `product:ID`")

    def _product(self, path: str, product_id: str | None) -> Iterator[Issue]:
        if product_id is not None:
            yield from self._known(path, "product", product_id, self.names["products"])

    def _known(self, path: str, what: str, name: str, known: Collection[str]) -> Iterator[Issue]:
        if name not in known:
            hint = did_you_mean(name[:100], known) if len(known) <= _HINTED else ""
            problem = f"there is no {what} `{shown(name)}`"
            yield Issue(path, problem, f"name one of the room's.{hint}")

    def _record(self, path: str, record: str, kinds: Mapping[str, str]) -> Iterator[Issue]:
        kind, colon, name = record.partition(":")
        if not colon or kind not in kinds:
            forms = ", ".join(f"`{known}:ID`" for known in kinds)
            yield Issue(path, f"got `{shown(record)}`", f"name a record as one of {forms}")
        else:
            yield from self._known(path, kind, name, self.names[kinds[kind]])

    def _event(self, path: str, event: Event) -> Iterator[Issue]:
        valued = event.kind in ("stock", "price", "coupon")
        kinds = _GOODS if valued else {"product": "products"}
        if event.kind == "promotion":
            kinds = {"promotion": "promotions"}
        yield from self._record(f"{path}.target", event.target, kinds)
        product = self.products.get(event.target.removeprefix("product:"))
        if valued and product is not None and product.skus and event.target.startswith("product:"):
            problem = f"product `{shown(product.product_id)}` has SKUs"
            yield Issue(f"{path}.target", problem, "name the SKU: `sku:ID`")
        remedy = _value_remedy(event, product)
        if remedy:
            yield Issue(f"{path}.value", f"got {_given(event.value)}", remedy)

    # --- the key ------------------------------------------------------------------------------

    def _comment(self, path: str, comment: Comment) -> Iterator[Issue]:
        if re.search(r"[\s,，\"'<>*]", comment.comment_id):
            problem = f'`{shown(comment.comment_id)}` cannot stand in `<reply to="...">`'
            remedy = "use no blank, comma, quote, `*`, `<` or `>` in it"
            yield Issue(f"{path}.comment_id", problem, remedy)
        yield from self._product(f"{path}.current_product", comment.current_product)
        if comment.same_as is not None:
            yield from self._same_as(f"{path}.same_as", comment, comment.same_as)
        if comment.expected is not None:
            yield from self._expected(f"{path}.expected", comment.expected)
        for i, follow_up in enumerate(comment.follow_ups):
            at = f"{path}.follow_ups[{i}]"
            if follow_up.expected is not None:
                yield from self._expected(f"{at}.expected", follow_up.expected)
            if not all(map(str.strip, follow_up.when)) or not follow_up.when:
                remedy = "name the slots that must be asked for, or write `always`"
                yield Issue(f"{at}.when", "names no slot, so any question fits", remedy)
        if comment.follow_ups and comment.expected is not None and not _asks_back(comment):
            problem = "no ask of the comment has the act `ask`, so a right reply never gets here"
            yield Issue(f"{path}.follow_ups", problem, "add the act, or remove the follow-ups")

    def _same_as(self, path: str, comment: Comment, name: str) -> Iterator[Issue]:
        yield from self._known(path, "comment", name, self.names["comments"])
        seen, at = {comment.comment_id: None}, self.comments.get(name)
        if at is not None and at is not comment and at.at_s > comment.at_s:
            problem = f"comment `{shown(name)}` is later, at {at.at_s} s"
            yield Issue(path, problem, "name the comment that was there first")
        while at is not None and not (at.comment_id in seen or at.comment_id in self.ending):
            seen[at.comment_id] = None
            at = self.comments.get(at.same_as) if at.same_as is not None else None
        if at is None or at.comment_id in self.ending:
            self.ending |= seen
        elif at.comment_id == comment.comment_id:
            circle = " -> ".join(f"`{shown(one)}`" for one in (*seen, comment.comment_id)[:6])
            yield Issue(path, f"{circle}: a comment repeats itself", "leave it out of the first")

    def _expected(self, path: str, expected: Expected) -> Iterator[Issue]:
        for i, ask in enumerate(expected.asks):
            yield from self._ask(f"{path}.asks[{i}]", ask)
        if isinstance(expected.state, dict):
            yield from self._predicate(f"{path}.state", expected.state)
        elif expected.state is not None:
            yield from self._order(f"{path}.state", expected.state)

    def _ask(self, path: str, ask: Ask) -> Iterator[Issue]:
        if "*" not in self.intents and fold(ask.intent) not in self.intents:
            what = "reply rule for intent"
            yield from self._known(f"{path}.intent", what, ask.intent, self.names["intents"])
        for j, needed in enumerate(ask.needed):
            if not needed:
                problem = "is an empty list, which nothing can meet"
                yield Issue(
                    f"{path}.needed[{j}]", problem, "name records, any one of which will do"
                )
            records = (needed,) if isinstance(needed, str) else needed
            for k, record in enumerate(records):
                at = f"{path}.needed[{j}]" + ("" if isinstance(needed, str) else f"[{k}]")
                yield from self._record(at, record, _RECORDS)
        for part in ("facts", "extras", "must_not"):
            for j, statement in enumerate(getattr(ask, part)):
                yield from self._statement(f"{path}.{part}[{j}]", statement)
                for record in (statement.record, statement.other) if part == "facts" else ():
                    yield from self._field(f"{path}.{part}[{j}].field", statement, record or "")

    def _statement(self, path: str, statement: Statement) -> Iterator[Issue]:
        for part, record in (("record", statement.record), ("other", statement.other)):
            if record is not None and record != "quote":
                yield from self._record(f"{path}.{part}", record, _RECORDS)
        problem, remedy = _incomplete(statement)
        if problem:
            yield Issue(path, problem, remedy)
        for j, (item, pieces) in enumerate(statement.lines):
            known, what = self.names["goods"], "product or SKU"
            yield from self._known(f"{path}.lines[{j}][0]", what, item, known)
            if pieces < 1:
                yield Issue(f"{path}.lines[{j}][1]", f"got {pieces} pieces", "give 1 or more")

    def _field(self, path: str, statement: Statement, record: str) -> Iterator[Issue]:
        kind, _, name = record.partition(":")
        known = _FIELDS.get(kind, ())
        if kind == "product" and name in self.products:
            known = (*_PRODUCT_FIELDS, *self.products[name].attributes)
        field = statement.field
        if known and field is not None and field not in known and statement.kind != "unknown":
            problem = f"`{shown(record)}` has no field `{shown(field)}`"
            yield Issue(path, problem, f"name one it has.{did_you_mean(field, known)}")

    def _predicate(self, path: str, state: Mapping[str, Any]) -> Iterator[Issue]:
        for key in sorted(state.keys() - set(_STATE_KEYS)):
            remedy = "name the product by id as `product`"
            if key != "link_no":
                remedy = f"use {', '.join(_STATE_KEYS)}.{did_you_mean(key, _STATE_KEYS)}"
            yield Issue(f"{path}.{shown(key)}", "is no predicate", remedy)
        if not state.keys() & {"position", "position_at_most", "image", "handed_off"}:
            yield Issue(
                path, "says nothing of the final state", "add a position, image or hand-off"
            )
        for key in [key for key in ("position", "position_at_most") if key in state]:
            if not _is_whole(state[key]) or not 1 <= state[key] <= len(self.room.products):
                remedy = "a position is a whole number from 1, at most the number of products"
                yield Issue(f"{path}.{key}", f"got {_given(state[key])}", remedy)
        if not isinstance(state.get("handed_off", True), bool):
            got = _given(state["handed_off"])
            yield Issue(f"{path}.handed_off", f"got {got}", "write true or false")
        yield from self._predicate_product(path, state)

    def _predicate_product(self, path: str, state: Mapping[str, Any]) -> Iterator[Issue]:
        placed = state.keys() & {"position", "position_at_most", "image"}
        name = state.get("product")
        if not isinstance(name, str):
            if placed or name is not None:
                remedy = "name the product by id"
                yield Issue(f"{path}.product", f"got {_given(name)}", remedy)
            return
        yield from self._product(f"{path}.product", name)
        product = self.products.get(name)
        if "image" in state and product is not None and state["image"] not in product.images:
            remedy = _one_of(product.images)
            yield Issue(f"{path}.image", f"got {_given(state['image'])}", remedy)

    def _order(self, path: str, order: Sequence[str]) -> Iterator[Issue]:
        for i, product_id in enumerate(order):
            yield from self._product(f"{path}[{i}]", product_id)
        if len(set(order)) < len(order):
            yield Issue(path, "names a product twice", "list each listed product once, in order")


def _twice(what: str, found: Iterable[tuple[str, str]], remedy: str) -> Iterator[Issue]:
    first: dict[str, str] = {}
    for path, name in found:
        if name in first:
            yield Issue(path, f"{what} `{shown(name)}` stands at {first[name]} already", remedy)
        first.setdefault(name, path)


def _incomplete(statement: Statement) -> tuple[str, str]:
    """Return what a statement lacks to be checked, and the remedy; empty if nothing."""
    kind, record, text = statement.kind, statement.record, any(map(str.strip, statement.text))
    if (record == "quote") != bool(statement.lines):
        remedy = "a total is `record` `quote` with `lines`, pairs of id and pieces"
        return "has `quote` or `lines` without the other", remedy
    if kind == "absent" and not text:
        return "names nothing that is absent", "give `text`, names of the thing asked for"
    if kind == "compare" and (record is None or statement.other is None):
        return "compares less than two records", "give `record` and `other`"
    if kind in ("value", "unknown") and record is None and not text:
        return "names no record and no text", "give `record` and `field`, or `text`"
    if kind != "absent" and record not in (None, "quote") and statement.field is None and not text:
        return "names no field of its record", "give `field`, or `text`"
    return "", ""


def _asks_back(comment: Comment) -> bool:
    keys = [comment.expected, *(follow_up.expected for follow_up in comment.follow_ups)]
    return any("ask" in ask.acts for key in keys if key is not None for ask in key.asks)


def _value_remedy(event: Event, product: Product | None) -> str:
    """Return what the value of an event should be, empty where it is right."""
    value = event.value
    if event.kind == "stock" and value is not None and not (_is_whole(value, 0)):
        return "a stock is a whole number from 0, or null"
    if event.kind in ("price", "coupon") and isinstance(value, bool):
        return "a price is a number or a text, or null"
    if event.kind == "order" and not _is_whole(value):
        return "a position is a whole number from 1"
    if event.kind == "promotion" and not isinstance(value, bool | None):
        return "write true or false, by default true"
    if event.kind == "image" and product is not None and value not in product.images:
        return _one_of(product.images)
    if event.kind in ("current_product", "listed", "withdrawn") and value is not None:
        return "remove it: this kind of event has no value"
    return ""


def _is_whole(value: object, least: int = 1) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and value >= least


def _given(value: object) -> str:
    words = {None: "null", True: "true", False: "false"}
    if value is None or isinstance(value, bool):
        return words[value]
    return f"`{shown(value)}`" if isinstance(value, str) else shown(str(value))


def _one_of(names: Sequence[str]) -> str:
    if not names:
        return "the product has no `images`"
    return f"name one of its images: {', '.join(f'`{shown(name)}`' for name in names)}"


# --- notes and counts ------------------------------------------------------------------------


def room_notes(room: Room) -> Iterator[str]:
    """Yield what a person should know about a sound room, one line each."""
    yield from _unknown_values(room)
    yield from _unknown_promotions(room)
    yield from _unseen_events(room)
    yield from _last_resorts(room)
    yield from _open_asks(room)
    yield from _fieldless_extras(room)
    for i, comment in enumerate(room.comments):
        yield from _contradictions(room, f"comments[{i}]", comment)


def _unknown_values(room: Room) -> Iterator[str]:
    variants = [sku for product in room.products for sku in product.variants]
    for field in ("price", "coupon_price", "stock"):
        values = [getattr(sku, field) for sku in variants]
        missing = sum((v.amount if isinstance(v, Price) else v) is None for v in values)
        if missing:
            yield f"{missing} of {len(variants)} variants have no known `{field}`"


def _unknown_promotions(room: Room) -> Iterator[str]:
    for promotion in room.all_promotions:
        lacking = [] if _is_valued(promotion) else ["how much it takes off"]
        pieces = promotion.threshold or 0.5
        if promotion.kind in ("nth_piece", "bundle") and pieces % 1:
            lacking.append("how many pieces it is for")
        if lacking:
            name, what = shown(promotion.promotion_id), " and ".join(lacking)
            yield f"promotion `{name}` does not say {what}: totals with it are unknown"


def _is_valued(promotion: Promotion) -> bool:
    if promotion.kind == "bundle":
        return promotion.amount is not None
    if promotion.kind in ("coupon", "full_reduction", "nth_piece", "member", "subsidy"):
        return (promotion.amount is None) != (promotion.rate is None)
    return True


def _unseen_events(room: Room) -> Iterator[str]:
    if room.comments:
        last = max(comment.at_s for comment in room.comments)
        unseen = sum(event.at_s > last for event in room.events)
        if unseen:
            yield f"{unseen} of {len(room.events)} events come after the last comment, at {last} s"


def _last_resorts(room: Room) -> Iterator[str]:
    known = {fold(rule.intent) for rule in room.reply_rules}
    keys = [key for comment in room.comments for key in _keys_of(comment)]
    asked = Counter(ask.intent for key in keys for ask in key.asks if fold(ask.intent) not in known)
    for intent, times in asked.items():
        yield f"intent `{shown(intent)}`, expected {times} times, has only the rule of last resort"


def _open_asks(room: Room) -> Iterator[str]:
    for i, comment in enumerate(room.comments):
        asks = [ask for key in _keys_of(comment) for ask in key.asks]
        if any("ask" in ask.acts and not ask.ask_for for ask in asks):
            yield f"comments[{i}]: an ask back names no slot in `ask_for`: any question will do"


def _fieldless_extras(room: Room) -> Iterator[str]:
    check = _Check(room, declared_names({}))
    for i, comment in enumerate(room.comments):
        asks = [ask for key in _keys_of(comment) for ask in key.asks]
        for statement in (s for ask in asks for s in (*ask.extras, *ask.must_not)):
            for record in filter(None, (statement.record, statement.other)):
                for issue in check._field(f"comments[{i}]", statement, record):
                    yield str(issue)


def _keys_of(comment: Comment) -> Iterator[Expected]:
    holders: Iterable[Comment | FollowUp] = (comment, *comment.follow_ups)
    return (holder.expected for holder in holders if holder.expected is not None)


def _contradictions(room: Room, path: str, comment: Comment) -> Iterator[str]:
    """Yield where the key of a comment says another thing than the room as of then."""
    asks = [ask for key in _keys_of(comment) for ask in key.asks]
    statements = [s for ask in asks for s in (*ask.facts, *ask.extras) if s.record is not None]
    named = comment.current_product
    if not statements and named is None:
        return
    now = room_as_of(room, comment.at_s, comment=comment).room
    if named is not None and all(product.product_id != named for product in now.products):
        yield f"{path}: its current product `{shown(named)}` is not in the room at {comment.at_s} s"
    held = _held_values(now)
    for statement in statements:
        value = held.get((statement.record or "", statement.field or ""))
        if statement.kind == "unknown" and value is not None:
            yield f"{path}: `{statement.field}` of `{statement.record}` is known then, {value}"
        said = statement.value
        if isinstance(said, int | float) and value is not None and value != said:
            yield f"{path}: `{statement.field}` of `{statement.record}` is {value} then, not {said}"


def _held_values(room: Room) -> dict[tuple[str, str], float | None]:
    """Return the known numbers of products and SKUs by (record, field)."""
    held: dict[tuple[str, str], float | None] = {}
    for product in room.products:
        record = f"product:{product.product_id}"
        held[record, "stock"] = product.total_stock
        held[record, "price"] = _amount(product.lowest("price"))
        held[record, "coupon_price"] = _amount(product.lowest("coupon_price"))
        for sku in product.skus:
            record = f"sku:{sku.sku_id}"
            held[record, "stock"] = sku.stock
            held[record, "price"] = _amount(sku.price)
            held[record, "coupon_price"] = _amount(sku.coupon_price)
    return held


def _amount(price: Price | None) -> float | None:
    return None if price is None else price.amount


def expected_counts(room: Room) -> dict[str, int]:
    """Count the comments that carry each part of the key."""
    counts = dict.fromkeys(("comments", "expected", "needed", "facts", "state", "same_as"), 0)
    counts["follow_ups"] = 0
    for comment in room.comments:
        asks = comment.expected.asks if comment.expected else ()
        counts["comments"] += 1
        counts["expected"] += comment.expected is not None
        counts["needed"] += any(ask.needed for ask in asks)
        counts["facts"] += any(ask.facts for ask in asks)
        counts["state"] += comment.expected is not None and comment.expected.state is not None
        counts["same_as"] += comment.same_as is not None
        counts["follow_ups"] += bool(comment.follow_ups)
    return counts
