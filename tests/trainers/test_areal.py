"""AReaL 1.0.4: its remote engine, executor and groups over a fake SGLang, and its advantages."""

from __future__ import annotations

import asyncio
import json
import math
import runpy
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import httpx
import pytest
import torch
from areal.api import ModelResponse, RolloutWorkflow
from areal.api.cli_args import (
    GenerationHyperparameters,
    InferenceEngineConfig,
    NormConfig,
    PPOActorConfig,
)
from areal.engine.sglang_remote import SGLangBackend
from areal.infra import RemoteInfEngine, check_trajectory_format
from areal.trainer.ppo.actor import PPOActor
from areal.utils import stats_tracker
from areal.utils.data import Normalization, concat_padded_tensors
from conformance import (
    ASKED,
    CASES,
    ONE_AGENT_CASES,
    WITHOUT_A_SEAT,
    Case,
    assert_closed,
    assert_same,
    breaks_some,
    expected,
    tokenizer_of,
)
from gateway_for_tests import send, served
from pages_for_tests import module_of, snippets
from slime_for_tests import Router
from torchdata.stateful_dataloader import StatefulDataLoader

import livestream_env as le
from livestream_env.adapters.areal import LiveRoomWorkflow
from livestream_env.tokens import Sample, Sampled, TokenSequence

GCONFIG = GenerationHyperparameters(max_new_tokens=4000, max_tokens=16000)
NAMED = "livestream_env.adapters.areal.LiveRoomWorkflow"
Policy = Callable[[tuple[int, ...]], Sampled | httpx.Response]


class Server(Router):
    """SGLang's routes that AReaL asks."""

    def __call__(self, handler: BaseHTTPRequestHandler, body: bytes) -> None:
        if handler.path == "/health":
            send(handler, httpx.Response(200, json={}))
        else:
            super().__call__(handler, body)


class Areal:
    """AReaL's engine over a server whose policy can be changed."""

    def __init__(self, url: str, server: Server) -> None:
        self.server = server
        config = InferenceEngineConfig(
            backend="sglang:d1",
            consumer_batch_size=64,
            max_head_offpolicyness=1000,
            check_trajectory_format=True,
            request_retries=1,
        )
        self.engine = RemoteInfEngine(config, SGLangBackend())
        self.engine.initialize("0", url.removeprefix("http://").removesuffix("/v1"))

    def follows(self, case: Case) -> None:
        """Let the policy say what a case says."""
        self.server.engine = lambda ids: case.samples(ids, next(iter(case.families)))
        self.server.asked.clear()

    def submit(self, case: Case, workflow: Any, group_size: int = 1, **given: Any) -> None:
        self.engine.submit(case.row.to_json(), workflow, group_size=group_size, **given)

    def play(self, case: Case, workflow: Any = None, **given: Any) -> Any:
        """Play a case by the executor; `None` where AReaL rejects it."""
        self.follows(case)
        self.submit(case, workflow_of(case) if workflow is None else workflow, **given)
        [result] = self.engine.wait(1, timeout=60)
        return result


@contextmanager
def initialized() -> Iterator[Areal]:
    server = Server(lambda ids: httpx.Response(500))
    with served(server) as url:
        made = Areal(url, server)
        try:
            yield made
        finally:
            made.engine.destroy()


@pytest.fixture(scope="module")
def _areal() -> Iterator[Areal]:
    with initialized() as made:
        yield made


@pytest.fixture
def areal(_areal: Areal) -> Areal:
    stats_tracker.export_all()
    _areal.engine.set_version(3)
    return _areal


def workflow_of(case: Case, gconfig: Any = GCONFIG, **options: Any) -> Any:
    return LiveRoomWorkflow(gconfig, tokenizer_of("chatml"), **{**case.setup_options, **options})


def test_sandboxes_are_closed_whatever_ends_an_episode(areal: Areal) -> None:
    assert_closed(areal.play)


def shown(case: Case, tensors: Any, agent: str = "host") -> Any:
    """Return what tensors show, beside what the core makes of another agent."""
    check_trajectory_format(tensors, batch_size=1)
    assert tensors["attention_mask"].all()
    [ids], [mask] = tensors["input_ids"].tolist(), tensors["loss_mask"].tolist()
    own = {
        "token_ids": [ids],
        "loss_mask": [mask],
        "logprobs": tensors["logprobs"].tolist(),
        "trained_ids": [token for token, bit in zip(ids, mask, strict=True) if bit],
        "rewards": tensors["rewards"].item(),
    }
    due: Any = expected(case)
    return {key: {**due[key], agent: value} for key, value in own.items()}


