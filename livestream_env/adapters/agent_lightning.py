"""Agent Lightning: episodes over the chat API that it records, and one reward for each.

1.0 starts a process for each rollout: `agentlightning.local.agent_class` is
`livestream_env.adapters.agent_lightning:LiveRoomAgent`, whose task row and setup are variables of
the `env_map`; in a container, `python -m livestream_env.adapters.agent_lightning` does the same.
0.3 calls `LiveRoomLitAgent`. Both train every request that they record.
"""

from __future__ import annotations

import functools
import json
import os
import re
import signal
import sys
from collections.abc import Mapping
from typing import Any, ClassVar

import httpx

from livestream_env.adapters.chat_api import run_episode
from livestream_env.adapters.seats import check_partners, seated
from livestream_env.adapters.setup import Setup, TaskRow, setup_of, trainer_module
from livestream_env.adapters.whole_turns import TurnRenderer
from livestream_env.chat import ChatClient
from livestream_env.endpoints import is_loopback
from livestream_env.errors import LivestreamError
from livestream_env.masking import END_TO_END
from livestream_env.team import Member
from livestream_env.types import Trajectory

RAN, INSTALL = "agentlightning 0.3.0", "pip install 'agentlightning==0.3.0'"
Partners = Mapping[str, Member | None]
_TIMEOUT_S, _TOTAL_TIMEOUT_S = 300.0, 900.0
_RETRIES = 1000
"""More than the time limit allows: a gateway that is paused while weights change asks to wait."""


class LiveRoomAgent:
    """Plays the rollout that the environment variables describe, for Agent Lightning 1.0.

    | variable | holds |
    |---|---|
    | `LIVESTREAM_ROW` | the task row, JSON; `env_map: {LIVESTREAM_ROW: input}` |
    | `LIVESTREAM_SETUP` | the arguments of `Setup`, JSON; or a subclass has `setup` |
    | `AGL_OPENAI_BASE_URL`, `AGL_EVENT_URL`, `AGL_KEY` | set by Agent Lightning |
    """

    setup: ClassVar[Setup | None] = None
    partners: ClassVar[Partners | None] = None
    """Who plays a seat of two agents, untrained: elsewhere than at Agent Lightning's URL."""

    def run(self) -> None:
        """Play the episode and post its reward.

        Raises:
            RuntimeError: the episode has no reward, so that the rollout fails. Whatever ends it
                otherwise, what was recorded is taken back.
            ValueError: a variable is missing, or holds something else.
        """
        setup = self.setup or setup_of(_json("LIVESTREAM_SETUP"))
        row = setup.row(_json("LIVESTREAM_ROW"))
        url = _variable("AGL_OPENAI_BASE_URL")
        _check(setup, self.partners)
        with _server() as server:
            try:
                trajectory = _played(setup, row, url, "auto", "AGL_KEY", self.partners)
                reward = _reward(setup, row, trajectory)
                _post(server, "livestream_metrics", setup.metrics([trajectory]))
                _post(server, "reward", {"value": reward, "source": "agent"})
            except BaseException as error:
                _take_back(server, error)
                raise


def _played(
    setup: Setup,
    row: TaskRow,
    base_url: str,
    model: str,
    token_env: str | None,
    partners: Partners | None,
    extra_body: Mapping[str, Any] | None = None,
) -> Trajectory:
    """Play an episode at a URL that records it."""
    client = ChatClient(
        base_url,
        model,
        token_env=token_env if token_env and os.environ.get(token_env) else None,
        timeout_s=_TIMEOUT_S,
        total_timeout_s=_TOTAL_TIMEOUT_S,
        retries=_RETRIES,
    )
    env = setup.make_env(row.room)
    try:
        trajectory = run_episode(
            client,
            model,
            env,
            extra_body=extra_body,
            seated=lambda agent: seated(agent, setup, partners),
            **setup.opening(row),
        )
    finally:
        env.close()
        client.close()
    setup.keep(trajectory)
    return trajectory


def _check(setup: Setup, partners: Partners | None) -> None:
    """Refuse what Agent Lightning would train all the same.

    Raises:
        ValueError: the setup trains two agents or masks requests, or a partner has no seat.
    """
    if len(setup.agents) > 1:
        raise ValueError(
            "Agent Lightning has one reward a rollout; train one agent, `agents={'replier':"
            " 'reply'}`, with a partner in the other seat"
        )
    if setup.agents.get("host", END_TO_END) is not END_TO_END:
        raise ValueError(
            "Agent Lightning trains every request of a rollout, so one agent has no mask; train one"
            " of two, with a partner at another URL in the other seat"
        )
    check_partners(setup, partners)


