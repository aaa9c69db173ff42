"""The word match of product search."""

from __future__ import annotations

import json

import pytest
from test_retrieval import run_python

from livestream_env._resources import data_file
from livestream_env.keywords import LexicalScorer, Rewriter
from livestream_env.topics import TopicScorer
from livestream_env.words import fold


def scorer(*names: str) -> LexicalScorer:
    return LexicalScorer([[(name, 1.0)] for name in names])


HEADPHONES = ("索尼 WH-1000XM5 头戴式降噪耳机", "索尼 WH-1000XM4 头戴式降噪耳机", "漫步者 蓝牙音箱")
SNACKS = ("三只松鼠 每日坚果 750g", "良品铺子 猪肉脯 200g", "百草味 苹果脆片", "卫龙 魔芋爽 20包")


@pytest.mark.row("R17")
@pytest.mark.parametrize(
    "query", ["xm4", "XM4", "xm 4", "xm-4", "ＸＭ４", "索尼xm4多少钱", "1000xm4有吗"]
)
def test_model_number_finds_its_product_first(query: str) -> None:
    assert scorer(*HEADPHONES).search(query, 3)[0][0] == 1


@pytest.mark.row("R17")
@pytest.mark.parametrize(
    "query", ["索尼xm5", "羽绒服有吗", "苹果手机", "iphone 15", "do you have a laptop"]
)
def test_absent_product_is_not_found(query: str) -> None:
    assert scorer(*SNACKS).search(query, 5) == []


@pytest.mark.parametrize(
    "query", ["", "  ", "😂", "多少钱", "这个怎么卖", "有吗", "how much is it", "的"]
)
def test_query_that_only_asks_finds_nothing(query: str) -> None:
    assert scorer(*SNACKS).search(query, 5) == []


@pytest.mark.row("R17")
@pytest.mark.parametrize(
    ("query", "found"),
    [
        pytest.param("坚果多少钱", 0, id="question dropped"),
        pytest.param("主播这个猪肉脯怎么卖", 1, id="filler dropped"),
        pytest.param("猪肉普", 1, id="homophone"),
        pytest.param("摸芋爽", 3, id="homophone at the start"),
        pytest.param("百草味的苹果脆片", 2, id="particle inside"),
        pytest.param("原味坚果", 0, id="unknown adjective"),
    ],
)
def test_what_viewers_type_finds_the_product(query: str, found: int) -> None:
    assert scorer(*SNACKS).search(query, 5)[0][0] == found


@pytest.mark.parametrize(
    ("query", "name"),
    [
        ("鞋子多少钱", "男士休闲鞋"),
        ("包包链接几号", "真皮斜挎包"),
        ("tshirt", "Cotton T-Shirt"),
        ("t恤", "纯棉短袖T恤"),
        ("do you have running shoes", "Trail Running Shoe"),
        ("16升", "燃气热水器 16 升"),
        ("美的洗碗机", "美的（Midea）洗碗机"),
    ],
)
def test_spellings_of_one_thing_are_alike(query: str, name: str) -> None:
    assert scorer("卫龙 魔芋爽", name, "Water Bottle").search(query, 3)[0] == (1, 1.0)


def test_name_counts_more_than_attribute() -> None:
    documents = [[("充电宝", 1.0), ("颜色 红色", 0.6)], [("红色连衣裙", 1.0), ("产地 广州", 0.6)]]
    # One unit set, 红色, held by both: its share is whole in the name, .6 in the attribute.
    assert LexicalScorer(documents).search("红色", 2) == [(1, 1.0), (0, 0.6)]


def test_score_is_the_weighted_share_found() -> None:
    # N = 2. `tea` is in both: ln(1 + 3/3) = .6931; `green` is in one: ln(1 + 3/2) = .9163.
    # Document 1 holds only `tea`: .6931 / (.6931 + .9163) = .4307.
    assert scorer("green tea", "tea").search("green tea", 2) == [(0, 1.0), (1, 0.4307)]


