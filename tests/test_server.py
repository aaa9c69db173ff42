"""The server of sandboxes: the wire, limits, leases, rooms, and what it never says."""

from __future__ import annotations

import contextlib
import json
import logging
import re
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import httpx
import pytest
import schemathesis
from hypothesis import HealthCheck, settings
from rooms_for_tests import SMALL, small_room
from servers_for_tests import LOOK, MOVE, QUICK, Client, call, free_port, running, wire_of, wired

import livestream_env as le
from livestream_env.cli import main
from livestream_env.errors import RoomMismatch, SandboxError, SandboxTimeout, SessionLost
from livestream_env.room_files import save_room
from livestream_env.sandbox import LocalSandbox, RemoteSandbox, connections, create_app
from livestream_env.sandbox.testing import key_strings, with_secret
from livestream_env.sandbox.wire import Origin, room_json

ROOM = small_room()
ID = "0123456789abcdef" * 2
OTHER = "f" * 32


OWN = {"tools": ["slow"], "embedder": "lexical"}


def origin(room: le.Room = ROOM, /, **changes: Any) -> dict[str, Any]:
    made: dict[str, Any] = {
        "session": ID,
        "room_id": room.room_id,
        "content_hash": room.content_hash,
        "seed": 1,
        "comments": ["c1"],
        "options": {"embedder": "lexical"},
    }
    return made | changes


def asked(name: str = "search_faq", **changes: Any) -> dict[str, Any]:
    arguments = {"query": "发货"} if name == "search_faq" else {"link_no": 3, "position": 1}
    return {"name": name, "arguments": arguments, "origin": origin()} | changes


def code(response: httpx.Response) -> str:
    told: dict[str, str] = response.json()["error"]
    assert told.get("request_id") in (None, response.headers["x-request-id"])
    return told["code"]


@pytest.fixture
def client() -> Client:
    return Client(create_app([ROOM]))


# --- sessions and calls ------------------------------------------------------------------------


def test_a_session_opens_answers_and_ends(client: Client) -> None:
    opened = client.post(f"/sessions/{ID}", json={"origin": origin()})
    assert opened.status_code == 200
    here = LocalSandbox(ROOM, embedder="lexical")
    here.reset(seed=1, comments=["c1"])
    told = opened.json()
    assert [spec["name"] for spec in told["specs"]] == [spec.name for spec in here.specs]
    assert told["rebuilds"] == ["hand_off", "move_product", "show_image"]
    result = client.post(f"/sessions/{ID}/calls/0", json=asked()).json()
    assert result["content"] == here.call(LOOK).content or result["error"] is None
    assert result["call_id"] == f"{ID}/0"
    assert client.delete(f"/sessions/{ID}").status_code == 204
    assert client.delete(f"/sessions/{ID}").status_code == 204


def test_a_repeat_gets_the_same_bytes_and_runs_nothing(client: Client) -> None:
    opened = [client.post(f"/sessions/{ID}", json={"origin": origin()}) for _ in range(2)]
    assert opened[0].content == opened[1].content
    path = f"/sessions/{ID}/calls/0"
    first = client.post(path, json=asked("move_product"))
    again = client.post(path, json=asked("move_product", arguments={"position": 1, "link_no": 3}))
    assert first.content == again.content
    counts = client.app.state.sessions.counts
    assert (counts["opened"], counts["executed"], counts["repeated"]) == (1, 1, 1)
    assert code(client.post(path, json=asked())) == "call_conflict"
    late = asked("move_product", arguments={"link_no": 2, "position": 1})
    assert code(client.post(path, json=late)) == "call_conflict"


def test_a_repeat_that_overlaps_the_first_waits_for_its_answer() -> None:
    started, go = threading.Event(), threading.Event()
    runs: list[int] = []

    @le.tool
    def slow(context: le.ToolContext) -> str:
        """Wait."""
        runs.append(1)
        started.set()
        go.wait(10)
        return "done"

    with running(create_app([ROOM], tools=[slow])) as base:
        body = {"name": "slow", "origin": origin(options=OWN)}
        found: list[bytes] = []

        def post() -> None:
            path = f"{base}/sessions/{ID}/calls/0"
            found.append(httpx.post(path, json=body, trust_env=False, timeout=20).content)

        threads = [threading.Thread(target=post) for _ in range(4)]
        for thread in threads:
            thread.start()
        assert started.wait(10)
        assert httpx.get(f"{base}/health", trust_env=False).status_code == 200
        go.set()
        for thread in threads:
            thread.join()
    assert len(set(found)) == 1
    assert len(found) == 4
    assert runs == [1]


