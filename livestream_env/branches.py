"""Sub-agents that look things up in parallel, on forks of one episode, and are joined again."""

from __future__ import annotations

from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from typing import Any

import gymnasium as gym
import numpy as np

from livestream_env.drivers import Agent, Seed, failed_trajectory, play_on, unwrapped
from livestream_env.env import LiveRoomEnv, cause_of
from livestream_env.episode import ONE_AGENT, Episode
from livestream_env.errors import SandboxError
from livestream_env.schedule import group_name
from livestream_env.types import Action, Rewards, Score, Status, StopReason, Trajectory

HOST = ONE_AGENT[0]


def rollout_branches(
    env: gym.Env[Any, Any],
    host: Agent,
    branches: Mapping[str, Agent],
    *,
    seed: int | None = None,
    options: Mapping[str, Any] | None = None,
    agent_seed: Seed | None = None,
    max_turns: int = 2,
) -> list[Trajectory]:
    """Play one episode whose sub-agents look things up first, each on a fork of its own.

    Each sub-agent takes up to `max_turns` turns, without the others. Then its look-ups are made
    once more in the episode itself, in the order of `branches`, where they count and change the
    state as if nobody had forked, and the host, who knows them all, goes on.

    Returns the host's trajectory, then one for each sub-agent. A turn is trained where it was
    sampled: the sub-agents' are a partner's in the host's trajectory. Turns, prompts and the
    reward, which is the episode's, stand under the sub-agent's own name, and all share a group: so
    advantages, which are keyed by group and agent, stay apart.

    Raises:
        ValueError: there is no branch, one has the host's name, or `max_turns` is below 1.
    """
    if not branches or HOST in branches or max_turns < 1:
        raise ValueError(
            f"got branches {list(branches)} of {max_turns} turns; give one or more names, other"
            f" than `{HOST}`, and 1 or more turns"
        )
    room = unwrapped(env)
    try:
        env.reset(seed=seed, options=None if options is None else dict(options))
    except SandboxError as error:
        return [failed_trajectory(room, seed, cause_of(error))]
    episode, drawn = room.episode, seed if agent_seed is None else agent_seed
    episode.group = group_name(episode.view.room_id, list(episode.tasks), episode.seed)
    plays = [(room.fork(), agent, _seed_of(drawn, i)) for i, agent in enumerate(branches.values())]
    with ThreadPoolExecutor(len(plays)) as pool:
        ended = list(pool.map(lambda play: _played(*play, max_turns=max_turns), plays))
    played = dict(zip(branches, ended, strict=True))
    _join(env, episode, played)
    whole = play_on(env, host, seed=drawn)
    prompt, tools = episode.prompts[HOST], episode.tools[HOST]
    joined = whole.model_copy(
        update={
            "prompts": dict.fromkeys((HOST, *branches), prompt),
            "tools": dict.fromkeys((HOST, *branches), tools),
            "partners": tuple(branches),
        }
    )
    return [joined, *(_labelled(name, branch, joined) for name, branch in played.items())]


def _played(env: LiveRoomEnv, agent: Agent, seed: Seed | None, *, max_turns: int) -> Trajectory:
    try:
        return play_on(env, agent, seed=seed, max_turns=max_turns)
    finally:
        env.close()


def _join(env: gym.Env[Any, Any], episode: Episode, played: Mapping[str, Trajectory]) -> None:
    """Make the look-ups of the branches in the episode, under their names."""
    for name, branch in played.items():
        turns = branch.turns if branch.status is not Status.ENV_ERROR else ()
        for turn in turns:
            if not turn.results or episode.done:
                continue
            episode.agent = name
            try:
                env.step(_renumbered(turn.action))
            except SandboxError:
                return
    episode.agent = HOST


def _renumbered(action: Action) -> Action:
    """Return an action whose calls get the ids of the turn that they are made in again."""
    calls = tuple([replace(call, id="") for call in action.message.tool_calls])
    return replace(action, message=replace(action.message, tool_calls=calls))


def _labelled(name: str, branch: Trajectory, joined: Trajectory) -> Trajectory:
    """Return what a sub-agent did under its own name, with the reward of the whole episode."""
    update: dict[str, Any] = {
        "prompts": {name: branch.prompts[HOST]},
        "tools": {name: branch.tools[HOST]},
        "turns": tuple([replace(turn, agent=name, reward=None) for turn in branch.turns]),
        "rewards": _shared(name, joined),
        "partners": tuple([agent for agent in joined.prompts if agent != name]),
    }
    if branch.status is not Status.ENV_ERROR:
        stop = StopReason.TOOLS_DONE if joined.status is Status.OK else joined.stop_reason
        update |= {"status": joined.status, "stop_reason": stop}
    return branch.model_copy(update=update)


def _shared(name: str, joined: Trajectory) -> Rewards | None:
    """Return the reward of the episode as a sub-agent's own."""
    if joined.rewards is None:
        return None
    if joined.reward is not None:
        return Rewards((Score("episode", joined.reward, agent=name),))
    causes = [score.cause for score in joined.rewards.scores if score.cause is not None]
    failed = [cause for cause in causes if cause not in ("no_truth", "not_applicable")]
    return Rewards((Score("episode", None, agent=name, cause=(*failed, "no_truth")[0]),))


def _seed_of(seed: Seed | None, branch: int) -> Seed | None:
    """Return a seed of the branch's own."""
    if seed is None:
        return None
    parts = seed if isinstance(seed, tuple) else (seed,)
    return int(np.random.SeedSequence((*parts, branch)).generate_state(1)[0])
