"""A tiny model learns in SkyRL's JAX engine, on rooms that the generator makes, on a CPU.

    .venvs/skyrl/bin/python benchmarks/learning_skyrl.py --seeds 40 41 42 43 44

Rooms, wording and model are those of `learning_rooms`. Episodes are played by SkyRL's generator
with this package's masks and rewards, `adapters.skyrl.LiveRoomGenerator`; its client is SkyRL's JAX
engine, which samples from the adapter that it trains; advantages are SkyRL's GRPO, the loss is the
engine's `ppo`. SkyRL's own trainer, which needs GPUs, is not in it: `learn` is the loop.

Fixed before these seeds were run, and not changed after: the settings below, chosen on seeds 301
and 310 and their rooms of the split `train` alone; the seeds; the rooms of `evaluation_tasks`,
1,024 of each kind for each seed, which nothing had been trained or measured on; that every seed is
run to its end and told. It counts as learning if on the split `test` the mean reward rises by 0.10
or more in at least 4 of the 5 seeds.
"""

from __future__ import annotations

import asyncio
import itertools
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

sys.path.append(str(Path(__file__).parents[1] / "tests" / "trainers"))
import numpy as np
import skyrl_gym
import skyrl_on_311  # noqa: F401
import torch
from learning_rooms import (
    SETUP,
    Teacher,
    comment_of,
    compared,
    evaluation_tasks,
    make_model,
    make_tokenizer,
    run_seeds,
    training_tasks,
    warm_up,
)
from skyrl.backends.jax import JaxBackend, JaxBackendConfig
from skyrl.backends.skyrl_train.utils.ppo_utils import compute_grpo_outcome_advantage
from skyrl.tinker import types
from skyrl.tinker.engine import prepare_model_pass_batch, prepare_sample_batch
from skyrl.train.config import GeneratorConfig, SkyRLGymConfig
from skyrl.train.generators.utils import prepare_generator_input

from livestream_env.adapters.setup import Setup, TaskRow
from livestream_env.adapters.skyrl import LiveRoom, LiveRoomGenerator
from livestream_env.adapters.text_room import TextRoom

LONGEST = 16
"""Tokens of a message at most."""
RESULT = ("<tool_response>\n", "\n</tool_response>")


class TinyRoom(LiveRoom):
    """Rooms with the wording of `learning_rooms`."""

    setup = Setup(**SETUP)


