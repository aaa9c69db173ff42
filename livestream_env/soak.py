"""A soak: thousands of episodes on a sandbox that fails, and whether anything came out wrong.

Every episode has its twin, played in this process where nothing fails. Whatever went wrong below,
an episode must end as its twin did, or be told as failed and agree with it until then. Rooms differ
in a secret that all their texts hold, and the agent's writes show in the state how often each ran.
"""

from __future__ import annotations

import math
import os
import threading
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from functools import cache
from pathlib import Path
from typing import Any

from livestream_env.sandbox import Faults, FaultySandbox
from livestream_env.sandbox.faults import CONTENT, FAILING
from livestream_env.sandbox.faulty_wire import FaultyWire
from livestream_env.soak_server import SpawnedServer, resident_bytes
from livestream_env.soak_world import (
    CALLS,
    LIMITS,
    MakeSandbox,
    is_foreign,
    local_sandbox,
    play_one,
    soak_rooms,
    task_of,
)
from livestream_env.stability import Stability, stability_report
from livestream_env.trajectory_log import json_text
from livestream_env.types import State, Status, Trajectory

RETRIES = 1
"""Of planned faults: few, so that some episodes fail."""
FLAT = 0.05
"""By how much the memory of the last quarter may exceed that of the third."""
LOOK_S = 0.1
MEMORY_S = 0.5
FEWEST_SAMPLES = 40
SIGMAS = 3.0
_LOST_ON_THE_WIRE = ("error", "drop_before", "drop_after", "bad_json", "cut_json", "reordered")


@dataclass(frozen=True, slots=True, kw_only=True)
class Soak:
    """What is played, and how much goes wrong."""

    episodes: int = 10_000
    workers: int = 64
    faults: float = 0.05
    """Share of attempts with a fault of transport, of results with one of content, and of
    requests that the wire breaks."""
    seed: int = 0
    hung_s: float = 300.0
    """Seconds after which an episode counts as hung."""

    @property
    def plan(self) -> Faults:
        """The faults of the sandbox."""
        each = self.faults / len(CONTENT)
        plan = Faults.evenly(self.faults, seed=self.seed)
        return replace(plan, stale_stock=each, changed_price=each, empty_hits=each)


@dataclass(frozen=True, slots=True)
class Check:
    """One thing that must hold."""

    name: str
    figure: float | None
    """What was found; `None` where the run was too short to tell."""
    limit: float
    detail: str = ""

    @property
    def holds(self) -> bool:
        """Whether the figure is within the limit, or is not known."""
        return self.figure is None or self.figure <= self.limit


@dataclass(frozen=True, slots=True)
class SoakReport:
    """What came out of a soak."""

    checks: tuple[Check, ...]
    stability: Stability
    figures: dict[str, Any]
    """Counts of all kinds, JSON-shaped."""

    @property
    def holds(self) -> bool:
        """Whether every check holds."""
        return all(check.holds for check in self.checks)


# --- the run ---------------------------------------------------------------------------------


@dataclass(slots=True)
class _Running:
    """A thread and the episode that it plays."""

    thread: threading.Thread | None = None
    seed: int | None = None
    started_s: float = 0.0
    is_hung: bool = False


@dataclass(slots=True)
class Memory:
    """What a process held over the run: (second, bytes)."""

    samples: list[tuple[float, int]] = field(default_factory=list)

    def look(self, pid: int | None, at_s: float) -> None:
        """Take a sample."""
        held = None if pid is None else resident_bytes(pid)
        if held is not None:
            self.samples.append((at_s, held))

    @property
    def quarters(self) -> list[int]:
        """The most that was held in each quarter of the time; empty of few samples."""
        if len(self.samples) < FEWEST_SAMPLES:
            return []
        end_s = self.samples[-1][0]
        most = [0] * 4
        for at_s, held in self.samples:
            quarter = min(3, int(4 * at_s / end_s))
            most[quarter] = max(most[quarter], held)
        return most

    @property
    def growth(self) -> float | None:
        """That of the last quarter over that of the third, less 1; `None` of few samples."""
        most = self.quarters
        return most[3] / most[2] - 1 if most and most[2] else None


