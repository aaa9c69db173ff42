"""Who plays the seats of an episode: the trained model, and partners where there are any."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from livestream_env.adapters.setup import Setup
from livestream_env.episode import TWO_AGENTS
from livestream_env.team import AgentTeam, Member


def seated(
    agent: Any,
    setup: Setup,
    partners: Mapping[str, Member | None] | None = None,
    *,
    is_async: bool = False,
) -> Any:
    """Return who plays: the agent, with two seats in each that `partners` does not fill.

    Raises:
        ValueError: a partner plays an agent that is trained, or has no seat.
    """
    partners = dict(partners or {})
    if not setup.has_two_agents:
        if partners:
            raise ValueError(f"one agent plays, so there is no seat for {', '.join(partners)}")
        return agent
    for name in partners:
        if name in setup.agents:
            raise ValueError(f"`{name}` is both trained and a partner's; leave it out of one")
    seats = {name: agent for name in TWO_AGENTS if name not in partners}
    return AgentTeam(**seats, partners=partners, is_async=is_async)


def check_partners(setup: Setup, partners: Mapping[str, Member | None] | None) -> None:
    """Refuse at once what `seated` would refuse in every episode, where trainers take an exception
    for a failed episode and play another.

    Raises:
        ValueError: as `seated`.
    """
    seated(lambda room: None, setup, partners, is_async=True)
