"""The example with an RPC of one's own: what it prints, twice the same."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

FILE = Path(__file__).resolve().parents[1] / "examples" / "rpc_tools.py"


def printed(tmp_path: Path, hash_seed: str) -> str:
    run = subprocess.run(
        [sys.executable, "-W", "error", str(FILE)],
        cwd=tmp_path,
        env={"PYTHONUTF8": "1", "PYTHONHASHSEED": hash_seed},
        capture_output=True,
        encoding="utf-8",
        check=True,
    )
    assert run.stderr == ""
    return run.stdout


def test_the_rpc_example_prints_a_transcript_and_whose_failure_was_whose(tmp_path: Path) -> None:
    text = printed(tmp_path, "0")
    assert printed(tmp_path, "1") == text
    for part in (
        '"promoPriceCent":4990',
        "search_faq(",
        "! tool_error",
        "> 1号券后49.9元",
        "[replied]",
        "field='coupon_price', value=49.9, unit='yuan'",
        "seed 0: ok",
        "env_error tool `search_product_by_keyword` failed: ConnectionError",
    ):
        assert part in text


def test_the_rpc_example_is_short_and_says_how_to_run_it() -> None:
    source = FILE.read_text(encoding="utf-8")
    assert len(source.splitlines()) < 80
    assert "Run: python examples/rpc_tools.py" in source
