"""What a reward is worth: separation inside groups, collapse, single faults, exploits."""

from __future__ import annotations

import json
from collections.abc import Sequence
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from rooms_for_tests import small_room

import livestream_env as le
from livestream_env import cli
from livestream_env.diagnostics import probe, probes, reward_report, try_hacks
from livestream_env.errors import MixedVersions
from livestream_env.evaluation import Evaluation, evaluate
from livestream_env.exploits import EXPLOITS, hack_agents
from livestream_env.measures import correlation, order, spread
from livestream_env.mutants import PROBES, SORRY, Probed, with_reply, wrong_number
from livestream_env.rewards import PRESETS, Rubric
from livestream_env.types import (
    Action,
    Message,
    Rewards,
    Score,
    Status,
    StopReason,
    Trajectory,
    Turn,
)


def scored(
    comment: str, *scores: Score, reply: str = "", status: Status = Status.OK, **versions: str
) -> Trajectory:
    return Trajectory(
        room_id="room",
        content_hash="0",
        comment_ids=(comment,),
        seed=0,
        prompts={"host": (Message("system", "你是主播"), Message("user", "多少钱"))},
        tools={},
        turns=(Turn("host", Action.reply(reply)),) if reply else (),
        status=status,
        stop_reason=StopReason.REPLIED,
        rewards=Rewards(scores) if scores else None,
        versions=versions,
    )


def one(comment: str, value: float | None, **cause: Any) -> Trajectory:
    return scored(comment, Score("x", value, agent="replier", **cause))


def rows(values: Sequence[float], groups: Sequence[Any]) -> list[Trajectory]:
    return [one(str(g), float(v)) for v, g in zip(values, groups, strict=True)]


# --- separation -------------------------------------------------------------------------------


@pytest.mark.row("R46")
def test_a_random_reward_separates_nothing_and_a_perfect_one_everything() -> None:
    rng = np.random.default_rng(0)
    labels = (rng.random(8000) < 0.5).astype(float)
    groups = np.arange(8000) // 8
    stream = reward_report(rows(rng.random(8000), groups), labels.tolist()).stream("x")
    assert stream.everywhere.auc == pytest.approx(0.5, abs=0.02)
    assert stream.inside.auc == pytest.approx(0.5, abs=0.02)
    stream = reward_report(rows(labels, groups), labels.tolist()).stream("x")
    assert (stream.everywhere.auc, stream.inside.auc, stream.inside.accuracy) == (1, 1, 1)


@pytest.mark.row("R95")
def test_a_reward_that_is_difficulty_separates_comments_and_no_replies() -> None:
    rng = np.random.default_rng(0)
    groups = np.arange(4000) // 4
    chance = np.where(groups % 2, 0.95, 0.05)  # an easy comment, a hard one, ...
    labels = (rng.random(4000) < chance).astype(float)
    report = reward_report(rows(chance, groups), labels.tolist())
    stream = report.stream("x")
    assert stream.everywhere.auc is not None
    assert stream.everywhere.auc > 0.9
    assert stream.inside.auc == 0.5
    assert stream.inside.accuracy == 0.0  # ties are not right
    assert stream.zero_variance == 1.0
    assert stream.spread.within_share == pytest.approx(0.0)
    assert any("tells comments apart, not replies" in said for said in report.warnings)


@pytest.mark.row("R95")
def test_pairs_are_counted_inside_groups_by_hand() -> None:
    # group a: good .9, bad .1 and .9; group b: good .2, bad .3
    values, labels = [0.9, 0.1, 0.9, 0.2, 0.3], [1.0, 0, 0, 1, 0]
    inside = order(values, labels, list("aaabb"))
    assert inside == (1, 1, 3)  # right, tied, pairs
    assert (inside.auc, inside.accuracy) == (pytest.approx(0.5), pytest.approx(1 / 3))
    everywhere = order(values, labels)
    assert everywhere == (3, 1, 6)  # .9 beats .1 and .3 and ties .9; .2 beats .1
    assert order([1, 2, 3], [0, 1, 2]) == (3, 0, 3)  # graded labels
    assert order([1.0], [1.0]).auc is None
    assert order([], []).pairs == 0


