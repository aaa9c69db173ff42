"""The client of sandbox servers: same results as local, whatever connections and servers do."""

from __future__ import annotations

import asyncio
import contextlib
import gc
import json
import multiprocessing
import os
import pickle
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import cloudpickle
import httpx
import pytest
import trustme
from gateway_for_tests import served
from rooms_for_tests import small_room
from servers_for_tests import (
    BASE,
    LOOK,
    MOVE,
    QUICK,
    RoundRobin,
    Wire,
    call,
    free_port,
    running,
    started,
    wire_of,
    wired,
)

import livestream_env as le
from livestream_env.errors import (
    RoomMismatch,
    SandboxError,
    SandboxTimeout,
    SandboxUnavailable,
    SessionLost,
)
from livestream_env.sandbox import AsyncRemoteSandbox, LocalSandbox, RemoteSandbox, create_app
from livestream_env.sandbox.testing import sandbox_contract
from livestream_env.types import ToolResult

ROOM = small_room()
C1 = {"seed": 1, "comments": ["c1"]}


@pytest.fixture(scope="module")
def url() -> Iterator[str]:
    with running(create_app()) as base:
        yield base


def local(room: le.Room = ROOM) -> LocalSandbox:
    return LocalSandbox(room, embedder="lexical")


def counts(sandbox: RemoteSandbox) -> dict[str, int]:
    return dict(wire_of(sandbox).app.state.sessions.counts)


def transcript(trajectory: le.Trajectory) -> Any:
    return [message.to_openai() for message in trajectory.messages], trajectory.state


# --- the same as local -------------------------------------------------------------------------


@pytest.mark.row("R38")
@pytest.mark.parametrize(
    "check",
    sandbox_contract(
        lambda room: RemoteSandbox(BASE, room, transport=Wire(create_app(), None), **QUICK),
        picklable=False,
    ),
    ids=str,
)
def test_the_contract_holds_in_process(check: Any) -> None:
    check()


@pytest.mark.row("R38")
@pytest.mark.parametrize("place", range(len(sandbox_contract(local))))
def test_the_contract_holds_over_a_socket(place: int, url: str) -> None:
    sandbox_contract(lambda room: RemoteSandbox(url, room, **QUICK))[place]()


@pytest.mark.row("R38")
@pytest.mark.parametrize("name", le.list_rooms())
def test_the_first_comments_of_every_bundled_room_play_as_locally(name: str, url: str) -> None:
    for seed in range(3):
        options: dict[str, Any] = {"embedder": "lexical", "rubric": None}
        remote = le.LiveRoomEnv(name, sandbox=url, **options)
        here = le.rollout(le.LiveRoomEnv(name, **options), le.WorkflowAgent(), seed=seed)
        there = le.rollout(remote, le.WorkflowAgent(), seed=seed)
        remote.close()
        assert transcript(here) == transcript(there)
        assert here.evidence == there.evidence
        assert here.tools == there.tools
        assert [t.results for t in here.turns] == [t.results for t in there.turns]


@pytest.mark.parametrize(
    "asked",
    [
        pytest.param(LOOK, id="search"),
        pytest.param(MOVE, id="write"),
        pytest.param(call("hand_off", reason="问人工"), id="event"),
        pytest.param(call("nope", a=1), id="unknown"),
        pytest.param(call("search_faq", query=["x"]), id="wrong type"),
        pytest.param(call("move_product", link_no=3.0, position=1), id="float"),
        pytest.param(call("move_product", link_no=10**30, position=1), id="huge number"),
        pytest.param(call("search_faq", query="<|im_end|>\u2028\x1b[2J\x00"), id="hostile text"),
        pytest.param(call("search_faq", query="长" * 3000), id="long text"),
        pytest.param(call("n" * 300), id="long name"),
    ],
)
def test_every_kind_of_call_gives_what_it_gives_locally(asked: le.ToolCall) -> None:
    here, there = local(), wired(ROOM)
    assert there.reset(**C1) == here.reset(**C1)
    assert there.call(asked) == here.call(asked)


def test_arguments_too_deep_to_send_are_answered_as_locally() -> None:
    deep: Any = "x"
    for _ in range(150):
        deep = [deep]
    here, there = local(), wired(ROOM)
    here.reset(**C1)
    there.reset(**C1)
    for name in ("search_faq", "nope"):
        assert there.call(call(name, query=deep)) == here.call(call(name, query=deep))
    assert wire_of(there).calls == []


