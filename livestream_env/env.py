"""The Gymnasium environment: recorded rooms, one comment an episode."""

from __future__ import annotations

import inspect
import math
import re
import sys
import time
import warnings
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal, NamedTuple, SupportsFloat

import gymnasium as gym

from livestream_env.custom_tools import ToolSource, resolve_tools
from livestream_env.episode import ONE_AGENT, Episode, OnMissingRule
from livestream_env.errors import (
    ChatError,
    CommentNotFound,
    LivestreamError,
    ResetNeeded,
    RoomMismatch,
    RoomNotFound,
    SandboxError,
    did_you_mean,
)
from livestream_env.prompts import Prompt, ResultFormat, make_prompt, make_result_format
from livestream_env.retrieval import Embedder
from livestream_env.room_files import find_rooms
from livestream_env.rooms import Comment, Room
from livestream_env.sandbox import REPLAY, Sandbox, make_replay, make_sandbox
from livestream_env.spaces import ActionSpace, ObservationSpace
from livestream_env.tools import TOOLS
from livestream_env.types import (
    Action,
    Observation,
    Rewards,
    RoomView,
    Status,
    ToolCall,
    ToolResult,
    ToolSpec,
    Trajectory,
    Turn,
    TurnEvent,
    checked_rewards,
)
from livestream_env.words import safe

if TYPE_CHECKING:
    from livestream_env.sandbox.recording_lines import ResetLine
    from livestream_env.synthetic import GeneratedRooms

Rubric = Callable[[Trajectory, Room | None], Rewards]
RoomSource = str | Room
CommentSource = str | Sequence[str] | None


@dataclass(frozen=True, slots=True)
class _Config:
    """The arguments of an environment, checked."""

    comment: CommentSource
    sandbox: str | Sandbox | Callable[[Room], Sandbox]
    sandbox_options: Mapping[str, Any]
    language: str | None
    embedder: str | Embedder
    tools: tuple[ToolSource, ...] | None
    max_turns: int
    max_same_tool: int
    on_missing_rule: OnMissingRule
    on_env_error: str
    rubric: Rubric | None
    process: bool
    prompt: str | Prompt | None
    result_format: ResultFormat | None
    timeout_s: float | None


class _Task(NamedTuple):
    """What an episode is about."""

    room: Room | None
    """`None`: known from a recording alone."""
    content_hash: str
    comment_ids: Sequence[str]
    comments: Sequence[Comment] = ()
    """With their key; empty where the room is not known."""


