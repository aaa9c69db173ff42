"""The values: freezing, JSON round trips, totals of rewards."""

from __future__ import annotations

import copy
import dataclasses
import json
import math
import pickle
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import TypeAdapter, ValidationError

from livestream_env.types import (
    EMPTY,
    Action,
    CommentView,
    Fact,
    FaqBrief,
    FrozenDict,
    HistoryLine,
    Message,
    Observation,
    ProductBrief,
    Rewards,
    RoomView,
    Score,
    ScriptLine,
    State,
    Status,
    StopReason,
    ToolCall,
    ToolResult,
    ToolSpec,
    Trajectory,
    Turn,
    TurnEvent,
    freeze,
)

STATE = State(12.5, "p1", ("p1", "p2"), ("p1", "front"), ("转人工",), freeze({"n": [1]}))
CALL = ToolCall("a", "search_faq", freeze({"query": "包邮吗", "more": {"n": [1, 2.5, None]}}))
BROKEN = ToolCall("b", "", EMPTY, "invalid_json: no", "{bad")
FACT = Fact("product:p1", "coupon_price", 59.9, "yuan", "59.9起")
RESULT = ToolResult("a", "{}", (FACT,), "tool_limit", STATE, (TurnEvent("nearest", "x", "a"),))
ACTION = Action(
    Message("assistant", "有\u2028货", (CALL, BROKEN), None, "想"),
    token_ids=(1, 2, 3),
    logprobs=(-0.5, -math.inf, 0.0),
    prompt_ids=(7,),
    stop="stop",
    covers=("c1",),
    skips=("*",),
    channel="speech",
    speech="说",
    extras=freeze({"tone": "warm"}),
    events=(TurnEvent("surrogates_replaced"),),
)
SPEC = ToolSpec("f", "查", freeze({"type": "object", "properties": {}}), True, False)
COMMENT = CommentView("c1", "小葵", 12.5, "包邮吗", "p1")
REWARDS = Rewards(
    (
        Score("helpfulness", 0.5, 2.0, "replier", 1, "ok"),
        Score("rule", None, 1.0, "tool_caller", None, "none", "no_truth"),
    )
)
TURN = Turn(
    "host",
    ACTION,
    (RESULT,),
    (Message("tool", "{}", (), "a"),),
    (TurnEvent("tool_limit", "d", "a"),),
    0.25,
    "0123456789abcdef",
    "v1",
    1.5,
    2.5,
)
TRAJECTORY = Trajectory(
    room_id="r",
    content_hash="h",
    comment_ids=("c1",),
    seed=3,
    group="g",
    prompts={"host": (Message("system", "规则"), Message("user", "问"))},
    tools={"host": (SPEC,)},
    turns=(TURN,),
    state=STATE,
    status=Status.OK,
    stop_reason=StopReason.REPLIED,
    rewards=REWARDS,
    versions={"livestream_env": "0"},
    faults=(TurnEvent("retry"),),
    evidence=(FACT,),
)
VIEW = RoomView(
    "r",
    "h",
    "t",
    "zh",
    "老秦",
    ProductBrief("p1", 1, "面霜"),
    (ScriptLine("s1", 0.0, 5.0, "讲"),),
    (HistoryLine("host", "答", 1.0),),
    (COMMENT,),
    (FaqBrief("f1", "问", "答"),),
    STATE,
    "lexical@1",
    extras=freeze({"gesture": ["wave"]}),
    data=(FACT,),
)
VALUES = [
    CALL,
    BROKEN,
    FACT,
    RESULT,
    ACTION,
    SPEC,
    COMMENT,
    REWARDS,
    TURN,
    STATE,
    VIEW,
    Observation((Message("user", "x"),), (SPEC,), (COMMENT,)),
]


# --- JSON ------------------------------------------------------------------------------------


def test_a_trajectory_equals_itself_after_json() -> None:
    text = TRAJECTORY.model_dump_json()
    again = Trajectory.model_validate_json(text)
    assert again == TRAJECTORY
    assert again.model_dump_json() == text
    assert again.turns[0].action.logprobs == (-0.5, -math.inf, 0.0)
    assert isinstance(again.turns[0].action.message.tool_calls[0].arguments, FrozenDict)
    assert Trajectory.model_validate(TRAJECTORY.model_dump()) == TRAJECTORY


