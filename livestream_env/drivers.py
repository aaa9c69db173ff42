"""Drivers: an agent and an environment into trajectories, one at a time, in threads, or async.

A failure of the infrastructure, the policy's endpoint included, is in the trajectory (status
`env_error`, its cause in `faults`), never raised and never a reward; the caller's mistakes and the
agent's own exceptions are raised.
"""

from __future__ import annotations

import inspect
from collections.abc import Awaitable, Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any, Protocol, cast

import gymnasium as gym

from livestream_env.env import LiveRoomEnv, call_failed, cause_of, checked_result
from livestream_env.errors import ChatError, GroupMismatch, SandboxError
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


def start_agent(agent: Any, observation: Observation, seed: Seed | None) -> Any:
    """Return the agent of one episode."""
    return agent.start(observation, seed=seed) if hasattr(agent, "start") else agent


def rollout(
    env: gym.Env[Any, Any],
    agent: Agent,
    *,
    seed: int | None = None,
    options: Mapping[str, Any] | None = None,
    agent_seed: Seed | None = None,
) -> Trajectory:
    """Play one episode and return its trajectory; a wrapper's truncation ends it as turn_limit.

    `agent_seed` seeds the agent, by default `seed`. Never raises for infrastructure: the trajectory
    then has status `env_error`, also when `reset` failed.
    """
    room = _unwrapped(env)
    try:
        observation, _ = env.reset(seed=seed, options=cast("dict[str, Any] | None", options))
    except SandboxError as error:
        return _failed_reset(room, seed, error)
    episode = room.episode
    player = start_agent(agent, observation, agent_seed if agent_seed is not None else seed)
    messages = list(observation.messages)
    try:
        while not episode.done:
            try:
                action = player.act(messages, episode.specs)
                if inspect.isawaitable(action):
                    raise TypeError(f"`{type(player).__name__}.act` is async: use `arollout`")
                observation, _, _, truncated, _ = env.step(action)
            except (SandboxError, ChatError) as error:
                room.fail_step(error)
                break
            if truncated:
                episode.abort("turns", "a wrapper truncated the episode")
            messages.append(episode.turns[-1].action.message)
            messages.extend(observation.messages)
    except BaseException:
        episode.abort("driver")
        raise
    return episode.trajectory


async def arollout(
    env: gym.Env[Any, Any],
    agent: Agent | AsyncAgent,
    *,
    seed: int | None = None,
    options: Mapping[str, Any] | None = None,
    agent_seed: Seed | None = None,
) -> Trajectory:
    """Play one episode, awaiting agent and sandbox where they are async; otherwise as `rollout`.

    The episode is driven directly: wrappers around the environment are not passed through, and its
    rubric scores the end.
    """
    room = _unwrapped(env)
    try:
        episode = room.start_episode(seed, options)
    except SandboxError as error:
        return _failed_reset(room, seed, error)
    observation = episode.observation
    player = start_agent(agent, observation, agent_seed if agent_seed is not None else seed)
    messages = list(observation.messages)
    try:
        while not episode.done:
            try:
                action = await _awaited(player.act(messages, episode.specs))
            except (SandboxError, ChatError) as error:
                room.fail_step(error)
                break
            observation = await _astep(room, action)
            messages.append(episode.turns[-1].action.message)
            messages.extend(observation.messages)
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
        result: ToolResult = await _awaited(run(call))
    except SandboxError:
        raise
    except Exception as error:
        raise call_failed(call, error) from error
    return checked_result(call, result)


async def _awaited(value: Any) -> Any:
    return await value if inspect.isawaitable(value) else value


def rollout_group(
    make_env: Callable[[], gym.Env[Any, Any]],
    agent: Agent,
    *,
    size: int = 8,
    seed: int = 0,
    options: Mapping[str, Any] | None = None,
    max_workers: int = 1,
) -> list[Trajectory]:
    """Play `size` episodes of one comment and first observation, in threads; member i comes i-th.

    Every member is reset with `seed`; its agent starts with the seed `(seed, i)`. Each member has
    an environment of its own, made by `make_env` and closed afterwards.

    Raises:
        GroupMismatch: the members did not start from one comment and one first observation.
    """
    if size < 1:
        raise ValueError(f"`size` is {size}; a group has 1 or more members")

    def member(i: int) -> Trajectory:
        env = make_env()
        try:
            return rollout(env, agent, seed=seed, options=options, agent_seed=(seed, i))
        finally:
            env.close()

    if max_workers == 1:
        played = [member(i) for i in range(size)]
    else:
        with ThreadPoolExecutor(max_workers) as pool:
            played = list(pool.map(member, range(size)))
    return _grouped(played, seed)


def _grouped(played: Sequence[Trajectory], seed: int) -> list[Trajectory]:
    started = [trajectory for trajectory in played if trajectory.prompts]
    for trajectory in started[1:]:
        if _start(trajectory) != _start(started[0]):
            raise GroupMismatch(
                f"members started from {started[0].room_id} {started[0].comment_ids} and"
                f" {trajectory.room_id} {trajectory.comment_ids}, or from different prompts;"
                " give `make_env` one room and one comment"
            )
    if not started:
        return list(played)
    first = started[0]
    group = f"{first.room_id}:{'+'.join(first.comment_ids)}:{seed}"
    return [trajectory.model_copy(update={"group": group}) for trajectory in played]


def _start(trajectory: Trajectory) -> tuple[Any, ...]:
    return trajectory.content_hash, trajectory.comment_ids, trajectory.prompts, trajectory.tools


def _unwrapped(env: gym.Env[Any, Any]) -> LiveRoomEnv:
    room = env.unwrapped
    if not isinstance(room, LiveRoomEnv):
        raise TypeError(f"got an environment of type `{type(room).__name__}`; pass a `LiveRoomEnv`")
    return room


def _failed_reset(env: LiveRoomEnv, seed: int | None, error: SandboxError) -> Trajectory:
    room = env.room
    return Trajectory(
        room_id=room.room_id if room is not None else "",
        content_hash=room.content_hash if room is not None else "",
        comment_ids=(),
        seed=seed,
        prompts={},
        tools={},
        status=Status.ENV_ERROR,
        stop_reason=StopReason.ENV_ERROR,
        faults=(*env.sandbox_log, TurnEvent("env_error", cause_of(error))),
    )
