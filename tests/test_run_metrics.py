"""Figures of a run, on a log written by hand whose numbers were worked out on paper."""

from __future__ import annotations

import json
import re
import time
from collections.abc import Sequence
from dataclasses import replace
from math import sqrt
from pathlib import Path
from typing import Any

import httpx
import pytest
from gateway_for_tests import Gateway, completion
from rooms_for_tests import SMALL, small_room

import livestream_env as le
from livestream_env.judge_budget import Budget
from livestream_env.judges import ChatJudge
from livestream_env.types import (
    Action,
    Fact,
    Message,
    Rewards,
    Score,
    Status,
    StopReason,
    ToolCall,
    ToolResult,
    Trajectory,
    Turn,
    TurnEvent,
    freeze,
)

DOCS = Path(__file__).resolve().parents[1] / "docs" / "diagnosing.md"
ASKS_FAQ = {
    "intent": "物流",
    "needed": ["faq:f1"],
    "facts": [{"record": "faq:f1", "field": "answer", "text": ["48小时"]}],
}
ROOM = small_room(
    comments=[
        {**SMALL["comments"][0], "expected": {"asks": [ASKS_FAQ]}},
        SMALL["comments"][1],
        {**SMALL["comments"][2], "expected": {"asks": [{"intent": "尺码", "acts": ["ask"]}]}},
    ]
)
FAQ = Fact("faq:f1", "answer", "付款后48小时内发货")
RULE = Fact("rule:r1", "intent", "物流")


def call(name: str, text: str = "", *facts: Fact, error: str | None = None) -> Any:
    """Make a call and its result."""
    broken = f"{error}: cut" if error == "invalid_json" else None
    asked = ToolCall(f"{name} {text}", name, freeze({"query": text}), broken)
    return asked, ToolResult(asked.id, "{}", facts, error)


def looks(*pairs: Any) -> Turn:
    """Make a turn with calls."""
    calls, results = zip(*pairs, strict=True)
    return Turn("host", Action(Message("assistant", "", calls)), results)


def says(text: str, **options: Any) -> Turn:
    return Turn("host", Action.reply(text, **options))


def scores(*values: float | str | None) -> list[Score]:
    """Make the four scores; a cause stands for a missing one."""
    names = {"correctness": "replier", "helpfulness": "replier"}
    names |= {"rule": "tool_caller", "tool_use": "tool_caller"}
    return [
        Score(name, None, 0.5, agent, cause=value)  # type: ignore[arg-type]
        if isinstance(value, str)
        else Score(name, value, 0.5, agent)
        for (name, agent), value in zip(names.items(), values, strict=True)
    ]


def episode(
    comment: str,
    turns: Sequence[Turn],
    given: Sequence[Score] = (),
    *,
    group: str | None = None,
    stop: str = "replied",
    faults: Sequence[TurnEvent] = (),
) -> Trajectory:
    status = {"env_error": Status.ENV_ERROR, "turn_limit": Status.POLICY_TRUNCATED}
    return Trajectory(
        room_id=ROOM.room_id,
        content_hash=ROOM.content_hash,
        comment_ids=(comment,),
        seed=0,
        group=group,
        prompts={"host": (Message("system", "规则"), Message("user", "啥时候寄"))},
        tools={"host": ()},
        turns=tuple(turns),
        status=status.get(stop, Status.OK),
        stop_reason=StopReason(stop),
        rewards=Rewards(tuple(given)),
        versions={"judge:correctness/zh": "m v1"},
        faults=tuple(faults),
    )


