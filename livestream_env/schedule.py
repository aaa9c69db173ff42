"""Which episodes are due and which groups are complete: what all drivers of many episodes share.

The rules are without I/O. A driver starts what is due, in threads, in an event loop or on a
cluster, and tells what ended; so all of them play the same episodes with the same seeds.
"""

from __future__ import annotations

import operator
from collections import deque
from collections.abc import Callable, Generator, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any, Protocol, SupportsIndex

from livestream_env.drivers import Seed
from livestream_env.errors import GroupMismatch
from livestream_env.types import Status, Trajectory

Progress = Callable[[Trajectory], object]


@dataclass(frozen=True, slots=True)
class Play:
    """One episode to be played."""

    group: int
    """Number of its group in the run."""
    member: int
    """Its place in the group."""
    seed: int
    """Of the environment."""
    agent_seed: Seed


@dataclass(slots=True)
class _Group:
    """A group that is being played."""

    seed: int
    members: list[Trajectory | None]
    missing: int
    spare: int
    """Failed episodes that may still be played again."""


class Schedule:
    """The episodes of a run: the groups of `seeds`, in order, `size` members each.

    With `size=None` each seed is played once, as `rollout` plays it, and is a group of one.
    An episode that infrastructure failed, or that took too long, is played again, up to
    `redundancy` times a group; then the failure stays. The agent of member i has the seed
    `(seed, i)`, then `(seed, i + size)` and so on, so that it need not do the same again.

    Raises:
        ValueError: `size` or `redundancy` is too small.
    """

    def __init__(self, seeds: Iterable[int], *, size: int | None, redundancy: int) -> None:
        if size is not None and size < 1:
            raise ValueError(f"`size` is {size}; a group has 1 or more members")
        if redundancy < 0:
            raise ValueError(f"`redundancy` is {redundancy}; it is a number of episodes from 0")
        self._seeds = iter(seeds)
        self._size, self._redundancy = size, redundancy
        self._due: deque[Play] = deque()
        self._groups: dict[int, _Group] = {}
        self._opened = 0

    def next(self) -> Play | None:
        """Return the episode to be started next; `None` where none is due."""
        if not self._due:
            try:
                seed = next(self._seeds)
            except StopIteration:
                return None
            self._open(_checked_seed(seed))
        return self._due.popleft()

    def _open(self, seed: int) -> None:
        size, number = self._size or 1, self._opened
        self._opened += 1
        self._groups[number] = _Group(seed, [None] * size, size, self._redundancy)
        for i in range(size):
            self._due.append(Play(number, i, seed, seed if self._size is None else (seed, i)))

    def ended(self, play: Play, trajectory: Trajectory) -> list[Trajectory] | None:
        """Take what was played; return its group, in the order of its members, once complete.

        Raises:
            GroupMismatch: the members did not start from one comment and one first observation.
        """
        group = self._groups[play.group]
        if trajectory.status is Status.ENV_ERROR and group.spare:
            group.spare -= 1
            drawn = play.agent_seed[1] if isinstance(play.agent_seed, tuple) else play.member
            again = (play.seed, drawn + len(group.members))
            self._due.appendleft(replace(play, agent_seed=again))
            return None
        group.members[play.member] = trajectory
        group.missing -= 1
        if group.missing:
            return None
        del self._groups[play.group]
        members = [member for member in group.members if member is not None]
        return members if self._size is None else grouped(members, group.seed)


def _checked_seed(given: SupportsIndex) -> int:
    """Return a seed as a Python integer, as Gymnasium takes it.

    Raises:
        ValueError: it is no whole number from 0.
    """
    seed = operator.index(given) if hasattr(given, "__index__") else -1
    if seed < 0:
        raise ValueError(f"`seeds` holds {given!r}; a seed is a whole number from 0")
    return seed


def grouped(members: Sequence[Trajectory], seed: int) -> list[Trajectory]:
    """Return the members with the name of their group, which those whose reset failed share.

    Raises:
        GroupMismatch: they did not start from one comment and one first observation.
    """
    started = [trajectory for trajectory in members if trajectory.prompts]
    for trajectory in started[1:]:
        if _start(trajectory) != _start(started[0]):
            raise GroupMismatch(
                f"members started from {started[0].room_id} {started[0].comment_ids} and"
                f" {trajectory.room_id} {trajectory.comment_ids}, or from different prompts;"
                " give `make_env` one room and one comment"
            )
    if not started:
        return list(members)
    group = started[0].group or group_name(started[0].room_id, started[0].comment_ids, seed)
    return [trajectory.model_copy(update={"group": group}) for trajectory in members]


def group_name(room_id: str, comment_ids: Sequence[str], seed: int | None) -> str:
    """Return the name of the group of what was played on these comments with this seed."""
    return f"{room_id}:{'+'.join(comment_ids)}:{seed}"


def _start(trajectory: Trajectory) -> tuple[Any, ...]:
    of_room = trajectory.content_hash, trajectory.comment_ids, trajectory.group
    return *of_room, trajectory.prompts, trajectory.tools


class Runner(Protocol):
    """What plays episodes, several at a time."""

    def has_room(self) -> bool:
        """Return whether another episode may be started."""
        ...

    def start(self, play: Play) -> None:
        """Start an episode."""
        ...

    def wait(self) -> tuple[Play, Trajectory]:
        """Return an episode that ended; raises what its agent raised."""
        ...

    def stop(self) -> Iterator[Trajectory]:
        """Start nothing more, yield what had ended by then, and leave the rest."""
        ...


def played_groups(
    schedule: Schedule, runner: Runner, progress: Progress | None
) -> Generator[list[Trajectory], None, None]:
    """Yield each group when its last member has ended.

    `progress` is told every episode, also those that are played again, and whatever ends the run
    early, what had ended by then.
    """
    tell = progress or (lambda _: None)
    running = 0
    try:
        while True:
            while runner.has_room() and (due := schedule.next()) is not None:
                runner.start(due)
                running += 1
            if not running:
                return
            play, trajectory = runner.wait()
            running -= 1
            tell(trajectory)
            group = schedule.ended(play, trajectory)
            if group is not None:
                yield group
    finally:
        for trajectory in runner.stop():
            tell(trajectory)
