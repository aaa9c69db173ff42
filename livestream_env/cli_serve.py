"""`livestream-env serve`: sandboxes over HTTP."""

from __future__ import annotations

import argparse
import json
import logging
import os
import pkgutil
import sys
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from livestream_env.terminal import UsageError

if TYPE_CHECKING:
    from fastapi import FastAPI

SETTINGS = "LIVESTREAM_ENV_SERVE"
"""Environment variable that hands the settings, without any secret, to worker processes."""
GRACE_S = 10


def add_serve(parser: argparse.ArgumentParser, *, count: Callable[[str], int]) -> None:
    """Declare the options of `serve`."""
    parser.description = "Serve sandboxes over HTTP."
    parser.set_defaults(run=run_serve)
    parser.add_argument("--rooms", metavar="DIR", help="folder of room files, read as they change")
    parser.add_argument(
        "--sandbox", metavar="package.module:factory", help="makes a sandbox of (room, origin)"
    )
    parser.add_argument(
        *("--tool",),
        action="append",
        default=[],
        metavar="package.module:tool",
        help="a tool of your own that clients may choose; again for each",
    )
    parser.add_argument(
        *("--embedder",),
        action="append",
        default=[],
        metavar="NAME",
        help="a further embedder that clients may choose; again for each",
    )
    parser.add_argument("--host", default="127.0.0.1", help="another needs `--token-file`")
    parser.add_argument("--port", type=count, default=8765)
    parser.add_argument("--token-file", metavar="FILE", help="holds the token clients must show")
    parser.add_argument("--max-sessions", type=count, default=4096, help="of each worker")
    parser.add_argument("--lease", type=count, default=300, help="seconds; renewed by each call")
    parser.add_argument("--no-uploads", action="store_true", help="take no rooms from clients")
    parser.add_argument("--workers", type=count, default=1, help="processes, 1 by default")


def run_serve(args: argparse.Namespace) -> int:
    """Serve until a signal ends it; running calls are answered first."""
    from livestream_env.endpoints import is_loopback
    from livestream_env.errors import missing_dependency

    try:
        import uvicorn
    except ImportError as error:
        raise missing_dependency("uvicorn", extra="server") from error

    if args.token_file is None and not is_loopback(args.host):
        raise UsageError(f"`--host {args.host}` lets other hosts in; it needs `--token-file FILE`")
    if args.rooms is None and args.sandbox is None:
        raise UsageError("`serve` needs `--rooms DIR`, or `--sandbox package.module:factory`")
    settings = {
        "rooms": args.rooms,
        "sandbox": args.sandbox,
        "tools": args.tool,
        "embedders": args.embedder,
        "token_file": args.token_file,
        "max_sessions": args.max_sessions,
        "lease_s": args.lease,
        "uploads": not args.no_uploads,
        "workers": args.workers,
    }
    from livestream_env.sandbox.connections import PunctualConnection

    app_of(settings)  # faults of the settings are told here, not by every worker
    os.environ[SETTINGS] = json.dumps(settings)
    uvicorn.run(
        "livestream_env.cli_serve:worker_app",
        factory=True,
        host=args.host,
        port=args.port,
        workers=args.workers,
        http=PunctualConnection,
        ws="none",
        log_config=None,
        access_log=False,
        server_header=False,
        timeout_keep_alive=10,
        timeout_graceful_shutdown=GRACE_S,
    )
    return 0


def worker_app() -> FastAPI:
    """Make the application of this process, by the settings in the environment."""
    log_to_stderr()
    return app_of(json.loads(os.environ[SETTINGS]))


def app_of(settings: Mapping[str, Any]) -> FastAPI:
    """Make the application.

    Raises:
        UsageError: the factory cannot be found, or the token's file holds none.
    """
    from livestream_env.adapters.rock import mount_gem
    from livestream_env.sandbox.server import EMBEDDERS, create_app

    embedders = (*EMBEDDERS, *settings["embedders"])
    app = create_app(
        settings["rooms"],
        factory=None if settings["sandbox"] is None else _factory(settings["sandbox"]),
        token=None if settings["token_file"] is None else _token(settings["token_file"]),
        tools=settings["tools"],
        embedders=embedders,
        max_sessions=settings["max_sessions"],
        lease_s=settings["lease_s"],
        uploads=settings["uploads"],
    )
    mount_gem(
        app,
        max_envs=settings["max_sessions"],
        lease_s=settings["lease_s"],
        tools=settings["tools"],
        embedders=embedders,
        refusal=_no_gem(settings),
    )
    return app


def _no_gem(settings: Mapping[str, Any]) -> str | None:
    """Return why a server of these settings has no GEM environments, or `None`."""
    if settings["sandbox"] is not None:
        return "GEM environments run the rooms of `--rooms`; this server has `--sandbox`"
    if settings["workers"] > 1:
        return "GEM environments live in one process; this server has more: use `--workers 1`"
    return None


def _factory(name: str) -> Any:
    sys.path.insert(0, os.getcwd())  # as `python -m` does
    try:
        found = pkgutil.resolve_name(name)
    except (ValueError, ImportError, AttributeError) as error:
        raise UsageError(f"no factory `{name}`: {error}") from error
    finally:
        sys.path.pop(0)
    if not callable(found):
        raise UsageError(f"`{name}` is {found!r:.80}; it is called with (room, origin)")
    return found


def _token(path: str) -> str:
    token = Path(path).read_text(encoding="utf-8-sig").strip()
    if not token:
        raise UsageError(f"`{path}` holds no token")
    return token


class _Lines(logging.Formatter):
    """One JSON object a line."""

    def format(self, record: logging.LogRecord) -> str:
        line = {"at_s": round(record.created, 3), "level": record.levelname}
        line["event"] = record.getMessage()
        line |= getattr(record, "told", {})
        if record.exc_info:
            line["trace"] = self.formatException(record.exc_info)
        return json.dumps(line, ensure_ascii=False)


def log_to_stderr() -> None:
    """Write the server's log lines, and uvicorn's, to stderr."""
    handler = logging.StreamHandler()
    handler.setFormatter(_Lines())
    for name in ("livestream_env.server", "uvicorn"):
        logger = logging.getLogger(name)
        logger.handlers = [handler]
        logger.setLevel(logging.INFO)
        logger.propagate = False
