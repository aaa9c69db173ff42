"""Recording and replay: the same world again, each question once, nothing of the key."""

from __future__ import annotations

import asyncio
import json
import os
import pickle
import re
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import fastjsonschema
import gymnasium as gym
import pytest
from rooms_for_tests import SMALL, small_room

import livestream_env as le
from livestream_env import cli, databases
from livestream_env._resources import data_file, resource_folder
from livestream_env.errors import ReplayMismatch, SandboxError, SandboxTimeout, SharedFileError
from livestream_env.sandbox import LocalSandbox, RecordingSandbox, ReplaySandbox, make_sandbox
from livestream_env.sandbox.recording_file import recording_file
from livestream_env.sandbox.recording_lines import recording_schema, state_digest
from livestream_env.sandbox.testing import SECRET, key_strings, with_secret
from livestream_env.types import RoomView, ToolCall, ToolResult, TurnEvent, freeze

LOOK_UP = le.Action.call("search_faq", query="发货")
RULE = le.Action.call("get_reply_rule", intent="物流")
MOVE = le.Action.call("move_product", link_no=2, position=1)


def call(name: str, **arguments: Any) -> ToolCall:
    return ToolCall("call_0_0", name, freeze(arguments))


class Counted:
    """A local sandbox that counts what reaches it, and can be slow or fail."""

    def __init__(self, room: le.Room, *, delay: Callable[[], None] = lambda: None) -> None:
        self.inner = LocalSandbox(room, embedder="lexical")
        self.specs = self.inner.specs
        self.delay = delay
        self.resets = 0
        self.calls: list[ToolCall] = []

    def reset(self, *, seed: int, comments: Sequence[str]) -> RoomView:
        self.resets += 1
        self.delay()
        return self.inner.reset(seed=seed, comments=comments)

    def call(self, call: ToolCall) -> ToolResult:
        self.calls.append(call)
        self.delay()
        return self.inner.call(call)

    def fork(self, at_call: int | None = None) -> Counted:
        forked = object.__new__(Counted)
        forked.__dict__.update(self.__dict__)
        forked.inner = self.inner.fork(at_call)
        return forked

    def log(self) -> Sequence[TurnEvent]:
        return ()

    def close(self) -> None:
        self.inner.close()


def recorded(file: Path, *actions: Any, comment: str = "c1", **room: Any) -> le.Trajectory:
    """Play an episode while it is recorded."""

    def make(room: le.Room) -> RecordingSandbox:
        return RecordingSandbox(LocalSandbox(room, embedder="lexical"), file)

    return played(le.LiveRoomEnv(small_room(**room), comment=comment, sandbox=make), *actions)


def played(env: le.LiveRoomEnv, *actions: Any, seed: int = 0) -> le.Trajectory:
    env.reset(seed=seed)
    for action in actions:
        env.step(action)
    return env.trajectory


def replayed(file: Path, *actions: Any, **options: Any) -> le.Trajectory:
    return played(le.LiveRoomEnv(sandbox=f"replay:{file}", **options), *actions)


# --- the same world again --------------------------------------------------------------------


@pytest.mark.row("R38")
def test_a_replay_gives_the_transcript_that_was_recorded(tmp_path: Path) -> None:
    actions = (LOOK_UP, MOVE, LOOK_UP, le.Action.call("nothing"), RULE, "四十八小时内发")
    live = recorded(tmp_path / "x.jsonl", *actions)
    room = small_room()
    with_room = replayed(tmp_path / "x.jsonl", *actions, room=room, comment="c1")
    alone = replayed(tmp_path / "x.jsonl", *actions)
    assert live.messages == with_room.messages == alone.messages
    assert live.state == with_room.state == alone.state
    assert live.reward == with_room.reward
    keys = [turn.state_key for turn in live.turns]
    assert keys == [turn.state_key for turn in alone.turns]


