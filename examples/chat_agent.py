"""A policy behind the chat API plays an episode; a server of three fixed answers stands in for it.

Run: python examples/chat_agent.py
"""

from __future__ import annotations

import json
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

import livestream_env as le


def call(name: str, **arguments: str) -> dict[str, Any]:
    """Return a message with one tool call, as servers write it."""
    function = {"name": name, "arguments": json.dumps(arguments, ensure_ascii=False)}
    made = {"id": f"call_{name}", "type": "function", "function": function}
    return {"role": "assistant", "content": None, "tool_calls": [made]}


ANSWERS = (
    {**call("search_faq", query="多久能到"), "reasoning_content": "先查常见问题"},
    call("get_reply_rule", intent="发货物流"),
    {"role": "assistant", "content": "亲，下单后48小时内发货哦"},
)


class Model(BaseHTTPRequestHandler):
    """Answers by how far the conversation is, with token ids where they are asked for."""

    def do_POST(self) -> None:
        """Answer one request."""
        asked = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        turn = sum(message["role"] == "assistant" for message in asked["messages"])
        choice = {"index": 0, "message": ANSWERS[turn], "finish_reason": "stop"}
        told: dict[str, Any] = {"object": "chat.completion", "choices": [choice]}
        if asked.get("return_token_ids"):
            choice["token_ids"] = [100 + turn, 200 + turn, 2]
            choice["logprobs"] = {"content": [{"token": "", "logprob": -0.5}] * 3}
            told["prompt_token_ids"] = [1, 2, 3]
        body = json.dumps(told).encode()
        self.send_response(200)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *_: object) -> None:
        """Log nothing."""


def main() -> None:
    """Play one comment and print the turns."""
    server = ThreadingHTTPServer(("127.0.0.1", 0), Model)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    url = f"http://127.0.0.1:{server.server_port}/v1"
    agent = le.ChatAgent(url, "policy", temperature=1.0, token_ids=True, append_only=True)
    trajectory = le.rollout(le.LiveRoomEnv("snacks", comment="c10"), agent, seed=7)
    agent.close()
    server.shutdown()
    server.server_close()
    for turn in trajectory.turns:
        message, ids = turn.action.message, turn.action.token_ids
        did = ", ".join(f"{c.name}({dict(c.arguments)})" for c in message.tool_calls)
        print(f"{ids}  {message.reasoning or '-'}  ->  {did or message.content}")
    print(f"{trajectory.stop_reason}, {trajectory.status}")


if __name__ == "__main__":
    main()
