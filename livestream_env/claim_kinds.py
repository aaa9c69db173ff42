"""What each number of a reading states: a price and its kind, stock, a size, a time, a count.

The words around the number in its clause decide; a number that nothing explains states nothing.
"""

from __future__ import annotations

import re
from functools import lru_cache

from livestream_env.claim_figures import Figure, has_unit
from livestream_env.claim_prices import Prices
from livestream_env.claim_text import NAME, Clause, Reading

_OF_A_BODY = frozenset(("m", "cm", "kg", "斤", "ft", "lb", "inch"))
_STRENGTH = re.compile("镜(?!头)|近视|远视|散光|老花|度数|酒|白干|甜|糖|波美|浓度|纯度|酸度")
_AGO = re.compile(" ago(?![a-z])|[之以]?前(?!后)")
_TIME_OF_DAY = re.compile("/7|x7")
_VAGUE = re.compile(r"(?:[过这那前没几有等]|这么|每)\Z")  # 过两天
_YEAR_BEHIND = re.compile(  # 23年3月生, 15年入行
    "(?:[0-9]{1,2}|[一二三四五六七八九十]{1,2})月|出?生(?!产)|产的|入(?:行|职)|开(?:的?店|业|始|播)|毕业"
    "|结的?婚|那(?:会|年|时)|[年春夏秋冬]?[底初末春夏秋冬](?![季天])|买的|的(?=[，,。;!]|\\Z|人|小|属)"
)
_CAR_BEHIND = re.compile("的?(?:车|大众|奔驰|宝马|奥迪|丰田|本田|比亚迪|特斯拉)")
_ONE_BEFORE = re.compile("(?:[那这您你][台辆个部款]?|是|[车表机]|适配|适合|支持)\\Z")
_OWN_BODY = re.compile(  # 我身高一米六三
    "(?:我们?|本人|主播|模特|小助理|助播|他|她|小姐姐)[^。!?;]{0,8}(?:身高|体重|个子|净高)[^。!?;]{0,12}\\Z"
    "|(?<![a-z])(?:i'm|i am|i weigh|i stand|my (?:height|weight) is"
    "|(?:our|the) model(?:'s| is| weighs))(?: about| around| only| just)? \\Z"
)
_EACH_DAY = re.compile(  # 一天两次, 一年四季
    r"\s?(?:[吃喝用敷涂抹来洗喷]|只|就|要|最多|大概|不到|也就|才|合)?[一二两三四五六七八九十0-9]+(?!小时|个小时)|[\u4e00-\u9fff]{1,3}[一二两三四五六1-6]到?[一二两三四五六1-6]?[次顿片粒勺回遍袋杯泵滴]|误差|正负|(?:能|可以)[抽出产排吸制做][\u4e00-\u9fff]{0,2}[0-9一二两三四五六七八九十]|四季|比一|到晚|一|天"
)
_MOMENT = re.compile(r"(?:\A|give me|just|hang on|hold on|wait)\s?(?:for )?\Z")
_OFF_AFTER = re.compile(
    r"\s?-?(?:off(?![a-z])|discount|less(?! )| cheaper| lower| less than|的?折扣|优惠"
    r"| (?:comes|is|gets|taken|knocked) off(?![a-z]))"
)
_OFF_BEFORE = re.compile(
    r"(?:减|便宜|直降|降价|降了?|省了?|折扣|sav(?:e|es|ing)|discount of|knock)"
    r"\s?(?:了|up to |an extra )?\Z"
)
_NAMED_THINGS = re.compile(rf" {NAME}+(?=[\s.,!;]|\Z)")
_STOCK_GOES_ON = re.compile(r"\s?(?:了|多|左右)")
_STOCK_WORD = re.compile(r"\s?(?:的)?(?:现货|库存|存货)")
_FEW_ARE_LEFT = re.compile(r"\s?(?:[.,!;]|\Z)")
_ALL_OF = re.compile(r"(?<![a-z])(?:all|both|every|the)(?: of the)?\s\Z")
_OF_THEM = re.compile(r" of(?: the |\s?[.,!;]|\s?\Z)")  # M we have four of
_KINDS_IN_STOCK = re.compile(
    " (?:sizes|colou?rs|styles|scents|flavou?rs|versions|shades|models)(?![a-z])"
)
_LAST = re.compile(r"(?:最后|[还只就仅]剩了?)\Z")
_STARTS_AT = re.compile(r"起(?:[发拍卖送批订售]|(?=[，,。;!哈哦]|\Z))")
_CROPPED = re.compile("(?:[裤袖裙衣]长|是|做成)\\Z")
_WE_HAVE = re.compile(r"(?<![a-z])(?:i|we)(?:'ve| have)(?: only| just| got| about)* \Z")
_LISTED = re.compile(r"\s?(?:[、/]|,? ?(?:and|or|&)|, |和|跟)\s?\Z")
_DO_IT = re.compile("(?:麻烦|请|建议|记得|最好|可以|要|得|先)[^，]{0,5}\\Z")
_ORDERED = re.compile("(?:[您你]|咱)(?:这单|那单|的?订单|(?:刚才?)?(?:拍|买|下)的)[^，]{0,8}\\Z")
_PACK_OF = re.compile(r"(?<![a-z])(pack|set|box|case|bag|bundle|pair)s? of\s\Z")
_PRICED = re.compile("[也才就只要卖合折算个不到是大概约]{0,6}")


