"""Training rows. Numbers are FORMULAS.md B3-B5, B8 and B9, or worked out beside the test."""

from __future__ import annotations

import asyncio
import math
from collections.abc import Callable, Container, Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import livestream_env as le
from livestream_env.advantages import (
    agent_advantages,
    at_grpo,
    credit_sign_error,
    discounted_returns,
    gigpo,
    mt_grpo,
    rae,
    to_step_rewards,
)
from livestream_env.estimators import Members
from livestream_env.losses import kl
from livestream_env.masking import END_TO_END, REPLY, TOOL_CALLS
from livestream_env.rewards import Rubric
from livestream_env.rows import TrainingRow
from livestream_env.tokens import Sample, Source, Span, TokenSequence, source_of
from livestream_env.training import (
    checkpoint_name,
    split_rows,
    stamp_version,
    to_step_rows,
    training_rows,
)
from livestream_env.types import (
    Action,
    Message,
    Rewards,
    Score,
    Status,
    ToolCall,
    Trajectory,
    Turn,
    TurnEvent,
)

RULE, TOOL = [1, 1, 0, 1], [1, 0.5, 0, 0.5]
CORRECT, HELPFUL = [0, 1, 1, 0], [0, 0.5, 1, 0]
A_TOOL = [0.8660234, 0.2886745, -1.4433724, 0.2886745]
A_REPLY = [-0.8488730, 0.6063379, 1.0914083, -0.8488730]
A_MIXED = [-0.1986786, 1.3907501, -0.1986786, -0.9933929]
ONE = {"host": END_TO_END}


def near(values: Sequence[float], within: float = 1e-6) -> Any:
    return pytest.approx(values, abs=within)


# --- trajectories and a renderer of a few tokens a turn -----------------------------------------


class Renderer:
    """Three ids of prompt; of each turn what was sampled, then two ids of what it was told."""

    def render(
        self, trajectory: Trajectory, agents: Container[str] | None = None
    ) -> list[TokenSequence]:
        ids, logprobs, spans = [1, 2, 3], [0.0] * 3, [Span(0, 3, Source.PROMPT)]

        def add(more: Sequence[int], known: Sequence[float], source: Source, turn: int) -> None:
            spans.append(Span(len(ids), len(ids) + len(more), source, turn))
            ids.extend(more)
            logprobs.extend(known)

        for index, turn in enumerate(trajectory.turns):
            sampled = turn.action.token_ids or ()
            known = turn.action.logprobs or (0.0,) * len(sampled)
            is_shown = agents is not None and turn.agent not in agents
            add(sampled, known, Source.PROMPT if is_shown else source_of(turn), index)
            if index < len(trajectory.turns) - 1:
                add((8, 9), (0.0, 0.0), Source.TOOL_RESULT, index)
        missing = any(turn.action.logprobs is None for turn in trajectory.turns)
        known = None if missing else tuple(logprobs)
        return [TokenSequence(tuple(ids), known, tuple(spans))]


def called(agent: str = "tool_caller", ids: Sequence[int] = (10, 11, 12), **turn: Any) -> Turn:
    message = Message("assistant", "", (ToolCall("c", "search_faq"),))
    return Turn(agent, _sampled(message, ids), **turn)


def replied(agent: str = "replier", ids: Sequence[int] = (20, 21, 22, 23), **turn: Any) -> Turn:
    return Turn(agent, _sampled(Message("assistant", "好"), ids), **turn)


def _sampled(message: Message, ids: Sequence[int]) -> Action:
    return Action(message, tuple(ids), tuple([-0.5 - i / 16 for i in range(len(ids))]))


B8 = (called(), called(), replied())


def played(
    *turns: Turn, rewards: Rewards | None = None, group: str | None = "g", **record: Any
) -> Trajectory:
    names = dict.fromkeys(turn.agent for turn in turns)
    return Trajectory(
        **{
            "room_id": "r",
            "content_hash": "h",
            "comment_ids": ("c1",),
            "seed": 0,
            "group": group,
            "prompts": dict.fromkeys(names, ()),
            "tools": dict.fromkeys(names, ()),
            "turns": turns,
            "status": Status.OK,
            "rewards": rewards,
            **record,
        }
    )


def judged(tool: float | None = 1.0, reply: float | None = 1.0, cause: Any = "judge_error"):
    """Return one score for each agent; a missing one has the cause."""
    scores = (("tool_use", tool, "tool_caller"), ("correctness", reply, "replier"))
    return Rewards(
        tuple(
            Score(name, value, 1.0, agent, cause=cause if value is None else None)
            for name, value, agent in scores
        )
    )


def two(tool: float | None, reply: float | None, **record: Any) -> Trajectory:
    return played(*B8, rewards=judged(tool, reply), **record)


def rows_of(trajectories: Sequence[Trajectory], **options: Any) -> list[TrainingRow]:
    return training_rows(trajectories, Renderer(), **{"rubric": None, **options})


def by_agent(rows: Sequence[TrainingRow], agent: str) -> list[TrainingRow]:
    return [row for row in rows if row.agent == agent]


def advantages(rows: Sequence[TrainingRow], agent: str) -> list[Any]:
    return [row.advantage for row in by_agent(rows, agent)]


def b5(*turns: Turn) -> list[Trajectory]:
    streams = zip(RULE, TOOL, CORRECT, HELPFUL, strict=True)
    names = ("rule", "tool_use"), ("correctness", "helpfulness")
    agents = ("tool_caller",) * 2 + ("replier",) * 2
    return [
        played(
            *(turns or B8),
            rewards=Rewards(
                tuple(
                    Score(name, value, 0.5, agent)
                    for name, value, agent in zip(sum(names, ()), values, agents, strict=True)
                )
            ),
        )
        for values in streams
    ]


# --- two agents on one trajectory ---------------------------------------------------------------


@pytest.mark.row("R54")
def test_a_trajectory_has_a_row_for_each_agent_with_its_own_mask() -> None:
    tool, reply = rows_of([two(1, 1)])
    assert ["".join(map(str, row.loss_mask)) for row in (tool, reply)] == [
        "00011100111",
        "00000000000001111",
    ]
    (whole,) = Renderer().render(two(1, 1))
    assert tool.token_ids == whole.token_ids[:11]
    assert reply.token_ids == whole.token_ids
    assert (tool.agent, reply.agent) == ("tool_caller", "replier")
    assert tool.group_id == reply.group_id == "g"
    assert tool.trajectory_id == reply.trajectory_id == "g#0"
    assert [turn.turn for turn in tool.turns] == [0, 1]
    assert [turn.turn for turn in reply.turns] == [2]
    assert tool.logprobs is not None
    assert tool.logprobs[3:6] == (-0.5, -0.5625, -0.625)


