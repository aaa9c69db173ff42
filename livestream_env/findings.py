"""What tool messages say, read back from their JSON, and how agents without a model put it."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping, Sequence
from functools import cache
from typing import Any, NoReturn

from pydantic import ValidationError

from livestream_env._resources import data_file
from livestream_env.errors import ItemNotFound
from livestream_env.pricing import quote
from livestream_env.rooms import Product, Promotion, Room, Sku
from livestream_env.tools import wording
from livestream_env.types import Message, ToolSpec
from livestream_env.words import format_amount

Call = tuple[str, dict[str, Any]]


@cache
def phrases(language: str) -> dict[str, Any]:
    """Return the sentences that the agents of this package speak in `zh` or `en`."""
    table: dict[str, Any] = json.loads(data_file("agents.json").read_text(encoding="utf-8"))
    return dict(table[language])


def tools_language(tools: Sequence[ToolSpec], default: str = "zh") -> str:
    """Return the language of the tools' descriptions, which is that of their results."""
    if not tools:
        return default
    return "zh" if any("\u4e00" <= c <= "\u9fff" for c in tools[0].description) else "en"


def offered(calls: Sequence[Call], tools: Sequence[ToolSpec]) -> list[Call]:
    """Return the calls of tools that there are."""
    names = {spec.name for spec in tools}
    return [call for call in calls if call[0] in names]


def not_started() -> NoReturn:
    """Refuse to act before `start`, which makes the agent of an episode and which drivers call."""
    raise RuntimeError("call `start(observation, seed=...)` first; `rollout` does")


class Findings:
    """What the tool messages of a conversation say, by record and field.

    Only their JSON is read: `values["product:p3", "coupon_price"]`, `values["faq:f2", "answer"]`;
    an unknown value is `None`. Rules, known intents and writes are those since the viewer last
    spoke. `room` names products by id; without it they go by link number.
    """

    def __init__(self, messages: Sequence[Message], room: Room | None, language: str) -> None:
        self.language = language
        self.values: dict[tuple[str, str], Any] = {}
        self.labels: dict[str, str] = {}
        """What a viewer calls a product or SKU: `3号链接黑色L`."""
        self.rules: list[str] = []
        self.known_intents: list[str] = []
        self.written: dict[str, Mapping[str, Any]] = {}
        """Result of the last `position`, `image` or `reason` that was written."""
        self._products: dict[str, Product] = {}
        self._promotions: dict[str, Promotion] = {}
        self._ids = _product_ids(room)
        self._f: dict[str, str] = wording(language)["fields"]
        for message in messages:
            if message.role == "user":
                self.rules, self.known_intents, self.written = [], [], {}
            elif message.role == "tool":
                self._read(_json_object(message.content))

    def total(self, lines: Sequence[tuple[str, int]]) -> float | None:
        """Return what `lines` cost by the prices and promotions found; `None`: not known."""
        room = Room(
            room_id="found",
            language="zh",
            products=tuple(self._products.values()),
            promotions=tuple(self._promotions.values()),
        )
        try:
            return quote(room, lines).total
        except ItemNotFound:
            return None

    def _read(self, result: Mapping[str, Any]) -> None:
        f = self._f
        known = result.get(f["known_intents"])
        self.known_intents += [str(intent) for intent in known] if isinstance(known, list) else []
        for name in ("position", "image", "reason"):
            if f[name] in result:
                self.written[name] = result
        for entry in _objects(result.get(f["results"])):
            self._read_entry(entry)

    def _read_entry(self, entry: Mapping[str, Any]) -> None:
        f = self._f
        for kind, key, name, shown in _TEXTS:
            if f[key] in entry:
                self._set(f"{kind}:{entry[f[key]]}", name, entry.get(f[shown]))
        if f["rule"] in entry:
            self.rules.append(str(entry[f["rule"]]))
        if f["name"] in entry:
            self._read_product(entry)

    def _read_product(self, entry: Mapping[str, Any]) -> None:
        f, words = self._f, phrases(self.language)
        name, link_no = str(entry[f["name"]]), entry.get(f["link_no"])
        linked = isinstance(link_no, int)
        found_id = self._ids.get(link_no) if linked else None
        product_id = found_id or self._ids.get(name) or str(link_no if linked else name)
        record = f"product:{product_id}"
        label = words["link"].format(link_no=link_no) if linked else _clipped(name, 16)
        self.labels[record] = label
        for key in ("name", "link_no", "merchant", "barcode", "price", "coupon_price", "stock"):
            self._set(record, key, entry.get(f[key]))
        for key, value in _object(entry.get(f["attributes"])).items():
            self._set(record, key, value)
        skus = [self._sku(sku, label) for sku in _objects(entry.get(f["skus"]))]
        promotions = list(_objects(entry.get(f["promotions"])))
        for promotion in promotions:
            record_id = f"promotion:{promotion.get(f['promotion_id'])}"
            self._set(record_id, "text", promotion.get(f["text"]))
        self._keep_for_totals(product_id, entry, skus, promotions)

    def _sku(self, sku: Mapping[str, Any], label: str) -> dict[str, Any]:
        record = f"sku:{sku.get(self._f['sku_id'])}"
        spec = _object(sku.get(self._f["spec"]))
        gap = "" if self.language == "zh" else " "
        self.labels[record] = gap.join([label, *map(str, spec.values())])
        for key in ("price", "coupon_price", "stock"):
            self._set(record, key, sku.get(self._f[key]))
        return {"sku_id": record.removeprefix("sku:"), **self._prices(record)}

    def _keep_for_totals(
        self,
        product_id: str,
        entry: Mapping[str, Any],
        skus: Sequence[Mapping[str, Any]],
        promotions: Sequence[Mapping[str, Any]],
    ) -> None:
        """Keep product and promotions as `quote` reads them, where what is said is well formed."""
        f, record = self._f, f"product:{product_id}"
        own = {} if skus else self._prices(record)
        names = [name for name in Promotion.model_fields if name in f]
        try:
            product = Product(
                product_id=product_id,
                name=str(entry[f["name"]]),
                merchant=self.values[record, "merchant"],
                skus=tuple(Sku.model_validate(sku) for sku in skus),
                **own,
            )
            kept = [
                Promotion.model_validate({n: raw[f[n]] for n in names if f[n] in raw})
                for raw in promotions
            ]
        except ValidationError:
            return
        self._products[product_id] = product
        self._promotions |= {promotion.promotion_id: promotion for promotion in kept}

    def _prices(self, record: str) -> dict[str, Any]:
        return {key: self.values[record, key] for key in ("price", "coupon_price")}

    def _set(self, record: str, name: str, value: Any) -> None:
        unknown = value == wording(self.language)["unknown"]
        self.values[record, name] = None if unknown else value


