"""OpenEnv 0.10.0: its server and clients, its harness, and TRL's worker over its sessions."""

from __future__ import annotations

import asyncio
import json
import pickle
import runpy
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import httpx
import pytest
from accelerate import PartialState
from conformance import (
    CASES,
    FIND,
    ONE_AGENT_CASES,
    PRICE,
    REPLIED,
    RULE,
    WITHOUT_A_SEAT,
    Case,
    Line,
    Shown,
    assert_closed,
    assert_same,
    breaks_some,
    expected,
    said_in,
    tokenizer_of,
)
from openenv.core import GenericEnvClient
from openenv.core.harness import (
    HarnessRunLimits,
    MCPHarnessAdapter,
    ModelStepResult,
    SessionMCPBridge,
    TrainableSession,
    build_harness_rollout_func,
)
from openenv.core.harness.collect import CollectRunner, RolloutSerializer
from openenv.core.llm_client import LLMResponse
from openenv.core.llm_client import ToolCall as HarnessCall
from pages_for_tests import module_of, snippets
from policy_server_for_tests import EngineServer, serving
from servers_for_tests import running
from trl.experimental.async_grpo.openenv_harness import HarnessRolloutWorker, _HarnessRolloutLoop

import livestream_env as le
from livestream_env.adapters.openenv import LiveRoomEnvironment, RoomAction, room_app
from livestream_env.adapters.openenv_sessions import RoomSessions
from livestream_env.adapters.setup import Setup, task_rows
from livestream_env.errors import RoomNotFound, SandboxError
from livestream_env.masking import REPLY
from livestream_env.parsing import parse_text
from livestream_env.sandbox import LocalSandbox
from livestream_env.types import Rewards, Score

PartialState()  # as TRL does before its worker runs
FAILED = ("failed call", "failed reset", "failed tool of a user")


@contextmanager
def connected(room: str | None = None, **options: Any) -> Iterator[Any]:
    """Serve a room, and yield OpenEnv's own client of it."""
    app = room_app(room, **{"embedder": "lexical", **options})
    with running(app, ws="auto") as url, GenericEnvClient(base_url=url).sync() as client:
        yield client


# --- the server and its client ----------------------------------------------------------------


def played(case: Case, client: Any) -> tuple[list[Any], list[Any]]:
    """Play a case; return each result, and the transcript that the client has."""
    result = client.reset(**case.row.to_json())
    results, messages = [result], list(result.observation["messages"])
    for turn, line in enumerate(case.lines):
        if result.done:
            break
        messages.append(parse_text(line.text, turn=turn).message.to_openai())
        result = client.step({"message": line.text, "stop": line.stop})
        results.append(result)
        if result.observation["tools"]:  # another agent begins, with all that it knows
            messages = []
        messages += result.observation["messages"]
    return results, messages


def shown(case: Case, result: Any, messages: list[Any]) -> Shown:
    trained = result.metadata["trained"]
    causes = {agent: told["excluded"] for agent, told in trained.items()}
    return Shown(
        said=said_in(messages),
        rewards={agent: told["reward"] for agent, told in trained.items()},
        truncated=result.metadata["truncated"],
        excluded={agent: cause and cause.split(":")[0] for agent, cause in causes.items()},
    )


@pytest.mark.row("R42", "R44")
@pytest.mark.parametrize("name", CASES)
def test_a_scripted_policy_gets_through_openenv_what_it_gets_from_the_core(name: str) -> None:
    case = CASES[name]
    with connected(**case.setup_options) as client:
        results, messages = played(case, client)
    got = shown(case, results[-1], messages)
    if not case.has_two_agents:
        got["messages"] = messages if name not in FAILED else expected(case)["messages"]
    if name in FAILED:
        got.pop("said")  # the call that failed is no turn
    assert_same(case, got)
    assert [one.done for one in results] == [False] * (len(results) - 1) + [True]
    assert results[-1].metadata["metrics"]["episodes"] == 1.0


@pytest.mark.row("R45")
@pytest.mark.parametrize("name", FAILED)
def test_a_failed_environment_is_done_and_no_observation_has_a_reward(name: str) -> None:
    case = CASES[name]
    with connected(**case.setup_options) as client:
        results, _ = played(case, client)
    assert [one.reward for one in results] == [None] * len(results)
    last = results[-1]
    assert last.done
    assert last.metadata["status"] == "env_error"
    assert "50" in last.metadata["env_error"]  # 502 or 503, the server's
    assert last.metadata["trained"]["host"]["turns"] == []