@pytest.mark.row("R38")
def test_every_bundled_agent_run_replays_byte_for_byte(tmp_path: Path) -> None:
    file = tmp_path / "snacks.jsonl"
    room = le.load_room("snacks")

    def make(room: le.Room) -> RecordingSandbox:
        return RecordingSandbox(LocalSandbox(room, embedder="lexical"), file)

    live = le.LiveRoomEnv(room, sandbox=make)
    again = le.LiveRoomEnv(room, sandbox=f"replay:{file}")
    for agent in (le.WorkflowAgent(), le.ScriptedAgent(room), le.RandomAgent()):
        for seed in range(0, live.tasks, 3):
            first = le.rollout(live, agent, seed=seed)
            second = le.rollout(again, agent, seed=seed)
            assert first.status == "ok"
            assert first.messages == second.messages
            assert first.rewards == second.rewards


def test_a_replay_does_not_depend_on_the_seed_or_the_call_ids(tmp_path: Path) -> None:
    recorded(tmp_path / "x.jsonl", LOOK_UP)
    sandbox = ReplaySandbox(tmp_path / "x.jsonl")
    sandbox.reset(seed=99, comments=["c1"])
    assert (
        sandbox.call(ToolCall("other", "search_faq", freeze({"query": "发货"}))).call_id == "other"
    )


def test_the_state_is_part_of_the_question(tmp_path: Path) -> None:
    recorded(tmp_path / "x.jsonl", LOOK_UP, MOVE)
    sandbox = ReplaySandbox(tmp_path / "x.jsonl")
    sandbox.reset(seed=0, comments=["c1"])
    sandbox.call(call("move_product", link_no=2, position=1))
    with pytest.raises(ReplayMismatch):
        sandbox.call(call("search_faq", query="发货"))


def test_states_that_are_equal_have_one_digest() -> None:
    state = le.State(20, "p1", ("p1", "p2"), extras=freeze({"b": 1, "a": 2}))
    same = le.State(20.0, "p1", ("p1", "p2"), extras=freeze({"a": 2, "b": 1}))
    assert state_digest(state) == state_digest(same)
    assert state_digest(state) != state_digest(le.State(20, "p1", ("p2", "p1")))


# --- without a room file ---------------------------------------------------------------------


def test_rooms_comments_and_seeds_enumerate_what_was_recorded(tmp_path: Path) -> None:
    file = tmp_path / "x.jsonl"
    for comment in ("c1", "c3"):
        recorded(file, LOOK_UP, comment=comment)
    recorded(file, LOOK_UP, comment="c1", room_id="other", title="另一家")
    env = gym.make("LiveRoom-v0", sandbox=f"replay:{file}")
    seen = [env.reset(seed=seed)[1] for seed in range(4)]
    visited = [(info["room_id"], *info["comment_ids"]) for info in seen]
    assert visited == [("small", "c1"), ("small", "c3"), ("other", "c1"), ("small", "c1")]
    assert env.unwrapped.tasks == 3
    assert env.unwrapped.room is None
    _, info = env.reset(seed=0, options={"room": "other", "comment": "c1"})
    assert info["room_id"] == "other"
    again = gym.make(gym.envs.registration.EnvSpec.from_json(env.spec.to_json()))
    assert again.reset(seed=1)[0] == env.reset(seed=1)[0]
    with pytest.raises(le.CommentNotFound, match="there are c1, c3"):
        le.LiveRoomEnv(sandbox=f"replay:{file}", comment="c2")


def test_without_a_room_hooks_that_need_the_key_say_no_truth(tmp_path: Path) -> None:
    recorded(tmp_path / "x.jsonl", RULE)
    trajectory = replayed(tmp_path / "x.jsonl", RULE, "好的")
    assert trajectory.rewards is not None
    causes = {score.name: score.cause for score in trajectory.rewards.scores}
    assert causes["helpfulness"] == causes["tool_use"] == "no_truth"
    assert trajectory.status == "ok"


def test_without_a_room_a_reply_that_asks_is_final(tmp_path: Path) -> None:
    asks = (le.Action.call("get_reply_rule", intent="尺码"), "请问您的身高体重是多少呢？")
    live = recorded(tmp_path / "x.jsonl", *asks, comment="c2")
    assert live.status == "running"
    assert replayed(tmp_path / "x.jsonl", *asks).stop_reason == "replied"
    with_room = replayed(tmp_path / "x.jsonl", *asks, room=small_room(), comment="c2")
    assert with_room.messages == live.messages


