"""What the guard reads: a reply as it is meant, however it is spelled, and what its sources say.

A `View` is a text rewritten for matching that knows where each of its characters came from.
"""

from __future__ import annotations

import json
import re
import unicodedata
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cache, cached_property, lru_cache
from itertools import islice
from typing import Any

from livestream_env._resources import data_file
from livestream_env.words import chinese_number, fold

_HAN = "\u3400-\u9fff"
_MARKS = ',。!?;:、()"“”‘’《》【】「」\\[\\]{}<>\n¥$€£@#'
_GAP = rf"(?:[^\w{_MARKS}]|[_丶丨灬])"
_GAPS = re.compile(
    rf"[\W_丶丨灬](?:(?<=[{_HAN}].)(?:(?<![{_MARKS}])|(?<=#))(?:{_GAP}|#){{0,5}}(?=[{_HAN}])"
    rf"|(?<=[a-z].)(?<![a-z][a-z].)(?<![{_MARKS}]){_GAP}{{0,2}}(?=[a-z](?![a-z]))"
    r"|(?<=  ) {0,5})",
    re.DOTALL,
)
"""What stands between two characters to keep them apart: 全.网, v.x, b e s t."""
_BREAKS = re.compile(
    rf"[\W_](?<=[{_HAN}].)(?:(?:(?<=\n)|(?<![{_MARKS}]){_GAP}{{0,2}}\n){_GAP}{{0,3}}(?=[{_HAN}])"
    rf"|[\W_]{{0,5}}(?=[{_HAN}](?:[\W_]|\Z))|(?<![^\W_]..)[\W_]{{0,5}}(?=[{_HAN}]))",
    re.DOTALL,
)
"""A line break between two characters, and whatever stands beside one that stands alone."""
_LETTER_LIKE = re.compile(r"(?<=[a-z])[@$!0-9](?=[a-z])")


@dataclass(frozen=True, slots=True)
class View:
    """A text as it is matched, and where each of its characters stands in the original."""

    text: str
    starts: Sequence[int]
    stops: Sequence[int]

    def span(self, start: int, stop: int) -> tuple[int, int]:
        """Return the place in the original of a place in `text` that is not empty."""
        return self.starts[start], self.stops[stop - 1]


def read(text: str) -> View:
    """Fold a text character by character: width, case, look-alikes, traditional, invisibles."""
    folds = _folds()
    folded = text.translate(folds)
    if folds.uneven.isdisjoint(text):
        return View(folded, range(len(text)), range(1, len(text) + 1))
    starts: list[int] = []
    stops: list[int] = []
    for at, character in enumerate(text):
        width = len(folds[ord(character)])
        starts.extend([at] * width)
        stops.extend([at + 1] * width)
    return View(folded, starts, stops)


@lru_cache(maxsize=64)
def plain(text: str) -> str:
    """Fold a whole text as `read` does, blanks made one; what a reply is compared with."""
    return fold(text).translate(_folds())


class _Folds(dict[int, str]):
    """What each character is read as, made when it is first met, for `str.translate`."""

    def __init__(self) -> None:
        self.uneven: set[str] = set()
        """Characters that are read as none or as several."""

    def __missing__(self, point: int) -> str:
        folded = _folded(chr(point))
        if len(folded) != 1:
            self.uneven.add(chr(point))
        self[point] = folded
        return folded


@cache
def _folds() -> _Folds:
    return _Folds()


def _folded(character: str) -> str:
    if character.isspace():
        return "\n" if character in "\n\x0b\x0c\x85\u2028\u2029" else " "
    kept = (c for c in fold(character) if unicodedata.category(c) not in ("Mn", "Me"))
    return "".join(map(_base, kept))


_LATIN = re.compile(
    r"(?:LATIN (?:SMALL |CAPITAL )?LETTER (?:SMALL CAPITAL )?|REGIONAL INDICATOR SYMBOL LETTER "
    r"|NEGATIVE (?:CIRCLED|SQUARED) LATIN CAPITAL LETTER )(?P<letter>[A-Z])(?: WITH .{1,60})?"
)


def _base(character: str) -> str:
    """Return the letter, character or numeral that it is a form of; it itself where it is none."""
    known = _characters()
    first = unicodedata.normalize("NFD", character)[0]
    for one in (character, first):  # a kana keeps its mark: its base is no form of anything
        if one in known:
            return known[one]
    if character.isdecimal():
        return str(unicodedata.decimal(character))
    named = None if character.isascii() else _LATIN.fullmatch(unicodedata.name(character, ""))
    return named["letter"].lower() if named else character


@cache
def _characters() -> dict[str, str]:
    found = dict(_lookalikes()["characters"])
    for character, forms in _lookalikes()["forms"].items():
        found.update(dict.fromkeys(forms, character))
    return found


@cache
def _lookalikes() -> dict[str, dict[str, str]]:
    text = data_file("guard/lookalikes.json").read_text(encoding="utf-8")
    found: dict[str, dict[str, str]] = json.loads(text)
    return found


def without_gaps(view: View) -> View:
    """Drop what stands between single characters to keep them apart."""
    return _without(_GAPS, view) or view


