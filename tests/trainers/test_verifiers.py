"""verifiers 0.4.0: our taskset, harness and environment behind its own interception and server.

The model is a server over HTTP, asked by verifiers' own clients: by token ids, rendered by its
renderers, in training; by text in an evaluation. prime-rl is on no index: what it makes of an
episode is in `verifiers_for_tests`, and its environment server is verifiers' own.
"""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import json
import pickle
import runpy
import sys
import tomllib
from collections.abc import Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest
import verifiers.v1 as vf
from conformance import (
    CASES,
    FIND,
    ONE_AGENT_CASES,
    PRICE,
    REPLIED,
    RULE,
    UNLABELLED,
    Case,
    Line,
    assert_closed,
    assert_same,
    breaks_at_once,
    call,
    expected,
    tokenizer_of,
)
from gateway_for_tests import error
from pages_for_tests import module_of, snippets
from verifiers.v1.cli import validate
from verifiers.v1.serve import EnvClient, EnvServer
from verifiers.v1.utils import loaders
from verifiers_for_tests import folder_of, modelled, trained_of

import livestream_env as le
from livestream_env.adapters.setup import task_rows
from livestream_env.adapters.verifiers import taskset_class
from livestream_env.masking import REPLY
from livestream_env.rewards import make_rubric
from livestream_env.tokens import Sampled, TokenSequence
from livestream_env.types import Rewards, Score

JINJA = {"name": "default", "tool_parser": "qwen3"}
"""verifiers' renderer of chat templates; it renders the past anew, as it reads it."""
QWEN3 = {"name": "qwen3"}
"""Its renderer of one family, which goes on from what was sampled."""
RENDERED_ANEW = ("several turns", "rewritten past")
"""Cases whose earlier turns the first of the two renders otherwise than they were sampled."""
FAILED = ("failed call", "failed reset", "failed tool of a user", "two agents and a failed call")
ONE_TOKENIZER = [name for name, case in CASES.items() if set(case.families.values()) == {"chatml"}]
_NUMBER = itertools.count()


def case_of(*lines: str | Line, **options: Any) -> Case:
    said = tuple(Line(one) if isinstance(one, str) else one for one in lines)
    return Case("another", PRICE, said, options)


class Played:
    """The environment of a case, its models and what came of its episodes."""

    def __init__(
        self,
        case: Case,
        *,
        renderer: Mapping[str, Any] = JINJA,
        env: Mapping[str, Any] | None = None,
        by_text: bool = False,
        model: Mapping[str, Mapping[str, Any]] | None = None,
        **options: Any,
    ) -> None:
        self.case = case
        self._models = model or {}
        self._renderer, self._by_text = renderer, by_text
        self._given = env or {}
        self._options = {**case.setup_options, **options}

    @contextlib.contextmanager
    def opened(self) -> Iterator[Any]:
        """Yield the environment, made of a config as a TOML file has it."""
        with contextlib.ExitStack() as stack:
            clients = {}
            for agent, family in self.case.families.items():
                url, model = stack.enter_context(modelled(self.case, agent))
                vars(model).update(self._models.get(agent, {}))
                clients[agent] = self._client(url, family)
            config: dict[str, Any] = {"taskset": {"id": plugin(self._options)}}
            if self.case.has_two_agents:
                config |= {agent: {"client": client} for agent, client in clients.items()}
            for name, given in self._given.items():
                config[name] = {**config.get(name, {}), **given}
            self.client = next(iter(clients.values()))
            yield vf.load_environment(vf.resolve_env_config(config))

    def _client(self, url: str, family: str) -> Any:
        plain = {"base_url": url, "api_key_var": "NO_SUCH_KEY"}
        if self._by_text:
            return vf.EvalClientConfig(**plain)
        return vf.TrainClientConfig(
            **plain, renderer=self._renderer, renderer_model_name=folder_of(family)
        )

    def task(self, env: Any) -> Any:
        """Return the case's row as a task."""
        made = type(env.taskset).task_type()
        data = made.data_type()(prompt="played", **self.case.row.to_json())
        return made(data, env.config.taskset.task)

    def episodes(self, count: int = 1) -> list[Any]:
        """Play, `count` episodes at once."""

        async def play(env: Any) -> list[Any]:
            ctx = vf.ModelContext(model="policy", client=self.client)
            async with env.serving():
                slots = [env.slots(self.task(env))[0] for _ in range(count)]
                return await asyncio.gather(*(env.run_slot(slot, ctx) for slot in slots))

        with self.opened() as env:
            return asyncio.run(play(env))

    def episode(self) -> Any:
        """Play one episode."""
        return self.episodes()[0]

    def served(self) -> Any:
        """Play one episode by verifiers' server and client, as prime-rl does."""

        async def play() -> Any:
            server = EnvServer(env.config, "tcp://127.0.0.1:0")
            running = asyncio.create_task(server.run())
            client = EnvClient(server.address)
            try:
                return await client.run(
                    task_data=self.task(env).data.model_dump(mode="json"),
                    client=self.client,
                    model="policy",
                    sampling=vf.SamplingConfig(),
                )
            finally:
                await client.close()
                running.cancel()
                await running

        with self.opened() as env:
            return asyncio.run(play())