def test_the_reward_is_the_last_observations_alone() -> None:
    with connected("snacks", process=True) as client:
        results, _ = played(CASES["several turns"], client)
    assert [one.reward for one in results] == [None, None, None, 1.0]
    turns = results[-1].metadata["trained"]["host"]["turns"]
    assert [one["turn"] for one in turns] == [0, 1, 2]


@pytest.mark.row("R37")
@pytest.mark.parametrize("masker", ["end_to_end", "tool_calls", "reply"])
def test_the_turns_that_are_trained_hold_the_ids_that_the_core_trains(masker: str) -> None:
    case = CASES["several turns"]
    with connected(**case.setup_options, masker=masker) as client:
        results, _ = played(case, client)
    encode = tokenizer_of("chatml")
    ids: list[int] = []
    for one in results[-1].metadata["trained"]["host"]["turns"]:
        text = case.line(one["turn"]).text + "<|im_end|>"
        ids += encode(text, add_special_tokens=False)["input_ids"]
    setup = Setup(**case.setup_options, masker=masker)
    trajectory = le.rollout(setup.make_env(), case.agent(), **setup.opening(case.row))
    (row,) = setup.rows(trajectory, case.renderers)
    due = [token for token, bit in zip(row.token_ids, row.loss_mask, strict=True) if bit]
    assert ids == due


def no_verdict(trajectory: le.Trajectory, room: le.Room | None) -> Rewards:
    return Rewards((Score("judge", None, cause="judge_error", reason="no verdict"),))


def test_an_episode_without_a_score_has_no_reward() -> None:
    with connected("snacks", rubric=no_verdict) as client:
        results, _ = played(CASES["looked up"], client)
    assert results[-1].done
    assert results[-1].reward is None
    assert results[-1].metadata["trained"]["host"]["excluded"].startswith("judge_error")


def test_messages_of_a_chat_api_and_how_they_were_sampled(tmp_path: Path) -> None:
    message = {
        "role": "assistant",
        "content": "",
        "tool_calls": [
            {
                "id": "call_x",
                "type": "function",
                "function": {"name": "get_reply_rule", "arguments": '{"intent": "价格咨询"}'},
            }
        ],
    }
    with connected("snacks", log_dir=str(tmp_path)) as client:
        client.reset(**PRICE.to_json(), task_id="a column that is the trainer's")
        sampled = {"prompt_ids": [1, 2], "token_ids": [3], "logprobs": [-0.5]}
        told = client.step({"message": message, **sampled})
        assert told.observation["messages"][0]["tool_call_id"] == "call_x"
        assert client.step({"message": REPLIED}).done
    (line,) = le.read_log(str(tmp_path)).lines
    first, second = (turn.action for turn in line.trajectory.turns)
    assert (first.prompt_ids, first.token_ids, first.logprobs) == ((1, 2), (3,), (-0.5,))
    assert second.token_ids is None


def test_a_limit_of_the_trainers_ends_the_episode_and_scores_it() -> None:
    with connected("snacks") as client:
        client.reset(**PRICE.to_json())
        for text in (FIND, RULE):
            client.step({"message": text})
        result = client.step({"end": "turns"})
    assert result.done
    assert result.reward == expected(CASES["turn limit"])["rewards"]["host"]
    assert result.metadata["stop_reason"] == "turn_limit"


def test_a_seed_opens_one_episode_in_any_session_and_the_state_tells_it() -> None:
    with connected("snacks") as client:
        assert client.state()["step_count"] == 0
        first = client.reset(seed=3, episode_id="e1").observation
        assert client.reset(seed=3, episode_id="e2").observation == first
        assert client.reset(seed=4).observation != first
        client.reset(**PRICE.to_json(), episode_id="e3")
        client.step({"message": FIND})
        state = client.state()
    assert (state["episode_id"], state["step_count"]) == ("e3", 1)
    assert (state["room_id"], state["comment_ids"]) == ("snacks", ["c02"])
    assert state["status"] == "running"