def without_breaks(view: View) -> View | None:
    """Drop line breaks and marks inside words too; `None` where there are none.

    One line break after no mark is inside a word, since sentences end in a mark or a blank line.
    A blank line or a mark is so only beside a character that stands alone.
    """
    places = [match.span() for match in _BREAKS.finditer(view.text)]
    places += [match.span() for match in _LINE_BREAK.finditer(view.text)]
    if not places:
        return None
    near = _near(view, sorted(places))
    joined = _without(_BREAKS, near) or near
    return View(joined.text.replace("\n", " "), joined.starts, joined.stops)


_LINE_BREAK = re.compile("\n")
_REACH = 48
"""Characters on either side of a place that a word there, and what negates it, may take."""
_ELSEWHERE = "\u30fc"
"""What stands for text that was cut out: no mark, no blank, and in no pattern."""


def _near(view: View, places: Sequence[tuple[int, int]]) -> View:
    """Keep what is in reach of some places, which are in order."""
    text: list[str] = []
    starts: list[int] = []
    stops: list[int] = []
    end = 0
    for start, stop in places:
        if start - _REACH > end:
            end = start - _REACH
            text.append(_ELSEWHERE)
            starts.append(view.starts[end])
            stops.append(view.starts[end])
        kept = slice(end, stop + _REACH)
        text.append(view.text[kept])
        starts.extend(view.starts[kept])
        stops.extend(view.stops[kept])
        end = max(end, min(stop + _REACH, len(view.text)))
    return View("".join(text), starts, stops)


def _without(dropped: re.Pattern[str], view: View) -> View | None:
    """Drop what a pattern matches; `None` where it matches nothing."""
    text: list[str] = []
    starts: list[int] = []
    stops: list[int] = []
    at = 0
    for match in dropped.finditer(view.text):
        kept = slice(at, match.start())
        text.append(view.text[kept])
        starts.extend(view.starts[kept])
        stops.extend(view.stops[kept])
        at = match.end()
    if not at:
        return None
    return View(
        "".join((*text, view.text[at:])), [*starts, *view.starts[at:]], [*stops, *view.stops[at:]]
    )


def with_letters(view: View) -> View | None:
    """Read signs inside a word as the letters they resemble; `None` where there are none."""
    places = [match.span() for match in _LETTER_LIKE.finditer(view.text)]
    if not places:
        return None
    near = _near(view, places)
    letters = _lookalikes()["letters"]
    text = _LETTER_LIKE.sub(lambda match: letters.get(match[0], match[0]), near.text)
    return View(text, near.starts, near.stops)


_HAN_NUMBER = r"[〇零一二两三四五六七八九十百千万]{1,12}+(?:点[〇零一二三四五六七八九]{1,4})?"
_NUMBER = r"(?<![\d.])(?<!\d,)(?:\d{1,3}(?:,\d{3}){1,4}(?!\d)|\d++)(?:\.\d++)?"
_EVIDENCE = re.compile(
    rf"(?P<digits>{_NUMBER})(?:块(?P<tenths>\d)(?!\d))?"
    rf"|(?P<han>{_HAN_NUMBER}(?:块(?:半|[一二三四五六七八九]))?)"
)
_MONEY = re.compile(
    rf"(?:price|价格?|金额|amount|threshold|门槛|[满减领省¥$])[\"':=\s]{{0,5}}(?P<a>{_NUMBER})"
    rf"|(?P<b>{_NUMBER})\s?(?:元|块|起|off(?![a-z]))"
)
_RATE = re.compile(
    r"(?:减|补贴|优惠|打)\d{1,2} ?%|\d ?% off|\d折|[一二三四五六七八九]折|半价"
    r"|\"(?:rate|折让比例)\"|half price|percent off"
)
_REDUCTION = re.compile(
    rf"{_RATE.pattern}|满\d{{1,6}}元?[减送]|立减|补贴|\"(?:优惠|promotions)\"|第[二2]件"
    r"|\d off(?![a-z])|领\d{1,5}元?券"
)
_SAID_BY_VIEWERS = re.compile(
    r'"(?:弹幕|观众|问题|comment|viewer|question)"\s{0,4}:\s{0,4}"(?:[^"\\]|\\.){0,2000}"'
)
_VIEWERS_LINE = re.compile(
    r'^[ \t]{0,8}"(?:历史弹幕|观众弹幕|history|comments)"[ \t]{0,4}:.*$', re.MULTILINE
)
_NAMED = re.compile(r'"(?:商品名|name|title|product_name)"\s{0,4}:\s{0,4}"((?:[^"\\]|\\.){2,120})"')
_ESCAPE = re.compile(r"\\u([0-9a-fA-F]{4})")
_MOST_AMOUNTS = 500
"""Amounts of a conversation that sums are made of."""
_DROPPED = re.compile(r"[^\w@]|_")


