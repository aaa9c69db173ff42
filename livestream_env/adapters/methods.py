"""Tools as Python methods, for trainers that read a schema off signature and docstring."""

from __future__ import annotations

import inspect
import json
import keyword
from collections.abc import Callable, Mapping
from functools import reduce
from operator import or_
from typing import Any

from livestream_env.types import ToolSpec

_TYPES: Mapping[str, Any] = {
    "string": str,
    "integer": int,
    "number": float,
    "boolean": bool,
    "object": dict,
    "null": None,
}
Call = Callable[[Any, str, dict[str, Any]], str]
"""`(self, tool, arguments)`: the text of the result."""


def as_method(spec: ToolSpec, call: Call) -> Callable[..., str]:
    """Return a method of the tool's name, signature and docstring (with `Args:`) that calls `call`.

    It takes whatever the policy gave, so that wrong arguments are told by the room. A parameter
    that is not required is `None` by default, and then left out.

    Raises:
        ValueError: the tool's name, or a parameter's, is none in Python.
    """
    properties = spec.parameters.get("properties", {})
    for name in (spec.name, *properties):
        if not name.isidentifier() or keyword.iskeyword(name) or name.startswith("_"):
            raise ValueError(f"tool `{spec.name}`: `{name}` cannot be the name of a method's part")
    required = set(spec.parameters.get("required", ()))

    def method(self: Any, /, **given: Any) -> str:
        told = {k: v for k, v in given.items() if v is not None or k in required}
        return call(self, spec.name, told)

    parameters = [inspect.Parameter("self", inspect.Parameter.POSITIONAL_OR_KEYWORD)]
    for name in sorted(properties, key=lambda name: name not in required):
        parameters.append(_parameter(name, properties[name], name in required))
    hints = {one.name: one.annotation for one in parameters[1:]}
    method.__name__ = method.__qualname__ = spec.name
    method.__doc__ = _docstring(spec.description, properties)
    method.__annotations__ = {**hints, "return": str}
    method.__signature__ = inspect.Signature(  # type: ignore[attr-defined]
        parameters, return_annotation=str
    )
    return method


def _parameter(name: str, schema: Mapping[str, Any], is_required: bool) -> inspect.Parameter:
    hint = _hint(schema)
    default = inspect.Parameter.empty if is_required else None
    kind = inspect.Parameter.POSITIONAL_OR_KEYWORD
    return inspect.Parameter(
        name, kind, default=default, annotation=hint if is_required else hint | None
    )


def _hint(schema: Mapping[str, Any]) -> Any:
    options = schema.get("anyOf") or schema.get("oneOf")
    if options:
        return reduce(or_, [_hint(option) for option in options])
    kind = schema.get("type", "string")
    if not isinstance(kind, str):
        return reduce(or_, [_hint({**schema, "type": one}) for one in kind])
    if kind == "array":
        return list[_hint(schema.get("items", {}))]  # type: ignore[misc]
    return _TYPES[kind]


def _docstring(description: str, properties: Mapping[str, Mapping[str, Any]]) -> str:
    lines = [" ".join(description.split()), "", "Args:"]
    for name, schema in properties.items():
        told = " ".join(str(schema.get("description", name)).split())
        choices = schema.get("enum")
        if choices:
            told += f" (choices: {json.dumps(list(choices), ensure_ascii=False)})"
        lines.append(f"    {name}: {told}")
    return "\n".join(lines if properties else lines[:1])
