"""Many regular expressions as one that passes quickly over text where none of them begins.

`re` skips to where a match can begin only if every alternative begins with a plain character. So
each pattern is rewritten to do so: `(?:a|b)?c` becomes `ac|bc|c`, `[+加]v` becomes `\\+v|加v`, and
`(?<!x)y` becomes `y(?<!xy)`. The matches are the same; what cannot be rewritten stays as it is.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Sequence
from itertools import groupby

_ATOM = re.compile(r"\\.|\[\^?\]?(?:\\.|[^\]\\])*\]|[^\\\[\]()|]", re.DOTALL)
_REPEAT = re.compile(
    r"(?:(?P<sign>[?*+])|\{(?P<least>\d*)(?P<to>,?)(?P<most>\d*)\})(?P<mode>[+?]?)"
)
_GROUP = re.compile(r"\(\?(?::|P<\w+>)")
_MEMBER = re.compile(r"(?:\\(.)|([^\\]))(?:-(?:\\(.)|([^\\])))?", re.DOTALL)
_MOST_MEMBERS = 40
"""Characters of a class that become alternatives of their own."""


class _Unopened(Exception):
    """A pattern may begin with what is no plain character."""


_Start = tuple[str, str, str]
"""A first character, the conditions on what stands before it, and the rest of a pattern."""


def union(patterns: Sequence[str]) -> re.Pattern[str] | None:
    """Compile patterns to one that matches what the first of them that matches does."""
    try:
        return _compiled([item for pattern in patterns for item in _opened(pattern)])
    except _Unopened:
        return re.compile("|".join(f"(?:{p})" for p in patterns))


class Finder:
    """Many patterns as one, those that begin at a Latin word apart: few words begin one."""

    def __init__(self, patterns: Sequence[str]) -> None:
        try:
            starts = [item for pattern in patterns for item in _opened(pattern)]
        except _Unopened:
            starts = []
        self.word_starts = [item for item in starts if _is_word_start(item)]
        self.words = _compiled(self.word_starts)
        others = [item for item in starts if not _is_word_start(item)]
        self.others = _compiled(others) if starts else union(patterns)

    def find(self, text: str, words: Sequence[int]) -> list[re.Match[str]]:
        """Return the matches in order; `words` are the places where `word_places` lets one be."""
        found = list(self.others.finditer(text)) if self.others else []
        if not self.words or not words:
            return found
        found += filter(None, (self.words.match(text, at) for at in words))
        return sorted(found, key=lambda match: match.start())


def word_places(unions: Iterable[Finder]) -> re.Pattern[str] | None:
    """Compile what matches the first letter of each word that begins a match of some union."""
    by_first = _by_first([item for one in unions for item in one.word_starts])
    parts = [f"{first}(?<![a-z].)(?={_rest(items)})" for first, items in by_first.items()]
    return re.compile("|".join(parts)) if parts else None


def _is_word_start(start: _Start) -> bool:
    first, behind, _ = start
    return "a" <= first <= "z" and "(?<!(?:[a-z" in behind


def _compiled(starts: Sequence[_Start]) -> re.Pattern[str] | None:
    parts = (re.escape(c) + _rest(items) for c, items in _by_first(starts).items())
    return re.compile("|".join(parts)) if starts else None


def _by_first(starts: Iterable[_Start]) -> dict[str, list[tuple[str, str]]]:
    found: dict[str, list[tuple[str, str]]] = {}
    for first, behind, rest in starts:
        found.setdefault(first, []).append((behind, rest))
    return found


def quick(pattern: str) -> re.Pattern[str]:
    """Compile a pattern with named groups so that each branch is tried only where it can begin.

    Raises:
        ValueError: one may begin with more than a few characters.
    """
    try:
        branches = [(_ahead(branch), branch) for branch in _branches(pattern)]
        return re.compile(_ahead(pattern) + _either([ahead + branch for ahead, branch in branches]))
    except _Unopened as error:
        raise ValueError(f"`{pattern}` may begin with any character") from error


def _ahead(pattern: str) -> str:
    firsts = sorted({first for first, _, _ in _opened(pattern)})
    return f"(?=[{re.escape(''.join(firsts))}])"


def _rest(items: Sequence[tuple[str, str]]) -> str:
    """Join what follows one first character, in its order, each condition tested once."""
    runs = groupby(items, lambda item: item[0])
    parts = (behind + _either([rest for _, rest in run]) for behind, run in runs)
    return _either(list(parts))


def _either(parts: Sequence[str]) -> str:
    return f"(?:{'|'.join(dict.fromkeys(parts))})"


def _opened(pattern: str, behind: tuple[str, ...] = ()) -> Iterator[_Start]:
    """Yield first character, the conditions on what stands before it, and the rest, in order."""
    branches = list(_branches(pattern))
    if len(branches) > 1:
        for branch in branches:
            yield from _opened(branch, behind)
        return
    atom = _atom(pattern)
    rest = pattern[len(atom) :]
    if atom.startswith(("(?<!", "(?<=")):
        yield from _opened(rest, (*behind, atom))
        return
    if repeat := _REPEAT.match(rest):
        yield from _repeated(atom, repeat, behind)
    elif group := _GROUP.match(atom):
        for branch in _branches(atom[group.end() : -1]):
            yield from _opened(branch + rest, behind)
    else:
        for first in _firsts(atom):
            yield first, "".join(_shifted(one, first) for one in behind), rest


def _repeated(atom: str, repeat: re.Match[str], behind: tuple[str, ...]) -> Iterator[_Start]:
    """Take the first of several out: `x{0,3}y` is `xx{0,2}y` or `y`."""
    rest = repeat.string[repeat.end() :]
    least, most = _bounds(repeat)
    if repeat["mode"] and not least:
        raise _Unopened
    if most is None:
        more = f"{atom}{{{max(least - 1, 0)},}}{repeat['mode']}"
    else:
        more = f"{atom}{{{max(least - 1, 0)},{most - 1}}}{repeat['mode']}" if most > 1 else ""
    yield from _opened(atom + more + rest, behind)
    if not least:
        yield from _opened(rest, behind)


def _bounds(repeat: re.Match[str]) -> tuple[int, int | None]:
    if repeat["sign"]:
        return {"?": (0, 1), "*": (0, None), "+": (1, None)}[repeat["sign"]]
    least = int(repeat["least"] or 0)
    if repeat["to"]:
        return least, int(repeat["most"]) if repeat["most"] else None
    return least, least


def _shifted(behind: str, first: str) -> str:
    """Put a condition on what stands before a character behind that character."""
    return f"{behind[:4]}(?:{behind[4:-1]}){re.escape(first)})"


def _atom(pattern: str) -> str:
    """Return the first group, class or character of a pattern."""
    if not pattern.startswith("("):
        match = _ATOM.match(pattern)
        if match is None:
            raise _Unopened
        return match[0]
    depth = at = 0
    while at < len(pattern):
        match = _ATOM.match(pattern, at)
        if match is not None:
            at = match.end()
            continue
        depth += {"(": 1, ")": -1}.get(pattern[at], 0)
        at += 1
        if not depth:
            return pattern[:at]
    raise _Unopened


def _branches(pattern: str) -> Iterator[str]:
    """Yield the alternatives of a pattern, those inside groups not split."""
    start = at = 0
    while at < len(pattern):
        if pattern[at] == "|":
            yield pattern[start:at]
            start = at = at + 1
        else:
            at += len(_atom(pattern[at:]))
    yield pattern[start:]


def _firsts(atom: str) -> str:
    """Return what a class or character matches; digits are 0-9, since text is folded."""
    if atom == r"\d":
        return "0123456789"
    if atom.startswith("\\"):
        if atom[1].isalnum() and atom != r"\n":
            raise _Unopened
        return "\n" if atom == r"\n" else atom[1]
    if not atom.startswith("["):
        if atom[0] in ".^$(":
            raise _Unopened
        return atom
    found = ""
    for match in _MEMBER.finditer(atom[1:-1]):
        escaped, plain, last_escaped, last = match.groups()
        negated = plain == "^" and not match.start()
        if negated or (escaped and escaped.isalnum() and escaped not in "dn"):
            raise _Unopened
        if escaped == "d":
            found += "0123456789"
            continue
        low = "\n" if escaped == "n" else escaped or plain
        high = last_escaped or last or low
        found += "".join(map(chr, range(ord(low), ord(high) + 1)[: _MOST_MEMBERS + 1]))
    if not 0 < len(found) <= _MOST_MEMBERS:
        raise _Unopened
    return found
