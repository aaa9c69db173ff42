"""Finding `tool_specs/` and `fixtures/`, in a checkout or in an installed wheel."""

from __future__ import annotations

import os
from functools import cache
from pathlib import Path

PACKAGE = Path(__file__).resolve().parent


@cache
def resource_folder(name: str) -> Path:
    """Return the folder `name` (`tool_specs` or `fixtures`) of this installation.

    Raises:
        FileNotFoundError: neither the wheel's copy nor a checkout's is there.
    """
    bundled = PACKAGE / "_bundled" / name
    for folder in (bundled, PACKAGE.parent / name):
        if folder.is_dir():
            return folder
    raise FileNotFoundError(f"`{name}` is neither in the wheel ({bundled}) nor beside the package")


def data_file(name: str) -> Path:
    """Return the path of a file under `livestream_env/data`."""
    return PACKAGE / "data" / name


def cache_folder() -> Path:
    """Return the folder that the processes of a user share on a host: `LIVESTREAM_ENV_CACHE`, or
    `livestream-env` in the user's cache folder."""
    own = os.environ.get("LIVESTREAM_ENV_CACHE")
    if own:
        return Path(own)
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache", "livestream-env")
