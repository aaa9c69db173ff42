"""Products named in a text: whole, or by a part that fits one of them only.

A part is a run of a name's tokens (a Chinese character, a Latin word, a number). A run that several
products share names none, and common words (每日, free) name one only where they set it apart from
a sibling (标准版 beside Pro).
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from dataclasses import dataclass, field
from functools import cache, lru_cache
from itertools import pairwise
from typing import NamedTuple

from livestream_env._resources import data_file
from livestream_env.claim_text import NUMBER, PIECE, folded
from livestream_env.rooms import Sku
from livestream_env.words import chinese_number


@dataclass(frozen=True, slots=True)
class ProductName:
    """What a product may be called in a text."""

    product_id: str
    name: str
    link_no: int | None = None
    skus: tuple[Sku, ...] = field(default=(), hash=False)


class Mention(NamedTuple):
    """A product named at a place; `product` is None where the words fit several."""

    start: int
    stop: int
    product: str | None


_HAN = "\u3400-\u9fff\U00020000-\U0003ffff"
_TOKEN = re.compile(
    rf"(?P<latin>[a-z]+)|(?P<number>[0-9]+(?:\.[0-9]+)?)"
    rf"|(?P<spoken>[一二两三四五六七八九十百]+(?:点[一二三四五六七八九])?(?=公?[升斤]|毫升|瓦|[罐粒支条袋枚片瓶盒只米寸]))|[{_HAN}]"
)
_UNITS = {"g": "克", "kg": "公斤", "ml": "毫升", "l": "升", "cm": "厘米", "w": "瓦", "mah": "毫安"}
_JOINTS = frozenset(("", " ", "-", "/", "+", "·", "&", " & ", "'", ", "))
_LONGEST_PART = 24
_LONGEST_NAME = 120

_PLAIN = re.compile(
    r"(?<![a-z])(?:plain|regular|normal|standard|basic|base|non-pro) \Z"
    r"|(?:普通|基础|标准)[的款版]?的?\Z"
)

# What makes a common word name the one product that has it: 静音的那台, the cream, Case is $9.
_HAN_POINTED = re.compile("的?[那这]?[款个台件种版只双条](?!月|人|小时|星期)|的[那这]")
_SIZE_POINTED = re.compile("的(?!时候|话|量)|[那这]?[款个台件版]")
_HAN_THING_BEFORE = re.compile(
    f"(?:[这那本][把个双条床台款件只口顶支瓶张套盏]|(?:是|拍了|要了|买了|[和跟加、]){NUMBER}{PIECE})\\Z"
)
_HAN_START = re.compile(r"(?:\A|[，。,.!?;:\n ])\Z")
_HAN_SAYS = re.compile(
    f"[一每]{PIECE}|是|[也都还就挺很太只][是有能要不]|[有能可](?!邮)|不[会能怕用]|今[天晚]|现在|不包|包邮"
)
_LATIN_POINTING = re.compile(r"(?<![a-z])(?:the|this|that|these|those|our|each|every)\s\Z")
_CLAUSE_START = re.compile(r"(?:\A|[.,!?;:\n])\s?\Z")
_LATIN_GOES_ON = re.compile(
    r"'s(?![a-z])|\s(?:is|are|has|have|comes?|runs?|fits?|sold|ships?|costs?|was|were|goes|starts?"
    r"|weighs|lasts|holds)(?![a-z])"
)
_LATIN_ITS_OWN = re.compile(  # with a cotton wick, trim the wick
    r"(?<![a-z])(?:(?:with|has|have|is|of|in) an? (?:[a-z]+ )?"
    r"|(?:trim|clean|wash|rinse|charge|empty|cut|wipe|soak|light|burn|dry|warm|shake)"
    r" (?:the|your|its) )\Z"
)
_CONTENTS = re.compile(  # has seven frames: what a thing has, not another product
    r"(?<![a-z])(?:has|have|with|includes?|contains?|plus|fits|holds|in) (?:about |up to )?"
    r"(?:[0-9.]+(?: ?(?:oz|ml|inch|lb|g|l|mm|cm|ft|qt|gallon|liter))?"
    r"|two|three|four|five|six|seven|eight|nine|ten|twelve) \Z"
)
_ON_OFFER = re.compile(r" (?:left|in stock|available|remaining|here|for|at|to go)(?![a-z])")
_OTHER_THINGS = frozenset(
    "枕被垫套杯盒鞋帽衣裤裙袜巾布纸笔灯锅壶碗盘刀膜霜油粉茶酒糖糕饼椅桌柜箱罩毯"
)
_COUNTED = frozenset("倍元块个件折天年月斤%分盒支条包瓶只双档层")
_SHARE_OF = re.compile("%(?:[\u4e00-\u9fff]{0,2}| (?:pure |real )?)\\Z")
_OF_SIZE = re.compile(r"(?<![0-9.])([0-9]+(?:\.[0-9]+)?)[\u4e00-\u9fffa-z]{0,2}的\Z")
_ONE = re.compile(r"\sones?(?![a-z])")


@dataclass(frozen=True, slots=True)
class _Words:
    """The words that alone name nothing."""

    han: re.Pattern[str]
    stop: frozenset[str]
    generic: frozenset[str]
    weak_heads: frozenset[str]
    containers: frozenset[str]
    never: frozenset[str]
    spoken: str


@cache
def _words() -> _Words:
    table = json.loads(data_file("claims/names.json").read_text(encoding="utf-8"))
    han = "|".join(sorted(map(re.escape, table["zh_generic"].split()), key=len, reverse=True))
    stop, generic, weak, containers = (
        frozenset(map(_stem, table[key].split()))
        for key in ("en_stop", "en_generic", "en_weak_heads", "en_containers")
    )
    never = frozenset(table["zh_never"].split())
    return _Words(
        re.compile(f"(?:{han})+"), stop, generic, weak, containers, never, table["zh_spoken"]
    )


def _stem(word: str) -> str:
    """Return the singular of an English word, near enough: dresses, berries, knives, mats."""
    if len(word) <= 3 or not word.endswith("s") or word.endswith("ss"):
        if len(word) > 4 and word.endswith("ie"):  # hoodie as of hoodies
            return word[:-2] + "y"
        return word[:-1] if word.endswith("fe") else word
    for ending, singular in (("ies", "y"), ("ves", "f")):
        if word.endswith(ending) and len(word) > 4:
            return word[:-3] + singular
    is_long = word.endswith(("ches", "shes", "xes", "sses", "zes"))
    return word[:-2] if is_long else word[:-1]


Token = tuple[str, int, int]
Part = tuple[str, ...]


def _tokens(text: str) -> list[Token]:
    """Cut a folded text into words, with where they stand; 50g reads as 50克."""
    found: list[Token] = []
    was_number = False
    for match in _TOKEN.finditer(text):
        word, (start, stop) = match[0], match.span()
        if match["spoken"] and (value := chinese_number(word)):
            word = f"{value:g}"
        if was_number and word in _UNITS:
            found += [(character, start, stop) for character in _UNITS[word]]
        else:
            found.append((_stem(word) if match["latin"] else word, start, stop))
        was_number = match["number"] is not None or match["spoken"] is not None
    return found


class Specs:
    """The words that tell one product's variants apart."""

    def __init__(self, skus: tuple[Sku, ...]) -> None:
        self._skus = [
            (sku.sku_id, {folded(name): _spec(value) for name, value in sku.spec.items()})
            for sku in skus
        ]
        self._dimensions: dict[str, str] = {}
        for _, spec in self._skus:
            self._dimensions.update({value: name for name, value in spec.items() if value})
        values = sorted(self._dimensions, key=len, reverse=True)
        self._pattern = re.compile("|".join(map(_whole_word, values)) or "$^")

    def said(self, text: str, start: int, stop: int) -> Iterator[tuple[int, str, str]]:
        """Yield where spec words stand, what they are about (颜色) and the word (黑色)."""
        for match in self._pattern.finditer(text, start, stop):
            yield match.start(), self._dimensions[match[0]], match[0]

    def only(self, said: dict[str, str]) -> str | None:
        """Return the one variant that has all the values said, None for none or several."""
        fitting = [i for i, spec in self._skus if said and said.items() <= spec.items()]
        return fitting[0] if len(fitting) == 1 else None