def test_a_burst_is_recorded_as_one_episode(tmp_path: Path) -> None:
    recorded(tmp_path / "x.jsonl", LOOK_UP, comment="burst:2")
    assert replayed(tmp_path / "x.jsonl", LOOK_UP).comment_ids == ("c1", "c2")


def test_wrong_uses_of_a_recording_are_told(tmp_path: Path) -> None:
    file = tmp_path / "x.jsonl"
    with pytest.raises(FileNotFoundError, match="no recording"):
        le.LiveRoomEnv(sandbox=f"replay:{file}")
    file.write_text("", encoding="utf-8")
    with pytest.raises(ValueError, match="holds no recorded episode"):
        le.LiveRoomEnv(sandbox=f"replay:{file}")
    recorded(file, LOOK_UP)
    with pytest.raises(ValueError, match="`language` has no effect on a recording"):
        le.LiveRoomEnv(sandbox=f"replay:{file}", language="en").reset(seed=0)
    with pytest.raises(ValueError, match=r"no `record:FILE\+local`"):
        make_sandbox("record:x.jsonl", small_room())
    with pytest.raises(ValueError, match="`mode` is 'some'"):
        RecordingSandbox(LocalSandbox(small_room()), file, mode="some")  # type: ignore[arg-type]


def test_a_recording_of_another_version_of_the_room_is_refused(tmp_path: Path) -> None:
    file = tmp_path / "x.jsonl"
    recorded(file, LOOK_UP)
    env = le.LiveRoomEnv(small_room(title="新店"), comment="c1", sandbox=f"replay:{file}")
    with pytest.raises(le.RoomMismatch, match="record it again"):
        env.reset(seed=0)


def test_comments_of_two_rooms_need_the_rooms_hash(tmp_path: Path) -> None:
    file = tmp_path / "x.jsonl"
    recorded(file, LOOK_UP)
    recorded(file, LOOK_UP, room_id="other")
    sandbox = ReplaySandbox(file)
    with pytest.raises(ReplayMismatch, match="give a `content_hash`"):
        sandbox.reset(seed=0, comments=["c1"])
    one = ReplaySandbox(file, content_hash=small_room().content_hash)
    assert one.reset(seed=0, comments=["c1"]).room_id == "small"


# --- what was not recorded -------------------------------------------------------------------


def test_an_unrecorded_call_names_tool_arguments_and_the_nearest(tmp_path: Path) -> None:
    recorded(tmp_path / "x.jsonl", LOOK_UP, le.Action.call("search_faq", query="可以退货吗"))
    env = le.LiveRoomEnv(sandbox=f"replay:{tmp_path / 'x.jsonl'}")
    env.reset(seed=0)
    with pytest.raises(ReplayMismatch, match=r"search_faq\(.*可以退货么.*nearest.*可以退货吗"):
        env.step(le.Action.call("search_faq", query="可以退货么"))
    trajectory = env.trajectory
    assert trajectory.status == "env_error"
    assert trajectory.reward is None
    assert trajectory.faults[-1].detail.startswith("ReplayMismatch: ")
    assert not any(message.role == "tool" for message in trajectory.messages)
    env.reset(seed=0)
    env.step(LOOK_UP)
    with pytest.raises(ReplayMismatch, match="no call of it is"):
        env.step(le.Action.call("search_script", query="腰果"))


def test_an_unrecorded_episode_says_what_there_is(tmp_path: Path) -> None:
    recorded(tmp_path / "x.jsonl", LOOK_UP)
    with pytest.raises(ReplayMismatch, match="no episode on `c3`; it has c1"):
        ReplaySandbox(tmp_path / "x.jsonl").reset(seed=0, comments=["c3"])


def test_mistakes_of_the_policy_need_no_recording(tmp_path: Path) -> None:
    recorded(tmp_path / "x.jsonl", LOOK_UP)
    replay = ReplaySandbox(tmp_path / "x.jsonl")
    live = LocalSandbox(small_room(), embedder="lexical")
    for sandbox in (replay, live):
        sandbox.reset(seed=0, comments=["c1"])
    for wrong in (
        call("no_tool"),
        call("search_faq"),
        call("search_faq", query=""),
        call("hand_of"),
    ):
        assert replay.call(wrong) == live.call(wrong)
    bad = call("move_product", link_no="x", position=0, more=1)
    assert replay.call(bad) == live.call(bad)