_TEXTS = (
    ("faq", "faq_id", "answer", "answer"),
    ("script", "segment_id", "text", "script"),
    ("comment", "comment_id", "text", "comment"),
    ("comment", "comment_id", "reply", "reply"),
)
"""Kind of record, and wire names of its id, its field and that field's value."""


def _product_ids(room: Room | None) -> dict[str | int | None, str]:
    products = room.products if room is not None else ()
    by_name: dict[str | int | None, str] = {p.name: p.product_id for p in reversed(products)}
    return by_name | {p.link_no: p.product_id for p in products if p.link_no is not None}


def _json_object(text: str) -> Mapping[str, Any]:
    try:
        return _object(json.loads(text))
    except ValueError:
        return {}


def _object(value: Any) -> Mapping[str, Any]:
    return value if isinstance(value, dict) else {}


def _objects(value: Any) -> Iterator[Mapping[str, Any]]:
    return (one for one in value if isinstance(one, dict)) if isinstance(value, list) else iter(())


def say(found: Findings, record: str, name: str, texts: Sequence[str] = ()) -> str:
    """State what was found of a field, or that it is not known.

    Of a long text only the sentence that holds one of `texts` is said.
    """
    words = phrases(found.language)
    label = found.labels.get(record, "")
    value = found.values.get((record, name))
    shown_name = words["fields"].get(name, name)
    if value is None:
        return str(words["unknown"].format(name=label, field=shown_name))
    if name == "link_no":
        product = _clipped(str(found.values.get((record, "name"))), 24)
        return str(words["linked"].format(name=product, link_no=value))
    if isinstance(value, str) and (texts or name not in words["fields"]):
        return _relevant(value, texts)
    unit = words["units"].get(name, "{value}")
    if isinstance(value, int | float):
        shown = unit.format(value=format_amount(value))
    else:
        shown = _LOWEST.sub(lambda number: unit.format(value=number[0]), str(value))
    return str(words["value"].format(name=label, field=shown_name, value=shown))


def joined(language: str, parts: Sequence[str]) -> str:
    """Make one line of what is to be said, each thing once."""
    words = phrases(language)
    clean = [part.strip().rstrip("。；;，,. ") for part in parts]
    return str(words["prefix"] + words["joiner"].join(dict.fromkeys(filter(None, clean))))


def _relevant(value: str, texts: Sequence[str]) -> str:
    """Return the sentence of a long text that holds one of the phrases; else the whole."""
    for phrase in texts if len(value) > 60 else ():
        for sentence in SENTENCE_END.split(value):
            if phrase in sentence:
                return sentence
    return value


def _clipped(text: str, length: int) -> str:
    """Shorten a name, at a blank where it has one."""
    return text if len(text) <= length else text[:length].rpartition(" ")[0] or text[:length]


_LOWEST = re.compile(r"(?<=^from )\d+(?:\.\d+)?$|^\d+(?:\.\d+)?(?=起$)")
"""The number of the lowest of several prices, `from 20`: it has the unit."""
SENTENCE_END = re.compile(r"(?<=[。；;！!])|(?<=\. )")
