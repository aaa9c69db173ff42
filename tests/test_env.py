"""The Gymnasium environment: its contract, its arguments, failures, vectors, threads, forks."""

from __future__ import annotations

import asyncio
import copy
import json
import math
import pickle
import random
import subprocess
import sys
import threading
import warnings
from collections.abc import Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import cloudpickle
import gymnasium as gym
import numpy as np
import pytest
from gymnasium.utils.env_checker import check_env
from gymnasium.wrappers import RecordEpisodeStatistics
from rooms_for_tests import SMALL, small_room

import livestream_env as le
from livestream_env.env import transcript
from livestream_env.errors import CommentNotFound, ResetNeeded, RoomNotFound, SandboxError
from livestream_env.room_files import find_rooms
from livestream_env.sandbox import LocalSandbox, Sandbox
from livestream_env.types import (
    FrozenDict,
    Observation,
    Rewards,
    RoomView,
    Score,
    ToolCall,
    ToolResult,
)
from livestream_env.words import safe

RULE = le.Action.call("get_reply_rule", intent="物流")
LOOK_UP = le.Action.call("search_faq", query="发货")
HERMES = '<tool_call>{"name": "search_faq", "arguments": {"query": "包邮吗"}}</tool_call>'


def small_env(**options: Any) -> le.LiveRoomEnv:
    return le.LiveRoomEnv(small_room(), embedder="lexical", **options)


def room_file(tmp_path: Path, **changes: Any) -> str:
    path = tmp_path / f"{changes.get('room_id', 'small')}.json"
    path.write_text(json.dumps({**SMALL, **changes}, ensure_ascii=False), encoding="utf-8")
    return str(path)


# --- the Gymnasium contract ------------------------------------------------------------------


def test_check_env_passes_with_warnings_as_errors() -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        check_env(gym.make("LiveRoom-v0", embedder="lexical").unwrapped)


def test_the_episode_of_the_readme_runs() -> None:
    env = gym.make("LiveRoom-v0", room="snacks", embedder="lexical")
    observation, info = env.reset(seed=7)
    assert [message.role for message in observation.messages] == ["system", "user"]
    assert len(observation.tools) == 8
    assert info["comment_ids"] == [comment.comment_id for comment in observation.comments]
    observation, reward, terminated, truncated, _ = env.step(HERMES)
    assert (reward, terminated, truncated) == (0.0, False, False)
    assert observation.messages[0].role == "tool"
    env.step(
        {
            "role": "assistant",
            "content": None,
            "tool_calls": [_openai("get_reply_rule", {"intent": "*"})],
        }
    )
    *_, terminated, truncated, info = env.step({"role": "assistant", "content": "好的"})
    assert (terminated, truncated, info["stop_reason"]) == (True, False, "replied")


def _openai(name: str, arguments: dict[str, Any]) -> dict[str, Any]:
    function = {"name": name, "arguments": json.dumps(arguments)}
    return {"id": "x1", "type": "function", "function": function}


def test_info_is_json() -> None:
    env = small_env()
    _, info = env.reset(seed=0)
    assert json.loads(json.dumps(info)) == info
    for action in (LOOK_UP, RULE, "好的"):
        *_, info = env.step(action)
        assert json.loads(json.dumps(info)) == info


@pytest.mark.row("R75")
def test_info_counts_calls_attempted_parsed_executed_and_over_the_limit() -> None:
    env = small_env(max_same_tool=2)
    env.reset(seed=0)
    bad = '<tool_call>{"name": "search_faq",}</tool_call>'
    env.step(HERMES * 2 + bad + HERMES)
    *_, info = env.step(le.Action.calls(("no_tool", {}), ("search_script", {"query": "腰果"})))
    assert info["calls"] == {"attempted": 6, "parsed": 5, "executed": 3, "over_limit": 1}
    assert env.fork().episode.calls_executed == 3


def test_the_spec_survives_json() -> None:
    env = gym.make("LiveRoom-v0", room="snacks", comment=["c02", "c10"], max_turns=5, language="en")
    again = gym.make(gym.envs.registration.EnvSpec.from_json(env.spec.to_json()))
    first, second = env.reset(seed=1)[0], again.reset(seed=1)[0]
    assert first == second
    assert gym.make(env.spec).reset(seed=1)[0] == first


def test_the_defaults_are_the_documented_ones() -> None:
    env = gym.make(
        "LiveRoom-v0",
        sandbox="local",
        language=None,
        max_turns=8,
        max_same_tool=2,
        on_missing_rule="end",
        on_env_error="raise",
        embedder="use-multilingual",
        rubric=None,
        process=False,
        prompt=None,
        result_format=None,
        tools=None,
        sandbox_options=None,
        episode_timeout_s=None,
    )
    assert env.reset(seed=3)[0] == gym.make("LiveRoom-v0").reset(seed=3)[0]


