"""The trajectories of a run, kept while it trains.

Each process of the run appends to a file of its own in one folder, so no process waits for another
or spoils its lines; what a killed process leaves cut is reported and left out on reading.
"""

from __future__ import annotations

import itertools
import json
import operator
import os
import threading
import time
import uuid
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from io import BufferedReader, FileIO
from pathlib import Path
from typing import Any, Literal

from pydantic import BaseModel, ConfigDict, ValidationError
from pydantic_core import PydanticSerializationError

from livestream_env.conversations import Refused, parsed_json
from livestream_env.importers import fault_of, read_record, records_of
from livestream_env.types import Trajectory
from livestream_env.words import clean_text

_LOCK = threading.RLock()
"""Held while a line is written, and across a fork, so that the child finds it free."""

if hasattr(os, "register_at_fork"):
    os.register_at_fork(
        before=_LOCK.acquire, after_in_parent=_LOCK.release, after_in_child=_LOCK.release
    )


class LogLine(BaseModel):
    """One trajectory of a log; group, rewards and their reasons are in the trajectory."""

    model_config = ConfigDict(extra="forbid", frozen=True, ser_json_inf_nan="constants")

    format: Literal[1] = 1
    """Version of this format."""
    step: int | None = None
    """Training step that the trajectory was played for."""
    policy_version: str | None = None
    time_s: float = 0.0
    """Unix time of writing."""
    trajectory: Trajectory


@dataclass(frozen=True, slots=True)
class Logged:
    """What a log holds."""

    lines: tuple[LogLine, ...]
    """By step, then by time."""
    refused: tuple[tuple[str, str], ...]
    """(where, reason) of each line that cannot be read."""


class TrajectoryLog:
    """Appends trajectories to a file of this process in a folder that all processes share.

    One object serves any number of threads, and forked or pickled copies write files of their own.
    """

    def __init__(self, folder: str | os.PathLike[str], every: int = 1) -> None:
        """Open a log; the folder is made.

        `every` keeps the trajectories of every n-th training step alone; where steps are not told,
        of every n-th call.

        Raises:
            ValueError: `every` is below 1.
        """
        if not isinstance(every, int) or every < 1:
            raise ValueError(f"`every` is {every}; it is a whole number from 1")
        self.folder = Path(folder)
        self.every = every
        self.folder.mkdir(parents=True, exist_ok=True)
        self._calls = itertools.count()
        self._names: dict[int, str] = {}

    def __repr__(self) -> str:
        return f"TrajectoryLog({str(self.folder)!r}, every={self.every})"

    def __reduce__(self) -> tuple[Any, ...]:
        return TrajectoryLog, (self.folder, self.every)

    @property
    def path(self) -> Path:
        """The file that this process appends to."""
        name = f"{os.getpid()}-{uuid.uuid4().hex}.jsonl"
        return self.folder / self._names.setdefault(os.getpid(), name)

    def add(
        self,
        trajectories: Trajectory | Iterable[Trajectory],
        *,
        step: int | None = None,
        policy_version: str | int | None = None,
    ) -> int:
        """Append trajectories and return how many were written: none of a step that is left out.

        Raises:
            TypeError: `step` is no whole number, or something given is no trajectory.
            OSError: the disk is full, or the folder is gone.
        """
        given = [trajectories] if isinstance(trajectories, Trajectory) else list(trajectories)
        for one in given:
            if not isinstance(one, Trajectory):
                raise TypeError(f"got a `{type(one).__name__}`; pass trajectories")
        number = next(self._calls) if step is None else operator.index(step)
        if number % self.every or not given:
            return 0
        version = None if policy_version is None else str(policy_version)
        now = time.time()
        lines = [
            LogLine.model_construct(
                step=None if step is None else number,
                policy_version=version,
                time_s=now,
                trajectory=one,
            )
            for one in given
        ]
        with _LOCK:
            _append(self.path, "".join(f"{json_text(line)}\n" for line in lines).encode())
        return len(lines)


def json_text(value: BaseModel) -> str:
    """Write a value as one line of JSON, lone surrogates, which no file can hold, replaced."""
    try:
        return value.model_dump_json()
    except PydanticSerializationError:
        values = value.model_dump(mode="json")
        return clean_text(json.dumps(values, ensure_ascii=False, separators=(",", ":")))


def _append(path: Path, text: bytes) -> None:
    """Write in one piece, on a line of its own whatever was cut before it.

    Raises:
        OSError: less than all of it was written.
    """
    with FileIO(path, "a+") as file:
        size = file.seek(0, os.SEEK_END)
        file.seek(max(0, size - 1))
        if file.read(1) not in (b"", b"\n"):
            text = b"\n" + text
        written = file.write(text)
    if written != len(text):
        raise OSError(f"`{path}` took {written} of {len(text)} bytes: is the disk full?")


# --- reading ----------------------------------------------------------------------------------


def read_log(path: str | os.PathLike[str], *, step: int | None = None) -> Logged:
    """Read a log: its folder, one file of it, or any file of trajectories, ours or others'.

    Args:
        step: read the trajectories of this step alone.

    Raises:
        OSError: there is no such folder or file.
    """
    lines: list[LogLine] = []
    refused: list[tuple[str, str]] = []
    for where, record, stem in _records(Path(path)):
        try:
            if step is None or _step_of(record) == step:
                lines.append(_line(record, stem))
        except Refused as error:
            refused.append((where, str(error)))
    lines.sort(key=lambda line: (-1 if line.step is None else line.step, line.time_s))
    return Logged(tuple(lines), tuple(refused))


def _records(path: Path) -> Iterator[tuple[str, Any, str]]:
    """Yield where each record is, what it holds, and the stem of its file."""
    if not path.is_dir():
        yield from ((where, record, path.stem) for where, record in records_of(path))
        return
    for file in sorted(path.glob("*.jsonl")):
        with BufferedReader(FileIO(file)) as opened:
            left = os.fstat(opened.fileno()).st_size  # a run may write it on for ever
            for number, raw in enumerate(opened, 1):
                if raw.strip():
                    yield f"{file.name}, line {number}", _record(raw), file.stem
                left -= len(raw)
                if left <= 0:
                    break


def _record(raw: bytes) -> Any:
    try:
        record = parsed_json(raw.decode("utf-8-sig"))
    except UnicodeDecodeError as error:
        record = Refused(f"not UTF-8 ({error.reason} at byte {error.start})")
    if isinstance(record, Refused) and not raw.endswith(b"\n"):
        return Refused("the line is cut: its writer was stopped in the middle, or still writes")
    return record


def _step_of(record: Any) -> Any:
    if isinstance(record, Refused):
        raise record
    return record.get("step") if isinstance(record, dict) else None


def _line(record: Any, stem: str) -> LogLine:
    if not isinstance(record, dict) or "trajectory" not in record:
        return LogLine.model_construct(trajectory=read_record(record, stem))
    try:
        return LogLine.model_validate(record)
    except ValidationError as error:
        raise Refused(f"no line of a log: {fault_of(error)}") from error
