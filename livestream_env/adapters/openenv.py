"""OpenEnv: a room as its environment, behind its server.

Over the WebSocket a trainer's own loop passes assistant messages; the last observation has the
reward and says which turns are trained. Sessions of its harness are in `openenv_sessions`.
"""

from __future__ import annotations

import functools
from collections.abc import Iterable, Mapping, Sequence
from types import SimpleNamespace
from typing import Any, Literal

from livestream_env.adapters.setup import Setup, trainer_module
from livestream_env.adapters.text_room import PlayedRoom, Stepped
from livestream_env.adapters.whole_turns import trained_turns
from livestream_env.errors import ResetNeeded, SandboxError, did_you_mean
from livestream_env.room_files import list_rooms
from livestream_env.types import Observation, Status, Trajectory

RAN, INSTALL = "openenv 0.10.0", "pip install 'openenv==0.10.0'"
_STATELESS = (
    "OpenEnv plays each POST in an environment of its own; episodes are played over the WebSocket,"
    " as `GenericEnvClient` does"
)


def room_app(
    room: str | None = None,
    *,
    rooms: Iterable[str] = (),
    max_sessions: int = 64,
    **options: Any,
) -> Any:
    """Return OpenEnv's server of a room, a FastAPI application; it asks nobody for a token.

    Args:
        room: of episodes whose `reset` names none; its other arguments are a task row's.
        rooms: further rooms that clients may name, beside the bundled ones.
        max_sessions: clients at a time; more are refused.
        options: the other arguments of `Setup`.

    Raises:
        MissingDependency: OpenEnv is not installed.
        ValueError: `rooms` or `max_sessions` are none.
        RoomNotFound: there is no such room.
    """
    from fastapi import Request
    from fastapi.responses import JSONResponse

    if not isinstance(max_sessions, int) or max_sessions < 1:
        raise ValueError(f"`max_sessions` is a number from 1 on, not {max_sessions!r}")
    made, setup = _classes(), Setup(room, **options)
    app = made.server.create_fastapi_app(
        functools.partial(made.LiveRoomEnvironment, setup, rooms=_known_rooms(setup, rooms)),
        made.RoomAction,
        made.RoomObservation,
        max_concurrent_envs=max_sessions,
        env_name="live_room",
    )

    def refused(_: Request, error: Exception) -> JSONResponse:
        return JSONResponse({"detail": f"{error}: {_STATELESS}"}, status_code=409)

    app.add_exception_handler(ResetNeeded, refused)
    return app


def _known_rooms(setup: Setup, rooms: Iterable[str]) -> tuple[str, ...]:
    if isinstance(rooms, str):
        raise ValueError(f"`rooms` is a list of rooms; write `rooms=[{rooms!r}]`")
    known = tuple(rooms)
    for name in known:
        setup.make_env(name)
    return known


def __getattr__(name: str) -> Any:
    if name not in ("RoomAction", "RoomObservation", "LiveRoomEnvironment"):
        raise AttributeError(f"module `{__name__}` has no attribute `{name}`")
    return getattr(_classes(), name)