class LiveRoomEnv(gym.Env[Observation, Any]):
    """A livestream room: viewers comment, the host agent calls tools and replies.

    Observations are `Observation` values that hold only the new messages; an action is an
    `Action`, a model's raw text or an OpenAI assistant message. See docs/index.md for both, field
    by field.

    Args:
        room: a room, a file, a folder, a glob, a bundled name, `bundled:train`, `bundled:test`, or
            rooms without end such as `generated:level=2,language=zh,split=train`. By default what
            a replayed recording holds, whose rooms have no key, else `bundled:train`.
        comment: id of a comment, ids of a burst, `burst:N` (N in a row), `window:10s` (all within
            five seconds before and after one), or `None`: by seed. Seeds 0 to N-1 visit each of
            the N (room, comment) pairs once, zh before en, then by room id.
        sandbox: `local`, a server's `http://HOST:PORT` (or several, with commas), `replay:FILE`,
            `record:FILE+local`, a callable that makes a `Sandbox` for a room, or a `Sandbox`
            object, which serves this environment alone and is not closed by it.
        language: `zh` or `en` for prompts, tool descriptions and results; by default the room's.
        max_turns: assistant messages before the episode is truncated.
        max_same_tool: executed calls of one tool since the viewer last spoke, per open comment.
        on_missing_rule: a reply without a looked-up reply rule ends the episode (`end`), or is
            answered by one reminder (`remind`).
        on_env_error: `step` raises `SandboxError` when infrastructure fails, or truncates.
        embedder: what searches compare texts by; see `retrieval.make_embedder`.
        rubric: a preset of `rewards.PRESETS`, or a callable `(trajectory, room) -> Rewards`; with
            `None` every reward is 0.
        process: score every turn as it is made, not only the end.
        prompt: folder of templates or a callable for the first messages.
        result_format: template file or callable for the text of tool results.
        tools: the tools to offer: bundled names, `package.module:name`, entry points, or objects
            that `tool` made; by default the bundled ones.
        sandbox_options: further keyword arguments of the sandbox.
        episode_timeout_s: wall-clock seconds after which the next step aborts the episode.
        render_mode: `ansi` (`render` returns the transcript) or `human` (printed as it grows).
    """

    metadata = {"render_modes": ["ansi", "human"], "render_fps": 4}  # noqa: RUF012

    def __init__(
        self,
        room: RoomSource | None = None,
        *,
        comment: CommentSource = None,
        sandbox: str | Sandbox | Callable[[Room], Sandbox] = "local",
        language: Literal["zh", "en"] | None = None,
        max_turns: int = 8,
        max_same_tool: int = 2,
        on_missing_rule: OnMissingRule = "end",
        on_env_error: Literal["raise", "truncate"] = "raise",
        embedder: str | Embedder = "use-multilingual",
        rubric: str | Rubric | None = "single4",
        process: bool = False,
        prompt: str | Prompt | None = None,
        result_format: str | ResultFormat | None = None,
        tools: Sequence[ToolSource] | None = None,
        sandbox_options: Mapping[str, Any] | None = None,
        episode_timeout_s: float | None = None,
        render_mode: str | None = None,
    ) -> None:
        _one_of("language", language, (None, "zh", "en"))
        _one_of("on_missing_rule", on_missing_rule, ("end", "remind"))
        _one_of("on_env_error", on_env_error, ("raise", "truncate"))
        _one_of("render_mode", render_mode, (None, *self.metadata["render_modes"]))
        _at_least("max_turns", max_turns, 1)
        _at_least("max_same_tool", max_same_tool, 1)
        if rubric is not None and not callable(rubric) and not isinstance(rubric, str):
            raise TypeError(
                f"`rubric` is {rubric!r}; pass a preset's name or a callable (trajectory, room) ->"
                " Rewards"
            )
        if process and rubric is None:
            raise ValueError("`process=True` scores every turn and needs a `rubric`")
        if episode_timeout_s is not None:
            _positive("episode_timeout_s", episode_timeout_s)
        _check_sandbox(sandbox, language=language, tools=tools, options=sandbox_options)
        make_prompt(prompt, language or "zh")
        self._config = _Config(
            comment=comment,
            sandbox=sandbox,
            sandbox_options=dict(sandbox_options or {}),
            language=language,
            embedder=embedder,
            tools=None if tools is None else _listed(tools),
            max_turns=max_turns,
            max_same_tool=max_same_tool,
            on_missing_rule=on_missing_rule,
            on_env_error=on_env_error,
            rubric=_rubric(rubric),
            process=process,
            prompt=prompt,
            result_format=make_result_format(result_format),
            timeout_s=episode_timeout_s,
        )
        self._recorded = _recorded(sandbox) if room is None else ()
        self._generated = _generated(room)
        self.rooms = self._known_rooms(room)
        for one in self.rooms:
            _check_comments(one, comment)
        if self._recorded:
            self._opening(0, {})
        elif isinstance(sandbox, str) and not re.search("^replay:|://", sandbox):
            # what is misspelt is told at once; files and secrets may be on other machines alone
            self._made_sandbox(_Task(self.rooms[0], self.rooms[0].content_hash, [])).close()
        self.render_mode = render_mode
        self._room: Room | None = None
        self._content_hash = ""
        self._sandbox: Sandbox | None = None
        self._episode: Episode | None = None
        self._deadline_s = math.inf
        self._shown = 0
        self.observation_space = ObservationSpace()
        self.action_space = ActionSpace(self._shown_specs())

    def _known_rooms(self, room: RoomSource | None) -> list[Room]:
        if self._recorded:
            return []
        if self._generated is not None:
            return [self._generated.room(0)]
        return find_rooms("bundled:train" if room is None else room)

    def _shown_specs(self) -> Sequence[ToolSpec]:
        """Return the tools before there is a sandbox."""
        if self._recorded:
            return self._recorded[0].tools
        sandbox, language = self._config.sandbox, self._config.language
        own = None if isinstance(sandbox, (str, type)) else getattr(sandbox, "specs", None)
        tools = self._config.tools
        if tools is not None and isinstance(sandbox, str) and "://" in sandbox:
            tools = tuple(tool for tool in tools if tool in TOOLS)  # others are the server's
        return own or resolve_tools(tools, language or self.rooms[0].language)[0]

    # --- Gymnasium ----------------------------------------------------------------------------

    def reset(
        self, *, seed: int | None = None, options: Mapping[str, Any] | None = None
    ) -> tuple[Observation, dict[str, Any]]:
        """Start an episode; `options` may name `room`, `comment` and `agents` for this one.

        `agents` is `["tool_caller", "replier"]` for two agents; see `Episode`.

        Raises:
            RoomNotFound, CommentNotFound, ValueError: `options` name what does not exist.
            SandboxError: the sandbox could not be reset.
        """
        gym.Env.reset(self, seed=seed)
        episode = self.start_episode(seed, options)
        if self.render_mode == "human":
            self._show()
        return episode.observation, self._info(episode)

    def start_episode(
        self, seed: int | None = None, options: Mapping[str, Any] | None = None
    ) -> Episode:
        """Reset the sandbox and return the episode, for drivers that alternate the two
        themselves."""
        seed, task = self._begin_reset(seed, options)
        if not self._holds(task):
            self._close_sandbox()
            self._take_sandbox(task)
        try:
            view = self.sandbox.reset(seed=seed, comments=task.comment_ids)
        except LivestreamError:
            raise
        except Exception as error:
            raise _reset_failed(error) from error
        return self._finish_reset(seed, task, view, options)

    async def astart_episode(
        self, seed: int | None = None, options: Mapping[str, Any] | None = None
    ) -> Episode:
        """Reset the sandbox, awaited where it is async, and return the episode."""
        seed, task = self._begin_reset(seed, options)
        if not self._holds(task):
            await self._aclose_sandbox()
            self._take_sandbox(task)
        try:
            reset = getattr(self.sandbox, "areset", self.sandbox.reset)
            view = await awaited(reset(seed=seed, comments=task.comment_ids))
        except LivestreamError:
            raise
        except Exception as error:
            raise _reset_failed(error) from error
        return self._finish_reset(seed, task, view, options)

    def _begin_reset(
        self, seed: int | None, options: Mapping[str, Any] | None
    ) -> tuple[int, _Task]:
        if seed is None:
            seed = int(self.np_random.integers(2**31))
        task = self._chosen(seed, options)
        self._episode = None
        return seed, task

    def _finish_reset(
        self, seed: int, task: _Task, view: RoomView, options: Mapping[str, Any] | None
    ) -> Episode:
        if view.content_hash != task.content_hash:
            own = "" if task.room is None else task.room.room_id
            raise RoomMismatch(
                f"the sandbox holds room `{view.room_id}` ({view.content_hash}), the environment"
                f" `{own}` ({task.content_hash}); give both the same room"
            )
        self._episode = self._new_episode(seed, task.comments, view, options)
        self._episode.sandbox_log = self.sandbox_log
        self._shown = 0
        if self._config.timeout_s is not None:
            self._set_deadline()
        return self._episode

    def _new_episode(
        self,
        seed: int,
        comments: Sequence[Comment],
        view: RoomView,
        options: Mapping[str, Any] | None,
    ) -> Episode:
        return Episode(
            view,
            comments=comments,
            seed=seed,
            specs=self.sandbox.specs,
            max_turns=self._config.max_turns,
            max_same_tool=self._config.max_same_tool,
            on_missing_rule=self._config.on_missing_rule,
            prompt=make_prompt(self._config.prompt, view.language),
            result_format=self._config.result_format,
            agents=options.get("agents", ONE_AGENT) if options else ONE_AGENT,
        )

    def _set_deadline(self) -> None:
        if self._config.timeout_s is not None:
            self._deadline_s = time.monotonic() + self._config.timeout_s

    def step(self, action: Any) -> tuple[Observation, SupportsFloat, bool, bool, dict[str, Any]]:
        """Take one assistant message: an `Action`, a model's text or an OpenAI message.

        Returns 0.0 before the last step and without a rubric; a rubric without a score on the last
        step gives NaN, and `info["rewards"]` says why.

        Raises:
            InvalidAction: `action` is none of these.
            ResetNeeded: before `reset` or after the end.
            SandboxError: infrastructure failed, with `on_env_error="raise"`.
        """
        results: list[ToolResult] = []
        try:
            for call in self.begin_step(action):
                results.append(self.run_call(call))
        except SandboxError as error:
            observation = self.fail_step(error)
            if self._config.on_env_error == "raise":
                raise
            return self._stepped(self.episode, observation)
        return self.finish_step(results)

    def begin_step(self, action: Any) -> tuple[ToolCall, ...]:
        """Take an action and return the calls to run: the first half of `step`, for drivers."""
        episode = self._episode or self.episode
        calls = episode.submit(action)
        if self._config.timeout_s is not None and time.monotonic() > self._deadline_s:
            episode.abort("driver", f"`episode_timeout_s` of {self._config.timeout_s} passed")
            return ()
        return calls

    def run_call(self, call: ToolCall) -> ToolResult:
        """Run one call in the sandbox; every exception but `SandboxError` becomes one."""
        try:
            result = (self._sandbox or self.sandbox).call(call)
        except SandboxError:
            raise
        except Exception as error:
            raise call_failed(call, error) from error
        is_its = type(result) is ToolResult and result.call_id == call.id
        return result if is_its and type(result.content) is str else checked_result(call, result)

    def fail_step(self, error: SandboxError | ChatError) -> Observation:
        """End the episode because infrastructure failed: what runs its calls, or its policy's
        endpoint."""
        self.episode.sandbox_log = self.sandbox_log
        self.episode.abort("env_error", cause_of(error))
        return Observation(())

    def finish_step(
        self, results: Sequence[ToolResult]
    ) -> tuple[Observation, float, bool, bool, dict[str, Any]]:
        """Take the results of `begin_step`'s calls: the second half of `step`."""
        episode = self._episode or self.episode
        if self._sandbox is not None and (log := self._sandbox.log()):
            episode.sandbox_log = tuple(log)
        if episode.stop_reason is not None:
            return self._stepped(episode, Observation(()))
        try:
            observation = episode.resume(results)
        except Exception as error:
            episode.abort("driver", f"the results could not be told: {error}")
            raise
        return self._stepped(episode, observation)

    def _stepped(
        self, episode: Episode, observation: Observation
    ) -> tuple[Observation, float, bool, bool, dict[str, Any]]:
        reward = 0.0 if self._config.rubric is None else self._score(episode, self._config.rubric)
        if self.render_mode == "human":
            self._show()
        info = self._info(episode)
        if episode.stop_reason is None:
            return observation, reward, False, False, info
        return observation, reward, not episode.truncated, episode.truncated, info

    def _score(self, episode: Episode, rubric: Rubric) -> float:
        if episode.status is Status.ENV_ERROR:
            return math.nan
        if not (episode.done or self._config.process):
            return 0.0
        rewards = checked_rewards(rubric(episode.trajectory, self._room))
        value = rewards.total() if episode.done else 0.0
        if self._config.process:
            turn = len(episode.turns) - 1
            own = [s for s in rewards.scores if s.turn == turn and s.value is not None]
            made = sum(score.weight * (score.value or 0.0) for score in own)
            value = made if value is None and own else None if value is None else value + made
        episode.score(rewards, turn_reward=value)
        return math.nan if value is None else value

    def _info(self, episode: Episode) -> dict[str, Any]:
        turns, tasks, stop = episode.turns, episode.tasks, episode.stop_reason
        events = turns[-1].events if turns else ()
        attempted = episode.calls_attempted
        info: dict[str, Any] = {
            "room_id": episode.view.room_id,
            "comment_ids": [*tasks],
            "tasks": tasks.copy(),
            "seed": episode.seed,
            "turn": len(turns),
            "agent": episode.agent,
            "phase": episode.phase,
            "events": [event.kind for event in events] if events else [],
            "calls": {
                "attempted": attempted,
                "parsed": attempted - episode.calls_unparsed,
                "executed": episode.calls_executed,
                "over_limit": episode.calls_over_limit,
            },
            "stop_reason": None if stop is None else stop.value,
            "status": "running" if stop is None else episode.status.value,
        }
        if episode.rewards is not None:
            info["rewards"] = _rewards_info(episode.rewards)
        return info

    def render(self) -> str | None:
        """Return the transcript (`ansi`), or print what is new of it (`human`)."""
        if self.render_mode == "human":
            self._show()
            return None
        if self._episode is None:
            return ""
        return transcript(self._episode)

    def _show(self) -> None:
        text = transcript(self.episode)
        encoding = getattr(sys.stdout, "encoding", None) or "utf-8"
        shown = text[self._shown :].encode(encoding, "backslashreplace").decode(encoding)
        sys.stdout.write(shown)
        sys.stdout.flush()
        self._shown = len(text)

    def close(self) -> None:
        """Release the sandbox; closing twice is fine."""
        self._close_sandbox()
        self._sandbox = None
        self._episode = None

    async def aclose(self) -> None:
        """Release the sandbox, awaited where it is async."""
        await self._aclose_sandbox()
        self._sandbox = None
        self._episode = None

    # --- beyond Gymnasium ---------------------------------------------------------------------

    @property
    def episode(self) -> Episode:
        """The episode being played.

        Raises:
            ResetNeeded: before `reset`.
        """
        if self._episode is None:
            raise ResetNeeded("there is no episode; call `reset` first")
        return self._episode

    @property
    def trajectory(self) -> Trajectory:
        """The record of the episode so far."""
        return self.episode.trajectory

    @property
    def tasks(self) -> int:
        """How many seeds visit every comment (or burst) of the rooms once; of generated rooms,
        which have no end, of the first."""
        if self._recorded:
            return len(self._recorded)
        burst = _burst_of(self._config.comment)
        return sum(len(room.comments) - burst + 1 for room in self.rooms)

    @property
    def room(self) -> Room | None:
        """The room of the episode, with its key; `None` where a recording is all that is known."""
        return self._room

    @property
    def sandbox(self) -> Sandbox:
        """The sandbox of the episode.

        Raises:
            ResetNeeded: before `reset`.
        """
        if self._sandbox is None:
            raise ResetNeeded("there is no sandbox yet; call `reset` first")
        return self._sandbox

    @property
    def sandbox_log(self) -> tuple[TurnEvent, ...]:
        """The faults and retries below the episode so far, also of a reset that failed."""
        return () if self._sandbox is None else tuple(self._sandbox.log())

    def fork(self, at_turn: int | None = None) -> LiveRoomEnv:
        """Return an environment that stands after the first `at_turn` turns, by default after all.

        Messages, results and room are shared, not copied; the branches do not see each other's
        state.
        """
        episode = self.episode.fork(at_turn)
        return self._fork_with(episode, sum(_executed(turn) for turn in episode.turns))

    def _fork_with(self, episode: Episode, calls: int) -> LiveRoomEnv:
        """Return an environment of a forked episode whose sandbox has run that many calls."""
        forked = self._without_episode()
        forked._sandbox = self.sandbox.fork(calls)
        episode.sandbox_log = forked.sandbox_log
        forked._episode = episode
        return forked

    def another(self) -> LiveRoomEnv:
        """Return an environment of the same arguments and rooms, which it shares, that was not
        reset: what `rollouts` and its kin take as `make_env`."""
        made = self._without_episode()
        made._sandbox = made._episode = made._room = None
        made._content_hash = ""
        return made

    def _without_episode(self) -> LiveRoomEnv:
        made = object.__new__(type(self))
        made.__dict__.update(self.__dict__)
        made.observation_space = ObservationSpace()
        made.action_space = ActionSpace(self.action_space.specs)  # type: ignore[attr-defined]
        made._np_random = None
        made._np_random_seed = None
        made._shown = 0
        made._set_deadline()
        return made

    # --- rooms and comments -------------------------------------------------------------------

    def task_of(
        self, seed: int, options: Mapping[str, Any] | None = None
    ) -> tuple[Room | None, tuple[str, ...]]:
        """Return the room (`None` of a recording) and the comments that `reset` would open."""
        task = self._chosen(seed, options)
        return task.room, tuple(task.comment_ids)

    def _chosen(self, seed: int, options: Mapping[str, Any] | None) -> _Task:
        if options:
            _check_options(options)
        if self._recorded:
            return self._recorded_task(seed, options or {})
        room, comments = self._chosen_comments(seed, options)
        return _Task(room, room.content_hash, [c.comment_id for c in comments], comments)

    def _recorded_task(self, seed: int, options: Mapping[str, Any]) -> _Task:
        line = self._opening(seed, options)
        return _Task(None, line.content_hash, line.comments)

    def _opening(self, seed: int, options: Mapping[str, Any]) -> ResetLine:
        """Return the recorded episode that a seed opens."""
        from livestream_env.sandbox.replay import choose_opening

        comment = options.get("comment", self._config.comment)
        return choose_opening(self._recorded, seed, room=options.get("room"), comment=comment)

    def _chosen_comments(
        self, seed: int, options: Mapping[str, Any] | None
    ) -> tuple[Room, Sequence[Comment]]:
        rooms, source, generated = self.rooms, self._config.comment, self._generated
        if options:
            name = options.get("room")
            if name is not None:
                generated = _generated(name)
                rooms = self._named_rooms(name) if generated is None else [generated.room(0)]
            source = options.get("comment", source)
            for one in rooms:
                _check_comments(one, source)
        if generated is not None:
            room, index = generated.find(seed)
            if source is not None and not _is_counted(source):
                room = generated.room(seed)
            return room, _of_room(room, source, index)
        if source is None or _is_counted(source):
            return _by_seed(rooms, seed, source)
        room = rooms[seed % len(rooms)]
        return room, _of_room(room, source, 0)

    def _named_rooms(self, name: Any) -> list[Room]:
        own = [room for room in self.rooms if room.room_id == name]
        return own or find_rooms(name)

    def _holds(self, task: _Task) -> bool:
        """Return whether the sandbox is that of the task's room."""
        is_same = task.room is self._room and task.content_hash == self._content_hash
        return self._sandbox is not None and is_same

    def _take_sandbox(self, task: _Task) -> None:
        """Make the sandbox of the task's room; the one before is closed."""
        self._sandbox = None
        self._sandbox = self._made_sandbox(task)
        self._room, self._content_hash = task.room, task.content_hash

    def _close_sandbox(self) -> None:
        """Close the sandbox that this environment made; one that it was given stays open.

        One that fails to close is warned of: an episode that was played keeps its reward.
        """
        if self._sandbox is not None and self._sandbox is not self._config.sandbox:
            try:
                self._sandbox.close()
            except Exception as error:  # of whatever the sandbox is made of
                _warn_of_close(error)

    async def _aclose_sandbox(self) -> None:
        """Close the sandbox as `_close_sandbox` does, awaited where it is async."""
        if self._sandbox is not None and self._sandbox is not self._config.sandbox:
            try:
                await awaited(getattr(self._sandbox, "aclose", self._sandbox.close)())
            except Exception as error:
                _warn_of_close(error)

    def _made_sandbox(self, task: _Task) -> Sandbox:
        source, room = self._config.sandbox, task.room
        options = {
            "language": self._config.language,
            "embedder": self._config.embedder,
            "tools": self._config.tools,
            **self._config.sandbox_options,
        }
        if isinstance(source, str) and room is None:
            return make_replay(source, task.content_hash, **options)
        if room is None:
            assert isinstance(source, Sandbox)
            return source
        if isinstance(source, type) or not isinstance(source, (str, Sandbox)):
            made = source(room)
            if not isinstance(made, Sandbox):
                raise TypeError(f"`sandbox` made {made!r}, which is no `Sandbox`")
            return made
        return make_sandbox(source, room, **options)


