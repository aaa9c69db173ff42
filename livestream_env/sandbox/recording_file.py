"""Recordings: what a sandbox answered, as JSON Lines that only grow.

The file may be cut anywhere: a line that cannot be read is reported and left out. All sandboxes of
a process share one reading of a file; processes agree by a lock file beside it, whose first byte
is held to append and whose others stand for the questions that are being asked.
"""

from __future__ import annotations

import difflib
import json
import os
import weakref
from collections import deque
from collections.abc import Mapping
from hashlib import blake2b
from io import FileIO
from pathlib import Path
from typing import Any

from pydantic import ValidationError

from livestream_env.sandbox.byte_locks import ByteLocks
from livestream_env.sandbox.recording_lines import (
    CallLine,
    L,
    Line,
    Place,
    ResetLine,
    line_adapter,
    line_text,
    state_digest,
)
from livestream_env.tools import LOCK
from livestream_env.types import ToolCall

_QUESTIONS = 1 << 30
_APPEND = 0


class RecordingFile:
    """The lines of one file by key, and the way to add to them; see `recording_file`."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._clear()
        self._lock: ByteLocks | None = None

    def _clear(self) -> None:
        self.openings: dict[tuple[str, tuple[str, ...]], ResetLine] = {}
        self.answers: dict[tuple[Any, ...], CallLine] = {}
        self.lines: dict[int, Line] = {}
        """Every line that can be read, by its number."""
        self.faults: dict[int, str] = {}
        """What is wrong with lines that cannot be read, by their number."""
        self.torn: int | None = None
        """Number of the last line where it is cut."""
        self._tools: dict[tuple[str, str], list[CallLine]] = {}
        self._identity: tuple[int, int] | None = None
        self._offset = self._number = 0

    def refresh(self) -> None:
        """Read what was added since the last time; all of it where the file is another.

        Raises:
            OSError: there is a file, and it cannot be read.
        """
        with LOCK:
            try:
                stat = self.path.stat()
            except FileNotFoundError:
                self._clear()
                return
            if (stat.st_dev, stat.st_ino) != self._identity or stat.st_size < self._offset:
                self._clear()
                self._identity = stat.st_dev, stat.st_ino
            if stat.st_size > self._offset:
                self._read()

    def _read(self) -> None:
        with FileIO(self.path) as file:
            file.seek(self._offset)
            *lines, tail = file.readall().split(b"\n")
        for line in lines:
            self._number += 1
            self._offset += len(line) + 1
            self._take(line, self._number)
        self.torn = None
        if self._take(tail, self._number + 1):
            self._offset += len(tail)
        else:
            self.torn = self._number + 1

    def _take(self, text: bytes, number: int) -> bool:
        """Take a line's text and return whether it could be read; of one key the first stands."""
        if not text.strip():
            return True
        try:
            line = line_adapter().validate_json(text.removeprefix(b"\xef\xbb\xbf"))
        except ValidationError as error:
            first = error.errors(include_url=False)[0]
            place = ".".join(map(str, first["loc"]))
            self.faults[number] = f"{place}: {first['msg']}" if place else first["msg"]
            return False
        self.faults.pop(number, None)
        self.lines[number] = line
        if isinstance(line, ResetLine):
            self.openings.setdefault((line.content_hash, line.comments), line)
        elif self.answers.setdefault(line.key, line) is line:
            self._tools.setdefault((line.content_hash, line.tool), []).append(line)
        return True

    def _known(self, line: L) -> L | None:
        if isinstance(line, ResetLine):
            return self.openings.get((line.content_hash, line.comments))
        return self.answers.get(line.key)

    def add(self, line: L) -> L:
        """Append a line and return it, or the one that already answers its question.

        Raises:
            SharedFileError: the file is on a network file system.
        """
        with LOCK, self._locks().held(_APPEND):
            self.refresh()
            if self._known(line) is None:
                self._append(line_text(line).encode())
                self.refresh()
            return self._known(line) or line

    def _append(self, text: bytes) -> None:
        """Write in one piece, on a line of its own whatever was cut before it."""
        with FileIO(self.path, "a+") as file:
            size = file.seek(0, os.SEEK_END)
            file.seek(max(0, size - 1))
            if file.read(1) not in (b"", b"\n"):
                text = b"\n" + text
            file.write(text)

    def nearest(self, place: Place, call: ToolCall) -> CallLine | None:
        """Return the recorded call of that tool in that room that is most like `call`.

        Of equal ones the same comments and state win, then the earlier. A call that changed the
        state fits only the state that it was made in.
        """
        digest, wanted = state_digest(place.state), _shown(call.arguments)

        def likeness(line: CallLine) -> tuple[float, bool, bool]:
            alike = difflib.SequenceMatcher(None, wanted, _shown(line.arguments)).ratio()
            return alike, line.comments == place.comments, line.state == digest

        fitting = [
            line
            for line in self._tools.get((place.content_hash, call.name), ())
            if line.result.error is None and (line.result.state is None or line.state == digest)
        ]
        return max(fitting, key=likeness, default=None)

    # --- one asks, the others wait ------------------------------------------------------------

    def claim(self, key: tuple[Any, ...]) -> bool:
        """Return whether the caller is the one to ask this question; if so, `release` it."""
        return self._locks().try_lock(_byte_of(key))

    def release(self, key: tuple[Any, ...]) -> None:
        """Let others ask this question."""
        self._locks().unlock(_byte_of(key))

    def _locks(self) -> ByteLocks:
        with LOCK:
            if self._lock is None:
                self._lock = ByteLocks(self.path)
            return self._lock


def _byte_of(key: tuple[Any, ...]) -> int:
    digest = blake2b(repr(key).encode("utf-8", "replace"), digest_size=8).digest()
    return 1 + int.from_bytes(digest, "big") % _QUESTIONS


def _shown(arguments: Mapping[str, Any]) -> str:
    return json.dumps(arguments, sort_keys=True, ensure_ascii=False)


_OPEN: weakref.WeakValueDictionary[Path, RecordingFile] = weakref.WeakValueDictionary()
_RECENT: deque[RecordingFile] = deque(maxlen=8)
"""Kept from one environment to the next."""


def recording_file(path: str | os.PathLike[str]) -> RecordingFile:
    """Return the process's one reading of a file, up to date."""
    place = Path(path).resolve()
    with LOCK:
        found = _OPEN.get(place)
        if found is None:
            found = _OPEN[place] = RecordingFile(place)
            _RECENT.append(found)
        found.refresh()
        return found