def fixed_log() -> list[Trajectory]:
    rule = call("get_reply_rule", "物流", RULE)
    handed = call("hand_off", "要人工")
    handed = (handed[0], replace(handed[1], state=STATE))
    good = "付款后48小时内发货"
    progress = [Score("progress", v, 0.0, "tool_caller", n) for n, v in ((0, 1.0), (1, 0.5))]
    return [
        episode(
            "c1",
            [looks(call("search_faq", "发货时间", FAQ)), looks(rule), says(good)],
            [*scores(1.0, 1.0, 1.0, 1.0), progress[0]],
            group="g1",
        ),
        episode(
            "c1",
            [
                looks(call("search_faq", "航天飞机")),
                looks(call("search_faq", "啥时候发", FAQ)),
                looks(rule),
                says(good),
            ],
            [*scores(1.0, 0.5, 1.0, 0.5), progress[1]],
            group="g1",
        ),
        episode(
            "c1",
            [looks(call("search_faq", "发货", FAQ))],
            group="g1",
            stop="env_error",
            faults=[TurnEvent("sandbox_retry", "503"), TurnEvent("env_error", "SandboxTimeout: x")],
        ),
        episode(
            "c1",
            [looks(call("search_faq", "发货", FAQ)), says("这个我不清楚")],
            scores("judge_error", 0.0, 0.0, "no_truth"),
            group="g1",
            stop="replied_without_rule",
        ),
        episode(
            "c2",
            [looks(handed, rule), says("已帮您转人工", channel="speech")],
            scores(1.0, 1.0, 1.0, 1.0),
            group="g2",
            faults=[TurnEvent("session_rebuilt")],
        ),
        episode(
            "c2",
            [
                looks(
                    call("search_faq", "甲"),
                    call("search_faq", "乙"),
                    call("search_faq", "丙", error="tool_limit"),
                    call("search_faq", error="invalid_json"),
                    rule,
                ),
                says("还不清楚", speech="暂时不清楚哦"),
            ],
            scores(1.0, 1.0, 1.0, 1.0),
            group="g2",
        ),
        episode(
            "c3",
            [
                looks(call("search_shop", "饼干", error="unknown_tool")),
                looks(call("search_faq", "饼干", FAQ)),
            ],
            scores(0.0, 0.0, 0.0, 0.0),
            stop="turn_limit",
        ),
    ]


STATE = le.State(0.0, None, ())
FLAT = {"judge_error": 0, "no_truth": 0, "not_applicable": 0, "refused": 0, "timeout": 0}


def stream(name: str, mean: float, std: float, flat: float, missing: float = 0) -> dict[str, Any]:
    figures = {"mean": mean, "group_std": std, "flat_groups": flat, "unscored/all": missing}
    return {f"reward/{name}/{key}": value for key, value in figures.items()}


def hook(name: str, mean: float, std: float, flat: float, **causes: float) -> dict[str, Any]:
    shares = {f"reward/{name}/unscored/{k}": v for k, v in {**FLAT, **causes}.items()}
    return {**stream(name, mean, std, flat, sum(causes.values())), **shares}


EXPECTED = {
    "episodes": 7,
    **dict.fromkeys([f"stop/{r}" for r in ("no_reply", "tools_done", "token_limit")], 0),
    "stop/aborted": 0,
    "stop/running": 0,
    "stop/replied": 4 / 7,
    "stop/replied_without_rule": 1 / 7,
    "stop/turn_limit": 1 / 7,
    "stop/env_error": 1 / 7,
    "env_error/share": 1 / 7,
    "env_error/at_reset": 0,
    "env_error/biases": 0,
    "env_error/cause/SandboxTimeout": 1 / 7,
    "sandbox/retries": 1 / 7,
    "sandbox/rebuilds": 1 / 7,
    # totals 1, .75, -, 1, 1, 0: of the first group 1 and .75, whose deviation is .25 / sqrt(2)
    **stream("total", 0.75, 0.25 / sqrt(2) / 2, 0.5, 1 / 6),
    **stream("replier/total", 0.75, 0.25 / sqrt(2) / 2, 0.5, 1 / 6),
    # 1, .75, 0, 1, 1, 0: the squares about the mean 7/12 of 1, .75, 0 sum to 13/24
    **stream("tool_caller/total", 0.625, sqrt(13 / 24 / 2) / 2, 0.5),
    **hook("replier/correctness", 0.8, 0, 1.0, judge_error=1 / 6),
    **hook("replier/helpfulness", 3.5 / 6, 0.25, 0.5),
    **hook("tool_caller/rule", 4 / 6, sqrt(1 / 3) / 2, 0.5),
    **hook("tool_caller/tool_use", 0.7, 0.5 / sqrt(2) / 2, 0.5, no_truth=1 / 6),
    "reward/tool_caller/progress/turn_mean": 0.75,
    "turns": 15 / 6,
    "calls/attempted": 15 / 6,
    "calls/parsed": 14 / 6,
    "calls/executed": 12 / 6,
    "calls/over_limit": 1 / 6,
    "abstain/share": 0.4,
    "abstain/justified": 0.2,
    "abstain/unjustified": 0.2,
    "hand_off/share": 1 / 6,
    # missed: one empty search made good; two empty, one refused, one cut; one unknown, made good
    "recovery/missed": 6 / 6,
    "recovery/rate": 2 / 6,
    "reply/danmaku/characters": (10 + 10 + 6 + 4) / 4,
    "reply/speech/characters": 6,
    "group/replies": 2.5,
    "group/distinct_replies": 2.0,
    "judge/errors/all": 1 / 6,
    "judge/errors/judge_error": 1 / 6,
    "judge/errors/refused": 0,
    "judge/errors/timeout": 0,
}


