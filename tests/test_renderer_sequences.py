"""Ids, sources and sequences of trajectories: recorded, from text, of several agents, at fault."""

from __future__ import annotations

from collections.abc import Sequence
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
    RULE,
    SETTINGS,
    SHOWN,
    SPEC,
    SYSTEM,
    TOOLS,
    Episode,
    Step,
    assert_invariants,
    boundary,
    call_of,
    ids,
    ids_of,
    logprobs_of,
    own_ids,
    own_text,
    renderer,
    reply_of,
    result_of,
    sampled_text,
    spelled,
    steps_of,
    trajectory_of,
    without_ids,
)
from tokenizers_for_tests import compact, pretty, tokenizer

import livestream_env as le
from livestream_env.masking import END_TO_END, REPLY, TOOL_CALLS
from livestream_env.renderers import Source, TokenSequence
from livestream_env.types import Action, Message, ToolCall, Trajectory, Turn, freeze

# --- what was sampled is kept ---------------------------------------------------------------------


def turn_of(message: Message, token_ids: Sequence[int], *then: Message, **action: Any) -> Turn:
    logprobs = logprobs_of(0, token_ids)
    return Turn("host", Action(message, tuple(token_ids), logprobs, **action), (), then)


def split_ids(text: str) -> tuple[int, ...]:
    """Return ids of the text, a character at a time, so that they tokenize otherwise."""
    made = tokenizer("qwen")
    return tuple(token for letter in text for token in ids_of(letter, made))


END = tokenizer("qwen").convert_tokens_to_ids("<|im_end|>")
OPEN, CLOSE = tokenizer("qwen").convert_tokens_to_ids(["<tool_call>", "</tool_call>"])
COMPACT = compact({"name": "search_product", "arguments": {"keyword": "面霜"}})


@pytest.mark.row("R34", "R44")
@pytest.mark.parametrize(
    ("message", "sampled"),
    [
        pytest.param(reply_of("包邮 shipping"), (*split_ids("包邮 shipping"), END), id="letters"),
        pytest.param(reply_of("�"), (split_ids("面")[0], END), id="half a character"),
        pytest.param(
            CALL, (OPEN, *split_ids(f"\n{COMPACT}\n"), CLOSE, END), id="JSON without blanks"
        ),
        pytest.param(reply_of("亲"), (*split_ids("亲"),), id="no end token"),
        pytest.param(reply_of(""), (), id="nothing at all"),
    ],
)
def test_m1_sampled_ids_are_never_tokenized_again(
    message: Message, sampled: tuple[int, ...]
) -> None:
    then = RESULT if message.tool_calls else (AGAIN,)
    last = turn_of(reply_of(), (*split_ids("亲"), END))
    trajectory = trajectory_of([turn_of(message, sampled, *then), last])
    (sequence,) = renderer("qwen2_5").render(trajectory)
    assert sequence.exact
    assert_invariants([sequence], trajectory)
    canonical = Episode("qwen2_5", (Step(message, then), Step(reply_of())))
    rest = canonical.expected()[0][len(own_ids("qwen2_5", [SYSTEM, COMMENT])) :]
    shown = pretty(rest, tokenizer("qwen")).split("<|im_end|>", 1)[1]
    end = "" if sampled[-1:] == (END,) else "<|im_end|>"
    after = sequence.spans[[s.source.is_sampled for s in sequence.spans].index(True)].stop
    assert pretty(sequence.token_ids[after:], tokenizer("qwen")).startswith(
        end + shown.split("assistant\n")[0]
    )


def test_m1_text_alone_is_marked() -> None:
    episode = Episode("qwen2_5", (Step(CALL, RESULT), Step(reply_of())))
    (sequence,) = renderer("qwen2_5").render(without_ids(episode.trajectory()))
    assert not sequence.exact
    assert not END_TO_END(sequence).exact
    assert sequence.logprobs is None
    assert sequence.token_ids == episode.expected()[0]


@pytest.mark.parametrize("setting", ["qwen2_5", "glm4moe", "gptoss", "gemma4", "llama3_1"])
def test_text_alone_is_what_the_template_shows(setting: str) -> None:
    episode = Episode(setting, (Step(CALL, RESULT), Step(reply_of())))
    assert ids(renderer(setting).render(without_ids(episode.trajectory()))) == episode.expected()


