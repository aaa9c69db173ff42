"""slime: a custom generate function, token ids in and out of its router.

    --custom-generate-function-path livestream_env.adapters.slime.generate
    --custom-rm-path livestream_env.adapters.slime.reward_func
    --dynamic-sampling-filter-path livestream_env.adapters.slime.keep_group
    --custom-reward-post-process-path livestream_env.adapters.slime.compare_rewards
    --custom-rollout-log-function-path livestream_env.adapters.slime.log_rollout
    --custom-eval-rollout-log-function-path livestream_env.adapters.slime.log_eval_rollout
    --custom-config-path rooms.yaml

`rooms.yaml` holds the arguments of `Setup`: `livestream: {room: "bundled:train"}`. What no YAML can
hold goes to `generate_with`. A task row is a sample's `metadata`.
"""

from __future__ import annotations

import copy
import logging
import statistics
from collections import defaultdict
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from typing import Any

import httpx

from livestream_env.adapters.seats import check_partners, seated
from livestream_env.adapters.setup import Setup, renderer_of, setup_of, trainer_module
from livestream_env.drivers import arollout
from livestream_env.errors import ChatError
from livestream_env.renderers import ChatTemplateRenderer
from livestream_env.rows import TrainingRow
from livestream_env.team import Member
from livestream_env.token_agent import TokenAgent
from livestream_env.tokens import Sampled
from livestream_env.types import Status, Trajectory

LOG = logging.getLogger("livestream_env.slime")
RAN, INSTALL = "slime 0.3.1", "pip install 'git+https://github.com/THUDM/slime'"
Generate = Callable[..., Awaitable[Any]]
_NORMALISED = ("grpo", "gspo", "cispo", "reinforce_plus_plus_baseline")
_DIVIDED = ("grpo", "gspo", "cispo")


async def generate(
    args: Any, sample: Any, sampling_params: Mapping[str, Any], evaluation: bool = False
) -> Any:
    """Play the episode of a sample, with the `Setup` of `args.livestream`.

    Returns a list of samples, one for each trained agent and context, or the sample itself where
    slime aborted it. What must not be trained has no reward and is removed.

    Raises:
        ValueError: there is no such `Setup`, the sample's `metadata` is no task row, or slime is to
            do what this cannot.
    """
    options = getattr(args, "livestream", None)
    if not isinstance(options, Mapping):
        raise ValueError(
            f"`args.livestream` is {options!r:.100}; the file of `--custom-config-path` holds"
            ' `livestream: {room: "bundled:train"}`, or so'
        )
    return await generate_with(setup_of(options))(args, sample, sampling_params, evaluation)


def generate_with(setup: Setup, *, partners: Mapping[str, Member | None] | None = None) -> Generate:
    """Return a generate function as `generate`, for a module of your own.

    Args:
        partners: who plays a seat of two agents, untrained, by default the trained model.

    Raises:
        ValueError: a partner has no seat.
    """
    check_partners(setup, partners)

    async def generate(
        args: Any, sample: Any, sampling_params: Mapping[str, Any], evaluation: bool = False
    ) -> Any:
        _check(args, evaluation)
        slime = _slime()
        state = slime.GenerateState(args)
        variables = getattr(args, "apply_chat_template_kwargs", None) or {}
        renderer = renderer_of(state.tokenizer, variables)
        of_kind = "eval_max_context_len" if evaluation else "rollout_max_context_len"
        longest = getattr(args, of_kind, None)
        engine = _Engine(args, state, sample, sampling_params, longest)
        task = setup.row(sample.metadata)
        env = setup.make_env(task.room)
        try:
            agent = seated(TokenAgent(engine, renderer), setup, partners, is_async=True)
            trajectory = await arollout(env, agent, **setup.opening(task))
        except _Aborted:
            sample.status = type(sample).Status.ABORTED
            return sample
        finally:
            await env.aclose()
        version = engine.versions[-1] if engine.versions else None
        setup.keep(trajectory, policy_version=version)
        rows = setup.rows(trajectory, renderer)
        told = {
            "stop_reason": str(trajectory.stop_reason),
            "livestream": setup.metrics([trajectory]),
        }
        return [_filled(sample, row, trajectory, renderer, engine, told) for row in rows]

    return generate


