"""TRL's `GRPOTrainer`: a `rollout_func` with the package's own loop, and an environment class.

`rollout_func` is the whole thing: the package's loop and limits, masks, threads over rooms, token
ids in and out of the trainer's own generation (vLLM, continuous batching or `generate`). With
`environment_class` the loop is TRL's: simpler to set up, and less is told to the policy.
"""

from __future__ import annotations

import json
import sys
from collections import defaultdict
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from typing import Any, ClassVar

from livestream_env.adapters.lockstep import Ask, Ids, in_lockstep, up_to_end
from livestream_env.adapters.methods import as_method
from livestream_env.adapters.recorded import RecordedRenderer
from livestream_env.adapters.seats import check_partners, seated
from livestream_env.adapters.setup import Setup, TaskRow, only_row, renderer_of, trainer_module
from livestream_env.adapters.tool_loop import ToolLoop, live_setup
from livestream_env.drivers import rollout
from livestream_env.group_drivers import checked_count
from livestream_env.renderers import ChatTemplateRenderer
from livestream_env.rows import TrainingRow
from livestream_env.team import Member
from livestream_env.token_agent import TokenAgent
from livestream_env.tokens import Sampled
from livestream_env.types import Trajectory

RAN, INSTALL = "trl 1.16.0", "pip install 'trl==1.16.0'"
Prompt = str | Sequence[Mapping[str, Any]]


# --- the package's loop -----------------------------------------------------------------------


def rollout_func(
    rows: Iterable[Mapping[str, Any]],
    room: str | None = None,
    *,
    partners: Mapping[str, Member | None] | None = None,
    max_workers: int | None = None,
    **setup: Any,
) -> RolloutFunc:
    """Return what `GRPOTrainer` takes as `rollout_func`; its reward function is `episode_reward`.

    `max_completion_length` limits all that follows the first prompt, tool results included, as in
    TRL's own loop: an episode that reaches it is cut.

    Args:
        rows: the trainer's data sets, with the columns of `data_rows(..., "trl")`. TRL hands over
            prompts alone, so the row is found by its prompt, which is not used otherwise.
        room: of rows that name none.
        partners: who plays the other seat of two agents, untrained, by default the trainer's own
            model; see `AgentTeam`. A trainer trains one: `agents={"replier": REPLY}`.
        max_workers: threads, one an episode by default.
        setup: the other arguments of `Setup`.

    Raises:
        MissingDependency: TRL is not installed, or too old.
        ValueError: a row has no prompt, two tasks have the same, two agents are to be trained, or
            a partner has no seat.
    """
    trainer_module("trl", ran=RAN, install=INSTALL, least=(1, 16))
    return RolloutFunc(Setup(room, **setup), rows, partners, max_workers)


class RolloutFunc:
    """Plays an episode for each prompt, with the trainer's model; see `rollout_func`."""

    def __init__(
        self,
        setup: Setup,
        rows: Iterable[Mapping[str, Any]],
        partners: Mapping[str, Member | None] | None,
        max_workers: int | None,
    ) -> None:
        if len(setup.agents) != 1:
            raise ValueError(
                f"TRL has one row a prompt, so a trainer trains one agent, not {[*setup.agents]};"
                " name one in `agents`, and who plays the other in `partners`"
            )
        check_partners(setup, partners)
        if max_workers is not None:
            checked_count("max_workers", max_workers)
        self.setup = setup
        self._partners, self._max_workers = partners, max_workers
        self._rows = _by_prompt(setup, rows)

    def __call__(self, prompts: Sequence[Prompt], trainer: Any) -> dict[str, Any]:
        """Play the episodes and return TRL's columns, with those of `episode_reward`."""
        options = {**trainer.chat_template_kwargs, "on_rewrite": "keep"}
        renderer = renderer_of(trainer._tokenizer, options)
        longest = trainer.max_completion_length
        tasks = [self._row(prompt) for prompt in prompts]
        plays = [self._play(task, renderer, longest) for task in tasks]
        generate = _Generation(trainer)
        played = in_lockstep(plays, generate, max_workers=self._max_workers)
        self.setup.keep(played, step=trainer.state.global_step)
        pairs = zip(played, tasks, strict=True)
        known = RecordedRenderer()
        rows = [only_row(self.setup.rows(trajectory, known), task) for trajectory, task in pairs]
        return _columns(rows, min(generate.ends)) | {
            "stop_reason": [str(trajectory.stop_reason) for trajectory in played],
            "le_metrics": self.setup.metrics(played),
        }

    def _row(self, prompt: Prompt) -> TaskRow:
        row = self._rows.get(_key(prompt))
        if row is None:
            raise ValueError(
                f"no row of `rows` has this prompt; give `rollout_func` every data set that the"
                f" trainer has: {prompt!r:.200}"
            )
        return row

    def _play(
        self, row: TaskRow, renderer: ChatTemplateRenderer, longest: int
    ) -> Callable[[Ask], Trajectory]:
        def play(ask: Ask) -> Trajectory:
            agent = TokenAgent(_Engine(ask, longest), renderer)
            player = seated(agent, self.setup, self._partners)
            env = self.setup.make_env(row.room)
            try:
                return rollout(env, player, **self.setup.opening(row))
            finally:
                env.close()

        return play


