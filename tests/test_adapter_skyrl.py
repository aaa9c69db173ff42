"""The SkyRL and OpenRLHF adapters without their trainers, and what they share with ROLL's."""

from __future__ import annotations

import importlib
import sys
from types import ModuleType

import pytest
from conformance import CASES, Case

import livestream_env as le
from livestream_env.adapters.openrlhf import agent_executor
from livestream_env.adapters.recorded import RecordedRenderer
from livestream_env.adapters.setup import Setup
from livestream_env.adapters.text_room import TextRoom
from livestream_env.errors import MissingDependency

SKYRL = "livestream_env.adapters.skyrl"
SNACKS = {"room": "snacks", "embedder": "lexical"}


@pytest.mark.parametrize("package", [None, ModuleType("skyrl")], ids=["absent", "another version"])
def test_the_version_of_skyrl_that_was_run_is_told(
    package: ModuleType | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    adapter = importlib.import_module(SKYRL)
    adapter._generator.cache_clear()
    adapter._live_room.cache_clear()
    monkeypatch.setitem(sys.modules, "skyrl", package)
    monkeypatch.setitem(sys.modules, "skyrl_gym", None)
    command = r"pip install skyrl==0\.3\.0 skyrl-gym==0\.4\.0"
    for name in ("LiveRoom", "LiveRoomGenerator"):
        with pytest.raises(MissingDependency, match=command):
            getattr(adapter, name)
    with pytest.raises(MissingDependency, match=command):
        adapter.register(room="snacks")
    with pytest.raises(AttributeError, match="no attribute `Room`"):
        _ = adapter.Room


@pytest.mark.parametrize("package", [None, ModuleType("openrlhf")], ids=["absent", "another"])
def test_the_version_of_openrlhf_that_was_run_is_told(
    package: ModuleType | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "openrlhf", package)
    with pytest.raises(MissingDependency, match=r"pip install openrlhf==0\.11\.2"):
        agent_executor("snacks", embedder="lexical")


def test_an_executor_trains_one_agent_and_fails_in_one_of_two_ways() -> None:
    two = {"tool_caller": "tool_calls", "replier": "reply"}
    with pytest.raises(ValueError, match="trains one agent"):
        agent_executor("snacks", embedder="lexical", agents=two)
    with pytest.raises(ValueError, match="it is `raise` or `nan`"):
        agent_executor("snacks", failed="drop")  # type: ignore[arg-type]


def played(case: Case) -> le.Trajectory:
    setup = Setup(**case.setup_options)
    return le.rollout(setup.make_env(case.row.room), case.agent(), **setup.opening(case.row))


@pytest.mark.parametrize("name", ["several turns", "cut reply", "rewritten past", "two agents"])
def test_recorded_ids_are_the_sequences_of_the_template(name: str) -> None:
    case = CASES[name]
    trajectory = played(case)
    agents = ["tool_caller"] if case.has_two_agents else None
    due = next(iter(case.renderers.values())).render(trajectory, agents)
    made = RecordedRenderer().render(trajectory, agents)
    assert len(made) >= len(due)
    for one, two in zip(made, due, strict=False):
        length = len(two)
        assert one.token_ids[:length] == two.token_ids
        assert one.logprobs is not None
        assert one.logprobs[:length] == two.logprobs
        sampled = [[s for s in x.spans if s.source.is_sampled] for x in (one, two)]
        assert sampled[0] == sampled[1]


def test_an_untrained_seat_is_played_too() -> None:
    case = CASES["two agents"]
    room = TextRoom(
        **{**case.setup_options, "agents": {"replier": "reply"}}, comment=list(case.row.comment)
    )
    room.reset(seed=case.row.seed)
    for line in case.lines:
        *_, terminated, truncated, _ = room.step(line.text)
    assert (terminated, truncated) == (True, False)
    assert [turn.agent for turn in room.played().turns] == ["tool_caller", "tool_caller", "replier"]


def test_rooms_share_a_setup() -> None:
    setup = Setup(**SNACKS)
    first, second = TextRoom(setup), TextRoom(setup)
    assert first.setup is second.setup
    row = CASES["looked up"].row
    assert first.open(row=row)[0] == second.open(row=row.to_json())[0]
    assert first.open(seed=5)[1]["seed"] == 5
