"""Are generated rooms solvable? The scripted agent plays every comment of many of them.

Run `python benchmarks/solvability.py [ROOMS] [EMBEDDER]`; 300 rooms by default, over seeds, levels,
languages and splits. It prints the comments that are not answered whole from tool results, counts
by level, and how many of the comments in words of their own come back empty when searched as they
stand. The checker reads the key as JSON and shares no code with rewards.
"""

from __future__ import annotations

import json
import sys
import time
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "tests"))

from answer_key import Raw, broken_checks, raw_asks, states

import livestream_env as le
from livestream_env.synthetic import make_room

FAULTS = {"tool_limit", "tool_error", "invalid_call", "reply_too_long", "reminder"}
KNOBS: tuple[dict[str, Any], ...] = (
    {},
    {"products": 12, "comments": 40, "noise": 0.6},
    {"products": 60, "comments": 60, "near_duplicates": 0.5},
    {"products": 20, "comments": 50, "events": False},
    {"products": 30, "comments": 60, "chatter": 0.0, "promotions": False},
)


def proof_room(number: int, **knobs: Any) -> le.Room:
    """Make a room of the proof: they go over languages, splits, levels and knobs."""
    language, split = ("zh", "en")[number % 2], ("train", "train", "test")[number // 2 % 3]
    level = (3, 2, 1, 3)[number // 6 % 4]
    options = knobs or KNOBS[number % len(KNOBS)]
    return make_room(number // 4, language, level=level, split=split, **options)  # type: ignore[arg-type]


class Checker:
    """Plays the comments of one room and tells what is missing from the replies."""

    def __init__(self, room: le.Room, embedder: str = "lexical") -> None:
        self.room = room
        dumped: Raw = json.loads(room.model_dump_json(exclude_defaults=True))
        self.raw = {"events": [], **dumped}
        self.agent: Any = le.ScriptedAgent(room)
        self._env = le.LiveRoomEnv(room, embedder=embedder, comment=room.comments[0].comment_id)

    def play(self, comment_id: str) -> le.Trajectory:
        """Play one comment with the scripted agent."""
        return le.rollout(self._env, self.agent, seed=0, options={"comment": comment_id})

    def faults(self) -> list[str]:
        """Return one line for each thing that is wrong with a reply."""
        return [
            f"{self.room.room_id} {comment['comment_id']} {comment['text']!r}: {fault}"
            for comment in self.raw["comments"]
            for fault in self.comment_faults(comment, self.play(comment["comment_id"]))
        ]

    def comment_faults(self, comment: Raw, trajectory: le.Trajectory) -> Iterator[str]:
        """Yield what is wrong with an episode."""
        if trajectory.stop_reason != le.StopReason.REPLIED:
            yield f"stopped: {trajectory.stop_reason}"
        kinds = {event.kind for turn in trajectory.turns for event in turn.events}
        yield from sorted(f"event {kind}" for kind in kinds & FAULTS)
        heard = 0
        for asks, reply, facts in self._rounds(comment, trajectory):
            heard += 1
            for fault in self._round_faults(comment, asks, reply, facts):
                yield f"{fault} in {reply!r}"
        if heard != 1 + bool(comment.get("follow_ups")):
            yield f"{heard} replies"
        yield from self._state_faults(comment["expected"].get("state", {}), trajectory)

    def _rounds(
        self, comment: Raw, trajectory: le.Trajectory
    ) -> Iterator[tuple[Sequence[Raw], str, list[Any]]]:
        """Yield the asks, the reply and the tool facts before it, for each time the viewer
        spoke."""
        asks, facts, rules = raw_asks(comment), [], []
        for turn in trajectory.turns:
            found = [fact for result in turn.results for fact in result.data]
            facts += [fact for fact in found if not fact.record.startswith("rule:")]
            rules += [fact for fact in found if fact.record.startswith("rule:")]
            if turn.action.message.tool_calls:
                continue
            yield asks, turn.action.message.content, facts + rules
            rules = []
            for message in turn.messages:
                told = (f for f in comment["follow_ups"] if f["text"] == message.content)
                asks = raw_asks(next(told))

    def _round_faults(
        self, comment: Raw, asks: Sequence[Raw], reply: str, facts: Sequence[Any]
    ) -> Iterator[str]:
        seen = {fact.record for fact in facts}
        for ask in asks:
            acts = ask.get("acts", ["answer"])
            for statement in ask.get("facts", ()):
                if not states(self.raw, comment["at_s"], statement, reply):
                    yield f"not stated: {statement}"
            for statement in ask.get("must_not", ()):
                if states(self.raw, comment["at_s"], statement, reply):
                    yield f"stated, but wrong: {statement}"
            for needed in ask.get("needed", ()):
                if needed not in seen:
                    yield f"not seen: {needed}"
            if (acts[0] == "ask") != reply.endswith(("?", "？")) or (acts[0] == "ignore") == (
                reply != ""
            ):
                yield f"not the act {acts[0]}"
        if len(reply) > self.raw["limits"]["bullet_characters"]:
            yield f"too long: {len(reply)}"
        if reply:
            yield from self._rule_faults(asks, reply, facts)

    def _rule_faults(self, asks: Sequence[Raw], reply: str, facts: Sequence[Any]) -> Iterator[str]:
        looked_up = {fact.record.removeprefix("rule:") for fact in facts}
        rules = [rule for rule in self.raw["reply_rules"] if rule["rule_id"] in looked_up]
        if {rule["intent"] for rule in rules} != {ask["intent"] for ask in asks}:
            yield f"rules of {[rule['intent'] for rule in rules]}"
        links = {product["link_no"] for product in self.raw["products"]}
        for rule in rules:
            broken = broken_checks(rule["checks"], reply, links)
            yield from (f"check {check} of {rule['intent']}" for check in broken)

    def _state_faults(self, wanted: Mapping[str, Any], trajectory: le.Trajectory) -> Iterator[str]:
        state = trajectory.state
        assert state is not None
        if "position_at_most" in wanted:
            position = state.product_order.index(wanted["product"]) + 1
            if position > wanted["position_at_most"]:
                yield f"position {position}"
        if "image" in wanted and state.shown_image != (wanted["product"], wanted["image"]):
            yield f"image {state.shown_image}"
        if bool(state.hand_offs) != wanted.get("handed_off", False):
            yield "hand-off"


def tags(comment: Any) -> dict[str, str]:
    """Return a generated comment's tags: level, skill, noise."""
    return dict(part.split("=", 1) for part in comment.expected.provenance.split(";"))


def main(count: int = 300, embedder: str = "lexical") -> int:
    """Play `count` rooms and print what came of it."""
    played: Counter[str] = Counter()
    failed: Counter[str] = Counter()
    empty: Counter[bool] = Counter()
    start, making = time.perf_counter(), 0.0
    for number in range(count):
        before = time.process_time()
        room = proof_room(number)
        making += time.process_time() - before
        checker = Checker(room, embedder)
        for raw, comment in zip(checker.raw["comments"], room.comments, strict=True):
            tag = tags(comment)
            trajectory = checker.play(comment.comment_id)
            faults = list(checker.comment_faults(raw, trajectory))
            played[tag["level"]] += 1
            failed[tag["level"]] += bool(faults)
            if tag["skill"] == "reword":
                first = trajectory.turns[0].results
                empty[not any(result.data for result in first)] += 1
            for fault in faults:
                print(f"{room.room_id} {comment.comment_id} [{tag['skill']}]: {fault}")
    total = played.total()
    print(f"{count} rooms with `{embedder}`, {total} comments, {failed.total()} not solved")
    for level in sorted(played):
        print(f"  level {level}: {played[level] - failed[level]} of {played[level]} solved")
    print(f"  comments whose own words find nothing: {empty[True]} of {empty.total()}")
    print(
        f"  {making / count * 1000:.0f} ms CPU a room; {time.perf_counter() - start:.0f} s in all"
    )
    return int(failed.total() > 0)


if __name__ == "__main__":
    sys.exit(main(*(int(a) if a.isdigit() else a for a in sys.argv[1:])))
