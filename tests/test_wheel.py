"""The wheel: what is in it, and that it works in a fresh environment far from the checkout."""

from __future__ import annotations

import os
import subprocess
import sys
import venv
import zipfile
from pathlib import Path

import pytest

import livestream_env as le

ROOT = Path(__file__).resolve().parents[1]
PLAY = """
import sys
from pathlib import Path

import gymnasium as gym

import livestream_env as le

assert Path(le.__file__).is_relative_to(sys.prefix), le.__file__
env = gym.make("livestream_env:LiveRoom-v0", room="snacks")
observation, info = env.reset(seed=0)
assert len(observation.tools) == 8
trajectory = le.rollout(env, le.ScriptedAgent(le.load_room("snacks")), seed=1)
print(trajectory.stop_reason, trajectory.comment_ids[0], len(le.list_rooms()))
"""


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A wheel of this checkout."""
    folder = tmp_path_factory.mktemp("dist")
    build = [sys.executable, "-m", "build", "--wheel", "--no-isolation", "-o", str(folder)]
    run(*build, str(ROOT), cwd=folder)
    (made,) = folder.glob("*.whl")
    return made


def run(*command: str, cwd: Path) -> str:
    """Run a command without this process's Python settings and return what it prints."""
    environment = {k: v for k, v in os.environ.items() if not k.startswith(("PYTHON", "COV_"))}
    made = subprocess.run(
        command,
        cwd=cwd,
        env={**environment, "PYTHONUTF8": "1"},
        capture_output=True,
        encoding="utf-8",
        check=False,
    )
    assert made.returncode == 0, made.stderr
    return made.stdout


def test_the_wheel_holds_tools_rooms_data_and_types(wheel: Path) -> None:
    inside = set(zipfile.ZipFile(wheel).namelist())
    package, bundled = "livestream_env", "livestream_env/_bundled"
    wanted = {f"{package}/py.typed"}
    for folder, target in (
        (ROOT / "tool_specs", f"{bundled}/tool_specs"),
        (ROOT / "fixtures", f"{bundled}/fixtures"),
        (ROOT / package / "data", f"{package}/data"),
    ):
        files = [file for file in folder.rglob("*") if file.is_file()]
        assert files
        wanted |= {f"{target}/{file.relative_to(folder).as_posix()}" for file in files}
    assert wanted <= inside
    assert {name.split("/")[0] for name in inside} == {
        package,
        f"{package}-{le.__version__}.dist-info",
    }
    assert not any("__pycache__" in name for name in inside)


def test_the_wheel_plays_in_a_fresh_environment(wheel: Path, tmp_path: Path) -> None:
    venv.create(tmp_path / "venv", with_pip=True)
    scripts = tmp_path / "venv" / ("Scripts" if os.name == "nt" else "bin")
    python = str(scripts / "python")
    cwd = tmp_path / "elsewhere"
    cwd.mkdir()
    pip = (python, "-m", "pip", "--disable-pip-version-check", "install", "--quiet", str(wheel))
    run(*pip, cwd=cwd)
    second, rooms = le.load_room("snacks").comments[1].comment_id, len(le.list_rooms())
    assert run(python, "-W", "error", "-c", PLAY, cwd=cwd) == f"replied {second} {rooms}\n"
    assert run(str(scripts / "livestream-env"), "doctor", cwd=cwd).endswith("0 faults\n")
