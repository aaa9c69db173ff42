"""The episodes that every adapter plays, and what the bare core makes of them.

A case is a task row, the options of its environment and what the policy says, turn by turn. The
policy is handed out as text or, over a tokenizer, as token ids; it keeps no state, because the
number of assistant messages in the prompt says whose turn it is, so one policy serves any number
of episodes. An adapter plays the case with its trainer's own classes and shows what came of it:

    case = CASES["looked up"]
    ...
    assert_same(case, {"token_ids": {"host": [row.prompt_ids + row.response_ids]}, ...})

Keys that a trainer does not show are left out. Neither a trainer nor `trl` is imported here, and
`transformers` only for token ids.
"""

from __future__ import annotations

import asyncio
import contextlib
import copy
import functools
import itertools
import json
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, TypedDict

from tokenizers_for_tests import tokenizer

import livestream_env as le
from livestream_env.adapters.setup import Setup, TaskRow
from livestream_env.adapters.text import as_user_messages, with_tools_told
from livestream_env.masking import REPLY, TOOL_CALLS
from livestream_env.renderers import ChatTemplateRenderer
from livestream_env.rows import TrainingRow
from livestream_env.sandbox import LocalSandbox
from livestream_env.tokens import Sampled
from livestream_env.types import Message, RoomView, Status, ToolCall, ToolResult, Trajectory

# --- tokenizers -------------------------------------------------------------------------------

_CALLS = (
    "{%- for call in message.tool_calls or [] %}"
    "{{- '' if loop.first and not message.content else '\\n' }}"
    '{{- \'<tool_call>\\n{"name": "\' + call.function.name + \'", "arguments": \' }}'
    "{{- call.function.arguments | tojson }}{{- '}\\n</tool_call>' }}"
    "{%- endfor %}"
)
_TOOLS = (
    "{%- if loop.first and tools %}{{- '\\n\\n# Tools\\n' }}"
    "{%- for tool in tools %}{{- '\\n' }}{{- tool | tojson }}{%- endfor %}{%- endif %}"
)


def _template(opened: str, named: str, closed: str) -> str:
    return (
        f"{{%- for message in messages %}}{{{{- '{opened}' + message.role + '{named}' }}}}"
        "{%- if message.reasoning_content and loop.last %}"
        "{{- '<think>\\n' + message.reasoning_content + '\\n</think>\\n\\n' }}{%- endif %}"
        f"{{{{- message.content }}}}{_TOOLS}{_CALLS}{{{{- '{closed}' }}}}{{%- endfor %}}"
        f"{{%- if add_generation_prompt %}}{{{{- '{opened}assistant{named}' }}}}{{%- endif %}}"
    )


@dataclass(frozen=True, slots=True)
class _Family:
    """A tokenizer with a chat template of our own, which drops the thinking of earlier turns."""

    pieces: str
    """A family of `tokenizers_for_tests`."""
    opened: str
    named: str
    end: str
    after: str = ""
    """What the template puts behind the end of a turn."""

    @property
    def opening(self) -> str:
        """What opens an assistant's message."""
        return f"{self.opened}assistant{self.named}"


FAMILIES = {
    "chatml": _Family("qwen", "<|im_start|>", "\n", "<|im_end|>", "\n"),
    "headers": _Family("llama", "<|start_header_id|>", "<|end_header_id|>\n\n", "<|eot_id|>"),
}
"""Two tokenizers whose ids and templates differ."""


@functools.cache
def tokenizer_of(family: str) -> Any:
    """Return the tokenizer of a family, its chat template set."""
    told = FAMILIES[family]
    made = copy.deepcopy(tokenizer(told.pieces))
    escaped = [part.replace("\n", "\\n") for part in (told.opened, told.named, told.end)]
    after = told.after.replace("\n", "\\n")
    made.chat_template = _template(escaped[0], escaped[1], escaped[2] + after)
    made.pad_token = made.eos_token
    return made


@functools.cache
def renderer_of(family: str) -> ChatTemplateRenderer:
    """Return the renderer of a family."""
    return ChatTemplateRenderer(tokenizer_of(family))


# --- cases ------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Line:
    """What the policy samples in one turn."""

    text: str
    stop: str = "stop"
    """`length`: cut by the token limit, so that no end token is sampled."""


