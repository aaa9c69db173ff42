"""The ART adapter where ART is not installed, or another package has its name."""

from __future__ import annotations

import importlib
import sys
from types import ModuleType

import pytest

from livestream_env.errors import MissingDependency

ADAPTER = "livestream_env.adapters.art"


@pytest.mark.parametrize("installed", [None, ModuleType("art")], ids=["absent", "another package"])
def test_the_version_that_was_run_is_told(
    installed: ModuleType | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "art", installed)
    adapter = importlib.import_module(ADAPTER)
    told = r"openpipe-art 0\.5\.18.*pip install openpipe-art==0\.5\.18"
    with pytest.raises(MissingDependency, match=told) as caught:
        adapter.RoomRollout("snacks")
    assert isinstance(caught.value, ImportError)
    assert caught.value.name == "art"