def test_a_step_before_reset_and_after_the_end_says_to_reset() -> None:
    env = gym.make("LiveRoom-v0", embedder="lexical")
    with pytest.raises(gym.error.ResetNeeded):
        env.step("x")
    bare = small_env()
    for call in (lambda: bare.step("x"), lambda: bare.trajectory, bare.fork, lambda: bare.sandbox):
        with pytest.raises(ResetNeeded, match="reset"):
            call()
    bare.reset(seed=0)
    bare.step("好的")
    with pytest.raises(ResetNeeded, match="reset"):
        bare.step("好的")
    bare.reset(seed=0)
    bare.step("好的")


def test_a_reset_in_mid_episode_starts_afresh() -> None:
    env = small_env()
    first, _ = env.reset(seed=0)
    env.step(le.Action.call("move_product", link_no=3, position=1))
    again, _ = env.reset(seed=0)
    assert again == first
    assert env.episode.state.product_order == ("p1", "p2", "p3")


def test_closing_twice_is_fine() -> None:
    env = small_env()
    env.close()
    env.reset(seed=0)
    env.close()
    env.close()
    env.reset(seed=0)


def test_no_global_random_state_is_touched() -> None:
    before, legacy = random.getstate(), np.random.get_state()[1].copy()
    env = small_env()
    env.reset(seed=0)
    env.reset()
    env.action_space.sample()
    assert random.getstate() == before
    assert (np.random.get_state()[1] == legacy).all()


def test_seeds_decide_the_sequence_of_episodes() -> None:
    def sequence() -> list[Any]:
        env = small_env()
        infos = [env.reset(seed=5)[1], *(env.reset()[1] for _ in range(6))]
        return [(info["seed"], info["comment_ids"]) for info in infos]

    assert sequence() == sequence()
    assert len({tuple(ids) for _, ids in sequence()}) > 1


G2 = """
import livestream_env as le
env = le.LiveRoomEnv("bundled:train", embedder="lexical")
ids = [env.reset(seed=1)[1]] + [env.reset()[1] for _ in range(3)]
texts = [m.content for m in env.step(le.Action.call("search_faq", query="发货"))[0].messages]
print([(i["room_id"], i["comment_ids"], i["seed"]) for i in ids], texts, env.episode.state_key)
"""


def test_two_processes_with_other_hash_seeds_agree() -> None:
    outputs = set()
    for hash_seed in ("0", "1"):
        environment = {"PYTHONHASHSEED": hash_seed, "PYTHONUTF8": "1", "TZ": f"UTC+{hash_seed}"}
        done = subprocess.run(
            [sys.executable, "-c", G2], capture_output=True, text=True, check=True, env=environment
        )
        outputs.add(done.stdout)
    assert len(outputs) == 1


def test_seeds_0_to_n_visit_every_comment_once_in_order() -> None:
    env = gym.make("LiveRoom-v0", room="bundled:train", embedder="lexical")
    tasks = le.list_tasks(split="train")
    seen = []
    for seed in range(len(tasks)):
        info = env.reset(seed=seed)[1]
        seen.append((info["room_id"], info["comment_ids"][0]))
    assert seen == [tuple(task) for task in tasks]
    assert env.reset(seed=len(tasks))[1]["comment_ids"] == [tasks[0].comment_id]


def test_zh_comes_before_en_then_room_id(tmp_path: Path) -> None:
    for room_id, language in (("b", "en"), ("a", "en"), ("z", "zh"), ("m", "zh")):
        room_file(tmp_path, room_id=room_id, language=language)
    env = le.LiveRoomEnv(str(tmp_path), embedder="lexical")
    assert [room.room_id for room in env.rooms] == ["m", "z", "a", "b"]
    globbed = le.LiveRoomEnv(str(tmp_path / "[ab].json"), embedder="lexical")
    assert [room.room_id for room in globbed.rooms] == ["a", "b"]


def test_options_override_room_and_comment(tmp_path: Path) -> None:
    env = gym.make("LiveRoom-v0", room="bundled:train", embedder="lexical")
    _, info = env.reset(seed=0, options={"room": "snacks", "comment": "c10"})
    assert (info["room_id"], info["comment_ids"]) == ("snacks", ["c10"])
    _, info = env.reset(seed=0, options={"room": room_file(tmp_path), "comment": ["c3", "c1"]})
    assert (info["room_id"], info["comment_ids"]) == ("small", ["c3", "c1"])
    with pytest.raises(ValueError, match="Did you mean `comment`"):
        env.reset(seed=0, options={"coment": "c1"})
    with pytest.raises(CommentNotFound, match="no comment `c999`"):
        env.reset(seed=0, options={"room": "snacks", "comment": "c999"})
    with pytest.raises(CommentNotFound, match="at least one"):
        env.reset(seed=0, options={"comment": []})


