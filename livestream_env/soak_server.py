"""A server in a process of its own, killed every so often and started again."""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
import threading
import time
from pathlib import Path

import httpx

from livestream_env.errors import SandboxUnavailable

START_S = 60.0
LOOK_S = 0.2


class SpawnedServer:
    """`livestream-env serve` on a free port of this machine, while the `with` block lasts.

    Args:
        rooms: folder of the rooms that it serves.
        log: file for what it writes.
        kill_every_s: seconds from a start to `kill -9`; never, by default.
    """

    def __init__(self, rooms: Path, log: Path, *, kill_every_s: float | None = None) -> None:
        self._port = _free_port()
        self.url = f"http://127.0.0.1:{self._port}"
        self.kills = 0
        self.crashes = 0
        """Times that it ended by itself."""
        self._command = [sys.executable, "-m", "livestream_env.cli", "serve"]
        self._command += ["--rooms", str(rooms), "--port", str(self._port)]
        self._log = log
        self._kill_every_s = kill_every_s
        self._client = httpx.Client(base_url=self.url, trust_env=False)
        self._process: subprocess.Popen[bytes] | None = None
        self._over, self._is_due = threading.Event(), threading.Event()
        self._keeper = threading.Thread(target=self._keep, daemon=True)

    def __enter__(self) -> SpawnedServer:
        self._start()
        self._keeper.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._over.set()
        self._keeper.join()
        self._client.close()
        if self._process is not None:
            self._process.terminate()
            try:
                self._process.wait(20)
            except subprocess.TimeoutExpired:
                self._process.kill()
                self._process.wait()

    def kill(self) -> None:
        """Have it killed at the next look, and started again."""
        self._is_due.set()

    @property
    def pid(self) -> int | None:
        """The process that runs at the moment."""
        return None if self._process is None else self._process.pid

    def errors(self) -> int:
        """Count the errors in its log: what it failed at by its own fault."""
        found = 0
        with open(self._log, encoding="utf-8", errors="replace", newline="\n") as lines:
            for line in lines:
                try:
                    told = json.loads(line)
                except ValueError:  # cut by a kill
                    continue
                found += told.get("level") in ("ERROR", "CRITICAL")
        return found

    def _start(self) -> None:
        """Start it and wait until it answers.

        Raises:
            SandboxUnavailable: it did not within `START_S`.
        """
        with open(self._log, "a", encoding="utf-8") as log:
            process = subprocess.Popen(self._command, stdout=log, stderr=log)
        self._process = process
        latest = time.monotonic() + START_S
        while time.monotonic() < latest and not self._over.is_set():
            if self._answers():
                return
            if process.poll() is not None:
                break
            time.sleep(0.1)
        if not self._over.is_set():
            raise SandboxUnavailable(f"the server did not start; it says why in {self._log}")

    def _answers(self) -> bool:
        try:
            return self._client.get("/health").is_success
        except httpx.HTTPError:
            return False

    def _keep(self) -> None:
        """Kill it when it is time, and start it whenever it has ended."""
        started_s = time.monotonic()
        while not self._over.wait(LOOK_S):
            process = self._process
            assert process is not None
            has_ended = process.poll() is not None
            age_s = time.monotonic() - started_s
            if self._kill_every_s is not None and age_s >= self._kill_every_s:
                self._is_due.set()
            if has_ended:
                self.crashes += 1
            elif self._is_due.is_set():
                self._is_due.clear()
                process.kill()
                process.wait()
                self.kills += 1
            else:
                continue
            self._start()
            started_s = time.monotonic()


def resident_bytes(pid: int) -> int | None:
    """Return the memory that a process holds; `None` where the system does not tell."""
    try:
        pages = Path(f"/proc/{pid}/statm").read_text(encoding="ascii").split()[1]
    except (OSError, IndexError):
        return None
    return int(pages) * os.sysconf("SC_PAGE_SIZE")


def _free_port() -> int:
    with socket.socket() as one:
        one.bind(("127.0.0.1", 0))
        return int(one.getsockname()[1])