@pytest.mark.row("R10")
@pytest.mark.parametrize("value", VALUES, ids=lambda value: type(value).__name__)
def test_every_value_equals_itself_after_json(value: Any) -> None:
    adapter = TypeAdapter(type(value))
    assert adapter.validate_json(adapter.dump_json(value)) == value
    assert pickle.loads(pickle.dumps(value)) == value
    assert copy.deepcopy(value) == value


def containers(value: Any) -> list[dict[str, Any]]:
    """List the JSON objects that are values of ours, not arguments or other open objects."""
    found: list[dict[str, Any]] = []
    if isinstance(value, dict):
        found.append(value)
        is_open = {"arguments", "extras", "parameters", "versions"}
        for key, item in value.items():
            if key in ("prompts", "tools") and isinstance(item, dict):
                found += [c for one in item.values() for c in containers(one)]
            elif key not in is_open:
                found += containers(item)
    elif isinstance(value, list):
        found += [container for item in value for container in containers(item)]
    return found


def test_unknown_keys_are_refused_at_every_level() -> None:
    count = len(containers(json.loads(TRAJECTORY.model_dump_json())))
    # trajectory, 2 prompts, spec, turn, action, its message, 2 calls, its event, result, its fact,
    # its state, its event, the turn's message and event, the end's state, rewards, 2 scores, fault,
    # evidence
    assert count == 1 + 2 + 1 + 1 + 1 + 1 + 2 + 1 + 1 + 1 + 1 + 1 + 2 + 1 + 1 + 2 + 1 + 1
    for number in range(count):
        raw = json.loads(TRAJECTORY.model_dump_json())
        containers(raw)[number]["surprise"] = 1
        with pytest.raises(ValidationError, match="surprise"):
            Trajectory.model_validate_json(json.dumps(raw))


def test_a_wrong_channel_role_or_cause_is_refused() -> None:
    for path, wrong in ((("channel",), "email"), (("message", "role"), "bot")):
        raw = json.loads(TypeAdapter(Action).dump_json(ACTION))
        place = raw
        for key in path[:-1]:
            place = place[key]
        place[path[-1]] = wrong
        with pytest.raises(ValidationError):
            TypeAdapter(Action).validate_python(raw)
    with pytest.raises(ValidationError):
        TypeAdapter(Score).validate_python({"name": "x", "value": None, "cause": "tired"})


def test_line_separators_stay_inside_one_line_of_json() -> None:
    assert "\n" not in TRAJECTORY.model_dump_json()


# --- frozen ----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "value", [*VALUES, TRAJECTORY.turns[0].action.message], ids=lambda v: type(v).__name__
)
def test_values_cannot_be_changed(value: Any) -> None:
    name = dataclasses.fields(value)[0].name
    with pytest.raises(dataclasses.FrozenInstanceError):
        setattr(value, name, None)


def test_a_trajectory_cannot_be_changed() -> None:
    with pytest.raises(ValidationError, match="frozen"):
        TRAJECTORY.seed = 5


CHANGES = [
    lambda d: d.__setitem__("a", 1),
    lambda d: d.__delitem__("list"),
    lambda d: d.update(a=1),
    lambda d: d.pop("list"),
    lambda d: d.popitem(),
    lambda d: d.clear(),
    lambda d: d.setdefault("a", 1),
    lambda d: d.__ior__({"a": 1}),
    lambda d: d["list"].append(1),
    lambda d: d["list"].__setitem__(0, 1),
    lambda d: d["list"].__delitem__(0),
    lambda d: d["list"].extend([1]),
    lambda d: d["list"].insert(0, 1),
    lambda d: d["list"].pop(),
    lambda d: d["list"].remove(1),
    lambda d: d["list"].reverse(),
    lambda d: d["list"].sort(),
    lambda d: d["list"].clear(),
    lambda d: d["list"].__iadd__([1]),
    lambda d: d["list"].__imul__(2),
    lambda d: d["dict"].update(a=1),
    lambda d: d["list"][1].update(a=1),
]


