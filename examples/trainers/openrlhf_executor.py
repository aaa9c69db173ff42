"""OpenRLHF: the executor of livestream rooms on three tasks, with a fake engine in place of vLLM.

In training, the file of `--train.agent_func_path` holds the line that makes `AgentExecutor`, and
OpenRLHF's actor does the rest; see docs/trainers.md. Run it where OpenRLHF is installed:
`python examples/trainers/openrlhf_executor.py`.
"""

from __future__ import annotations

import asyncio
import json
from types import SimpleNamespace
from typing import Any

from tiny_model import tiny_tokenizer

from livestream_env.adapters.openrlhf import agent_executor
from livestream_env.adapters.setup import task_rows

CALL = '<tool_call>\n{"name": "get_reply_rule", "arguments": {"intent": "闲聊互动"}}\n</tool_call>'
SAID = (CALL, "亲，欢迎来到直播间")
AgentExecutor = agent_executor("snacks", embedder="lexical", masker="end_to_end")


class FakeEngine:
    """Looks the rule of small talk up, then says hello, whoever asks what."""

    async def generate(self, ids: list[int], params: Any, multi_modal_data: Any = None) -> Any:
        made = tiny_tokenizer()
        turn = made.decode(ids).count("<|im_start|>assistant") - 1
        sampled = made(SAID[turn] + "<|im_end|>", add_special_tokens=False)["input_ids"]
        logprobs = [{token: SimpleNamespace(logprob=-0.5)} for token in sampled]
        output = SimpleNamespace(token_ids=sampled, logprobs=logprobs, finish_reason="stop")
        return SimpleNamespace(outputs=[output])


async def main() -> None:
    """Play three labels and print what OpenRLHF trains."""
    for row in task_rows("snacks", count=3, embedder="lexical"):
        response = await AgentExecutor().execute(
            prompt="",
            label=json.dumps(row.to_json()),
            sampling_params=SimpleNamespace(max_tokens=None, logprobs=1, stop_token_ids=None),
            max_length=20000,
            hf_tokenizer=tiny_tokenizer(),
            llm_engine=FakeEngine(),
        )
        told = {
            "comment": row.comment,
            "tokens": len(response["observation_tokens"]),
            "trained": sum(end - start for start, end in response["action_ranges"]),
            "reward": response["reward"],
        }
        print(json.dumps(told))


if __name__ == "__main__":
    asyncio.run(main())
