"""The command line: `livestream-env demo`, `doctor`, `room`, `rollout`, `play`, `mask`,
`export`, `judge`, `score`, `evaluate`, `reward`, `record`, `stability`, `inspect`, `soak`,
`serve`.

Exit codes: 0 fine; 1 a check found faults, or nothing could be played; 2 wrong use; 130
interrupted. What is heavy is imported by the commands that need it, so that `--help` is quick.
"""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Callable, Sequence
from typing import Any

from livestream_env.cli_demo import run_demo
from livestream_env.cli_doctor import run_doctor
from livestream_env.cli_export import (
    DATA_FORMATS,
    FORMATS,
    VIEWS,
    run_export_rl,
    run_export_sft,
)
from livestream_env.cli_inspect import add_inspect
from livestream_env.cli_judge import add_judge
from livestream_env.cli_mask import MASKER_NAMES, run_mask
from livestream_env.cli_play import run_play
from livestream_env.cli_record import add_record
from livestream_env.cli_rewards import add_reward
from livestream_env.cli_rollout import AGENT_NAMES, run_rollout
from livestream_env.cli_rooms import (
    run_room_check,
    run_room_list,
    run_room_make,
    run_room_show,
    run_room_strip,
)
from livestream_env.cli_score import add_evaluate, add_score
from livestream_env.cli_serve import add_serve
from livestream_env.cli_soak import add_soak
from livestream_env.cli_stability import add_stability
from livestream_env.terminal import INTERRUPTED, UsageError, safe_lines
from livestream_env.version import VERSION


def main(argv: Sequence[str] | None = None) -> int:
    """Run a command and return its exit code."""
    _accept_any_text()
    args = _parser().parse_args(argv)
    from livestream_env.errors import LivestreamError, SandboxError

    try:
        code: int = args.run(args)
        sys.stdout.flush()
        return code
    except KeyboardInterrupt:
        return INTERRUPTED
    except BrokenPipeError:
        with open(os.devnull, "w", encoding="utf-8") as sink:
            os.dup2(sink.fileno(), sys.stdout.fileno())
        return 1
    except (LivestreamError, UsageError, OSError) as error:
        _complain(error)
        return 1 if isinstance(error, SandboxError) else 2


def _complain(error: Exception) -> None:
    """Print an error as one line; a room's faults, one line each."""
    from livestream_env.errors import RoomError

    text = str(error) if isinstance(error, RoomError) else " ".join(str(error).split("\n"))
    print(safe_lines(f"livestream-env: {text}"), file=sys.stderr)


def _accept_any_text() -> None:
    """Let no character that a terminal cannot show or a pipe mangled raise."""
    handlers = ((sys.stdin, "replace"), (sys.stdout, "backslashreplace"))
    for stream, errors in (*handlers, (sys.stderr, "backslashreplace")):
        if hasattr(stream, "reconfigure"):
            stream.reconfigure(errors=errors)


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="livestream-env", description="Livestream rooms in which LLM agents are the host."
    )
    parser.add_argument("--version", action="version", version=f"livestream-env {VERSION}")
    commands = parser.add_subparsers(metavar="COMMAND", required=True)
    _command(commands, "demo", run_demo, "play a bundled room, scripted agent beside the workflow")
    _command(commands, "doctor", run_doctor, "check this installation")
    _add_room(commands.add_parser("room", help="check, show, strip, list or make rooms"))
    _add_rollout(_command(commands, "rollout", run_rollout, "play episodes into a JSONL file"))
    _add_mask(_command(commands, "mask", run_mask, "see which tokens would be trained"))
    _add_export(commands.add_parser("export", help="make training files of trajectories and tasks"))
    add_judge(commands.add_parser("judge", help="try an LLM judge, bring judges' caches together"))
    add_score(commands.add_parser("score", help="score the trajectories of a file"))
    add_evaluate(commands.add_parser("evaluate", help="play and score agents, in one table"))
    add_reward(commands.add_parser("reward", help="see what a reward is worth to training"))
    add_record(commands.add_parser("record", help="write down what a sandbox answers"))
    add_inspect(commands.add_parser("inspect", help="read the transcripts of a run"))
    add_stability(commands.add_parser("stability", help="see what failed in a run"))
    text = "play episodes on a sandbox that fails, check them"
    add_soak(commands.add_parser("soak", help=text), count=_count)
    add_serve(commands.add_parser("serve", help="serve sandboxes over HTTP"), count=_count)
    play = _command(commands, "play", run_play, "be the host yourself, in the terminal")
    play.add_argument("--room", required=True, help="room file or bundled name")
    play.add_argument("--comment", help="comment id or `burst:N`; by default by seed")
    play.add_argument("--seed", type=_whole, default=0)
    return parser


def _command(commands: Any, name: str, run: Callable[..., int], text: str) -> Any:
    parser = commands.add_parser(name, help=text, description=f"{text[0].upper()}{text[1:]}.")
    parser.set_defaults(run=run)
    return parser


