"""The way to a sandbox server: tries, waits, time limits, connections.

What to send next is decided by generators without I/O, which yield `Try` and `Wait` and are sent
the outcome. Two drivers run them: a sync one on an `httpx.Client`, an async one on an
`httpx.AsyncClient` in the background loop. Each process has one client of either kind for all its
sandboxes, which threads share and a fork leaves to its parent.
"""

from __future__ import annotations

import asyncio
import atexit
import contextlib
import os
import random
import ssl
import time
from collections.abc import Callable, Generator, Mapping
from dataclasses import dataclass, field
from functools import lru_cache
from hashlib import blake2b
from pathlib import Path
from typing import Any, Literal, NamedTuple, TypeVar

import httpx

from livestream_env.background import background_loop, run_in_background
from livestream_env.endpoints import (
    above_zero,
    certificates,
    checked_url,
    is_loopback,
    retry_after_s,
    scrubbed,
    secret_headers,
)
from livestream_env.errors import SandboxError, SandboxTimeout, SandboxUnavailable
from livestream_env.sandbox.punctual import Limit, make_punctual
from livestream_env.sandbox.wire import ErrorAnswers, Failure
from livestream_env.types import TurnEvent
from livestream_env.version import VERSION
from livestream_env.words import safe

T = TypeVar("T")

CONNECTIONS = 1024
KEPT_CONNECTIONS = 256
AT_ONCE = 128
CONNECT_S = 2.0
DOWN_S = 5.0
"""Seconds for which a server that could not be reached comes last."""
LONGEST_ANSWER = 64 << 20
_SECRET_HEADERS = ("authorization", "proxy-authorization", "cookie", "x-api-key")
_JITTER = random.SystemRandom()


@dataclass(frozen=True, slots=True)
class Request:
    """What is asked, whichever server answers."""

    method: Literal["POST", "DELETE"]
    path: str
    body: bytes = b""


@dataclass(frozen=True, slots=True)
class Try:
    """A request to one server, within these seconds without a byte, and in all."""

    base: str
    request: Request
    timeout_s: float
    total_s: float


@dataclass(frozen=True, slots=True)
class Wait:
    """A pause."""

    seconds: float


@dataclass(frozen=True, slots=True)
class Answered:
    """An answer, of whatever status."""

    status: int
    headers: Mapping[str, str]
    body: bytes

    @property
    def failure(self) -> Failure:
        """What an error answer tells; its status, where it tells nothing."""
        try:
            return ErrorAnswers.validate_json(self.body, strict=False).error
        except ValueError:
            return Failure(code="", message=f"HTTP status {self.status}")


class Failed(NamedTuple):
    """No answer."""

    kind: Literal["connect", "lost", "bad_answer", "timeout", "pool", "certificate", "other"]
    """It could not be reached; the connection broke; what came is no answer to this; it was silent,
    or slow; no connection was free; its certificate is not trusted."""
    text: str


_PASSING = ("connect", "lost", "bad_answer")
_HOW = {
    "connect": "cannot be reached",
    "lost": "broke the connection",
    "bad_answer": "answered with what is no answer to this",
    "certificate": "shows a certificate that `verify` does not trust",
    "other": "cannot be asked",
}
Outcome = Answered | Failed
Steps = Generator[Try | Wait, Outcome | None, T]