def _check(args: Any, evaluation: bool) -> None:
    if getattr(args, "partial_rollout", False):
        raise ValueError(
            "slime cannot go on with an episode of several samples: no partial rollout"
        )
    if getattr(args, "group_rm", False):
        raise ValueError("an episode is a list of samples, each with its reward: no `group_rm`")
    if getattr(args, "use_rollout_routing_replay", False):
        raise ValueError("experts of several requests are not joined: no rollout routing replay")
    if not evaluation and getattr(args, "rollout_top_p", 1.0) != 1.0:
        raise ValueError("slime replays the kept ids of each token below 1: set `rollout_top_p=1`")


def _slime() -> Any:
    return trainer_module("slime.rollout.sglang_rollout", ran=RAN, install=INSTALL)


class _Aborted(Exception):
    """slime has what it needs and stopped the engines."""


class _Engine:
    """slime's router for one episode; `max_new_tokens` is for all behind the first prompt.

    Raises:
        ValueError: the first prompt leaves no room for a token.
        ChatError: the router gave no answer.
    """

    def __init__(
        self,
        args: Any,
        state: Any,
        sample: Any,
        sampling_params: Mapping[str, Any],
        longest: int | None,
    ) -> None:
        self._url = f"http://{args.sglang_router_ip}:{args.sglang_router_port}/generate"
        self._state, self._sampling = state, dict(sampling_params)
        self._longest, self._end = longest, 0
        hashed = getattr(args, "router_policy", None) == "consistent_hashing" and sample.session_id
        self._headers = {"X-SMG-Routing-Key": sample.session_id} if hashed else None
        self._post = _slime().post
        self.versions: list[str] = []
        """Versions of the weights, one a request."""

    async def __call__(self, ids: tuple[int, ...], stop: tuple[int, ...]) -> Sampled:
        if self._state.aborted:
            raise _Aborted
        if not self._end:
            if self._longest is not None and len(ids) >= self._longest:
                raise ValueError(
                    f"the first prompt has {len(ids)} tokens, tools included, and the longest"
                    f" context is {self._longest}; raise `rollout_max_context_len`, in an"
                    " evaluation `eval_max_context_len`"
                )
            self._end = len(ids) + self._sampling["max_new_tokens"]
            self._end = min(self._end, self._longest or self._end)
        left = self._end - len(ids)
        if left < 1:
            return Sampled((), (), "length")
        ends = sorted({*stop, *(self._sampling.get("stop_token_ids") or ())})
        limits = {"max_new_tokens": left, "stop_token_ids": ends, "no_stop_trim": True}
        told = await self._asked(
            {
                "input_ids": list(ids),
                "sampling_params": {**self._sampling, **limits},
                "return_logprob": True,
            }
        )
        if told["finish_reason"]["type"] == "abort":
            raise _Aborted
        if "weight_version" in told:
            self.versions.append(str(told["weight_version"]))
        pairs = told.get("output_token_logprobs") or ()
        sampled = tuple(int(pair[1]) for pair in pairs)
        logprobs = tuple(float(pair[0]) for pair in pairs)
        is_cut = told["finish_reason"]["type"] == "length"
        return Sampled(sampled, logprobs, "length" if is_cut else "stop")

    async def _asked(self, payload: dict[str, Any]) -> dict[str, Any]:
        """Return the `meta_info` of an answer; slime itself tries again.

        Raises:
            ChatError: there is none.
        """
        try:
            answer = await self._post(self._url, payload, headers=self._headers)
        except httpx.HTTPError as error:
            raise ChatError(f"slime's router failed: {error!r}") from error
        told = answer.get("meta_info") if isinstance(answer, Mapping) else None
        if not isinstance(told, dict) or "finish_reason" not in told:
            raise ChatError(f"slime's router gave no answer: {answer!r:.200}")
        return told


def _filled(
    sample: Any,
    row: TrainingRow,
    trajectory: Trajectory,
    renderer: ChatTemplateRenderer,
    engine: _Engine,
    told: Mapping[str, Any],
) -> Any:
    """Return a copy of the sample with a row; an excluded one is a masked token, and removed."""
    made = copy.copy(sample)
    if row.excluded is None:
        response = row.response_only()
        prompt, ids, mask = response.prompt_ids, response.response_ids, response.loss_mask
        logprobs = response.logprobs
    else:
        end = min(renderer.stop_ids)
        prompt, ids, mask, logprobs = (end,), (end,), (0,), (0.0,)
    states = type(sample).Status
    made.tokens, made.response_length = [*prompt, *ids], len(ids)
    made.response = renderer.tokenizer.decode(list(ids))
    made.loss_mask = list(mask)
    made.rollout_log_probs = None if logprobs is None else list(logprobs)
    made.reward = None if row.excluded else row.reward
    made.remove_sample = row.excluded is not None
    if trajectory.status is Status.POLICY_TRUNCATED:
        made.status = states.TRUNCATED
    else:
        made.status = states.COMPLETED if trajectory.status is Status.OK else states.FAILED
    made.weight_versions = list(engine.versions)
    made.rollout_id = sample.index if sample.rollout_id is None else sample.rollout_id
    made.metadata = {**sample.metadata, **told, "agent": row.agent, "excluded": row.excluded}
    return made