@pytest.mark.row("R95")
def test_variance_is_split_into_that_inside_and_that_between_groups() -> None:
    # means .5 and .75, each value .25 off: within .0625; means .125 off .625: between .015625
    split = spread([0.25, 0.75, 0.5, 1.0], list("aabb"))
    assert split == pytest.approx((0.0625, 0.015625))
    assert split.within_share == pytest.approx(0.8)
    assert spread([1, 1], list("ab")).within_share is None


@pytest.mark.row("R46")
def test_saturation_flat_groups_and_missing_scores_are_counted() -> None:
    trajectories = [
        *(one("a", value) for value in (1.0, 1.0 + 1e-9)),  # flat but for the noise of floats
        *(one("b", value) for value in (0.0, 1.0)),
        one("c", 0.5),
        one("d", None, cause="judge_error"),
        one("d", None, cause="no_truth"),
        scored("e", Score("x", 0.0, agent="replier"), status=Status.ENV_ERROR),
        scored("e"),
    ]
    report = reward_report(trajectories)
    assert (report.trajectories, report.failed) == (9, 2)
    stream = report.stream("x")
    assert (stream.count, stream.groups, stream.zero_variance) == (5, 2, 0.5)
    assert (stream.at_zero, stream.at_one) == (pytest.approx(0.2), pytest.approx(0.6))
    assert stream.missing == {"judge_error": 1, "no_truth": 1}
    assert stream.mean == pytest.approx(0.7)
    assert report.stream("replier").missing == {"judge_error": 1, "no_truth": 1}
    with pytest.raises(KeyError):
        report.stream("y")


def test_every_agent_and_hook_has_its_own_groups() -> None:
    made = [
        scored("a", Score("tool_use", 1.0, agent="tool_caller"), Score("help", v, agent="replier"))
        for v in (0.0, 1.0)
    ]
    report = reward_report(made)
    assert [s.name for s in report.streams] == [
        "total",
        "tool_caller",
        "replier",
        "tool_use",
        "help",
    ]
    assert report.stream("tool_caller").zero_variance == 1.0
    assert report.stream("replier").zero_variance == 0.0
    assert report.stream("total").mean == 0.75


def test_hooks_are_correlated_over_the_rows_that_both_know() -> None:
    assert correlation([1, 2, 3, None], [2, 4, 6, 0]) == pytest.approx(1.0)
    assert correlation([1, 2], [1, 1]) is None
    assert correlation([1, None], [None, 1]) is None
    x, y = [1, 1, 0, 1, 0, 0, 1, 0], [1, 1, 1, 0, 0, 0, 1, 0]
    assert correlation(x, y) == pytest.approx(0.5)  # FORMULAS, rubric rewards


def test_labels_fit_the_trajectories() -> None:
    with pytest.raises(ValueError, match="got 1 labels for 2 trajectories"):
        reward_report([one("a", 1.0), one("a", 0.0)], [1.0])
    report = reward_report([one("a", 1.0), one("a", 0.0), one("a", 0.5)], [1.0, 0.0, None])
    assert (report.labelled, report.stream("x").inside) == (2, (1, 0, 1))


@pytest.mark.row("R62")
def test_scores_of_two_versions_are_not_compared() -> None:
    score = Score("x", 1.0)
    made = [scored("a", score, rubric="single4"), scored("a", score, rubric="multi22")]
    with pytest.raises(MixedVersions, match=r"`rubric` is `single4` in some .* `multi22`"):
        reward_report(made)
    assert reward_report(made[:1]).versions == {"rubric": "single4"}


# --- collapse ---------------------------------------------------------------------------------


def paid(correct: float, helpful: float, reply: str) -> Trajectory:
    return scored(
        "a",
        Score("correctness", correct, 0.6, "replier"),
        Score("helpfulness", helpful, 0.4, "replier"),
        reply=reply,
    )


@pytest.mark.row("R81")
def test_the_report_warns_where_saying_sorry_pays_as_well() -> None:
    right, wrong = paid(1, 1, "券后价59.9元"), paid(0, 0, "券后价69.9元")
    sorry = paid(1, 0, SORRY["zh"])
    report = reward_report([*[right] * 13, *[wrong] * 7, sorry])
    (even,) = report.break_evens
    assert (even.a, even.b, even.at) == (0.6, 0.4, pytest.approx(0.6))  # a / (a + b)
    assert even.p == pytest.approx(0.65)
    assert even.sorry == pytest.approx(0.6)
    assert report.abstain_rate == pytest.approx(1 / 21)
    assert even.is_near  # .65 < .6 + .1
    assert any("training may settle on saying sorry" in said for said in report.warnings)
    assert not reward_report([*[right] * 15, *[wrong] * 5]).break_evens[0].is_near
    dodging = reward_report([right, sorry, sorry])
    assert "67% of the replies say they cannot tell" in dodging.warnings


