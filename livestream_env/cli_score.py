"""`livestream-env score` and `evaluate`: rewards of played episodes, agents beside each other."""

from __future__ import annotations

import argparse
import json
import sys
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING, Any

from livestream_env.cli_play import make_room_env
from livestream_env.cli_rollout import AGENT_NAMES, agent_named, every_episode, imported
from livestream_env.terminal import UsageError, print_table, progress, safe_text

if TYPE_CHECKING:
    from livestream_env.evaluation import Evaluation
    from livestream_env.rewards import Rubric
    from livestream_env.rooms import Room
    from livestream_env.types import Trajectory

RUBRICS = ("single4", "multi22", "multi40_60", "agent50_30_20", "dialogue", "black_box")
RUBRIC_FORM = "python:module:rubric"
INTENTS_SHOWN = 12


def add_score(parser: argparse.ArgumentParser) -> None:
    """Add the options of `score`."""
    add_source(parser)
    add_rubric(parser)
    parser.add_argument("--out", required=True, metavar="FILE", help="trajectories with rewards")
    parser.set_defaults(run=run_score)


def add_source(parser: argparse.ArgumentParser) -> None:
    """Add the options that name trajectories and their rooms."""
    parser.add_argument(
        "--in", dest="source", required=True, metavar="FILE", help="trajectories, ours or others'"
    )
    parser.add_argument(
        "--room", help="room file, folder or glob; by default the bundled and generated rooms"
    )


def add_rubric(parser: argparse.ArgumentParser) -> None:
    """Add the option that names a rubric."""
    text = f"{', '.join(RUBRICS)} or {RUBRIC_FORM}; single4 by default"
    parser.add_argument("--rubric", metavar="NAME", help=text)


def add_evaluate(parser: argparse.ArgumentParser) -> None:
    """Add the options of `evaluate`."""
    add = parser.add_argument
    add("--room", required=True, help="room file, folder, glob, bundled or generated rooms")
    text = f"{AGENT_NAMES}; may be repeated, for one table"
    add("--agent", required=True, action="append", metavar="NAME", help=text)
    add("--repeat", type=_positive, default=1, help="episodes of each comment, 1 by default")
    add_rubric(parser)
    add("--episodes", type=_positive, help="comments; by default each once")
    add("--seed", type=int, default=0, help="seed of the first comment")
    add("--comment", help="comment id or `burst:N`; by default by seed")
    add("--workers", type=_positive, default=1, help="threads, 1 by default")
    add("--success", type=float, default=0.8, help="least total that passes, 0.8 by default")
    add("--out", metavar="FILE", help="write the trajectories, with their rewards")
    add("--json", action="store_true", help="print everything as JSON")
    parser.set_defaults(run=run_evaluate)


def _positive(text: str) -> int:
    if not text.isascii() or not text.isdigit() or int(text) < 1:
        raise argparse.ArgumentTypeError(f"`{text}` is no whole number from 1")
    return int(text)


def rubric_named(name: str) -> Rubric:
    """Return the rubric of that name, a preset or `python:module:rubric`.

    Raises:
        UsageError: there is none.
    """
    from livestream_env.errors import did_you_mean
    from livestream_env.evaluation import BLACK_BOX
    from livestream_env.rewards import PRESETS

    if name.startswith("python:"):
        return _own_rubric(name)
    known = {**PRESETS, "black_box": BLACK_BOX}
    if name not in known:
        hint = did_you_mean(name, known)
        raise UsageError(f"no rubric `{name}`; use {', '.join(known)} or {RUBRIC_FORM}.{hint}")
    return known[name]


def _own_rubric(name: str) -> Rubric:
    module_name, _, attribute = name.removeprefix("python:").partition(":")
    if not module_name or not attribute:
        raise UsageError(f"`{name}` names no rubric; write {RUBRIC_FORM}")
    rubric: Rubric | None = getattr(imported(module_name), attribute, None)
    if not callable(rubric):
        raise UsageError(f"module `{module_name}` has no rubric `{attribute}`")
    return rubric


