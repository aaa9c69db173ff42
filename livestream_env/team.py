"""A team: one agent looks things up, another replies, on one episode."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from typing import Any

from livestream_env.drivers import Agent, AgentOf, AsyncAgent
from livestream_env.episode import TWO_AGENTS, Seat
from livestream_env.errors import did_you_mean
from livestream_env.findings import not_started
from livestream_env.prompts import Prompt
from livestream_env.types import Action, Message, ToolSpec

Member = Agent | AsyncAgent | AgentOf | str
"""An agent, what makes the agent of a room, or `chat:URL#MODEL`."""


class AgentTeam:
    """Plays as `tool_caller` and `replier`; `rollout` and its like open the episode for the two.

    Each member has its own tokenizer and endpoint, as its own agent does. Two members that share a
    template see the same token ids, where they have the same prompt and tools; one object in both
    seats is one agent with two names. Members that are async need `arollout`.

    Args:
        tool_caller, replier: the members that are trained; a string is a policy behind the chat
            API, `chat:URL#MODEL`.
        partners: members that act and are never trained, by the seat. `{"replier": None}` leaves
            that seat empty: the episode ends with the turn that looked the rule up.
        prompts: first messages by the seat, as `gym.make`'s `prompt`; by default the episode's.
        tools: names of the tools that a seat is shown and may call; by default all. The replier is
            shown them too, so that its prompt goes on from the tool caller's, and may call none.
        is_async: make members that are strings async, for one event loop.

    Raises:
        ValueError: a seat is filled twice or not at all, or has another name.
    """

    def __init__(
        self,
        *,
        tool_caller: Member | None = None,
        replier: Member | None = None,
        partners: Mapping[str, Member | None] | None = None,
        prompts: Mapping[str, str | os.PathLike[str] | Prompt] | None = None,
        tools: Mapping[str, Sequence[str]] | None = None,
        is_async: bool = False,
    ) -> None:
        partners, prompts, tools = partners or {}, prompts or {}, tools or {}
        for given in (partners, prompts, tools):
            _check_seats(given)
        trained = {"tool_caller": tool_caller, "replier": replier}
        self.members: dict[str, Any] = {}
        """Who plays, by the agent's name."""
        self.agents: dict[str, Seat] = {}
        """What the episode is opened with."""
        for name in TWO_AGENTS:
            if (trained[name] is not None) == (name in partners):
                raise ValueError(
                    f"`{name}` is filled {'twice' if name in partners else 'by nobody'}; give"
                    f" `{name}=` or `partners={{'{name}': ...}}`"
                )
            member = partners[name] if name in partners else trained[name]
            if member is None:
                continue
            self.members[name] = _member(name, member, is_async=is_async)
            self.agents[name] = Seat(prompts.get(name), tools.get(name), name in partners)
        if TWO_AGENTS[0] not in self.agents:
            raise ValueError("`partners` leaves the tool caller's seat empty; only a replier's may")

    def act(self, messages: Sequence[Message], tools: Sequence[ToolSpec]) -> Action:
        """Refuse: drivers ask the member whose turn it is."""
        not_started()


def _check_seats(given: Mapping[str, Any]) -> None:
    for name in given:
        if name not in TWO_AGENTS:
            hint = did_you_mean(name, TWO_AGENTS)
            raise ValueError(f"a team has no `{name}`; it has {' and '.join(TWO_AGENTS)}.{hint}")


def _member(name: str, member: Member, *, is_async: bool) -> Any:
    if isinstance(member, str):
        from livestream_env.chat_agent import chat_agent_named

        return chat_agent_named(member, is_async=True) if is_async else chat_agent_named(member)
    if not (callable(member) or hasattr(member, "act")):
        raise TypeError(f"`{name}` is {member!r}; give an agent or `chat:URL#MODEL`")
    return member
