"""Rooms in ROLL's dialects: plain text, and chat messages with the tools beside them."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from typing import Any, Literal

from livestream_env.adapters.text_room import PlayedRoom, Stepped, TextRoom, as_text
from livestream_env.errors import SandboxError
from livestream_env.types import Message, StopReason

_LIMITS: Mapping[str, Literal["length", "turns"]] = {"MAX_LENGTH": "length", "MAX_STEPS": "turns"}


class RollText(TextRoom):
    """A room in the dialect of `TrajEnvManager` and `StepEnvManager`.

    The system text and the tools are `info["env_instruction"]`; only `terminated` ends an episode
    there, so it is set with `truncated`. An environment that fails at reset gives an empty
    observation, and ends in the step after.

    Args:
        observes: `new`: what is new, for managers that keep the conversation. `whole`: all since
            the system text, for `StepEnvManager`, whose prompts hold one observation.
        clusters: the cluster that trains each agent; by default of the agent's name.
    """

    ends_both = True

    def __init__(
        self,
        room: str | None = None,
        *,
        observes: Literal["new", "whole"] = "new",
        clusters: Mapping[str, str] | None = None,
        **options: Any,
    ) -> None:
        if observes not in ("new", "whole"):
            raise ValueError(f"`observes` is {observes!r}; it is `new` or `whole`")
        super().__init__(room, **options)
        self.observes, self.clusters = observes, dict(clusters or {})
        self._whole: list[str] = []

    def reset(self, seed: int | None = None) -> tuple[str, dict[str, Any]]:
        """Open an episode, the same for the same seed."""
        try:
            observation, info = self.open(seed)
        except SandboxError:
            return "", {"env_instruction": "", "metrics": {}}
        messages = self.first_messages(observation)
        system = messages[:1] if messages[0].role == "system" else ()
        text = as_text(messages[len(system) :])
        self._whole = [text]
        return text, {"env_instruction": as_text(system), "metrics": {}, **info}

    def step(self, action: Any) -> tuple[str, float, bool, bool, dict[str, Any]]:
        """Take one assistant message; the observation is as `observes` says, empty at the end."""
        if not self.is_running() and self.played().stop_reason is StopReason.ENV_ERROR:
            return "", math.nan, True, True, {"metrics": {}}
        text, reward, terminated, truncated, info = super().step(action)
        turn = self.played().turns[-1].action.message
        figures = info.get("metrics", {})
        valid = all(call.error is None for call in turn.tool_calls)
        info["metrics"] = {"action_is_valid": float(valid), **figures}
        info["metrics_agg_mode"] = dict.fromkeys(figures, "last")
        if self.observes == "whole" and not terminated:
            self._whole += [_said(turn), text]
            text = "\n\n".join(self._whole)
        return text, reward, terminated, truncated, info


def _said(message: Message) -> str:
    """Return an assistant's message as text, its calls in the form that the prompt asks for."""
    calls = [{"name": call.name, "arguments": dict(call.arguments)} for call in message.tool_calls]
    told = [f"<tool_call>\n{json.dumps(call, ensure_ascii=False)}\n</tool_call>" for call in calls]
    return "\n".join([message.content, *told] if message.content else told)


class RollMessages(PlayedRoom):
    """A room in the dialect of `AgentNativeStepEnvManager`: chat messages, tools beside them.

    Args:
        clusters: the cluster that trains each agent; by default of the agent's name.
    """

    def __init__(
        self,
        room: str | None = None,
        *,
        clusters: Mapping[str, str] | None = None,
        **options: Any,
    ) -> None:
        super().__init__(room, **options)
        self.clusters = dict(clusters or {})
        self.env_reset_failed = False
        self.env_timeout = False
        self.env_info: dict[str, Any] = {}

    def reset(self, seed: int | None = None) -> tuple[list[dict[str, Any]], dict[str, Any]]:
        """Open an episode, the same for the same seed; a failure is told in `env_reset_failed`."""
        self.env_timeout = self.env_reset_failed = False
        try:
            _, info = self.open(seed)
        except SandboxError as error:
            self.env_reset_failed, self.env_info = True, {}
            return [], {"tools": [], "error_msg": str(error), "failure_mode": "env_error"}
        self.env_info = {key: info[key] for key in ("room_id", "comment_ids", "seed")}
        episode = self.episode()
        tools = [tool.to_openai() for tool in episode.tools[episode.agent]]
        return self._messages(), {"tools": tools, "error_msg": "", "failure_mode": "", **info}

    def step(self, action: Any) -> tuple[list[dict[str, Any]], float, bool, bool, dict[str, Any]]:
        """Take one assistant message, or the reason why the manager ends the episode."""
        stops = hasattr(action, "name")  # an `EpisodeStopReason`
        stepped = self.end(_LIMITS.get(action.name, "driver")) if stops else self.take(action)
        return self._native(stepped)

    def _native(
        self, stepped: Stepped
    ) -> tuple[list[dict[str, Any]], float, bool, bool, dict[str, Any]]:
        _, reward, terminated, truncated, info = stepped
        figures = info.setdefault("metrics", {})
        info["metrics_agg_mode"] = dict.fromkeys(figures, "last")
        if "env_error" in info:
            info["failure_mode"], info["error_messages"] = "env_error", [info["env_error"]]
        self.env_timeout = self.episode().stop_reason is StopReason.ABORTED
        return self._messages(), reward, terminated or truncated, truncated, info

    def _messages(self) -> list[dict[str, Any]]:
        episode = self.episode()
        return [message.to_openai() for message in episode.conversation(episode.agent)]
