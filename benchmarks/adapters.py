"""CPU time of an episode through each adapter, over the bare core's in the same run.

Run in a trainer's environment: `.venvs/NAME/bin/python benchmarks/adapters.py NAME`. The goal is at
most 1.5 x. An adapter that hands tokens on is compared with `rollout` and `Setup.rows`, one that
tells which turns are trained with `rollout` and `trained_turns`, one of plain text with `rollout`
alone, one of the chat API with `run_episode`. The policy costs nothing:
what it samples is known beforehand. The trainer's own classes are in the figure where the adapter
cannot be called without them; where they cost much, they are measured alone too, with a trivial
environment in the room's place: it answers what the room answered, and takes no decision.
"""

from __future__ import annotations

import contextlib
import functools
import itertools
import statistics
import sys
import time
from collections import deque
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "tests"))

from conformance import CASES, Case, expected, renderer_of, said_in, tokenizer_of

import livestream_env as le
from livestream_env.adapters.setup import Setup
from livestream_env.adapters.whole_turns import trained_turns
from livestream_env.claim_kinds import decided
from livestream_env.parsing import parse_text
from livestream_env.tokens import Sampled

CASE = CASES["several turns"]
EPISODES, REPEATS = 20, 7
_ASKED: deque[bytes] = deque(maxlen=16)
"""The last bodies that the chat servers were sent."""
_OPEN, _OPEN_ASYNC = contextlib.ExitStack(), contextlib.AsyncExitStack()
Play = Callable[[], None]
"""Plays one episode and makes the trainer's rows of it."""
Plays = tuple[Play, Play]
"""By the adapter; and by the trainer's own classes alone."""


class Sampling:
    """An engine that gives the turns of a case in a circle."""

    def __init__(self, case: Case) -> None:
        texts = [line.text + "<|im_end|>" for line in case.lines]
        encode = tokenizer_of("chatml")
        ids = [tuple(encode(text, add_special_tokens=False)["input_ids"]) for text in texts]
        self.turns = [Sampled(one, (-0.5,) * len(one)) for one in ids]
        self._next = itertools.cycle(self.turns)

    def __call__(self, ids: Sequence[int], stop: Sequence[int] = ()) -> Sampled:
        return next(self._next)


class Speaking:
    """An agent that says the texts of a case in a circle."""

    def __init__(self, case: Case) -> None:
        self._next = itertools.cycle([line.text for line in case.lines])

    def act(self, messages: object, tools: object) -> Any:
        return parse_text(next(self._next))


def core_tokens() -> Play:
    """Play by token ids and make training rows."""
    setup, renderer = Setup(**CASE.setup_options), renderer_of("chatml")
    agent = le.TokenAgent(Sampling(CASE), renderer)

    def play() -> None:
        trajectory = le.rollout(setup.make_env(), agent, **setup.opening(CASE.row))
        (row,) = setup.rows(trajectory, renderer)
        assert row.reward == 1.0

    return play


def core_text() -> Play:
    """Play by text alone."""
    setup, agent = Setup(**CASE.setup_options), Speaking(CASE)

    def play() -> None:
        trajectory = le.rollout(setup.make_env(), agent, **setup.opening(CASE.row))
        assert trajectory.reward == 1.0

    return play


def core_turns() -> Play:
    """Play by text and tell which turns are trained."""
    setup, agent = Setup(**CASE.setup_options), Speaking(CASE)

    def play() -> None:
        trajectory = le.rollout(setup.make_env(), agent, **setup.opening(CASE.row))
        assert trained_turns(setup, trajectory)["host"]["reward"] == 1.0

    return play


@functools.cache
def chat_url() -> str:
    """Serve the case over HTTP until the process ends; what is no conversation is an event."""
    import json

    from gateway_for_tests import send, served
    from policy_server_for_tests import said

    def answer(handler: Any, body: bytes) -> None:
        _ASKED.append(body)
        messages = json.loads(body).get("messages")
        send(handler, said(CASE.says(messages).text if messages else ""))

    return _OPEN.enter_context(served(answer))


