"""Conversations as each model family samples them, and what the template itself makes of them."""

from __future__ import annotations

import functools
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from tokenizers_for_tests import TEMPLATES, pretty, template, tokenizer

from livestream_env.masking import END_TO_END
from livestream_env.renderers import ChatTemplateRenderer, TokenSequence
from livestream_env.types import Action, Message, ToolCall, ToolSpec, Trajectory, Turn, freeze

SETTINGS: dict[str, tuple[str, dict[str, Any]]] = {
    **{name: (name, {}) for name in TEMPLATES},
    "qwen3 nothink": ("qwen3", {"enable_thinking": False}),
    "qwen3_6 preserve": ("qwen3_6", {"preserve_thinking": True}),
}
"""Templates with their variables, by a name."""
SPEC = ToolSpec(
    "search_product",
    "查商品",
    freeze(
        {
            "type": "object",
            "properties": {"keyword": {"type": "string", "description": "商品名"}},
            "required": ["keyword"],
        }
    ),
)
RULE = ToolSpec("get_reply_rule", "查规则", freeze({"type": "object", "properties": {}}))
TOOLS = (SPEC, RULE)
SYSTEM = Message("system", "你是主播")
COMMENT = Message("user", "多少钱")
AGAIN = Message("user", "包邮吗")


def call_of(
    index: int = 0,
    *names: str,
    arguments: Mapping[str, Any] | None = None,
    text: str = "",
    thinking: str = "",
) -> Message:
    """Return a tool turn: a call a name, by default one of `search_product`."""
    given = freeze({"keyword": "面霜"} if arguments is None else arguments)
    calls = tuple(
        ToolCall(f"call_{index}_{at}", name, given)
        for at, name in enumerate(names or ("search_product",))
    )
    return Message("assistant", text, calls, reasoning=thinking)


def result_of(index: int = 0, at: int = 0, text: str = '{"a":1}') -> Message:
    return Message("tool", text, (), f"call_{index}_{at}")


def reply_of(text: str = "亲，包邮", thinking: str = "") -> Message:
    return Message("assistant", text, (), None, thinking)


# --- the oracle: the template's own tokenization ------------------------------------------------


def openai(message: Message, *, text_arguments: bool = False) -> dict[str, Any]:
    """Return a message as templates document it: arguments as an object."""
    told: dict[str, Any] = {"role": message.role, "content": message.content}
    if message.reasoning:
        told["reasoning_content"] = told["thinking"] = message.reasoning
    if message.tool_calls:
        told["tool_calls"] = [
            {
                "type": "function",
                "id": call.id,
                "function": {
                    "name": call.name,
                    "arguments": json.dumps(call.arguments, ensure_ascii=False)
                    if text_arguments
                    else dict(call.arguments),
                },
            }
            for call in message.tool_calls
        ]
    if message.tool_call_id is not None:
        told["tool_call_id"] = message.tool_call_id
    return told


def own_text(
    setting: str,
    messages: Sequence[Message],
    tools: Sequence[ToolSpec] = TOOLS,
    made: Any = None,
    **variables: Any,
) -> str:
    """Return what `apply_chat_template` shows, generation prompt included."""
    name, given = SETTINGS[setting]
    told = [openai(message, text_arguments=name == "deepseekv3") for message in messages]
    made = made or tokenizer(TEMPLATES[name][0])
    shown = made.apply_chat_template(
        told,
        tools=[tool.to_openai() for tool in tools] or None,
        chat_template=template(name),
        **{"add_generation_prompt": True, "tokenize": False, **given, **variables},
    )
    return str(shown)


def own_ids(
    setting: str,
    messages: Sequence[Message],
    tools: Sequence[ToolSpec] = TOOLS,
    made: Any = None,
    **variables: Any,
) -> tuple[int, ...]:
    """Return the template's own tokens of a conversation, generation prompt included."""
    made = made or tokenizer(TEMPLATES[SETTINGS[setting][0]][0])
    return ids_of(own_text(setting, messages, tools, made, **variables), made)


def ids_of(text: str, made: Any) -> tuple[int, ...]:
    return tuple(made(text, add_special_tokens=False)["input_ids"])


