"""What the rLLM adapter touches of rLLM, in its shapes: types, the gateway, and its engine's order.

rLLM is on no package index, so its place is taken here; what its engine does with an episode was
read in its source of 0.3.0.pre.
"""

from __future__ import annotations

import json
import socket
import threading
from collections import defaultdict
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler
from types import SimpleNamespace
from typing import Any

import httpx
from conformance import Case, tokenizer_of
from gateway_for_tests import send, served
from policy_server_for_tests import EngineServer


@dataclass
class Step:
    """One request, as the gateway tells it."""

    action: Any = None
    reward: float = 0.0
    done: bool = False
    prompt_ids: list[int] = field(default_factory=list)
    response_ids: list[int] = field(default_factory=list)
    logprobs: list[float] = field(default_factory=list)
    chat_completions: list[dict[str, Any]] = field(default_factory=list)
    """The conversation, the answer included."""


@dataclass
class Trajectory:
    """The steps of one agent."""

    name: str = "default_traj_name"
    task: Any = None
    steps: list[Step] = field(default_factory=list)
    reward: float | None = None


@dataclass
class Episode:
    """What a flow returns."""

    task: Any = None
    is_correct: bool = False
    trajectories: list[Trajectory] = field(default_factory=list)
    artifacts: dict[str, Any] = field(default_factory=dict)
    metrics: dict[str, Any] = field(default_factory=dict)
    metadata: dict[str, Any] = field(default_factory=dict)


@dataclass
class EvalOutput:
    """What an evaluator returns."""

    reward: float
    is_correct: bool


TYPES = SimpleNamespace(Episode=Episode, Trajectory=Trajectory, Step=Step, EvalOutput=EvalOutput)


@dataclass
class Task:
    """A row of the data set."""

    metadata: dict[str, Any]


class Gateway:
    """Forwards chat requests of sessions to an engine, keeps the ids and tells none of them."""

    def __init__(self, case: Case) -> None:
        agent, family = next(iter(case.families.items()))
        made = tokenizer_of(family)
        engine = EngineServer(
            lambda ids, _: case.samples(ids, agent), made, made.chat_template, reads_calls=True
        )
        self._engine = engine
        self._lock = threading.Lock()
        self.traces: dict[str, list[Step]] = defaultdict(list)
        """By session, in the order of the requests."""
        self.loses = False
        """Whether the connection of a session's first request breaks before its answer."""

    def __call__(self, handler: BaseHTTPRequestHandler, body: bytes) -> None:
        _, _, _, session, *rest = handler.path.split("/")
        assert rest == ["v1", "chat", "completions"]
        asked = {**json.loads(body), "logprobs": True, "return_token_ids": True}
        told = self._engine(asked).json()
        (choice,) = told["choices"]
        ids, logprobs = choice.pop("token_ids"), choice.pop("logprobs")["content"]
        step = Step(
            prompt_ids=told.pop("prompt_token_ids"),
            response_ids=ids,
            logprobs=[one["logprob"] for one in logprobs],
            chat_completions=[*asked["messages"], choice["message"]],
        )
        with self._lock:
            self.traces[session].append(step)
            is_lost = self.loses and len(self.traces[session]) == 1
        if is_lost:
            handler.connection.shutdown(socket.SHUT_RDWR)
            handler.close_connection = True
            return
        send(handler, httpx.Response(200, json=told))


@contextmanager
def gated(case: Case) -> Iterator[tuple[Gateway, str]]:
    """Serve a gateway; yields it and the URL that sessions stand behind."""
    gateway = Gateway(case)
    with served(gateway) as url:
        yield gateway, f"{url}/sessions"


def enriched(episode: Episode, traces: Sequence[Step]) -> Episode:
    """Put what the gateway recorded in the place of the flow's steps, one after the other.

    What the flow said of a step stays: its action, reward and end.
    """
    at = iter(traces)
    assert len(traces) >= sum(len(one.steps) for one in episode.trajectories)
    for trajectory in episode.trajectories:
        for index, given in enumerate(trajectory.steps):
            step = next(at)
            step.action, step.reward, step.done = given.action, given.reward, given.done
            trajectory.steps[index] = step
    return episode


def merged(trajectory: Trajectory) -> list[tuple[list[int], list[int], list[float]]]:
    """Return ids, mask and logprobs of each row: one while prompts go on from all before."""
    rows: list[tuple[list[int], list[int], list[float]]] = []
    for step in trajectory.steps:
        if not rows or step.prompt_ids[: len(rows[-1][0])] != rows[-1][0]:
            rows.append(([], [], []))
        ids, mask, logprobs = rows[-1]
        new = len(step.prompt_ids) - len(ids)
        ids += step.prompt_ids[len(ids) :] + step.response_ids
        mask += [0] * new + [1] * len(step.response_ids)
        logprobs += [0.0] * new + step.logprobs
    return rows