# --- what slime asks after an episode ----------------------------------------------------------


async def reward_func(args: Any, sample: Any, **_: Any) -> Any:
    """Return the reward that the sample has, `None` for a removed one; of a list, theirs."""
    return [one.reward for one in sample] if isinstance(sample, list) else sample.reward


def keep_group(args: Any, samples: Iterable[Any], **_: Any) -> bool:
    """Return whether anything of a group can be trained; slime plays another in its place.

    The log tells why nothing can: slime logs the figures of full batches alone.
    """
    own = list(_flat(samples))
    if any(not one.remove_sample for one in own):
        return True
    LOG.warning("a group is left out: %s", own[0].metadata["excluded"])
    return False


def compare_rewards(args: Any, samples: Sequence[Any]) -> tuple[list[float], list[float]]:
    """Return rewards for the log, and those compared as slime compares, within group and agent.

    An episode counts once, however many samples it has. A removed sample has no part in the mean;
    slime needs a number in its place: the mean in the log, 0 once compared.
    """
    groups: dict[tuple[Any, Any], dict[Any, float]] = defaultdict(dict)
    for one in samples:
        if not one.remove_sample:
            groups[one.group_index, one.metadata["agent"]][one.rollout_id] = one.reward
    everywhere = [reward for group in groups.values() for reward in group.values()]
    raw, compared = [], []
    for one in samples:
        rewards = list(groups[one.group_index, one.metadata["agent"]].values())
        mean = statistics.fmean(rewards or everywhere or [0.0])
        reward = mean if one.remove_sample else one.reward
        raw.append(reward)
        compared.append(_compared(args, reward, mean, rewards, one.remove_sample))
    return raw, compared


def _compared(
    args: Any, reward: float, mean: float, rewards: Sequence[float], is_removed: bool
) -> float:
    if is_removed:
        return 0.0
    if not args.rewards_normalization or args.advantage_estimator not in _NORMALISED:
        return reward
    if not args.grpo_std_normalization or args.advantage_estimator not in _DIVIDED:
        return reward - mean
    spread = statistics.stdev(rewards) if len(rewards) > 1 else 0.0
    return (reward - mean) / (spread + 1e-6)


def log_rollout(
    rollout_id: int, args: Any, samples: Iterable[Any], extra: dict[str, Any] | None, seconds: float
) -> bool:
    """Add `livestream_env.metrics` to what slime logs, each the mean over episodes."""
    _add_metrics("rollout/livestream", samples, extra)
    return False


def log_eval_rollout(
    rollout_id: int, args: Any, data: dict[str, Any], extra: dict[str, Any] | None = None
) -> bool:
    """Take removed samples out of what slime averages, and add `livestream_env.metrics`."""
    for name, told in list(data.items()):
        samples = told["samples"]
        _add_metrics(f"eval/{name}/livestream", samples, extra)
        kept = [at for at, one in enumerate(samples) if not one.remove_sample]
        for key in ("rewards", "truncated", "samples"):
            told[key] = [told[key][at] for at in kept]
        if not kept:
            del data[name]
    return False


def _add_metrics(prefix: str, samples: Iterable[Any], extra: dict[str, Any] | None) -> None:
    episodes = {one.rollout_id: one.metadata["livestream"] for one in _flat(samples)}
    figures: dict[str, list[float]] = defaultdict(list)
    for told in episodes.values():
        for name, figure in told.items():
            figures[name].append(figure)
    if extra is not None:
        extra.update({f"{prefix}/{key}": statistics.fmean(all_) for key, all_ in figures.items()})


def _flat(samples: Iterable[Any]) -> Iterable[Any]:
    """Yield samples of a list in which those of one episode may be a list."""
    for one in samples:
        yield from one if isinstance(one, list) else (one,)
