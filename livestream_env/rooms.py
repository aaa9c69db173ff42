"""Rooms: their schema, their two halves, and the room as of a time.

A room has two halves. The *world* (products, FAQs, script, rules, events, comments) is the
sandbox's; the *key* (`same_as`, `follow_ups`, `expected` of each comment) is the trainer's.
`strip_room` removes the key; the content hash covers the world alone.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Iterator, Mapping
from typing import Annotated, Any, Generic, Literal, NamedTuple, Self, TypeVar

from pydantic import (
    AfterValidator,
    AliasChoices,
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Field,
    PlainSerializer,
    model_validator,
)

from livestream_env.errors import CommentNotFound, did_you_mean
from livestream_env.words import Price


def _price(value: object) -> Price | None:
    if value is None or isinstance(value, Price):
        return value
    from livestream_env.amounts import parse_price  # its patterns take long to compile

    try:
        return parse_price(value)
    except TypeError as error:
        raise ValueError(str(error)) from error


def _no_bool(value: object) -> object:
    if isinstance(value, bool):
        raise ValueError(f"got {str(value).lower()}, which is no number")
    return value


def _id(value: str) -> str:
    if not value or value != value.strip():
        raise ValueError("an id is not empty and has no blanks at its ends")
    return value


def _json_object(value: dict[str, Any]) -> dict[str, Any]:
    try:
        copied: dict[str, Any] = json.loads(json.dumps(value, allow_nan=False))
    except (TypeError, ValueError, RecursionError) as error:
        raise ValueError(f"holds what JSON cannot hold: {error}") from error
    return copied


PriceField = Annotated[
    Price | None,
    BeforeValidator(_price),
    PlainSerializer(lambda price: None if price is None else price.raw),
]
"""A price as given (number or text), parsed; written as it was given."""
Id = Annotated[str, AfterValidator(_id)]
Finite = Annotated[float, Field(allow_inf_nan=False)]
LARGEST = 10**9
Number = Annotated[Finite, Field(ge=-LARGEST, le=LARGEST), BeforeValidator(_no_bool)]
Seconds = Number
Money = Annotated[Finite, Field(ge=0, le=LARGEST), BeforeValidator(_no_bool)]
Whole = Annotated[int, Field(ge=0, le=LARGEST), BeforeValidator(_no_bool)]
Scalar = int | Finite | str | bool | None
JsonObject = Annotated[dict[str, Any], AfterValidator(_json_object)]
"""A JSON object, copied."""
T = TypeVar("T")
KEY_FIELDS = frozenset({"same_as", "follow_ups", "expected"})


class _once(Generic[T]):
    """A property that is computed once.

    `functools.cached_property` takes a lock in Python 3.11, which a fork may leave held for ever.
    """

    def __init__(self, function: Callable[[Any], T]) -> None:
        self._function = function
        self.__doc__ = function.__doc__

    def __set_name__(self, owner: type, name: str) -> None:
        self._name = name

    def __get__(self, instance: Any, owner: type | None = None) -> T:
        value = self._function(instance)
        instance.__dict__[self._name] = value
        return value


class _Model(BaseModel):
    model_config = ConfigDict(
        extra="forbid",
        frozen=True,
        populate_by_name=True,
        arbitrary_types_allowed=True,
        ignored_types=(_once,),
    )


def _named(english: str, chinese: str, **options: Any) -> Any:
    """Declare a field that is read under either name and written under the Chinese one as alias."""
    return Field(
        validation_alias=AliasChoices(english, chinese), serialization_alias=chinese, **options
    )


_PRICE: Any = Field(default=None, validation_alias=AliasChoices("price", "价格"))


class Sku(_Model):
    """One buyable variant of a product."""

    sku_id: Id
    spec: dict[str, str] = {}
    """What sets it apart, such as `{"颜色": "黑色", "尺码": "L"}`."""
    price: PriceField = _PRICE
    coupon_price: PriceField = _named("coupon_price", "券后价", default=None)
    stock: Whole | None = _named("stock", "库存", default=None)
    barcode: str | None = _named("barcode", "商品条形码", default=None)


class Promotion(_Model):
    """One reduction or extra; `pricing.quote` alone computes with it."""

    promotion_id: Id
    kind: Id
    """`coupon`, `full_reduction`, `nth_piece`, `bundle`, `gift`, `subsidy`, `deposit`, `member`,
    or a kind of the room's own."""
    scope: str | None = None
    """`room`, `merchant:NAME` or `product:ID`; by default where it is declared."""
    threshold: Money | None = None
    """Least sum of money, or for `nth_piece` and `bundle` the number of pieces."""
    amount: Money | None = None
    """Money off; for a `bundle` the price of `threshold` pieces."""
    rate: Annotated[Money, Field(le=1)] | None = None
    """Share taken off: 0.15 is 15 % off (八五折)."""
    cap: Money | None = None
    """Most money off."""
    per_order: bool = True
    """Once an order; else once for each time the threshold is reached."""
    stacks_with: tuple[str, ...] | None = None
    """Ids or kinds it combines with, `*` for all, `()` for none; `None`: not known."""
    starts_s: Seconds | None = None
    ends_s: Seconds | None = None
    text: str = ""
    """As viewers read it."""