@pytest.mark.parametrize(
    ("opening", "named"),
    [
        ({"seed": -1}, "greater or equal to zero"),
        ({"room": "/etc/passwd", "seed": 1}, "none of this server's rooms"),
        ({"room": 5, "seed": 1}, "`5` is none of this server's rooms"),
        ({"room": "snakcs", "seed": 1}, "Did you mean `snacks`"),
        ({"comment": ["c02"]}, "needs `seed`"),
        ({"seed": 1, "comment": ["c99"]}, "c99"),
    ],
)
def test_what_cannot_be_opened_is_told_in_words(opening: Any, named: str) -> None:
    with connected("snacks") as client, pytest.raises(RuntimeError, match=named):
        client.reset(**opening)


def test_rows_may_name_bundled_rooms_and_those_of_the_server() -> None:
    case = CASES["unlabelled room"]
    with connected("snacks", rooms=[case.row.room]) as client:
        assert client.reset(room="phones", seed=1).observation["messages"]
        assert client.reset(**case.row.to_json()).observation["messages"]
        assert client.state()["comment_ids"] == ["c1"]


def test_a_turn_after_the_end_and_a_message_that_is_none_are_refused() -> None:
    with connected("snacks") as client:
        with pytest.raises(RuntimeError, match="call `reset` first"):
            client.step({"message": "亲"})
        client.reset(**PRICE.to_json())
        with pytest.raises(RuntimeError, match="role"):
            client.step({"message": {"role": "user", "content": "?"}})
        with pytest.raises(RuntimeError, match="Invalid message"):
            client.step({"text": "亲"})
        assert client.step({"message": "亲"}).done
        with pytest.raises(RuntimeError, match="ended"):
            client.step({"message": "亲"})


def test_posts_hold_no_session_and_say_so() -> None:
    with running(room_app("snacks", embedder="lexical"), ws="auto") as url:
        assert httpx.post(f"{url}/reset", json={"seed": 1}).status_code == 200
        told = httpx.post(f"{url}/step", json={"action": {"message": "亲"}})
        assert told.status_code == 409
        assert "WebSocket" in told.json()["detail"]
        schema = httpx.get(f"{url}/schema").json()["action"]["properties"]
        assert {"message", "stop", "end"} <= schema.keys()


def test_sessions_play_at_a_time_up_to_the_limit() -> None:
    case = CASES["looked up"]

    async def play(url: str) -> Any:
        async with GenericEnvClient(base_url=url) as client:
            await client.reset(**case.row.to_json())
            return [(await client.step({"message": line.text})).reward for line in case.lines]

    async def together(url: str) -> Any:
        return await asyncio.gather(*(play(url) for _ in range(8)))

    with running(room_app("snacks", embedder="lexical", max_sessions=8), ws="auto") as url:
        assert asyncio.run(together(url)) == [[None, 1.0]] * 8
    with (
        running(room_app("snacks", embedder="lexical", max_sessions=1), ws="auto") as url,
        GenericEnvClient(base_url=url).sync() as first,
    ):
        first.reset(seed=1)
        with pytest.raises(Exception, match="capacity"), GenericEnvClient(base_url=url).sync() as c:
            c.reset(seed=1)


def test_the_environment_plays_in_process_too() -> None:
    env = LiveRoomEnvironment("snacks", embedder="lexical")
    assert env.reset(**PRICE.to_json()).tools
    env.step(RoomAction(message=f"{FIND}\n{RULE}"))
    assert env.step(RoomAction(message=REPLIED)).reward == 1.0
    env.close()
    assert pickle.loads(pickle.dumps(RoomAction(message="亲"))).message == "亲"


# --- a harness's loop -------------------------------------------------------------------------

HARNESSED = [name for name in ONE_AGENT_CASES if name not in ("cut reply", "cut call")]
"""OpenEnv's model step does not tell that an answer was cut."""


def model_step(case: Case) -> Any:
    """Return what samples a turn, as OpenEnv's harness takes it."""

    def step(messages: list[Any], tools: list[Any], sampling: Any) -> ModelStepResult:
        turn = sum(message["role"] == "assistant" for message in messages)
        said = parse_text(case.line(turn).text, turn=turn).message
        calls = [HarnessCall(one.id, one.name, dict(one.arguments)) for one in said.tool_calls]
        return ModelStepResult(LLMResponse(said.content, calls))

    return step