@pytest.mark.row("R100")
def test_a_call_builds_a_session_that_is_not_known(client: Client) -> None:
    rebuilt = client.post(f"/sessions/{ID}/calls/4", json=asked())
    assert rebuilt.status_code == 200
    assert rebuilt.headers["x-session-rebuilt"] == "1"
    again = client.post(f"/sessions/{ID}/calls/4", json=asked())  # the first answer was lost
    assert again.headers["x-session-rebuilt"] == "1"
    known = client.post(f"/sessions/{ID}/calls/5", json=asked())
    assert "x-session-rebuilt" not in known.headers
    without = {k: v for k, v in asked().items() if k != "origin"}
    assert client.post(f"/sessions/{ID}/calls/6", json=without).status_code == 200
    unknown = client.post(f"/sessions/{OTHER}/calls/0", json=without)
    assert (unknown.status_code, code(unknown)) == (409, "session_behind")


def test_a_session_that_missed_a_write_asks_for_its_origin(client: Client) -> None:
    client.post(f"/sessions/{ID}", json={"origin": origin()})
    move = {"n": 0, "name": "move_product", "arguments": {"link_no": 3, "position": 1}}
    behind = {"name": "search_faq", "arguments": {"query": "发货"}, "after": 1}
    answer = client.post(f"/sessions/{ID}/calls/1", json=behind)
    assert (answer.status_code, code(answer)) == (409, "session_behind")
    answer = client.post(f"/sessions/{ID}/calls/1", json=behind | {"origin": origin(writes=[move])})
    assert answer.status_code == 200
    back = {"link_no": 1, "position": 1}
    again = {"name": "move_product", "arguments": back, "after": 1}
    state = client.post(f"/sessions/{ID}/calls/2", json=again).json()["state"]
    assert state["product_order"] == ["p1", "p3", "p2"]


def test_one_session_is_one_episode(client: Client) -> None:
    client.post(f"/sessions/{ID}", json={"origin": origin()})
    other = client.post(f"/sessions/{ID}", json={"origin": origin(comments=["c2"])})
    assert (other.status_code, code(other)) == (409, "session_conflict")


def test_a_comment_that_the_room_lacks_is_named(client: Client) -> None:
    answer = client.post(f"/sessions/{ID}", json={"origin": origin(comments=["c99"])})
    assert answer.status_code == 424
    assert "c99" in answer.json()["error"]["message"]


# --- leases and capacity -----------------------------------------------------------------------


@pytest.mark.row("R39", "R45")
def test_at_capacity_a_session_is_refused_until_a_lease_is_over() -> None:
    client = Client(create_app([ROOM], max_sessions=2, lease_s=2.5))
    ids = [f"{i:032x}" for i in range(4)]
    for name in ids[:2]:
        assert client.post(f"/sessions/{name}", json={"origin": origin()}).status_code == 200
    full = client.post(f"/sessions/{ids[2]}", json={"origin": origin()})
    assert (full.status_code, code(full)) == (503, "at_capacity")
    assert int(full.headers["retry-after"]) >= 1
    assert client.post(f"/sessions/{ids[0]}", json={"origin": origin()}).status_code == 200
    time.sleep(2.6)
    assert client.post(f"/sessions/{ids[2]}", json={"origin": origin()}).status_code == 200
    assert len(client.app.state.sessions) == 1


def test_a_lease_is_renewed_by_calls() -> None:
    client = Client(create_app([ROOM], lease_s=2.0))
    client.post(f"/sessions/{ID}", json={"origin": origin()})
    for n in range(5):
        time.sleep(0.6)
        answer = client.post(f"/sessions/{ID}/calls/{n}", json=asked())
        assert "x-session-rebuilt" not in answer.headers


def test_copies_do_not_count_go_soon_and_are_bounded() -> None:
    app = create_app([ROOM], max_sessions=3)
    sessions = app.state.sessions
    sessions._copy_lease_s = 1.5
    client = Client(app)
    for i in range(8):
        client.post(f"/sessions/{i:032x}/calls/0", json=asked())
    assert len(sessions) == 0
    assert sessions.copies <= 4
    for i in range(8, 11):
        opened = client.post(f"/sessions/{i:032x}", json={"origin": origin()})
        assert opened.status_code == 200
    time.sleep(1.6)
    client.post(f"/sessions/{8:032x}/calls/0", json=asked())
    assert (len(sessions), sessions.copies) == (3, 0)


def test_sessions_expire_while_nobody_calls() -> None:
    closed = threading.Event()

    class Closing(LocalSandbox):
        def close(self) -> None:
            closed.set()

    app = create_app([ROOM], factory=lambda room, _: Closing(room, embedder="lexical"), lease_s=1.0)
    with running(app) as base:
        httpx.post(f"{base}/sessions/{ID}", json={"origin": origin()}, trust_env=False)
        assert len(app.state.sessions) == 1
        assert closed.wait(8)
        assert len(app.state.sessions) == 0


