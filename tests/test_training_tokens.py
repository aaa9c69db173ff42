"""Training rows over real chat templates: one tokenizer or two, templates that rewrite the past."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import pytest
from renderings_for_tests import (
    AGAIN,
    COMMENT,
    SYSTEM,
    TOOLS,
    Step,
    call_of,
    ids_of,
    logprobs_of,
    own_ids,
    renderer,
    reply_of,
    result_of,
    spelled,
    without_ids,
)
from renderings_for_tests import Episode as Talk
from tokenizers_for_tests import TEMPLATES, tokenizer

from livestream_env.rows import TrainingRow
from livestream_env.training import training_rows
from livestream_env.types import (
    Action,
    Message,
    Rewards,
    Score,
    Status,
    Trajectory,
    Turn,
)

PLAIN, LLAMA, REWRITES = "qwen3_instruct_2507", "llama3_1", "qwen3"
ONE_ROUND = (
    Step(call_of(), (result_of(),), agent="tool_caller"),
    Step(reply_of("亲，包邮"), agent="replier"),
)
TWO_ROUNDS = (
    Step(call_of(), (result_of(),), agent="tool_caller"),
    Step(reply_of("您多高"), (AGAIN,), agent="replier"),
    Step(call_of(1), (result_of(1),), agent="tool_caller"),
    Step(reply_of("拍L码"), agent="replier"),
)


def scored(trajectory: Trajectory, tool: float, reply: float, **record: object) -> Trajectory:
    scores = (
        Score("tool_use", tool, 1.0, "tool_caller"),
        Score("correctness", reply, 1.0, "replier"),
    )
    update = {"rewards": Rewards(scores), "status": Status.OK, **record}
    return trajectory.model_copy(update=update)


def played_by(settings: dict[str, str], steps: Sequence[Step], **record: object) -> Trajectory:
    """Return the steps as the models of their agents' families sampled them."""
    turns = []
    for index, step in enumerate(steps):
        setting = settings[step.agent]
        ids = ids_of(spelled(setting, step.message), tokenizer(TEMPLATES[setting][0]))
        action = Action(step.message, ids, logprobs_of(index, ids), stop=step.stop)
        turns.append(Turn(step.agent, action, (), step.then))
    made = Talk(PLAIN, tuple(steps)).trajectory()
    return scored(made, 1, 0, turns=tuple(turns), **record)


def trained(row: TrainingRow) -> tuple[int, ...]:
    return tuple(i for i, bit in zip(row.token_ids, row.loss_mask, strict=True) if bit)


def sampled(trajectory: Trajectory, agent: str) -> tuple[int, ...]:
    own = [turn.action.token_ids or () for turn in trajectory.turns if turn.agent == agent]
    return tuple(i for ids in own for i in ids)


@pytest.mark.row("R54")
def test_with_one_template_the_replier_goes_on_from_the_tool_callers_tokens() -> None:
    group = [scored(Talk(PLAIN, ONE_ROUND).trajectory(), *both) for both in ((1, 0), (0, 1))]
    tool, reply, *_ = training_rows(group, renderer(PLAIN), rubric=None)
    assert reply.token_ids[: len(tool.token_ids)] == tool.token_ids
    assert trained(tool) == sampled(group[0], "tool_caller")
    assert trained(reply) == sampled(group[0], "replier")
    history = [SYSTEM, COMMENT, ONE_ROUND[0].message, *ONE_ROUND[0].then]
    assert reply.response_only().prompt_ids == own_ids(PLAIN, history)


def test_two_rounds_are_one_row_for_each_agent() -> None:
    trajectory = scored(Talk(PLAIN, TWO_ROUNDS).trajectory(), 1, 0)
    tool, reply = training_rows([trajectory], renderer(PLAIN), rubric=None)
    assert trained(tool) == sampled(trajectory, "tool_caller")
    assert trained(reply) == sampled(trajectory, "replier")
    assert [turn.turn for turn in tool.turns] == [0, 2]
    assert [turn.turn for turn in reply.turns] == [1, 3]


def test_agents_with_their_own_prompts_have_their_own_contexts() -> None:
    trajectory = scored(Talk(PLAIN, ONE_ROUND).trajectory(), 1, 0)
    replier = (Message("system", "你只回复"), COMMENT)
    prompts = {"tool_caller": (SYSTEM, COMMENT), "replier": replier}
    tool, reply = training_rows(
        [trajectory.model_copy(update={"prompts": prompts})], renderer(PLAIN), rubric=None
    )
    assert tool.response_only().prompt_ids == own_ids(PLAIN, [SYSTEM, COMMENT])
    history = [*replier, ONE_ROUND[0].message, *ONE_ROUND[0].then]
    assert reply.response_only().prompt_ids == own_ids(PLAIN, history)
    assert trained(reply) == sampled(trajectory, "replier")


