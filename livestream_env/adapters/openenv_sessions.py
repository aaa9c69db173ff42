"""OpenEnv's harness: sessions of a room, for its collectors and for TRL's `AsyncGRPOTrainer`.

A harness's loop calls the tools of a session one by one, knows no masks and trains all that was
sampled. With `base_url` a session plays by itself, by the package's own loop, and its training
trace holds the token ids with the masker's masks.
"""

from __future__ import annotations

import asyncio
import functools
import json
from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import Any

from livestream_env.adapters.chat_api import arun_episode
from livestream_env.adapters.openenv import INSTALL, RAN, summary
from livestream_env.adapters.recorded import RecordedRenderer
from livestream_env.adapters.seats import check_partners, seated
from livestream_env.adapters.setup import Setup, TaskRow, trainer_module
from livestream_env.adapters.text_room import Rows, read_rows
from livestream_env.adapters.tool_loop import ToolLoop, live_setup
from livestream_env.chat_agent import AsyncChatAgent
from livestream_env.errors import SandboxError
from livestream_env.rows import TrainingRow
from livestream_env.team import Member
from livestream_env.tokens import Response
from livestream_env.types import Message, ToolSpec, Trajectory


def __getattr__(name: str) -> Any:
    if name != "RoomSessions":
        raise AttributeError(f"module `{__name__}` has no attribute `{name}`")
    return _sessions()


