"""The lines of a recording: the format, its JSON Schema, and what is left out of it."""

from __future__ import annotations

import json
from collections.abc import Callable
from functools import cache, lru_cache
from hashlib import blake2b
from typing import Annotated, Any, Literal, NamedTuple, TypeVar

from pydantic import BaseModel, ConfigDict, Field, TypeAdapter

from livestream_env.types import (
    Fact,
    FrozenDict,
    RoomView,
    State,
    ToolCall,
    ToolResult,
    ToolSpec,
    TurnEvent,
    freeze,
)
from livestream_env.words import clean_text

Redact = Callable[[str], str]
_CONFIG = ConfigDict(extra="forbid", frozen=True, defer_build=True)


class ResetLine(BaseModel):
    """The start of an episode: what the host saw, and the tools."""

    model_config = _CONFIG

    kind: Literal["reset"]
    format: Literal[1]
    """Version of this format."""
    content_hash: str
    """Of the room's world; of a production log, any text that names its room and version."""
    comments: Annotated[tuple[str, ...], Field(min_length=1)]
    """Ids of the open comments, as they were asked for."""
    view: RoomView
    tools: tuple[ToolSpec, ...]
    time_s: float | None = None
    """Unix time; nothing reads it."""

    @classmethod
    def of(
        cls, view: RoomView, tools: tuple[ToolSpec, ...], *, time_s: float | None = None
    ) -> ResetLine:
        """Make the line of an episode on the view's comments."""
        ids = tuple(comment.comment_id for comment in view.comments)
        made = {"content_hash": view.content_hash, "comments": ids, "view": view, "tools": tools}
        return cls(kind="reset", format=1, **made, time_s=time_s)

    @property
    def place(self) -> Place:
        """Where the episode starts."""
        return Place(self.content_hash, self.comments, self.view.state)


class RecordedResult(BaseModel):
    """A `ToolResult` without the id of its call."""

    model_config = _CONFIG

    content: str
    data: tuple[Fact, ...] = ()
    error: str | None = None
    state: State | None = None
    events: tuple[TurnEvent, ...] = ()

    @classmethod
    def of(cls, result: ToolResult) -> RecordedResult:
        """Take the result out of its call."""
        return cls.model_construct(
            content=result.content,
            data=result.data,
            error=result.error,
            state=result.state,
            events=tuple(TurnEvent(event.kind, event.detail) for event in result.events),
        )

    def result(self, call_id: str, *more: TurnEvent) -> ToolResult:
        """Return it as the result of a call."""
        events = (*self.events, *more)
        return ToolResult(call_id, self.content, self.data, self.error, self.state, events)


class CallLine(BaseModel):
    """One call and its answer."""

    model_config = _CONFIG

    kind: Literal["call"]
    content_hash: str
    comments: Annotated[tuple[str, ...], Field(min_length=1)]
    state: str
    """`state_digest` of the state that the call met."""
    tool: str
    arguments: FrozenDict
    result: RecordedResult
    time_s: float | None = None
    """Unix time; nothing reads it."""

    @classmethod
    def of(
        cls, place: Place, call: ToolCall, result: ToolResult, *, time_s: float | None = None
    ) -> CallLine:
        """Make the line of a call that was made in a place."""
        return cls(
            kind="call",
            content_hash=place.content_hash,
            comments=place.comments,
            state=state_digest(place.state),
            tool=call.name,
            arguments=call.arguments,
            result=RecordedResult.of(result),
            time_s=time_s,
        )

    @property
    def key(self) -> tuple[Any, ...]:
        """What the answer depends on; `Place.key` gives the same."""
        return self.content_hash, self.comments, self.state, self.tool, self.arguments.canonical


Line = ResetLine | CallLine
L = TypeVar("L", ResetLine, CallLine)


class Place(NamedTuple):
    """Where an episode stands: what an answer depends on beside the call."""

    content_hash: str
    comments: tuple[str, ...]
    state: State

    def key(self, call: ToolCall) -> tuple[Any, ...]:
        """Return the key of a call made here."""
        digest = state_digest(self.state)
        return self.content_hash, self.comments, digest, call.name, call.arguments.canonical

    def after(self, state: State | None) -> Place:
        """Return where a call leads whose result has that state."""
        return self if state is None else self._replace(state=state)


@lru_cache(maxsize=4096)
def state_digest(state: State) -> str:
    """Return 16 hex digits that equal states share: blake2b over their canonical JSON."""
    values = [float(state.at_s), state.current_product, state.product_order, state.shown_image]
    text = json.dumps([*values, state.hand_offs, state.extras], sort_keys=True, ensure_ascii=False)
    return blake2b(text.encode("utf-8", "replace"), digest_size=8).hexdigest()


@cache
def line_adapter() -> TypeAdapter[Line]:
    """Return what checks and reads a line."""
    return TypeAdapter(Annotated[Line, Field(discriminator="kind")])


def recording_schema() -> dict[str, Any]:
    """Return the JSON Schema of a line; `data/recording.schema.json` holds it."""
    schema = {"$schema": "https://json-schema.org/draft/2020-12/schema", "title": "Line"}
    return schema | line_adapter().json_schema()


def redacted(line: L, redact: Redact) -> L:
    """Return the line with `redact` applied to the texts of its view or result."""
    part = "view" if isinstance(line, ResetLine) else "result"
    values = _redacted(line.model_dump(mode="json", include={part}), redact)
    return line.model_copy(
        update={
            part: getattr(
                type(line).model_validate(
                    {**line.model_dump(mode="json", exclude={part}), **values}
                ),
                part,
            )
        }
    )


_NOT_TEXT = frozenset(
    {"comment_id", "product_id", "faq_id", "segment_id", "record", "field", "unit", "room_id"}
    | {"content_hash", "language", "embedder", "error", "kind", "current_product"}
    | {"product_order", "shown_image"}
)


def _redacted(value: Any, redact: Redact, key: str = "") -> Any:
    """Redact texts in JSON values, but for ids and names; a list stands under its key."""
    if isinstance(value, dict):
        return {name: _redacted(item, redact, name) for name, item in value.items()}
    if isinstance(value, list):
        return [_redacted(item, redact, key) for item in value]
    return redact(value) if isinstance(value, str) and key not in _NOT_TEXT else value


def redacted_call(call: ToolCall, redact: Redact) -> ToolCall:
    """Return the call with `redact` applied to the texts of its arguments."""
    arguments = {key: _redacted(value, redact) for key, value in call.arguments.items()}
    return ToolCall(call.id, call.name, freeze(arguments))


def line_text(line: Line) -> str:
    """Write the line as it stands in the file, with its end."""
    values = line_adapter().dump_python(line, mode="json", exclude_defaults=True)
    text = json.dumps(values, ensure_ascii=False, separators=(",", ":"))
    return clean_text(text) + "\n"
