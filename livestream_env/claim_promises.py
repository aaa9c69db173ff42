"""What a reading promises, boasts, did and does not know, by the patterns of the data files."""

from __future__ import annotations

import re
from bisect import bisect_right
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from typing import NamedTuple

from livestream_env.claim_text import Reading, joined, lexicon, read

FLIPS = {
    "gift": {"yes": "no"},
    "shipping": {"free": "paid"},
    "return": {"yes": "no"},
    "warranty": {"yes": "no"},
    "stock": {"in": "out"},
}
"""What a denied promise states."""


class Found(NamedTuple):
    """A claim in terms of a reading."""

    kind: str
    value: float | str
    start: int
    stop: int
    unit: str | None = None
    pieces: int | None = None
    approx: bool = False


@dataclass(frozen=True, slots=True)
class _Rule:
    kind: str
    needs: frozenset[str]
    """Characters, in English words: where the text has none of them the rule is not tried."""
    pattern: re.Pattern[str]


@cache
def _rules(language: str) -> tuple[_Rule, ...]:
    rules = []
    for row in lexicon(language).table["promise"]:
        values = {key: words for key, words in row.items() if key not in ("kind", "needs")}
        pattern = lexicon(language).compile(
            [f"(?P<{key}>{joined(words)})" for key, words in values.items()]
        )
        rules.append(_Rule(row["kind"], frozenset(row["needs"]), pattern))
    return tuple(rules)


def may_state(kind: str, text: str, language: str) -> bool:
    """Tell whether claims of a kind of promises can be in a text: a quick look before the whole
    search, without names."""
    language = "zh" if language.startswith("zh") else "en"
    plain = read(text).text
    return any(rule.pattern.search(plain) for rule in _rules(language) if rule.kind == kind)


_WORD = re.compile(r"([a-z]+)('[a-z]+)?|100")
_BLANK = re.compile(r"\s")
_NOT_YET_OUT = re.compile(
    "(?:快|快要|马上|就要|即将|会|怕|等|随时|容易|免得|省得|别|上次|上一批|之前|曾|都快|(?<![月天年周时])前|一度|错过|差点)[^，,]{0,3}\\Z"
    "|(?:昨天|昨晚|上次|上周|之前)的[^，,]{0,4}\\Z"
    "|(?:almost|nearly|before (?:it|they|we)(?:'s|'re)?|about to(?: be)?|not|selling|will|gets?"
    "|going to be|then) \\Z"
)
_NOT_YET_IN = re.compile(
    "(?:等|一旦|会|才|何时|啥时|什么时候|即将|明天|后天|下周|once|when|until|be)[^，,]{0,3}\\Z"
)
_ONLY_ONCE_IN = re.compile(
    "(?:了)?(?:会|就|再|时|后|之后|通知|的时候|提醒|的话|我)"
    "|(?: on| by)? ?(?:next|tomorrow|soon|later|monday|tuesday|wednesday|thursday|friday|sunday)"
)


class Promises:
    """The promises of one reading."""

    def __init__(self, reading: Reading, language: str, void: bytearray) -> None:
        self.reading, self.language, self.void = reading, language, void
        self.words = lexicon(language)
        self._window = 14 if language == "zh" else 48
        self._asked: list[tuple[str, str, int]] = []

    def find(self) -> Iterator[Found]:
        """Yield what is promised, and what a question and its own answer promise."""
        text = self.reading.text
        there = _words(text) if self.language == "en" else frozenset(text)
        for rule in _rules(self.language):
            if not rule.needs.isdisjoint(there):
                for match in rule.pattern.finditer(text):
                    yield from self._promise(rule.kind, match)
        yield from self._answers()

    def _promise(self, kind: str, match: re.Match[str]) -> Iterator[Found]:
        value, (start, stop) = match.lastgroup or "yes", match.span()
        if "v1" in match.re.groupindex and match["v1"]:
            start, stop = match.span("v1")
        clause = bisect_right(self.reading.starts, start) - 1
        if self.void[start]:
            if self.void[start] == 1 and value in FLIPS.get(kind, ()):
                self._asked.append((kind, value, clause))
            return
        before = match.string[max(self.reading.clauses[clause].start, start - 48) : start]
        stated = self._stated(kind, value, match, before)
        if stated is not None:
            word = _BLANK.sub("", match.string[start:stop])
            if (kind, stated) == ("gift", "yes"):
                start, stop = self._whole_gift(start, stop)
            yield Found(kind, word if kind == "absolute" else stated, start, stop)

    def _whole_gift(self, start: int, stop: int) -> tuple[int, int]:
        """Return where all the words of a gift stand, what is given for what: 买一送一."""
        text, clauses, starts = self.reading.text, self.reading.clauses, self.reading.starts
        first = clauses[bisect_right(starts, start) - 1].start
        last = max(stop, clauses[bisect_right(starts, stop - 1) - 1].stop)
        before = self.words["gift.before"].search(text, max(first, start - 16), start)
        after = self.words["gift.after"].match(text, stop, last)
        return before.start() if before else start, after.end() if after else stop

    def _stated(self, kind: str, value: str, match: re.Match[str], before: str) -> str | None:
        """Return what is stated in view of the words around, None for nothing."""
        if kind in ("abstain", "absent"):
            return "yes"
        if kind == "act":
            is_done = self._is_done_en if self.language == "en" else self._is_done_zh
            return value if is_done(match, before) else None
        if self.words["negation.void"].search(before[-self._window :]):
            return None
        if self.words["negation.void_after"].match(match.string, match.end()):
            return None
        if self.words["negation.flip"].search(before):
            return FLIPS.get(kind, {}).get(value)
        if kind == "stock" and value == "out" and _NOT_YET_OUT.search(before):
            return None
        if kind == "stock" and value == "in" and self._is_later(match, before):
            return None
        return value

    def _is_later(self, match: re.Match[str], before: str) -> bool:
        is_once = _ONLY_ONCE_IN.match(match.string, match.end())
        return bool(is_once or _NOT_YET_IN.search(before))

    def _is_done_en(self, match: re.Match[str], before: str) -> bool:
        return self.words["acts.future"].search(before) is None

    def _is_done_zh(self, match: re.Match[str], before: str) -> bool:
        """Tell whether the host says that it did something, not that it will or could."""
        words, before = self.words, before[-self._window :]
        if words["acts.inside_not"].search(match[0]):
            return False
        if words["acts.done_before"].search(before):
            return True
        behind = words["acts.done_after"].match(match.string, match.end())
        is_done = words["acts.inside"].search(match[0]) or behind
        if not is_done or words["acts.future"].search(before):
            return False
        return bool(words["acts.own"].search(before) or not words["acts.addressed"].search(before))

    def _answers(self) -> Iterator[Found]:
        """Yield what a question and its own answer state: 包邮吗？包的."""
        for kind, value, number in self._asked:
            for clause in self.reading.clauses[number + 1 : number + 2]:
                for answer, stated in (("no", FLIPS[kind][value]), ("yes", value)):
                    pattern = self.words[f"answers.{answer}"]
                    match = pattern.match(self.reading.text, clause.start, clause.stop)
                    if match and match[0] and not self.void[match.start()]:
                        yield Found(kind, stated, *match.span())
                        break


def _words(text: str) -> frozenset[str]:
    """Return the words of a text; it's is there as itself and as it."""
    matches = list(_WORD.finditer(text))
    return frozenset(m[0] for m in matches) | frozenset(m[1] or "" for m in matches)
