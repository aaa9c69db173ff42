"""SFT export: what each view trains, what each format holds, and that real readers take it."""

from __future__ import annotations

import itertools
import json
import re
import sys
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import gymnasium as gym
import pytest

import livestream_env as le
from livestream_env import cli
from livestream_env.errors import MissingDependency, PrefixMismatch, UnsupportedTemplate
from livestream_env.export import FORMATS, VIEWS, Export, export_sft, write_export
from livestream_env.importers import load_trajectories
from livestream_env.tokens import Source, Span, TokenSequence, source_of
from livestream_env.types import (
    Action,
    Message,
    Status,
    ToolCall,
    ToolResult,
    ToolSpec,
    Trajectory,
    Turn,
    TurnEvent,
    freeze,
)
from tests.rooms_for_tests import small_room

SCHEMA = freeze({"type": "object", "properties": {"query": {"type": "string"}}})
RULE_SCHEMA = freeze({"type": "object", "properties": {"intent": {"type": "string"}}})
TOOLS = (
    ToolSpec("search_faq", "查问答", SCHEMA),
    ToolSpec("get_reply_rule", "查规则", RULE_SCHEMA),
)
PROMPT = (Message("system", "你是主播"), Message("user", "小王：包邮吗"))


def call_turn(*calls: tuple[str, dict[str, Any]], text: str = "", reasoning: str = "") -> Turn:
    """Return a turn whose calls `c0`, `c1`, ... answer `r0`, `r1`, ..."""
    made = tuple(ToolCall(f"c{i}", name, freeze(a)) for i, (name, a) in enumerate(calls))
    results = tuple(ToolResult(call.id, f"r{i}") for i, call in enumerate(made))
    told = tuple(Message("tool", result.content, (), result.call_id) for result in results)
    action = Action(Message("assistant", text, made, None, reasoning))
    return Turn("host", action, results, told)


def reply_turn(text: str, *then: Message, reasoning: str = "", **action: Any) -> Turn:
    return Turn("host", Action(Message("assistant", text, (), None, reasoning), **action), (), then)


def episode(*turns: Turn, **changes: Any) -> Trajectory:
    values: dict[str, Any] = {
        "room_id": "small",
        "content_hash": "",
        "comment_ids": ("c1",),
        "seed": 0,
        "prompts": {"host": PROMPT},
        "tools": {"host": TOOLS},
        "turns": turns,
        "status": Status.OK,
    }
    return Trajectory(**values | changes)


SEARCH = call_turn(("search_faq", {"query": "包邮"}))
RULE = call_turn(("get_reply_rule", {"intent": "物流"}))
PLAIN = episode(SEARCH, RULE, reply_turn("包邮的"))
VIEWER = Message("user", "那退货呢")
FOLLOWED = episode(SEARCH, reply_turn("哪个地区？", VIEWER), RULE, reply_turn("新疆也包邮"))


class CountingRenderer:
    """Renders message i of a trajectory as the two tokens 10 i and 10 i + 1."""

    def render(self, trajectory: Trajectory) -> list[TokenSequence]:
        ids: list[int] = []
        spans: list[Span] = []

        def add(source: Source, turn: int) -> None:
            number = 10 * len(spans)
            spans.append(Span(len(ids), len(ids) + 2, source, turn))
            ids.extend((number, number + 1))

        for _ in next(iter(trajectory.prompts.values())):
            add(Source.PROMPT, -1)
        for index, turn in enumerate(trajectory.turns):
            add(source_of(turn), index)
            for message in turn.messages:
                add(Source.TOOL_RESULT if message.role == "tool" else Source.PROMPT, index)
        return [TokenSequence(ids, None, spans, exact=False)]


RENDERER = CountingRenderer()


def trained(labels: Sequence[int]) -> list[int]:
    return [label for label in labels if label != -100]


# --- views -----------------------------------------------------------------------------------


@pytest.mark.row("R23")
def test_the_tool_students_row_ends_with_its_last_call() -> None:
    export = export_sft([PLAIN], view="tool_calls")
    call = {"id": "c0", "type": "function"}
    search = {"name": "search_faq", "arguments": {"query": "包邮"}}
    rule = {"name": "get_reply_rule", "arguments": {"intent": "物流"}}
    assert export.rows == (
        {
            "messages": [
                {"role": "system", "content": "你是主播"},
                {"role": "user", "content": "小王：包邮吗"},
                {"role": "assistant", "content": "", "tool_calls": [{**call, "function": search}]},
                {"role": "tool", "content": "r0", "tool_call_id": "c0", "name": "search_faq"},
                {"role": "assistant", "content": "", "tool_calls": [{**call, "function": rule}]},
            ],
            "tools": [spec.to_openai() for spec in TOOLS],
        },
    )
    assert export.excluded == ()


