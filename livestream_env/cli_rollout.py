"""`livestream-env rollout`: episodes into a file of trajectories."""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import aclosing
from importlib import import_module
from inspect import Parameter, signature
from types import ModuleType
from typing import TYPE_CHECKING, Any, TextIO

from livestream_env.cli_play import make_room_env
from livestream_env.cli_tally import Tally
from livestream_env.terminal import INTERRUPTED, UsageError, print_table, progress, safe_text

if TYPE_CHECKING:
    from livestream_env.drivers import Agent, AgentOf, AsyncAgent
    from livestream_env.env import LiveRoomEnv
    from livestream_env.rooms import Room
    from livestream_env.types import Trajectory

AGENTS = ("scripted", "workflow", "random", "recorded")
FACTORY_FORM = "python:module:factory"
AGENT_NAMES = f"{', '.join(AGENTS)}, chat:URL#MODEL or {FACTORY_FORM}"


def run_rollout(args: argparse.Namespace) -> int:
    """Play episodes and write their trajectories."""
    env = make_room_env(args.room, args.comment)
    agent = agent_named(args.agent, env.rooms, is_async=args.driver == "async")
    seeds = range(args.seed, args.seed + (args.episodes or every_episode(env, args.comment)))
    tally, start, interrupted = Tally(), time.monotonic(), False
    with open(args.out, "w", encoding="utf-8", newline="\n") as out:
        written = _InOrder(out, seeds, tally)
        try:
            with progress(lambda: f"{tally.episodes} of {len(seeds)} episodes"):
                _play(args, env, agent, seeds, written.take)
        except KeyboardInterrupt:
            interrupted = True
        except OSError as error:  # the agent's: `main` takes others for a file it cannot open
            if error is written.error:
                raise
            raise RuntimeError("the agent failed") from error
        finally:
            written.take_rest()
    tally.seconds = time.monotonic() - start
    _print_summary(args, tally, interrupted)
    failed = tally.env_errors == tally.episodes
    return INTERRUPTED if interrupted else int(failed)


def every_episode(env: LiveRoomEnv, comment: str | None) -> int:
    """Return how many seeds visit everything once: comments, or rooms where `comment` is an id."""
    return env.tasks if comment is None or ":" in comment else len(env.rooms)


class _InOrder:
    """Writes trajectories in the order of their seeds, whichever ends first."""

    def __init__(self, out: TextIO, seeds: range, tally: Tally) -> None:
        self._out, self._tally, self._next = out, tally, seeds.start
        self._waiting: dict[int, Trajectory] = {}
        self.error: OSError | None = None
        """Why the file could not be written."""

    def take(self, trajectory: Trajectory) -> None:
        """Write what is next in the order; keep the rest until it is."""
        assert trajectory.seed is not None
        self._waiting[trajectory.seed] = trajectory
        while self._next in self._waiting:
            self._write(self._waiting.pop(self._next))
            self._next += 1

    def take_rest(self) -> None:
        """Write what waits for an episode that did not end."""
        for seed in sorted(self._waiting):
            self._write(self._waiting.pop(seed))

    def _write(self, trajectory: Trajectory) -> None:
        from livestream_env.trajectory_log import json_text

        try:
            self._out.write(json_text(trajectory) + "\n")
            self._out.flush()
        except OSError as error:
            self.error = error
            raise
        self._tally.add(trajectory)


def _play(
    args: argparse.Namespace,
    env: LiveRoomEnv,
    agent: Agent | AsyncAgent | AgentOf,
    seeds: range,
    tell: Callable[[Trajectory], None],
) -> None:
    """Play the seeds with the driver that was named; `tell` is given each episode as it ends."""
    workers = min(args.workers, len(seeds))
    limits: dict[str, Any] = {"timeout_s": args.episode_timeout, "progress": tell}
    if args.driver == "async":
        asyncio.run(_play_in_loop(env, agent, seeds, concurrency=workers, **limits))
        return
    from livestream_env.group_drivers import rollouts
    from livestream_env.ray_driver import ray_rollouts

    drive: Callable[..., Iterator[Any]] = ray_rollouts if args.driver == "ray" else rollouts
    for _ in drive(env.another, agent, seeds, max_workers=workers, **limits):
        pass


async def _play_in_loop(env: LiveRoomEnv, agent: Any, seeds: range, **options: Any) -> None:
    from livestream_env.group_drivers import arollouts

    async with aclosing(arollouts(env.another, agent, seeds, **options)) as groups:
        async for _ in groups:
            pass