def harnessed(case: Case, **limits: Any) -> tuple[Any, Any]:
    session = RoomSessions(**case.setup_options).create(case.row.to_json())
    bounds = {"max_turns": case.options.get("max_turns", 8), **limits}
    rollout = MCPHarnessAdapter().run_white_box(
        model_step(case), session, HarnessRunLimits(**bounds)
    )
    verified = session.verify(rollout.messages, None)
    session.close()
    return rollout, verified


@pytest.mark.row("R42")
@pytest.mark.parametrize("name", HARNESSED)
def test_a_harness_gets_what_the_core_gets(name: str) -> None:
    case = CASES[name]
    if name == "failed reset":
        with pytest.raises(SandboxError, match="503"):
            harnessed(case)
        return
    rollout, verified = harnessed(case)
    told = verified.artifacts["trained"]["host"]
    cause = told["excluded"]
    got = Shown(
        rewards={"host": verified.env_reward},
        truncated=verified.artifacts["truncated"],
        excluded={"host": cause and cause.split(":")[0]},
    )
    if name not in FAILED:
        got["messages"] = rollout.messages
    assert_same(case, got)
    assert verified.metrics["episodes"] == 1.0


@pytest.mark.row("R45")
@pytest.mark.parametrize("name", ["failed call", "failed tool of a user"])
def test_a_failed_environment_ends_the_harnesss_loop_without_a_reward(name: str) -> None:
    rollout, verified = harnessed(CASES[name])
    assert verified.env_reward is None
    assert rollout.done
    assert rollout.tool_trace[-1].result.error
    assert verified.artifacts["env_error"]


def test_calls_beyond_a_harnesss_limits_were_not_run_and_do_not_count() -> None:
    case = CASES["looked up"]  # the first call finds the product, the second the rule
    whole, _ = harnessed(case)
    assert len(whole.tool_trace) == 2
    alone = Case("found and replied", PRICE, (Line(FIND), Line(REPLIED)))
    ended = Case("found", PRICE, (Line(FIND),), {"max_turns": 1})
    for limits, due in (
        ({"max_tool_calls_per_turn": 1}, alone),
        ({"max_total_tool_calls": 1}, ended),
    ):
        rollout, verified = harnessed(case, **limits)
        assert len(rollout.tool_trace) == 1
        assert verified.metrics["calls/executed"] == 1.0
        told = {"host": verified.env_reward}
        assert_same(due, Shown(rewards=told, truncated=verified.artifacts["truncated"]))


def test_tools_are_listed_and_called_over_the_bridge_of_opaque_harnesses() -> None:
    session = RoomSessions("snacks", embedder="lexical").create(PRICE.to_json())
    bridge = SessionMCPBridge(session)

    def ask(method: str, **params: Any) -> Any:
        request = {"jsonrpc": "2.0", "id": 1, "method": method, "params": params}
        return bridge.handle_request(request)["result"]

    names = [tool["name"] for tool in ask("tools/list")["tools"]]
    assert "get_reply_rule" in names
    told = ask("tools/call", name="get_reply_rule", arguments={"intent": "价格咨询"})
    assert not told["done"]
    assert told["error"] is None
    unknown = ask("tools/call", name="get_weather", arguments={})
    assert "get_weather" in unknown["data"]


def test_a_collector_keeps_no_failed_episode(tmp_path: Path) -> None:
    case = CASES["looked up"]
    first = breaks_some(0)  # the first session's; a session's second sandbox scores it
    for folder, sandbox, counts in (
        ("some", first, (1, 1)),
        ("none", CASES["failed call"].options["sandbox"], (0, 2)),
    ):
        out = RolloutSerializer(tmp_path / folder)
        result = CollectRunner(
            session_factory=RoomSessions("snacks", sandbox=sandbox, embedder="lexical"),
            harness_adapter=MCPHarnessAdapter(),
            serializer=out,
            tasks=[case.row.to_json()] * 2,
        ).run(model_step=model_step(CASES["several turns"]), num_episodes=2)
        assert (result.num_collected, result.num_failed) == counts
        lines = out.results_path.read_text("utf-8").splitlines() if result.num_collected else []
        assert [json.loads(line)["reward"] for line in lines] == [1.0] * counts[0]


