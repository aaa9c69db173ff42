"""The trajectory log: what is kept, and what killed, forked and threaded writers leave."""

from __future__ import annotations

import json
import math
import multiprocessing
import os
import pickle
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Sequence
from pathlib import Path

import pytest
from rooms_for_tests import small_room

import livestream_env as le
from livestream_env import trajectory_log
from livestream_env.trajectory_log import json_text
from livestream_env.types import (
    Action,
    Message,
    Rewards,
    Score,
    Status,
    StopReason,
    Trajectory,
    Turn,
)

ROOT = Path(__file__).resolve().parents[1]


def episode(seed: int, reply: str = "好的", **changes: object) -> Trajectory:
    values = {
        "room_id": "r",
        "content_hash": "h",
        "comment_ids": ("c1",),
        "seed": seed,
        "group": "g",
        "prompts": {"host": (Message("user", "问"),)},
        "tools": {"host": ()},
        "turns": (Turn("host", Action.reply(reply)),),
        "status": Status.OK,
        "stop_reason": StopReason.REPLIED,
        "rewards": Rewards((Score("correctness", 0.5, reason="1/2 claims supported"),)),
    }
    return Trajectory(**{**values, **changes})  # type: ignore[arg-type]


def seeds(logged: Sequence[object]) -> list[int]:
    return [line.trajectory.seed for line in logged]  # type: ignore[attr-defined]


@pytest.mark.row("R94")
def test_a_log_keeps_step_policy_and_trajectory(tmp_path: Path) -> None:
    log = le.TrajectoryLog(tmp_path / "run")
    assert log.add([episode(0), episode(1)], step=3, policy_version=17) == 2
    assert log.add(episode(2), step=1, policy_version="v1") == 1
    assert log.add([]) == 0
    logged = le.read_log(tmp_path / "run")
    assert logged.refused == ()
    told = [(line.step, line.policy_version, line.trajectory) for line in logged.lines]
    assert told == [(1, "v1", episode(2)), (3, "17", episode(0)), (3, "17", episode(1))]
    assert abs(logged.lines[0].time_s - time.time()) < 3600
    assert seeds(le.read_log(tmp_path / "run", step=3).lines) == [0, 1]
    assert le.read_log(log.path) == logged
    assert len(list(log.folder.iterdir())) == 1


def test_every_keeps_each_nth_step(tmp_path: Path) -> None:
    log = le.TrajectoryLog(tmp_path, every=3)
    assert [log.add(episode(n), step=n) for n in range(7)] == [1, 0, 0, 1, 0, 0, 1]
    unnumbered = le.TrajectoryLog(tmp_path, 2)
    assert [unnumbered.add(episode(n)) for n in range(4)] == [1, 0, 1, 0]
    with pytest.raises(ValueError, match="`every` is 0"):
        le.TrajectoryLog(tmp_path, every=0)
    with pytest.raises(TypeError):
        log.add(episode(0), step=1.5)  # type: ignore[arg-type]


def test_what_json_or_a_file_cannot_hold_comes_back(tmp_path: Path) -> None:
    action = Action(Message("assistant", "a"), token_ids=(1, 2), logprobs=(-math.inf, -0.5))
    infinite = episode(0, turns=(Turn("host", action),))
    lone = Rewards((Score("correctness", 0.5, reason="half a 😄: \ud83d, \u2028 and \n"),))
    log = le.TrajectoryLog(tmp_path)
    log.add([infinite, episode(1, rewards=lone)])
    first, second = (line.trajectory for line in le.read_log(tmp_path).lines)
    assert first == infinite
    assert second.rewards is not None
    assert second.rewards.scores[0].reason == "half a 😄: \ufffd, \u2028 and \n"