@pytest.mark.row("R54")
def test_each_agents_kl_is_over_its_own_tokens() -> None:
    """B2: k3 of -1 against -1.5 is .1065307, of -1.5 against -1 it is .1487213."""
    known = {10: (-1.0, -1.5), 20: (-1.5, -1.0)}
    tool, reply = rows_of([played(called(ids=(10,)), replied(ids=(20,)), rewards=judged())])
    found = {}
    for row in (tool, reply):
        pairs = [known.get(token, (0.0, -9.0)) for token in row.token_ids]
        estimate = kl([p for p, _ in pairs], [r for _, r in pairs])
        found[row.agent] = float(np.dot(estimate, row.loss_mask))
    assert found == {"tool_caller": near(0.1065307), "replier": near(0.1487213)}


@pytest.mark.row("R53")
def test_separate_rewards_give_each_agent_its_worked_numbers() -> None:
    rows = rows_of(b5())
    assert advantages(rows, "tool_caller") == near(A_TOOL)
    assert advantages(rows, "replier") == near(A_REPLY)
    assert [row.reward for row in by_agent(rows, "tool_caller")] == [1, 0.75, 0, 0.75]
    assert [row.reward for row in by_agent(rows, "replier")] == [0, 0.75, 1, 0]


@pytest.mark.row("R53")
@pytest.mark.parametrize(
    "options",
    [
        pytest.param({"key": "global"}, id="a row for each agent, one key"),
        pytest.param({"agents": ONE}, id="one row"),
    ],
)
def test_mixed_rewards_push_a_perfect_tool_call_down(options: Mapping[str, Any]) -> None:
    separate, mixed = rows_of(b5()), rows_of(b5(), **options)
    own = {agent: advantages(separate, agent) for agent in ("tool_caller", "replier")}
    for agent in {row.agent for row in mixed}:
        assert advantages(mixed, agent) == near(A_MIXED)
    shared = advantages(mixed, mixed[0].agent)
    assert credit_sign_error(shared, own) == 0.375
    # the first trajectory called perfectly and replied badly
    calls = slice(3, 6)
    assert all(one > 0.8 for one in by_agent(separate, "tool_caller")[0].advantages[calls])
    assert all(-0.2 < one < 0 for one in mixed[0].advantages[calls])


def test_the_turns_of_one_host_are_told_apart_by_the_masker() -> None:
    host = (called("host"), called("host"), replied("host"))
    rows = rows_of(b5(*host))
    assert advantages(rows, "tool_caller") == near(A_TOOL)
    assert advantages(rows, "replier") == near(A_REPLY)
    assert [row.loss_mask for row in rows] == [row.loss_mask for row in rows_of(b5())]
    assert advantages(rows_of(b5(*host), agents=ONE), "host") == near(A_MIXED)


@pytest.mark.row("R53")
def test_dr_mas_keys_compare_an_agent_with_itself_or_all_together() -> None:
    group = [two(1, 0.2), two(0, 0.8)]
    own = rows_of(group, advantages="drmas")
    assert advantages(own, "tool_caller") == near([0.7071057, -0.7071057])
    assert advantages(own, "replier") == near([-0.7071051, 0.7071051])
    shared = rows_of(group, advantages="drmas", key="global")
    for agent in ("tool_caller", "replier"):
        assert advantages(shared, agent) == near([0.70710, -0.70710], 5e-6)


def test_a_flat_agent_does_not_touch_the_other() -> None:
    replies = [0, 0.75, 1, 0]
    group = [two(0.5, reply) for reply in replies]
    kept = rows_of(group)
    assert advantages(kept, "tool_caller") == [0, 0, 0, 0]
    assert advantages(kept, "replier") == near(A_REPLY)
    dropped = rows_of(group, flat="exclude")
    assert {row.excluded for row in by_agent(dropped, "tool_caller")} == {
        "flat: all rewards of its group are equal"
    }
    assert advantages(dropped, "replier") == near(A_REPLY)


# --- other ways to compare ----------------------------------------------------------------------

GIGPO = {
    "A": ([0, 0, 1], ["s0", "s1", "a2"]),
    "B": ([0, 0, 0], ["s0", "s1", "b2"]),
    "C": ([0, 1], ["s0", "s2"]),
    "D": ([0, 0, 0, 0.5], ["s0", "s2", "d2", "d3"]),
}


def b3() -> list[Trajectory]:
    made = []
    for rewards, keys in GIGPO.values():
        turns = [called("host", state_key=key) for key in keys[:-1]]
        score = Score("outcome", rewards[-1], 1.0, "host")
        last = replied("host", state_key=keys[-1])
        made.append(played(*turns, last, rewards=Rewards((score,))))
    return made


def per_turn(row: TrainingRow) -> list[float]:
    """Return the advantage of each turn, after checking that its tokens share it."""
    ranges = row.action_ranges()
    for start, stop in ranges:
        assert len(set(row.advantages[start:stop])) == 1
    masked = [a for a, bit in zip(row.advantages, row.loss_mask, strict=True) if not bit]
    assert not any(masked)
    return [row.advantages[start] for start, _ in ranges]


def test_gigpo_gives_each_turn_its_worked_number() -> None:
    a, b, c, d = (per_turn(row) for row in rows_of(b3(), agents=ONE, advantages="gigpo"))
    assert a == near([0.7072031, 0.85, 0.375])
    assert b == near([-1.1952969, -1.1, -0.625])
    assert c == near([0.7547031, 0.649375])
    assert d == near([-0.2666094, -0.399375, -0.125, -0.125])


def test_gigpo_takes_its_options_by_a_function() -> None:
    def by_deviation(members: Members) -> Any:
        return gigpo(members.turn_rewards, members.anchors, members.groups, mode="mean_std")

    rows = [per_turn(row) for row in rows_of(b3(), agents=ONE, advantages=by_deviation)]
    assert rows[0][0] == near(0.7833475 + 0.7429353)
    assert rows[1][0] == near(-1.3055797 - 1.2754056)
    assert rows[2] == near([0.7833475 + 0.8491638, 0.7833475 + 0.707105])
    assert rows[3][2:] == near([-0.2611159, -0.2611159])


def test_gigpo_keeps_agents_apart() -> None:
    group = [
        played(called(state_key="s"), replied(state_key="t"), rewards=judged(*both))
        for both in ((1, 0), (0, 1))
    ]
    rows = rows_of(group, advantages="gigpo")
    # episodes 1 and 0 give +-.5, so do the equal states
    assert [per_turn(row) for row in by_agent(rows, "tool_caller")] == [[1.0], [-1.0]]
    assert [per_turn(row) for row in by_agent(rows, "replier")] == [[-1.0], [1.0]]


