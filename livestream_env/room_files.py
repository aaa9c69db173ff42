"""Room files: reading them in either form, checking them, writing and listing them."""

from __future__ import annotations

import glob
import json
import os
from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import lru_cache
from pathlib import Path
from typing import Any, Literal, NamedTuple, TypeVar

from pydantic import BaseModel, ValidationError

from livestream_env._resources import resource_folder
from livestream_env.errors import Issue, RoomError, RoomNotFound, did_you_mean
from livestream_env.rooms import (
    Comment,
    Event,
    Expected,
    Faq,
    Product,
    Promotion,
    ReplyRule,
    Room,
    ScriptSegment,
    Statement,
)
from livestream_env.words import clean_text

T = TypeVar("T")


def load_room(source: str | os.PathLike[str] | Room, *, encoding: str | None = None) -> Room:
    """Read a room from a file (this schema or the neutral export form) or by its bundled name.

    `encoding` names the file's encoding where it is not UTF-8 (with or without a BOM).

    Raises:
        RoomNotFound: no file and no bundled room of that name; the message names the nearest.
        RoomError: the file breaks the schema; every fault is listed with its JSON path.
    """
    if isinstance(source, Room):
        return source
    name = os.fspath(source)
    path = Path(name)
    if path.is_file():
        return _load_cached(str(path.resolve()), path.stat().st_mtime_ns, encoding)
    bundled = _bundled_files()
    if name in bundled:
        return load_room(bundled[name])
    raise RoomNotFound(
        f"no room file and no bundled room `{name}`; bundled are"
        f" {', '.join(f'`{known}`' for known in bundled)}.{did_you_mean(name, bundled)}"
    )


@lru_cache(maxsize=256)
def _load_cached(path: str, mtime_ns: int, encoding: str | None) -> Room:
    return read_room(Path(path), encoding=encoding).room


class RoomReport(NamedTuple):
    """A room that was read, and what a person should know about its file."""

    room: Room
    notes: tuple[str, ...]
    """Values that are not known or were mended, one line each."""


def read_room(path: Path, *, encoding: str | None = None) -> RoomReport:
    """Read a room file with notes on it; raises as `load_room`."""
    raw, notes = _parse_json(_decode(path, encoding), str(path))
    if not isinstance(raw, dict):
        issue = Issue("$", f"the file holds a JSON {type(raw).__name__}", "a room is a JSON object")
        raise RoomError(str(path), [issue])
    if "danmaku" in raw:
        raw = _from_neutral(raw)
    room = validate_room(raw, source=str(path))
    return RoomReport(room, (*notes, *_unknown_values(room)))


def _decode(path: Path, encoding: str | None) -> str:
    data = path.read_bytes()
    if encoding is None and data[:2] in (b"\xff\xfe", b"\xfe\xff"):
        remedy = "save it as UTF-8, or pass `encoding='utf-16'`"
        raise RoomError(str(path), [Issue("$", "the file is UTF-16", remedy)])
    try:
        return data.decode(encoding or "utf-8-sig")
    except (UnicodeDecodeError, LookupError) as error:
        at = data[: getattr(error, "start", 0)].count(b"\n") + 1
        remedy = "save it as UTF-8, or name its encoding, such as `encoding='gb18030'`"
        problem = f"line {at} is not {encoding or 'UTF-8'} ({error})"
        raise RoomError(str(path), [Issue("$", problem, remedy)]) from error


