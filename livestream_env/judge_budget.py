"""What judges may spend, and what they have spent."""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field

from livestream_env.completions import Usage
from livestream_env.errors import BudgetExhausted


@dataclass
class Budget:
    """Limits of this process, and its meter; several judges may share one."""

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
    """Requests whose endpoint told no usage: counted as one token a character, which is more than
    it can have been."""
    spent: float = 0.0
    """Money, over the models that have a price."""

    def check_price(self, model: str) -> None:
        """Raise `ValueError` where money is limited and the model's price is not known."""
        if self.cost is not None and model not in self.prices:
            raise ValueError(
                f"`cost` is limited to {self.cost} but `prices` has no `{model}`; give its price of"
                " a million tokens, in and out"
            )

    def check(self) -> None:
        """Raise where a limit is reached; what is under way then may still pass it."""
        tokens = self.prompt_tokens + self.completion_tokens
        if self.tokens is not None and tokens >= self.tokens:
            raise BudgetExhausted(f"{tokens} of {self.tokens} tokens are spent; raise the budget")
        if self.cost is not None and self.spent >= self.cost:
            raise BudgetExhausted(f"{self.spent:.4g} of {self.cost:.4g} is spent; raise the budget")

    @contextmanager
    def timing(self) -> Iterator[None]:
        """Count a request and how long it takes, whatever comes of it."""
        start = time.monotonic()
        try:
            yield
        finally:
            self.sent += 1
            self.seconds += time.monotonic() - start

    def add(self, model: str, asked: str, answered: str, usage: Usage) -> tuple[int, int]:
        """Count a request, and return its tokens in and out."""
        is_told = None not in usage and usage.prompt_tokens != 0
        prompt = usage.prompt_tokens if is_told else len(asked)
        completion = usage.completion_tokens if is_told else len(answered)
        counted = (prompt or 0, completion or 0)
        self.requests += 1
        self.estimated += not is_told
        self.prompt_tokens += counted[0]
        self.completion_tokens += counted[1]
        price_in, price_out = self.prices.get(model, (0.0, 0.0))
        self.spent += (counted[0] * price_in + counted[1] * price_out) / 1e6
        return counted