def plugin(options: Mapping[str, Any]) -> str:
    """Return the id of a taskset with a setup that no TOML holds, as a user's module has it."""
    module: Any = ModuleType(f"rooms_{next(_NUMBER)}")
    module.Rooms = taskset_class(**options)
    module.LiveRoomHarness, module.LiveRoomSeats = le.LiveRoomHarness, le.LiveRoomSeats
    module.__all__ = ["Rooms", "LiveRoomHarness", "LiveRoomSeats"]
    sys.modules[module.__name__] = module
    return str(module.__name__)


def agent_of(trace: Any) -> str:
    return "host" if trace.agent.name == "agent" else str(trace.agent.name)


def shown(case: Case, episode: Any) -> Any:
    """Return what prime-rl makes of an episode."""
    trained = {"host" if name == "agent" else name: r for name, r in trained_of(episode).items()}
    rows = {agent: trained.get(agent, []) for agent in case.families}
    rewards = {
        agent_of(trace): trace.rewards["livestream"].score
        for trace in episode.traces
        if "livestream" in trace.rewards
    }
    return {
        "token_ids": {agent: [ids for ids, _, _ in made] for agent, made in rows.items()},
        "loss_mask": {agent: [mask for _, mask, _ in made] for agent, made in rows.items()},
        "logprobs": {agent: [told for _, _, told in made] for agent, made in rows.items()},
        "trained_ids": {
            agent: [
                token for ids, mask, _ in made for token, bit in zip(ids, mask, strict=True) if bit
            ]
            for agent, made in rows.items()
        },
        "rewards": {agent: rewards.get(agent) for agent in case.families},
        "truncated": any(trace.is_truncated for trace in episode.traces),
    }


@pytest.mark.parametrize("name", ["looked up", "two agents"])
def test_sandboxes_are_closed_whatever_ends_an_episode(name: str) -> None:
    assert_closed(lambda case: Played(case).episode(), name)


def without_prompts(got: Any) -> Any:
    """Return what does not depend on how a trainer renders what lies between turns."""
    return {key: got[key] for key in ("trained_ids", "rewards", "truncated")}


def errors_of(episode: Any) -> str:
    told = [*episode.errors, *(one for trace in episode.traces for one in trace.errors)]
    return " | ".join(f"{one.type}: {one.message}" for one in told)


# --- conformance ------------------------------------------------------------------------------


@pytest.mark.row("R37", "R42", "R44", "R54")
@pytest.mark.parametrize("name", CASES)
def test_episodes_are_the_cores(name: str) -> None:
    case = CASES[name]
    episode = Played(case).episode()
    if name in FAILED:
        assert not episode.ok
        assert "is left out: env_error" in errors_of(episode)
        assert trained_of(episode) == {}
        assert [trace.rewards for trace in episode.traces] == [{}] * len(episode.traces)
        return
    assert episode.ok, errors_of(episode)
    got = shown(case, episode)
    assert_same(case, without_prompts(got) if name in RENDERED_ANEW else got)


