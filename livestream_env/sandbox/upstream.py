"""`Upstream`: what a service that tools ask can bear, for all threads and loops of a process.

So many requests at a time and a second; who finds no place queues, first come first served, until a
deadline. A service that fails time after time is left alone for a while, then tried with one
request. Being turned away is infrastructure's failure, never the policy's.
"""

from __future__ import annotations

import asyncio
import os
import time
from collections import deque
from concurrent.futures import Future

from livestream_env.endpoints import above_zero
from livestream_env.errors import SandboxTimeout, SandboxUnavailable, ToolError
from livestream_env.tools import LOCK


class Upstream:
    """Limits of one service: `with upstream.request():`, or `async with` in async code."""

    def __init__(
        self,
        name: str,
        *,
        at_once: int = 8,
        per_s: float | None = None,
        queue_s: float = 2.0,
        failures: int = 5,
        rest_s: float = 5.0,
    ) -> None:
        """Make the limits; a module keeps one for each service.

        Args:
            name: of the service, for messages.
            at_once: requests at a time.
            per_s: requests a second, evenly spaced; `None` for any number.
            queue_s: seconds to wait for a place.
            failures: failures in a row after which the service is left alone.
            rest_s: seconds for which it is; then one request tries it.
        """
        self.name = name
        self.queue_s = above_zero("queue_s", queue_s)
        self._at_once = self._free = int(above_zero("at_once", at_once))
        self._apart_s = 0.0 if per_s is None else 1 / above_zero("per_s", per_s)
        self._most_failures = int(above_zero("failures", failures))
        self._rest_s = above_zero("rest_s", rest_s)
        self._waiting: deque[Future[None]] = deque()
        self._next_s = 0.0
        self._failed = 0
        self._rests_until_s: float | None = None
        self._is_tried = False
        self._process = os.getpid()

    def __repr__(self) -> str:
        return f"Upstream({self.name!r})"

    @property
    def is_resting(self) -> bool:
        """Whether the service failed so often that it is left alone, or only tried."""
        return self._rests_until_s is not None

    def request(self) -> _Request:
        """Return the context of one request, which waits for its place on entry.

        An exception within is the service's failure, but for a `ToolError`, which is an answer, and
        for what ends the caller, such as a cancellation.

        Raises:
            SandboxTimeout: on entry, there was no place within `queue_s`.
            SandboxUnavailable: on entry, the service is left alone.
        """
        return _Request(self)

    # --- for `_Request` ---

    def queued(self) -> Future[None]:
        """Queue for a place; the future is done once there is one."""
        with LOCK:
            if self._process != os.getpid():  # a fork: its parent's requests are not its own
                self._process, self._free, self._is_tried = os.getpid(), self._at_once, False
                self._waiting.clear()
            self._check_rest()
            place: Future[None] = Future()
            self._waiting.append(place)
            self._hand_out()
            return place

    def started(self, deadline_s: float) -> tuple[float, bool]:
        """Return the seconds until a request that has a place may start, and whether it is the one
        that tries the service."""
        with LOCK:
            self._check_rest()
            now = time.monotonic()
            start_s = max(now, self._next_s)
            if start_s > deadline_s:
                raise self.late()
            self._next_s = start_s + self._apart_s
            self._is_tried = self.is_resting
            return start_s - now, self._is_tried

    def left(self, place: Future[None]) -> None:
        """Leave the queue, or the place."""
        if not place.cancel():
            with LOCK:
                self._free += 1
                self._hand_out()

    def ended(self, is_trial: bool, error: BaseException | None) -> None:
        """Note how a request ended; those from before a rest say nothing of what is now."""
        with LOCK:
            if is_trial:
                self._is_tried = False
            if self.is_resting and not is_trial:
                return
            if error is None or isinstance(error, ToolError):
                self._failed, self._rests_until_s = 0, None
            elif isinstance(error, Exception):
                self._failed += 1
                if is_trial or self._failed >= self._most_failures:
                    self._rests_until_s = time.monotonic() + self._rest_s

    def late(self) -> SandboxTimeout:
        """Make the error of who waited in vain."""
        rate = f" and {1 / self._apart_s:g} a second" if self._apart_s else ""
        return SandboxTimeout(
            f"no place at upstream `{self.name}` within {self.queue_s:g} s: it takes"
            f" {self._at_once} requests at a time{rate}"
        )

    def _hand_out(self) -> None:
        while self._free and self._waiting:
            place = self._waiting.popleft()
            if place.set_running_or_notify_cancel():
                self._free -= 1
                place.set_result(None)

    def _check_rest(self) -> None:
        if self._rests_until_s is None:
            return
        left_s = self._rests_until_s - time.monotonic()
        if left_s > 0 or self._is_tried:
            raise SandboxUnavailable(
                f"upstream `{self.name}` failed {self._failed} times in a row and is left alone;"
                f" it is tried again in {max(left_s, 0.0):.1f} s"
            )


class _Request:
    """One request at an `Upstream`, as a context."""

    def __init__(self, upstream: Upstream) -> None:
        self._upstream = upstream

    def __enter__(self) -> None:
        deadline_s = self._queue()
        try:
            try:
                self._place.result(self._upstream.queue_s)
            except TimeoutError:
                raise self._upstream.late() from None
            time.sleep(self._start(deadline_s))
        except BaseException:
            self._give_up()
            raise

    async def __aenter__(self) -> None:
        deadline_s = self._queue()
        try:
            try:
                async with asyncio.timeout(self._upstream.queue_s):
                    await asyncio.wrap_future(self._place)
            except TimeoutError:
                raise self._upstream.late() from None
            await asyncio.sleep(self._start(deadline_s))
        except BaseException:
            self._give_up()
            raise

    def _queue(self) -> float:
        """Queue, and return until when."""
        self._is_trial = False
        self._place = self._upstream.queued()
        return time.monotonic() + self._upstream.queue_s

    def _start(self, deadline_s: float) -> float:
        wait_s, self._is_trial = self._upstream.started(deadline_s)
        return wait_s

    def _give_up(self) -> None:
        """Leave without having asked: that says nothing of the service."""
        self._upstream.ended(self._is_trial, GeneratorExit())
        self._upstream.left(self._place)

    def __exit__(self, _: object, error: BaseException | None, __: object) -> None:
        self._upstream.ended(self._is_trial, error)
        self._upstream.left(self._place)

    async def __aexit__(self, _: object, error: BaseException | None, __: object) -> None:
        self.__exit__(_, error, __)