class Product(_Model):
    """One product of the room; prices and stocks that are not known are `None`."""

    product_id: Id
    link_no: Whole | None = _named("link_no", "链接号", default=None)
    name: str = _named("name", "商品名", min_length=1)
    merchant: str | None = _named("merchant", "商家名", default=None)
    price: PriceField = _PRICE
    coupon_price: PriceField = _named("coupon_price", "券后价", default=None)
    stock: Whole | None = _named("stock", "库存", default=None)
    barcode: str | None = _named("barcode", "商品条形码", default=None)
    attributes: dict[str, str] = {}
    images: tuple[str, ...] = ()
    skus: tuple[Sku, ...] = ()
    """Empty for a product without variants; with them, price and stock are theirs."""
    promotions: tuple[Promotion, ...] = ()
    """Promotions of this product alone."""

    @property
    def variants(self) -> tuple[Sku, ...]:
        """The SKUs; for a product without any, one unnamed SKU with the product's own values."""
        if self.skus:
            return self.skus
        own = Sku.model_construct(
            sku_id=self.product_id,
            spec={},
            price=self.price,
            coupon_price=self.coupon_price,
            stock=self.stock,
            barcode=self.barcode,
        )
        return (own,)

    @property
    def scopes(self) -> dict[str, int]:
        """The scopes that hold the product, nearest first: 0 its own, 1 its merchant's, 2 the
        room's."""
        own = {f"product:{self.product_id}": 0}
        return own | ({f"merchant:{self.merchant}": 1} if self.merchant else {}) | {"room": 2}

    @property
    def total_stock(self) -> int | None:
        """Pieces left over all variants, `None` where one of them is not known."""
        stocks = [sku.stock for sku in self.variants]
        return None if None in stocks else sum(stock for stock in stocks if stock is not None)

    def lowest(self, field: Literal["price", "coupon_price"]) -> Price | None:
        """Return the lowest price over the variants; where they differ, a price `from` it.

        What several pieces cost is no price of one, so it counts only where all variants say it.
        """
        if not self.skus:
            return self.price if field == "price" else self.coupon_price
        prices: list[Price | None] = [getattr(sku, field) for sku in self.skus]
        first = next((price for price in prices if price is not None), None)
        if all(_says_same(price, first) for price in prices):
            return first
        single = [p.amount for p in prices if p is not None and p.pieces is None]
        known = [amount for amount in single if amount is not None]
        return Price(min(known), "from", min(known)) if known else None


def _says_same(price: Price | None, other: Price | None) -> bool:
    if price is None or other is None:
        return price is other
    if price.amount is None or other.amount is None:
        return price.raw == other.raw
    return (price.amount, price.high, price.pieces) == (other.amount, other.high, other.pieces)


class Faq(_Model):
    """A preset question with its answer."""

    faq_id: Id
    question: str = Field(min_length=1)
    similar: tuple[str, ...] = ()
    """Other phrasings of the question; each is indexed."""
    answer: str
    scope: str = "room"
    """`room`, `merchant:NAME` or `product:ID`; the nearest wins."""


CheckKind = Literal[
    "must_mention", "must_not_promise", "must_ask", "max_characters", "must_add_link_number"
]


class Check(_Model):
    """A clause of a reply rule that a program can check."""

    kind: CheckKind
    any_of: tuple[str, ...] = ()
    """Phrases, one of which must occur (`must_mention`, `must_ask`) or none may
    (`must_not_promise`)."""
    limit: Whole | None = None
    """Characters, for `max_characters`."""

    @model_validator(mode="after")
    def _complete(self) -> Check:
        if self.kind in ("must_mention", "must_not_promise") and not self.any_of:
            raise ValueError(f"a `{self.kind}` check needs `any_of`, the phrases")
        if self.kind == "max_characters" and not self.limit:
            raise ValueError("a `max_characters` check needs `limit`, a number of characters")
        return self


