"""Others' trajectories: what is loaded, what is refused and why, and that nothing crashes."""

from __future__ import annotations

import json
from collections import Counter
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from livestream_env.export import export_sft
from livestream_env.importers import FORMATS, Imported, from_messages, load_trajectories
from livestream_env.types import Message, Status, StopReason, Trajectory

CALL = {"id": "a1", "type": "function", "function": {"name": "f", "arguments": '{"x": 1}'}}
USER = {"role": "user", "content": "在吗"}
ASKS = {"role": "assistant", "content": None, "tool_calls": [CALL]}
TOLD = {"role": "tool", "tool_call_id": "a1", "content": "{}"}
SAYS = {"role": "assistant", "content": "在的"}
STOP = {"role": "user", "content": "###STOP###"}


def load(path: Path, text: str | bytes, format: Any = None) -> Imported:
    path.write_bytes(text if isinstance(text, bytes) else text.encode())
    return load_trajectories(path, format)


def calls(trajectory: Trajectory) -> list[Any]:
    return [call for turn in trajectory.turns for call in turn.action.message.tool_calls]


# --- messages --------------------------------------------------------------------------------


def test_a_conversation_becomes_turns_with_the_same_transcript() -> None:
    made = from_messages([{"role": "system", "content": "规则"}, USER, ASKS, TOLD, SAYS, STOP])
    assert [m.role for m in made.messages] == [
        *("system", "user", "assistant", "tool", "assistant", "user")
    ]
    assert made.prompts["host"] == (Message("system", "规则"), Message("user", "在吗"))
    assert [turn.agent for turn in made.turns] == ["host", "host"]
    (call,) = calls(made)
    assert (call.id, call.name, call.arguments) == ("a1", "f", {"x": 1})
    assert made.turns[0].results[0].content == "{}"
    assert (made.status, made.stop_reason) == (Status.OK, StopReason.REPLIED)
    assert made.reply == "在的"
    assert (made.comment_ids, made.seed, made.content_hash) == ((), None, "")


@pytest.mark.parametrize(
    ("messages", "status", "stop"),
    [
        pytest.param([USER, SAYS], Status.OK, StopReason.REPLIED, id="reply"),
        pytest.param([USER, SAYS, STOP], Status.OK, StopReason.REPLIED, id="viewer speaks last"),
        pytest.param(
            [USER, ASKS, TOLD], Status.POLICY_TRUNCATED, StopReason.NO_REPLY, id="result last"
        ),
        pytest.param([USER, ASKS], Status.POLICY_TRUNCATED, StopReason.NO_REPLY, id="call last"),
    ],
)
def test_the_status_says_whether_a_reply_stands(messages: Any, status: Any, stop: Any) -> None:
    made = from_messages(messages)
    assert (made.status, made.stop_reason) == (status, stop)


@pytest.mark.parametrize(
    "message",
    [
        pytest.param({"tool_calls": [CALL]}, id="arguments as text"),
        pytest.param(
            {"tool_calls": [{"function": {"name": "f", "arguments": {"x": 1}}}]}, id="as object"
        ),
        pytest.param({"function_call": {"name": "f", "arguments": '{"x": 1}'}}, id="function_call"),
        pytest.param(
            {"content": '<tool_call>\n{"name": "f", "arguments": {"x": 1}}\n</tool_call>'},
            id="Hermes text",
        ),
        pytest.param(
            {"content": [{"type": "tool_call", "value": '{"name": "f", "arguments": {"x": 1}}'}]},
            id="part",
        ),
    ],
)
def test_calls_are_read_in_every_shape(message: Any) -> None:
    made = from_messages([USER, {"role": "assistant", **message}])
    (call,) = calls(made)
    assert (call.name, call.arguments, call.error) == ("f", {"x": 1}, None)
    assert made.turns[0].action.message.content == ""


@pytest.mark.parametrize(
    "message",
    [
        {"content": "好", "reasoning_content": "想"},
        {"content": "<think>\n想\n</think>\n\n好"},
        {"content": [{"type": "reasoning", "value": "想"}, {"type": "text", "text": "好"}]},
    ],
)
def test_thinking_is_kept_apart(message: Any) -> None:
    made = from_messages([USER, {"role": "assistant", **message}])
    assert made.turns[0].action.message == Message("assistant", "好", (), None, "想")


def test_text_is_kept_as_it_was() -> None:
    text = ' \u2028行动：{"name": 1}<|im_end|>\n'
    assert from_messages([USER, {"role": "assistant", "content": text}]).reply == text


