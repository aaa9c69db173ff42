"""A model behind the chat API that knows one rule, for examples that run without a model."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

CALL = '<tool_call>\n{"name": "get_reply_rule", "arguments": {"intent": "闲聊互动"}}\n</tool_call>'
SAID = (CALL, "亲，欢迎来到直播间")


def says(messages: list[dict[str, Any]]) -> str:
    """Look the rule of small talk up, then say hello, whoever asks what."""
    return SAID[sum(message["role"] == "assistant" for message in messages)]


def with_ids(choice: dict[str, Any], messages: list[dict[str, Any]]) -> dict[str, Any]:
    """Add the ids of an answer, a character each, and return those of its prompt."""
    shown = "".join(f"<{one['role']}>{one['content']}\n" for one in messages)
    choice["token_ids"] = [ord(one) for one in choice["message"]["content"] + "\n"]
    choice["logprobs"] = {"content": [{"token": "", "logprob": -0.5} for _ in choice["token_ids"]]}
    return {"prompt_token_ids": [ord(one) for one in f"{shown}<assistant>"]}


@contextmanager
def serving(events: list[dict[str, Any]]) -> Iterator[str]:
    """Serve on a free port; yields the URL. What is posted to `/events` is appended to `events`."""

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            asked = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
            told: dict[str, Any] = {}
            if self.path == "/events":
                events.append(asked)
            else:
                message = {"role": "assistant", "content": says(asked["messages"])}
                choice = {"index": 0, "message": message, "finish_reason": "stop"}
                told = {"object": "chat.completion", "model": "tiny", "choices": [choice]}
                if asked.get("return_token_ids"):
                    told |= with_ids(choice, asked["messages"])
            body = json.dumps(told).encode()
            self.send_response(200)
            self.send_header("Content-Type", "application/json")
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, *_: object) -> None:
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    try:
        yield f"http://127.0.0.1:{server.server_port}"
    finally:
        server.shutdown()
        server.server_close()
