"""The client of chat endpoints: retries, limits, refusals, secrets, threads, loops and forks."""

from __future__ import annotations

import asyncio
import copy
import json
import multiprocessing
import os
import pickle
import socket
import subprocess
import sys
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from email.utils import formatdate
from http.server import BaseHTTPRequestHandler
from pathlib import Path
from typing import Any

import cloudpickle
import httpx
import pytest
from gateway_for_tests import Gateway, completion, error, send, served

from livestream_env import databases
from livestream_env._resources import cache_folder
from livestream_env.chat import ChatClient
from livestream_env.databases import network_filesystem, open_database
from livestream_env.endpoints import retry_after_s
from livestream_env.errors import ChatError, ChatRefused, ChatTimeout, SharedFileError
from livestream_env.rates import take_turn

ASK = [{"role": "user", "content": "hello"}]
FINE = completion("fine")


@pytest.fixture(autouse=True)
def cache_of_its_own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("LIVESTREAM_ENV_CACHE", str(tmp_path / "cache"))


@pytest.mark.row("R28")
def test_a_completion_has_message_reason_usage_model_and_request_id() -> None:
    answer = completion("fine")
    answer.headers["x-request-id"] = "req-7"
    gateway = Gateway(answer)
    with gateway.client() as client:
        done = client.complete(ASK, temperature=0.5, tools=[])
    assert done.message == {"role": "assistant", "content": "fine"}
    assert (done.text, done.finish_reason, done.model, done.request_id) == (
        "fine",
        "stop",
        "judge-1",
        "req-7",
    )
    assert done.usage == (100, 20)
    assert gateway.requests == [
        {"model": "judge-1", "messages": ASK, "temperature": 0.5, "tools": []}
    ]


def test_content_in_parts_is_one_text() -> None:
    parts: Any = [{"type": "text", "text": "a"}, {"type": "image"}, {"type": "text", "text": "b"}]
    with Gateway(completion(parts)).client() as client:
        assert client.complete(ASK).text == "ab"
    with Gateway(completion(None)).client() as client:
        assert client.complete(ASK).text == ""


@pytest.mark.parametrize(
    "usage",
    [None, "many", {}, {"prompt_tokens": "9", "completion_tokens": -1}, {"prompt_tokens": True}],
)
def test_usage_that_cannot_be_is_unknown_not_zero(usage: Any) -> None:
    with Gateway(completion("fine", usage=usage)).client() as client:
        assert client.complete(ASK).usage == (None, None)


# --- trying again ---


@pytest.mark.parametrize("status", [500, 502, 503, 504, 529])
def test_a_server_error_is_tried_again(status: int) -> None:
    gateway = Gateway(error(status), error(status), FINE)
    with gateway.client() as client:
        assert client.complete(ASK).text == "fine"
    assert len(gateway.requests) == 3


def test_tries_are_bounded() -> None:
    gateway = Gateway(error(500, "boom", "no luck"))
    with gateway.client(retries=2) as client, pytest.raises(ChatError, match="500 boom: no luck"):
        client.complete(ASK)
    assert len(gateway.requests) == 3


@pytest.mark.parametrize("status", [400, 401, 403, 404, 422, 301])
def test_other_failures_are_raised_at_once(status: int) -> None:
    gateway = Gateway(error(status, "no"))
    with gateway.client() as client, pytest.raises(ChatError) as caught:
        client.complete(ASK)
    assert (caught.value.status, len(gateway.requests)) == (status, 1)


def test_retry_after_seconds_are_waited_for() -> None:
    gateway = Gateway(error(429, "rate_limit_exceeded", retry_after="0.3"), FINE)
    with gateway.client() as client:
        start = time.monotonic()
        assert client.complete(ASK).text == "fine"
    assert time.monotonic() - start >= 0.3


def test_a_pause_that_the_endpoint_asks_for_holds_for_every_request() -> None:
    gateway = Gateway(error(429, "rate_limit_exceeded", retry_after="0.5"), FINE)
    with gateway.client() as client, ThreadPoolExecutor(2) as pool:
        start = time.monotonic()
        first = pool.submit(client.complete, ASK)
        time.sleep(0.1)
        client.complete(ASK)
        assert time.monotonic() - start >= 0.5
        first.result()


