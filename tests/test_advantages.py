"""Advantages. Numbers are FORMULAS.md B1, B3-B5 and B9, or worked out beside the test."""

from __future__ import annotations

import math
import pickle
from collections.abc import Sequence

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from livestream_env.advantages import (
    PRESETS,
    Preset,
    agent_advantages,
    at_grpo,
    credit_sign_error,
    discounted_returns,
    failure_bias,
    gdpo,
    gigpo,
    group_advantages,
    is_flat,
    length_adjusted,
    mt_grpo,
    normalize_then_sum,
    rae,
    sum_then_normalize,
    to_step_rewards,
    zero_variance,
)
from livestream_env.errors import EmptyMaskError

GROUP = [1, 0, 0.5, 0.5]
RULE, TOOL = np.array([1, 1, 0, 1]), np.array([1, 0.5, 0, 0.5])
CORRECT, HELPFUL = np.array([0, 1, 1, 0]), np.array([0, 0.5, 1, 0])
TOOL_STREAM = RULE / 2 + TOOL / 2
REPLY_STREAM = CORRECT / 2 + HELPFUL / 2
MIXED = (RULE + TOOL + CORRECT + HELPFUL) / 4
A_TOOL = [0.8660234, 0.2886745, -1.4433724, 0.2886745]
A_REPLY = [-0.8488730, 0.6063379, 1.0914083, -0.8488730]
A_MIXED = [-0.1986786, 1.3907501, -0.1986786, -0.9933929]
ALL_PRESETS = pytest.mark.parametrize("preset", PRESETS)


def near(values: Sequence[float]) -> object:
    return pytest.approx(values, abs=1e-6, nan_ok=True)


@pytest.mark.row("R33")
@pytest.mark.parametrize(
    ("preset", "expected"),
    [
        *((name, [1.2247418, -1.2247418, 0, 0]) for name in ("verl", "drmas", "slime", "roll")),
        ("trl", [1.2244450, -1.2244450, 0, 0]),
        ("openrlhf", [1.2247448, -1.2247448, 0, 0]),
        ("rllm", [1.4142095, -1.4142095, 0, 0]),
        *((name, [0.5, -0.5, 0, 0]) for name in ("dr_grpo", "prime_rl", "roll_mean")),
        ("rloo", [0.6666667, -0.6666667, 0, 0]),
        ("maxrl", [1, -1, 0, 0]),
        ("grpo_passk", [0.5 / (0.4082483 + 1e-6), 0, 0, 0]),
        ("passk", [0.5, 0, 0, 0]),
        # centred .5, -.5, 0, 0: variance .5 / 3
        ("reinforce_pp", [math.sqrt(1.5), -math.sqrt(1.5), 0, 0]),
    ],
)
def test_each_preset_gives_its_trainers_numbers(preset, expected):
    assert group_advantages(GROUP, preset) == near(expected)


def test_every_preset_names_its_trainer_and_source():
    assert all(rule.trainer and rule.source for rule in PRESETS.values())
    assert pickle.loads(pickle.dumps(PRESETS)) == PRESETS


def test_a_binary_group_gives_the_worked_numbers():
    assert group_advantages([1, 0, 0, 0]) == near([1.499997, -0.499999, -0.499999, -0.499999])


def test_a_preset_of_ones_own_is_taken():
    own = Preset("mine", "here", ddof=0, epsilon=0)
    assert group_advantages([1, 0], own) == near([1, -1])


def test_whitening_counts_tokens():
    # centred .5, -.5, 0, 0 over 2 + 2 + 1 + 1 tokens: variance (2 * .25 + 2 * .25) / 5 = .2
    result = group_advantages(GROUP, "reinforce_pp", lengths=[2, 2, 1, 1])
    assert result == near([0.5 / math.sqrt(0.2), -0.5 / math.sqrt(0.2), 0, 0])


def test_whitening_leaves_the_excluded_out():
    # the mean of 1 and 0 is taken away, and their variance is .5
    result = group_advantages([1, 0, None], "reinforce_pp", lengths=[3, 3, 50])
    assert result == near([0.5 / math.sqrt(0.3), -0.5 / math.sqrt(0.3), math.nan])


@ALL_PRESETS
@pytest.mark.parametrize(
    "rewards",
    [
        [0.7] * 4,
        [0.35] * 8,
        [0.1] * 7 + [0.3 - 0.2],
        [1e6] * 3 + [1e6 + 0.1],
        [0.0] * 4,
        [-2.0] * 3,
    ],
    ids=["0.7", "0.35", "float-noise", "relative-noise", "zero", "negative"],
)
def test_equal_rewards_have_no_advantage(preset, rewards):
    assert group_advantages(rewards, preset) == near([0] * len(rewards))


