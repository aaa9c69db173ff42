"""A proxy that breaks what passes between client and server, by the plan that `FaultySandbox` has.

It knows as much of HTTP/1.1 as our client and server speak: messages whose length is told.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import re
from collections import Counter
from typing import NamedTuple

import httpx

from livestream_env.background import background_loop, run_in_background
from livestream_env.sandbox.faults import Faults

LATE_S = 0.2
"""How long after its answer a request that is a `duplicate` arrives a second time."""
_LENGTH = re.compile(rb"\r\ncontent-length: *(\d+)\r\n", re.IGNORECASE)
_HOST = re.compile(rb"\r\nhost:[^\r]*\r\n", re.IGNORECASE)
_BROKEN = (OSError, EOFError, asyncio.LimitOverrunError)


class _Message(NamedTuple):
    """A request or an answer."""

    head: bytes
    """To the empty line, with it."""
    body: bytes

    @property
    def path(self) -> bytes:
        """Method and path of a request."""
        return self.head.partition(b" HTTP/")[0]

    @property
    def is_done(self) -> bool:
        """Whether an answer is one of success."""
        return self.head.startswith(b"HTTP/1.1 200 ")


class _Streams(NamedTuple):
    reader: asyncio.StreamReader
    writer: asyncio.StreamWriter


class FaultyWire:
    """A proxy before the server at `url`; inside the `with` block its own URL is `url`."""

    def __init__(self, url: str, faults: Faults) -> None:
        """Make a proxy; nothing listens yet.

        Raises:
            ValueError: `url` is no `http://HOST:PORT`.
        """
        target = httpx.URL(url)
        if target.scheme != "http" or not target.host or target.path != "/":
            raise ValueError(f"`url` is `{url}`; the server is at an `http://HOST:PORT`")
        self._host, self._port = target.host, target.port or 80
        self._host_line = b"\r\nHost: %b\r\n" % target.netloc
        self._faults = faults
        self._passed = 0
        self._answer: tuple[bytes, bytes, bytes] | None = None
        self._open: set[asyncio.StreamWriter] = set()
        self._late: set[asyncio.Task[None]] = set()
        self._server: asyncio.Server | None = None
        self.url = ""
        self.fired: Counter[tuple[str, str]] = Counter()
        """What fired, by the request's method and the kind of fault."""

    def __enter__(self) -> FaultyWire:
        self._server = run_in_background(asyncio.start_server(self._pass, "127.0.0.1", 0))
        self.url = f"http://127.0.0.1:{self._server.sockets[0].getsockname()[1]}"
        return self

    def __exit__(self, *_: object) -> None:
        background_loop().call_soon_threadsafe(self._close)

    def _close(self) -> None:
        if self._server is not None:
            self._server.close()
        for writer in self._open:
            writer.transport.abort()

    async def _pass(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """Pass what comes over a client's connection on, until either side ends it."""
        server: _Streams | None = None
        self._open.add(writer)
        try:
            while True:
                request = await _received(reader)
                if server is None:
                    server = await self._connected()
                if not await self._passed_on(request, _Streams(reader, writer), server):
                    break
        except _BROKEN:
            pass
        finally:
            self._open.discard(writer)
            writer.transport.abort()
            if server is not None:
                server.writer.transport.abort()

    async def _passed_on(self, request: _Message, client: _Streams, server: _Streams) -> bool:
        """Pass a request and its answer on, or break them; return whether the connections go on."""
        self._passed += 1
        fault = self._faults.transport("wire", self._passed)
        if fault == "reordered" and not self._has_other(request):
            fault = None
        if fault is not None:
            self.fired[request.path.partition(b" ")[0].decode("ascii"), fault] += 1
        if fault == "timeout":
            await client.reader.read()  # until the client gives up
        if fault in ("timeout", "drop_before"):
            return False
        if fault == "error":
            await _sent(client, _answer(503, {"error": {"code": "", "message": "by plan"}}))
            return True
        answer = await self._asked(request, server)
        if fault == "drop_after":
            return False
        if fault == "cut_json":
            await _sent(client, _Message(answer.head, answer.body[: len(answer.body) // 2]))
            return False
        if fault == "slow":
            await asyncio.sleep(self._faults.slow_s)
        if fault == "duplicate":
            self._repeat_late(request)
        await _sent(client, self._changed(answer, request, fault))
        return True

    def _changed(self, answer: _Message, request: _Message, fault: str | None) -> _Message:
        if fault == "bad_json":
            return _answer(200, {"by": "plan"})
        if fault == "reordered" and self._answer is not None:
            _, head, body = self._answer
            return _Message(head, body)
        if answer.is_done:
            self._answer = (request.path, answer.head, answer.body)
        return answer

    def _has_other(self, request: _Message) -> bool:
        return self._answer is not None and self._answer[0] != request.path

    def _repeat_late(self, request: _Message) -> None:
        task = asyncio.ensure_future(self._repeated(request))
        task.add_done_callback(self._late.discard)
        self._late.add(task)

    async def _repeated(self, request: _Message) -> None:
        await asyncio.sleep(LATE_S)
        with contextlib.suppress(*_BROKEN):
            server = await self._connected()
            try:
                await self._asked(request, server)
            finally:
                server.writer.transport.abort()

    async def _connected(self) -> _Streams:
        return _Streams(*await asyncio.open_connection(self._host, self._port))

    async def _asked(self, request: _Message, server: _Streams) -> _Message:
        head = _HOST.sub(self._host_line, request.head, count=1)
        await _sent(server, _Message(head, request.body))
        return await _received(server.reader)


async def _received(reader: asyncio.StreamReader) -> _Message:
    head = await reader.readuntil(b"\r\n\r\n")
    length = _LENGTH.search(head)
    return _Message(head, await reader.readexactly(int(length[1])) if length else b"")


async def _sent(to: _Streams, message: _Message) -> None:
    to.writer.write(message.head + message.body)
    await to.writer.drain()


def _answer(status: int, content: object) -> _Message:
    body = json.dumps(content).encode("ascii")
    head = b"HTTP/1.1 %d -\r\ncontent-type: application/json\r\ncontent-length: %d\r\n\r\n"
    return _Message(head % (status, len(body)), body)
