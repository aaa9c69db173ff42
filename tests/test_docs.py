"""The code of README and docs runs."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1]
PAGES = [
    "README.md",
    "README.zh.md",
    *sorted(f"docs/{p.name}" for p in (ROOT / "docs").glob("*.md")),
]


def blocks(page: str) -> list[str]:
    text = (ROOT / page).read_text(encoding="utf-8")
    return re.findall(r"^```python\n(.*?)^```", text, re.MULTILINE | re.DOTALL)


@pytest.mark.parametrize(
    ("page", "number"), [(page, i) for page in PAGES for i in range(len(blocks(page)))]
)
def test_the_code_of_a_page_runs(
    page: str, number: int, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(ROOT)
    exec(compile(blocks(page)[number], f"{page}[{number}]", "exec"), {"__name__": "__main__"})
    if page.startswith("README"):
        assert capsys.readouterr().out.strip()


@pytest.mark.row("R43")
def test_the_readmes_first_example_is_a_dozen_lines_and_ends_replied(
    capsys: pytest.CaptureFixture[str],
) -> None:
    code = blocks("README.md")[0]
    assert len(code.splitlines()) <= 16
    exec(code, {})
    assert "replied" in capsys.readouterr().out


@pytest.mark.parametrize("page", PAGES)
def test_links_between_pages_lead_somewhere(page: str) -> None:
    text = (ROOT / page).read_text(encoding="utf-8")
    for target in re.findall(r"\]\(([^)#]+)\)", text):
        assert ((ROOT / page).parent / target).exists(), target
