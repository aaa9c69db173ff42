"""Verifiable hooks and rubrics, on a small room whose key is written here."""

from __future__ import annotations

import asyncio
import math
import time
from collections.abc import Mapping, Sequence
from typing import Any

import gymnasium as gym
import numpy as np
import pytest
from rooms_for_tests import small_room

import livestream_env as le
from livestream_env.coverage import facts_stated
from livestream_env.errors import JudgeError
from livestream_env.evidence import Reading
from livestream_env.reply_hooks import length_band
from livestream_env.reward_hooks import progress, state_reached
from livestream_env.rewards import HOOKS, PRESETS, Rubric, correctness, make_rubric
from livestream_env.rooms import Room
from livestream_env.types import Rewards, Score, State, Status, Trajectory

PRICE = {
    "intent": "价格",
    "needed": ["product:p1"],
    "facts": [{"record": "product:p1", "field": "price"}],
    "extras": [{"record": "product:p1", "field": "coupon_price"}],
}
SHIPPING = {
    "intent": "物流",
    "needed": ["faq:f1"],
    "facts": [{"record": "faq:f1", "field": "answer", "text": ["48小时"]}],
}
RULES = [
    {"rule_id": "r1", "intent": "物流", "rule": "说清时效"},
    {"rule_id": "r3", "intent": "闲聊", "rule": "简短"},
    {
        "rule_id": "r2",
        "intent": "价格",
        "rule": "报价，带链接号",
        "checks": [
            {"kind": "must_mention", "any_of": ["以付款页为准"]},
            {"kind": "must_not_promise", "any_of": ["全网最低"]},
            {"kind": "max_characters", "limit": 60},
            {"kind": "must_add_link_number"},
        ],
    },
]
SEARCH = ("search_product_by_keyword", {"keyword": "1号链接"})
FAQ = ("search_faq", {"query": "什么时候发货"})
FAQ_BACK = ("search_faq", {"query": "可以退货吗"})
RULE = ("get_reply_rule", {"intent": "价格"})
SHIPPING_RULE = ("get_reply_rule", {"intent": "物流"})
HONEST = "亲，1号链接39.9元，领券后29.9元，以付款页为准"
Call = tuple[str, Mapping[str, Any]]


def keyed(*asks: Mapping[str, Any], state: Any = None, **comment: Any) -> Room:
    """Return the small room with one comment and its key."""
    expected: dict[str, Any] = {"asks": list(asks)}
    if state is not None:
        expected["state"] = state
    made = {"comment_id": "c1", "viewer": "小王", "at_s": 20, "text": "多少钱", **comment}
    return small_room(
        reply_rules=RULES, comments=[{**made, "expected": expected}], limits={"preset_faqs": 0}
    )


def played(room: Room, calls: Sequence[Call], reply: str | None, **options: Any) -> Trajectory:
    """Play calls, one a turn, and a reply."""
    env = le.LiveRoomEnv(room, embedder="lexical", rubric=None, max_same_tool=20, max_turns=30)
    env.reset(seed=0, options=options or None)
    for name, arguments in calls:
        env.step(le.Action.call(name, **arguments))
    if reply is not None:
        env.step(le.Action.reply(reply))
    return env.trajectory


def value(name: str, room: Room, calls: Sequence[Call], reply: str | None) -> float | None:
    scored = HOOKS[name](played(room, calls, reply), room)
    assert isinstance(scored, Score)
    return scored.value


# --- tool use ---------------------------------------------------------------------------------


@pytest.mark.row("R13", "R58")
@pytest.mark.parametrize(
    ("calls", "expected"),
    [
        pytest.param((SEARCH, FAQ), 1.0, id="a and b"),
        pytest.param((SEARCH,), 0.666667, id="a"),
        pytest.param((SEARCH, FAQ, FAQ_BACK), 0.8, id="a, b and c"),
        pytest.param((SEARCH, SEARCH, FAQ), 0.75, id="a twice and b"),
        pytest.param((), 0.0, id="none"),
    ],
)
def test_tool_use_is_the_f1_of_needed_records_less_repeats(
    calls: Sequence[Call], expected: float
) -> None:
    room = keyed(PRICE, SHIPPING)
    assert value("tool_use", room, (*calls, RULE), HONEST) == expected


BOTH = ("search_product_by_keyword", {"keyword": "1号链接 2号链接"})
BISCUITS = {"intent": "价格", "needed": ["product:p2"], "facts": []}


@pytest.mark.row("R13")
@pytest.mark.parametrize(
    ("asks", "calls", "expected"),
    [
        # one need, found twice among other things: recall 1, precision 1/2
        pytest.param((PRICE,), (SEARCH, BOTH), 0.666667, id="a need found again"),
        pytest.param((PRICE,), (BOTH, SEARCH), 0.666667, id="the other way round"),
        # each of two needs has a look-up of its own, which holds more
        pytest.param((PRICE, BISCUITS), (BOTH, SEARCH), 1.0, id="two needs, the wider first"),
        pytest.param((PRICE, BISCUITS), (SEARCH, BOTH), 1.0, id="two needs, the wider last"),
        pytest.param((PRICE, BISCUITS), (BOTH,), 1.0, id="two needs at once"),
    ],
)
def test_a_need_pays_for_one_look_up(
    asks: Sequence[Mapping[str, Any]], calls: Sequence[Call], expected: float
) -> None:
    assert value("tool_use", keyed(*asks), (*calls, RULE), HONEST) == expected


@pytest.mark.parametrize(("calls", "expected"), [((), 1.0), ((FAQ,), 0.5), ((FAQ, SEARCH), 0.0)])
def test_nothing_needed_and_nothing_done_is_one(calls: Sequence[Call], expected: float) -> None:
    room = keyed({"intent": "闲聊", "acts": ["chat"]})
    assert value("tool_use", room, (*calls, RULE), "哈哈，谢谢夸奖") == expected


def test_a_query_in_other_words_counts_by_what_it_found() -> None:
    room = keyed(PRICE)
    for words in ("1号链接", "腰果", "原味腰果", "果仁铺 腰果"):
        calls = (("search_product_by_keyword", {"keyword": words}), RULE)
        assert value("tool_use", room, calls, HONEST) == 1.0