def test_equal_rewards_are_not_blown_up_beside_one_that_differs():
    # 7 x .35 and .95: mean .425, std .6 / sqrt(8) = .2121320
    assert group_advantages([0.35] * 7 + [0.95]) == near([-0.3535517] * 7 + [2.4748621])


HUGE = [
    # the formulas of B1, in which what is added to the deviation vanishes beside it
    *((name, [1.2247449, -1.2247449, 0, 0]) for name in ("verl", "drmas", "slime", "roll")),
    *((name, [1.2247449, -1.2247449, 0, 0]) for name in ("trl", "openrlhf", "reinforce_pp")),
    ("rllm", [1.4142136, -1.4142136, 0, 0]),
    ("maxrl", [1, -1, 0, 0]),
    ("grpo_passk", [1.2247449, 0, 0, 0]),
]
HUGE_TIMES_SCALE = [
    *((name, [0.5, -0.5, 0, 0]) for name in ("dr_grpo", "prime_rl", "roll_mean")),
    ("rloo", [0.6666667, -0.6666667, 0, 0]),
    ("passk", [0.5, 0, 0, 0]),
]


@pytest.mark.row("R33")
@pytest.mark.parametrize("scale", [1e150, 1e154, 1e200, 1.5e308])
def test_huge_rewards_have_the_advantages_of_their_formulas(scale):
    assert {name for name, _ in HUGE + HUGE_TIMES_SCALE} == set(PRESETS)
    rewards = np.array(GROUP) * scale
    for preset, expected in HUGE:
        assert group_advantages(rewards, preset) == near(expected), preset
    for preset, expected in HUGE_TIMES_SCALE:
        assert group_advantages(rewards, preset) / scale == near(expected), preset
    assert not is_flat(rewards).any()
    assert is_flat([scale] * 4).all()
    assert agent_advantages({"a": rewards}, preset="trl")["a"] == near(HUGE[0][1])
    assert agent_advantages({"a": rewards}, key="global")["a"] == near(HUGE[0][1])
    assert normalize_then_sum({"a": rewards}, whitens=False) == near(HUGE[0][1])


def test_a_huge_group_leaves_the_others_as_they_are():
    rewards, groups = [*(np.array(GROUP) * 1e200), *GROUP], ["a"] * 4 + ["b"] * 4
    assert group_advantages(rewards, groups=groups)[4:] == near([1.2247418, -1.2247418, 0, 0])
    assert (
        is_flat([1e308, -1e308, 0.7, 0.7], ["a", "a", "b", "b"]).tolist()
        == [False] * 2 + [True] * 2
    )


def test_rewards_at_both_ends_of_what_a_float_holds():
    # over 1.7e308: mean -.5, so 1.5 and three times -.5; variance (2.25 + .75) / 3 = 1
    rewards = [1.7e308, *[-1.7e308] * 3]
    assert group_advantages(rewards) == near([1.5, -0.5, -0.5, -0.5])
    for preset in ("dr_grpo", "prime_rl", "roll_mean", "rloo", "passk", "reinforce_pp"):
        with pytest.raises(ValueError, match="scale them down"):
            group_advantages(rewards, preset)
    assert group_advantages([5e-324, 0, 1e-310]) == near([0, 0, 0])


A_LOT = {"a": [1e308, 1e308, 0], "b": [1e308, -1e308, 0]}


@pytest.mark.parametrize(
    "asked",
    [
        pytest.param(lambda: sum_then_normalize(A_LOT), id="sum"),
        pytest.param(
            lambda: sum_then_normalize(A_LOT, weights={"a": 10, "b": -10}), id="weighed sum"
        ),
        pytest.param(lambda: agent_advantages(A_LOT, key="global"), id="mean of agents"),
        pytest.param(lambda: discounted_returns([1e308, 1e308], 1), id="returns"),
        pytest.param(lambda: gigpo([[1e308, 1e308], [0, 0]], [["s", "t"]] * 2), id="gigpo"),
        pytest.param(lambda: gigpo([[1.7e308], [-1.7e308]], [["s"]] * 2), id="steps"),
        pytest.param(lambda: mt_grpo([1e308, 0], [1e308, 0]), id="mt_grpo"),
        pytest.param(lambda: at_grpo([1e308] * 2, [1e308] * 2, "gg", "aa", [0, 0]), id="at_grpo"),
        pytest.param(lambda: rae([1.7e308], ["a"], baselines={"a": -1.7e308}), id="rae"),
        pytest.param(
            lambda: length_adjusted([1e308, 1e308], {"x": [1, 2]}, weights={"x": -4}), id="costs"
        ),
    ],
)
def test_what_a_float_cannot_hold_raises_and_is_never_missing(asked):
    with pytest.raises(ValueError, match=r"scale them down|give a finite number"):
        asked()


