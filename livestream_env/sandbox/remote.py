"""Sandboxes on a server: `RemoteSandbox`, and `AsyncRemoteSandbox` for async code.

Each request to run a call brings along what it takes to build the session anew, so no choice of a
balancer, no restart and no expired lease ends an episode. A retried call runs once, for the server
keeps the answer of each number.
"""

from __future__ import annotations

import asyncio
import atexit
import copy
import json
import os
import secrets
import time
import weakref
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, Literal, TypeVar

import httpx

from livestream_env.background import background_loop, wait_in_background
from livestream_env.custom_tools import ToolSource, resolve_tools
from livestream_env.errors import RoomMismatch, SandboxError, SandboxUnavailable, SessionLost
from livestream_env.retrieval import Embedder
from livestream_env.rooms import Room
from livestream_env.sandbox.link import Answered, Link, Request, Steps
from livestream_env.sandbox.wire import (
    DEEPEST,
    FAILURES,
    LONGEST_CALL,
    REBUILT_HEADER,
    SMALL_ORIGIN,
    Opened,
    Result,
    compact,
    is_deeper,
    room_json,
    wire_id,
)
from livestream_env.tools import TOOLS, compiled_schema, error_content, schema_fault
from livestream_env.types import RoomView, ToolCall, ToolResult, ToolSpec, TurnEvent
from livestream_env.words import clean_text

T = TypeVar("T")
Verify = Literal[True] | str | os.PathLike[str]
_ASKS = 4
"""Times that a server may ask for more of the origin: without it, without the room, and once more
where two servers differ."""

_ROOMS_AHEAD = 3
"""Requests that bring the room unasked after a server lacked it: behind a balancer the others lack
it too, and one that answers by turns would hand the room to every second server for ever."""


@dataclass(slots=True, eq=False)
class _Ticket:
    """A session that is open on a server, for whoever closes it."""

    link: Link
    session: str
    pid: int


_OPEN: dict[int, set[_Ticket]] = {}
"""By process id: what is closed when the interpreter exits."""


