"""What a basket costs: the only place that computes a total.

A total that cannot be known is `None` with the reason; it is never guessed.

Lines. Lines of one id are one line. The unit price is `price`. A `coupon_price` below it takes its
place (the coupon is in it), unless a promotion of kind `coupon` holds the line and the list prices
in its scope reach its threshold: then the list price counts, whether or not that coupon is used in
the end. A price that says 券后 is a coupon price, its 原价 the list price. `2件99` prices multiples
of its pieces only.

Promotions take money off in stages, each from what the stages before it left:

1. `nth_piece`: the `threshold`-th piece of a line is reduced; whether variants of one product count
   together is not known. `bundle`: `threshold` pieces, counted over the lines in scope, cost
   `amount`; lines of different prices must make up just one bundle.
2. `full_reduction`, 3. `coupon`, 4. `member`, 5. `subsidy`: `amount`, or the share `rate`, off the
   sum of the lines in scope where that sum reaches `threshold`.

One that is not `per_order` is given for each multiple of its threshold; a share of a sum is taken
once. `cap` limits all that one promotion takes off. What is left to pay is rounded to cents, half
up, after each promotion, and is never below 0. Money off a sum is shared out over its lines in
proportion, which decides what a later promotion of narrower scope finds. A `gift` takes nothing
off; it is earned where what is paid in the end reaches its threshold. A `deposit` takes off the
`amount` or `rate` that it has; one without either only moves the time of payment. Member prices and
deposits are not everybody's: they count only where the caller gives them.

Combination. Promotions that would each take money off this basket combine where either's
`stacks_with` names the other; where none does, and one has a list at all, they exclude each other,
and the buyer gets the cheapest of the largest allowed combinations. Where both are silent it is not
known, unless no line is in the scope of both.

Order. Within a stage there is no known order, and a kind without a stage (`deposit`, a room's own)
may stand anywhere: every order is tried, and a total is known only if all give the same.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from fractions import Fraction
from itertools import accumulate, combinations, islice, pairwise
from typing import NamedTuple

from livestream_env.errors import ItemNotFound, did_you_mean
from livestream_env.rooms import Product, Promotion, Room, Sku, room_as_of
from livestream_env.words import Price, format_amount

_STAGES = {
    "nth_piece": 1,
    "bundle": 1,
    "full_reduction": 2,
    "coupon": 3,
    "member": 4,
    "subsidy": 5,
}
_NOT_EVERYBODYS = ("member", "deposit")
_MAX_PROMOTIONS = 12
_MAX_ORDERS = 720


@dataclass(frozen=True, slots=True)
class Step:
    """One line of a receipt."""

    label: str
    """`2 x 199` for a line of the basket, else the promotion's id."""
    promotion_id: str | None
    change: float
    """Negative for money off."""
    total: float
    """The total after it."""


@dataclass(frozen=True, slots=True)
class Quote:
    """What a basket costs, and how that comes about."""

    total: float | None
    """`None` where it is not known."""
    steps: tuple[Step, ...]
    reason: str
    """Why there is no total, else empty."""
    gifts: tuple[str, ...] = ()
    """Ids of the gift promotions earned."""


def quote(
    room: Room,
    lines: Sequence[tuple[str, int]],
    at_s: float | None = None,
    promotions: Sequence[Promotion] | None = None,
) -> Quote:
    """Compute what the buyer pays for `lines`, pairs of a product or SKU id and a number of pieces.

    `at_s` asks for the room as of then; by default no event is applied and promotion times don't
    count. `promotions` are exactly those to count, whatever their times; by default all that hold
    then, but for members' and deposits.

    Raises:
        ItemNotFound: an id is neither a product's nor a SKU's; the message names the nearest.
        ValueError: no line, fewer than 1 piece, or a promotion given twice.
    """
    wanted = _count(room, lines)
    given = _resolve(room, promotions)
    now = room if at_s is None else room_as_of(room, at_s).room
    if given is None:
        given = [p for p in now.all_promotions if p.kind not in _NOT_EVERYBODYS]
    given.sort(key=lambda promotion: promotion.promotion_id)
    try:
        items = [_find_item(now, item_id, pieces) for item_id, pieces in wanted.items()]
        basket = [_price_item(item, items, given) for item in items]
        bill = _choose(basket, [promotion for promotion in given if _held(promotion, basket)])
    except _Unknown as unknown:
        return Quote(None, (), str(unknown))
    owed = _owed_along(basket, bill.order)
    gifts = [p for p in given if p.kind == "gift" and _is_earned(p, basket, owed[-1])]
    steps = (*_line_steps(basket), *_promotion_steps(bill.order, owed))
    return Quote(bill.cents / 100, steps, "", tuple(gift.promotion_id for gift in gifts))


