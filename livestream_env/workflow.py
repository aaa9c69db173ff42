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
from livestream_env.drivers import Seed
from livestream_env.findings import (
    Call,
    Findings,
    joined,
    not_started,
    offered,
    phrases,
    say,
    tools_language,
)
from livestream_env.types import Action, Message, Observation, ToolSpec
from livestream_env.words import fold


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
        not_started()


class _Workflow:
    """The graph of one episode; a viewer's next message runs it once more."""

    def __init__(self, text: str, language: str) -> None:
        self._text = text
        self._language = language
        self._step = 0
        self._seen = 0

    def act(self, messages: Sequence[Message], tools: Sequence[ToolSpec]) -> Action:
        """Take the next step of the graph, over those whose tool there is not."""
        if messages[-1].role == "user" and self._step:
            self._text, self._step, self._seen = messages[-1].content, 0, len(messages)
        found = Findings(messages[self._seen :], None, self._language)
        intent = classify(self._text, self._language)
        for step in _STEPS[self._step :]:
            self._step += 1
            calls = offered(step(self, intent, found), tools)
            if calls:
                return Action.calls(*calls)
        return self._reply(intent, found)

    def _retrieve(self, intent: Mapping[str, Any], _: Findings) -> list[Call]:
        query = self._text.strip()[:200] or "?"
        if intent["search"] == "product":
            return [("search_product_by_keyword", {"keyword": query})]
        return [("search_faq", {"query": query})]

    def _look_up_rule(self, intent: Mapping[str, Any], _: Findings) -> list[Call]:
        """Ask for the intent's rule by every name that shops give it."""
        names = [intent["intent"], *intent.get("also", ())]
        return [("get_reply_rule", {"intent": names if len(names) > 1 else names[0]})]

    def _look_up_nearest_rule(self, _: Mapping[str, Any], found: Findings) -> list[Call]:
        if found.rules or not found.known_intents:
            return []
        return [("get_reply_rule", {"intent": found.known_intents[0]})]

    def _reply(self, intent: Mapping[str, Any], found: Findings) -> Action:
        said = phrases(self._language)["fallback"]
        for record, name in found.values:
            if name == "answer" or (name == intent.get("field") and record.startswith("product:")):
                said = say(found, record, name)
                break
        return Action.reply(joined(self._language, [said]))


_STEPS = (_Workflow._retrieve, _Workflow._look_up_rule, _Workflow._look_up_nearest_rule)
