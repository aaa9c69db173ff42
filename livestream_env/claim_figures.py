"""Numbers in a reading with their units: 59块9, 3到5天, 两三百, 20x30cm, nine ninety-nine."""

from __future__ import annotations

import json
import re
from bisect import bisect_right
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from functools import cache
from typing import Any

from livestream_env._resources import data_file
from livestream_env.claim_text import NAME, PIECE, Reading, joined, lexicon
from livestream_env.words import chinese_number


@dataclass(slots=True)
class Figure:
    """A number in a reading, and what it turned out to be."""

    start: int
    stop: int
    value: float
    unit: str = "bare"
    """`bare`, or `money off percent time size code piece thing pack`; 42码 is a code."""
    name: str = ""
    """The unit as it goes into a label: `h`, `ml`, `瓶`."""
    is_han: bool = False
    is_ordinal: bool = False
    approx: bool = False
    place: int = 0
    """Its number among the figures of the reading."""
    clause: int = 0
    partner: Figure | None = field(default=None, repr=False)
    """The upper end of a range that this begins."""
    end_of: Figure | None = field(default=None, repr=False)
    """The lower end of the range that this ends."""
    dimensions: str | None = None
    """20x30cm, where this is the first of several."""
    kind: str = ""
    """What it states, once that is decided."""
    pieces: int | None = None
    is_used: bool = False
    """Said already by another figure: the 2 of 2件99."""

    @property
    def first(self) -> Figure:
        """The lower end of its range, or itself."""
        return self.end_of or self

    @property
    def last(self) -> Figure:
        """The upper end of its range, or itself."""
        return self.partner or self


_HAN = "一二两三四五六七八九十百千万亿零〇俩仨"
_HAN_DIGIT = "一二三四五六七八九"
_HAN_DIGITS = "零" + _HAN_DIGIT
_SMALL = (
    "zero one two three four five six seven eight nine ten eleven twelve thirteen fourteen fifteen"
    " sixteen seventeen eighteen nineteen"
)
_TENS = "twenty thirty forty fifty sixty seventy eighty ninety"
_WORDS = {word: number for number, word in enumerate(_SMALL.split())}
_WORDS |= {word: 10 * number for number, word in enumerate(_TENS.split(), 2)}
_WORD = "|".join(sorted(_WORDS, key=len, reverse=True))
_MORE = f"(?:(?: and)? (?:{_WORD})(?:[ -](?:{_WORD}))?)?"
# 三两到四两, but not 两件 behind 三
_NO_MORE = rf"(?:[到至重的左上半往多装大小，,。;!]|一{PIECE}|\Z)"
# What an amount of one piece follows: 算下来九十一罐 are not 91 cans.
_SHARED = (
    "(?:(?<=下来)|(?<=[折只]合)|(?<=[，,]合)|(?<=等于)|(?<=平均)|(?<=均摊)|(?<=摊到)|(?<=当于))"
)
_NUMBER = re.compile(
    rf"(?=[0-9{_HAN}半a-z])(?:"  # a quick no for most characters
    r"(?:(?<![a-z0-9.'])|(?<=[0-9m]x))(?P<digits>(?:[1-9][0-9]{0,2}(?:,[0-9]{3})+(?![0-9])|[0-9]+)(?:\.[0-9]+)?)"
    r"(?P<scale>\s?[万千百](?![克瓦米卡焦])"
    r"|k(?![a-z0-9的高超画级版清分屏]| (?:video|camera|display|tv|uhd))|w(?=[人单件粉多+]))?"
    r"(?P<tail>[1-9](?=[元块]))?"
    r"|(?<![几数])(?:(?<!好)|(?<=[最刚正只]好))"
    rf"(?P<han>[{_HAN}]*[十百][{_HAN_DIGIT}](?=一(?:{PIECE}|[斤米幅碗层]))"  # 三十五一斤
    rf"|{_SHARED}[{_HAN_DIGIT}]*百?[{_HAN_DIGIT}]?[十百](?=一(?!块)(?:{PIECE}|[斤米幅碗层]))"
    rf"|[{_HAN_DIGIT}]{{1,2}}(?=两{_NO_MORE})|半(?=两{_NO_MORE})|[{_HAN}]+(?:点[{_HAN}]+)?|半(?=个?(?:小时|钟头|月|年|天)|公?[斤升]|米))"
    rf"|(?<![a-z0-9.'])(?P<word>(?:(?:{_WORD})(?:[ -](?:oh[ -])?(?:{_WORD})){{0,3}}"
    rf"(?: hundred{_MORE})?|a dozen|a hundred{_MORE}"
    r"|an?(?= (?:full |whole )?(?:hour|day|week|month|year|dollar|buck"
    r"|inch|pound|foot|mile|liter|litre|gallon)(?![a-z])))(?![a-z])))"
    r"(?P<half>[ -]and[ -](?:a[ -])?(?:half|quarter|three[ -]quarters)(?![a-z]))?"
)
_HALF_BEHIND = re.compile("半(?![个小天年月斤价折熟糖两])| and a half(?![a-z])")  # 三斤半, 四次半
_OVER_A_HUNDRED = re.compile(rf"one[ -]((?:{_TENS.replace(' ', '|')}).*)")
_PARTS = {"half": 0.5, "quarter": 0.25, "three quarters": 0.75}
_SCALES = {"百": 100, "千": 1000, "万": 10_000, "k": 1000, "w": 10_000}
_LONGEST_NUMBER = 12