class _Unknown(Exception):
    """Why there is no total."""


class _Item(NamedTuple):
    """A line of the basket before it is known which of its prices counts."""

    item_id: str
    product: Product
    pieces: int
    price: Price | None
    coupon_price: Price | None


class _Cost(NamedTuple):
    cents: int
    unit: int | None
    """Cents of one piece, `None` where only several have a price."""
    label: str


class _Line(NamedTuple):
    item_id: str
    product: Product
    pieces: int
    cost: _Cost


class _Bill(NamedTuple):
    """The least that a combination may cost, and why that is not sure."""

    cents: int
    doubt: str
    order: tuple[Promotion, ...]


def _count(room: Room, lines: Sequence[tuple[str, int]]) -> Counter[str]:
    known = _variants(room)
    wanted: Counter[str] = Counter()
    for item_id, pieces in lines:
        if item_id not in known:
            raise ItemNotFound(
                f"room `{room.room_id}` has no product and no SKU `{item_id}`;"
                f" name one of its {len(known)}.{did_you_mean(item_id, known)}"
            )
        if pieces < 1:
            raise ValueError(f"got {pieces} pieces of `{item_id}`: give 1 or more")
        wanted[item_id] += pieces
    if not wanted:
        raise ValueError("got no lines: give pairs of a product or SKU id and a number of pieces")
    return wanted


def _variants(room: Room) -> dict[str, tuple[Product, tuple[Sku, ...]]]:
    """Map every product and SKU id to what it may mean."""
    skus = {sku.sku_id: (product, (sku,)) for product in room.products for sku in product.skus}
    return {
        **skus,
        **{product.product_id: (product, product.variants) for product in room.products},
    }


def _resolve(room: Room, promotions: Sequence[Promotion] | None) -> list[Promotion] | None:
    """Fill in the scopes that follow from where a promotion is declared."""
    if promotions is None:
        return None
    twice = [p for p, times in Counter(p.promotion_id for p in promotions).items() if times > 1]
    if twice:
        raise ValueError(f"promotion `{twice[0]}` is given twice: give each once")
    scopes = {promotion.promotion_id: promotion.scope for promotion in room.all_promotions}
    return [
        p.model_copy(update={"scope": p.scope or scopes.get(p.promotion_id, "room")})
        for p in promotions
    ]


def _find_item(now: Room, item_id: str, pieces: int) -> _Item:
    found = _variants(now).get(item_id)
    if found is None:
        raise _Unknown(f"`{item_id}` is not in the room then")
    product, variants = found
    price, coupon_price = variants[0].price, variants[0].coupon_price
    prices = {(_without_raw(sku.price), _without_raw(sku.coupon_price)) for sku in variants}
    if len(prices) > 1:
        names = ", ".join(f"`{sku.sku_id}`" for sku in variants)
        raise _Unknown(f"which variant of `{item_id}`? {names} differ in price")
    if price is not None and price.kind == "coupon":
        listed = price.list_amount
        coupon_price = coupon_price or price
        price = None if listed is None else Price(listed, "amount", listed)
    return _Item(item_id, product, pieces, price, coupon_price)


def _without_raw(price: Price | None) -> Price | None:
    return None if price is None else replace(price, raw="")


