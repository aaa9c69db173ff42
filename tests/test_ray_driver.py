"""Rollouts on a real local Ray cluster of two workers."""

from __future__ import annotations

import importlib.util
import itertools
import os
import signal
import sys
import threading
import time
import warnings
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest
from rooms_for_tests import small_room

import livestream_env as le
from livestream_env.cli import main
from livestream_env.types import Action, Message, Observation, ToolSpec

needs_ray = pytest.mark.skipif(
    importlib.util.find_spec("ray") is None, reason="Ray is not installed (extra `ray`)"
)


@pytest.fixture(scope="module")
def cluster() -> Iterator[Any]:
    """Two workers on this machine."""
    import ray

    with warnings.catch_warnings(), pytest.MonkeyPatch.context() as patched:
        warnings.simplefilter("ignore")
        patched.setenv("PYTHONPATH", str(Path(__file__).parent))  # of the workers
        ray.init(
            num_cpus=2,
            include_dashboard=False,
            object_store_memory=80 << 20,
            log_to_driver=False,
            configure_logging=False,
        )
        yield ray
        ray.shutdown()


class Noted:
    """A host that writes down which process plays which seed, and takes its time."""

    def __init__(self, notes: Path, seconds: float = 0.0) -> None:
        self.notes, self.seconds = notes, seconds

    def start(self, observation: Observation, *, seed: Any) -> Noted:
        with open(self.notes, "a", encoding="utf-8") as out:
            out.write(f"{os.getpid()} {seed}\n")
        self.seed = seed
        return self

    def act(self, messages: Sequence[Message], tools: Sequence[ToolSpec]) -> Action:
        time.sleep(self.seconds)
        if messages[-1].role == "user":
            return Action.call("get_reply_rule", intent="物流")
        return Action.reply(f"好的{self.seed}")

    def lines(self) -> list[tuple[int, str]]:
        """Return the process and seed of every start."""
        split = (line.split(" ", 1) for line in self.notes.read_text("utf-8").splitlines())
        return [(int(pid), seed) for pid, seed in split]


class NotedEnvs:
    """Makes environments, and writes down each time that it is read from the object store."""

    def __init__(self, env: le.LiveRoomEnv, notes: Path) -> None:
        self.env, self.notes, self.written = env, notes, 0

    def __getstate__(self) -> dict[str, Any]:
        self.written += 1
        return dict(self.__dict__)

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state)
        with open(self.notes, "a", encoding="utf-8") as out:
            out.write(f"{os.getpid()}\n")

    def __call__(self) -> le.LiveRoomEnv:
        return self.env.another()


def room_env(**options: Any) -> le.LiveRoomEnv:
    return le.LiveRoomEnv(small_room(), embedder="lexical", **options)


def record(trajectory: le.Trajectory) -> tuple[Any, ...]:
    """Return what was played, without its times."""
    turns = [(turn.action, turn.results, turn.messages) for turn in trajectory.turns]
    kept = (trajectory.prompts, trajectory.state, trajectory.stop_reason, trajectory.rewards)
    return (trajectory.seed, trajectory.group, *kept, turns)


def in_order(groups: Any) -> list[tuple[Any, ...]]:
    return sorted((record(member) for group in groups for member in group), key=repr)


@needs_ray
@pytest.mark.row("R37")
@pytest.mark.parametrize("size", [None, 3])
def test_a_cluster_plays_what_one_thread_plays(cluster: Any, size: int | None) -> None:
    env = room_env()
    local = le.rollouts(env.another, le.RandomAgent(), range(9), size=size)
    there = le.ray_rollouts(env.another, le.RandomAgent(), range(9), size=size)
    assert in_order(there) == in_order(local)


class Stuck(Noted):
    """A host that, the first time that it plays one seed, does not come back."""

    def act(self, messages: Sequence[Message], tools: Sequence[ToolSpec]) -> Action:
        marker = self.notes.with_suffix(".pid")
        if self.seed == (5, 0) and messages[-1].role == "tool" and not marker.exists():
            marker.write_text(str(os.getpid()), "utf-8")
            time.sleep(120)
        return super().act(messages, tools)


@needs_ray
def test_a_worker_killed_in_mid_episode_loses_nothing(cluster: Any, tmp_path: Path) -> None:
    agent, env = Stuck(tmp_path / "notes"), room_env()
    marker = tmp_path / "notes.pid"
    killed: list[int] = []

    def kill() -> None:
        while not (marker.exists() and marker.read_text("utf-8")):
            time.sleep(0.05)
        killed.append(int(marker.read_text("utf-8")))
        os.kill(killed[0], signal.SIGKILL)

    killer = threading.Thread(target=kill, daemon=True)
    killer.start()
    played = list(le.ray_rollouts(env.another, agent, range(20), size=2))
    killer.join(10)
    started = [(pid, seed) for pid, seed in agent.lines() if seed == "(5, 0)"]
    assert len(started) == 2
    assert started[0][0] == killed[0] != started[1][0]
    assert in_order(played) == in_order(le.rollouts(env.another, agent, range(20), size=2))


