"""The tools on a small room of two merchants; T6 and T7 are trials of FAULTS.md."""

from __future__ import annotations

import copy
import json
import pickle
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from rooms_for_tests import small_room

from livestream_env.agents import ScriptedAgent
from livestream_env.drivers import rollout
from livestream_env.env import LiveRoomEnv
from livestream_env.errors import CommentNotFound, SandboxError
from livestream_env.parsing import to_action
from livestream_env.room_files import list_rooms, load_room, validate_room
from livestream_env.rooms import Expected, FollowUp, Room, Statement
from livestream_env.sandbox import LocalSandbox
from livestream_env.tools import TOOLS, argument_fault, find_faqs, tool_specs, wording
from livestream_env.types import Action, Fact, FrozenDict, ToolCall, ToolResult, freeze

ROOT = Path(__file__).parents[1]
NAMES = (
    "search_product_by_keyword",
    "search_faq",
    "search_script",
    "search_comments",
    "get_reply_rule",
    "move_product",
    "show_image",
    "hand_off",
)

RAW: dict[str, Any] = {
    "room_id": "two-shops",
    "language": "zh",
    "products": [
        {
            "product_id": "coat",
            "链接号": 1,
            "商品名": "轻羽短款羽绒服",
            "商家名": "北麓",
            "attributes": {"填充": "90白鸭绒", "洗涤": "可机洗" + "，请装洗衣袋" * 60},
            "images": ["front", "back"],
            "skus": [
                {
                    "sku_id": "coat-L",
                    "spec": {"颜色": "墨绿", "尺码": "L"},
                    "价格": 399,
                    "券后价": 349,
                    "库存": 3,
                },
                {
                    "sku_id": "coat-M",
                    "spec": {"颜色": "雾蓝", "尺码": "M"},
                    "价格": 399,
                    "券后价": 359,
                    "库存": 5,
                },
            ],
            "promotions": [
                {"promotion_id": "c1", "kind": "coupon", "amount": 50, "text": "领50元券"}
            ],
        },
        {
            "product_id": "jar",
            "链接号": 2,
            "商品名": "麦饭石焖烧杯",
            "商家名": "南溪",
            "价格": "¥59.9起",
            "券后价": "2件99",
            "库存": 0,
            "商品条形码": "2000000000017",
        },
        {
            "product_id": "lamp",
            "链接号": 3,
            "商品名": "露营灯",
            "商家名": "南溪",
            "价格": "面议",
            "券后价": "-",
        },
        {"product_id": "later", "链接号": 4, "商品名": "折叠桌", "价格": 88.5},
        {"product_id": "gone", "链接号": 5, "商品名": "充气床垫", "价格": 120},
        {"product_id": "plain", "商品名": "帆布袋"},
    ],
    "promotions": [
        {
            "promotion_id": "full",
            "kind": "full_reduction",
            "scope": "merchant:南溪",
            "threshold": 200,
            "amount": 30,
            "stacks_with": ["coupon"],
            "text": "南溪满200减30",
        }
    ],
    "faqs": [
        {
            "faq_id": "room-post",
            "question": "包邮吗",
            "similar": ["运费谁出", "要不要邮费"],
            "answer": "全场包邮",
        },
        {
            "faq_id": "bei-post",
            "question": "包邮吗",
            "answer": "北麓满99包邮",
            "scope": "merchant:北麓",
        },
        {
            "faq_id": "nan-post",
            "question": "包邮吗",
            "answer": "南溪不包邮",
            "scope": "merchant:南溪",
        },
        {
            "faq_id": "coat-wash",
            "question": "能机洗吗",
            "answer": "羽绒服可机洗",
            "scope": "product:coat",
        },
        {
            "faq_id": "jar-wash",
            "question": "能机洗吗",
            "answer": "杯子只能手洗",
            "scope": "product:jar",
        },
        {"faq_id": "ship", "question": "什么时候发货", "answer": "48小时内发货"},
    ],
    "script": [
        {
            "segment_id": "s1",
            "start_s": 0,
            "end_s": 100,
            "text": "今晚九点抽奖送手套",
            "product_id": "coat",
        },
        {
            "segment_id": "s2",
            "start_s": 300,
            "end_s": 400,
            "text": "后面还有露营灯上新",
            "product_id": "lamp",
        },
    ],
    "reply_rules": [
        {"rule_id": "r1", "intent": "价格咨询", "rule": "报券后价"},
        {"rule_id": "r2", "intent": "发货物流", "rule": "报时效"},
        {"rule_id": "r3", "intent": "发货物流", "rule": "北麓当天发", "scope": "merchant:北麓"},
        {"rule_id": "r4", "intent": "定制刻字", "rule": "杯子可刻字", "scope": "product:jar"},
    ],
    "events": [
        {"at_s": 200, "kind": "listed", "target": "product:later"},
        {"at_s": 150, "kind": "withdrawn", "target": "product:gone"},
        {"at_s": 200, "kind": "current_product", "target": "product:jar"},
    ],
    "comments": [
        {
            "comment_id": "c1",
            "viewer": "阿土",
            "at_s": 50,
            "text": "羽绒服会不会钻绒",
            "current_product": "coat",
            "recorded_reply": {"text": "不钻绒的", "at_s": 60},
        },
        {
            "comment_id": "c2",
            "viewer": "小禾",
            "at_s": 100,
            "text": "羽绒服钻绒吗",
            "current_product": "coat",
            "recorded_reply": {"text": "回复太晚了", "at_s": 240},
        },
        {"comment_id": "c3", "viewer": "老白", "at_s": 210, "text": "钻绒的话能退吗"},
        {"comment_id": "c4", "viewer": "花生", "at_s": 250, "text": "羽绒服钻绒怎么办"},
    ],
}
ROOM = validate_room(RAW)


