"""ROLL's contract in stubs, read from its source at commit 8eb27cc (August 2026).

What is kept: the order of calls, who sets which key, how prompts grow, where masks, scores and
log-probabilities lie, what ends an episode. What is left out: Ray, tensordict, tracing, clocks.
`install` puts the stubs where ROLL's modules are imported from.
"""

from __future__ import annotations

import enum
import hashlib
import sys
from collections import defaultdict
from collections.abc import Callable
from dataclasses import dataclass, field
from types import ModuleType, SimpleNamespace
from typing import Any

import gem
import numpy as np
import torch


class Stop(enum.Enum):
    FINISH = enum.auto()
    ABORT = enum.auto()
    MAX_LENGTH = enum.auto()


class EpisodeStopReason(enum.Enum):
    FINISH = "finish"
    MAX_LENGTH = "max_length"
    MAX_STEPS = "max_steps"


class DataProto:
    """Tensors and object arrays of one length."""

    def __init__(self, batch: Any = None, non_tensor_batch: Any = None, meta_info: Any = None):
        self.batch = {} if batch is None else batch
        self.non_tensor_batch = {} if non_tensor_batch is None else non_tensor_batch
        self.meta_info = {} if meta_info is None else meta_info
        assert len({len(value) for value in self._all()}) <= 1

    def _all(self) -> list[Any]:
        return [*self.batch.values(), *self.non_tensor_batch.values()]

    def __len__(self) -> int:
        return len(self._all()[0])

    def select_idxs(self, idxs: list[int]) -> DataProto:
        at = torch.tensor(idxs, dtype=torch.int32)
        batch = {key: value[at] for key, value in self.batch.items()}
        others = {key: value[at.numpy()] for key, value in self.non_tensor_batch.items()}
        return DataProto(batch, others, self.meta_info)

    @staticmethod
    def concat(data: list[DataProto]) -> DataProto:
        if len(data) == 1:
            return data[0]
        first = data[0]
        batch = {key: torch.cat([one.batch[key] for one in data]) for key in first.batch}
        others = {
            key: _listed([value for one in data for value in one.non_tensor_batch[key]])
            for key in first.non_tensor_batch
        }
        return DataProto(batch, others, dict(first.meta_info))

    def group_by(self, key: str) -> dict[str, DataProto]:
        groups = defaultdict(list)
        for at, value in enumerate(self.non_tensor_batch[key]):
            groups[str(value)].append(at)
        return {value: self.select_idxs(at) for value, at in groups.items()}


def _listed(values: list[Any]) -> np.ndarray:
    made = np.empty(len(values), dtype=object)
    for at, value in enumerate(values):
        made[at] = value
    return made


# --- proxies ----------------------------------------------------------------------------------


@dataclass
class LLMProxyConfig:
    proxy_type: str = "policy"
    proxy_config: dict[str, Any] = field(default_factory=dict)


PROXIES: dict[str, Any] = {}


def register_llm_proxy(name: str) -> Callable[[Any], Any]:
    def register(cls: Any) -> Any:
        PROXIES[name] = cls
        return cls

    return register


def create_llm_proxy(
    generate_scheduler: Any, llm_proxy_config: Any, tokenizer: Any, env: Any
) -> Any:
    cls = PROXIES[llm_proxy_config.proxy_type]
    return cls(generate_scheduler, llm_proxy_config, tokenizer, env)


@register_llm_proxy("policy")
class PolicyProxy:
    """The scheduler is a callable here: prompt ids to `Sampled`."""

    def __init__(self, generate_scheduler: Any, llm_proxy_config: Any, tokenizer: Any, env: Any):
        self.generate_scheduler = generate_scheduler

    def generate(self, messages: Any, lm_input: Any, generation_config: Any) -> Any:
        sampled = self.generate_scheduler(lm_input.batch["input_ids"][0].tolist())
        return DataProto(
            {
                "responses": torch.tensor([sampled.token_ids]),
                "infer_logprobs": torch.tensor([sampled.logprobs]),
            }
        )


