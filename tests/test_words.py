import math
import pickle
import time

import pytest
from hypothesis import given
from hypothesis import strategies as st

from livestream_env.amounts import parse_price
from livestream_env.words import (
    Price,
    asks,
    chinese_number,
    clean_text,
    fold,
    format_amount,
    link_numbers,
    nearest,
)

HOSTILE = [
    pytest.param("9" * 100_000, id="digits"),
    pytest.param("１" * 100_000, id="full-width digits"),
    pytest.param("1.2" * 30_000, id="decimals"),
    pytest.param("1," * 50_000, id="commas"),
    pytest.param("一" * 100_000, id="Chinese digits"),
    pytest.param("¥" * 100_000, id="currency marks"),
    pytest.param("吗" * 100_000 + "x", id="question particles"),
    pytest.param("吗" + "[哈]" * 30_000 + "x", id="emoticons"),
    pytest.param("no" + "." * 100_000, id="dots"),
    pytest.param("3和" * 50_000, id="joined numbers"),
    pytest.param("\u200d" * 100_000, id="joiners"),
]


def read(value):
    """The price as (kind, amount, high, pieces, list_amount), trailing None dropped."""
    price = parse_price(value)
    fields = [price.kind, price.amount, price.high, price.pieces, price.list_amount]
    while fields[-1] is None and len(fields) > 2:
        fields.pop()
    return tuple(fields)


@pytest.mark.parametrize(
    ("text", "amount"),
    [
        ("¥1.2万", 12000),
        ("２９９元", 299),
        ("￥1,299.00", 1299),
        ("￥１，２９９", 1299),
        ("¥ 59 .9", 59.9),
        ("59块9", 59.9),
        ("9块9包邮", 9.9),
        ("59元9角", 59.9),
        ("九块九", 9.9),
        ("两块五", 2.5),
        ("一百九十九", 199),
        ("九十九块钱", 99),
        ("2万5", 25000),
        ("$1.2k", 1200),
        ("$1,299.00", 1299),
        ("USD 20", 20),
        ("20 USD", 20),
        ("20美元", 20),
        ("19.9元/件", 19.9),
        ("¥9.9/500g", 9.9),
        ("约200元", 200),
        ("一口价99", 99),
        ("三合一 99", 99),
        ("99元 8.5折", 99),
        ("99元 第二件半价", 99),
        ("99元 满300减50", 99),
        ("20元券 99元", 99),
        ("双十一价99", 99),
        ("5千克 20元", 20),
        ("原价99", 99),
        ("0元", 0),
        ("999999999", 999999999),
    ],
)
def test_a_price_may_be_written_in_many_ways(text, amount):
    assert read(text) == ("amount", amount)


@pytest.mark.parametrize(
    ("text", "amount"),
    [("¥59.9起", 59.9), ("59.9元起售", 59.9), ("低至59.9", 59.9), ("from $19.99", 19.99)],
)
def test_an_open_end_is_kind_from(text, amount):
    assert read(text) == ("from", amount)


@pytest.mark.parametrize("text", ["2 pairs from $349", "2双349起"])
def test_an_open_end_for_several_pieces_keeps_their_number(text):
    assert read(text) == ("from", 349, None, 2)


@pytest.mark.parametrize(
    ("text", "low", "high"),
    [
        ("59.9-79.9", 59.9, 79.9),
        ("59.9~79.9", 59.9, 79.9),
        ("59.9至79.9", 59.9, 79.9),
        ("价格 59.9 - 79.9", 59.9, 79.9),
        ("¥59.9—¥79.9", 59.9, 79.9),
        ("15~35元", 15, 35),
        ("1-2万", 10000, 20000),
        ("五十到一百", 50, 100),
        ("$19.99 to $29.99", 19.99, 29.99),
    ],
)
def test_two_ends_are_a_range(text, low, high):
    assert read(text) == ("range", low, high)