def test_ten_good_calls_earn_no_more_than_one() -> None:
    room = keyed(PRICE)
    assert value("tool_use", room, (*[SEARCH] * 10, RULE), HONEST) == 0.0


def test_what_the_prompt_shows_need_not_be_looked_up() -> None:
    room = small_room(
        reply_rules=RULES,
        comments=[
            {
                "comment_id": "c1",
                "viewer": "小王",
                "at_s": 20,
                "text": "什么时候发货",
                "expected": {"asks": [SHIPPING]},
            }
        ],
    )
    trajectory = played(room, (SHIPPING_RULE,), "亲，付款后48小时内发货")
    assert "faq:f1" in {fact.record for fact in trajectory.evidence}
    rewards = PRESETS["single4"](trajectory, room)
    assert [score.value for score in rewards.scores] == [1.0, 1.0, 1.0, 1.0]


def test_an_empty_search_is_right_where_the_thing_is_not_sold() -> None:
    absent = {"intent": "价格", "facts": [{"kind": "absent", "text": ["手机"]}]}
    search = ("search_product_by_keyword", {"keyword": "手机"})
    assert value("tool_use", keyed(absent), (search, RULE), "亲，本店没有手机") == 1.0


# --- rule -------------------------------------------------------------------------------------


@pytest.mark.row("R14", "R16")
@pytest.mark.parametrize(
    ("calls", "reply", "expected"),
    [
        pytest.param((SEARCH, RULE), HONEST, 1.0, id="followed"),
        pytest.param((SEARCH,), HONEST, 0.0, id="no rule"),
        pytest.param((SEARCH, SHIPPING_RULE), HONEST, 0.0, id="another intent's"),
        pytest.param((RULE, SEARCH), HONEST, 0.0, id="a look-up after it"),
        pytest.param((SEARCH, RULE), "亲，1号链接39.9元", 0.75, id="a clause missed"),
        pytest.param(
            (SEARCH, RULE), "亲，39.9元，全网最低", 0.25, id="a promise, no link, no notice"
        ),
        pytest.param((SEARCH, SHIPPING_RULE, RULE), HONEST, 1.0, id="a second rule"),
    ],
)
def test_the_rule_is_looked_up_last_and_its_clauses_met(
    calls: Sequence[Call], reply: str, expected: float
) -> None:
    assert value("rule", keyed(PRICE), calls, reply) == expected


@pytest.mark.row("R16")
def test_rules_that_nothing_asks_for_neither_hide_a_broken_clause_nor_bind() -> None:
    thanks = {"kind": "must_mention", "any_of": ["谢谢"]}
    easy = [{"kind": "must_not_promise", "any_of": [word]} for word in ("甲", "乙", "丙", "丁")]
    shipping = {**RULES[0], "checks": [thanks, *easy]}
    comment = {"comment_id": "c1", "viewer": "小王", "at_s": 20, "text": "多少钱"}
    room = small_room(
        reply_rules=[shipping, *RULES[1:]], comments=[{**comment, "expected": {"asks": [PRICE]}}]
    )
    both = ("get_reply_rule", {"intent": ["物流", "价格"]})
    for calls in ((SEARCH, RULE), (SEARCH, both), (SEARCH, SHIPPING_RULE, RULE)):
        assert value("rule", room, calls, HONEST) == 1.0
        assert value("rule", room, calls, "亲，1号链接39.9元") == 0.75


@pytest.mark.parametrize(
    ("intents", "expected"), [("甲", 1.0), ("甲乙", 1.0), ("甲乙丙丁", 0.5), ("甲乙丙丁戊", 0.4)]
)
def test_beyond_one_to_spare_more_rules_cost_in_proportion(intents: str, expected: float) -> None:
    rules = [{"rule_id": intent, "intent": intent, "rule": "照实说"} for intent in "甲乙丙丁戊"]
    key = {"asks": [{"intent": "甲", "acts": ["chat"]}]}
    comment = {"comment_id": "c1", "viewer": "小王", "at_s": 20, "text": "你好", "expected": key}
    room = small_room(reply_rules=rules, comments=[comment])
    # one intent is asked for: two rules at most, of 1, 2, 4 and 5
    assert value("rule", room, (("get_reply_rule", {"intent": [*intents]}),), "好呀") == expected


def test_a_rule_of_another_products_scope_is_not_asked_for() -> None:
    scoped = {"rule_id": "r9", "intent": "尺码", "rule": "报尺码", "scope": "product:p3"}
    rules = [*RULES, scoped, {"rule_id": "r0", "intent": "*", "rule": "照实说"}]
    ask = {"intent": "尺码", "acts": ["chat"]}
    comment = {"comment_id": "c1", "viewer": "小王", "at_s": 20, "text": "多大"}
    room = small_room(reply_rules=rules, comments=[{**comment, "expected": {"asks": [ask]}}])
    calls = (("get_reply_rule", {"intent": "尺码"}),)  # finds the rule of last resort
    assert value("rule", room, calls, "好的宝宝") == 1.0


# --- correctness ------------------------------------------------------------------------------


@pytest.mark.row("R26", "R58")
@pytest.mark.parametrize(
    ("reply", "expected"),
    [
        pytest.param("亲，1号链接39.9元，库存12件", 1.0, id="both right"),
        pytest.param("亲，1号链接39元", 0.0, id="wrong price"),
        pytest.param("亲，券后39.9元", 0.0, id="the price is not the coupon price"),
        pytest.param("亲，券后29.9元，买一送一", 0.0, id="a gift that nobody promised"),
        pytest.param("以页面为准哦", 1.0, id="nothing stated"),
        pytest.param("亲，１号链接３９．９元", 1.0, id="full-width digits"),
        pytest.param("亲，三十九块九", 1.0, id="Chinese numerals"),
        pytest.param("亲，约40元", 1.0, id="about, within two per cent"),
        pytest.param("亲，约42元", 0.0, id="about, too far"),
        pytest.param("亲，139.9元", 0.0, id="a longer number"),
        pytest.param("亲，海盐饼干39.9元", 0.0, id="another product's price"),
        pytest.param("亲，39.9元或者29元", 0.0, id="two prices"),
        pytest.param("亲，可能是39.9也可能是49.9元", 0.0, id="a hedge, the right one first"),
        pytest.param("亲，可能是49.9也可能是39.9元", 0.0, id="a hedge, the right one last"),
        pytest.param("亲，也许49.9元，也许39.9元吧", 0.0, id="a hedge in other words"),
        pytest.param("亲，1号链接39.9元，全网最低", 0.0, id="an absolute word"),
        pytest.param("亲，1号链接39.9元，包邮", 0.0, id="a promise without a source"),
        pytest.param("已经帮您置顶了", 0.0, id="an act that was not done"),
    ],
)
def test_every_claim_needs_this_episodes_evidence(reply: str, expected: float) -> None:
    assert value("correctness", keyed(PRICE), (SEARCH, RULE), reply) == expected


