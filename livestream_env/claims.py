"""What a text states: prices, stock, promises, products and the host's own acts.

`find_claims` reads Chinese and English by rules, in time linear in the text, and raises on no
text. It tells what is said, not whether it is true. A question, a viewer's quoted words, a
condition and a denied value state nothing.
"""

from __future__ import annotations

import re
from bisect import bisect_right
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise

from livestream_env.claim_figures import Figure
from livestream_env.claim_kinds import number_text, stating_figures
from livestream_env.claim_links import find_links
from livestream_env.claim_names import Mention, NameIndex, ProductName, name_index
from livestream_env.claim_promises import Found, Promises
from livestream_env.claim_text import (
    LINK,
    NAME,
    Reading,
    blank,
    hide_handles,
    lexicon,
    read,
    voids,
)

__all__ = ["Claim", "ProductName", "find_claims", "find_kinds"]

_ABOUT_PRODUCT = frozenset(("stock", "size", "percent", "gift", "off"))
_ABOUT_CLAUSE = frozenset(("time", "count", "shipping", "return", "warranty"))
_ABOUT_NOTHING = frozenset(("price.total", "price.threshold"))
_OF_A_SKU = frozenset(("stock", "size"))
_SAID_ONCE = frozenset(("shipping", "return", "warranty", "time", "count"))
_WITHOUT_PRODUCT = frozenset(("product", "shipping", "return"))


@dataclass(frozen=True, slots=True)
class Claim:
    """One thing that a text states."""

    kind: str
    """`price.plain` and the other kinds of price, `stock`, `count`, `time`, `size`, `percent`,
    `off`, `gift`, `shipping`, `return`, `warranty`, `product`, `link`, `absolute`, `act`,
    `abstain` or `absent`."""
    value: float | str
    """A number, or `in`, `out`, `yes`, `no`, `free`, `paid`, `3-5`, `50ml`, the word, the act."""
    unit: str | None
    """Of a time `min h d w mo y` or `s`; of a count as written."""
    product: str | None
    """The product that the statement is about."""
    sku: str | None
    """The one variant whose spec words stand with it."""
    pieces: int | None
    """How many pieces a bundle price buys."""
    approx: bool
    """Said with 大概, 左右, about."""
    text: str
    start: int
    """Where `text` stands in the original, and `stop` where it ends."""
    stop: int

    @property
    def label(self) -> str:
        """The claim in one line, such as `price.bundle:99/2@p3`, `time:3-5d` or `stock:in@p1`.

        Terms of shipping and return are written without the product that they were said of.
        """
        value = self.value if isinstance(self.value, str) else number_text(self.value)
        pieces = f"/{self.pieces}" if self.kind == "price.bundle" else ""
        is_told = self.product is not None and self.kind not in _WITHOUT_PRODUCT
        about = f"@{self.product}" if is_told else ""
        return f"{self.kind}:{'~' * self.approx}{value}{self.unit or ''}{pieces}{about}"


def find_claims(
    text: str,
    *,
    language: str,
    products: Sequence[ProductName] = (),
    current: str | None = None,
) -> tuple[Claim, ...]:
    """Find what `text` states, in the order of the text, each thing once.

    `language` is `zh` or `en`, the language of the room. `current` is the product that is meant
    where none is named.
    """
    scene = _Scene(text, language, products, current)
    claims: dict[tuple[str, str | None, str | None], Claim] = {}
    for found in sorted(scene.find(), key=lambda f: (f.start, f.stop, f.kind, str(f.value))):
        claim = scene.claim(found)
        claims.setdefault((claim.label, claim.product, claim.sku), claim)
    named = {(c.kind, c.value, c.unit) for c in claims.values() if c.product is not None}
    return tuple(
        claim
        for claim in claims.values()
        if claim.kind not in _SAID_ONCE
        or claim.product is not None
        or (claim.kind, claim.value, claim.unit) not in named
    )


def find_kinds(text: str, *, language: str, products: Sequence[ProductName] = ()) -> Iterable[str]:
    """Yield the kinds of what `find_claims` finds, one by one as they are found."""
    return (found.kind for found in _Scene(text, language, products, None).find())


