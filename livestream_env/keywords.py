"""The word match of product search: what a viewer types, found in names and attributes.

A unit is a Chinese character or pair, a number, a word, or a pair of them (`xm4`, `XM 4` and `xm-4`
are one); pairs of Chinese characters also match by sound, for homophones and typos.
"""

from __future__ import annotations

import json
import math
import re
from collections import defaultdict
from collections.abc import Collection, Iterator, Sequence
from functools import lru_cache
from itertools import pairwise
from typing import NamedTuple

from livestream_env._resources import data_file
from livestream_env.words import fold

MAX_CHARACTERS = 512
"""A query is read up to here."""


def ranked(scores: dict[int, float]) -> list[tuple[int, float]]:
    """Sort (record, score) pairs: best first, equal scores by record number."""
    return sorted(scores.items(), key=lambda hit: (-hit[1], hit[0]))


class LexicalScorer:
    """Finds documents that hold the words of a query: the rarer a word, the more it counts.

    A score is the share of the query found, from 0 to 1, with question words left out.
    """

    floor = 0.4
    """Of 78 queries in three public catalogues, all for absent goods stay below 0.36."""

    def __init__(self, documents: Sequence[Sequence[tuple[str, float]]]) -> None:
        """Index documents, each of (text, weight) fields; the best field with a word counts."""
        self._count = len(documents)
        self._postings: dict[str, dict[int, float]] = {}
        for number, fields in enumerate(documents):
            for text, weight in fields:
                for unit in _document_units(text):
                    held = self._postings.setdefault(unit, {})
                    held[number] = max(weight, held.get(number, 0.0))

    def search(
        self, query: str, k: int, *, allowed: Collection[int] | None = None
    ) -> list[tuple[int, float]]:
        """Return at most `k` (document, score) pairs, best first, equal scores by number."""
        whole = 0.0
        found: defaultdict[int, float] = defaultdict(float)
        for unit in _query_units(query):
            held = self._held(unit)
            if not held and unit.is_optional:
                continue
            part = unit.weight * math.log(1 + (self._count + 1) / (len(held) + 1))
            # A Chinese noun ends in its head, which counts twice: 苹果手机 is a phone, 原味坚果 are
            # nuts. Unless only its last character is known: shops write 休闲鞋 for 耐克鞋.
            if unit.head and (held or unit.head not in self._postings):
                part *= 2
            whole += part
            for number, weight in held.items():
                found[number] += part * weight
        hits = {
            number: score
            for number, share in found.items()
            if (allowed is None or number in allowed)
            and (score := round(share / whole, 4)) >= self.floor
        }
        return ranked(hits)[: max(k, 0)]

    def _held(self, unit: _Unit) -> dict[int, float]:
        """Return the documents that hold a unit, and those that hold what sounds like it."""
        alike = self._postings.get(unit.sound, {})
        exact = self._postings.get(unit.text, {})
        return {number: 0.7 * weight for number, weight in alike.items()} | exact


class _Unit(NamedTuple):
    """One thing to find of a query."""

    text: str
    weight: float
    sound: str = ""
    is_optional: bool = False
    """Not missed where no document has it."""
    head: str = ""
    """The last character of a pair that ends a noun."""


def _document_units(text: str) -> Iterator[str]:
    tokens = tokenize(_fold_nouns(fold(text)))
    yield from (token.text for token in tokens)
    for first, second in pairwise(tokens):
        if is_pair(first, second):
            yield first.text + second.text
            if first.kind == second.kind == "han":
                yield sound_of(first, second)


def _query_units(query: str) -> list[_Unit]:
    tokens = tokenize(_fold_nouns(stop_words().pattern.sub(" ", fold(query[:MAX_CHARACTERS]))))
    units = {
        token.text: _Unit(token.text, 1.0 if token.kind == "word" else 0.3)
        for token in tokens
        if token.text not in stop_words().particles
    }
    for first, second, third in zip(tokens, tokens[1:], [*tokens[2:], _END], strict=False):
        if is_pair(first, second):
            units[first.text + second.text] = _pair_unit(first, second, third)
    return list(units.values())


