"""Services that a host promises beside its goods: installation, insurance, refunds, speed.

They are no claims with a value: one is promised or not, and holds where the evidence promises it
too.
"""

from __future__ import annotations

import re
import tomllib
from bisect import bisect_right
from collections.abc import Iterator
from functools import cache, lru_cache

from livestream_env._resources import data_file
from livestream_env.claim_text import lexicon, read, voids


@cache
def _pattern(language: str) -> re.Pattern[str]:
    table = tomllib.loads(data_file("claims/services.toml").read_text(encoding="utf-8"))[language]
    return re.compile("|".join(f"(?P<{name}_>{'|'.join(how)})" for name, how in table.items()))


@lru_cache(maxsize=4096)
def services(text: str, language: str) -> frozenset[str]:
    """Return the services that a text promises, by name; not those that it asks for or denies."""
    language = "zh" if language.startswith("zh") else "en"
    reading = read(text)
    matches = list(_pattern(language).finditer(reading.text))
    if not matches:
        return frozenset()
    void = [span for span in voids(reading, language) if span[2] != "condition"]
    kept = [
        match
        for match in matches
        if not any(start <= match.start() < stop for start, stop, _ in void)
        and not _is_denied(match, reading.starts, language)
    ]
    return frozenset(name for match in kept for name in _names(match))


def _names(match: re.Match[str]) -> Iterator[str]:
    groups = {key: said for key, said in match.groupdict().items() if said}
    for key in groups:
        if key.endswith("_"):
            word = groups.get("free") or groups.get("free_after") or ""
            yield f"free {word}" if key == "free_" else key[:-1]


def _is_denied(match: re.Match[str], starts: list[int], language: str) -> bool:
    words = lexicon(language)
    clause = starts[bisect_right(starts, match.start()) - 1]
    before = match.string[max(clause, match.start() - 48) : match.start()]
    window = 14 if language == "zh" else 48
    return bool(
        words["negation.void"].search(before[-window:])
        or words["negation.flip"].search(before)
        or words["negation.void_after"].match(match.string, match.end())
        or _DENIED_AFTER.match(match.string, match.end())
    )


_DENIED_AFTER = re.compile(
    "[^，,。;!?]{0,4}(?:没有|没得|不(?:支持|行|能|可以|提供|含|包|送|了|做)|做不到|暂无|无法|未开通)"
    "|[^.,;!?]{0,12}(?:(?:is|are|was)n't|not |unavailable|no longer)"
)
