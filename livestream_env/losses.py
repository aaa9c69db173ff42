"""Reference formulas of policy losses in numpy, for tests and docs; trainers have their own."""

from __future__ import annotations

from typing import Literal, TypeAlias

import numpy as np
from numpy.typing import ArrayLike, NDArray

from livestream_env.errors import EmptyMaskError

FloatArray: TypeAlias = NDArray[np.float64]
KlKind = Literal["k1", "k2", "k3"]
Aggregation = Literal[
    "token-mean",
    "seq-mean-token-mean",
    "seq-mean-token-sum",
    "seq-mean-token-sum-norm",
    "dr-grpo",
]


def _floats(values: ArrayLike) -> FloatArray:
    return np.asarray(values, dtype=np.float64)


def _masked(values: FloatArray, weights: FloatArray) -> FloatArray:
    """Weigh values; one behind the mask is 0, whatever it was: padding may be infinite or NaN."""
    return np.where(weights == 0, 0, values) * weights


def kl(
    logprobs: ArrayLike, reference: ArrayLike, kind: KlKind = "k3", *, limit: float | None = None
) -> FloatArray:
    """Estimate KL(policy || reference) token by token, on tokens that the policy sampled.

    With d = logprobs - reference: k1 is d, k2 is d**2 / 2, k3 is exp(-d) + d - 1
    (joschu.net/blog/kl-approx.html). `limit` clamps to [-limit, limit]; ROLL and verl take 10
    for k3.
    """
    difference = _floats(logprobs) - _floats(reference)
    if kind == "k1":
        estimate = difference
    elif kind == "k2":
        estimate = difference**2 / 2
    elif kind == "k3":
        estimate = np.exp(-difference) + difference - 1
    else:
        raise ValueError(f"no KL estimator `{kind}`; give `k1`, `k2` or `k3`")
    return estimate if limit is None else np.clip(estimate, -limit, limit)


def ratio(logprobs: ArrayLike, old_logprobs: ArrayLike) -> FloatArray:
    """Return how much likelier each token has become: exp(logprobs - old_logprobs)."""
    return np.asarray(np.exp(_floats(logprobs) - _floats(old_logprobs)))


def gspo_ratio(logprobs: ArrayLike, old_logprobs: ArrayLike, mask: ArrayLike) -> FloatArray:
    """Return the ratio of a whole sequence, the geometric mean over its trained tokens.

    Shape (..., T) gives (...); a sequence without trained tokens has ratio 1
    (GSPO, arXiv 2507.18071).
    """
    weights = _floats(mask)
    difference = _masked(_floats(logprobs), weights) - _masked(_floats(old_logprobs), weights)
    return np.asarray(np.exp(difference.sum(axis=-1) / np.maximum(weights.sum(axis=-1), 1)))


def clipped(
    ratios: ArrayLike,
    advantages: ArrayLike,
    *,
    low: float = 0.2,
    high: float = 0.2,
    dual: float | None = None,
) -> FloatArray:
    """Return the objective of PPO and GRPO, to be made large: min(rho A, clip(rho) A).

    DAPO is `high=.28`. `dual` (arXiv 1912.09729; verl's default is 3) bounds the loss of a bad
    token that has become likelier: never below dual * A where A < 0.
    """
    rho, gains = _floats(ratios), _floats(advantages)
    objective = np.minimum(rho * gains, np.clip(rho, 1 - low, 1 + high) * gains)
    if dual is None:
        return objective
    return np.where(gains < 0, np.maximum(objective, dual * gains), objective)


def aggregate(
    losses: ArrayLike, mask: ArrayLike, how: Aggregation, *, max_length: int | None = None
) -> float:
    """Reduce the losses of trained tokens, shape (B, T), to one number.

    `token-mean` is DAPO, `seq-mean-token-mean` GRPO. Two things go by the name Dr.GRPO: `dr-grpo`
    divides the sum by B * max_length (TRL), `seq-mean-token-sum-norm` by max_length alone (verl,
    ROLL). Means over sequences are over those with trained tokens; `max_length` is T by default.

    Raises:
        EmptyMaskError: nothing is trained.
    """
    weights = _floats(mask)
    sums = _masked(_floats(losses), weights).sum(axis=-1)
    tokens = weights.sum(axis=-1)
    trained = tokens > 0
    if not trained.any():
        raise EmptyMaskError("the mask trains no token; leave such batches out")
    longest = max_length or weights.shape[-1]
    if how == "token-mean":
        loss = sums.sum() / tokens.sum()
    elif how == "seq-mean-token-mean":
        loss = (sums[trained] / tokens[trained]).mean()
    elif how == "seq-mean-token-sum":
        loss = sums[trained].mean()
    elif how == "seq-mean-token-sum-norm":
        loss = sums.sum() / longest
    elif how == "dr-grpo":
        loss = sums.sum() / (len(sums) * longest)
    else:
        raise ValueError(f"no aggregation `{how}`; give one of {', '.join(Aggregation.__args__)}")
    return float(loss)


def overlong(
    length_tokens: ArrayLike, *, max_tokens: int = 20480, buffer_tokens: int = 4096
) -> FloatArray:
    """Return DAPO's penalty: 0 up to the buffer, -1 at the maximum, and on falling beyond it."""
    free = max_tokens - buffer_tokens
    return np.minimum((free - _floats(length_tokens)) / buffer_tokens, 0)
