"""The guard's word lists: what is bundled, a user's own, and both compiled into matchers.

A lexicon is a JSON object: kind -> `words`, `patterns`, `exceptions`, `sources`, and what is done
about a finding. Patterns are regular expressions on folded text (lower case, half width,
simplified) whose repeats are all bounded, so that matching takes time linear in the text.
"""

from __future__ import annotations

import json
import os
import re
from collections import deque
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cache, cached_property
from pathlib import Path
from typing import Any, Literal

from livestream_env._resources import data_file
from livestream_env.errors import did_you_mean
from livestream_env.guard_patterns import Finder, union, word_places
from livestream_env.guard_text import View, read
from livestream_env.words import fold

Severity = Literal["low", "medium", "high"]

_LISTS = ("words", "patterns", "exceptions")
_FLAGS = ("negatable", "needs_source", "replace")
_TEXTS = ("severity", "action", "reason", "replacement")
_KEYS = (*_LISTS, *_FLAGS, *_TEXTS, "sources")
_CHOICES = {"severity": ("low", "medium", "high"), "action": ("block", "replace")}
_UNBOUNDED = re.compile(r"(?:\\.|\[(?:\\.|[^\]\\])+\]|\{\d*,\d+\}|\{\d+\}|[^*+{\\\[])*")
_OWN_WORDS = "own words"


@dataclass(frozen=True, slots=True)
class Hit:
    """One match of a kind's words or patterns, as a place in a view."""

    kind: str
    start: int
    stop: int


class Kind:
    """All that one kind of finding needs, of all languages."""

    def __init__(self, name: str, sections: Sequence[tuple[str, Mapping[str, Any]]]) -> None:
        self.name = name
        self.severity: Severity = _last(sections, "severity", "high")
        self.action: Literal["block", "replace"] = _last(sections, "action", "replace")
        self.reason: str = _last(sections, "reason", f"a word of your list `{name}`")
        self.negatable: bool = _last(sections, "negatable", False)
        self.needs_source: bool = _last(sections, "needs_source", False)
        self.replacements = {
            language: section["replacement"]
            for language, section in sections
            if "replacement" in section
        }
        self._hits = [p for _, s in sections for p in _alternatives(s)]
        self._exceptions = [p for _, s in sections for p in s.get("exceptions", ())]
        self._sources = [item for _, s in sections for item in s.get("sources", {}).items()]

    @cached_property
    def hits(self) -> Finder:
        """Match what is forbidden."""
        return Finder(self._hits)

    @cached_property
    def exceptions(self) -> re.Pattern[str] | None:
        """Match what reads like it and is not."""
        return union(self._exceptions)

    @cached_property
    def sources(self) -> tuple[tuple[re.Pattern[str], str], ...]:
        """Return what of it may be said, and the pattern of the sources that allow it."""
        return tuple((re.compile(match), source) for match, source in self._sources)

    def find(self, view: View, words: Sequence[int]) -> Iterator[Hit]:
        """Yield the places that match, exceptions left out; `words` as of `Lexicons.words`."""
        spared: deque[tuple[int, int]] | None = None
        for match in self.hits.find(view.text, words):
            if spared is None:
                found = self.exceptions.finditer(view.text) if self.exceptions else ()
                spared = deque(exception.span() for exception in found)
            while spared and spared[0][1] <= match.start():
                spared.popleft()
            if match.end() > match.start() and not _covered(match, spared):
                yield Hit(self.name, match.start(), match.end())

    def source_of(self, hit: str) -> str | None:
        """Return the pattern of what allows a hit; `None` where nothing can."""
        for match, source in self.sources:
            if match.search(hit):
                return re.escape(hit) if source == _OWN_WORDS else _numbered(source, hit)
        return re.escape(hit) if self.needs_source else None


def _covered(match: re.Match[str], spared: deque[tuple[int, int]]) -> bool:
    return bool(spared) and spared[0][0] <= match.start() < spared[0][1]


def _last(sections: Sequence[tuple[str, Mapping[str, Any]]], key: str, default: Any) -> Any:
    return next((s[key] for _, s in reversed(sections) if key in s), default)


