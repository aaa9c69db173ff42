"""SQLite files that the processes of one host share.

SQLite's locks and its write-ahead log need a local disk: on a network file system they lose writes
without an error, so such a path is refused.
"""

from __future__ import annotations

import os
import re
import sqlite3
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from livestream_env.errors import SharedFileError

MOUNTS = Path("/proc/mounts")
BUSY_S = 30.0
_NETWORK = re.compile(
    r"nfs\d?|cifs|smb\w*|afs|ceph|lustre|glusterfs|gpfs|beegfs|pvfs2|9p|virtiofs|wekafs|vastnfs"
    r"|fuse\.(?!overlay|ntfs|exfat|portal|gvfs|snapfuse).*"
)


def network_filesystem(path: Path) -> str | None:
    """Return the type of the network file system that a path lies on; `None` for a local one."""
    try:
        lines = MOUNTS.read_text(encoding="utf-8", errors="surrogateescape").split("\n")
    except OSError:  # no Linux: nothing is known
        return None
    place = os.fsencode(path.resolve())
    kind = ""
    longest = -1
    for fields in (line.split(" ") for line in lines if line.count(" ") >= 2):
        mounted = os.fsencode(fields[1]).decode("unicode_escape").encode("latin-1")
        inside = place == mounted or place.startswith(mounted.rstrip(b"/") + b"/")
        if inside and len(mounted) >= longest:  # of two mounts on one place the later one counts
            longest, kind = len(mounted), fields[2]
    return kind if _NETWORK.fullmatch(kind) else None


@contextmanager
def open_database(path: Path, *, schema: str, application_id: int) -> Iterator[sqlite3.Connection]:
    """Open a database for one piece of work, in one transaction that locks out other writers.

    Each piece of work has its own connection, which threads and forks can never share. A new file
    gets the schema, and an application id that tells it from others.

    Raises:
        SharedFileError: the path is on a network file system, or the file is of another kind.
    """
    _refuse_network(path)
    path.parent.mkdir(parents=True, exist_ok=True)
    connection = sqlite3.connect(path, timeout=BUSY_S, isolation_level=None)
    try:
        _begin(connection)
        _prepare(connection, schema, application_id)
        yield connection
        connection.execute("COMMIT")
    except sqlite3.DatabaseError as error:
        raise SharedFileError(f"`{path}` cannot be used: {error}") from error
    finally:
        connection.close()


def _begin(connection: sqlite3.Connection) -> None:
    """Begin a transaction; SQLite itself does not wait where two processes make a file at once."""
    latest = time.monotonic() + BUSY_S
    while True:
        try:
            connection.execute("PRAGMA journal_mode = WAL")
            connection.execute("PRAGMA synchronous = NORMAL")
            connection.execute("BEGIN IMMEDIATE")
            return
        except sqlite3.OperationalError as error:
            is_busy = error.sqlite_errorcode & 0xFF == sqlite3.SQLITE_BUSY
            if not is_busy or time.monotonic() > latest:
                raise
        time.sleep(0.005)


def _prepare(connection: sqlite3.Connection, schema: str, application_id: int) -> None:
    (found,) = connection.execute("PRAGMA application_id").fetchone()
    (tables,) = connection.execute("SELECT count(*) FROM sqlite_master").fetchone()
    if found == application_id:
        return
    if found or tables:
        raise sqlite3.DatabaseError("it is a database of another kind")
    for statement in filter(str.strip, schema.split(";")):
        connection.execute(statement)
    connection.execute(f"PRAGMA application_id = {application_id}")


def _refuse_network(path: Path) -> None:
    kind = network_filesystem(path)
    if kind is not None:
        raise SharedFileError(
            f"`{path}` is on a network file system (`{kind}`), where SQLite loses writes; name a"
            " path on a local disk, and bring the files of several hosts together afterwards"
            " (`livestream-env judge cache merge`)"
        )