def test_text_cut_by_the_length_limit_has_no_end_token() -> None:
    turns = [Turn("host", Action(reply_of("亲，包"), stop="length"))]
    (sequence,) = renderer("qwen2_5").render(trajectory_of(turns))
    assert pretty(sequence.token_ids, tokenizer("qwen")).endswith("assistant\n亲，包")


@pytest.mark.parametrize(
    ("setting", "message"),
    [
        pytest.param("qwen2_5", reply_of(thinking="想"), id="thinking without a place"),
        pytest.param("deepseekv3", reply_of(), id="a prompt that is taken back"),
        pytest.param("gptoss", PAIR, id="a second call"),
        pytest.param("gemma4", call_of(text="我查查"), id="text behind its call"),
    ],
)
def test_text_that_the_template_cannot_show_is_refused(setting: str, message: Message) -> None:
    turns = [Turn("host", Action(message), (), RESULT), Turn("host", Action(reply_of()))]
    with pytest.raises(le.PrefixMismatch, match="no recorded ids"):
        renderer(setting).render(trajectory_of(turns))


def test_an_empty_reply_from_text_is_its_end_token() -> None:
    turns = [Turn("host", Action(reply_of(""), stop="stop"), (), (AGAIN,))]
    turns.append(Turn("host", Action(reply_of("包的"))))
    (sequence,) = renderer("qwen2_5").render(trajectory_of(turns))
    assert pretty(sequence.token_ids, tokenizer("qwen")).endswith(
        "assistant\n<|im_end|>\n<|im_start|>user\n包邮吗<|im_end|>\n"
        "<|im_start|>assistant\n包的<|im_end|>"
    )


def test_a_turn_without_logprobs_leaves_the_sequence_without() -> None:
    episode = Episode("qwen2_5", (Step(CALL, RESULT), Step(reply_of())))
    trajectory = episode.trajectory()
    first = trajectory.turns[0]
    bare = replace(first, action=replace(first.action, logprobs=None))
    changed = trajectory.model_copy(update={"turns": (bare, trajectory.turns[1])})
    (sequence,) = renderer("qwen2_5").render(changed)
    assert sequence.logprobs is None
    assert sequence.exact


def test_a_logprob_for_each_id_or_none() -> None:
    action = Action(reply_of(), (*split_ids("亲"), END), (-0.5,))
    with pytest.raises(ValueError, match=r"turn 0 has \d+ token ids and 1 logprobs"):
        renderer("qwen2_5").render(trajectory_of([Turn("host", action)]))


def test_sources_tell_who_wrote_each_token() -> None:
    episode = Episode("qwen2_5", (Step(CALL, (*RESULT, AGAIN)), Step(reply_of())))
    (sequence,) = renderer("qwen2_5").render(episode.trajectory())
    made = tokenizer("qwen")
    told = [
        (span.source, pretty(sequence.token_ids[span.start : span.stop], made), span.turn)
        for span in sequence.spans
    ]
    assert [part for part in told if part[0] is not Source.SCAFFOLD] == [
        (Source.PROMPT, "你是主播", -1),
        (Source.PROMPT, "多少钱", -1),
        (Source.TOOL_CALL, spelled("qwen2_5", CALL), 0),
        (Source.TOOL_RESULT, '{"a":1}', 0),
        (Source.PROMPT, "包邮吗", 0),
        (Source.REPLY, "亲，包邮<|im_end|>", 1),
    ]


# --- recorded prompts -----------------------------------------------------------------------------


def with_prompts(trajectory: Trajectory, prompts: Sequence[Sequence[int] | None]) -> Trajectory:
    turns = tuple(
        replace(turn, action=replace(turn.action, prompt_ids=prompt and tuple(prompt)))
        for turn, prompt in zip(trajectory.turns, prompts, strict=True)
    )
    return trajectory.model_copy(update={"turns": turns})


