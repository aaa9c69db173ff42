"""`livestream-env stability`: what failed in a run."""

from __future__ import annotations

import argparse
import json
from typing import TYPE_CHECKING, Any

from livestream_env.terminal import UsageError, print_table, safe_text

if TYPE_CHECKING:
    from livestream_env.stability import Stability


def add_stability(parser: argparse.ArgumentParser) -> None:
    """Add the command of `stability`."""
    commands = parser.add_subparsers(metavar="COMMAND", required=True)
    text = "count sessions, retries and failures of a file of trajectories"
    report = commands.add_parser("report", help=text, description=f"{text.capitalize()}.")
    report.set_defaults(run=run_stability_report)
    report.add_argument("--in", dest="source", required=True, metavar="FILE")
    report.add_argument("--json", action="store_true", help="print the figures as JSON")


def run_stability_report(args: argparse.Namespace) -> int:
    """Print what failed, when, and what it goes with."""
    from livestream_env.importers import load_trajectories
    from livestream_env.stability import stability_report

    loaded = load_trajectories(args.source)
    if not loaded.trajectories:
        raise UsageError(f"`{args.source}` holds no trajectories")
    report = stability_report(loaded.trajectories)
    if args.json:
        print(json.dumps(stability_figures(report), ensure_ascii=False, indent=1))
    else:
        print_stability(report)
    return 0


def stability_figures(report: Stability) -> dict[str, Any]:
    """Return the report, JSON-shaped."""
    return {
        "sessions": report.sessions,
        "failed": report.failed,
        "failed_at_reset": report.failed_at_reset,
        "failure_rate": round(report.failure_rate, 6),
        "causes": report.causes,
        "retries": report.retries,
        "rebuilds": report.rebuilds,
        "faults": report.faults,
        "periods": [{"episodes": p.episodes, "causes": p.causes} for p in report.periods],
        "biased": list(report.biased),
    }


def print_stability(report: Stability) -> None:
    """Print the report as lines and tables."""
    print(
        f"{report.sessions} sessions, {report.failed} failed"
        f" ({100 * report.failure_rate:.1f} %, {report.failed_at_reset} at reset),"
        f" {report.retries} retries, {report.rebuilds} rebuilt"
    )
    if report.faults:
        print_table(
            ("below the episodes", "times"), [(k, str(n)) for k, n in report.faults.items()]
        )
    causes = list(report.causes)
    if causes:
        rows = [
            (str(i), str(p.episodes), *(str(p.causes.get(cause, 0)) for cause in causes))
            for i, p in enumerate(report.periods, 1)
        ]
        print_table(("period", "episodes", *map(safe_text, causes)), rows)
    if report.biased:
        print(
            f"failures go with {safe_text(', '.join(report.biased))} (p < .01): leaving failed"
            " episodes out changes what is learnt; find the cause"
        )