def test_equal_documents_rank_by_number_within_the_allowed() -> None:
    five = scorer(*["蓝牙耳机"] * 5)
    assert [number for number, _ in five.search("耳机", 3)] == [0, 1, 2]
    assert [number for number, _ in five.search("耳机", 3, allowed={4, 2})] == [2, 4]
    assert five.search("耳机", 0) == []


@pytest.mark.parametrize("query", ["brown boots size 9", "boots 9 brown"])
def test_number_beside_a_word_need_not_stand_beside_it_in_the_shop(query: str) -> None:
    boots = [[("Waterproof Hiking Boots", 1.0), ("brown 9", 0.7)], [("Rain Jacket", 1.0)]]
    assert [number for number, _ in LexicalScorer(boots).search(query, 3)] == [0]


def test_scorer_of_nothing_finds_nothing() -> None:
    assert LexicalScorer([]).search("耳机", 3) == []
    assert LexicalScorer([[], [("", 1.0)]]).search("耳机", 3) == []


def test_product_search_does_not_depend_on_the_hash_seed() -> None:
    code = """
from livestream_env.keywords import LexicalScorer, Rewriter
names = ["索尼 WH-1000XM4 降噪耳机", "索尼 XM5 耳机", "蓝牙耳机 升级版", "手机壳"]
print(LexicalScorer([[(name, 1.0)] for name in names]).search("索尼的降造耳机xm4 多少钱", 4))
"""
    assert run_python(code, PYTHONHASHSEED="0") == run_python(code, PYTHONHASHSEED="1")


# The words of the texts.

ROOM = (
    "拍下后多久可以发货",
    "退款多久能够到账",
    "可以开具电子发票吗",
    "浅色衣服会不会透",
    "有没有运费险",
    "孕妇可以用吗",
)


@pytest.mark.parametrize(
    ("query", "rewritten"),
    [
        pytest.param("退宽几天到帐", "退款几天到账", id="one of two characters"),
        pytest.param("啥时候发huo啊", "啥时候发货啊", id="pinyin of one"),
        pytest.param("能开dian子票吗", "能开电子票吗", id="pinyin before"),
        pytest.param("白色tou不", "白色透不", id="pinyin of one alone"),
        pytest.param("有fapiao吗", "有发票吗", id="pinyin of both"),
        pytest.param("有yfx吗", "有运费险吗", id="short form"),
        pytest.param("多旧能到", "多久能到", id="no word is needed after"),
        pytest.param("电纸发票", "电子发票", id="zh for z"),
        pytest.param("邮费谁出", "运费谁出", id="synonym"),
        pytest.param("怀孕能用吗", "孕妇能用吗", id="synonym of another part of speech"),
    ],
)
def test_misspelt_words_become_those_of_the_texts(query: str, rewritten: str) -> None:
    assert Rewriter(ROOM).rewrite(query) == rewritten


@pytest.mark.parametrize(
    "query",
    [
        *(
            "多久发货",
            "fp",
            "可以吗",
            "能行吗",
            "花票",
            "XM4 pro",
            "T恤",
            "",
            "😂 ？",
            "\ud800坏",
            "运费险",
        ),
        "how long is shipping",
    ],
)
def test_what_no_word_of_the_texts_resembles_stays(query: str) -> None:
    assert Rewriter(("包邮吗", "有优惠券吗", "多久发货", "有没有运费险")).rewrite(query) == query


@pytest.mark.parametrize(
    ("query", "rewritten"),
    [
        ("chrger in the box?", "charger in the box?"),  # a letter less
        ("Warrenty how long", "warranty how long"),  # another letter
        ("can i retrun it", "can i return it"),  # two that changed places
        ("is shiping free", "is shipping free"),
        ("shop, warm and large", "shop, warm and large"),  # other words: short, or two letters off
        ("which Charger", "which Charger"),
        ("do i pay postage", "do i pay shipping"),
        ("Earphones for running", "headphones for running"),
    ],
)
def test_misspelt_english_words_become_those_of_the_texts(query: str, rewritten: str) -> None:
    texts = [
        "Does it come with a charger?",
        "How long is the warranty?",
        "Can I return headphones?",
    ]
    assert Rewriter([*texts, "Is shipping free?"]).rewrite(query) == rewritten