@pytest.mark.parametrize("change", CHANGES)
def test_arguments_cannot_be_changed_a_copy_can(change: Any) -> None:
    given = {"list": [1, {"x": (1, 2)}], "dict": {"y": 1}}
    frozen = freeze(given)
    with pytest.raises(TypeError, match="change a copy"):
        change(frozen)
    assert frozen == {"list": [1, {"x": [1, 2]}], "dict": {"y": 1}}
    own = dict(frozen)
    own["a"] = 1
    assert "a" not in frozen
    assert frozen | {"a": 1} == {**frozen, "a": 1}


def test_what_was_frozen_is_a_copy() -> None:
    given: dict[str, Any] = {"list": [1], "dict": {"y": 1}}
    frozen = freeze(given)
    given["list"].append(2)
    given["dict"]["y"] = 2
    given["a"] = 1
    assert frozen == {"list": [1], "dict": {"y": 1}}


def test_frozen_values_are_json_and_can_be_copied_and_pickled() -> None:
    frozen = freeze({"list": [1, [2]], "dict": {"字": None}})
    plain = {"list": [1, [2]], "dict": {"字": None}}
    assert json.loads(json.dumps(frozen)) == plain
    for made in (
        pickle.loads(pickle.dumps(frozen)),
        copy.copy(frozen),
        copy.deepcopy(frozen),
        copy.deepcopy({"in": frozen})["in"],
    ):
        assert made == plain
        assert isinstance(made, FrozenDict)
        with pytest.raises(TypeError):
            made["list"].append(1)
    assert copy.copy(frozen["list"]) == copy.deepcopy(frozen["list"]) == [1, [2]]
    assert pickle.loads(pickle.dumps(frozen["list"])) == [1, [2]]
    assert hash(frozen) == hash(freeze(plain))
    assert hash(freeze({"l": [1]})["l"]) == hash(freeze({"l": [1]})["l"])


@pytest.mark.parametrize("wrap", [lambda v: v, lambda v: [v], lambda v: {"in": v}])
def test_canonical_text_tells_values_apart_and_not_the_order_of_keys(wrap: Any) -> None:
    texts = [freeze({"a": wrap(v), "b": 2}).canonical for v in (1, True, "1", 1.0, None, "None")]
    assert len(set(texts)) == len(texts)
    one, two = freeze({"a": wrap(1), "b": "x"}), freeze({"b": "x", "a": wrap(1)})
    assert one.canonical == two.canonical
    assert hash(one) == hash(two)


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=3), inner),
    max_leaves=6,
)


@given(st.dictionaries(st.text(max_size=3), JSON, max_size=4), st.randoms())
def test_canonical_text_depends_on_the_object_alone(value: dict[str, Any], random: Any) -> None:
    items = list(value.items())
    random.shuffle(items)
    assert freeze(value).canonical == freeze(dict(items)).canonical


# --- building --------------------------------------------------------------------------------


@pytest.mark.row("R10")
def test_actions_are_built_by_what_they_do() -> None:
    assert Action.call("f", x=1) == Action.calls(("f", {"x": 1}))
    call = Action.call("f", name="n").message.tool_calls[0]
    assert (call.name, dict(call.arguments)) == ("f", {"name": "n"})
    both = Action.calls(("f", {"x": [1]}), ("g", {}), text="稍等")
    assert [c.name for c in both.message.tool_calls] == ["f", "g"]
    assert both.message.content == "稍等"
    reply = Action.reply("有", covers=["c1"], channel="speech", speech="说", extras={"tone": "t"})
    assert (reply.message, reply.covers) == (Message("assistant", "有"), ("c1",))
    assert (reply.channel, reply.speech, dict(reply.extras)) == ("speech", "说", {"tone": "t"})
    assert Action.skip() == Action(Message("assistant", ""), skips=("*",))
    assert Action.skip(["c1"]).skips == ("c1",)


def test_messages_and_specs_are_written_for_openai_clients() -> None:
    assert Message("tool", "{}", (), "a").to_openai() == {
        "role": "tool",
        "content": "{}",
        "tool_call_id": "a",
    }
    sent = ACTION.message.to_openai()
    assert sent["content"] == "有\u2028货"
    assert [call["type"] for call in sent["tool_calls"]] == ["function", "function"]
    assert json.loads(sent["tool_calls"][0]["function"]["arguments"]) == CALL.arguments
    assert "包邮吗" in sent["tool_calls"][0]["function"]["arguments"]
    assert sent["tool_calls"][1]["function"]["arguments"] == "{bad"
    parameters = SPEC.to_openai()["function"]["parameters"]
    parameters["changed"] = True
    assert "changed" not in SPEC.parameters