# --- score ------------------------------------------------------------------------------------


def run_score(args: argparse.Namespace) -> int:
    """Score the trajectories of a file."""
    from livestream_env.diagnostics import reward_report
    from livestream_env.trajectory_log import json_text

    name = args.rubric or "single4"
    rubric = rubric_named(name)
    with progress(lambda: "reading and scoring"):
        pairs = load_with_rooms(args.source, args.room)
        scored = list(_scored(pairs, rubric, name))
    with open(args.out, "w", encoding="utf-8", newline="\n") as out:
        out.writelines(f"{json_text(trajectory)}\n" for trajectory in scored)
    report = reward_report(scored)
    rows = [
        (one.name, str(one.count), _shown(one.mean), _causes(one.missing)) for one in report.streams
    ]
    print_table(("score", "scored", "mean", "missing"), rows)
    total = sum(trajectory.reward is not None for trajectory in scored)
    print(
        f"{len(scored)} trajectories by {safe_text(name)}, {total} with a total,"
        f" {report.failed} failed; written to {safe_text(args.out)}"
    )
    return 0 if total else 1


def _scored(
    pairs: Sequence[tuple[Trajectory, Room | None]], rubric: Rubric, name: str
) -> Iterator[Trajectory]:
    """Score each trajectory, those of one group alike."""
    from livestream_env.rewards import Rubric, score_all

    groups: dict[Any, list[int]] = {}
    for i, (trajectory, _) in enumerate(pairs):
        groups.setdefault(trajectory.group if trajectory.group is not None else i, []).append(i)
    rewards: dict[int, Any] = {}
    for members in groups.values():
        made = score_all(rubric, [pairs[i][0] for i in members], pairs[members[0]][1])
        rewards.update(zip(members, made, strict=True))
    judges = rubric.versions if isinstance(rubric, Rubric) else {}
    for i, (trajectory, _) in enumerate(pairs):
        versions = {**trajectory.versions, **judges, "rubric": name}
        yield trajectory.model_copy(update={"rewards": rewards[i], "versions": versions})


def load_with_rooms(source: str, room: str | None) -> list[tuple[Trajectory, Room | None]]:
    """Read trajectories and find the room of each; say which records and rooms are amiss.

    Raises:
        UsageError: the file holds no trajectory.
    """
    from livestream_env.importers import load_trajectories

    loaded = load_trajectories(source)
    for where, reason in loaded.refused:
        print(safe_text(f"refused {where}: {reason}"), file=sys.stderr)
    if not loaded.trajectories:
        raise UsageError(f"`{source}` holds no trajectories")
    find = room_finder(room)
    pairs, amiss = [], Counter[str]()
    for trajectory in loaded.trajectories:
        found, problem = find(trajectory)
        pairs.append((trajectory, found))
        amiss[problem] += bool(problem)
    for problem, count in (+amiss).items():
        print(safe_text(f"{count} trajectories without truth: {problem}"), file=sys.stderr)
    return pairs


def room_finder(source: str | None) -> Callable[[Trajectory], tuple[Room | None, str]]:
    """Return what finds the room of a trajectory by content hash, or says why there is none."""
    from livestream_env.room_files import find_rooms
    from livestream_env.room_index import RoomIndex

    index = RoomIndex(find_rooms(source) if source else None)

    def find(trajectory: Trajectory) -> tuple[Room | None, str]:
        room, problem = index.find(trajectory.room_id, trajectory.content_hash)
        if room is None and problem.startswith("no room"):
            problem += "; name its file with `--room`"
        return room, problem

    return find


def _causes(missing: Any) -> str:
    return ", ".join(f"{count} {cause}" for cause, count in missing.items()) or "-"