def _parse_json(text: str, source: str) -> tuple[Any, tuple[str, ...]]:
    issues: list[Issue] = []
    replaced = 0

    def pairs(items: list[tuple[str, Any]]) -> dict[str, Any]:
        nonlocal replaced
        made: dict[str, Any] = {}
        for key, value in items:
            if key in made:
                issues.append(Issue(f"...{key}", f"the key `{key}` occurs twice", "keep one"))
            made[key] = value
        return made

    def constant(name: str) -> None:
        issues.append(Issue("$", f"the file holds `{name}`", "write `null` for an unknown number"))

    def cleaned(value: Any) -> Any:
        nonlocal replaced
        if isinstance(value, str):
            clean = clean_text(value)
            replaced += clean != value
            return clean
        if isinstance(value, list):
            return [cleaned(item) for item in value]
        if isinstance(value, dict):
            return {cleaned(key): cleaned(item) for key, item in value.items()}
        return value

    try:
        raw = json.loads(text, object_pairs_hook=pairs, parse_constant=constant)
        raw = cleaned(raw)
    except json.JSONDecodeError as error:
        problem = f"line {error.lineno}, column {error.colno}: {error.msg}"
        raise RoomError(source, [Issue("$", problem, "write valid JSON")]) from error
    except (RecursionError, ValueError) as error:
        raise RoomError(
            source, [Issue("$", f"{error}", "write a room, nested as shown in docs/rooms.md")]
        ) from error
    if issues:
        raise RoomError(source, issues)
    notes = (f"{replaced} texts held lone surrogates, now U+FFFD",) if replaced else ()
    return raw, notes


def validate_room(raw: Mapping[str, Any], *, source: str = "room") -> Room:
    """Check a room given as JSON values, schema and references, and return it.

    Raises:
        RoomError: with every fault.
    """
    try:
        room = Room.model_validate(raw)
        issues = []
    except ValidationError as error:
        issues = [_schema_issue(raw, fault) for fault in error.errors(include_url=False)]
        room = _valid_part(raw, error)
    issues += check_references(room, ids=_ids(raw))
    if issues:
        raise RoomError(source, issues)
    return room


_COLLECTIONS: dict[str, tuple[str | None, type[BaseModel]]] = {
    "products": ("product_id", Product),
    "faqs": ("faq_id", Faq),
    "script": ("segment_id", ScriptSegment),
    "reply_rules": ("rule_id", ReplyRule),
    "promotions": ("promotion_id", Promotion),
    "events": (None, Event),
    "comments": ("comment_id", Comment),
}


def _valid_part(raw: Mapping[str, Any], error: ValidationError) -> Room:
    """Build the room with `None` for each item that has a fault, so that references are checked
    too."""
    bad = {fault["loc"][:2] for fault in error.errors()}
    parts: dict[str, Any] = {"language": "zh", "room_id": "?"}
    for name, (_, model) in _COLLECTIONS.items():
        items = raw.get(name)
        parts[name] = tuple(
            None if (name, i) in bad else model.model_validate(item)
            for i, item in enumerate(items if isinstance(items, (list, tuple)) else ())
        )
    return Room.model_construct(**parts)


def _ids(raw: Mapping[str, Any]) -> dict[str, list[str]]:
    """Collect the ids that the file declares, faulty items included."""
    found: dict[str, list[str]] = {name: [] for name in (*_COLLECTIONS, "skus")}
    for name, (key, _) in _COLLECTIONS.items():
        for item in _dicts(raw.get(name)):
            if key and isinstance(item.get(key), str):
                found[name].append(item[key])
            if name == "products":
                found["skus"] += _texts(item.get("skus"), "sku_id")
                found["promotions"] += _texts(item.get("promotions"), "promotion_id")
    return found


def _texts(items: Any, key: str) -> list[str]:
    return [item[key] for item in _dicts(items) if isinstance(item.get(key), str)]


def _dicts(items: Any) -> list[Mapping[str, Any]]:
    if not isinstance(items, (list, tuple)):
        return []
    return [item for item in items if isinstance(item, Mapping)]