@pytest.mark.row("R8")
def test_an_episode_may_open_with_a_burst() -> None:
    env = small_env(comment="burst:2")
    assert env.reset(seed=0)[1]["comment_ids"] == ["c1", "c2"]
    assert env.reset(seed=1)[1]["comment_ids"] == ["c2", "c3"]
    assert env.reset(seed=2)[1]["comment_ids"] == ["c1", "c2"]
    listed = small_env(comment=["c1", "c3"])
    observation, _ = listed.reset(seed=0)
    assert [comment.comment_id for comment in observation.comments] == ["c1", "c3"]
    assert listed.episode.state.at_s == 60


def test_generated_rooms_have_no_end() -> None:
    text = "generated:level=2,language=zh,split=train,products=4,comments=5"
    env = gym.make("LiveRoom-v0", room=text, embedder="lexical")
    seen = [env.reset(seed=seed)[1] for seed in (0, 4, 5, 13, 5)]
    assert [info["comment_ids"] for info in seen] == [["c1"], ["c5"], ["c1"], ["c4"], ["c1"]]
    assert seen[0]["room_id"] == seen[1]["room_id"] != seen[2]["room_id"]
    assert seen[2] == seen[4]
    again = gym.make(gym.envs.registration.EnvSpec.from_json(env.spec.to_json()))
    assert again.reset(seed=13)[1] == seen[3]
    fixed = gym.make("LiveRoom-v0", room=text, comment="c2", embedder="lexical")
    infos = [fixed.reset(seed=seed)[1] for seed in range(2)]
    assert [info["comment_ids"] for info in infos] == [["c2"], ["c2"]]
    assert infos[0]["room_id"] != infos[1]["room_id"]
    burst = gym.make("LiveRoom-v0", room=text, comment="burst:3", embedder="lexical")
    assert burst.reset(seed=4)[1]["comment_ids"] == ["c3", "c4", "c5"]
    with pytest.raises(ValueError, match="Did you mean `level`"):
        gym.make("LiveRoom-v0", room="generated:levl=2")
    with pytest.raises(RoomNotFound, match="make_room"):
        find_rooms(text)


@pytest.mark.parametrize(
    ("options", "error", "message"),
    [
        ({"language": "fr"}, ValueError, "'zh', 'en'"),
        ({"on_missing_rule": "remined"}, ValueError, "Did you mean `remind`"),
        ({"on_env_error": "x"}, ValueError, "truncate"),
        ({"render_mode": "rgb_array"}, ValueError, "ansi"),
        ({"max_turns": 0}, ValueError, "whole number from 1"),
        ({"max_same_tool": True}, ValueError, "whole number from 1"),
        ({"rubric": 4}, TypeError, "callable"),
        ({"rubric": "singel4"}, ValueError, "Did you mean `single4`"),
        ({"process": True, "rubric": None}, ValueError, "rubric"),
        ({"comment": "c9"}, CommentNotFound, "no comment `c9`"),
        ({"comment": []}, CommentNotFound, "at least one"),
        ({"comment": "burst:x"}, ValueError, "burst:3"),
        ({"comment": "burst:4"}, CommentNotFound, "too few for 4"),
        ({"comment": 3}, TypeError, "list of ids"),
        ({"episode_timeout_s": "8"}, ValueError, "above 0"),
        ({"episode_timeout_s": -1}, ValueError, "above 0"),
        ({"tools": "search_faq"}, TypeError, "list of tool names"),
        ({"sandbox": 3}, TypeError, "`local`"),
        ({"sandbox": lambda room: None}, TypeError, "no `Sandbox`"),
        ({"sandbox": lambda room: None, "language": "en"}, ValueError, "no effect"),
        ({"tools": ["serch_faq"]}, ValueError, "Did you mean `search_faq`"),
        ({"sandbox": "lokal"}, ValueError, "local"),
        ({"embedder": "lexikal"}, ValueError, "lexical"),
        ({"prompt": "no/such/folder"}, ValueError, "system.j2"),
        ({"result_format": "no/such/file"}, ValueError, "no/such/file"),
    ],
)
def test_wrong_arguments_say_what_is_right(
    options: dict[str, Any], error: type[Exception], message: str
) -> None:
    with pytest.raises(error, match=message):
        le.LiveRoomEnv(small_room(), **{"embedder": "lexical", **options}).reset(seed=0)


@pytest.mark.parametrize(
    ("room", "message"),
    [
        ("snaks", "Did you mean `snacks`"),
        ("bundled:tset", "Did you mean `test`"),
        ("no/*.json", "matches no room"),
    ],
)
def test_a_missing_room_suggests_the_nearest(room: str, message: str) -> None:
    with pytest.raises(RoomNotFound, match=message):
        gym.make("LiveRoom-v0", room=room)


def test_a_room_without_comments_cannot_be_played() -> None:
    with pytest.raises(RoomNotFound, match="no comments"):
        le.LiveRoomEnv(small_room(comments=[]))