class SoakRun:
    """Plays a soak, then reports it.

    Args:
        soak: what is played.
        make: makes the sandbox of a room; planned faults are put around it.
        file: where the trajectories go, one a line.
        wire: the proxy that sandboxes talk through.
        server: the server behind it, where it is one of ours.
    """

    def __init__(
        self,
        soak: Soak,
        make: MakeSandbox,
        file: Path,
        *,
        wire: FaultyWire | None = None,
        server: SpawnedServer | None = None,
    ) -> None:
        self.soak = soak
        self.played = 0
        self.hung: list[int] = []
        self.raised: dict[int, str] = {}
        self.seconds = 0.0
        self._make, self._file, self._wire, self._server = make, file, wire, server
        self._seeds = iter(range(soak.seed, soak.seed + soak.episodes))
        self._lock = threading.Lock()
        self._memory = {"client": Memory(), "server": Memory()}
        self._twins = cache(self._played_twin)

    # --- playing ---

    def play(self) -> None:
        """Play all episodes; one that hangs is left behind, and another thread takes its place."""
        start_s = time.monotonic()
        with open(self._file, "w", encoding="utf-8", newline="\n") as out:
            crew = [self._hired(out) for _ in range(self.soak.workers)]
            while any(one.thread and one.thread.is_alive() for one in crew if not one.is_hung):
                time.sleep(LOOK_S)
                crew += [self._hired(out) for one in crew if self._hangs(one)]
                self._look_at_memory(time.monotonic() - start_s)
        self.seconds = time.monotonic() - start_s

    def _hired(self, out: Any) -> _Running:
        one = _Running()
        one.thread = threading.Thread(target=self._work, args=(one, out), daemon=True)
        one.thread.start()
        return one

    def _work(self, one: _Running, out: Any) -> None:
        while not one.is_hung:
            with self._lock:
                seed = next(self._seeds, None)
            if seed is None:
                return
            one.seed, one.started_s = seed, time.monotonic()
            try:
                line = json_text(self._episode(seed)) + "\n"
            except Exception as error:
                self.raised[seed] = f"{type(error).__name__}: {error}"
            else:
                self._write(one, line, out)
            one.seed = None

    def _write(self, one: _Running, line: str, out: Any) -> None:
        """Write a trajectory, unless it comes too late to count."""
        with self._lock:
            if not one.is_hung:
                out.write(line)
                self.played += 1

    def _hangs(self, one: _Running) -> bool:
        """Tell whether a thread was found to hang just now."""
        seed = one.seed
        if one.is_hung or seed is None or time.monotonic() - one.started_s < self.soak.hung_s:
            return False
        with self._lock:
            one.is_hung = True
        self.hung.append(seed)
        return True

    def _look_at_memory(self, at_s: float) -> None:
        client, server = self._memory.values()
        if client.samples and at_s - client.samples[-1][0] < MEMORY_S:
            return
        client.look(os.getpid(), at_s)
        server.look(None if self._server is None else self._server.pid, at_s)

    def _episode(self, seed: int) -> Trajectory:
        room, comment_id = task_of(seed)
        return play_one(room, comment_id, seed, self._with_faults(self._make))

    def _with_faults(self, make: MakeSandbox) -> MakeSandbox:
        return lambda room: FaultySandbox(make(room), self.soak.plan, retries=RETRIES)

    # --- checking ---

    def report(self) -> SoakReport:
        """Compare every trajectory with its twin, and count."""
        found, kept, seeds = _Findings(), [], []
        for trajectory in self._trajectories():
            assert trajectory.seed is not None
            seeds.append(trajectory.seed)
            found.add(trajectory, self._twin(trajectory))
            kept.append(trajectory)
        wanted = range(self.soak.seed, self.soak.seed + self.soak.episodes)
        lost = sorted({*wanted} - {*seeds})
        share = self._share_check(len(kept), found.failed)
        uncaused = found.failed - found.planned - self._wire_timeouts()
        checks = [
            Check("hung", len(self.hung), 0, _some(self.hung)),
            Check("lost", len(lost), 0, _some([f"{s} {self.raised.get(s, '')}" for s in lost])),
            Check("played twice", len(seeds) - len({*seeds}), 0),
            Check("doubled side effects", len(found.doubled), 0, _some(found.doubled)),
            Check("answers of another room", len(found.foreign), 0, _some(found.foreign)),
            Check("unlike the twin", len(found.unlike), 0, _some(found.unlike)),
            share,
            Check("failures not injected", max(0, uncaused), 0),
        ]
        checks.append(Check("memory growth of the client", self._memory["client"].growth, FLAT))
        if self._server is not None:
            growth = self._memory["server"].growth
            checks.append(Check("memory growth of the server", growth, FLAT))
            checks.append(Check("errors of the server", self._server.errors(), 0))
            checks.append(Check("crashes of the server", self._server.crashes, 0))
        return SoakReport(tuple(checks), stability_report(kept), self._figures(found))

    def _trajectories(self) -> Iterator[Trajectory]:
        with open(self._file, encoding="utf-8", newline="\n") as lines:
            for line in lines:
                yield Trajectory.model_validate_json(line)

    def _twin(self, trajectory: Trajectory) -> Trajectory:
        """Return what the episode should have been: undisturbed; where the plan changed content,
        as it is in this process by the same plan."""
        seed = trajectory.seed
        assert seed is not None
        room, comment_id = task_of(seed)
        if any(fault.kind in CONTENT for fault in trajectory.faults):
            return play_one(room, comment_id, seed, self._with_faults(local_sandbox))
        return self._twins(room.room_id, comment_id)

    def _played_twin(self, room_id: str, comment_id: str) -> Trajectory:
        room = next(room for room in soak_rooms() if room.room_id == room_id)
        return play_one(room, comment_id, 0, local_sandbox)

    def _share_check(self, episodes: int, failed: int) -> Check:
        """Compare the failed episodes with as many as the injected faults should fail."""
        p = failure_probability(self.soak, calls=CALLS, has_wire=self._wire is not None)
        mean, sigma = episodes * p, math.sqrt(episodes * p * (1 - p))
        away = abs(failed - mean) / sigma if sigma else float(failed > 0)
        detail = f"{failed} failed, {mean:.1f} +- {sigma:.1f} expected"
        return Check("failed episodes against injected, sigmas", away, SIGMAS, detail)

    def _wire_timeouts(self) -> int:
        return 0 if self._wire is None else self._wire.fired["POST", "timeout"]

    def _figures(self, found: _Findings) -> dict[str, Any]:
        wire, server = self._wire, self._server
        fired = {} if wire is None else {" ".join(k): n for k, n in sorted(wire.fired.items())}
        return {
            "episodes": self.played,
            "seconds": round(self.seconds, 1),
            "status": dict(found.status),
            "compared_with_undisturbed": found.undisturbed,
            "compared_with_same_plan": found.same_plan,
            "failed_compared_until_then": found.failed,
            "failed_by_plan": found.planned,
            "writes": found.writes,
            "fired_on_the_wire": fired,
            "kills": 0 if server is None else server.kills,
            "memory_mib_by_quarter": {
                name: [round(held / 2**20, 1) for held in memory.quarters]
                for name, memory in self._memory.items()
            },
            "raised": dict(list(self.raised.items())[:20]),
        }


