"""Numbers, link numbers and questions in what people write; `amounts` reads prices.

All of it is text from shops, viewers and models, so no function here raises on any `str`, and what
cannot be read is reported as unknown, never guessed: a wrong price is worse than none.
"""

import difflib
import re
import unicodedata
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Literal

PriceKind = Literal["amount", "from", "range", "bundle", "coupon", "unknown"]


@dataclass(frozen=True, slots=True)
class Price:
    """What a price field says, and how it was understood."""

    raw: str | float | int
    """The field as given, for showing; a NaN or an infinity is kept as its text."""
    kind: PriceKind
    """How `amount` is to be taken; where several fit, the first of range, from, bundle, coupon."""
    amount: float | None
    """Yuan or dollars, 2 places: the lower end of a `from` or `range`, the total of a `bundle`,
    what is left to pay for a `coupon`; None if unknown."""
    high: float | None = None
    """The upper end of a range."""
    pieces: int | None = None
    """How many pieces `amount` buys, where that is more than one."""
    list_amount: float | None = None
    """The price before the reduction (原价), where it stands beside the price."""


_INVISIBLE = re.compile(
    "[\x00-\x08\x0e-\x1f\x7f-\x84\x86-\x9f\u00ad\u034f\u061c\u115f\u1160\u17b4\u17b5\u180b-\u180f"
    "\u200b-\u200f\u202a-\u202e\u2060-\u206f\u3164\ufe00-\ufe0f\ufeff\uffa0\ufff0-\ufffb"
    "\U0001bca0-\U0001bca3\U0001d173-\U0001d17a\U000e0000-\U000e0fff]"
)
_SURROGATE = re.compile("[\ud800-\udfff]")


def clean_text(text: str) -> str:
    """Replace lone surrogates, which no file or wire can hold, by U+FFFD, and join paired ones."""
    if not _SURROGATE.search(text):
        return text
    return text.encode("utf-16-le", "surrogatepass").decode("utf-16-le", "replace")


def fold(text: str) -> str:
    """Make the key under which texts that read the same are equal; never for text to be shown."""
    text = _INVISIBLE.sub("", clean_text(text))
    text = unicodedata.normalize("NFKC", text).casefold()
    text = _INVISIBLE.sub("", unicodedata.normalize("NFKC", text))
    return " ".join(text.split())


def nearest(name: str, candidates: Iterable[str], limit: int = 3) -> list[str]:
    """List the candidates that `name` may have meant, the likeliest first."""
    wanted = fold(name[:100])
    matcher = difflib.SequenceMatcher(autojunk=False)
    matcher.set_seq2(wanted)
    scored: list[tuple[float, str]] = []
    for candidate in set(candidates) if wanted else ():
        key = fold(candidate[:100])
        matcher.set_seq1(key)
        ratio = matcher.ratio()
        if key and (wanted in key or key in wanted):
            scored.append((-(1 + ratio) / 2, candidate))
        elif ratio >= 0.5:  # Chinese names are short: two of four characters are a hint
            scored.append((-ratio, candidate))
    return [candidate for _, candidate in sorted(scored)[: max(limit, 0)]]


def format_amount(amount: float) -> str:
    """Write an amount with at most 2 places and no trailing zeros."""
    return f"{amount:z.2f}".rstrip("0").rstrip(".")


_ASKS = re.compile(
    r"""[?？吗呢]
    (?: \[[^\[\]?？吗呢]{1,6}\]                          # [微笑]
      | [:;]-?[dp](?![a-z])                              # :D
      | [^\w?？] | [_\u115f\u1160\u3164\uffa0]           # punctuation, emoji, what is not seen
      | [呀啊哦哈噢喔哟呦呐啦哒嘞咯诶欸嘿嘻哇]
      | 亲爱的 | 亲 | 宝[贝宝子]? | 姐妹 | 家人 | 朋友 | 小主 | 们 | dear(?![a-z])
    )*+\Z""",
    re.VERBOSE | re.IGNORECASE,
)


def asks(text: str) -> bool:
    """Tell whether the last sentence ends in `?`, `？`, `吗` or `呢`.

    Closing particles, vocatives (亲), emoji, punctuation, quotes, brackets and blanks don't count.
    """
    return _ASKS.search(text) is not None


DIGITS = "零一二三四五六七八九"
SCALES = {"十": 10, "百": 100, "千": 1000, "万": 10_000, "亿": 10**8, "k": 1000, "w": 10_000}
_PLAIN = str.maketrans(
    "〇两俩仨壹贰叁肆伍陆柒捌玖拾佰仟萬億", "零二二三一二三四五六七八九十百千万亿"
)
_SECTION = "(?:D千)?零?(?:D百)?零?(?:D?十)?零?D?".replace("D", f"[{DIGITS[1:]}]")
_CARDINAL = re.compile(f"(?:{_SECTION}亿)?(?:{_SECTION}万)?{_SECTION}")
_SHORTENED = re.compile(f"(.+)([百千万亿])([{DIGITS[1:]}])")
_DECIMAL = re.compile(f"(.+)点([{DIGITS}]+)")
_SPOKEN_MONEY = re.compile(f"(.+)块(?:(半)|([{DIGITS}])[毛角]?([{DIGITS}])?)")


