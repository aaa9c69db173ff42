"""verl 0.9.1: its V1 agent loop worker over livestream rooms, data set, advantages and all.

The worker is verl's own, out of its Ray actor; a fake server samples, and a dict stands for the
TransferQueue, which runs on a Ray cluster alone.
"""

from __future__ import annotations

import asyncio
import json
import runpy
import uuid
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import verl
from conformance import (
    CASES,
    ONE_AGENT_CASES,
    PRICE,
    Case,
    assert_closed,
    assert_same,
    breaks_some,
    expected,
    tokenizer_of,
)
from hydra import compose, initialize_config_dir
from pages_for_tests import module_of, snippets
from transformers import Qwen2Config
from verl.experimental.agent_loop.agent_loop import _agent_loop_registry
from verl.trainer.ppo.v1 import agent_loop_tq
from verl.trainer.ppo.v1.utils import compute_advantage_for_multi_trajectories
from verl.utils import tensordict_utils
from verl.utils.dataset.rl_dataset import RLHFDataset, collate_fn
from verl.workers.rollout.replica import TokenOutput

import livestream_env as le
from livestream_env.adapters.data_sets import write_data_set
from livestream_env.adapters.setup import Setup, TaskRow, task_rows
from livestream_env.adapters.verl import LiveRoomAgentLoop
from livestream_env.rewards import make_rubric

TARGET = "livestream_env.adapters.verl.LiveRoomAgentLoop"
SNACKS = {"room": "snacks", "embedder": "lexical"}


class CaseLoop(LiveRoomAgentLoop):
    """A user's own loop: what no YAML holds is in `setup`."""


class Server:
    """Samples as a case says, in the form of verl's client, and keeps what it was asked."""

    def __init__(self, case: Case, stop_reason: str = "completed") -> None:
        self.case = case
        self.stop_reason = stop_reason
        self.asked: list[dict[str, Any]] = []

    async def generate(
        self, request_id: str, *, prompt_ids: list[int], sampling_params: Any, priority: int = 0
    ) -> TokenOutput:
        self.asked.append({"id": request_id, "prompt_ids": prompt_ids, **sampling_params})
        await asyncio.sleep(0)
        sampled = self.case.samples(prompt_ids, next(iter(self.case.families)))
        most, step = sampling_params["max_tokens"], len(self.asked)
        return TokenOutput(
            token_ids=list(sampled.token_ids[:most]),
            log_probs=list(sampled.logprobs or ())[:most],
            stop_reason=self.stop_reason,
            num_preempted=1,
            extra_fields={"min_global_steps": step, "max_global_steps": step},
        )


class Queue:
    """What the worker puts into TransferQueue, by key."""

    def __init__(self) -> None:
        self.rows: dict[str, dict[str, Any]] = {}
        self.tags: dict[str, dict[str, Any]] = {}
        self.status: dict[str, str] = {}

    async def put(self, *, key: str, partition_id: str, tag: dict[str, Any]) -> None:
        self.status[key] = tag["status"]

    async def put_batch(
        self, *, keys: Sequence[str], fields: Any, tags: Sequence[Any], partition_id: str
    ) -> None:
        for at, key in enumerate(keys):
            self.rows[key] = {name: _value(fields[name], at) for name in fields.keys()}  # noqa: SIM118
            self.tags[key] = tags[at]


def _value(column: Any, at: int) -> Any:
    value = column[at]
    return getattr(value, "data", value) if not isinstance(value, torch.Tensor) else value


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> str:
    """A folder with the tokenizer and a config, as a model's is."""
    folder = str(tmp_path_factory.mktemp("model"))
    made = tokenizer_of("chatml")
    made.save_pretrained(folder)
    Qwen2Config(
        vocab_size=len(made),
        hidden_size=8,
        intermediate_size=8,
        num_hidden_layers=1,
        num_attention_heads=1,
        num_key_value_heads=1,
        architectures=["Qwen2ForCausalLM"],
    ).save_pretrained(folder)
    return folder


@pytest.fixture
def queue(monkeypatch: pytest.MonkeyPatch) -> Queue:
    made = Queue()
    monkeypatch.setattr(agent_loop_tq.tq, "init", lambda *_: None)
    monkeypatch.setattr(agent_loop_tq.tq, "async_kv_put", made.put)
    monkeypatch.setattr(agent_loop_tq.tq, "async_kv_batch_put", made.put_batch)
    return made


@pytest.fixture
def registry() -> Iterator[dict[str, Any]]:
    before = dict(_agent_loop_registry)
    yield _agent_loop_registry
    _agent_loop_registry.clear()
    _agent_loop_registry.update(before)


