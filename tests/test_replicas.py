"""Real servers as processes, short: replicas without affinity, and one that is killed.

`benchmarks/replicas.py` holds the runs; by itself it makes them longer.
"""

from __future__ import annotations

import importlib.util
import sys
from pathlib import Path
from typing import Any

import pytest

FILE = Path(__file__).resolve().parents[1] / "benchmarks" / "replicas.py"


@pytest.fixture(scope="module")
def replicas() -> Any:
    """The benchmark as a module."""
    spec = importlib.util.spec_from_file_location("replicas", FILE)
    assert spec is not None
    assert spec.loader is not None
    sys.modules["replicas"] = module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.mark.row("R100")
@pytest.mark.parametrize(
    ("rooms", "workers"), [("client", False), ("folder", True), ("client", True)]
)
def test_no_episode_is_lost_on_processes_that_share_nothing(
    rooms: str, workers: bool, replicas: Any
) -> None:
    found = replicas.without_affinity(40, rooms=rooms, workers=workers)
    assert (found.episodes, found.wrong, found.causes) == (40, 0, ())
    assert 1 <= found.requests <= 1.2


@pytest.mark.row("R45")
def test_kill_9_in_the_middle_of_64_rollouts_loses_none_and_changes_none(replicas: Any) -> None:
    found = replicas.killed(64, episodes=64)
    assert (found.episodes, found.wrong, found.causes) == (64, 0, ())
