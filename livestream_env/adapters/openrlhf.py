"""OpenRLHF: an executor of whole episodes, token ids in and token ids out.

The file of `--train.agent_func_path` makes the class; each `label` is a task row as JSON.

    from livestream_env.adapters.openrlhf import agent_executor
    AgentExecutor = agent_executor("bundled:train", masker="end_to_end")
"""

from __future__ import annotations

import copy
import json
import math
from collections.abc import Mapping
from typing import Any, Literal

from livestream_env.adapters.recorded import RecordedRenderer
from livestream_env.adapters.seats import seated
from livestream_env.adapters.setup import Setup, as_key, only_row, renderer_of, trainer_module
from livestream_env.drivers import arollout
from livestream_env.errors import ChatError
from livestream_env.renderers import ChatTemplateRenderer
from livestream_env.rows import TrainingRow
from livestream_env.token_agent import TokenAgent
from livestream_env.tokens import Sampled
from livestream_env.types import Status, Trajectory

RAN, INSTALL = "openrlhf 0.11.2", "pip install openrlhf==0.11.2"
LOGGED = ("stop/", "turns", "calls/")
"""Which figures are logged: OpenRLHF joins those of a batch, so every episode has the same."""


def agent_executor(
    room: str | None = None,
    *,
    failed: Literal["raise", "nan"] = "raise",
    template: Mapping[str, Any] | None = None,
    **options: Any,
) -> type[Any]:
    """Return a class for `AgentExecutor` in the file of `--train.agent_func_path`.

    Args:
        room: as of `Setup`, which takes `options` too.
        failed: what becomes of an episode that is not trained, as where the environment failed.
            `raise` stops the run. `nan` gives it that reward, with which
            `--algo.dynamic_filtering_enable` drops the group and draws another prompt; without
            that flag it would spoil the batch.
        template: further variables of the chat template, such as `enable_thinking`.

    Raises:
        MissingDependency: OpenRLHF is not installed.
        ValueError: two agents are to be trained, or `failed` is another word.
    """
    if failed not in ("raise", "nan"):
        raise ValueError(f"`failed` is {failed!r}; it is `raise` or `nan`")
    setup = Setup(room, **options)
    as_key(template or {})
    rendering = {**(template or {}), "on_rewrite": "keep"}
    if len(setup.agents) > 1:
        raise ValueError(
            f"OpenRLHF has one row and one reward an episode, so an executor trains one agent, not"
            f" {[*setup.agents]}; name one in `agents`: the same model plays both"
        )
    agent: Any = trainer_module("openrlhf.utils.agent", ran=RAN, install=INSTALL)

    class LiveRoomExecutor(agent.AgentExecutorBase):  # type: ignore[misc]
        """Plays the task row of a label; the prompt of the data set is not looked at."""

        async def execute(
            self,
            prompt: str,
            label: str | Mapping[str, Any],
            sampling_params: Any,
            max_length: int,
            hf_tokenizer: Any,
            llm_engine: Any,
            images: Any = None,
        ) -> dict[str, Any]:
            """Play one episode and return what OpenRLHF trains of it."""
            renderer = renderer_of(hf_tokenizer, rendering)
            engine = _Engine(llm_engine, sampling_params, max_length)
            player = seated(TokenAgent(engine, renderer), setup)
            task = setup.row(_read(label))
            env = setup.make_env(task.room)
            try:
                trajectory = await arollout(env, player, **setup.opening(task))
            finally:
                await env.aclose()
            setup.keep(trajectory)
            row = only_row(setup.rows(trajectory, RecordedRenderer()), task)
            if row.excluded is not None and failed == "raise":
                raise RuntimeError(f"the episode {task.task_id} is left out: {row.excluded}")
            tokens = _trained(row, trajectory) if row.excluded is None else _untrained(renderer)
            if sampling_params.logprobs is None:
                tokens["rollout_log_probs"] = None
            figures = setup.metrics([trajectory]).items()
            return {
                "prompt": prompt,
                "label": label,
                "images": images,
                "mm_train_inputs": None,
                "extra_logs": {key: value for key, value in figures if key.startswith(LOGGED)},
                **tokens,
            }

    return LiveRoomExecutor


def _read(label: str | Mapping[str, Any]) -> Mapping[str, Any]:
    try:
        row: Mapping[str, Any] = json.loads(label) if isinstance(label, str) else label
    except ValueError as error:
        raise ValueError(
            f"a label is a task row as JSON, in the column that `--data.label_key` names; got"
            f" {label!r:.200}"
        ) from error
    return row


def _trained(row: TrainingRow, trajectory: Trajectory) -> dict[str, Any]:
    sample = row.full()
    return {
        "observation_tokens": list(sample.token_ids),
        "action_ranges": list(row.action_ranges()),
        "rollout_log_probs": None if sample.logprobs is None else list(sample.logprobs),
        "reward": row.reward,
        "scores": row.reward,
        "truncated": trajectory.status is not Status.OK,
    }


def _untrained(renderer: ChatTemplateRenderer) -> dict[str, Any]:
    """Return an episode that is not trained: two tokens, none of which was sampled."""
    return {
        "observation_tokens": [min(renderer.stop_ids)] * 2,
        "action_ranges": [],
        "rollout_log_probs": [0.0] * 2,
        "reward": math.nan,
        "scores": math.nan,
        "truncated": False,
    }


class _Engine:
    """OpenRLHF's engine for one episode; `max_length` is for all of it.

    Raises:
        ValueError: the first prompt leaves no room for a token.
        ChatError: the engine gave a request up.
    """

    def __init__(self, engine: Any, sampling_params: Any, max_length: int) -> None:
        self._engine, self._sampling, self._longest = engine, sampling_params, max_length
        self._has_begun = False

    async def __call__(self, ids: tuple[int, ...], stop: tuple[int, ...]) -> Sampled:
        left = self._longest - len(ids)
        if left < 1 and not self._has_begun:
            raise ValueError(
                f"the first prompt has {len(ids)} tokens, tools included, and the longest sequence"
                f" is {self._longest}; raise `--data.max_len`"
            )
        self._has_begun = True
        if left < 1:
            return Sampled((), (), "length")
        asked = copy.copy(self._sampling)
        asked.max_tokens = min(left, asked.max_tokens or left)
        asked.stop_token_ids = list(stop)
        made = (await self._engine.generate(list(ids), asked)).outputs[0]
        if made.finish_reason == "abort":
            raise ChatError("OpenRLHF's engine aborted the request")
        sampled = tuple(made.token_ids)
        logprobs = None
        if made.logprobs is not None:
            pairs = zip(sampled, made.logprobs, strict=True)
            logprobs = tuple([by_id[token].logprob for token, by_id in pairs])
        return Sampled(sampled, logprobs, "length" if made.finish_reason == "length" else "stop")