def test_by_option_the_nearest_answers_and_flags_the_turn(tmp_path: Path) -> None:
    recorded(tmp_path / "x.jsonl", LOOK_UP, le.Action.call("search_faq", query="可以退货吗"))
    asks = le.Action.call("search_faq", query="可以退货么")
    options = {"sandbox_options": {"nearest": True}}
    trajectory = replayed(tmp_path / "x.jsonl", asks, **options)
    (event,) = trajectory.turns[0].events
    assert event.kind == "nearest"
    assert "可以退货吗" in event.detail
    assert "nearest" not in trajectory.messages[-1].content
    assert "七天退货" in trajectory.messages[-1].content


def test_the_nearest_is_of_that_room_and_never_of_another_state_where_it_writes(
    tmp_path: Path,
) -> None:
    file = tmp_path / "x.jsonl"
    recorded(file, MOVE)
    recorded(file, le.Action.call("search_script", query="饼干"), room_id="other")
    home = small_room().content_hash
    sandbox = ReplaySandbox(file, content_hash=home, nearest=True)
    sandbox.reset(seed=0, comments=["c1"])
    with pytest.raises(ReplayMismatch):
        sandbox.call(call("search_script", query="饼干"))
    near = sandbox.call(call("move_product", link_no=2, position=2))
    assert near.state is not None
    with pytest.raises(ReplayMismatch):
        sandbox.call(call("move_product", link_no=3, position=1))


# --- read-through ----------------------------------------------------------------------------


def read_through(inner: Any, file: Path, **options: Any) -> RecordingSandbox:
    return RecordingSandbox(inner, file, mode="read_through", **options)


def test_what_is_recorded_is_replayed_and_the_rest_is_asked_once(tmp_path: Path) -> None:
    room, file = small_room(), tmp_path / "x.jsonl"
    counted = Counted(room)
    for _ in range(3):
        sandbox = read_through(counted, file, content_hash=room.content_hash)
        sandbox.reset(seed=0, comments=["c1"])
        sandbox.call(call("search_faq", query="发货"))
    assert (counted.resets, len(counted.calls)) == (1, 1)
    sandbox.call(call("search_faq", query="退货"))
    assert (counted.resets, len(counted.calls)) == (2, 2)


def test_an_inner_sandbox_that_joins_late_is_brought_to_the_state(tmp_path: Path) -> None:
    room, file = small_room(), tmp_path / "x.jsonl"
    moves = call("move_product", link_no=2, position=1), call("hand_off", reason="a")
    first = read_through(Counted(room), file, content_hash=room.content_hash)
    first.reset(seed=0, comments=["c1"])
    for move in (*moves, call("search_faq", query="发货")):
        first.call(move)
    counted = Counted(room)
    late = read_through(counted, file, content_hash=room.content_hash)
    late.reset(seed=5, comments=["c1"])
    for move in (*moves, call("search_faq", query="发货")):
        late.call(move)
    assert counted.calls == []
    result = late.call(call("hand_off", reason="b"))
    assert [made.name for made in counted.calls] == ["move_product", "hand_off", "hand_off"]
    assert result.state is not None
    assert result.state.hand_offs == ("a", "b")
    assert late.fork(1).call(call("hand_off", reason="c")).state.hand_offs == ("c",)  # type: ignore[union-attr]
    assert late.call(call("hand_off", reason="c")).state.hand_offs == ("a", "b", "c")  # type: ignore[union-attr]


def test_a_group_in_threads_asks_each_question_once(tmp_path: Path) -> None:
    room, file = small_room(), tmp_path / "x.jsonl"
    counted: list[Counted] = []
    lock = threading.Lock()

    def make(room: le.Room) -> RecordingSandbox:
        made = Counted(room, delay=lambda: time.sleep(0.02))
        with lock:
            counted.append(made)
        return read_through(made, file, content_hash=room.content_hash)

    group = le.rollout_group(
        lambda: le.LiveRoomEnv(room, comment="c1", sandbox=make),
        le.WorkflowAgent(),
        size=8,
        max_workers=8,
    )
    assert len({repr(trajectory.messages) for trajectory in group}) == 1
    asked = [(call.name, call.arguments.canonical) for one in counted for call in one.calls]
    assert len(asked) == len(set(asked)) == len(group[0].turns) - 1
    assert len(recording_file(file).lines) == 1 + len(asked)