# --- rooms -------------------------------------------------------------------------------------


def test_a_room_is_brought_once_and_then_known() -> None:
    client = Client(create_app())
    unknown = client.post(f"/sessions/{ID}", json={"origin": origin()})
    assert (unknown.status_code, code(unknown)) == (409, "room_unknown")
    path, json_type = f"/rooms/{ROOM.content_hash}", {"content-type": "application/json"}
    for status in (201, 204, 204):
        assert client.put(path, content=room_json(ROOM), headers=json_type).status_code == status
    assert client.post(f"/sessions/{ID}", json={"origin": origin()}).status_code == 200
    (listed,) = client.get("/rooms").json()["rooms"]
    assert (listed["room_id"], listed["source"], listed["comments"]) == ("small", "uploaded", 3)


@pytest.mark.parametrize(
    ("room", "expected"),
    [
        pytest.param(SMALL | {"title": "x"}, "hash_mismatch", id="another room"),
        pytest.param({"room_id": "x"}, "room_invalid", id="no room"),
        pytest.param([1], "room_invalid", id="no object"),
        pytest.param(SMALL | {"products": "x"}, "room_invalid", id="broken"),
    ],
)
def test_a_room_that_is_none_is_refused(client: Client, room: Any, expected: str) -> None:
    answer = client.put(f"/rooms/{OTHER}", json=room)
    assert (answer.status_code, code(answer)) == (422, expected)


def test_rooms_in_use_stay_and_idle_ones_make_place() -> None:
    client = Client(create_app(max_rooms=2, lease_s=2.5))
    rooms = [small_room(title=f"店{i}") for i in range(4)]

    def bring(room: le.Room) -> httpx.Response:
        headers = {"content-type": "application/json"}
        path = f"/rooms/{room.content_hash}"
        return client.put(path, content=room_json(room), headers=headers)

    assert [bring(room).status_code for room in rooms[:2]] == [201, 201]
    full = bring(rooms[2])
    assert (full.status_code, code(full)) == (507, "rooms_full")
    inside = origin(rooms[3], room=json.loads(room_json(rooms[3])))
    answer = client.post(f"/sessions/{ID}", json={"origin": inside})
    assert (answer.status_code, code(answer)) == (507, "rooms_full")
    time.sleep(2.6)
    assert bring(rooms[2]).status_code == 201


def test_a_folder_is_read_again_when_its_files_change(tmp_path: Path) -> None:
    save_room(ROOM, tmp_path / "small.json")
    app = create_app(tmp_path, uploads=False)
    client = Client(app)
    assert client.post(f"/sessions/{ID}", json={"origin": origin()}).status_code == 200
    newer = small_room(title="新店")
    save_room(newer, tmp_path / "small.json")
    (tmp_path / "broken.json").write_text("{", encoding="utf-8")
    app.state.rooms._scanned_s = -10.0
    assert client.post(f"/sessions/{OTHER}", json={"origin": origin(newer)}).status_code == 200
    assert [room["title"] for room in client.get("/rooms").json()["rooms"]] == ["新店"]
    assert client.post(f"/sessions/{ID}/calls/0", json=asked()).status_code == 200
    gone = client.post(f"/sessions/{'a' * 32}", json={"origin": origin()})
    assert (gone.status_code, code(gone)) == (409, "room_mismatch")
    assert ROOM.content_hash in gone.text
    assert newer.content_hash in gone.text
    (tmp_path / "small.json").write_text("{", encoding="utf-8")
    app.state.rooms._scanned_s = -10.0
    assert len(client.get("/rooms").json()["rooms"]) == 1, "a broken file leaves its room"
    assert client.put(f"/rooms/{OTHER}", json=SMALL).status_code == 403


def test_a_folder_that_is_none_is_named() -> None:
    with pytest.raises(FileNotFoundError, match="no folder"):
        create_app("/nowhere/at/all")