def _schema_issue(raw: Mapping[str, Any], fault: Any) -> Issue:
    path = json_path(fault["loc"])
    given = _shown(fault.get("input"))
    kind, message = fault["type"], fault["msg"]
    if kind == "missing":
        return Issue(path, "is missing", f"add `{fault['loc'][-1]}`")
    if kind == "extra_forbidden":
        known = _fields_at(fault["loc"][:-1])
        hint = did_you_mean(str(fault["loc"][-1]), known)
        return Issue(path, "is no key of the schema", f"remove it or correct it.{hint}")
    if kind == "value_error":
        return Issue(path, message.removeprefix("Value error, "), "see docs/rooms.md")
    return Issue(path, f"got {given}", message[0].lower() + message[1:])


def _fields_at(loc: Sequence[str | int]) -> list[str]:
    model: Any = Room
    for part in loc:
        if isinstance(part, int) or part in ("function-before[<lambda>(), nullable[Price]]",):
            continue
        fields = getattr(model, "model_fields", {})
        if part not in fields:
            continue
        model = _inner_model(fields[part].annotation)
    return list(getattr(model, "model_fields", {}))


def _inner_model(annotation: Any) -> Any:
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        return annotation
    for argument in getattr(annotation, "__args__", ()):
        found = _inner_model(argument)
        if found is not None:
            return found
    return None


def _shown(value: Any) -> str:
    text = repr(value)
    return text if len(text) <= 60 else text[:57] + "..."


def json_path(loc: Iterable[str | int]) -> str:
    """Write a location as a JSON path such as `products[3].price`."""
    path = ""
    for part in loc:
        if isinstance(part, int):
            path += f"[{part}]"
        elif part.isidentifier() or not part.isascii():
            path += f".{part}" if path else part
    return path or "$"


# --- checking --------------------------------------------------------------------------------


def check_references(room: Room, *, ids: Mapping[str, Sequence[str]] | None = None) -> list[Issue]:
    """Return every dangling reference, repeated id and impossible value of the room.

    `ids` are the ids that the file declares, where some of its items are too faulty to be in
    `room`.
    """
    return list(_ReferenceCheck(room, ids or _ids(room.model_dump())).issues())


def _sound(items: Sequence[T | None]) -> Iterator[tuple[int, T]]:
    return ((i, item) for i, item in enumerate(items) if item is not None)