@pytest.mark.parametrize(
    ("text", "pieces", "amount"),
    [
        ("2件99", 2, 99),
        ("3件9.9元", 3, 9.9),
        ("99元2件", 2, 99),
        ("99块2件", 2, 99),
        ("两件九十九", 2, 99),
        ("九十九元两件", 2, 99),
        ("两件共99", 2, 99),
        ("2件T恤99元", 2, 99),
        ("到手价：59.9元/2袋", 2, 59.9),
        ("99元(共24包)", 24, 99),
        ("2 for $30", 2, 30),
        ("2 shirts for $30", 2, 30),
        ("$30 for 2", 2, 30),
    ],
)
def test_a_price_for_several_pieces_is_a_bundle(text, pieces, amount):
    assert read(text) == ("bundle", amount, None, pieces)


@pytest.mark.parametrize(
    "text",
    [
        "券后¥49 原价¥99",
        "原价99 券后49",
        "49券后 99原价",
        "¥99 券后¥49",
        "99元，券后49元",
        "到手价49（原价99）",
        "$49 after coupon, was $99",
    ],
)
def test_a_coupon_price_keeps_the_list_price_beside_it(text):
    assert read(text) == ("coupon", 49, None, None, 99)


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("到手价49", ("coupon", 49)),
        ("领20元券后49", ("coupon", 49)),
        ("Was $99, now $49", ("amount", 49, None, None, 99)),
        ("券后2件99 原价199", ("bundle", 99, None, 2, 199)),
        ("券后49-59 原价99", ("range", 49, 59, None, 99)),
    ],
)
def test_reductions_combine_with_the_other_kinds(text, expected):
    assert read(text) == expected


@pytest.mark.parametrize(
    "text",
    [
        *("", "-", "--", "null", "无报价", "面议", "免费", "²", "1²³", "-5", "¥-5", "-5~¥20"),
        *("999999999999999999999", "11亿", "¥59-99999999999", "券后49 原价1000000001"),
        *("1e400", "1.2.3", "59,90 €", "¥1，299", "¥.99", "99-20", "2024-01-01"),
        *("iPhone 15", "xm4", "17pro", "8.5折", "五毛", "3号链接"),
        *("第2件半价", "第二件9.9", "满300减50", "定金50 尾款249", "up to $50", "$20 off"),
        *("¥59 ¥79", "1件59.9 2件99", "3 for 2", "原价99 券后更优惠"),
    ],
)
def test_what_cannot_be_read_is_unknown_and_never_zero(text):
    assert parse_price(text) == Price(text, "unknown", None)


def test_a_number_is_its_own_amount():
    assert parse_price(59.999) == Price(59.999, "amount", 60.0)
    assert parse_price(59) == Price(59, "amount", 59.0)
    assert parse_price(0) == Price(0, "amount", 0.0)


@pytest.mark.parametrize(
    "value", [-1, -0.5, 1e9 + 1, 1e308, 10**400], ids=["-1", "-0.5", "1e9+1", "1e308", "10**400"]
)
def test_a_number_that_is_no_price_is_unknown(value):
    assert parse_price(value) == Price(value, "unknown", None)


@pytest.mark.parametrize("value", [math.nan, math.inf, -math.inf])
def test_nan_and_infinity_are_kept_as_text(value):
    assert parse_price(value) == Price(str(value), "unknown", None)


def test_no_price_stays_none():
    assert parse_price(None) is None


@pytest.mark.parametrize("value", [True, [59], {"price": 59}, b"59"], ids=repr)
def test_another_type_is_the_callers_mistake(value):
    with pytest.raises(
        TypeError, match=f"`str`, an `int`, a `float` or None.*`{type(value).__name__}`"
    ):
        parse_price(value)


def test_the_raw_text_is_kept_unchanged():
    assert parse_price("￥２９９\u200b元 ").raw == "￥２９９\u200b元 "


def test_a_price_pickles():
    price = parse_price("券后¥49 原价¥99")
    assert pickle.loads(pickle.dumps(price)) == price