def test_async_members_ask_each_question_once_without_holding_the_loop(tmp_path: Path) -> None:
    room, file = small_room(), tmp_path / "x.jsonl"
    asked: list[str] = []

    @le.tool
    async def stock(context: le.ToolContext, link_no: int) -> int:
        """Look up the stock."""
        asked.append(f"{link_no}")
        await asyncio.sleep(0.05)
        return link_no * 7

    def make(room: le.Room) -> RecordingSandbox:
        return read_through(LocalSandbox(room, embedder="lexical", tools=[stock]), file)

    class Once:
        async def act(self, messages: Sequence[le.Message], tools: Any) -> le.Action:
            if messages[-1].role == "tool":
                return le.Action.reply(messages[-1].content)
            return le.Action.call("stock", link_no=3)

    async def play() -> list[le.Trajectory]:
        envs = [le.LiveRoomEnv(room, comment="c1", sandbox=make) for _ in range(8)]
        return await asyncio.gather(*(le.arollout(env, Once(), seed=0) for env in envs))

    group = asyncio.run(play())
    assert {trajectory.reply for trajectory in group} == {"21"}
    assert asked == ["3"]


PROCESS = """
import sys, time
sys.path.insert(0, sys.argv[3])
from rooms_for_tests import small_room
from livestream_env.sandbox import LocalSandbox, RecordingSandbox
from livestream_env.types import ToolCall, freeze

class Slow(LocalSandbox):
    def call(self, call):
        with open(sys.argv[2], "a", encoding="utf-8") as asked:
            asked.write(call.arguments["query"] + "\\n")
        time.sleep(0.02)
        return super().call(call)

room = small_room()
sandbox = RecordingSandbox(Slow(room, embedder="lexical"), sys.argv[1], mode="read_through")
sandbox.reset(seed=0, comments=["c1"])
for number in range(30):
    sandbox.call(ToolCall("1", "search_faq", freeze({"query": f"问{number}"})))
"""


def test_processes_ask_each_question_once_and_lose_no_line(tmp_path: Path) -> None:
    file, asked = tmp_path / "x.jsonl", tmp_path / "asked"
    command = [sys.executable, "-c", PROCESS, str(file), str(asked), str(Path(__file__).parent)]
    started = [subprocess.Popen(command) for _ in range(3)]
    assert [process.wait(60) for process in started] == [0, 0, 0]
    assert sorted(asked.read_text(encoding="utf-8").split()) == sorted(f"问{i}" for i in range(30))
    found = recording_file(file)
    assert (len(found.lines), len(found.answers), found.faults) == (31, 30, {})


def test_a_question_that_failed_is_asked_again_by_the_next(tmp_path: Path) -> None:
    room, file = small_room(), tmp_path / "x.jsonl"
    failures = iter([None, SandboxError("down")])

    def fail() -> None:
        error = next(failures, None)
        if error is not None:
            raise error

    sandbox = read_through(Counted(room, delay=fail), file, content_hash=room.content_hash)
    sandbox.reset(seed=0, comments=["c1"])
    with pytest.raises(SandboxError, match="down"):
        sandbox.call(call("search_faq", query="发货"))
    assert recording_file(file).answers == {}
    assert sandbox.call(call("search_faq", query="发货")).error is None


def test_nobody_waits_for_ever_for_anothers_question(tmp_path: Path) -> None:
    room, file = small_room(), tmp_path / "x.jsonl"
    asking = threading.Event()
    slow = read_through(Counted(room, delay=lambda: asking.wait(30) and None), file)
    asking.set()
    slow.reset(seed=0, comments=["c1"])
    asking.clear()
    thread = threading.Thread(target=slow.call, args=(call("search_faq", query="发货"),))
    thread.start()
    while not slow.inner.calls:  # type: ignore[attr-defined]
        time.sleep(0.001)
    other = read_through(Counted(room), file, content_hash=room.content_hash, wait_s=0.05)
    other.reset(seed=0, comments=["c1"])
    with pytest.raises(SandboxTimeout, match=r"without an answer for 0\.05 s"):
        other.call(call("search_faq", query="发货"))
    assert other.call(call("search_faq", query="退货")).error is None
    asking.set()
    thread.join()
    assert other.call(call("search_faq", query="发货")).error is None


