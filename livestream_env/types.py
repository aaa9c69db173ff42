"""The values of an episode: what crosses disk, wire and module borders.

What is made on every step is a frozen slots dataclass, `Trajectory` a frozen pydantic model that
checks and serializes them. Nothing here has behaviour beyond building and reading itself.
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import MISSING, dataclass, fields
from enum import StrEnum
from typing import Any, ClassVar, Literal, NoReturn, get_args

from pydantic import BaseModel, ConfigDict, GetCoreSchemaHandler
from pydantic_core import core_schema

Role = Literal["system", "user", "assistant", "tool"]
Channel = Literal["danmaku", "speech"]
FactValue = str | int | float | bool | None

_VALUE_CONFIG = ConfigDict(extra="forbid", ser_json_inf_nan="constants")


class FrozenDict(dict[str, Any]):
    """A dict that cannot be changed, so that a value may be handed out without a copy."""

    __slots__ = ("_canonical", "_json")
    _canonical: str
    _json: str

    def _refuse(self, *_: object, **__: object) -> NoReturn:
        raise TypeError("this dict belongs to a recorded value; change a copy: `dict(value)`")

    __setitem__ = __delitem__ = __ior__ = _refuse
    clear = pop = popitem = setdefault = update = _refuse

    @property
    def canonical(self) -> str:
        """Text that equal JSON objects share, whatever the order of their keys; made once."""
        try:
            return self._canonical
        except AttributeError:
            self._canonical = _canonical_text(self)
            return self._canonical

    @property
    def as_json(self) -> str:
        """JSON text with the keys in their order; made once."""
        try:
            return self._json
        except AttributeError:
            self._json = json.dumps(self, ensure_ascii=False)
            return self._json

    def __hash__(self) -> int:  # type: ignore[override]
        return hash(self.canonical)

    @classmethod
    def __get_pydantic_core_schema__(
        cls, source: Any, handler: GetCoreSchemaHandler
    ) -> core_schema.CoreSchema:
        as_dict = core_schema.dict_schema(core_schema.str_schema(), core_schema.any_schema())
        return core_schema.no_info_after_validator_function(freeze, as_dict)

    def __reduce__(self) -> tuple[type[FrozenDict], tuple[dict[str, Any]]]:
        return FrozenDict, (dict(self),)

    def __deepcopy__(self, _: object) -> FrozenDict:
        return self

    def __copy__(self) -> FrozenDict:
        return self


def _canonical_text(value: dict[str, Any]) -> str:
    if len(value) == 1:
        ((key, item),) = value.items()
        if type(item) is str:
            return f"{len(key)}:{key}{item}"
    if _SCALARS.issuperset(map(type, value.values())):
        return repr(sorted(value.items()))
    return json.dumps(value, sort_keys=True, ensure_ascii=False)


class _FrozenList(list[Any]):
    __slots__ = ()

    def _refuse(self, *_: object, **__: object) -> NoReturn:
        raise TypeError("this list belongs to a recorded value; change a copy: `list(value)`")

    __setitem__ = __delitem__ = __iadd__ = __imul__ = _refuse
    append = clear = extend = insert = pop = remove = reverse = sort = _refuse

    def __hash__(self) -> int:  # type: ignore[override]
        return hash(tuple(self))

    def __reduce__(self) -> tuple[type[_FrozenList], tuple[list[Any]]]:
        return _FrozenList, (list(self),)

    def __deepcopy__(self, _: object) -> _FrozenList:
        return self


EMPTY = FrozenDict()
"""The empty frozen dict, shared as a default."""


def freeze(value: Mapping[str, Any]) -> FrozenDict:
    """Copy a JSON object, nested ones included, into one that cannot be changed."""
    if _SCALARS.issuperset(map(type, value.values())):
        return FrozenDict(value)
    return FrozenDict({key: _frozen(item) for key, item in value.items()})


_SCALARS = frozenset({str, int, float, bool, type(None)})


def frozen_scalars(value: dict[str, Any]) -> FrozenDict:
    """Freeze an object of scalars, its canonical text, which a call is remembered by, included."""
    made = FrozenDict(value)
    made._canonical = _canonical_text(made)
    return made


def _frozen(value: Any) -> Any:
    if isinstance(value, dict):
        return freeze(value)
    if isinstance(value, (list, tuple)):
        return _FrozenList([_frozen(item) for item in value])
    return value


@dataclass(frozen=True, slots=True)
class ToolCall:
    """One call that the policy asked for."""

    __pydantic_config__: ClassVar[ConfigDict] = _VALUE_CONFIG

    id: str
    """The policy's id, or `call_{turn}_{index}` where it gave none."""
    name: str
    arguments: FrozenDict = EMPTY
    """Empty where they could not be parsed."""
    error: str | None = None
    """Why it cannot run, as `code: problem`; codes are `invalid_json`, `unclosed`, `missing_name`,
    `invalid_arguments`, `unsupported`."""
    raw: str | None = None
    """The text that could not be parsed."""


