"""A chat endpoint for tests: scripted answers over a transport, or over a real local socket."""

from __future__ import annotations

import json
import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

import httpx

from livestream_env.chat import ChatClient

Answer = Callable[[dict[str, Any]], httpx.Response]


def completion(content: str | None, **changes: Any) -> httpx.Response:
    """Make the answer of a well-behaved endpoint."""
    choice = {
        "index": 0,
        "message": {"role": "assistant", "content": content},
        "finish_reason": changes.pop("finish_reason", "stop"),
    }
    body = {
        "id": "chatcmpl-1",
        "object": "chat.completion",
        "model": "judge-1",
        "choices": [choice],
        "usage": {"prompt_tokens": 100, "completion_tokens": 20, "total_tokens": 120},
    }
    return httpx.Response(200, json={**body, **changes})


def error(status: int, code: str = "", message: str = "", **headers: str) -> httpx.Response:
    """Make an error as OpenAI-compatible endpoints tell it."""
    told = {"error": {"code": code or None, "type": None, "message": message}}
    return httpx.Response(
        status, json=told, headers={k.replace("_", "-"): v for k, v in headers.items()}
    )


class Gateway:
    """Answers requests one after the other from a script, the last one for ever."""

    def __init__(self, *script: Answer | httpx.Response | Exception) -> None:
        self.script = list(script)
        self.requests: list[dict[str, Any]] = []
        self.headers: list[Mapping[str, str]] = []

    def __call__(self, request: httpx.Request) -> httpx.Response:
        body = json.loads(request.content)
        self.headers.append(request.headers)
        self.requests.append(body)
        step = self.script.pop(0) if len(self.script) > 1 else self.script[0]
        if isinstance(step, Exception):
            raise step
        if isinstance(step, httpx.Response):
            return httpx.Response(step.status_code, content=step.content, headers=step.headers)
        return step(body)

    def client(self, **options: Any) -> ChatClient:
        """Make a client of this gateway, with short waits."""
        transport = httpx.MockTransport(self)
        quick = {"backoff_s": 0.01, "transport": transport, **options}
        return ChatClient("http://gateway.test/v1", "judge-1", **quick)


@contextmanager
def served(
    answer: Callable[[BaseHTTPRequestHandler, bytes], None],
    *,
    on_close: Callable[[], object] = lambda: None,
) -> Iterator[str]:
    """Serve on a free port of this machine; yields the base URL. `on_close` is called when a
    connection ends."""

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def do_POST(self) -> None:
            answer(self, self.rfile.read(int(self.headers["Content-Length"])))

        def do_GET(self) -> None:
            answer(self, b"")

        def finish(self) -> None:
            super().finish()
            on_close()

        def log_message(self, *_: object) -> None:
            pass

    class Server(ThreadingHTTPServer):
        daemon_threads = True
        request_queue_size = 256

        def handle_error(self, *_: object) -> None:
            """Say nothing of clients that leave."""

    server = Server(("127.0.0.1", 0), Handler)
    thread = threading.Thread(target=server.serve_forever, args=(0.05,), daemon=True)
    thread.start()
    try:
        yield f"http://127.0.0.1:{server.server_port}/v1"
    finally:
        server.shutdown()
        server.server_close()
        thread.join()


def send(handler: BaseHTTPRequestHandler, response: httpx.Response) -> None:
    """Send a made response over the socket."""
    handler.send_response(response.status_code)
    for name, value in response.headers.items():
        handler.send_header(name, value)
    handler.end_headers()
    handler.wfile.write(response.content)
