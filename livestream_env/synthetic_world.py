"""The world of a generated room around its goods: FAQs, rules, a timed script and events.

What is kept beside the room (`World`) is where each answer stands, so that the comments' key can
name the record and the words of it.
"""

from __future__ import annotations

import random
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from livestream_env.rooms import Product, Room
from livestream_env.synthetic_goods import Good, Raw, Stock
from livestream_env.synthetic_words import Split, generator, grammar, marked
from livestream_env.words import format_amount

SLOT_S = 110
"""Seconds that the host spends on one product."""


@dataclass(frozen=True, slots=True)
class Answer:
    """An FAQ, and what a reply repeats of it."""

    faq_id: str
    topic: str
    scope: str
    text: str
    phrases: tuple[str, ...]
    value: str = ""
    """What sets it apart from the topic's other answers."""
    bounds: tuple[int, ...] = ()
    """Of a size guide: the heights at which the next size begins."""


@dataclass(frozen=True, slots=True)
class Said:
    """A script segment that a comment may ask about."""

    kind: str
    """`hook`, `recall` or `stale`."""
    segment_id: str
    start_s: int
    end_s: int
    topic: str = ""
    phrase: str = ""
    this: str = ""
    """Id of the product that was being explained."""
    other: str = ""
    """Id of the product that a hook names."""
    price: float = 0
    """The wrong price that was said."""


@dataclass(frozen=True, slots=True)
class World:
    """A room without comments, and where its answers stand."""

    room: Room
    goods: Mapping[str, Good]
    stock: Stock
    answers: tuple[Answer, ...]
    said: tuple[Said, ...]
    split: Split
    language: str

    def answer(self, topic: str, product: Product) -> Answer | None:
        """Return the topic's FAQ in the product's nearest scope."""
        scopes = product.scopes
        fitting = [a for a in self.answers if a.topic == topic and a.scope in scopes]
        return min(fitting, key=lambda answer: scopes[answer.scope], default=None)


def make_world(
    stock: Stock, *, language: str, split: Split, seed: int, events: bool, room_id: str
) -> World:
    """Build a room around its goods."""
    faqs, answers = _Faqs(stock, language, split, seed).made()
    script, said = _Script(stock, language, split, seed).made()
    rng = generator("room", language, split, seed)
    show, trades = grammar("show", language, split), grammar("goods", language, split)
    shop = rng.choice(stock.shops)
    title = rng.choice(show["titles"]).format(shop=shop.name, goods=trades[shop.trade]["title"])
    host = rng.choice(show["hosts"]).format(name=rng.choice(show["host_names"]))
    raw = {
        "room_id": room_id,
        "title": title,
        "language": language,
        "host": host,
        "split": split,
        "products": [good.raw for good in stock.goods],
        "faqs": faqs,
        "script": script,
        "reply_rules": _rules(stock, language, split, seed),
        "promotions": stock.promotions,
        "events": _events(stock, generator("events", language, split, seed)) if events else [],
        "limits": show["limits"],
    }
    goods = {good.product_id: good for good in stock.goods}
    room = Room.model_validate(raw)
    return World(room, goods, stock, tuple(answers), tuple(said), split, language)


# --- FAQs ------------------------------------------------------------------------------------


class _Faqs:
    """Draws FAQs of the room, of its shops and of single products."""

    def __init__(self, stock: Stock, language: str, split: Split, seed: int) -> None:
        self._stock = stock
        self._rng = generator("faqs", language, split, seed)
        self._topics = grammar("topics", language, split)
        self._trades = grammar("goods", language, split)
        self._size = grammar("show", language, split)["size_faq"]
        self._raw: list[Raw] = []
        self._answers: list[Answer] = []

    def made(self) -> tuple[list[Raw], list[Answer]]:
        """Return the FAQs, shuffled, with their answers' marks."""
        for topic, words in self._topics.items():
            if words["scope"] == "room" and self._rng.random() < 0.8:
                self._add(topic, ["room"])
            elif words["scope"] == "merchant":
                self._add(topic, self._shop_scopes())
        for trade in dict.fromkeys(good.trade for good in self._stock.goods):
            for topic in self._trades[trade]["topics"]:
                own = [g for g in self._stock.goods if g.trade == trade]
                self._add(topic, [f"product:{g.product_id}" for g in own])
        for good in self._stock.goods:
            if good.trade == "clothing":
                self._add_size_guide(good)
        self._rng.shuffle(self._raw)
        return self._raw, self._answers

    def _shop_scopes(self) -> list[str]:
        """Most shops answer for themselves; for the others the room does."""
        shops = [f"merchant:{s.name}" for s in self._stock.shops if self._rng.random() < 0.8]
        return shops if len(shops) == len(self._stock.shops) else ["room", *shops]

    def _add(self, topic: str, scopes: Sequence[str]) -> None:
        """Ask one question in each scope, with answers that differ as far as there are any."""
        words, rng = self._topics[topic], self._rng
        question, *similar = rng.sample(words["phrasings"], len(words["phrasings"]))
        values = rng.sample(words["slots"]["n"], len(words["slots"]["n"]))
        for i, scope in enumerate(scopes):
            value = values[i % len(values)]
            said = marked(rng.choice(words["answers"]), n=value)
            self._keep([question, *similar], Answer(self._next_id(), topic, scope, *said, value))

    def _next_id(self) -> str:
        return f"f{len(self._raw) + 1}"

    def _keep(self, phrasings: Sequence[str], answer: Answer) -> None:
        raw = {"faq_id": answer.faq_id, "question": phrasings[0], "similar": list(phrasings[1:])}
        self._raw.append({**raw, "answer": answer.text, "scope": answer.scope})
        self._answers.append(answer)

    def _add_size_guide(self, good: Good) -> None:
        words, rng = self._size, self._rng
        low, step = rng.choice(words["heights"]), rng.choice(words["steps"])
        bounds = (low, low + step, low + 2 * step)
        said = marked(words["answer"], a=bounds[0], b=bounds[1], c=bounds[2])
        questions = [text.format(kind=good.kind["name"]) for text in words["question"]]
        scope = f"product:{good.product_id}"
        self._keep(questions, Answer(self._next_id(), "size", scope, *said, bounds=bounds))