@functools.cache
def _sessions() -> Any:
    """Return what is made of OpenEnv's classes for its harness."""
    harness: Any = trainer_module(
        "openenv.core.harness", ran=RAN, install=INSTALL, has="TrainingTrace"
    )
    tools: Any = trainer_module("openenv.core.harness.tools", ran=RAN, install=INSTALL)

    def verified(setup: Setup, played: Trajectory, reward: float | None) -> Any:
        return harness.VerifyResult(
            env_reward=reward,
            done=True,
            metrics=setup.metrics([played]),
            artifacts=summary(setup, played),
        )

    class ToolSession(harness.ResourceSession):  # type: ignore[misc]
        """An episode whose tools a harness's loop calls; see `ToolLoop`."""

        def __init__(self, setup: Setup, live: Setup, row: TaskRow) -> None:
            self._setup, self._loop = setup, ToolLoop(setup, live)
            try:
                told = self._loop.begin(row)
                if told is None:
                    setup.keep(self._loop.played(()))
                    raise SandboxError(self._loop.cause or "")
                self._messages = [message.to_openai() for message in told.messages]
                self._tools = tools.resolve_tool_conflicts([_mcp(spec) for spec in told.tools], ())
            except BaseException:
                self.close()
                raise

        def initial_messages(self) -> list[dict[str, Any]]:
            """Return the first messages."""
            return list(self._messages)

        def list_tools(self) -> list[Any]:
            """Return the tools."""
            return list(self._tools)

        def call_tool(self, name: str, arguments: dict[str, Any]) -> Any:
            """Run a call; where the environment failed it is done, and `error` says why."""
            text = self._loop.call(name, arguments)
            cause = self._loop.cause
            return harness.ToolResult(text, done=cause is not None, error=cause)

        def verify(self, transcript: list[dict[str, Any]], final_state: Any = None) -> Any:
            """Score the transcript; there is no reward where the environment failed."""
            played = self._loop.played(_answered(transcript))
            self._setup.keep(played)
            return verified(self._setup, played, played.reward)

        def close(self) -> None:
            """Release the sandbox."""
            self._loop.close()

    class PlayedSession(harness.ResourceSession):  # type: ignore[misc]
        """An episode that the session plays itself: OpenEnv's `TrainableSession`."""

        def __init__(
            self, play: Callable[[], Awaitable[Trajectory]], setup: Setup, name: str
        ) -> None:
            self._play, self._setup, self._name = play, setup, name
            self._task: tuple[asyncio.AbstractEventLoop, Any] | None = None
            self._trajectory: Trajectory | None = None
            self._rows: list[TrainingRow] = []
            self._is_closed = False

        def wait_for_completion(self, timeout_s: float | None = None) -> int:
            """Play the episode.

            Raises:
                RuntimeError: nothing of it may be trained, or the session was closed.
                TimeoutError: it lasted longer than `timeout_s`.
            """
            try:
                played = asyncio.run(self._in_time(timeout_s))
            except asyncio.CancelledError as error:
                raise RuntimeError("the session was closed before its end") from error
            self._trajectory = played
            self._setup.keep(played)
            rows = self._setup.rows(played, RecordedRenderer())
            self._rows = [row for row in rows if row.excluded is None]
            if not self._rows:
                raise RuntimeError(f"the episode {self._name} is left out: {rows[0].excluded}")
            return 0

        async def _in_time(self, timeout_s: float | None) -> Trajectory:
            self._task = (asyncio.get_running_loop(), asyncio.current_task())
            if self._is_closed:
                raise asyncio.CancelledError
            async with asyncio.timeout(timeout_s):
                return await self._play()

        def fetch_training_trace(self) -> Any:
            """Return the trained turns, with token ids and masks.

            Raises:
                ValueError: the model's server tells no log-probabilities.
            """
            played = self._played()
            each = [(row, made) for row in self._rows for made in row.rows_per_turn()]
            turns = [_captured(self._name, played, row.agent, made) for row, made in each]
            return harness.TrainingTrace(turns=turns)

        def verify(self, transcript: list[dict[str, Any]], final_state: Any = None) -> Any:
            """Return the reward of the trained agent."""
            reward = self._rows[0].reward if self._rows else None
            return verified(self._setup, self._played(), reward)

        def _played(self) -> Trajectory:
            if self._trajectory is None:
                raise RuntimeError("the episode was not played to its end")
            return self._trajectory

        def initial_messages(self) -> list[dict[str, Any]]:
            """Return nothing: the session has its own loop."""
            return []

        def list_tools(self) -> list[Any]:
            """Return nothing: the session has its own loop."""
            return []

        def call_tool(self, name: str, arguments: dict[str, Any]) -> Any:
            """Refuse: the session has its own loop."""
            raise KeyError(f"Unknown tool: {name}; the session calls its tools itself")

        def close(self) -> None:
            """Stop playing."""
            self._is_closed = True
            if self._task is not None and self._trajectory is None:
                loop, task = self._task
                if not loop.is_closed():
                    loop.call_soon_threadsafe(task.cancel)

    class RoomSessions(harness.ResourceSessionFactory):  # type: ignore[misc]
        """Makes a session for each rollout.

        A task is a task row or its JSON text; any other is not looked at, and the seed decides.

        Args:
            room: of rows that name none.
            base_url, model: of the trained model behind the chat API, with token ids: the session
                then plays by itself. By default a harness plays it.
            sampling: what else each request holds, as TRL gives it.
            partners: who plays a seat of two agents, untrained.
            rows: task rows, or their file of JSON Lines: a seed opens the one of its number, round
                and round.
            options: the other arguments of `Setup`.

        Raises:
            ValueError: there are agents or masks for a harness, two agents to be trained, a
                partner without a seat, or no such URL, model or sampling.
            RoomNotFound: a row names no room.
        """

        def __init__(
            self,
            room: str | None = None,
            *,
            base_url: str | None = None,
            model: str | None = None,
            sampling: Mapping[str, Any] | None = None,
            partners: Mapping[str, Member | None] | None = None,
            rows: Rows = (),
            **options: Any,
        ) -> None:
            self._setup = setup = Setup(room, **options)
            self._live = live_setup(setup)
            self._rows = [setup.row(row) for row in read_rows(rows)]
            for name in {row.room for row in self._rows}:
                setup.make_env(name)
            if sampling is not None and not isinstance(sampling, Mapping):
                raise TypeError(f"`sampling` is {sampling!r:.80}; it is a mapping of parameters")
            self._server, self._sampling = (base_url, model), dict(sampling or {})
            self._partners = partners
            if base_url is None and options.keys() & {"agents", "masker"}:
                raise ValueError(
                    "a harness's loop masks by itself and has one agent; with `base_url` sessions"
                    " play by themselves, with masks"
                )
            if len(setup.agents) > 1:
                raise ValueError(
                    "a session has one reward; train one agent, `agents={'replier': 'reply'}`"
                )
            check_partners(setup, partners)
            if base_url is None and (model or sampling):
                raise ValueError("`model` and `sampling` are of the server of `base_url`; name it")
            if base_url is not None:
                AsyncChatAgent(base_url, model, extra_body=sampling)  # refuses what it cannot send

        def create(self, task: Any, seed: int | None = None, episode_id: str | None = None) -> Any:
            """Make the session of one episode.

            Raises:
                SandboxError: infrastructure failed.
                ValueError: there is neither a task row nor a seed.
            """
            row = self._row(task, seed)
            if self._server[0] is None:
                return ToolSession(self._setup, self._live, row)
            play = functools.partial(self._play, row, self._server[0])
            return PlayedSession(play, self._setup, episode_id or row.task_id)

        def _row(self, task: Any, seed: int | None) -> TaskRow:
            if isinstance(task, str) and task.lstrip().startswith("{"):
                task = json.loads(task)
            if isinstance(task, (Mapping, TaskRow)):
                return self._setup.row(task)
            if self._rows and seed is not None:
                return self._rows[seed % len(self._rows)]
            return self._setup.row({"seed": seed})

        async def _play(self, row: TaskRow, base_url: str) -> Trajectory:
            setup = self._setup
            env = setup.make_env(row.room)
            try:
                return await arun_episode(
                    base_url,
                    self._server[1],
                    env,
                    extra_body=self._sampling,
                    token_ids=True,
                    seated=lambda agent: seated(agent, setup, self._partners, is_async=True),
                    **setup.opening(row),
                )
            finally:
                await env.aclose()

    def _mcp(spec: ToolSpec) -> Any:
        told = spec.to_openai()["function"]
        return tools.Tool(
            name=told["name"], description=told["description"], input_schema=told["parameters"]
        )

    RoomSessions.__module__, RoomSessions.__qualname__ = __name__, "RoomSessions"
    return RoomSessions