def _price_item(item: _Item, items: Sequence[_Item], promotions: Iterable[Promotion]) -> _Line:
    """Decide between the list price and the coupon price of a line."""
    listed, reduced = _cost(item.price, item.pieces), _cost(item.coupon_price, item.pieces)
    coupon = next((p for p in promotions if _replaces_coupon_price(p, item, items)), None)
    if coupon is not None and listed is None and reduced is not None:
        raise _Unknown(
            f"the price of `{item.item_id}` without a coupon is not known,"
            f" and coupon `{coupon.promotion_id}` applies"
        )
    chosen = listed if coupon is not None or item.coupon_price is None else reduced
    if chosen is None:
        shown = item.price if item.coupon_price is None else item.coupon_price
        said = "" if shown is None else f"; it says `{shown.raw}`"
        raise _Unknown(f"the price of {item.pieces} x `{item.item_id}` is not known{said}")
    if listed is not None and listed.cents < chosen.cents:
        chosen = listed
    return _Line(item.item_id, item.product, item.pieces, chosen)


def _cost(price: Price | None, pieces: int) -> _Cost | None:
    if price is None or price.amount is None or price.kind not in ("amount", "coupon", "bundle"):
        return None
    bundles, rest = divmod(pieces, price.pieces or 1)
    if rest:
        return None
    cents = _cents(price.amount)
    label = str(price.raw) if price.kind == "bundle" else format_amount(price.amount)
    unit = None if price.kind == "bundle" else cents
    return _Cost(bundles * cents, unit, f"{bundles} x {label}")


def _cents(amount: float) -> int:
    return _round_half_up(Fraction(str(amount)) * 100)


def _round_half_up(value: Fraction) -> int:
    return math.floor(value + Fraction(1, 2))


def _replaces_coupon_price(promotion: Promotion, item: _Item, items: Sequence[_Item]) -> bool:
    if promotion.kind != "coupon" or not _holds(promotion, item.product):
        return False
    held = [other for other in items if _holds(promotion, other.product)]
    costs = [_cost(i.price, i.pieces) or _cost(i.coupon_price, i.pieces) for i in held]
    return _reaches(promotion, sum(cost.cents for cost in costs if cost is not None))


def _holds(promotion: Promotion, product: Product) -> bool:
    return promotion.scope in product.scopes


def _held(promotion: Promotion, basket: Sequence[_Line]) -> list[_Line]:
    return [line for line in basket if _holds(promotion, line.product)]


def _reaches(promotion: Promotion, cents: int) -> bool:
    return promotion.threshold is None or cents >= _cents(promotion.threshold)


def _is_earned(gift: Promotion, basket: Sequence[_Line], owed: Mapping[str, int]) -> bool:
    held = _held(gift, basket)
    return bool(held) and _reaches(gift, sum(owed[line.item_id] for line in held))


def _choose(basket: Sequence[_Line], promotions: Iterable[Promotion]) -> _Bill:
    """Return the cheapest of the largest allowed combinations."""
    start = {line.item_id: line.cost.cents for line in basket}
    applying = [
        promotion
        for promotion in promotions
        if _takes_money_off(promotion) and any(_money_off(promotion, basket, start).values())
    ]
    if len(applying) > _MAX_PROMOTIONS:
        raise _Unknown(f"{len(applying)} promotions apply, more than {_MAX_PROMOTIONS}")
    bills = [_settle(basket, chosen) for chosen in _largest_combinations(applying, basket)]
    best = min(bills, key=lambda bill: (bill.cents, bill.doubt))
    if best.doubt:
        raise _Unknown(best.doubt)
    return best


def _takes_money_off(promotion: Promotion) -> bool:
    valued = promotion.amount is not None or promotion.rate is not None
    return valued if promotion.kind == "deposit" else promotion.kind != "gift"


