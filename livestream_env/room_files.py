"""Room files: reading them in either form, checking them, writing and listing them."""

from __future__ import annotations

import glob
import hashlib
import json
import math
import os
import re
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from functools import cache, lru_cache
from pathlib import Path
from typing import Any, Literal, NamedTuple

from pydantic import BaseModel, ValidationError

from livestream_env._resources import resource_folder
from livestream_env.errors import Issue, RoomError, RoomNotFound, did_you_mean
from livestream_env.room_checks import check_references, declared_names, room_notes, shown
from livestream_env.room_checks import expected_counts as expected_counts
from livestream_env.rooms import (
    Comment,
    Event,
    Faq,
    Product,
    Promotion,
    ReplyRule,
    Room,
    ScriptSegment,
)
from livestream_env.words import clean_text

_DEEPEST = 64
"""Levels of lists and objects in a file; the schema itself needs a dozen."""


def load_room(source: str | os.PathLike[str] | Room, *, encoding: str | None = None) -> Room:
    """Read a room by its bundled name, or from a file of this schema or the neutral export form.

    A bundled name comes before a file of that name; write `./snacks` for the file. `encoding`
    names the file's encoding where it is not UTF-8 (with or without a BOM).

    Raises:
        RoomNotFound: no file and no bundled room of that name; the message names the nearest.
        RoomError: the file cannot be read or breaks the schema; every fault is listed with its
            JSON path.
    """
    if isinstance(source, Room):
        return source
    name = os.fspath(source)
    bundled = _bundled_files()
    if name in bundled:
        return _bundled_room(name)
    if os.path.isfile(name):
        digest = hashlib.blake2b(_bytes_of(name)).digest()
        return _load_cached(os.path.realpath(name), digest, encoding)
    if os.path.isdir(name):
        raise RoomNotFound(
            f"`{name}` is a folder; name a file in it, or make an environment with `room={name!r}`"
        )
    raise RoomNotFound(
        f"no room file and no bundled room `{shown(name)}`; bundled are"
        f" {', '.join(f'`{known}`' for known in bundled)}.{did_you_mean(name[:100], bundled)}"
    )


@lru_cache(maxsize=256)
def _load_cached(path: str, digest: bytes, encoding: str | None) -> Room:
    return read_room(Path(path), encoding=encoding).room


@cache
def _bundled_room(name: str) -> Room:
    return read_room(Path(_bundled_files()[name])).room


class RoomReport(NamedTuple):
    """A room that was read, and what a person should know about its file."""

    room: Room
    notes: tuple[str, ...]
    """Values that are not known or were mended, and what may not be meant, one line each."""


def read_room(path: str | os.PathLike[str], *, encoding: str | None = None) -> RoomReport:
    """Read a room file with notes on it.

    Raises:
        RoomError: as `load_room`.
    """
    room, notes = _read(os.fspath(path), _bytes_of(path), encoding)
    return RoomReport(room, (*notes, *room_notes(room)))


def _read(path: str, data: bytes, encoding: str | None) -> RoomReport:
    return _checked(_parse_json(_decode(data, path, encoding), path), path)


def _bytes_of(path: str | os.PathLike[str]) -> bytes:
    try:
        return Path(path).read_bytes()
    except OSError as error:
        problem = f"the file cannot be read ({error.strerror})"
        remedy = "check that it is there and may be read"
        raise RoomError(os.fspath(path), [Issue("$", problem, remedy)]) from error


def _decode(data: bytes, path: str, encoding: str | None) -> str:
    found = json.detect_encoding(data)
    if encoding is None and not found.startswith("utf-8"):
        remedy = f"save it as UTF-8, or pass `encoding='{found[:6]}'`"
        raise RoomError(path, [Issue("$", f"line 1 is {found[:6].upper()}, not UTF-8", remedy)])
    try:
        return data.decode(encoding or "utf-8").removeprefix("\ufeff")
    except UnicodeError as error:
        line = data[: getattr(error, "start", 0)].count(b"\n") + 1
        problem = f"line {line} is not {encoding or 'UTF-8'} ({error})"
        remedy = "save it as UTF-8, or name its encoding, such as `encoding='gb18030'`"
    except (LookupError, ValueError) as error:
        problem, remedy = str(error), "name an encoding of text, such as `encoding='gb18030'`"
    raise RoomError(path, [Issue("$", problem, remedy)])


