"""An episode and verifiers' traces of it: who plays sends its requests through a rollout, and the
trace of the rollout tells its token ids and is told what is trained of them."""

from __future__ import annotations

import contextlib
import functools
import hashlib
import importlib
from collections.abc import Container, Mapping, Sequence
from dataclasses import replace
from itertools import groupby
from typing import Any

import httpx

from livestream_env.adapters.setup import Setup
from livestream_env.adapters.whole_turns import TurnRenderer
from livestream_env.chat import ChatClient
from livestream_env.chat_agent import AsyncChatAgent
from livestream_env.drivers import Seed
from livestream_env.errors import ChatError
from livestream_env.parsing import parse_text
from livestream_env.rows import TrainingRow
from livestream_env.token_agent import sampled_text
from livestream_env.tokens import Renderer, Source, Span, TokenSequence, source_of
from livestream_env.types import (
    Action,
    Message,
    Observation,
    StopReason,
    ToolCall,
    ToolSpec,
    Trajectory,
    TurnEvent,
)

LOSS = "rl"
"""The stream of weights that prime-rl's policy loss reads."""
REWARD = "livestream"
_LONGEST_ANSWER_S = 3600.0
_ENDED = ("agent_completed", "user_closed")
"""What verifiers says of a rollout that nothing stopped."""
_LIMITS = {StopReason.TURN_LIMIT: "max_turns", StopReason.TOKEN_LIMIT: "max_total_tokens"}


class TracedSeat:
    """An agent whose requests are a rollout's: what it samples is in the rollout's trace."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.trace: Any = None
        self.nodes: list[Any] = []
        """The trace's node of each turn, `None` where nothing was sampled."""
        self._agent: Any = None
        self._talk: Any = None
        self._model = ""

    def plays(self, agent: Any, trace: Any, ctx: Any) -> TracedSeat:
        """Let the agent, whose requests the trace records, speak from this seat."""
        self._agent, self.trace = agent, trace
        self._model = getattr(ctx.client, "renderer_model_name", None) or ctx.model
        return self

    def start(self, observation: Observation, *, seed: Seed | None) -> TracedSeat:
        """Return the agent of one episode, which is this."""
        self._talk = self._agent.start(observation, seed=seed)
        return self

    async def act(self, messages: Sequence[Message], tools: Sequence[ToolSpec]) -> Action:
        """Return what the model says next; cut before a word where verifiers allows no more.

        Raises:
            ChatError: no answer of the model came.
        """
        try:
            action: Action = await self._talk.act(messages, tools)
        except ChatError as error:
            if self.trace.stop_condition is None:
                raise
            event = TurnEvent("context_full", f"{self.trace.stop_condition}: {error}")
            action = Action(Message("assistant", ""), (), (), stop="length", events=(event,))
        if any(event.kind == "context_full" for event in action.events):
            self.nodes.append(None)
            return action
        call = self.trace.calls[-1]
        node = self.trace.nodes[call.node]
        if node.token_ids and call.finish_reason is None:
            raise ChatError("the server stopped the answer, as where it aborts a request")
        self.nodes.append(node)
        return self._as_sampled(action, node, messages, tools) if node.token_ids else action

    def _as_sampled(
        self, told: Action, node: Any, messages: Sequence[Message], tools: Sequence[ToolSpec]
    ) -> Action:
        """Return the action that the sampled ids are.

        What verifiers tells of it lacks the calls that its parsers cannot read.
        """
        path, at = [node], node.parent
        while at is not None:
            path.append(self.trace.nodes[at])
            at = path[-1].parent
        ids = [token for one in reversed(path) for token in one.token_ids]
        start = len(ids) - sum(node.mask)
        text = sampled_text(_tokenizer(self._model), ids[:start], ids[start:])
        turn = sum(message.role == "assistant" for message in messages)
        action = parse_text(text, turn=turn, tools=tools)
        calls = _with_ids(action.message.tool_calls, told.message.tool_calls)
        return replace(
            action,
            message=replace(action.message, tool_calls=calls),
            token_ids=tuple(ids[start:]),
            logprobs=tuple(node.logprobs),
            prompt_ids=tuple(ids[:start]),
            stop=told.stop,
        )


