"""slime: the generate function of livestream rooms on three tasks, with a fake router.

In training, slime calls `slime_generate.generate`, the `--custom-generate-function-path`, with its
own router; see docs/trainers.md. Run it where slime is installed: `python
examples/trainers/slime_generate.py`.
"""

from __future__ import annotations

import asyncio
from argparse import Namespace
from types import SimpleNamespace
from typing import Any

from fake_chat import SAID
from slime.rollout import sglang_rollout
from slime.utils.types import Sample
from tiny_model import tiny_tokenizer

from livestream_env.adapters.setup import Setup, task_rows
from livestream_env.adapters.slime import generate_with

generate = generate_with(Setup("snacks", embedder="lexical", rubric="single4"))


async def fake_post(url: str, payload: dict[str, Any], headers: object = None) -> dict[str, Any]:
    """Sample as SGLang's router would, in the place of slime's `post`."""
    made = tiny_tokenizer()
    turn = made.decode(payload["input_ids"]).count("<|im_start|>assistant") - 1
    ids = made(SAID[turn] + "<|im_end|>", add_special_tokens=False)["input_ids"]
    pairs = [[-0.5, token, None] for token in ids]
    return {"meta_info": {"finish_reason": {"type": "stop"}, "output_token_logprobs": pairs}}


async def main() -> None:
    """Play three tasks and print what slime trains."""
    sglang_rollout.post = fake_post
    sglang_rollout.GenerateState = lambda args: SimpleNamespace(
        tokenizer=tiny_tokenizer(), aborted=False
    )
    args = Namespace(sglang_router_ip="127.0.0.1", sglang_router_port=1)
    for index, row in enumerate(task_rows("snacks", count=3, embedder="lexical")):
        sample = Sample(index=index, group_index=index, metadata=row.to_json())
        for made in await generate(args, sample, {"max_new_tokens": 4000}):
            trained = sum(made.loss_mask)
            print(row.task_id, made.status, len(made.tokens), trained, made.reward)


if __name__ == "__main__":
    asyncio.run(main())
