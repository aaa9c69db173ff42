"""ART 0.5.18: its client over a fake vLLM, its groups and gathering, and its own tokenizer."""

from __future__ import annotations

import asyncio
import json
import math
import os
import runpy
import textwrap
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

os.environ["LITELLM_LOCAL_MODEL_COST_MAP"] = "True"  # litellm would fetch it

import art
import httpx
import pytest
from art.preprocessing.tokenize import tokenize_trajectory_groups
from conformance import (
    CASES,
    ONE_AGENT_CASES,
    REPLIED,
    WITHOUT_A_SEAT,
    Case,
    Line,
    assert_closed,
    assert_same,
    breaks_some,
    call,
    expected,
    tokenizer_of,
)
from gateway_for_tests import error
from openai.types.chat.chat_completion import Choice
from pages_for_tests import module_of, snippets
from policy_server_for_tests import EngineServer, PolicyServer, serving

import livestream_env as le
from livestream_env.adapters.art import RoomRollout
from livestream_env.adapters.recorded import RecordedRenderer
from livestream_env.types import Rewards, Score

Answer = Callable[[dict[str, Any]], httpx.Response]


def server_of(case: Case, form: str = "vllm", *, reads_calls: bool = True) -> Answer:
    """Return ART's server of a case: vLLM, whose parser reads calls in Hermes' form."""
    agent, family = next(iter(case.families.items()))
    made = tokenizer_of(family)
    answer = EngineServer(
        lambda ids, _: case.samples(ids, agent),
        made,
        made.chat_template,
        form,
        reads_calls=reads_calls,
    )

    def named(request: dict[str, Any]) -> httpx.Response:
        told = answer(request).json()
        return httpx.Response(200, json={**told, "model": request["model"]})

    return named


def model_at(url: str, step: int = 3) -> Any:
    return art.Model(
        name="host",
        project="rooms",
        inference_api_key="default",
        inference_base_url=url,
        inference_model_name=f"host@{step}",
    )


def play(case: Case, answer: Answer | None = None, **options: Any) -> Any:
    """Play a case by a rollout."""
    with serving(answer or server_of(case)) as (url, _):
        rollout = RoomRollout(**{**case.setup_options, **options})
        return asyncio.run(rollout(model_at(url), case.row.to_json()))


def test_sandboxes_are_closed_whatever_ends_an_episode() -> None:
    assert_closed(play)


def tokenized(
    *trajectories: Any, scale_rewards: bool = False, tool_format: Any = "vllm_openai"
) -> list[Any]:
    """Return what ART trains of a group."""
    return list(
        tokenize_trajectory_groups(
            tokenizer_of("chatml"),
            [art.TrajectoryGroup(trajectories)],
            allow_training_without_logprobs=False,
            scale_rewards=scale_rewards,
            shuffle_group_trajectories=False,
            drop_zero_advantage_trajectories=False,
            chat_template_tool_schema_format=tool_format,
        )
    )


def trained(result: Any) -> list[int]:
    pairs = zip(result.token_ids, result.assistant_mask, strict=True)
    return [token for token, bit in pairs if bit]


def shown(case: Case, trajectory: Any, agent: str = "host") -> Any:
    """Return what ART trains of a trajectory, beside what the core makes of another agent."""
    results = tokenized(trajectory)
    results = [*results[1:], results[0]]  # the last context is the trajectory's own
    logprobs = [[0.0 if math.isnan(one) else one for one in r.logprobs] for r in results]
    own = {
        "token_ids": [result.token_ids for result in results],
        "loss_mask": [result.assistant_mask for result in results],
        "logprobs": logprobs,
        "trained_ids": [token for result in results for token in trained(result)],
        "rewards": trajectory.reward,
    }
    due: Any = expected(case)
    return {
        **{key: {**due[key], agent: value} for key, value in own.items()},
        "truncated": trajectory.metadata["status"] != "ok",
    }


# --- conformance ------------------------------------------------------------------------------


@pytest.mark.row("R42")
@pytest.mark.parametrize("name", ONE_AGENT_CASES)
def test_what_art_trains_is_the_cores(name: str) -> None:
    case = CASES[name]
    cause = expected(case)["excluded"]["host"]
    if cause:
        with pytest.raises(RuntimeError, match=f"is left out: {cause}"):
            play(case)
        return
    assert_same(case, shown(case, play(case)))


@pytest.mark.parametrize("agent", ["tool_caller", "replier"])
def test_each_of_two_agents_has_rollouts_of_its_own(agent: str) -> None:
    case = CASES["two agents"]
    masker = case.options["agents"][agent]
    trajectory = play(case, agents={agent: masker})
    assert trajectory.metadata["agent"] == agent
    assert trajectory.reward == pytest.approx(expected(case)["rewards"][agent])
    [result] = tokenized(trajectory)
    assert trained(result) == list(expected(case)["trained_ids"][agent])
    with pytest.raises(ValueError, match="trains one agent"):
        RoomRollout(**case.setup_options)


