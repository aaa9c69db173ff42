"""Text for a terminal: widths of East Asian characters, tables, a progress line."""

from __future__ import annotations

import shutil
import sys
import threading
import time
import unicodedata
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from itertools import accumulate
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    pass

PATIENCE_S = 2.0
INTERRUPTED = 130


class UsageError(ValueError):
    """The command line asks for something that does not exist."""


@contextmanager
def progress(text: Callable[[], str]) -> Iterator[None]:
    """Say on stderr what is going on, every two seconds."""
    done = threading.Event()
    start = time.monotonic()

    def tell() -> None:
        while not done.wait(PATIENCE_S):
            print(f"{text()}, {time.monotonic() - start:.0f} s", file=sys.stderr, flush=True)

    teller = threading.Thread(target=tell, daemon=True)
    teller.start()
    try:
        yield
    finally:
        done.set()
        teller.join()


def safe_text(text: str) -> str:
    """Return the text as one line that stdout can show, control characters escaped."""
    from livestream_env.words import safe

    encoding = sys.stdout.encoding or "utf-8"
    return safe(text).encode(encoding, "backslashreplace").decode(encoding)


def safe_lines(text: str) -> str:
    """Return the text as lines that stdout can show."""
    return "\n".join(map(safe_text, text.split("\n")))


def terminal_columns(unknown: int) -> int:
    """Return the terminal's width, or `unknown` where stdout is no terminal."""
    return max(20, shutil.get_terminal_size((unknown, 24)).columns)


def _width(text: str) -> int:
    """Return the terminal columns that a text takes."""
    wide = sum(unicodedata.east_asian_width(c) in "WF" for c in text)
    return len(text) + wide - sum(unicodedata.combining(c) > 0 for c in text)


def padded(text: str, width: int) -> str:
    """Pad the text to a width."""
    return text + " " * (width - _width(text))


def cut(text: str, width: int) -> str:
    """Shorten a text to at most `width` columns, with `...` where something is lost."""
    return text if _width(text) <= width else f"{_head(text, width - 3)}..."


def _head(text: str, width: int) -> str:
    """Return the longest beginning that fits, at least one character."""
    fitting = sum(taken <= width for taken in accumulate(map(_width, text)))
    return text[: max(fitting, 1)]


def wrapped(text: str, width: int) -> list[str]:
    """Break a text into lines of at most `width` columns, the later ones indented."""
    lines = []
    while _width(text) > width:
        head = _head(text, width)
        lines.append(head)
        text = f"    {text[len(head) :]}"
    return [*lines, text]


def print_table(
    header: Sequence[str], rows: Sequence[Sequence[str]], *, title: str | None = None
) -> None:
    """Print a table whose widest columns shrink until it fits the terminal."""
    if title is not None:
        print(f"\n{len(rows)} {title}")
    cells = [header, *([safe_text(cell) for cell in row] for row in rows)]
    columns = list(zip(*cells, strict=True))
    widths = [max(map(_width, column)) for column in columns]
    room = terminal_columns(10_000) - 2 * (len(header) - 1)
    while sum(widths) > room and max(widths) > 6:
        widths[widths.index(max(widths))] -= 1
    numeric = [all(cell[:1].isdigit() or cell == "-" for cell in column[1:]) for column in columns]
    for row in cells:
        shown = [cut(cell, width) for cell, width in zip(row, widths, strict=True)]
        print("  ".join(map(_aligned, shown, widths, numeric)).rstrip())


def _aligned(text: str, width: int, is_numeric: bool) -> str:
    return " " * (width - _width(text)) + text if is_numeric else padded(text, width)