def test_scores_of_a_turn_are_its_reward_and_the_total_comes_last() -> None:
    scores = (
        Score("progress", 0.5, 2.0, "tool_caller", turn=0),
        Score("progress", None, 2.0, "tool_caller", turn=1, cause="not_applicable"),
        *judged(1, 0.25).scores,
    )
    tool, reply = rows_of([played(*B8, rewards=Rewards(scores))])
    assert [turn.reward for turn in tool.turns] == [1.0, 1.0]
    assert [turn.reward for turn in reply.turns] == [0.25]
    assert tool.reward == 1
    assert tool.per_token_rewards() == (*[0.0] * 5, 1.0, *[0.0] * 4, 1.0)


def test_a_turn_that_no_judge_judged_has_no_return() -> None:
    failed = Score("progress", None, 1.0, "host", turn=0, cause="judge_error")
    group = [t.model_copy(update={"rewards": t.rewards}) for t in b3()]
    assert group[0].rewards is not None
    broken = Rewards((*group[0].rewards.scores, failed))
    group[0] = group[0].model_copy(update={"rewards": broken})
    first, second, *_ = rows_of(group, agents=ONE, advantages="gigpo")
    assert first.excluded == "no_advantage: the estimator gave none"
    # episodes 0, 1, .5 are left: the second is .5 below their mean, .475 below in s0 ...
    others = rows_of(group[1:], agents=ONE, advantages="gigpo")
    assert second.advantages == others[0].advantages


def test_gdpo_keeps_rewards_of_different_scales_apart() -> None:
    """B5: +-.7071 and +-1.4142, then whitened over 7 tokens each: variance 7 * 5 / 27."""

    def member(group: str, first: float, second: float) -> Trajectory:
        scores = (Score("a", first, 1.0, "tool_caller"), Score("b", second, 1.0, "tool_caller"))
        return played(called(), called(ids=(1, 2, 3, 4)), rewards=Rewards(scores), group=group)

    batch = [member("x", 0, 0), member("x", 1, 0), member("y", 0, 0), member("y", 1, 1)]
    rows = rows_of(batch, agents={"tool_caller": TOOL_CALLS}, advantages="gdpo")
    deviation = math.sqrt(7 * 5 / 27)
    expected = np.array([-1, 1, -2, 2]) / math.sqrt(2) / deviation
    assert advantages(rows, "tool_caller") == near(expected, 5e-6)


def test_whitening_counts_the_trained_tokens_of_a_row() -> None:
    """Centred .5, -.5, 0, 0 over 2 + 2 + 1 + 1 tokens: variance .2."""
    lengths = [(1, 2), (1, 2), (1,), (1,)]
    group = [
        played(called(ids=ids), rewards=judged(reward, None))
        for ids, reward in zip(lengths, [1, 0, 0.5, 0.5], strict=True)
    ]
    rows = rows_of(group, agents={"tool_caller": TOOL_CALLS}, advantages="reinforce_pp")
    assert advantages(rows, "tool_caller") == near(
        [0.5 / math.sqrt(0.2), -0.5 / math.sqrt(0.2), 0, 0]
    )


def _mt_grpo(members: Members) -> list[list[float]]:
    totals = members.totals
    first, rest = mt_grpo(
        [t.rewards.total("tool_caller") for t in members.trajectories],
        [t.rewards.total("replier") for t in members.trajectories],
        groups=members.groups,
    )
    assert set(totals) == {"host"}
    return [
        [float(first[i])] + [float(rest[i])] * (len(turns) - 1)
        for i, turns in enumerate(members.turns)
    ]


def test_turn_credit_of_other_papers_goes_through_the_same_rows() -> None:
    """B4: MT-GRPO's first turns, RAE of 1, 0, 1, AT-GRPO's key, MAPoRL's returns."""
    rows = [per_turn(row) for row in rows_of(b5(), agents=ONE, advantages=_mt_grpo)]
    assert [row[0] for row in rows] == near([0.0171504, 0.8950124, -0.3519641, -0.5601985])
    assert [row[-1] for row in rows] == near(A_REPLY)

    def spiral(members: Members) -> Any:
        agents = [members.agent] * len(members.rewards)
        return rae(members.rewards, agents, decay=0.9)[0]

    group = [two(tool, None) for tool in (1, 0, 1)]
    assert advantages(rows_of(group, advantages=spiral), "tool_caller") == near([1, -0.1, 0.91])

    def of_turns(members: Members) -> list[list[float]]:
        at = [(i, turn.turn) for i, turns in enumerate(members.turns) for turn in turns]
        rewards = [reward for turns in members.turn_rewards for reward in turns]
        groups = [members.groups[i] for i, _ in at]
        flat = at_grpo(
            rewards, [0] * len(at), groups, [members.agent] * len(at), [t for _, t in at],
            preset="prime_rl",
        )  # fmt: skip
        return [[a for a, (i, _) in zip(flat, at, strict=True) if i == k] for k in range(2)]

    group = [
        played(
            *B8,
            rewards=Rewards((*judged().scores, Score("p", value, 1.0, "tool_caller", turn=0))),
        )
        for value in (1, 0.5)
    ]
    rows = [per_turn(row) for row in by_agent(rows_of(group, advantages=of_turns), "tool_caller")]
    assert rows == [[0.25, 0], [-0.25, 0]]

    def maporl(members: Members) -> list[Any]:
        return [discounted_returns(rewards, 0.3) for rewards in members.turn_rewards]

    scores = [Score("v", value, 1.0, "host", turn=at) for at, value in enumerate((0.2, 0.5, 1))]
    scores.append(Score("none", 0.0, 1.0, "host"))
    (row,) = rows_of([played(*B8, rewards=Rewards(tuple(scores)))], agents=ONE, advantages=maporl)
    assert per_turn(row) == near([0.44, 0.8, 1])


# --- what is excluded ---------------------------------------------------------------------------


