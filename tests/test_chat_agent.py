"""The agent over the chat API, against a server on loopback that speaks the real wire formats."""

from __future__ import annotations

import asyncio
import gc
import json
import pickle
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from itertools import pairwise
from pathlib import Path
from typing import Any

import gymnasium as gym
import httpx
import pytest
from gateway_for_tests import error
from policy_server_for_tests import (
    EngineServer,
    PolicyServer,
    answer_of,
    call,
    choice,
    said,
    serving,
)
from tokenizers_for_tests import template, tokenizer

import livestream_env as le
from livestream_env.adapters.chat_api import arun_episode, run_episode
from livestream_env.chat_agent import chat_agent_named
from livestream_env.cli import main
from livestream_env.renderers import ChatTemplateRenderer
from livestream_env.tokens import Sampled
from livestream_env.types import Status, StopReason, Trajectory

SEARCH = '<tool_call>\n{"name": "search_faq", "arguments": {"query": "包邮吗"}}\n</tool_call>'
RULE = '<tool_call>\n{"name": "get_reply_rule", "arguments": {"intent": "物流"}}\n</tool_call>'
REPLIED = "亲，全国包邮哦"
TEXTS = (SEARCH, RULE, REPLIED)
CALLS = (
    {"content": None, "tool_calls": [call("search_faq", {"query": "包邮吗"}, "call_a")]},
    {"content": None, "tool_calls": [call("get_reply_rule", {"intent": "物流"}, "call_b")]},
    {"content": REPLIED},
)
Answer = Callable[[dict[str, Any]], httpx.Response]


def turn_of(request: dict[str, Any]) -> int:
    return sum(message["role"] == "assistant" for message in request["messages"])


def native(request: dict[str, Any]) -> httpx.Response:
    """Search, look up the rule, reply: whatever the order in which requests come."""
    turn = turn_of(request)
    return answer_of(choice(dict(CALLS[turn]), "stop" if turn == 2 else "tool_calls"))


def first(*answers: httpx.Response) -> Answer:
    """Give these answers at the first turns, then play as `native` does."""

    def answer(request: dict[str, Any]) -> httpx.Response:
        turn = turn_of(request)
        return answers[turn] if turn < len(answers) else native(request)

    return answer


def room() -> gym.Env[Any, Any]:
    return gym.make("LiveRoom-v0", room="snacks")


@contextmanager
def asked(answer: Answer, **options: Any) -> Iterator[tuple[le.ChatClient, PolicyServer]]:
    """Serve, and yield a client with short waits and the server."""
    with (
        serving(answer) as (url, server),
        le.ChatClient(url, "policy", backoff_s=0.01, **options) as client,
    ):
        yield client, server


def played(
    answer: Answer, seed: int | None = 3, **options: Any
) -> tuple[Trajectory, list[dict[str, Any]]]:
    """Play one episode; returns it and the requests that the server saw."""
    with asked(answer) as (client, server):
        agent = le.ChatAgent(client, **options)
        trajectory = le.rollout(room(), agent, seed=seed)
    return trajectory, server.requests


def cause(trajectory: Trajectory) -> str:
    assert trajectory.status is Status.ENV_ERROR
    assert trajectory.rewards is None
    return trajectory.faults[-1].detail


# --- what is asked ---------------------------------------------------------------------------


def test_native_calls_are_run_and_the_reply_ends_the_episode() -> None:
    trajectory, requests = played(native)
    assert (trajectory.stop_reason, trajectory.reply) == (StopReason.REPLIED, REPLIED)
    names = [c.name for turn in trajectory.turns for c in turn.action.message.tool_calls]
    assert names == ["search_faq", "get_reply_rule"]
    assert [r.error for turn in trajectory.turns for r in turn.results] == [None, None]
    tools = trajectory.tools["host"]
    assert requests[0]["tools"] == [spec.to_openai() for spec in tools]
    prompt = trajectory.prompts["host"]
    assert requests[0]["messages"] == [{"role": m.role, "content": m.content} for m in prompt]
    assert [m["role"] for m in requests[2]["messages"][2:]] == ["assistant", "tool"] * 2


