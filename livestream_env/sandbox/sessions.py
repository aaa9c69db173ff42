"""The sessions of a server: opened, called, rebuilt from their origin, and let go.

A session holds one sandbox and the bytes of every answer it gave, so that a repeated request gets
the same bytes and runs nothing. What a session lacks - all of it after a restart, or on another
replica - is built from the origin that the request brings. Such copies are not counted, and go
after a short time without a call. All of this lives in one event loop; sandboxes run in threads.
"""

from __future__ import annotations

import asyncio
import inspect
import logging
import math
import time
from collections import Counter, OrderedDict
from collections.abc import Awaitable, Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any, TypeVar

from pydantic_core import PydanticSerializationError

from livestream_env.errors import LivestreamError, SandboxError, SessionLost
from livestream_env.sandbox import LocalSandbox, Sandbox
from livestream_env.sandbox.wire import (
    CallRequest,
    ErrorAnswer,
    Failure,
    Opened,
    Origin,
    Result,
    code_of,
    wire_id,
)
from livestream_env.types import RoomView, ToolCall, ToolResult

T = TypeVar("T")
LOG = logging.getLogger("livestream_env.server")

COPY_LEASE_S = 30.0
BUSY_AFTER_S = 2.5
"""A session that takes longer to build goes on being built while the client is told to come
again."""
BUILDERS = 2
"""Threads that index rooms: more would not be faster, and what computes for seconds must not take
the threads that calls run in."""
KEPT_ANSWERS = 4096
KEPT_FAILURES = 1024
NOT_RUN = ("invalid_arguments", "unknown_tool")


class Refused(Exception):
    """A request that gets an error answer."""

    def __init__(
        self,
        status: int,
        code: str,
        message: str,
        *,
        option: str | None = None,
        retry_after_s: float | None = None,
    ) -> None:
        super().__init__(message)
        self.status = status
        self.failure = Failure(code=code, message=message, option=option)
        self.retry_after_s = retry_after_s


@dataclass(frozen=True, slots=True)
class Answer:
    """An answer as it is sent, again and again."""

    status: int
    body: bytes
    is_rebuilt: bool = False
    """Whether the session was built from its origin and no answer before had told it."""


@dataclass(eq=False)
class Session:
    """One episode."""

    origin: Origin
    sandbox: Any
    rebuilds: frozenset[str]
    opened: bytes
    expires_s: float = 0.0
    is_copy: bool = False
    is_rebuilt: bool = False
    """Whether it was built from its origin, until an answer tells it."""
    has_impure_write: bool = False
    """Whether it did what cannot be done again."""
    writes: list[int] = field(default_factory=list)
    """Numbers of the calls that changed the state."""
    answers: OrderedDict[int, tuple[str, Answer]] = field(default_factory=OrderedDict)
    """By number: name and arguments, and the answer."""
    lock: asyncio.Lock = field(default_factory=asyncio.Lock)


Make = Callable[[Origin], Awaitable[Sandbox]]


