"""A user's own tools: `@tool`, what they are given, and whose mistake is whose.

A tool is a function, sync or async, that takes a `ToolContext` first and then the arguments of the
call, and returns JSON values. `ToolError` is the policy's mistake and becomes an error result;
every other exception, a time-out included, is infrastructure's and becomes a `SandboxError`.
"""

from __future__ import annotations

import asyncio
import inspect
import json
import re
import threading
from collections.abc import Awaitable, Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from functools import cached_property
from importlib import import_module
from importlib.metadata import entry_points
from pathlib import Path
from typing import Any, get_type_hints, overload

from pydantic import ConfigDict, create_model

from livestream_env.errors import SandboxError, ToolError, did_you_mean
from livestream_env.rooms import Room
from livestream_env.tools import (
    TOOLS,
    Outcome,
    World,
    compiled_schema,
    error_content,
    schema_fault,
    to_json,
    tool_spec,
    wording,
)
from livestream_env.types import Fact, State, ToolSpec, freeze
from livestream_env.words import format_amount

UNITS: dict[str, tuple[str, float]] = {
    "yuan": ("yuan", 1.0),
    "fen": ("yuan", 0.01),
    "dollar": ("dollar", 1.0),
    "cent": ("dollar", 0.01),
    "piece": ("piece", 1.0),
    "second": ("second", 1.0),
    "hour": ("hour", 1.0),
    "day": ("day", 1.0),
    "gram": ("gram", 1.0),
    "percent": ("percent", 1.0),
    "": ("", 1.0),
}
"""Unit of a declared fact -> (unit of the `Fact`, factor)."""

ENTRY_POINTS = "livestream_env.tools"


@dataclass(frozen=True, slots=True)
class ToolContext:
    """What a tool is given beside its arguments."""

    room: Room
    """The room as of now, without its key."""
    state: State
    """What the episode has changed so far."""
    seed: int
    """Seed of the episode, for tools that draw."""
    comments: tuple[str, ...]
    """Ids of the open comments."""
    language: str
    timeout_s: float | None
    """Seconds that the call may take; `None`: any."""
    idempotency_key: str
    """The same for a repeat of the same call, for upstreams that must not act twice."""


@dataclass(frozen=True, slots=True)
class ToolOutput:
    """What a tool may return beside plain JSON values: facts and a new state of its own making."""

    content: Any
    """JSON values that the policy is shown."""
    facts: tuple[Fact, ...] = ()
    state: State | None = None


class CustomTool:
    """A function as a tool; made by `tool`."""

    def __init__(
        self,
        function: Callable[..., Any],
        *,
        name: str,
        pure: bool,
        mutates: bool,
        facts: Mapping[str, tuple[str, str]],
        spec: ToolSpec | None,
    ) -> None:
        self.function = function
        self.name = name
        self.pure = pure
        self.mutates = mutates
        self.facts = dict(facts)
        self.is_async = inspect.iscoroutinefunction(function)
        self._spec = spec
        for label, (_, unit) in self.facts.items():
            if unit not in UNITS:
                known = ", ".join(f"`{one}`" for one in UNITS if one)
                hint = did_you_mean(unit, UNITS)
                raise ValueError(f"fact `{label}` has unit `{unit}`; known are {known}.{hint}")

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """Call the function itself."""
        return self.function(*args, **kwargs)

    def __repr__(self) -> str:
        return f"<tool {self.name} of {self.function.__module__}:{self.function.__qualname__}>"

    def __reduce__(self) -> tuple[Any, ...]:
        return _from_module, (self.function.__module__, self.function.__qualname__)

    @cached_property
    def spec(self) -> ToolSpec:
        """What the policy is told: from the JSON file given, else from signature and docstring."""
        made = self._spec or _spec_of(self.function, self.name)
        return replace(made, name=self.name, mutates=self.mutates, pure=self.pure)

    @cached_property
    def _validate(self) -> Callable[[Mapping[str, Any]], object]:
        return compiled_schema(json.dumps(self.spec.parameters))

    def fault(self, world: World, arguments: Mapping[str, Any]) -> Outcome | None:
        """Return the outcome of arguments that the schema refuses, or `None`."""
        problem = schema_fault(self._validate, arguments)
        if problem is None:
            return None
        content = error_content(world.language, "invalid_arguments", problem=problem)
        return Outcome(content, error="invalid_arguments")

    def run(self, world: World, context: ToolContext, arguments: Mapping[str, Any]) -> Outcome:
        """Run the tool to its end, an async one too."""
        refused = self.fault(world, arguments)
        if refused is not None:
            return refused
        try:
            if self.is_async:
                returned = _run_to_end(_within(self.function(context, **arguments), context))
            elif context.timeout_s is None:
                returned = self.function(context, **arguments)
            else:
                returned = _in_time(lambda: self.function(context, **arguments), context.timeout_s)
        except ToolError as error:
            return _mistake(world, error)
        return self._outcome(world, arguments, returned)

    async def arun(
        self, world: World, context: ToolContext, arguments: Mapping[str, Any]
    ) -> Outcome:
        """Run the tool; an async one is awaited, a sync one runs in a thread."""
        refused = self.fault(world, arguments)
        if refused is not None:
            return refused
        made = (
            self.function(context, **arguments)
            if self.is_async
            else asyncio.to_thread(self.function, context, **arguments)
        )
        try:
            returned = await _within(made, context)
        except ToolError as error:
            return _mistake(world, error)
        return self._outcome(world, arguments, returned)

    def _outcome(self, world: World, arguments: Mapping[str, Any], returned: Any) -> Outcome:
        output = returned if isinstance(returned, ToolOutput) else ToolOutput(returned)
        try:
            text = json.dumps(output.content, ensure_ascii=False, allow_nan=False)
        except (TypeError, ValueError) as error:
            raise SandboxError(f"tool `{self.name}` returned no JSON: {error}") from error
        content = json.loads(text)
        facts = (*output.facts, *self._declared_facts(world, arguments, content))
        return Outcome(to_json(content), facts, state=output.state)

    def _declared_facts(
        self, world: World, arguments: Mapping[str, Any], content: Any
    ) -> list[Fact]:
        entries = content if isinstance(content, list) else [content]
        return [
            fact
            for entry in entries
            if isinstance(entry, Mapping)
            for fact in self._facts_of(world, {**arguments, **entry}, entry)
        ]

    def _facts_of(
        self, world: World, values: Mapping[str, Any], entry: Mapping[str, Any]
    ) -> list[Fact]:
        fields = wording(world.language)["fields"]
        english = {shown: name for name, shown in fields.items()}
        record = _record_of(world, values, fields["link_no"]) or f"tool:{self.name}"
        made = []
        for label, (key, unit) in self.facts.items():
            if key in entry:
                name, factor = UNITS[unit]
                value = entry[key]
                if isinstance(value, (int, float)) and not isinstance(value, bool):
                    value = round(value * factor, 2)
                shown = format_amount(value) if isinstance(value, float) else str(value)
                made.append(Fact(record, english.get(label, label), value, name or None, shown))
        return made