def test_the_index_of_a_room_is_built_once(monkeypatch: pytest.MonkeyPatch) -> None:
    from livestream_env import tools

    built: list[str] = []
    original = tools.TextIndex

    def counting(*args: Any, **options: Any) -> Any:
        built.append("x")
        return original(*args, **options)

    room = small_room(title="独一家")
    with running(create_app([room])) as base:
        monkeypatch.setattr(tools, "TextIndex", counting)

        def play(i: int) -> None:
            with RemoteSandbox(base, room, **QUICK) as sandbox:
                sandbox.reset(seed=i, comments=["c1"])
                sandbox.call(LOOK)
                sandbox.call(call("search_comments", query="发货"))

        threads = [threading.Thread(target=play, args=(i,)) for i in range(64)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    assert len(built) == 4


# --- factories ---------------------------------------------------------------------------------


def test_a_factory_puts_any_sandbox_behind_the_server() -> None:
    seen: list[tuple[str | None, Origin]] = []

    def factory(room: le.Room | None, asked: Origin) -> LocalSandbox:
        seen.append((room and room.room_id, asked))
        assert room is not None
        return LocalSandbox(room, embedder="lexical", language=asked.options.language)

    sandbox = wired(ROOM, create_app(factory=factory))
    here = LocalSandbox(ROOM, embedder="lexical")
    assert sandbox.reset(seed=5, comments=["c2"]) == here.reset(seed=5, comments=["c2"])
    assert sandbox.call(MOVE) == here.call(MOVE)
    assert seen[0][0] == "small"
    assert (seen[0][1].seed, seen[0][1].comments) == (5, ("c2",))


def test_a_factory_needs_no_room_where_clients_may_bring_none() -> None:
    def factory(room: le.Room | None, _: Origin) -> LocalSandbox:
        assert room is None
        return LocalSandbox(ROOM, embedder="lexical")

    sandbox = wired(ROOM, create_app(factory=factory, uploads=False))
    assert sandbox.reset(seed=1, comments=["c1"]).room_id == "small"


def test_options_that_a_factory_ignores_are_refused_by_name() -> None:
    app = create_app(factory=lambda room, _: LocalSandbox(room, embedder="lexical"))
    with pytest.raises(SandboxError, match="`language`"):
        wired(ROOM, app, language="en").reset(seed=1, comments=["c1"])
    with pytest.raises(SandboxError, match="`tools`"):
        wired(ROOM, app, tools=["search_faq"]).reset(seed=1, comments=["c1"])
    other = create_app(factory=lambda *_: LocalSandbox(small_room(title="别家")))
    with pytest.raises(RoomMismatch, match=ROOM.content_hash):
        wired(ROOM, other).reset(seed=1, comments=["c1"])


class Leaky(LocalSandbox):
    """Fails with what nobody should see."""

    def call(self, call: le.ToolCall) -> le.ToolResult:
        if call.name == "search_faq":
            raise ValueError("password=hunter2 at /srv/secret.py")
        if call.name == "search_script":
            raise SessionLost("the upstream forgot us")
        return le.ToolResult("another call", "{}")


def test_a_failure_shows_neither_trace_nor_text_that_was_not_meant_for_clients(
    caplog: pytest.LogCaptureFixture,
) -> None:
    app = create_app([ROOM], factory=lambda room, _: Leaky(room, embedder="lexical"))
    sandbox = wired(ROOM, app)
    sandbox.reset(seed=1, comments=["c1"])
    with pytest.raises(SandboxError, match="ValueError"):
        sandbox.call(LOOK)
    with pytest.raises(SessionLost, match="forgot us"):
        sandbox.call(call("search_script", query="x"))
    with pytest.raises(SandboxError, match="no result of this call"):
        sandbox.call(call("search_comments", query="x"))
    for answer in wire_of(sandbox).answers:
        assert b"hunter2" not in answer
        assert b"Traceback" not in answer
    assert "hunter2" in caplog.text

    def broken(*_: Any) -> LocalSandbox:
        raise RuntimeError("hunter2")

    with pytest.raises(SandboxError, match="RuntimeError") as caught:
        wired(ROOM, create_app(factory=broken)).reset(seed=1, comments=["c1"])
    assert "hunter2" not in str(caught.value)


# --- limits, hostile input ---------------------------------------------------------------------


@pytest.mark.parametrize(
    ("body", "status", "expected"),
    [
        pytest.param(b"", 400, "bad_json", id="empty"),
        pytest.param(b"{", 400, "bad_json", id="cut"),
        pytest.param(b"\xff\xfe", 400, "bad_json", id="bytes"),
        pytest.param(b"[" * 100_000, 400, "bad_json", id="deep brackets"),
        pytest.param(b"null", 422, "invalid_request", id="null"),
        pytest.param(b"[]", 422, "invalid_request", id="list"),
        pytest.param(b'{"name":1}', 422, "invalid_request", id="type"),
        pytest.param(b'{"name":"x","extra":1}', 422, "invalid_request", id="extra"),
        pytest.param(b'{"name":"\\ud83d"}', 400, "bad_json", id="lone surrogate"),
        pytest.param(
            b'{"name":"x","arguments":' + b'{"a":' * 70 + b"1" + b"}" * 71,
            422,
            "invalid_request",
            id="deep arguments",
        ),
        pytest.param(b'{"name":"' + b"x" * 300 + b'"}', 422, "invalid_request", id="long name"),
    ],
)
def test_a_body_that_is_none_is_refused(
    client: Client, body: bytes, status: int, expected: str
) -> None:
    answer = client.post(
        f"/sessions/{ID}/calls/0", content=body, headers={"content-type": "application/json"}
    )
    assert (answer.status_code, code(answer)) == (status, expected)


def test_numbers_that_json_lacks_do_no_harm(client: Client) -> None:
    for number in ("NaN", "Infinity", "1e999", "-1e999", "9" * 4000, "9" * 5000):
        body = json.dumps(asked()).replace('"\\u53d1\\u8d27"', number)
        answer = client.post(
            f"/sessions/{ID}/calls/0", content=body, headers={"content-type": "application/json"}
        )
        assert answer.status_code < 500
        client.delete(f"/sessions/{ID}")


@pytest.mark.parametrize(
    "path",
    [
        "/sessions/..%2f..%2fetc%2fpasswd/calls/0",
        "/sessions/../../etc/passwd",
        f"/sessions/{ID.upper()}/calls/0",
        f"/sessions/{ID}%0a/calls/0",
        f"/sessions/{ID}/calls/-1",
        f"/sessions/{ID}/calls/1e3",
        f"/sessions/{ID}/calls/%EF%BC%91",
        f"/sessions/{ID}/calls/" + "9" * 400,
        "/sessions/%00%1b[2J/calls/0",
        "/sessions/" + "a" * 20_000,
        "/rooms/..%2f..%2fx",
        "/etc/passwd",
    ],
)
def test_hostile_ids_are_refused(client: Client, path: str) -> None:
    for method in ("POST", "PUT", "DELETE"):
        content = b"{}" if method != "DELETE" else None
        headers = {"content-type": "application/json"}
        answer = client.request(method, path, content=content, headers=headers)
        assert answer.status_code in (404, 405, 422), (method, path)
        assert code(answer)
        assert "\x1b" not in answer.text


def test_a_huge_body_is_refused_before_it_is_read() -> None:
    with running(create_app([ROOM])) as base:
        path = f"{base}/sessions/{ID}"
        host, port = base.removeprefix("http://").split(":")
        with socket.create_connection((host, int(port))) as one:
            one.settimeout(5)
            one.sendall(
                f"POST /sessions/{ID} HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\n"
                f"Content-Length: {10**12}\r\n\r\n{{".encode()
            )
            assert one.recv(100).startswith(b"HTTP/1.1 413")

        def endless() -> Iterator[bytes]:
            for _ in range(40):
                yield b" " * 1_000_000

        chunked = {"content-type": "application/json"}
        try:
            answer = httpx.post(path, content=endless(), headers=chunked, trust_env=False)
            assert answer.status_code == 413
        except (httpx.WriteError, httpx.RemoteProtocolError, httpx.ReadError):
            pass  # the server hung up while the client was still sending
        assert httpx.get(f"{base}/health", trust_env=False).status_code == 200


def test_a_slow_body_is_cut_off_and_holds_nobody_up() -> None:
    with running(create_app([ROOM], body_timeout_s=0.3)) as base:
        host, port = base.removeprefix("http://").split(":")
        slow = []
        for _ in range(50):
            one = socket.create_connection((host, int(port)))
            one.sendall(
                f"POST /sessions/{ID} HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\n"
                "Content-Length: 100\r\n\r\n{".encode()
            )
            slow.append(one)
        with RemoteSandbox(base, ROOM, **QUICK) as sandbox:
            sandbox.reset(seed=1, comments=["c1"])
            assert sandbox.call(LOOK).error is None
        for one in slow:
            one.settimeout(5)
            assert one.recv(100).startswith(b"HTTP/1.1 408")
            one.close()


def _head(base: str, *headers: str) -> socket.socket:
    """Connect and send the start of a request."""
    host, port = base.removeprefix("http://").split(":")
    one = socket.create_connection((host, int(port)))
    one.settimeout(20)
    one.sendall("\r\n".join(("GET /rooms HTTP/1.1", "Host: x", *headers)).encode())
    return one


def test_heads_that_never_end_hold_nobody_up_and_are_let_go(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(connections, "HEAD_S", 2.0)
    with running(create_app([ROOM])) as base:
        half_open = [_head(base, "X-Slow: ") for _ in range(300)]
        with RemoteSandbox(base, ROOM, **QUICK) as sandbox:
            sandbox.reset(seed=1, comments=["c1"])
            assert sandbox.call(LOOK).error is None
        later = _head(base, "\r\n")
        assert later.recv(100).startswith(b"HTTP/1.1 200")
        later.sendall(b"GET /roo")  # a second request, that never ends
        silent = socket.create_connection(later.getpeername())
        silent.settimeout(20)
        latest = time.monotonic() + 15
        for one in (*half_open, later, silent):
            while one.recv(4096):  # an empty one: the server has hung up
                assert time.monotonic() < latest
            one.close()


def test_a_dripping_head_is_let_go_as_soon_and_a_quick_one_is_not(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(connections, "HEAD_S", 1.0)
    with running(create_app([ROOM])) as base, httpx.Client(trust_env=False) as client:
        dripping, latest = _head(base, "X-Slow: "), time.monotonic() + 15
        with contextlib.suppress(OSError):  # the server has hung up
            while True:
                dripping.sendall(b"x")
                assert client.get(f"{base}/health").status_code == 200
                assert time.monotonic() < latest
                time.sleep(0.1)
        dripping.close()


def test_many_headers_are_refused_and_hold_nobody_up() -> None:
    with running(create_app([ROOM])) as base:
        one = _head(base)
        with contextlib.suppress(OSError):  # it may hang up while more is being sent
            for i in range(20_000):
                one.sendall(f"X-{i}: {'y' * 80}\r\n".encode())
        with contextlib.suppress(OSError):
            assert one.recv(100).startswith(b"HTTP/1.1 4")
        one.close()
        answer = httpx.get(f"{base}/rooms", headers=[("x", "y")] * 200, trust_env=False)
        assert answer.status_code == 200


@pytest.mark.row("R39")
def test_a_room_cannot_be_read_through_anothers_session() -> None:
    """Whoever asks must name the episode that the session is of, as long as it names one."""
    secret, mine = small_room(title="暗号甲"), small_room(title="乙")
    client = Client(create_app([secret, mine]))
    assert client.post(f"/sessions/{ID}", json={"origin": origin(secret)}).status_code == 200
    for changes in (
        {"content_hash": mine.content_hash},
        {"comments": ["c2"]},
        {"seed": 2},
        {"options": {"embedder": "lexical", "language": "en"}},
    ):
        for answer in (
            client.post(f"/sessions/{ID}", json={"origin": origin(secret, **changes)}),
            client.post(f"/sessions/{ID}/calls/0", json=asked(origin=origin(secret, **changes))),
        ):
            assert (answer.status_code, code(answer)) == (409, "session_conflict")
            assert "暗号" not in answer.text
    writes = [{"n": 0, "name": "move_product", "arguments": {"link_no": 3, "position": 1}}]
    other = origin(mine, writes=writes)
    answer = client.post(f"/sessions/{ID}/calls/1", json=asked(after=1, origin=other))
    assert (answer.status_code, code(answer)) == (409, "session_conflict")
    answer = client.post(f"/sessions/{ID}/calls/1", json=asked(origin=origin(secret)))
    assert answer.status_code == 200, "the session is as it was"


def test_a_session_that_is_closed_while_it_is_built_is_not_left_behind() -> None:
    began, go = threading.Event(), threading.Event()

    def factory(room: le.Room | None, _: Origin) -> LocalSandbox:
        began.set()
        go.wait(20)
        assert room is not None
        return LocalSandbox(room, embedder="lexical")

    app = create_app([ROOM], factory=factory)
    with running(app) as base, ThreadPoolExecutor(2) as pool:
        opening = pool.submit(
            httpx.post, f"{base}/sessions/{ID}", json={"origin": origin()}, trust_env=False
        )
        assert began.wait(20)
        closing = pool.submit(httpx.delete, f"{base}/sessions/{ID}", trust_env=False)
        time.sleep(0.3)
        go.set()
        assert opening.result().status_code == 200
        assert closing.result().status_code == 204
        assert len(app.state.sessions) == 0


def test_a_build_that_fails_late_is_told_to_who_asks_again() -> None:
    builds: list[int] = []

    def factory(room: le.Room | None, _: Origin) -> LocalSandbox:
        builds.append(1)
        time.sleep(0.3)
        raise SessionLost("the upstream forgot us")

    app = create_app([ROOM], factory=factory)
    with running(app) as base:
        app.state.sessions._busy_after_s = 0.05
        sandbox = RemoteSandbox(base, ROOM, **QUICK)
        with pytest.raises(SessionLost, match="forgot us"):
            sandbox.reset(seed=1, comments=["c1"])
        assert len(builds) == 1
        assert len(app.state.sessions) == 0


def test_a_room_with_numbers_that_json_lacks_is_refused(client: Client) -> None:
    body = json.dumps({"origin": origin(content_hash=OTHER, room=SMALL | {"room_id": "@"})})
    for number in ("NaN", "-Infinity", "1e999"):
        content = body.replace('"room": {"room_id": "@"', f'"room": {{"room_id": {number}')
        assert number in content
        headers = {"content-type": "application/json"}
        answer = client.post(f"/sessions/{ID}", content=content, headers=headers)
        assert (answer.status_code, code(answer)) == (422, "room_invalid")


def test_tools_that_hang_take_no_thread_for_ever() -> None:
    go = threading.Event()

    @le.tool
    def slow(context: le.ToolContext) -> str:
        """Hang."""
        go.wait(60)
        return "late"

    app = create_app([ROOM], tools=[slow], threads=2, tool_timeout_s=0.3)
    with running(app) as base:

        def ask(_: int) -> str:
            with RemoteSandbox(base, ROOM, tools=["slow", "search_faq"], **QUICK) as sandbox:
                sandbox.reset(seed=1, comments=["c1"])
                with pytest.raises(SandboxTimeout, match="`slow` failed") as caught:
                    sandbox.call(call("slow"))
                assert sandbox.call(LOOK).error is None
                return str(caught.value)

        with ThreadPoolExecutor(4) as pool:
            assert all("`tool_timeout_s` of 0.3" in text for text in pool.map(ask, range(4)))
        go.set()


def test_a_page_in_a_browser_cannot_send_requests(client: Client) -> None:
    plain = {"content-type": "text/plain"}
    answer = client.post(f"/sessions/{ID}", content=b"{}", headers=plain)
    assert (answer.status_code, code(answer)) == (415, "not_json")


def test_a_token_is_needed_for_all_but_health() -> None:
    app = create_app([ROOM], token="s3same")
    for given in ({}, {"authorization": "Bearer wrong"}, {"authorization": "s3same"}):
        client = Client(app, **given)
        for method, path in (
            ("GET", "/rooms"),
            ("GET", "/metrics"),
            ("GET", "/docs"),
            ("GET", "/openapi.json"),
            ("DELETE", f"/sessions/{ID}"),
            ("GET", "//health"),
            ("GET", "/health/../rooms"),
        ):
            answer = client.request(method, path)
            assert answer.status_code == 401, (method, path)
            assert "s3same" not in answer.text
        assert client.get("/health").status_code == 200
    assert Client(app, authorization="Bearer s3same").get("/rooms").status_code == 200
    with pytest.raises(ValueError, match="`token`"):
        create_app([ROOM], token=" ")


def test_without_a_token_other_hosts_are_refused() -> None:
    app = create_app([ROOM])
    for host, status in (("127.0.0.1", 200), ("::1", 200), ("10.0.0.9", 403), ("2001:db8::1", 403)):
        client = Client(app, client=(host, 5000))
        assert client.get("/rooms").status_code == status


@pytest.mark.parametrize("host", ["0.0.0.0", "::", "192.168.0.7"])
def test_serve_refuses_other_hosts_without_a_token(
    host: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["serve", "--rooms", str(tmp_path), "--host", host]) == 2
    assert "--token-file" in capsys.readouterr().err


def test_serve_says_what_is_wrong_with_its_options(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "token").write_text("\n", encoding="utf-8")
    for options, message in (
        ([], "--rooms DIR"),
        (["--rooms", "/nowhere"], "no folder"),
        (["--sandbox", "nothing.here:f"], "no factory"),
        (["--sandbox", "os:sep"], "called with"),
        (["--rooms", str(tmp_path), "--token-file", str(tmp_path / "token")], "holds no token"),
    ):
        assert main(["serve", *options]) == 2
        assert message in capsys.readouterr().err


# --- what is never said ------------------------------------------------------------------------


@pytest.mark.row("R38")
def test_no_answer_holds_anything_of_the_key() -> None:
    room = with_secret(le.load_room("snacks"))
    full = json.loads(le.load_room("snacks").model_dump_json(exclude_defaults=True))
    app = create_app([room])
    sandbox = wired(room, app)
    wire = wire_of(sandbox)
    for comment in room.comments[:20]:
        sandbox.reset(seed=1, comments=[comment.comment_id])
        for name in ("search_faq", "search_script", "search_comments"):
            sandbox.call(call(name, query=comment.text[:100] or "?"))
        sandbox.call(call("search_product_by_keyword", keyword=comment.text[:20] or "?"))
        sandbox.call(call("get_reply_rule", intent="nothing of that kind"))
        sandbox.call(call("move_product", link_no=3, position=1))
    client = Client(app)
    told = [client.get(path).content for path in ("/rooms", "/metrics", "/health")]
    told.append(client.put(f"/rooms/{OTHER}", json=full).content)
    said = b"\n".join([*wire.answers, *told, *(request.content for request in wire.requests)])
    assert len(wire.answers) > 100
    for text in key_strings(room):
        assert text.encode() not in said, text
    assert b'"expected"' not in said


# --- what operators see ------------------------------------------------------------------------


def test_metrics_count_what_happened(client: Client) -> None:
    client.post(f"/sessions/{ID}", json={"origin": origin()})
    client.post(f"/sessions/{ID}/calls/0", json=asked())
    client.post(f"/sessions/{ID}/calls/0", json=asked())
    client.get("/%1b[2J%22}'")
    told = client.get("/metrics")
    assert told.headers["content-type"].startswith("text/plain; version=0.0.4")
    lines = told.text.split("\n")
    assert "livestream_env_sessions_open 1" in lines
    assert "livestream_env_calls_executed_total 1" in lines
    assert "livestream_env_calls_repeated_total 1" in lines
    assert 'livestream_env_requests_total{route="run_call",status="200"} 2' in lines
    assert 'livestream_env_requests_total{route="other",status="404"} 1' in lines
    for line in lines:
        assert re.fullmatch(r"|#.*|[a-z_]+(\{[a-z0-9_=\"+.,In f]*\})? [0-9.e+-]+", line), line


def test_requests_are_logged_with_their_id(
    client: Client, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO, logger="livestream_env.server")
    kept = client.get("/health", headers={"x-request-id": "abc-123"})
    assert kept.headers["x-request-id"] == "abc-123"
    made = client.get("/health", headers={"x-request-id": "a b\x1b;rm -rf"})
    assert re.fullmatch(r"[0-9a-f]{16}", made.headers["x-request-id"])
    told = [record.told for record in caplog.records if hasattr(record, "told")]
    assert [line["id"] for line in told] == ["abc-123", made.headers["x-request-id"]]
    assert {line["route"] for line in told} == {"health"}


def test_a_fault_of_the_server_is_a_500_with_an_id_and_nothing_else(
    client: Client, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def broken(*_: Any) -> None:
        raise ZeroDivisionError("hunter2")

    monkeypatch.setattr(client.app.state.sessions, "close", broken)
    answer = client.delete(f"/sessions/{ID}")
    assert (answer.status_code, code(answer)) == (500, "internal")
    assert "hunter2" not in answer.text
    assert "hunter2" in caplog.text


def test_the_openapi_document_describes_every_endpoint(client: Client) -> None:
    document = client.get("/openapi.json").json()
    told = {(method, path) for path, one in document["paths"].items() for method in one}
    assert told == {
        ("post", "/sessions/{session}"),
        ("post", "/sessions/{session}/calls/{n}"),
        ("delete", "/sessions/{session}"),
        ("put", "/rooms/{hash}"),
        ("get", "/rooms"),
        ("get", "/health"),
        ("get", "/metrics"),
    }
    references = set(re.findall(r'"#/components/schemas/(\w+)"', json.dumps(document)))
    assert references <= set(document["components"]["schemas"])
    assert {"CallRequest", "Origin", "Opened", "ErrorAnswer"} <= references
    assert "swagger" in client.get("/docs").text


_FUZZED = create_app([ROOM])
_SCHEMA = schemathesis.openapi.from_asgi("/openapi.json", _FUZZED)


@_SCHEMA.parametrize()
@settings(
    max_examples=40,
    deadline=None,
    derandomize=True,
    database=None,
    suppress_health_check=list(HealthCheck),
)
def test_no_request_that_fits_the_document_or_not_makes_a_5xx(case: Any) -> None:
    response = case.call()
    assert response.status_code < 500 or response.status_code in (503, 507)


# --- the command -------------------------------------------------------------------------------


def _serve(folder: Path, *options: str) -> tuple[subprocess.Popen[str], str]:
    port = free_port()
    command = [sys.executable, "-m", "livestream_env.cli", "serve", "--rooms", str(folder)]
    process = subprocess.Popen(
        [*command, "--port", str(port), *options], stderr=subprocess.PIPE, text=True
    )
    base = f"http://127.0.0.1:{port}"
    for _ in range(200):
        try:
            httpx.get(f"{base}/health", trust_env=False).raise_for_status()
            break
        except httpx.HTTPError:
            assert process.poll() is None
            time.sleep(0.1)
    return process, base


def test_serve_runs_workers_with_a_token_and_stops_gracefully(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    save_room(ROOM, tmp_path / "small.json")
    (tmp_path / "token").write_text("s3same\n", encoding="utf-8")
    monkeypatch.setenv("LE_TOKEN", "s3same")
    process, base = _serve(tmp_path, "--workers", "2", "--token-file", str(tmp_path / "token"))
    try:
        other = small_room(title="客户端的店")
        for room in (ROOM, other):
            for seed in range(4):
                with RemoteSandbox(base, room, token_env="LE_TOKEN", **QUICK) as sandbox:
                    here = LocalSandbox(room, embedder="lexical")
                    view = here.reset(seed=seed, comments=["c1"])
                    assert sandbox.reset(seed=seed, comments=["c1"]) == view
                    for one in (MOVE, LOOK):
                        assert sandbox.call(one) == here.call(one)
    finally:
        process.send_signal(signal.SIGTERM)
        _, log = process.communicate(timeout=20)
    assert process.returncode in (0, -signal.SIGTERM)
    lines = [json.loads(line) for line in log.split("\n") if line]
    assert any(line.get("route") == "run_call" for line in lines)
    assert "s3same" not in log
