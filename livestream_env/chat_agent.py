"""A policy served over the chat API: vLLM, SGLang, DashScope, any OpenAI-compatible server.

What the server says becomes the action, with the token ids and logprobs that it tells. What the
model got wrong stays the policy's mistake. An answer that no model gave - the server failed,
refused, stopped half-way or sent what is no answer - is a `ChatError`, which drivers write into the
trajectory as `env_error`.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any, Literal, overload
from urllib.parse import parse_qsl

import numpy as np

from livestream_env.chat import ChatClient
from livestream_env.completions import Completion
from livestream_env.dialects import DIALECTS
from livestream_env.drivers import Seed
from livestream_env.errors import ChatError, InvalidAction, did_you_mean
from livestream_env.findings import not_started
from livestream_env.parsing import parse_message
from livestream_env.types import Action, Message, Observation, ToolCall, ToolSpec, TurnEvent

AGENT_FORM = "chat:URL#MODEL"
_ASKS_FOR_TOKENS = {
    "logprobs": True,
    "return_token_ids": True,  # vLLM
    "return_tokens_as_token_ids": True,  # vLLM before 0.10.2
    "return_prompt_token_ids": True,  # SGLang
    "return_meta_info": True,  # SGLang
}
_CUT = frozenset({"length", "max_tokens", "model_length", "repetition"})
_STOPPED = frozenset({"abort", "aborted", "error", "insufficient_system_resource"})
"""Reasons that say the server, not the model, ended the answer."""
_TOO_LONG = re.compile(
    r"context[_ ]length|context window|range of input length|prompt is too long", re.I
)
_NO_NAME = re.compile(r"[^a-zA-Z0-9_-]")
_TIMEOUT_S = 300.0
_TOTAL_TIMEOUT_S = 900.0


class _ChatPolicy:
    """What the sync and the async agent are made with."""

    def __init__(
        self,
        base_url: str | ChatClient,
        model: str | None = None,
        *,
        temperature: float | None = None,
        top_p: float | None = None,
        max_tokens: int | None = None,
        extra_body: Mapping[str, Any] | None = None,
        dialect: str | None = None,
        token_ids: bool = False,
        append_only: bool = False,
        send_seed: bool = True,
    ) -> None:
        """Make an agent; nothing is connected yet.

        Args:
            base_url: URL of the server, such as `http://127.0.0.1:8000/v1`, or a `ChatClient`,
                which has the options of the connection: secrets, certificates, time limits.
            model: name of the model at that URL.
            temperature, top_p, max_tokens: sent where they are given.
            extra_body: whatever else goes into each request; `None` takes a key out of it.
            dialect: a key of `livestream_env.dialects.DIALECTS` for calls written as text; by
                default found from each text.
            token_ids: ask for token ids and logprobs; an answer without ids is a failure then.
            append_only: send each answer back as it came, so that every request extends the last;
                by default the conversation is sent as the environment read it.
            send_seed: send a seed made from the episode's.

        Raises:
            ValueError: a URL without a model, no such dialect, or an option that cannot be sent.
        """
        if dialect is not None and dialect not in DIALECTS:
            hint = did_you_mean(dialect, DIALECTS)
            raise ValueError(f"no dialect `{dialect}`; known are {', '.join(DIALECTS)}.{hint}")
        self.client = _client(base_url, model)
        self.dialect = dialect
        self.token_ids = token_ids
        self.append_only = append_only
        self.send_seed = send_seed
        sampling = {"temperature": temperature, "top_p": top_p, "max_tokens": max_tokens}
        self.options = {
            **{name: value for name, value in sampling.items() if value is not None},
            **(_ASKS_FOR_TOKENS if token_ids else {}),
        }
        """What each request holds beside messages, tools and seed."""
        self.extra_body = sendable_body(extra_body or {})

    def __repr__(self) -> str:
        name = type(self).__name__
        return f"{name}({self.client.base_url!r}, {self.client.model!r})"

    def close(self) -> None:
        """Close this process's connections; the next request opens new ones."""
        self.client.close()


class ChatAgent(_ChatPolicy):
    """Plays by a model behind the chat API; one object serves any number of threads."""

    def start(self, observation: Observation, *, seed: Seed | None) -> _ChatTalk:
        """Return the agent of one episode; its requests hold a seed made from `seed`."""
        return _ChatTalk(_Talk(self, seed))

    def act(self, messages: Sequence[Message], tools: Sequence[ToolSpec]) -> Action:
        """Refuse: the agent of an episode is made by `start`, which drivers call."""
        not_started()


