"""The tools of a room: their specs, and what each one does to the room as of now.

A tool is a pure function of a `World` and its arguments that returns an `Outcome`; a write
returns a new `State`. Results are compact JSON in the room's language, with the facts that they
state.
"""

from __future__ import annotations

import json
import os
import threading
from collections.abc import Callable, Collection, Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cache, lru_cache
from typing import Any, NoReturn, TypeVar

import fastjsonschema

from livestream_env._resources import data_file, resource_folder
from livestream_env.errors import ToolError, did_you_mean
from livestream_env.keywords import LexicalScorer
from livestream_env.retrieval import Embedder, TextIndex
from livestream_env.rooms import (
    Comment,
    Faq,
    Moment,
    Product,
    Promotion,
    ReplyRule,
    Room,
    ScriptSegment,
    Sku,
    promotions_of,
    room_as_of,
    strip_room,
)
from livestream_env.types import Fact, FactValue, State, ToolSpec, TurnEvent, freeze
from livestream_env.words import Price, fold, format_amount, link_numbers, nearest

PRODUCT_HITS = 3
TEXT_HITS = 3
LONGEST_ATTRIBUTE = 300
LONGEST_QUOTE = 200
KNOWN_INTENTS = 60
REMEMBERED = 4096
CURRENCIES = {"zh": "yuan", "en": "dollar"}

LOCK = threading.RLock()
"""Guards what the process's rooms share, for moments; event loops wait for it."""
BUILDING = threading.RLock()
"""Held while a part of an index is built, for up to seconds; `LOCK` may be taken inside it."""

if hasattr(os, "register_at_fork"):
    # Both are held across a fork, so that the child finds them free, `BUILDING` before `LOCK`:
    # what was registered last is called first.
    for _lock in (LOCK, BUILDING):
        os.register_at_fork(
            before=_lock.acquire, after_in_parent=_lock.release, after_in_child=_lock.release
        )

K = TypeVar("K", bound=Hashable)
T = TypeVar("T")


# --- wording and specs -----------------------------------------------------------------------


@cache
def wording(language: str) -> dict[str, Any]:
    """Return the field names and sentences of tool results in `zh` or `en`."""
    table: dict[str, Any] = json.loads(data_file("wording.json").read_text(encoding="utf-8"))
    return dict(table[language])


def to_json(value: object) -> str:
    """Write compact JSON, Chinese unescaped."""
    return _ENCODER.encode(value)


_ENCODER = json.JSONEncoder(ensure_ascii=False, separators=(",", ":"))


def error_content(language: str, code: str, **details: object) -> str:
    """Write the tool result for a mistake of the policy: its code, and what would be right.

    Of what the policy itself gave, only the beginning is repeated.
    """
    words = wording(language)
    fields = words["fields"]
    for name in details.keys() & {"given", "problem"}:
        details[name] = _clipped(str(details[name]), LONGEST_QUOTE)
    note = words[code].format(**details) if code in words else str(details.get("problem", ""))
    return to_json({fields["error"]: code, fields["note"]: note})


@cache
def tool_spec(name: str, language: str) -> ToolSpec:
    """Read the bundled spec `tool_specs/{language}/{name}.json`."""
    path = resource_folder("tool_specs") / language / f"{name}.json"
    function = json.loads(path.read_text(encoding="utf-8"))["function"]
    tool = TOOLS[name]
    parameters = freeze(function["parameters"])
    return ToolSpec(name, function["description"], parameters, tool.mutates, not tool.mutates)


def tool_specs(language: str, names: Sequence[str] | None = None) -> tuple[ToolSpec, ...]:
    """Return the specs of the bundled tools `names`, by default of all that are not held out.

    Raises:
        ValueError: a name is no bundled tool; the message names the nearest.
    """
    chosen = dict.fromkeys(DEFAULT_TOOLS if names is None else names)
    for name in chosen:
        if name not in TOOLS:
            hint = did_you_mean(name, TOOLS)
            raise ValueError(f"no tool `{name}`; known are {', '.join(TOOLS)}.{hint}")
    return tuple(tool_spec(name, language) for name in chosen)