class Link:
    """Where the servers of a sandbox are, and how long to try."""

    def __init__(
        self,
        url: str,
        *,
        token_env: str | None,
        headers: Mapping[str, str] | None,
        headers_env: Mapping[str, str] | None,
        verify: Literal[True] | str | os.PathLike[str],
        timeout_s: float,
        reset_timeout_s: float,
        total_timeout_s: float,
        retries: int,
        backoff_s: float,
        transport: httpx.AsyncBaseTransport | None,
    ) -> None:
        self.bases = tuple(_base(one.strip()) for one in url.split(",") if one.strip())
        if not self.bases:
            raise ValueError("`url` is empty; it is a URL such as `http://127.0.0.1:8765`")
        self.timeout_s = above_zero("timeout_s", timeout_s)
        self.reset_timeout_s = above_zero("reset_timeout_s", reset_timeout_s)
        self.total_timeout_s = above_zero("total_timeout_s", total_timeout_s)
        if retries < 0:
            raise ValueError(f"`retries` is {retries}; it is a number from 0")
        self.retries = retries
        self._backoff_s = above_zero("backoff_s", backoff_s)
        self._headers = dict(headers or {})
        for name, value in self._headers.items():
            if not all(
                isinstance(t, str) and t.isascii() and t.isprintable() for t in (name, value)
            ):
                raise ValueError(f"`headers` holds `{safe(str(name))}`, which no header can be")
            if name.lower() in _SECRET_HEADERS:
                raise ValueError(
                    f"`headers` holds `{name}`; name an environment variable that holds it, in"
                    " `token_env` or `headers_env`"
                )
        self._token_env, self._headers_env = token_env, dict(headers_env or {})
        secret_headers(token_env, self._headers_env)
        self._verify = verify if verify is True else certificates(verify)
        self._transport = transport
        self._down: dict[str, float] = {}

    def __repr__(self) -> str:
        return repr(",".join(self.bases))

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_down": {}}

    # --- rules, without I/O ---

    def exchange(
        self,
        key: str,
        request: Request,
        read: Callable[[bytes], T],
        events: list[TurnEvent],
        *,
        timeout_s: float,
        what: str,
    ) -> Steps[tuple[Answered, T | None]]:
        """Ask until there is an answer that does not pass with time; return it, read where it is
        one of success.

        Of several servers the one that suits `key` best is asked, and the next ones where it
        fails. Failures to connect, 429 and 5xx are tried again; so are lost connections and
        answers that `read` refuses by a `ValueError`, for a server answers a repeat without running
        anything again. A server that says that it is still building is at work: its answer does not
        count as a try.

        Raises:
            SandboxTimeout: a server was silent, or there is no time for another try.
            SandboxUnavailable: all tries failed.
        """
        deadline = time.monotonic() + self.total_timeout_s
        attempt = 0
        while True:
            asked_s, is_building = None, False
            for base in self._ordered(key):
                left_s = deadline - time.monotonic()
                if left_s <= 0:
                    raise SandboxTimeout(self._too_long(what))
                outcome = yield Try(base, request, min(timeout_s, left_s), left_s)
                assert outcome is not None
                if isinstance(outcome, Answered) and not _passes(outcome.status):
                    try:
                        return outcome, read(outcome.body) if outcome.status == 200 else None
                    except ValueError:
                        outcome = Failed("bad_answer", repr(outcome.body[:80]))
                is_building |= isinstance(outcome, Answered) and outcome.failure.code == "warming"
                asked_s = self._noted(base, outcome, asked_s)
                error = self._error(base, outcome, what)
                if isinstance(outcome, Failed) and outcome.kind not in _PASSING:
                    raise error
                events.append(TurnEvent("sandbox_retry", str(error)))
            if attempt >= self.retries and not is_building:
                raise error
            wait_s = self._pause_s(attempt, asked_s)
            if time.monotonic() + wait_s > deadline:
                raise SandboxTimeout(f"{error}; {self._too_long(what)}")
            yield Wait(wait_s)
            attempt += not is_building

    def once(self, base: str, request: Request, *, within_s: float = 1.0) -> Steps[None]:
        """Send what need not succeed, once."""
        yield Try(base, request, within_s, within_s)

    def home(self, key: str) -> str:
        """Return the server that is asked first."""
        return self._ordered(key)[0]

    def refused(self, answer: Answered, what: str) -> SandboxError:
        """Name an answer that is an error and does not pass with time."""
        failure = answer.failure
        said = self._scrubbed(failure.message)
        if answer.status in (401, 403):
            hint = "" if self._token_env else "; name the variable that holds it in `token_env`"
            return SandboxUnavailable(f"{self!r} refused {what}: {said}{hint}")
        return SandboxError(f"{self!r} refused {what} ({answer.status} {failure.code}): {said}")

    def _ordered(self, key: str) -> list[str]:
        """Return the servers, best first (rendezvous hashing), those that are down last."""
        if len(self.bases) == 1:
            return list(self.bases)
        now = time.monotonic()

        def rank(base: str) -> tuple[bool, bytes]:
            weight = blake2b(f"{base}\n{key}".encode(), digest_size=8).digest()
            return self._down.get(base, 0.0) > now, weight

        return sorted(self.bases, key=rank)

    def _noted(self, base: str, outcome: Outcome, asked_s: float | None) -> float | None:
        """Note a server that is down, and return the longest wait that was asked for."""
        if isinstance(outcome, Failed):
            if outcome.kind == "connect":
                self._down[base] = time.monotonic() + DOWN_S
            return asked_s
        wanted_s = retry_after_s(outcome.headers, time.time())
        return asked_s if wanted_s is None else max(wanted_s, asked_s or 0.0)

    def _pause_s(self, attempt: int, asked_s: float | None) -> float:
        """Return the wait before the next round: short once, then long enough for a restart."""
        own_s = self._backoff_s / 30 if attempt == 0 else self._backoff_s * 3 ** (attempt - 1)
        return max(asked_s or 0.0, min(own_s, 10.0)) + _JITTER.uniform(0, min(own_s, 10.0) / 2)

    def _too_long(self, what: str) -> str:
        return (
            f"{what} got no answer of {self!r} within `total_timeout_s` of"
            f" {self.total_timeout_s:g} s, tries and waits included"
        )

    def _error(self, base: str, outcome: Outcome, what: str) -> SandboxError:
        if isinstance(outcome, Answered):
            failure = outcome.failure
            said = self._scrubbed(failure.message)
            code = f"{outcome.status} {failure.code}".strip()
            return SandboxUnavailable(f"{base} answered {what} with {code}: {said}")
        if outcome.kind == "timeout":
            return SandboxTimeout(f"{what} got no answer of {base}: {self._scrubbed(outcome.text)}")
        if outcome.kind == "pool":
            return SandboxTimeout(
                f"{what} was not sent: the client pool is full, all {CONNECTIONS} connections"
                f" stayed in use; {base} may be well"
            )
        how = _HOW[outcome.kind]
        return SandboxUnavailable(f"{base} {how} ({what}): {self._scrubbed(outcome.text)}")

    def _scrubbed(self, text: str) -> str:
        try:
            secrets = secret_headers(self._token_env, self._headers_env).values()
        except LookupError:
            secrets = {}.values()
        return scrubbed(text, secrets)[:2000]

    # --- drivers ---

    def run(self, steps: Steps[T]) -> T:
        """Run steps to their end, from sync code."""
        if self._transport is not None:
            return run_in_background(self.arun(steps))
        return _driven(steps, self._outcome)

    async def arun(self, steps: Steps[T]) -> T:
        """Run steps to their end; in the background loop."""
        outcome: Outcome | None = None
        try:
            while True:
                step = steps.send(outcome)
                if isinstance(step, Wait):
                    await asyncio.sleep(step.seconds)
                    outcome = None
                else:
                    outcome = await self._aoutcome(step)
        except StopIteration as done:
            result: T = done.value
            return result

    def _outcome(self, step: Try) -> Outcome:
        try:
            response = _client_of(self, step.base).send(self._sent(step), stream=True)
            try:
                body = bytearray()
                for chunk in response.iter_raw():
                    body += chunk
                    if len(body) > LONGEST_ANSWER:
                        return _endless(len(body))
            finally:
                response.close()
            return Answered(response.status_code, response.headers, bytes(body))
        except (httpx.HTTPError, LookupError) as error:
            return _failed(error)

    async def _aoutcome(self, step: Try) -> Outcome:
        deadline = time.monotonic() + step.total_s
        places = _CLIENTS.places.setdefault(os.getpid(), asyncio.Semaphore(AT_ONCE))
        try:
            async with asyncio.timeout(step.total_s):
                await places.acquire()
        except TimeoutError:
            return Failed("pool", "")
        try:
            async with asyncio.timeout(deadline - time.monotonic()):
                return await self._aanswer(step)
        except TimeoutError:
            return Failed("timeout", f"it took longer than {step.total_s:g} s")
        except (httpx.HTTPError, LookupError) as error:
            return _failed(error)
        finally:
            places.release()

    async def _aanswer(self, step: Try) -> Outcome:
        response = await _async_client_of(self, step.base).send(self._sent(step), stream=True)
        try:
            if response.is_stream_consumed:  # a transport without sockets had it whole
                return Answered(response.status_code, response.headers, response.content)
            body = bytearray()
            async for chunk in response.aiter_raw():
                body += chunk
                if len(body) > LONGEST_ANSWER:
                    return _endless(len(body))
        finally:
            await response.aclose()
        return Answered(response.status_code, response.headers, bytes(body))

    def _sent(self, step: Try) -> httpx.Request:
        until_s = time.monotonic() + step.total_s
        limit_s = Limit(step.timeout_s, until_s)
        limits = {
            "connect": Limit(min(CONNECT_S, limit_s), until_s),
            "read": limit_s,
            "write": limit_s,
            "pool": max(limit_s, step.total_s),
        }
        return httpx.Request(
            step.request.method,
            f"{step.base}{step.request.path}",
            content=step.request.body,
            headers=self._all_headers(),
            extensions={"timeout": limits},
        )

    def _all_headers(self) -> dict[str, str]:
        headers = {**self._headers, **_PLAIN}
        if self._token_env is not None or self._headers_env:
            headers |= secret_headers(self._token_env, self._headers_env)
        return headers

    def client_options(self, base: str) -> dict[str, Any]:
        """Return the options of the `httpx` client for a server."""
        verify: ssl.SSLContext | bool = True
        if isinstance(self._verify, Path):
            verify = ssl.create_default_context(cafile=str(self._verify))
        limits = httpx.Limits(
            max_connections=CONNECTIONS,
            max_keepalive_connections=KEPT_CONNECTIONS,
            keepalive_expiry=4.0,  # servers close idle connections after five seconds
        )
        return {"verify": verify, "trust_env": not _is_here(base), "limits": limits}

    def client_key(self, base: str) -> tuple[Any, ...]:
        """Return what two links must share to share a client."""
        transport = None if self._transport is None else id(self._transport)
        return os.getpid(), self._verify, _is_here(base), transport

    @property
    def transport(self) -> httpx.AsyncBaseTransport | None:
        """What carries requests instead of sockets."""
        return self._transport


