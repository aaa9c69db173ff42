"""verl: the agent loop of livestream rooms on three tasks, with a fake server in place of vLLM.

In training, verl makes the loop from a YAML file and gives it its own server; see
docs/trainers.md. Run it where verl is installed: `python examples/trainers/verl_agent_loop.py`.
"""

from __future__ import annotations

import asyncio
import json
from typing import Any

from omegaconf import OmegaConf
from tiny_model import tiny_tokenizer
from verl.experimental.agent_loop.agent_loop import DictConfigWrap
from verl.workers.rollout.replica import TokenOutput

from livestream_env.adapters.setup import task_rows
from livestream_env.adapters.verl import LiveRoomAgentLoop

CALL = '<tool_call>\n{"name": "get_reply_rule", "arguments": {"intent": "闲聊互动"}}\n</tool_call>'
SAID = (CALL, "亲，欢迎来到直播间")
CONFIG = OmegaConf.create(
    {
        "actor_rollout_ref": {"rollout": {"prompt_length": 16000, "response_length": 4000}},
        "data": {},
    }
)


class FakeServer:
    """Looks the rule of small talk up, then says hello, whoever asks what."""

    async def generate(self, request_id: str, *, prompt_ids: list[int], **_: Any) -> TokenOutput:
        made = tiny_tokenizer()
        turn = made.decode(prompt_ids).count("<|im_start|>assistant") - 1
        ids = made(SAID[turn] + "<|im_end|>", add_special_tokens=False)["input_ids"]
        return TokenOutput(token_ids=ids, log_probs=[-0.5] * len(ids), stop_reason="completed")


def make_loop() -> Any:
    """Make a loop, as verl does for each episode."""
    return LiveRoomAgentLoop(
        trainer_config=DictConfigWrap(CONFIG),
        server_manager=FakeServer(),
        tokenizer=tiny_tokenizer(),
        processor=None,
        dataset_cls=object,
        data_config=DictConfigWrap(CONFIG.data),
        setup={"room": "snacks", "embedder": "lexical", "masker": "end_to_end"},
    )


async def main() -> None:
    """Play three rows and print what verl trains."""
    rows = [row.to_json() for row in task_rows("snacks", count=3, embedder="lexical")]
    played = await asyncio.gather(*(make_loop().run({}, extra_info=row) for row in rows))
    for row, outputs in zip(rows, played, strict=True):
        for output in outputs:
            told = {
                "comment": row["comment"],
                "prompt": len(output.prompt_ids),
                "response": len(output.response_ids),
                "trained": sum(output.response_mask),
                "reward": output.reward_score,
            }
            print(json.dumps(told))


if __name__ == "__main__":
    asyncio.run(main())
