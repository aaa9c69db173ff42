"""ROLL over stubs of its managers and the real GEM: its dialects, masks, keys and failures."""

from __future__ import annotations

import math
import pkgutil
import runpy
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import gem
import pytest
import roll_stubs as stubs
import yaml
from conformance import (
    CASES,
    FAMILIES,
    FIND,
    ONE_AGENT_CASES,
    REPLIED,
    RULE,
    Case,
    Shown,
    assert_same,
    breaks_at_once,
    expected,
    logprobs_of,
    said_in,
    thinking_tokenizer,
    thinks,
    thought,
    tokenizer_of,
)
from pages_for_tests import snippets

import livestream_env as le
from livestream_env.adapters.setup import Setup
from livestream_env.sandbox import LocalSandbox
from livestream_env.tokens import Sampled
from livestream_env.types import Status

stubs.install()
from livestream_env.adapters import roll  # noqa: E402

MANAGERS = {
    "text": ("TrajManager", "LiveRoomText-v0", {}),
    "step": ("StepManager", "LiveRoomText-v0", {"observes": "whole"}),
    "native": ("NativeManager", "LiveRoomMessages-v0", {}),
}
ONE_TOKENIZER = {name: case for name, case in CASES.items() if name != "two tokenizers"}


def sampled(case: Case, turn: int, family: str = "chatml") -> Sampled:
    line = case.line(turn)
    text = line.text + (FAMILIES[family].end if line.stop == "stop" else "")
    ids = tuple(tokenizer_of(family)(text, add_special_tokens=False)["input_ids"])
    return Sampled(ids, logprobs_of(turn, len(ids)), line.stop)


class Played:
    """A manager of the stubs that plays a case, and what comes of it."""

    def __init__(
        self,
        case: Case,
        dialect: str,
        *,
        length: int = 8192,
        tokenizer: Any = None,
        **worker: Any,
    ) -> None:
        name, env_type, own = MANAGERS[dialect]
        cut = [at for at, line in enumerate(case.lines) if line.stop == "length"]
        comment = list(case.row.comment)
        env_config = {
            "env_type": env_type,
            "config": {**case.setup_options, **own, "comment": comment},
            "tag": "live",
            "system": "",
            "max_steps": 20,
            "max_tokens_per_step": len(sampled(case, cut[0]).token_ids) if cut else 4096,
        }
        if case.has_two_agents:
            proxies = {agent: {"proxy_type": "policy"} for agent in case.families}
            worker["llm_proxy"] = stubs.LLMProxyConfig(roll.PROXY, proxies)
        self.case, self.asked = case, []
        self.queue: list[Any] = []
        self.manager = getattr(roll, name)(
            worker_config=stubs.worker_config(**worker),
            pipeline_config=SimpleNamespace(sequence_length=length),
            env_config=env_config,
            tokenizer=tokenizer or tokenizer_of("chatml"),
            generate_scheduler={agent: self._scheduler(agent) for agent in case.families}
            if case.has_two_agents
            else self._scheduler("host"),
            output_queue=self.queue,
        )

    def _scheduler(self, agent: str) -> Any:
        def generate(prompt: list[int]) -> Sampled:
            self.asked.append((agent, prompt))
            return sampled(self.case, len(self.asked) - 1)

        return generate

    def play(self, seed: int | None = None) -> Any:
        self.asked.clear()
        return self.manager.play(self.case.row.seed if seed is None else seed)

    @property
    def room(self) -> Any:
        return self.manager.env.unwrapped


def shown(case: Case, played: Played, rollout: Any) -> Shown:
    """Return what a rollout shows; nothing of one that is dropped."""
    record = played.room.played()
    dropped = rollout.meta_info.get("drop_flag", False)
    rows = {} if dropped else rollout.group_by("cluster_name")
    ids, logprobs, rewards = {}, {}, {}
    for agent in case.families:
        mine = rows.get(agent)
        mask = None if mine is None else mine.batch["response_mask"]
        ids[agent] = [] if mine is None else mine.batch["input_ids"][mask].tolist()
        rewards[agent] = None if mine is None else mine.non_tensor_batch["episode_scores"][0]
        if mine is not None:
            logprobs[agent] = mine.batch["infer_logprobs"][mask[:, 1:]].tolist()
            assert mine.batch["scores"].sum().item() == pytest.approx(rewards[agent])
    due = expected(case)
    for agent, own in logprobs.items():
        pairs = [
            pair
            for row in zip(due["logprobs"][agent], due["loss_mask"][agent], strict=True)
            for pair in zip(*row, strict=True)
        ]
        assert own == [value for value, bit in pairs if bit]
    cause = rollout.meta_info.get("excluded", "env_error").split(":")[0]
    return Shown(
        said=said_in(record.messages),
        trained_ids=ids,
        rewards=rewards,
        truncated=record.status is not Status.OK,
        excluded=dict.fromkeys(case.families, cause if dropped else None),
    )


