"""A reply as the claim rules read it: folded, with its way back, in clauses.

Folding makes one form of what reads the same (１９９ and 199, 鏈接 and 链接, ’ and ') and remembers
where each character came from. What a clause asks, quotes or supposes is no statement: `voids`.
"""

from __future__ import annotations

import json
import re
import tomllib
import unicodedata
from bisect import bisect_right
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from functools import cache
from typing import Any, NamedTuple

from livestream_env._resources import data_file
from livestream_env.words import fold

NAME = "\ue000"
"""Stands in a reading for each character of a product's name."""
LINK = "\ue001"
"""Stands in a reading for each character of a link number."""
NUMBER = "[0-9一二两三四五六七八九十百千万半〇零]"
PIECE = "(?:{})".format(
    "|".join(
        json.loads(data_file("claims/units.json").read_text(encoding="utf-8"))["pieces"].split()
    )
)
"""A unit in which pieces are counted."""


class Lexicon(dict[str, re.Pattern[str]]):
    """The word patterns of one language at `section.name`, or `name`, compiled when first used."""

    def __init__(self, language: str) -> None:
        super().__init__()
        path = data_file(f"claims/{language}.toml")
        self.table: dict[str, Any] = tomllib.loads(path.read_text(encoding="utf-8"))

    def __missing__(self, key: str) -> re.Pattern[str]:
        section, _, name = key.rpartition(".")
        pattern = self.compile((self.table[section] if section else self.table)[name])
        self[key] = pattern
        return pattern

    def compile(self, words: str | list[str]) -> re.Pattern[str]:
        """Compile a pattern of the data file, or a list of alternatives."""
        pattern = _NAMED_WORDS.sub(lambda m: self._named(m[1]), joined(words))
        pattern = pattern.replace("[^，", "[^，。,;!?\n")
        pattern = pattern.replace("％N％", NUMBER).replace("％U％", PIECE)
        pattern = _WORD_RUN.sub(rf"[{NAME}{LINK}a-z\1]", pattern)  # a name is one of the words
        return re.compile(pattern.replace("％P％", f"[{NAME}{LINK}]"))

    def _named(self, name: str) -> str:
        return f"(?:{joined(self.table['words'][name])})"


def joined(words: str | list[str]) -> str:
    """Return alternatives of the data files as one pattern."""
    return words if isinstance(words, str) else "|".join(words)


_NAMED_WORDS = re.compile("％([a-z_]+)％")
_WORD_RUN = re.compile(r"\[a-z([^\]]*)\](?=[+{])")


@cache
def lexicon(language: str) -> Lexicon:
    """Return the word patterns of `zh` or `en`, read once."""
    return Lexicon(language)


class _Folds(dict[str, str]):
    """The folded form of each character met so far."""

    def __missing__(self, character: str) -> str:
        if unicodedata.category(character) in ("No", "Cs", "Co"):  # ① is no 1, m² no m2
            folded = " "
        elif character.isspace():
            folded = "\n" if character in "\n\r\x0b\x0c\x85\u2028\u2029" else " "
        else:
            folded = fold(character)
        if len(self) < 100_000:
            self[character] = folded
        return folded


@cache
def _folds() -> _Folds:
    table = lexicon("zh").table["traditional"]
    folds = _Folds(zip(table[::2], table[1::2], strict=True))
    kept = "，；：！？，（）～—–−－’‘“”″×✕✖￥"
    folds.update(zip(kept, '，;:!?，()~----\'\'"""xxx¥', strict=True))
    folds["*"] = "x"
    folds["½"] = ".5"
    folds["\u20e3"] = ""
    return folds


def folded(text: str) -> str:
    """Return a text as readings have it."""
    return "".join(map(_folds().__getitem__, text))


_BLANKS = re.compile("  +")
_CLAUSE_END = re.compile(
    r"[，。;!?\n]|,(?![0-9]{3}(?![0-9]))|(?<![0-9]),|(?<!no)(?<!\bvs)(?<!approx)\.(?![0-9a-z])"
)


class Clause(NamedTuple):
    """A part of a reading between two stops; `stop` is where its closing mark stands."""

    start: int
    stop: int
    mark: str


@dataclass(slots=True)
class Reading:
    """A folded text; `origin[i]` is where its character i stands in the original."""

    text: str
    origin: list[int] | range
    clauses: list[Clause]
    starts: list[int]
    plain: str
    """The text before anything in it was blanked."""


def blank(reading: Reading, spans: Iterable[tuple[int, int]], character: str) -> None:
    """Write `character` over parts of a reading, which do not overlap."""
    pieces: list[str] = []
    end = 0
    for start, stop in sorted(spans):
        if start >= end:
            pieces += reading.text[end:start], character * (stop - start)
            end = stop
    reading.text = "".join((*pieces, reading.text[end:]))


def read(original: str) -> Reading:
    """Fold a text, keep its offsets, and cut it into clauses."""
    pieces = list(map(_folds().__getitem__, original))
    text = "".join(pieces)
    origin: list[int] | range = range(len(text) + 1)
    if len(text) != len(original) or max(map(len, pieces), default=1) > 1:
        origin = [place for place, piece in enumerate(pieces) for _ in piece]
        origin.append(len(original))
    if "  " in text:
        text, origin = _single_blanks(text, origin)
    clauses = list(_clauses(text))
    return Reading(text, origin, clauses, [clause.start for clause in clauses], text)