def _whole_word(value: str) -> str:
    """Return a pattern that finds a value where no Latin letter or digit goes on with it."""
    before = "(?<![a-z0-9.])" if value[0].isascii() else ""
    return f"{before}{re.escape(value)}{'(?![a-z0-9])' if value[-1].isascii() else ''}"


def _spec(value: str) -> str:
    """Fold a spec value as replies write it: L码 is L."""
    word = folded(value)
    return word.removesuffix("码") if word[:1].isascii() else word


class NameIndex:
    """The parts of the names of one room's products."""

    def __init__(self, products: tuple[ProductName, ...]) -> None:
        self.products = products
        self.by_link = {p.link_no: p.product_id for p in products if p.link_no is not None}
        self._names = [folded(product.name[:_LONGEST_NAME]) for product in products]
        self._owners: dict[Part, int] = {}
        for number, name in enumerate(self._names):
            for part in _parts([token for token, _, _ in _tokens(name)]):
                self._owners[part] = self._owners.get(part, 0) | 1 << number
        self._share_spec_words()
        self._add_spoken()
        self._add_short_forms()
        self._firsts = frozenset(part[0] for part in self._owners)
        self._heads = {head for name in self._names for head in _heads(name)}
        self._inner = {head for name in self._names for head in _heads(name)[1:]}
        self._runs = [tuple(_han_runs(name)) for name in self._names]
        self._middle = {
            word for name in self._names for word in re.findall("[a-z]+", name)[1:]
        } - self._heads
        self._tails = {tail for name in self._names for tail in _han_tails(name)}
        self._ends = {tail[-1] for tail in self._tails}
        self._has_sibling = self._siblings()
        self._specs = {p.product_id: Specs(p.skus) for p in products if p.skus}
        self._verdicts: dict[Part, tuple[int, bool]] = {}

    def _share_spec_words(self) -> None:
        """Make parts of names ambiguous that another product's variants are called by: the gift
        edition beside a standard edition of something else."""
        for number, product in enumerate(self.products):
            for value in {value for sku in product.skus for value in sku.spec.values()}:
                for part in _parts([token for token, _, _ in _tokens(folded(value))]):
                    if part in self._owners:
                        self._owners[part] |= 1 << number

    def _add_spoken(self) -> None:
        """Add what a thing is called in speech: 袜子 for 中筒袜, 枕头 for 乳胶枕."""
        for thing in _words().spoken:
            if (thing,) in self._owners:
                ending = "头" if thing == "枕" else "子"
                self._owners.setdefault((thing, ending), self._owners[thing,])

    def _add_short_forms(self) -> None:
        """Add names without their middle, where no name has them whole."""
        found: dict[Part, int] = {}
        for number, name in enumerate(self._names):
            for part in _short_forms(name, [token for token, _, _ in _tokens(name)]):
                found[part] = found.get(part, 0) | 1 << number
        self._owners = found | self._owners

    def _siblings(self) -> int:
        """Return as bits the products that share a long part, or the last, of their names."""
        bits = 0
        ends: dict[str, int] = {}
        for part, owners in self._owners.items():
            words = [token for token in part if not token[0].isdigit()]
            shared = len(words) if words and words[0].isascii() else len(words) - 1
            if owners & (owners - 1) and shared >= 2:
                bits |= owners
        for number, name in enumerate(self._names):
            for end in (_han_tails(name) or _heads(name))[:1]:
                ends[end] = ends.get(end, 0) | 1 << number
        self._things = ends
        return sum((b for b in ends.values() if b & (b - 1)), 0) | bits

    def mentions(self, text: str) -> Iterator[Mention]:
        """Yield where the folded `text` names products, the longest parts first."""
        tokens = _tokens(text)
        place = 0
        while place < len(tokens):
            if tokens[place][0] not in self._firsts:
                place += 1
                continue
            owners, stop = 0, self._longest(text, tokens, place)
            while stop > place:
                owners = self._named(text, tokens, place, stop)
                if owners:
                    break
                stop -= 1
            if not owners:
                place += 1
                continue
            is_shared = owners & (owners - 1)
            product = None if is_shared else self.products[owners.bit_length() - 1].product_id
            yield Mention(tokens[place][1], tokens[stop - 1][2], product)
            place = stop

    def specs(self, product_id: str) -> Specs | None:
        """Return the spec words of a product's variants, None where it has none."""
        return self._specs.get(product_id)

    def has_part(self, text: str) -> bool:
        """Tell whether the folded `text` is a run of tokens of some product's name."""
        return tuple(token for token, _, _ in _tokens(text)) in self._owners

    def _longest(self, text: str, tokens: list[Token], place: int) -> int:
        """Return where the longest part that starts at a token ends."""
        part: Part = ()
        stop = place
        while stop < len(tokens):
            part = (*part, tokens[stop][0])
            gap = text[tokens[stop - 1][2] : tokens[stop][1]] if stop > place else ""
            if part not in self._owners or gap not in _JOINTS:
                break
            stop += 1
        return stop

    def _named(self, text: str, tokens: list[Token], start: int, stop: int) -> int:
        """Return as bits the products that a run of tokens may name, 0 where it is no name."""
        part = tuple(token for token, _, _ in tokens[start:stop])
        if part not in self._verdicts:
            self._verdicts[part] = self._verdict(part)
        owners, is_weak = self._verdicts[part]
        first, last = tokens[start][1], tokens[stop - 1][2]
        if not owners or _cuts(text, first) or _cuts(text, last):
            return 0
        is_short = len(part) == 2 and len(part[0]) == 1 and part[0].isascii()
        if is_short and tokens[start][2] != tokens[start + 1][1]:  # "a 2 pack"
            return 0
        if owners & (owners - 1):
            is_model = any(_is_latin(a) and b[0].isdigit() for a, b in pairwise(part))
            is_plain = is_model or _PLAIN.search(text[max(0, first - 10) : first])
            return (self._plain_one(owners) if is_plain else 0) or owners
        if is_weak and not self._is_pointed_at(part, text, first, last):
            return 0
        if len(part) > 1 and part[-1][0].isdigit() and text[last : last + 1] in _COUNTED:
            return 0  # 望远镜8倍 beside 望远镜8x32
        if (
            _SHARE_OF.search(text[max(0, first - 7) : first])
            and part[-1] not in self._ends | self._heads
        ):
            return 0  # 92%莫代尔
        if text[last : last + 1] in _OTHER_THINGS and self._is_made_of(part, text[last], owners):
            return 0
        return 0 if self._is_of_a_thing(part, text, first, last) else owners

    def _is_made_of(self, part: Part, thing: str, owners: int) -> bool:
        """Tell whether a word inside a name begins that of another thing: 乳胶枕 of 乳胶床垫."""
        name = self._names[owners.bit_length() - 1]
        said = "".join(part)
        is_inside = _HAN_ONLY.fullmatch(said) is not None and said not in self._tails
        return is_inside and len(said) == 2 and thing not in name and not self._ending_with(part)

    def _is_of_a_thing(self, part: Part, text: str, start: int, stop: int) -> bool:
        """Tell whether a word inside a name is used for a thing of its own: trim the wick."""
        before = text[max(0, start - 30) : start]
        if len(part) == 1 and _CONTENTS.search(before):
            return _ON_OFFER.match(text, stop) is None
        if len(part) > 1 or part[0] not in self._middle:
            return False
        return _LATIN_ITS_OWN.search(before) is not None

    def _plain_one(self, owners: int) -> int:
        """Return the product whose name all the others' only add to: the K2 beside K2 Max."""
        words = {
            number: {token for token, _, _ in _tokens(name)}
            for number, name in enumerate(self._names)
            if owners >> number & 1
        }
        least = [n for n, its in words.items() if all(its <= other for other in words.values())]
        return 1 << least[0] if len(least) == 1 else 0

    def _is_pointed_at(self, part: Part, text: str, start: int, stop: int) -> bool:
        """Tell whether the words around a common word make it a name."""
        before, after = text[max(0, start - 12) : start], text[stop : stop + 12]
        if part[0].isdecimal() or part[0][0].isdigit():
            return _SIZE_POINTED.match(after) is not None
        if not part[0].isascii():
            if len(part) == 1:
                says = _HAN_SAYS.match(after) if _HAN_START.search(before) else None
                pointing = _HAN_THING_BEFORE.search(before) or self._is_of_its_size(part, before)
                return says is not None or bool(pointing)
            return _HAN_POINTED.match(after) is not None
        pointing = _LATIN_POINTING.search(before) is not None
        goes_on = _LATIN_GOES_ON.match(after) is not None
        if (
            part[0] in self._inner and text[stop - 1] == "s"
        ):  # sheets of a sheet set; but not to dig
            return True
        if part[0] not in self._heads:
            return pointing and _ONE.match(after) is not None
        if part[0] in _words().containers:
            return goes_on and (pointing or _CLAUSE_START.search(before) is not None)
        return pointing or (goes_on and _CLAUSE_START.search(before) is not None)

    def _is_of_its_size(self, part: Part, before: str) -> bool:
        """Tell whether a number of its name stands before a thing: 60的缸."""
        size = _OF_SIZE.search(before)
        return size is not None and self._owners.get((size[1],)) == self._owners[part]

    def _verdict(self, part: Part) -> tuple[int, bool]:
        """Return whose name a part is, 0 for nobody's, and whether only if pointed at."""
        owners = self._owners[part]
        its = owners & (self._things.get("".join(part), 0) or self._ending_with(part))
        if its and not its & (its - 1):  # 玉米 is the corn, not the corn flour
            owners = its
        is_shared = bool(owners & (owners - 1))
        if self._is_name(part):
            return owners, False
        if not is_shared and self._sets_apart(part, owners.bit_length() - 1):
            return owners, False
        return (owners, True) if not is_shared and self._is_weak_name(part) else (0, False)

    def _ending_with(self, part: Part) -> int:
        """Return as bits the names that a Chinese part ends: 羽毛球, not 羽毛球鞋."""
        if not _HAN_ONLY.fullmatch(said := "".join(part)):
            return 0
        runs = enumerate(self._runs)
        return sum(1 << n for n, its in runs if any(run.endswith(said) for run in its))

    def _is_name(self, part: Part) -> bool:
        if part[-1] in self._heads and (
            len(part) > 1 or part[0] not in _words().weak_heads | self._inner
        ):
            return True
        return "".join(part) in self._tails or _is_name(part)

    def _sets_apart(self, part: Part, owner: int) -> bool:
        """Tell whether common words set a product apart from its siblings: 标准版, 4升."""
        if not self._has_sibling >> owner & 1:
            return False
        words = _words()
        han, latin = _han(part), [token for token in part if _is_latin(token)]
        if han in words.never:
            return False
        if part[0][0].isdigit():
            return self._is_size_of_several(part)
        if len(han) >= 2:  # what follows the first blank of a name only describes
            return han in self._names[owner].split()[0]
        return any(len(token) > 2 and token not in words.stop for token in latin)

    def _is_size_of_several(self, part: Part) -> bool:
        """Tell whether another product has another number with the same unit: 4升 and 6升."""
        owners = self._owners[part]
        others = (
            other_owners & ~owners
            for other, other_owners in self._owners.items()
            if len(other) == 2 and other[1:] == part[1:2] and other[0][0].isdigit()
        )
        return 2 <= len(part) <= 5 and any(others)

    def _is_weak_name(self, part: Part) -> bool:
        words = _words()
        han = _han(part)
        if len(part) == 1:
            is_thing = part[0] in self._ends or (_is_latin(part[0]) and len(part[0]) > 2)
            is_stop = part[0] in words.stop - words.containers
            return is_thing and not is_stop
        if part[0][0].isdigit():
            return 2 <= len(part) <= 4 and len(han) == len(part) - 1 and han[-1] not in "装年月"
        return len(han) == len(part) and han not in words.never and han[0] not in _NUMERALS


