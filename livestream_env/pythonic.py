"""Calls written as Python: read by `ast`, literals only, never run."""

from __future__ import annotations

import ast
import math
import re
from typing import Any

from livestream_env.calls import (
    DEEPEST,
    SCALARS,
    Reading,
    json_fault,
    pairs_of,
    past_blanks,
    twice,
)
from livestream_env.words import clean_text

LFM2_OPEN, _LFM2_CLOSE = "<|tool_call_start|>", "<|tool_call_end|>"
NAME_AND_PAREN = re.compile(r"([A-Za-z_][A-Za-z0-9_.]*)\(\s*(?:[^\W\d]\w*\s*(=)(?![=>])|([)'\"]))?")
_FURTHER = re.compile(r"[ \t]*[,;][ \t]*(?=[A-Za-z_][A-Za-z0-9_.]*\(\s*[^\W\d]\w*\s*=(?![=>]))")
_LINE_END = re.compile(rf"[ \t;,]*(?:\n|\Z)|{_FURTHER.pattern}")
_STRING = r"'(?:[^'\\\n]|\\.)*+'|\"(?:[^\"\\\n]|\\.)*+\""
_PYTHON_TOKEN = re.compile(rf"{_STRING}|[()\[\]{{}},'\"]", re.DOTALL)
_PYTHON_STRING = re.compile(rf"([A-Za-z]*)(?:{_STRING})", re.DOTALL)
_ESCAPE = re.compile(r"\\(.)", re.DOTALL)
_ESCAPES = "\\'\"abfnrtvxuUN01234567\n"


def read_pythonic(text: str, start: int, mark: int, out: Reading) -> int | None:
    """`[name(key='value'), other(n=1)]`, or one call a line; literals only."""
    if text.startswith(LFM2_OPEN, start):
        end = read_python(text, past_blanks(text, mark), out)
        at = past_blanks(text, end)
        return at + len(_LFM2_CLOSE) if text.startswith(_LFM2_CLOSE, at) else end
    if out.dialect != "pythonic" and not _is_python(text, mark, out):
        return None
    end = read_python(text, mark, out)
    while (further := _FURTHER.match(text, end)) is not None:
        end = read_python(text, further.end(), out)
    return end


def _is_python(text: str, at: int, out: Reading) -> bool:
    """Return whether what begins like a call is one, rather than a size as in `XL(180)`."""
    listed = text.startswith("[", at)
    head = NAME_AND_PAREN.match(text, past_blanks(text, at + 1) if listed else at)
    assert head is not None
    name, first = head[1], head[2] or head[3]
    if any(spec.name == name for spec in out.tools):
        return True
    if not listed and text.count("```", 0, at) % 2 and not _is_fence_of_calls(text, at):
        return False
    _, end, _ = _elements(text, at)
    if end is None:
        return first == "=" or (listed and (bool(first) or "_" in name))
    if listed:
        return bool(first)
    alone = _LINE_END.match(text, end) is not None
    return alone and (first == "=" or (bool(first) and name.islower()))


def _is_fence_of_calls(text: str, at: int) -> bool:
    """Return whether the code fence around `at` holds calls alone, and no program."""
    begun, ended = text.rfind("```", 0, at), text.find("```", at)
    lines = text[begun : ended if ended >= 0 else len(text)].split("\n")[1:]
    return all(NAME_AND_PAREN.match(line) for line in lines if line.strip())


def _elements(text: str, at: int) -> tuple[list[str], int | None, str]:
    """Split a list of calls, or take one call, by brackets and quotes.

    Returns:
        The calls' texts, where they end (`None`: they do not), and then why.
    """
    listed = text.startswith("[", at)
    depth, begun = 0, at + listed
    pieces: list[str] = []
    for token in _PYTHON_TOKEN.finditer(text, at):
        kind = token.group()
        if kind in ("(", "[", "{"):
            depth += 1
            if depth > DEEPEST + 2:
                return pieces, None, "nested too deeply"
        elif kind in (")", "]", "}"):
            depth -= 1
            if not depth:
                piece = text[begun : token.start() if listed else token.end()]
                if piece.strip() or not pieces:
                    pieces.append(piece)
                return pieces, token.end(), ""
        elif kind == "," and depth == 1 and listed:
            pieces.append(text[begun : token.start()])
            begun = token.end()
        elif kind in ("'", '"'):
            return pieces, None, "a quote is not closed"
    return pieces, None, "a bracket is not closed"