@cache
def unit_table() -> Any:
    """Return the units of the data file, read once."""
    return json.loads(data_file("claims/units.json").read_text(encoding="utf-8"))


@cache
def _names(section: str) -> dict[str, str]:
    """Return the label of each way to write a unit of time or size."""
    return {word: label for label, words in unit_table()[section].items() for word in words}


def _label(section: str, word: str) -> str:
    names = _names(section)
    return names.get(word) or names.get(word.removesuffix("s")) or names.get("个" + word, word)


def _either(words: list[str]) -> str:
    return "|".join(sorted(map(re.escape, words), key=len, reverse=True))


def _is_latin(word: str) -> bool:
    return word.isascii() and word[0].isalpha()


@cache
def _unit() -> re.Pattern[str]:
    """Return the pattern of what may stand behind a number; its group names are the units."""
    times, sizes = list(_names("times")), list(_names("sizes"))
    latin_times, latin_sizes = (list(filter(_is_latin, words)) for words in (times, sizes))
    other_times, other_sizes = ([w for w in ws if not _is_latin(w)] for ws in (times, sizes))
    count = lexicon("zh").table["count"]
    nouns, acts = joined(count["nouns_of_pieces"]), joined(count["done_with_pieces"])
    things = unit_table()["things"].replace(" ", "|")
    return re.compile(
        r"(?:\+|-plus| plus)?"
        r"(?: (?:full|whole|extra|more|solid|straight|additional|good)(?= [dhmwy]))?\s?"
        rf"(?P<odd>[来多余几](?=[小大]?(?:{PIECE}|[人位名家次元块天斤米分])))?"
        r"(?:(?P<off>折(?!叠|伞|页|扇|痕|旧|返|线|合))|(?P<percent>%|percent(?![a-z]))"
        rf"|(?P<block>块(?!来钱)(?=\s?(?:{nouns})|(?<=[1-9一两二三四五六七八九]块)(?<![0-9十百.].)(?:(?![{_HAN}半钱整多来就才每买拍拿包起左的是卖都])[一-鿿]){{1,3}}(?:{nouns})|(?<=[1-9一两二三四五六七八九]块)(?<![0-9十百].块)(?:{acts})))"
        r"|(?P<money>元|块(?!儿)|美元|美金|刀(?=[，,。!]|\Z)"
        r"|(?:rmb|cny|usd|yuan|dollars?|bucks?)(?![a-z]))"
        r"|(?P<cents>cents(?![a-z])|[毛角](?!巾|绒|笔|衣|线))"
        r"|(?P<half>个半(?:小时|钟头|月|钟)|年半|天半)"
        rf"|(?P<time>(?!年[级代货糕轻龄会]|秒[杀拍发空没付抢])(?:{_either(other_times)})|(?<=[俩仨半])月(?!饼)|-?(?:{_either(latin_times)})s?(?![a-z]))"
        r"|(?P<code>码(?!数|头|上))"
        rf"|(?P<size>-?(?:{_either(latin_sizes)})s?(?![a-z'])(?!(?<= [ml]) left)"
        rf"|{_either(other_sizes)}|两(?={_NO_MORE}))"
        rf"|[小大整]?(?P<piece>{PIECE})|(?P<thing>{things})"
        r"|(?P<pack>-?\s?(?:pack|piece set|piece|pc|pcs|pk)s?(?![a-z])))"
    )


