"""The Agent Lightning adapter over a fake server: one reward event, or nothing that is trained."""

from __future__ import annotations

import json
import os
import pkgutil
import subprocess
import sys
import time
from types import ModuleType, SimpleNamespace
from typing import Any

import httpx
import pytest
import yaml
from agent_lightning_for_tests import Server, recording
from conformance import (
    CASES,
    ONE_AGENT_CASES,
    WITHOUT_A_SEAT,
    Case,
    assert_closed,
    assert_same,
    expected,
)
from pages_for_tests import snippets
from rllm_for_tests import Trajectory, merged

import livestream_env as le
from livestream_env.adapters import agent_lightning
from livestream_env.adapters.agent_lightning import LiveRoomAgent
from livestream_env.adapters.setup import Setup
from livestream_env.errors import MissingDependency
from livestream_env.masking import REPLY
from livestream_env.types import Rewards, Score

FAILED = ["failed call", "failed reset", "failed tool of a user"]
SNACKS = '{"room": "snacks", "embedder": "lexical"}'


class Looks:
    """Plays a seat elsewhere."""

    def __init__(self, case: Case) -> None:
        self._case = case

    def act(self, messages: Any, tools: Any) -> str:
        return self._case.says(messages).text


def play(
    case: Case,
    monkeypatch: pytest.MonkeyPatch,
    partners: Any = None,
    stopped_at: int | None = None,
    **options: Any,
) -> tuple[Server, str | None]:
    """Play a case as a rollout's process does; returns what was recorded, and the failure."""
    made = Setup(**{**case.setup_options, **options})
    agent = type("Mine", (LiveRoomAgent,), {"setup": made, "partners": partners})()
    with recording(case) as (server, variables):
        server.stopped_at = stopped_at
        for name, value in variables.items():
            monkeypatch.setenv(name, value)
        try:
            agent.run()
        except RuntimeError as error:
            return server, str(error)
    return server, None