class Rollouts:
    """verl's worker with its config; plays rows and returns what came into the queue."""

    def __init__(self, model: str, folder: Path, queue: Queue) -> None:
        self.model, self.folder, self.queue = model, folder, queue

    def config(self, loop: str, **rollout: Any) -> Any:
        file = self.folder / "loops.yaml"
        file.write_text(loop, encoding="utf-8")
        given = {
            "name": "vllm",
            "prompt_length": 8000,
            "response_length": 4000,
            "calculate_log_probs": True,
            "agent.agent_loop_config_path": file,
            **rollout,
        }
        overrides = [f"actor_rollout_ref.rollout.{name}={value}" for name, value in given.items()]
        configs = str(Path(verl.__file__).parent / "trainer" / "config")
        with initialize_config_dir(config_dir=configs, version_base=None):
            return compose(
                "ppo_trainer",
                [
                    f"actor_rollout_ref.model.path={self.model}",
                    f"+data.cache_dir={self.folder / 'cache'}",
                    "data.filter_overlong_prompts=false",
                    *overrides,
                ],
            )

    def play(
        self,
        server: Any,
        rows: Sequence[TaskRow],
        loop: str = "- {name: liveroom, _target_: test_verl.CaseLoop}",
        *,
        n: int = 1,
        legacy: bool = False,
        setup: Setup | None = None,
        **rollout: Any,
    ) -> Queue:
        config = self.config(loop, n=n, **rollout)
        config.trainer.use_v1 = not legacy
        actor = agent_loop_tq.AgentLoopWorkerTQ
        worker = actor.__ray_metadata__.modified_class(config, server)
        worker.tokenizer = tokenizer_of("chatml")  # from a folder, others are made by model type
        batch = self.batch(config, rows, worker.tokenizer, setup)

        async def generate() -> None:
            await worker.generate_sequences(batch)
            await asyncio.gather(*worker.background_tasks)

        asyncio.run(generate())
        return self.queue

    def batch(self, config: Any, rows: Sequence[TaskRow], made: Any, setup: Setup | None) -> Any:
        """Read rows as verl's trainer does."""
        file = self.folder / "rows.parquet"
        write_data_set(rows, file, "verl", setup=setup or Setup(**SNACKS))
        data = RLHFDataset(str(file), made, config.data)
        read = collate_fn([data[at] for at in range(len(data))])
        read["uid"] = np.array([uuid.uuid4().hex for _ in rows], dtype=object)
        batch = tensordict_utils.get_tensordict(read)
        tensordict_utils.assign_non_tensor_data(batch, "global_steps", 7)
        return batch


@pytest.fixture
def rollouts(
    model: str, tmp_path: Path, queue: Queue, registry: object, monkeypatch: pytest.MonkeyPatch
) -> Rollouts:
    monkeypatch.setattr(CaseLoop, "setup", Setup(**SNACKS))
    monkeypatch.setattr("datasets.config.HF_DATASETS_CACHE", tmp_path / "datasets")
    return Rollouts(model, tmp_path, queue)


def test_sandboxes_are_closed_whatever_ends_an_episode(
    rollouts: Rollouts, monkeypatch: pytest.MonkeyPatch
) -> None:
    def play(case: Case) -> None:
        monkeypatch.setattr(CaseLoop, "setup", Setup(**case.setup_options))
        rollouts.play(Server(case), [case.row])

    assert_closed(play)


def shown(queue: Queue, agent: str) -> Any:
    """Return what the queue shows of the one session that was played."""
    rows = [queue.rows[key] for key in sorted(queue.rows)]
    fields = [row["extra_fields"] for row in rows]
    assert [row["rm_scores"].nonzero().tolist() for row in rows if row["rm_scores"].any()] in (
        [],
        [[[len(row["responses"]) - 1]] for row in rows],
    )
    rewards = {float(row["rm_scores"].sum()) for row in rows}
    zeros = [[0] * len(row["prompts"]) for row in rows]
    joined = zip(zeros, rows, strict=True)
    both = [(before, row) for before, row in joined]
    return {
        "token_ids": {agent: [[*r["prompts"].tolist(), *r["responses"].tolist()] for r in rows]},
        "loss_mask": {agent: [[*z, *r["response_mask"].tolist()] for z, r in both]},
        "logprobs": {agent: [[*map(float, z), *r["rollout_log_probs"].tolist()] for z, r in both]},
        "rewards": {agent: rewards.pop() if rewards else None},
        **({"truncated": fields[0]["status"] != "ok"} if fields else {}),
    }


def of_agent(case: Case, got: Mapping[str, Any], agent: str) -> Any:
    """Return what is shown, beside what the core makes of the other agent."""
    due: Any = expected(case)
    return {
        key: {**due[key], **value} if isinstance(value, dict) else value
        for key, value in got.items()
    }