@functools.cache
def token_url() -> str:
    """Serve the case with made-up token ids, of which each prompt holds all before."""
    import json

    from gateway_for_tests import send, served
    from policy_server_for_tests import answer_of, choice

    def answer(handler: Any, body: bytes) -> None:
        _ASKED.append(body)
        messages = json.loads(body)["messages"]
        turn = sum(message["role"] == "assistant" for message in messages)
        ids, before = [7] * 40, 1000 + 240 * turn
        logprobs = {"content": [{"token": "", "logprob": -0.5}] * len(ids)}
        made = choice({"content": CASE.line(turn).text}, token_ids=ids, logprobs=logprobs)
        send(handler, answer_of(made, prompt_token_ids=[7] * before))

    return _OPEN.enter_context(served(answer))


def core_chat_ids() -> Play:
    """Play over the chat API with token ids and make training rows, the server in this process."""
    from livestream_env.adapters.chat_api import run_episode
    from livestream_env.adapters.recorded import RecordedRenderer
    from livestream_env.chat import ChatClient

    setup, client = Setup(**CASE.setup_options), ChatClient(token_url(), "policy")

    def play() -> None:
        env, opening = setup.make_env(), setup.opening(CASE.row)
        trajectory = run_episode(client, None, env, token_ids=True, **opening)
        (row,) = setup.rows(trajectory, RecordedRenderer())
        assert row.reward == 1.0

    return play


def core_chat() -> Play:
    """Play over the chat API, the server in this process."""
    from livestream_env.adapters.chat_api import run_episode
    from livestream_env.chat import ChatClient

    setup, client = Setup(**CASE.setup_options), ChatClient(chat_url(), "policy")

    def play() -> None:
        env = setup.make_env()
        assert run_episode(client, None, env, **setup.opening(CASE.row)).reward == 1.0

    return play


# --- trainers: each is imported inside ----------------------------------------------------------


def verl() -> Play:
    """Make an agent loop of verl's and its output, as its worker does for each episode."""
    import asyncio

    from omegaconf import OmegaConf
    from verl.experimental.agent_loop.agent_loop import DictConfigWrap
    from verl.workers.rollout.replica import TokenOutput

    from livestream_env.adapters.verl import LiveRoomAgentLoop

    rollout = {"prompt_length": 8000, "response_length": 4000}
    config = OmegaConf.create({"actor_rollout_ref": {"rollout": rollout}, "data": {}})
    sampling = Sampling(CASE)
    outputs = [
        TokenOutput(
            token_ids=list(one.token_ids),
            log_probs=list(one.logprobs or ()),
            stop_reason="completed",
        )
        for one in sampling.turns
    ]

    class Server:
        def __init__(self) -> None:
            self._next = itertools.cycle(outputs)

        async def generate(self, request_id: str, **asked: Any) -> Any:
            return next(self._next)

    server = Server()

    async def episode() -> None:
        loop = LiveRoomAgentLoop(
            trainer_config=DictConfigWrap(config),
            server_manager=server,
            tokenizer=tokenizer_of("chatml"),
            processor=None,
            dataset_cls=object,
            data_config=DictConfigWrap(config.data),
            setup=CASE.setup_options,
        )
        (output,) = await loop.run({}, extra_info=CASE.row.to_json())
        assert output.reward_score == 1.0

    runner = asyncio.Runner()
    return lambda: runner.run(episode())


def trl() -> Play:
    """Play a batch of one by the function that `GRPOTrainer` calls, its generation faked."""
    from types import SimpleNamespace

    from livestream_env.adapters.data_sets import data_rows
    from livestream_env.adapters.trl import rollout_func

    setup = Setup(**CASE.setup_options)
    (row,) = data_rows([CASE.row], "trl", setup=setup)
    sampling, tokenizer = Sampling(CASE), tokenizer_of("chatml")

    def generate(prompts: Any, *_: Any) -> Any:
        made = [sampling(ids) for ids in prompts]
        return [list(one.token_ids) for one in made], [list(one.logprobs or ()) for one in made]

    config = SimpleNamespace(max_position_embeddings=1 << 20)
    trainer = SimpleNamespace(
        _tokenizer=tokenizer,
        chat_template_kwargs={},
        eos_token_ids=[tokenizer.eos_token_id],
        max_completion_length=4000,
        model=SimpleNamespace(config=SimpleNamespace(get_text_config=lambda: config)),
        state=SimpleNamespace(global_step=0),
        _generate_single_turn=generate,
    )
    rollout = rollout_func([row], **CASE.setup_options)

    def play() -> None:
        assert rollout([row["prompt"]], trainer)["env_reward"] == [1.0]

    return play


