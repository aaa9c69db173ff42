"""The example with an RPC of one's own: what it prints, and what it does as a server."""

from __future__ import annotations

import importlib.util
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
from servers_for_tests import call, free_port, running, started

import livestream_env as le
from livestream_env.errors import SandboxError, SandboxTimeout, SandboxUnavailable
from livestream_env.sandbox import RemoteSandbox, Upstream, create_app
from livestream_env.sandbox.testing import sandbox_contract

FILE = Path(__file__).resolve().parents[1] / "examples" / "rpc_tools.py"


def printed(tmp_path: Path, hash_seed: str) -> str:
    run = subprocess.run(
        [sys.executable, "-W", "error", str(FILE)],
        cwd=tmp_path,
        env={"PYTHONUTF8": "1", "PYTHONHASHSEED": hash_seed},
        capture_output=True,
        encoding="utf-8",
        check=True,
    )
    assert run.stderr == ""
    return run.stdout


def test_the_rpc_example_prints_a_transcript_and_whose_failure_was_whose(tmp_path: Path) -> None:
    text = printed(tmp_path, "0")
    assert printed(tmp_path, "1") == text
    for part in (
        '"promoPriceCent":4990',
        "search_faq(",
        "! tool_error",
        "> 1号券后49.9元",
        "[replied]",
        "field='coupon_price', value=49.9, unit='yuan'",
        "seed 0: ok",
        "env_error tool `search_product_by_keyword` failed: ConnectionError",
    ):
        assert part in text


def test_the_rpc_example_is_short_and_says_how_to_run_it() -> None:
    source = FILE.read_text(encoding="utf-8")
    assert len(source.splitlines()) < 80
    assert "Run: python examples/rpc_tools.py" in source


# --- as a server -------------------------------------------------------------------------------

SEARCH = call("search_product_by_keyword", keyword="1号")
CALLS: Any = [
    ("search_product_by_keyword", {"keyword": "1号"}),
    ("get_reply_rule", {"intent": "价格咨询"}),
    ("search_faq", {"query": "满多少包邮"}),
]
SEED = 0
"""With it no service fails of itself."""


@pytest.fixture(scope="module")
def example() -> Any:
    """The example as a module."""
    spec = importlib.util.spec_from_file_location("rpc_tools", FILE)
    assert spec is not None
    assert spec.loader is not None
    sys.modules["rpc_tools"] = module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.fixture(scope="module")
def url(example: Any) -> Iterator[str]:
    with running(create_app(factory=example.make_sandbox)) as base:
        yield base


def opened(url: str, seed: int = SEED) -> RemoteSandbox:
    sandbox = RemoteSandbox(url, le.load_room("snacks"))
    sandbox.reset(seed=seed, comments=["c03"])
    return sandbox


@pytest.mark.row("R38")
@pytest.mark.parametrize("place", range(len(sandbox_contract(lambda _: None))))  # type: ignore[arg-type, return-value]
def test_the_example_behind_a_server_keeps_the_contract(place: int, url: str) -> None:
    sandbox_contract(lambda room: RemoteSandbox(url, room), calls=CALLS)[place]()


def test_the_command_serves_the_example(tmp_path: Path) -> None:
    port = free_port()
    command = ["-m", "livestream_env.cli", "serve", "--sandbox", "examples.rpc_tools:make_sandbox"]
    server = started([*command, "--port", str(port)], port, cwd=FILE.parents[1])
    try:
        with opened(f"http://127.0.0.1:{port}") as sandbox:
            assert "promoPriceCent" in sandbox.call(SEARCH).content
            assert sandbox.call(call("get_reply_rule", intent="多少钱")).error == "tool_error"
    finally:
        server.terminate()
        server.wait(20)


def test_a_slow_upstream_fails_typed_and_is_left_alone_until_it_answers_again(
    example: Any, url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    goods = Upstream("goods", at_once=2, queue_s=0.15, failures=4, rest_s=0.5)
    monkeypatch.setitem(example.SERVICES, "goods", goods)
    monkeypatch.setattr(example, "LATE_S", 60)

    def ask(_: int) -> SandboxError | None:
        with opened(url) as sandbox:
            try:
                sandbox.call(SEARCH)
            except SandboxError as error:
                return error
            return None

    with ThreadPoolExecutor(8) as pool:
        errors = list(pool.map(ask, range(8)))
    told = [str(error) for error in errors]
    assert {type(error) for error in errors} == {SandboxTimeout}
    assert sum("no place at upstream `goods`" in text for text in told) == 6
    assert sum("`search_product_by_keyword` failed: TimeoutError" in text for text in told) == 2
    assert not goods.is_resting
    assert [type(ask(0)) for _ in range(2)] == [SandboxTimeout] * 2
    assert isinstance(ask(0), SandboxUnavailable)
    monkeypatch.setattr(example, "LATE_S", 0.001)
    assert "left alone" in str(ask(0))
    latest = time.monotonic() + 20
    while ask(0) is not None:
        assert time.monotonic() < latest
        time.sleep(0.1)
    assert not goods.is_resting


def test_a_failure_of_the_upstream_marks_the_trajectory_and_is_no_result(
    example: Any, url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    resting = Upstream("goods", failures=1, rest_s=60)
    with pytest.raises(OSError), resting.request():
        raise OSError
    monkeypatch.setitem(example.SERVICES, "goods", resting)
    env = le.LiveRoomEnv("snacks", comment="c03", sandbox=url, on_env_error="truncate")
    env.reset(seed=SEED)
    env.step(example.ACTIONS[0])
    trajectory = env.trajectory
    assert (trajectory.status, trajectory.reward) == (le.Status.ENV_ERROR, None)
    assert trajectory.faults[-1].detail.startswith("SandboxUnavailable: upstream `goods`")
    assert not any(message.role == "tool" for message in trajectory.messages)
    env.close()


def test_the_rate_of_the_upstream_is_kept_under_32_threads_of_clients(
    example: Any, url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """At 80 a second, request k begins no sooner than k/80 s after the start."""
    goods = Upstream("goods", at_once=32, per_s=80, queue_s=30)
    monkeypatch.setitem(example.SERVICES, "goods", goods)
    began_s: list[float] = []
    original, lock = example.random.Random, threading.Lock()

    def noted(key: str) -> Any:
        with lock:
            began_s.append(time.monotonic())
        return original(key)

    monkeypatch.setattr(example.random, "Random", noted)
    monkeypatch.setattr(example, "LATE_S", 0)

    def ask(_: int) -> str:
        with opened(url) as sandbox:
            return sandbox.call(SEARCH).content

    start_s = time.monotonic()
    with ThreadPoolExecutor(32) as pool:
        assert len(set(pool.map(ask, range(64)))) == 1
    mine = sorted(began_s)
    assert len(mine) == 64
    for k, began in enumerate(mine):
        assert began - start_s > k / 80 - 0.001