def test_results_belong_to_calls_by_id_or_else_in_order() -> None:
    two = {"role": "assistant", "content": "", "tool_calls": [CALL, {**CALL, "id": "a2"}]}
    crossed = [{**TOLD, "tool_call_id": "a2", "content": "2"}, {**TOLD, "content": "1"}]
    made = from_messages([USER, two, *crossed])
    assert [(r.call_id, r.content) for r in made.turns[0].results] == [("a2", "2"), ("a1", "1")]
    made = from_messages([USER, two, *({"role": "tool", "content": x} for x in "xy")])
    assert [(r.call_id, r.content) for r in made.turns[0].results] == [("a1", "x"), ("a2", "y")]


def test_a_call_that_the_policy_got_wrong_is_kept_with_its_error() -> None:
    bad = {"function": {"name": "f", "arguments": "{x: 1"}}
    (call,) = calls(
        from_messages([USER, {"role": "assistant", "tool_calls": [bad, *()]}, TOLD_ANY])
    )
    assert (call.id, call.raw) == ("call_0_0", "{x: 1")
    assert call.error is not None
    assert call.error.startswith("invalid_json")


TOLD_ANY = {"role": "tool", "content": "error"}


@pytest.mark.parametrize(
    ("messages", "reason"),
    [
        ([USER], "no assistant message"),
        ([], "no assistant message"),
        ("在吗", "a str, not a list"),
        ([USER, 3], "message 1 is a int"),
        ([USER, {"role": "critic", "content": ""}], "the role `critic`"),
        ([USER, TOLD, SAYS], "message 1 is a tool result without a call"),
        ([USER, SAYS, TOLD], "message 2 is a tool result without a call"),
        ([USER, ASKS, TOLD, TOLD], "message 3 is the result of no call"),
        ([USER, ASKS, {**TOLD, "tool_call_id": "zz"}], "the result of no call"),
        ([USER, {"role": "assistant", "content": None}], "says nothing and calls nothing"),
        ([USER, {"role": "assistant", "content": {"a": 1}}], "not text or parts"),
        ([USER, {"role": "assistant", "content": [{"type": "image_url"}]}], "type `image_url`"),
        ([USER, {"role": "assistant", "tool_calls": 3}], "`tool_calls` of message 1 are a int"),
    ],
)
def test_what_is_no_conversation_is_refused_with_the_place(messages: Any, reason: str) -> None:
    with pytest.raises(ValueError, match=reason):
        from_messages(messages)


def test_tools_are_read_with_and_without_the_openai_wrapper() -> None:
    plain = {"name": "f", "description": "d", "parameters": {"type": "object"}}
    for tool in (plain, {"type": "function", "function": plain}):
        (spec,) = from_messages([USER, SAYS], [tool]).tools["host"]
        assert (spec.name, spec.description, spec.parameters) == ("f", "d", {"type": "object"})
    with pytest.raises(ValueError, match="no schema"):
        from_messages([USER, SAYS], [{**plain, "parameters": {"x": float("nan")}}])


# --- files -----------------------------------------------------------------------------------


def test_a_file_is_json_json_lines_or_one_record(tmp_path: Path) -> None:
    record = {"messages": [USER, SAYS]}
    for name, text in {
        "list": json.dumps([record, record]),
        "lines": f"\ufeff{json.dumps(record)}\r\n\n{json.dumps(record)}\n",
        "conversations": json.dumps([[USER, SAYS], [USER, SAYS]]),
    }.items():
        imported = load(tmp_path / f"{name}.json", text)
        assert (len(imported.trajectories), imported.refused) == (2, ())
        assert imported.trajectories[0].room_id == name
        assert imported.trajectories[0].versions == {"imported_from": "messages"}
    for text in (json.dumps(record), json.dumps([USER, SAYS]), json.dumps(record, indent=1)):
        assert len(load(tmp_path / "one.json", text).trajectories) == 1


def test_bad_records_are_refused_where_they_are_and_the_others_loaded(tmp_path: Path) -> None:
    good = json.dumps({"messages": [USER, SAYS]})
    imported = load(tmp_path / "x.jsonl", f'{good}\n{{"messages": \n\n{good}\n[1]\n{{"a": 1}}')
    assert len(imported.trajectories) == 2
    assert [where for where, _ in imported.refused] == ["line 2", "line 5", "line 6"]
    assert imported.refused[0][1].startswith("not JSON")
    assert "its keys are `a`" in imported.refused[2][1]
    imported = load(tmp_path / "x.json", json.dumps([{"messages": [USER]}, 3]))
    assert [where for where, _ in imported.refused] == ["[0]", "[1]"]


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        pytest.param("名称,价格\n茶,3\n", "not JSON", id="csv"),
        pytest.param("", "not JSON", id="empty"),
        pytest.param("茶".encode("gb18030"), "not UTF-8", id="GBK"),
        pytest.param("[" * 100_000, "nested too deeply", id="deep"),
    ],
)
def test_a_file_that_is_something_else_is_refused_as_a_whole(
    text: Any, reason: str, tmp_path: Path
) -> None:
    ((where, why),) = load(tmp_path / "x", text).refused
    assert where == "$"
    assert reason in why