class _ReferenceCheck:
    """One pass over a room that yields an `Issue` for each fault between its parts.

    Items that are `None` broke the schema and are passed over.
    """

    def __init__(self, room: Room, ids: Mapping[str, Sequence[str]]) -> None:
        self.room = room
        self.products = [product for product in room.products if product is not None]
        self.ids = {name: set(known) for name, known in ids.items()}
        self.declared = ids
        self.merchants = {p.merchant for p in self.products if p.merchant}

    def issues(self) -> Iterator[Issue]:
        yield from self._repeats()
        yield from self._products()
        for i, faq in _sound(self.room.faqs):
            yield from self._scope(f"faqs[{i}].scope", faq.scope)
        for i, rule in _sound(self.room.reply_rules):
            yield from self._scope(f"reply_rules[{i}].scope", rule.scope)
        for i, promotion in _sound(self.room.promotions):
            if promotion.scope is not None:
                yield from self._scope(f"promotions[{i}].scope", promotion.scope)
        for i, segment in _sound(self.room.script):
            yield from self._product(f"script[{i}].product_id", segment.product_id)
        for i, event in _sound(self.room.events):
            yield from self._event(f"events[{i}]", event)
        for i, comment in _sound(self.room.comments):
            yield from self._comment(f"comments[{i}]", comment)

    def _repeats(self) -> Iterator[Issue]:
        for name, known in self.declared.items():
            twice = (
                sorted({one for one in known if known.count(one) > 1})
                if len(set(known)) < len(known)
                else []
            )
            for one in twice:
                yield Issue(
                    name, f"the id `{one}` occurs {known.count(one)} times", "make ids unique"
                )
        links = [p.link_no for p in self.products if p.link_no is not None]
        for link in sorted({link for link in links if links.count(link) > 1}):
            yield Issue("products", f"link number {link} occurs twice", "give each product its own")
        seen: set[tuple[str, str]] = set()
        for i, rule in _sound(self.room.reply_rules):
            if (rule.intent, rule.scope) in seen:
                problem = f"intent `{rule.intent}` has two rules for scope `{rule.scope}`"
                yield Issue(f"reply_rules[{i}].intent", problem, "merge them or narrow one scope")
            seen.add((rule.intent, rule.scope))

    def _products(self) -> Iterator[Issue]:
        for i, product in _sound(self.room.products):
            if product.skus:
                for field in ("price", "coupon_price", "stock"):
                    if getattr(product, field) is not None:
                        problem = "a product with SKUs takes this from them"
                        yield Issue(f"products[{i}].{field}", problem, "remove it here")
            for j, promotion in enumerate(product.promotions):
                if promotion.scope is not None:
                    yield from self._scope(f"products[{i}].promotions[{j}].scope", promotion.scope)

    def _scope(self, path: str, scope: str) -> Iterator[Issue]:
        kind, _, name = scope.partition(":")
        if kind == "product":
            yield from self._known(path, "product", name, self.ids["products"])
        elif kind == "merchant":
            yield from self._known(path, "merchant", name, self.merchants)
        elif scope != "room":
            yield Issue(path, f"got `{scope}`", "use `room`, `merchant:NAME` or `product:ID`")

    def _product(self, path: str, product_id: str | None) -> Iterator[Issue]:
        if product_id is not None:
            yield from self._known(path, "product", product_id, self.ids["products"])

    def _known(self, path: str, what: str, name: str, known: Iterable[str]) -> Iterator[Issue]:
        names = set(known)
        if name not in names:
            hint = did_you_mean(name, names)
            yield Issue(path, f"there is no {what} `{name}`", f"name one of the room's.{hint}")

    def _record(self, path: str, record: str, kinds: Mapping[str, str]) -> Iterator[Issue]:
        kind, colon, name = record.partition(":")
        if not colon or kind not in kinds:
            forms = ", ".join(f"`{known}:ID`" for known in kinds)
            yield Issue(path, f"got `{record}`", f"name a record as one of {forms}")
        else:
            yield from self._known(path, kind, name, self.ids[kinds[kind]])

    def _event(self, path: str, event: Event) -> Iterator[Issue]:
        kinds = {"product": "products"}
        if event.kind == "promotion":
            kinds = {"promotion": "promotions"}
        elif event.kind in ("stock", "price", "coupon"):
            kinds = {"product": "products", "sku": "skus"}
        yield from self._record(f"{path}.target", event.target, kinds)
        yield from self._event_value(path, event)

    def _event_value(self, path: str, event: Event) -> Iterator[Issue]:
        value = event.value
        whole = isinstance(value, int) and not isinstance(value, bool)
        if event.kind == "stock" and value is not None and not (whole and int(value) >= 0):
            yield Issue(
                f"{path}.value", f"got {value!r}", "a stock is a whole number from 0, or null"
            )
        if event.kind == "order" and not (whole and int(value or 0) >= 1):
            yield Issue(f"{path}.value", f"got {value!r}", "a position is a whole number from 1")
        kind, _, name = event.target.partition(":")
        if event.kind in ("stock", "price", "coupon") and kind == "product":
            product = next((p for p in self.products if p.product_id == name), None)
            if product is not None and product.skus:
                problem = f"product `{name}` has SKUs"
                yield Issue(f"{path}.target", problem, "name the SKU: `sku:ID`")
        if event.kind == "image":
            product = next((p for p in self.products if p.product_id == name), None)
            if product is not None and value not in product.images:
                yield Issue(f"{path}.value", f"got {value!r}", f"one of {list(product.images)}")

    def _comment(self, path: str, comment: Comment) -> Iterator[Issue]:
        yield from self._product(f"{path}.current_product", comment.current_product)
        if comment.same_as is not None:
            yield from self._known(
                f"{path}.same_as", "comment", comment.same_as, self.ids["comments"]
            )
        if comment.expected is not None:
            yield from self._expected(f"{path}.expected", comment.expected)
        for i, follow_up in enumerate(comment.follow_ups):
            if follow_up.expected is not None:
                yield from self._expected(f"{path}.follow_ups[{i}].expected", follow_up.expected)

    def _expected(self, path: str, expected: Expected) -> Iterator[Issue]:
        intents = {rule.intent for _, rule in _sound(self.room.reply_rules)}
        for i, ask in enumerate(expected.asks):
            at = f"{path}.asks[{i}]"
            if "*" not in intents:
                yield from self._known(f"{at}.intent", "reply rule for intent", ask.intent, intents)
            for j, needed in enumerate(ask.needed):
                for record in (needed,) if isinstance(needed, str) else needed:
                    yield from self._record(f"{at}.needed[{j}]", record, _RECORDS)
            for part in ("facts", "extras", "must_not"):
                for j, statement in enumerate(getattr(ask, part)):
                    yield from self._statement(f"{at}.{part}[{j}]", statement)
        yield from self._state(f"{path}.state", expected.state)

    def _statement(self, path: str, statement: Statement) -> Iterator[Issue]:
        for part in ("record", "other"):
            record = getattr(statement, part)
            if record is not None and record != "quote":
                yield from self._record(f"{path}.{part}", record, _RECORDS)
        for j, (item, pieces) in enumerate(statement.lines):
            known = self.ids["products"] | self.ids["skus"]
            yield from self._known(f"{path}.lines[{j}]", "product or SKU", item, known)
            if pieces < 1:
                yield Issue(f"{path}.lines[{j}]", f"got {pieces} pieces", "1 or more")

    def _state(self, path: str, state: Any) -> Iterator[Issue]:
        if isinstance(state, dict):
            for key in set(state) - _STATE_KEYS:
                hint = did_you_mean(key, _STATE_KEYS)
                yield Issue(
                    f"{path}.{key}", "is no predicate", f"one of {sorted(_STATE_KEYS)}.{hint}"
                )
            yield from self._product(f"{path}.product", state.get("product"))
        for product_id in state if isinstance(state, tuple) else ():
            yield from self._product(path, product_id)


