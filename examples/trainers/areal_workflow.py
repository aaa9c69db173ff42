"""AReaL: the workflow of livestream rooms on three tasks, with a fake engine in place of SGLang.

In training, `PPOTrainer.train(workflow=..., workflow_kwargs=...)` names the class and AReaL does
the rest; see docs/trainers.md. Run it where AReaL is installed:
`python examples/trainers/areal_workflow.py`.
"""

from __future__ import annotations

import json
from typing import Any

from areal.api import ModelResponse
from areal.api.cli_args import GenerationHyperparameters, InferenceEngineConfig
from areal.infra import WorkflowExecutor
from tiny_model import tiny_tokenizer

from livestream_env.adapters.areal import LiveRoomWorkflow
from livestream_env.adapters.setup import task_rows

CALL = '<tool_call>\n{"name": "get_reply_rule", "arguments": {"intent": "闲聊互动"}}\n</tool_call>'
SAID = (CALL, "亲，欢迎来到直播间")


class FakeEngine:
    """Looks the rule of small talk up, then says hello, whoever asks what."""

    def get_version(self) -> int:
        return 0

    async def agenerate(self, request: Any) -> Any:
        made = tiny_tokenizer()
        turn = made.decode(request.input_ids).count("<|im_start|>assistant") - 1
        sampled = made(SAID[turn] + "<|im_end|>", add_special_tokens=False)["input_ids"]
        return ModelResponse(
            input_tokens=request.input_ids,
            output_tokens=sampled,
            output_logprobs=[-0.5] * len(sampled),
            output_versions=[self.get_version()] * len(sampled),
            stop_reason="stop",
        )


def main() -> None:
    """Play three rows by AReaL's executor and print what it trains."""
    workflow = LiveRoomWorkflow(
        GenerationHyperparameters(max_new_tokens=512),
        tiny_tokenizer(),
        "snacks",
        embedder="lexical",
        masker="end_to_end",
    )
    config = InferenceEngineConfig(backend="sglang:d1", consumer_batch_size=3)
    executor = WorkflowExecutor(config, FakeEngine())
    executor.initialize()
    for row in task_rows("snacks", count=3, embedder="lexical"):
        [made] = executor.rollout_batch([row.to_json()], workflow)
        told = {
            "comment": row.comment,
            "tokens": made["input_ids"].shape[1],
            "trained": int(made["loss_mask"].sum()),
            "reward": made["rewards"].item(),
        }
        print(json.dumps(told))
    executor.destroy()


if __name__ == "__main__":
    main()
