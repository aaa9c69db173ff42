"""Whether episodes outlive replicas without affinity, and killed servers, and at how many requests.

Servers are processes of `livestream-env serve`; every transcript is compared with the local one.

Run: python benchmarks/replicas.py [--episodes 1000]
"""

from __future__ import annotations

import argparse
import contextlib
import os
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any, NamedTuple

import httpx
import uvicorn

import livestream_env as le
from livestream_env.room_files import save_room

OPTIONS: dict[str, Any] = {"embedder": "lexical", "rubric": None, "max_turns": 6}
ACTIONS = (
    le.Action.call("move_product", link_no=2, position=1),
    le.Action.call("search_faq", query="包邮吗"),
    le.Action.call("move_product", link_no=3, position=2),
    le.Action.call("get_reply_rule", intent="发货物流"),
    le.Action.reply("满39元包邮"),
)
THREADS = 8


class Figures(NamedTuple):
    """What came of a run."""

    episodes: int
    lost: int
    """Episodes that ended `env_error`."""
    wrong: int
    """Episodes whose transcript is not the local one."""
    requests: float
    """Requests to `/calls/` per call that was made; 0 where nobody counted."""
    causes: tuple[str, ...]
    """Why episodes were lost."""


class Mover:
    """Writes and looks up by turns, and replies."""

    def act(self, messages: Sequence[le.Message], tools: Sequence[le.ToolSpec]) -> le.Action:
        """Return the next action."""
        return ACTIONS[sum(message.role == "assistant" for message in messages)]


class Proxy:
    """Gives each request to the next server, on a connection of its own."""

    def __init__(self, *targets: str) -> None:
        self.targets, self.calls, self._next = targets, 0, 0
        limits = httpx.Limits(max_keepalive_connections=0)
        self._http = httpx.AsyncClient(trust_env=False, limits=limits, timeout=60)

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        """Forward one request."""
        body, more = b"", True
        while more:
            message = await receive()
            body, more = body + message.get("body", b""), message.get("more_body", False)
        target = self.targets[self._next % len(self.targets)]
        self._next += 1
        self.calls += "/calls/" in scope["path"]
        kept = [(k, v) for k, v in scope["headers"] if k not in (b"host", b"connection")]
        url = target + scope["path"]
        answer = await self._http.request(scope["method"], url, content=body, headers=kept)
        await send(
            {
                "type": "http.response.start",
                "status": answer.status_code,
                "headers": [(k, v) for k, v in answer.headers.raw if k.lower() != b"connection"],
            }
        )
        await send({"type": "http.response.body", "body": answer.content})


def free_port() -> int:
    """Return a port that nothing listens on."""
    with socket.socket() as one:
        one.bind(("127.0.0.1", 0))
        return int(one.getsockname()[1])


READY = (
    "import os, sys, uvicorn, livestream_env.sandbox.server, livestream_env.cli as cli;"
    "os.read(0, 1); sys.exit(cli.main(sys.argv[1:]))"
)
"""A server that has all loaded and starts on a line."""


def start(
    folder: Path, port: int, *options: str, is_ready: bool = False
) -> subprocess.Popen[bytes]:
    """Start a server, or make one ready to start."""
    how = ["-c", READY] if is_ready else ["-m", "livestream_env.cli"]
    command = [sys.executable, *how, "serve", "--rooms", str(folder), "--port", str(port)]
    quiet: dict[str, Any] = {"stdout": subprocess.DEVNULL, "stderr": subprocess.DEVNULL}
    return subprocess.Popen([*command, *options], stdin=subprocess.PIPE, **quiet)


def wait_for(url: str) -> None:
    """Wait until a server answers."""
    for _ in range(600):
        with contextlib.suppress(httpx.HTTPError):
            httpx.get(f"{url}/health", trust_env=False).raise_for_status()
            return
        time.sleep(0.1)
    raise TimeoutError(url)


@contextmanager
def serving(folder: Path, *options: str, count: int = 1) -> Iterator[list[str]]:
    """Run servers until the block ends; yields their URLs."""
    ports = [free_port() for _ in range(count)]
    processes = [start(folder, port, *options) for port in ports]
    urls = [f"http://127.0.0.1:{port}" for port in ports]
    try:
        for url in urls:
            wait_for(url)
        yield urls
    finally:
        for process in processes:
            process.terminate()
        for process in processes:
            process.communicate(timeout=60)