def test_a_pause_longer_than_the_time_limit_is_not_sat_out() -> None:
    gateway = Gateway(error(429, "rate_limit_exceeded", retry_after="3600"))
    with (
        gateway.client(total_timeout_s=5) as client,
        pytest.raises(ChatTimeout, match="in 3600"),
    ):
        client.complete(ASK)
    assert len(gateway.requests) == 1


@pytest.mark.parametrize(
    ("headers", "seconds"),
    [
        ({"retry-after": "7"}, 7.0),
        ({"retry-after": formatdate(1_000_030, usegmt=True)}, 30.0),
        ({"retry-after": formatdate(999_000, usegmt=True)}, 0.0),
        ({"retry-after-ms": "1500", "retry-after": "2"}, 1.5),
        ({"retry-after": "-3"}, None),
        ({"retry-after": "nan"}, None),
        ({"retry-after": "soon"}, None),
        ({}, None),
    ],
)
def test_retry_after_is_read_as_number_or_date(
    headers: dict[str, str], seconds: float | None
) -> None:
    assert retry_after_s(httpx.Headers(headers), 1_000_000.0) == seconds


@pytest.mark.parametrize(
    "answer",
    [
        pytest.param(error(429, "insufficient_quota", "check your plan"), id="openai"),
        pytest.param(error(429, "1113", "您的账户余额不足"), id="balance in words"),
        pytest.param(error(402, "", "Insufficient Balance"), id="402"),
        pytest.param(error(503, "insufficient_quota"), id="503"),
    ],
)
def test_a_spent_quota_is_not_tried_again(answer: httpx.Response) -> None:
    gateway = Gateway(answer)
    with gateway.client() as client, pytest.raises(ChatError):
        client.complete(ASK)
    assert len(gateway.requests) == 1


def test_a_rate_limit_that_only_the_body_tells_is_one() -> None:
    told = httpx.Response(200, json={"error": {"code": 429, "message": "slow down"}})
    gateway = Gateway(told, error(400, "rate_limit_exceeded"), FINE)
    with gateway.client() as client:
        assert client.complete(ASK).text == "fine"
    assert len(gateway.requests) == 3


def test_a_failed_connection_is_tried_again_and_named() -> None:
    gateway = Gateway(httpx.ConnectError("refused"), FINE)
    with gateway.client() as client:
        assert client.complete(ASK).text == "fine"
    dead = Gateway(httpx.ConnectError("refused")).client(retries=1)
    with dead, pytest.raises(ChatError, match=r"connection to http://gateway\.test/v1 failed"):
        dead.complete(ASK)


# --- time ---


@pytest.mark.parametrize("is_silent", [True, False], ids=["silent", "dripping"])
def test_a_slow_endpoint_is_left_after_the_time_limit(is_silent: bool) -> None:
    leave = threading.Event()

    def slow(handler: BaseHTTPRequestHandler, _: bytes) -> None:
        handler.wfile.write(b"HTTP/1.1 200 OK\r\nContent-Length: 1000\r\n\r\n")
        while not leave.wait(0.05):
            if not is_silent:
                handler.wfile.write(b" ")
                handler.wfile.flush()

    limits = {"timeout_s": 0.3, "total_timeout_s": 5.0} if is_silent else {"total_timeout_s": 0.4}
    with served(slow) as url, ChatClient(url, "m", **limits) as client:
        start = time.monotonic()
        with pytest.raises(ChatTimeout):
            client.complete(ASK)
        assert time.monotonic() - start < 2
        leave.set()


def test_a_time_out_is_not_tried_again() -> None:
    gateway = Gateway(httpx.ReadTimeout("slow"))
    with gateway.client() as client, pytest.raises(ChatTimeout):
        client.complete(ASK)
    assert len(gateway.requests) == 1


