"""`livestream-env inspect`: which trajectories it prints, and what of them."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from rooms_for_tests import small_room
from test_trajectory_log import episode

import livestream_env as le
from livestream_env import cli
from livestream_env.types import (
    Action,
    Message,
    Rewards,
    Score,
    Status,
    StopReason,
    ToolCall,
    ToolResult,
    Turn,
    TurnEvent,
    freeze,
)


def scored(*values: float | None) -> Rewards:
    causes = [None if value is not None else "timeout" for value in values]
    return Rewards(
        tuple(
            Score(f"hook{i}", value, 0.5, "replier", None, f"because {value}", cause)
            for i, (value, cause) in enumerate(zip(values, causes, strict=True))
        )
    )


@pytest.fixture
def run(tmp_path: Path) -> Path:
    """A log of two steps: totals .5, .25 and none, then 1, 0 and a failure."""
    log = le.TrajectoryLog(tmp_path / "run")
    unsure = episode(2, reply="这个我不清楚", rewards=scored(None, 0.5))
    first = [episode(0, rewards=scored(0.5, 0.5)), episode(1, rewards=scored(0.5, 0.0)), unsure]
    log.add(first, step=1, policy_version="v1")
    failed = episode(
        5,
        status=Status.ENV_ERROR,
        stop_reason=StopReason.ENV_ERROR,
        rewards=Rewards(),
        turns=(),
        faults=(TurnEvent("env_error", "SandboxTimeout: no answer"),),
    )
    last = [episode(3, rewards=scored(1.0, 1.0)), episode(4, rewards=scored(0.0, 0.0)), failed]
    log.add(last, step=2, policy_version="v2")
    return log.folder


def shown(capsys: pytest.CaptureFixture[str], *args: object) -> tuple[list[int], str, str]:
    """Return the seeds of the trajectories that a command prints, and all that it printed."""
    cli.main(["inspect", *map(str, args)])
    printed = capsys.readouterr()
    heads = [line for line in printed.out.split("\n") if line.startswith("===")]
    return [int(h.partition("seed ")[2].partition(",")[0]) for h in heads], *printed


@pytest.mark.row("R94")
@pytest.mark.parametrize(
    ("options", "seeds"),
    [
        pytest.param((), [0, 1, 2, 3, 4, 5], id="all"),
        pytest.param(("--step", 2), [3, 4, 5], id="step"),
        pytest.param(("--worst", 3), [4, 1, 0], id="worst"),
        pytest.param(("--worst", 1, "--step", 1), [1], id="worst-of-step"),
        pytest.param(("--stop-reason", "env_error"), [5], id="stop-reason"),
        pytest.param(("--abstain",), [2], id="abstain"),
        pytest.param(("--abstain", "--step", 2), [], id="none"),
    ],
)
def test_options_choose_trajectories(
    run: Path, capsys: pytest.CaptureFixture[str], options: tuple[object, ...], seeds: list[int]
) -> None:
    found, out, _ = shown(capsys, run, *options)
    assert found == seeds
    assert out.endswith(f"{len(seeds)} of {3 if '--step' in options else 6} trajectories shown\n")
    assert cli.main(["inspect", str(run), *map(str, options)]) == int(not seeds)


def test_what_has_no_total_is_in_no_rank_and_never_a_zero(
    run: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    seeds, _, err = shown(capsys, run, "--worst", 6)
    assert seeds == [4, 1, 0, 3]
    assert "2 trajectories without a total" in err
    _, out, _ = shown(capsys, run, "--abstain")
    assert "reward - (replier -)" in out
    row = next(line for line in out.split("\n") if line.startswith("hook0"))
    assert row.split() == ["hook0", "replier", "-", "0.5", "timeout;", "because", "None"]


def test_a_trajectory_is_told_with_its_course_its_rewards_and_its_failure(
    run: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    _, out, _ = shown(capsys, run, "--worst", 2)
    first, second = out.split("=== ")[1:]
    told = "1 of 2: step 2, policy v2, room r, comment c1, seed 4, group g\n"
    assert first.startswith(told)
    assert "    问\n  > 好的\n[replied]\nreward 0.000 (replier 0.000)\n" in first
    assert "reward 0.250 (replier 0.250)" in second
    assert "because 0.5" in second
    _, out, _ = shown(capsys, run, "--stop-reason", "env_error")
    assert "[env_error]\n  ! env_error SandboxTimeout: no answer\nnot scored\n" in out


def test_hostile_text_is_shown_escaped(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    evil = "\x1b[2J\u202e\r\x07\x9b31m"
    call = ToolCall("a", f"t{evil}", freeze({"q": evil}))
    looked = Turn(
        "host",
        Action(Message("assistant", evil, (call,))),
        (ToolResult("a", evil),),
        (Message("tool", evil, (), "a"),),
        (TurnEvent("tool_error", evil),),
    )
    rewards = Rewards((Score(f"s{evil}", 1.0, 1.0, f"a{evil}", 0, f"r{evil}\n=== 1"),))
    played = episode(
        0,
        turns=(looked, Turn("host", Action.reply(evil))),
        rewards=Rewards((*rewards.scores, *scored(1.0).scores)),
        prompts={"host": (Message("user", f"{evil}\n=== 3"),)},
        faults=(TurnEvent("e", evil),),
        room_id=f"room{evil}",
        group=f"g{evil}\n=== 2",
    )
    le.TrajectoryLog(tmp_path / "run").add(played, policy_version=f"v{evil}")
    (tmp_path / "run" / "x.jsonl").write_text('{"\\u001b[31m": 1}\n', encoding="utf-8")
    _, out, err = shown(capsys, tmp_path / "run")
    assert all(c.isprintable() or c in "\n\u3000" for c in out + err)
    assert out.count("\n===") + out.startswith("===") == 1
    assert "\\x1b[2J" in out
    assert "\\x1b[31m" in err


def test_a_file_of_trajectories_will_do(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    room = small_room()
    env = le.LiveRoomEnv(room, embedder="lexical")
    played = [le.rollout(env, le.RandomAgent(), seed=seed) for seed in range(2)]
    plain = tmp_path / "plain.jsonl"
    plain.write_text("".join(f"{t.model_dump_json()}\n" for t in played), encoding="utf-8")
    seeds, out, _ = shown(capsys, plain)
    assert seeds == [0, 1]
    assert "step" not in out.partition("\n")[0]
    others = tmp_path / "others.json"
    messages = [{"role": "user", "content": "多少钱"}, {"role": "assistant", "content": "9.9元"}]
    others.write_text(json.dumps([{"messages": messages}]), encoding="utf-8")
    assert cli.main(["inspect", str(others)]) == 0
    assert "    多少钱\n  > 9.9元\n[replied]\nnot scored\n" in capsys.readouterr().out


def test_a_cut_line_is_told(run: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (file,) = run.iterdir()
    file.write_bytes(file.read_bytes()[:-20])
    seeds, _, err = shown(capsys, run)
    assert seeds == [0, 1, 2, 3, 4]
    assert f"refused {file.name}, line 6: the line is cut" in err


def test_wrong_use_is_told(run: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["inspect", str(run / "nowhere")]) == 2
    assert cli.main(["inspect", str(run), "--worst", "0"]) == 2
    assert "`--worst` is 0" in capsys.readouterr().err
    with pytest.raises(SystemExit, match="2"):
        cli.main(["inspect", str(run), "--stop-reason", "replyed"])
    assert "`replyed` ends no episode; use replied" in capsys.readouterr().err


def test_scores_whose_reasons_no_file_can_hold_are_written(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "torn_reasons.py").write_text(TORN, encoding="utf-8")
    source, scored_out, played = (tmp_path / name for name in ("in.jsonl", "s.jsonl", "e.jsonl"))
    source.write_text(f"{episode(0).model_dump_json()}\n", encoding="utf-8")
    rubric = ("--rubric", "python:torn_reasons:rubric")
    assert cli.main(["score", "--in", str(source), "--out", str(scored_out), *rubric]) == 0
    agent = ("--room", "snacks", "--agent", "random", "--episodes", "1")
    assert cli.main(["evaluate", *agent, "--out", str(played), *rubric]) == 0
    for path in (scored_out, played):
        assert cli.main(["inspect", str(path)]) == 0
    assert capsys.readouterr().out.count("half \ufffd") == 2


TORN = """
from livestream_env.rewards import Rubric
from livestream_env.types import Score

rubric = Rubric([lambda trajectory, room: Score("torn", 1.0, reason="half \\ud83d")])
"""