@contextmanager
def proxied(proxy: Proxy) -> Iterator[str]:
    """Serve a proxy in a thread."""
    port = free_port()
    config = uvicorn.Config(proxy, port=port, log_config=None, lifespan="off", ws="none")
    server = uvicorn.Server(config)
    thread = threading.Thread(target=server.run, daemon=True)
    thread.start()
    wait_for(f"http://127.0.0.1:{port}")
    try:
        yield f"http://127.0.0.1:{port}"
    finally:
        server.should_exit = True
        thread.join(20)


def transcript(trajectory: le.Trajectory) -> Any:
    """Return what must not differ from the local run."""
    return [message.to_openai() for message in trajectory.messages], trajectory.state


def played(url: str, episodes: int, threads: int, agent: Any) -> list[le.Trajectory]:
    """Play episodes in threads, each with an environment of its own."""

    def play(first: int) -> list[le.Trajectory]:
        env = le.LiveRoomEnv("snacks", sandbox=url, **OPTIONS)
        found = [le.rollout(env, agent, seed=seed) for seed in range(first, episodes, threads)]
        env.close()
        return found

    with ThreadPoolExecutor(threads) as pool:
        return [one for found in pool.map(play, range(threads)) for one in found]


def figures(found: Sequence[le.Trajectory], agent: Any, calls: int = 0) -> Figures:
    """Compare episodes with the local ones."""
    plain = le.LiveRoomEnv("snacks", **OPTIONS)
    lost = [one for one in found if one.status != le.Status.OK]
    wrong = 0
    for one in found:
        if one.status == le.Status.OK:
            wrong += transcript(one) != transcript(le.rollout(plain, agent, seed=one.seed))
    made = sum(len(turn.results) for one in found for turn in one.turns)
    causes = tuple(one.faults[-1].detail for one in lost)
    return Figures(len(found), len(lost), wrong, calls / max(made, 1), causes)


def without_affinity(episodes: int, *, rooms: str, workers: bool) -> Figures:
    """Play through a proxy before four replicas, or before one server of four workers.

    `rooms` is `folder`, or `client` where only the client has the room.
    """
    with tempfile.TemporaryDirectory() as name, ExitStack() as stack:
        folder = Path(name)
        if rooms == "folder":
            save_room(le.load_room("snacks"), folder / "snacks.json")
        servers = serving(folder, "--workers", "4") if workers else serving(folder, count=4)
        proxy = Proxy(*stack.enter_context(servers))
        found = played(stack.enter_context(proxied(proxy)), episodes, THREADS, Mover())
        return figures(found, Mover(), proxy.calls)


class Paced(Mover):
    """A mover that thinks, so that rollouts last."""

    def act(self, messages: Sequence[le.Message], tools: Sequence[le.ToolSpec]) -> le.Action:
        """Return the next action after a while."""
        time.sleep(0.2)
        return super().act(messages, tools)


def killed(rollouts: int, *, episodes: int, down_s: float = 4.0) -> Figures:
    """Kill the server with `kill -9` in the middle of so many rollouts at a time, and start it
    again some seconds later."""
    with tempfile.TemporaryDirectory() as name, ThreadPoolExecutor(1) as pool:
        folder, port = Path(name), free_port()
        save_room(le.load_room("snacks"), folder / "snacks.json")
        first, second = start(folder, port), start(folder, port, is_ready=True)
        url = f"http://127.0.0.1:{port}"
        try:
            wait_for(url)
            playing = pool.submit(played, url, episodes, rollouts, Paced())
            time.sleep(1.5)
            os.kill(first.pid, signal.SIGKILL)
            killed_s = time.monotonic()
            time.sleep(down_s)
            assert second.stdin is not None
            second.stdin.write(b"\n")
            second.stdin.flush()
            wait_for(url)
            print(f"the server was down for {time.monotonic() - killed_s:.1f} s", flush=True)
            return figures(playing.result(), Mover())
        finally:
            for process in (first, second):
                process.kill()
                process.communicate()


def main(argv: Sequence[str] | None = None) -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--episodes", type=int, default=1000)
    episodes = parser.parse_args(argv).episodes
    for workers in (False, True):
        for rooms in ("folder", "client"):
            found = without_affinity(episodes, rooms=rooms, workers=workers)
            what = "one server of 4 workers" if workers else "4 replicas"
            print(f"{what}, rooms of the {rooms}: {_told(found)}", flush=True)
    found = killed(64, episodes=256)
    print(f"kill -9 in the middle of 64 rollouts: {_told(found, 0)}")


def _told(found: Figures, digits: int = 3) -> str:
    text = f"{found.episodes} episodes, {found.lost} lost, {found.wrong} wrong"
    counted = f", {found.requests:.{digits}f} requests a call" if digits else ""
    return "\n  ".join((text + counted, *found.causes))


if __name__ == "__main__":
    main()
