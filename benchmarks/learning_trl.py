"""A tiny model learns in TRL's `GRPOTrainer`, on rooms that the generator makes, on a CPU.

    python benchmarks/learning_trl.py --seeds 30 31 32 33 34 --svg docs/training-runs-trl.svg

Rooms, wording and model are those of `learning_rooms`; the episodes are played by
`adapters.trl.rollout_func`. Rewards are measured by `GRPOTrainer.evaluate`, sampling as in
training, before the first step and after the last.

Fixed before these seeds were run, and not changed after: the settings below, chosen on seed 310
and its rooms of the split `train` alone; the seeds; the rooms of `evaluation_tasks`, 1,024 of each
kind for each seed, which nothing had been trained or measured on; that every seed is run to its end
and told. It counts as learning if on the split `test` the mean reward rises by 0.10 or more in at
least 4 of the 5 seeds.
"""

from __future__ import annotations

import itertools
import os
import tempfile
import time
import warnings
from collections import defaultdict
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from learning_rooms import (
    SETUP,
    compared,
    evaluation_tasks,
    make_model,
    make_tokenizer,
    run_seeds,
    taught,
    training_tasks,
    warm_up,
)

from livestream_env.adapters import trl
from livestream_env.adapters.setup import Setup, TaskRow
from livestream_env.renderers import ChatTemplateRenderer


def learn(
    seed: int,
    *,
    steps: int = 48,
    warm_steps: int = 1000,
    episodes: int = 1500,
    held_out: int = 1024,
    batch: int = 96,
    learning_rate: float = 7e-4,
    log_dir: str | None = None,
) -> dict[str, Any]:
    """Train one seed and return its figures: rewards by step, and before and after on `held_out`
    tasks of each kind."""
    import torch
    from trl import GRPOConfig, GRPOTrainer

    begun = time.time()
    torch.manual_seed(seed)
    training, sets = training_tasks(seed, episodes), evaluation_tasks(seed, held_out)
    played = [*taught(training, seed)]
    tokenizer = make_tokenizer([t.messages[1].content for t in played])
    model = make_model(tokenizer, seed)
    renderer = ChatTemplateRenderer(tokenizer)
    setup = Setup(**SETUP)
    rows = [row for t in played for row in setup.rows(t, renderer) if row.excluded is None]
    taken = [(row.token_ids, row.loss_mask) for row in rows]
    warm_loss = warm_up(model, tokenizer, taken, warm_steps, seed)
    warm_s = time.time() - begun
    told = {name: _data_set(given) for name, given in sets.items()}
    train_set = _data_set(training[: steps * batch // 8])
    config = GRPOConfig(
        output_dir=tempfile.mkdtemp(),
        seed=seed,
        use_cpu=True,
        bf16=False,
        gradient_checkpointing=False,
        per_device_train_batch_size=batch,
        per_device_eval_batch_size=256,
        num_generations=8,
        num_generations_eval=1,
        max_completion_length=96,
        learning_rate=learning_rate,
        lr_scheduler_type="constant",
        max_steps=steps,
        logging_steps=1,
        eval_strategy="steps",
        eval_steps=steps,
        eval_on_start=True,
        save_strategy="no",
        report_to=[],
        disable_tqdm=True,
        beta=0.0,
    )
    rewards: dict[tuple[int, str], dict[int, float]] = defaultdict(dict)

    def noted(trainer_state: Any, room: Sequence[str], seed: Sequence[int], **told: Any) -> Any:
        earned = trl.episode_reward(**told)
        for name, number, reward in zip(room, seed, earned, strict=True):
            rewards[trainer_state.global_step, name][number] = reward
        return earned

    trainer = GRPOTrainer(
        model=model,
        args=config,
        train_dataset=train_set,
        eval_dataset=told,
        processing_class=tokenizer,
        rollout_func=trl.rollout_func(
            itertools.chain(train_set, *told.values()), log_dir=log_dir, **SETUP
        ),
        reward_funcs=noted,
    )
    for callback in list(trainer.callback_handler.callbacks):
        if type(callback).__name__ == "PrinterCallback":
            trainer.remove_callback(callback)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        trainer.train()
    measured = {}
    for name, given in sets.items():
        asked = {row.seed for row in given}
        before, after = (
            {task: rewards[step, given[0].room][task] for task in asked} for step in (0, steps)
        )
        measured[name] = compared(before, after)
    return {
        "seed": seed,
        "steps": steps,
        "warm_loss": round(warm_loss, 4),
        "trained": [
            (line["step"], round(line["reward"], 4))
            for line in trainer.state.log_history
            if "reward" in line
        ],
        **measured,
        "warm_s": round(warm_s),
        "all_s": round(time.time() - begun),
    }


def _data_set(rows: Sequence[TaskRow]) -> Any:
    """Return rows with their ids as prompts: the room gives the first messages."""
    from datasets import Dataset

    told = [[{"role": "user", "content": row.task_id}] for row in rows]
    return Dataset.from_list(
        [{"prompt": prompt, **row.to_json()} for prompt, row in zip(told, rows, strict=True)]
    )


if __name__ == "__main__":
    import torch

    os.environ.setdefault("TRL_EXPERIMENTAL_SILENCE", "1")
    torch.set_num_threads(1)
    run_seeds(learn, Path(__file__).with_suffix(".json"), __doc__.splitlines()[0])