def _answered(transcript: Sequence[Mapping[str, Any]]) -> list[Mapping[str, Any]]:
    """Return a transcript without the calls that the harness's limits kept from being run.

    A message of which no call was run stays: the harness ended there.
    """
    ran = {message.get("tool_call_id") for message in transcript}
    made: list[Mapping[str, Any]] = []
    for message in transcript:
        kept = [call for call in message.get("tool_calls") or () if call.get("id") in ran]
        made.append({**message, "tool_calls": kept} if kept else message)
    return made


def _captured(name: str, played: Trajectory, agent: str, turn: Response) -> dict[str, Any]:
    """Return one trained turn as OpenEnv's `TrainingTurn` holds it."""
    assert turn.turn is not None
    if turn.logprobs is None:
        raise ValueError("the model's server tells no log-probabilities; vLLM and SGLang do")
    before: list[Message] = list(played.prompts[played.turns[turn.turn].agent])
    for one in played.turns[: turn.turn]:
        before += (one.action.message, *one.messages)
    said = played.turns[turn.turn].action.message.to_openai()
    return {
        "node_id": f"{name}:{turn.turn}",
        "prompt_token_ids": list(turn.prompt_ids),
        "completion_token_ids": list(turn.response_ids),
        "per_token_logps": list(turn.logprobs),
        "loss_mask": [0] * len(turn.prompt_ids) + list(turn.loss_mask),
        "request": {"messages": [message.to_openai() for message in before]},
        "response": {"choices": [{"message": said}]},
        "metadata": {"agent": agent},
    }