class _Core:
    """The rules of one sandbox, as generators that `Link` runs: what is sent, and what it means."""

    def __init__(
        self, link: Link, room: Room, options: Mapping[str, Any], *, uploads: bool
    ) -> None:
        self.link, self.room, self._options = link, room, dict(options)
        self._uploads = uploads
        self.specs: tuple[ToolSpec, ...] = _known_specs(options, room)
        self.events: list[TurnEvent] = []
        self.ticket: _Ticket | None = None
        self.calls = 0
        self._view: RoomView | None = None
        self._rebuilds: frozenset[str] = frozenset()
        self._mutates: frozenset[str] = frozenset()
        self._root, self._seed = "", 0
        self._comments: tuple[str, ...] = ()
        self._writes: list[dict[str, Any]] = []
        self._origin = b""
        self._lost: str | None = None
        self._rooms_to_send = 0

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "ticket": None}

    # --- reset ---

    def reset(self, seed: int, comments: Sequence[str]) -> Steps[RoomView]:
        """Open a session of its own for the episode."""
        yield from self.close()
        self.events.clear()
        self._view, self._lost = None, None
        self._root = secrets.token_hex(16)
        self._seed, self._comments = int(seed), tuple(map(clean_text, comments))
        self.calls, self._writes = 0, []
        self._make_origin()
        self.ticket = self._registered(self._root)
        opened, _ = yield from self._asked(
            self._opening,
            f"/sessions/{self._root}",
            partial(_read_opened, self._root),
            "the episode",
            is_reset=True,
        )
        self._check_view(opened.view)
        self.specs, self._rebuilds = opened.specs, frozenset(opened.rebuilds)
        self._mutates = frozenset(spec.name for spec in opened.specs if spec.mutates)
        self._view = opened.view
        return opened.view

    def _opening(self, origin: bytes | None) -> bytes:
        return b'{"origin":%b}' % (origin or self._origin)

    def _check_view(self, view: RoomView) -> None:
        if view.content_hash != self.room.content_hash:
            raise RoomMismatch(
                f"{self.link!r} holds room `{view.room_id}` ({view.content_hash}), the client"
                f" `{self.room.room_id}` ({self.room.content_hash}); give both the same room"
            )

    # --- calls ---

    def call(self, call: ToolCall) -> Steps[ToolResult]:
        """Run a call, once."""
        if self._view is None:
            raise SandboxError("the sandbox has no episode; call `reset` first")
        if self._lost is not None:
            raise SessionLost(self._lost)
        n, what = self.calls, f"call {self.calls} (`{call.name[:64]}`)"
        self.calls += 1
        asked = _written(call)
        if asked is None:
            return _unsendable(call, self.specs, self._view.language)
        session = self._session()
        try:
            result, is_rebuilt = yield from self._asked(
                partial(self._calling, asked),
                f"/sessions/{session}/calls/{n}",
                partial(_read_result, call.id, wire_id(session, n)),
                what,
            )
        except SandboxError:
            if call.name in self._mutates:
                self._lost = f"{what} may have run or not; `reset` starts another episode"
            raise
        if is_rebuilt:
            self.events.append(TurnEvent("session_rebuilt", what))
        self._note_write(n, call, result)
        return result

    def _calling(self, asked: bytes, origin: bytes | None) -> bytes:
        if origin is None and len(self._origin) <= SMALL_ORIGIN:
            origin = self._origin
        told = b"" if origin is None else b',"origin":' + origin
        return b'%b,"after":%d%b}' % (asked, len(self._writes), told)

    def _note_write(self, n: int, call: ToolCall, result: ToolResult) -> None:
        """Remember a call that a session built anew has to repeat, or cannot."""
        if call.name not in self._mutates:
            return
        if call.name in self._rebuilds:
            has_written = result.state is not None
        else:
            has_written = result.error not in ("invalid_arguments", "unknown_tool")
        if has_written:
            self._writes.append({"n": n, "name": call.name, "arguments": call.arguments})
            self._make_origin()

    def _session(self) -> str:
        """Return the session's id; a fork, a copy and another process have one of their own."""
        ticket = self.ticket
        if ticket is None or ticket.pid != os.getpid():
            ticket = self.ticket = self._registered(secrets.token_hex(16))
        return ticket.session

    def _registered(self, session: str) -> _Ticket:
        ticket = _Ticket(self.link, session, os.getpid())
        if os.getpid() not in _OPEN:
            _OPEN.setdefault(os.getpid(), set())
            background_loop()  # for finalizers, which must not start a thread
        _OPEN[os.getpid()].add(ticket)
        return ticket

    # --- what both share ---

    def _asked(
        self,
        body: Callable[[bytes | None], bytes],
        path: str,
        read: Callable[[bytes], T],
        what: str,
        *,
        is_reset: bool = False,
    ) -> Steps[tuple[T, bool]]:
        """Ask, and give as much of the origin as the server says that it lacks; return what is
        answered, and whether the session was built anew."""
        link = self.link
        origin: bytes | None = None
        timeout_s = link.reset_timeout_s if is_reset else link.timeout_s
        if self._rooms_to_send:
            origin = self._origin_with_room()
        for _ in range(_ASKS):
            request, key = Request("POST", path, body(origin)), path.split("/")[2]
            answer, found = yield from link.exchange(
                key, request, read, self.events, timeout_s=timeout_s, what=what
            )
            if found is not None:
                return found, REBUILT_HEADER in answer.headers
            code = answer.failure.code
            if code == "session_behind":
                origin = origin or self._origin
            elif code == "room_unknown" and self._uploads:
                self._rooms_to_send = 1 + _ROOMS_AHEAD
                origin = self._origin_with_room()
            else:
                raise self._refused(answer, what)
        raise SandboxUnavailable(f"{link!r} asks for the origin of {what} again and again")

    def _refused(self, answer: Answered, what: str) -> SandboxError:
        failure = answer.failure
        if failure.code == "room_unknown":
            return RoomMismatch(
                f"{self.link!r} has no room `{self.room.room_id}` ({self.room.content_hash}), and"
                " `uploads=False` keeps it here"
            )
        if failure.code in FAILURES:
            return FAILURES[failure.code](failure.message)
        return self.link.refused(answer, what)

    def _make_origin(self) -> None:
        self._origin = compact(
            {
                "session": self._root,
                "room_id": self.room.room_id,
                "content_hash": self.room.content_hash,
                "seed": self._seed,
                "comments": self._comments,
                "options": self._options,
                "writes": self._writes,
            }
        )

    def _origin_with_room(self) -> bytes:
        self._rooms_to_send -= 1
        return b'%b,"room":%b}' % (self._origin[:-1], room_json(self.room))

    def fork(self, at_call: int | None) -> _Core:
        """Return the rules of a sandbox in the state after the first `at_call` calls."""
        calls = self.calls if at_call is None else at_call
        if not 0 <= calls <= self.calls:
            raise ValueError(f"`at_call` is {at_call}; {self.calls} calls were made")
        forked = copy.copy(self)
        forked.ticket, forked.calls, forked.events = None, calls, []
        forked._writes = [write for write in self._writes if write["n"] < calls]
        forked._make_origin()
        return forked

    def close(self) -> Steps[None]:
        """Let the server forget the session, if it can be told."""
        ticket, self.ticket = self.ticket, None
        self._view = None
        if ticket is not None and _taken(ticket):
            yield from _ending(ticket)


