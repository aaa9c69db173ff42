"""One agent with mixed rewards beside two with their own: the runs, and what they differ in."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from livestream_env.training import training_rows

ROOT = Path(__file__).resolve().parents[1]
RUNS = json.loads((ROOT / "benchmarks" / "learning_agents.json").read_text(encoding="utf-8"))


@pytest.fixture
def learning(monkeypatch: pytest.MonkeyPatch) -> Any:
    pytest.importorskip("torch").set_num_threads(1)
    monkeypatch.syspath_prepend(ROOT / "benchmarks")
    import learning_agents  # type: ignore[import-not-found]

    return learning_agents


@pytest.mark.row("R56")
def test_two_agents_are_learnt_sooner_in_four_of_five_seeds() -> None:
    ends = [[run[arm]["seeds"]["after"] for arm in ("one", "two")] for run in RUNS]
    assert len(ends) == 5
    assert sum(two > one for one, two in ends) >= 4


def test_the_page_tells_every_run(learning: Any) -> None:
    page = (ROOT / "docs" / "training-runs.md").read_text(encoding="utf-8")
    assert learning.table(RUNS) in page
    drawn = (ROOT / "docs" / "training-runs-agents.svg").read_text(encoding="utf-8")
    assert drawn == learning.curves(RUNS)


def test_the_ways_of_training_differ_in_advantages_alone(learning: Any) -> None:
    setup = learning.Setup(agents=learning.AGENTS, **learning.SETUP)
    tasks = [row for row in learning.training_tasks(600, 6) for _ in range(4)]
    played = learning.taught(setup, tasks, 600)
    renderer = learning.ChatTemplateRenderer(
        learning.make_tokenizer([t.messages[1].content for t in played])
    )
    trained, advantages = {}, {}
    for arm in ("one", "two"):
        rows = training_rows(played, renderer, agents=learning.ARMS[arm], rubric=None)
        trained[arm], advantages[arm] = [0] * len(played), [set() for _ in played]
        for row in rows:
            trained[arm][row.index] += sum(row.loss_mask)
            advantages[arm][row.index].add(row.advantage)
    assert trained["one"] == trained["two"]
    assert all(len(one) == 1 for one in advantages["one"])
    assert any(len(both) == 2 for both in advantages["two"])


def test_a_short_run_tells_what_the_table_needs(learning: Any) -> None:
    run = learning.learn(600, steps=1, warm_steps=2, episodes=48, held_out=2)
    assert [[at for at, _ in run[arm]["trained"]] for arm in learning.ARMS] == [[1]] * 3
    assert learning.table([run]).count("\n| 600 |") == 2