@pytest.mark.row("R42")
@pytest.mark.parametrize("name", ONE_TOKENIZER)
def test_a_renderer_of_verifiers_own_changes_prompts_alone(name: str) -> None:
    case = CASES[name]
    if name in FAILED:
        return
    episode = Played(case, renderer=QWEN3).episode()
    assert_same(case, without_prompts(shown(case, episode)))
    for trace in episode.traces:
        for node in trace.nodes:
            if node.sampled:
                assert any(node.mask)
                assert node.loss_weights["rl"] == [float(bit) for bit in node.mask]


@pytest.mark.row("R42")
@pytest.mark.parametrize("name", ["looked up", "several turns", "two tokenizers", *FAILED])
def test_episodes_that_are_served_are_the_same(name: str) -> None:
    case = CASES[name]
    episode = Played(case).served()
    if name in FAILED:
        assert not episode.ok
        assert "is left out: env_error" in errors_of(episode)
        assert trained_of(episode) == {}
        return
    got = shown(case, episode)
    assert_same(case, without_prompts(got) if name in RENDERED_ANEW else got)


# --- masks ------------------------------------------------------------------------------------


def ids_of(case: Case, turn: int) -> list[int]:
    """Return what is sampled in a turn."""
    text = case.line(turn).text + "<|im_end|>"
    return list(tokenizer_of("chatml")(text, add_special_tokens=False)["input_ids"])


@pytest.mark.row("R54")
@pytest.mark.parametrize("renderer", [JINJA, QWEN3], ids=["anew", "goes on"])
@pytest.mark.parametrize(("masker", "turns"), [("tool_calls", (0, 1)), ("reply", (2,))])
@pytest.mark.parametrize("is_served", [False, True], ids=["here", "served"])
def test_masked_turns_are_not_trained(
    renderer: Any, masker: str, turns: tuple[int, ...], is_served: bool
) -> None:
    case = CASES["several turns"]
    played = Played(case, renderer=renderer, masker=masker)
    episode = played.served() if is_served else played.episode()
    (trace,) = episode.traces
    assert trace.num_branches == (2 if renderer is JINJA else 1)
    due = [token for turn in turns for token in ids_of(case, turn)]
    assert shown(case, episode)["trained_ids"]["host"] == due
    assert trace.reward == 1.0


def first_three(sequence: TokenSequence) -> Any:
    """Train the first three tokens of the last turn."""
    sample = sequence.sample(lambda span: span.turn == max(sequence.turns))
    start = sample.loss_mask.index(1)
    mask = [int(start <= at < start + 3) for at in range(len(sample.loss_mask))]
    return replace(sample, loss_mask=tuple(mask))


def test_a_masker_of_ones_own_picks_tokens() -> None:
    case = CASES["looked up"]
    episode = Played(case, masker=first_three).served()
    assert shown(case, episode)["trained_ids"]["host"] == ids_of(case, 1)[:3]


def test_an_episode_of_which_nothing_is_trained_keeps_its_reward() -> None:
    case = case_of("亲，欢迎")  # no look, and `tool_calls` trains nothing else
    episode = Played(case, masker="tool_calls").served()
    (trace,) = episode.traces
    assert episode.ok
    assert trace.rewards["livestream"].score == expected(case)["rewards"]["host"]
    assert not trace.agent.trainable
    assert trained_of(episode) == {}


def test_what_is_known_of_a_turn_is_in_the_log(tmp_path: Path) -> None:
    case = CASES["looked up"]
    Played(case, log_dir=str(tmp_path)).episode()
    (line,) = le.read_log(str(tmp_path)).lines
    turns = line.trajectory.turns
    told = [list(turn.action.token_ids or ()) for turn in turns]
    assert told == [ids_of(case, 0), ids_of(case, 1)]
    assert turns[1].action.logprobs == case.samples(turns[1].action.prompt_ids or ()).logprobs


# --- what is a call is the core's to say ---------------------------------------------------------