_PLAIN = {
    "Content-Type": "application/json",
    "Accept": "application/json",
    "Accept-Encoding": "identity",
    "User-Agent": f"livestream_env/{VERSION}",
}


def _driven(steps: Steps[T], outcome_of: Callable[[Try], Outcome]) -> T:
    outcome: Outcome | None = None
    try:
        while True:
            step = steps.send(outcome)
            if isinstance(step, Wait):
                time.sleep(step.seconds)
                outcome = None
            else:
                outcome = outcome_of(step)
    except StopIteration as done:
        result: T = done.value
        return result


@dataclass(slots=True)
class _Clients:
    """The clients of all processes that this one descends from; only its own are used."""

    sync: dict[tuple[Any, ...], httpx.Client] = field(default_factory=dict)
    background: dict[tuple[Any, ...], httpx.AsyncClient] = field(default_factory=dict)
    places: dict[int, asyncio.Semaphore] = field(default_factory=dict)
    """By process id: requests of the background loop that are under way; more of them at once
    would only make its client slow."""


_CLIENTS = _Clients()


def _client_of(link: Link, base: str) -> httpx.Client:
    key = link.client_key(base)
    found = _CLIENTS.sync.get(key)
    # no lock, which a fork could leave held: of two clients made at once one is kept
    if found is None:
        made = make_punctual(httpx.Client(**link.client_options(base)))
        found = _CLIENTS.sync.setdefault(key, made)
    return found


