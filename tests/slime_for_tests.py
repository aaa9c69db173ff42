"""What the slime adapter touches of slime, in its shapes: the sample, the router, the conversion.

slime is on no package index and needs SGLang, so its place is taken here; what it does with a
sample was read in its source of 0.3.1.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from enum import Enum
from http.server import BaseHTTPRequestHandler
from types import ModuleType, SimpleNamespace
from typing import Any
from urllib.parse import urlsplit

import httpx
from gateway_for_tests import send, served

from livestream_env.tokens import Sampled


class Status(Enum):
    """States of a sample."""

    PENDING = "pending"
    COMPLETED = "completed"
    TRUNCATED = "truncated"
    ABORTED = "aborted"
    FAILED = "failed"


@dataclass
class Sample:
    """The fields of slime's sample that matter here, with its defaults."""

    group_index: int | None = None
    index: int | None = None
    rollout_id: int | None = None
    prompt: Any = ""
    tokens: list[int] = field(default_factory=list)
    response: str = ""
    response_length: int = 0
    reward: float | None = None
    loss_mask: list[int] | None = None
    weight_versions: list[str] = field(default_factory=list)
    rollout_log_probs: list[float] | None = None
    remove_sample: bool = False
    status: Status = Status.PENDING
    metadata: dict[str, Any] = field(default_factory=dict)
    session_id: str | None = None

    Status = Status


def arguments(url: str = "http://127.0.0.1:1", **changes: Any) -> SimpleNamespace:
    """Make slime's arguments for a router."""
    told = urlsplit(url)
    given = {
        "sglang_router_ip": told.hostname,
        "sglang_router_port": told.port,
        "rollout_max_context_len": None,
        "eval_max_context_len": None,
        "group_rm": False,
        "partial_rollout": False,
        "rollout_top_p": 1.0,
        "router_policy": None,
        "apply_chat_template_kwargs": {},
        "advantage_estimator": "grpo",
        "rewards_normalization": True,
        "grpo_std_normalization": True,
    }
    return SimpleNamespace(**{**given, **changes})


def sampling(**changes: Any) -> dict[str, Any]:
    """Make the sampling parameters that slime hands over."""
    given = {"temperature": 1.0, "top_p": 1.0, "max_new_tokens": 4000, "stop_token_ids": None}
    return {**given, **changes}


@contextmanager
def installed(tokenizer: Any) -> Iterator[Any]:
    """Put a module in slime's place: its state has the tokenizer, its `post` is httpx.

    Yields the state, which slime has one of.
    """
    made: Any = ModuleType("slime.rollout.sglang_rollout")
    state = SimpleNamespace(tokenizer=tokenizer, aborted=False)
    made.GenerateState = lambda args: state
    made.post = post
    named = {"slime": ModuleType("slime"), "slime.rollout": ModuleType("slime.rollout")}
    named[made.__name__] = made
    kept = {name: sys.modules.get(name) for name in named}
    sys.modules.update(named)
    try:
        yield state
    finally:
        for name, module in kept.items():
            del sys.modules[name]
            if module is not None:
                sys.modules[name] = module


async def post(url: str, payload: Any, headers: dict[str, str] | None = None) -> Any:
    """Ask once; slime's own tries again."""
    async with httpx.AsyncClient(trust_env=False) as client:
        response = await client.post(url, json=payload, headers=headers)
        response.raise_for_status()
        return response.json()


class Router:
    """SGLang's `/generate` over HTTP; keeps what it was asked."""

    def __init__(self, engine: Callable[[tuple[int, ...]], Sampled | httpx.Response]) -> None:
        self.engine = engine
        self.asked: list[dict[str, Any]] = []
        self.headers: list[dict[str, str]] = []

    def __call__(self, handler: BaseHTTPRequestHandler, body: bytes) -> None:
        assert handler.path == "/generate"
        request = json.loads(body)
        self.asked.append(request)
        self.headers.append(dict(handler.headers))
        made = self.engine(tuple(request["input_ids"]))
        send(handler, made if isinstance(made, httpx.Response) else answer(made))


def answer(sampled: Sampled, **meta: Any) -> httpx.Response:
    """Make SGLang's answer."""
    logprobs = sampled.logprobs or ()
    pairs = [[p, i, None] for p, i in zip(logprobs, sampled.token_ids, strict=True)]
    told = {"finish_reason": {"type": sampled.stop}, "weight_version": "7"}
    if pairs:  # SGLang leaves it out where nothing was sampled
        told["output_token_logprobs"] = pairs
    return httpx.Response(200, json={"text": "", "meta_info": {**told, **meta}})


@contextmanager
def routed(router: Router) -> Iterator[str]:
    """Serve a router; yields its base URL."""
    with served(router) as url:
        yield url.removesuffix("/v1")


def converted(args: Any, samples: list[Any], compare: Callable[..., Any]) -> dict[str, list[Any]]:
    """Return what slime trains on: samples flattened, masks of removed ones zero, all the checks
    that it makes."""
    rows = [one for given in samples for one in (given if isinstance(given, list) else [given])]
    raw, rewards = compare(args, rows)
    for row in rows:
        assert row.rollout_id is not None
        assert len(row.loss_mask) == len(row.rollout_log_probs) == row.response_length
        assert 0 < row.response_length < len(row.tokens)
    assert all(isinstance(one, float) for one in (*raw, *rewards))
    return {
        "tokens": [row.tokens for row in rows],
        "loss_masks": [
            [0] * row.response_length if row.remove_sample else row.loss_mask for row in rows
        ],
        "raw_reward": raw,
        "rewards": rewards,
    }