def test_a_failed_episode_is_in_no_statistic_and_stays_in_the_list() -> None:
    fault = TurnEvent("env_error", "SandboxTimeout: no answer")
    failed = played(status=Status.ENV_ERROR, faults=(fault,), prompts={}, tools={})
    rows = rows_of([two(1, 0), two(0, 1), two(0.5, 0.5), failed])
    assert advantages(rows, "tool_caller")[:3] == near([0.999998, -0.999998, 0])
    assert advantages(rows, "replier")[:3] == near([-0.999998, 0.999998, 0])
    assert [(row.agent, row.excluded) for row in rows[6:]] == [
        ("tool_caller", "env_error: SandboxTimeout: no answer"),
        ("replier", "env_error: SandboxTimeout: no answer"),
    ]
    assert [row.advantage for row in rows[6:]] == [None, None]
    with pytest.raises(ValueError, match=r"has no tokens; it is excluded \(env_error"):
        _ = rows[6].token_ids


def test_a_failed_judge_of_one_agent_leaves_the_other_its_row() -> None:
    rows = rows_of([two(1, 1), two(0, None), two(0.5, 0)])
    assert advantages(rows, "tool_caller") == near([0.999998, -0.999998, 0])
    assert [row.excluded is None for row in by_agent(rows, "replier")] == [True, False, True]
    missing = by_agent(rows, "replier")[1]
    assert missing.excluded == "judge_error: `correctness` has no value"
    assert missing.reward is None
    assert missing.advantage is None
    assert advantages(rows, "replier")[::2] == near([0.7071058, -0.7071058])


def test_an_episode_without_a_reply_has_no_row_for_the_replier() -> None:
    silent = played(called(), rewards=judged(0, 0), prompts={"tool_caller": (), "replier": ()})
    rows = rows_of([two(1, 1), two(0.5, 0), silent])
    assert advantages(rows, "tool_caller") == near([0.999998, 0, -0.999998])
    assert by_agent(rows, "replier")[2].excluded == "empty_mask: `replier` took no turn"
    assert advantages(rows, "replier")[:2] == near([0.7071058, -0.7071058])


def test_a_masker_that_trains_nothing_is_a_reason() -> None:
    def nothing(sequence: TokenSequence) -> Sample:
        return Sample(sequence.token_ids, (0,) * len(sequence), None)

    for masker in (nothing, REPLY):
        (row,) = rows_of([two(1, 1)], agents={"tool_caller": masker})
        assert str(row.excluded).startswith("empty_mask: ")


@pytest.mark.parametrize(
    ("gives", "told"),
    [
        (lambda made: None, "gave None; a masker gives a `Sample`"),
        (lambda made: made.loss_mask, "a masker gives a `Sample`"),
        (lambda made: replace(made, loss_mask=made.loss_mask[:-1]), "of one length"),
        (lambda made: replace(made, loss_mask=(*made.loss_mask, 1)), "of one length"),
        (lambda made: replace(made, loss_mask=[*made.loss_mask]), "both are tuples"),
        (lambda made: replace(made, loss_mask=(0.5,) * len(made.loss_mask)), "than 0 and 1"),
        (lambda made: replace(made, loss_mask=(2,) * len(made.loss_mask)), "than 0 and 1"),
        (lambda made: replace(made, loss_mask=(1,) * len(made.loss_mask)), "were not sampled"),
        (lambda made: replace(made, token_ids=made.token_ids[::-1]), "not the first"),
    ],
)
def test_what_is_no_mask_of_the_sequence_is_the_maskers_mistake(
    gives: Callable[[Sample], Any], told: str
) -> None:
    def my_masker(sequence: TokenSequence) -> Sample:
        made: Sample = gives(TOOL_CALLS(sequence))
        return made

    with pytest.raises((TypeError, ValueError), match=f"my_masker.*{told}"):
        rows_of([two(1, 1)], agents={"tool_caller": my_masker})


def test_one_that_exclusion_leaves_alone_is_dropped_and_one_from_the_start_is_not() -> None:
    pair = rows_of([two(1, None), two(0.7, 0.7)])
    assert by_agent(pair, "replier")[1].excluded == "lone: the 1 others of its group are excluded"
    assert by_agent(pair, "replier")[1].advantage is None
    assert advantages(rows_of([two(0.7, 0.7)]), "replier") == near([0.7])


def test_an_episode_that_runs_on_is_not_trained() -> None:
    (row, _) = rows_of([two(1, 1, status=Status.RUNNING)])
    assert row.excluded == "running: the episode had not ended"


def test_the_hooks_of_excluded_members_are_not_missed() -> None:
    """Without the stale member, both scores weigh: .5 * 1 + .5 * 0; with it, `b` would not."""

    def member(b: float | None, version: str) -> Trajectory:
        turn = called(policy_version=version)
        scores = (
            Score("a", 1.0, 0.5, "tool_caller"),
            Score("b", b, 0.5, "tool_caller", cause=None if b is not None else "not_applicable"),
        )
        return played(turn, rewards=Rewards(scores))

    options = {"agents": {"tool_caller": TOOL_CALLS}}
    batch = [member(0, "7"), member(1, "7"), member(None, "3")]
    rows = rows_of(batch, current_version=7, max_staleness=1, **options)
    assert [row.reward for row in rows[:2]] == [0.5, 1]
    assert str(rows[2].excluded).startswith("stale: ")
    assert [row.reward for row in rows_of(batch, **options)] == [1, 1, 1]


# --- versions and clusters ----------------------------------------------------------------------


def sampled_by(*versions: str | None, tool: float = 1.0, reply: float = 1.0) -> Trajectory:
    pairs = zip(B8, versions, strict=True)
    turns = [replace(turn, policy_version=version) for turn, version in pairs]
    return played(*turns, rewards=judged(tool, reply))


@pytest.mark.row("R36")
def test_exactly_the_stale_rows_are_dropped() -> None:
    rewards = {5: 0.1, 6: 0.9, 7: 1.0, 8: 0.0, 9: 0.5}
    batch = [sampled_by(*[str(v)] * 3, tool=r, reply=r) for v, r in rewards.items()]
    rows = rows_of(batch, current_version=9, max_staleness=2)
    stale = [int(str(row.policy_version)) for row in rows if row.excluded]
    assert sorted(stale) == [5, 5, 6, 6]
    assert rows[0].excluded == "stale: 4 versions behind, 2 are allowed"
    assert advantages(rows, "replier")[2:] == near([0.999998, -0.999998, 0])
    assert rows[0].sample is not None


@pytest.mark.row("R36")
def test_each_agent_is_as_stale_as_its_own_policy() -> None:
    batch = [sampled_by("t@4", "t@4", "r@9"), sampled_by("t@5", "t@5", "r@7")]
    batch += [sampled_by("t@5", "t@5", "r@9")]
    current = {"tool_caller": "t@5", "replier": "r@9"}
    rows = rows_of(batch, current_version=current, max_staleness=1)
    assert [row.excluded is None for row in by_agent(rows, "tool_caller")] == [True] * 3
    assert [row.excluded is None for row in by_agent(rows, "replier")] == [True, False, True]