def advantages(groups: list[Any], **of_actor: Any) -> list[torch.Tensor]:
    """Return AReaL's advantages of each trajectory, shape (members, T)."""
    norm = NormConfig(mean_level="group", std_level=None, group_size=groups[0]["rewards"].shape[0])
    given = {"reward_norm": norm, "adv_norm": None, "kl_ctl": 0.0}
    config = PPOActorConfig(backend="fsdp:d1", **{**given, **of_actor})
    made = PPOActor(config, None).compute_advantages([dict(group) for group in groups])
    return [one["advantages"] for one in made]


# --- conformance ------------------------------------------------------------------------------


@pytest.mark.row("R42")
@pytest.mark.parametrize("name", ONE_AGENT_CASES)
def test_episodes_are_the_cores(name: str, areal: Areal) -> None:
    case = CASES[name]
    made = areal.play(case)
    figures = stats_tracker.export_all()
    cause = expected(case)["excluded"]["host"]
    if cause:
        assert made is None
        assert figures["rollout/rejected"] == 1
        assert "rollout/reward" not in figures
        with pytest.raises(RuntimeError, match=f"is left out: {cause}"):
            asyncio.run(workflow_of(case).arun_episode(Scripted(case), case.row.to_json()))
        return
    got = shown(case, made)
    if name == "rewritten past":  # one row: the policy goes on from what it sampled
        got = {key: got[key] for key in ("trained_ids", "rewards")}
    assert_same(case, got)
    assert figures["rollout/reward"] == pytest.approx(expected(case)["rewards"]["host"])


@pytest.mark.parametrize("agent", ["tool_caller", "replier"])
def test_each_of_two_agents_is_trained_by_its_own_workflow(agent: str, areal: Areal) -> None:
    case = CASES["two agents"]
    masker = case.options["agents"][agent]
    made = areal.play(case, workflow_of(case, agents={agent: masker}))
    assert_same(case, shown(case, made, agent))
    versions = made["versions"][0].tolist()
    assert [v >= 0 for v in versions] == [bool(bit) for bit in made["loss_mask"][0]]
    with pytest.raises(ValueError, match="trains one agent"):
        workflow_of(case)


@pytest.mark.parametrize("agent", ["tool_caller", "replier"])
@pytest.mark.parametrize("has_partner", [False, True])
def test_an_agent_that_speaks_again_after_the_other_has_one_row(
    agent: str, has_partner: bool, areal: Areal
) -> None:
    class Partner:
        def act(self, messages: Any, tools: Any) -> str:
            return ASKED.says(messages).text

    other = "replier" if agent == "tool_caller" else "tool_caller"
    given: Any = {"partners": {other: Partner()}} if has_partner else {}
    agents = {agent: ASKED.options["agents"][agent]}
    made = areal.play(ASKED, workflow_of(ASKED, agents=agents, **given))
    due: Any = expected(ASKED)
    ids, mask = made["input_ids"][0].tolist(), made["loss_mask"][0].tolist()
    assert ids == list(due["token_ids"][agent][-1])
    assert [i for i, bit in zip(ids, mask, strict=True) if bit] == due["trained_ids"][agent]
    assert made["rewards"].item() == due["rewards"][agent]


def test_areal_makes_the_workflow_of_its_name(areal: Areal, tmp_path: Path) -> None:
    case = CASES["looked up"]
    tokenizer_of("chatml").save_pretrained(tmp_path)
    given = {"gconfig": GCONFIG, "tokenizer": tmp_path, **case.setup_options}
    made = areal.play(case, NAMED, workflow_kwargs=given)
    assert_same(case, shown(case, made))
    assert issubclass(LiveRoomWorkflow, RolloutWorkflow)


# --- what AReaL makes of the tensors -------------------------------------------------------------


@pytest.mark.row("R42")
def test_a_group_has_the_advantages_of_its_rewards(areal: Areal) -> None:
    good, cut = CASES["looked up"], CASES["cut reply"]
    made = [areal.play(case) for case in (good, cut, good)]
    rewards = [expected(case)["rewards"]["host"] for case in (good, cut, good)]
    mean = sum(rewards) / 3
    group = concat_padded_tensors(made)
    assert group["rewards"].tolist() == pytest.approx(rewards)
    [rows] = advantages([group])
    masks = torch.roll(group["loss_mask"], -1, -1).bool()
    for row, mask, reward in zip(rows, masks, rewards, strict=True):
        assert row[mask].tolist() == pytest.approx([reward - mean] * int(mask.sum()), abs=1e-6)