def gem() -> Play:
    """Play an episode of a GEM environment by text."""
    import gem

    from livestream_env.adapters.gem import register

    env = gem.make(register(), **CASE.setup_options, comment=list(CASE.row.comment))
    texts = [line.text + "<|im_end|>" for line in CASE.lines]

    def play() -> None:
        env.reset(seed=CASE.row.seed)
        assert [env.step(text)[1] for text in texts][-1] == 1.0

    return play


class Recorded:
    """An environment that answers what another one answered to the same turns."""

    def __init__(self, env: Any, seed: int, texts: Sequence[str]) -> None:
        self.unwrapped, self._opening = self, env.reset(seed=seed)
        self._answers = [env.step(text) for text in texts]
        self._next = iter(self._answers)

    def reset(self, seed: int) -> Any:
        self._next = iter(self._answers)
        observation, info = self._opening
        return observation, dict(info)

    def step(self, action: str) -> Any:
        *made, info = next(self._next)
        return *made, dict(info)


def roll() -> Plays:
    """Play an episode by ROLL's text manager, in the stubs of the tests, and make its batch."""
    from types import SimpleNamespace

    import torch

    sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "tests" / "trainers"))
    import roll_stubs

    torch.set_num_threads(1)
    roll_stubs.install()
    from livestream_env.adapters.roll import TrajManager

    def made(manager: type[Any]) -> Any:
        return manager(
            worker_config=roll_stubs.worker_config(),
            pipeline_config=SimpleNamespace(sequence_length=8192),
            env_config={
                "env_type": "LiveRoomText-v0",
                "config": {**CASE.setup_options, "comment": list(CASE.row.comment)},
                "tag": "live",
                "system": "",
                "max_steps": 20,
                "max_tokens_per_step": 4096,
            },
            tokenizer=tokenizer_of("chatml"),
            generate_scheduler=Sampling(CASE),
            output_queue=[],
        )

    def played(manager: Any) -> None:
        batch = manager.play(CASE.row.seed)
        assert batch.non_tensor_batch["episode_scores"].tolist() == [1.0]

    ours, alone = made(TrajManager), made(roll_stubs.TrajEnvManager)
    texts = [line.text + "<|im_end|>" for line in CASE.lines]
    alone.env = Recorded(alone.env, CASE.row.seed, texts)
    return lambda: played(ours), lambda: played(alone)


def rock() -> Plays:
    """Answer the requests of an episode; ROCK's client, which makes an HTTP client for each, and
    the socket are left out. Alone is the HTTP of the requests."""
    import json

    from servers_for_tests import Client
    from starlette.requests import Request
    from starlette.responses import Response

    from livestream_env.adapters.rock import PREFIX, mount_gem
    from livestream_env.sandbox import create_app

    app = create_app()
    mount_gem(app)
    client = Client(app)

    def ask(name: str, **body: Any) -> Any:
        return client.post(f"{PREFIX}/{name}", json=body).json()

    env_id = f"LiveRoom-v0?room=snacks&embedder=lexical&comment={CASE.row.comment[0]}"
    made = ask("make", env_id=env_id)

    def play() -> None:
        ask("reset", seed=CASE.row.seed, **made)
        rewards = [ask("step", action=line.text, **made)["reward"] for line in CASE.lines]
        assert rewards[-1] == 1.0

    told = [ask("reset", seed=CASE.row.seed, **made)]
    told += [ask("step", action=line.text, **made) for line in CASE.lines]
    answers = itertools.cycle([json.dumps(one, ensure_ascii=False) for one in told])

    async def recorded(request: Request) -> Response:
        json.loads(await request.body())
        return Response(next(answers), media_type="application/json")

    app.add_route("/recorded", recorded, methods=["POST"])

    def alone() -> None:
        client.post("/recorded", json={"seed": CASE.row.seed, **made}).json()
        for line in CASE.lines:
            client.post("/recorded", json={"action": line.text, **made}).json()

    return play, alone