def _largest_combinations(
    promotions: Sequence[Promotion], basket: Sequence[_Line]
) -> list[tuple[Promotion, ...]]:
    """Return the allowed combinations that nothing can be added to."""
    excluded = {
        frozenset((a.promotion_id, b.promotion_id))
        for a, b in combinations(promotions, 2)
        if not _combine(a, b, basket)
    }
    largest: dict[frozenset[str], tuple[Promotion, ...]] = {}
    for size in range(len(promotions), -1, -1):
        for chosen in combinations(promotions, size):
            ids = frozenset(promotion.promotion_id for promotion in chosen)
            if not any(pair <= ids for pair in excluded) and not any(
                ids < more for more in largest
            ):
                largest[ids] = chosen
    return list(largest.values())


def _combine(a: Promotion, b: Promotion, basket: Sequence[_Line]) -> bool:
    if _names(a, b) or _names(b, a):
        return True
    if a.stacks_with is not None or b.stacks_with is not None:
        return False
    if any(_holds(b, line.product) for line in _held(a, basket)):
        raise _Unknown(f"whether `{a.promotion_id}` and `{b.promotion_id}` combine is not known")
    return True


def _names(promotion: Promotion, other: Promotion) -> bool:
    return not {"*", other.promotion_id, other.kind}.isdisjoint(promotion.stacks_with or ())


def _settle(basket: Sequence[_Line], promotions: tuple[Promotion, ...]) -> _Bill:
    """Try every order of the promotions; the first in which the total is lowest stands for all."""
    orders = list(islice(_orders(promotions), _MAX_ORDERS + 1))
    if len(orders) > _MAX_ORDERS:
        names = ", ".join(f"`{promotion.promotion_id}`" for promotion in promotions)
        raise _Unknown(f"the order of {names} is not known, and there are too many to try")
    totals = {order: sum(_owed_along(basket, order)[-1].values()) for order in orders}
    lowest = min(orders, key=totals.__getitem__)
    return _Bill(totals[lowest], _order_doubt(totals), lowest)


def _orders(promotions: tuple[Promotion, ...]) -> Iterator[tuple[Promotion, ...]]:
    """Yield the orders that keep to the stages."""
    if not promotions:
        yield ()
    first_stage = min((_STAGES[p.kind] for p in promotions if p.kind in _STAGES), default=0)
    for i, first in enumerate(promotions):
        if _STAGES.get(first.kind, first_stage) == first_stage:
            for rest in _orders(promotions[:i] + promotions[i + 1 :]):
                yield (first, *rest)


def _order_doubt(totals: Mapping[tuple[Promotion, ...], int]) -> str:
    """Name two neighbours that change the total by changing places.

    Any order leads to any other by such changes, so there are two if the totals differ.
    """
    for order, total in totals.items():
        for i, (a, b) in enumerate(pairwise(order)):
            swapped = (*order[:i], b, a, *order[i + 2 :])
            if totals.get(swapped, total) != total:
                return f"the order of `{a.promotion_id}` and `{b.promotion_id}` is not known"
    return ""


def _owed_along(basket: Sequence[_Line], order: Sequence[Promotion]) -> list[dict[str, int]]:
    """Return the cents owed by line at the start and after each promotion."""
    owed = [{line.item_id: line.cost.cents for line in basket}]
    for promotion in order:
        off = _money_off(promotion, basket, owed[-1])
        owed.append({item: cents - off.get(item, 0) for item, cents in owed[-1].items()})
    return owed


def _money_off(
    promotion: Promotion, basket: Sequence[_Line], owed: Mapping[str, int]
) -> dict[str, int]:
    """Return the cents off by line in scope."""
    held = _held(promotion, basket)
    shares = {line.item_id: owed[line.item_id] for line in held}
    if promotion.kind == "nth_piece":
        shares = {line.item_id: _nth_piece_off(promotion, line, held, owed) for line in held}
        money = sum(shares.values())
    elif promotion.kind == "bundle":
        money = _bundle_off(promotion, held, sum(shares.values()))
    else:
        money = _sum_off(promotion, sum(shares.values()))
    limit = sum(shares.values())
    if promotion.cap is not None:
        limit = min(limit, _cents(promotion.cap))
    return _share_out(max(0, min(money, limit)), shares)


