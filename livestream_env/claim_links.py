"""Link numbers in a folded text, with where they stand: 3号链接, 1号2号, link 3, No. 7."""

from __future__ import annotations

import re
from collections.abc import Iterator

from livestream_env.claim_promises import Found
from livestream_env.words import chinese_number

_N = "(?:[0-9]{1,3}|[一二三四五六七八九十百]{1,4})"
_ENGLISH = ["one", "two", "three", "four", "five", "six", "seven", "eight", "nine", "ten"]
_ENGLISH += ["eleven", "twelve"]
_WORD = "(?:{})".format("|".join(_ENGLISH[1:]))
_LINK = re.compile(
    r"(?=[0-9一二三四五六七八九十百第链linbp#])(?:"  # a quick no for most characters
    rf"(?<![0-9.月a-z型])第?(?:{_N}\s?[、和跟与&,]\s?){{0,6}}(?<![0-9.月]){_N}\s?(?:号|#)"
    "(?!码|电池|线|楼|店|院|门|色|发|到货|截止|之?前|晚|凌晨|开播|早上|下午|上午|以前|以后|上新|补|开始|下播|左右"
    r"|库(?!存)|仓|机|位)(?:链接|宝贝|商品|产品)?"
    rf"|第{_N}[个款](?:链接|宝贝|商品)|(?<![0-9a-z]){_N}号?链接"
    r"|链接\s?[:#]?\s?[0-9]{1,3}(?!\.?[0-9])"
    rf"|(?<![a-z])(?:links?|items?|number|bag|product|listing)\s?#?\s?(?:[0-9]{{1,3}}"
    rf"|{_WORD}(?![a-z-]))(?:(?:,| and| &|, and) [0-9]{{1,3}}(?![0-9.%]| ?[a-z]))?(?!\.?[0-9])"
    r"|(?P<no>(?<![a-z])(?:no\.\s?[0-9]{1,3}|number one)(?!\.?[0-9])"
    r"|(?<![\w#])#\s?[0-9]{1,3}(?!\.?[0-9])))"
)
_LINK_NUMBER = re.compile(f"{_N}|{_WORD}")
_NO_LINK_BEFORE = re.compile(
    r"(?:[0-9][到至~-]|不是|不是第|做到|[0-9]月|小|大|中|电话|等到)\Z"
    r"|(?<![a-z])(?:pattern|style|model|part|lot|batch|room|size|shade|colou?r|page|chapter|route|order"
    r"|ticket|invoice|case|recipe|volume|issue|grade|serial|ref(?:erence)?)\s\Z"
    r"|(?<![a-z])(?:moved|bumped|pushed|put|brought|stuck|set)(?: [a-z\ue000]+){1,4} (?:to|at)\s\Z"
)
_BOASTS = re.compile(
    r"\s?(?:in|brand|selling|seller|best|choice|for|on|pick|rated)(?![a-z])|\s?品牌"
)
_RANKED = re.compile(r"(?:'re|(?<![a-z])(?:is|are|the|ranked|am|our|still|it's|as|amazon))\s\Z")


def find_links(text: str) -> Iterator[Found]:
    """Yield the link numbers named; No. 1 as a boast is an `absolute`."""
    for match in _LINK.finditer(text):
        numbers = [n for n in map(_whole, _LINK_NUMBER.findall(match[0])) if n]
        before = text[max(0, match.start() - 48) : match.start()]
        if match["no"] and (numbers or [1]) == [1]:
            if _BOASTS.match(text, match.end()) or _RANKED.search(before):
                yield Found("absolute", re.sub(r"\s", "", match[0]), *match.span())
                continue
            numbers = [1]
        if not _NO_LINK_BEFORE.search(before):
            yield from (Found("link", float(number), *match.span()) for number in numbers)


def _whole(number: str) -> int | None:
    if number in _ENGLISH:
        return _ENGLISH.index(number) + 1
    value = int(number) if number.isdecimal() else chinese_number(number)
    return int(value) if value and value <= 999 else None