def has_unit(text: str) -> bool:
    """Tell whether a folded text begins with a unit."""
    return _unit().match(text) is not None


_MONEY_MARK = re.compile(r"(?:us|hk)?[¥$€£]\s?\Z|(?<![a-z])(?:rmb|usd|cny)\s?\Z")
_MONEY_AGAIN = re.compile(r"\s?(?:元|块钱?|(?:dollars?|usd)(?![a-z]))")
_CENTS = re.compile(
    rf"(?P<half>半)|(?P<digits>[0-9]{{1,2}})(?!\.?[0-9])[毛角]?|零?(?P<han>[{_HAN_DIGIT}])(?!口)"
    rf"(?:[毛角](?P<more>[{_HAN_DIGIT}](?![件个袋瓶盒包条支双套]))?)?"
)
_MONEY_TAIL = re.compile("[来多]?钱|整|人民币")
_TENTHS = re.compile(  # 一米八, 一米八三, 两尺二
    rf"零[{_HAN_DIGIT}](?![{_HAN}点])|[{_HAN_DIGIT}]{{1,2}}(?![{_HAN}点])(?!\s?(?:{PIECE}|[天年号分秒小元毛折克米升度瓦码寸]))"
    r"|[1-9](?!\.?[0-9])(?=[的床宽高长深款以左和或跟与、到至，,。!一二两三四五六七八九]|\Z)"
)
_SMALLER = dict.fromkeys("米尺升", _TENTHS) | {"斤": re.compile(f"[{_HAN_DIGIT}]两")}
"""What goes on with a size in tenths of its unit: 一斤二两."""
_RANGE = re.compile(
    r"\s?(?:元|块钱?|[¥$€£])?\s?(?:--?|~|到|至|或者?|、?还是|to|or|and)\s?(?:us)?[¥$€£]?\s?"
)
_TIGHT_RANGE = re.compile(r"\s?(?:--?|~|到|至|to)\s?[¥$€£]?\s?")
_DIMENSIONS = re.compile(r"\s?(?:cm|厘米|mm|毫米|米|m|inch(?:es)?|\"|in)?\s?(?:[x乘]| by )\s?")
_AFTER_LETTERS = re.compile(r"[a-z]-\Z")
_LEFT = re.compile(rf"\s(?:[a-z{NAME}]{{1,24}}\s){{0,3}}(?:left|remaining)(?![a-z])")
_FOR_A_TIME = re.compile(
    "(?:keeps?|stays?|good|every|took|in|within|for|about|around|takes?|weighs?|holds?|boils?|lasts?|least|after|get|got|have|gives?|almost|nearly|under|over|than|half|full)"
    r"(?: like| me| you| us)?\s\Z"
)
_IN_A_YEAR = re.compile("(?:in|since|of|from|year) \\Z")  # nineteen ninety-nine
_A_DOLLAR = re.compile(" (?:dollar|buck)(?![a-z])")
_AT_MOST = re.compile(r" [a-z]+ (?:tops|max|at most|later|or so)(?![a-z])")
_HALVED = re.compile(" [a-z]+ and a half(?![a-z])")
_DROPPED = re.compile(
    r"(?:dropped|down|went|reduced|cut|slashed|goes|fell|lowered)(?: it| them)? from\s\Z"
)


def find_figures(reading: Reading) -> list[Figure]:
    """List the numbers of a reading with their units, the ends of ranges joined."""
    text = reading.text
    found: list[Figure] = []
    place = 0
    while match := _NUMBER.search(text, place):
        place = match.end()
        for figure in _figures(match, text):
            figure.clause = bisect_right(reading.starts, figure.start) - 1
            figure.place = len(found)
            if found and figure.end_of is None and figure.partner is None:
                _join(found[-1], figure, text)
            found.append(figure)
            place = max(place, figure.stop)
    return found


