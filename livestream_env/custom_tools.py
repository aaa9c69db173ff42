"""A user's own tools: `@tool`, what they are given, and whose mistake is whose.

A tool is a function, sync or async, that takes a `ToolContext` first and then the arguments of the
call, and returns JSON values. `ToolError` is the policy's mistake and becomes an error result;
every other exception, a time-out included, is infrastructure's and becomes a `SandboxError`.
"""

from __future__ import annotations

import asyncio
import inspect
import json
import math
import os
import re
import sys
import threading
from collections.abc import Callable, Coroutine, Iterator, Mapping, Sequence
from concurrent.futures import Future
from contextvars import copy_context
from dataclasses import dataclass, replace
from functools import cache, lru_cache, partial
from hashlib import blake2b
from importlib import import_module
from importlib.metadata import entry_points
from pathlib import Path
from types import SimpleNamespace
from typing import Any, NamedTuple, TypeVar, cast, get_type_hints, overload

from pydantic import BaseModel, ConfigDict, Field, ValidationError, create_model
from pydantic_core import to_jsonable_python

from livestream_env.errors import SandboxError, SandboxTimeout, ToolError, did_you_mean
from livestream_env.rooms import Room
from livestream_env.tools import (
    DEFAULT_TOOLS,
    LOCK,
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
from livestream_env.types import Fact, FactValue, State, ToolSpec, freeze
from livestream_env.words import clean_text

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
_NOT_THE_TOOLS = (KeyboardInterrupt, GeneratorExit)
"""Exceptions that come from without; `SystemExit` comes from a tool, and is its failure."""

T = TypeVar("T")


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
    """Ids of the comments that the episode is about."""
    language: str
    timeout_s: float | None
    """Seconds that the call may take; `None`: any."""
    idempotency_key: str
    """For upstreams that must not act twice: room, seed, comments, number of the call, tool and
    arguments. The same call of a branch, or of the same episode played again, repeats it."""


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
        name: str | None = None,
        pure: bool = False,
        mutates: bool = False,
        facts: Mapping[str, tuple[str, str]] | None = None,
        own_spec: ToolSpec | None = None,
    ) -> None:
        if not inspect.isroutine(function):
            raise TypeError(
                f"`tool` got {function!r:.80}; it takes a function, and options by name"
            )
        self.function = function
        known = function.__name__ if own_spec is None else own_spec.name
        self.name = known if name is None else name
        if not re.fullmatch(r"[A-Za-z0-9_-]{1,64}", self.name):
            raise ValueError(
                f"a tool is named `{self.name}`; chat APIs take 1 to 64 letters, digits, `_` and"
                " `-`: give it a `name=`"
            )
        if pure and mutates:
            raise ValueError(f"tool `{self.name}` is `pure` and `mutates`; a write cannot be both")
        self.pure = pure
        self.mutates = mutates
        self.facts = _checked_facts(self.name, facts or {})
        self.is_async = inspect.iscoroutinefunction(function)
        self._own_spec = own_spec
        self._model: type[BaseModel] | None = None
        parameters = _parameters(function, self.name)
        if own_spec is None:
            self._model, told = _read(function, self.name, parameters)
        else:
            told = _checked_spec(function, self.name, own_spec)
        self.spec = replace(told, name=self.name, mutates=mutates, pure=pure)
        """What the policy is told: from the JSON file given, else from signature and docstring."""
        self._validate = _compiled(self.spec)

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """Call the function itself."""
        return self.function(*args, **kwargs)

    def __repr__(self) -> str:
        return f"<tool {self.name} of {self.function.__module__}:{self.function.__qualname__}>"

    def __deepcopy__(self, _: object) -> CustomTool:
        return self

    def __reduce__(self) -> tuple[Any, ...]:
        module, name = self.function.__module__, self.function.__qualname__
        found: Any = sys.modules.get(module)
        for part in name.split("."):
            found = getattr(found, part, None)
        if found is self:
            return _from_module, (module, name)
        remade = partial(
            CustomTool,
            name=self.name,
            pure=self.pure,
            mutates=self.mutates,
            facts=self.facts,
            own_spec=self._own_spec,
        )
        return remade, (self.function,)

    def run(self, world: World, context: ToolContext, arguments: Mapping[str, Any]) -> Outcome:
        """Run the tool to its end; an async one in a loop that all sync callers share."""
        if self.is_async:
            made = self.arun(world, context, arguments)
            try:
                return _in_shared_loop(made, context.timeout_s)
            except TimeoutError as error:
                return self._failed(world, error)
        try:
            call = partial(
                self.function, self._keyed(context, arguments), **self._values(arguments)
            )
            returned = call() if context.timeout_s is None else _in_time(call, context.timeout_s)
            return self._outcome(world, arguments, returned)
        except _NOT_THE_TOOLS:
            raise
        except BaseException as error:
            return self._failed(world, error)

    async def arun(
        self, world: World, context: ToolContext, arguments: Mapping[str, Any]
    ) -> Outcome:
        """Run the tool; an async one is awaited, a sync one runs in a thread."""
        if not self.is_async:
            return await asyncio.wrap_future(
                _in_thread(partial(self.run, world, context, arguments))
            )
        limit = asyncio.timeout(context.timeout_s)
        try:
            values = self._values(arguments)
            async with limit:
                returned = await self.function(self._keyed(context, arguments), **values)
            return self._outcome(world, arguments, returned)
        except asyncio.CancelledError as error:
            task = asyncio.current_task()
            if task is not None and task.cancelling():
                raise
            return self._failed(world, error)  # what the tool awaited was cancelled, not the caller
        except _NOT_THE_TOOLS:
            raise
        except BaseException as error:
            return self._failed(world, _too_slow(context.timeout_s) if limit.expired() else error)

    def _keyed(self, context: ToolContext, arguments: Mapping[str, Any]) -> ToolContext:
        """Add the call to its number: branches may make different calls under one number."""
        canonical = freeze(arguments).canonical.encode("utf-8", "replace")
        digest = blake2b(canonical, digest_size=8).hexdigest()
        key = f"{context.idempotency_key}:{self.name}:{digest}"
        return replace(context, idempotency_key=key)

    def _values(self, arguments: Mapping[str, Any]) -> dict[str, Any]:
        """Return the arguments as the hints say, copies of what was recorded."""
        given: dict[str, Any] = json.loads(json.dumps(arguments))
        problem = schema_fault(self._validate, given)
        if problem is not None:
            raise _InvalidArguments(problem)
        if self._model is None:
            return {key: given[key] for key in arguments}
        try:
            made = self._model.model_validate({key: given[key] for key in arguments})
        except ValidationError as error:
            first = error.errors()[0]
            where = ".".join(str(part) for part in ("arguments", *first["loc"]))
            raise _InvalidArguments(f"{where}: {first['msg']}") from None
        return {
            str(field.alias): getattr(made, key)
            for key, field in self._model.model_fields.items()
            if key in made.model_fields_set
        }

    def _outcome(self, world: World, arguments: Mapping[str, Any], returned: Any) -> Outcome:
        if inspect.iscoroutine(returned):
            returned.close()
            raise SandboxError(
                f"tool `{self.name}` returned a coroutine: give `tool` the `async def` itself"
            )
        output = returned if isinstance(returned, ToolOutput) else ToolOutput(returned)
        try:
            text = json.dumps(output.content, ensure_ascii=False, allow_nan=False)
            content = json.loads(clean_text(text), object_pairs_hook=_distinct)
        except (TypeError, ValueError, RecursionError) as error:
            raise SandboxError(f"tool `{self.name}` returned no JSON: {error}") from error
        if output.state is not None and not (self.mutates and isinstance(output.state, State)):
            raise SandboxError(
                f"tool `{self.name}` returned a state; declare `mutates=True`, and return a `State`"
            )
        if not all(isinstance(fact, Fact) for fact in output.facts):
            raise SandboxError(f"tool `{self.name}` returned facts that are no `Fact`")
        stated = (*output.facts, *self._declared_facts(world, arguments, content))
        return Outcome(to_json(content), tuple(dict.fromkeys(stated)), state=output.state)

    def _failed(self, world: World, error: BaseException) -> Outcome:
        """Return what the policy is told of its own mistake; all else is infrastructure's.

        Raises:
            SandboxError: `error` is no `ToolError`; `SandboxTimeout` where it is a time-out.
        """
        if isinstance(error, _InvalidArguments):
            content = error_content(world.language, "invalid_arguments", problem=str(error))
            return Outcome(content, error="invalid_arguments")
        if isinstance(error, ToolError):
            fields = wording(world.language)["fields"]
            note = clean_text(_shown(error, str))
            return Outcome(
                to_json({fields["error"]: "tool_error", fields["note"]: note}), error="tool_error"
            )
        if isinstance(error, SandboxError):
            raise error
        kind = SandboxTimeout if isinstance(error, TimeoutError) else SandboxError
        raise kind(f"tool `{self.name}` failed: {_shown(error, repr)}") from error

    def _declared_facts(
        self, world: World, arguments: Mapping[str, Any], content: Any
    ) -> Iterator[Fact]:
        for entry, values in _entries(content, arguments) if self.facts else ():
            record = _record_of(world, values) or f"tool:{self.name}"
            for label, (key, unit) in self.facts.items():
                if key in entry:
                    name, factor = UNITS[unit]
                    shown = entry[key] if isinstance(entry[key], str) else to_json(entry[key])
                    value = _fact_value(entry[key], shown, name, factor)
                    yield Fact(record, _english().get(label, label), value, name or None, shown)