def _add_room(parser: argparse.ArgumentParser) -> None:
    commands = parser.add_subparsers(metavar="COMMAND", required=True)
    check = _command(commands, "check", run_room_check, "name every fault of a room file")
    show = _command(commands, "show", run_room_show, "print a room, or what the host sees of it")
    strip = _command(commands, "strip", run_room_strip, "write the room without its key")
    _command(commands, "list", run_room_list, "list the bundled rooms")
    for one in (check, show, strip):
        one.add_argument("room", metavar="FILE", help="room file or bundled name")
    show.add_argument("--comment", help="show what the host sees of this comment, and its key")
    make = _command(commands, "make", run_room_make, "generate a room with its key")
    make.add_argument("--seed", type=_whole, default=0)
    make.add_argument("--language", choices=("zh", "en"), default="zh")
    make.add_argument("--level", type=int, choices=(1, 2, 3), default=2)
    make.add_argument("--split", choices=("train", "test"), default="train")
    make.add_argument("--products", type=_count, default=30)
    make.add_argument("--comments", type=_count, default=60)
    make.add_argument("--noise", type=float, default=0.2, help="share of noisy comments, 0 to 1")
    make.add_argument("--chatter", type=float, default=0.1, help="share that asks nothing, 0 to 1")
    for one in (strip, make):
        one.add_argument("--out", required=True, metavar="FILE")


def _add_rollout(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--room", required=True, help="room file, folder, glob or bundled name")
    parser.add_argument("--agent", required=True, help=AGENT_NAMES)
    parser.add_argument("--out", required=True, metavar="FILE", help="one trajectory a line")
    parser.add_argument("--episodes", type=_count, help="by default every comment once")
    text = "threads (default), one event loop, or a Ray cluster"
    parser.add_argument(
        "--driver", choices=("threads", "async", "ray"), default="threads", help=text
    )
    parser.add_argument("--workers", type=_count, default=1, help="episodes at once, 1 by default")
    text = "give an episode up that takes longer"
    parser.add_argument("--episode-timeout", type=_seconds, metavar="SECONDS", help=text)
    parser.add_argument("--seed", type=_whole, default=0, help="seed of the first episode")
    parser.add_argument("--comment", help="comment id or `burst:N`; by default by seed")
    parser.add_argument("--json", action="store_true", help="print the summary as JSON")


def _add_mask(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--trajectory", required=True, metavar="FILE", help="ours or others'")
    parser.add_argument("--tokenizer", required=True, metavar="DIR", help="with a chat template")
    parser.add_argument("--masker", choices=MASKER_NAMES, default="end_to_end")
    how = parser.add_mutually_exclusive_group()
    how.add_argument("--show", action="store_true", help="print the tokens, trained ones coloured")
    how.add_argument("--html", metavar="FILE", help="write the tokens as a page")


def _add_export(parser: argparse.ArgumentParser) -> None:
    commands = parser.add_subparsers(metavar="COMMAND", required=True)
    sft = _command(commands, "sft", run_export_sft, "write the rows of an SFT data set")
    sft.add_argument("--view", choices=VIEWS, default="end_to_end", help="which turns are trained")
    sft.add_argument("--format", choices=FORMATS, default="messages")
    sft.add_argument("--strip-thinking", action="store_true", help="leave reasoning out")
    sft.add_argument("--tokenizer", metavar="DIR", help="needed for `--format tokens`")
    sft.add_argument(
        "--in", dest="source", required=True, metavar="FILE", help="trajectories, ours or others'"
    )
    rl = _command(commands, "rl", run_export_rl, "write the tasks of an RL data set")
    rl.add_argument("--format", choices=DATA_FORMATS, default="jsonl", help="whose columns")
    rl.add_argument("--room", default="bundled:train", help="as `gym.make`'s `room`")
    rl.add_argument("--count", type=_count, help="by default every comment once")
    rl.add_argument("--seed", type=_whole, default=0, help="of the first row")
    for one in (sft, rl):
        one.add_argument(
            "--out", required=True, metavar="FILE", help="JSON Lines; parquet for verl"
        )


def _whole(text: str) -> int:
    if not text.isascii() or not text.isdigit():
        raise argparse.ArgumentTypeError(f"`{text}` is no whole number from 0")
    return int(text)


def _count(text: str) -> int:
    if _whole(text) < 1:
        raise argparse.ArgumentTypeError(f"`{text}` is no whole number from 1")
    return int(text)


def _seconds(text: str) -> float:
    try:
        seconds = float(text)
    except ValueError:
        seconds = 0.0
    if not 0 < seconds < float("inf"):
        raise argparse.ArgumentTypeError(f"`{text}` is no number of seconds above 0")
    return seconds


if __name__ == "__main__":
    sys.exit(main())
