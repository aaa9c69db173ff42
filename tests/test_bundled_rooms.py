"""The bundled rooms hold what training and the other tests count on."""

from __future__ import annotations

import json
import re
from itertools import combinations, pairwise
from typing import Any

import gymnasium as gym
import pytest
from answer_key import (
    ROOMS,
    Raw,
    act,
    current_product,
    needed,
    product_of,
    raw_asks,
    raw_comments,
    raw_room,
    value_at,
)

import livestream_env as le

COMMENTS = {
    "apparel": 64,
    "appliances": 75,
    "duo": 75,
    "farmstand": 81,
    "phones": 78,
    "skincare": 78,
    "snacks": 58,
    "outdoor": 64,
    "pets": 77,
}
by_room = pytest.mark.parametrize("name", ROOMS)


def called(room: str, comment: str, tool: str, **arguments: Any) -> le.ToolResult:
    """Call a tool in the environment, on the room as it was at the comment's time."""
    env = le.LiveRoomEnv(room, comment=comment)
    env.reset(seed=0)
    env.step(le.Action.call(tool, **arguments))
    result = env.trajectory.turns[0].results[0]
    assert result.error is None
    return result


# --- sizes -----------------------------------------------------------------------------------


@by_room
def test_a_room_is_large_enough(name: str) -> None:
    room = raw_room(name)
    assert len(room["products"]) >= 12
    assert len(room["faqs"]) >= 15
    assert len(room["script"]) >= 25
    assert len(room["reply_rules"]) >= 12
    assert all(rule["checks"] for rule in room["reply_rules"])
    assert len(room["comments"]) == COMMENTS[name] >= 30
    assert all(comment["expected"]["asks"] for comment in room["comments"])
    intents = {ask["intent"] for comment in room["comments"] for ask in raw_asks(comment)}
    assert len(intents) >= 15
    assert intents <= {rule["intent"] for rule in room["reply_rules"]}


@by_room
def test_the_script_is_timed_and_covers_the_show(name: str) -> None:
    script = raw_room(name)["script"]
    for segment, following in pairwise(script):
        assert segment["start_s"] < segment["end_s"] <= following["start_s"]
    said = [comment["at_s"] for comment in raw_room(name)["comments"]]
    assert script[0]["start_s"] <= min(said)
    assert max(said) <= script[-1]["end_s"]


@by_room
def test_every_kind_of_check_and_act_occurs(name: str) -> None:
    room = raw_room(name)
    checks = {check["kind"] for rule in room["reply_rules"] for check in rule["checks"]}
    acts = {act(ask) for comment in room["comments"] for ask in raw_asks(comment)}
    kinds = {
        statement.get("kind", "value")
        for comment in room["comments"]
        for ask in raw_asks(comment)
        for statement in ask.get("facts", [])
    }
    assert checks == {
        "must_mention",
        "must_not_promise",
        "must_ask",
        "max_characters",
        "must_add_link_number",
    }
    assert acts == {"answer", "ask", "hand_off", "decline", "chat", "ignore"}
    assert kinds == {"value", "compare", "absent", "unknown"}


def test_two_chinese_and_one_english_room_are_the_test_split() -> None:
    zh = ["apparel", "appliances", "duo", "farmstand", "phones", "skincare", "snacks"]
    assert le.list_rooms() == [*zh, "outdoor", "pets", "thrift"]
    train = ["apparel", "duo", "farmstand", "phones", "snacks", "pets", "thrift"]
    assert le.list_rooms("train") == train
    assert le.list_rooms("test") == ["appliances", "skincare", "outdoor"]


@pytest.mark.row("R92")
def test_one_room_has_no_key_and_is_played_all_the_same() -> None:
    room = le.load_room("thrift")
    assert len(room.comments) == 40
    assert room == le.strip_room(room)
    assert sum(comment.recorded_reply is not None for comment in room.comments) == 20
    env = le.LiveRoomEnv(room, embedder="lexical")
    for agent in (le.ScriptedAgent(room), le.WorkflowAgent()):
        played = [le.rollout(env, agent, seed=seed) for seed in range(40)]
        assert {str(trajectory.stop_reason) for trajectory in played} == {"replied"}


def test_tasks_are_every_comment_of_every_room() -> None:
    assert len(le.list_tasks()) == 690
    assert len(le.list_tasks("train")) == 473  # 64 + 75 + 81 + 78 + 58 + 77 + 40
    assert len(le.list_tasks("test")) == 217  # 75 + 78 + 64
    keyed = [task for task in le.list_tasks() if task.room_id != "thrift"]
    assert keyed == [(name, comment["comment_id"]) for name, comment in raw_comments()]