class _Engine:
    """What samples in one episode: at most `longest` tokens behind its first prompt."""

    def __init__(self, ask: Ask, longest: int) -> None:
        self._ask, self._longest = ask, longest
        self._end: int | None = None

    def __call__(self, ids: Ids, stop: Ids) -> Sampled:
        if self._end is None:
            self._end = len(ids) + self._longest
        left = self._end - len(ids)
        if left <= 0:
            return _CUT
        sampled = self._ask(ids, stop)
        if len(sampled.token_ids) <= left:
            return sampled
        told = None if sampled.logprobs is None else sampled.logprobs[:left]
        return Sampled(sampled.token_ids[:left], told, "length")


class _Generation:
    """The trainer's own generation, whatever it is, for prompts within the model's positions."""

    def __init__(self, trainer: Any) -> None:
        self._trainer = trainer
        self.ends = frozenset(trainer.eos_token_ids)
        """Ids that it stops at."""
        config = trainer.model.config.get_text_config()
        self._positions = getattr(config, "max_position_embeddings", None) or sys.maxsize

    def __call__(self, prompts: Sequence[Ids], stop: Ids) -> list[Sampled]:
        """Return what is sampled after each prompt; one without room for a token is cut."""
        made = [_CUT] * len(prompts)
        fit = [at for at, ids in enumerate(prompts) if len(ids) < self._positions]
        if fit:
            asked = [list(prompts[at]) for at in fit]
            ids, logprobs = self._trainer._generate_single_turn(asked, None, {}, 1)
            told = logprobs or [None] * len(fit)
            for at, sampled, known in zip(fit, ids, told, strict=True):
                made[at] = up_to_end(sampled, known, self.ends.union(stop))
        return made


_CUT = Sampled((), (), "length")


def _columns(rows: Sequence[TrainingRow], end: int) -> dict[str, Any]:
    """Return TRL's columns; an excluded row is one token that is not trained, without reward."""
    told: dict[str, Any] = defaultdict(list)
    for row in rows:
        if row.excluded is None:
            response = row.response_only()
            ids, mask = response.response_ids, response.loss_mask
            prompt, logprobs = response.prompt_ids, response.logprobs
        else:
            prompt, ids, mask, logprobs = (end,), (end,), (0,), (0.0,)
        told["prompt_ids"].append(list(prompt))
        told["completion_ids"].append(list(ids))
        told["env_mask"].append(list(mask))
        told["logprobs"].append(None if logprobs is None else list(logprobs))
        told["env_reward"].append(row.reward if row.excluded is None else None)
        told["excluded"].append(row.excluded)
    if None in told["logprobs"]:
        told["logprobs"] = None
    return told


def _by_prompt(setup: Setup, rows: Iterable[Mapping[str, Any]]) -> dict[str, TaskRow]:
    found: dict[str, TaskRow] = {}
    for given in rows:
        row = setup.row(given)
        if not given.get("prompt"):
            raise ValueError(
                "a row has no `prompt`; write the data set with `livestream-env export rl --format"
                f" trl` or `data_rows(rows, 'trl')`: {dict(given)!r:.200}"
            )
        known = found.setdefault(_key(given["prompt"]), row)
        if (known.room, known.comment) != (row.room, row.comment) or (
            not row.comment and known.seed != row.seed
        ):
            raise ValueError(
                f"{known} and {row} have one prompt, and TRL hands over nothing else; any prompt"
                " of a row's own will do, such as its `task_id`, because the room gives the first"
                " messages"
            )
    return found


def _key(prompt: Prompt) -> str:
    if isinstance(prompt, str):
        return prompt
    return json.dumps([(message["role"], message["content"]) for message in prompt])