def _record_of(world: World, values: Mapping[str, Any], label: str) -> str | None:
    """Return the product that a link number in arguments or result names."""
    link_no = values.get("link_no", values.get(label))
    product = world.product_by_link(link_no) if isinstance(link_no, int) else None
    return None if product is None else f"product:{product.product_id}"


def _mistake(world: World, error: ToolError) -> Outcome:
    content = error_content(world.language, "tool_error", problem=str(error))
    return Outcome(content, error="tool_error")


async def _within(made: Awaitable[Any], context: ToolContext) -> Any:
    return await asyncio.wait_for(made, context.timeout_s)


def _run_to_end(made: Any) -> Any:
    """Run a coroutine from sync code, also inside a running loop (a notebook)."""
    try:
        asyncio.get_running_loop()
    except RuntimeError:
        return asyncio.run(made)
    with ThreadPoolExecutor(1) as pool:
        return pool.submit(asyncio.run, made).result()


def _in_time(function: Callable[[], Any], timeout_s: float) -> Any:
    """Run a function in a thread of its own and stop waiting for it after `timeout_s`."""
    returned: list[Any] = []
    failed: list[BaseException] = []

    def work() -> None:
        try:
            returned.append(function())
        except BaseException as error:
            failed.append(error)

    thread = threading.Thread(target=work, daemon=True)
    thread.start()
    thread.join(timeout_s)
    if failed:
        raise failed[0]
    if not returned:
        raise TimeoutError(f"the tool took longer than {timeout_s} s")
    return returned[0]


# --- making one ------------------------------------------------------------------------------


@overload
def tool(function: Callable[..., Any], /) -> CustomTool: ...
@overload
def tool(
    *,
    pure: bool = False,
    mutates: bool = False,
    facts: Mapping[str, tuple[str, str]] | None = None,
    name: str | None = None,
    spec: str | Mapping[str, Any] | None = None,
) -> Callable[[Callable[..., Any]], CustomTool]: ...


def tool(
    function: Callable[..., Any] | None = None,
    /,
    *,
    pure: bool = False,
    mutates: bool = False,
    facts: Mapping[str, tuple[str, str]] | None = None,
    name: str | None = None,
    spec: str | Mapping[str, Any] | None = None,
) -> CustomTool | Callable[[Callable[..., Any]], CustomTool]:
    """Make a function a tool of the sandbox.

    Its first parameter is the `ToolContext`; the others are the arguments, with type hints. Name,
    description and schema come from the function, its docstring (`Args:` describes the arguments)
    and hints, or from `spec`, an OpenAI tool as JSON file or dict. A tool named like a bundled one
    takes its place.

    Args:
        pure: room, state and arguments alone decide the result, which may be remembered.
        mutates: a call changes something.
        facts: what the result states, as label -> (key in the result, unit); the unit is one of
            `UNITS`, and money in fen or cents becomes yuan or dollars.
    """

    def made(one: Callable[..., Any]) -> CustomTool:
        loaded = None if spec is None else _loaded_spec(spec)
        own_name = name or (loaded.name if loaded is not None else one.__name__)
        return CustomTool(
            one, name=own_name, pure=pure, mutates=mutates, facts=facts or {}, spec=loaded
        )

    return made if function is None else made(function)


