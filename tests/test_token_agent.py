"""The agent over token ids, on a bundled room with engines that say what a test tells them."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator, Sequence
from typing import Any

import gymnasium as gym
import pytest
from tokenizers_for_tests import template, tokenizer

import livestream_env as le
from livestream_env.masking import END_TO_END, REPLY, TOOL_CALLS
from livestream_env.renderers import ChatTemplateRenderer
from livestream_env.tokens import Sampled, Source
from livestream_env.types import Status, StopReason, Trajectory

SEARCH = '<tool_call>{"name":"search_faq","arguments":{"query":"包邮吗"}}</tool_call>'
RULE = '<tool_call>{"name":"get_reply_rule","arguments":{"intent":"物流"}}</tool_call>'
REPLIED = "亲，全国包邮哦"
TEXTS = (SEARCH, RULE, REPLIED)


class Engine:
    """Samples the given texts in turn, and keeps every prompt that it saw."""

    def __init__(self, tok: Any, texts: Sequence[str], end: str = "<|im_end|>") -> None:
        self.prompts: list[tuple[int, ...]] = []
        self.stops: list[tuple[int, ...]] = []
        self.sampled: list[tuple[int, ...]] = []
        self._tok = tok
        self._texts: Iterator[str] = iter(texts)
        self._end = end

    def __call__(self, ids: tuple[int, ...], stop: tuple[int, ...]) -> Sampled:
        self.prompts.append(ids)
        self.stops.append(stop)
        made = self._tok(next(self._texts) + self._end, add_special_tokens=False)["input_ids"]
        self.sampled.append(tuple(made))
        return Sampled(tuple(made), tuple(-0.25 * (i + 1) for i in range(len(made))))


def renderer_for(name: str, **options: Any) -> ChatTemplateRenderer:
    return ChatTemplateRenderer(tokenizer("qwen"), chat_template=template(name), **options)


def played(name: str, texts: Sequence[str] = TEXTS, **options: Any) -> tuple[Trajectory, Engine]:
    engine = Engine(tokenizer("qwen"), texts)
    env = gym.make("LiveRoom-v0", room="snacks")
    trajectory = le.rollout(env, le.TokenAgent(engine, renderer_for(name, **options)), seed=3)
    return trajectory, engine


@pytest.mark.row("R44", "R90")
def test_what_is_trained_is_what_was_sampled_id_by_id() -> None:
    trajectory, engine = played("qwen3_instruct_2507")
    assert trajectory.stop_reason is StopReason.REPLIED
    (sequence,) = renderer_for("qwen3_instruct_2507").render(trajectory)
    sample = END_TO_END(sequence)
    trained = [i for i, bit in zip(sample.token_ids, sample.loss_mask, strict=True) if bit]
    assert trained == [i for ids in engine.sampled for i in ids]
    assert sequence.exact
    assert sample.logprobs is not None
    kept = [p for p, bit in zip(sample.logprobs, sample.loss_mask, strict=True) if bit]
    assert kept == [-0.25 * (i + 1) for ids in engine.sampled for i in range(len(ids))]
    assert not any(p for p, bit in zip(sample.logprobs, sample.loss_mask, strict=True) if not bit)


@pytest.mark.row("R90")
def test_each_prompt_extends_what_the_policy_saw_and_said() -> None:
    _, engine = played("qwen3_instruct_2507")
    for k in (1, 2):
        before = engine.prompts[k - 1] + engine.sampled[k - 1]
        assert engine.prompts[k][: len(before)] == before


@pytest.mark.row("R90")
@pytest.mark.parametrize("name", ["qwen3_instruct_2507", "qwen3", "qwen3_5_think"])
def test_the_sequences_hold_each_prompt_that_the_engine_was_given(name: str) -> None:
    texts = TEXTS if name == "qwen3_instruct_2507" else [f"看看\n</think>\n\n{t}" for t in TEXTS]
    if name == "qwen3":
        texts = [f"<think>\n{text}" for text in texts]
    trajectory, engine = played(name, texts)
    assert trajectory.stop_reason is StopReason.REPLIED
    sequences = renderer_for(name).render(trajectory)
    seen = {
        span.turn: sequence.token_ids[: span.start]
        for sequence in sequences
        for span in sequence.spans
        if span.source.is_sampled
    }
    assert [seen[k] for k in range(3)] == engine.prompts


def test_thinking_that_the_prompt_opened_is_no_reply() -> None:
    texts = ["先查一查\n</think>\n\n" + SEARCH, "</think>\n\n" + RULE, "好\n</think>\n\n" + REPLIED]
    trajectory, _ = played("qwen3_5_think", texts)
    assert trajectory.reply == REPLIED
    assert [turn.action.message.reasoning for turn in trajectory.turns] == ["先查一查", "", "好"]


def test_thinking_cut_by_the_limit_is_thinking_still() -> None:
    engine = Engine(tokenizer("qwen"), ["先查一查", *TEXTS], end="")

    def generate(ids: tuple[int, ...], stop: tuple[int, ...]) -> Sampled:
        made = engine(ids, stop)
        return Sampled(made.token_ids, None, "length")

    env = gym.make("LiveRoom-v0", room="snacks")
    trajectory = le.rollout(env, le.TokenAgent(generate, renderer_for("qwen3_5_think")), seed=3)
    assert trajectory.status is Status.POLICY_TRUNCATED
    assert trajectory.turns[0].action.message.reasoning == "先查一查"
    assert trajectory.turns[0].action.message.content == ""


def test_a_template_that_rewrites_gives_a_sequence_a_turn_and_no_token_twice() -> None:
    texts = [f"<think>\n\n</think>\n\n{text}" for text in TEXTS]
    trajectory, engine = played("qwen3", texts)
    sequences = renderer_for("qwen3").render(trajectory)
    assert [sequence.turns for sequence in sequences] == [(0,), (1,), (2,)]
    for sequence, prompt in zip(sequences, engine.prompts, strict=True):
        assert sequence.token_ids[: len(prompt)] == prompt


def test_keeping_on_gives_one_sequence_where_the_template_would_rewrite() -> None:
    texts = [f"<think>\n\n</think>\n\n{text}" for text in TEXTS]
    trajectory, engine = played("qwen3", texts, on_rewrite="keep")
    (sequence,) = renderer_for("qwen3", on_rewrite="keep").render(trajectory)
    assert sequence.turns == (0, 1, 2)
    assert sequence.token_ids == engine.prompts[-1] + engine.sampled[-1]


def test_ids_that_would_be_tokenized_otherwise_are_kept() -> None:
    tok = tokenizer("qwen")
    letters = [tok(letter, add_special_tokens=False)["input_ids"] for letter in REPLIED]
    apart = (*(i for ids in letters for i in ids), tok.eos_token_id)
    assert apart != tuple(tok(REPLIED + "<|im_end|>", add_special_tokens=False)["input_ids"])
    engine = Engine(tok, TEXTS)

    def generate(ids: tuple[int, ...], stop: tuple[int, ...]) -> Sampled:
        made = engine(ids, stop)
        return Sampled(apart) if len(engine.prompts) == 3 else made

    env = gym.make("LiveRoom-v0", room="snacks")
    renderer = renderer_for("qwen3_instruct_2507")
    trajectory = le.rollout(env, le.TokenAgent(generate, renderer), seed=3)
    (sequence,) = renderer.render(trajectory)
    assert trajectory.reply == REPLIED
    assert sequence.token_ids[-len(apart) :] == apart
    assert sequence.logprobs is None


def test_the_engine_is_told_where_to_stop() -> None:
    _, engine = played("qwen3_instruct_2507")
    tok = tokenizer("qwen")
    ends = {tok.convert_tokens_to_ids(end) for end in ("<|im_end|>", "<|endoftext|>")}
    assert {frozenset(stop) for stop in engine.stops} == {frozenset(ends)}


def test_an_async_engine_plays_the_same_episode() -> None:
    serial, _ = played("qwen3_instruct_2507")
    engine = Engine(tokenizer("qwen"), TEXTS)

    async def generate(ids: tuple[int, ...], stop: tuple[int, ...]) -> Sampled:
        await asyncio.sleep(0)
        return engine(ids, stop)

    agent = le.TokenAgent(generate, renderer_for("qwen3_instruct_2507"))
    env = gym.make("LiveRoom-v0", room="snacks")
    trajectory = asyncio.run(le.arollout(env, agent, seed=3))
    assert trajectory.messages == serial.messages
    assert [t.action for t in trajectory.turns] == [t.action for t in serial.turns]


def test_one_agent_serves_several_episodes_at_once() -> None:
    tok, renderer = tokenizer("qwen"), renderer_for("qwen3_instruct_2507")

    def generate(ids: tuple[int, ...], stop: tuple[int, ...]) -> Sampled:
        turn = list(ids).count(tok.convert_tokens_to_ids("<|im_start|>")) // 2 - 1
        made = tok(TEXTS[min(turn, 2)] + "<|im_end|>", add_special_tokens=False)["input_ids"]
        return Sampled(tuple(made))

    agent = le.TokenAgent(generate, renderer)
    group = le.rollout_group(
        lambda: gym.make("LiveRoom-v0", room="snacks"), agent, size=8, seed=3, max_workers=4
    )
    assert len({str(t.messages) for t in group}) == 1
    assert group[0].stop_reason is StopReason.REPLIED


def test_the_agent_of_an_episode_is_made_by_start() -> None:
    agent = le.TokenAgent(Engine(tokenizer("qwen"), ()), renderer_for("qwen2_5"))
    with pytest.raises(RuntimeError, match="start"):
        agent.act([], [])


@pytest.mark.row("R21", "R54")
def test_two_students_train_disjoint_tokens_of_one_trajectory() -> None:
    trajectory, engine = played("qwen3_instruct_2507")
    (sequence,) = renderer_for("qwen3_instruct_2507").render(trajectory)
    tools, reply = TOOL_CALLS(sequence), REPLY(sequence)
    assert sum(tools.loss_mask) == len(engine.sampled[0]) + len(engine.sampled[1])
    assert sum(reply.loss_mask) == len(engine.sampled[2])
    assert len(tools.token_ids) == len(engine.prompts[1]) + len(engine.sampled[1])
    assert [s.source for s in sequence.spans if s.source.is_sampled] == [
        Source.TOOL_CALL,
        Source.TOOL_CALL,
        Source.REPLY,
    ]
