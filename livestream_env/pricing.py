"""What a basket costs: the only place that computes a total.

A total that cannot be known is `None` with the reason; it is never guessed.

Lines. Lines of one id are one line. The unit price is `price`; a `coupon_price` below it takes its
place. Where a coupon (a promotion of kind `coupon` in whose scope the list prices reach its
threshold) holds a line with such a coupon price, the line has two ways, and the buyer pays the
lower total: the coupon price, with the line in no coupon's scope, or the list price with the
coupons. But a coupon price that is just what such coupons leave of one piece is their doing: then
the list price counts, whether or not they are used in the end. A price that says 券后 is a coupon
price, its 原价 the list price. `2件99` prices multiples of its pieces only.

Promotions take money off in stages, each from what the stages before it left:

1. `nth_piece`: the `threshold`-th piece of a line is reduced; whether variants of one product count
   together is not known. `bundle`: `threshold` pieces, counted over the lines in scope, cost
   `amount`; lines of different prices must make up just one bundle.
2. `full_reduction`, 3. `coupon`, 4. `member`, 5. `subsidy`: `amount`, or the share `rate`, off the
   sum of the lines in scope where that sum reaches `threshold`.

One that is not `per_order` is given for each multiple of its threshold; a share of a sum is taken
once. `cap` limits all that one promotion takes off. What is left to pay is rounded to cents, half
up, once after each promotion, however many pieces it reduces, and is never below 0. Money off a sum
is shared out over its lines in proportion, which decides what a later promotion of narrower scope
finds. A `gift` takes nothing off; it is earned where what is paid in the end reaches its threshold.
A `deposit` takes off the `amount` or `rate` that it has; one without either only moves the time of
payment. Member prices and deposits are not everybody's: they count only where the caller gives
them.

Combination. Promotions that would each take money off this basket combine where either's
`stacks_with` names the other; where none does, and one has a list at all, they exclude each other.
Where both are silent it is not known, unless no line is in the scope of both. The buyer chooses the
cheapest allowed combination and may leave out what he likes, but `nth_piece`, `bundle` and
`full_reduction` come by themselves: each applies unless one that is chosen excludes it.

Order. Within a stage there is no known order, and a kind without a stage (`deposit`, a room's own)
may stand anywhere: every order is tried.

Doubt. A price or a value that is not known leaves no total. Whether promotions combine, and in what
order, leaves none only where the total could be lower for it. Nor is there one where more than 12
promotions would take money off, or finding it takes more than 1,500 evaluations.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from fractions import Fraction
from functools import lru_cache
from itertools import accumulate, combinations, pairwise
from itertools import product as every_choice
from typing import NamedTuple

from livestream_env.errors import ItemNotFound, did_you_mean
from livestream_env.rooms import Product, Promotion, Room, Sku, room_as_of
from livestream_env.words import MAX_PRICE, Price, format_amount

_STAGES = {
    "nth_piece": 1,
    "bundle": 1,
    "full_reduction": 2,
    "coupon": 3,
    "member": 4,
    "subsidy": 5,
}
_AUTOMATIC = ("nth_piece", "bundle", "full_reduction")
_NOT_EVERYBODYS = ("member", "deposit")
_MAX_PIECES = 1_000_000
_MAX_PROMOTIONS = 12
_MAX_EVALUATIONS = 1_500
"""How often a promotion is taken off a basket, over all ways, combinations and orders together; a
basket of many lines counts once for each 10 of them."""


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
        ValueError: no line, no whole number of 1 or more pieces, or a promotion given twice.
    """
    wanted = _count(room, lines)
    given = _resolve(room, promotions)
    now = room if at_s is None else room_as_of(room, at_s).room
    if given is None:
        given = [p for p in now.all_promotions if p.kind not in _NOT_EVERYBODYS]
    given.sort(key=lambda promotion: promotion.promotion_id)
    try:
        variants = _variants(now)
        items = [_find_item(variants, item_id, wanted[item_id]) for item_id in sorted(wanted)]
        given = [p for p in given if any(p.scope in item.scopes for item in items)]
        bill = _choose(items, given)
    except _Unknown as unknown:
        return Quote(None, (), str(unknown))
    owed = _owed_along(bill.basket, bill.order)
    gifts = [p for p in given if p.kind == "gift" and _is_earned(p, bill.basket, owed[-1])]
    lines_by_id = {line.item.item_id: line for line in bill.basket}
    steps = (
        *_line_steps([lines_by_id[item_id] for item_id in wanted]),
        *_promotion_steps(bill.order, owed),
    )
    return Quote(bill.cents / 100, steps, "", tuple(gift.promotion_id for gift in gifts))