@pytest.mark.row("R58")
@pytest.mark.parametrize(
    ("reply", "expected"),
    [
        pytest.param("亲，原味腰果200克在1号链接", 1.0, id="its own link"),
        pytest.param("亲，1号链接的原味腰果200克", 1.0, id="named behind its link"),
        pytest.param("亲，海盐饼干在1号链接", 0.0, id="another product's link"),
        pytest.param("亲，1号链接就是海盐饼干", 0.0, id="another product behind the link"),
        pytest.param("亲，海盐饼干（1号链接）", 0.0, id="in brackets"),
        pytest.param("亲，48小时内发货，2号链接", 0.0, id="a link that nothing told of"),
        pytest.param("亲，48小时内发货，1号链接", 1.0, id="a link that was looked up"),
    ],
)
def test_a_link_is_of_the_product_named_and_was_told_of(reply: str, expected: float) -> None:
    calls = (SEARCH, FAQ, RULE)
    assert value("correctness", keyed(PRICE, SHIPPING), calls, reply) == expected


@pytest.mark.row("R58")
def test_a_link_that_the_viewer_named_may_be_named_back() -> None:
    room = keyed(SHIPPING, text="2号链接啥时候发")
    assert value("correctness", room, (FAQ, SHIPPING_RULE), "亲，2号链接48小时内发货") == 1.0


@pytest.mark.row("R93")
def test_a_link_is_held_against_the_room_where_calls_are_not_known() -> None:
    room = keyed(SHIPPING)
    silent = played(room, (), "亲，海盐饼干在2号链接")
    wrong = played(room, (), "亲，海盐饼干在1号链接")
    by_room = correctness("room")
    assert [by_room(one, room).value for one in (silent, wrong)] == [1.0, 0.0]  # type: ignore[union-attr]


def test_what_an_faq_says_supports_a_promise() -> None:
    room = keyed(SHIPPING)
    assert value("correctness", room, (FAQ, SHIPPING_RULE), "付款后48小时内发货哦") == 1.0
    assert value("correctness", room, (FAQ, SHIPPING_RULE), "付款后24小时内发货哦") == 0.0


@pytest.mark.row("R93")
def test_a_right_guess_is_wrong_by_trajectory_and_lucky_by_room() -> None:
    room = keyed(PRICE)
    trajectory = played(room, (RULE,), "亲，1号链接39.9元")
    by_trajectory = correctness()(trajectory, room)
    by_room = correctness("room")(trajectory, room)
    assert isinstance(by_trajectory, Score)
    assert isinstance(by_room, Score)
    assert (by_trajectory.value, by_room.value) == (0.0, 1.0)
    assert "lucky" in by_room.reason


def test_what_must_not_be_said_is_wrong() -> None:
    ask = {**PRICE, "must_not": [{"record": "product:p1", "field": "price", "text": ["半价"]}]}
    assert value("correctness", keyed(ask), (SEARCH, RULE), "亲，39.9元，半价啦") == 0.0


# --- helpfulness ------------------------------------------------------------------------------


@pytest.mark.row("R26", "R58")
@pytest.mark.parametrize(
    ("calls", "reply", "expected"),
    [
        pytest.param((SEARCH, RULE), HONEST, 1.0, id="fact and extra"),
        pytest.param((SEARCH, RULE), "亲，1号链接39.9元", 0.8, id="the fact alone"),
        pytest.param((SEARCH, RULE), "亲，领券后29.9元", 0.0, id="the extra alone"),
        pytest.param((RULE,), HONEST, 0.0, id="not looked up"),
        pytest.param((SEARCH, RULE), "亲，不好意思，不清楚呢", 0.0, id="sorry"),
        pytest.param((SEARCH, RULE), "亲，1号链接199元", 0.0, id="a wrong price"),
        pytest.param((SEARCH, RULE), "", 0.0, id="empty"),
    ],
)
def test_helpful_is_what_was_asked_right_and_looked_up(
    calls: Sequence[Call], reply: str, expected: float
) -> None:
    assert value("helpfulness", keyed(PRICE), calls, reply) == expected


@pytest.mark.row("R26")
@pytest.mark.parametrize(
    ("reply", "expected"),
    [
        pytest.param("亲，1号链接３９．９元", 0.8, id="full-width digits"),
        pytest.param("亲，1号链接三十九块九", 0.8, id="Chinese numerals"),
        pytest.param("亲，1号链接¥39.90", 0.8, id="a sign of money"),
        pytest.param("亲，1号链接39.9块钱", 0.8, id="another word for money"),
        pytest.param("亲，1号链接39.9", 0.8, id="a bare number"),
        pytest.param("亲，1号链接不是39.9元哦", 0.0, id="denied"),
        pytest.param("亲，不是￥39.9", 0.0, id="denied with a sign"),
        pytest.param("如果是会员才39.9元", 0.0, id="on a condition"),
        pytest.param("亲，您是说39.9元吗？", 0.0, id="asked back"),
        pytest.param("亲，海盐饼干39.9元", 0.0, id="of another product"),
        pytest.param("亲，库存39.9件", 0.0, id="of something else"),
        pytest.param("亲，1号链接139.9元", 0.0, id="in a longer number"),
        pytest.param("😊👍", 0.0, id="signs alone"),
        pytest.param("多少钱？", 0.0, id="the question alone"),
    ],
)
def test_a_price_helps_where_it_is_stated(reply: str, expected: float) -> None:
    assert value("helpfulness", keyed(PRICE), (SEARCH, RULE), reply) == expected


