"""A production log of an agent's tool calls, made into a recording that episodes are played from.

Run: python examples/log_to_recording.py
"""

from __future__ import annotations

import json
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import livestream_env as le
from livestream_env.sandbox.recording_lines import CallLine, ResetLine, line_text
from livestream_env.types import CommentView, freeze

LOG = """\
{"time": 1760000000.1, "viewer": "小周", "comment": "3号链接多少钱", "show_s": 1250}
{"time": 1760000000.9, "tool": "goods", "request": {"link": 3}, "response": {"title": "海苔脆", "fen": 1990}}
{"time": 1760000001.6, "tool": "rules", "request": {"intent": "价格"}, "response": {"rule": "报券后价"}}
{"time": 1760000009.2, "viewer": "阿木", "comment": "海苔脆还有货吗", "show_s": 1259}
{"time": 1760000009.8, "tool": "goods", "request": {"link": 3}, "response": {"title": "海苔脆", "fen": 1990}}
"""  # noqa: E501
ROOM = "night-2025-10-09"


LINK = {"type": "object", "properties": {"link": {"type": "integer"}}, "required": ["link"]}
INTENT = {"type": "object", "properties": {"intent": {"type": "string"}}, "required": ["intent"]}
TOOLS = (
    le.ToolSpec("goods", "按链接号查商品", freeze(LINK)),
    le.ToolSpec("rules", "查回复规则", freeze(INTENT)),
)


def opened(number: int, row: dict[str, Any]) -> ResetLine:
    """Make the start of an episode of a viewer's comment."""
    at_s = float(row["show_s"])
    comment = CommentView(f"c{number}", row["viewer"], at_s, row["comment"])
    state = le.State(at_s, None, ())
    view = le.RoomView(
        ROOM, ROOM, "零食夜", "zh", "", None, (), (), (comment,), (), state, embedder="production"
    )
    return ResetLine.of(view, TOOLS, time_s=row["time"])


def answered(start: ResetLine, row: dict[str, Any]) -> CallLine:
    """Make the line of a call: what it answered, and what that states."""
    fen = row["response"].get("fen", 0)
    price = le.Fact("product:3", "coupon_price", fen / 100, "yuan", str(fen))
    content = json.dumps(row["response"], ensure_ascii=False, separators=(",", ":"))
    result = le.ToolResult("", content, (price,) if fen else ())
    call = le.ToolCall("", row["tool"], freeze(row["request"]))
    return CallLine.of(start.place, call, result, time_s=row["time"])


def lines(log: str) -> Iterator[ResetLine | CallLine]:
    """Turn the log into lines of a recording; calls belong to the comment before them."""
    for number, row in enumerate(map(json.loads, log.splitlines())):
        if "comment" in row:
            yield (start := opened(number, row))
        else:
            yield answered(start, row)


def main() -> None:
    """Write the recording, and play an episode of it without anything of production."""
    file = Path(tempfile.mkdtemp()) / "night.jsonl"
    file.write_text("".join(map(line_text, lines(LOG))), encoding="utf-8")
    env = le.LiveRoomEnv(sandbox=f"replay:{file}", render_mode="ansi")
    env.reset(seed=1)
    env.step(le.Action.call("goods", link=3))
    env.step("有货的，券后19.9元")
    print(f"{env.tasks} episodes, the second of them:", env.render(), sep="\n")


if __name__ == "__main__":
    main()