@pytest.mark.row("R42", "R44")
@pytest.mark.parametrize("dialect", MANAGERS)
@pytest.mark.parametrize("name", ONE_TOKENIZER)
def test_a_scripted_policy_gets_through_roll_what_it_gets_from_the_core(
    name: str, dialect: str
) -> None:
    case = CASES[name]
    played = Played(case, dialect)
    assert_same(case, shown(case, played, played.play()))


@pytest.mark.parametrize("name", ["looked up", "several turns", "burst", "rewritten past"])
def test_the_messages_of_the_native_manager_are_the_cores(name: str) -> None:
    case = CASES[name]
    played = Played(case, "native")
    played.play()
    assert_same(case, {"messages": played.room.episode().conversation("host")})
    prompt = tokenizer_of("chatml").decode(played.asked[0][1])
    assert '"name": "get_reply_rule"' in prompt


@pytest.mark.parametrize("stop", ["stop", "length"])
@pytest.mark.parametrize("dialect", MANAGERS)
def test_thinking_that_the_prompt_opens_and_nothing_closes_is_no_reply(
    dialect: str, stop: str
) -> None:
    case = thinks(stop)
    due, played = thought(case), Played(case, dialect, tokenizer=thinking_tokenizer())
    rollout = played.play()
    got = played.room.played()
    assert rollout.batch["scores"].sum().item() == pytest.approx(due.reward)
    assert got.stop_reason == due.stop_reason
    assert said_in(got.messages) == said_in(due.messages)


@pytest.mark.row("R44")
def test_the_end_token_that_roll_doubles_is_not_trained() -> None:
    case = CASES["several turns"]
    rollout = Played(case, "text").play()
    ids = rollout.batch["input_ids"][0].tolist()
    mask = rollout.batch["response_mask"][0].tolist()
    end = tokenizer_of("chatml").eos_token_id
    doubled = [at for at in range(1, len(ids)) if ids[at - 1] == ids[at] == end and mask[at - 1]]
    assert len(doubled) == 2
    assert not any(mask[at] for at in doubled)


@pytest.mark.row("R42", "R44")
@pytest.mark.parametrize("dialect", MANAGERS)
@pytest.mark.parametrize("masker", ["reply", "tool_calls"])
def test_a_masker_picks_what_is_trained_and_the_reward_stands_on_its_last_token(
    dialect: str, masker: str
) -> None:
    source = CASES["several turns"]
    case = Case(masker, source.row, source.lines, {"masker": masker})
    rollout = Played(case, dialect).play()
    mask, scores = rollout.batch["response_mask"], rollout.batch["scores"]
    turns = [2] if masker == "reply" else [0, 1]
    trained = rollout.batch["input_ids"][mask].tolist()
    assert trained == [t for turn in turns for t in sampled(case, turn).token_ids]
    assert scores.sum().item() == 1.0
    row = len(mask) - 1
    assert scores[row, mask[row].nonzero().max()].item() == 1.0
    assert len(mask) == (1 if dialect == "text" else len(turns))


@pytest.mark.row("R42", "R57")
def test_rows_of_turns_hold_the_keys_of_gigpo() -> None:
    case = CASES["several turns"]
    played = Played(case, "step")
    rollout = played.play()
    told = rollout.non_tensor_batch
    turns = played.room.played().turns
    assert told["state_hash"].tolist() == [turn.state_key for turn in turns]
    assert told["step"].tolist() == [0, 1, 2]
    assert told["step_scores"].tolist() == [0.0, 0.0, 1.0]
    assert told["episode_scores"].tolist() == [1.0] * 3
    assert {"traj_group_id", "cluster_name"} <= set(told)


@pytest.mark.row("R57")
def test_the_same_look_ups_in_another_order_are_one_state() -> None:
    source = CASES["several turns"]
    swapped = Case("swapped", source.row, tuple(source.lines[i] for i in (1, 0, 2)))
    hashes = [
        Played(case, "step").play().non_tensor_batch["state_hash"] for case in (source, swapped)
    ]
    assert hashes[0][0] == hashes[1][0]
    assert hashes[0][1] != hashes[1][1]
    assert hashes[0][2] == hashes[1][2]


def test_step_prompts_hold_the_whole_conversation() -> None:
    played = Played(CASES["several turns"], "step")
    played.play()
    prompts = [tokenizer_of("chatml").decode(prompt) for _, prompt in played.asked]
    assert FIND in prompts[1]
    assert all(said in prompts[2] for said in (FIND, RULE))
    assert "券后" in prompts[2]


