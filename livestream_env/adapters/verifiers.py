"""verifiers and prime-rl: the taskset `livestream_env`, its harness and its environment.

The harness plays in the process of the environment, and every request goes through verifiers'
interception, which keeps the token ids. `LiveRoomSeats` has a seat for one agent and seats for two,
each with a trace of its own; which are played is the setup's `agents`. The classes are made where
they are first asked for, with verifiers.
"""

from __future__ import annotations

import contextlib
import functools
import hashlib
from collections.abc import Container, Iterator, Mapping, Sequence
from dataclasses import replace
from itertools import groupby
from typing import Any, ClassVar

import httpx

from livestream_env.adapters.chat_api import arun_episode
from livestream_env.adapters.setup import Setup, TaskRow, setup_of, task_rows, trainer_module
from livestream_env.adapters.whole_turns import TurnRenderer
from livestream_env.chat import ChatClient
from livestream_env.chat_agent import AsyncChatAgent
from livestream_env.drivers import Seed, arollout
from livestream_env.episode import TWO_AGENTS
from livestream_env.errors import ChatError
from livestream_env.rows import TrainingRow
from livestream_env.team import AgentTeam
from livestream_env.tokens import Renderer, Source, Span, TokenSequence, source_of
from livestream_env.types import (
    Action,
    Message,
    Observation,
    StopReason,
    ToolSpec,
    Trajectory,
    TurnEvent,
)

RAN, INSTALL = "verifiers 0.4.0", "pip install verifiers==0.4.0"
CLASSES = ("LiveRoomHarness", "LiveRoomSeats", "LiveRoomTask", "LiveRoomTaskset")
LOSS = "rl"
"""The stream of weights that prime-rl's policy loss reads."""
_LONGEST_ANSWER_S = 3600.0
_ENDED = ("agent_completed", "user_closed")
"""What verifiers says of a rollout that nothing stopped."""
_LIMITS = {StopReason.TURN_LIMIT: "max_turns", StopReason.TOKEN_LIMIT: "max_total_tokens"}


def __getattr__(name: str) -> Any:
    if name not in CLASSES:
        raise AttributeError(f"module `{__name__}` has no attribute `{name}`")
    return _classes()[name]


def taskset_class(room: str | None = None, **options: Any) -> Any:
    """Return the taskset of a setup that holds what no TOML can, such as a rubric of your own.

    A module of your own exports it under a name in `__all__`, with `LiveRoomHarness` and
    `LiveRoomSeats`, and is named as the taskset's id.
    """
    own, setup = _classes(), Setup(room, **options)
    task: Any = type("LiveRoomTask", (own["LiveRoomTask"],), {"rooms": setup})
    base: Any = own["LiveRoomTaskset"]

    class Rooms(base, _verifiers().Taskset[task, base.config_type]):  # type: ignore[misc]
        """The rows of one setup."""

    return Rooms


def _verifiers() -> Any:
    trainer_module("verifiers", ran=RAN, install=INSTALL, has="__version__", least=(0, 4))
    return trainer_module("verifiers.v1", ran=RAN, install=INSTALL, has="Harness")