def test_a_fork_stands_where_it_was_made_and_goes_its_own_way() -> None:
    here, there = local(), wired(ROOM)
    for sandbox in (here, there):
        sandbox.reset(**C1)
        sandbox.call(MOVE)
        sandbox.call(call("move_product", link_no=2, position=1))
    for at in (0, 1, 2, None):
        back = call("move_product", link_no=1, position=3)
        assert there.fork(at).call(back) == here.fork(at).call(back)
    assert there.call(LOOK) == here.call(LOOK)
    with pytest.raises(ValueError, match="3 calls were made"):
        there.fork(9)


def test_an_environment_forks_over_the_wire(url: str) -> None:
    env = le.LiveRoomEnv(ROOM, sandbox=url, embedder="lexical", rubric=None)
    env.reset(seed=0)
    env.step(le.Action.call("move_product", link_no=3, position=1))
    branch = env.fork()
    one = env.step(le.Action.call("move_product", link_no=2, position=1))
    other = branch.step(le.Action.call("search_faq", query="发货"))
    assert one[0].messages != other[0].messages
    assert branch.trajectory.turns[0] == env.trajectory.turns[0]


# --- replicas, restarts, lost answers ----------------------------------------------------------


@pytest.mark.row("R100")
@pytest.mark.parametrize("rooms", ["client", "folder"])
def test_no_episode_is_lost_behind_a_strictly_round_robin_proxy(rooms: str) -> None:
    own = [le.load_room("snacks")] if rooms == "folder" else None
    proxy = RoundRobin(*(create_app(own) for _ in range(4)))
    wire = Wire(proxy, None)
    options: dict[str, Any] = {"embedder": "lexical", "rubric": None, "max_turns": 6}
    remote = le.LiveRoomEnv(
        "snacks", sandbox=BASE, sandbox_options={"transport": wire, "backoff_s": 0.06}, **options
    )
    plain = le.LiveRoomEnv("snacks", **options)
    executed = 0
    for seed in range(200):
        there = le.rollout(remote, _Mover(), seed=seed)
        assert there.status == le.Status.OK, there.faults
        if seed < 40:
            assert transcript(there) == transcript(le.rollout(plain, _Mover(), seed=seed))
        executed += sum(len(turn.results) for turn in there.turns)
    assert executed == 200 * 4
    assert proxy.calls <= 1.2 * executed


class _Mover:
    """Writes and looks up by turns, and replies."""

    ACTIONS = (
        le.Action.call("move_product", link_no=2, position=1),
        le.Action.call("search_faq", query="发货"),
        le.Action.call("move_product", link_no=3, position=2),
        le.Action.call("get_reply_rule", intent="物流"),
        le.Action.reply("四十八小时内"),
    )

    def act(self, messages: Any, tools: Any) -> le.Action:
        return self.ACTIONS[sum(message.role == "assistant" for message in messages)]


@pytest.mark.row("R45")
@pytest.mark.parametrize("error", [httpx.ReadError, httpx.RemoteProtocolError])
def test_a_call_whose_answer_was_lost_runs_once(error: type[Exception]) -> None:
    lost: list[str] = []

    def meddle(when: str, request: httpx.Request, _: Any) -> None:
        if when == "after" and "/calls/" in request.url.path and not lost:
            lost.append(request.url.path)
            raise error("the line is dead")

    sandbox = wired(ROOM, meddle=meddle)
    sandbox.reset(**C1)
    here = local()
    here.reset(**C1)
    assert sandbox.call(MOVE) == here.call(MOVE)
    assert counts(sandbox)["executed"] == 1
    assert counts(sandbox)["repeated"] == 1
    assert [event.kind for event in sandbox.log()] == ["sandbox_retry"]


@pytest.mark.parametrize(
    "instead",
    [
        pytest.param(httpx.Response(200, content=b'{"call_id"'), id="cut"),
        pytest.param(httpx.Response(200, content=b"<html>"), id="page"),
        pytest.param(
            httpx.Response(200, json={"call_id": "0" * 32 + "/0", "content": "other"}),
            id="another call's",
        ),
        pytest.param(httpx.Response(500), id="500"),
        pytest.param(httpx.Response(429, headers={"retry-after": "0"}), id="429"),
        pytest.param(httpx.Response(502, content=b"\xff\x00"), id="502"),
    ],
)
def test_an_answer_that_is_none_is_asked_for_again(instead: httpx.Response) -> None:
    seen: list[int] = []

    def meddle(when: str, request: httpx.Request, _: Any) -> httpx.Response | None:
        if when == "after" and "/calls/" in request.url.path and not seen:
            seen.append(1)
            return httpx.Response(instead.status_code, content=instead.content)
        return None

    sandbox = wired(ROOM, meddle=meddle)
    sandbox.reset(**C1)
    assert sandbox.call(LOOK).error is None
    assert counts(sandbox)["executed"] == 1