def test_lone_surrogates_become_the_replacement_character(tmp_path: Path) -> None:
    says = '{"role": "assistant", "content": "好\\ud83d的\\ud83d\\ude00"}'
    (made,) = load(
        tmp_path / "x.json", f'[{{"role": "user", "content": "?"}}, {says}]'
    ).trajectories
    assert made.reply == "好\ufffd的\U0001f600"


def test_a_format_that_is_named_is_the_only_one_tried(tmp_path: Path) -> None:
    text = json.dumps([{"messages": [USER, SAYS]}])
    for format in FORMATS:
        imported = load(tmp_path / "x.json", text, format)
        assert len(imported.trajectories) == (format == "messages")
        assert len(imported.refused) == (format != "messages")
    with pytest.raises(ValueError, match="got `openai`; use `trajectories`"):
        load(tmp_path / "x.json", text, "openai")


def test_our_own_trajectories_come_back_equal(tmp_path: Path) -> None:
    made = from_messages([USER, ASKS, TOLD, SAYS])
    lines = f"{made.model_dump_json()}\n" * 2
    imported = load(tmp_path / "x.jsonl", lines + lines.replace('"turns"', '"turms"', 1))
    assert imported.trajectories[:2] == (made, made)
    broken = made.model_dump_json().replace('"room_id"', '"room"')
    ((_, reason),) = load(tmp_path / "x.jsonl", broken).refused
    assert "room_id" in reason


NAMES = [
    *("role", "content", "tool_calls", "function_call", "function", "name", "arguments", "type"),
    *("value", "text", "id", "from", "conversations", "tools", "system", "messages", "traj"),
    *("reward", "answer_generation", "train_messages", "turns", "tool_call_id", "parameters"),
    *("reasoning_content", "win", "task_id"),
]
JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=5),
    lambda inner: (
        st.lists(inner, max_size=4)
        | st.dictionaries(
            st.sampled_from(NAMES),
            inner | st.sampled_from(["assistant", "user", "tool", "gpt", "human", "observation"]),
            max_size=4,
        )
    ),
    max_leaves=25,
)


@settings(max_examples=300, deadline=None)
@given(record=JSON, format=st.sampled_from([None, *FORMATS]))
def test_whatever_a_file_holds_it_is_loaded_or_refused(
    tmp_path_factory: pytest.TempPathFactory, record: Any, format: Any
) -> None:
    path = tmp_path_factory.getbasetemp() / "any.json"
    imported = load(path, json.dumps(record), format)
    is_list = isinstance(record, list) and path.stat().st_size > 2
    assert is_list or len(imported.trajectories) + len(imported.refused) <= 1
    for made in imported.trajectories:
        assert Trajectory.model_validate_json(made.model_dump_json()) == made


# --- the public samples ----------------------------------------------------------------------


def test_tau_bench_rollouts_load_with_calls_and_rewards(shared_data: Path) -> None:
    path = shared_data / "tau_bench_trajectories" / "gpt-4o-airline.head.jsonl"
    rows = [json.loads(line) for line in path.read_text(encoding="utf-8").split("\n") if line]
    imported = load_trajectories(path)
    assert (len(imported.trajectories), imported.refused) == (126, ())
    made = imported.trajectories
    assert sum(len(calls(one)) for one in made) == 733
    assert all(call.error is None for one in made for call in calls(one))
    assert sum(one.reward == 1 for one in made) == 52
    assert Counter(one.status for one in made) == {Status.OK: 95, Status.POLICY_TRUNCATED: 31}
    for row, one in zip(rows, made, strict=True):
        texts = [(m["role"], m["content"] or "") for m in row["traj"]]
        assert [(m.role, m.content) for m in one.messages] == texts
    assert made[0].room_id == "gpt-4o-airline.head"
    assert made[0].group == "gpt-4o-airline.head/0"


def test_flat_few_shot_text_is_refused_because_its_calls_are_lost(shared_data: Path) -> None:
    path = shared_data / "tau_bench_trajectories" / "MockRetailDomainEnv-few_shot.jsonl"
    imported = load_trajectories(path)
    assert imported.trajectories == ()
    assert len(imported.refused) == 69
    assert all("tool calls are lost" in reason for _, reason in imported.refused)


