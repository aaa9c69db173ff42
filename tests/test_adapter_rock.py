"""GEM environments over HTTP: whole episodes, options, leases, and what is never answered."""

from __future__ import annotations

import base64
import json
import threading
import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import httpx
import numpy as np
import pytest
from conformance import FIND, REPLIED, RULE, call
from numpy.typing import NDArray
from servers_for_tests import Client

import livestream_env as le
from livestream_env.adapters import rock
from livestream_env.adapters.rock import PREFIX, mount_gem
from livestream_env.cli_serve import app_of
from livestream_env.drivers import rollout
from livestream_env.retrieval import LexicalEmbedder
from livestream_env.room_files import save_room
from livestream_env.sandbox import create_app
from livestream_env.sandbox.testing import key_strings
from livestream_env.tools import BUILDING, LOCK, RoomIndex

SNACKS = "LiveRoom-v0?room=snacks&comment=c02&embedder=lexical"


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Return a folder that serves one room of its own."""
    made = tmp_path / "rooms"
    made.mkdir()
    room = le.load_room("snacks").model_copy(update={"room_id": "mine"})
    save_room(room, made / "anything.json")
    return made


@pytest.fixture
def client(folder: Path) -> Client:
    return Client(served(folder))


def served(folder: Path, token: str | None = None, **options: Any) -> Any:
    app = create_app(folder, token=token)
    mount_gem(app, **options)
    return app


def post(client: Client, name: str, **body: Any) -> httpx.Response:
    return client.post(f"{PREFIX}/{name}", json=body)


def made(client: Client, env_id: str = SNACKS) -> str:
    response = post(client, "make", env_id=env_id)
    assert response.status_code == 200, response.text
    return str(response.json()["sandbox_id"])


def error_of(response: httpx.Response) -> tuple[int, str, str]:
    told = response.json()["error"]
    return response.status_code, told["code"], told["message"]


@pytest.mark.row("R42")
def test_an_episode_over_http_is_that_of_the_core(client: Client) -> None:
    env = le.LiveRoomEnv("snacks", comment="c02", embedder="lexical")
    script = iter([FIND, RULE, REPLIED])

    class Says:
        def act(self, *_: Any) -> str:
            return next(script)

    due = rollout(env, Says(), seed=1)
    name = made(client)
    told = post(client, "reset", sandbox_id=name, seed=1).json()
    assert told["observation"].endswith(due.messages[1].content)
    assert told["info"]["comment_ids"] == ["c02"]
    answers = [
        post(client, "step", sandbox_id=name, action=f"{text}<|im_end|>").json()
        for text in (FIND, RULE, REPLIED)
    ]
    results = [turn.results[0].content for turn in due.turns[:2]]
    assert [a["observation"] for a in answers] == [
        *(f"<tool_response>\n{text}\n</tool_response>" for text in results),
        "",
    ]
    assert [a["reward"] for a in answers] == [0.0, 0.0, due.reward]
    assert [(a["terminated"], a["truncated"]) for a in answers][-2:] == [
        (False, False),
        (True, False),
    ]
    assert answers[-1]["info"]["metrics"]["calls/executed"] == 2.0
    assert post(client, "list", sandbox_id=name).json() == {"env_id": [SNACKS]}
    assert post(client, "close", sandbox_id=name).json() == {"sandbox_id": name}
    assert error_of(post(client, "reset", sandbox_id=name))[:2] == (404, "env_unknown")
    assert post(client, "close", sandbox_id=name).status_code == 200


def test_a_truncated_episode_is_terminated_too(client: Client) -> None:
    name = made(client, f"{SNACKS}&max_turns=1")
    post(client, "reset", sandbox_id=name, seed=1)
    told = post(client, "step", sandbox_id=name, action=FIND).json()
    assert (told["terminated"], told["truncated"]) == (True, True)


def test_options_of_the_id_make_the_environment(client: Client) -> None:
    name = made(client, "LiveRoom-v0?room=snacks&comment=c02,c04&tools=search_faq,get_reply_rule")
    told = post(client, "reset", sandbox_id=name, seed=0).json()
    assert told["info"]["comment_ids"] == ["c02", "c04"]
    assert "search_product_by_keyword" not in told["observation"].split("</tools>")[0]
    english = made(client, f"{SNACKS}&language=en")
    assert "Tools" in post(client, "reset", sandbox_id=english, seed=0).json()["observation"]


@pytest.mark.parametrize(
    ("env_id", "status", "told"),
    [
        ("LiveRoom-v1?room=snacks", 404, "no environment `LiveRoom-v1`"),
        ("LiveRoom-v0", 422, "option `room`: it is needed"),
        ("LiveRoom-v0?room=snakcs", 422, "Did you mean `snacks`"),
        ("LiveRoom-v0?room=snacks&rubic=single4", 422, "Did you mean `rubric`"),
        ("LiveRoom-v0?room=snacks&rubric=single", 422, "Did you mean `single4`"),
        ("LiveRoom-v0?room=snacks&room=snacks", 422, "given twice"),
        ("LiveRoom-v0?room=snacks&max_turns=0", 422, "`max_turns` is 0"),
        ("LiveRoom-v0?room=snacks&max_turns=１", 422, "whole number"),
        ("LiveRoom-v0?room=snacks&comment=c99999", 422, "c99999"),
        ("LiveRoom-v0?room=snacks&tools=os:system", 422, "`os:system` is none of"),
        ("LiveRoom-v0?room=snacks&embedder=package.module:f", 422, "option `embedder`"),
        ("LiveRoom-v0?room=snacks&language=fr", 422, "`language`"),
        ("LiveRoom-v0?room=snacks&sandbox=http://10.0.0.1", 422, "option `sandbox`"),
        ("LiveRoom-v0?room=snacks&prompt=/etc", 422, "option `prompt`"),
        ("LiveRoom-v0?room=snacks&log_dir=/tmp", 422, "option `log_dir`"),
        ("LiveRoom-v0?" + "&".join(f"a{n}=1" for n in range(99)), 422, "cannot be read"),
    ],
)
def test_a_wrong_id_is_refused_with_what_is_right(
    client: Client, env_id: str, status: int, told: str
) -> None:
    given, _, message = error_of(post(client, "make", env_id=env_id))
    assert given == status
    assert told in message


def test_no_name_of_a_request_is_a_path(client: Client, folder: Path, tmp_path: Path) -> None:
    save_room(le.load_room("snacks"), tmp_path / "outside.json")
    names = [
        str(folder / "anything.json"),
        str(tmp_path / "outside.json"),
        "../outside.json",
        "anything.json",
        f"{folder}/*.json",
        str(folder),
        ".",
        "generated:level=1,language=zh",
        "./snacks",
    ]
    for name in names:
        status, _, message = error_of(post(client, "make", env_id=f"LiveRoom-v0?room={name}"))
        assert (status, "neither served nor bundled" in message) == (422, True)


def test_rooms_of_the_folder_are_found_by_id_as_they_come_and_go(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    app = served(folder)
    client = Client(app)
    assert made(client, "LiveRoom-v0?room=mine&embedder=lexical")
    save_room(le.load_room("snacks").model_copy(update={"room_id": "new"}), folder / "another.json")
    app.state.rooms._scanned_s = float("-inf")
    assert made(client, "LiveRoom-v0?room=new&embedder=lexical")
    (folder / "another.json").write_text("{", encoding="utf-8")
    status, code, message = error_of(
        post(client, "make", env_id="LiveRoom-v0?room=new&embedder=lexical")
    )
    assert (status, code) == (424, "room_invalid")
    assert str(folder) not in message
    (folder / "anything.json").unlink()
    monkeypatch.setattr(app.state.rooms, "is_stale", lambda: False)
    status, code, message = error_of(
        post(client, "make", env_id="LiveRoom-v0?room=mine&embedder=lexical")
    )
    assert (status, code) == (424, "room_invalid")
    assert str(folder) not in message


def test_no_answer_holds_anything_of_the_key(client: Client) -> None:
    key = key_strings(le.load_room("snacks"))
    assert key
    name = made(client, "LiveRoom-v0?room=mine&embedder=lexical")
    bodies = []
    for seed in range(6):
        bodies.append(post(client, "reset", sandbox_id=name, seed=seed))
        for text in (FIND, RULE, "好的"):
            bodies.append(post(client, "step", sandbox_id=name, action=text))
    bodies.append(post(client, "make", env_id="LiveRoom-v0?room=mine&comment=nothing"))
    text = "".join(one.text for one in bodies)
    assert '"scores"' in text
    assert not [secret for secret in key if secret in text]


# --- failures --------------------------------------------------------------------------------


def test_a_failed_environment_is_an_error_without_a_trace(
    client: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    name = made(client)
    post(client, "reset", sandbox_id=name, seed=1)

    def fail(*_: Any) -> None:
        raise RuntimeError("secret in /srv/rooms")

    with monkeypatch.context() as patch:
        patch.setattr(le.LocalSandbox, "call", fail)
        status, code, message = error_of(post(client, "step", sandbox_id=name, action=FIND))
    assert (status, code) == (424, "sandbox_failed")
    assert "secret" not in message
    assert "no reward" in message
    assert error_of(post(client, "step", sandbox_id=name, action=FIND))[:2] == (409, "reset_needed")
    assert post(client, "reset", sandbox_id=name, seed=1).status_code == 200


def test_calls_out_of_turn_are_refused(client: Client) -> None:
    name = made(client)
    assert error_of(post(client, "step", sandbox_id=name, action=FIND))[:2] == (409, "reset_needed")
    post(client, "reset", sandbox_id=name, seed=1)
    post(client, "step", sandbox_id=name, action="好的")
    assert error_of(post(client, "step", sandbox_id=name, action="好的"))[0] == 409


@pytest.mark.parametrize(
    ("name", "body", "status"),
    [
        ("make", b"{", 400),
        ("make", b"[]", 422),
        ("make", b'{"env_id": 3}', 422),
        ("make", json.dumps({"env_id": "x" * 5000}).encode(), 422),
        ("reset", b'{"sandbox_id": "x", "seed": -1}', 422),
        ("reset", b'{"sandbox_id": "x", "seed": "a"}', 422),
        ("reset", b'{"sandbox_id": "x"}', 404),
        ("step", b'{"sandbox_id": "x"}', 422),
        ("step", json.dumps({"sandbox_id": "x", "action": "a" * (1 << 20)}).encode(), 413),
        ("list", b"{}", 422),
    ],
)
def test_a_wrong_body_is_refused(client: Client, name: str, body: bytes, status: int) -> None:
    headers = {"content-type": "application/json"}
    response = client.post(f"{PREFIX}/{name}", content=body, headers=headers)
    assert error_of(response)[0] == status


def test_the_token_is_asked_for_also_as_the_password_of_a_url(folder: Path) -> None:
    app = served(folder, token="let-me-in")
    assert error_of(post(Client(app), "make", env_id=SNACKS))[0] == 401

    def basic(told: bytes) -> str:
        return f"Basic {base64.b64encode(told).decode()}"

    wrong = (basic(b"rock:let-me"), basic(b"let-me-in"), basic(b":"), "Basic ?", "Basic")
    for header in wrong:
        assert error_of(post(Client(app, authorization=header), "make", env_id=SNACKS))[0] == 401
    for header in ("Bearer let-me-in", basic(b"rock:let-me-in")):
        assert made(Client(app, authorization=header))


# --- leases ----------------------------------------------------------------------------------


def test_environments_that_nobody_uses_are_let_go(folder: Path) -> None:
    app = served(folder, lease_s=60.0)
    envs, now = app.state.gem_envs, [0.0]
    envs._clock = lambda: now[0]
    client = Client(app)
    first, second = made(client), made(client)
    now[0] = 50.0
    post(client, "reset", sandbox_id=first, seed=1)
    now[0] = 70.0
    assert error_of(post(client, "reset", sandbox_id=second))[:2] == (404, "env_unknown")
    assert post(client, "step", sandbox_id=first, action=FIND).status_code == 200
    now[0] = 200.0
    envs._reap_and_go_on()
    assert len(envs) == 0


def test_no_more_environments_than_there_are_places_for(folder: Path) -> None:
    client = Client(served(folder, max_envs=2))
    first = made(client)
    made(client)
    response = post(client, "make", env_id=SNACKS)
    assert error_of(response)[:2] == (503, "at_capacity")
    assert response.headers["retry-after"]
    post(client, "close", sandbox_id=first)
    assert made(client)


def test_many_environments_are_played_at_a_time(client: Client) -> None:
    def play(seed: int) -> float:
        name = made(client)
        post(client, "reset", sandbox_id=name, seed=seed)
        for text in (FIND, RULE):
            post(client, "step", sandbox_id=name, action=text)
        return float(post(client, "step", sandbox_id=name, action=REPLIED).json()["reward"])

    with ThreadPoolExecutor(8) as pool:
        assert list(pool.map(play, range(24))) == [1.0] * 24


@pytest.mark.parametrize(
    ("env_id", "long", "pooled"),
    [
        (SNACKS, "", [True, False]),
        (SNACKS, "好" * 501, [True, True]),
        ("LiveRoom-v0?room=snacks&comment=c02&tools=search_faq", "", [True, True]),
    ],
)
def test_steps_that_take_long_leave_the_event_loop_to_others(
    client: Client, monkeypatch: pytest.MonkeyPatch, env_id: str, long: str, pooled: list[bool]
) -> None:
    name, threads = made(client, env_id), []
    step = rock.RockRoom.step

    def noted(room: Any, action: str) -> Any:
        threads.append("server" in threading.current_thread().name)
        return step(room, action)

    monkeypatch.setattr(rock.RockRoom, "step", noted)
    for seed in range(2):
        post(client, "reset", sandbox_id=name, seed=seed)
        assert post(client, "step", sandbox_id=name, action=REPLIED + long).json()["terminated"]
    assert threads == pooled


def test_a_large_room_and_an_index_being_built_leave_the_event_loop_to_others(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    room = le.load_room("snacks")
    faqs = [room.faqs[0].model_copy(update={"faq_id": f"more{i}"}) for i in range(300)]
    update = {"room_id": "large", "faqs": (*room.faqs, *faqs)}
    save_room(room.model_copy(update=update), folder / "large.json")
    client, pooled = Client(served(folder)), []
    step = rock.RockRoom.step

    def noted(room: Any, action: str) -> Any:
        pooled.append("server" in threading.current_thread().name)
        return step(room, action)

    def play(name: str) -> bool:
        post(client, "reset", sandbox_id=name, seed=1)
        assert post(client, "step", sandbox_id=name, action=REPLIED).json()["terminated"]
        return bool(pooled.pop())

    monkeypatch.setattr(rock.RockRoom, "step", noted)
    large, small = made(client, SNACKS.replace("room=snacks", "room=large")), made(client)
    assert [play(large), play(large)] == [True, True]
    assert [play(small), play(small)] == [True, False]
    is_held, ends = threading.Event(), threading.Event()

    def build() -> None:
        with BUILDING:
            is_held.set()
            ends.wait(60)

    builder = threading.Thread(target=build)
    builder.start()
    is_held.wait(60)
    try:
        assert play(small)
    finally:
        ends.set()
        builder.join()


def test_an_index_being_built_does_not_hold_what_event_loops_wait_for() -> None:
    built: list[bool] = []

    def is_free() -> bool:
        if found := LOCK.acquire(timeout=5):
            LOCK.release()
        return found

    class Noting(LexicalEmbedder):
        def embed(self, texts: Sequence[str]) -> NDArray[np.float32]:
            with ThreadPoolExecutor(1) as pool:
                built.append(pool.submit(is_free).result())
            return super().embed(texts)

    assert RoomIndex(le.load_room("snacks"), Noting()).faqs is not None
    assert built
    assert all(built)


SLOW_TOOL = """
import time
import livestream_env as le