_HAN_ONLY = re.compile(f"[{_HAN}]+")
_NUMERALS = "一二两三四五六七八九十百千万"


def _parts(words: list[str]) -> Iterator[Part]:
    for start in range(len(words)):
        for stop in range(start + 1, min(len(words), start + _LONGEST_PART) + 1):
            yield tuple(words[start:stop])


def _short_forms(name: str, words: list[str]) -> Iterator[Part]:
    """Yield a name without its middle: 羊毛袜 for 羊毛中筒袜, dog food for dry food for dogs."""
    for head in _heads(name):
        yield from ((word, head) for word in words if _is_latin(word) and word != head)
    for tail in _han_tails(name)[:1]:
        before = words[: words.index(tail[-1]) - 1] if tail[-1] in words else []
        for pair in pairwise(before):
            yield (*pair, tail[-1])
            yield (*pair, *tail)


def _is_latin(token: str) -> bool:
    return token.isascii() and token[0].isalpha()


def _han(part: Part) -> str:
    return "".join(token for token in part if not token.isascii())


_AMOUNT_BEHIND = re.compile(
    r"\s[0-9]\S*(?:\s(?:oz|pcs?|packs?|pk|pr|prs|ct|count|pieces?|ml|l|g|kg|lbs?|inch(?:es)?|cm|mm|m|ft|yds?|yards|w))?\Z"
)


