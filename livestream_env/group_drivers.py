"""Drivers of many episodes: in threads, and in one event loop.

All take the same arguments and play the same episodes, group by group; `ray_driver` does so on a
cluster. Results come as they are there, and a slow taker holds new episodes back.
"""

from __future__ import annotations

import asyncio
import contextlib
import queue
import threading
import time
from collections.abc import AsyncGenerator, Callable, Generator, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

import gymnasium as gym

from livestream_env.drivers import (
    Agent,
    AgentOf,
    AsyncAgent,
    arollout,
    failed_trajectory,
    rollout,
    unwrapped,
)
from livestream_env.env import LiveRoomEnv
from livestream_env.errors import ResetNeeded
from livestream_env.schedule import Play, Progress, Schedule, played_groups
from livestream_env.types import Status, StopReason, Trajectory, TurnEvent

MakeEnv = Callable[[], gym.Env[Any, Any]]
_LOOK_S = 0.2
"""Longest wait for a thread at a time: on Windows, an interrupt is noticed only between waits."""


def rollouts(
    make_env: MakeEnv,
    agent: Agent | AgentOf,
    seeds: Iterable[int],
    *,
    size: int | None = None,
    options: Mapping[str, Any] | None = None,
    max_workers: int = 1,
    timeout_s: float | None = None,
    redundancy: int = 0,
    progress: Progress | None = None,
) -> Generator[list[Trajectory], None, None]:
    """Play groups of episodes in threads; yield each group as its last member ends.

    An interrupt, or leaving the loop, does not wait for the threads: they end with their next turn.

    Args:
        make_env: what makes an environment, such as `env.another`. An environment is used again
            for later groups; the members of one group share none.
        agent: one for all episodes (see `Agent.start`), or what gives the agent of a room.
        seeds: a group each; as many as there are, without end too.
        size: members of a group, which differ by the seeds of their agents, `(seed, i)`; with
            `None` each seed is played once, as `rollout` plays it, and is a list of one.
        options: of `reset`.
        max_workers: threads; with 1 and no time limit the caller's own.
        timeout_s: seconds for an episode; one that takes longer is given up, with status
            `env_error`.
        redundancy: failed episodes that are played again, in each group.
        progress: is called, in the caller's thread, with every episode that ended: also those
            that are played again, and after an interrupt those that had ended by then.

    Raises:
        GroupMismatch: the members did not start from one comment and one first observation.
        TypeError: `make_env` or `agent` is something else.
        ValueError: a number is too small, a seed is none, or an environment is given twice at once.
    """
    checked_count("max_workers", max_workers)
    check_arguments(make_env, timeout_s)
    schedule = Schedule(seeds, size=size, redundancy=redundancy)
    stage = Stage(make_env, agent, options)
    if max_workers == 1 and timeout_s is None:
        return _on_stage(stage, played_groups(schedule, _Inline(stage), progress))
    threads = Threads(stage, max_workers, timeout_s)
    return _on_stage(stage, played_groups(schedule, threads, progress))


def _on_stage(
    stage: Stage, groups: Iterator[list[Trajectory]]
) -> Generator[list[Trajectory], None, None]:
    try:
        yield from groups
    finally:
        stage.close()


def rollout_group(
    make_env: MakeEnv,
    agent: Agent | AgentOf,
    *,
    size: int = 8,
    seed: int = 0,
    options: Mapping[str, Any] | None = None,
    max_workers: int = 1,
    timeout_s: float | None = None,
    redundancy: int = 0,
    progress: Progress | None = None,
) -> list[Trajectory]:
    """Play `size` episodes of one comment and first observation, in threads; member i comes i-th.

    Every member is reset with `seed`; its agent starts with the seed `(seed, i)`. Each member has
    an environment of its own, made by `make_env` and closed afterwards. For the arguments, see
    `rollouts`.

    Raises:
        GroupMismatch: the members did not start from one comment and one first observation.
    """
    groups = rollouts(
        make_env,
        agent,
        (seed,),
        size=size,
        options=options,
        max_workers=max_workers,
        timeout_s=timeout_s,
        redundancy=redundancy,
        progress=progress,
    )
    [group] = groups
    return group