@pytest.mark.skipif(not hasattr(os, "fork"), reason="needs `fork`")
def test_a_forked_child_does_not_wait_for_what_its_parents_threads_asked(tmp_path: Path) -> None:
    file = recording_file(tmp_path / "x.jsonl")
    assert file.claim(("question",))
    child = os.fork()
    if child == 0:
        try:
            held = file.claim(("question",))  # the parent's process holds it still
            other = file.claim(("another",))
            os._exit(0 if (held, other) == (False, True) else 1)
        finally:
            os._exit(2)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    file.release(("question",))
    assert file.claim(("question",))
    file.release(("question",))


def test_a_recording_with_other_tools_is_not_mixed(tmp_path: Path) -> None:
    room, file = small_room(), tmp_path / "x.jsonl"
    recorded(file, LOOK_UP)
    other = read_through(LocalSandbox(room, embedder="lexical", language="en"), file)
    with pytest.raises(ReplayMismatch, match="other tools, or in another language"):
        other.reset(seed=0, comments=["c1"])


def test_the_string_form_reads_through(tmp_path: Path) -> None:
    file = tmp_path / "a+b" / "x.jsonl"
    for _ in range(2):
        env = gym.make(
            "LiveRoom-v0",
            room="snacks",
            comment="c03",
            embedder="lexical",
            sandbox=f"record:{file}+local",
        )
        assert le.rollout(env, le.WorkflowAgent(), seed=0).status == "ok"
        env.close()
    assert len(recording_file(file).openings) == 1
    assert le.rollout(gym.make("LiveRoom-v0", sandbox=f"replay:{file}"), le.WorkflowAgent()).reply


def test_recording_on_a_network_file_system_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    mounts = tmp_path / "mounts"
    mounts.write_text(f"server:/x {tmp_path} nfs4 rw 0 0\n", encoding="utf-8")
    monkeypatch.setattr(databases, "MOUNTS", mounts)
    sandbox = RecordingSandbox(LocalSandbox(small_room(), embedder="lexical"), tmp_path / "x.jsonl")
    with pytest.raises(SharedFileError, match="nfs4"):
        sandbox.reset(seed=0, comments=["c1"])


# --- the file --------------------------------------------------------------------------------


def test_a_file_cut_anywhere_keeps_its_whole_lines(tmp_path: Path) -> None:
    whole = tmp_path / "whole.jsonl"
    recorded(whole, LOOK_UP, RULE)
    text = whole.read_bytes()
    lines = text.split(b"\n")
    starts = len(lines[0]) + 1 + len(lines[1]) + 1
    for cut in range(starts, len(text), 7):
        file = tmp_path / f"{cut}.jsonl"
        file.write_bytes(text[:cut])
        found = recording_file(file)
        assert len(found.answers) == 1 + (cut >= len(text) - 1)
        assert found.torn == (3 if starts < cut < len(text) - 1 else None)


def test_a_torn_line_is_reported_and_what_follows_is_not_lost(tmp_path: Path) -> None:
    file = tmp_path / "x.jsonl"
    recorded(file, LOOK_UP, RULE)
    file.write_bytes(file.read_bytes()[:-40])
    with pytest.warns(RuntimeWarning, match="line 3 is cut, and is left out"):
        ReplaySandbox(file)
    with pytest.warns(RuntimeWarning, match="line 3"):
        recorded(file, le.Action.call("search_faq", query="退货"))
    found = recording_file(file)
    assert sorted(found.faults) == [3]
    assert found.torn is None
    assert [json.loads(line)["kind"] for line in _good_lines(file)] == ["reset", "call", "call"]
    with pytest.warns(RuntimeWarning, match="cannot be read"):
        sandbox = ReplaySandbox(file)
    sandbox.reset(seed=0, comments=["c1"])
    assert sandbox.call(call("search_faq", query="退货")).error is None