class SharedSeat(TracedSeat):
    """One of two seats. verifiers runs each turn as a segment of the seat's rollout, in which the
    harness calls `take_turn`."""

    def __init__(self, name: str) -> None:
        super().__init__(name)
        self._rollouts: Any = None
        self._interaction: Any = None
        self._observation: Any = None
        self._asked: tuple[Sequence[Message], Sequence[ToolSpec]] = ((), ())
        self._answer: Action | None = None

    def opened(self, rollouts: contextlib.AsyncExitStack, interaction: Any) -> None:
        """Take the seat of an opened rollout; it stays open with the stack."""
        self._rollouts, self._interaction = rollouts, interaction
        self.trace = interaction.trace

    def start(self, observation: Observation, *, seed: Seed | None) -> TracedSeat:
        """Return the agent of one episode, which is this."""
        self._observation = observation
        return self

    async def act(self, messages: Sequence[Message], tools: Sequence[ToolSpec]) -> Action:
        """Return what the model says next, as one agent's seat does."""
        self._asked, self._answer = (messages, tools), None
        await self._interaction.turn("...")  # what is told is in `_asked`
        if self._answer is None:
            error = self.trace.last_error
            why = self.trace.stop_condition if error is None else f"{error.type}: {error.message}"
            raise ChatError(f"the rollout of `{self.name}` ended: {why}"[:600])
        return self._answer

    async def take_turn(self, endpoint: str, secret: str, ctx: Any) -> None:
        """Send what was asked to verifiers."""
        if self._talk is None:
            client = rollout_client(endpoint, secret, ctx.model)
            self._rollouts.callback(client.close)
            agent = AsyncChatAgent(client, append_only=True, send_seed=False)
            self.plays(agent, self.trace, ctx)
            super().start(self._observation, seed=None)
        self._answer = await super().act(*self._asked)


@functools.lru_cache(maxsize=8)
def _tokenizer(model: str) -> Any:
    """Return the tokenizer that verifiers renders a model's prompts with."""
    return importlib.import_module("renderers.base").load_tokenizer(model)


def _with_ids(calls: tuple[ToolCall, ...], told: tuple[ToolCall, ...]) -> tuple[ToolCall, ...]:
    """Return the calls under the ids that verifiers knows them by."""
    left, made = list(told), []
    for call in calls:
        is_told = bool(left) and left[0].name == call.name
        made.append(replace(call, id=left.pop(0).id) if is_told else call)
    return tuple(made)


class _Bearer(httpx.AsyncHTTPTransport):
    """Tells a rollout's secret, and of a request that is sent again that it is the same."""

    def __init__(self, secret: str) -> None:
        super().__init__(verify=False)  # verifiers' server speaks plain HTTP on this machine
        self._secret = secret

    async def handle_async_request(self, request: httpx.Request) -> httpx.Response:
        request.headers["Authorization"] = f"Bearer {self._secret}"
        request.headers["Idempotency-Key"] = hashlib.sha256(request.content).hexdigest()
        return await super().handle_async_request(request)


def rollout_client(endpoint: str, secret: str, model: str) -> ChatClient:
    """Return the client of a rollout, whose time limits are verifiers'."""
    return ChatClient(
        endpoint,
        model,
        timeout_s=_LONGEST_ANSWER_S,
        total_timeout_s=_LONGEST_ANSWER_S,
        transport=_Bearer(secret),
    )


# --- what is trained of a trace -----------------------------------------------------------------


