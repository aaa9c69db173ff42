"""SkyRL 0.3.0 and skyrl-gym 0.4.0: its generator over its data set, with a fake engine."""

from __future__ import annotations

import asyncio
import importlib
import json
import math
import runpy
import sys
import threading
from collections.abc import Iterator, Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any, ClassVar

import numpy as np
import pytest
import skyrl_gym
import skyrl_on_311  # noqa: F401
import torch
from conformance import (
    CASES,
    ONE_AGENT_CASES,
    PRICE,
    Case,
    assert_closed,
    assert_same,
    breaks_some,
    expected,
    said_in,
    thinking_tokenizer,
    thinks,
    thought,
    tokenizer_of,
)
from pages_for_tests import module_of, snippets
from skyrl.backends.skyrl_train.utils.ppo_utils import compute_grpo_outcome_advantage
from skyrl.train.config import GeneratorConfig, SkyRLGymConfig
from skyrl.train.dataset.dataset import PromptDataset
from skyrl.train.dataset.preprocess import convert_prompts_responses_to_batch_tensors
from skyrl.train.generators.skyrl_gym_generator import SkyRLGymGenerator
from skyrl.train.generators.utils import prepare_generator_input
from skyrl.train.utils.trainer_utils import validate_generator_output

import livestream_env as le
from livestream_env.adapters.data_sets import write_data_set
from livestream_env.adapters.setup import Setup, TaskRow, task_rows
from livestream_env.adapters.skyrl import EpisodeLeftOut, LiveRoom, LiveRoomGenerator, register
from livestream_env.rewards import Rubric
from livestream_env.types import Score, Status, Trajectory

ROOT = Path(__file__).resolve().parents[2]
SNACKS = {"room": "snacks", "embedder": "lexical"}


class CaseRoom(LiveRoom):
    """A user's own environment: what no JSON holds is in `setup`; keeps what was made."""

    made: ClassVar[list[Any]] = []

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.made.append(self)


class Client:
    """Samples as a case says, in the form of SkyRL's inference client, and keeps what was asked."""

    model_name = "policy"

    def __init__(self, case: Case) -> None:
        self.case = case
        self.asked: list[list[int]] = []
        self.finished = 0

    async def generate(self, given: Any, model: str | None = None) -> Any:
        (ids,) = given["prompt_token_ids"]
        self.asked.append(list(ids))
        await asyncio.sleep(0)
        sampled = self.case.samples(ids, next(iter(self.case.families)))
        text = tokenizer_of("chatml").decode(sampled.token_ids, skip_special_tokens=True)
        return {
            "responses": [text],
            "response_ids": [list(sampled.token_ids)],
            "stop_reasons": [sampled.stop],
            "response_logprobs": [list(sampled.logprobs or ())],
        }

    async def finish_session(self, session: str) -> None:
        self.finished += 1


@pytest.fixture(autouse=True)
def registry() -> Iterator[None]:
    before = dict(skyrl_gym.envs.registration.registry)
    CaseRoom.made.clear()
    yield
    skyrl_gym.envs.registration.registry.clear()
    skyrl_gym.envs.registration.registry.update(before)


def config_of(**generator: Any) -> GeneratorConfig:
    config = GeneratorConfig()
    given = {"batched": False, "max_turns": 10, "max_input_length": 16000, **generator}
    given.setdefault("use_conversation_multi_turn", True)
    for name, value in given.items():
        assert hasattr(config, name)
        setattr(config, name, value)
    config.sampling_params.logprobs = 1
    return config


def generator_of(client: Client, kind: Any = None, tokenizer: Any = None, **generator: Any) -> Any:
    made, tokenizer = kind or LiveRoomGenerator, tokenizer or tokenizer_of("chatml")
    return made(config_of(**generator), SkyRLGymConfig(), client, tokenizer)


def batch_of(rows: Sequence[TaskRow], n: int = 1, env: str = "liveroom") -> Any:
    prompts = [
        {"prompt": [{"role": "user", "content": "x"}], "env_class": env, "uid": str(at)}
        | {"env_extras": row.to_json()}
        for at, row in enumerate(rows)
    ]
    return prepare_generator_input(prompts, n, None, env, "train", 1)[0]