@pytest.mark.row("R24")
def test_the_reply_students_prompt_is_all_before_the_reply() -> None:
    (row,) = export_sft([PLAIN], view="reply").rows
    assert row["completion"] == [{"role": "assistant", "content": "包邮的"}]
    roles = ["system", "user", "assistant", "tool", "assistant", "tool"]
    assert [message["role"] for message in row["prompt"]] == roles


def test_end_to_end_is_the_whole_transcript() -> None:
    (row,) = export_sft([PLAIN], view="end_to_end").rows
    assert [m["content"] for m in row["messages"]] == [m.content for m in PLAIN.messages]


@pytest.mark.row("R21", "R23", "R24")
def test_tokens_are_labelled_as_the_view_says_and_not_shifted() -> None:
    # messages: 0 system, 1 user, 2 search, 3 result, 4 rule, 5 result, 6 reply; ids 10 i, 10 i + 1
    x = -100
    expected = {
        "tool_calls": [x, x, x, x, 20, 21, x, x, 40, 41],
        "reply": [x, x, x, x, x, x, x, x, x, x, x, x, 60, 61],
        "end_to_end": [x, x, x, x, 20, 21, x, x, 40, 41, x, x, 60, 61],
    }
    ids = [0, 1, 10, 11, 20, 21, 30, 31, 40, 41, 50, 51, 60, 61]
    for view in VIEWS:
        (row,) = export_sft([PLAIN], view=view, format="tokens", renderer=RENDERER).rows
        assert row["labels"] == expected[view]
        assert row["input_ids"] == ids[: len(row["labels"])]
        assert row["attention_mask"] == [1] * len(row["labels"])


@pytest.mark.row("R21")
def test_the_students_share_no_trained_token_and_each_has_a_row_an_episode() -> None:
    given = [PLAIN, episode(RULE, reply_turn("亲，包邮")), PLAIN]
    rows = {
        view: export_sft(given, view=view, format="tokens", renderer=RENDERER).rows
        for view in VIEWS
    }
    assert [len(rows[view]) for view in VIEWS] == [3, 3, 3]
    for tool, reply, both in zip(*(rows[view] for view in VIEWS), strict=True):
        calls, replies = trained(tool["labels"]), trained(reply["labels"])
        assert not set(calls) & set(replies)
        assert sorted(calls + replies) == trained(both["labels"])


@pytest.mark.row("R24")
def test_two_replies_are_two_rows_of_messages_and_one_of_tokens() -> None:
    export = export_sft([FOLLOWED], view="reply")
    assert [row["completion"][0]["content"] for row in export.rows] == ["哪个地区？", "新疆也包邮"]
    assert export.rows[1]["prompt"][4:6] == [
        {"role": "assistant", "content": "哪个地区？"},
        {"role": "user", "content": "那退货呢"},
    ]
    (tokens,) = export_sft([FOLLOWED], view="reply", format="tokens", renderer=RENDERER).rows
    assert trained(tokens["labels"]) == [40, 41, 80, 81]


@pytest.mark.row("R23")
def test_calls_behind_a_reply_are_left_out_where_the_reply_would_be_trained_with_them() -> None:
    for format in ("messages", "sharegpt"):
        export = export_sft([FOLLOWED], view="tool_calls", format=format)  # type: ignore[arg-type]
        assert len(export.rows) == 1
        assert "包邮" in json.dumps(export.rows, ensure_ascii=False)
        assert "物流" not in json.dumps(export.rows, ensure_ascii=False)
        ((index, reason),) = export.excluded
        assert index == 0
        assert reason.startswith("turns behind an assistant message")
    (tokens,) = export_sft([FOLLOWED], view="tool_calls", format="tokens", renderer=RENDERER).rows
    assert trained(tokens["labels"]) == [20, 21, 60, 61]


@pytest.mark.row("R23")
def test_prompt_and_completion_hold_every_stretch_of_calls() -> None:
    export = export_sft([FOLLOWED], view="tool_calls", format="prompt_completion")
    assert export.excluded == ()
    shapes = [
        [[m["role"][0] for m in row[half]] for half in ("prompt", "completion")]
        for row in export.rows
    ]
    assert shapes == [[["s", "u"], ["a"]], [["s", "u", "a", "t", "a", "u"], ["a"]]]
    (row,) = export_sft([PLAIN], view="tool_calls", format="prompt_completion").rows
    assert [m["role"] for m in row["completion"]] == ["assistant", "tool", "assistant"]
    (row,) = export_sft([PLAIN], view="end_to_end", format="prompt_completion").rows
    assert [m["content"] for m in row["completion"]] == ["", "r0", "", "r0", "包邮的"]
    both = [export_sft([FOLLOWED], view="reply", format=f).rows for f in FORMATS[:2]]
    assert both[0] == both[1]