@dataclass(frozen=True, slots=True)
class Message:
    """One message of the conversation, in the roles of the OpenAI chat format."""

    __pydantic_config__: ClassVar[ConfigDict] = _VALUE_CONFIG

    role: Role
    content: str
    tool_calls: tuple[ToolCall, ...] = ()
    tool_call_id: str | None = None
    reasoning: str = ""
    """Thinking of the assistant, kept apart from what it says."""

    def to_openai(self) -> dict[str, Any]:
        """Return the message as an OpenAI chat message, arguments as JSON text."""
        message: dict[str, Any] = {"role": self.role, "content": self.content}
        if self.reasoning:
            message["reasoning_content"] = self.reasoning
        if self.tool_calls:
            message["tool_calls"] = [_openai_call(call) for call in self.tool_calls]
        if self.tool_call_id is not None:
            message["tool_call_id"] = self.tool_call_id
        return message


def _openai_call(call: ToolCall) -> dict[str, Any]:
    arguments = json.dumps(call.arguments, ensure_ascii=False) if call.raw is None else call.raw
    function = {"name": call.name, "arguments": arguments}
    return {"id": call.id, "type": "function", "function": function}


@dataclass(frozen=True, slots=True)
class ToolSpec:
    """What a tool is called and takes, as the policy is told."""

    __pydantic_config__: ClassVar[ConfigDict] = _VALUE_CONFIG

    name: str
    description: str
    parameters: FrozenDict
    """JSON Schema of the arguments object."""
    mutates: bool = False
    """Whether a call may change the state of the room."""
    pure: bool = True
    """Whether room, state and arguments alone decide the result, so that it may be remembered."""

    def to_openai(self) -> dict[str, Any]:
        """Return the spec as an entry of the OpenAI `tools` argument."""
        function = {
            "name": self.name,
            "description": self.description,
            "parameters": json.loads(self.parameters.as_json),
        }
        return {"type": "function", "function": function}


@dataclass(frozen=True, slots=True)
class Fact:
    """One value that a tool result or the prompt states about one record."""

    __pydantic_config__: ClassVar[ConfigDict] = _VALUE_CONFIG

    record: str
    """`product:ID`, `sku:ID`, `faq:ID`, `rule:ID`, `script:ID`, `comment:ID`, `promotion:ID`."""
    field: str
    """The field of the record, by its English name: `coupon_price`, `stock`, `answer`."""
    value: FactValue
    """`None`: the record is known, the value is not."""
    unit: str | None = None
    text: str = ""
    """The value as the result shows it."""


@dataclass(frozen=True, slots=True)
class TurnEvent:
    """Something that happened in a turn and that statistics count."""

    __pydantic_config__: ClassVar[ConfigDict] = _VALUE_CONFIG

    kind: str
    """`tool_limit`, `invalid_call`, `tool_error`, `missing_rule`, `reminder`, `reply_too_long`,
    `empty_reply`, `unknown_extra`, `follow_up`, `tool_not_available`, `cut`,
    `surrogates_replaced`, `unknown_cover`, `hand_off`, `context_full`, or a sandbox's own."""
    detail: str = ""
    call_id: str | None = None


@dataclass(frozen=True, slots=True)
class State:
    """What an episode may change in its room, and the time it is seen at."""

    __pydantic_config__: ClassVar[ConfigDict] = _VALUE_CONFIG

    at_s: float
    """The room is as of this second of the show."""
    current_product: str | None
    """Product being explained: it governs scopes."""
    product_order: tuple[str, ...]
    """Ids of the listed products, in the order of the room's list."""
    shown_image: tuple[str, str] | None = None
    """(product id, image id) of the picture on screen."""
    hand_offs: tuple[str, ...] = ()
    """Reasons given to human colleagues so far."""
    extras: FrozenDict = EMPTY
    """JSON values that a user's own tools keep."""

    def __hash__(self) -> int:
        return hash((self.at_s, self.current_product, self.shown_image, len(self.hand_offs)))


