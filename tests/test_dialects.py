"""How models write calls: each dialect by name and unnamed, whole, broken and hostile."""

from __future__ import annotations

import ast
import json
import re
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from records_for_tests import can_be_recorded

import livestream_env as le
from livestream_env.calls import MOST_CALLS
from livestream_env.dialects import DIALECTS, dialect_of
from livestream_env.parsing import parse_text, to_action
from livestream_env.types import Action, ToolSpec, freeze

Calls = list[tuple[str, dict[str, Any]]]


def as_json(value: object) -> str:
    return json.dumps(value, ensure_ascii=False)


def as_text(value: object) -> str:
    return value if isinstance(value, str) else as_json(value)


def hermes(name: str, arguments: dict[str, Any]) -> str:
    return f"<tool_call>\n{as_json({'name': name, 'arguments': arguments})}\n</tool_call>"


def qwen3_coder(name: str, arguments: dict[str, Any]) -> str:
    body = "".join(
        f"<parameter={key}>\n{as_text(value)}\n</parameter>\n" for key, value in arguments.items()
    )
    return f"<tool_call>\n<function={name}>\n{body}</function>\n</tool_call>"


def glm(name: str, arguments: dict[str, Any]) -> str:
    body = "".join(
        f"<arg_key>{key}</arg_key>\n<arg_value>{as_text(value)}</arg_value>\n"
        for key, value in arguments.items()
    )
    return f"<tool_call>{name}\n{body}</tool_call>"


def deepseek(name: str, arguments: dict[str, Any]) -> str:
    return (
        f"<｜tool▁call▁begin｜>function<｜tool▁sep｜>{name}\n```json\n{as_json(arguments)}\n```"
        "<｜tool▁call▁end｜>"
    )


def deepseek_v31(name: str, arguments: dict[str, Any]) -> str:
    return f"<｜tool▁call▁begin｜>{name}<｜tool▁sep｜>{as_json(arguments)}<｜tool▁call▁end｜>"


def kimi_k2(name: str, arguments: dict[str, Any]) -> str:
    return (
        f"<|tool_call_begin|>functions.{name}:0<|tool_call_argument_begin|>"
        f"{as_json(arguments)}<|tool_call_end|>"
    )


def gpt_oss(name: str, arguments: dict[str, Any]) -> str:
    return (
        f"<|start|>assistant<|channel|>commentary to=functions.{name} <|constrain|>json<|message|>"
        f"{as_json(arguments)}<|call|>"
    )


def llama(name: str, arguments: dict[str, Any]) -> str:
    return as_json({"name": name, "parameters": arguments})


def bare(name: str, arguments: dict[str, Any]) -> str:
    return as_json({"name": name, "arguments": arguments})


def python_call(name: str, arguments: dict[str, Any]) -> str:
    return f"{name}({', '.join(f'{key}={value!r}' for key, value in arguments.items())})"


WRITERS: dict[str, tuple[Callable[[str, dict[str, Any]], str], str, str, str]] = {
    "hermes": (hermes, "", "\n", ""),
    "json": (bare, "", "\n\n", ""),
    "qwen3_coder": (qwen3_coder, "", "\n", ""),
    "glm": (glm, "", "\n", ""),
    "deepseek": (deepseek, "<｜tool▁calls▁begin｜>", "\n", "<｜tool▁calls▁end｜>"),
    "deepseek, V3.1": (deepseek_v31, "<｜tool▁calls▁begin｜>", "", "<｜tool▁calls▁end｜>"),
    "kimi_k2": (kimi_k2, "<|tool_calls_section_begin|>", "", "<|tool_calls_section_end|>"),
    "gpt_oss": (gpt_oss, "", "", ""),
    "llama": (llama, "", "; ", ""),
    "llama, tag": (llama, "<|python_tag|>", "; ", ""),
    "pythonic": (python_call, "[", ", ", "]"),
    "pythonic, lines": (python_call, "", "\n", ""),
    "pythonic, LFM2": (python_call, "<|tool_call_start|>[", ", ", "]<|tool_call_end|>"),
}
"""Name, and after a comma the form: one call, what stands before, between and after calls."""
ENDS = {
    "hermes": "<|im_end|>\n",
    "glm": "<|observation|>",
    "deepseek": "<｜end▁of▁sentence｜>",
    "kimi_k2": "<|im_end|>",
    "llama": "<|eot_id|>",
    "llama, tag": "<|eom_id|>",
    "pythonic": "</s>",
}
CODES = {"invalid_json", "unclosed", "missing_name", "invalid_arguments", "unsupported"}
FAQ = ("search_faq", {"query": "包邮吗", "top": 3, "strict": True, "tags": ["a", {"b": 1.5}]})
RULE = ("get_reply_rule", {"intent": "发货物流"})


def write(form: str, *calls: tuple[str, dict[str, Any]]) -> str:
    writer, before, between, after = WRITERS[form]
    return before + between.join(writer(*call) for call in calls) + after


def name_of(form: str) -> str:
    return form.partition(",")[0]


def calls_of(action: Action) -> Calls:
    assert [call.error for call in action.message.tool_calls if call.error] == []
    return [(call.name, dict(call.arguments)) for call in action.message.tool_calls]


def codes_of(action: Action) -> list[str]:
    return [(call.error or "ok").partition(": ")[0] for call in action.message.tool_calls]


def spec(tool: str, /, **properties: Any) -> ToolSpec:
    return ToolSpec(tool, "", freeze({"type": "object", "properties": properties}))


forms = pytest.mark.parametrize("form", WRITERS)


# --- whole calls -----------------------------------------------------------------------------


@pytest.mark.row("R11")
@forms
def test_one_and_two_calls_are_read_with_and_without_the_dialects_name(form: str) -> None:
    for calls in ([FAQ], [FAQ, RULE], [RULE, FAQ, RULE]):
        text = write(form, *calls)
        for dialect in (None, name_of(form)):
            action = parse_text(text, dialect, turn=2)
            assert calls_of(action) == calls
            assert action.message.content == ""
            ids = [call.id for call in action.message.tool_calls]
            assert len(set(ids)) == len(calls)
            if name_of(form) != "kimi_k2":
                assert ids == [f"call_2_{i}" for i in range(len(calls))]
            assert can_be_recorded(action)


@forms
def test_calls_without_arguments_and_with_an_empty_value_are_read(form: str) -> None:
    for call in (("hand_off", {}), ("search_faq", {"query": ""})):
        assert calls_of(to_action(write(form, call))) == [call]


@forms
def test_text_around_calls_is_said(form: str) -> None:
    message = to_action(f"稍等，我查一下。\n{write(form, FAQ, RULE)}\n马上好").message
    assert len(message.tool_calls) == 2
    assert "".join(message.content.split()) == "稍等，我查一下。马上好"


