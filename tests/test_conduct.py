"""Acts, use of FAQs and wording of look-ups."""

from __future__ import annotations

import json
from typing import Any

import pytest
from rooms_for_tests import SMALL, small_room

import livestream_env as le
from livestream_env.conduct import abstention, act_confusion, explicit_query, faq_utilisation
from livestream_env.evidence import Reading
from livestream_env.room_files import validate_room
from livestream_env.rooms import Room
from livestream_env.types import Trajectory

RULES = [{"rule_id": "r1", "intent": "物流", "rule": "说清时效"}]
SHIPPING = {
    "intent": "物流",
    "needed": ["faq:f1"],
    "facts": [{"record": "faq:f1", "field": "answer", "text": ["48小时"]}],
}


def keyed(ask: dict[str, Any]) -> Room:
    comment = {"comment_id": "c1", "viewer": "小王", "at_s": 20, "text": "啥时候寄"}
    return small_room(
        reply_rules=RULES,
        comments=[{**comment, "expected": {"asks": [ask]}}],
        limits={"preset_faqs": 0},
    )


def played(room: Room, query: str | None, reply: str | le.Action) -> Trajectory:
    env = le.LiveRoomEnv(room, embedder="lexical", rubric=None)
    env.reset(seed=0)
    if query is not None:
        env.step(le.Action.call("search_faq", query=query))
    env.step(le.Action.call("get_reply_rule", intent="物流"))
    env.step(reply)
    return env.trajectory


@pytest.mark.row("R5")
def test_use_of_faqs_is_the_share_of_fifty_episodes_that_need_one() -> None:
    room = keyed(SHIPPING)
    good = played(room, "什么时候发货", "亲，付款后48小时内发货")
    unsaid = played(room, "什么时候发货", "亲，很快就发")
    guessed = played(room, None, "亲，48小时内发货")
    chat = keyed({"intent": "物流", "acts": ["chat"]})
    other = played(chat, None, "哈哈")
    log = [(good, room)] * 9 + [(unsaid, room)] * 20 + [(guessed, room)] * 11 + [(other, chat)] * 10
    assert len(log) == 50
    assert faq_utilisation(log) == 9 / 40
    assert faq_utilisation([(other, chat)]) is None


@pytest.mark.row("R5")
def test_an_intent_more_is_an_entry_of_json_more() -> None:
    more = {"rule_id": "r9", "intent": "开发票", "rule": "电子发票，下单时备注抬头"}
    room = validate_room(json.loads(json.dumps({**SMALL, "reply_rules": [*RULES, more]})))
    env = le.LiveRoomEnv(room, embedder="lexical", rubric=None, comment="c1")
    env.reset(seed=0)
    observation, *_ = env.step(le.Action.call("get_reply_rule", intent="开发票"))
    assert "下单时备注抬头" in observation.messages[0].content


@pytest.mark.row("R86")
@pytest.mark.parametrize(
    ("right", "reply", "taken"),
    [
        (["answer"], "亲，48小时内发", "reply"),
        (["answer"], "亲，身高多少？", "ask"),
        (["ask"], "亲，身高多少？", "ask"),
        (["ignore"], le.Action.skip(), "ignore"),
        (["answer"], le.Action.skip("c1"), "ignore"),
    ],
)
def test_each_step_is_an_act(right: list[str], reply: Any, taken: str) -> None:
    room = keyed({"intent": "物流", "acts": right})
    counts = act_confusion([(played(room, None, reply), room)])
    oracle = "reply" if right == ["answer"] else right[0]
    assert counts == {(oracle, taken): 1}


@pytest.mark.row("R86")
@pytest.mark.parametrize("name", ["snacks", "pets"])
def test_the_experts_acts_are_the_oracles(name: str) -> None:
    room = le.load_room(name)
    env = le.LiveRoomEnv(room, rubric=None)
    agent = le.ScriptedAgent(room)
    log = [(le.rollout(env, agent, seed=i), room) for i in range(len(room.comments))]
    counts = act_confusion(log)
    assert {right for right, _ in counts} >= {"reply", "ask", "ignore"}
    assert [pair for pair in counts if pair[0] != pair[1]] == []


@pytest.mark.row("R12")
@pytest.mark.parametrize(
    ("query", "value"),
    [("什么时候发货", 1.0), ("发货", 1.0), ("那个呢", 0.0), ("啥时候寄", 1.0), ("寄吗", 0.0)],
)
def test_a_query_is_explicit_where_it_names_what_is_meant(query: str, value: float) -> None:
    room = keyed(SHIPPING)
    trajectory = played(room, query, "亲，48小时内发货")
    assert explicit_query(trajectory, room).value == value


@pytest.mark.row("R12")
def test_a_link_number_names_its_product_and_no_search_says_nothing() -> None:
    ask = {"intent": "物流", "needed": ["product:p2"]}
    room = keyed(ask)
    env = le.LiveRoomEnv(room, embedder="lexical", rubric=None)
    env.reset(seed=0)
    env.step(le.Action.call("search_product_by_keyword", keyword="2号链接"))
    env.step(le.Action.call("search_product_by_keyword", keyword="便宜的"))
    assert explicit_query(env.trajectory, room).value == 0.5
    assert explicit_query(played(room, None, "好"), room).cause == "not_applicable"


SORRY = "这个我不清楚"
UNKNOWN = {"kind": "unknown", "record": "product:p2", "field": "stock"}
ABSENT = {"kind": "absent", "text": ["没有"]}


@pytest.mark.parametrize(
    ("ask", "query", "reply", "found"),
    [
        pytest.param(SHIPPING, "什么时候发货", SORRY, "unjustified", id="it-was-there"),
        pytest.param(SHIPPING, None, SORRY, "unjustified", id="it-was-not-looked-up"),
        pytest.param(SHIPPING, "航天飞机", SORRY, "unjustified", id="looked-up-badly"),
        pytest.param(SHIPPING, None, "亲，48小时内发货", None, id="no-abstention"),
        pytest.param(SHIPPING, None, le.Action.skip(), None, id="no-reply"),
        pytest.param({"acts": ["decline"]}, None, SORRY, "justified", id="declining-is-right"),
        pytest.param({"facts": [UNKNOWN]}, None, SORRY, "unjustified", id="unknown-unseen"),
        pytest.param({"facts": [UNKNOWN]}, "饼干", SORRY, "justified", id="unknown-looked-up"),
        pytest.param({"facts": [ABSENT]}, "航天飞机", SORRY, "justified", id="absent"),
        pytest.param({"facts": [ABSENT]}, None, SORRY, "unjustified", id="absent-not-searched"),
        pytest.param(None, "航天飞机", SORRY, "justified", id="no-key-and-an-empty-search"),
        pytest.param(None, "什么时候发货", SORRY, "unjustified", id="no-key-and-a-hit"),
    ],
)
def test_an_abstention_needs_a_reason(
    ask: dict[str, Any] | None, query: str | None, reply: Any, found: str | None
) -> None:
    room = keyed({"intent": "物流", **(ask or SHIPPING)})
    env = le.LiveRoomEnv(room, embedder="lexical", rubric=None)
    env.reset(seed=0)
    if query is not None:
        tool = ("search_product_by_keyword", "keyword") if query == "饼干" else FAQS
        env.step(le.Action.call(tool[0], **{tool[1]: query}))
    env.step(le.Action.call("get_reply_rule", intent="物流"))
    env.step(reply)
    reading = Reading(env.trajectory, None if ask is None else room)
    assert abstention(reading) == found


FAQS = ("search_faq", "query")