@cache
def answers() -> list[tuple[Trajectory, Trajectory, Trajectory]]:
    """Return (right, wrong, sorry) replies to ten comments, in one band of length."""
    room, made = le.load_room("snacks"), []
    for trajectory in evaluate(room, le.ScriptedAgent).trajectories:
        text = wrong_number(trajectory.reply or "", trajectory, room)
        values = {s.name: s.value for s in trajectory.rewards.scores}  # type: ignore[union-attr]
        if text is None or not 10 <= len(text) <= 40 or set(values.values()) != {1.0}:
            continue
        wrong = with_reply(trajectory, text)
        if values_of(PRESETS["single4"], wrong, room)["helpfulness"] == 0:
            made.append((trajectory, wrong, with_reply(trajectory, SORRY["zh"])))
    return made[:10]


def values_of(rubric: Rubric, trajectory: Trajectory, room: le.Room) -> dict[str, float | None]:
    return {score.name: score.value for score in rubric(trajectory, room).scores}


BREAK_EVEN = {
    "single4": 0.5,  # .5 / (.5 + .5)
    "multi22": 0.5,
    "multi40_60": 0.4,
    "dialogue": 0.625,  # length is paid with correctness: (.4 + .1) / (.4 + .1 + .3)
    "agent50_30_20": 0.0,  # the outcome is correct times helpful: sorry earns none of it
}


@pytest.mark.row("R81")
def test_hosts_cross_the_sorry_host_where_the_formula_says() -> None:
    room, tried = le.load_room("snacks"), answers()
    assert len(tried) == 10
    for name, expected in BREAK_EVEN.items():
        preset = PRESETS[name]
        rubric = Rubric(preset.hooks, weights=preset.weights)  # the gate is off
        agent = None if name == "agent50_30_20" else "replier"

        def pay(trajectory: Trajectory, rubric: Rubric = rubric, agent: Any = agent) -> float:
            total = rubric(trajectory, room).total(agent)
            assert total is not None
            return total

        def host(right: int, pay: Any = pay) -> float:
            return float(np.mean([pay(t[0] if i < right else t[1]) for i, t in enumerate(tried)]))

        sorry = float(np.mean([pay(t[2]) for t in tried]))
        low, middle, high = host(3), host(5), host(7)
        assert middle - low == pytest.approx(high - middle), name
        crossing = 0.3 + 0.4 * (sorry - low) / (high - low)
        # below 0 where the sorry reply also breaks the rule: trying pays at any p
        assert max(crossing, 0) == pytest.approx(expected, abs=1e-3), name
        wins = [host(n) > sorry + 1e-9 for n in (3, 5, 7)]
        assert wins == [p > expected + 1e-9 for p in (0.3, 0.5, 0.7)], name


@pytest.mark.row("R81")
def test_the_gate_of_the_presets_leaves_the_sorry_host_nothing() -> None:
    room = le.load_room("snacks")
    for name in ("single4", "multi22", "multi40_60", "dialogue"):
        for _, _, sorry in answers()[:3]:
            values = values_of(PRESETS[name], sorry, room)
            assert (values["correctness"], values["helpfulness"]) == (0, 0)


# --- probes -----------------------------------------------------------------------------------


@cache
def honest(name: str) -> Evaluation:
    """The scripted agent on every other comment of a bundled room."""
    room = le.load_room(name)
    return evaluate(room, le.ScriptedAgent, seeds=range(0, len(room.comments), 2))


@cache
def probed() -> tuple[dict[str, Probed], float]:
    """Each kind of fault in the good episodes of two rooms, and how often a pair is right."""
    rooms = ("apparel", "pets")
    pairs = [(t, le.load_room(name)) for name in rooms for t in honest(name).trajectories]
    lines, labelled = probe(pairs, PRESETS["single4"], good=0.8)
    report = reward_report([t for t, _ in labelled], [y for _, y in labelled])
    return {line.name: line for line in lines}, report.stream("total").inside.accuracy or 0.0


