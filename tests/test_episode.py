"""The state machine: endings, limits, follow-ups, keys, forks; no I/O but a local sandbox."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest
from rooms_for_tests import small_room

import livestream_env as le
from livestream_env.episode import TWO_AGENTS, Episode
from livestream_env.errors import InvalidAction, ResetNeeded
from livestream_env.sandbox import LocalSandbox
from livestream_env.types import Action, Observation, Status, StopReason, ToolResult

RULE = Action.call("get_reply_rule", intent="物流")
LOOK_UP = Action.call("search_faq", query="发货")


class Play:
    """An episode and its sandbox, moved on together."""

    def __init__(
        self, comments: Sequence[str] = ("c1",), *, room: le.Room | None = None, **options: Any
    ) -> None:
        room = room or small_room()
        self.sandbox = LocalSandbox(room, embedder="lexical")
        view = self.sandbox.reset(seed=0, comments=comments)
        opened = [room.comment(comment_id) for comment_id in comments]
        self.episode = Episode(view, comments=opened, seed=0, **options)

    def step(self, action: object) -> Observation:
        calls = self.episode.submit(action)
        return self.episode.resume([self.sandbox.call(call) for call in calls])

    def steps(self, *actions: object) -> Episode:
        for action in actions:
            self.step(action)
        return self.episode

    @property
    def events(self) -> list[str]:
        return [event.kind for turn in self.episode.turns for event in turn.events]


def cut(action: Action) -> Action:
    return Action(action.message, stop="length")


@pytest.mark.row("R32", "R16", "R40")
@pytest.mark.parametrize(
    ("options", "actions", "stop", "status", "truncated"),
    [
        pytest.param({}, [RULE, "好的"], "replied", "ok", False, id="reply after the rule"),
        pytest.param({}, [RULE, Action.skip()], "replied", "ok", False, id="a skip is a reply"),
        pytest.param({}, [RULE, ""], "replied", "ok", False, id="an empty reply is a reply"),
        pytest.param({}, ["好的"], "replied_without_rule", "ok", False, id="no rule"),
        pytest.param(
            {}, [Action.skip()], "replied_without_rule", "ok", False, id="a skip without the rule"
        ),
        pytest.param(
            {},
            [Action.call("get_reply_rule", intent="没有"), "好的"],
            "replied_without_rule",
            "ok",
            False,
            id="a look-up with an error is none",
        ),
        pytest.param(
            {"on_missing_rule": "remind"},
            ["好的", "好的"],
            "replied_without_rule",
            "ok",
            False,
            id="again after the reminder",
        ),
        pytest.param(
            {"on_missing_rule": "remind"},
            ["好的", RULE, "好的"],
            "replied",
            "ok",
            False,
            id="rule after the reminder",
        ),
        pytest.param(
            {"max_turns": 2}, [LOOK_UP, RULE], "turn_limit", "policy_truncated", True, id="turns"
        ),
        pytest.param(
            {"max_turns": 1, "on_missing_rule": "remind"},
            ["好的"],
            "turn_limit",
            "policy_truncated",
            True,
            id="no turn left after the reminder",
        ),
        pytest.param(
            {}, [RULE, cut(Action.reply("好"))], "token_limit", "policy_truncated", True, id="cut"
        ),
        pytest.param({}, [cut(RULE)], "token_limit", "policy_truncated", True, id="a cut call"),
        pytest.param(
            {"agents": TWO_AGENTS}, [RULE, "好的"], "replied", "ok", False, id="two agents"
        ),
        pytest.param(
            {"agents": TWO_AGENTS}, ["好的"], "no_reply", "ok", False, id="caller says something"
        ),
        pytest.param(
            {"agents": TWO_AGENTS, "max_turns": 2},
            [LOOK_UP, LOOK_UP],
            "no_reply",
            "ok",
            False,
            id="caller out of turns",
        ),
        pytest.param(
            {"agents": TWO_AGENTS},
            [RULE, LOOK_UP, LOOK_UP],
            "no_reply",
            "ok",
            False,
            id="replier calls twice",
        ),
        pytest.param(
            {"agents": TWO_AGENTS},
            [RULE, LOOK_UP, "好的"],
            "replied",
            "ok",
            False,
            id="replier calls once, then speaks",
        ),
        pytest.param(
            {"agents": ("tool_caller",)},
            [LOOK_UP, RULE],
            "tools_done",
            "ok",
            False,
            id="no replier",
        ),
    ],
)
def test_an_episode_ends_as_the_table_says(
    options: dict[str, Any],
    actions: list[object],
    stop: str,
    status: str,
    truncated: bool,
) -> None:
    play = Play(**options)
    for action in actions[:-1]:
        play.step(action)
        assert not play.episode.done
    play.step(actions[-1])
    episode = play.episode
    assert episode.stop_reason == stop
    assert episode.status == status
    assert episode.truncated is truncated
    assert episode.trajectory.stop_reason == stop


@pytest.mark.row("R32")
@pytest.mark.parametrize(
    ("reason", "stop", "status"),
    [
        ("length", StopReason.TOKEN_LIMIT, Status.POLICY_TRUNCATED),
        ("driver", StopReason.ABORTED, Status.ENV_ERROR),
        ("env_error", StopReason.ENV_ERROR, Status.ENV_ERROR),
    ],
)
def test_an_abort_ends_from_outside_and_keeps_the_pending_action(
    reason: Any, stop: StopReason, status: Status
) -> None:
    episode = Play().episode
    episode.submit(LOOK_UP)
    episode.abort(reason, "the cause")
    assert (episode.stop_reason, episode.status) == (stop, status)
    assert episode.trajectory.faults[0].detail == "the cause"
    assert episode.turns[-1].action.message.tool_calls[0].name == "search_faq"
    assert episode.turns[-1].results == ()
    episode.abort("length")
    assert episode.stop_reason is stop


def test_an_abort_for_an_unknown_reason_is_the_callers_mistake() -> None:
    with pytest.raises(ValueError, match="length, turns, driver, env_error"):
        Play().episode.abort("nonsense")  # type: ignore[arg-type]


def test_submit_and_resume_alternate() -> None:
    episode = Play().episode
    with pytest.raises(RuntimeError, match="`submit` first"):
        episode.resume()
    (call,) = episode.submit(LOOK_UP)
    with pytest.raises(RuntimeError, match="`resume` first"):
        episode.submit(LOOK_UP)
    with pytest.raises(ValueError, match="0 results for 1 calls"):
        episode.resume()
    with pytest.raises(ValueError, match="`other` for `call_0_0`"):
        episode.resume([ToolResult("other", "{}")])
    episode.resume([ToolResult(call.id, "{}")])
    with pytest.raises(InvalidAction):
        episode.submit(3)


def test_after_the_end_a_reset_is_needed() -> None:
    episode = Play().steps(RULE, "好的")
    with pytest.raises(ResetNeeded, match="reset"):
        episode.submit("again")


@pytest.mark.row("R15")
def test_the_third_use_of_a_tool_is_refused_and_costs_nothing() -> None:
    play = Play()
    play.step(Action.call("move_product", link_no=2, position=1))
    play.step(Action.call("move_product", link_no=3, position=1))
    observation = play.step(Action.call("move_product", link_no=1, position=1))
    assert play.episode.state.product_order == ("p3", "p2", "p1")
    assert "move_product" in observation.messages[0].content
    assert play.episode.turns[-1].results[0].error == "tool_limit"
    assert play.events == ["tool_limit"]


@pytest.mark.row("R15")
def test_the_limit_counts_within_a_message_and_leaves_the_order() -> None:
    play = Play()
    searches = [("search_faq", {"query": text}) for text in ("发货", "退货", "尺码")]
    play.step(Action.calls(*searches, ("search_script", {"query": "腰果"})))
    errors = [result.error for result in play.episode.turns[0].results]
    assert errors == [None, None, "tool_limit", None]


def test_the_limit_does_not_count_what_was_not_executed() -> None:
    play = Play()
    wrong = Action.call("search_faq", nothing=1)
    for _ in range(4):
        play.step(wrong)
    play.step(LOOK_UP)
    assert play.episode.turns[-1].results[0].error is None


def test_the_limit_is_times_the_open_comments() -> None:
    play = Play(comments=["c1", "c3"])
    for _ in range(5):
        play.step(LOOK_UP)
    errors = [turn.results[0].error for turn in play.episode.turns]
    assert errors == [None] * 4 + ["tool_limit"]


@pytest.mark.row("R89")
@pytest.mark.parametrize(
    ("reply", "answer"),
    [
        ("您的身高和体重是多少呢？", "170，65公斤"),
        ("您身高多少呢", "170"),
        ("请问体重是？😊", "65公斤"),
        ("您喜欢什么颜色呢？", None),
        ("您的身高体重我记下了。", None),
        ("身高体重是多少？不用说了。", None),
    ],
)
def test_the_viewer_answers_what_was_asked(reply: str, answer: str | None) -> None:
    play = Play(comments=["c2"])
    play.step(Action.call("get_reply_rule", intent="尺码"))
    observation = play.step(reply)
    if answer is None:
        assert play.episode.stop_reason is StopReason.REPLIED
    else:
        assert [(m.role, m.content) for m in observation.messages] == [("user", answer)]
        assert not play.episode.done


@pytest.mark.row("R89", "R14")
def test_a_follow_up_asks_for_the_rule_again_and_frees_the_tools() -> None:
    play = Play(comments=["c2"], max_turns=20)
    rule = Action.call("get_reply_rule", intent="尺码")
    play.steps(LOOK_UP, LOOK_UP, rule, "您体重多少呢？")
    assert not play.episode.rule_found
    play.steps(LOOK_UP, rule, "您身高多少呢？")
    assert play.episode.turns[-1].messages[0].content == "170"
    play.steps(rule, "身高呢？")
    assert play.episode.stop_reason is StopReason.REPLIED
    assert play.events.count("follow_up") == 2


@pytest.mark.row("R14")
def test_an_asking_reply_without_the_rule_ends_first() -> None:
    play = Play(comments=["c2"])
    play.step("您身高体重多少呢？")
    assert play.episode.stop_reason is StopReason.REPLIED_WITHOUT_RULE


def test_a_message_with_text_and_calls_is_a_tool_turn_that_keeps_its_text() -> None:
    play = Play()
    call = '{"name": "search_faq", "arguments": {"query": "发货"}}'
    play.step(f"我查一下<tool_call>{call}</tool_call>")
    turn = play.episode.turns[0]
    assert turn.action.message.content == "我查一下"
    assert turn.results[0].error is None
    assert not play.episode.done


@pytest.mark.row("R75")
def test_a_call_that_cannot_be_parsed_gets_its_own_result_in_order() -> None:
    play = Play()
    good = '<tool_call>{"name": "search_faq", "arguments": {"query": "发货"}}</tool_call>'
    observation = play.step(f'{good}<tool_call>{{"name": "search_faq",}}</tool_call>{good}')
    results = play.episode.turns[0].results
    assert [result.error for result in results] == [None, "invalid_json", None]
    assert [m.tool_call_id for m in observation.messages] == [r.call_id for r in results]
    assert play.events == ["invalid_call"]


def test_state_is_frozen_at_the_reply() -> None:
    play = Play()
    call = '{"name": "move_product", "arguments": {"link_no": 3, "position": 1}}'
    play.steps(f"<tool_call>{call}</tool_call>", RULE, "好的")
    assert play.episode.trajectory.state is not None
    assert play.episode.trajectory.state.product_order == ("p3", "p1", "p2")


@pytest.mark.row("R3")
def test_a_write_changes_the_state_and_its_key() -> None:
    play = Play()
    before = play.episode.state_key
    play.step(LOOK_UP)
    searched = play.episode.state_key
    play.step(Action.call("show_image", link_no=1, image="back"))
    assert len({before, searched, play.episode.state_key}) == 3
    assert play.episode.state.shown_image == ("p1", "back")


def test_two_orders_of_the_same_look_ups_meet_and_a_third_parts_them() -> None:
    look_ups = [LOOK_UP, Action.call("search_script", query="腰果")]
    one, two = Play().steps(*look_ups), Play().steps(*reversed(look_ups))
    both = Play().steps(
        Action.calls(*[(c.name, c.arguments) for a in look_ups for c in a.message.tool_calls])
    )
    assert one.state_key == two.state_key == both.state_key
    again = Play().steps(*look_ups, LOOK_UP)
    assert again.state_key == one.state_key
    third = Play().steps(*look_ups, RULE)
    assert third.state_key != one.state_key


def test_a_turns_key_is_that_of_the_situation_it_was_chosen_in() -> None:
    play = Play()
    first = play.episode.state_key
    play.step(LOOK_UP)
    second = play.episode.state_key
    play.step(RULE)
    assert [turn.state_key for turn in play.episode.turns] == [first, second]
    assert first != second


def test_a_reminder_and_a_phase_are_part_of_the_key() -> None:
    reminded = Play(on_missing_rule="remind").steps("好的")
    assert reminded.state_key != Play().episode.state_key
    assert Play(agents=TWO_AGENTS).steps(RULE).state_key != Play().steps(RULE).state_key


@pytest.mark.row("R88")
def test_each_comment_has_a_task_state() -> None:
    play = Play(comments=["c1", "c2", "c3"])
    assert set(play.episode.tasks.values()) == {"pending"}
    reply = Action(Action.reply("都有").message, covers=("c1",), skips=("c3",))
    play.steps(RULE, reply)
    assert play.episode.tasks == {"c1": "answered", "c2": "failed", "c3": "skipped"}


@pytest.mark.row("R8")
def test_one_reply_answers_all_open_comments_unless_it_says_which() -> None:
    episode = Play(comments=["c1", "c3"]).steps(RULE, "都有")
    assert episode.tasks == {"c1": "answered", "c3": "answered"}
    assert Play(comments=["c1", "c3"]).steps(RULE, Action.skip()).tasks["c1"] == "skipped"
    play = Play()
    play.steps(RULE, Action.reply("好的", covers=["c9"]))
    assert "unknown_cover" in play.events
    assert play.episode.tasks == {"c1": "failed"}


def test_a_reply_that_is_too_long_for_its_channel_is_an_event() -> None:
    play = Play()
    play.steps(RULE, "好" * 61)
    assert play.events == ["reply_too_long"]
    play = Play()
    play.steps(RULE, Action.reply("好" * 67, channel="speech"))
    assert play.events == []
    play = Play()
    play.steps(RULE, Action.reply("好", speech="好" * 68))
    assert play.events == ["reply_too_long"]


def test_the_transcript_is_prompt_then_each_turns_message_and_answers() -> None:
    play = Play(comments=["c2"])
    rule = Action.call("get_reply_rule", intent="尺码")
    play.steps(rule, "身高呢？", rule, "穿L码")
    roles = [message.role for message in play.episode.trajectory.messages]
    expected = ["system", "user", "assistant", "tool", "assistant", "user"]
    assert roles == [*expected, "assistant", "tool", "assistant"]


@pytest.mark.row("R38")
def test_a_fork_stands_where_the_episode_stood() -> None:
    play = Play(comments=["c2"])
    rule = Action.call("get_reply_rule", intent="尺码")
    keys = [play.episode.state_key]
    for action in (Action.call("move_product", link_no=3, position=1), rule, "体重呢？", rule):
        play.step(action)
        keys.append(play.episode.state_key)
    for turn, key in enumerate(keys):
        fork = play.episode.fork(turn)
        assert fork.state_key == key
        assert fork.turns == play.episode.turns[:turn]
        assert not fork.done
    assert play.episode.fork(1).state.product_order == ("p3", "p1", "p2")
    assert play.episode.fork(0).state.product_order == ("p1", "p2", "p3")
    with pytest.raises(ValueError, match="4 turns"):
        play.episode.fork(5)


def test_a_fork_shares_turns_and_messages_and_branches_do_not_meet() -> None:
    play = Play()
    play.steps(LOOK_UP)
    fork = play.episode.fork()
    assert fork.turns[0] is play.episode.turns[0]
    assert fork.prompt is play.episode.prompt
    play.steps(RULE)
    assert len(fork.turns) == 1
    assert not fork.rule_found


@pytest.mark.parametrize(
    ("options", "actions"),
    [
        ({}, [RULE, "好的"]),
        ({"max_turns": 1}, [LOOK_UP]),
        ({"on_missing_rule": "remind"}, ["好的", "好的"]),
        ({"agents": TWO_AGENTS}, [RULE, LOOK_UP, LOOK_UP]),
        ({}, [cut(RULE)]),
    ],
)
def test_a_fork_of_an_ended_episode_has_ended_alike(
    options: dict[str, Any], actions: list[object]
) -> None:
    episode = Play(**options).steps(*actions)
    fork = episode.fork()
    assert fork.done
    assert fork.trajectory == episode.trajectory
    assert fork.tasks == episode.tasks


def test_a_fork_of_a_reminded_or_two_agent_episode_goes_on_alike() -> None:
    reminded = Play(on_missing_rule="remind").steps("好的").fork()
    reminded.submit("好的")
    reminded.resume()
    assert reminded.stop_reason is StopReason.REPLIED_WITHOUT_RULE
    two = Play(agents=TWO_AGENTS).steps(RULE).fork()
    assert (two.phase, two.agent) == ("reply", "replier")


@pytest.mark.row("R51")
def test_two_agents_label_their_turns_and_the_phase() -> None:
    play = Play(agents=TWO_AGENTS)
    assert (play.episode.phase, play.episode.agent) == ("tools", "tool_caller")
    play.steps(RULE, "好的")
    assert [turn.agent for turn in play.episode.turns] == ["tool_caller", "replier"]
    assert set(play.episode.trajectory.prompts) == {"tool_caller", "replier"}


def test_lone_surrogates_become_a_replacement_character_with_an_event() -> None:
    play = Play()
    play.steps(RULE, "好\ud83d的")
    assert play.episode.trajectory.reply == "好\ufffd的"
    assert play.events == ["surrogates_replaced"]
    text = play.episode.trajectory.model_dump_json()
    assert le.Trajectory.model_validate_json(text) == play.episode.trajectory


@pytest.mark.parametrize("text", ["", "  ", "<think>还没想完"])
def test_an_empty_reply_ends_the_episode_and_answers_nothing(text: str) -> None:
    play = Play()
    play.steps(RULE, text)
    assert play.episode.stop_reason is StopReason.REPLIED
    assert play.episode.tasks == {"c1": "failed"}
    assert play.events == ["empty_reply"]
    assert Play().steps(RULE, Action.reply("", speech="好的")).tasks == {"c1": "answered"}


@pytest.mark.parametrize(
    ("options", "actions"),
    [
        ({}, [RULE, cut(Action.reply("好"))]),
        ({"on_missing_rule": "remind", "max_turns": 1}, ["好的"]),
        ({}, [LOOK_UP]),
        ({"agents": TWO_AGENTS}, ["好的"]),
    ],
)
def test_only_an_accepted_reply_is_the_reply(options: Any, actions: list[object]) -> None:
    assert Play(**options).steps(*actions).trajectory.reply is None


def test_without_the_rule_tool_no_rule_is_needed() -> None:
    play = Play(specs=[])
    play.step("好的")
    assert play.episode.stop_reason is StopReason.REPLIED


@pytest.mark.parametrize("agents", ["host", (), ("host", "replier"), ("replier",)])
def test_other_agents_are_refused(agents: Any) -> None:
    with pytest.raises(ValueError, match="tool_caller"):
        Play(agents=agents)


@pytest.mark.parametrize("made", [[], "text", [{"role": "user"}], None])
def test_a_prompt_returns_messages(made: Any) -> None:
    with pytest.raises(TypeError, match="list of `Message`"):
        Play(prompt=lambda view, tools, *, max_same_tool: made)


BURST = {
    "comments": [
        {"comment_id": "b1", "viewer": "甲", "at_s": 1, "text": "多大码", "follow_ups": [
            {"text": "170", "when": ["身高"]}]},
        {"comment_id": "b2", "viewer": "乙", "at_s": 2, "text": "我也问问", "follow_ups": [
            {"text": "155", "when": ["身高"]}]},
        {"comment_id": "b3", "viewer": "丙", "at_s": 3, "text": "同问尺码", "same_as": "b1"},
    ]
}  # fmt: skip


def burst() -> Play:
    return Play(["b1", "b2", "b3"], room=small_room(**BURST))


@pytest.mark.row("R8", "R89")
def test_in_a_burst_the_viewer_whose_comment_is_covered_answers() -> None:
    play = burst()
    asks = Action(Action.reply("您身高多少呢？").message, covers=("b2",))
    observation = play.steps(RULE, asks).turns[-1].messages
    assert observation[0].content == "155"


@pytest.mark.row("R8")
def test_what_an_asking_reply_answers_beside_stays_answered_and_repeats_count() -> None:
    play = burst()
    asks = Action(Action.reply("乙看2号；甲您身高多少呢？").message, covers=("b2", "b1"))
    play.steps(RULE, asks)
    assert play.episode.tasks == {"b1": "pending", "b2": "answered", "b3": "pending"}
    assert [c.comment_id for c in play.episode.open_comments] == ["b1", "b3"]
    assert play.episode.fork().tasks == play.episode.tasks
    play.steps(RULE, Action.reply("穿L", covers=["b1"]))
    assert play.episode.tasks == {"b1": "answered", "b2": "answered", "b3": "answered"}


def test_calls_that_cannot_run_do_not_use_up_the_limit_of_their_message() -> None:
    play = Play()
    good, bad = ("search_faq", {"query": "发货"}), ("search_faq", {})
    play.step(Action.calls(bad, bad, good, ("nope", {}), ("nope", {}), ("nope", {})))
    errors = [result.error for result in play.episode.turns[0].results]
    assert errors == ["invalid_arguments"] * 2 + [None] + ["unknown_tool"] * 3


def test_another_answer_or_a_new_look_up_of_the_rule_is_another_situation() -> None:
    rule = Action.call("get_reply_rule", intent="尺码")
    keys = set()
    for asked in ("身高呢？", "体重呢？"):
        play = Play(comments=["c2"])
        play.steps(rule, asked)
        keys.add(play.episode.state_key)
        play.step(rule)
        keys.add(play.episode.state_key)
    assert len(keys) == 4