@lru_cache(maxsize=512)
def compiled_schema(schema: str) -> Callable[[Mapping[str, Any]], object]:
    """Compile a JSON Schema given as text; it may refer to no other document."""
    compiled: Callable[[Mapping[str, Any]], object] = fastjsonschema.compile(
        json.loads(schema),
        handlers=dict.fromkeys(("http", "https", "ftp", "file"), _refuse_document),
        use_default=False,
    )
    return compiled


def _refuse_document(uri: str) -> NoReturn:
    raise ValueError(f"it refers to `{uri}`: put that into its `$defs`")


@cache
def _validator(name: str) -> Callable[[Mapping[str, Any]], object]:
    return compiled_schema(json.dumps(tool_spec(name, "en").parameters))


def argument_fault(name: str, arguments: Mapping[str, Any]) -> str | None:
    """Return what is wrong with the arguments of a bundled tool, or `None`."""
    return schema_fault(_validator(name), arguments)


def schema_fault(
    validate: Callable[[Mapping[str, Any]], object], arguments: Mapping[str, Any]
) -> str | None:
    """Return what a compiled schema finds wrong with arguments, in words, or `None`."""
    try:
        validate(arguments)
    except fastjsonschema.JsonSchemaValueException as error:
        where = str(error.name).replace("data", "arguments", 1)
        if error.rule == "additionalProperties":
            known = error.definition.get("properties", {})
            extra = sorted(key for key in error.value if key not in known)
            return f"{where} must not hold {_quoted(extra)}; it takes {_quoted(known) or 'nothing'}"
        if error.rule == "required":
            missing = [key for key in error.definition["required"] if key not in error.value]
            return f"{where} must hold {_quoted(missing)}"
        if error.rule == "anyOf":
            branches = error.definition["anyOf"]
            kinds = " or ".join(str(one["type"]) for one in branches if "type" in one)
            is_limited = any("minLength" in one or "minItems" in one for one in branches)
            limits = ", neither empty nor too long" if is_limited else ""
            return f"{where} must be {kinds or 'one of what the schema lists'}{limits}"
        return str(error.message).replace("data", "arguments", 1)
    except ArithmeticError as error:
        return f"arguments hold a number that cannot be checked: {error}"
    return None


def _quoted(names: Iterable[str]) -> str:
    return ", ".join(f"`{name}`" for name in names)


# --- the room that tools see -----------------------------------------------------------------


