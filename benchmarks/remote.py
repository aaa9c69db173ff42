"""What the sandbox costs over HTTP, beside a bare httpx POST to a bare Starlette echo.

Run: python benchmarks/remote.py
"""

from __future__ import annotations

import asyncio
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import httpx
import psutil

from livestream_env.room_files import load_room, save_room
from livestream_env.sandbox.remote import AsyncRemoteSandbox, RemoteSandbox
from livestream_env.types import ToolCall, freeze

PORT, ECHO_PORT = 18771, 18772
URL, ECHO = f"http://127.0.0.1:{PORT}", f"http://127.0.0.1:{ECHO_PORT}"
CALLS, REPEATS, THREADS, ROOMS = 1000, 7, 64, 1000
BODY = b'{"name":"search_faq","arguments":{"query":"' + b"x" * 500 + b'"}}'
ECHO_APP = """
from starlette.applications import Starlette
from starlette.responses import Response
from starlette.routing import Route

async def echo(request):
    return Response(await request.body(), media_type="application/json")

app = Starlette(routes=[Route("/echo", echo, methods=["POST"]), Route("/health", echo)])
"""
QUESTIONS = ("包邮吗", "什么时候发货", "可以退货吗", "保质期多久")


@contextmanager
def served(command: list[str], url: str, folder: str) -> Iterator[psutil.Process]:
    """Run a server until the block ends."""
    quiet = {"stdout": subprocess.DEVNULL, "stderr": subprocess.DEVNULL}
    process = subprocess.Popen([sys.executable, *command], cwd=folder, **quiet)
    try:
        for _ in range(300):
            try:
                httpx.get(f"{url}/health", trust_env=False).raise_for_status()
                break
            except httpx.HTTPError:
                time.sleep(0.1)
        yield psutil.Process(process.pid)
    finally:
        process.terminate()
        process.wait(20)


def cpu_us(run: Callable[[], object], server: psutil.Process, calls: int = CALLS) -> float:
    """Return CPU microseconds a call, of this process and the server together."""
    before, own = server.cpu_times(), time.process_time()
    for _ in range(calls):
        run()
    after, mine = server.cpu_times(), time.process_time() - own
    theirs = after.user + after.system - before.user - before.system
    return (mine + theirs) / calls * 1e6


def opened() -> RemoteSandbox:
    """Open an episode."""
    sandbox = RemoteSandbox(URL, load_room("snacks"), embedder="lexical")
    sandbox.reset(seed=1, comments=["c03"])
    return sandbox


def caller(sandbox: RemoteSandbox) -> Callable[[], object]:
    """Return what runs one warm call."""
    calls = [ToolCall("a", "search_faq", freeze({"query": q})) for q in QUESTIONS]
    numbers = iter(range(10**9))
    return lambda: sandbox.call(calls[next(numbers) % 4])


def poster(client: httpx.Client) -> Callable[[], object]:
    """Return what posts once to the echo."""
    headers = {"Content-Type": "application/json"}
    return lambda: client.post(f"{ECHO}/echo", content=BODY, headers=headers)


def one_thread(server: psutil.Process, echo: psutil.Process) -> None:
    """Print the CPU of a warm call over that of a bare POST."""
    with opened() as sandbox, httpx.Client(trust_env=False) as client:
        call, post = caller(sandbox), poster(client)
        cpu_us(call, server, 100)
        cpu_us(post, echo, 100)
        pairs = [(cpu_us(post, echo), cpu_us(call, server)) for _ in range(REPEATS)]
    bare, ours = min(p[0] for p in pairs), min(p[1] for p in pairs)
    ratio = statistics.median(b / a for a, b in pairs)
    print(
        f"CPU of a warm call: {ours:.0f} us, of a bare POST {bare:.0f} us: {ratio:.2f} x (budget 2)"
    )


def p99_ms(runs: list[Callable[[], object]], calls: int = 60) -> float:
    """Return the 99th percentile of the time to an answer, one thread for each of `runs`."""
    took: list[float] = []

    def work(run: Callable[[], object]) -> None:
        for _ in range(calls):
            start = time.perf_counter()
            run()
            took.append(time.perf_counter() - start)

    threads = [threading.Thread(target=work, args=(run,)) for run in runs]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return statistics.quantiles(took, n=100)[98] * 1000


def many_threads() -> None:
    """Print the p99 of 64 threads over that of bare POSTs."""
    sandboxes = [opened() for _ in range(THREADS)]
    limits = httpx.Limits(max_connections=1024, keepalive_expiry=2.0)
    with httpx.Client(trust_env=False, limits=limits) as client:
        calls, posts = [caller(one) for one in sandboxes], [poster(client)] * THREADS
        p99_ms(calls, 5)
        p99_ms(posts, 5)
        pairs = [(p99_ms(posts), p99_ms(calls)) for _ in range(REPEATS)]
    bare, ours = (statistics.median(side) for side in zip(*pairs, strict=True))
    ratio = statistics.median(b / a for a, b in pairs)
    print(f"p99 of {THREADS} threads: {ours:.0f} ms, bare {bare:.0f} ms: {ratio:.2f} x (budget 3)")
    for sandbox in sandboxes:
        sandbox.close()


async def many_rooms() -> None:
    """Open 1,000 episodes at once in one async process, and run four calls in each."""
    room = load_room("snacks")
    rooms = [AsyncRemoteSandbox(URL, room, embedder="lexical") for _ in range(ROOMS)]
    start, own = time.perf_counter(), time.process_time()
    await asyncio.gather(*(one.reset(seed=i, comments=["c03"]) for i, one in enumerate(rooms)))
    took = time.perf_counter() - start
    listing = httpx.get(f"{URL}/metrics", trust_env=False).text
    held = next(
        line for line in listing.split("\n") if line.startswith("livestream_env_sessions_o")
    )
    start = time.perf_counter()
    for i, question in enumerate(QUESTIONS):
        call = ToolCall(str(i), "search_faq", freeze({"query": question}))
        results = await asyncio.gather(*(one.call(call) for one in rooms))
        assert all(result.error is None for result in results)
    calls_s = time.perf_counter() - start
    await asyncio.gather(*(one.close() for one in rooms))
    size = psutil.Process().memory_info().rss / 2**20
    print(
        f"{ROOMS} rooms open at once ({held.split()[-1]} on the server): reset {took:.1f} s, four"
        f" calls each {calls_s:.1f} s, {time.process_time() - own:.1f} s of CPU here, {size:.0f} MB"
    )


def main() -> None:
    """Print the table."""
    with tempfile.TemporaryDirectory() as folder:
        rooms = Path(folder, "rooms")
        rooms.mkdir()
        save_room(load_room("snacks"), rooms / "snacks.json")
        Path(folder, "echo_app.py").write_text(ECHO_APP, encoding="utf-8")
        ours = ["-m", "livestream_env.cli", "serve", "--rooms", str(rooms), "--port", str(PORT)]
        bare = ["-m", "uvicorn", "echo_app:app", "--port", str(ECHO_PORT), "--no-access-log"]
        with served(ours, URL, folder) as server, served(bare, ECHO, folder) as echo:
            one_thread(server, echo)
            many_threads()
            asyncio.run(many_rooms())


if __name__ == "__main__":
    main()