def _rubric(rubric: str | Rubric | None) -> Rubric | None:
    if not isinstance(rubric, str):
        return rubric
    from livestream_env.rewards import make_rubric

    return make_rubric(rubric)


def checked_result(call: ToolCall, result: object) -> ToolResult:
    """Return a sandbox's result, or raise `SandboxError` where it is none or another call's."""
    if not isinstance(result, ToolResult) or not isinstance(result.content, str):
        raise SandboxError(f"tool `{call.name}` gave {result!r:.200}, which is no `ToolResult`")
    if result.call_id != call.id:
        raise SandboxError(f"call `{call.id}` was answered by the result of `{result.call_id}`")
    return result


def _reset_failed(error: Exception) -> SandboxError:
    return SandboxError(f"the sandbox failed at reset: {error!r}")


def _warn_of_close(error: Exception) -> None:
    told = f"the sandbox failed to close, and may hold what it held: {error!r}"
    warnings.warn(told, RuntimeWarning, stacklevel=4)


async def awaited(value: Any) -> Any:
    """Return a value, awaited where it has to be."""
    return await value if inspect.isawaitable(value) else value


def call_failed(call: ToolCall, error: Exception) -> SandboxError:
    """Name an exception of a sandbox as the failure of infrastructure that it is."""
    return SandboxError(f"tool `{call.name}` failed: {error!r}")


