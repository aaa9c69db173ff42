"""Which numbers of a reading are prices, and of what kind: 到手价89, two for $30, 99元起."""

from __future__ import annotations

import re
from collections.abc import Iterator

from livestream_env.claim_figures import Figure, find_figures
from livestream_env.claim_text import LINK, NAME, PIECE, Reading, lexicon
from livestream_env.words import MAX_PRICE

_NAMED = (NAME, LINK)
_PURITY = re.compile(r"[足纯][金银]\s?\Z")
_NEAR = 6
"""How many numbers before or behind another one may belong to it."""
_DIFFERENCE = re.compile(  # 差一百块: no price of either
    r"(?:相?差(?!不多)|差价|贵|涨)(?:了|着|不到|个|大概|约|也就|就|是|出|整整|价|¥|\s){0,4}\Z"
    r"|(?<![a-z])(?:under|below|less than|more than|cheaper by)\s(?:us)?[¥$€£]?\Z"
)
_DIFFERENCE_AFTER = re.compile(
    r" (?:more|less|cheaper|higher|lower)(?= than|\s?[.,!]|\s?\Z| and)|(?:以[内下]|之内)(?!包邮)"
)
_SIZE_BEFORE = re.compile(r"(?:克|g|斤|ml|毫升)\Z")
_ONE_YUAN = re.compile(r"[，,。!/的]|\Z")
_DOWN = re.compile("down|dropped|reduced|marked|slashed|cut(?![a-z])|lowered")
_CENTS_SHOWN = re.compile(r"\.[0-9]{2}\Z")
_DECIMAL = re.compile(r"\.[0-9]{1,2}\Z")
_MAKE_IT = re.compile(r"(?<![a-z])(?:make it|call it|i'll do|i can do|i'd take|[a-z]+ it for)\s\Z")
_HIT = re.compile(
    r"(?<![a-z])(?:hits?|reach|reaches|tops?|spend|goes over|go over|free (?:over|above|past))\s\Z"
)
_PRICED_FROM = re.compile(
    r"(?<![a-z])(?:(?:price[sd]?|starts?|starting)(?: is| are| start)?(?: at)?|\A) ?from\s\Z"
)
_ENDS = re.compile(r"\s?(?:[.,!?;]|\Z)| (?:and|but|even|flat|tonight|today|for)(?![a-z])")
_SAID_AT = re.compile(
    rf"(?:[{NAME}{LINK}]|(?<![a-z])(?:it|that|pair|set|one|they))(?:'s|'re| is| are| at| for)?\s\Z"
)
_OFFER_AFTER = re.compile(
    r" (?:even|flat|straight)(?![a-z])| (?:with|after) (?:the |your |my )?(?:code|coupon)(?![a-z])"
    r"| for (?:the|a) (?:pair|lot|set|box|bag|bundle|two|three)(?![a-z])"
)
_A_PIECE = re.compile(
    " (?:each|apiece"
    "|a (?:piece|pair|bottle|bag|box|jar|can|bar|tube|pack|book|set|pound|tin|roll"
    "|skein|ball|spool|yard))(?![a-z])"
)
_ON_TERMS = re.compile(" (?:if|with|when|once)(?![a-z])")
_FOR_SEVERAL = re.compile(r" for (?:[2-4]|two|three|four)(?=\s?[.,!]|\s?\Z)")
_FOR = re.compile(r"for\s(?:just |only )?\Z")
_NAMED_IS = re.compile(
    rf"(?:[{NAME}{LINK}]|(?<![a-z])(?:small|medium|large|x?[sml]|set|pair|king|queen))"
    r"(?:'s| is| are)(?: just| only| now)?\s\Z"
)
_TELLS_PRICE = re.compile(
    "down to|now|list|msrp|rrp|retail|(?:full|store|sticker|regular|usual|normal) price"
    "|normally|usually|originally|regularly|tonight|today|pay"
    "|spend|cost|priced|sell|goes|going|for just|for only|at just|for it|yours|was"
    "|(?:get|grab|take) it for"
)
_MEMORIES = (64, 128, 256, 512)
"""Sizes of memory, in GB, as variants are called by: 256的没货."""
_THING_ONLY = re.compile(r"\s?(?:(?![别不没多少比省贵差加减买拍满共到])[\u4e00-\u9fff]){1,5}\s?")
"""What an amount is said of where the clause before ends with a price: 单头89，配线99."""
_OF_A_NAMED = re.compile(f"的[{NAME}]{{1,12}}[也就才要是]?[¥]?")
_KIND_OF_NAMED = re.compile(  # 泳镜平光六十九
    f"[{NAME}{LINK}](?:的|(?![别不没多少比省贵差加减买拍满共到刚正防抗耐重高长宽厚深约大穿选配能用有可第前后零近远超带每])[\u4e00-\u9fff])"
    "(?![^，]*[度力量率径距围重长高宽深厚数岁时速度幅寸尺码号限声功])[\u4e00-\u9fff]{0,3}\\Z"
)
_ADDED = re.compile("[加带配送含赠]\\Z")
_OF_KIND = re.compile(  # 25的卷小, 160的给新生儿
    r"的(?:[^，]{0,3}(?:[大小长短宽窄厚薄粗细高矮重轻少多偏够]|适合|穿)|给(?![您你大])|配|用来"
    r"|[0-9一二两三四五六七八九十]{1,3}(?:个月|岁|斤|公斤|米|天|周))"
)
_IS_A_RANGE = re.compile(r"(?:[smlx]码?|码|号)是?\Z")
_OF_VARIANT = re.compile(
    r"(?:[和跟、 ][0-9]{1,4}){0,3}(?:的|码)?(?:都|也|还|就|全|已经){0,2}"
    r"(?:没[了货有]|[断缺]|卖[完光空]|有[货的]?(?=[，,。;!呢哦哈]|\Z)|有几|售罄|[还只就]剩|剩(?!下的)|不多)"
)
_LETTER_SIZE = re.compile(r"(?:[smlx]{1,4}|均|[0-9]xl)码?\s?\Z")
_LIST_ITEM = re.compile(r"\s?[.、)）]")
_EACH_UNIT = re.compile(f"{PIECE}|each|per")
_FROM_TO = re.compile(r"(?:从|from)\s?\Z")
_OR = re.compile("or|and|或|还是")
_ONE_PIECE = re.compile(f"一{PIECE}[^，]{{0,5}}\\Z")
_SMALL_PIECE = re.compile(r"一[片粒颗枚根斤克米平][才就要也合是\s]{0,2}\Z")
_AS_SOLD = re.compile(rf"\s?(?:一(?!块儿?[拿拍买带要]){PIECE}|的(?!话|总|一|到手|价))")
"""Behind a count that tells a thing from its like rather than what an amount buys: 5条一套49."""
_BUYS = re.compile(
    rf"(?:[{NAME}{LINK}\s]|[\u4e00-\u9fff]{{0,3}}?)[{NAME}{LINK}\s]{{0,30}}"
    r"(?:[¥:=,，\s的才只也就是要卖算给到]|一共|总共|打包|合计|加起来|特价|优惠价?|到手价?|券后价?|今天|今晚|现在|一块儿"
    "|现价|直播间|活动价?|组合价?|起|只要|只需|仅需|一起|一块|大概|约|拿|共|拍|价格?|买|下来|带走|能|可以|装){0,8}"
)
_BUYS_AFTER = re.compile(
    r"\s?(?:[/(（,]|买|拍|拿|带走|任选|能买|可以买|得|能拿|选|就能拿|可以拿|包邮)?\s?"
)
_OWN_PRICE = re.compile(r"(?:才|只要|就|是|一共|:|\s)?[¥$]?[0-9]")
_ENGLISH_BUYS = re.compile(
    rf"(?: (?!and|but|so)[a-z{NAME}{LINK}'-]+){{0,4}}?"
    r" (?:for|are|is|at|it's|that's|runs?|costs?|come to|/)(?: just| only| about)? ?|/ ?"
)
_ENGLISH_BUYS_AFTER = re.compile(r"\s?(?:for (?:all |(?:the |a )(?:pack|set|box|bag) of )?|/ ?)")


