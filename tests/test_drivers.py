"""Rollouts: one, groups in threads, async; whose failure is whose."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Any

import gymnasium as gym
import pytest
from gymnasium.wrappers import RecordEpisodeStatistics
from rooms_for_tests import small_room
from test_env import Failing, failing_env, small_env

import livestream_env as le
from livestream_env.drivers import AsyncAgent
from livestream_env.errors import GroupMismatch, SandboxError
from livestream_env.types import Action, Message, Observation, ToolCall, ToolResult, ToolSpec

RULE = Action.call("get_reply_rule", intent="物流")
LOOK_UP = Action.call("search_faq", query="发货")


class Listed:
    """An agent that plays a list of actions and keeps what it was told."""

    def __init__(self, *actions: Any) -> None:
        self.actions = actions
        self.told: list[list[Message]] = []

    def act(self, messages: Sequence[Message], tools: Sequence[ToolSpec]) -> Any:
        self.told.append(list(messages))
        return self.actions[len(self.told) - 1]


def test_a_rollout_gives_the_agent_the_whole_conversation() -> None:
    agent = Listed(LOOK_UP, '<tool_call>{"name": "get_reply_rule"', RULE, "好的")
    trajectory = le.rollout(small_env(), agent, seed=0)
    assert trajectory.stop_reason == "replied"
    assert [len(told) for told in agent.told] == [2, 4, 6, 8]
    assert tuple(agent.told[-1]) == trajectory.messages[:-1]


def test_a_rollout_steps_through_wrappers() -> None:
    env = RecordEpisodeStatistics(gym.make("LiveRoom-v0", room=small_room(), embedder="lexical"))
    le.rollout(env, Listed(RULE, "好的"), seed=0)
    assert list(env.length_queue) == [2]


def test_a_rollout_never_raises_for_infrastructure() -> None:
    trajectory = le.rollout(failing_env(1), Listed(LOOK_UP, RULE), seed=0)
    assert (trajectory.status, trajectory.stop_reason) == ("env_error", "env_error")
    assert trajectory.faults[0].detail == "the server is down"
    assert len(trajectory.turns) == 2
    truncating = failing_env(0, on_env_error="truncate")
    assert le.rollout(truncating, Listed(LOOK_UP), seed=0).status == "env_error"


def test_a_failed_reset_is_a_trajectory_too() -> None:
    trajectory = le.rollout(failing_env(-1), Listed(), seed=4)
    assert trajectory.status == "env_error"
    assert (trajectory.turns, trajectory.messages, trajectory.seed) == ((), (), 4)
    assert (trajectory.room_id, trajectory.rewards) == ("small", None)
    assert le.Trajectory.model_validate_json(trajectory.model_dump_json()) == trajectory


def test_an_agents_own_exception_is_raised_and_the_episode_aborted() -> None:
    env = small_env()
    with pytest.raises(IndexError):
        le.rollout(env, Listed(LOOK_UP), seed=0)
    assert env.trajectory.stop_reason == "aborted"


def test_an_agent_that_keeps_state_is_started_for_each_episode() -> None:
    started: list[Any] = []

    class Starting(Listed):
        def start(self, observation: Observation, *, seed: Any) -> Listed:
            started.append((observation.comments[0].comment_id, seed))
            return Listed(RULE, "好的")

    agent = Starting()
    le.rollout(small_env(), agent, seed=0)
    le.rollout(small_env(), agent, seed=2, agent_seed=(2, 7))
    assert started == [("c1", 0), ("c3", (2, 7))]
    assert agent.told == []


def test_another_environment_is_refused() -> None:
    with pytest.raises(TypeError, match="LiveRoomEnv"):
        le.rollout(gym.make("CartPole-v1"), Listed(), seed=0)


@pytest.mark.parametrize("workers", [1, 4])
def test_a_group_shares_comment_and_first_observation(workers: int) -> None:
    started: list[Any] = []

    class Starting(Listed):
        def start(self, observation: Observation, *, seed: Any) -> Listed:
            started.append(seed)
            return Listed(RULE, f"好的{seed[1]}")

    group = le.rollout_group(small_env, Starting(), size=6, seed=5, max_workers=workers)
    assert [trajectory.reply for trajectory in group] == [f"好的{i}" for i in range(6)]
    assert sorted(started) == [(5, i) for i in range(6)]
    assert {trajectory.group for trajectory in group} == {"small:c3:5"}
    assert len({trajectory.prompts["host"] for trajectory in group}) == 1


def test_members_that_start_apart_are_a_mismatch() -> None:
    rooms = iter([small_room(), small_room(title="别的店"), small_room()])
    with pytest.raises(GroupMismatch, match="one room and one comment"):
        le.rollout_group(
            lambda: le.LiveRoomEnv(next(rooms), embedder="lexical"),
            Starter(),
            size=3,
            seed=0,
        )


class Starter:
    """A started agent that looks the rule up and replies."""

    def start(self, observation: Observation, *, seed: Any) -> Listed:
        return Listed(RULE, "好的")

    def act(self, messages: Sequence[Message], tools: Sequence[ToolSpec]) -> Any:
        raise AssertionError("only started agents act")


def test_failed_members_stay_in_their_place() -> None:
    envs = iter([small_env(), failing_env(-1), failing_env(0), small_env()])
    group = le.rollout_group(lambda: next(envs), Starter(), size=4, seed=0)
    assert [str(trajectory.status) for trajectory in group] == [
        "ok",
        "env_error",
        "env_error",
        "ok",
    ]
    assert {trajectory.group for trajectory in group} == {"small:c1:0"}
    lost = le.rollout_group(lambda: failing_env(-1), Starter(), size=2, seed=0)
    assert [trajectory.group for trajectory in lost] == [None, None]


def test_a_group_has_members() -> None:
    with pytest.raises(ValueError, match="1 or more"):
        le.rollout_group(small_env, Starter(), size=0)


class AsyncListed(Listed):
    async def act(self, messages: Sequence[Message], tools: Sequence[ToolSpec]) -> Any:  # type: ignore[override]
        await asyncio.sleep(0)
        return super().act(messages, tools)


class AsyncSandbox(Failing):
    async def call(self, call: ToolCall) -> ToolResult:  # type: ignore[override]
        await asyncio.sleep(0)
        return super().call(call)


def test_an_async_rollout_gives_the_same_transcript() -> None:
    actions = (LOOK_UP, Action.call("move_product", link_no=3, position=1), RULE, "好的")
    plain = le.rollout(small_env(), Listed(*actions), seed=0)
    agent: AsyncAgent = AsyncListed(*actions)
    awaited = asyncio.run(le.arollout(small_env(), agent, seed=0))
    env = le.LiveRoomEnv(small_room(), sandbox=AsyncSandbox)
    through = asyncio.run(le.arollout(env, AsyncListed(*actions), seed=0))
    sync = asyncio.run(le.arollout(small_env(), Listed(*actions), seed=0))
    assert plain.messages == awaited.messages == through.messages == sync.messages
    assert plain.state == awaited.state == through.state


def test_an_async_rollout_marks_infrastructure_and_raises_the_agents_faults() -> None:
    for calls in (-1, 0, 1):
        env = le.LiveRoomEnv(
            small_room(), sandbox=lambda room, calls=calls: AsyncSandbox(room, calls=calls)
        )
        trajectory = asyncio.run(le.arollout(env, AsyncListed(LOOK_UP, RULE, "好的"), seed=0))
        assert trajectory.status == "env_error"
    with pytest.raises(IndexError):
        asyncio.run(le.arollout(small_env(), AsyncListed(), seed=0))


def test_an_async_tool_that_fails_in_its_own_way_is_infrastructure() -> None:
    class Late(AsyncSandbox):
        async def call(self, call: ToolCall) -> ToolResult:  # type: ignore[override]
            raise TimeoutError("too late")

    env = le.LiveRoomEnv(small_room(), sandbox=Late)
    trajectory = asyncio.run(le.arollout(env, AsyncListed(LOOK_UP), seed=0))
    assert "too late" in trajectory.faults[0].detail


def test_many_async_episodes_run_in_one_loop() -> None:
    async def play() -> list[le.Trajectory]:
        made = [
            le.arollout(small_env(), AsyncListed(LOOK_UP, RULE, "好的"), seed=seed)
            for seed in range(50)
        ]
        return list(await asyncio.gather(*made))

    played = asyncio.run(play())
    serial = [le.rollout(small_env(), Listed(LOOK_UP, RULE, "好的"), seed=s) for s in range(50)]
    assert [t.messages for t in played] == [t.messages for t in serial]


def test_sandbox_errors_are_the_only_ones_a_rollout_swallows() -> None:
    assert issubclass(SandboxError, RuntimeError)
    with pytest.raises(TypeError, match="pass an `Action`"):
        le.rollout(small_env(), Listed(3), seed=0)


def test_a_wrappers_truncation_ends_the_rollout() -> None:
    env = gym.make("LiveRoom-v0", room=small_room(), embedder="lexical", max_episode_steps=1)
    trajectory = le.rollout(env, Listed(LOOK_UP, RULE, "好的"), seed=0)
    assert (trajectory.stop_reason, trajectory.status) == ("turn_limit", "policy_truncated")
    assert len(trajectory.turns) == 1


def test_an_async_agent_is_sent_to_arollout() -> None:
    agent: Any = AsyncListed(LOOK_UP)
    with pytest.warns(RuntimeWarning), pytest.raises(TypeError, match="use `arollout`"):
        le.rollout(small_env(), agent, seed=0)
