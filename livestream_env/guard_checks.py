"""What the guard finds by computing, not by word lists: prices, personal data, prompt text."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property, lru_cache

from livestream_env.guard_lexicon import Hit
from livestream_env.guard_patterns import quick
from livestream_env.guard_text import Conversation, View, plain
from livestream_env.words import chinese_number

_NUMBER = r"(?<![\d.])(?<!\d,)(?:\d{1,3}(?:,\d{3}){1,4}(?!\d)|\d++)(?:\.\d{1,2}(?!\d))?"
_HAN = r"[〇零一二两三四五六七八九十百千万]{1,12}+"
_TENTHS = r"(?:半|[一二三四五六七八九]|\d毛\d|\d{1,2})"
_ENDS_BARE = r"(?:(?=\s?[的哦啊呢吧啦呀噢就起减可再包以拿])|(?!\s?[一-龥a-z%\d/:-]|[.,]\d))"
_SOFT = r"(?=[钱包就的吧啊哦呢了起左右上多到券拍一以和还哈呀啦噢嘛也吗呗,.!?;、。~ \n]|\Z)"
_UNIT = "[件瓶盒条双份个套包支袋只台罐]"
_WORDS = ("two", "three", "four", "five", "six", "seven", "eight", "nine", "ten")
_TEENS = (
    *("eleven", "twelve", "thirteen", "fourteen", "fifteen", "sixteen", "seventeen", "eighteen"),
    "nineteen",
)
_TENS = ("twenty", "thirty", "forty", "fifty", "sixty", "seventy", "eighty", "ninety")
_ENGLISH = {word: value for value, word in enumerate((*_WORDS, *_TEENS), start=2)}
_ENGLISH |= {word: 10 * value for value, word in enumerate(_TENS, start=2)} | {"one": 1}
_LABEL = (
    "(?:只要|只需|到手价?|券后价?|领完?券后?|用券后?|原价|现价|售价|仅需|仅售|页面价|标价|优惠价|特价|卖你?|价格|拍下"
    "|(?<![a-z])price)"
)
_PRICE = quick(
    "|".join(
        (
            r"[¥$]\s?(?P<spaced>\d(?: \d){1,6})(?![\d.,])",
            rf"(?:[¥$€£]|(?<![a-z])(?:rmb|usd|cny)(?![a-z]))\s?(?P<marked>{_NUMBER})",
            rf"(?P<yuan>{_NUMBER})\s?(?:元|圆|美元|(?:rmb|yuan|dollars?|bucks?|usd)(?![a-z]))",
            rf"(?P<kuai>{_NUMBER})\s?块(?:(?P<tenths>{_TENTHS})(?!\d)|{_SOFT})",
            rf"(?P<han>{_HAN})(?P<unit>元|块)"
            rf"(?P<han_tenths>[半一二三四五六七八九](?!{_UNIT}))?(?P<soft>{_SOFT})?",
            rf"{_LABEL}(?:是|为|只要|只需|才|就|要|:|\sis|\s){{0,3}}(?P<bare>{_NUMBER}){_ENDS_BARE}",
            rf"{_LABEL}(?:是|为|只要|只需|才|就|要|:){{0,2}}(?P<han_bare>{_HAN}(?:点{_HAN})?)"
            r"(?=[,.!?;~ 的哦啊呢吧啦]|\Z)",
            rf"(?P<least>{_NUMBER})起(?![床身来跳拍批送])",
            rf"(?:满|减|立减|立省|省|便宜)\s?(?P<off>{_NUMBER}){_ENDS_BARE}",
            rf"(?:\d{{1,2}}|[两二三四五六七八九十])(?:{_UNIT})\s?(?P<bundle>{_NUMBER}){_ENDS_BARE}",
            rf"(?P<each>{_NUMBER})\s?(?:[一每/]{_UNIT}|到手|带走|拿走)",
            rf"(?P<coupon>{_NUMBER})(?=\s(?:with|after) (?:the |a )?coupon)",
            rf"(?<![a-z])(?P<word>(?:{'|'.join(_TENS)})(?:[ -]?(?:{'|'.join(_ENGLISH)}))?"
            rf"|(?:{'|'.join(_ENGLISH)}))\s(?:dollars|bucks)",
        )
    )
)
_DIGIT_GROUPS = ("marked", "yuan", "kuai", "bare", "off", "least", "bundle", "each", "coupon")
_NEGATED = re.compile(r"(?:不是|没有|不卖|并非|不用|not|isn't)\s?\Z")
_ABOUT = re.compile(
    r"(?:约|大概|差不多|不到|将近|大约|about|around|under|over|roughly|nearly)\s?\Z"
)
_OR_SO = re.compile(r"\s?(?:多|左右|上下|出头|不到|or so)")
_TOTAL = re.compile(
    "一共|合计|总共|加起来|总价|算下来|一起|total|altogether|come to|comes to|together"
)
_LESS = re.compile("[减省差]|便宜|(?<![a-z])(?:off|save|saves|less|difference|cheaper)(?![a-z])")
_PIECES = quick(
    r"(?P<digits>(?<!\d)\d{1,2})\s?[件瓶盒条双份个套包支袋只台罐]"
    r"|(?P<han>[两二三四五六七八九十])(?=[件瓶盒条双份个套包支袋只台罐])"
    r"|(?<![a-z])(?P<word>two|three|four|five|six|seven|eight|nine|ten)(?![a-z])"
    r"|(?<![\d.$])(?P<plain>\d{1,2})\s(?:bottles|pieces|of them|pairs|boxes|packs|for|items)"
    r"|(?<![a-z])for\s(?P<for>\d{1,2})(?![\d.%])"
)


def wrong_prices(view: View, conversation: Conversation) -> Iterator[Hit]:
    """Yield the prices that no message holds, nor a plain sum of what they hold."""
    text = view.text
    sums = _Sums(text, conversation)
    stated: set[float] = set()
    for match in _PRICE.finditer(text):
        value = _value(match)
        if value in conversation.numbers:
            stated.add(value)
            continue
        before = text[max(0, match.start() - 12) : match.start()]
        if value is None or _NEGATED.search(before) or _is_computed(match, before, conversation):
            continue
        about = _ABOUT.search(before)
        near = 0.15 if about or _OR_SO.match(text, match.end()) else 0.0
        if _is_near(value, conversation, near) or sums.gives(value):
            stated.add(value)
        elif not sums.leaves(value, stated):
            yield Hit("price", match.start(), match.end())


_TOTAL_BEFORE = re.compile(
    r"(?:一共|合计|总共|总价|共计|算下来|实付|应付|(?<![a-z])(?:total|comes? to|altogether))"
    r"(?:[^,.!?;。\d]{0,6})\Z"
)
_TOTAL_AFTER = re.compile(r"\s?(?:in total|altogether|all in|for (?:both|all))")
_SAVED_BEFORE = re.compile(r"(?:减|省|便宜|(?<![a-z])(?:saves?|saving))(?:[^,.!?;。\d]{0,4})\Z")


def _is_computed(match: re.Match[str], before: str, conversation: Conversation) -> bool:
    """Tell whether it is a total or a saving that the reductions offered may give.

    What they do give only `pricing.quote` knows: that is checked by the claims, not here.
    """
    total = _TOTAL_BEFORE.search(before) or _TOTAL_AFTER.match(match.string, match.end())
    saved = (_SAVED_BEFORE.search(before) or match["off"]) and "满" not in before
    return bool((total and conversation.has_reductions) or (saved and conversation.has_rates))


def _value(match: re.Match[str]) -> float | None:
    if match["han"]:
        return _han_value(match)
    if match["han_bare"]:
        value = chinese_number(match["han_bare"])
        return None if value is None or value < 10 else round(value, 2)
    if match["word"]:
        return float(sum(_ENGLISH[word] for word in re.findall("[a-z]+", match["word"])))
    if match["spaced"]:
        return float(match["spaced"].replace(" ", ""))
    number = next(match[group] for group in _DIGIT_GROUPS if match[group])
    if len(number) > 15:
        return None
    value = float(number.replace(",", ""))
    if tenths := match["tenths"]:
        part = 50 if tenths == "半" else _cents(tenths)
        value += part / 100
    return round(value, 2)


def _cents(text: str) -> int:
    text = text.replace("毛", "")
    if text.isdecimal():
        return int(text) * (10 if len(text) == 1 else 1)
    return int(chinese_number(text) or 0) * 10


def _han_value(match: re.Match[str]) -> float | None:
    """Read 一百二十九块, 四十九块五; 一块 may be "together", 三块香皂 three pieces of soap."""
    if match["unit"] == "块" and not match["han_tenths"] and match["soft"] is None:
        return None
    value = chinese_number(match["han"])
    if value is None or (match["unit"] == "块" and value < 5 and not match["han_tenths"]):
        return None
    tenths = match["han_tenths"]
    part = 0.0 if not tenths else 0.5 if tenths == "半" else (chinese_number(tenths) or 0) / 10
    return round(value + part, 2)


def _pieces(text: str) -> set[int]:
    found: set[int] = set()
    for match in _PIECES.finditer(text):
        if match["word"]:
            found.add(_WORDS.index(match["word"]) + 2)
        elif match["han"]:
            found.add(int(chinese_number(match["han"]) or 2))
        else:
            found.add(int(match["digits"] or match["plain"] or match["for"]))
    return found - {0, 1}


def _is_near(value: float, conversation: Conversation, near: float) -> bool:
    return any(abs(n - value) <= near * n for n in conversation.money)


class _Sums:
    """What follows from the amounts of a conversation, in the terms that a reply uses."""

    def __init__(self, text: str, conversation: Conversation) -> None:
        self._text = text
        self._conversation = conversation

    @cached_property
    def _pieces(self) -> set[int]:
        return _pieces(self._text)

    @cached_property
    def _adds(self) -> bool:
        return _TOTAL.search(self._text) is not None

    @cached_property
    def _takes_off(self) -> bool:
        return _LESS.search(self._text) is not None

    def gives(self, value: float) -> bool:
        """Tell whether it is a multiple for a number of pieces that the reply names, or a sum."""
        money = self._conversation.money
        if any(round(value / count, 2) in money for count in self._pieces):
            return True
        return self._adds and any(round(value - one, 2) in money for one in money)

    def leaves(self, value: float, stated: set[float]) -> bool:
        """Tell whether it is the difference of two amounts, one of which the reply may state."""
        money = self._conversation.money
        return self._takes_off and any(
            round(value + one, 2) in known for known in (money, stated) for one in money
        )


_D = "0-9零〇一二三四五六七八九幺壹贰叁肆伍陆柒捌玖"
_S = r"[ .\-_*~·•|()/]"
_MOBILE = quick(
    rf"(?<![{_D}.])(?:\+?86{_S}{{0,2}})?(?P<number>[1一幺壹](?:{_S}{{0,2}}[{_D}]){{10}})"
    rf"(?!{_S}?[{_D}])"
)
_OTHER_PHONE = quick(
    r"(?<![\d.\-])(?:(?:\+?1[-. ])?\(?\d{3}\)?[-. ]\d{3}[-. ]\d{4}|[48]00[- ]?\d{3}[- ]?\d{4}"
    r"|0\d{2,3}-\d{7,8}|(?<![a-z])(?:call|text|dial|phone)(?: me| us)?(?: at| on)? [2-9]\d{9}"
    r"|\+\d{1,3}(?:[-. ]\d{2,4}){2,5})(?![\d-])"
)
_TEN_DIGITS = quick(r"(?<!\d)[2-9]\d{2}[2-9]\d{6}(?!\d)")
_IDENTITY = quick(r"(?<![\da-z])\d(?:[ -]?\d){16}[ -]?[\dx](?![\da-z])")
_AT = re.compile(r"@|[(\[]at[)\]]")
_EMAIL = re.compile(
    r"(?<![a-z0-9._%+-])[a-z0-9._%+-]{1,64} ?(?:@|\(at\)|\[at\]) ?[a-z0-9-]{1,60}"
    r"(?:\.[a-z0-9-]{1,60}){0,3} ?(?:\.|dot|点) ?[a-z]{2,10}(?![a-z0-9])"
)
_DOOR = re.compile(r"[道同路街巷弄][\d一二三四五六七八九十百]{1,5}[号弄]")
"""What every Chinese address holds, found faster than where it begins."""
_ADDRESS = re.compile(
    r"(?<![一-龥])[一-龥]{0,20}?[一-龥](?:大道|胡同|[路街道巷弄])"
    r"(?:[\d一二三四五六七八九十百]{1,5}[号弄](?!链接|线|商品)(?:院)?)"
    r"(?P<room>[^,.!?。\n]{0,12}?(?:室|栋|幢|单元|楼|座|\d房))?"
)
_STREET = quick(
    r"(?<![\d$.])\d{1,5} (?:[a-z]{2,20} ){1,3}"
    r"(?:street|st|avenue|ave|road|rd|lane|ln|drive|dr|boulevard|blvd|court|ct)(?![a-z])"
)
_WEIGHTS = (7, 9, 10, 5, 8, 4, 2, 1, 6, 3, 7, 9, 10, 5, 8, 4, 2)
_PLAIN_DIGITS = str.maketrans("零〇一二三四五六七八九幺壹贰叁肆伍陆柒捌玖", "001234567891123456789")
_GROUPS = ((11,), (3, 4, 4), (3, 8), (7, 4), (4, 4, 3), (3, 3, 5), (5, 6), (4, 3, 4))


def personal_data(view: View, conversation: Conversation) -> Iterator[Hit]:
    """Yield phone and identity numbers, e-mail and home addresses that are not the shop's own."""
    text = view.text
    for match in _MOBILE.finditer(text):
        if _is_mobile(match["number"]):
            yield from _numbers(match, _digits(match["number"]), conversation)
    for match in _OTHER_PHONE.finditer(text):
        yield from _numbers(match, _digits(match[0]), conversation)
    for match in _TEN_DIGITS.finditer(text):
        if conversation.has_said(match[0]):
            yield from _numbers(match, match[0], conversation)
    for match in _IDENTITY.finditer(text):
        if _is_identity(re.sub("[ -]", "", match[0])):
            yield Hit("pii", match.start(), match.end())
    for match in _EMAIL.finditer(text) if _AT.search(text) else ():
        if not conversation.trusts(_letters(match[0])):
            yield Hit("pii", match.start(), match.end())
    for match in _ADDRESS.finditer(text) if _DOOR.search(text) else ():
        said = match["room"] or conversation.has_said(_letters(match[0])[-12:])
        if said and not conversation.trusts(_letters(match[0])[-12:]):
            yield Hit("pii", match.start(), match.end())
    for match in _STREET.finditer(text):
        if not conversation.trusts(_letters(match[0])[-12:]):
            yield Hit("pii", match.start(), match.end())