async def arollouts(
    make_env: MakeEnv,
    agent: Agent | AsyncAgent | AgentOf,
    seeds: Iterable[int],
    *,
    size: int | None = None,
    options: Mapping[str, Any] | None = None,
    concurrency: int = 64,
    timeout_s: float | None = None,
    redundancy: int = 0,
    progress: Progress | None = None,
) -> AsyncGenerator[list[Trajectory], None]:
    """Play groups of episodes in this event loop, `concurrency` of them at once, as `rollouts`.

    The time limit ends an episode that waits; an agent that does not await blocks them all. Close
    the iterator (`contextlib.aclosing`) where the loop over it may be left early.
    """
    checked_count("concurrency", concurrency)
    check_arguments(make_env, timeout_s)
    schedule = Schedule(seeds, size=size, redundancy=redundancy)
    stage = Stage(make_env, agent, options)
    tell = progress or (lambda _: None)
    running: dict[asyncio.Task[Trajectory], Play] = {}
    ended: asyncio.Queue[asyncio.Task[Trajectory]] = asyncio.Queue()
    try:
        while True:
            while len(running) < concurrency and (due := schedule.next()) is not None:
                task = asyncio.create_task(stage.aplay(due, timeout_s))
                running[task] = due
                task.add_done_callback(ended.put_nowait)
            if not running:
                return
            task = await ended.get()
            play = running.pop(task)
            tell(task.result())
            group = schedule.ended(play, task.result())
            if group is not None:
                yield group
    finally:
        for task in running:
            if not task.cancel() and not task.cancelled() and task.exception() is None:
                tell(task.result())
        await asyncio.gather(*running, return_exceptions=True)
        await stage.aclose()


async def arollout_group(
    make_env: MakeEnv,
    agent: Agent | AsyncAgent | AgentOf,
    *,
    size: int = 8,
    seed: int = 0,
    options: Mapping[str, Any] | None = None,
    concurrency: int = 64,
    timeout_s: float | None = None,
    redundancy: int = 0,
    progress: Progress | None = None,
) -> list[Trajectory]:
    """Play a group in this event loop; as `rollout_group` and `arollouts`."""
    groups = arollouts(
        make_env,
        agent,
        (seed,),
        size=size,
        options=options,
        concurrency=concurrency,
        timeout_s=timeout_s,
        redundancy=redundancy,
        progress=progress,
    )
    async with contextlib.aclosing(groups):
        [group] = [group async for group in groups]
    return group


def check_arguments(make_env: MakeEnv, timeout_s: float | None) -> None:
    """Raise `TypeError` or `ValueError` where they are nothing to play with."""
    if not callable(make_env):
        raise TypeError(f"`make_env` is {make_env!r}; pass what makes one, as `env.another`")
    if timeout_s is not None and not timeout_s > 0:
        raise ValueError(f"`timeout_s` is {timeout_s}; it is a number of seconds above 0")


def checked_count(name: str, given: int) -> None:
    """Raise `ValueError` where a number of workers is below 1."""
    if given < 1:
        raise ValueError(f"`{name}` is {given}; it is a whole number from 1")


# --- playing one -----------------------------------------------------------------------------