@dataclass(frozen=True, slots=True)
class ToolResult:
    """What one call returned."""

    __pydantic_config__: ClassVar[ConfigDict] = _VALUE_CONFIG

    call_id: str
    content: str
    """Compact JSON text in the room's language."""
    data: tuple[Fact, ...] = ()
    """The facts that the content states."""
    error: str | None = None
    """Code of the policy's mistake: `unknown_tool`, `invalid_arguments`, `unknown_intent`, ..."""
    state: State | None = None
    """The state after the call, `None` where it is unchanged."""
    events: tuple[TurnEvent, ...] = ()
    """Content faults and `nearest`: copied into `Turn.events`, never shown to the policy."""


@dataclass(frozen=True, slots=True)
class ProductBrief:
    """The product being explained, as the prompt names it."""

    __pydantic_config__: ClassVar[ConfigDict] = _VALUE_CONFIG

    product_id: str
    link_no: int | None
    name: str


@dataclass(frozen=True, slots=True)
class ScriptLine:
    """What the host said, `start_s` to `end_s` of the show."""

    __pydantic_config__: ClassVar[ConfigDict] = _VALUE_CONFIG

    segment_id: str
    start_s: float
    end_s: float
    text: str


@dataclass(frozen=True, slots=True)
class HistoryLine:
    """One line said in the room before the open comments."""

    __pydantic_config__: ClassVar[ConfigDict] = _VALUE_CONFIG

    by: str
    """The viewer's name; anything where the host spoke."""
    text: str
    at_s: float | None = None
    is_host: bool = False


@dataclass(frozen=True, slots=True)
class FaqBrief:
    """A preset question and its answer."""

    __pydantic_config__: ClassVar[ConfigDict] = _VALUE_CONFIG

    faq_id: str
    question: str
    answer: str


@dataclass(frozen=True, slots=True)
class CommentView:
    """The public half of a comment (danmaku)."""

    __pydantic_config__: ClassVar[ConfigDict] = _VALUE_CONFIG

    comment_id: str
    viewer: str
    at_s: float
    """Seconds from the start of the show."""
    text: str
    current_product: str | None = None


@dataclass(frozen=True, slots=True)
class RoomView:
    """What the host may see of a room when an episode starts."""

    __pydantic_config__: ClassVar[ConfigDict] = _VALUE_CONFIG

    room_id: str
    content_hash: str
    title: str
    language: str
    host: str
    current_product: ProductBrief | None
    script_window: tuple[ScriptLine, ...]
    """What was said in the last `script_window_s` seconds."""
    history: tuple[HistoryLine, ...]
    comments: tuple[CommentView, ...]
    """The open comments."""
    faqs: tuple[FaqBrief, ...]
    """Preset questions near the open comments, chosen by the sandbox."""
    state: State
    embedder: str
    """Fingerprint of the embedder that the searches use."""
    bullet_characters: int = 60
    speech_characters: int = 67
    """Longest reply on each channel."""
    extras: FrozenDict = EMPTY
    """Gestures, tones and the like that the room's host can show, by kind."""
    data: tuple[Fact, ...] = ()
    """The facts that the prompt states: they count as looked up."""


@dataclass(frozen=True, slots=True)
class Observation:
    """What one `reset` or `step` hands to the agent."""

    messages: tuple[Message, ...]
    """Only the new ones: system and user at reset, then tool results or a viewer's next message."""
    tools: tuple[ToolSpec, ...] = ()
    """The tools, at reset; empty afterwards."""
    comments: tuple[CommentView, ...] = ()
    """The comments still open."""