def _loaded_spec(spec: str | Mapping[str, Any]) -> ToolSpec:
    raw = json.loads(Path(spec).read_text(encoding="utf-8")) if isinstance(spec, str) else spec
    function = raw.get("function", raw)
    try:
        parameters = freeze(function["parameters"])
        return ToolSpec(function["name"], function.get("description", ""), parameters)
    except (KeyError, TypeError, AttributeError) as error:
        raise ValueError(
            "a tool spec is an OpenAI tool: `name`, `description` and `parameters`, a JSON Schema"
        ) from error


def _spec_of(function: Callable[..., Any], name: str) -> ToolSpec:
    """Make a spec from signature and docstring."""
    hints = get_type_hints(function)
    described = _described(function)
    fields: dict[str, Any] = {}
    for i, (key, parameter) in enumerate(inspect.signature(function).parameters.items()):
        if i == 0:
            continue
        if key not in hints:
            raise TypeError(f"argument `{key}` of tool `{name}` needs a type hint")
        default = ... if parameter.default is parameter.empty else parameter.default
        fields[key] = (hints[key], default)
    model = create_model(name, __config__=ConfigDict(extra="forbid"), **fields)
    schema = _plain(model.model_json_schema())
    for key, text in described.items():
        if key in schema.get("properties", {}):
            schema["properties"][key]["description"] = text
    schema.setdefault("properties", {})
    summary = (inspect.getdoc(function) or name).split("\n\n")[0].replace("\n", " ")
    return ToolSpec(name, summary, freeze(schema))


def _plain(schema: Any) -> Any:
    """Drop the titles that pydantic adds."""
    if isinstance(schema, list):
        return [_plain(item) for item in schema]
    if not isinstance(schema, dict):
        return schema
    return {
        key: {name: _plain(one) for name, one in item.items()}
        if key in ("properties", "$defs")
        else _plain(item)
        for key, item in schema.items()
        if key != "title" or not isinstance(item, str)
    }


def _described(function: Callable[..., Any]) -> dict[str, str]:
    """Return the descriptions under `Args:` of a docstring, by argument."""
    _, _, section = (inspect.getdoc(function) or "").partition("Args:\n")
    found = re.findall(r"^ {2,}(\w+)(?: \([^)]*\))?: (.+(?:\n {6,}.+)*)", section, re.MULTILINE)
    return {name: " ".join(text.split()) for name, text in found}


# --- naming them -----------------------------------------------------------------------------

ToolSource = str | CustomTool


def resolve_tools(
    tools: Sequence[ToolSource] | None, language: str
) -> tuple[tuple[ToolSpec, ...], dict[str, CustomTool]]:
    """Return the specs of the tools that are offered, and those of them that are a user's own.

    A tool is a bundled name, `package.module:name`, the name of an entry point of the group
    `livestream_env.tools`, or an object that `tool` made; `None` offers the bundled ones.

    Raises:
        ValueError: a name is none of these; the message names the nearest.
        TypeError: an object is no tool.
    """
    if tools is None:
        names = [name for name, one in TOOLS.items() if not one.held_out]
        return tuple(tool_spec(name, language) for name in names), {}
    if isinstance(tools, str):
        raise TypeError(f"`tools` is {tools!r}; it is a list of names or tools")
    specs: dict[str, ToolSpec] = {}
    own: dict[str, CustomTool] = {}
    for source in tools:
        if isinstance(source, str) and source in TOOLS:
            specs.setdefault(source, tool_spec(source, language))
            continue
        found = source if not isinstance(source, str) else _named(source)
        if not isinstance(found, CustomTool):
            raise TypeError(
                f"`{source}` is no tool: decorate a function with `@livestream_env.tool`"
            )
        specs[found.name], own[found.name] = found.spec, found
    return tuple(specs.values()), own


def _named(name: str) -> Any:
    module, colon, attribute = name.partition(":")
    if colon:
        return _from_module(module, attribute)
    points = {point.name: point for point in entry_points(group=ENTRY_POINTS)}
    if name in points:
        return points[name].load()
    known = [*TOOLS, *points]
    raise ValueError(
        f"no tool `{name}`; known are {', '.join(known)}, or name your own as"
        f" `package.module:name`.{did_you_mean(name, known)}"
    )


def _from_module(module: str, attribute: str) -> Any:
    try:
        found: Any = import_module(module)
        for part in attribute.split("."):
            found = getattr(found, part)
    except (ImportError, AttributeError) as error:
        raise ValueError(f"no tool `{module}:{attribute}`: {error}") from error
    return found
