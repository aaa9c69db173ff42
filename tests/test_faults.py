"""Failures by plan: survived ones leave no trace in the transcript, others are never a reward."""

from __future__ import annotations

import asyncio
import json
import math
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import replace
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from rooms_for_tests import small_room

import livestream_env as le
from livestream_env.advantages import group_advantages
from livestream_env.errors import SandboxError, SandboxTimeout, SandboxUnavailable, SessionLost
from livestream_env.sandbox import (
    Faults,
    FaultySandbox,
    LocalSandbox,
    RecordingSandbox,
    ReplaySandbox,
    Sandbox,
)
from livestream_env.sandbox.faults import CONTENT, FAILING, TRANSPORT
from livestream_env.types import ToolCall, ToolResult, TurnEvent, freeze

LOOK_UP = le.Action.call("search_product_by_keyword", keyword="腰果")
RULE = le.Action.call("get_reply_rule", intent="物流")


def call(name: str, **arguments: Any) -> ToolCall:
    return ToolCall("call_0_0", name, freeze(arguments))


def local(room: le.Room) -> LocalSandbox:
    return LocalSandbox(room, embedder="lexical")


def faulty(plan: Faults, **options: Any) -> Callable[[le.Room], Sandbox]:
    return lambda room: FaultySandbox(local(room), plan, **options)


def one(plan: Faults, **options: Any) -> FaultySandbox:
    sandbox = FaultySandbox(local(small_room()), plan, **options)
    sandbox.reset(seed=0, comments=["c1"])
    return sandbox


def snacks(make: Any) -> le.LiveRoomEnv:
    return le.LiveRoomEnv("snacks", sandbox=make)


def transcript(trajectory: le.Trajectory) -> Any:
    return trajectory.messages, trajectory.state, trajectory.rewards


# --- the plan --------------------------------------------------------------------------------


def test_a_plan_is_checked() -> None:
    with pytest.raises(ValueError, match=r"`timeout` is 1\.5; it is a probability"):
        Faults(timeout=1.5)
    with pytest.raises(ValueError, match=r"add up to 1\.2"):
        Faults(timeout=0.6, error=0.6)
    with pytest.raises(ValueError, match="`retries` is -1"):
        FaultySandbox(local(small_room()), Faults(), retries=-1)


def test_a_plan_is_decided_by_its_key_alone() -> None:
    plan = Faults.evenly(0.9, seed=3)
    keys = [(seed, n, "search_faq", "5:query1", 0) for seed in range(20) for n in range(20)]
    drawn = [plan.transport(*key) for key in keys]
    assert drawn == [Faults.evenly(0.9, seed=3).transport(*key) for key in keys]
    assert drawn != [Faults.evenly(0.9, seed=4).transport(*key) for key in keys]
    assert set(drawn) == {*TRANSPORT, None}


@pytest.mark.row("R45")
@pytest.mark.parametrize("name", TRANSPORT)
def test_each_fault_comes_as_often_as_injected(name: str) -> None:
    probability, count = 0.07, 5000
    plan = Faults(**{name: probability, "seed": 5})  # type: ignore[arg-type]
    fired = sum(plan.transport(seed, 0, "t", "", 0) == name for seed in range(count))
    assert abs(fired - count * probability) < 3 * math.sqrt(count * probability * (1 - probability))


@pytest.mark.row("R45")
def test_the_share_of_failed_episodes_is_as_injected() -> None:
    """An episode of k calls without retries fails with 1 - (1 - p)^k."""
    p, count = 0.05, 400
    env = le.LiveRoomEnv(
        small_room(),
        comment="c1",
        sandbox=faulty(Faults(seed=1, timeout=p / 2, error=p / 2), retries=0),
        on_env_error="truncate",
        rubric=None,
    )
    actions = (LOOK_UP, le.Action.call("search_faq", query="发货"), RULE)
    failed = 0
    for seed in range(count):
        env.reset(seed=seed)
        for action in actions:
            if env.step(action)[3]:
                break
        failed += env.trajectory.status == "env_error"
    expected = 1 - (1 - p) ** len(actions)
    assert abs(failed - count * expected) < 3 * math.sqrt(count * expected * (1 - expected))


# --- faults of transport ---------------------------------------------------------------------