@functools.cache
def renderer(setting: str, **options: Any) -> ChatTemplateRenderer:
    name, variables = SETTINGS[setting]
    made = tokenizer(TEMPLATES[name][0])
    return ChatTemplateRenderer(made, chat_template=template(name), **variables, **options)


def control_ids(ids: Sequence[int], made: Any) -> list[int]:
    """Return the ids that are control tokens, in order; an unknown character is none."""
    controls = set(made.added_tokens_decoder) - {made.unk_token_id}
    return [token for token in ids if token in controls]


# --- what a model samples ------------------------------------------------------------------------


def spelled(setting: str, message: Message) -> str:
    """Return the text that a model of the family samples for a message, its end token included."""
    name = SETTINGS[setting][0]
    family = TEMPLATES[name][0]
    if family == "qwen":
        return _qwen(setting, message)
    return _SPELLERS[family](message)


def _json(arguments: Mapping[str, Any]) -> str:
    return json.dumps(arguments, ensure_ascii=False)


def _qwen(setting: str, message: Message) -> str:
    name = SETTINGS[setting][0]
    newer = name.startswith(("qwen3_5", "qwen3_6", "qwen3_8"))
    opened = newer and "nothink" not in name
    if message.reasoning or opened or name == "qwen3_training":
        inside = f"{message.reasoning}\n</think>\n\n"
        thinking = inside if opened else f"<think>\n{inside}"
    else:
        thinking = ""
    calls = "\n".join(_xml(call) if newer else _hermes(call) for call in message.tool_calls)
    between = "" if not (message.content and calls) else "\n\n" if newer else "\n"
    return f"{thinking}{message.content}{between}{calls}<|im_end|>"


def _hermes(call: ToolCall) -> str:
    told = f'{{"name": "{call.name}", "arguments": {_json(call.arguments)}}}'
    return f"<tool_call>\n{told}\n</tool_call>"


def _xml(call: ToolCall) -> str:
    given = "".join(
        f"<parameter={key}>\n{value}\n</parameter>\n" for key, value in call.arguments.items()
    )
    return f"<tool_call>\n<function={call.name}>\n{given}</function>\n</tool_call>"


def _llama(message: Message) -> str:
    calls = "".join(
        f'{{"name": "{call.name}", "parameters": {_json(call.arguments)}}}'
        for call in message.tool_calls
    )
    return f"{message.reasoning}{message.content}{calls}<|eot_id|>"


def _glm(message: Message) -> str:
    said = f"\n<think>{message.reasoning}</think>"
    said += f"\n{message.content}" if message.content else ""
    for call in message.tool_calls:
        said += f"\n<tool_call>{call.name}\n"
        for key, value in call.arguments.items():
            said += f"<arg_key>{key}</arg_key>\n<arg_value>{value}</arg_value>\n"
        said += "</tool_call>"
    return said + ("<|observation|>" if message.tool_calls else "<|user|>")


def _deepseek(message: Message) -> str:
    said = f"{message.reasoning}</think>\n\n" if message.reasoning else ""
    said += message.content
    calls = "\n".join(
        f"<｜tool▁call▁begin｜>function<｜tool▁sep｜>{call.name}\n"
        f"```json\n{_json(call.arguments)}\n```<｜tool▁call▁end｜>"
        for call in message.tool_calls
    )
    said += f"<｜tool▁calls▁begin｜>{calls}<｜tool▁calls▁end｜>" if calls else ""
    return said + "<｜end▁of▁sentence｜>"


def _gptoss(message: Message) -> str:
    calls = message.tool_calls
    thought = message.reasoning or (message.content if calls else "")
    said = f"<|channel|>analysis<|message|>{thought}<|end|><|start|>assistant" if thought else ""
    if not calls:
        return f"{said}<|channel|>final<|message|>{message.content}<|return|>"
    for call in calls:
        said += f" to=functions.{call.name}<|channel|>commentary json<|message|>"
        said += f"{_json(call.arguments)}<|call|>"
    return said