def test_a_recorded_prompt_that_extends_is_copied() -> None:
    episode = Episode("qwen2_5", (Step(CALL, RESULT), Step(reply_of())))
    trajectory = episode.trajectory()
    first, second = (turn.action.token_ids or () for turn in trajectory.turns)
    opening = (END, END, END)
    prompts = (opening, (*opening, *first, OPEN, OPEN))
    (sequence,) = renderer("qwen2_5").render(with_prompts(trajectory, prompts))
    assert sequence.token_ids == (*opening, *first, OPEN, OPEN, *second)
    assert [(s.source, s.stop - s.start) for s in sequence.spans if not s.source.is_sampled] == [
        (Source.PROMPT, 3),
        (Source.TOOL_RESULT, 2),
    ]


def test_a_recorded_prompt_that_does_not_extend_starts_a_sequence() -> None:
    episode = Episode("qwen2_5", (Step(CALL, RESULT), Step(reply_of())))
    trajectory = episode.trajectory()
    sampled = [turn.action.token_ids or () for turn in trajectory.turns]
    opening = own_ids("qwen2_5", [SYSTEM, COMMENT])
    prompts = (opening, (*opening[:-1], OPEN))
    sequences = renderer("qwen2_5").render(with_prompts(trajectory, prompts))
    assert ids(sequences) == [(*opening, *sampled[0]), (*opening[:-1], OPEN, *sampled[1])]


@pytest.mark.parametrize("setting", ["qwen3 nothink", "deepseekv3", "gemma4", "qwen2_5"])
def test_recorded_prompts_of_the_template_have_its_spans(setting: str) -> None:
    episode = Episode(setting, (Step(CALL, RESULT), Step(reply_of())))
    prompts = [own_ids(setting, episode.history(index)) for index in range(2)]
    recorded = renderer(setting).render(with_prompts(episode.trajectory(), prompts))
    rendered = renderer(setting).render(episode.trajectory())
    assert [s.spans for s in recorded] == [s.spans for s in rendered]


def test_a_recorded_prompt_needs_no_template_that_can_show_it() -> None:
    odd = Message("tool", "r", (), "nobody asked")
    trajectory = trajectory_of(
        [turn_of(reply_of(), (OPEN, END)), turn_of(reply_of(), (OPEN, END))], (SYSTEM, odd)
    )
    trajectory = with_prompts(trajectory, ((END,), (END, OPEN, END, CLOSE)))
    (sequence,) = renderer("gptoss").render(trajectory)
    assert sequence.token_ids == (END, OPEN, END, CLOSE, OPEN, END)
    for prompts in (((END,), None), (None, (END,))):
        with pytest.raises(le.UnsupportedTemplate, match="refuses the conversation"):
            renderer("gptoss").render(with_prompts(trajectory, prompts))


# --- prompts and boundaries for engines that take ids ---------------------------------------------


@pytest.mark.parametrize("setting", ["qwen2_5", "qwen3_8", "glm4moe", "gptoss", "gemma4"])
@pytest.mark.parametrize("then", [RESULT, (*RESULT, AGAIN)], ids=["result", "result, comment"])
def test_continue_ids_are_what_the_next_prompt_adds(
    setting: str, then: tuple[Message, ...]
) -> None:
    episode = Episode(setting, (Step(CALL, then), Step(reply_of())))
    first = episode.trajectory().turns[:1]
    (sequence,) = renderer(setting).render(trajectory_of(first))
    added = renderer(setting).continue_ids(sequence, then)
    shown = pretty((*sequence.token_ids, *added), episode.tokenizer)
    assert shown == own_text(setting, episode.history(1))
    assert added == episode.expected()[0][len(sequence) : len(sequence) + len(added)]


def test_continue_ids_refuse_a_turn_that_the_template_rewrites() -> None:
    (sequence,) = renderer("qwen3 nothink").render(
        Episode("qwen3 nothink", (Step(CALL),)).trajectory()
    )
    with pytest.raises(le.PrefixMismatch, match="prompt_ids"):
        renderer("qwen3 nothink").continue_ids(sequence, RESULT)


def test_continue_ids_see_all_turns_since_the_last_comment() -> None:
    """Turns without thinking are kept; the thinking of the call before them is dropped."""
    steps = (
        Step(call_of(thinking="想"), RESULT),
        Step(call_of(1), (result_of(1),)),
        Step(reply_of(), (), "亲，包邮<|im_end|>"),
    )
    (sequence,) = renderer("qwen3").render(Episode("qwen3", steps).trajectory())
    with pytest.raises(le.PrefixMismatch, match="start a new sequence"):
        renderer("qwen3").continue_ids(sequence, [AGAIN])


