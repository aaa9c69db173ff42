"""A policy's server for tests: an engine behind the wire formats of vLLM and SGLang, on loopback.

It is as strict as they are with what it is sent: a conversation that they would refuse is a 400.
"""

from __future__ import annotations

import copy
import json
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler
from typing import Any

import httpx
from gateway_for_tests import error, send, served

from livestream_env.parsing import parse_text
from livestream_env.tokens import Sampled

Engine = Callable[[tuple[int, ...], tuple[int, ...]], Sampled]


class PolicyServer:
    """Answers over `answer`, and keeps every request; a transport or a socket may call it."""

    def __init__(self, answer: Callable[[dict[str, Any]], httpx.Response]) -> None:
        self.requests: list[dict[str, Any]] = []
        self.headers: list[dict[str, str]] = []
        self._answer = answer
        self._lock = threading.Lock()

    def __call__(self, handler: BaseHTTPRequestHandler, body: bytes) -> None:
        request = json.loads(body)
        with self._lock:
            self.requests.append(request)
            self.headers.append(dict(handler.headers))
        fault = fault_of(request)
        send(handler, self._answer(request) if fault is None else error(400, "400", fault))


@contextmanager
def serving(
    answer: Callable[[dict[str, Any]], httpx.Response],
    *,
    on_close: Callable[[], object] = lambda: None,
) -> Iterator[tuple[str, PolicyServer]]:
    """Serve on a free port of this machine; yields the base URL and the server."""
    server = PolicyServer(answer)
    with served(server, on_close=on_close) as url:
        yield url, server


def fault_of(request: dict[str, Any]) -> str | None:
    """Say what servers would refuse in a request."""
    open_ids: list[str] = []
    for message in request["messages"]:
        if message["role"] not in ("system", "user", "assistant", "tool"):
            return f"unknown role {message['role']}"
        if not isinstance(message.get("content"), str):
            return "content is no text"
        for call in message.get("tool_calls") or ():
            try:
                arguments = json.loads(call["function"]["arguments"])
            except ValueError:
                return "arguments are no JSON"
            if not isinstance(arguments, dict) or not call["function"]["name"]:
                return "arguments are no object"
            open_ids.append(call["id"])
        if open_ids and message["role"] == "tool" and message["tool_call_id"] not in open_ids:
            return f"no call {message['tool_call_id']}"
    return None


def choice(message: dict[str, Any], finish_reason: str = "stop", **more: Any) -> dict[str, Any]:
    """Make a choice; the message has the keys that vLLM writes."""
    blank: dict[str, Any] = {
        "role": "assistant",
        "content": None,
        "refusal": None,
        "tool_calls": [],
    }
    return {
        "index": 0,
        "message": {**blank, **message},
        "logprobs": None,
        "finish_reason": finish_reason,
        **more,
    }


def answer_of(*choices: Any, **changes: Any) -> httpx.Response:
    """Make an answer of these choices."""
    body = {
        "id": "chatcmpl-1",
        "object": "chat.completion",
        "created": 1,
        "model": "policy",
        "choices": list(choices),
        "usage": {"prompt_tokens": 10, "completion_tokens": 5, "total_tokens": 15},
    }
    text = json.dumps({**body, **changes})  # in ASCII, which can name a lone surrogate
    return httpx.Response(200, text=text, headers={"content-type": "application/json"})


def said(text: str | None, finish_reason: str = "stop", **message: Any) -> httpx.Response:
    """Make an answer of one message."""
    return answer_of(choice({"content": text, **message}, finish_reason))


def call(name: str, arguments: Any, call_id: Any = "call_a") -> dict[str, Any]:
    """Make a tool call as servers write it."""
    if not isinstance(arguments, str):
        arguments = json.dumps(arguments, ensure_ascii=False)
    return {
        "id": call_id,
        "type": "function",
        "function": {"name": name, "arguments": arguments},
    }


class EngineServer:
    """An engine that samples ids, behind one of the wire formats.

    `vllm` tells ids beside the choices, `old_vllm` as names of the logprobs' tokens, `sglang` in
    `meta_info`, `plain` not at all; `vllm` with `reads_calls` turns the text's calls into
    `tool_calls`, as with a tool parser.
    """

    def __init__(
        self,
        engine: Engine,
        tokenizer: Any,
        chat_template: str,
        form: str = "vllm",
        *,
        reads_calls: bool = False,
    ) -> None:
        self.engine = engine
        self.tokenizer = tokenizer
        self.chat_template = chat_template
        self.form = form
        self.reads_calls = reads_calls

    def __call__(self, request: dict[str, Any]) -> httpx.Response:
        prompt = self._prompt(request)
        sampled = self.engine(prompt, (self.tokenizer.eos_token_id,))
        text = self.tokenizer.decode(sampled.token_ids, skip_special_tokens=True)
        message, reason = self._message(text), sampled.stop
        if message.get("tool_calls") and reason == "stop":
            reason = "tool_calls"
        made, body = choice(message, reason), {}
        logprobs = sampled.logprobs or ()
        names = [f"token_id:{i}" for i in sampled.token_ids]
        if self.form != "old_vllm" or not request.get("return_tokens_as_token_ids"):
            names = self.tokenizer.convert_ids_to_tokens(list(sampled.token_ids))
        if request.get("logprobs"):
            made["logprobs"] = {
                "content": [
                    {"token": name, "logprob": value, "bytes": None, "top_logprobs": []}
                    for name, value in zip(names, logprobs, strict=True)
                ]
            }
        if self.form == "vllm" and request.get("return_token_ids"):
            made["token_ids"] = list(sampled.token_ids)
            body["prompt_token_ids"] = list(prompt)
        if self.form == "sglang" and request.get("return_meta_info"):
            rows = [[p, i, None] for p, i in zip(logprobs, sampled.token_ids, strict=True)]
            made["meta_info"] = {"output_token_logprobs": rows, "prompt_tokens": len(prompt)}
        if self.form == "sglang" and request.get("return_prompt_token_ids"):
            made["prompt_token_ids"] = list(prompt)
        return answer_of(made, **body)

    def _prompt(self, request: dict[str, Any]) -> tuple[int, ...]:
        """Render as servers do: by the template alone, arguments as objects."""
        messages = copy.deepcopy(request["messages"])
        for message in messages:
            for made in message.get("tool_calls") or ():
                made["function"]["arguments"] = json.loads(made["function"]["arguments"])
        ids = self.tokenizer.apply_chat_template(
            messages,
            tools=request.get("tools"),
            chat_template=self.chat_template,
            add_generation_prompt=True,
            return_dict=False,
        )
        return tuple(ids)

    def _message(self, text: str) -> dict[str, Any]:
        read = parse_text(text).message
        if not self.reads_calls or not read.tool_calls:
            return {"content": text}
        calls = [call(c.name, dict(c.arguments), f"chatcmpl-tool-{c.id}") for c in read.tool_calls]
        return {"content": read.content or None, "tool_calls": calls}