def test_requests_hold_the_sampling_and_what_the_server_takes_beside() -> None:
    options = {"temperature": 0.7, "top_p": 0.9, "max_tokens": 256}
    extra = {"top_k": 20, "chat_template_kwargs": {"enable_thinking": False}, "tools": None}
    _, requests = played(native, **options, extra_body=extra)
    kept = {"top_k": 20, "chat_template_kwargs": {"enable_thinking": False}}
    assert requests[0].items() >= {"model": "policy", **options, **kept}.items()
    assert "tools" not in requests[0]
    assert "logprobs" not in requests[0]
    assert "stream" not in requests[0]


def test_members_of_a_group_ask_with_seeds_of_their_own() -> None:
    with asked(native) as (client, server):
        agent = le.ChatAgent(client)
        le.rollout_group(room, agent, size=4, seed=7)
        le.rollout_group(room, agent, size=4, seed=7)
        le.rollout(room(), le.ChatAgent(client, send_seed=False), seed=7)
        le.rollout(room(), agent)
    seeds = [request.get("seed") for request in server.requests]
    assert seeds[:12] == seeds[12:24]
    assert len(set(seeds[:12])) == 4
    assert all(type(seed) is int and 0 <= seed < 2**31 for seed in seeds[:12])
    assert set(seeds[24:27]) == {None}
    assert set(seeds[27:]) == {None}


def test_secrets_come_from_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("POLICY_KEY", "sk-123")
    monkeypatch.setenv("POLICY_ROUTE", "blue")
    secrets = {"token_env": "POLICY_KEY", "headers_env": {"X-Route": "POLICY_ROUTE"}}
    with asked(native, **secrets) as (client, server):
        agent = pickle.loads(pickle.dumps(le.ChatAgent(client, temperature=0.5)))
        trajectory = le.rollout(room(), agent, seed=3)
        agent.close()
    assert trajectory.reply == REPLIED
    assert server.headers[0]["Authorization"] == "Bearer sk-123"
    assert server.headers[0]["X-Route"] == "blue"
    assert server.requests[0]["temperature"] == 0.5
    assert b"sk-123" not in pickle.dumps(agent)
    assert "sk-123" not in trajectory.model_dump_json()


def test_each_request_extends_the_last_by_the_answer_as_it_came() -> None:
    odd = call("search_faq", '{ "query" :"包邮吗" }')
    thought = {"tool_calls": [odd], "reasoning": "先查一查"}
    _, requests = played(first(said(None, **thought)), append_only=True)
    for before, after in pairwise(requests):
        sent = before["messages"]
        assert after["messages"][: len(sent)] == sent
    answer = requests[1]["messages"][2]
    assert answer == {"role": "assistant", "content": "", **thought}


def test_text_calls_are_sent_back_as_text_where_requests_only_append() -> None:
    trajectory, requests = played(first(*map(said, TEXTS)), append_only=True)
    assert trajectory.reply == REPLIED
    told = [m for m in requests[2]["messages"] if m["role"] == "assistant"]
    assert told == [{"role": "assistant", "content": text} for text in (SEARCH, RULE)]


# --- calls in every form ---------------------------------------------------------------------

XML = "<tool_call>\n<function=search_faq>\n<parameter=query>\n包邮吗\n</parameter>\n</function>\n"
GLM_ARGUMENT = "<arg_key>query</arg_key>\n<arg_value>包邮吗</arg_value>\n"
DIALECTS = {
    "hermes": SEARCH,
    "qwen_xml": f"{XML}</tool_call>",
    "glm": f"<tool_call>search_faq\n{GLM_ARGUMENT}</tool_call>",
    "llama": '{"name": "search_faq", "parameters": {"query": "包邮吗"}}',
    "pythonic": '[search_faq(query="包邮吗")]',
}


@pytest.mark.parametrize("text", DIALECTS.values(), ids=DIALECTS)
@pytest.mark.parametrize("append_only", [False, True])
def test_calls_as_text_give_the_transcript_of_native_ones(text: str, append_only: bool) -> None:
    expected, _ = played(native)
    trajectory, _ = played(first(said(text)), append_only=append_only)

    def shown(played: Trajectory) -> list[Any]:
        return [
            (
                turn.action.message.content,
                [(c.name, c.arguments) for c in turn.action.message.tool_calls],
                [(r.content, r.error) for r in turn.results],
            )
            for turn in played.turns
        ]

    assert shown(trajectory) == shown(expected)