def _good_lines(file: Path) -> list[str]:
    lines = file.read_text(encoding="utf-8").splitlines()
    return [line for line in lines if line.endswith("}") and line.count('"kind"') >= 1][:2] + lines[
        -1:
    ]


def test_the_first_answer_to_a_question_stands(tmp_path: Path) -> None:
    file = tmp_path / "x.jsonl"
    recorded(file, LOOK_UP)
    first = file.read_bytes()
    recorded(file, LOOK_UP)
    assert file.read_bytes() == first
    faqs = [{"faq_id": "f1", "question": "什么时候发货", "answer": "三天"}]
    same_hash = small_room().content_hash
    other = LocalSandbox(small_room(faqs=faqs), embedder="lexical")
    assert other.room.content_hash != same_hash


def test_equal_episodes_make_equal_files(tmp_path: Path) -> None:
    for name in ("a", "b"):
        recorded(tmp_path / name, LOOK_UP, MOVE, RULE)
    assert (tmp_path / "a").read_bytes() == (tmp_path / "b").read_bytes()


def test_a_file_that_was_replaced_is_read_anew(tmp_path: Path) -> None:
    file = tmp_path / "x.jsonl"
    recorded(file, LOOK_UP, RULE)
    assert len(recording_file(file).answers) == 2
    file.unlink()
    recorded(file, RULE)
    assert len(recording_file(file).answers) == 1


def test_a_sandbox_pickles_within_an_episode(tmp_path: Path) -> None:
    file = tmp_path / "x.jsonl"
    recorded(file, MOVE, LOOK_UP)
    inner = LocalSandbox(small_room(), embedder="lexical")
    for sandbox in (ReplaySandbox(file), RecordingSandbox(inner, file), read_through(inner, file)):
        sandbox.reset(seed=0, comments=["c1"])
        sandbox.call(call("move_product", link_no=2, position=1))
        again = pickle.loads(pickle.dumps(sandbox))
        assert again.call(call("search_faq", query="发货")).error is None


def test_the_schema_of_the_wheel_is_that_of_the_lines() -> None:
    schema = json.loads(data_file("recording.schema.json").read_text(encoding="utf-8"))
    assert schema == recording_schema()
    validate = fastjsonschema.compile(schema)
    bundled = resource_folder("fixtures") / "recordings" / "snacks.jsonl"
    lines = [json.loads(line) for line in bundled.read_text(encoding="utf-8").splitlines()]
    assert len(lines) > 8
    for line in lines:
        validate(line)
        with pytest.raises(fastjsonschema.JsonSchemaValueException):
            validate({**line, "expected": {}})
        with pytest.raises(fastjsonschema.JsonSchemaValueException):
            validate({key: value for key, value in line.items() if key != "kind"})


def test_the_bundled_recording_is_of_todays_room_and_plays_offline() -> None:
    bundled = resource_folder("fixtures") / "recordings" / "snacks.jsonl"
    env = le.LiveRoomEnv(sandbox=f"replay:{bundled}")
    room = le.load_room("snacks")
    for seed in range(env.tasks):
        trajectory = le.rollout(env, le.WorkflowAgent(), seed=seed)
        assert trajectory.status == "ok"
        assert trajectory.content_hash == room.content_hash


# --- personal data and the key ---------------------------------------------------------------


def _stars(text: str) -> str:
    return re.sub(r"1\d{10}", "1**********", text)


@pytest.mark.parametrize("mode", ["all", "read_through"])
def test_personal_data_do_not_reach_the_file(mode: Any, tmp_path: Path) -> None:
    phone, file = "13912345678", tmp_path / "x.jsonl"
    asks = dict(SMALL["comments"][0], text=f"寄到了打{phone}")
    room = small_room(comments=[asks])
    inner = LocalSandbox(room, embedder="lexical")
    actions = (
        le.Action.call("search_faq", query=f"{phone}发货"),
        le.Action.call("hand_off", reason=f"请回电{phone}"),
        LOOK_UP,
        RULE,
        "好的",
    )
    sandbox = RecordingSandbox(inner, file, mode=mode, redact=_stars)
    live = played(le.LiveRoomEnv(room, sandbox=sandbox), *actions)
    assert phone not in file.read_text(encoding="utf-8")
    assert "1**********" in file.read_text(encoding="utf-8")
    assert (phone in repr(live.prompts)) == (mode == "all")
    redacted = [_redacted(action) for action in actions]
    again = replayed(file, *redacted)
    assert again.status == "ok"
    assert phone not in repr(again)
    through = read_through(LocalSandbox(room, embedder="lexical"), file, redact=_stars)
    twice = played(le.LiveRoomEnv(room, sandbox=through), *actions)
    assert twice.prompts == again.prompts