def test_the_opening_of_another_session_is_asked_for_again() -> None:
    other = wired(ROOM)
    other.reset(seed=1, comments=["c2"])
    seen: list[int] = []

    def meddle(when: str, request: httpx.Request, _: Any) -> httpx.Response | None:
        if when == "after" and not seen:
            seen.append(1)
            return httpx.Response(200, content=wire_of(other).answers[-1])
        return None

    here, sandbox = local(), wired(ROOM, meddle=meddle)
    assert sandbox.reset(**C1) == here.reset(**C1)
    assert [event.kind for event in sandbox.log()] == ["sandbox_retry"]


def test_a_server_that_is_still_building_is_asked_until_the_total_time() -> None:
    told = {"error": {"code": "warming", "message": "ask again"}}
    seen: list[int] = []

    def meddle(when: str, request: httpx.Request, _: Any) -> httpx.Response | None:
        if when == "before" and len(seen) < 5:
            seen.append(1)
            return httpx.Response(503, json=told)
        return None

    options: dict[str, Any] = {"retries": 1, "total_timeout_s": 30.0}
    sandbox = wired(ROOM, meddle=meddle, **options)
    sandbox.reset(**C1)
    assert [event.kind for event in sandbox.log()] == ["sandbox_retry"] * 5
    again = wired(ROOM, meddle=lambda *_: httpx.Response(503, json=told), retries=0)
    again._core.link.total_timeout_s = 0.2
    with pytest.raises(SandboxTimeout, match="total_timeout_s"):
        again.reset(**C1)


@pytest.mark.row("R45")
def test_a_restart_of_the_server_ends_no_episode() -> None:
    port = free_port()
    here = local()
    here.reset(**C1)
    with running(create_app(), port) as base:
        sandbox = RemoteSandbox(base, ROOM, embedder="lexical")
        sandbox.reset(**C1)
        assert sandbox.call(MOVE) == here.call(MOVE)
    starting = threading.Timer(0.5, lambda: None)
    starting.start()
    found: list[ToolResult] = []
    waiting = threading.Thread(target=lambda: found.append(sandbox.call(LOOK)))
    waiting.start()
    starting.join()
    with running(create_app(), port):
        waiting.join(20)
        assert found == [here.call(LOOK)]
        again = call("move_product", link_no=2, position=1)
        assert sandbox.call(again) == here.call(again)
        kinds = [event.kind for event in sandbox.log()]
        assert kinds.count("session_rebuilt") == 1
        assert "sandbox_retry" in kinds
        sandbox.close()


@le.tool(mutates=True)
def order_pizza(context: le.ToolContext, size: str) -> dict[str, str]:
    """Order a pizza."""
    ORDERS.append(context.idempotency_key)
    return {"size": size}


ORDERS: list[str] = []


@pytest.mark.row("R45")
def test_a_session_that_did_what_cannot_be_undone_is_lost_with_its_server() -> None:
    apps = [create_app(tools=[order_pizza]) for _ in range(2)]
    wire = Wire(apps[0], None)
    sandbox = RemoteSandbox(
        BASE, ROOM, transport=wire, tools=["order_pizza", "search_faq"], **QUICK
    )
    sandbox.reset(**C1)
    ORDERS.clear()
    assert sandbox.call(call("order_pizza", size="L")).error is None
    wire.inner = httpx.ASGITransport(apps[1])
    with pytest.raises(SessionLost, match="order_pizza"):
        sandbox.call(LOOK)
    assert len(ORDERS) == 1
    sandbox.reset(**C1)
    assert sandbox.call(LOOK).error is None


def test_tools_that_only_the_server_has_are_named() -> None:
    with running(create_app(tools=[order_pizza])) as base:
        options: dict[str, Any] = {"embedder": "lexical", "rubric": None}
        env = le.LiveRoomEnv(ROOM, sandbox=base, tools=["search_faq", "order_pizza"], **options)
        observation, _ = env.reset(seed=0)
        assert [spec.name for spec in observation.tools] == ["search_faq", "order_pizza"]
        result = env.step(le.Action.call("order_pizza", size="L"))[0].messages[0]
        assert json.loads(result.content) == {"size": "L"}
        env.close()


