"""ROCK: its own client plays an episode against `livestream-env serve`, rewards included.

Run it where ROCK's client is installed (`pip install rl-rock uvicorn fastapi`):
`python examples/trainers/rock_client.py`.
"""

from __future__ import annotations

import os
import socket
import subprocess
import sys
import tempfile
import time

CALL = '<tool_call>\n{"name": "get_reply_rule", "arguments": {"intent": "价格咨询"}}\n</tool_call>'
SAID = (CALL, "亲，1号链接价格59.9元，以下单页为准")
PORT = 8765


def serve(folder: str) -> subprocess.Popen[bytes]:
    """Start the server and wait until it answers."""
    command = [sys.executable, "-m", "livestream_env.cli", "serve", "--rooms", folder]
    process = subprocess.Popen([*command, "--port", str(PORT)], stderr=subprocess.DEVNULL)
    while process.poll() is None:
        try:
            socket.create_connection(("127.0.0.1", PORT)).close()
            return process
        except OSError:
            time.sleep(0.1)
    raise SystemExit("the server did not start")


def main() -> None:
    """Play one episode and print each step's reward."""
    os.environ["ROCK_BASE_URL"] = f"http://127.0.0.1:{PORT}"
    import rock

    with tempfile.TemporaryDirectory() as folder:
        server = serve(folder)
        try:
            room = rock.make("LiveRoom-v0?room=snacks&comment=c02&rubric=single4&embedder=lexical")
            observed, info = room.reset(seed=3)
            print(observed.split("##")[-2].strip(), info["comment_ids"])
            for text in SAID:
                _, reward, terminated, _, info = room.step(text)
                print("reward", reward, "ended", terminated, "calls", info["calls"]["executed"])
            room.close()
        finally:
            server.terminate()
            server.wait()


if __name__ == "__main__":
    main()