_HALF = re.compile(
    "半价|对折(?!叠)|砍半(?!天)|价格?(?:直接)?减半|(?<![a-z])half (?:off|price)(?![a-z])"
)
_PURE = re.compile(  # 百分百纯棉
    "(?:百分之?百|百分之一百)(?=[的是]?[纯全真新原鲜]?[棉羊丝麻绒毛牛蚕桑果鸡鱼茶木铜铝银金橡椰])"
    "|(?<=[棉丝麻绒毛肉汁皮])[，,]?百分之?百(?=[，,。;!的]|\\Z)"
)
_LETTERS = re.compile(
    r"(?<![a-z0-9'&$/.-])(?:(?P<named>size )?"
    r"(?P<size>(?:x{0,3}s|m|l)/(?:x{0,3}l|m)|[2-6]?x{1,4}l|x{0,3}s|[2-6]xl?|[sml]|nb(?=\s?码))"
    r"(?:'s(?= (?:got|gone|sold|out|in|back|left|still|available|too|all|the)(?![a-z])))?"
    r"(?![a-z0-9'&])(?P<code>\s?[码号])?"
    r"|size(?P<several>s)? "
    r"(?P<word>[0-9]{1,2}(?:\.5)?(?!\.?[0-9]|%)|(?:x-|extra )?(?:small|medium|large)|one size)"
    r"(?![a-z])"
    r"(?P<more>(?:(?:,|,? and|,? or|/| to| through| &|-) ?[0-9]{1,2}(?:\.5)?(?!\.?[0-9]|%)){0,4}"
    r"(?(several)|(?= (?:are|is|both|were|have|sold|in|back)(?![a-z])|\s?[.!?]|\s?\Z)))?"
    r"|(?P<shoe>(?:3[4-9]|4[0-6])(?:[、,/和跟到至~-](?:3[4-9]|4[0-6])){0,4})(?=[都还全也早]{0,2}"
    r"(?:[有没断缺]货|[断缺]码|没了|卖完|[有剩就最][有剩后0-9一两三四五]|[有在](?=[，,。;!哈哦呢]|\Z)|偏[大小]))"
    r"|(?:(?<=穿)|(?<=[码鞋尺]码)|(?<=码数))(?:到|是|有|从)?(?P<worn>(?:3[4-9]|4[0-6])"
    r"(?:[到至~-](?:3[4-9]|4[0-6]))?)(?!\.?[0-9])(?=[的码就拍都有，,。]|\Z)"
    r"|(?:(?<=in a )|(?<=in )|(?<=out of )|(?<=left in ))"
    r"(?P<bare>small|medium|large|x-large|extra large)"
    r"(?=\s?[.,!?;，]|\s?\Z| (?:is|and|or|if|for|in|until|right|now|tonight))|(?P<even>均码)"
    r"|(?:\A|(?<=[.,!?;:] ))(?P<first>small|medium|large|x-large|extra large)"
    r"(?='s (?!the|a)| (?:is|i|we|has|runs|fits|only)(?![a-z])))"
)


_SIZE_GROUPS = ("size", "word", "shoe", "worn", "bare", "even", "first")
_SHOE = re.compile(r"[0-9]{1,2}(?:\.5)?")


