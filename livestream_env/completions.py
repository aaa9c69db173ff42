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
_SAID = ("text", "output_text")
_TOKEN_ID = re.compile(r"token_id:\d{1,18}")
ErrorKind = Literal["refused", "passing", "lasting"]


class Usage(NamedTuple):
    """Tokens of one answer; `None` where the endpoint gave no number that can be one."""

    prompt_tokens: int | None
    completion_tokens: int | None


class Tokens(NamedTuple):
    """The tokens of one answer; each is `None` where the endpoint does not tell them."""

    token_ids: tuple[int, ...] | None = None
    """Sampled ids, shape (N,), the end-of-turn token included where it was sampled."""
    logprobs: tuple[float, ...] | None = None
    """Log-probabilities of `token_ids`, shape (N,)."""
    prompt_ids: tuple[int, ...] | None = None
    """Ids that the model was given, shape (P,)."""


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
    tokens: Tokens

    @property
    def text(self) -> str:
        """The content as text; empty where there is none. Thinking is no part of it."""
        content = self.message.get("content")
        if isinstance(content, list):
            shown = [part for part in content if isinstance(part, dict)]
            parts = [part.get("text") for part in shown if part.get("type", "text") in _SAID]
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


def is_refused(choice: dict[str, Any]) -> bool:
    """Return whether a content filter, or a refusal of the model's, stands in an answer's place."""
    reason, refusal = choice.get("finish_reason"), choice["message"].get("refusal")
    return reason == "content_filter" or isinstance(refusal, str)


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


def tokens_of(body: dict[str, Any], choice: dict[str, Any]) -> Tokens:
    """Return the token ids and logprobs of an answer, as vLLM and SGLang tell them.

    vLLM: `prompt_token_ids` beside the choices and `token_ids` in the choice, or, in its older
    form, logprobs whose tokens are called `token_id:N`. SGLang: `meta_info.output_token_logprobs`,
    rows of logprob, id and text, and `prompt_token_ids` in the choice.
    """
    logprobs, meta = choice.get("logprobs"), choice.get("meta_info")
    entries = _listed(logprobs, "content", dict)
    rows = [row for row in _listed(meta, "output_token_logprobs", list) if len(row) > 1]
    names = [str(entry.get("token")) for entry in entries]
    values = [entry.get("logprob") for entry in entries]
    ids = _ids(choice.get("token_ids"))
    if ids is None and rows:
        ids, values = _ids([row[1] for row in rows]), [row[0] for row in rows]
    elif ids is None and names and all(map(_TOKEN_ID.fullmatch, names)):
        ids = tuple(int(name.removeprefix("token_id:")) for name in names)
    given = body.get("prompt_token_ids") or choice.get("prompt_token_ids")
    return Tokens(ids, None if ids is None else _logprobs(values, len(ids)), _ids(given))


def _listed(value: object, key: str, kind: type) -> list[Any]:
    """Return the list under `key`; empty where it is none, or not all of it is of this kind."""
    listed = value.get(key) if isinstance(value, dict) else None
    fits = isinstance(listed, list) and all(isinstance(item, kind) for item in listed)
    return listed if fits else []  # type: ignore[return-value]


def _ids(value: object) -> tuple[int, ...] | None:
    is_ids = isinstance(value, list) and all(type(item) is int and item >= 0 for item in value)
    return tuple(value) if value and is_ids else None  # type: ignore[arg-type]


def _logprobs(values: list[Any], length: int) -> tuple[float, ...] | None:
    known = all(type(value) in (int, float) and value == value for value in values)
    return tuple(map(float, values)) if known and len(values) == length else None


def _tokens(value: object) -> int | None:
    is_count = isinstance(value, int) and not isinstance(value, bool) and value >= 0
    return value if is_count else None  # type: ignore[return-value]
