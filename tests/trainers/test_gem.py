"""GEM 0.1.0: `gem.make`, its wrappers and its vectorized environments over livestream rooms."""

from __future__ import annotations

import copy
import json
import math
import pickle
from dataclasses import replace
from itertools import groupby
from pathlib import Path
from typing import Any

import gem
import pytest
from conformance import (
    CASES,
    FIND,
    REPLIED,
    RULE,
    Case,
    Line,
    Shown,
    as_text,
    assert_same,
    breaks_at_once,
    breaks_later,
    said_in,
)
from gem.tools.base_tool import BaseTool
from gem.tools.tool_env_wrapper import ToolEnvWrapper
from gem.wrappers.wrapper_factory import get_wrapper_fns
from pages_for_tests import module_of, snippets

import livestream_env as le
from livestream_env.adapters.gem import register
from livestream_env.adapters.setup import task_rows
from livestream_env.parsing import parse_text
from livestream_env.types import Status

ENV_ID = register()
SNACKS = {"room": "snacks", "embedder": "lexical"}


def make(**options: Any) -> Any:
    return gem.make(ENV_ID, **{**SNACKS, **options})


def action_of(line: Line) -> Any:
    """Return what a policy server gives: text with its end token, or an action that was cut."""
    if line.stop == "length":
        return replace(parse_text(line.text), stop="length")
    return f"{line.text}<|im_end|>"


def played(case: Case, env: Any) -> tuple[list[str], list[float]]:
    """Play a case and return what was observed and earned."""
    try:
        observation, _ = env.reset(seed=case.row.seed)
    except le.SandboxError:
        return [], []
    observed, rewards = [observation], []
    for turn in range(len(case.lines)):
        text, reward, terminated, truncated, _ = env.step(action_of(case.line(turn)))
        rewards.append(reward)
        if terminated or truncated:
            break
        observed.append(text)
    return observed, rewards


def shown(case: Case, env: Any) -> Shown:
    played = env.unwrapped.played()
    ok = played.status is not Status.ENV_ERROR
    rewards = played.rewards
    own = {
        name: rewards.total(None if name == "host" else name) if ok and rewards else None
        for name in case.families
    }
    return Shown(
        messages=played.messages,
        said=said_in(played.messages),
        rewards=own,
        truncated=played.status is not Status.OK,
        excluded=dict.fromkeys(case.families, None if ok else "env_error"),
    )


@pytest.mark.row("R42", "R44")
@pytest.mark.parametrize("name", CASES)
def test_a_scripted_policy_gets_through_gem_what_it_gets_from_the_core(name: str) -> None:
    case = CASES[name]
    env = gem.make(ENV_ID, **case.setup_options, comment=list(case.row.comment))
    observed, rewards = played(case, env)
    assert_same(case, shown(case, env))
    total = env.played().reward
    if rewards:
        assert math.isnan(rewards[-1]) if total is None else sum(rewards) == total
    if "failed" not in name:
        told = [list(part) for said, part in groupby(as_text(case), key=_is_said) if not said]
        assert observed == ["\n\n".join(m.content for m in part) for part in told][: len(observed)]


def _is_said(message: Any) -> bool:
    return message.role == "assistant"


def test_the_environment_is_one_of_gems_and_its_class_can_be_sent() -> None:
    env = make()
    assert isinstance(env, gem.Env)
    assert env.env_id == ENV_ID
    assert pickle.loads(pickle.dumps(type(env))) is type(env)
    assert register() == ENV_ID


def test_a_seed_opens_one_episode_in_any_environment() -> None:
    first, second = make(), make()
    for seed in (0, 3, 11):
        assert first.reset(seed=seed) == second.reset(seed=seed)
    assert len({first.reset(seed=seed)[0] for seed in range(6)}) == 6


def test_rows_of_a_data_set_are_opened_by_number(tmp_path: Path) -> None:
    rows = list(task_rows("bundled:train", count=3, embedder="lexical"))
    file = tmp_path / "rows.jsonl"
    file.write_text("".join(f"{json.dumps(row.to_json())}\n" for row in rows), encoding="utf-8")
    env = gem.make(ENV_ID, rows=str(file), embedder="lexical")
    for seed in (0, 1, 2, 3):
        _, info = env.reset(seed=seed)
        assert (info["room_id"], info["comment_ids"]) == (
            rows[seed % 3].room,
            list(rows[seed % 3].comment),
        )


def test_figures_of_the_run_stand_in_the_last_info() -> None:
    env = make(comment="c02")
    env.reset(seed=1)
    infos = [env.step(text)[4] for text in (FIND, RULE, REPLIED)]
    assert ["metrics" in info for info in infos] == [False, False, True]
    assert infos[-1]["metrics"]["calls/executed"] == 2.0


def test_what_was_played_is_logged(tmp_path: Path) -> None:
    env = make(comment="c02", log_dir=str(tmp_path))
    env.reset(seed=1)
    for text in (FIND, RULE, REPLIED):
        env.step(text)
    (line,) = le.read_log(str(tmp_path)).lines
    assert line.trajectory == env.played()


