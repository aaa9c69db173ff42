"""`livestream-env record`: writing down what a sandbox answers, and looking at what was written."""

from __future__ import annotations

import argparse
from collections import Counter
from collections.abc import Callable
from typing import TYPE_CHECKING, cast

from livestream_env.terminal import UsageError, print_table, progress, safe_text

if TYPE_CHECKING:
    from livestream_env.drivers import Agent
    from livestream_env.rooms import Room
    from livestream_env.sandbox import Sandbox
    from livestream_env.sandbox.drift import Drift
    from livestream_env.sandbox.recording_file import RecordingFile
    from livestream_env.sandbox.recording_lines import ResetLine


def add_record(parser: argparse.ArgumentParser) -> None:
    """Add the options and commands of `record`."""
    parser.set_defaults(run=run_record)
    parser.add_argument("--room", help="room file, folder, glob or bundled name")
    parser.add_argument("--sandbox", default="local", metavar="URL", help="by default `local`")
    parser.add_argument("--agent", default="workflow", help="who plays, `workflow` by default")
    parser.add_argument("--out", metavar="FILE", help="the recording, which grows")
    parser.add_argument("--comment", help="comment id or `burst:N`; by default by seed")
    parser.add_argument("--episodes", type=int, help="by default every comment once")
    parser.add_argument("--seed", type=int, default=0, help="seed of the first episode")
    commands = parser.add_subparsers(metavar="COMMAND")
    text = "say what a recording holds, and which lines cannot be read"
    check = commands.add_parser("check", help=text, description=f"{text.capitalize()}.")
    check.set_defaults(run=run_record_check)
    text = "find the recorded answers that a live sandbox gives no longer"
    verify = commands.add_parser("verify", help=text, description=f"{text.capitalize()}.")
    verify.set_defaults(run=run_record_verify)
    verify.add_argument("--sandbox", required=True, metavar="URL", help="or `local`")
    verify.add_argument("--room", help="the room; by default the bundled one of that name")
    for one in (check, verify):
        one.add_argument("file", metavar="FILE")


def run_record(args: argparse.Namespace) -> int:
    """Play episodes and write down every new answer."""
    from livestream_env.cli_rollout import agent_named, every_episode
    from livestream_env.drivers import rollout
    from livestream_env.env import LiveRoomEnv
    from livestream_env.sandbox.recording_file import recording_file
    from livestream_env.types import Status

    if args.room is None or args.out is None:
        raise UsageError("`record` takes --room and --out, or `check FILE`, or `verify FILE`")
    before = _counts(recording_file(args.out))
    make = _recorder(args.sandbox, args.out)
    env = LiveRoomEnv(args.room, comment=args.comment, sandbox=make, rubric=None)
    agent = cast("Agent", agent_named(args.agent, env.rooms))
    episodes = args.episodes or every_episode(env, args.comment)
    failed = 0
    with progress(lambda: "recording"):
        for seed in range(args.seed, args.seed + episodes):
            failed += rollout(env, agent, seed=seed).status is Status.ENV_ERROR
    env.close()
    starts, answers = _counts(recording_file(args.out))
    print(
        f"{episodes} episodes, {failed} env_error; {safe_text(args.out)} holds {starts} starts"
        f" ({starts - before[0]} new) and {answers} answers ({answers - before[1]} new)"
    )
    return int(failed == episodes)


def _recorder(sandbox: str, out: str) -> Callable[[Room], Sandbox]:
    from livestream_env.sandbox import RecordingSandbox, make_sandbox

    return lambda room: RecordingSandbox(
        make_sandbox(sandbox, room), out, mode="read_through", content_hash=room.content_hash
    )


def _counts(file: RecordingFile) -> tuple[int, int]:
    return len(file.openings), len(file.answers)


def run_record_check(args: argparse.Namespace) -> int:
    """Print what a recording holds, and the lines that cannot be read."""
    from livestream_env.sandbox.recording_file import recording_file

    file = recording_file(args.file)
    if not file.path.is_file():
        raise UsageError(f"no recording `{args.file}`")
    starts = Counter(line.view.room_id for line in file.openings.values())
    rooms = {line.content_hash: line.view.room_id for line in file.openings.values()}
    calls = Counter((rooms.get(one.content_hash, "?"), one.tool) for one in file.answers.values())
    rows = [(room, "reset", str(count)) for room, count in sorted(starts.items())]
    rows += [(room, tool, str(count)) for (room, tool), count in sorted(calls.items())]
    print_table(("room", "what", "lines"), rows)
    for number, problem in sorted(file.faults.items()):
        what = "is cut" if number == file.torn else problem
        print(f"line {number}: {safe_text(what)}")
    twice = len(file.lines) - sum(_counts(file))
    print(f"{len(file.lines)} lines, {twice} of them repeated, {len(file.faults)} unreadable")
    return int(bool(file.faults) or not file.openings)


def run_record_verify(args: argparse.Namespace) -> int:
    """Ask a live sandbox everything again, and print the answers that differ."""
    from livestream_env.sandbox.drift import find_drift
    from livestream_env.sandbox.replay import read_recording

    file = read_recording(args.file)
    with progress(lambda: "asking again"):
        found = sorted(find_drift(file, _live(args)), key=lambda drift: drift.number)
    for drift in found:
        _print_drift(drift)
    print(f"{len(found)} of {sum(_counts(file))} recorded answers have drifted")
    return int(bool(found))


def _live(args: argparse.Namespace) -> Callable[[ResetLine], Sandbox]:
    """Return what makes the sandbox to compare an episode with.

    Raises:
        RoomMismatch: no room given has the content that was recorded.
    """
    from livestream_env.errors import RoomMismatch
    from livestream_env.room_files import find_rooms
    from livestream_env.sandbox import make_sandbox

    def make(opening: ResetLine) -> Sandbox:
        rooms = find_rooms(args.room or opening.view.room_id)
        room = next((room for room in rooms if room.content_hash == opening.content_hash), None)
        if room is None:
            raise RoomMismatch(
                f"`{opening.view.room_id}` ({opening.content_hash}) was recorded, and the room is"
                f" {', '.join(room.content_hash for room in rooms)} today: everything may differ"
            )
        return make_sandbox(args.sandbox, room, language=opening.view.language)

    return make


def _print_drift(drift: Drift) -> None:
    import json

    from livestream_env.sandbox.recording_lines import CallLine, RecordedResult

    line, comments = drift.line, "+".join(drift.line.comments)
    if not isinstance(line, CallLine):
        print(f"line {drift.number}: reset on {comments}: the view differs")
        return
    arguments = json.dumps(line.arguments, ensure_ascii=False)
    print(f"line {drift.number}: {safe_text(f'{line.tool}({arguments})')} on {comments}")
    print(f"  was {safe_text(line.result.content)}")
    live = drift.live.content if isinstance(drift.live, RecordedResult) else "not reachable"
    print(f"  is  {safe_text(live)}")