class Engine:
    """SkyRL's JAX engine with one adapter; as the client of SkyRL's generator it samples for all
    episodes that wait at once, by seeds in their order, since SkyRL starts them in any."""

    def __init__(self, folder: str, tokenizer: Any, seed: int, batch: int) -> None:
        config = JaxBackendConfig(
            max_lora_adapters=2, max_lora_rank=64, sample_max_num_sequences=batch
        )
        self.backend = JaxBackend(folder, config)
        adapter = types.LoraConfig(rank=64, alpha=64, seed=seed)
        self.backend.create_model("policy", adapter)
        self.backend.models["policy"].loaded_checkpoint_id = "live"
        self._tokenizer, self._seeds = tokenizer, itertools.count(1_000_000 * seed)
        self._asked: list[tuple[str, list[int], asyncio.Future[Any]]] = []

    async def generate(self, given: Any, model: str | None = None) -> Any:
        loop = asyncio.get_running_loop()
        (ids,), (session,) = given["prompt_token_ids"], given["session_ids"]
        self._asked.append((session, list(ids), loop.create_future()))
        if len(self._asked) == 1:
            loop.call_soon(self._sample)
        sequence = await self._asked[-1][2]
        return {
            "responses": [self._tokenizer.decode(sequence.tokens, skip_special_tokens=True)],
            "response_ids": [list(sequence.tokens)],
            "stop_reasons": [sequence.stop_reason],
            "response_logprobs": [list(sequence.logprobs)],
        }

    def _sample(self) -> None:
        asked, self._asked = sorted(self._asked, key=lambda one: one[0]), []
        requests = {
            str(at): (
                "policy",
                types.SampleInput(
                    prompt=_input(ids),
                    sampling_params=types.SamplingParams(
                        temperature=1.0,
                        max_tokens=LONGEST,
                        seed=next(self._seeds),
                        stop_tokens=[self._tokenizer.eos_token_id],
                    ),
                    num_samples=1,
                    checkpoint_id="live",
                    prompt_logprobs=False,
                ),
            )
            for at, (_, ids, _) in enumerate(asked)
        }
        made = self.backend.sample(prepare_sample_batch(requests))
        for at, (*_, future) in enumerate(asked):
            future.set_result(made[str(at)].sequences[0])

    async def finish_session(self, session: str) -> None:
        """Nothing is held for an episode."""

    def learn(self, output: Mapping[str, Any], groups: Sequence[str], rate: float) -> None:
        """Take one step on what the generator gave."""
        totals = torch.tensor([[float(np.sum(one))] for one in output["rewards"]])
        advantages, _ = compute_grpo_outcome_advantage(
            totals, torch.ones_like(totals), np.array(groups)
        )
        columns = ("prompt_token_ids", "response_ids", "loss_masks", "rollout_logprobs")
        data = [
            _datum(*row, advantage)
            for *row, advantage in zip(
                *(output[name] for name in columns), advantages[:, 0].tolist(), strict=True
            )
        ]
        given = types.ForwardBackwardInput(data=data, loss_fn="ppo")
        self.backend.forward_backward(prepare_model_pass_batch({"step": ("policy", given)}))
        adam = types.AdamParams(
            learning_rate=rate, beta1=0.9, beta2=0.95, eps=1e-8, weight_decay=0.0
        )
        self.backend.optim_step("policy", types.OptimStepInput(adam_params=adam))


def _input(ids: Sequence[int]) -> Any:
    return types.ModelInput(chunks=[types.EncodedTextChunk(tokens=list(ids))])


def _datum(
    prompt: list[int], response: list[int], mask: list[int], logprobs: list[float], advantage: float
) -> Any:
    ids, before = [*prompt, *response], [0.0] * (len(prompt) - 1)
    weights = [*before, *map(float, mask)]
    told = {
        "target_tokens": ids[1:],
        "weights": weights,
        "advantages": [advantage * weight for weight in weights],
        "logprobs": [*before, *logprobs],
    }
    inputs = {name: types.TensorData(data=values) for name, values in told.items()}
    return types.Datum(model_input=_input(ids[:-1]), loss_fn_inputs=types.LossFnInputs(**inputs))


class TeacherClient:
    """The teacher in the engine's place, so that what it says is in SkyRL's own tokens."""

    def __init__(self, tokenizer: Any, rows: Sequence[TaskRow], seed: int) -> None:
        env = TinyRoom.setup.make_env(rows[0].room)
        self._comments = [comment_of(env, row) for row in rows]
        self._tokenizer = tokenizer
        self._teachers = [Teacher(len(rows) * seed + at) for at in range(len(rows))]

    async def generate(self, given: Any, model: str | None = None) -> Any:
        task = int(given["session_ids"][0].partition("_")[0])
        told = self._tokenizer.decode(given["prompt_token_ids"][0])
        first = told.count("<|im_start|>assistant") == 1
        said = self._teachers[task].says(self._comments[task], told, first=first)
        end = self._tokenizer.eos_token
        ids = self._tokenizer(said + end, add_special_tokens=False)["input_ids"]
        return {"responses": [said], "response_ids": [ids], "stop_reasons": ["stop"]}

    async def finish_session(self, session: str) -> None:
        """Nothing is held for an episode."""