# --- rules -----------------------------------------------------------------------------------


def _rules(stock: Stock, language: str, split: Split, seed: int) -> list[Raw]:
    rng, show = generator("rules", language, split, seed), grammar("show", language, split)
    limit, slots = show["limits"]["bullet_characters"], _slots(stock, show)
    rules: list[Raw] = []
    for words in show["rules"].values():
        rule = {"rule_id": f"r{len(rules) + 1}", "intent": words["name"]}
        rules.append({**rule, "rule": rng.choice(words["rules"])})
        rules[-1]["checks"] = _checks(words, limit, slots, rng)
        if "merchant" in words and len(stock.shops) > 1:
            shop = rng.choice(stock.shops).name
            own = {"rule_id": f"r{len(rules) + 1}", "intent": words["name"]}
            own |= {"rule": words["merchant"].format(shop=shop), "scope": f"merchant:{shop}"}
            mention = {**words, "mention": [[words["merchant_mention"].format(shop=shop)]]}
            rules.append({**own, "checks": _checks(mention, limit, slots, rng)})
    return rules


def _checks(
    words: Mapping[str, Any], limit: int, slots: Sequence[str], rng: random.Random
) -> list[Raw]:
    checks: list[Raw] = [{"kind": "max_characters", "limit": limit}]
    checks.append({"kind": "must_not_promise", "any_of": words["ban"]})
    if words["mention"]:
        checks.append({"kind": "must_mention", "any_of": rng.choice(words["mention"])})
    if words.get("link"):
        checks.append({"kind": "must_add_link_number"})
    if words.get("ask"):
        checks.append({"kind": "must_ask", "any_of": list(slots)})
    return checks


def _slots(stock: Stock, show: Mapping[str, Any]) -> list[str]:
    """List all that a host of this room may have to ask for."""
    skus = [sku for good in stock.goods for sku in good.raw.get("skus", ())]
    axes = dict.fromkeys(name for sku in skus for name in sku["spec"])
    return [*axes, show["size_faq"]["height"], show["size_faq"]["weight"], show["budget_slot"]]


# --- script ----------------------------------------------------------------------------------