# --- managers ---------------------------------------------------------------------------------


@dataclass
class RolloutCache:
    history: list[dict[str, Any]] = field(default_factory=list)
    truncated: bool = False
    terminated: bool = False
    step: int = 0


def padded(values: list[Any], length: int, dtype: Any) -> torch.Tensor:
    return torch.tensor([values + [0] * (length - len(values))], dtype=dtype)


class TrajEnvManager:
    """One row an episode; the conversation grows by what is new."""

    def __init__(
        self,
        worker_config: Any,
        pipeline_config: Any,
        env_config: Any,
        tokenizer: Any,
        generate_scheduler: Any,
        output_queue: list[Any],
        **_: Any,
    ) -> None:
        self.worker_config, self.pipeline_config = worker_config, pipeline_config
        self.env_config, self.tokenizer = env_config, tokenizer
        self.output_queue = output_queue
        self.env = gem.make(env_id=env_config["env_type"], **env_config["config"])
        self.llm_proxy = create_llm_proxy(
            generate_scheduler=generate_scheduler,
            llm_proxy_config=worker_config.llm_proxy,
            tokenizer=tokenizer,
            env=self.env,
        )

    def play(self, seed: int) -> DataProto:
        """Do for one seed what the loop does."""
        cache = self.reset(seed)
        while True:
            lm_output = self.make_decision(cache)
            stop = lm_output.meta_info.pop("stop_reason")
            if stop is Stop.FINISH or (stop is Stop.MAX_LENGTH and self.steps_at_limit):
                cache = self.step(lm_output)
            if cache.terminated or stop is Stop.MAX_LENGTH:
                rollout = self.formulate_rollouts(cache)
                named = np.array([f"{self.env_config['tag']}_0_{seed}"] * len(rollout), object)
                rollout.non_tensor_batch["traj_group_id"] = named
                self.output_queue.append(rollout)
                return rollout

    steps_at_limit = False

    def reset(self, seed: int) -> RolloutCache:
        self.rollout_cache = RolloutCache()
        observation, info = self.env.reset(seed=seed)
        left = self.env_config["max_steps"]
        self._add(observation, actions_left=left, **info)
        return self.rollout_cache

    def _add(self, observation: Any, **more: Any) -> None:
        self.rollout_cache.history.append({"observation": observation, "messages": None, **more})

    def step(self, llm_output: Any) -> RolloutCache:
        (text,) = self.tokenizer.batch_decode(
            llm_output.batch["responses"], skip_special_tokens=False
        )
        observation, reward, terminated, truncated, info = self.env.step(action=text)
        suffix = info.pop("suffix", None)
        cache, left = self.rollout_cache, self._stepped(terminated, truncated)
        if cache.step >= self.env_config["max_steps"]:
            cache.terminated = True
            cache.truncated = truncated or not terminated
        cache.history[-1] |= {"reward": reward, "llm_response": text, **info}
        self._add(observation, actions_left=left, **({} if suffix is None else {"suffix": suffix}))
        return cache

    def _stepped(self, terminated: bool, truncated: bool) -> int:
        cache = self.rollout_cache
        cache.step += 1
        cache.terminated, cache.truncated = terminated, truncated
        return int(self.env_config["max_steps"] - cache.step)

    def make_decision(self, cache: RolloutCache) -> DataProto:
        lm_input = self.format_messages(cache)
        if lm_input.batch["input_ids"].shape[1] >= self.pipeline_config.sequence_length:
            return DataProto(meta_info={"stop_reason": Stop.MAX_LENGTH})
        last = cache.history[-1]
        output = self.llm_proxy.generate(
            messages=last["messages"], lm_input=lm_input, generation_config={}
        )
        last["response_ids"] = output.batch["responses"][0].tolist()
        last["infer_logprobs"] = output.batch["infer_logprobs"][0].tolist()
        output.meta_info["stop_reason"] = Stop.FINISH
        return output

    def format_messages(self, cache: RolloutCache) -> DataProto:
        last, messages, text = cache.history[-1], [], ""
        if len(cache.history) == 1:
            messages.append({"role": "system", "content": self.env_config["system"]})
            if "env_instruction" in last:
                text = f"{last['env_instruction']}\n"
        if len(cache.history) > 1 and cache.history[-2].get("use_tool", False):
            messages.append({"role": "tool", "content": last["observation"]})
        else:
            messages.append({"role": "user", "content": text + last["observation"]})
        prompt = self._template(messages)
        before: list[int] = []
        for one in cache.history[:-1]:
            before += [*one["prompt_ids"], *one["response_ids"]]
        if before:
            prompt = [self.tokenizer.eos_token_id, *prompt]
        last |= {"prompt_ids": prompt, "messages": messages}
        return DataProto({"input_ids": torch.tensor([before + prompt])})

    def _template(self, messages: list[dict[str, Any]], tools: Any = None) -> list[int]:
        mock = [] if messages[0]["role"] == "system" else [{"role": "system", "content": ""}]
        options = {"tokenize": True, "return_dict": False}
        ids = self.tokenizer.apply_chat_template(
            mock + messages, tools=tools, add_generation_prompt=True, **options
        )
        head = self.tokenizer.apply_chat_template(mock, **options) if mock else []
        return list(ids[len(head) :])

    def formulate_rollouts(self, cache: RolloutCache) -> DataProto:
        cache.history.pop()
        scores = [one["reward"] for one in cache.history]
        parts = [(one["prompt_ids"], one["response_ids"]) for one in cache.history]
        logprobs = [one["infer_logprobs"] for one in cache.history]
        made = self._row(parts, logprobs, sum(scores))
        made.non_tensor_batch |= {
            "step_scores": np.array([scores], dtype=object),
            "episode_scores": np.array([sum(scores)], dtype=object),
        }
        made.meta_info["metrics"] = self._metrics(cache)
        return made

    def _row(
        self, parts: list[tuple[list[int], list[int]]], logprobs: list[list[float]], score: float
    ) -> DataProto:
        length = self.pipeline_config.sequence_length
        ids: list[int] = []
        mask: list[int] = []
        sampled: list[float] = []
        for (prompt, response), own in zip(parts, logprobs, strict=True):
            ids += [*prompt, *response]
            mask += [0] * len(prompt) + [1] * len(response)
            sampled += [0.0] * len(prompt) + own
        first = mask.index(1)
        return DataProto(
            {
                "input_ids": padded(ids, length, torch.long),
                "attention_mask": padded([1] * len(ids), length, torch.long),
                "response_mask": padded(mask, length, torch.bool),
                "prompt_mask": padded([1] * first, length, torch.bool),
                "scores": padded([0.0] * (len(ids) - 1) + [score], length, torch.float),
                "infer_logprobs": padded(sampled, length, torch.float)[:, 1:],
            }
        )

    def _metrics(self, cache: RolloutCache) -> dict[str, float]:
        modes = cache.history[-1].get("metrics_agg_mode", {})
        values = defaultdict(list)
        for one in cache.history:
            for key, value in one.get("metrics", {}).items():
                values[key].append(float(value))
        last = {key: own[-1] for key, own in values.items() if modes.get(key) == "last"}
        return {key: last.get(key, float(np.mean(own))) for key, own in values.items()}