@pytest.mark.row("R11")
@forms
def test_a_call_drafted_while_thinking_is_no_call(form: str) -> None:
    draft, call = write(form, RULE), write(form, FAQ)
    for text, expected in (
        (f"<think>试试\n{draft}\n不对</think>\n\n{call}", [FAQ]),
        (f"想\n{draft}</think>\n{call}", [FAQ]),
        (f"<think>\n{draft}\n</think>\n\n亲，包邮", []),
        (f"<think>还在想\n{draft}", []),
        (f"<think>想</think>{call}", [FAQ]),
    ):
        action = to_action(text)
        assert calls_of(action) == expected, text
        assert "想" in action.message.reasoning or "试" in action.message.reasoning or "\n" in text


def test_gpt_oss_thinks_in_one_channel_and_speaks_in_another() -> None:
    text = (
        "<|channel|>analysis<|message|>要查。草稿 to=functions.f </think>"
        '{"name": "f", "arguments": {}}<|end|>'
        "<|start|>assistant<|channel|>commentary<|message|>我查一下<|end|>"
    )
    message = to_action(text + gpt_oss(*FAQ)).message
    assert message.reasoning == '要查。草稿 to=functions.f </think>{"name": "f", "arguments": {}}'
    assert message.content == "我查一下"
    assert [call.name for call in message.tool_calls] == ["search_faq"]
    reply = (
        "<|channel|>analysis<|message|>想<|end|><|start|>assistant<|channel|>final<|message|>有货"
    )
    for end in ("<|return|>", "<|end|>", ""):
        message = to_action(reply + end).message
        assert (message.reasoning, message.content, message.tool_calls) == ("想", "有货", ())
    message = parse_text(reply, "gpt_oss").message
    assert (message.reasoning, message.content) == ("想", "有货")
    assert parse_text(reply, "hermes").message.tool_calls == ()


@pytest.mark.parametrize(
    "text",
    [
        ' to=functions.f<|channel|>commentary json<|message|>{"q": "x"}<|call|>',
        '<|start|>assistant to=functions.f<|channel|>commentary json<|message|>{"q": "x"}<|call|>',
        '<|channel|> commentary to=functions.f <|constrain|> json<|message|> {"q": "x"}',
        '<|channel|>commentary to=f<|message|>{"q": "x"}<|channel|>final<|message|>',
    ],
)
def test_gpt_oss_names_the_recipient_before_or_after_the_channel(text: str) -> None:
    assert calls_of(to_action(text)) == [("f", {"q": "x"})]


def test_a_kimi_calls_id_is_kept_and_made_unique() -> None:
    ids = [call.id for call in to_action(write("kimi_k2", FAQ, RULE)).message.tool_calls]
    assert ids == ["functions.search_faq:0", "functions.get_reply_rule:0"]
    ids = [call.id for call in to_action(write("kimi_k2", FAQ, FAQ)).message.tool_calls]
    assert ids == ["functions.search_faq:0", "call_0_1"]


@forms
def test_end_tokens_are_dropped(form: str) -> None:
    for end in {ENDS.get(form, "<|im_end|>"), "<|im_end|>"}:
        action = to_action(write(form, FAQ) + end)
        assert calls_of(action) == [FAQ]
        assert action.message.content == ""


def test_calls_of_several_dialects_in_one_text_are_all_read() -> None:
    text = "\n".join(write(form, RULE) for form in WRITERS)
    assert len(calls_of(to_action(text))) == len(WRITERS)


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        pytest.param('<function=f>{"a": 1}</function>', [("f", {"a": 1})], id="Llama 3.1 function"),
        pytest.param(
            "<tool_call><function=f>\n</function><function=g></function></tool_call>",
            [("f", {}), ("g", {})],
            id="two functions in one tag",
        ),
        pytest.param(
            "<function=f>\n<parameter=a>\n1\n</parameter>\n</function>\n</tool_call>",
            [("f", {"a": 1})],
            id="opening tag lost",
        ),
        pytest.param(
            '<|python_tag|>brave_search.call(query="红裙")',
            [("brave_search", {"query": "红裙"})],
            id="Llama's built-in tools",
        ),
        pytest.param(
            '{"type": "function", "name": "f", "parameters": {"a": 1}}',
            [("f", {"a": 1})],
            id="type",
        ),
        pytest.param(
            '{"type": "function", "function": {"name": "f", "arguments": "{\\"a\\": 1}"}}',
            [("f", {"a": 1})],
            id="OpenAI's call as text",
        ),
        pytest.param(
            '我查一下{"name": "f", "arguments": {"a": 1}}', [("f", {"a": 1})], id="inline JSON"
        ),
        pytest.param("<tool_call>\nhand_off\n</tool_call>", [("hand_off", {})], id="GLM, lines"),
        pytest.param("get_reply_rule()", [("get_reply_rule", {})], id="Python without arguments"),
        pytest.param(
            "我来查：[f(a=1, b=True, c=None, d=(1, -2.5), e={'k': true, 'n': null})]",
            [("f", {"a": 1, "b": True, "c": None, "d": [1, -2.5], "e": {"k": True, "n": None}})],
            id="Python values",
        ),
        pytest.param("[a.b(x=+1), ]", [("a.b", {"x": 1})], id="dotted name, trailing comma"),
        pytest.param(
            "```python\nf(x='a\\d\\n', y='''b''')\n```",
            [("f", {"x": "a\\d\n", "y": "b"})],
            id="fence",
        ),
        pytest.param(
            "f(x=1), g(y='a'); h(z=2)",
            [("f", {"x": 1}), ("g", {"y": "a"}), ("h", {"z": 2})],
            id="one line",
        ),
        pytest.param("好的，[f(x=1)] 稍等", [("f", {"x": 1})], id="list in a sentence"),
        pytest.param('{"name": "f", "arguments": {}}</tool_call>', [("f", {})], id="tag lost"),
        pytest.param(
            '{"id": "c", "type": "function", "function": {"name": "f", "arguments": "{}"}}',
            [("f", {})],
            id="OpenAI's call with its id",
        ),
        pytest.param(
            '{"index": 0, "id": "c", "name": "f", "arguments": {"a": 1}}',
            [("f", {"a": 1})],
            id="id before the name",
        ),
        pytest.param(r"f(x=r'\d')", [("f", {"x": r"\d"})], id="raw string"),
    ],
)
def test_forms_that_mean_one_thing_are_read(text: str, expected: Calls) -> None:
    assert calls_of(to_action(text)) == expected


# --- hostile values --------------------------------------------------------------------------

