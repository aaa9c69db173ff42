"""`livestream-env demo`: a bundled room, the scripted agent beside the workflow baseline."""

from __future__ import annotations

import argparse
import time
from typing import TYPE_CHECKING

from livestream_env.cli_rooms import bundled_file
from livestream_env.cli_tally import Tally
from livestream_env.terminal import (
    cut,
    padded,
    print_table,
    progress,
    safe_text,
    terminal_columns,
    wrapped,
)

if TYPE_CHECKING:
    from livestream_env.drivers import Agent
    from livestream_env.rooms import Comment
    from livestream_env.types import Trajectory

DEMO_ROOM = "snacks"
DEMO_COMMENTS = ("c41", "c10", "c14", "c23", "c49")
TWO_COLUMNS = 100
LEGEND = """\
Each comment is answered twice: by the scripted agent, which knows what a good answer takes and
looks it up, and by the workflow baseline: intent, one search, rule, reply.
  * tool call   = its result, cut   > reply   < the viewer's next words   ! event   [ending]"""


def run_demo(_: argparse.Namespace) -> int:
    """Play the demo and print it."""
    from livestream_env.agents import ScriptedAgent
    from livestream_env.drivers import rollout
    from livestream_env.env import LiveRoomEnv
    from livestream_env.room_files import load_room
    from livestream_env.workflow import WorkflowAgent

    with progress(lambda: "playing the demo"):
        room = load_room(bundled_file(DEMO_ROOM))
        env = LiveRoomEnv(room)
        env.reset(seed=0)
        agents: dict[str, Agent] = {"scripted": ScriptedAgent(room), "workflow": WorkflowAgent()}
        tallies = {name: Tally() for name in agents}
        print(f"{safe_text(room.title)} (`{DEMO_ROOM}`): {len(DEMO_COMMENTS)} comments")
        for line in LEGEND.split("\n"):
            print("\n".join(wrapped(line, terminal_columns(TWO_COLUMNS))))
        for comment in map(room.comment, DEMO_COMMENTS):
            played = {}
            for name, agent in agents.items():
                start = time.monotonic()
                played[name] = rollout(env, agent, seed=0, options={"comment": comment.comment_id})
                tallies[name].add(played[name], time.monotonic() - start, room)
            _print_beside(comment, played)
    header = ("agent", "episodes", "replied", "without rule", "facts stated / asked")
    rows = [tally.row(name) for name, tally in tallies.items()]
    print()
    print_table((*header, "tool calls an episode", "seconds"), rows)
    told = "facts stated / asked: of what the comments ask for, how much the replies say"
    print("\n".join(wrapped(told, terminal_columns(TWO_COLUMNS))))
    print(f"\nanswer one yourself: livestream-env play --room {DEMO_ROOM} --comment c41")
    return 0


def _print_beside(comment: Comment, played: dict[str, Trajectory]) -> None:
    """Print the transcripts in two columns where the terminal is wide enough, else in turn."""
    width = terminal_columns(TWO_COLUMNS)
    said = f"{comment.at_s:.0f}s  {comment.viewer}: {comment.text}"
    print(f"\n{cut(safe_text(f'-- {comment.comment_id}  {said}'), width)}")
    half = (width - 3) // 2 if width >= TWO_COLUMNS else width
    columns = [[name, *_transcript_lines(trajectory, half)] for name, trajectory in played.items()]
    if width < TWO_COLUMNS:
        for line in (line for column in columns for line in column):
            print(line)
        return
    for i in range(max(map(len, columns))):
        left, right = (column[i] if i < len(column) else "" for column in columns)
        print(f"{padded(left, half)} | {right}".rstrip())


def _transcript_lines(trajectory: Trajectory, width: int) -> list[str]:
    """Return the transcript, what was said wrapped and everything else cut to `width` columns."""
    from livestream_env.env import transcript

    lines: list[str] = []
    for line in map(safe_text, transcript(trajectory).rstrip("\n").split("\n")):
        said = line.startswith(("  >", "  <"))
        lines += wrapped(line, width) if said else [cut(line, width)]
    return lines