def test_calls_of_another_dialect_than_the_named_one_are_mistakes() -> None:
    trajectory, _ = played(first(said(SEARCH)), dialect="pythonic")
    (result,) = trajectory.turns[0].results
    assert result.error == "unsupported"
    assert trajectory.reply == REPLIED


# --- thinking --------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "answer",
    [
        pytest.param({"content": REPLIED, "reasoning_content": "想一想"}, id="reasoning_content"),
        pytest.param({"content": REPLIED, "reasoning": "想一想"}, id="reasoning"),
        pytest.param({"content": f"<think>想一想</think>{REPLIED}"}, id="text"),
        pytest.param({"content": f"想一想\n</think>\n\n{REPLIED}"}, id="opened_by_the_prompt"),
    ],
)
def test_thinking_is_kept_apart_from_the_reply(answer: dict[str, Any]) -> None:
    trajectory, _ = played(first(*(answer_of(choice(dict(c))) for c in (*CALLS[:2], answer))))
    assert trajectory.reply == REPLIED
    assert trajectory.turns[-1].action.message.reasoning == "想一想"


# --- token ids -------------------------------------------------------------------------------


class Engine:
    """Samples the text of the turn that the prompt is at, with its end token."""

    def __init__(self, texts: tuple[str, ...] = TEXTS) -> None:
        self._texts = texts
        self._tok = tokenizer("qwen")
        self._start = self._tok.convert_tokens_to_ids("<|im_start|>")
        self._assistant = tuple(self._tok("assistant", add_special_tokens=False)["input_ids"])

    def __call__(self, ids: tuple[int, ...], stop: tuple[int, ...]) -> Sampled:
        length = len(self._assistant)
        turns = sum(
            ids[at] == self._start and ids[at + 1 : at + 1 + length] == self._assistant
            for at in range(len(ids))
        )
        text = self._texts[turns - 1] + "<|im_end|>"
        made = tuple(self._tok(text, add_special_tokens=False)["input_ids"])
        return Sampled(made, tuple(-0.25 * (i + 1) for i in range(len(made))))


TEMPLATE = "qwen3_instruct_2507"


def renderer() -> ChatTemplateRenderer:
    return ChatTemplateRenderer(tokenizer("qwen"), chat_template=template(TEMPLATE))


def engine_server(form: str = "vllm", *, reads_calls: bool = False) -> EngineServer:
    chat_template = template(TEMPLATE)
    return EngineServer(Engine(), tokenizer("qwen"), chat_template, form, reads_calls=reads_calls)


def tokens(trajectory: Trajectory) -> list[tuple[Any, ...]]:
    actions = [turn.action for turn in trajectory.turns]
    return [(a.token_ids, a.logprobs, a.prompt_ids, a.stop) for a in actions]


@pytest.mark.row("R90")
@pytest.mark.parametrize("form", ["vllm", "sglang"])
@pytest.mark.parametrize(
    ("reads_calls", "append_only"),
    [
        pytest.param(False, True, id="text"),
        pytest.param(True, False, id="native"),
        pytest.param(True, True, id="native_append_only"),
    ],
)
def test_ids_equal_those_of_the_engine_in_process(
    form: str, reads_calls: bool, append_only: bool
) -> None:
    expected = le.rollout(room(), le.TokenAgent(Engine(), renderer()), seed=3)
    assert expected.reply == REPLIED
    server = engine_server(form, reads_calls=reads_calls)
    trajectory, _ = played(server, token_ids=True, append_only=append_only)
    assert trajectory.reply == REPLIED
    assert tokens(trajectory) == tokens(expected)


@pytest.mark.row("R44", "R90")
def test_the_rendered_sequence_is_the_servers_own() -> None:
    trajectory, _ = played(engine_server(), token_ids=True, append_only=True)
    (sequence,) = renderer().render(trajectory)
    assert sequence.exact
    last = trajectory.turns[-1].action
    assert last.prompt_ids is not None
    assert last.token_ids is not None
    assert sequence.token_ids == last.prompt_ids + last.token_ids


def test_ids_that_older_servers_tell_as_names_of_tokens_are_read() -> None:
    expected, _ = played(engine_server(), token_ids=True, append_only=True)
    server = engine_server("old_vllm")
    trajectory, _ = played(server, token_ids=True, append_only=True)
    for turn, other in zip(trajectory.turns, expected.turns, strict=True):
        assert turn.action.token_ids == other.action.token_ids
        assert turn.action.logprobs == other.action.logprobs
        assert turn.action.prompt_ids is None