def _alternatives(section: Mapping[str, Any]) -> list[str]:
    words = sorted({read(word).text for word in section.get("words", ())}, key=len, reverse=True)
    return [*map(_word_pattern, words), *section.get("patterns", ())]


def _word_pattern(word: str) -> str:
    """Match a word whole where it begins or ends in a Latin letter or digit, its parts hyphened."""
    before = "(?<![a-z0-9])" if re.match("[a-z0-9]", word) else ""
    after = "(?![a-z])" if re.search("[a-z0-9]$", word) else ""
    return before + "[ -]".join(map(re.escape, re.split("[ -]", word))) + after


_DIGITS = dict(zip("一二三四五六七八九十", range(1, 11), strict=True)) | {"两": 2}


def _numbered(source: str, hit: str) -> str:
    if "{number}" not in source:
        return source
    match = re.search(r"\d{1,3}|[一二两三四五六七八九十]", hit)
    value = 0 if match is None else _DIGITS.get(match[0]) or int(match[0])
    spelled = [han for han, number in _DIGITS.items() if number == value]
    return source.replace("{number}", f"(?<![\\d十])(?:{'|'.join([str(value), *spelled])})")


@dataclass(frozen=True)
class Lexicons:
    """Compiled word lists; make them once by `load_lexicons` and pass them to `check`."""

    kinds: Mapping[str, Kind]
    negated_before: re.Pattern[str]
    negated_after: re.Pattern[str]

    @cached_property
    def _words(self) -> re.Pattern[str] | None:
        return word_places(kind.hits for kind in self.kinds.values())

    def words(self, view: View) -> list[int]:
        """Return where a Latin word stands that begins a match of some kind."""
        return [match.start() for match in self._words.finditer(view.text)] if self._words else []


def load_lexicons(
    source: Lexicons | str | os.PathLike[str] | Mapping[str, Any] | None = None,
) -> Lexicons:
    """Return the bundled lists, with those of a JSON file or mapping merged in.

    A kind's lists are added to the bundled ones; `"replace": true` in a kind puts them in their
    place, and the entry `"bundled": false` leaves all bundled kinds out. A new kind is a new name.

    Raises:
        FileNotFoundError: there is no such file.
        ValueError: it breaks the format; the text names the place.
        TypeError: it is neither a path nor a mapping.
    """
    if isinstance(source, Lexicons):
        return source
    if source is None:
        return _bundled()
    name, own = _own(source)
    _check(name, own)
    return _compiled([(name, own)])


@cache
def _bundled() -> Lexicons:
    return _compiled([])


@cache
def _files() -> tuple[tuple[str, dict[str, Any]], ...]:
    paths = [(language, data_file(f"guard/{language}.json")) for language in ("zh", "en")]
    return tuple((name, json.loads(path.read_text(encoding="utf-8"))) for name, path in paths)


def _compiled(own: Sequence[tuple[str, Mapping[str, Any]]]) -> Lexicons:
    negations = [data["negation"] for _, data in _files()]
    keep = all(data.get("bundled", True) for _, data in own)
    replaced = {k for _, d in own for k, s in d.items() if k != "bundled" and s.get("replace")}
    sections: dict[str, list[tuple[str, Mapping[str, Any]]]] = {}
    for is_own, (language, data) in (
        *((False, item) for item in _files() if keep),
        *((True, item) for item in own),
    ):
        for kind, section in data.items():
            if kind in ("negation", "bundled"):
                continue
            if kind in replaced and not is_own:
                section = {k: v for k, v in section.items() if k in (*_TEXTS, "negatable")}
            sections.setdefault(kind, []).append((language, section))
    kinds = {name: Kind(name, found) for name, found in sections.items()}
    return Lexicons(kinds, *_negation(negations))


def _negation(negations: Sequence[Mapping[str, Any]]) -> tuple[re.Pattern[str], re.Pattern[str]]:
    before = "|".join(p for n in negations for p in n["before"])
    fillers = "|".join(p for n in negations for p in n["fillers"])
    after = "|".join(p for n in negations for p in n["after"])
    return re.compile(f"(?:{before})(?:{fillers}){{0,12}}\\Z"), re.compile(f"(?:{after})")