# --- JSON ------------------------------------------------------------------------------------


class _Object(dict[str, Any]):
    """A JSON object that knows which of its keys occurred twice."""

    twice: tuple[str, ...] = ()


class _NotFinite(NamedTuple):
    """A number of the file that JSON does not have, as written."""

    text: str


def _parse_json(text: str, source: str) -> Any:
    if not text.strip():
        raise RoomError(source, [Issue("$", "the file is empty", "write a room as JSON")])
    try:
        return json.loads(
            text, object_pairs_hook=_object, parse_constant=_NotFinite, parse_float=_float
        )
    except json.JSONDecodeError as error:
        problem = f"line {error.lineno}, column {error.colno}: {error.msg}"
        remedy = "write valid JSON"
        if error.pos >= len(text.rstrip()):
            remedy = "the file ends too early: was it cut?"
    except (RecursionError, ValueError) as error:  # a number of more than 4300 digits
        problem, remedy = str(error), "write a room, nested as shown in docs/rooms.md"
    raise RoomError(source, [Issue("$", problem, remedy)])


def _object(pairs: list[tuple[str, Any]]) -> _Object:
    made = _Object(pairs)
    if len(made) < len(pairs):
        keys = [key for key, _ in pairs]
        counts = Counter(keys)
        made.twice = tuple(key for key in made if counts[key] > 1)
    return made


def _float(text: str) -> float | _NotFinite:
    number = float(text)
    return number if math.isfinite(number) else _NotFinite(text)


class _Mend:
    """A copy of JSON values in which every text can be written, with the faults met on the way."""

    def __init__(self, raw: Any) -> None:
        self.issues: list[Issue] = []
        self.replaced = 0
        self.value = self._copy(raw, ())

    def _copy(self, value: Any, at: tuple[str | int, ...]) -> Any:
        if isinstance(value, str):
            return self._text(value)
        if isinstance(value, _NotFinite):
            problem = f"`{shown(value.text)}` is no number of JSON"
            return self._fault(at, problem, "write `null` for an unknown number")
        if len(at) > _DEEPEST:
            problem = f"lies more than {_DEEPEST} levels deep"
            return self._fault(at[:3], problem, "nest as shown in docs/rooms.md")
        if isinstance(value, list | tuple):
            return [self._copy(item, (*at, i)) for i, item in enumerate(value)]
        if isinstance(value, Mapping):
            for key in getattr(value, "twice", ()):
                self._fault((*at, key), "the key occurs twice", "keep one")
            return {self._key(key): self._copy(item, (*at, key)) for key, item in value.items()}
        return value

    def _key(self, key: Any) -> Any:
        return self._text(key) if isinstance(key, str) else key

    def _text(self, text: str) -> str:
        clean = clean_text(text)
        self.replaced += "\ufffd" in clean and clean != text
        return clean

    def _fault(self, at: Sequence[str | int], problem: str, remedy: str) -> None:
        issue = Issue(json_path(at), problem, remedy)
        if issue not in self.issues:
            self.issues.append(issue)


def json_path(parts: Iterable[str | int]) -> str:
    """Write a location as a JSON path such as `products[3].price` or `attributes["a b"]`."""
    path = ""
    for part in parts:
        if isinstance(part, int):
            path += f"[{part}]"
        elif str(part).isidentifier():
            path += f".{part}" if path else part
        else:
            path += f"[{json.dumps(shown(str(part)), ensure_ascii=False)}]"
    return path or "$"


# --- checking --------------------------------------------------------------------------------


def validate_room(raw: Mapping[str, Any], *, source: str = "room") -> Room:
    """Check a room given as JSON values (in either form), schema and references, and return it.

    Raises:
        RoomError: with every fault.
    """
    return _checked(raw, source).room


def _with_full_targets(raw: Mapping[str, Any]) -> Mapping[str, Any]:
    """Complete event targets that are a plain id, `p5`, to the record they name, `product:p5`."""
    events = raw.get("events")
    if not isinstance(events, list):
        return raw
    names = declared_names(raw)
    records = {name: f"product:{name}" for _, name in names["products"]}
    records |= {name: f"sku:{name}" for _, name in names["skus"]}
    return {**raw, "events": [_with_full_target(event, records) for event in events]}


