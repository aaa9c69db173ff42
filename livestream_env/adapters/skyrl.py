"""SkyRL: rooms as a text environment of skyrl-gym, and its generator with this package's masks.

    from livestream_env.adapters.skyrl import LiveRoomGenerator, register
    register("liveroom", room="bundled:train", masker="reply")  # environment.env_class=liveroom

Under SkyRL's own generator all that was sampled is trained, a cut answer is one like any other, and
a failed environment ends the run; `LiveRoomGenerator`, in its place, does as the core does.
"""

from __future__ import annotations

import functools
import math
import statistics
import threading
import time
from collections.abc import Mapping, Sequence
from contextvars import ContextVar
from typing import TYPE_CHECKING, Any, ClassVar

from livestream_env.adapters.recorded import RecordedRenderer
from livestream_env.adapters.setup import Setup, setup_of, trainer_module
from livestream_env.adapters.text import as_user_messages
from livestream_env.adapters.text_room import TextRoom
from livestream_env.env import cause_of
from livestream_env.errors import ChatError, SandboxError
from livestream_env.rows import TrainingRow
from livestream_env.types import Trajectory

if TYPE_CHECKING:
    LiveRoom: type[Any]
    LiveRoomGenerator: type[Any]

RAN = "skyrl 0.3.0 and skyrl-gym 0.4.0"
INSTALL = "pip install skyrl==0.3.0 skyrl-gym==0.4.0"
LEFT_OUT = "left out: "
"""What the stop reason of an episode that is not trained begins with."""
_PLAYING: ContextVar[Any] = ContextVar("_PLAYING", default=None)
"""The environment of the agent loop that runs in this task."""


class EpisodeLeftOut(RuntimeError):
    """An episode has no reward, as where the environment failed: it is not worth 0."""


def __getattr__(name: str) -> Any:
    if name == "LiveRoom":
        return _live_room()
    if name == "LiveRoomGenerator":
        return _generator()
    raise AttributeError(f"module `{__name__}` has no attribute `{name}`")


def register(env_id: str = "liveroom", *, room: str | None = None, **options: Any) -> str:
    """Make `LiveRoom` known to `skyrl_gym.make` under this name, and return the name.

    Args:
        options: of `Setup`, as JSON can hold them. What it cannot, such as a rubric of your own,
            goes into a subclass of `LiveRoom` whose attribute `setup` is a `Setup`, and which
            `skyrl_gym.register` is given.

    Raises:
        MissingDependency: skyrl-gym is not installed.
        ValueError: two agents are to be trained; and as `Setup`.
    """
    known = trainer_module("skyrl_gym.envs.registration", ran=RAN, install=INSTALL)
    setup = {"room": room, **options}
    _of_one_agent(setup_of(setup))
    known.registry.pop(env_id, None)
    known.register(env_id, entry_point=f"{__name__}:LiveRoom", kwargs={"setup": setup})
    return env_id


def _of_one_agent(setup: Setup) -> Setup:
    if len(setup.agents) > 1:
        raise ValueError(
            f"SkyRL has one row an episode, so it trains one agent, not {[*setup.agents]}; name one"
            " in `agents`: the same model plays both"
        )
    return setup