def test_the_idempotency_key_of_a_retry_on_another_replica_is_the_same() -> None:
    wire = Wire(create_app(tools=[order_pizza]), None)
    lost: list[int] = []

    def meddle(when: str, request: httpx.Request, _: Any) -> None:
        if when == "after" and "/calls/" in request.url.path and len(lost) < 1:
            lost.append(1)
            wire.inner = httpx.ASGITransport(create_app(tools=[order_pizza]))
            raise httpx.ReadError("gone")

    wire.meddle = meddle
    sandbox = RemoteSandbox(BASE, ROOM, transport=wire, tools=["order_pizza"], **QUICK)
    ORDERS.clear()
    sandbox.reset(**C1)
    sandbox.call(call("order_pizza", size="L"))
    assert len(ORDERS) == 2
    assert len(set(ORDERS)) == 1
    sandbox.reset(**C1)
    sandbox.call(call("order_pizza", size="L"))
    assert len(set(ORDERS)) == 2, "another episode, another key"


def test_an_origin_is_left_out_while_it_is_long_and_sent_when_asked_for() -> None:
    replicas = [create_app(), create_app()]
    wire = Wire(replicas[0], None)
    sandbox = RemoteSandbox(BASE, ROOM, transport=wire, **QUICK)
    here = local()
    for one in (sandbox, here):
        one.reset(**C1)
    for i in range(60):
        reason = call("hand_off", reason=f"理由{i}" * 10)
        assert sandbox.call(reason) == here.call(reason)
    assert "origin" not in json.loads(wire.calls[-1].content)
    wire.inner = httpx.ASGITransport(replicas[1])
    before = len(wire.calls)
    assert sandbox.call(MOVE) == here.call(MOVE)
    assert len(wire.calls) - before == 3, "asked for the origin, then for the room"


def test_a_copy_that_missed_writes_is_brought_up_to_date() -> None:
    proxy = RoundRobin(create_app([ROOM]), create_app([ROOM]))
    sandbox, here = wired(ROOM, proxy), local()
    for one in (sandbox, here):
        one.reset(**C1)
    for i in range(8):
        asked = call("move_product", link_no=i % 3 + 1, position=1) if i % 3 else LOOK
        assert sandbox.call(asked) == here.call(asked)


def test_of_several_servers_one_that_is_up_answers() -> None:
    dead = free_port()
    with running(create_app()) as one, running(create_app()) as other:
        urls = f"http://127.0.0.1:{dead}, {one},{other}"
        for _ in range(12):
            with RemoteSandbox(urls, ROOM, **QUICK) as sandbox:
                sandbox.reset(**C1)
                assert sandbox.call(LOOK).error is None


def test_sessions_keep_to_one_server_and_spread_over_all() -> None:
    apps = {f"http://s{i}.test": create_app([ROOM]) for i in range(3)}

    class Hosts(httpx.AsyncBaseTransport):
        async def handle_async_request(self, request: httpx.Request) -> httpx.Response:
            app = apps[f"http://{request.url.host}"]
            return await httpx.ASGITransport(app).handle_async_request(request)

    transport = Hosts()
    for _ in range(60):
        sandbox = RemoteSandbox(",".join(apps), ROOM, transport=transport, **QUICK)
        sandbox.reset(**C1)
        sandbox.call(LOOK)
        assert sandbox.log() == ()
        sandbox.close()
    opened = [app.state.sessions.counts["opened"] for app in apps.values()]
    closed = [app.state.sessions.counts["closed"] for app in apps.values()]
    assert sum(opened) == 60
    assert opened == closed
    assert min(opened) >= 6


# --- failures ----------------------------------------------------------------------------------


@pytest.mark.row("R45")
def test_failures_are_typed_and_mark_the_trajectory() -> None:
    options = {"retries": 1, "backoff_s": 0.03, "timeout_s": 0.3, "reset_timeout_s": 0.3}
    gone = f"http://127.0.0.1:{free_port()}"
    env = le.LiveRoomEnv(ROOM, sandbox=gone, sandbox_options=options, rubric=None)
    with pytest.raises(SandboxUnavailable, match="cannot be reached") as caught:
        env.reset(seed=0)
    assert isinstance(caught.value, ConnectionError)
    trajectory = le.rollout(env, le.WorkflowAgent(), seed=0)
    assert trajectory.status == le.Status.ENV_ERROR
    assert "cannot be reached" in trajectory.faults[-1].detail


def test_a_silent_server_is_a_timeout_and_not_asked_again() -> None:
    asked: list[int] = []

    def silent(handler: Any, _: bytes) -> None:
        asked.append(1)
        time.sleep(1)

    with served(silent) as base:
        sandbox = RemoteSandbox(base.removesuffix("/v1"), ROOM, **QUICK, reset_timeout_s=0.2)
        with pytest.raises(SandboxTimeout, match="the episode") as caught:
            sandbox.reset(**C1)
    assert isinstance(caught.value, TimeoutError)
    assert len(asked) == 1


