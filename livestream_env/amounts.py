"""Prices as shops write them: `parse_price`, whose patterns are compiled on first use."""

import math
import re
import unicodedata
from collections.abc import Callable
from dataclasses import dataclass

from livestream_env.words import (
    COUNT,
    DIGITS,
    MAX_PRICE,
    MEASURE,
    SCALES,
    THOUSANDS,
    Price,
    PriceKind,
    chinese_number,
    fold,
    format_amount,
)

_MAX_PRICE_TEXT = 200
_N = r"\d+(?:\.\d+)?"
_DASHES = str.maketrans("‐‑‒–—―−〜", "-------~")
_HAN_PRICE = re.compile(
    rf"(?:[〇{DIGITS}十]|两(?=[百千万亿块元]|\s?{COUNT}))(?:[〇{DIGITS}十百千万亿]|两(?=[百千万亿]))*+"
    rf"(?:点[{DIGITS}]+|块(?:半|[{DIGITS}][毛角]?[{DIGITS}]?)(?!\s?{COUNT}))?"
)
_HAN_UNIT = re.compile(rf"\s?(?:[块元]|{COUNT})|\Z")


def _han_to_digits(match: re.Match[str]) -> str:
    if len(match[0]) == 1 and not _HAN_UNIT.match(match.string, match.end()):
        return match[0]  # 一口价, 三合一
    value = chinese_number(match[0])
    return match[0] if value is None else f" {format_amount(value)}"


def _scaled(match: re.Match[str]) -> str:
    scale = SCALES[match["unit"]]
    value = float(match["n"]) * scale + float(match["tail"] or 0) * scale / 10
    return match["mark"] + format_amount(value)