UNREADABLE = {
    "no JSON": '<tool_call>\n{"name": "get_reply_rule", "arguments": {oops}}\n</tool_call>',
    "no name": '<tool_call>\n{"arguments": {"intent": "价格咨询"}}\n</tool_call>',
    "behind a good one": f'{FIND}\n<tool_call>\n{{"name": "get_rep\n</tool_call>',
    "no end": '好的<tool_call>\n{"name": "get_reply_rule", "arguments": {"intent": "价格咨询"}}',
    "no such tool": call("ask_boss"),
}


@pytest.mark.parametrize("renderer", [JINJA, QWEN3], ids=["anew", "goes on"])
@pytest.mark.parametrize("text", UNREADABLE.values(), ids=UNREADABLE)
def test_a_call_that_verifiers_drops_is_answered(renderer: Any, text: str) -> None:
    case = case_of(text, RULE, REPLIED)
    episode = Played(case, renderer=renderer).episode()
    assert_same(case, without_prompts(shown(case, episode)))
    told = [node.message for node in episode.traces[0].nodes if node.message.role == "tool"]
    due = [one for one in expected(case)["messages"] if getattr(one, "role", "") == "tool"]
    assert [one.content for one in told] == [getattr(one, "content", "") for one in due]


# --- failures and limits ------------------------------------------------------------------------


def test_an_answer_that_failed_in_passing_is_asked_for_again() -> None:
    case = CASES["looked up"]
    busy = {"host": {"refusals": [error(503, "503", "busy")]}}
    episode = Played(case, model=busy).episode()
    assert_same(case, shown(case, episode))
    assert [one.error is None for one in episode.traces[0].calls] == [False, True, True]


@pytest.mark.row("R45")
def test_a_model_that_fails_is_no_reward() -> None:
    refuses = {"host": {"refusals": [error(401, "401", "no key")]}}
    (trace,) = Played(CASES["looked up"], model=refuses).episode().traces
    assert (trace.ok, trace.rewards, trace.errors[0].type) == (False, {}, "ProviderError")


@pytest.mark.row("R45")
def test_a_model_that_fails_one_of_two_agents_fails_both() -> None:
    refuses = {"replier": {"refusals": [error(401, "401", "no key")]}}
    episode = Played(CASES["two agents"], model=refuses).episode()
    assert not episode.ok
    assert {trace.agent.name for trace in episode.traces} == {"tool_caller", "replier"}
    assert not any(trace.ok or trace.rewards for trace in episode.traces)
    assert "ProviderError" in errors_of(episode)


@pytest.mark.row("R45")
@pytest.mark.parametrize("name", ["looked up", "two agents"])
def test_an_answer_that_the_server_aborts_is_no_reward(name: str) -> None:
    case = CASES[name]
    agent = next(iter(case.families))

    def aborts(ids: tuple[int, ...], stop: tuple[int, ...]) -> Sampled:
        return replace(case.samples(ids, agent), stop="abort")

    episode = Played(case, model={agent: {"engine": aborts}}).episode()
    assert not episode.ok
    assert "the server stopped the answer" in errors_of(episode)
    assert not any(trace.rewards for trace in episode.traces)


def no_verdict(trajectory: le.Trajectory, room: le.Room | None) -> Rewards:
    return Rewards((Score("judge", None, cause="judge_error", reason="no verdict"),))


def test_an_episode_without_a_score_is_no_reward() -> None:
    episode = Played(CASES["looked up"], rubric=no_verdict).episode()
    assert "is left out: judge_error" in errors_of(episode)
    assert not episode.traces[0].ok


@pytest.mark.row("R45")
@pytest.mark.parametrize(("name", "whose"), [("looked up", "agent"), ("two agents", "retries")])
def test_verifiers_plays_a_failed_episode_again(name: str, whose: str) -> None:
    made = iter(range(9))

    def fails_once(room: le.Room) -> le.LocalSandbox:
        if next(made) == 0:
            raise le.SandboxUnavailable("down")
        return le.LocalSandbox(room, embedder="lexical")

    case, again = CASES[name], {"rules": [{"message": "env_error", "max_retries": 1}]}
    given = {"retries": again} if whose == "retries" else {"agent": {"retries": again}}
    episode = Played(case, env=given, sandbox=fails_once).episode()
    assert episode.ok
    assert_same(case, shown(case, episode))
    assert "down" in errors_of(episode)  # what was before is told
    assert next(made) == 2


