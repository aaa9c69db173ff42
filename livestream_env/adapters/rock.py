"""ROCK: GEM environments over HTTP, beside the sandboxes of `livestream-env serve`.

ROCK's client posts JSON to `{ROCK_BASE_URL}/apis/v1/envs/gem/{make,reset,step,close,list}` and
reads any error from the body. Options ride in the environment's id:
`LiveRoom-v0?room=snacks&rubric=single4`. Rewards are made here, so the rooms hold their key, and
none of it is in an answer. Nothing of a request names a file: rooms are bundled ones and those of
the served folder, by id; rubrics, tools and embedders are known names.
"""

from __future__ import annotations

import asyncio
import logging
import math
import secrets
import time
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import TYPE_CHECKING, Annotated, Any
from urllib.parse import parse_qsl

from pydantic import BaseModel, Field

from livestream_env.adapters.gem import ENV_ID
from livestream_env.adapters.text_room import TextRoom
from livestream_env.errors import (
    LivestreamError,
    ResetNeeded,
    RoomError,
    RoomNotFound,
    SandboxError,
    did_you_mean,
)
from livestream_env.rewards import PRESETS
from livestream_env.room_files import list_rooms
from livestream_env.sandbox.room_store import RoomStore
from livestream_env.sandbox.server import EMBEDDERS, validated
from livestream_env.sandbox.sessions import Refused, Sessions
from livestream_env.sandbox.wire import LONGEST_CALL, compact
from livestream_env.tools import BUILDING, TOOLS

if TYPE_CHECKING:
    from fastapi import FastAPI, Request, Response

PREFIX = "/apis/v1/envs/gem"
LONGEST_ID = 2048
LONGEST_LIGHT = 500
LARGEST_LIGHT = 300
"""Characters of a message, and records of its room, up to which a step is taken without a thread:
the worst takes about 20 ms."""
LOG = logging.getLogger("livestream_env.server")


class MakeRequest(BaseModel):
    """Body of `make`."""

    env_id: Annotated[str, Field(max_length=LONGEST_ID)]


class OneEnv(BaseModel):
    """Body of `close` and `list`, and what those of `reset` and `step` have in common."""

    sandbox_id: Annotated[str, Field(max_length=64)]


class ResetRequest(OneEnv):
    """Body of `reset`."""

    seed: Annotated[int, Field(ge=0, lt=2**63)] | None = None


class StepRequest(OneEnv):
    """Body of `step`."""

    action: str


class RockRoom(TextRoom):
    """A room as ROLL's loops take it, which know `terminated` alone."""

    ends_both = True

    def content_hash(self) -> str:
        """Return the hash of the room being played.

        Raises:
            ResetNeeded: there is no episode.
        """
        return self.episode().view.content_hash

    def is_small(self) -> bool:
        """Return whether searches in the room being played are short."""
        room = None if self._env is None else self._env.room
        assert room is not None
        parts = (room.products, room.faqs, room.script, room.comments, room.reply_rules)
        return sum(map(len, parts)) <= LARGEST_LIGHT


@dataclass(eq=False)
class _Env:
    env_id: str
    room: RockRoom
    expires_s: float
    is_light: bool
    """Whether none of its calls waits or asks a model: bundled tools, search without a model."""
    lock: asyncio.Lock = field(default_factory=asyncio.Lock)


def mount_gem(
    app: FastAPI,
    *,
    max_envs: int = 4096,
    lease_s: float = 300.0,
    tools: Sequence[str] = (),
    embedders: Sequence[str] = EMBEDDERS,
    tool_timeout_s: float = 60.0,
    refusal: str | None = None,
) -> None:
    """Let a server of `create_app` answer ROCK's client too.

    Args:
        app: the server; its token and limits hold here too, its folder has the rooms.
        max_envs: environments at a time; more are answered 503.
        lease_s: seconds without a call after which an environment is let go.
        tools: tools beyond the bundled ones that clients may choose, by import string.
        embedders: embedders that clients may choose.
        tool_timeout_s: seconds that a call of one of `tools` may take.
        refusal: why this server has no such environments: every request is answered so.
    """
    envs = RockEnvs(
        app.state.rooms,
        app.state.sessions,
        max_envs,
        lease_s,
        (*TOOLS, *tools),
        tuple(embedders),
        tool_timeout_s,
    )
    for name in ("make", "reset", "step", "close", "list"):
        endpoint = partial(_answer, getattr(envs, name), refusal)
        endpoint.__name__ = f"gem_{name}"  # type: ignore[attr-defined]
        app.add_route(f"{PREFIX}/{name}", endpoint, methods=["POST"], include_in_schema=False)
    app.state.gem_envs = envs


