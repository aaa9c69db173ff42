"""`livestream-env inspect`: transcripts of a run, with rewards and reasons."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from typing import TYPE_CHECKING

from livestream_env.terminal import UsageError, print_table, progress, safe_lines, safe_text

if TYPE_CHECKING:
    from livestream_env.trajectory_log import LogLine
    from livestream_env.types import Score, Trajectory


def add_inspect(parser: argparse.ArgumentParser) -> None:
    """Add the options of `inspect`."""
    add = parser.add_argument
    add("log", metavar="DIR", help="a trajectory log, or a file of trajectories, ours or others'")
    add("--step", type=int, help="of this training step alone")
    add("--worst", type=int, metavar="N", help="the N lowest totals, the lowest first")
    text = "that ended so, such as `replied` or `turn_limit`"
    add("--stop-reason", type=_stop_reason, metavar="REASON", help=text)
    add("--abstain", action="store_true", help="whose reply says that it cannot tell")
    parser.set_defaults(run=run_inspect)


def _stop_reason(text: str) -> str:
    from livestream_env.types import StopReason

    if text not in list(StopReason):
        known = ", ".join(StopReason)
        raise argparse.ArgumentTypeError(f"`{text}` ends no episode; use {known}")
    return text


def run_inspect(args: argparse.Namespace) -> int:
    """Print the trajectories that were asked for; 1 where there are none."""
    from livestream_env.trajectory_log import read_log

    if args.worst is not None and args.worst < 1:
        raise UsageError(f"`--worst` is {args.worst}; it is a whole number from 1")
    with progress(lambda: "reading"):
        logged = read_log(args.log, step=args.step)
        chosen = _chosen(logged.lines, args)
    for where, reason in logged.refused:
        print(safe_text(f"refused {where}: {reason}"), file=sys.stderr)
    for number, line in enumerate(chosen, 1):
        _print_line(line, f"{number} of {len(chosen)}")
    print(f"{len(chosen)} of {len(logged.lines)} trajectories shown")
    return 0 if chosen else 1


def _chosen(lines: Sequence[LogLine], args: argparse.Namespace) -> list[LogLine]:
    kept = [line for line in lines if _fits(line.trajectory, args)]
    if args.worst is None:
        return kept
    ranked = [(total, line) for line in kept if (total := _total(line.trajectory)) is not None]
    if len(ranked) < len(kept):
        left_out = len(kept) - len(ranked)
        print(f"{left_out} trajectories without a total are in no rank", file=sys.stderr)
    ranked.sort(key=lambda one: one[0])
    return [line for _, line in ranked[: args.worst]]


def _fits(trajectory: Trajectory, args: argparse.Namespace) -> bool:
    from livestream_env.evidence import Reading

    if args.stop_reason is not None and trajectory.stop_reason != args.stop_reason:
        return False
    return not args.abstain or Reading(trajectory, None).abstains is True


def _total(trajectory: Trajectory) -> float | None:
    from livestream_env.evaluation import value_of

    return value_of(trajectory)


def _print_line(line: LogLine, number: str) -> None:
    """Print what a trajectory is, what the host saw, what was done and what it earned."""
    from livestream_env.env import transcript

    trajectory = line.trajectory
    print(safe_text(f"=== {number}: {', '.join(_facts_of(line))}"))
    prompt = next(iter(trajectory.prompts.values()), ())
    for message in prompt:
        if message.role == "user":
            print("\n".join(f"    {line}" for line in safe_lines(message.content).split("\n")))
    print(transcript(trajectory), end="")
    for fault in trajectory.faults:
        print(safe_text(f"  ! {fault.kind} {fault.detail}".rstrip()))
    _print_rewards(trajectory)
    print()


def _facts_of(line: LogLine) -> list[str]:
    trajectory = line.trajectory
    told = {
        "step": line.step,
        "policy": line.policy_version,
        "room": trajectory.room_id,
        "comment": " ".join(trajectory.comment_ids) or None,
        "seed": trajectory.seed,
        "group": trajectory.group,
    }
    return [f"{name} {value}" for name, value in told.items() if value is not None]


def _print_rewards(trajectory: Trajectory) -> None:
    from livestream_env.evaluation import shown

    rewards = trajectory.rewards
    if rewards is None or not rewards.scores:
        print("not scored")
        return
    agents = dict.fromkeys(score.agent for score in rewards.scores if score.weight)
    each = ", ".join(f"{agent} {shown(rewards.total(agent))}" for agent in agents)
    print(safe_text(f"reward {shown(_total(trajectory))} ({each})"))
    print_table(("score", "agent", "value", "weight", "reason"), list(map(_row, rewards.scores)))


def _row(score: Score) -> tuple[str, ...]:
    from livestream_env.evaluation import shown

    name = score.name if score.turn is None else f"{score.name}, turn {score.turn}"
    reason = "; ".join(filter(None, (score.cause, score.reason)))
    return name, score.agent, shown(score.value), f"{score.weight:g}", reason