@pytest.mark.parametrize(
    "start",
    [
        pytest.param(b"HTTP/1.1 200 OK\r\nContent-Length: 1000000\r\n\r\n", id="body"),
        pytest.param(b"HTTP/1.1 200 OK\r\nX-Slow: ", id="headers"),
        pytest.param(b"HTTP", id="status"),
    ],
)
def test_an_answer_that_drips_for_ever_ends_with_the_total_time(start: bytes) -> None:
    def dripping(handler: Any, _: bytes) -> None:
        handler.wfile.write(start)
        for _ in range(200):
            try:
                handler.wfile.write(b" ")
                handler.wfile.flush()
            except OSError:
                return
            time.sleep(0.02)

    with served(dripping) as base:
        sandbox = RemoteSandbox(
            base.removesuffix("/v1"), ROOM, **QUICK, total_timeout_s=0.4, retries=0
        )
        began_s = time.monotonic()
        with pytest.raises(SandboxTimeout):
            sandbox.reset(**C1)
        with pytest.raises(SandboxTimeout):
            asyncio.run(sandbox.areset(**C1))
        assert time.monotonic() - began_s < 3


def test_a_server_that_reads_a_byte_now_and_then_ends_with_the_total_time() -> None:
    """A room of 7 MB does not fit the buffers of a socket."""
    room = small_room(reply_rules=[{"rule_id": "r", "intent": "物流", "rule": "长" * 2_400_000}])
    with socket.create_server(("127.0.0.1", 0)) as listening:
        listening.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)

        def drink() -> None:
            one, _ = listening.accept()
            with one, contextlib.suppress(OSError):
                one.settimeout(5)
                while one.recv(2048):
                    time.sleep(0.05)

        threading.Thread(target=drink, daemon=True).start()
        url = f"http://127.0.0.1:{listening.getsockname()[1]}"
        options = {"total_timeout_s": 0.6, "reset_timeout_s": 0.5, "retries": 0}
        sandbox = RemoteSandbox(url, room, **QUICK, **options)
        sandbox._core._rooms_to_send = 1  # as after `room_unknown`
        began_s = time.monotonic()
        with pytest.raises(SandboxTimeout):
            sandbox.reset(**C1)
        assert time.monotonic() - began_s < 3


# --- certificates ------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def authority(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[str, Path, Path]]:
    """A server's URL, the file of its authority, and that of another one."""
    folder = tmp_path_factory.mktemp("certificates")
    right, wrong = trustme.CA(), trustme.CA()
    for name, one in (("right", right), ("wrong", wrong)):
        one.cert_pem.write_to_path(str(folder / f"{name}.pem"))
    issued = right.issue_cert("127.0.0.1")
    issued.private_key_pem.write_to_path(str(folder / "key.pem"))
    for blob in issued.cert_chain_pems:
        blob.write_to_path(str(folder / "chain.pem"), append=True)
    port = free_port()
    command = ["-m", "uvicorn", "--factory", "livestream_env.sandbox.server:create_app"]
    command += ["--port", str(port), "--ssl-keyfile", "key.pem", "--ssl-certfile", "chain.pem"]
    server = started(command, port, cwd=folder)
    yield f"https://127.0.0.1:{port}", folder / "right.pem", folder / "wrong.pem"
    server.kill()
    server.wait()


@pytest.mark.parametrize("is_async", [False, True], ids=["sync", "async"])
def test_an_authority_of_ones_own_is_trusted_where_it_is_named(
    is_async: bool, authority: tuple[str, Path, Path]
) -> None:
    base, right, wrong = authority
    here = local()
    here.reset(**C1)

    def played(verify: Any) -> ToolResult:
        sandbox = RemoteSandbox(base, ROOM, verify=verify, **QUICK)

        async def aplay() -> ToolResult:
            await sandbox.areset(**C1)
            return await sandbox.acall(MOVE)

        if is_async:
            return asyncio.run(aplay())
        sandbox.reset(**C1)
        return sandbox.call(MOVE)

    assert played(right) == played(str(right)) == here.call(MOVE)
    for verify in (wrong, True):
        with pytest.raises(SandboxUnavailable, match="certificate that `verify` does not trust"):
            played(verify)


def test_a_certificate_that_is_not_trusted_is_not_asked_again_and_marks_the_trajectory(
    authority: tuple[str, Path, Path],
) -> None:
    base, _, wrong = authority
    options = {"verify": str(wrong)}
    env = le.LiveRoomEnv(ROOM, sandbox=base, sandbox_options=options, rubric=None)
    trajectory = le.rollout(env, le.WorkflowAgent(), seed=0)
    assert (trajectory.status, trajectory.reward) == (le.Status.ENV_ERROR, None)
    assert "certificate that `verify` does not trust" in trajectory.faults[-1].detail
    assert [event.kind for event in trajectory.faults] == ["env_error"]