def opened(*comments: str, room: Room = ROOM, **options: Any) -> LocalSandbox:
    sandbox = LocalSandbox(room, embedder="lexical", **options)
    sandbox.reset(seed=0, comments=comments or ("c2",))
    return sandbox


def call(sandbox: LocalSandbox, name: str, **arguments: Any) -> ToolResult:
    return sandbox.call(ToolCall("x", name, freeze(arguments)))


def content_of(result: ToolResult) -> dict[str, Any]:
    return dict(json.loads(result.content))


def found(result: ToolResult, key: str) -> list[Any]:
    assert result.error is None, result.content
    return [entry[key] for entry in content_of(result)["结果"]]


def products(keyword: str, *comments: str) -> list[Any]:
    return found(call(opened(*comments), "search_product_by_keyword", keyword=keyword), "商品名")


# --- specs: R17 ------------------------------------------------------------------------------


@pytest.mark.row("R17")
@pytest.mark.parametrize("name", NAMES)
def test_a_spec_file_is_an_openai_tool_in_both_languages(name: str) -> None:
    files = {lang: ROOT / "tool_specs" / lang / f"{name}.json" for lang in ("zh", "en")}
    raw = {lang: json.loads(file.read_text(encoding="utf-8")) for lang, file in files.items()}
    for language, spec in raw.items():
        assert set(spec) == {"type", "function"}
        assert spec["type"] == "function"
        function = spec["function"]
        assert set(function) == {"name", "description", "parameters"}
        assert function["name"] == name
        parameters = function["parameters"]
        assert parameters["type"] == "object"
        assert parameters["additionalProperties"] is False
        assert set(parameters["required"]) <= set(parameters["properties"])
        for text in (function["description"], *descriptions(parameters)):
            assert text
            assert text.isascii() == (language == "en") or "「" in text
        [made] = tool_specs(language, [name])
        assert made.to_openai() == spec
        assert made.mutates == (name in ("move_product", "show_image", "hand_off"))
        assert made.pure != made.mutates
    assert undescribed(raw["zh"]) == undescribed(raw["en"])


def descriptions(schema: dict[str, Any]) -> Iterator[str]:
    for one in schema["properties"].values():
        yield one["description"]


def undescribed(value: Any) -> Any:
    if isinstance(value, dict):
        return {k: undescribed(v) for k, v in value.items() if k != "description"}
    return [undescribed(v) for v in value] if isinstance(value, list) else value


def test_the_folders_hold_the_tools_and_nothing_else() -> None:
    assert tuple(name for name, one in TOOLS.items() if not one.held_out) == NAMES
    for language in ("zh", "en"):
        files = {path.stem for path in (ROOT / "tool_specs" / language).iterdir()}
        assert files == set(TOOLS)


@pytest.mark.row("R17")
@pytest.mark.parametrize(
    ("name", "right", "wrong"),
    [
        ("search_product_by_keyword", {"keyword": "灯"}, {"keyword": 3}),
        ("search_faq", {"query": "包邮吗"}, {"query": ["包邮吗"]}),
        ("search_script", {"query": "抽奖"}, {"query": None}),
        ("search_comments", {"query": "钻绒"}, {"query": {"a": 1}}),
        ("get_reply_rule", {"intent": "价格咨询"}, {"intent": 5}),
        ("get_reply_rule", {"intent": ["价格咨询", "发货物流"]}, {"intent": [""]}),
        ("move_product", {"link_no": 1, "position": 2}, {"link_no": "1", "position": 2}),
        ("show_image", {"link_no": 1, "image": "back"}, {"link_no": True, "image": "back"}),
        ("hand_off", {"reason": "要人工"}, {"reason": 1.5}),
    ],
)
@pytest.mark.parametrize("language", ["zh", "en"])
def test_arguments_are_checked_against_the_schema_before_the_tool_runs(
    name: str, right: dict[str, Any], wrong: dict[str, Any], language: str
) -> None:
    sandbox = opened(language=language)
    key = next(iter(right))
    bad: list[dict[str, Any]] = [wrong, {}, {**right, "top_k": 3}, {**right, key: ""}]
    bad += [{**right, key: "长" * 10_000}, {**right, key: []}]
    if "link_no" in right:
        bad += [{**right, "link_no": value} for value in (-1, 10**9, 1.5, 10**400, None)]
    if "position" in right:
        bad += [{**right, "position": value} for value in (0, -1, 10**9, "2", True)]
    for arguments in bad:
        result = call(sandbox, name, **arguments)
        assert result.error == "invalid_arguments", arguments
        assert (result.state, result.data) == (None, ())
        assert len(result.content) < 300
        assert "arguments" in result.content
    result = call(sandbox, name, **right)
    assert result.error is None
    assert (result.state is not None) == TOOLS[name].mutates