@pytest.mark.parametrize("form", ["vllm", "old_vllm", "sglang"])
@pytest.mark.parametrize("reads_calls", [True, False], ids=["parsed", "text"])
def test_ids_are_those_that_were_sampled_however_they_are_told(
    form: str, reads_calls: bool
) -> None:
    case = CASES["several turns"]
    trajectory = play(case, server_of(case, form, reads_calls=reads_calls))
    assert_same(case, shown(case, trajectory))


@pytest.mark.parametrize("masker", ["tool_calls", "reply"])
def test_a_masked_turn_is_a_message(masker: str) -> None:
    case = CASES["several turns"]
    [whole] = tokenized(play(case))
    trajectory = play(case, masker=masker)
    roles = [
        "choice" if isinstance(one, Choice) else one["role"]
        for one in trajectory.messages_and_choices
    ]
    said = [role for role in roles if role in ("choice", "assistant")]
    is_reply = masker == "reply"
    assert said == (["assistant"] * 2 + ["choice"] if is_reply else ["choice"] * 2 + ["assistant"])
    [result] = tokenized(trajectory)
    length = len(result.token_ids)
    assert result.token_ids == whole.token_ids[:length]
    assert trained(result) == (
        trained(whole)[-len(trained(result)) :]
        if is_reply
        else trained(whole)[: len(trained(result))]
    )
    assert (length == len(whole.token_ids)) == is_reply
    assert trajectory.reward == 1.0


def thinks_apart(answer: Answer) -> Answer:
    """Return a server that tells thinking beside the content, as with a reasoning parser."""

    def told(request: dict[str, Any]) -> httpx.Response:
        body = answer(request).json()
        message = body["choices"][0]["message"]
        thought, end, rest = (message["content"] or "").partition("</think>\n\n")
        if end:
            message["content"] = rest or None
            message["reasoning_content"] = thought.removeprefix("<think>\n").rstrip()
        return httpx.Response(200, json=body)

    return told


def test_a_masked_turn_keeps_its_thinking() -> None:
    case = CASES["rewritten past"]
    answer = thinks_apart(server_of(case, reads_calls=False))
    trajectory = play(case, answer, masker="reply")
    first, second = [one for one in trajectory.messages()[:-1] if one["role"] == "assistant"]
    assert (first["reasoning_content"], second["reasoning_content"]) == ("先查价", "再查")


def test_earlier_contexts_stand_as_they_were_sent_back(tmp_path: Path) -> None:
    """Servers refuse a name that is none, so a call of such a tool goes back under another."""
    lines = (Line(call("查价格", a=1)), *CASES["several turns"].lines[1:])
    case = replace(CASES["several turns"], lines=lines)
    trajectory = play(case, log_dir=str(tmp_path))
    [line] = le.read_log(str(tmp_path)).lines
    results = tokenized(trajectory)
    served = RecordedRenderer().render(line.trajectory)
    assert len(results) == len(served) == 2
    assert [one.token_ids for one in (results[1], results[0])] == [
        list(one.token_ids) for one in served
    ]


def test_art_renders_the_calls_of_a_choice_once_more() -> None:
    """Why a choice has its calls in its content: ART's own form trains in a context of twos."""
    case = CASES["several turns"]
    trajectory = play(case)
    [result] = tokenized(trajectory)
    first = next(one for one in trajectory.messages_and_choices if isinstance(one, Choice))
    assert first.message.tool_calls is None
    told = {"id": "call_a", "type": "function", "function": {"name": "get", "arguments": "{}"}}
    given = first.to_dict()
    given["message"] = {"role": "assistant", "content": "", "tool_calls": [told]}
    at = trajectory.messages_and_choices.index(first)
    trajectory.messages_and_choices[at] = Choice.model_validate(given)
    [twice] = tokenized(trajectory)
    decode = tokenizer_of("chatml").decode
    assert decode(result.token_ids).count("<tool_call>") == 2
    assert decode(twice.token_ids).count("<tool_call>") == 3


def test_tools_need_arts_setting_to_stand_as_the_server_shows_them() -> None:
    """ART's types change the order of a tool's keys, which its other setting puts right."""
    trajectory = play(CASES["looked up"])
    [shown_as_served], [otherwise] = (
        tokenized(trajectory),
        tokenized(trajectory, tool_format="default"),
    )
    assert otherwise.token_ids != shown_as_served.token_ids
    assert trained(otherwise) == trained(shown_as_served)


# --- groups -----------------------------------------------------------------------------------