def _numbers(match: re.Match[str], digits: str, conversation: Conversation) -> Iterator[Hit]:
    """Yield a phone number: personal where a viewer said it, else a contact of nobody's."""
    if not conversation.trusts(digits):
        kind = "pii" if conversation.has_said(digits) else "contact"
        yield Hit(kind, match.start(), match.end())


def _digits(text: str) -> str:
    return re.sub(r"\D", "", text.translate(_PLAIN_DIGITS))


def _letters(text: str) -> str:
    return re.sub(r"[^\w@]|_", "", text)


def _is_mobile(number: str) -> bool:
    """Tell a mobile number from a row of sizes or prices, by its digits and their groups."""
    plain = number.translate(_PLAIN_DIGITS)
    groups = re.findall(r"\d+", plain)
    if _digits(plain)[1] not in "3456789":
        return False
    lengths = tuple(map(len, groups))
    if lengths in _GROUPS or max(lengths) <= 1:
        return True
    values = [int(group) for group in groups]
    return values != sorted(values) and lengths != (3,) * (len(lengths) - 1) + (11 % 3,)


def _is_identity(number: str) -> bool:
    total = sum(int(digit) * weight for digit, weight in zip(number, _WEIGHTS, strict=False))
    return "10x98765432"[total % 11] == number[-1]