def _figures(match: re.Match[str], text: str) -> Iterator[Figure]:
    """Yield the number of a match; two where it is a range without a mark (两三天)."""
    start, stop = match.span()
    values = _values(match)
    before = text[max(0, start - 6) : start]
    if not values or _AFTER_LETTERS.search(before):
        return
    if match["half"]:
        values[-1] += _PARTS[match["half"].replace("-", " ").split(" ", 2)[2].removeprefix("a ")]
    if match["word"] in ("a", "an") and not (
        _A_DOLLAR.match(text, stop)
        or text.startswith((" full ", " whole "), stop)
        or _FOR_A_TIME.search(text[max(0, start - 12) : start])
        or _AT_MOST.match(text, stop)
        or _HALVED.match(text, stop)
    ):
        return
    figure = Figure(start, stop, values[0], is_han=match["han"] is not None)
    if mark := _MONEY_MARK.search(before):
        figure.unit, figure.start = "money", start - len(mark[0])
        if again := _MONEY_AGAIN.match(text, stop):
            figure.stop = again.end()
    else:
        _add_unit(figure, text)
    if before.endswith("百分之"):
        figure.unit, figure.start = "percent", start - 3
    if figure.value // 1 in (19, 20) and match["word"] and _IN_A_YEAR.search(before):
        return
    is_spoken = figure.value % 1 or _OVER_A_HUNDRED.fullmatch(match["word"] or "")
    if match["word"] and not match["half"] and figure.unit == "bare" and is_spoken:
        figure.unit = "money"
    is_article = match["word"] in ("a", "an", "one") and figure.unit == "bare"
    if is_article and not _LEFT.match(text, stop):
        return
    is_second = text.startswith("二次", start) and figure.unit == "thing"  # 二次销售
    figure.is_ordinal = is_second or before.rstrip()[-1:] in tuple("第初")
    if len(values) == 2:
        low = replace(figure)
        figure.value, figure.end_of, low.partner = values[1], low, figure
        yield low
    yield figure


def _values(match: re.Match[str]) -> list[float]:
    if digits := match["digits"]:
        if len(digits) > _LONGEST_NUMBER:
            return []
        scale = _SCALES[match["scale"].strip()] if match["scale"] else 1
        value = float(digits.replace(",", "")) * scale + float(match["tail"] or 0) * scale / 10
        return [round(value, 6)]
    if match["word"]:
        return _english_values(match["word"])
    return _han_values(match["han"], is_off=match.string.startswith("折", match.end()))


def _han_values(han: str, *, is_off: bool) -> list[float]:
    digits = [float(_HAN_DIGIT.find("二" if c == "两" else c) + 1) for c in han[:3]]
    is_pair = len(han) == 2 and 0 not in digits
    if is_pair and is_off:  # 八五折
        return [digits[0] * 10 + digits[1]]
    if len(han) == 3 and 0 < digits[0] < digits[1] and han[2] in "十百千万":  # 五六百
        return [digit * {"十": 10, **_SCALES}[han[2]] for digit in digits[:2]]
    value = chinese_number(han)
    if value is not None:
        return [value]
    return digits if is_pair and digits[0] < digits[1] else []


def _english_values(words: str) -> list[float]:
    if words in ("a", "an"):
        return [1.0]
    if words == "a dozen":
        return [12.0]
    total = 0
    last = cents = 0
    if spoken := _OVER_A_HUNDRED.fullmatch(words):  # one eighty-nine
        words = f"one hundred {spoken[1]}"
    words, is_oh, few = words.replace("-", " ").partition(" oh ")  # four oh five
    for word in words.replace("a hundred", "one hundred").split(" "):
        if word == "hundred":
            total *= 100
        elif word != "and":
            value = _WORDS[word]
            if cents or (last and (last < 20 or value >= 10) and "hundred" not in words):
                cents += value  # nine ninety-nine
            else:
                total, last = total + value, value
    if is_oh:
        cents = 0 if cents else _WORDS.get(few, 0)
    if not 0 < cents < 10 if is_oh else cents and not 10 <= cents < 100:
        return []
    return [total + cents / 100]