def test_a_file_without_certificates_is_the_callers_mistake(tmp_path: Path) -> None:
    (tmp_path / "ca.pem").write_text("no certificate", encoding="utf-8")
    with pytest.raises(ValueError, match="holds no certificates"):
        RemoteSandbox(BASE, ROOM, verify=tmp_path / "ca.pem")
    with pytest.raises(FileNotFoundError, match="`verify`"):
        RemoteSandbox(BASE, ROOM, verify=tmp_path / "none.pem")


def test_a_full_pool_does_not_look_like_a_dead_server(monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*_: Any, **__: Any) -> None:
        raise httpx.PoolTimeout("")

    monkeypatch.setattr(httpx.Client, "send", full)
    sandbox = RemoteSandbox("http://127.0.0.1:9", ROOM, **QUICK)
    with pytest.raises(SandboxTimeout, match="client pool is full"):
        sandbox.reset(**C1)


def test_a_server_that_stays_full_is_unavailable_after_the_waits_it_asked_for(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    app = create_app([ROOM], max_sessions=1)
    first = wired(ROOM, app)
    first.reset(**C1)
    second = wired(ROOM, app, retries=1)
    monkeypatch.setattr(second._core.link, "_pause_s", lambda attempt, asked_s: asked_s / 1000)
    with pytest.raises(SandboxUnavailable, match="503 at_capacity"):
        second.reset(seed=2, comments=["c1"])
    assert len(wire_of(second).requests) == 2
    first.close()
    second.reset(seed=2, comments=["c1"])


def test_a_tool_that_fails_fails_with_the_text_it_has_locally() -> None:
    @le.tool
    def broken(context: le.ToolContext) -> str:
        """Fail."""
        raise ConnectionError("upstream is gone")

    here = LocalSandbox(ROOM, tools=[broken], embedder="lexical")
    there = wired(ROOM, create_app(tools=[broken]), tools=["broken"])
    for sandbox in (here, there):
        sandbox.reset(**C1)
    told = []
    for sandbox in (here, there):
        with pytest.raises(SandboxError, match="upstream is gone") as caught:
            sandbox.call(call("broken"))
        told.append(str(caught.value))
    assert told[0] == told[1]
    assert len(wire_of(there).calls) == 1, "a tool's failure is not tried again"
    assert there.call(call("nope")).error == "unknown_tool"


def test_after_a_write_that_may_have_run_the_episode_is_over() -> None:
    def meddle(when: str, request: httpx.Request, _: Any) -> None:
        if b"move_product" in request.content:
            raise httpx.ReadTimeout("silence")

    sandbox = wired(ROOM, meddle=meddle)
    sandbox.reset(**C1)
    with pytest.raises(SandboxTimeout):
        sandbox.call(MOVE)
    with pytest.raises(SessionLost, match="may have run"):
        sandbox.call(LOOK)
    sandbox.reset(**C1)
    assert sandbox.call(LOOK).error is None


def test_another_version_of_the_room_is_named() -> None:
    other = small_room(title="别的店")
    app = create_app([other], uploads=False)
    with pytest.raises(RoomMismatch) as caught:
        wired(ROOM, app).reset(**C1)
    assert ROOM.content_hash in str(caught.value)
    assert other.content_hash in str(caught.value)
    with pytest.raises(RoomMismatch, match="takes no rooms"):
        wired(le.load_room("snacks"), app).reset(seed=0, comments=["c01"])
    with pytest.raises(RoomMismatch, match="uploads=False"):
        wired(ROOM, create_app(), uploads=False).reset(**C1)


@pytest.mark.parametrize(
    ("options", "named"),
    [
        pytest.param({"tools": ["nope"]}, "`tools`", id="tools"),
        pytest.param({"tools": ["os:system"]}, "`tools`", id="module"),
        pytest.param({"embedder": "sentence-transformers:/etc"}, "`embedder`", id="embedder"),
    ],
)
def test_an_option_that_the_server_cannot_honour_is_named(options: Any, named: str) -> None:
    with pytest.raises(SandboxError, match=named):
        wired(ROOM, **options).reset(**C1)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        pytest.param({"url": "ftp://x"}, "`url`", id="scheme"),
        pytest.param({"url": ""}, "empty", id="nothing"),
        pytest.param({"url": "http://me:secret@h"}, "user name or password", id="userinfo"),
        pytest.param({"timeout_s": 0}, "`timeout_s`", id="timeout"),
        pytest.param({"retries": -1}, "`retries`", id="retries"),
        pytest.param({"headers": {"Authorization": "x"}}, "`token_env`", id="secret header"),
        pytest.param({"headers": {"X-Team": "直播"}}, "no header can be", id="header"),
        pytest.param({"headers": {"X-Team": "a\r\nX: y"}}, "no header can be", id="two headers"),
        pytest.param({"tools": [order_pizza]}, "objects", id="tool object"),
        pytest.param({"embedder": object()}, "name", id="embedder object"),
    ],
)
def test_the_callers_mistakes_raise_at_once(options: Any, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        RemoteSandbox(options.pop("url", BASE), ROOM, **options)


def test_a_call_before_reset_says_so() -> None:
    with pytest.raises(SandboxError, match="call `reset` first"):
        wired(ROOM).call(LOOK)


# --- secrets, proxies --------------------------------------------------------------------------


def test_a_secret_is_in_no_repr_pickle_or_error(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("LE_TOKEN", "tok-5ecret")
    with pytest.raises(LookupError, match="LE_OTHER"):
        RemoteSandbox(BASE, ROOM, token_env="LE_OTHER")

    def meddle(when: str, request: httpx.Request, _: Any) -> httpx.Response:
        said = {"error": {"code": "no", "message": request.headers["authorization"]}}
        return httpx.Response(418, json=said)

    sandbox = wired(ROOM, meddle=meddle, token_env="LE_TOKEN")
    with pytest.raises(SandboxError) as caught:
        sandbox.reset(**C1)
    plain = RemoteSandbox(BASE, ROOM, token_env="LE_TOKEN")
    for text in (str(caught.value), repr(sandbox), repr(pickle.dumps(plain)), repr(sandbox.log())):
        assert "5ecret" not in text
    assert "***" in str(caught.value)


def test_a_wrong_token_is_told_apart_and_not_tried_again(monkeypatch: pytest.MonkeyPatch) -> None:
    app = create_app([ROOM], token="right")
    sandbox = wired(ROOM, app)
    with pytest.raises(SandboxUnavailable, match="token_env"):
        sandbox.reset(**C1)
    assert len(wire_of(sandbox).requests) == 1
    monkeypatch.setenv("LE_TOKEN", "right")
    with wired(ROOM, app, token_env="LE_TOKEN") as known:
        known.reset(**C1)
        assert known.call(LOOK).error is None


@pytest.mark.parametrize("variable", ["HTTP_PROXY", "ALL_PROXY", "http_proxy"])
def test_this_machine_is_reached_without_a_proxy(
    variable: str, url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(variable, f"http://127.0.0.1:{free_port()}")
    with RemoteSandbox(url, ROOM, **QUICK) as sandbox:
        sandbox.reset(**C1)
        assert sandbox.call(LOOK).error is None


# --- threads, loops, processes -----------------------------------------------------------------


@pytest.mark.row("R39")
def test_64_threads_each_see_their_own_room(url: str) -> None:
    def play(i: int) -> int:
        secret = f"暗号{i:03}甲"
        faqs = [{"faq_id": "f1", "question": "暗号是什么", "answer": secret}]
        room = small_room(room_id=f"r{i}", faqs=faqs)
        seen = 0
        with RemoteSandbox(url, room, **QUICK) as sandbox:
            for seed in range(3):
                sandbox.reset(seed=seed, comments=["c1"])
                for _ in range(3):
                    content = sandbox.call(call("search_faq", query="暗号是什么")).content
                    assert secret in content
                    assert content.count("暗号") == 2
                    seen += 1
        return seen

    with ThreadPoolExecutor(64) as pool:
        assert sum(pool.map(play, range(64))) == 64 * 9


def test_any_number_of_loops_share_a_sandbox(url: str) -> None:
    sandbox = AsyncRemoteSandbox(url, ROOM, **QUICK)

    async def play() -> list[ToolResult]:
        await sandbox.reset(**C1)
        return [await sandbox.call(LOOK), await sandbox.call(MOVE)]

    played = [asyncio.run(play()) for _ in range(3)]
    here = local()
    here.reset(**C1)
    assert played == [[here.call(LOOK), here.call(MOVE)]] * 3
    asyncio.run(sandbox.close())


def test_sync_use_inside_a_running_loop(url: str) -> None:
    async def notebook() -> None:
        with RemoteSandbox(url, ROOM, **QUICK) as sandbox:
            sandbox.reset(**C1)
            assert sandbox.call(LOOK) == await sandbox.acall(LOOK)

    asyncio.run(notebook())


def test_async_rollouts_play_as_local_ones(url: str) -> None:
    async def play() -> list[le.Trajectory]:
        envs = [
            le.LiveRoomEnv(ROOM, sandbox=url, embedder="lexical", rubric=None) for _ in range(20)
        ]
        played = await asyncio.gather(
            *(le.arollout(env, le.WorkflowAgent(), seed=i) for i, env in enumerate(envs))
        )
        for env in envs:
            env.close()
        return played

    plain = le.LiveRoomEnv(ROOM, embedder="lexical", rubric=None)
    for i, there in enumerate(asyncio.run(play())):
        assert transcript(there) == transcript(le.rollout(plain, le.WorkflowAgent(), seed=i))


def test_an_interrupted_async_call_can_be_cancelled() -> None:
    def silent(handler: Any, _: bytes) -> None:
        time.sleep(0.5)

    async def play(base: str) -> None:
        sandbox = AsyncRemoteSandbox(base, ROOM, **QUICK)
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(0.1):
                await sandbox.reset(**C1)

    with served(silent) as base:
        asyncio.run(play(base.removesuffix("/v1")))


def _child(sandbox: RemoteSandbox, number: int, queue: Any) -> None:
    found = [sandbox.call(call("move_product", link_no=number % 3 + 1, position=1))]
    found += [sandbox.call(LOOK) for _ in range(20)]
    queue.put((number, found, sandbox._core.ticket.session))  # type: ignore[union-attr]


@pytest.mark.skipif(not hasattr(os, "fork"), reason="no fork here")
def test_forked_processes_take_sessions_of_their_own(url: str) -> None:
    sandbox, here = RemoteSandbox(url, ROOM, **QUICK), local()
    for one in (sandbox, here):
        one.reset(**C1)
        one.call(MOVE)
    context = multiprocessing.get_context("fork")
    queue = context.Queue()
    children = [context.Process(target=_child, args=(sandbox, i, queue)) for i in range(4)]
    for child in children:
        child.start()
    told = [queue.get(timeout=30) for _ in children]
    for child in children:
        child.join(30)
    for number, found, _ in told:
        branch = here.fork()
        move = call("move_product", link_no=number % 3 + 1, position=1)
        assert found == [branch.call(move)] + [branch.call(LOOK)] * 20
    ticket = sandbox._core.ticket
    assert ticket is not None
    assert len({session for *_, session in told} | {ticket.session}) == 5
    assert sandbox.call(LOOK) == here.call(LOOK)
    sandbox.close()


@pytest.mark.parametrize("copied", [pickle.loads, cloudpickle.loads], ids=["pickle", "cloudpickle"])
def test_a_sandbox_can_be_sent_to_another_process(copied: Any, url: str) -> None:
    sandbox = RemoteSandbox(url, ROOM, **QUICK)
    twin = copied(cloudpickle.dumps(sandbox))
    twin.reset(**C1)
    twin.call(MOVE)
    again = copied(pickle.dumps(twin))
    order = call("move_product", link_no=2, position=1)
    assert again.call(order) == twin.call(order)
    twin.close()
    again.close()


# --- closing -----------------------------------------------------------------------------------


def test_sessions_are_closed_by_close_exit_reset_and_collection() -> None:
    app = create_app([ROOM])
    with running(app) as base:
        sessions = app.state.sessions
        sandbox = RemoteSandbox(base, ROOM, **QUICK)
        sandbox.reset(**C1)
        sandbox.reset(**C1)
        assert len(sessions) == 1
        sandbox.close()
        sandbox.close()
        assert len(sessions) == 0
        with RemoteSandbox(base, ROOM, **QUICK) as managed:
            managed.reset(**C1)
        assert len(sessions) == 0
        forgotten = RemoteSandbox(base, ROOM, **QUICK)
        forgotten.reset(**C1)
        assert len(sessions) == 1
        del forgotten
        gc.collect()
        latest = time.monotonic() + 20
        while len(sessions) and time.monotonic() < latest:
            time.sleep(0.01)
        assert len(sessions) == 0


def test_the_interpreters_exit_closes_what_is_open() -> None:
    app = create_app([ROOM])
    code = (
        "import sys, livestream_env as le; from livestream_env.sandbox import RemoteSandbox;"
        "room = le.load_room('snacks'); kept = [];"
        "kept += [RemoteSandbox(sys.argv[1], room, embedder='lexical') for _ in range(3)];"
        "[one.reset(seed=0, comments=['c01']) for one in kept]"
    )
    with running(app) as base:
        done = subprocess.run(
            [sys.executable, "-W", "error", "-c", code, base], capture_output=True, text=True
        )
        assert done.stderr == ""
        assert app.state.sessions.counts["opened"] == 3
        assert len(app.state.sessions) == 0


def test_importing_sandboxes_loads_no_http_client() -> None:
    check = (
        "import livestream_env.sandbox, sys;"
        "print([m for m in ('httpx', 'fastapi', 'uvicorn') if m in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", check], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"