def play(
    case: Case,
    rows: Sequence[TaskRow] | None = None,
    *,
    n: int = 1,
    setup: Setup | None = None,
    client: Client | None = None,
    kind: Any = None,
    tokenizer: Any = None,
    **generator: Any,
) -> Any:
    """Play a case by SkyRL's generator and return what comes out."""
    CaseRoom.setup = setup or Setup(**case.setup_options)
    skyrl_gym.envs.registration.registry.pop("liveroom", None)
    skyrl_gym.register("liveroom", entry_point=f"{__name__}:CaseRoom")
    made = generator_of(client or Client(case), kind, tokenizer, **generator)
    batch = batch_of(rows or [case.row], n)
    output = asyncio.run(made.generate(batch, disable_tqdm=True))
    validate_generator_output(len(batch["prompts"]), output)
    return output


def trained(output: Any, at: int = 0) -> list[int]:
    pairs = zip(output["response_ids"][at], output["loss_masks"][at], strict=True)
    return [token for token, bit in pairs if bit]


def shown(case: Case, output: Any, agent: str = "host") -> Any:
    """Return what SkyRL's output shows, beside what the core makes of another agent."""
    (env,) = CaseRoom.made
    due: Any = expected(case)
    own = {"trained_ids": trained(output), "rewards": sum(output["rewards"][0])}
    return {
        **{key: {**due[key], agent: value} for key, value in own.items()},
        "messages": env.played().messages,
        "said": said_in(env.played().messages),
        "truncated": env.played().status is not Status.OK,
    }


# --- conformance ------------------------------------------------------------------------------


@pytest.mark.row("R37", "R42", "R44")
@pytest.mark.parametrize("name", ONE_AGENT_CASES)
def test_episodes_are_the_cores(name: str) -> None:
    case, client = CASES[name], Client(CASES[name])
    cause = expected(case)["excluded"]["host"]
    if cause:
        with pytest.raises(RuntimeError, match=f"the first is left out: {cause}"):
            play(case, client=client)
    else:
        output = play(case, client=client)
        assert_same(case, shown(case, output))
        bits = list(zip(output["loss_masks"][0], output["rollout_logprobs"][0], strict=True))
        assert all((logprob == 0.0) == (not bit) for bit, logprob in bits)
    assert client.finished == 1


@pytest.mark.parametrize("stop", ["stop", "length"])
def test_thinking_that_the_prompt_opens_and_nothing_closes_is_no_reply(stop: str) -> None:
    case = thinks(stop)
    due = thought(case)
    output = play(case, tokenizer=thinking_tokenizer())
    got = CaseRoom.made[0].played()
    assert due.reward is not None
    assert sum(output["rewards"][0]) == pytest.approx(due.reward)
    assert got.stop_reason == due.stop_reason
    assert said_in(got.messages) == said_in(due.messages)


@pytest.mark.parametrize("agent", ["tool_caller", "replier"])
def test_each_of_two_agents_is_trained_by_its_own_run(agent: str) -> None:
    case = CASES["two agents"]
    agents = {agent: case.options["agents"][agent]}
    output = play(case, setup=Setup(**{**case.setup_options, "agents": agents}))
    assert_same(case, shown(case, output, agent))
    with pytest.raises(ValueError, match="it trains one agent"):
        play(case)


@pytest.mark.row("R45")
def test_a_request_that_the_engine_aborts_is_no_reward(tmp_path: Path) -> None:
    case = CASES["looked up"]

    class Aborts(Client):
        async def generate(self, given: Any, model: str | None = None) -> Any:
            reason = "stop" if self.asked else "abort"
            return {**await super().generate(given, model), "stop_reasons": [reason]}

    setup = Setup(**case.setup_options, log_dir=str(tmp_path))
    output = play(case, client=Aborts(case), n=2, setup=setup)
    left_out = "left out: env_error: ChatError: SkyRL's engine aborted the request"
    assert sorted(output["stop_reasons"]) == [left_out, "stop"]
    at = output["stop_reasons"].index(left_out)
    assert not any(output["loss_masks"][at])
    assert output["rewards"][at] == [1.0]  # the mean of the others
    statuses = [line.trajectory.status for line in le.read_log(str(tmp_path)).lines]
    assert sorted(statuses) == [Status.ENV_ERROR, Status.OK]


