"""ART: a rollout function over its client, whose trajectories train whole turns.

    rollout = RoomRollout("bundled:train", masker="reply")
    groups = await art.gather_trajectory_groups(
        (art.TrajectoryGroup(rollout(model, row) for _ in range(8)) for row in rows),
        max_exceptions=0.1,
    )

ART trains a turn that is a `Choice` with log-probabilities, and none that is a plain message. It
puts the sampled ids in the place of a choice's content and renders `tool_calls` behind them once
more, so calls stand in the content here, as they were sampled.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from itertools import pairwise
from typing import Any

from livestream_env.adapters.chat_api import arun_episode
from livestream_env.adapters.recorded import RecordedRenderer
from livestream_env.adapters.seats import check_partners, seated
from livestream_env.adapters.setup import Setup, TaskRow, trainer_module
from livestream_env.adapters.whole_turns import TurnRenderer
from livestream_env.chat import ChatClient
from livestream_env.chat_agent import sendable_body
from livestream_env.completions import (
    Completion,
    first_choice,
    is_refused,
    tokens_of,
    usage_of,
)
from livestream_env.errors import ChatError, ChatRefused
from livestream_env.team import Member
from livestream_env.types import Action, Trajectory

RAN, INSTALL = "openpipe-art 0.5.18", "pip install openpipe-art==0.5.18 'openai<3'"
_STEP = re.compile(r"@(\d+)$")


class RoomRollout:
    """Plays the episode of a task row: `await rollout(model, row)` gives ART's trajectory.

    An episode that is not trained, as where the environment failed, raises: ART keeps it among the
    exceptions of its group, as many as its `max_exceptions` allows.

    Args:
        room: of rows that name none.
        sampling: what each request holds beside, such as `{"max_tokens": 1024}`.
        partners: who plays a seat of two agents, untrained; by default the trained model.
        options: the other arguments of `Setup`.

    Raises:
        MissingDependency: ART is not installed.
        ValueError: two agents are to be trained, a partner has no seat, or `sampling` cannot be
            sent.
    """

    def __init__(
        self,
        room: str | None = None,
        *,
        sampling: Mapping[str, Any] | None = None,
        partners: Mapping[str, Member | None] | None = None,
        **options: Any,
    ) -> None:
        self._art = trainer_module("art", ran=RAN, install=INSTALL, has="TrajectoryGroup")
        self.setup = Setup(room, **options)
        if len(self.setup.agents) > 1:
            raise ValueError(
                "an ART trajectory has one reward, so a rollout trains one agent, not"
                f" {[*self.setup.agents]}; name one in `agents`, and who plays the other in"
                " `partners`"
            )
        check_partners(self.setup, partners)
        self._sampling, self._partners = sendable_body(sampling or {}), partners

    async def __call__(
        self, model: Any, scenario: TaskRow | Mapping[str, Any], config: Any = None
    ) -> Any:
        """Play one episode with the model's own client; `config` is ART's and not looked at.

        Raises:
            RuntimeError: nothing of the episode may be trained; it says why.
        """
        task, client = self.setup.row(scenario), _Client(model)
        env = self.setup.make_env(task.room)
        try:
            trajectory = await arun_episode(
                client,
                None,
                env,
                extra_body=self._sampling,
                token_ids=True,
                seated=lambda agent: seated(agent, self.setup, self._partners, is_async=True),
                **self.setup.opening(task),
            )
        finally:
            await env.aclose()
        self.setup.keep(trajectory, policy_version=max(client.versions, default=None))
        [row] = self.setup.rows(trajectory, TurnRenderer())
        trained = {turn.turn for turn in row.turns}
        histories = [] if row.excluded else _histories(trajectory, trained, client.answers)
        if not histories:
            why = row.excluded or "its context was full before a word"
            raise RuntimeError(f"the episode {task.task_id} is left out: {why}")
        figures = self.setup.metrics([trajectory])
        tools = [spec.to_openai() for spec in trajectory.tools[row.agent]]
        earlier = [{"messages_and_choices": said, "tools": tools} for said in histories[:-1]]
        return self._art.Trajectory(
            messages_and_choices=histories[-1],
            tools=tools,
            additional_histories=earlier,
            reward=row.reward,
            initial_policy_version=min(client.versions, default=None),
            final_policy_version=max(client.versions, default=None),
            metrics={f"livestream/{name}": figure for name, figure in figures.items()},
            metadata={
                "scenario_id": task.task_id,
                "agent": row.agent,
                "status": str(trajectory.status),
                "stop_reason": str(trajectory.stop_reason),
            },
        )


class _Client(ChatClient):
    """ART's client of a model: its key, costs and tries; keeps the answers of one episode."""

    def __init__(self, model: Any) -> None:
        self._completions = model.openai_client().chat.completions
        super().__init__(model.inference_base_url, model.get_inference_name())
        self.answers: list[tuple[list[Any], Any]] = []
        """Each conversation as it was sent, and the choice that answered it."""
        self.versions: list[int] = []
        """Steps of the model that answered, where its name tells one."""

    async def acomplete(self, messages: Sequence[Mapping[str, Any]], **options: Any) -> Completion:
        """Ask for one answer.

        Raises:
            ChatError: there is none.
        """
        openai: Any = trainer_module("openai", ran=RAN, install=INSTALL)
        try:
            answer = await self._completions.create(
                model=self.model, messages=list(messages), extra_body=options
            )
        except openai.APIStatusError as error:
            told = f"{self.base_url} answered {error.status_code}: {error}"[:600]
            raise ChatError(told, status=error.status_code, code=error.code) from error
        except openai.OpenAIError as error:
            raise ChatError(f"{self.base_url} gave no answer: {error!r}"[:600]) from error
        body = answer.to_dict()
        choice = first_choice(body)
        if choice is None:
            raise ChatError(f"{self.base_url} answered no choice: {body!r:.300}", code="bad_answer")
        if is_refused(choice):
            raise ChatRefused(f"{self.base_url} refused: {choice!r:.300}", code="content_filter")
        self.answers.append((list(messages), answer.choices[0]))
        if step := _STEP.search(answer.model):
            self.versions.append(int(step[1]))
        return Completion(
            message=choice["message"],
            finish_reason=choice.get("finish_reason"),
            usage=usage_of(body),
            model=answer.model,
            request_id=answer.id,
            tokens=tokens_of(body, choice),
        )