def test_the_transcript_is_prompt_then_each_turns_messages() -> None:
    prompt = TRAJECTORY.prompts["host"]
    assert TRAJECTORY.messages == (*prompt, ACTION.message, TURN.messages[0])
    assert TRAJECTORY.model_copy(update={"stop_reason": StopReason.TURN_LIMIT}).reply is None
    said = Turn("host", Action.reply("有货"))
    assert TRAJECTORY.model_copy(update={"turns": (TURN, said)}).reply == "有货"
    assert TRAJECTORY.model_copy(update={"prompts": {}, "turns": ()}).messages == ()


# --- rewards: DESIGN section 9 ---------------------------------------------------------------


def total(*scores: Score, agent: str | None = None) -> float | None:
    return Rewards(scores).total(agent)


def test_a_total_is_the_weighted_sum() -> None:
    # 0.5 * 0.4 + 1.0 * 0.6 = 0.8
    assert total(Score("a", 0.5, 0.4), Score("b", 1.0, 0.6)) == pytest.approx(0.8)
    assert total(Score("a", 0.0, 0.4), Score("b", 0.0, 0.6)) == 0.0


@pytest.mark.parametrize("cause", ["no_truth", "not_applicable"])
def test_a_score_that_cannot_be_known_shares_its_weight_out(cause: Any) -> None:
    # weights 2, 1, 1; the last says nothing: (0.5 * 2 + 1.0 * 1) * 4 / 3 = 2.666...
    scores = Score("a", 0.5, 2.0), Score("b", 1.0, 1.0), Score("c", None, 1.0, cause=cause)
    assert total(*scores) == pytest.approx(8 / 3)
    assert total(Score("c", None, 1.0, cause=cause)) is None


@pytest.mark.parametrize("cause", ["judge_error", "timeout", "refused", None])
def test_a_score_that_failed_makes_its_agents_total_missing(cause: Any) -> None:
    scores = (
        Score("a", 0.5, 1.0, "replier"),
        Score("b", None, 1.0, "replier", cause=cause),
        Score("c", 1.0, 2.0, "tool_caller"),
    )
    assert total(*scores, agent="replier") is None
    assert total(*scores, agent="tool_caller") == 2.0
    assert total(*scores) is None
    assert total(*scores, agent="host") is None


def test_the_total_of_all_is_the_mean_of_the_agents() -> None:
    scores = Score("a", 0.5, 1.0, "replier"), Score("c", 1.0, 2.0, "tool_caller")
    assert total(*scores) == total(*scores, agent="host") == pytest.approx(1.25)


def test_scores_of_single_turns_are_not_in_the_total() -> None:
    assert total(Score("a", 0.5), Score("step", 9.0, turn=0)) == 0.5
    assert total(Score("step", 9.0, turn=0)) is None


def test_no_scores_are_no_total() -> None:
    assert total() is None
    assert total(agent="nobody") is None
    assert total(Score("a", 1.0, 0.0)) is None
    assert TRAJECTORY.model_copy(update={"rewards": None}).reward is None
    assert TRAJECTORY.model_copy(update={"rewards": Rewards((Score("a", 1.0),))}).reward == 1.0


@pytest.mark.parametrize("value", [float("nan"), float("inf")])
def test_a_score_is_finite(value: float) -> None:
    with pytest.raises(ValueError, match="finite number or `None`"):
        Score("x", value)


def test_a_score_names_a_known_cause() -> None:
    with pytest.raises(ValueError, match="known are `no_truth`"):
        Score("x", None, cause="because")  # type: ignore[arg-type]


def test_rewards_of_a_list_equal_those_of_a_tuple() -> None:
    assert Rewards([Score("x", 1.0)]) == Rewards((Score("x", 1.0),))  # type: ignore[arg-type]


def test_comment_ids_are_text() -> None:
    assert Action.reply("好", covers="c1").covers == ("c1",)
    with pytest.raises(TypeError, match="comment ids are text"):
        Action.reply("好", covers=[1])  # type: ignore[list-item]