@pytest.mark.row("R36")
def test_a_row_of_several_versions_is_excluded_or_as_old_as_its_oldest() -> None:
    batch = [sampled_by("6", "8", "8"), sampled_by("8", "8", "8"), sampled_by("8", "8", "8")]
    tool, reply, *_ = rows_of(batch)
    assert tool.excluded == "mixed_versions: sampled by 6, 8"
    assert tool.policy_version is None
    assert (reply.excluded, reply.policy_version) == (None, "8")
    for most, is_kept in ((1, False), (2, True)):
        tool, *_ = rows_of(batch, mixed_versions="oldest", current_version=8, max_staleness=most)
        assert (tool.excluded is None) is is_kept


def test_versions_are_stamped_where_there_are_none() -> None:
    stamped = stamp_version(sampled_by("3", None, None), {"tool_caller": "4", "replier": "9"})
    assert [turn.policy_version for turn in stamped.turns] == ["3", "4", "9"]
    assert [t.policy_version for t in stamp_version(two(1, 1), "7").turns] == ["7"] * 3


@pytest.mark.parametrize(
    ("versions", "current", "match"),
    [
        pytest.param(("1", "1", None), 2, r"`replier` in trajectory 0 has no `policy_version`"),
        pytest.param(("x", "x", "x"), 2, "version `x` does not end in a number"),
        pytest.param(("a1",) * 3, "b2", "`a1` is no version of the policy"),
        pytest.param(("1",) * 3, {"tool_caller": 1}, "`current_version` names none of .*`replier`"),
    ],
)
def test_versions_that_cannot_be_compared_are_the_callers_mistake(
    versions: Any, current: Any, match: str
) -> None:
    with pytest.raises(ValueError, match=match):
        rows_of([sampled_by(*versions)], current_version=current, max_staleness=1)


@pytest.mark.row("R55")
def test_checkpoints_of_two_clusters_have_names_of_their_own() -> None:
    names = {checkpoint_name(c, k) for c in ("tool", "reply") for k in (100, 200, "final")}
    assert len(names) == 6
    assert checkpoint_name("tool", 100) == "tool@100"
    tricky = [("a-1", "2"), ("a", "1-2"), ("a.1", "2"), ("a", ".1".strip(".") + ".2")]
    assert len({checkpoint_name(*pair) for pair in tricky}) == 4


@pytest.mark.parametrize("part", ["", "a@b", "a/b", "..", "模型", "a b"])
def test_a_checkpoint_is_named_by_plain_characters(part: str) -> None:
    with pytest.raises(ValueError, match=r"`cluster` is .*letters, digits"):
        checkpoint_name(part, 1)
    with pytest.raises(ValueError, match=r"`checkpoint` is .*letters, digits"):
        checkpoint_name("a", part)
    with pytest.raises(ValueError, match="`checkpoint` is None"):
        checkpoint_name("a", None)  # type: ignore[arg-type]


@pytest.mark.row("R55")
def test_each_cluster_gets_the_rows_of_its_agents() -> None:
    rows = rows_of([two(1, None), two(0, 1), two(0, 0)])
    split = split_rows(rows, {"tool_caller": "small", "replier": "large"})
    assert [row.agent for row in split["small"]] == ["tool_caller"] * 3
    assert [row.trajectory_id for row in split["large"]] == ["g#1", "g#2"]
    assert len(split_rows(rows, {"tool_caller": "one", "replier": "one"})["one"]) == 5
    with pytest.raises(ValueError, match=r"agent `tool_caller` belongs to no cluster"):
        split_rows(rows, {"replier": "large"})


# --- layouts ------------------------------------------------------------------------------------


@pytest.mark.row("R42")
def test_rolls_batches_have_its_keys() -> None:
    turns = (called(state_key="s0"), called(state_key="s1"), replied(state_key="s2"))
    group = [played(*turns, rewards=judged(1, 0.25)), played(*turns, rewards=judged(0, 1))]
    rows = rows_of(group)
    steps = [step for row in rows for step in row.to_roll()]
    keys = {"traj_group_id", "traj_id", "step", "state_hash", "step_scores", "episode_scores"}
    assert all(keys <= set(step) for step in steps)
    assert [(s["traj_id"], s["step"], s["state_hash"], s["step_scores"]) for s in steps[:3]] == [
        ("g#0/tool_caller", 0, "s0", 0.0),
        ("g#0/tool_caller", 1, "s1", 1.0),
        ("g#0/replier", 2, "s2", 0.25),
    ]
    assert [s["traj_group_id"] for s in steps[:3]] == ["g/tool_caller"] * 2 + ["g/replier"]
    assert [s["episode_scores"] for s in steps[:3]] == [1, 1, 0.25]
    second = steps[1]
    assert second["input_ids"] == [1, 2, 3, 10, 11, 12, 8, 9, 10, 11, 12]
    assert second["response_mask"] == [0] * 8 + [1] * 3
    assert second["prompt_mask"] == [1] * 8 + [0] * 3
    assert second["scores"] == [0.0] * 10 + [1.0]
    assert second["infer_logprobs"] == [*[0] * 7, -0.5, -0.5625, -0.625]


@pytest.mark.row("R42")
def test_every_layout_is_of_the_rows_own_tokens() -> None:
    tool, reply = rows_of([two(1, 0.5)])
    response = reply.response_only()
    assert response.prompt_ids == reply.token_ids[:13]
    assert response.loss_mask == (1, 1, 1, 1)
    assert tool.action_ranges() == ((3, 6), (8, 11))
    assert tool.shifted().labels == tool.token_ids[1:]
    assert [one.turn for one in tool.rows_per_turn()] == [0, 1]
    assert tool.full().reward == 1
    assert tool.full().advantage == tool.advantage == 1
    assert tool.advantages == tuple(map(float, tool.loss_mask))
    assert sum(reply.per_token_rewards()) == 0.5


def test_an_excluded_row_has_nothing_for_a_trainer() -> None:
    row, _ = rows_of([two(None, 1), two(1, 1)])[:2]
    with pytest.raises(ValueError, match=r"no reward to give to ROLL: judge_error"):
        row.to_roll()
    with pytest.raises(ValueError, match=r"has no advantage; it is excluded \(judge_error"):
        _ = row.advantages


# --- shared weights -----------------------------------------------------------------------------


