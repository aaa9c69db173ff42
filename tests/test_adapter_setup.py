"""Rows, environments and training rows as every adapter gets them."""

from __future__ import annotations

import json
import pickle
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from renderings_for_tests import renderer

import livestream_env as le
from livestream_env.adapters.setup import Setup, TaskRow, setup_of, task_rows
from livestream_env.adapters.text import as_user_messages, with_tools_told
from livestream_env.masking import REPLY, TOOL_CALLS
from livestream_env.parsing import to_action
from livestream_env.rows import TrainingRow
from livestream_env.trajectory_log import TrajectoryLog
from livestream_env.types import Message, Trajectory

SNACKS = le.load_room("snacks")


def played(setup: Setup, row: TaskRow) -> Trajectory:
    env = setup.make_env(row.room)
    assert env.room is None
    return le.rollout(env, le.ScriptedAgent(SNACKS), **setup.opening(row))


def test_rows_survive_json_and_name_what_the_seed_opens() -> None:
    rows = list(task_rows("bundled:train"))
    assert len(rows) == len(le.list_tasks("train"))
    for row, task in zip(rows, le.list_tasks("train"), strict=True):
        assert (row.room, row.comment) == (task.room_id, (task.comment_id,))
        assert TaskRow.of(json.loads(json.dumps(row.to_json()))) == row
    assert len({row.task_id for row in rows}) == len(rows)


@pytest.mark.parametrize("room", ["bundled:train", "snacks", "generated:level=1,language=en"])
def test_a_row_opens_the_episode_that_its_seed_does(room: str) -> None:
    setup = Setup(embedder="lexical")
    env = setup.make_env(room)
    for row in task_rows(room, count=3, seed=40, embedder="lexical"):
        told, _ = env.reset(seed=row.seed)
        opening = setup.opening(row)
        again, _ = setup.make_env(row.room).reset(**opening)
        assert again == told


@pytest.mark.parametrize(
    "room", ["bundled:test", "snacks", Path(__file__).with_name("unlabelled_room.json")]
)
def test_a_row_of_a_burst_opens_it_under_any_setup(room: str | Path) -> None:
    setup = Setup(embedder="lexical")
    for row in task_rows(room, count=2, comment="burst:2", embedder="lexical"):
        env = setup.make_env(row.room)
        env.reset(**setup.opening(row))
        assert env.episode.trajectory.comment_ids == row.comment
        assert len(row.comment) == 2


def test_rows_with_a_trainers_own_columns_are_read() -> None:
    given = {"room": "snacks", "seed": 3, "comment": "c2", "prompt": [], "index": 9}
    assert TaskRow.of(given) == TaskRow("snacks", 3, ("c2",))
    assert Setup("snacks").row({"seed": 3}) == TaskRow("snacks", 3)


def test_rows_are_read_as_data_sets_hold_them() -> None:
    due = TaskRow("snacks", 3, ("c02",))
    comment = np.array(["c02"], dtype=object)
    assert TaskRow.of({"room": np.str_("snacks"), "seed": np.int64(3), "comment": comment}) == due
    assert json.loads(json.dumps(due.to_json())) == due.to_json()
    empty = {"room": None, "seed": np.uint8(3), "comment": np.array([])}
    assert Setup("snacks", embedder="lexical").row(empty) == TaskRow("snacks", 3)


def test_a_room_may_be_the_path_of_a_file() -> None:
    path = Path(__file__).with_name("unlabelled_room.json")
    (row,) = task_rows(path, count=1, embedder="lexical")
    setup = Setup(path, embedder="lexical")
    assert row == TaskRow(str(path), 0) == setup.row({"seed": 0})
    assert TaskRow.of({"room": path, "seed": 0}) == row
    assert setup.make_env(row.room).reset(seed=0)[1]["room_id"] == le.load_room(path).room_id
    assert setup_of({"room": path, "embedder": "lexical"}).room == str(path)
    with pytest.raises(TypeError, match="the path of a file"):
        Setup(SNACKS)  # type: ignore[arg-type]


@pytest.mark.parametrize("given", [{"count": 0}, {"count": -3}, {"count": 2, "seed": -4}], ids=str)
def test_rows_that_there_are_none_of_are_refused(given: Any) -> None:
    """A data set without a row, or with rows that no episode opens, would be told by the trainer
    much later."""
    with pytest.raises(ValueError, match="rows are from 1, seeds from 0"):
        list(task_rows("snacks", embedder="lexical", **given))


def test_options_that_are_no_mapping_are_refused() -> None:
    with pytest.raises(TypeError, match="'snacks'; options are a mapping"):
        setup_of("snacks")  # type: ignore[arg-type]


def test_options_that_no_file_holds_are_named() -> None:
    with pytest.raises(TypeError, match=r"print.*nothing that a YAML or JSON file holds"):
        setup_of({"room": "snacks", "rubric": print})