@pytest.mark.row("R42")
@pytest.mark.parametrize("name", [name for name in ONE_AGENT_CASES if name not in FAILED])
def test_what_is_recorded_is_what_the_core_makes(
    name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    case = CASES[name]
    server, failure = play(case, monkeypatch)
    assert failure is None
    (reward,) = server.of("reward")
    rows = merged(Trajectory(steps=server.trained))
    assert_same(
        case,
        {
            "token_ids": {"host": [ids for ids, _, _ in rows]},
            "loss_mask": {"host": [mask for _, mask, _ in rows]},
            "logprobs": {"host": [told for _, _, told in rows]},
            "rewards": {"host": reward["value"]},
        },
    )
    assert server.of("livestream_metrics")[0]["turns"] == len(expected(case)["said"])
    assert server.keys == {"Bearer k1"}


@pytest.mark.row("R45")
@pytest.mark.parametrize("name", FAILED)
def test_a_failed_environment_has_no_reward_and_nothing_is_trained(
    name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    server, failure = play(CASES[name], monkeypatch)
    assert failure is not None
    assert "env_error" in failure
    assert server.of("reward") == []
    assert server.trained == []
    assert len(server.requests) == (0 if name == "failed reset" else 2)


def test_an_answer_that_the_engine_broke_off_is_not_trained(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    server, failure = play(CASES["several turns"], monkeypatch, stopped_at=1)
    assert "stopped its answer: `abort`" in str(failure)
    assert len(server.requests) == 2
    assert (server.of("reward"), server.trained) == ([], [])


def test_an_episode_without_a_score_has_no_reward(monkeypatch: pytest.MonkeyPatch) -> None:
    def rubric(trajectory: le.Trajectory, room: le.Room | None) -> Rewards:
        return Rewards((Score("judge", None, cause="judge_error", reason="no verdict"),))

    server, failure = play(CASES["looked up"], monkeypatch, rubric=rubric)
    assert "judge_error" in str(failure)
    assert (server.of("reward"), server.trained) == ([], [])


def test_sandboxes_are_closed_whatever_ends_an_episode(monkeypatch: pytest.MonkeyPatch) -> None:
    assert_closed(lambda case: play(case, monkeypatch))


def broken(trajectory: le.Trajectory, room: le.Room | None) -> Rewards:
    raise ZeroDivisionError("a user's mistake")


def interrupted(trajectory: le.Trajectory, room: le.Room | None) -> Rewards:
    raise KeyboardInterrupt


@pytest.mark.row("R45")
@pytest.mark.parametrize(
    ("options", "refused", "error"),
    [
        pytest.param({"rubric": broken}, (), ZeroDivisionError, id="rubric"),
        pytest.param({"rubric": interrupted}, (), KeyboardInterrupt, id="interrupt"),
        pytest.param({}, ("reward",), httpx.HTTPStatusError, id="reward refused"),
        pytest.param({}, ("livestream_metrics",), httpx.HTTPStatusError, id="metrics refused"),
    ],
)
def test_whatever_ends_a_rollout_without_a_reward_nothing_is_trained(
    options: dict[str, Any],
    refused: tuple[str, ...],
    error: type[BaseException],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    case = CASES["looked up"]
    agent = type("Mine", (LiveRoomAgent,), {"setup": Setup(**case.setup_options, **options)})()
    with recording(case) as (server, variables):
        server.refused = {*refused}
        for name, value in variables.items():
            monkeypatch.setenv(name, value)
        with pytest.raises(error):
            agent.run()
    assert len(server.requests) == 2
    assert (server.of("reward"), server.trained) == ([], [])


def test_what_cannot_be_taken_back_is_told_with_its_cause(monkeypatch: pytest.MonkeyPatch) -> None:
    case = CASES["failed call"]
    agent = type("Mine", (LiveRoomAgent,), {"setup": Setup(**case.setup_options)})()
    with recording(case) as (server, variables):
        server.refused = {"model_request"}
        for name, value in variables.items():
            monkeypatch.setenv(name, value)
        with pytest.raises(RuntimeError, match=r"env_error.*cannot be taken back.*503"):
            agent.run()


def test_a_gateway_that_is_paused_is_waited_for(monkeypatch: pytest.MonkeyPatch) -> None:
    case = CASES["looked up"]
    agent = type("Mine", (LiveRoomAgent,), {"setup": Setup(**case.setup_options)})()
    with recording(case) as (server, variables):
        server.paused = range(4)  # a client tries 4 times by default
        for name, value in variables.items():
            monkeypatch.setenv(name, value)
        agent.run()
    assert [data["value"] for data in server.of("reward")] == [1.0]


@pytest.mark.row("R54")
def test_one_agent_of_two_is_trained_and_its_partner_plays_elsewhere(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    case = CASES["two agents"]
    partners = {"tool_caller": Looks(case)}
    server, failure = play(case, monkeypatch, partners, agents={"replier": REPLY})
    assert failure is None
    (step,) = server.trained
    due = expected(case)
    assert step.response_ids == list(due["trained_ids"]["replier"])
    assert server.of("reward")[0]["value"] == due["rewards"]["replier"]


@pytest.mark.parametrize(
    ("options", "told"),
    [
        ({"masker": "reply"}, "trains every request"),
        ({"agents": {"tool_caller": "tool_calls", "replier": "reply"}}, "one reward a rollout"),
    ],
)
def test_what_agent_lightning_would_train_all_the_same_is_refused(
    options: dict[str, Any], told: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    with pytest.raises(ValueError, match=told):
        play(CASES["looked up"], monkeypatch, **options)


def test_members_of_a_group_sample_by_themselves(monkeypatch: pytest.MonkeyPatch) -> None:
    server, _ = play(CASES["looked up"], monkeypatch)
    assert all("seed" not in request for request in server.requests)
    assert {request["model"] for request in server.requests} == {"auto"}


@pytest.mark.parametrize(
    ("variables", "told"),
    [
        ({}, "`LIVESTREAM_SETUP` is not set"),
        ({"LIVESTREAM_SETUP": "{"}, "`LIVESTREAM_SETUP` holds no JSON"),
        ({"LIVESTREAM_SETUP": "[1]"}, "`LIVESTREAM_SETUP` holds no JSON object"),
        ({"LIVESTREAM_SETUP": SNACKS}, "`LIVESTREAM_ROW` is not set"),
        ({"LIVESTREAM_SETUP": SNACKS, "LIVESTREAM_ROW": "{}"}, "needs `seed`"),
        (
            {"LIVESTREAM_SETUP": SNACKS, "LIVESTREAM_ROW": '{"seed": 1}'},
            "`AGL_OPENAI_BASE_URL` is not set",
        ),
    ],
)
def test_a_variable_that_is_missing_or_wrong_is_named(
    variables: dict[str, str],
    told: str,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    for name in ("LIVESTREAM_SETUP", "LIVESTREAM_ROW", "AGL_OPENAI_BASE_URL"):
        monkeypatch.delenv(name, raising=False)
    for name, value in variables.items():
        monkeypatch.setenv(name, value)
    with pytest.raises(ValueError, match=told):
        LiveRoomAgent().run()
    assert agent_lightning.main() == 1
    assert capsys.readouterr().err.startswith("livestream-env: ")


@pytest.mark.parametrize(("limit", "status"), [("8", 0), ("one", 1)])
def test_a_process_ends_with_the_status_of_its_rollout(limit: str, status: int) -> None:
    case = CASES["looked up"]
    options = {**json.loads(SNACKS), "max_turns": int(limit) if limit.isdigit() else limit}
    with recording(case) as (server, variables):
        done = subprocess.run(
            [sys.executable, "-m", "livestream_env.adapters.agent_lightning"],
            env={**os.environ, **variables, "LIVESTREAM_SETUP": json.dumps(options)},
            capture_output=True,
            text=True,
        )
    assert done.returncode == status, done.stderr
    assert len(server.of("reward")) == 1 - status


@pytest.mark.row("R45")
def test_a_process_that_is_told_to_stop_leaves_nothing_that_is_trained() -> None:
    with recording(CASES["looked up"]) as (server, variables):
        server.paused = range(1, sys.maxsize)
        process = subprocess.Popen(
            [sys.executable, "-m", "livestream_env.adapters.agent_lightning"],
            env={**os.environ, **variables, "LIVESTREAM_SETUP": SNACKS},
            stderr=subprocess.DEVNULL,
        )
        while not server.requests and process.poll() is None:
            time.sleep(0.05)
        process.terminate()
        assert process.wait(60) != 0
    assert len(server.requests) == 1
    assert (server.of("reward"), server.trained) == ([], [])


# --- 0.3 ---------------------------------------------------------------------------------------


@pytest.fixture
def lit_agent(monkeypatch: pytest.MonkeyPatch) -> Any:
    """Return the agent's class over a stand-in for Agent Lightning's base."""
    made: Any = ModuleType("agentlightning")
    made.LitAgent = type("LitAgent", (), {})
    monkeypatch.setitem(sys.modules, "agentlightning", made)
    agent_lightning._lit_agent.cache_clear()
    yield agent_lightning.LiveRoomLitAgent
    agent_lightning._lit_agent.cache_clear()


def rolled_out(lit_agent: Any, case: Case) -> tuple[Server, Any]:
    with recording(case) as (server, variables):

        def url_of(rollout_id: str, attempt_id: str) -> str:
            assert (rollout_id, attempt_id) == ("r1", "0")
            return variables["AGL_OPENAI_BASE_URL"]

        model = SimpleNamespace(
            model="policy", sampling_parameters={"temperature": 0.5}, get_base_url=url_of
        )
        rollout = SimpleNamespace(rollout_id="r1", attempt=SimpleNamespace(attempt_id="0"))
        agent = lit_agent(**case.setup_options)
        return server, agent.rollout(case.row.to_json(), {"main_llm": model}, rollout)


@pytest.mark.parametrize("name", ["several turns", "cut reply", "burst"])
def test_a_lit_agent_returns_the_reward(name: str, lit_agent: Any) -> None:
    server, reward = rolled_out(lit_agent, CASES[name])
    assert_same(CASES[name], {"rewards": {"host": reward}})
    assert {request["temperature"] for request in server.requests} == {0.5}
    assert server.of("reward") == []


@pytest.mark.row("R45")
def test_a_lit_agent_raises_where_the_environment_failed(lit_agent: Any) -> None:
    with pytest.raises(RuntimeError, match="no reward: env_error"):
        rolled_out(lit_agent, CASES["failed call"])


def test_a_lit_agent_closes_its_sandboxes(lit_agent: Any) -> None:
    assert_closed(lambda case: rolled_out(lit_agent, case))


def test_a_lit_agent_takes_no_masks(lit_agent: Any) -> None:
    with pytest.raises(ValueError, match="trains every request"):
        lit_agent("snacks", embedder="lexical", masker="reply")


@pytest.mark.parametrize(("agents", "seat", "told"), WITHOUT_A_SEAT[1:])
def test_a_partner_without_a_seat_is_refused_at_once(
    agents: dict[str, str], seat: str, told: str, lit_agent: Any
) -> None:
    partners = {seat: "chat:http://127.0.0.1:9/v1#m"}
    with pytest.raises(ValueError, match=told):
        lit_agent("snacks", agents=agents, partners=partners)


def test_without_agent_lightning_the_version_that_was_read_is_told(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    agent_lightning._lit_agent.cache_clear()
    for installed in (None, ModuleType("agentlightning")):  # absent; 1.0 has no such class
        monkeypatch.setitem(sys.modules, "agentlightning", installed)
        with pytest.raises(MissingDependency, match=r"pip install 'agentlightning==0\.3\.0'"):
            _ = agent_lightning.LiveRoomLitAgent
    with pytest.raises(AttributeError, match="no attribute `LitRoom`"):
        _ = agent_lightning.LitRoom


def test_the_yaml_of_the_page_plays(monkeypatch: pytest.MonkeyPatch) -> None:
    (told,) = snippets("Agent Lightning", "yaml")
    local = yaml.safe_load(told)["agentlightning"]["local"]
    case = CASES["looked up"]
    given = {"input": json.dumps(case.row.to_json())}
    with recording(case) as (server, variables):
        mapped = {name: given.get(value, value) for name, value in local["env_map"].items()}
        for name, value in (variables | mapped).items():
            monkeypatch.setenv(name, value)
        pkgutil.resolve_name(local["agent_class"])().run()
    posted = [one["data"] for one in server.events if one["event_type"] == "reward"]
    assert [data["value"] for data in posted] == [1.0]
