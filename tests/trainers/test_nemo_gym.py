"""NeMo Gym 0.7.0: our agent server over Gym's own model server, which asks a fake vLLM.

Gym's metadata asks for Python 3.13.14; its servers run under 3.11 too. What NeMo RL makes of a
rollout was read in its source, and is in `trained_by_nemo_rl` in our words.
"""

from __future__ import annotations

import json
import os
import runpy
import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import aiohttp
import httpx
import pytest
import yaml
from conformance import (
    CASES,
    ONE_AGENT_CASES,
    PRICE,
    REPLIED,
    WITHOUT_A_SEAT,
    Case,
    Shown,
    assert_closed,
    assert_same,
    expected,
    tokenizer_of,
)
from gateway_for_tests import send, served
from nemo_gym import server_utils
from nemo_gym.base_responses_api_agent import AggregateMetricsRequest
from nemo_gym.config_types import BaseServerConfig, ModelServerRef
from nemo_gym.server_utils import ServerClient
from omegaconf import DictConfig
from pages_for_tests import module_of, snippets
from policy_server_for_tests import EngineServer
from responses_api_models.vllm_model.app import VLLMModel, VLLMModelConfig
from servers_for_tests import free_port, running

import livestream_env as le
from livestream_env.adapters.nemo_gym import LiveRoomAgent, LiveRoomAgentConfig
from livestream_env.adapters.setup import Setup
from livestream_env.types import Rewards, Score

FAILED = ("failed call", "failed reset", "failed tool of a user")
PLAYED = [name for name in ONE_AGENT_CASES if name not in FAILED]
os.environ["NEMO_GYM_CONFIG_DICT"] = "{}"  # as the process that starts Gym's servers does


class VLLM(EngineServer):
    """A fake vLLM that names the tokens of its log-probabilities by their ids, as it is asked."""

    def __call__(self, request: dict[str, Any]) -> httpx.Response:
        body = super().__call__(request).json()
        choice = body["choices"][0]
        told = choice["logprobs"]["content"]
        for one, token in zip(told, choice["token_ids"], strict=True):
            one["token"] = f"token_id:{token}"
        return httpx.Response(200, json=body)


def client_of(port: int) -> ServerClient:
    """Return Gym's client of a model server."""
    model = {"responses_api_models": {"vllm_model": {"host": "127.0.0.1", "port": port}}}
    return ServerClient(
        head_server_config=BaseServerConfig(host="127.0.0.1", port=1),
        global_config_dict=DictConfig({"policy_model": model}),
    )


def both(agent: Any, model: Any) -> Any:
    """Return an ASGI application of two of Gym's servers, whose client belongs to one event loop.

    Each is a process in Gym.
    """

    async def app(scope: Any, receive: Any, send: Any) -> None:
        is_models = scope["type"] == "http" and scope["path"] == "/v1/responses"
        await (model if is_models else agent)(scope, receive, send)

    return app


@contextmanager
def agent_over(vllm: Any, agent: type[Any] = LiveRoomAgent, **setup: Any) -> Iterator[str]:
    """Serve Gym's model server over a fake vLLM and an agent over that; yields the agent's URL."""
    port = free_port()
    server = {"host": "127.0.0.1", "port": port, "entrypoint": "app.py"}
    client = client_of(port)
    made = agent(
        config=LiveRoomAgentConfig(
            **server,
            name="live_room_agent",
            model_server=ModelServerRef(type="responses_api_models", name="policy_model"),
            setup=setup,
        ),
        server_client=client,
    )

    def answer(handler: Any, body: bytes) -> None:
        request = json.loads(body)
        for message in request["messages"]:
            if message["content"] is None:  # as vLLM takes it of a message with calls
                assert message["tool_calls"]
                message["content"] = ""
        for tool in request.get("tools", ()):  # in the order of vLLM's model of a tool
            tool["function"] = tool.pop("function")
        send(handler, vllm(request))

    with served(answer) as vllm_url:
        config = VLLMModelConfig(
            **server,
            name="policy_model",
            base_url=vllm_url,
            api_key="key",
            model="policy",
            return_token_id_information=True,
            request_prompt_and_generation_token_ids=True,
            uses_reasoning_parser=False,
        )
        model = VLLMModel(config=config, server_client=client)
        server_utils._GLOBAL_AIOHTTP_CLIENT = None  # of the event loop of the test before
        app = both(made.setup_webserver(), model.setup_webserver())
        with running(app, port) as url:
            yield url


