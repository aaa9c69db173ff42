"""The model of verifiers in tests: vLLM's endpoints over HTTP, which sample as a case says."""

from __future__ import annotations

import functools
import json
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler
from typing import Any

import httpx
from conformance import Case, tokenizer_of
from gateway_for_tests import send, served
from policy_server_for_tests import said

from livestream_env.tokens import Sampled

Engine = Callable[[tuple[int, ...], tuple[int, ...]], Sampled]


class Model:
    """Answers by token ids (`/inference/v1/generate`) and by text, and keeps what it was asked."""

    def __init__(self, case: Case, agent: str = "host", engine: Engine | None = None) -> None:
        self.case = case
        self.engine = engine or case.engine(agent)
        self.longest: int | None = None
        self.waits_s = 0.0
        self.asked: list[dict[str, Any]] = []
        self.refusals: list[httpx.Response] = []
        """Answers that come first, in the place of the model's."""

    def __call__(self, handler: BaseHTTPRequestHandler, body: bytes) -> None:
        if handler.path == "/v1/models":
            card = {"id": "policy", "object": "model", "max_model_len": self.longest}
            send(handler, httpx.Response(200, json={"object": "list", "data": [card]}))
            return
        asked = json.loads(body)
        self.asked.append(asked)
        time.sleep(self.waits_s)
        if self.refusals:
            send(handler, self.refusals.pop(0))
        elif "messages" in asked:
            line = self.case.says(asked["messages"])
            send(handler, said(line.text, line.stop))
        else:
            send(handler, httpx.Response(200, json=self._sampled(asked)))

    def _sampled(self, asked: dict[str, Any]) -> dict[str, Any]:
        given = asked["sampling_params"]
        made = self.engine(tuple(asked["token_ids"]), tuple(given["stop_token_ids"]))
        pairs = zip(made.token_ids, made.logprobs or (), strict=True)
        content = [{"token": f"token_id:{token}", "logprob": value} for token, value in pairs]
        choice = {
            "index": 0,
            "token_ids": list(made.token_ids),
            "finish_reason": made.stop,
            "logprobs": {"content": content},
        }
        return {"request_id": "r", "choices": [choice]}


@contextmanager
def modelled(case: Case, agent: str = "host", engine: Engine | None = None) -> Iterator[Any]:
    """Serve a case; yields the URL and the model."""
    model = Model(case, agent, engine)
    with served(model) as url:
        yield url, model


@functools.cache
def folder_of(family: str) -> str:
    """Return a folder with the tokenizer of a family, as a model's has it."""
    folder = tempfile.mkdtemp(prefix=f"{family}-")
    tokenizer_of(family).save_pretrained(folder)
    return folder


def trained_of(episode: Any) -> dict[str, list[tuple[list[int], list[int], list[float]]]]:
    """Return ids, mask and logprobs of the rows that prime-rl makes of an episode, by agent.

    As read in its source at 559b447: traces with an error, those of an episode with one, and those
    of fixed agents are left out; a row is a branch; a node that branches share is trained in the
    first; weights of a branch that are all 0 count as none, and then all that was sampled is
    trained.
    """
    rows: dict[str, list[tuple[list[int], list[int], list[float]]]] = {}
    for trace in episode.traces if episode.ok else ():
        if not trace.ok or not trace.agent.trainable:
            continue
        sampled: set[int] = set()
        weighed: set[int] = set()
        for branch in trace.branches:
            mask: list[bool] = []
            weights: list[float] = []
            for node in branch.nodes:
                none = [0.0] * len(node.token_ids)
                mask += [False] * len(none) if id(node) in sampled else node.mask
                stream = (node.loss_weights or {}).get("rl")
                weights += none if stream is None or id(node) in weighed else stream
                sampled |= {id(node)} if any(node.mask) else set()
                weighed |= {id(node)} if any(stream or ()) else set()
            if not any(mask):
                continue
            used = weights if any(weights) else [1.0] * len(mask)
            bits = [int(bit and weight > 0) for bit, weight in zip(mask, used, strict=True)]
            rows.setdefault(trace.agent.name, []).append((branch.token_ids, bits, branch.logprobs))
    return rows