@pytest.mark.parametrize(
    "limit", [{"max_turns": 2}, {"max_output_tokens": 60}, {"max_total_tokens": 4000}], ids=str
)
def test_a_limit_of_verifiers_cuts_the_episode(limit: Any) -> None:
    case = CASES["several turns"]
    episode = Played(case, renderer=QWEN3, env={"agent": limit}).episode()
    (trace,) = episode.traces
    assert episode.ok
    assert trace.stop_condition == next(iter(limit))
    assert trace.is_truncated
    said = 2 if "max_turns" in limit else trace.num_turns
    assert trace.num_turns == said < 3
    cut = case_of(*case.lines[:said], max_turns=said)  # the same words, and no more
    assert trace.rewards["livestream"].score == expected(cut)["rewards"]["host"]
    assert trace.metrics["stop/token_limit"] == 1.0


def test_a_conversation_that_fills_the_context_is_cut() -> None:
    case = CASES["several turns"]
    (whole,) = Played(case, renderer=QWEN3).episode().traces
    lengths = list(itertools.accumulate(len(node.token_ids) for node in whole.nodes))
    longest = {"host": {"longest": lengths[-2] - 1}}  # the third prompt has more
    (trace,) = Played(case, renderer=QWEN3, model=longest).episode().traces
    assert (trace.ok, trace.num_turns) == (True, 2)
    assert trace.metrics["stop/token_limit"] == 1.0
    (trace,) = Played(case, renderer=QWEN3, model={"host": {"longest": 100}}).episode().traces
    assert (trace.ok, trace.rewards) == (False, {})  # not a word was said
    assert "exceeds maximum context length (100)" in trace.errors[0].message


def test_an_episode_that_verifiers_breaks_off_is_no_reward() -> None:
    hurry = {"agent": {"timeout": {"rollout": 0.3}}}
    slow = {"host": {"waits_s": 1.0}}
    (trace,) = Played(CASES["looked up"], env=hurry, model=slow).episode().traces
    assert (trace.ok, trace.rewards, trace.is_timeout) == (False, {}, True)
    assert "was broken off: agent_timeout" in trace.errors[0].message


# --- two agents ---------------------------------------------------------------------------------


@pytest.mark.row("R54")
def test_a_partner_of_another_model_is_context() -> None:
    case = CASES["two agents"]
    with modelled(case) as (url, model):
        other = {
            "model": "partner",
            "client": {"type": "eval", "base_url": url, "api_key_var": "NO_SUCH_KEY"},
        }
        trained = {"replier": case.options["agents"]["replier"]}
        episode = Played(case, env={"tool_caller": other}, agents=trained).served()
    assert [asked["model"] for asked in model.asked] == ["partner"] * 2
    assert {one.agent.name: one.agent.trainable for one in episode.traces} == {
        "tool_caller": False,
        "replier": True,
    }
    assert list(trained_of(episode)) == ["replier"]
    got = shown(case, episode)["rewards"]
    assert got["replier"] == expected(case)["rewards"]["replier"]


def test_a_seat_that_is_not_reached_has_no_trace() -> None:
    case = replace(CASES["two agents"], name="limited", lines=CASES["two agents"].lines[:1])
    case = replace(case, options={**case.options, "max_turns": 1})
    episode = Played(case).served()
    assert episode.ok
    assert [trace.agent.name for trace in episode.traces] == ["tool_caller"]
    got, due = shown(case, episode)["rewards"], expected(case)["rewards"]
    assert got["tool_caller"] == due["tool_caller"] is not None


@pytest.mark.parametrize("is_cut", [True, False], ids=["limit", "time"])
def test_limits_of_one_seat_end_the_episode_of_both(is_cut: bool) -> None:
    case = CASES["two agents"]
    limit = {"max_turns": 1} if is_cut else {"timeout": {"rollout": 0.3}}
    slow = {"tool_caller": {"waits_s": 0.0 if is_cut else 1.0}}
    episode = Played(case, env={"tool_caller": limit}, model=slow).episode()
    assert episode.ok is is_cut
    if is_cut:
        (trace,) = episode.traces
        assert (trace.stop_condition, trace.is_truncated) == ("max_turns", True)
        assert trace.rewards["livestream"].score < expected(case)["rewards"]["tool_caller"]
    else:
        assert "the rollout of `tool_caller` ended: agent_timeout" in errors_of(episode)
        assert [trace.rewards for trace in episode.traces] == [{}, {}]