def test_a_view_that_trains_no_turn_excludes_the_episode_with_the_reason() -> None:
    silent, chatty = episode(SEARCH), episode(reply_turn("亲，在的"))
    for format in FORMATS:
        tool = export_sft([chatty, PLAIN], view="tool_calls", format=format, renderer=RENDERER)
        assert len(tool.rows) == 1
        ((index, reason),) = tool.excluded
        assert index == 0
        assert "trained" in reason
        reply = export_sft([silent], view="reply", format=format, renderer=RENDERER)
        assert (len(reply.rows), len(reply.excluded)) == (0, 1)


@pytest.mark.parametrize("format", FORMATS)
def test_failed_and_unfinished_episodes_are_excluded_with_the_cause(format: Any) -> None:
    failed = episode(SEARCH, status=Status.ENV_ERROR, faults=(TurnEvent("timeout", "server gone"),))
    export = export_sft(
        [failed, PLAIN, episode(SEARCH, status=Status.RUNNING)], format=format, renderer=RENDERER
    )
    assert len(export.rows) == 1
    assert [index for index, _ in export.excluded] == [0, 2]
    assert "env_error" in export.excluded[0][1]
    assert "server gone" in export.excluded[0][1]
    assert "running" in export.excluded[1][1]


def test_truncated_episodes_are_exported() -> None:
    cut = episode(SEARCH, status=Status.POLICY_TRUNCATED)
    assert len(export_sft([cut], view="tool_calls").rows) == 1


@pytest.mark.parametrize("error", [PrefixMismatch("shown otherwise"), UnsupportedTemplate("no")])
def test_what_a_template_cannot_show_is_excluded_with_the_reason(error: Exception) -> None:
    class Refusing:
        def render(self, trajectory: Trajectory) -> list[TokenSequence]:
            raise error

    export = export_sft([PLAIN], format="tokens", renderer=Refusing())
    assert export.excluded == ((0, str(error)),)


def test_a_sequence_without_a_trained_token_is_no_row_beside_one_that_has_some() -> None:
    class Splitting:
        def render(self, trajectory: Trajectory) -> list[TokenSequence]:
            calls = TokenSequence([1], None, [Span(0, 1, Source.TOOL_CALL, 0)])
            reply = TokenSequence([2], None, [Span(0, 1, Source.REPLY, 1)])
            return [calls, reply]

    export = export_sft([PLAIN], view="reply", format="tokens", renderer=Splitting())
    assert [row["labels"] for row in export.rows] == [[2]]
    assert export.excluded == ()


def test_a_call_that_could_not_be_read_is_no_row_of_a_format_with_arguments() -> None:
    bad = ToolCall("c0", "search_faq", error="invalid_json: Expecting value", raw="{")
    told = Message("tool", "{}", (), "c0")
    broken = Turn("host", Action(Message("assistant", "", (bad,))), (), (told,))
    for format in ("messages", "sharegpt", "verl"):
        export = export_sft([episode(broken, reply_turn("好的"))], format=format)  # type: ignore[arg-type]
        assert export.rows == ()
        assert "invalid_json" in export.excluded[0][1]
    tokens = export_sft([episode(broken)], format="tokens", renderer=RENDERER)
    assert len(tokens.rows) == 1


def test_wrong_names_and_a_missing_renderer_raise() -> None:
    with pytest.raises(ValueError, match=r"got `tool`.*Did you mean `tool_calls`"):
        export_sft([], view="tool")  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="got `parquet`; use `messages`"):
        export_sft([], format="parquet")  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="ChatTemplateRenderer"):
        export_sft([], format="tokens")


# --- two agents ------------------------------------------------------------------------------

CALLER_PROMPT = (Message("system", "你查资料"), Message("user", "小王：包邮吗"))
REPLIER_PROMPT = (Message("system", "你回弹幕"), Message("user", "小王：包邮吗"))
TEAM = episode(
    replace(SEARCH, agent="tool_caller"),
    replace(RULE, agent="tool_caller"),
    replace(reply_turn("包邮的"), agent="replier"),
    prompts={"tool_caller": CALLER_PROMPT, "replier": REPLIER_PROMPT},
    tools={"tool_caller": TOOLS, "replier": ()},
)


