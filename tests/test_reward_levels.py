"""What agents earn over whole rooms: the expert everything, the baseline some, evasion little."""

from __future__ import annotations

import sys
from collections.abc import Callable
from importlib import import_module
from pathlib import Path
from typing import Any

import pytest

import livestream_env as le
from livestream_env.rooms import Room

Make = Callable[[Room], Any]
BENCHMARKS = Path(__file__).parents[1] / "benchmarks"


def benchmark(name: str) -> Any:
    """Import a module of the benchmarks, which import each other by name."""
    if str(BENCHMARKS) not in sys.path:
        sys.path.insert(0, str(BENCHMARKS))
    return import_module(name)


levels = benchmark("reward_levels")


def totals(room: Room, make: Make, *, embedder: str, every: int = 1) -> list[float]:
    env = le.LiveRoomEnv(room, embedder=embedder, rubric="single4")
    agent = make(room)
    made = []
    for seed in range(0, len(room.comments), every):
        rewards = le.rollout(env, agent, seed=seed).rewards
        total = None if rewards is None else rewards.total()
        assert total is not None, (room.room_id, seed)
        made.append(total)
    return made


@pytest.mark.row("R46")
@pytest.mark.parametrize("name", le.list_rooms())
def test_the_expert_earns_everything_in_every_bundled_room(name: str) -> None:
    room = le.load_room(name)
    made = totals(room, le.ScriptedAgent, embedder="use-multilingual")
    short = [room.comments[i].comment_id for i, total in enumerate(made) if total < 1]
    assert not short


@pytest.mark.parametrize("seed", range(6))
def test_the_expert_earns_everything_in_generated_rooms(seed: int) -> None:
    language: Any = ("zh", "en")[seed % 2]
    room = le.make_room(seed=seed, language=language, level=1 + seed % 3)
    assert set(totals(room, le.ScriptedAgent, embedder="lexical")) == {1.0}


@pytest.mark.row("R46", "R81")
def test_agents_lie_where_they_should_over_bundled_and_generated_rooms() -> None:
    played = [("bundled", "snacks"), *(("generated", number) for number in range(8))]
    found = [one for room in played for one in levels.earned(room, every=5)]
    assert not list(levels.faults(found))


@pytest.mark.row("R92")
def test_every_comment_of_an_unlabelled_room_gives_a_total() -> None:
    room = le.load_room("thrift")
    made = totals(room, le.ScriptedAgent, embedder="use-multilingual")
    assert len(made) == len(room.comments)
