"""Sandbox servers for tests: on a real socket, behind a proxy, and over connections that break."""

from __future__ import annotations

import contextlib
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partialmethod
from typing import Any

import httpx
import uvicorn

from livestream_env.background import run_in_background
from livestream_env.rooms import Room
from livestream_env.sandbox import RemoteSandbox, create_app
from livestream_env.sandbox.connections import PunctualConnection
from livestream_env.types import ToolCall, freeze

BASE = "http://sandbox.test"
QUICK: dict[str, Any] = {"embedder": "lexical", "backoff_s": 0.06}


def free_port() -> int:
    """Return a port that nothing listens on."""
    with socket.socket() as one:
        one.bind(("127.0.0.1", 0))
        return int(one.getsockname()[1])


@contextmanager
def running(app: Any, port: int | None = None, *, ws: str = "none") -> Iterator[str]:
    """Serve an application on a port of this machine; yields the URL."""
    port = port or free_port()
    quiet: dict[str, Any] = {"log_config": None, "access_log": False}
    served: dict[str, Any] = {"http": PunctualConnection, "ws": ws, "port": port}
    config = uvicorn.Config(app, timeout_graceful_shutdown=1, **served, **quiet)
    server = uvicorn.Server(config)
    thread = threading.Thread(target=server.run, daemon=True)
    thread.start()
    while not server.started:
        assert thread.is_alive()
        time.sleep(0.01)
    try:
        yield f"http://127.0.0.1:{port}"
    finally:
        server.should_exit = True
        thread.join(10)


def started(arguments: list[str], port: int, **options: Any) -> subprocess.Popen[bytes]:
    """Start `python ARGUMENTS`, which serves on a port, and wait until it does."""
    quiet = {"stdout": subprocess.DEVNULL, "stderr": subprocess.DEVNULL}
    process = subprocess.Popen([sys.executable, *arguments], **quiet | options)
    latest = time.monotonic() + 60
    while time.monotonic() < latest:
        assert process.poll() is None
        with contextlib.suppress(OSError), socket.create_connection(("127.0.0.1", port)):
            return process
        time.sleep(0.05)
    raise AssertionError("the server did not start")


class RoundRobin:
    """An ASGI proxy that gives each request to the next of its replicas."""

    def __init__(self, *apps: Any) -> None:
        self.apps = apps
        self.calls = 0
        """Requests to /calls/."""
        self._next = 0

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        self.calls += "/calls/" in scope["path"]
        app = self.apps[self._next % len(self.apps)]
        self._next += 1
        await app(scope, receive, send)


class Wire(httpx.AsyncBaseTransport):
    """Carries requests to an application; `meddle` may break some of them.

    It is called with the request, before and after the application ran, and may raise, or return a
    response to give instead.
    """

    def __init__(
        self, app: Any, meddle: Callable[[str, httpx.Request, httpx.Response | None], Any] | None
    ) -> None:
        self.app = app
        self.inner = httpx.ASGITransport(app, raise_app_exceptions=False)
        self.meddle = meddle or (lambda *_: None)
        self.requests: list[httpx.Request] = []
        self.answers: list[bytes] = []

    async def handle_async_request(self, request: httpx.Request) -> httpx.Response:
        self.requests.append(request)
        instead = self.meddle("before", request, None)
        response = instead or await self.inner.handle_async_request(request)
        body = await response.aread()
        self.answers.append(body)
        made = httpx.Response(response.status_code, headers=response.headers, content=body)
        return self.meddle("after", request, made) or made

    @property
    def calls(self) -> list[httpx.Request]:
        """The requests to /calls/."""
        return [one for one in self.requests if "/calls/" in one.url.path]


class Client:
    """Sends requests to an application without a socket, as a peer at `client`."""

    def __init__(self, app: Any, client: tuple[str, int] = ("127.0.0.1", 5000), **headers: str):
        self.app = app
        app.state.sessions._busy_after_s = 60.0  # a busy machine may take its time to index a room
        transport = httpx.ASGITransport(app, client=client)
        self._http = httpx.AsyncClient(transport=transport, base_url=BASE, headers=headers)

    def request(self, method: str, path: str, **options: Any) -> httpx.Response:
        """Send a request; `json` makes its body."""
        return run_in_background(self._http.request(method, path, **options))

    get = partialmethod(request, "GET")
    post = partialmethod(request, "POST")
    put = partialmethod(request, "PUT")
    delete = partialmethod(request, "DELETE")


def wired(room: Room, app: Any = None, meddle: Any = None, **options: Any) -> RemoteSandbox:
    """Make a sandbox whose requests reach an application without a socket."""
    wire = Wire(create_app() if app is None else app, meddle)
    return RemoteSandbox(BASE, room, transport=wire, **{**QUICK, **options})


def wire_of(sandbox: RemoteSandbox) -> Wire:
    """Return what carries a sandbox's requests."""
    transport = sandbox._core.link.transport
    assert isinstance(transport, Wire)
    return transport


def call(name: str, /, **arguments: Any) -> ToolCall:
    """Make a call."""
    return ToolCall("call_0_0", name, freeze(arguments))


LOOK = call("search_faq", query="什么时候发货")
MOVE = call("move_product", link_no=3, position=1)