def by_turn(trajectory: Trajectory, room: le.Room) -> list[Score]:
    """Give each turn with a call 0.25, and the whole 1.0."""
    calling = [at for at, turn in enumerate(trajectory.turns) if turn.action.message.tool_calls]
    return [*(Score("called", 0.25, turn=at) for at in calling), Score("whole", 1.0)]


@pytest.mark.parametrize("kind", [LiveRoomGenerator, SkyRLGymGenerator])
def test_turns_have_their_own_rewards_at_their_last_tokens(kind: Any) -> None:
    case = CASES["several turns"]
    options = {**case.setup_options, "rubric": Rubric([by_turn]), "process": True}
    output = play(case, setup=Setup(**options), kind=kind)
    mask, rewards = output["loss_masks"][0], output["rewards"][0]
    ends = [at for at, bit in enumerate(mask) if bit and not [*mask, 0][at + 1]]
    earned = {at: reward for at, reward in enumerate(rewards) if reward}
    assert earned == dict(zip(ends, [0.25, 0.25, 1.0], strict=True))


@pytest.mark.parametrize("masker", ["tool_calls", "reply"])
def test_a_masker_picks_the_turns(masker: str) -> None:
    case = CASES["several turns"]
    whole = trained(play(case))
    CaseRoom.made.clear()
    output = play(case, setup=Setup(**case.setup_options, masker=masker))
    said = [turn.action.token_ids or () for turn in CaseRoom.made[0].played().turns]
    calls = [token for ids in said[:2] for token in ids]
    due = calls if masker == "tool_calls" else list(said[2])
    assert trained(output) == due
    assert whole == [token for ids in said for token in ids]
    assert sum(output["rewards"][0]) == 1.0


def test_a_masker_that_cuts_shortens_the_response() -> None:
    case = CASES["several turns"]
    whole = play(case)
    output = play(case, setup=Setup(**case.setup_options, masker="tool_calls"))
    length = len(output["response_ids"][0])
    assert length < len(whole["response_ids"][0])
    assert output["response_ids"][0] == whole["response_ids"][0][:length]
    assert output["loss_masks"][0][-1] == 1
    assert len(output["rollout_logprobs"][0]) == len(output["rewards"][0]) == length
    assert output["rewards"][0][-1] > 0


# --- groups, failures, limits -----------------------------------------------------------------


@pytest.mark.row("R42")
def test_a_failed_environment_is_masked_and_moves_no_mean() -> None:
    case = CASES["looked up"]
    setup = Setup("snacks", sandbox=breaks_some(1))
    output = play(case, n=4, setup=setup)
    (at,) = [at for at, why in enumerate(output["stop_reasons"]) if why.startswith("left out")]
    assert output["stop_reasons"][at] == "left out: env_error: SandboxUnavailable: down"
    assert sum(output["loss_masks"][at]) == 0
    totals = np.array([sum(rewards) for rewards in output["rewards"]])
    assert totals.tolist() == [1.0] * 4  # the three that were played, and their mean
    assert output["rollout_metrics"]["environment/env_error/share"] == 0.25


def test_the_mean_of_the_others_leaves_their_advantages_in_proportion() -> None:
    rewards = torch.tensor([[0.0], [0.5], [1.0], [0.5]])  # the last has the mean of three
    ones, index = torch.ones(4, 1), np.array(["a"] * 4)
    for by_std in (True, False):
        filled, _ = compute_grpo_outcome_advantage(
            rewards.clone(), ones, index, grpo_norm_by_std=by_std
        )
        alone, _ = compute_grpo_outcome_advantage(
            rewards[:3].clone(), ones[:3], index[:3], grpo_norm_by_std=by_std
        )
        ratios = filled[[0, 2], 0] / alone[[0, 2], 0]
        assert ratios[0] == pytest.approx(ratios[1])
        assert filled[1, 0] == filled[3, 0] == alone[1, 0] == 0


def test_the_environment_alone_raises_rather_than_earn_nothing() -> None:
    case = CASES["failed call"]
    with pytest.raises(EpisodeLeftOut, match=r"env_error: SandboxUnavailable"):
        play(case, kind=SkyRLGymGenerator)