@dataclass(frozen=True, slots=True)
class Action:
    """One assistant message, with the tokens it was sampled as where they are known."""

    __pydantic_config__: ClassVar[ConfigDict] = _VALUE_CONFIG

    message: Message
    token_ids: tuple[int, ...] | None = None
    """Sampled ids, shape (N,), end-of-turn token included where it was sampled."""
    logprobs: tuple[float, ...] | None = None
    """Log-probabilities of `token_ids`, shape (N,)."""
    prompt_ids: tuple[int, ...] | None = None
    """Ids that the policy was given, shape (P,)."""
    stop: str | None = None
    """Why sampling ended: `stop`, or `length` for a message cut by the token limit."""
    covers: tuple[str, ...] = ()
    """Ids of the comments that the reply answers; empty: all open ones."""
    skips: tuple[str, ...] = ()
    """Ids of the comments left alone; `*` for all open ones."""
    channel: Channel = "danmaku"
    speech: str | None = None
    """What is spoken beside the bullet reply."""
    extras: FrozenDict = EMPTY
    """Gesture, tone and the like, by kind."""
    events: tuple[TurnEvent, ...] = ()
    """What was noticed while the action was read."""

    @classmethod
    def reply(
        cls,
        text: str,
        *,
        covers: str | Sequence[str] = (),
        channel: Channel = "danmaku",
        speech: str | None = None,
        extras: Mapping[str, str] | None = None,
    ) -> Action:
        """Make a reply to the comments `covers`, by default to all open ones."""
        return cls(
            Message("assistant", text),
            covers=_ids(covers),
            channel=channel,
            speech=speech,
            extras=freeze(extras or {}),
        )

    @classmethod
    def call(cls, name: str, /, **arguments: Any) -> Action:
        """Make a message with one tool call; `Action.calls` makes one with several."""
        return cls.calls((name, arguments))

    @classmethod
    def calls(cls, *calls: tuple[str, Mapping[str, Any]], text: str = "") -> Action:
        """Make a message with tool calls, each a (name, arguments) pair, run in this order."""
        made = tuple(ToolCall("", name, freeze(arguments)) for name, arguments in calls)
        return cls(Message("assistant", text, made))

    @classmethod
    def skip(cls, covers: str | Sequence[str] = "*") -> Action:
        """Leave comments unanswered, by default all open ones."""
        return cls(Message("assistant", ""), skips=_ids(covers))


def _ids(ids: str | Sequence[str]) -> tuple[str, ...]:
    listed = (ids,) if isinstance(ids, str) else tuple(ids)
    for one in listed:
        if not isinstance(one, str):
            raise TypeError(f"got comment id {one!r}; comment ids are text")
    return listed


@dataclass(frozen=True, slots=True)
class Turn:
    """One action and what came of it."""

    __pydantic_config__: ClassVar[ConfigDict] = _VALUE_CONFIG

    agent: str
    """`host`, or with two agents `tool_caller` and `replier`."""
    action: Action
    results: tuple[ToolResult, ...] = ()
    messages: tuple[Message, ...] = ()
    """What the agent was told next: tool results, a reminder, the viewer's next message."""
    events: tuple[TurnEvent, ...] = ()
    reward: float | None = None
    state_key: str = ""
    """Key of the situation that the action was chosen in (16 hex digits): equal in two episodes
    where room, comments, state and everything looked up are equal."""
    policy_version: str | None = None
    started_s: float = 0.0
    """Unix time at which the agent was asked."""
    ended_s: float = 0.0
    """Unix time at which the turn's results stood."""


class StopReason(StrEnum):
    """Why an episode ended."""

    REPLIED = "replied"
    REPLIED_WITHOUT_RULE = "replied_without_rule"
    NO_REPLY = "no_reply"
    TOOLS_DONE = "tools_done"
    TURN_LIMIT = "turn_limit"
    TOKEN_LIMIT = "token_limit"
    ABORTED = "aborted"
    ENV_ERROR = "env_error"


class Status(StrEnum):
    """Whether a trajectory may be learnt from."""

    RUNNING = "running"
    OK = "ok"
    POLICY_TRUNCATED = "policy_truncated"
    ENV_ERROR = "env_error"


MissingCause = Literal["no_truth", "not_applicable", "judge_error", "refused", "timeout"]
MISSING_CAUSES: tuple[MissingCause, ...] = get_args(MissingCause)


@dataclass(frozen=True, slots=True)
class Score:
    """One named number that a reward hook gives to an agent."""

    __pydantic_config__: ClassVar[ConfigDict] = _VALUE_CONFIG

    name: str
    value: float | None
    weight: float = 1.0
    agent: str = "host"
    turn: int | None = None
    """The turn that is scored; `None`: the whole episode."""
    reason: str = ""
    cause: MissingCause | None = None
    """Why `value` is missing."""

    def __post_init__(self) -> None:
        if self.value is not None and not math.isfinite(self.value):
            raise ValueError(
                f"score `{self.name}` is {self.value}; it is a finite number or `None`"
            )
        if self.cause is not None and self.cause not in MISSING_CAUSES:
            known = ", ".join(f"`{cause}`" for cause in MISSING_CAUSES)
            raise ValueError(f"score `{self.name}` has cause `{self.cause}`; known are {known}")