def _redacted(action: Any) -> Any:
    if isinstance(action, str):
        return action
    (made,) = action.message.tool_calls
    return le.Action.call(made.name, **{k: _stars(v) for k, v in made.arguments.items()})


def test_no_recording_holds_anything_of_the_key(tmp_path: Path) -> None:
    for name in le.list_rooms():
        room = with_secret(le.load_room(name))
        file = tmp_path / f"{name}.jsonl"
        inner = LocalSandbox(room, embedder="lexical")
        env = le.LiveRoomEnv(room, sandbox=RecordingSandbox(inner, file))
        for seed in range(0, env.tasks, 7):
            for agent in (le.ScriptedAgent(le.load_room(name)), le.RandomAgent()):
                le.rollout(env, agent, seed=seed)
        text = file.read_text(encoding="utf-8")
        assert SECRET not in text
        assert not {key for key in key_strings(le.load_room(name)) if key in text}, name


# --- the commands ----------------------------------------------------------------------------


def run(capsys: pytest.CaptureFixture[str], *argv: str) -> tuple[int, str]:
    code = cli.main(argv)
    return code, capsys.readouterr().out


def room_file(tmp_path: Path, **changes: Any) -> str:
    path = tmp_path / "small.json"
    path.write_text(json.dumps({**SMALL, **changes}, ensure_ascii=False), encoding="utf-8")
    return str(path)


def test_record_check_and_verify(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    room, out = room_file(tmp_path), str(tmp_path / "x.jsonl")
    code, text = run(capsys, "record", "--room", room, "--out", out)
    assert code == 0
    assert "3 episodes, 0 env_error" in text
    assert "3 starts (3 new)" in text
    code, text = run(capsys, "record", "--room", room, "--out", out, "--agent", "workflow")
    assert "(0 new) and" in text
    assert text.rstrip().endswith("(0 new)")
    code, text = run(capsys, "record", "check", out)
    assert code == 0
    assert "0 unreadable" in text
    code, text = run(capsys, "record", "verify", out, "--sandbox", "local", "--room", room)
    assert (code, text.splitlines()[-1][:4]) == (0, "0 of")


def test_verify_names_the_answers_that_have_drifted(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    room, out = room_file(tmp_path), tmp_path / "x.jsonl"
    run(capsys, "record", "--room", room, "--out", str(out), "--comment", "c1")
    lines = out.read_text(encoding="utf-8").splitlines()
    number = next(i for i, line in enumerate(lines) if '"call"' in line and "48小时" in line)
    lines[number] = lines[number].replace("48小时", "三天")
    out.write_text("\n".join(lines) + "\n", encoding="utf-8")
    argv = ("record", "verify", str(out), "--sandbox", "local", "--room")
    code, said = run(capsys, *argv, room)
    assert code == 1
    assert f"line {number + 1}: search_faq" in said
    assert "三天" in said
    assert "1 of" in said
    assert run(capsys, *argv, room_file(tmp_path, title="换了"))[0] == 1


def test_check_names_lines_that_cannot_be_read(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out = tmp_path / "x.jsonl"
    recorded(out, LOOK_UP, RULE)
    lines = out.read_bytes().split(b"\n")
    lines[1] = b'{"kind":"call","nothing":1}'
    out.write_bytes(b"\n".join(lines)[:-9])
    code, text = run(capsys, "record", "check", str(out))
    assert code == 1
    assert "line 2: call.content_hash: Field required" in text
    assert "line 3: is cut" in text
    assert run(capsys, "record", "check", str(tmp_path / "none"))[0] == 2
    assert run(capsys, "record")[0] == 2