def openrlhf() -> Play:
    """Play an episode by our executor and make OpenRLHF's response of it."""
    import asyncio
    import json
    from types import SimpleNamespace

    from livestream_env.adapters.openrlhf import agent_executor

    outputs = itertools.cycle(
        [
            SimpleNamespace(
                token_ids=one.token_ids,
                logprobs=[{token: SimpleNamespace(logprob=-0.5)} for token in one.token_ids],
                finish_reason="stop",
            )
            for one in Sampling(CASE).turns
        ]
    )

    class Engine:
        async def generate(self, ids: Any, params: Any) -> Any:
            return SimpleNamespace(outputs=[next(outputs)])

    executor, runner = agent_executor(**CASE.setup_options)(), asyncio.Runner()
    params = SimpleNamespace(max_tokens=None, logprobs=1, stop_token_ids=None)
    label, tokenizer = json.dumps(CASE.row.to_json()), tokenizer_of("chatml")

    def play() -> None:
        made = executor.execute("", label, params, 16000, tokenizer, Engine())
        assert runner.run(made)["reward"] == 1.0

    return play


def openenv() -> Plays:
    """Play an episode of OpenEnv's environment, without its WebSocket. Alone are OpenEnv's own
    models of the same actions and observations."""
    from livestream_env.adapters.openenv import LiveRoomEnvironment, RoomAction, RoomObservation

    env = LiveRoomEnvironment(**CASE.setup_options)

    def play() -> None:
        env.reset(**CASE.row.to_json())
        rewards = [env.step(RoomAction(message=line.text)).reward for line in CASE.lines]
        assert rewards[-1] == 1.0

    told = [dict(env.reset(**CASE.row.to_json()))]
    told += [dict(env.step(RoomAction(message=line.text))) for line in CASE.lines]

    def alone() -> None:
        RoomObservation(**told[0])
        for line, one in zip(CASE.lines, told[1:], strict=True):
            RoomAction(message=line.text)
            RoomObservation(**one)

    return play, alone


def openenv_sessions() -> Play:
    """Play a session by its own loop over the same chat server, and make its training trace."""
    from livestream_env.adapters.openenv_sessions import RoomSessions

    sessions = RoomSessions(**CASE.setup_options, base_url=token_url(), model="policy")

    def play() -> None:
        session = sessions.create(CASE.row)
        session.wait_for_completion()
        assert session.verify([]).env_reward == 1.0
        assert len(session.fetch_training_trace().turns) == len(CASE.lines)

    return play


def nemo_gym() -> Plays:
    """Post a row to the agent; Gym's model server is faked, items as it tells them. Alone, an agent
    sends the same requests and hands on the same items."""
    import asyncio
    import json
    import os

    import httpx
    from nemo_gym.config_types import BaseServerConfig, ModelServerRef
    from nemo_gym.server_utils import ServerClient
    from omegaconf import DictConfig

    from livestream_env.adapters.nemo_gym import LiveRoomAgent, LiveRoomAgentConfig

    os.environ["NEMO_GYM_CONFIG_DICT"] = "{}"
    ids = {"generation_token_ids": [7] * 40, "generation_log_probs": [-0.5] * 40}
    told = {"id": "r", "created_at": 0, "model": "policy", "object": "response", "tools": []}
    told |= {"tool_choice": "auto", "parallel_tool_calls": True}
    bodies = []
    for turn, line in enumerate(CASE.lines):
        said = parse_text(line.text, turn=turn).message
        text = {"type": "output_text", "text": said.content, "annotations": []}
        item = {"type": "message", "role": "assistant", "id": "m", "content": [text]}
        output = [item | {"status": "completed"}]
        for call in said.to_openai().get("tool_calls", ()):
            output.append({"type": "function_call", "call_id": call["id"], **call["function"]})
        output[-1] |= {"prompt_token_ids": [7] * (1000 + 240 * turn), **ids}
        bodies.append(json.dumps(told | {"output": output}).encode())
    answers = itertools.cycle(bodies)

    class Answer:
        ok, cookies = True, None

        async def read(self) -> bytes:
            return next(answers)

    requests: list[Any] = []

    class Model(ServerClient):
        async def post(self, **asked: Any) -> Any:
            requests.append(asked)
            return Answer()

    class Alone(LiveRoomAgent):  # type: ignore[valid-type, misc]
        told: Any = None

        async def run(self, request: Any, body: Any) -> Any:
            for asked in requests[: len(CASE.lines)]:
                answer = await self.server_client.post(**asked)
                json.loads(await answer.read())
            return LiveRoomAgent.run.__annotations__["return"](**self.told)

    Alone.run.__annotations__ = LiveRoomAgent.run.__annotations__
    head, runner = BaseServerConfig(host="127.0.0.1", port=1), asyncio.Runner()
    row = {"responses_create_params": {"input": []}, **CASE.row.to_json()}

    def served(made: Any) -> tuple[Any, httpx.AsyncClient]:
        agent = made(
            config=LiveRoomAgentConfig(
                host="127.0.0.1",
                port=1,
                entrypoint="app.py",
                name="live_room_agent",
                model_server=ModelServerRef(type="responses_api_models", name="policy_model"),
                setup=CASE.setup_options,
            ),
            server_client=Model(head_server_config=head, global_config_dict=DictConfig({})),
        )
        transport = httpx.ASGITransport(agent.setup_webserver())
        return agent, httpx.AsyncClient(transport=transport, base_url="http://agent")

    async def episode(client: httpx.AsyncClient) -> Any:
        del requests[len(CASE.lines) :]
        answer = (await client.post("/run", json=row)).json()
        assert answer["reward"] == 1.0
        return answer

    (_, ours), (trivial, alone) = served(LiveRoomAgent), served(Alone)
    trivial.told = runner.run(episode(ours))
    return lambda: runner.run(episode(ours)), lambda: runner.run(episode(alone))