@pytest.mark.parametrize("wrong", [math.nan, math.inf])
def test_factors_that_are_no_numbers_are_refused(wrong):
    for asked in (
        lambda: sum_then_normalize({"a": [1, 0]}, weights={"a": wrong}),
        lambda: length_adjusted([1, 0], {"a": [1, 0]}, weights={"a": wrong}),
        lambda: discounted_returns([1, 0], wrong),
        lambda: gigpo([[1], [0]], [["s"], ["s"]], gamma=wrong),
        lambda: gigpo([[1], [0]], [["s"], ["s"]], weight=wrong),
        lambda: mt_grpo([1, 0], [1, 0], coefficient=wrong),
        lambda: at_grpo([1, 0], [1, 0], "gg", "aa", [0, 0], alpha=wrong),
        lambda: rae([1], ["a"], decay=wrong),
        lambda: rae([1], ["a"], baselines={"a": wrong}),
    ):
        with pytest.raises(ValueError, match="give a finite number"):
            asked()


def test_nothing_is_whitened_over_no_token():
    with pytest.raises(EmptyMaskError, match="no token is trained"):
        group_advantages(GROUP, "reinforce_pp", lengths=[0] * 4)
    with pytest.raises(EmptyMaskError, match="no token is trained"):
        gdpo({"a": GROUP}, lengths=[0] * 4)
    with pytest.raises(ValueError, match="`lengths` holds -1"):
        group_advantages(GROUP, "reinforce_pp", lengths=[2, -1, 1, 1])
    missing = group_advantages([None, None], "reinforce_pp", lengths=[0, 0])
    assert missing == near([math.nan, math.nan])
    # .5 and -.5 over one token each: mean 0, variance (.25 + .25) / 1
    assert group_advantages([1, 0, 0.5, 0.5], "reinforce_pp", lengths=[1, 1, 0, 0]) == near(
        [0.5 / math.sqrt(0.5), -0.5 / math.sqrt(0.5), 0, 0]
    )


def test_signs_are_compared_whatever_the_size():
    assert credit_sign_error([1e-200, 1e200], {"a": [-1e-200, 1e200]}) == 0.5


@pytest.mark.parametrize(
    ("preset", "expected"),
    [
        *((name, 0.7) for name in ("verl", "drmas", "rllm", "dr_grpo", "rloo")),
        *((name, 0) for name in ("roll", "roll_mean", "prime_rl", "trl", "openrlhf", "slime")),
        *((name, 0) for name in ("maxrl", "grpo_passk", "passk")),
    ],
)
def test_a_group_of_one_follows_its_presets_rule(preset, expected):
    assert group_advantages([0.7], preset) == near([expected])
    assert group_advantages([0.7, 1, 0], preset, groups=["a", "b", "b"])[0] == near(expected)


def test_a_group_of_one_keeps_its_reward_until_all_are_whitened():
    # .7, .5 and -.5: mean .7 / 3, sample variance .4133333
    result = group_advantages([0.7, 1, 0], "reinforce_pp", groups=["a", "b", "b"])
    assert result == near((np.array([0.7, 0.5, -0.5]) - 0.7 / 3) / math.sqrt(0.4133333))


@pytest.mark.parametrize("failure", [None, math.nan])
def test_a_failed_rollout_is_excluded_and_not_counted_as_zero(failure):
    assert group_advantages([1, 0, 0.5, failure]) == near([0.999998, -0.999998, 0, math.nan])
    assert group_advantages([1, 0, 0.5, 0]) == pytest.approx(
        [1.30558, -0.78335, 0.26112, -0.78335], abs=5e-6
    )


@ALL_PRESETS
@pytest.mark.parametrize("failures", [7, 8])
def test_a_group_that_exclusion_left_with_less_than_two_is_dropped(preset, failures):
    rewards = [0.5] * (8 - failures) + [None] * failures
    assert np.isnan(group_advantages(rewards, preset)).all()


@ALL_PRESETS
def test_a_dropped_group_leaves_the_others_alone(preset):
    result = group_advantages([1, 9, 0, None], preset, groups=["a", "b", "a", "b"])
    assert np.isnan(result).tolist() == [False, True, False, True]
    assert result[[0, 2]] == near(group_advantages([1, 0], preset))


def test_no_rewards_have_no_advantages():
    assert group_advantages([]).shape == (0,)
    assert is_flat([]).shape == (0,)


@pytest.mark.parametrize("reward", [math.inf, -math.inf])
def test_an_infinite_reward_is_refused(reward):
    with pytest.raises(ValueError, match=r"`rewards` holds -?inf in row 1.*or None"):
        group_advantages([0, reward])