def episode_reward(
    completions: Sequence[object],
    env_reward: Sequence[float | None],
    le_metrics: Sequence[Mapping[str, float]],
    log_metric: Callable[[str, float], object],
    **columns: Any,
) -> list[float | None]:
    """Return the episodes' rewards, `None` for those that failed, and log `livestream_env.metrics`.

    TRL leaves `None` out of a group's mean and gives the row advantage 0. It adds up reward
    functions, so others next to this one have to return `None` for the same rows: `excluded` says
    which.
    """
    _log(le_metrics[0], log_metric)
    return list(env_reward)


def _log(figures: Mapping[str, float], log_metric: Callable[[str, float], object]) -> None:
    for name, figure in figures.items():
        log_metric(f"livestream/{name}", figure)


# --- TRL's loop -------------------------------------------------------------------------------


def environment_class(
    name: str,
    room: str | None = None,
    *,
    stop_ids: Collection[int],
    module: str | None = None,
    **setup: Any,
) -> type[RoomEnvironment]:
    """Make a class for `environment_factory`, with a method for each tool of the room.

    Its reward function is `NAME.episode_reward`. Rows are as of `rollout_func`. Set
    `max_tool_calling_iterations` to `max_turns`: TRL's loop knows no end of the room's.

    Args:
        name: of the class; assign it to that name in a module, so that it can be pickled.
        room: of rows that name none; its language and tools are the class's.
        stop_ids: ids that end a message: a reply without one was cut.
        module: where the class lives, by default the caller's.
        setup: the other arguments of `Setup`.

    Raises:
        ValueError: two agents are to play, a tool cannot be a method, or `stop_ids` holds no ids.
    """
    if not stop_ids or not all(hasattr(one, "__index__") for one in stop_ids):
        raise ValueError(
            f"`stop_ids` is {stop_ids!r}; it holds the ids that end a message, such as the"
            " tokenizer's `eos_token_id`: a reply without one counts as cut"
        )
    made = Setup(room, **setup)
    if made.has_two_agents or setup.keys() & {"agents", "masker"}:
        raise ValueError("TRL's loop masks by itself and has one agent; use `rollout_func`")
    specs = made.make_env().action_space.specs  # type: ignore[attr-defined]
    methods = {spec.name: as_method(spec, RoomEnvironment._call) for spec in specs}
    taken = sorted(methods.keys() & set(dir(RoomEnvironment)))
    if taken:
        raise ValueError(f"tools cannot be called {', '.join(taken)} here: TRL means others by it")
    return type(
        name,
        (RoomEnvironment,),
        {
            "__doc__": "A livestream room for TRL's tool loop.",
            "__module__": module or sys._getframe(1).f_globals["__name__"],
            "_setup": made,
            "_live_setup": live_setup(made),
            "_stop_ids": frozenset(stop_ids),
            **methods,
        },
    )


class RoomEnvironment:
    """Base of the classes of `environment_class`; TRL takes every public function for a tool.

    TRL calls tools one by one and shows the reward function the transcript: see `ToolLoop`.
    """

    _setup: ClassVar[Setup]
    _live_setup: ClassVar[Setup]
    _stop_ids: ClassVar[frozenset[int]]

    def __init__(self) -> None:
        self._loop = ToolLoop(self._setup, self._live_setup)

    def reset(self, **row: Any) -> None:
        """Open the episode of a row; the prompt is the row's.

        Raises:
            ValueError: the prompt is not what the episode opens with.
        """
        task = self._setup.row(row)
        told = self._loop.begin(task)
        if told is not None and (
            _key(row["prompt"]) != _key([message.to_openai() for message in told.messages])
        ):
            raise ValueError(
                f"the prompt of {task} is not what the episode opens with; write the data set"
                " with the same options"
            )

    def _call(self, name: str, arguments: dict[str, Any]) -> str:
        """Run a call and return the text of its result; what failed is told so, and not trained."""
        return self._loop.call(name, arguments)

    @classmethod
    def episode_reward(
        cls,
        completions: Sequence[Sequence[Mapping[str, Any]]],
        completion_ids: Sequence[Sequence[int]],
        environments: Sequence[RoomEnvironment],
        log_metric: Callable[[str, float], object],
        trainer_state: Any = None,
        **columns: Any,
    ) -> list[float | None]:
        """Return the rewards of the transcripts, `None` for episodes that failed."""
        for room in environments:
            room._loop.close()  # TRL never does
        played = [
            room._loop.played(messages, is_cut=not ids or ids[-1] not in cls._stop_ids)
            for room, messages, ids in zip(environments, completions, completion_ids, strict=True)
        ]
        cls._setup.keep(played, step=getattr(trainer_state, "global_step", None))
        _log(cls._setup.metrics(played), log_metric)
        return [one.reward for one in played]