def _pair_unit(first: Token, second: Token, third: Token) -> _Unit:
    text, kinds = first.text + second.text, {first.kind, second.kind}
    particles = stop_words().particles
    if first.text in particles or second.text in particles or kinds == {"han", "word"}:
        return _Unit(text, 1.0, is_optional=True)
    if kinds != {"han"}:
        return _Unit(text, 1.0)
    is_last = not third.kind or (third.kind == "han" and (third.gap or third.text in particles))
    return _Unit(text, 1.0, sound_of(first, second), head=second.text if is_last else "")


class StopWords(NamedTuple):
    """What a query says beside what it looks for."""

    pattern: re.Pattern[str]
    particles: frozenset[str]
    zi_nouns: re.Pattern[str]


@lru_cache(maxsize=1)
def stop_words() -> StopWords:
    """Read the stop lists."""
    lists = json.loads(data_file("stop_phrases.json").read_text(encoding="utf-8"))
    chinese = "|".join(sorted(map(re.escape, lists["zh"]), key=len, reverse=True))
    english = "|".join(sorted(map(re.escape, lists["en"]), key=len, reverse=True))
    return StopWords(
        re.compile(rf"{chinese}|(?<![a-z0-9])(?:{english})(?![a-z0-9])"),
        frozenset(lists["zh_particles"]),
        re.compile(rf"([{lists['zh_noun_before_zi']}])子"),
    )


def _fold_nouns(text: str) -> str:
    """Drop what colloquial nouns add: 鞋子 is 鞋, 包包 is 包."""
    return re.sub(rf"([{_HAN}])\1", r"\1", stop_words().zi_nouns.sub(r"\1", text))


class Token(NamedTuple):
    """A Chinese character, a number or a word, folded."""

    text: str
    kind: str
    """`han`, `number` or `word`."""
    gap: str
    """What stands between the token before it and this one."""


_END = Token("", "", "")
_HAN = "\u3040-\u30ff\u3400-\u9fff\uac00-\ud7af"
_TOKEN = re.compile(rf"(?P<han>[{_HAN}])|(?P<number>\d+(?:\.\d+)?)|(?P<word>[^\W\d_{_HAN}]+)")
_PLURAL = re.compile(r"(?<=ss|sh|ch)es$|(?<=[^\Ws]{3})s$")


def tokenize(text: str) -> list[Token]:
    """Split folded text into Chinese characters, numbers and words."""
    tokens, end = [], 0
    for match in _TOKEN.finditer(text):
        gap, end = text[end : match.start()], match.end()
        tokens.append(Token(_PLURAL.sub("", match[0]), match.lastgroup or "", gap))
    return tokens


def is_pair(first: Token, second: Token) -> bool:
    """Return whether two neighbours make one term: 耳机, 米8, 16升, T恤, t-shirt, xm4 (or xm 4,
    xm-4)."""
    kinds = {first.kind, second.kind}
    if kinds == {"han"}:
        return not second.gap
    if second.gap not in {"", " ", "-", "_"} or kinds == {"number"}:
        return False
    return (
        "number" in kinds
        or second.gap == "-"
        or 1 in {len(token.text) for token in (first, second) if token.kind == "word"}
    )


def sound_of(first: Token, second: Token) -> str:
    """Return how a pair of Chinese characters sounds, as a unit of its own."""
    return f"~{syllable(first.text)} {syllable(second.text)}"


@lru_cache(maxsize=32_768)
def syllable(character: str) -> str:
    """Return the toneless pinyin of a character, with zh, ch, sh and final ng as many say them."""
    from pypinyin import lazy_pinyin

    return re.sub(r"(?<=^[zcs])h|(?<=n)g$", "", "".join(lazy_pinyin(character)))