def played_alone(task_id: str) -> Any:
    """Play the first row of a taskset by verifiers' environment of one agent."""
    config = {"id": "single-agent", "taskset": {"id": task_id, "count": 1}}
    seat = {"runtime": {"type": "subprocess"}, "harness": {"id": "livestream_env"}}

    async def play(env: Any, url: str) -> Any:
        client = vf.EvalClientConfig(base_url=url, api_key_var="NO_SUCH_KEY")
        async with env.serving():
            (task,) = env.taskset
            return await env.run_episode(task, vf.ModelContext(model="policy", client=client))

    with modelled(CASES["looked up"]) as (url, _):
        env = vf.load_environment(vf.resolve_env_config({**config, "agent": seat}))
        return asyncio.run(play(env, url))


def test_an_environment_of_verifiers_own_plays_one_agent_and_refuses_two() -> None:
    case = CASES["looked up"]
    one = {**case.setup_options, "comment": list(case.row.comment)}
    assert played_alone(plugin(one)).traces[0].reward == 1.0
    two = {**one, **CASES["two agents"].options}
    assert "two agents play by `LiveRoomSeats`" in errors_of(played_alone(plugin(two)))


# --- the id, the configuration, evaluation ------------------------------------------------------


@pytest.mark.parametrize("name", ["livestream_env", "livestream-env", "someone/livestream-env@0.1"])
def test_the_package_is_a_taskset_by_its_name(name: str) -> None:
    config = vf.resolve_env_config(
        {
            "taskset": {
                "id": name,
                "count": 3,
                "seed": 5,
                "task": {"setup": {"room": "snacks", "embedder": "lexical", "masker": "reply"}},
            },
        }
    )
    env = vf.load_environment(config)
    assert (type(env), type(env.taskset)) == (le.LiveRoomSeats, le.LiveRoomTaskset)
    assert loaders.default_harness_id(name) == name
    assert loaders.harness_class(name) is le.LiveRoomHarness
    assert env.taskset.setup.agents == {"host": REPLY}
    tasks = list(env.taskset)
    rows = list(task_rows("snacks", count=3, seed=5, embedder="lexical"))
    assert [task.row for task in tasks] == rows
    assert [task.key for task in tasks] == [row.task_id for row in rows]
    assert [task.data.idx for task in tasks] == [0, 1, 2]
    sent = env.taskset.task_type().data_type().model_validate(tasks[0].data.model_dump(mode="json"))
    assert sent == tasks[0].data
    assert pickle.loads(pickle.dumps(config)) == config  # as its pool of servers does


def test_what_a_setup_cannot_be_is_told_when_the_environment_is_made() -> None:
    def load(**taskset: Any) -> Any:
        return vf.load_taskset(vf.resolve_env_config({"taskset": taskset}).taskset)

    name = "livestream_env"
    assert len(list(load(id=name, task={"setup": {"embedder": "lexical"}}))) > 100  # a split
    with pytest.raises(ValueError, match="no masker `replies`"):
        load(id=name, task={"setup": {"masker": "replies"}})
    with pytest.raises(ValueError, match=r"give `task\.setup\.prompt`"):
        load(id=name, system_prompt=__file__)
    with pytest.raises(ValueError, match=r"leave `task\.setup` out"):
        load(id=plugin({"room": "snacks"}), task={"setup": {"room": "snacks"}})


def test_a_box_is_refused() -> None:
    harness = le.LiveRoomHarness(vf.HarnessConfig(id="livestream_env"))
    box: Any = SimpleNamespace(config=SimpleNamespace(type="docker"))
    with pytest.raises(ValueError, match="rooms need no box"):
        asyncio.run(harness.setup(box))


