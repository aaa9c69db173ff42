"""The episode of two agents as a PettingZoo environment: whoever's turn it is, acts."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

import gymnasium as gym

from livestream_env.env import LiveRoomEnv
from livestream_env.episode import TWO_AGENTS, Episode
from livestream_env.errors import ResetNeeded, missing_dependency
from livestream_env.spaces import ActionSpace, ObservationSpace
from livestream_env.types import Observation, Rewards

try:
    from pettingzoo import AECEnv
except ImportError as error:
    raise missing_dependency("pettingzoo", extra="multi-agent") from error


_OF_API_TEST = "options"
"""An option without meaning, which PettingZoo's `api_test` gives; others that are unknown raise."""


class _PartSpace(gym.Space[Any]):
    """One field of `Observation`."""

    def __init__(self, field: str) -> None:
        super().__init__(None, None)
        self._field = field
        self._whole = ObservationSpace()

    @property
    def is_np_flattenable(self) -> bool:
        """Observations are text: they cannot be flattened into an array."""
        return False

    def seed(self, seed: int | None = None) -> int | list[int] | dict[str, int]:
        """Seed what `sample` returns."""
        return self._whole.seed(seed)

    def contains(self, x: Any) -> bool:
        """Return whether `x` is the field of a well-formed observation."""
        return self._whole.contains(Observation(**{"messages": (), self._field: x}))

    def sample(self, mask: Any = None, probability: Any = None) -> Any:
        """Return the field of a random observation."""
        return getattr(self._whole.sample(), self._field)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, _PartSpace) and self._field == other._field

    def __repr__(self) -> str:
        return f"_PartSpace({self._field!r})"


class LiveRoomAEC(AECEnv[str, dict[str, Any], Any]):  # type: ignore[misc]
    """A livestream room in which `tool_caller` looks things up and `replier` answers.

    An agent's observation is a dict: `messages` (those since its own last one; first the prompt),
    `tools`, `comments` (still open) and `phase` (`tools` or `reply`). Actions are those of
    `LiveRoomEnv`. Both agents terminate together, and the rewards of the episode arrive then, each
    agent's own by the rubric; NaN where there is no score.
    """

    metadata = {  # noqa: RUF012
        **LiveRoomEnv.metadata,
        "name": "LiveRoom-v0",
        "is_parallelizable": False,
    }

    def __init__(self, env: LiveRoomEnv) -> None:
        super().__init__()
        self.env = env
        """The environment below, for what PettingZoo has no word for."""
        self.render_mode = env.render_mode
        self.possible_agents = list(TWO_AGENTS)
        self.agents: list[str] = []
        self._observed = {agent: _observation_space() for agent in TWO_AGENTS}
        specs = env.action_space.specs  # type: ignore[attr-defined]
        self._acted = {agent: ActionSpace(specs) for agent in TWO_AGENTS}
        self._turns_until: dict[str, int] = {}

    def observation_space(self, agent: str) -> gym.Space[Any]:
        """Return the space of an agent's observations."""
        return self._observed[agent]

    def action_space(self, agent: str) -> gym.Space[Any]:
        """Return the space of an agent's actions."""
        return self._acted[agent]

    def reset(self, seed: int | None = None, options: Mapping[str, Any] | None = None) -> None:
        """Start an episode; as `LiveRoomEnv.reset`."""
        own = {name: value for name, value in (options or {}).items() if name != _OF_API_TEST}
        _, info = self.env.reset(seed=seed, options={**own, "agents": TWO_AGENTS})
        self.agents = list(TWO_AGENTS)
        self.agent_selection = self.env.episode.agent
        self.rewards = dict.fromkeys(TWO_AGENTS, 0.0)
        self._cumulative_rewards = dict.fromkeys(TWO_AGENTS, 0.0)
        self.terminations = dict.fromkeys(TWO_AGENTS, False)
        self.truncations = dict.fromkeys(TWO_AGENTS, False)
        self.infos = {agent: dict(info) for agent in TWO_AGENTS}
        self._turns_until = dict.fromkeys(TWO_AGENTS, 0)

    def step(self, action: Any) -> None:
        """Take the message of the agent whose turn it is; `None` from one that has ended.

        Raises:
            ResetNeeded: no agent plays: there was no `reset`, or all have ended and left.
            SandboxError: as `LiveRoomEnv.step`.
        """
        if not self.agents:
            raise ResetNeeded("no agent plays; call `reset` before the next `step`")
        agent = self.agent_selection
        if self.terminations[agent] or self.truncations[agent]:
            self._was_dead_step(action)
            return
        _, reward, terminated, truncated, info = self.env.step(action)
        episode = self.env.episode
        self._turns_until[agent] = len(episode.turns)
        self._cumulative_rewards[agent] = 0.0
        self.rewards = _rewards(episode, float(reward), agent)
        self.terminations = dict.fromkeys(TWO_AGENTS, terminated)
        self.truncations = dict.fromkeys(TWO_AGENTS, truncated)
        self.infos = {name: dict(info) for name in TWO_AGENTS}
        self.agent_selection = TWO_AGENTS[0] if episode.done else episode.agent
        self._accumulate_rewards()

    def observe(self, agent: str) -> dict[str, Any]:
        """Return what an agent has not been told yet, and what it can do."""
        episode, done = self.env.episode, self._turns_until[agent]
        messages = list(episode.turns[done - 1].messages if done else episode.prompts[agent])
        for turn in episode.turns[done:]:
            messages += (turn.action.message, *turn.messages)
        return {
            "messages": tuple(messages),
            "tools": episode.tools[agent],
            "comments": episode.open_comments,
            "phase": episode.phase,
        }

    def render(self) -> str | None:
        """Return or print the transcript, as `LiveRoomEnv.render`."""
        return self.env.render()

    def close(self) -> None:
        """Release the sandbox."""
        self.env.close()


def _observation_space() -> gym.Space[Any]:
    parts: dict[str, gym.Space[Any]] = {
        name: _PartSpace(name) for name in ("messages", "tools", "comments")
    }
    phase = gym.spaces.Text(5, min_length=5, charset="eloprsty")
    return gym.spaces.Dict({**parts, "phase": phase})


def _rewards(episode: Episode, given: float, actor: str) -> dict[str, float]:
    """Part what `step` gave between the agents: each its own scores of the turn, and at the end of
    the episode; all of it to each where nothing was scored."""
    rewards, turn = episode.rewards, len(episode.turns) - 1
    if rewards is None:
        return dict.fromkeys(TWO_AGENTS, given)
    made = {agent: _total(rewards, agent) if episode.done else 0.0 for agent in TWO_AGENTS}
    for score in rewards.scores:
        if score.turn == turn and score.value is not None:
            made[score.agent if score.agent in made else actor] += score.weight * score.value
    return made


def _total(rewards: Rewards, agent: str) -> float:
    """Return an agent's total, or everybody's where the rubric knows no such agent."""
    is_known = any(score.agent == agent and score.turn is None for score in rewards.scores)
    total = rewards.total(agent if is_known else None)
    return math.nan if total is None else total
