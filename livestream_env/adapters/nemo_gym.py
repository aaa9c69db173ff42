"""NeMo Gym: an agent server that plays whole episodes over Gym's model server.

Gym's model server tells the token ids of each answer on the answer's items, and trainers train the
items that have them. So masks are by whole turns: the ids of a turn that is not trained are taken
off its items, and the turn stays as context of those behind it.
"""

from __future__ import annotations

import functools
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from itertools import groupby
from types import SimpleNamespace
from typing import Any, ClassVar

from livestream_env.adapters.seats import check_partners, seated
from livestream_env.adapters.setup import Setup, setup_of, trainer_module
from livestream_env.adapters.text import as_user_messages
from livestream_env.adapters.whole_turns import TurnRenderer
from livestream_env.drivers import Seed, arollout
from livestream_env.errors import (
    ChatError,
    ChatRefused,
    CommentNotFound,
    InvalidAction,
    RoomNotFound,
)
from livestream_env.findings import not_started
from livestream_env.parsing import to_action
from livestream_env.team import Member
from livestream_env.types import Action, Message, Observation, ToolSpec, Trajectory, TurnEvent

RAN = "nemo-gym 0.7.0"
INSTALL = "pip install nemo-gym==0.7.0"
_IDS = ("prompt_token_ids", "generation_token_ids", "generation_log_probs", "routed_experts")
Item = dict[str, Any]
"""An item of the Responses API."""


def __getattr__(name: str) -> Any:
    if name not in ("LiveRoomAgent", "LiveRoomAgentConfig"):
        raise AttributeError(f"module `{__name__}` has no attribute `{name}`")
    return getattr(_classes(), name)