def _heads(name: str) -> list[str]:
    """Return the last word of a Latin name, before `for` or a comma, and of a sheet set sheet."""
    main = re.split(r",| (?:for|with|in|of|and|on) ", name)[0]
    words = re.findall("[a-z]+|[^a-z ]", _AMOUNT_BEHIND.sub("", main))
    heads = [_stem(word) if len(word) > 2 else "" for word in words[:-3:-1]]
    if heads[:1] == [""] or not set(heads[:1]) & _words().containers:
        heads = heads[:1]
    return [head for head in heads if head]


_PACKED = re.compile(rf"[一二两三四五六七八九十]+{PIECE}装?$")


def _han_runs(name: str) -> list[str]:
    """Return the runs of Chinese characters of a name without what they are packed in."""
    runs = [_PACKED.sub("", run) for run in re.findall(f"[{_HAN}]{{2,}}", name)]
    return [run for run in runs if len(run) > 1]


def _han_tails(name: str) -> list[str]:
    """Return the last two Chinese characters of a name's first part and its last: 围巾."""
    runs = _han_runs(name)
    last = [runs[-1][-2:]] if runs and runs[-1][-1] not in "装版款型色味包袋盒罐片枚支" else []
    return [runs[0][-2:], *last] if runs else []


_PLURAL = re.compile(r"(?<=[0-9])s(?![a-z0-9])")


