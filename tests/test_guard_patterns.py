"""Patterns that were rewritten match what `re` makes of them as they stand."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import livestream_env as le
from livestream_env.guard_patterns import Finder, quick, union, word_places

FOLDER = Path(le.__file__).parent / "data" / "guard"
DATA = [json.loads((FOLDER / f"{name}.json").read_text(encoding="utf-8")) for name in ("zh", "en")]
BUNDLED = [
    pattern
    for data in DATA
    for kind, section in data.items()
    if kind != "negation"
    for key in ("patterns", "exceptions")
    for pattern in section.get(key, ())
]
CASES = json.loads((Path(__file__).parent / "guard_cases.json").read_text(encoding="utf-8"))
REPLIES = [case["reply"].lower() for part in CASES if part != "scenes" for case in CASES[part]]
OWN = (
    "(?:a|b)?c",
    "[+加]v",
    "(?<!x)y",
    "(?<![a-z])(?:ab|a)c{0,2}",
    "x{2}|x?y",
    "(?<=a)(?<!ba)[b-d]e",
    r"\d{1,3}%|\.a",
    "a(?:b|(?:c|d)e)?f",
    "(?:ab){1,2}c",
    r"[\]a-]b",
)


def spans(pattern: re.Pattern[str] | None, text: str) -> list[tuple[int, int]]:
    assert pattern is not None
    return [match.span() for match in pattern.finditer(text)]


@pytest.mark.parametrize("pattern", dict.fromkeys(BUNDLED))
def test_a_bundled_pattern_matches_the_same(pattern: str) -> None:
    plain, opened = re.compile(pattern), union([pattern])
    pieces = "".join(re.findall("[\u3400-\u9fffa-z]", pattern))
    for text in (*REPLIES, pieces, pieces[::-1]):
        assert spans(opened, text) == spans(plain, text)


@given(st.text("abcdefxy+加v1%.]-\n ", max_size=30))
@settings(max_examples=300, deadline=None)
def test_many_patterns_match_what_their_alternatives_do_in_order(text: str) -> None:
    plain = re.compile("|".join(f"(?:{one})" for one in OWN))
    assert spans(union(OWN), text) == spans(plain, text)
    assert spans(quick("|".join(OWN)), text) == spans(plain, text)


@given(st.text("abcdefxy+加v1%.]-\n ", max_size=30))
@settings(max_examples=300, deadline=None)
def test_words_apart_are_found_where_they_begin(text: str) -> None:
    finder = Finder(OWN)
    places = word_places([finder])
    assert places is not None
    found = finder.find(text, [match.start() for match in places.finditer(text)])
    every = [re.compile(one).match(text, at) for at in range(len(text)) for one in OWN]
    covered = {at for match in found for at in range(*match.span())}
    assert covered >= {match.start() for match in every if match}
    assert {match.span() for match in found} <= {match.span() for match in every if match}


@pytest.mark.parametrize("pattern", ["[^a]b", ".a", r"\wb", "(?=a)b", "(a)b", "^a"])
def test_what_may_begin_with_anything_stays_as_it_is(pattern: str) -> None:
    joined = union([pattern, "c"])
    for text in ("ab", "ba cb", "xa", "aa\nab", "c"):
        assert spans(joined, text) == spans(re.compile(f"(?:{pattern})|(?:c)"), text)
    with pytest.raises(ValueError, match="may begin with any character"):
        quick(pattern)


def test_no_patterns_match_nothing() -> None:
    assert union([]) is None
    assert Finder([]).find("text", []) == []
    assert word_places([Finder([])]) is None
