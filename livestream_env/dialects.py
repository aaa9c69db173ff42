"""The ways in which models write tool calls: one reader a dialect, in one table.

A text is read from left to right, each call to its end by the reader of the dialect that it begins
like, so nothing that a call quotes is read as a call. A reader never raises and never guesses:
what it cannot read becomes a `ToolCall` with an `error`.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Mapping, Sequence
from functools import cache, lru_cache
from typing import Any, NamedTuple

from livestream_env.calls import (
    DECODER,
    DEEPEST,
    MOST_CALLS,
    Malformed,
    Overfull,
    Reading,
    call_of,
    json_fault,
    past_blanks,
    twice,
)
from livestream_env.errors import did_you_mean
from livestream_env.pythonic import LFM2_OPEN, NAME_AND_PAREN, read_python, read_pythonic
from livestream_env.types import EMPTY, ToolCall, ToolSpec
from livestream_env.words import clean_text

END_TOKENS = (
    *("<|im_end|>", "<|endoftext|>", "</s>"),
    *("<|eot_id|>", "<|eom_id|>", "<|end_of_text|>"),
    *("<|user|>", "<|observation|>"),
    *("<｜end▁of▁sentence｜>", "<|end|>", "<|return|>", "<|call|>"),
    *("<|eot|>", "<eos>", "<end_of_turn>", "<turn|>", "<|END_OF_TURN_TOKEN|>"),
)
"""What samplers leave at the end: Qwen and Kimi, Llama, GLM, DeepSeek, gpt-oss, Llama 4, Gemma,
Command R."""
Reader = Callable[[str, int, int, Reading], int | None]
"""(text, where a call begins, where its opening mark ends, what has been read) -> where it ends, or
`None` if it is no call after all."""


class Dialect(NamedTuple):
    """One way to write calls."""

    begin: str
    """Regular expression of what a call begins with."""
    read: Reader
    template: str | None = None
    """Regular expression of what only the chat templates of this dialect hold."""


def read_calls(
    text: str, prefix: str, dialect: str | None = None, tools: Sequence[ToolSpec] = ()
) -> Reading:
    """Read a text without thinking; the calls' ids are `prefix` and their place.

    With a dialect named, what begins like a call of another one is an error.

    Raises:
        ValueError: there is no such dialect.
    """
    out = Reading(prefix, dialect, tools)
    try:
        _read(text, out)
        if not out.calls and tools:
            _flag_named(out)
    except Overfull:
        problem = f"unsupported: a message holds more than {MOST_CALLS} calls; the rest is not read"
        out.calls[-1] = ToolCall(out.calls[-1].id, "", EMPTY, problem, "")
    return out


def _read(text: str, out: Reading) -> None:
    dialect = out.dialect
    begin = _BEGIN if dialect is None else _begin_of(dialect)
    position = kept = 0
    end: int | None
    if dialect is None and text.startswith(_PLAIN):
        position = kept = _hermes(text, 0, len(_OPEN), out)
    while position < len(text):
        if (match := begin.search(text, position)) is None:
            break
        found, start, mark = str(match.lastgroup), *match.span()
        known = len(out.calls)
        end = _READERS[found](text, start, mark, out)
        if end is None:
            position = max(mark, start + 1)
            continue
        if dialect not in (None, found) and found != "not_read" and len(out.calls) > known:
            del out.calls[known:]
            problem = f"this is how `{found}` writes calls; this model's dialect is `{dialect}`"
            out.fault("unsupported", problem, text[start:end])
        if start > kept:
            out.said += text[kept:start]
        position = kept = end
    if kept == len(text):
        return
    rest = text[kept:]
    if "<" in rest and rest.endswith(_CUT_MARKS):
        cut = max((mark for mark in _CUT_MARKS if rest.endswith(mark)), key=len)
        rest = rest.removesuffix(cut)
        out.fault("unclosed", f"the text ends within `{cut}`", cut)
    out.said += rest


def _flag_named(out: Reading) -> None:
    """Take for a faulty call what names an offered tool as a call does, in no form that is read."""
    said = out.said
    closed = max((mark.start() for mark in _CLOSED.finditer(said)), default=-1)
    for named in _names_of(tuple(spec.name for spec in out.tools)).finditer(said):
        before = said[max(0, named.start() - 80) : named.start()]
        if _IS_QUOTED.search(before) is not None:
            continue
        if (
            named.end() <= closed
            or _BEFORE_CALLED.search(before)
            or _AFTER_CALLED.match(said, named.end())
        ):
            start = said.rfind("\n", 0, named.start()) + 1
            out.said = said[:start]
            problem = f"this is no form in which `{named[0]}` can be called"
            out.fault("unsupported", problem, said[start:])
            return


@lru_cache(maxsize=64)
def _names_of(names: tuple[str, ...]) -> re.Pattern[str]:
    """Return the pattern of the tools' names as whole words."""
    return re.compile(rf"(?<![A-Za-z0-9_-])(?:{'|'.join(map(re.escape, names))})(?![A-Za-z0-9_-])")


