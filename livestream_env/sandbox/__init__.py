"""Where tools run: the `Sandbox` protocol and its implementations.

A sandbox holds one room and plays one episode at a time. The policy's mistake returns an error
result; only infrastructure raises, as `SandboxError`.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from importlib import import_module
from typing import TYPE_CHECKING, Any, Protocol, runtime_checkable

from livestream_env.sandbox.faults import Faults, FaultySandbox
from livestream_env.sandbox.local import LocalSandbox
from livestream_env.types import RoomView, ToolCall, ToolResult, ToolSpec, TurnEvent

if TYPE_CHECKING:
    from livestream_env.rooms import Room
    from livestream_env.sandbox.recording import RecordingSandbox as RecordingSandbox
    from livestream_env.sandbox.remote import AsyncRemoteSandbox as AsyncRemoteSandbox
    from livestream_env.sandbox.remote import RemoteSandbox as RemoteSandbox
    from livestream_env.sandbox.replay import ReplaySandbox as ReplaySandbox
    from livestream_env.sandbox.server import create_app as create_app
    from livestream_env.sandbox.upstream import Upstream as Upstream

__all__ = [
    "AsyncRemoteSandbox",
    "Faults",
    "FaultySandbox",
    "LocalSandbox",
    "RecordingSandbox",
    "RemoteSandbox",
    "ReplaySandbox",
    "Sandbox",
    "Upstream",
    "create_app",
    "make_sandbox",
]
REPLAY = "replay:"
_LAZY = {
    "AsyncRemoteSandbox": "remote",
    "RecordingSandbox": "recording",
    "RemoteSandbox": "remote",
    "ReplaySandbox": "replay",
    "Upstream": "upstream",
    "create_app": "server",
}
"""Names whose modules need what is loaded on first use alone."""
_RECORD = re.compile(r"record:(?P<file>.+?)\+(?P<inner>local|https?://.+|replay:.+)")


def __getattr__(name: str) -> Any:
    if name not in _LAZY:
        raise AttributeError(f"module `livestream_env.sandbox` has no attribute `{name}`")
    return getattr(import_module(f"livestream_env.sandbox.{_LAZY[name]}"), name)


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

    `replay:FILE` answers from a recording; `record:FILE+...`, of what stands behind the `+`,
    replays what the file holds and asks and records the rest.

    Raises:
        ValueError: the name is none of the known ones.
    """
    if not isinstance(sandbox, str):
        return sandbox
    if sandbox.startswith(REPLAY):
        return make_replay(sandbox, room.content_hash, **options)
    if sandbox.startswith("record:"):
        found = _RECORD.fullmatch(sandbox)
        if found is None:
            raise ValueError(f"`{sandbox}` is no `record:FILE+local` or `record:FILE+http://...`")
        from livestream_env.sandbox.recording import RecordingSandbox

        inner = make_sandbox(found["inner"], room, **options)
        return RecordingSandbox(
            inner, found["file"], mode="read_through", content_hash=room.content_hash
        )
    if sandbox.startswith(("http://", "https://")):
        from livestream_env.sandbox.remote import RemoteSandbox

        return RemoteSandbox(sandbox, room, **options)
    if sandbox != "local":
        raise ValueError(
            f"no sandbox `{sandbox}`; use `local`, `http://HOST:PORT`, `replay:FILE`,"
            " `record:FILE+...`, or pass a `Sandbox` object"
        )
    return LocalSandbox(room, **options)


def make_replay(
    sandbox: str,
    content_hash: str,
    *,
    language: str | None = None,
    tools: Any = None,
    embedder: Any = None,
    nearest: bool = False,
) -> ReplaySandbox:
    """Make what `replay:FILE` names, for one of its rooms; the embedder is the recording's."""
    for name, given in (("language", language), ("tools", tools)):
        if given is not None:
            raise ValueError(f"`{name}` has no effect on a recording, which has its own")
    from livestream_env.sandbox.replay import ReplaySandbox

    return ReplaySandbox(sandbox.removeprefix(REPLAY), content_hash=content_hash, nearest=nearest)