def test_an_unknown_preset_is_refused_with_the_nearest_name():
    with pytest.raises(ValueError, match=r"no advantage preset `dr_gpro`.*Did you mean `dr_grpo`"):
        group_advantages(GROUP, "dr_gpro")


def test_arguments_of_other_lengths_are_refused():
    with pytest.raises(ValueError, match="`groups` has 1 entries for 4 rows"):
        group_advantages(GROUP, groups=["a"])
    with pytest.raises(ValueError, match="`lengths` has 1 entries for 4 rows"):
        group_advantages(GROUP, "reinforce_pp", lengths=[1])
    with pytest.raises(ValueError, match=r"shape \(1, 4\)"):
        group_advantages(np.array([GROUP]))


def test_roll_gives_nothing_for_a_deviation_below_its_threshold():
    rewards = [0, 1.1e-6]  # a deviation of .78e-6
    assert group_advantages(rewards, "roll") == near([0, 0])
    assert abs(group_advantages(rewards, "verl")[0]) > 0.1


def test_maxrl_gives_nothing_where_nothing_was_right():
    assert group_advantages([-1, 0, 0], "maxrl") == near([0, 0, 0])


def test_pass_at_k_gives_nothing_for_a_tie():
    assert group_advantages([1, 1, 0], "grpo_passk") == near([0, 0, 0])


def test_pass_at_k_finds_the_best_of_each_group():
    result = group_advantages([0, 3, 1, 5, 4], "passk", groups=["a", "b", "a", "b", "b"])
    assert result == near([0, 0, 1, 1, 0])


EIGHTHS = st.integers(-40, 40).map(lambda n: n / 8)
REWARDS = st.lists(EIGHTHS, min_size=2, max_size=8)
NAMES = st.sampled_from(sorted(PRESETS))


@given(REWARDS, EIGHTHS, NAMES.filter(lambda name: PRESETS[name].divisor != "mean"))
def test_a_shift_of_all_rewards_changes_nothing(rewards, shift, preset):
    shifted = group_advantages(np.array(rewards) + shift, preset)
    assert shifted == pytest.approx(group_advantages(rewards, preset), abs=1e-9)


@given(REWARDS, st.sampled_from([0.5, 2, 3, 10]), NAMES)
def test_a_scale_of_all_rewards_changes_nothing_or_scales_all(rewards, scale, preset):
    rule = PRESETS[preset]
    factor = 1 if rule.whitens or rule.divisor in ("std", "mean") else scale
    scaled = group_advantages(np.array(rewards) * scale, preset)
    expected = factor * group_advantages(rewards, preset)
    assert scaled == pytest.approx(expected, rel=1e-2, abs=1e-9)


@given(st.data(), NAMES)
def test_the_order_of_rows_does_not_matter(data, preset):
    rewards = data.draw(REWARDS)
    groups = data.draw(
        st.lists(st.sampled_from("abc"), min_size=len(rewards), max_size=len(rewards))
    )
    order = data.draw(st.permutations(range(len(rewards))))
    result = group_advantages(rewards, preset, groups=groups)
    moved = group_advantages([rewards[i] for i in order], preset, groups=[groups[i] for i in order])
    assert moved == pytest.approx(result[list(order)], abs=1e-9)


@given(REWARDS, st.integers(0, 8), NAMES)
def test_excluding_a_row_is_leaving_it_out(rewards, place, preset):
    with_failure = [*rewards[:place], None, *rewards[place:]]
    result = group_advantages(with_failure, preset)
    kept = ~np.isnan(result)
    assert kept.tolist() == [reward is not None for reward in with_failure]
    assert result[kept] == pytest.approx(group_advantages(rewards, preset), abs=1e-12)


@given(st.lists(st.lists(EIGHTHS | st.none(), min_size=1, max_size=5), max_size=5), NAMES)
def test_many_groups_at_once_are_one_by_one(groups, preset):
    if PRESETS[preset].whitens:
        return
    rows = [(number, reward) for number, group in enumerate(groups) for reward in group]
    rows = [row for i in range(5) for row in rows[i::5]]
    result = group_advantages([reward for _, reward in rows], preset, groups=[n for n, _ in rows])
    for number in range(len(groups)):
        mine = [i for i, row in enumerate(rows) if row[0] == number]
        alone = group_advantages([rows[i][1] for i in mine], preset)
        assert result[mine] == pytest.approx(alone, abs=1e-12, nan_ok=True)


@given(REWARDS, NAMES)
def test_what_was_given_is_left_as_it_was(rewards, preset):
    array = np.array(rewards)
    group_advantages(array, preset)
    assert array.tolist() == rewards


def test_flat_groups_are_those_without_two_different_rewards():
    rewards = [0.35, 0.35, 1, 0, None, 1, None]
    assert is_flat(rewards, list("aabbbcd")).tolist() == [*[True] * 2, *[False] * 3, True, True]