# --- wording ---------------------------------------------------------------------------------


@by_room
def test_no_two_comments_share_their_wording(name: str) -> None:
    texts = [comment["text"] for comment in raw_room(name)["comments"]]
    for one, other in combinations(texts, 2):
        short, long = sorted((one, other), key=len)
        size = len(short) // 2 + 1
        pieces = (short[i : i + size] for i in range(len(short) - size + 1))
        assert not any(piece in long for piece in pieces), (one, other)


def words(text: str, language: str) -> set[str]:
    """Chinese character bigrams, or English words of four letters and more."""
    if language == "en":
        return set(re.findall(r"[a-z]{4,}", text.lower()))
    runs = re.findall(r"[\u4e00-\u9fff]+", text)
    return {run[i : i + 2] for run in runs for i in range(len(run) - 1)}


def record_text(room: Raw, record: str) -> str:
    """What an FAQ or product says."""
    if record.startswith("faq:"):
        faq = next(faq for faq in room["faqs"] if record == f"faq:{faq['faq_id']}")
        return " | ".join([faq["question"], *faq["similar"], faq["answer"]])
    product = product_of(room, record)
    assert product is not None
    parts = [product["name"], *product["attributes"], *product["attributes"].values()]
    parts += [value for sku in product.get("skus", []) for value in sku["spec"].values()]
    return " | ".join(parts)


@by_room
def test_some_comments_use_no_word_of_what_they_need(name: str) -> None:
    room = raw_room(name)
    paraphrased = set()
    for comment in room["comments"]:
        records = [r for r in needed(comment) if r.split(":")[0] in ("faq", "product", "sku")]
        texts = " | ".join(record_text(room, record) for record in records)
        if records and not words(comment["text"], room["language"]) & words(
            texts, room["language"]
        ):
            paraphrased.add(comment["comment_id"])
    assert len(paraphrased) >= 5
    assert set(room["provenance"]["paraphrased"]) <= paraphrased


@pytest.mark.row("R19")
@by_room
def test_a_room_holds_no_phone_number_no_address_and_in_store_barcodes_only(name: str) -> None:
    room = raw_room(name)
    text = json.dumps({**room, "products": []}, ensure_ascii=False)
    assert not re.search(r"(?<!\d)1[3-9]\d{9}(?!\d)|\d{3}[-. ]\d{3,4}[-. ]\d{4}", text)
    assert not re.search(r"https?:|www\.|\w@\w", text)
    skus = [sku for product in room["products"] for sku in product.get("skus", [])]
    barcodes = [x["barcode"] for x in (*room["products"], *skus) if x.get("barcode")]
    assert barcodes
    assert all(re.fullmatch(r"2\d{12}", barcode) for barcode in barcodes)


# --- the key against the world ---------------------------------------------------------------


@by_room
def test_values_in_the_key_are_what_events_make_of_the_record(name: str) -> None:
    room = raw_room(name)
    pinned = 0
    for comment in room["comments"]:
        for ask in raw_asks(comment):
            for statement in (*ask.get("facts", []), *ask.get("extras", [])):
                record = statement.get("record", "")
                if "value" in statement and record.startswith(("product:", "sku:")):
                    held = value_at(room, record, statement["field"], comment["at_s"])
                    assert held == statement["value"], comment["comment_id"]
                    pinned += 1
                if statement.get("kind") == "unknown":
                    assert value_at(room, record, statement["field"], comment["at_s"]) is None
    assert pinned >= 4


@by_room
def test_key_phrases_stand_in_the_records_that_they_are_of(name: str) -> None:
    room = raw_room(name)
    texts = {f"faq:{faq['faq_id']}": faq["answer"] for faq in room["faqs"]}
    texts |= {f"script:{s['segment_id']}": s["text"] for s in room["script"]}
    promotions = [p for product in room["products"] for p in product.get("promotions", [])]
    for promotion in (*promotions, *room["promotions"]):
        texts[f"promotion:{promotion['promotion_id']}"] = promotion["text"]
    for comment in room["comments"]:
        for ask in raw_asks(comment):
            for statement in ask.get("facts", []):
                if statement.get("text") and statement.get("kind", "value") == "value":
                    record, field = statement["record"], statement["field"]
                    text = texts.get(record) or value_at(room, record, field, comment["at_s"])
                    assert statement["text"][0] in text, comment["comment_id"]


