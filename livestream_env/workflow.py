"""The static baseline: one intent, one retrieval, one rule, one templated reply.

It is what agents are measured against: a fixed graph that reads the first open comment alone, looks
nothing up twice and cannot come back from a wrong intent.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from functools import cache
from typing import Any

from livestream_env._resources import data_file
from livestream_env.agents import Findings, phrases, tools_language
from livestream_env.drivers import Seed
from livestream_env.tools import wording
from livestream_env.types import Action, Message, Observation, ToolSpec
from livestream_env.words import fold, format_amount


@cache
def _intents(language: str) -> list[dict[str, Any]]:
    table: dict[str, Any] = json.loads(data_file("intents.json").read_text(encoding="utf-8"))
    return list(table[language])


def classify(text: str, language: str) -> Mapping[str, Any]:
    """Return the intent whose words the text holds most of; the last one for none."""
    folded = fold(text)
    counts = [sum(word in folded for word in one["words"]) for one in _intents(language)]
    best = max(counts)
    return _intents(language)[counts.index(best) if best else -1]


class WorkflowAgent:
    """Intent, retrieval, rule, reply: the same four steps for every comment."""

    def start(self, observation: Observation, *, seed: Seed | None) -> _Workflow:
        """Return the agent of one episode; `seed` changes nothing."""
        text = observation.comments[0].text if observation.comments else ""
        return _Workflow(text, tools_language(observation.tools))

    def act(self, messages: Sequence[Message], tools: Sequence[ToolSpec]) -> Action:
        """Refuse: the agent of an episode is made by `start`, which drivers call."""
        raise RuntimeError("call `start(observation, seed=...)` first; `rollout` does")


class _Workflow:
    """The graph of one episode; a viewer's next message runs it once more."""

    def __init__(self, text: str, language: str) -> None:
        self._text = text
        self._language = language
        self._step = 0
        self._seen = 0

    def act(self, messages: Sequence[Message], tools: Sequence[ToolSpec]) -> Action:
        """Take the next step of the graph."""
        if messages[-1].role == "user" and self._step:
            self._text, self._step, self._seen = messages[-1].content, 0, len(messages)
        intent = classify(self._text, self._language)
        found = Findings(messages[self._seen :], None, self._language)
        self._step += 1
        if self._step == 1:
            return self._retrieve(intent)
        if self._step == 2:
            return Action.call("get_reply_rule", intent=intent["intent"])
        if self._step == 3 and not found.rules and found.known_intents:
            return Action.call("get_reply_rule", intent=found.known_intents[0])
        return self._reply(intent, found)

    def _retrieve(self, intent: Mapping[str, Any]) -> Action:
        query = self._text.strip()[:200] or "?"
        if intent["search"] == "product":
            return Action.call("search_product_by_keyword", keyword=query)
        return Action.call("search_faq", query=query)

    def _reply(self, intent: Mapping[str, Any], found: Findings) -> Action:
        words = phrases(self._language)
        said = words["fallback"]
        for (record, field), value in found.values.items():
            if field == "answer":
                said = value
                break
            if field == intent.get("field") and record.startswith("product"):
                said = self._product_sentence(found, record, field, value)
                break
        return Action.reply(words["prefix"] + said)

    def _product_sentence(self, found: Findings, record: str, field: str, value: Any) -> str:
        words = phrases(self._language)
        name = str(found.values.get((record, "name")))[:16]
        label = words["fields"][field]
        if value is None or value == wording(self._language)["unknown"]:
            return str(words["unknown"].format(name=name, field=label))
        shown = value if isinstance(value, str) else format_amount(value)
        return str(words["value"].format(name=name, field=label, value=shown))