class _Script:
    """Writes what the host says: an opening, then each product in turn."""

    def __init__(self, stock: Stock, language: str, split: Split, seed: int) -> None:
        self._goods = stock.goods
        self._rng = generator("script", language, split, seed)
        self._show = grammar("show", language, split)
        trades = grammar("goods", language, split)
        self._about = trades[stock.goods[0].trade]["title"]
        self._segments: list[Raw] = []
        self._said: list[Said] = []
        self._clock = 0

    def made(self) -> tuple[list[Raw], list[Said]]:
        """Return the segments and those that comments may ask about."""
        greeting = self._rng.choice(self._show["greetings"])
        self._say(greeting.format(goods=self._about, n=len(self._goods)), None)
        recalls = self._rng.sample(list(self._show["recalls"]), 4)
        once = ["stash", "finale"]
        for i, good in enumerate(self._goods):
            self._clock = max(self._clock, i * SLOT_S + 10)
            self._explain(good)
            if recalls and self._rng.random() < 0.4:
                self._recall(recalls.pop(), good)
            if self._rng.random() < 0.4 and len(self._goods) > 2:
                self._hook(once.pop() if once and self._rng.random() < 0.4 else "", good)
        return self._segments, self._said

    def _say(self, text: str, product_id: str | None) -> tuple[str, int, int]:
        start_s = self._clock
        end_s = start_s + self._rng.randint(8, 14)
        self._clock = end_s + self._rng.randint(1, 6)
        name = f"s{len(self._segments) + 1}"
        raw = {"segment_id": name, "start_s": start_s, "end_s": end_s, "text": text}
        self._segments.append({**raw, "product_id": product_id})
        return name, start_s, end_s

    def _explain(self, good: Good) -> None:
        rng, lines, raw = self._rng, self._show["product_lines"], good.raw
        slots = {"name": raw["name"], "link": raw["link_no"], "shop": raw["merchant"]}
        self._say(rng.choice(lines["intro"]).format(**slots), good.product_id)
        attr, value = rng.choice(list(raw["attributes"].items()))
        said = rng.choice(lines["detail"]).format(**slots, attr=attr, value=value)
        self._say(said, good.product_id)
        coupon = None if "skus" in raw else raw["coupon_price"]
        if coupon is not None:
            self._name_price(good, coupon, rng.choice(lines["price"]), slots)

    def _name_price(self, good: Good, coupon: float, line: str, slots: Mapping[str, Any]) -> None:
        """Say the coupon price, one time in four wrongly."""
        wrong = coupon > 5 and self._rng.random() < 0.25
        price = round(coupon - self._rng.choice((1, 2, 3)), 2) if wrong else coupon
        text = line.format(**slots, price=format_amount(price))
        segment = self._say(text, good.product_id)
        if wrong:
            self._said.append(Said("stale", *segment, this=good.product_id, price=price))

    def _recall(self, topic: str, good: Good) -> None:
        words = self._show["recalls"][topic]
        said = marked(self._rng.choice(words["lines"]), n=self._rng.choice(words["slots"]))
        segment = self._say(said.text, good.product_id)
        self._said.append(Said("recall", *segment, topic=topic, phrase=said.phrases[0]))

    def _hook(self, topic: str, good: Good) -> None:
        """Name another product that a viewer will want to know more about."""
        topic = topic or self._rng.choice(("pair", "gift"))
        other = self._rng.choice([g for g in self._goods if g is not good])
        line = self._rng.choice(self._show["hooks"][topic]["lines"])
        text = line.format(this=good.raw["name"], other=other.raw["name"])
        segment = self._say(text, good.product_id)
        this, named = good.product_id, other.product_id
        self._said.append(Said("hook", *segment, topic=topic, this=this, other=named))


# --- events ----------------------------------------------------------------------------------


def show_length(products: int) -> int:
    """Return the seconds of a show; its last comment comes at the end."""
    return products * SLOT_S + 60


def _events(stock: Stock, rng: random.Random) -> list[Raw]:
    """Draw what changes during the show; the last fifth of it is quiet."""
    goods, end_s = stock.goods, show_length(len(stock.goods))
    events: list[Raw] = [
        _event(i * SLOT_S + 10, "current_product", good) for i, good in enumerate(goods)
    ]
    for good in goods:
        if rng.random() < 0.5:
            events.append(_change(good, rng.randint(60, end_s - 30), rng))
    if len(goods) >= 8:
        early, late = rng.randrange(len(goods) // 2), rng.randrange(len(goods) // 2, len(goods))
        gone_s = rng.randint((early + 1) * SLOT_S + 20, end_s * 4 // 5)
        events.append(_event(gone_s, "withdrawn", goods[early]))
        events.append(_event(late * SLOT_S + 5, "listed", goods[late]))
        shown = rng.choice(goods)
        events.append(_event(end_s // 3, "image", shown, shown.raw["images"][0]))
    switched = [p for p in stock.promotions if rng.random() < 0.3]
    for promotion in switched:
        target = {"kind": "promotion", "target": f"promotion:{promotion['promotion_id']}"}
        events.append({"at_s": rng.randint(end_s // 3, end_s * 3 // 4), **target, "value": False})
    return sorted((_without_none(event) for event in events), key=lambda event: event["at_s"])


def _event(at_s: int, kind: str, good: Good, value: Any = None) -> Raw:
    return {"at_s": at_s, "kind": kind, "target": f"product:{good.product_id}", "value": value}


def _without_none(event: Raw) -> Raw:
    return {key: value for key, value in event.items() if value is not None}


def _change(good: Good, at_s: int, rng: random.Random) -> Raw:
    """Change the stock or a price of a product or of one of its variants."""
    holder = rng.choice(good.raw["skus"]) if "skus" in good.raw else good.raw
    name = f"sku:{holder['sku_id']}" if "skus" in good.raw else f"product:{good.product_id}"
    kind, value = "stock", rng.choice((0, 0, 1, 2, rng.randint(3, 40), rng.randint(40, 200)))
    price, coupon = holder["price"], holder["coupon_price"]
    draw = rng.random()
    if price is not None and price > 8 and draw < 0.15 and "skus" not in good.raw:
        kind, value = "price", round(price + rng.choice((2, 3, 5)), 2)
    elif coupon is not None and coupon > 8 and draw < 0.3 and "skus" not in good.raw:
        kind, value = "coupon", round(coupon - rng.choice((1, 2, 3)), 2)
    return {"at_s": at_s, "kind": kind, "target": name, "value": value}
