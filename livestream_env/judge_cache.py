"""Answers of judges that are kept: a SQLite file for the processes of a host, JSONL recordings."""

from __future__ import annotations

import json
import os
import sqlite3
import time
from collections.abc import Iterable, Iterator
from contextlib import closing
from hashlib import sha256
from pathlib import Path
from typing import Any, NamedTuple
from urllib.parse import quote

from livestream_env.databases import network_filesystem, open_database
from livestream_env.errors import SharedFileError

APPLICATION_ID = 0x4C534A43
_SCHEMA = """
CREATE TABLE answers (
    key TEXT PRIMARY KEY, model TEXT NOT NULL, prompt TEXT NOT NULL, sample INTEGER NOT NULL,
    answer TEXT NOT NULL, prompt_tokens INTEGER NOT NULL, completion_tokens INTEGER NOT NULL
) WITHOUT ROWID;
CREATE TABLE claims (key TEXT PRIMARY KEY, owner TEXT NOT NULL, until_s REAL NOT NULL)
"""


class KeptAnswer(NamedTuple):
    """One answer that held a verdict."""

    key: str
    model: str
    prompt: str
    """Version of the prompt."""
    sample: int
    """Number of the sample; votes on one case are samples of one question."""
    answer: str
    prompt_tokens: int
    completion_tokens: int


def answer_key(
    endpoint: str,
    model: str,
    prompt: str,
    messages: Iterable[dict[str, str]],
    options: Any,
    sample: int,
) -> str:
    """Return the key of an answer: a digest of all that decides it.

    Recordings, which are read where no endpoint is, know none: `""`.
    """
    asked = [endpoint, model, prompt, list(messages), options, sample]
    text = json.dumps(asked, ensure_ascii=False, sort_keys=True, separators=(",", ":"))
    return sha256(text.encode("utf-8", "surrogatepass")).hexdigest()


class JudgeCache:
    """Answers by key, shared by the processes of one host."""

    def __init__(self, path: str | os.PathLike[str]) -> None:
        """Open or make the file.

        Raises:
            SharedFileError: it is on a network file system, or is no judge cache.
        """
        self.path = Path(path)
        with self._opened():
            pass

    def _opened(self) -> Any:
        return open_database(self.path, schema=_SCHEMA, application_id=APPLICATION_ID)

    def get_or_claim(self, key: str, owner: str, lease_s: float) -> KeptAnswer | bool:
        """Return the answer; else whether `owner` is to ask for it, which others wait for.

        A claim that is neither met nor given up ends after `lease_s`.
        """
        with self._opened() as opened:
            row = opened.execute("SELECT * FROM answers WHERE key = ?", (key,)).fetchone()
            if row is not None:
                return KeptAnswer(*row)
            now = time.time()
            opened.execute(
                "DELETE FROM claims WHERE key = ? AND (until_s < ? OR until_s > ?)",
                (key, now, now + _LONGEST_LEASE_S),
            )
            claim = (key, owner, now + min(lease_s, _LONGEST_LEASE_S))
            done = opened.execute("INSERT OR IGNORE INTO claims VALUES (?, ?, ?)", claim)
            return bool(done.rowcount)

    def put(self, kept: KeptAnswer) -> None:
        """Keep an answer, which ends the claim on it."""
        with self._opened() as opened:
            opened.execute("INSERT OR REPLACE INTO answers VALUES (?, ?, ?, ?, ?, ?, ?)", kept)
            opened.execute("DELETE FROM claims WHERE key = ?", (kept.key,))

    def give_up(self, key: str, owner: str) -> None:
        """End a claim without an answer."""
        with self._opened() as opened:
            opened.execute("DELETE FROM claims WHERE key = ? AND owner = ?", (key, owner))


_LONGEST_LEASE_S = 3600.0


class Merged(NamedTuple):
    """What came of one source."""

    source: str
    added: int
    known: int
    """Answers that the target had already."""
    differing: int
    """Those of them that differ: the target's stay."""


def merge_caches(
    target: str | os.PathLike[str], sources: Iterable[str | os.PathLike[str]]
) -> list[Merged]:
    """Add the answers of other cache files to one; what it knows already stays.

    Raises:
        FileNotFoundError: a source does not exist.
        SharedFileError: a file is no judge cache, or the target is on a network file system.
    """
    paths = [Path(source) for source in sources]
    read = {path: list(_answers_in(path)) for path in paths}
    with open_database(Path(target), schema=_SCHEMA, application_id=APPLICATION_ID) as opened:
        return [_merge(opened, str(path), answers) for path, answers in read.items()]


def _merge(opened: sqlite3.Connection, source: str, answers: list[KeptAnswer]) -> Merged:
    added = known = differing = 0
    for kept in answers:
        found = opened.execute("SELECT answer FROM answers WHERE key = ?", (kept.key,)).fetchone()
        if found is None:
            opened.execute("INSERT INTO answers VALUES (?, ?, ?, ?, ?, ?, ?)", kept)
            added += 1
        else:
            known += 1
            differing += found[0] != kept.answer
    return Merged(source, added, known, differing)


def _answers_in(path: Path) -> Iterator[KeptAnswer]:
    if not path.is_file():
        raise FileNotFoundError(f"no judge cache `{path}`")
    still = "&immutable=1" if network_filesystem(path) else ""
    try:
        url = f"file:{quote(str(path.resolve()))}?mode=ro{still}"
        with closing(sqlite3.connect(url, uri=True)) as opened:
            (found,) = opened.execute("PRAGMA application_id").fetchone()
            if found != APPLICATION_ID:
                raise SharedFileError(f"`{path}` is no judge cache")
            for row in opened.execute("SELECT * FROM answers ORDER BY key"):
                yield KeptAnswer(*row)
    except sqlite3.DatabaseError as error:
        raise SharedFileError(f"`{path}` cannot be read as a judge cache: {error}") from error


# --- recordings ------------------------------------------------------------------------------


def append_recording(path: Path, kept: KeptAnswer) -> None:
    """Add an answer to a recording, one JSON object a line."""
    line = json.dumps(kept._asdict(), ensure_ascii=False) + "\n"
    with open(path, "a", encoding="utf-8", errors="replace", newline="") as file:
        file.write(line)


def load_recording(path: str | os.PathLike[str]) -> dict[str, KeptAnswer]:
    """Return the answers of a recording by key; of several for one key the first.

    Raises:
        ValueError: a line is no recorded answer.
    """
    kept: dict[str, KeptAnswer] = {}
    with open(path, encoding="utf-8-sig", newline="\n") as file:
        for number, line in enumerate(file, 1):
            if not line.strip():
                continue
            try:
                answer = KeptAnswer(**json.loads(line))
            except (ValueError, TypeError) as error:
                raise ValueError(f"`{path}`, line {number}: no recorded answer: {error}") from error
            kept.setdefault(answer.key, answer)
    return kept
