"""verifiers and prime-rl: the taskset `livestream_env`, its harness and its environment.

The harness plays in the process of the environment, and every request goes through verifiers'
interception, which keeps the token ids. `LiveRoomSeats` has a seat for one agent and seats for two,
each with a trace of its own; which are played is the setup's `agents`. The classes are made where
they are first asked for, with verifiers.
"""

from __future__ import annotations

import contextlib
import functools
from collections.abc import Iterator, Mapping
from typing import Any, ClassVar

from livestream_env.adapters.chat_api import arun_episode
from livestream_env.adapters.setup import Setup, TaskRow, setup_of, task_rows, trainer_module
from livestream_env.adapters.traced import SharedSeat, TracedSeat, rollout_client, settle, write
from livestream_env.adapters.whole_turns import TurnRenderer
from livestream_env.agents import ScriptedAgent
from livestream_env.drivers import arollout
from livestream_env.episode import TWO_AGENTS
from livestream_env.team import AgentTeam

RAN, INSTALL = "verifiers 0.4.0", "pip install verifiers==0.4.0"
CLASSES = (
    *("LiveRoomHarness", "LiveRoomSeats", "LiveRoomTask", "LiveRoomTaskset"),
    *("RoomConfig", "RoomData", "RoomState", "RoomsConfig", "SeatsConfig"),
)
_NOBODY = "validate"
"""The agent of `vf-validate`'s traces, who plays no turn."""


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
    typed: Any = _verifiers().Taskset[task, own["RoomsConfig"]]

    class Rooms(base, typed):  # type: ignore[misc]
        """The rows of one setup."""

    return Rooms


def _verifiers() -> Any:
    trainer_module("verifiers", ran=RAN, install=INSTALL, has="__version__", least=(0, 4))
    return trainer_module("verifiers.v1", ran=RAN, install=INSTALL, has="Harness")


@functools.cache
def _classes() -> dict[str, Any]:
    vf: Any = _verifiers()

    class RoomData(vf.TaskData):  # type: ignore[misc]
        """A task row as verifiers' data."""

        room: str
        seed: int
        comment: tuple[str, ...] = ()

    class RoomState(vf.State):  # type: ignore[misc]
        """What a rollout has beside its trace."""

        task: Any = None
        seat: Any = None
        """Who plays, a `TracedSeat`."""
        trajectory: Any = None
        rows: Any = ()
        """Training rows of the seat."""

    class RoomConfig(vf.TaskConfig):  # type: ignore[misc]
        """`setup` holds the arguments of `Setup`."""

        setup: dict[str, Any] = {}  # noqa: RUF012 - pydantic copies it

    class LiveRoomTask(vf.Task[RoomData, RoomState, RoomConfig]):  # type: ignore[misc]
        """One episode."""

        rooms: ClassVar[Setup | None] = None
        seat: SharedSeat | None = None
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
            """Leave the task where the harness finds it.

            Who watches a trace, as prime-rl does from its own process, is sent each node once; so
            nobody is told of nodes before they are masked.
            """
            trace.watch(_tells_nobody)
            trace.state.task = self

        async def finalize(self, trace: Any, runtime: Any) -> None:
            """Write masks, reward and metrics into the trace.

            Raises:
                RuntimeError: verifiers broke the episode off, so that there is no reward.
            """
            state = trace.state
            if trace.agent.name == _NOBODY:
                return
            if state.trajectory is None:
                raise RuntimeError(f"the episode {self.key} was broken off: {trace.stop_condition}")
            write(trace)
            trace.record_metrics(self.own_setup.metrics([state.trajectory]))

        async def validate(self, runtime: Any) -> bool | None:
            """Return whether the scripted agent, which knows the labels, earns a reward above 0;
            `None` where there are no labels.

            Raises:
                RuntimeError: the episode has no reward, as where the environment failed.
            """
            setup, row = self.own_setup, self.row
            seats: Any = ScriptedAgent
            if setup.has_two_agents:
                seats = AgentTeam(tool_caller=ScriptedAgent, replier=ScriptedAgent)
            env = setup.make_env(row.room)
            try:
                played = await arollout(env, seats, **setup.opening(row))
                room = env.room
            finally:
                await env.aclose()
            rows = setup.rows(played, TurnRenderer())
            for one in rows:
                if one.reward is None:
                    raise RuntimeError(f"the episode {self.key} has no reward: {one.excluded}")
            if room is None or any(room.comment(c).expected is None for c in played.comment_ids):
                return None
            return all(one.reward > 0 for one in rows if one.reward is not None)

    class RoomsConfig(vf.TasksetConfig):  # type: ignore[misc]
        """Which rows there are: those of `count` seeds from `seed` on, by default of every comment
        once."""

        task: RoomConfig = RoomConfig()
        count: int | None = None
        seed: int = 0

    class LiveRoomTaskset(vf.Taskset[LiveRoomTask, RoomsConfig]):  # type: ignore[misc]
        """Task rows, as `export rl` writes them."""

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

        async def setup(self, runtime: Any) -> None:
            """Check that the model can be reached from here.

            Raises:
                ValueError: verifiers has a box made for the rollout.
            """
            if not isinstance(runtime.config, vf.SubprocessConfig):
                raise ValueError('rooms need no box; set `runtime = { type = "subprocess" }`')

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
            setup, row, seat = task.own_setup, task.row, TracedSeat("host")
            client = rollout_client(endpoint, secret, ctx.model)
            env = setup.make_env(row.room)
            try:
                trajectory = await arun_episode(
                    client,
                    None,
                    env,
                    seated=lambda agent: seat.plays(agent, trace, ctx),
                    **setup.opening(row),
                )
            finally:
                await env.aclose()
                client.close()
            settle(setup, {"host": seat}, trajectory)
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
            await _task_of(trace).seat.take_turn(endpoint, secret, ctx)
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
            """Play the episode."""
            setup = self.taskset.setup
            if not setup.has_two_agents:
                await agents.agent.run(task)
                return
            env = setup.make_env(task.row.room)
            seats = {name: SharedSeat(name) for name in TWO_AGENTS}
            async with contextlib.AsyncExitStack() as rollouts:
                rollouts.push_async_callback(env.aclose)
                for name, seat in seats.items():
                    copied = task.with_data(prompt=None)
                    copied.seat = seat
                    rollout = getattr(agents, name).interaction(copied)
                    seat.opened(rollouts, await rollouts.enter_async_context(rollout))
                partners = {name: one for name, one in seats.items() if name not in setup.agents}
                caller, replier = (None if n in partners else seats[n] for n in TWO_AGENTS)
                team = AgentTeam(tool_caller=caller, replier=replier, partners=partners)
                trajectory = await arollout(env, team, **setup.opening(task.row))
                settle(setup, seats, trajectory)

        async def finalize(self, task: Any, episode: Any) -> None:
            """Leave out the trace of a seat that was not reached."""
            episode.traces[:] = [one for one in episode.traces if one.num_turns or not one.ok]

    made = {name: one for name, one in locals().items() if name in CLASSES}
    for name, one in made.items():
        one.__module__, one.__qualname__ = __name__, name
    return made


def _task_of(trace: Any) -> Any:
    task = getattr(trace.state, "task", None)
    if task is None:
        raise ValueError(f"this harness plays the taskset `livestream_env`, not {trace.task.type}")
    return task


def _tells_nobody(trace: Any) -> None:
    """Stand for a watcher."""
