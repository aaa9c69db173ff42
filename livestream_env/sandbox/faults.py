"""Faults by plan: the same ones for a local sandbox, a remote one and a recording.

What fails is drawn from a seed, the seed of the episode, the number of the call, its tool and
arguments, and the attempt; nothing else decides it. Faults of transport are survived by a retry or
raise; the policy never sees them. Faults of content change what a tool tells, and say so in the
result's events.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass, fields, replace
from hashlib import blake2b
from typing import TYPE_CHECKING, Any

from livestream_env.errors import SandboxError, SandboxTimeout, SandboxUnavailable
from livestream_env.sandbox.stale import empty_hits, old_prices, old_stock
from livestream_env.sandbox.steps import Steps, arun_steps, run_steps
from livestream_env.types import RoomView, ToolCall, ToolResult, ToolSpec, TurnEvent

if TYPE_CHECKING:
    from livestream_env.sandbox import Sandbox

FAILING: dict[str, tuple[type[SandboxError], str]] = {
    "timeout": (SandboxTimeout, "no answer in time"),
    "error": (SandboxUnavailable, "the server failed (503)"),
    "drop_before": (SandboxUnavailable, "the connection broke before the call had arrived"),
    "drop_after": (SandboxUnavailable, "the connection broke after the call had been run"),
    "bad_json": (SandboxUnavailable, "the answer was no result"),
    "cut_json": (SandboxUnavailable, "the answer was cut"),
}
"""Faults that fail an attempt -> (what is raised at last, what had happened)."""
HARMLESS = ("slow", "duplicate", "reordered")
"""Faults that an attempt outlives: late, delivered twice, after the answer of the call before."""
_NOT_RUN = ("timeout", "error", "drop_before")
_CONTENT = {"stale_stock": old_stock, "changed_price": old_prices, "empty_hits": empty_hits}
TRANSPORT = (*FAILING, *HARMLESS)
CONTENT = tuple(_CONTENT)
PLAN = "fault_plan"
_RESET = -1


@dataclass(frozen=True, slots=True, kw_only=True)
class Faults:
    """How often what goes wrong, each a probability.

    An attempt has one fault of transport at most, so their probabilities add up to 1 at most;
    `reset_fail` is that of an attempt to reset, and faults of content come with calls.
    """

    seed: int = 0
    timeout: float = 0.0
    slow: float = 0.0
    error: float = 0.0
    drop_before: float = 0.0
    drop_after: float = 0.0
    bad_json: float = 0.0
    cut_json: float = 0.0
    duplicate: float = 0.0
    reordered: float = 0.0
    reset_fail: float = 0.0
    stale_stock: float = 0.0
    changed_price: float = 0.0
    empty_hits: float = 0.0
    slow_s: float = 0.02
    """How late an answer is that is `slow`."""

    def __post_init__(self) -> None:
        for name in (*TRANSPORT, *CONTENT, "reset_fail"):
            if not 0 <= getattr(self, name) <= 1:
                raise ValueError(f"`{name}` is {getattr(self, name)}; it is a probability, 0 to 1")
        total = sum(getattr(self, name) for name in TRANSPORT)
        if total > 1 + 1e-9:
            raise ValueError(f"the faults of transport add up to {total:g}; an attempt has one")

    @classmethod
    def evenly(cls, probability: float, *, seed: int = 0) -> Faults:
        """Share a probability out among all faults of transport, and fail as many resets."""
        each = dict.fromkeys(TRANSPORT, probability / len(TRANSPORT))
        return cls(seed=seed, reset_fail=probability, **each)

    @classmethod
    def of(cls, faults: Sequence[TurnEvent]) -> Faults | None:
        """Return the plan that a trajectory's `faults` name, to play it again."""
        plans = [event.detail for event in faults if event.kind == PLAN]
        return cls(**json.loads(plans[0])) if plans else None

    @property
    def plan(self) -> TurnEvent | None:
        """The plan as an event; `None` where nothing is to fail."""
        given = {
            one.name: value
            for one in fields(self)
            if (value := getattr(self, one.name)) != one.default
        }
        if not given.keys() - {"seed", "slow_s"}:
            return None
        return TurnEvent(PLAN, json.dumps(given))

    def transport(self, *key: Any) -> str | None:
        """Return the fault of transport of an attempt, by its key."""
        drawn = self._draw("transport", *key)
        for name in TRANSPORT:
            drawn -= getattr(self, name)
            if drawn < 0:
                return name
        return None

    def happens(self, name: str, *key: Any) -> bool:
        """Return whether a fault of content, or of a reset, happens."""
        probability: float = getattr(self, name)
        return probability > 0 and self._draw(name, *key) < probability

    def _draw(self, *key: Any) -> float:
        text = json.dumps([self.seed, *key], ensure_ascii=False)
        digest = blake2b(text.encode("utf-8", "replace"), digest_size=8).digest()
        return int.from_bytes(digest, "big") / 2**64