def chinese_number(text: str) -> float | None:
    """Read a number in Chinese characters (两千八, 九块九, 二〇二四); None when it isn't one."""
    text = fold(text[:100]).translate(_PLAIN)
    if len(text) > 24:
        return None
    if text == "半":
        return 0.5
    if match := _DECIMAL.fullmatch(text):
        whole = _chinese_whole(match[1])
        places = "".join(str(DIGITS.index(digit)) for digit in match[2])
        return None if whole is None else float(f"{whole}.{places}")
    if match := _SPOKEN_MONEY.fullmatch(text):
        whole = _chinese_whole(match[1])
        cents = 50 if match[2] else 10 * DIGITS.index(match[3]) + DIGITS.index(match[4] or "零")
        return None if whole is None else whole + cents / 100
    whole = _chinese_whole(text)
    return None if whole is None else float(whole)


def _chinese_whole(text: str) -> int | None:
    if len(text) > 1 and set(text) <= set(DIGITS):
        if len(text) == 2 and "零" not in text:
            return None  # 三五 is "three to five", not 35
        return int("".join(str(DIGITS.index(digit)) for digit in text))
    if (match := _SHORTENED.fullmatch(text)) and match[1][-1] != "零":  # 两千八 is 2800
        whole = _chinese_whole(match[1] + match[2])
        tail = DIGITS.index(match[3]) * SCALES[match[2]] // 10
        return None if whole is None else whole + tail
    if not _CARDINAL.fullmatch(text) or text[:1] in "百千万亿" or text[1:].endswith("零"):
        return None
    total = part = digit = 0
    for character in text:
        scale = SCALES.get(character, 0)
        if not scale:
            digit = DIGITS.index(character)
        elif scale < 10_000:
            part, digit = part + (digit or 1) * scale, 0
        else:
            total, part, digit = total + (part + digit) * scale, 0, 0
    return total + part + digit


MAX_PRICE = 1e9
"""A price above it is a slip or a code, and unknown."""
THOUSANDS = re.compile(r"(?<=\d),(?=\d{3}(?!\d))|(?<=[０-９])，(?=[０-９]{3}(?!\d))")
"""Commas inside a number."""
COUNT = (
    "(?:[件袋瓶盒罐箱片枚卷桶提]|个|包(?!邮)|支(?!持)|只(?![要有需能剩])|双(?![肩面层])"
    "|条(?![纹码])|套(?!装)|份(?!量)|(?:pair|pc|piece|pack|bottle|box|bag|item|set)(?:e?s)?(?![a-z]))"
)
"""Pattern of what pieces are counted in."""
MEASURE = (
    "(?:[%°折毛角码号日月年时秒倍岁寸英公斤克升毫两米度人次位楼代百千万亿]|分(?!期)|天(?!猫)|点(?!击)"
    "|期|小时|(?:ml|g|kg|cm|mm|m|inch|gb|tb|lbs?|oz|years?|days?|hours?)(?![a-z]))"
)
"""Pattern of what else a number can be of."""


