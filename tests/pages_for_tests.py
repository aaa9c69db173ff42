"""Code of docs/trainers.md that needs a trainer: its tests run it as it stands."""

from __future__ import annotations

import re
from pathlib import Path
from types import ModuleType
from typing import Any

ROOT = Path(__file__).resolve().parents[1]


def snippets(heading: str, language: str = "py") -> list[str]:
    """Return the code of one section of the page."""
    page = (ROOT / "docs" / "trainers.md").read_text(encoding="utf-8")
    section = page.split(f"\n## {heading}\n")[1].split("\n## ")[0]
    return re.findall(rf"^```{language}\n(.*?)^```", section, re.MULTILINE | re.DOTALL)


def module_of(code: str, **names: Any) -> ModuleType:
    """Run code as a module of a user's; `names` are what the page leaves to the reader."""
    made = ModuleType("a_users_module")
    vars(made).update(names)
    exec(compile(code, "docs/trainers.md", "exec"), vars(made))
    return made
