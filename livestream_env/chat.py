"""The one client of OpenAI-compatible chat endpoints, sync and async.

All requests of a process run in its background loop, so one client may be shared by threads, by
any number of `asyncio.run` and, each process with connections of its own, by forks. Connection
failures, 429 and 5xx are tried again, with the waits that the endpoint asks for; everything else
is raised at once. Secrets come from environment variables when a request is made: none is in the
client, its repr, a pickle or an error.
"""

from __future__ import annotations

import asyncio
import json
import os
import random
import ssl
import time
import weakref
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from hashlib import sha256
from itertools import count
from pathlib import Path
from typing import Any, Literal, NoReturn

import httpx

from livestream_env._resources import cache_folder
from livestream_env.background import background_loop, run_in_background, wait_in_background
from livestream_env.completions import (
    Completion,
    Told,
    error_of,
    first_choice,
    is_refused,
    json_body,
    tokens_of,
    usage_of,
)
from livestream_env.endpoints import (
    above_zero,
    certificates,
    checked_url,
    is_loopback,
    retry_after_s,
    scrubbed,
    secret_headers,
)
from livestream_env.errors import ChatError, ChatRefused, ChatTimeout
from livestream_env.rates import take_turn

JsonMode = Literal["json_schema", "json_object", "text"]
ChatMessage = Mapping[str, Any]

CONNECTIONS = 256
LONGEST_BACKOFF_S = 30.0
_JITTER = random.SystemRandom()


@dataclass(slots=True)
class _Process:
    """What a client has in one process; lives in the background loop."""

    http: httpx.AsyncClient
    places: asyncio.Semaphore
    """One a connection: requests queue here, since the pool goes through its queue at each one."""
    not_before_s: float = 0.0
    """Monotonic time until which the endpoint wants no request."""
    probe: asyncio.Task[JsonMode] | None = None