HOSTILE = [
    *("</parameter>", "</tool_call>", "<tool_call>", "<think>", "</think>", "</arg_value>"),
    *("</function>", "<|call|>", "<|message|>", "<｜tool▁call▁end｜>", "<|tool_call_end|>"),
    *(
        "6'2\" 男装",
        '"显瘦"连衣裙',
        "“显瘦”，连衣裙：红",
        "a\nb\n",
        "\n",
        "\\",
        "红裙, 显瘦)]",
        "a, b)",
    ),
    *("</think>" + hermes(*RULE), bare(*RULE), "[hand_off()]", "<|python_tag|>", "{{7*7}}", " x "),
]


@pytest.mark.parametrize("value", HOSTILE)
@pytest.mark.parametrize("thinking", ["", "<think>想</think>"], ids=["", "thinking"])
@forms
def test_what_a_call_quotes_is_text(form: str, thinking: str, value: str) -> None:
    call = ("search_faq", {"query": value, "note": "好"})
    tools = (spec("search_faq", query={"type": "string"}, note={"type": "string"}),)
    action = parse_text(thinking + write(form, call, RULE), tools=tools)
    assert calls_of(action) == [call, RULE]
    assert action.message.content == ""


@pytest.mark.parametrize(
    "text",
    [
        "<tool_call><function=f><parameter=a>1<parameter=b>2</parameter></function></tool_call>",
        "<tool_call>f<arg_key>a</arg_key><arg_value>1<arg_key>b</arg_key><arg_value>2</arg_value>"
        "</tool_call>",
    ],
)
def test_a_lost_closing_tag_swallows_no_other_parameter(text: str) -> None:
    assert codes_of(to_action(text)) == ["unclosed"]


def test_the_empty_text_between_quotes_is_never_the_value() -> None:
    for form in ("hermes", "json", "llama", "deepseek", "kimi_k2", "gpt_oss"):
        text = write(form, ("f", {"keyword": "@"})).replace('"@"', '""显瘦"连衣裙"')
        [call] = to_action(text).message.tool_calls
        assert (call.error or "").startswith("invalid_json: ")
        assert "连衣裙" in (call.raw or "")
    [call] = to_action("[f(keyword=''显瘦'连衣裙')]").message.tool_calls
    assert (call.error or "").startswith("invalid_arguments: ")


# --- malformed -------------------------------------------------------------------------------

SEP = "<｜tool▁sep｜>"
DEEP = "[" * 5000
TRUTH = [
    ("hermes", "<tool_call>{}</tool_call>", "missing_name"),
    ("hermes", '<tool_call>{"name": "f", "arguments": {}', "unclosed"),
    ("hermes", '<tool_call>{"name": "f",}</tool_call>', "invalid_json"),
    ("hermes", '<tool_call>{"name": "f", "arguments": [1]}</tool_call>', "invalid_arguments"),
    ("hermes", '<tool_call>{"name": "f", "query": "x"}</tool_call>', "invalid_arguments"),
    (
        "hermes",
        '<tool_call>{"name":"f","arguments":{},"parameters":{}}</tool_call>',
        "invalid_arguments",
    ),
    ("hermes", "<tool_call>", "unclosed"),
    ("hermes", "<tool_call></tool_call>", "invalid_json"),
    ("hermes", "<tool_call>[f(a=1)]</tool_call>", "invalid_json"),
    ("hermes", f"<tool_call>{DEEP}</tool_call>", "invalid_json"),
    ("json", '{"name": "f", "arguments": {"a": }}', "invalid_json"),
    ("json", '{"name": "f", "arguments": {"a": 1}', "invalid_json"),
    ("json", '{"name": "f", "arguments": 3}', "invalid_arguments"),
    ("json", '{"name": "f", "query": "x"}', "invalid_arguments"),
    ("json", '{"name": "", "arguments": {}}', "missing_name"),
    ("json", '{"tool_calls": [{"name": "f"}]}', "missing_name"),
    ("json", "{'name': 'f', 'arguments': {}}", "invalid_json"),
    ("json", "{“name”：“f”，“arguments”：{}}", "invalid_json"),
    ("json", '{"name": "羽绒服", "price": }', "invalid_json"),
    ("qwen3_coder", "<tool_call><function=f", "unclosed"),
    ("qwen3_coder", "<tool_call><function=f>", "unclosed"),
    ("qwen3_coder", "<function=f>", "unclosed"),
    ("qwen3_coder", "<function=f", "unclosed"),
    ("qwen3_coder", "<tool_call><function=f><parameter=a>1", "unclosed"),
    ("qwen3_coder", "<tool_call><function=f></function>", "unclosed"),
    ("qwen3_coder", "<tool_call><function=></function></tool_call>", "missing_name"),
    ("qwen3_coder", "<tool_call><function=f>x</function></tool_call>", "invalid_arguments"),
    ("qwen3_coder", "<function=f><parameter=>1</parameter></function>", "invalid_arguments"),
    (
        "qwen3_coder",
        "<function=f><parameter=a>1</parameter><parameter=a>2</parameter></function>",
        "invalid_arguments",
    ),
    ("qwen3_coder", '<function=f>{"a": }</function>', "invalid_json"),
    ("qwen3_coder", '<function=f>{"a": ', "unclosed"),
    ("glm", "<tool_call>f", "unclosed"),
    ("glm", "<tool_call>f\n<arg_key>a</arg_key>\n<arg_value>1", "unclosed"),
    (
        "glm",
        "<tool_call>\n<arg_key>a</arg_key>\n<arg_value>1</arg_value></tool_call>",
        "missing_name",
    ),
    ("glm", "<tool_call>f\n<arg_key>a</arg_key></tool_call>", "invalid_arguments"),
    ("glm", "<tool_call>f\n<arg_key>a</arg_key>", "unclosed"),
    (
        "glm",
        "<tool_call>f<arg_key></arg_key><arg_value>1</arg_value></tool_call>",
        "invalid_arguments",
    ),
    ("deepseek", "<｜tool▁calls▁begin｜>", "unclosed"),
    ("deepseek", "<｜tool▁call▁begin｜>f{}<｜tool▁call▁end｜>", "missing_name"),
    ("deepseek", f"<｜tool▁call▁begin｜>{SEP}{{}}<｜tool▁call▁end｜>", "missing_name"),
    ("deepseek", f"<｜tool▁call▁begin｜>f{SEP}{{}}", "unclosed"),
    ("deepseek", f'<｜tool▁call▁begin｜>f{SEP}{{"a": ', "unclosed"),
    ("deepseek", f'<｜tool▁call▁begin｜>f{SEP}{{"a": }}<｜tool▁call▁end｜>', "invalid_json"),
    ("deepseek", f"<｜tool▁call▁begin｜>f{SEP}{{}} x<｜tool▁call▁end｜>", "invalid_json"),
    ("deepseek", f"<｜tool▁call▁begin｜>f{SEP}[1]<｜tool▁call▁end｜>", "invalid_arguments"),
    ("kimi_k2", "<|tool_call_begin|>functions.f:0", "unclosed"),
    ("kimi_k2", "<|tool_call_begin|>functions.f:0 {}<|tool_call_end|>", "missing_name"),
    (
        "kimi_k2",
        "<|tool_call_begin|>functions.:0<|tool_call_argument_begin|>{}<|tool_call_end|>",
        "missing_name",
    ),
    ("kimi_k2", "<|tool_call_begin|>f:0<|tool_call_argument_begin|>{", "unclosed"),
    (
        "kimi_k2",
        "<|tool_call_begin|>f:0<|tool_call_argument_begin|>{<|tool_call_end|>",
        "invalid_json",
    ),
    ("gpt_oss", "<|channel|>comm", "unclosed"),
    ("gpt_oss", "<|start|>assistant", "unclosed"),
    ("gpt_oss", "<|channel|>commentary to=functions.f <|constrain|>json", "unclosed"),
    ("gpt_oss", '<|channel|>commentary to=functions.f<|message|>{"a": ', "unclosed"),
    (
        "gpt_oss",
        '<|channel|>commentary to=functions.f<|message|>{"a": }<|call|><|end|>x',
        "invalid_json",
    ),
    ("gpt_oss", "<|channel|>commentary to=functions.<|message|>{}<|call|>", "missing_name"),
    ("gpt_oss", '<|channel|>commentary to=f<|message|>{"a": NaN}<|call|>', "invalid_json"),
    ("gpt_oss", '<|channel|>commentary to=f<|message|>{"a": }<|call|>', "invalid_json"),
    ("json", '{{"name": "f", "arguments": {}}}', "invalid_json"),
    ("gpt_oss", "<|channel|>commentary to=functions.f<|message|>[]<|call|>", "invalid_arguments"),
    ("gpt_oss", "<|channel|>analysis to=functions.f<|message|>{}<|call|>", "unsupported"),
    ("llama", '{"name": "f", "parameters": {"a": }}', "invalid_json"),
    ("llama", '{"name": "f", "parameters": "x"}', "invalid_json"),
    ("llama", '{"name": "f", "parameters": []}', "invalid_arguments"),
    ("llama", '{"parameters": {}}', "missing_name"),
    ("llama", "<|python_tag|>", "unclosed"),
    ("llama", "<|python_tag|>import os", "unsupported"),
    ("llama", "<|python_tag|>f.call(a=", "unclosed"),
    ("pythonic", "[search(keyword='红裙", "unclosed"),
    ("pythonic", "[search(keyword='红裙')", "unclosed"),
    ("pythonic", "search(keyword='红裙'", "unclosed"),
    ("pythonic", "[search(keyword=红裙)]", "invalid_arguments"),
    ("pythonic", "search(keyword=红裙)", "invalid_arguments"),
    ("pythonic", "[search('红裙')]", "invalid_arguments"),
    ("pythonic", "search('红裙')", "invalid_arguments"),
    ("pythonic", "[f(a=1, a=2)]", "invalid_arguments"),
    ("pythonic", "[f(a={'k': 1, 'k': 2})]", "invalid_arguments"),
    ("pythonic", "[f(a={1: 2})]", "invalid_arguments"),
    ("pythonic", "[f(a={**b})]", "invalid_arguments"),
    ("pythonic", "[f(a=1, **b)]", "invalid_arguments"),
    ("pythonic", "[f(a={1, 2})]", "invalid_arguments"),
    ("pythonic", "[f(a=b'x')]", "invalid_arguments"),
    ("pythonic", "[f(a=-'x')]", "invalid_arguments"),
    ("pythonic", "[f(a=1e999)]", "invalid_arguments"),
    ("pythonic", "[f(a=__import__('os').system('id'))]", "invalid_arguments"),
    ("pythonic", "[f(a=1)(b=2)]", "invalid_arguments"),
    ("pythonic", "[f(a=1) + 2]", "invalid_arguments"),
    ("pythonic", "[f(a='\x00')]", "invalid_arguments"),
    ("pythonic", f"[f(a={'[' * 90}1{']' * 90})]", "invalid_arguments"),
    ("pythonic", f"[f(a={'-' * 9000}1)]", "invalid_arguments"),
    ("pythonic", f"[f(a={'1' * 5000})]", "invalid_arguments"),
    ("pythonic", f"[f(a={'b.' * 5000}c)]", "invalid_arguments"),
]