def validated(task_id: str, folder: Path, *checks: str) -> list[Any]:
    """Return what `vf-validate` tells of two tasks."""
    given = [task_id, "--taskset.count", "2", "--runtime.type", "subprocess", "--no-rich"]
    validate.main([*given, "--output-dir", str(folder), "--run.name", "run", *checks])
    lines = (folder / "run" / "results.jsonl").read_text(encoding="utf-8").splitlines()
    return [json.loads(line) for line in lines]


def earns_nothing(trajectory: le.Trajectory, room: le.Room | None) -> Rewards:
    return Rewards((Score("total", 0.0),))


@pytest.mark.parametrize(
    ("options", "valid", "told"),
    [
        pytest.param({}, True, None, id="labelled"),
        pytest.param({"room": UNLABELLED}, None, None, id="unlabelled"),
        pytest.param({"rubric": earns_nothing}, False, None, id="earns nothing"),
        pytest.param(CASES["two agents"].options, True, None, id="two agents"),
        pytest.param({"sandbox": breaks_at_once}, False, "has no reward: env_error", id="fails"),
    ],
)
def test_tasks_are_validated_by_the_scripted_agent(
    options: Any, valid: bool | None, told: str | None, tmp_path: Path
) -> None:
    made = plugin({"room": "snacks", "embedder": "lexical", **options})
    for row in validated(made, tmp_path, "--only-gold"):
        assert row["valid"] is valid
        assert (told or "") in (row["error"] or "")


def test_a_task_that_nobody_plays_is_not_checked(tmp_path: Path) -> None:
    made = plugin({"room": "snacks", "embedder": "lexical"})
    for row in validated(made, tmp_path):
        assert (row["gold"]["reason"], row["noop"]["reason"]) == ("valid", "unchecked")
        assert row["error"] is None


@pytest.mark.parametrize("name", [*ONE_AGENT_CASES])
def test_an_evaluation_by_text_has_the_rewards_of_the_core(name: str) -> None:
    case = CASES[name]
    episode = Played(case, by_text=True).episode()
    assert episode.ok is (name not in FAILED)
    if episode.ok:
        due = expected(case)
        (trace,) = episode.traces
        assert trace.rewards["livestream"].score == pytest.approx(due["rewards"]["host"])
        assert trace.is_truncated is due["truncated"]


def test_episodes_at_once_do_not_mix() -> None:
    case = CASES["burst"]
    for episode in Played(case).episodes(8):
        assert_same(case, shown(case, episode))


def test_members_of_a_group_start_alike_and_figures_are_metrics() -> None:
    case = CASES["looked up"]
    traces = [one.traces[0] for one in Played(case).episodes(3)]
    firsts = [[node.token_ids for node in trace.nodes[:2]] for trace in traces]
    assert firsts[0] == firsts[1] == firsts[2]
    names = {tuple(sorted(trace.metrics)) for trace in traces}
    assert len(names) == 1
    assert traces[0].metrics["turns"] == 2.0
    assert traces[0].metrics["calls/executed"] == 2.0


def test_the_example_plays(monkeypatch: pytest.MonkeyPatch, capsys: Any) -> None:
    folder = Path(__file__).resolve().parents[2] / "examples" / "trainers"
    monkeypatch.syspath_prepend(str(folder))
    runpy.run_path(str(folder / "verifiers_rooms.py"), run_name="__main__")
    played = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    assert [one["reward"] for one in played] == [1.0, 0.0, 0.0]  # small talk, then two questions
    assert all(0 < one["trained"] < one["tokens"] for one in played)


def test_the_code_of_the_page_is_a_taskset() -> None:
    (toml,), (code,) = (
        snippets("verifiers and prime-rl", "toml"),
        snippets("verifiers and prime-rl"),
    )
    (source,) = tomllib.loads(toml)["orchestrator"]["train"]["source"]
    env = vf.load_environment(vf.resolve_env_config(source["env"]))
    assert len(list(env.taskset)) == 1000
    rubric = make_rubric("single4")
    made = module_of(code, my_rubric=rubric)
    sys.modules["a_users_module"] = made
    own = vf.load_environment(vf.resolve_env_config({"taskset": {"id": "a_users_module"}}))
    assert own.taskset.setup.options["rubric"] is rubric