def cause_of(error: SandboxError | ChatError) -> str:
    """Say why an episode failed, with the kind of failure where it has one."""
    return str(error) if type(error) is SandboxError else f"{type(error).__name__}: {error}"


def _one_of(name: str, given: object, known: Sequence[object]) -> None:
    if given not in known:
        names = ", ".join(repr(one) for one in known)
        hint = (
            did_you_mean(given, [k for k in known if isinstance(k, str)])
            if isinstance(given, str)
            else ""
        )
        raise ValueError(f"`{name}` is {given!r}; it is one of {names}.{hint}")


def _listed(tools: Sequence[ToolSource]) -> tuple[ToolSource, ...]:
    if isinstance(tools, str):
        raise TypeError(f"`tools` is {tools!r}; it is a list of tool names or tools")
    return tuple(tools)


def _positive(name: str, given: object) -> None:
    if not isinstance(given, (int, float)) or isinstance(given, bool) or not given > 0:
        raise ValueError(f"`{name}` is {given!r}; it is a number above 0")


def _check_sandbox(sandbox: object, *, language: object, tools: object, options: object) -> None:
    if isinstance(sandbox, str):
        return
    if not (callable(sandbox) or isinstance(sandbox, Sandbox)):
        raise TypeError(f"`sandbox` is {sandbox!r}; use `local`, a `Sandbox`, or what makes one")
    for name, given in (("language", language), ("tools", tools), ("sandbox_options", options)):
        if given is not None:
            raise ValueError(f"`{name}` has no effect on a sandbox of your own; give it to that")