@le.tool
def hangs(context: le.ToolContext) -> object:
    \"\"\"Hang.\"\"\"
    time.sleep(3)
"""


def test_a_tool_that_hangs_gives_its_thread_and_its_environment_back(
    folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "rock_slow_tools.py").write_text(SLOW_TOOL, encoding="utf-8")
    monkeypatch.syspath_prepend(tmp_path)
    tool = "rock_slow_tools:hangs"
    client = Client(served(folder, tools=[tool], tool_timeout_s=0.05))
    name = made(client, f"{SNACKS}&tools=get_reply_rule,{tool}")
    post(client, "reset", sandbox_id=name, seed=1)
    started_s = time.monotonic()
    assert error_of(post(client, "step", sandbox_id=name, action=call("hangs")))[0] == 424
    assert time.monotonic() - started_s < 2
    assert post(client, "reset", sandbox_id=name, seed=1).status_code == 200


# --- the command -----------------------------------------------------------------------------


def test_serve_answers_or_says_why_it_has_no_environments(folder: Path) -> None:
    settings: dict[str, Any] = {"rooms": str(folder), "sandbox": None, "tools": []}
    settings |= {"embedders": [], "token_file": None, "max_sessions": 8, "lease_s": 60}
    settings |= {"uploads": True, "workers": 1}
    assert made(Client(app_of(settings)))
    for change, told in (
        ({"workers": 2}, "`--workers 1`"),
        ({"sandbox": "conformance:breaks_later"}, "`--sandbox`"),
    ):
        client = Client(app_of(settings | change))
        status, code, message = error_of(post(client, "make", env_id=SNACKS))
        assert (status, code) == (409, "no_environments")
        assert told in message


def test_the_example_of_the_refusals_is_one_that_works(client: Client) -> None:
    assert made(client, rock._FORM.split("`")[1])