@pytest.mark.parametrize("action", [None, 3, b"x", ["x"], {"role": "user", "content": "x"}])
def test_a_wrong_type_says_what_step_takes(action: Any) -> None:
    env = small_env()
    env.reset(seed=0)
    with pytest.raises(TypeError, match=r"assistant|Action"):
        env.step(action)
    env.step("好的")


# --- nothing is shared -----------------------------------------------------------------------


def test_what_is_handed_out_does_not_change_later() -> None:
    env = small_env()
    first, info = env.reset(seed=0)
    kept = copy.deepcopy((first, info))
    for action in (LOOK_UP, RULE):
        env.step(action)
    assert (first, info) == kept


def test_changing_what_was_handed_out_changes_nothing() -> None:
    env = small_env()
    observation, info = env.reset(seed=0)
    info["tasks"]["c1"] = "x"
    info["comment_ids"].clear()
    with pytest.raises(TypeError, match="recorded value"):
        observation.tools[0].parameters["type"] = "x"
    with pytest.raises(TypeError, match="recorded value"):
        observation.tools[0].parameters["required"].append("x")
    arguments = {"query": "发货", "extra": {"deep": ["a"]}}
    message = {"role": "assistant", "tool_calls": [{"name": "search_faq", "arguments": arguments}]}
    *_, info = env.step(message)
    arguments["extra"]["deep"].append("b")  # type: ignore[index]
    assert env.trajectory.turns[0].action.message.tool_calls[0].arguments["extra"] == {
        "deep": ["a"]
    }
    assert info["tasks"] == {"c1": "pending"}


def test_an_actions_own_arguments_may_change_after_the_step() -> None:
    env = small_env()
    env.reset(seed=0)
    items: list[str] = ["物流"]
    env.step(le.Action.call("get_reply_rule", intent=items))
    items.append("尺码")
    assert env.trajectory.turns[0].action.message.tool_calls[0].arguments == {"intent": ["物流"]}


# --- pickling, forks -------------------------------------------------------------------------


@pytest.mark.parametrize("dumps", [pickle.dumps, cloudpickle.dumps])
def test_an_environment_pickles_before_and_within_an_episode(dumps: Any) -> None:
    env = small_env()
    assert pickle.loads(dumps(env)).reset(seed=0)[0] == env.reset(seed=0)[0]
    env.step(le.Action.call("move_product", link_no=3, position=1))
    twin = pickle.loads(dumps(env))
    for action in (LOOK_UP, RULE, "好的"):
        assert twin.step(action)[0] == env.step(action)[0]
    assert twin.trajectory.messages == env.trajectory.messages
    assert twin.episode.state == env.episode.state


def test_an_environment_copies_deeply() -> None:
    env = small_env()
    env.reset(seed=0)
    twin = copy.deepcopy(env)
    env.step(RULE)
    assert not twin.episode.turns
    twin.step(LOOK_UP)


@pytest.mark.row("R38")
def test_a_fork_goes_on_from_its_turn_with_its_own_state() -> None:
    env = small_env()
    env.reset(seed=0)
    for link in (2, 3):
        env.step(le.Action.call("move_product", link_no=link, position=1))
    fork = env.fork(at_turn=1)
    assert fork.episode.state.product_order == ("p2", "p1", "p3")
    fork.step(RULE)
    fork.step("好的")
    assert env.episode.state.product_order == ("p3", "p2", "p1")
    assert not env.episode.done
    assert fork.trajectory.turns[0] is env.trajectory.turns[0]
    assert env.trajectory.messages[:4] == fork.trajectory.messages[:4]


def test_a_fork_after_refused_and_wrong_calls_stands_right() -> None:
    env = small_env(max_same_tool=1)
    env.reset(seed=0)
    env.step(LOOK_UP)
    env.step(
        le.Action.calls(
            ("search_faq", {"query": "x"}),
            ("no_tool", {}),
            ("move_product", {"link_no": 2, "position": 1}),
        )
    )
    env.step(le.Action.call("move_product", link_no=3, position=1))
    assert env.trajectory.turns[2].results[0].error == "tool_limit"
    fork = env.fork(at_turn=2)
    assert fork.sandbox is not env.sandbox
    fork.step(le.Action.call("show_image", link_no=1, image="back"))
    assert fork.episode.state.product_order == ("p2", "p1", "p3")
    assert fork.episode.state.shown_image == ("p1", "back")


def test_resetting_a_fork_leaves_its_origin_alone() -> None:
    env = small_env()
    env.reset(seed=0)
    fork = env.fork()
    fork.reset(seed=2)
    assert env.episode.view.comments[0].comment_id == "c1"
    assert fork.episode.view.comments[0].comment_id == "c3"
    env.step(LOOK_UP)


# --- rewards ---------------------------------------------------------------------------------