# --- conformance ------------------------------------------------------------------------------


@pytest.mark.row("R37", "R42", "R44")
@pytest.mark.parametrize("name", ONE_AGENT_CASES)
def test_episodes_are_the_cores(
    name: str, rollouts: Rollouts, monkeypatch: pytest.MonkeyPatch, caplog: Any
) -> None:
    case = CASES[name]
    monkeypatch.setattr(CaseLoop, "setup", Setup(**case.setup_options))
    plain = Setup(case.row.room, embedder="lexical")
    queue = rollouts.play(Server(case), [case.row], setup=plain)
    cause = expected(case)["excluded"]["host"]
    got = shown(queue, "host")
    assert_same(case, got)
    assert set(queue.status.values()) == {"failure" if cause else "finished"}
    if cause:
        assert f"is left out: {cause}" in caplog.text
    else:
        assert "truncated" in got


@pytest.mark.parametrize("agent", ["tool_caller", "replier"])
def test_each_of_two_agents_is_trained_by_its_own_loop(agent: str, rollouts: Rollouts) -> None:
    case = CASES["two agents"]
    masker = {"tool_caller": "tool_calls", "replier": "reply"}[agent]
    options = f"{{room: snacks, embedder: lexical, rubric: multi22, agents: {{{agent}: {masker}}}}}"
    loop = f"- {{name: liveroom, _target_: {TARGET}, setup: {options}}}"
    queue = rollouts.play(Server(case), [case.row], loop)
    assert_same(case, of_agent(case, shown(queue, agent), agent))
    assert [row["extra_fields"]["agent"] for row in queue.rows.values()] == [agent]


def test_a_rewritten_past_is_several_outputs_of_one_advantage(
    rollouts: Rollouts,
) -> None:
    case = CASES["rewritten past"]
    queue = rollouts.play(Server(case), [case.row], n=2)
    assert len(queue.rows) == 6
    advantages = compared(queue, rewards={0: 1.0, 1: 0.0})
    for key, value in advantages.items():
        mask = queue.rows[key]["response_mask"].tolist()
        due = 1 if key.split("_")[1] == "0" else -1
        assert np.sign(value[: len(mask)]).tolist() == [bit * due for bit in mask]


def compared(queue: Queue, rewards: Mapping[int, float]) -> dict[str, list[float]]:
    """Return verl's GRPO advantages of the rows, with other rewards by session."""
    keys = sorted(queue.rows)
    rows = [queue.rows[key] for key in keys]
    mask = torch.nn.utils.rnn.pad_sequence([r["response_mask"] for r in rows], batch_first=True)
    scores = torch.zeros(mask.shape)
    for at, key in enumerate(keys):
        scores[at, len(rows[at]["responses"]) - 1] = rewards[int(key.split("_")[1])]
    data = verl.DataProto.from_dict(
        tensors={"response_mask": mask, "token_level_rewards": scores},
        non_tensors={"uid": np.array([key.split("_")[0] for key in keys], dtype=object)},
    )
    made = compute_advantage_for_multi_trajectories(data, keys, "grpo", num_repeat=2)
    return dict(zip(keys, made.batch["advantages"].tolist(), strict=True))


# --- groups, failures, limits -----------------------------------------------------------------


def test_a_data_set_is_played_in_groups_that_start_alike(rollouts: Rollouts) -> None:
    case = CASES["looked up"]
    rows = [PRICE, *list(task_rows("snacks", count=2, seed=40))]
    server = Server(case)
    queue = rollouts.play(server, rows, n=3)
    assert len(queue.rows) == 9
    assert list(queue.status.values()) == ["finished"] * 3
    firsts: dict[str, set[tuple[int, ...]]] = {}
    for key, row in queue.rows.items():
        firsts.setdefault(key.split("_")[0], set()).add(tuple(row["prompts"].tolist()))
    assert [len(prompts) for prompts in firsts.values()] == [1, 1, 1]
    assert len(set.union(*firsts.values())) == 3
    assert len({asked["id"] for asked in server.asked}) == 9


def test_a_failed_member_has_no_row_and_no_reward(
    rollouts: Rollouts, monkeypatch: pytest.MonkeyPatch
) -> None:
    case = CASES["looked up"]
    monkeypatch.setattr(CaseLoop, "setup", Setup("snacks", sandbox=breaks_some(1)))
    queue = rollouts.play(Server(case), [case.row], n=3)
    assert sorted(key.split("_")[1] for key in queue.rows) == ["0", "2"]
    assert list(queue.status.values()) == ["failure"]
    assert {float(row["rm_scores"].sum()) for row in queue.rows.values()} == {1.0}