class RoomIndex:
    """What searches need of one room, each part built once, when it is first searched."""

    def __init__(self, room: Room, embedder: Embedder) -> None:
        self.room = room
        self.embedder = embedder
        self.floor: float | None = None
        if room.language == "en":
            self.floor = getattr(embedder, "floor_en", None)
        self._built: dict[str, Any] = {}
        self._worlds: dict[tuple[State, frozenset[str], str], World] = {}
        self._moments: dict[tuple[float, str | None], Moment] = {}

    def _once(self, name: str, build: Callable[[], T]) -> T:
        if name not in self._built:
            with BUILDING:
                if name not in self._built:
                    self._built[name] = build()
        found: T = self._built[name]
        return found

    def _texts(
        self, name: str, texts: Iterable[tuple[int, str]], *, rewrites: bool = True
    ) -> TextIndex:
        def build() -> TextIndex:
            pairs = list(texts)
            shown, records = [text for _, text in pairs], [i for i, _ in pairs]
            return TextIndex(self.embedder, shown, records, rewrites=rewrites)

        return self._once(name, build)

    @property
    def faqs(self) -> TextIndex:
        """Vectors of every phrasing of every FAQ; records are FAQ numbers."""
        faqs = enumerate(self.room.faqs)
        return self._texts("faqs", ((i, t) for i, f in faqs for t in (f.question, *f.similar)))

    @property
    def script(self) -> TextIndex:
        """Vectors of the script; records are segment numbers."""
        return self._texts("script", ((i, s.text) for i, s in enumerate(self.room.script)))

    @property
    def comments(self) -> TextIndex:
        """Vectors of the comments; records are comment numbers. Queries keep their own words, for
        later comments must not change what is found of earlier ones."""
        comments = ((i, c.text) for i, c in enumerate(self.room.comments))
        return self._texts("comments", comments, rewrites=False)

    @property
    def intents(self) -> TextIndex:
        """Vectors of the reply rules' intents; records are rule numbers."""
        return self._texts("intents", ((i, r.intent) for i, r in enumerate(self.room.reply_rules)))

    @property
    def same_questions(self) -> list[frozenset[int]]:
        """For each FAQ the numbers of all that share one of its phrasings, itself included."""
        return self._once("same questions", lambda: _same_questions(self.room.faqs))

    def product_words(self, listed: frozenset[int]) -> LexicalScorer:
        """Words of names, variants and attributes of the listed products; those listed later do
        not weigh. Records are places in `sorted(listed)`."""
        products = [self.room.products[i] for i in sorted(listed)]
        return self._once(
            f"words {sorted(listed)}", lambda: LexicalScorer(list(map(_product_fields, products)))
        )

    def product_texts(self, listed: frozenset[int]) -> TextIndex:
        """Vectors of names and attributes of the listed products, for words that none holds;
        records are product numbers."""
        products = ((i, self.room.products[i]) for i in sorted(listed))
        texts = ((i, t) for i, product in products for t in _product_texts(product))
        return self._texts(f"products {sorted(listed)}", texts)

    def moment(self, at_s: float, comment: Comment | None = None) -> Moment:
        """Return the room as of `at_s`, remembered per time and current product."""
        key = (at_s, comment.current_product if comment is not None else None)
        found = self._moments.get(key)
        return found or self._keep(self._moments, key, room_as_of(self.room, at_s, comment=comment))

    def world(self, state: State, open_comments: frozenset[str], language: str) -> World:
        """Return the one `World` of these values, so that results can be remembered by it."""
        key = (state, open_comments, language)
        found = self._worlds.get(key)
        if found is None:
            room = self.moment(state.at_s).room
            made = World(self, room, state, open_comments, language)
            found = self._keep(self._worlds, key, made)
        return found

    def _keep(self, memory: dict[K, T], key: K, value: T) -> T:
        with LOCK:
            while len(memory) >= REMEMBERED:
                del memory[next(iter(memory))]
            return memory.setdefault(key, value)


@dataclass(frozen=True, slots=True, eq=False)
class _Content:
    """Key of a shared index: rooms of one content and embedders of one fingerprint are equal; an
    embedder without a fingerprint equals itself alone."""

    room: Room
    embedder: Embedder

    def _values(self) -> tuple[str, str | int]:
        known = getattr(self.embedder, "fingerprint", None)
        return self.room.content_hash, id(self.embedder) if known is None else str(known)

    def __hash__(self) -> int:
        return hash(self._values())

    def __eq__(self, other: object) -> bool:
        return isinstance(other, _Content) and self._values() == other._values()


@lru_cache(maxsize=256)
def _index_of(content: _Content) -> RoomIndex:
    return RoomIndex(strip_room(content.room), content.embedder)


def shared_index(room: Room, embedder: Embedder) -> RoomIndex:
    """Return the process's one index of this content and embedder."""
    content = _Content(room, embedder)
    hash(content)
    with LOCK:
        return _index_of(content)


def _same_questions(faqs: Sequence[Faq]) -> list[frozenset[int]]:
    phrasings = [{fold(text) for text in (faq.question, *faq.similar)} for faq in faqs]
    asking: dict[str, set[int]] = {}
    for number, texts in enumerate(phrasings):
        for text in texts:
            asking.setdefault(text, set()).add(number)
    return [frozenset().union(*(asking[text] for text in texts)) for texts in phrasings]


def _product_fields(product: Product) -> list[tuple[str, float]]:
    fields = [(product.name, 1.0), (product.merchant or "", 0.5)]
    fields += [(f"{key} {value}", 0.7) for key, value in product.attributes.items()]
    fields += [(" ".join(sku.spec.values()), 0.7) for sku in product.skus]
    return fields


def _product_texts(product: Product) -> list[str]:
    return [product.name, *(f"{key} {value[:60]}" for key, value in product.attributes.items())]


