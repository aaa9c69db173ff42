"""Loss formulas; the numbers are FORMULAS.md B2."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from livestream_env.errors import EmptyMaskError
from livestream_env.losses import aggregate, clipped, gspo_ratio, kl, overlong, ratio

pytestmark = pytest.mark.row("R35")
LOSSES = [[1, 2, 3, 4], [2, 2, 9, 9]]
MASK = [[1, 1, 1, 1], [1, 1, 0, 0]]


@pytest.mark.parametrize(
    ("kind", "above", "below"),
    [("k1", 0.5, -0.5), ("k2", 0.125, 0.125), ("k3", 0.1065307, 0.1487213)],
)
def test_the_kl_estimators_give_the_worked_numbers(kind, above, below):
    assert kl(-1, -1.5, kind) == pytest.approx(above, abs=1e-6)
    assert kl(-1.5, -1, kind) == pytest.approx(below, abs=1e-6)


def test_the_kl_can_be_clamped():
    assert kl([-9, 0], [0, 0], limit=10).tolist() == [10, 0]


@given(st.floats(-5, 0), st.floats(-5, 0))
def test_k2_and_k3_are_never_negative(logprob, reference):
    assert kl(logprob, reference, "k2") >= 0
    assert kl(logprob, reference, "k3") >= -1e-12


def test_k3_has_the_expectation_of_k1():
    policy, reference = np.array([0.7, 0.2, 0.1]), np.array([0.5, 0.3, 0.2])
    exact = (policy * np.log(policy / reference)).sum()
    for kind in ("k1", "k3"):
        estimate = (policy * kl(np.log(policy), np.log(reference), kind)).sum()
        assert estimate == pytest.approx(exact)


def test_an_unknown_estimator_is_refused():
    with pytest.raises(ValueError, match="no KL estimator `k4`"):
        kl(0, 0, "k4")


@pytest.mark.parametrize(
    ("advantage", "rho", "high", "expected"),
    [
        (1, 1.25, 0.2, 1.2),
        (1, 1.25, 0.28, 1.25),
        (1, 1.3, 0.2, 1.2),
        (1, 1.3, 0.28, 1.28),
        (-1, 0.7, 0.2, -0.8),
        (-1, 1.5, 0.2, -1.5),
    ],
)
def test_the_clipped_objective_gives_the_worked_numbers(advantage, rho, high, expected):
    assert clipped(rho, advantage, high=high) == pytest.approx(expected, abs=1e-6)


def test_the_dual_clip_binds_only_above_it():
    assert clipped([1.5, 3.5], [-1, -1], dual=3).tolist() == [-1.5, -3]
    assert clipped([3.5], [1], dual=3).tolist() == [1.2]
    assert clipped([3.5], [-1]).tolist() == [-3.5]


def test_the_ratio_of_tokens_and_of_sequences():
    difference = np.array([0.1, -0.2, 0.3, 0])
    old = np.full(4, -1.0)
    assert ratio(old + difference, old) == pytest.approx([1.1052, 0.8187, 1.3499, 1], abs=5e-5)
    assert gspo_ratio(old + difference, old, np.ones(4)) == pytest.approx(1.0512711, abs=1e-6)


def test_the_ratio_of_a_sequence_counts_trained_tokens_alone():
    rows = gspo_ratio([[0.1, -0.2, 9], [9, 9, 9]], np.zeros((2, 3)), [[1, 1, 0], [0, 0, 0]])
    assert rows == pytest.approx([math.exp(-0.05), 1])


@pytest.mark.parametrize(
    ("how", "expected"),
    [
        ("token-mean", 2.3333333),
        ("seq-mean-token-mean", 2.25),
        ("seq-mean-token-sum", 7),
        ("dr-grpo", 1.75),
        ("seq-mean-token-sum-norm", 3.5),
    ],
)
def test_the_aggregations_give_the_worked_numbers(how, expected):
    assert aggregate(LOSSES, MASK, how) == pytest.approx(expected, abs=1e-6)
    # masked tokens beyond do not count, but the longest possible reply does
    wider = [[*row, 7] for row in LOSSES], [[*row, 0] for row in MASK]
    assert aggregate(*wider, how, max_length=4) == pytest.approx(expected, abs=1e-6)


@pytest.mark.parametrize("how", ["token-mean", "seq-mean-token-mean", "seq-mean-token-sum"])
def test_a_sequence_without_trained_tokens_leaves_means_alone(how):
    longer = aggregate([*LOSSES, [5, 5, 5, 5]], [*MASK, [0, 0, 0, 0]], how)
    assert longer == pytest.approx(aggregate(LOSSES, MASK, how))


def test_a_mask_without_trained_tokens_and_an_unknown_aggregation_are_refused():
    with pytest.raises(EmptyMaskError):
        aggregate(LOSSES, np.zeros((2, 4)), "token-mean")
    with pytest.raises(ValueError, match="no aggregation `mean`; give one of token-mean, "):
        aggregate(LOSSES, MASK, "mean")


def test_overlong_replies_are_punished_from_the_buffer_on():
    lengths = [100, 16384, 18432, 20480, 22528]
    assert overlong(lengths).tolist() == [0, 0, -0.5, -1, -1.5]


@pytest.mark.parametrize("padding", [math.nan, -math.inf])
def test_what_is_behind_the_mask_counts_nowhere(padding):
    # means of 1 and 3, and of 2: 6 / 3 over tokens, (2 + 2) / 2 over sequences
    losses, mask = [[1, 3], [2, padding]], [[1, 1], [1, 0]]
    assert aggregate(losses, mask, "token-mean") == 2
    assert aggregate(losses, mask, "seq-mean-token-mean") == 2
    ratios = gspo_ratio([[-1, padding]], [[-1.5, padding]], [[1, 0]])
    assert ratios.tolist() == pytest.approx([math.exp(0.5)])