class ChatClient:
    """A model behind an OpenAI-compatible endpoint."""

    def __init__(
        self,
        base_url: str,
        model: str,
        *,
        token_env: str | None = None,
        headers_env: Mapping[str, str] | None = None,
        verify: Literal[True] | str | os.PathLike[str] = True,
        timeout_s: float = 60.0,
        total_timeout_s: float = 180.0,
        retries: int = 3,
        backoff_s: float = 0.5,
        requests_per_minute: float | None = None,
        transport: httpx.AsyncBaseTransport | None = None,
    ) -> None:
        """Make a client; nothing is connected yet.

        `token_env` names the environment variable that holds the bearer token, `headers_env` maps
        header names to such variables. `verify` may name a file of certificates. `timeout_s` bounds
        one try, `total_timeout_s` all of them with their waits, and the wait for one of the
        `CONNECTIONS` before. `requests_per_minute` is shared by the processes of this host that ask
        the same model there.

        Raises:
            ValueError: the URL is none, or holds a secret; a limit is not above 0.
            ChatError: a named environment variable is not set.
            FileNotFoundError: there are no certificates.
        """
        self.base_url, self._url = _checked_url(base_url)
        self.model = model
        self.timeout_s = above_zero("timeout_s", timeout_s)
        self.total_timeout_s = above_zero("total_timeout_s", total_timeout_s)
        self.retries = retries
        self.json_mode_found: JsonMode | None = None
        """The way of asking for JSON that this endpoint takes, once it was tried."""
        self._backoff_s = backoff_s
        self._secrets = dict(headers_env or {})
        self._token_env = token_env
        self._verify = verify if verify is True else certificates(verify)
        self._transport = transport
        self._interval_s = 0.0
        if requests_per_minute is not None:
            self._interval_s = 60 / above_zero("requests_per_minute", requests_per_minute)
        self._processes: dict[int, _Process] = {}
        self._headers()

    def __repr__(self) -> str:
        return f"ChatClient({self.base_url!r}, {self.model!r})"

    @property
    def endpoint(self) -> str:
        """The URL that is asked, in one spelling, with the query that `base_url` does not show."""
        return str(self._url)

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_processes": {}}

    def __enter__(self) -> ChatClient:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Close this process's connections; the next request opens new ones."""
        process = self._processes.pop(os.getpid(), None)
        if process is not None:
            run_in_background(process.http.aclose())

    def complete(self, messages: Sequence[ChatMessage], **options: Any) -> Completion:
        """Ask for one answer; `options` go into the request (`temperature`, `tools`, ...).

        Raises:
            ChatRefused: a content filter, or the model, refused; not tried again.
            ChatTimeout: no answer within the time limits.
            ChatError: any other failure, after the tries that make sense.
        """
        return run_in_background(self._complete(messages, options))

    async def acomplete(self, messages: Sequence[ChatMessage], **options: Any) -> Completion:
        """Ask for one answer; as `complete`."""
        return await wait_in_background(self._complete(messages, options))

    def json_mode(self) -> JsonMode:
        """Return the way of asking for JSON that this endpoint takes, as `ajson_mode`."""
        return run_in_background(self._json_mode())

    async def ajson_mode(self) -> JsonMode:
        """Return the way of asking for JSON that this endpoint takes.

        The first call tries a tiny question, with a schema and, only where that is refused or
        ignored, as a JSON object; the answer is remembered.
        """
        return await wait_in_background(self._json_mode())

    # --- one request, in the background loop ---

    async def _complete(
        self, messages: Sequence[ChatMessage], options: Mapping[str, Any]
    ) -> Completion:
        if options.get("stream"):
            raise ValueError("`stream=True` is not supported: answers come whole")
        payload = {"model": self.model, "messages": list(messages), **options}
        body = json.dumps(payload, ensure_ascii=False, allow_nan=False).encode("utf-8", "replace")
        places = self._process().places
        try:
            async with asyncio.timeout(self.total_timeout_s):
                await places.acquire()
        except TimeoutError as error:
            raise ChatTimeout(
                f"all {CONNECTIONS} connections of this client to {self.base_url} stayed in use for"
                f" {self.total_timeout_s:g} s: the client pool is full, the endpoint may be well"
            ) from error
        try:
            async with asyncio.timeout(self.total_timeout_s):
                return await self._tried(body, time.monotonic() + self.total_timeout_s)
        except TimeoutError as error:
            if isinstance(error, ChatTimeout):
                raise
            raise ChatTimeout(
                f"{self.base_url} gave no answer within `total_timeout_s` of"
                f" {self.total_timeout_s:g} s, tries and waits included"
            ) from error
        finally:
            places.release()

    async def _tried(self, body: bytes, deadline: float) -> Completion:
        """Send the request until an answer stands or trying again makes no sense."""
        for attempt in count():
            await self._wait_for_turn(deadline)
            try:
                return self._read(await self._send(body))
            except _Again as again:
                if attempt >= self.retries:
                    raise again.error from again.__cause__
                wait_s = self._pause_s(again, attempt, deadline)
            await asyncio.sleep(wait_s)
        raise AssertionError("`count` has no end")

    def _pause_s(self, again: _Again, attempt: int, deadline: float) -> float:
        """Return the wait before the next try; one that was asked for holds for all requests."""
        now = time.monotonic()
        backoff_s = min(self._backoff_s * 2**attempt, LONGEST_BACKOFF_S)
        wait_s = backoff_s if again.after_s is None else again.after_s
        wait_s += _JITTER.uniform(0, backoff_s / 2)
        if now + wait_s > deadline:
            raise ChatTimeout(
                f"{again.error}; the next try would be in {wait_s:.1f} s, past `total_timeout_s` of"
                f" {self.total_timeout_s:g}",
                status=again.error.status,
                code=again.error.code,
            ) from again.error
        if again.after_s is not None:
            self._process().not_before_s = now + again.after_s
        return wait_s

    async def _wait_for_turn(self, deadline: float) -> None:
        """Wait until the endpoint and the requests a minute of this host allow a request."""
        await asyncio.sleep(max(0.0, self._process().not_before_s - time.monotonic()))
        if not self._interval_s:
            return
        name = sha256(f"{self.base_url}\n{self.model}".encode()).hexdigest()[:16]
        longest_s = deadline - time.monotonic()
        wait_s = await asyncio.to_thread(
            take_turn, cache_folder() / "rates.sqlite", name, self._interval_s, longest_s
        )
        if wait_s is None:
            raise ChatTimeout(
                f"other requests of this host to {self.base_url} take all of the next"
                f" {longest_s:.1f} s at `requests_per_minute={60 / self._interval_s:g}`"
            )
        await asyncio.sleep(wait_s)

    async def _send(self, body: bytes) -> httpx.Response:
        headers = {**self._headers(), "Content-Type": "application/json"}
        try:
            return await self._process().http.post(self._url, content=body, headers=headers)
        except (httpx.ConnectError, httpx.ConnectTimeout) as error:
            raise _Again(self._failure(error, "connection")) from error
        except httpx.TimeoutException as error:
            raise ChatTimeout(
                f"{self.base_url} sent nothing for `timeout_s` of {self.timeout_s:g} s"
            ) from error
        except (httpx.NetworkError, httpx.RemoteProtocolError, httpx.ProxyError) as error:
            # asking again changes nothing at the endpoint, unlike a tool that may have run
            raise _Again(self._failure(error, "connection_lost")) from error
        except httpx.HTTPError as error:
            raise self._failure(error, "connection") from error

    def _failure(self, error: httpx.HTTPError, code: str) -> ChatError:
        text = self._scrubbed(str(error)) or type(error).__name__
        return ChatError(f"connection to {self.base_url} failed: {text}", code=code)

    def _read(self, response: httpx.Response) -> Completion:
        """Return the answer in a response.

        Raises:
            _Again: the endpoint failed, or asks to wait.
        """
        body = json_body(response)
        told = error_of(response, body)
        if told is not None:
            self._raise_for(told, response)
        choice = first_choice(body)
        if choice is None:
            raise self._bad_answer(response)
        return self._completion(response, body, choice)

    def _raise_for(self, told: Told, response: httpx.Response) -> NoReturn:
        said = self._scrubbed(told.text)[:300] or "no text"
        text = f"{self.base_url} answered {told.status} {told.code or '-'}: {said}"
        if told.kind == "refused":
            raise ChatRefused(text, status=told.status, code=told.code)
        error = ChatError(text, status=told.status, code=told.code)
        if told.kind == "passing":
            raise _Again(error, retry_after_s(response.headers, time.time()))
        raise error

    def _completion(
        self, response: httpx.Response, body: dict[str, Any], choice: dict[str, Any]
    ) -> Completion:
        message, reason = choice["message"], choice.get("finish_reason")
        if is_refused(choice):
            refusal = message.get("refusal")
            why = f": {self._scrubbed(refusal)[:300]}" if refusal else " by its content filter"
            raise ChatRefused(
                f"{self.base_url} refused{why}", status=response.status_code, code="content_filter"
            )
        request_id = response.headers.get("x-request-id") or body.get("id")
        return Completion(
            message=message,
            finish_reason=reason if isinstance(reason, str) else None,
            usage=usage_of(body),
            model=body["model"] if isinstance(body.get("model"), str) else self.model,
            request_id=request_id if isinstance(request_id, str) else None,
            tokens=tokens_of(body, choice),
        )

    def _bad_answer(self, response: httpx.Response) -> ChatError:
        kind = response.headers.get("content-type", "no content type")
        shown = self._scrubbed(response.text[:200])
        return ChatError(
            f"{self.base_url} answered {response.status_code} ({kind}) with what is no chat"
            f" completion: {shown or 'nothing'}",
            status=response.status_code,
            code="bad_answer",
        )

    # --- ways of asking for JSON ---

    async def _json_mode(self) -> JsonMode:
        if self.json_mode_found is not None:
            return self.json_mode_found
        process = self._process()
        if process.probe is None or process.probe.done():
            process.probe = asyncio.create_task(self._probe())
        return await asyncio.shield(process.probe)

    async def _probe(self) -> JsonMode:
        self.json_mode_found = found = await self._accepted_mode()
        return found

    async def _accepted_mode(self) -> JsonMode:
        modes: tuple[JsonMode, ...] = ("json_schema", "json_object")
        for mode in modes:
            try:
                asked = response_format(mode, "probe", _PROBE_SCHEMA)
                answer = await self._complete(_PROBE, {**asked, "max_tokens": 512})
            except ChatError as error:
                if error.status in (400, 404, 415, 422, 501):
                    continue
                raise
            if _is_json_object(answer.text):
                return mode
        return "text"

    # --- what is made when it is needed ---

    def _process(self) -> _Process:
        pid = os.getpid()
        if pid not in self._processes:  # a fork leaves its parent's connections alone
            self._processes[pid] = _Process(self._made_http(), asyncio.Semaphore(CONNECTIONS))
            weakref.finalize(self, _abandon, pid, self._processes[pid].http).atexit = False
        return self._processes[pid]

    def _made_http(self) -> httpx.AsyncClient:
        here = is_loopback(self._url.host)
        plain = here and self._url.scheme == "http"  # reading certificates for nothing takes 25 ms
        verify: ssl.SSLContext | bool = not plain
        if isinstance(self._verify, Path):
            verify = ssl.create_default_context(cafile=str(self._verify))
        return httpx.AsyncClient(
            verify=verify,
            transport=self._transport,
            trust_env=not here,
            timeout=self.timeout_s,
            limits=httpx.Limits(
                max_connections=CONNECTIONS,
                max_keepalive_connections=CONNECTIONS,
                keepalive_expiry=2.0,
            ),
        )

    def _headers(self) -> dict[str, str]:
        try:
            return secret_headers(self._token_env, self._secrets)
        except LookupError as error:
            raise ChatError(str(error)) from None

    def _scrubbed(self, text: str) -> str:
        return scrubbed(text, self._headers().values())