@dataclass(slots=True)
class _Findings:
    """What the trajectories show beside their twins; lists hold seeds."""

    doubled: list[int] = field(default_factory=list)
    foreign: list[int] = field(default_factory=list)
    unlike: list[int] = field(default_factory=list)
    status: Counter[str] = field(default_factory=Counter)
    undisturbed: int = 0
    same_plan: int = 0
    failed: int = 0
    planned: int = 0
    writes: int = 0

    def add(self, trajectory: Trajectory, twin: Trajectory) -> None:
        """Look at one."""
        seed = trajectory.seed or 0
        self.status[str(trajectory.status)] += 1
        states = _states(trajectory)
        self.writes += len(states)
        if states != _states(twin)[: len(states)]:
            self.doubled.append(seed)
        if is_foreign(trajectory, task_of(seed)[0]):
            self.foreign.append(seed)
        told, due = trajectory.messages, twin.messages
        if trajectory.status is Status.ENV_ERROR:
            self.failed += 1
            self.planned += _is_planned(trajectory)
            is_like = told == due[: len(told)]
        else:
            has_content = any(fault.kind in CONTENT for fault in trajectory.faults)
            self.same_plan += has_content
            self.undisturbed += not has_content
            is_like = told == due and trajectory.state == twin.state
        if not is_like:
            self.unlike.append(seed)


def failure_probability(soak: Soak, *, calls: int, has_wire: bool) -> float:
    """Return how likely an episode of so many calls is to fail by what is injected.

    A call fails when all its attempts do by plan, or when the client stops trying: at once when the
    wire is silent, else after its retries.
    """
    plan = soak.plan
    by_plan: float = sum(getattr(plan, name) for name in FAILING) ** (RETRIES + 1)
    on_wire = 0.0
    if has_wire:
        lost: float = sum(getattr(plan, name) for name in _LOST_ON_THE_WIRE)
        tries = 1 + LIMITS["retries"]
        silent: float = plan.timeout * sum(lost**i for i in range(tries))
        on_wire = silent + lost**tries
    opens = (1 - plan.reset_fail ** (RETRIES + 1)) * (1 - on_wire)
    return 1 - opens * ((1 - by_plan) * (1 - on_wire)) ** calls


def _states(trajectory: Trajectory) -> list[State]:
    """Return the states after each write, as the sandbox told them."""
    results = [result for turn in trajectory.turns for result in turn.results]
    return [result.state for result in results if result.state is not None]


def _is_planned(trajectory: Trajectory) -> bool:
    """Tell whether an episode failed because the plan failed the last attempt."""
    last = trajectory.faults[-2:-1]
    return any(
        fault.kind in (*FAILING, "reset_fail") and fault.detail.endswith(f"attempt {RETRIES + 1}")
        for fault in last
    )


def _some(found: Sequence[Any]) -> str:
    return ", ".join(map(str, found[:10])) + (", ..." if len(found) > 10 else "")
