"""What every request to a server passes: token, limits, request ids, logs, counts.

No header, path or body goes further than into memory; a log line holds no body, and of headers only
a well-formed request id.
"""

from __future__ import annotations

import asyncio
import base64
import hmac
import ipaddress
import logging
import re
import secrets
import time
from collections import Counter
from collections.abc import Awaitable, Callable, MutableMapping
from functools import lru_cache
from typing import Any

from livestream_env.endpoints import is_loopback
from livestream_env.sandbox.sessions import Answer, Refused, error_answer

Scope = MutableMapping[str, Any]
Message = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[Message]]
Send = Callable[[Message], Awaitable[None]]
App = Callable[[Scope, Receive, Send], Awaitable[None]]

LOG = logging.getLogger("livestream_env.server")
REQUEST_ID = "livestream_env.request_id"
"""Key of a request's id in its scope."""
_REQUEST_ID = re.compile(rb"[A-Za-z0-9._-]{1,64}")
BUCKETS_S = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0)


class Traffic:
    """Counts of requests, for metrics."""

    def __init__(self) -> None:
        self.requests: Counter[tuple[str, int]] = Counter()
        self.seconds: dict[str, list[int]] = {}
        self.seconds_sum: Counter[str] = Counter()

    def add(self, route: str, status: int, seconds: float) -> None:
        """Count a request that was answered."""
        self.requests[route, status] += 1
        buckets = self.seconds.setdefault(route, [0] * (len(BUCKETS_S) + 1))
        buckets[next((i for i, b in enumerate(BUCKETS_S) if seconds <= b), len(BUCKETS_S))] += 1
        self.seconds_sum[route] += seconds  # type: ignore[assignment]

    def lines(self) -> list[str]:
        """Return the counts in Prometheus' text form."""
        name = "livestream_env_requests_total"
        lines = [f"# HELP {name} Requests by route and status.", f"# TYPE {name} counter"]
        for (route, status), count in sorted(self.requests.items()):
            lines.append(f'{name}{{route="{route}",status="{status}"}} {count}')
        name = "livestream_env_request_seconds"
        lines += [f"# HELP {name} Time to answer.", f"# TYPE {name} histogram"]
        for route, buckets in sorted(self.seconds.items()):
            total = 0
            for limit, count in zip((*BUCKETS_S, "+Inf"), buckets, strict=True):
                total += count
                lines.append(f'{name}_bucket{{route="{route}",le="{limit}"}} {total}')
            lines.append(f'{name}_sum{{route="{route}"}} {self.seconds_sum[route]:.6f}')
            lines.append(f'{name}_count{{route="{route}"}} {total}')
        return lines


