"""What every adapter shares: rows in, environments and agents, trajectories logged, rows out.

An adapter has no policy of its own. It takes the arguments of `Setup` by these names, plays with
the drivers of the package, and hands on what `Setup.rows` gives.
"""

from __future__ import annotations

import functools
import importlib
import inspect
import json
import logging
import os
import threading
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from livestream_env.env import LiveRoomEnv
from livestream_env.errors import MissingDependency, did_you_mean
from livestream_env.masking import END_TO_END, MASKERS
from livestream_env.renderers import ChatTemplateRenderer
from livestream_env.run_metrics import metrics
from livestream_env.tokens import Masker, Renderer
from livestream_env.training import TrainingRow, training_rows
from livestream_env.trajectory_log import TrajectoryLog
from livestream_env.types import Trajectory

LOG = logging.getLogger("livestream_env")
_TRAINABLE = ({"host"}, {"tool_caller"}, {"replier"}, {"tool_caller", "replier"})
"""Agents that a setup may train."""


@dataclass(frozen=True, slots=True)
class TaskRow:
    """One episode as a trainer's data set holds it: JSON values that decide the first observation.

    Members of a group are copies of one row: they differ in what the policy samples alone.
    """

    room: str
    """As `gym.make`'s `room`."""
    seed: int
    comment: tuple[str, ...] = ()
    """Ids of the open comments; empty: by seed."""

    @property
    def task_id(self) -> str:
        """Text that two rows share where they open the same episode."""
        return f"{self.room}:{'+'.join(self.comment)}:{self.seed}"

    def to_json(self) -> dict[str, Any]:
        """Return the row as a JSON object."""
        return {"room": self.room, "seed": self.seed, "comment": list(self.comment)}

    @classmethod
    def of(cls, given: TaskRow | Mapping[str, Any]) -> TaskRow:
        """Read a row; keys that are not its own are the trainer's.

        Raises:
            TypeError: it is no row.
            ValueError: `room` or `seed` is missing, or something is of another type.
        """
        if isinstance(given, TaskRow):
            return given
        if not hasattr(given, "get"):
            raise TypeError(f"a task row is a mapping with `room` and `seed`; got {given!r:.200}")
        room, comment = given.get("room"), given.get("comment")
        seed: Any = given.get("seed")
        if not isinstance(room, (str, os.PathLike)) or not room:
            raise ValueError(f"a task row needs `room`, a name or a path; got {dict(given)!r:.200}")
        if isinstance(seed, bool) or not hasattr(seed, "__index__") or seed.__index__() < 0:
            raise ValueError(
                f"a task row needs `seed`, a whole number from 0; got {dict(given)!r:.200}"
            )
        return cls(os.fspath(room), seed.__index__(), _ids(comment))


def _ids(comment: Any) -> tuple[str, ...]:
    """Return ids of comments; data sets hold them as lists, arrays or nothing."""
    if isinstance(comment, str):
        return (comment,)
    ids = comment if hasattr(comment, "__len__") or comment is None else [comment]
    made = tuple(() if ids is None else ids)
    if not all(isinstance(one, str) for one in made):
        raise ValueError(f"`comment` of a task row is {comment!r:.200}; it holds ids of comments")
    return made


def task_rows(
    room: str | os.PathLike[str] = "bundled:train",
    *,
    count: int | None = None,
    seed: int = 0,
    **options: Any,
) -> Iterator[TaskRow]:
    """Yield the rows of `count` seeds from `seed` on, by default of every comment once.

    Rows of bundled rooms name the room and the comment, others leave the choice to the seed; a data
    set can be shuffled and filtered. `options` are `gym.make`'s, such as `comment="burst:3"`, which
    rows of one room name too; where they cannot, as of generated rooms, give it to the setup.

    Raises:
        ValueError: `count` is below 1, or `seed` below 0: there are no such rows.
    """
    if (count is not None and count < 1) or seed < 0:
        raise ValueError(f"`count` is {count} and `seed` {seed}; rows are from 1, seeds from 0")
    room = os.fspath(room)
    env, is_generated = LiveRoomEnv(room, rubric=None, **options), room.startswith("generated:")
    for number in range(seed, seed + (env.tasks if count is None else count)):
        chosen, comments = env.task_of(number)
        if chosen is not None and room.startswith("bundled:"):
            yield TaskRow(chosen.room_id, number, comments)
        elif options.get("comment") is not None and len(env.rooms) == 1 and not is_generated:
            yield TaskRow(room, number, comments)
        else:
            yield TaskRow(room, number)


