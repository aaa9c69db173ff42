"""Many episodes in threads and in one event loop: the same ones, none lost, whatever fails."""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import numpy as np
import pytest
from rooms_for_tests import small_room
from servers_for_tests import running
from test_env import Failing, small_env

import livestream_env as le
from livestream_env.env import transcript
from livestream_env.sandbox import LocalSandbox, create_app
from livestream_env.types import Action, Message, Observation, RoomView, ToolSpec

RULE = Action.call("get_reply_rule", intent="物流")


class Host:
    """Looks the rule up and replies with its seed."""

    def start(self, observation: Observation, *, seed: Any) -> Host:
        made = type(self).__new__(type(self))
        made.__dict__ = {**self.__dict__, "seed": seed}
        return made

    def act(self, messages: Sequence[Message], tools: Sequence[ToolSpec]) -> Any:
        return RULE if messages[-1].role == "user" else Action.reply(f"好的{self.seed}")


def in_one(make_env: Any, agent: Any, seeds: Any, **options: Any) -> list[list[le.Trajectory]]:
    return list(le.rollouts(make_env, agent, seeds, **options))


def in_threads(make_env: Any, agent: Any, seeds: Any, **options: Any) -> list[list[le.Trajectory]]:
    return list(le.rollouts(make_env, agent, seeds, max_workers=3, **options))


def in_a_loop(make_env: Any, agent: Any, seeds: Any, **options: Any) -> list[list[le.Trajectory]]:
    async def play() -> list[list[le.Trajectory]]:
        groups = le.arollouts(make_env, agent, seeds, concurrency=3, **options)
        async with contextlib.aclosing(groups):
            return [group async for group in groups]

    return asyncio.run(play())


Driver = Callable[..., list[list[le.Trajectory]]]
every_driver = pytest.mark.parametrize("drive", [in_one, in_threads, in_a_loop])


def told(trajectory: le.Trajectory) -> tuple[Any, ...]:
    return trajectory.seed, trajectory.messages, trajectory.stop_reason, trajectory.rewards


@every_driver
@pytest.mark.row("R37")
def test_each_seed_is_played_as_rollout_plays_it(drive: Driver) -> None:
    env = small_env()
    groups = drive(env.another, le.RandomAgent(), range(20))
    assert [len(group) for group in groups] == [1] * 20
    played = sorted((group[0] for group in groups), key=lambda one: one.seed or 0)
    plain = [le.rollout(env, le.RandomAgent(), seed=seed) for seed in range(20)]
    assert [told(one) for one in played] == [told(one) for one in plain]
    assert {one.group for one in played} == {None}


@every_driver
@pytest.mark.row("R37")
def test_groups_come_whole_and_in_the_order_of_their_members(drive: Driver) -> None:
    groups = drive(small_env().another, Host(), [4, 1, 4], size=3)
    assert sorted(group[0].group or "" for group in groups) == ["small:c2:1"] + ["small:c2:4"] * 2
    for group in groups:
        seed = group[0].seed
        assert [member.reply for member in group] == [f"好的{(seed, i)}" for i in range(3)]


@every_driver
def test_an_agent_can_be_made_for_each_room(drive: Driver) -> None:
    env = le.LiveRoomEnv("bundled:train", embedder="lexical", rubric=None)
    seeds = (0, env.tasks - 1)
    played = {group[0].seed: group[0] for group in drive(env.another, le.ScriptedAgent, seeds)}
    assert len({one.room_id for one in played.values()}) == 2
    for seed in seeds:
        env.reset(seed=seed)
        assert env.room is not None
        plain = le.rollout(env, le.ScriptedAgent(env.room), seed=seed)
        assert told(played[seed]) == told(plain)


