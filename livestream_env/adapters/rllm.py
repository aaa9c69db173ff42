"""rLLM: an agent flow over its gateway, its evaluator, and an environment for its workflows.

The gateway records each request by token ids and keeps them from the flow, so masks are by whole
turns: the evaluator leaves the steps of others out and makes a trajectory of each trained agent.
"""

from __future__ import annotations

import functools
from collections.abc import Mapping, Sequence
from types import SimpleNamespace
from typing import Any

from livestream_env.adapters.chat_api import arun_episode
from livestream_env.adapters.seats import check_partners, seated
from livestream_env.adapters.setup import Setup, trainer_module
from livestream_env.adapters.text import as_user_messages
from livestream_env.adapters.text_room import TextRoom
from livestream_env.adapters.whole_turns import TurnRenderer
from livestream_env.chat import ChatClient
from livestream_env.completions import Completion
from livestream_env.errors import SandboxError
from livestream_env.rows import TrainingRow
from livestream_env.team import Member
from livestream_env.types import Message, Trajectory, Turn

RAN, INSTALL = "rllm 0.3.0.pre", "pip install 'git+https://github.com/rllm-org/rllm'"
_TOLD = "livestream"


class RoomFlow:
    """An agent flow and its own evaluator: `AgentTrainer(agent_flow=flow, evaluator=flow, ...)`.

    A task's `metadata` is a task row. An episode that is not trained, as where the environment
    failed, raises: rLLM plays it again, and at last has an episode without trajectories.

    Args:
        room: of rows that name none.
        partners: who plays a seat of two agents, untrained; by default the trained model.
        types: what has rLLM's `Episode`, `Trajectory`, `Step` and `EvalOutput`, by default rLLM.
        options: the other arguments of `Setup`.

    Raises:
        MissingDependency: rLLM is not installed.
    """

    name = "livestream"
    needs_env = False

    def __init__(
        self,
        room: str | None = None,
        *,
        partners: Mapping[str, Member | None] | None = None,
        types: Any = None,
        **options: Any,
    ) -> None:
        self.setup = Setup(room, **options)
        check_partners(self.setup, partners)
        self._partners, self._types = partners, types or _rllm_types()

    async def arun(self, task: Any, config: Any) -> Any:
        """Play the episode of a task; a step stands for each request, in the gateway's order.

        Raises:
            RuntimeError: nothing of the episode may be trained; it says why.
        """
        row = self.setup.row(task.metadata)
        client = _Client(config)
        env = self.setup.make_env(row.room)
        try:
            trajectory = await arun_episode(
                client,
                None,
                env,
                seated=lambda agent: seated(agent, self.setup, self._partners, is_async=True),
                **self.setup.opening(row),
            )
        finally:
            client.close()
            await env.aclose()
        self.setup.keep(trajectory)
        rows = self.setup.rows(trajectory, TurnRenderer())
        asked = [at for at, turn in enumerate(trajectory.turns) if _was_recorded(turn, trajectory)]
        trained = [made for one in rows if (made := _of_row(one, asked))]
        if not trained:
            why = rows[0].excluded or "its context was full before a word"
            raise RuntimeError(f"the episode {row.task_id} is left out: {why}")
        return self._episode(task, trajectory, asked, trained, client.said)

    def _episode(
        self,
        task: Any,
        trajectory: Trajectory,
        asked: list[int],
        trained: list[dict[str, Any]],
        said: list[dict[str, Any]],
    ) -> Any:
        """Return the episode with a step for each request, and what `evaluate` makes of them."""
        steps = [
            self._types.Step(
                action=trajectory.turns[at].action.message.to_openai(), chat_completions=[answer]
            )
            for at, answer in zip(asked, said, strict=True)
        ]
        total = trained[0]["reward"] if trajectory.reward is None else trajectory.reward
        return self._types.Episode(
            task=task.metadata,
            is_correct=total > 0,
            trajectories=[self._types.Trajectory(name=self.name, steps=steps)],
            artifacts={_TOLD: {"said": said, "trained": trained, "total": total}},
            metrics=self.setup.metrics([trajectory]),
            metadata={
                "status": str(trajectory.status),
                "stop_reason": str(trajectory.stop_reason),
            },
        )

    def evaluate(self, task: Any, episode: Any) -> Any:
        """Make a trajectory of each trained agent, with its trained steps and rewards.

        Raises:
            RuntimeError: the gateway recorded other requests than the flow made.
        """
        told = episode.artifacts[_TOLD]
        steps = [step for one in episode.trajectories for step in one.steps]
        said = [_said(one) for step in steps for one in step.chat_completions[-1:]]
        if said != told["said"]:
            raise RuntimeError(
                f"the gateway has {len(steps)} steps with other answers than the flow's"
                f" {len(told['said'])}: it recorded a request that was asked twice, or given up"
            )
        episode.trajectories = [self._of_agent(one, steps, episode) for one in told["trained"]]
        total = told["total"]
        return self._types.EvalOutput(reward=total, is_correct=total > 0)

    def _of_agent(self, told: Mapping[str, Any], steps: list[Any], episode: Any) -> Any:
        kept = []
        for index, reward in told["steps"]:
            steps[index].reward = reward
            kept.append(steps[index])
        kept[-1].done = True
        return self._types.Trajectory(
            name=told["agent"], task=episode.task, steps=kept, reward=told["reward"]
        )