@dataclass(frozen=True, slots=True, eq=False)
class World:
    """The room as of now and the episode's state: all that a tool may read."""

    index: RoomIndex
    room: Room
    """The room as of `state.at_s`."""
    state: State
    open_comments: frozenset[str]
    language: str

    def product_by_link(self, link_no: int) -> Product | None:
        """Return the listed product of that link number."""
        return next((p for p in self.room.products if p.link_no == link_no), None)

    def product(self, product_id: str | None) -> Product | None:
        """Return the listed product of that id."""
        return next((p for p in self.room.products if p.product_id == product_id), None)


@dataclass(frozen=True, slots=True)
class Outcome:
    """What a tool returned, before it is tied to a call."""

    content: str
    data: tuple[Fact, ...] = ()
    error: str | None = None
    state: State | None = None
    events: tuple[TurnEvent, ...] = ()


@dataclass(frozen=True, slots=True)
class Tool:
    """A tool's function, `run(world, **arguments)`."""

    run: Callable[..., Outcome]
    mutates: bool = False
    """Whether it changes the state."""
    held_out: bool = False
    """Whether it is offered only by name, so that a policy can be tried on a tool it never saw."""


class _Mistake(ToolError):
    """A policy's mistake that a tool found in its arguments."""

    def __init__(self, code: str, **details: object) -> None:
        super().__init__(code)
        self.code = code
        self.details = details


def run_tool(world: World, name: str, arguments: Mapping[str, Any]) -> Outcome:
    """Run a bundled tool; the policy's mistakes, wrong arguments included, become the outcome."""
    fault = argument_fault(name, arguments)
    if fault is not None:
        content = error_content(world.language, "invalid_arguments", problem=fault)
        return Outcome(content, error="invalid_arguments")
    try:
        return TOOLS[name].run(world, **arguments)
    except _Mistake as mistake:
        details = dict(mistake.details)
        known_intents = details.pop("known_intents", None)
        if known_intents is None:
            content = error_content(world.language, mistake.code, **details)
        else:
            content = _unknown_intent(world, known_intents, **details)
        return Outcome(content, error=mistake.code)


# --- products --------------------------------------------------------------------------------


def search_product_by_keyword(world: World, keyword: str) -> Outcome:
    """Find products by link number, by the words they hold, else by meaning."""
    found = find_products(world, keyword)
    if not found:
        return _empty(world, "no_product")
    entries, facts = [], []
    for product in found:
        promotions = promotions_of(world.room, product)
        entries.append(_product_entry(product, promotions, world.language))
        currency = CURRENCIES[world.index.room.language]
        facts += product_facts(product, promotions, currency, world.language)
    return Outcome(_results(world, entries), tuple(dict.fromkeys(facts)))


def find_products(world: World, keyword: str) -> list[Product]:
    """Return the listed products that the keyword names, best first, at most `PRODUCT_HITS`."""
    numbers = link_numbers(keyword)
    named = [product for n in numbers if (product := world.product_by_link(n)) is not None]
    if numbers:
        return named[:8]
    listed = {product.product_id: product for product in world.room.products}
    catalogue = world.index.room.products
    numbered = [i for i, product in enumerate(catalogue) if product.product_id in listed]
    shown = frozenset(numbered)
    found = world.index.product_words(shown).search(keyword, len(numbered))
    hits = [(numbered[place], score) for place, score in found]
    alike = [number for number, score in hits if score == hits[0][1]]
    if not hits:
        hits = _nearest(world, world.index.product_texts(shown), keyword, PRODUCT_HITS)
    elif len(alike) > 1 and hits[0][1] < 1:  # words decide nothing, and leave some unfound
        texts = world.index.product_texts(shown)
        near = texts.search(keyword, len(alike), allowed=alike, floor=-1.0)
        hits = [*near, *hits[len(near) :]] if len(near) == len(alike) else hits
    return [listed[catalogue[i].product_id] for i, _ in hits[:PRODUCT_HITS]]