def _read_opened(session: str, body: bytes) -> Opened:
    """Read what a session shows at its start.

    Raises:
        ValueError: it is nothing such, or another session's.
    """
    opened = Opened.model_validate_json(body, strict=False)
    if opened.session != session:
        raise ValueError(f"this is the answer of session `{opened.session}`, not of `{session}`")
    return opened


def _read_result(call_id: str, wire: str, body: bytes) -> ToolResult:
    """Read the result of a call, and give it and its events the policy's id.

    Raises:
        ValueError: it is none, or another call's.
    """
    result = Result.validate_json(body)
    if result.call_id != wire:
        raise ValueError(f"this is the answer of call `{result.call_id}`, not of `{wire}`")
    events = tuple(
        replace(event, call_id=call_id) if event.call_id == wire else event
        for event in result.events
    )
    return replace(result, call_id=call_id, events=events)


def _known_specs(options: Mapping[str, Any], room: Room) -> tuple[ToolSpec, ...]:
    """Return the specs of the bundled tools: those of others are known after `reset`."""
    tools = options.get("tools")
    names = None if tools is None else [name for name in tools if name in TOOLS]
    return resolve_tools(names, options.get("language") or room.language).specs


def _written(call: ToolCall) -> bytes | None:
    """Write what is asked, without its last brace; `None` where a server would not read it."""
    if is_deeper(call.arguments, DEEPEST) or len(call.name) > 256:
        return None
    asked = {"name": call.name, "arguments": call.arguments}
    text = json.dumps(asked, ensure_ascii=False, separators=(",", ":"))
    body = clean_text(text).encode("utf-8")
    return body[:-1] if len(body) < LONGEST_CALL // 2 else None


def _unsendable(call: ToolCall, specs: Sequence[ToolSpec], language: str) -> ToolResult:
    """Answer a call that is too deep or too long to be sent as the tool itself would."""
    spec = next((spec for spec in specs if spec.name == call.name), None)
    if spec is None:
        known = ", ".join(spec.name for spec in specs)
        content = error_content(language, "unknown_tool", given=call.name, known=known)
        return ToolResult(call.id, content, error="unknown_tool")
    validate = compiled_schema(json.dumps(spec.parameters))
    problem = schema_fault(validate, call.arguments) or "arguments are too deep or too long"
    content = error_content(language, "invalid_arguments", problem=problem)
    return ToolResult(call.id, content, error="invalid_arguments")


# --- closing ---------------------------------------------------------------------------------


def _taken(ticket: _Ticket) -> bool:
    """Return whether the session is this process's to close, and has not been closed."""
    mine = _OPEN.get(ticket.pid) if ticket.pid == os.getpid() else None
    if mine is None or ticket not in mine:
        return False
    mine.discard(ticket)
    return True