def test_plain_results_are_messages_of_the_tool() -> None:
    source = CASES["several turns"]
    case = Case("plain", source.row, source.lines, {"results_as": "tool"})
    played = Played(case, "text")
    played.play()
    told = tokenizer_of("chatml").decode(played.asked[1][1])
    (result,) = played.room.played().turns[0].results
    assert told.endswith(f"<|im_start|>tool\n{result.content}<|im_end|>\n<|im_start|>assistant\n")


# --- limits ---------------------------------------------------------------------------------


@pytest.mark.parametrize("dialect", MANAGERS)
def test_a_full_sequence_ends_the_episode_as_cut_and_scores_it(dialect: str) -> None:
    case = CASES["several turns"]
    played = Played(case, dialect)
    played.play()
    length = len(played.asked[2][1])
    short = Played(case, dialect, length=length)
    rollout = short.play()
    record = short.room.played()
    assert (record.stop_reason, len(record.turns)) == (le.StopReason.TOKEN_LIMIT, 2)
    assert rollout.non_tensor_batch["episode_scores"][0] == record.reward
    assert record.reward is not None
    assert rollout.batch["scores"].sum().item() == pytest.approx(record.reward)
    assert rollout.meta_info["metrics"]["stop/token_limit"] == 1.0


@pytest.mark.parametrize("dialect", MANAGERS)
def test_a_first_prompt_without_room_for_an_answer_is_told(dialect: str) -> None:
    with pytest.raises(ValueError, match=r"first prompt of `live` has \d+ tokens.*is 100:"):
        Played(CASES["looked up"], dialect, length=100).play()


def test_the_step_limit_of_roll_ends_the_episode_as_cut() -> None:
    played = Played(CASES["several turns"], "text")
    played.manager.env_config["max_steps"] = 1
    played.play()
    record = played.room.played()
    assert (record.stop_reason, len(record.turns)) == (le.StopReason.TURN_LIMIT, 1)


def test_metrics_come_out_by_rolls_own_aggregation() -> None:
    source = CASES["wrong arguments"]
    metrics = Played(source, "text").play().meta_info["metrics"]
    assert metrics["calls/executed"] == 1.0
    assert metrics["turns"] == 3.0
    broken = Case("broken", source.row, (CASES["cut call"].lines[1], *source.lines[1:]))
    metrics = Played(broken, "step").play().meta_info["metrics"]
    assert 0.0 <= metrics["action_is_valid"] < 1.0


# --- failures -------------------------------------------------------------------------------


@pytest.mark.row("R42")
@pytest.mark.parametrize("dialect", MANAGERS)
@pytest.mark.parametrize("name", ["failed call", "failed reset"])
def test_a_group_with_a_failed_environment_is_dropped(name: str, dialect: str) -> None:
    failed = Played(CASES[name], dialect).play()
    fine = Played(CASES["looked up"], dialect).play()
    drop = roll.DropFailed(None, None, "train")
    assert failed.meta_info["drop_flag"]
    assert drop.filter(0, 0, [fine, failed])
    assert not drop.filter(0, 1, [fine, fine])
    assert not drop.filter(0, 2, [None, None])


def test_a_run_in_which_nothing_is_rewarded_ends_with_the_cause() -> None:
    failed = Played(CASES["failed call"], "text").play()
    drop = roll.DropFailed(None, None, "train")
    drop.most_in_a_row = 3
    assert drop.filter(0, 0, [failed])
    assert drop.filter(0, 1, [failed])
    with pytest.raises(RuntimeError, match=r"3 groups in a row.*env_error.*503"):
        drop.filter(0, 2, [failed])


def test_a_filter_that_keeps_failed_episodes_is_refused() -> None:
    with pytest.raises(ValueError, match=r"use `livestream_env\.adapters\.roll\.DropFailed`"):
        Played(CASES["looked up"], "text", group_filter_cls="builtins.object")


def test_a_manager_plays_on_after_a_failure() -> None:
    source = CASES["failed reset"]
    lines = CASES["looked up"].lines
    down = [True]

    def sandbox(room: le.Room) -> Any:
        return breaks_at_once(room) if down else LocalSandbox(room, embedder="lexical")

    options = {"sandbox": sandbox, "embedder": "lexical"}
    played = Played(Case("recovers", source.row, lines, options), "text")
    assert played.play().meta_info["drop_flag"]
    down.clear()
    assert played.play().non_tensor_batch["episode_scores"].tolist() == [1.0]


