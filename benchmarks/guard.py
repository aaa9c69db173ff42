"""CPU time of `guard.check`: an ordinary reply, and 100 kB of the worst text.

Run `python benchmarks/guard.py`; the budget is 2 ms for 60 or 2,000 characters after
10 messages.
"""

from __future__ import annotations

import json
import statistics
import time
from pathlib import Path

from livestream_env.guard import check

ROOT = Path(__file__).parents[1]
SEARCH = (
    '{"结果":[{"链接号":1,"商品名":"澄砚 烟酰胺精华 30毫升","商家名":"澄砚护肤","价格":169,'
    '"券后价":139,"库存":180,"属性":{"成分":"5%烟酰胺、泛醇","保质期":"三年，开封后6个月"},'
    '"优惠":[{"说明文字":"每单满300减40，能和商品券同用"}]}]}'
)
TURN = [
    {"role": "assistant", "content": None, "tool_calls": []},
    {"role": "tool", "tool_call_id": "c", "content": SEARCH},
]
MESSAGES = [
    {"role": "system", "content": "你是带货主播。工具能查到的内容必须查，不凭印象回答。" * 10},
    {"role": "user", "content": '## 现场\n"观众弹幕": [{"弹幕":"多少钱，保证有效吗"}]\n请开始'},
    *TURN * 4,
]
REPLIES = {
    "clean": (
        "亲，1号链接这款精华页面价169元，领券后139元，满300还能减40，"
        "拍下后48小时内从杭州发货，最近单子多，别着急哦，有问题再问"
    ),
    "five findings": (
        "亲，这款全网最低只要99元，保证三天见效，还能治疗痘痘，加薇❤聊，"
        "1 3 8 0 0 1 3 8 0 0 0随时找我，手慢无"
    ),
    "English": "It's $24.50, or $19.99 with the coupon, best before 2027, link 1",
}
CASES = json.loads((ROOT / "tests" / "guard_cases.json").read_text(encoding="utf-8"))
SCENES = CASES["scenes"]


def long_reply(scene: str, between: str) -> str:
    """Join the clean replies of a scene to 2,000 characters."""
    told = [c["reply"] for c in (*CASES["clean"], *CASES["clean_aside"]) if c["scene"] == scene]
    return (between.join(told) * 3)[:2000]


LONG_REPLIES = {
    "2,000 Chinese": (SCENES["cream"], long_reply("cream", "。")),
    "2,000 English": (SCENES["serum"], long_reply("serum", ". ")),
    "2,000 mixed": (
        SCENES["cream"],
        long_reply("cream", "。")[:1000] + long_reply("serum", ". ")[:1000],
    ),
    "2,000 of prices": (MESSAGES, (REPLIES["clean"] * 31)[:2000]),
}
LONG = ("的", "最", "1 ", "$1,", "保证", "加我", "a1", "路1号")


def cpu_ms(messages: list[dict[str, object]], reply: str, repeats: int) -> float:
    """Return the median CPU milliseconds of a check."""
    times: list[float] = []
    for _ in range(repeats):
        start = time.process_time()
        check(messages, reply)
        times.append((time.process_time() - start) * 1e3)
    return statistics.median(times)


def main() -> None:
    """Print the table."""
    start = time.process_time()
    check([], "x")
    print(f"first check, lists read and compiled: {(time.process_time() - start) * 1e3:.0f} ms")
    print(f"{'reply':>16} {'characters':>10} {'ms':>8}  (budget 2)")
    for name, reply in REPLIES.items():
        print(f"{name:>16} {len(reply):>10} {cpu_ms(MESSAGES, reply, 500):>8.2f}")
    for name, (messages, reply) in LONG_REPLIES.items():
        print(f"{name:>16} {len(reply):>10} {cpu_ms(messages, reply, 100):>8.2f}")
    for unit in LONG:
        reply = unit * (100_000 // len(unit))
        print(f"{unit + ' ...':>16} {len(reply):>10} {cpu_ms(MESSAGES, reply, 1):>8.0f}")


if __name__ == "__main__":
    main()
