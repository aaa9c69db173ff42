"""Episodes that start after a recorded tool chain: the reply model is trained alone.

The chain is shown as it was recorded, prompt included, and nothing of it is run again. Its turns
are a partner's, so that no training row is made of them.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from hashlib import blake2b
from typing import Any, Literal

from pydantic import TypeAdapter

from livestream_env.env import LiveRoomEnv, Rubric
from livestream_env.episode import RULE_TOOL, TWO_AGENTS, Episode, Seat
from livestream_env.errors import RoomMismatch, RoomNotFound
from livestream_env.room_files import find_rooms
from livestream_env.rooms import Comment, Room
from livestream_env.types import Message, RoomView, ToolResult, Trajectory, Turn

TOOL_CALLER, REPLIER = TWO_AGENTS
_TOLD = TypeAdapter(list[tuple[Message, tuple[Message, ...], tuple[ToolResult, ...]]])


def prefix_env(
    prefixes: Trajectory | Sequence[Trajectory],
    room: str | Room | Sequence[Room] | None = None,
    *,
    rubric: str | Rubric | None = "single4",
    process: bool = False,
    episode_timeout_s: float | None = None,
    render_mode: Literal["ansi", "human"] | None = None,
) -> PrefixEnv:
    """Make an environment whose episodes start after the tool chains of trajectories.

    Seeds 0 to N-1 visit the N chains. A chain is all turns before the first reply; whatever its
    agent was, it is a `tool_caller` that is never trained, and the agent that plays is the
    `replier`. Replies to one chain share their prompt and, in `Trajectory.group`, a hash of it; a
    reply that asks is final.

    Args:
        prefixes: one trajectory or several, each with a successful `get_reply_rule` before the
            first reply.
        room: the rooms that they were played in; by default the bundled ones of their names.

    Raises:
        RoomNotFound: there is no room of that name.
        RoomMismatch: it is not the room that was played.
        TypeError: something given is no trajectory.
        ValueError: a trajectory has no such chain.
    """
    chains = [prefixes] if isinstance(prefixes, Trajectory) else list(prefixes)
    if not chains:
        raise ValueError("`prefixes` is empty; give at least one trajectory")
    for chain in chains:
        if not isinstance(chain, Trajectory):
            raise TypeError(f"`prefixes` holds {chain!r:.80}; give trajectories")
    rooms = [_room_of(chain, room) for chain in chains]
    return PrefixEnv(
        list(map(_chain, chains)),
        rooms,
        rubric=rubric,
        process=process,
        episode_timeout_s=episode_timeout_s,
        render_mode=render_mode,
    )


class PrefixEnv(LiveRoomEnv):
    """A livestream room after the look-ups; made by `prefix_env`."""

    def __init__(self, chains: Sequence[Trajectory], rooms: Sequence[Room], **options: Any) -> None:
        super().__init__(rooms[0], embedder="lexical", **options)
        self.rooms = list(rooms)
        self._chains = chains

    @property
    def tasks(self) -> int:
        """How many seeds visit every chain once."""
        return len(self._chains)

    def fork(self, at_turn: int | None = None) -> LiveRoomEnv:
        """Return an environment that stands after the first `at_turn` turns, the chain's included.

        Raises:
            ValueError: that is before the end of the chain, which was never run here.
        """
        episode = self.episode.fork(at_turn)
        if episode.phase == "tools":
            raise ValueError(f"`at_turn` is {at_turn}, within the chain; fork behind it")
        return self._fork_with(episode, 0)

    def _chosen_comments(
        self, seed: int, options: Mapping[str, Any] | None
    ) -> tuple[Room, Sequence[Comment]]:
        if options:
            given = ", ".join(f"`{name}`" for name in options)
            raise ValueError(f"got {given} in `options`: a chain decides; choose it by the seed")
        chain, room = self._chains[seed % self.tasks], self.rooms[seed % self.tasks]
        comments = [room.comment(comment_id) for comment_id in chain.comment_ids]
        return room, [comment.model_copy(update={"follow_ups": ()}) for comment in comments]

    def _new_episode(
        self,
        seed: int,
        comments: Sequence[Comment],
        view: RoomView,
        options: Mapping[str, Any] | None,
    ) -> Episode:
        chain = self._chains[seed % self.tasks]
        embedder = chain.versions.get("embedder", view.embedder)
        episode = Episode(
            replace(view, data=chain.evidence, embedder=embedder),
            comments=comments,
            seed=seed,
            specs=list({s.name: s for specs in chain.tools.values() for s in specs}.values()),
            agents={agent: _seat(chain, agent) for agent in TWO_AGENTS},
            group=chain.group,
        )
        episode.take_over(chain.turns)
        return episode


def _seat(chain: Trajectory, agent: str) -> Seat:
    """Return a seat with the recorded prompt and tools."""
    tools = [spec.name for spec in chain.tools[agent]]
    return Seat(lambda *_, **__: chain.prompts[agent], tools, is_partner=agent == TOOL_CALLER)


def _chain(trajectory: Trajectory) -> Trajectory:
    """Return the look-ups of a trajectory as a tool caller's, with the hash of them as the group.

    Raises:
        ValueError: no rule was looked up before the first reply.
    """
    turns: list[Turn] = []
    for turn in trajectory.turns:
        if not turn.action.message.tool_calls or not turn.results:
            break
        turns.append(replace(turn, agent=TOOL_CALLER, reward=None))
    agents = list(trajectory.prompts)
    if not any(map(_finds_rule, turns)):
        raise ValueError(
            f"the trajectory in `{trajectory.room_id}` looks no reply rule up before its first"
            " reply: no reply may follow it"
        )
    seats = {TOOL_CALLER: agents[0], REPLIER: agents[-1]}
    chain = trajectory.model_copy(
        update={
            "turns": tuple(turns),
            "prompts": {seat: trajectory.prompts[agent] for seat, agent in seats.items()},
            "tools": {seat: trajectory.tools[agent] for seat, agent in seats.items()},
        }
    )
    return chain.model_copy(update={"group": f"prefix:{_digest(chain)}"})


def _finds_rule(turn: Turn) -> bool:
    pairs = zip(turn.action.message.tool_calls, turn.results, strict=True)
    return any(call.name == RULE_TOOL and result.error is None for call, result in pairs)


def _digest(chain: Trajectory) -> str:
    """Return 16 hex digits of what the replier is shown and what was looked up."""
    shown = chain.model_dump_json(include={"content_hash", "comment_ids", "prompts", "tools"})
    told = [(turn.action.message, turn.messages, turn.results) for turn in chain.turns]
    text = shown.encode() + _TOLD.dump_json(told)
    return blake2b(text, digest_size=8).hexdigest()


def _room_of(trajectory: Trajectory, given: str | Room | Sequence[Room] | None) -> Room:
    """Return the room that a trajectory was played in."""
    if given is None:
        rooms = find_rooms(trajectory.room_id)
    else:
        rooms = find_rooms(given) if isinstance(given, (str, Room)) else list(given)
    named = [room for room in rooms if room.room_id == trajectory.room_id]
    for room in named:
        if room.content_hash == trajectory.content_hash:
            return room
    if named:
        raise RoomMismatch(
            f"the trajectory was played in `{trajectory.room_id}` ({trajectory.content_hash}),"
            f" `room` is another ({named[0].content_hash})"
        )
    known = ", ".join(f"`{room.room_id}`" for room in rooms)
    raise RoomNotFound(f"the trajectory was played in `{trajectory.room_id}`; `room` has {known}")