def without_calls(text: str) -> str:
    """Blank every call that can be read, so that the thinking tags left are the model's own."""
    pieces: list[str] = []
    position = read = 0
    while read < MOST_CALLS and (match := _BEGIN.search(text, position)) is not None:
        read += 1
        start, mark = match.span()
        out = Reading("", None, ())
        try:
            end = _READERS[str(match.lastgroup)](text, start, mark, out)
        except Overfull:
            end = None
        if end is None or any(call.error is not None for call in out.calls):
            end = max(mark, start + 1)
            pieces.append(text[position:end])
        else:
            pieces += text[position:start], " " * (end - start)
        position = end
    return "".join(pieces) + text[position:]


def may_quote(text: str, end: int) -> bool:
    """Return whether a call begins before `end`, which may then be within it."""
    return _BEGIN.search(text, 0, end) is not None


def has_channels(text: str) -> bool:
    """Return whether the text keeps its thinking in gpt-oss's channels."""
    return _CHANNELS.match(text) is not None


def dialect_of(chat_template: str) -> str:
    """Find the dialect that a chat template's text teaches and writes.

    Raises:
        ValueError: it writes calls in none that is read, or none at all.
    """
    for name, dialect in DIALECTS.items():
        if dialect.template is not None and re.search(dialect.template, chat_template):
            return name
    raise ValueError(
        "the chat template writes calls in no dialect that is read: pass one of "
        f"{', '.join(DIALECTS)}, or a template with tools"
    )


# --- JSON ------------------------------------------------------------------------------------


def _read_objects(body: str, position: int, out: Reading, *, in_prose: bool = False) -> int:
    """Take the calls of the JSON objects that follow one another and return where they end.

    What is no JSON is a faulty call to where `_fault_end` says; `in_prose` it is one only where it
    begins like an object.
    """
    end = len(body)
    if not end:
        out.fault("invalid_json", "nothing between the tags", body)
    while position < end:
        start = position
        try:
            value, position = DECODER.raw_decode(body, position)
        except (ValueError, RecursionError) as error:
            position = _fault_end(body, start)
            out.fault("invalid_json", json_fault(error), body[start:position])
        else:
            call_id = f"{out.prefix}{len(out.calls)}"
            out.take(call_of(value, body[start:position], call_id))
        while position < end and body[position] in " \t\r\n,;":
            position += 1
        if in_prose and _MORE.match(body, position) is None:
            break
    return position


def _fault_end(body: str, start: int) -> int:
    """Return where JSON that cannot be read ends: at its last bracket, or before the line of the
    next call if one bracket is missing. A call within it is data of its own, such as a viewer's
    text, and no call."""
    depth, last = 0, ""
    for token in _JSON_TOKEN.finditer(body, start):
        kind = token.group().strip()
        if not kind:
            follows = body[token.start() - 1] == "\n" and last == "}"
            if token.end() > start and (not depth or (depth == 1 and follows)):
                return token.end()
            continue
        depth += (kind in "{[") - (kind in "}]")
        if kind in "}]" and depth <= 0:
            return token.end()
        if kind == '"' or depth > DEEPEST:
            break
        last = kind
    return len(body)