@pytest.mark.parametrize("given", ["snacks", None, ["snacks", 3]])
def test_what_is_no_row_is_told(given: Any) -> None:
    with pytest.raises(TypeError, match="a task row is a mapping"):
        Setup("snacks", embedder="lexical").row(given)


@pytest.mark.parametrize("comment", [5, float("nan"), [None], [7], b"c02"])
def test_comments_that_are_no_ids_are_told(comment: Any) -> None:
    with pytest.raises(ValueError, match="it holds ids of comments"):
        TaskRow.of({"room": "snacks", "seed": 3, "comment": comment})


@pytest.mark.parametrize(
    ("given", "named"),
    [
        ({"seed": 1}, "room"),
        ({"room": "snacks"}, "seed"),
        ({"room": "snacks", "seed": "1"}, "seed"),
        ({"room": "snacks", "seed": 1.0}, "seed"),
        ({"room": "snacks", "seed": -1}, "seed"),
    ],
)
def test_a_row_without_what_it_needs_is_refused(given: dict[str, object], named: str) -> None:
    with pytest.raises(ValueError, match=f"needs `{named}`"):
        TaskRow.of(given)


def test_environments_share_rooms_and_nothing_of_an_episode() -> None:
    setup = Setup("snacks", embedder="lexical")
    one, other = setup.make_env(), setup.make_env()
    one.reset(seed=0)
    with pytest.raises(le.ResetNeeded):
        other.step("好的")
    assert one.rooms is other.rooms


@pytest.mark.parametrize(
    ("agents", "names"),
    [
        (None, ["host"]),
        ({"tool_caller": TOOL_CALLS, "replier": "reply"}, ["tool_caller", "replier"]),
    ],
)
def test_training_rows_of_one_trajectory(
    agents: dict[str, object] | None, names: list[str]
) -> None:
    setup = Setup("snacks", agents=agents, embedder="lexical")  # type: ignore[arg-type]
    trajectory = played(setup, TaskRow("snacks", 0))
    rows = setup.rows(trajectory, renderer("qwen2_5"))
    assert [row.agent for row in rows] == names
    assert all(row.excluded is None and row.reward == 1.0 for row in rows)
    assert all(sum(row.loss_mask) for row in rows)


def test_a_failed_environment_gives_an_excluded_row(monkeypatch: pytest.MonkeyPatch) -> None:
    setup = Setup("snacks", embedder="lexical")
    env = setup.make_env()

    def fail(_: object) -> None:
        raise le.SandboxUnavailable("down")

    env.reset(seed=0)
    monkeypatch.setattr(env.sandbox, "call", fail)
    trajectory = le.rollout(env, le.ScriptedAgent(SNACKS), seed=0)
    rows: list[TrainingRow] = setup.rows(trajectory, renderer("qwen2_5"))
    assert [row.excluded.split(":")[0] for row in rows if row.excluded] == ["env_error"]
    assert rows[0].reward is None


def test_what_was_played_is_logged(tmp_path: object) -> None:
    setup = Setup("snacks", embedder="lexical", log_dir=str(tmp_path))
    trajectory = played(setup, TaskRow("snacks", 0))
    setup.keep(trajectory, step=4, policy_version=2)
    (line,) = le.read_log(str(tmp_path)).lines
    assert (line.step, line.policy_version, line.trajectory) == (4, "2", trajectory)
    assert setup.metrics([trajectory])


def no_space(log: TrajectoryLog) -> None:
    log.path.symlink_to("/dev/full")


def no_folder(log: TrajectoryLog) -> None:
    log.folder.rmdir()


@pytest.mark.parametrize(
    ("spoil", "told"),
    [
        pytest.param(
            no_space,
            "No space left",
            marks=pytest.mark.skipif(not Path("/dev/full").exists(), reason="no /dev/full"),
        ),
        (no_folder, "No such file"),
    ],
)
def test_a_log_that_cannot_be_written_costs_no_episode_and_is_told_once(
    spoil: Callable[[TrajectoryLog], None],
    told: str,
    tmp_path: Path,
    caplog: pytest.LogCaptureFixture,
) -> None:
    setup = Setup("snacks", embedder="lexical", log_dir=tmp_path / "log")
    trajectory = played(setup, TaskRow("snacks", 0))
    assert setup.log is not None
    spoil(setup.log)
    for _ in range(3):
        setup.keep(trajectory)
    (record,) = caplog.records
    assert record.name == "livestream_env"
    assert told in record.getMessage()
    assert str(tmp_path / "log") in record.getMessage()
    with pytest.raises(TypeError, match="pass trajectories"):
        setup.keep([7])  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("options", "told"),
    [
        ({"max_turn": 3}, "no option `max_turn`.*Did you mean `max_turns`"),
        ({"maskers": "reply"}, "no option `maskers`.*Did you mean `masker`"),
        ({"rubrik": None, "embedder": "lexical"}, "no option `rubrik`.*Did you mean `rubric`"),
        ({"options": {}}, "no option `options`"),
    ],
)
def test_an_option_of_another_name_is_told_with_the_nearest(
    options: dict[str, Any], told: str
) -> None:
    with pytest.raises(TypeError, match=told):
        Setup("snacks", **options)
    with pytest.raises(TypeError, match=told):
        setup_of({"room": "snacks", **options})