def test_a_request_that_the_server_aborts_is_no_reward(rollouts: Rollouts, caplog: Any) -> None:
    case = CASES["looked up"]
    queue = rollouts.play(Server(case, stop_reason="aborted"), [case.row])
    assert not queue.rows
    assert "env_error" in caplog.text


def test_what_follows_the_first_prompt_keeps_to_the_response_length(rollouts: Rollouts) -> None:
    case = CASES["several turns"]
    whole = rollouts.play(Server(case), [case.row])
    (row,) = whole.rows.values()
    spans = row["response_mask"].diff().nonzero().flatten().tolist()
    for length in (spans[0] - 3, spans[0] + 5, spans[2] + 4):  # in a call, in results, in a call
        whole.rows.clear()
        server = Server(case)
        rollouts.play(server, [case.row], response_length=length)
        (cut,) = whole.rows.values()
        assert len(cut["responses"]) <= length
        assert cut["responses"].tolist() == row["responses"].tolist()[: len(cut["responses"])]
        assert cut["response_mask"].tolist() == row["response_mask"].tolist()[:length]
        assert cut["extra_fields"]["stop_reason"] == "token_limit"
        assert all(asked["max_tokens"] > 0 for asked in server.asked)


def test_a_prompt_longer_than_verls_limit_is_told(rollouts: Rollouts, caplog: Any) -> None:
    case = CASES["looked up"]
    queue = rollouts.play(Server(case), [case.row], prompt_length=500)
    assert not queue.rows
    assert "`rollout.prompt_length` is 500" in caplog.text


def test_two_trained_agents_or_the_legacy_trainer_are_refused(
    rollouts: Rollouts, monkeypatch: pytest.MonkeyPatch, caplog: Any
) -> None:
    case = CASES["two agents"]
    assert not rollouts.play(Server(case), [case.row], legacy=True).rows
    assert "use V1" in caplog.text
    monkeypatch.setattr(CaseLoop, "setup", Setup(**case.setup_options))
    assert not rollouts.play(Server(case), [case.row]).rows
    assert "train each agent by a loop of its own" in caplog.text


# --- verl's own channels ----------------------------------------------------------------------


def test_versions_metrics_and_the_log(rollouts: Rollouts, tmp_path: Path) -> None:
    case, log = CASES["several turns"], tmp_path / "log"
    options = f"{{room: snacks, embedder: lexical, log_dir: {log}}}"
    loop = f"- {{name: liveroom, _target_: {TARGET}, setup: {options}}}"
    queue = rollouts.play(Server(case), [case.row], loop)
    ((key, row),) = queue.rows.items()
    assert (queue.tags[key]["min_global_steps"], queue.tags[key]["max_global_steps"]) == (1, 3)
    assert row["metrics"]["num_preempted"] == 3
    assert row["num_turns"] == 1 + 3 + 2
    (line,) = le.read_log(str(log)).lines
    assert (line.step, line.policy_version) == (7, "3")
    assert row["extra_fields"]["reward_extra_info"] == le.metrics([line.trajectory])


def test_the_server_is_asked_to_stop_where_the_template_ends_turns(rollouts: Rollouts) -> None:
    case = CASES["looked up"]
    server = Server(case)
    rollouts.play(server, [case.row])
    end = tokenizer_of("chatml").convert_tokens_to_ids("<|im_end|>")
    assert all(end in asked["stop_token_ids"] for asked in server.asked)
    first, second = (asked["prompt_ids"] for asked in server.asked)
    assert second[: len(first)] == first


def test_the_example_plays(monkeypatch: pytest.MonkeyPatch, capsys: Any) -> None:
    folder = Path(__file__).resolve().parents[2] / "examples" / "trainers"
    monkeypatch.syspath_prepend(str(folder))
    runpy.run_path(str(folder / "verl_agent_loop.py"), run_name="__main__")
    played = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    assert [one["reward"] for one in played] == [1.0, 0.0, 0.0]  # small talk, then two questions
    assert all(0 < one["trained"] < one["response"] for one in played)


def test_the_code_of_the_page_plays(rollouts: Rollouts, monkeypatch: pytest.MonkeyPatch) -> None:
    case, rubric = CASES["looked up"], make_rubric("single4")
    (loop,), (code,) = snippets("verl", "yaml"), snippets("verl")
    queue = rollouts.play(Server(case), [case.row], loop)
    assert shown(queue, "host")["rewards"] == {"host": 1.0}
    own = module_of(code, my_rubric=rubric).MyLoop
    assert own.setup.options["rubric"] is rubric