def _product_entry(
    product: Product, promotions: Sequence[Promotion], language: str
) -> dict[str, Any]:
    words = wording(language)
    f, unknown = words["fields"], words["unknown"]
    entry: dict[str, Any] = {
        f["link_no"]: product.link_no if product.link_no is not None else unknown,
        f["name"]: product.name,
        f["merchant"]: product.merchant or unknown,
        f["price"]: _shown_price(product.lowest("price"), words),
        f["coupon_price"]: _shown_price(product.lowest("coupon_price"), words),
        f["stock"]: unknown if product.total_stock is None else product.total_stock,
        f["barcode"]: product.barcode or unknown,
    }
    if product.skus:
        entry[f["note"]] = words["derived"]
        entry[f["skus"]] = [_sku_entry(sku, language) for sku in product.skus]
    if product.attributes:
        entry[f["attributes"]] = {k: _clipped(v) for k, v in product.attributes.items()}
    if promotions:
        entry[f["promotions"]] = [_promotion_entry(promotion, language) for promotion in promotions]
    if product.images:
        entry[f["images"]] = list(product.images)
    return entry


def _sku_entry(sku: Sku, language: str) -> dict[str, Any]:
    words = wording(language)
    f, unknown = words["fields"], words["unknown"]
    return {
        f["sku_id"]: sku.sku_id,
        f["spec"]: dict(sku.spec),
        f["price"]: _shown_price(sku.price, words),
        f["coupon_price"]: _shown_price(sku.coupon_price, words),
        f["stock"]: unknown if sku.stock is None else sku.stock,
    }


def _promotion_entry(promotion: Promotion, language: str) -> dict[str, Any]:
    f = wording(language)["fields"]
    return {f[key]: value for key, value in _promotion_values(promotion).items()}


def _promotion_values(promotion: Promotion) -> dict[str, Any]:
    return promotion.model_dump(
        include={"promotion_id", "kind", "threshold", "amount", "rate", "cap", "per_order"}
        | {"stacks_with", "scope", "text"},
        exclude_none=True,
    )


def _shown_price(price: Price | None, words: Mapping[str, Any]) -> str | float | int:
    """Return the price as the shop wrote it; what cannot be read as one is marked unknown."""
    if price is None or (isinstance(price.raw, str) and not any(map(str.isalnum, price.raw))):
        return str(words["unknown"])
    if price.amount is None:
        return f"{words['unknown']} ({price.raw})"
    if isinstance(price.raw, str):
        return price.raw
    if price.kind == "from":
        return str(words["from_price"]).format(amount=format_amount(price.raw))
    return int(price.raw) if price.raw == int(price.raw) else price.raw


def _clipped(text: str, longest: int = LONGEST_ATTRIBUTE) -> str:
    return text if len(text) <= longest else text[: longest - 1] + "…"


def product_facts(
    product: Product, promotions: Sequence[Promotion], currency: str, language: str = "zh"
) -> list[Fact]:
    """Return what a search result states about a product, its variants and its promotions."""
    words = wording(language)
    record = f"product:{product.product_id}"
    facts = [
        _fact(record, "link_no", product.link_no, words),
        _fact(record, "name", product.name, words),
        _fact(record, "merchant", product.merchant or None, words),
        _price_fact(record, "price", product.lowest("price"), currency, words),
        _price_fact(record, "coupon_price", product.lowest("coupon_price"), currency, words),
        _fact(record, "stock", product.total_stock, words, unit="piece"),
        _fact(record, "barcode", product.barcode or None, words),
    ]
    for sku in product.skus:
        sku_record = f"sku:{sku.sku_id}"
        facts += [
            Fact(sku_record, "spec", " ".join(sku.spec.values()), None, to_json(sku.spec)),
            _price_fact(sku_record, "price", sku.price, currency, words),
            _price_fact(sku_record, "coupon_price", sku.coupon_price, currency, words),
            _fact(sku_record, "stock", sku.stock, words, unit="piece"),
        ]
    for key, value in product.attributes.items():
        facts.append(_fact(record, key, _clipped(value), words))
    for promotion in promotions:
        facts += _promotion_facts(promotion, currency, words)
    facts += [_fact(record, "images", image, words) for image in product.images]
    return facts