@pytest.mark.parametrize("name", FAILING)
def test_an_attempt_that_fails_for_good_raises_its_kind(name: str) -> None:
    sandbox = one(Faults(**{name: 1.0}), retries=2)  # type: ignore[arg-type]
    kind = SandboxTimeout if name == "timeout" else SandboxUnavailable
    with pytest.raises(kind, match=r"`search_faq`.*3 attempts"):
        sandbox.call(call("search_faq", query="发货"))
    plan, *fired = sandbox.log()
    assert Faults.of([plan]) == sandbox.faults
    assert [event.kind for event in fired] == [name] * 3
    assert fired[2] == TurnEvent(name, "call 0 `search_faq`, attempt 3", "call_0_0")


class Executed(LocalSandbox):
    """A local sandbox that counts what it runs."""

    runs = 0

    def call(self, call: ToolCall) -> ToolResult:
        self.runs += 1
        return super().call(call)


@pytest.mark.parametrize(
    ("name", "runs"),
    [("drop_after", 1), ("bad_json", 1), ("cut_json", 1), ("timeout", 0), ("drop_before", 0)],
)
def test_what_is_retried_runs_once_at_most(name: str, runs: int) -> None:
    inner = Executed(small_room(), embedder="lexical")
    sandbox = FaultySandbox(inner, Faults(**{name: 1.0}), retries=5)  # type: ignore[arg-type]
    sandbox.reset(seed=0, comments=["c1"])
    with pytest.raises(SandboxError):
        sandbox.call(call("hand_off", reason="a"))
    assert inner.runs == runs


@pytest.mark.parametrize("name", TRANSPORT)
def test_a_survived_fault_acts_once_and_tells_what_an_undisturbed_call_tells(name: str) -> None:
    plain = local(small_room())
    plain.reset(seed=0, comments=["c1"])
    expected = plain.call(call("hand_off", reason="a"))
    found = 0
    for seed in range(40):
        inner = Executed(small_room(), embedder="lexical")
        plan = Faults(seed=seed, slow_s=0.0, **{name: 0.5})  # type: ignore[arg-type]
        sandbox = FaultySandbox(inner, plan, retries=20)
        sandbox.reset(seed=0, comments=["c1"])
        assert sandbox.call(call("hand_off", reason="a")) == expected
        assert inner.runs == 1
        found += len(sandbox.log()) > 1
    assert found > 5


@pytest.mark.row("R38")
@pytest.mark.row("R45")
def test_survived_faults_leave_the_transcripts_of_the_undisturbed_run() -> None:
    plan = Faults.evenly(0.4, seed=2)
    disturbed = snacks(faulty(replace(plan, slow_s=0.0), retries=30))
    plain = snacks(local)
    kinds: Counter[str] = Counter()
    for seed in range(plain.tasks):
        for agent in (le.WorkflowAgent(), le.RandomAgent()):
            first, second = (le.rollout(env, agent, seed=seed) for env in (plain, disturbed))
            assert transcript(first) == transcript(second)
            assert first.faults == ()
            kinds.update(event.kind for event in second.faults)
    assert kinds.keys() == {*TRANSPORT, "reset_fail", "fault_plan"}


def test_async_and_sync_have_the_same_faults() -> None:
    plan = Faults.evenly(0.6, seed=8)

    async def play(seed: int) -> le.Trajectory:
        return await le.arollout(snacks(faulty(plan)), le.WorkflowAgent(), seed=seed)

    for seed in range(12):
        first = le.rollout(snacks(faulty(plan)), le.WorkflowAgent(), seed=seed)
        second = asyncio.run(play(seed))
        assert first.faults == second.faults
        assert transcript(first) == transcript(second)


def test_a_fork_meets_the_faults_of_its_origin() -> None:
    plan = Faults(seed=4, drop_after=0.5)
    whole = one(plan, retries=20)
    asks = [call("hand_off", reason=str(i)) for i in range(6)]
    results = [whole.call(ask) for ask in asks]
    for at_call in range(6):
        branch = whole.fork(at_call)
        assert [branch.call(ask) for ask in asks[at_call:]] == results[at_call:]
        assert branch.log() == whole.log()
    with pytest.raises(ValueError, match="6 calls were made"):
        whole.fork(7)


