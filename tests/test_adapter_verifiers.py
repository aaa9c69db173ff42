"""The verifiers adapter where verifiers is not installed, or is too old."""

from __future__ import annotations

import importlib
import subprocess
import sys
from types import ModuleType
from typing import Any

import pytest

import livestream_env as le
from livestream_env.adapters import verifiers
from livestream_env.errors import MissingDependency

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