@pytest.mark.row("R21")
def test_each_of_two_agents_is_trained_under_its_own_prompt() -> None:
    (tool,) = export_sft([TEAM], view="tool_calls").rows
    assert tool["messages"][0]["content"] == "你查资料"
    assert [m["role"] for m in tool["messages"]][2:] == ["assistant", "tool", "assistant"]
    assert len(tool["tools"]) == 2
    (reply,) = export_sft([TEAM], view="reply").rows
    assert reply["prompt"][0]["content"] == "你回弹幕"
    assert [m["role"] for m in reply["prompt"]][2:] == ["assistant", "tool"] * 2
    assert reply["tools"] == []


def test_end_to_end_of_two_agents_trains_no_turn_under_the_others_prompt() -> None:
    export = export_sft([TEAM], view="end_to_end")
    assert [row["messages"][0]["content"] for row in export.rows] == ["你查资料"]
    assert "use `prompt_completion` or `tokens`" in export.excluded[0][1]
    export = export_sft([TEAM], view="end_to_end", format="prompt_completion")
    assert [len(row["completion"]) for row in export.rows] == [3, 1]
    assert export.excluded == ()
    rows = export_sft([TEAM], view="end_to_end", format="verl").rows
    assert [row["loss_mask"] for row in rows] == [[0, 0, 1, 0, 1, 0, 0], [0, 0, 0, 0, 0, 0, 1]]


def test_a_callers_message_without_a_call_is_trained_as_the_masker_trains_it() -> None:
    silent = replace(reply_turn("不用查"), agent="tool_caller")
    team = TEAM.model_copy(update={"turns": (silent,)})
    assert export_sft([team], view="tool_calls").rows[0]["messages"][-1]["content"] == "不用查"
    assert export_sft([team], view="reply").rows == ()


# --- thinking --------------------------------------------------------------------------------


@pytest.mark.row("R22")
@pytest.mark.parametrize(
    ("text", "said"),
    [
        pytest.param("包邮的", "包邮的", id="no thinking"),
        pytest.param("  包邮\n的 \n", "  包邮\n的 \n", id="blanks are kept"),
        pytest.param("<think>想</think>\n\n包邮的", "包邮的", id="a thought"),
        pytest.param("想完了</think>包邮的", "包邮的", id="begun by the prompt"),
        pytest.param("<think>a</think>b</think>包邮的", "包邮的", id="ends at the last tag"),
        pytest.param("好<think>a</think>的<think>b</think>！", "好的！", id="two thoughts"),
        pytest.param("好的<think>没说完", "好的", id="unclosed"),
        pytest.param("好<thi<think>x</think>nk>的", "好", id="joined by stripping"),
    ],
)
def test_thinking_is_stripped_and_the_rest_kept_byte_for_byte(text: str, said: str) -> None:
    given = episode(replace(RULE), reply_turn(text, reasoning="心里想"))
    rows = export_sft([given], strip_thinking=True).rows
    assert rows[0]["messages"][-1] == {"role": "assistant", "content": said}
    assert "think>" not in json.dumps(rows)


@pytest.mark.row("R22")
def test_reasoning_is_kept_apart_unless_stripped() -> None:
    given = episode(
        call_turn(("search_faq", {}), reasoning="先查"), reply_turn("好", reasoning="答")
    )
    kept = export_sft([given]).rows[0]["messages"]
    assert [m.get("reasoning_content") for m in kept] == [None, None, "先查", None, "答"]
    stripped = export_sft([given], strip_thinking=True).rows[0]["messages"]
    assert not any("reasoning_content" in message for message in stripped)


@pytest.mark.row("R22")
def test_what_a_viewer_says_of_thinking_is_not_touched() -> None:
    prompt = (PROMPT[0], Message("user", "<think>我想买</think>多少钱"))
    given = episode(reply_turn("49"), prompts={"host": prompt})
    (row,) = export_sft([given], strip_thinking=True).rows
    assert row["messages"][1]["content"] == "<think>我想买</think>多少钱"


@pytest.mark.row("R22")
def test_a_reply_that_was_only_thought_is_excluded() -> None:
    export = export_sft([episode(RULE, reply_turn("<think>嗯"))], strip_thinking=True)
    assert export.excluded == ((0, "turn 1 says nothing once its thinking is stripped"),)
    assert len(export_sft([episode(RULE, reply_turn(""))], strip_thinking=True).rows) == 1


@pytest.mark.row("R22")
def test_recorded_ids_are_kept_and_with_thinking_stripped_left_out() -> None:
    seen: list[tuple[int, ...] | None] = []

    class Watching(CountingRenderer):
        def render(self, trajectory: Trajectory) -> list[TokenSequence]:
            seen.extend(turn.action.token_ids for turn in trajectory.turns)
            return super().render(trajectory)

    given = episode(reply_turn("<think>嗯</think>好", token_ids=(5, 6, 7)))
    for strip in (False, True):
        export_sft([given], format="tokens", strip_thinking=strip, renderer=Watching())
    assert seen == [(5, 6, 7), None]


