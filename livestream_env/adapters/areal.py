"""AReaL: a rollout workflow, token ids in and token ids out.

trainer.train(
    workflow="livestream_env.adapters.areal.LiveRoomWorkflow",
    workflow_kwargs={
        "gconfig": config.gconfig, "tokenizer": config.tokenizer_path, "room": "bundled:train"
    },
)
"""

from __future__ import annotations

import functools
import os
from collections.abc import Mapping
from typing import Any, ClassVar, Literal
from uuid import uuid4

from livestream_env.adapters.recorded import RecordedRenderer
from livestream_env.adapters.seats import check_partners, seated
from livestream_env.adapters.setup import Setup, only_row, trainer_module
from livestream_env.drivers import arollout
from livestream_env.errors import ChatError
from livestream_env.renderers import ChatTemplateRenderer
from livestream_env.rows import TrainingRow
from livestream_env.team import Member
from livestream_env.token_agent import TokenAgent
from livestream_env.tokens import Sampled
from livestream_env.types import Trajectory

RAN, INSTALL = "areal 1.0.4", "pip install areal==1.0.4"


def __getattr__(name: str) -> Any:
    if name != "LiveRoomWorkflow":
        raise AttributeError(f"module `{__name__}` has no attribute `{name}`")
    return _workflow()


def _areal(name: str, has: str = "") -> Any:
    return trainer_module(f"areal.{name}", ran=RAN, install=INSTALL, has=has)


@functools.cache
def _workflow() -> Any:
    base: Any = _areal("api", "RolloutWorkflow").RolloutWorkflow

    class LiveRoomWorkflow(base):  # type: ignore[misc]
        """Plays the episode of a task row; what was sampled in it is one row of tensors.

        Args:
            gconfig: AReaL's `GenerationHyperparameters`: `max_tokens` is for all of an episode,
                `max_new_tokens` for a turn.
            tokenizer: a tokenizer, or the path of one.
            room: as of `Setup`, which takes `options` too.
            failed: what an episode that is not trained, as where the environment failed, takes out
                of the batch. `group`: all of its group, by an exception; AReaL plays another in its
                place. `member`: itself alone, as `None`; for rewards that are not normalised by
                group, because AReaL counts groups off by their size; AReaL's log tells the cause.
            template: further variables of the chat template, such as `enable_thinking`.
            partners: who plays a seat of two agents, untrained; by default the trained model.

        Raises:
            MissingDependency: AReaL is not installed.
            TypeError: `gconfig` is none.
            ValueError: two agents are to be trained, a partner has no seat, or `failed` is another
                word.
        """

        logger: ClassVar[Any] = _areal("utils.logging").getLogger("LiveRoomWorkflow")

        def __init__(
            self,
            gconfig: Any,
            tokenizer: Any,
            room: str | os.PathLike[str] | None = None,
            *,
            failed: Literal["group", "member"] = "group",
            template: Mapping[str, Any] | None = None,
            partners: Mapping[str, Member | None] | None = None,
            **options: Any,
        ) -> None:
            if failed not in ("group", "member"):
                raise ValueError(f"`failed` is {failed!r}; it is `group` or `member`")
            self.setup = Setup(room, **options)
            if len(self.setup.agents) > 1:
                raise ValueError(
                    "AReaL has one row and one reward an episode, so a workflow trains one agent,"
                    f" not {[*self.setup.agents]}; name one in `agents`: the same model plays both"
                )
            check_partners(self.setup, partners)
            if not hasattr(gconfig, "max_tokens"):
                raise TypeError(
                    f"`gconfig` is {gconfig!r:.80}; it is AReaL's `GenerationHyperparameters`, as"
                    " `config.gconfig`"
                )
            if isinstance(tokenizer, (str, os.PathLike)):
                tokenizer = _areal("utils.hf_utils").load_hf_tokenizer(os.fspath(tokenizer))
            self._gconfig, self._failed, self._partners = gconfig, failed, partners
            self._renderer = ChatTemplateRenderer(tokenizer, on_rewrite="keep", **(template or {}))

        async def arun_episode(self, engine: Any, data: Mapping[str, Any]) -> dict[str, Any] | None:
            """Play the episode of a task row and return its tensors, each of shape (1, T).

            Raises:
                RuntimeError: nothing of it may be trained, and `failed` is `group`.
            """
            played = _Engine(engine, self._gconfig, self._renderer.tokenizer)
            agent = seated(
                TokenAgent(played, self._renderer), self.setup, self._partners, is_async=True
            )
            task = self.setup.row(data)
            env = self.setup.make_env(task.room)
            try:
                trajectory = await arollout(env, agent, **self.setup.opening(task))
            finally:
                await env.aclose()
            self.setup.keep(trajectory, policy_version=played.version)
            row = only_row(self.setup.rows(trajectory, RecordedRenderer()), task)
            _log(self.setup, trajectory, row)
            if row.excluded is None:
                return _tensors(row, trajectory, played)
            told = f"the episode {task.task_id} is left out: {row.excluded}"
            if self._failed == "member":
                self.logger.warning(told)
                return None
            raise RuntimeError(told)

    name = "LiveRoomWorkflow"
    LiveRoomWorkflow.__module__, LiveRoomWorkflow.__qualname__ = __name__, name
    return LiveRoomWorkflow