def test_a_line_that_is_cut_is_told_and_left_out(tmp_path: Path) -> None:
    log = le.TrajectoryLog(tmp_path)
    log.add([episode(0), episode(1, reply="很好" * 50)])
    whole = log.path.read_bytes()
    first = whole.index(b"\n") + 1
    for cut in (first + 1, first + 40, len(whole) - 300, len(whole) - 2):
        log.path.write_bytes(whole[:cut])
        logged = le.read_log(tmp_path)
        assert seeds(logged.lines) == [0]
        ((where, reason),) = logged.refused
        assert where == f"{log.path.name}, line 2"
        assert "cut" in reason
    log.path.write_bytes(whole[:-1])
    assert seeds(le.read_log(tmp_path).lines) == [0, 1]
    log.path.write_bytes(whole[: first + 40])
    log.add(episode(2))
    logged = le.read_log(tmp_path)
    assert seeds(logged.lines) == [0, 2]
    assert [where for where, _ in logged.refused] == [f"{log.path.name}, line 2"]


def test_a_log_that_is_written_on_is_read_as_far_as_it_went(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    log = le.TrajectoryLog(tmp_path)
    log.add([episode(0), episode(1)])
    read = trajectory_log._record

    def read_while_written(raw: bytes) -> object:
        log.add(episode(2))
        return read(raw)

    monkeypatch.setattr(trajectory_log, "_record", read_while_written)
    assert seeds(le.read_log(tmp_path).lines) == [0, 1]


def test_lines_that_are_none_are_refused_with_the_reason(tmp_path: Path) -> None:
    log = le.TrajectoryLog(tmp_path)
    log.add(episode(0))
    line = json.loads(log.path.read_text(encoding="utf-8"))
    more = [{**line, "format": 2}, {**line, "trajectory": {}}, {"a": 1}]
    text = "".join(f"{json.dumps(one)}\n" for one in more)
    (tmp_path / "other.jsonl").write_bytes(text.encode() + b"\xff\xfe\n{\n")
    logged = le.read_log(tmp_path)
    assert seeds(logged.lines) == [0]
    reasons = dict(logged.refused)
    assert list(reasons) == [f"other.jsonl, line {n}" for n in range(1, 6)]
    assert "`format`" in reasons["other.jsonl, line 1"]
    assert "`trajectory." in reasons["other.jsonl, line 2"]
    assert "UTF-8" in reasons["other.jsonl, line 4"]


def test_a_file_of_trajectories_is_read_as_a_log_without_steps(tmp_path: Path) -> None:
    plain = tmp_path / "plain.jsonl"
    plain.write_text(f"{json_text(episode(0))}\n{json_text(episode(1))}\n", encoding="utf-8")
    for place in (plain, tmp_path):
        logged = le.read_log(place)
        assert seeds(logged.lines) == [0, 1]
        assert {line.step for line in logged.lines} == {None}
    assert le.read_log(plain, step=1).lines == ()
    with pytest.raises(FileNotFoundError):
        le.read_log(tmp_path / "nowhere")


def test_a_file_of_a_log_is_read_by_whatever_reads_trajectories(tmp_path: Path) -> None:
    log = le.TrajectoryLog(tmp_path)
    log.add([episode(0), episode(1)], step=4)
    assert le.load_trajectories(log.path).trajectories == (episode(0), episode(1))


# --- writers ----------------------------------------------------------------------------------

WRITER = """
import sys
sys.path.insert(0, sys.argv[2])
from test_trajectory_log import episode
import livestream_env as le

log = le.TrajectoryLog(sys.argv[1])
step = 0
while True:
    log.add([episode(n, reply=str(step) * 30_000) for n in range(20)], step=step)
    print(step, flush=True)
    step += 1
"""


@pytest.mark.skipif(not hasattr(signal, "SIGKILL"), reason="there is no SIGKILL")
def test_a_killed_writer_loses_no_line_that_it_had_written(tmp_path: Path) -> None:
    """Two processes share a folder; both are killed while they write lines of 30 KB and more."""
    command = [sys.executable, "-c", WRITER, str(tmp_path), str(ROOT / "tests")]
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    writers = [
        subprocess.Popen(command, stdout=subprocess.PIPE, env=environment, text=True)
        for _ in range(2)
    ]
    done = []
    for writer in writers:
        assert writer.stdout is not None
        for _ in range(3):
            assert writer.stdout.readline()
    for writer in writers:
        writer.kill()
        assert writer.stdout is not None
        done.append(2 + len(writer.stdout.read().split()))
        writer.stdout.close()
        assert writer.wait() == -signal.SIGKILL
    files = sorted(tmp_path.glob("*.jsonl"))
    assert sorted(int(file.name.partition("-")[0]) for file in files) == sorted(
        writer.pid for writer in writers
    )
    logged = le.read_log(tmp_path)
    told = dict(zip((writer.pid for writer in writers), done, strict=True))
    for file in files:
        steps = [line.step for line in le.read_log(file).lines]
        last = told[int(file.name.partition("-")[0])]
        for step in range(last + 1):
            assert steps.count(step) == 20
    assert all("cut" in reason for _, reason in logged.refused)
    assert len(logged.refused) <= 2


def add_from_child(log: le.TrajectoryLog, seed: int) -> None:
    log.add(episode(seed), step=seed)


@pytest.mark.skipif(not hasattr(os, "fork"), reason="there is no fork")
def test_forks_and_copies_write_files_of_their_own(tmp_path: Path) -> None:
    log = le.TrajectoryLog(tmp_path)
    log.add(episode(0), step=0)
    stop = threading.Event()

    def keep_writing() -> None:
        while not stop.is_set():
            log.add(episode(9), step=9)

    busy = threading.Thread(target=keep_writing)
    busy.start()
    try:
        context = multiprocessing.get_context("fork")
        children = [context.Process(target=add_from_child, args=(log, n)) for n in (1, 2, 3)]
        for child in children:
            child.start()
        for child in children:
            child.join(60)
            assert child.exitcode == 0
    finally:
        stop.set()
        busy.join()
    copy = pickle.loads(pickle.dumps(log))
    copy.add(episode(4), step=4)
    assert len({log.path, copy.path}) == 2
    logged = le.read_log(tmp_path)
    assert logged.refused == ()
    assert sorted(set(seeds(logged.lines))) == [0, 1, 2, 3, 4, 9]
    assert len(list(tmp_path.iterdir())) == 5


def test_threads_share_a_file_and_cut_no_line(tmp_path: Path) -> None:
    log = le.TrajectoryLog(tmp_path)

    def write(first: int) -> None:
        for n in range(25):
            log.add(episode(first + n, reply="长" * 20_000))

    writers = [threading.Thread(target=write, args=(100 * i,)) for i in range(8)]
    for writer in writers:
        writer.start()
    for writer in writers:
        writer.join()
    logged = le.read_log(tmp_path)
    assert logged.refused == ()
    assert sorted(seeds(logged.lines)) == [100 * i + n for i in range(8) for n in range(25)]
    assert list(tmp_path.iterdir()) == [log.path]


def test_what_is_no_trajectory_is_not_logged(tmp_path: Path) -> None:
    log = le.TrajectoryLog(tmp_path)
    with pytest.raises(TypeError, match="got a `str`; pass trajectories"):
        log.add("abc")  # type: ignore[arg-type]
    assert not list(tmp_path.iterdir())
    with pytest.raises(ValueError, match=r"`every` is 1.5"):
        le.TrajectoryLog(tmp_path, every=1.5)  # type: ignore[arg-type]


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="there is no /dev/full")
def test_a_disk_that_is_full_is_an_error(tmp_path: Path) -> None:
    log = le.TrajectoryLog(tmp_path)
    log.path.symlink_to("/dev/full")
    with pytest.raises(OSError, match="No space left"):
        log.add(episode(0))


def test_a_trajectory_of_the_environment_survives(tmp_path: Path) -> None:
    room = small_room()
    env = le.LiveRoomEnv(room, embedder="lexical")
    played = le.rollout(env, le.RandomAgent(), seed=3)
    le.TrajectoryLog(tmp_path).add(played)
    assert le.read_log(tmp_path).lines[0].trajectory == played