class _TraceRenderer:
    """The branches of a seat's trace as sequences: nothing is tokenized again.

    A turn that several branches share is sampled in the first of them, as prime-rl has it.
    """

    def __init__(self, seat: TracedSeat) -> None:
        self._seat = seat

    def render(
        self, trajectory: Trajectory, agents: Container[str] | None = None
    ) -> list[TokenSequence]:
        """Render each branch; all that the seat did not sample is a prompt."""
        turn_of = {id(node): at for at, node in _own(self._seat, trajectory) if node is not None}
        made = []
        for branch in self._seat.trace.branches:
            spans: list[Span] = []
            for node in branch.nodes:
                at = turn_of.pop(id(node), -1)
                for is_sampled, run in groupby(node.mask):
                    start = spans[-1].stop if spans else 0
                    is_own = is_sampled and at >= 0
                    source = source_of(trajectory.turns[at]) if is_own else Source.PROMPT
                    spans.append(Span(start, start + len(list(run)), source, at))
            ids = tuple(branch.token_ids)
            made.append(TokenSequence(ids, None, tuple(spans), agent=self._seat.name))
        return made


def _own(seat: TracedSeat, trajectory: Trajectory) -> list[tuple[int, Any]]:
    """Return the turns of a seat, each with its node."""
    turns = [at for at, turn in enumerate(trajectory.turns) if turn.agent == seat.name]
    return list(zip(turns, seat.nodes, strict=False))  # a turn that failed later has no node


def _renderer(seat: TracedSeat) -> Renderer:
    """Return the renderer of a seat's tokens; an evaluation's client tells none."""
    has_tokens = any(node is not None and node.token_ids for node in seat.nodes)
    return _TraceRenderer(seat) if has_tokens else TurnRenderer()


def settle(setup: Setup, seats: Mapping[str, TracedSeat], trajectory: Trajectory) -> None:
    """Leave in each rollout what the episode came to.

    Raises:
        RuntimeError: a trained agent has no reward, as where the environment failed; or nobody
            said a word.
    """
    setup.keep(trajectory)
    rows = setup.rows(trajectory, {name: _renderer(seats[name]) for name in setup.agents})
    causes = [row.excluded for row in rows if row.excluded]
    problems = [one for one in causes if not one.startswith("empty_mask")]
    if not any(node is not None for seat in seats.values() for node in seat.nodes):
        problems.append("the context was full before a word")
    if problems:
        raise RuntimeError(f"the episode is left out: {problems[0]}")
    for name, seat in seats.items():
        state = seat.trace.state
        state.seat, state.trajectory = seat, trajectory
        state.rows = [row for row in rows if row.agent == name]


def write(trace: Any) -> None:
    """Write reward, ending and masks of an episode into the trace of one of its seats."""
    seat, trajectory = trace.state.seat, trace.state.trajectory
    total = None if trajectory.rewards is None else trajectory.rewards.total(seat.name)
    if total is not None:
        trace.record_reward(REWARD, total)
    if trace.stop_condition in _ENDED:
        reason = trajectory.stop_reason
        trace.stop(_LIMITS.get(reason, str(reason)), override=True)
    bits = _bits(trace.state.rows)
    weights = {id(node): bits.get(at, ()) for at, node in _own(seat, trajectory)}
    nodes = [node for node in trace.nodes if node.sampled and node.token_ids]
    for node in nodes:
        _weigh(node, weights.get(id(node), ()))
    if nodes and not any(any(node.mask) for node in nodes):
        trace.agent.trainable = False


def _bits(rows: Sequence[TrainingRow]) -> dict[int, tuple[int, ...]]:
    """Return the loss masks of trained turns, by the turn."""
    return {
        span.turn: row.loss_mask[span.start : span.stop]
        for row in rows
        if row.excluded is None and row.sequence is not None
        for span in row.sequence.spans
        if span.source.is_sampled
    }


def _weigh(node: Any, bits: Sequence[int]) -> None:
    """Give a node the weights of its sampled tokens.

    prime-rl takes a branch whose weights are all 0 for one without weights, and trains all of it;
    so a node that is not trained no longer counts as sampled tokens.
    """
    left = iter(bits)
    weights = [float(next(left, 0)) if is_sampled else 0.0 for is_sampled in node.mask]
    node.loss_weights = {LOSS: weights}
    if not any(weights):
        node.mask, node.logprobs, node.sampling_mask = [False] * len(node.mask), [], None