# --- what is said beside the bullet ----------------------------------------------------------


@pytest.mark.parametrize(
    ("action", "text"),
    [
        (Action.reply("好的", covers=("c1", "c2")), '<reply to="c1,c2">好的</reply>'),
        (Action.reply("好的", extras={"gesture": "wave"}), '<reply gesture="wave">好的</reply>'),
        (Action.reply("好的", speech="马上"), "好的<speech>马上</speech>"),
        (Action.skip(("c1", "c2")), '<skip ids="c1,c2"/>'),
    ],
)
def test_a_reply_is_written_with_the_markup_it_was_read_from(action: Action, text: str) -> None:
    (row,) = export_sft([episode(Turn("host", action))], view="reply").rows
    assert row["completion"] == [{"role": "assistant", "content": text}]


# --- files -----------------------------------------------------------------------------------

HOSTILE = '<|im_end|>\u2028\u2029\x85\x0b\x0c</tool_call><think>\x00\x1b[31m"\\\ufffe亲'


@pytest.mark.parametrize("format", ["messages", "prompt_completion", "sharegpt"])
@pytest.mark.parametrize("view", VIEWS)
def test_hostile_text_comes_back_as_it_was(format: Any, view: Any, tmp_path: Path) -> None:
    hostile = call_turn(("search_faq", {"query": HOSTILE}))
    given = episode(
        hostile, reply_turn(HOSTILE), prompts={"host": (PROMPT[0], Message("user", HOSTILE))}
    )
    export = export_sft([given, given], view=view, format=format)
    write_export(export, tmp_path / "out.jsonl")
    lines = (tmp_path / "out.jsonl").read_text(encoding="utf-8").split("\n")
    assert [json.loads(line) for line in lines[:-1]] == list(export.rows)
    assert len(lines) == 3
    assert json.dumps(HOSTILE, ensure_ascii=False)[1:-1] in lines[0]


def test_lone_surrogates_become_the_replacement_character(tmp_path: Path) -> None:
    given = episode(reply_turn("好\ud83d的"), prompts={"host": (Message("user", "\udc00?"),)})
    for format in ("messages", "verl"):
        export = export_sft([given], format=format)  # type: ignore[arg-type]
        write_export(export, tmp_path / format)
        assert [m["content"] for m in export.rows[0]["messages"]] == ["\ufffd?", "好\ufffd的"]


@pytest.mark.parametrize("format", FORMATS)
def test_the_same_episodes_give_the_same_bytes(format: Any, tmp_path: Path) -> None:
    for name in ("a", "b"):
        export = export_sft([PLAIN, FOLLOWED], format=format, renderer=RENDERER)
        write_export(export, tmp_path / name)
    assert (tmp_path / "a").read_bytes() == (tmp_path / "b").read_bytes()


def test_a_file_is_written_whole_or_not_at_all(tmp_path: Path) -> None:
    target = tmp_path / "out.jsonl"
    target.write_text("before", encoding="utf-8")
    with pytest.raises(TypeError):
        write_export(Export("messages", ({"a": 1}, {"a": object()}), ()), target)
    assert target.read_text(encoding="utf-8") == "before"
    assert list(tmp_path.iterdir()) == [target]


def test_parquet_without_pyarrow_names_the_command(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "pyarrow", None)
    export = export_sft([PLAIN], format="verl")
    with pytest.raises(MissingDependency, match=r"pip install 'livestream-env\[export\]'"):
        write_export(export, tmp_path / "out.parquet")


# --- ShareGPT --------------------------------------------------------------------------------


def takes_as_llama_factory(row: dict[str, Any]) -> bool:
    """Apply the rules of its ShareGPT converter: tags alternate, the count is even."""
    tags = [line["from"] for line in row["conversations"]]
    asks = all(tag in ("human", "observation") for tag in tags[::2])
    answers = all(tag in ("gpt", "function_call") for tag in tags[1::2])
    calls = [json.loads(x["value"]) for x in row["conversations"] if x["from"] == "function_call"]
    listed = itertools.chain.from_iterable(c if isinstance(c, list) else [c] for c in calls)
    has_both = all({"name", "arguments"} <= call.keys() for call in listed)
    return asks and answers and has_both and len(tags) % 2 == 0 and isinstance(row["tools"], str)