@functools.cache
def _classes() -> Any:
    """Return what is made of OpenEnv's classes for its server."""
    server: Any = trainer_module(
        "openenv.core.env_server", ran=RAN, install=INSTALL, has="create_fastapi_app"
    )

    class RoomAction(server.Action):  # type: ignore[misc]
        """One assistant message, or a limit of the trainer's that ends the episode."""

        message: str | dict[str, Any] = ""
        """A model's text, or an OpenAI message."""
        stop: Literal["stop", "length"] = "stop"
        """`length`: the token limit cut the message."""
        prompt_ids: list[int] | None = None
        token_ids: list[int] | None = None
        logprobs: list[float] | None = None
        """How the message was sampled, for the record."""
        end: Literal["length", "turns", "driver"] | None = None
        """End the episode here instead, and score it."""

    class RoomObservation(server.Observation):  # type: ignore[misc]
        """What is new; `reward` is the episode's, on its last observation alone.

        At the end `metadata` holds `metrics` and what `summary` tells.
        """

        agent: str = ""
        """Whose turn it is."""
        messages: list[dict[str, Any]]
        """OpenAI messages: the new ones, or all that an agent knows where its turns begin."""
        tools: list[dict[str, Any]] = []  # noqa: RUF012
        """The agent's tools, where its turns begin."""

    class LiveRoomEnvironment(server.Environment):  # type: ignore[misc]
        """A room as OpenEnv's environment.

        Args:
            room: as of `Setup`, which takes `options` too; or a `Setup`.
            rooms: further rooms that `reset` may name, beside the bundled ones.

        Raises:
            ValueError: `rooms` is one room.
            RoomNotFound: there is no such room.
        """

        SUPPORTS_CONCURRENT_SESSIONS = True

        def __init__(
            self, room: str | Setup | None = None, *, rooms: Iterable[str] = (), **options: Any
        ) -> None:
            super().__init__()
            self._played = PlayedRoom(room, **options)
            self._rooms = _known_rooms(self._played.setup, rooms)
            self._agent = ""
            self._episode_id: str | None = None

        def reset(
            self,
            seed: int | None = None,
            episode_id: str | None = None,
            room: str | None = None,
            comment: Sequence[str] = (),
            **columns: Any,
        ) -> Any:
            """Open the episode of a task row, or of a seed; other columns of a data set may come.

            A failed environment is an observation that is done, without a reward.

            Raises:
                ValueError: the room may not be named here, or the row is incomplete.
            """
            self._episode_id, self._agent = episode_id, ""
            row = None
            if room is not None or comment:
                row = {"seed": seed, "comment": comment}
                row |= {} if room is None else {"room": self._known(room)}
            try:
                observation, _ = self._played.open(seed, row=row)
            except SandboxError:
                metrics = self._played.setup.metrics([self._played.played()])
                return self._ended(Observation(()), metrics)
            return self._told(observation)

        def step(self, action: Any, timeout_s: float | None = None, **columns: Any) -> Any:
            """Take one assistant message.

            Raises:
                ResetNeeded: there is no episode, or it has ended.
                InvalidAction: `message` is no assistant message.
            """
            stepped: Stepped
            if action.end is not None:
                stepped = self._played.end(action.end)
            else:
                given = (action.prompt_ids, action.token_ids, action.logprobs)
                known = [None if one is None else tuple(one) for one in given]
                if known != [None] * 3 or action.stop != "stop":
                    self._played.sampled(known[0], known[1], known[2], action.stop)
                stepped = self._played.take(action.message)
            observation, _, terminated, truncated, info = stepped
            if terminated or truncated:
                return self._ended(observation, info["metrics"])
            return self._told(observation)

        def _told(self, observation: Observation) -> Any:
            episode = self._played.episode()
            if self._agent and episode.agent != self._agent:
                observation = episode.observation
            self._agent = episode.agent
            return RoomObservation(agent=self._agent, **_as_openai(observation))

        def _ended(self, observation: Observation, metrics: Mapping[str, float]) -> Any:
            played, setup = self._played.played(), self._played.setup
            return RoomObservation(
                done=True,
                reward=played.reward,
                metadata={**summary(setup, played), "metrics": metrics},
                agent=self._agent,
                **_as_openai(observation),
            )

        @property
        def state(self) -> Any:
            """Where the episode stands."""
            try:
                played = self._played.played()
            except ResetNeeded:
                return server.State()
            return server.State(
                episode_id=self._episode_id,
                step_count=len(played.turns),
                room_id=played.room_id,
                comment_ids=[*played.comment_ids],
                status=str(played.status),
            )

        def _known(self, room: str) -> str:
            if room == self._played.setup.room:
                return room
            known = (*self._rooms, "bundled:train", "bundled:test", *list_rooms())
            if room not in known:
                name = str(room)[:100]
                hint = did_you_mean(name, known)
                raise ValueError(f"`{name}` is none of this server's rooms.{hint}")
            return room

        def close(self) -> None:
            """Release the sandbox."""
            self._played.close()

    classes = (RoomAction, RoomObservation, LiveRoomEnvironment)
    for one in classes:
        one.__module__, one.__qualname__ = __name__, one.__name__
    return SimpleNamespace(**{one.__name__: one for one in classes}, server=server)


def _as_openai(observation: Observation) -> dict[str, Any]:
    return {
        "messages": [message.to_openai() for message in observation.messages],
        "tools": [spec.to_openai() for spec in observation.tools],
    }


def summary(setup: Setup, played: Trajectory) -> dict[str, Any]:
    """Return what is told of an episode at its end: `status`, `stop_reason`, `truncated`,
    `trained` (see `trained_turns`), and `env_error` where the environment failed."""
    failed = played.status is Status.ENV_ERROR
    return {
        "status": str(played.status),
        "stop_reason": str(played.stop_reason),
        "truncated": played.status is not Status.OK,
        "trained": trained_turns(setup, played),
        **({"env_error": played.faults[-1].detail} if failed else {}),
    }
