"""The word match of product search: what a viewer types, found in names and attributes.

A unit is a Chinese character or pair, a number, a word, or a pair of them (`xm4`, `XM 4` and `xm-4`
are one). What viewers misspell is first written as the texts that are searched write it.
"""

from __future__ import annotations

import json
import math
import re
from collections import Counter, defaultdict
from collections.abc import Collection, Iterable, Iterator, Sequence
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
    """Of 131 queries for one shop's goods in another shop, 26 reach it, most for what both sell."""

    def __init__(self, documents: Sequence[Sequence[tuple[str, float]]]) -> None:
        """Index documents, each of (text, weight) fields; the best field with a word counts."""
        self._count = len(documents)
        self._rewriter = Rewriter(text for fields in documents for text, _ in fields)
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
        for unit in _query_units(query, self._rewriter):
            held = self._postings.get(unit.text, {})
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
        least = (self.floor - 1e-4) * whole  # to round them all would cost as much as the search
        hits = {
            number: score
            for number, share in found.items()
            if share > least
            and (allowed is None or number in allowed)
            and (score := round(share / whole, 4)) >= self.floor
        }
        return ranked(hits)[: max(k, 0)]


class Rewriter:
    """Says what a query says in the words of the texts that are searched.

    What sounds or looks like one of their words becomes it: 快弟, 快di turn into 快递, chrger into
    charger; so do known short forms and, where the texts hold one of them, synonyms. Of two Chinese
    characters one has to be right, and neither a particle; of an English word the first letter,
    and all but one on either side. What the texts hold is left as it is.
    """

    def __init__(self, texts: Iterable[str]) -> None:
        folded = [fold(text) for text in texts]
        pairs = _by_frequency(_HAN_PAIR, folded)
        words = _by_frequency(_LATIN_WORD, folded)
        self._known = {*pairs, *words}
        self._by_sound: dict[str, list[str]] = {}
        for pair in pairs:
            self._by_sound.setdefault(_sound(*pair), []).append(pair)
        self._by_pinyin: dict[str, str] = {}
        for han in [*_by_frequency(_HAN_CHARACTER, folded), *pairs]:
            self._by_pinyin.setdefault("".join(map(pinyin, han)), han)
        self._by_letters: dict[str, str] = {}
        for word in words:
            for key in _shortened(word):
                self._by_letters.setdefault(key, word)
        self._synonyms = synonyms().chosen(folded)

    def rewrite(self, text: str) -> str:
        """Return the text in the words of the texts, as far as it has others for them."""
        pieces = _PIECE.findall(text)
        is_chinese = has_han(text)
        if is_chinese:
            self._repair_pairs(pieces)
        repaired = "".join(
            self._word(piece, is_chinese) if len(piece) > 1 else piece for piece in pieces
        )
        return synonyms().replace(repaired, self._synonyms) if self._synonyms else repaired

    def _repair_pairs(self, pieces: list[str]) -> None:
        particles = stop_words().particles
        right = [False] * len(pieces)
        for i, neighbours in enumerate(pairwise(pieces)):
            if "".join(neighbours) in self._known:
                right[i] = right[i + 1] = True
        for i in range(len(pieces) - 1):
            first, second = pieces[i : i + 2]
            if first in particles or second in particles:
                continue
            for pair in self._by_sound.get(_sound(first, second), ()):
                wrong = (first != pair[0], second != pair[1])
                if sum(wrong) == 1 and not right[i + wrong[1]]:
                    pieces[i : i + 2] = pair
                    right[i] = right[i + 1] = True
                    break

    def _word(self, piece: str, is_chinese: bool) -> str:
        word = piece.lower()
        if word in self._known or word in stop_words().english:
            return piece
        if is_chinese and (
            found := stop_words().short_forms.get(word) or self._by_pinyin.get(word)
        ):
            return found
        return next((w for key in _shortened(word) if (w := self._by_letters.get(key))), piece)


def _by_frequency(pattern: re.Pattern[str], texts: Iterable[str]) -> list[str]:
    counts = Counter(match for text in texts for match in pattern.findall(text))
    return sorted(counts, key=lambda found: (-counts[found], found))


class Synonyms(NamedTuple):
    """Groups of words that shops and viewers use for one thing."""

    group_of: dict[str, tuple[str, ...]]
    chinese: re.Pattern[str]
    english: re.Pattern[str]

    def chosen(self, texts: Iterable[str]) -> dict[str, str]:
        """Map each word of a group that folded texts lack to the one that they use most."""
        counts = Counter(
            match[1] for t in texts for p in (self.chinese, self.english) for match in p.finditer(t)
        )
        used = {self.group_of[word] for word in counts}
        return {
            word: max(group, key=lambda other: counts[other])
            for group in used
            for word in group
            if not counts[word]
        }

    def replace(self, text: str, chosen: dict[str, str]) -> str:
        """Write the words of `chosen` in a text as it says."""

        def other(match: re.Match[str]) -> str:
            return chosen.get(match[1].lower(), match[0])

        if not text.isascii():
            text = self.chinese.sub(other, text)
        return self.english.sub(other, text) if _LATIN.search(text) else text