@pytest.mark.row("R26")
@pytest.mark.parametrize(
    ("phrases", "reply", "expected"),
    [
        (["48小时"], "付款后48小时内发货", 1.0),
        (["48小时"], "不是48小时内发货哦", 0.0),
        (["48小时"], "付款后148小时内发货", 0.0),
        (["48"], "付款后４８小时内发货", 1.0),
        (["内发货"], "付款后不内发货", 0.0),
    ],
)
def test_a_phrase_helps_in_whole_numbers_and_where_it_is_not_denied(
    phrases: list[str], reply: str, expected: float
) -> None:
    room = keyed({**SHIPPING, "facts": [{**SHIPPING["facts"][0], "text": phrases}]})
    assert value("helpfulness", room, (FAQ, SHIPPING_RULE), reply) == expected


def test_what_must_not_be_said_may_be_denied_and_be_part_of_a_longer_number() -> None:
    ask = {**PRICE, "must_not": [{"record": "product:p1", "field": "price", "text": ["9.9元"]}]}
    assert value("correctness", keyed(ask), (SEARCH, RULE), "亲，39.9元，不是9.9元") == 1.0


@pytest.mark.row("R26")
def test_a_total_that_the_key_leaves_to_the_quote_is_what_the_lines_come_to() -> None:
    # three of 29.9 after the coupon are 89.7
    fact = {"record": "quote", "field": "total", "lines": [["p1", 3]]}
    room = keyed({**PRICE, "facts": [fact], "extras": []}, text="三份多少钱")
    right = played(room, (SEARCH, RULE), "亲，三份一共89.7元")
    assert HOOKS["correctness"](right, room).value == 1.0  # type: ignore[union-attr]
    assert HOOKS["helpfulness"](right, room).value == 1.0  # type: ignore[union-attr]
    assert facts_stated(room, right) == (1, 1)
    for wrong in ("亲，三份一共59.8元", "亲，一共59.8元", "亲，一份29.9元"):
        assert value("helpfulness", room, (SEARCH, RULE), wrong) == 0.0


@pytest.mark.row("R26")
def test_what_is_sold_is_not_to_be_had_for_no_reply() -> None:
    assert value("correctness", keyed(PRICE), (SEARCH, RULE), "亲，本店没有这个商品哦") == 0.0
    absent = {"intent": "价格", "facts": [{"kind": "absent", "text": ["手机"]}]}
    search = ("search_product_by_keyword", {"keyword": "手机"})
    room = keyed(absent, text="有手机吗")
    assert value("correctness", room, (search, RULE), "亲，本店没有手机") == 1.0
    assert value("helpfulness", room, (search, RULE), "亲，本店没有手机") == 1.0
    assert value("helpfulness", room, (RULE,), "亲，本店没有手机") == 0.0
    for named in ("有手机的，放心拍", "有手机吗", "手机"):
        assert value("helpfulness", room, (search, RULE), named) == 0.0


def test_a_reply_that_states_a_fact_and_refers_to_the_page_is_no_dodge() -> None:
    answer = {**SHIPPING, "facts": [{**SHIPPING["facts"][0], "text": ["付款后"]}]}
    thanks = {"intent": "闲聊", "acts": ["chat"]}
    room = keyed(answer, thanks, text="主播真好看，啥时候寄")
    calls = (FAQ, ("get_reply_rule", {"intent": ["物流", "闲聊"]}))
    assert value("helpfulness", room, calls, "谢谢宝宝，付款后就寄，具体以商品页面为准哦") == 1.0
    assert value("helpfulness", room, calls, "谢谢宝宝，具体以商品页面为准哦") == 0.0


def test_words_of_ones_own_are_a_reply_to_what_no_fact_answers() -> None:
    declined = keyed({"intent": "闲聊", "acts": ["decline"]}, text="能再便宜点吗")
    calls = (("get_reply_rule", {"intent": "闲聊"}),)
    assert value("helpfulness", declined, calls, "已经是直播间的实在价啦") == 1.0
    for nothing in ("😊👍", "能再便宜点吗", "能再便宜点吗？？"):
        assert value("helpfulness", declined, calls, nothing) == 0.0
    chat = keyed({"intent": "闲聊", "acts": ["chat"]}, text="主播真好看")
    assert value("helpfulness", chat, calls, "😊👍") == 1.0
    assert value("helpfulness", chat, calls, "主播真好看") == 0.0


def test_a_result_in_looser_json_and_the_rule_itself_do_not_help() -> None:
    room = keyed(PRICE)
    told = played(room, (SEARCH,), None).turns[0].results[0].content
    for dump in (told.replace('{"', '{ "').replace('":', '" :'), told.replace('"', "'")):
        assert value("helpfulness", room, (SEARCH, RULE), dump) == 0.0
    rule = "报价，带上链接号，说以付款页为准"
    room = small_room(
        reply_rules=[{"rule_id": "r2", "intent": "价格", "rule": rule}],
        comments=[{"comment_id": "c1", "viewer": "小王", "at_s": 20, "text": "多少钱",
                   "expected": {"asks": [PRICE]}}],
    )  # fmt: skip
    assert value("helpfulness", room, (SEARCH, RULE), HONEST) == 1.0
    assert value("helpfulness", room, (SEARCH, RULE), f"{HONEST}。{rule}") == 0.0


def test_a_copied_result_does_not_help() -> None:
    room = keyed(PRICE)
    told = played(room, (SEARCH,), None).turns[0].results[0].content
    assert value("helpfulness", room, (SEARCH, RULE), told) == 0.0


@pytest.mark.row("R14")
def test_asking_back_counts_where_it_is_right() -> None:
    ask = {"intent": "价格", "acts": ["ask"], "ask_for": ["身高", "体重"]}
    room = keyed(ask)
    assert value("helpfulness", room, (RULE,), "亲，身高体重报一下可以吗？") == 1.0
    assert value("helpfulness", room, (RULE,), "亲，身高报一下可以吗？") == 0.5
    assert value("helpfulness", room, (RULE,), "亲，拍M码就行") == 0.0


SORRY = "抱歉，这个暂时不清楚，请以商品页面为准哦"


@pytest.mark.row("R26")
def test_what_was_asked_to_be_done_does_not_pay_for_saying_sorry() -> None:
    move = ("move_product", {"link_no": 3, "position": 1})
    room = keyed({"intent": "闲聊"}, state={"product": "p3", "position_at_most": 1}, text="先讲3号")
    assert value("helpfulness", room, (move, RULE), "好的，3号链接排到第一个啦") == 1.0
    assert value("helpfulness", room, (move, RULE), SORRY) == 0.0


