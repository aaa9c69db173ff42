"""Evaluation: intervals, pass^k, what is counted apart, one table of agents, recorded hosts."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from rooms_for_tests import SMALL, small_room
from test_env import failing_env

import livestream_env as le
from livestream_env import cli
from livestream_env.errors import JudgeError
from livestream_env.evaluation import (
    BLACK_BOX,
    RecordedAgent,
    comparison,
    evaluate,
    markdown,
    recorded_seeds,
)
from livestream_env.measures import bootstrap_interval, pass_power
from livestream_env.reflection import recoveries
from livestream_env.rewards import Rubric, correctness
from livestream_env.types import Action, Rewards, Score

RULE = Action.call("get_reply_rule", intent="物流")


class Says:
    """Looks up the rule and replies; the i-th repeat of `right` tries says 好."""

    def __init__(self, right: int = 10**9, number: int = 0) -> None:
        self.right = right
        self.number = number

    def start(self, observation: Any, *, seed: Any) -> Says:
        return Says(self.right, seed[1])

    def act(self, messages: Any, tools: Any) -> Action:
        if messages[-1].role != "tool":
            return RULE
        return Action.reply("好" if self.number < self.right else "不")


def says_yes(trajectory: le.Trajectory, room: Any) -> Rewards:
    return Rewards((Score("yes", float(trajectory.reply == "好"), agent="replier"),))


def small_env(**options: Any) -> le.LiveRoomEnv:
    return le.LiveRoomEnv(small_room(), embedder="lexical", rubric=None, **options)


# --- numbers ----------------------------------------------------------------------------------


@pytest.mark.row("R27")
def test_the_interval_of_a_known_chance_holds_it_in_95_of_100_sets() -> None:
    rng = np.random.default_rng(0)
    held = 0
    for seed in range(1000):
        drawn = (rng.random(200) < 0.4).astype(float).tolist()
        interval = bootstrap_interval(drawn, seed=seed, resamples=500)
        assert interval is not None
        held += interval.low <= 0.4 <= interval.high
    assert 930 <= held <= 970


def test_episodes_of_one_comment_are_drawn_together() -> None:
    values = [1.0] * 4 + [0.0] * 4  # two comments, four equal episodes of each
    apart = bootstrap_interval(values)
    together = bootstrap_interval(values, ["a"] * 4 + ["b"] * 4)
    assert together == (0.0, 1.0)
    assert apart is not None
    assert apart.low > 0
    assert bootstrap_interval(values, ["a"] * 8) is None
    assert bootstrap_interval([]) is None


@pytest.mark.row("R27")
def test_pass_powers_are_those_of_tau_bench() -> None:
    assert [pass_power(3, 4, k) for k in (1, 2, 3, 4)] == [0.75, 0.5, 0.25, 0]  # FORMULAS B10
    with pytest.raises(ValueError, match="`k` is 5"):
        pass_power(3, 4, 5)
    for passed in (-1, 5):
        with pytest.raises(ValueError, match="`passed`"):
            pass_power(passed, 4, 2)


# --- evaluate ---------------------------------------------------------------------------------


@pytest.mark.row("R27")
def test_every_comment_is_played_so_often_and_passes_in_a_row() -> None:
    made = evaluate(small_env, Says(right=3), repeat=4, rubric=says_yes)
    assert len(made.results) == 12  # three comments
    assert [(r.seed, r.repeat) for r in made.results[:5]] == [
        (0, 0),
        (0, 1),
        (0, 2),
        (0, 3),
        (1, 0),
    ]
    assert made.mean() == made.mean("yes") == made.mean("replier") == 0.75
    assert made.pass_powers == {1: 0.75, 2: 0.5, 3: 0.25, 4: 0.0}
    assert made.interval() == (0.75, 0.75)
    assert made.look_ups_each == 1
    assert {t.group for t in made.trajectories[:4]} == {"small:c1:0"}
    assert {t.versions["rubric"] for t in made.trajectories} == {"says_yes"}
    assert json.loads(json.dumps(made.summary()))["pass_powers"]["2"] == 0.5


def test_threads_change_nothing() -> None:
    one, four = (
        evaluate(small_env, le.RandomAgent(), repeat=3, rubric="multi22", workers=workers)
        for workers in (1, 4)
    )
    assert one.summary() == four.summary()
    assert [t.messages for t in one.trajectories] == [t.messages for t in four.trajectories]


def test_failed_episodes_are_counted_and_are_no_zeros() -> None:
    made = evaluate(lambda: failing_env(3, rubric=None), Says(), rubric=says_yes)
    assert [r.value() for r in made.results] == [1, 1, 1]
    made = evaluate(lambda: failing_env(2, rubric=None), Says(), seeds=range(3), rubric=says_yes)
    assert [r.value() for r in made.results] == [1, 1, None]
    assert made.failures == {"env_error": 1}
    assert (made.mean(), made.pass_powers) == (1.0, {1: 1.0})
    assert made.warnings == ["Says: episodes without a total, in no mean: 1 env_error"]
    nothing = evaluate(lambda: failing_env(-1, rubric=None), Says(), rubric=says_yes)
    assert (nothing.mean(), nothing.interval(), nothing.pass_powers) == (None, None, {})
    assert nothing.failures == {"env_error": 3}


def test_a_judge_without_a_verdict_is_no_zero_either() -> None:
    def judge(trajectory: le.Trajectory, room: Any) -> Score:
        if trajectory.comment_ids == ("c2",):
            raise JudgeError("the gateway is down")
        return Score("judged", 1.0, agent="replier")

    made = evaluate(small_env, Says(), rubric=Rubric([judge], weights={"replier": {"judge": 1.0}}))
    assert made.failures["judge_error"] == 1
    rubric = Rubric([judge])
    made = evaluate(small_env, Says(), rubric=rubric)
    assert made.mean("judged") == 1.0
    assert made.missing == {"judge": {"judge_error": 1}}


@pytest.mark.row("R49")
def test_means_are_told_by_level_and_by_intent_and_by_agent() -> None:
    source = "generated:level=3,comments=12,products=8"
    made = evaluate(source, le.ScriptedAgent, rubric="multi22")
    room = le.make_room(0, comments=12, products=8, level=3)
    keys = [comment.expected for comment in room.comments]
    levels = [key.provenance.split(";")[0].partition("=")[2] for key in keys if key]
    assert {k: n for k, (_, n) in made.by_level.items()} == {
        level: levels.count(level) for level in set(levels)
    }
    intents = [ask.intent for key in keys if key for ask in key.asks]
    assert set(made.by_intent) == set(intents)
    assert made.names[:2] == ("replier", "tool_caller")


def test_wrong_counts_are_refused() -> None:
    with pytest.raises(ValueError, match="`repeat` is 0"):
        evaluate(small_env, Says(), repeat=0)
    with pytest.raises(ValueError, match="single4"):
        evaluate(small_env, Says(), rubric="singel4")


@pytest.mark.row("R28")
def test_agents_stand_in_one_table() -> None:
    made = [
        evaluate(small_env, Says(right=n), repeat=4, rubric=says_yes, name=f"{n}|4") for n in (4, 3)
    ]
    header, rows = comparison(made)
    assert header[:5] == ["agent", "episodes", "failed", "total", "95 %"]
    assert [row[:4] for row in rows] == [["4|4", "12", "0", "1.000"], ["3|4", "12", "0", "0.750"]]
    at = header.index("pass^4")
    assert [row[at] for row in rows] == ["1.000", "0.000"]
    assert markdown(header, rows).splitlines()[2].startswith("| 4\\|4 | 12 | 0 | 1.000 |")
    other = evaluate(small_env, Says(), rubric="multi22")
    with pytest.raises(ValueError, match="multi22, says_yes"):
        comparison([made[0], other])


# --- looking again ----------------------------------------------------------------------------


def keyed_room() -> le.Room:
    ask = {
        "intent": "物流",
        "needed": ["faq:f1"],
        "facts": [{"record": "faq:f1", "field": "answer"}],
    }
    first = {**SMALL["comments"][0], "expected": {"asks": [ask]}}
    return small_room(comments=[first, SMALL["comments"][2]], limits={"preset_faqs": 0})


FAQ = Action.call("search_faq", query="什么时候发货")
ELSEWHERE = Action.call("search_product_by_keyword", keyword="腰果")
NOTHING = Action.call("search_product_by_keyword", keyword="航天飞机")
WRONG_RULE = Action.call("get_reply_rule", intent="尺码")
NO_RULE = Action.call("get_reply_rule", intent="天气预报")


class Plays:
    def __init__(self, *actions: Action) -> None:
        self.actions = list(actions)

    def act(self, messages: Any, tools: Any) -> Action:
        return self.actions.pop(0)


@pytest.mark.row("R91")
@pytest.mark.parametrize(
    ("actions", "recovered", "missed"),
    [
        pytest.param([FAQ, RULE], 0, 0, id="nothing-missed"),
        pytest.param([NOTHING, FAQ, RULE], 1, 1, id="an-empty-search-made-good"),
        pytest.param([ELSEWHERE, FAQ, RULE], 1, 1, id="a-useless-search-made-good"),
        pytest.param([NOTHING, ELSEWHERE, FAQ, RULE], 2, 2, id="two-misses-made-good"),
        pytest.param([NOTHING, RULE], 0, 1, id="given-up"),
        pytest.param([NOTHING, NOTHING, RULE], 0, 2, id="the-same-again"),
        pytest.param([FAQ, NOTHING, RULE], 0, 0, id="nothing-was-missing"),
        pytest.param([FAQ, WRONG_RULE, RULE], 1, 1, id="wrong-rule-fetched-again"),
        pytest.param([FAQ, NO_RULE, RULE], 1, 1, id="unknown-rule-fetched-again"),
        pytest.param([FAQ, WRONG_RULE], 0, 1, id="wrong-rule-kept"),
        pytest.param([NOTHING, FAQ, WRONG_RULE, RULE], 2, 2, id="both"),
    ],
)
def test_a_miss_is_made_good_by_another_look_up_that_brings_it(
    actions: list[Action], recovered: int, missed: int
) -> None:
    room = keyed_room()
    env = le.LiveRoomEnv(room, comment="c1", embedder="lexical", rubric=None)
    trajectory = le.rollout(env, Plays(*actions, Action.reply("好")), seed=0)
    assert recoveries(trajectory, room) == (recovered, missed)


@pytest.mark.row("R91")
def test_without_a_key_an_empty_search_is_a_miss() -> None:
    room = keyed_room()
    env = le.LiveRoomEnv(room, comment="c3", embedder="lexical", rubric=None)
    plays = Plays(NOTHING, ELSEWHERE, NO_RULE, RULE, Action.reply("好"))
    trajectory = le.rollout(env, plays, seed=0)
    assert recoveries(trajectory, room) == recoveries(trajectory) == (2, 2)
    made = evaluate(
        lambda: env, Plays(NOTHING, RULE, Action.reply("好")), rubric=says_yes, seeds=[0]
    )
    assert made.recovery.rate == 0.0


# --- recorded hosts ---------------------------------------------------------------------------


def recorded_room(text: str) -> le.Room:
    first = {**SMALL["comments"][0], "recorded_reply": {"text": text, "channel": "speech"}}
    return small_room(comments=[first, SMALL["comments"][2]])


@pytest.mark.row("R93")
def test_a_recorded_reply_is_scored_by_the_room() -> None:
    room = recorded_room("2号链接海盐饼干价格15元")  # the prompt shows link 1

    def make_env() -> le.LiveRoomEnv:
        return le.LiveRoomEnv(room, embedder="lexical", rubric=None)

    seeds = recorded_seeds(make_env(), range(2))
    assert seeds == [0]
    made = evaluate(make_env, RecordedAgent, rubric=BLACK_BOX, seeds=seeds)
    (trajectory,) = made.trajectories
    assert trajectory.reply == "2号链接海盐饼干价格15元"
    assert trajectory.turns[0].action.channel == "speech"
    assert made.mean() == 1.0
    assert "lucky" in trajectory.rewards.scores[0].reason  # type: ignore[union-attr]
    assert correctness()(trajectory, room).value == 0.0  # nothing of it was looked up
    wrong = recorded_room("2号链接海盐饼干价格19元")
    made = evaluate(
        lambda: le.LiveRoomEnv(wrong, embedder="lexical", rubric=None),
        RecordedAgent(wrong),
        rubric=BLACK_BOX,
        seeds=seeds,
    )
    assert made.mean() == 0.0


def test_a_recorded_host_skips_what_it_did_not_answer() -> None:
    room = recorded_room("48小时内发货")
    env = le.LiveRoomEnv(room, comment=["c1", "c3"], embedder="lexical", rubric=None)
    action = le.rollout(env, RecordedAgent(room), seed=0).turns[0].action
    assert (action.message.content, action.skips) == ("48小时内发货", ("c3",))
    env = le.LiveRoomEnv(room, comment="c3", embedder="lexical", rubric=None)
    assert le.rollout(env, RecordedAgent(room), seed=0).turns[0].action.skips == ("*",)


# --- the command line -------------------------------------------------------------------------


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    return tmp_path


def run(command: str) -> int:
    return cli.main(command.split())


@pytest.mark.row("R28")
def test_agents_are_evaluated_in_one_table(here: Path, capsys: pytest.CaptureFixture[str]) -> None:
    command = "evaluate --room snacks --agent workflow --agent random --episodes 6 --repeat 2"
    assert run(f"{command} --out e.jsonl --workers 2") == 0
    out = capsys.readouterr().out
    assert out.splitlines()[0].split()[:5] == ["agent", "episodes", "failed", "total", "95"]
    assert [line.split()[0] for line in out.splitlines()[1:3]] == ["workflow", "random"]
    assert "intent" in out
    loaded = le.load_trajectories("e.jsonl")
    assert len(loaded.trajectories) == 24
    assert all(trajectory.rewards is not None for trajectory in loaded.trajectories)
    assert run(f"{command} --json") == 0
    first, second = json.loads(capsys.readouterr().out)
    assert (first["agent"], second["episodes"], first["rubric"]) == ("workflow", 12, "single4")


@pytest.mark.row("R93")
def test_the_recorded_host_is_compared_on_what_it_answered(
    here: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run("evaluate --room snacks --agent recorded") == 0
    captured = capsys.readouterr()
    assert "52 comments without a recorded reply are left out" in captured.err
    assert "rubric black_box" in captured.out
    assert run("evaluate --room snacks --agent recorded --agent workflow --rubric black_box") == 0
    rows = capsys.readouterr().out.splitlines()[1:3]
    assert [row.split()[:2] for row in rows] == [["recorded", "6"], ["workflow", "6"]]
    room = small_room().model_copy(update={"room_id": "plain"})
    le.save_room(room, "plain.json")
    assert run("evaluate --room plain.json --agent recorded") == 2
    assert "none of the 3 comments has a recorded reply" in capsys.readouterr().err


def test_trajectories_are_scored_by_the_room_of_their_hash(
    here: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run("rollout --room snacks --agent scripted --episodes 4 --out s.jsonl") == 0
    assert run("score --in s.jsonl --rubric multi22 --out scored.jsonl") == 0
    captured = capsys.readouterr()
    assert "4 trajectories by multi22, 4 with a total" in captured.out
    assert captured.err == ""
    loaded = le.load_trajectories("scored.jsonl").trajectories
    assert {t.versions["rubric"] for t in loaded} == {"multi22"}
    assert all(t.reward is not None and t.reward > 0.5 for t in loaded)


def test_a_room_of_another_hash_is_told_and_gives_no_truth(
    here: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    le.save_room(le.load_room("snacks").model_copy(update={"title": "别的"}), "other.json")
    assert run("rollout --room other.json --agent scripted --episodes 2 --out o.jsonl") == 0
    assert run("score --in o.jsonl --out scored.jsonl") == 0
    captured = capsys.readouterr()
    assert "2 trajectories without truth: room `snacks` has content hash" in captured.err
    assert "2 no_truth" in captured.out
    assert run("score --in o.jsonl --out scored.jsonl --room other.json") == 0
    captured = capsys.readouterr()
    assert (captured.err, "no_truth" in captured.out) == ("", False)


def test_generated_rooms_are_made_again_from_their_names(
    here: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run("rollout --room generated:level=1 --agent scripted --episodes 2 --out g.jsonl") == 0
    assert run("score --in g.jsonl --out scored.jsonl") == 0
    captured = capsys.readouterr()
    assert (captured.err, "no_truth" in captured.out) == ("", False)


OWN_RUBRIC = """
from livestream_env.rewards import Rubric
from livestream_env.types import Score
polite = Rubric([lambda trajectory, room: Score("polite", 1.0, agent="replier")])
"""


def test_a_rubric_of_ones_own_is_named_by_module(
    here: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    Path("own_rubric.py").write_text(OWN_RUBRIC, encoding="utf-8")
    assert run("rollout --room snacks --agent random --episodes 2 --out r.jsonl") == 0
    assert run("score --in r.jsonl --out s.jsonl --rubric python:own_rubric:polite") == 0
    assert "polite" in capsys.readouterr().out
    assert run("score --in r.jsonl --out s.jsonl --rubric multi23") == 2
    assert "Did you mean `multi22`?" in capsys.readouterr().err
    assert run("score --in r.jsonl --out s.jsonl --rubric python:own_rubric:rude") == 2
    assert "has no rubric `rude`" in capsys.readouterr().err


JUDGED = """
import asyncio, json
from gateway_for_tests import Gateway, completion
from livestream_env.judges import ChatJudge
from livestream_env.rewards import Rubric