class AsyncChatAgent(_ChatPolicy):
    """As `ChatAgent`, awaited: for `arollout`."""

    def start(self, observation: Observation, *, seed: Seed | None) -> _AsyncChatTalk:
        """Return the agent of one episode; its requests hold a seed made from `seed`."""
        return _AsyncChatTalk(_Talk(self, seed))

    async def act(self, messages: Sequence[Message], tools: Sequence[ToolSpec]) -> Action:
        """Refuse: the agent of an episode is made by `start`, which drivers call."""
        not_started()


class _ChatTalk:
    """The agent of one episode."""

    def __init__(self, talk: _Talk) -> None:
        self._talk = talk

    def act(self, messages: Sequence[Message], tools: Sequence[ToolSpec]) -> Action:
        """Return what the model says next.

        Raises:
            ChatError: the endpoint gave no answer of the model.
        """
        talk = self._talk
        try:
            done = talk.client.complete(talk.request(messages), **talk.options(tools))
        except ChatError as error:
            return _full_or_raise(error)
        return talk.action(done, messages, tools)


class _AsyncChatTalk:
    """The agent of one episode, awaited."""

    def __init__(self, talk: _Talk) -> None:
        self._talk = talk

    async def act(self, messages: Sequence[Message], tools: Sequence[ToolSpec]) -> Action:
        """Return what the model says next; as of the sync agent."""
        talk = self._talk
        try:
            done = await talk.client.acomplete(talk.request(messages), **talk.options(tools))
        except ChatError as error:
            return _full_or_raise(error)
        return talk.action(done, messages, tools)


class _Talk:
    """The conversation of one episode with the server: requests out, actions in."""

    def __init__(self, agent: _ChatPolicy, seed: Seed | None) -> None:
        self.client = agent.client
        self._agent = agent
        self._seed = _seed_of(seed) if agent.send_seed and seed is not None else None
        self._sent: list[dict[str, Any]] = []
        self._shown = 0
        """How many messages of the conversation `_sent` tells."""

    def request(self, messages: Sequence[Message]) -> list[dict[str, Any]]:
        """Return the conversation as it is sent."""
        if not self._agent.append_only:
            return list(map(_told, messages))
        self._sent += map(_told, messages[self._shown :])
        self._shown = len(messages)
        return self._sent

    def options(self, tools: Sequence[ToolSpec]) -> dict[str, Any]:
        """Return what a request holds beside the conversation."""
        options: dict[str, Any] = dict(self._agent.options)
        if tools:
            options["tools"] = [spec.to_openai() for spec in tools]
        if self._seed is not None:
            options["seed"] = self._seed
        options |= self._agent.extra_body
        return {name: value for name, value in options.items() if value is not None}

    def action(
        self, done: Completion, messages: Sequence[Message], tools: Sequence[ToolSpec]
    ) -> Action:
        """Return the action that an answer is.

        Raises:
            ChatError: it is none of the model's: the server stopped it, or it is no message.
        """
        if done.finish_reason in _STOPPED:
            raise self._failed("aborted", f"stopped its answer: `{done.finish_reason}`")
        said = {**done.message, "role": done.message.get("role") or "assistant"}
        turn = sum(message.role == "assistant" for message in messages)
        try:
            action = parse_message(said, self._agent.dialect, turn=turn, tools=tools)
        except InvalidAction as error:
            raise self._failed("bad_answer", f"sent no assistant message: {error}") from error
        tokens = done.tokens
        if self._agent.token_ids and tokens.token_ids is None:
            raise self._failed(
                "no_token_ids",
                "returned no token ids; vLLM (`return_token_ids`) and SGLang (`return_meta_info`)"
                " do, others play with `token_ids=False`",
            )
        if self._agent.append_only:
            self._sent.append(_as_it_came(said, action.message.tool_calls))
            self._shown = len(messages) + 1
        stop = "length" if done.finish_reason in _CUT else "stop"
        return replace(action, **tokens._asdict(), stop=stop)

    def _failed(self, code: str, problem: str) -> ChatError:
        return ChatError(f"{self.client.base_url} {problem}"[:600], code=code)


def _full_or_raise(error: ChatError) -> Action:
    """Return the action of a model whose context the conversation fills: cut before a word."""
    told = f"{error.code} {error}"
    if error.status not in (400, 413, 422) or _TOO_LONG.search(told) is None:
        raise error
    events = (TurnEvent("context_full", str(error)),)
    return Action(Message("assistant", ""), (), (), stop="length", events=events)


# --- what is sent ----------------------------------------------------------------------------


def _told(message: Message) -> dict[str, Any]:
    """Return a message as a server takes it."""
    told = message.to_openai()
    if message.tool_calls:
        told["tool_calls"] = [_told_call(call) for call in message.tool_calls]
    return told