def _gemma(message: Message) -> str:
    said = ""
    if message.reasoning:
        said = f"<|channel>thought\n{message.reasoning}\n<channel|>"
    said += message.content
    for call in message.tool_calls:
        given = ",".join(f'{key}:<|"|>{value}<|"|>' for key, value in call.arguments.items())
        said += f"<|tool_call>call:{call.name}{{{given}}}<tool_call|>"
    return said + ("<|tool_response>" if message.tool_calls else "<turn|>")


_SPELLERS = {
    "llama": _llama,
    "glm": _glm,
    "deepseek": _deepseek,
    "gptoss": _gptoss,
    "gemma": _gemma,
}


# --- episodes ------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Step:
    """One sampled message and what follows it."""

    message: Message
    then: tuple[Message, ...] = ()
    text: str | None = None
    """What was sampled, where it is not what the family's model samples."""
    stop: str = "stop"
    agent: str = "host"


@dataclass(frozen=True)
class Episode:
    """An episode as the template itself would have it."""

    setting: str
    steps: tuple[Step, ...]
    opening: tuple[Message, ...] = (SYSTEM, COMMENT)
    tools: tuple[ToolSpec, ...] = TOOLS
    made: Any = field(default=None, compare=False)

    @property
    def tokenizer(self) -> Any:
        return self.made or tokenizer(TEMPLATES[SETTINGS[self.setting][0]][0])

    @property
    def sampled(self) -> list[tuple[int, ...]]:
        return [
            ids_of(
                spelled(self.setting, step.message) if step.text is None else step.text,
                self.tokenizer,
            )
            for step in self.steps
        ]

    def history(self, until: int) -> list[Message]:
        """Return what the policy was told before step `until`."""
        told = list(self.opening)
        for step in self.steps[:until]:
            told += (step.message, *step.then)
        return told

    def trajectory(self, **record: Any) -> Trajectory:
        """Return the episode with sampled ids, and a log-probability each."""
        turns = [
            Turn(
                step.agent,
                Action(
                    step.message,
                    token_ids=ids,
                    logprobs=logprobs_of(index, ids),
                    stop=step.stop,
                ),
                (),
                step.then,
            )
            for index, (step, ids) in enumerate(zip(self.steps, self.sampled, strict=True))
        ]
        agents = {step.agent for step in self.steps}
        made = trajectory_of(turns, self.opening, self.tools, agents=agents)
        return made.model_copy(update=record)

    def expected(self) -> list[tuple[int, ...]]:
        """Return the sequences by whole histories: one while each prompt extends the last.

        A turn without its end token extends where the prompt shows the end token next.
        """
        made = self.tokenizer
        sequences: list[tuple[int, ...]] = []
        for index, ids in enumerate(self.sampled):
            prompt = own_text(self.setting, self.history(index), self.tools, made)
            shown = pretty(sequences[-1], made) if sequences else ""
            if sequences and self._extends(index, prompt, shown):
                sequences[-1] += (*ids_of(prompt[len(shown) :], made), *ids)
            else:
                sequences.append((*ids_of(prompt, made), *ids))
        return sequences

    def _extends(self, index: int, prompt: str, shown: str) -> bool:
        if not prompt.startswith(shown):
            return False
        whole = spelled(self.setting, self.steps[index - 1].message)
        sampled = pretty(self.sampled[index - 1], self.tokenizer)
        end = pretty(ids_of(whole, self.tokenizer)[-1:], self.tokenizer)
        ended = sampled.endswith(end)
        rest = prompt[len(shown) :]
        return ended or rest.startswith((end, "<|end|>"))


def logprobs_of(turn: int, ids: Sequence[int]) -> tuple[float, ...]:
    """Return a log-probability for each id that no other token of the episode has."""
    return tuple(-(turn + 1) - at / 1024 for at in range(len(ids)))


def trajectory_of(
    turns: Sequence[Turn],
    opening: tuple[Message, ...] = (SYSTEM, COMMENT),
    tools: tuple[ToolSpec, ...] = TOOLS,
    *,
    agents: set[str] | None = None,
) -> Trajectory:
    names = agents or {"host"}
    return Trajectory(
        room_id="r",
        content_hash="",
        comment_ids=("c1",),
        seed=0,
        prompts=dict.fromkeys(names, opening),
        tools=dict.fromkeys(names, tools),
        turns=tuple(turns),
    )