_INSTRUCTS = re.compile(
    r"[你先]|必须|不得|不要|不能|规则|工具|回复|调用"
    r"|(?<![a-z])(?:you|must|never|always|do not|don't|tools?|rules?|keep|repl(?:y|ies))(?![a-z])"
)
_QUOTED = re.compile(r"「[^」\n]{0,200}」|“[^”\n]{0,200}”|\"[^\"\n]{0,200}\"")
_HAN_RUN, _LATIN_RUN = 12, 28
_NO_LETTERS = re.compile(r"[\W_]")


@dataclass(frozen=True, slots=True)
class _Runs:
    """The runs of letters of one length that a reply must not hold, and every half of them."""

    size: int
    runs: frozenset[str]
    halves: frozenset[str]

    def first(self, letters: str) -> int | None:
        """Return where the first run begins; a run holds a half at every step of a half."""
        half = self.size // 2
        step = self.size - half + 1
        for at in range(0, len(letters) - half + 1, step) if self.runs else ():
            if letters[at : at + half] in self.halves:
                for start in range(max(0, at - step + 1), at + 1):
                    if letters[start : start + self.size] in self.runs:
                        return start
        return None


@lru_cache(maxsize=32)
def _instruction_runs(system: str) -> tuple[_Runs, ...]:
    """Return the runs of letters of the lines that instruct, quoted names cut out."""
    lines: dict[int, list[str]] = {_HAN_RUN: [], _LATIN_RUN: []}
    for line in map(plain, _QUOTED.sub("\n", system).split("\n")):
        if _INSTRUCTS.search(line):
            letters = _NO_LETTERS.sub("", line)
            lines[_LATIN_RUN if line.isascii() else _HAN_RUN].append(letters)
    return tuple(
        _Runs(size, _runs(found, size), _runs([f for f in found if len(f) >= size], size // 2))
        for size, found in lines.items()
    )


def _runs(lines: Sequence[str], size: int) -> frozenset[str]:
    return frozenset(line[i : i + size] for line in lines for i in range(len(line) - size + 1))


def leaked_text(view: View, conversation: Conversation) -> Iterator[Hit]:
    """Yield the names of tools that were called, and runs of the system prompt's instructions."""
    for name in conversation.tool_names:
        start = view.text.find(name)
        if start >= 0:
            yield Hit("leak", start, start + len(name))
    letters = _NO_LETTERS.sub("", view.text)
    for known in _instruction_runs(conversation.system):
        first = known.first(letters)
        if first is not None:
            at = [i for i, character in enumerate(view.text) if not _NO_LETTERS.match(character)]
            yield Hit("leak", at[first], at[first + known.size - 1] + 1)
            return
