"""verl's V1 trainer: an agent loop, token ids in and token ids out.

Name the class in the file of `rollout.agent.agent_loop_config_path`; `setup` holds the arguments of
`Setup`. What no YAML can hold goes into a subclass whose attribute `setup` is a `Setup`.

    - name: liveroom
      _target_: livestream_env.adapters.verl.LiveRoomAgentLoop
      setup: {room: "bundled:train", masker: end_to_end}
"""

from __future__ import annotations

import functools
import time
from collections.abc import Mapping
from typing import Any, ClassVar
from uuid import uuid4

from livestream_env.adapters.data_sets import LOOP
from livestream_env.adapters.seats import seated
from livestream_env.adapters.setup import Setup, renderer_of, setup_of, trainer_module
from livestream_env.drivers import arollout
from livestream_env.errors import ChatError
from livestream_env.rows import TrainingRow
from livestream_env.token_agent import TokenAgent
from livestream_env.tokens import Sampled
from livestream_env.types import Trajectory

RAN, INSTALL = "verl 0.9.1", "pip install --no-deps 'verl==0.9.1'"


def __getattr__(name: str) -> Any:
    if name != "LiveRoomAgentLoop":
        raise AttributeError(f"module `{__name__}` has no attribute `{name}`")
    return _agent_loop()


@functools.cache
def _agent_loop() -> Any:
    verl: Any = trainer_module("verl.experimental.agent_loop.agent_loop", ran=RAN, install=INSTALL)

    class LiveRoomAgentLoop(verl.AgentLoopBase):  # type: ignore[misc]
        """Plays one task row; each context that the policy sampled in is an output.

        An episode that is not trained, as where the environment failed, raises: verl counts a
        failed session, which has no output and no reward.

        Raises:
            ValueError: two agents are to be trained by one loop, or the trainer is the legacy one.
        """

        setup: ClassVar[Setup | None] = None

        def __init__(
            self, *args: Any, setup: Mapping[str, Any] | None = None, **of_verl: Any
        ) -> None:
            super().__init__(*args, **of_verl)
            self._setup = type(self).setup or setup_of(setup or {})
            self._renderer = renderer_of(self.tokenizer, self.apply_chat_template_kwargs or {})
            if len(self._setup.agents) > 1:
                raise ValueError(
                    "verl gives all outputs of an episode the reward of the last; train each agent"
                    " by a loop of its own, with its own `name`"
                )
            if not self.config.get("trainer", {}).get("use_v1", True):
                raise ValueError("verl's legacy trainer takes one output of an episode; use V1")

        async def run(self, sampling_params: dict[str, Any], **row: Any) -> list[Any]:
            """Play the episode of a row of `export rl --format verl`."""
            engine = _Engine(self, sampling_params, int(row.get("priority", 0)))
            agent = seated(TokenAgent(engine, self._renderer), self._setup)
            task = self._setup.row(row["extra_info"])
            env = self._setup.make_env(task.room)
            try:
                trajectory = await arollout(env, agent, **self._setup.opening(task))
            finally:
                await env.aclose()
            version = engine.extra_fields.get("max_global_steps")
            self._setup.keep(trajectory, step=row.get("global_steps"), policy_version=version)
            rows = self._setup.rows(trajectory, self._renderer)
            trained = [one for one in rows if one.excluded is None]
            if not trained:
                raise RuntimeError(f"the episode {task.task_id} is left out: {rows[0].excluded}")
            return [self._output(one, trajectory, engine) for one in trained]

        def _output(self, row: TrainingRow, trajectory: Trajectory, engine: _Engine) -> Any:
            response, longest = row.response_only(), self.rollout_config.response_length
            logprobs = response.logprobs
            return verl.AgentLoopOutput(
                prompt_ids=list(response.prompt_ids),
                response_ids=list(response.response_ids[:longest]),
                response_mask=list(response.loss_mask[:longest]),
                response_logprobs=None if logprobs is None else list(logprobs[:longest]),
                reward_score=row.reward,
                num_turns=sum(message.role != "system" for message in trajectory.messages),
                metrics={
                    "generate_sequences": engine.seconds,
                    "num_preempted": engine.preempted,
                },
                extra_fields={
                    **engine.extra_fields,
                    "turn_scores": [turn.reward for turn in row.turns],
                    "agent": row.agent,
                    "status": str(trajectory.status),
                    "stop_reason": str(trajectory.stop_reason),
                    "reward_extra_info": self._setup.metrics([trajectory]),
                },
            )

    LiveRoomAgentLoop.__module__, LiveRoomAgentLoop.__qualname__ = __name__, "LiveRoomAgentLoop"
    if LOOP not in verl._agent_loop_registry:  # a worker reads its file before it loads the class
        verl.register(LOOP)(LiveRoomAgentLoop)
    return LiveRoomAgentLoop


class _Engine:
    """verl's server for one episode; `rollout.response_length` is for all behind the first prompt.

    Raises:
        ValueError: the first prompt is longer than `rollout.prompt_length`.
        ChatError: the server gave a request up.
    """

    def __init__(self, loop: Any, sampling_params: Mapping[str, Any], priority: int) -> None:
        self._server, self._config = loop.server_manager, loop.rollout_config
        self._sampling, self._priority = dict(sampling_params), priority
        self._id = f"det-{priority}" if self._config.get("full_determinism") else uuid4().hex
        self._longest = 0
        self.seconds, self.preempted = 0.0, -1
        self.extra_fields: dict[str, Any] = {}
        """What verl's server told, with the first and the last version that sampled."""

    async def __call__(self, ids: tuple[int, ...], stop: tuple[int, ...]) -> Sampled:
        if not self._longest and len(ids) > self._config.prompt_length:
            raise ValueError(
                f"the first prompt has {len(ids)} tokens, tools included, and"
                f" `rollout.prompt_length` is {self._config.prompt_length}; raise it"
            )
        self._longest = self._longest or len(ids) + self._config.response_length
        room = self._longest - len(ids)
        if room < 1:
            return Sampled((), (), "length")
        limits = {"stop_token_ids": list(stop), "max_tokens": room}
        begun = time.monotonic()
        output = await self._server.generate(
            request_id=self._id,
            prompt_ids=list(ids),
            sampling_params={**self._sampling, **limits},
            priority=self._priority,
        )
        self.seconds += time.monotonic() - begun
        if output.stop_reason in ("abort", "aborted"):
            raise ChatError("verl's server aborted the request")
        if output.num_preempted is not None:
            self.preempted = max(self.preempted, 0) + output.num_preempted
        told = {"min_global_steps": None, "max_global_steps": None, **output.extra_fields}
        first = (self.extra_fields or told)["min_global_steps"]
        self.extra_fields = {**told, "min_global_steps": first}
        sampled = tuple(output.token_ids)
        logprobs = None if output.log_probs is None else tuple(output.log_probs)
        ended = bool(sampled) and sampled[-1] in stop
        return Sampled(sampled, logprobs, "stop" if ended else "length")