def test_continue_ids_want_a_sequence_that_ends_with_a_turn() -> None:
    (sequence,) = renderer("qwen2_5").render(Episode("qwen2_5", (Step(CALL),)).trajectory())
    for broken in (replace(sequence, messages=()), TokenSequence((), (), ())):
        with pytest.raises(ValueError, match="does not end with a sampled turn"):
            renderer("qwen2_5").continue_ids(broken, RESULT)


# --- where the template would rewrite: keep -----------------------------------------------------


@pytest.mark.parametrize(
    ("setting", "step", "shown"),
    [
        pytest.param(
            "qwen3 nothink", Step(CALL, RESULT), f"{SHOWN}<think>\n\n</think>\n\n", id="nothink"
        ),
        pytest.param("qwen2_5", Step(call_of(thinking="想"), RESULT), SHOWN, id="thinking"),
        pytest.param(
            "gptoss",
            Step(reply_of(), (AGAIN,)),
            "<|start|>user<|message|>包邮吗<|end|><|start|>assistant",
            id="another end token",
        ),
        pytest.param(
            "qwen2_5",
            Step(
                Message("assistant", "", (ToolCall("c", "", error="invalid_json: x", raw="{"),)),
                (Message("tool", "错", (), "c"),),
                "<tool_call>\n{\n</tool_call><|im_end|>",
            ),
            f"\n<|im_start|>user\n<tool_response>\n错\n</tool_response>{OPENED}",
            id="malformed call",
        ),
        pytest.param(
            "qwen2_5",
            Step(reply_of("<tool_call>"), (AGAIN,), "<tool_call>", stop="length"),
            f"<|im_end|>{ASKED}",
            id="cut in a call",
        ),
    ],
)
def test_keep_goes_on_where_the_engine_is_given_ids(setting: str, step: Step, shown: str) -> None:
    episode = Episode(setting, (step, REPLY_STEP))
    (sequence,) = renderer(setting, on_rewrite="keep").render(episode.trajectory())
    sampled = [span for span in sequence.spans if span.source.is_sampled]
    between = sequence.token_ids[sampled[0].stop : sampled[1].start]
    assert pretty(between, episode.tokenizer) == shown
    assert_invariants([sequence], episode.trajectory())
    assert len(renderer(setting).render(episode.trajectory())) == 2


@pytest.mark.parametrize(
    ("after_stop", "shown"),
    [
        pytest.param("template", SHOWN, id="SkyRL, AReaL, ART: newline present, not trained"),
        pytest.param("bare", SHOWN.removeprefix("\n"), id="verl: newline missing"),
        pytest.param("doubled", f"<|im_end|>{SHOWN}", id="ROLL: the end token once more"),
    ],
)
def test_what_follows_a_sampled_end_token_is_as_the_trainer_builds_it(
    after_stop: str, shown: str
) -> None:
    made = renderer("qwen2_5", after_stop=after_stop)
    episode = Episode("qwen2_5", (Step(CALL, RESULT), REPLY_STEP))
    (sequence,) = made.render(episode.trajectory())
    first, second = (span for span in sequence.spans if span.source.is_sampled)
    assert pretty(sequence.token_ids[first.stop : second.start], episode.tokenizer) == shown
    assert not any(END_TO_END(sequence).loss_mask[first.stop : second.start])
    assert_invariants([sequence], episode.trajectory())
    cut = Step(CALL, RESULT, sampled_text("qwen2_5", CALL, "<|im_end|>"))
    unended = Episode("qwen2_5", (cut, REPLY_STEP)).trajectory()
    assert ids(made.render(unended)) == ids(renderer("qwen2_5").render(unended))


def test_nothing_follows_an_end_token_that_the_template_writes_no_blank_behind() -> None:
    episode = Episode("llama3_1", (Step(CALL, RESULT), REPLY_STEP))
    bare = renderer("llama3_1", after_stop="bare").render(episode.trajectory())
    assert ids(bare) == episode.expected()


# --- agents, follow-ups, reminders, malformed calls ----------------------------------------------