def _json(text: str, start: int, mark: int, out: Reading) -> int | None:
    """`{"name": ..., "arguments": {...}}` objects one after another, with text around them; Llama
    says `parameters`, and may begin with `<|python_tag|>`."""
    if text.startswith("<", start):
        return _python_tag(text, mark, out)
    if _UNUSUAL_NAME.match(text, mark) is not None and _is_record(text, mark):
        return None
    end = _read_objects(text, mark, out, in_prose=True)
    return end + len(_CLOSE) if text.startswith(_CLOSE, end) else end


def _is_record(text: str, at: int) -> bool:
    """Return whether JSON is data with names, such as products, rather than calls."""
    try:
        value, _ = DECODER.raw_decode(text, at)
    except (ValueError, RecursionError):
        return False
    items = value if isinstance(value, list) else [value]
    return all(
        isinstance(item, dict)
        and len(item) > 1
        and not item.keys() & {"arguments", "parameters", "function"}
        for item in items
    )


def _hermes(text: str, start: int, mark: int, out: Reading) -> int:
    """`<tool_call>{"name": ..., "arguments": {...}}</tool_call>`."""
    at = mark + text.startswith("\n", mark)
    try:
        value, end = DECODER.raw_decode(text, at)
    except (ValueError, RecursionError):
        close = text.find(_CLOSE, mark)
    else:
        close = end + text.startswith("\n", end)
        if text.startswith(_CLOSE, close):
            out.take(call_of(value, text[at:end], f"{out.prefix}{len(out.calls)}"))
            return close + len(_CLOSE)
        close = text.find(_CLOSE, end)
    if close < 0:
        out.fault("unclosed", f"no `{_CLOSE}`", text[mark:])
        return len(text)
    _read_objects(text[mark:close].strip(), 0, out)
    return close + len(_CLOSE)


def _python_tag(text: str, mark: int, out: Reading) -> int:
    """JSON objects or `name.call(key="value")` after Llama's tag."""
    mark = past_blanks(text, mark)
    if text[mark : mark + 1] in ("{", "["):
        return _read_objects(text, mark, out, in_prose=True)
    if NAME_AND_PAREN.match(text, mark) is None:
        code, problem = "unsupported", "only tools can be called, no code is run"
        if mark == len(text):
            code, problem = "unclosed", "nothing after `<|python_tag|>`"
        out.fault(code, problem, text[mark:])
        return len(text)
    return read_python(text, mark, out)


def _json_arguments(
    text: str, start: int, at: int, closing: re.Pattern[str], name: str, out: Reading, id_: str = ""
) -> int:
    """Take a call whose JSON arguments, maybe in a code fence, are followed by `closing`."""
    at = end = _FENCES.match(text, at).end()  # type: ignore[union-attr]
    value: object = None
    problem, cut = "there is text after the arguments", False
    if closing.match(text, at) is None:
        try:
            value, end = DECODER.raw_decode(text, at)
        except (ValueError, RecursionError) as error:
            problem, cut = json_fault(error), _is_cut(error, text)
        end = _FENCES.match(text, end).end()  # type: ignore[union-attr]
    if (closed := closing.match(text, end)) is not None and (end > at or closed.group()):
        raw = text[start : closed.end()]
        if name:
            out.add(name, value, raw, id_)
        else:
            out.fault("missing_name", "name the tool", raw)
        return closed.end()
    closed = closing.search(text, at)
    if closed is None or (cut and not closed.group()):
        out.fault("unclosed", f"the arguments do not end: {problem}", text[start:])
        return len(text)
    out.fault("invalid_json", problem, text[start : closed.end()])
    return closed.end()


def _is_cut(error: Exception, text: str) -> bool:
    """Return whether more text could have made JSON of it."""
    if not isinstance(error, json.JSONDecodeError):
        return False
    return error.msg.startswith("Unterminated") or error.pos >= len(text.rstrip())


