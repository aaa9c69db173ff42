"""The contract of sandboxes, as checks that anyone can run on their own.

    @pytest.mark.parametrize("check", sandbox_contract(MySandbox), ids=str)
    def test_my_sandbox(check):
        check()

Each check makes sandboxes of its own, and says in words what does not hold.
"""

from __future__ import annotations

import asyncio
import inspect
import json
import pickle
import re
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from functools import partial
from typing import TYPE_CHECKING, Any

from livestream_env.room_files import load_room
from livestream_env.rooms import Ask, Expected, FollowUp, Room, Statement, strip_room
from livestream_env.tools import to_json
from livestream_env.types import RoomView, ToolCall, ToolResult, freeze

if TYPE_CHECKING:
    from livestream_env.sandbox import Sandbox

SEED = 11
THREADS = 8
SECRET = "key-a7c31f09"
"""Stands in every text of the key of the room that sandboxes are made for."""

Calls = Sequence[tuple[str, Mapping[str, Any]]]
_LOOK_UPS: dict[str, str] = {
    "search_product_by_keyword": "keyword",
    "search_faq": "query",
    "search_script": "query",
    "search_comments": "query",
    "get_reply_rule": "intent",
}


@dataclass(frozen=True, slots=True)
class Check:
    """One part of the contract: call it, and it raises `AssertionError` where it does not hold."""

    name: str
    run: Callable[[], None] = field(repr=False)

    def __call__(self) -> None:
        self.run()

    def __str__(self) -> str:
        return self.name


def sandbox_contract(
    make_sandbox: Callable[[Room], Sandbox],
    *,
    room: Room | str = "snacks",
    calls: Calls | None = None,
    write: tuple[str, Mapping[str, Any]] | None = None,
    picklable: bool = True,
) -> list[Check]:
    """Return the checks of a sandbox.

    Args:
        make_sandbox: called with the room for every sandbox that a check needs, as `gym.make`'s
            `sandbox=` is.
        room: a room, a file or a bundled name; sandboxes that know it may take it from elsewhere.
        calls: look-ups that succeed; by default those of the bundled tools that are offered.
        write: a call that changes the state each time; by default `hand_off` where it is offered.
            A sandbox without any is not asked to change anything.
        picklable: whether a sandbox can be sent to another process before it is used.
    """
    asked = _Asked(
        make_sandbox, with_secret(load_room(room) if isinstance(room, str) else room), calls, write
    )
    checks = [*_CHECKS, *([_pickles] if picklable else [])]
    return [Check(check.__name__.lstrip("_"), partial(check, asked)) for check in checks]


def with_secret(room: Room) -> Room:
    """Return the room with `SECRET` in the key of every comment; its world is the same."""
    said = Statement(kind="value", record=SECRET, field=SECRET, value=SECRET)
    ask = Ask(intent=SECRET, needed=(SECRET,), facts=(said,), must_not=(said,), ask_for=(SECRET,))
    expected = Expected(asks=(ask,), state={"product": SECRET}, provenance=SECRET)
    key: dict[str, Any] = {
        "same_as": None,
        "follow_ups": (FollowUp(text=SECRET, expected=expected),),
        "expected": expected,
    }
    comments = tuple(comment.model_copy(update=key) for comment in room.comments)
    return room.model_copy(update={"comments": comments})


def key_strings(room: Room, *, shortest: int = 4) -> set[str]:
    """Return the texts that only the key of a room holds, for a search through answers and files.

    Left out are what any answer may hold: short texts, single English words such as `hand_off`,
    and records such as `faq:f1` whose id is of the world.
    """
    world = strip_room(room).model_dump_json()
    keys = [
        comment.model_dump(mode="json", include={"same_as", "follow_ups", "expected"})
        for comment in room.comments
    ]
    return {
        text
        for text in _texts(keys)
        if len(text) >= shortest
        and not re.fullmatch(r"[a-z_]+", text)
        and to_json(text.rpartition(":")[2])[1:-1] not in world
    }


def _texts(value: Any) -> list[str]:
    if isinstance(value, dict):
        return [text for item in value.values() for text in _texts(item)]
    if isinstance(value, list):
        return [text for item in value for text in _texts(item)]
    return [value] if isinstance(value, str) else []