@functools.cache
def _classes() -> Any:
    """Return what is made of NeMo Gym's classes."""
    module = functools.partial(trainer_module, ran=RAN, install=INSTALL)
    base: Any = module("nemo_gym.base_responses_api_agent")
    types: Any = module("nemo_gym.openai_utils")
    configs: Any = module("nemo_gym.config_types")
    verified: Any = module("nemo_gym.base_resources_server")
    servers: Any = module("nemo_gym.server_utils")
    http: Any = module("aiohttp")
    from fastapi import HTTPException, Request
    from pydantic import ConfigDict, Field

    class LiveRoomAgentConfig(base.BaseResponsesAPIAgentConfig):  # type: ignore[misc]
        """What Gym's YAML says of the agent."""

        model_server: configs.ModelServerRef
        """The trained model."""
        setup: dict[str, Any] = Field(default_factory=dict)
        """The arguments of `Setup`."""

    class RunRequest(verified.BaseRunRequest):  # type: ignore[misc]
        model_config = ConfigDict(extra="allow")

    class RunResponse(verified.BaseVerifyResponse):  # type: ignore[misc]
        model_config = ConfigDict(extra="allow")

    class LiveRoomAgent(base.SimpleResponsesAPIAgent):  # type: ignore[misc]
        """Plays the episode of a task row, which a row of Gym's data holds at its top level.

        A subclass may have a `setup`, for what no YAML holds, and `partners`, who play a seat of
        two agents untrained.
        """

        ray_enabled = False
        config: LiveRoomAgentConfig
        setup: ClassVar[Setup | None] = None
        partners: ClassVar[Mapping[str, Member | None] | None] = None

        def setup_webserver(self) -> Any:
            """Return Gym's application.

            Raises:
                ValueError: two agents are to be trained, or a partner has no seat.
            """
            setup = self._setup()
            check_partners(setup, self.partners)
            if len(setup.agents) > 1:
                raise ValueError(
                    "NeMo Gym has one reward a rollout; train one agent, `agents={'replier':"
                    " 'reply'}`"
                )
            return super().setup_webserver()

        def _setup(self) -> Setup:
            return self.setup or setup_of(self.config.setup)

        async def responses(self, body: Any) -> Any:
            """Refuse: the agent plays whole episodes."""
            raise HTTPException(501, "a livestream room plays whole episodes; post to /run")

        async def run(self, request: Any, body: Any) -> Any:
            """Play an episode; one without a reward, as of a failed environment, is an error 503.

            Raises:
                HTTPException: 422, the row is none; 503, nothing of the episode may be trained.
            """
            setup = self._setup()
            policy = _Policy(self._asked(request, body), body.responses_create_params)
            player = seated(policy, setup, self.partners, is_async=True)
            try:
                row = setup.row(body.model_extra or {})
                env = setup.make_env(row.room)
            except (ValueError, RoomNotFound) as error:
                raise HTTPException(422, str(error)) from error
            try:
                played = await arollout(env, player, **setup.opening(row))
            except CommentNotFound as error:
                raise HTTPException(422, str(error)) from error
            finally:
                await env.aclose()
            setup.keep(played)
            rows = setup.rows(played, TurnRenderer())
            trained = [one for one in rows if one.excluded is None]
            if not trained:
                why = rows[0].excluded
                raise HTTPException(503, f"the episode {row.task_id} is left out: {why}")
            turns = {one.turn for made in trained for one in made.turns}
            told: Item = {**policy.last, "output": [*_output(played, policy.answers, turns)]}
            told["usage"] = _usage(types, policy.usages)
            told["tools"] = []
            return RunResponse(
                responses_create_params=policy.opening,
                response=told,
                reward=trained[0].reward,
                **setup.metrics([played]),
                status=str(played.status),
                stop_reason=str(played.stop_reason),
            )

        def _asked(self, request: Any, body: Any) -> Any:
            """Return what posts a request for an answer to the model server."""
            path, client = self.url_path_for_run("/v1/responses", body), self.server_client
            name = self.config.model_server.name

            async def ask(asked: Item, cookies: Any) -> tuple[Item, Any]:
                try:
                    answer = await client.post(
                        server_name=name, url_path=path, json=asked, cookies=cookies
                    )
                    if answer.ok:
                        return await servers.get_response_json(answer), answer.cookies
                    text = (await answer.read()).decode(errors="replace")
                except (http.ClientError, TimeoutError, ValueError) as error:
                    problem = f"the model server gave no answer: {error!r}"[:600]
                    raise ChatError(problem, code="connection") from error
                problem = f"the model server answered {answer.status}: {text[:300]}"
                raise ChatError(problem, code="refused", status=answer.status)

            return ask

    # FastAPI reads them, and they are known here alone
    LiveRoomAgent.run.__annotations__ = {
        "request": Request,
        "body": RunRequest,
        "return": RunResponse,
    }
    LiveRoomAgent.responses.__annotations__ = {
        "body": types.NeMoGymResponseCreateParamsNonStreaming
    }
    made = {one.__name__: one for one in (LiveRoomAgent, LiveRoomAgentConfig)}
    for name, one in made.items():
        one.__module__, one.__qualname__ = __name__, name
    return SimpleNamespace(**made)


# --- the policy -------------------------------------------------------------------------------


class _Policy:
    """The trained model in every seat that has no partner; of one episode."""

    def __init__(self, ask: Any, params: Any) -> None:
        self.ask = ask
        given = params.model_dump(exclude_unset=True)
        self.params = {key: given[key] for key in given if key not in ("input", "tools")}
        self.answers: list[list[Item]] = []
        """The items of each answer, in the order they were asked."""
        self.usages: list[Any] = []
        self.last: Item = {}
        """The last response."""
        self.opening: Item = {}
        """Input and tools of the first request."""

    def start(self, observation: Observation, *, seed: Seed | None) -> _Talk:
        """Return who plays a seat."""
        return _Talk(self)

    async def act(self, messages: Sequence[Message], tools: Sequence[ToolSpec]) -> Action:
        """Refuse: who plays a seat is made by `start`, which drivers call."""
        not_started()


class _Talk:
    """The conversation of one seat: the answers are sent back as they came."""

    def __init__(self, policy: _Policy) -> None:
        self._policy, self._cookies = policy, None
        self._input: list[Item] = []
        self._shown = 0

    async def act(self, messages: Sequence[Message], tools: Sequence[ToolSpec]) -> Action:
        """Return what the model says next.

        Raises:
            ChatError: the model server gave no answer of the model.
        """
        policy = self._policy
        self._input += _items(messages[self._shown :], _calls_in(self._input))
        asked = {**policy.params, "input": self._input, "tools": [_tool(one) for one in tools]}
        policy.opening = policy.opening or {**asked, "input": list(self._input)}
        told, self._cookies = await policy.ask(asked, self._cookies)
        answer: list[Item] = told["output"]
        turn = sum(message.role == "assistant" for message in messages)
        action = _action(told, turn=turn, tools=tools)
        self._input += answer
        self._shown = len(messages) + 1
        policy.answers.append(answer)
        policy.usages.append(told.get("usage"))
        policy.last = told
        return action