def _shown(number: float | None) -> str:
    from livestream_env.evaluation import shown

    return shown(number)


# --- evaluate ---------------------------------------------------------------------------------


def run_evaluate(args: argparse.Namespace) -> int:
    """Play and score agents, and print them in one table."""
    from livestream_env.trajectory_log import json_text

    only_recorded = set(args.agent) == {"recorded"}
    name = args.rubric or ("black_box" if only_recorded else "single4")
    rubric = rubric_named(name)
    seeds = _seeds(args)
    agents = dict.fromkeys(args.agent)
    evaluations = [_evaluated(args, agent, rubric, name, seeds) for agent in agents]
    if args.out:
        with open(args.out, "w", encoding="utf-8", newline="\n") as out:
            for one in evaluations:
                out.writelines(f"{json_text(t)}\n" for t in one.trajectories)
    for one in evaluations:
        for warning in one.warnings:
            print(safe_text(f"warning: {warning}"), file=sys.stderr)
    if args.json:
        print(json.dumps([one.summary() for one in evaluations], ensure_ascii=False))
    else:
        _print_evaluations(evaluations)
    return int(all(one.mean() is None for one in evaluations))


def _seeds(args: argparse.Namespace) -> Sequence[int]:
    """Return the comments to play; with the recorded host in the table, those that it answered.

    Raises:
        UsageError: it answered none of them.
    """
    from livestream_env.evaluation import recorded_seeds

    env = make_room_env(args.room, args.comment, rubric=None)
    count = args.episodes or every_episode(env, args.comment)
    seeds: Sequence[int] = range(args.seed, args.seed + count)
    if "recorded" not in args.agent:
        return seeds
    with progress(lambda: "finding recorded replies"):
        kept = recorded_seeds(env, seeds)
    if not kept:
        raise UsageError(f"none of the {count} comments has a recorded reply")
    if len(kept) < count:
        left_out = count - len(kept)
        print(f"{left_out} comments without a recorded reply are left out", file=sys.stderr)
    return kept


def _evaluated(
    args: argparse.Namespace, agent: str, rubric: Rubric, name: str, seeds: Sequence[int]
) -> Evaluation:
    from livestream_env.evaluation import evaluate

    first = make_room_env(args.room, args.comment, rubric=None)
    done = Counter[str]()
    count = len(seeds) * args.repeat
    with progress(lambda: f"{agent}: {done['episodes']} of {count} episodes"):
        return evaluate(
            lambda: make_room_env(args.room, args.comment, rubric=None),
            agent_named(agent, first.rooms),
            repeat=args.repeat,
            seeds=seeds,
            rubric=rubric,
            rubric_name=name,
            workers=args.workers,
            name=agent,
            success=args.success,
            tell=lambda _: done.update(("episodes",)),
        )


def _print_evaluations(evaluations: Sequence[Evaluation]) -> None:
    from livestream_env.evaluation import comparison

    header, rows = comparison(evaluations)
    print_table(header, rows)
    first = evaluations[0]
    print(f"rubric {safe_text(first.rubric)}; an episode passes from {first.success:g} on")
    _print_by("level", evaluations, [one.by_level for one in evaluations])
    _print_by("intent", evaluations, [one.by_intent for one in evaluations])


def _print_by(what: str, evaluations: Sequence[Evaluation], tables: Sequence[Any]) -> None:
    """Print the mean totals by intent or level, the most frequent first."""
    counts = Counter({key: n for table in tables for key, (_, n) in table.items()})
    if not counts:
        return
    rows = [
        (key, str(n), *(_shown(table[key][0] if key in table else None) for table in tables))
        for key, n in counts.most_common(INTENTS_SHOWN)
    ]
    print()
    print_table((what, "episodes", *(one.agent for one in evaluations)), rows)
    if len(counts) > INTENTS_SHOWN:
        print(f"and {len(counts) - INTENTS_SHOWN} more; `--json` has all")
