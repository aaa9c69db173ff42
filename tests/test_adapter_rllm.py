"""The rLLM adapter over a fake gateway: its flow and evaluator, and the environment."""

from __future__ import annotations

import asyncio
import pickle
import sys
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest
from conformance import (
    CASES,
    FIND,
    PRICE,
    REPLIED,
    RULE,
    Case,
    assert_closed,
    assert_same,
    expected,
)
from pages_for_tests import module_of, snippets
from rllm_for_tests import TYPES, Episode, EvalOutput, Step, Task, enriched, gated, merged

import livestream_env as le
from livestream_env.adapters import rllm
from livestream_env.adapters.rllm import RoomFlow
from livestream_env.errors import MissingDependency, SandboxError
from livestream_env.masking import REPLY
from livestream_env.types import Rewards, Score

ONE_TOKENIZER = {
    name: case for name, case in CASES.items() if set(case.families.values()) == {"chatml"}
}
FAILED = ["failed call", "failed reset", "failed tool of a user"]
PLAYED = [name for name in ONE_TOKENIZER if name not in FAILED]


def play(case: Case, **options: Any) -> tuple[Episode, EvalOutput]:
    """Play a case as rLLM's engine does: flow, traces, evaluator."""
    flow = RoomFlow(types=TYPES, **{**case.setup_options, **options})
    task = Task(case.row.to_json())
    with gated(case) as (gateway, url):
        config = SimpleNamespace(base_url=f"{url}/task:0/v1", model="policy")
        episode = asyncio.run(flow.arun(task, config))
        enriched(episode, gateway.traces["task:0"])
    return episode, flow.evaluate(task, episode)


def shown(case: Case, episode: Episode) -> Any:
    """Return what rLLM makes of an episode's trajectories."""
    own = {one.name: one for one in episode.trajectories}
    rows = {agent: merged(own[agent]) for agent in case.families}
    return {
        "token_ids": {agent: [ids for ids, _, _ in made] for agent, made in rows.items()},
        "loss_mask": {agent: [mask for _, mask, _ in made] for agent, made in rows.items()},
        "logprobs": {agent: [told for _, _, told in made] for agent, made in rows.items()},
        "rewards": {agent: own[agent].reward for agent in case.families},
        "truncated": episode.metadata["status"] != "ok",
    }


@pytest.mark.row("R42")
@pytest.mark.parametrize("name", PLAYED)
def test_trajectories_are_what_the_core_makes(name: str) -> None:
    case = CASES[name]
    episode, told = play(case)
    assert_same(case, shown(case, episode))
    assert told.is_correct == (told.reward > 0)
    assert episode.metrics["turns"] == len(expected(case)["said"])


@pytest.mark.row("R45")
@pytest.mark.parametrize("name", [*FAILED, "two agents and a failed call"])
def test_a_failed_environment_raises(name: str) -> None:
    with pytest.raises(RuntimeError, match="is left out: env_error"):
        play(CASES[name])


def test_sandboxes_are_closed_whatever_ends_an_episode() -> None:
    assert_closed(play)


def test_a_flow_is_sent_to_the_trainers_process() -> None:
    flow = RoomFlow("snacks", masker=REPLY, embedder="lexical", types=TYPES)
    sent = pickle.loads(pickle.dumps(flow))
    assert sent.setup.agents == {"host": REPLY}
    assert sent.setup.options == flow.setup.options


def no_verdict(trajectory: le.Trajectory, room: le.Room | None) -> Rewards:
    return Rewards((Score("judge", None, cause="judge_error", reason="no verdict"),))


def test_an_episode_without_a_score_is_not_trained() -> None:
    with pytest.raises(RuntimeError, match="is left out: judge_error"):
        play(CASES["looked up"], rubric=no_verdict)


def test_a_masked_turn_is_no_step_and_keeps_its_place() -> None:
    episode, _ = play(CASES["several turns"], masker=REPLY)
    (trajectory,) = episode.trajectories
    (step,) = trajectory.steps
    assert step.action["content"] == REPLIED
    assert (step.reward, step.done, trajectory.reward) == (1.0, True, 1.0)
    whole, _ = play(CASES["several turns"])
    assert step.prompt_ids == whole.trajectories[0].steps[2].prompt_ids
    assert step.response_ids == whole.trajectories[0].steps[2].response_ids


@pytest.mark.row("R54")
def test_each_agent_has_a_trajectory_of_its_name() -> None:
    episode, _ = play(CASES["two agents"])
    caller, replier = episode.trajectories
    assert (caller.name, len(caller.steps)) == ("tool_caller", 2)
    assert (replier.name, len(replier.steps)) == ("replier", 1)


def test_a_partner_goes_past_the_gateway() -> None:
    case = CASES["two agents"]

    class Looks:
        def act(self, messages: Any, tools: Any) -> str:
            return case.says(messages).text

    flow = RoomFlow(
        types=TYPES,
        partners={"tool_caller": Looks()},
        **{**case.setup_options, "agents": {"replier": REPLY}},
    )
    task = Task(case.row.to_json())
    with gated(case) as (gateway, url):
        config = SimpleNamespace(base_url=f"{url}/s/v1", model="policy")
        episode = enriched(asyncio.run(flow.arun(task, config)), gateway.traces["s"])
    flow.evaluate(task, episode)
    (replier,) = episode.trajectories
    assert len(gateway.traces["s"]) == len(replier.steps) == 1
    assert replier.reward == expected(case)["rewards"]["replier"]


