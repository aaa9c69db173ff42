"""What judges may spend, and what they have spent."""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

from livestream_env.completions import Usage
from livestream_env.errors import BudgetExhausted


@dataclass(frozen=True, slots=True, eq=False)
class Held:
    """What a request under way may take at most."""

    tokens: int
    cost: float
    pid: int = field(default_factory=os.getpid)


@dataclass
class Budget:
    """Limits of this process, and its meter; several judges may share one.

    Before a request its most is held back: one token for each character asked, and `max_tokens`.
    So no number of requests at once passes a limit, but for text that takes more tokens than it
    has characters; and the last of a limit, less than one request may take, is not spent. The few
    tokens by which a client finds out how to ask for JSON are not counted.
    """

    tokens: int | None = None
    """Tokens, in and out, that may be spent; `None`: any number."""
    cost: float | None = None
    """Money that may be spent, in the currency of `prices`; `None`: any."""
    prices: Mapping[str, tuple[float, float]] = field(default_factory=dict)
    """By model: price of a million tokens in, and out."""
    requests: int = 0
    """Requests that were answered."""
    sent: int = 0
    """Requests, those included that came to nothing."""
    seconds: float = 0.0
    """How long they took, from the call of the client to its answer or failure."""
    cached: int = 0
    """Answers that needed no request."""
    prompt_tokens: int = 0
    completion_tokens: int = 0
    estimated: int = 0
    """Requests whose endpoint told no usage: counted as one token a character, which is nearly
    always more than it was."""
    spent: float = 0.0
    """Money, over the models that have a price."""
    _held: set[Held] = field(default_factory=set, init=False, repr=False, compare=False)

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_held": set()}

    def check_price(self, model: str) -> None:
        """Raise `ValueError` where money is limited and the model's price is not known."""
        if self.cost is not None and model not in self.prices:
            raise ValueError(
                f"`cost` is limited to {self.cost} but `prices` has no `{model}`; give its price of"
                " a million tokens, in and out"
            )

    def hold(self, model: str, asked: str, max_tokens: int) -> Held | None:
        """Hold back what a request may take; `None` while others hold what it needs.

        Whoever holds gives it back by `add`, or by `release` where no answer came.

        Raises:
            BudgetExhausted: too little is left, even if what others hold came back.
        """
        price_in, price_out = self.prices.get(model, (0.0, 0.0))
        cost = (len(asked) * price_in + max_tokens * price_out) / 1e6
        held = Held(len(asked) + max_tokens, cost)
        with _lock():
            others = [one for one in self._held if one.pid == held.pid]  # not those of a parent
            tokens = self.prompt_tokens + self.completion_tokens
            waits = _is_taken(
                "tokens", self.tokens, tokens, held.tokens, sum(one.tokens for one in others)
            )
            waits |= _is_taken(
                "money", self.cost, self.spent, held.cost, sum(one.cost for one in others)
            )
            if waits:
                return None
            self._held.add(held)
        return held

    def release(self, held: Held) -> None:
        """Give back what a request held; nothing where that was done."""
        with _lock():
            self._held.discard(held)

    @contextmanager
    def timing(self) -> Iterator[None]:
        """Count a request and how long it takes, whatever comes of it."""
        start = time.monotonic()
        try:
            yield
        finally:
            with _lock():
                self.sent += 1
                self.seconds += time.monotonic() - start

    def add(
        self, model: str, asked: str, answered: str, usage: Usage, held: Held | None = None
    ) -> tuple[int, int]:
        """Count a request in place of what it held, and return its tokens in and out."""
        is_told = None not in usage and usage.prompt_tokens != 0
        prompt = usage.prompt_tokens if is_told else len(asked)
        completion = usage.completion_tokens if is_told else len(answered)
        counted = (prompt or 0, completion or 0)
        price_in, price_out = self.prices.get(model, (0.0, 0.0))
        with _lock():
            if held is not None:
                self._held.discard(held)
            self.requests += 1
            self.estimated += not is_told
            self.prompt_tokens += counted[0]
            self.completion_tokens += counted[1]
            self.spent += (counted[0] * price_in + counted[1] * price_out) / 1e6
        return counted


def _is_taken(what: str, limit: float | None, spent: float, needed: float, held: float) -> bool:
    """Return whether others hold what is needed.

    Raises:
        BudgetExhausted: too little is left, whatever they give back.
    """
    if limit is None:
        return False
    if spent + needed > limit:
        raise BudgetExhausted(
            f"{spent:.6g} of {limit:.6g} {what} is spent, and the next request may take"
            f" {needed:.6g}; raise the budget, or lower `max_tokens`"
        )
    return spent + held + needed > limit


_LOCKS: dict[int, threading.Lock] = {}
"""By process id: a fork may leave its parent's lock held."""


def _lock() -> threading.Lock:
    return _LOCKS.setdefault(os.getpid(), threading.Lock())