@lru_cache(maxsize=1)
def synonyms() -> Synonyms:
    """Read the groups."""
    lists = json.loads(data_file("synonyms.json").read_text(encoding="utf-8"))
    chinese, english = (
        "|".join(sorted((re.escape(word) for group in lists[key] for word in group), key=_longest))
        for key in ("zh", "en")
    )
    return Synonyms(
        {word: tuple(group) for key in ("zh", "en") for group in lists[key] for word in group},
        re.compile(f"({chinese})"),
        re.compile(rf"(?<![a-z])({english})(?:e?s)?(?![a-z])", re.IGNORECASE),
    )


def _longest(word: str) -> tuple[int, str]:
    return -len(word), word


class _Unit(NamedTuple):
    """One thing to find of a query."""

    text: str
    weight: float
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


def _query_units(query: str, rewriter: Rewriter) -> list[_Unit]:
    asked = rewriter.rewrite(without_stop_phrases(fold(query[:MAX_CHARACTERS])))
    tokens = tokenize(_fold_nouns(asked))
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
    is_apart = second.gap == " " and max(len(first.text), len(second.text)) > 3  # boots 9, not xm 4
    is_loose = is_apart or kinds == {"han", "word"}  # L码
    if is_loose or first.text in particles or second.text in particles:
        return _Unit(text, 1.0, is_optional=True)
    if kinds != {"han"}:
        return _Unit(text, 1.0)
    is_last = not third.kind or (third.kind == "han" and (third.gap or third.text in particles))
    return _Unit(text, 1.0, head=second.text if is_last else "")


class StopWords(NamedTuple):
    """What a query says beside what it looks for."""

    chinese_phrases: re.Pattern[str]
    english_phrases: re.Pattern[str]
    english: frozenset[str]
    particles: frozenset[str]
    zi_nouns: re.Pattern[str]
    short_forms: dict[str, str]


@lru_cache(maxsize=1)
def stop_words() -> StopWords:
    """Read the stop lists."""
    lists = json.loads(data_file("stop_phrases.json").read_text(encoding="utf-8"))
    chinese = "|".join(sorted(map(re.escape, lists["zh"]), key=len, reverse=True))
    english = "|".join(sorted(map(re.escape, lists["en"]), key=len, reverse=True))
    return StopWords(
        re.compile(chinese),
        re.compile(rf"(?<![a-z0-9])(?:{english})(?![a-z0-9])"),
        frozenset(word for phrase in lists["en"] for word in phrase.split()),
        frozenset(lists["zh_particles"]),
        re.compile(rf"([{lists['zh_noun_before_zi']}])子"),
        lists["zh_short_forms"],
    )


def without_stop_phrases(text: str) -> str:
    """Return folded text with a blank in place of what only asks."""
    if not text.isascii():  # two patterns: one of literals alone is searched faster
        text = stop_words().chinese_phrases.sub(" ", text)
    if _LATIN.search(text):
        text = stop_words().english_phrases.sub(" ", text)
    return text


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
_LATIN = re.compile("[a-zA-Z]")
_PIECE = re.compile(rf"[{_HAN}]|[^\W\d_{_HAN}]+|.", re.DOTALL)
_HAN_CHARACTER = re.compile(rf"[{_HAN}]")


def has_han(text: str) -> bool:
    """Return whether the text holds a Chinese character."""
    return _HAN_CHARACTER.search(text) is not None


_HAN_PAIR = re.compile(rf"(?=([{_HAN}]{{2}}))")
_LATIN_WORD = re.compile(r"[a-z]{2,}")
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


def _sound(first: str, second: str) -> str:
    """Return how two characters sound, either of which may be given by its pinyin."""
    return f"{syllable(first)} {syllable(second)}"


@lru_cache(maxsize=32_768)
def syllable(character: str) -> str:
    """Return the pinyin of a character with zh, ch, sh and final ng as many say them."""
    return re.sub(r"(?<=^[zcs])h|(?<=n)g$", "", pinyin(character))


@lru_cache(maxsize=32_768)
def pinyin(character: str) -> str:
    """Return the toneless pinyin of a character; other text in small letters."""
    from pypinyin import lazy_pinyin

    return "".join(lazy_pinyin(character)).lower()


def _shortened(word: str) -> list[str]:
    """Return a long word, and what it is without one of its letters but the first."""
    if len(word) < 5:
        return []
    return [word, *(word[:i] + word[i + 1 :] for i in range(1, len(word)))]
