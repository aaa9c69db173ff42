"""Two models trained in turns: one plays in this process, its partner is frozen behind a server.

The server here is a stand-in that speaks the chat API; vLLM or SGLang take its place. Needs the
extra `tokens`. Run: python examples/alternating_runs.py
"""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

from loss_masks import byte_tokenizer
from shared_weights import REPLIES, policy, room_env

import livestream_env as le
from livestream_env.masking import REPLY, TOOL_CALLS
from livestream_env.renderers import ChatTemplateRenderer

CALLS = (("search_product_by_keyword", {"keyword": "1号链接"}),)
CALLS += (("get_reply_rule", {"intent": "价格咨询"}),)
AGENTS = ("tool_caller", "replier")
MASKERS = {"tool_caller": TOOL_CALLS, "replier": REPLY}


def message_of(request: dict[str, Any]) -> dict[str, Any]:
    """Say what a trained model would: a call while there are any left, then the reply."""
    done = sum(message["role"] == "tool" for message in request["messages"])
    if done >= len(CALLS) or request["model"].startswith("replier"):
        return {"role": "assistant", "content": REPLIES[0]}
    name, arguments = CALLS[done]
    function = {"name": name, "arguments": json.dumps(arguments, ensure_ascii=False)}
    call = {"id": f"call-{done}", "type": "function", "function": function}
    return {"role": "assistant", "content": None, "tool_calls": [call]}


class Handler(BaseHTTPRequestHandler):
    def do_POST(self) -> None:
        request = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        choice = {"index": 0, "message": message_of(request), "finish_reason": "stop"}
        body = json.dumps({"object": "chat.completion", "choices": [choice]}).encode()
        self.send_response(200)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *_: object) -> None: ...


@contextmanager
def serving() -> Iterator[str]:
    """Serve the frozen models on a free port."""
    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    yield f"http://127.0.0.1:{server.server_port}/v1"
    server.shutdown()
    server.server_close()


def main() -> None:
    """Train the tool caller beside a frozen replier, then the other way round."""
    renderer = ChatTemplateRenderer(byte_tokenizer())
    with serving() as url:
        for step, (trained, frozen) in enumerate((AGENTS, AGENTS[::-1])):
            partner = f"chat:{url}#{le.checkpoint_name(frozen, step)}"
            seats = {trained: policy(renderer, seed=3)}
            team = le.AgentTeam(**seats, partners={frozen: partner})
            group = le.rollout_group(room_env, team, size=4, seed=1)
            rows = le.training_rows(group, renderer, agents={trained: MASKERS[trained]})
            advantages = ", ".join(f"{row.advantage:+.2f}" for row in rows)
            print(f"{trained} beside {le.checkpoint_name(frozen, step)}: {advantages}")


if __name__ == "__main__":
    main()
