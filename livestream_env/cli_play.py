"""`livestream-env play`: a person answers as the host."""

from __future__ import annotations

import argparse
import re
import sys
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from livestream_env.terminal import UsageError, progress, safe_lines, safe_text

if TYPE_CHECKING:
    from livestream_env.rooms import Room
    from livestream_env.types import Action, Observation, ToolSpec

PLAY_HELP = """\
search_faq 包邮吗     call a tool: its name, then its arguments in order
{"name": "search_faq", "arguments": {"query": "包邮吗"}}   the same as JSON; several in a row
anything else         your reply to the viewer
skip                  leave the comment unanswered
help, quit            this help; stop"""


def run_play(args: argparse.Namespace) -> int:
    """Let a person host one episode."""
    env = make_room_env(args.room, args.comment, render_mode="human")
    with progress(lambda: "indexing the room"):
        observation, _ = env.reset(seed=args.seed)
    print_observation(observation)
    print(f"\n{PLAY_HELP}\n")
    while not env.episode.done:
        line = _typed_line()
        if line is None or line == "quit":
            print()
            env.episode.abort("driver")
            env.render()
        elif line == "help":
            print(PLAY_HELP)
        elif line:
            try:
                action = typed_action(line, observation.tools)
            except UsageError as error:
                print(safe_text(str(error)))
            else:
                env.step(action)
    return 0


def _typed_line() -> str | None:
    """Return the next line, `None` at the end of the input."""
    try:
        return input("> " if sys.stdin.isatty() else "").strip()
    except EOFError:
        return None


def typed_action(line: str, tools: Sequence[ToolSpec]) -> Action | str:
    """Read what a person typed: a tool call in words or as JSON, `skip`, or a reply.

    Raises:
        UsageError: it looks like a call and cannot be run.
    """
    from livestream_env.errors import did_you_mean
    from livestream_env.types import Action

    name, _, rest = line.partition(" ")
    specs = {spec.name: spec for spec in tools}
    if line == "skip":
        return Action.skip()
    if line.startswith("{"):
        return _checked_json(line)
    if name in specs:
        return Action.call(name, **_arguments(specs[name], rest))
    if re.fullmatch(r"[A-Za-z]+(_[A-Za-z]+)+", name):
        hint = did_you_mean(name, specs)
        raise UsageError(f"no tool `{name}`; there are {', '.join(specs)}.{hint}")
    return Action.reply(line)


def _checked_json(line: str) -> str:
    """Return the line if it holds calls alone, which the episode then reads as a model's text."""
    from livestream_env.parsing import parse_text

    calls = parse_text(line, "json").message.tool_calls
    faults = [call.error for call in calls if call.error is not None]
    if faults or not calls:
        fault = faults[0] if faults else "no call"
        raise UsageError(f'{fault}; write {{"name": "search_faq", "arguments": {{...}}}}')
    return line


def _arguments(spec: ToolSpec, text: str) -> dict[str, Any]:
    """Give the words to the parameters in order, the rest of the line to the last one."""
    properties = spec.parameters["properties"]
    words = text.split(maxsplit=len(properties) - 1)
    if len(words) < len(properties):
        raise UsageError(f"usage: {_usage(spec)}")
    return {
        name: int(word) if schema.get("type") == "integer" and word.isdecimal() else word
        for (name, schema), word in zip(properties.items(), words, strict=True)
    }


def _usage(spec: ToolSpec) -> str:
    return " ".join((spec.name, *(name.upper() for name in spec.parameters["properties"])))


def print_observation(observation: Observation) -> None:
    """Print messages and tools as a person reads them."""
    for message in observation.messages:
        print(f"--- {message.role}\n{safe_lines(message.content)}")
    print("--- tools")
    for spec in observation.tools:
        print(f"{_usage(spec)}: {safe_text(spec.description)}")


def make_room_env(
    room: str | Room,
    comment: str | None,
    *,
    render_mode: str | None = None,
    rubric: str | None = "single4",
) -> Any:
    """Make the environment of a room that a person named."""
    from livestream_env.env import LiveRoomEnv
    from livestream_env.errors import LivestreamError

    try:
        return LiveRoomEnv(room, comment=comment, render_mode=render_mode, rubric=rubric)
    except LivestreamError:
        raise
    except ValueError as error:
        raise UsageError(str(error)) from error