def _cuts(text: str, place: int) -> bool:
    """Tell whether a place is inside a run of Latin letters and digits: SPF|30; but not 10x42|s."""
    if _PLURAL.match(text, place):
        return False
    around = text[place - 1 : place + 1] if place else ""
    return len(around) == 2 and around.isalnum() and around.isascii()


def _is_name(part: Part) -> bool:
    """Tell whether a part says enough wherever it stands."""
    words = _words()
    han, latin = _han(part), [token for token in part if _is_latin(token)]
    telling = [token for token in latin if token not in words.stop]
    if len(han) == 2 and han[0] in _NUMERALS:  # 五折, 三顿
        return False
    if len(han) >= 2 and not words.han.fullmatch(han):
        return True
    if han and latin and len(part) == 2 and len(latin[0]) == 1:  # T恤; but V领
        return han not in "领型位字款码版级"
    if any(_is_latin(a) and b[0].isdigit() for a, b in pairwise(part)) and han:
        return True  # X60 Pro手机
    if han:
        return any(len(token) > 1 and token not in words.generic for token in telling)
    if latin and len(latin) < len(part):  # a model such as S5; 50 g is none
        is_size = part[0][0].isdigit() and len(part) == 2
        return not is_size and any(t not in words.stop or len(t) == 1 for t in latin)
    return any(len(token) > 2 and token not in words.generic for token in telling)


@lru_cache(maxsize=64)
def name_index(products: tuple[ProductName, ...]) -> NameIndex:
    """Return the index of the products' names, made once for each tuple."""
    return NameIndex(products)