class Stage:
    """Plays episodes in environments that are used again, but once only within a group.

    Raises:
        TypeError: what `make_env` makes is no environment of a room.
        ValueError: it gives an environment that another episode is played in.
    """

    def __init__(self, make_env: MakeEnv, agent: Any, options: Mapping[str, Any] | None) -> None:
        self._make_env, self._agent, self._options = make_env, agent, options
        self._free: list[tuple[int, gym.Env[Any, Any]]] = []
        """Environments, with the group that each was used for."""
        self._in_use: set[int] = set()
        """Identities of the environments that episodes are played in."""
        self._lock = threading.Lock()
        self._is_closed = False

    def take(self, group: int) -> gym.Env[Any, Any]:
        """Return an environment that no other episode has, nor another of the group had."""
        env = self._free_env(group) or self._make_env()
        room = unwrapped(env)
        with self._lock:
            if id(room) in self._in_use:
                raise ValueError(
                    "`make_env` gives an environment that another episode is played in; pass what"
                    " makes a new one, as `env.another`"
                )
            self._in_use.add(id(room))
        return env

    def _free_env(self, group: int) -> gym.Env[Any, Any] | None:
        with self._lock:
            for i, (used_for, env) in enumerate(self._free):
                if used_for != group:
                    del self._free[i]
                    return env
        return None

    def arguments(self, play: Play) -> dict[str, Any]:
        """Return the arguments of `rollout` and `arollout` for an episode."""
        return {
            "agent": self._agent,
            "seed": play.seed,
            "options": self._options,
            "agent_seed": play.agent_seed,
        }

    def play(self, play: Play) -> Trajectory:
        """Play an episode."""
        env, outcome = self.take(play.group), None
        try:
            outcome = rollout(env, **self.arguments(play))
        finally:
            self.give(env, play.group, outcome)
        return outcome

    def give(self, env: gym.Env[Any, Any], group: int, outcome: object) -> None:
        """Take an environment back."""
        if not self._keeps(env, group, outcome):
            env.close()

    async def aplay(self, play: Play, timeout_s: float | None) -> Trajectory:
        """Play an episode in the running loop, and give it up where it takes too long."""
        env, outcome = self.take(play.group), None
        limit = asyncio.timeout(timeout_s)
        try:
            async with limit:
                outcome = await arollout(env, **self.arguments(play))
        except TimeoutError:
            if timeout_s is None or not limit.expired():
                raise
            return given_up(unwrapped(env), play, timeout_s)
        finally:
            if not self._keeps(env, play.group, outcome):
                await unwrapped(env).aclose()
        return outcome

    def _keeps(self, env: gym.Env[Any, Any], group: int, outcome: object) -> bool:
        """Keep the environment for another episode, unless it failed or nothing more is played."""
        is_fine = isinstance(outcome, Trajectory) and outcome.status is not Status.ENV_ERROR
        with self._lock:
            self._in_use.discard(id(unwrapped(env)))
            if is_fine and not self._is_closed:
                self._free.append((group, env))
                return True
        return False

    def close(self) -> None:
        """Close the environments; those in use are closed by whoever uses them."""
        for env in self._ended():
            env.close()

    async def aclose(self) -> None:
        """Close the environments, awaited."""
        for env in self._ended():
            await unwrapped(env).aclose()

    def _ended(self) -> list[gym.Env[Any, Any]]:
        with self._lock:
            self._is_closed = True
            free, self._free = self._free, []
        return [env for _, env in free]


def given_up(env: LiveRoomEnv | None, play: Play, timeout_s: float) -> Trajectory:
    """Return the record of an episode that took too long, and end it."""
    cause = f"the episode took longer than `timeout_s` of {timeout_s:g} s"
    try:
        episode = None if env is None else env.episode
    except ResetNeeded:
        episode = None
    if episode is None:
        return failed_trajectory(env, play.seed, cause)
    record = episode.trajectory
    episode.abort("driver")
    return record.model_copy(
        update={
            "status": Status.ENV_ERROR,
            "stop_reason": StopReason.ABORTED,
            "rewards": None,
            "faults": (*record.faults, TurnEvent("aborted", cause)),
        }
    )


# --- in threads ------------------------------------------------------------------------------


class _Inline:
    """Plays one episode at a time, in the caller's thread."""

    def __init__(self, stage: Stage) -> None:
        self._stage = stage
        self._due: Play | None = None

    def has_room(self) -> bool:
        """Return whether no episode is waiting."""
        return self._due is None

    def start(self, play: Play) -> None:
        """Keep the episode for `wait`."""
        self._due = play

    def wait(self) -> tuple[Play, Trajectory]:
        """Play the episode."""
        play, self._due = self._due, None
        assert play is not None
        return play, self._stage.play(play)

    def stop(self) -> Iterator[Trajectory]:
        """Yield nothing: what had ended was taken."""
        yield from ()