def _at_least(name: str, given: object, least: int) -> None:
    if not isinstance(given, int) or isinstance(given, bool) or given < least:
        raise ValueError(f"`{name}` is {given!r}; it is a whole number from {least}")


def _check_comments(room: Room, source: CommentSource) -> None:
    if not room.comments:
        raise RoomNotFound(f"room `{room.room_id}` has no comments to play")
    if source is None:
        return
    if isinstance(source, str) and source.startswith("burst:"):
        size = _burst_size(source)
        if size > len(room.comments):
            count = len(room.comments)
            raise CommentNotFound(f"room `{room.room_id}` has {count} comments, too few for {size}")
        return
    if isinstance(source, str) and source.startswith("window:"):
        _window_s(source)
        return
    if not isinstance(source, Sequence):  # YAML readers have lists of their own
        raise TypeError(f"`comment` is {source!r}; it is an id, a list of ids or `burst:3`")
    if not source:
        raise CommentNotFound("`comment` is empty; name at least one comment")
    ids = [source] if isinstance(source, str) else source
    for comment_id in ids:
        room.comment(comment_id)
    if len(set(ids)) < len(ids):
        raise ValueError(f"`comment` is {source!r}; name each comment once")


def _check_options(options: Mapping[str, Any]) -> None:
    for name in options:
        if name not in ("room", "comment", "agents"):
            hint = did_you_mean(name, ("room", "comment", "agents"))
            raise ValueError(f"`options` takes `room`, `comment` and `agents`, not `{name}`.{hint}")


