"""The verifiers adapter where verifiers is not installed, or is too old: what a trace is told."""

from __future__ import annotations

import asyncio
import importlib
import subprocess
import sys
from collections.abc import Sequence
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest
from conformance import CASES, ONE_AGENT_CASES, Case, assert_same, expected, tokenizer_of
from verifiers_for_tests import trained_of

import livestream_env as le
from livestream_env.adapters import verifiers
from livestream_env.adapters.setup import Setup
from livestream_env.adapters.traced import TracedSeat, settle, write
from livestream_env.errors import ChatError, MissingDependency
from livestream_env.types import Action

PLUGIN = {"LiveRoomHarness", "LiveRoomSeats", "LiveRoomTaskset"}


def of_version(version: str) -> ModuleType:
    made: Any = ModuleType("verifiers")
    made.__version__ = version
    return made


@pytest.mark.parametrize(
    "installed",
    [None, of_version("0.3.1"), ModuleType("verifiers")],
    ids=["absent", "old", "other"],
)
@pytest.mark.parametrize("make", [lambda: le.LiveRoomTaskset, verifiers.taskset_class])
def test_the_version_that_was_run_is_told(
    make: Any, installed: ModuleType | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    verifiers._classes.cache_clear()
    monkeypatch.setitem(sys.modules, "verifiers", installed)
    with pytest.raises(MissingDependency, match=r"pip install verifiers==0\.4\.0") as caught:
        make()
    assert caught.value.name == "verifiers"


def test_other_names_are_no_attributes() -> None:
    with pytest.raises(AttributeError, match="no attribute `LiveRoomTasks`"):
        _ = verifiers.LiveRoomTasks


def test_the_adapter_is_not_taken_for_verifiers() -> None:
    assert verifiers.__name__ == "livestream_env.adapters.verifiers"
    code = (
        "import sys, livestream_env.adapters.verifiers, livestream_env.adapters.traced\n"
        "assert 'verifiers' not in sys.modules and 'renderers' not in sys.modules\n"
    )
    subprocess.run([sys.executable, "-c", code], check=True)


def test_what_verifiers_looks_for_is_public_where_verifiers_is_loaded(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.delitem(sys.modules, "verifiers.v1", raising=False)
    assert not PLUGIN & set(le.__all__)
    monkeypatch.setitem(sys.modules, "verifiers.v1", ModuleType("verifiers.v1"))
    assert set(le.__all__) >= PLUGIN
    assert set(importlib.import_module("livestream_env").__all__) - PLUGIN == set(dir(le)) - PLUGIN


# --- what a trace is told -----------------------------------------------------------------------


class Trace:
    """Stands for verifiers' trace: a node for what is new in a prompt, one for what is sampled."""

    def __init__(self) -> None:
        self.nodes: list[Any] = []
        self.calls: list[Any] = []
        self.rewards: dict[str, float] = {}
        self.stop_condition: str | None = None
        self.agent = SimpleNamespace(name="host", trainable=True)
        self.state = SimpleNamespace(seat=None, trajectory=None, rows=())
        self.ok = True

    def keep(self, action: Action) -> None:
        """Add the nodes of a turn behind those that its prompt goes on from."""
        prompt, parent = list(action.prompt_ids or ()), None
        if self.nodes:
            before = [token for at in self.path(len(self.nodes) - 1) for token in self._ids(at)]
            if prompt[: len(before)] == before:
                parent, prompt = len(self.nodes) - 1, prompt[len(before) :]
        self._add(parent, prompt, ())
        self._add(len(self.nodes) - 1, action.token_ids or (), action.logprobs or ())
        self.calls.append(SimpleNamespace(node=len(self.nodes) - 1, finish_reason="stop"))

    def _add(self, parent: int | None, ids: Sequence[int], logprobs: Sequence[float]) -> None:
        is_sampled = bool(logprobs)
        node = {
            "parent": parent,
            "token_ids": list(ids),
            "mask": [is_sampled] * len(ids),
            "logprobs": list(logprobs),
            "sampled": is_sampled,
            "sampling_mask": None,
            "loss_weights": None,
        }
        self.nodes.append(SimpleNamespace(**node))

    def _ids(self, at: int) -> list[int]:
        ids: list[int] = self.nodes[at].token_ids
        return ids

    def path(self, at: int | None) -> list[int]:
        return [] if at is None else [*self.path(self.nodes[at].parent), at]

    @property
    def branches(self) -> list[Any]:
        parents = {node.parent for node in self.nodes}
        leaves = [at for at in range(len(self.nodes)) if at not in parents]
        return [self._branch([self.nodes[at] for at in self.path(leaf)]) for leaf in leaves]

    def _branch(self, nodes: list[Any]) -> Any:
        logprobs: list[float] = []
        for node in nodes:
            logprobs += node.logprobs or [0.0] * len(node.token_ids)
        ids = [token for node in nodes for token in node.token_ids]
        return SimpleNamespace(nodes=nodes, token_ids=ids, logprobs=logprobs)

    def record_reward(self, name: str, value: float) -> None:
        self.rewards[name] = value

    def stop(self, condition: str, override: bool = False) -> None:
        self.stop_condition = condition


class Recorded:
    """The policy of a case, whose turns a trace keeps; from turn `stops_at` on it is refused."""

    def __init__(self, case: Case, trace: Trace, stops_at: int = 99) -> None:
        self._policy, self._trace, self._stops_at = case.agent(is_async=True), trace, stops_at

    def start(self, observation: Any, *, seed: Any) -> Recorded:
        self._talk = self._policy.start(observation, seed=seed)
        return self

    async def act(self, messages: Any, tools: Any) -> Action:
        if len(self._trace.calls) == self._stops_at:
            self._trace.stop_condition = "max_turns"
            raise ChatError("rollout stopped: max_turns", status=400)
        action: Action = await self._talk.act(messages, tools)
        self._trace.keep(action)
        return action


@pytest.fixture(autouse=True)
def renderers(monkeypatch: pytest.MonkeyPatch) -> None:
    made: Any = ModuleType("renderers.base")
    made.load_tokenizer = tokenizer_of
    monkeypatch.setitem(sys.modules, "renderers", ModuleType("renderers"))
    monkeypatch.setitem(sys.modules, "renderers.base", made)


def traced(case: Case, *, stops_at: int = 99, **options: Any) -> Trace:
    """Play a case from a seat and write what came of it into the trace."""
    setup, trace, seat = Setup(**{**case.setup_options, **options}), Trace(), TracedSeat("host")
    context: Any = SimpleNamespace(client=None, model="chatml")
    seat.plays(Recorded(case, trace, stops_at), trace, context)
    env = setup.make_env(case.row.room)
    trajectory = asyncio.run(le.arollout(env, seat, **setup.opening(case.row)))
    settle(setup, {"host": seat}, trajectory)
    trace.stop_condition = trace.stop_condition or "agent_completed"
    write(trace)
    return trace


def rows_of(trace: Trace) -> Any:
    return trained_of(SimpleNamespace(ok=True, traces=[trace])).get("host", [])


@pytest.mark.row("R42")
@pytest.mark.parametrize("name", ONE_AGENT_CASES)
def test_a_trace_is_told_the_masks_of_the_core(name: str) -> None:
    case = CASES[name]
    due = expected(case)
    if due["excluded"]["host"]:
        with pytest.raises(RuntimeError, match="is left out: env_error"):
            traced(case)
        return
    trace = traced(case)
    rows = rows_of(trace)
    shown: Any = {
        "token_ids": {"host": [ids for ids, _, _ in rows]},
        "loss_mask": {"host": [mask for _, mask, _ in rows]},
        "logprobs": {"host": [told for _, _, told in rows]},
        "rewards": {"host": trace.rewards["livestream"]},
        "truncated": trace.stop_condition in ("max_turns", "max_total_tokens"),
    }
    assert_same(case, shown)


@pytest.mark.row("R54")
def test_branches_of_which_nothing_is_trained_are_no_rows() -> None:
    trace = traced(CASES["rewritten past"], masker="reply")
    assert len(trace.branches) == 3
    ((ids, mask, _),) = rows_of(trace)  # of weights of 0 alone prime-rl would train everything
    assert ids == trace.branches[2].token_ids
    assert sum(mask) == len(trace.nodes[-1].token_ids)
    assert trace.agent.trainable


def test_a_limit_cuts_before_a_word() -> None:
    case = CASES["several turns"]
    trace = traced(case, stops_at=2)
    assert trace.stop_condition == "max_turns"  # as verifiers has it
    assert [sum(mask) for _, mask, _ in rows_of(trace)] == [
        sum(len(node.token_ids) for node in trace.nodes if node.sampled)
    ]
    assert 0 < trace.rewards["livestream"] < 1
    with pytest.raises(RuntimeError, match="the context was full before a word"):
        traced(case, stops_at=0)


def test_nothing_to_train_is_no_failure() -> None:
    trace = traced(CASES["empty reply"], masker=lambda sequence: sequence.sample(lambda _: False))
    assert (trace.agent.trainable, rows_of(trace)) == (False, [])
    assert trace.rewards["livestream"] == expected(CASES["empty reply"])["rewards"]["host"]
