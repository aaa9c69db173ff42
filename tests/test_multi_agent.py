"""The PettingZoo environment: its contract, and the same episode as with one agent."""

from __future__ import annotations

import inspect
import sys
import warnings
from functools import cache
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from rooms_for_tests import small_room
from test_env import failing_env

import livestream_env as le
from livestream_env.errors import MissingDependency, ResetNeeded, SandboxError
from livestream_env.spaces import random_action
from livestream_env.types import Action, Score, Turn

pytest.importorskip("pettingzoo", reason="needs the `multi-agent` extra")
RULE = Action.call("get_reply_rule", intent="物流")
LOOK_UP = Action.call("search_faq", query="发货")
ASKS = "亲，身高体重多少呢？"


def small_aec(**options: Any) -> Any:
    return le.liveroom_aec(small_room(), embedder="lexical", **options)


def opened(seed: int = 0, **options: Any) -> Any:
    aec = small_aec(**options)
    aec.reset(seed=seed)
    return aec


def played(*actions: Any, seed: int = 0, **options: Any) -> Any:
    aec = opened(seed, **options)
    for action in actions:
        aec.step(action)
    return aec


# --- the contract of PettingZoo ------------------------------------------------------------------


@pytest.mark.row("R50")
def test_the_tests_of_pettingzoo_pass() -> None:
    from pettingzoo.test import api_test, seed_test

    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", "Observation is not a NumPy array")
        warnings.filterwarnings("ignore", ".* space for each agent probably should be")
        warnings.filterwarnings("ignore", "We recommend agents to be named")
        api_test(small_aec(), num_cycles=60)
        seed_test(small_aec, num_cycles=20)


def test_the_arguments_are_those_of_the_environment_of_one_agent() -> None:
    ours, other = inspect.signature(le.liveroom_aec), inspect.signature(le.LiveRoomEnv)
    assert ours.parameters == other.parameters
    with pytest.raises(TypeError, match="commment"):
        le.liveroom_aec(commment="c1")  # type: ignore[call-arg]


