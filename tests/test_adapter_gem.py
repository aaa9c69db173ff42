"""GEM and ROLL where they are not installed: what is missing is told, and rooms play by text."""

from __future__ import annotations

import math
import sys
from collections import UserList

import numpy as np
import pytest
from conformance import FIND, PRICE, Breaking

from livestream_env.adapters import gem, roll
from livestream_env.adapters.text_room import TextRoom
from livestream_env.errors import InvalidAction, MissingDependency, RoomNotFound


@pytest.fixture
def without_trainers(monkeypatch: pytest.MonkeyPatch) -> None:
    """Neither is there, whether or not it is installed."""
    for name in [*sys.modules, "gem", "roll"]:
        if name.partition(".")[0] in ("gem", "roll"):
            monkeypatch.setitem(sys.modules, name, None)


@pytest.mark.usefixtures("without_trainers")
def test_without_gem_its_version_and_command_are_told() -> None:
    with pytest.raises(MissingDependency, match=r"gem-llm 0\.1\.0.*pip install gem-llm==0\.1\.0"):
        gem.register()
    with pytest.raises(MissingDependency, match=r"gem-llm 0\.1\.0"):
        _ = gem.LiveRoom


@pytest.mark.usefixtures("without_trainers")
def test_without_roll_its_commit_and_command_are_told() -> None:
    with pytest.raises(MissingDependency, match=r"8eb27cc.*github\.com/alibaba/ROLL"):
        _ = roll.TrajManager


@pytest.mark.parametrize("module", [gem, roll])
def test_other_names_are_missing_as_ever(module: object) -> None:
    with pytest.raises(AttributeError, match="has no `Nothing`"):
        _ = module.Nothing  # type: ignore[attr-defined]


def test_rooms_refuse_words_that_they_do_not_know() -> None:
    with pytest.raises(ValueError, match="`results_as` is 'assistant'"):
        gem.GemRoom("snacks", results_as="assistant")
    with pytest.raises(ValueError, match="`observes` is 'all'"):
        roll.RollText("snacks", observes="all")  # type: ignore[arg-type]


def test_what_was_told_of_a_message_that_is_none_is_not_that_of_the_next() -> None:
    room = TextRoom("snacks", comment="c02", embedder="lexical")
    room.reset(seed=1)
    room.sampled(None, (1, 2), None, "length")
    with pytest.raises(InvalidAction):
        room.step({"role": "user", "content": "?"})
    assert room.step(FIND)[2:4] == (False, False)
    (turn,) = room.played().turns
    assert (turn.action.stop, turn.action.token_ids) == (None, None)


def test_a_room_that_rows_name_is_looked_up_at_once() -> None:
    rows = [PRICE.to_json(), {"room": "snakcs", "seed": 1}]
    with pytest.raises(RoomNotFound, match="Did you mean `snacks`"):
        TextRoom(rows=rows, embedder="lexical")


def test_seeds_of_numpy_are_seeds() -> None:
    room = TextRoom("snacks", embedder="lexical")
    assert room.reset(seed=np.int64(3)) == room.reset(seed=3)  # type: ignore[arg-type]
    with pytest.raises(TypeError, match="integer"):
        room.reset(seed=3.0)  # type: ignore[arg-type]


def test_a_sandbox_whose_close_was_interrupted_is_gone_all_the_same() -> None:
    class Stuck(Breaking):
        def close(self) -> None:
            raise KeyboardInterrupt

    at = iter([0, -2])
    room = TextRoom("snacks", comment="c02", sandbox=lambda one: Stuck(one, next(at)))
    room.reset(seed=1)
    assert "env_error" in room.step(FIND)[4]
    with pytest.raises(KeyboardInterrupt):
        room.reset(seed=1)
    room.reset(seed=1)
    assert "env_error" not in room.step(FIND)[4]


def test_an_episode_that_the_trainer_ends_tells_so_and_has_no_reward() -> None:
    room = TextRoom("snacks", comment="c02", embedder="lexical")
    room.reset(seed=1)
    room.step(FIND)
    _, reward, _, truncated, info = room.end("driver")
    assert math.isnan(reward)
    assert (truncated, info["env_error"]) == (True, "the trainer ended the episode")


def test_comments_may_be_a_list_of_a_yaml_reader() -> None:
    class Listed(UserList[str]):
        """As omegaconf's, a sequence that is no list."""

    room = TextRoom("snacks", comment=Listed(["c02", "c04"]), embedder="lexical")
    assert room.reset(seed=1)[1]["comment_ids"] == ["c02", "c04"]
    with pytest.raises(TypeError, match="`comment` is 5"):
        TextRoom("snacks", comment=5, embedder="lexical")