@functools.cache
def _classes() -> dict[str, Any]:
    vf = _verifiers()

    class RoomData(vf.TaskData):  # type: ignore[misc]
        """A task row as verifiers' data."""

        room: str
        seed: int
        comment: tuple[str, ...] = ()

    class RoomState(vf.State):  # type: ignore[misc]
        """What a rollout has beside its trace."""

        task: Any = None
        seat: Any = None
        """Who plays, a `_Seat`."""
        trajectory: Any = None
        rows: Any = ()
        """Training rows of the seat."""

    class RoomConfig(vf.TaskConfig):  # type: ignore[misc]
        """`setup` holds the arguments of `Setup`."""

        setup: dict[str, Any] = {}  # noqa: RUF012 - pydantic copies it

    class LiveRoomTask(vf.Task[RoomData, RoomState, RoomConfig]):  # type: ignore[misc]
        """One episode."""

        rooms: ClassVar[Setup | None] = None
        seat: _SharedSeat | None = None
        """Who plays this copy of the task, where two agents play."""

        @classmethod
        def setup_by(cls, config: Any) -> Setup:
            """Return the setup of the class, or of a config.

            Raises:
                ValueError: there are two.
            """
            if cls.rooms is not None and config.setup:
                raise ValueError(f"`{cls.__name__}` has a setup; leave `task.setup` out")
            return cls.rooms or setup_of(config.setup)

        @property
        def own_setup(self) -> Setup:
            return self.setup_by(self.config)

        @property
        def row(self) -> TaskRow:
            return TaskRow.of(self.data.model_dump())

        @property
        def key(self) -> str:
            return self.row.task_id

        async def setup(self, trace: Any, runtime: Any) -> None:
            """Leave the task where the harness finds it."""
            trace.state.task = self

        async def finalize(self, trace: Any, runtime: Any) -> None:
            """Write masks, reward and metrics into the trace.

            Raises:
                RuntimeError: verifiers broke the episode off, so that there is no reward.
            """
            state = trace.state
            if state.trajectory is None:
                raise RuntimeError(f"the episode {self.key} was broken off: {trace.stop_condition}")
            _write(trace)
            trace.record_metrics(self.own_setup.metrics([state.trajectory]))

    class RoomsConfig(vf.TasksetConfig):  # type: ignore[misc]
        """Which rows there are: those of `count` seeds from `seed` on, by default of every comment
        once."""

        task: RoomConfig = RoomConfig()
        count: int | None = None
        seed: int = 0

    class LiveRoomTaskset(vf.Taskset[LiveRoomTask, RoomsConfig]):  # type: ignore[misc]
        """Task rows, as `export rl` writes them."""

        config_type = RoomsConfig

        def __init__(self, config: Any) -> None:
            super().__init__(config)
            if config.system_prompt is not None:
                raise ValueError("rooms tell the system prompt; give `task.setup.prompt`")
            self.setup = self.task_type().setup_by(config.task)

        def load(self) -> Iterator[Any]:
            """Yield the tasks."""
            options = {key: one for key, one in self.setup.options.items() if key != "rubric"}
            room, config = self.setup.room or "bundled:train", self.config
            for row in task_rows(room, count=config.count, seed=config.seed, **options):
                data = RoomData(name=row.task_id, prompt=row.task_id, **row.to_json())
                yield self.task_type()(data, config.task)

    class LiveRoomHarness(vf.Harness[vf.HarnessConfig]):  # type: ignore[misc]
        """Plays an episode, or the turns of one seat, in this process."""

        APPENDS_SYSTEM_PROMPT = True
        EXECUTES_CODE = False
        NEEDS_CONTAINER = False

        async def launch(
            self,
            ctx: Any,
            trace: Any,
            runtime: Any,
            endpoint: str,
            secret: str,
            mcp_urls: Mapping[str, str],
            data: Any,
        ) -> Any:
            """Play the episode of one agent.

            Raises:
                RuntimeError: the episode has no reward, as where the environment failed.
                ValueError: two agents play, or the task is of another taskset.
            """
            task = _task_of(trace)
            if task.own_setup.has_two_agents:
                raise ValueError("two agents play by `LiveRoomSeats`; leave `env.id` out")
            setup, row, seat = task.own_setup, task.row, _Seat("host")
            client = _client(endpoint, secret, ctx.model)
            env = setup.make_env(row.room)
            try:
                trajectory = await arun_episode(
                    client,
                    None,
                    env,
                    seated=lambda agent: seat.plays(agent, trace),
                    **setup.opening(row),
                )
            finally:
                env.close()
                client.close()
            _settle(task, {"host": seat}, trajectory)
            return vf.ProgramResult(exit_code=0, stdout="", stderr="")

        async def resume(
            self,
            ctx: Any,
            trace: Any,
            runtime: Any,
            endpoint: str,
            secret: str,
            mcp_urls: Mapping[str, str],
            data: Any,
            messages: Any,
            tool_interception_url: str | None = None,
        ) -> Any:
            """Take the next turn of one of two seats."""
            await _task_of(trace).seat.take_turn(endpoint, secret, ctx.model)
            return vf.ProgramResult(exit_code=0, stdout="", stderr="")

    class SeatsConfig(vf.EnvConfig):  # type: ignore[misc]
        """Who sits where."""

        agent: vf.AgentConfig = vf.AgentConfig(runtime=vf.SubprocessConfig())
        tool_caller: vf.AgentConfig = vf.AgentConfig(runtime=vf.SubprocessConfig())
        replier: vf.AgentConfig = vf.AgentConfig(runtime=vf.SubprocessConfig())

    class LiveRoomSeats(vf.Env[SeatsConfig]):  # type: ignore[misc]
        """`agent` plays alone, or `tool_caller` and `replier` together, by the setup's `agents`.

        A seat that is not trained is a partner's: the run's model, or the seat's own `model` and
        `client`.
        """

        async def setup(self, agents: Any) -> None:
            """Tell which seats are trained."""
            for name in TWO_AGENTS:
                getattr(agents, name).trainable = name in self.taskset.setup.agents

        async def run(self, task: Any, agents: Any) -> None:
            """Play the episode; a seat that is not reached has no trace."""
            setup = self.taskset.setup
            if not setup.has_two_agents:
                await agents.agent.run(task)
                return
            env = setup.make_env(task.row.room)
            async with contextlib.AsyncExitStack() as rollouts:
                rollouts.callback(env.close)
                seats = {
                    name: _SharedSeat(name, rollouts, getattr(agents, name), task)
                    for name in TWO_AGENTS
                }
                partners = {name: one for name, one in seats.items() if name not in setup.agents}
                trained = {name: one for name, one in seats.items() if name in setup.agents}
                team = AgentTeam(**trained, partners=partners)
                _settle(task, seats, await arollout(env, team, **setup.opening(task.row)))

    made = {one.__name__: one for one in (LiveRoomHarness, LiveRoomSeats, LiveRoomTask)}
    made["LiveRoomTaskset"] = LiveRoomTaskset
    for one in (*made.values(), RoomData, RoomState, RoomConfig, RoomsConfig, SeatsConfig):
        one.__module__, one.__qualname__ = __name__, one.__name__
    return made


