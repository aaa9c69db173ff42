"""One event loop a process, in a thread of its own, for what sync and async callers share.

Clients and locks that live in this loop meet no other: a caller may use `asyncio.run` any number
of times, be in a running loop (a notebook), in any thread, or in a forked child, which gets a loop
of its own.
"""

from __future__ import annotations

import asyncio
import os
import threading
from collections.abc import Coroutine
from concurrent.futures import Future
from typing import Any, TypeVar

T = TypeVar("T")


_LOOPS: dict[int, asyncio.AbstractEventLoop] = {}
"""By process id: a fork's loop is not the parent's, whose thread is not there."""


def background_loop() -> asyncio.AbstractEventLoop:
    """Return the loop of this process; it runs until the process ends."""
    loop = _LOOPS.get(os.getpid())
    return loop if loop is not None else _made()


def _made() -> asyncio.AbstractEventLoop:
    """Start a loop, unless another thread is quicker: no lock, which a fork could leave held."""
    made = asyncio.new_event_loop()
    kept = _LOOPS.setdefault(os.getpid(), made)
    if kept is not made:
        made.close()
        return kept
    threading.Thread(target=made.run_forever, daemon=True, name="livestream_env loop").start()
    return made


def run_in_background(made: Coroutine[Any, Any, T]) -> T:
    """Run a coroutine in the loop and wait for it; an interrupt cancels it."""
    future = asyncio.run_coroutine_threadsafe(made, background_loop())
    try:
        return future.result()
    except BaseException:
        future.cancel()
        raise


async def wait_in_background(made: Coroutine[Any, Any, T]) -> T:
    """Run a coroutine in the loop and await it in the caller's own; cancelling one cancels both."""
    future: Future[T] = asyncio.run_coroutine_threadsafe(made, background_loop())
    return await asyncio.wrap_future(future)