def test_sharegpt_groups_the_calls_and_the_results_of_a_turn() -> None:
    both = call_turn(("search_faq", {"query": "包邮"}), ("get_reply_rule", {"intent": "物流"}))
    (row,) = export_sft([episode(both, reply_turn("包邮的"))], format="sharegpt").rows
    calls = [
        {"name": "search_faq", "arguments": {"query": "包邮"}},
        {"name": "get_reply_rule", "arguments": {"intent": "物流"}},
    ]
    assert row["system"] == "你是主播"
    assert row["conversations"] == [
        {"from": "human", "value": "小王：包邮吗"},
        {"from": "function_call", "value": json.dumps(calls, ensure_ascii=False)},
        {"from": "observation", "value": "r0\n</tool_response>\n<tool_response>\nr1"},
        {"from": "gpt", "value": "包邮的"},
    ]
    assert json.loads(row["tools"]) == [spec.to_openai()["function"] for spec in TOOLS]
    assert takes_as_llama_factory(row)


def test_sharegpt_writes_thinking_as_its_templates_read_it() -> None:
    given = episode(
        call_turn(("search_faq", {}), reasoning="先查"), reply_turn("好", reasoning="答")
    )
    lines = export_sft([given], format="sharegpt").rows[0]["conversations"]
    assert lines[1]["value"] == '<think>\n先查\n</think>\n\n{"name": "search_faq", "arguments": {}}'
    assert lines[3]["value"] == "<think>\n答\n</think>\n\n好"


@pytest.mark.parametrize(
    ("given", "reason"),
    [
        pytest.param(episode(reply_turn("一"), reply_turn("二")), "`gpt` follows `gpt`", id="two"),
        pytest.param(
            episode(call_turn(("search_faq", {}), text="稍等"), reply_turn("好")),
            "text beside its calls",
            id="text and call",
        ),
        pytest.param(
            episode(reply_turn("好", Message("system", "提醒")), RULE),
            "one system text",
            id="system",
        ),
        pytest.param(
            episode(reply_turn("好", reasoning="a</think>b")), "holds `</think>`", id="tag"
        ),
        pytest.param(
            episode(reply_turn("好"), prompts={"host": PROMPT[:1]}),
            "`gpt` follows the beginning",
            id="no user",
        ),
    ],
)
def test_what_sharegpt_cannot_hold_is_excluded(given: Trajectory, reason: str) -> None:
    export = export_sft([given], format="sharegpt")
    assert export.rows == ()
    assert reason in export.excluded[0][1]
    assert len(export_sft([given]).rows) == 1


def test_sharegpt_rows_end_with_an_answer() -> None:
    given = episode(SEARCH, status=Status.POLICY_TRUNCATED)
    (row,) = export_sft([given], format="sharegpt").rows
    assert takes_as_llama_factory(row)


# --- episodes of a room ----------------------------------------------------------------------


@pytest.fixture(scope="module")
def played() -> list[Trajectory]:
    """Three comments of the small room, the second with a follow-up, by the scripted agent."""
    room = small_room()
    env = gym.make("LiveRoom-v0", room=room, embedder="lexical")
    return [le.rollout(env, le.ScriptedAgent(room), seed=seed) for seed in range(3)]


@pytest.mark.row("R20", "R21")
def test_played_episodes_export_in_every_view_and_format(played: list[Trajectory]) -> None:
    replies = sum(source_of(turn) is Source.REPLY for one in played for turn in one.turns)
    for view, format in itertools.product(VIEWS, FORMATS):
        export = export_sft(played, view=view, format=format, renderer=RENDERER)
        per_reply = view == "reply" and format not in ("tokens", "verl")
        assert len(export.rows) == (replies if per_reply else len(played)), (view, format)
        if format == "sharegpt":
            assert all(map(takes_as_llama_factory, export.rows))


@pytest.mark.row("R20")
@pytest.mark.filterwarnings("ignore::DeprecationWarning")
@pytest.mark.parametrize("format", FORMATS)
@pytest.mark.parametrize("view", VIEWS)
def test_the_datasets_library_reads_back_what_was_written(
    played: list[Trajectory], view: Any, format: Any, tmp_path: Path
) -> None:
    datasets = pytest.importorskip("datasets", reason="datasets is not installed")
    export = export_sft(played, view=view, format=format, renderer=RENDERER)
    write_export(export, tmp_path / "out")
    kind = "parquet" if format == "verl" else "json"
    read = datasets.load_dataset(
        kind, data_files=str(tmp_path / "out"), split="train", cache_dir=str(tmp_path / "cache")
    )
    assert [without_nulls(row) for row in read] == [without_nulls(row) for row in export.rows]
    if format != "verl":
        assert list(read) == list(export.rows)


def without_nulls(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: without_nulls(item) for key, item in value.items() if item is not None}
    return [without_nulls(item) for item in value] if isinstance(value, list) else value


