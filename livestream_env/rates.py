"""Requests a minute that the processes of one host share."""

from __future__ import annotations

import time
from pathlib import Path

from livestream_env.databases import open_database

_RATES = "CREATE TABLE turns (name TEXT PRIMARY KEY, next_s REAL NOT NULL)"
_FURTHEST_S = 86_400.0  # a turn further ahead comes from a clock that was set back


def take_turn(path: Path, name: str, interval_s: float, longest_s: float) -> float | None:
    """Take the next turn of those that stand `interval_s` apart, and return the wait until it.

    `None` where that is longer than `longest_s`: no turn is taken then.
    """
    with open_database(path, schema=_RATES, application_id=0x4C535254) as rates:
        now = time.time()
        row = rates.execute("SELECT next_s FROM turns WHERE name = ?", (name,)).fetchone()
        turn = max(now, row[0]) if row is not None and row[0] < now + _FURTHEST_S else now
        if turn - now > longest_s:
            return None
        values = (name, turn + interval_s)
        rates.execute("INSERT OR REPLACE INTO turns VALUES (?, ?)", values)
        return float(turn - now)