@dataclass(frozen=True, eq=False)
class Case:
    """One episode: its task, its environment and what is said in it."""

    name: str
    row: TaskRow
    lines: tuple[Line, ...]
    options: Mapping[str, Any] = field(default_factory=dict)
    """`gym.make`'s, and `agents`, as `Setup` takes them."""
    families: Mapping[str, str] = field(default_factory=lambda: {"host": "chatml"})
    """The tokenizer of each agent."""

    @property
    def has_two_agents(self) -> bool:
        return "host" not in self.families

    @property
    def setup_options(self) -> dict[str, Any]:
        """Arguments of `Setup` and of every adapter, the room included."""
        return {"room": self.row.room, "embedder": "lexical", **self.options}

    @property
    def renderers(self) -> dict[str, ChatTemplateRenderer]:
        return {agent: renderer_of(family) for agent, family in self.families.items()}

    def line(self, turn: int) -> Line:
        """Return what is said in a turn."""
        assert turn < len(self.lines), f"`{self.name}` has {len(self.lines)} turns"
        return self.lines[turn]

    def says(self, messages: Iterable[Message | Mapping[str, Any]]) -> Line:
        """Return what the policy says after a conversation."""
        roles = [m["role"] if isinstance(m, Mapping) else m.role for m in messages]
        return self.line(roles.count("assistant"))

    def samples(self, prompt_ids: Sequence[int], agent: str = "host") -> Sampled:
        """Return what the policy samples after a prompt; each id has another logprob."""
        family = FAMILIES[self.families[agent]]
        made = tokenizer_of(self.families[agent])
        turn = str(made.decode(list(prompt_ids))).count(family.opening) - 1
        line = self.line(turn)
        text = line.text + (family.end if line.stop == "stop" else "")
        ids = tuple(made(text, add_special_tokens=False)["input_ids"])
        return Sampled(ids, logprobs_of(turn, len(ids)), line.stop)

    def engine(self, agent: str = "host") -> Callable[[tuple[int, ...], tuple[int, ...]], Sampled]:
        """Return the policy as `TokenAgent` takes it."""
        return lambda ids, _: self.samples(ids, agent)

    def async_engine(
        self, agent: str = "host"
    ) -> Callable[[tuple[int, ...], tuple[int, ...]], Awaitable[Sampled]]:
        """Return the policy as `TokenAgent` takes it, awaited."""

        async def generate(ids: tuple[int, ...], _: tuple[int, ...]) -> Sampled:
            return self.samples(ids, agent)

        return generate

    def agent(self, *, is_async: bool = False) -> Any:
        """Return the policy as an agent over token ids, or the team of the two."""
        engine = self.async_engine if is_async else self.engine
        made = {
            name: le.TokenAgent(engine(name), renderer) for name, renderer in self.renderers.items()
        }
        return le.AgentTeam(**made) if self.has_two_agents else made["host"]


def logprobs_of(turn: int, length: int) -> tuple[float, ...]:
    """Return the log-probabilities of a turn, exact in 32 bits."""
    return tuple(-(turn + 1) - at / 1024 for at in range(length))


def call(name: str, **arguments: Any) -> str:
    """Return a call as text."""
    told = json.dumps(arguments, ensure_ascii=False)
    return f'<tool_call>\n{{"name": "{name}", "arguments": {told}}}\n</tool_call>'


class Breaking(LocalSandbox):
    """A sandbox that cannot be reached at one of its calls, or at `reset`, which is call -1."""

    def __init__(self, room: le.Room, at: int) -> None:
        super().__init__(room, embedder="lexical")
        self._at = at

    def reset(self, *, seed: int, comments: Sequence[str]) -> RoomView:
        if self._at == -1:
            raise le.SandboxUnavailable("the server failed (503)")
        return super().reset(seed=seed, comments=comments)

    def call(self, call: ToolCall) -> ToolResult:
        self._check()
        return super().call(call)

    async def acall(self, call: ToolCall) -> ToolResult:
        self._check()
        return await super().acall(call)

    def _check(self) -> None:
        if self.calls == self._at:
            raise le.SandboxUnavailable("the server failed (503)")


def breaks_at_once(room: le.Room) -> Breaking:
    """Make a sandbox whose `reset` fails."""
    return Breaking(room, -1)