def policy_of(case: Case, *, reads_calls: bool = True) -> VLLM:
    made = tokenizer_of("chatml")
    agent = next(iter(case.families))
    return VLLM(
        lambda ids, _: case.samples(ids, agent),
        made,
        made.chat_template,
        reads_calls=reads_calls,
    )


def with_setup(setup: Setup, **members: Any) -> type[Any]:
    return type("Agent", (LiveRoomAgent,), {"setup": setup, **members})


def run(url: str, row: Mapping[str, Any], **params: Any) -> httpx.Response:
    asked = {"responses_create_params": {"input": [], **params}, **row}
    return httpx.post(f"{url}/run", json=asked, timeout=60)


def rollout_of(case: Case, *, reads_calls: bool = True, **options: Any) -> Any:
    setup = Setup(**{**case.setup_options, **options})
    with agent_over(policy_of(case, reads_calls=reads_calls), with_setup(setup)) as url:
        answer = run(url, case.row.to_json())
    assert answer.status_code == 200, answer.text
    return answer.json()


def test_sandboxes_are_closed_whatever_ends_an_episode() -> None:
    assert_closed(rollout_of)


def trained_by_nemo_rl(rollout: Any) -> tuple[list[int], list[int], list[float]]:
    """Return ids, mask and log-probabilities as NeMo RL makes them of a rollout.

    Items without ids are skipped; each prompt has to go on from all before.
    """
    ids: list[int] = []
    mask: list[int] = []
    logprobs: list[float] = []
    for item in rollout["response"]["output"]:
        if not item.get("generation_token_ids"):
            continue
        prompt, sampled = item["prompt_token_ids"], item["generation_token_ids"]
        assert prompt[: len(ids)] == ids, "Non-contiguous messages found"
        new = len(prompt) - len(ids)
        ids = [*prompt, *sampled]
        mask += [0] * new + [1] * len(sampled)
        logprobs += [0.0] * new + item["generation_log_probs"]
    return ids, mask, logprobs


@pytest.mark.row("R37", "R42")
@pytest.mark.parametrize("name", PLAYED)
def test_episodes_are_the_cores(name: str) -> None:
    case = CASES[name]
    rollout = rollout_of(case)
    got = Shown(
        rewards={"host": rollout["reward"]},
        truncated=rollout["status"] != "ok",
        excluded={"host": None},
    )
    if name == "rewritten past":
        with pytest.raises(AssertionError, match="Non-contiguous"):
            trained_by_nemo_rl(rollout)
    else:
        ids, mask, logprobs = trained_by_nemo_rl(rollout)
        got |= {
            "token_ids": {"host": [ids]},
            "loss_mask": {"host": [mask]},
            "logprobs": {"host": [logprobs]},
        }
    assert_same(case, got)
    assert rollout["turns"] == len(expected(case)["said"])
    assert rollout["mask_sample"] is False


@pytest.mark.row("R45")
@pytest.mark.parametrize("name", [*FAILED, "two agents and a failed call"])
def test_a_failed_environment_is_an_error_without_a_reward(name: str) -> None:
    case = CASES[name]
    options = dict(case.setup_options)
    if case.has_two_agents:
        options["agents"] = {"replier": case.options["agents"]["replier"]}
    with agent_over(policy_of(case), with_setup(Setup(**options))) as url:
        answer = run(url, case.row.to_json())
    assert answer.status_code == 503
    assert "is left out: env_error" in answer.text
    assert "reward" not in answer.json()


