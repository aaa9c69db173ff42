"""GEM and ROLL where they are not installed: modules load, and what is missing is told."""

from __future__ import annotations

import sys

import pytest

from livestream_env.adapters import gem, roll
from livestream_env.errors import MissingDependency


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
