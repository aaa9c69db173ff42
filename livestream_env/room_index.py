"""Which room a trajectory was played in: a given one, a bundled one, or a generated one, remade."""

from __future__ import annotations

import re
from collections.abc import Iterable

from livestream_env.rooms import Room

_GENERATED = re.compile(r"generated-(zh|en)-(train|test)-level([123])-(\d{1,9})")


class RoomIndex:
    """Finds rooms by name and content hash, among `rooms` or else among the bundled ones."""

    def __init__(self, rooms: Iterable[Room] | None = None) -> None:
        if rooms is None:
            from livestream_env.room_files import list_rooms, load_room

            rooms = map(load_room, list_rooms())
        self._by_hash: dict[str, Room] = {}
        self._hashes: dict[str, str] = {}
        for room in rooms:
            self._add(room)

    def find(self, name: str, content_hash: str) -> tuple[Room | None, str]:
        """Return the room, or `None` and why there is none; a generated room is made again."""
        if content_hash not in self._by_hash and (made := _generated(name)) is not None:
            self._add(made)
        if content_hash in self._by_hash:
            return self._by_hash[content_hash], ""
        if name in self._hashes and content_hash:
            given = self._hashes[name]
            return None, f"room `{name}` has content hash {given}, not {content_hash}"
        return None, f"no room `{name}` was given"

    def _add(self, room: Room) -> None:
        self._by_hash[room.content_hash] = room
        self._hashes[room.room_id] = room.content_hash


def _generated(name: str) -> Room | None:
    """Make a generated room again from its name."""
    from livestream_env.synthetic import make_room

    match = _GENERATED.fullmatch(name)
    if match is None:
        return None
    language, split, level, seed = match.groups()
    return make_room(int(seed), language=language, level=int(level), split=split)  # type: ignore[arg-type]