class _InvalidArguments(ToolError):
    """The schema, or a hint, refuses the arguments."""


def _distinct(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    """Make an object of a result; keys such as `1` and `"1"` are one in JSON."""
    made = dict(pairs)
    if len(made) != len(pairs):
        raise ValueError("two keys of an object are equal as text")
    return made


def _shown(error: BaseException, show: Callable[[BaseException], str]) -> str:
    """Return an exception's text, or its name where that raises in turn."""
    try:
        return show(error)
    except Exception:
        return type(error).__name__


# --- facts -----------------------------------------------------------------------------------


def _checked_facts(name: str, facts: Mapping[str, Any]) -> dict[str, tuple[str, str]]:
    if not isinstance(facts, Mapping):
        raise TypeError(
            f"`facts` of tool `{name}` is {facts!r:.80}; it is label -> (key in the result, unit)"
        )
    for label, declared in facts.items():
        is_pair = isinstance(declared, (tuple, list)) and len(declared) == 2
        if not is_pair or not all(isinstance(text, str) for text in (label, *declared)):
            raise TypeError(
                f"fact `{label}` of tool `{name}` is {declared!r}; it is (key in the result, unit)"
            )
        if declared[1] not in UNITS:
            known = ", ".join(f"`{unit}`" for unit in UNITS if unit)
            hint = did_you_mean(declared[1], UNITS)
            raise ValueError(
                f"fact `{label}` of tool `{name}` has unit `{declared[1]}`; known are {known}, and"
                f" an empty text for none.{hint}"
            )
    return {label: (key, unit) for label, (key, unit) in facts.items()}


def _entries(
    content: Any, outer: Mapping[str, Any]
) -> Iterator[tuple[Mapping[str, Any], Mapping[str, Any]]]:
    """Yield every object of a result, each with its own values over those around it."""
    if isinstance(content, list):
        for item in content:
            yield from _entries(item, outer)
    elif isinstance(content, dict):
        values = {**outer, **content}
        yield content, values
        for item in content.values():
            yield from _entries(item, values)


def _record_of(world: World, values: Mapping[str, Any]) -> str | None:
    """Return the product that a link number in arguments or result names."""
    link_no = values.get("link_no", values.get(wording("zh")["fields"]["link_no"]))
    is_number = isinstance(link_no, (int, float)) and not isinstance(link_no, bool)
    product = world.product_by_link(link_no) if is_number else None
    return None if product is None else f"product:{product.product_id}"


def _fact_value(value: Any, shown: str, unit: str, factor: float) -> FactValue:
    """Return a result's value in the unit of its fact; a text that is no number is not known."""
    if isinstance(value, str) and unit:
        try:
            value = float(value)
        except ValueError:
            return None
        if not math.isfinite(value):
            return None
    if isinstance(value, (int, float)) and not isinstance(value, bool) and factor != 1:
        return round(value * factor, 2)
    return shown if isinstance(value, (list, dict)) else value


@cache
def _english() -> dict[str, str]:
    """Field names as Chinese results show them -> those of facts."""
    fields = wording("zh")["fields"]
    return {shown: name for name, shown in reversed(fields.items())}


# --- running one -----------------------------------------------------------------------------


def _in_time(call: Callable[[], T], timeout_s: float) -> T:
    """Run a call in a thread and stop waiting for it after `timeout_s`."""
    future = _in_thread(call)
    try:
        return future.result(timeout_s)
    except TimeoutError:
        if future.done():  # its own
            raise
        raise _too_slow(timeout_s) from None


def _too_slow(timeout_s: float | None) -> TimeoutError:
    return TimeoutError(f"it took longer than `tool_timeout_s` of {timeout_s}")


def _in_thread(call: Callable[[], T]) -> Future[T]:
    """Run a call in a daemon thread of its own: a pool has a limit and is waited for at exit."""
    future: Future[T] = Future()
    future.set_running_or_notify_cancel()

    def work() -> None:
        try:
            future.set_result(call())
        except BaseException as error:
            future.set_exception(error)

    threading.Thread(target=copy_context().run, args=(work,), daemon=True).start()
    return future


def _in_shared_loop(made: Coroutine[Any, Any, T], timeout_s: float | None) -> T:
    """Run a coroutine in the loop that all sync callers share.

    Raises:
        TimeoutError: it blocks the loop and takes a second longer than `timeout_s`; later callers
            get another loop.
    """
    loop = _shared_loop()
    future = asyncio.run_coroutine_threadsafe(_caught(made), loop)
    try:
        returned, interrupt = future.result(None if timeout_s is None else timeout_s + 1)
    except TimeoutError:
        if future.done():  # its own
            raise
        with LOCK:
            if _loop_of(os.getpid()) is loop:
                _loop_of.cache_clear()
        raise _too_slow(timeout_s) from None
    if interrupt is not None:
        raise interrupt
    return cast("T", returned)


async def _caught(made: Coroutine[Any, Any, T]) -> tuple[T | None, KeyboardInterrupt | None]:
    """Return what would end a loop instead of raising it."""
    try:
        return await made, None
    except KeyboardInterrupt as error:
        return None, error


def _shared_loop() -> asyncio.AbstractEventLoop:
    """Return the loop on which sync callers run async tools: one, so that what a tool keeps (an
    HTTP client) meets the same loop again, and a thread of its own, so that the caller may be in a
    running loop."""
    with LOCK:
        return _loop_of(os.getpid())


@cache
def _loop_of(_: int) -> asyncio.AbstractEventLoop:
    loop = asyncio.new_event_loop()
    threading.Thread(target=loop.run_forever, daemon=True, name="livestream_env tools").start()
    return loop


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
    spec: str | os.PathLike[str] | Mapping[str, Any] | None = None,
) -> Callable[[Callable[..., Any]], CustomTool]: ...


