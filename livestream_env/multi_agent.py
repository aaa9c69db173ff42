"""Two agents on one episode: the PettingZoo environment, made without the extra being loaded."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, ParamSpec

from livestream_env.env import LiveRoomEnv

if TYPE_CHECKING:
    from livestream_env.aec import LiveRoomAEC

P = ParamSpec("P")


def _with_arguments_of(
    made: Callable[P, LiveRoomEnv],
) -> Callable[[Callable[..., LiveRoomAEC]], Callable[P, LiveRoomAEC]]:
    """Type a function's arguments as those of another, for checkers and for `help`."""

    def typed(function: Callable[..., LiveRoomAEC]) -> Callable[P, LiveRoomAEC]:
        function.__signature__ = inspect.signature(made)  # type: ignore[attr-defined]
        return function

    return typed


@_with_arguments_of(LiveRoomEnv)
def liveroom_aec(*args: Any, **options: Any) -> LiveRoomAEC:
    """Make the PettingZoo environment of two agents; the arguments are those of `LiveRoomEnv`.

    Raises:
        MissingDependency: the extra `multi-agent` is not installed.
    """
    from livestream_env.aec import LiveRoomAEC

    return LiveRoomAEC(LiveRoomEnv(*args, **options))