@pytest.mark.parametrize(
    ("reply", "expected"),
    [("已经为您转接人工客服", 1.0), ("这个我不清楚，稍后客服会联系您", 1.0), (SORRY, 0.0)],
)
def test_a_viewer_who_is_handed_off_is_told_so(reply: str, expected: float) -> None:
    room = keyed({"intent": "闲聊", "acts": ["hand_off"]})
    calls = (("hand_off", {"reason": "团购"}), ("get_reply_rule", {"intent": "闲聊"}))
    assert value("helpfulness", room, calls, reply) == expected


def test_a_comment_to_be_ignored_is_left_alone() -> None:
    room = keyed({"intent": "闲聊", "acts": ["ignore"]})
    env = le.LiveRoomEnv(room, embedder="lexical", rubric=None)
    env.reset(seed=0)
    env.step(le.Action.call(*RULE[:1], **RULE[1]))
    env.step(le.Action.skip())
    assert HOOKS["helpfulness"](env.trajectory, room).value == 1.0  # type: ignore[union-attr]


IGNORED = {"intent": "闲聊", "acts": ["ignore"]}


@pytest.mark.parametrize(
    ("action", "expected"),
    [
        (le.Action.skip(), 1.0),
        (le.Action.reply("宝宝别骂啦"), 0.0),
        (le.Action(le.Action.reply("宝宝别骂啦").message, skips=("c1",)), 0.0),  # said all the same
    ],
)
def test_what_is_to_be_ignored_is_not_answered(action: le.Action, expected: float) -> None:
    room = keyed(IGNORED)
    env = le.LiveRoomEnv(room, embedder="lexical", rubric=None)
    env.reset(seed=0)
    env.step(le.Action.call(*RULE[:1], **RULE[1]))
    env.step(action)
    assert HOOKS["helpfulness"](env.trajectory, room).value == expected  # type: ignore[union-attr]


@pytest.mark.parametrize(
    ("marks", "expected"),
    [
        pytest.param({}, 1.0, id="unmarked, it is for the one that is due"),
        pytest.param({"skips": ("c2",)}, 1.0, id="the other skipped"),
        pytest.param({"covers": ("c1",)}, 1.0, id="the one covered"),
        pytest.param({"covers": ("c1", "c2")}, 0.5, id="both covered"),
    ],
)
def test_of_a_burst_what_is_due_is_answered(marks: Any, expected: float) -> None:
    comment = {"viewer": "小王", "at_s": 20, "text": "多少钱"}
    room = small_room(
        reply_rules=RULES,
        comments=[
            {**comment, "comment_id": "c1", "expected": {"asks": [PRICE]}},
            {**comment, "comment_id": "c2", "text": "666", "expected": {"asks": [IGNORED]}},
        ],
    )
    env = le.LiveRoomEnv(room, embedder="lexical", rubric=None, comment=["c1", "c2"])
    env.reset(seed=0)
    env.step(le.Action.calls(SEARCH))
    env.step(le.Action.calls(RULE))
    env.step(le.Action(le.Action.reply(HONEST).message, **marks))
    assert HOOKS["helpfulness"](env.trajectory, room).value == expected  # type: ignore[union-attr]


def test_where_nothing_is_to_be_said_length_asks_for_nothing() -> None:
    room = keyed(IGNORED)
    env = le.LiveRoomEnv(room, embedder="lexical", rubric=None)
    env.reset(seed=0)
    env.step(le.Action.calls(RULE))
    env.step(le.Action.skip())
    scored = HOOKS["length"](env.trajectory, room)
    assert isinstance(scored, Score)
    assert (scored.value, scored.cause) == (None, "not_applicable")
    assert PRESETS["dialogue"](env.trajectory, room).total() == pytest.approx(1.0)
    assert value("length", room, (RULE,), "   \n") == 0.0


# --- state, length, course --------------------------------------------------------------------


@pytest.mark.parametrize(
    ("predicate", "reached"),
    [
        ({"product": "p2", "position_at_most": 1}, True),
        ({"product": "p1", "position_at_most": 1}, False),
        ({"product": "p1", "position_at_most": 2}, True),
        ({"product": "p1", "image": "front"}, True),
        ({"product": "p1", "image": "back"}, False),
        ({"handed_off": True}, False),
        (["p2", "p1", "p3"], True),
        (["p1", "p2", "p3"], False),
    ],
)
def test_a_state_meets_its_predicate(predicate: Any, reached: bool) -> None:
    state = State(20.0, "p1", ("p2", "p1", "p3"), ("p1", "front"))
    assert state_reached(state, predicate) is reached


@pytest.mark.parametrize(
    ("count", "expected"), [(5, 0.5), (10, 1), (40, 1), (50, 0.5), (60, 0), (80, 0)]
)
def test_the_length_band_is_bounded_both_ways(count: int, expected: float) -> None:
    assert length_band(count) == expected


def test_length_earns_nothing_without_correctness() -> None:
    room = keyed(PRICE)
    assert value("length", room, (SEARCH, RULE), "亲，1号链接只要199元哦") == 0.0
    assert value("length", room, (SEARCH, RULE), "亲，1号链接39.9元哦") == 1.0


def test_three_english_characters_count_as_one_in_length() -> None:
    said = "Hello there! " * 6  # 78 characters say what 26 of Chinese do
    room = keyed({"intent": "闲聊", "acts": ["chat"]})
    assert value("length", room, (RULE,), said) == 1.0
    assert value("length", room, (RULE,), "Hello there! " * 15) == 0.0  # 195, as 65


@pytest.mark.parametrize(
    ("calls", "expected"),
    [
        pytest.param((SEARCH, RULE), 1.0, id="what is needed"),
        pytest.param((SEARCH, FAQ, RULE), 0.5, id="one more look-up"),
        pytest.param((SEARCH, SEARCH, FAQ, RULE), 0.333333, id="two more"),
        pytest.param((SEARCH, SHIPPING_RULE, RULE), 0.5, id="one more rule"),
    ],
)
def test_efficiency_falls_with_look_ups_and_rules_beyond_the_needed(
    calls: Sequence[Call], expected: float
) -> None:
    assert value("efficiency", keyed(PRICE), calls, HONEST) == expected