class StepEnvManager(TrajEnvManager):
    """A row a turn; each prompt holds the instruction and the current observation alone."""

    def format_messages(self, cache: RolloutCache) -> DataProto:
        last = cache.history[-1]
        for one in cache.history[:-1]:
            one["metrics"].get("action_is_valid", True)
        text = f"{cache.history[0]['env_instruction']}\n{last['observation']}"
        messages = [{"role": "user", "content": text}]
        return self._prompted(last, messages, self._template(messages), last["observation"])

    def _prompted(self, last: Any, messages: Any, prompt: list[int], state: object) -> DataProto:
        last |= {"prompt_ids": prompt, "messages": messages}
        last["state_hash"] = hashlib.sha256(str(state).encode()).hexdigest()
        return DataProto({"input_ids": torch.tensor([prompt])})

    def formulate_rollouts(self, cache: RolloutCache) -> DataProto:
        cache.history.pop()
        total = sum(one["reward"] for one in cache.history)
        rows = []
        for at, one in enumerate(cache.history):
            if "response_ids" not in one:
                break
            parts = [(one["prompt_ids"], one["response_ids"])]
            row = self._row(parts, [one["infer_logprobs"]], one["reward"])
            told = {"step_scores": one["reward"], "episode_scores": total, "step": at}
            told["state_hash"] = one["state_hash"]
            row.non_tensor_batch |= {k: np.array([v], dtype=object) for k, v in told.items()}
            rows.append(row)
        made = DataProto.concat(rows)
        made.meta_info["metrics"] = self._metrics(cache)
        return made


