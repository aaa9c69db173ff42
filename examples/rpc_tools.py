"""Product search and rule service behind an RPC of one's own; the other tools stay as they are.

Run: python examples/rpc_tools.py
Serve: livestream-env serve --sandbox examples.rpc_tools:make_sandbox
"""

from __future__ import annotations

import asyncio
import random
from typing import Any

import livestream_env as le
from livestream_env.sandbox import LocalSandbox, Upstream

GOODS = [
    {"link_no": 1, "title": "淡盐烘焙巴旦木 500克罐装", "promoPriceCent": 4990, "stock": 320},
    {"link_no": 2, "title": "奶香烘焙巴旦木 500克罐装", "promoPriceCent": 5290, "stock": None},
]
RULES = {"价格咨询": "报券后价，带上链接号。", "发货物流": "报时效，不承诺到达日期。"}
SERVICES = {"goods": Upstream("goods", at_once=4, per_s=200), "rules": Upstream("rules")}
LATE_S = 0.005


async def call_rpc(service: str, key: str, seed: int) -> Any:
    """Stand in for a remote service: somewhat late, and now and then not there at all."""
    async with SERVICES[service].request(), asyncio.timeout(0.5):
        await asyncio.sleep(LATE_S)
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


def make_sandbox(room: le.Room, origin: Any = None) -> LocalSandbox:
    """Make the sandbox of an episode; `origin`, for a server, says whose it is."""
    tools = [search_product_by_keyword, get_reply_rule, "search_faq", "search_script", "hand_off"]
    return LocalSandbox(room, tools=tools, session=origin and origin.session)


ACTIONS = (
    le.Action.call("search_product_by_keyword", keyword="1号"),
    le.Action.call("search_faq", query="满多少包邮"),
    le.Action.call("get_reply_rule", intent="多少钱"),  # the policy's mistake
    le.Action.call("get_reply_rule", intent="价格咨询"),
    le.Action.reply("1号券后49.9元"),
)


def main() -> None:
    """Play one comment with six seeds; print the first transcript, and how each episode ended."""
    settings: dict[str, Any] = {"render_mode": "ansi", "on_env_error": "truncate"}
    env = le.LiveRoomEnv("snacks", comment="c03", sandbox=make_sandbox, **settings)
    for seed in range(6):
        env.reset(seed=seed)
        any(env.step(action)[3] for action in ACTIONS)
        if seed == 0:
            print(env.render(), *env.trajectory.turns[0].results[0].data, sep="\n", end="\n\n")
        print(f"seed {seed}: {env.trajectory.status}", *(e.detail for e in env.trajectory.faults))


if __name__ == "__main__":
    main()
