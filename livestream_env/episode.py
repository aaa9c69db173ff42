"""The episode: a state machine without I/O.

A driver alternates `calls = episode.submit(action)` with `episode.resume(results)`, where
`results` are what a sandbox returned for `calls`, in order; for a reply `calls` is empty and so
are the results. Every driver, environment and adapter only moves values in and out, so all give
one transcript.
"""

from __future__ import annotations

import copy
import json
import os
import time
from collections.abc import Callable, Iterable, Mapping, Sequence, Set
from dataclasses import dataclass, replace
from functools import lru_cache
from hashlib import blake2b
from typing import Any, Literal

from livestream_env.errors import ResetNeeded, TemplateError, did_you_mean
from livestream_env.parsing import to_action
from livestream_env.prompts import (
    Prompt,
    ResultFormat,
    TemplatePrompt,
    make_prompt,
    make_result_format,
    reminder_text,
)
from livestream_env.rooms import Comment, FollowUp
from livestream_env.tools import compiled_schema, error_content, schema_fault, tool_specs
from livestream_env.types import (
    Action,
    CommentView,
    Message,
    Observation,
    Rewards,
    RoomView,
    State,
    Status,
    StopReason,
    ToolCall,
    ToolResult,
    ToolSpec,
    Trajectory,
    Turn,
    TurnEvent,
)
from livestream_env.version import VERSION
from livestream_env.words import asks, clean_text, fold

OnMissingRule = Literal["end", "remind"]
RULE_TOOL = "get_reply_rule"
ONE_AGENT = ("host",)
TWO_AGENTS = ("tool_caller", "replier")
_STATUS = {
    StopReason.TURN_LIMIT: Status.POLICY_TRUNCATED,
    StopReason.TOKEN_LIMIT: Status.POLICY_TRUNCATED,
    StopReason.ABORTED: Status.ENV_ERROR,
    StopReason.ENV_ERROR: Status.ENV_ERROR,
}
_FAULTS = frozenset(
    {"invalid_json", "unclosed", "missing_name", "invalid_arguments", "unsupported"}
)
_REFUSED = frozenset({"tool_limit", "tool_not_available"})
NOT_EXECUTED = _REFUSED | {"unknown_tool", "invalid_arguments"}
"""Errors of calls that no tool was run for."""
_NONE_REFUSED: Mapping[int, ToolResult] = {}
_ABORTS = {
    "length": StopReason.TOKEN_LIMIT,
    "turns": StopReason.TURN_LIMIT,
    "driver": StopReason.ABORTED,
    "env_error": StopReason.ENV_ERROR,
}


@dataclass(frozen=True, slots=True)
class Seat:
    """How one agent of an episode is set up."""

    prompt: str | os.PathLike[str] | Prompt | None = None
    """Its first messages, as `gym.make`'s `prompt`; by default the episode's."""
    tools: Sequence[str] | None = None
    """Names of the tools that it is shown, in this order, and may call; by default all."""
    is_partner: bool = False
    """Whether its turns are context for the others, never trained."""