def _promotion_facts(
    promotion: Promotion, currency: str, words: Mapping[str, Any]
) -> Iterable[Fact]:
    record = f"promotion:{promotion.promotion_id}"
    values = _promotion_values(promotion)
    pieces = promotion.kind in ("nth_piece", "bundle")
    units = {"threshold": "piece" if pieces else currency, "amount": currency, "cap": currency}
    yield _fact(record, "text", values.pop("text"), words)
    stacks = values.pop("stacks_with", None)
    if stacks is not None:
        yield Fact(record, "stacks_with", " ".join(stacks), None, to_json(stacks))
    del values["promotion_id"]
    for field, value in values.items():
        yield Fact(
            record,
            field,
            value,
            units.get(field),
            value if isinstance(value, str) else to_json(value),
        )


def _price_fact(
    record: str, field: str, price: Price | None, currency: str, words: Mapping[str, Any]
) -> Fact:
    amount = None if price is None else price.amount
    return Fact(record, field, amount, currency, str(_shown_price(price, words)))


def _fact(
    record: str, field: str, value: FactValue, words: Mapping[str, Any], *, unit: str | None = None
) -> Fact:
    """Make the fact of a value that the result shows as it is, or as unknown."""
    return Fact(record, field, value, unit, str(words["unknown"] if value is None else value))


def compare_products(world: World, link_nos: Sequence[int]) -> Outcome:
    """Put price, coupon price and stock of several products side by side."""
    entries, facts = [], []
    f = wording(world.language)["fields"]
    keys = [f[key] for key in ("link_no", "name", "price", "coupon_price", "stock")]
    fields = {"link_no", "name", "price", "coupon_price", "stock"}
    currency = CURRENCIES[world.index.room.language]
    for link_no in dict.fromkeys(link_nos):
        product = _linked(world, link_no)
        entry = _product_entry(product, (), world.language)
        entries.append({key: entry[key] for key in keys})
        record = f"product:{product.product_id}"
        stated = product_facts(product, (), currency, world.language)
        facts += [fact for fact in stated if fact.record == record and fact.field in fields]
    return Outcome(_results(world, entries), tuple(facts))


# --- texts -----------------------------------------------------------------------------------


def search_faq(world: World, query: str) -> Outcome:
    """Find preset questions by meaning; of one question in several scopes the nearest wins."""
    found = find_faqs(world, query, TEXT_HITS)
    if not found:
        return _empty(world, "no_faq")
    f = wording(world.language)["fields"]
    keys = ("faq_id", "question", "answer")
    entries = [{f[key]: getattr(faq, key) for key in keys} for faq in found]
    facts: list[Fact] = []
    for faq in found:
        record = f"faq:{faq.faq_id}"
        facts += [faq_fact(faq), Fact(record, "question", faq.question, None, faq.question)]
    return Outcome(_results(world, entries), tuple(facts))


def faq_fact(faq: Faq) -> Fact:
    """Return the fact that an FAQ's answer states."""
    return Fact(f"faq:{faq.faq_id}", "answer", faq.answer, None, faq.answer)


def find_faqs(world: World, query: str, limit: int) -> list[Faq]:
    """Return the FAQs in scope nearest to the query, at most `limit`."""
    faqs = world.index.room.faqs
    scopes = _scopes(world, query)
    allowed = {i for i, faq in enumerate(faqs) if faq.scope in scopes}
    hits = _nearest(world, world.index.faqs, query, len(allowed), allowed)
    hits.sort(key=lambda hit: (-hit[1], scopes[faqs[hit[0]].scope], hit[0]))
    found: list[Faq] = []
    asked: set[int] = set()
    for number, _ in hits:
        if number not in asked:
            same = allowed & world.index.same_questions[number]
            best = min(same, key=lambda i: (scopes[faqs[i].scope], i != number, i))
            if best not in asked:
                found.append(faqs[best])
            asked |= same
    return found[:limit]


def _scopes(world: World, query: str) -> dict[str, int]:
    """Return the scopes that hold for a query, nearest first: 0 product, 1 merchant, 2 room.

    Products that the query names by link number govern instead of the current one.
    """
    named = [p for n in link_numbers(query) if (p := world.product_by_link(n)) is not None]
    products = named or [p for p in (world.product(world.state.current_product),) if p is not None]
    scopes = {"room": 2}
    for product in products:
        scopes |= product.scopes
    return scopes