def test_ids_are_neither_asked_for_nor_needed_by_default() -> None:
    trajectory, requests = played(engine_server("plain"))
    assert trajectory.reply == REPLIED
    assert tokens(trajectory)[0] == (None, None, None, "stop")
    assert not {"logprobs", "return_token_ids", "return_meta_info"} & requests[0].keys()


def test_a_server_without_ids_fails_where_ids_were_asked_for() -> None:
    server = engine_server("plain")
    trajectory, _ = played(server, token_ids=True, append_only=True)
    assert "returned no token ids" in cause(trajectory)


@pytest.mark.parametrize(
    "changes",
    [
        pytest.param({"token_ids": [1, "2"]}, id="text"),
        pytest.param({"token_ids": [1, True]}, id="bool"),
        pytest.param({"token_ids": [1, -2]}, id="negative"),
        pytest.param({"token_ids": "12"}, id="no_list"),
        pytest.param({"meta_info": {"output_token_logprobs": [[-0.1]]}}, id="short_rows"),
        pytest.param({"meta_info": "none"}, id="no_object"),
        pytest.param({"logprobs": {"content": [{"token": "token_id:x"}]}}, id="no_number"),
        pytest.param({"logprobs": {"content": None}}, id="no_content"),
        pytest.param({"logprobs": [1]}, id="no_logprobs"),
    ],
)
def test_ids_that_are_none_are_no_ids(changes: dict[str, Any]) -> None:
    answer = answer_of({**choice({"content": "好"}), **changes}, prompt_token_ids=[1.5])
    trajectory, _ = played(lambda _: answer)
    assert tokens(trajectory)[0][:3] == (None, None, None)
    assert trajectory.status is Status.OK


def test_logprobs_that_do_not_belong_to_the_ids_are_left_out() -> None:
    entries = [{"token": "a", "logprob": -0.1}]
    made = choice({"content": "好"}, token_ids=[5, 6])
    answer = answer_of({**made, "logprobs": {"content": entries}}, prompt_token_ids=[1, 2])
    trajectory, _ = played(lambda _: answer)
    assert tokens(trajectory) == [((5, 6), None, (1, 2), "stop")]


# --- how answers end -------------------------------------------------------------------------


@pytest.mark.parametrize("reason", ["length", "max_tokens"])
def test_an_answer_cut_by_the_limit_is_no_reply(reason: str) -> None:
    trajectory, _ = played(
        first(*(answer_of(choice(dict(c))) for c in CALLS[:2]), said("亲", reason))
    )
    assert trajectory.status is Status.POLICY_TRUNCATED
    assert trajectory.stop_reason is StopReason.TOKEN_LIMIT
    assert trajectory.turns[-1].action.stop == "length"
    assert trajectory.reply is None


def test_a_conversation_that_fills_the_context_is_cut() -> None:
    told = "This model's maximum context length is 4096 tokens. However, you requested 4500"
    answers = answer_of(choice(dict(CALLS[0]))), error(400, "BadRequestError", told)
    trajectory, requests = played(first(*answers), token_ids=False)
    assert trajectory.stop_reason is StopReason.TOKEN_LIMIT
    assert trajectory.turns[-1].action.token_ids == ()
    assert "context_full" in [event.kind for event in trajectory.turns[-1].events]
    assert len(requests) == 2


@pytest.mark.parametrize("reason", ["abort", "error", "insufficient_system_resource"])
def test_an_answer_that_the_server_stopped_is_no_reply_of_the_policy(reason: str) -> None:
    trajectory, _ = played(lambda _: said("亲，全国", reason))
    assert reason in cause(trajectory)
    assert trajectory.turns == ()


@pytest.mark.parametrize(
    "answer",
    [
        pytest.param(said("不", "content_filter"), id="finish_reason"),
        pytest.param(said(None, refusal="我不能回答"), id="refusal"),
        pytest.param(error(400, "data_inspection_failed", "Input data may be bad"), id="error"),
    ],
)
def test_a_refusal_says_that_it_is_one(answer: httpx.Response) -> None:
    trajectory, requests = played(lambda _: answer)
    assert cause(trajectory).startswith("ChatRefused: ")
    assert len(requests) == 1


