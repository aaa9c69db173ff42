"""The public contract, over every sandbox of ours and over some that break it."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from rooms_for_tests import small_room

import livestream_env as le
from livestream_env.rooms import Room
from livestream_env.sandbox import (
    Faults,
    FaultySandbox,
    LocalSandbox,
    RecordingSandbox,
    ReplaySandbox,
    Sandbox,
)
from livestream_env.sandbox.testing import SECRET, Check, key_strings, sandbox_contract, with_secret
from livestream_env.types import RoomView, ToolCall, ToolResult, TurnEvent


def local(room: Room) -> LocalSandbox:
    return LocalSandbox(room, embedder="lexical")


def faulty(room: Room) -> FaultySandbox:
    return FaultySandbox(local(room), Faults(seed=1))


def every(make: Callable[[Room], Sandbox]) -> list[Any]:
    return [pytest.param(check, id=check.name) for check in sandbox_contract(make)]


@pytest.mark.row("R38")
@pytest.mark.parametrize("check", every(local))
def test_a_local_sandbox_keeps_the_contract(check: Check) -> None:
    check()


@pytest.mark.row("R38")
@pytest.mark.parametrize("check", every(faulty))
def test_a_faulty_sandbox_without_faults_keeps_the_contract(check: Check) -> None:
    check()


@pytest.fixture(scope="module")
def recording(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A recording of all that the contract asks."""
    file = tmp_path_factory.mktemp("contract") / "all.jsonl"
    for check in sandbox_contract(lambda room: RecordingSandbox(local(room), file)):
        check()
    return file


NAMES = [check.name for check in sandbox_contract(local)]


@pytest.mark.row("R38")
@pytest.mark.parametrize("mode", ["all", "read_through"])
@pytest.mark.parametrize("name", NAMES)
def test_a_recording_sandbox_keeps_the_contract(name: str, mode: Any, tmp_path: Path) -> None:
    def make(room: Room) -> Sandbox:
        return RecordingSandbox(local(room), tmp_path / "x.jsonl", mode=mode)

    check = next(check for check in sandbox_contract(make) if check.name == name)
    check()
    check()


@pytest.mark.row("R38")
@pytest.mark.parametrize("name", NAMES)
def test_a_replay_keeps_the_contract(name: str, recording: Path) -> None:
    checks = sandbox_contract(lambda _: ReplaySandbox(recording))
    next(check for check in checks if check.name == name)()


@pytest.mark.row("R38")
@pytest.mark.parametrize("name", NAMES)
def test_a_replay_behind_a_fault_plan_keeps_the_contract(name: str, recording: Path) -> None:
    def make(_: Room) -> Sandbox:
        return FaultySandbox(ReplaySandbox(recording), Faults())

    next(check for check in sandbox_contract(make) if check.name == name)()


def test_a_room_of_ones_own_and_calls_of_ones_own() -> None:
    @le.tool(mutates=True)
    def count(context: le.ToolContext) -> le.ToolOutput:
        """Count."""
        number = context.state.extras.get("n", 0) + 1
        return le.ToolOutput(number, state=replace(context.state, extras={"n": number}))  # type: ignore[arg-type]

    @le.tool
    def weather(context: le.ToolContext, city: str) -> str:
        """Tell the weather."""
        return f"{city}: sun"

    def make(room: Room) -> Sandbox:
        return LocalSandbox(room, embedder="lexical", tools=[weather, count])

    options: Any = {"room": small_room(), "picklable": False}
    for check in sandbox_contract(make, calls=[("weather", {"city": "北京"})], **options):
        check()
    asks = next(c for c in sandbox_contract(make, **options) if "same_bytes" in c.name)
    with pytest.raises(AssertionError, match="give `sandbox_contract` `calls=`"):
        asks()


# --- what breaks it is told ------------------------------------------------------------------


class Wrong:
    """A local sandbox with one thing wrong."""

    def __init__(self, room: Room) -> None:
        self.room = room
        self.inner = local(room)
        self.specs = self.inner.specs

    def reset(self, *, seed: int, comments: Sequence[str]) -> RoomView:
        return self.inner.reset(seed=seed, comments=comments)

    def call(self, call: ToolCall) -> ToolResult:
        return self.inner.call(call)

    def fork(self, at_call: int | None = None) -> Sandbox:
        return self.inner.fork(at_call)

    def log(self) -> Sequence[TurnEvent]:
        return ()

    def close(self) -> None:
        self.inner.close()


class LateView(Wrong):
    def reset(self, *, seed: int, comments: Sequence[str]) -> RoomView:
        return self.inner.reset(seed=seed, comments=[self.room.comments[-1].comment_id])


class Raising(Wrong):
    def call(self, call: ToolCall) -> ToolResult:
        result = self.inner.call(call)
        if result.error:
            raise KeyError(call.name)
        return result


class OtherIds(Wrong):
    def call(self, call: ToolCall) -> ToolResult:
        return replace(self.inner.call(call), call_id="1")


class Twice(Wrong):
    def call(self, call: ToolCall) -> ToolResult:
        self.inner.call(call)
        return self.inner.call(call)


class SharedFork(Wrong):
    def fork(self, at_call: int | None = None) -> Sandbox:
        return self


class Telling(Wrong):
    def call(self, call: ToolCall) -> ToolResult:
        key = self.room.comments[0].expected
        return replace(self.inner.call(call), content=f'"{key!r}"')


class Logging(Wrong):
    def log(self) -> Sequence[TurnEvent]:
        return (TurnEvent("sandbox_retry"),)


class Unpicklable(Wrong):
    def __reduce__(self) -> Any:
        raise TypeError("cannot pickle a socket")


class OtherAsync(Wrong):
    async def acall(self, call: ToolCall) -> ToolResult:
        return replace(self.inner.call(call), content="{}")


class Once(Wrong):
    closed = False

    def close(self) -> None:
        assert not self.closed, "closed twice"
        self.closed = True


@pytest.mark.parametrize(
    ("make", "caught"),
    [
        (LateView, "reset_shows_the_room_as_of_the_comments"),
        (Raising, "an_unknown_tool_is_the_policys_mistake"),
        (Raising, "wrong_arguments_are_the_policys_mistake"),
        (OtherIds, "results_bear_the_ids_of_their_calls"),
        (Twice, "a_write_changes_the_state_once"),
        (SharedFork, "forks_are_independent"),
        (SharedFork, "a_fork_stands_after_the_calls_asked_for"),
        (Telling, "nothing_of_the_key_is_told"),
        (Logging, "the_log_is_empty_when_nothing_failed"),
        (Unpicklable, "pickles"),
        (OtherAsync, "the_async_twin_is_equal"),
        (Once, "closing_twice_is_fine"),
    ],
)
def test_a_sandbox_that_breaks_the_contract_is_caught(make: Any, caught: str) -> None:
    check = next(check for check in sandbox_contract(make) if check.name == caught)
    with pytest.raises((AssertionError, KeyError, TypeError)):
        check()


def test_the_key_of_a_room_can_be_searched_for() -> None:
    room = with_secret(small_room())
    assert room.content_hash == small_room().content_hash
    assert SECRET in key_strings(room)
    assert "170，65公斤" in key_strings(small_room())
    assert key_strings(le.strip_room(small_room())) == set()