def _burst_size(source: str) -> int:
    size = source.removeprefix("burst:")
    if not size.isascii() or not size.isdigit() or int(size) < 1:
        raise ValueError(f"`comment` is {source!r}; a burst is `burst:3`, with 1 or more comments")
    return int(size)


def _window_s(source: str) -> float:
    found = re.fullmatch(r"window:(\d{1,6}(?:\.\d{1,3})?)s", source)
    if found is None:
        raise ValueError(f"`comment` is {source!r}; a window is `window:10s`, in seconds")
    return float(found[1])


def _recorded(sandbox: object) -> tuple[ResetLine, ...]:
    """Return the episodes that `replay:FILE`, or the sandbox of that kind, holds."""
    if isinstance(sandbox, str) and not sandbox.startswith(REPLAY):
        return ()
    from livestream_env.sandbox.replay import ReplaySandbox, read_recording

    if isinstance(sandbox, ReplaySandbox):
        return tuple(sandbox.file.openings.values())
    if isinstance(sandbox, str):
        return tuple(read_recording(sandbox.removeprefix(REPLAY)).openings.values())
    return ()


def _generated(room: RoomSource | None) -> GeneratedRooms | None:
    if not isinstance(room, str) or not room.startswith("generated:"):
        return None
    from livestream_env.synthetic import parse_generated

    return parse_generated(room)