def _reward(setup: Setup, row: TaskRow, trajectory: Trajectory) -> float:
    trained, *_ = setup.rows(trajectory, TurnRenderer())
    if trained.reward is None or trained.excluded is not None:
        raise RuntimeError(f"the episode {row.task_id} has no reward: {trained.excluded}")
    return trained.reward


def _take_back(server: httpx.Client, error: BaseException) -> None:
    """Have the requests of a rollout that failed not trained.

    Of a prompt's recorded requests Agent Lightning trains the last alone, and only where it was
    answered; a rollout without a reward would count as 0 otherwise.

    Raises:
        RuntimeError: Agent Lightning's server cannot be reached, or refuses.
    """
    url = re.sub("/attempt/[^/]+/events$", "/events", _variable("AGL_EVENT_URL"))
    asked = {"event_type": "model_request", "format": "triplet"}
    try:
        for event in server.get(url, params=asked).raise_for_status().json():
            told = {"prompt_token_ids": event["data"]["prompt_token_ids"], "choices": []}
            _post(server, "model_request", {"status": "error", "response": told})
    except httpx.HTTPError as failed:
        raise RuntimeError(
            f"{error or type(error).__name__}; and what was recorded cannot be taken back, so that"
            f" Agent Lightning may train it with a reward of 0: {failed}"
        ) from error


def _post(server: httpx.Client, kind: str, data: Mapping[str, Any]) -> None:
    """Post an event.

    Raises:
        httpx.HTTPError: Agent Lightning's server cannot be reached, or refuses.
    """
    told = {"event_type": kind, "data": data}
    server.post(_variable("AGL_EVENT_URL"), json=told).raise_for_status()


def _server() -> httpx.Client:
    """Return a client of Agent Lightning's server."""
    url = _variable("AGL_EVENT_URL")
    key, here = os.environ.get("AGL_KEY"), is_loopback(httpx.URL(url).host)
    plain = here and url.startswith("http:")
    return httpx.Client(
        transport=httpx.HTTPTransport(verify=not plain, retries=3),
        trust_env=not here,
        timeout=30.0,
        headers={"Authorization": f"Bearer {key}"} if key else None,
    )


def _json(name: str) -> Any:
    try:
        made = json.loads(_variable(name))
    except ValueError as error:
        raise ValueError(f"the environment variable `{name}` holds no JSON: {error}") from error
    if not isinstance(made, dict):
        raise ValueError(f"the environment variable `{name}` holds no JSON object: {made!r:.100}")
    return made


def _variable(name: str) -> str:
    value = os.environ.get(name, "")
    if not value:
        raise ValueError(f"the environment variable `{name}` is not set")
    return value


# --- 0.3 ---------------------------------------------------------------------------------------


def __getattr__(name: str) -> Any:
    if name != "LiveRoomLitAgent":
        raise AttributeError(f"module `{__name__}` has no attribute `{name}`")
    return _lit_agent()


@functools.cache
def _lit_agent() -> Any:
    base: Any = trainer_module("agentlightning", ran=RAN, install=INSTALL, has="LitAgent")

    class LiveRoomLitAgent(base.LitAgent):  # type: ignore[misc]
        """Plays task rows: `Trainer(...).fit(LiveRoomLitAgent("snacks"), train_dataset=rows)`.

        Args:
            room: of rows that name none.
            resource: name of the model among the resources.
            partners: who plays a seat of two agents, untrained.
            options: the other arguments of `Setup`.
        """

        def __init__(
            self,
            room: str | None = None,
            *,
            resource: str = "main_llm",
            partners: Partners | None = None,
            **options: Any,
        ) -> None:
            super().__init__()
            self.room_setup = Setup(room, **options)
            self._resource, self._partners = resource, partners
            _check(self.room_setup, partners)

        def rollout(self, task: Any, resources: Mapping[str, Any], rollout: Any) -> float:
            """Play the episode of a task row and return its reward.

            Raises:
                RuntimeError: the episode has no reward, so that the attempt fails.
            """
            setup, row = self.room_setup, self.room_setup.row(task)
            model = resources[self._resource]
            url = model.get_base_url(rollout.rollout_id, rollout.attempt.attempt_id)
            sampling = dict(model.sampling_parameters)
            trajectory = _played(setup, row, url, model.model, None, self._partners, sampling)
            return _reward(setup, row, trajectory)

    name = "LiveRoomLitAgent"
    LiveRoomLitAgent.__module__, LiveRoomLitAgent.__qualname__ = __name__, name
    return LiveRoomLitAgent


def main() -> int:
    """Play one rollout; the exit status is 1 where it has no reward."""
    signal.signal(signal.SIGTERM, signal.default_int_handler)  # a container that is told to stop
    try:
        LiveRoomAgent().run()
    except (RuntimeError, ValueError, LookupError, LivestreamError, httpx.HTTPError) as error:
        sys.stderr.write(f"livestream-env: {error}\n")
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
