"""`livestream-env reward`: whether a reward separates good from bad, and what can cheat it."""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from livestream_env.cli_score import add_rubric, add_source, load_with_rooms, rubric_named
from livestream_env.terminal import UsageError, print_table, progress, safe_text

if TYPE_CHECKING:
    from livestream_env.diagnostics import RewardReport, Stream
    from livestream_env.exploits import Hacked

GOOD = 0.8


def add_reward(parser: argparse.ArgumentParser) -> None:
    """Add the commands of `reward`."""
    commands = parser.add_subparsers(metavar="COMMAND", required=True)
    text = "tell what rewards are worth to training"
    report = commands.add_parser("report", help=text, description=f"{text.capitalize()}.")
    report.add_argument(
        "--in", dest="source", required=True, metavar="FILE", help="scored trajectories"
    )
    text = "JSON Lines or list: a number, or an object with `label`, for each trajectory"
    report.add_argument("--labels", metavar="FILE", help=text)
    report.add_argument("--json", action="store_true", help="print everything as JSON")
    report.set_defaults(run=run_reward_report)
    text = "put single faults into good episodes and see whether the total falls"
    probing = commands.add_parser("probe", help=text, description=f"{text.capitalize()}.")
    add_source(probing)
    add_rubric(probing)
    text = f"least total of an episode that is taken for good, {GOOD} by default"
    probing.add_argument("--good", type=float, default=GOOD, help=text)
    probing.set_defaults(run=run_reward_probe)
    text = "play the known exploits beside the honest agent; 1 if one is not below"
    hack = commands.add_parser("hack", help=text, description=f"{text.capitalize()}.")
    add_rubric(hack)
    hack.add_argument("--room", required=True, help="room file, folder, glob or bundled name")
    hack.add_argument("--episodes", type=int, help="comments of each room; by default all")
    hack.set_defaults(run=run_reward_hack)


# --- report -----------------------------------------------------------------------------------


def run_reward_report(args: argparse.Namespace) -> int:
    """Report on the rewards of a file of trajectories."""
    from livestream_env.diagnostics import reward_report
    from livestream_env.importers import load_trajectories

    with progress(lambda: "reading"):
        loaded = load_trajectories(args.source)
        for where, reason in loaded.refused:
            print(safe_text(f"refused {where}: {reason}"), file=sys.stderr)
        labels = _labels(args.labels, len(loaded.trajectories)) if args.labels else None
        report = reward_report(loaded.trajectories, labels)
    for warning in report.warnings:
        print(safe_text(f"warning: {warning}"), file=sys.stderr)
    if args.json:
        print(json.dumps(report.summary(), ensure_ascii=False))
    else:
        print_report(report)
    return 0 if report.trajectories > report.failed else 1


def _labels(path: str, count: int) -> list[float | None]:
    """Read a label for each trajectory.

    Raises:
        UsageError: there are more or fewer, or one is neither a number nor null.
    """
    text = Path(path).read_text(encoding="utf-8-sig")
    try:
        whole = json.loads(text) if text.lstrip().startswith("[") else None
        lines = [line for line in text.split("\n") if line.strip()]
        raw = whole if whole is not None else [json.loads(line) for line in lines]
    except ValueError as error:
        raise UsageError(f"`{path}` is neither JSON Lines nor a list: {error}") from error
    given = [one.get("label") if isinstance(one, dict) else one for one in raw]
    if len(given) != count:
        raise UsageError(f"`{path}` has {len(given)} labels for {count} trajectories")
    for number, label in enumerate(given, 1):
        if label is not None and not isinstance(label, (int, float)):
            raise UsageError(f"label {number} of `{path}` is {label!r:.40}; write a number or null")
    return [None if label is None else float(label) for label in given]