class Setup:
    """How episodes are made and what is trained of them.

    Args:
        room: of rows that name none; `gym.make`'s `room`.
        agents: what is trained and by which masker: `{"host": END_TO_END}` is one agent,
            `{"tool_caller": TOOL_CALLS, "replier": REPLY}` are two. Maskers may be named, as in
            `MASKERS`.
        masker: short for `agents={"host": masker}`.
        log_dir: folder of the trajectory log, see `TrajectoryLog`; none is kept by default.
        log_every: trajectories of every n-th training step are kept.
        options: the other arguments of `gym.make`: sandbox, sandbox_options, tools, rubric,
            max_turns, ...

    Raises:
        TypeError: a masker is none, `room` is no name, or an option has a name that is not known.
        OSError: `log_dir` cannot be written to.
        ValueError: `agents` and `masker` are both given, or an agent or a masker has another name.
    """

    def __init__(
        self,
        room: str | os.PathLike[str] | None = None,
        *,
        agents: Mapping[str, Masker | str] | None = None,
        masker: Masker | str | None = None,
        log_dir: str | os.PathLike[str] | None = None,
        log_every: int = 1,
        **options: Any,
    ) -> None:
        if agents is not None and masker is not None:
            raise ValueError("`agents` and `masker` are both given; `masker` is for one agent")
        named = agents if agents is not None else {"host": END_TO_END if masker is None else masker}
        if not isinstance(named, Mapping) or {*named} not in _TRAINABLE:
            raise ValueError(
                f"`agents` is {named!r}; it has a masker for `host`, or for `tool_caller`,"
                " `replier` or both"
            )
        self.agents: dict[str, Masker] = {name: _masker(one) for name, one in named.items()}
        if room is not None and not isinstance(room, (str, os.PathLike)):
            raise TypeError(
                f"`room` is {room!r:.80}; rows name rooms, so it is a name or the path of a file"
            )
        self.room = room = None if room is None else os.fspath(room)
        _check_names(options)
        self.options = {"on_env_error": "truncate", **options}
        self.log = None if log_dir is None else TrajectoryLog(log_dir, log_every)
        self._has_told = False
        self._patterns: dict[str | None, LiveRoomEnv] = {}
        self._lock = threading.Lock()
        self.make_env(room)

    def __reduce__(self) -> tuple[Any, ...]:
        """Send the arguments: each process reads rooms, and writes a file of the log, by itself."""
        given: dict[str, Any] = {"agents": self.agents, **self.options}
        if self.log is not None:
            given |= {"log_dir": self.log.folder, "log_every": self.log.every}
        again = functools.partial(Setup, self.room, **given)
        return again, ()

    @property
    def has_two_agents(self) -> bool:
        """Whether episodes are opened for a tool caller and a replier."""
        return "host" not in self.agents

    def row(self, given: TaskRow | Mapping[str, Any]) -> TaskRow:
        """Read a row of the trainer; where it names no room, the setup's is meant."""
        if isinstance(given, Mapping) and given.get("room") is None and self.room is not None:
            given = {**given, "room": self.room}
        return TaskRow.of(given)

    def make_env(self, room: str | None = None) -> LiveRoomEnv:
        """Return a fresh environment; rooms are read and checked once a process."""
        name = self.room if room is None else room
        with self._lock:
            pattern = self._patterns.get(name)
            if pattern is None:
                pattern = self._patterns[name] = LiveRoomEnv(name, **self.options)
        return pattern.another()

    def opening(self, row: TaskRow) -> dict[str, Any]:
        """Return the arguments of `reset` and of the drivers that open the row's episode."""
        return {
            "seed": row.seed,
            "options": {"comment": list(row.comment)} if row.comment else None,
        }

    def rows(
        self, trajectory: Trajectory, renderers: Renderer | Mapping[str, Renderer]
    ) -> list[TrainingRow]:
        """Return the rows of one trajectory, of each trained agent and context.

        Rewards are those that the environment gave; the trainer compares them. What must not be
        trained is excluded with its reason.
        """
        return training_rows(
            [trajectory], renderers, agents=self.agents, rubric=None, advantages=None
        )

    def keep(
        self,
        trajectories: Trajectory | Iterable[Trajectory],
        *,
        step: int | None = None,
        policy_version: str | int | None = None,
    ) -> None:
        """Append what was played to the log, where there is one.

        No episode is lost for a log that cannot be written, as on a full disk: it is told once, by
        the logger `livestream_env`.
        """
        if self.log is None:
            return
        try:
            self.log.add(trajectories, step=step, policy_version=policy_version)
        except OSError as error:
            if not self._has_told:
                self._has_told = True
                LOG.error(
                    "trajectories are missing in the log `%s`, which cannot be written: %s;"
                    " episodes are played on without it, and this is told once",
                    self.log.folder,
                    error.strerror or error,
                )

    def metrics(self, trajectories: Sequence[Trajectory]) -> dict[str, float]:
        """Return `livestream_env.metrics` of what was played, for the trainer's own channel."""
        return metrics(trajectories)


