"""A total time limit for sync requests, which httpx bounds by silence alone.

httpx hands the seconds that a socket may be silent to each read and write. Given a `Limit` instead,
the sockets of a client that was made punctual also keep to the moment when all has to be over, so
that a server which sends a byte now and then holds nobody up.
"""

from __future__ import annotations

import ssl
import time
from collections.abc import Iterable
from typing import Any

import httpcore
import httpx

_PIECE = 1 << 16


class Limit(float):
    """Seconds of silence, at most until a moment of `time.monotonic`."""

    until_s: float

    def __new__(cls, seconds: float, until_s: float) -> Limit:
        """Make the limit of one request."""
        made = super().__new__(cls, seconds)
        made.until_s = until_s
        return made


def _left(timeout: float | None) -> float | None:
    """Return how long a socket may be silent now.

    Raises:
        httpcore.ReadTimeout: all has to be over.
    """
    if not isinstance(timeout, Limit):
        return timeout
    left_s = timeout.until_s - time.monotonic()
    if left_s <= 0:
        raise httpcore.ReadTimeout("it had not ended when the time for all of it was over")
    return min(float(timeout), left_s)


class _Stream(httpcore.NetworkStream):
    def __init__(self, inner: httpcore.NetworkStream) -> None:
        self._inner = inner

    def read(self, max_bytes: int, timeout: float | None = None) -> bytes:
        return self._inner.read(max_bytes, _left(timeout))

    def write(self, buffer: bytes, timeout: float | None = None) -> None:
        for start in range(0, len(buffer), _PIECE):
            self._inner.write(buffer[start : start + _PIECE], _left(timeout))

    def close(self) -> None:
        self._inner.close()

    def start_tls(
        self,
        ssl_context: ssl.SSLContext,
        server_hostname: str | None = None,
        timeout: float | None = None,
    ) -> httpcore.NetworkStream:
        return _Stream(self._inner.start_tls(ssl_context, server_hostname, _left(timeout)))

    def get_extra_info(self, info: str) -> Any:
        return self._inner.get_extra_info(info)


class _Backend(httpcore.NetworkBackend):
    def __init__(self, inner: httpcore.NetworkBackend) -> None:
        self._inner = inner

    def connect_tcp(
        self,
        host: str,
        port: int,
        timeout: float | None = None,
        local_address: str | None = None,
        socket_options: Iterable[Any] | None = None,
    ) -> httpcore.NetworkStream:
        made = self._inner.connect_tcp(host, port, _left(timeout), local_address, socket_options)
        return _Stream(made)


def make_punctual(client: httpx.Client) -> httpx.Client:
    """Let a client's sockets keep to the `Limit` of each request, and return it.

    httpx has no public way to the sockets of a client that also asks proxies; where a version of it
    has other inner names, each read and write is bounded alone.
    """
    for transport in (client._transport, *client._mounts.values()):
        pool = getattr(transport, "_pool", None)
        backend = getattr(pool, "_network_backend", None)
        if backend is not None:
            pool._network_backend = _Backend(backend)  # type: ignore[union-attr]
    return client
