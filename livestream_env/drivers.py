"""Drivers of one episode: an agent and an environment into a trajectory, sync or async.

A failure of the infrastructure, the policy's endpoint included, is in the trajectory (status
`env_error`, its cause in `faults`), never raised and never a reward; the caller's mistakes and the
agent's own exceptions are raised.
"""

from __future__ import annotations

import inspect
import math
from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import Any, Protocol

import gymnasium as gym

from livestream_env.env import LiveRoomEnv, awaited, call_failed, cause_of, checked_result
from livestream_env.episode import Episode
from livestream_env.errors import ChatError, SandboxError
from livestream_env.rooms import Room
from livestream_env.types import (
    Message,
    Observation,
    Status,
    StopReason,
    ToolCall,
    ToolResult,
    ToolSpec,
    Trajectory,
    TurnEvent,
)

Seed = int | tuple[int, int]


class Agent(Protocol):
    """Whoever answers: given the whole conversation so far, returns one assistant message.

    An agent that keeps anything between turns also has `start(observation, *, seed) -> Agent`,
    which drivers call for the agent of one episode, so that one object serves any number of
    threads.
    """

    def act(self, messages: Sequence[Message], tools: Sequence[ToolSpec]) -> Any:
        """Return an `Action`, a model's text or an OpenAI message; `messages` are not to be
        changed."""
        ...


class AsyncAgent(Protocol):
    """An `Agent` whose `act` is awaited."""

    def act(self, messages: Sequence[Message], tools: Sequence[ToolSpec]) -> Awaitable[Any]:
        """Return an action, awaited."""
        ...


AgentOf = Callable[[Room], Agent | AsyncAgent]
"""What makes the agent of a room, such as `ScriptedAgent`."""
_AN_AGENT = "an agent has `act(messages, tools)`; `chat_agent_named` makes one of `chat:URL#MODEL`"


def start_agent(
    agent: Any, observation: Observation, seed: Seed | None, room: Room | None = None
) -> Any:
    """Return the agent of one episode; `agent` may also be what makes the agent of a room.

    Raises:
        TypeError: it is neither, or makes none.
        ValueError: it makes the agent of a room, and the room is not known.
    """
    if isinstance(agent, type) or not hasattr(agent, "act"):
        if not callable(agent):
            raise TypeError(f"`agent` is {agent!r}; {_AN_AGENT}")
        if room is None:
            raise ValueError(f"{agent!r} makes the agent of a room, and the room is not known")
        made = agent(room)
        if not hasattr(made, "act"):
            raise TypeError(f"{agent!r} made {made!r} for a room; {_AN_AGENT}")
        agent = made
    return agent.start(observation, seed=seed) if hasattr(agent, "start") else agent


class Seats:
    """Who plays each agent of an episode, each with its own conversation and tools.

    A team, as `AgentTeam`, has `agents`, which the episode is opened with, and `members`, by the
    agent's name; any other plays whoever's turn it is. One member with the same prompt and tools in
    two seats is started once.
    """

    def __init__(
        self, agent: Any, episode: Episode, seed: Seed | None, room: Room | None = None
    ) -> None:
        self._episode = episode
        self._talks = {name: list(episode.conversation(name)) for name in episode.agents}
        self._players: dict[str, Any] = {}
        members = getattr(agent, "members", None) or dict.fromkeys(episode.agents, agent)
        started: list[tuple[Any, Observation, Any]] = []
        for name in episode.agents:
            member, told = members[name], episode.observation_of(name)
            same = [p for other, seen, p in started if other is member and seen == told]
            player = same[0] if same else self._started(name, start_agent(member, told, seed, room))
            started.append((member, told, player))
            self._players[name] = player

    def _started(self, name: str, player: Any) -> Any:
        """Return a player that has overheard what was said before it was started."""
        talk = list(self._episode.prompts[name])
        for turn in self._episode.turns if hasattr(player, "overhear") else ():
            player.overhear(turn.action, talk)
            talk += (turn.action.message, *turn.messages)
        return player

    def act(self) -> Any:
        """Return the action of the agent whose turn it is, awaitable where it is async."""
        agent = self._episode.agent
        return self._players[agent].act(self._talks[agent], self._episode.tools[agent])

    def tell(self, observation: Observation) -> None:
        """Add the turn that was taken to the conversations.

        A player in another seat that has `overhear(action, messages)` is given the action and the
        conversation that it answered, to follow its token ids.
        """
        turn = self._episode.turns[-1]
        speaker = self._players[turn.agent]
        for name, talk in self._talks.items():
            player = self._players[name]
            if player is not speaker and hasattr(player, "overhear"):
                player.overhear(turn.action, talk)
            talk.append(turn.action.message)
            talk.extend(observation.messages)