def test_openenvs_rollout_function_ends_the_run_where_an_environment_failed() -> None:
    def rollout_of(name: str) -> Any:
        return build_harness_rollout_func(
            session_factory=RoomSessions(**CASES[name].setup_options),
            harness_adapter=MCPHarnessAdapter(),
            model_step_builder=lambda trainer, session: model_step(CASES[name]),
        )

    row = json.dumps(PRICE.to_json())
    assert rollout_of("looked up")([row], None)["env_reward"] == [1.0]
    with pytest.raises(ValueError, match="did not produce an environment reward"):
        rollout_of("failed call")([row], None)


def test_what_a_session_cannot_do_is_refused() -> None:
    with pytest.raises(ValueError, match="masks by itself"):
        RoomSessions("snacks", masker="reply", embedder="lexical")
    with pytest.raises(ValueError, match="one reward"):
        RoomSessions(
            "snacks",
            base_url="http://127.0.0.1:1/v1",
            agents={"tool_caller": "tool_calls", "replier": "reply"},
            embedder="lexical",
        )
    with pytest.raises(ValueError, match="needs `seed`"):
        RoomSessions("snacks", embedder="lexical").create("which?")

    @le.tool
    def close(context: le.ToolContext) -> object:
        """Close the room."""
        return {}

    is_open: list[LocalSandbox] = []

    class Noted(LocalSandbox):
        def __init__(self, room: le.Room) -> None:
            super().__init__(room, tools=["get_reply_rule", close], embedder="lexical")
            is_open.append(self)

        def close(self) -> None:
            is_open.remove(self)

    with pytest.raises(ValueError, match="reserved"):
        RoomSessions("snacks", sandbox=Noted).create(PRICE)
    assert not is_open
    with pytest.raises(TypeError, match="`sampling` is 5"):
        RoomSessions("snacks", base_url="http://127.0.0.1:1/v1", model="m", sampling=5)


def test_rows_may_be_a_file(tmp_path: Path) -> None:
    (tmp_path / "rows.jsonl").write_text(json.dumps(PRICE.to_json()), encoding="utf-8")
    sessions = RoomSessions(rows=str(tmp_path / "rows.jsonl"), embedder="lexical")
    messages = sessions.create("a task", seed=4).initial_messages()
    assert messages == RoomSessions(embedder="lexical").create(PRICE).initial_messages()


# --- the session's own loop, and TRL's worker -------------------------------------------------


@contextmanager
def policy(case: Case) -> Iterator[str]:
    """Serve a case's policy as vLLM does, and yield its URL."""
    made = tokenizer_of("chatml")
    agent = next(iter(case.families))
    engine = EngineServer(
        lambda ids, _: case.samples(ids, agent), made, made.chat_template, reads_calls=True
    )
    with serving(engine) as (url, _):
        yield url


def worker(factory: Any) -> Any:
    """Make TRL's rollout loop, of which only the part over sessions runs."""
    loop = object.__new__(_HarnessRolloutLoop)
    vars(loop).update(
        _adapter=None,
        _factory=factory(sampling={"temperature": 1.0, "top_p": 1.0, "top_k": -1}),
        _rollout_reward_fn=None,
        _live_sessions=set(),
        _stop_event=SimpleNamespace(is_set=lambda: False),
        _fork_threshold_tokens=0,
    )
    return loop


PLAYED = [name for name, case in ONE_AGENT_CASES.items() if name not in FAILED]


def sequences_of(case: Case, **options: Any) -> tuple[Any, Any]:
    """Return what TRL's worker makes of a case: its rollout and its figures."""
    with policy(case) as url:
        made = partial(RoomSessions, base_url=url, model="policy", **case.setup_options | options)
        return worker(made)._run_session(json.dumps(case.row.to_json()), 7)


def test_sandboxes_are_closed_whatever_ends_an_episode() -> None:
    assert_closed(sequences_of)


