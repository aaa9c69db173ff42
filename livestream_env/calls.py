"""Values of a model's text into calls: what every dialect's reader shares."""

from __future__ import annotations

import json
import math
import re
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from pydantic_core import from_json

from livestream_env.types import EMPTY, FrozenDict, ToolCall, ToolSpec, freeze, frozen_scalars
from livestream_env.words import clean_text

DEEPEST = 64
"""Levels that arguments may be nested: more than any tool takes, and every writer can hold it."""


MOST_CALLS = 256
"""Calls of one message that are read; what follows them is one fault."""


class Reading:
    """What has been read of one text."""

    __slots__ = ("calls", "dialect", "prefix", "said", "thinking", "tools")

    def __init__(self, prefix: str, dialect: str | None, tools: Sequence[ToolSpec]) -> None:
        self.prefix = prefix
        self.dialect = dialect
        self.tools = tools
        self.calls: list[ToolCall] = []
        self.said = self.thinking = ""

    def add(self, name: str, given: object, raw: str, call_id: str = "") -> None:
        """Take a call whose arguments are an object or JSON text."""
        if not call_id or any(call.id == call_id for call in self.calls):
            call_id = f"{self.prefix}{len(self.calls)}"
        self.take(call_of({"name": name, "arguments": given}, raw, call_id))

    def fault(self, code: str, problem: str, raw: str) -> None:
        """Take a call that cannot be read."""
        call_id = f"{self.prefix}{len(self.calls)}"
        self.take(ToolCall(call_id, "", EMPTY, f"{code}: {problem}", raw.strip()))

    def take(self, call: ToolCall) -> None:
        """Keep a call.

        Raises:
            Overfull: the message holds more than `MOST_CALLS`.
        """
        if len(self.calls) == MOST_CALLS:
            raise Overfull
        self.calls.append(call)

    def properties(self, name: str) -> Mapping[str, Any] | None:
        """Return the schemas of a tool's parameters; `None` for a tool that is not known."""
        known = (spec.parameters for spec in self.tools if spec.name == name)
        return next((schema.get("properties") or {} for schema in known), None)


class Overfull(Exception):
    """A message holds more calls than are read."""


class Malformed(ValueError):
    """A call cannot be read; the two arguments are the code and the problem."""