def first_call_alone(sequence: TokenSequence) -> Sample:
    """Train the first turn, and keep what follows it as context."""
    first = sequence.turns[0]
    return sequence.sample(lambda span: span.turn == first)


@pytest.mark.parametrize("masker", [first_call_alone, "tool_calls"])
def test_a_reward_reaches_what_is_trained_wherever_it_stands(masker: Any, areal: Areal) -> None:
    case = CASES["several turns"]
    made = areal.play(case, workflow_of(case, masker=masker))
    assert made["loss_mask"][0, -1] == 1
    [row] = advantages([made], reward_norm=None)
    trained = torch.roll(made["loss_mask"], -1, -1).bool()
    assert set(row[trained].tolist()) == {1.0}


@pytest.mark.row("R42")
def test_a_failed_member_takes_its_group_with_it_and_areal_plays_another() -> None:
    """Groups are counted off by their size, so a smaller one would spoil all behind it."""
    case = CASES["looked up"]
    rows = StatefulDataLoader([case.row.to_json()] * 2, batch_size=2, collate_fn=list)
    stats_tracker.export_all()
    with initialized() as areal:  # its own, because AReaL plays ahead
        areal.follows(case)
        workflow = workflow_of(case, sandbox=breaks_some(1))
        groups = areal.engine.prepare_batch(rows, workflow, group_size=3)
    assert [group["rewards"].tolist() for group in groups] == [[1.0] * 3] * 2
    assert stats_tracker.export_all()["rollout/rejected__count"] == 1


@pytest.mark.row("R42")
def test_a_failed_member_can_leave_the_rest_of_its_group(areal: Areal) -> None:
    case = CASES["looked up"]
    workflow = workflow_of(case, sandbox=breaks_some(1), failed="member")
    group = areal.play(case, workflow, group_size=3)
    assert group["rewards"].tolist() == [1.0, 1.0]
    failed = CASES["failed call"]
    assert areal.play(failed, workflow_of(failed, failed="member"), group_size=2) is None
    with pytest.raises(ValueError, match="`group` or `member`"):
        workflow_of(case, failed="nan")


def raises(trajectory: le.Trajectory, room: le.Room | None) -> Any:
    raise ZeroDivisionError("no price was told")


@pytest.mark.parametrize(
    ("name", "options", "told"),
    [
        ("failed call", {"failed": "member"}, "is left out: env_error: SandboxUnavailable"),
        ("failed call", {}, "is left out: env_error: SandboxUnavailable"),
        ("looked up", {"rubric": raises}, "no price was told"),
    ],
)
def test_why_a_batch_does_not_fill_is_in_areals_log(
    name: str, options: Any, told: str, areal: Areal, caplog: pytest.LogCaptureFixture
) -> None:
    """AReaL plays on, and tells its figures once the batch is full."""
    case = CASES[name]
    loggers = [areal.engine.logger, LiveRoomWorkflow.logger]
    for logger in loggers:  # AReaL's do not hand on
        logger.addHandler(caplog.handler)
    try:
        assert areal.play(case, workflow_of(case, **options)) is None
    finally:
        for logger in loggers:
            logger.removeHandler(caplog.handler)
    assert told in caplog.text


def test_areal_counts_groups_off_by_their_size() -> None:
    """What `failed="group"` is for: of 2 and 3 members, the last two are compared with nobody."""
    norm = Normalization(NormConfig(mean_level="group", std_level="group", group_size=3))
    compared = norm(torch.tensor([1.0, 0.0, 1.0, 1.0, 0.0])).tolist()
    assert compared[3] == pytest.approx(1e5)
    assert compared[4] == 0.0


# --- versions, limits, failures ------------------------------------------------------------------


