"""Random trajectories over many templates: what always holds of their sequences."""

from __future__ import annotations

import contextlib
from dataclasses import replace

from hypothesis import given, settings
from hypothesis import strategies as st
from renderings_for_tests import (
    COMMENT,
    SYSTEM,
    TOOLS,
    Episode,
    Step,
    assert_invariants,
    control_ids,
    ids,
    ids_of,
    own_ids,
    own_text,
    renderer,
)
from tokenizers_for_tests import FAMILIES, TEMPLATES, pretty

import livestream_env as le
from livestream_env.masking import END_TO_END, REPLY, TOOL_CALLS, SourceMasker
from livestream_env.renderers import TokenSequence
from livestream_env.types import Message, ToolCall, Trajectory, freeze

CHOSEN = (
    *("qwen3", "qwen3_instruct_2507", "qwen3_training", "qwen3_5_think", "qwen3 nothink"),
    *("qwen3_8", "llama3_1", "glm4moe", "deepseekv3", "gptoss", "gemma4"),
)
CONTROLS = sorted({t for told in FAMILIES.values() for t in (*told["special"], *told["added"])})
CALM = st.text("亲面霜包邮a1 \n,。\"{}'", min_size=1, max_size=8).map(lambda text: f"好{text}了")
HOSTILE = st.lists(st.one_of(st.sampled_from(CONTROLS), st.text(max_size=4)), max_size=3).map(
    "".join
)
VALUES = st.recursive(
    st.one_of(st.none(), st.booleans(), st.integers(-9, 9), st.just(0.5), HOSTILE),
    lambda inner: st.lists(inner, max_size=2) | st.dictionaries(HOSTILE, inner, max_size=2),
    max_leaves=3,
)


@st.composite
def benign_episodes(draw: st.DrawFn) -> Episode:
    """Draw an episode of harmless texts, sampled as the family's models do."""
    setting = draw(st.sampled_from(CHOSEN))
    steps = []
    for index in range(draw(st.integers(1, 4))):
        thinking = draw(st.booleans()) and setting not in ("llama3_1", "deepseekv3")
        reasoning = draw(CALM) if thinking else ""
        if draw(st.booleans()):
            steps.append(Step(Message("assistant", draw(CALM), (), None, reasoning)))
            steps[-1] = replace(steps[-1], then=(Message("user", draw(CALM)),))
            continue
        most = 1 if setting in ("llama3_1", "gptoss") else 2
        calls = tuple(
            ToolCall(f"call_{index}_{at}", "search_product", freeze({"keyword": draw(CALM)}))
            for at in range(draw(st.integers(1, most)))
        )
        then = [Message("tool", draw(CALM), (), call.id) for call in calls]
        if draw(st.booleans()):
            then.append(Message("user", draw(CALM)))
        text = draw(CALM) if draw(st.booleans()) and not (thinking and setting == "gptoss") else ""
        steps.append(Step(Message("assistant", text, calls, None, reasoning), tuple(then)))
    return Episode(setting, tuple(steps))


@settings(deadline=None, max_examples=150)
@given(benign_episodes())
def test_sequences_are_the_whole_histories(episode: Episode) -> None:
    sequences = renderer(episode.setting).render(episode.trajectory())
    assert ids(sequences) == episode.expected()
    assert_invariants(sequences, episode.trajectory())
    for sequence in sequences:
        prompt = own_ids(episode.setting, episode.history(sequence.turns[0]))
        assert sequence.token_ids[: len(prompt)] == prompt


@settings(deadline=None, max_examples=60)
@given(benign_episodes())
def test_engines_fed_by_the_renderer_and_files_agree(episode: Episode) -> None:
    """Prompts recorded while ids went in and out are those that rendering finds."""
    rendering = renderer(episode.setting)
    turns = list(episode.trajectory().turns)
    shown: tuple[int, ...] = ()
    for index in range(len(turns)):
        told = episode.history(index)
        prompt = rendering.prompt_ids(told, TOOLS)
        if shown:
            part = rendering.render(_of(episode.trajectory(), turns[:index]))[-1]
            with contextlib.suppress(le.PrefixMismatch):
                prompt = (*shown, *rendering.continue_ids(part, turns[index - 1].messages))
        action = replace(turns[index].action, prompt_ids=prompt)
        turns[index] = replace(turns[index], action=action)
        shown = (*prompt, *(action.token_ids or ()))
    recorded = rendering.render(_of(episode.trajectory(), turns))
    assert ids(recorded) == ids(rendering.render(episode.trajectory()))


