"""What a soak plays: rooms that differ in a secret, an agent that writes, and where tools run."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from contextlib import closing
from functools import cache
from hashlib import blake2b
from pathlib import Path
from typing import Any

from livestream_env.drivers import Seed, rollout
from livestream_env.env import LiveRoomEnv
from livestream_env.findings import not_started
from livestream_env.room_files import save_room
from livestream_env.rooms import Room
from livestream_env.sandbox import LocalSandbox, RemoteSandbox, Sandbox
from livestream_env.soak_server import SpawnedServer
from livestream_env.synthetic import make_room
from livestream_env.trajectory_log import json_text
from livestream_env.types import Action, Message, Observation, ToolSpec, Trajectory

WORLDS, COPIES, COMMENTS = 4, 4, 12
CALLS = 8
"""Calls of an episode."""
LIMITS: dict[str, Any] = {
    "timeout_s": 15.0,
    "reset_timeout_s": 20.0,
    "total_timeout_s": 120.0,
    "retries": 12,
}
"""Of the client: patience for a server that a busy machine takes its time to start again."""
_SECRET = re.compile(r"soak-[0-9a-f]{12}")
MakeSandbox = Callable[[Room], Sandbox]


# --- rooms and agent -------------------------------------------------------------------------


@cache
def soak_rooms() -> tuple[Room, ...]:
    """Make the rooms: some worlds, of each several copies that differ in their secret alone."""
    worlds = [
        make_room(i, ("zh", "en")[i % 2], products=12, comments=COMMENTS) for i in range(WORLDS)
    ]
    return tuple(_marked(world, i) for i in range(COPIES) for world in worlds)


def secret_of_room(room: Room) -> str:
    """Return the text that this room alone holds."""
    return f"soak-{blake2b(room.room_id.encode(), digest_size=6).hexdigest()}"


def _marked(room: Room, number: int) -> Room:
    room = room.model_copy(update={"room_id": f"{room.room_id}-{number}"})
    secret = secret_of_room(room)

    def marked(records: Sequence[Any], name: str) -> tuple[Any, ...]:
        return tuple(r.model_copy(update={name: f"{getattr(r, name)} {secret}"}) for r in records)

    update = {
        "title": f"{room.title} {secret}",
        "products": marked(room.products, "name"),
        "faqs": marked(room.faqs, "answer"),
        "reply_rules": marked(room.reply_rules, "rule"),
        "script": marked(room.script, "text"),
    }
    return room.model_copy(update=update)


class _BusyAgent:
    """Looks up, moves and hands off twice, looks up again, replies; the same every time.

    Moves to the first place and notes to colleagues do not commute, so a write that ran twice, or
    late, is to be seen in the state. All turns have two calls, so all are as likely to fail.
    """

    def __init__(self, room: Room) -> None:
        self._room = room

    def start(self, observation: Observation, *, seed: Seed | None) -> _Script:
        comment = observation.comments[0]
        return _Script(self._actions(comment.comment_id, comment.text))

    def act(self, messages: Sequence[Message], tools: Sequence[ToolSpec]) -> Action:
        not_started()

    def _actions(self, comment_id: str, text: str) -> list[Action]:
        links = [p.link_no for p in self._room.products if p.link_no is not None]
        which = self._room.comments.index(self._room.comment(comment_id))
        first, second = links[which % len(links)], links[(which + 5) % len(links)]
        return [
            Action.calls(
                ("search_product_by_keyword", {"keyword": str(first)}),
                ("search_faq", {"query": text[:100]}),
            ),
            Action.calls(
                ("move_product", {"link_no": first, "position": 1}),
                ("hand_off", {"reason": f"{comment_id} 1"}),
            ),
            Action.calls(
                ("move_product", {"link_no": second, "position": 1}),
                ("hand_off", {"reason": f"{comment_id} 2"}),
            ),
            Action.calls(
                ("search_script", {"query": text[:100]}),
                ("get_reply_rule", {"intent": self._room.reply_rules[0].intent}),
            ),
            Action.reply("好的" if self._room.language == "zh" else "Fine."),
        ]


class _Script:
    """The agent of one episode."""

    def __init__(self, actions: Sequence[Action]) -> None:
        self._actions = iter(actions)

    def act(self, messages: Sequence[Message], tools: Sequence[ToolSpec]) -> Action:
        return next(self._actions)


def is_foreign(trajectory: Trajectory, room: Room) -> bool:
    """Tell whether anything of it is another room's."""
    if trajectory.content_hash != room.content_hash:
        return True
    return bool({*_SECRET.findall(json_text(trajectory))} - {secret_of_room(room)})


def task_of(seed: int) -> tuple[Room, str]:
    """Return the room and the comment of a seed."""
    rooms = soak_rooms()
    room = rooms[seed % len(rooms)]
    return room, room.comments[seed // len(rooms) % COMMENTS].comment_id


def play_one(room: Room, comment_id: str, seed: int, make: MakeSandbox) -> Trajectory:
    """Play an episode."""
    with closing(LiveRoomEnv(room, sandbox=make, rubric=None)) as env:
        return rollout(env, _BusyAgent(room), seed=seed, options={"comment": comment_id})


# --- sandboxes -------------------------------------------------------------------------------


def local_sandbox(room: Room) -> Sandbox:
    """Make a sandbox in this process."""
    return LocalSandbox(room, embedder="lexical")


def remote_sandbox(url: str, room: Room, *, token_env: str | None = None) -> Sandbox:
    """Make a sandbox on a server."""
    return RemoteSandbox(url, room, embedder="lexical", token_env=token_env, **LIMITS)


def spawned_server(folder: Path, *, kill_every_s: float | None = None) -> SpawnedServer:
    """Make a server that has every second of the rooms; the others are brought to it."""
    rooms = folder / "rooms"
    rooms.mkdir()
    for room in soak_rooms()[::2]:
        save_room(room, rooms / f"{room.room_id}.json")
    return SpawnedServer(rooms, folder / "server.log", kill_every_s=kill_every_s)