class Sessions:
    """All sessions of a server."""

    def __init__(
        self,
        make: Make,
        *,
        max_sessions: int,
        lease_s: float,
        threads: int,
        copy_lease_s: float = COPY_LEASE_S,
        busy_after_s: float = BUSY_AFTER_S,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._make = make
        self._max_sessions = max_sessions
        self._lease_s, self._copy_lease_s = lease_s, min(copy_lease_s, lease_s)
        self._busy_after_s = busy_after_s
        self._clock = clock
        self._sessions: dict[str, Session] = {}
        self._building: dict[str, asyncio.Task[Session]] = {}
        self._unheard: OrderedDict[str, BaseException] = OrderedDict()
        """Why sessions could not be built, where nobody waited any more: told when asked again."""
        self._threads = threads
        self._pools: dict[str, ThreadPoolExecutor] = {}
        self._reaped_s = clock()
        self.counts: Counter[str] = Counter()
        """What happened so far: opened, rebuilt, closed, expired, executed, repeated, ..."""

    def __len__(self) -> int:
        return sum(not session.is_copy for session in self._sessions.values())

    @property
    def copies(self) -> int:
        """How many sessions were built from their origin and are not counted."""
        return sum(session.is_copy for session in self._sessions.values())

    # --- requests ---

    async def start(self, name: str, origin: Origin) -> Answer:
        """Open a session; a repeat gets the same answer.

        Raises:
            Refused: at capacity; another episode has this id; the origin is refused.
        """
        self.reap_when_due()
        known = self._sessions.get(name)
        if known is None and name not in self._building:
            self._check_capacity()
        session = known or await self._built(name, origin, is_copy=False)
        _check_episode(session, origin)
        session.is_copy = False  # a call may have overtaken its opening
        self._renew(session)
        return Answer(200, session.opened)

    async def call(self, name: str, n: int, request: CallRequest) -> Answer:
        """Run call n of a session, once; a repeat gets the same bytes.

        Raises:
            Refused: n was another call; the session is unknown or behind, and no origin was sent;
                or it cannot be rebuilt.
        """
        self.reap_when_due()
        session = self._sessions.get(name) or await self._rebuilt(name, request)
        if request.origin is not None:
            _check_episode(session, request.origin)
        async with session.lock:
            stored = self._stored(session, n, request)
            if stored is not None:
                return stored
            if len(session.writes) != request.after or not _same_writes(session, request.origin):
                await self._catch_up(session, request)
            answer = await self._run(session, name, n, request)
        self._renew(session)
        return answer

    async def close(self, name: str) -> None:
        """Forget a session, once it is built and what runs in it is done; an unknown one is
        forgotten already."""
        building = self._building.get(name)
        if building is not None:
            await asyncio.wait([building])
        session = self._sessions.get(name)
        if session is None:
            return
        async with session.lock:
            if self._sessions.get(name) is session:
                del self._sessions[name]
                self.counts["closed"] += 1
                await self._release(session.sandbox)

    async def close_all(self) -> None:
        """Release every sandbox: the server stops."""
        for task in self._building.values():
            task.cancel()
        open_now = list(self._sessions.values())
        self._sessions.clear()
        await asyncio.gather(*(self._release(session.sandbox) for session in open_now))
        pools, self._pools = self._pools, {}
        for pool in pools.values():
            pool.shutdown(wait=False, cancel_futures=True)

    # --- leases ---

    def reap_when_due(self) -> None:
        """Let go of expired sessions, at most once a second."""
        if self._clock() - self._reaped_s >= min(1.0, self._copy_lease_s / 4):
            self.reap()

    def reap(self) -> None:
        """Let go of the sessions whose leases are over."""
        self._reaped_s = now = self._clock()
        over = [name for name, one in self._sessions.items() if one.expires_s <= now]
        for name in over:
            if not self._sessions[name].lock.locked():
                self.counts["expired"] += 1
                self._drop(name)

    def _drop(self, name: str) -> None:
        released = asyncio.ensure_future(self._release(self._sessions.pop(name).sandbox))
        released.add_done_callback(_RELEASING.discard)
        _RELEASING.add(released)

    def _renew(self, session: Session) -> None:
        lease_s = self._copy_lease_s if session.is_copy else self._lease_s
        session.expires_s = self._clock() + lease_s

    def _check_capacity(self) -> None:
        if len(self) + len(self._building) < self._max_sessions:
            return
        self.reap()
        if len(self) + len(self._building) < self._max_sessions:
            return
        counted = [one.expires_s for one in self._sessions.values() if not one.is_copy]
        next_s = min(counted, default=self._clock() + 1) - self._clock()
        self.counts["refused"] += 1
        raise Refused(
            503,
            "at_capacity",
            f"all {self._max_sessions} sessions are in use",
            retry_after_s=min(max(1.0, math.ceil(next_s)), 30.0),
        )

    # --- building ---

    async def _built(self, name: str, origin: Origin, *, is_copy: bool) -> Session:
        """Build a session once, however many requests wait for it."""
        task = self._building.get(name)
        if task is None:
            if name in self._unheard:
                raise self._unheard.pop(name)
            task = asyncio.create_task(self._build(name, origin, is_copy))
            self._building[name] = task
            task.add_done_callback(lambda _: self._building.pop(name, None))
        done, _ = await asyncio.wait([task], timeout=self._busy_after_s)
        if not done:
            task.add_done_callback(partial(self._keep_failure, name))
            message = "the session is being built; ask again"
            raise Refused(503, "warming", message, retry_after_s=1)
        return task.result()

    def _keep_failure(self, name: str, task: asyncio.Task[Session]) -> None:
        error = None if task.cancelled() else task.exception()
        if error is not None:
            self._unheard[name] = error
            if len(self._unheard) > KEPT_FAILURES:
                self._unheard.popitem(last=False)

    async def _build(self, name: str, origin: Origin, is_copy: bool) -> Session:
        session = await self._from_origin(origin, is_copy)
        session.is_rebuilt = is_copy
        if is_copy and self.copies >= self._max_sessions:
            self._drop_oldest_copy()
        self._renew(session)
        self._sessions[name] = session
        self.counts["rebuilt" if is_copy else "opened"] += 1
        return session

    async def _from_origin(self, origin: Origin, is_copy: bool) -> Session:
        try:
            sandbox = await self._make(origin)
        except Refused:
            raise
        except Exception as error:
            raise _refused_for(error, "could not be made") from error
        try:
            return await self._started(sandbox, origin, is_copy)
        except BaseException as error:
            await self._release(sandbox)
            if isinstance(error, Refused) or not isinstance(error, Exception):
                raise
            raise _refused_for(error, "failed at reset") from error

    async def _started(self, sandbox: Any, origin: Origin, is_copy: bool) -> Session:
        view = await self._in_thread(
            lambda: sandbox.reset(seed=origin.seed, comments=list(origin.comments))
        )
        _check_view(view, sandbox, origin)
        rebuilds = frozenset(getattr(sandbox, "rebuildable", ()))
        await self._repeat_writes(sandbox, origin, rebuilds)
        specs, names = tuple(sandbox.specs), tuple(sorted(rebuilds))
        opened = Opened(session=origin.session, view=view, specs=specs, rebuilds=names)
        writes = [write.n for write in origin.writes]
        body = opened.model_dump_json().encode("utf-8")
        lean = origin.model_copy(update={"room": None})
        return Session(lean, sandbox, rebuilds, body, is_copy=is_copy, writes=writes)

    async def _repeat_writes(self, sandbox: Any, origin: Origin, rebuilds: frozenset[str]) -> None:
        for write in origin.writes:
            if write.name not in rebuilds:
                raise SessionLost(
                    f"the session is not here any more, and call {write.n} (`{write.name}`) cannot"
                    " be run a second time"
                )
            _number(sandbox, write.n)
            call = ToolCall(wire_id(origin.session, write.n), write.name, write.arguments)
            result = await self._answered(sandbox, call)
            if result.error is not None or result.state is None:
                raise SessionLost(f"call {write.n} (`{write.name}`) did not do again what it did")

    async def _rebuilt(self, name: str, request: CallRequest) -> Session:
        if request.origin is None:
            raise Refused(409, "session_behind", "the session is not known here; send its origin")
        return await self._built(name, request.origin, is_copy=True)

    async def _catch_up(self, session: Session, request: CallRequest) -> None:
        """Build a session anew that has missed what ran elsewhere; its lock is held."""
        if request.origin is None:
            message = "other calls changed the state elsewhere; send the session's origin"
            raise Refused(409, "session_behind", message)
        if session.has_impure_write:
            raise Refused(
                424, "session_lost", "calls ran elsewhere that cannot be run a second time here"
            )
        made = await self._from_origin(request.origin, session.is_copy)
        self.counts["rebuilt"] += 1
        await self._release(session.sandbox)
        session.sandbox, session.writes = made.sandbox, made.writes
        session.origin, session.rebuilds = made.origin, made.rebuilds
        session.is_rebuilt = True

    def _drop_oldest_copy(self) -> None:
        idle = [
            (one.expires_s, name)
            for name, one in self._sessions.items()
            if one.is_copy and not one.lock.locked()
        ]
        if idle:
            self._drop(min(idle)[1])

    # --- calls ---

    def _stored(self, session: Session, n: int, request: CallRequest) -> Answer | None:
        found = session.answers.get(n)
        if found is not None:
            if found[0] != _fingerprint(request):
                raise Refused(409, "call_conflict", f"call {n} was another one")
            self.counts["repeated"] += 1
            self._renew(session)
            return found[1]
        if n in session.writes:
            raise Refused(409, "call_conflict", f"call {n} has run, and its answer is not here")
        return None

    async def _run(self, session: Session, name: str, n: int, request: CallRequest) -> Answer:
        call = ToolCall(wire_id(name, n), request.name, request.arguments)
        _number(session.sandbox, n)
        try:
            result = await self._answered(session.sandbox, call)
            if not isinstance(result, ToolResult) or result.call_id != call.id:
                raise SandboxError(f"tool `{call.name}` gave what is no result of this call")
            answer = Answer(200, Result.dump_json(result))
        except Exception as error:
            answer = self._failure(call, error)
            result = None
        self.counts["executed"] += 1
        self._note_write(session, n, call, result)
        answer = replace(answer, is_rebuilt=session.is_rebuilt)
        session.is_rebuilt = False
        session.answers[n] = (_fingerprint(request), answer)
        if len(session.answers) > KEPT_ANSWERS:
            session.answers.popitem(last=False)
        return answer

    def _note_write(
        self, session: Session, n: int, call: ToolCall, result: ToolResult | None
    ) -> None:
        mutates = {spec.name for spec in session.sandbox.specs if spec.mutates}
        if call.name not in mutates or (result is not None and result.error in NOT_RUN):
            return
        if call.name in session.rebuilds:
            if result is not None and result.state is not None:
                session.writes.append(n)
            return
        session.writes.append(n)
        session.has_impure_write = True
        session.is_copy = False  # nothing can take its place: it stays for a whole lease

    def _failure(self, call: ToolCall, error: Exception) -> Answer:
        """Return the answer to a call whose sandbox failed; what is not ours to show is logged."""
        if isinstance(error, SandboxError):
            return error_answer(_failed(error))
        LOG.error("tool `%s` failed", call.name, exc_info=error)
        if isinstance(error, PydanticSerializationError):
            message = f"tool `{call.name}` gave what is no JSON"
        else:
            message = f"tool `{call.name}` failed: {type(error).__name__}"
        return error_answer(Refused(424, "sandbox_failed", message))

    async def _answered(self, sandbox: Any, call: ToolCall) -> ToolResult:
        """Run a call: what is remembered or async in the loop, what computes in a thread."""
        is_bundled = isinstance(sandbox, LocalSandbox) and not sandbox.is_own(call.name)
        if type(sandbox) is LocalSandbox and (remembered := sandbox.recall(call)) is not None:
            return remembered
        if hasattr(sandbox, "acall") and not is_bundled:
            awaited: ToolResult = await sandbox.acall(call)
            return awaited
        found: ToolResult = await self._in_thread(lambda: sandbox.call(call))
        return found

    async def _in_thread(self, work: Callable[[], Any]) -> Any:
        made = await self._run_in("server", self._threads, work)
        return await made if inspect.isawaitable(made) else made

    async def in_thread(self, work: Callable[[], T]) -> T:
        """Run what may block in one of the server's threads."""
        made: T = await self._in_thread(work)
        return made

    async def in_builder(self, work: Callable[[], T]) -> T:
        """Run what indexes a room in one of a few threads beside those of calls."""
        return await self._run_in("builder", BUILDERS, work)

    async def _run_in(self, name: str, threads: int, work: Callable[[], T]) -> T:
        if name not in self._pools:
            self._pools[name] = ThreadPoolExecutor(threads, f"livestream_env {name}")
        return await asyncio.get_running_loop().run_in_executor(self._pools[name], work)

    async def _release(self, sandbox: Any) -> None:
        try:
            await self._in_thread(sandbox.close)
        except Exception:  # a sandbox that cannot be closed is gone all the same
            LOG.exception("a sandbox could not be closed")


_RELEASING: set[asyncio.Future[None]] = set()
"""What is being closed: a loop holds its tasks weakly."""


def error_answer(refused: Refused, request_id: str | None = None) -> Answer:
    """Write an error answer."""
    failure = refused.failure.model_copy(update={"request_id": request_id})
    body = ErrorAnswer(error=failure).model_dump_json(exclude_none=True)
    return Answer(refused.status, body.encode("utf-8", "replace"))


def _number(sandbox: Any, n: int) -> None:
    """Let idempotency keys count from the episode's start, also in a session built anew."""
    if isinstance(sandbox, LocalSandbox):
        sandbox.calls = n


def _refused_for(error: Exception, what: str) -> Refused:
    if isinstance(error, LivestreamError):
        return _failed(error)
    LOG.error("a sandbox %s", what, exc_info=error)
    return Refused(424, "sandbox_failed", f"the sandbox {what}: {type(error).__name__}")


def _failed(error: LivestreamError) -> Refused:
    code = code_of(error) if isinstance(error, SandboxError) else "sandbox_failed"
    return Refused(424, code, str(error)[:4000])


def _check_episode(session: Session, asked: Origin) -> None:
    """Refuse who asks one session for another's room, comments, seed or options."""
    known = session.origin
    if (
        asked.content_hash != known.content_hash
        or asked.seed != known.seed
        or asked.comments != known.comments
        or asked.options != known.options
    ):
        raise Refused(409, "session_conflict", "this session is another episode")


def _same_writes(session: Session, origin: Origin | None) -> bool:
    return origin is None or [write.n for write in origin.writes] == session.writes


def _fingerprint(request: CallRequest) -> str:
    return f"{request.name}:{request.arguments.canonical}"


def _check_view(view: object, sandbox: Any, origin: Origin) -> None:
    """Refuse an episode that is not the one asked for.

    Raises:
        Refused: it is of another room, or an option is not honoured.
    """
    if not isinstance(view, RoomView):
        raise Refused(424, "sandbox_failed", "the sandbox gave no view of its room at reset")
    if view.content_hash != origin.content_hash:
        raise Refused(
            409,
            "room_mismatch",
            f"the sandbox holds room `{view.room_id}` ({view.content_hash}), the client"
            f" `{origin.room_id}` ({origin.content_hash})",
        )
    wanted = origin.options
    if wanted.language not in (None, view.language):
        message = f"`language` is `{wanted.language}`; this sandbox speaks `{view.language}`"
        raise Refused(422, "option_refused", message, option="language")
    offered = [spec.name for spec in sandbox.specs]
    if wanted.tools is not None and len(offered) != len(set(wanted.tools)):
        message = f"`tools` cannot be chosen freely here; offered are {', '.join(offered)}"
        raise Refused(422, "option_refused", message, option="tools")