@pytest.mark.parametrize(
    ("dialect", "text", "code"), TRUTH, ids=[f"{row[0]}: {row[1][:50]}" for row in TRUTH]
)
def test_a_malformed_call_is_an_error_with_its_code(dialect: str, text: str, code: str) -> None:
    for named in (None, dialect):
        action = parse_text(text, named)
        assert codes_of(action) == [code]
        [call] = action.message.tool_calls
        assert (call.error or "").partition(": ")[2]
        assert call.raw is not None
        assert not call.arguments
        assert can_be_recorded(action)


def test_every_dialect_is_in_the_truth_table() -> None:
    assert {row[0] for row in TRUTH} == set(DIALECTS) == set(map(name_of, WRITERS))


@forms
def test_a_call_cut_anywhere_is_an_error_or_not_yet_a_call(form: str) -> None:
    text = write(form, FAQ)
    begun = next(k for k in range(len(text)) if to_action(text[:k]).message.tool_calls)
    assert begun <= 40
    for k in range(begun, len(text)):
        action = to_action(text[:k])
        codes = set(codes_of(action))
        assert codes, text[:k]
        assert can_be_recorded(action)
        if "ok" in codes:
            call = action.message.tool_calls[0]
            assert (call.name, dict(call.arguments)) == FAQ
            assert len(text) - k <= len("<|tool_calls_section_end|>")


@pytest.mark.parametrize("bad", range(3))
@forms
def test_of_several_calls_the_good_ones_run_and_the_bad_one_is_answered(
    form: str, bad: int
) -> None:
    calls = [(f"tool_{i}", {"n": i, "q": "甲"}) for i in range(3)]
    whole = write(form, *calls)
    marked = write(
        form, *((name, {**a, "n": 77} if i == bad else a) for i, (name, a) in enumerate(calls))
    )
    broken = {"qwen3_coder": ("\n77\n</parameter>", ""), "glm": ("77</arg_value>", "")}
    old, new = broken.get(form, ("77", "7 7"))
    assert marked.count(old) == 1
    assert whole != marked
    action = to_action(marked.replace(old, new))
    good = [
        (call.name, dict(call.arguments)) for call in action.message.tool_calls if not call.error
    ]
    assert good == [call for i, call in enumerate(calls) if i != bad]
    assert len(action.message.tool_calls) == 3
    assert action.message.tool_calls[bad].error is not None