def _ending(ticket: _Ticket, *, within_s: float = 1.0) -> Steps[None]:
    base = ticket.link.home(ticket.session)
    request = Request("DELETE", f"/sessions/{ticket.session}")
    yield from ticket.link.once(base, request, within_s=within_s)


def _abandon(core: _Core) -> None:
    """Close a session whose sandbox was collected, without waiting for it."""
    ticket = core.ticket
    if ticket is not None and _taken(ticket):
        background_loop().call_soon_threadsafe(_end_soon, ticket)


def _end_soon(ticket: _Ticket) -> None:
    task = asyncio.ensure_future(ticket.link.arun(_ending(ticket, within_s=UNWAITED_S)))
    task.add_done_callback(_ENDING.discard)
    _ENDING.add(task)


UNWAITED_S = 15.0
"""Time for a request that nobody waits for; a first one also makes the client."""
_ENDING: set[Any] = set()
"""What is being closed: a loop holds its tasks weakly."""


@atexit.register
def _end_all() -> None:
    """Close the sessions that are still open, for two seconds at most; leases do the rest."""
    latest = time.monotonic() + 2.0
    for ticket in list(_OPEN.get(os.getpid(), ())):
        if time.monotonic() < latest and _taken(ticket) and ticket.link.transport is None:
            ticket.link.run(_ending(ticket))


# --- the two sandboxes -----------------------------------------------------------------------


class RemoteSandbox:
    """Tools on a server (`livestream-env serve`); same results as a `LocalSandbox`."""

    def __init__(
        self,
        url: str,
        room: Room,
        *,
        language: str | None = None,
        embedder: str | Embedder = "use-multilingual",
        tools: Sequence[ToolSource] | None = None,
        token_env: str | None = None,
        headers: Mapping[str, str] | None = None,
        headers_env: Mapping[str, str] | None = None,
        verify: Verify = True,
        timeout_s: float = 5.0,
        reset_timeout_s: float = 30.0,
        total_timeout_s: float = 60.0,
        retries: int = 3,
        backoff_s: float = 1.5,
        uploads: bool = True,
        transport: httpx.AsyncBaseTransport | None = None,
    ) -> None:
        """Make a sandbox; nothing is connected yet.

        Args:
            url: a server, or several with commas between: each session keeps to one while that is
                up.
            language: of field names and messages, by default the room's.
            embedder: name of an embedder that the server has.
            tools: names of the tools to offer, by default the bundled ones.
            token_env: environment variable that holds the bearer token.
            headers: further headers, none of them secret.
            headers_env: header names -> environment variables that hold secrets.
            verify: file of certificates (PEM) of the authorities to trust.
            timeout_s: seconds that a server may be silent while it runs a call.
            reset_timeout_s: the same for `reset`, which may have to index a room.
            total_timeout_s: seconds for all tries, with their waits, however slowly answers come.
            retries: rounds of tries after the first.
            backoff_s: wait before the second retry; it grows threefold from there.
            uploads: whether the room, without its key, is sent to a server that lacks it.
            transport: carries the requests instead of sockets.

        Raises:
            ValueError: the URL is none or holds a secret; tools or embedder are given as objects;
                a limit is not above 0; `verify` holds no certificates.
            LookupError: a named environment variable is not set.
            FileNotFoundError: there are no certificates.
        """
        link = Link(
            url,
            token_env=token_env,
            headers=headers,
            headers_env=headers_env,
            verify=verify,
            timeout_s=timeout_s,
            reset_timeout_s=reset_timeout_s,
            total_timeout_s=total_timeout_s,
            retries=retries,
            backoff_s=backoff_s,
            transport=transport,
        )
        options = _options(language, embedder, tools)
        self._adopt(_Core(link, room, options, uploads=uploads))

    def _adopt(self, core: _Core) -> None:
        self._core = core
        weakref.finalize(self, _abandon, core).atexit = False

    def __repr__(self) -> str:
        return f"RemoteSandbox({self._core.link!r}, room={self._core.room.room_id!r})"

    def __getstate__(self) -> dict[str, Any]:
        return {"core": self._core}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self._adopt(state["core"])

    def __copy__(self) -> RemoteSandbox:
        return self.fork()

    def __enter__(self) -> RemoteSandbox:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    @property
    def specs(self) -> tuple[ToolSpec, ...]:
        """The tools; those that are not bundled are known after `reset`."""
        return self._core.specs

    def reset(self, *, seed: int, comments: Sequence[str]) -> RoomView:
        """Start an episode on these comments, in a session of its own.

        Raises:
            RoomMismatch: the server holds another version of the room and takes none.
            SandboxTimeout, SandboxUnavailable: no server answered in time.
            SandboxError: an option cannot be honoured; the message names it.
        """
        return self._core.link.run(self._core.reset(seed, comments))

    async def areset(self, *, seed: int, comments: Sequence[str]) -> RoomView:
        """Start an episode, awaited; as `reset`."""
        return await wait_in_background(self._core.link.arun(self._core.reset(seed, comments)))

    def call(self, call: ToolCall) -> ToolResult:
        """Run one call, once, however often it has to be sent.

        Raises:
            SessionLost: the session is gone, and so is what it did outside of itself.
            SandboxTimeout, SandboxUnavailable: no server answered in time.
            SandboxError: the tool failed.
        """
        return self._core.link.run(self._core.call(call))

    async def acall(self, call: ToolCall) -> ToolResult:
        """Run one call, awaited; as `call`."""
        return await wait_in_background(self._core.link.arun(self._core.call(call)))

    def fork(self, at_call: int | None = None) -> RemoteSandbox:
        """Return a sandbox in the state after the first `at_call` calls, by default after all; its
        session is built by its first call."""
        forked = object.__new__(RemoteSandbox)
        forked._adopt(self._core.fork(at_call))
        return forked

    def log(self) -> Sequence[TurnEvent]:
        """Return the retries and rebuilds since `reset`."""
        return tuple(self._core.events)

    def close(self) -> None:
        """Let the server forget the session; closing twice is fine."""
        self._core.link.run(self._core.close())

    async def aclose(self) -> None:
        """Let the server forget the session, awaited."""
        await wait_in_background(self._core.link.arun(self._core.close()))