def _deepseek(text: str, start: int, mark: int, out: Reading) -> int:
    """`<｜tool▁call▁begin｜>name<｜tool▁sep｜>{...}<｜tool▁call▁end｜>`; before V3.1 with
    `function<｜tool▁sep｜>name` and the JSON in a code fence."""
    head = _DEEPSEEK_HEAD.match(text, mark)
    if head is None:
        return _no_head(text, start, mark, "<｜tool▁sep｜>", "<｜tool▁call▁end｜>", out)
    name = head[1] if head[2] is None else head[2]
    end = _json_arguments(text, start, head.end(), _DEEPSEEK_END, name.strip(), out)
    return _DEEPSEEK_REST.match(text, end).end()  # type: ignore[union-attr]


def _kimi_k2(text: str, start: int, mark: int, out: Reading) -> int:
    """`<|tool_call_begin|>functions.name:0<|tool_call_argument_begin|>{...}<|tool_call_end|>`."""
    head = _KIMI_HEAD.match(text, mark)
    if head is None:
        return _no_head(text, start, mark, _KIMI_ARGUMENTS, "<|tool_call_end|>", out)
    name = re.sub(r":\d+$", "", head[1].strip().removeprefix("functions."))
    end = _json_arguments(text, start, head.end(), _KIMI_END, name, out, head[1].strip())
    return _KIMI_REST.match(text, end).end()  # type: ignore[union-attr]


def _no_head(text: str, start: int, mark: int, wanted: str, closing: str, out: Reading) -> int:
    """Take a call without the mark that ends its name."""
    end = text.find(closing, mark)
    code, end = ("unclosed", len(text)) if end < 0 else ("missing_name", end + len(closing))
    out.fault(code, f"no `{wanted}` after the tool's name", text[start:end])
    return end


def _gpt_oss(text: str, start: int, mark: int, out: Reading) -> int:
    """One message: `<|channel|>commentary to=functions.name <|constrain|>json<|message|>{...}`.

    The channel `analysis` is thinking, `final` and what `commentary` tells nobody are said.
    """
    header = _HARMONY_HEADER.match(text, start)
    if header is None:
        out.fault("unclosed", "no `<|message|>` after the channel", text[start:])
        return len(text)
    recipient = re.search(r"\bto=([^\s<]*)", header[1])
    thinks = re.search(r"<\|channel\|>\s*analysis", header[1]) is not None
    if recipient is not None and not thinks:
        name = recipient[1].removeprefix("functions.")
        return _json_arguments(text, start, header.end(), _HARMONY_END, name, out)
    body_end = _HARMONY_END.search(text, header.end())
    assert body_end is not None
    body = text[header.end() : body_end.start()].strip()
    if recipient is not None:
        problem = "calls go to the channel `commentary`, not to `analysis`"
        out.fault("unsupported", problem, text[start : body_end.end()])
    elif thinks:
        out.thinking = f"{out.thinking}\n{body}".strip()
    else:
        out.said = f"{out.said}\n{body}".strip()
    return body_end.end()


# --- XML -------------------------------------------------------------------------------------


class _Tags(NamedTuple):
    """How an XML dialect writes a parameter."""

    key: re.Pattern[str]
    close: re.Pattern[str]
    """The closing tag, where another parameter or the end of the call follows: values are not
    escaped, and a tag elsewhere is text of the value."""
    following: str
    name: str


def _parameters(
    text: str, position: int, tags: _Tags, properties: Mapping[str, Any] | None
) -> tuple[dict[str, Any], int]:
    """Return the parameters that begin at `position` and where they end."""
    arguments: dict[str, Any] = {}
    while (key := tags.key.match(text, position)) is not None:
        name = key[1].strip()
        if not name:
            raise Malformed("invalid_arguments", f"a `{tags.name}` has no name")
        if name in arguments:
            raise Malformed("invalid_arguments", twice([name, name]))
        following = text.find(tags.following, key.end())
        limit = len(text) if following < 0 else following + len(tags.following)
        close = tags.close.search(text, key.end(), limit)
        if close is None:
            raise Malformed("unclosed", f"`{clean_text(name)[:50]}` has no `</{tags.name}>`")
        value = text[key.end() : close.start()]
        arguments[name] = _typed(name, value, (properties or {}).get(name))
        position = close.end()
    return arguments, position