def test_a_long_rollout_costs_beside_the_longest_of_its_group():
    # .5 * .2 * (1, .5, .5, 1) less than 1, 0, .5, .5
    costs = {"output": [100, 50, 50, 100]}
    adjusted = length_adjusted(GROUP, costs, weights={"output": 0.2})
    assert adjusted == near([0.9, -0.05, 0.45, 0.4])
    assert group_advantages(adjusted, "prime_rl") == near([0.475, -0.475, 0.025, -0.025])


def test_the_costs_of_the_excluded_do_not_count():
    adjusted = length_adjusted(
        [1, None, 1, 0],
        {"output": [10, 1000, 5, 5], "turns": [0, 9, 0, 0]},
        weights={"output": 0.5, "turns": 0.5},
        groups=["a", "a", "a", "b"],
    )
    assert adjusted == near([0.5, math.nan, 0.75, 0])


def test_a_cost_without_a_weight_is_refused_with_the_nearest_name():
    with pytest.raises(ValueError, match=r"`output` has no weight; give both.*`outputs`"):
        length_adjusted(GROUP, {"output": GROUP}, weights={"outputs": 1})


@pytest.mark.row("R53", "R47")
def test_separate_streams_give_each_agent_its_worked_numbers():
    both = agent_advantages({"tool_caller": TOOL_STREAM, "replier": REPLY_STREAM})
    assert both["tool_caller"] == near(A_TOOL)
    assert both["replier"] == near(A_REPLY)
    assert group_advantages(MIXED) == near(A_MIXED)


@pytest.mark.row("R33", "R53")
def test_mixed_rewards_push_three_of_eight_the_wrong_way():
    mixed = group_advantages(MIXED)
    both = agent_advantages({"tool_caller": TOOL_STREAM, "replier": REPLY_STREAM})
    assert credit_sign_error(mixed, both) == 0.375
    assert mixed[0] < 0 < both["tool_caller"][0]  # perfect calls pushed down
    assert mixed[3] < 0 < both["tool_caller"][3]
    assert mixed[2] < 0 < both["replier"][2]  # a perfect reply pushed down


def test_the_sign_error_leaves_missing_pairs_out():
    assert credit_sign_error([1, -1, None], {"a": [-1, -1, 1], "b": [1, None, 1]}) == 1 / 3
    assert math.isnan(credit_sign_error([None], {"a": [1]}))


@pytest.mark.row("R53")
def test_dr_mas_compares_each_agent_with_itself():
    rewards = {"T": [1, 0], "R": [0.2, 0.8]}
    own = agent_advantages(rewards, ["u", "u"], preset="drmas")
    assert own["T"] == near([0.7071057, -0.7071057])
    assert own["R"] == near([-0.7071051, 0.7071051])
    shared = agent_advantages(rewards, ["u", "u"], preset="drmas", key="global")
    for agent in rewards:
        assert shared[agent] == pytest.approx([0.70710, -0.70710], abs=5e-6)


def test_a_flat_agent_does_not_touch_the_other():
    both = agent_advantages({"tool_caller": [0.5] * 4, "replier": REPLY_STREAM})
    assert both["tool_caller"] == near([0] * 4)
    assert both["replier"] == near(A_REPLY)


def test_a_failed_judge_of_one_agent_leaves_the_other_its_row():
    rewards = {"tool_caller": [1, 0, 0.5], "replier": [1, None, 0]}
    own = agent_advantages(rewards)
    assert own["tool_caller"] == near([0.999998, -0.999998, 0])
    assert np.isnan(own["replier"]).tolist() == [False, True, False]
    shared = agent_advantages(rewards, key="global")
    assert np.isnan(shared["tool_caller"]).tolist() == [False, True, False]


def test_agents_of_different_lengths_or_none_are_refused():
    with pytest.raises(ValueError, match="`b` has 1 entries for 2 rows"):
        agent_advantages({"a": [0, 1], "b": [0]})
    with pytest.raises(ValueError, match="no rewards were given"):
        agent_advantages({})
    with pytest.raises(ValueError, match="no advantage key `team`"):
        agent_advantages({"a": [0, 1]}, key="team")


