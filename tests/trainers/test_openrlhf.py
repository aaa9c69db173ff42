"""OpenRLHF 0.11.2: our executor, made from a file as its rollout actor makes it; a fake engine.

Its sample generator, dynamic filter and all, is its own over stubs of vLLM and Ray, which have the
few names that it calls; the actor and the trainer need GPUs.
"""

from __future__ import annotations

import asyncio
import importlib
import importlib.util
import json
import math
import runpy
import sys
from dataclasses import dataclass, field
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import openrlhf
import pytest
from conformance import (
    ASKED,
    CASES,
    ONE_AGENT_CASES,
    PRICE,
    Case,
    assert_closed,
    assert_same,
    expected,
    tokenizer_of,
)
from openrlhf.utils.agent import AgentExecutorBase
from pages_for_tests import module_of, snippets

import livestream_env as le
from livestream_env.adapters.data_sets import data_rows
from livestream_env.adapters.openrlhf import agent_executor
from livestream_env.adapters.setup import Setup, task_rows


@dataclass
class Params:
    """Stands for vLLM's `SamplingParams`."""

    max_tokens: int | None = None
    logprobs: int | None = 1
    stop_token_ids: list[int] = field(default_factory=list)


class Engine:
    """Samples as a case says, in the form of vLLM's output, and keeps what it was asked."""

    def __init__(self, case: Case, finish_reason: str | None = None) -> None:
        self.case = case
        self.finish_reason = finish_reason
        self.asked: list[tuple[list[int], Params]] = []

    async def generate(self, ids: list[int], params: Params, multi_modal_data: Any = None) -> Any:
        self.asked.append((ids, params))
        await asyncio.sleep(0)
        sampled = self.case.samples(ids, next(iter(self.case.families)))
        assert params.max_tokens is not None
        made = sampled.token_ids[: params.max_tokens]
        is_cut = sampled.stop == "length" or len(made) < len(sampled.token_ids)
        pairs = zip(made, sampled.logprobs or (), strict=False)
        logprobs = [{token: SimpleNamespace(logprob=value)} for token, value in pairs]
        output = SimpleNamespace(
            token_ids=list(made),
            text=tokenizer_of("chatml").decode(made, skip_special_tokens=True),
            logprobs=logprobs if params.logprobs is not None else None,
            finish_reason=self.finish_reason or ("length" if is_cut else "stop"),
        )
        return SimpleNamespace(outputs=[output])


def execute(
    case: Case,
    executor: Any = None,
    *,
    engine: Engine | None = None,
    params: Params | None = None,
    max_length: int = 16000,
    label: Any = None,
) -> Any:
    made = executor or agent_executor(**case.setup_options)
    return asyncio.run(
        made().execute(
            prompt="",
            label=json.dumps(case.row.to_json()) if label is None else label,
            sampling_params=params or Params(),
            max_length=max_length,
            hf_tokenizer=tokenizer_of("chatml"),
            llm_engine=engine or Engine(case),
        )
    )


def test_sandboxes_are_closed_whatever_ends_an_episode() -> None:
    assert_closed(execute)


def mask_of(response: Any) -> list[int]:
    """Return the action mask that OpenRLHF makes of a response, before it shifts it by one."""
    mask = [0] * len(response["observation_tokens"])
    for start, end in response["action_ranges"]:
        mask[start:end] = [1] * (end - start)
    return mask


def shown(case: Case, response: Any, agent: str = "host") -> Any:
    """Return what a response shows, beside what the core makes of another agent."""
    mask, ids = mask_of(response), response["observation_tokens"]
    own = {
        "token_ids": [ids],
        "loss_mask": [mask],
        "logprobs": [response["rollout_log_probs"]],
        "trained_ids": [token for token, bit in zip(ids, mask, strict=True) if bit],
        "rewards": response["reward"],
    }
    due: Any = expected(case)
    return {
        **{key: {**due[key], agent: value} for key, value in own.items()},
        "truncated": response["truncated"],
    }


# --- conformance ------------------------------------------------------------------------------