def _own(source: str | os.PathLike[str] | Mapping[str, Any]) -> tuple[str, Mapping[str, Any]]:
    if isinstance(source, Mapping):
        return "lexicons", source
    if not isinstance(source, (str, os.PathLike)):
        raise TypeError(
            f"`lexicons` is a `{type(source).__name__}`; pass the path of a JSON file, a mapping"
            " kind -> words, or what `load_lexicons` returned"
        )
    path = Path(source)
    if not path.is_file():
        raise FileNotFoundError(f"`lexicons={os.fspath(source)!r}` is no file; pass a JSON file")
    try:
        return str(path), json.loads(path.read_text(encoding="utf-8-sig"))
    except ValueError as error:
        raise ValueError(f"`{path}` is not JSON in UTF-8: {error}") from error


def _check(name: str, data: object) -> None:
    if not isinstance(data, Mapping):
        raise _fault(name, f"is a {type(data).__name__}", "an object kind -> words is expected")
    for kind, section in data.items():
        place = f"{name}.{kind}"
        if kind == "bundled":
            if not isinstance(section, bool):
                raise _fault(place, f"is {section!r}", "write true or false")
        elif kind == "negation":
            raise _fault(place, "is no kind of finding", "choose another name")
        elif not isinstance(section, Mapping):
            raise _fault(
                place, f"is a {type(section).__name__}", 'write {"words": ["..."]} for a kind'
            )
        else:
            _check_section(place, section)


def _check_section(place: str, section: Mapping[str, Any]) -> None:
    for key, value in section.items():
        at = f"{place}.{key}"
        if key not in _KEYS:
            known = ", ".join(f"`{k}`" for k in _KEYS)
            raise _fault(at, "is unknown", f"known are {known}.{did_you_mean(str(key), _KEYS)}")
        if key in _LISTS:
            _check_list(at, value, is_pattern=key != "words")
        elif key == "sources":
            _check_sources(at, value)
        elif key in _FLAGS and not isinstance(value, bool):
            raise _fault(at, f"is {value!r}", "write true or false")
        elif key in _TEXTS and (not isinstance(value, str) or not value.strip()):
            raise _fault(at, f"is {value!r}", "write text")
        elif key in _CHOICES and value not in _CHOICES[key]:
            raise _fault(at, f"is {value!r}", f"choose one of {', '.join(_CHOICES[key])}")


def _check_list(at: str, values: object, *, is_pattern: bool) -> None:
    if isinstance(values, str) or not isinstance(values, Sequence):
        raise _fault(at, f"is a {type(values).__name__}", "write a list of texts")
    for index, value in enumerate(values):
        if not isinstance(value, str) or not fold(value):
            raise _fault(f"{at}[{index}]", f"is {value!r}", "write text that is not blank")
        if is_pattern:
            check_pattern(f"{at}[{index}]", value)


def _check_sources(at: str, values: object) -> None:
    if not isinstance(values, Mapping):
        raise _fault(at, f"is a {type(values).__name__}", "write an object match -> source")
    for match, source in values.items():
        check_pattern(f"{at}[{match!r}]", match)
        if source != _OWN_WORDS:
            check_pattern(f"{at}[{match!r}]", source.replace("{number}", "1"))


def check_pattern(at: str, pattern: object) -> None:
    """Refuse a pattern that cannot be compiled, matches nothing, or repeats without bound."""
    if not isinstance(pattern, str):
        raise _fault(at, f"is {pattern!r}", "write a regular expression")
    try:
        compiled = re.compile(pattern)
    except (re.error, OverflowError) as error:
        raise _fault(at, f"`{pattern}` is no regular expression: {error}", "mend it") from error
    if compiled.match(""):
        raise _fault(at, f"`{pattern}` matches the empty text", "let it match something")
    if not _UNBOUNDED.fullmatch(pattern):
        raise _fault(
            at,
            f"`{pattern}` repeats without bound, which may take forever on long text",
            "write `{0,20}` for `*` and `{1,20}` for `+`",
        )


def _fault(place: str, problem: str, remedy: str) -> ValueError:
    return ValueError(f"`{place}` {problem}; {remedy}")