@pytest.mark.parametrize(
    ("name", "arguments", "fault"),
    [
        ("search_faq", {}, "arguments must hold `query`"),
        ("move_product", {"link_no": 1}, "arguments must hold `position`"),
        (
            "search_faq",
            {"query": "x", "zz": 1, "aa": 2},
            "arguments must not hold `aa`, `zz`; it takes `query`",
        ),
        ("move_product", {"link_no": "1", "position": 1}, "arguments.link_no must be integer"),
        (
            "get_reply_rule",
            {"intent": 1},
            "arguments.intent must be string or array, neither empty nor too long",
        ),
    ],
)
def test_the_fault_of_arguments_says_what_is_right(
    name: str, arguments: dict[str, Any], fault: str
) -> None:
    assert argument_fault(name, arguments) == fault


def test_whole_numbers_written_with_a_point_are_whole_numbers() -> None:
    result = call(opened(), "move_product", link_no=2.0, position=1.0)
    assert content_of(result) == {"链接号": 2, "位置": 1, "结果": "已完成"}
    result = call(opened(), "show_image", link_no=1.0, image="back")
    assert content_of(result) == {"链接号": 1, "图片": "back", "结果": "已完成"}


@pytest.mark.parametrize(
    "name",
    ["search_product", "Search_Product_By_Keyword", "search faq", "", "x" * 100_000, "{given}"],
)
@pytest.mark.parametrize("language", ["zh", "en"])
def test_an_unknown_tool_is_answered_with_the_available_ones(name: str, language: str) -> None:
    sandbox = opened(language=language, tools=["search_faq", "get_reply_rule"])
    result = call(sandbox, name, query="x")
    assert (result.error, result.data, result.state) == ("unknown_tool", (), None)
    assert "search_faq, get_reply_rule" in result.content
    assert len(result.content) < 400
    assert call(sandbox, "hand_off", reason="x").error == "unknown_tool"


def test_tools_are_chosen_by_name_once_each_and_none_is_none() -> None:
    chosen = tool_specs("zh", ["hand_off", "search_faq", "hand_off"])
    assert [spec.name for spec in chosen] == ["hand_off", "search_faq"]
    assert tool_specs("zh", []) == ()
    assert [spec.name for spec in tool_specs("en")] == list(NAMES)
    with pytest.raises(ValueError, match=r"no tool `search_fqa`.*Did you mean `search_faq`"):
        tool_specs("zh", ["search_fqa"])


# --- products --------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("keyword", "names"),
    [
        pytest.param("2号链接", ["麦饭石焖烧杯"], id="link"),
        pytest.param("1和3", ["轻羽短款羽绒服", "露营灯"], id="links"),
        pytest.param("麦饭石焖烧杯", ["麦饭石焖烧杯"], id="name"),
        pytest.param("焖烧杯", ["麦饭石焖烧杯"], id="part of a name"),
        pytest.param("露营登", ["露营灯"], id="homophone"),
        pytest.param("墨绿", ["轻羽短款羽绒服"], id="variant"),
        pytest.param("白鸭绒", ["轻羽短款羽绒服"], id="attribute"),
        pytest.param("扫地机器人", [], id="absent"),
        pytest.param("77号链接", [], id="absent link"),
        pytest.param("😀", [], id="emoji"),
    ],
)
def test_products_are_found_by_what_viewers_type(keyword: str, names: list[str]) -> None:
    assert products(keyword) == names


@pytest.mark.parametrize("language", ["zh", "en"])
def test_nothing_found_is_an_empty_result_with_a_note(language: str) -> None:
    sandbox = opened(language=language)
    words = wording(language)
    for name, argument, note in (
        ("search_product_by_keyword", "keyword", "no_product"),
        ("search_faq", "query", "no_faq"),
        ("search_script", "query", "no_script"),
        ("search_comments", "query", "no_comment"),
    ):
        result = call(sandbox, name, **{argument: "zzzz"})
        f = words["fields"]
        assert (result.error, result.data) == (None, ())
        assert content_of(result) == {f["results"]: [], f["note"]: words[note]}


