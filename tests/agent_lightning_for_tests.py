"""What the Agent Lightning adapter touches of its server: the recording proxy and the events.

Version 1.0 needs a newer Python and 0.3 much that is heavy, so their place is taken here; what they
do with events was read in their source.
"""

from __future__ import annotations

import itertools
import json
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler
from typing import Any

import httpx
from conformance import Case, tokenizer_of
from gateway_for_tests import send, served
from policy_server_for_tests import EngineServer
from rllm_for_tests import Step

PROXY = "/proxy/rollout/r1/attempt/0/mode/train/openai/v1"
EVENTS = "/api/rollouts/r1/attempt/0/events"
RECORDED = "/api/rollouts/r1/events?event_type=model_request&format=triplet"


class Server:
    """Proxies chat requests of a rollout to an engine; keeps them and what is posted as events."""

    def __init__(self, case: Case) -> None:
        agent, family = next(iter(case.families.items()))
        made = tokenizer_of(family)
        self._engine = EngineServer(
            lambda ids, _: case.samples(ids, agent), made, made.chat_template, reads_calls=True
        )
        self._lock = threading.Lock()
        self.stopped_at: int | None = None
        """The request whose answer the engine breaks off."""
        self.refused: set[str] = set()
        """Kinds of events that are not taken."""
        self.paused = range(0)
        """Requests, by number, that are asked to wait, as while weights change."""
        self._asked = itertools.count()
        self.events: list[dict[str, Any]] = []
        self.requests: list[dict[str, Any]] = []
        self.keys: set[str | None] = set()

    def __call__(self, handler: BaseHTTPRequestHandler, body: bytes) -> None:
        path = handler.path.removeprefix("/v1")
        self.keys.add(handler.headers["Authorization"])
        if path == RECORDED:
            told = [
                {"prompt_token_ids": one["response"]["prompt_token_ids"]} for one in self.recorded
            ]
            send(handler, httpx.Response(200, json=[{"data": one} for one in told]))
            return
        asked = json.loads(body)
        if path == EVENTS and asked["event_type"] in self.refused:
            send(handler, httpx.Response(503, json={}))
            return
        if path == EVENTS:
            self.events.append(asked)
            send(handler, httpx.Response(200, json={}))
            return
        assert path == f"{PROXY}/chat/completions", path
        if next(self._asked) in self.paused:
            paused = {"error": "gateway paused", "reason": None}
            send(handler, httpx.Response(429, json=paused, headers={"Retry-After": "0"}))
            return
        answer = self._engine({**asked, "logprobs": True, "return_token_ids": True})
        if len(self.requests) == self.stopped_at:
            told = answer.json()
            told["choices"][0]["finish_reason"] = "abort"
            answer = httpx.Response(200, json=told)
        data = {"response": answer.json(), "http_status": 200, "status": "ok"}
        with self._lock:
            self.requests.append(asked)
            self.events.append({"event_type": "model_request", "data": data})
        send(handler, answer)

    @property
    def recorded(self) -> list[dict[str, Any]]:
        """Return what is known of the requests."""
        return self.of("model_request")

    def of(self, kind: str) -> list[dict[str, Any]]:
        """Return the data of the events of a kind."""
        return [event["data"] for event in self.events if event["event_type"] == kind]

    @property
    def trained(self) -> list[Step]:
        """What is trained: of each prompt the last request, where it was answered."""
        last = {tuple(data["response"]["prompt_token_ids"]): data for data in self.recorded}
        steps = []
        for prompt, data in last.items():
            for choice in data["response"]["choices"] if data["status"] == "ok" else ():
                logprobs = [one["logprob"] for one in choice["logprobs"]["content"]]
                steps.append(
                    Step(
                        prompt_ids=list(prompt), response_ids=choice["token_ids"], logprobs=logprobs
                    )
                )
        return steps


@contextmanager
def recording(case: Case) -> Iterator[tuple[Server, dict[str, str]]]:
    """Serve Agent Lightning's part; yields it and the variables that it sets."""
    server = Server(case)
    with served(server) as url:
        variables = {
            "AGL_OPENAI_BASE_URL": f"{url}{PROXY}",
            "AGL_EVENT_URL": f"{url}{EVENTS}",
            "AGL_KEY": "k1",
            "LIVESTREAM_ROW": json.dumps(case.row.to_json()),
        }
        yield server, variables