@functools.cache
def _live_room() -> type[Any]:
    base: Any = trainer_module("skyrl_gym.envs.base_text_env", ran=RAN, install=INSTALL)

    class LiveRoom(base.BaseTextEnv):  # type: ignore[misc]
        """The episode of a data set's row; SkyRL's `max_turns` ends it, as the room's own does.

        SkyRL calls it in threads, where a call goes on when its task is cancelled: it is closed
        behind that call.

        Raises:
            ValueError: two agents are to be trained.
        """

        setup: ClassVar[Setup | None] = None

        def __init__(
            self,
            env_config: Any = None,
            extras: Mapping[str, Any] | None = None,
            setup: Mapping[str, Any] | None = None,
        ) -> None:
            super().__init__()
            self.row = extras or {}
            self.max_turns = self.row.get("max_turns", math.inf)
            self.room = TextRoom(_of_one_agent(type(self).setup or setup_of(setup or {})))
            self.trajectory: Trajectory | None = None
            self._calls = threading.Lock()
            _PLAYING.set(self)

        def init(self, prompt: Any) -> tuple[list[dict[str, Any]], dict[str, Any]]:
            """Open the episode; the prompt of the data set gives way to the room's."""
            try:
                with self._calls:
                    observation, info = self.room.open(row=self.row)
            except SandboxError as error:
                raise EpisodeLeftOut(f"env_error: {cause_of(error)}") from error
            told = self.room.first_messages(observation)
            return [message.to_openai() for message in told], info

        def step(self, action: str) -> Any:
            """Take one assistant message.

            Raises:
                EpisodeLeftOut: the episode has ended without a reward.
            """
            with self._calls:
                self.turns += 1
                observation, reward, terminated, truncated, info = self.room.take(action)
                done = terminated or truncated
                if not done and self.turns >= self.max_turns:
                    _, more, _, done, info = self.room.end("turns")
                    reward += more
            if math.isnan(reward):
                cause = info.get("env_error")
                raise EpisodeLeftOut(f"env_error: {cause}" if cause else "unscored")
            told = as_user_messages(observation.messages)
            return base.BaseTextEnvStepOutput(
                observations=[message.to_openai() for message in told],
                reward=reward,
                done=done,
                metadata=info,
            )

        def get_metrics(self) -> dict[str, float]:
            """Return `livestream_env.metrics` of the episode, which SkyRL averages."""
            return self.room.setup.metrics([self.played()])

        def played(self) -> Trajectory:
            """Return the record of the episode, which ends here if it has not.

            Raises:
                ValueError: SkyRL asked for no turn, because the first prompt was too long.
            """
            if self.trajectory is None:
                if self.room.is_running():
                    if not self.room.episode().turns:
                        raise ValueError(
                            "the first prompt, tools included, is longer than"
                            " `generator.max_input_length`, by default"
                            " `trainer.max_prompt_length`; raise it"
                        )
                    self.room.end("length")
                self.trajectory = self.room.played()
            return self.trajectory

        def close(self) -> None:
            """Release the sandbox; what has not ended has no record."""
            with self._calls:
                self.room.close()

    LiveRoom.__module__, LiveRoom.__qualname__ = __name__, "LiveRoom"
    return LiveRoom


@functools.cache
def _generator() -> type[Any]:
    skyrl: Any = trainer_module(
        "skyrl.train.generators.skyrl_gym_generator", ran=RAN, install=INSTALL
    )

    class LiveRoomGenerator(skyrl.SkyRLGymGenerator):  # type: ignore[misc]
        """SkyRL's generator with the masks and rewards of `Setup.rows`, a reward for each turn.

        An episode that is not trained has no token under its mask and a stop reason that says why.
        SkyRL takes a number for each member of a group: it has the mean of the others, which
        leaves their mean as it is.

        Raises:
            ValueError: the generator is configured for batches, rows of steps, one message for all
                turns, or a chat template that renders the past again.
        """

        def __init__(
            self,
            generator_cfg: Any,
            skyrl_gym_cfg: Any,
            inference_engine_client: Any,
            tokenizer: Any,
            *args: Any,
            **of_skyrl: Any,
        ) -> None:
            client = _Noting(inference_engine_client, tokenizer)
            super().__init__(generator_cfg, skyrl_gym_cfg, client, tokenizer, *args, **of_skyrl)
            for name in ("batched", "step_wise_trajectories"):
                if getattr(generator_cfg, name):
                    raise ValueError(f"`generator.{name}` is true; rooms are played without it")
            if not generator_cfg.use_conversation_multi_turn:
                raise ValueError(
                    "`generator.use_conversation_multi_turn` is false, with which SkyRL takes the"
                    " ends of turns out of what was sampled; rooms are played with it"
                )
            if self.custom_chat_template is not None:
                raise ValueError(
                    "`generator.chat_template` is set, with which SkyRL has no log-probabilities"
                    " and no rewards of turns; give the tokenizer that template"
                )

        async def agent_loop(self, *args: Any, **kwargs: Any) -> Any:
            """Play one episode."""
            _PLAYING.set(None)
            begun = time.monotonic()
            try:
                return await super().agent_loop(*args, **kwargs)
            except EpisodeLeftOut as error:
                made = self._left_out(str(error))
                made.e2e_time = time.monotonic() - begun
                return made
            finally:
                if (env := _PLAYING.get()) is not None:
                    await self._run_in_executor_if_available(env.close)

        def _post_process_agent_loop_output(self, output: Any, *args: Any) -> Any:
            output = super()._post_process_agent_loop_output(output, *args)
            env = _PLAYING.get()
            if env is None:  # an environment of somebody else's
                return output
            rows = env.room.setup.rows(env.played(), RecordedRenderer())
            kept = [row for row in rows if row.excluded is None]
            if not kept:
                return self._left_out(rows[0].excluded)
            if len(kept) > 1:
                raise RuntimeError("the prompts of an episode do not go on from one another")
            return _with_row(output, kept[0])

        def _left_out(self, reason: str | None) -> Any:
            env, token = _PLAYING.get(), self.tokenizer.eos_token_id
            return skyrl.TrajectoryOutput(
                prompt_ids=[token],
                response_ids=[token],
                loss_mask=[0],
                rollout_logprobs=[0.0],
                reward=[math.nan],
                stop_reason=f"{LEFT_OUT}{reason}",
                env_metrics=env.get_metrics(),
            )

        async def generate(self, input_batch: Any, *args: Any, **kwargs: Any) -> Any:
            """Play the episodes of a batch.

            Raises:
                RuntimeError: none of them has a reward.
            """
            output = await super().generate(input_batch, *args, **kwargs)
            ids = input_batch.get("trajectory_ids")
            groups = [one.instance_id for one in ids] if ids else [""] * len(output["rewards"])
            _fill_in(output["rewards"], output["stop_reasons"], groups)
            return output

    LiveRoomGenerator.__module__ = __name__
    LiveRoomGenerator.__qualname__ = "LiveRoomGenerator"
    return LiveRoomGenerator


