"""What tests share: the public data folder, and `--rows`, which lists the rows without a test."""

from __future__ import annotations

import os
import re
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import HealthCheck, settings

SHARED = Path(__file__).resolve().parents[2] / "shared"
LATER = {"R9", "R29", "R30", "R31", "R60", "R65", "R83", "R84", "R87"}
LATER |= {f"R{n}" for n in (*range(69, 75), *range(76, 80))}
TRAINERS = Path(__file__).parent / "trainers"


settings.register_profile("shared", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("shared")


def pytest_sessionstart() -> None:
    """Let tables be as wide as they need, whoever runs the tests."""
    os.environ.pop("COLUMNS", None)


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--rows", action="store_true", help="list requirement rows without a test")


def rows_of_trainers() -> Iterator[list[str]]:
    """Give the rows of each mark in tests that need a trainer, without importing them."""
    for path in sorted(TRAINERS.glob("test_*.py")):
        for mark in re.findall(r"mark\.row\(([^)]*)\)", path.read_text(encoding="utf-8")):
            yield re.findall(r'"([^"]+)"', mark)


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    if not config.getoption("--rows"):
        return
    marks = [mark.args for item in items for mark in item.iter_markers("row")]
    shown = Counter(row for rows in (*marks, *rows_of_trainers()) for row in rows)
    known = [f"R{n}" for n in range(1, 101)]
    missing = [row for row in known if row not in shown and row not in LATER]
    later = [row for row in known if row not in shown and row in LATER]
    lines = [
        f"rows shown by a test: {len(shown)}",
        f"rows without a test: {' '.join(missing) or 'none'}",
        f"rows for later: {' '.join(later) or 'none'}",
    ]
    reporter = config.pluginmanager.get_plugin("terminalreporter")
    for line in lines:
        reporter.write_line(line)
    unknown = [row for row in shown if not re.fullmatch(r"R([1-9]\d?|100)", row)]
    if unknown:
        raise pytest.UsageError(f"no such rows: {', '.join(unknown)}")
    items.clear()


@pytest.fixture(scope="session")
def shared_data() -> Path:
    """The public rooms and logs that tests may run on, where they are present."""
    folder = SHARED / "data"
    if not folder.is_dir():
        pytest.skip(f"the public data folder is absent: {folder.name}")
    return folder


def pytest_sessionfinish(session: pytest.Session) -> None:
    if (
        session.config.getoption("--rows")
        and session.exitstatus == pytest.ExitCode.NO_TESTS_COLLECTED
    ):
        session.exitstatus = pytest.ExitCode.OK
