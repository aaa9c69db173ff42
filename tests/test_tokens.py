"""Token sequences, their layouts, and the stock maskers on hand-made tokens."""

from __future__ import annotations

from dataclasses import replace

import pytest

import livestream_env as le
from livestream_env.masking import END_TO_END, MASKERS, REPLY, TOOL_CALLS, SourceMasker
from livestream_env.tokens import Sample, Source, Span, TokenSequence, source_of
from livestream_env.types import Action, Message, ToolCall, Trajectory, Turn

P, S, R, T, Y = (
    Source.PROMPT,
    Source.SCAFFOLD,
    Source.TOOL_RESULT,
    Source.TOOL_CALL,
    Source.REPLY,
)


def sequence_of(*parts: tuple[int, Source, int], logprobs: bool = True) -> TokenSequence:
    """Return a sequence whose ids count up, from (length, source, turn) parts."""
    spans, at = [], 0
    for length, source, turn in parts:
        spans.append(Span(at, at + length, source, turn))
        at += length
    values = tuple(-0.1 * i for i in range(at)) if logprobs else None
    return TokenSequence(tuple(range(100, 100 + at)), values, tuple(spans))


B8 = ((3, P, -1), (3, T, 0), (2, R, 0), (3, T, 1), (2, R, 1), (4, Y, 2))
"""P P P | T T E | O O | T T E | O O | R R R E of the worked vectors."""


def bits(sample: Sample) -> str:
    return "".join(map(str, sample.loss_mask))


@pytest.mark.row("R23", "R24", "R34", "R54")
@pytest.mark.parametrize(
    ("masker", "mask"),
    [
        pytest.param(END_TO_END, "00011100111001111", id="end to end"),
        pytest.param(TOOL_CALLS, "00011100111", id="tool calls, cut"),
        pytest.param(REPLY, "00000000000001111", id="reply"),
    ],
)
def test_stock_masks_are_the_worked_vectors(masker: SourceMasker, mask: str) -> None:
    sample = masker(sequence_of(*B8))
    assert bits(sample) == mask
    assert sample.token_ids == tuple(range(100, 100 + len(mask)))
    assert sample.logprobs is not None
    assert len(sample.logprobs) == len(mask)


@pytest.mark.row("R21")
def test_uncut_tool_calls_and_replies_sum_to_end_to_end() -> None:
    sequence = sequence_of(*B8)
    tools = replace(TOOL_CALLS, cut=False)(sequence).loss_mask
    replies = REPLY(sequence).loss_mask
    both = tuple(a + b for a, b in zip(tools, replies, strict=True))
    assert both == END_TO_END(sequence).loss_mask


@pytest.mark.parametrize("masker", [TOOL_CALLS, REPLY, END_TO_END])
def test_a_mask_that_trains_nothing_is_an_error_that_says_what_is_there(
    masker: SourceMasker,
) -> None:
    with pytest.raises(le.EmptyMaskError, match="nothing that was sampled"):
        masker(sequence_of((3, P, -1), (2, S, -1)))


def test_a_reply_masker_on_a_tool_turn_names_what_the_sequence_holds() -> None:
    with pytest.raises(le.EmptyMaskError, match="it holds tool_call"):
        REPLY(sequence_of((3, P, -1), (2, T, 0)))


def test_a_turn_of_no_tokens_trains_nothing() -> None:
    with pytest.raises(le.EmptyMaskError):
        REPLY(sequence_of((3, P, -1), (0, Y, 0)))


@pytest.mark.parametrize(
    ("spans", "length"),
    [
        pytest.param([Span(0, 2, P), Span(3, 4, Y, 0)], 4, id="gap"),
        pytest.param([Span(0, 2, P), Span(1, 4, Y, 0)], 4, id="overlap"),
        pytest.param([Span(0, 2, P)], 4, id="short"),
        pytest.param([Span(0, 3, P), Span(3, 2, Y, 0)], 3, id="backwards"),
        pytest.param([], 1, id="none"),
    ],
)
def test_spans_tile_the_sequence(spans: list[Span], length: int) -> None:
    with pytest.raises(ValueError, match=r"span|length"):
        TokenSequence(tuple(range(length)), None, tuple(spans))


def test_logprobs_are_as_many_as_the_tokens() -> None:
    with pytest.raises(ValueError, match="2 token ids, 1 logprobs"):
        TokenSequence((1, 2), (0.0,), (Span(0, 2, P),))


def test_the_response_starts_at_the_first_sampled_token() -> None:
    response = sequence_of(*B8).response_only()
    assert response.prompt_ids == (100, 101, 102)
    assert response.response_ids == tuple(range(103, 117))
    assert "".join(map(str, response.loss_mask)) == "11100111001111"
    assert response.logprobs == tuple(-0.1 * i for i in range(3, 17))


def test_the_response_of_a_cut_sequence_ends_where_it_was_cut() -> None:
    response = sequence_of(*B8).response_only(TOOL_CALLS)
    assert "".join(map(str, response.loss_mask)) == "11100111"
    assert len(response.response_ids) == 8