def play(
    client: Any, tokenizer: Any, rows: Sequence[TaskRow], *, copies: int = 1, max_turns: int = 8
) -> tuple[Any, Any]:
    """Play rows by SkyRL's generator; return its output and the groups."""
    config, gym = GeneratorConfig(), SkyRLGymConfig(max_env_workers=0)
    config.batched, config.max_turns, config.max_input_length = False, max_turns, 256
    config.sampling_params.logprobs = 0 if isinstance(client, Engine) else None
    generator = LiveRoomGenerator(config, gym, client, tokenizer)
    prompts = [
        {"prompt": [], "env_class": "liveroom", "env_extras": row.to_json(), "uid": str(at)}
        for at, row in enumerate(rows)
    ]
    batch, groups = prepare_generator_input(prompts, copies, None, "liveroom", "train", 0)
    return asyncio.run(generator.generate(batch, disable_tqdm=True)), groups


def learn(
    seed: int,
    *,
    steps: int = 48,
    warm_steps: int = 1000,
    episodes: int = 1500,
    held_out: int = 1024,
    batch: int = 96,
    learning_rate: float = 2e-3,
    max_turns: int = 8,
) -> dict[str, Any]:
    """Train one seed and return its figures: rewards by step, and before and after on `held_out`
    tasks of each kind."""
    begun = time.time()
    skyrl_gym.envs.registration.registry.pop("liveroom", None)
    skyrl_gym.register("liveroom", entry_point=TinyRoom)
    training, sets = training_tasks(seed, episodes), evaluation_tasks(seed, held_out)
    tokenizer = _tokenizer(training)
    model = make_model(tokenizer, seed)
    played, _ = play(TeacherClient(tokenizer, training, seed), tokenizer, training)
    taken = [
        ([*prompt, *response], [*([0] * len(prompt)), *mask])
        for prompt, response, mask in zip(
            *(played[name] for name in ("prompt_token_ids", "response_ids", "loss_masks")),
            strict=True,
        )
    ]
    warm_loss = warm_up(model, tokenizer, taken, warm_steps, seed)
    folder = tempfile.mkdtemp()
    model.save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    engine = Engine(folder, tokenizer, seed, batch)
    warm_s = time.time() - begun

    def rewards(rows: Sequence[TaskRow]) -> dict[int, float]:
        output, _ = play(engine, tokenizer, rows, max_turns=max_turns)
        return {
            row.seed: float(np.sum(one)) for row, one in zip(rows, output["rewards"], strict=True)
        }

    before = {name: rewards(rows) for name, rows in sets.items()}
    trained = []
    for step in range(1, steps + 1):
        first = (step - 1) * batch // 8
        rows = [training[(first + at) % episodes] for at in range(batch // 8)]
        output, groups = play(engine, tokenizer, rows, copies=8, max_turns=max_turns)
        engine.learn(output, groups, learning_rate)
        trained.append((step, round(float(np.mean([np.sum(one) for one in output["rewards"]])), 4)))
        print(*trained[-1], flush=True)
    return {
        "seed": seed,
        "steps": steps,
        "warm_loss": round(warm_loss, 4),
        "trained": trained,
        **{name: compared(before[name], rewards(rows)) for name, rows in sets.items()},
        "warm_s": round(warm_s),
        "all_s": round(time.time() - begun),
    }


def _tokenizer(rows: Sequence[TaskRow]) -> Any:
    """Return a tokenizer of the rows' comments; what `LiveRoom` tells of tools is one token."""
    room, env = TextRoom(TinyRoom.setup), TinyRoom.setup.make_env(rows[0].room)
    system, _ = room.first_messages(room.open(row=rows[0])[0])
    begin, end = RESULT
    framing = [f"system\n{system.content}", f"user\n{begin}", end, f"{end}\n{begin}"]
    return make_tokenizer([f" {comment_of(env, row).text}" for row in rows], framing)


if __name__ == "__main__":
    torch.set_num_threads(1)
    run_seeds(learn, Path(__file__).with_suffix(".json"), __doc__.splitlines()[0])