def test_without_a_rubric_every_reward_is_zero() -> None:
    env = small_env(rubric=None)
    env.reset(seed=0)
    rewards = [env.step(action)[1] for action in (LOOK_UP, RULE, "好的")]
    assert rewards == [0.0, 0.0, 0.0]
    assert env.trajectory.rewards is None
    assert env.trajectory.turns[-1].reward is None


def test_a_rubric_scores_the_last_step() -> None:
    def rubric(trajectory: le.Trajectory, room: le.Room | None) -> Rewards:
        assert room is not None
        assert trajectory.stop_reason is not None
        return Rewards((Score("length", len(trajectory.reply or "") / 10, weight=2.0),))

    env = small_env(rubric=rubric)
    env.reset(seed=0)
    steps = [env.step(action) for action in (RULE, "好的呀")]
    assert [step[1] for step in steps] == [0.0, 0.6]
    assert steps[-1][4]["rewards"]["total"] == 0.6
    assert env.trajectory.reward == 0.6
    assert env.trajectory.turns[-1].reward == 0.6


def test_a_rubric_without_a_score_gives_nan_and_says_why() -> None:
    def rubric(trajectory: le.Trajectory, room: le.Room | None) -> Rewards:
        return Rewards((Score("judge", None, cause="judge_error", reason="no verdict"),))

    env = small_env(rubric=rubric)
    env.reset(seed=0)
    _, reward, *_, info = env.step("好的")
    assert math.isnan(reward)
    assert info["rewards"]["total"] is None
    assert info["rewards"]["scores"][0]["reason"] == "no verdict"
    assert env.trajectory.turns[-1].reward is None
    text = env.trajectory.model_dump_json()
    assert le.Trajectory.model_validate_json(text) == env.trajectory


def test_process_rewards_come_with_their_turn() -> None:
    def rubric(trajectory: le.Trajectory, room: le.Room | None) -> Rewards:
        turns = [Score("step", 0.5, turn=i) for i in range(len(trajectory.turns))]
        done = trajectory.stop_reason is not None
        return Rewards((*turns, *((Score("end", 1.0),) if done else ())))

    env = small_env(rubric=rubric, process=True)
    env.reset(seed=0)
    assert [env.step(action)[1] for action in (LOOK_UP, RULE, "好的")] == [0.5, 0.5, 1.5]
    assert [turn.reward for turn in env.trajectory.turns] == [0.5, 0.5, 1.5]


# --- failures --------------------------------------------------------------------------------


class Failing:
    """A sandbox around a local one whose calls or resets fail from a number on."""

    def __init__(
        self, room: le.Room, *, calls: int = 10**9, error: Exception | None = None
    ) -> None:
        self.inner = LocalSandbox(room, embedder="lexical")
        self.specs = self.inner.specs
        self.calls = calls
        self.resets = calls >= 0
        self.error = error or SandboxError("the server is down")

    def reset(self, *, seed: int, comments: Sequence[str]) -> RoomView:
        if not self.resets:
            raise self.error
        return self.inner.reset(seed=seed, comments=comments)

    def call(self, call: ToolCall) -> ToolResult:
        self.calls -= 1
        if self.calls < 0:
            raise self.error
        return self.inner.call(call)

    def fork(self, at_call: int | None = None) -> Sandbox:
        return self.inner.fork(at_call)

    def log(self) -> Sequence[Any]:
        return ()

    def close(self) -> None:
        self.inner.close()


def failing_env(calls: int, error: Exception | None = None, **options: Any) -> le.LiveRoomEnv:
    return le.LiveRoomEnv(
        small_room(), sandbox=lambda room: Failing(room, calls=calls, error=error), **options
    )


class StaysOpen(Failing):
    def close(self) -> None:
        raise OSError("no answer")


def test_a_sandbox_that_fails_to_close_costs_no_episode() -> None:
    env = le.LiveRoomEnv(small_room(), sandbox=lambda room: StaysOpen(room, calls=9))
    for close in (env.close, lambda: asyncio.run(env.aclose())):
        played = le.rollout(env, le.ScriptedAgent, seed=0)
        with pytest.warns(RuntimeWarning, match="failed to close.*no answer"):
            close()
        assert played.reward is not None


@pytest.mark.parametrize("error", [SandboxError("down"), TimeoutError("late"), KeyError("bug")])
def test_infrastructure_raises_and_marks_the_trajectory(error: Exception) -> None:
    env = failing_env(1, error)
    env.reset(seed=0)
    env.step(LOOK_UP)
    with pytest.raises(SandboxError):
        env.step(RULE)
    trajectory = env.trajectory
    assert (trajectory.status, trajectory.stop_reason) == ("env_error", "env_error")
    assert str(error).strip("'") in trajectory.faults[0].detail
    assert len(trajectory.turns) == 2
    assert trajectory.turns[-1].results == ()
    env.reset(seed=0)


