"""Scores of turns by continuations: the toy whose values are known, and hooks that read them."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest
from rooms_for_tests import small_room
from test_env import Failing

import livestream_env as le
from livestream_env.process import monte_carlo_values, recorded_turns, with_scores
from livestream_env.rewards import Rubric
from livestream_env.sandbox import Sandbox
from livestream_env.types import Action, Message, Rewards, Score, ToolSpec

GOOD, BAD = (
    Action.call("get_reply_rule", intent="物流"),
    Action.call("get_reply_rule", intent="尺码"),
)
CHANCE = {"物流": 0.8, "尺码": 0.2}


class Toy:
    """Two states behind the start: the reply is right with chance .8 in one, .2 in the other."""

    def start(self, observation: Any, *, seed: Any) -> Toy:
        toy = Toy()
        toy.rng = np.random.default_rng(seed)
        return toy

    rng: np.random.Generator

    def act(self, messages: Sequence[Message], tools: Sequence[ToolSpec]) -> Action:
        calls = [call for message in messages for call in message.tool_calls]
        if not calls:
            return GOOD if self.rng.random() < 0.5 else BAD
        is_right = self.rng.random() < CHANCE[calls[0].arguments["intent"]]
        return Action.reply("好" if is_right else "不")


def outcome(trajectory: le.Trajectory, room: Any) -> Rewards:
    return Rewards((Score("right", float(trajectory.reply == "好")),))


def played(*actions: Action) -> le.LiveRoomEnv:
    env = le.LiveRoomEnv(small_room(), comment="c1", embedder="lexical", rubric=None)
    env.reset(seed=0)
    for action in actions:
        env.step(action)
    return env


@pytest.mark.row("R68")
@pytest.mark.parametrize(("first", "value"), [(GOOD, 0.8), (BAD, 0.2)])
def test_a_turn_is_worth_what_it_raises_the_chance_by(first: Action, value: float) -> None:
    env = played(first, Action.reply("好"))
    scores = monte_carlo_values(env, Toy(), 400, rubric=outcome)
    # V = .5, then .8 or .2, then 1; s.e. of 400: .025, .02 and 0
    assert [(s.turn, s.agent) for s in scores] == [(0, "host"), (1, "host")]
    assert scores[0].value == pytest.approx(value - 0.5, abs=3 * 0.032)
    assert scores[1].value == pytest.approx(1 - value, abs=3 * 0.02)
    errors = [float(score.reason.split("s.e. ")[1].split(",")[0]) for score in scores]
    assert errors == pytest.approx([0.032, 0.02], abs=0.002)


@pytest.mark.row("R68")
def test_the_scores_of_an_episode_sum_to_what_it_rose_by() -> None:
    scores = monte_carlo_values(played(GOOD, Action.reply("不")), Toy(), 16, rubric=outcome)
    start = float(scores[0].reason.split(" ")[0])
    assert sum(score.value or 0 for score in scores) == pytest.approx(0 - start, abs=1e-3)


def test_values_are_the_same_again_and_leave_the_episode_alone() -> None:
    env = played(GOOD)
    before = env.trajectory
    first = monte_carlo_values(env, Toy(), 4, rubric=outcome)
    assert first == monte_carlo_values(env, Toy(), 4, rubric=outcome)
    assert first != monte_carlo_values(env, Toy(), 4, rubric=outcome, seed=1)
    assert env.trajectory == before


class Alternating:
    """Right for every other seed."""

    def __init__(self, number: int = 0) -> None:
        self.number = number

    def start(self, observation: Any, *, seed: Any) -> Alternating:
        return Alternating(seed[1])

    def act(self, messages: Any, tools: Any) -> Action:
        return Action.reply("好" if self.number % 2 else "不")


def test_eight_continuations_of_an_even_chance_have_a_standard_error_of_177() -> None:
    env = played(GOOD, Action.reply("好"))
    score = monte_carlo_values(env, Alternating(), 8, rubric=outcome)[1]
    assert score.reason == "0.500 -> 1.000, s.e. 0.177, k = 8"  # FORMULAS B7


def test_a_hook_reads_the_scores_and_the_total_stays() -> None:
    env = played(GOOD, Action.reply("好"))
    scores = monte_carlo_values(env, Toy(), 4, rubric=outcome)
    kept = env.trajectory.model_copy(update={"rewards": Rewards((Score("right", 1.0),))})
    trajectory = with_scores(kept, scores)
    assert trajectory.reward == 1.0
    rubric = Rubric([recorded_turns], weights={})
    assert [(s.turn, s.value) for s in rubric(trajectory, None).scores] == [
        (s.turn, s.value) for s in scores
    ]
    assert len(with_scores(trajectory, scores).rewards.scores) == 3  # type: ignore[union-attr]
    assert recorded_turns(env.trajectory) == []


class FailingForks(Failing):
    def fork(self, at_call: int | None = None) -> Sandbox:
        return Failing(small_room(), calls=0)


def test_continuations_that_fail_are_no_zeros() -> None:
    env = le.LiveRoomEnv(small_room(), sandbox=FailingForks, rubric=None)
    env.reset(seed=0)
    env.step(GOOD)
    (score,) = monte_carlo_values(env, Toy(), 2, rubric=outcome)
    assert (score.value, score.cause) == (None, "judge_error")


def test_k_and_the_rubrics_name_are_checked() -> None:
    with pytest.raises(ValueError, match=re.escape("`k` is 0")):
        monte_carlo_values(played(GOOD), Toy(), 0, rubric=outcome)
    with pytest.raises(ValueError, match="single4"):
        monte_carlo_values(played(GOOD), Toy(), 1, rubric="single5")