_REWRITES: tuple[tuple[re.Pattern[str], str | Callable[[re.Match[str]], str]], ...] = tuple(
    (re.compile(pattern), replacement)
    for pattern, replacement in (
        (r"(?<=\d)\s?\.\s?(?=\d{1,2}(?!\d))", "."),  # 59 .9
        (_HAN_PRICE.pattern, _han_to_digits),
        (rf"({_N})(\s?[-~至到]\s?)({_N})\s?([百千万])", r"\1\4\2\3\4"),  # 1-2万
        (  # 1.2万, 2万5, $1.2k
            rf"(?P<mark>)(?P<n>{_N})\s?(?P<unit>[百千万亿])(?!克|米|瓦)"
            rf"(?:(?P<tail>\d)(?![\d.]|\s?{COUNT}))?(?!\s?\d)",
            _scaled,
        ),
        (rf"(?P<mark>[¥$]\s?)(?P<n>{_N})(?P<unit>[kw])(?P<tail>)(?![a-z])", _scaled),
        (rf"(\d)(?:块(\d{{1,2}})(?![\d.]|\s?{COUNT})|元(\d)[角毛])", r"\1.\2\3元"),  # 59块9
        (
            r"(?<=\d)\s?(?:块钱?|圆|元钱?|(?:rmb|cny|usd|yuan|dollars?)(?![a-z])|美元|人民币"
            r"|[¥$€£](?!\s?\d))",
            "元",
        ),
        (r"(?:us|hk)?[$€£]|(?<![a-z])(?:rmb|cny|usd)(?![a-z])|人民币", "¥"),
        (r"(\d)\s(?:[a-z]+\s){0,2}for(?=\s¥)", r"\1件"),  # 2 shirts for $30
        (rf"((?:¥\s?{_N}|\d元)\s?)(?:for|/)\s?(\d+)(?=\s*\Z)", r"\1/\2件"),  # $30 for 2
    )
)
_ASIDE = re.compile(  # what is not the price of the thing: 满300减50, 第2件半价, 运费10元
    rf"第\s?{_N}\s?{COUNT}[^\d,;。]{{0,4}}(?:{_N}元?)?|买\s?{_N}\s?{COUNT}?(?=[送赠])|双\s?1[12]"
    rf"|(?:[满减省送赠返抵领]|[定订]金|尾款|运费|邮费|限购?|库存|剩|已售|销量|最高|up to|save)"
    rf"[:\s]*¥?\s?{_N}(?:元|\s?{COUNT})?"
    rf"|¥?{_N}元?(?:\s?off(?![a-z])|起送|(?:优惠|代金|抵用|消费)?券(?!后|价))"
)
_NUMBER = re.compile(
    rf"(?:(?P<mark>¥)\s?)?(?<![a-z\d.百千万亿])(?<!\d,)(?P<bare>{_N})(?![.,]?\d)"
    rf"(?:(?P<yuan>元)|\s?(?P<count>{COUNT})|(?P<measure>\s?{MEASURE}|[a-z]))?"
)
_RANGE = re.compile(r"\s?(?:--?|~|至|到|to)\s?")
_LABEL = re.compile(
    "(?P<final>(?:领|用)?券后|用券|到手|实付|(?:after|with) coupon|coupon price)"
    "|(?P<listed>原价|划线价|市场价|吊牌价|专柜价|日常价|(?<![a-z])was(?![a-z])"
    "|(?:list|original|regular) price|msrp|rrp)"
)
_LABEL_BEHIND = re.compile(rf"\(?(?:{_LABEL.pattern})价?[\s)/,;]")
_FROM_BEFORE = re.compile(
    r"(?:(?<![a-z])(?:from|start(?:s|ing) (?:at|from)|as low as)|起步?价|低至|最低)"
    r"[价:\s]*(?:just|only|仅|只要)?\s?\Z"
)
_FROM_AFTER = re.compile(r"\s?(?:起|and up|or more)")
_PIECES_BEFORE = re.compile(
    r"[^\d\s,;。!?|]{0,8}"
    r"|[装共仅只要/=:,\s]*(?:from|only|just|任选|一共|合计|优惠|特?价|到手价?|券后价?)?[:\s]*"
)
_PIECES_AFTER = re.compile(r"[\s/*×x(,起共任选买得拍]{0,6}(?:for\s)?")
_PRICE_WORD = re.compile(
    "(?<![a-z])(?:price|now|only|just|about|approx|around|for|from|was|sale|deal|each|per|after|with"
    "|coupon|list|original|regular|msrp|rrp|start(?:s|ing)?|at|as|low|to|and|up|or|more)(?![a-z])|"
    + COUNT
)


@dataclass(slots=True)
class _Quantity:
    kind: str
    low: float
    high: float | None
    start: int
    end: int
    label: str | None = None


def parse_price(value: object) -> Price | None:
    """Read a price field as a shop writes it (¥59.9起, 券后¥49 原价¥99, 2件99); None stays None.

    What is negative or above `MAX_PRICE` is unknown.

    Raises:
        TypeError: if `value` is neither text nor a number.
    """
    if value is None:
        return None
    if isinstance(value, str):
        return _price_in_text(value)
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise TypeError(
            f"a price is a `str`, an `int`, a `float` or None, not `{type(value).__name__}`: "
            "give the text as it stands"
        )
    if isinstance(value, float) and not math.isfinite(value):
        return Price(str(value), "unknown", None)
    amount = _amount(value)
    if amount is None or amount > MAX_PRICE:
        return Price(value, "unknown", None)
    return Price(value, "amount", amount)


def _amount(value: str | float | int) -> float | None:
    try:
        amount = float(value)
    except OverflowError:  # an int beyond the floats
        return None
    return round(amount, 2) + 0.0 if 0 <= amount < math.inf else None