def test_two_agents_of_one_prompt_share_a_sequence() -> None:
    steps = (Step(CALL, RESULT, agent="tool_caller"), Step(reply_of(), agent="replier"))
    episode = Episode("qwen2_5", steps)
    (sequence,) = renderer("qwen2_5").render(episode.trajectory())
    assert sequence.token_ids == episode.expected()[0]
    assert [s.source for s in sequence.spans if s.source.is_sampled] == [
        Source.TOOL_CALL,
        Source.REPLY,
    ]


@pytest.mark.row("R54")
@pytest.mark.parametrize("differs", ["prompt", "tools"])
def test_two_agents_of_other_prompts_have_their_own_sequences(differs: str) -> None:
    opening = (Message("system", "你只回复"), COMMENT) if differs == "prompt" else (SYSTEM, COMMENT)
    tools = () if differs == "tools" else TOOLS
    steps = (
        Step(CALL, RESULT, agent="tool_caller"),
        Step(reply_of(), (AGAIN,), agent="replier"),
        Step(call_of(1), (result_of(1),), agent="tool_caller"),
    )
    episode = Episode("qwen2_5", steps)
    trajectory = episode.trajectory(
        prompts={"tool_caller": (SYSTEM, COMMENT), "replier": opening},
        tools={"tool_caller": TOOLS, "replier": tools},
    )
    sequences = renderer("qwen2_5").render(trajectory)
    assert_invariants(sequences, trajectory)
    told = [CALL, *RESULT]
    prompts = [
        own_ids("qwen2_5", [SYSTEM, COMMENT]),
        own_ids("qwen2_5", [*opening, *told], tools),
        own_ids("qwen2_5", [SYSTEM, COMMENT, *told, reply_of(), AGAIN]),
    ]
    assert ids(sequences) == [
        (*prompt, *sampled) for prompt, sampled in zip(prompts, episode.sampled, strict=True)
    ]
    assert [s.agent for s in sequences] == ["tool_caller", "replier", "tool_caller"]


def test_a_reminder_is_a_prompt_text_behind_the_reply() -> None:
    reminder = Message("user", "请先查规则")
    steps = (Step(reply_of(), (reminder,)), Step(CALL, RESULT), Step(reply_of("包的"), (AGAIN,)))
    episode = Episode("glm4moe", (*steps, Step(reply_of("是"))))
    assert ids(renderer("glm4moe").render(episode.trajectory())) == episode.expected()
    assert len(episode.expected()) == 1


def test_a_call_that_could_not_be_parsed_is_shown_again_as_text() -> None:
    raw = '<tool_call>\n{"name": }\n</tool_call>'
    message = Message("assistant", "看看", (ToolCall("c", "", error="invalid_json: x", raw=raw),))
    answer = Message("tool", "参数不对", (), "c")
    step = Step(message, (answer,), f"看看\n{raw}<|im_end|>")
    trajectory = Episode("qwen2_5", (step, REPLY_STEP)).trajectory()
    first, second = renderer("qwen2_5").render(trajectory)
    assert first.token_ids[-len(trajectory.turns[0].action.token_ids or ()) :] == (
        trajectory.turns[0].action.token_ids
    )
    shown = pretty(second.token_ids, tokenizer("qwen"))
    assert f"assistant\n看看\n{raw}<|im_end|>\n<|im_start|>user\n<tool_response>\n参数不对" in shown
    calls = tokenizer("qwen").convert_tokens_to_ids("<tool_call>")
    plain = own_ids("qwen2_5", [SYSTEM, COMMENT, reply_of("x"), answer])
    assert second.token_ids.count(calls) == plain.count(calls)


@pytest.mark.parametrize("setting", SETTINGS)
def test_a_call_without_a_name_still_renders(setting: str) -> None:
    call = ToolCall("call_0_0", "", error="missing_name: no name", raw=None)
    message = Message("assistant", "", (call,))
    episode = Episode(setting, (Step(message, RESULT), REPLY_STEP))
    sequences = renderer(setting).render(episode.trajectory())
    assert_invariants(sequences, episode.trajectory())


# --- public faults --------------------------------------------------------------------------------


