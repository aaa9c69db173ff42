"""SkyRL: its generator over livestream rooms on three tasks, with a fake engine in place of vLLM.

In training, SkyRL's entry point makes the generator with its own client; see docs/trainers.md. Run
it where SkyRL is installed, Python 3.12 or later: `python examples/trainers/skyrl_generator.py`.
"""

from __future__ import annotations

import asyncio
import json
from typing import Any

from skyrl.train.config import GeneratorConfig, SkyRLGymConfig
from tiny_model import tiny_tokenizer

from livestream_env.adapters.setup import task_rows
from livestream_env.adapters.skyrl import LiveRoomGenerator, register

CALL = '<tool_call>\n{"name": "get_reply_rule", "arguments": {"intent": "闲聊互动"}}\n</tool_call>'
SAID = (CALL, "亲，欢迎来到直播间")


class FakeClient:
    """Looks the rule of small talk up, then says hello, whoever asks what."""

    async def generate(self, given: Any, model: str | None = None) -> Any:
        made = tiny_tokenizer()
        turn = made.decode(given["prompt_token_ids"][0]).count("<|im_start|>assistant") - 1
        ids = made(SAID[turn] + "<|im_end|>", add_special_tokens=False)["input_ids"]
        return {
            "responses": [SAID[turn]],
            "response_ids": [ids],
            "stop_reasons": ["stop"],
            "response_logprobs": [[-0.5] * len(ids)],
        }

    async def finish_session(self, session: str) -> None:
        """Release what the engine held for the episode."""


async def main() -> None:
    """Play three rows and print what SkyRL trains."""
    register("liveroom", room="snacks", embedder="lexical", masker="end_to_end")
    config = GeneratorConfig()
    config.batched, config.max_turns, config.max_input_length = False, 8, 20000
    generator = LiveRoomGenerator(config, SkyRLGymConfig(), FakeClient(), tiny_tokenizer())
    rows = [row.to_json() for row in task_rows("snacks", count=3, embedder="lexical")]
    batch = {
        "prompts": [[] for _ in rows],
        "env_classes": ["liveroom"] * len(rows),
        "env_extras": [dict(row) for row in rows],
    }
    output = await generator.generate(batch, disable_tqdm=True)
    for at, row in enumerate(rows):
        told = {
            "comment": row["comment"],
            "response": len(output["response_ids"][at]),
            "trained": sum(output["loss_masks"][at]),
            "reward": sum(output["rewards"][at]),
        }
        print(json.dumps(told))


if __name__ == "__main__":
    asyncio.run(main())