@pytest.mark.row("R57")
def test_two_agents_on_shared_weights_learn_what_step_rewards_teach():
    turns = [["tool_caller", "tool_caller", "replier"], ["tool_caller", "replier"]]
    turns += [["tool_caller", "replier", "replier"], ["replier"]]
    tokens = [np.arange(len(row)) * (i + 1) % 5 for i, row in enumerate(turns)]
    logits = np.array([0.3, -1.0, 0.2, 0.0, 1.1])
    policy = np.exp(logits) / np.exp(logits).sum()

    def learn(gradient: np.ndarray, advantage: float, token: int) -> None:
        gradient += advantage * (np.eye(5)[token] - policy)

    both = agent_advantages({"tool_caller": TOOL_STREAM, "replier": REPLY_STREAM})
    steps, two_agents = np.zeros(5), np.zeros(5)
    for i, per_turn in enumerate(to_step_rewards(both, turns)):
        for advantage, token in zip(per_turn, tokens[i], strict=True):
            learn(steps, advantage, token)
        for agent in both:  # a row for each agent, in which only its own turns are trained
            for taker, token in zip(turns[i], tokens[i], strict=True):
                if taker == agent:
                    learn(two_agents, both[agent][i], token)
    assert np.abs(two_agents - steps).max() == 0
    assert np.abs(steps).max() > 0.1


def test_a_turn_of_an_agent_without_values_is_refused():
    with pytest.raises(ValueError, match=r"no values of agent `repler`.*Did you mean `replier`"):
        to_step_rewards({"replier": [1]}, [["repler"]])


def test_a_sum_hides_the_scale_that_normalizing_first_keeps():
    one, two = {"a": [0, 1], "c": [0, 0]}, {"a": [0, 1], "c": [0, 1]}
    for rewards in (one, two):
        assert sum_then_normalize(rewards, preset="verl") == pytest.approx(
            [-0.7071, 0.7071], abs=5e-5
        )
    kept = [normalize_then_sum(r, preset="verl", whitens=False) for r in (one, two)]
    assert kept[0] == pytest.approx([-0.7071, 0.7071], abs=5e-5)
    assert kept[1] == pytest.approx([-1.4142, 1.4142], abs=5e-5)


def test_both_aggregations_give_the_numbers_of_trl():
    rewards = {"a": [1, 1, 1, 0], "c": [0, 1, 0, 0]}
    summed = normalize_then_sum(rewards, whitens=False)
    assert summed == pytest.approx([0, 1.9996, 0, -1.9996], abs=5e-5)
    assert normalize_then_sum(rewards) == pytest.approx([0, 1.22467, 0, -1.22467], abs=5e-6)
    assert sum_then_normalize(rewards) == pytest.approx([0, 1.22459, 0, -1.22459], abs=5e-6)


def test_gdpo_whitens_over_tokens():
    # before whitening 0, 2, 0, -2 but for the 1e-6; variance 8 / 3 a row, and with 4 tokens each
    # for the rows that count 32 / 15
    rewards = {"a": [1, 1, 1, 0], "c": [0, 1, 0, 0]}
    assert gdpo(rewards) == near([0, math.sqrt(1.5), 0, -math.sqrt(1.5)])
    by_tokens = gdpo(rewards, lengths=[4, 4, 4, 4])
    assert by_tokens == near([0, 2 / math.sqrt(32 / 15), 0, -2 / math.sqrt(32 / 15)])


def test_weights_count_in_both_aggregations():
    rewards, weights = {"a": [1, 0], "c": [0, 1]}, {"a": 3, "c": 1}
    assert sum_then_normalize(rewards, weights=weights, preset="prime_rl") == near([1, -1])
    assert normalize_then_sum(rewards, weights=weights, preset="prime_rl", whitens=False) == near(
        [1, -1]
    )


def test_a_row_without_one_reward_has_no_sum_but_keeps_its_other_comparisons():
    rewards = {"a": [1, 0, 0.5, None], "c": [1, None, 0, None]}
    assert np.isnan(sum_then_normalize(rewards)).tolist() == [False, True, False, True]
    result = normalize_then_sum(rewards, preset="prime_rl", whitens=False)
    assert result == near([1, -0.5, -0.5, math.nan])


STEP_REWARDS = [[0, 0, 1], [0, 0, 0], [0, 1], [0, 0, 0, 0.5]]
ANCHORS = [["s0", "s1", "A2"], ["s0", "s1", "B2"], ["s0", "s2"], ["s0", "s2", "D2", "D3"]]


@pytest.mark.row("R57")
def test_gigpo_gives_the_worked_numbers_with_the_mean():
    a, b, c, d = gigpo(STEP_REWARDS, ANCHORS)
    assert a == near([0.7072031, 0.85, 0.375])
    assert b == near([-1.1952969, -1.1, -0.625])
    assert c == near([0.7547031, 0.649375])
    assert d == near([-0.2666094, -0.399375, -0.125, -0.125])


def test_gigpo_gives_the_worked_numbers_with_the_deviation():
    a, b, c, d = gigpo(STEP_REWARDS, ANCHORS, mode="mean_std")
    e = [0.7833475, -1.3055797, 0.7833475, -0.2611159]
    assert a == near([e[0] + 0.7429353, e[0] + 0.7071057, e[0]])
    assert b == near([e[1] - 1.2754056, e[1] - 0.7071057, e[1]])
    assert c == near([e[2] + 0.8491638, e[2] + 0.707105])
    assert d == near([e[3] - 0.3166938, e[3] - 0.707105, e[3], e[3]])


