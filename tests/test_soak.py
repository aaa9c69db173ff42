"""The soak: nothing hangs, is lost, doubled or mixed up while much fails; and what is, is told."""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from servers_for_tests import call, running

from livestream_env.cli import main
from livestream_env.errors import SandboxTimeout
from livestream_env.sandbox import (
    Faults,
    LocalSandbox,
    RemoteSandbox,
    Sandbox,
    create_app,
    faulty_wire,
)
from livestream_env.sandbox.faults import TRANSPORT
from livestream_env.sandbox.faulty_wire import FaultyWire
from livestream_env.soak import Memory, Soak, SoakReport, SoakRun, failure_probability
from livestream_env.soak_world import (
    CALLS,
    local_sandbox,
    remote_sandbox,
    secret_of_room,
    soak_rooms,
    spawned_server,
)
from livestream_env.types import RoomView, ToolCall, ToolResult

GRAVE = ("hung", "lost", "played twice", "doubled side effects", "answers of another room")


def soaked(folder: Path, make: Any = local_sandbox, **settings: Any) -> tuple[SoakRun, SoakReport]:
    run = SoakRun(Soak(**{"workers": 8, **settings}), make, folder / "played.jsonl")
    run.play()
    return run, run.report()


def broken(report: SoakReport) -> set[str]:
    return {check.name for check in report.checks if not check.holds}


# --- what must hold --------------------------------------------------------------------------


@pytest.mark.row("R45")
@pytest.mark.row("R94")
def test_episodes_come_out_right_while_the_wire_breaks_and_the_server_is_killed(
    tmp_path: Path,
) -> None:
    soak = Soak(episodes=200, workers=8, faults=0.05)
    with spawned_server(tmp_path) as server, FaultyWire(server.url, soak.plan) as wire:
        make = partial(remote_sandbox, wire.url)
        run = SoakRun(soak, make, tmp_path / "played.jsonl", wire=wire, server=server)
        killing = threading.Thread(target=kill_at, args=(server, run, 100))
        killing.start()
        run.play()
        killing.join()
        report = run.report()
    assert report.holds, [check for check in report.checks if not check.holds]
    assert server.kills == 1
    assert report.stability.sessions == 200
    assert report.stability.retries > 0
    assert {kind for _, kind in wire.fired} >= {"drop_after", "cut_json", "duplicate"}
    assert report.figures["compared_with_undisturbed"] > 120
    assert report.figures["compared_with_same_plan"] > 0
    assert report.figures["writes"] > 4 * 120


def kill_at(server: Any, run: SoakRun, episodes: int) -> None:
    while run.played < episodes:
        time.sleep(0.05)
    server.kill()