def by_steps(members: Members) -> list[Any]:
    """Give each turn the advantage of whoever took it: the step-reward form."""
    own = {
        agent: [t.rewards.total(agent) for t in members.trajectories]
        for agent in ("tool_caller", "replier")
    }
    turns = [[turn.agent for turn in turns] for turns in members.turns]
    return to_step_rewards(agent_advantages(own, members.groups), turns)


def test_rows_of_two_agents_join_into_step_rewards() -> None:
    joined = to_step_rows(rows_of(b5()))
    stepped = rows_of(b5(), agents=ONE, advantages=by_steps)
    assert [row.token_ids for row in joined] == [row.token_ids for row in stepped]
    assert [row.loss_mask for row in joined] == [row.loss_mask for row in stepped]
    assert [row.logprobs for row in joined] == [row.logprobs for row in stepped]
    assert [row.advantages for row in joined] == [row.advantages for row in stepped]
    assert [row.action_ranges() for row in joined] == [row.action_ranges() for row in stepped]
    assert per_turn(joined[0]) == near([A_TOOL[0], A_TOOL[0], A_REPLY[0]])
    assert joined[0].agent == "tool_caller+replier"
    with pytest.raises(ValueError, match="each has its own reward"):
        joined[0].to_roll()


def test_an_excluded_row_does_not_join() -> None:
    joined = to_step_rows(rows_of([two(1, None), two(0, 1), two(0, 0)]))
    assert [row.agent for row in joined] == ["tool_caller", *["tool_caller+replier"] * 2]


def test_rows_that_train_the_same_tokens_do_not_join() -> None:
    rows = rows_of(
        [played(called("host"), rewards=judged())], agents={**ONE, "tool_caller": TOOL_CALLS}
    )
    with pytest.raises(ValueError, match="train the same tokens of `g#0`"):
        to_step_rows(rows)