@pytest.mark.row("R37", "R42", "R44")
@pytest.mark.parametrize("name", ONE_AGENT_CASES)
def test_episodes_are_the_cores(name: str) -> None:
    case = CASES[name]
    cause = expected(case)["excluded"]["host"]
    if cause:
        with pytest.raises(RuntimeError, match=f"is left out: {cause}"):
            execute(case)
        return
    got = shown(case, execute(case))
    if name == "rewritten past":  # one row: the policy goes on from what it sampled
        got = {key: got[key] for key in ("trained_ids", "rewards", "truncated")}
    assert_same(case, got)


@pytest.mark.parametrize("agent", ["tool_caller", "replier"])
def test_each_of_two_agents_is_trained_by_its_own_executor(agent: str) -> None:
    case = CASES["two agents"]
    masker = case.options["agents"][agent]
    executor = agent_executor(**{**case.setup_options, "agents": {agent: masker}})
    assert_same(case, shown(case, execute(case, executor), agent))
    with pytest.raises(ValueError, match="trains one agent"):
        agent_executor(**case.setup_options)


@pytest.mark.parametrize("agent", ["tool_caller", "replier"])
def test_an_agent_that_speaks_again_after_the_other_has_one_row(agent: str) -> None:
    agents = {agent: ASKED.options["agents"][agent]}
    response = execute(ASKED, agent_executor(**{**ASKED.setup_options, "agents": agents}))
    ids = response["observation_tokens"]
    trained = [token for start, stop in response["action_ranges"] for token in ids[start:stop]]
    due: Any = expected(ASKED)
    assert trained == due["trained_ids"][agent]
    assert response["reward"] == due["rewards"][agent]


@pytest.mark.parametrize("masker", ["tool_calls", "reply"])
def test_a_masker_filters_the_action_ranges(masker: str) -> None:
    case = CASES["several turns"]
    whole = execute(case)
    response = execute(case, agent_executor(**case.setup_options, masker=masker))
    kept = whole["action_ranges"][:2] if masker == "tool_calls" else whole["action_ranges"][2:]
    assert response["action_ranges"] == kept
    assert response["reward"] == whole["reward"] == 1.0


# --- OpenRLHF's sample generator --------------------------------------------------------------


class Remote:
    """A method of a Ray actor, called at once."""

    def __init__(self, call: Any) -> None:
        self.remote = call


class Actor:
    """Stands for the rollout actor: plays each member of a group by the executor."""

    def __init__(self, case: Case, executor: Any) -> None:
        self.case, self.executor = case, executor()
        self.get_num_unfinished_requests = Remote(lambda: 0)
        self.generate_responses = Remote(self._responses)

    def _responses(self, *, num_samples: int, **asked: Any) -> list[Any]:
        async def together() -> list[Any]:
            engine = Engine(self.case)
            plays = [self.executor.execute(**asked, llm_engine=engine) for _ in range(num_samples)]
            return await asyncio.gather(*plays)

        return asyncio.run(together())


@pytest.fixture
def samples_generator(monkeypatch: pytest.MonkeyPatch) -> Any:
    """OpenRLHF's module of that name."""
    root = Path(str(openrlhf.__file__)).parent / "trainer"
    stubs: dict[str, dict[str, Any]] = {
        "ray": {"get": lambda given: given, "wait": lambda refs, **_: (refs[:1], refs[1:])},
        "vllm": {"SamplingParams": lambda **given: SimpleNamespace(**given, stop_token_ids=None)},
        "openrlhf.trainer": {"__path__": [str(root)]},
        "openrlhf.trainer.ppo_utils": {"__path__": [str(root / "ppo_utils")]},
        "openrlhf.trainer.ray": {"__path__": [str(root / "ray")]},
        "openrlhf.trainer.ray.vllm_engine": {"batch_vllm_engine_call": None},
    }
    for name, members in stubs.items():
        made = ModuleType(name)
        vars(made).update(members)
        monkeypatch.setitem(sys.modules, name, made)
    name = "openrlhf.trainer.ppo_utils.samples_generator"
    yield importlib.import_module(name)
    sys.modules.pop(name)
    sys.modules.pop("openrlhf.trainer.ppo_utils.experience")


