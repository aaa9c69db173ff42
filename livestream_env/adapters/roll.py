"""ROLL: environments in its text and its messages dialect, and its managers with our masks.

    custom_envs:
      live_room:
        env_type: LiveRoomText-v0          # LiveRoomMessages-v0 for the native manager
        env_manager_cls: livestream_env.adapters.roll.TrajManager
        env_config: {room: "bundled:train", masker: reply}
    train_env_manager:                   # val_env_manager too
      group_filter_cls: livestream_env.adapters.roll.DropFailed

The managers `TrajManager`, `StepManager` and `NativeManager` are ROLL's, made when they are asked
for, which also registers the two environments and the proxy `live_room_agents`.
"""

from __future__ import annotations

import pkgutil
from collections.abc import Iterable, Mapping, Sequence
from functools import cache
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import numpy as np

from livestream_env.adapters.gem import as_gem_env, register_room
from livestream_env.adapters.recorded import RecordedRenderer
from livestream_env.adapters.roll_rooms import RollMessages, RollText
from livestream_env.adapters.setup import trainer_module
from livestream_env.episode import ONE_AGENT, TWO_AGENTS
from livestream_env.rows import TrainedTurn, TrainingRow, split_rows

if TYPE_CHECKING:
    LiveRoomText: type[RollText]
    LiveRoomMessages: type[RollMessages]
    TrajManager: type[Any]
    StepManager: type[Any]
    NativeManager: type[Any]

RAN = "ROLL's managers at commit 8eb27cc (August 2026)"
INSTALL = "pip install git+https://github.com/alibaba/ROLL"
PROXY = "live_room_agents"
_ROLL = "roll.pipeline.agentic"
_MANAGERS = {
    "TrajManager": ("traj_env_manager", "TrajEnvManager"),
    "StepManager": ("step_env_manager", "StepEnvManager"),
    "NativeManager": ("agent_native_env_manager", "AgentNativeStepEnvManager"),
}


# --- managers ---------------------------------------------------------------------------------


class DropFailed:
    """ROLL's `group_filter_cls`: drops the groups that hold an episode without a reward.

    A failed environment is not worth 0, and a group without it would be compared unevenly.
    """

    most_in_a_row = 1000
    """Groups dropped one after another before the run is stopped."""

    def __init__(self, config: Any, env_manager_config: Any, mode: str) -> None:
        self._in_a_row = 0

    def filter(self, group_id: int, episode_id: int, group: Sequence[Any]) -> bool:
        """Return whether the group is dropped.

        Raises:
            RuntimeError: nothing else has happened for long.
        """
        failed = [one for one in group if one is not None and one.meta_info.get("drop_flag")]
        self._in_a_row = self._in_a_row + 1 if failed else 0
        if self._in_a_row >= self.most_in_a_row:
            why = failed[0].meta_info.get("excluded", "the environment failed at reset")
            raise RuntimeError(f"{self._in_a_row} groups in a row have no reward; the last: {why}")
        return bool(failed)


