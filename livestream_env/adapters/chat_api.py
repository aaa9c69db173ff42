"""One episode for trainers that hand over the URL of a model and record what goes through it."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import gymnasium as gym

from livestream_env.chat import ChatClient
from livestream_env.chat_agent import AsyncChatAgent, ChatAgent
from livestream_env.drivers import arollout, rollout
from livestream_env.types import Trajectory


def _told(extra_body: Mapping[str, Any] | None, token_ids: bool) -> dict[str, Any]:
    """Return the arguments of an agent; members of a group share a seed, and sample their own."""
    return {
        "extra_body": extra_body,
        "token_ids": token_ids,
        "append_only": True,
        "send_seed": False,
    }


def _alone(agent: Any) -> Any:
    return agent


def run_episode(
    base_url: str | ChatClient,
    model: str | None,
    env: gym.Env[Any, Any],
    *,
    seed: int | None = None,
    options: Mapping[str, Any] | None = None,
    extra_body: Mapping[str, Any] | None = None,
    token_ids: bool = False,
    seated: Callable[[Any], Any] = _alone,
) -> Trajectory:
    """Play one episode, each request the last one and more, and return its trajectory.

    `seed` and `options` go to `reset`, `extra_body` into each request, which has no seed: members
    of a group differ by what is sampled. `seated` makes who plays of the agent, such as a team. The
    rest is as of `ChatAgent`. Never raises for infrastructure: the trajectory then has status
    `env_error`.
    """
    agent = ChatAgent(base_url, model, **_told(extra_body, token_ids))
    try:
        return rollout(env, seated(agent), seed=seed, options=options)
    finally:
        if agent.client is not base_url:
            agent.close()


async def arun_episode(
    base_url: str | ChatClient,
    model: str | None,
    env: gym.Env[Any, Any],
    *,
    seed: int | None = None,
    options: Mapping[str, Any] | None = None,
    extra_body: Mapping[str, Any] | None = None,
    token_ids: bool = False,
    seated: Callable[[Any], Any] = _alone,
) -> Trajectory:
    """Play one episode, awaited; otherwise as `run_episode`."""
    agent = AsyncChatAgent(base_url, model, **_told(extra_body, token_ids))
    try:
        return await arollout(env, seated(agent), seed=seed, options=options)
    finally:
        if agent.client is not base_url:
            agent.close()