def _task_of(trace: Any) -> Any:
    task = getattr(trace.state, "task", None)
    if task is None:
        raise ValueError(f"this harness plays the taskset `livestream_env`, not {trace.task.type}")
    return task


# --- a rollout as an agent ----------------------------------------------------------------------


class _Seat:
    """An agent whose requests are a rollout's: what it samples is in the rollout's trace."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.trace: Any = None
        self.nodes: list[Any] = []
        """The trace's node of each turn, `None` where nothing was sampled."""
        self._agent: Any = None
        self._talk: Any = None

    def plays(self, agent: Any, trace: Any) -> _Seat:
        """Let the agent, whose requests the trace records, speak from this seat."""
        self._agent, self.trace = agent, trace
        return self

    def start(self, observation: Observation, *, seed: Seed | None) -> _Seat:
        """Return the agent of one episode, which is this."""
        self._talk = self._agent.start(observation, seed=seed)
        return self

    async def act(self, messages: Sequence[Message], tools: Sequence[ToolSpec]) -> Action:
        """Return what the model says next; cut before a word where verifiers allows no more.

        Raises:
            ChatError: no answer of the model came.
        """
        try:
            action: Action = await self._talk.act(messages, tools)
        except ChatError as error:
            if self.trace.stop_condition is None:
                raise
            event = TurnEvent("context_full", f"{self.trace.stop_condition}: {error}")
            action = Action(Message("assistant", ""), (), (), stop="length", events=(event,))
        if any(event.kind == "context_full" for event in action.events):
            self.nodes.append(None)
            return action
        node = self.trace.nodes[self.trace.calls[-1].node]
        self.nodes.append(node)
        return _with_tokens(action, node, self.trace) if node.token_ids else action