def breaks_later(room: le.Room) -> Breaking:
    """Make a sandbox whose second call fails."""
    return Breaking(room, 1)


def breaks_some(*fails: int) -> Callable[[le.Room], LocalSandbox]:
    """Make sandboxes of which some, counted from 0, cannot be had: a member of a group."""
    made = itertools.count()

    def make(room: le.Room) -> LocalSandbox:
        if next(made) in fails:
            raise le.SandboxUnavailable("down")
        return LocalSandbox(room, embedder="lexical")

    return make


def assert_closed(play: Callable[[Case], object], name: str = "looked up") -> None:
    """Check that an adapter closes its sandboxes, those of episodes that fail or raise too.

    A sandbox is awaited where there is an event loop: other episodes play in it meanwhile.
    """
    is_open: list[object] = []
    held_up: list[object] = []

    class Noted(Breaking):
        def __init__(self, room: le.Room, at: int) -> None:
            super().__init__(room, at)
            is_open.append(self)

        def close(self) -> None:
            with contextlib.suppress(RuntimeError):
                held_up.append(asyncio.get_running_loop())
            is_open.remove(self)

        async def aclose(self) -> None:
            is_open.remove(self)

    def rubric(trajectory: Trajectory, room: le.Room | None) -> Any:
        raise ZeroDivisionError("a user's mistake")

    made = 0
    for at, given in ((-2, {}), (0, {}), (-2, {"rubric": rubric})):

        def sandbox(room: le.Room, at: int = at) -> Noted:
            nonlocal made
            made += 1
            return Noted(room, at)

        case = CASES[name]
        with contextlib.suppress(Exception):
            play(replace(case, options={**case.options, **given, "sandbox": sandbox}))
    assert made >= 3
    assert not is_open
    assert not held_up


WITHOUT_A_SEAT = [
    ({"host": "reply"}, "replier", "no seat for replier"),
    ({"replier": "reply"}, "replier", "both trained and a partner's"),
    ({"replier": "reply"}, "repliers", "no `repliers`"),
]
"""(trained agents, a partner's seat, what is told of it)."""


@le.tool
def ask_warehouse(context: le.ToolContext, product: str) -> object:
    """Ask the warehouse when a product leaves it.

    Args:
        product: name of the product.
    """
    raise RuntimeError("the warehouse gave status 502")


PRICE = TaskRow("snacks", 1, ("c02",))
FIND = call("search_product_by_keyword", keyword="1号链接")
RULE = call("get_reply_rule", intent="价格咨询")
REPLIED = "亲，1号链接价格59.9元，1号链接券后价49.9元，以下单页为准"
THOUGHT = "<think>\n先查清楚\n</think>\n\n"
SCHEDULE = call(
    "search_script",
    query="先交个底：今晚就四十分钟，九点准时熄火。压轴的大礼包八点五十二上架，想囤的给它留点肚子。",
)
UNLABELLED = str(Path(__file__).with_name("unlabelled_room.json"))


def _lines(*texts: str | Line) -> tuple[Line, ...]:
    return tuple(Line(one) if isinstance(one, str) else one for one in texts)