def _histories(
    trajectory: Trajectory, trained: set[int], answers: Sequence[tuple[list[Any], Any]]
) -> list[list[Any]]:
    """Return the messages and choices of each context that holds a trained turn.

    A context ends where a prompt does not go on from all before, as where the template drops
    thinking; in the next one what was said stands as a message.
    """
    sampled = [
        at
        for at, turn in enumerate(trajectory.turns)
        if turn.agent not in trajectory.partners and turn.action.token_ids
    ]
    given = dict(zip(sampled, answers, strict=True))
    grown = [sequence.turns for sequence in RecordedRenderer().render(trajectory)]
    starts = [0, *[turns[0] for turns in grown if turns][1:], len(trajectory.turns)]
    made = []
    for start, stop in pairwise(starts):
        own = {at for at in range(start, stop) if at in given and at in trained}
        if own:
            made.append(_history(trajectory, stop, own, given))
    return made


def _history(
    trajectory: Trajectory, stop: int, own: set[int], given: Mapping[int, tuple[list[Any], Any]]
) -> list[Any]:
    """Return what was said before turn `stop`, the turns `own` as choices, others as they were sent
    back."""
    last = max(own)
    sent, _ = given[last]
    said: list[Any] = [one.to_openai() for one in trajectory.prompts[trajectory.turns[last].agent]]
    for at, turn in enumerate(trajectory.turns[:stop]):
        if at in own:
            said.append(_choice(given[at][1], turn.action))
        else:
            told = sent[len(said)] if at < last else turn.action.message.to_openai()
            said.append(_message(told))
        said += [one.to_openai() for one in turn.messages]
    return said


def _message(told: Mapping[str, Any]) -> dict[str, Any]:
    """Return what was said as ART renders it: calls in Hermes' form, which its servers read."""
    calls = [one["function"] for one in told.get("tool_calls") or ()]
    written = [
        f'<tool_call>\n{{"name": "{call["name"]}", "arguments": {call["arguments"]}}}\n</tool_call>'
        for call in calls
    ]
    message = {
        "role": "assistant",
        "content": "\n".join(filter(None, [told.get("content"), *written])),
    }
    thought = told.get("reasoning_content") or told.get("reasoning")
    return {**message, "reasoning_content": thought} if thought else message


def _choice(given: Any, action: Action) -> Any:
    """Return a choice with its calls in its content, and the ids that were sampled.

    Raises:
        RuntimeError: the server tells no log-probabilities.
    """
    ids, logprobs = action.token_ids or (), action.logprobs
    if logprobs is None:
        raise RuntimeError("the server tells no log-probabilities, so ART would not train the turn")
    told = given.to_dict()
    message = {"role": "assistant", "content": _message(told["message"])["content"]}
    entries = (told.get("logprobs") or {}).get("content") or [{}] * len(ids)
    content = [
        {"bytes": None, "top_logprobs": [], **entry, "token": f"token_id:{one}", "logprob": logprob}
        for entry, one, logprob in zip(entries, ids, logprobs, strict=True)
    ]
    return type(given).model_validate(
        {**told, "message": message, "logprobs": {"content": content, "refusal": None}}
    )