def test_gigpo_without_the_step_part_is_the_episode():
    for row, episode in zip(
        gigpo(STEP_REWARDS, ANCHORS, weight=0), [0.375, -0.625, 0.375, -0.125], strict=True
    ):
        assert row == near([episode] * len(row))


def test_step_returns_are_discounted():
    assert discounted_returns([0, 0, 1], 0.95) == near([0.9025, 0.95, 1])
    assert discounted_returns([0, 0, 0, 0.5], 0.95) == near([0.4286875, 0.45125, 0.475, 0.5])
    assert discounted_returns([], 0.95).shape == (0,)


def test_gigpo_leaves_out_a_trajectory_without_steps():
    first, second, none = gigpo([[1.0], [0.0], []], [["a"], ["a"], []])
    alone = gigpo([[1.0], [0.0]], [["a"], ["a"]])
    assert (first.tolist(), second.tolist()) == tuple(one.tolist() for one in alone)
    assert none.size == 0


def test_gigpo_keeps_groups_apart():
    twice = gigpo(STEP_REWARDS * 2, ANCHORS * 2, ["x"] * 4 + ["y"] * 4)
    once = gigpo(STEP_REWARDS, ANCHORS)
    for row, expected in zip(twice, once + once, strict=True):
        assert row == near(expected)


def test_gigpo_excludes_a_trajectory_with_a_missing_reward():
    result = gigpo([*STEP_REWARDS, [0, None]], [*ANCHORS, ["s0", "s1"]])
    for row, expected in zip(result[:4], gigpo(STEP_REWARDS, ANCHORS), strict=True):
        assert row == near(expected)
    assert np.isnan(result[4]).all()


def test_gigpo_gives_one_trajectory_alone_its_reward():
    for mode in ("mean", "mean_std"):
        assert gigpo([[0, 1]], [["s", "s2"]], mode=mode)[0] == near([1, 1])


def test_gigpo_takes_empty_trajectories_and_none():
    assert gigpo([], []) == []
    lengths = [len(row) for row in gigpo([[], [1.0], [0.0]], [[], ["s"], ["s"]])]
    assert lengths == [0, 1, 1]


def test_agents_of_one_environment_step_share_its_return():
    shared = gigpo(
        [[0, 0, 1, 1], [0, 0, 0, 0]],
        [["p", "q", "r", "t"], ["p", "q", "r", "t"]],
        steps=[[0, 0, 1, 1], [0, 0, 1, 1]],
    )
    # episodes 1 and 0, returns .95 and 1
    assert shared[0] == near([0.5 + 0.475, 0.5 + 0.475, 1, 1])
    assert shared[1] == near([-0.975, -0.975, -1, -1])


def test_similar_anchors_count_as_one_state():
    long = "库存12件，券后价59.9元，三号链接，拍下48小时内发货，七天无理由"
    rewards, anchors = [[1.0], [0.0]], [[long], [long.replace("12", "11")]]
    assert gigpo(rewards, anchors)[0] == near([0.5])
    assert gigpo(rewards, anchors, similarity=0.95)[0] == near([1])
    assert gigpo(rewards, anchors, groups=["x", "y"], similarity=0.95)[0] == near([1])
    assert gigpo([[1.0], [0.0]], [["a"], ["b"]], similarity=0.95)[0] == near([0.5])
    assert np.isnan(gigpo([[1.0], [None]], anchors, similarity=0.95)[1]).all()


def test_gigpo_refuses_what_does_not_fit():
    with pytest.raises(ValueError, match="no GiGPO mode `std`"):
        gigpo([[1]], [["s"]], mode="std")
    with pytest.raises(ValueError, match=r"`anchors\[0\]` has 2 entries for 1 rows"):
        gigpo([[1]], [["s", "t"]])
    with pytest.raises(ValueError, match=r"`steps\[0\]` has 2 entries for 1 rows"):
        gigpo([[1]], [["s"]], steps=[[0, 1]])
    with pytest.raises(ValueError, match="similar anchors are texts, not `int`"):
        gigpo([[1]], [[7]], similarity=0.95)


def test_mt_grpo_adds_the_turn_before_the_result():
    before, after = mt_grpo(TOOL_STREAM, REPLY_STREAM)
    assert before == near([0.0171504, 0.8950124, -0.3519641, -0.5601985])
    assert after == near(A_REPLY)


def test_the_atropos_form_halves_the_outcome():
    before, after = mt_grpo(TOOL_STREAM, REPLY_STREAM, form="atropos")
    assert before == near([0.4415869, 0.5918435, -0.8976683, -0.1357620])
    assert after == near(A_REPLY)