def gather(case: Case, *, size: int, max_exceptions: float, **options: Any) -> list[Any]:
    """Gather one group of a case as a training script does."""

    async def gathered(url: str) -> list[Any]:
        model = model_at(url)
        groups = [
            art.TrajectoryGroup(rollout(model, case.row.to_json()) for _ in range(size)),
        ]
        return await art.gather_trajectory_groups(
            groups, pbar_desc=None, max_exceptions=max_exceptions
        )

    rollout = RoomRollout(**{**case.setup_options, **options})
    with serving(server_of(case)) as (url, _):
        return asyncio.run(gathered(url))


@pytest.mark.row("R42")
def test_a_failed_member_is_an_exception_of_its_group() -> None:
    case = CASES["looked up"]
    [group] = gather(case, size=3, max_exceptions=1, sandbox=breaks_some(1))
    assert [one.reward for one in group] == [1.0, 1.0]
    [left_out] = group.exceptions
    assert "env_error" in left_out.message
    assert [one.advantage for one in tokenized(*group)] == [0.0, 0.0]
    with pytest.raises(RuntimeError, match="is left out: env_error"):
        gather(case, size=3, max_exceptions=0, sandbox=breaks_some(1))


@pytest.mark.row("R42")
def test_a_group_of_failures_is_empty_and_nothing_is_trained() -> None:
    case = CASES["failed call"]
    [group] = gather(case, size=2, max_exceptions=2)
    assert (len(group), len(group.exceptions)) == (0, 2)
    assert tokenized(*group) == []


def test_a_group_has_the_advantages_of_its_rewards() -> None:
    """Rewards 1 and 0.25 (hand: mean 0.625, both 0.375 away)."""
    made = [play(CASES[name]) for name in ("looked up", "looked up")]
    made[1].reward = 0.25
    results = tokenized(*made)
    assert [one.advantage for one in results] == pytest.approx([0.375, -0.375])
    scaled = tokenized(*made, scale_rewards=True)
    assert [one.advantage for one in scaled] == pytest.approx([1.0, -1.0], abs=1e-4)


def no_verdict(trajectory: le.Trajectory, room: le.Room | None) -> Rewards:
    return Rewards((Score("judge", None, cause="judge_error", reason="no verdict"),))


def test_an_episode_without_a_score_is_no_reward() -> None:
    with pytest.raises(RuntimeError, match="is left out: judge_error"):
        play(CASES["looked up"], rubric=no_verdict)


# --- the server -------------------------------------------------------------------------------


@pytest.mark.row("R45")
def test_a_server_that_fails_is_no_reward(tmp_path: Path) -> None:
    case = CASES["looked up"]
    with pytest.raises(RuntimeError, match="is left out: env_error"):
        play(case, lambda request: error(400, "bad", "no such model"), log_dir=str(tmp_path))
    [line] = le.read_log(str(tmp_path)).lines
    assert line.trajectory.reward is None


@pytest.mark.row("R45")
def test_an_answer_that_a_filter_took_is_no_reward() -> None:
    case = CASES["looked up"]
    answer = server_of(case)

    def filtered(request: dict[str, Any]) -> httpx.Response:
        body = answer(request).json()
        body["choices"][0]["finish_reason"] = "content_filter"
        return httpx.Response(200, json=body)

    with pytest.raises(RuntimeError, match="is left out: env_error: ChatRefused"):
        play(case, filtered)


def test_a_full_context_ends_the_episode_as_cut() -> None:
    case, calls = CASES["several turns"], iter(range(9))
    answer = server_of(case)

    def full(request: dict[str, Any]) -> httpx.Response:
        if next(calls) < 2:
            return answer(request)
        return error(400, "context_length_exceeded", "maximum context length is 9 tokens")

    trajectory = play(case, full)
    assert trajectory.metadata["status"] == "policy_truncated"
    assert trajectory.reward < 1.0
    [result] = tokenized(trajectory)
    [whole] = tokenized(play(case))
    assert trained(result) == trained(whole)[: len(trained(result))]


def test_a_server_without_logprobs_is_told() -> None:
    case = CASES["looked up"]
    answer = server_of(case)

    def silent(request: dict[str, Any]) -> httpx.Response:
        body = answer(request).json()
        body["choices"][0]["logprobs"] = None
        return httpx.Response(200, json=body)

    with pytest.raises(RuntimeError, match="no log-probabilities"):
        play(case, silent)


def test_requests_are_those_of_arts_client_and_hold_the_sampling() -> None:
    case = CASES["looked up"]
    with serving(server_of(case)) as (url, server):
        rollout = RoomRollout(**case.setup_options, sampling={"max_tokens": 64})
        trajectory = asyncio.run(rollout(model_at(url), case.row.to_json()))
    assert_requests(server)
    assert (trajectory.initial_policy_version, trajectory.final_policy_version) == (3, 3)
    assert trajectory.tools == server.requests[0]["tools"]