class _SharedSeat(_Seat):
    """One of two seats: its rollout is opened with its first turn, and stays open with the stack.

    verifiers runs each turn as a segment of the rollout, in which the harness calls `take_turn`.
    """

    def __init__(
        self, name: str, rollouts: contextlib.AsyncExitStack, agent: Any, task: Any
    ) -> None:
        super().__init__(name)
        self._rollouts, self._opens = rollouts, (agent, task.with_data(prompt=None))
        self._opens[1].seat = self
        self._interaction: Any = None
        self._observation: Any = None
        self._asked: tuple[Sequence[Message], Sequence[ToolSpec]] = ((), ())
        self._answer: Action | None = None

    def start(self, observation: Observation, *, seed: Seed | None) -> _Seat:
        """Return the agent of one episode, which is this."""
        self._observation = observation
        return self

    async def act(self, messages: Sequence[Message], tools: Sequence[ToolSpec]) -> Action:
        """Return what the model says next; as of one agent's seat."""
        if self._interaction is None:
            agent, task = self._opens
            self._interaction = await self._rollouts.enter_async_context(agent.interaction(task))
            self.trace = self._interaction.trace
        self._asked, self._answer = (messages, tools), None
        await self._interaction.turn("...")  # what is said is in `_asked`
        if self._answer is None:
            told = self.trace.last_error
            why = self.trace.stop_condition if told is None else f"{told.type}: {told.message}"
            raise ChatError(f"the rollout of `{self.name}` ended: {why}"[:600])
        return self._answer

    async def take_turn(self, endpoint: str, secret: str, model: str) -> None:
        """Send what was asked to verifiers."""
        if self._talk is None:
            client = _client(endpoint, secret, model)
            self._rollouts.callback(client.close)
            self.plays(AsyncChatAgent(client, append_only=True, send_seed=False), self.trace)
            super().start(self._observation, seed=None)
        self._answer = await super().act(*self._asked)


def _with_tokens(action: Action, node: Any, trace: Any) -> Action:
    """Return the action with the ids that the trace has of it."""
    path, at = [node], node.parent
    while at is not None:
        path.append(trace.nodes[at])
        at = path[-1].parent
    ids = [token for one in reversed(path) for token in one.token_ids]
    start = len(ids) - sum(node.mask)
    logprobs = tuple(node.logprobs)
    return replace(
        action, token_ids=tuple(ids[start:]), logprobs=logprobs, prompt_ids=tuple(ids[:start])
    )


class _Bearer(httpx.AsyncHTTPTransport):
    """Tells a rollout's secret, and of a request that is sent again that it is the same."""

    def __init__(self, secret: str) -> None:
        super().__init__(verify=False)  # verifiers' server speaks plain HTTP on this machine
        self._secret = secret

    async def handle_async_request(self, request: httpx.Request) -> httpx.Response:
        request.headers["Authorization"] = f"Bearer {self._secret}"
        request.headers["Idempotency-Key"] = hashlib.sha256(request.content).hexdigest()
        return await super().handle_async_request(request)


def _client(endpoint: str, secret: str, model: str) -> ChatClient:
    """Return the client of a rollout, whose time limits are verifiers'."""
    return ChatClient(
        endpoint,
        model,
        timeout_s=_LONGEST_ANSWER_S,
        total_timeout_s=_LONGEST_ANSWER_S,
        transport=_Bearer(secret),
    )


# --- what is trained of a trace -----------------------------------------------------------------