def _single_blanks(text: str, origin: list[int] | range) -> tuple[str, list[int]]:
    kept = [i for i, c in enumerate(text) if c != " " or text[i - 1 : i] != " "]
    return "".join(text[i] for i in kept), [*(origin[i] for i in kept), origin[-1]]


def _clauses(text: str) -> Iterator[Clause]:
    start = 0
    for match in _CLAUSE_END.finditer(text):
        yield Clause(start, match.start(), match[0])
        start = match.end()
    yield Clause(start, len(text), "")


_HANDLE = re.compile(
    r"@[^\s@，。,;:!?]{1,24}(?=[\s，,:;!?。]|\Z)|@[a-z0-9_]{1,30}|https?://\S{1,200}"
)
_CODE = re.compile(r"(?<![0-9a-z.,])[0-9]{8,}(?![0-9]|,[0-9]{3}|\s?[元块])")


def hide_handles(reading: Reading) -> None:
    """Blank viewers' names, addresses and long codes: their digits say nothing."""
    if "@" in reading.text or "http" in reading.text:
        blank(reading, (match.span() for match in _HANDLE.finditer(reading.text)), "\n")
    blank(reading, (match.span() for match in _CODE.finditer(reading.text)), "#")


_QUOTES = frozenset('"「『')
_CITED = re.compile(  # 外号叫"一百块"; the guy who wrote "$15 at the mall"
    "(?:叫(?:做|它|他|她)?|外号|绰号|昵称|花名|人称|俗称|(?<!我)(?:写|问|说|刷|打)(?:着|了|过|的|什么)?)(?:是|为|:)?"
    ' ?["「『][^"「」』\n]{1,60}["」』]'
    "|(?<![a-z])(?:(?<!i )(?:wrote|typed|said|says|saying|typing|posted|asked|asking|commented)"
    "|(?:calls?|called|nicknamed|known as|named)(?: it| this| that| them)?)(?: like)?,? "
    r'"[^"\n]{1,80}"'
)

Span = tuple[int, int, str]


def voids(reading: Reading, language: str) -> list[Span]:
    """List what states nothing, each with `asks`, `quoted`, `cited` or `condition`."""
    words = lexicon(language)
    found: list[Span] = []
    for number, clause in enumerate(reading.clauses):
        body = reading.text[clause.start : clause.stop + len(clause.mark)]
        if not body.strip():
            continue
        if words["asks"].search(body):
            first = _question_start(reading, number, words, language)
            found.append((reading.clauses[first].start, clause.stop, "asks"))
        for kind in ("quoted", "others"):
            if match := words[kind].search(body):
                ends = words["quote_ends"].search(body, match.end() + 1)
                stop = clause.start + ends.start() if ends else clause.stop
                found.append((clause.start + match.start(), stop, "quoted"))
        if match := words["condition"].search(body):
            start = clause.start + match.start()
            found.append((start, clause.start + match.end(), "condition"))
        if language == "zh" and (match := words["taken_back"].search(body)):
            found.append((clause.start, clause.start + match.start(), "condition"))
    found += _taken_back(reading, words)
    if not _QUOTES.isdisjoint(reading.text):
        found += [(*match.span(), "cited") for match in _CITED.finditer(reading.text)]
    return found


def _taken_back(reading: Reading, words: Lexicon) -> Iterator[Span]:
    """Yield what is not promised, what holds for some people only, and prices that are not ours."""
    for match in words["no_promise"].finditer(reading.text):
        yield match.end(), _clause_at(reading, match).stop, "quoted"
    for match in words["only_some"].finditer(reading.text):
        yield match.start(), _clause_at(reading, match).stop, "quoted"
    for match in words["not_our_price"].finditer(reading.text):
        number = bisect_right(reading.starts, match.start()) - 1
        first = reading.clauses[_sentence_start(reading, number)]
        yield first.start, reading.clauses[number].start, "quoted"


def _clause_at(reading: Reading, match: re.Match[str]) -> Clause:
    return reading.clauses[bisect_right(reading.starts, match.start()) - 1]


def _sentence_start(reading: Reading, number: int) -> int:
    """Return the first clause of the sentence of the clause `number`, six clauses back at most."""
    first = number
    while first and reading.clauses[first - 1].mark in (",", "，"):
        first -= 1
        if number - first >= 6:
            break
    return first


def _question_start(reading: Reading, number: int, words: Lexicon, language: str) -> int:
    """Return the first clause of the question that ends with the clause `number`."""
    first = _sentence_start(reading, number)
    if first == number:
        return number
    last = reading.text[reading.clauses[number].start : reading.clauses[number].stop].lstrip()
    if words["asks_back"].match(last):
        return first if "还是" in last[:2] else number - 1
    if language == "en":
        opening = reading.text[reading.clauses[first].start : reading.clauses[first].stop]
        if words["asks_whole"].match(opening.lstrip()):
            return first
    return number
