"""Sandboxes by name, around one another, and whose mistake is whose, however they are reached."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import gymnasium as gym
import httpx
import pytest
from rooms_for_tests import small_room
from servers_for_tests import BASE, QUICK, Wire, free_port, running

import livestream_env as le
from livestream_env.sandbox import (
    Faults,
    FaultySandbox,
    LocalSandbox,
    RecordingSandbox,
    RemoteSandbox,
    ReplaySandbox,
    Sandbox,
    create_app,
)
from livestream_env.sandbox.recording_file import recording_file
from livestream_env.sandbox.testing import sandbox_contract

ROOM = small_room()
TOKEN = "t0ken-of-the-tests"
WAYS = ("sync", "async")


@pytest.fixture(scope="module")
def url() -> Iterator[str]:
    with running(create_app()) as base:
        yield base


def played(env: Any, way: str, seed: int, agent: Any = None) -> le.Trajectory:
    """Play one episode, by a sync or an async driver."""
    agent = agent or le.WorkflowAgent()
    if way == "async":
        return asyncio.run(le.arollout(env, agent, seed=seed))
    return le.rollout(env, agent, seed=seed)


def transcript(trajectory: le.Trajectory) -> Any:
    return trajectory.messages, trajectory.state, trajectory.status


def plain(seed: int, room: Any = "snacks") -> le.Trajectory:
    """Play an episode undisturbed and in this process."""
    return le.rollout(le.LiveRoomEnv(room, embedder="lexical"), le.WorkflowAgent(), seed=seed)


# --- the forms of `gym.make` -------------------------------------------------------------------


def made(sandbox: str, **options: Any) -> Any:
    return gym.make("LiveRoom-v0", sandbox=sandbox, embedder="lexical", **options)


@pytest.mark.row("R38")
@pytest.mark.parametrize("way", WAYS)
def test_a_url_with_options(way: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("LE_TOKEN", TOKEN)
    options = {"token_env": "LE_TOKEN", "timeout_s": 5, "retries": 3}
    with running(create_app(token=TOKEN)) as base:
        env = made(base, room="snacks", sandbox_options=options)
        assert transcript(played(env, way, 3)) == transcript(plain(3))
        env.close()


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("is_first", [True, False])
def test_two_urls_of_which_one_is_down(way: str, is_first: bool, url: str) -> None:
    down = f"http://127.0.0.1:{free_port()}"
    env = made(f"{down},{url}" if is_first else f"{url},{down}", room="snacks")
    retried = 0
    for seed in range(6):
        trajectory = played(env, way, seed)
        assert transcript(trajectory) == transcript(plain(seed))
        retried += "sandbox_retry" in [event.kind for event in trajectory.faults]
    assert retried <= 1, "a server that is down comes last for a while"
    env.close()


@pytest.mark.row("R38")
@pytest.mark.parametrize("way", WAYS)
def test_a_url_that_is_recorded_and_replayed_offline(way: str, tmp_path: Path) -> None:
    file = tmp_path / "recordings" / "x.jsonl"
    app = create_app()
    options = {"timeout_s": 10}
    with running(app) as base:
        for _ in range(2):
            env = made(f"record:{file}+{base}", room="snacks", sandbox_options=options)
            live = [played(env, way, seed) for seed in range(4)]
            env.close()
            asked = app.state.sessions.counts["executed"]
        assert asked == len(recording_file(file).answers), "each question reached the server once"
        assert len(app.state.sessions) == 0
    assert [transcript(one) for one in live] == [transcript(plain(seed)) for seed in range(4)]
    with_room = made(f"replay:{file}", room="snacks")
    assert [transcript(played(with_room, way, seed)) for seed in range(4)] == [
        transcript(one) for one in live
    ]
    offline = gym.make("LiveRoom-v0", sandbox=f"replay:{file}")
    again = [played(offline, way, seed) for seed in range(4)]
    assert [one.messages for one in again] == [one.messages for one in live]
    assert offline.unwrapped.room is None
    assert again[0].rewards is not None
    assert "no_truth" in [score.cause for score in again[0].rewards.scores]


# --- around one another ------------------------------------------------------------------------


def wired(room: le.Room) -> RemoteSandbox:
    return RemoteSandbox(BASE, room, transport=Wire(create_app(), None), **QUICK)


@pytest.mark.row("R38")
@pytest.mark.parametrize("name", [check.name for check in sandbox_contract(wired, picklable=False)])
@pytest.mark.parametrize("outer", ["all", "read_through", "faulty", "recorded faults"])
def test_the_contract_holds_around_a_remote_sandbox(name: str, outer: str, tmp_path: Path) -> None:
    def make(room: le.Room) -> Sandbox:
        if outer == "faulty":
            return FaultySandbox(wired(room), Faults(seed=1))
        mode: Any = "read_through" if outer == "read_through" else "all"
        recording = RecordingSandbox(wired(room), tmp_path / "x.jsonl", mode=mode)
        return FaultySandbox(recording, Faults()) if outer == "recorded faults" else recording

    checks = sandbox_contract(make, picklable=False)
    next(check for check in checks if check.name == name)()


@pytest.mark.row("R38", "R45")
@pytest.mark.parametrize("way", WAYS)
def test_a_plan_of_faults_fires_alike_here_there_and_on_a_recording(
    way: str, url: str, tmp_path: Path
) -> None:
    plan = replace(Faults.evenly(0.3, seed=5), slow_s=0.0, changed_price=0.2)
    file = tmp_path / "x.jsonl"

    def far(room: le.Room) -> Sandbox:
        recording = RecordingSandbox(RemoteSandbox(url, room, embedder="lexical"), file)
        return FaultySandbox(recording, plan, retries=1)

    ways: dict[str, Callable[[le.Room], Sandbox]] = {
        "local": lambda room: FaultySandbox(
            LocalSandbox(room, embedder="lexical"), plan, retries=1
        ),
        "remote": lambda room: FaultySandbox(
            RemoteSandbox(url, room, embedder="lexical"), plan, retries=1
        ),
        "recorded": far,
        "replayed": lambda room: FaultySandbox(
            ReplaySandbox(file, content_hash=room.content_hash), plan, retries=1
        ),
    }
    found = {}
    for name, make in ways.items():
        env = le.LiveRoomEnv("snacks", sandbox=make)
        found[name] = [played(env, way, seed) for seed in range(12)]
        env.close()
    assert {one.status for one in found["local"]} == {"ok", "env_error"}
    for name in ("remote", "recorded", "replayed"):
        for near, there in zip(found["local"], found[name], strict=True):
            assert transcript(near) == transcript(there)
            assert near.faults == there.faults


# --- whose mistake is whose --------------------------------------------------------------------


class _Fails:
    """Calls a tool once and replies."""

    def act(self, messages: Any, tools: Any) -> le.Action:
        if messages[-1].role == "tool":
            return le.Action.reply("好的")
        return le.Action.call("failing")


def failing(kind: str) -> Any:
    """Make a tool with a mistake in it, or one that only asks its server."""

    def fail() -> str:
        if kind == "policy":
            raise le.ToolError("没有这张券")
        if kind == "tool bug":
            raise KeyError("price")
        if kind == "time-out":
            raise TimeoutError("read timed out")
        return "fine"

    def sync_tool(context: le.ToolContext) -> str:
        return fail()

    async def async_tool(context: le.ToolContext) -> str:
        return fail()

    return sync_tool, async_tool


def cut(when: str, request: httpx.Request, _: Any) -> None:
    if "/calls/" in request.url.path:
        raise httpx.ConnectError("connection refused")


CAUSES = {
    "tool bug": "tool `failing` failed: KeyError",
    "time-out": "SandboxTimeout: tool `failing` failed: TimeoutError",
    "server": "SandboxUnavailable: ",
}


@pytest.mark.row("R45")
@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("tool", ["sync tool", "async tool"])
@pytest.mark.parametrize("where", ["local", "remote"])
@pytest.mark.parametrize("kind", ["policy", *CAUSES])
def test_each_kind_of_mistake_is_told_apart(kind: str, where: str, tool: str, way: str) -> None:
    own = le.tool(name="failing")(failing(kind)[tool == "async tool"])
    options: dict[str, Any] = {"embedder": "lexical", "tools": [own, "search_faq"]}
    if where == "remote":
        wire = Wire(create_app(tools=[own]), cut if kind == "server" else None)
        links = {"transport": wire, "backoff_s": 0.03, "retries": 1}
        options |= {"sandbox": BASE, "sandbox_options": links, "tools": ["failing", "search_faq"]}
    elif kind == "server":
        options["sandbox"] = lambda room: FaultySandbox(
            LocalSandbox(room, embedder="lexical", tools=[own, "search_faq"]),
            Faults(error=1.0),
            retries=1,
        )
        del options["embedder"], options["tools"]
    env = le.LiveRoomEnv(ROOM, comment="c1", **options)
    trajectory = played(env, way, 0, _Fails())
    told = [message.content for message in trajectory.messages if message.role == "tool"]
    if kind == "policy":
        assert trajectory.status == "ok"
        assert trajectory.turns[0].results[0].error == "tool_error"
        assert told == ['{"错误":"tool_error","说明":"没有这张券"}']
        assert trajectory.reward is not None
        assert trajectory.reply == "好的"
    else:
        assert (trajectory.status, trajectory.reward, told) == ("env_error", None, [])
        assert trajectory.faults[-1].kind == "env_error"
        assert trajectory.faults[-1].detail.startswith(CAUSES[kind])
    assert env.reset(seed=1)[0].messages, "the environment can be used again"
    env.close()
