"""What each number of a reading states: a price and its kind, stock, a size, a time, a count.

The words around the number in its clause decide; a number that nothing explains states nothing.
"""

from __future__ import annotations

import re
from collections.abc import Iterator

from livestream_env.claim_figures import Figure, find_figures, has_unit
from livestream_env.claim_text import LINK, NAME, PIECE, Reading, lexicon
from livestream_env.words import MAX_PRICE

_NAMED = (NAME, LINK)
_NEAR = 6
"""How many numbers before or behind another one may belong to it."""
_AGO = re.compile(" ago(?![a-z])|[之以]?前(?!后)")
_TIME_OF_DAY = re.compile("/7|x7")
_VAGUE = re.compile(r"(?:[过这那前没几有等]|这么|每)\Z")  # 过两天
_EACH_DAY = re.compile(  # 一天两次, 一年四季
    r"\s?(?:[吃喝用敷涂抹来洗喷]|只|就|要|最多|大概|不到|也就|才|合)?[一二两三四五六七八九十0-9]+(?!小时|个小时)|四季|比一|到晚|一|天"
)
_OFF_AFTER = re.compile(
    r"\s?-?(?:off(?![a-z])|discount|less(?! )| cheaper| lower| less than|的?折扣|优惠"
    r"| (?:comes|is|gets|taken|knocked) off(?![a-z]))"
)
_OFF_BEFORE = re.compile(
    r"(?:减|便宜|直降|降价|降了?|省了?|折扣|sav(?:e|es|ing)|discount of|knock)"
    r"\s?(?:了|up to |an extra )?\Z"
)
_DIFFERENCE = re.compile(  # 差一百块: no price of either
    r"(?:相?差(?!不多)|差价|贵)(?:了|着|不到|个|大概|约|也就|就|是|出|整整|价|¥|\s){0,4}\Z"
    r"|(?<![a-z])(?:under|below|less than|more than|cheaper by)\s(?:us)?[¥$€£]?\Z"
)
_DIFFERENCE_AFTER = re.compile(
    r" (?:more|less|cheaper|higher|lower|extra)(?= than|\s?[.,!]|\s?\Z| and)"
)
_ONE_YUAN = re.compile(r"[，,。!/的]|\Z")
_DOWN = re.compile("down|dropped|reduced|marked|slashed|cut(?![a-z])|lowered")
_CENTS_SHOWN = re.compile(r"\.[0-9]{2}\Z")
_DECIMAL = re.compile(r"\.[0-9]{1,2}\Z")
_FOR_SEVERAL = re.compile(r" for (?:[2-4]|two|three|four)(?=\s?[.,!]|\s?\Z)")
_FOR = re.compile(r"for\s(?:just |only )?\Z")
_NAMED_IS = re.compile(
    rf"(?:[{NAME}{LINK}]|(?<![a-z])(?:small|medium|large|x?[sml]))"
    r"(?:'s| is| are)(?: just| only| now)?\s\Z"
)
_TELLS_PRICE = re.compile(
    "down to|now|normally|usually|originally|regularly|tonight|today|pay"
    "|spend|cost|priced|sell|goes|going|for just|for only|at just|for it|yours|was"
    "|(?:get|grab|take) it for"
)
_MEMORIES = (64, 128, 256, 512)
"""Sizes of memory, in GB, as variants are called by: 256的没货."""
_LETTER_SIZE = re.compile(r"(?:[smlx]{1,4}|均|[0-9]xl)码?\s?\Z")
_NAMED_THINGS = re.compile(rf" {NAME}+(?=[\s.,!;]|\Z)")
_LIST_ITEM = re.compile(r"\s?[.、)）]")
_STOCK_GOES_ON = re.compile(r"\s?(?:了|多|左右)")
_STOCK_WORD = re.compile(r"\s?(?:的)?(?:现货|库存|存货)")
_PACK_OF = re.compile(r"(?<![a-z])(pack|set|box|case|bag|bundle|pair)s? of\s\Z")
_EACH_UNIT = re.compile(f"{PIECE}|each|per")
_PRICED = re.compile("[也才就只要卖合折算个不到是大概约]{0,6}")
_FROM_TO = re.compile(r"(?:从|from)\s?\Z")
_OR = re.compile("or|and|或|还是")
_ONE_PIECE = re.compile(f"一{PIECE}[^，]{{0,5}}\\Z")
_BUYS = re.compile(
    rf"(?:[{NAME}{LINK}\s]|[\u4e00-\u9fff]{{0,3}}?)[{NAME}{LINK}\s]{{0,30}}"
    r"(?:[¥:=,，\s的才只也就是要卖算给到]|一共|总共|打包|合计|加起来|特价|优惠价?|到手价?|券后价?|今天|今晚|现在"
    "|现价|直播间|活动价?|组合价?|起|只要|只需|仅需|一起|一块|大概|约|拿|共|拍|价格?|买|下来|带走|能|可以|装){0,8}"
)
_BUYS_AFTER = re.compile(
    r"\s?(?:[/(（,]|买|拍|拿|带走|任选|能买|可以买|得|能拿|选|就能拿|可以拿|包邮)?\s?"
)
_OWN_PRICE = re.compile(r"(?:才|只要|就|是|一共|:|\s)?[¥$]?[0-9]")
_ENGLISH_BUYS = re.compile(
    rf"(?: (?!and|but|so)[a-z{NAME}{LINK}'-]+){{0,4}}? (?:for|are|is|at|it's|that's|/)"
    r"(?: just| only| about)? ?|/ ?"
)
_ENGLISH_BUYS_AFTER = re.compile(r"\s?(?:for (?:(?:the |a )(?:pack|set|box|bag) of )?|/ ?)")


