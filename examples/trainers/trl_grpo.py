"""TRL: GRPO on livestream rooms, two steps of a model of three thousand weights.

A real run differs by the model alone. `--trls-loop` leaves the loop to TRL; see docs/trainers.md.
Run it where TRL is installed: `python examples/trainers/trl_grpo.py`.
"""

from __future__ import annotations

import sys
import tempfile
from typing import Any

from datasets import Dataset
from tiny_model import tiny_tokenizer
from transformers import Qwen2Config, Qwen2ForCausalLM
from trl import GRPOConfig, GRPOTrainer
from trl.chat_template_utils import qwen3_template

from livestream_env.adapters import trl
from livestream_env.adapters.data_sets import data_rows
from livestream_env.adapters.setup import Setup, task_rows

ROOM = {"room": "snacks", "embedder": "lexical"}
Room = trl.environment_class("Room", stop_ids=[tiny_tokenizer().eos_token_id], **ROOM)


def make_model(tokenizer: Any) -> Any:
    """Make a model that says random bytes; a real one comes from a hub or a folder."""
    config = Qwen2Config(
        vocab_size=len(tokenizer),
        hidden_size=8,
        intermediate_size=8,
        num_hidden_layers=1,
        num_attention_heads=1,
        num_key_value_heads=1,
        max_position_embeddings=32768,
        bos_token_id=None,
        eos_token_id=tokenizer.eos_token_id,
        pad_token_id=tokenizer.pad_token_id,
    )
    return Qwen2ForCausalLM(config)


def main() -> None:
    """Train two steps and print what TRL logs of them."""
    tokenizer, is_trls_loop = tiny_tokenizer(), "--trls-loop" in sys.argv
    rows = Dataset.from_list([*data_rows(task_rows(count=4, **ROOM), "trl", setup=Setup(**ROOM))])
    if is_trls_loop:
        tokenizer.response_template = qwen3_template  # how TRL reads calls off a reply
        mode = {"environment_factory": Room, "reward_funcs": Room.episode_reward}
    else:
        mode = {"rollout_func": trl.rollout_func(rows, **ROOM), "reward_funcs": trl.episode_reward}
    config = GRPOConfig(
        output_dir=tempfile.mkdtemp(),
        per_device_train_batch_size=2,
        num_generations=2,
        max_completion_length=16,
        max_tool_calling_iterations=8,
        max_steps=2,
        logging_steps=1,
        use_cpu=True,
        bf16=False,
        save_strategy="no",
        report_to=[],
        disable_tqdm=True,
    )
    trainer = GRPOTrainer(
        make_model(tokenizer), args=config, train_dataset=rows, processing_class=tokenizer, **mode
    )
    trainer.train()
    for line in trainer.state.log_history[:-1]:
        told = ("step", "reward", "completions/mean_length", "livestream/stop/token_limit")
        print({key: line[key] for key in told})


if __name__ == "__main__":
    main()