def search_script(world: World, query: str) -> Outcome:
    """Find script segments by meaning, each marked said or not yet said."""
    segments = world.index.room.script
    hits = [segments[i] for i, _ in _nearest(world, world.index.script, query, TEXT_HITS)]
    if not hits:
        return _empty(world, "no_script")
    words = wording(world.language)
    entries = [_script_entry(segment, world.state.at_s, words) for segment in hits]
    facts: list[Fact] = []
    for segment, entry in zip(hits, entries, strict=True):
        record, said = f"script:{segment.segment_id}", segment.start_s <= world.state.at_s
        facts.append(Fact(record, "text", segment.text, None, segment.text))
        facts.append(Fact(record, "said", said, None, entry[words["fields"]["said"]]))
    return Outcome(_results(world, entries), tuple(facts))


def _script_entry(segment: ScriptSegment, at_s: float, words: Mapping[str, Any]) -> dict[str, Any]:
    f = words["fields"]
    said = words["said"] if segment.start_s <= at_s else words["not_said"]
    return {f["segment_id"]: segment.segment_id, f["script"]: segment.text, f["said"]: said}


def search_comments(world: World, query: str) -> Outcome:
    """Find earlier comments by meaning, with what the host answered."""
    comments = world.index.room.comments
    opened = [i for i, c in enumerate(comments) if c.comment_id in world.open_comments]
    now = (world.state.at_s, max(opened, default=len(comments)))
    allowed = {
        i
        for i, comment in enumerate(comments)
        if (comment.at_s, i) <= now and comment.comment_id not in world.open_comments
    }
    near = _nearest(world, world.index.comments, query, TEXT_HITS, allowed)
    hits = [comments[i] for i, _ in near]
    if not hits:
        return _empty(world, "no_comment")
    f = wording(world.language)["fields"]
    entries, facts = [], []
    for comment in hits:
        reply = reply_so_far(comment, world.state.at_s)
        entry = {f["comment_id"]: comment.comment_id, f["viewer"]: comment.viewer}
        entry[f["comment"]] = comment.text
        record = f"comment:{comment.comment_id}"
        facts.append(Fact(record, "text", comment.text, None, comment.text))
        facts.append(Fact(record, "viewer", comment.viewer, None, comment.viewer))
        if reply is not None:
            entry[f["reply"]] = reply
            facts.append(Fact(record, "reply", reply, None, reply))
        entries.append(entry)
    return Outcome(_results(world, entries), tuple(facts))


def reply_so_far(comment: Comment, at_s: float) -> str | None:
    """Return what had been answered to the comment by `at_s`."""
    reply = comment.recorded_reply
    if reply is None or (reply.at_s if reply.at_s is not None else comment.at_s) > at_s:
        return None
    return reply.text


# --- rules -----------------------------------------------------------------------------------


def get_reply_rule(world: World, intent: str | Sequence[str]) -> Outcome:
    """Return the nearest scope's rule of each intent; an unknown intent lists the known ones."""
    intents = [intent] if isinstance(intent, str) else list(intent)
    f = wording(world.language)["fields"]
    entries, facts = [], []
    for given in intents:
        rule = find_rule(world, given)
        if rule is None:
            known = _known_intents(world, given)
            raise _Mistake("unknown_intent", given=given, known_intents=known)
        entry = {f["intent"]: rule.intent, f["rule"]: rule.rule}
        if fold(rule.intent) == "*":
            entry[f["note"]] = wording(world.language)["last_resort"]
        entries.append(entry)
        facts.append(Fact(f"rule:{rule.rule_id}", "rule", rule.rule, None, rule.rule))
        facts.append(Fact(f"rule:{rule.rule_id}", "intent", rule.intent, None, rule.intent))
    return Outcome(_results(world, entries), tuple(facts))


def find_rule(world: World, intent: str) -> ReplyRule | None:
    """Return the rule of that intent in the nearest scope, else that of last resort."""
    scopes = _scopes(world, "")
    wanted = fold(intent)
    fitting = [
        rule
        for rule in world.room.reply_rules
        if rule.scope in scopes and fold(rule.intent) in (wanted, "*")
    ]
    return min(
        fitting, key=lambda rule: (fold(rule.intent) == "*", scopes[rule.scope]), default=None
    )