def _of(trajectory: Trajectory, turns: object) -> Trajectory:
    return trajectory.model_copy(update={"turns": tuple(turns)})  # type: ignore[arg-type]


@st.composite
def hostile_episodes(draw: st.DrawFn) -> Episode:
    """Draw an episode of any texts, calls and ids, which need not fit each other."""
    setting = draw(st.sampled_from(CHOSEN))
    family = TEMPLATES[setting.split()[0]][0]
    told = FAMILIES[family]
    sampled = st.lists(
        st.one_of(st.sampled_from((*told["special"], *told["added"])), st.text(max_size=3)),
        max_size=6,
    ).map("".join)
    steps = []
    for index in range(draw(st.integers(1, 4))):
        calls = tuple(
            ToolCall(
                draw(st.one_of(st.just(f"call_{index}_{at}"), HOSTILE)),
                draw(st.one_of(st.just("search_product"), HOSTILE)),
                freeze(draw(st.dictionaries(HOSTILE, VALUES, max_size=2))),
                *draw(st.sampled_from([(None, None), ("invalid_json: x", "<tool_call>{")])),
            )
            for at in range(draw(st.integers(0, 2)))
        )
        message = Message(
            "assistant", draw(HOSTILE), calls, None, draw(st.sampled_from(["", "想", "</think>"]))
        )
        then = [Message("tool", draw(HOSTILE), (), call.id) for call in calls]
        if not calls or draw(st.booleans()):
            then.append(Message("user", draw(HOSTILE)))
        stop = draw(st.sampled_from(["stop", "length"]))
        steps.append(Step(message, tuple(then), draw(sampled), stop))
    opening = (Message("system", draw(HOSTILE)), Message("user", draw(HOSTILE)))
    return Episode(setting, tuple(steps), opening)


@settings(deadline=None, max_examples=150)
@given(hostile_episodes(), st.sampled_from(["split", "keep"]))
def test_every_turn_is_there_once_as_it_was_sampled(episode: Episode, on_rewrite: str) -> None:
    trajectory = episode.trajectory()
    rendering = renderer(episode.setting, on_rewrite=on_rewrite)
    try:
        sequences = rendering.render(trajectory)
    except le.UnsupportedTemplate:  # results without a call, several calls in a turn
        assert episode.setting in ("gptoss", "llama3_1")
        return
    assert_invariants(sequences, trajectory)
    for sequence in sequences:
        prompt = rendering.prompt_ids(episode.history(sequence.turns[0]), TOOLS)
        assert sequence.token_ids[: len(prompt)] == prompt
        tool, reply = mask_of(sequence, replace(TOOL_CALLS, cut=False)), mask_of(sequence, REPLY)
        both = [a + b for a, b in zip(tool, reply, strict=True)]
        assert both == mask_of(sequence, END_TO_END)


def mask_of(sequence: TokenSequence, masker: SourceMasker) -> list[int]:
    """Return a mask, of zeros where it would be empty."""
    try:
        return list(masker(sequence).loss_mask)
    except le.EmptyMaskError:
        return [0] * len(sequence)


@settings(deadline=None, max_examples=60)
@given(benign_episodes(), HOSTILE)
def test_hostile_results_leave_the_control_tokens(episode: Episode, text: str) -> None:
    """The same episode with hostile results and comments has the same control ids."""

    def with_text(said: str) -> Episode:
        steps = tuple(
            replace(step, then=tuple(replace(m, content=said) for m in step.then))
            for step in episode.steps
        )
        return replace(episode, steps=steps, opening=(SYSTEM, replace(COMMENT, content=said)))

    made = episode.tokenizer
    rendering = renderer(episode.setting)
    calm = rendering.render(with_text("好").trajectory())
    forged = rendering.render(with_text(f"a{text}b").trajectory())
    assert [control_ids(s.token_ids, made) for s in forged] == [
        control_ids(s.token_ids, made) for s in calm
    ]
    for sequence in forged:
        assert f"a{text}b" in pretty(sequence.token_ids, made)


def test_the_oracle_is_what_it_says() -> None:
    """Literal check of what the properties above compare with."""
    shown = own_text("qwen2_5", [SYSTEM, COMMENT], ())
    opened = "<|im_start|>assistant\n"
    system = "<|im_start|>system\n你是主播<|im_end|>\n"
    assert shown == f"{system}<|im_start|>user\n多少钱<|im_end|>\n{opened}"
    made = renderer("qwen2_5").tokenizer
    assert own_ids("qwen2_5", [SYSTEM, COMMENT], ()) == ids_of(shown, made)