def test_requests_hold_the_models_variables_of_the_template() -> None:
    case, thinks_not = CASES["looked up"], {"enable_thinking": False}
    with serving(server_of(case)) as (url, server):
        model = art.TrainableModel(
            name="host",
            project="rooms",
            base_model="base",
            _internal_config={"chat_template_kwargs": thinks_not},
        )
        model.inference_base_url, model.inference_api_key = url, "default"
        asyncio.run(RoomRollout(**case.setup_options)(model, case.row.to_json()))
    assert [one["chat_template_kwargs"] for one in server.requests] == [thinks_not] * 2


def assert_requests(server: PolicyServer) -> None:
    first, second = server.requests
    assert {one["model"] for one in server.requests} == {"host@3"}
    assert {one["max_tokens"] for one in server.requests} == {64}
    assert all(one["logprobs"] and "seed" not in one for one in server.requests)
    assert second["messages"][: len(first["messages"])] == first["messages"]
    assert {one["authorization"] for one in lowered(server)} == {"Bearer default"}


def lowered(server: PolicyServer) -> list[dict[str, str]]:
    return [{name.lower(): value for name, value in one.items()} for one in server.headers]


# --- ART's own channels -------------------------------------------------------------------------


def test_figures_and_the_task_ride_on_the_trajectory(tmp_path: Path) -> None:
    case = CASES["looked up"]
    trajectory = play(case, log_dir=str(tmp_path))
    assert trajectory.metrics["livestream/turns"] == 2.0
    assert trajectory.metrics["livestream/calls/executed"] == 2.0
    assert trajectory.metadata["scenario_id"] == "snacks:c02:1"
    assert trajectory.messages()[-1]["content"] == REPLIED
    [line] = le.read_log(str(tmp_path)).lines
    assert (line.trajectory.reward, line.policy_version) == (1.0, "3")
    art.Trajectory.model_validate_json(trajectory.model_dump_json())


def test_a_partner_goes_past_arts_server() -> None:
    case = CASES["two agents"]

    class Looks:
        def act(self, messages: Any, tools: Any) -> str:
            return case.says(messages).text

    options = {**case.setup_options, "agents": {"replier": "reply"}}
    with serving(server_of(case)) as (url, server):
        rollout = RoomRollout(**options, partners={"tool_caller": Looks()})
        trajectory = asyncio.run(rollout(model_at(url), case.row.to_json()))
    assert len(server.requests) == 1
    assert trajectory.reward == pytest.approx(expected(case)["rewards"]["replier"])
    [result] = tokenized(trajectory)
    assert trained(result) == list(expected(case)["trained_ids"]["replier"])


def test_the_example_plays(monkeypatch: pytest.MonkeyPatch, capsys: Any) -> None:
    folder = Path(__file__).resolve().parents[2] / "examples" / "trainers"
    monkeypatch.syspath_prepend(str(folder))
    runpy.run_path(str(folder / "art_rollout.py"), run_name="__main__")
    lines = [line for line in capsys.readouterr().out.splitlines() if line.startswith("{")]
    played = [json.loads(line) for line in lines]
    assert [one["reward"] for one in played] == [1.0, 0.0, 0.0]  # small talk, then two questions
    assert all(one["choices"] == 2 for one in played)


@pytest.mark.parametrize(("agents", "seat", "told"), WITHOUT_A_SEAT)
def test_a_partner_without_a_seat_is_refused_at_once(
    agents: dict[str, str], seat: str, told: str
) -> None:
    partners = {seat: "chat:http://127.0.0.1:9/v1#m"}
    with pytest.raises(ValueError, match=told):
        RoomRollout("snacks", agents=agents, partners=partners)


@pytest.mark.parametrize(
    ("sampling", "told"),
    [({"n": 4}, "one answer"), ({"seed": object()}, "no JSON"), ({"stream": True}, "sends itself")],
)
def test_sampling_that_cannot_be_sent_is_refused_at_once(
    sampling: dict[str, Any], told: str
) -> None:
    with pytest.raises(ValueError, match=told):
        RoomRollout("snacks", sampling=sampling)


def test_the_code_of_the_page_gathers_and_trains(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    case, (code,) = CASES["looked up"], snippets("ART")
    trained: list[Any] = []

    class Backend:
        async def register(self, model: Any) -> None: ...

        async def _prepare_backend_for_training(self, model: Any, config: Any) -> tuple[str, str]:
            return url, "key"

        async def train(self, model: Any, groups: Any) -> None:
            trained.extend(groups)

    monkeypatch.chdir(tmp_path)
    with serving(server_of(case)) as (url, _):
        body = textwrap.indent(code, "    ")
        page = module_of(
            f"async def play():\n{body}", backend=Backend(), batches=[[case.row.to_json()]]
        )
        asyncio.run(page.play())
    (group,) = trained
    assert [one.reward for one in group.trajectories] == [1.0] * 8