def _known_intents(world: World, given: str) -> list[str]:
    scopes = _scopes(world, "")
    intents = {i: r.intent for i, r in enumerate(world.room.reply_rules) if r.scope in scopes}
    near = nearest(given, intents.values())
    hits = world.index.intents.search(given, len(intents), allowed=intents, floor=-1.0)
    known = dict.fromkeys([*near, *(intents[i] for i, _ in hits), *intents.values()])
    return list(known)[:KNOWN_INTENTS]


def _unknown_intent(world: World, known: object, **details: object) -> str:
    content = json.loads(error_content(world.language, "unknown_intent", **details))
    content[wording(world.language)["fields"]["known_intents"]] = known
    return to_json(content)


# --- writes ----------------------------------------------------------------------------------


def move_product(world: World, link_no: int, position: int) -> Outcome:
    """Move a product to a position of the running order, counted from 1."""
    link_no, position = int(link_no), int(position)  # 3.0 is an integer to JSON Schema
    product = _linked(world, link_no)
    order = world.state.product_order
    if position > len(order):
        raise _Mistake("bad_position", given=position, count=len(order))
    others = [product_id for product_id in order if product_id != product.product_id]
    others.insert(position - 1, product.product_id)
    fact = Fact(f"product:{product.product_id}", "position", position, None, str(position))
    state = replace(world.state, product_order=tuple(others))
    return _written(world, {"link_no": link_no, "position": position}, (fact,), state)


def show_image(world: World, link_no: int, image: str) -> Outcome:
    """Put a picture of a product on screen."""
    link_no = int(link_no)
    product = _linked(world, link_no)
    if image not in product.images:
        raise _Mistake("unknown_image", given=image, known=_some(product.images))
    fact = Fact(f"product:{product.product_id}", "image", image, None, image)
    state = replace(world.state, shown_image=(product.product_id, image))
    return _written(world, {"link_no": link_no, "image": image}, (fact,), state)


def hand_off(world: World, reason: str) -> Outcome:
    """Pass the question to a human colleague."""
    state = replace(world.state, hand_offs=(*world.state.hand_offs, reason))
    outcome = _written(world, {"reason": reason}, (), state)
    return replace(outcome, events=(TurnEvent("hand_off", reason),))


def _linked(world: World, link_no: int) -> Product:
    product = world.product_by_link(link_no)
    if product is None:
        links = [str(p.link_no) for p in world.room.products if p.link_no is not None]
        raise _Mistake("unknown_link", given=link_no, known=_some(links))
    return product


def _some(names: Sequence[str]) -> str:
    """List names for an error, the first fifty of many."""
    more = ", …" if len(names) > 50 else ""
    return _clipped(", ".join(names[:50]) + more, 500) if names else "-"


def _written(
    world: World, values: Mapping[str, Any], facts: tuple[Fact, ...], state: State
) -> Outcome:
    words = wording(world.language)
    entry = {words["fields"][key]: value for key, value in values.items()}
    content = to_json({**entry, words["fields"]["results"]: words["done"]})
    return Outcome(content, facts, state=state)


def _nearest(
    world: World,
    index: TextIndex,
    query: str,
    limit: int,
    allowed: Collection[int] | None = None,
) -> list[tuple[int, float]]:
    return index.search(query, limit, allowed=allowed, floor=world.index.floor)


def _results(world: World, entries: Sequence[Mapping[str, Any]]) -> str:
    return to_json({wording(world.language)["fields"]["results"]: entries})


def _empty(world: World, sentence: str) -> Outcome:
    words = wording(world.language)
    f = words["fields"]
    return Outcome(to_json({f["results"]: [], f["note"]: words[sentence]}))


TOOLS: dict[str, Tool] = {
    "search_product_by_keyword": Tool(search_product_by_keyword),
    "search_faq": Tool(search_faq),
    "search_script": Tool(search_script),
    "search_comments": Tool(search_comments),
    "get_reply_rule": Tool(get_reply_rule),
    "move_product": Tool(move_product, mutates=True),
    "show_image": Tool(show_image, mutates=True),
    "hand_off": Tool(hand_off, mutates=True),
    "compare_products": Tool(compare_products, held_out=True),
}
DEFAULT_TOOLS = tuple(name for name, one in TOOLS.items() if not one.held_out)