class _Engine:
    """AReaL's engine for one episode.

    Raises:
        ValueError: the first prompt leaves no room for a token.
        ChatError: the engine gave a request up.
    """

    def __init__(self, engine: Any, gconfig: Any, tokenizer: Any) -> None:
        self._engine, self._gconfig, self._tokenizer = engine, gconfig, tokenizer
        self._request, self._id = _areal("api").ModelRequest, uuid4().hex
        self.versions: dict[tuple[int, ...], tuple[int, ...]] = {}
        """By prompt: the version of the weights that sampled each token behind it."""

    @property
    def version(self) -> int | None:
        """The newest version that sampled."""
        return max((max(told) for told in self.versions.values() if told), default=None)

    async def __call__(self, ids: tuple[int, ...], stop: tuple[int, ...]) -> Sampled:
        longest = self._gconfig.max_tokens
        if len(ids) >= longest and not self.versions:
            raise ValueError(
                f"the first prompt has {len(ids)} tokens, tools included, and the longest sequence"
                f" is {longest}; raise `gconfig.max_tokens`"
            )
        if len(ids) >= longest:
            return Sampled((), (), "length")
        ends = sorted({*stop, *self._gconfig.stop_token_ids})
        request = self._request(
            rid=self._id,  # one server for all of an episode
            input_ids=list(ids),
            gconfig=self._gconfig.new(n_samples=1, stop_token_ids=ends),
            tokenizer=self._tokenizer,
        )
        try:
            told = await self._engine.agenerate(request)
        except (RuntimeError, OSError) as error:
            raise ChatError(f"AReaL's engine failed: ...{str(error)[-300:]}") from error
        self.versions[ids] = tuple(told.output_versions)
        is_cut = told.stop_reason == "length"
        return Sampled(
            tuple(told.output_tokens), tuple(told.output_logprobs), "length" if is_cut else "stop"
        )


def _tensors(row: TrainingRow, trajectory: Trajectory, engine: _Engine) -> dict[str, Any]:
    """Return a row up to its last trained token: AReaL loses a reward that stands behind it."""
    import torch

    sample, sequence = row.full(), row.sequence
    assert sequence is not None
    assert sample.logprobs is not None
    stop = len(sample.loss_mask) - sample.loss_mask[::-1].index(1)
    versions = [-1] * len(sequence)
    for span in sequence.spans:
        if span.source.is_sampled and span.stop > span.start:
            prompt = trajectory.turns[span.turn].action.prompt_ids
            versions[span.start : span.stop] = engine.versions[prompt or ()]
    made = {
        "input_ids": torch.tensor(sample.token_ids[:stop], dtype=torch.int32),
        "loss_mask": torch.tensor(sample.loss_mask[:stop], dtype=torch.int32),
        "logprobs": torch.tensor(sample.logprobs[:stop], dtype=torch.float32),
        "versions": torch.tensor(versions[:stop], dtype=torch.int32),
        "attention_mask": torch.ones(stop, dtype=torch.bool),
        "rewards": torch.tensor(row.reward, dtype=torch.float32),
    }
    return {name: tensor.unsqueeze(0) for name, tensor in made.items()}


def _log(setup: Setup, trajectory: Trajectory, row: TrainingRow) -> None:
    """Tell AReaL's tracker the figures of an episode, and its reward where it has one."""
    scope = _areal("infra.workflow_context").stat_scope()
    figures = setup.metrics([trajectory])
    told = {f"livestream/{name}": figure for name, figure in figures.items()}
    if row.excluded is None and row.reward is not None:
        told["reward"] = row.reward
    _areal("utils.stats_tracker").get(scope).scalar(**told)