@pytest.mark.row("R54")
@pytest.mark.parametrize("steps", [ONE_ROUND, TWO_ROUNDS], ids=["one round", "two rounds"])
def test_two_tokenizers_never_see_each_others_ids(steps: tuple[Step, ...]) -> None:
    trajectory = played_by({"tool_caller": PLAIN, "replier": LLAMA}, steps)
    renderers = {"tool_caller": renderer(PLAIN), "replier": renderer(LLAMA)}
    rows = training_rows([trajectory], renderers, rubric=None)
    assert [row.excluded for row in rows] == [None] * len(rows)
    for agent, setting in (("tool_caller", PLAIN), ("replier", LLAMA)):
        own = [row for row in rows if row.agent == agent]
        assert sum(map(trained, own), ()) == sampled(trajectory, agent)
        for row in own:
            before = row.turns[0].turn
            history = [SYSTEM, COMMENT]
            for step in steps[:before]:
                history += [step.message, *step.then]
            prompt = own_ids(setting, history, TOOLS, tokenizer(TEMPLATES[setting][0]))
            assert row.token_ids[: len(prompt)] == prompt
            assert row.full().exact
            assert row.logprobs is not None
            kept = [p for p, bit in zip(row.logprobs, row.loss_mask, strict=True) if bit]
            assert kept == [
                p for t in row.turns for p in logprobs_of(t.turn, trained_of(row, t.turn))
            ]


def trained_of(row: TrainingRow, turn: int) -> tuple[int, ...]:
    (response,) = [one for one in row.rows_per_turn() if one.turn == turn]
    return response.response_ids


def test_a_partner_that_is_known_by_its_text_costs_the_tool_caller_nothing() -> None:
    trajectory = played_by(dict.fromkeys(("tool_caller", "replier"), PLAIN), TWO_ROUNDS)
    turns = [
        replace(turn, action=Action(turn.action.message)) if turn.agent == "replier" else turn
        for turn in trajectory.turns
    ]
    played = trajectory.model_copy(update={"turns": tuple(turns), "partners": ("replier",)})
    rows = training_rows([played], renderer(PLAIN), rubric=None)
    assert {row.agent for row in rows} == {"tool_caller"}
    assert sum(map(trained, rows), ()) == sampled(trajectory, "tool_caller")
    assert all(row.full().exact and row.logprobs is not None for row in rows)


def test_a_partners_ids_may_be_of_any_tokenizer() -> None:
    trajectory = played_by({"tool_caller": PLAIN, "replier": LLAMA}, TWO_ROUNDS)
    played = trajectory.model_copy(update={"partners": ("replier",)})
    *_, last = training_rows([played], renderer(PLAIN), rubric=None)
    history = [SYSTEM, COMMENT]
    for step in TWO_ROUNDS[:2]:
        history += [step.message, *step.then]
    assert last.rows_per_turn()[-1].prompt_ids == own_ids(PLAIN, history)


@pytest.mark.row("R54")
def test_a_template_that_rewrites_the_past_gives_rows_that_share_their_advantage() -> None:
    steps = (
        Step(call_of(thinking="查"), (result_of(),), agent="tool_caller"),
        Step(reply_of("您多高", thinking="问"), (AGAIN,), agent="replier"),
        Step(call_of(1, thinking="再查"), (result_of(1),), agent="tool_caller"),
        Step(reply_of("拍L码", thinking="好"), agent="replier"),
    )
    group = [scored(Talk(REWRITES, steps).trajectory(), *both) for both in ((1, 0), (0, 1))]
    rows = training_rows(group, renderer(REWRITES), rubric=None)
    for trajectory, index in ((group[0], 0), (group[1], 1)):
        for agent in ("tool_caller", "replier"):
            own = [row for row in rows if (row.index, row.agent) == (index, agent)]
            assert len(own) == 2
            assert len({row.advantage for row in own}) == 1
            assert own[0].excluded is None
            assert sum(map(trained, own), ()) == sampled(trajectory, agent)
            assert [sum(t.reward or 0 for t in row.turns) for row in own] == [0, own[0].reward]


def test_what_the_template_cannot_show_is_a_reason_and_no_exception() -> None:
    steps = (ONE_ROUND[0], Step(reply_of(thinking="想"), agent="replier"))
    shown = scored(Talk(PLAIN, ONE_ROUND).trajectory(), 1, 0)
    hidden = scored(without_ids(Talk(PLAIN, steps).trajectory()), 0, 1)
    rows = training_rows([shown, hidden], renderer(PLAIN), rubric=None)
    assert [str(row.excluded).partition(":")[0] for row in rows] == [
        "lone",
        "lone",
        "prefix_mismatch",
        "prefix_mismatch",
    ]
    assert "strip thinking" in str(rows[2].excluded)