def test_under_skyrls_own_generator_the_same_is_said_and_earned() -> None:
    case = CASES["several turns"]
    output = play(case, kind=SkyRLGymGenerator)
    assert_same(case, shown(case, output))


def test_the_trainers_limits_end_and_score_the_episode() -> None:
    case = CASES["several turns"]
    due = expected(CASES["turn limit"])["rewards"]["host"]
    limited = CASES["turn limit"]
    output = play(Case("two turns", limited.row, limited.lines), max_turns=2)
    assert sum(output["rewards"][0]) == due
    assert CaseRoom.made.pop().played().stop_reason is le.StopReason.TURN_LIMIT
    client = Client(case)
    play(case, client=client)
    CaseRoom.made.clear()
    play(case, max_input_length=len(client.asked[1]) - 1)
    env = CaseRoom.made[0]
    assert len(env.played().turns) == 1
    assert env.played().stop_reason is le.StopReason.TOKEN_LIMIT
    assert not env.room.is_running()


def test_a_first_prompt_that_is_too_long_is_told() -> None:
    for kind in (LiveRoomGenerator, SkyRLGymGenerator):
        with pytest.raises(ValueError, match=r"longer than `generator\.max_input_length`"):
            play(CASES["looked up"], max_input_length=512, kind=kind)


def test_sandboxes_are_closed_whatever_ends_an_episode() -> None:
    assert_closed(play)


@pytest.mark.parametrize("at", ["reset", "call"])
def test_a_cancelled_episode_closes_its_sandbox_behind_the_call_that_runs(at: str) -> None:
    begun, go_on, events = threading.Event(), threading.Event(), []

    class Slow(le.LocalSandbox):
        def reset(self, **given: Any) -> Any:
            self.wait("reset")
            return super().reset(**given)

        def call(self, call: Any) -> Any:
            self.wait("call")
            return super().call(call)

        def wait(self, name: str) -> None:
            if name == at:
                begun.set()
                assert go_on.wait(30)
                events.append(name)

        def close(self) -> None:
            events.append("close")

    case = CASES["looked up"]
    CaseRoom.setup = Setup("snacks", sandbox=lambda room: Slow(room, embedder="lexical"))
    skyrl_gym.register("liveroom", entry_point=f"{__name__}:CaseRoom")

    async def cancelled() -> None:
        made = generator_of(Client(case))
        loop = asyncio.create_task(made.agent_loop([], "liveroom", case.row.to_json(), 64, 16000))
        while not begun.is_set():
            await asyncio.sleep(0.01)
        loop.cancel()
        await asyncio.sleep(0.05)
        go_on.set()
        with pytest.raises(asyncio.CancelledError):
            await loop

    asyncio.run(cancelled())
    assert set(events) == {at, "close"}
    assert at not in events[events.index("close") :]


def test_what_a_row_has_wrong_is_told_as_it_is() -> None:
    case = CASES["looked up"]
    with pytest.raises(le.CommentNotFound, match="c99"):
        play(case, [TaskRow("snacks", 1, ("c99",))])


@pytest.mark.parametrize(
    ("wrong", "told"),
    [
        ({"rubrik": "single4"}, "rubrik"),
        ({"masker": "replies"}, "no masker `replies`"),
        ({"max_turns": 0}, "max_turns"),
        ({"agents": {"tool_caller": "tool_calls", "replier": "reply"}}, "it trains one agent"),
    ],
)
def test_wrong_options_are_told_where_they_are_given(wrong: Any, told: str) -> None:
    with pytest.raises((TypeError, ValueError), match=told):
        register("liveroom", room="snacks", **wrong)


def test_what_cannot_be_masked_is_refused() -> None:
    for wrong in ({"batched": True}, {"step_wise_trajectories": True}):
        with pytest.raises(ValueError, match="rooms are played without it"):
            generator_of(Client(CASES["looked up"]), **wrong)
    with pytest.raises(ValueError, match="rooms are played with it"):
        generator_of(Client(CASES["looked up"]), use_conversation_multi_turn=False)


# --- SkyRL's own channels ---------------------------------------------------------------------