def number_text(value: float) -> str:
    """Write a number without trailing zeros."""
    return f"{value:.6f}".rstrip("0").rstrip(".")


def stating_figures(reading: Reading, language: str) -> tuple[Figure, ...]:
    """Return the numbers of a reading that state something, each with its `kind`."""
    return decided(reading.text, reading.plain, tuple(reading.clauses), language)


@lru_cache(maxsize=256)
def decided(
    text: str, plain: str, clauses: tuple[Clause, ...], language: str
) -> tuple[Figure, ...]:
    """Decide once for the readers of one reply: a rubric knows its room, figures of a run do not,
    and both find the same numbers, which take most of the time."""
    starts = [clause.start for clause in clauses]
    reading = Reading(text, range(len(text) + 1), list(clauses), starts, plain)
    return tuple(_Reader(reading, language).read())


class _Reader(Prices):
    """Decides what each number of one reading is."""

    def read(self) -> list[Figure]:
        for figure in self.figures:
            if self.language == "zh" and self._is_event(figure):
                continue
            self._approximate(figure)
            if figure.unit == "bare" and figure.end_of is not None:
                figure.unit, figure.name = figure.end_of.unit, figure.end_of.name
            if not self._is_stock(figure):
                self._decide(figure)
        self._share_units()
        return [f for f in self.figures if f.kind and not f.is_used and not self._is_denied(f)]

    def _share_units(self) -> None:
        """Give the numbers of a list the unit that stands behind the last one: 4, 6 and 8 inch."""
        for figure, behind in zip(self.figures[-2::-1], self.figures[:0:-1], strict=True):
            gap = self.text[figure.stop : behind.start]
            is_open = figure.unit == "bare" and not (figure.kind or figure.is_ordinal)
            is_size = behind.kind == "size" and not behind.dimensions
            if figure.unit == "bare" and behind.kind == "count" and gap in (" or ", " to "):
                figure.kind, figure.name = "count", behind.name
            if is_open and is_size and _LISTED.match(gap):
                figure.kind, figure.unit, figure.name = "size", behind.unit, behind.name

    def _is_event(self, figure: Figure) -> bool:
        """Tell whether a number is a shopping festival: 618, 双11."""
        pattern = self.zh["price.bare_event"]
        return any(pattern.match(self.text, max(0, figure.start - n)) for n in (0, 1))

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
        is_date = figure.is_ordinal or (figure.name == "y" and self._is_year(figure, after))
        if is_date or _AGO.match(after) or (figure.value == 24 and _TIME_OF_DAY.match(after)):
            return
        if figure.is_han and figure.value in (1, 2) and _VAGUE.search(self._before(figure, 10)):
            return
        is_moment = figure.value == 1 and figure.name in ("s", "min") and self.language == "en"
        if is_moment and _MOMENT.search(self._before(figure, 10)) and not after.strip(" .,!;"):
            return
        is_article = figure.is_han and figure.value == 1 and figure.name in ("d", "w", "mo", "y")
        if not (is_article and _EACH_DAY.match(after)):
            figure.kind = "time"

    def _is_year(self, figure: Figure, after: str) -> bool:
        """Tell whether years are of the calendar: 2019年, 23年3月生, 99年的."""
        is_short = figure.stop - figure.start == 3 and figure.partner is None
        return figure.value >= 1900 or (is_short and _YEAR_BEHIND.match(after) is not None)

    def _size(self, figure: Figure) -> None:
        is_idiom = figure.is_han and (
            (figure.value <= 1 and (figure.name in tuple("度寸尺l") or self._is_priced(figure)))
            or (figure.value < 10 and figure.unit == "code")
        )
        if figure.is_ordinal or is_idiom or _STARTS_AT.match(self._after(figure, 6)):
            return
        if figure.name == "度" and not self._is_strength(figure):
            return
        said = self.text[max(0, figure.first.start - 30) : figure.first.start]
        if figure.name in _OF_A_BODY and _OWN_BODY.search(said):
            return
        figure.kind = "size"
        if figure.dimensions:
            self._dimensions(figure)

    def _is_strength(self, figure: Figure) -> bool:
        """Tell whether degrees are of lenses, spirits or sweetness, not of heat or an angle."""
        stop = figure.stop
        said = self.reading.plain[max(0, stop - 44) : stop] + self._after(figure, 6)
        return _STRENGTH.search(said) is not None

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

    def _is_model_year(self, figure: Figure) -> bool:
        """Tell whether 款 is of a year: 2024款, 21款的车."""
        if figure.is_han or not (5 <= figure.value < 50 or 1990 <= figure.value < 2100):
            return False
        if figure.value > 50 or _CAR_BEHIND.match(self._after(figure, 8)):
            return True
        is_one = _ONE_BEFORE.search(self._before(figure, 8)) is not None
        return is_one and self._after(figure, 2)[:1] in ("的", "")

    def _pack(self, figure: Figure) -> None:
        if figure.value > 1:
            names = {"set": "set", "pac": "pack", "pk": "pack", "pks": "pack"}
            word = "set" if "set" in figure.name else figure.name[:3]
            figure.kind, figure.name = "count", names.get(word, "pieces")

    def _count(self, figure: Figure) -> None:
        if _ORDERED.search(self._before(figure, 20)):
            return
        is_one = figure.value <= 1 and figure.name != "岁"
        if figure.is_ordinal or is_one or figure.kind or figure.is_used:
            return
        if figure.name == "款" and self._is_model_year(figure):
            return
        is_very = figure.is_han and figure.value == 10 and figure.name == "分"  # 十分好用
        if is_very:
            return
        before = self._before(figure, 14)
        if figure.name == "分" and _CROPPED.search(before):
            return
        if figure.name in tuple("次遍回") and _DO_IT.search(before):
            return
        is_asked_for = self.zh["count.not_before"].search(self._before(figure.first, 14))
        if is_asked_for and figure.name != "倍" and not self.zh["count.container"].search(before):
            return
        is_bought = self.zh["count.not_after"].match(self._after(figure, 30))
        if not is_bought or figure.name in ("岁", "人", "位", "名"):
            figure.kind = "count"

    def _bare(self, figure: Figure) -> None:
        if not self._english_count(figure) and self._is_bare_price(figure):
            self._price(figure)

    def _english_count(self, figure: Figure) -> bool:
        """Tell whether an English noun stands behind the number, and make a count of it."""
        before, after = self._before(figure.first, 24), self._after(figure.last, 40)
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
            if figure.partner is None:
                figure.stop += noun.end()
        return True

    def _is_stock(self, figure: Figure) -> bool:
        if self._is_last_block(figure):
            figure.kind = "stock"
            return True
        if figure.unit not in ("bare", "piece", "thing", "pack") or figure.is_ordinal:
            return False
        before, after = self._before(figure, 20), self._after(figure, 44)
        is_stock = self._is_english_stock if self.language == "en" else self._is_chinese_stock
        if not is_stock(figure, before, after):
            return False
        figure.kind = "stock"
        return True

    def _is_last_block(self, figure: Figure) -> bool:
        """Tell whether 块 is a unit of pieces: 剩最后两块."""
        is_few = figure.is_han and figure.value < 10 and self.text[figure.stop - 1] == "块"
        return is_few and _LAST.search(self._before(figure, 6)) is not None

    def _is_chinese_stock(self, figure: Figure, before: str, after: str) -> bool:
        is_bare = figure.unit == "bare"
        if figure.unit == "thing":
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
        if _ALL_OF.search(before) and _KINDS_IN_STOCK.match(after):
            return False  # all three sizes are in stock
        is_stock = words["stock.after"].match(after) or words["stock.last"].search(before)
        is_left = words["stock.down_to"].search(before) and words["count.noun"].match(after)
        if _FEW_ARE_LEFT.match(after) and words["stock.down_to"].search(before):
            return figure.value <= 10 and not any(f.unit == "money" for f in self.figures)
        if figure.unit == "bare" and _FEW_ARE_LEFT.match(after) and _WE_HAVE.search(before):
            return True  # tan I have twelve
        is_part = words["stock.have"].search(before) and _OF_THEM.match(after)
        return bool(is_stock or is_left or is_part)