class Conversation:
    """The messages that a reply follows, as sources; each part is read when it is asked for."""

    def __init__(self, messages: Iterable[Any]) -> None:
        if isinstance(messages, (str, bytes, Mapping)):
            raise TypeError(
                f"`messages` is a `{type(messages).__name__}`; pass a list of OpenAI messages"
            )
        self._said = [_role_and_text(message) for message in messages]
        self._messages = messages
        self._trusts: dict[str, bool] = {}
        self._has_said: dict[str, bool] = {}
        self.allowed: dict[str, bool] = {}
        """Whether a trusted text says what a pattern matches, by pattern, as far as asked."""

    @cached_property
    def trusted(self) -> str:
        """Return what system, tools and the prompt's template say, without viewers' words."""
        parts: list[str] = []
        for role, text in self._said:
            if role in ("system", "developer", "tool", "function"):
                parts.append(_SAID_BY_VIEWERS.sub("", text))
            elif role == "user" and "\n" in text:
                parts.append(_SAID_BY_VIEWERS.sub("", _VIEWERS_LINE.sub("", text)))
        return plain(' " '.join(parts))

    @cached_property
    def evidence(self) -> str:
        """Return the text of everybody but the assistant."""
        return plain(" ; ".join(text for role, text in self._said if role != "assistant"))

    def trusts(self, letters: str) -> bool:
        """Tell whether a trusted text holds these letters and digits."""
        known = self._trusts.get(letters)
        if known is None:
            known = self._trusts[letters] = letters in self.trusted_letters
        return known

    def has_said(self, letters: str) -> bool:
        """Tell whether a user's message holds these letters and digits."""
        known = self._has_said.get(letters)
        if known is None:
            known = self._has_said[letters] = letters in self.said_letters
        return known

    @cached_property
    def trusted_letters(self) -> str:
        """Return `trusted` without blanks and punctuation, for personal data."""
        return _DROPPED.sub("", self.trusted)

    @cached_property
    def said_letters(self) -> str:
        """Return the users' texts without blanks and punctuation."""
        users = " ".join(text for role, text in self._said if role == "user")
        return _DROPPED.sub("", plain(users))

    @cached_property
    def system(self) -> str:
        """Return the system messages, as they stand."""
        return "\n".join(text for role, text in self._said if role in ("system", "developer"))

    @cached_property
    def names(self) -> tuple[str, ...]:
        """Return the names of products in system and tool messages and the prompt, without gaps."""
        found = dict.fromkeys(_NAMED.findall(self.trusted))
        return tuple(without_gaps(read(name)).text for name in found)

    @cached_property
    def tool_names(self) -> tuple[str, ...]:
        """Return the names of the tools that were called, where they look like no plain word."""
        found: dict[str, None] = {}
        for message in self._messages:
            calls = _get(message, "tool_calls") or ()
            for call in calls:
                name = str(_get(_get(call, "function") or call, "name") or "")
                if "_" in name or re.search("[a-z][A-Z]", name):
                    found[plain(name)] = None
        return tuple(found)

    @cached_property
    def numbers(self) -> frozenset[float]:
        """Return every number that somebody but the assistant states."""
        return _numbers(self.evidence)

    @cached_property
    def has_reductions(self) -> bool:
        """Whether reductions are offered, so that a total is no plain sum."""
        return _REDUCTION.search(self.evidence) is not None

    @cached_property
    def has_rates(self) -> bool:
        """Whether a reduction by a share of the price is offered."""
        return _RATE.search(self.evidence) is not None

    @cached_property
    def money(self) -> frozenset[float]:
        """Return the numbers that stand as prices, thresholds or reductions."""
        return _money(self.evidence)


@lru_cache(maxsize=64)
def _numbers(evidence: str) -> frozenset[float]:
    found: set[float] = set()
    for match in _EVIDENCE.finditer(evidence):
        if match["han"]:
            value = chinese_number(match["han"])
            found.update(() if value is None else (value,))
            continue
        found.add(float(match["digits"].replace(",", "")))
        if "," in match["digits"]:  # [1,299] may be two numbers
            found.update(float(part) for part in match["digits"].split(","))
        if match["tenths"]:
            found.add(float(f"{match['digits'].replace(',', '')}.{match['tenths']}"))
    return frozenset(round(value, 2) for value in found)


@lru_cache(maxsize=64)
def _money(evidence: str) -> frozenset[float]:
    matches = islice(_MONEY.finditer(evidence), _MOST_AMOUNTS)
    return frozenset(float((m["a"] or m["b"]).replace(",", "")) for m in matches)


def _get(message: Any, key: str) -> Any:
    return message.get(key) if isinstance(message, Mapping) else getattr(message, key, None)


def _role_and_text(message: Any) -> tuple[str, str]:
    role = _get(message, "role")
    if not isinstance(role, str):
        raise TypeError(
            f"a message is a `{type(message).__name__}` without `role`; pass OpenAI messages"
            ' such as `{"role": "user", "content": "..."}`'
        )
    content = _get(message, "content")
    if isinstance(content, (list, tuple)):
        parts = (_get(part, "text") for part in content if not isinstance(part, str))
        content = "\n".join(part for part in parts if isinstance(part, str))
    text = content if isinstance(content, str) else ""
    if "\\u" in text:  # JSON dumped as ASCII
        text = _ESCAPE.sub(lambda match: chr(int(match[1], 16)), text)
    return role, text