def test_native_failures_are_told_in_rolls_attributes() -> None:
    env = gem.make("LiveRoomMessages-v0", **CASES["failed reset"].setup_options)
    messages, info = env.reset(seed=1)
    assert (messages, info["tools"], env.env_reset_failed) == ([], [], True)
    assert "503" in info["error_msg"]
    late = gem.make("LiveRoomMessages-v0", room="snacks", episode_timeout_s=1e-9)
    late.reset(seed=1)
    *_, reward, terminated, truncated, info = late.step(FIND)
    assert (terminated, truncated, late.env_timeout) == (True, True, True)
    assert math.isnan(reward)
    assert info["failure_mode"] == "env_error"


# --- two agents -----------------------------------------------------------------------------


@pytest.mark.row("R42")
@pytest.mark.parametrize("dialect", MANAGERS)
def test_each_phase_is_answered_by_its_own_model_and_trained_by_its_own_cluster(
    dialect: str,
) -> None:
    source = CASES["two agents"]
    clusters = {"tool_caller": "small", "replier": "large"}
    options = {**source.options, "clusters": clusters}
    case = Case("clusters", source.row, source.lines, options, source.families)
    played = Played(case, dialect)
    rollout = played.play()
    assert [agent for agent, _ in played.asked] == ["tool_caller", "tool_caller", "replier"]
    small, large = (rollout.group_by("cluster_name")[name] for name in ("small", "large"))
    due = expected(source)["trained_ids"]
    for batch, agent in ((small, "tool_caller"), (large, "replier")):
        assert batch.batch["input_ids"][batch.batch["response_mask"]].tolist() == due[agent]
    if dialect == "text":
        assert not (small.batch["response_mask"] & large.batch["response_mask"]).any()


def test_a_proxy_without_a_seat_is_told_at_once() -> None:
    proxies = {"tool_caller": {"proxy_type": "policy"}, "repliers": {"proxy_type": "policy"}}
    played = Played(CASES["two agents"], "text")
    with pytest.raises(ValueError, match=r"tool_caller, repliers.*for tool_caller, replier"):
        roll.AgentsProxy(None, stubs.LLMProxyConfig(roll.PROXY, proxies), None, played.room)


@pytest.mark.row("R42", "R44", "R57")
def test_two_tokenizers_are_two_batches_of_step_rows() -> None:
    case = CASES["two tokenizers"]
    setup = Setup(**case.setup_options)
    env = setup.make_env(case.row.room)
    record = le.rollout(env, case.agent(), **setup.opening(case.row))
    rows = setup.rows(record, case.renderers)
    split = roll.batches(rows, {"tool_caller": "small", "replier": "large"})
    due = expected(case)
    for cluster, agent in (("small", "tool_caller"), ("large", "replier")):
        steps = split[cluster]
        assert {step["cluster_name"] for step in steps} == {cluster}
        assert {step["episode_scores"] for step in steps} == {due["rewards"][agent]}
        trained = [
            token
            for step in steps
            for token, bit in zip(step["input_ids"], step["response_mask"], strict=True)
            if bit
        ]
        assert trained == due["trained_ids"][agent]


def test_environments_are_gems_and_shown_by_their_names() -> None:
    names = roll.register()
    assert names == ("LiveRoomText-v0", "LiveRoomMessages-v0")
    env = gem.make(names[0], room="snacks", seed=3, comment="c02", embedder="lexical")
    assert isinstance(env, gem.Env)
    text, info = env.reset(seed=1)
    assert "<tools>" in info["env_instruction"]
    assert "<tools>" not in text
    for said in (f"{FIND}<|im_end|>", f"{RULE}<|im_end|>"):
        env.step(action=said)
    assert env.step(action=f"{REPLIED}<|im_end|>")[1:4] == (1.0, True, False)


def test_all_cases_with_one_agent_are_played() -> None:
    assert set(ONE_AGENT_CASES) < set(ONE_TOKENIZER)


def test_the_example_plays(monkeypatch: pytest.MonkeyPatch, capsys: Any) -> None:
    folder = Path(__file__).resolve().parents[2] / "examples" / "trainers"
    monkeypatch.syspath_prepend(str(folder))
    runpy.run_path(str(folder / "roll_rooms.py"), run_name="__main__")
    told = capsys.readouterr().out
    assert "text: reward 1.0 ended True turns 3.0" in told
    assert "messages: then assistant reward 1.0" in told
    assert "cluster small: 2 step rows" in told
    assert "cluster large: 1 step rows" in told


def test_the_yaml_of_the_page_names_what_there_is() -> None:
    (told,) = snippets("ROLL", "yaml")
    config = yaml.safe_load(told)
    room = config["custom_envs"]["live_room"]
    assert pkgutil.resolve_name(room["env_manager_cls"]) is roll.TrajManager
    for manager in ("train_env_manager", "val_env_manager"):
        assert pkgutil.resolve_name(config[manager]["group_filter_cls"]) is roll.DropFailed
    assert gem.make(room["env_type"], **room["env_config"]).reset(seed=0)[0]