def test_synonym_that_the_texts_use_is_kept() -> None:
    assert Rewriter(["邮费多少", "运费多少"]).rewrite("邮费快递费") == "邮费运费"
    assert Rewriter(["运费多少", "运费险", "邮费"]).rewrite("快递费") == "运费"  # the more frequent


def test_of_words_that_sound_alike_the_most_frequent_is_meant() -> None:
    assert Rewriter(["充电快", "冲电", "充电头"]).rewrite("虫电") == "充电"
    assert Rewriter(["充电", "冲电"]).rewrite("虫电") == "充电"  # else the first by code point


def test_character_that_is_part_of_a_right_word_stays() -> None:
    # 家寄 sounds like 加剂, and shares no character; 家具 is right, so 具城 is not made 剧城.
    assert Rewriter(["添加剂", "家具", "剧城"]).rewrite("家寄") == "家寄"
    assert Rewriter(["家具", "剧城"]).rewrite("家具城") == "家具城"


def test_rewriting_does_not_depend_on_the_hash_seed() -> None:
    code = """
from livestream_env.keywords import Rewriter
texts = ["快递", "快地", "charger", "charges", "跑步鞋", "水杯", "保温杯"]
print(Rewriter(texts).rewrite("快弟 chargex 跑鞋 杯子 kuaidi di"))
"""
    assert run_python(code, PYTHONHASHSEED="0") == run_python(code, PYTHONHASHSEED="1")


# What texts are about.


def test_topic_score_is_the_cosine_of_weighted_topics() -> None:
    # Invoices are in both texts, weight ln(3 / 2.5)^2 = .0332; refunds in one, ln(3 / 1.5)^2 =
    # .4805. The query has both, the first text one: sqrt(.0332 / .5137) = .2544.
    scores = TopicScorer(["要发票", "发票和退款"]).search("开票还是退钱")
    assert scores == {0: 0.2544, 1: 1.0}


def test_topic_that_no_text_has_does_not_weigh() -> None:
    assert TopicScorer(["要发票", "退款"]).search("开票，海外") == {0: 1.0}
    assert TopicScorer(["要发票", "退款"]).search("海外") == {}


def test_topics_say_nothing_of_other_languages_or_without_topics() -> None:
    assert TopicScorer(["要发票"]).search("invoice vip logo") is None
    assert TopicScorer(["要发票"]).search("") is None
    assert TopicScorer(["Is shipping free?", "耳机"]).search("开票") is None
    assert TopicScorer([]).search("开票") is None


@pytest.mark.parametrize("query", ["\ud800开票", "ＶＩＰ开票", "开\u200b票" * 200, "开票" * 5000])
def test_topics_of_any_text_are_found(query: str) -> None:
    assert TopicScorer(["要发票"]).search(query) == {0: 1.0}


def test_topics_do_not_depend_on_the_hash_seed() -> None:
    code = """
from livestream_env.topics import TopicScorer
texts = ["退货的运费谁承担", "满多少包邮", "破损怎么赔", "过敏可以退货吗"]
print(TopicScorer(texts).search("碎了要寄回去，邮费谁出，给赔吗"))
"""
    assert run_python(code, PYTHONHASHSEED="0") == run_python(code, PYTHONHASHSEED="1")


def test_topics_are_written_as_texts_are_searched() -> None:
    topics = json.loads(data_file("topics.json").read_text(encoding="utf-8"))["zh"]
    for words in topics:
        assert len(words) == len(set(words)) > 1, words
        assert [fold(word) for word in words] == words
        # A word within another of its topic finds it: the longer would say nothing more.
        assert not [w for w in words for other in words if other != w and other in w], words
