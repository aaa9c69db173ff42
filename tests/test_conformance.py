"""The conformance episodes themselves, and the package's own drivers and chat API over them."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from conformance import (
    CASES,
    ONE_AGENT_CASES,
    Case,
    Shown,
    as_text,
    assert_same,
    expected,
    said_in,
    shown_by,
    tokenizer_of,
)
from policy_server_for_tests import EngineServer, serving

import livestream_env as le
from livestream_env.adapters.chat_api import run_episode
from livestream_env.adapters.setup import Setup
from livestream_env.types import Trajectory

every_case = pytest.mark.parametrize("name", CASES)


def shown(case: Case, setup: Setup, trajectory: Trajectory) -> Shown:
    return shown_by(case, trajectory, setup.rows(trajectory, case.renderers))


@pytest.mark.parametrize(
    ("name", "reward", "truncated", "excluded"),
    [
        ("several turns", 1.0, False, None),  # the reply of the scripted expert
        ("burst", 0.975, False, None),  # two products' worth of characters: 0.1 * 0.25 off
        ("turn limit", None, True, None),
        ("cut reply", None, True, None),
        ("failed call", None, True, "env_error"),
        ("failed reset", None, True, "env_error"),
        ("failed tool of a user", None, True, "env_error"),
    ],
)
def test_the_cases_are_what_their_names_say(
    name: str, reward: float | None, truncated: bool, excluded: str | None
) -> None:
    due = expected(CASES[name])
    assert (due["truncated"], due["excluded"]) == (truncated, {"host": excluded})
    if reward is not None:
        assert due["rewards"] == {"host": pytest.approx(reward)}
    if excluded is not None:
        assert due["rewards"] == {"host": None}


@every_case
def test_an_episode_awaited_is_the_same(name: str) -> None:
    case, setup = CASES[name], Setup(**CASES[name].setup_options)
    env = setup.make_env(case.row.room)
    playing = le.arollout(env, case.agent(is_async=True), **setup.opening(case.row))
    assert_same(case, shown(case, setup, asyncio.run(playing)))


@pytest.mark.parametrize("name", [name for name in CASES if CASES[name].has_two_agents])
def test_two_agents_through_pettingzoo_are_the_same(name: str) -> None:
    case, setup = CASES[name], Setup(**CASES[name].setup_options)
    pytest.importorskip("pettingzoo", reason="needs the `multi-agent` extra")
    from livestream_env.aec import LiveRoomAEC

    env = LiveRoomAEC(setup.make_env(case.row.room))
    env.reset(**setup.opening(case.row))
    for agent in env.agent_iter():
        _, reward, terminated, truncated, _ = env.last()
        done = terminated or truncated
        env.step(None if done else case.line(len(env.env.episode.turns)).text)
        if terminated:
            assert reward == expected(case)["rewards"][agent]
    trajectory = env.env.episode.trajectory
    got: Any = shown(case, setup, trajectory)
    assert_same(case, {key: got[key] for key in ("messages", "rewards", "truncated", "excluded")})


@pytest.mark.row("R37", "R42")
@pytest.mark.parametrize("form", ["vllm", "sglang"])
@pytest.mark.parametrize("name", ONE_AGENT_CASES)
def test_an_episode_over_the_chat_api_is_the_same(name: str, form: str) -> None:
    case, setup = CASES[name], Setup(**CASES[name].setup_options)
    made = tokenizer_of("chatml")
    answer = EngineServer(case.engine(), made, made.chat_template, form)
    with serving(answer) as (url, _):
        trajectory = run_episode(
            url, "policy", setup.make_env(case.row.room), token_ids=True, **setup.opening(case.row)
        )
    got: Any = shown(case, setup, trajectory)
    if name == "rewritten past":  # what was said goes back as it came, so nothing is rewritten
        assert [len(got[key]["host"]) for key in ("token_ids", "loss_mask")] == [1, 1]
        for key in ("token_ids", "loss_mask", "logprobs"):
            del got[key]
    assert_same(case, got)


# --- what a wrong adapter is told -------------------------------------------------------------


@pytest.mark.parametrize(
    "wrong",
    [
        {"rewards": {"host": 0.0}},
        {"truncated": True},
        {"excluded": {"host": "env_error"}},
        {"trained_ids": {"host": [1, 2]}},
        {"messages": []},
        {"said": ["亲"]},
    ],
    ids=lambda wrong: next(iter(wrong)),
)
def test_an_adapter_that_shows_otherwise_fails(wrong: Shown) -> None:
    case = CASES["several turns"]
    with pytest.raises(AssertionError, match="other"):
        assert_same(case, wrong)


def test_a_masked_token_too_many_fails() -> None:
    case = CASES["several turns"]
    due = expected(case)["loss_mask"]["host"][0]
    assert_same(case, {"loss_mask": {"host": [due]}})
    with pytest.raises(AssertionError, match="loss_mask"):
        assert_same(case, {"loss_mask": {"host": [[*due[:-1], 1 - due[-1]]]}})


def test_nothing_and_unknown_keys_are_refused() -> None:
    case = CASES["several turns"]
    for wrong in ({}, {"masks": {}}):
        with pytest.raises(AssertionError, match=r"nothing is shown|unknown keys"):
            assert_same(case, wrong)  # type: ignore[arg-type]


def test_transcripts_of_plain_text_hold_what_was_said_and_no_tool_messages() -> None:
    case = CASES["several turns"]
    texts = as_text(case)
    assert [message.role for message in texts] == [
        *("system", "user"),
        *("assistant", "user") * 2,
        "assistant",
    ]
    assert said_in(texts) == expected(case)["said"]
    assert "<tools>" in texts[0].content
