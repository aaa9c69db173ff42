"""Markup of replies: whom they answer, what they skip, speech, gestures."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st
from rooms_for_tests import small_room

import livestream_env as le
from livestream_env.markup import read_markup


@pytest.mark.row("R1", "R8", "R85")
@pytest.mark.parametrize(
    ("text", "bullet", "covers", "skips", "speech", "extras"),
    [
        ('<reply to="c1,c2">都有货</reply>', "都有货", ("c1", "c2"), (), None, {}),
        (
            '<reply to="c1">有</reply><skip ids="c3"/>',
            "有",
            ("c1",),
            ("c3",),
            None,
            {},
        ),
        ('<skip ids="c1，c2"/>', "", (), ("c1", "c2"), None, {}),
        ("<skip ids='c1'/>", "", (), ("c1",), None, {}),
        ('<skip ids="c1">', "", (), ("c1",), None, {}),
        ('<skip ids = "c1"></skip>好', "好", (), ("c1",), None, {}),
        ("<reply to='c1' tone=\"it's\">有</reply>", "有", ("c1",), (), None, {"tone": "it's"}),
        ("有货<speech>家人们有货的</speech>", "有货", (), (), "家人们有货的", {}),
        (
            '<reply to="c2" gesture="wave" tone="warm">来啦</reply>',
            "来啦",
            ("c2",),
            (),
            None,
            {"gesture": "wave", "tone": "warm"},
        ),
        (
            '<reply to="c1">有货<speech tone="warm">家人们</speech></reply>',
            "有货",
            ("c1",),
            (),
            "家人们",
            {"tone": "warm"},
        ),
        (
            '<reply to="c1">一</reply>\n<reply to="c2">二</reply>',
            "一 二",
            ("c1", "c2"),
            (),
            None,
            {},
        ),
    ],
)
def test_markup_is_taken_apart(
    text: str,
    bullet: str,
    covers: tuple[str, ...],
    skips: tuple[str, ...],
    speech: str | None,
    extras: dict[str, str],
) -> None:
    assert read_markup(text) == (bullet, covers, skips, speech, extras)


@pytest.mark.parametrize(
    "text",
    [
        "",
        "有货",
        "<reply>",
        '<reply to="c1">没写完',
        "a < b",
        "<skip>",
        "<speech",
        "3<5 <reply x=1>",
        '您发的“<skip ids="c1"/>”是什么',
        'what is "<reply to="c1">hi</reply>"?',
    ],
)
def test_text_without_markup_is_text(text: str) -> None:
    assert read_markup(text) is None
    env = le.LiveRoomEnv(small_room(), embedder="lexical")
    env.reset(seed=0)
    env.step(text)
    assert env.trajectory.turns[0].action.message.content == text.strip()


@given(st.text(alphabet='<>/replyskipspeech to="c1,"xs \n'))
def test_no_text_raises(text: str) -> None:
    read_markup(text)


def test_a_long_text_of_open_tags_is_text() -> None:
    assert read_markup("<reply>" * 100_000) is None


@pytest.mark.row("R8", "R88")
def test_a_models_text_answers_some_comments_and_skips_others() -> None:
    env = le.LiveRoomEnv(small_room(), embedder="lexical", comment=["c1", "c2", "c3"])
    observation, _ = env.reset(seed=0)
    assert '<skip ids="' in observation.messages[0].content
    env.step(le.Action.call("get_reply_rule", intent="物流"))
    *_, info = env.step('<reply to="c1">48小时内发</reply><skip ids="c3"/>')
    assert info["tasks"] == {"c1": "answered", "c2": "failed", "c3": "skipped"}
    action = env.trajectory.turns[-1].action
    assert (action.message.content, action.covers, action.skips) == ("48小时内发", ("c1",), ("c3",))


@pytest.mark.row("R85")
def test_a_gesture_that_the_room_does_not_know_is_an_event() -> None:
    room = small_room(limits={"extras": {"gesture": ["wave", "nod"]}})
    env = le.LiveRoomEnv(room, embedder="lexical")
    observation, _ = env.reset(seed=0)
    assert "wave" in observation.messages[0].content
    for reply, events in (
        ('<reply gesture="wave">好</reply>', []),
        ('<reply gesture="fly">好</reply>', ["unknown_extra"]),
        ('<reply mood="x">好</reply>', ["unknown_extra"]),
    ):
        env.reset(seed=0)
        env.step(le.Action.call("get_reply_rule", intent="物流"))
        *_, info = env.step(reply)
        assert info["events"] == events
    plain = le.LiveRoomEnv(small_room(), embedder="lexical")
    plain.reset(seed=0)
    plain.step(le.Action.call("get_reply_rule", intent="物流"))
    *_, info = plain.step('<reply gesture="fly">好</reply>')
    assert info["events"] == []


@pytest.mark.row("R8")
def test_a_window_opens_the_comments_around_one() -> None:
    env = le.LiveRoomEnv(small_room(), embedder="lexical", comment="window:40s")
    opened = [env.reset(seed=seed)[1]["comment_ids"] for seed in range(3)]
    assert opened == [["c1", "c2"], ["c1", "c2", "c3"], ["c2", "c3"]]
    with pytest.raises(ValueError, match="window:10s"):
        le.LiveRoomEnv(small_room(), comment="window:10")


def test_the_speech_limit_is_in_seconds() -> None:
    limits = {"speech_s": 2, "speech_characters_per_s": 4.5}
    env = le.LiveRoomEnv(small_room(limits=limits), embedder="lexical")
    for length, events in ((9, []), (10, ["reply_too_long"])):
        env.reset(seed=0)
        env.step(le.Action.call("get_reply_rule", intent="物流"))
        *_, info = env.step(f"好<speech>{'好' * length}</speech>")
        assert info["events"] == events
