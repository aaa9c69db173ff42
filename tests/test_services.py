"""Services that hosts promise, and what promising them costs where nothing says so."""

from __future__ import annotations

import pytest

import livestream_env as le
from livestream_env.grounding import Ground
from livestream_env.mutants import with_reply
from livestream_env.rewards import correctness
from livestream_env.services import services
from livestream_env.types import Fact

PROMISED = {
    "zh": {
        "送运费险": "return_insurance",
        "退货运费我们出": "return_insurance",
        "免费退换": "free_return",
        "退换都不要钱": "free_return",
        "无条件退款": "refund",
        "无效退款": "refund",
        "不满意包退": "refund",
        "破损包赔": "compensation",
        "坏一个赔一个": "compensation",
        "买贵退差价": "price_guard",
        "保价三十天": "price_guard",
        "支持货到付款": "cash_on_delivery",
        "十二期免息分期": "instalments",
        "上门安装免费": "installation",
        "包安装的": "installation",
        "今晚就发货": "ships_today",
        "明天必达": "arrives_soon",
        "次日达": "arrives_soon",
        "免费刻字": "free 刻字",
        "刻字不要钱": "free 刻字",
    },
    "en": {
        "we include return insurance": "return_insurance",
        "we pay for the return postage": "return_insurance",
        "free returns": "free_return",
        "returns are always free": "free_return",
        "full refund": "refund",
        "money-back guarantee": "refund",
        "anything broken is on us": "compensation",
        "we refund the difference if it drops": "price_guard",
        "price match any time": "price_guard",
        "cash on delivery is fine": "cash_on_delivery",
        "interest-free for 12 months": "instalments",
        "free installation at home": "installation",
        "ships tonight": "ships_today",
        "same-day dispatch": "ships_today",
        "next-day delivery": "arrives_soon",
        "it arrives tomorrow": "arrives_soon",
        "we cover all duties": "duties",
        "free gift wrap": "free gift wrap",
    },
}
NOT_PROMISED = {
    "zh": [
        *("能货到付款吗", "不支持货到付款", "货到付款暂不支持哦", "运费险没有的", "没有运费险"),
        *(
            "到手价59元",
            "今天到手59元",
            "全国包邮",
            "七天无理由退货",
            "48小时内发货",
            "今天直播间59元",
        ),
        *("明天几点开播", "现在就拍", "发票在订单里", "赔本价", "上门自提不行"),
    ],
    "en": [
        *("Is there a price match?", "Sorry, no cash on delivery", "We don't do free returns"),
        *("Free shipping today", "ships within 24 hours", "setup takes 5 minutes", "$15 tonight"),
        *("10 days to return it", "Go check link 3 today", "refund policy is on the page"),
    ],
}


@pytest.mark.row("R26")
@pytest.mark.parametrize(
    ("language", "text", "name"),
    [(language, text, name) for language, all_ in PROMISED.items() for text, name in all_.items()],
)
def test_a_promised_service_is_found(language: str, text: str, name: str) -> None:
    assert name in services(text, language)


@pytest.mark.row("R26")
@pytest.mark.parametrize(
    ("language", "text"),
    [(language, text) for language, all_ in NOT_PROMISED.items() for text in all_],
)
def test_what_is_asked_denied_or_something_else_is_no_service(language: str, text: str) -> None:
    assert services(text, language) == frozenset()


@pytest.mark.row("R26", "R81")
@pytest.mark.parametrize(("room_id", "language"), [("snacks", "zh"), ("outdoor", "en")])
def test_a_service_that_nothing_promises_makes_a_right_reply_wrong(
    room_id: str, language: str
) -> None:
    room = le.load_room(room_id)
    assert room.language == language
    good = scripted(room)
    told = services(" ".join(message.content for message in good.messages), language)
    assert good.reward == 1.0
    for promise, name in PROMISED[language].items():
        if name not in told:
            added = with_reply(good, f"{good.reply}。{promise}")
            score = correctness()(added, room)
            assert score.value == 0.0, promise
            assert f"unsupported: {name}" in score.reason


def scripted(room: le.Room) -> le.Trajectory:
    """Return a right episode whose comment asks a price."""
    for comment in room.comments:
        key = comment.expected
        if key is not None and any("price" in str(ask.facts) for ask in key.asks):
            env = le.LiveRoomEnv(
                room, comment=comment.comment_id, embedder="lexical", rubric="single4"
            )
            return le.rollout(env, le.ScriptedAgent(room), seed=0)
    raise AssertionError("no comment of the room asks a price")


@pytest.mark.row("R26")
def test_a_service_that_the_evidence_promises_may_be_repeated() -> None:
    facts = [Fact("faq:f1", "answer", "破损包赔，退货运费我们出", None, "")]
    assert Ground(facts, "zh").services == {"compensation", "return_insurance"}
    assert Ground([], "en", ["Price match until Friday"]).services == {"price_guard"}
    forbidden = [Fact("rule:r1", "rule", "不要承诺破损包赔，可以说货到付款", None, "")]
    assert Ground(forbidden, "zh").services == {"cash_on_delivery"}