@pytest.mark.parametrize(
    "text",
    [
        "您要哪个尺码呢~😊",
        "您穿多大码呀？亲",
        "您穿多大码呀？亲。",
        "您要吗，宝贝~",
        "您要哪款呢[微笑]",
        "需要发您链接吗哈",
        "“您要黑色还是白色呢？”❤️",
        "好的（需要吗？）",
        "要吗\u200b\ufe0f\u200d",
        "要吗\n \t\u3000",
        "要哪个?!",
        "要哪个？👨‍👩‍👧‍👦",
        "包邮的。您要几件呢",
        "我在呢。",
        "Which size do you need? 😊",
        "Which size, dear? :D",
        "?",
    ],
)
def test_a_question_at_the_end_asks(text):
    assert asks(text)


@pytest.mark.parametrize(
    "text",
    [
        "包邮哦？不，不包邮",
        "需要吗？不需要。",
        "需要吗？好的哦~",
        "Any questions, just ask!",
        "Need it? Yes, take it.",
        "您身高体重多少呀",
        "好的哈😊",
        "吗啡",
        "？1",
        "",
        " ",
    ],
)
def test_a_question_that_is_not_the_last_sentence_does_not_ask(text):
    assert not asks(text)


def test_lone_surrogates_become_replacement_characters():
    assert clean_text("a\ud800b\udc00") == "a\ufffdb\ufffd"
    assert clean_text("\udc00\ud800") == "\ufffd\ufffd"


def test_a_surrogate_pair_becomes_its_character():
    assert clean_text("\ud83d\ude0a\ud83d") == "😊\ufffd"


@given(st.text())
def test_text_without_surrogates_is_left_as_it_is(text):
    assert clean_text(text) == text


@pytest.mark.parametrize(
    ("text", "key"),
    [
        ("多少\u200b钱", "多少钱"),
        ("ＡＢＣ１２３", "abc123"),
        ("Straße", "strasse"),
        ("  a \t\n\u3000 b ", "a b"),
        ("前\x13后\x00", "前后"),
        ("\ufeff❤\ufe0f", "❤"),
        ("e\u200d\u0301", "é"),
        ("\ud800", "\ufffd"),
    ],
)
def test_folding_makes_equal_what_reads_the_same(text, key):
    assert fold(text) == key


@given(st.text(st.characters()))
def test_folding_twice_changes_nothing(text):
    assert fold(fold(text)) == fold(text)


@pytest.mark.parametrize(
    "text",
    [
        *("3号链接", "3 号", "三号", "３号", "③号", "链接3", "链接 3", "链接：3", "3链接", "3#"),
        *("no.3", "No 3", "number 3", "#3", "link 3", "link3", "item 3", "3", "3？"),
        *("第3个链接", "第三个链接", "3号链接多少钱，2件呢", "3号，180斤能穿吗", "3号，160能穿吗"),
        *("链接3只要99吗", "链接3包邮吗", "3号链接，就是3号", "24瓶和3号"),
        *("3️⃣号链接", "3hao", "3號鏈接", "第3个", "第三款吧", "讲讲3", "想看3", "看一下3", "介绍3"),
        *("item three pls", "number three", "link three", "the 3rd one", "the 3rd link"),
    ],
)
def test_a_link_number_is_found_however_it_is_written(text):
    assert link_numbers(text) == (3,)


@pytest.mark.parametrize(
    ("text", "numbers"),
    [
        ("十二号链接", (12,)),
        ("6号下单", (6,)),
        ("24和42改价吧", (24, 42)),
        ("42、24", (42, 24)),
        ("24,42", (24, 42)),
        ("24，42", (24, 42)),
        ("24跟42", (24, 42)),
        ("24与42哪个好", (24, 42)),
        ("看看24和42", (24, 42)),
        ("compare 24 and 42", (24, 42)),
        ("3号和5号", (3, 5)),
        ("三和五号", (3, 5)),
        ("3、5、7号链接", (3, 5, 7)),
        ("links 3 and 5", (3, 5)),
        ("5号比3号好吗，5号呢", (5, 3)),
        ("3和5号穿几码", (3, 5)),
        ("二十一", (21,)),
        ("讲讲二十六", (26,)),
        ("第36个", (36,)),
        ("item nineteen", (19,)),
        ("link twenty-one", (21,)),
        ("number forty", (40,)),
    ],
)
def test_several_link_numbers_come_in_order_and_once(text, numbers):
    assert link_numbers(text) == numbers


