"""Product search and rule service behind an RPC of one's own; the other tools stay as they are.

Run: python examples/rpc_tools.py
"""

from __future__ import annotations

import asyncio
import json
import random
from collections.abc import Sequence
from typing import Any

import livestream_env as le

GOODS = [
    {"link_no": 1, "title": "淡盐烘焙巴旦木 500克罐装", "promoPriceCent": 4990, "stock": 320},
    {"link_no": 2, "title": "奶香烘焙巴旦木 500克罐装", "promoPriceCent": 5290, "stock": None},
]
RULES = {"价格咨询": "报券后价，带上链接号。", "发货物流": "报时效，不承诺到达日期。"}


async def call_rpc(service: str, key: str, seed: int) -> Any:
    """Stand in for a remote service: some milliseconds late, and now and then not there at all."""
    await asyncio.sleep(0.005)
    if random.Random(f"{seed} {service} {key}").random() < 0.15:
        raise ConnectionError(f"{service} did not answer")
    if service == "rules":
        return RULES.get(key)
    return [item for item in GOODS if key in f"{item['link_no']}号 {item['title']}"]


@le.tool(facts={"券后价": ("promoPriceCent", "fen"), "库存": ("stock", "piece")})
async def search_product_by_keyword(context: le.ToolContext, keyword: str) -> dict[str, Any]:
    """按商品名里的词或“2号”这样的链接号搜索商品，价格单位是分。"""
    return {"items": await call_rpc("goods", keyword, context.seed)}


@le.tool
async def get_reply_rule(context: le.ToolContext, intent: str) -> dict[str, str]:
    """查询一个意图的回复规则。"""
    rule = await call_rpc("rules", intent, context.seed)
    if rule is None:
        raise le.ToolError(f"没有意图「{intent}」，可查意图：{'、'.join(RULES)}")
    return {"intent": intent, "rule": rule}


class Host:
    """Looks up product, FAQ and rule - the first intent is a mistake - and reads out the price."""

    LOOK_UPS = (
        le.Action.call("search_product_by_keyword", keyword="1号"),
        le.Action.call("search_faq", query="满多少包邮"),
        le.Action.call("get_reply_rule", intent="多少钱"),
        le.Action.call("get_reply_rule", intent="价格咨询"),
    )

    def act(self, messages: Sequence[le.Message], tools: Sequence[le.ToolSpec]) -> le.Action:
        """Return the next message, given the whole conversation."""
        told = [json.loads(message.content) for message in messages if message.role == "tool"]
        if len(told) < len(self.LOOK_UPS):
            return self.LOOK_UPS[len(told)]
        item = told[0]["items"][0]
        return le.Action.reply(f"{item['link_no']}号券后{item['promoPriceCent'] / 100:g}元")


def main() -> None:
    """Play one comment with six seeds; print the first transcript, and how each episode ended."""
    tools = [search_product_by_keyword, get_reply_rule, "search_faq", "search_script", "hand_off"]
    env = le.LiveRoomEnv("snacks", comment="c03", tools=tools, render_mode="ansi")
    for seed in range(6):
        trajectory = le.rollout(env, Host(), seed=seed)
        if seed == 0:
            print(env.render(), *trajectory.turns[0].results[0].data, sep="\n", end="\n\n")
        print(f"seed {seed}: {trajectory.status}", *(fault.detail for fault in trajectory.faults))


if __name__ == "__main__":
    main()
