"""What agents earn over whole rooms: the expert everything, the baseline some, evasion little."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

import livestream_env as le
from livestream_env.exploits import hack_agents
from livestream_env.rooms import Room

Make = Callable[[Room], Any]


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
def test_baseline_random_and_sorry_hosts_lie_where_they_should() -> None:
    rooms = [
        le.make_room(seed=s, language=language, level=1 + s % 3)
        for s in range(5)
        for language in ("zh", "en")
    ]
    makers: dict[str, Make] = {
        "workflow": lambda room: le.WorkflowAgent(),
        "random": lambda room: le.RandomAgent(seed=0),
        "sorry": lambda room: hack_agents(room)["sorry"],
    }
    means = {}
    for name, make in makers.items():
        made = [t for room in rooms for t in totals(room, make, embedder="lexical", every=3)]
        means[name] = sum(made) / len(made)
    assert 0.3 <= means["workflow"] <= 0.9
    assert means["random"] <= means["workflow"] - 0.2
    assert means["sorry"] <= 0.5


@pytest.mark.row("R92")
def test_every_comment_of_an_unlabelled_room_gives_a_total() -> None:
    room = le.load_room("thrift")
    made = totals(room, le.ScriptedAgent, embedder="use-multilingual")
    assert len(made) == len(room.comments)