@pytest.mark.parametrize(
    "text",
    [
        *("30元", "2件", "250ml", "24瓶", "5斤", "43码", "3天", "50cm", "180斤", "3.5", "1,299"),
        *("xm4", "17pro", "iphone 15 and 16", "小米12和13哪个好", "身高160,体重120", "24和42码"),
        *("¥24和42", "3个链接", "链接一直打不开", "包包链接几号", "5号电池", "8月10号", "一起买"),
        *("666", "0号", "没有3", ""),
        *(
            "一",
            "讲一下",
            "看看",
            "三三",
            "要一个",
            "第二件半价",
            "3haoyun",
            "number one brand",
            "my 3rd one",
        ),
    ],
)
def test_other_numbers_are_no_link_numbers(text):
    assert link_numbers(text) == ()


@pytest.mark.parametrize(
    ("text", "number"),
    [
        ("一百九十九", 199),
        ("两千八", 2800),
        ("九块九", 9.9),
        ("九块九毛九", 9.99),
        ("三块半", 3.5),
        ("十", 10),
        ("十二", 12),
        ("一百零五", 105),
        ("二百五", 250),
        ("二〇二四", 2024),
        ("半", 0.5),
        ("零", 0),
        ("三万五", 35000),
        ("一万零五百", 10500),
        ("一亿二千万", 120_000_000),
        ("三点一四", 3.14),
        ("壹佰", 100),
    ],
)
def test_a_chinese_number_is_read(text, number):
    assert chinese_number(text) == number


@pytest.mark.parametrize(
    "text", ["", "12", "abc", "百", "十百", "五百零", "三五", "一起", "点五", "²"]
)
def test_what_is_no_chinese_number_is_none(text):
    assert chinese_number(text) is None


def test_the_nearest_name_comes_first():
    tools = ["get_reply_rule", "search_faq", "search_script"]
    assert nearest("serch_faq", tools) == ["search_faq", "search_script"]
    assert nearest("物流查洵", ["价格", "尺码推荐", "物流查询"]) == ["物流查询"]


def test_a_name_within_another_is_near():
    assert nearest("FAQ", ["move_product", "search_faq"]) == ["search_faq"]


def test_nothing_is_near_an_empty_or_a_strange_name():
    assert nearest("", ["search_faq"]) == []
    assert nearest("\u200b", ["search_faq"]) == []
    assert nearest("xyz", ["search_faq"]) == []


def test_equally_near_names_come_in_alphabetical_order():
    assert nearest("size", ["sizc", "sizb", "siza", "sizb"], limit=2) == ["siza", "sizb"]


@pytest.mark.parametrize(
    ("amount", "text"),
    [
        *((59.9, "59.9"), (59.0, "59"), (1299.5, "1299.5"), (0.1 + 0.2, "0.3"), (1200.0, "1200")),
        *((0.05, "0.05"), (0, "0"), (-0.001, "0"), (1e21, "1000000000000000000000")),
    ],
)
def test_an_amount_is_written_without_trailing_zeros(amount, text):
    assert format_amount(amount) == text


@given(
    st.text(st.characters())
    | st.text("0123456789.,-~¥$元块万千百十两二三九半点件号链接和起券后原价第 no#²")
)
def test_no_text_makes_anything_raise(text):
    price = parse_price(text)
    assert price.raw == text
    assert (price.amount is None) == (price.kind == "unknown")
    assert price.amount is None or 0 <= price.amount < math.inf
    assert asks(text) in (True, False)
    assert all(1 <= number <= 999 for number in link_numbers(text))
    assert isinstance(fold(text), str)
    clean_text(text).encode()
    assert isinstance(chinese_number(text), float | None)
    nearest(text, ["价格", "search_faq"])


@pytest.mark.parametrize("text", HOSTILE)
def test_long_hostile_text_is_read_in_linear_time(text):
    start = time.process_time()
    for function in (parse_price, asks, link_numbers, fold, chinese_number, clean_text):
        function(text)
    nearest(text, ["价格"] * 3)
    assert time.process_time() - start < 2  # 0.2 s here; quadratic patterns take minutes
