"""GEM: a livestream room as a `gem.Env`, text in and text out.

    from livestream_env.adapters.gem import register
    env = gem.make(register(), room="snacks", rubric="single4")

What is registered is an import string, so environments are made without an import of this module.
"""

from __future__ import annotations

from functools import cache
from typing import TYPE_CHECKING, Any

from livestream_env.adapters.setup import trainer_module
from livestream_env.adapters.text_room import PlayedRoom, TextRoom

ENV_ID = "LiveRoom-v0"
RAN, INSTALL = "gem-llm 0.1.0", "pip install gem-llm==0.1.0"
if TYPE_CHECKING:
    LiveRoom: type[GemRoom]


class GemRoom(TextRoom):
    """What `LiveRoom` does beside being a `gem.Env`; arguments are those of `TextRoom`."""

    def __init__(self, room: str | None = None, **options: Any) -> None:
        super().__init__(room, **options)
        self._given = {"room": room, **options}
        self._last: dict[str, Any] = {}

    def reset(self, seed: int | None = None) -> tuple[str, dict[str, Any]]:
        """Open an episode; `info` tells the figures of the one before, whose last `info` GEM's
        vectors drop."""
        last, self._last = self._last, {}
        text, info = super().reset(seed)
        return text, {**info, **last}

    def step(self, action: Any) -> tuple[str, float, bool, bool, dict[str, Any]]:
        """Take one assistant message."""
        stepped = super().step(action)
        told = {key: stepped[4][key] for key in ("metrics", "env_error") if key in stepped[4]}
        self._last = {f"prev_ep_{key}": value for key, value in told.items()}
        return stepped

    def spawn(self, same_state: bool = False, **options: Any) -> GemRoom:
        """Return another environment of the same arguments, or `options` in their place.

        With `same_state` it stands where this episode does, and goes on for itself.
        """
        made = type(self)(**{**self._given, **options})
        if same_state:
            made.stand_at(self)
        return made


def register(env_id: str = ENV_ID) -> str:
    """Make the environment known to `gem.make` under this name, and return the name.

    Raises:
        MissingDependency: GEM is not installed.
    """
    return register_room(env_id, f"{__name__}:LiveRoom")


def register_room(env_id: str, entry_point: str) -> str:
    """Make a class known to `gem.make`; again is fine."""
    registration = trainer_module("gem.envs.registration", ran=RAN, install=INSTALL)
    if env_id not in registration.ENV_REGISTRY:
        registration.register(env_id, entry_point=entry_point)
    return env_id


@cache
def as_gem_env(room: type[PlayedRoom], name: str, module: str) -> type[Any]:
    """Return the class of rooms as a `gem.Env`, which `module` has under this name."""
    gem = trainer_module("gem", ran=RAN, install=INSTALL)
    return type(name, (room, gem.Env), {"__doc__": room.__doc__, "__module__": module})


def __getattr__(name: str) -> Any:
    if name == "LiveRoom":
        return as_gem_env(GemRoom, name, __name__)
    raise AttributeError(f"module `{__name__}` has no `{name}`")