def test_efficiency_has_no_truth_without_a_key() -> None:
    room = small_room(reply_rules=RULES, limits={"preset_faqs": 0})
    made = HOOKS["efficiency"](played(room, (SEARCH, RULE), HONEST, comment="c1"), room)
    assert isinstance(made, Score)
    assert (made.value, made.cause) == (None, "no_truth")


@pytest.mark.row("R68")
def test_progress_sums_to_the_share_at_the_end_whatever_the_path() -> None:
    room = keyed(PRICE, SHIPPING)
    for calls in ((SEARCH, FAQ, RULE), (FAQ, RULE, SEARCH), (FAQ, FAQ, SEARCH, RULE)):
        made = progress(Reading(played(room, calls, HONEST), room))
        assert sum(score.value or 0 for score in made) == 1.0
        assert [score.turn for score in made] == list(range(len(calls) + 1))
    first, second, *_ = progress(Reading(played(room, (SEARCH, FAQ), HONEST), room))
    assert (first.value, second.value) == (0.5, 0.5)


# --- rubrics ----------------------------------------------------------------------------------


@pytest.mark.row("R53", "R59")
def test_the_honest_host_has_everything() -> None:
    room = keyed(PRICE)
    trajectory = played(room, (SEARCH, RULE), HONEST)
    for name in ("single4", "multi22", "multi40_60"):
        rewards = PRESETS[name](trajectory, room)
        assert rewards.total("replier") == rewards.total("tool_caller") == rewards.total() == 1.0


@pytest.mark.row("R26")
def test_the_sorry_host_has_half_at_most() -> None:
    room = keyed(PRICE)
    trajectory = played(room, (SEARCH, RULE), "不好意思亲，以付款页为准，看1号链接")
    for rubric in PRESETS.values():
        total = rubric(trajectory, room).total()
        assert total is not None
        assert total <= 0.5


def test_without_a_reply_the_replier_has_nothing_and_the_tool_caller_keeps_its_own() -> None:
    room = keyed(PRICE)
    rewards = PRESETS["multi22"](played(room, (SEARCH, RULE), None), room)
    assert rewards.total("replier") == 0.0
    assert rewards.total("tool_caller") == 1.0


def test_where_nobody_had_the_repliers_seat_the_tool_callers_total_is_all() -> None:
    room = keyed(PRICE)
    trajectory = played(room, (SEARCH, RULE), None, agents=["tool_caller"])
    assert trajectory.stop_reason == "tools_done"
    rewards = PRESETS["multi22"](trajectory, room)
    assert rewards.total("replier") is None
    assert (rewards.total("tool_caller"), rewards.total()) == (1.0, 1.0)
    absent = [score for score in rewards.scores if score.agent == "replier"]
    assert {(score.value, score.cause, score.weight) for score in absent} == {
        (None, "not_applicable", 0.0)
    }


@pytest.mark.row("R92")
def test_an_unlabelled_room_is_scored_by_what_can_be_known() -> None:
    room = small_room(reply_rules=RULES, limits={"preset_faqs": 0})
    trajectory = played(room, (SEARCH, RULE), HONEST, comment="c1")
    rewards = PRESETS["single4"](trajectory, room)
    causes = {score.name: score.cause for score in rewards.scores}
    assert causes["helpfulness"] == causes["tool_use"] == "no_truth"
    assert rewards.total("replier") == 1.0
    assert rewards.total("tool_caller") == 1.0
    assert rewards.total() == 1.0


def test_a_failed_episode_has_no_score() -> None:
    room = keyed(PRICE)
    failed = played(room, (SEARCH,), None).model_copy(update={"status": Status.ENV_ERROR})
    rewards = PRESETS["single4"](failed, room)
    assert rewards == Rewards()
    assert rewards.total() is None


def test_a_failed_reply_judge_keeps_the_tool_row() -> None:
    def no_verdict(trajectory: Trajectory, room: Room | None) -> Score:
        raise JudgeError("no verdict")

    rubric = Rubric(
        [no_verdict, "rule"],
        weights={"replier": {"no_verdict": 1.0}, "tool_caller": {"rule": 1.0}},
    )
    room = keyed(PRICE)
    rewards = rubric(played(room, (SEARCH, RULE), HONEST), room)
    assert rewards.total("tool_caller") == 1.0
    assert rewards.total("replier") is None
    assert rewards.total() is None
    assert rewards.scores[0].cause == "judge_error"


def test_a_hook_that_never_ends_is_a_missing_score() -> None:
    def endless(trajectory: Trajectory, room: Room | None) -> float:
        time.sleep(30)
        return 1.0

    room = keyed(PRICE)
    rewards = Rubric([endless, "rule"], timeout_s=0.05)(played(room, (RULE,), HONEST), room)
    assert [score.cause for score in rewards.scores] == ["timeout", None]


def test_a_hook_that_raises_is_the_callers_mistake() -> None:
    def broken(trajectory: Trajectory, room: Room | None) -> float:
        raise ZeroDivisionError

    room = keyed(PRICE)
    with pytest.raises(ZeroDivisionError):
        Rubric([broken])(played(room, (RULE,), HONEST), room)


@pytest.mark.parametrize("made", [None, "1", True, [1.0], math.nan])
def test_a_hook_returns_scores_or_numbers(made: Any) -> None:
    room = keyed(PRICE)
    with pytest.raises((TypeError, ValueError)):
        Rubric([lambda trajectory, room: made])(played(room, (RULE,), HONEST), room)


@pytest.mark.row("R61")
def test_a_hook_without_a_weight_is_logged_and_never_trained() -> None:
    def monitor(trajectory: Trajectory, room: Room | None) -> float:
        return 0.0

    room = keyed(PRICE)
    rubric = Rubric(["correctness", monitor], weights={"replier": {"correctness": 1.0}})
    rewards = rubric(played(room, (SEARCH, RULE), HONEST), room)
    assert [(s.name, s.value, s.weight) for s in rewards.scores] == [
        ("correctness", 1.0, 1.0),
        ("monitor", 0.0, 0.0),
    ]
    assert rewards.total("replier") == 1.0