@pytest.mark.row("R94")
def test_the_figures_of_a_fixed_log() -> None:
    assert le.metrics(fixed_log()) == pytest.approx(EXPECTED)


@pytest.mark.row("R5")
@pytest.mark.row("R6")
@pytest.mark.row("R91")
def test_with_the_rooms_the_figures_that_need_a_key() -> None:
    """Three episodes need the FAQ and two state it; of c3 a question back was due and none came;
    searches that name what is meant: 1/1, 1/2, 1/1. With the key only the search for c1 misses."""
    keyed = {
        "faq_utilisation": 2 / 3,
        "acts/right": 3 / 4,
        "explicit_query": 2.5 / 3,
        "recovery/missed": 5 / 6,
        "recovery/rate": 1 / 5,
    }
    assert le.metrics(fixed_log(), rooms=[ROOM]) == pytest.approx({**EXPECTED, **keyed})
    stripped = le.strip_room(ROOM)
    assert le.metrics(fixed_log(), rooms=[stripped]) == pytest.approx(EXPECTED)


def test_failures_are_in_no_mean_and_what_is_not_known_has_no_key() -> None:
    assert le.metrics([]) == {"episodes": 0.0}
    failed = fixed_log()[2]
    figures = le.metrics([failed, failed])
    assert figures["env_error/share"] == 1.0
    assert not [key for key in figures if key.startswith(("reward", "calls", "reply", "abstain"))]
    unscored = fixed_log()[3]
    assert "reward/total/mean" not in le.metrics([unscored])
    assert le.metrics([unscored])["reward/total/unscored/all"] == 1.0
    with_failure = le.metrics(fixed_log())
    without = le.metrics([t for t in fixed_log() if t.status is not Status.ENV_ERROR])
    for key in without:
        if key.startswith(("reward", "calls", "group", "judge")):
            assert with_failure[key] == without[key], key


def test_an_unfinished_episode_is_told_apart() -> None:
    running = fixed_log()[0].model_copy(update={"stop_reason": None, "status": Status.RUNNING})
    figures = le.metrics([*fixed_log(), running])
    assert figures["stop/running"] == 1 / 8
    assert figures["turns"] == EXPECTED["turns"]


@pytest.mark.parametrize("number", range(7))
def test_one_trajectory_has_the_figures_of_many_like_it(number: int) -> None:
    """Means and shares do not move with the number of equal members; all else is of groups."""
    played = fixed_log()[number]
    alone, many = le.metrics([played], rooms=[ROOM]), le.metrics([played] * 3, rooms=[ROOM])
    assert {**alone, "episodes": 3.0} == pytest.approx({key: many[key] for key in alone})
    assert all("group" in key for key in many.keys() - alone.keys())


def test_one_trajectory_alone_is_refused() -> None:
    with pytest.raises(TypeError, match="a list"):
        le.metrics(fixed_log()[0])  # type: ignore[arg-type]