@cache
def with_masks(manager: type[Any]) -> type[Any]:
    """Return one of ROLL's environment managers with the masks, rewards and keys of this package.

    Its rollouts hold what `Setup.rows` gives: the trained tokens, the reward on the last of them,
    `state_key` for `state_hash`; with two agents, rows of both, told apart by `cluster_name`.
    Without a reward they have `drop_flag`, for `DropFailed`.
    """

    class Manager(manager):  # type: ignore[misc]
        def __init__(self, worker_config: Any, *args: Any, **kwargs: Any) -> None:
            _check_filter(worker_config.group_filter_cls)
            super().__init__(worker_config, *args, **kwargs)

        def format_messages(self, history: Any) -> Any:
            made = super().format_messages(history)
            self._prompt_ids = tuple(made.batch["input_ids"][0].tolist())
            return made

        def step(self, llm_output: Any) -> Any:
            if llm_output.batch is None or "responses" not in llm_output.batch:
                # The native manager asks whether `batch` is None, which a `DataProto`'s never is.
                return super().step(SimpleNamespace(batch=None))
            last = self.rollout_cache.history[-1]
            ids, logprobs = tuple(last["response_ids"]), last.get("infer_logprobs")
            logprobs = None if logprobs is None else tuple(logprobs)
            stop = "length" if self._is_cut(ids) else "stop"
            prompt = self._prompt_ids
            self.env.unwrapped.sampled(prompt, ids, logprobs, stop, self.tokenizer)
            return super().step(llm_output)

        def _is_cut(self, ids: tuple[int, ...]) -> bool:
            """Return whether the token limit ended an answer: it is full, without an end token."""
            limit = min(
                self.env_config["max_tokens_per_step"],
                self.worker_config.generating_args.max_new_tokens,
                self.pipeline_config.sequence_length - len(self._prompt_ids),
            )
            return len(ids) >= limit and ids[-1] not in self.tokenizer.all_special_ids

        def formulate_rollouts(self, rollout_cache: Any) -> Any:
            room = self.env.unwrapped
            played = [one for one in rollout_cache.history if "response_ids" in one]
            if not played:
                raise ValueError(
                    f"the first prompt of `{self.env_config['tag']}` has {len(self._prompt_ids)}"
                    f" tokens, and `sequence_length` is {self.pipeline_config.sequence_length}:"
                    " nothing can be sampled"
                )
            if room.is_running():
                at_most = self.env_config["max_steps"]
                *_, info = room.end("turns" if rollout_cache.step >= at_most else "length")
                if played:
                    played[-1]["metrics"] = {**played[-1].get("metrics", {}), **info["metrics"]}
                    played[-1]["metrics_agg_mode"] = dict.fromkeys(info["metrics"], "last")
            lengths = [(len(one["prompt_ids"]), len(one["response_ids"])) for one in played]
            return _with_rows(super().formulate_rollouts(rollout_cache), room, lengths)

    Manager.__name__ = Manager.__qualname__ = f"LiveRoom{manager.__name__}"
    return Manager


def _check_filter(name: str) -> None:
    found = pkgutil.resolve_name(name)
    if not (isinstance(found, type) and issubclass(found, DropFailed)):
        raise ValueError(
            f"`group_filter_cls` is `{name}`, which keeps episodes whose environment failed; use"
            f" `{__name__}.DropFailed`"
        )


def _with_rows(made: Any, room: Any, lengths: Sequence[tuple[int, int]]) -> Any:
    """Return ROLL's rollout of an episode with the rows of the core in it."""
    rows = room.setup.rows(room.played(), RecordedRenderer())
    parts = []
    for agent in room.setup.agents:
        own = [row for row in rows if row.agent == agent and row.excluded is None]
        if own:
            part = _part(made, own, lengths)
            tags = [room.clusters.get(agent, agent)] * len(part)
            part.non_tensor_batch["cluster_name"] = np.array(tags, dtype=object)
            parts.append(part)
    if parts:
        return type(made).concat(parts)
    made.batch["response_mask"] = made.batch["response_mask"] & False
    made.meta_info |= {"drop_flag": True, "excluded": next(row.excluded for row in rows)}
    return made


def _part(made: Any, rows: Sequence[TrainingRow], lengths: Sequence[tuple[int, int]]) -> Any:
    """Return what is trained of one agent: ROLL's row of the episode, or of each trained turn."""
    trained = {turn.turn: (turn, bits) for row in rows for turn, bits in _trained(row)}
    in_steps = "state_hash" in made.non_tensor_batch
    part = made.select_idxs(sorted(trained) if in_steps else [0])
    mask = part.batch["response_mask"].new_zeros(part.batch["response_mask"].shape)
    scores = part.batch["scores"].new_zeros(part.batch["scores"].shape)
    for at, turn in enumerate(sorted(trained)):
        row, before = (at, 0) if in_steps else (0, sum(map(sum, lengths[:turn])))
        start = before + lengths[turn][0]
        bits = trained[turn][1]
        mask[row, start : start + len(bits)] = mask.new_tensor(bits)
        last = start + len(bits) - 1 - bits[::-1].index(1)
        if in_steps:
            scores[row, last] = trained[turn][0].reward
    if not in_steps:
        scores[0, last] = rows[0].reward
    part.batch["response_mask"], part.batch["scores"] = mask, scores
    turns = [trained[turn][0] for turn in sorted(trained)]
    rewards = [turn.reward for turn in turns]
    told: dict[str, list[Any]] = {"step_scores": rewards if in_steps else [rewards]}
    told["episode_scores"] = [rows[0].reward] * len(part)
    if in_steps:
        told["state_hash"] = [turn.state_key for turn in turns]
    for name, values in told.items():
        part.non_tensor_batch[name] = np.array(values, dtype=object)
    return part