def number_text(value: float) -> str:
    """Write a number without trailing zeros."""
    return f"{value:.6f}".rstrip("0").rstrip(".")


def stating_figures(reading: Reading, language: str) -> list[Figure]:
    """Return the numbers of a reading that state something, each with its `kind`."""
    return _Reader(reading, language).read()


class _Reader:
    """Decides what each number of one reading is."""

    def __init__(self, reading: Reading, language: str) -> None:
        self.reading, self.text, self.language = reading, reading.text, language
        self.words, self.zh, self.en = lexicon(language), lexicon("zh"), lexicon("en")
        self.figures = find_figures(reading)

    def read(self) -> list[Figure]:
        for figure in self.figures:
            if self.language == "zh" and self.zh["price.bare_event"].match(self.text, figure.start):
                continue
            self._approximate(figure)
            if figure.unit == "bare" and figure.end_of is not None:
                figure.unit, figure.name = figure.end_of.unit, figure.end_of.name
            if not self._is_stock(figure):
                self._decide(figure)
        return [f for f in self.figures if f.kind and not f.is_used and not self._is_denied(f)]

    def _before(self, figure: Figure, width: int = 40) -> str:
        """Return the text of the clause before a number."""
        start = self.reading.clauses[figure.clause].start
        return self.text[max(start, figure.start - width) : figure.start]

    def _after(self, figure: Figure, width: int = 40) -> str:
        """Return the text behind a number, with its clause's closing mark."""
        clause = self.reading.clauses[figure.clause]
        return self.text[figure.stop : min(figure.stop + width, clause.stop + len(clause.mark))]

    def _earlier(self, figure: Figure) -> Iterator[Figure]:
        """Yield the few numbers before one in its clause, the nearest first."""
        for other in self.figures[max(0, figure.place - _NEAR) : figure.place][::-1]:
            if other.clause == figure.clause and other.stop <= figure.start:
                yield other

    def _next(self, figure: Figure) -> Figure | None:
        for other in self.figures[figure.place + 1 : figure.place + 3]:
            if other.clause == figure.clause and other.start >= figure.stop and other.value >= 2:
                return other
        return None

    def _approximate(self, figure: Figure) -> None:
        if self.words["approx.before"].search(self._before(figure.first, 18)):
            figure.approx = True
        if self.words["approx.after"].match(self._after(figure.last, 18)):
            figure.approx = True

    def _is_denied(self, figure: Figure) -> bool:
        """Tell whether the clause says that it is not so: 不是99, $99 is wrong."""
        before = self._before(figure.first, 24 if self.language == "zh" else 48)
        if self.words["negation.before"].search(before):
            return figure.kind != "price.threshold" and not re.search("不是[^是]*是", before)
        return self.words["negation.after"].match(self._after(figure.last, 30)) is not None

    def _decide(self, figure: Figure) -> None:
        decide = {
            "money": self._price,
            "bare": self._bare,
            "off": self._off,
            "percent": self._percent,
            "time": self._time,
            "size": self._size,
            "code": self._size,
            "piece": self._count,
            "thing": self._count,
            "pack": self._pack,
        }[figure.unit]
        decide(figure)

    def _off(self, figure: Figure) -> None:
        tenths = figure.value / 10 if figure.value >= 10 else figure.value
        if 0 < tenths < 10:
            figure.value, figure.kind = round(100 - tenths * 10, 2), "off"

    def _percent(self, figure: Figure) -> None:
        is_off = _OFF_AFTER.match(self._after(figure, 24))
        is_off = is_off or _OFF_BEFORE.search(self._before(figure, 24))
        figure.kind = "off" if is_off else "percent"

    def _time(self, figure: Figure) -> None:
        after = self._after(figure, 14)
        is_date = figure.is_ordinal or (figure.name == "y" and figure.value >= 1900)
        if is_date or _AGO.match(after) or (figure.value == 24 and _TIME_OF_DAY.match(after)):
            return
        if figure.is_han and figure.value in (1, 2) and _VAGUE.search(self._before(figure, 10)):
            return
        is_article = figure.is_han and figure.value == 1 and figure.name in ("d", "w", "mo", "y")
        if not (is_article and _EACH_DAY.match(after)):
            figure.kind = "time"

    def _size(self, figure: Figure) -> None:
        is_idiom = figure.is_han and (
            (figure.value == 1 and (figure.name in tuple("度寸尺l") or self._is_priced(figure)))
            or (figure.value < 10 and figure.unit == "code")
        )
        if figure.is_ordinal or is_idiom:
            return
        figure.kind = "size"
        if figure.dimensions:
            self._dimensions(figure)

    def _is_priced(self, figure: Figure) -> bool:
        """Tell whether a price stands right beside: 一斤六块八, 四块钱一斤."""
        for other in self.figures[figure.place + 1 : figure.place + 2]:
            if _PRICED.fullmatch(self.text[figure.stop : other.start]):
                return other.start == figure.stop or other.unit == "money"
        return any(f.stop == figure.start and f.kind == "price.each" for f in self._earlier(figure))

    def _dimensions(self, figure: Figure) -> None:
        numbers = [figure.value]
        last = figure
        while last.partner is not None:
            last = last.partner
            last.is_used = True
            numbers.append(last.value)
        unit = last.name or figure.name
        figure.dimensions = "x".join(map(number_text, numbers)) + unit
        figure.stop, figure.partner = last.stop, None

    def _pack(self, figure: Figure) -> None:
        if figure.value > 1:
            names = {"set": "set", "pac": "pack", "pk": "pack", "pks": "pack"}
            word = "set" if "set" in figure.name else figure.name[:3]
            figure.kind, figure.name = "count", names.get(word, "pieces")

    def _count(self, figure: Figure) -> None:
        if figure.is_ordinal or figure.value <= 1 or figure.kind or figure.is_used:
            return
        is_very = figure.is_han and figure.value == 10 and figure.name == "分"  # 十分好用
        if is_very or (figure.name == "款" and 1990 <= figure.value < 2100):
            return
        before = self._before(figure, 14)
        is_asked_for = self.zh["count.not_before"].search(self._before(figure.first, 14))
        if is_asked_for and not self.zh["count.container"].search(before):
            return
        is_bought = self.zh["count.not_after"].match(self._after(figure, 30))
        if not is_bought or figure.name in ("岁", "人", "位", "名"):
            figure.kind = "count"

    # Prices.

    def _bare(self, figure: Figure) -> None:
        if not self._english_count(figure) and self._is_bare_price(figure):
            self._price(figure)

    def _english_count(self, figure: Figure) -> bool:
        """Tell whether an English noun stands behind the number, and make a count of it."""
        before, after = self._before(figure, 24), self._after(figure, 40)
        if match := _PACK_OF.search(before):
            container = match[1] if match[1] in ("set", "pair") else "pack"
            figure.kind, figure.name = "count", container
            return True
        noun = self.en["count.noun"].match(after)
        if noun is None and (named := _NAMED_THINGS.match(after)):  # 12k stands
            plain = self.reading.plain[figure.stop : figure.stop + named.end()]
            noun = None if has_unit(plain) else self.en["count.noun"].match(plain)
        if noun is None or figure.value <= 1:
            return False
        words = self.en["count.not_before"], self.en["count.not_after"]
        if not (words[0].search(before) or words[1].match(after[noun.end() :])):
            figure.kind, figure.name = "count", noun["unit"] or noun["noun"]
            figure.stop += noun.end()
        return True

    def _is_bare_price(self, figure: Figure) -> bool:
        if figure.end_of is not None and figure.end_of.kind.startswith("price"):
            return True
        before = self._before(figure, 20)
        if figure.is_ordinal or figure.end_of is not None or figure.value > 1e6:
            return False
        if self.words["price.bare_not"].search(before):
            return False
        after = self._after(figure.last if figure.last.unit == "bare" else figure, 16)
        if self.language == "en":
            return self._is_english_bare(figure, before, after)
        if self.words["price.saved_after"].match(after):  # 30的券
            return True
        return self._is_chinese_bare(figure, before, after)

    def _is_english_bare(self, figure: Figure, before: str, after: str) -> bool:
        if figure.value >= 2 and after.startswith(" off"):
            return True  # takes another 4 off
        if after.strip() and not self.words["price.bare_after"].match(after):
            return False
        if _CENTS_SHOWN.search(self.text[figure.start : figure.stop]):
            return True
        if figure.value >= 3 and _NAMED_IS.search(before) and not after.startswith(" for"):
            return True  # the regular one's forty-nine
        if _FOR.search(before):
            figure.pieces = self._bundle_before(figure)
            if figure.pieces:
                return True
        if self.words["price.saved"].search(before) and not before.endswith("minus "):
            return figure.value >= 2  # I'll knock off ten
        if figure.value >= 5 and _FOR_SEVERAL.match(after):
            return True  # twenty-five for two
        tells = self.words["price.bare_before"].search(before) and _TELLS_PRICE.search(before)
        return figure.value >= 3 and tells is not None

    def _is_chinese_bare(self, figure: Figure, before: str, after: str) -> bool:
        shape = self.text[figure.start : figure.stop]
        if figure.is_han and figure.value < 10 and "点" not in shape:
            return False
        is_first = not before.strip() or before[-1] in _NAMED
        if figure.value in _MEMORIES and after.startswith(("的", "g", "版")):
            return False
        if is_first and _DECIMAL.search(shape) and re.match("[一-鿿]", after):
            return True  # 9.9试吃装
        if not self.words["price.bare_after"].match(after):
            return False
        if not before.strip():
            return 5 <= figure.value < 10_000 and not _LIST_ITEM.match(after)
        if before[-1] in _NAMED or self._label(before) is not None:
            return True
        if self.words["price.bare_before"].search(before):
            return True
        return figure.value >= 5 and self._ends_a_figure(figure, before)

    def _ends_a_figure(self, figure: Figure, before: str) -> bool:
        """Tell whether a count, a size or a price stands right before: 2件59.9, L码129."""
        return _LETTER_SIZE.search(before) is not None or any(
            other.unit != "bare" and figure.start <= other.stop + _NEAR
            for other in self._earlier(figure)
        )

    def _label(self, before: str) -> str | None:
        """Return the kind of price that the words right before an amount make it."""
        for kind in ("from", "each", "saved", "total", "threshold"):
            if self.words[f"price.{kind}"].search(before):
                return kind
        if self.words["price.coupon"].search(before):
            return "coupon"
        places = [
            (match.end(), kind != "plain", kind)
            for kind in ("plain", "list")
            for match in self.words[f"price.{kind}"].finditer(before)
        ]
        return max(places)[2] if places else None

    def _price(self, figure: Figure) -> None:
        if figure.value > MAX_PRICE or figure.is_ordinal or self._is_together(figure):
            return
        if _DIFFERENCE.search(self._before(figure.first, 12)) or _DIFFERENCE_AFTER.match(
            self._after(figure.last, 20)
        ):
            return
        low = figure.end_of
        if low is None or not low.kind.startswith("price"):
            figure.kind = f"price.{self._price_kind(figure)}"
            return
        behind = self._label_behind(self._after(figure))
        figure.kind, figure.pieces = f"price.{behind}" if behind else low.kind, low.pieces
        if behind and not self._are_offers(low):
            low.kind = figure.kind

    def _are_offers(self, low: Figure) -> bool:
        """Tell whether a range is two offers rather than a doubt: three for $45 or $18 each."""
        after = self._label_behind(self._after(low.last))
        return after == "each" and _OR.search(self.text[low.stop : low.last.start]) is not None

    def _is_together(self, figure: Figure) -> bool:
        """Tell whether 一块 means together and not one yuan."""
        if not (figure.is_han and figure.value == 1 and figure.name == "块"):
            return False
        is_money = self.text[figure.stop - 1] == "钱" or _ONE_YUAN.match(self._after(figure, 3))
        return not is_money

    def _price_kind(self, figure: Figure) -> str:
        clause = self._before(figure, 44)
        before = clause[self._previous_price_end(figure, len(clause)) :]
        after = self._after(figure if self._are_offers(figure) else figure.last, 36)
        label = self._label(before)
        if behind := self._label_behind(after):
            keeps = {"each": ("saved", "threshold", "total"), "coupon": ("list", "saved")}
            return label if label in keeps.get(behind, ()) and label else behind
        if label in ("from", "list") and figure.partner and _FROM_TO.search(before):
            return "plain"
        if label == "from" and _DOWN.search(clause):
            return "list"
        if label in ("saved", "threshold", "each", "from", "list"):
            return label
        figure.pieces = figure.pieces or self._bundle_before(figure) or self._bundle_after(figure)
        if figure.pieces:
            return "bundle"
        hint = self.words["price.each_hint"].search(before[-12:])
        if hint and (_EACH_UNIT.search(after[:4]) or _ONE_PIECE.search(before)):
            return "each"
        return label or "plain"

    def _previous_price_end(self, figure: Figure, width: int) -> int:
        """Return where, in the `width` characters before, the price before it ends."""
        for other in self._earlier(figure):
            if other.kind.startswith("price"):
                return max(0, width - (figure.start - other.stop))
        return 0

    def _label_behind(self, after: str) -> str | None:
        for kind in ("saved", "threshold", "from", "list", "coupon", "each", "total"):
            name = f"{kind}_after"
            if name in self.words.table["price"] and self.words[f"price.{name}"].match(after):
                return kind
        return None

    def _bundle_before(self, figure: Figure) -> int | None:
        """Return how many pieces an amount buys, where the clause says so before it: 两件99."""
        for other in self._earlier(figure):
            if other.kind.startswith("price"):
                return None
            gap = self.text[other.stop : figure.start]
            is_pieces = other.value >= 2 and other.value % 1 == 0 and not other.is_ordinal
            if (
                is_pieces
                and other.kind in ("", "count")
                and (figure.unit == "money" or other.value < figure.value)
                and len(gap) <= 40
                and self._buys(other, gap)
            ):
                other.is_used = True
                figure.start = other.start
                return int(other.value)
        return None

    def _buys(self, count: Figure, gap: str) -> bool:
        if self.language == "en":
            is_plain = count.unit == "bare" or count.unit == "piece"
            return is_plain and _ENGLISH_BUYS.fullmatch(gap) is not None
        if count.unit != "piece" or self.zh["count.container"].search(self._before(count, 14)):
            return False
        return _BUYS.fullmatch(gap) is not None

    def _bundle_after(self, figure: Figure) -> int | None:
        """Return how many pieces an amount buys, where the clause says so behind it: 99两件."""
        other = self._next(figure)
        if other is None or other.value % 1:
            return None
        gap = self.text[figure.stop : other.start]
        has_own_price = _OWN_PRICE.match(self.text, other.stop) is not None
        is_bought = other.unit == "piece" and not has_own_price and _BUYS_AFTER.fullmatch(gap)
        if not is_bought and not self._is_english_bought(other, gap):
            return None
        other.is_used = True
        return int(other.value)

    def _is_english_bought(self, count: Figure, gap: str) -> bool:
        """Tell whether an amount is for the count behind it: $30 for two."""
        is_count = self.language == "en" and count.unit in ("bare", "piece")
        return is_count and _ENGLISH_BUYS_AFTER.fullmatch(gap) is not None

    # Stock.

    def _is_stock(self, figure: Figure) -> bool:
        if figure.unit not in ("bare", "piece", "thing", "pack") or figure.is_ordinal:
            return False
        before, after = self._before(figure, 20), self._after(figure, 30)
        is_stock = self._is_english_stock if self.language == "en" else self._is_chinese_stock
        if not is_stock(figure, before, after):
            return False
        figure.kind = "stock"
        return True

    def _is_chinese_stock(self, figure: Figure, before: str, after: str) -> bool:
        is_bare = figure.unit == "bare"
        if not is_bare and figure.name[:1] not in self.zh.table["stock"]["units"]:
            return False
        ends = self.zh["stock.after"].match(after) is not None
        if self.zh["stock.before"].search(before):
            if before.endswith("最后") and not ends:
                return False
            return not is_bare or ends or _STOCK_GOES_ON.match(after) is not None
        if is_bare:
            return False
        if _STOCK_WORD.match(after):
            return True
        if after.startswith("了") and before.endswith("就"):  # 就一件了
            return ends
        return ends and self.zh["stock.have"].search(before) is not None

    def _is_english_stock(self, figure: Figure, before: str, after: str) -> bool:
        if figure.unit == "thing":
            return False
        words = self.en
        if before.endswith("size "):
            return False
        is_stock = words["stock.after"].match(after) or words["stock.last"].search(before)
        return is_stock is not None
