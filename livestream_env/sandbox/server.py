"""The server: sandboxes over HTTP, as a FastAPI application (extra `server`)."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Sequence
from functools import cache, partial
from typing import Any, TypeVar

from pydantic import BaseModel, ValidationError
from pydantic.json_schema import models_json_schema

from livestream_env.custom_tools import ENTRY_POINTS as TOOL_POINTS
from livestream_env.custom_tools import CustomTool, ToolSource
from livestream_env.errors import RoomError, missing_dependency
from livestream_env.retrieval import Embedder, make_embedder
from livestream_env.rooms import Room
from livestream_env.sandbox import LocalSandbox, Sandbox
from livestream_env.sandbox.gate import REQUEST_ID, Gate, Traffic
from livestream_env.sandbox.room_store import RoomsFull, RoomStore, WrongHash, with_id
from livestream_env.sandbox.sessions import Answer, Refused, Sessions, error_answer
from livestream_env.sandbox.wire import (
    HEX_ID,
    LONGEST_CALL,
    LONGEST_ROOM,
    MOST_CALLS,
    REBUILT_HEADER,
    CallRequest,
    ErrorAnswer,
    Opened,
    OpenRequest,
    Origin,
    compact,
    problem_of,
)
from livestream_env.tools import TOOLS, shared_index
from livestream_env.version import VERSION

try:
    from fastapi import FastAPI, Request, Response
    from starlette.exceptions import HTTPException
except ImportError as error:
    raise missing_dependency("fastapi", extra="server") from error

Factory = Callable[[Room | None, Origin], Sandbox | Awaitable[Sandbox]]
M = TypeVar("M", bound=BaseModel)
EMBEDDERS = ("use-multilingual", "lexical")
_LARGE = 1 << 16
"""Bodies of more bytes are read in a thread, so that others need not wait."""


def create_app(
    rooms: str | os.PathLike[str] | Iterable[Room] | None = None,
    *,
    factory: Factory | None = None,
    token: str | None = None,
    tools: Sequence[ToolSource] = (),
    embedders: Sequence[str] = EMBEDDERS,
    max_sessions: int = 4096,
    lease_s: float = 300.0,
    uploads: bool = True,
    max_rooms: int = 1024,
    max_bytes: int = 1 << 30,
    body_timeout_s: float = 30.0,
    threads: int = 32,
    tool_timeout_s: float = 60.0,
) -> FastAPI:
    """Make the application; it may be mounted in another.

    Args:
        rooms: a folder, whose room files are read again when they change, or rooms.
        factory: makes the sandbox of a session from its room and origin; the room is `None` only
            where neither server nor client has it to give. By default tools run here, on the room.
        token: what clients must show as `Authorization: Bearer ...`; without it, clients of other
            hosts are refused.
        tools: tools beyond the bundled ones that clients may choose by name.
        embedders: embedders that clients may choose.
        max_sessions: open sessions at a time; more are answered 503.
        lease_s: seconds without a call after which a session is let go.
        uploads: whether clients may bring rooms of their own.
        max_rooms: uploaded rooms, of together at most `max_bytes`; one that is not used for
            `lease_s` makes place for another.
        body_timeout_s: seconds that a body may take to arrive.
        threads: calls that run at a time.
        tool_timeout_s: seconds that a call of one of `tools` may take.

    Raises:
        FileNotFoundError: there is no such folder.
        ValueError: the token is empty, or a limit is not above 0.
    """
    limits = {"max_sessions": max_sessions, "lease_s": lease_s, "threads": threads}
    for name, value in {**limits, "tool_timeout_s": tool_timeout_s}.items():
        if not value > 0:
            raise ValueError(f"`{name}` is {value}; it is a number above 0")
    if token is not None and not (token.isascii() and token.isprintable() and token.strip()):
        raise ValueError("`token` is empty or holds what no header can")
    store = RoomStore(
        rooms, uploads=uploads, max_rooms=max_rooms, max_bytes=max_bytes, keep_s=lease_s
    )
    maker = _Maker(store, factory, _named(tools), tuple(embedders), tool_timeout_s)
    sessions = Sessions(maker.make, max_sessions=max_sessions, lease_s=lease_s, threads=threads)
    maker.in_thread, maker.in_builder = sessions.in_thread, sessions.in_builder
    traffic = Traffic()
    app = FastAPI(
        title="livestream_env sandbox",
        version=VERSION,
        description="Rooms, sessions and tool calls of `livestream_env`.",
        lifespan=partial(_lifespan, sessions, min(5.0, lease_s)),
    )
    app.add_middleware(
        Gate,
        token=token,
        longest_body=LONGEST_ROOM if uploads else LONGEST_CALL,
        body_timeout_s=body_timeout_s,
        traffic=traffic,
    )
    app.add_exception_handler(HTTPException, _not_found)
    _Routes(store, sessions, traffic).add_to(app)
    app.state.sessions = sessions
    app.state.rooms = store
    return app


@contextlib.asynccontextmanager
async def _lifespan(sessions: Sessions, every_s: float, _: FastAPI) -> AsyncIterator[None]:
    """Let go of expired sessions also while nobody calls, and of all at the end."""

    async def reap() -> None:
        while True:
            await asyncio.sleep(every_s)
            sessions.reap()

    reaper = asyncio.create_task(reap())
    try:
        yield
    finally:
        reaper.cancel()
        await sessions.close_all()


# --- making sandboxes ------------------------------------------------------------------------


def _named(tools: Sequence[ToolSource]) -> dict[str, ToolSource]:
    return {tool.name if isinstance(tool, CustomTool) else tool: tool for tool in tools}


class _Maker:
    """Makes the sandbox of an origin."""

    in_thread: Callable[[Callable[[], Any]], Awaitable[Any]]
    in_builder: Callable[[Callable[[], Any]], Awaitable[Any]]

    def __init__(
        self,
        store: RoomStore,
        factory: Factory | None,
        tools: dict[str, ToolSource],
        embedders: tuple[str, ...],
        tool_timeout_s: float,
    ) -> None:
        self._store, self._factory, self._tool_timeout_s = store, factory, tool_timeout_s
        self._tools, self._embedders = tools, embedders

    async def make(self, origin: Origin) -> Sandbox:
        """Make a sandbox, on the room that the origin names.

        Raises:
            Refused: the room is not here; an option cannot be honoured.
        """
        if self._factory is None:
            tools = self._checked_options(origin)
        room = await self._room(origin)
        if self._factory is not None:
            factory = self._factory
            made: Sandbox = await self.in_thread(lambda: factory(room, origin))
            return made
        assert room is not None
        known: Room = room
        timeout_s = self._tool_timeout_s
        return await self.in_builder(lambda: _local(known, origin, tools, timeout_s))  # type: ignore[no-any-return]

    async def _room(self, origin: Origin) -> Room | None:
        store, wanted = self._store, origin.content_hash
        found = store.find(wanted)
        if found is None and store.is_stale():
            await self.in_thread(store.rescan)
            found = store.find(wanted)
        if found is None and origin.room is not None and store.uploads:
            raw = origin.room
            await self.in_thread(lambda: _uploaded(store, wanted, raw, _size(raw)))
            found = store.find(wanted)
        if found is None and (store.uploads or self._factory is None):
            raise _unknown_room(store, origin)
        return found

    def _checked_options(self, origin: Origin) -> list[ToolSource] | None:
        wanted = origin.options
        if wanted.embedder not in self._embedders:
            known = ", ".join(f"`{one}`" for one in self._embedders)
            message = f"`embedder` is `{wanted.embedder}`; this server has {known}"
            raise Refused(422, "option_refused", message, option="embedder")
        if wanted.tools is None:
            return None
        offered = {**dict.fromkeys(TOOLS), **dict.fromkeys(_installed_tools()), **self._tools}
        unknown = [name for name in wanted.tools if name not in offered]
        if unknown:
            message = f"`tools` names `{unknown[0]}`; this server has {', '.join(offered)}"
            raise Refused(422, "option_refused", message, option="tools")
        return [offered[name] or name for name in wanted.tools]


@cache
def _installed_tools() -> tuple[str, ...]:
    from importlib.metadata import entry_points

    return tuple(point.name for point in entry_points(group=TOOL_POINTS))


def _local(
    room: Room, origin: Origin, tools: list[ToolSource] | None, timeout_s: float
) -> LocalSandbox:
    wanted = origin.options
    embedder = make_embedder(wanted.embedder)
    made = LocalSandbox(
        room,
        language=wanted.language,
        embedder=embedder,
        tools=tools,
        session=origin.session,
        tool_timeout_s=timeout_s,
    )
    _build_indexes(room, embedder)
    return made


def _build_indexes(room: Room, embedder: Embedder) -> None:
    """Build what searches need, so that no call has to wait for it."""
    index = shared_index(room, embedder)
    _ = index.faqs, index.script, index.comments, index.intents


def _size(raw: dict[str, Any]) -> int:
    try:
        return len(compact(raw))
    except ValueError as error:
        raise Refused(422, "room_invalid", f"the room is no JSON: {error}") from None


def _uploaded(store: RoomStore, content_hash: str, raw: dict[str, Any], size: int) -> str:
    try:
        return store.add(content_hash, raw, size)
    except RoomError as error:
        raise Refused(422, "room_invalid", str(error)[:4000]) from error
    except WrongHash as error:
        raise Refused(422, "hash_mismatch", str(error)) from error
    except RoomsFull as error:
        raise Refused(507, "rooms_full", str(error), retry_after_s=5) from error


def _unknown_room(store: RoomStore, origin: Origin) -> Refused:
    own = with_id(store.served(), origin.room_id)
    if store.uploads:
        return Refused(409, "room_unknown", "the room is not here; send it inside `origin`")
    if own is not None:
        return Refused(
            409,
            "room_mismatch",
            f"the server holds room `{own.room_id}` ({own.content_hash}), the client"
            f" `{origin.room_id}` ({origin.content_hash}); give both the same file",
        )
    served = ", ".join(f"`{room.room_id}`" for room in store.served()[:50])
    return Refused(
        409,
        "room_mismatch",
        f"the server takes no rooms from clients and has no `{origin.room_id[:100]}`"
        f" ({origin.content_hash}); it serves {served or 'none'}",
    )


# --- routes ----------------------------------------------------------------------------------


class _Routes:
    """The endpoints."""

    def __init__(self, store: RoomStore, sessions: Sessions, traffic: Traffic) -> None:
        self._store, self._sessions, self._traffic = store, sessions, traffic

    def add_to(self, app: FastAPI) -> None:
        """Register all endpoints and describe them."""
        session, number = _path("session", "A session id: 32 hex digits."), _NUMBER
        add = partial(_add_route, app)
        add("POST", "/sessions/{session}", self.open_session, (session,), OpenRequest, Opened)
        add("POST", "/sessions/{session}/calls/{n}", self.run_call, (session, number), CallRequest)
        add("DELETE", "/sessions/{session}", self.close_session, (session,))
        add("PUT", "/rooms/{hash}", self.put_room, (_path("hash", "The room's content hash."),))
        add("GET", "/rooms", self.list_rooms)
        add("GET", "/health", self.health)
        add("GET", "/metrics", self.metrics)
        app.openapi = partial(_described, app, app.openapi)  # type: ignore[method-assign]

    async def open_session(self, request: Request) -> Response:
        """Open an episode, or get the same answer again."""
        name = _hex_id(request, "session")
        asked = await self._body(request, OpenRequest)
        return _response(await self._sessions.start(name, asked.origin))

    async def run_call(self, request: Request) -> Response:
        """Run call `n` of an episode, once; a repeat gets the same bytes."""
        name, n = _hex_id(request, "session"), _number(request)
        asked = await self._body(request, CallRequest)
        return _response(await self._sessions.call(name, n, asked))

    async def close_session(self, request: Request) -> Response:
        """End an episode; ending it again is fine."""
        await self._sessions.close(_hex_id(request, "session"))
        return Response(status_code=204)

    async def put_room(self, request: Request) -> Response:
        """Bring a room without its key; bringing it again is fine."""
        content_hash = _hex_id(request, "hash")
        if not self._store.uploads:
            raise Refused(403, "uploads_off", "this server takes no rooms from clients")
        body = await request.body()
        done = await self._sessions.in_builder(partial(self._put, content_hash, body))
        return Response(status_code=201 if done == "created" else 204)

    def _put(self, content_hash: str, body: bytes) -> str:
        try:
            raw = json.loads(body)
        except (ValueError, RecursionError):
            raise Refused(400, "bad_json", "the body is no JSON") from None
        if not isinstance(raw, dict):
            raise Refused(422, "room_invalid", "a room is one JSON object")
        done = _uploaded(self._store, content_hash, raw, len(body))
        room = self._store.find(content_hash)
        if room is not None and done == "created":
            _build_indexes(room, make_embedder())
        return done

    async def list_rooms(self, _: Request) -> Response:
        """List the rooms that are here."""
        if self._store.is_stale():
            await self._sessions.in_thread(self._store.rescan)
        kinds = (("served", self._store.served()), ("uploaded", self._store.uploaded()))
        listed = [
            {"room_id": r.room_id, "content_hash": r.content_hash, "language": r.language}
            | {"title": r.title, "comments": len(r.comments), "source": source}
            for source, rooms in kinds
            for r in rooms
        ]
        return _json(compact({"rooms": listed, "uploads": self._store.uploads}))

    async def health(self, _: Request) -> Response:
        """Say that the server is up."""
        return _json(compact({"status": "ok", "version": VERSION}))

    async def metrics(self, _: Request) -> Response:
        """Return counts of this process in Prometheus' text form."""
        sessions = self._sessions
        now = {
            "sessions_open": len(sessions),
            "sessions_copies": sessions.copies,
            "rooms_served": len(self._store.served()),
            "rooms_uploaded": len(self._store.uploaded()),
        }
        lines: list[str] = []
        for name, value in now.items():
            lines += [f"# TYPE livestream_env_{name} gauge", f"livestream_env_{name} {value}"]
        for name in _COUNTED:
            full = f"livestream_env_{name}_total"
            lines += [f"# TYPE {full} counter", f"{full} {sessions.counts[name.split('_')[1]]}"]
        text = "\n".join([*lines, *self._traffic.lines(), ""])
        return Response(text, media_type="text/plain; version=0.0.4")

    async def _body(self, request: Request, model: type[M]) -> M:
        body = await request.body()
        if len(body) > _LARGE:
            return await self._sessions.in_thread(lambda: validated(model, body))
        return validated(model, body)


