"""What drivers of many episodes cost over a bare loop of `rollout`, and what they hold.

Run: python benchmarks/rollout.py [loop] [ray] [http], by default all three.
"""

from __future__ import annotations

import asyncio
import contextlib
import gc
import hashlib
import statistics
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import psutil
from remote import PORT, URL, served

import livestream_env as le
from livestream_env.env import transcript
from livestream_env.room_files import save_room
from livestream_env.types import Action, Message, Observation, ToolSpec

EPISODES, REPEATS, AT_ONCE, WAVES = 400, 9, 1000, 3
THINKS_S = 0.05


def room_env(**options: Any) -> le.LiveRoomEnv:
    """Return an environment of one bundled room, without a rubric."""
    return le.LiveRoomEnv("snacks", embedder="lexical", rubric=None, **options)


# --- in one process --------------------------------------------------------------------------


def bare(env: le.LiveRoomEnv, agent: Any) -> None:
    """Play the episodes in a loop."""
    for seed in range(EPISODES):
        le.rollout(env, agent, seed=seed)


def in_threads(workers: int) -> Callable[[le.LiveRoomEnv, Any], None]:
    """Return what plays them in threads."""

    def play(env: le.LiveRoomEnv, agent: Any) -> None:
        for _ in le.rollouts(env.another, agent, range(EPISODES), max_workers=workers):
            pass

    return play


def in_loop(env: le.LiveRoomEnv, agent: Any) -> None:
    """Play them in one event loop."""

    async def play() -> None:
        async for _ in le.arollouts(env.another, agent, range(EPISODES), concurrency=64):
            pass

    asyncio.run(play())


def cpu_s(play: Callable[[le.LiveRoomEnv, Any], None], env: le.LiveRoomEnv, agent: Any) -> float:
    """Return the CPU seconds of a run."""
    gc.collect()
    start = time.process_time()
    play(env, agent)
    return time.process_time() - start


def one_process() -> None:
    """Print the CPU of each driver over that of the bare loop, for two agents."""
    drivers = {
        "threads, 1": in_threads(1),
        "threads, 4": in_threads(4),
        "threads, 16": in_threads(16),
        "async, 64": in_loop,
    }
    env = room_env()
    assert env.rooms
    for name, agent in (("workflow", le.WorkflowAgent()), ("scripted", le.ScriptedAgent)):
        for play in (bare, *drivers.values()):
            cpu_s(play, env, agent)
        ratios: dict[str, list[float]] = {driver: [] for driver in drivers}
        costs = []
        for _ in range(REPEATS):
            for driver, play in drivers.items():
                own = cpu_s(bare, env, agent)
                costs.append(own)
                ratios[driver].append(cpu_s(play, env, agent) / own)
        print(f"{name}: bare loop {EPISODES / statistics.median(costs):.0f} episodes a CPU second")
        for driver, found in ratios.items():
            print(f"  {driver}: {statistics.median(found):.2f} x its CPU (budget 1.3)")


# --- on a cluster ----------------------------------------------------------------------------


class Thinking:
    """A host that takes a while for each message, at work or waiting."""

    def __init__(self, *, waits: bool) -> None:
        self.waits = waits

    def act(self, messages: Sequence[Message], tools: Sequence[ToolSpec]) -> Action:
        """Return the next message."""
        if self.waits:
            time.sleep(THINKS_S)
        else:
            start = time.thread_time()
            while time.thread_time() - start < THINKS_S:
                pass
        if messages[-1].role == "user":
            return Action.call("get_reply_rule", intent="物流")
        return Action.reply("好的")

    def start(self, observation: Observation, *, seed: Any) -> Thinking:
        """Return itself."""
        return self


