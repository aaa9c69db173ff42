"""Goods of generated rooms: products from components, and their promotions.

A product's name is series, make and kind; a near-duplicate is a product with one more word in its
name, another price and one other attribute.
"""

from __future__ import annotations

import random
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from itertools import product as combinations_of
from typing import Any

from livestream_env.synthetic_words import Split, generator, grammar, marked
from livestream_env.words import format_amount

Raw = dict[str, Any]


@dataclass(frozen=True, slots=True)
class Shop:
    """A merchant of the room."""

    name: str
    trade: str
    series: tuple[str, ...]
    kinds: tuple[Mapping[str, Any], ...]


@dataclass(slots=True)
class Good:
    """One product as JSON, and how its viewers speak of it."""

    raw: Raw
    trade: str
    make: str
    kind: Mapping[str, Any]
    series: str
    variant: str = ""
    short: str = ""
    """The shortest name that no other product's name holds."""

    @property
    def product_id(self) -> str:
        """The product's id."""
        return str(self.raw["product_id"])

    @property
    def unit(self) -> str:
        """What one counts it in."""
        return str(self.kind["unit"])


@dataclass(slots=True)
class Stock:
    """All goods of a room, with their promotions."""

    shops: list[Shop]
    goods: list[Good]
    promotions: list[Raw] = field(default_factory=list)
    phrases: dict[str, str] = field(default_factory=dict)
    """What a reply repeats of a promotion's text, by id."""
    twins: dict[str, list[str]] = field(default_factory=dict)
    """Ids of a product's near-duplicates."""


def make_goods(
    language: str, split: Split, seed: int, products: int, near_duplicates: float
) -> Stock:
    """Draw one to three shops and their products."""
    maker = _Maker(language, split, generator("goods", language, split, seed))
    copies = min(round(near_duplicates * products), products - 1)
    shops = maker.shops(min(3, products))
    goods = maker.originals(shops, products - copies)
    twins = maker.copy_some(goods, copies)
    maker.rng.shuffle(goods)
    renamed = {good.product_id: f"p{i}" for i, good in enumerate(goods, 1)}
    for i, good in enumerate(goods, 1):
        maker.number(good, i)
    pairs = {renamed[one]: [renamed[other] for other in twins[one]] for one in twins}
    _shorten_names(goods, maker.gap)
    return Stock(shops, goods, twins=pairs)