@every_driver
def test_environments_are_used_again_and_closed(drive: Driver) -> None:
    made: list[Counted] = []

    class Counted(le.LiveRoomEnv):
        closed = 0

        def __init__(self) -> None:
            super().__init__(small_room(), embedder="lexical")
            made.append(self)

        def close(self) -> None:
            self.closed += 1
            super().close()

        async def aclose(self) -> None:
            self.closed += 1
            await super().aclose()

    assert len(drive(Counted, Host(), range(30))) == 30
    assert 1 <= len(made) <= 3
    assert [env.closed for env in made] == [1] * len(made)


# --- failures --------------------------------------------------------------------------------


def failing_first(count: int) -> Callable[[], le.LiveRoomEnv]:
    """Return what makes `count` environments without a server, then sound ones."""
    failing = itertools.chain([-1] * count, itertools.repeat(10**9))
    lock = threading.Lock()

    def make() -> le.LiveRoomEnv:
        with lock:
            calls = next(failing)
        return le.LiveRoomEnv(small_room(), sandbox=lambda room: Failing(room, calls=calls))

    return make


@every_driver
@pytest.mark.row("R37")
def test_failed_episodes_are_replaced_up_to_a_bound(drive: Driver) -> None:
    ended: list[le.Trajectory] = []
    [group] = drive(failing_first(2), Host(), [0], size=4, redundancy=2, progress=ended.append)
    assert [str(member.status) for member in group] == ["ok"] * 4
    drawn = [eval((member.reply or "").removeprefix("好的"))[1] for member in group]
    assert [number % 4 for number in drawn] == [0, 1, 2, 3]
    assert sum(number // 4 for number in drawn) == 2
    assert sorted(str(one.status) for one in ended) == ["env_error"] * 2 + ["ok"] * 4
    [group] = drive(failing_first(3), Host(), [0], size=4, redundancy=2)
    assert sorted(str(member.status) for member in group) == ["env_error"] + ["ok"] * 3
    assert {member.group for member in group} == {"small:c1:0"}


@every_driver
def test_an_agents_own_exception_is_raised_and_what_had_ended_is_told(drive: Driver) -> None:
    class Broken(Host):
        def act(self, messages: Sequence[Message], tools: Sequence[ToolSpec]) -> Any:
            if self.seed == 5:
                raise IndexError("no more lines")
            return super().act(messages, tools)

    ended: list[le.Trajectory] = []
    with pytest.raises(IndexError, match="no more lines"):
        drive(small_env().another, Broken(), range(50), progress=ended.append)
    assert {0, 1, 2} <= {one.seed for one in ended}
    assert 5 not in {one.seed for one in ended}
    assert len(ended) < 20


class Waiting(Host):
    """A host that waits for `released` before its reply at one seed."""

    def __init__(self, at: int) -> None:
        self.at, self.released = at, threading.Event()
        self.left: list[int] = []

    def act(self, messages: Sequence[Message], tools: Sequence[ToolSpec]) -> Any:
        if self.seed == self.at and messages[-1].role == "tool":
            assert self.released.wait(30)
            self.left.append(self.at)
        return super().act(messages, tools)


class AsyncWaiting(Waiting):
    async def act(self, messages: Sequence[Message], tools: Sequence[ToolSpec]) -> Any:
        if self.seed == self.at and messages[-1].role == "tool":
            await asyncio.sleep(30)
        return Host.act(self, messages, tools)


@pytest.mark.parametrize(
    ("drive", "agent"),
    [
        pytest.param(in_one, Waiting(2), id="one"),
        pytest.param(in_threads, Waiting(2), id="threads"),
        pytest.param(in_a_loop, AsyncWaiting(2), id="loop"),
    ],
)
def test_an_episode_that_takes_too_long_is_given_up(drive: Driver, agent: Waiting) -> None:
    groups = drive(small_env().another, agent, range(6), timeout_s=1.0)
    agent.released.set()
    by_seed = {group[0].seed: group[0] for group in groups}
    assert [seed for seed in range(6) if by_seed[seed].status != "ok"] == [2]
    late = by_seed[2]
    assert (late.status, late.stop_reason, late.rewards) == ("env_error", "aborted", None)
    assert [turn.action.message.tool_calls[0].name for turn in late.turns] == ["get_reply_rule"]
    assert late.faults[-1].detail == "the episode took longer than `timeout_s` of 1 s"


def test_an_episode_that_was_given_up_is_played_again() -> None:
    class Once(Waiting):
        def start(self, observation: Observation, *, seed: Any) -> Host:
            made = super().start(observation, seed=seed)
            made.seed = seed if seed == self.at else -1
            return made

    agent = Once(2)
    [[played]] = in_threads(small_env().another, agent, [2], timeout_s=3.0, redundancy=1)
    agent.released.set()
    assert (played.status, played.seed) == ("ok", 2)


def test_a_sandbox_that_never_opens_is_given_up_too() -> None:
    opened = threading.Event()

    class Closed(Failing):
        def reset(self, *, seed: int, comments: Sequence[str]) -> RoomView:
            assert opened.wait(30)
            return super().reset(seed=seed, comments=comments)

    env = le.LiveRoomEnv(small_room(), sandbox=Closed)
    [[played]] = in_threads(env.another, Host(), [0], timeout_s=0.3)
    opened.set()
    assert (played.status, played.turns, played.room_id) == ("env_error", (), "small")


@pytest.mark.parametrize("in_loop", [False, True], ids=["threads", "loop"])
def test_an_interrupt_loses_no_episode_that_had_ended(in_loop: bool) -> None:
    ended: list[le.Trajectory] = []
    replied: list[Any] = []

    class Noting(Host):
        def act(self, messages: Sequence[Message], tools: Sequence[ToolSpec]) -> Any:
            if messages[-1].role == "tool":
                replied.append(self.seed)
            return super().act(messages, tools)

    def interrupted(trajectory: le.Trajectory) -> None:
        ended.append(trajectory)
        if len(ended) == 10:
            while not in_loop and len(replied) < 15:
                time.sleep(0.01)
            time.sleep(0.2)
            raise KeyboardInterrupt

    drive = in_a_loop if in_loop else in_threads
    with pytest.raises(KeyboardInterrupt):
        drive(small_env().another, Noting(), range(1000), progress=interrupted)
    assert sorted(one.seed or 0 for one in ended) == sorted(replied)
    assert len(replied) < 100


def test_a_slow_taker_holds_new_episodes_back() -> None:
    taken: list[int] = []

    def seeds() -> Iterator[int]:
        for seed in itertools.count():
            taken.append(seed)
            yield seed

    groups = le.rollouts(small_env().another, Host(), seeds(), max_workers=3)
    for _ in range(5):
        next(groups)
    time.sleep(0.2)
    assert len(taken) <= 5 + 2 * 3
    groups.close()
    assert threads_of_rollouts() == 0


def threads_of_rollouts() -> int:
    deadline = time.monotonic() + 10
    while time.monotonic() < deadline:
        left = [one for one in threading.enumerate() if one.name == "livestream_env rollout"]
        if not left:
            return 0
        time.sleep(0.02)
    return len(left)


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"size": 0}, "1 or more members"),
        ({"redundancy": -1}, "from 0"),
        ({"max_workers": 0}, "`max_workers` is 0"),
    ],
)
def test_numbers_that_are_too_small_are_refused_at_once(options: Any, said: str) -> None:
    with pytest.raises(ValueError, match=said):
        le.rollouts(small_env, Host(), [0], **options)