def samples_of(
    module: Any, case: Case, executor: Any, *, n: int, filtered: bool, prompts: int = 1
) -> list[Any]:
    """Generate the samples of a case's row, given several times, by OpenRLHF's generator."""
    label = json.dumps(case.row.to_json())
    loader = [([""], [""], [label], [None])] * prompts
    args = {
        "rollout": SimpleNamespace(batch_size=1, n_samples_per_prompt=n),
        "vllm": SimpleNamespace(enable_sleep=False),
        "algo": SimpleNamespace(
            advantage=SimpleNamespace(is_correction_level="token"),
            dynamic_filtering_enable=filtered,
            dynamic_filtering_range=(0.0, 1.1),
        ),
    }
    strategy = SimpleNamespace(args=SimpleNamespace(**args))
    made = module.SamplesGenerator(
        strategy, loader, None, tokenizer_of("chatml"), [Actor(case, executor)]
    )
    samples: list[Any] = made.generate_samples(max_len=16000)[0]
    return samples


@pytest.mark.row("R42")
def test_openrlhfs_samples_hold_the_rows_of_the_core(samples_generator: Any) -> None:
    case = CASES["several turns"]
    executor = agent_executor(**case.setup_options, masker="tool_calls")
    setup = Setup(**case.setup_options, masker="tool_calls")
    trajectory = le.rollout(setup.make_env(), case.agent(), **setup.opening(case.row))
    (row,) = setup.rows(trajectory, case.renderers)
    due = row.shifted()
    for sample in samples_of(samples_generator, case, executor, n=2, filtered=False):
        assert sample.sequences[0].tolist() == list(row.token_ids)
        assert sample.action_mask[0].tolist() == list(due.loss_mask)
        assert sample.rollout_log_probs[0].tolist() == list(due.logprobs or ())
        assert sample.rewards.tolist() == sample.scores.tolist() == [1.0]
        assert sample.info["calls/executed"].tolist() == [2.0]


@pytest.mark.row("R42")
def test_the_dynamic_filter_drops_a_group_whose_environment_failed(samples_generator: Any) -> None:
    case, made = CASES["looked up"], iter(range(9))

    def sometimes(room: le.Room) -> le.LocalSandbox:
        if next(made) == 1:
            raise le.SandboxUnavailable("down")
        return le.LocalSandbox(room, embedder="lexical")

    executor = agent_executor("snacks", sandbox=sometimes, failed="nan")
    samples = samples_of(samples_generator, case, executor, n=2, filtered=True, prompts=3)
    assert [sample.rewards.item() for sample in samples] == [1.0, 1.0]
    assert next(made) == 4  # the second prompt was played in its place, the third not


# --- failures and limits ----------------------------------------------------------------------


@pytest.mark.row("R42")
@pytest.mark.parametrize("name", ["failed call", "failed reset", "failed tool of a user"])
def test_a_failed_environment_can_be_a_reward_of_nan(name: str) -> None:
    case = CASES[name]
    response = execute(case, agent_executor(**case.setup_options, failed="nan"))
    assert math.isnan(response["reward"])
    assert math.isnan(response["scores"])
    assert sum(mask_of(response)) == 0
    assert len(response["rollout_log_probs"]) == len(response["observation_tokens"])


@pytest.mark.parametrize("label", ["", "59.9"])
def test_a_label_that_is_no_task_row_is_told(label: str) -> None:
    told = "`--data.label_key` names; got ''" if not label else "a task row is a mapping"
    with pytest.raises((TypeError, ValueError), match=told):
        execute(CASES["looked up"], label=label)


def test_a_request_that_the_engine_aborts_is_no_reward() -> None:
    case = CASES["looked up"]
    with pytest.raises(RuntimeError, match="is left out: env_error"):
        execute(case, engine=Engine(case, "abort"))


