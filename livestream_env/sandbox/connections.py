"""Connections of the server: the head of a request must arrive in time.

uvicorn waits for ever for the rest of a request line or header, so that clients which send a byte
now and then, or none, would in the end hold all the connections that there may be.
"""

from __future__ import annotations

import asyncio
from typing import Any

import h11
from uvicorn.protocols.http.h11_impl import H11Protocol

HEAD_S = 10.0
"""Seconds from the connection, or from the first byte of a later request, to the end of a head."""


class PunctualConnection(H11Protocol):
    """A connection that ends when the head of a request takes too long."""

    _late: asyncio.TimerHandle | None = None

    def connection_made(self, transport: Any) -> None:
        """Begin to wait for the first request."""
        super().connection_made(transport)
        self._late = self.loop.call_later(HEAD_S, self._end)

    def data_received(self, data: bytes) -> None:
        """Take bytes; those of a head that is not whole begin a wait, further ones do not."""
        super().data_received(data)
        if self.conn.their_state is not h11.IDLE:
            self._wait_no_more()
        elif self._late is None:
            self._late = self.loop.call_later(HEAD_S, self._end)

    def connection_lost(self, exc: Exception | None) -> None:
        """Stop waiting."""
        self._wait_no_more()
        super().connection_lost(exc)

    def _wait_no_more(self) -> None:
        if self._late is not None:
            self._late.cancel()
            self._late = None

    def _end(self) -> None:
        self._late = None
        if not self.transport.is_closing():
            self.transport.close()