def test_a_full_pool_is_told_from_a_dead_server(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("livestream_env.chat.CONNECTIONS", 1)
    answered = threading.Event()

    def hold(handler: BaseHTTPRequestHandler, _: bytes) -> None:
        answered.wait(60)
        send(handler, completion("late"))

    async def both(client: ChatClient) -> list[Any]:
        first = asyncio.create_task(client.acomplete(ASK))
        await asyncio.sleep(0.1)
        client.total_timeout_s = 0.2
        second = await asyncio.gather(client.acomplete(ASK), return_exceptions=True)
        answered.set()
        return [await first, *second]

    with served(hold) as url, ChatClient(url, "m") as client:
        done, refused = asyncio.run(both(client))
    assert done.text == "late"
    assert isinstance(refused, ChatTimeout)
    assert "client pool is full" in str(refused)


# --- refusals and nonsense ---


@pytest.mark.parametrize(
    "answer",
    [
        pytest.param(completion(None, finish_reason="content_filter"), id="finish_reason"),
        pytest.param(error(400, "content_filter", "filtered"), id="azure"),
        pytest.param(error(400, "DataInspectionFailed", "inappropriate"), id="dashscope"),
        pytest.param(
            completion(
                None,
                choices=[{"message": {"role": "assistant", "refusal": "I will not"}}],
            ),
            id="refusal",
        ),
    ],
)
def test_a_refusal_has_its_own_type_and_is_not_tried_again(answer: httpx.Response) -> None:
    gateway = Gateway(answer)
    with gateway.client() as client, pytest.raises(ChatRefused):
        client.complete(ASK)
    assert len(gateway.requests) == 1


@pytest.mark.parametrize(
    "answer",
    [
        pytest.param(httpx.Response(200, content=b"<html>gateway</html>"), id="html"),
        pytest.param(httpx.Response(200, content=b'{"choices": [{"mess'), id="cut"),
        pytest.param(httpx.Response(200, content=b""), id="empty"),
        pytest.param(httpx.Response(200, json={"choices": []}), id="no choice"),
        pytest.param(httpx.Response(200, json={"choices": [{"message": "x"}]}), id="no message"),
        pytest.param(httpx.Response(200, json=["x"]), id="array"),
        pytest.param(httpx.Response(200, content=b"[" * 100_000), id="deep"),
        pytest.param(
            httpx.Response(
                200, content=b"data: {}\n\n", headers={"content-type": "text/event-stream"}
            ),
            id="stream",
        ),
    ],
)
def test_an_answer_that_is_no_completion_is_a_typed_error(answer: httpx.Response) -> None:
    gateway = Gateway(answer)
    with gateway.client() as client, pytest.raises(ChatError, match="no chat completion") as caught:
        client.complete(ASK)
    assert (caught.value.code, len(gateway.requests)) == ("bad_answer", 1)


def test_streaming_is_refused() -> None:
    gateway = Gateway(FINE)
    with gateway.client() as client, pytest.raises(ValueError, match="stream=True"):
        client.complete(ASK, stream=True)
    assert gateway.requests == []


def test_a_reset_connection_is_asked_again_and_then_an_error_that_says_so() -> None:
    asked = []

    def reset(handler: BaseHTTPRequestHandler, body: bytes) -> None:
        asked.append(body)
        handler.connection.shutdown(socket.SHUT_RDWR)

    options = {"retries": 2, "backoff_s": 0.01}
    with served(reset) as url, pytest.raises(ChatError) as caught:
        ChatClient(url, "m", **options).complete(ASK)
    assert (caught.value.code, len(asked)) == ("connection_lost", 3)


# --- secrets ---


def test_secrets_come_from_the_environment_and_stay_out_of_sight(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("MY_TOKEN", "sk-very-secret\n")
    monkeypatch.setenv("MY_KEY", "key-very-secret")
    echo = error(401, "invalid_api_key", "wrong key sk-very-secret / key-very-secret")
    gateway = Gateway(FINE, echo)
    client = gateway.client(token_env="MY_TOKEN", headers_env={"X-Key": "MY_KEY"}, transport=None)
    client._transport = httpx.MockTransport(gateway)
    with client:
        client.complete(ASK)
        with pytest.raises(ChatError) as caught:
            client.complete(ASK)
        shown = [repr(client), str(caught.value), repr(caught.value)]
    del client._transport
    shown.append(repr(pickle.dumps(client)))
    assert gateway.headers[0]["authorization"] == "Bearer sk-very-secret"
    assert gateway.headers[0]["x-key"] == "key-very-secret"
    assert not any("very-secret" in text for text in shown)


def test_a_secret_that_is_missing_or_no_header_is_named_by_its_variable(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    with pytest.raises(ChatError, match="`NO_SUCH` is not set"):
        Gateway(FINE).client(token_env="NO_SUCH")
    monkeypatch.setenv("BROKEN", "sk-秘密")
    with pytest.raises(ChatError, match="`BROKEN` holds what no header can") as caught:
        Gateway(FINE).client(token_env="BROKEN")
    assert "秘密" not in str(caught.value)


@pytest.mark.parametrize(
    "url", ["gateway.test/v1", "ftp://gateway.test", "http://", "http://u:p@gateway.test/v1", ""]
)
def test_a_url_that_is_none_or_holds_a_password_is_refused(url: str) -> None:
    with pytest.raises(ValueError, match="base_url") as caught:
        ChatClient(url, "m")
    assert "u:p" not in str(caught.value)


@pytest.mark.parametrize(
    ("base", "asked"),
    [
        ("http://h.test/v1", "http://h.test/v1/chat/completions"),
        ("http://h.test/v1/", "http://h.test/v1/chat/completions"),
        ("http://h.test", "http://h.test/chat/completions"),
        ("http://h.test/v1/chat/completions", "http://h.test/v1/chat/completions"),
        ("http://h.test/a?api-version=1", "http://h.test/a/chat/completions?api-version=1"),
    ],
)
def test_completions_are_asked_below_the_base_url(base: str, asked: str) -> None:
    urls = []

    def answer(request: httpx.Request) -> httpx.Response:
        urls.append(str(request.url))
        return FINE

    with ChatClient(base, "m", transport=httpx.MockTransport(answer)) as client:
        client.complete(ASK)
        assert "?" not in repr(client)
    assert urls == [asked]


@pytest.mark.parametrize("error_type", [ChatError, ChatRefused, ChatTimeout])
def test_errors_pickle_with_what_they_hold(error_type: type[ChatError]) -> None:
    made = error_type("no answer", status=429, code="slow")
    again = pickle.loads(pickle.dumps(made))
    assert (str(again), again.status, again.code) == ("no answer", 429, "slow")
    assert isinstance(ChatTimeout("x"), TimeoutError)


# --- threads, loops, forks, hosts ---


def echo(handler: BaseHTTPRequestHandler, body: bytes) -> None:
    """Answer with the content that was asked."""
    send(handler, completion(json.loads(body)["messages"][-1]["content"]))


def asked_of(client: ChatClient, name: str, times: int) -> list[str]:
    """Ask in the name of a caller; returns the answers that belong to another."""
    asks = [f"{name}-{i}" for i in range(times)]
    got = [client.complete([{"role": "user", "content": ask}]).text for ask in asks]
    return [answer for answer, ask in zip(got, asks, strict=True) if answer != ask]


def test_more_threads_than_a_pool_has_by_default_share_a_client() -> None:
    with served(echo) as url, ChatClient(url, "m") as client, ThreadPoolExecutor(128) as pool:
        wrong = list(pool.map(lambda i: asked_of(client, f"thread{i}", 3), range(128)))
    assert wrong == [[]] * 128


def test_a_client_lives_over_several_loops_and_inside_a_running_one() -> None:
    async def ask(client: ChatClient) -> str:
        both = await asyncio.gather(client.acomplete(ASK), client.acomplete(ASK))
        return both[0].text + client.complete(ASK).text + both[1].text

    with served(echo) as url, ChatClient(url, "m") as client:
        answers = [asyncio.run(ask(client)) for _ in range(3)]
    assert answers == ["hellohellohello"] * 3


def test_cancelling_ends_the_request() -> None:
    started = threading.Event()
    cancelled = threading.Event()

    async def hang(_: httpx.Request) -> httpx.Response:
        started.set()
        try:
            await asyncio.sleep(60)
        except asyncio.CancelledError:
            cancelled.set()
            raise
        raise AssertionError

    async def run(client: ChatClient) -> None:
        task = asyncio.create_task(client.acomplete(ASK))
        await asyncio.to_thread(started.wait)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task

    with ChatClient("http://h.test", "m", transport=httpx.MockTransport(hang)) as client:
        asyncio.run(run(client))
        assert cancelled.wait(5)


def _child(client: ChatClient, name: str, wrong: Any) -> None:
    wrong.put((name, asked_of(client, name, 40)))


@pytest.mark.filterwarnings("ignore:This process .* is multi-threaded:DeprecationWarning")
def test_forked_children_get_their_own_answers() -> None:
    fork = multiprocessing.get_context("fork")
    wrong = fork.Queue()
    with served(echo) as url, ChatClient(url, "m") as client:
        assert asked_of(client, "parent", 3) == []
        children = [
            fork.Process(target=_child, args=(client, f"child{i}", wrong)) for i in range(4)
        ]
        for child in children:
            child.start()
        assert asked_of(client, "parent", 40) == []
        found = dict(wrong.get(timeout=60) for _ in children)
        for child in children:
            child.join()
    assert found == {f"child{i}": [] for i in range(4)}


def test_a_used_client_can_be_copied_and_shipped() -> None:
    with served(echo) as url, ChatClient(url, "m", requests_per_minute=6000) as client:
        client.complete(ASK)
        for again in (
            copy.deepcopy(client),
            pickle.loads(pickle.dumps(client)),
            pickle.loads(cloudpickle.dumps(client)),
        ):
            with again:
                assert again.complete(ASK).text == "hello"


@pytest.mark.parametrize("no_proxy", ["", "localhost"])
def test_loopback_never_goes_through_a_proxy(
    no_proxy: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("HTTP_PROXY", "http_proxy", "ALL_PROXY", "all_proxy"):
        monkeypatch.setenv(name, "http://127.0.0.1:9")
    monkeypatch.setenv("NO_PROXY", no_proxy)
    with served(echo) as url, ChatClient(url, "m", retries=0) as client:
        assert client.complete(ASK).text == "hello"


def test_a_certificate_file_that_does_not_exist_is_an_error() -> None:
    with pytest.raises(FileNotFoundError, match="`verify`"):
        ChatClient("https://h.test", "m", verify="/no/such/file")


# --- requests a minute ---


def test_turns_stand_apart_and_a_wait_too_long_takes_none(tmp_path: Path) -> None:
    path = tmp_path / "rates.sqlite"
    waits = [take_turn(path, "a", 10.0, 100.0) for _ in range(3)]
    assert waits == pytest.approx([0, 10, 20], abs=0.5)
    assert take_turn(path, "a", 10.0, 25.0) is None
    assert take_turn(path, "a", 10.0, 100.0) == pytest.approx(30, abs=0.5)
    assert take_turn(path, "b", 10.0, 100.0) == 0


def test_requests_a_minute_are_kept_by_processes_together(tmp_path: Path) -> None:
    program = (
        "import sys, pathlib; from livestream_env.rates import take_turn;"
        "print([take_turn(pathlib.Path(sys.argv[1]), 'm', 100.0, 1e4) for _ in range(10)])"
    )
    command = [sys.executable, "-c", program, str(tmp_path / "rates.sqlite")]
    running = [subprocess.Popen(command, stdout=subprocess.PIPE, text=True) for _ in range(2)]
    waits = sorted(wait for one in running for wait in json.loads(one.communicate()[0]))
    assert waits == pytest.approx([100.0 * i for i in range(20)], abs=50)


def test_a_client_waits_for_its_turn() -> None:
    gateway = Gateway(FINE)
    with gateway.client(requests_per_minute=300) as client:  # one each 0.2 s
        start = time.monotonic()
        for _ in range(3):
            client.complete(ASK)
        assert 0.38 <= time.monotonic() - start < 3
    with gateway.client(requests_per_minute=0.5, total_timeout_s=2) as client:
        client.complete([{"role": "user", "content": "the first turn is free"}])
        with pytest.raises(ChatTimeout, match=r"requests_per_minute=0\.5"):
            client.complete(ASK)


@pytest.mark.parametrize("name", ["timeout_s", "total_timeout_s", "requests_per_minute"])
@pytest.mark.parametrize("value", [0, -1, float("nan"), float("inf")])
def test_limits_are_above_zero(name: str, value: float) -> None:
    with pytest.raises(ValueError, match=f"`{name}`"):
        Gateway(FINE).client(**{name: value})


# --- ways of asking for JSON ---


def only(mode: str | None) -> Gateway:
    """Make a gateway that takes one way of asking for JSON, or none."""

    def answer(body: dict[str, Any]) -> httpx.Response:
        asked = body.get("response_format", {}).get("type")
        if asked is not None and asked != mode:
            return error(400, "invalid_request_error", f"{asked} is not supported")
        return completion('{"ok": true}')

    return Gateway(answer)


@pytest.mark.parametrize(
    ("mode", "probes"), [("json_schema", 1), ("json_object", 2), (None, 2)], ids=str
)
def test_the_way_of_asking_for_json_is_found_once(mode: str | None, probes: int) -> None:
    gateway = only(mode)
    with gateway.client() as client, ThreadPoolExecutor(8) as pool:
        found = set(pool.map(lambda _: client.json_mode(), range(8)))
        assert asyncio.run(client.ajson_mode()) == (mode or "text")
    assert found == {mode or "text"}
    assert len(gateway.requests) == probes


def test_a_response_format_that_is_ignored_is_not_relied_on() -> None:
    with Gateway(completion("Sure! What else?")).client() as client:
        assert client.json_mode() == "text"


def test_a_probe_that_fails_is_tried_again_later() -> None:
    gateway = Gateway(error(401), completion('{"ok": true}'))
    with gateway.client() as client:
        with pytest.raises(ChatError):
            client.json_mode()
        assert client.json_mode() == "json_schema"


# --- files that processes share ---


def test_a_network_file_system_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    shared = tmp_path / "a b"
    mounts = tmp_path / "mounts"
    place = str(shared).replace(" ", r"\040")
    mounts.write_text(
        "/dev/vda / ext4 rw 0 0\n"
        f"server:/x {place} nfs4 rw 0 0\n"
        f"tmpfs {place}/local tmpfs rw 0 0\n",
        encoding="utf-8",
    )
    monkeypatch.setattr(databases, "MOUNTS", mounts)
    assert network_filesystem(shared / "x") == "nfs4"
    assert network_filesystem(shared / "local" / "x") is None
    assert network_filesystem(tmp_path / "a bc") is None
    refused = open_database(shared / "x.sqlite", schema="", application_id=1)
    with pytest.raises(SharedFileError, match=r"nfs4.*local disk"), refused:
        pass
    assert not shared.exists()
    monkeypatch.setattr(databases, "MOUNTS", tmp_path / "none")
    assert network_filesystem(shared) is None


def test_a_database_of_another_kind_is_left_alone(tmp_path: Path) -> None:
    path = tmp_path / "x.sqlite"
    with open_database(path, schema="CREATE TABLE a (b)", application_id=5):
        pass
    other = open_database(path, schema="CREATE TABLE c (d)", application_id=6)
    with pytest.raises(SharedFileError, match="another kind"), other:
        pass
    path.write_text("hello, this is no database at all" * 9, encoding="utf-8")
    with pytest.raises(SharedFileError), open_database(path, schema="", application_id=5):
        pass


def test_the_cache_folder_may_be_named(monkeypatch: pytest.MonkeyPatch) -> None:
    assert cache_folder() == Path(os.environ["LIVESTREAM_ENV_CACHE"])
    monkeypatch.delenv("LIVESTREAM_ENV_CACHE")
    monkeypatch.setenv("XDG_CACHE_HOME", "/x")
    assert cache_folder() == Path("/x/livestream-env")