@pytest.mark.row("R57")
def test_two_agents_on_shared_weights_learn_exactly_what_step_rewards_teach() -> None:
    torch = pytest.importorskip("torch")
    torch.manual_seed(0)

    class Policy(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.embed = torch.nn.Embedding(32, 8)
            self.mix = torch.nn.GRU(8, 8, batch_first=True)
            self.head = torch.nn.Linear(8, 32)

        def forward(self, ids: Any) -> Any:
            return self.head(self.mix(self.embed(ids))[0]).log_softmax(-1)

    policy = Policy().double()

    def learnt(rows: Sequence[TrainingRow]) -> list[Any]:
        """Return the gradient, added turn by turn in the order in which they were taken."""
        policy.zero_grad()
        turns = [
            (row.index, turn.turn or 0, row, turn) for row in rows for turn in row.rows_per_turn()
        ]
        for _, _, row, turn in sorted(turns, key=lambda one: one[:2]):
            start, ids = len(turn.prompt_ids), torch.tensor([*turn.prompt_ids, *turn.response_ids])
            chosen = policy(ids[None, :-1])[0].gather(-1, ids[1:, None])[start - 1 :, 0]
            weights = torch.tensor(row.advantages[start : len(ids)]) * torch.tensor(turn.loss_mask)
            (-(weights * chosen).sum()).backward()
        return [parameter.grad.clone() for parameter in policy.parameters()]

    turns = [
        (called(ids=(10, 11)), called(ids=(12, 10, 13)), replied(ids=(20, 21))),
        (called(ids=(11,)), replied(ids=(22, 23, 20))),
        (called(ids=(10, 12)), replied(ids=(24,)), called(ids=(11, 13)), replied(ids=(20, 25))),
        (called(ids=(13, 13)), replied(ids=(21,))),
    ]
    group = [played(*own, rewards=member.rewards) for own, member in zip(turns, b5(), strict=True)]
    two_agents = learnt(rows_of(group))
    steps = learnt(rows_of(group, agents=ONE, advantages=by_steps))
    joined = learnt(to_step_rows(rows_of(group)))
    mixed = learnt(rows_of(group, agents=ONE))
    for others in (steps, joined):
        differences = [(a - b).abs().max().item() for a, b in zip(two_agents, others, strict=True)]
        assert max(differences) == 0
    assert max((a - b).abs().max().item() for a, b in zip(two_agents, mixed, strict=True)) > 0.01


# --- whose tokens -------------------------------------------------------------------------------


def test_a_partner_has_no_row_and_its_tokens_are_context() -> None:
    turns = (called(), replied(), called(ids=(13, 14)), replied())
    team = [played(*turns, rewards=judged(r, None), partners=("replier",)) for r in (1, 0)]
    rows = rows_of(team)
    assert [row.agent for row in rows] == ["tool_caller"] * 2
    assert rows[0].loss_mask == (0, 0, 0, 1, 1, 1, *[0] * 8, 1, 1)
    assert advantages(rows, "tool_caller") == near([0.7071058, -0.7071058])


def test_one_row_of_a_team_leaves_its_partner_out() -> None:
    team = played(*B8, rewards=judged(), partners=("replier",))
    (row,) = rows_of([team], agents=ONE)
    assert row.loss_mask == tuple(map(int, "00011100111000000"))


class Apart(Renderer):
    """A context for each turn, as of a template that rewrites whatever came before."""

    def render(
        self, trajectory: Trajectory, agents: Container[str] | None = None
    ) -> list[TokenSequence]:
        (whole,) = super().render(trajectory, agents)
        ends = [span for span in whole.spans if span.source.is_sampled]
        return [_up_to(whole, span) for span in ends]


def _up_to(whole: TokenSequence, last: Span) -> TokenSequence:
    spans = [
        span if span is last or not span.source.is_sampled else replace(span, source=Source.PROMPT)
        for span in whole.spans
        if span.stop <= last.stop
    ]
    logprobs = None if whole.logprobs is None else whole.logprobs[: last.stop]
    return TokenSequence(whole.token_ids[: last.stop], logprobs, tuple(spans))


def test_a_stale_context_is_left_out_and_the_others_of_its_turns_are_not() -> None:
    seen: list[tuple[int, ...]] = []

    def counting(members: Members) -> list[float]:
        seen.append(members.lengths)
        return [1.0] * len(members.lengths)

    rows = training_rows(
        [sampled_by("3", "9", "9")],
        Apart(),
        agents={"tool_caller": TOOL_CALLS},
        rubric=None,
        advantages=counting,
        current_version=9,
        max_staleness=1,
    )
    assert [row.advantage for row in rows] == [None, 1.0]
    assert str(rows[0].excluded).startswith("stale: 6")
    assert [row.policy_version for row in rows] == ["3", "9"]
    assert seen == [(3,)]


def test_logprobs_are_not_missing_because_another_agents_are() -> None:
    silent = replace(replied(), action=replace(replied().action, logprobs=None))
    tool, reply = rows_of([played(called(), silent, called(), rewards=judged())])
    assert tool.logprobs is not None
    assert [p for p, bit in zip(tool.logprobs, tool.loss_mask, strict=True) if bit] == [
        *(-0.5, -0.5625, -0.625) * 2
    ]
    assert reply.logprobs is None
    assert reply.excluded is None


def test_no_masker_trains_another_agents_turn() -> None:
    tool, reply = rows_of([two(1, 1)], agents=dict.fromkeys(("tool_caller", "replier"), END_TO_END))
    assert tool.loss_mask == tuple(map(int, "00011100111000000"))
    assert reply.loss_mask == tuple(map(int, "00000000000001111"))


def test_agents_of_other_names_have_keys_of_their_own() -> None:
    """Two sub-agents that work side by side, each with its own scores."""

    def member(a: float, b: float) -> Trajectory:
        scores = (Score("found", a, 1.0, "sub_a"), Score("found", b, 1.0, "sub_b"))
        return played(called("sub_a"), called("sub_b"), rewards=Rewards(scores))

    rows = rows_of([member(1, 0), member(0, 0)], agents={"sub_a": END_TO_END, "sub_b": END_TO_END})
    assert advantages(rows, "sub_a") == near([0.7071058, -0.7071058])
    assert advantages(rows, "sub_b") == [0, 0]
    assert rows[0].loss_mask == (0, 0, 0, 1, 1, 1, 0, 0, 0, 0, 0)


def test_members_without_a_group_share_room_comment_and_seed() -> None:
    batch = [two(1, 1, group=None), two(0, 0, group=None), two(1, 1, group=None, seed=1)]
    rows = rows_of(batch)
    assert [row.trajectory_id for row in by_agent(rows, "replier")] == [
        "r:c1:0#0",
        "r:c1:0#1",
        "r:c1:1#0",
    ]
    assert advantages(rows, "replier") == near([0.7071058, -0.7071058, 1])


# --- rubrics ------------------------------------------------------------------------------------


def test_a_rubric_scores_with_the_rooms_key() -> None:
    room = le.load_room("snacks")
    env = le.LiveRoomEnv(room, embedder="lexical", rubric=None)
    group = [le.rollout(env, le.ScriptedAgent(room), seed=0) for _ in range(2)]
    expected = le.LiveRoomEnv(room, embedder="lexical", rubric="multi22")
    scored = le.rollout(expected, le.ScriptedAgent(room), seed=0)
    made = training_rows(group, _Texts())
    assert [row.reward for row in by_agent(made, "replier")] == [
        scored.rewards.total("replier")
    ] * 2
    assert [row.excluded for row in made] == [None] * 4


def test_an_unknown_room_is_told_and_not_scored_0() -> None:
    room = le.load_room("snacks")
    env = le.LiveRoomEnv(room, embedder="lexical", rubric=None)
    trajectory = le.rollout(env, le.ScriptedAgent(room), seed=0)
    rubric = Rubric(["tool_use", "helpfulness"])
    for row in training_rows([trajectory], _Texts(), rubric=rubric, rooms=[]):
        assert row.reward is None
        assert str(row.excluded).startswith("no_truth: ")
        assert "no room `snacks` was given" in str(row.excluded)


class _Texts(Renderer):
    """Renders trajectories that have no ids: one id a turn."""

    def render(
        self, trajectory: Trajectory, agents: Container[str] | None = None
    ) -> list[TokenSequence]:
        turns = tuple(
            replace(turn, action=replace(turn.action, token_ids=(40 + i,)))
            for i, turn in enumerate(trajectory.turns)
        )
        return super().render(trajectory.model_copy(update={"turns": turns}), agents)


def test_hooks_that_are_async_are_awaited_together() -> None:
    started: list[str] = []
    everybody = asyncio.Event()

    async def judge(trajectory: Trajectory, room: Any) -> Score:
        started.append(trajectory.turns[0].policy_version or "")
        if len(started) == 2:
            everybody.set()
        await everybody.wait()
        return Score("judge", float(len(started)), 1.0, "tool_caller")

    batch = [sampled_by("1", "1", "1"), sampled_by("2", "2", "2")]
    rows = rows_of(batch, rubric=Rubric([judge], timeout_s=20), agents={"tool_caller": TOOL_CALLS})
    assert [row.reward for row in rows] == [2, 2]


def test_group_hooks_see_the_members_that_count() -> None:
    seen: list[int] = []

    def ranked(trajectories: Sequence[Trajectory], room: Any) -> list[Score]:
        seen.append(len(trajectories))
        return [Score("rank", float(i), 1.0, "tool_caller") for i in range(len(trajectories))]

    rubric = Rubric([], group_hooks=[ranked])
    batch = [sampled_by("1", "1", "1"), sampled_by("9", "9", "9"), sampled_by("9", "9", "9")]
    rows = rows_of(batch, rubric=rubric, current_version=9, max_staleness=1)
    assert seen == [2]
    assert [row.reward for row in by_agent(rows, "tool_caller")] == [None, 0, 1]
    assert {str(row.excluded).partition(":")[0] for row in by_agent(rows, "replier")[1:]} == {
        "unscored"
    }


def test_without_an_estimator_advantages_are_left_to_the_trainer() -> None:
    rows = rows_of([two(1, 1), two(0, 0)], advantages=None)
    assert [row.reward for row in by_agent(rows, "replier")] == [1, 0]
    assert [row.advantage for row in rows] == [0.0] * 4


# --- mistakes -----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("options", "match"),
    [
        ({"advantages": "gigp"}, r"no advantages `gigp`.*Did you mean `gigpo`"),
        ({"advantages": "gdpo", "key": "global"}, "`key='global'` goes with a preset"),
        ({"key": "team"}, "`key` is 'team'; it is `agent` or `global`"),
        ({"flat": "drop"}, "`flat` is 'drop'; it is `keep` or `exclude`"),
        ({"mixed_versions": "keep"}, "`mixed_versions` is 'keep'"),
        ({"max_staleness": 1}, "go together"),
        ({"max_staleness": -1, "current_version": 1}, "`max_staleness` is -1; it is a number of"),
        ({"rubric": "multi"}, "`rubric` is 'multi'"),
        ({"advantages": lambda members: [1.0]}, "got advantages of 1 members; there are 2"),
        ({"advantages": lambda members: [[1.0]] * 2}, "got 1 advantages for the 2 trained turns"),
        ({"advantages": "gigpo"}, "a turn has no `state_key`"),
    ],
)
def test_a_mistake_of_the_caller_is_told(options: Mapping[str, Any], match: str) -> None:
    with pytest.raises(ValueError, match=match):
        rows_of([two(1, 1), two(0, 0)], **options)