class _Unknown(Exception):
    """Why there is no total."""


class _Budget:
    """What is left of the evaluations of one quote."""

    def __init__(self, lines: int) -> None:
        self.left = _MAX_EVALUATIONS
        self.cost = 1 + (lines - 1) // 10

    def spend(self, evaluations: int = 1) -> None:
        self.left -= evaluations * self.cost
        if self.left < 0:
            raise _Unknown("the ways to combine and order the promotions are too many to try")


class _Item(NamedTuple):
    """A line of the basket before it is known which of its prices counts."""

    item_id: str
    product: Product
    scopes: frozenset[str]
    pieces: int
    price: Price | None
    coupon_price: Price | None


class _Cost(NamedTuple):
    cents: int
    unit: int | None
    """Cents of one piece, `None` where only several have a price."""
    label: str


class _Line(NamedTuple):
    item: _Item
    cost: _Cost
    takes_coupons: bool
    """Whether coupons hold it: not where a coupon price takes their place."""


class _Offer(NamedTuple):
    """A promotion and the lines of a basket that it holds, by number."""

    promotion: Promotion
    held: tuple[int, ...]


_Exact = int | Fraction
_Owed = tuple[int, ...]
"""Cents by line."""
_Order = tuple[_Offer, ...]


class _Bill(NamedTuple):
    """The least that a combination may cost, and whether that is not sure."""

    cents: int
    is_doubtful: bool
    basket: tuple[_Line, ...]
    order: _Order
    doubt: str
    """Why the combination may not be allowed, else empty."""
    dearest: _Order
    """The order in which it costs most."""


def _count(room: Room, lines: Sequence[tuple[str, int]]) -> Counter[str]:
    known = _variants(room)
    wanted: Counter[str] = Counter()
    for item_id, pieces in lines:
        if item_id not in known:
            raise ItemNotFound(
                f"room `{room.room_id}` has no product and no SKU `{item_id}`;"
                f" name one of its {len(known)}.{did_you_mean(item_id, known)}"
            )
        if isinstance(pieces, bool) or not isinstance(pieces, int) or pieces < 1:
            raise ValueError(
                f"got {pieces!r} pieces of `{item_id}`: give a whole number, 1 or more"
            )
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


def _find_item(
    variants: Mapping[str, tuple[Product, tuple[Sku, ...]]], item_id: str, pieces: int
) -> _Item:
    if item_id not in variants:
        raise _Unknown(f"`{item_id}` is not in the room then")
    if pieces > _MAX_PIECES:
        raise _Unknown(f"more than {_MAX_PIECES} pieces of `{item_id}` have no known price")
    product, skus = variants[item_id]
    price, coupon_price = skus[0].price, skus[0].coupon_price
    prices = {(_without_raw(sku.price), _without_raw(sku.coupon_price)) for sku in skus}
    if len(prices) > 1:
        names = ", ".join(f"`{sku.sku_id}`" for sku in skus)
        raise _Unknown(f"which variant of `{item_id}`? {names} differ in price")
    if price is not None and price.kind == "coupon":
        listed = price.list_amount
        coupon_price = coupon_price or price
        price = None if listed is None else Price(listed, "amount", listed)
    return _Item(item_id, product, frozenset(product.scopes), pieces, price, coupon_price)


def _without_raw(price: Price | None) -> Price | None:
    return None if price is None else replace(price, raw="")


def _choose(items: Sequence[_Item], promotions: Sequence[Promotion]) -> _Bill:
    """Return the cheapest bill over the ways to price the lines and to combine the promotions."""
    budget = _Budget(len(items))
    baskets = every_choice(*[_ways(item, items, promotions, budget) for item in items])
    bills = (bill for basket in baskets for bill in _bills(basket, promotions, budget))
    best = min(bills, key=lambda bill: (bill.cents, bill.is_doubtful))
    if best.is_doubtful:
        raise _Unknown(best.doubt or _order_doubt(best))
    return best