def test_a_missing_extra_is_named_with_the_command_that_installs_it(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setitem(sys.modules, "pettingzoo", None)
    monkeypatch.delitem(sys.modules, "livestream_env.aec", raising=False)
    with pytest.raises(MissingDependency, match=r"pip install 'livestream-env\[multi-agent\]'"):
        le.liveroom_aec()


def test_options_are_checked_as_without_a_second_agent() -> None:
    aec = small_aec()
    aec.reset(options={"comment": "c3"})
    assert aec.observe("tool_caller")["comments"][0].comment_id == "c3"
    with pytest.raises(ValueError, match="Did you mean `comment`"):
        aec.reset(options={"coment": "c3"})


def test_every_observation_lies_in_the_space_and_text_in_none() -> None:
    aec = opened()
    for agent in aec.agents:
        space = aec.observation_space(agent)
        assert space.contains(aec.observe(agent))
        assert not space.contains({**aec.observe(agent), "messages": "text"})
        assert space.contains(space.sample())
        assert set(space) == {"messages", "tools", "comments", "phase"}


# --- who acts, and what it is told ---------------------------------------------------------------


@pytest.mark.row("R50", "R51")
def test_the_environment_ends_the_tool_phase_with_the_turn_that_found_the_rule() -> None:
    aec = opened()
    seen = []
    for action in (LOOK_UP, Action.call("get_reply_rule", intent="没有"), RULE, "好的"):
        seen.append((aec.agent_selection, aec.last()[4]["phase"], aec.observe("replier")["phase"]))
        aec.step(action)
    tools = ("tool_caller", "tools", "tools")
    assert seen == [tools, tools, tools, ("replier", "reply", "reply")]
    assert aec.env.trajectory.stop_reason == "replied"


def test_an_agent_is_told_what_came_since_its_own_last_message() -> None:
    aec = opened()
    prompt = aec.env.episode.prompt
    assert aec.observe("tool_caller")["messages"] == prompt
    aec.step(LOOK_UP)
    first = aec.env.episode.turns[0]
    assert aec.observe("tool_caller")["messages"] == first.messages
    aec.step(RULE)
    second = aec.env.episode.turns[1]
    chain = (first.action.message, *first.messages, second.action.message, *second.messages)
    assert aec.observe("replier")["messages"] == (*prompt, *chain)
    assert aec.observe("replier")["tools"] == aec.observe("tool_caller")["tools"]


def test_a_viewer_who_answers_opens_another_tool_phase() -> None:
    aec = played(Action.call("get_reply_rule", intent="尺码"), ASKS, seed=1)
    assert aec.agent_selection == "tool_caller"
    looked_up, asked = aec.env.episode.turns
    told = aec.observe("tool_caller")["messages"]
    assert told == (*looked_up.messages, asked.action.message, *asked.messages)
    assert told[-1].content == "170，65公斤"
    assert [m.content for m in aec.observe("replier")["messages"]] == ["170，65公斤"]


@pytest.mark.row("R50")
@pytest.mark.parametrize(
    ("actions", "options"),
    [
        pytest.param(["好的"], {}, id="it speaks instead"),
        pytest.param([LOOK_UP, LOOK_UP], {"max_turns": 2}, id="it is out of turns"),
        pytest.param([LOOK_UP, "好的"], {}, id="it looks something else up"),
    ],
)
def test_without_the_rule_the_replier_has_no_turn(actions: list[Any], options: Any) -> None:
    aec = played(*actions, **options)
    trajectory = aec.env.trajectory
    assert trajectory.stop_reason == "no_reply"
    assert [turn.agent for turn in trajectory.turns] == ["tool_caller"] * len(actions)
    assert (trajectory.reply, trajectory.status) == (None, "ok")
    assert aec.terminations == {"tool_caller": True, "replier": True}


def test_the_replier_may_call_once_in_vain_and_then_speaks() -> None:
    aec = played(RULE, LOOK_UP)
    assert aec.agent_selection == "replier"
    assert aec.last()[4]["events"] == ["tool_not_available"]
    aec.step("好的")
    assert aec.env.trajectory.stop_reason == "replied"


# --- ends and rewards ----------------------------------------------------------------------------


def rubric(*scores: Score) -> Any:
    return lambda trajectory, room: le.Rewards(scores)


def test_both_terminate_together_and_the_rewards_arrive_then() -> None:
    own = rubric(Score("a", 0.25, agent="tool_caller"), Score("b", 0.75, agent="replier"))
    aec = opened(rubric=own)
    for action in (LOOK_UP, RULE):
        aec.step(action)
        assert aec.rewards == {"tool_caller": 0.0, "replier": 0.0}
        assert not any(aec.terminations.values())
    aec.step("好的")
    assert (aec.rewards, aec.truncations) == (
        {"tool_caller": 0.25, "replier": 0.75},
        {"tool_caller": False, "replier": False},
    )
    ended = []
    for agent in aec.agent_iter():
        _, reward, terminated, _, _ = aec.last()
        ended.append((agent, reward, terminated))
        aec.step(None)
    assert ended == [("tool_caller", 0.25, True), ("replier", 0.75, True)]
    assert aec.agents == []


def test_nobody_steps_before_a_reset_or_when_all_have_left() -> None:
    aec = le.liveroom_aec(small_room(), embedder="lexical")
    with pytest.raises(ResetNeeded, match="no agent plays; call `reset`"):
        aec.step("好的")
    aec = played(RULE, "好的", None, None)
    for action in ("好的", None):
        with pytest.raises(ResetNeeded, match="no agent plays; call `reset`"):
            aec.step(action)


def test_a_rubric_that_knows_no_agents_gives_both_the_whole_reward() -> None:
    aec = played(RULE, "好的", rubric=rubric(Score("a", 0.5)))
    assert aec.rewards == {"tool_caller": 0.5, "replier": 0.5}


def test_scores_of_turns_go_to_their_agent_as_the_turns_are_made() -> None:
    def turns(trajectory: le.Trajectory, room: Any) -> le.Rewards:
        of_turns = [Score("t", 1.0 + i, turn=i) for i in range(len(trajectory.turns))]
        return le.Rewards([*of_turns, Score("a", 0.5)])

    aec = opened(rubric=turns, process=True)
    given = []
    for action in (LOOK_UP, RULE, "好的"):
        aec.step(action)
        given.append((aec.rewards["tool_caller"], aec.rewards["replier"]))
    assert given == [(1.0, 0.0), (2.0, 0.0), (0.5, 3.5)]


def test_a_missing_score_is_no_reward_of_zero() -> None:
    missing = rubric(Score("a", None, agent="replier", cause="judge_error"), Score("b", 1.0))
    assert np.isnan(played(RULE, "好的", rubric=missing).rewards["replier"])
    assert played(RULE, "好的", rubric=None).rewards == {"tool_caller": 0.0, "replier": 0.0}


def test_failing_infrastructure_truncates_both_or_raises() -> None:
    from livestream_env.aec import LiveRoomAEC

    aec = LiveRoomAEC(failing_env(0, on_env_error="truncate"))
    aec.reset(seed=0)
    aec.step(LOOK_UP)
    assert (set(aec.truncations.values()), set(aec.terminations.values())) == ({True}, {False})
    assert all(np.isnan(reward) for reward in aec.rewards.values())
    raising = LiveRoomAEC(failing_env(0))
    raising.reset(seed=0)
    with pytest.raises(SandboxError):
        raising.step(LOOK_UP)
    with pytest.raises(ResetNeeded):
        raising.step(LOOK_UP)


def test_the_transcript_is_rendered() -> None:
    aec = played(RULE, "好的", render_mode="ansi")
    assert "get_reply_rule" in aec.render()
    assert aec.render().endswith("[replied]\n")
    aec.close()


# --- the same episode as with one agent ----------------------------------------------------------

REPLIES = ("好的", ASKS, "亲，身高多少呢？", "您多重呀，体重说一下？", "", "包邮哦")


@cache
def room_of(number: int) -> le.Room:
    if number == 0:
        return small_room()
    return le.make_room(number, "zh" if number % 2 else "en", products=6, comments=6, level=3)


@cache
def envs_of(number: int, process: bool) -> tuple[le.LiveRoomEnv, Any]:
    options: dict[str, Any] = {"embedder": "lexical", "max_turns": 99, "process": process}
    room = room_of(number)
    return le.LiveRoomEnv(room, **options), le.liveroom_aec(room, **options)


def message_of(rng: np.random.Generator, specs: Any, texts: Any) -> Action:
    """Draw one to three calls, none of them of the rule."""
    others = [spec for spec in specs if spec.name != "get_reply_rule"]
    drawn = [random_action(rng, others, texts, reply_share=0) for _ in range(rng.integers(1, 4))]
    calls = [call for action in drawn for call in action.message.tool_calls]
    return Action.calls(*((call.name, dict(call.arguments)) for call in calls), text="看看")


def round_of(rng: np.random.Generator, env: le.LiveRoomEnv) -> list[Action]:
    room = env.room
    assert room is not None
    texts = [*(product.name for product in room.products), *(faq.question for faq in room.faqs)]
    specs = env.episode.specs
    messages = [message_of(rng, specs, texts) for _ in range(rng.integers(0, 4))]
    intent = room.reply_rules[int(rng.integers(len(room.reply_rules)))].intent
    rule = ("get_reply_rule", {"intent": intent})
    last = message_of(rng, specs, texts).message.tool_calls if rng.random() < 0.5 else ()
    rules = Action.calls(*((call.name, dict(call.arguments)) for call in last), rule)
    return [*messages, rules, Action.reply(REPLIES[int(rng.integers(len(REPLIES)))])]


def what_came_of(turn: Turn) -> Any:
    return turn.action, turn.results, turn.messages, turn.events, turn.reward


@pytest.mark.row("R50", "R52")
@settings(max_examples=60)
@given(st.integers(0, 3), st.integers(0, 10**6), st.booleans())
def test_rounds_give_the_same_episode_with_two_agents_as_with_one(
    room: int, seed: int, process: bool
) -> None:
    one, two = envs_of(room, process)
    rng = np.random.default_rng(seed)
    one.reset(seed=seed % 6)
    two.reset(seed=seed % 6)
    owners = []
    while not one.episode.done and len(owners) < 30:
        for action in round_of(rng, one):
            owners.append("replier" if not action.message.tool_calls else "tool_caller")
            assert two.agent_selection == owners[-1]
            one.step(action)
            two.step(action)
    ours, other = two.env.trajectory, one.trajectory
    assert ours.messages == other.messages
    assert list(map(what_came_of, ours.turns)) == list(map(what_came_of, other.turns))
    assert [turn.agent for turn in ours.turns] == owners
    assert {turn.agent for turn in other.turns} == {"host"}
    assert (ours.state, ours.stop_reason, ours.status) == (
        other.state,
        other.stop_reason,
        other.status,
    )
    assert (ours.rewards, ours.evidence) == (other.rewards, other.evidence)
    assert two.env.episode.tasks == one.episode.tasks
    assert ours.prompts == dict.fromkeys(("tool_caller", "replier"), other.prompts["host"])
    assert ours.tools == dict.fromkeys(("tool_caller", "replier"), other.tools["host"])


def test_the_rounds_that_are_tried_hold_follow_ups_refusals_and_writes() -> None:
    kinds: set[str] = set()
    states, replies = set(), 0
    for seed in range(60):
        one, _ = envs_of(0, False)
        rng = np.random.default_rng(seed)
        one.reset(seed=1)
        start = one.episode.state
        while not one.episode.done:
            for action in round_of(rng, one):
                one.step(action)
        replies += sum(not turn.action.message.tool_calls for turn in one.episode.turns)
        kinds |= {event.kind for turn in one.episode.turns for event in turn.events}
        states.add(one.episode.state != start)
    assert {"follow_up", "tool_limit", "tool_error", "empty_reply"} <= kinds
    assert states == {True, False}
    assert replies > 60
