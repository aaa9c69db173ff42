"""Rooms without end: a seeded generator of rooms with their key.

`make_room` draws goods, promotions, FAQs, rules, a script, events and comments from grammars, and
reads the key of each comment off the room as of its second, so every question has an answer that
the tools can find. Equal arguments give equal bytes, in any process. The splits `train` and `test`
share no template, no phrasing and no name.
"""

from __future__ import annotations

import hashlib
import json
import operator
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass, fields
from functools import lru_cache
from typing import Any, Literal, SupportsIndex

from livestream_env.errors import did_you_mean
from livestream_env.rooms import Comment, Room
from livestream_env.synthetic_comments import write_comments
from livestream_env.synthetic_goods import add_promotions, make_goods
from livestream_env.synthetic_words import Split
from livestream_env.synthetic_world import make_world, show_length

PREFIX = "generated:"
REMEMBERED = 64
"""Rooms that a process keeps."""


def make_room(
    seed: int,
    language: Literal["zh", "en"] = "zh",
    products: int = 30,
    comments: int = 60,
    level: int = 2,
    *,
    split: Split = "train",
    near_duplicates: float = 0.2,
    noise: float = 0.2,
    chatter: float = 0.1,
    events: bool = True,
    promotions: bool = True,
) -> Room:
    """Draw a room, with the key of each of its comments.

    Each `Expected.provenance` names the comment's level and skill: `level=2;skill=total_one`.

    Args:
        seed: Whole number from 0; rooms that differ in later arguments alone share their goods.
        language: `zh` or `en`.
        products: 1 to 300.
        comments: 1 to 1000.
        level: 1 one look-up, 2 several, 3 nested; a room mixes the levels up to its own.
        split: `train`, or `test` with templates, phrasings and names held out from training.
        near_duplicates: Share of products that hardly differ from another.
        noise: Share of comments with typos, homophones, slang, emoji or dropped words.
        chatter: Share of comments that ask nothing.
        events: Whether stocks, prices and products change during the show.
        promotions: Whether there are promotions beside coupon prices.

    Raises:
        ValueError: An argument is out of these bounds; the message names it.
    """
    rooms = GeneratedRooms(
        language=language,
        products=products,
        comments=comments,
        level=level,
        split=split,
        near_duplicates=near_duplicates,
        noise=noise,
        chatter=chatter,
        events=events,
        promotions=promotions,
    )
    return _build(rooms, _seed(seed))


@dataclass(frozen=True, slots=True)
class GeneratedRooms:
    """An endless row of rooms: those of `make_room` for the seeds 0, 1, 2 and so on."""

    language: Literal["zh", "en"] = "zh"
    products: int = 30
    comments: int = 60
    """Comments a room."""
    level: int = 2
    split: Split = "train"
    near_duplicates: float = 0.2
    noise: float = 0.2
    chatter: float = 0.1
    events: bool = True
    promotions: bool = True

    def __post_init__(self) -> None:
        """Refuse what `make_room` does not take; write equal numbers alike, as the bytes of a room
        hold them."""
        for name, check in _CHECKS.items():
            value = getattr(self, name)
            problem = check(value)
            if problem:
                raise ValueError(f"`{name}` is {value!r}; {problem}")
            if check is _share:
                object.__setattr__(self, name, float(value) + 0.0)

    def room(self, number: int) -> Room:
        """Return the room of that number from 0; the last ones are remembered.

        Raises:
            ValueError: `number` is no whole number from 0.
        """
        return _remembered(self, _seed(number))

    def find(self, seed: int) -> tuple[Room, int]:
        """Return the room that a seed visits and its comment's index: comment after comment, room
        after room."""
        number, index = divmod(_seed(seed), self.comments)
        return self.room(number), index

    def __iter__(self) -> Iterator[Room]:
        number = 0
        while True:
            yield self.room(number)
            number += 1


def parse_generated(text: str) -> GeneratedRooms:
    """Read `generated:level=2,language=zh,split=train`; keys are those of `make_room`.

    Raises:
        ValueError: A key is unknown (the message names the nearest), stands twice, or has a value
            that it does not take.
    """
    if not text.startswith(PREFIX):
        raise ValueError(f"`{text}` names no generated rooms; write `{PREFIX}level=2,language=zh`")
    values: dict[str, Any] = {}
    for part in filter(None, map(str.strip, text.removeprefix(PREFIX).split(","))):
        key, _, value = (piece.strip() for piece in part.partition("="))
        if key not in _READERS:
            hint = did_you_mean(key, _READERS)
            raise ValueError(f"generated rooms have no key `{key}`: {', '.join(_READERS)}.{hint}")
        if key in values:
            raise ValueError(f"`{text}` gives `{key}` twice; give it once")
        values[key] = _read(key, value)
    return GeneratedRooms(**values)


