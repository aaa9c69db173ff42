"""One set of weights, two agents: rows tagged by agent, and the same as step rewards.

Needs the extra `tokens`. Run: python examples/shared_weights.py
"""

from __future__ import annotations

import random

from loss_masks import byte_tokenizer

import livestream_env as le
from livestream_env.renderers import ChatTemplateRenderer

CALL = '<tool_call>\n{{"name": "{}", "arguments": {{"{}": "{}"}}}}\n</tool_call>'
SEARCH = CALL.format("search_product_by_keyword", "keyword", "1号链接")
RULE = CALL.format("get_reply_rule", "intent", "价格咨询")
REPLIES = ("亲，1号链接59.9元，券后49.9元，以下单页为准", "亲，1号链接29.9元哦")


def policy(renderer: ChatTemplateRenderer, *, seed: int) -> le.TokenAgent:
    """Return an untrained policy: it may skip the search, and may say a wrong price."""
    drawn, tokenizer = random.Random(seed), renderer.tokenizer

    def generate(ids: tuple[int, ...], stop: tuple[int, ...]) -> le.Sampled:
        called = tokenizer.decode(ids).split("</tool_call>")
        if len(called) > 1 and "get_reply_rule" in called[-2].rpartition("<tool_call>")[2]:
            text = drawn.choice(REPLIES)
        else:
            text = RULE if len(called) > 1 else drawn.choice((SEARCH, RULE))
        sampled = tokenizer(f"{text}<|im_end|>", add_special_tokens=False)["input_ids"]
        return le.Sampled(tuple(sampled), tuple(-0.1 for _ in sampled))

    return le.TokenAgent(generate, renderer)


def room_env() -> le.LiveRoomEnv:
    """Return an environment of one comment, scored later."""
    return le.LiveRoomEnv("snacks", comment="c02", embedder="lexical", rubric=None)


def main() -> None:
    """Make the rows of a group, for each agent and joined."""
    renderer = ChatTemplateRenderer(byte_tokenizer())
    shared = policy(renderer, seed=5)
    team = le.AgentTeam(tool_caller=shared, replier=shared)
    group = le.rollout_group(room_env, team, size=4, seed=1)

    rows = le.training_rows(group, renderer, rubric="multi22", advantages="drmas")
    for row in rows:
        print(
            f"{row.trajectory_id:15} {row.agent:11} reward {row.reward:.2f} advantage"
            f" {row.advantage:+.2f} on {sum(row.loss_mask)} of {len(row.token_ids)} tokens"
        )
    print("--- step rewards: one row a trajectory, each turn with its agent's advantage")
    for row in le.to_step_rows(rows):
        turns = [
            f"{turn.agent} {row.advantages[start]:+.2f}"
            for turn, (start, _) in zip(row.turns, row.action_ranges(), strict=True)
        ]
        print(f"{row.trajectory_id:15} {', '.join(turns)}")


if __name__ == "__main__":
    main()
