"""OpenEnv: its server of a room and its own client, which plays an episode over the WebSocket.

Run it where OpenEnv is installed: `python examples/trainers/openenv_server.py`.
"""

from __future__ import annotations

import socket
import threading
import time

import uvicorn
from openenv.core import GenericEnvClient

from livestream_env.adapters.openenv import room_app

CALL = '<tool_call>\n{"name": "get_reply_rule", "arguments": {"intent": "价格咨询"}}\n</tool_call>'
LOOK = '<tool_call>\n{"name": "search_product_by_keyword", "arguments": {"keyword": "1号链接"}}\n'
SAID = (f"{LOOK}</tool_call>\n{CALL}", "亲，1号链接价格59.9元，1号链接券后价49.9元，以下单页为准")


def main() -> None:
    """Serve the room, play one episode and print what came of it."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    app = room_app("snacks", embedder="lexical", rubric="single4", masker="reply")
    server = uvicorn.Server(uvicorn.Config(app, port=port, log_level="error"))
    thread = threading.Thread(target=server.run)
    thread.start()
    while not server.started:
        time.sleep(0.05)
    with GenericEnvClient(base_url=f"http://127.0.0.1:{port}").sync() as client:
        result = client.reset(seed=1, room="snacks", comment=["c02"])
        print(result.observation["messages"][-1]["content"].split("##")[-1].strip())
        for text in SAID:
            result = client.step({"message": text})
        print("reward", result.reward, "trained", result.metadata["trained"]["host"]["turns"])
    server.should_exit = True
    thread.join()


if __name__ == "__main__":
    main()
