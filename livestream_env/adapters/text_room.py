"""Rooms for trainers that own the loop: they open an episode, pass what the policy says, end it.

`PlayedRoom` holds the episode and its record; `TextRoom` has observations and actions of plain
text, as GEM and what builds on it ask for. Neither knows a trainer.
"""

from __future__ import annotations

import json
import operator
import os
import random
from collections.abc import Iterable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any, Literal

from livestream_env.adapters.setup import Setup, TaskRow
from livestream_env.adapters.text import as_user_messages, with_tools_told
from livestream_env.drivers import failed_trajectory
from livestream_env.env import LiveRoomEnv, cause_of
from livestream_env.episode import TWO_AGENTS, Episode
from livestream_env.errors import ChatError, ResetNeeded, SandboxError
from livestream_env.parsing import to_action
from livestream_env.token_agent import sampled_text
from livestream_env.types import Message, Observation, Status, Trajectory

Rows = str | os.PathLike[str] | Iterable[TaskRow | Mapping[str, Any]]
Stepped = tuple[Observation, float, bool, bool, dict[str, Any]]


class PlayedRoom:
    """A room that a trainer's loop plays, one episode after another.

    What has no value before the first episode is a method: GEM's wrappers copy attributes.

    Args:
        room: as of `Setup`, which takes `options` too; or a `Setup`, shared by many rooms.
        seed: of the episodes that are opened without one.
        rows: task rows, or their file of JSON Lines: a seed then opens the row of that number,
            round and round. By default the seed alone decides.
    """

    def __init__(
        self,
        room: str | Setup | None = None,
        *,
        seed: int | None = None,
        rows: Rows = (),
        **options: Any,
    ) -> None:
        setup = self.setup = room if isinstance(room, Setup) else Setup(room, **options)
        self._rows = [setup.row(row) for row in read_rows(rows)]
        for name in {row.room for row in self._rows}:
            setup.make_env(name)
        self._random = random.Random(seed)
        self._room: str | None = None
        self._env: LiveRoomEnv | None = None
        self._failed: Trajectory | None = None
        self._sampled: dict[str, Any] = {}
        self._said: str | None = None

    def open(
        self, seed: int | None = None, row: TaskRow | Mapping[str, Any] | None = None
    ) -> tuple[Observation, dict[str, Any]]:
        """Open an episode, the same for the same seed, or that of a row.

        Raises:
            SandboxError: infrastructure failed; `played` has the record.
        """
        number = self._random.randrange(2**31) if seed is None else operator.index(seed)
        task = None if row is None else self.setup.row(row)
        if task is None and self._rows:
            task = self._rows[number % len(self._rows)]
        opening: dict[str, Any] = {"seed": number} if task is None else self.setup.opening(task)
        if self.setup.has_two_agents:
            opening["options"] = {**(opening.get("options") or {}), "agents": [*TWO_AGENTS]}
        env = self._env_of(task.room if task else None)
        self._failed, self._sampled = None, {}
        try:
            return env.reset(**opening)
        except SandboxError as error:
            self._failed = failed_trajectory(env, opening["seed"], cause_of(error))
            self.setup.keep(self._failed)
            self.close()
            raise
        except BaseException:
            self.close()
            raise

    def _env_of(self, room: str | None) -> LiveRoomEnv:
        """Return the environment of before where it serves: of the room, with a sound sandbox."""
        env = self._env
        if env is not None and (room != self._room or env.episode.status is Status.ENV_ERROR):
            self.close()
        if self._env is None:
            self._env, self._room = self.setup.make_env(room), room
        return self._env

    def sampled(
        self,
        prompt_ids: tuple[int, ...] | None,
        token_ids: tuple[int, ...] | None,
        logprobs: tuple[float, ...] | None,
        stop: Literal["stop", "length"],
        tokenizer: Any = None,
    ) -> None:
        """Note how the next action was sampled, as far as it is known; `length`: it was cut.

        With a tokenizer, what was said is read off the ids: text that a trainer makes of them lacks
        a `<think>` that the prompt opened.
        """
        self._sampled = {"prompt_ids": prompt_ids, "token_ids": token_ids}
        self._sampled |= {"logprobs": logprobs, "stop": stop}
        self._said = None
        if tokenizer is not None and prompt_ids is not None and token_ids is not None:
            self._said = sampled_text(tokenizer, prompt_ids, token_ids)

    def take(self, action: Any) -> Stepped:
        """Take one assistant message: text, an `Action` or an OpenAI message."""
        episode, env = self.episode(), self._env
        assert env is not None
        sampled, self._sampled = self._sampled, {}
        if sampled:
            said = action if self._said is None else self._said
            tools = episode.tools[episode.agent]
            action = replace(to_action(said, turn=len(episode.turns), tools=tools), **sampled)
        return self._told(env.step(action))

    def end(self, reason: Literal["length", "turns", "driver"]) -> Stepped:
        """End the episode at a limit of the trainer's, or because it stops, and score it."""
        episode, env = self.episode(), self._env
        assert env is not None
        episode.abort(reason, "the trainer ended the episode" if reason == "driver" else "")
        return self._told(env.finish_step(()))

    def fail(self, error: ChatError) -> None:
        """End the episode because the policy's engine failed."""
        self.episode()
        assert self._env is not None
        self._env.fail_step(error)
        self.setup.keep(self.played())

    def _told(self, stepped: tuple[Observation, Any, bool, bool, dict[str, Any]]) -> Stepped:
        observation, reward, terminated, truncated, info = stepped
        if terminated or truncated:
            played = self.played()
            self.setup.keep(played)
            info["metrics"] = self.setup.metrics([played])
            if played.status is Status.ENV_ERROR:
                info["env_error"] = played.faults[-1].detail
        return observation, float(reward), terminated, truncated, info

    def episode(self) -> Episode:
        """Return the episode being played.

        Raises:
            ResetNeeded: none was opened.
        """
        if self._env is None or self._failed is not None:
            raise ResetNeeded("there is no episode; call `reset` first")
        return self._env.episode

    def stand_at(self, other: PlayedRoom) -> None:
        """Go on from where another room stands; neither sees what the other does then."""
        self.close()
        self._failed = other._failed
        if other._env is not None:
            self._env, self._room = other._env.fork(), other._room

    def is_running(self) -> bool:
        """Return whether there is an episode that has not ended."""
        return self._env is not None and self._failed is None and not self._env.episode.done

    def played(self) -> Trajectory:
        """Return the record of the episode so far, also of one that could not be opened."""
        return self._failed or self.episode().trajectory

    def close(self) -> None:
        """Release the sandbox; closing twice is fine."""
        env, self._env = self._env, None
        if env is not None:
            env.close()