class ReplyRule(_Model):
    """How to answer comments of one intent; intent `*` is the rule of last resort."""

    rule_id: Id
    intent: Id
    rule: str
    checks: tuple[Check, ...] = ()
    scope: str = "room"


class ScriptSegment(_Model):
    """What the host says from `start_s` to `end_s`."""

    segment_id: Id
    start_s: Seconds
    end_s: Seconds
    text: str
    product_id: str | None = None

    @model_validator(mode="after")
    def _ordered(self) -> ScriptSegment:
        if self.end_s < self.start_s:
            raise ValueError(f"`end_s` {self.end_s} lies before `start_s` {self.start_s}")
        return self


EventKind = Literal[
    "current_product",
    "stock",
    "price",
    "coupon",
    "promotion",
    "order",
    "image",
    "listed",
    "withdrawn",
]


class Event(_Model):
    """Something that changed during the show."""

    at_s: Seconds
    kind: EventKind
    target: str
    """`product:ID`, `sku:ID` (stock, price, coupon) or `promotion:ID`; files may give plain ids."""
    value: Scalar = None
    """The new stock, price or coupon price (`None`: not known); position from 1 (`order`); image
    id; whether the promotion holds (`promotion`, by default true)."""


class Line(_Model):
    """One line of a comment's own conversation."""

    by: str
    """A viewer's name, or `host`."""
    text: str
    at_s: Seconds | None = None


class RecordedCall(_Model):
    """A tool call that was made that night."""

    name: str
    arguments: JsonObject = {}
    result: str | None = None


class RecordedReply(_Model):
    """What was answered that night: history for later comments, never shown for its own."""

    text: str
    channel: Literal["danmaku", "speech"] = "danmaku"
    by: str = "host"
    at_s: Seconds | None = None
    tool_calls: tuple[RecordedCall, ...] = ()


class Statement(_Model):
    """Something that a reply may say about a record."""

    kind: Literal["value", "compare", "absent", "unknown"] = "value"
    """The field's value; two records' values side by side; the thing is not in the room; the
    value is not known."""
    record: str | None = None
    """`product:ID`, `sku:ID`, `faq:ID`, `script:ID`, `promotion:ID`, or `quote` for a total."""
    field: str | None = None
    other: str | None = None
    """The second record of a comparison."""
    lines: tuple[tuple[str, Whole], ...] = ()
    """(product or SKU id, pieces) of a quote."""
    value: Scalar = None
    """Value that must be stated; by default what the record holds as of the comment."""
    text: tuple[str, ...] = ()
    """Phrasings that count as stating it; for `absent`, names of the thing asked for."""


Act = Literal["answer", "ask", "hand_off", "decline", "chat", "ignore"]


def _not_empty(acts: tuple[Act, ...]) -> tuple[Act, ...]:
    if not acts:
        raise ValueError("is empty: no act would be right")
    return acts


class Ask(_Model):
    """One question in a comment, and what answering it well takes."""

    intent: Id
    """Intent of the reply rule that applies."""
    needed: tuple[str | tuple[str, ...], ...] = ()
    """Records to be seen (`product:31`, `faq:9`, `sku:7-L`); a list means any one of them."""
    facts: tuple[Statement, ...] = ()
    """What a helpful reply must state."""
    extras: tuple[Statement, ...] = ()
    """Unasked facts that help, such as the coupon with the price."""
    must_not: tuple[Statement, ...] = ()
    """Statements that are wrong here."""
    ask_for: tuple[str, ...] = ()
    """Slots to ask back for."""
    acts: Annotated[tuple[Act, ...], AfterValidator(_not_empty)] = ("answer",)
    """Every right act."""


class Expected(_Model):
    """The key of a comment; absent or partial for real rooms."""

    asks: tuple[Ask, ...] = ()
    state: JsonObject | tuple[str, ...] | None = None
    """A predicate on the final state (`{"product": "p5", "position_at_most": 2}`,
    `{"product": "p5", "image": "front"}`, `{"handed_off": true}`), or the exact product order."""
    provenance: str = ""


