"""What a generated comment is made of: its words, and the key that its room's records give it.

A `Teller` stands at one second of the show. Every value in the key is read from the room as of
then, every total comes from `pricing.quote`.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any, TypeVar

from livestream_env.rooms import Moment, Product, Sku, room_as_of
from livestream_env.synthetic_goods import Raw
from livestream_env.synthetic_words import grammar
from livestream_env.synthetic_world import Answer, World

T = TypeVar("T")
FIELD_INTENTS = {
    "price": "price",
    "coupon_price": "price",
    "stock": "stock",
    "link_no": "link",
    "merchant": "shop",
}


@dataclass(frozen=True, slots=True)
class Draft:
    """A comment's text and key, before it has a number, a viewer's slips and a level."""

    text: str
    asks: tuple[Raw, ...]
    kept: tuple[str, ...] = ()
    """Words that slips must leave alone."""
    state: Raw | None = None
    follow_ups: tuple[Raw, ...] = ()
    history: tuple[Raw, ...] | None = None
    viewer: str | None = None
    same_as: str | None = None
    asked: tuple[str, str] | None = None
    """(field, product id) of a question that names its product, so that later ones may refer to
    it."""
    is_clean: bool = False
    """Written as it stands, without slips."""


@dataclass(frozen=True, slots=True)
class Earlier:
    """A comment that later ones may refer to."""

    comment_id: str
    viewer: str
    field: str
    product_id: str


class Teller:
    """The writer of one room's comments, at one second of its show."""

    def __init__(self, world: World, rng: random.Random) -> None:
        self.world = world
        self.rng = rng
        self.at_s = 0
        self.viewer = ""
        self.earlier: list[Earlier] = []
        self.now: Moment
        self.products: list[Product]
        self.current: Product
        self.topics = grammar("topics", world.language, world.split)
        self.trades = grammar("goods", world.language, world.split)
        self.show = grammar("show", world.language, world.split)
        self._words = grammar("comments", world.language, world.split)
        self._is_chinese = world.language == "zh"
        self._kept: list[str] = []
        self._is_named = False
        self.groups = _groups(world)

    def go_to(self, at_s: int, viewer: str) -> None:
        """Stand at a second of the show, for a viewer."""
        self.at_s, self.viewer, self._kept = at_s, viewer, []
        self.now = room_as_of(self.world.room, at_s)
        self.products = list(self.now.room.products)
        self.current = self.product(self.now.current_product or "") or self.products[0]

    # --- choosing -----------------------------------------------------------------------------

    def product(self, product_id: str) -> Product | None:
        """Return the product of that id, if it is in the room."""
        return next((p for p in self.products if p.product_id == product_id), None)

    def pick(self, fits: Callable[[Product], object]) -> Product | None:
        """Draw a product that fits, more often the current one."""
        if fits(self.current) and self.rng.random() < 0.35:
            return self.current
        return self.any_of([product for product in self.products if fits(product)])

    def any_of(self, options: Sequence[T]) -> T | None:
        """Draw one of the options, `None` where there is none."""
        return self.rng.choice(options) if options else None

    # --- wording ------------------------------------------------------------------------------

    def words(self, part: str, name: str) -> Any:
        """Draw one of the templates of a part of the grammar."""
        return self.rng.choice(self._words[part][name])

    def table(self, part: str) -> Any:
        """Return a part of the grammar."""
        return self._words[part]

    def keep(self, *words: str) -> None:
        """Remember words that slips must leave alone."""
        self._kept += words

    def name(self, product: Product) -> str:
        """Name a product by its shortest name."""
        short = self.world.goods[product.product_id].short
        self.keep(short)
        self._is_named = True
        return short if self._is_chinese else f"the {short}"

    def ref(self, product: Product) -> str:
        """Speak of a product: the current one, a link number, or by name."""
        draw = self.rng.random()
        self._is_named = True
        if product is self.current and draw < 0.5:
            self._is_named = False
            return str(self.words("refs", "current"))
        if draw < 0.5:
            return str(self.words("refs", "link").format(n=product.link_no))
        return self.name(product)

    def spec(self, product: Product, sku: Sku) -> str:
        """Speak of one variant of a product."""
        spec = self.spec_words(sku)
        return str(self.words("refs", "spec").format(ref=self.ref(product), spec=spec))

    def spec_words(self, sku: Sku) -> str:
        """Return what sets a variant apart."""
        gap = "" if self._is_chinese else " "
        self.keep(*sku.spec.values())
        return gap.join(sku.spec.values())

    def money(self, amount: str) -> str:
        """Write an amount as viewers do."""
        return str(self.show["money"].format(x=amount))

    def draft(self, skill: str, *asks: Raw, **slots: object) -> Draft:
        """Word a comment by a template of the skill."""
        return self.said(str(self.words("skills", skill).format(**slots)), *asks)

    def said(self, text: str, *asks: Raw) -> Draft:
        """Make a draft of a text, keeping the names in it."""
        kept, self._kept = tuple(self._kept), []
        return Draft(text, asks, kept)

    def asking(self, draft: Draft, field: str, product: Product) -> Draft:
        """Let later comments refer to a question, if it names its product."""
        return replace(draft, asked=(field, product.product_id)) if self._is_named else draft

    # --- the key ------------------------------------------------------------------------------

    def ask(self, intent: str, needed: Sequence[str] = (), **parts: Any) -> Raw:
        """Make one question's key; `intent` is a key of the grammar's rules."""
        name = self.show["rules"][intent]["name"]
        given = {part: value for part, value in parts.items() if value}
        return {"intent": name, "needed": list(needed), **given}

    def field_ask(self, product: Product, field: str) -> Raw:
        """Ask for a known field of a product."""
        record = record_of(product)
        extras = []
        if field == "price" and known(product, "coupon_price") is not None:
            extras.append({"record": record, "field": "coupon_price"})
        return self.ask(
            FIELD_INTENTS[field],
            [record],
            facts=[{"record": record, "field": field}],
            extras=extras,
            must_not=self.rivals(product, field),
        )

    def rivals(self, product: Product, field: str) -> list[Raw]:
        """Return the values of near-duplicates, which are wrong here."""
        if field not in ("price", "coupon_price", "stock"):
            return []
        right = {known(product, one) for one in ("price", "coupon_price", "stock", "link_no")}
        found = []
        for name in self.world.stock.twins.get(product.product_id, ()):
            twin = self.product(name)
            value = None if twin is None else known(twin, field)
            if value is not None and value not in right:
                found.append({"record": f"product:{name}", "field": field, "value": value})
        return found[:2]

    def answer_ask(self, answer: Answer, *before: str, **parts: Any) -> Raw:
        """Ask what an FAQ answers; `before` are records that have to be seen first."""
        record = f"faq:{answer.faq_id}"
        others = [
            {"record": f"faq:{other.faq_id}", "field": "answer", "text": [other.phrases[0]]}
            for other in self.world.answers
            if other.topic == answer.topic
            and other.value != answer.value
            and other.phrases[0] not in answer.text
        ]
        fact = {"record": record, "field": "answer", "text": [answer.phrases[0]]}
        wrong = self.rng.sample(others, min(2, len(others)))
        intent = self.topics[answer.topic]["intent"]
        return self.ask(intent, [*before, record], facts=[fact], must_not=wrong, **parts)

    def topics_of(self, product: Product, scope: str) -> list[tuple[str, Answer]]:
        """List the topics that have an answer for a product in that kind of scope."""
        found = []
        for topic, words in self.topics.items():
            answer = self.world.answer(topic, product) if words["scope"] == scope else None
            if answer is not None:
                found.append((topic, answer))
        return found

    def topic_words(self, topic: str, **slots: object) -> str:
        """Draw how viewers ask about a topic."""
        return str(self.rng.choice(self.topics[topic]["asks"]).format(**slots))


def record_of(product: Product) -> str:
    """Return the product's record."""
    return f"product:{product.product_id}"


def known(holder: Product | Sku, field: str) -> Any:
    """Return the value that a search shows of a field, `None` where it is not known."""
    if isinstance(holder, Product) and field in ("price", "coupon_price"):
        price = holder.lowest("price" if field == "price" else "coupon_price")
        return None if price is None else price.amount
    if isinstance(holder, Product) and field == "stock":
        return holder.total_stock
    value = getattr(holder, field)
    return value.amount if field.endswith("price") and value is not None else value


def _groups(world: World) -> dict[str, tuple[str, ...]]:
    """Return the names that two or three products hold, with the products' ids."""
    gap = "" if world.language == "zh" else " "
    names = {name: good.raw["name"] for name, good in world.goods.items()}
    labels = dict.fromkeys(str(good.kind["name"]) for good in world.goods.values())
    labels |= dict.fromkeys(
        gap.join((good.make, good.kind["name"])) for good in world.goods.values()
    )
    holders = {label: [p for p, name in names.items() if label in name] for label in labels}
    return {label: tuple(held) for label, held in holders.items() if 2 <= len(held) <= 3}