class _TraceRenderer:
    """The branches of a seat's trace as sequences: nothing is tokenized again.

    A turn that several branches share is sampled in the first of them, as prime-rl has it.
    """

    def __init__(self, seat: _Seat) -> None:
        self._seat = seat

    def render(
        self, trajectory: Trajectory, agents: Container[str] | None = None
    ) -> list[TokenSequence]:
        """Render each branch; all that the seat did not sample is a prompt."""
        turn_of = {id(node): at for at, node in _own(self._seat, trajectory) if node is not None}
        made = []
        for branch in self._seat.trace.branches:
            spans: list[Span] = []
            for node in branch.nodes:
                at = turn_of.pop(id(node), -1)
                for is_sampled, run in groupby(node.mask):
                    start = spans[-1].stop if spans else 0
                    is_own = is_sampled and at >= 0
                    source = source_of(trajectory.turns[at]) if is_own else Source.PROMPT
                    spans.append(Span(start, start + len(list(run)), source, at))
            ids = tuple(branch.token_ids)
            made.append(TokenSequence(ids, None, tuple(spans), agent=self._seat.name))
        return made


def _own(seat: _Seat, trajectory: Trajectory) -> list[tuple[int, Any]]:
    """Return the turns of a seat, each with its node."""
    turns = [at for at, turn in enumerate(trajectory.turns) if turn.agent == seat.name]
    return list(zip(turns, seat.nodes, strict=False))  # a turn that failed later has no node


def _renderer(seat: _Seat) -> Renderer:
    """Return the renderer of a seat's tokens; an evaluation's client tells none."""
    has_tokens = any(node is not None and node.token_ids for node in seat.nodes)
    return _TraceRenderer(seat) if has_tokens else TurnRenderer()


def _settle(task: Any, seats: Mapping[str, _Seat], trajectory: Trajectory) -> None:
    """Leave in each rollout what the episode came to.

    Raises:
        RuntimeError: a trained agent has no reward, as where the environment failed.
    """
    setup = task.own_setup
    setup.keep(trajectory)
    rows = setup.rows(trajectory, {name: _renderer(seats[name]) for name in setup.agents})
    for row in rows:
        if row.excluded and not row.excluded.startswith("empty_mask"):
            raise RuntimeError(f"the episode {task.key} is left out: {row.excluded}")
    for name, seat in seats.items():
        if seat.trace is not None:
            state = seat.trace.state
            state.seat, state.trajectory = seat, trajectory
            state.rows = [row for row in rows if row.agent == name]


def _write(trace: Any) -> None:
    """Write reward, ending and masks of an episode into the trace of one of its seats."""
    seat, trajectory = trace.state.seat, trace.state.trajectory
    total = None if trajectory.rewards is None else trajectory.rewards.total(seat.name)
    if total is not None:
        trace.record_reward("livestream", total)
    if trace.stop_condition in _ENDED:
        reason = trajectory.stop_reason
        trace.stop(_LIMITS.get(reason, str(reason)), override=True)
    bits = _bits(trace.state.rows)
    weights = {id(node): bits.get(at, ()) for at, node in _own(seat, trajectory)}
    nodes = [node for node in trace.nodes if node.sampled and node.token_ids]
    for node in nodes:
        _weigh(node, weights.get(id(node), ()))
    if nodes and not any(any(node.mask) for node in nodes):
        trace.agent.trainable = False


def _bits(rows: Sequence[TrainingRow]) -> dict[int, tuple[int, ...]]:
    """Return the loss masks of trained turns, by the turn."""
    return {
        span.turn: row.loss_mask[span.start : span.stop]
        for row in rows
        if row.excluded is None and row.sequence is not None
        for span in row.sequence.spans
        if span.source.is_sampled
    }


def _weigh(node: Any, bits: Sequence[int]) -> None:
    """Give a node the weights of its sampled tokens.

    prime-rl takes a branch whose weights are all 0 for one without weights, and trains all of it;
    so a node that is not trained no longer counts as sampled tokens.
    """
    left = iter(bits)
    weights = [float(next(left, 0)) if is_sampled else 0.0 for is_sampled in node.mask]
    node.loss_weights = {LOSS: weights}
    if not any(weights):
        node.mask, node.logprobs, node.sampling_mask = [False] * len(node.mask), [], None
