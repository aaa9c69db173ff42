"""ROLL: what its managers see of an episode, in both dialects, and the rows of two clusters.

ROLL's managers run with ROLL alone; this needs GEM, whose environments they play (`pip install
gem-llm requests`): `python examples/trainers/roll_rooms.py`.
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import gem

import livestream_env as le
from livestream_env.adapters import roll
from livestream_env.adapters.setup import Setup
from livestream_env.renderers import ChatTemplateRenderer

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))
from loss_masks import byte_tokenizer
from shared_weights import REPLIES, RULE, SEARCH, policy

OPTIONS = {"room": "snacks", "embedder": "lexical", "rubric": "single4"}
QUESTION = {"comment": "c02"}
SAID = (SEARCH, RULE, REPLIES[0])


def text_dialect() -> None:
    """Play as `TrajEnvManager` does: the answer to each observation is a text."""
    env = gem.make("LiveRoomText-v0", **OPTIONS, **QUESTION)
    observed, info = env.reset(seed=7)
    print("text: system text of", len(info["env_instruction"]), "characters,", len(observed), "new")
    for answer in SAID:
        observed, reward, terminated, _, info = env.step(answer)
    print("text: reward", reward, "ended", terminated, "turns", info["metrics"]["turns"])


def messages_dialect() -> None:
    """Play as `AgentNativeStepEnvManager` does: chat messages, tools beside them."""
    env = gem.make("LiveRoomMessages-v0", **OPTIONS, **QUESTION)
    observed, info = env.reset(seed=7)
    print("messages:", [one["role"] for one in observed], "and", len(info["tools"]), "tools")
    for answer in SAID:
        observed, reward, _, _, info = env.step(answer)
        print("messages: then", observed[-1]["role"], "reward", reward)


def two_clusters() -> dict[str, list[dict[str, Any]]]:
    """Return the step rows of a tool caller and a replier, a batch for the cluster of each."""
    agents = {"tool_caller": "tool_calls", "replier": "reply"}
    setup = Setup(**OPTIONS, agents=agents)
    renderers = {name: ChatTemplateRenderer(byte_tokenizer()) for name in agents}
    team = le.AgentTeam(**{name: policy(made, seed=3) for name, made in renderers.items()})
    played = le.rollout(setup.make_env(), team, **setup.opening(setup.row({"seed": 7})))
    return roll.batches(setup.rows(played, renderers), {"tool_caller": "small", "replier": "large"})


def main() -> None:
    """Play an episode in each dialect and print what a trainer gets."""
    roll.register()
    text_dialect()
    messages_dialect()
    for cluster, steps in two_clusters().items():
        rewards = [step["step_scores"] for step in steps]
        print(f"cluster {cluster}: {len(steps)} step rows, step_scores {rewards}")


if __name__ == "__main__":
    main()