class _Client(ChatClient):
    """Asks the gateway of a session; keeps what was said, to know its steps by."""

    def __init__(self, config: Any) -> None:
        super().__init__(config.base_url, config.model, timeout_s=300.0, total_timeout_s=900.0)
        self.said: list[dict[str, Any]] = []

    async def acomplete(self, messages: Sequence[Mapping[str, Any]], **options: Any) -> Completion:
        """Ask for one answer."""
        done = await super().acomplete(messages, **options)
        self.said.append(_said(done.message))
        return done


def _said(message: Mapping[str, Any]) -> dict[str, Any]:
    calls = message.get("tool_calls") or []
    return {"role": "assistant", "content": message.get("content") or "", "tool_calls": calls}


def _was_recorded(turn: Turn, trajectory: Trajectory) -> bool:
    """Return whether the gateway has an answer for the turn."""
    is_full = any(event.kind == "context_full" for event in turn.action.events)
    return turn.agent not in trajectory.partners and not is_full


def _of_row(row: TrainingRow, asked: list[int]) -> dict[str, Any] | None:
    """Return a row's agent, reward, and steps with theirs; `None` where nothing is trained."""
    steps = [[asked.index(one.turn), one.reward] for one in row.turns if one.turn in asked]
    if row.excluded is not None or not steps:
        return None
    return {"agent": row.agent, "reward": row.reward, "steps": steps}


def _rllm_types() -> Any:
    core = trainer_module("rllm.types", ran=RAN, install=INSTALL)
    evaluated = trainer_module("rllm.eval.types", ran=RAN, install=INSTALL)
    return SimpleNamespace(
        Episode=core.Episode,
        Trajectory=core.Trajectory,
        Step=core.Step,
        EvalOutput=evaluated.EvalOutput,
    )


# --- environments for workflows ----------------------------------------------------------------


def __getattr__(name: str) -> Any:
    if name != "LiveRoomEnvironment":
        raise AttributeError(f"module `{__name__}` has no attribute `{name}`")
    return _environment()


@functools.cache
def _environment() -> Any:
    base: Any = trainer_module("rllm.environments.base.base_env", ran=RAN, install=INSTALL)

    class LiveRoomEnvironment(base.BaseEnv):  # type: ignore[misc]
        """A room for `MultiTurnWorkflow`: new messages out, text in; tools are told as text.

        A failed environment raises, which ends the workflow's try as an error.
        """

        def __init__(self, room: str | Setup | None = None, **options: Any) -> None:
            self.played = TextRoom(room, **options)

        def reset(self, task: Mapping[str, Any] | None = None) -> tuple[Any, dict[str, Any]]:
            """Open the episode of a task row."""
            observation, info = self.played.open(row=task)
            return _told(self.played.first_messages(observation)), info

        def step(self, action: Any) -> tuple[Any, float, bool, dict[str, Any]]:
            """Take one assistant message.

            Raises:
                SandboxError: infrastructure failed.
                RuntimeError: the episode has no reward.
            """
            text = getattr(action, "action", action)
            observation, reward, terminated, truncated, info = self.played.take(text)
            if "env_error" in info:
                raise SandboxError(info["env_error"])
            if reward != reward:
                raise RuntimeError(f"the episode has no reward: {info['rewards']}")
            messages = as_user_messages(observation.messages)
            return _told(messages), reward, terminated or truncated, info

        def close(self) -> None:
            """Release the sandbox."""
            self.played.close()

        @staticmethod
        def from_dict(info: Mapping[str, Any]) -> Any:
            """Make an environment of the arguments of `Setup`."""
            return LiveRoomEnvironment(**info)

    name = "LiveRoomEnvironment"
    LiveRoomEnvironment.__module__, LiveRoomEnvironment.__qualname__ = __name__, name
    return LiveRoomEnvironment


def _told(messages: tuple[Message, ...]) -> list[dict[str, Any]]:
    return [message.to_openai() for message in messages]