class _Noting:
    """SkyRL's client, which notes in the episode's record what was sampled."""

    def __init__(self, client: Any, tokenizer: Any) -> None:
        self._client, self._tokenizer = client, tokenizer

    def __getattr__(self, name: str) -> Any:
        return getattr(self._client, name)

    async def generate(self, given: Any, *args: Any, **kwargs: Any) -> Any:
        output = await self._client.generate(given, *args, **kwargs)
        env = _PLAYING.get()
        if env is not None:
            if output["stop_reasons"][0] == "abort":
                error = ChatError("SkyRL's engine aborted the request")
                env.room.fail(error)
                raise EpisodeLeftOut(f"env_error: {cause_of(error)}")
            logprobs = output.get("response_logprobs")
            prompt, ids = tuple(given["prompt_token_ids"][0]), tuple(output["response_ids"][0])
            env.room.sampled(
                prompt,
                ids,
                None if logprobs is None else tuple(logprobs[0]),
                "length" if output["stop_reasons"][0] == "length" else "stop",
                self._tokenizer,
            )
        return output


def _with_row(output: Any, row: TrainingRow) -> Any:
    """Put a row of the core's into SkyRL's output, whose tokens are the same as far as it goes."""
    response = row.response_only()
    length = len(response.response_ids)
    output.prompt_ids = list(response.prompt_ids)
    output.response_ids = list(response.response_ids)
    output.loss_mask = list(response.loss_mask)
    output.reward = list(row.per_token_rewards()[len(response.prompt_ids) :])
    if output.rollout_logprobs is not None:
        output.rollout_logprobs = output.rollout_logprobs[:length]
    if output.rollout_expert_indices is not None:
        whole = len(response.prompt_ids) + length
        output.rollout_expert_indices = output.rollout_expert_indices[:whole]
    return output


def _fill_in(
    rewards: list[list[float]], stop_reasons: Sequence[str], groups: Sequence[str]
) -> None:
    """Give episodes that are left out the mean of their group, or of the batch where all are."""
    left_out = {at for at, reason in enumerate(stop_reasons) if reason.startswith(LEFT_OUT)}
    totals = {at: sum(one) for at, one in enumerate(rewards) if at not in left_out}
    if left_out and not totals:
        raise RuntimeError(f"no episode of the batch has a reward; the first is {stop_reasons[0]}")
    for at in left_out:
        group = [total for other, total in totals.items() if groups[other] == groups[at]]
        rewards[at] = [statistics.fmean(group or totals.values())]