def _trained(row: TrainingRow) -> Iterable[tuple[TrainedTurn, tuple[int, ...]]]:
    """Yield the trained turns of a row and their masks."""
    turns = {turn.turn: turn for turn in row.turns}
    assert row.sequence is not None
    for span in row.sequence.spans:
        if span.source.is_sampled and span.turn in turns:
            yield turns[span.turn], row.loss_mask[span.start : span.stop]


# --- two agents -------------------------------------------------------------------------------


class AgentsProxy:
    """ROLL's LLM proxy of type `live_room_agents`: each phase of an episode has its own model.

        llm_proxy:
          proxy_type: live_room_agents
          proxy_config:
            tool_caller: {proxy_type: policy}
            replier: {proxy_type: openai, proxy_config: {base_url: ..., model_name: ...}}

    Where the scheduler is a mapping, each agent has the scheduler of its name.

    Raises:
        ValueError: an agent has no proxy, or a proxy no agent.
    """

    def __init__(
        self, generate_scheduler: Any, llm_proxy_config: Any, tokenizer: Any, env: Any
    ) -> None:
        roll = trainer_module(f"{_ROLL}.llm_proxy", ran=RAN, install=INSTALL)
        seats = TWO_AGENTS if env.unwrapped.setup.has_two_agents else ONE_AGENT
        if {*llm_proxy_config.proxy_config} != {*seats}:
            given = ", ".join(llm_proxy_config.proxy_config)
            raise ValueError(f"`proxy_config` has {given}; it has a proxy for {', '.join(seats)}")
        make_config = type(llm_proxy_config)
        self._env = env
        self._proxies = {
            agent: roll.create_llm_proxy(
                generate_scheduler=generate_scheduler[agent]
                if isinstance(generate_scheduler, Mapping)
                else generate_scheduler,
                llm_proxy_config=make_config(**config),
                tokenizer=tokenizer,
                env=env,
            )
            for agent, config in llm_proxy_config.proxy_config.items()
        }

    def generate(self, messages: Any, lm_input: Any, generation_config: Any) -> Any:
        """Let the agent whose turn it is answer."""
        room = self._env.unwrapped
        agent = room.episode().agent if room.is_running() else next(iter(self._proxies))
        return self._proxies[agent].generate(messages, lm_input, generation_config)


def batches(
    rows: Iterable[TrainingRow], clusters: Mapping[str, str]
) -> dict[str, list[dict[str, Any]]]:
    """Return the step rows of each cluster, as `TrainingRow.to_roll` makes them, tagged by it.

    For agents whose tokenizers differ: ROLL's managers have one, so such episodes are played by the
    drivers of this package.

    Raises:
        ValueError: an agent belongs to no cluster.
    """
    return {
        cluster: [{**step, "cluster_name": cluster} for row in own for step in row.to_roll()]
        for cluster, own in split_rows(rows, clusters).items()
    }


# --- registration -----------------------------------------------------------------------------


def __getattr__(name: str) -> Any:
    if name in _MANAGERS:
        return _manager(name)
    if name == "LiveRoomText":
        return as_gem_env(RollText, name, __name__)
    if name == "LiveRoomMessages":
        return as_gem_env(RollMessages, name, __name__)
    raise AttributeError(f"module `{__name__}` has no `{name}`")


@cache
def _manager(name: str) -> type[Any]:
    module, manager = _MANAGERS[name]
    found = trainer_module(f"{_ROLL}.env_manager.{module}", ran=RAN, install=INSTALL)
    proxies = trainer_module(f"{_ROLL}.llm_proxy", ran=RAN, install=INSTALL)
    register()
    proxies.register_llm_proxy(PROXY)(AgentsProxy)
    return with_masks(getattr(found, manager))


def register() -> tuple[str, ...]:
    """Make both environments known to `gem.make`, and return their names."""
    names = ("LiveRoomText", "LiveRoomMessages")
    return tuple(register_room(f"{name}-v0", f"{__name__}:{name}") for name in names)
