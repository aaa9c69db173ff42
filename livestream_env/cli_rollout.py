"""`livestream-env rollout`: episodes into a file of trajectories."""

from __future__ import annotations

import argparse
import json
import os
import queue
import sys
import threading
import time
from collections import Counter
from collections.abc import Callable, Sequence
from concurrent.futures import Future, wait
from contextlib import suppress
from importlib import import_module
from inspect import Parameter, signature
from types import ModuleType
from typing import TYPE_CHECKING, Any, NoReturn

from livestream_env.cli_play import make_room_env
from livestream_env.cli_tally import Tally
from livestream_env.terminal import INTERRUPTED, UsageError, print_table, progress, safe_text

if TYPE_CHECKING:
    from livestream_env.drivers import Agent
    from livestream_env.env import LiveRoomEnv
    from livestream_env.rooms import Room
    from livestream_env.types import Observation, Trajectory

AGENTS = ("scripted", "workflow", "random", "recorded")
FACTORY_FORM = "python:module:factory"
AGENT_NAMES = f"{', '.join(AGENTS)}, chat:URL#MODEL or {FACTORY_FORM}"


def run_rollout(args: argparse.Namespace) -> int:
    """Play episodes and write their trajectories."""
    first = make_room_env(args.room, args.comment)
    agent = agent_named(args.agent, first.rooms)
    seeds = range(args.seed, args.seed + (args.episodes or every_episode(first, args.comment)))
    more = range(1, min(args.workers, len(seeds)))
    envs = [first, *(make_room_env(args.room, args.comment) for _ in more)]
    tally, start, interrupted = Tally(), time.monotonic(), False
    with open(args.out, "w", encoding="utf-8", newline="\n") as out:

        def write(trajectory: Trajectory) -> None:
            out.write(trajectory.model_dump_json() + "\n")
            out.flush()
            tally.add(trajectory)

        try:
            with progress(lambda: f"{tally.episodes} of {len(seeds)} episodes"):
                _play_seeds(envs, agent, seeds, write)
        except KeyboardInterrupt:
            interrupted = True
    tally.seconds = time.monotonic() - start
    _print_summary(args, tally, interrupted)
    failed = tally.env_errors == tally.episodes
    return INTERRUPTED if interrupted else int(failed)


def every_episode(env: LiveRoomEnv, comment: str | None) -> int:
    """Return how many seeds visit everything once: comments, or rooms where `comment` is an id."""
    return env.tasks if comment is None or ":" in comment else len(env.rooms)


def _play_seeds(
    envs: Sequence[LiveRoomEnv],
    agent: Callable[[Room], Agent],
    seeds: Sequence[int],
    write: Callable[[Trajectory], None],
) -> None:
    """Play the seeds, a thread an environment, and write the trajectories in the seeds' order.

    Whatever ends the run early, what had finished is written; the threads are daemons, so that an
    interrupt does not wait for a model's answer.
    """
    from livestream_env.drivers import rollout

    played: dict[int, Future[Trajectory]] = {seed: Future() for seed in seeds}
    todo: queue.SimpleQueue[int] = queue.SimpleQueue()
    for seed in seeds:
        todo.put(seed)

    def work(env: LiveRoomEnv) -> None:
        player = AgentByRoom(env, agent)
        with suppress(queue.Empty):
            while True:
                seed = todo.get_nowait()
                try:
                    played[seed].set_result(rollout(env, player, seed=seed))
                except BaseException as error:
                    played[seed].set_exception(error)

    for env in envs:
        threading.Thread(target=work, args=(env,), daemon=True).start()
    try:
        for seed in seeds:
            trajectory = _awaited(played[seed])
            del played[seed]
            write(trajectory)
    finally:
        with suppress(queue.Empty):
            while True:
                todo.get_nowait()
        for future in list(played.values()):
            if future.done() and future.exception() is None:
                write(future.result())


def _awaited(future: Future[Trajectory]) -> Trajectory:
    """Wait in short steps: on Windows, an interrupt is noticed only between them."""
    while not future.done():
        wait((future,), timeout=0.2)
    try:
        return future.result()
    except OSError as error:  # the agent's: `main` takes others for a file it cannot open
        raise RuntimeError("the agent failed") from error


class AgentByRoom:
    """The agent of whichever room the environment was reset to."""

    def __init__(self, env: LiveRoomEnv, agent: Callable[[Room], Agent]) -> None:
        self._env = env
        self._agent = agent

    def start(self, observation: Observation, *, seed: Any) -> Agent:
        """Return the agent of one episode."""
        from livestream_env.drivers import start_agent

        room = self._env.room
        assert room is not None
        agent: Agent = start_agent(self._agent(room), observation, seed)
        return agent

    def act(self, messages: Any, tools: Any) -> NoReturn:
        """Refuse: the agent of an episode is made by `start`."""
        raise RuntimeError("call `start` first")


def agent_named(name: str, rooms: Sequence[Room]) -> Callable[[Room], Agent]:
    """Return what gives the agent of a room; each is made once, whatever the number of threads.

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
        policy = _chat_agent(name)
        return lambda room: policy
    if name == "scripted":
        return ScriptedAgent
    if name == "recorded":
        return RecordedAgent
    if name in AGENTS:
        shared: Agent = WorkflowAgent() if name == "workflow" else RandomAgent()
        return lambda room: shared
    hint = did_you_mean(name, AGENTS)
    raise UsageError(f"no agent `{name}`; use {AGENT_NAMES}.{hint}")


def _chat_agent(name: str) -> Agent:
    from livestream_env.chat_agent import chat_agent_named
    from livestream_env.errors import ChatError

    try:
        return chat_agent_named(name)
    except (ValueError, ChatError) as error:
        raise UsageError(str(error)) from error


def _agents_of_factory(name: str, rooms: Sequence[Room]) -> Callable[[Room], Agent]:
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
    if _takes_room(factory):
        agents = {room.content_hash: _checked_agent(factory(room), name) for room in rooms}
        return lambda room: agents[room.content_hash]
    shared = _checked_agent(factory(), name)
    return lambda room: shared


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