VERDICT = json.dumps({"claims": [], "reason": "ok", "score": 1})
judge = ChatJudge(Gateway(completion('{"ok": true}'), completion(VERDICT)).client())

async def patient(trajectory, room):
    await asyncio.sleep(0)
    return 0.25

judged = Rubric(
    [judge, patient, "rule"],
    weights={"replier": {"correctness": 0.5, "patient": 0.5}, "tool_caller": {"rule": 1.0}},
)
"""


@pytest.mark.row("R48", "R62")
def test_judges_and_async_hooks_score_in_evaluate_and_score(
    here: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    Path("judged_rubric.py").write_text(JUDGED, encoding="utf-8")
    played = "--room snacks --agent scripted --repeat 2 --episodes 3 --workers 2 --out e.jsonl"
    assert run(f"evaluate {played} --rubric python:judged_rubric:judged") == 0
    assert run("score --in e.jsonl --out s.jsonl --rubric python:judged_rubric:judged") == 0
    capsys.readouterr()
    for name in ("e.jsonl", "s.jsonl"):
        made = le.load_trajectories(name).trajectories
        assert len(made) == 6
        for trajectory in made:
            assert trajectory.rewards is not None
            assert trajectory.rewards.total("replier") == 0.375  # .5 * .5 + .5 * .25
            assert trajectory.rewards.total("tool_caller") == 1.0
            version = trajectory.versions["judge:correctness/zh"]
            assert version.startswith("judge-1 correctness/zh@1")
            assert f"[{version}]" in trajectory.rewards.scores[0].reason
    assert run("reward report --in s.jsonl") == 0
    lines = Path("s.jsonl").read_text(encoding="utf-8").splitlines()
    Path("s.jsonl").write_text(
        "\n".join([lines[0].replace("judge-1", "judge-2"), *lines[1:]]) + "\n", encoding="utf-8"
    )
    assert run("reward report --in s.jsonl") == 2
    assert "rewards of two versions cannot be compared" in capsys.readouterr().err