@pytest.mark.parametrize(
    "text",
    [
        '[TOOL_CALLS][{"name": "f", "arguments": {}}]',
        "<|tool_call>call:f{a:1}<tool_call|>",
        '<|tool_call|>[{"name": "f"}]',
        '<minimax:tool_call><invoke name="f"></invoke></minimax:tool_call>',
        '<function_calls><invoke name="f"></invoke></function_calls>',
        "<｜DSML｜function_calls>",
        "<Tool_Call>{}</Tool_Call>",
        "＜tool_call＞{}＜/tool_call＞",
        "[TOOL_CALL]{}[/TOOL_CALL]",
        "<|tool_calls|>[]",
        "<|tool▁call▁begin|>f",
        "✿FUNCTION✿: f\n✿ARGS✿: {}",
        '<parameter name="a">1</parameter></invoke>',
        "function<｜tool▁sep｜>f\n```json\n{}\n```<｜tool▁call▁end｜>",
        "f<arg_key>a</arg_key><arg_value>1</arg_value></tool_call>",
        "<parameter=a>1</parameter></function>",
        "< tool call >{}",
        'functools[{"name": "f"}]',
        'assistantcommentary to=functions.f json{"q": 1}',
        'Action: search_faq\nAction Input: {"query": "包邮"}',
    ],
)
def test_other_forms_are_unsupported_and_never_silent(text: str) -> None:
    for dialect in (None, "hermes", "json"):
        action = parse_text(text, dialect)
        assert codes_of(action) == ["unsupported"]
        assert action.message.tool_calls[0].raw


@pytest.mark.parametrize("form", [form for form in WRITERS if not form.startswith("hermes")])
def test_another_dialect_than_the_named_one_is_an_error(form: str) -> None:
    action = parse_text(f"好的\n{write(form, FAQ)}", "hermes")
    assert action.message.tool_calls
    assert "ok" not in codes_of(action)
    assert action.message.content == "好的"


def test_an_unknown_dialect_is_the_callers_mistake() -> None:
    with pytest.raises(ValueError, match=r"no dialect `herms`.* Did you mean `hermes`\?"):
        parse_text("好 {", "herms")


@pytest.mark.parametrize(
    "cut", ["<tool_", "<|python", "<｜tool▁ca", "<|tool_calls_sec", "<|start|>assi", "<|channel|"]
)
def test_a_text_cut_within_a_mark_is_unclosed(cut: str) -> None:
    action = to_action(f"我查一下\n{cut}")
    assert codes_of(action) == ["unclosed"]
    assert action.message.content == "我查一下"


# --- plain replies ---------------------------------------------------------------------------


@pytest.mark.parametrize(
    "text",
    [
        *(
            "[微笑] 亲，有货",
            "{微笑}",
            "<3 爱你",
            ">_< 没货了",
            "(*^▽^*) 有的",
            "f(x)=1",
            "L(180)有货",
        ),
        *(
            "XL(180/96A)有货",
            "[XL(180), L(175)] 都有",
            "M(height=165)有货",
            "iPhone(国行) 5999",
            "[a](b)",
        ),
        *(
            'iPhone("国行")有货',
            'iPhone("国行")',
            "hello()！",
            "OK()",
            "价格<100>元",
            "a < b, b > c",
            "< tool",
        ),
        *(
            '{"price": 199}',
            '{"name": "羽绒服", "price": 199}',
            '[{"name": "羽绒 服", "price": 1}]',
            '{"id": 3, "name": "coat", "price": 199}',
            '{"type": "reply", "content": "有货"}',
            '[{"id": "p1", "name": "羽绒服"}]',
        ),
        *('您发的“{"name": "x", "arguments": {}}”是什么', '{"function": "加热"}', '[{"a": 1}]'),
        *(
            "[TOOL] 好",
            "调用 search_faq 就行",
            "Action: 立减",
            "to=you",
            "<b>包邮</b>",
            "[链接](http://x)",
        ),
        *(
            "[f(x",
            "size(cm=165) in stock",
            "f(a==b)",
            "<think",
            "</parameter>",
            "函数(参数=1)",
        ),
    ],
)
def test_brackets_of_any_kind_stay_a_reply(text: str) -> None:
    for given_text in (text, f"亲，{text}", f"亲\n{text}\n好的"):
        message = to_action(given_text).message
        assert (message.content, message.tool_calls) == (given_text, ())


# --- tools that are known by name ------------------------------------------------------------

OFFERED = (spec("search_faq", query={"type": "string"}), spec("price", of={"type": "string"}))


@pytest.mark.row("R11")
@pytest.mark.parametrize(
    "text",
    [
        '{"tool": "search_faq", "arguments": {"query": "x"}}',
        '{"thought": {"a": 1}, "action": "search_faq", "action_input": {"query": "x"}}',
        '{"search_faq": {"query": "x"}}',
        '{name: "search_faq", arguments: {query: "x"}}',
        '- {"name": "search_faq", "arguments": {"query": "x"}}',
        '`{"name": "search_faq", "arguments": {"query": "x"}}`',
        '"{"name": "search_faq", "arguments": {"query": "x"}}"',
        '{nam, "search_faq", "arguments": {"query": "x"}}',
        'search_faq: {"query": "x"}',
        'search_faq\n```json\n{"query": "x"}\n```',
        '我来调用search_faq(query="x")',
        '调用：search_faq("x")。',
        'print(search_faq(query="x"))',
        'x = search_faq(query="x")\nprint(x)',
        "search_faq(query: x)",
        "<tool_code>search_faq(query='x')</tool_code>",
        '<search_faq query="x"/>',
        "<search_faq><query>x</query></search_faq>",
        '<function name="search_faq">{"query": "x"}</function>',
        '<function=search_faq query="x"/>',
        "<tool_use><name>search_faq</name></tool_use>",
        "<tool_cell>search_faq x</tool_call>",
        "<|tool▁sep|>search_faq",
        "Action: search_faq",
        "行动：search_faq\n行动输入：x",
        "search_faq[x]",
        "<|channel|>final<|message|><tool_call>{'name': 'search_faq'}</tool_call>",
        "今天 price(of='x') 元",
    ],
)
def test_what_names_an_offered_tool_as_a_call_does_is_never_silent(text: str) -> None:
    for dialect in (None, *DIALECTS):
        action = parse_text(f"好的\n{text}", dialect, tools=OFFERED)
        assert codes_of(action)
        assert "ok" not in codes_of(action)
        assert can_be_recorded(action)