def test_each_token_has_the_version_of_the_weights_that_sampled_it(areal: Areal) -> None:
    """The weights change in the second turn: AReaL's engine is interrupted and goes on."""
    case = CASES["several turns"]
    asked: list[tuple[int, ...]] = []

    def policy(ids: tuple[int, ...]) -> Sampled:
        asked.append(ids)
        if len(asked) == 2:
            whole = case.samples(ids)
            return Sampled(whole.token_ids[:5], (whole.logprobs or ())[:5], "abort")
        if len(asked) == 3:
            areal.engine.set_version(4)
            whole = case.samples(ids[:-5])
            return Sampled(whole.token_ids[5:], (whole.logprobs or ())[5:])
        return case.samples(ids)

    areal.follows(case)
    areal.server.engine = policy
    areal.submit(case, workflow_of(case))
    [made] = areal.engine.wait(1, timeout=60)
    assert_same(case, shown(case, made))
    versions, mask = made["versions"][0].tolist(), made["loss_mask"][0].tolist()
    assert [v >= 0 for v in versions] == [bool(bit) for bit in mask]
    first, second, third = turns_of(mask)
    assert {versions[at] for at in first} == {3}
    assert [versions[at] for at in second] == [3] * 5 + [4] * (len(second) - 5)
    assert {versions[at] for at in third} == {4}


def turns_of(mask: list[int]) -> list[list[int]]:
    """Return the positions of each stretch of ones."""
    stretches: list[list[int]] = []
    for at, bit in enumerate(mask):
        if bit and (at == 0 or not mask[at - 1]):
            stretches.append([])
        if bit:
            stretches[-1].append(at)
    return stretches


def test_what_is_sampled_keeps_to_the_longest_sequence(areal: Areal) -> None:
    case = CASES["several turns"]
    whole = areal.play(case)
    first, second, _ = turns_of(whole["loss_mask"][0].tolist())

    def limited(ids: tuple[int, ...]) -> Sampled:
        longest = areal.server.asked[-1]["sampling_params"]["max_new_tokens"]
        made = case.samples(ids)
        is_cut = longest < len(made.token_ids)
        logprobs = (made.logprobs or ())[:longest]
        return Sampled(made.token_ids[:longest], logprobs, "length" if is_cut else "stop")

    for length in (first[-1] - 2, first[-1] + 4, second[-1] - 3):
        areal.server.engine = limited
        areal.submit(case, workflow_of(case, GCONFIG.new(max_tokens=length)))
        [cut] = areal.engine.wait(1, timeout=60)
        last = max(at for at in (*first, *second) if at < length)
        assert cut["input_ids"][0].tolist() == whole["input_ids"][0, : last + 1].tolist()
        assert cut["loss_mask"][0].tolist() == whole["loss_mask"][0, : last + 1].tolist()
        assert cut["rewards"].item() < 1.0
    short = workflow_of(case, GCONFIG.new(max_tokens=first[0]))
    with pytest.raises(ValueError, match=r"raise `gconfig.max_tokens`"):
        asyncio.run(short.arun_episode(areal.engine, case.row.to_json()))


def test_the_engine_is_asked_with_the_trainers_parameters_and_our_stops(areal: Areal) -> None:
    case = CASES["looked up"]
    end = tokenizer_of("chatml").convert_tokens_to_ids("<|im_end|>")
    gconfig = GCONFIG.new(n_samples=8, temperature=0.5, stop_token_ids=[5], max_new_tokens=900)
    areal.play(case, workflow_of(case, gconfig))
    told = [asked["sampling_params"] for asked in areal.server.asked]
    assert {one["temperature"] for one in told} == {0.5}
    assert {one["max_new_tokens"] for one in told} == {900}
    assert all({5, end} <= set(one["stop_token_ids"]) for one in told)
    assert (gconfig.n_samples, gconfig.stop_token_ids) == (8, [5])
    first, second = (asked["input_ids"] for asked in areal.server.asked)
    assert second[: len(first)] == first


@pytest.mark.row("R45")
def test_a_request_that_areal_gives_up_is_no_reward(areal: Areal, tmp_path: Path) -> None:
    case = CASES["looked up"]
    areal.server.engine = lambda ids: httpx.Response(500)
    areal.submit(case, workflow_of(case, log_dir=str(tmp_path), failed="member"))
    assert areal.engine.wait(1, timeout=60) == [None]
    [line] = le.read_log(str(tmp_path)).lines
    assert "500" in line.trajectory.faults[-1].detail
    assert stats_tracker.export_all()["rollout/livestream/env_error/share"] == 1.0


# --- AReaL's own channels -------------------------------------------------------------------------