def _seated(options: Mapping[str, Any] | None, agent: Any) -> dict[str, Any] | None:
    """Return the options of `reset` that open the agent's seats."""
    agents = getattr(agent, "agents", None)
    if agents is None:
        return None if options is None else dict(options)
    return {**(options or {}), "agents": agents}


def rollout(
    env: gym.Env[Any, Any],
    agent: Agent | AgentOf,
    *,
    seed: int | None = None,
    options: Mapping[str, Any] | None = None,
    agent_seed: Seed | None = None,
) -> Trajectory:
    """Play one episode and return its trajectory; a wrapper's truncation ends it as turn_limit.

    `agent_seed` seeds the agent, by default `seed`. Never raises for infrastructure: the trajectory
    then has status `env_error`, also when `reset` failed.
    """
    room = unwrapped(env)
    try:
        env.reset(seed=seed, options=_seated(options, agent))
    except SandboxError as error:
        return failed_trajectory(room, seed, cause_of(error))
    return play_on(env, agent, seed=seed if agent_seed is None else agent_seed)


def play_on(
    env: gym.Env[Any, Any],
    agent: Agent | AgentOf,
    *,
    seed: Seed | None = None,
    max_turns: int | None = None,
) -> Trajectory:
    """Play the episode of an environment on from where it stands, as of a fork; as `rollout`.

    After `max_turns` further turns the episode is left as it is.
    """
    room = unwrapped(env)
    episode = room.episode
    last = math.inf if max_turns is None else len(episode.turns) + max_turns
    seats = Seats(agent, episode, seed, room.room)
    try:
        while not episode.done and len(episode.turns) < last:
            try:
                action = seats.act()
                if inspect.isawaitable(action):
                    raise TypeError(f"`{type(agent).__name__}.act` is async: use `arollout`")
                observation, _, _, truncated, _ = env.step(action)
            except (SandboxError, ChatError) as error:
                room.fail_step(error)
                break
            if truncated:
                episode.abort("turns", "a wrapper truncated the episode")
            seats.tell(observation)
    except BaseException:
        episode.abort("driver")
        raise
    return episode.trajectory


async def arollout(
    env: gym.Env[Any, Any],
    agent: Agent | AsyncAgent | AgentOf,
    *,
    seed: int | None = None,
    options: Mapping[str, Any] | None = None,
    agent_seed: Seed | None = None,
) -> Trajectory:
    """Play one episode, awaiting agent and sandbox where they are async; otherwise as `rollout`.

    The episode is driven directly: wrappers around the environment are not passed through, and its
    rubric scores the end.
    """
    room = unwrapped(env)
    try:
        episode = await room.astart_episode(seed, _seated(options, agent))
    except SandboxError as error:
        return failed_trajectory(room, seed, cause_of(error))
    seats = Seats(agent, episode, seed if agent_seed is None else agent_seed, room.room)
    try:
        while not episode.done:
            try:
                action = await awaited(seats.act())
            except (SandboxError, ChatError) as error:
                room.fail_step(error)
                break
            seats.tell(await _astep(room, action))
    except BaseException:
        episode.abort("driver")
        raise
    return episode.trajectory


async def _astep(env: LiveRoomEnv, action: Any) -> Observation:
    calls = env.begin_step(action)
    results: list[ToolResult] = []
    try:
        for call in calls:
            results.append(await _arun(env, call))
    except SandboxError as error:
        return env.fail_step(error)
    return env.finish_step(results)[0]


async def _arun(env: LiveRoomEnv, call: ToolCall) -> ToolResult:
    try:
        sandbox = env.sandbox
        run = getattr(sandbox, "acall", sandbox.call)
        result: ToolResult = await awaited(run(call))
    except SandboxError:
        raise
    except Exception as error:
        raise call_failed(call, error) from error
    return checked_result(call, result)


def unwrapped(env: gym.Env[Any, Any]) -> LiveRoomEnv:
    """Return the room's environment below its wrappers."""
    room = getattr(env, "unwrapped", env)
    if not isinstance(room, LiveRoomEnv):
        raise TypeError(f"got an environment of type `{type(room).__name__}`; pass a `LiveRoomEnv`")
    return room


def failed_trajectory(env: LiveRoomEnv | None, seed: int | None, cause: str) -> Trajectory:
    """Return the record of an episode that never started; what is not known of it is empty."""
    room = None if env is None else env.room
    return Trajectory(
        room_id=room.room_id if room is not None else "",
        content_hash=room.content_hash if room is not None else "",
        comment_ids=(),
        seed=seed,
        prompts={},
        tools={},
        status=Status.ENV_ERROR,
        stop_reason=StopReason.ENV_ERROR,
        faults=(*(() if env is None else env.sandbox_log), TurnEvent("env_error", cause)),
    )