def test_a_judge_that_is_only_logged_excludes_no_row_where_it_fails() -> None:
    def monitor(trajectory: Trajectory, room: Room | None) -> Score:
        raise JudgeError("no verdict")

    room = keyed(PRICE)
    weights = {"replier": {"correctness": 1.0}}
    monitor.agent = "replier"  # type: ignore[attr-defined]
    rewards = Rubric(["correctness", monitor], weights=weights)(
        played(room, (SEARCH, RULE), HONEST), room
    )
    assert rewards.scores[1].cause == "judge_error"
    assert rewards.total("replier") == rewards.total() == 1.0


def test_async_hooks_are_awaited_together() -> None:
    async def slow(trajectory: Trajectory, room: Room | None) -> float:
        await asyncio.sleep(0)
        return 0.5

    room = keyed(PRICE)
    trajectory = played(room, (SEARCH, RULE), HONEST)
    rubric = Rubric(["rule", slow])
    rewards = asyncio.run(rubric.ascore(trajectory, room))
    assert [score.value for score in rewards.scores] == [1.0, 0.5]
    with pytest.raises(TypeError, match="ascore"):
        rubric(trajectory, room)


def test_in_a_group_only_hooks_that_spoke_for_all_members_weigh() -> None:
    said = iter([0.2, None, 0.9])

    def moody(trajectory: Trajectory, room: Room | None) -> Score:
        made = next(said)
        cause: Any = "not_applicable" if made is None else None
        return Score("moody", made, 1.0, "replier", None, "", cause)

    room = keyed(PRICE)
    member = played(room, (SEARCH, RULE), HONEST)
    group = Rubric([moody, "correctness"]).score_group([member] * 3, room)
    # the two weights of 1 are both correctness', as where no member had the other
    assert [rewards.total("replier") for rewards in group] == [2.0, 2.0, 2.0]


def test_a_group_hook_scores_each_member() -> None:
    def shortest(trajectories: Sequence[Trajectory], room: Room | None) -> list[Score]:
        least = min(len(t.reply or "") for t in trajectories)
        return [Score("shortest", float(len(t.reply or "") == least)) for t in trajectories]

    room = keyed(PRICE)
    members = [played(room, (RULE,), "亲好"), played(room, (RULE,), "亲您好")]
    made = Rubric([], group_hooks=[shortest]).score_group(members, room)
    assert [rewards.total() for rewards in made] == [1.0, 0.0]


@pytest.mark.row("R67")
@pytest.mark.parametrize(
    ("outcome", "process", "efficiency", "total"), [(1, 0.5, 0.25, 0.70), (0, 1, 1, 0.30)]
)
def test_outcome_gates_efficiency(
    outcome: float, process: float, efficiency: float, total: float
) -> None:
    def hook(name: str, value: float) -> Any:
        return lambda trajectory, room: Score(name, value)

    rubric = Rubric(
        [hook("outcome", outcome), hook("process", process), hook("efficiency", efficiency)],
        weights=PRESETS["agent50_30_20"].weights,
        gate="outcome",
    )
    room = keyed(PRICE)
    made = rubric(played(room, (RULE,), HONEST), room).total()
    assert made == pytest.approx(total)


@pytest.mark.row("R66")
@pytest.mark.parametrize(
    ("calls", "reply", "dialogue", "agent"),
    [
        # .4 correct + .3 helpful + .1 fluent + .2 quick; .5 outcome + .3 process + .2 efficiency
        pytest.param((SEARCH, RULE), HONEST, 1.0, 1.0, id="all right"),
        # the fact without its extra helps .8, and misses one of four clauses of the rule:
        # .4 + .24 + .1 + .2; .5 * .8 + .3 * (.75 + 1) / 2 + .2
        pytest.param((SEARCH, RULE), "亲，1号链接价格是39.9元", 0.94, 0.8625, id="no extra"),
        # one look-up too many: F1 of {a} and {a, b} is 2/3, efficiency 1/2
        # .4 + .3 + .1 + .1; .5 + .3 * (1 + 2/3) / 2 + .1
        pytest.param((SEARCH, FAQ, RULE), HONEST, 0.9, 0.85, id="one look-up too many"),
        # a wrong price: the guard's veto takes all; .3 * (.75 + 1) / 2, the gate shuts the rest
        pytest.param((SEARCH, RULE), "亲，1号链接价格是35.9元", 0.0, 0.2625, id="wrong"),
    ],
)
def test_the_dialogue_and_agent_objectives_are_sums(
    calls: Sequence[Call], reply: str, dialogue: float, agent: float
) -> None:
    room = keyed(PRICE)
    trajectory = played(room, calls, reply)
    assert PRESETS["dialogue"](trajectory, room).total() == pytest.approx(dialogue, abs=1e-5)
    assert PRESETS["agent50_30_20"](trajectory, room).total() == pytest.approx(agent, abs=1e-5)


def test_a_veto_takes_the_repliers_total() -> None:
    def safety(trajectory: Trajectory, room: Room | None) -> Score:
        return Score("safety", 0.0, 0.0, "replier")

    room = keyed(PRICE)
    rubric = Rubric(["correctness", "rule", safety], veto=["safety"])
    rewards = rubric(played(room, (SEARCH, RULE), HONEST), room)
    assert rewards.total("replier") == 0.0
    assert rewards.total("tool_caller") == 1.0


@pytest.mark.parametrize("reply", [None, "", "  \n"])
def test_without_a_reply_what_weights_give_to_the_replier_is_nothing_too(reply: str | None) -> None:
    def style(trajectory: Trajectory, room: Room | None) -> float:
        return 1.0

    room = keyed(PRICE)
    trajectory = played(room, (SEARCH, RULE), reply)
    weights = {"replier": {"style": 0.5, "efficiency": 0.5}, "tool_caller": {"rule": 1.0}}
    rewards = Rubric([style, "efficiency", "rule"], weights=weights)(trajectory, room)
    assert rewards.total("replier") == 0.0
    assert PRESETS["dialogue"](trajectory, room).total() == 0.0


def test_without_a_reply_the_gate_shuts_efficiency_out() -> None:
    room = keyed(PRICE)
    # .5 * 0 + .3 * process + .2 * 0: without a reply no clause is broken, with an empty one all
    # but the promise and the length are
    for reply, process in ((None, 1.0), ("", (0.5 + 1) / 2)):
        trajectory = played(room, (SEARCH, RULE), reply)
        total = PRESETS["agent50_30_20"](trajectory, room).total()
        assert total == pytest.approx(0.3 * process)