class FaultySandbox:
    """Another sandbox that fails by plan, behind a caller that retries.

    As between our client and server, a call has its number: repeated, it is answered from what
    was kept and not run again.

    Args:
        inner: what really runs the calls.
        faults: the plan.
        retries: attempts after the first, of a call or a reset.
    """

    def __init__(self, inner: Sandbox, faults: Faults, *, retries: int = 3) -> None:
        if retries < 0:
            raise ValueError(f"`retries` is {retries}; it is a whole number from 0")
        self.inner = inner
        self.faults = faults
        self.retries = retries
        self._plan = faults.plan
        self._seed = 0
        self._ran = [0]
        self._log: list[tuple[int, TurnEvent]] = []

    @property
    def specs(self) -> tuple[ToolSpec, ...]:
        """The tools of the inner sandbox."""
        return self.inner.specs

    def reset(self, *, seed: int, comments: Sequence[str]) -> RoomView:
        """Start an episode.

        Raises:
            SandboxUnavailable: all attempts failed by plan.
        """
        self._seed, self._ran, self._log = seed, [0], []
        for attempt in range(self.retries + 1):
            if not self.faults.happens("reset_fail", seed, list(comments), attempt):
                return self.inner.reset(seed=seed, comments=comments)
            self._note("reset_fail", _RESET, f"reset, attempt {attempt + 1}")
        raise SandboxUnavailable(f"the sandbox failed at reset, {_attempts(self.retries + 1)}")

    def call(self, call: ToolCall) -> ToolResult:
        """Run one call.

        Raises:
            SandboxTimeout, SandboxUnavailable: all attempts failed by plan.
        """
        return run_steps(self._steps(call), self.inner)

    async def acall(self, call: ToolCall) -> ToolResult:
        """Run one call as `call` does, awaiting the inner sandbox."""
        return await arun_steps(self._steps(call), self.inner)

    def _steps(self, call: ToolCall) -> Steps:
        n = len(self._ran) - 1
        self._ran.append(self._ran[-1])
        key = (self._seed, n, call.name, call.arguments.canonical)
        kept: ToolResult | None = None
        fault = None
        for attempt in range(self.retries + 1):
            fault = self.faults.transport(*key, attempt) if self._plan else None
            if kept is None and fault not in _NOT_RUN:
                self._ran[n + 1] += 1
                kept = yield call
            if fault is not None:
                what = f"call {n} `{call.name}`, attempt {attempt + 1}"
                self._note(fault, n, what, call.id)
            if fault == "slow":
                yield self.faults.slow_s
            if fault not in FAILING and kept is not None:
                return self._changed(kept, call, key) if self._plan else kept
        kind, what = FAILING[str(fault)]
        raise kind(f"tool `{call.name}`: {what}, {_attempts(self.retries + 1)}")

    def _changed(self, result: ToolResult, call: ToolCall, key: tuple[Any, ...]) -> ToolResult:
        """Apply the faults of content that the plan has for this call."""
        if result.error is not None:
            return result
        for name, change in _CONTENT.items():
            if not self.faults.happens(name, *key):
                continue
            changed, detail = change(result, call.name)
            if detail:
                event = TurnEvent(name, detail, call.id)
                self._note(name, key[1], detail, call.id)
                result = replace(changed, events=(*result.events, event))
        return result

    def _note(self, kind: str, n: int, detail: str, call_id: str | None = None) -> None:
        self._log.append((n, TurnEvent(kind, detail, call_id)))

    def fork(self, at_call: int | None = None) -> FaultySandbox:
        """Return a sandbox in the state after the first `at_call` calls, by default after all."""
        made = len(self._ran) - 1
        calls = made if at_call is None else at_call
        if not 0 <= calls <= made:
            raise ValueError(f"`at_call` is {at_call}; {made} calls were made")
        forked = object.__new__(FaultySandbox)
        forked.__dict__.update(self.__dict__)
        forked.inner = self.inner.fork(self._ran[calls])
        forked._ran = self._ran[: calls + 1]
        forked._log = [(n, event) for n, event in self._log if n < calls]
        return forked

    def log(self) -> Sequence[TurnEvent]:
        """Return the plan and what fired since `reset`, after the inner sandbox's own."""
        plan = () if self._plan is None else (self._plan,)
        return (*self.inner.log(), *plan, *(event for _, event in self._log))

    def close(self) -> None:
        """Close the inner sandbox."""
        self.inner.close()


def _attempts(count: int) -> str:
    return f"{count} attempt{'s' if count > 1 else ''}"