@pytest.mark.row("R18")
def test_a_product_has_the_production_keys_and_raw_prices() -> None:
    sandbox = opened()
    [jar] = content_of(call(sandbox, "search_product_by_keyword", keyword="2号"))["结果"]
    assert {"商品名", "商家名", "券后价", "库存", "商品条形码", "链接号"} <= set(jar)
    assert jar == {
        "链接号": 2,
        "商品名": "麦饭石焖烧杯",
        "商家名": "南溪",
        "价格": "¥59.9起",
        "券后价": "2件99",
        "库存": 0,
        "商品条形码": "2000000000017",
        "优惠": [
            {
                "优惠编号": "full",
                "类型": "full_reduction",
                "适用范围": "merchant:南溪",
                "门槛": 200.0,
                "金额": 30.0,
                "每单一次": True,
                "可叠加": ["coupon"],
                "说明文字": "南溪满200减30",
            }
        ],
    }


def test_unknown_values_say_so_and_are_never_zero() -> None:
    sandbox = opened()
    [bag] = content_of(call(sandbox, "search_product_by_keyword", keyword="帆布袋"))["结果"]
    assert {bag[k] for k in ("链接号", "商家名", "价格", "券后价", "库存", "商品条形码")} == {
        "未知"
    }
    [lamp] = content_of(call(sandbox, "search_product_by_keyword", keyword="3号"))["结果"]
    assert (lamp["价格"], lamp["券后价"], lamp["库存"]) == ("未知 (面议)", "未知", "未知")
    data = call(sandbox, "search_product_by_keyword", keyword="帆布袋").data
    assert {fact.value for fact in data if fact.field != "name"} == {None}


def test_prices_of_variants_are_derived_and_say_so() -> None:
    [coat] = content_of(call(opened(), "search_product_by_keyword", keyword="1号"))["结果"]
    # 399 twice; 349 and 359 -> from 349; 3 + 5 pieces
    assert (coat["价格"], coat["券后价"], coat["库存"]) == (399, "349起", 8)
    assert coat["说明"] == wording("zh")["derived"]
    assert coat["规格"][0] == {
        "规格编号": "coat-L",
        "规格名": {"颜色": "墨绿", "尺码": "L"},
        "价格": 399,
        "券后价": 349,
        "库存": 3,
    }
    assert len(coat["属性"]["洗涤"]) == 300
    assert coat["属性"]["洗涤"].endswith("…")
    assert coat["图片"] == ["front", "back"]


@pytest.mark.parametrize(
    ("keyword", "before", "after"),
    [
        ("折叠桌", [], ["折叠桌"]),
        ("4号", [], ["折叠桌"]),
        ("充气床垫", ["充气床垫"], []),
        ("5号", ["充气床垫"], []),
    ],
)
def test_products_not_yet_listed_or_withdrawn_are_never_found(
    keyword: str, before: list[str], after: list[str]
) -> None:
    assert products(keyword, "c2") == before
    assert products(keyword, "c3") == after


# --- every fact is shown, every value is a fact ----------------------------------------------


EVERY = [
    *(("search_product_by_keyword", {"keyword": k}) for k in ("1、2、3号链接", "帆布袋", "折叠桌")),
    ("search_faq", {"query": "包邮吗"}),
    ("search_script", {"query": "今晚九点抽奖送手套"}),
    ("search_comments", {"query": "羽绒服会不会钻绒"}),
    ("get_reply_rule", {"intent": ["价格咨询", "发货物流"]}),
]


@pytest.mark.parametrize("language", ["zh", "en"])
@pytest.mark.parametrize("comment", ["c2", "c4"])
@pytest.mark.parametrize(("name", "arguments"), EVERY)
def test_the_facts_are_what_the_content_says(
    name: str, arguments: dict[str, Any], comment: str, language: str
) -> None:
    result = call(opened(comment, language=language), name, **arguments)
    assert result.error is None
    values = set(scalars(content_of(result)))
    for fact in result.data:
        assert fact.text, fact
        assert fact.text in values or fact.text in result.content, fact
    shown = {fact.record.partition(":")[2] for fact in result.data}
    shown |= {fact.text for fact in result.data}
    # what a variant is and what a promotion stacks with are one fact each
    shown |= {v for f in result.data if f.text[:1] in "[{" for v in scalars(json.loads(f.text))}
    notes = {wording(language)[key] for key in ("derived", "last_resort", "no_product", "no_faq")}
    assert values <= shown | notes


def scalars(value: Any) -> Iterator[str]:
    if isinstance(value, dict):
        for item in value.values():
            yield from scalars(item)
    elif isinstance(value, list):
        for item in value:
            yield from scalars(item)
    else:
        yield value if isinstance(value, str) else json.dumps(value)


