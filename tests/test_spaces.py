"""Spaces of messages and actions; G4 of FAULTS.md."""

from __future__ import annotations

import copy
import json
import pickle
from typing import Any

import numpy as np
import pytest

from livestream_env.env import LiveRoomEnv
from livestream_env.room_files import load_room
from livestream_env.spaces import ActionSpace, ObservationSpace, random_action
from livestream_env.tools import argument_fault, tool_specs
from livestream_env.types import Action, CommentView, Message, Observation, ToolSpec, freeze

TEXTS = ["汉字", "😀👨‍👩‍👧‍👦", "多少\u200b钱", "一行\n两行", "", "长" * 5000, "\u2028\x00"]


def observation(text: str) -> Observation:
    comment = CommentView("c1", text, 1.0, text)
    return Observation((Message("user", text),), tool_specs("zh"), (comment,))


@pytest.mark.parametrize("text", TEXTS, ids=range(len(TEXTS)))
def test_any_viewer_text_is_contained(text: str) -> None:
    space = ObservationSpace()
    assert observation(text) in space
    [again] = space.from_jsonable(json.loads(json.dumps(space.to_jsonable([observation(text)]))))
    assert again == observation(text)
    actions = ActionSpace(tool_specs("zh"))
    for action in (text, Action.reply(text), {"role": "assistant", "content": text}):
        assert action in actions


@pytest.mark.parametrize(
    "given",
    [
        None,
        "text",
        {},
        Observation("text"),  # type: ignore[arg-type]
        Observation(["m"]),  # type: ignore[arg-type]
        Observation(("m",)),  # type: ignore[arg-type]
        Observation((), ("t",)),  # type: ignore[arg-type]
        Observation((), (), ("c",)),  # type: ignore[arg-type]
    ],
)
def test_what_is_no_observation_is_not_contained(given: object) -> None:
    assert given not in ObservationSpace()
    assert Observation(()) in ObservationSpace()


@pytest.mark.parametrize(
    "given",
    [None, 5, b"x", ["x"], {"role": "user"}, Action.call("f", x=object()), Action("x")],  # type: ignore[arg-type]
)
def test_what_step_refuses_is_no_action(given: object) -> None:
    assert given not in ActionSpace()


@pytest.mark.parametrize(
    "action",
    [
        Action.reply("有货", covers=("c1",), channel="speech", extras={"tone": "warm"}),
        Action.calls(("f", {"a": [1, {"b": None}]}), ("g", {}), text="稍等"),
        Action(Message("assistant", "x"), token_ids=(1, 2), logprobs=(-0.5, float("-inf"))),
    ],
)
def test_actions_are_themselves_after_json(action: Action) -> None:
    space = ActionSpace()
    [again] = space.from_jsonable(json.loads(json.dumps(space.to_jsonable([action]))))
    assert again == action


def test_model_text_is_written_as_the_action_it_is() -> None:
    space = ActionSpace()
    [read] = space.from_jsonable(space.to_jsonable(["亲，有货"]))
    assert read == Action.reply("亲，有货")


def test_spaces_of_equal_tools_are_equal_and_named_by_them() -> None:
    specs = tool_specs("zh", ["search_faq", "hand_off"])
    assert ActionSpace(specs) == ActionSpace(specs)
    assert ActionSpace(specs) != ActionSpace(specs[:1])
    assert ActionSpace(specs) != ObservationSpace()
    assert ObservationSpace() == ObservationSpace(seed=5)
    assert ObservationSpace() != ActionSpace()
    assert repr(ActionSpace(specs)) == "ActionSpace(search_faq, hand_off)"
    assert repr(ObservationSpace()) == "ObservationSpace()"
    assert not ActionSpace(specs).is_np_flattenable
    assert not ObservationSpace().is_np_flattenable


@pytest.mark.parametrize("copied", [copy.deepcopy, lambda s: pickle.loads(pickle.dumps(s))])
def test_copies_are_equal_and_draw_the_same(copied: Any) -> None:
    for space in (ObservationSpace(seed=3), ActionSpace(tool_specs("zh"), seed=3)):
        space.sample()
        again = copied(space)
        assert again == space
        assert [again.sample() for _ in range(5)] == [space.sample() for _ in range(5)]


def test_seeded_samples_repeat_and_are_contained() -> None:
    for make in (ObservationSpace, lambda seed: ActionSpace(tool_specs("en"), seed=seed)):
        one, other, third = make(seed=7), make(seed=7), make(seed=8)
        drawn = [one.sample() for _ in range(40)]
        assert drawn == [other.sample() for _ in range(40)]
        assert drawn != [third.sample() for _ in range(40)]
        assert all(sample in one for sample in drawn)
        one.seed(7)
        assert [one.sample() for _ in range(40)] == drawn


def test_three_hundred_samples_are_taken_by_step() -> None:
    env = LiveRoomEnv(load_room("snacks"), embedder="lexical", max_turns=30)
    env.action_space.seed(1)
    called: set[str] = set()
    done = True
    for number in range(300):
        if done:
            env.reset(seed=number)
        action = env.action_space.sample()
        assert action in env.action_space
        for call in action.message.tool_calls:
            assert argument_fault(call.name, call.arguments) is None
            called.add(call.name)
        seen, _, terminated, truncated, info = env.step(action)
        assert seen in env.observation_space
        done = terminated or truncated
        assert "invalid_call" not in info["events"]
    assert called == {spec.name for spec in tool_specs("zh")}


def test_a_sample_without_tools_is_a_reply() -> None:
    assert not ActionSpace().sample().message.tool_calls
    english = random_action(np.random.default_rng(0), (), language="en")
    assert english.message.content.isascii()


def test_arguments_are_drawn_as_any_schema_says() -> None:
    properties = {
        "kind": {"const": "x"},
        "one": {"enum": ["a", "b"]},
        "whole": {"type": "integer", "minimum": 5, "maximum": 6},
        "number": {"type": "number", "minimum": 0.5},
        "flag": {"type": "boolean"},
        "list": {"type": "array", "items": {"type": "integer"}},
        "object": {"type": "object", "properties": {"text": {"type": "string"}}},
        "either": {"anyOf": [{"type": "string"}, {"type": "null"}]},
        "open": {},
    }
    spec = ToolSpec("own", "", freeze({"type": "object", "properties": properties}))
    rng = np.random.default_rng(0)
    for _ in range(50):
        drawn = random_action(rng, [spec], ["词"], reply_share=0.0).message.tool_calls[0].arguments
        assert drawn["kind"] == "x"
        assert drawn["one"] in ("a", "b")
        assert drawn["whole"] in (5, 6)
        assert drawn["number"] >= 0.5
        assert type(drawn["flag"]) is bool
        assert [type(n) for n in drawn["list"]] == [int]
        assert drawn["object"] == {"text": "词"}
        assert drawn["either"] == drawn["open"] == "词"