@every_driver
@pytest.mark.parametrize(
    ("given", "kind", "said"),
    [
        ({"timeout_s": 0}, ValueError, "`timeout_s` is 0; it is a number of seconds above 0"),
        ({"timeout_s": float("nan")}, ValueError, "`timeout_s` is nan"),
        ({"seeds": [3, None]}, ValueError, "`seeds` holds None; a seed is a whole number from 0"),
        ({"seeds": [-1]}, ValueError, "`seeds` holds -1"),
        ({"seeds": ["7"]}, ValueError, "`seeds` holds '7'"),
        ({"make_env": 3}, TypeError, "`make_env` is 3; pass what makes one, as `env.another`"),
        ({"make_env": lambda: None}, TypeError, "type `NoneType`; pass a `LiveRoomEnv`"),
        ({"agent": "chat:http://a/v1#m"}, TypeError, "`agent` is 'chat:http://a/v1#m'; an agent"),
        ({"agent": None}, TypeError, r"an agent has `act\(messages, tools\)`"),
        ({"agent": lambda room: room}, TypeError, "for a room; an agent has"),
    ],
)
def test_what_cannot_be_played_with_is_named(
    drive: Driver, given: Any, kind: type[Exception], said: str
) -> None:
    options = {"make_env": small_env().another, "agent": Host(), "seeds": [1], **given}
    with pytest.raises(kind, match=said):
        drive(**options)