@pytest.mark.row("R46", "R81")
@pytest.mark.parametrize("kind", PROBES)
def test_every_single_fault_lowers_the_total(kind: str) -> None:
    found = probed()[0][kind]
    assert found.tried >= 3
    missed = [(mutant.room_id, mutant.comment_ids, mutant.reply) for mutant in found.missed]
    assert not missed
    assert found.share == 1.0


@pytest.mark.row("R95")
def test_good_episodes_and_their_mutants_are_told_apart_inside_groups() -> None:
    assert probed()[1] > 0.95


def test_mutants_differ_in_one_thing() -> None:
    room = le.load_room("snacks")
    env = le.LiveRoomEnv(room, comment="c03", rubric=None)
    good = le.rollout(env, le.ScriptedAgent(room), seed=0)
    assert good.reply == "亲，1号链接价格59.9元，1号链接券后价49.9元，以下单页为准"
    made = dict(probes(good, room))
    assert made["wrong_number"].reply == "亲，1号链接价格67.9元，1号链接券后价49.9元，以下单页为准"
    assert made["two_prices"].reply == (
        "亲，1号链接价格59.9元或者67.9元，1号链接券后价49.9元，以下单页为准"
    )
    assert made["added_promise"].reply == f"{good.reply}，保证全网最低价，终身免费退换"
    assert made["empty_reply"].reply == ""
    assert made["sorry"].reply == SORRY["zh"]
    assert "1号链接" not in (made["wrong_product"].reply or "")
    assert made["result_dump"].reply == good.turns[0].results[0].content
    assert "missing_look_up" not in made  # the prompt shows the product
    wrong_rule = made["wrong_rule"].turns[-2]
    assert wrong_rule.results[0].content == wrong_rule.messages[0].content
    assert wrong_rule.results[0].data != good.turns[-2].results[0].data
    assert all(mutant.rewards is None for mutant in made.values())
    assert all(Trajectory.model_validate_json(m.model_dump_json()) == m for m in made.values())


def test_a_missing_look_up_takes_its_call_and_its_result_along() -> None:
    room = le.load_room("snacks")
    env = le.LiveRoomEnv(room, comment="c17", rubric=None)
    good = le.rollout(env, le.ScriptedAgent(room), seed=0)
    mutant = dict(probes(good, room))["missing_look_up"]
    assert good.turns[0].action.message.tool_calls[0].name == "search_faq"
    assert mutant.turns == good.turns[1:]
    assert mutant.reply == good.reply


def test_an_episode_without_a_reply_has_no_mutants() -> None:
    env = le.LiveRoomEnv(small_room(), comment="c1", embedder="lexical", max_turns=1, rubric=None)
    env.reset(seed=0)
    env.step(Action.call("search_faq", query="发货"))
    assert probes(env.trajectory, env.room) == []


# --- exploits ---------------------------------------------------------------------------------


@pytest.mark.row("R81")
@pytest.mark.parametrize("preset", PRESETS)
def test_no_exploit_earns_what_the_honest_agent_does(preset: str) -> None:
    hacked = try_hacks([le.load_room("snacks")], preset, seeds=range(0, 58, 5))
    earned = {one.name: one.evaluation.mean() for one in hacked}
    honest = hacked[0].honest.mean()
    assert honest is not None
    near = {name: mean for name, mean in earned.items() if mean is None or mean > honest - 0.05}
    assert not near, f"honest {honest}"
    assert all(one.is_below for one in hacked)
    assert earned["sorry_only"] is not None
    assert earned["sorry_only"] <= 0.5
    assert set(earned) == set(EXPLOITS)


@pytest.mark.row("R81")
def test_a_host_that_says_sorry_is_flagged() -> None:
    room = le.load_room("snacks")
    agents = hack_agents(room)
    made = evaluate(room, agents["sorry"], seeds=range(0, 58, 6), name="sorry")
    assert made.abstain_rate == 1.0
    assert made.warnings == ["sorry dodges: 100% of its replies say they cannot tell"]
    good = evaluate(room, agents["honest"], seeds=range(0, 58, 6))
    assert good.abstain_rate is not None
    assert good.abstain_rate < 0.2