class _Asked:
    """What the checks ask a sandbox."""

    def __init__(
        self,
        make_sandbox: Callable[[Room], Sandbox],
        room: Room,
        calls: Calls | None,
        write: tuple[str, Mapping[str, Any]] | None,
    ) -> None:
        self.room = room
        self._make = make_sandbox
        self._calls = calls
        self._write = write
        first, second = room.comments[0], room.comments[min(1, len(room.comments) - 1)]
        self.first, self.second = (first.comment_id,), (second.comment_id,)

    def make(self) -> Sandbox:
        """Make a sandbox."""
        return self._make(self.room)

    def opened(self, comments: Sequence[str] | None = None) -> tuple[Sandbox, RoomView]:
        """Make a sandbox and start an episode."""
        sandbox = self.make()
        return sandbox, sandbox.reset(seed=SEED, comments=comments or self.first)

    def calls(self, sandbox: Sandbox) -> list[ToolCall]:
        """Return look-ups that succeed."""
        given = self._calls if self._calls is not None else self._bundled(sandbox)
        assert given, (
            "the sandbox offers none of the bundled look-ups; give `sandbox_contract` `calls=`, a"
            " list of (tool, arguments) that succeed"
        )
        return [_call(i, name, arguments) for i, (name, arguments) in enumerate(given)]

    def _bundled(self, sandbox: Sandbox) -> Calls:
        words = {"keyword": self.room.products[0].name, "query": self.room.comments[0].text}
        words["intent"] = self.room.reply_rules[0].intent if self.room.reply_rules else ""
        offered = {spec.name for spec in sandbox.specs}
        made = ((name, argument) for name, argument in _LOOK_UPS.items() if name in offered)
        return [(name, {argument: words[argument]}) for name, argument in made if words[argument]]

    def write(self, sandbox: Sandbox) -> ToolCall | None:
        """Return a call that changes the state each time, or `None`."""
        if self._write is not None:
            return _call("w", *self._write)
        if "hand_off" in {spec.name for spec in sandbox.specs}:
            return _call("w", "hand_off", {"reason": "contract"})
        return None


def _call(number: int | str, name: str, arguments: Mapping[str, Any]) -> ToolCall:
    return ToolCall(f"call-{number}", name, freeze(arguments))


def _same(left: Any, right: Any, what: str) -> None:
    assert left == right, f"{what}:\n  {left!r:.600}\n  {right!r:.600}"


# --- the checks ------------------------------------------------------------------------------


def _reset_shows_the_room_as_of_the_comments(asked: _Asked) -> None:
    sandbox, view = asked.opened(asked.second)
    comment = asked.room.comment(asked.second[0])
    _same(view.content_hash, asked.room.content_hash, "the view is of another room")
    _same(tuple(c.comment_id for c in view.comments), asked.second, "other comments are open")
    _same(view.state.at_s, comment.at_s, "the view is as of another second")
    late = [s.segment_id for s in view.script_window if s.start_s > comment.at_s]
    late += [line.text for line in view.history if (line.at_s or 0) > comment.at_s]
    assert not late, f"the view shows what came later: {late}"
    assert sandbox.specs, "the sandbox offers no tools"
    sandbox.close()


def _reset_starts_afresh(asked: _Asked) -> None:
    sandbox, view = asked.opened()
    write = asked.write(sandbox)
    if write is not None:
        sandbox.call(write)
    sandbox.reset(seed=SEED, comments=asked.second)
    again = sandbox.reset(seed=SEED, comments=asked.first)
    _same(again, view, "a second reset gives another view")
    if write is not None:
        _same(sandbox.call(write), _only(asked, write), "what was written outlives the reset")
    sandbox.close()


def _only(asked: _Asked, call: ToolCall) -> ToolResult:
    """Return the result of the first call of a new episode."""
    sandbox, _ = asked.opened()
    result = sandbox.call(call)
    sandbox.close()
    return result


def _same_seed_same_bytes(asked: _Asked) -> None:
    first, second = _played(asked), _played(asked)
    _same(first, second, "two episodes of one seed differ")


def _played(asked: _Asked) -> tuple[RoomView, list[ToolResult]]:
    sandbox, view = asked.opened()
    results = [sandbox.call(call) for call in asked.calls(sandbox)]
    sandbox.close()
    return view, results


def _look_ups_succeed_and_change_nothing(asked: _Asked) -> None:
    sandbox, _ = asked.opened()
    for call in asked.calls(sandbox):
        result = sandbox.call(call)
        assert isinstance(result, ToolResult), f"`{call.name}` gave {result!r:.200}"
        assert result.error is None, f"`{call.name}` failed: {result.content}"
        assert result.state is None, f"`{call.name}` changed the state"
        json.loads(result.content)
    sandbox.close()


def _an_unknown_tool_is_the_policys_mistake(asked: _Asked) -> None:
    result = _only(asked, _call(0, "no_such_tool", {"x": 1}))
    assert result.error, f"an unknown tool gave no error code: {result!r:.300}"
    assert result.state is None, "an unknown tool changed the state"


def _wrong_arguments_are_the_policys_mistake(asked: _Asked) -> None:
    sandbox, _ = asked.opened()
    name = asked.calls(sandbox)[0].name
    schema = next(spec.parameters for spec in sandbox.specs if spec.name == name)
    wrong: list[Mapping[str, Any]] = [{}] if schema.get("required") else []
    wrong += [{"no_such_argument": [1]}] if schema.get("additionalProperties") is False else []
    for arguments in wrong:
        result = sandbox.call(_call(0, name, arguments))
        assert result.error, f"`{name}({arguments})` gave no error code: {result!r:.300}"
    result = sandbox.call(asked.calls(sandbox)[0])
    assert result.error is None, "the sandbox cannot be used after a policy's mistake"
    sandbox.close()


def _results_bear_the_ids_of_their_calls(asked: _Asked) -> None:
    sandbox, _ = asked.opened()
    call = asked.calls(sandbox)[0]
    for call_id in ("call_0_0", '任意 "id" / ?', "x" * 200):
        result = sandbox.call(ToolCall(call_id, call.name, call.arguments))
        _same(result.call_id, call_id, "a result bears another call's id")
    sandbox.close()


