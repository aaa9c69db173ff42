"""Locks between the threads and processes of a host, by bytes of a file."""

from __future__ import annotations

import os
import sys
import time
import weakref
from collections.abc import Iterator
from contextlib import contextmanager
from io import FileIO
from pathlib import Path

from livestream_env.databases import network_filesystem
from livestream_env.errors import SharedFileError
from livestream_env.tools import LOCK

_POLL_S = 0.001


class ByteLocks:
    """Bytes of a file beside the recording, each held by one thread of one process at a time.

    The system frees the bytes of a process that dies. A child that is forked holds none.
    """

    def __init__(self, path: Path) -> None:
        """Open the lock file of a path.

        Raises:
            SharedFileError: it is on a network file system.
        """
        kind = network_filesystem(path)
        if kind is not None:
            raise SharedFileError(
                f"`{path}` is on a network file system (`{kind}`), where lines of several"
                " processes are lost; record on a local disk"
            )
        path.parent.mkdir(parents=True, exist_ok=True)
        name = path.with_name(path.name + ".lock")
        file = FileIO(name, "a+")
        weakref.finalize(self, file.close)
        self._file = file.fileno()
        self._held: set[int] = set()
        self._process = os.getpid()

    def try_lock(self, byte: int) -> bool:
        """Take a byte unless another thread or process holds it."""
        with LOCK:
            if self._process != os.getpid():
                self._held, self._process = set(), os.getpid()
            if byte in self._held or not _lock_byte(self._file, byte):
                return False
            self._held.add(byte)
            return True

    def unlock(self, byte: int) -> None:
        """Give a byte back."""
        with LOCK:
            if byte in self._held:
                self._held.remove(byte)
                _unlock_byte(self._file, byte)

    @contextmanager
    def held(self, byte: int) -> Iterator[None]:
        """Hold a byte, waiting for it."""
        while not self.try_lock(byte):
            time.sleep(_POLL_S)
        try:
            yield
        finally:
            self.unlock(byte)


if sys.platform == "win32":
    import msvcrt

    def _lock_byte(file: int, byte: int) -> bool:
        os.lseek(file, byte, os.SEEK_SET)
        try:
            msvcrt.locking(file, msvcrt.LK_NBLCK, 1)
        except OSError:
            return False
        return True

    def _unlock_byte(file: int, byte: int) -> None:
        os.lseek(file, byte, os.SEEK_SET)
        msvcrt.locking(file, msvcrt.LK_UNLCK, 1)
else:
    import fcntl

    def _lock_byte(file: int, byte: int) -> bool:
        try:
            fcntl.lockf(file, fcntl.LOCK_EX | fcntl.LOCK_NB, 1, byte)
        except (BlockingIOError, PermissionError):
            return False
        return True

    def _unlock_byte(file: int, byte: int) -> None:
        fcntl.lockf(file, fcntl.LOCK_UN, 1, byte)
