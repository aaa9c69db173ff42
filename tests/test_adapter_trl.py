"""What of TRL's adapter needs no TRL: turns in lockstep, tools as methods."""

from __future__ import annotations

import inspect
import sys
import threading
import types
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import pytest

import livestream_env as le
from livestream_env.adapters import trl
from livestream_env.adapters.lockstep import Ask, Ids, in_lockstep
from livestream_env.adapters.methods import as_method
from livestream_env.errors import MissingDependency
from livestream_env.tokens import Sampled
from livestream_env.types import ToolSpec, freeze


def play(number: int, turns: int) -> Callable[[Ask], list[int]]:
    """Ask for a number of turns, each prompt the last and what was sampled."""

    def played(ask: Ask) -> list[int]:
        ids: Ids = (number,)
        for _ in range(turns):
            ids += ask(ids, (0,)).token_ids
        return [*ids]

    return played


class Echo:
    """Samples the length of each prompt, and keeps the batches."""

    def __init__(self) -> None:
        self.batches: list[list[int]] = []
        self.threads: set[int] = set()

    def __call__(self, prompts: Sequence[Ids], stop: Ids) -> list[Sampled]:
        assert stop == (0,)
        self.threads.add(threading.get_ident())
        self.batches.append([ids[0] for ids in prompts])
        return [Sampled((len(ids),)) for ids in prompts]


def test_turns_of_all_that_play_are_one_batch_in_their_order() -> None:
    echo = Echo()
    played = in_lockstep([play(7, 2), play(8, 1), play(9, 3)], echo)
    assert played == [[7, 1, 2], [8, 1], [9, 1, 2, 3]]
    assert echo.batches == [[7, 8, 9], [7, 9], [9]]
    assert echo.threads == {threading.get_ident()}


def test_fewer_workers_take_the_next_as_one_ends() -> None:
    echo = Echo()
    played = in_lockstep([play(7, 2), play(8, 1), play(9, 1), play(5, 0)], echo, max_workers=2)
    assert played == [[7, 1, 2], [8, 1], [9, 1], [5]]
    assert echo.batches == [[7, 8], [7, 9]]


def test_no_episodes_generate_nothing() -> None:
    assert in_lockstep([], Echo()) == []


class Interrupted(list[Sampled]):
    """Completions in whose middle the user interrupts the run."""

    def __iter__(self) -> Iterator[Sampled]:
        yield self[0]
        raise KeyboardInterrupt


def test_an_interrupt_while_a_batch_is_told_ends_every_thread() -> None:
    before = threading.active_count()
    with pytest.raises(KeyboardInterrupt):
        in_lockstep([play(7, 2), play(8, 2)], lambda ids, _: Interrupted([Sampled((1,))] * 2))
    assert threading.active_count() == before


@pytest.mark.parametrize("max_workers", [None, 2])
def test_what_generation_raises_ends_every_thread(max_workers: int | None) -> None:
    before = threading.active_count()

    def generate(prompts: Sequence[Ids], stop: Ids) -> list[Sampled]:
        if len(prompts[0]) > 1:
            raise MemoryError("no room for the cache")
        return [Sampled((1,)) for _ in prompts]

    with pytest.raises(MemoryError, match="no room"):
        in_lockstep([play(at, 4) for at in range(5)], generate, max_workers=max_workers)
    assert threading.active_count() == before


def test_what_an_episode_raises_is_raised_once_the_others_ended() -> None:
    def broken(ask: Ask) -> list[int]:
        ask((1,), (0,))
        raise KeyError("a rubric of the user")

    echo = Echo()
    with pytest.raises(KeyError, match="rubric"):
        in_lockstep([broken, play(2, 3)], echo)
    assert echo.batches == [[1, 2], [2], [2]]


def test_an_engine_that_answers_too_few_is_told_so() -> None:
    with pytest.raises(ValueError, match="1 completions of 2 prompts"):
        in_lockstep([play(1, 1), play(2, 1)], lambda prompts, stop: [Sampled((1,))])


# --- tools as methods -------------------------------------------------------------------------

SPEC = ToolSpec(
    "find",
    "Find a thing.",
    freeze(
        {
            "type": "object",
            "properties": {
                "limit": {"type": "integer", "description": "How many"},
                "what": {"type": "string", "enum": ["a", "b"], "description": "What to find"},
                "tags": {"type": "array", "items": {"type": "string"}, "description": "Tags"},
            },
            "required": ["what", "tags"],
        }
    ),
)


def test_a_tool_becomes_a_method_with_hints_and_docs() -> None:
    method = as_method(SPEC, lambda self, name, given: f"{self} {name} {given}")
    assert str(inspect.signature(method)) == (
        "(self, what: str, tags: list[str], limit: int | None = None) -> str"
    )
    assert method.__doc__ == (
        "Find a thing.\n\nArgs:\n    limit: How many\n"
        '    what: What to find (choices: ["a", "b"])\n    tags: Tags'
    )
    assert method("me", what=None, limit=None, self="x") == "me find {'what': None, 'self': 'x'}"


@pytest.mark.parametrize("name", ["class", "with space", "_hidden"])
def test_a_tool_that_python_cannot_name_is_refused(name: str) -> None:
    with pytest.raises(ValueError, match=name):
        as_method(ToolSpec(name, "", freeze({"type": "object"})), lambda *_: "")


# --- without TRL ------------------------------------------------------------------------------


@pytest.mark.parametrize("module", [None, types.SimpleNamespace(__version__="1.9.0")])
def test_a_missing_or_old_trl_says_which_one_ran(
    module: object, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "trl", module)
    with pytest.raises(MissingDependency, match=r"pip install 'trl==1\.16\.0'"):
        trl.rollout_func([], "snacks", embedder="lexical")


@le.tool
def reset(context: le.ToolContext) -> object:
    """Start anew."""
    return {}


@pytest.mark.parametrize(
    ("options", "named"), [({"tools": [reset]}, "reset"), ({"masker": "reply"}, "rollout_func")]
)
def test_a_class_that_trl_would_take_otherwise_is_refused(
    options: dict[str, Any], named: str
) -> None:
    with pytest.raises(ValueError, match=named):
        trl.environment_class("Room", "snacks", stop_ids=(1,), embedder="lexical", **options)