@pytest.mark.row("R42")
def test_a_failed_environment_is_truncated_with_its_cause_and_no_reward() -> None:
    env = gem.make(ENV_ID, room="snacks", sandbox=breaks_later)
    env.reset(seed=1)
    env.step(FIND)
    text, reward, terminated, truncated, info = env.step(RULE)
    assert (text, terminated, truncated) == ("", False, True)
    assert math.isnan(reward)
    assert info["env_error"] == "SandboxUnavailable: the server failed (503)"
    with pytest.raises(le.SandboxUnavailable):
        gem.make(ENV_ID, room="snacks", sandbox=breaks_at_once).reset(seed=1)


def test_a_spawned_environment_goes_on_for_itself() -> None:
    env = make(comment="c02")
    env.reset(seed=1)
    env.step(FIND)
    twin, fresh = env.spawn(same_state=True), env.spawn(comment="c04")
    for one in (env, twin):
        one.step(RULE)
    assert env.step(REPLIED)[:4] == twin.step(REPLIED)[:4] == ("", 1.0, True, False)
    with pytest.raises(le.ResetNeeded):
        fresh.step(REPLIED)
    assert fresh.reset(seed=1)[1]["comment_ids"] == ["c04"]


# --- wrappers ---------------------------------------------------------------------------------


class ChatTemplate:
    """Stands for a tokenizer: shows which messages the wrapper makes."""

    def apply_chat_template(self, messages: list[dict[str, str]], **_: Any) -> str:
        return json.dumps([[m["role"], m["content"]] for m in messages], ensure_ascii=False)


def test_gems_wrappers_concatenate_and_count() -> None:
    env = make(comment="c02", results_as="tool")
    for wrap in get_wrapper_fns("concat_chat,episode_tracking", tokenizer=ChatTemplate()):
        env = wrap(env)
    env.reset(seed=1)
    env.step(FIND)
    text, *_, info = env.step(RULE)
    roles = [role for role, _ in json.loads(text)]
    assert roles == ["user", "assistant", "tool", "assistant", "tool"]
    assert json.loads(text)[2][1] == env.unwrapped.played().turns[0].results[0].content
    assert info["step_counter"] == 2
    _, reward, terminated, _, info = env.step(REPLIED)
    assert (reward, terminated, info["cumulative_rewards"]) == (1.0, True, 1.0)


class Clock(BaseTool):
    """A tool of GEM's own beside the room's."""

    tool_type, name = "clock", "clock"

    def instruction_string(self) -> str:
        return "[clock] tells the time"

    def execute_action(self, action: str) -> tuple[bool, bool, str, str]:
        has = "[clock]" in action
        return has, not has, "20:00" if has else "", action


def test_tools_of_gem_run_beside_those_of_the_room() -> None:
    env = ToolEnvWrapper(make(comment="c02"), [Clock()])
    assert env.reset(seed=1)[0].endswith("[clock] tells the time")
    assert env.step("[clock]")[0] == "20:00"
    assert env.unwrapped.played().turns == ()
    env.step(RULE)
    assert len(env.unwrapped.played().turns) == 1


@pytest.mark.parametrize("is_async", [False, True])
def test_vectors_reset_themselves_at_the_end(is_async: bool) -> None:
    options = {**SNACKS, "comment": "c02"}
    vector = gem.make_vec([ENV_ID] * 3, async_mode=is_async, seed=5, **options)
    first, _ = vector.reset(seed=[1, 1, 2])
    assert first[0] == first[1]
    for text in (FIND, RULE):
        vector.step([text] * 3)
    observed, rewards, terminated, truncated, _ = vector.step([REPLIED] * 3)
    assert rewards.tolist() == [1.0] * 3
    assert terminated.tolist() == [True] * 3
    assert truncated.tolist() == [False] * 3
    assert all(text.startswith(first[0][:20]) for text in observed)
    again, *_ = vector.step([FIND] * 3)
    assert again[0].startswith("<tool_response>")


def test_figures_of_an_episode_outlive_the_reset_of_a_vector() -> None:
    vector = gem.make_vec([ENV_ID] * 2, room="snacks", comment="c02", sandbox=breaks_later)
    _, infos = vector.reset(seed=[1, 1])
    assert not [key for key in infos[0] if key.startswith("prev_ep")]
    vector.step([FIND] * 2)
    _, rewards, _, truncated, infos = vector.step([RULE, REPLIED])
    assert (math.isnan(rewards[0]), truncated.tolist()) == (True, [True, False])
    assert "503" in infos[0]["prev_ep_env_error"]
    assert [one["prev_ep_metrics"]["env_error/share"] for one in infos] == [1.0, 0.0]
    assert "prev_ep_env_error" not in infos[1]
    assert infos[0]["turn"] == 0


def test_vectors_of_one_seed_draw_the_same_episodes() -> None:
    drawn = []
    for _ in range(2):
        vector = gem.make_vec([ENV_ID] * 2, seed=5, **SNACKS)
        drawn.append([copy.deepcopy(vector.reset()[0]) for _ in range(3)])
    assert drawn[0] == drawn[1]
    assert drawn[0][0] != drawn[0][1]


def test_the_code_of_the_page_plays() -> None:
    (code,) = snippets("GEM")
    played = module_of(code)
    assert (played.terminated, played.info["room_id"]) == (True, played.env.played().room_id)
