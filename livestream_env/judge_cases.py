"""What a judge is shown: one comment, what was looked up, and the reply."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from typing import Any, NamedTuple

from livestream_env._resources import resource_folder
from livestream_env.keywords import has_han
from livestream_env.rooms import Room
from livestream_env.types import Message, Trajectory

LONGEST_TEXT = 4000


class Line(NamedTuple):
    """One thing said."""

    by: str
    """`viewer` or `host`."""
    text: str


class Evidence(NamedTuple):
    """One text that the host could see, and its name, `prompt` or `tool:1`."""

    source: str
    text: str


@dataclass(frozen=True, slots=True)
class Case:
    """What a judge is shown of one episode."""

    language: str
    comment: tuple[Line, ...]
    """The comments, and what was asked back and answered before the reply."""
    reply: str
    evidence: tuple[Evidence, ...] = ()
    calls: tuple[Mapping[str, Any], ...] = ()
    """The calls in order: `source` of the result, `name`, `arguments`."""
    tools: tuple[str, ...] = ()
    """The tools that there were, each with its description."""
    rules: tuple[str, ...] = ()
    """The reply rules of the room, each with its intent."""

    def material(self, names: Sequence[str]) -> dict[str, Any]:
        """Return the named parts as JSON values."""
        parts = {
            "comment": [line._asdict() for line in self.comment],
            "evidence": [one._asdict() for one in self.evidence],
            "calls": [dict(call) for call in self.calls],
            "tools": list(self.tools),
            "rules": list(self.rules),
            "reply": self.reply,
        }
        return {name: _clipped(parts[name]) for name in names}


MATERIALS = ("comment", "evidence", "calls", "tools", "rules", "reply")


def case_of(trajectory: Trajectory, room: Room | None, *, language: str | None = None) -> Case:
    """Return what a judge is shown of a trajectory; without a room, what the prompt shows of it."""
    asked = next(iter(trajectory.prompts.values()), ())
    prompt = "\n".join(message.content for message in asked if message.role == "user")
    comments = [] if room is None else [room.comment(one).text for one in trajectory.comment_ids]
    said = [Line("viewer", text) for text in comments or [prompt]] + _said_between(trajectory)
    calls, results = _calls_and_results(trajectory)
    if language is None:
        language = room.language if room is not None else "zh" if has_han(prompt) else "en"
    return Case(
        language=language,
        comment=tuple(said),
        reply=_reply_text(trajectory),
        evidence=(Evidence("prompt", prompt), *results),
        calls=calls,
        tools=_tools(trajectory),
        rules=() if room is None else _rules(room),
    )


def _said_between(trajectory: Trajectory) -> list[Line]:
    """Return what the host asked back, and what the viewer answered."""
    said = []
    for turn in trajectory.turns:
        if any(event.kind == "follow_up" for event in turn.events):
            said.append(Line("host", turn.action.message.content))
            answers = [message for message in turn.messages if message.role == "user"]
            said += [Line("viewer", message.content) for message in answers]
    return said


def _calls_and_results(
    trajectory: Trajectory,
) -> tuple[tuple[dict[str, Any], ...], tuple[Evidence, ...]]:
    calls: list[dict[str, Any]] = []
    results: list[Evidence] = []
    for turn in trajectory.turns:
        told = _results(turn.messages)
        for call in turn.action.message.tool_calls:
            source = f"tool:{len(calls) + 1}"
            calls.append({"source": source, "name": call.name, "arguments": dict(call.arguments)})
            if call.id in told:
                results.append(Evidence(source, told[call.id]))
    return tuple(calls), tuple(results)


def _results(messages: Sequence[Message]) -> dict[str | None, str]:
    return {one.tool_call_id: one.content for one in messages if one.role == "tool"}


def _reply_text(trajectory: Trajectory) -> str:
    if trajectory.reply is None:
        return ""
    speech = trajectory.turns[-1].action.speech
    return "\n".join(filter(None, (trajectory.reply, speech)))


def _tools(trajectory: Trajectory) -> tuple[str, ...]:
    specs = {spec.name: spec for agent in trajectory.tools.values() for spec in agent}
    return tuple(f"{spec.name}: {spec.description}" for spec in specs.values())


def _rules(room: Room) -> tuple[str, ...]:
    return tuple(f"{rule.intent}: {rule.rule}" for rule in room.reply_rules)


def _clipped(value: Any) -> Any:
    """Shorten the long texts of a JSON value: a policy may write as much as it likes."""
    if isinstance(value, str):
        if len(value) <= LONGEST_TEXT:
            return value
        return f"{value[:LONGEST_TEXT]}… [{len(value)} characters in all]"
    if isinstance(value, Mapping):
        return {key: _clipped(item) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [_clipped(item) for item in value]
    return value


# --- the labelled ones -----------------------------------------------------------------------


class LabelledCase(NamedTuple):
    """A case whose score people have settled."""

    case_id: str
    situation: str
    """Cases of one situation differ in the reply, or in the calls, alone."""
    metric: str
    case: Case
    label: int


@cache
def labelled_cases(language: str) -> tuple[LabelledCase, ...]:
    """Return the bundled cases of a language, 20 of each class."""
    path = resource_folder("fixtures") / "judge_cases" / f"{language}.json"
    situations = json.loads(path.read_text(encoding="utf-8"))["situations"]
    return tuple(case for situation in situations for case in _cases(language, situation))


def _cases(language: str, situation: Mapping[str, Any]) -> list[LabelledCase]:
    common = {
        "evidence": tuple(Evidence(*one) for one in situation.get("evidence", ())),
        "tools": tuple(situation.get("tools", ())),
        "rules": tuple(situation.get("rules", ())),
    }
    comment = (Line("viewer", situation["comment"]),)
    made = []
    for number, answer in enumerate(situation["answers"], 1):
        case = Case(
            language,
            comment,
            answer.get("reply", ""),
            calls=tuple(answer.get("calls", ())),
            **common,
        )
        name = situation["situation"]
        made.append(
            LabelledCase(f"{name}-{number}", name, situation["metric"], case, answer["label"])
        )
    return made