@every_driver
def test_seeds_may_be_numpys(drive: Driver) -> None:
    [[one]] = drive(small_env().another, Host(), np.arange(3, 4))
    assert (type(one.seed), one.seed) == (int, 3)


@pytest.mark.parametrize("drive", [in_threads, in_a_loop])
def test_one_environment_is_not_lent_to_two_episodes_at_once(drive: Driver) -> None:
    env = small_env()
    agent = Waiting(1) if drive is in_threads else AsyncWaiting(1)
    with pytest.raises(ValueError, match="another episode is played in; pass what makes a new one"):
        drive(lambda: env, agent, itertools.count(1))
    agent.released.set()
    assert [group[0].seed for group in in_one(lambda: env, Host(), [1, 2])] == [1, 2]


def test_a_group_is_also_played_in_a_loop() -> None:
    group = asyncio.run(le.arollout_group(small_env, Host(), size=4, seed=1))
    plain = le.rollout_group(small_env, Host(), size=4, seed=1)
    assert [told(one) for one in group] == [told(one) for one in plain]


# --- over HTTP -------------------------------------------------------------------------------


@pytest.mark.row("R37")
def test_many_episodes_at_once_over_http_are_those_of_one_thread() -> None:
    plain = small_env(rubric=None)
    with running(create_app([small_room()])) as url:
        env = small_env(
            rubric=None, sandbox=url, sandbox_options={"total_timeout_s": 240, "timeout_s": 60}
        )

        async def play() -> list[le.Trajectory]:
            groups = le.arollouts(env.another, le.WorkflowAgent(), range(60), concurrency=60)
            async with contextlib.aclosing(groups):
                return [member async for group in groups for member in group]

        played = sorted(asyncio.run(play()), key=lambda one: one.seed or 0)
    assert [one.seed for one in played] == list(range(60))
    for one in played:
        seed = one.seed
        assert transcript(one) == transcript(le.rollout(plain, le.WorkflowAgent(), seed=seed))


def test_a_slow_reset_over_http_does_not_hold_the_loop_up() -> None:
    opening: list[int] = []
    most: list[int] = []

    class Slow(LocalSandbox):
        def reset(self, *, seed: int, comments: Sequence[str]) -> RoomView:
            opening.append(seed)
            most.append(len(opening))
            time.sleep(0.3)
            opening.remove(seed)
            return super().reset(seed=seed, comments=comments)

    def factory(room: le.Room | None, origin: Any) -> Slow:
        return Slow(room or small_room(), embedder="lexical")

    with running(create_app(factory=factory)) as url:
        env = small_env(rubric=None, sandbox=url, sandbox_options={"timeout_s": 60})

        async def play() -> list[le.Trajectory]:
            return await le.arollout_group(env.another, Host(), size=8)

        assert [str(one.status) for one in asyncio.run(play())] == ["ok"] * 8
    assert max(most) >= 3