def without_ids(trajectory: Trajectory) -> Trajectory:
    """Return the trajectory as text alone."""
    turns = tuple(
        replace(turn, action=replace(turn.action, token_ids=None, logprobs=None))
        for turn in trajectory.turns
    )
    return trajectory.model_copy(update={"turns": turns})


def ids(sequences: Sequence[TokenSequence]) -> list[tuple[int, ...]]:
    return [sequence.token_ids for sequence in sequences]


def steps_of(case: str, thinking: bool) -> tuple[Step, ...]:
    first, second = ("想一想", "好") if thinking else ("", "")
    call, result = call_of(0, thinking=first), (result_of(0),)
    reply = Step(reply_of(thinking=second))
    if case == "tool":
        return Step(call, result), reply
    if case == "tools":
        again = call_of(1, thinking=second)
        return Step(call, result), Step(again, (result_of(1, 0, "规则"),)), reply
    if case == "pair":
        both = call_of(0, "search_product", "get_reply_rule", thinking=first)
        return Step(both, (result_of(0), result_of(0, 1, "规则"))), reply
    if case == "text":
        return Step(replace(call, content="我查查"), result), reply
    answered = replace(reply, then=(AGAIN,))
    last = Step(reply_of("包的"))
    return (Step(call, result), answered, last) if case == "comment" else (answered, last)


# --- what holds of every rendering ----------------------------------------------------------------


def assert_invariants(sequences: Sequence[TokenSequence], trajectory: Trajectory) -> None:
    """Check what holds of every rendering: each turn once, in order, as it was sampled."""
    actions = [turn.action for turn in trajectory.turns]
    assert [turn for sequence in sequences for turn in sequence.turns] == list(range(len(actions)))
    for sequence in sequences:
        assert sequence.spans[0].start == 0
        assert sequence.spans[-1].stop == len(sequence.token_ids)
        for before, after in zip(sequence.spans, sequence.spans[1:], strict=False):
            assert before.stop == after.start
        for span in sequence.spans:
            if span.source.is_sampled:
                assert sequence.token_ids[span.start : span.stop] == actions[span.turn].token_ids
                assert sequence.logprobs is not None
                assert sequence.logprobs[span.start : span.stop] == actions[span.turn].logprobs
            elif sequence.logprobs is not None:
                assert not any(sequence.logprobs[span.start : span.stop])
        if any(len(actions[turn].token_ids or ()) for turn in sequence.turns):
            mask = END_TO_END(sequence).loss_mask
            trained = [t for t, bit in zip(sequence.token_ids, mask, strict=True) if bit]
            assert trained == [t for turn in sequence.turns for t in actions[turn].token_ids or ()]


# --- parts of episodes ----------------------------------------------------------------------------

OPENED = "<|im_end|>\n<|im_start|>assistant\n"
SHOWN = f'\n<|im_start|>user\n<tool_response>\n{{"a":1}}\n</tool_response>{OPENED}'
ASKED = f"\n<|im_start|>user\n包邮吗{OPENED}"
REPLY_STEP, CALL, RESULT = Step(reply_of()), call_of(), (result_of(),)
PAIR = call_of(0, "search_product", "get_reply_rule")
PAIR_RESULTS = (result_of(), result_of(0, 1, "规则"))


def boundary(setting: str, *steps: Step) -> str | None:
    """Return what follows the last turn but one; `None` where a new sequence starts."""
    sequences = renderer(setting).render(Episode(setting, steps).trajectory())
    if sequences[-1].turns[0] == len(steps) - 1:
        return None
    sampled = [span for span in sequences[-1].spans if span.source.is_sampled]
    between = sequences[-1].token_ids[sampled[-2].stop : sampled[-1].start]
    return pretty(between, renderer(setting).tokenizer)


def sampled_text(setting: str, message: Message, without: str) -> str:
    """Return what is sampled for a message, less its end token."""
    return spelled(setting, message).removesuffix(without)