def _abandon(pid: int, http: httpx.AsyncClient) -> None:
    """Close the connections of a client that was collected, without waiting for it."""
    if pid == os.getpid() and not http.is_closed:
        background_loop().call_soon_threadsafe(_close_soon, http)


def _close_soon(http: httpx.AsyncClient) -> None:
    task = asyncio.ensure_future(http.aclose())
    task.add_done_callback(_CLOSING.discard)
    _CLOSING.add(task)


_CLOSING: set[Any] = set()
"""What is being closed: a loop holds its tasks weakly."""


def response_format(mode: JsonMode, name: str, schema: Mapping[str, Any]) -> dict[str, Any]:
    """Return the options that ask for JSON in this way."""
    if mode == "text":
        return {}
    if mode == "json_object":
        return {"response_format": {"type": "json_object"}}
    described = {"name": name, "strict": True, "schema": dict(schema)}
    return {"response_format": {"type": "json_schema", "json_schema": described}}


_PROBE_SCHEMA = {
    "type": "object",
    "properties": {"ok": {"type": "boolean"}},
    "required": ["ok"],
    "additionalProperties": False,
}
_PROBE = ({"role": "user", "content": 'Answer with the JSON object {"ok": true}, nothing else.'},)


class _Again(Exception):
    """A failure after which another try makes sense."""

    def __init__(self, error: ChatError, after_s: float | None = None) -> None:
        super().__init__(error)
        self.error = error
        self.after_s = after_s


def _checked_url(base_url: str) -> tuple[str, httpx.URL]:
    """Return the base URL to show, without its query, and the URL of the completions."""
    url = checked_url(base_url, name="base_url", example="http://127.0.0.1:8000/v1")
    path = url.path.rstrip("/").removesuffix("/chat/completions")
    shown = str(url.copy_with(path=path or "/", query=None)).rstrip("/")
    return shown, url.copy_with(path=f"{path}/chat/completions")


def _is_json_object(text: str) -> bool:
    try:
        return isinstance(json.loads(text), dict)
    except (ValueError, RecursionError):
        return False