@pytest.mark.row("R45")
def test_the_command_soaks_in_this_process(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "report.json"
    options = ["--episodes", "60", "--workers", "4", "--faults", "0.2", "--report", str(file)]
    assert main(["soak", *options]) == 0
    printed = capsys.readouterr().out
    assert "unlike the twin" in printed
    assert "60 sessions" in printed
    told = json.loads(file.read_text(encoding="utf-8"))
    assert told["holds"] is True
    assert told["command"]["faults"] == 0.2
    assert {check["name"] for check in told["checks"]} >= {*GRAVE, "unlike the twin"}
    assert told["stability"]["sessions"] == 60
    assert told["stability"]["failed"] == told["figures"]["failed_by_plan"] > 0


@pytest.mark.parametrize(
    ("options", "said"),
    [
        (["--faults", "1.5"], "`--faults` is 1.5"),
        (["--kill-server-every", "3"], "needs `--spawn-server`"),
        (["--sandbox", "nowhere"], "is no URL"),
    ],
)
def test_wrong_use_of_the_command_is_told(
    options: list[str], said: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["soak", "--episodes", "1", *options]) == 2
    assert said in capsys.readouterr().err


@pytest.mark.row("R45")
def test_the_share_that_is_to_fail_is_computed_by_hand() -> None:
    """At 9 %, each of the 9 kinds has 1 %. By plan a call fails if both its attempts do, .06^2, and
    a reset with .09^2; on the wire 1 % of requests are silent, and .06 are tried again."""
    here = 1 - (1 - 0.09**2) * (1 - 0.06**2) ** 7
    assert failure_probability(Soak(faults=0.09), calls=7, has_wire=False) == pytest.approx(here)
    wire = 0.01 / (1 - 0.06)  # tried until there is an answer, but for 13 failures in a row
    there = 1 - (1 - here) * (1 - wire) ** 8
    assert failure_probability(Soak(faults=0.09), calls=7, has_wire=True) == pytest.approx(there)
    assert failure_probability(Soak(faults=0.0), calls=7, has_wire=True) == 0.0


# --- the wire --------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def url() -> Iterator[str]:
    with running(create_app()) as base:
        yield base


@pytest.mark.row("R45")
@pytest.mark.parametrize("kind", [kind for kind in TRANSPORT if kind != "timeout"])
def test_a_wire_that_breaks_half_of_what_passes_changes_no_result(
    kind: str, url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(faulty_wire, "LATE_S", 0.01)
    room = soak_rooms()[0]
    calls = [call("move_product", link_no=3, position=1), call("hand_off", reason="x")]
    calls += [call("search_faq", query="发货"), call("hand_off", reason="x")]
    plan = Faults(**{kind: 0.5, "seed": 1})  # type: ignore[arg-type]
    here = local_sandbox(room)
    with FaultyWire(url, plan) as wire:
        options: dict[str, Any] = {"embedder": "lexical", "backoff_s": 0.01, "retries": 12}
        there = RemoteSandbox(wire.url, room, **options)
        reset: dict[str, Any] = {"seed": 0, "comments": [room.comments[0].comment_id]}
        assert there.reset(**reset) == here.reset(**reset)
        assert [there.call(one) for one in calls] == [here.call(one) for one in calls]
        there.close()
    assert {fired for _, fired in wire.fired} == {kind}
    is_harmless = kind in ("slow", "duplicate")
    assert bool([e for e in there.log() if e.kind == "sandbox_retry"]) is not is_harmless


@pytest.mark.row("R45")
def test_a_silent_wire_is_a_time_out(url: str) -> None:
    with FaultyWire(url, Faults(timeout=1.0)) as wire:
        sandbox = RemoteSandbox(wire.url, soak_rooms()[0], reset_timeout_s=0.3)
        with pytest.raises(SandboxTimeout):
            sandbox.reset(seed=0, comments=[soak_rooms()[0].comments[0].comment_id])
        assert wire.fired["POST", "timeout"] == 1


def test_a_wire_needs_the_address_of_a_server() -> None:
    for given in ("https://127.0.0.1:1", "http://127.0.0.1:1/x", "nowhere"):
        with pytest.raises(ValueError, match="is at an `http://HOST:PORT`"):
            FaultyWire(given, Faults())


# --- rooms and plan --------------------------------------------------------------------------


def test_rooms_differ_in_their_secret_alone_and_tell_it(tmp_path: Path) -> None:
    rooms = soak_rooms()
    secrets = {secret_of_room(room) for room in rooms}
    assert len(secrets) == len({room.content_hash for room in rooms}) == len(rooms)
    first, other = rooms[0], rooms[4]
    text = first.model_dump_json().replace(secret_of_room(first), secret_of_room(other))
    assert text.replace(first.room_id, other.room_id) == other.model_dump_json()
    run, _ = soaked(tmp_path, episodes=1, faults=0.0)
    told = (tmp_path / "played.jsonl").read_text(encoding="utf-8")
    assert run.played == 1
    assert told.count(secret_of_room(rooms[0])) > CALLS


def test_every_kind_of_fault_is_in_the_plan() -> None:
    plan = Soak(faults=0.05).plan
    assert sum(getattr(plan, name) for name in TRANSPORT) == pytest.approx(0.05)
    assert all(getattr(plan, name) > 0 for name in TRANSPORT)
    assert plan.reset_fail == 0.05
    assert plan.stale_stock + plan.changed_price + plan.empty_hits == pytest.approx(0.05)


def test_memory_that_grows_is_told_and_a_sawtooth_is_not() -> None:
    flat = Memory([(float(i), 100 + i % 7) for i in range(200)])
    assert flat.growth == 0.0
    rising = Memory([(float(i), 100 + i) for i in range(200)])
    assert rising.growth == pytest.approx(299 / 249 - 1)
    assert rising.quarters == [149, 199, 249, 299]
    assert Memory([(0.0, 1)]).growth is None


# --- what is wrong is told -------------------------------------------------------------------


class Planted(LocalSandbox):
    """A sandbox that does one thing wrong, in the episode of one seed."""

    def __init__(self, room: Any, wrong: Callable[[LocalSandbox, ToolCall], ToolResult]) -> None:
        super().__init__(room, embedder="lexical")
        self._wrong = wrong
        self._is_it = False

    def reset(self, *, seed: int, comments: Sequence[str]) -> RoomView:
        self._is_it = seed == 5
        return super().reset(seed=seed, comments=comments)

    def call(self, call: ToolCall) -> ToolResult:
        return self._wrong(self, call) if self._is_it else super().call(call)


def other_rooms_answer(sandbox: LocalSandbox, call: ToolCall) -> ToolResult:
    if call.name != "get_reply_rule":
        return LocalSandbox.call(sandbox, call)
    other = local_sandbox(soak_rooms()[soak_rooms().index(sandbox.room) - 4])
    other.reset(seed=0, comments=[sandbox.room.comments[0].comment_id])
    return other.call(call)


def twice(sandbox: LocalSandbox, call: ToolCall) -> ToolResult:
    if call.name == "hand_off":
        LocalSandbox.call(sandbox, call)
    return LocalSandbox.call(sandbox, call)


def late(sandbox: LocalSandbox, call: ToolCall) -> ToolResult:
    """Run the first move again after the second, as a request does that arrives late."""
    moves = sandbox.__dict__.setdefault("moves", [])
    if call.name == "hand_off" and len(moves) == 2:
        LocalSandbox.call(sandbox, moves[0])
    moves += [call] if call.name == "move_product" else []
    return LocalSandbox.call(sandbox, call)


def nothing(sandbox: LocalSandbox, call: ToolCall) -> ToolResult:
    if call.name != "search_faq":
        return LocalSandbox.call(sandbox, call)
    return ToolResult(call.id, "{}")


@pytest.mark.row("R45")
@pytest.mark.parametrize(
    ("wrong", "told"),
    [
        (other_rooms_answer, {"answers of another room", "unlike the twin"}),
        (twice, {"doubled side effects", "unlike the twin"}),
        (late, {"doubled side effects", "unlike the twin"}),
        (nothing, {"unlike the twin"}),
    ],
)
def test_what_a_sandbox_does_wrong_is_told(wrong: Any, told: set[str], tmp_path: Path) -> None:
    _, report = soaked(tmp_path, partial(Planted, wrong=wrong), episodes=20, faults=0.0)
    assert broken(report) == told
    assert not report.holds
    details = {check.name: check.detail for check in report.checks}
    assert {details[name] for name in told} == {"5"}


@pytest.mark.row("R45")
def test_an_episode_without_a_trajectory_is_told(tmp_path: Path) -> None:
    def make(room: Any) -> Sandbox:
        if room is soak_rooms()[3]:
            raise RuntimeError("no sandbox today")
        return local_sandbox(room)

    _, report = soaked(tmp_path, make, episodes=16, faults=0.0)
    assert broken(report) == {"lost"}
    lost = next(check for check in report.checks if check.name == "lost")
    assert lost.detail == "3 RuntimeError: no sandbox today"


@pytest.mark.row("R45")
def test_a_hung_episode_is_named_and_the_others_are_played(tmp_path: Path) -> None:
    over = threading.Event()

    def hang(sandbox: LocalSandbox, call: ToolCall) -> ToolResult:
        over.wait(60)
        return LocalSandbox.call(sandbox, call)

    make = partial(Planted, wrong=hang)
    run, report = soaked(tmp_path, make, episodes=20, workers=1, faults=0.0, hung_s=2.0)
    over.set()
    assert broken(report) == {"hung", "lost"}
    assert run.hung == [5]
    assert run.played == 19


@pytest.mark.row("R45")
def test_failures_that_nobody_injected_are_told(tmp_path: Path) -> None:
    def fail(sandbox: LocalSandbox, call: ToolCall) -> ToolResult:
        raise ConnectionError("of its own")

    _, report = soaked(tmp_path, partial(Planted, wrong=fail), episodes=20, faults=0.0)
    assert {"failures not injected"} <= broken(report)
    assert not broken(report) & {*GRAVE, "unlike the twin"}
    assert report.stability.causes == {"ConnectionError": 1}