class Gate:
    """ASGI middleware around the whole application."""

    def __init__(
        self,
        app: App,
        *,
        token: str | None,
        longest_body: int,
        body_timeout_s: float,
        traffic: Traffic,
    ) -> None:
        self._app = app
        self._token = None if token is None else f"Bearer {token}".encode()
        self._longest = longest_body
        self._body_timeout_s = body_timeout_s
        self._traffic = traffic

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer a request."""
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        exchange = _Exchange(scope, send)
        try:
            self._check(scope, exchange.headers)
            limited = _limited(receive, self._longest, self._body_timeout_s)
            await self._app(scope, limited, exchange.send)
        except Refused as refused:
            await exchange.refuse(refused)
        except Exception:
            LOG.exception("request %s failed", exchange.request_id)
            message = "the server failed; its log has more under this request id"
            await exchange.refuse(Refused(500, "internal", message))
        finally:
            exchange.note(self._traffic)

    def _check(self, scope: Scope, headers: dict[bytes, bytes]) -> None:
        if scope["path"].removeprefix(scope.get("root_path", "")) != "/health":
            self._check_token(scope, headers)
        if scope["method"] in ("POST", "PUT"):
            kind = headers.get(b"content-type", b"").split(b";")[0].strip().lower()
            if kind != b"application/json":
                raise Refused(415, "not_json", "the body is `application/json`")
            length = headers.get(b"content-length", b"0")
            if not length.isdigit() or len(length) > 18 or int(length) > self._longest:
                raise _too_large(self._longest)

    def _check_token(self, scope: Scope, headers: dict[bytes, bytes]) -> None:
        if self._token is not None:
            if not hmac.compare_digest(_bearer(headers.get(b"authorization", b"")), self._token):
                raise Refused(401, "unauthorized", "a token is needed: `Authorization: Bearer ...`")
            return
        client = scope.get("client")
        if client and _is_another_host(client[0]):
            raise Refused(403, "forbidden", "without a token this server answers its own host only")


class _Exchange:
    """One request and what is sent back."""

    def __init__(self, scope: Scope, send: Send) -> None:
        self.headers = dict(scope["headers"])
        given = self.headers.get(b"x-request-id", b"")
        is_id = _REQUEST_ID.fullmatch(given) is not None
        self.request_id = given.decode("ascii") if is_id else secrets.token_hex(8)
        scope[REQUEST_ID] = self.request_id
        self._scope, self._send = scope, send
        self._start_s = time.perf_counter()
        self._status = 0

    async def send(self, message: Message) -> None:
        if message["type"] == "http.response.start":
            self._status = message["status"]
            message["headers"] = [
                *message.get("headers", ()),
                (b"x-request-id", self.request_id.encode("ascii")),
            ]
        await self._send(message)

    async def refuse(self, refused: Refused) -> None:
        """Answer with an error, unless an answer is under way."""
        if self._status:
            return
        answer: Answer = error_answer(refused, self.request_id)
        headers = [
            (b"content-type", b"application/json"),
            (b"content-length", str(len(answer.body)).encode("ascii")),
        ]
        if refused.retry_after_s is not None:
            headers.append((b"retry-after", f"{refused.retry_after_s:.0f}".encode("ascii")))
        if refused.status in (401, 408, 413):
            headers.append((b"connection", b"close"))  # the rest of the body is not read
        await self.send(
            {"type": "http.response.start", "status": refused.status, "headers": headers}
        )
        await self._send({"type": "http.response.body", "body": answer.body})

    def note(self, traffic: Traffic) -> None:
        """Count and log the request."""
        seconds = time.perf_counter() - self._start_s
        route = getattr(self._scope.get("endpoint"), "__name__", "other")
        traffic.add(route, self._status, seconds)
        if LOG.isEnabledFor(logging.INFO):
            line = {
                "id": self.request_id,
                "method": self._scope["method"] if route != "other" else "-",
                "route": route,
                "status": self._status,
                "ms": round(seconds * 1000, 2),
            }
            LOG.info("request", extra={"told": line})


@lru_cache(maxsize=1024)
def _is_another_host(client: str) -> bool:
    """Return whether an address is known to be another host's; a socket file has none."""
    try:
        ipaddress.ip_address(client)
    except ValueError:
        return False
    return not is_loopback(client)


def _bearer(authorization: bytes) -> bytes:
    """Return the header as one with a token; clients that know a URL alone show it as the password
    of `http://any:TOKEN@host`."""
    kind, _, told = authorization.partition(b" ")
    if kind.lower() != b"basic":
        return authorization
    try:
        return b"Bearer " + base64.b64decode(told, validate=True).partition(b":")[2]
    except ValueError:
        return b""


def _too_large(limit: int) -> Refused:
    return Refused(413, "too_large", f"the body is longer than {limit} bytes")


def _limited(receive: Receive, longest: int, timeout_s: float) -> Receive:
    """Receive a body of so many bytes in so many seconds; later messages have no limit."""
    got, deadline, is_whole = 0, time.monotonic() + timeout_s, False

    async def limited() -> Message:
        nonlocal got, is_whole
        if is_whole:
            return await receive()
        try:
            async with asyncio.timeout(deadline - time.monotonic()):
                message = await receive()
        except TimeoutError:
            raise Refused(408, "too_slow", f"the body took longer than {timeout_s:g} s") from None
        got += len(message.get("body", b""))
        if got > longest:
            raise _too_large(longest)
        is_whole = not message.get("more_body", False)
        return message

    return limited