def test_a_reset_that_fails_by_plan_is_retried_or_raises() -> None:
    env = le.LiveRoomEnv(small_room(), sandbox=faulty(Faults(reset_fail=1.0)), rubric=None)
    with pytest.raises(SandboxUnavailable, match="failed at reset, 4 attempts"):
        env.reset(seed=0)
    trajectory = le.rollout(env, le.WorkflowAgent(), seed=0)
    assert (trajectory.status, trajectory.reward, trajectory.turns) == ("env_error", None, ())
    kinds = [event.kind for event in trajectory.faults]
    assert kinds == ["fault_plan", *["reset_fail"] * 4, "env_error"]
    survived = snacks(faulty(Faults(reset_fail=0.5), retries=30))
    assert all(le.rollout(survived, le.WorkflowAgent(), seed=s).status == "ok" for s in range(9))


# --- a run with faults again -----------------------------------------------------------------


@pytest.mark.row("R38")
def test_a_run_with_faults_replays_byte_for_byte_from_its_trajectory(tmp_path: Path) -> None:
    """Local, replayed, and from the plan that the trajectory holds."""
    file = tmp_path / "x.jsonl"
    each = dict.fromkeys(CONTENT, 0.2)
    plan = replace(Faults.evenly(0.5, seed=6), slow_s=0.0, **each)  # type: ignore[arg-type]

    def recording(room: le.Room) -> Sandbox:
        return FaultySandbox(RecordingSandbox(local(room), file), plan, retries=1)

    live = snacks(recording)
    played = [le.rollout(live, le.WorkflowAgent(), seed=seed) for seed in range(live.tasks)]
    assert {t.status for t in played} == {"ok", "env_error"}
    for seed, first in enumerate(played):
        again = Faults.of(le.Trajectory.model_validate_json(first.model_dump_json()).faults)
        assert again == plan

        def replay(room: le.Room, found: Faults = again) -> Sandbox:
            sandbox = ReplaySandbox(file, content_hash=room.content_hash)
            return FaultySandbox(sandbox, found, retries=1)

        second = le.rollout(snacks(replay), le.WorkflowAgent(), seed=seed)
        assert (transcript(first), first.faults) == (transcript(second), second.faults)
        assert [turn.events for turn in first.turns] == [turn.events for turn in second.turns]


# --- faults of content -----------------------------------------------------------------------


def test_empty_hits_look_as_no_hits_do() -> None:
    plain = local(small_room())
    plain.reset(seed=0, comments=["c1"])
    none = plain.call(call("search_product_by_keyword", keyword="zzzz"))
    result = one(Faults(empty_hits=1.0)).call(call("search_product_by_keyword", keyword="腰果"))
    assert result.content == none.content
    assert (result.data, result.error) == ((), None)
    assert [event.kind for event in result.events] == ["empty_hits"]
    assert not one(Faults(empty_hits=1.0)).call(call("get_reply_rule", intent="物流")).events


def test_old_prices_and_stock_are_told_in_content_and_facts_alike() -> None:
    """29.9 x 1.2 = 35.88, 39.9 x 1.2 = 47.88; 12 pieces are told as 24, none as 3."""
    sandbox = one(Faults(changed_price=1.0, stale_stock=1.0))
    result = sandbox.call(call("search_product_by_keyword", keyword="1号链接"))
    (entry,) = json.loads(result.content)["结果"]
    assert (entry["价格"], entry["券后价"], entry["库存"]) == (47.88, 35.88, 24)
    assert (entry["链接号"], entry["商品名"]) == (1, "原味腰果200克")
    facts = {fact.field: (fact.value, fact.text) for fact in result.data}
    assert facts["coupon_price"] == (35.88, "35.88")
    assert facts["stock"] == (24, "24")
    assert facts["link_no"] == (1, "1")
    assert [event.kind for event in result.events] == ["stale_stock", "changed_price"]
    assert result.events[1].detail == (
        "product:p1 price 39.9 told as 47.88; product:p1 coupon_price 29.9 told as 35.88"
    )
    sold_out = sandbox.call(call("search_product_by_keyword", keyword="3号链接"))
    assert json.loads(sold_out.content)["结果"][0]["库存"] == 3