class Scripted:
    """An engine without HTTP, for what the executor keeps to itself."""

    def __init__(self, case: Case) -> None:
        self.case = case

    async def agenerate(self, request: Any) -> Any:
        made = self.case.samples(tuple(request.input_ids))
        return ModelResponse(
            input_tokens=list(request.input_ids),
            output_tokens=list(made.token_ids),
            output_logprobs=list(made.logprobs or ()),
            output_versions=[0] * len(made.token_ids),
            stop_reason=made.stop,
        )


def test_figures_go_to_areals_tracker_by_what_is_played(areal: Areal, tmp_path: Path) -> None:
    case = CASES["looked up"]
    workflow = workflow_of(case, log_dir=str(tmp_path))
    areal.play(case, workflow)
    areal.play(case, workflow, is_eval=True)
    figures = stats_tracker.export_all()
    for scope in ("rollout", "eval-rollout"):
        assert figures[f"{scope}/reward"] == 1.0
        assert figures[f"{scope}/livestream/turns"] == 2.0
        assert figures[f"{scope}/livestream/calls/executed"] == 2.0
    logged = le.read_log(str(tmp_path)).lines
    assert [(line.trajectory.reward, line.policy_version) for line in logged] == [(1.0, "3")] * 2


def test_members_of_a_group_start_alike(areal: Areal) -> None:
    case = CASES["several turns"]
    areal.play(case, group_size=3)
    prompts = sorted((asked["input_ids"] for asked in areal.server.asked), key=len)
    assert prompts[0] == prompts[1] == prompts[2] != prompts[3]


def test_a_row_that_names_a_room_is_played_in_it(areal: Areal) -> None:
    case = CASES["looked up"]
    workflow = LiveRoomWorkflow(GCONFIG, tokenizer_of("chatml"), "bundled:test", embedder="lexical")
    assert_same(case, shown(case, areal.play(case, workflow)))


def test_the_example_plays(monkeypatch: pytest.MonkeyPatch, capsys: Any) -> None:
    folder = Path(__file__).resolve().parents[2] / "examples" / "trainers"
    monkeypatch.syspath_prepend(str(folder))
    runpy.run_path(str(folder / "areal_workflow.py"), run_name="__main__")
    lines = [line for line in capsys.readouterr().out.splitlines() if line.startswith("{")]
    played = [json.loads(line) for line in lines]
    assert [one["reward"] for one in played] == [1.0, 0.0, 0.0]  # small talk, then two questions
    assert all(0 < one["trained"] < one["tokens"] for one in played)
    assert all(not math.isnan(one["reward"]) for one in played)


@pytest.mark.parametrize(("agents", "seat", "told"), WITHOUT_A_SEAT)
def test_a_partner_without_a_seat_is_refused_at_once(
    agents: dict[str, str], seat: str, told: str
) -> None:
    partners = {seat: "chat:http://127.0.0.1:9/v1#m"}
    with pytest.raises(ValueError, match=told):
        LiveRoomWorkflow(None, tokenizer_of("chatml"), "snacks", agents=agents, partners=partners)


@pytest.mark.parametrize("gconfig", [None, {"max_tokens": 16000}])
def test_a_gconfig_that_is_none_is_refused_at_once(gconfig: Any) -> None:
    """In an episode AReaL would take it for a failed one, and play others."""
    with pytest.raises(TypeError, match=r"as `config\.gconfig`"):
        LiveRoomWorkflow(gconfig, tokenizer_of("chatml"), "snacks")


def test_the_code_of_the_page_plays(
    areal: Areal, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    given: dict[str, Any] = {}

    class Trainer:
        def __init__(self, config: Any, train_dataset: Any) -> None:
            given["rows"] = list(train_dataset)

        def train(self, **named: Any) -> None:
            given.update(named)

    case, (code,) = CASES["looked up"], snippets("AReaL")
    (tmp_path / "rows.jsonl").write_text(json.dumps(case.row.to_json()), encoding="utf-8")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("datasets.config.HF_DATASETS_CACHE", tmp_path / "cache")
    monkeypatch.setitem(sys.modules, "areal.trainer", SimpleNamespace(PPOTrainer=Trainer))
    folder = tmp_path / "tokenizer"
    tokenizer_of("chatml").save_pretrained(folder)
    module_of(code, config=SimpleNamespace(gconfig=GCONFIG, tokenizer_path=str(folder)))
    assert given.pop("rows") == [case.row.to_json()]
    assert areal.play(case, **given)["rewards"].tolist() == [1.0]
