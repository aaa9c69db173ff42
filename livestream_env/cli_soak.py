"""`livestream-env soak`: thousands of episodes on a sandbox that fails."""

from __future__ import annotations

import argparse
import json
import signal
import tempfile
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from livestream_env.cli_stability import print_stability, stability_figures
from livestream_env.terminal import UsageError, print_table, progress

if TYPE_CHECKING:
    from livestream_env.soak import Check, Soak, SoakReport, SoakRun


def add_soak(parser: argparse.ArgumentParser, *, count: Callable[[str], int]) -> None:
    """Declare the options of `soak`."""
    parser.description = "Play episodes on a sandbox that fails, and check that none went wrong."
    parser.set_defaults(run=run_soak)
    parser.add_argument("--episodes", type=count, default=10_000)
    parser.add_argument("--workers", type=count, default=64, help="threads, 64 by default")
    parser.add_argument(
        "--faults", type=float, default=0.05, metavar="SHARE", help="of attempts, 0.05 by default"
    )
    where = parser.add_mutually_exclusive_group()
    where.add_argument("--sandbox", metavar="URL", help="a server; by default, none")
    where.add_argument("--spawn-server", action="store_true", help="start one for the soak")
    parser.add_argument("--token-env", metavar="NAME", help="variable with the server's token")
    parser.add_argument(
        *("--kill-server-every",),
        type=count,
        metavar="SECONDS",
        help="`kill -9` the spawned server that long after each start",
    )
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--report", metavar="FILE", help="figures and checks as JSON")
    parser.add_argument("--out", metavar="FILE", help="the trajectories, one a line")


def run_soak(args: argparse.Namespace) -> int:
    """Play, report, and return 1 where a check does not hold."""
    from livestream_env.soak import Soak

    if not 0 <= args.faults <= 1:
        raise UsageError(f"`--faults` is {args.faults:g}; it is a share, 0 to 1")
    if args.sandbox is not None:
        _check_urls(args.sandbox)
    if args.kill_server_every is not None and not args.spawn_server:
        raise UsageError("`--kill-server-every` needs `--spawn-server`: it kills no other")
    soak = Soak(episodes=args.episodes, workers=args.workers, faults=args.faults, seed=args.seed)
    with ExitStack() as stack:
        stack.enter_context(_ended_in_order())
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory()))
        run = _made(args, soak, folder, stack)
        with progress(lambda: f"{run.played} of {soak.episodes} episodes"):
            run.play()
        report = run.report()
    if args.report is not None:
        told = {"command": _command(args), "holds": report.holds, **_figures(report)}
        text = json.dumps(told, ensure_ascii=False, indent=1)
        Path(args.report).write_text(f"{text}\n", encoding="utf-8")
    _print(report)
    return 0 if report.holds else 1


def _check_urls(given: str) -> None:
    from livestream_env.endpoints import checked_url

    for url in given.split(","):
        try:
            checked_url(url, name="--sandbox", example="http://127.0.0.1:8765")
        except ValueError as error:
            raise UsageError(str(error)) from error


@contextmanager
def _ended_in_order() -> Iterator[None]:
    """Take a request to end for an interrupt, so that no server is left behind."""
    before = signal.signal(signal.SIGTERM, signal.default_int_handler)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)


def _made(args: argparse.Namespace, soak: Soak, folder: Path, stack: ExitStack) -> SoakRun:
    """Start what the options ask for."""
    from livestream_env.soak import SoakRun
    from livestream_env.soak_world import local_sandbox, remote_sandbox, spawned_server

    file = Path(args.out) if args.out is not None else folder / "trajectories.jsonl"
    server, url = None, args.sandbox
    if args.spawn_server:
        server = spawned_server(folder, kill_every_s=args.kill_server_every)
        url = stack.enter_context(server).url
    if url is None:
        return SoakRun(soak, local_sandbox, file)
    from livestream_env.sandbox.faulty_wire import FaultyWire

    wire = None
    if url.startswith("http://") and "," not in url:
        wire = stack.enter_context(FaultyWire(url, soak.plan))
        url = wire.url
    make = partial(remote_sandbox, url, token_env=args.token_env)
    return SoakRun(soak, make, file, wire=wire, server=server)


def _command(args: argparse.Namespace) -> dict[str, Any]:
    left_out = ("run", "report", "out")
    return {k: v for k, v in vars(args).items() if v not in (None, False) and k not in left_out}


def _figures(report: SoakReport) -> dict[str, Any]:
    checks = [
        {"name": c.name, "found": c.figure, "limit": c.limit, "holds": c.holds, "detail": c.detail}
        for c in report.checks
    ]
    return {
        "checks": checks,
        "figures": report.figures,
        "stability": stability_figures(report.stability),
    }


def _print(report: SoakReport) -> None:
    rows = [(c.name, _shown(c), f"{c.limit:g}", _verdict(c), c.detail) for c in report.checks]
    print_table(("check", "found", "limit", "", ""), rows)
    print()
    flat = [(k, str(v)) for k, v in report.figures.items() if not isinstance(v, dict)]
    for name, counts in report.figures.items():
        if isinstance(counts, dict):
            flat += [(f"{name}: {key}", str(value)) for key, value in counts.items()]
    print_table(("figure", ""), flat)
    print()
    print_stability(report.stability)


def _shown(check: Check) -> str:
    return "-" if check.figure is None else f"{check.figure:.3g}"


def _verdict(check: Check) -> str:
    return "too short to tell" if check.figure is None else "holds" if check.holds else "FAILS"