def _with_full_target(event: Any, records: Mapping[str, str]) -> Any:
    if not isinstance(event, Mapping) or not isinstance(event.get("target"), str):
        return event
    target = event["target"]
    if event.get("kind") == "promotion" and ":" not in target:
        return {**event, "target": f"promotion:{target}"}
    return {**event, "target": records.get(target, target)}


def _checked(raw: Any, source: str) -> RoomReport:
    if not isinstance(raw, Mapping):
        problem = f"holds {_type_name(raw)}"
        raise RoomError(source, [Issue("$", problem, "a room is one JSON object")])
    mended = _Mend(raw)
    value, notes = mended.value, []
    if mended.replaced:
        notes.append(f"{mended.replaced} texts held lone surrogates, now U+FFFD")
    is_neutral = "danmaku" in value or "locale" in value
    if is_neutral:
        if "locale" not in value:
            notes.append("the file has no `locale`: taken as zh")
        value = _from_neutral(value)
    room, issues = _validated(_with_full_targets(value))
    if is_neutral:
        issues = [Issue(_neutral_path(i.path), i.problem, i.remedy) for i in issues]
    known = {issue.path for issue in mended.issues}
    issues = [*mended.issues, *(issue for issue in issues if issue.path not in known)]
    if issues:
        raise RoomError(source, issues)
    return RoomReport(room, tuple(notes))


def _validated(raw: Mapping[str, Any]) -> tuple[Room, list[Issue]]:
    try:
        room, issues = Room.model_validate(raw), []
    except ValidationError as error:
        issues = _schema_issues(raw, error)
        room = _valid_part(raw, error)
    return room, issues + check_references(room, names=declared_names(raw))


_COLLECTIONS: dict[str, type[BaseModel]] = {
    "products": Product,
    "faqs": Faq,
    "script": ScriptSegment,
    "reply_rules": ReplyRule,
    "promotions": Promotion,
    "events": Event,
    "comments": Comment,
}


def _valid_part(raw: Mapping[str, Any], error: ValidationError) -> Room:
    """Build the room with `None` for each item that has a fault, so that references are checked
    too."""
    bad = {fault["loc"][:2] for fault in error.errors()}
    parts: dict[str, Any] = {"language": "zh", "room_id": "?"}
    for name, model in _COLLECTIONS.items():
        items = raw.get(name)
        parts[name] = tuple(
            None if (name, i) in bad else model.model_validate(item)
            for i, item in enumerate(items if isinstance(items, list) else ())
        )
    return Room.model_construct(**parts)


def _schema_issues(raw: Mapping[str, Any], error: ValidationError) -> list[Issue]:
    """Turn pydantic's faults into one issue a path: the branches of a union share theirs."""
    faults: dict[str, list[Any]] = {}
    for fault in error.errors(include_url=False):
        parts = _real_parts(raw, fault["loc"])
        if fault["type"] == "missing":
            parts = (*parts, fault["loc"][-1])
        faults.setdefault(json_path(parts), []).append(fault)
    return [_schema_issue(path, met) for path, met in faults.items()]


def _real_parts(raw: Any, loc: Sequence[str | int]) -> tuple[str | int, ...]:
    """Return the parts of a location that are in the file: pydantic adds tags of its own."""
    parts: list[str | int] = []
    for part in loc:
        inside = isinstance(part, int) and isinstance(raw, list) and part < len(raw)
        if inside or (isinstance(raw, Mapping) and part in raw):
            parts.append(part)
            raw = raw[part]
    return tuple(parts)


def _schema_issue(path: str, faults: Sequence[Any]) -> Issue:
    fault = faults[0]
    if fault["type"] == "missing":
        return Issue(path, "is missing", "add it")
    if fault["type"] == "extra_forbidden":
        return _extra_key(path, fault["loc"])
    wrong = [f for f in faults if f["type"] == "value_error"]
    if wrong:
        message = wrong[0]["msg"].removeprefix("Value error, ")
        return Issue(path, message, "see docs/rooms.md")
    wanted = dict.fromkeys(_wanted(fault["msg"]) for fault in faults)
    return Issue(path, f"got {_shown_json(fault['input'])}", f"should be {' or '.join(wanted)}")


