"""The verl adapter where verl is not installed, or is another version."""

from __future__ import annotations

import importlib
import sys
from types import ModuleType

import pytest

from livestream_env.errors import MissingDependency

ADAPTER = "livestream_env.adapters.verl"


@pytest.mark.parametrize("installed", [None, ModuleType("verl")], ids=["absent", "another version"])
def test_the_version_that_was_run_is_told(
    installed: ModuleType | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    adapter = importlib.import_module(ADAPTER)
    adapter._agent_loop.cache_clear()
    monkeypatch.setitem(sys.modules, "verl", installed)
    with pytest.raises(MissingDependency, match=r"pip install --no-deps 'verl==0\.9\.1'") as caught:
        _ = adapter.LiveRoomAgentLoop
    assert isinstance(caught.value, ImportError)
    assert caught.value.name == "verl"


def test_other_names_are_no_attributes() -> None:
    adapter = importlib.import_module(ADAPTER)
    with pytest.raises(AttributeError, match="no attribute `LiveRoomLoop`"):
        _ = adapter.LiveRoomLoop
