"""The stability report: counts, causes over time, and what failures go with."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
from rooms_for_tests import small_room

import livestream_env as le
from livestream_env import cli
from livestream_env.errors import SandboxError, SandboxTimeout
from livestream_env.sandbox import Faults, FaultySandbox, LocalSandbox
from livestream_env.stability import cause_of_failure, stability_report
from livestream_env.types import (
    Action,
    Message,
    Status,
    StopReason,
    ToolCall,
    Trajectory,
    Turn,
    TurnEvent,
)


def turn(*tools: str, failed: bool = False) -> Turn:
    calls = tuple(ToolCall(f"call_{i}", tool) for i, tool in enumerate(tools))
    events = (TurnEvent("env_error"),) if failed else ()
    return Turn("host", Action(Message("assistant", "", calls)), events=events)


def episode(*turns: Turn, faults: Sequence[TurnEvent] = (), stop: str = "replied") -> Trajectory:
    failed = stop in ("env_error", "aborted")
    return Trajectory.model_construct(
        room_id="r",
        content_hash="h",
        comment_ids=("c",),
        seed=0,
        prompts={"host": (Message("system", ""),)} if turns else {},
        tools={},
        turns=turns,
        status=Status.ENV_ERROR if failed else Status.OK,
        stop_reason=StopReason(stop),
        faults=tuple(faults),
    )


def failure(detail: str, *below: TurnEvent) -> dict[str, Any]:
    return {"faults": (*below, TurnEvent("env_error", detail)), "stop": "env_error"}


@pytest.mark.row("R94")
def test_the_figures_of_a_fixed_log() -> None:
    """8 episodes: one late and one lost call, one reset, one aborted, four fine; in two halves."""
    retry = TurnEvent("sandbox_retry", "503")
    plan = TurnEvent("fault_plan", "{}")
    late = TurnEvent("timeout", "call 0")
    log = [
        episode(turn("a"), turn(), faults=(plan, late, retry)),
        episode(turn("a", failed=True), **failure("SandboxTimeout: late", plan, late, late)),
        episode(turn("a"), turn()),
        episode(**failure("SandboxUnavailable: down", retry, retry)),
        episode(turn("a"), turn(), faults=(TurnEvent("session_rebuilt"),)),
        episode(turn("a", failed=True), **failure("tool `a` failed: KeyError('x')")),
        episode(turn("a"), faults=(TurnEvent("aborted", "`episode_timeout_s`"),), stop="aborted"),
        episode(turn("a"), turn()),
    ]
    report = stability_report(log, periods=2)
    assert (report.sessions, report.failed, report.failed_at_reset) == (8, 4, 1)
    assert report.failure_rate == 0.5
    causes = {"KeyError": 1, "SandboxTimeout": 1, "SandboxUnavailable": 1, "aborted": 1}
    assert report.causes == causes
    assert report.retries == 1 + 1 + 1 + 2  # both of the first, all but the last of the second
    assert report.rebuilds == 1
    assert report.faults == {"sandbox_retry": 3, "timeout": 3, "session_rebuilt": 1}
    assert [period.episodes for period in report.periods] == [4, 4]
    assert report.periods[0].causes == {"SandboxTimeout": 1, "SandboxUnavailable": 1}
    assert report.periods[1].causes == {"KeyError": 1, "aborted": 1}


def test_nothing_is_an_empty_report() -> None:
    report = stability_report([])
    assert (report.sessions, report.failure_rate, report.biased) == (0, 0.0, ())


@pytest.mark.row("R94")
def test_failures_that_go_with_a_tool_are_told() -> None:
    """Every fourth call of `slow` fails and none of `fast`; the number of the turn is no reason."""
    log = []
    for number in range(200):
        tool = "slow" if number % 2 else "fast"
        fails = tool == "slow" and number % 8 == 1
        how = failure("SandboxTimeout: late") if fails else {}
        log.append(episode(turn(tool, failed=fails), **how))
    report = stability_report(log)
    assert report.biased == ("tool fast", "tool slow")
    assert report.by_tool["slow"].correlation > 0.3
    assert report.by_turn.p == 1.0


def test_failures_that_go_with_long_episodes_are_told_and_even_ones_are_not() -> None:
    """Turn 4 fails in every second episode; a failure that any turn may meet is no bias."""
    late = [
        episode(*[turn("a")] * 3, turn("a", failed=True), **failure("x"))
        if number % 2
        else episode(*[turn("a")] * 4)
        for number in range(60)
    ]
    assert stability_report(late).biased == ("turn",)
    even = []
    for number in range(120):
        fails_at = number % 12
        turns = [turn("a", failed=i == fails_at) for i in range(min(fails_at + 1, 4))]
        even.append(episode(*turns, **(failure("x") if fails_at < 4 else {})))
    assert stability_report(even).biased == ()


@pytest.mark.parametrize(
    ("error", "cause"),
    [
        (SandboxTimeout("late"), "SandboxTimeout"),
        (SandboxError("the server is down"), "SandboxError"),
        (ConnectionError("x"), "ConnectionError"),
    ],
)
def test_causes_are_read_from_what_the_environment_wrote(error: Exception, cause: str) -> None:
    class Failing(LocalSandbox):
        def call(self, call: ToolCall) -> Any:
            raise error

    env = le.LiveRoomEnv(small_room(), sandbox=lambda room: Failing(room, embedder="lexical"))
    trajectory = le.rollout(env, le.WorkflowAgent(), seed=0)
    assert cause_of_failure(trajectory) == cause


@pytest.mark.row("R45")
@pytest.mark.row("R94")
def test_the_command_reports_a_run_with_faults(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    plan = Faults(seed=1, timeout=0.1, drop_after=0.1, reset_fail=0.1, slow=0.1, slow_s=0.0)

    def make(room: le.Room) -> FaultySandbox:
        return FaultySandbox(LocalSandbox(room, embedder="lexical"), plan, retries=1)

    env = le.LiveRoomEnv("snacks", sandbox=make, rubric=None)
    file = tmp_path / "run.jsonl"
    played = [le.rollout(env, le.WorkflowAgent(), seed=seed) for seed in range(120)]
    lines = [trajectory.model_dump_json() for trajectory in played]
    file.write_text("\n".join(lines) + "\n", encoding="utf-8")
    assert cli.main(["stability", "report", "--in", str(file), "--json"]) == 0
    figures = json.loads(capsys.readouterr().out)
    failed = [t for t in played if t.status == "env_error"]
    assert (figures["sessions"], figures["failed"]) == (120, len(failed))
    assert sum(figures["causes"].values()) == len(failed) > 0
    assert figures["causes"].keys() <= {"SandboxTimeout", "SandboxUnavailable"}
    assert figures["retries"] > len(failed)
    assert "fault_plan" not in figures["faults"]
    assert cli.main(["stability", "report", "--in", str(file)]) == 0
    text = capsys.readouterr().out
    assert text.startswith(f"120 sessions, {len(failed)} failed")
    empty = tmp_path / "empty.jsonl"
    empty.write_text("", encoding="utf-8")
    assert cli.main(["stability", "report", "--in", str(empty)]) == 2