class FollowUp(_Model):
    """What the viewer says when the host asks back."""

    text: str
    when: tuple[str, ...] | Literal["always"] = "always"
    """Slots asked for, such as `["身高", "体重"]`: all must occur in the reply; or `always`."""
    expected: Expected | None = None


class Comment(_Model):
    """One viewer line (danmaku)."""

    comment_id: Id
    viewer: str
    at_s: Seconds
    text: str
    current_product: str | None = None
    """Product being explained then; by default from events, script, or the first listed."""
    history: tuple[Line, ...] | None = None
    """Conversation before it; by default the room's earlier comments."""
    recorded_reply: RecordedReply | None = None
    same_as: str | None = None
    """The comment it repeats."""
    follow_ups: tuple[FollowUp, ...] = ()
    expected: Expected | None = None


class Limits(_Model):
    """How long a reply may be, and what the host sees and can show."""

    bullet_characters: Whole = Field(default=60, gt=0)
    speech_s: Seconds = Field(default=15.0, gt=0)
    speech_characters_per_s: Number = Field(default=4.5, gt=0)
    script_window_s: Seconds = Field(default=60.0, ge=0)
    history_lines: Whole = 6
    preset_faqs: Whole = 1
    """Related preset FAQs shown in the prompt, at most."""
    extras: dict[str, tuple[str, ...]] = {}
    """Gestures, tones and the like that the host can show, by kind."""


class Room(_Model):
    """A recorded or written livestream room."""

    room_id: Id
    title: str = ""
    language: Literal["zh", "en"]
    host: str = ""
    """Who the host is and how it speaks."""
    split: Literal["train", "test"] = "train"
    products: tuple[Product, ...] = ()
    faqs: tuple[Faq, ...] = ()
    script: tuple[ScriptSegment, ...] = ()
    reply_rules: tuple[ReplyRule, ...] = ()
    promotions: tuple[Promotion, ...] = ()
    """Promotions of the room, of a merchant, or of products by scope."""
    events: tuple[Event, ...] = ()
    comments: tuple[Comment, ...] = ()
    limits: Limits = Limits()
    provenance: JsonObject = {}

    def model_copy(self, *, update: Mapping[str, Any] | None = None, deep: bool = False) -> Self:
        """Copy the room; what was computed from the old values stays behind."""
        copied = super().model_copy(update=update, deep=deep)
        for name in ("content_hash", "_comments_by_id", "all_promotions"):
            copied.__dict__.pop(name, None)
        return copied

    @_once
    def content_hash(self) -> str:
        """128-bit blake2b over the canonical JSON of the world (32 hex digits)."""
        text = json.dumps(_world(self), ensure_ascii=False, sort_keys=True, separators=(",", ":"))
        return hashlib.blake2b(text.encode(), digest_size=16).hexdigest()

    @_once
    def _comments_by_id(self) -> dict[str, Comment]:
        return {comment.comment_id: comment for comment in self.comments}

    def comment(self, comment_id: str) -> Comment:
        """Return the comment of that id.

        Raises:
            CommentNotFound: there is none; the message names the nearest.
        """
        found = self._comments_by_id.get(comment_id)
        if found is None:
            hint = did_you_mean(comment_id, self._comments_by_id)
            raise CommentNotFound(
                f"room `{self.room_id}` has no comment `{comment_id}`;"
                f" it has {len(self.comments)}, the first is"
                f" `{next(iter(self._comments_by_id), None)}`.{hint}"
            )
        return found

    @_once
    def all_promotions(self) -> tuple[Promotion, ...]:
        """The room's and the products' promotions, each with its scope filled in."""
        own = [p.model_copy(update={"scope": p.scope or "room"}) for p in self.promotions]
        for product in self.products:
            scope = f"product:{product.product_id}"
            own += [p.model_copy(update={"scope": p.scope or scope}) for p in product.promotions]
        return tuple(own)


def promotions_of(room: Room, product: Product) -> list[Promotion]:
    """Return the promotions whose scope holds the product: the room's, its merchant's, its own."""
    return [promotion for promotion in room.all_promotions if promotion.scope in product.scopes]


def _world(room: Room) -> dict[str, Any]:
    world = room.model_dump(mode="json", exclude={"comments": {"__all__": set(KEY_FIELDS)}})
    del world["split"]
    return world


def strip_room(room: Room) -> Room:
    """Return the world half of the room: no comment keeps `same_as`, `follow_ups`, `expected`."""
    empty: dict[str, Any] = {"same_as": None, "follow_ups": (), "expected": None}
    comments = tuple(comment.model_copy(update=empty) for comment in room.comments)
    return room.model_copy(update={"comments": comments})