def _async_client_of(link: Link, base: str) -> httpx.AsyncClient:
    key = link.client_key(base)
    found = _CLIENTS.background.get(key)
    if found is None:
        made = httpx.AsyncClient(transport=link.transport, **link.client_options(base))
        found = _CLIENTS.background[key] = made
    return found


@atexit.register
def _close_clients() -> None:
    """Close this process's connections when the interpreter exits."""
    for key, client in list(_CLIENTS.sync.items()):
        if key[0] == os.getpid():
            client.close()
    for key, background in list(_CLIENTS.background.items()):
        if key[0] == os.getpid():
            closing = asyncio.run_coroutine_threadsafe(background.aclose(), background_loop())
            with contextlib.suppress(Exception):  # a loop that hangs must not hold the exit up
                closing.result(1)


@lru_cache(maxsize=1024)
def _is_here(base: str) -> bool:
    """Return whether a server is on this machine, where no proxy is asked."""
    return is_loopback(httpx.URL(base).host)


def _base(url: str) -> str:
    read = checked_url(url, name="url", example="http://127.0.0.1:8765")
    return str(read.copy_with(query=None, fragment=None)).rstrip("/")


def _passes(status: int) -> bool:
    return status == 429 or (status >= 500 and status not in (501, 505))


def _endless(size: int) -> Failed:
    return Failed("timeout", f"the answer had not ended after {size} bytes")


def _failed(error: Exception) -> Failed:
    text = str(error) or type(error).__name__
    if isinstance(error, LookupError):
        return Failed("other", str(error))
    if "CERTIFICATE_VERIFY_FAILED" in text:
        return Failed("certificate", text)
    if isinstance(error, (httpx.ConnectError, httpx.ConnectTimeout, httpx.ProxyError)):
        return Failed("connect", text)
    if isinstance(error, httpx.PoolTimeout):
        return Failed("pool", text)
    if isinstance(error, httpx.TimeoutException):
        return Failed("timeout", text)
    if isinstance(error, (httpx.NetworkError, httpx.RemoteProtocolError)):
        return Failed("lost", text)
    return Failed("other", text)