class Episode:
    """One episode on the comments of a view.

    `comments` are the open comments with their key, for follow-ups; `agents` is `("host",)`, or
    `("tool_caller", "replier")` for two, or `("tool_caller",)` for a tool caller without a replier;
    a mapping gives these names a `Seat`. Where the tools lack `get_reply_rule`, no rule has to be
    looked up.
    """

    __slots__ = (
        "_agents",
        "_alone",
        "_asked_s",
        "_base",
        "_comment_ids",
        "_follow_ups",
        "_format",
        "_key",
        "_known",
        "_known_sum",
        "_limit",
        "_make_prompt",
        "_max_turns",
        "_on_missing_rule",
        "_open",
        "_partners",
        "_pending",
        "_phase_turns",
        "_reminded",
        "_rule_needed",
        "_same_as",
        "_situation",
        "_spoken",
        "_told_off",
        "_used",
        "_withheld",
        "agent",
        "calls_attempted",
        "calls_executed",
        "calls_over_limit",
        "calls_unparsed",
        "faults",
        "group",
        "phase",
        "prompt",
        "prompts",
        "rewards",
        "rule_found",
        "sandbox_log",
        "seed",
        "specs",
        "state",
        "stop_reason",
        "tasks",
        "tools",
        "turns",
        "view",
    )

    def __init__(
        self,
        view: RoomView,
        *,
        comments: Sequence[Comment] = (),
        seed: int | None = None,
        specs: Sequence[ToolSpec] | None = None,
        max_turns: int = 8,
        max_same_tool: int = 2,
        on_missing_rule: OnMissingRule = "end",
        prompt: Prompt | None = None,
        result_format: ResultFormat | None = None,
        agents: Sequence[str] | Mapping[str, Seat] = ONE_AGENT,
        group: str | None = None,
    ) -> None:
        self.view = view
        self.seed = seed
        self.group = group
        self.specs = tuple(specs) if specs is not None else tool_specs(view.language)
        self._max_turns = max_turns
        self._limit = max_same_tool * max(1, len(view.comments))
        self._on_missing_rule = on_missing_rule
        self._make_prompt = make_prompt(prompt, view.language)
        self._format = make_result_format(result_format)
        self._agents = ONE_AGENT if agents is ONE_AGENT else _checked_agents(agents)
        self._alone = self._agents == ONE_AGENT
        self._follow_ups: list[tuple[str, FollowUp]] = []
        self._same_as: dict[str, str] = {}
        for comment in comments:
            for follow_up in comment.follow_ups:
                self._follow_ups.append((comment.comment_id, follow_up))
            if comment.same_as is not None:
                self._same_as[comment.comment_id] = comment.same_as
        made = self._make_prompt(view, self.specs, max_same_tool=max_same_tool)
        is_ours = type(self._make_prompt) is TemplatePrompt
        self.prompt: tuple[Message, ...] = tuple(made) if is_ours else _checked_prompt(made)
        self.prompts = dict.fromkeys(self._agents, self.prompt)
        """First messages, by agent."""
        self.tools = dict.fromkeys(self._agents, self.specs)
        """Tools that an agent is shown, by agent."""
        self._withheld: dict[str, frozenset[str]] = {}
        self._partners: tuple[str, ...] = ()
        if isinstance(agents, Mapping):
            self._take_seats(agents, max_same_tool)
        self._comment_ids = tuple([comment.comment_id for comment in view.comments])
        self._rule_needed = False
        for spec in self.tools[self._agents[0]]:
            if spec.name == RULE_TOOL:
                self._rule_needed = True
        self._situation = "\0".join(
            (view.room_id, view.content_hash, view.language, *self._comment_ids)
        )
        self._begin()

    def _take_seats(self, seats: Mapping[str, Seat], max_same_tool: int) -> None:
        """Give the agents their own prompts and tools."""
        named = {spec.name: spec for spec in self.specs}
        self._partners = tuple([agent for agent, seat in seats.items() if seat.is_partner])
        for agent, seat in seats.items():
            if seat.tools is not None:
                _check_tools(agent, seat.tools, named.keys())
                self.tools[agent] = tuple([named[name] for name in dict.fromkeys(seat.tools)])
                self._withheld[agent] = frozenset(named.keys() - set(seat.tools))
            if seat.tools is not None or seat.prompt is not None:
                prompt = self._make_prompt
                if seat.prompt is not None:
                    prompt = make_prompt(seat.prompt, self.view.language)
                made = prompt(self.view, self.tools[agent], max_same_tool=max_same_tool)
                self.prompts[agent] = _checked_prompt(made)
        self.prompt = self.prompts[self._agents[0]]

    def _begin(self) -> None:
        """Set everything that turns change to what it is before the first."""
        self.turns: list[Turn] = []
        self.state: State = self.view.state
        self.stop_reason: StopReason | None = None
        self.rewards: Rewards | None = None
        self.faults: tuple[TurnEvent, ...] = ()
        self.sandbox_log: tuple[TurnEvent, ...] = ()
        """Faults and retries below the episode; whoever runs the calls sets it."""
        self.phase: Literal["tools", "reply"] = "tools"
        self.agent = self._agents[0]
        """Name of the agent whose turn it is."""
        self.rule_found = not self._rule_needed
        self.tasks = dict.fromkeys(self._comment_ids, "pending")
        self._reminded = False
        self._told_off = False
        self._spoken: set[int] = set()
        self._used: dict[str, int] = {}
        self._phase_turns = 0
        self.calls_attempted = self.calls_unparsed = 0
        self.calls_executed = self.calls_over_limit = 0
        self._known: set[tuple[str, str, str]] = set()
        self._known_sum = 0
        self._key: str | None = None
        self._open = self.view.comments
        self._pending: tuple[Action, Mapping[int, ToolResult], int] | None = None
        self._asked_s = time.time()
        self._set_base()

    # --- what can be read ---------------------------------------------------------------------

    @property
    def done(self) -> bool:
        """Whether the episode has ended."""
        return self.stop_reason is not None

    @property
    def status(self) -> Status:
        """Whether the episode may be learnt from."""
        if self.stop_reason is None:
            return Status.RUNNING
        return _STATUS.get(self.stop_reason, Status.OK)

    @property
    def truncated(self) -> bool:
        """Whether the episode was cut rather than ended by the agent."""
        return self.stop_reason in _STATUS

    @property
    def state_key(self) -> str:
        """64-bit blake2b (16 hex digits) of the situation: room, comments, phase, state,
        reminder, and the set of look-ups known so far with their results, whatever their
        order."""
        if self._key is None:
            self._key = _situation_digest(self._base, self.rule_found, self._known_sum)
        return self._key

    @property
    def open_comments(self) -> tuple[CommentView, ...]:
        """The comments that are neither answered nor skipped."""
        return self._open

    @property
    def agents(self) -> tuple[str, ...]:
        """Names of the agents, in the order of their phases."""
        return self._agents

    def conversation(self, agent: str) -> tuple[Message, ...]:
        """Return what an agent knows by now: its own prompt, then every turn of any agent."""
        messages = list(self.prompts[agent])
        for turn in self.turns:
            messages += (turn.action.message, *turn.messages)
        return tuple(messages)

    def observation_of(self, agent: str) -> Observation:
        """Return the whole conversation of an agent, its tools, and the open comments."""
        prompt = self.conversation(agent) if self.turns else self.prompts[agent]
        return Observation(prompt, self.tools[agent], self._open)

    @property
    def observation(self) -> Observation:
        """The first observation of the agent whose turn it is: prompt, tools and comments."""
        return self.observation_of(self.agent)

    @property
    def trajectory(self) -> Trajectory:
        """The record so far."""
        view = self.view
        return Trajectory.model_construct(
            room_id=view.room_id,
            content_hash=view.content_hash,
            comment_ids=self._comment_ids,
            seed=self.seed,
            group=self.group,
            prompts=dict(self.prompts),
            tools=dict(self.tools),
            partners=self._partners,
            turns=tuple(self.turns),
            state=self.state,
            status=self.status,
            stop_reason=self.stop_reason,
            rewards=self.rewards,
            versions={"livestream_env": VERSION, "embedder": view.embedder},
            faults=(*self.sandbox_log, *self.faults),
            evidence=view.data,
        )

    # --- moving on ----------------------------------------------------------------------------

    def submit(self, action: object) -> tuple[ToolCall, ...]:
        """Take the agent's message and return the calls that a sandbox is to run, in order.

        Raises:
            InvalidAction: `action` is neither an `Action`, nor a model's text, nor a chat message.
            ResetNeeded: the episode has ended.
            RuntimeError: the results of the action before are still due.
        """
        if self.stop_reason is not None:
            raise ResetNeeded("the episode has ended; call `reset` before the next `step`")
        if self._pending is not None:
            raise RuntimeError("the last action's results are due: call `resume` first")
        read = to_action(action, turn=len(self.turns), tools=self.specs)
        calls = read.message.tool_calls
        if not calls or read.stop == "length":
            self._pending = read, _NONE_REFUSED, 0
            return ()
        if len(calls) == 1:
            refusal = self._refusal(calls[0], self._used)
            self._pending = (read, _NONE_REFUSED, 1) if refusal is None else (read, {0: refusal}, 0)
            return calls if refusal is None else ()
        refused: dict[int, ToolResult] = {}
        to_run: list[ToolCall] = []
        used = dict(self._used)
        for i, call in enumerate(calls):
            refusal = self._refusal(call, used)
            if refusal is None:
                used[call.name] = used.get(call.name, 0) + self._will_run(call)
                to_run.append(call)
            else:
                refused[i] = refusal
        self._pending = read, refused, len(to_run)
        return tuple(to_run)

    def _will_run(self, call: ToolCall) -> bool:
        """Return whether there is such a tool and it takes the arguments: only then it counts."""
        spec = next((spec for spec in self.specs if spec.name == call.name), None)
        if spec is None:
            return False
        return schema_fault(_schema(spec), call.arguments) is None

    def _refusal(self, call: ToolCall, used: Mapping[str, int]) -> ToolResult | None:
        if call.error is not None:
            language = self.view.language
            code, _, problem = call.error.partition(": ")
            code = code if code in _FAULTS else "invalid_call"
            content = error_content(language, code, problem=problem)
            return ToolResult(call.id, content, error=code)
        name = call.name
        is_withheld = self._withheld and name in self._withheld.get(self.agent, ())
        if is_withheld or self.phase == "reply":
            content = error_content(self.view.language, "tool_not_available", given=name)
            return ToolResult(call.id, content, error="tool_not_available")
        if used.get(name, 0) >= self._limit:
            content = error_content(self.view.language, "tool_limit", given=name, limit=self._limit)
            return ToolResult(call.id, content, error="tool_limit")
        return None

    def resume(self, results: Sequence[ToolResult] = ()) -> Observation:
        """Take the results of the calls of `submit`, in order, and return what the agent is told.

        Raises:
            RuntimeError: no action is pending.
            ValueError: the results are not those of the calls.
        """
        if self._pending is None:
            raise RuntimeError("no action is pending: call `submit` first")
        action, refused, count = self._pending
        if len(results) != count:
            raise ValueError(f"got {len(results)} results for {count} calls")
        calls = action.message.tool_calls
        if refused:
            given = iter(results)
            results = [refused.get(i) or next(given) for i in range(len(calls))]
        if action.stop == "length":
            observation = self._end(action, StopReason.TOKEN_LIMIT, [TurnEvent("cut")])
        elif calls:
            observation = self._after_tools(action, tuple(results))
        else:
            observation = self._after_reply(action)
        self._pending = None
        return observation

    def _after_tools(self, action: Action, results: tuple[ToolResult, ...]) -> Observation:
        messages: list[Message] = []
        events: list[TurnEvent] = []
        for call, result in zip(action.message.tool_calls, results, strict=True):
            if call.id != result.call_id:
                raise ValueError(f"got the result of call `{result.call_id}` for `{call.id}`")
            text = result.content if self._format is None else self._formatted(call, result)
            messages.append(Message("tool", text, (), call.id))
            if result.events:
                events.extend(result.events)
            if result.error is not None:
                events.append(TurnEvent(_event_kind(call, result.error), result.error, call.id))
        told = tuple(messages)
        self._record(action, results, told, events)
        if self._alone and len(self.turns) < self._max_turns:
            return Observation(told, (), self._open)
        stop = self._stop_after_tools()
        if stop is not None:
            self._stop(stop)
        return Observation(told, (), self._open)

    def _formatted(self, call: ToolCall, result: ToolResult) -> str:
        text: object = None if self._format is None else self._format(call, result)
        if not isinstance(text, str):
            raise TemplateError(f"`result_format` returned {text!r}; it returns text")
        return clean_text(text)

    def _stop_after_tools(self) -> StopReason | None:
        if self._alone:
            return StopReason.TURN_LIMIT if len(self.turns) >= self._max_turns else None
        if self.phase == "reply":
            if self._told_off:
                return StopReason.NO_REPLY
            self._told_off = True
            return None
        if self.rule_found:
            if len(self._agents) == 1:
                return StopReason.TOOLS_DONE
            self._enter("reply")
            return None
        return StopReason.NO_REPLY if self._phase_turns >= self._max_turns else None

    def _after_reply(self, action: Action) -> Observation:
        events = self._reply_events(action)
        if not self._alone and self.phase == "tools":
            return self._end(action, StopReason.NO_REPLY, events)
        if not self.rule_found:
            return self._without_rule(action, events)
        follow_up = self._fitting_follow_up(action)
        if follow_up is None:
            return self._end(action, StopReason.REPLIED, events)
        message = Message("user", self._follow_ups[follow_up][1].text)
        events.append(TurnEvent("follow_up", str(follow_up)))
        self._record(action, (), (message,), events)
        self._viewer_speaks(follow_up, action)
        return self._asked_again(message)

    def _without_rule(self, action: Action, events: list[TurnEvent]) -> Observation:
        events.append(TurnEvent("missing_rule"))
        if self._on_missing_rule == "end" or self._reminded:
            return self._end(action, StopReason.REPLIED_WITHOUT_RULE, events)
        message = Message("user", reminder_text(self._make_prompt, self.view.language))
        events.append(TurnEvent("reminder"))
        self._record(action, (), (message,), events)
        self._remind()
        return self._asked_again(message)

    def _asked_again(self, message: Message) -> Observation:
        if self._alone and len(self.turns) >= self._max_turns:
            self._stop(StopReason.TURN_LIMIT)
            return Observation((message,))
        return Observation((message,), (), self._open)

    def _fitting_follow_up(self, action: Action) -> int | None:
        text = action.message.content
        if not self._follow_ups or not asks(text):
            return None
        folded = fold(text[:2000])
        covered = self._covered(action)
        for i, (comment_id, follow_up) in enumerate(self._follow_ups):
            if i not in self._spoken and comment_id in covered and _fits(follow_up, folded):
                return i
        return None

    def _reply_events(self, action: Action) -> list[TurnEvent]:
        view, text = self.view, action.message.content
        events = []
        longest = view.bullet_characters if action.channel == "danmaku" else view.speech_characters
        if len(text) > longest or len(action.speech or "") > view.speech_characters:
            events.append(TurnEvent("reply_too_long", f"{len(text)} characters"))
        if not (text.strip() or action.speech or action.skips):
            events.append(TurnEvent("empty_reply"))
        if action.extras and view.extras:
            for kind, value in action.extras.items():
                if value not in view.extras.get(kind, ()):
                    events.append(TurnEvent("unknown_extra", f"{kind}={value}"))
        if action.covers or action.skips:
            for comment_id in (*action.covers, *action.skips):
                if comment_id not in self.tasks and comment_id != "*":
                    events.append(TurnEvent("unknown_cover", comment_id))
        return events

    def abort(
        self, reason: Literal["length", "turns", "driver", "env_error"], cause: str = ""
    ) -> None:
        """End the episode from outside: the token or turn budget is used up, the driver stops, or
        the infrastructure failed. An action whose results are due is kept as a turn without any."""
        if self.stop_reason is not None:
            return
        if reason not in _ABORTS:
            raise ValueError(f"got `{reason}`; abort with one of {', '.join(_ABORTS)}")
        stop = _ABORTS[reason]
        if self._pending is not None:
            action, self._pending = self._pending[0], None
            self._record(action, (), (), [TurnEvent(str(stop))])
        if stop is StopReason.ENV_ERROR or cause:
            self.faults = (*self.faults, TurnEvent(str(stop), cause))
        self._stop(stop)

    def score(self, rewards: Rewards, *, turn_reward: float | None) -> None:
        """Keep the rewards of the episode so far and the reward of its last turn."""
        self.rewards = rewards
        if self.turns:
            self.turns[-1] = replace(self.turns[-1], reward=turn_reward)

    def fork(self, at_turn: int | None = None) -> Episode:
        """Return an episode that stands after the first `at_turn` turns, by default after all.

        Turns, messages and results are shared, not copied; the branches do not see each other.
        """
        count = len(self.turns) if at_turn is None else at_turn
        if not 0 <= count <= len(self.turns):
            raise ValueError(f"`at_turn` is {at_turn}; the episode has {len(self.turns)} turns")
        forked = copy.copy(self)
        forked._begin()
        forked.take_over(self.turns[:count])
        if count == len(self.turns):
            forked.stop_reason, forked.faults = self.stop_reason, self.faults
            forked.sandbox_log = self.sandbox_log
            forked.tasks, forked.rewards = dict(self.tasks), self.rewards
            forked._open = self._open
        return forked

    def take_over(self, turns: Iterable[Turn]) -> None:
        """Go through recorded turns as they were; nothing is run again.

        A tool caller's turns behind the one that found the rule are taken too.
        """
        for turn in turns:
            self._take(turn)
            self._go_on_after(turn)

    def _go_on_after(self, turn: Turn) -> None:
        """Repeat what a recorded turn that did not end the episode led to."""
        if turn.results and turn.agent == self.agent:
            self._stop_after_tools()
        for event in turn.events:
            if event.kind == "follow_up":
                self._viewer_speaks(int(event.detail), turn.action)
            elif event.kind == "reminder":
                self._remind()

    # --- bookkeeping --------------------------------------------------------------------------

    def _record(
        self,
        action: Action,
        results: tuple[ToolResult, ...],
        messages: tuple[Message, ...],
        events: Sequence[TurnEvent],
    ) -> None:
        now = time.time()
        kept = (*action.events, *events) if events or action.events else ()
        key, asked_s = self._key or self.state_key, self._asked_s
        turn = Turn(self.agent, action, results, messages, kept, None, key, None, asked_s, now)
        self._asked_s = now
        self._take(turn)

    def _take(self, turn: Turn) -> None:
        """Append a turn and count what its calls did."""
        self.turns.append(turn)
        self._phase_turns += 1
        state = self.state
        calls = turn.action.message.tool_calls
        self.calls_attempted += len(calls)
        if not turn.results:
            self.calls_unparsed += sum([call.error is not None for call in calls])
        for call, result in zip(calls, turn.results, strict=False):
            known = (call.name, call.arguments.canonical, result.content)
            if known not in self._known:
                self._known.add(known)
                self._known_sum += _look_up_digest(*known)
                self._key = None
            if call.error is not None:
                self.calls_unparsed += 1
                continue
            if result.error in NOT_EXECUTED:
                self.calls_over_limit += result.error == "tool_limit"
                continue
            self.calls_executed += 1
            self._used[call.name] = self._used.get(call.name, 0) + 1
            if result.error is None and call.name == RULE_TOOL and not self.rule_found:
                self.rule_found = True
                self._key = None
            if result.state is not None:
                state = result.state
        if state is not self.state:
            self.state = state
            self._set_base()

    def _viewer_speaks(self, follow_up: int, reply: Action) -> None:
        """Go on with the comment whose viewer answers; what else the reply covered is answered."""
        self._spoken.add(follow_up)
        self._settle(reply, but=self._follow_ups[follow_up][0])
        self.rule_found = not self._rule_needed
        self._used = {}
        self._enter("tools")

    def _remind(self) -> None:
        self._reminded = True
        self._set_base()

    def _enter(self, phase: Literal["tools", "reply"]) -> None:
        self.phase = phase
        self.agent = self._agents[0 if phase == "tools" else -1]
        self._phase_turns = 0
        self._told_off = False
        self._set_base()

    def _set_base(self) -> None:
        spoken = sorted(self._spoken) if self._spoken else []
        more = f"{self.phase}\0{spoken}\0{self._reminded}"
        self._base = f"{self._situation}\0{more}\0{_state_digest(self.state)}"
        self._key = None

    def _end(self, action: Action, stop: StopReason, events: Sequence[TurnEvent]) -> Observation:
        self._record(action, (), (), events)
        if stop in (StopReason.REPLIED, StopReason.REPLIED_WITHOUT_RULE):
            self._settle(action)
        self._stop(stop)
        return Observation(())

    def _covered(self, action: Action) -> set[str]:
        """Return the comments that a reply answers, those that repeat a covered one included."""
        if not (action.message.content.strip() or action.speech):
            return set()
        if not (action.covers or action.skips):
            return set(self.tasks)
        named = set(action.covers) or self.tasks.keys() - set(self._skipped(action))
        return {c for c in self.tasks if c in named or self._same_as.get(c) in named}

    def _skipped(self, action: Action) -> tuple[str, ...]:
        return self._comment_ids if "*" in action.skips else action.skips

    def _settle(self, action: Action, *, but: str | None = None) -> None:
        """Mark the comments that the reply answers or leaves alone, all `but` one."""
        covered, skipped = self._covered(action), self._skipped(action)
        for comment_id, task in self.tasks.items():
            if task != "pending" or (
                but is not None and self._same_as.get(comment_id, comment_id) == but
            ):
                continue
            if comment_id in covered:
                self.tasks[comment_id] = "answered"
            elif comment_id in skipped:
                self.tasks[comment_id] = "skipped"
        tasks = self.tasks
        self._open = tuple([c for c in self.view.comments if tasks[c.comment_id] == "pending"])

    def _stop(self, stop: StopReason) -> None:
        self.stop_reason = stop
        self._open = ()
        if "pending" in self.tasks.values():
            for comment_id, task in self.tasks.items():
                if task == "pending":
                    self.tasks[comment_id] = "failed"