def _ways(
    item: _Item, items: Sequence[_Item], promotions: Iterable[Promotion], budget: _Budget
) -> list[_Line]:
    """Return the line at each price that the buyer can choose."""
    listed, reduced = _cost(item.price, item.pieces), _cost(item.coupon_price, item.pieces)
    coupons = [] if item.coupon_price is None else _coupons_on(item, items, promotions)
    if coupons and listed is None and reduced is not None:
        raise _Unknown(
            f"the price of `{item.item_id}` without a coupon is not known,"
            f" and coupon `{coupons[0].promotion_id}` applies"
        )
    chosen = listed if item.coupon_price is None else reduced
    if chosen is None:
        shown = item.price if item.coupon_price is None else item.coupon_price
        said = "" if shown is None else f"; it says `{shown.raw}`"
        raise _Unknown(f"the price of {item.pieces} x `{item.item_id}` is not known{said}")
    at_coupon_price = _Line(item, chosen, takes_coupons=False)
    if listed is None or (chosen.cents < listed.cents and not coupons):
        return [at_coupon_price]
    at_list_price = _Line(item, listed, takes_coupons=True)
    if chosen.cents >= listed.cents or _leave(coupons, listed.unit, chosen.unit, budget):
        return [at_list_price]
    return [at_list_price, at_coupon_price]


def _cost(price: Price | None, pieces: int) -> _Cost | None:
    if price is None or price.amount is None or price.kind not in ("amount", "coupon", "bundle"):
        return None
    bundles, rest = divmod(pieces, price.pieces or 1)
    if rest or not 0 <= price.amount <= MAX_PRICE:
        return None
    cents = _cents(price.amount)
    label = str(price.raw) if price.kind == "bundle" else format_amount(price.amount)
    unit = None if price.kind == "bundle" else cents
    return _Cost(bundles * cents, unit, f"{bundles} x {label}")


@lru_cache(maxsize=1024)
def _cents(amount: float) -> int:
    return _round_half_up(_exact(amount) * 100)


@lru_cache(maxsize=1024)
def _exact(number: float) -> Fraction:
    return Fraction(str(number))


def _round_half_up(value: _Exact) -> int:
    return _half_up(value.numerator, value.denominator)


def _half_up(numerator: int, denominator: int) -> int:
    return (2 * numerator + denominator) // (2 * denominator)


def _coupons_on(
    item: _Item, items: Sequence[_Item], promotions: Iterable[Promotion]
) -> list[Promotion]:
    return [
        p
        for p in promotions
        if p.kind == "coupon" and p.scope in item.scopes and _reaches(p, _listed_sum(p, items))
    ]


def _listed_sum(promotion: Promotion, items: Iterable[_Item]) -> int:
    held = [item for item in items if promotion.scope in item.scopes]
    costs = [_cost(i.price, i.pieces) or _cost(i.coupon_price, i.pieces) for i in held]
    return sum(cost.cents for cost in costs if cost is not None)


def _leave(
    coupons: Iterable[Promotion], listed: int | None, reduced: int | None, budget: _Budget
) -> bool:
    """Return whether some of the coupons leave just the coupon price of one piece."""
    if listed is None or reduced is None:
        return False
    left = {listed}
    for coupon in coupons:
        budget.spend(len(left))
        left |= {
            _round_half_up(cents - _limited(coupon, _value_off(coupon, cents), cents))
            for cents in left
        }
    return reduced in left


def _reaches(promotion: Promotion, cents: int) -> bool:
    return promotion.threshold is None or cents >= _cents(promotion.threshold)


def _is_earned(gift: Promotion, basket: Sequence[_Line], owed: _Owed) -> bool:
    held = _offer(gift, basket).held
    return bool(held) and _reaches(gift, sum(owed[i] for i in held))


def _offer(promotion: Promotion, basket: Sequence[_Line]) -> _Offer:
    is_coupon = promotion.kind == "coupon"
    held = [
        i
        for i, line in enumerate(basket)
        if promotion.scope in line.item.scopes and (line.takes_coupons or not is_coupon)
    ]
    return _Offer(promotion, tuple(held))


def _bills(
    basket: tuple[_Line, ...], promotions: Iterable[Promotion], budget: _Budget
) -> Iterator[_Bill]:
    """Yield the bill of every combination that is allowed or may be."""
    budget.spend()
    start = tuple(line.cost.cents for line in basket)
    offers = _applying(basket, promotions, start, budget)
    combining: dict[tuple[int, int], bool | None] = {}
    for i, j in combinations(range(len(offers)), 2):
        combining[i, j] = combining[j, i] = _combine(offers[i], offers[j])
    layer: dict[frozenset[int], dict[_Owed, _Order]] = {frozenset(): {start: ()}}
    while layer:
        larger: dict[frozenset[int], dict[_Owed, _Order]] = {}
        for chosen, orders in layer.items():
            free = [
                i
                for i in range(len(offers))
                if i not in chosen and all(combining[i, j] is not False for j in chosen)
            ]
            missed = [i for i in free if offers[i].promotion.kind in _AUTOMATIC]
            unsure = [
                (min(i, j), max(i, j))
                for j in chosen
                for i in (*chosen, *missed)
                if i != j and combining[i, j] is None
            ]
            if all(any(i in pair for pair in unsure) for i in missed):
                pair = [offers[i].promotion.promotion_id for i in min(unsure, default=())]
                yield _bill(basket, orders, pair)
            for i in free:
                if not _may_follow(offers[i], [offers[j] for j in chosen]):
                    continue
                reached = larger.setdefault(chosen | {i}, {})
                for owed, order in orders.items():
                    budget.spend()
                    reached.setdefault(_owed_after(offers[i], basket, owed), (*order, offers[i]))
        layer = larger