def agent_named(
    name: str, rooms: Sequence[Room], *, is_async: bool = False
) -> Agent | AsyncAgent | AgentOf:
    """Return an agent, or what gives the agent of a room; each is made once, whatever the number
    of threads.

    Args:
        is_async: whether a model is asked by an async agent.

    Raises:
        UsageError: no agent has that name.
    """
    from livestream_env.agents import RandomAgent, ScriptedAgent
    from livestream_env.errors import did_you_mean
    from livestream_env.evaluation import RecordedAgent
    from livestream_env.workflow import WorkflowAgent

    if name.startswith("python:"):
        return _agents_of_factory(name, rooms)
    if name.startswith("chat:"):
        return _chat_agent(name, is_async)
    if name == "scripted":
        return ScriptedAgent
    if name == "recorded":
        return RecordedAgent
    if name in AGENTS:
        return WorkflowAgent() if name == "workflow" else RandomAgent()
    hint = did_you_mean(name, AGENTS)
    raise UsageError(f"no agent `{name}`; use {AGENT_NAMES}.{hint}")


def _chat_agent(name: str, is_async: bool) -> Agent | AsyncAgent:
    from livestream_env.chat_agent import chat_agent_named
    from livestream_env.errors import ChatError

    try:
        return chat_agent_named(name, is_async=True) if is_async else chat_agent_named(name)
    except (ValueError, ChatError) as error:
        raise UsageError(str(error)) from error


def _agents_of_factory(name: str, rooms: Sequence[Room]) -> Agent | AgentOf:
    """Call `python:module:factory`, with each room if it takes one, else once.

    Raises:
        UsageError: there is no such module or name, or it makes no agent.
    """
    from livestream_env.errors import did_you_mean

    _, _, path = name.partition(":")
    module_name, _, attribute = path.partition(":")
    if not module_name or not attribute:
        raise UsageError(f"`{name}` names no factory; write {FACTORY_FORM}")
    module = imported(module_name)
    factory = getattr(module, attribute, None)
    if not callable(factory):
        hint = did_you_mean(attribute, [key for key in vars(module) if key[0] != "_"])
        raise UsageError(f"module `{module_name}` has no factory `{attribute}`.{hint}")
    if not _takes_room(factory):
        return _checked_agent(factory(), name)
    agents = {room.content_hash: _checked_agent(factory(room), name) for room in rooms}

    def agent_of(room: Room) -> Agent:
        if room.content_hash not in agents:  # a generated one
            agents.setdefault(room.content_hash, _checked_agent(factory(room), name))
        return agents[room.content_hash]

    return agent_of


def _checked_agent(agent: Any, name: str) -> Agent:
    if not callable(getattr(agent, "act", None)):
        made = type(agent).__name__
        raise UsageError(f"`{name}` made a `{made}`; an agent has `act(messages, tools)`")
    checked: Agent = agent
    return checked


def imported(name: str) -> ModuleType:
    """Import a module of the working folder or of what is installed.

    Raises:
        UsageError: there is none.
    """
    if os.getcwd() not in sys.path:
        sys.path.insert(0, os.getcwd())
    try:
        return import_module(name)
    except ModuleNotFoundError as error:
        if error.name is None or not f"{name}.".startswith(f"{error.name}."):
            raise
        raise UsageError(f"no module `{name}` in {os.getcwd()} or installed") from error


def _takes_room(factory: Callable[..., Any]) -> bool:
    """Return whether a factory's first parameter is named `room` or has no default."""
    kinds = (Parameter.POSITIONAL_ONLY, Parameter.POSITIONAL_OR_KEYWORD)
    first = next(iter(signature(factory).parameters.values()), None)
    if first is None or first.kind not in kinds:
        return False
    return first.name == "room" or first.default is Parameter.empty


def _print_summary(args: argparse.Namespace, tally: Tally, interrupted: bool) -> None:
    for cause, count in Counter(tally.causes).most_common(3):
        print(f"env_error in {count} episodes: {safe_text(cause)}", file=sys.stderr)
    if args.json:
        summary = {
            "episodes": tally.episodes,
            "stop_reasons": dict(sorted(tally.stop_reasons.items())),
            "env_errors": tally.env_errors,
            "tool_calls_per_episode": round(tally.calls_each, 3),
            "seconds": round(tally.seconds, 3),
            "interrupted": interrupted,
            "out": args.out,
        }
        print(json.dumps(summary, ensure_ascii=False))
        return
    rows = [
        (reason, str(count), f"{100 * count / tally.episodes:.0f} %")
        for reason, count in tally.stop_reasons.most_common()
    ]
    print_table(("stop reason", "episodes", "share"), rows)
    print(
        f"{'interrupted: ' if interrupted else ''}{tally.episodes} episodes,"
        f" {tally.env_errors} env_error, {tally.calls_each:.1f} tool calls an episode,"
        f" {tally.seconds:.1f} s; written to {safe_text(args.out)}"
    )