def test_what_is_sampled_keeps_to_the_longest_sequence() -> None:
    case = CASES["several turns"]
    whole = execute(case)
    ids, ranges = whole["observation_tokens"], whole["action_ranges"]
    for length in (ranges[0][1] - 3, ranges[0][1] + 5, ranges[1][1] - 4):
        cut = execute(case, max_length=length)
        assert cut["truncated"]
        trained = [at for at, bit in enumerate(mask_of(cut)) if bit]
        assert trained == [at for at, bit in enumerate(mask_of(whole)) if bit and at < length]
        assert cut["observation_tokens"][: trained[-1] + 1] == ids[: trained[-1] + 1]
    with pytest.raises(ValueError, match=r"raise `--data.max_len`"):
        execute(case, max_length=ranges[0][0])


def test_the_engine_is_asked_with_the_trainers_parameters_and_our_stops() -> None:
    case, given = CASES["looked up"], Params(max_tokens=900)
    engine = Engine(case)
    execute(case, engine=engine, params=given)
    end = tokenizer_of("chatml").convert_tokens_to_ids("<|im_end|>")
    assert all(end in asked.stop_token_ids for _, asked in engine.asked)
    assert {asked.max_tokens for _, asked in engine.asked} == {900}
    assert given == Params(max_tokens=900)
    (first, _), (second, _) = engine.asked
    assert second[: len(first)] == first


def test_logprobs_are_left_out_where_they_were_not_asked_for() -> None:
    assert execute(CASES["looked up"], params=Params(logprobs=None))["rollout_log_probs"] is None


# --- OpenRLHF's own channels ------------------------------------------------------------------


def test_the_class_is_found_in_a_file_and_plays_labels_of_a_data_set(tmp_path: Path) -> None:
    file = tmp_path / "agent.py"
    file.write_text(
        "from livestream_env.adapters.openrlhf import agent_executor\n"
        "AgentExecutor = agent_executor(\n"
        f"    'snacks', embedder='lexical', log_dir={str(tmp_path)!r}\n)\n",
        encoding="utf-8",
    )
    spec = importlib.util.spec_from_file_location("agent_module", file)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    assert issubclass(module.AgentExecutor, AgentExecutorBase)
    (row,) = data_rows([PRICE], "openrlhf", setup=Setup("snacks", embedder="lexical"))
    assert [message["role"] for message in row["input"]] == ["system", "user"]
    case = CASES["looked up"]
    for label in (row["label"], json.loads(row["label"])):
        response = execute(case, module.AgentExecutor, label=label)
        assert_same(case, shown(case, response))
    logged = le.read_log(str(tmp_path)).lines
    assert [line.trajectory.reward for line in logged] == [1.0, 1.0]


def test_every_episode_logs_the_same_figures() -> None:
    names = set()
    for case in ONE_AGENT_CASES.values():
        if expected(case)["excluded"]["host"] is None:
            names.add(tuple(sorted(execute(case)["extra_logs"])))
    (one,) = names
    assert {"turns", "calls/executed", "stop/token_limit"} <= set(one)
    assert execute(CASES["looked up"])["extra_logs"]["calls/executed"] == 2.0


def test_members_of_a_group_start_alike() -> None:
    case = CASES["several turns"]
    for row in task_rows("snacks", count=2, embedder="lexical"):
        engine, executor = Engine(case), agent_executor(**case.setup_options)
        label = json.dumps(row.to_json())
        for _ in range(2):
            execute(case, executor, engine=engine, label=label)
        firsts = [
            ids for ids, _ in engine.asked if len(ids) == min(len(i) for i, _ in engine.asked)
        ]
        assert len(firsts) == 2
        assert firsts[0] == firsts[1]


def test_the_example_plays(monkeypatch: pytest.MonkeyPatch, capsys: Any) -> None:
    folder = Path(__file__).resolve().parents[2] / "examples" / "trainers"
    monkeypatch.syspath_prepend(str(folder))
    runpy.run_path(str(folder / "openrlhf_executor.py"), run_name="__main__")
    played = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    assert [one["reward"] for one in played] == [1.0, 0.0, 0.0]  # small talk, then two questions
    assert all(0 < one["trained"] < one["tokens"] for one in played)


def test_the_code_of_the_page_makes_the_executor() -> None:
    (code,) = snippets("OpenRLHF")
    case = CASES["looked up"]
    assert execute(case, module_of(code).AgentExecutor)["reward"] == 1.0