@needs_ray
def test_rooms_are_stored_once_and_read_once_by_a_worker(cluster: Any, tmp_path: Path) -> None:
    make_env = NotedEnvs(room_env(), tmp_path / "reads")
    agent = Noted(tmp_path / "notes")
    assert len(list(le.ray_rollouts(make_env, agent, range(40)))) == 40
    reads = make_env.notes.read_text("utf-8").split()
    assert make_env.written == 1
    assert sorted(reads) == sorted({str(pid) for pid, _ in agent.lines()})


@needs_ray
def test_results_are_streamed_and_hold_new_episodes_back(cluster: Any, tmp_path: Path) -> None:
    taken: list[int] = []

    def seeds() -> Iterator[int]:
        while True:
            taken.append(len(taken))
            yield taken[-1]

    agent = Noted(tmp_path / "notes")
    groups = le.ray_rollouts(room_env().another, agent, seeds(), max_workers=2)
    for _ in range(5):
        next(groups)
    time.sleep(0.5)
    assert len(taken) <= 5 + 2 * 2
    groups.close()


@needs_ray
def test_no_more_episodes_are_played_at_once_than_workers(cluster: Any, tmp_path: Path) -> None:
    agent = Noted(tmp_path / "notes", 0.05)
    options: dict[str, Any] = {"max_workers": 1, "num_cpus": 0.25}
    played = [one for [one] in le.ray_rollouts(room_env().another, agent, range(10), **options)]
    assert len(played) == 10
    for before, after in itertools.pairwise(played):
        assert before.turns[-1].ended_s <= after.turns[0].started_s


class Fatal(Noted):
    """A host that takes its worker down with it at one seed."""

    def start(self, observation: Observation, *, seed: Any) -> Noted:
        super().start(observation, seed=seed)
        if seed == 3:
            os.kill(os.getpid(), signal.SIGKILL)
        return self


@needs_ray
def test_an_episode_that_kills_its_workers_fails_alone(cluster: Any, tmp_path: Path) -> None:
    agent = Fatal(tmp_path / "notes")
    groups = list(le.ray_rollouts(room_env().another, agent, range(6), retries=1))
    by_seed = {group[0].seed: group[0] for group in groups}
    assert [seed for seed in range(6) if by_seed[seed].status == "env_error"] == [3]
    assert "Ray lost the episode" in by_seed[3].faults[0].detail
    assert [seed for _, seed in agent.lines()].count("3") == 2
    again = le.ray_rollouts(room_env().another, agent, [3], retries=0, redundancy=1)
    [[replayed]] = again
    assert replayed.reply == "好的(3, 1)"


class Hanging(Noted):
    """A host that hangs at one seed."""

    def act(self, messages: Sequence[Message], tools: Sequence[ToolSpec]) -> Action:
        if self.seed == 1 and len(messages) > 2:
            time.sleep(30)
        return super().act(messages, tools)


@needs_ray
def test_an_episode_that_takes_too_long_is_given_up(cluster: Any, tmp_path: Path) -> None:
    agent = Hanging(tmp_path / "notes")
    groups = list(le.ray_rollouts(room_env().another, agent, range(3), timeout_s=8.0))
    by_seed = {group[0].seed: group[0] for group in groups}
    assert [str(by_seed[seed].status) for seed in range(3)] == ["ok", "env_error", "ok"]
    assert by_seed[1].stop_reason == "aborted"
    assert len(by_seed[1].turns) == 1


@needs_ray
def test_an_interrupt_keeps_what_had_ended(cluster: Any, tmp_path: Path) -> None:
    agent, ended = Noted(tmp_path / "notes", 0.05), list[le.Trajectory]()

    def interrupted(trajectory: le.Trajectory) -> None:
        ended.append(trajectory)
        if len(ended) == 3:
            time.sleep(1)
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        list(le.ray_rollouts(room_env().another, agent, range(100), progress=interrupted))
    assert 3 < len(ended) < 20
    assert len(list(le.ray_rollouts(room_env().another, agent, range(3)))) == 3


class Broken:
    """A host with a fault of its own."""

    def act(self, messages: Sequence[Message], tools: Sequence[ToolSpec]) -> Action:
        raise IndexError("no more lines")


@needs_ray
def test_an_agents_own_exception_is_raised(cluster: Any) -> None:
    with pytest.raises(IndexError, match="no more lines"):
        list(le.ray_rollouts(room_env().another, Broken(), range(3)))


@needs_ray
def test_the_command_line_plays_on_the_cluster(cluster: Any, tmp_path: Path) -> None:
    line = "rollout --room snacks --agent random --episodes 5 --workers 2"
    played = []
    for driver in ("threads", "async", "ray"):
        out = tmp_path / driver
        assert main([*line.split(), "--driver", driver, "--out", str(out)]) == 0
        lines = out.read_text("utf-8").splitlines()
        played.append([record(le.Trajectory.model_validate_json(line)) for line in lines])
    assert [one[0] for one in played[0]] == list(range(5))
    assert played[0] == played[1] == played[2]


def test_without_ray_the_command_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "ray", None)
    with pytest.raises(ImportError, match=r"pip install 'livestream-env\[ray\]'"):
        le.ray_rollouts(room_env().another, Broken(), range(3))