@pytest.mark.row("R37", "R42")
@pytest.mark.parametrize("name", PLAYED)
def test_trls_worker_trains_what_the_core_trains(name: str) -> None:
    case = CASES[name]
    (_, _, sequences, calls, _, reward), metrics = sequences_of(case)
    assert_same(
        case,
        Shown(
            token_ids={"host": [one.input_ids for one in sequences]},
            loss_mask={"host": [one.completion_mask for one in sequences]},
            logprobs={"host": [one.old_log_probs for one in sequences]},
            rewards={"host": reward},
        ),
    )
    assert metrics["turns"] == len(expected(case)["said"])
    made = [one for message in expected(case)["messages"] for one in message.tool_calls if one.name]
    assert calls == len(made)


@pytest.mark.row("R45")
@pytest.mark.parametrize("name", FAILED)
def test_trls_worker_scores_no_failed_environment(name: str) -> None:
    assert sequences_of(CASES[name]) == (([], [], [], 0, 0, None), None)


@pytest.mark.parametrize("masker", ["tool_calls", "reply"])
def test_masks_reach_trls_sequences(masker: str) -> None:
    case = CASES["several turns"]
    (_, _, [sequence], *_), _ = sequences_of(case, masker=masker)
    setup = Setup(**case.setup_options, masker=masker)
    trajectory = le.rollout(setup.make_env(), case.agent(), **setup.opening(case.row))
    (row,) = setup.rows(trajectory, case.renderers)
    assert sequence.input_ids == list(row.token_ids)
    assert sequence.completion_mask == list(row.loss_mask)


def test_one_of_two_agents_is_trained_on_its_own_reward() -> None:
    case = CASES["two agents"]
    for agent, masker in case.options["agents"].items():
        (*_, reward), metrics = sequences_of(case, agents={agent: masker})
        assert reward == expected(case)["rewards"][agent]
        assert metrics["turns"] == (2 if agent == "tool_caller" else 1)


@pytest.mark.row("R45")
def test_trls_group_leaves_a_failed_episode_out() -> None:
    case = CASES["looked up"]
    good, _ = sequences_of(case)
    bad, _ = sequences_of(CASES["failed call"])
    poor, _ = sequences_of(CASES["cut call"])
    rollouts = [good, bad, poor]
    loop = object.__new__(_HarnessRolloutLoop)
    vars(loop).update(
        reward_funcs=[],
        reward_func_names=["harness_reward"],
        _env_reward_types=[],
    )
    group = SimpleNamespace(
        prompts=["row"] * 3,
        reward_kwargs={},
        completions=[one[0] for one in rollouts],
        completions_ids=[one[1] for one in rollouts],
        completions_sequences=[one[2] for one in rollouts],
        tool_call_counts=[one[3] for one in rollouts],
        tool_failure_counts=[one[4] for one in rollouts],
        rollout_rewards=[one[5] for one in rollouts],
        env_rewards=[],
        model_version=0,
        group_id=7,
        queued_at=0.0,
    )
    samples = asyncio.run(loop._score_group(group))
    assert [round(one.advantage, 3) for one in samples] == [1.0, -1.0]


def test_members_of_a_group_play_one_row_also_by_seed_alone() -> None:
    rows = [row.to_json() for row in task_rows("snacks", count=3, embedder="lexical")]
    factory = RoomSessions("snacks", rows=rows, embedder="lexical")
    told = [factory.create("?", seed=seed).initial_messages() for seed in (0, 0, 1, 3)]
    assert told[0] == told[1] == told[3] != told[2]


def test_a_session_that_is_closed_stops_playing() -> None:
    asked, answer = threading.Event(), threading.Event()

    def never(request: dict[str, Any]) -> httpx.Response:
        asked.set()
        answer.wait(20)
        return httpx.Response(500)

    with serving(never) as (url, _):
        factory = RoomSessions("snacks", base_url=url, model="policy", embedder="lexical")
        session = factory.create(PRICE)
        assert isinstance(session, TrainableSession)
        failed: list[BaseException] = []

        def play() -> None:
            try:
                session.wait_for_completion()
            except RuntimeError as error:
                failed.append(error)

        thread = threading.Thread(target=play)
        thread.start()
        assert asked.wait(20)
        session.close()
        thread.join(20)
        with pytest.raises(TimeoutError):
            factory.create(PRICE).wait_for_completion(0.2)
        answer.set()
    assert "was closed" in str(failed[0])


