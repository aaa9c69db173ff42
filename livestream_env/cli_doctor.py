"""`livestream-env doctor`: whether this installation is sound."""

from __future__ import annotations

import argparse
import re
import sys
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from livestream_env.terminal import progress
from livestream_env.version import VERSION

if TYPE_CHECKING:
    pass


def run_doctor(_: argparse.Namespace) -> int:
    """Check the installation; 1 where something is wrong."""
    faults = 0
    for check in (_packages, _terminal, resources, _rooms, _embedder):
        try:
            for mark, text in check():
                faults += mark == "FAULT"
                print(f"{mark:<6}{text}", flush=True)
        except Exception as error:  # a broken installation may raise anything
            faults += 1
            print(f"FAULT {type(error).__name__}: {error}")
            print("      reinstall: python -m pip install --force-reinstall livestream-env")
    print(f"{faults} fault{'s' if faults != 1 else ''}")
    return 1 if faults else 0


def _packages() -> Iterator[tuple[str, str]]:
    """Look for the dependencies and extras that the installed package declares."""
    from importlib.metadata import PackageNotFoundError, requires, version

    yield "ok", f"Python {sys.version.split()[0]} ({sys.executable})"
    try:
        declared = requires("livestream-env") or []
    except PackageNotFoundError:
        yield "FAULT", "livestream-env runs uninstalled; in its folder: python -m pip install -e ."
        return
    yield "ok", f"livestream-env {VERSION} ({Path(__file__).parent})"
    extras: dict[str, list[str]] = {}
    for one in declared:
        name = re.split(r"[^\w.-]", one, maxsplit=1)[0]
        extra = re.search(r"extra == ['\"]([\w.-]+)", one)
        missing = extras.setdefault(extra[1], []) if extra else None
        try:
            found = version(name)
            if missing is None:
                yield "ok", f"{name} {found}"
        except PackageNotFoundError:
            if missing is None:
                yield "FAULT", f"{name} is missing: python -m pip install '{one}'"
            else:
                missing.append(name)
    for extra_name, absent in extras.items():
        yield _extra(extra_name, absent)


def _extra(name: str, absent: Sequence[str]) -> tuple[str, str]:
    if not absent:
        return "ok", f"extra `{name}` is installed"
    command = f"python -m pip install 'livestream-env[{name}]'"
    return "note", f"extra `{name}` is not installed ({', '.join(absent)}): {command}"


def _terminal() -> Iterator[tuple[str, str]]:
    encoding = sys.stdout.encoding or "utf-8"
    if _encodes("弹幕😄", encoding):
        yield "ok", f"the terminal's encoding is {encoding}"
    else:
        remedy = "set PYTHONUTF8=1, and a UTF-8 code page or locale"
        yield "note", f"the terminal's encoding {encoding} shows Chinese escaped; {remedy}"


def _encodes(text: str, encoding: str) -> bool:
    try:
        text.encode(encoding)
    except UnicodeEncodeError:
        return False
    return True


def resources() -> Iterator[tuple[str, str]]:
    """Check that tool specs and fixtures are found."""
    from livestream_env._resources import resource_folder
    from livestream_env.tools import tool_specs

    for language in ("zh", "en"):
        count = len(tool_specs(language))
        yield "ok", f"{count} tools in `{language}` ({resource_folder('tool_specs') / language})"


def _rooms() -> Iterator[tuple[str, str]]:
    from livestream_env._resources import resource_folder
    from livestream_env.errors import RoomError
    from livestream_env.room_files import load_room

    folder = resource_folder("fixtures") / "rooms"
    files = sorted(folder.glob("*.json"))
    yield ("ok" if files else "FAULT"), f"{len(files)} bundled rooms ({folder})"
    for path in files:
        try:
            room = load_room(path)
            yield "ok", f"room `{room.room_id}`: {len(room.comments)} comments"
        except RoomError as error:
            yield "FAULT", f"{error}\n  correct the file, or reinstall livestream-env"


def _embedder() -> Iterator[tuple[str, str]]:
    from livestream_env.retrieval import fingerprint_of, make_embedder

    start = time.monotonic()
    with progress(lambda: "loading the embedder"):
        embedder = make_embedder()
        shape = embedder.embed(["包邮吗"]).shape
    took = time.monotonic() - start
    yield "ok", f"embedder {fingerprint_of(embedder)}: D = {shape[1]}, loaded in {took:.1f} s"