def test_a_data_set_is_played_in_groups_that_start_alike(tmp_path: Path) -> None:
    case, file = CASES["looked up"], tmp_path / "rows.jsonl"
    rows = [PRICE, *task_rows("snacks", count=1, seed=40, embedder="lexical")]
    write_data_set(rows, file, "trl", setup=Setup(**SNACKS))
    data = PromptDataset(str(file), tokenizer_of("chatml"), 16000, num_workers=1)
    register("liveroom", **SNACKS, masker="reply", log_dir=str(tmp_path / "log"))
    read = data.collate_fn([data[at] for at in range(len(data))])
    batch, uids = prepare_generator_input(read, 2, None, "liveroom", "train", 1)
    made = generator_of(Client(case))
    output = asyncio.run(made.generate(batch, disable_tqdm=True))
    validate_generator_output(4, output)
    prompts = output["prompt_token_ids"]
    assert uids == ["0", "0", "1", "1"]
    assert prompts[0] == prompts[1] != prompts[2] == prompts[3]
    assert [sum(one) for one in output["rewards"]][:2] == [1.0, 1.0]
    tensors = convert_prompts_responses_to_batch_tensors(
        tokenizer_of("chatml"),
        prompts,
        output["response_ids"],
        output["rewards"],
        output["loss_masks"],
        output["rollout_logprobs"],
    )
    reply = len(trained(output))
    assert tensors[4].sum(-1).tolist()[:2] == [reply, reply]
    logged = [line.trajectory for line in le.read_log(str(tmp_path / "log")).lines]
    assert len(logged) == 4
    figures = output["rollout_metrics"]
    assert figures["environment/turns"] == sum(le.metrics([t])["turns"] for t in logged) / 4


def test_options_that_are_no_json_are_refused() -> None:
    with pytest.raises(TypeError):
        register("liveroom", room="snacks", rubric=object())


def test_an_episode_without_reward_is_nan_before_the_mean_is_known() -> None:
    case = CASES["failed reset"]
    play_one = generator_of(Client(case)).agent_loop
    CaseRoom.setup = Setup(**case.setup_options)
    skyrl_gym.register("liveroom", entry_point=f"{__name__}:CaseRoom")
    made = asyncio.run(play_one([], "liveroom", case.row.to_json(), 64, 16000))
    assert math.isnan(made.reward[0])
    assert made.e2e_time is not None


def test_the_example_plays(monkeypatch: pytest.MonkeyPatch, capsys: Any) -> None:
    folder = ROOT / "examples" / "trainers"
    monkeypatch.syspath_prepend(str(folder))
    runpy.run_path(str(folder / "skyrl_generator.py"), run_name="__main__")
    played = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    assert [one["reward"] for one in played] == [1.0, 0.0, 0.0]  # small talk, then two questions
    assert all(0 < one["trained"] < one["response"] for one in played)


@pytest.mark.row("R37")
@pytest.mark.timeout(1800)
def test_a_tiny_model_learns_in_skyrls_jax_engine(monkeypatch: pytest.MonkeyPatch) -> None:
    """The short form of benchmarks/learning_skyrl.py, one seed; docs/training-runs.md has all."""
    monkeypatch.syspath_prepend(ROOT / "benchmarks")
    torch.set_num_threads(1)
    learning = importlib.import_module("learning_skyrl")
    options = {"warm_steps": 500, "episodes": 500, "held_out": 96, "batch": 64, "max_turns": 2}
    run = learning.learn(0, steps=20, learning_rate=1e-3, **options)
    assert [step for step, _ in run["trained"]] == [*range(1, 21)]
    assert run["seeds"]["rise"] > 0.03


def test_the_code_of_the_page_makes_the_generator(monkeypatch: pytest.MonkeyPatch) -> None:
    (code,) = snippets("SkyRL")
    case = CASES["looked up"]
    name = "skyrl.train.entrypoints.main_base"
    monkeypatch.setitem(sys.modules, name, SimpleNamespace(BasePPOExp=object))
    environment = SimpleNamespace(skyrl_gym=SkyRLGymConfig())
    config = SimpleNamespace(generator=config_of(), environment=environment)
    made = module_of(code).Experiment().get_generator(config, tokenizer_of("chatml"), Client(case))
    output = asyncio.run(made.generate(batch_of([case.row])))
    assert sum(output["rewards"][0]) == 1.0