class AgentNativeStepEnvManager(StepEnvManager):
    """A row a turn; each prompt is the whole conversation, rendered anew with its tools."""

    steps_at_limit = True

    def play(self, seed: int) -> DataProto:
        cache = self.reset(seed)
        if self.env.env_reset_failed:
            self.env.close()
            return DataProto(meta_info={"drop_flag": True})
        while not cache.terminated:
            lm_output = self.make_decision(cache)
            cache = self.step(lm_output)
        assert isinstance(self.env.env_timeout, bool)
        made = self.formulate_rollouts(cache)
        made.meta_info["env_info"] = dict(self.env.env_info)
        self.output_queue.append(made)
        return made

    def reset(self, seed: int) -> RolloutCache:
        self.rollout_cache = RolloutCache()
        observation, info = self.env.reset(seed=seed)
        self.tools = info.get("tools", [])
        self._add(observation, **info)
        return self.rollout_cache

    def step(self, llm_output: Any) -> RolloutCache:
        action: Any = EpisodeStopReason.MAX_LENGTH
        if llm_output.batch is not None:
            (action,) = self.tokenizer.batch_decode(
                llm_output.batch["responses"], skip_special_tokens=False
            )
        observation, reward, terminated, truncated, info = self.env.step(action=action)
        self._stepped(terminated, truncated)
        last = self.rollout_cache.history[-1]
        last |= {"reward": reward, "llm_response": action, **info}
        self._add(observation)
        return self.rollout_cache

    def format_messages(self, cache: RolloutCache) -> DataProto:
        last = cache.history[-1]
        messages = last["observation"]
        return self._prompted(last, messages, self._template(messages, self.tools), messages)


# --- modules ----------------------------------------------------------------------------------

_AGENTIC = "roll.pipeline.agentic"
_MODULES = {
    f"{_AGENTIC}.llm_proxy": [register_llm_proxy, create_llm_proxy, LLMProxyConfig],
    f"{_AGENTIC}.env_manager.traj_env_manager": [TrajEnvManager],
    f"{_AGENTIC}.env_manager.step_env_manager": [StepEnvManager],
    f"{_AGENTIC}.env_manager.agent_native_env_manager": [AgentNativeStepEnvManager],
}


def install() -> None:
    """Let the adapter import the stubs by ROLL's names."""
    for name, members in _MODULES.items():
        parts = name.split(".")
        for count in range(1, len(parts) + 1):
            sys.modules.setdefault(".".join(parts[:count]), ModuleType(".".join(parts[:count])))
        for member in members:
            setattr(sys.modules[name], member.__name__, member)


def worker_config(**told: Any) -> SimpleNamespace:
    """Return what a manager reads of its worker's configuration."""
    own = {
        "group_filter_cls": "livestream_env.adapters.roll.DropFailed",
        "generating_args": SimpleNamespace(max_new_tokens=4096),
        "llm_proxy": LLMProxyConfig(),
    }
    return SimpleNamespace(**{**own, **told})