def test_facts_carry_values_and_units() -> None:
    facts = call(opened(), "search_product_by_keyword", keyword="1号和2号").data
    held = {(fact.record, fact.field): fact for fact in facts}
    assert held["product:jar", "price"] == Fact("product:jar", "price", 59.9, "yuan", "¥59.9起")
    assert held["product:jar", "stock"] == Fact("product:jar", "stock", 0, "piece", "0")
    assert held["product:coat", "coupon_price"].value == 349
    assert held["sku:coat-M", "coupon_price"] == Fact(
        "sku:coat-M", "coupon_price", 359, "yuan", "359"
    )
    assert held["sku:coat-L", "spec"].value == "墨绿 L"
    assert held["product:coat", "填充"].value == "90白鸭绒"
    assert held["promotion:full", "threshold"] == Fact(
        "promotion:full", "threshold", 200, "yuan", "200.0"
    )
    assert held["promotion:full", "text"].value == "南溪满200减30"


def test_results_are_compact_json_with_chinese_unescaped() -> None:
    for name, arguments in EVERY:
        content = call(opened(), name, **arguments).content
        assert content == json.dumps(json.loads(content), ensure_ascii=False, separators=(",", ":"))
        assert "\\u" not in content


def test_an_english_room_speaks_english() -> None:
    raw = copy.deepcopy(RAW)
    raw["language"] = "en"
    sandbox = opened(room=validate_room(raw))
    [jar] = content_of(call(sandbox, "search_product_by_keyword", keyword="link 2"))["results"]
    keys = ["link_no", "name", "merchant", "price", "coupon_price", "stock", "barcode"]
    assert list(jar) == [*keys, "promotions"]
    [lamp] = content_of(call(sandbox, "search_product_by_keyword", keyword="link 3"))["results"]
    assert (lamp["price"], lamp["coupon_price"]) == ("unknown (面议)", "unknown")
    facts = call(sandbox, "search_product_by_keyword", keyword="link 2").data
    assert {fact.unit for fact in facts} == {None, "dollar", "piece"}
    assert sandbox.specs[0].description.isascii()


# --- FAQs: R99 -------------------------------------------------------------------------------


@pytest.mark.row("R99")
@pytest.mark.parametrize(
    ("comment", "query", "answer"),
    [
        pytest.param("c2", "包邮吗", "北麓满99包邮", id="the current product's shop"),
        pytest.param("c3", "包邮吗", "南溪不包邮", id="another current product"),
        pytest.param("c2", "运费谁出", "北麓满99包邮", id="in the words of the room's FAQ"),
        pytest.param("c2", "要不要邮费", "北麓满99包邮", id="in other words"),
        pytest.param("c2", "2号链接包邮吗", "南溪不包邮", id="a product that is named"),
        pytest.param("c2", "能机洗吗", "羽绒服可机洗", id="product scope"),
        pytest.param("c3", "能机洗吗", "杯子只能手洗", id="product scope of another"),
    ],
)
def test_of_one_question_the_answer_of_the_nearest_scope_wins(
    comment: str, query: str, answer: str
) -> None:
    answers = found(call(opened(comment), "search_faq", query=query), "答案")
    assert answers[0] == answer
    assert len([a for a in answers if "邮" in a]) <= 1
    assert len([a for a in answers if "洗" in a]) <= 1


def test_an_faq_is_found_once_whatever_its_phrasings() -> None:
    sandbox = opened("c4")
    ids = found(call(sandbox, "search_faq", query="包邮吗运费谁出要不要邮费"), "问答编号")
    assert sorted(ids) == sorted(set(ids))
    assert ids == ["nan-post"]


def test_no_more_faqs_are_returned_than_asked_for() -> None:
    sandbox = opened()
    assert sandbox._world is not None
    assert find_faqs(sandbox._world, "什么时候发货", 0) == []
    assert [f.faq_id for f in find_faqs(sandbox._world, "什么时候发货", 1)] == ["ship"]


# --- script, comments ------------------------------------------------------------------------


def test_the_script_says_what_was_said_and_what_was_not_yet() -> None:
    for comment, said in (("c1", "还没讲"), ("c4", "还没讲")):
        [entry] = content_of(call(opened(comment), "search_script", query="露营灯上新"))["结果"]
        assert entry == {"文案编号": "s2", "文案": "后面还有露营灯上新", "状态": said}
    [entry] = content_of(call(opened("c1"), "search_script", query="抽奖送手套"))["结果"]
    assert (entry["文案编号"], entry["状态"]) == ("s1", "已讲")
    facts = call(opened("c1"), "search_script", query="抽奖送手套").data
    assert Fact("script:s1", "said", True, None, "已讲") in facts


