"""Limits of a service that tools ask: places, rate, queue, and leaving it alone when it fails."""

from __future__ import annotations

import asyncio
import multiprocessing
import os
import threading
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest

import livestream_env as le
from livestream_env.errors import SandboxTimeout, SandboxUnavailable
from livestream_env.sandbox import Upstream


class Counted:
    """Counts who is inside at a time, and when each began."""

    def __init__(self) -> None:
        self.inside = self.most = 0
        self.began_s: list[float] = []
        self._lock = threading.Lock()

    def __enter__(self) -> None:
        with self._lock:
            self.inside += 1
            self.most = max(self.most, self.inside)
            self.began_s.append(time.monotonic())

    def __exit__(self, *_: object) -> None:
        with self._lock:
            self.inside -= 1


def failed(upstream: Upstream, error: BaseException) -> None:
    with pytest.raises(type(error)), upstream.request():
        raise error


def test_so_many_at_a_time_from_threads_and_loops_together() -> None:
    upstream, counted = Upstream("goods", at_once=3, queue_s=20), Counted()

    def ask() -> None:
        with upstream.request(), counted:
            time.sleep(0.005)

    async def ask_all() -> None:
        async def one() -> None:
            async with upstream.request():
                with counted:
                    await asyncio.sleep(0.005)

        await asyncio.gather(*(one() for _ in range(20)))

    with ThreadPoolExecutor(20) as pool:
        asked = [pool.submit(ask) for _ in range(40)]
        asked += [pool.submit(lambda: asyncio.run(ask_all())) for _ in range(2)]
        for one in asked:
            one.result()
    assert len(counted.began_s) == 80
    assert counted.most == 3


def test_the_rate_is_kept_under_32_threads() -> None:
    """At 100 a second, evenly: request k begins no sooner than k/100 s after the start."""
    upstream, counted = Upstream("goods", at_once=32, per_s=100, queue_s=20), Counted()

    def ask(_: int) -> None:
        with upstream.request(), counted:
            pass

    start_s = time.monotonic()
    with ThreadPoolExecutor(32) as pool:
        list(pool.map(ask, range(96)))
    assert len(counted.began_s) == 96
    for k, began_s in enumerate(sorted(counted.began_s)):
        assert began_s - start_s > k / 100 - 0.001


def test_who_comes_first_is_served_first() -> None:
    upstream, order = Upstream("goods", at_once=1, queue_s=20), []
    go = threading.Event()

    def ask(number: int) -> None:
        with upstream.request():
            order.append(number)
            if number == 0:
                go.wait(10)

    threads = []
    for number in range(6):
        threads.append(threading.Thread(target=ask, args=(number,)))
        threads[-1].start()
        while len(upstream._waiting) + len(order) <= number:
            time.sleep(0.001)
    go.set()
    for thread in threads:
        thread.join()
    assert order == list(range(6))


@pytest.mark.parametrize("is_async", [False, True], ids=["sync", "async"])
def test_the_queue_has_a_deadline_and_leaving_it_costs_nobody_a_place(is_async: bool) -> None:
    upstream = Upstream("goods", at_once=1, queue_s=0.05)

    async def ask() -> None:
        async with upstream.request():
            raise AssertionError("there was a place")

    def ask_sync() -> None:
        with upstream.request():
            raise AssertionError("there was a place")

    with upstream.request():
        for _ in range(3):
            message = r"no place at upstream `goods` within 0\.05 s: it takes 1 requests at a time"
            with pytest.raises(SandboxTimeout, match=message):
                asyncio.run(ask()) if is_async else ask_sync()
    for _ in range(3):
        with upstream.request():
            pass
    assert not upstream.is_resting, "who is turned away tells nothing of the service"


def test_who_would_be_too_late_by_the_rate_is_turned_away_and_others_are_not() -> None:
    upstream = Upstream("goods", per_s=2, queue_s=0.2)
    with upstream.request():
        pass
    with pytest.raises(SandboxTimeout, match="and 2 a second"), upstream.request():
        pass
    time.sleep(0.35)
    with upstream.request():
        pass


def test_a_service_that_fails_is_left_alone_and_tried_with_one_request() -> None:
    upstream = Upstream("goods", failures=3, rest_s=0.3, at_once=8)
    for _ in range(2):
        failed(upstream, ConnectionError())
    with upstream.request():
        pass
    for _ in range(3):
        assert not upstream.is_resting
        failed(upstream, TimeoutError())
    message = "upstream `goods` failed 3 times in a row and is left alone"
    for _ in range(2):
        with pytest.raises(SandboxUnavailable, match=message), upstream.request():
            pass
    time.sleep(0.35)
    with upstream.request(), pytest.raises(SandboxUnavailable, match="alone"), upstream.request():
        pass  # one tries, no other does
    assert not upstream.is_resting
    with upstream.request(), upstream.request():
        pass


def test_a_trial_that_fails_begins_another_rest_and_one_that_is_given_up_does_not() -> None:
    upstream = Upstream("goods", failures=1, rest_s=0.2)
    failed(upstream, OSError())
    time.sleep(0.25)
    failed(upstream, KeyboardInterrupt())
    assert upstream.is_resting
    failed(upstream, OSError())
    with pytest.raises(SandboxUnavailable), upstream.request():
        pass
    time.sleep(0.25)
    with upstream.request():
        pass
    assert not upstream.is_resting


def test_an_answer_from_before_the_rest_does_not_end_it() -> None:
    upstream = Upstream("goods", failures=1, rest_s=60)
    with upstream.request():
        failed(upstream, OSError())
    assert upstream.is_resting


def test_the_policys_mistake_is_an_answer_and_a_cancelled_caller_is_none() -> None:
    upstream = Upstream("goods", failures=2, at_once=1)
    failed(upstream, OSError())
    failed(upstream, le.ToolError("no such goods"))
    failed(upstream, OSError())
    assert not upstream.is_resting

    async def cancelled() -> None:
        async def ask() -> None:
            async with upstream.request():
                await asyncio.sleep(60)

        asking = [asyncio.create_task(ask()) for _ in range(3)]  # one has the place
        await asyncio.sleep(0.05)
        for task in asking:
            task.cancel()
        await asyncio.gather(*asking, return_exceptions=True)

    asyncio.run(cancelled())
    assert not upstream.is_resting
    with upstream.request():
        pass


@pytest.mark.skipif(not hasattr(os, "fork"), reason="no fork here")
def test_a_forked_child_has_all_the_places() -> None:
    upstream = Upstream("goods", at_once=1, queue_s=0.2)
    context = multiprocessing.get_context("fork")

    def ask() -> None:
        with upstream.request():
            pass

    with upstream.request():
        child = context.Process(target=ask)
        child.start()
        child.join(20)
    assert child.exitcode == 0


@pytest.mark.parametrize("name", ["at_once", "per_s", "queue_s", "failures", "rest_s"])
def test_limits_are_above_zero(name: str) -> None:
    make: Callable[..., Any] = Upstream
    with pytest.raises(ValueError, match=f"`{name}` is 0"):
        make("goods", **{name: 0})