_TWO = {"agents": {"tool_caller": TOOL_CALLS, "replier": REPLY}, "rubric": "multi22"}
_ALL = (
    Case("looked up", PRICE, _lines(f"{FIND}\n{RULE}", REPLIED)),
    Case("several turns", PRICE, _lines(f"我先查查\n{FIND}", RULE, REPLIED)),
    Case("wrong arguments", PRICE, _lines(call("get_reply_rule", intent=7), RULE, REPLIED)),
    Case("cut reply", PRICE, _lines(FIND, RULE, Line("亲，1号链接价", "length"))),
    Case("cut call", PRICE, _lines(FIND, Line('<tool_call>\n{"name": "get_re', "length"))),
    Case("empty reply", PRICE, _lines(FIND, RULE, "")),
    Case("turn limit", PRICE, _lines(FIND, RULE), {"max_turns": 2}),
    Case("failed call", PRICE, _lines(FIND, RULE, REPLIED), {"sandbox": breaks_later}),
    Case("failed reset", PRICE, _lines(REPLIED), {"sandbox": breaks_at_once}),
    Case(
        "failed tool of a user",
        PRICE,
        _lines(FIND, call("ask_warehouse", product="巴旦木"), REPLIED),
        {"tools": ["search_product_by_keyword", "get_reply_rule", ask_warehouse]},
    ),
    Case(
        "unlabelled room",
        TaskRow(UNLABELLED, 0, ("c1",)),
        _lines(call("search_faq", query="发货"), call("get_reply_rule", intent="物流"), "48小时内"),
    ),
    Case(
        "burst",
        TaskRow("snacks", 0, ("c02", "c04")),
        _lines(
            f"{FIND}\n{SCHEDULE}",
            call("get_reply_rule", intent=["价格咨询", "直播安排"]),
            "亲，1号链接价格59.9元，今晚九点准时熄火，以下单页为准",
        ),
    ),
    Case(
        "rewritten past",
        PRICE,
        _lines(
            f"<think>\n先查价\n</think>\n\n{FIND}", f"<think>\n再查\n</think>\n\n{RULE}", REPLIED
        ),
    ),
    Case(
        "two agents",
        PRICE,
        _lines(FIND, RULE, REPLIED),
        _TWO,
        {"tool_caller": "chatml", "replier": "chatml"},
    ),
    Case(
        "two tokenizers",
        PRICE,
        _lines(FIND, RULE, REPLIED),
        _TWO,
        {"tool_caller": "chatml", "replier": "headers"},
    ),
    Case(
        "two agents and a failed call",
        PRICE,
        _lines(FIND, RULE, REPLIED),
        {**_TWO, "sandbox": breaks_later},
        {"tool_caller": "chatml", "replier": "headers"},
    ),
)
CASES = {case.name: case for case in _ALL}
ONE_AGENT_CASES = {name: case for name, case in CASES.items() if not case.has_two_agents}

ASKED = Case(
    "the viewer is asked and answers",
    TaskRow("snacks", 3, ("c23",)),
    _lines(
        call("search_product_by_keyword", keyword="6号链接"),
        call("get_reply_rule", intent="需求确认"),
        "亲，请问您的口味、分量是多少呢？",
        call("get_reply_rule", intent="价格咨询"),
        "亲，6号链接香辣200克价格58元，6号链接香辣200克券后价52元，以下单页为准",
    ),
    _TWO,
    {"tool_caller": "chatml", "replier": "chatml"},
)
"""Each of two agents speaks again after the other."""


def thinks(stop: str) -> Case:
    """Return a case in which thinking that the prompt opened is closed once, and once not."""
    source = CASES["looked up"]
    called = Line(f"先查\n</think>\n\n{source.lines[0].text}")
    unclosed = Line(f"先想一想：{source.lines[1].text}", stop)
    return Case("thinking that the prompt opens", source.row, (called, unclosed))


@functools.cache
def thinking_tokenizer() -> Any:
    """Return the tokenizer of `chatml`, whose generation prompt opens thinking."""
    made = copy.deepcopy(tokenizer_of("chatml"))
    opened = f"{{{{- '{FAMILIES['chatml'].opening}' }}}}".replace("\n", "\\n")
    assert made.chat_template.count(opened) == 1
    made.chat_template = made.chat_template.replace(
        opened, opened.replace("assistant\\n", "assistant\\n<think>\\n")
    )
    return made


def thought(case: Case) -> le.Trajectory:
    """Return the episode of `thinks` as the core plays it."""
    setup = Setup(**case.setup_options)
    renderer = ChatTemplateRenderer(thinking_tokenizer(), on_rewrite="keep")
    agent = le.TokenAgent(case.engine(), renderer)
    played = le.rollout(setup.make_env(), agent, **setup.opening(case.row))
    assert played.turns[-1].action.message.content == ""
    return played


# --- what comes of them -----------------------------------------------------------------------


class Shown(TypedDict, total=False):
    """What a trainer shows of an episode; mappings are by agent, lists by training row.

    An excluded agent has no rows, and reward `None`.
    """

    messages: Sequence[Message | Mapping[str, Any]]
    """The transcript."""
    said: Sequence[str]
    """The texts and calls of the assistant alone, one a turn, see `said_in`."""
    token_ids: Mapping[str, Sequence[Sequence[int]]]
    loss_mask: Mapping[str, Sequence[Sequence[int]]]
    logprobs: Mapping[str, Sequence[Sequence[float]]]
    """0.0 where the policy did not sample."""
    trained_ids: Mapping[str, Sequence[int]]
    """The ids under the mask alone, rows joined: for trainers that put their own between turns."""
    rewards: Mapping[str, float | None]
    truncated: bool
    excluded: Mapping[str, str | None]
    """The cause before the colon; `None` where the agent is trained."""