@pytest.mark.parametrize(
    "text",
    [
        "调用 search_faq 就行",
        "您发的“search_faq(query='x')”是什么",
        '您说的「{"tool": "search_faq"}」我不懂',
        "The price (with coupon) is 59",
        "price: 59 (was 79)",
        '{"price": 199}',
        '{"price": "59"}',
        "<b>price</b> 59",
        "price[1] 59, see below",
        "research_faqs(x='y') 好",
        "search_faq（常见问题）里有",
    ],
)
def test_what_only_mentions_an_offered_tool_is_a_reply(text: str) -> None:
    message = parse_text(text, tools=OFFERED).message
    assert (message.content, message.tool_calls) == (text, ())


def test_the_text_before_a_call_in_no_known_form_is_kept() -> None:
    message = parse_text('好的\n查：{"tool": "search_faq"}\n马上', tools=OFFERED).message
    assert message.content == "好的"
    [call] = message.tool_calls
    assert call.raw == '查：{"tool": "search_faq"}\n马上'
    assert call.error == "unsupported: this is no form in which `search_faq` can be called"


def test_a_program_that_is_shown_is_a_reply() -> None:
    for end in ("```", ""):
        text = f"可以这样写：\n```python\nimport smtplib\nserver.quit()\nprint('好')\n{end}"
        assert to_action(text).message.tool_calls == ()


@pytest.mark.parametrize("dialect", DIALECTS)
def test_a_reply_is_a_reply_in_every_dialect(dialect: str) -> None:
    for text in ("亲，包邮的", "", "[微笑] {好} <3"):
        message = parse_text(text, dialect).message
        assert (message.content, message.tool_calls) == (text, ())


# --- types -----------------------------------------------------------------------------------

TYPED = spec(
    "f",
    text={"type": "string"},
    count={"type": "integer"},
    price={"type": "number"},
    flag={"type": "boolean"},
    items={"type": "array"},
    extra={"type": "object"},
    maybe={"type": ["string", "null"]},
    either={"anyOf": [{"type": "integer"}, {"type": "null"}]},
    open={"anyOf": [{"type": "integer"}, {}]},
    strange={"type": "dict"},
    bare=True,
)


@pytest.mark.row("R11")
@pytest.mark.parametrize(
    ("key", "text", "value"),
    [
        ("text", "24", "24"),
        ("text", "true", "true"),
        ("text", "{}", "{}"),
        ("text", '"x"', '"x"'),
        ("count", "24", 24),
        ("count", "24.0", 24.0),
        ("price", "1.50", 1.5),
        ("price", "3", 3),
        ("flag", "true", True),
        ("flag", "False", False),
        ("items", '["a"]', ["a"]),
        ("extra", '{"a": 1}', {"a": 1}),
        ("maybe", "null", None),
        ("maybe", "None", None),
        ("maybe", "红裙", "红裙"),
        ("maybe", "24", "24"),
        ("maybe", '"x"', '"x"'),
        ("either", "null", None),
        ("open", "红", "红"),
        ("strange", '{"a": 1}', {"a": 1}),
        ("bare", "1", 1),
        ("unknown", "24", 24),
        ("unknown", "true", True),
        ("unknown", '{"a": 1}', {"a": 1}),
        ("unknown", "null", "null"),
        ("unknown", '"x"', '"x"'),
        ("unknown", "007", "007"),
        ("unknown", "True", "True"),
        ("unknown", "NaN", "NaN"),
        ("count", "三", ValueError),
        ("count", "1.5", ValueError),
        ("count", "true", ValueError),
        ("flag", "yes", ValueError),
        ("items", '{"a": 1}', ValueError),
        ("extra", "{a: 1}", ValueError),
        ("either", "x", ValueError),
    ],
)
def test_values_are_typed_by_the_tools_schema(key: str, text: str, value: object) -> None:
    for form in ("qwen3_coder", "glm"):
        action = parse_text(write(form, ("f", {key: text})), tools=(spec("g"), TYPED))
        if value is ValueError:
            assert codes_of(action) == ["invalid_arguments"]
            assert f"`{key}`: `{text}` is no " in (action.message.tool_calls[0].error or "")
        else:
            [(_, arguments)] = calls_of(action)
            assert repr(arguments) == repr({key: value})


def test_a_positional_argument_needs_a_tool_with_one_parameter() -> None:
    one, two = spec("find", name={"type": "string"}), spec("f", a={}, b={})
    for text in ("[find('x')]", "find('x')", "find(\n'x')"):
        assert calls_of(parse_text(text, tools=(two, one))) == [("find", {"name": "x"})]
    assert calls_of(parse_text("[find(3)]", tools=(one,))) == [("find", {"name": 3})]
    for text in ("[f(1)]", "[find('x', 'y')]", "[find('x', name='y')]"):
        assert codes_of(parse_text(text, tools=(one, two))) == ["invalid_arguments"]


def test_tools_reach_texts_and_the_content_of_messages() -> None:
    text = qwen3_coder("f", {"text": "24"})
    for given_action in (text, {"role": "assistant", "content": text}):
        assert calls_of(to_action(given_action, tools=(TYPED,))) == [("f", {"text": "24"})]


# --- chat templates --------------------------------------------------------------------------


@pytest.mark.row("R11")
@pytest.mark.parametrize(
    ("template", "dialect"),
    [
        ('{{- \'\\n<tool_call>\\n{"name": "\' }}{{ call.name }}', "hermes"),
        (
            "{{- '<tool_call>\\n<function=' + name + '>\\n<parameter=' + key + '>\\n' }}",
            "qwen3_coder",
        ),
        ("{{ '\\n<tool_call>' + tc.name }}<arg_key>{{ k }}</arg_key>", "glm"),
        (
            "{{'<｜tool▁calls▁begin｜><｜tool▁call▁begin｜>' + tool['type'] + '<｜tool▁sep｜>'}}",
            "deepseek",
        ),
        ("<|tool_call_begin|>{{ id }}<|tool_call_argument_begin|>{{ arguments }}", "kimi_k2"),
        ("'functions.' + name + '<|channel|>commentary '", "gpt_oss"),
        ("<|channel|>commentary to=functions.' + name", "gpt_oss"),
        ('respond in the format {"name": function name, "parameters": dictionary', "llama"),
        ('"<|python_tag|>" + tool_call.name + ".call("', "llama"),
        ('"<|tool_call_start|>[" + calls + "]<|tool_call_end|>"', "pythonic"),
        ("[func_name1(params_name1=params_value1)]", "pythonic"),
    ],
)
def test_the_dialect_is_found_from_the_chat_template(template: str, dialect: str) -> None:
    assert dialect_of(template) == dialect


@pytest.mark.parametrize(
    "template", ["", "{{ message.content }}", "<|tool_call>call:", "<tool_call>x<tool_sep>"]
)
def test_a_template_of_no_dialect_is_refused(template: str) -> None:
    with pytest.raises(ValueError, match="in no dialect that is read"):
        dialect_of(template)