_RECORDS = {
    "product": "products",
    "sku": "skus",
    "faq": "faqs",
    "rule": "reply_rules",
    "script": "script",
    "comment": "comments",
    "promotion": "promotions",
}
_STATE_KEYS = {"product", "position_at_most", "position", "image", "handed_off"}


def _unknown_values(room: Room) -> Iterator[str]:
    """Yield a note for each kind of value that the room does not know."""
    variants = [sku for product in room.products for sku in product.variants]
    for field in ("price", "coupon_price"):
        prices = [getattr(sku, field) for sku in variants]
        missing = sum(price is None or price.amount is None for price in prices)
        if missing:
            yield f"{missing} of {len(variants)} variants have no known `{field}`"
    missing = sum(sku.stock is None for sku in variants)
    if missing:
        yield f"{missing} of {len(variants)} variants have no known `stock`"


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


# --- writing and listing ---------------------------------------------------------------------


def save_room(room: Room, path: str | os.PathLike[str]) -> None:
    """Write the room as JSON, values that stand at their default left out."""
    raw = room.model_dump(mode="json", exclude_defaults=True)
    text = json.dumps(raw, ensure_ascii=False, indent=1)
    Path(path).write_text(text + "\n", encoding="utf-8")


@lru_cache(maxsize=1)
def _bundled_files() -> dict[str, str]:
    folder = resource_folder("fixtures") / "rooms"
    return {path.stem: str(path) for path in sorted(folder.glob("*.json"))}


def list_rooms(split: Literal["train", "test"] | None = None) -> list[str]:
    """Return the names of the bundled rooms, zh before en, then by name."""
    rooms = [load_room(path) for path in _bundled_files().values()]
    return [room.room_id for room in ordered(rooms) if split in (None, room.split)]