def _price_in_text(raw: str) -> Price:
    unknown = Price(raw, "unknown", None)
    if len(raw) > _MAX_PRICE_TEXT:
        return unknown
    text = _canonical(raw)
    quantities = _quantities(text)
    offers = _offers(text, quantities)
    listed = [offer for offer in offers if offer.label == "listed"]
    plain = [offer for offer in offers if offer.label is None]
    final = [offer for offer in offers if offer.label == "final"]
    if "final" in (match.lastgroup for match in _LABEL.finditer(text)):
        if any(offer.low < chosen.low for offer in plain for chosen in final):
            return unknown
        chosen_from, listed = final, listed or plain
    else:
        chosen_from = plain or listed
    if len({(offer.low, offer.high) for offer in chosen_from}) != 1:
        return unknown
    chosen = chosen_from[0]
    others = [offer.low for offer in listed if offer is not chosen]
    if max(chosen.low, chosen.high or 0, *others) > MAX_PRICE:
        return unknown
    pieces = _pieces(text, chosen, quantities)
    kind = _kind(text, chosen, pieces)
    return Price(raw, kind, chosen.low, chosen.high, pieces, others[0] if others else None)


def _canonical(raw: str) -> str:
    """Write every number in digits and every currency as `¥` before it or `元` behind it."""
    text = THOUSANDS.sub("", raw)
    text = "".join("x" if unicodedata.category(c) == "No" else c for c in text)  # ² is no 2
    text = fold(text).translate(_DASHES)
    for pattern, replacement in _REWRITES:
        text = pattern.sub(replacement, text)
    return _ASIDE.sub("|", text)


def _quantities(text: str) -> list[_Quantity]:
    found: list[_Quantity] = []
    end = 0
    for match in _NUMBER.finditer(text):
        kind = "money" if match["mark"] or match["yuan"] else match.lastgroup or ""
        low = _amount(match["bare"])
        gap, end = text[end : match.start()], match.end()
        if found and _RANGE.fullmatch(gap):
            _extend(found[-1], kind, low, end)
        elif low is None or gap.rstrip().endswith("-"):
            found.append(_Quantity("broken", 0.0, None, match.start(), end))
        else:
            found.append(_Quantity(kind, low, None, match.start(), end))
    return found


def _extend(first: _Quantity, kind: str, high: float | None, end: int) -> None:
    """Make a range of `first`; a reversed or third end (99-20, 2024-01-01) makes it unreadable."""
    if first.kind == "broken" or high is None or first.high is not None or high < first.low:
        kind = "broken"
    elif kind == "bare":
        kind = first.kind
    first.kind, first.end = kind, end
    first.high = high if high != first.low else None


def _offers(text: str, quantities: list[_Quantity]) -> list[_Quantity]:
    """Pick and label the prices: bare numbers only where nothing is marked as money."""
    offers = [quantity for quantity in quantities if quantity.kind in ("money", "bare")]
    for index in range(len(offers) + 1):
        before = offers[index - 1] if index else None
        after = offers[index] if index < len(offers) else None
        gap = text[before.end if before else 0 : after.start if after else None]
        labels = [match.lastgroup for match in _LABEL.finditer(gap)]
        if not labels:
            continue
        if before and (not after or len(labels) > 1 or _LABEL_BEHIND.match(gap)):
            before.label = before.label or labels.pop(0)
        if after and labels:
            after.label = labels[-1]
    if any(offer.kind == "money" for offer in offers):
        return [offer for offer in offers if offer.kind == "money" or offer.label]
    if re.search("[a-z]{2}", _PRICE_WORD.sub("", text)):  # iphone 15
        return [offer for offer in offers if offer.label]
    return offers


def _pieces(text: str, price: _Quantity, quantities: list[_Quantity]) -> int | None:
    for count in quantities:
        if count.kind != "count" or count.high is not None or count.low <= 1 or count.low % 1:
            continue
        if _PIECES_BEFORE.fullmatch(text[count.end : price.start]) and count.end <= price.start:
            return int(count.low)
        if _PIECES_AFTER.fullmatch(text[price.end : count.start]) and price.end <= count.start:
            return int(count.low)
    return None


def _kind(text: str, price: _Quantity, pieces: int | None) -> PriceKind:
    if price.high is not None:
        return "range"
    if _FROM_BEFORE.search(text[: price.start]) or _FROM_AFTER.match(text, price.end):
        return "from"
    if pieces is not None:
        return "bundle"
    return "coupon" if price.label == "final" else "amount"