def _typed(name: str, text: str, schema: object) -> Any:
    """Return a value as its schema types it; without one, JSON that is no text, or the text."""
    kinds = _kinds(schema)
    if kinds == {"string"}:
        return text
    try:
        value = DECODER.decode(text)
    except (ValueError, RecursionError):
        value = _PYTHON_WORDS.get(text.strip(), text) if kinds else text
    if not kinds:
        return text if value is None or isinstance(value, str) else value
    if not kinds.isdisjoint(_kinds_of_value(value)):
        return value if not isinstance(value, str) else text
    if "string" in kinds:
        return text
    problem = f"`{name}`: `{clean_text(text)[:50]}` is no {' or '.join(sorted(kinds))}"
    raise Malformed("invalid_arguments", problem)


_PYTHON_WORDS = {"True": True, "False": False, "None": None}
_KINDS = frozenset({"string", "integer", "number", "boolean", "object", "array", "null"})


def _kinds(schema: object) -> frozenset[str]:
    """Return the types that a schema allows; empty if it does not say."""
    if not isinstance(schema, Mapping):
        return frozenset()
    if isinstance(given := schema.get("type"), str):
        return _KINDS & {given}
    if isinstance(given, (list, tuple)):
        return _KINDS & set(map(str, given))
    branches = schema.get("anyOf") or schema.get("oneOf") or ()
    kinds = [_kinds(branch) for branch in branches]
    return frozenset().union(*kinds) if all(kinds) else frozenset()


def _kinds_of_value(value: object) -> set[str]:
    if value is None:
        return {"null"}
    if isinstance(value, bool):
        return {"boolean"}
    if isinstance(value, (int, float)):
        return {"number", "integer"} if value == int(value) else {"number"}
    return {
        "string" if isinstance(value, str) else "object" if isinstance(value, dict) else "array"
    }


def _qwen3_coder(text: str, start: int, mark: int, out: Reading) -> int:
    """`<tool_call><function=name><parameter=key>value</parameter></function></tool_call>`; also
    `<function=name>{...}</function>`."""
    tagged = text.startswith(_OPEN, start)
    try:
        head = _FUNCTION_HEAD.match(text, mark)
        if head is None:
            raise Malformed("unclosed", "no `>` after the tool's name")
        name = head[1].strip()
        given, end = _function_body(text, head.end(), out.properties(name))
        closed = _FUNCTION_END.match(text, end)
        if closed is None:
            code = "unclosed" if text.find("</function>", end) < 0 else "invalid_arguments"
            raise Malformed(code, "`<parameter=...>` or `</function>` is needed here")
        if tagged and closed[1] is None and _FUNCTION_FOLLOWS.match(text, closed.end()) is None:
            raise Malformed("unclosed", f"no `{_CLOSE}`")
    except Malformed as error:
        closing, opening = (_CLOSE, _OPEN) if tagged else ("</function>", "<function=")
        return _give_up(error, text, start, mark, closing, opening, out)
    return _take(name, given, text, start, closed.end(), out)


def _function_body(
    text: str, position: int, properties: Mapping[str, Any] | None
) -> tuple[dict[str, Any], int]:
    at = past_blanks(text, position)
    if text[at : at + 1] != "{":
        return _parameters(text, position, _QWEN_TAGS, properties)
    try:
        return DECODER.raw_decode(text, at)
    except (ValueError, RecursionError) as error:
        code = "unclosed" if text.find("</function>", at) < 0 else "invalid_json"
        raise Malformed(code, json_fault(error)) from error