@pytest.mark.parametrize(
    ("comments", "ids"),
    [(("c1",), []), (("c2",), ["c1"]), (("c3",), ["c1", "c2"]), (("c2", "c4"), ["c1", "c3"])],
)
def test_comments_that_are_open_or_later_are_not_found(
    comments: tuple[str, ...], ids: list[str]
) -> None:
    result = call(opened(*comments), "search_comments", query="羽绒服钻绒")
    assert sorted(found(result, "弹幕编号")) == ids


def test_a_reply_given_later_does_not_exist_yet() -> None:
    def replies(comment: str) -> dict[str, str | None]:
        entries = content_of(call(opened(comment), "search_comments", query="羽绒服钻绒"))["结果"]
        return {entry["弹幕编号"]: entry.get("主播回复") for entry in entries}

    assert replies("c3") == {"c1": "不钻绒的", "c2": None}
    assert replies("c4") == {"c1": "不钻绒的", "c2": "回复太晚了", "c3": None}


# --- rules -----------------------------------------------------------------------------------


def rules(sandbox: LocalSandbox, intent: Any) -> list[Any]:
    return found(call(sandbox, "get_reply_rule", intent=intent), "回复规则")


def test_rules_are_looked_up_one_or_several_at_a_time_and_by_scope() -> None:
    assert rules(opened(), "价格咨询") == ["报券后价"]
    assert rules(opened(), ["发货物流", "价格咨询"]) == ["北麓当天发", "报券后价"]
    assert rules(opened("c3"), "发货物流") == ["报时效"]
    assert rules(opened("c3"), "定制刻字") == ["杯子可刻字"]
    assert rules(opened(), "\u200b价格咨询 ") == ["报券后价"]


def test_an_unknown_intent_lists_the_known_ones_nearest_first() -> None:
    for intent in ("物流发货", ["价格咨询", "物流发货"]):
        result = call(opened(), "get_reply_rule", intent=intent)
        assert (result.error, result.data) == ("unknown_intent", ())
        content = content_of(result)
        assert content["可查意图"] == ["发货物流", "价格咨询"]
        assert "物流发货" in content["说明"]
    assert (
        content_of(call(opened("c3"), "get_reply_rule", intent="刻字"))["可查意图"][0] == "定制刻字"
    )
    content = content_of(call(opened(language="en"), "get_reply_rule", intent="\u200b"))
    assert set(content["known_intents"]) == {"发货物流", "价格咨询"}


def test_the_rule_of_last_resort_is_found_when_no_other_fits() -> None:
    raw = copy.deepcopy(RAW)
    raw["reply_rules"].append({"rule_id": "r9", "intent": "*", "rule": "查到什么说什么"})
    sandbox = opened(room=validate_room(raw))
    [entry] = content_of(call(sandbox, "get_reply_rule", intent="闲聊"))["结果"]
    assert entry == {
        "意图": "*",
        "回复规则": "查到什么说什么",
        "说明": wording("zh")["last_resort"],
    }
    assert rules(sandbox, ["发货物流", "闲聊"]) == ["北麓当天发", "查到什么说什么"]


# --- writes ----------------------------------------------------------------------------------


@pytest.mark.row("R10")
def test_move_product_changes_the_order() -> None:
    sandbox = opened()
    assert order(sandbox) == ("coat", "jar", "lamp", "gone", "plain")
    result = call(sandbox, "move_product", link_no=3, position=1)
    assert content_of(result) == {"链接号": 3, "位置": 1, "结果": "已完成"}
    assert result.data == (Fact("product:lamp", "position", 1, None, "1"),)
    assert result.state is not None
    assert result.state.product_order == ("lamp", "coat", "jar", "gone", "plain")
    call(sandbox, "move_product", link_no=3, position=5)
    assert order(sandbox) == ("coat", "jar", "gone", "plain", "lamp")


def order(sandbox: LocalSandbox) -> tuple[str, ...]:
    assert sandbox._world is not None
    return sandbox._world.state.product_order


@pytest.mark.row("R10")
def test_show_image_and_hand_off_change_the_state() -> None:
    sandbox = opened()
    result = call(sandbox, "show_image", link_no=1, image="back")
    assert result.state is not None
    assert result.state.shown_image == ("coat", "back")
    assert result.data == (Fact("product:coat", "image", "back", None, "back"),)
    result = call(sandbox, "hand_off", reason="要开发票")
    assert result.state is not None
    assert result.state.hand_offs == ("要开发票",)
    assert result.state.shown_image == ("coat", "back")
    assert [event.kind for event in result.events] == ["hand_off"]
    assert content_of(result) == {"原因": "要开发票", "结果": "已完成"}


