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


def test_the_table_of_trainers_has_the_lines_of_their_adapters() -> None:
    folder = ROOT / "livestream_env" / "adapters"
    lines = {p.name: len(p.read_text("utf-8").splitlines()) for p in folder.glob("*.py")}
    page = (ROOT / "docs" / "trainers.md").read_text(encoding="utf-8")
    table = page.partition("\n\n| ")[2].partition("\n\n")[0].splitlines()[2:]
    assert len(table) == 15
    for row in table:
        name, told = (row.split("|")[at].strip() for at in (1, 4))
        own = name.partition(",")[0].lower().replace(" ", "_")
        own_files = ["roll.py", "roll_rooms.py"] if own == "roll" else [f"{own}.py"]
        due = sum(lines[file] for file in own_files)
        assert int(told.partition(",")[0]) == due, name
        for count, file in re.findall(r"(\d+) of `(\w+\.py)`", told):
            assert int(count) == lines[file], (name, file)