@pytest.mark.parametrize("seed", range(6))
def test_calls_are_counted_as_the_environment_counts_them(seed: int) -> None:
    room = small_room()
    env = le.LiveRoomEnv(room, embedder="lexical", rubric=None)
    env.reset(seed=seed)
    broken = "<tool_call>{oops</tool_call>"
    same = '<tool_call>{"name": "search_faq", "arguments": {"query": "发货"}}</tool_call>'
    none = '<tool_call>{"name": "nothing", "arguments": {}}</tool_call>'
    script = [broken, same * 3, none + same, Action.call("get_reply_rule", intent="物流")]
    cut = Action(Message("assistant", "", (ToolCall("x", "a", error="unclosed: cut"),)))
    ends = [replace(cut, stop="length"), Action.reply("好的")]
    info: dict[str, Any] = {}
    for action in (*script[: 1 + seed % 4], ends[seed % 2]):
        *_, info = env.step(action)
    figures = le.metrics([env.trajectory])
    counted = {key: figures[f"calls/{key}"] for key in info["calls"]}
    assert counted == info["calls"]


def test_what_a_tool_caller_says_is_no_reply() -> None:
    said = Turn("tool_caller", Action.reply("我不清楚"))
    ended = episode("c1", [said], stop="no_reply")
    assert not [key for key in le.metrics([ended]) if key.startswith(("abstain", "reply/"))]


# --- judges -----------------------------------------------------------------------------------


def test_meters_of_judges_are_summed_once_each() -> None:
    budget = Budget(
        prices={"m": (1.0, 2.0)},
        requests=8,
        sent=10,
        seconds=5.0,
        cached=2,
        prompt_tokens=100,
        completion_tokens=20,
        spent=0.5,
    )
    other = Budget(requests=1, sent=2, seconds=1.0)
    figures = le.metrics([], budgets=[budget, other, budget])
    assert figures == {
        "episodes": 0,
        "judge/requests": 12,
        "judge/unanswered": 3,
        "judge/cached": 2,
        "judge/tokens": 120,
        "judge/cost": 0.5,
        "judge/latency_s": 0.5,
    }
    fresh = le.metrics([], budgets=[Budget()])
    assert "judge/cost" not in fresh
    assert "judge/latency_s" not in fresh


def test_a_judge_counts_its_requests_and_their_time() -> None:
    def slowly(_: dict[str, Any]) -> httpx.Response:
        time.sleep(0.05)
        return httpx.Response(400, json={"error": {"message": "no"}})

    gateway = Gateway(completion('{"ok": true}'), slowly)
    judge = ChatJudge(gateway.client(), backoff_s=0.01)
    score = judge(fixed_log()[0], ROOM)
    assert (score.value, score.cause) == (None, "judge_error")
    figures = le.metrics([], budgets=[judge.budget])
    assert figures["judge/requests"] == figures["judge/unanswered"] == 1
    assert figures["judge/latency_s"] >= 0.05


# --- for loggers ------------------------------------------------------------------------------


def documented() -> list[str]:
    rows = re.findall(r"^\| (`.+?`) \|", DOCS.read_text(encoding="utf-8"), re.MULTILINE)
    return [key for row in rows for key in re.findall(r"`([^`]+)`", row)]


def produced() -> dict[str, float]:
    return le.metrics(fixed_log(), rooms=[ROOM], budgets=[Budget(sent=1, prices={"m": (1, 1)})])


def test_every_key_is_documented_and_every_documented_key_is_made() -> None:
    patterns = [re.sub(r"\\\{\w+\\\}", r"[^/]+", re.escape(key)) for key in documented()]
    for key in produced():
        assert [p for p in patterns if re.fullmatch(p, key)], key
    for pattern in patterns:
        assert [key for key in produced() if re.fullmatch(pattern, key)], pattern


def test_keys_suit_loggers_that_keep_them_as_files() -> None:
    """MLflow's file store has a file for each key and a folder for each part before it."""
    keys = set(produced())
    for key in keys:
        parts = key.split("/")
        assert re.fullmatch(r"[A-Za-z0-9_./-]+", key)
        assert not {"/".join(parts[:i]) for i in range(1, len(parts))} & keys, key
    assert json.loads(json.dumps(produced(), allow_nan=False)) == produced()


def test_ten_thousand_trajectories_take_seconds() -> None:
    many = fixed_log() * 1430
    start = time.process_time()
    assert le.metrics(many)["episodes"] == 10_010
    assert time.process_time() - start < 60
