"""An agent over token ids: the policy samples ids, and nothing is ever tokenized again."""

from __future__ import annotations

import inspect
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import replace
from typing import Any

from livestream_env.drivers import Seed
from livestream_env.errors import PrefixMismatch
from livestream_env.findings import not_started
from livestream_env.parsing import parse_text
from livestream_env.renderers import ChatTemplateRenderer
from livestream_env.tokens import Sampled, Source, Span, TokenSequence
from livestream_env.types import Action, Message, Observation, ToolSpec

Generate = Callable[[tuple[int, ...], tuple[int, ...]], Sampled | Awaitable[Sampled]]
"""`generate(ids, stop)`: sample after `ids` until one of the ids `stop`, which is kept."""
_OPENING_TOKENS = 16
"""Enough of a prompt's end to see whether it opens thinking."""


class TokenAgent:
    """Plays by an in-process engine: token ids in, token ids out.

    Each prompt is the last one, what was sampled, and what the template puts between; where the
    template rewrites, the whole conversation is rendered anew. The actions hold prompt ids,
    sampled ids and logprobs, so that training sees exactly what the policy saw.

    Args:
        generate: the engine; with an async one, play by `arollout`.
        renderer: gives the prompts and the ids to stop at.
        dialect: a key of `livestream_env.dialects.DIALECTS`; by default found from each text.
    """

    def __init__(
        self, generate: Generate, renderer: ChatTemplateRenderer, *, dialect: str | None = None
    ) -> None:
        self.generate = generate
        self.renderer = renderer
        self.dialect = dialect

    def start(self, observation: Observation, *, seed: Seed | None) -> _TokenTalk:
        """Return the agent of one episode; the engine samples as it was set up."""
        return _TokenTalk(self, observation.tools)

    def act(self, messages: Sequence[Message], tools: Sequence[ToolSpec]) -> Action:
        """Refuse: the agent of an episode is made by `start`, which drivers call."""
        not_started()


class _TokenTalk:
    """The agent of one episode: the ids so far, and the conversation that they show."""

    def __init__(self, agent: TokenAgent, tools: tuple[ToolSpec, ...]) -> None:
        self._agent = agent
        self._tools = tools
        self._stop = tuple(sorted(agent.renderer.stop_ids))
        self._ids: tuple[int, ...] = ()
        self._sampled_at = 0
        self._shown = 0

    def act(
        self, messages: Sequence[Message], tools: Sequence[ToolSpec]
    ) -> Action | Awaitable[Action]:
        """Return what the engine says next; an awaitable where it is async."""
        prompt = self._prompt(messages, tuple(tools))
        sampled = self._agent.generate(prompt, self._stop)
        if inspect.isawaitable(sampled):
            return self._awaited(prompt, sampled, messages, tools)
        return self._action(prompt, sampled, messages, tools)

    def overhear(self, action: Action, messages: Sequence[Message]) -> None:
        """Go on from the ids of another agent where its prompt is the one that this would get.

        Elsewhere, as with another tokenizer, the next prompt is rendered anew.
        """
        given, ids = action.prompt_ids, action.token_ids
        if given is None or ids is None or given != self._prompt(messages, self._tools):
            self._shown = 0
            return
        self._ids, self._sampled_at, self._shown = given + ids, len(given), len(messages)

    async def _awaited(
        self,
        prompt: tuple[int, ...],
        sampled: Awaitable[Sampled],
        messages: Sequence[Message],
        tools: Sequence[ToolSpec],
    ) -> Action:
        return self._action(prompt, await sampled, messages, tools)

    def _prompt(self, messages: Sequence[Message], tools: tuple[ToolSpec, ...]) -> tuple[int, ...]:
        renderer = self._agent.renderer
        if self._shown:
            try:
                new = messages[self._shown + 1 :]
                return self._ids + renderer.continue_ids(self._sequence(messages, tools), new)
            except PrefixMismatch:
                pass
        return renderer.prompt_ids(messages, tools)

    def _sequence(self, messages: Sequence[Message], tools: tuple[ToolSpec, ...]) -> TokenSequence:
        spans = (
            Span(0, self._sampled_at, Source.PROMPT),
            Span(self._sampled_at, len(self._ids), Source.REPLY, 0),
        )
        told = tuple(messages[: self._shown + 1])
        return TokenSequence(self._ids, None, spans, messages=told, tools=tools)

    def _action(
        self,
        prompt: tuple[int, ...],
        sampled: Sampled,
        messages: Sequence[Message],
        tools: Sequence[ToolSpec],
    ) -> Action:
        ids = tuple(sampled.token_ids)
        self._ids, self._sampled_at, self._shown = prompt + ids, len(prompt), len(messages)
        turn = sum(message.role == "assistant" for message in messages)
        text = sampled_text(self._agent.renderer.tokenizer, prompt, ids)
        action = parse_text(text, self._agent.dialect, turn=turn, tools=tools)
        logprobs = None if sampled.logprobs is None else tuple(sampled.logprobs)
        return replace(
            action, token_ids=ids, logprobs=logprobs, prompt_ids=prompt, stop=sampled.stop
        )


def sampled_text(tokenizer: Any, prompt: Sequence[int], ids: Sequence[int]) -> str:
    """Return what was sampled, with the `<think>` that the generation prompt opened."""
    text = str(tokenizer.decode(list(ids), clean_up_tokenization_spaces=False))
    end = list(prompt[-_OPENING_TOKENS:])
    head = str(tokenizer.decode(end, clean_up_tokenization_spaces=False))
    return f"<think>{text}" if head.rstrip().endswith("<think>") else text