_COUNTED = (
    *("sessions_opened", "sessions_rebuilt", "sessions_closed", "sessions_expired"),
    *("sessions_refused", "calls_executed", "calls_repeated"),
)


def validated(model: type[M], body: bytes) -> M:
    """Read a request's body.

    Raises:
        Refused: it is no JSON, or breaks the schema.
    """
    try:
        return model.model_validate_json(body)
    except ValidationError as error:
        problem = problem_of(error)
        if problem.is_json:
            raise Refused(422, "invalid_request", problem.text) from None
        raise Refused(400, "bad_json", "the body is no JSON") from None


def _hex_id(request: Request, name: str) -> str:
    given = str(request.path_params[name])
    if HEX_ID.fullmatch(given) is None:
        raise Refused(422, "invalid_request", f"`{name}` is 32 hex digits, in small letters")
    return given


def _number(request: Request) -> int:
    given = str(request.path_params["n"])
    if not (given.isascii() and given.isdigit() and len(given) <= 9 and int(given) < MOST_CALLS):
        raise Refused(422, "invalid_request", f"`n` is a whole number from 0 to {MOST_CALLS - 1}")
    return int(given)


def _response(answer: Answer) -> Response:
    response = _json(answer.body)
    response.status_code = answer.status
    if answer.is_rebuilt:
        response.headers[REBUILT_HEADER] = "1"
    return response