def _as_it_came(said: Mapping[str, Any], calls: Sequence[ToolCall]) -> dict[str, Any]:
    """Return an answer as it is sent back: nothing changed but ids that it lacked and calls that
    cannot be sent."""
    told: dict[str, Any] = {"role": "assistant", "content": said.get("content") or ""}
    for name in ("reasoning_content", "reasoning"):
        if said.get(name):
            told[name] = said[name]
    given = said.get("tool_calls") or [said.get("function_call")]
    if any(given):
        pairs = zip(calls, given, strict=True)
        told["tool_calls"] = [_told_call(call, one) for call, one in pairs]
    return told


def _told_call(call: ToolCall, given: Mapping[str, Any] | None = None) -> dict[str, Any]:
    """Return a call as a server takes it, its arguments worded as in `given`.

    Servers refuse a conversation with a nameless call or with arguments that are no JSON object:
    what the model wrote is told inside of one.
    """
    function = given.get("function", given) if given else None
    worded = function.get("arguments") if isinstance(function, Mapping) else None
    if call.raw is not None:
        arguments = json.dumps({"unreadable": call.raw}, ensure_ascii=False)
    elif isinstance(worded, str) and worded.lstrip().startswith("{"):
        arguments = worded
    else:
        arguments = json.dumps(call.arguments, ensure_ascii=False)
    name = _NO_NAME.sub("_", call.name)[:64] or "unnamed"
    return {"id": call.id, "type": "function", "function": {"name": name, "arguments": arguments}}


def _client(
    base_url: str | ChatClient, model: str | None, token_env: str | None = None
) -> ChatClient:
    if isinstance(base_url, ChatClient):
        if model not in (None, base_url.model):
            raise ValueError(f"got the model `{model}` and a client of `{base_url.model}`")
        return base_url
    if not model:
        raise ValueError(f"an agent at a base URL needs the name of its `model`: {base_url!r}")
    return ChatClient(
        base_url,
        model,
        token_env=token_env,
        timeout_s=_TIMEOUT_S,
        total_timeout_s=_TOTAL_TIMEOUT_S,
    )


def sendable_body(extra_body: Mapping[str, Any]) -> dict[str, Any]:
    """Return what else goes into each request.

    Raises:
        ValueError: it is no JSON, holds what the agent sends itself, or asks for several answers.
    """
    for name in ("messages", "model", "stream"):
        if name in extra_body:
            raise ValueError(f"`extra_body` holds `{name}`, which the agent sends itself")
    if extra_body.get("n", 1) != 1:
        raise ValueError(f"`extra_body` asks for n={extra_body['n']}; an agent takes one answer")
    try:
        json.dumps(extra_body, allow_nan=False)
    except (TypeError, ValueError) as error:
        raise ValueError(f"`extra_body` is no JSON: {error}") from error
    return dict(extra_body)


def _seed_of(seed: Seed) -> int:
    """Return a seed below 2**31, as servers take it; members of a group get one each."""
    parts = seed if isinstance(seed, tuple) else (seed,)
    return int(np.random.SeedSequence(parts).generate_state(1)[0] >> 1)


# --- an agent as a string --------------------------------------------------------------------

_SETTINGS: dict[str, Callable[[str], Any]] = {
    "temperature": float,
    "top_p": float,
    "max_tokens": int,
    "dialect": str,
}


@overload
def chat_agent_named(text: str) -> ChatAgent: ...
@overload
def chat_agent_named(text: str, *, is_async: Literal[True]) -> AsyncChatAgent: ...
def chat_agent_named(text: str, *, is_async: bool = False) -> ChatAgent | AsyncChatAgent:
    """Return the agent of `chat:URL#MODEL`, settings after a `?` where there are any.

    Such as `chat:https://host/v1#qwen-plus?token_env=KEY&temperature=0.7`; settings are
    `token_env`, which names an environment variable, `temperature`, `top_p`, `max_tokens` and
    `dialect`.

    Raises:
        ValueError: the text is none such.
        ChatError: the environment variable is not set.
    """
    head, _, rest = text.partition("#")
    model, _, query = rest.partition("?")
    if not head.startswith("chat:") or not model:
        raise ValueError(f"`{text}` names no agent; write {AGENT_FORM}")
    given = dict(parse_qsl(query, keep_blank_values=True))
    client = _client(head.removeprefix("chat:"), model, given.pop("token_env", None))
    settings = {name: _setting(name, value) for name, value in given.items()}
    return (AsyncChatAgent if is_async else ChatAgent)(client, **settings)


def _setting(name: str, value: str) -> Any:
    if name not in _SETTINGS:
        known = ("token_env", *_SETTINGS)
        raise ValueError(
            f"no setting `{name}`; known are {', '.join(known)}.{did_you_mean(name, known)}"
        )
    try:
        return _SETTINGS[name](value)
    except ValueError:
        raise ValueError(f"`{name}` is `{value}`; it is a number") from None