def test_m2_dropped_thinking_starts_a_sequence_whose_prompt_is_the_templates() -> None:
    steps = steps_of("comment", thinking=True)
    episode = Episode("qwen3", steps)
    first, second = renderer("qwen3").render(episode.trajectory())
    assert first.turns == (0, 1)
    assert second.turns == (2,)
    prompt = own_ids("qwen3", episode.history(2))
    assert second.token_ids[: len(prompt)] == prompt
    think = tokenizer("qwen").convert_tokens_to_ids("<think>")
    assert (first.token_ids.count(think), second.token_ids.count(think)) == (2, 0)


@pytest.mark.parametrize("setting", ["qwen2_5", "qwen3", "glm4moe", "gemma4"])
def test_m3_results_of_one_turn_are_shown_as_a_group(setting: str) -> None:
    episode = Episode(setting, (Step(PAIR, PAIR_RESULTS), REPLY_STEP))
    assert ids(renderer(setting).render(episode.trajectory())) == episode.expected()


def test_m4_the_newline_behind_the_end_token_is_there_and_not_trained() -> None:
    episode = Episode("qwen2_5", steps_of("tools", thinking=False))
    (sequence,) = renderer("qwen2_5").render(episode.trajectory())
    assert sequence.token_ids == episode.expected()[0]
    mask = END_TO_END(sequence).loss_mask
    for span in sequence.spans:
        if span.source.is_sampled and span.turn < 2:
            assert sequence.token_ids[span.stop - 1] == END
            assert mask[span.stop - 1] == 1
            assert pretty(sequence.token_ids[span.stop : span.stop + 1], episode.tokenizer) == "\n"
            assert mask[span.stop] == 0


@pytest.mark.row("R23", "R24")
@pytest.mark.parametrize("setting", ["qwen3", "llama3_1", "gemma4"])
def test_m5_templates_without_generation_marks_have_masks(setting: str) -> None:
    episode = Episode(setting, (Step(CALL, RESULT), REPLY_STEP))
    (sequence,) = renderer(setting).render(episode.trajectory())
    tool, reply = episode.sampled
    for masker, trained in ((END_TO_END, tool + reply), (TOOL_CALLS, tool), (REPLY, reply)):
        sample = masker(sequence)
        chosen = zip(sample.token_ids, sample.loss_mask, strict=True)
        assert tuple(token for token, bit in chosen if bit) == trained
    assert len(TOOL_CALLS(sequence).token_ids) == len(own_ids(setting, [SYSTEM, COMMENT])) + len(
        tool
    )


@pytest.mark.parametrize(
    ("sampled", "stop"),
    [
        pytest.param((END,), "stop", id="the end token alone"),
        pytest.param((*split_ids("亲"), END), "stop", id="ended"),
        pytest.param(split_ids("亲"), "length", id="cut by length"),
    ],
)
def test_m7_the_end_token_is_trained_where_it_was_sampled(
    sampled: tuple[int, ...], stop: str
) -> None:
    turn = turn_of(reply_of("亲"), sampled, stop=stop)
    (sequence,) = renderer("qwen2_5").render(trajectory_of([turn]))
    assert sequence.token_ids[-len(sampled) :] == sampled
    assert sum(REPLY(sequence).loss_mask) == len(sampled)
    shifted = sequence.shifted()
    trained = zip(shifted.labels, shifted.loss_mask, strict=True)
    assert tuple(label for label, bit in trained if bit) == sampled


def test_m9_a_cut_episode_keeps_its_lengths_and_gets_no_end_token() -> None:
    cut = call_of()
    text = sampled_text("qwen2_5", cut, "</tool_call><|im_end|>")
    raw = ToolCall("c", "", error="unclosed: x", raw=text)
    steps = (Step(CALL, RESULT), Step(replace(cut, tool_calls=(raw,)), (), text, stop="length"))
    trajectory = Episode("qwen2_5", steps).trajectory()
    (sequence,) = renderer("qwen2_5").render(trajectory)
    assert sequence.token_ids[-1] != END
    sample = END_TO_END(sequence)
    assert sample.logprobs is not None
    assert len(sample.token_ids) == len(sample.loss_mask) == len(sample.logprobs)
    assert_invariants([sequence], trajectory)


