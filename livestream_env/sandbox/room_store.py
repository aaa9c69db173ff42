"""The rooms of a server: those of its folder, read again when files change, and uploaded ones.

Every room loses its key on the way in, so no answer can hold any of it.
"""

from __future__ import annotations

import logging
import os
import threading
import time
from collections import OrderedDict
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from livestream_env.errors import RoomError
from livestream_env.room_files import read_room, validate_room
from livestream_env.rooms import Room, strip_room

RESCAN_S = 1.0
LOG = logging.getLogger("livestream_env.server")


class RoomsFull(Exception):
    """No room can be taken any more: those that are here are in use."""


class WrongHash(ValueError):
    """A room is not the one that its hash names."""


@dataclass(slots=True)
class _Upload:
    room: Room
    size: int
    used_s: float


class RoomStore:
    """Rooms by content hash; uploads that nobody used for `keep_s` make place for others."""

    def __init__(
        self,
        rooms: str | os.PathLike[str] | Iterable[Room] | None,
        *,
        uploads: bool,
        max_rooms: int,
        max_bytes: int,
        keep_s: float,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.uploads = uploads
        self._max_rooms, self._max_bytes, self._keep_s = max_rooms, max_bytes, keep_s
        self._clock = clock
        self._lock = threading.Lock()
        self._uploaded: OrderedDict[str, _Upload] = OrderedDict()
        self._folder: Path | None = None
        self._files: dict[Path, tuple[tuple[int, int], Room | None]] = {}
        self._served: dict[str, Room] = {}
        self._scanned_s = float("-inf")
        if isinstance(rooms, (str, os.PathLike)):
            self._folder = Path(rooms)
            if not self._folder.is_dir():
                raise FileNotFoundError(f"`{self._folder}` is no folder of room files")
            self.rescan()
        elif rooms is not None:
            self._served = {room.content_hash: strip_room(room) for room in rooms}

    def served(self) -> list[Room]:
        """Return the rooms of the server's own."""
        return list(self._served.values())

    def uploaded(self) -> list[Room]:
        """Return the rooms that clients sent."""
        with self._lock:
            return [upload.room for upload in self._uploaded.values()]

    def find(self, content_hash: str) -> Room | None:
        """Return the room of that hash, as far as is known; `rescan` may know more."""
        served = self._served.get(content_hash)
        if served is not None:
            return served
        with self._lock:
            upload = self._uploaded.get(content_hash)
            if upload is None:
                return None
            upload.used_s = self._clock()
            self._uploaded.move_to_end(content_hash)
            return upload.room

    def file_of(self, room_id: str) -> Path | None:
        """Return the file of the folder's room of that id, for what may read its key."""
        held = ((path, room) for path, (_, room) in self._files.items() if room is not None)
        return next((path for path, room in held if room.room_id == room_id), None)

    def is_stale(self) -> bool:
        """Return whether the folder is worth another look."""
        return self._folder is not None and self._clock() - self._scanned_s > RESCAN_S

    def rescan(self) -> None:
        """Read the files that are new or changed since the last look; one that cannot be read
        leaves its room as it was."""
        assert self._folder is not None
        self._scanned_s = self._clock()
        files: dict[Path, tuple[tuple[int, int], Room | None]] = {}
        for path in sorted(self._folder.glob("*.json")):
            try:
                told = path.stat()
            except OSError:  # it has just gone
                continue
            known = self._files.get(path)
            mark = (told.st_mtime_ns, told.st_size)
            files[path] = known if known and known[0] == mark else (mark, _read(path, known))
        self._files = files
        self._served = {room.content_hash: room for _, room in files.values() if room is not None}

    def add(
        self, content_hash: str, raw: Mapping[str, Any], size: int
    ) -> Literal["created", "known"]:
        """Take a room that a client sent.

        Raises:
            RoomError: it breaks the schema.
            WrongHash: it is another room than the hash says.
            RoomsFull: there is no place.
        """
        if self.find(content_hash) is not None:
            return "known"
        room = strip_room(validate_room(raw))
        if room.content_hash != content_hash:
            raise WrongHash(f"the room's hash is {room.content_hash}, not {content_hash}")
        with self._lock:
            if content_hash not in self._uploaded:
                self._make_place(size)
                self._uploaded[content_hash] = _Upload(room, size, self._clock())
        return "created"

    def _make_place(self, size: int) -> None:
        while self._uploaded and not self._fits(size):
            oldest = next(iter(self._uploaded.values()))
            if self._clock() - oldest.used_s < self._keep_s:
                break
            self._uploaded.popitem(last=False)
        if not self._fits(size):
            raise RoomsFull(
                f"{len(self._uploaded)} rooms are uploaded and in use, of at most"
                f" {self._max_rooms} and {self._max_bytes} bytes"
            )

    def _fits(self, size: int) -> bool:
        total = sum(upload.size for upload in self._uploaded.values())
        return len(self._uploaded) < self._max_rooms and total + size <= self._max_bytes


def _read(path: Path, known: tuple[tuple[int, int], Room | None] | None) -> Room | None:
    try:
        return strip_room(read_room(path).room)
    except RoomError as error:
        LOG.warning("a room file is left out: %s", error)
        return known[1] if known else None


def with_id(rooms: Sequence[Room], room_id: str) -> Room | None:
    """Return the first of these rooms that has this id."""
    return next((room for room in rooms if room.room_id == room_id), None)