def _glm(text: str, start: int, mark: int, out: Reading) -> int:
    """`<tool_call>name\\n<arg_key>key</arg_key>\\n<arg_value>value</arg_value>\\n</tool_call>`."""
    head = _GLM_HEAD.match(text, mark)
    assert head is not None
    name = head[1].strip()
    try:
        given, end = _parameters(text, head.end(), _GLM_TAGS, out.properties(name))
        closed = _GLM_END.match(text, end)
        if closed is None:
            code = "unclosed" if text.find(_CLOSE, end) < 0 else "invalid_arguments"
            problem = f"`<arg_key>...</arg_key><arg_value>` or `{_CLOSE}` is needed here"
            raise Malformed(code, problem)
    except Malformed as error:
        return _give_up(error, text, start, mark, _CLOSE, _OPEN, out)
    return _take(name, given, text, start, closed.end(), out)


def _take(name: str, given: object, text: str, start: int, end: int, out: Reading) -> int:
    if name:
        out.add(name, given, text[start:end])
    else:
        out.fault("missing_name", "name the tool", text[start:end])
    return end


def _give_up(
    error: Malformed, text: str, start: int, mark: int, closing: str, opening: str, out: Reading
) -> int:
    """Take a faulty call that reaches to its closing tag or the next call, whichever is first."""
    code, problem = error.args
    close, following = text.find(closing, mark), text.find(opening, mark)
    end = len(text) if close < 0 else close + len(closing)
    if 0 <= following < end:
        end = following
    out.fault(code, problem, text[start:end])
    return end


def _not_read(text: str, start: int, mark: int, out: Reading) -> int:
    """Take what begins a call in a form that is not read."""
    form = text[start:mark].strip()
    out.fault("unsupported", f"calls that begin with `{form}` are not read", text[start:])
    return len(text)


# --- the table -------------------------------------------------------------------------------

_OPEN, _CLOSE = "<tool_call>", "</tool_call>"
_PLAIN = (f"{_OPEN}{{", f"{_OPEN}\n{{")
_KIMI_ARGUMENTS = "<|tool_call_argument_begin|>"
_FENCES = re.compile(r"\s*(?:```(?:json)?\s*)?")
_MORE = re.compile(r"\{|\[\s*\{")
_UNUSUAL_NAME = re.compile(r'(?:\[\s*)?\{\s*"name"\s*:\s*"(?![A-Za-z_][A-Za-z0-9_.:-]*")')

_QUOTE = r"[\"'“”＂]"
_CALL_KEY = (
    rf"{_QUOTE}(?:name|arguments|parameters|function_call|tool_calls?){_QUOTE}\s*[:：]"
    r"|\"function\"\s*:\s*\{|\"type\"\s*:\s*\"function\""
)
_LATER_KEY = (
    r'(?:"(?:id|index|type|role|content)"\s*:\s*(?:"[^"\n]*"|\d+|null)\s*,\s*){1,4}'
    r'(?:"name"\s*:\s*"[^"\n]*"\s*,\s*"(?:arguments|parameters)"\s*:|"function"\s*:\s*\{'
    r'|"(?:function_call|tool_calls)"\s*:)'
)
_JSON_BEGIN = rf"""
    (?:^|(?<=think>))[ \t]*(?=(?:\[\s*)?[{{｛]{{1,2}}\s*(?:{_CALL_KEY}|{_LATER_KEY}))
    | (?:(?<=[\w。！？；：，、～…）】.!?;~)>☀-➿🌀-🫿])|(?<=[^"]:))[ \t]*
      (?=\{{\s*"name"\s*:\s*"[^"]*"\s*,\s*"(?:arguments|parameters)"\s*:)
"""
"""A line, or what follows words (我来查：{"name": ...}) and is no quotation."""
_JSON_TOKEN = re.compile(
    rf'(?:{_JSON_BEGIN})|"(?:[^"\\\n]|\\.)*+"|[{{}}\[\]"]', re.MULTILINE | re.VERBOSE
)