class _Maker:
    """Draws of one room."""

    def __init__(self, language: str, split: Split, rng: random.Random) -> None:
        self.rng = rng
        self.gap = "" if language == "zh" else " "
        self._trades = grammar("goods", language, split)
        self._variants: list[str] = grammar("show", language, split)["variants"]
        self._dots = (0.9,) if language == "zh" else (0.99, 0.5)

    def shops(self, most: int) -> list[Shop]:
        """Draw shops; two of one trade share its series between them."""
        count = self.rng.randint(1, most)
        names = self.rng.sample(list(self._trades), count)
        if count > 1 and self.rng.random() < 0.35:
            names[1] = names[0]
        made = []
        for trade in dict.fromkeys(names):
            words, times = self._trades[trade], names.count(trade)
            series = self.rng.sample(words["series"], len(words["series"]))
            for i, name in enumerate(self.rng.sample(words["shops"], times)):
                kinds = self.rng.sample(words["kinds"], self.rng.randint(3, len(words["kinds"])))
                made.append(Shop(name, trade, tuple(series[i::times]), tuple(kinds)))
        return made

    def originals(self, shops: Sequence[Shop], count: int) -> list[Good]:
        """Draw products that differ in series, make or kind, shop by shop."""
        pools = [self._pool(shop) for shop in shops]
        goods: list[Good] = []
        for i in range(count):
            shop, pool = shops[i % len(shops)], pools[i % len(shops)]
            series, make, kind, code = pool[(i // len(shops)) % len(pool)]
            if i // len(shops) >= len(pool):
                code = f"{i // len(shops) // len(pool) + 1:02d}"
            goods.append(self._good(i, shop, series, make, kind, code))
        return goods

    def _pool(self, shop: Shop) -> list[tuple[str, str, Mapping[str, Any], str]]:
        """List the names of a shop, its first two series first."""
        pool = []
        for series in (shop.series[:2], shop.series[2:]):
            part = [
                (s, make, kind, "")
                for s, kind in combinations_of(series, shop.kinds)
                for make in kind["mods"]
            ]
            self.rng.shuffle(part)
            pool += part
        return pool

    def _good(
        self, i: int, shop: Shop, series: str, make: str, kind: Mapping[str, Any], code: str
    ) -> Good:
        trade = self._trades[shop.trade]
        raw: Raw = {"product_id": f"d{i}", "name": "", "merchant": shop.name}
        raw["attributes"] = self._attributes(trade, kind)
        images = list(trade["images"])
        raw["images"] = images[: self.rng.randint(2, len(images))]
        self._price(raw, kind["price"])
        is_sized = shop.trade == "clothing"
        if is_sized or self.rng.random() < 0.3:
            self._split_in_skus(raw, trade["sku_axes"], all_sizes=is_sized)
        good = Good(raw, shop.trade, make, kind, series, code)
        raw["name"] = self._name(good)
        return good

    def _name(self, good: Good) -> str:
        words = (good.series, good.make, good.kind["name"], good.variant)
        return self.gap.join(filter(None, words))

    def _attributes(self, trade: Mapping[str, Any], kind: Mapping[str, Any]) -> dict[str, str]:
        choices = {**kind["own"], **trade["attributes"]}
        left_out = self.rng.choice(list(trade["attributes"])) if self.rng.random() < 0.4 else ""
        return {name: self.rng.choice(v) for name, v in choices.items() if name != left_out}

    def _price(self, raw: Raw, bounds: Sequence[int]) -> None:
        """Draw price, coupon price and stock; each may be unknown."""
        rng = self.rng
        amount = rng.randint(*bounds) + (rng.choice(self._dots) if rng.random() < 0.5 else 0)
        off = rng.choice((0.05, 0.1, 0.12, 0.15, 0.2))
        raw["price"] = _clean(amount)
        reduced = min(int(amount * (1 - off)), int(amount) - 1) + amount % 1
        raw["coupon_price"] = _clean(reduced) if reduced >= 1 else None
        raw["stock"] = rng.choice((rng.randint(1, 30), rng.randint(30, 300), rng.randint(300, 990)))
        if rng.random() < 0.3:
            raw["coupon_price"] = None
        if rng.random() < 0.04:
            raw["price"] = raw["coupon_price"] = None
        if rng.random() < 0.08:
            raw["stock"] = None

    def _split_in_skus(
        self, raw: Raw, axes: Mapping[str, Sequence[str]], *, all_sizes: bool
    ) -> None:
        """Move price and stock to variants; of two axes the last may change the price."""
        rng = self.rng
        names = list(axes)
        if len(axes) > 1 and not all_sizes and rng.random() < 0.6:
            del names[1]
        values = [self._axis_values(name, axes[name], names, all_sizes) for name in names]
        price, coupon, stock = raw.pop("price"), raw.pop("coupon_price"), raw.pop("stock")
        step = 0 if all_sizes and rng.random() < 0.7 else rng.choice((0, 3, 5, 10))
        raw["skus"] = [
            {
                "sku_id": f"{raw['product_id']}-{i}",
                "spec": dict(zip(names, spec, strict=True)),
                "price": None if price is None else _clean(price + step * at),
                "coupon_price": None if coupon is None else _clean(coupon + step * at),
                "stock": None if stock is None and i == 1 else rng.randint(0, 60),
            }
            for i, spec in enumerate(combinations_of(*values), 1)
            for at in (values[-1].index(spec[-1]),)
        ]

    def _axis_values(
        self, name: str, values: Sequence[str], names: Sequence[str], all_sizes: bool
    ) -> list[str]:
        if all_sizes and name == names[-1]:
            return list(values)
        count = self.rng.randint(2, min(3, len(values)))
        return sorted(self.rng.sample(values, count), key=list(values).index)

    def copy_some(self, goods: list[Good], count: int) -> dict[str, list[str]]:
        """Add near-duplicates, and return who is one of whom."""
        twins: dict[str, list[str]] = {}
        originals = goods[:]
        self.rng.shuffle(originals)
        for i in range(count):
            good = originals[i % len(originals)]
            family = [good.product_id, *twins.get(good.product_id, [])]
            taken = self._taken(goods, good)
            free = self.rng.sample(self._variants, len(self._variants))
            free = [v for v in free if v not in taken] + [f"X{2 * i}", f"X{2 * i + 1}"]
            twin = self._copy(good, f"d{len(goods)}", free[0])
            if not good.variant:
                good.variant = free[1]
                good.raw["name"] = self._name(good)
            goods.append(twin)
            for one in family:
                twins.setdefault(one, []).append(twin.product_id)
            twins[twin.product_id] = family
        return twins

    @staticmethod
    def _taken(goods: Sequence[Good], good: Good) -> set[str]:
        same = (good.series, good.make, good.kind["name"])
        return {g.variant for g in goods if (g.series, g.make, g.kind["name"]) == same}

    def _copy(self, good: Good, product_id: str, variant: str) -> Good:
        raw: Raw = {**good.raw, "product_id": product_id, "attributes": {}}
        changed = self.rng.choice(list(good.raw["attributes"]))
        choices = {**good.kind["own"], **self._trades[good.trade]["attributes"]}
        for name, value in good.raw["attributes"].items():
            others = [other for other in choices[name] if other != value]
            raw["attributes"][name] = self.rng.choice(others) if name == changed else value
        if "skus" in raw:
            more = self.rng.randint(2, 12)
            raw["skus"] = [self._copied_sku(sku, product_id, more) for sku in raw["skus"]]
        else:
            self._price(raw, good.kind["price"])
        made = Good(raw, good.trade, good.make, good.kind, good.series, variant)
        raw["name"] = self._name(made)
        return made

    def _copied_sku(self, sku: Mapping[str, Any], product_id: str, more: int) -> Raw:
        prices = {key: sku[key] and _clean(sku[key] + more) for key in ("price", "coupon_price")}
        number = sku["sku_id"].rpartition("-")[2]
        stock = sku["stock"] if sku["stock"] is None else self.rng.randint(0, 60)
        return {**sku, **prices, "sku_id": f"{product_id}-{number}", "stock": stock}

    def number(self, good: Good, i: int) -> None:
        """Give a product its place in the room: id, link number and barcode."""
        raw, name = good.raw, f"p{i}"
        raw["barcode"] = f"2{self.rng.randrange(10**8):08d}{i:04d}"
        for sku in raw.get("skus", ()):
            sku["sku_id"] = f"{name}-{sku['sku_id'].rpartition('-')[2]}"
        raw |= {"product_id": name, "link_no": i}


def _clean(amount: float) -> float | int:
    """Round to cents; a whole amount is written without a point."""
    rounded = round(amount, 2)
    return int(rounded) if rounded == int(rounded) else rounded


def _shorten_names(goods: Sequence[Good], gap: str) -> None:
    for good in goods:
        short = gap.join(filter(None, (good.make, good.kind["name"], good.variant)))
        holders = sum(short in other.raw["name"] for other in goods)
        good.short = short if holders == 1 else good.raw["name"]


# --- promotions ------------------------------------------------------------------------------


def add_promotions(
    stock: Stock, language: str, split: Split, seed: int, ends_s: int | None
) -> None:
    """Give room, shops and some products promotions; `ends_s` lets one of the room's end then."""
    maker = _Promoter(stock, language, split, generator("promotions", language, split, seed))
    for shop in stock.shops:
        if maker.rng.random() < 0.6:
            maker.sum_off(shop.name)
        if maker.rng.random() < 0.3:
            maker.coupon(scope=f"merchant:{shop.name}", shop=shop.name)
    if maker.rng.random() < 0.4:
        maker.room_gift()
    if maker.rng.random() < 0.3:
        maker.subsidy("room", ends_s=ends_s if maker.rng.random() < 0.5 else None)
    for good in stock.goods:
        if maker.rng.random() < 0.4:
            maker.of_product(good)


class _Promoter:
    """Writes promotions whose totals can be computed."""

    def __init__(self, stock: Stock, language: str, split: Split, rng: random.Random) -> None:
        self.rng = rng
        self._stock = stock
        show = grammar("show", language, split)
        self._texts, self._gifts = show["promotions"], show["gifts"]
        self._is_chinese = language == "zh"
        prices = sorted(filter(None, (_some_price(good.raw) for good in stock.goods)))
        self._usual = prices[len(prices) // 2] if prices else 50

    def _add(self, kind: str, text: str, scope: str, own: bool = False, **values: Any) -> None:
        """Keep a promotion, at its product if it is that product's `own`."""
        slots = values.pop("slots", {})
        promotion_id = f"{kind}{len(self._stock.phrases) + 1}"
        said = marked(text, **slots)
        raw = {"promotion_id": promotion_id, "kind": kind, "text": said.text, **values}
        raw["stacks_with"] = ["*"] if self.rng.random() < 0.8 else []
        self._stock.phrases[promotion_id] = said.phrases[0]
        if own:
            product_id = scope.partition(":")[2]
            good = next(g for g in self._stock.goods if g.product_id == product_id)
            good.raw.setdefault("promotions", []).append(raw)
        else:
            self._stock.promotions.append({**raw, "scope": scope})

    def _sum(self, times: Sequence[float], share: Sequence[float]) -> tuple[int, int]:
        """Draw a threshold near a multiple of the usual price, and money off."""
        threshold = max(10, round(self._usual * self.rng.choice(times) / 10) * 10)
        return threshold, max(1, round(threshold * self.rng.choice(share)))

    def sum_off(self, shop: str) -> None:
        """Money off a sum over the shop, or every such sum."""
        threshold, amount = self._sum((1.5, 2, 2.5, 3), (0.08, 0.1, 0.15))
        each = self.rng.random() < 0.3
        texts = self._texts["full_reduction_each" if each else "full_reduction"]
        self._add(
            "full_reduction",
            texts["merchant"],
            f"merchant:{shop}",
            threshold=threshold,
            amount=amount,
            per_order=not each,
            slots={"t": threshold, "a": amount, "shop": shop},
        )

    def coupon(self, *, scope: str, shop: str | None = None) -> None:
        """A coupon of a shop, or of one product."""
        threshold, amount = self._sum((0.5, 1, 1.5), (0.05, 0.08, 0.12))
        text = self._texts["coupon"]["product" if shop is None else "merchant"]
        slots = {"t": threshold, "a": amount, "shop": shop}
        own = shop is None
        self._add("coupon", text, scope, own, threshold=threshold, amount=amount, slots=slots)

    def room_gift(self) -> None:
        """A gift from a sum on."""
        threshold, _ = self._sum((1, 2, 3), (0.1,))
        slots = {"t": threshold, "gift": self.rng.choice(self._gifts)}
        self._add("gift", self._texts["gift"]["room"], "room", threshold=threshold, slots=slots)

    def subsidy(self, scope: str, *, ends_s: int | None = None) -> None:
        """A share off, up to a cap."""
        rate, cap = self.rng.choice((0.05, 0.1, 0.15)), self.rng.choice((20, 50, 100))
        own = scope != "room"
        text = self._texts["subsidy"]["product" if own else "room"]
        values: Raw = {"rate": rate, "cap": cap} | ({} if ends_s is None else {"ends_s": ends_s})
        self._add("subsidy", text, scope, own, **values, slots={"z": self._said(rate), "c": cap})

    def _said(self, rate: float) -> str:
        """Say a share off: 0.15 is 8.5 折, or 15 percent."""
        return format_amount(10 * (1 - rate) if self._is_chinese else 100 * rate)

    def of_product(self, good: Good) -> None:
        """One promotion of a product's own."""
        scope = f"product:{good.product_id}"
        kind = self.rng.choice(("coupon", "nth_piece", "bundle", "gift", "subsidy"))
        if kind == "coupon":
            self.coupon(scope=scope)
        elif kind == "subsidy":
            self.subsidy(scope)
        elif kind == "gift":
            slots = {"gift": self.rng.choice(self._gifts)}
            self._add("gift", self._texts["gift"]["product"], scope, True, slots=slots)
        elif kind == "nth_piece":
            self._nth_piece(good, scope)
        elif _one_price(good.raw) is not None:
            self._bundle(good, scope, _one_price(good.raw) or 0)

    def _nth_piece(self, good: Good, scope: str) -> None:
        rate = self.rng.choice((0.5, 0.5, 0.2, 0.3, 0.4))
        text = self._texts["nth_piece"]["half" if rate == 0.5 else "share"]
        slots = {"unit": good.unit, "z": self._said(rate)}
        values = {"threshold": 2, "rate": rate, "per_order": False}
        self._add("nth_piece", text, scope, True, **values, slots=slots)

    def _bundle(self, good: Good, scope: str, price: float) -> None:
        pieces = self.rng.choice((2, 3))
        amount = int(price * pieces * self.rng.choice((0.7, 0.75, 0.8)))
        slots = {"n": pieces, "unit": good.unit, "a": amount}
        values = {"threshold": pieces, "amount": amount, "per_order": False}
        self._add("bundle", self._texts["bundle"]["product"], scope, True, **values, slots=slots)


def _some_price(raw: Mapping[str, Any]) -> float | None:
    price = raw["skus"][0]["price"] if "skus" in raw else raw["price"]
    return None if price is None else float(price)


def _one_price(raw: Mapping[str, Any]) -> float | None:
    """Return the lowest price that one piece is sold at, where all variants cost the same."""
    holders = raw.get("skus", [raw])
    if len({sku["price"] for sku in holders}) > 1:
        return None
    price = (
        holders[0]["price"] if holders[0]["coupon_price"] is None else holders[0]["coupon_price"]
    )
    return None if price is None else float(price)
