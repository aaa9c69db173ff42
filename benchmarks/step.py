"""CPU time of a step, as a ratio to the bare tool functions in the same run; memory and imports.

Run `python benchmarks/step.py`; DESIGN: at most 2.3 x the floor at 320 turns and 3.3 x at 5 turns
with the memory of pure tools on; a search at turn 300 at most 1.1 x one at turn 20; at most 10 KB
a live room; imports at most 1.2 x and 2 x that of gymnasium and pydantic; first reset under 3 s.
"""

from __future__ import annotations

import gc
import os
import statistics
import subprocess
import sys
import time
import tracemalloc

from shop import SEASONS, rule, script, search, shop_room

from livestream_env.env import LiveRoomEnv

REPEATS = 7


def floor(turns: int, episodes: int) -> float:
    """Return CPU microseconds a step of the two functions called in a bare loop."""
    start = time.process_time()
    for _ in range(episodes):
        for i in range(turns - 2):
            search(SEASONS[i % 4])
        rule("价格")
    return (time.process_time() - start) / episodes / turns * 1e6


def ours(env: LiveRoomEnv, turns: int, episodes: int) -> float:
    """Return CPU microseconds a step of whole episodes, seeded reset and trajectory included."""
    actions = script(turns)
    start = time.process_time()
    for seed in range(episodes):
        env.reset(seed=seed)
        for action in actions:
            _, _, terminated, truncated, _ = env.step(action)
        assert terminated
        assert not truncated
        assert len(env.episode.turns) == turns
    return (time.process_time() - start) / episodes / turns * 1e6


def environment(memory: bool) -> LiveRoomEnv:
    """Make the environment of the shop."""
    return LiveRoomEnv(
        shop_room(),
        max_turns=1000,
        max_same_tool=1000,
        embedder="lexical",
        rubric=None,
        sandbox_options={"memory": memory},
    )


def steps() -> None:
    """Print the cost of a step at 5 and 320 turns."""
    print(f"{'turns':>6} {'memory':>7} {'floor us':>9} {'ours us':>8} {'ratio':>6} {'budget':>7}")
    for turns, episodes, budget in ((5, 2000, 3.3), (320, 30, 2.3)):
        for memory in (True, False):
            env = environment(memory)
            ours(env, turns, 5)
            pairs = [(floor(turns, episodes), ours(env, turns, episodes)) for _ in range(REPEATS)]
            low, own = min(p[0] for p in pairs), min(p[1] for p in pairs)
            ratio = statistics.median(b / a for a, b in pairs)
            limit = f"{budget}" if memory else "-"
            shown = "on" if memory else "off"
            print(f"{turns:>6} {shown:>7} {low:>9.1f} {own:>8.1f} {ratio:>6.2f} {limit:>7}")


def flatness() -> None:
    """Print the cost of a search at turn 300 over one at turn 20 of the same episode."""
    env = environment(memory=True)
    actions = script(322)
    early: list[float] = []
    late: list[float] = []
    for seed in range(40):
        env.reset(seed=seed)
        times: list[float] = []
        for action in actions[:320]:
            start = time.perf_counter()
            env.step(action)
            times.append(time.perf_counter() - start)
        early.append(statistics.median(times[10:30]))
        late.append(statistics.median(times[290:310]))
    ratio = statistics.median(late) / statistics.median(early)
    print(f"a search at turn 300 over one at turn 20: {ratio:.2f} (budget 1.1)")


def memory() -> None:
    """Print the size of a live room beyond the one shared catalogue."""
    room = shop_room()
    warm = LiveRoomEnv(room, embedder="lexical")
    warm.reset(seed=0)
    count = 2000
    gc.collect()
    tracemalloc.start()
    envs = [LiveRoomEnv(room, embedder="lexical") for _ in range(count)]
    for seed, env in enumerate(envs):
        env.reset(seed=seed)
        for action in script(5)[:4]:
            env.step(action)
    gc.collect()
    size = tracemalloc.get_traced_memory()[0] / count / 1024
    tracemalloc.stop()
    print(f"a live room after four steps: {size:.1f} KB (budget 10)")


def cpu_of(code: str) -> float:
    """Return the CPU seconds of a Python process that runs `code`, least of 7."""
    times: list[float] = []
    for _ in range(REPEATS):
        before = os.times()
        subprocess.run([sys.executable, "-c", code], check=True)
        after = os.times()
        times.append(after.children_user + after.children_system)
        times[-1] -= before.children_user + before.children_system
    return min(times)


def imports() -> None:
    """Print import times over that of gymnasium and pydantic, and the first reset."""
    bare = cpu_of("import gymnasium, pydantic")
    light = cpu_of("import livestream_env")
    names = cpu_of("from livestream_env import Room, Trajectory, Action, rollout")
    print(f"import livestream_env: {light / bare:.2f} x gymnasium + pydantic (budget 1.2)")
    print(f"import Room, Trajectory, Action, rollout: {names / bare:.2f} x (budget 2)")
    code = (
        "import time, gymnasium as gym, livestream_env; t = time.perf_counter();"
        " gym.make('LiveRoom-v0').reset(seed=0); print(f'{time.perf_counter() - t:.2f}')"
    )
    took = subprocess.run([sys.executable, "-c", code], check=True, capture_output=True, text=True)
    print(f"gym.make and first reset of a bundled room: {took.stdout.strip()} s (budget 3)")


if __name__ == "__main__":
    steps()
    flatness()
    memory()
    imports()