def only_row(rows: Sequence[TrainingRow], task: TaskRow) -> TrainingRow:
    """Return the one row of an episode, an excluded one where nothing is trained.

    For trainers that take no more than one; a renderer with `on_rewrite="keep"` makes no more.

    Raises:
        RuntimeError: the episode was sampled in several contexts.
    """
    kept = [row for row in rows if row.excluded is None]
    if len(kept) > 1:
        raise RuntimeError(
            f"the episode {task.task_id} was sampled in {len(kept)} contexts; this trainer takes"
            " one"
        )
    return kept[0] if kept else rows[0]


def setup_of(options: Mapping[str, Any]) -> Setup:
    """Return the setup of the arguments of a YAML or JSON file, made once a process."""
    return _setup_of(as_key(options))


@functools.lru_cache(maxsize=8)
def _setup_of(options: str) -> Setup:
    return Setup(**json.loads(options))


def renderer_of(tokenizer: Any, options: Mapping[str, Any]) -> ChatTemplateRenderer:
    """Return the renderer of a tokenizer with the options of a YAML or JSON file, made once a
    process: variables of the template, and `on_rewrite`.

    Raises:
        TypeError: the options are no mapping, or one is of no file.
    """
    return _renderer_of(tokenizer, as_key(options))


@functools.lru_cache(maxsize=8)
def _renderer_of(tokenizer: Any, options: str) -> ChatTemplateRenderer:
    return ChatTemplateRenderer(tokenizer, **json.loads(options))


def as_key(options: Mapping[str, Any]) -> str:
    """Return the options of a YAML or JSON file as JSON, which can be a key.

    Raises:
        TypeError: they are no mapping, or an option is of no file, such as a function.
    """
    if not isinstance(options, Mapping):
        raise TypeError(f"got {options!r:.100}; options are a mapping, by their names")
    return json.dumps(options, sort_keys=True, default=_as_json)


def _as_json(option: Any) -> Any:
    if isinstance(option, Mapping):
        return dict(option)
    if isinstance(option, os.PathLike):
        return os.fspath(option)
    if isinstance(option, Iterable):
        return list(option)
    raise TypeError(f"{option!r:.100} is nothing that a YAML or JSON file holds; give a `Setup`")


def trainer_module(
    name: str, *, ran: str, install: str, has: str = "", least: tuple[int, ...] = ()
) -> Any:
    """Import a module of a trainer.

    Args:
        ran: the trainer and the version that this adapter was run with.
        install: the command that installs it.
        has: a name that the module has to have.
        least: the first version that will do, of a module with `__version__`.

    Raises:
        MissingDependency: the trainer is not installed, is too old, or has no such module or name.
    """
    package = name.partition(".")[0]
    told = f"this adapter was run with {ran}: `{install}`"
    try:
        module = importlib.import_module(name)
    except ImportError as error:
        problem = f"`{name}` cannot be imported ({error}); {told}"
        raise MissingDependency(problem, name=package) from error
    if has and not hasattr(module, has):
        raise MissingDependency(f"`{name}` has no `{has}`; {told}", name=package)
    if least and tuple(map(int, module.__version__.split(".")[: len(least)])) < least:
        problem = f"`{name}` is of version {module.__version__}; {told}"
        raise MissingDependency(problem, name=package)
    return module


def _check_names(options: Iterable[str]) -> None:
    known = {*inspect.signature(LiveRoomEnv).parameters, *inspect.signature(Setup).parameters}
    known.remove("options")
    for name in {*options} - known:
        told = ", ".join(sorted(known))
        raise TypeError(
            f"no option `{name}`; known are, beside the adapter's own, {told}."
            f"{did_you_mean(name, known)}"
        )


def _masker(given: Masker | str) -> Masker:
    if not isinstance(given, str):
        if not callable(given):
            raise TypeError(f"a masker is {given!r}; it is a name, or a callable such as `REPLY`")
        return given
    if given not in MASKERS:
        raise ValueError(
            f"no masker `{given}`; known are {', '.join(MASKERS)}.{did_you_mean(given, MASKERS)}"
        )
    return MASKERS[given]
