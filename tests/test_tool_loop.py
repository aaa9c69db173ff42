"""Rooms of which a trainer's loop calls tools one by one, and tells the transcript at the end."""

from __future__ import annotations

import json
from typing import Any

import pytest
from conformance import CASES, FIND, PRICE, REPLIED, Breaking

import livestream_env as le
from livestream_env.adapters.setup import Setup
from livestream_env.adapters.tool_loop import FAILED, ToolLoop, live_setup
from livestream_env.types import Status


def loop_of(**options: Any) -> ToolLoop:
    setup = Setup("snacks", embedder="lexical", **options)
    return ToolLoop(setup, live_setup(setup))


def said(text: str) -> dict[str, Any]:
    return {"role": "assistant", "content": text}


def flaky(at: int) -> Any:
    """Make what makes sandboxes: the first breaks at a call, or at `reset` (-1), others do not."""
    breaks = iter([at])
    return lambda room: Breaking(room, next(breaks, 99))


def test_a_call_tells_what_the_core_tells() -> None:
    loop = loop_of()
    assert loop.begin(PRICE) is not None
    told = json.loads(FIND.splitlines()[1])
    setup = Setup(**CASES["several turns"].setup_options)
    trajectory = le.rollout(
        setup.make_env(), CASES["several turns"].agent(), **setup.opening(PRICE)
    )
    assert loop.call(told["name"], told["arguments"]) == trajectory.turns[0].results[0].content


@pytest.mark.row("R45")
def test_an_episode_that_could_not_be_opened_is_failed_also_where_the_sandbox_is_back() -> None:
    loop = loop_of(sandbox=flaky(-1))
    assert loop.begin(PRICE) is None
    assert loop.call("get_reply_rule", {"intent": "价格咨询"}) == FAILED
    played = loop.played([said(FIND), {"role": "tool", "content": FAILED}, said(REPLIED)])
    assert (played.status, played.reward) == (Status.ENV_ERROR, None)
    assert "503" in played.faults[-1].detail


@pytest.mark.row("R45")
def test_a_call_that_failed_is_a_failed_episode_also_where_the_sandbox_is_back() -> None:
    loop = loop_of(sandbox=flaky(0))
    loop.begin(PRICE)
    assert loop.call("search_product_by_keyword", {"keyword": "1号链接"}) == FAILED
    played = loop.played([said(FIND), {"role": "tool", "content": FAILED}, said(REPLIED)])
    assert (played.status, played.reward) == (Status.ENV_ERROR, None)


def test_the_next_episode_starts_anew() -> None:
    loop = loop_of(sandbox=flaky(-1))
    loop.begin(PRICE)
    assert loop.begin(PRICE) is not None
    assert loop.cause is None
    assert loop.played([said("亲，欢迎")]).reward == 0.0