def test_a_veto_takes_what_weights_give_to_the_replier_too() -> None:
    room = keyed(PRICE)
    promise = HONEST + "，全网最低价，终身免费退换"
    rewards = PRESETS["dialogue"](played(room, (SEARCH, RULE), promise), room)
    assert rewards.total("replier") == rewards.total() == 0.0


def test_an_evasion_earns_no_length() -> None:
    room = keyed(PRICE)
    evasion = "不好意思亲，以付款页为准，看1号链接"
    made = PRESETS["dialogue"](played(room, (SEARCH, RULE), evasion), room)
    values = {score.name: score.value for score in made.scores}
    assert (values["correctness"], values["length"]) == (0.0, 0.0)
    assert made.total() == pytest.approx(0.2)  # quick


def test_an_outcome_without_a_verdict_closes_no_gate() -> None:
    def outcome(trajectory: Trajectory, room: Room | None) -> Score:
        return Score("outcome", None, 1.0, "host", cause="no_truth")

    room = keyed(PRICE)
    weights = PRESETS["agent50_30_20"].weights
    rubric = Rubric([outcome, "process", "efficiency"], weights=weights, gate="outcome")
    assert rubric(played(room, (SEARCH, RULE), HONEST), room).total() == pytest.approx(1.0)


def test_a_score_that_is_silent_makes_the_total_missing_where_that_is_asked_for() -> None:
    room = small_room(reply_rules=RULES, limits={"preset_faqs": 0})
    trajectory = played(room, (SEARCH, RULE), HONEST, comment="c1")
    rewards = Rubric(["correctness", "helpfulness"], missing="none")(trajectory, room)
    assert rewards.total() is None
    silent = next(score for score in rewards.scores if score.name == "helpfulness")
    # no judge failed here
    assert (silent.cause, silent.reason) == (None, "no_truth: no key")


@pytest.mark.parametrize(
    ("given", "problem"),
    [
        ({"hooks": ["corectness"]}, "Did you mean `correctness`"),
        ({"hooks": [], "missing": "zero"}, "`missing`"),
        ({"hooks": [], "gate": "open"}, "`gate`"),
        (
            {"hooks": ["correctness"], "weights": {"replier": {"corectness": 1.0}}},
            "Did you mean `correctness`",
        ),
        ({"hooks": ["correctness", "guard"], "veto": ["gaurd"]}, "Did you mean `guard`"),
        ({"hooks": ["rule"], "weights": {"host": {"rule": math.nan}}}, "finite"),
        (
            {"hooks": ["rule"], "weights": {"host": {"rule": 1.0}, "replier": {"rule": 1.0}}},
            "`host` and to `replier`",
        ),
    ],
)
def test_wrong_arguments_say_what_is_right(given: Any, problem: str) -> None:
    with pytest.raises(ValueError, match=problem):
        Rubric(**given)


def test_one_name_is_no_list_of_names() -> None:
    with pytest.raises(TypeError, match="lists of names"):
        Rubric(["guard"], veto="guard")
    with pytest.raises(TypeError, match="lists of names"):
        Rubric("correctness")


@pytest.mark.parametrize("number", [np.float32(0.5), np.float64(0.5), 0.5])
def test_a_number_of_numpy_is_a_number(number: Any) -> None:
    room = keyed(PRICE)
    rewards = Rubric([lambda trajectory, room: number])(played(room, (RULE,), HONEST), room)
    assert rewards.total() == 0.5


def test_a_hooks_own_time_out_is_told_in_its_words() -> None:
    def slow(trajectory: Trajectory, room: Room | None) -> float:
        raise TimeoutError("no answer within 3 s")

    room = keyed(PRICE)
    (score,) = Rubric([slow])(played(room, (RULE,), HONEST), room).scores
    assert (score.cause, score.reason) == ("timeout", "no answer within 3 s")


def test_a_group_hook_pays_a_replier_that_said_nothing_nothing() -> None:
    def shortest(trajectories: Sequence[Trajectory], room: Room | None) -> list[Score]:
        least = min(len(t.reply or "") for t in trajectories)
        return [Score("shortest", float(len(t.reply or "") == least)) for t in trajectories]

    room = keyed(PRICE)
    members = [played(room, (SEARCH, RULE), HONEST), played(room, (SEARCH, RULE), "")]
    rubric = Rubric([], weights={"replier": {"shortest": 1.0}}, group_hooks=[shortest])
    made = rubric.score_group(members, room)
    assert [rewards.total("replier") for rewards in made] == [0.0, 0.0]


def test_rubrics_are_named() -> None:
    assert make_rubric("multi22") is PRESETS["multi22"]
    with pytest.raises(ValueError, match="Did you mean `single4`"):
        make_rubric("single")


# --- through the environment ------------------------------------------------------------------


def test_the_environment_scores_by_a_preset_by_default() -> None:
    env = gym.make("LiveRoom-v0", room="snacks", embedder="lexical")
    env.reset(seed=1)
    _, reward, terminated, _, info = env.step(le.Action.reply("亲，您好"))
    assert terminated
    assert {score["name"] for score in info["rewards"]["scores"]} >= {"correctness", "rule"}
    assert reward == info["rewards"]["total"]


def test_the_environments_spec_keeps_the_rubrics_name() -> None:
    env = gym.make("LiveRoom-v0", room="snacks", rubric="multi22")
    assert env.spec is not None
    again = gym.make(gym.envs.registration.EnvSpec.from_json(env.spec.to_json()))
    assert again.unwrapped is not env.unwrapped


def test_process_scores_each_turn_by_what_it_brought() -> None:
    room = keyed(PRICE)
    rubric = Rubric(["correctness", "progress"])
    env = le.LiveRoomEnv(room, embedder="lexical", rubric=rubric, process=True)
    env.reset(seed=0)
    rewards = [
        env.step(le.Action.call(SEARCH[0], **SEARCH[1]))[1],
        env.step(le.Action.call(RULE[0], **RULE[1]))[1],
        env.step(le.Action.reply(HONEST))[1],
    ]
    assert rewards == [1.0, 0.0, 1.0]