class AsyncRemoteSandbox:
    """A `RemoteSandbox` whose methods are awaited; it takes the same arguments."""

    def __init__(self, url: str, room: Room, **options: Any) -> None:
        self._sandbox = RemoteSandbox(url, room, **options)

    def __repr__(self) -> str:
        return f"Async{self._sandbox!r}"

    async def __aenter__(self) -> AsyncRemoteSandbox:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()

    @property
    def specs(self) -> tuple[ToolSpec, ...]:
        """The tools; those that are not bundled are known after `reset`."""
        return self._sandbox.specs

    async def reset(self, *, seed: int, comments: Sequence[str]) -> RoomView:
        """Start an episode; raises as `RemoteSandbox.reset`."""
        return await self._sandbox.areset(seed=seed, comments=comments)

    async def call(self, call: ToolCall) -> ToolResult:
        """Run one call; raises as `RemoteSandbox.call`."""
        return await self._sandbox.acall(call)

    acall = call

    def fork(self, at_call: int | None = None) -> AsyncRemoteSandbox:
        """Return a sandbox in the state after the first `at_call` calls, by default after all."""
        forked = object.__new__(AsyncRemoteSandbox)
        forked._sandbox = self._sandbox.fork(at_call)
        return forked

    def log(self) -> Sequence[TurnEvent]:
        """Return the retries and rebuilds since `reset`."""
        return self._sandbox.log()

    async def close(self) -> None:
        """Let the server forget the session."""
        await self._sandbox.aclose()


def _options(
    language: str | None, embedder: str | Embedder, tools: Sequence[ToolSource] | None
) -> dict[str, Any]:
    """Return the options as they cross the wire: by name."""
    if not isinstance(embedder, str):
        raise ValueError("`embedder` is an object; a server needs its name")
    named = None if tools is None else [tool for tool in tools if isinstance(tool, str)]
    if named is not None and tools is not None and len(named) < len(tools):
        raise ValueError("`tools` holds objects; a server needs their names, `serve` the tools")
    options = {"language": language, "tools": named, "embedder": embedder}
    return {name: value for name, value in options.items() if value is not None}