def test_arguments_come_out_of_parquet_with_their_own_keys_alone(tmp_path: Path) -> None:
    parquet = pytest.importorskip("pyarrow.parquet", reason="pyarrow is not installed")
    unlike = call_turn(("search_faq", {"query": "包邮", "limit": None}), ("move_product", {"n": 3}))
    export = export_sft([episode(unlike, reply_turn("好")), PLAIN], format="verl")
    write_export(export, tmp_path / "out.parquet")
    rows = parquet.read_table(tmp_path / "out.parquet").to_pylist()
    calls = rows[0]["messages"][2]["tool_calls"]
    arguments = [json.loads(call["function"]["arguments"]) for call in calls]
    assert arguments == [{"query": "包邮", "limit": None}, {"n": 3}]
    assert json.loads(rows[1]["tools"]) == [spec.to_openai() for spec in TOOLS]
    assert [row["enable_thinking"] for row in rows] == [False, False]
    assert rows[1]["loss_mask"] == [0, 0, 1, 0, 1, 0, 1]


# --- trainers --------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def tokenizer() -> Any:
    """A byte-level tokenizer of 400 words with Qwen's control tokens and TRL's Qwen template."""
    pytest.importorskip("trl", reason="trl is not installed")
    from importlib.resources import files

    from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers
    from transformers import PreTrainedTokenizerFast

    made = Tokenizer(models.BPE())
    made.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    made.decoder = decoders.ByteLevel()
    controls = ["<|endoftext|>", "<|im_start|>", "<|im_end|>"]
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    texts = [message.content for message in PLAIN.messages]
    made.train_from_iterator(
        texts,
        trainers.BpeTrainer(
            vocab_size=400, special_tokens=controls, initial_alphabet=alphabet, show_progress=False
        ),
    )
    whole = PreTrainedTokenizerFast(
        tokenizer_object=made, eos_token="<|im_end|>", pad_token="<|endoftext|>"
    )
    template = files("trl") / "chat_templates" / "qwen2_5.jinja"
    whole.chat_template = template.read_text(encoding="utf-8")
    return whole


def sft_labels(tokenizer: Any, path: Path, **settings: Any) -> tuple[list[dict[str, Any]], float]:
    """Train one real step on a file; return the rows as the trainer saw them, and the loss."""
    import datasets
    import torch
    from transformers import Qwen2Config, Qwen2ForCausalLM
    from trl import SFTConfig, SFTTrainer

    torch.manual_seed(0)
    config = Qwen2Config(
        vocab_size=len(tokenizer),
        hidden_size=16,
        intermediate_size=16,
        num_hidden_layers=1,
        num_attention_heads=2,
        num_key_value_heads=1,
    )
    rows = datasets.load_dataset(
        "json", data_files=str(path), split="train", cache_dir=str(path.parent / "cache")
    )
    trainer = SFTTrainer(
        model=Qwen2ForCausalLM(config),
        args=SFTConfig(
            output_dir=str(path.parent / "run"),
            max_steps=1,
            per_device_train_batch_size=2,
            max_length=None,
            report_to=[],
            use_cpu=True,
            bf16=False,
            save_strategy="no",
            disable_tqdm=True,
            **settings,
        ),
        train_dataset=rows,
        processing_class=tokenizer,
    )
    loss = trainer.train().training_loss
    return list(trainer.train_dataset), loss


@pytest.mark.row("R21", "R24")
@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize(
    ("view", "format", "settings", "texts"),
    [
        pytest.param(
            "tool_calls", "messages", {"assistant_only_loss": True}, "calls", id="tool messages"
        ),
        pytest.param("reply", "messages", {}, "reply", id="reply prompt and completion"),
        pytest.param("end_to_end", "messages", {"assistant_only_loss": True}, "both", id="both"),
        pytest.param(
            *("tool_calls", "prompt_completion", {"assistant_only_loss": True}, "calls"),
            id="tool prompt and completion",
        ),
        pytest.param("tool_calls", "tokens", {}, "calls", id="tool tokens"),
        pytest.param("reply", "tokens", {}, "reply", id="reply tokens"),
    ],
)
def test_one_real_sft_step_trains_what_the_view_says(
    tokenizer: Any, view: Any, format: Any, settings: Any, texts: str, tmp_path: Path
) -> None:
    from livestream_env.renderers import ChatTemplateRenderer

    renderer = ChatTemplateRenderer(tokenizer)
    export = export_sft([PLAIN, PLAIN], view=view, format=format, renderer=renderer)
    write_export(export, tmp_path / "out.jsonl")
    rows, loss = sft_labels(tokenizer, tmp_path / "out.jsonl", **settings)
    assert loss > 0
    said = tokenizer.decode(trained(rows[0]["labels"]))
    search = '<tool_call>\n{"name": "search_faq", "arguments": {"query": "包邮"}}\n</tool_call>'
    rule = '<tool_call>\n{"name": "get_reply_rule", "arguments": {"intent": "物流"}}\n</tool_call>'
    end, reply = "<|im_end|>", "包邮的"
    calls = (search, end, rule, end)
    expected = {"calls": calls, "reply": (reply, end), "both": (*calls, reply, end)}[texts]
    if format != "tokens":  # TRL's own mask also holds the line breaks around a turn
        said = re.sub(r"(^|(?<=<\|im_end\|>))\n+", "", said)
    assert said == "".join(expected)


