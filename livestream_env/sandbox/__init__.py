"""Where tools run: the `Sandbox` protocol and its implementations.

A sandbox holds one room and plays one episode at a time. The policy's mistake returns an error
result; only infrastructure raises, as `SandboxError`.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, Protocol, runtime_checkable

from livestream_env.sandbox.local import LocalSandbox
from livestream_env.types import RoomView, ToolCall, ToolResult, ToolSpec, TurnEvent

if TYPE_CHECKING:
    from livestream_env.rooms import Room

__all__ = ["LocalSandbox", "Sandbox", "make_sandbox"]


@runtime_checkable
class Sandbox(Protocol):
    """One room's tools, one episode at a time."""

    @property
    def specs(self) -> tuple[ToolSpec, ...]:
        """The tools, as the policy is told."""
        ...

    def reset(self, *, seed: int, comments: Sequence[str]) -> RoomView:
        """Start afresh: the room as of the latest `at_s` of these comments."""
        ...

    def call(self, call: ToolCall) -> ToolResult:
        """Run one call; the policy's mistake returns an error, only infrastructure raises."""
        ...

    def fork(self, at_call: int | None = None) -> Sandbox:
        """Return another sandbox, same room and seed, in the state after the first `at_call`
        calls."""
        ...

    def log(self) -> Sequence[TurnEvent]:
        """Return the transport faults and retries since `reset`."""
        ...

    def close(self) -> None:
        """Release what is held; closing twice is fine."""
        ...


def make_sandbox(sandbox: str | Sandbox, room: Room, **options: Any) -> Sandbox:
    """Make the sandbox that `gym.make`'s `sandbox=` names for a room; an object is returned as it
    is.

    Raises:
        ValueError: the name is none of the known ones.
    """
    if not isinstance(sandbox, str):
        return sandbox
    if sandbox != "local":
        raise ValueError(f"no sandbox `{sandbox}`; use `local`, or pass a `Sandbox` object")
    return LocalSandbox(room, **options)