def test_a_reply_that_begins_with_the_words_of_its_header_is_masked_right() -> None:
    """ROLL looks for the first token of the reply and finds it in the header."""
    episode = Episode("qwen2_5", (Step(reply_of("assistant\nassistant")),))
    (sequence,) = renderer("qwen2_5").render(episode.trajectory())
    mask = REPLY(sequence).loss_mask
    assert mask == (0,) * (len(mask) - len(episode.sampled[0])) + (1,) * len(episode.sampled[0])


def test_tool_results_have_tokens() -> None:
    """ROLL makes no tokens of messages whose role is `tool`."""
    episode = Episode("qwen2_5", (Step(CALL, (result_of(text="库存三件"),)), REPLY_STEP))
    (sequence,) = renderer("qwen2_5").render(episode.trajectory())
    shown = [
        pretty(sequence.token_ids[span.start : span.stop], episode.tokenizer)
        for span in sequence.spans
        if span.source is Source.TOOL_RESULT
    ]
    assert shown == ["库存三件"]


# --- what is accepted -----------------------------------------------------------------------------


def test_openai_messages_and_tools_are_accepted() -> None:
    told = [SYSTEM, COMMENT, call_of(thinking="想"), *RESULT]
    spec = SPEC.to_openai()
    rule = RULE.to_openai()["function"]
    given = [message.to_openai() for message in told]
    given[1]["content"] = [{"type": "text", "text": "多少"}, {"type": "text", "text": "钱"}]
    given[2]["content"] = None
    given[2]["reasoning"] = given[2].pop("reasoning_content")
    assert renderer("qwen3").prompt_ids(given, [spec, rule]) == own_ids("qwen3", told)


@pytest.mark.parametrize("arguments", ["{", "[1]", ""])
def test_openai_calls_with_broken_arguments_are_text(arguments: str) -> None:
    call = {"id": "c", "function": {"name": "f", "arguments": arguments}}
    given = {"role": "assistant", "content": "看", "tool_calls": [call]}
    shown = renderer("qwen2_5").prompt_ids([SYSTEM.to_openai(), given], TOOLS)
    text = pretty(shown, tokenizer("qwen")).split("assistant\n")[1]
    expected = '<tool_call>\n{"name": "f", "arguments": {}}\n</tool_call>'
    assert text == f"看\n{arguments or expected}<|im_end|>\n<|im_start|>"


def test_content_that_is_no_text_is_refused() -> None:
    given = {"role": "user", "content": [{"type": "image_url", "image_url": {"url": "x"}}]}
    with pytest.raises(ValueError, match="`image_url`; only text"):
        renderer("qwen2_5").prompt_ids([given])


def test_an_episode_without_turns_has_no_sequences() -> None:
    assert renderer("qwen2_5").render(trajectory_of([])) == []


@pytest.mark.row("R25")
def test_replies_to_one_tool_chain_share_their_prompt() -> None:
    prefix = (SYSTEM, COMMENT, CALL, *RESULT)
    prompt = own_ids("qwen2_5", list(prefix))
    for text in ("亲，包邮", "不包邮"):
        episode = Episode("qwen2_5", (Step(reply_of(text)),), prefix)
        (sequence,) = renderer("qwen2_5").render(episode.trajectory())
        assert sequence.response_only(REPLY).prompt_ids == prompt


@pytest.mark.row("R22")
@pytest.mark.parametrize("setting", ["qwen2_5", "llama3_1", "gptoss"])
def test_messages_without_thinking_render_without_it(setting: str) -> None:
    steps = tuple(
        replace(step, message=replace(step.message, reasoning=""))
        for step in steps_of("tool", thinking=True)
    )
    (sequence,) = renderer(setting).render(without_ids(Episode(setting, steps).trajectory()))
    assert sequence.token_ids == Episode(setting, steps_of("tool", False)).expected()[0]


def test_an_argument_order_that_the_template_sorts_is_a_rewriting() -> None:
    arguments = {"b": "一", "a": "二"}
    message = call_of(arguments=arguments)
    assert boundary("gemma4", Step(message, RESULT), REPLY_STEP) is None
    ordered = call_of(arguments=freeze(dict(sorted(arguments.items()))))
    assert boundary("gemma4", Step(ordered, RESULT), REPLY_STEP) is not None