@pytest.mark.row("R37")
@pytest.mark.parametrize("masker", ["tool_calls", "reply"])
def test_masks_are_by_whole_turns(masker: str) -> None:
    case = CASES["several turns"]
    ids, mask, _ = trained_by_nemo_rl(rollout_of(case, masker=masker))
    setup = Setup(**case.setup_options, masker=masker)
    trajectory = le.rollout(setup.make_env(), case.agent(), **setup.opening(case.row))
    (row,) = setup.rows(trajectory, case.renderers)
    assert ids == list(row.token_ids)
    assert mask == list(row.loss_mask)


@pytest.mark.row("R54")
@pytest.mark.parametrize("agent", ["tool_caller", "replier"])
def test_one_of_two_agents_is_trained_on_its_own_reward(agent: str) -> None:
    case = CASES["two agents"]
    rollout = rollout_of(case, agents={agent: case.options["agents"][agent]})
    due = expected(case)
    ids, mask, _ = trained_by_nemo_rl(rollout)
    assert ids == list(due["token_ids"][agent][0])
    assert mask == list(due["loss_mask"][agent][0])
    assert rollout["reward"] == due["rewards"][agent]


def test_calls_that_the_model_server_does_not_read_are_answered_as_text() -> None:
    case = CASES["several turns"]
    rollout = rollout_of(case, reads_calls=False)
    assert rollout["reward"] == 1.0
    kinds = [(item["type"], item.get("role")) for item in rollout["response"]["output"]]
    assert kinds == [("message", role) for role in ("assistant", "user") * 2 + ("assistant",)]
    assert "<tool_response>" in rollout["response"]["output"][1]["content"]


def test_items_and_figures_are_in_the_rollout_and_the_log(tmp_path: Path) -> None:
    case = CASES["looked up"]
    rollout = rollout_of(case, log_dir=str(tmp_path))
    kinds = [item["type"] for item in rollout["response"]["output"]]
    assert kinds == ["function_call"] * 2 + ["function_call_output"] * 2 + ["message"]
    assert rollout["response"]["output"][-1]["content"][0]["text"] == REPLIED
    told = rollout["responses_create_params"]
    assert [item["role"] for item in told["input"]] == ["system", "user"]
    assert "get_reply_rule" in [tool["name"] for tool in told["tools"]]
    assert rollout["response"]["usage"]["total_tokens"] == 30  # two requests of 15 each
    (line,) = le.read_log(str(tmp_path)).lines
    assert line.trajectory.reward == rollout["reward"]
    assert line.trajectory.turns[0].action.token_ids


def test_sampling_parameters_reach_the_model() -> None:
    case = CASES["looked up"]
    seen: list[Any] = []

    def keeping(request: dict[str, Any]) -> httpx.Response:
        seen.append(request)
        return policy_of(case)(request)

    with agent_over(keeping, with_setup(Setup(**case.setup_options))) as url:
        run(url, case.row.to_json(), temperature=0.7, max_output_tokens=99)
    assert [one["temperature"] for one in seen] == [0.7, 0.7]
    assert {one.get("max_tokens", one.get("max_completion_tokens")) for one in seen} == {99}


def test_a_full_context_cuts_the_episode() -> None:
    case = CASES["looked up"]
    policy = policy_of(case)

    def full(request: dict[str, Any]) -> httpx.Response:
        if len(request["messages"]) > 2:
            text = "This model's maximum context length is 900 tokens."
            return httpx.Response(400, json={"message": text})
        return policy(request)

    with agent_over(full, with_setup(Setup(**case.setup_options))) as url:
        rollout = run(url, case.row.to_json()).json()
    assert (rollout["status"], rollout["stop_reason"]) == ("policy_truncated", "token_limit")
    assert sum(trained_by_nemo_rl(rollout)[1]) > 0