class TextRoom(PlayedRoom):
    """A room whose observations are text: the tools told in the system message, results as text.

    Args:
        results_as: `user`: results stand between tags, as chat templates show them. `tool`: they
            are plain, and `info["use_tool"]` says so to those who make them a message of that role.
    """

    ends_both = False
    """Whether a truncated episode is terminated too, for loops that know one flag."""

    def __init__(
        self,
        room: str | Setup | None = None,
        *,
        seed: int | None = None,
        rows: Rows = (),
        results_as: Literal["user", "tool"] = "user",
        **options: Any,
    ) -> None:
        if results_as not in ("user", "tool"):
            raise ValueError(f"`results_as` is {results_as!r}; it is `user` or `tool`")
        super().__init__(room, seed=seed, rows=rows, **options)
        self.results_as = results_as

    def reset(self, seed: int | None = None) -> tuple[str, dict[str, Any]]:
        """Open an episode; the observation holds system text, tools and comments.

        Raises:
            SandboxError: infrastructure failed.
        """
        observation, info = self.open(seed)
        return as_text(self.first_messages(observation)), info

    def step(self, action: Any) -> tuple[str, float, bool, bool, dict[str, Any]]:
        """Take one assistant message; the observation is what is new, empty at the end.

        The reward is NaN where the episode has none: `info["env_error"]` or `info["rewards"]` say
        why.
        """
        observation, reward, terminated, truncated, info = self.take(action)
        messages = observation.messages
        if self.results_as == "tool":
            info["use_tool"] = any(message.role == "tool" for message in messages)
        else:
            messages = as_user_messages(messages)
        terminated = terminated or (truncated and self.ends_both)
        return as_text(messages), reward, terminated, truncated, info

    def first_messages(self, observation: Observation) -> tuple[Message, ...]:
        """Return the messages of a first observation, with the tools told."""
        language = self.episode().view.language
        return with_tools_told(observation.messages, observation.tools, language)


def as_text(messages: Iterable[Message]) -> str:
    """Return what messages say, an empty line between them."""
    return "\n\n".join(message.content for message in messages)


def read_rows(rows: Rows) -> list[Any]:
    """Return rows that are given, or those of a file."""
    if not isinstance(rows, (str, os.PathLike)):
        return list(rows)
    lines = Path(rows).read_text(encoding="utf-8-sig").split("\n")
    return [json.loads(line) for line in lines if line.strip()]