# --- the command line ------------------------------------------------------------------------


def run(*args: str | Path) -> int:
    return cli.main(["export", "sft", *map(str, args)])


def write_jsonl(path: Path, trajectories: Sequence[Trajectory]) -> Path:
    path.write_text("".join(f"{t.model_dump_json()}\n" for t in trajectories), encoding="utf-8")
    return path


def test_the_command_writes_rows_and_prints_what_was_left_out(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    failed = episode(SEARCH, status=Status.ENV_ERROR)
    source = write_jsonl(tmp_path / "in.jsonl", [PLAIN, failed, PLAIN])
    with open(source, "a", encoding="utf-8") as out:
        out.write('{"room_id": "cut o')
    target = tmp_path / "out.jsonl"
    assert run("--view", "tool_calls", "--in", source, "--out", target) == 0
    printed = capsys.readouterr().out
    assert "2 rows of 3 trajectories written to" in printed
    assert "1 excluded" in printed
    assert "infrastructure failed (status env_error)" in printed
    assert "1 records refused" in printed
    assert "not JSON" in printed
    rows = [json.loads(line) for line in target.read_text(encoding="utf-8").splitlines()]
    assert rows == list(export_sft([PLAIN, PLAIN], view="tool_calls").rows)


def test_the_command_reads_others_trajectories(tmp_path: Path) -> None:
    source = tmp_path / "chats.json"
    talk = [{"role": "user", "content": "在吗"}, {"role": "assistant", "content": "在的"}]
    source.write_text(json.dumps([{"messages": talk}]), encoding="utf-8")
    assert run("--format", "sharegpt", "--in", source, "--out", tmp_path / "out.jsonl") == 0
    (row,) = map(json.loads, (tmp_path / "out.jsonl").read_text(encoding="utf-8").splitlines())
    assert [line["value"] for line in row["conversations"]] == ["在吗", "在的"]


def test_the_command_returns_1_without_rows_and_2_for_wrong_use(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    source = write_jsonl(tmp_path / "in.jsonl", [episode(SEARCH, status=Status.RUNNING)])
    target = tmp_path / "out.jsonl"
    assert run("--in", source, "--out", target) == 1
    assert not target.exists()
    assert run("--in", source, "--format", "tokens", "--out", target) == 2
    assert "--tokenizer DIR" in capsys.readouterr().err
    assert run("--in", tmp_path / "none.jsonl", "--out", target) == 2
    nowhere = ("--in", source, "--format", "tokens", "--tokenizer", tmp_path / "no")
    pytest.importorskip("transformers", reason="transformers is not installed")
    assert run(*nowhere, "--out", target) == 2
    assert "is no folder" in capsys.readouterr().err


@pytest.mark.filterwarnings("ignore")
def test_the_command_makes_tokens_with_a_saved_tokenizer(tokenizer: Any, tmp_path: Path) -> None:
    tokenizer.save_pretrained(tmp_path / "tokenizer")
    source = write_jsonl(tmp_path / "in.jsonl", [PLAIN])
    target = tmp_path / "out.jsonl"
    options = ("--format", "tokens", "--view", "reply", "--tokenizer", tmp_path / "tokenizer")
    assert run(*options, "--in", source, "--out", target) == 0
    (row,) = map(json.loads, target.read_text(encoding="utf-8").splitlines())
    assert tokenizer.decode(trained(row["labels"])).startswith("包邮的<|im_end|>")


def test_an_export_comes_back_through_the_importer(
    played: list[Trajectory], tmp_path: Path
) -> None:
    for format in ("messages", "sharegpt"):
        export = export_sft(played, format=format)  # type: ignore[arg-type]
        write_export(export, tmp_path / "out.jsonl")
        again = load_trajectories(tmp_path / "out.jsonl")
        assert again.refused == ()
        assert export_sft(again.trajectories, format=format).rows == export.rows  # type: ignore[arg-type]