def skyrl() -> Play:
    """Play an episode by SkyRL's generator with our masks, and make its output."""
    import asyncio

    sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "tests" / "trainers"))
    import skyrl_on_311  # noqa: F401
    import torch
    from skyrl.train.config import GeneratorConfig, SkyRLGymConfig

    from livestream_env.adapters.skyrl import LiveRoomGenerator, register

    torch.set_num_threads(1)
    sampled = itertools.cycle(
        [(line.text, one) for line, one in zip(CASE.lines, Sampling(CASE).turns, strict=True)]
    )

    class Client:
        async def generate(self, given: Any, model: Any = None) -> Any:
            text, one = next(sampled)
            return {
                "responses": [text],
                "response_ids": [list(one.token_ids)],
                "stop_reasons": ["stop"],
                "response_logprobs": [list(one.logprobs or ())],
            }

        async def finish_session(self, session: str) -> None:
            pass

    config = GeneratorConfig()
    config.batched, config.max_turns, config.max_input_length = False, 9, 16000
    config.sampling_params.logprobs = 1
    generator = LiveRoomGenerator(config, SkyRLGymConfig(), Client(), tokenizer_of("chatml"))
    env_id, runner = register(**CASE.setup_options), asyncio.Runner()

    def play() -> None:
        batch = {"prompts": [[]], "env_classes": [env_id], "env_extras": [CASE.row.to_json()]}
        output = runner.run(generator.generate(batch, disable_tqdm=True))
        assert sum(output["rewards"][0]) == 1.0

    return play


def slime() -> Play:
    """Play a sample by the generate function, slime's router faked without HTTP."""
    import asyncio

    from slime_for_tests import Sample, answer, arguments, installed, sampling

    from livestream_env.adapters.slime import generate_with

    engine, given = Sampling(CASE), sampling()
    answers = itertools.cycle([answer(one).json() for one in engine.turns])

    async def post(url: str, payload: Any, headers: Any = None) -> Any:
        return next(answers)

    _OPEN.enter_context(installed(tokenizer_of("chatml")))
    sys.modules["slime.rollout.sglang_rollout"].post = post  # type: ignore[attr-defined]
    generate, args = generate_with(Setup(**CASE.setup_options)), arguments()

    async def episode() -> None:
        (made,) = await generate(args, Sample(index=0, metadata=CASE.row.to_json()), given)
        assert made.reward == 1.0

    runner = asyncio.Runner()
    return lambda: runner.run(episode())


def rllm() -> Play:
    """Play a task by the flow and its evaluator, the gateway a plain chat server."""
    import asyncio
    from types import SimpleNamespace

    from rllm_for_tests import TYPES, Task

    from livestream_env.adapters.rllm import RoomFlow

    flow, task = RoomFlow(types=TYPES, **CASE.setup_options), Task(CASE.row.to_json())
    config = SimpleNamespace(base_url=chat_url(), model="policy")

    async def episode() -> None:
        made = await flow.arun(task, config)
        assert flow.evaluate(task, made).reward == 1.0

    runner = asyncio.Runner()
    return lambda: runner.run(episode())