@dataclass(frozen=True, slots=True)
class Rewards:
    """The scores of one trajectory."""

    __pydantic_config__: ClassVar[ConfigDict] = _VALUE_CONFIG

    scores: tuple[Score, ...] = ()

    def __post_init__(self) -> None:
        object.__setattr__(self, "scores", tuple(self.scores))

    def total(self, agent: str | None = None) -> float | None:
        """Return the weighted sum of the episode scores of `agent`; of all agents, their mean.

        `no_truth` and `not_applicable` share their weight out among that agent's other scores;
        any other missing value makes the total `None`, and so does the absence of any score. What
        has no weight changes nothing, missing or not.
        """
        if agent is None or agent == "host":
            weighed = [s for s in self.scores if s.turn is None and s.weight]
            agents = sorted({score.agent for score in weighed})
            totals = [self._agent_total(name) for name in agents]
            known = [total for total in totals if total is not None]
            return sum(known) / len(known) if known and len(known) == len(totals) else None
        return self._agent_total(agent)

    def _agent_total(self, agent: str) -> float | None:
        mine = [s for s in self.scores if s.agent == agent and s.turn is None and s.weight]
        if any(s.value is None and s.cause not in ("no_truth", "not_applicable") for s in mine):
            return None
        spoke = [(score.value, score.weight) for score in mine if score.value is not None]
        spoken_weight = sum(weight for _, weight in spoke)
        if not spoken_weight:
            return None
        share = sum(score.weight for score in mine) / spoken_weight
        return sum(value * weight for value, weight in spoke) * share


def checked_rewards(made: object) -> Rewards:
    """Return what a rubric returned; raises `TypeError` where it is something else."""
    if not isinstance(made, Rewards):
        raise TypeError(f"`rubric` returned {made!r}; it returns `Rewards` made of `Score`s")
    return made


class Trajectory(BaseModel):
    """The record of one episode; frozen, and equal to itself after a round trip through JSON."""

    model_config = ConfigDict(extra="forbid", frozen=True, ser_json_inf_nan="constants")

    room_id: str
    content_hash: str
    comment_ids: tuple[str, ...]
    seed: int | None
    group: str | None = None
    """Trajectories of one room, comment and seed family share it."""
    prompts: dict[str, tuple[Message, ...]]
    """First messages, by agent."""
    tools: dict[str, tuple[ToolSpec, ...]]
    """Tools, by agent."""
    turns: tuple[Turn, ...] = ()
    state: State | None = None
    """The state at the end, frozen at the reply."""
    status: Status = Status.RUNNING
    stop_reason: StopReason | None = None
    rewards: Rewards | None = None
    versions: dict[str, str] = {}
    """Fingerprints: package, embedder."""
    faults: tuple[TurnEvent, ...] = ()
    """Faults and retries below the episode, and the cause of an `env_error`."""
    evidence: tuple[Fact, ...] = ()
    """The facts that the prompt stated."""
    partners: tuple[str, ...] = ()
    """Agents whose turns are context for the others and are never trained."""

    @property
    def messages(self) -> tuple[Message, ...]:
        """The transcript: prompt, then each turn's message and what the agent was told next."""
        messages = list(next(iter(self.prompts.values()), ()))
        for turn in self.turns:
            messages.append(turn.action.message)
            messages.extend(turn.messages)
        return tuple(messages)

    @property
    def reply(self) -> str | None:
        """The text of the reply that ended the episode, or `None`."""
        if self.stop_reason not in (StopReason.REPLIED, StopReason.REPLIED_WITHOUT_RULE):
            return None
        return self.turns[-1].action.message.content

    @property
    def reward(self) -> float | None:
        """The total of the rewards, or `None` where there is none."""
        return None if self.rewards is None else self.rewards.total()


_become = object.__dict__["__class__"].__set__


def _set_slots_directly(cls: type) -> None:
    """Replace the `__init__` of a frozen slots dataclass by one that sets the slots themselves.

    The one that `dataclass` writes goes through `object.__setattr__` for each field, which costs
    twice as much; these values are made on every step. Here a new value is of an open class of the
    same slots until all of them are set.
    """
    names = tuple([made.name for made in fields(cls)])
    opened = type(cls.__name__, (), {"__slots__": names})
    scope: dict[str, Any] = {"become": _become, "opened": opened, "cls": cls}
    parameters = []
    for made in fields(cls):
        scope[f"default_{made.name}"] = made.default
        default = "" if made.default is MISSING else f"=default_{made.name}"
        parameters.append(f"{made.name}{default}")
    lines = ["become(self, opened)", *(f"self.{name} = {name}" for name in names)]
    body = "\n    ".join([*lines, "self.__class__ = cls"])
    exec(f"def __init__(self, {', '.join(parameters)}):\n    {body}", scope)
    scope["__init__"].__annotations__ = vars(cls)["__init__"].__annotations__
    cls.__init__ = scope["__init__"]  # type: ignore[misc]


for _value in (ToolCall, Message, ToolResult, Observation, Action, Turn):
    _set_slots_directly(_value)
