"""An agent of one's own, played eight times on one comment (a group, as GRPO samples it).

Run: python examples/own_agent.py
"""

from __future__ import annotations

import json
import random
from collections.abc import Sequence
from typing import Any

import livestream_env as le


class Host:
    """Searches the comment's words - or forgets to -, looks up the rule, reads out what it found.

    One object serves any number of threads: what an episode keeps lives in what `start` returns.
    """

    def __init__(self, text: str = "", is_diligent: bool = True) -> None:
        self.text = text
        self.is_diligent = is_diligent

    def start(self, observation: le.Observation, *, seed: Any) -> Host:
        """Return the agent of one episode; its seed is (group seed, number of the member)."""
        return Host(observation.comments[0].text, random.Random(str(seed)).random() < 0.7)

    def act(self, messages: Sequence[le.Message], tools: Sequence[le.ToolSpec]) -> le.Action:
        """Return the next message, given the whole conversation: a tool call, or the reply."""
        results = [message.content for message in messages if message.role == "tool"]
        if not results and self.is_diligent:
            return le.Action.call("search_faq", query=self.text)
        if len(results) < 2 and "回复规则" not in "".join(results):
            return le.Action.call("get_reply_rule", intent="发货物流")
        hits = json.loads(results[0])["结果"] if self.is_diligent else []
        return le.Action.reply(f"亲，{hits[0]['答案']}" if hits else "亲，以商品页面为准")


def main() -> None:
    """Play a group and print its replies."""
    group = le.rollout_group(
        lambda: le.LiveRoomEnv("snacks", comment="c10"), Host(), size=8, seed=0, max_workers=4
    )
    for trajectory in group:
        calls = sum(len(turn.action.message.tool_calls) for turn in trajectory.turns)
        print(f"{trajectory.stop_reason}, {calls} calls: {trajectory.reply}")
    print(f"group `{group[0].group}`: {len({t.reply for t in group})} different replies")


if __name__ == "__main__":
    main()