def agent_lightning() -> Plays:
    """Play a rollout of 1.0 in this process, events posted to the same chat server. Alone are the
    HTTP requests of a rollout, by a plain client."""
    import json
    import os

    import httpx

    from livestream_env.adapters.agent_lightning import LiveRoomAgent

    url = chat_url()
    os.environ |= {"AGL_OPENAI_BASE_URL": url, "AGL_EVENT_URL": url}
    os.environ["LIVESTREAM_ROW"] = json.dumps(CASE.row.to_json())
    made = type("Agent", (LiveRoomAgent,), {"setup": Setup(**CASE.setup_options)})
    made().run()
    bodies = [*_ASKED][-len(CASE.lines) - 2 :]

    def alone() -> None:
        with httpx.Client(transport=httpx.HTTPTransport(verify=False), trust_env=False) as client:
            for body in bodies:
                client.post(f"{url}/chat/completions", content=body).json()

    return lambda: made().run(), alone


def areal() -> Play:
    """Play a task row by the workflow and make AReaL's tensors; its executor is left out."""
    import asyncio
    from types import SimpleNamespace

    import torch
    from areal.api.cli_args import GenerationHyperparameters

    from livestream_env.adapters.areal import LiveRoomWorkflow

    torch.set_num_threads(1)
    answers = itertools.cycle(
        [
            SimpleNamespace(
                output_tokens=list(one.token_ids),
                output_logprobs=list(one.logprobs or ()),
                output_versions=[0] * len(one.token_ids),
                stop_reason="stop",
            )
            for one in Sampling(CASE).turns
        ]
    )

    class Engine:
        async def agenerate(self, request: Any) -> Any:
            return next(answers)

    workflow = LiveRoomWorkflow(
        GenerationHyperparameters(), tokenizer_of("chatml"), **CASE.setup_options
    )
    loop, data = asyncio.new_event_loop(), CASE.row.to_json()  # a `Runner` prints the tensors

    def play() -> None:
        made = loop.run_until_complete(workflow.arun_episode(Engine(), data))
        assert made["rewards"].item() == 1.0

    return play


def verifiers() -> Plays:
    """Play an episode by verifiers' environment, its interception and its renderer included; the
    engine's HTTP server, in this process too, costs nothing but itself. Alone, a harness sends the
    same requests and a task gives the reward."""
    import asyncio
    from types import ModuleType

    import httpx
    import verifiers.v1 as vf
    from verifiers_for_tests import folder_of, modelled

    from livestream_env.adapters import traced
    from livestream_env.adapters import verifiers as ours

    bodies: list[bytes] = []
    url, _ = _OPEN.enter_context(modelled(CASE, engine=Sampling(CASE)))
    client = vf.TrainClientConfig(
        base_url=url, renderer={"name": "qwen3"}, renderer_model_name=folder_of("chatml")
    )
    options = {**CASE.setup_options, "comment": list(CASE.row.comment)}
    loop, context = asyncio.new_event_loop(), vf.ModelContext(model="policy", client=client)

    class Bearer(traced._Bearer):
        async def handle_async_request(self, request: httpx.Request) -> httpx.Response:
            bodies.append(request.content)
            return await super().handle_async_request(request)

    class Task(ours.LiveRoomTask):  # type: ignore[name-defined, misc]
        async def finalize(self, trace: Any, runtime: Any) -> None:
            trace.record_reward("reward", 1.0)

    class Rooms(ours.LiveRoomTaskset, vf.Taskset[Task, ours.RoomsConfig]):  # type: ignore[name-defined, misc]
        pass

    class Harness(ours.LiveRoomHarness):  # type: ignore[name-defined, misc]
        async def launch(
            self, ctx: Any, trace: Any, runtime: Any, endpoint: str, secret: str, *_: Any
        ) -> Any:
            async with httpx.AsyncClient(transport=traced._Bearer(secret)) as http:
                for body in bodies:
                    (await http.post(f"{endpoint}/chat/completions", content=body)).json()
            return vf.ProgramResult(exit_code=0, stdout="", stderr="")

    alone = sys.modules["rooms_alone"] = ModuleType("rooms_alone")
    seats = type("LiveRoomSeats", (ours.LiveRoomSeats,), {})
    for one in (Rooms, Harness, seats):
        one.__module__ = "rooms_alone"
        setattr(alone, one.__name__, one)
    alone.__all__ = ["Rooms", "Harness", "LiveRoomSeats"]

    def made(name: str) -> Play:
        told = {"id": name, "count": 1, "task": {"setup": options}}
        env = vf.load_environment(vf.resolve_env_config({"taskset": told}))
        (task,) = env.taskset
        loop.run_until_complete(_OPEN_ASYNC.enter_async_context(env.serving()))

        def play() -> None:
            episode = loop.run_until_complete(env.run_episode(task, context))
            assert episode.traces[0].reward == 1.0, episode.traces[0].errors

        return play

    play = made("livestream_env")
    was, traced._Bearer = traced._Bearer, Bearer
    play()
    traced._Bearer = was
    return play, made("rooms_alone")