def test_an_endpoint_without_token_ids_is_a_failed_environment() -> None:
    case = CASES["looked up"]
    made = tokenizer_of("chatml")
    plain = EngineServer(case.engine(), made, made.chat_template, "plain")
    with serving(plain) as (url, _):
        session = RoomSessions(**case.setup_options, base_url=url, model="policy").create(case.row)
        with pytest.raises(RuntimeError, match=r"env_error.*no token ids"):
            session.wait_for_completion()


def test_the_factory_can_be_sent_to_the_worker_as_trl_sends_it() -> None:
    factory = partial(RoomSessions, "snacks", base_url="http://127.0.0.1:1/v1", model="m")
    assert pickle.loads(pickle.dumps(factory)).func is RoomSessions
    assert HarnessRolloutWorker._loop_cls is _HarnessRolloutLoop


@pytest.mark.parametrize("name", ["openenv_server", "openenv_sessions"])
def test_the_examples_play(name: str, monkeypatch: pytest.MonkeyPatch, capsys: Any) -> None:
    folder = Path(__file__).resolve().parents[2] / "examples" / "trainers"
    monkeypatch.syspath_prepend(str(folder))
    runpy.run_path(str(folder / f"{name}.py"), run_name="__main__")
    assert "reward 1.0" in capsys.readouterr().out


@pytest.mark.parametrize(("agents", "seat", "told"), WITHOUT_A_SEAT)
def test_a_partner_without_a_seat_is_refused_at_once(
    agents: dict[str, str], seat: str, told: str
) -> None:
    partners = {seat: "chat:http://127.0.0.1:9/v1#m"}
    with pytest.raises(ValueError, match=told):
        RoomSessions(
            "snacks",
            base_url="http://127.0.0.1:9/v1",
            model="m",
            agents=agents,
            partners=partners,
        )


@pytest.mark.parametrize(
    ("given", "told"),
    [
        ({"base_url": "http://127.0.0.1:9/v1"}, "needs the name of its `model`"),
        ({"base_url": "http://127.0.0.1:9/v1", "model": "m", "sampling": {"n": 2}}, "one answer"),
        ({"model": "m"}, "of the server of `base_url`"),
        ({"sampling": {"top_p": 0.9}}, "of the server of `base_url`"),
    ],
)
def test_a_model_that_cannot_be_asked_is_refused_at_once(given: dict[str, Any], told: str) -> None:
    with pytest.raises(ValueError, match=told):
        RoomSessions("snacks", **given)


@pytest.mark.parametrize(
    ("given", "problem", "told"),
    [
        ({"rooms": "snacks"}, ValueError, r"write `rooms=\['snacks'\]`"),
        ({"rooms": ["nope"]}, RoomNotFound, "nope"),
        ({"max_sessions": "3"}, ValueError, "not '3'"),
        ({"max_sessions": 0}, ValueError, "not 0"),
    ],
)
def test_what_a_server_cannot_serve_is_refused_where_it_is_made(
    given: dict[str, Any], problem: type[Exception], told: str
) -> None:
    with pytest.raises(problem, match=told):
        room_app("snacks", **given)


def test_rows_of_unknown_rooms_are_refused_where_the_sessions_are_made() -> None:
    with pytest.raises(RoomNotFound, match="nope"):
        RoomSessions("snacks", rows=[{"room": "nope", "seed": 1}])


def test_a_session_that_was_closed_does_not_play() -> None:
    session = RoomSessions("snacks", base_url="http://127.0.0.1:9/v1", model="m").create(None, 1)
    session.close()
    with pytest.raises(RuntimeError, match="closed before its end"):
        session.wait_for_completion()


def test_the_code_of_the_page_serves_and_plays(tmp_path: Path) -> None:
    server, client, sessions = snippets("OpenEnv")
    case = CASES["looked up"]

    def sample(messages: Any, tools: Any) -> tuple[str, str]:
        assert {one["function"]["name"] for one in tools} >= {"get_reply_rule"}
        return case.says(messages).text, "stop"

    with running(module_of(server).app, ws="auto") as url:
        here = client.replace("http://127.0.0.1:8000", url)
        played = module_of(here, row=case.row.to_json(), sample=sample)
    assert played.result.reward == 1.0
    made = module_of(sessions.split("worker =")[0], name="policy")
    assert made.sessions()._setup.agents == {"host": REPLY}
