"""The OpenEnv adapter without OpenEnv, and which turns it tells trainers elsewhere to train."""

from __future__ import annotations

import json
import sys
from typing import Any

import pytest
from conformance import CASES, Case, expected

import livestream_env as le
from livestream_env.adapters import openenv, openenv_sessions
from livestream_env.adapters.setup import Setup
from livestream_env.adapters.whole_turns import trained_turns
from livestream_env.errors import MissingDependency
from livestream_env.types import Message, TurnEvent

CONTEXT_FULL = TurnEvent("context_full", "the prompt has 900 tokens")


@pytest.mark.parametrize(
    "make",
    [
        pytest.param(lambda: openenv.room_app("snacks"), id="server"),
        pytest.param(lambda: openenv.LiveRoomEnvironment, id="environment"),
        pytest.param(lambda: openenv_sessions.RoomSessions, id="sessions"),
    ],
)
def test_without_openenv_the_version_that_was_run_is_told(
    make: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    openenv._classes.cache_clear()
    openenv_sessions._sessions.cache_clear()
    for name in ("openenv", "openenv.core.env_server", "openenv.core.harness"):
        monkeypatch.setitem(sys.modules, name, None)
    with pytest.raises(MissingDependency, match=r"openenv 0\.10\.0.*pip install 'openenv==0\.10"):
        make()


@pytest.mark.parametrize("module", [openenv, openenv_sessions])
def test_other_names_are_no_attributes(module: Any) -> None:
    with pytest.raises(AttributeError, match="no attribute `RoomEnv`"):
        _ = module.RoomEnv


@pytest.mark.row("R37", "R45")
@pytest.mark.parametrize("name", CASES)
def test_trained_turns_are_those_of_the_rows(name: str) -> None:
    case = CASES[name]
    setup = Setup(**case.setup_options)
    trajectory = le.rollout(setup.make_env(case.row.room), case.agent(), **setup.opening(case.row))
    told = json.loads(json.dumps(trained_turns(setup, trajectory)))
    due = expected(case)
    assert {agent: one["reward"] for agent, one in told.items()} == due["rewards"]
    rows = [row for row in setup.rows(trajectory, case.renderers) if row.excluded is None]
    for agent, one in told.items():
        turns = [made.turn for row in rows if row.agent == agent for made in row.turns]
        assert [made["turn"] for made in one["turns"]] == turns
    for agent, cause in due["excluded"].items():
        assert (told[agent]["excluded"] or "").split(":")[0] == (cause or "")


class FullAt:
    """The policy of a case until a turn in which its context is full."""

    def __init__(self, case: Case, turn: int) -> None:
        self._case, self._turn = case, turn

    def act(self, messages: Any, tools: Any) -> Any:
        if sum(one.role == "assistant" for one in messages) < self._turn:
            return self._case.says(messages).text
        return le.Action(Message("assistant", ""), stop="length", events=(CONTEXT_FULL,))


def test_a_turn_without_a_word_is_not_trained() -> None:
    case = CASES["several turns"]
    for masker, at, due in (("end_to_end", 2, [0, 1]), ("reply", 2, []), ("end_to_end", 0, [])):
        setup = Setup(**case.setup_options, masker=masker)
        trajectory = le.rollout(setup.make_env(), FullAt(case, at), **setup.opening(case.row))
        told = trained_turns(setup, trajectory)["host"]
        assert [one["turn"] for one in told["turns"]] == due
        assert (told["excluded"] or "").split(":")[0] == ("" if due else "empty_mask")
        assert told["reward"] == (trajectory.reward if due else None)


def test_a_masker_picks_the_turns() -> None:
    case = CASES["several turns"]
    for masker, due in (("end_to_end", [0, 1, 2]), ("tool_calls", [0, 1]), ("reply", [2])):
        setup = Setup(**case.setup_options, masker=masker)
        trajectory = le.rollout(setup.make_env(), case.agent(), **setup.opening(case.row))
        turns = trained_turns(setup, trajectory)["host"]["turns"]
        assert [one["turn"] for one in turns] == due
        assert turns[-1]["reward"] == 1.0