def test_the_cae_form_normalizes_the_discounted_sum():
    before, after = mt_grpo(TOOL_STREAM, REPLY_STREAM, form="cae", coefficient=0.5)
    assert before == near(group_advantages(TOOL_STREAM + 0.5 * REPLY_STREAM))
    assert after == near(A_REPLY)


@pytest.mark.parametrize("form", ["aae", "atropos"])
def test_a_row_without_a_tool_result_gets_the_added_rewards(form):
    shown = [True, True, False, True]
    before, after = mt_grpo(TOOL_STREAM, REPLY_STREAM, form=form, has_result=shown)
    # the sum of both streams is twice the mixed stream: the same advantage but for the 1e-6
    assert [before[2], after[2]] == pytest.approx([A_MIXED[2]] * 2, abs=1e-6)
    assert after[[0, 1, 3]] == near([A_REPLY[i] for i in (0, 1, 3)])


def test_an_unknown_form_of_mt_grpo_is_refused():
    with pytest.raises(ValueError, match="no MT-GRPO form `mean`"):
        mt_grpo(GROUP, GROUP, form="mean")


def test_at_grpo_compares_candidates_of_one_agent_and_turn():
    result = at_grpo(
        local=[1, 0, 0.4, 0.2, 0.7],
        team=[0, 1, 1, 1, 1],
        groups=["g"] * 5,
        agents=["T", "T", "T", "T", "R"],
        turns=[0, 0, 1, 1, 1],
        alpha=0.5,
        preset="prime_rl",
    )
    # local + team / 2 is 1, .5 | .9, .7 | 1.2
    assert result == near([0.25, -0.25, 0.1, -0.1, 0])


def test_rae_compares_with_the_average_before_it_moves():
    advantages, averages = rae([1, 0, 1], ["a", "a", "a"], decay=0.9)
    assert advantages == near([1, -0.1, 0.91])
    assert averages == {"a": near(0.181)}


def test_rae_keeps_agents_apart_and_goes_on_with_the_next_batch():
    advantages, averages = rae([1, 1, None], ["a", "b", "a"], decay=0.9)
    assert advantages == near([1, 1, math.nan])
    further, _ = rae([0, 1], ["a", "a"], decay=0.9, baselines=averages)
    assert further == near([-0.1, 0.91])
    assert averages == {"a": near(0.1), "b": near(0.1)}


def test_maporl_discounts_the_scores_of_later_turns():
    assert discounted_returns([0.2, 0.5, 1], 0.3) == near([0.44, 0.8, 1])


@pytest.mark.row("R95")
def test_the_share_of_flat_groups_is_counted_for_each_agent():
    rewards = [1, 1, 0, 1, 0.5, 0.5, 1, None, 1, 0]
    agents = ["T", "T", "T", "T", "R", "R", "R", "R", "H", "I"]
    groups = ["a", "a", "b", "b", "a", "a", "b", "b", "a", "a"]
    shares = zero_variance(rewards, groups, agents)
    assert shares == {"T": 0.5, "R": 1.0, "H": near(math.nan), "I": near(math.nan)}


def test_failures_that_follow_the_turns_are_found():
    turns = [3] * 40 + [9] * 40
    failed = [i >= 65 for i in range(80)]
    with pytest.warns(RuntimeWarning, match="excluding failed episodes changes"):
        bias = failure_bias(failed, turns)
    assert bias.is_biased
    assert bias.correlation == pytest.approx(np.corrcoef(failed, turns)[0, 1])


def test_failures_without_a_pattern_are_left_alone():
    bias = failure_bias([i % 5 == 0 for i in range(100)], [i % 4 for i in range(100)])
    assert not bias.is_biased
    assert bias.correlation == pytest.approx(0, abs=1e-12)
    assert bias.p == 1


def test_the_p_value_of_a_small_sample_is_the_exact_one():
    # one failure among four, at an end: 2 of 4 places correlate as much
    bias = failure_bias([True, False, False, False], [0, 1, 2, 3])
    assert bias.p == pytest.approx(0.5, abs=0.04)


def test_the_bias_check_leaves_unknown_features_out():
    with_gap = failure_bias([True, True, False, False], [0, None, 2, 3])
    assert with_gap == failure_bias([True, False, False], [0, 2, 3])


@pytest.mark.parametrize(
    ("failed", "feature"),
    [([], []), ([False, False], [1, 2]), ([True, True], [1, 2]), ([True, False], [0.1, 0.1])],
    ids=["nothing", "no-failure", "all-failed", "constant"],
)
def test_what_never_varies_shows_no_bias(failed, feature):
    bias = failure_bias(failed, feature)
    assert math.isnan(bias.correlation)
    assert bias.p == 1