@pytest.mark.parametrize(
    ("given", "match"),
    [
        ({"trajectories": two(1, 1)}, "got one trajectory; pass a list of them"),
        ({"trajectories": [[two(1, 1)]]}, "holds a `list`; give one flat list of trajectories"),
        ({"renderers": object()}, r"`renderers` is a `object`; give `ChatTemplateRenderer"),
        ({"renderers": None}, "`renderers` is a `NoneType`"),
        ({"agents": "replier"}, "`agents` is 'replier'; it maps the name of each agent"),
        ({"agents": {"replier": "reply"}}, "`agents` has 'reply' for `replier`; give a masker"),
        ({"rubric": lambda *_: 1.0}, "`rubric` returned 1.0; it returns `Rewards`"),
        ({"rubric": lambda *_: None}, "`rubric` returned None"),
    ],
)
def test_an_argument_of_another_kind_is_told(given: Mapping[str, Any], match: str) -> None:
    options = {"trajectories": [two(1, 1)] * 2, "renderers": Renderer(), "rubric": None, **given}
    with pytest.raises(TypeError, match=match):
        training_rows(**options)


def test_every_agent_needs_a_renderer_and_every_trajectory_rewards() -> None:
    with pytest.raises(ValueError, match=r"no renderer for agent `replier`.*Did you mean `repler`"):
        training_rows([two(1, 1)], {"tool_caller": Renderer(), "repler": Renderer()}, rubric=None)
    with pytest.raises(ValueError, match="trajectory 0 has no rewards; score it first"):
        rows_of([played(*B8)])


def test_scores_of_two_rubrics_are_not_compared() -> None:
    other = Rewards((Score("tool_use", 1.0, 0.5, "tool_caller"),))
    with pytest.raises(ValueError, match=r"score `tool_use` weighs \[0.5, 1.0\]"):
        rows_of([two(1, 1), played(*B8, rewards=other)])


def test_the_ids_of_one_host_are_of_one_tokenizer() -> None:
    host = played(called("host"), replied("host"), rewards=judged())
    with pytest.raises(ValueError, match="the ids of one tokenizer"):
        training_rows([host], {"tool_caller": Renderer(), "replier": Renderer()}, rubric=None)


# --- what always holds --------------------------------------------------------------------------

QUARTERS = st.integers(0, 4).map(lambda n: n / 4)


@st.composite
def members(draw: st.DrawFn) -> Trajectory:
    turns = [called() for _ in range(draw(st.integers(1, 2)))]
    if draw(st.integers(0, 3)):
        turns.append(replied())
        if draw(st.integers(0, 3)) == 0:
            turns += [called(), replied()]
    version = draw(st.sampled_from("899"))
    return played(
        *[replace(turn, policy_version=version) for turn in turns],
        rewards=judged(draw(QUARTERS | st.none()), draw(QUARTERS | st.none())),
        group=draw(st.sampled_from("ab")),
        status=draw(st.sampled_from([Status.OK, Status.OK, Status.OK, Status.ENV_ERROR])),
    )


BATCHES = st.lists(members(), min_size=1, max_size=8)
OPTIONS = st.sampled_from(
    [
        {"advantages": "verl"},
        {"advantages": "rloo", "flat": "exclude"},
        {"advantages": "reinforce_pp"},
        {"advantages": "gdpo"},
        {"advantages": "verl", "key": "global"},
        {"advantages": "drmas", "current_version": 9, "max_staleness": 0},
    ]
)
Fact = tuple[str, str | None, float | tuple[float, ...] | None]


def facts(rows: Sequence[TrainingRow]) -> Callable[[int], list[Any]]:
    made: dict[int, list[Any]] = {}
    for row in rows:
        known = None if row.advantage is None else near([row.advantage], 1e-9)
        made.setdefault(row.index, []).append((row.agent, row.excluded, known))
    return made.__getitem__


@settings(max_examples=60)
@given(BATCHES, OPTIONS)
def test_no_token_is_trained_twice_and_none_that_was_not_sampled(
    batch: list[Trajectory], options: Mapping[str, Any]
) -> None:
    rows = rows_of(batch, **options)
    for index, trajectory in enumerate(batch):
        own = [row for row in rows if row.index == index]
        assert [row.agent for row in own] == ["tool_caller", "replier"]
        masks = [row.loss_mask for row in own if row.sample is not None]
        (whole,) = Renderer().render(trajectory)
        longest = len(whole)
        padded = [[*mask, *[0] * (longest - len(mask))] for mask in masks]
        trained = np.sum(padded, axis=0) if padded else np.zeros(longest)
        assert trained.max() <= 1
        sampled = END_TO_END(whole).loss_mask
        assert (trained <= sampled).all()
        if len(masks) == 2:
            assert trained.tolist() == list(sampled)


@settings(max_examples=60)
@given(BATCHES, OPTIONS)
def test_excluded_rows_have_no_advantage_and_all_others_have_one(
    batch: list[Trajectory], options: Mapping[str, Any]
) -> None:
    for row in rows_of(batch, **options):
        assert (row.excluded is None) == (row.advantage is not None)
        if isinstance(row.advantage, float):
            assert math.isfinite(row.advantage)


@settings(max_examples=60)
@given(st.data(), BATCHES, OPTIONS)
def test_the_order_of_trajectories_is_that_of_the_rows_alone(
    data: st.DataObject, batch: list[Trajectory], options: Mapping[str, Any]
) -> None:
    order = data.draw(st.permutations(range(len(batch))))
    rows = facts(rows_of(batch, **options))
    moved = rows_of([batch[i] for i in order], **options)
    for at, i in enumerate(order):
        got = [
            (row.agent, row.excluded, None if row.advantage is None else [row.advantage])
            for row in moved
            if row.index == at
        ]
        assert got == rows(i)


@settings(max_examples=80)
@given(BATCHES, OPTIONS)
def test_what_is_excluded_changes_nothing_for_the_others(
    batch: list[Trajectory], options: Mapping[str, Any]
) -> None:
    rows = rows_of(batch, **options)
    kept = sorted({row.index for row in rows if row.excluded is None})
    alone = rows_of([batch[i] for i in kept], **options)
    for row in rows:
        if row.excluded is None:
            at = kept.index(row.index)
            (same,) = [one for one in alone if (one.index, one.agent) == (at, row.agent)]
            assert row.advantage is not None
            assert [same.advantage] == near([row.advantage], 1e-9)