def read_python(text: str, at: int, out: Reading) -> int:
    """Take the calls of the list, or the one call, that begins at `at`; return where it ends."""
    pieces, end, fault = _elements(text, at)
    if end is None:
        code = "invalid_arguments" if fault == "nested too deeply" else "unclosed"
        out.fault(code, fault, text[at:])
        return len(text)
    for piece in pieces:
        try:
            name, arguments = _python_call(piece, out)
        except (RecursionError, MemoryError):
            out.fault("invalid_arguments", "nested too deeply", piece)
        except (SyntaxError, ValueError) as error:
            problem = error.msg if isinstance(error, SyntaxError) else json_fault(error)
            out.fault("invalid_arguments", problem, piece)
        else:
            out.add(name, arguments, piece)
    return end


def _python_call(source: str, out: Reading) -> tuple[str, dict[str, Any]]:
    node = ast.parse(_PYTHON_STRING.sub(_escaped, source.strip()), mode="eval").body
    if not isinstance(node, ast.Call):
        raise ValueError("a call is `name(key=value)`")
    name = _dotted(node.func).removesuffix(".call")
    keys = [keyword.arg for keyword in node.keywords]
    given = [keyword.value for keyword in node.keywords]
    if node.args:
        known = out.properties(name)
        if known is None or len(known) != 1 or len(node.args) != 1:
            raise ValueError("arguments are given by name: `name(key=value)`")
        keys, given = [*known, *keys], [*node.args, *given]
    names = [key for key in keys if key is not None]
    if len(names) != len(keys):
        raise ValueError("`**` is no literal")
    if len(set(names)) != len(names):
        raise ValueError(twice(names))
    return name, dict(zip(names, map(_literal, given), strict=True))


def _dotted(node: ast.expr) -> str:
    if isinstance(node, ast.Attribute):
        return f"{_dotted(node.value)}.{node.attr}"
    if not isinstance(node, ast.Name):
        raise ValueError("a call begins with the tool's name")
    return node.id


_JSON_WORDS = {"true": True, "false": False, "null": None}


def _literal(node: ast.expr) -> Any:
    if isinstance(node, ast.Constant) and type(node.value) in SCALARS:
        if node.value == math.inf:
            raise ValueError("a number is too large")
        return node.value
    if isinstance(node, (ast.List, ast.Tuple)):
        return [_literal(item) for item in node.elts]
    if isinstance(node, ast.Dict):
        keys: list[Any] = [None if key is None else _literal(key) for key in node.keys]
        if not all(isinstance(key, str) for key in keys):
            raise ValueError("the keys of an object are strings")
        return pairs_of(list(zip(keys, map(_literal, node.values), strict=True)))
    if isinstance(node, ast.UnaryOp) and isinstance(node.op, (ast.USub, ast.UAdd)):
        value = _literal(node.operand)
        if type(value) in (int, float):
            return -value if isinstance(node.op, ast.USub) else value
    if isinstance(node, ast.Name) and node.id in _JSON_WORDS:
        return _JSON_WORDS[node.id]
    raise ValueError(f"`{clean_text(ast.unparse(node))[:50]}` is no literal")


def _escaped(string: re.Match[str]) -> str:
    """Double the backslashes that escape nothing, as Python reads them, without its warning."""
    if string[1]:
        return string[0]
    return _ESCAPE.sub(lambda m: m[0] if m[1] in _ESCAPES else f"\\{m[0]}", string[0])