# --- through the environment -----------------------------------------------------------------


@pytest.mark.row("R11")
@forms
def test_every_dialect_works_through_the_environment(form: str) -> None:
    env = le.LiveRoomEnv(room="snacks")
    env.reset(seed=0)
    observation, *_ = env.step(write(form, ("search_faq", {"query": "包邮吗"}), RULE))
    assert [message.role for message in observation.messages] == ["tool", "tool"]
    assert not any(
        "unknown_tool" in m.content or "invalid" in m.content for m in observation.messages
    )
    _, _, terminated, _, info = env.step("亲，包邮的<|im_end|>")
    assert terminated
    assert info["stop_reason"] == "replied"


@pytest.mark.row("R11")
@pytest.mark.parametrize(
    "text", ['{"tool": "search_faq", "args": {"query": "x"}}', '我来 search_faq(query="x")']
)
def test_a_call_in_no_known_form_does_not_end_the_episode(text: str) -> None:
    env = le.LiveRoomEnv("snacks", embedder="lexical")
    env.reset(seed=0)
    _, _, terminated, truncated, info = env.step(text)
    assert (terminated, truncated) == (False, False)
    [result] = env.trajectory.turns[0].results
    assert result.error == "unsupported"
    assert "search_faq" in result.content
    assert info["calls"]["attempted"] == 1


@pytest.mark.row("R11")
def test_an_error_call_through_the_environment_is_a_result_and_no_reply() -> None:
    env = le.LiveRoomEnv(room="snacks")
    env.reset(seed=0)
    for _, text, code in TRUTH[::9]:
        observation, _, terminated, _, _ = env.step(text)
        assert not terminated
        assert code in observation.messages[0].content
        env.reset(seed=0)


# --- the public samples ----------------------------------------------------------------------


def json_lines(path: Path) -> list[Any]:
    return [json.loads(line) for line in path.read_text(encoding="utf-8").split("\n") if line]


@pytest.mark.row("R11")
def test_hermes_notebooks_are_read_or_reported(shared_data: Path) -> None:
    rows = json_lines(shared_data / "hermes_function_calling" / "notebook_outputs.jsonl")
    found = [
        m for row in rows for m in re.findall(r"<tool_call>.*?</tool_call>", row["text"], re.S)
    ]
    assert len(found) == 26
    actions = [to_action(text) for text in found]
    assert all(action.message.tool_calls for action in actions)
    good = [action for action in actions if set(codes_of(action)) == {"ok"}]
    assert [calls_of(action) for action in good] == [
        [("get_weather_forecast", {"location": "San Francisco"})],
        [("get_stock_price", {"symbol": "TSLA"})],
    ]
    for row in rows:
        assert to_action(row["text"]).message.tool_calls


def bfcl_tools(folder: Path) -> list[ToolSpec]:
    docs = [doc for path in sorted(folder.glob("*.json")) for doc in json_lines(path)]
    return [ToolSpec(doc["name"], "", freeze(doc["parameters"])) for doc in docs]


def test_bfcl_gold_is_read_as_ast_reads_it(shared_data: Path) -> None:
    folder = shared_data / "bfcl"
    tools = bfcl_tools(folder / "multi_turn_func_doc")
    rows = json_lines(folder / "possible_answer" / "BFCL_v4_multi_turn_base.json")
    gold = [call for row in rows for turn in row["ground_truth"] for call in turn]
    assert len(gold) == 1142
    reported = []
    for text in gold:
        node = ast.parse(text, mode="eval").body
        assert isinstance(node, ast.Call)
        assert isinstance(node.func, ast.Name)
        expected = {str(k.arg): ast.literal_eval(k.value) for k in node.keywords}
        for written in (text, f"[{text}]"):
            action = parse_text(written, tools=tools)
            [call] = action.message.tool_calls
            if call.error is not None:
                reported.append((text, call.error))
                continue
            assert call.name == node.func.id
            values = list(call.arguments.values())
            assert values == [*map(ast.literal_eval, node.args), *expected.values()]
            assert expected.items() <= dict(call.arguments).items()
    assert len(reported) == 4
    assert all(text.startswith("post_tweet('") for text, _ in reported)
    several = "[" + ", ".join(gold[:200]) + "]"
    assert len(to_action(several).message.tool_calls) == 200


def test_what_follows_256_calls_is_one_fault() -> None:
    call = '<tool_call>{"name": "f", "arguments": {}}</tool_call>'
    calls = to_action(call * 300).message.tool_calls
    assert len(calls) == MOST_CALLS == 256
    assert [one.error for one in calls[:-1]] == [None] * 255
    assert str(calls[-1].error).startswith("unsupported: ")


def test_bfcl_and_acebench_answers_are_read_in_every_dialect(shared_data: Path) -> None:
    calls: Calls = []
    for name in ("parallel_multiple", "live_parallel", "live_parallel_multiple"):
        rows = json_lines(shared_data / "bfcl" / "possible_answer" / f"BFCL_v4_{name}.json")
        for row in rows:
            for call in row["ground_truth"]:
                calls += [(f, {k: v[0] for k, v in a.items()}) for f, a in call.items()]
    for path in sorted((shared_data / "acebench_zh" / "possible_answer").glob("data_normal*.json")):
        for row in json_lines(path):
            calls += [(name, given) for name, given in row["ground_truth"].items()]
    assert len(calls) > 700
    for form in WRITERS:
        if form == "pythonic, lines":
            continue
        untyped = name_of(form) in ("qwen3_coder", "glm")
        for name, arguments in calls:
            if untyped and any(reads_otherwise(value) for value in arguments.values()):
                continue
            assert calls_of(to_action(write(form, (name, arguments)))) == [(name, arguments)]


def reads_otherwise(value: object) -> bool:
    """Return whether a value needs its schema, as the text "24" does and `null`."""
    try:
        return value is None or (isinstance(value, str) and json.loads(value) != value)
    except ValueError:
        return False


def test_acebench_milestones_are_read_as_lists_of_calls(shared_data: Path) -> None:
    count = 0
    for path in sorted((shared_data / "acebench_zh" / "possible_answer").glob("data_agent*.json")):
        for row in json_lines(path):
            for text in (t for t in row["mile_stone"] if isinstance(t, str) and t.startswith("[")):
                node = ast.parse(text, mode="eval").body
                assert isinstance(node, ast.List)
                expected = [
                    (
                        ast.unparse(call.func),
                        {str(k.arg): ast.literal_eval(k.value) for k in call.keywords},
                    )
                    for call in node.elts
                    if isinstance(call, ast.Call)
                ]
                assert calls_of(to_action(text)) == expected
                count += 1
    assert count > 50