def test_an_endpoint_that_fails_marks_the_trajectory_after_its_retries() -> None:
    with asked(lambda _: error(503, "overloaded", "busy"), retries=2) as (client, server):
        trajectory = le.rollout(room(), le.ChatAgent(client), seed=3)
    assert "503" in cause(trajectory)
    assert cause(trajectory).startswith("ChatError: ")
    assert trajectory.stop_reason is StopReason.ENV_ERROR
    assert len(server.requests) == 3


def test_an_endpoint_that_fails_in_mid_episode_keeps_the_turns_before() -> None:
    trajectory, _ = played(first(answer_of(choice(dict(CALLS[0]))), error(401, "auth", "no key")))
    assert "401" in cause(trajectory)
    assert len(trajectory.turns) == 1


def test_an_endpoint_that_recovers_is_asked_again() -> None:
    answers = [error(503, "busy"), error(429, "rate", retry_after="0.05")]

    def answer(request: dict[str, Any]) -> httpx.Response:
        return answers.pop() if answers else native(request)

    trajectory, requests = played(answer)
    assert trajectory.reply == REPLIED
    assert len(requests) == 5


# --- malformed answers -----------------------------------------------------------------------

MESSAGE = {"role": "assistant", "content": "好"}
SSE = 'data: {"choices": [{"index": 0, "delta": {"content": "好"}}]}\n\ndata: [DONE]\n\n'
BROKEN = {
    "no_choices": answer_of(),
    "null_choices": httpx.Response(200, json={"choices": None}),
    "choices_object": httpx.Response(200, json={"choices": {"0": {"message": MESSAGE}}}),
    "null_choice": answer_of(None),
    "null_message": answer_of({"message": None, "finish_reason": "stop"}),
    "delta": answer_of({"delta": MESSAGE, "finish_reason": "stop"}),
    "streamed": httpx.Response(200, text=SSE, headers={"content-type": "text/event-stream"}),
    "html": httpx.Response(200, html="<html>Bad gateway</html>"),
    "cut_json": httpx.Response(200, text='{"choices": [{"message": {"role": "assi'),
    "empty": httpx.Response(200, text=""),
    "array": httpx.Response(200, json=[MESSAGE]),
    "unknown_role": answer_of(choice({"role": "tool", "content": "好"})),
    "number": answer_of(choice({"content": 5})),
    "calls_text": answer_of(choice({"tool_calls": "search_faq"})),
    "calls_of_text": answer_of(choice({"tool_calls": ["search_faq"]})),
    "parts_of_numbers": answer_of(choice({"content": [5]})),
}


@pytest.mark.parametrize("answer", BROKEN.values(), ids=BROKEN)
def test_what_is_no_answer_is_a_failure_of_the_endpoint(answer: httpx.Response) -> None:
    trajectory, _ = played(lambda _: answer)
    assert cause(trajectory).startswith("ChatError: http://127.0.0.1")
    assert trajectory.turns == ()


def _legacy(name: str, arguments: str) -> httpx.Response:
    return said(None, function_call={"name": name, "arguments": arguments})


MISTAKES = {
    "no_json": (said(None, tool_calls=[call("search_faq", '{"query": "包邮')]), "invalid_json"),
    "array": (said(None, tool_calls=[call("search_faq", "[1]")]), "invalid_arguments"),
    "text": (said(None, tool_calls=[call("search_faq", '"包邮"')]), "invalid_arguments"),
    "null": (said(None, tool_calls=[call("search_faq", "null")]), "invalid_arguments"),
    "no_name": (said(None, tool_calls=[call("", "{}")]), "missing_name"),
    "odd_name": (said(None, tool_calls=[call("搜索 faq", "{}")]), "unknown_tool"),
    "no_function": (said(None, tool_calls=[{"id": "a", "type": "function"}]), "missing_name"),
    "text_function": (said(None, tool_calls=[{"id": "a", "function": "f"}]), "invalid_json"),
    "legacy": (_legacy("search_faq", "{"), "invalid_json"),
    "deep": (said(None, tool_calls=[call("search_faq", "[" * 5000)]), "invalid_json"),
}