def _applying(
    basket: Sequence[_Line], promotions: Iterable[Promotion], start: _Owed, budget: _Budget
) -> list[_Offer]:
    """Return the promotions that would each take money off."""
    offers = []
    for promotion in filter(_takes_money_off, promotions):
        budget.spend()
        offer = _offer(promotion, basket)
        if _owed_after(offer, basket, start) != start:
            offers.append(offer)
    if len(offers) > _MAX_PROMOTIONS:
        raise _Unknown(f"{len(offers)} promotions apply, more than {_MAX_PROMOTIONS}")
    return offers


def _takes_money_off(promotion: Promotion) -> bool:
    valued = promotion.amount is not None or promotion.rate is not None
    return valued if promotion.kind == "deposit" else promotion.kind != "gift"


def _combine(a: _Offer, b: _Offer) -> bool | None:
    """Return whether both may be taken, `None` where it is not known."""
    first, second = a.promotion, b.promotion
    if _names(first, second) or _names(second, first):
        return True
    if first.stacks_with is not None or second.stacks_with is not None:
        return False
    return None if set(a.held) & set(b.held) else True


def _names(promotion: Promotion, other: Promotion) -> bool:
    return not {"*", other.promotion_id, other.kind}.isdisjoint(promotion.stacks_with or ())


def _may_follow(offer: _Offer, earlier: Iterable[_Offer]) -> bool:
    """Return whether the stages let it come after all the others."""
    stage = _STAGES.get(offer.promotion.kind, math.inf)
    return all(_STAGES.get(other.promotion.kind, 0) <= stage for other in earlier)


def _bill(
    basket: tuple[_Line, ...], orders: Mapping[_Owed, _Order], unsure: Sequence[str]
) -> _Bill:
    """Sum up one combination; the first order in which it costs least stands for all."""
    least, most = min(orders, key=sum), max(orders, key=sum)
    doubt = f"whether `{unsure[0]}` and `{unsure[1]}` combine is not known" if unsure else ""
    is_doubtful = bool(doubt) or sum(least) != sum(most)
    return _Bill(sum(least), is_doubtful, basket, orders[least], doubt, orders[most])


def _order_doubt(bill: _Bill) -> str:
    """Name two neighbours that change the total by changing places.

    They do so somewhere on the way from the cheapest to the dearest order, neighbour by neighbour.
    """
    order, place = list(bill.order), bill.dearest.index
    while True:
        i = next(i for i, (a, b) in enumerate(pairwise(order)) if place(a) > place(b))
        order[i : i + 2] = order[i + 1], order[i]
        if sum(_owed_along(bill.basket, order)[-1]) != bill.cents:
            names = sorted(offer.promotion.promotion_id for offer in order[i : i + 2])
            return f"the order of `{names[0]}` and `{names[1]}` is not known"


def _owed_along(basket: Sequence[_Line], order: Iterable[_Offer]) -> list[_Owed]:
    """Return what is owed at the start and after each promotion."""
    start = tuple(line.cost.cents for line in basket)
    return list(accumulate(order, lambda owed, o: _owed_after(o, basket, owed), initial=start))


def _owed_after(offer: _Offer, basket: Sequence[_Line], owed: _Owed) -> _Owed:
    """Take the promotion off, shared out over its lines, and round what is left.

    Whole numbers only, for speed: the shares are in parts of a cent, `parts` to the cent.
    """
    promotion, held = offer
    shares, parts = [owed[i] for i in held], 1
    owing = sum(shares)
    money: _Exact
    if promotion.kind == "nth_piece":
        shares, parts = _nth_piece_shares(offer, basket, owed)
        money = Fraction(sum(shares), parts)
    elif promotion.kind == "bundle":
        money = _bundle_off(promotion, [basket[i] for i in held], owing)
    else:
        money = _sum_off(promotion, owing)
    whole = sum(shares)
    if not whole or not money:
        return owed
    taken = Fraction(_limited(promotion, money, Fraction(whole, parts))) / whole  # of each part
    after, cents, off, end = list(owed), 0, 0, 0
    for i, share in zip(held, shares, strict=True):
        cents, off, start = cents + owed[i], off + share, end
        end = _half_up(cents * taken.denominator - off * taken.numerator, taken.denominator)
        after[i] = end - start
    return tuple(after)