def _add_unit(figure: Figure, text: str) -> None:
    """Read the unit behind a number into it."""
    match = _unit().match(text, figure.stop)
    if match is None or match.lastgroup is None:
        return
    unit, word = match.lastgroup, match[match.lastgroup].strip().lstrip("-")
    figure.unit, figure.name, figure.stop = unit, word, match.end()
    figure.approx = match["odd"] in ("来", "多", "几")
    if unit == "half":  # 一个半月, 两年半
        whole = word[:-1] if word[-1] == "半" else word.replace("半", "", 1)
        figure.unit, figure.name, figure.value = "time", _label("times", whole), figure.value + 0.5
    elif unit == "time":
        figure.name, figure.approx = _label("times", word), figure.approx or "多" in word
        figure.value *= 15 if word == "刻钟" else 1
    elif unit == "size":
        _add_size(figure, text, word)
    elif unit == "money":
        _add_cents(figure, text, word)
    elif unit == "cents":
        figure.unit, figure.value = "money", figure.value / (100 if word == "cents" else 10)
        if more := _TENTHS.match(text, figure.stop):  # 9毛9
            figure.value = round(
                figure.value + (chinese_number(more[0]) or float(more[0])) / 100, 2
            )
            figure.stop = more.end()
    elif unit == "block":
        figure.unit = "piece"
    is_half = text.endswith("half ", 0, figure.start) and figure.value == 1
    if is_half and figure.unit in ("time", "size"):
        figure.value, figure.start = 0.5, figure.start - 5
    half = _HALF_BEHIND.match(text, figure.stop)
    if half and figure.unit in ("time", "size", "thing", "code"):
        figure.value, figure.stop = figure.value + 0.5, half.end()


def _add_size(figure: Figure, text: str, word: str) -> None:
    figure.name = _label("sizes", word)
    tenths = _SMALLER[word].match(text, figure.stop) if word in _SMALLER else None
    if tenths is not None:
        digits = "".join(str(_HAN_DIGITS.find(c)) if c in _HAN_DIGITS else c for c in tenths[0])
        figure.value = round(figure.value + float(f"0.{digits.rstrip('两')}"), 2)
        figure.stop = tenths.end()


def _add_cents(figure: Figure, text: str, word: str) -> None:
    """Read what follows 块: 59块9, 九块九毛五, 12块8; but not 30块2件."""
    cents = _CENTS.match(text, figure.stop) if word in ("块", "元") else None
    if cents is None or _unit().match(text, cents.end()):
        if tail := _MONEY_TAIL.match(text, figure.stop):
            figure.stop, figure.approx = tail.end(), tail[0][0] == "来"
        return
    if cents["half"]:
        added = 0.5
    elif cents["digits"]:
        added = float(f"0.{cents['digits']}")
    else:
        tenths, hundredths = (chinese_number(cents[g] or "零") or 0 for g in ("han", "more"))
        added = tenths / 10 + hundredths / 100
    figure.value, figure.stop = round(figure.value + added, 2), cents.end()


def _join(first: Figure, second: Figure, text: str) -> None:
    """Make a range of two numbers where the text does: 3到5天, 99-129元, $14 or $16, 20x30cm."""
    gap = text[first.stop : second.start]
    if first.clause != second.clause or first.partner or first.is_ordinal or len(gap) > 8:
        return
    if _DROPPED.search(text[max(0, first.start - 16) : first.start]):
        return
    if _DIMENSIONS.fullmatch(gap) and second.unit in ("size", "bare"):
        first.dimensions = "x"
        first.unit = second.unit = "size"
    elif not _is_range(first, second, gap):
        return
    first.partner, second.end_of = second, first


def _is_range(first: Figure, second: Figure, gap: str) -> bool:
    is_tight = _TIGHT_RANGE.fullmatch(gap) is not None
    if not is_tight and (not _RANGE.fullmatch(gap) or second.unit == "bare"):
        return False
    if first.unit == "bare":
        first.unit, first.name = second.unit, second.name
    elif second.unit == "bare" and first.unit == "money":
        second.unit = "money"
    return first.unit == second.unit