def shown_by(case: Case, trajectory: Trajectory, rows: Sequence[TrainingRow]) -> Shown:
    """Return what a trajectory and its training rows show."""
    kept = {agent: [row for row in rows if row.agent == agent] for agent in case.families}
    used = {agent: [r for r in own if r.excluded is None] for agent, own in kept.items()}
    return Shown(
        messages=trajectory.messages,
        said=said_in(trajectory.messages),
        token_ids={agent: [row.token_ids for row in own] for agent, own in used.items()},
        loss_mask={agent: [row.loss_mask for row in own] for agent, own in used.items()},
        logprobs={agent: [row.logprobs or () for row in own] for agent, own in used.items()},
        trained_ids={agent: trained_ids(own) for agent, own in used.items()},
        rewards={agent: own[0].reward if own else None for agent, own in used.items()},
        truncated=trajectory.status is not Status.OK,
        excluded={
            agent: None if used[agent] else (own[0].excluded or "").split(":")[0]
            for agent, own in kept.items()
        },
    )


@functools.cache
def expected(case: Case) -> Shown:
    """Return what the bare core makes of a case: `rollout` and `Setup.rows`."""
    setup = Setup(**case.setup_options)
    env = setup.make_env(case.row.room)
    trajectory = le.rollout(env, case.agent(), **setup.opening(case.row))
    return shown_by(case, trajectory, setup.rows(trajectory, case.renderers))


def as_text(case: Case) -> list[Message]:
    """Return the transcript for trainers of plain text: tools told, results as the user's."""
    setup = Setup(**case.setup_options)
    told, _ = setup.make_env(case.row.room).reset(**setup.opening(case.row))
    opening = with_tools_told(told.messages, told.tools, "zh")
    return [*opening, *as_user_messages(expected(case)["messages"][len(told.messages) :])]


def assert_same(case: Case, got: Shown) -> None:
    """Check that what a trainer shows of a case is what the bare core makes of it."""
    assert got, f"nothing is shown of `{case.name}`"
    due = expected(case)
    assert set(got) <= set(due), f"unknown keys: {set(got) - set(due)}"
    for key, value in got.items():
        mine, theirs = _plain(key, due[key]), _plain(key, value)  # type: ignore[literal-required]
        assert theirs == mine, f"`{case.name}`: other `{key}` than the core"


def said_in(messages: Iterable[Message | Mapping[str, Any]]) -> list[str]:
    """Return the words and calls of each assistant's message, without ids."""
    return [str(one[1:]) for one in map(_told, messages) if one[0] == "assistant"]


def trained_ids(rows: Iterable[TrainingRow]) -> list[int]:
    """Return the ids under the masks of rows, in order."""
    pairs = [pair for row in rows for pair in zip(row.token_ids, row.loss_mask, strict=True)]
    return [token for token, bit in pairs if bit]


def _plain(key: str, value: Any) -> Any:
    if key == "messages":
        return [_told(message) for message in value]
    if key in ("token_ids", "loss_mask", "logprobs"):
        return {agent: [list(row) for row in rows] for agent, rows in value.items()}
    if key == "rewards":  # some trainers keep them in 32 bits
        return {agent: None if one is None else round(one, 6) for agent, one in value.items()}
    if key == "trained_ids":
        return {agent: list(ids) for agent, ids in value.items()}
    return dict(value) if isinstance(value, Mapping) else value


def _told(message: Message | Mapping[str, Any]) -> tuple[str, str, list[tuple[str, Any]]]:
    """Return role, words, and calls without their ids, which each server names its own way."""
    told = message.to_openai() if isinstance(message, Message) else message
    calls = [call["function"] for call in told.get("tool_calls") or ()]
    return (
        told["role"],
        told.get("content") or "",
        [(call["name"], _arguments(call["arguments"])) for call in calls],
    )


def _arguments(given: Any) -> Any:
    try:
        return json.loads(given) if isinstance(given, str) else dict(given)
    except ValueError:
        return given