@pytest.mark.parametrize(
    ("name", "arguments", "code", "right"),
    [
        ("move_product", {"link_no": 9, "position": 1}, "unknown_link", "1, 2, 3, 5"),
        ("move_product", {"link_no": 4, "position": 1}, "unknown_link", "1, 2, 3, 5"),
        ("move_product", {"link_no": 1, "position": 6}, "bad_position", "1 到 5"),
        ("show_image", {"link_no": 9, "image": "back"}, "unknown_link", "1, 2, 3, 5"),
        ("show_image", {"link_no": 1, "image": "side"}, "unknown_image", "front, back"),
        ("show_image", {"link_no": 2, "image": "side"}, "unknown_image", "-"),
    ],
)
def test_a_wrong_write_changes_nothing_and_lists_what_is_right(
    name: str, arguments: dict[str, Any], code: str, right: str
) -> None:
    sandbox = opened()
    before = sandbox._world
    result = call(sandbox, name, **arguments)
    assert (result.error, result.data, result.state) == (code, (), None)
    assert sandbox._world is before
    assert right in content_of(result)["说明"]


# --- the local sandbox -----------------------------------------------------------------------


SCRIPT = [
    ("search_faq", {"query": "包邮吗"}),
    ("move_product", {"link_no": 3, "position": 1}),
    ("search_product_by_keyword", {"keyword": "墨绿"}),
    ("show_image", {"link_no": 1, "image": "back"}),
    ("nobody", {}),
    ("hand_off", {"reason": "x"}),
]


def test_the_memory_of_pure_tools_changes_no_result() -> None:
    kept, anew = opened(), opened(memory=False)
    for name, arguments in [*EVERY, *SCRIPT, *EVERY]:
        assert call(kept, name, **arguments) == call(anew, name, **arguments)


def test_arguments_that_python_finds_equal_are_not_confused() -> None:
    sandbox = opened()
    assert call(sandbox, "move_product", link_no=1, position=1).error is None
    assert call(sandbox, "move_product", link_no=True, position=1).error == "invalid_arguments"
    for extra in ({"b": 1, "a": 2}, {"a": 2, "b": 1}):
        result = call(sandbox, "search_faq", query="x", **extra)
        assert "`a`, `b`" in result.content


@pytest.mark.parametrize("k", range(7))
def test_a_fork_stands_after_the_first_k_calls_and_branches_are_apart(k: int) -> None:
    states = []
    sandbox = opened()
    for name, arguments in SCRIPT:
        assert sandbox._world is not None
        states.append(sandbox._world.state)
        call(sandbox, name, **arguments)
    assert sandbox._world is not None
    states.append(sandbox._world.state)
    forked = sandbox.fork(k)
    assert forked._world is not None
    assert forked._world.state == states[k]
    for name, arguments in SCRIPT[k:]:
        call(forked, name, **arguments)
    assert forked._world.state == states[-1]
    call(forked, "hand_off", reason="只在分支")
    assert sandbox._world.state == states[-1]
    call(sandbox, "move_product", link_no=5, position=1)
    assert forked._world.state.product_order == states[-1].product_order
    assert sandbox.fork()._world is sandbox._world


def test_a_fork_beyond_the_calls_made_raises() -> None:
    for at_call in (-1, 1):
        with pytest.raises(ValueError, match="0 calls were made"):
            opened().fork(at_call)


def test_a_call_before_reset_or_after_close_raises() -> None:
    sandbox = LocalSandbox(ROOM, embedder="lexical")
    for _ in range(2):
        with pytest.raises(SandboxError, match="call `reset` first"):
            call(sandbox, "search_faq", query="x")
        with pytest.raises(SandboxError):
            call(sandbox.fork(), "search_faq", query="x")
        sandbox.reset(seed=0, comments=["c1"])
        assert call(sandbox, "search_faq", query="x").error is None
        sandbox.close()
        sandbox.close()
    assert sandbox.log() == ()


def test_an_unknown_comment_raises_with_the_nearest() -> None:
    with pytest.raises(CommentNotFound):
        LocalSandbox(ROOM, embedder="lexical").reset(seed=0, comments=["c9"])


def test_a_sandbox_goes_to_another_process_in_mid_episode() -> None:
    sandbox = opened("c2")
    call(sandbox, "move_product", link_no=3, position=1)
    again = pickle.loads(pickle.dumps(sandbox))
    assert order(again) == order(sandbox)
    for name, arguments in [*EVERY, *SCRIPT]:
        assert call(again, name, **arguments) == call(sandbox, name, **arguments)
    assert again.fork(0)._world.state == sandbox.fork(0)._world.state  # type: ignore[union-attr]
    unopened = pickle.loads(pickle.dumps(LocalSandbox(ROOM, embedder="lexical")))
    unopened.reset(seed=0, comments=["c2"])
    assert call(unopened, "search_faq", query="包邮吗") == call(
        opened(), "search_faq", query="包邮吗"
    )


def test_reset_starts_afresh() -> None:
    sandbox = opened()
    call(sandbox, "move_product", link_no=3, position=1)
    view = sandbox.reset(seed=1, comments=["c2"])
    assert order(sandbox) == view.state.product_order == ("coat", "jar", "lamp", "gone", "plain")