_PYDANTIC_WORDS = {"tuple": "list", "dictionary": "JSON object", "string": "text"}


def _wanted(message: str) -> str:
    """Say pydantic's demand in JSON's words."""
    message = message.removeprefix("Input should be ")
    return re.sub(r"tuple|dictionary|string", lambda word: _PYDANTIC_WORDS[word[0]], message)


def _extra_key(path: str, loc: Sequence[str | int]) -> Issue:
    names = _names_at(loc[:-1])
    key = str(loc[-1])
    other = next((n for group in names if key in group for n in group if n != key), None)
    if other is not None:
        problem = f"the field stands under `{other}` too"
        return Issue(path, problem, "keep one of the two names")
    hint = did_you_mean(key[:100], [name for group in names for name in group])
    return Issue(path, "is no key of the schema", f"remove it or correct it.{hint}")


def _names_at(loc: Sequence[str | int]) -> list[tuple[str, ...]]:
    """List the names of each field of the object at a location."""
    model: Any = Room
    for part in loc:
        for name, field in getattr(model, "model_fields", {}).items():
            if part in _names_of(name, field):
                model = _inner_model(field.annotation)
    fields = getattr(model, "model_fields", {})
    return [_names_of(name, field) for name, field in fields.items()]


def _names_of(name: str, field: Any) -> tuple[str, ...]:
    choices = getattr(field.validation_alias, "choices", ())
    return (name, *(choice for choice in choices if choice != name))


def _inner_model(annotation: Any) -> Any:
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        return annotation
    inner = map(_inner_model, getattr(annotation, "__args__", ()))
    return next((model for model in inner if model is not None), None)


def _type_name(value: Any) -> str:
    names = {list: "a list", str: "a text", bool: "true or false", type(None): "null"}
    return names.get(type(value), f"a `{type(value).__name__}`")


def _shown_json(value: Any) -> str:
    try:
        return shown(json.dumps(value, ensure_ascii=False))
    except (TypeError, ValueError, RecursionError):
        return shown(repr(value))


# --- writing and listing ---------------------------------------------------------------------


def save_room(room: Room, path: str | os.PathLike[str]) -> None:
    """Write the room as JSON, values that stand at their default left out."""
    raw = room.model_dump(mode="json", exclude_defaults=True)
    text = json.dumps(raw, ensure_ascii=False, allow_nan=False, indent=1)
    Path(path).write_text(text + "\n", encoding="utf-8", newline="\n")


@lru_cache(maxsize=1)
def _bundled_files() -> dict[str, str]:
    folder = resource_folder("fixtures") / "rooms"
    return {path.stem: str(path) for path in sorted(folder.glob("*.json"))}