def test_prices_in_words_and_of_variants_change_where_they_stand() -> None:
    env = le.LiveRoomEnv("apparel", sandbox=faulty(Faults(changed_price=1.0)), rubric=None)
    env.reset(seed=0)
    plain = local(le.load_room("apparel"))
    plain.reset(seed=0, comments=[c.comment_id for c in env.episode.view.comments])
    changed = 0
    for product in le.load_room("apparel").products:
        ask = call("search_product_by_keyword", keyword=f"{product.link_no}号链接")
        told, true = env.sandbox.call(ask), plain.call(ask)
        for fact, was in zip(told.data, true.data, strict=True):
            if fact != was:
                changed += 1
                assert fact.field in ("price", "coupon_price")
                assert fact.value == pytest.approx(was.value * 1.2, abs=0.006)  # type: ignore[operator]
                assert fact.text in told.content
    assert changed > 10


def test_a_users_own_tool_in_fen_changes_in_fen() -> None:
    @le.tool(facts={"券后价": ("fen", "fen")})
    def goods(context: le.ToolContext, link_no: int) -> dict[str, Any]:
        """Look goods up."""
        return {"link_no": link_no, "fen": 4990}

    sandbox = FaultySandbox(local_with(goods), Faults(changed_price=1.0))
    sandbox.reset(seed=0, comments=["c1"])
    result = sandbox.call(call("goods", link_no=1))
    assert json.loads(result.content) == {"link_no": 1, "fen": 5988}
    assert [fact.value for fact in result.data] == [59.88]


def local_with(tool: Any) -> LocalSandbox:
    return LocalSandbox(small_room(), embedder="lexical", tools=[tool])


def test_content_faults_reach_turn_events_and_rewards_and_not_the_policy() -> None:
    env = le.LiveRoomEnv(small_room(), comment="c1", sandbox=faulty(Faults(changed_price=1.0)))
    env.reset(seed=0)
    env.step(LOOK_UP)
    env.step(RULE)
    env.step("1号链接券后35.88元")
    trajectory = env.trajectory
    assert [event.kind for event in trajectory.turns[0].events] == ["changed_price"]
    assert "changed_price" not in repr(trajectory.messages)
    assert "changed_price" in [event.kind for event in trajectory.faults]
    assert trajectory.rewards is not None
    scores = {score.name: score.value for score in trajectory.rewards.scores}
    assert scores["correctness"] == 1.0  # as it was told: the fault is not the policy's


def test_content_faults_of_an_attempt_do_not_depend_on_transport() -> None:
    content = Faults(seed=3, empty_hits=0.5)
    both = replace(content, drop_after=0.5)
    asks = [call("search_faq", query=f"发货{i}") for i in range(30)]
    alone, mixed = one(content), one(both, retries=30)
    assert [alone.call(ask) for ask in asks] == [mixed.call(ask) for ask in asks]


# --- what becomes of failures ----------------------------------------------------------------


class Down:
    """A local sandbox that fails from some call on, in one of the ways infrastructure fails."""

    def __init__(self, room: le.Room, error: Exception, after: int = 1) -> None:
        self.inner = local(room)
        self.specs = self.inner.specs
        self.error = error
        self.after = after

    def reset(self, *, seed: int, comments: Sequence[str]) -> Any:
        return self.inner.reset(seed=seed, comments=comments)

    def call(self, call: ToolCall) -> ToolResult:
        self.after -= 1
        if self.after < 0:
            raise self.error
        return self.inner.call(call)

    def fork(self, at_call: int | None = None) -> Sandbox:
        return self.inner.fork(at_call)

    def log(self) -> Sequence[TurnEvent]:
        return ()

    def close(self) -> None:
        self.inner.close()