def _limited(promotion: Promotion, money: _Exact, whole: _Exact) -> _Exact:
    """Return what may be taken off, of at most `whole`."""
    limit = whole if promotion.cap is None else min(whole, _cents(promotion.cap))
    return max(0, min(money, limit))


def _nth_piece_shares(offer: _Offer, basket: Sequence[_Line], owed: _Owed) -> tuple[list[int], int]:
    """Return what is taken off each line, in parts of a cent, and how many make a cent."""
    promotion, held = offer.promotion, [basket[i] for i in offer.held]
    size = _pieces_of(promotion)
    pieces: Counter[str] = Counter()
    for line in held:
        pieces[line.item.product.product_id] += line.item.pieces
    for line in held:
        together = pieces[own := line.item.product.product_id]
        if together > line.item.pieces and together >= size:
            raise _Unknown(f"whether variants of `{own}` count together is not known")
    reduced = [line for line in held if line.item.pieces >= size]
    if promotion.per_order and len(reduced) > 1:
        raise _Unknown(f"which line `{promotion.promotion_id}` is given on is not known")
    if not reduced:
        return [0] * len(held), 1
    unpriced = [line.item.item_id for line in reduced if line.cost.unit is None]
    if unpriced:
        raise _Unknown(f"the price of one `{unpriced[0]}` is not known")
    value = _value_off(promotion, 1)
    shares = []
    for i, line in zip(offer.held, held, strict=True):
        unit, times = line.cost.unit or 0, line.item.pieces // size
        off = min(value.numerator, unit) if promotion.rate is None else value.numerator * unit
        times = min(times, 1) if promotion.per_order else times
        shares.append(min(off * times, owed[i] * value.denominator))
    return shares, value.denominator


def _bundle_off(promotion: Promotion, held: Sequence[_Line], owed: int) -> _Exact:
    pieces, size = sum(line.item.pieces for line in held), _pieces_of(promotion)
    times = min(pieces // size, 1) if promotion.per_order else pieces // size
    if not times:
        return 0
    if promotion.amount is None:
        raise _Unknown(f"what `{promotion.promotion_id}` takes off is not known")
    units = {line.cost.unit for line in held}
    if pieces != size and (len(units) > 1 or None in units):
        raise _Unknown(f"which pieces `{promotion.promotion_id}` takes is not known")
    return Fraction(owed * times * size, pieces) - times * _cents(promotion.amount)


def _pieces_of(promotion: Promotion) -> int:
    if promotion.threshold is None or promotion.threshold < 1 or promotion.threshold % 1:
        raise _Unknown(f"the number of pieces of `{promotion.promotion_id}` is not known")
    return int(promotion.threshold)


def _sum_off(promotion: Promotion, owed: int) -> _Exact:
    if not _reaches(promotion, owed):
        return 0
    off = _value_off(promotion, owed)
    if promotion.per_order or promotion.rate is not None:
        return off
    if not promotion.threshold or not _cents(promotion.threshold):
        raise _Unknown(f"how often `{promotion.promotion_id}` is given is not known")
    return off * (owed // _cents(promotion.threshold))


def _value_off(promotion: Promotion, cents: int) -> _Exact:
    """Return the amount, or the share of `cents`, that is taken off."""
    if promotion.amount is not None and promotion.rate is None:
        return _cents(promotion.amount)
    if promotion.rate is not None and promotion.amount is None:
        return cents * _exact(promotion.rate)
    raise _Unknown(f"what `{promotion.promotion_id}` takes off is not known")


def _line_steps(basket: Sequence[_Line]) -> Iterator[Step]:
    totals = accumulate(line.cost.cents for line in basket)
    for line, total in zip(basket, totals, strict=True):
        yield Step(line.cost.label, None, line.cost.cents / 100, total / 100)


def _promotion_steps(order: Sequence[_Offer], owed: Sequence[_Owed]) -> Iterator[Step]:
    totals = pairwise(sum(cents) for cents in owed)
    for offer, (before, after) in zip(order, totals, strict=True):
        if after != before:
            name = offer.promotion.promotion_id
            yield Step(name, name, (after - before) / 100, after / 100)