def _json(body: bytes) -> Response:
    return Response(body, media_type="application/json")


async def _not_found(request: Request, error: Exception) -> Response:
    status = getattr(error, "status_code", 404)
    code = {404: "not_found", 405: "method_not_allowed"}.get(status, "refused")
    refused = Refused(status, code, "there is no such page, or not for this method")
    answer = error_answer(refused, request.scope.get(REQUEST_ID))
    headers = getattr(error, "headers", None)
    return Response(answer.body, status, headers=headers, media_type="application/json")


# --- the OpenAPI document --------------------------------------------------------------------


def _path(name: str, text: str) -> dict[str, Any]:
    schema = {"type": "string", "pattern": "^[0-9a-f]{32}$"}
    return {"name": name, "in": "path", "required": True, "description": text, "schema": schema}


_NUMBER = {
    "name": "n",
    "in": "path",
    "required": True,
    "description": "Number of the call, from 0 after the session was opened.",
    "schema": {"type": "integer", "minimum": 0, "maximum": MOST_CALLS - 1},
}


def _add_route(
    app: FastAPI,
    method: str,
    path: str,
    endpoint: Callable[[Request], Awaitable[Response]],
    parameters: Sequence[dict[str, Any]] = (),
    body: type[BaseModel] | None = None,
    answer: type[BaseModel] | None = None,
) -> None:
    described: dict[str, Any] = {"responses": _responses(method, answer)}
    if parameters:
        described["parameters"] = list(parameters)
    if method in ("POST", "PUT"):
        schema = {"type": "object"} if body is None else _reference(body)
        content = {"application/json": {"schema": schema}}
        described["requestBody"] = {"required": True, "content": content}
    # Starlette's route answers: bodies are read and checked here, and FastAPI's own way of doing so
    # costs a third of a warm call. FastAPI's route is never reached, and describes.
    app.add_route(path, endpoint, methods=[method], include_in_schema=False)
    app.add_api_route(
        path, endpoint, methods=[method], response_class=Response, openapi_extra=described
    )


