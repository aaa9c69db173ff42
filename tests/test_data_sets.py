"""Data sets of task rows: their columns, the files, and that a row opens one episode for all."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

import livestream_env as le
from livestream_env import cli
from livestream_env.adapters.data_sets import DATA_FORMATS, data_rows, write_data_set
from livestream_env.adapters.setup import Setup, TaskRow, task_rows

ROWS = tuple(task_rows("snacks", count=3, seed=40))
SETUP = Setup("snacks", embedder="lexical")


def read_back(path: Path, kind: str) -> list[dict[str, Any]]:
    datasets = pytest.importorskip("datasets", reason="needs the `dev` extra")
    loaded = datasets.load_dataset(
        kind, data_files=str(path), split="train", cache_dir=str(path.parent / "cache")
    )
    return list(loaded)


def first_messages(row: TaskRow) -> list[dict[str, Any]]:
    told, _ = SETUP.make_env(row.room).reset(**SETUP.opening(row))
    return [message.to_openai() for message in told.messages]


def test_the_columns_are_those_of_each_trainer() -> None:
    row = ROWS[1]
    told = {"room": "snacks", "seed": 41, "comment": list(row.comment)}
    made = {name: list(data_rows(ROWS, name, setup=SETUP))[1] for name in DATA_FORMATS}
    assert made["jsonl"] == told
    assert made["trl"] == {"prompt": first_messages(row), **told}
    assert made["verl"] == {
        "data_source": "livestream_env",
        "agent_name": "liveroom",
        "prompt": first_messages(row),
        "reward_model": {"style": "rule", "ground_truth": ""},
        "extra_info": {"index": 1, **told},
    }
    assert made["openrlhf"].keys() == {"input", "label"}
    assert made["openrlhf"]["input"] == first_messages(row)
    assert json.loads(made["openrlhf"]["label"]) == told
    assert made["slime"] == {"prompt": first_messages(row), "metadata": told}
    assert made["nemo_gym"] == {
        "responses_create_params": {"input": first_messages(row)},
        "agent_ref": {"type": "responses_api_agents", "name": "live_room_agent"},
        **told,
    }


@pytest.mark.parametrize("name", DATA_FORMATS)
def test_files_are_read_back_as_they_were_written(name: Any, tmp_path: Path) -> None:
    path = tmp_path / ("rows.parquet" if name == "verl" else "rows.jsonl")
    assert write_data_set(ROWS, path, name, setup=SETUP) == 3
    rows = read_back(path, "parquet" if name == "verl" else "json")
    assert rows == list(data_rows(ROWS, name, setup=SETUP))
    column = {"verl": "extra_info", "openrlhf": "label", "slime": "metadata"}.get(name)
    given = [row if column is None else row[column] for row in rows]
    given = [json.loads(one) if isinstance(one, str) else one for one in given]
    assert tuple(map(TaskRow.of, given)) == ROWS


def test_rooms_that_choose_by_seed_have_rows_without_comments(tmp_path: Path) -> None:
    rows = list(task_rows("generated:level=1", count=2, seed=7, embedder="lexical"))
    path = tmp_path / "rows.parquet"
    write_data_set(rows, path, "verl", setup=Setup("generated:level=1", embedder="lexical"))
    back = read_back(path, "parquet")
    assert [row["extra_info"]["comment"] for row in back] == [[], []]
    assert [TaskRow.of(row["extra_info"]) for row in back] == rows
    assert back[0]["prompt"] != back[1]["prompt"]


def test_members_of_a_group_open_the_same_episode() -> None:
    for row in (*ROWS, TaskRow("generated:level=2", 5)):
        copies = [TaskRow.of(json.loads(json.dumps(row.to_json()))) for _ in range(4)]
        told = [
            SETUP.make_env(copy.room).reset(**SETUP.opening(SETUP.row(copy))) for copy in copies
        ]
        assert all(one[0] == told[0][0] for one in told)


def test_an_unknown_format_is_refused_before_anything_is_written(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="Did you mean `verl`"):
        write_data_set(ROWS, tmp_path / "rows", "verk")  # type: ignore[arg-type]
    assert not list(tmp_path.iterdir())


def test_a_file_that_cannot_be_finished_is_not_there(tmp_path: Path) -> None:
    def down(room: le.Room) -> Any:
        raise le.SandboxUnavailable("down")

    with pytest.raises(le.SandboxError):
        write_data_set(ROWS, tmp_path / "rows", "trl", setup=Setup("snacks", sandbox=down))
    assert not list(tmp_path.iterdir())


# --- the command ------------------------------------------------------------------------------


def test_the_command_writes_every_comment_once(tmp_path: Path, capsys: Any) -> None:
    path = tmp_path / "rows.jsonl"
    assert cli.main(["export", "rl", "--out", str(path)]) == 0
    rows = [TaskRow.of(json.loads(line)) for line in path.read_text("utf-8").splitlines()]
    assert rows == list(task_rows("bundled:train"))
    assert f"{len(rows)} rows" in capsys.readouterr().out


def test_the_command_takes_rooms_seeds_and_counts(tmp_path: Path) -> None:
    path = tmp_path / "rows.jsonl"
    given = ["--room", "snacks", "--seed", "40", "--count", "3", "--format", "jsonl"]
    assert cli.main(["export", "rl", *given, "--out", str(path)]) == 0
    rows = [TaskRow.of(json.loads(line)) for line in path.read_text("utf-8").splitlines()]
    assert tuple(rows) == ROWS


def test_the_command_names_a_wrong_room(tmp_path: Path, capsys: Any) -> None:
    assert cli.main(["export", "rl", "--room", "snakcs", "--out", str(tmp_path / "rows")]) == 2
    assert "snacks" in capsys.readouterr().err