def test_sharegpt_calls_are_read(shared_data: Path) -> None:
    folder = shared_data / "sharegpt_toolcall"
    count = 0
    for path in sorted(folder.glob("glaive*.json")):
        for row in json.loads(path.read_text(encoding="utf-8")):
            for message in row["conversations"]:
                action = to_action(message["value"])
                if message["from"] == "function_call":
                    value = json.loads(message["value"])
                    value = value if isinstance(value, list) else [value]
                    assert calls_of(action) == [(c["name"], c["arguments"]) for c in value]
                    count += 1
                elif message["from"] == "gpt":
                    assert action.message.tool_calls == ()
    assert count > 400
    for row in json_lines(folder / "reason_tool_use_demo_50.jsonl"):
        for message in row["messages"]:
            for part in message["content"]:
                if part["type"] == "tool_call":
                    value = json.loads(part["value"])
                    assert calls_of(to_action(part["value"])) == [
                        (value["name"], value["arguments"])
                    ]


def test_tau_bench_messages_are_read(shared_data: Path) -> None:
    count = both = 0
    for row in json_lines(shared_data / "tau_bench_trajectories" / "gpt-4o-airline.head.jsonl"):
        for message in row["traj"]:
            if message["role"] != "assistant":
                continue
            action = to_action(message)
            calls = message.get("tool_calls") or []
            count += len(calls)
            both += bool(calls and message["content"])
            functions = [call["function"] for call in calls]
            assert calls_of(action) == [(f["name"], json.loads(f["arguments"])) for f in functions]
            assert action.message.content == (message["content"] or "").strip()
    assert (count, both) == (733, 59)


def test_toolbench_calls_of_the_old_form_are_read(shared_data: Path) -> None:
    count = 0
    for path in sorted((shared_data / "toolbench" / "answer").glob("*/*.json")):
        answer = json.loads(path.read_text(encoding="utf-8"))["answer_generation"]
        for message in (answer.get("train_messages") or [[]])[-1]:
            if message["role"] == "assistant" and message.get("function_call"):
                function = message["function_call"]
                expected = [(function["name"], json.loads(function["arguments"]))]
                assert calls_of(to_action(message)) == expected
                count += 1
    assert count == 50


def test_real_comments_are_replies(shared_data: Path) -> None:
    for row in json_lines(shared_data / "taobao_live_barrage" / "events.jsonl"):
        text = str(row.get("text") or "")
        assert to_action(text).message.tool_calls == ()


# --- any text --------------------------------------------------------------------------------

PIECES = [
    *"<>/|{}[]()\"':=, \n\\f1",
    *(
        "<tool_call>",
        "</tool_call>",
        "<function=f>",
        "</function>",
        "<parameter=a>",
        "</parameter>",
    ),
    *(
        "<arg_key>",
        "</arg_key>",
        "<arg_value>",
        "</arg_value>",
        "f",
        "f(a=",
        "[f(",
        "<think>",
        "</think>",
    ),
    *("<｜tool▁calls▁begin｜>", "<｜tool▁call▁begin｜>", SEP, "<｜tool▁call▁end｜>", "```json\n"),
    *("<|tool_call_begin|>", "<|tool_call_argument_begin|>", "<|tool_call_end|>", "<|python_tag|>"),
    *(
        "<|start|>assistant",
        "<|channel|>",
        "analysis",
        "commentary",
        " to=functions.f",
        "<|message|>",
    ),
    *(
        "<|call|>",
        "<|end|>",
        "<|tool_call_start|>",
        "<|tool_call_end|>",
        '{"name": "f"',
        "{}",
        "\ud800",
    ),
]


@settings(max_examples=500)
@given(st.lists(st.sampled_from(PIECES), max_size=14).map("".join))
def test_any_text_of_marks_is_an_action(text: str) -> None:
    for dialect in (None, *DIALECTS):
        action = parse_text(text, dialect, tools=(TYPED,))
        assert can_be_recorded(action)
        assert set(codes_of(action)) <= {*CODES, "ok"}


@settings(max_examples=300)
@given(
    st.sampled_from([*WRITERS]),
    st.booleans(),
    st.lists(
        st.tuples(
            st.floats(0, 1), st.integers(0, 9), st.text(st.characters(codec=None), max_size=3)
        ),
        max_size=3,
    ),
)
def test_near_misses_never_raise(
    form: str, thinks: bool, edits: list[tuple[float, int, str]]
) -> None:
    text = ("<think>想</think>" if thinks else "") + write(form, FAQ, RULE)
    for where, cut, put in edits:
        at = int(where * len(text))
        text = text[:at] + put + text[at + cut :]
    assert can_be_recorded(to_action(text))
    assert can_be_recorded(parse_text(text, name_of(form), tools=(TYPED,)))


@given(st.binary())
def test_any_bytes_are_an_action_in_every_dialect(data: bytes) -> None:
    for dialect in DIALECTS:
        assert can_be_recorded(parse_text(data.decode("utf-8", "surrogateescape"), dialect))


VALUES = st.recursive(
    st.booleans()
    | st.integers(-(10**15), 10**15)
    | st.floats(allow_nan=False, allow_infinity=False, width=32)
    | st.text(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(), inner, max_size=3),
    max_leaves=6,
)


@settings(max_examples=200)
@given(st.sampled_from([*WRITERS]), VALUES)
def test_every_well_formed_call_is_read_as_it_was_written(form: str, value: Any) -> None:
    if name_of(form) in ("qwen3_coder", "glm") and isinstance(value, str):
        return
    call = ("f", {"value": value})
    assert calls_of(to_action(write(form, call))) == [call]


@pytest.mark.parametrize(
    "piece",
    [
        *("<tool_call>f", "<tool_call><function=f><parameter=a>", "<function=f>{", "<function=f>"),
        *(
            "<tool_call>f<arg_key>a</arg_key><arg_value>",
            "<｜tool▁call▁begin｜>",
            "f(a=1\n",
            "[f(a='",
        ),
        *(
            "<|channel|>commentary to=f<|message|>{",
            "<|tool_call_begin|>f<|tool_call_argument_begin|>",
        ),
        *(
            "to=f",
            "<|start|>assistant ",
            "</parameter>  ",
            "f(a=好\n",
            "\n",
            "。 ",
            '{"name": "f"',
            "[f(\n",
            "search_faq ",
            "search_faq[",
        ),
    ],
)
def test_degenerate_text_is_read_in_time(piece: str) -> None:
    started = time.perf_counter()
    text = piece * (60_000 // len(piece))
    to_action(text)
    parse_text(text, tools=OFFERED)
    to_action(f"{text}<x> </think> ")
    to_action(f"<tool_call><function=f><parameter=a>{text}")
    assert time.perf_counter() - started < 15
