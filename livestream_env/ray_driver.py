"""The driver of many episodes on a Ray cluster, of one machine or many.

What plays - environments with their rooms, the agent - goes into the object store once, and each
worker process reads it once. An episode whose worker dies is played again by another; for the same
seeds the trajectories are those of `rollouts`.
"""

from __future__ import annotations

import os
from collections.abc import Generator, Iterable, Iterator, Mapping
from typing import Any

from livestream_env.drivers import Agent, AgentOf, failed_trajectory
from livestream_env.errors import missing_dependency
from livestream_env.group_drivers import (
    MakeEnv,
    Stage,
    Threads,
    check_arguments,
    checked_count,
)
from livestream_env.schedule import Play, Progress, Schedule, played_groups
from livestream_env.types import Trajectory


def ray_rollouts(
    make_env: MakeEnv,
    agent: Agent | AgentOf,
    seeds: Iterable[int],
    *,
    size: int | None = None,
    options: Mapping[str, Any] | None = None,
    max_workers: int | None = None,
    timeout_s: float | None = None,
    redundancy: int = 0,
    progress: Progress | None = None,
    num_cpus: float = 1.0,
    retries: int = 3,
) -> Generator[list[Trajectory], None, None]:
    """Play groups of episodes as Ray tasks; yield each group as its last member ends.

    Takes the arguments of `rollouts`; `make_env` and `agent` are pickled, by reference where they
    belong to an importable module. Uses the cluster that `ray.init` joined, else that of
    `RAY_ADDRESS`, else a local one.

    Args:
        max_workers: episodes at once; by default what the CPUs allow.
        num_cpus: CPUs that Ray sets aside for an episode: less than 1 where it mostly waits.
        retries: times that an episode whose worker died is played again; then it is `env_error`.

    Raises:
        MissingDependency: Ray is not installed.
        GroupMismatch, ValueError: as `rollouts`.
    """
    check_arguments(make_env, timeout_s)
    ray = _ray()
    if not ray.is_initialized():
        own = {} if "RAY_ADDRESS" in os.environ else {"num_cpus": max_workers}
        ray.init(include_dashboard=False, **own)
    fitting = max(1, int(ray.cluster_resources().get("CPU", 1) / (num_cpus or 1)))
    max_workers = fitting if max_workers is None else max_workers
    checked_count("max_workers", max_workers)
    is_full = max_workers >= fitting  # Ray lets no more run; what waits spares workers the gap
    schedule = Schedule(seeds, size=size, redundancy=redundancy)
    submitted = max_workers + (fitting if is_full else 0)
    runner = _Tasks((make_env, agent, options, timeout_s), submitted, num_cpus, retries)
    return played_groups(schedule, runner, progress)


def _ray() -> Any:
    try:
        import ray
    except ImportError as error:
        raise missing_dependency("ray", extra="ray") from error
    return ray


class _Tasks:
    """Plays each episode as a task."""

    def __init__(
        self, stage: tuple[Any, ...], submitted: int, num_cpus: float, retries: int
    ) -> None:
        self._ray = _ray()
        self._stage = self._ray.put(stage)
        self._submitted = submitted
        remote = self._ray.remote(num_cpus=num_cpus, max_retries=retries)
        self._task = remote(_play)
        self._running: dict[Any, Play] = {}

    def has_room(self) -> bool:
        """Return whether another episode may be submitted."""
        return len(self._running) < self._submitted

    def start(self, play: Play) -> None:
        """Submit an episode; the reference in a list is not resolved for every task."""
        self._running[self._task.remote([self._stage], play)] = play

    def wait(self) -> tuple[Play, Trajectory]:
        """Return an episode that ended, or was lost with all its workers."""
        [task], _ = self._ray.wait(list(self._running), num_returns=1)
        play = self._running.pop(task)
        try:
            return play, self._ray.get(task)
        except self._ray.exceptions.RayTaskError:
            raise
        except self._ray.exceptions.RayError as error:
            return play, failed_trajectory(None, play.seed, f"Ray lost the episode: {error}")

    def stop(self) -> Iterator[Trajectory]:
        """Yield what had ended, and cancel the rest."""
        running = list(self._running)
        ended, late = (
            self._ray.wait(running, num_returns=len(running), timeout=0) if running else ([], [])
        )
        for task in late:
            self._ray.cancel(task)
        for task in ended:
            try:
                yield self._ray.get(task)
            except self._ray.exceptions.RayError:
                continue


# --- in a worker -----------------------------------------------------------------------------

_STAGES: dict[Any, tuple[Stage, float | None]] = {}
"""What this worker process plays with: the last run's alone."""


def _play(stage: list[Any], play: Play) -> Trajectory:
    [reference] = stage
    if reference not in _STAGES:
        for one, _ in _STAGES.values():
            one.close()
        _STAGES.clear()
        make_env, agent, options, timeout_s = _ray().get(reference)
        _STAGES[reference] = Stage(make_env, agent, options), timeout_s
    found, timeout_s = _STAGES[reference]
    if timeout_s is None:
        return found.play(play)
    threads = Threads(found, 1, timeout_s)
    threads.start(play)
    try:
        return threads.wait()[1]
    finally:
        list(threads.stop())