@pytest.mark.parametrize(("masker", "words"), [("end_to_end", 0), ("reply", 1)])
def test_a_context_that_is_full_before_a_trained_word_is_no_reward(masker: str, words: int) -> None:
    """Gym's model server answers with an empty message; NeMo RL would have nothing to train."""
    case = CASES["looked up"]
    policy = policy_of(case)

    def full(request: dict[str, Any]) -> httpx.Response:
        if len(request["messages"]) > 2 * words:
            text = "This model's maximum context length is 900 tokens."
            return httpx.Response(400, json={"message": text})
        return policy(request)

    with agent_over(full, with_setup(Setup(**case.setup_options, masker=masker))) as url:
        answer = run(url, case.row.to_json())
    assert answer.status_code == 503
    assert "is left out: empty_mask" in answer.text


def test_an_endpoint_that_fails_is_a_failed_environment() -> None:
    case = CASES["looked up"]

    def broken(_: dict[str, Any]) -> httpx.Response:
        return httpx.Response(422, json={"message": "no"})

    with agent_over(broken, with_setup(Setup(**case.setup_options))) as url:
        answer = run(url, case.row.to_json())
    assert answer.status_code == 503
    assert "env_error" in answer.text


@pytest.mark.row("R45")
def test_a_model_server_that_breaks_off_is_a_failed_environment(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    case = CASES["looked up"]

    async def breaks_off(self: Any, **request: Any) -> Any:
        raise aiohttp.ClientPayloadError("the answer is cut")

    monkeypatch.setattr(ServerClient, "post", breaks_off)
    setup = Setup(**case.setup_options, log_dir=str(tmp_path))
    with agent_over(policy_of(case), with_setup(setup)) as url:
        answer = run(url, case.row.to_json())
    assert answer.status_code == 503
    assert "the answer is cut" in answer.text
    (line,) = le.read_log(str(tmp_path)).lines
    assert line.trajectory.reward is None


@pytest.mark.row("R45")
def test_an_answer_that_a_filter_took_is_a_failed_environment() -> None:
    case = CASES["looked up"]
    policy = policy_of(case)

    def filtered(request: dict[str, Any]) -> httpx.Response:
        body = policy(request).json()
        body["choices"][0]["finish_reason"] = "content_filter"
        return httpx.Response(200, json=body)

    with agent_over(filtered, with_setup(Setup(**case.setup_options))) as url:
        answer = run(url, case.row.to_json())
    assert answer.status_code == 503
    assert "env_error: ChatRefused" in answer.text


def no_verdict(trajectory: le.Trajectory, room: le.Room | None) -> Rewards:
    return Rewards((Score("judge", None, cause="judge_error", reason="no verdict"),))


def test_an_episode_without_a_score_is_an_error() -> None:
    case = CASES["looked up"]
    agent = with_setup(Setup(**case.setup_options, rubric=no_verdict))
    with agent_over(policy_of(case), agent) as url:
        answer = run(url, case.row.to_json())
    assert (answer.status_code, "judge_error" in answer.text) == (503, True)


@pytest.mark.parametrize(
    ("row", "named"),
    [
        ({"seed": 1, "room": "snakcs"}, "snacks"),
        ({"room": "snacks"}, "needs `seed`"),
        ({"seed": 1, "comment": ["c99"]}, "c99"),
    ],
)
def test_a_row_that_is_none_is_told_in_words(row: Any, named: str) -> None:
    with agent_over(policy_of(CASES["looked up"]), room="snacks", embedder="lexical") as url:
        answer = run(url, row)
    assert answer.status_code == 422
    assert named in answer.text


def test_the_arguments_may_stand_in_gyms_yaml() -> None:
    case = CASES["looked up"]
    with agent_over(policy_of(case), room="snacks", embedder="lexical", masker="reply") as url:
        rollout = run(url, PRICE.to_json()).json()
    assert rollout["reward"] == 1.0
    assert sum("generation_token_ids" in item for item in rollout["response"]["output"]) == 1


def test_two_agents_at_once_are_refused() -> None:
    with (
        pytest.raises(ValueError, match="train one agent"),
        agent_over(
            policy_of(CASES["two agents"]),
            room="snacks",
            embedder="lexical",
            agents={"tool_caller": "tool_calls", "replier": "reply"},
        ),
    ):
        pass


@pytest.mark.parametrize(("agents", "seat", "told"), WITHOUT_A_SEAT)
def test_a_partner_without_a_seat_is_refused_at_once(
    agents: dict[str, str], seat: str, told: str
) -> None:
    agent = with_setup(
        Setup("snacks", agents=agents), partners={seat: "chat:http://127.0.0.1:9/v1#m"}
    )
    with pytest.raises(ValueError, match=told), agent_over(policy_of(CASES["looked up"]), agent):
        pass


def test_a_partner_is_not_asked_of_the_model_server() -> None:
    case = CASES["two agents"]

    class Looks:
        def act(self, messages: Any, tools: Any) -> str:
            return case.says(messages).text

    setup = Setup(
        **{**case.setup_options, "agents": {"replier": case.options["agents"]["replier"]}}
    )
    agent = with_setup(setup, partners={"tool_caller": Looks()})
    with agent_over(policy_of(case), agent) as url:
        rollout = run(url, case.row.to_json()).json()
    assert rollout["reward"] == expected(case)["rewards"]["replier"]
    output = rollout["response"]["output"]
    assert sum("generation_token_ids" in item for item in output) == 1
    assert [item["type"] for item in output][:2] == ["function_call", "function_call_output"]


def test_members_of_a_group_play_at_a_time() -> None:
    case = CASES["several turns"]
    made: list[Any] = []
    with agent_over(policy_of(case), with_setup(Setup(**case.setup_options))) as url:
        threads = [
            threading.Thread(target=lambda: made.append(run(url, case.row.to_json()).json()))
            for _ in range(8)
        ]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    assert [one["reward"] for one in made] == [1.0] * 8
    assert len({json.dumps(trained_by_nemo_rl(one)) for one in made}) == 1


def test_gyms_own_figures_have_those_of_the_run() -> None:
    case = CASES["looked up"]
    with agent_over(policy_of(case), with_setup(Setup(**case.setup_options))) as url:
        rollout = run(url, case.row.to_json()).json() | {
            "_ng_task_index": 0,
            "_ng_rollout_index": 0,
        }
        asked = AggregateMetricsRequest(verify_responses=[rollout])
        told = httpx.post(f"{url}/aggregate_metrics", json=asked.model_dump()).json()
    assert told["agent_metrics"]["mean/reward"] == 1.0
    assert told["agent_metrics"]["mean/calls/executed"] == 2.0


def test_the_example_plays(monkeypatch: pytest.MonkeyPatch, capsys: Any) -> None:
    folder = Path(__file__).resolve().parents[2] / "examples" / "trainers"
    monkeypatch.syspath_prepend(str(folder))
    runpy.run_path(str(folder / "nemo_gym_agent.py"), run_name="__main__")
    assert "reward 1.0" in capsys.readouterr().out


def test_the_code_of_the_page_makes_the_agent() -> None:
    (code,), (told,) = snippets("NeMo Gym"), snippets("NeMo Gym", "yaml")
    assert module_of(code).LiveRoomAgent is LiveRoomAgent
    given = yaml.safe_load(told)["live_room_agent"]["responses_api_agents"]["live_room_agent"]
    case = CASES["looked up"]
    with agent_over(policy_of(case), **given["setup"]) as url:
        answer = run(url, case.row.to_json())
    assert answer.json()["reward"] == 1.0