def test_requests_that_the_flow_did_not_make_are_told() -> None:
    episode, _ = play(CASES["looked up"])
    flow = RoomFlow("snacks", embedder="lexical", types=TYPES)
    episode.trajectories[0].steps.append(Step(chat_completions=[{"content": "好"}]))
    with pytest.raises(RuntimeError, match=r"the gateway has 3 steps.* the flow's 2"):
        flow.evaluate(None, episode)


def test_a_request_that_the_gateway_recorded_twice_is_told() -> None:
    """rLLM gives steps their traces one after the other: the last would be left without its own."""
    case = CASES["several turns"]
    flow = RoomFlow(types=TYPES, **case.setup_options)
    task = Task(case.row.to_json())
    with gated(case) as (gateway, url):
        gateway.loses = True
        config = SimpleNamespace(base_url=f"{url}/s/v1", model="policy")
        episode = enriched(asyncio.run(flow.arun(task, config)), gateway.traces["s"])
    assert len(gateway.traces["s"]) == 4
    with pytest.raises(RuntimeError, match="other answers than the flow's 3"):
        flow.evaluate(task, episode)


def test_a_task_without_a_row_is_the_callers_mistake() -> None:
    flow = RoomFlow("snacks", embedder="lexical", types=TYPES)
    with pytest.raises(ValueError, match="needs `seed`"):
        asyncio.run(flow.arun(Task({"question": "?"}), SimpleNamespace(base_url="", model="m")))


@pytest.mark.parametrize("make", [RoomFlow, lambda: rllm.LiveRoomEnvironment])
def test_without_rllm_the_version_that_was_read_is_told(
    make: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    rllm._environment.cache_clear()
    for name in ("rllm", "rllm.types", "rllm.environments"):
        monkeypatch.setitem(sys.modules, name, None)
    with pytest.raises(MissingDependency, match=r"0\.3\.0\.pre.*git\+https://github.com/rllm-org"):
        make()


@pytest.fixture
def environment(monkeypatch: pytest.MonkeyPatch) -> Any:
    """Return the environment's class over a stand-in for rLLM's base."""
    made: Any = ModuleType("rllm.environments.base.base_env")
    made.BaseEnv = type("BaseEnv", (), {})
    for name in ("rllm", "rllm.environments", "rllm.environments.base"):
        monkeypatch.setitem(sys.modules, name, ModuleType(name))
    monkeypatch.setitem(sys.modules, made.__name__, made)
    rllm._environment.cache_clear()
    yield rllm.LiveRoomEnvironment
    rllm._environment.cache_clear()


def test_the_environment_has_steps_of_four(environment: Any) -> None:
    env = environment.from_dict({"room": "snacks", "embedder": "lexical"})
    observation, _ = env.reset(PRICE.to_json())
    assert [message["role"] for message in observation] == ["system", "user"]
    assert "search_product_by_keyword" in observation[0]["content"]
    observation, reward, done, _ = env.step(SimpleNamespace(action=f"{FIND}\n{RULE}"))
    assert [message["role"] for message in observation] == ["user"]
    assert observation[0]["content"].startswith("<tool_response>")
    assert (reward, done) == (0.0, False)
    _, reward, done, info = env.step(REPLIED)
    assert (reward, done) == (expected(CASES["looked up"])["rewards"]["host"], True)
    assert info["metrics"]["turns"] == 2
    env.close()


@pytest.mark.row("R45")
def test_an_environment_that_fails_raises(environment: Any) -> None:
    case = CASES["failed call"]
    env = environment(**case.setup_options)
    env.reset(case.row.to_json())
    env.step(FIND)
    with pytest.raises(SandboxError, match="503"):
        env.step(RULE)
    with pytest.raises(SandboxError, match="503"):
        environment(**CASES["failed reset"].setup_options).reset(case.row.to_json())


def test_an_episode_without_a_reward_raises(environment: Any) -> None:
    env = environment("snacks", embedder="lexical", rubric=no_verdict)
    env.reset(PRICE.to_json())
    env.step(f"{FIND}\n{RULE}")
    with pytest.raises(RuntimeError, match="no reward"):
        env.step(REPLIED)


def test_other_names_are_no_attributes() -> None:
    with pytest.raises(AttributeError, match="no attribute `RoomEnv`"):
        _ = rllm.RoomEnv


def test_the_code_of_the_page_makes_a_trainer(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    core, trainer = ModuleType("rllm.types"), ModuleType("rllm.trainer")
    vars(core).update(vars(TYPES))
    vars(trainer)["AgentTrainer"] = dict
    named = {"rllm": ModuleType("rllm"), "rllm.types": core, "rllm.trainer": trainer}
    named |= {"rllm.eval": ModuleType("rllm.eval"), "rllm.eval.types": core}
    for name, module in named.items():
        monkeypatch.setitem(sys.modules, name, module)
    monkeypatch.chdir(tmp_path)
    (code,) = snippets("rLLM")
    made = module_of(code, rows=[], config={})
    assert made.trainer["agent_flow"] is made.trainer["evaluator"] is made.flow
    assert made.flow.setup.agents == {"host": REPLY}
