"""Boundaries between turns, and where a sequence ends, for every packaged chat template.

What is expected is the template's own rendering of the whole conversation, or a literal.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from renderings_for_tests import (
    AGAIN,
    ASKED,
    CALL,
    COMMENT,
    OPENED,
    PAIR,
    PAIR_RESULTS,
    REPLY_STEP,
    RESULT,
    SETTINGS,
    SHOWN,
    SYSTEM,
    TOOLS,
    Episode,
    Step,
    assert_invariants,
    boundary,
    call_of,
    ids,
    ids_of,
    own_ids,
    renderer,
    reply_of,
    result_of,
    sampled_text,
    spelled,
    steps_of,
)
from tokenizers_for_tests import pretty

from livestream_env.types import Message

SPLITS_BY_COMMENT = {"comment", "replies"}
ALL = {"tool", "tools", "pair", "text", "comment", "replies"}
NONE: set[str] = set()
SPLITS: dict[str, tuple[set[str], set[str]]] = {
    **dict.fromkeys(("qwen2_5", "qwen2_5_training"), (NONE, ALL)),
    **dict.fromkeys(("qwen3_instruct_2507", "qwen3_instruct_2507_training"), (NONE, ALL)),
    "qwen3": (NONE, SPLITS_BY_COMMENT),
    "qwen3_training": (NONE, NONE),
    "qwen3 nothink": (ALL, ALL),
    **dict.fromkeys(("qwen3_5_think", "qwen3_6"), (SPLITS_BY_COMMENT, SPLITS_BY_COMMENT)),
    **dict.fromkeys(("qwen3_5_think_training", "qwen3_6_training"), (NONE, NONE)),
    "qwen3_5_nothink": (SPLITS_BY_COMMENT, ALL),
    "qwen3_5_nothink_training": (NONE, ALL),
    **dict.fromkeys(("qwen3_6 preserve", "qwen3_8", "qwen3_8_training"), (NONE, NONE)),
    "llama3_1": ({"text"}, ALL),
    **dict.fromkeys(("glm4moe", "glm4moe_training"), (NONE, SPLITS_BY_COMMENT)),
    **dict.fromkeys(("deepseekv3", "deepseekv3_training"), (ALL, ALL)),
    **dict.fromkeys(
        ("gptoss", "gptoss_training"),
        ({"pair", *SPLITS_BY_COMMENT}, {"pair", *SPLITS_BY_COMMENT}),
    ),
    "gemma4": ({"text"}, {"text", *SPLITS_BY_COMMENT}),
}
"""Cases in which a template shows a sampled turn otherwise: without thinking, and with it."""
REFUSED = {("llama3_1", "pair"), ("gptoss", "text"), ("gptoss_training", "text")}
"""Cases that a template raises on: several calls a turn; text, thinking and a call."""


CASES = [
    pytest.param(setting, case, thinking, id=f"{setting}-{case}{'-thinking' if thinking else ''}")
    for setting in SETTINGS
    for case in ("tool", "tools", "pair", "text", "comment", "replies")
    for thinking in (False, True)
    if (setting, case) not in REFUSED or (setting != "llama3_1" and not thinking)
]


@pytest.mark.row("R34", "R44")
@pytest.mark.parametrize(("setting", "case", "thinking"), CASES)
def test_a_sequence_is_the_whole_history_while_the_template_keeps_it(
    setting: str, case: str, thinking: bool
) -> None:
    episode = Episode(setting, steps_of(case, thinking))
    sequences = renderer(setting).render(episode.trajectory())
    assert ids(sequences) == episode.expected()
    assert (len(sequences) > 1) == (case in SPLITS[setting][thinking])
    assert_invariants(sequences, episode.trajectory())


# --- what lies between two turns, as text --------------------------------------------------------


HERMES = ("qwen2_5", "qwen3_instruct_2507", "qwen3", "qwen3_training")
LLAMA_OPENED = "<|start_header_id|>assistant<|end_header_id|>\n\n"
IPYTHON = "<|start_header_id|>ipython<|end_header_id|>\n\n"


@pytest.mark.parametrize("setting", HERMES)
@pytest.mark.parametrize(
    ("step", "end", "shown"),
    [
        pytest.param(Step(CALL, RESULT), "", SHOWN, id="result"),
        pytest.param(Step(CALL, RESULT), "<|im_end|>", f"<|im_end|>{SHOWN}", id="no end token"),
        pytest.param(
            Step(PAIR, PAIR_RESULTS),
            "",
            '\n<|im_start|>user\n<tool_response>\n{"a":1}\n</tool_response>\n<tool_response>\n规则\n'
            f"</tool_response>{OPENED}",
            id="two results in one block",
        ),
        pytest.param(Step(reply_of("亲"), (AGAIN,)), "", ASKED, id="comment"),
        pytest.param(Step(reply_of(""), (AGAIN,)), "", ASKED, id="empty reply"),
        pytest.param(
            Step(reply_of("亲"), (AGAIN,), stop="length"),
            "<|im_end|>",
            f"<|im_end|>{ASKED}",
            id="cut reply",
        ),
        pytest.param(
            Step(CALL, (*RESULT, Message("user", "还有吗"))),
            "",
            '\n<|im_start|>user\n<tool_response>\n{"a":1}\n</tool_response><|im_end|>\n'
            f"<|im_start|>user\n还有吗{OPENED}",
            id="result and comment",
        ),
    ],
)
def test_what_follows_a_turn_in_qwen_templates(
    setting: str, step: Step, end: str, shown: str
) -> None:
    text = sampled_text(setting, step.message, end)
    assert boundary(setting, replace(step, text=text), REPLY_STEP) == shown


@pytest.mark.parametrize(
    ("setting", "step", "shown"),
    [
        pytest.param(
            "qwen3",
            Step(CALL, RESULT, text="<think>\n\n</think>\n\n" + spelled("qwen3", CALL)),
            None,
            id="qwen3 drops an empty think block",
        ),
        pytest.param("qwen3 nothink", Step(CALL, RESULT), None, id="qwen3 nothink"),
        pytest.param(
            "qwen3_5_think", Step(CALL, RESULT), f"{SHOWN}<think>\n", id="qwen3_5_think result"
        ),
        pytest.param("qwen3_6", Step(CALL, RESULT), f"{SHOWN}<think>\n", id="qwen3_6 result"),
        pytest.param("qwen3_6", Step(reply_of(), (AGAIN,)), None, id="qwen3_6 comment"),
        pytest.param(
            "qwen3_8", Step(reply_of(), (AGAIN,)), f"{ASKED}<think>\n", id="qwen3_8 comment"
        ),
        pytest.param(
            "qwen3_6 preserve",
            Step(reply_of(), (AGAIN,)),
            f"{ASKED}<think>\n",
            id="qwen3_6 preserve comment",
        ),
        pytest.param(
            "qwen3_5_nothink",
            Step(CALL, RESULT),
            f"{SHOWN}<think>\n\n</think>\n\n",
            id="qwen3_5_nothink result",
        ),
        pytest.param(
            "llama3_1",
            Step(CALL, RESULT),
            f'{IPYTHON}"{{\\"a\\":1}}"<|eot_id|>{LLAMA_OPENED}',
            id="llama3_1 result is JSON text",
        ),
        pytest.param("llama3_1", Step(call_of(text="我查查"), RESULT), None, id="llama3_1 text"),
        pytest.param("gemma4", Step(call_of(text="我查查"), RESULT), None, id="gemma4 text"),
        pytest.param(
            "glm4moe",
            Step(CALL, RESULT),
            '\n<tool_response>\n{"a":1}\n</tool_response><|assistant|>',
            id="glm4moe result",
        ),
        pytest.param(
            "glm4moe",
            Step(CALL, RESULT, text=sampled_text("glm4moe", CALL, "<|observation|>")),
            '<|observation|>\n<tool_response>\n{"a":1}\n</tool_response><|assistant|>',
            id="glm4moe result, no end token",
        ),
        pytest.param(
            "glm4moe", Step(reply_of(), (AGAIN,)), "\n包邮吗<|assistant|>", id="glm4moe comment"
        ),
        pytest.param("deepseekv3", Step(CALL, RESULT), None, id="deepseekv3 result"),
        pytest.param("deepseekv3", Step(reply_of(), (AGAIN,)), None, id="deepseekv3 comment"),
        pytest.param(
            "gptoss",
            Step(CALL, RESULT),
            "<|start|>functions.search_product to=assistant<|channel|>commentary<|message|>"
            '"{\\"a\\":1}"<|end|><|start|>assistant',
            id="gptoss result",
        ),
        pytest.param("gptoss", Step(reply_of(), (AGAIN,)), None, id="gptoss sampled return"),
        pytest.param(
            "gptoss",
            Step(reply_of(), (AGAIN,), text=sampled_text("gptoss", reply_of(), "<|return|>")),
            "<|end|><|start|>user<|message|>包邮吗<|end|><|start|>assistant",
            id="gptoss reply, no end token",
        ),
        pytest.param(
            "gemma4",
            Step(CALL, RESULT),
            'response:search_product{value:<|"|>{"a":1}<|"|>}<tool_response|>',
            id="gemma4 result",
        ),
        pytest.param(
            "gemma4",
            Step(PAIR, PAIR_RESULTS),
            'response:search_product{value:<|"|>{"a":1}<|"|>}<tool_response|>'
            '<|tool_response>response:get_reply_rule{value:<|"|>规则<|"|>}<tool_response|>',
            id="gemma4 two results",
        ),
        pytest.param(
            "gemma4",
            Step(CALL, RESULT, text=sampled_text("gemma4", CALL, "<|tool_response>")),
            '<|tool_response>response:search_product{value:<|"|>{"a":1}<|"|>}<tool_response|>',
            id="gemma4 result, no end token",
        ),
    ],
)
def test_what_follows_a_turn_in_other_templates(
    setting: str, step: Step, shown: str | None
) -> None:
    assert boundary(setting, step, REPLY_STEP) == shown


def test_deepseek_goes_on_after_a_reply_to_a_tool_result() -> None:
    steps = (Step(CALL, RESULT), Step(reply_of(), (AGAIN,)), Step(reply_of("包的")))
    assert boundary("deepseekv3", *steps) == "<｜User｜>包邮吗<｜Assistant｜><think>\n"


def test_a_call_with_thinking_before_a_reply_without_it_is_seen_from_the_comment() -> None:
    steps = (
        Step(call_of(thinking="想"), RESULT),
        Step(reply_of(), (AGAIN,), text="亲，包邮<|im_end|>"),
        Step(reply_of("包的")),
    )
    assert boundary("qwen3", *steps) is None


def test_a_template_of_one_call_a_turn_shows_the_last_and_all_results() -> None:
    steps = (Step(PAIR, PAIR_RESULTS), REPLY_STEP)
    assert boundary("llama3_1", *steps) == (
        f'{IPYTHON}"{{\\"a\\":1}}"<|eot_id|>{IPYTHON}"规则"<|eot_id|>{LLAMA_OPENED}'
    )


def test_a_template_that_refuses_thinking_beside_text_is_shown_the_text() -> None:
    told = [SYSTEM, COMMENT, call_of(text="我查查", thinking="想"), *RESULT]
    plain = [*told[:2], call_of(text="我查查"), *RESULT]
    assert renderer("gptoss").prompt_ids(told, TOOLS) == own_ids("gptoss", plain)


@pytest.mark.parametrize("setting", SETTINGS)
@pytest.mark.parametrize("case", ["call", "reply", "cut", "empty"])
def test_a_turn_without_its_end_token_is_ended_once(setting: str, case: str) -> None:
    message = CALL if case == "call" else reply_of("" if case == "empty" else "亲，包邮")
    then = RESULT if case == "call" else (AGAIN,)
    made = renderer(setting).tokenizer
    whole = ids_of(spelled(setting, message), made)
    text = spelled(setting, message) if case == "empty" else pretty(whole[:-1], made)
    stop = "length" if case == "cut" else "stop"
    episode = Episode(setting, (Step(message, then, text, stop), Step(reply_of("包的"))))
    sequences = renderer(setting).render(episode.trajectory())
    assert ids(sequences) == episode.expected()
    assert_invariants(sequences, episode.trajectory())


@pytest.mark.parametrize("setting", [s for s in SETTINGS if "tool" not in SPLITS[s][0]])
@pytest.mark.parametrize(
    "arguments",
    [
        pytest.param({}, id="none"),
        pytest.param({"n": 3}, id="a number"),
        pytest.param({"a": ""}, id="an empty text"),
        pytest.param({"a": [], "b": {}, "c": None, "d": True}, id="empty values"),
    ],
)
def test_calls_without_words_are_located_each_time(setting: str, arguments: dict[str, Any]) -> None:
    """The same call twice: a call that holds no text is still told from the one before."""
    steps = [
        Step(call_of(i, "get_reply_rule", arguments=arguments), (result_of(i, 0, "规则"),))
        for i in range(2)
    ]
    told = [SYSTEM, COMMENT]
    made = renderer(setting).tokenizer
    texts = []
    for step in steps:  # what was sampled is what the template shows behind the prompt
        prompt = pretty(own_ids(setting, told), made)
        told += (step.message, *step.then)
        shown = pretty(own_ids(setting, told), made)
        end = pretty(ids_of(spelled(setting, step.message), made)[-1:], made)
        texts.append(shown[len(prompt) :].split(end)[0] + end)
    episode = Episode(
        setting,
        (*(replace(s, text=t) for s, t in zip(steps, texts, strict=True)), Step(reply_of())),
    )
    assert ids(renderer(setting).render(episode.trajectory())) == episode.expected()
    assert len(episode.expected()) == 1