def print_report(report: RewardReport) -> None:
    """Print the tables of a report."""
    header = ("score", "n", "mean", "at 0", "at 1", "flat groups", "within")
    rows = [
        (s.name, str(s.count), *_numbers(s.mean, s.at_zero, s.at_one, *_variances(s)))
        for s in report.streams
    ]
    print_table(header, rows)
    _print_separation(report)
    missing = [(s.name, cause, str(n)) for s in report.streams for cause, n in s.missing.items()]
    if missing:
        print()
        print_table(("score", "missing because", "n"), missing)
    if report.correlations:
        print()
        pairs = [(a, b, *_numbers(r)) for (a, b), r in report.correlations.items()]
        print_table(("score", "and", "correlation"), pairs)
    print()
    for one in report.break_evens:
        p, sorry = _numbers(one.p, one.sorry)
        print(
            f"{safe_text(one.agent)}: answering pays from p = {one.at:.3f} on; p is {p},"
            f" replies that cannot tell earn {sorry}"
        )
    (rate,) = _numbers(report.abstain_rate)
    print(f"replies that cannot tell: {rate}")
    print(f"{report.trajectories} trajectories, {report.failed} failed or not scored")


def _variances(stream: Stream) -> tuple[float | None, float | None]:
    return stream.zero_variance, stream.spread.within_share


def _print_separation(report: RewardReport) -> None:
    if not report.labelled:
        return
    print()
    rows = [
        (s.name, *_numbers(s.everywhere.auc, s.inside.auc, s.inside.accuracy), str(s.inside.pairs))
        for s in report.streams
    ]
    header = ("score", "AUC over all", "AUC inside groups", "pairs right inside", "pairs inside")
    print_table(header, rows)


def _numbers(*numbers: float | None) -> tuple[str, ...]:
    from livestream_env.evaluation import shown

    return tuple(map(shown, numbers))


# --- probe and hack ---------------------------------------------------------------------------


def run_reward_probe(args: argparse.Namespace) -> int:
    """Score good episodes and their mutants, and print what share of each kind falls."""
    from livestream_env.diagnostics import probe, reward_report

    rubric = rubric_named(args.rubric or "single4")
    with progress(lambda: "reading, changing and scoring"):
        pairs = load_with_rooms(args.source, args.room)
        probed, labelled = probe(pairs, rubric, good=args.good)
    rows = [
        (one.name, str(one.tried), *_numbers(one.share, one.drop if one.tried else None))
        for one in probed
    ]
    print_table(("fault", "tried", "share that falls", "mean fall"), rows)
    good = sum(label for _, label in labelled)
    if good:
        report = reward_report(*_columns(labelled))
        (auc,) = _numbers(report.stream("total").inside.auc)
        print(f"total: AUC inside groups {auc}")
    print(f"{good:g} good episodes of {len(pairs)}")
    return 0 if any(one.tried for one in probed) else 1


def _columns(labelled: Sequence[tuple[Any, float]]) -> tuple[list[Any], list[float | None]]:
    return [one for one, _ in labelled], [label for _, label in labelled]


def run_reward_hack(args: argparse.Namespace) -> int:
    """Play the exploits and print what each earned beside the honest agent."""
    from livestream_env.diagnostics import try_hacks
    from livestream_env.room_files import find_rooms

    name = args.rubric or "single4"
    rubric = rubric_named(name)
    rooms = find_rooms(args.room)
    seeds = None if args.episodes is None else range(args.episodes)
    with progress(lambda: "playing the exploits"):
        hacked = try_hacks(rooms, rubric, seeds=seeds)
    honest = hacked[0].honest
    rows = [_hack_row(one, honest.names) for one in hacked]
    agents = _numbers(*(honest.mean(agent) for agent in honest.names))
    first = ("honest", *_numbers(honest.mean()), *agents, "")
    print_table(("exploit", "total", *honest.names, "below"), [first, *rows])
    above = [one.name for one in hacked if not one.is_below]
    print(
        f"{len(hacked)} exploits on {len(honest.results)} comments under {safe_text(name)};"
        f" not below the honest agent: {', '.join(above) or 'none'}"
    )
    return int(bool(above))


def _hack_row(one: Hacked, names: Sequence[str]) -> tuple[str, ...]:
    means = [one.evaluation.mean(name) for name in ("total", *names)]
    return one.name, *_numbers(*means), "yes" if one.is_below else "NO"