def rate(agent: Thinking, workers: int, num_cpus: float, count: int) -> tuple[float, float]:
    """Return episodes a second of wall time, and how many were under way on average.

    The second tells idle workers from a busy machine.
    """
    env = room_env()
    options: dict[str, Any] = {"max_workers": workers, "num_cpus": num_cpus}
    for _ in le.ray_rollouts(env.another, agent, range(2 * workers), **options):
        pass
    start = time.perf_counter()
    under_way_s = 0.0
    for [played] in le.ray_rollouts(env.another, agent, range(count), **options):
        under_way_s += played.turns[-1].ended_s - played.turns[0].started_s
    took = time.perf_counter() - start
    return count / took, under_way_s / took


def on_ray() -> None:
    """Print how the rate grows with the workers."""
    import ray

    cores = psutil.cpu_count() or 1
    ray.init(num_cpus=cores, include_dashboard=False, object_store_memory=80 << 20)
    for what, agent, tries, num_cpus in (
        ("at work", Thinking(waits=False), (1, cores), 1.0),
        ("waiting", Thinking(waits=True), (1, 4), 0.25),
    ):
        found = [[rate(agent, workers, num_cpus, 40) for workers in tries] for _ in range(5)]
        grown = statistics.median(more[0] / one[0] for one, more in found)
        one = statistics.median(row[0][0] for row in found)
        under_way = statistics.median(row[1][1] for row in found)
        print(
            f"Ray, {what}: {one:.1f} episodes a second with 1 worker,"
            f" {grown:.2f} x with {tries[1]}, {under_way:.2f} of them busy"
            f" ({2 * THINKS_S * 1000:.0f} ms an episode)"
        )
    ray.shutdown()


# --- over HTTP -------------------------------------------------------------------------------


def digest(trajectory: le.Trajectory) -> bytes:
    """Return a digest of what an episode's transcript shows."""
    return hashlib.blake2b(transcript(trajectory).encode(), digest_size=16).digest()


async def wave(seeds: range) -> tuple[dict[int, bytes], int]:
    """Play the episodes at once in this loop; return their digests, and how many failed."""
    limits = {"total_timeout_s": 900.0, "timeout_s": 120.0}
    env = room_env(sandbox=URL, sandbox_options=limits)
    digests: dict[int, bytes] = {}
    failed = 0
    groups = le.arollouts(env.another, le.WorkflowAgent(), seeds, concurrency=len(seeds))
    async with contextlib.aclosing(groups):
        async for [played] in groups:
            assert played.seed is not None
            digests[played.seed] = digest(played)
            failed += played.status == "env_error"
    return digests, failed


def over_http() -> None:
    """Print what 1,000 episodes at once come to, several times over."""
    env, agent = room_env(), le.WorkflowAgent()
    with tempfile.TemporaryDirectory() as folder:
        rooms = Path(folder, "rooms")
        rooms.mkdir()
        save_room(le.load_room("snacks"), rooms / "snacks.json")
        command = ["-m", "livestream_env.cli", "serve", "--rooms", str(rooms)]
        with served([*command, "--port", str(PORT)], URL, folder) as server:
            for number in range(WAVES):
                seeds = range(number * AT_ONCE, (number + 1) * AT_ONCE)
                serial = {seed: digest(le.rollout(env, agent, seed=seed)) for seed in seeds}
                start, own = time.perf_counter(), time.process_time()
                digests, failed = asyncio.run(wave(seeds))
                took, cpu = time.perf_counter() - start, time.process_time() - own
                here = psutil.Process().memory_info().rss >> 20
                there = server.memory_info().rss >> 20
                differ = sum(digests.get(seed) != serial[seed] for seed in seeds)
                print(
                    f"{AT_ONCE} at once over HTTP, wave {number}: {len(digests)} ended, {failed}"
                    f" failed, {differ} unlike the serial run's; {took:.0f} s, {cpu:.0f} s of CPU"
                    f" here; {here} MB here, {there} MB on the server",
                    flush=True,
                )


def main() -> None:
    """Print what was asked for."""
    parts = {"loop": one_process, "ray": on_ray, "http": over_http}
    for name in sys.argv[1:] or parts:
        parts[name]()


if __name__ == "__main__":
    main()
