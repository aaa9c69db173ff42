"""Versions of policies: who sampled a turn, how old that is, and what a checkpoint is called."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import replace

from livestream_env.types import Trajectory

_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]*")
_NUMBERED = re.compile(r"(.*?)(\d+)", re.DOTALL)


def stamp_version(trajectory: Trajectory, version: str | Mapping[str, str]) -> Trajectory:
    """Return the trajectory with the version of the weights that sampled its turns.

    Turns that have one keep it. A mapping gives each agent its own; partners need none.
    """
    turns = []
    for turn in trajectory.turns:
        own = version if isinstance(version, str) else version.get(turn.agent)
        turns.append(turn if turn.policy_version else replace(turn, policy_version=own))
    return trajectory.model_copy(update={"turns": tuple(turns)})


def versions_behind(current: str | int, version: str) -> int:
    """Return how many versions a policy was behind `current` when it sampled.

    Versions are numbers, or names that end in one: `12`, `replier@step-12`.

    Raises:
        ValueError: they are not, or are numbers of two different policies.
    """
    (name, newest), (other, number) = _numbered(str(current)), _numbered(version)
    if name != other:
        raise ValueError(
            f"`{version}` is no version of the policy whose current one is `{current}`"
        )
    return newest - number


def _numbered(version: str) -> tuple[str, int]:
    match = _NUMBERED.fullmatch(version)
    if match is None:
        raise ValueError(f"version `{version}` does not end in a number")
    return match[1], int(match[2])


def checkpoint_name(cluster: str, checkpoint: str | int) -> str:
    """Return `cluster@checkpoint`: one name for each pair, usable as a file's or a model's.

    Raises:
        ValueError: a part holds something else than letters, digits, `.`, `_` and `-`.
    """
    number = str(checkpoint) if isinstance(checkpoint, int) else checkpoint
    for name, part in (("cluster", cluster), ("checkpoint", number)):
        if not isinstance(part, str) or not _NAME.fullmatch(part):
            raise ValueError(
                f"`{name}` is {part!r}; it is made of letters, digits, `.`, `_` and `-`, and"
                " starts with a letter or digit"
            )
    return f"{cluster}@{checkpoint}"