async def _answer(
    endpoint: Callable[[bytes], Awaitable[dict[str, Any]]], refusal: str | None, request: Request
) -> Response:
    from starlette.responses import Response

    body = await request.body()
    if refusal is not None:
        raise Refused(409, "no_environments", refusal)
    if len(body) > LONGEST_CALL:
        raise Refused(413, "too_large", f"the body is longer than {LONGEST_CALL} bytes")
    return Response(compact(_plain(await endpoint(body))), media_type="application/json")


class RockEnvs:
    """The environments of a server, each with a lease."""

    def __init__(
        self,
        store: RoomStore,
        sessions: Sessions,
        max_envs: int,
        lease_s: float,
        tools: Sequence[str],
        embedders: Sequence[str],
        tool_timeout_s: float,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._store, self._sessions = store, sessions
        self._max_envs, self._lease_s, self._clock = max_envs, lease_s, clock
        self._tools, self._embedders, self._tool_timeout_s = tools, embedders, tool_timeout_s
        self._envs: dict[str, _Env] = {}
        self._light: set[str] = set()
        """Content hashes of small rooms whose first score, which indexes their names, was made."""
        self._making = 0
        self._timer: asyncio.TimerHandle | None = None

    def __len__(self) -> int:
        return len(self._envs)

    async def make(self, body: bytes) -> dict[str, Any]:
        """Make an environment of the options in its id."""
        env_id = validated(MakeRequest, body).env_id
        options = self._options(env_id)
        self.reap()
        if len(self._envs) + self._making >= self._max_envs:
            message = f"all {self._max_envs} environments are in use"
            raise Refused(503, "at_capacity", message, retry_after_s=5)
        self._making += 1
        try:
            room = await self._sessions.in_builder(partial(self._made, options))
        finally:
            self._making -= 1
        sandbox_id = secrets.token_hex(16)
        is_light = options.get("embedder") == "lexical" and {*options.get("tools", ())} <= {*TOOLS}
        self._envs[sandbox_id] = _Env(env_id, room, self._clock() + self._lease_s, is_light)
        self._reap_later()
        return {"sandbox_id": sandbox_id}

    async def reset(self, body: bytes) -> dict[str, Any]:
        """Open an episode."""
        asked = validated(ResetRequest, body)
        observation, info = await self._run(asked, lambda room: room.reset(asked.seed))
        return {"observation": observation, "info": info}

    async def step(self, body: bytes) -> dict[str, Any]:
        """Take one assistant message."""
        asked = validated(StepRequest, body)
        is_short = len(asked.action) <= LONGEST_LIGHT
        made = await self._run(asked, lambda room: room.step(asked.action), is_light=is_short)
        if "env_error" in made[4]:
            raise _failed(made[4]["env_error"])
        names = ("observation", "reward", "terminated", "truncated", "info")
        return dict(zip(names, made, strict=True))

    async def close(self, body: bytes) -> dict[str, Any]:
        """Release an environment; one that is gone is released."""
        name = validated(OneEnv, body).sandbox_id
        env = self._envs.pop(name, None)
        if env is not None:
            async with env.lock:
                env.room.close()
        return {"sandbox_id": name}

    async def list(self, body: bytes) -> dict[str, Any]:
        """Say what an environment was made of."""
        return {"env_id": [self._known(validated(OneEnv, body)).env_id]}

    async def _run(
        self, asked: OneEnv, work: Callable[[RockRoom], Any], *, is_light: bool = False
    ) -> Any:
        """Run one call of an environment, after those before it.

        A light one is run here: a thread would cost as much again. It must not wait for an index,
        which takes seconds to build and stops all others.
        """
        env = self._known(asked)
        async with env.lock:
            self._known(asked)
            try:
                stays = is_light and env.is_light and env.room.content_hash() in self._light
                if stays and BUILDING.acquire(blocking=False):
                    try:
                        return work(env.room)
                    finally:
                        BUILDING.release()
                made = await self._sessions.in_thread(lambda: work(env.room))
                if env.room.played().rewards is not None and env.room.is_small():
                    self._light.add(env.room.content_hash())
                return made
            except ResetNeeded as error:
                raise Refused(409, "reset_needed", str(error)) from error
            except SandboxError as error:
                raise _failed(str(error)) from error
            finally:
                env.expires_s = self._clock() + self._lease_s

    def _known(self, asked: OneEnv) -> _Env:
        self.reap()
        env = self._envs.get(asked.sandbox_id)
        if env is None:
            message = "there is no such environment: it was closed, or not used for too long"
            raise Refused(404, "env_unknown", message)
        return env

    # --- leases ---

    def reap(self) -> None:
        """Let go of the environments whose leases are over."""
        now = self._clock()
        over = [name for name, env in self._envs.items() if env.expires_s <= now]
        for name in over:
            if not self._envs[name].lock.locked():
                self._envs.pop(name).room.close()

    def _reap_later(self) -> None:
        """Let go of them also while nobody calls."""
        if self._timer is None:
            loop = asyncio.get_running_loop()
            self._timer = loop.call_later(self._lease_s, self._reap_and_go_on)

    def _reap_and_go_on(self) -> None:
        self._timer = None
        self.reap()
        if self._envs:
            self._reap_later()

    # --- options ---

    def _options(self, env_id: str) -> dict[str, Any]:
        """Read the options of an environment's id.

        Raises:
            Refused: an option is unknown, given twice, or of another kind.
        """
        name, _, query = env_id.partition("?")
        if name != ENV_ID:
            raise Refused(404, "env_unknown", f"there is no environment `{name[:100]}`; {_FORM}")
        try:
            pairs = parse_qsl(query, keep_blank_values=True, max_num_fields=16)
        except ValueError:
            raise _refused("env_id", f"its options cannot be read; {_FORM}") from None
        given = dict(pairs)
        if len(given) < len(pairs):
            raise _refused("env_id", f"an option is given twice; {_FORM}")
        for key in given:
            if key not in _KINDS:
                hint = did_you_mean(key, _KINDS)
                raise _refused(key[:100], f"it is none of {', '.join(_KINDS)}.{hint}")
        if "room" not in given:
            raise _refused("room", f"it is needed; {_FORM}")
        made = {key: _KINDS[key](key, text) for key, text in given.items()}
        self._check_names("rubric", [made.get("rubric", "single4")], PRESETS)
        self._check_names("tools", made.get("tools", ()), self._tools)
        self._check_names("embedder", [made.get("embedder", EMBEDDERS[0])], self._embedders)
        return made

    def _check_names(self, option: str, given: Iterable[str], known: Iterable[str]) -> None:
        names = list(known)
        for name in given:
            if name not in names:
                hint = did_you_mean(name, names)
                raise _refused(option, f"`{name[:100]}` is none of {', '.join(names)}.{hint}")

    def _made(self, options: Mapping[str, Any]) -> RockRoom:
        others = {key: value for key, value in options.items() if key != "room"}
        room = self._room(options["room"])
        limits = {"tool_timeout_s": self._tool_timeout_s}
        try:
            return RockRoom(room, sandbox_options=limits, **others)
        except (RoomError, RoomNotFound) as error:  # its text has the path
            LOG.error("a room cannot be read", exc_info=error)
            message = "the room's file cannot be read, or has no comment to play"
            raise Refused(424, "room_invalid", message) from error
        except (LivestreamError, ValueError, TypeError) as error:
            raise Refused(422, "option_refused", str(error)[:4000]) from error

    def _room(self, name: str) -> str:
        """Return what `gym.make` knows a room by: a served file before a bundled name."""
        if self._store.is_stale():
            self._store.rescan()
        file = self._store.file_of(name)
        if file is not None:
            return str(file.absolute())
        bundled = (*_SPLITS, *list_rooms())
        if name not in bundled:
            served = [room.room_id for room in self._store.served()]
            hint = did_you_mean(name, [*served, *bundled])
            raise _refused("room", f"`{name[:100]}` is neither served nor bundled here.{hint}")
        return name


_FORM = "the form is `LiveRoom-v0?room=snacks&rubric=single4`"
_SPLITS = ("bundled:train", "bundled:test")


def _text(_: str, given: str) -> str:
    return given


def _names(_: str, given: str) -> list[str]:
    return given.split(",")


def _one_or_more(_: str, given: str) -> str | list[str]:
    return given.split(",") if "," in given else given


def _count(option: str, given: str) -> int:
    if not (given.isascii() and given.isdigit() and len(given) <= 3):
        raise _refused(option, "it is a whole number below 1000")
    return int(given)


_KINDS: Mapping[str, Callable[[str, str], Any]] = {
    "room": _text,
    "comment": _one_or_more,
    "rubric": _text,
    "language": _text,
    "tools": _names,
    "max_turns": _count,
    "max_same_tool": _count,
    "on_missing_rule": _text,
    "embedder": _text,
}
"""The options, and how their text is read."""


def _refused(option: str, why: str) -> Refused:
    return Refused(422, "option_refused", f"option `{option}`: {why}", option=option)


def _failed(cause: str) -> Refused:
    """Return the answer to a call whose environment failed; what is not ours to show is logged."""
    LOG.error("an environment failed: %s", cause)
    message = "the environment failed: the episode has no reward; reset it to go on"
    return Refused(424, "sandbox_failed", message)


def _plain(value: Any) -> Any:
    """Return an answer as JSON holds it: no NaN, and no reasons of scores, which may tell a key."""
    if isinstance(value, dict):
        return {key: _plain(item) for key, item in value.items() if key != "reason"}
    if isinstance(value, (list, tuple)):
        return [_plain(item) for item in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value