def _responses(method: str, answer: type[BaseModel] | None) -> dict[str, Any]:
    fine: dict[str, Any] = {"description": "Done."}
    if answer is not None:
        fine["content"] = {"application/json": {"schema": _reference(answer)}}
    failed = {"application/json": {"schema": _reference(ErrorAnswer)}}
    codes = ("200",) if method in ("GET", "POST") else ("201", "204")
    told = {"4XX": "Refused.", "503": "At capacity, or not ready.", "507": "No room for a room."}
    errors = {code: {"description": text, "content": failed} for code, text in told.items()}
    return {**dict.fromkeys(codes, fine), **errors}


def _reference(model: type[BaseModel]) -> dict[str, str]:
    return {"$ref": f"#/components/schemas/{model.__name__}"}


def _described(app: FastAPI, make: Callable[[], dict[str, Any]]) -> dict[str, Any]:
    """Return the OpenAPI document, with the models of bodies and answers."""
    document = make()
    models = [(m, "validation") for m in (OpenRequest, CallRequest, Opened, ErrorAnswer)]
    template = "#/components/schemas/{model}"
    _, schemas = models_json_schema(models, ref_template=template)  # type: ignore[arg-type]
    document.setdefault("components", {}).setdefault("schemas", {}).update(schemas["$defs"])
    for path in document["paths"].values():
        for operation in path.values():
            if "201" in operation["responses"]:
                operation["responses"].pop("200", None)
    return document