@pytest.mark.row("R45")
@pytest.mark.parametrize("failures", [1, 7, 8])
def test_failed_members_of_a_group_leave_its_mean(failures: int) -> None:
    """FAULTS.md W2: out of mean and deviation; a group with one valid member or none is dropped."""
    made = 0

    def make() -> le.LiveRoomEnv:
        nonlocal made
        made += 1
        error = SandboxUnavailable("the server is down")
        fails = made <= failures
        sandbox = (lambda room: Down(room, error)) if fails else local
        return le.LiveRoomEnv(small_room(), comment="c1", sandbox=sandbox, rubric=by_length)

    class Host:
        def start(self, observation: le.Observation, *, seed: Any) -> Host:
            host = Host()
            host.replies = iter([LOOK_UP, RULE, "好" * (1 + seed[1])])  # type: ignore[attr-defined]
            return host

        def act(self, messages: Any, tools: Any) -> Any:
            return next(self.replies)  # type: ignore[attr-defined]

    group = le.rollout_group(make, Host(), size=8)
    rewards = [trajectory.reward for trajectory in group]
    assert rewards[:failures] == [None] * failures
    assert all(trajectory.status == "env_error" for trajectory in group[:failures])
    assert all(t.faults[-1].detail.startswith("SandboxUnavailable") for t in group[:failures])
    advantages = group_advantages(rewards, "verl")
    valid = 8 - failures
    if valid < 2:
        assert np.isnan(advantages).all()
    else:
        assert np.isnan(advantages[:failures]).all()
        assert advantages[failures:].sum() == pytest.approx(0, abs=1e-9)
        assert np.array_equal(
            advantages[failures:],
            group_advantages([float(v) for v in rewards[failures:]], "verl"),  # type: ignore[arg-type]
        )


def by_length(trajectory: le.Trajectory, room: le.Room | None) -> le.Rewards:
    """Score 0 for one character, a legal value, and more for longer replies."""
    length = 0.0 if trajectory.reply is None else len(trajectory.reply) - 1.0
    return le.Rewards((le.Score("length", length),))


@pytest.mark.parametrize(
    ("error", "cause"),
    [
        (SandboxTimeout("late"), "SandboxTimeout: late"),
        (SandboxUnavailable("down"), "SandboxUnavailable: down"),
        (SessionLost("gone"), "SessionLost: gone"),
        (SandboxError("other"), "other"),
        (ConnectionError("reset"), "tool `get_reply_rule` failed: ConnectionError('reset')"),
        (KeyError("bug"), "tool `get_reply_rule` failed: KeyError('bug')"),
    ],
)
@pytest.mark.parametrize("is_async", [False, True])
def test_infrastructure_is_never_a_result_nor_a_reward(
    error: Exception, cause: str, is_async: bool
) -> None:
    env = le.LiveRoomEnv(small_room(), comment="c1", sandbox=lambda room: Down(room, error))
    agent = le.WorkflowAgent()
    if is_async:
        trajectory = asyncio.run(le.arollout(env, agent, seed=0))
    else:
        trajectory = le.rollout(env, agent, seed=0)
    assert trajectory.status == "env_error"
    assert trajectory.reward is None
    assert trajectory.turns[-1].reward is None
    assert trajectory.faults[-1] == TurnEvent("env_error", cause)
    assert len([m for m in trajectory.messages if m.role == "tool"]) == 1
    assert str(error.args[0]) not in repr(trajectory.messages)


def test_the_environment_is_usable_at_the_next_reset() -> None:
    plan = Faults(seed=1, timeout=0.3)
    env = le.LiveRoomEnv(small_room(), comment="c1", sandbox=faulty(plan, retries=0))
    plain = le.LiveRoomEnv(small_room(), comment="c1", sandbox=local)
    statuses = []
    for seed in range(30):
        trajectory = le.rollout(env, le.WorkflowAgent(), seed=seed)
        statuses.append(trajectory.status)
        if trajectory.status == "ok":
            expected = le.rollout(plain, le.WorkflowAgent(), seed=seed)
            assert transcript(trajectory) == transcript(expected)
    assert set(statuses) == {"ok", "env_error"}
    after = [b for a, b in pairwise(statuses) if a == "env_error"]
    assert "ok" in after


def test_threads_meet_the_faults_of_the_serial_run() -> None:
    plan = Faults.evenly(0.5, seed=9)

    def play(workers: int) -> list[Any]:
        group = le.rollout_group(
            lambda: snacks(faulty(replace(plan, slow_s=0.0))),
            le.WorkflowAgent(),
            size=8,
            seed=3,
            max_workers=workers,
        )
        return [(transcript(trajectory), trajectory.faults) for trajectory in group]

    assert play(1) == play(8)
