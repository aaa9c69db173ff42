"""The AReaL adapter where AReaL is not installed, or is another version."""

from __future__ import annotations

import importlib
import sys
from types import ModuleType

import pytest

from livestream_env.errors import MissingDependency

ADAPTER = "livestream_env.adapters.areal"


@pytest.mark.parametrize(
    "installed", [None, ModuleType("areal.api")], ids=["absent", "another version"]
)
def test_the_version_that_was_run_is_told(
    installed: ModuleType | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    adapter = importlib.import_module(ADAPTER)
    adapter._workflow.cache_clear()
    monkeypatch.setitem(sys.modules, "areal", installed and ModuleType("areal"))
    monkeypatch.setitem(sys.modules, "areal.api", installed)
    with pytest.raises(MissingDependency, match=r"areal 1\.0\.4.*pip install areal==1\.0\.4") as it:
        _ = adapter.LiveRoomWorkflow
    assert isinstance(it.value, ImportError)
    assert it.value.name == "areal"


def test_other_names_are_no_attributes() -> None:
    adapter = importlib.import_module(ADAPTER)
    with pytest.raises(AttributeError, match="no attribute `LiveRoomFlow`"):
        _ = adapter.LiveRoomFlow