def _share_out(money: int, shares: Mapping[str, int]) -> dict[str, int]:
    """Divide cents in proportion to the shares; the sum is exact, no share is exceeded."""
    items = sorted(shares)
    whole = sum(shares.values()) or 1
    ends = [money * end // whole for end in accumulate((shares[item] for item in items), initial=0)]
    return {item: end - start for item, (start, end) in zip(items, pairwise(ends), strict=True)}


def _nth_piece_off(
    promotion: Promotion, line: _Line, held: Sequence[_Line], owed: Mapping[str, int]
) -> int:
    size = _pieces_of(promotion)
    times = line.pieces // size
    own = line.product.product_id
    together = sum(other.pieces for other in held if other.product.product_id == own)
    if together > line.pieces and together >= size:
        raise _Unknown(f"whether variants of `{own}` count together is not known")
    if not times:
        return 0
    if promotion.per_order and sum(other.pieces >= size for other in held) > 1:
        raise _Unknown(f"which line `{promotion.promotion_id}` is given on is not known")
    if line.cost.unit is None:
        raise _Unknown(f"the price of one `{line.item_id}` is not known")
    off = min(_value_off(promotion, line.cost.unit), line.cost.unit)
    return min(off * (1 if promotion.per_order else times), owed[line.item_id])


def _bundle_off(promotion: Promotion, held: Sequence[_Line], owed: int) -> int:
    pieces, size = sum(line.pieces for line in held), _pieces_of(promotion)
    times = min(pieces // size, 1) if promotion.per_order else pieces // size
    if not times:
        return 0
    if promotion.amount is None:
        raise _Unknown(f"what `{promotion.promotion_id}` takes off is not known")
    units = {line.cost.unit for line in held}
    if pieces != size and (len(units) > 1 or None in units):
        raise _Unknown(f"which pieces `{promotion.promotion_id}` takes is not known")
    beside = Fraction(owed * (pieces - times * size), pieces)
    return owed - _round_half_up(beside) - times * _cents(promotion.amount)


def _pieces_of(promotion: Promotion) -> int:
    if promotion.threshold is None or promotion.threshold < 1 or promotion.threshold % 1:
        raise _Unknown(f"the number of pieces of `{promotion.promotion_id}` is not known")
    return int(promotion.threshold)


def _sum_off(promotion: Promotion, owed: int) -> int:
    if not _reaches(promotion, owed):
        return 0
    off = _value_off(promotion, owed)
    if promotion.per_order or promotion.rate is not None:
        return off
    if not promotion.threshold:
        raise _Unknown(f"how often `{promotion.promotion_id}` is given is not known")
    return off * (owed // _cents(promotion.threshold))


def _value_off(promotion: Promotion, cents: int) -> int:
    """Return the amount, or the share of `cents`, that is taken off."""
    if promotion.amount is not None and promotion.rate is None:
        return _cents(promotion.amount)
    if promotion.rate is not None and promotion.amount is None:
        return cents - _round_half_up(cents * (1 - Fraction(str(promotion.rate))))
    raise _Unknown(f"what `{promotion.promotion_id}` takes off is not known")


def _line_steps(basket: Sequence[_Line]) -> Iterator[Step]:
    totals = accumulate(line.cost.cents for line in basket)
    for line, total in zip(basket, totals, strict=True):
        yield Step(line.cost.label, None, line.cost.cents / 100, total / 100)


def _promotion_steps(
    order: Sequence[Promotion], owed: Sequence[Mapping[str, int]]
) -> Iterator[Step]:
    totals = pairwise(sum(cents.values()) for cents in owed)
    for promotion, (before, after) in zip(order, totals, strict=True):
        if after != before:
            name = promotion.promotion_id
            yield Step(name, name, (after - before) / 100, after / 100)