@dataclass(eq=False, slots=True)
class _Running:
    """An episode that a thread plays."""

    play: Play
    env: LiveRoomEnv | None = None
    """`None` while it is being made."""
    started_s: float = field(default_factory=time.monotonic)


class Threads:
    """Plays episodes in threads, which are daemons: nothing waits for a model that hangs.

    Whoever takes an episode out of `_running`, the thread that ended it or the caller that gave it
    up, has its result; a thread whose episode was given up ends, and another stands in for it.
    """

    def __init__(self, stage: Stage, workers: int, timeout_s: float | None) -> None:
        self._stage, self._workers, self._timeout_s = stage, workers, timeout_s
        self._todo: queue.SimpleQueue[Play | None] = queue.SimpleQueue()
        self._ended: queue.SimpleQueue[tuple[Play, Trajectory | BaseException]] = (
            queue.SimpleQueue()
        )
        self._running: dict[Play, _Running] = {}
        self._threads = self._taken_on = 0

    def has_room(self) -> bool:
        """Return whether another episode may be started: one each waits, so that none is idle."""
        return self._taken_on < 2 * self._workers

    def start(self, play: Play) -> None:
        """Hand an episode to the threads."""
        self._taken_on += 1
        self._todo.put(play)
        if self._threads < min(self._workers, self._taken_on):
            self._start_thread()

    def _start_thread(self) -> None:
        self._threads += 1
        threading.Thread(target=self._work, daemon=True, name="livestream_env rollout").start()

    def _work(self) -> None:
        while (play := self._todo.get()) is not None:
            running = self._running[play] = _Running(play)
            outcome: Trajectory | BaseException
            env = None
            try:
                env = self._stage.take(play.group)
                running.env = unwrapped(env)
                outcome = rollout(env, **self._stage.arguments(play))
            except BaseException as error:
                outcome = error
            is_wanted = self._running.pop(play, None) is not None
            if env is not None:
                self._stage.give(env, play.group, outcome if is_wanted else None)
            if not is_wanted:
                return
            self._ended.put((play, outcome))

    def wait(self) -> tuple[Play, Trajectory]:
        """Return an episode that ended or was given up."""
        while True:
            late = self._late()
            if late is not None:
                break
            with contextlib.suppress(queue.Empty):
                play, outcome = self._ended.get(timeout=self._patience_s())
                self._taken_on -= 1
                if isinstance(outcome, BaseException):
                    raise outcome
                return play, outcome
        self._taken_on -= 1
        self._threads -= 1
        self._start_thread()
        assert self._timeout_s is not None
        return late.play, given_up(late.env, late.play, self._timeout_s)

    def _patience_s(self) -> float:
        if self._timeout_s is None or not self._running:
            return _LOOK_S
        first = min((one.started_s for one in list(self._running.values())), default=0.0)
        return min(_LOOK_S, max(0.0, first + self._timeout_s - time.monotonic()))

    def _late(self) -> _Running | None:
        """Take an episode out whose time is up."""
        if self._timeout_s is None:
            return None
        latest = time.monotonic() - self._timeout_s
        for one in list(self._running.values()):
            if one.started_s < latest and self._running.pop(one.play, None) is not None:
                return one
        return None

    def stop(self) -> Iterator[Trajectory]:
        """Yield what had ended; what is being played ends with its next turn."""
        with contextlib.suppress(queue.Empty):
            while True:
                self._todo.get_nowait()
        for _ in range(self._threads):
            self._todo.put(None)
        for one in list(self._running.values()):
            with contextlib.suppress(ResetNeeded):
                if one.env is not None:
                    one.env.episode.abort("driver")
        with contextlib.suppress(queue.Empty):
            while True:
                _, outcome = self._ended.get_nowait()
                if not isinstance(outcome, BaseException):
                    yield outcome