def _is_counted(source: CommentSource) -> bool:
    """Return whether the seed chooses where a burst or window lies."""
    return isinstance(source, str) and source.startswith(("burst:", "window:"))


def _burst_of(source: CommentSource) -> int:
    is_burst = isinstance(source, str) and source.startswith("burst:")
    return _burst_size(str(source)) if is_burst else 1


def _by_seed(
    rooms: Sequence[Room], seed: int, source: CommentSource
) -> tuple[Room, Sequence[Comment]]:
    """Return the comments that a seed visits: file order within room order."""
    if source is None and len(rooms) == 1:
        comments = rooms[0].comments
        index = seed % len(comments)
        return rooms[0], comments[index : index + 1]
    burst = _burst_of(source)
    counts = [len(room.comments) - burst + 1 for room in rooms]
    number = seed % sum(counts)
    index = 0
    while number >= counts[index]:
        number -= counts[index]
        index += 1
    return rooms[index], _of_room(rooms[index], source, number)


def _of_room(room: Room, source: CommentSource, index: int) -> Sequence[Comment]:
    """Return the comments of a room that `source` names, around the `index`-th where it counts."""
    if source is None:
        return room.comments[index : index + 1]
    if not _is_counted(source):
        return [room.comment(one) for one in ([source] if isinstance(source, str) else source)]
    if str(source).startswith("burst:"):
        size = _burst_of(source)
        start = min(index, len(room.comments) - size)
        return room.comments[start : start + size]
    centre, half_s = room.comments[index], _window_s(str(source)) / 2
    return [c for c in room.comments if abs(c.at_s - centre.at_s) <= half_s]