class _Scene:
    """One text while it is searched."""

    def __init__(
        self, text: str, language: str, products: Sequence[ProductName], current: str | None
    ) -> None:
        self.original, self.current = text, current
        self.language = "zh" if language.startswith("zh") else "en"
        self.words = lexicon(self.language)
        self.index: NameIndex = name_index(tuple(products))
        self.reading: Reading = read(text)
        hide_handles(self.reading)
        self.void = bytearray(len(self.reading.text) + 1)
        """1 where nothing is stated, 2 inside a condition, 3 between quotes."""
        self.mentions: list[Mention] = []
        self._starts: list[int] = []
        self._others: list[int] = []

    def find(self) -> Iterator[Found]:
        reading = self.reading
        mentions = list(self.index.mentions(reading.text)) if self.index.products else []
        mentions = self._without_variants(mentions)
        blank(reading, [(m.start, m.stop) for m in mentions], NAME)
        for mention in mentions:
            if mention.product is not None:
                yield Found("product", mention.product, mention.start, mention.stop)
        for start, stop, kind in voids(reading, self.language):
            self.void[start:stop] = _VOIDS.get(kind, b"\1") * (stop - start)
        links = list(find_links(reading.text))
        blank(reading, [(f.start, f.stop) for f in links], LINK)
        yield from (f for f in links if self.void[f.start] in (0, 2))
        self._note(mentions, links)
        yield from self._statements()

    def _without_variants(self, mentions: list[Mention]) -> list[Mention]:
        """Drop names that are spec words of the product whose link number stands before them.

        In 3号链接100克 the weight is one of link 3's, whatever else has it in its name.
        """
        text = self.reading.text
        links = [f for f in find_links(text) if f.kind == "link"] if mentions else []
        spoken = [span for link in links for span in self._variant_words(link)]
        said = {m.start for before, m in pairwise(mentions) if self._is_said_of(before, m)}
        return [
            m
            for m in mentions
            if m.start not in said and not any(lo <= m.start < hi for lo, hi in spoken)
        ]

    def _is_said_of(self, before: Mention, mention: Mention) -> bool:
        """Tell whether words of a name only say what the product just named is: 琴是61键的."""
        if before.product is None or before.product != mention.product:
            return False
        text = self.reading.text
        return text[mention.start].isdigit() and text[before.stop : mention.start] in _SAYS_WHAT

    def _variant_words(self, link: Found) -> Iterator[tuple[int, int]]:
        """Yield where the spec words stand that follow a link number directly."""
        specs = self.index.specs(self.index.by_link.get(int(link.value)) or "")
        text, cursor = self.reading.text, link.stop
        for place, _, word in specs.said(text, cursor, cursor + _BESIDE) if specs else ():
            if text[cursor:place].strip(" 的"):
                return
            cursor = place + len(word)
            yield place, cursor

    def _note(self, mentions: list[Mention], links: list[Found]) -> None:
        """Keep where products are named, by name or link number."""
        by_link = [
            Mention(f.start, f.stop, self.index.by_link.get(int(f.value)))
            for f in links
            if f.kind == "link"
        ]
        named = (mention for mention in mentions + by_link if mention.product is not None)
        self.mentions = sorted(named, key=lambda mention: mention.start)
        self._starts = [mention.start for mention in self.mentions]
        stop = 0
        for number, mention in enumerate(self.mentions):
            if number and self.mentions[number - 1].product != mention.product:
                stop = self.mentions[number - 1].stop
            self._others.append(stop)

    def _statements(self) -> Iterator[Found]:
        """Yield promises and numbers, less what says one thing twice (100% safe, 40 in stock)."""
        promises = list(Promises(self.reading, self.language, self.void).find())
        boasts = [(f.start, f.stop) for f in promises if f.kind in ("absolute", "abstain")]
        refused = {self._clause(f.start) for f in promises if (f.kind, f.value) == _NO_RETURN}
        letters = list(self._letter_sizes())
        sizes = sorted({(f.start, f.stop) for f in letters})
        reach = 3 if self.language == "zh" else _IN_STOCK
        counted = []
        for found in self._figures():
            is_boast = _overlaps(boasts, found.start, found.stop)
            is_refused = found.kind == "time" and self._clause(found.start) in refused
            is_size = found.kind.startswith("price") and _overlaps(sizes, found.start, found.stop)
            if not (is_boast or is_refused or is_size):
                yield found
            if found.kind == "stock":
                counted.append((found.start, min(found.stop + reach, self._stop(found))))
        given: set[int] = set()
        for found in promises:
            if (found.kind, found.value) == ("gift", "yes"):  # 送琴凳送耳机 are of one product
                clause = self._clause(found.start)
                if clause in given:
                    continue
                given.add(clause)
            is_stock = (found.kind, found.value) == ("stock", "in")
            if not (is_stock and _overlaps(counted, found.start, found.stop + 3)):
                yield found
        yield from letters

    def _figures(self) -> Iterator[Found]:
        for figure in stating_figures(self.reading, self.language):
            void = self.void[figure.stop - 1]
            is_stated = not void or (void == 2 and figure.kind == "price.threshold")
            if is_stated and not self._is_of_a_name(figure):
                yield from _found(figure)
        for match in _HALF.finditer(self.reading.text):
            if not self.void[match.start()] and not self._is_denied(match.start()):
                yield Found("off", 50.0, *match.span())
        for match in _PURE.finditer(self.reading.text):
            if not self.void[match.start()] and not self._is_denied(match.start()):
                yield Found("percent", 100.0, *match.span())

    def _is_denied(self, start: int) -> bool:
        clause = self.reading.clauses[self._clause(start)]
        before = self.reading.text[max(clause.start, start - 24) : start]
        return self.words["negation.before"].search(before) is not None

    def _is_of_a_name(self, figure: Figure) -> bool:
        """Tell whether a size stands by a product whose name has it: 65W的充电器."""
        if figure.kind not in ("size", "count"):
            return False
        text = self.reading.text
        behind = text[figure.stop : figure.stop + 2].removeprefix("的").lstrip()[:1]
        is_beside = NAME in (behind, text[max(0, figure.start - 1) : figure.start])
        shown = text[figure.start : figure.stop], number_text(figure.value) + figure.name
        return is_beside and any(map(self.index.has_part, shown))

    def _letter_sizes(self) -> Iterator[Found]:
        """Yield L码, size M, S to XL."""
        for match in _LETTERS.finditer(self.reading.text):
            start = match.start()
            if self.void[start] or self._is_denied(start) or not self._is_size(match):
                continue
            word = next(
                g for g in match.group("size", "word", "shoe", "worn", "bare", "even", "first") if g
            )
            shoe = match["shoe"] or match["worn"]
            words = _SHOE.findall(shoe or match["more"] or "")
            for size in words if shoe else (word, *words):
                yield Found("size", re.sub(r"\s", "", size), *match.span())

    def _is_size(self, match: re.Match[str]) -> bool:
        """Tell whether a letter that nothing marks as a size is one: 拿L, S to XL; not 5 m."""
        if not match["size"] or match["named"] or match["code"]:
            return True
        text, start = self.reading.text, match.start()
        letter = self.original[self.reading.origin[match.end("size") - 1]]
        if not letter.isupper() or text[max(0, start - 2) : start].strip().isdigit():
            return False
        if len(match["size"]) > 1 and "/" not in match["size"]:
            return True
        behind = lexicon("zh")["sizes.letters_after"]
        return self.language == "en" or behind.match(text, match.end()) is not None

    # What a claim is about.

    def _clause(self, place: int) -> int:
        return bisect_right(self.reading.starts, place) - 1

    def _stop(self, found: Found) -> int:
        """Return where the clause of what was found ends."""
        return self.reading.clauses[self._clause(found.start)].stop

    def _about(self, found: Found) -> str | None:
        """Return the product named last before, else next in the clause, else the current one."""
        is_loose = found.kind in _ABOUT_CLAUSE
        is_about = found.kind.startswith("price") or found.kind in _ABOUT_PRODUCT or is_loose
        if found.kind in _ABOUT_NOTHING or not is_about:
            return None
        clause = self.reading.clauses[self._clause(found.start)]
        place = bisect_right(self._starts, found.start)
        if place and (not is_loose or self._starts[place - 1] >= clause.start):
            return self.mentions[place - 1].product
        if place < len(self._starts) and self._starts[place] < clause.stop:
            return self.mentions[place].product
        return None if is_loose else self.current

    def claim(self, found: Found) -> Claim:
        """Return the claim in terms of the original text."""
        origin = self.reading.origin
        start, stop = origin[found.start], origin[found.stop - 1] + 1
        about = self._about(found)
        return Claim(
            kind=found.kind,
            value=found.value,
            unit=found.unit,
            product=about,
            sku=self._sku(found, about),
            pieces=found.pieces,
            approx=found.approx,
            text=self.original[start:stop],
            start=start,
            stop=stop,
        )

    def _sku(self, found: Found, product: str | None) -> str | None:
        """Return the one variant that the spec words around fit: 黑色L码还剩3件."""
        if product is None or not (found.kind.startswith("price") or found.kind in _OF_A_SKU):
            return None
        specs = self.index.specs(product)
        if specs is None:
            return None
        clause = self.reading.clauses[self._clause(found.start)]
        reach = clause.start - _NEARBY
        if found.kind.startswith("price"):
            reach = self.reading.clauses[max(0, self._clause(found.start) - 1)].start
        start = max(reach, found.start - 2 * _NEARBY, self._other_stop(found), 0)
        said: dict[str, tuple[int, str]] = {}
        for place, dimension, value in specs.said(
            self.reading.text, start, min(clause.stop, found.stop + _NEARBY)
        ):
            if self.void[place]:
                continue
            rank = 2 if clause.start <= place < found.stop else 1 if place >= clause.start else 0
            known = said.get(dimension)
            if known is None or rank > known[0] or (rank == known[0] != 1):
                said[dimension] = rank, value
        return specs.only({dimension: value for dimension, (_, value) in said.items()})

    def _other_stop(self, found: Found) -> int:
        """Return where the last naming of another product before a claim ends."""
        place = bisect_right(self._starts, found.start)
        return self._others[place - 1] if place else 0