class Moment(NamedTuple):
    """A room as of one second of its show."""

    room: Room
    """Events up to then folded in: listed products in their order, promotions that hold, comments
    so far. Its script is whole."""
    current_product: str | None
    shown_image: tuple[str, str] | None


def room_as_of(room: Room, at_s: float, *, comment: Comment | None = None) -> Moment:
    """Fold the events up to and including `at_s` into the room.

    The current product is that of `comment`; else, of those in the room then, that of the last
    event, of the script or the first listed. A product whose first event of the kinds `listed` and
    `withdrawn` is `listed` is not in the room before it.
    """
    fold = _Fold(room, at_s)
    for event in fold.events:
        if event.at_s <= at_s:
            fold.apply(event)
    products = tuple(fold.products[product_id] for product_id in fold.order)
    update = {
        "products": tuple(fold.with_promotions(product) for product in products),
        "promotions": tuple(p for p in room.promotions if fold.holds(p)),
        "comments": tuple(c for c in room.comments if c.at_s <= at_s),
        "events": (),
    }
    now = Room.model_construct(**{**dict(room), **update})
    own = comment.current_product if comment is not None else None
    current = own or next((p for p in _explained(room, at_s, fold) if p in fold.order), None)
    return Moment(now, current, fold.shown_image)


def _explained(room: Room, at_s: float, fold: _Fold) -> Iterator[str]:
    """Yield the products that may be the current one, the likeliest first."""
    if fold.current is not None:
        yield fold.current
    said = [s for s in room.script if s.start_s <= at_s and s.product_id is not None]
    for segment in sorted(said, key=lambda segment: segment.start_s)[::-1]:
        yield str(segment.product_id)
    yield from fold.order


class _Fold:
    """The room's changing parts while events are applied one by one."""

    def __init__(self, room: Room, at_s: float) -> None:
        self.at_s = at_s
        self.products = {product.product_id: product for product in room.products}
        self.events = sorted(room.events, key=lambda event: event.at_s)
        first: dict[str, str] = {}
        for event in self.events:
            if event.kind in ("listed", "withdrawn"):
                first.setdefault(event.target.partition(":")[2], event.kind)
        self.order = [p for p in self.products if first.get(p) != "listed"]
        self.switched: dict[str, bool] = {}
        self.current: str | None = None
        self.shown_image: tuple[str, str] | None = None

    def apply(self, event: Event) -> None:
        target = event.target.partition(":")[2]
        if event.kind == "current_product":
            self.current = target
        elif event.kind == "promotion":
            self.switched[target] = event.value is None or bool(event.value)
        elif event.kind == "image":
            self.shown_image = (target, str(event.value))
        elif event.kind in ("stock", "price", "coupon"):
            self._change(event, target)
        else:
            self._reorder(event, target)

    def _reorder(self, event: Event, target: str) -> None:
        if target in self.order:
            self.order.remove(target)
        elif event.kind == "order":
            return
        if event.kind == "order":
            self.order.insert(int(event.value or 1) - 1, target)
        elif event.kind == "listed":
            self.order.append(target)

    def _change(self, event: Event, target: str) -> None:
        field = {"stock": "stock", "price": "price", "coupon": "coupon_price"}[event.kind]
        value = event.value if event.kind == "stock" else _price(event.value)
        update = {field: value}
        if event.target.startswith("product:"):
            self.products[target] = self.products[target].model_copy(update=update)
            return
        for product_id, product in self.products.items():
            if any(sku.sku_id == target for sku in product.skus):
                skus = tuple(
                    sku.model_copy(update=update) if sku.sku_id == target else sku
                    for sku in product.skus
                )
                self.products[product_id] = product.model_copy(update={"skus": skus})
                return

    def holds(self, promotion: Promotion) -> bool:
        """Return whether the promotion holds: the last event decides, else its own times."""
        if promotion.promotion_id in self.switched:
            return self.switched[promotion.promotion_id]
        started = promotion.starts_s is None or promotion.starts_s <= self.at_s
        return started and (promotion.ends_s is None or self.at_s < promotion.ends_s)

    def with_promotions(self, product: Product) -> Product:
        held = tuple(p for p in product.promotions if self.holds(p))
        if held == product.promotions:
            return product
        return product.model_copy(update={"promotions": held})