def art() -> Plays:
    """Play a row through ART's client of the same chat server, and make its trajectory. Alone, the
    client sends the same requests, and the same trajectory is made."""
    import asyncio
    import json

    import art

    from livestream_env.adapters.art import RoomRollout

    model = art.Model(
        name="policy", project="rooms", inference_api_key="default", inference_base_url=token_url()
    )
    rollout, loop = RoomRollout(**CASE.setup_options), asyncio.new_event_loop()

    def play() -> None:
        assert loop.run_until_complete(rollout(model, CASE.row)).reward == 1.0

    told = dict(loop.run_until_complete(rollout(model, CASE.row)))
    bodies = [json.loads(body) for body in [*_ASKED][-len(CASE.lines) :]]

    async def episode() -> None:
        completions = model.openai_client().chat.completions
        for body in bodies:
            given = {key: body[key] for key in ("model", "messages")}
            others = {key: body[key] for key in body.keys() - given.keys()}
            await completions.create(**given, extra_body=others)
        art.Trajectory(**told)

    return play, lambda: loop.run_until_complete(episode())


CORES = {
    "tokens": core_tokens,
    "text": core_text,
    "turns": core_turns,
    "chat": core_chat,
    "chat ids": core_chat_ids,
}
TRAINERS: dict[str, tuple[str, Callable[[], Play | Plays]]] = {
    "agent_lightning": ("chat", agent_lightning),
    "areal": ("tokens", areal),
    "art": ("chat ids", art),
    "gem": ("text", gem),
    "nemo_gym": ("turns", nemo_gym),
    "openenv": ("turns", openenv),
    "openenv_sessions": ("chat ids", openenv_sessions),
    "openrlhf": ("tokens", openrlhf),
    "rllm": ("chat", rllm),
    "rock": ("text", rock),
    "roll": ("tokens", roll),
    "skyrl": ("tokens", skyrl),
    "slime": ("tokens", slime),
    "trl": ("tokens", trl),
    "verifiers": ("tokens", verifiers),
    "verl": ("tokens", verl),
}
"""By name: which form of the core it is compared with, and what makes its play."""


def cpu_ms(play: Play) -> float:
    """Return CPU milliseconds an episode, threads included; no reply is known from one before."""
    begun = time.process_time()
    for _ in range(EPISODES):
        decided.cache_clear()
        play()
    return (time.process_time() - begun) / EPISODES * 1e3


def main(names: Sequence[str]) -> None:
    """Print each trainer's cost beside the core's, measured in turns."""
    assert len(said_in(expected(CASE)["messages"])) == len(CASE.lines)
    for name in names:
        form, make = TRAINERS[name]
        core, made = CORES[form](), make()
        plays = [core, *(made if isinstance(made, tuple) else (made,))]
        for play in plays:
            play()
        rows = [[cpu_ms(play) for play in plays] for _ in range(REPEATS)]
        ours, theirs, *alone = map(statistics.median, zip(*rows, strict=True))
        ratio = statistics.median(row[1] / row[0] for row in rows)
        told = (
            f"{name:<12} {1e3 / theirs:6.0f} episodes a CPU-second, the core {1e3 / ours:6.0f}"
            f" ({form}): {ratio:.2f} x the cost"
        )
        if alone:
            over = statistics.median(row[1] / (row[0] + row[2]) for row in rows)
            told += f"; {over:.2f} x the core and the trainer alone, {ours:.1f} + {alone[0]:.1f} ms"
        print(told, flush=True)


if __name__ == "__main__":
    main(sys.argv[1:] or list(TRAINERS))