_SIZED = re.compile(
    "身高|体重|尺|穿|码|斤|公分|岁|元|块|折|满|减|[¥$€£]|cm|kg"
    "|(?<![a-z])(?:lbs?|size|tall|weigh|wear|height)"
)
_HAN_LINK = "[一二两三四五六七八九十百零]"
_LINK = re.compile(
    r"(?:(?P<name>(?<![a-z])(?:(?:link|item|number)s?|no)[\s.:#]{0,3}|链接\s?[:#]?\s?|#\s?)"
    r"|(?P<nth>第\s?)|(?<![a-z\d.月]))"
    rf"(?P<number>\d++(?!\.\d)|(?<!{_HAN_LINK}){_HAN_LINK}++)"
    r"\s?(?:(?P<mark>(?:号|#|hao(?![a-z]))(?!码(?!数)|电池|[线楼店院门色])(?:\s?链接)?"
    r"|(?(nth)[个款])链接)"
    rf"|(?P<unit>元|块|{COUNT}|{MEASURE}|(?<=\d)[a-z]))?"
)
_JOIN = re.compile(r"\s?(?:[和跟与、,&]|还有|以及|或者?|,?\s?(?:and|or)(?![a-z]))\s?")
_JOIN_WORDS = re.compile(r"\s?(?:[和跟与、&]|还有|以及|或者?|(?:and|or)(?![a-z]))\s?")
_LEAD = re.compile(  # what may stand before numbers that nothing else marks: not iphone 15和16
    r"(?:\A|[^\w\s]|[看要讲绍把给拍买比问]"
    r"|(?<![a-z])(?:compare|between|show|see|me|want|about|for|both|are|is|do|does|can|and))\s?\Z"
)
_LONE = re.compile(  # 24, 讲讲二十六, 第36个; 666 is applause
    r"[\s.,!?。、~]*(?:想?[讲看介][讲看解绍]?(?:一?下)?\s?)?"
    rf"(?:(?!(\d)\1\1)(?P<number>\d{{1,3}}|{_HAN_LINK}{{2,5}})"
    rf"|第\s?(?P<nth>\d{{1,3}}|{_HAN_LINK}{{1,5}})\s?[个款])[\s.,!?。、~吧呗啊呀]*"
)
_VARIANTS = str.maketrans("號鏈", "号链", "\u20e3")  # the last is the frame of 3️⃣
_ENGLISH = ["one", "two", "three", "four", "five", "six", "seven", "eight", "nine", "ten"]
_ENGLISH += ["eleven", "twelve", "thirteen", "fourteen", "fifteen", "sixteen", "seventeen"]
_ENGLISH += ["eighteen", "nineteen"]
_SPELLED = re.compile(  # item nineteen, number twenty-one, the 4th one; but "number one brand"
    r"(?<![a-z])(link|item|number)\s(?:(twenty|thirty|forty|fifty)(?:[\s-]?(?!ten|eleven|twelve)"
    rf"({'|'.join(_ENGLISH[:9])}))?|(?<!number\s)(one)|({'|'.join(_ENGLISH[:0:-1])}))(?![a-z])"
    r"|(?<![a-z])the\s(\d{1,3})(?:st|nd|rd|th)\s(?:one|link|item)(?![a-z])"
)


def _spelled_in_digits(match: re.Match[str]) -> str:
    name, tens, ones, one, small, nth = match.groups()
    if nth:
        return f"link {nth}"
    number = 10 * ("twenty", "thirty", "forty", "fifty").index(tens) + 20 if tens else 0
    word = ones or one or small
    return f"{name} {number + (_ENGLISH.index(word) + 1 if word else 0)}"


_LONGEST_QUERY = 500
"""Characters of a text that are read for link numbers."""


def link_numbers(text: str) -> tuple[int, ...]:
    """List the link numbers that a viewer names (3号链接, 十二号, no.3, #3, 24和42), each once."""
    text = fold(THOUSANDS.sub("", text[:_LONGEST_QUERY])).translate(_VARIANTS)
    if lone := _LONE.fullmatch(text):
        value = _whole(lone["number"] or lone["nth"])
        return (value,) if value else ()
    text = _SPELLED.sub(_spelled_in_digits, text)
    sized = _SIZED.search(text) is not None
    join = _JOIN_WORDS if sized else _JOIN
    runs: list[list[re.Match[str]]] = []
    for match in _LINK.finditer(text):
        if runs and join.fullmatch(text, runs[-1][-1].end(), match.start()):
            runs[-1].append(match)
        else:
            runs.append([match])
    return tuple(
        dict.fromkeys(
            number
            for run in runs
            if any(map(_is_named, run)) or (not sized and _are_bare_links(run))
            for number in map(_link_number, run)
            if number
        )
    )


def _is_named(match: re.Match[str]) -> bool:
    if match["mark"] or not match["name"] or match["unit"]:
        return match["mark"] is not None
    follows = match.string[match.end() : match.end() + 1]
    return match["number"].isdecimal() or not follows.isalnum()  # 链接一直打不开


def _are_bare_links(run: list[re.Match[str]]) -> bool:
    start = run[0].start()
    return (
        len(run) > 1
        and all(match[0].strip().isdecimal() for match in run)
        and _LEAD.search(run[0].string[max(0, start - 12) : start]) is not None
    )


def _link_number(match: re.Match[str]) -> int | None:
    number = match["number"]
    if match["unit"] or len(number) > 5 or (match["nth"] and not match["mark"]):
        return None
    return _whole(number)


def _whole(number: str) -> int | None:
    value = int(number) if number.isdecimal() else chinese_number(number)
    return int(value) if value and value <= 999 else None


def safe(text: str) -> str:
    """Return the text with control characters and line separators escaped, for a terminal."""
    if text.isprintable():
        return text
    return "".join(c if c.isprintable() or c == "\u3000" else _escaped(c) for c in text)


def _escaped(character: str) -> str:
    return character.encode("unicode_escape").decode() if character != " " else " "