def test_malformed_calls_become_short_results_in_an_episode_that_goes_on() -> None:
    env = LiveRoomEnv(ROOM, embedder="lexical", max_turns=30)
    env.reset(seed=1)
    whole = '{"name": "move_product", "arguments": {"link_no": 1, "position": 2}}'
    texts = [f"<tool_call>{whole[:k]}</tool_call>" for k in range(0, len(whole), 4)]
    for text in texts:
        observation, _, terminated, truncated, info = env.step(text)
        assert info["events"] == ["invalid_call"]
        assert not terminated
        assert not truncated
        [message] = observation.messages
        assert json.loads(message.content)["错误"] == "invalid_json"
        assert len(message.content) < 300
    assert env.trajectory.state is not None
    assert env.trajectory.state.product_order[:2] == ("coat", "jar")


# --- the key ---------------------------------------------------------------------------------


def key_texts(expected: Expected | None) -> Iterator[str]:
    for ask in () if expected is None else expected.asks:
        yield from ask.ask_for
        for statement in (*ask.facts, *ask.extras, *ask.must_not):
            yield from statement_texts(statement)
    if expected is not None:
        yield expected.provenance


def statement_texts(statement: Statement) -> Iterator[str]:
    yield from statement.text
    if isinstance(statement.value, str):
        yield statement.value


def follow_up_texts(follow_up: FollowUp) -> Iterator[str]:
    yield follow_up.text
    yield from key_texts(follow_up.expected)
    if follow_up.when != "always":
        yield from follow_up.when


@pytest.mark.parametrize("name", [name for name in list_rooms() if name != "thrift"])  # no key
def test_nothing_of_the_key_leaks_into_what_the_agent_is_told(name: str) -> None:
    room = load_room(name)
    key = {t for c in room.comments for t in key_texts(c.expected)}
    key |= {t for c in room.comments for f in c.follow_ups for t in follow_up_texts(f)}
    env = LiveRoomEnv(room, embedder="lexical", max_turns=12)
    world = told_of_the_world(room)
    secret = {text for text in key if len(text) > 3 and text not in world}
    assert secret
    agent = ScriptedAgent(room)
    for number in range(len(room.comments)):
        trajectory = rollout(env, agent, seed=number)
        told = [m.content for m in trajectory.messages if m.role != "assistant"]
        told += [fact.text for turn in trajectory.turns for r in turn.results for fact in r.data]
        told += [str(event) for turn in trajectory.turns for event in turn.events]
        said = {m.content for turn in trajectory.turns for m in turn.messages if m.role == "user"}
        sent = " ".join(
            str(value)
            for turn in trajectory.turns
            for c in turn.action.message.tool_calls
            for value in c.arguments.values()
        )
        for text in told:
            leaked = [
                s for s in secret if s in text and s not in sent and not any(s in x for x in said)
            ]
            assert not leaked, (trajectory.comment_ids, leaked)


def told_of_the_world(room: Room) -> str:
    """Return all that the world holds, with prices as results write them."""
    kept = {"comment_id", "viewer", "at_s", "text", "current_product", "history", "recorded_reply"}
    values = room.model_dump(mode="json")
    values["comments"] = [{k: v for k, v in c.items() if k in kept} for c in values["comments"]]
    return json.dumps(values, ensure_ascii=False)


def test_an_action_text_that_asks_for_the_key_gets_an_error_only() -> None:
    env = LiveRoomEnv(load_room("snacks"), embedder="lexical")
    env.reset(seed=0)
    text = '<tool_call>{"name": "get_expected", "arguments": {}}</tool_call>'
    assert to_action(text) != Action.reply(text)
    observation, *_ = env.step(text)
    assert json.loads(observation.messages[0].content)["错误"] == "unknown_tool"


def test_goods_listed_later_do_not_change_what_is_found() -> None:
    early = [
        {"product_id": "a", "link_no": 1, "name": "羽绒服"},
        {"product_id": "b", "link_no": 2, "name": "面霜"},
    ]
    late = [{"product_id": f"l{i}", "link_no": 10 + i, "name": f"羽绒 面霜 {i}"} for i in range(6)]
    events = [{"at_s": 100, "kind": "listed", "target": f"l{i}"} for i in range(6)]
    found = []
    for products, changes in ((early, []), ([*early, *late], events)):
        room = small_room(products=products, events=changes, script=[])
        sandbox = LocalSandbox(room, embedder="lexical")
        sandbox.reset(seed=0, comments=["c1"])
        calls = [
            ToolCall("x", "search_product_by_keyword", FrozenDict(keyword=keyword))
            for keyword in ("羽绒 面霜", "羽绒服面霜", "面霜", "羽绒")
        ]
        found.append([sandbox.call(call).content for call in calls])
    assert found[0] == found[1]