def test_exploits_keep_the_honest_calls_where_the_reply_is_the_trick() -> None:
    room = le.load_room("snacks")
    agents = hack_agents(room)
    env = le.LiveRoomEnv(room, comment="c03", rubric=None)
    played = {name: le.rollout(env, agent, seed=0) for name, agent in agents.items()}

    def calls(name: str) -> list[str]:
        return [c.name for t in played[name].turns for c in t.action.message.tool_calls]

    assert calls("honest") == ["search_product_by_keyword", "get_reply_rule"]
    for name in ("sorry", "begging", "padding", "empty", "result_dump", "copying_rules"):
        assert calls(name) == calls("honest"), name
    for name in ("right_guess", "guess", "sorry_only", "nothing"):
        assert calls(name) == [], name
    assert played["right_guess"].reply == played["honest"].reply
    assert calls("search_tenfold").count("search_product_by_keyword") == 11
    assert len(played["padding"].reply or "") == 3000
    assert played["farming"].stop_reason == "turn_limit"
    assert len(calls("every_tool")) == 9


# --- the command line -------------------------------------------------------------------------


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    return tmp_path


def run(command: str) -> int:
    return cli.main(command.split())


def write(path: str, trajectories: Sequence[Trajectory]) -> None:
    lines = [trajectory.model_dump_json() + "\n" for trajectory in trajectories]
    Path(path).write_text("".join(lines), encoding="utf-8")


@pytest.mark.row("R46")
def test_a_report_is_printed_with_labels(here: Path, capsys: pytest.CaptureFixture[str]) -> None:
    write("s.jsonl", [paid(1, 1, "券后价59.9元"), paid(0, 0, "券后价69.9元")])
    Path("labels.jsonl").write_text('{"label": 1}\n0\n', encoding="utf-8")
    assert run("reward report --in s.jsonl --labels labels.jsonl") == 0
    captured = capsys.readouterr()
    assert "AUC inside groups" in captured.out
    assert "answering pays from p = 0.600 on; p is 0.500" in captured.out
    assert "training may settle on saying sorry" in captured.err
    assert run("reward report --in s.jsonl --labels labels.jsonl --json") == 0
    summary = json.loads(capsys.readouterr().out)
    assert summary["streams"]["total"]["auc_inside"] == 1.0
    Path("labels.jsonl").write_text("[1]", encoding="utf-8")
    assert run("reward report --in s.jsonl --labels labels.jsonl") == 2
    assert "1 labels for 2 trajectories" in capsys.readouterr().err
    Path("labels.jsonl").write_text('[1, "good"]', encoding="utf-8")
    assert run("reward report --in s.jsonl --labels labels.jsonl") == 2
    assert "label 2 of `labels.jsonl` is 'good'" in capsys.readouterr().err


@pytest.mark.row("R62")
def test_a_report_on_mixed_versions_is_refused(
    here: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    score = Score("x", 1.0)
    write("s.jsonl", [scored("a", score, judge="m1"), scored("a", score, judge="m2")])
    assert run("reward report --in s.jsonl") == 2
    assert "rewards of two versions cannot be compared" in capsys.readouterr().err
    write("s.jsonl", [scored("a")])
    assert run("reward report --in s.jsonl") == 1


def test_a_file_of_good_episodes_is_probed(here: Path, capsys: pytest.CaptureFixture[str]) -> None:
    write("s.jsonl", honest("pets").trajectories[:8])
    assert run("reward probe --in s.jsonl --rubric multi22") == 0
    lines = capsys.readouterr().out.splitlines()
    assert [line.split()[0] for line in lines[1 : 1 + len(PROBES)]] == list(PROBES)
    assert "good episodes of 8" in lines[-1]
    write("s.jsonl", [scored("a")])
    assert run("reward probe --in s.jsonl") == 1


@pytest.mark.row("R81")
def test_exploits_are_played_and_1_if_one_pays(
    here: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run("reward hack --rubric multi22 --room snacks --episodes 3") == 0
    captured = capsys.readouterr()
    assert "not below the honest agent: none" in captured.out
    Path("kind_rubric.py").write_text(
        "from livestream_env.types import Rewards, Score\n"
        "def kind(trajectory, room): return Rewards((Score('kind', 1.0),))\n",
        encoding="utf-8",
    )
    assert run("reward hack --rubric python:kind_rubric:kind --room snacks --episodes 1") == 1
    assert "not below the honest agent: right_guess, guess" in capsys.readouterr().out