def test_infrastructure_truncates_where_asked() -> None:
    env = failing_env(0, on_env_error="truncate")
    env.reset(seed=0)
    observation, reward, terminated, truncated, info = env.step(LOOK_UP)
    assert (observation.messages, terminated, truncated) == ((), False, True)
    assert np.isnan(reward)
    assert info["status"] == "env_error"


def test_a_failed_reset_raises_and_the_next_may_succeed() -> None:
    env = failing_env(-1)
    with pytest.raises(SandboxError, match="server is down"):
        env.reset(seed=0)
    env = failing_env(-1, TimeoutError("late"))
    with pytest.raises(SandboxError, match="late"):
        env.reset(seed=0)


@pytest.fixture
def now_s(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    """Return the time that environments read, to be set."""
    made = [100.0]
    monkeypatch.setattr("livestream_env.env.time", SimpleNamespace(monotonic=lambda: made[0]))
    return made


def test_a_passed_deadline_aborts(now_s: list[float]) -> None:
    env = small_env(episode_timeout_s=0.05)
    env.reset(seed=0)
    env.step(LOOK_UP)
    now_s[0] += 0.06
    *_, terminated, truncated, info = env.step(RULE)
    assert (terminated, truncated) == (False, True)
    assert (info["stop_reason"], info["status"]) == ("aborted", "env_error")
    assert "0.05" in env.trajectory.faults[0].detail
    env.reset(seed=0)
    env.step(LOOK_UP)


def test_sandboxes_of_every_form_play_one_transcript() -> None:
    room = small_room()
    forms: list[Any] = [
        "local",
        LocalSandbox(room, embedder="lexical"),
        lambda room: LocalSandbox(room, embedder="lexical", memory=False),
    ]
    played = set()
    for form in forms:
        env = le.LiveRoomEnv(room, sandbox=form, embedder="lexical")
        env.reset(seed=0)
        for action in (
            LOOK_UP,
            le.Action.call("move_product", link_no=2, position=1),
            RULE,
            "好的",
        ):
            env.step(action)
        played.add(repr(env.trajectory.messages))
    assert len(played) == 1


@pytest.mark.parametrize(
    "result",
    [None, {"content": "{}"}, ToolResult("other", "{}"), ToolResult("call_0_0", None)],  # type: ignore[arg-type]
)
def test_what_is_no_result_of_the_call_is_infrastructures_failure(result: Any) -> None:
    class Wrong(Failing):
        def call(self, call: ToolCall) -> ToolResult:
            return result

    env = le.LiveRoomEnv(small_room(), sandbox=Wrong, on_env_error="truncate")
    env.reset(seed=0)
    *_, truncated, info = env.step(LOOK_UP)
    assert (truncated, info["status"]) == (True, "env_error")
    env.reset(seed=0)


@pytest.mark.parametrize("where", ["prompt", "result_format"])
def test_lone_surrogates_of_a_users_texts_are_replaced(where: str) -> None:
    given: dict[str, Any] = {
        "prompt": lambda view, tools, /, *, max_same_tool: [le.Message("user", "\ud800x")],
        "result_format": lambda call, result: "\ud800x",
    }
    env = le.LiveRoomEnv("snacks", embedder="lexical", **{where: given[where]})
    env.reset(seed=0)
    env.step(le.Action.call("search_faq", query="x"))
    told = env.trajectory.messages[0 if where == "prompt" else -1]
    assert told.content == "\ufffdx"
    assert le.Trajectory.model_validate_json(env.trajectory.model_dump_json()) == env.trajectory


@pytest.mark.parametrize("form", [lambda call, result: None, lambda call, result: 1 / 0])
def test_a_result_format_that_fails_ends_the_episode(form: Any) -> None:
    env = small_env(result_format=form)
    env.reset(seed=0)
    with pytest.raises((ZeroDivisionError, ValueError)):
        env.step(LOOK_UP)
    assert env.trajectory.stop_reason == "aborted"
    with pytest.raises(ResetNeeded):
        env.step(LOOK_UP)


def test_a_sandbox_of_another_room_is_refused() -> None:
    other = LocalSandbox(small_room(title="别家"), embedder="lexical")
    env = le.LiveRoomEnv(small_room(), sandbox=other)
    with pytest.raises(le.RoomMismatch, match="the same room"):
        env.reset(seed=0)


def test_a_sandbox_that_was_given_stays_open() -> None:
    given = LocalSandbox(small_room(), embedder="lexical", tools=["search_faq"])
    env = le.LiveRoomEnv(small_room(), sandbox=given)
    assert [spec.name for spec in env.action_space.specs] == ["search_faq"]  # type: ignore[attr-defined]
    env.reset(seed=0)
    env.close()
    given.call(ToolCall("x", "search_faq", FrozenDict(query="发货")))


@pytest.mark.parametrize("how", ["truncate", "timeout"])
def test_failed_episodes_are_not_scored(how: str) -> None:
    def rubric(trajectory: le.Trajectory, room: le.Room | None) -> Rewards:
        return Rewards((Score("always", 5.0),))

    if how == "truncate":
        env = failing_env(0, on_env_error="truncate", rubric=rubric)
    else:
        env = small_env(episode_timeout_s=1e-6, rubric=rubric)
    env.reset(seed=0)
    _, reward, *_ = env.step(LOOK_UP)
    assert math.isnan(reward)
    assert env.trajectory.rewards is None
    assert env.trajectory.turns[-1].reward is None


def test_a_fork_has_a_time_limit_of_its_own(now_s: list[float]) -> None:
    env = small_env(episode_timeout_s=10.0)
    env.reset(seed=0)
    env.step(LOOK_UP)
    now_s[0] += 11
    fork = env.fork()
    *_, truncated, _ = fork.step(RULE)
    assert not truncated
    now_s[0] += 11
    assert fork.step(RULE)[3]


@pytest.mark.parametrize("returned", [1.0, None, [Score("x", 1.0)]])
def test_a_rubric_that_returns_something_else_is_told_what_to_return(returned: Any) -> None:
    env = small_env(rubric=lambda trajectory, room: returned)
    env.reset(seed=0)
    with pytest.raises(TypeError, match="it returns `Rewards`"):
        env.step("好的")


def test_embedders_of_one_class_do_not_share_an_index() -> None:
    class Constant:
        floor = -1.0

        def __init__(self, turned: bool) -> None:
            self.turned = turned

        def embed(self, texts: Sequence[str]) -> Any:
            rows = [[1.0, 0.0] if ("退货" in t) is not self.turned else [0.0, 1.0] for t in texts]
            return np.array(rows, np.float32)

    found = []
    for turned in (False, True):
        sandbox = LocalSandbox(small_room(), embedder=Constant(turned))
        sandbox.reset(seed=0, comments=["c1"])
        found.append(sandbox.index)
    assert found[0] is not found[1]


# --- wrappers, vectors, threads --------------------------------------------------------------


@pytest.mark.parametrize("mode", ["sync", "async"])
def test_vector_environments_give_real_observations(mode: Any) -> None:
    options = {} if mode == "sync" else {"context": "spawn", "shared_memory": False}
    envs = gym.make_vec(
        "livestream_env:LiveRoom-v0",
        num_envs=2,
        vectorization_mode=mode,
        vector_kwargs=options,
        embedder="lexical",
    )
    try:
        first, _ = envs.reset(seed=3)
        assert first[0] != first[1]
        second, *_ = envs.step([HERMES, HERMES])
        assert [o.messages[0].role for o in second] == ["tool", "tool"]
        assert all(isinstance(one, Observation) for one in (*first, *second))
    finally:
        envs.close()


def test_sync_and_async_vectors_agree() -> None:
    seen = []
    for mode, options in (("sync", {}), ("async", {"shared_memory": False, "context": "spawn"})):
        envs = gym.make_vec(
            "livestream_env:LiveRoom-v0",
            num_envs=2,
            vectorization_mode=mode,  # type: ignore[arg-type]
            vector_kwargs=options,
            embedder="lexical",
        )
        steps: list[Any] = [envs.reset(seed=11)[0]]
        for action in (HERMES, "好的", HERMES, "好的", HERMES):
            observations, rewards, terminated, truncated, _ = envs.step([action, action])
            steps.append((observations, list(rewards), list(terminated), list(truncated)))
        envs.close()
        seen.append(steps)
    assert seen[0] == seen[1]


def test_shared_memory_is_refused_rather_than_repeating_a_constant() -> None:
    with pytest.raises(ValueError, match="shared_memory"):
        gym.make_vec(
            "livestream_env:LiveRoom-v0",
            num_envs=2,
            vectorization_mode="async",
            vector_kwargs={"context": "spawn"},
            embedder="lexical",
        )


def test_episode_statistics_count_a_reward_once() -> None:
    def rubric(trajectory: le.Trajectory, room: le.Room | None) -> Rewards:
        return Rewards((Score("one", 1.0),))

    env = RecordEpisodeStatistics(
        gym.make("LiveRoom-v0", room=small_room(), embedder="lexical", rubric=rubric)
    )
    env.reset(seed=0)
    env.step(LOOK_UP)
    *_, info = env.step("好的")
    assert (info["episode"]["r"], info["episode"]["l"]) == (1.0, 2)


def test_a_time_limit_truncates_beside_our_own_limit() -> None:
    env = gym.make("LiveRoom-v0", room=small_room(), embedder="lexical", max_episode_steps=2)
    env.reset(seed=0)
    env.step(LOOK_UP)
    *_, terminated, truncated, _ = env.step(RULE)
    assert (terminated, truncated) == (False, True)


@pytest.mark.row("R39")
def test_64_threads_play_1280_episodes_like_the_serial_run() -> None:
    def play(seed: int) -> str:
        env = gym.make("LiveRoom-v0", room="bundled:train", embedder="lexical")
        agent = le.RandomAgent(seed=1)
        return repr(le.rollout(env, agent, seed=seed).messages)

    serial = [play(seed) for seed in range(160)]
    found: dict[int, list[str]] = {}

    def work(thread: int) -> None:
        found[thread] = [play((thread * 20 + i) % 160) for i in range(20)]

    threads = [threading.Thread(target=work, args=(n,)) for n in range(64)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(found) == 64
    for thread_number, texts in found.items():
        for i, text in enumerate(texts):
            assert text == serial[(thread_number * 20 + i) % 160]


@pytest.mark.row("R39")
def test_the_index_of_a_room_is_built_once_for_all_sandboxes() -> None:
    sandboxes = [LocalSandbox(small_room(), embedder="lexical") for _ in range(8)]
    found: list[Any] = [None] * 8

    def work(i: int) -> None:
        sandboxes[i].reset(seed=0, comments=["c1"])
        found[i] = sandboxes[i].index

    threads = [threading.Thread(target=work, args=(i,)) for i in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len({id(index) for index in found}) == 1
    relabelled = small_room(comments=[{**c, "same_as": None} for c in SMALL["comments"]])
    assert LocalSandbox(relabelled, embedder="lexical").index is found[0]


FORK = """
import os, signal, threading, warnings
import livestream_env as le
warnings.simplefilter("ignore")
room = le.load_room("snacks")
stop = False

def play(number):
    while not stop:
        number += 10
        own = room.model_copy(update={"title": str(number)})
        env = le.LiveRoomEnv(own, embedder="lexical")
        env.reset(seed=number)
        env.step(le.Action.call("search_faq", query=str(number)))

first = le.LiveRoomEnv(room, embedder="lexical")  # what is imported on first use is imported
first.reset(seed=0)
first.step(le.Action.call("search_faq", query="first"))
threads = [threading.Thread(target=play, args=(k,), daemon=True) for k in range(3)]
for thread in threads:
    thread.start()
for child in range(4):
    pid = os.fork()
    if pid == 0:
        signal.alarm(20)
        env = le.LiveRoomEnv(room.model_copy(update={"title": f"child{child}"}), embedder="lexical")
        env.reset(seed=0)
        env.step(le.Action.call("search_faq", query="fork"))
        os._exit(0)
    assert os.waitpid(pid, 0)[1] == 0
stop = True
"""


def test_a_child_forked_while_threads_play_does_not_hang() -> None:
    subprocess.run([sys.executable, "-c", FORK], check=True, timeout=120)


# --- rendering -------------------------------------------------------------------------------


def test_ansi_rendering_is_the_transcript() -> None:
    env = small_env(render_mode="ansi")
    assert env.render() == ""
    env.reset(seed=0)
    for action in (LOOK_UP, HERMES.replace("search_faq", "nothing"), RULE, "好的"):
        env.step(action)
    text = env.render()
    assert isinstance(text, str)
    for part in (
        "小王: 啥时候寄",
        "search_faq(query='发货')",
        "48小时",
        "! tool_error",
        "> 好的",
        "[replied]",
    ):
        assert part in text
    assert transcript(env.trajectory).endswith("[replied]\n")


def test_human_rendering_prints_what_is_new(capsys: pytest.CaptureFixture[str]) -> None:
    env = small_env(render_mode="human")
    env.reset(seed=0)
    first = capsys.readouterr().out
    env.step(LOOK_UP)
    second = capsys.readouterr().out
    assert "小王" in first
    assert "小王" not in second
    assert "search_faq" in second
    env.render()
    assert capsys.readouterr().out == ""


@pytest.mark.parametrize("encoding", ["ascii", "gbk"])
def test_a_terminal_that_cannot_show_a_character_shows_its_escape(encoding: str) -> None:
    code = (
        "import livestream_env as le;"
        "env = le.LiveRoomEnv('snacks', embedder='lexical', render_mode='human');"
        "env.reset(seed=0); env.step('好的😊')"
    )
    environment = {"PYTHONIOENCODING": encoding, "PATH": ""}
    subprocess.run([sys.executable, "-c", code], check=True, env=environment, capture_output=True)


def test_control_characters_do_not_reach_the_terminal() -> None:
    assert safe("a\x1b[31mb\u2028c\x00\u202e") == "a\\x1b[31mb\\u2028c\\x00\\u202e"
    assert safe("正常 文字 😊") == "正常 文字 😊"
    hostile = {"comment_id": "c1", "viewer": "\x1b[2J", "at_s": 1, "text": "\x07hi\r\nroot#"}
    env = le.LiveRoomEnv(small_room(comments=[hostile]), embedder="lexical", render_mode="ansi")
    env.reset(seed=0)
    env.step("\x1b]0;title\x07")
    text = env.render()
    assert text is not None
    assert not {c for c in text if ord(c) < 32} - {"\n"}
