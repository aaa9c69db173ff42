"""What a reply covers: facts stated of those asked, comments answered of those due."""

from __future__ import annotations

import time
from typing import Any

import pytest
from rooms_for_tests import small_room

import livestream_env as le
from livestream_env.coverage import (
    answered_comments,
    comment_f1,
    facts_stated,
    holds,
    occurs,
    without_money,
)


def asked(
    intent: str, *facts: dict[str, Any], acts: tuple[str, ...] = ("answer",)
) -> dict[str, Any]:
    return {"asks": [{"intent": intent, "facts": list(facts), "acts": list(acts)}]}


def phrase(text: str) -> dict[str, Any]:
    return {"record": "faq:f1", "field": "answer", "text": [text]}


COMMENTS = [
    {"comment_id": "c1", "viewer": "甲", "at_s": 1, "text": "有补贴吗",
     "expected": asked("物流", phrase("补贴15元"))},
    {"comment_id": "c2", "viewer": "乙", "at_s": 2, "text": "送啥",
     "expected": asked("物流", phrase("送帆布袋"))},
    {"comment_id": "c3", "viewer": "丙", "at_s": 3, "text": "几天到",
     "expected": asked("物流", phrase("48小时"))},
    {"comment_id": "c4", "viewer": "丁", "at_s": 4, "text": "666",
     "expected": asked("物流", acts=("ignore",))},
    {"comment_id": "c5", "viewer": "戊", "at_s": 5, "text": "哈哈哈哈",
     "expected": asked("物流", acts=("ignore",))},
    {"comment_id": "c6", "viewer": "己", "at_s": 6, "text": "几天能到", "same_as": "c3"},
]  # fmt: skip
ROOM = small_room(comments=COMMENTS)


def played(comments: list[str], *actions: Any, **options: Any) -> le.Trajectory:
    env = le.LiveRoomEnv(ROOM, embedder="lexical", comment=comments, **options)
    env.reset(seed=0)
    for action in (le.Action.call("get_reply_rule", intent="物流"), *actions):
        env.step(action)
    return env.trajectory


@pytest.mark.row("R8")
def test_a_reply_to_three_comments_states_two_of_three_facts() -> None:
    trajectory = played(["c1", "c2", "c3"], "补贴15元，48小时内发货哦")
    assert facts_stated(ROOM, trajectory) == (2, 3)
    spoken = played(["c1", "c2", "c3"], le.Action.reply("补贴15元", speech="还送帆布袋"))
    assert facts_stated(ROOM, spoken) == (2, 3)


@pytest.mark.row("R88")
@pytest.mark.parametrize(
    ("reply", "f1"),
    [
        # due: c1, c3 of c1, c3, c4, c5 and the repeat c6 -> {c1, c3, c6}
        (le.Action.reply("好", covers=["c1", "c3"]), 1.0),  # the repeat is answered with c3
        (le.Action.reply("好", covers=["c1"]), 0.5),  # 2*1/(3+1)
        (le.Action.reply("好"), 0.75),  # 2*3/(3+5)
        (le.Action.skip(), 0.0),
        (le.Action.reply("", covers=["c1"]), 0.0),
        ('<reply to="c3">48小时</reply><skip ids="c4,c5"/>', 0.8),  # 2*2/(3+2)
    ],
)
def test_f1_of_the_comments_answered_against_those_due(reply: Any, f1: float) -> None:
    trajectory = played(["c1", "c3", "c4", "c5", "c6"], reply)
    assert comment_f1(ROOM, trajectory) == pytest.approx(f1)


def test_nothing_due_and_nothing_answered_is_right() -> None:
    assert comment_f1(ROOM, played(["c4", "c5"], le.Action.skip())) == 1.0
    assert comment_f1(ROOM, played(["c4", "c5"], "哈哈")) == 0.0


def test_a_reply_that_did_not_stand_answers_nothing() -> None:
    cut = le.Action(le.Action.reply("好").message, stop="length")
    assert answered_comments(ROOM, played(["c1"], cut)) == set()
    assert facts_stated(ROOM, played(["c1"], cut)) == (0, 1)


@pytest.mark.parametrize(
    "text",
    [
        pytest.param("1" * 100_000, id="digits"),
        pytest.param("不48小时" * 20_000, id="denials"),
        pytest.param("$ " * 50_000, id="signs"),
    ],
)
def test_a_degenerate_reply_takes_linear_time(text: str) -> None:
    start = time.process_time()
    assert not occurs("48小时", text)
    assert not holds(text, 48)
    assert without_money(text)
    assert time.process_time() - start < 10  # minutes, were it quadratic