_QWEN_TAGS = _Tags(
    re.compile(r"\s*<parameter=([^<>\n]*)>\n?"),
    re.compile(r"\n?</parameter>(?=\s*(?:<parameter=|</function>))"),
    "<parameter=",
    "parameter",
)
_FUNCTION_HEAD = re.compile(r"([^<>\n]*)>")
_FUNCTION_END = re.compile(rf"\s*</function>(\s*{_CLOSE})?")
_FUNCTION_FOLLOWS = re.compile(r"\s*<function=")
_GLM_TAGS = _Tags(
    re.compile(r"\s*<arg_key>([^<>]*)</arg_key>\s*<arg_value>"),
    re.compile(rf"</arg_value>(?=\s*(?:<arg_key>|{_CLOSE}))"),
    "<arg_key>",
    "arg_value",
)
_GLM_HEAD = re.compile(r"\s*([^<\n]*)")
_GLM_END = re.compile(rf"\s*{_CLOSE}")

_DEEPSEEK_HEAD = re.compile(r"([^<]*)<｜tool▁sep｜>(?:([^\n`{<]*)\n(?=```))?")
_DEEPSEEK_END = re.compile(r"<｜tool▁call▁end｜>")
_DEEPSEEK_REST = re.compile(r"(?:\s*<｜tool▁calls▁end｜>)?")
_KIMI_HEAD = re.compile(rf"([^<]*){re.escape(_KIMI_ARGUMENTS)}")
_KIMI_END = re.compile(r"<\|tool_call_end\|>")
_KIMI_REST = re.compile(r"(?:\s*<\|tool_calls?_section_end\|>)?")
_CHANNELS = re.compile(r"\s*(?:<\|start\|>\s*assistant|<\|channel\|>|to=[^\s<]+\s*<\|channel\|>)")
_HARMONY_HEADER = re.compile(r"((?:[^<]++|<\|(?:start|channel|constrain)\|>)*+)<\|message\|>")
_HARMONY_END = re.compile(r"<\|(?:end|call|return)\|>|(?=<\|(?:start|channel)\|>)|\Z")

_BEFORE_CALLED = re.compile(
    r"<(?:[A-Za-z_]\w*(?:\s+\w+)?\s*=\s*)?[\"']?\Z"
    r"|<(?:\w*name|tool|function)>\s*\Z|[|｜][>＞]\s*\Z"
    r"|(?:[\"'”]|[{,]\s*\w+)\s*[:：]\s*[\"']\Z"
    r"|^(?:Action|行动)\s*[:：]\s*\Z",
    re.MULTILINE,
)
_AFTER_CALLED = re.compile(
    r"[\"'`]?\s*[:：]?\s*(?:```\w*\s*)?[{｛]\s*[\"'“}]"
    r"|\(\s*(?:[A-Za-z_]\w*\s*[=:]|[\"'“{\[)])"
    r"|\[[^\[\]]*\]\s*\Z"
    r"|[\"”']?\s*[,，]\s*[\"“'](?:arguments|parameters)[\"”']"
)
"""What stands before or after the name of a tool that is called: it is in a tag, a value or a key
of JSON, or a function."""
_CLOSED = re.compile(r"</(?:tool_call|function|parameter|arg_value)>|(?:call[_▁]end|\|call)[|｜]>")
_IS_QUOTED = re.compile("[“‘「『][^”’」』]*\\Z")
"""In quotation marks, a name is a viewer's text."""