class Task(NamedTuple):
    """One comment of one room."""

    room_id: str
    comment_id: str


def list_tasks(split: Literal["train", "test"] | None = None) -> list[Task]:
    """Return every (room, comment) of the bundled rooms, in the order that seeds visit them."""
    rooms = [load_room(name) for name in list_rooms(split)]
    return [Task(room.room_id, c.comment_id) for room in rooms for c in room.comments]


def ordered(rooms: Iterable[Room]) -> list[Room]:
    """Sort rooms: zh before en, then by id."""
    return sorted(rooms, key=lambda room: (room.language != "zh", room.room_id))


def find_rooms(source: str | os.PathLike[str] | Room) -> list[Room]:
    """Return the rooms that `gym.make`'s `room=` names, in the order that seeds visit them.

    `source` is a room, a file, a folder, a glob, a bundled name, `bundled:train` or `bundled:test`.

    Raises:
        RoomNotFound: nothing matches.
        RoomError: a file breaks the schema.
    """
    if isinstance(source, Room):
        return [source]
    name = os.fspath(source)
    kind, colon, split = name.partition(":")
    if colon and kind == "bundled":
        if split not in ("train", "test"):
            hint = did_you_mean(split, ("train", "test"))
            raise RoomNotFound(f"no split `{split}`: use `bundled:train` or `bundled:test`.{hint}")
        return [
            load_room(room_id) for room_id in list_rooms("test" if split == "test" else "train")
        ]
    paths: list[str] = []
    if os.path.isdir(name):
        paths = sorted(glob.glob(os.path.join(glob.escape(name), "*.json")))
    elif glob.has_magic(name) and not os.path.isfile(name):
        paths = sorted(glob.glob(name, recursive=True))
    else:
        return [load_room(name)]
    if not paths:
        raise RoomNotFound(f"`{name}` matches no room file (`*.json`)")
    return ordered(load_room(path) for path in paths)


# --- the neutral export form -----------------------------------------------------------------


def _from_neutral(raw: Mapping[str, Any]) -> dict[str, Any]:
    """Turn the neutral form (`danmaku`, `locale`, positions instead of ids) into the schema.

    Ids are positions: `p1`, `f1`, `s1`, `r1`, `c1`. What is unknown stays unknown.
    """
    products = [
        {"product_id": f"p{i}", **{k: v for k, v in item.items() if v is not None}}
        for i, item in enumerate(_dicts(raw.get("products")), 1)
    ]
    by_name = {product.get("name"): product["product_id"] for product in reversed(products)}
    return {
        "room_id": raw.get("room_id"),
        "title": raw.get("title") or raw.get("room_id") or "",
        "language": str(raw.get("locale", "zh")).split("-")[0].split("_")[0].lower(),
        "products": products,
        "faqs": [{"faq_id": f"f{i}", **x} for i, x in enumerate(_dicts(raw.get("faqs")), 1)],
        "script": [
            _neutral_segment(i, item, by_name)
            for i, item in enumerate(_dicts(raw.get("script")), 1)
        ],
        "reply_rules": [
            {"rule_id": f"r{i}", **x} for i, x in enumerate(_dicts(raw.get("reply_rules")), 1)
        ],
        "comments": [
            {
                "comment_id": f"c{i}",
                "viewer": x.get("user"),
                "at_s": x.get("t"),
                "text": x.get("text"),
            }
            for i, x in enumerate(_dicts(raw.get("danmaku")), 1)
        ],
        "provenance": {
            key: raw[key]
            for key in ("licence", "redistribute", "sources", "provenance")
            if key in raw
        },
    }


def _neutral_segment(
    number: int, item: Mapping[str, Any], by_name: Mapping[Any, str]
) -> dict[str, Any]:
    segment = {"segment_id": f"s{number}", "start_s": item.get("t0"), "end_s": item.get("t1")}
    return {**segment, "text": item.get("text"), "product_id": by_name.get(item.get("product"))}