def _read(key: str, value: str) -> Any:
    try:
        return _READERS[key](value)
    except (KeyError, ValueError):
        wanted = "true or false" if _READERS[key] is _truth else "a number"
        raise ValueError(f"`{key}` is `{value}`; write {wanted}") from None


def _truth(text: str) -> bool:
    return {"true": True, "false": False, "1": True, "0": False}[text.lower()]


_TYPES: dict[str, Callable[[str], Any]] = {"int": int, "float": float, "bool": _truth}
_READERS = {field.name: _TYPES.get(str(field.type), str) for field in fields(GeneratedRooms)}


def _seed(seed: SupportsIndex) -> int:
    try:
        value = -1 if isinstance(seed, bool) else operator.index(seed)
    except TypeError:
        value = -1
    if value < 0:
        raise ValueError(f"`seed` is {seed!r}; it is a whole number from 0")
    return value


def _one_of(*known: Any) -> Callable[[Any], str]:
    def check(value: Any) -> str:
        if any(type(value) is type(one) and value == one for one in known):
            return ""
        names = ", ".join(map(repr, known))
        strings = [one for one in known if isinstance(one, str)]
        return f"it is one of {names}." + (
            did_you_mean(value, strings) if isinstance(value, str) else ""
        )

    return check


def _up_to(most: int) -> Callable[[Any], str]:
    def check(value: Any) -> str:
        is_whole = isinstance(value, int) and not isinstance(value, bool)
        return "" if is_whole and 1 <= value <= most else f"it is a whole number, 1 to {most}"

    return check


def _share(value: Any) -> str:
    is_number = isinstance(value, int | float) and not isinstance(value, bool)
    return "" if is_number and 0 <= value <= 1 else "it is a share, 0 to 1"


def _truth_value(value: Any) -> str:
    return "" if isinstance(value, bool) else "it is True or False"


_CHECKS: dict[str, Callable[[Any], str]] = {
    "language": _one_of("zh", "en"),
    "split": _one_of("train", "test"),
    "level": _one_of(1, 2, 3),
    "products": _up_to(300),
    "comments": _up_to(1000),
    "near_duplicates": _share,
    "noise": _share,
    "chatter": _share,
    "events": _truth_value,
    "promotions": _truth_value,
}


def _build(rooms: GeneratedRooms, seed: int) -> Room:
    key = rooms.language, rooms.split, seed
    stock = make_goods(*key, rooms.products, rooms.near_duplicates)
    if rooms.promotions:
        ends_s = show_length(rooms.products) * 2 // 3 if rooms.events else None
        add_promotions(stock, *key, ends_s=ends_s)
    world = make_world(
        stock,
        language=rooms.language,
        split=rooms.split,
        seed=seed,
        events=rooms.events,
        room_id=_room_id(rooms, seed),
    )
    comments = write_comments(
        world,
        seed=seed,
        level=rooms.level,
        comments=rooms.comments,
        noise=rooms.noise,
        chatter=rooms.chatter,
    )
    made = tuple(map(Comment.model_validate, comments))
    origin = {"generator": "livestream_env.make_room", "seed": seed, **asdict(rooms)}
    return world.room.model_copy(update={"comments": made, "provenance": origin})


@lru_cache(maxsize=REMEMBERED)
def _remembered(rooms: GeneratedRooms, seed: int) -> Room:
    return _build(rooms, seed)


def _room_id(rooms: GeneratedRooms, seed: int) -> str:
    """Name the room by its arguments; those seldom given are hashed."""
    name = f"generated-{rooms.language}-{rooms.split}-level{rooms.level}-{seed}"
    usual = GeneratedRooms(rooms.language, level=rooms.level, split=rooms.split)
    if rooms == usual:
        return name
    values = json.dumps(asdict(rooms), sort_keys=True)
    return f"{name}-{hashlib.blake2b(values.encode(), digest_size=4).hexdigest()}"