def _a_write_changes_the_state_once(asked: _Asked) -> None:
    sandbox, view = asked.opened()
    write = asked.write(sandbox)
    if write is None:
        return
    first = sandbox.call(write)
    assert first.error is None, f"`{write.name}` failed: {first.content}"
    assert first.state is not None, f"`{write.name}` returned no state"
    assert first.state != view.state, f"`{write.name}` changed nothing"
    _same(first, _only(asked, write), "a write does otherwise the second time")
    if write.name == "hand_off":
        _same(len(first.state.hand_offs), 1, "one call handed off several times")
    _same(sandbox.call(asked.calls(sandbox)[0]).state, None, "a look-up returned a state")
    sandbox.close()


def _forks_are_independent(asked: _Asked) -> None:
    sandbox, _ = asked.opened()
    write = asked.write(sandbox) or asked.calls(sandbox)[0]
    forked = sandbox.fork()
    forked.call(write)
    _same(sandbox.call(write), _only(asked, write), "what a fork wrote is seen by its origin")
    forked.close()
    _same(sandbox.call(write), _nth(asked, write, 2), "closing a fork changes its origin")
    sandbox.close()


def _nth(asked: _Asked, call: ToolCall, count: int) -> ToolResult:
    sandbox, _ = asked.opened()
    results = [sandbox.call(call) for _ in range(count)]
    sandbox.close()
    return results[-1]


def _a_fork_stands_after_the_calls_asked_for(asked: _Asked) -> None:
    sandbox, _ = asked.opened()
    write = asked.write(sandbox) or asked.calls(sandbox)[0]
    made = [sandbox.call(write) for _ in range(3)]
    for at_call in range(3):
        _same(sandbox.fork(at_call).call(write), made[at_call], f"fork(at_call={at_call}) differs")
    deeper = sandbox.fork(2).fork(1)
    _same(deeper.call(write), made[1], "a fork of a fork differs")
    try:
        sandbox.fork(4)
    except ValueError:
        pass
    else:
        raise AssertionError("`fork(4)` after three calls did not raise `ValueError`")
    sandbox.close()


def _closing_twice_is_fine(asked: _Asked) -> None:
    unused = asked.make()
    unused.close()
    unused.close()
    sandbox, _ = asked.opened()
    sandbox.close()
    sandbox.close()


def _nothing_of_the_key_is_told(asked: _Asked) -> None:
    sandbox, view = asked.opened()
    told: list[Any] = [view]
    for call in (*asked.calls(sandbox), _call(0, "no_such_tool", {}), asked.write(sandbox)):
        if call is not None:
            told.append(sandbox.call(call))
    assert SECRET not in repr(told), "an answer holds a part of the room's key"
    assert SECRET not in repr(sandbox.specs), "a tool's description holds a part of the key"
    sandbox.close()


def _threads_see_what_one_alone_sees(asked: _Asked) -> None:
    alone = _played(asked)
    with ThreadPoolExecutor(THREADS) as pool:
        for played in pool.map(lambda _: _played(asked), range(THREADS)):
            _same(played, alone, "sandboxes in threads disturb one another")


def _the_async_twin_is_equal(asked: _Asked) -> None:
    sandbox, view = asked.opened()
    run = getattr(sandbox, "acall", None)
    if run is None:
        return

    async def play() -> list[ToolResult]:
        return [await run(call) for call in asked.calls(sandbox)]

    assert inspect.iscoroutinefunction(run), "`acall` is no `async def`"
    _same((view, asyncio.run(play())), _played(asked), "`acall` and `call` differ")
    sandbox.close()


def _the_log_is_empty_when_nothing_failed(asked: _Asked) -> None:
    sandbox, _ = asked.opened()
    for call in asked.calls(sandbox):
        sandbox.call(call)
    _same(tuple(sandbox.log()), (), "the log tells of faults")
    sandbox.close()


def _pickles(asked: _Asked) -> None:
    sandbox: Sandbox = pickle.loads(pickle.dumps(asked.make()))
    view = sandbox.reset(seed=SEED, comments=asked.first)
    results = [sandbox.call(call) for call in asked.calls(sandbox)]
    _same((view, results), _played(asked), "a pickled sandbox differs")
    sandbox.close()


_CHECKS: tuple[Callable[[_Asked], None], ...] = (
    _reset_shows_the_room_as_of_the_comments,
    _reset_starts_afresh,
    _same_seed_same_bytes,
    _look_ups_succeed_and_change_nothing,
    _an_unknown_tool_is_the_policys_mistake,
    _wrong_arguments_are_the_policys_mistake,
    _results_bear_the_ids_of_their_calls,
    _a_write_changes_the_state_once,
    _forks_are_independent,
    _a_fork_stands_after_the_calls_asked_for,
    _closing_twice_is_fine,
    _nothing_of_the_key_is_told,
    _threads_see_what_one_alone_sees,
    _the_async_twin_is_equal,
    _the_log_is_empty_when_nothing_failed,
)