def tool(
    function: Callable[..., Any] | None = None,
    /,
    *,
    pure: bool = False,
    mutates: bool = False,
    facts: Mapping[str, tuple[str, str]] | None = None,
    name: str | None = None,
    spec: str | os.PathLike[str] | Mapping[str, Any] | None = None,
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

    Raises:
        TypeError: the function does not fit: no context, an argument without a hint.
        ValueError: a unit is not known, or the spec is none.
    """
    loaded = None if spec is None else _loaded_spec(spec)
    make = partial(CustomTool, name=name, pure=pure, mutates=mutates, facts=facts, own_spec=loaded)
    return make if function is None else make(function)


def _loaded_spec(spec: str | os.PathLike[str] | Mapping[str, Any]) -> ToolSpec:
    source = "a dict" if isinstance(spec, Mapping) else f"`{os.fspath(spec)}`"
    try:
        raw: Any = spec
        if not isinstance(spec, Mapping):
            raw = json.loads(Path(spec).read_text(encoding="utf-8-sig"))
        function = raw.get("function", raw)
        parameters = freeze(function["parameters"])
        return ToolSpec(str(function["name"]), str(function.get("description", "")), parameters)
    except (KeyError, TypeError, AttributeError, ValueError, OSError) as error:
        raise ValueError(
            f"the tool spec is {source}, and no OpenAI tool with `name`, `description` and"
            f" `parameters`, a JSON Schema: {error!r}"
        ) from error


def _parameters(function: Callable[..., Any], name: str) -> list[inspect.Parameter]:
    """Return the parameters after the context."""
    found = list(inspect.signature(function).parameters.values())
    hint = found[0].annotation if found else "nothing"
    shown = hint if isinstance(hint, str) else getattr(hint, "__name__", str(hint))
    if hint is not inspect.Parameter.empty and shown.split(".")[-1] not in ("ToolContext", "Any"):
        raise TypeError(f"tool `{name}` takes a `ToolContext` first, and then its arguments")
    return found[1:]


def _checked_spec(function: Callable[..., Any], name: str, spec: ToolSpec) -> ToolSpec:
    """Return the spec that was given, where the function can be called as it says."""
    for names in (spec.parameters.get("properties", ()), spec.parameters.get("required", ())):
        try:
            inspect.signature(function).bind(None, **dict.fromkeys(names))
        except TypeError as error:
            raise TypeError(f"tool `{name}` does not take what its spec says: {error}") from None
    return spec


def _read(
    function: Callable[..., Any], name: str, parameters: Sequence[inspect.Parameter]
) -> tuple[type[BaseModel], ToolSpec]:
    """Return a model of the arguments, and the spec that hints and docstring make.

    The model's fields have the arguments' names as aliases: none clashes with one of pydantic's.
    """
    for one in parameters:
        if one.kind not in (one.POSITIONAL_OR_KEYWORD, one.KEYWORD_ONLY):
            raise TypeError(f"argument `{one.name}` of tool `{name}` cannot be given by name")
        if one.annotation is one.empty:
            raise TypeError(f"argument `{one.name}` of tool `{name}` needs a type hint")
    hinted: Any = SimpleNamespace(__annotations__={p.name: p.annotation for p in parameters})
    scope = getattr(inspect.unwrap(function), "__globals__", {})
    fields: dict[str, Any] = {}
    try:
        hints = get_type_hints(hinted, globalns=scope, include_extras=True)
        for i, one in enumerate(parameters):
            fields[f"argument_{i}"] = (hints[one.name], _field(one))
        model = create_model(name, __config__=ConfigDict(extra="forbid"), **fields)
        schema = _plain(model.model_json_schema())
    except Exception as error:  # whatever a hint does
        raise TypeError(f"the hints of tool `{name}` make no JSON Schema: {error}") from error
    summary, described = _documented(function)
    properties = schema.setdefault("properties", {})
    for key in properties.keys() & described.keys():
        properties[key]["description"] = described[key]
    return model, ToolSpec(name, summary or name, freeze(schema))


def _field(parameter: inspect.Parameter) -> Any:
    """Return an argument's field; the policy is told a default that is JSON."""
    default = parameter.default
    if default is parameter.empty:
        return Field(alias=parameter.name)
    try:
        json.dumps(to_jsonable_python(default), allow_nan=False)
    except ValueError:
        return Field(default_factory=lambda: default, alias=parameter.name)
    return Field(default, alias=parameter.name)


def _documented(function: Callable[..., Any]) -> tuple[str, dict[str, str]]:
    """Return a docstring's first paragraph and what it says under `Args:`, by argument."""
    text, _, section = (inspect.getdoc(function) or "").partition("Args:\n")
    section = inspect.cleandoc(re.split(r"\n(?=\S)", section)[0])
    found = re.findall(r"^(\w+)(?: *\(.*?\))?:(.*(?:\n[ \t]+.*)*)", section, re.MULTILINE)
    summary = " ".join(text.split("\n\n")[0].split())
    return summary, {name: " ".join(described.split()) for name, described in found}


def _plain(schema: Any) -> Any:
    """Drop the titles that pydantic adds."""
    if isinstance(schema, list):
        return [_plain(item) for item in schema]
    if not isinstance(schema, dict):
        return schema
    made = {}
    for key, item in schema.items():
        if key in ("properties", "$defs"):
            made[key] = {name: _plain(one) for name, one in item.items()}
        elif key in ("default", "const", "enum", "examples"):
            made[key] = item
        elif key != "title":
            made[key] = _plain(item)
    return made


def _compiled(spec: ToolSpec) -> Callable[[Mapping[str, Any]], object]:
    try:
        compiled = compiled_schema(json.dumps(spec.parameters, allow_nan=False))
        if spec.parameters.get("type", "object") != "object":
            raise ValueError("the arguments of a call are an object")
        return compiled
    except Exception as error:  # whatever stands in a schema
        raise ValueError(f"tool `{spec.name}` has no usable JSON Schema: {error}") from error


# --- naming them -----------------------------------------------------------------------------

ToolSource = str | CustomTool


class Offer(NamedTuple):
    """The tools that a sandbox offers."""

    specs: tuple[ToolSpec, ...]
    own: Mapping[str, CustomTool]
    """Those of them that are a user's own."""
    names: frozenset[str]
    remembered: frozenset[str]
    """Bundled tools whose results may be remembered."""


def resolve_tools(tools: Sequence[ToolSource] | None, language: str) -> Offer:
    """Return the tools that are offered; equal lists of bundled names give one `Offer`.

    A tool is a bundled name, `package.module:name`, the name of an entry point of the group
    `livestream_env.tools`, or an object that `tool` made; `None` offers the bundled ones.

    Raises:
        ValueError: a name is none of these; the message names the nearest. Or two share a name.
        TypeError: an object is no tool.
    """
    if isinstance(tools, str):
        raise TypeError(f"`tools` is {tools!r}; it is a list of names or tools")
    listed = DEFAULT_TOOLS if tools is None else tuple(tools)
    names = [one for one in listed if isinstance(one, str) and one in TOOLS]
    if len(names) == len(listed):
        return _bundled_offer(tuple(names), language)
    return _made_offer(listed, language)


@lru_cache(maxsize=256)
def _bundled_offer(names: tuple[str, ...], language: str) -> Offer:
    return _made_offer(names, language)


def _made_offer(tools: Sequence[ToolSource], language: str) -> Offer:
    specs: dict[str, ToolSpec] = {}
    own: dict[str, CustomTool] = {}
    for source in tools:
        if isinstance(source, str) and source in TOOLS:
            specs.setdefault(source, tool_spec(source, language))
            continue
        found = _named(source) if isinstance(source, str) else source
        if not isinstance(found, CustomTool):
            raise TypeError(
                f"`{source}` is no tool: decorate a function with `@livestream_env.tool`"
            )
        if own.get(found.name, found) is not found:
            raise ValueError(f"two tools are named `{found.name}`; give one another `name=`")
        specs[found.name], own[found.name] = found.spec, found
    remembered = frozenset(name for name, spec in specs.items() if spec.pure and name not in own)
    return Offer(tuple(specs.values()), own, frozenset(specs), remembered)


def _named(name: str) -> Any:
    module, colon, attribute = name.partition(":")
    if colon:
        return _from_module(module, attribute)
    points = {point.name: point for point in entry_points(group=ENTRY_POINTS)}
    if name in points:
        return _from_module(points[name].module, points[name].attr)
    known = [*TOOLS, *points]
    raise ValueError(
        f"no tool `{name}`; known are {', '.join(known)}, or name your own as"
        f" `package.module:name`.{did_you_mean(name, known)}"
    )


def _from_module(module: str, attribute: str) -> Any:
    try:
        found: Any = import_module(module)
    except ImportError as error:
        raise ValueError(f"no tool `{module}:{attribute}`: {error}") from error
    tools = [name for name, value in vars(found).items() if isinstance(value, CustomTool)]
    for part in attribute.split("."):
        if not hasattr(found, part):
            raise ValueError(
                f"no tool `{module}:{attribute}`: there is no `{part}`."
                f"{did_you_mean(attribute, tools)}"
            )
        found = getattr(found, part)
    return found