def _executed(turn: Turn) -> int:
    """Count the calls of a turn that reached the sandbox."""
    refused = ("tool_limit", "tool_not_available")
    pairs = zip(turn.action.message.tool_calls, turn.results, strict=False)
    return sum(call.error is None and result.error not in refused for call, result in pairs)


def _rewards_info(rewards: Rewards) -> dict[str, Any]:
    return {
        "total": rewards.total(),
        "scores": [
            {"name": s.name, "agent": s.agent, "turn": s.turn, "value": s.value, "weight": s.weight}
            | {"reason": s.reason, "cause": s.cause}
            for s in rewards.scores
        ],
    }


# --- rendering -------------------------------------------------------------------------------


def transcript(episode: Episode | Trajectory) -> str:
    """Write an episode as readable text: comments, calls, results, events, reply.

    Control characters of viewers, tools and models are shown escaped.
    """
    lines = [_comment_line(comment) for comment in _comments(episode)]
    for turn in episode.turns:
        lines += _turn_lines(turn)
    if episode.stop_reason is not None:
        lines.append(f"[{episode.stop_reason}]")
    return "".join(f"{line}\n" for line in lines)


def _comments(episode: Episode | Trajectory) -> Sequence[Any]:
    return episode.view.comments if isinstance(episode, Episode) else ()


def _comment_line(comment: Any) -> str:
    return f"{comment.at_s:8.1f}s  {safe(comment.viewer)}: {safe(comment.text)}"


def _turn_lines(turn: Turn) -> list[str]:
    message = turn.action.message
    lines = [f"  > {safe(message.content)}"] if message.content or not message.tool_calls else []
    results = {result.call_id: result for result in turn.results}
    for call in message.tool_calls:
        arguments = ", ".join(f"{key}={value!r}" for key, value in call.arguments.items())
        lines.append(f"  * {safe(call.name or '?')}({safe(arguments)})")
        if call.id in results:
            lines.append(f"    = {safe(results[call.id].content)}")
    lines += [f"  ! {event.kind} {safe(event.detail)}".rstrip() for event in turn.events]
    lines += [f"  < {safe(m.content)}" for m in turn.messages if m.role == "user"]
    return lines


__all__ = ["Action", "LiveRoomEnv", "RoomView", "Rubric", "transcript"]