def _schema(spec: ToolSpec) -> Callable[[Mapping[str, Any]], object]:
    return compiled_schema(json.dumps(spec.parameters, sort_keys=True))


@lru_cache(maxsize=16384)
def _situation_digest(base: str, rule_found: bool, known_sum: int) -> str:
    text = f"{base}\0{rule_found}\0{known_sum}".encode("utf-8", "replace")
    return blake2b(text, digest_size=8).hexdigest()


@lru_cache(maxsize=65536)
def _look_up_digest(name: str, arguments: str, content: str) -> int:
    text = f"{name}\0{arguments}\0{content}".encode("utf-8", "replace")
    return int.from_bytes(blake2b(text, digest_size=8).digest(), "big")


@lru_cache(maxsize=4096)
def _state_digest(state: State) -> str:
    return blake2b(repr(state).encode("utf-8", "replace"), digest_size=8).hexdigest()


def _checked_prompt(made: object) -> tuple[Message, ...]:
    messages = tuple(made) if isinstance(made, (list, tuple)) else ()
    if not messages or not all(isinstance(message, Message) for message in messages):
        raise TypeError(f"`prompt` returned {made!r:.80}; it returns a list of `Message`")
    return tuple(replace(message, content=clean_text(message.content)) for message in messages)


def _check_tools(agent: str, tools: Sequence[str], known: Set[str]) -> None:
    if isinstance(tools, str):
        raise TypeError(f"the tools of `{agent}` are {tools!r}; give a list of their names")
    for name in tools:
        if name not in known:
            hint = did_you_mean(name, known)
            raise ValueError(f"`{agent}` is given tool `{name}`, which the room has not.{hint}")


def _checked_agents(agents: Sequence[str] | Mapping[str, Seat]) -> tuple[str, ...]:
    if tuple(agents) not in (ONE_AGENT, TWO_AGENTS, TWO_AGENTS[:1]):
        known = f"{ONE_AGENT}, {TWO_AGENTS} or {TWO_AGENTS[:1]}"
        raise ValueError(f"`agents` is {agents!r}; it is {known}")
    return tuple(agents)


def _event_kind(call: ToolCall, error: str) -> str:
    if call.error is not None:
        return "invalid_call"
    return error if error in _REFUSED else "tool_error"


def _fits(follow_up: FollowUp, folded_reply: str) -> bool:
    if follow_up.when == "always":
        return True
    return all(fold(slot) in folded_reply for slot in follow_up.when)