class Prices:
    """Tells the prices among the numbers of one reading, which it finds."""

    def __init__(self, reading: Reading, language: str) -> None:
        self.reading, self.text, self.language = reading, reading.text, language
        self.words, self.zh, self.en = lexicon(language), lexicon("zh"), lexicon("en")
        self.figures = find_figures(reading)

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

    def _is_bare_price(self, figure: Figure) -> bool:
        if figure.end_of is not None and figure.end_of.kind.startswith("price"):
            return True
        before = self._before(figure, 20)
        if figure.is_ordinal or figure.end_of is not None or figure.value > 1e6:
            return False
        if self._is_of_a_thing(figure):
            return False
        plain = self.reading.plain[max(0, figure.start - 3) : figure.start]
        if figure.partner is not None and _IS_A_RANGE.search(before):
            return False  # L是58-61
        if self.words["price.bare_not"].search(before) or _PURITY.search(plain):
            return False
        after = self._after(figure.last if figure.last.unit == "bare" else figure, 16)
        if self.language == "en":
            return self._is_english_bare(figure, before, after)
        if self.words["price.saved_after"].match(after):  # 30的券
            return True
        return self._is_chinese_bare(figure, before, after)

    def _is_of_a_thing(self, figure: Figure) -> bool:
        """Tell whether a number tells a product from its like whose price follows: 60的鱼缸420."""
        named = _OF_A_NAMED.match(self.text, figure.stop)
        return named is not None and named.end() in [f.start for f in self._following(figure)]

    def _following(self, figure: Figure) -> list[Figure]:
        return self.figures[figure.place + 1 : figure.place + 2]

    def _is_english_bare(self, figure: Figure, before: str, after: str) -> bool:
        if figure.value >= 2 and after.startswith(" off"):
            return True  # takes another 4 off
        if _HIT.search(before) and _ENDS.match(after):
            return True  # free once you hit 45
        if self.en["price.threshold"].search(before) and self.en["price.threshold_after"].match(
            after
        ):
            return True  # spend fifty-five or more
        if figure.value >= 3 and self._is_offered(before, after):
            return True
        if before.endswith(" or ") and _ON_TERMS.match(after) and self._has_price(figure):
            return True  # 14 bucks or 12 if you take two
        if after.startswith((" each", " apiece")) and self._has_price(figure):
            return True  # two for $15 or nine each
        if _CENTS_SHOWN.search(self.text[figure.start : figure.stop]):
            return True
        if after.strip() and not self.words["price.bare_after"].match(after):
            return False
        if figure.value >= 3 and _NAMED_IS.search(before) and not after.startswith(" for "):
            return True  # the regular one's forty-nine
        if _FOR.search(before):
            figure.pieces = self._bundle_before(figure)
            if figure.pieces:
                return True
        if self.words["price.saved"].search(before) and not before.endswith("minus "):
            return figure.value >= 2  # I'll knock off ten
        if before.endswith(" from ") and self._has_price(figure):
            return True  # down to thirty from forty-five
        if figure.value >= 3 and _PRICED_FROM.search(before) and _ENDS.match(after):
            return True
        if figure.value >= 5 and _FOR_SEVERAL.match(after):
            return True  # twenty-five for two
        tells = self.words["price.bare_before"].search(before) and _TELLS_PRICE.search(before)
        return figure.value >= 3 and tells is not None

    def _is_offered(self, before: str, after: str) -> bool:
        """Tell whether the words around make an amount of a number: fourteen a pair."""
        if _MAKE_IT.search(before) and _ENDS.match(after):
            return True
        if before[-2:] == f"{NAME} " and (not after.strip() or after[0] in ",.!;"):
            return True  # torch forty, socks twelve
        if self.words["price.saved"].search(before) and after.startswith((" when", " if", " on")):
            return not before.endswith("minus ")
        is_said = not before.strip() or _SAID_AT.search(before) is not None
        return is_said and (_OFFER_AFTER.match(after) or _A_PIECE.match(after)) is not None

    def _is_chinese_bare(self, figure: Figure, before: str, after: str) -> bool:
        shape = self.text[figure.start : figure.stop]
        if figure.is_han and figure.value < 10 and "点" not in shape:
            return False
        is_first = not before.strip() or before[-1] in _NAMED
        if figure.value in _MEMORIES and after.startswith(("的", "g", "版")):
            return False
        if is_first and _OF_KIND.match(after):
            return False  # 25的卷小
        if figure.partner is None and _OF_VARIANT.match(after):
            return False  # 152和156都没了
        if is_first and _DECIMAL.search(shape) and re.match("[一-鿿]", after):
            return True  # 9.9试吃装
        if not self.words["price.bare_after"].match(after):
            return False
        if not before.strip():
            return 5 <= figure.value < 10_000 and not _LIST_ITEM.match(after)
        if before[-1] in _NAMED or self._label(before) is not None:
            return True
        if figure.value >= 10 and _KIND_OF_NAMED.search(before):
            return True
        if self.words["price.bare_before"].search(before):
            return True
        if figure.value < 5:
            return False
        is_named = _THING_ONLY.fullmatch(before) is not None
        return (is_named and self._follows_a_price(figure)) or self._ends_a_figure(figure, before)

    def _has_price(self, figure: Figure) -> bool:
        return any(other.kind.startswith("price") for other in self._earlier(figure))

    def _follows_a_price(self, figure: Figure) -> bool:
        """Tell whether the clause before ends with a price."""
        last = next(
            (f for f in self.figures[: figure.place][:-_NEAR:-1] if f.clause < figure.clause),
            figure,
        )
        is_price = last.kind.startswith("price") and last.clause == figure.clause - 1
        return is_price and not self._after(last, 4)[:-1].strip("元块钱")

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
        if _SIZE_BEFORE.search(self._before(figure, 6)):
            return True  # 两百克一块
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
        if _SMALL_PIECE.search(before):
            return "each"
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
            if self.text.endswith("the ", 0, count.start):
                return False  # the two together are $64
            is_packs = count.unit == "pack" and self.text[count.stop - 1] == "s"
            is_plain = is_packs or count.unit in ("bare", "piece")
            return is_plain and _ENGLISH_BUYS.fullmatch(gap) is not None
        if (
            count.unit != "piece"
            or gap.startswith("套")
            or _ADDED.search(self._before(count, 4))
            or self.zh["count.container"].search(self._before(count, 14))
        ):
            return False
        return _BUYS.fullmatch(gap) is not None and not _AS_SOLD.match(gap)

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