@pytest.mark.parametrize(("answer", "code"), MISTAKES.values(), ids=MISTAKES)
@pytest.mark.parametrize("append_only", [False, True])
def test_a_call_that_cannot_run_is_the_policys_mistake_and_the_server_takes_it_back(
    answer: httpx.Response, code: str, append_only: bool
) -> None:
    trajectory, requests = played(first(answer), append_only=append_only)
    (result,) = trajectory.turns[0].results
    assert (result.error, trajectory.reply) == (code, REPLIED)
    (sent,) = requests[1]["messages"][2]["tool_calls"]
    assert isinstance(json.loads(sent["function"]["arguments"]), dict)
    assert requests[1]["messages"][3]["tool_call_id"] == sent["id"]


def test_what_could_not_be_read_is_told_within_an_object() -> None:
    answer = said(None, tool_calls=[call("search_faq", '{"query": "包邮')])
    _, requests = played(first(answer))
    (sent,) = requests[1]["messages"][2]["tool_calls"]
    assert json.loads(sent["function"]["arguments"]) == {"unreadable": '{"query": "包邮'}


@pytest.mark.parametrize("append_only", [False, True])
@pytest.mark.parametrize(
    "made",
    [
        pytest.param([{**CALLS[0]["tool_calls"][0], "id": None}], id="null_id"),  # type: ignore[index]
        pytest.param(
            [{"function": {"name": "search_faq", "arguments": {"query": "包邮吗"}}}], id="object"
        ),
        pytest.param([call("search_faq", {"query": "包邮吗"})] * 2, id="one_id_twice"),
    ],
)
def test_calls_without_ids_or_with_objects_run(made: list[Any], append_only: bool) -> None:
    trajectory, requests = played(first(said(None, tool_calls=made)), append_only=append_only)
    assert [result.error for result in trajectory.turns[0].results] == [None] * len(made)
    assert trajectory.reply == REPLIED
    ids = [c["id"] for c in requests[1]["messages"][2]["tool_calls"]]
    assert len(set(ids)) == len(made)
    told = [m["tool_call_id"] for m in requests[1]["messages"] if m["role"] == "tool"]
    assert told == ids


@pytest.mark.parametrize(
    ("answer", "text"),
    [
        pytest.param(
            answer_of(choice({"content": "一"}), choice({"content": "二"})), "一", id="two"
        ),
        pytest.param(said(None), "", id="null_content"),
        pytest.param(answer_of({"message": {"content": "好"}}), "好", id="bare"),
        pytest.param(said("好", tool_calls=None), "好", id="null_calls"),
        pytest.param(said("好", role=None), "好", id="null_role"),
        pytest.param(said([{"type": "text", "text": "好"}]), "好", id="parts"),  # type: ignore[arg-type]
        pytest.param(said("好", None), "好", id="no_reason"),  # type: ignore[arg-type]
        pytest.param(said("好\ud83d"), "好\ufffd", id="surrogate"),
    ],
)
def test_odd_but_readable_answers_are_read(answer: httpx.Response, text: str) -> None:
    trajectory, _ = played(lambda _: answer)
    assert trajectory.stop_reason is StopReason.REPLIED_WITHOUT_RULE
    assert trajectory.reply == text


# --- at once ---------------------------------------------------------------------------------


def test_64_threads_share_one_agent() -> None:
    serial, _ = played(native)
    with asked(native) as (client, server), ThreadPoolExecutor(64) as pool:
        agent = le.ChatAgent(client)
        done = list(pool.map(lambda _: le.rollout(room(), agent, seed=3), range(64)))
    assert {t.messages for t in done} == {serial.messages}
    assert len(server.requests) == 64 * 3


def test_many_episodes_in_one_event_loop_play_as_one() -> None:
    serial, _ = played(native, append_only=True)

    async def group(agent: le.AsyncChatAgent) -> list[Trajectory]:
        return await asyncio.gather(*(le.arollout(room(), agent, seed=3) for _ in range(50)))

    with asked(native) as (client, server):
        done = asyncio.run(group(le.AsyncChatAgent(client, append_only=True)))
    assert {t.messages for t in done} == {serial.messages}
    assert len(server.requests) == 50 * 3


def test_an_endpoint_that_fails_marks_the_async_trajectory() -> None:
    with asked(first(answer_of(choice(dict(CALLS[0]))), error(400, "bad"))) as (client, _):
        trajectory = asyncio.run(le.arollout(room(), le.AsyncChatAgent(client), seed=3))
    assert "400" in cause(trajectory)
    assert len(trajectory.turns) == 1


