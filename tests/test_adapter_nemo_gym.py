"""The NeMo Gym adapter without NeMo Gym: messages as items and back, and what is left of ids."""

from __future__ import annotations

import sys
from dataclasses import replace

import pytest
from conformance import CASES, REPLIED

import livestream_env as le
from livestream_env.adapters import nemo_gym
from livestream_env.adapters.nemo_gym import _action, _items, _output
from livestream_env.adapters.setup import Setup
from livestream_env.errors import MissingDependency
from livestream_env.types import Message, ToolCall, freeze

CALL = ToolCall("call_a", "get_reply_rule", freeze({"intent": "价格咨询"}))


@pytest.mark.parametrize("name", ["LiveRoomAgent", "LiveRoomAgentConfig"])
def test_without_nemo_gym_the_version_that_was_run_is_told(
    name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    nemo_gym._classes.cache_clear()
    for module in ("nemo_gym", "nemo_gym.base_responses_api_agent"):
        monkeypatch.setitem(sys.modules, module, None)
    with pytest.raises(MissingDependency, match=r"nemo-gym 0\.7\.0.*pip install nemo-gym==0\.7"):
        getattr(nemo_gym, name)


def test_other_names_are_no_attributes() -> None:
    with pytest.raises(AttributeError, match="no attribute `RoomAgent`"):
        _ = nemo_gym.RoomAgent


def test_results_of_calls_that_no_item_made_are_the_users_text() -> None:
    results = [Message("tool", "{}", tool_call_id=name) for name in ("call_a", "call_b", "call_c")]
    items = _items([*results, Message("user", "还有吗")], {"call_a"})
    assert [item.get("call_id") for item in items] == ["call_a", None, None]
    assert items[0] == {"type": "function_call_output", "call_id": "call_a", "output": "{}"}
    assert items[1]["role"] == "user"
    assert items[1]["content"].count("<tool_response>") == 2
    assert items[2]["content"] == "还有吗"


def test_anothers_message_is_shown_with_its_calls() -> None:
    said = Message("assistant", "", (CALL,))
    items = _items([said, Message("tool", "{}", tool_call_id="call_a")], set())
    assert [item["type"] for item in items] == ["function_call", "function_call_output"]
    words = _items([replace(said, content="我先查查")], set())
    assert [item["type"] for item in words] == ["message", "function_call"]


def test_an_answer_is_read_with_its_ids_and_its_end() -> None:
    ids = {"prompt_token_ids": [1, 2], "generation_token_ids": [3], "generation_log_probs": [-1.0]}
    told = {
        "output": [
            {"type": "reasoning", "summary": [{"type": "summary_text", "text": "先查"}]},
            {"type": "message", "content": [{"type": "output_text", "text": "我查"}]},
            {
                "type": "function_call",
                "call_id": "call_a",
                "name": "get_reply_rule",
                "arguments": '{"intent": "价格咨询"}',
                **ids,
            },
        ],
        "incomplete_details": {"reason": "max_output_tokens"},
    }
    action = _action(told, turn=0, tools=())
    assert (action.message.content, action.message.tool_calls) == ("我查", (CALL,))
    assert action.message.reasoning == "先查"
    assert (action.prompt_ids, action.token_ids, action.logprobs) == ((1, 2), (3,), (-1.0,))
    assert action.stop == "length"
    nothing = _action({"output": []}, turn=0, tools=())
    assert (nothing.message.content, nothing.token_ids, nothing.stop) == ("", None, "stop")


@pytest.mark.row("R37")
def test_only_trained_turns_keep_their_ids() -> None:
    case = CASES["several turns"]
    setup = Setup(**case.setup_options)
    played = le.rollout(setup.make_env(), case.agent(), **setup.opening(case.row))
    ids = {"prompt_token_ids": [], "generation_token_ids": [1], "generation_log_probs": [-1.0]}
    answers = [
        [{"type": "function_call", "call_id": played.turns[0].action.message.tool_calls[0].id}],
        [{"type": "function_call", "call_id": played.turns[1].action.message.tool_calls[0].id}],
        [{"type": "message", "role": "assistant", "content": REPLIED}],
    ]
    told = [[item | ids for item in answer] for answer in answers]
    made = list(_output(played, told, {1}))
    assert [item["type"] for item in made] == ["function_call", "function_call_output"] * 2 + [
        "message"
    ]
    assert [at for at, item in enumerate(made) if "generation_token_ids" in item] == [2]
    assert "generation_token_ids" in told[0][0]
