"""The sandbox over HTTP as JSON: requests, answers, errors, and what `origin` holds.

`POST /sessions/{id}` opens an episode, `POST /sessions/{id}/calls/{n}` runs call n of it,
`DELETE /sessions/{id}` ends it; `PUT /rooms/{hash}` and `GET /rooms` are about rooms. Session ids
are made by the client. `origin` says all that it takes to build a session anew, so that any server
can answer any call.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from typing import Annotated, Any, Literal, NamedTuple

from pydantic import AfterValidator, BaseModel, ConfigDict, Field, TypeAdapter, ValidationError

from livestream_env.errors import (
    ReplayMismatch,
    RoomMismatch,
    SandboxError,
    SandboxTimeout,
    SandboxUnavailable,
    SessionLost,
)
from livestream_env.rooms import KEY_FIELDS, Room
from livestream_env.types import EMPTY, FrozenDict, RoomView, ToolResult, ToolSpec

LONGEST_CALL = 1 << 20
"""Bytes of a request without a room."""
LONGEST_ROOM = 16 << 20
"""Bytes of a room, or of a request that holds one."""
DEEPEST = 64
"""Levels of lists and objects in the arguments of a call."""
MOST_CALLS = 1_000_000
MOST_WRITES = 10_000
SMALL_ORIGIN = 4096
"""Bytes of an `origin` that is sent with every call; a longer one, when the server asks for it."""

REBUILT_HEADER = "x-session-rebuilt"
HEX_ID = re.compile(r"[0-9a-f]{32}")
"""Session ids (128 random bits) and content hashes."""


def _shallow(arguments: FrozenDict) -> FrozenDict:
    if is_deeper(arguments, DEEPEST):
        raise ValueError(f"lies more than {DEEPEST} levels deep")
    return arguments


def is_deeper(value: Any, levels: int) -> bool:
    """Return whether lists and objects are nested deeper than `levels`."""
    if not isinstance(value, (dict, list)):
        return False
    inner = value.values() if isinstance(value, dict) else value
    return levels == 0 or any(is_deeper(item, levels - 1) for item in inner)


HexId = Annotated[str, Field(pattern=r"^[0-9a-f]{32}$")]
Number = Annotated[int, Field(ge=0, lt=MOST_CALLS)]
Name = Annotated[str, Field(max_length=256)]
Arguments = Annotated[FrozenDict, AfterValidator(_shallow)]


class _Model(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True, strict=True)


class Options(_Model):
    """What the client wants of the sandbox."""

    language: Literal["zh", "en"] | None = None
    """Of field names and messages; by default the room's."""
    tools: Annotated[tuple[Name, ...], Field(max_length=256)] | None = None
    """Names of the tools to offer; by default the bundled ones."""
    embedder: Annotated[str, Field(max_length=512)] = "use-multilingual"


class Write(_Model):
    """A call that changed the state, or may have."""

    n: Number
    name: Name
    arguments: Arguments = EMPTY


class Origin(_Model):
    """All that it takes to build a session anew."""

    session: HexId
    """The session that it began as: forks keep it, for idempotency keys."""
    room_id: Annotated[str, Field(min_length=1, max_length=1024)]
    content_hash: HexId
    seed: Annotated[int, Field(ge=-(2**63), lt=2**64)]
    comments: Annotated[tuple[Name, ...], Field(min_length=1, max_length=10_000)]
    options: Options = Options()
    writes: Annotated[tuple[Write, ...], Field(max_length=MOST_WRITES)] = ()
    """The calls that changed the state so far, in their order."""
    room: dict[str, Any] | None = None
    """The room without its key, where the server said `room_unknown`."""


class OpenRequest(_Model):
    """Body of `POST /sessions/{id}`."""

    origin: Origin


class CallRequest(_Model):
    """Body of `POST /sessions/{id}/calls/{n}`."""

    name: Name
    arguments: Arguments = EMPTY
    after: Annotated[int, Field(ge=0, le=MOST_WRITES)] = 0
    """How many calls changed the state before this one: tells a copy that has missed some."""
    origin: Origin | None = None


class Opened(_Model):
    """Answer of `POST /sessions/{id}`."""

    session: HexId
    """That of the origin: tells the answer from those of other sessions."""
    view: RoomView
    specs: tuple[ToolSpec, ...]
    rebuilds: tuple[str, ...]
    """The writing tools whose effects live in the session alone, so that they may run again."""


class Failure(_Model):
    """What an error answer tells, under the key `error`."""

    code: str
    message: str
    option: str | None = None
    """The option that cannot be honoured."""
    request_id: str | None = None


class ErrorAnswer(_Model):
    """Body of every answer but those of success."""

    error: Failure


Result = TypeAdapter(ToolResult)
"""Answer of a call: the result; its `call_id` is that of the wire, `{session}/{n}`."""
ErrorAnswers: TypeAdapter[ErrorAnswer] = TypeAdapter(ErrorAnswer)

FAILURES: dict[str, type[SandboxError]] = {
    "sandbox_failed": SandboxError,
    "sandbox_timeout": SandboxTimeout,
    "sandbox_unavailable": SandboxUnavailable,
    "session_lost": SessionLost,
    "room_mismatch": RoomMismatch,
    "replay_mismatch": ReplayMismatch,
}
"""Error code of the wire -> what the client raises."""
_CODES = {kind: code for code, kind in FAILURES.items()}


def code_of(error: SandboxError) -> str:
    """Return the code under which a failure crosses the wire."""
    known = (_CODES.get(kind) for kind in type(error).__mro__)
    return next((code for code in known if code is not None), "sandbox_failed")


def wire_id(session: str, n: int) -> str:
    """Return the id of a call on the wire, which no other call has."""
    return f"{session}/{n}"


class Problem(NamedTuple):
    """The first fault of a body."""

    is_json: bool
    text: str
    """Where it lies and what is wrong, without what was given."""


def problem_of(error: ValidationError) -> Problem:
    """Say what is wrong with a body, without repeating it."""
    first = error.errors(include_url=False, include_context=False, include_input=False)[0]
    where = ".".join(str(part)[:64] for part in first["loc"][:8])
    message = first["msg"].removeprefix("Value error, ")
    text = f"`{where}`: {message}" if where else message
    return Problem(first["type"] != "json_invalid", text)


def room_json(room: Room) -> bytes:
    """Write the world half of a room, values at their default left out."""
    key: Any = {"comments": {"__all__": set(KEY_FIELDS)}, "split": True}
    raw = room.model_dump(mode="json", exclude_defaults=True, exclude=key)
    return compact(raw)


def compact(value: Mapping[str, Any]) -> bytes:
    """Write JSON in as few bytes as it takes."""
    text = json.dumps(value, ensure_ascii=False, allow_nan=False, separators=(",", ":"))
    return text.encode("utf-8")
