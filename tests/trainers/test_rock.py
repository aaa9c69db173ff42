"""rl-rock 1.11.0: ROCK's own client plays whole episodes against a real server."""

from __future__ import annotations

import os
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any
from urllib.parse import quote

import pytest
import rock
from conformance import ONE_AGENT_CASES, UNLABELLED, Case, Shown, as_text, assert_same, call
from pages_for_tests import module_of, snippets
from servers_for_tests import free_port, started

from livestream_env.room_files import load_room, save_room
from livestream_env.types import Message

TOKEN = "let-me-in"
NOT_OVER_TEXT = {"cut reply", "cut call"}
"""An action is text, and nothing in it says that the token limit cut it."""
OF_THE_TESTS = {"failed call", "failed reset", "failed tool of a user"}
"""Sandboxes and tools of the test, which a server cannot be asked for."""
CASES = {k: v for k, v in ONE_AGENT_CASES.items() if k not in NOT_OVER_TEXT | OF_THE_TESTS}


@pytest.fixture(scope="module")
def base(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """Run `livestream-env serve` with a token, and yield what ROCK's client is given."""
    folder = tmp_path_factory.mktemp("rooms")
    save_room(load_room(UNLABELLED), folder / "unlabelled.json")
    token = folder / "token"
    token.write_text(TOKEN, encoding="utf-8")
    (folder / "own_tools.py").write_text(_OWN_TOOL, encoding="utf-8")
    port = free_port()
    arguments = ["-m", "livestream_env.cli", "serve", "--rooms", str(folder), "--port", str(port)]
    arguments += ["--token-file", str(token), "--tool", "own_tools:ask_warehouse"]
    environment = os.environ | {"PYTHONPATH": str(folder)}
    process = started(arguments, port, env=environment)
    yield f"http://rock:{TOKEN}@127.0.0.1:{port}"
    process.terminate()
    process.wait(20)


_OWN_TOOL = '''
import livestream_env as le


@le.tool
def ask_warehouse(context: le.ToolContext, product: str) -> object:
    """Ask the warehouse when a product leaves it.

    Args:
        product: name of the product.
    """
    raise RuntimeError("the warehouse gave status 502")
'''


@pytest.fixture(autouse=True)
def _at(base: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ROCK_BASE_URL", base)


def env_id(case: Case) -> str:
    room = "snacks" if case.row.room == "snacks" else load_room(case.row.room).room_id
    options = {"room": room, "comment": ",".join(case.row.comment), "embedder": "lexical"}
    options |= {key: str(value) for key, value in case.options.items()}
    told = "&".join(f"{key}={quote(value)}" for key, value in options.items())
    return f"LiveRoom-v0?{told}"


def is_said(message: Message) -> bool:
    return message.role == "assistant"


@pytest.mark.row("R42")
@pytest.mark.parametrize("name", CASES)
def test_a_scripted_policy_gets_through_rock_what_it_gets_from_the_core(name: str) -> None:
    case = CASES[name]
    env = rock.make(env_id(case))
    observation, _ = env.reset(seed=case.row.seed)
    observed, total, terminated = [observation], 0.0, False
    for line in case.lines:
        assert not terminated
        observation, reward, terminated, truncated, info = env.step(f"{line.text}<|im_end|>")
        observed.append(observation)
        total += reward
    assert terminated
    assert info["metrics"]["turns"] == len(case.lines)
    env.close()
    ok = info["status"] != "env_error"
    shown = Shown(truncated=truncated, rewards={"host": total}, excluded={"host": None})
    assert ok
    assert_same(case, shown)
    conversation = as_text(case)
    first = next(at for at, message in enumerate(conversation) if is_said(message))
    told = [m.content for m in conversation[first:] if not is_said(m)]
    assert observed[0] == "\n\n".join(m.content for m in conversation[:first])
    assert [text for text in observed[1:] if text] == told[: len(observed) - 1]


@pytest.mark.row("R42")
def test_an_environment_that_fails_is_an_error_and_plays_on_after_a_reset() -> None:
    env = rock.make(
        "LiveRoom-v0?room=snacks&embedder=lexical&tools=get_reply_rule,own_tools:ask_warehouse"
    )
    env.reset(seed=1)
    with pytest.raises(Exception, match=r"424.*no reward") as failed:
        env.step(call("ask_warehouse", product="巴旦木"))
    assert "502" not in str(failed.value)
    assert env.reset(seed=1)[1]["turn"] == 0


def test_refusals_reach_the_client_in_words() -> None:
    with pytest.raises(Exception, match=r"422.*Did you mean `snacks`"):
        rock.make("LiveRoom-v0?room=snakcs")
    env = rock.make("LiveRoom-v0?room=snacks")
    env.close()
    env.close()
    with pytest.raises(Exception, match=r"422|404"):
        env.reset(seed=1)


def test_without_the_token_nothing_is_answered(base: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ROCK_BASE_URL", base.replace(f"rock:{TOKEN}@", ""))
    with pytest.raises(Exception, match=r"401.*a token is needed"):
        rock.make("LiveRoom-v0?room=snacks")


def test_several_clients_play_at_a_time() -> None:
    case = CASES["looked up"]

    def play(_: int) -> Any:
        env = rock.make(env_id(case))
        env.reset(seed=case.row.seed)
        return [env.step(line.text)[1] for line in case.lines]

    with ThreadPoolExecutor(8) as pool:
        assert list(pool.map(play, range(24))) == [[0.0, 1.0]] * 24


def test_the_code_of_the_page_plays() -> None:
    (code,) = snippets("ROCK")
    played = module_of(code)
    assert (played.terminated, played.info["room_id"]) == (True, "snacks")