@pytest.mark.parametrize(("language", "expected"), [("zh", 298), ("en", 300)])
def test_sharegpt_dialogues_load_with_every_call(
    shared_data: Path, language: str, expected: int
) -> None:
    path = shared_data / "sharegpt_toolcall" / f"glaive_toolcall_{language}_demo.json"
    rows = json.loads(path.read_text(encoding="utf-8"))
    tags = [[line["from"] for line in row["conversations"]] for row in rows]
    lost = {i for i, t in enumerate(tags) if ("gpt", "observation") in pairwise(t)}
    imported = load_trajectories(path)
    assert len(imported.trajectories) == len(rows) - len(lost) == expected
    assert [where for where, _ in imported.refused] == [f"[{i}]" for i in sorted(lost)]
    kept = [row for i, row in enumerate(rows) if i not in lost]
    for row, one in zip(kept, imported.trajectories, strict=True):
        lines = row["conversations"]
        asked = [json.loads(x["value"]) for x in lines if x["from"] == "function_call"]
        assert [{"name": c.name, "arguments": c.arguments} for c in calls(one)] == asked
        assert len(one.tools["host"]) == len(json.loads(row["tools"]))
        assert len(one.messages) == len(lines)
        assert one.messages[-1].content == lines[-1]["value"]


def test_sharegpt_dialogues_export_as_they_came(shared_data: Path) -> None:
    path = shared_data / "sharegpt_toolcall" / "glaive_toolcall_zh_demo.json"
    imported = load_trajectories(path)
    export = export_sft(imported.trajectories, format="sharegpt")
    rows = json.loads(path.read_text(encoding="utf-8"))
    kept = [row for i, row in enumerate(rows) if i not in (197, 293)]
    assert (len(export.rows), export.excluded) == (298, ())
    for row, made in zip(kept, export.rows, strict=True):
        for given_line, line in zip(row["conversations"], made["conversations"], strict=True):
            assert line["from"] == given_line["from"]
            if line["from"] == "function_call":
                assert json.loads(line["value"]) == json.loads(given_line["value"])
            else:
                assert line["value"] == given_line["value"]


def test_parts_with_reasoning_and_calls_load(shared_data: Path) -> None:
    path = shared_data / "sharegpt_toolcall" / "reason_tool_use_demo_50.jsonl"
    imported = load_trajectories(path)
    assert (len(imported.trajectories), imported.refused) == (50, ())
    said = [m for one in imported.trajectories for m in one.messages]
    assert sum(bool(message.reasoning) for message in said) == 112
    assert sum(len(message.tool_calls) for message in said) == 68
    assert sum(message.role == "tool" for message in said) == 42


def test_toolbench_answers_load_their_last_path(shared_data: Path) -> None:
    loaded = refused = asked = 0
    for path in sorted((shared_data / "toolbench" / "answer").rglob("*.json")):
        answer = json.loads(path.read_text(encoding="utf-8"))
        paths = answer["answer_generation"].get("train_messages")
        imported = load_trajectories(path)
        assert len(imported.trajectories) == bool(paths)
        refused += len(imported.refused)
        for made in imported.trajectories:
            loaded += 1
            asked += len(calls(made))
            assert all(call.error is None for call in calls(made))
            assert len(made.messages) == len(paths[-1])
            assert made.reward == float(answer["win"])
            assert (made.status is Status.OK) == answer["win"]
            assert len(made.tools["host"]) == len(answer["answer_generation"]["function"])
    assert (loaded, refused, asked) == (13, 2, 50)


NO_CONVERSATION = {
    "hermes_function_calling": 2 + 9,
    "toolbench/instruction": 5 + 3 + 2 + 1 + 1,
    "bfcl": None,
    "acebench_zh": None,
}


@pytest.mark.parametrize("folder", NO_CONVERSATION)
def test_samples_that_hold_no_conversation_are_refused_one_by_one(
    shared_data: Path, folder: str
) -> None:
    refused = 0
    for path in sorted((shared_data / folder).rglob("*.json*")):
        text = path.read_text(encoding="utf-8")
        try:
            records = len(json.loads(text))
        except ValueError:
            records = sum(bool(line.strip()) for line in text.split("\n"))
        imported = load_trajectories(path)
        assert imported.trajectories == ()
        assert len(imported.refused) == records, path.name
        assert all("no conversation" in reason for _, reason in imported.refused)
        refused += records
    assert refused == (NO_CONVERSATION[folder] or refused) > 0