DIALECTS: dict[str, Dialect] = {
    "qwen3_coder": Dialect(
        rf"{_OPEN}\s*<function=|<function=(?=[^\s<>=]*(?:>|\Z))",
        _qwen3_coder,
        r"<function=[^>]*>[\s\S]*<parameter=",
    ),
    "glm": Dialect(
        rf"{_OPEN}(?=\s*[A-Za-z_][\w.-]*\s*(?:{_CLOSE}|\Z)|[^<>{{}}\n]*\s*<arg_key>)",
        _glm,
        r"<arg_key>",
    ),
    "deepseek": Dialect(
        r"<｜tool▁calls▁begin｜>(?:\s*<｜tool▁call▁begin｜>)?|<｜tool▁call▁begin｜>",
        _deepseek,
        r"<｜tool▁call▁begin｜>",
    ),
    "kimi_k2": Dialect(
        r"<\|tool_calls?_section_begin\|>(?:\s*<\|tool_call_begin\|>)?|<\|tool_call_begin\|>",
        _kimi_k2,
        re.escape(_KIMI_ARGUMENTS),
    ),
    "gpt_oss": Dialect(
        r"<\|start\|>\s*assistant"
        r"|(?<!\S)to=[^\s<]+\s*<\|channel\|>"
        r"|<\|channel\|>(?=\s*(?:analysis|commentary|final|[a-z]*\Z))",
        _gpt_oss,
        r"<\|channel\|>[\s\S]*functions\.|functions\.[\s\S]*<\|channel\|>",
    ),
    "pythonic": Dialect(
        rf"{re.escape(LFM2_OPEN)}"
        r"|(?:^|(?<=think>))[ \t]*(?=(?:\[\s*)?[A-Za-z_][A-Za-z0-9_.]*\()"
        r"|(?<![\w\]“‘\"'`「『])(?=\[\s*[A-Za-z_][A-Za-z0-9_.]*\(\s*[^\W\d]\w*\s*=(?![=>]))",
        read_pythonic,
        r"<\|tool_call_start\|>|<\|tool_list_start\|>|\[func_name1\(",
    ),
    "hermes": Dialect(_OPEN, _hermes, rf"{_OPEN}(?![\s\S]*<tool_sep>)"),
    "json": Dialect(_JSON_BEGIN.strip(), _json),
    "llama": Dialect(
        rf"<\|python_tag\|>|{_JSON_BEGIN.strip()}",
        _json,
        r"<\|python_tag\|>|\"name\": function name, \"parameters\":",
    ),
}
"""The dialects by name; where two begin alike, the first is tried first."""

_FORMS_NOT_READ = (
    r"(?i:[<＜\[][|｜]?\s*tool[_▁\ -]?calls?(?:[_▁](?:begin|start))?\s*[|｜]?[>＞\]])|✿FUNCTION✿"
    r"|<\|tool_call>|<\|action_start\|>|<\|START_ACTION\|>"
    r"|<\w+:(?:tool_call|function_calls)>|<function_calls?>|<(?:invoke|parameter)\ name=|<｜DSML｜"
    r"|(?i:<\s*tool[_\ -]?calls?\s*>)|(?<!\S)to=functions\.|^functools(?=\[)"
    r"|<parameter=[^\s<>]+>|<arg_key>|<｜tool▁sep｜>|<\|tool_call_argument_begin\|>"
    r"|^Action:(?=[^\n]*\n+Action\ Input:)"
)
"""Mistral, Gemma 4, Granite, InternLM, Command R, MiniMax, DeepSeek V3.2, a tag misspelt, gpt-oss
without its special tokens, Phi-4, calls without their beginning, ReAct."""


def _compiled(*first: str) -> re.Pattern[str]:
    names = (*first, *(name for name in DIALECTS if name not in first))
    forms = [f"(?P<{name}>{DIALECTS[name].begin})" for name in names]
    forms.append(f"(?P<not_read>{_FORMS_NOT_READ})")
    return re.compile("|".join(forms), re.MULTILINE | re.VERBOSE)


_BEGIN = _compiled()
_READERS: dict[str, Reader] = {
    **{name: dialect.read for name, dialect in DIALECTS.items()},
    "not_read": _not_read,
}


@cache
def _begin_of(dialect: str) -> re.Pattern[str]:
    """Return the pattern that tries a named dialect first."""
    if dialect not in DIALECTS:
        hint = did_you_mean(dialect, DIALECTS)
        raise ValueError(f"no dialect `{dialect}`; there are {', '.join(DIALECTS)}.{hint}")
    return _compiled(dialect)


_CUT_MARKS = tuple(
    mark[:length]
    for mark in (
        *(_OPEN, "<function=", "<|python_tag|>", LFM2_OPEN, "<|start|>assistant", "<|channel|>"),
        *("<｜tool▁calls▁begin｜>", "<｜tool▁call▁begin｜>"),
        *("<|tool_calls_section_begin|>", "<|tool_call_begin|>"),
    )
    for length in range(5, len(mark))
)
"""Beginnings of marks, as a text ends that was cut within one."""