def pairs_of(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    """Make a JSON object; a key that occurs twice is an error."""
    made = dict(pairs)
    if len(made) != len(pairs):
        raise ValueError(twice([key for key, _ in pairs]))
    return made


def twice(keys: Sequence[str]) -> str:
    """Name the key that occurs twice."""
    counts = Counter(keys)
    twice = next(key for key in keys if counts[key] > 1)
    return f"the key `{clean_text(twice)[:50]}` occurs twice"


def _no_constant(name: str) -> None:
    raise ValueError(f"`{name}` is no JSON value")


def _finite(digits: str) -> float:
    number = float(digits)
    if math.isinf(number):
        raise ValueError(f"the number `{digits[:20]}` is too large")
    return number


DECODER = json.JSONDecoder(
    object_pairs_hook=pairs_of, parse_constant=_no_constant, parse_float=_finite
)
_MARKS = "“”‘’＂：，；｛｝［］【】"


def json_fault(error: BaseException) -> str:
    """Say what is wrong with JSON, and of quotation marks and the like that they are not ASCII."""
    if isinstance(error, RecursionError):
        return "nested too deeply"
    if not isinstance(error, json.JSONDecodeError):
        fault = str(error)
        return "a number has too many digits" if "int_max_str_digits" in fault else fault
    found = error.doc[error.pos : error.pos + 1]
    hint = "; quotes, colons, commas and brackets of JSON are ASCII"
    return f"{error}{hint if found and found in _MARKS else ''}"


SCALARS = frozenset({str, int, bool, type(None), float})


def call_of(value: Any, raw: str, call_id: str) -> ToolCall:
    """Make a call of the object `{"name": ..., "arguments": ...}`."""
    if not isinstance(value, dict):
        problem = "invalid_json: a call is an object with `name` and `arguments`"
        return ToolCall(call_id, "", EMPTY, problem, raw)
    if "name" not in value and isinstance(value.get("function"), dict):
        value = value["function"]
    name = value.get("name")
    if not isinstance(name, str) or not name.strip():
        return ToolCall(call_id, "", EMPTY, 'missing_name: add `"name": "..."`', raw)
    given = value.get("arguments")
    if type(given) is dict and len(value) == 2 and SCALARS.issuperset(map(type, given.values())):
        return ToolCall(call_id, name.strip(), FrozenDict(given))
    fault = _stray_key(value)
    if fault is None:
        arguments, fault = _arguments(value.get("parameters", given))
    if fault is not None:
        return ToolCall(call_id, name.strip(), EMPTY, fault, raw)
    return ToolCall(call_id, name.strip(), arguments)


_PLAIN = frozenset({str, int, bool, type(None)})
_LONGEST_PLAIN = 4096


def plain_call(text: str, turn: int) -> ToolCall | None:
    """Read a text that is one Hermes call of plain values and nothing else, the commonest by far.

    `None` for every other text, valid or not, which the dialects then read. The quotes are counted
    because a key that occurs twice is an error, of which the fast reader says nothing.
    """
    if not text.startswith("<tool_call>") or text.find("</tool_call>") != len(text) - 12:
        return None
    if "\\" in text or len(text) > _LONGEST_PLAIN:
        return None
    try:
        value = from_json(text[11:-12])
        name, given = value["name"], value["arguments"]
        kinds = [*map(type, given.values())]
    except (ValueError, TypeError, KeyError, AttributeError):
        return None
    quotes = 6 + 2 * len(given) + 2 * kinds.count(str)
    if not _PLAIN.issuperset(kinds) or len(value) != 2 or text.count('"') != quotes:
        return None
    if type(name) is not str or not (name := name.strip()):
        return None
    return ToolCall(f"call_{turn}_0", name, frozen_scalars(given))


_BESIDE = frozenset({"name", "id", "type", "index"})


def _stray_key(value: Mapping[str, Any]) -> str | None:
    """Return a fault where the arguments may be elsewhere than in `arguments` or `parameters`."""
    if "arguments" in value:
        twice = "invalid_arguments: `arguments` and `parameters` are both given"
        return twice if "parameters" in value else None
    stray = [] if "parameters" in value else [key for key in value if key not in _BESIDE]
    if not stray:
        return None
    return f"invalid_arguments: `{clean_text(stray[0])[:50]}` is no key of a call: use `arguments`"


def _arguments(value: object) -> tuple[FrozenDict, str | None]:
    """Return arguments given as object or as JSON text; none, null and blank text are `{}`."""
    if isinstance(value, str) and value.strip():
        try:
            value = DECODER.decode(value)
        except (ValueError, RecursionError) as error:
            return EMPTY, f"invalid_json: arguments: {json_fault(error)}"
    if value is None or (isinstance(value, str) and not value.strip()):
        return EMPTY, None
    if not isinstance(value, Mapping):
        return EMPTY, f"invalid_arguments: an object is needed, not {type(value).__name__}"
    fault = unfit(value)
    return (freeze(value), None) if fault is None else (EMPTY, f"invalid_arguments: {fault}")


def unfit(value: object, levels: int = DEEPEST) -> str | None:
    """Return why a value is no argument, or `None`."""
    if isinstance(value, float) and not math.isfinite(value):
        return f"`{value}` is no JSON value"
    if value is None or isinstance(value, (str, int, float)):
        return None
    if not levels:
        return "nested too deeply"
    if isinstance(value, (list, tuple)):
        items: Iterator[object] = iter(value)
    elif isinstance(value, dict) and all(isinstance(key, str) for key in value):
        items = iter(value.values())
    else:
        return f"`{type(value).__name__}` is no JSON type"
    return next((fault for item in items if (fault := unfit(item, levels - 1))), None)


_BLANKS = re.compile(r"\s*")


def past_blanks(text: str, position: int) -> int:
    """Return the position of what follows the blanks."""
    return _BLANKS.match(text, position).end()  # type: ignore[union-attr]
