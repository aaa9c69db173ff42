"""What chat endpoints answer: completions and errors, read from HTTP responses."""

from __future__ import annotations

import json
import re
from dataclasses import dataclass
from typing import Any, Literal, NamedTuple

import httpx

_NO_QUOTA = re.compile(
    r"insufficient[_ ](quota|balance|funds|credit)|billing_hard_limit|arrearage|欠费|余额不足", re.I
)
_RATE_LIMIT = re.compile(r"^429\b|rate[_ -]?limit", re.I)
_FILTERED = re.compile(
    r"content[_ ]?(filter|policy)|data_?inspection_?failed|responsible_?ai|sensitive_content"
    r"|\b1301\b",
    re.I,
)
ErrorKind = Literal["refused", "passing", "lasting"]


class Usage(NamedTuple):
    """Tokens of one answer; `None` where the endpoint gave no number that can be one."""

    prompt_tokens: int | None
    completion_tokens: int | None


@dataclass(frozen=True, slots=True)
class Completion:
    """One answer of a chat endpoint."""

    message: dict[str, Any]
    """The assistant message as it came, tool calls and `reasoning_content` included."""
    finish_reason: str | None
    usage: Usage
    model: str
    """The model that answered, in the endpoint's words."""
    request_id: str | None

    @property
    def text(self) -> str:
        """The content as text; empty where there is none."""
        content = self.message.get("content")
        if isinstance(content, list):
            parts = [part.get("text") for part in content if isinstance(part, dict)]
            return "".join(part for part in parts if isinstance(part, str))
        return content if isinstance(content, str) else ""


class Told(NamedTuple):
    """An error as an endpoint tells it."""

    status: int
    """The HTTP status; 429 where the body alone tells of a rate limit."""
    code: str | None
    text: str
    kind: ErrorKind
    """`refused` by a content filter, `passing` with time, or `lasting`."""


def json_body(response: httpx.Response) -> dict[str, Any]:
    """Return the JSON object of a response; empty where there is none."""
    try:
        body = json.loads(response.content)
    except (ValueError, RecursionError):
        return {}
    return body if isinstance(body, dict) else {}


def error_of(response: httpx.Response, body: dict[str, Any]) -> Told | None:
    """Return the error that a response tells, in its status or in its body; `None` for none."""
    error = body.get("error")
    if not error and "choices" not in body:
        error = body
    codes, said = _codes_and_text(error)
    if response.is_success and not codes:
        return None
    status = 429 if _RATE_LIMIT.search(codes) else response.status_code
    text = said or response.text
    return Told(status, codes or None, text, _kind(status, codes, text))


def _kind(status: int, codes: str, text: str) -> ErrorKind:
    if _FILTERED.search(codes) or (status == 400 and _FILTERED.search(text)):
        return "refused"
    may_pass = status == 429 or (status >= 500 and status != 501)
    return "passing" if may_pass and not _NO_QUOTA.search(f"{codes} {text}") else "lasting"


def _codes_and_text(error: object) -> tuple[str, str]:
    if isinstance(error, str):
        return "error", error
    if not isinstance(error, dict):
        return "", ""
    inner = error.get("innererror")
    told = [error.get("code"), error.get("type")]
    told += [inner.get("code")] if isinstance(inner, dict) else []
    codes = dict.fromkeys(str(one) for one in told if isinstance(one, (str, int)))
    said = error.get("message")
    return " ".join(codes), said if isinstance(said, str) else ""


def first_choice(body: dict[str, Any]) -> dict[str, Any] | None:
    """Return the first choice that has a message."""
    choices = body.get("choices")
    first = choices[0] if isinstance(choices, list) and choices else None
    is_choice = isinstance(first, dict) and isinstance(first.get("message"), dict)
    return first if is_choice else None


def usage_of(body: dict[str, Any]) -> Usage:
    """Return what an answer says that it took."""
    usage = body.get("usage")
    counts = usage if isinstance(usage, dict) else {}
    return Usage(_tokens(counts.get("prompt_tokens")), _tokens(counts.get("completion_tokens")))


def _tokens(value: object) -> int | None:
    is_count = isinstance(value, int) and not isinstance(value, bool) and value >= 0
    return value if is_count else None  # type: ignore[return-value]