# --- made and named --------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("options", "told"),
    [
        pytest.param({"model": None}, "needs the name of its `model`", id="no_model"),
        pytest.param({"dialect": "hermees"}, "Did you mean `hermes`", id="dialect"),
        pytest.param({"extra_body": {"stream": True}}, "`stream`, which the agent", id="stream"),
        pytest.param({"extra_body": {"n": 4}}, "takes one answer", id="n"),
        pytest.param({"extra_body": {"stop": {1}}}, "is no JSON", id="no_json"),
        pytest.param({"base_url": "not a url"}, "is no URL", id="url"),
    ],
)
def test_what_cannot_be_sent_is_refused_when_the_agent_is_made(
    options: dict[str, Any], told: str
) -> None:
    with pytest.raises(ValueError, match=told):
        le.ChatAgent(**{"base_url": "http://127.0.0.1:1/v1", "model": "m", **options})


def test_the_agent_of_an_episode_is_made_by_start() -> None:
    agent = le.ChatAgent("http://127.0.0.1:1/v1", "m")
    assert repr(agent) == "ChatAgent('http://127.0.0.1:1/v1', 'm')"
    with pytest.raises(RuntimeError, match="start"):
        agent.act([], [])


def test_an_agent_is_made_of_its_name(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("KEY", "sk-1")
    with serving(native) as (url, server):
        name = f"chat:{url}#org/model-7b?token_env=KEY&temperature=0.5&max_tokens=64"
        agent = chat_agent_named(name)
        assert le.rollout(room(), agent, seed=3).reply == REPLIED
        agent.close()
        twin = chat_agent_named(name, is_async=True)
        assert asyncio.run(le.arollout(room(), twin, seed=3)).reply == REPLIED
        twin.close()
    expected = {"model": "org/model-7b", "temperature": 0.5, "max_tokens": 64}
    assert all(request.items() >= expected.items() for request in server.requests)
    assert {headers["Authorization"] for headers in server.headers} == {"Bearer sk-1"}


@pytest.mark.parametrize(
    ("name", "told"),
    [
        ("chat:http://127.0.0.1:1/v1", "write chat:URL#MODEL"),
        ("http://127.0.0.1:1/v1#m", "write chat:URL#MODEL"),
        ("chat:nothing#m", "is no URL"),
        ("chat:http://127.0.0.1:1/v1#m?temprature=1", "Did you mean `temperature`"),
        ("chat:http://127.0.0.1:1/v1#m?max_tokens=many", "it is a number"),
    ],
)
def test_a_name_of_no_agent_is_refused(name: str, told: str) -> None:
    with pytest.raises(ValueError, match=told):
        chat_agent_named(name)


def test_an_agent_that_is_forgotten_closes_its_connections() -> None:
    left = threading.Event()
    with serving(native, on_close=left.set) as (url, _):
        agent = le.ChatAgent(url, "policy")
        assert le.rollout(room(), agent, seed=3).reply == REPLIED
        assert not left.is_set()
        del agent
        gc.collect()
        assert left.wait(20)


def test_one_episode_over_the_chat_api() -> None:
    with serving(native) as (url, server):
        trajectory = run_episode(url, "policy", room(), seed=3, extra_body={"top_k": 5})
        other = asyncio.run(arun_episode(url, "policy", room(), seed=3))
    assert trajectory.reply == REPLIED
    assert other.messages == trajectory.messages
    assert server.requests[0]["top_k"] == 5
    for before, after in pairwise(server.requests[:3]):
        assert after["messages"][: len(before["messages"])] == before["messages"]


def test_the_command_line_plays_a_policy_behind_the_chat_api(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out = tmp_path / "episodes.jsonl"
    asked = ["rollout", "--room", "snacks", "--episodes", "2", "--seed", "3", "--out", str(out)]
    with serving(native) as (url, _):
        assert main([*asked, "--agent", f"chat:{url}#policy"]) == 0
    played = [json.loads(line) for line in out.read_text(encoding="utf-8").split("\n") if line]
    assert [episode["stop_reason"] for episode in played] == ["replied"] * 2
    assert main([*asked, "--agent", "chat:nothing"]) == 2
    assert "write chat:URL#MODEL" in capsys.readouterr().err