_VOIDS = {"condition": b"\2", "cited": b"\3"}
_SAYS_WHAT = frozenset(("是", "有", "就是", "都是", "是个", " is ", "'s ", " has "))
_NO_RETURN = ("return", "no")
_IN_STOCK = 16
"""How far behind a count words may go that only say that it is of the stock: 9 tents in stock."""
_BESIDE = 24
"""How far behind a link number the words of a variant may go."""
_NEARBY = 60
"""How far from a claim, or before its clause, its variant may be named."""


def _overlaps(spans: list[tuple[int, int]], start: int, stop: int) -> bool:
    """Tell whether one of the spans, in order and apart, overlaps a place."""
    place = bisect_right(spans, (stop - 1, stop))
    return place > 0 and spans[place - 1][1] > start


def _found(figure: Figure) -> Iterator[Found]:
    """Yield what a number states; a range of times is one claim, any other range is two."""
    value: float | str = figure.value
    unit = figure.name if figure.kind in ("time", "count") else None
    stop = figure.stop
    if figure.kind == "time":
        if figure.end_of is not None and figure.end_of.kind == "time":
            return
        if figure.partner is not None and figure.partner.kind == "time":
            value = f"{number_text(figure.value)}-{number_text(figure.partner.value)}"
            stop = figure.partner.stop
    elif figure.kind == "size":
        unit_text = "" if figure.name == "码" else figure.name
        value = figure.dimensions or number_text(figure.value) + unit_text
    yield Found(figure.kind, value, figure.start, stop, unit, figure.pieces, figure.approx)