def test_a_setup_is_sent_to_other_processes_as_its_arguments(tmp_path: Path) -> None:
    folder = str(tmp_path)
    given = {"masker": "reply", "max_turns": 3, "log_dir": folder, "log_every": 2}
    setup = Setup("snacks", embedder="lexical", **given)  # type: ignore[arg-type]
    row = setup.row({"seed": 1})
    before = played(setup, row)
    sent = pickle.loads(pickle.dumps(setup))
    assert (sent.room, sent.agents, sent.options) == (setup.room, setup.agents, setup.options)
    assert (sent.log.folder, sent.log.every) == (tmp_path, 2)
    assert sent.log.path != setup.log.path  # type: ignore[union-attr]
    assert played(sent, row).messages == before.messages


def test_maskers_are_named_or_the_names_are_told() -> None:
    assert Setup("snacks", masker="reply").agents == {"host": REPLY}
    with pytest.raises(ValueError, match="Did you mean `reply`"):
        Setup("snacks", masker="replys")
    with pytest.raises(ValueError, match="no masker ``"):
        Setup("snacks", masker="")
    with pytest.raises(ValueError, match="both given"):
        Setup("snacks", masker="reply", agents={"host": REPLY})


@pytest.mark.parametrize(
    ("agents", "told"),
    [
        ({}, "has a masker for `host`"),
        ({"hosts": "reply"}, "has a masker for `host`"),
        ({"host": "reply", "replier": "reply"}, "has a masker for `host`"),
        (["host"], "has a masker for `host`"),
        ({"host": 5}, "a masker is 5"),
        ({"replier": None}, "a masker is None"),
        ({"host": ""}, "no masker ``"),
    ],
)
def test_agents_that_nobody_plays_and_maskers_that_are_none_are_told_at_once(
    agents: Any, told: str
) -> None:
    with pytest.raises((TypeError, ValueError), match=told):
        Setup("snacks", agents=agents)


@pytest.mark.parametrize(
    ("options", "told"),
    [
        ({"embedder": "lexicl"}, "no embedder.*Did you mean `lexical`"),
        ({"sandbox": "locale"}, "no sandbox `locale`"),
        ({"sandbox": "record:run.jsonl"}, "no `record:FILE"),
        ({"sandbox_options": {"tool_timeout": 3}}, "tool_timeout"),
    ],
)
def test_what_every_episode_would_refuse_is_told_at_once(
    options: dict[str, Any], told: str
) -> None:
    """Trainers take an exception for a failed episode and play another."""
    with pytest.raises((TypeError, ValueError), match=told):
        Setup("snacks", **options)


def test_what_another_machine_may_have_is_not_asked_for() -> None:
    away = {"sandbox": "http://127.0.0.1:9", "sandbox_options": {"token_env": "NOT_SET_HERE"}}
    assert Setup("snacks", embedder="lexical", **away).room == "snacks"
    assert Setup("snacks", sandbox="replay:not_here.jsonl").room == "snacks"


def test_a_wrong_room_is_told_at_once() -> None:
    with pytest.raises(le.RoomNotFound):
        Setup("snakcs")


# --- plain text ------------------------------------------------------------------------------


def test_tools_are_told_in_the_system_message_and_can_be_called_as_told() -> None:
    env = Setup("snacks", embedder="lexical").make_env()
    told, _ = env.reset(seed=0)
    first, *others = with_tools_told(told.messages, told.tools, "zh")
    assert first.content.startswith(told.messages[0].content)
    assert others == list(told.messages[1:])
    lines = first.content.split("<tools>\n")[1].split("\n</tools>")[0].splitlines()
    assert [json.loads(line) for line in lines] == [tool.to_openai() for tool in told.tools]
    form = first.content.split("</tools>")[1]
    call = form[form.index("<tool_call>") : form.index("</tool_call>") + len("</tool_call>")]
    assert [call.name for call in to_action(call).message.tool_calls] == ["工具名"]


def test_results_in_a_row_are_one_user_message() -> None:
    told = [
        Message("tool", "1", (), "a"),
        Message("tool", "2", (), "b"),
        Message("user", "还有吗"),
        Message("tool", "3", (), "c"),
    ]
    one, two, three = (f"<tool_response>\n{n}\n</tool_response>" for n in "123")
    texts = [f"{one}\n{two}", "还有吗", three]
    assert as_user_messages(told) == tuple(Message("user", text) for text in texts)