def list_rooms(split: Literal["train", "test"] | None = None) -> list[str]:
    """Return the names of the bundled rooms, zh before en, then by name.

    Raises:
        ValueError: there is no such split.
    """
    if split not in (None, "train", "test"):
        raise ValueError(f"`split` is {split!r}; it is `train`, `test` or None")
    rooms = [_bundled_room(name) for name in _bundled_files()]
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
        RoomError: a file breaks the schema, or two files hold rooms of one id.
    """
    if isinstance(source, Room):
        return [source]
    if not isinstance(source, (str, os.PathLike)):
        raise TypeError(f"`room` is {source!r:.80}; it is a name, a path, a glob or a `Room`")
    name = os.fspath(source)
    kind, colon, split = name.partition(":")
    if colon and kind == "generated":
        raise RoomNotFound(f"`{name}` has no end: make one room of it with `make_room`")
    if colon and kind == "bundled":
        if split not in ("train", "test"):
            hint = did_you_mean(split, ("train", "test"))
            raise RoomNotFound(f"no split `{split}`: use `bundled:train` or `bundled:test`.{hint}")
        return [
            load_room(room_id) for room_id in list_rooms("test" if split == "test" else "train")
        ]
    if name in _bundled_files():
        return [_bundled_room(name)]
    if os.path.isdir(name):
        paths = glob.glob(os.path.join(glob.escape(name), "*.json"))
    elif glob.has_magic(name) and not os.path.isfile(name):
        paths = glob.glob(name, recursive=True)
    else:
        return [load_room(name)]
    paths = sorted(path for path in paths if os.path.isfile(path))
    if not paths:
        raise RoomNotFound(f"`{name}` matches no room file (`*.json`)")
    return ordered(_different(paths))


def _different(paths: Iterable[str]) -> list[Room]:
    """Load rooms that must each have an id of their own: it names the room in every record."""
    rooms: dict[str, tuple[str, Room]] = {}
    for path in paths:
        room = load_room(path)
        if room.room_id in rooms:
            problem = f"`{room.room_id}` is also the id of the room in `{rooms[room.room_id][0]}`"
            raise RoomError(path, [Issue("room_id", problem, "give each room its own")])
        rooms[room.room_id] = (path, room)
    return [room for _, room in rooms.values()]


# --- the neutral export form -----------------------------------------------------------------


_NEUTRAL: dict[str, tuple[str, str, dict[str, str]]] = {
    "products": ("products", "product_id", {}),
    "faqs": ("faqs", "faq_id", {}),
    "script": (
        "script",
        "segment_id",
        {"t0": "start_s", "t1": "end_s", "product": "product_id"},
    ),
    "reply_rules": ("reply_rules", "rule_id", {}),
    "danmaku": ("comments", "comment_id", {"user": "viewer", "t": "at_s"}),
}
"""Name of a part, its name in the schema, the id that its items get, and their other names."""
_NEUTRAL_ORIGIN = ("licence", "redistribute", "sources", "provenance")


def _from_neutral(raw: Mapping[str, Any]) -> dict[str, Any]:
    """Turn the neutral form (`danmaku`, `locale`, positions instead of ids) into the schema.

    Ids are positions: `p1`, `f1`, `s1`, `r1`, `c1`. What is unknown stays unknown, and what the
    form does not know is left for the schema to refuse or take.
    """
    made = {key: value for key, value in raw.items() if value is not None}
    made = _renamed(made, {name: part[0] for name, part in _NEUTRAL.items()})
    made = _renamed(made, {"locale": "language"})
    for part, id_field, names in _NEUTRAL.values():
        if isinstance(made.get(part), list):
            items = enumerate(made[part], 1)
            made[part] = [_neutral_item(f"{part[0]}{i}", id_field, x, names) for i, x in items]
    language = made.setdefault("language", "zh")
    if isinstance(language, str):
        made["language"] = re.split("[-_]", language.lower())[0]
    made.setdefault("title", made.get("room_id", ""))
    made["provenance"] = {key: made.pop(key) for key in _NEUTRAL_ORIGIN if key in made}
    _name_products(made)
    return made


def _renamed(item: Mapping[str, Any], names: Mapping[str, str]) -> dict[str, Any]:
    """Rename keys, but for one whose new name stands beside it."""
    return {
        new if (new := names.get(key, key)) == key or new not in item else key: value
        for key, value in item.items()
    }


def _neutral_item(name: str, id_field: str, item: Any, names: Mapping[str, str]) -> Any:
    if not isinstance(item, Mapping):
        return item
    known = {key: value for key, value in item.items() if value is not None}
    if id_field == "comment_id":
        known.setdefault("user", "")
    return {id_field: name, **_renamed(known, names)}


def _name_products(room: Mapping[str, Any]) -> None:
    """Put ids in the place of the product names that the script segments give."""
    ids: dict[str, str] = {}
    for product in _mappings(room.get("products")):
        if isinstance(product.get("name"), str):
            ids.setdefault(product["name"], product["product_id"])
    for segment in _mappings(room.get("script")):
        name = segment.get("product_id")
        if isinstance(name, str):
            segment["product_id"] = ids.get(name, name) or None


def _mappings(items: Any) -> list[dict[str, Any]]:
    return [x for x in items if isinstance(x, dict)] if isinstance(items, list) else []


def _neutral_path(path: str) -> str:
    """Say a path of the schema as it stands in the neutral file."""
    part, name, rest = path, "", ""
    if match := re.match(r"(\w+)(\[\d+\]\.)(\w+)(.*)", path):
        part, name, rest = match[1] + match[2], match[3], match[4]
    for neutral, (schema, _, names) in _NEUTRAL.items():
        if part.partition("[")[0] == schema:
            back = {new: old for old, new in names.items()}
            return part.replace(schema, neutral, 1) + back.get(name, name) + rest
    return "locale" if path == "language" else path