def test_shifting_moves_mask_and_logprobs_once() -> None:
    shifted = sequence_of((2, P, -1), (2, Y, 0)).shifted()
    assert shifted.input_ids == (100, 101, 102)
    assert shifted.labels == (101, 102, 103)
    assert shifted.loss_mask == (0, 1, 1)
    assert shifted.logprobs == (-0.1, -0.2, pytest.approx(-0.3))


@pytest.mark.parametrize(
    ("masker", "ranges"),
    [
        (None, ((3, 6), (8, 11), (13, 17))),
        (TOOL_CALLS, ((3, 6), (8, 11))),
        (REPLY, ((13, 17),)),
    ],
)
def test_action_ranges_are_the_trained_stretches(
    masker: SourceMasker | None, ranges: tuple[tuple[int, int], ...]
) -> None:
    assert sequence_of(*B8).action_ranges(masker) == ranges


def test_turns_that_follow_each_other_directly_are_two_ranges() -> None:
    assert sequence_of((1, P, -1), (2, T, 0), (2, Y, 1)).action_ranges() == ((1, 3), (3, 5))


def test_a_mask_of_ones_token_by_token_gives_the_stretches_in_a_turn() -> None:
    sequence = sequence_of((1, P, -1), (5, Y, 0))
    mask = (0, 1, 0, 1, 1, 0)
    made = Sample(sequence.token_ids, mask, None)
    assert sequence.action_ranges(lambda _: made) == ((1, 2), (3, 5))


def test_a_row_a_turn_has_all_before_it_as_its_prompt() -> None:
    first, second, third = sequence_of(*B8).rows_per_turn()
    assert [row.turn for row in (first, second, third)] == [0, 1, 2]
    assert (len(first.prompt_ids), len(second.prompt_ids), len(third.prompt_ids)) == (3, 8, 13)
    assert third.response_ids == (113, 114, 115, 116)
    assert third.loss_mask == (1, 1, 1, 1)
    assert [row.turn for row in sequence_of(*B8).rows_per_turn(REPLY)] == [2]


def played(*rewards: float | None, agent: str = "host") -> Trajectory:
    """Return a trajectory of tool turns and a last reply, with these rewards."""
    call = Message("assistant", "", (ToolCall("c", "f"),))
    turns = [Turn(agent, Action(call), reward=reward) for reward in rewards[:-1]]
    turns.append(Turn(agent, Action(Message("assistant", "好")), reward=rewards[-1]))
    return Trajectory(
        room_id="r",
        content_hash="",
        comment_ids=("c1",),
        seed=0,
        prompts={agent: ()},
        tools={agent: ()},
        turns=tuple(turns),
    )


def test_rewards_stand_on_the_last_token_of_their_turn() -> None:
    rewards = sequence_of(*B8).per_token_rewards(played(0.25, None, 1.0))
    assert {i: r for i, r in enumerate(rewards) if r} == {5: 0.25, 16: 1.0}


def test_a_cut_moves_the_last_reward_to_the_last_kept_token() -> None:
    rewards = sequence_of(*B8).per_token_rewards(played(0.25, None, 1.0), TOOL_CALLS)
    assert len(rewards) == 11
    assert {i: r for i, r in enumerate(rewards) if r} == {5: 0.25, 10: 1.0}


def test_an_unscored_trajectory_has_no_rewards_per_token() -> None:
    with pytest.raises(ValueError, match="score the trajectory first"):
        sequence_of(*B8).per_token_rewards(played(None, None, None))


def test_a_scored_zero_is_a_reward() -> None:
    assert sum(sequence_of(*B8).per_token_rewards(played(None, None, 0.0))) == 0.0


@pytest.mark.parametrize(
    ("agent", "calls", "source"),
    [
        ("host", True, T),
        ("host", False, Y),
        ("tool_caller", True, T),
        ("tool_caller", False, T),
        ("replier", True, Y),
        ("replier", False, Y),
    ],
)
def test_the_agent_decides_the_source_where_there_are_two(
    agent: str, calls: bool, source: Source
) -> None:
    made = (ToolCall("c", "f"),) if calls else ()
    assert source_of(Turn(agent, Action(Message("assistant", "x", made)))) is source


def test_a_call_that_could_not_be_parsed_is_a_tool_turn() -> None:
    call = ToolCall("c", "", error="invalid_json: x", raw="{")
    assert source_of(Turn("host", Action(Message("assistant", "", (call,))))) is T


@pytest.mark.parametrize(
    ("masker", "turns"),
    [
        (END_TO_END, (True, True, True)),
        (TOOL_CALLS, (True, True)),
        (REPLY, (False, False, True)),
    ],
)
def test_maskers_know_whole_turns_too(masker: SourceMasker, turns: tuple[bool, ...]) -> None:
    assert masker.turns(played(None, None, 1.0)) == turns


def test_a_choice_of_spans_makes_a_masker() -> None:
    sequence = sequence_of(*B8)
    sample = sequence.sample(lambda span: span.turn == 1)
    assert bits(sample) == "00000000111000000"
    assert bits(sequence.sample(lambda span: span.turn == 1, cut=True)) == "00000000111"


def test_context_is_never_trained_whatever_is_picked() -> None:
    assert bits(sequence_of(*B8).sample(lambda _: True)) == "00011100111001111"


def test_stock_maskers_have_names() -> None:
    assert set(MASKERS) == {"end_to_end", "tool_calls", "reply"}