def _action(told: Item, *, turn: int, tools: Sequence[ToolSpec]) -> Action:
    """Return the action that a response is."""
    texts, thoughts, calls = [], [], []
    ids: Item = {}
    for item in told["output"]:
        ids = item if item.get("generation_token_ids") is not None else ids
        if item["type"] == "message":
            texts += [part.get("text") or part.get("refusal") or "" for part in item["content"]]
        elif item["type"] == "reasoning":
            thoughts += [part["text"] for part in item.get("content") or item["summary"]]
        elif item["type"] == "function_call":
            function = {"name": item["name"], "arguments": item["arguments"]}
            calls.append({"id": item["call_id"], "type": "function", "function": function})
    said: Item = {"role": "assistant", "content": "".join(texts)}
    said |= {"reasoning_content": "\n".join(thoughts)} if thoughts else {}
    said |= {"tool_calls": calls} if calls else {}
    try:
        action = to_action(said, turn=turn, tools=tools)
    except InvalidAction as error:
        raise ChatError(f"the model server sent no message: {error}", code="bad_answer") from error
    reason = (told.get("incomplete_details") or {}).get("reason")
    if reason == "content_filter":
        raise ChatRefused("the model server refused by its content filter", code="content_filter")
    prompt, sampled, logprobs = (tuple(ids[key]) if ids else None for key in _IDS[:3])
    stop = "length" if reason == "max_output_tokens" else "stop"
    events = action.events
    # Gym's model server answers so where the context is full
    if stop == "length" and not (sampled or thoughts or calls or said["content"]):
        events += (TurnEvent("context_full", "the model server sampled nothing"),)
    return replace(
        action, prompt_ids=prompt, token_ids=sampled, logprobs=logprobs, stop=stop, events=events
    )


# --- items ------------------------------------------------------------------------------------


def _output(
    played: Trajectory, answers: Sequence[Sequence[Item]], trained: set[int]
) -> Iterator[Item]:
    """Yield the items of an episode, without the ids of turns that are not trained."""
    known: set[str] = set()
    asked = iter(answers)
    for at, turn in enumerate(played.turns):
        if turn.agent in played.partners:
            items = _items([turn.action.message], known)
        else:
            items = [dict(item) for item in next(asked)]
        for item in items if at not in trained else ():
            for key in _IDS:
                item.pop(key, None)
        known |= _calls_in(items)
        yield from items
        yield from _items(turn.messages, known)


def _items(messages: Sequence[Message], known: set[str]) -> list[Item]:
    """Return messages as items; results of calls that no item made are the user's text."""
    own = known | {call.id for message in messages for call in message.tool_calls}
    made: list[Item] = []
    for is_result, part in groupby(messages, lambda one: one.tool_call_id in own):
        for message in part if is_result else as_user_messages(tuple(part)):
            made += [_result(message)] if is_result else _said(message)
    return made


def _result(message: Message) -> Item:
    told = {"call_id": message.tool_call_id, "output": message.content}
    return {"type": "function_call_output", **told}


def _said(message: Message) -> list[Item]:
    told = message.to_openai()
    made = [{"type": "message", "role": message.role, "content": message.content}]
    if message.tool_calls and not message.content:
        made = []
    for call in told.get("tool_calls") or ():
        made.append({"type": "function_call", "call_id": call["id"], **call["function"]})
    return made


def _calls_in(items: Sequence[Item]) -> set[str]:
    return {item["call_id"] for item in items if item.get("type") == "function_call"}


def _tool(spec: ToolSpec) -> Item:
    return {"type": "function", "strict": False, **spec.to_openai()["function"]}


def _usage(types: Any, usages: Sequence[Any]) -> Any:
    total = None
    for one in usages:
        made = None if one is None else types.NeMoGymResponseUsage.model_validate(one)
        total = types.accumulate_response_usage(total, made)
    return None if total is None else total.model_dump()