@by_room
def test_every_needed_record_is_within_reach_of_one_search(name: str) -> None:
    room = raw_room(name)
    faqs = {faq["faq_id"]: faq["question"] for faq in room["faqs"]}
    script = {segment["segment_id"]: segment["text"][:200] for segment in room["script"]}
    sandbox = le.LocalSandbox(le.load_room(name))
    for comment in room["comments"]:
        sandbox.reset(seed=0, comments=[comment["comment_id"]])
        for record in needed(comment):
            kind, _, record_id = record.partition(":")
            if kind == "faq":
                call = le.Action.call("search_faq", query=faqs[record_id])
            elif kind == "script":
                call = le.Action.call("search_script", query=script[record_id])
            else:
                product = product_of(room, record)
                assert product is not None
                keyword = f"{product['link_no']}号链接"
                call = le.Action.call("search_product_by_keyword", keyword=keyword)
            found = sandbox.call(call.message.tool_calls[0])
            assert record in {fact.record for fact in found.data}, comment["comment_id"]


@by_room
def test_no_comment_needs_more_than_the_tools_allow(name: str) -> None:
    for comment in raw_room(name)["comments"]:
        kinds = [record.partition(":")[0] for record in dict.fromkeys(needed(comment))]
        assert kinds.count("faq") <= 2
        assert kinds.count("script") <= 1


# --- what changes during the show ------------------------------------------------------------


def sku_stock(result: le.ToolResult, sku_id: str) -> Any:
    """Stock of a SKU by the facts of a result, which its JSON text must agree with."""
    facts = [f.value for f in result.data if (f.record, f.field) == (f"sku:{sku_id}", "stock")]
    entries = json.loads(result.content)["结果"]
    shown = [s["库存"] for entry in entries for s in entry["规格"] if s["规格编号"] == sku_id]
    assert facts == shown
    return facts[0]


@pytest.mark.row("R96")
def test_a_variant_sells_out_during_the_show() -> None:
    sold_out = {"at_s": 1970, "kind": "stock", "target": "sku:7-L", "value": 0}
    assert sold_out in raw_room("apparel")["events"]
    at = {c["comment_id"]: c["at_s"] for c in raw_room("apparel")["comments"]}
    assert (at["c46"], at["c47"]) == (1960, 1995)
    search = "search_product_by_keyword"
    assert sku_stock(called("apparel", "c46", search, keyword="7号链接"), "7-L") == 8
    assert sku_stock(called("apparel", "c47", search, keyword="7号链接"), "7-L") == 0


@pytest.mark.row("R97")
def test_stacked_promotions_give_the_total_that_the_expert_replies() -> None:
    # 2 x 199 = 398; full reduction 300 - 50: 348; coupon 10 once: 338; 15 % subsidy: 287.30
    room = le.load_room("apparel")
    env = gym.make("LiveRoom-v0", room="apparel", comment="c06")
    trajectory = le.rollout(env, le.ScriptedAgent(room), seed=0)
    assert trajectory.reply is not None
    assert "287.3元" in trajectory.reply


@pytest.mark.row("R99")
@pytest.mark.parametrize(
    ("room", "comment", "shop", "question", "faq_id", "answer"),
    [
        ("snacks", "c10", "青筐果仁铺", "付款后多久发货", "f1", "48小时内"),
        ("snacks", "c31", "阿灶肉脯坊", "付款后多久发货", "f2", "下午4点前"),
        ("apparel", "c08", "禾间衣橱", "下单以后多久发货", "f1", "48小时内"),
        ("apparel", "c52", "雪棠羽绒工坊", "下单以后多久发货", "f2", "16点前"),
        ("apparel", "c33", "踏叶鞋包铺", "下单以后多久发货", "f3", "72小时内"),
    ],
)
def test_one_question_is_answered_for_the_shop_of_the_current_product(
    room: str, comment: str, shop: str, question: str, faq_id: str, answer: str
) -> None:
    raw = raw_room(room)
    at_s = next(c["at_s"] for c in raw["comments"] if c["comment_id"] == comment)
    product = product_of(raw, f"product:{current_product(raw, at_s)}")
    assert product is not None
    assert product["merchant"] == shop
    result = called(room, comment, "search_faq", query=question)
    same = {f"faq:{faq['faq_id']}" for faq in raw["faqs"] if faq["question"] == question}
    found = [f for f in result.data if f.record in same and f.field == "answer"]
    assert [fact.record for fact in found] == [f"faq:{faq_id}"]
    assert answer in str(found[0].value)


@pytest.mark.row("R99")
def test_one_intent_has_another_rule_in_another_shop() -> None:
    mentioned = {
        comment: called("snacks", comment, "get_reply_rule", intent="发货物流").data[0].record
        for comment in ("c10", "c31")
    }
    assert mentioned == {"c10": "rule:r04", "c31": "rule:r05"}
