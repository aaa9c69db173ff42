"""LLM judges: reward hooks that ask a model, by the names of the verifiable hooks.

A judge that gives no verdict gives no score: `Score.value` is `None` with the cause, never 0. What
stops the run as a whole, a spent budget, raises.
"""

from __future__ import annotations

import asyncio
import os
import random
import uuid
from collections.abc import Iterable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, Literal, Protocol, cast

from livestream_env.background import run_in_background, wait_in_background
from livestream_env.chat import ChatClient, response_format
from livestream_env.errors import (
    ChatError,
    ChatRefused,
    ChatTimeout,
    MixedVersions,
    SharedFileError,
    did_you_mean,
)
from livestream_env.judge_budget import Budget
from livestream_env.judge_cache import (
    JudgeCache,
    KeptAnswer,
    answer_key,
    append_recording,
    load_recording,
)
from livestream_env.judge_cases import Case, case_of
from livestream_env.judge_prompts import (
    LANGUAGES,
    METRICS,
    JudgePrompt,
    Request,
    Unreadable,
    load_prompt,
    pair_request,
    read_verdict,
    remark_on,
    score_request,
)
from livestream_env.rooms import Room
from livestream_env.types import Score, Status, Trajectory

Cause = Literal["judge_error", "refused", "timeout"]
Better = Literal["first", "second", "same"]

AGENTS = {"rule": "tool_caller", "tool_use": "tool_caller"}
_JITTER = random.SystemRandom()
_WAIT_S = 0.05
"""Between two looks for what others have: an answer, or the rest of a budget."""


class Judge(Protocol):
    """A reward hook that asks a model."""

    name: str
    agent: str

    def __call__(self, trajectory: Trajectory, room: Room | None, /) -> Score:
        """Return the score of a trajectory."""
        ...

    async def ascore(self, trajectory: Trajectory, room: Room | None, /) -> Score:
        """Return the score of a trajectory."""
        ...


@dataclass(frozen=True, slots=True)
class Judgement:
    """What a judge says of one case."""

    value: float | None
    """Mean of the votes in [0, 1]; `None` where no more than half of them came."""
    votes: tuple[int, ...]
    """The scores given, on the scale of the prompt."""
    reason: str
    cause: Cause | None = None
    """Why there is no value."""


@dataclass(frozen=True, slots=True)
class Comparison:
    """What a judge says of two answers to one comment."""

    better: Better | None
    """`None` for no verdict."""
    reason: str
    cause: Cause | None = None
    """Why there is no verdict."""


class _NoVerdict(Exception):
    """A sample came to no verdict."""

    def __init__(self, problem: str, cause: Cause = "judge_error") -> None:
        super().__init__(problem)
        self.cause = cause


class ChatJudge:
    """A judge behind a chat endpoint, or one whose answers were recorded."""

    def __init__(
        self,
        client: ChatClient | str | None = None,
        model: str | None = None,
        *,
        metric: str = "correctness",
        language: str | None = None,
        prompt: str | os.PathLike[str] | None = None,
        votes: int = 1,
        temperature: float | None = None,
        max_tokens: int = 2048,
        retries: int = 2,
        backoff_s: float = 0.5,
        timeout_s: float = 300.0,
        cache: str | os.PathLike[str] | None = None,
        budget: Budget | None = None,
        record: str | os.PathLike[str] | None = None,
        recorded: str | os.PathLike[str] | None = None,
    ) -> None:
        """Make a judge of one metric.

        `client` is a client, or a base URL with `model` beside it. `prompt` names a user's own
        prompt file. `language` is the room's by default. `votes` samples are asked, at temperature
        0.7 where there are several, else at 0. `timeout_s` bounds one judgement. Answers are kept
        in the file `cache`, which endpoints may share, added to the file `record`, which is of one
        endpoint, or, without a client, read from `recorded`.

        Raises:
            ValueError: no such metric; neither a client nor `recorded`; a price is missing.
            TemplateError: the prompt file is none.
            SharedFileError: the cache is on a network file system, or is none.
        """
        if prompt is None and metric not in METRICS:
            hint = did_you_mean(metric, METRICS)
            raise ValueError(f"no metric `{metric}`; known are {', '.join(METRICS)}.{hint}")
        if votes < 1:
            raise ValueError(f"`votes` is {votes}; it is 1 or more")
        self.name = metric
        self.agent = AGENTS.get(metric, "replier")
        self.votes = votes
        self.budget = Budget() if budget is None else budget
        self._language = language
        self._prompt = metric if prompt is None else prompt
        self._options = {"temperature": 0.7 if votes > 1 else 0.0}
        if temperature is not None:
            self._options = {"temperature": temperature}
        self._max_tokens, self._retries, self._backoff_s = max_tokens, retries, backoff_s
        self._timeout_s = timeout_s
        self._cache = None if cache is None else JudgeCache(cache)
        self._record = None if record is None else Path(record)
        self._recorded = None if recorded is None else load_recording(recorded)
        self._client = _client(client, model, self._recorded)
        self.model = self._client.model if self._client else _recorded_model(model, self._recorded)
        self.budget.check_price(self.model)
        self._asked: dict[tuple[int, str], asyncio.Task[KeptAnswer]] = {}
        for one in LANGUAGES if language is None else (language,):
            load_prompt(self._prompt, one)

    def __repr__(self) -> str:
        return f"ChatJudge({self.name!r}, {self._client or 'recorded'!r}, votes={self.votes})"

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_asked": {}}

    @property
    def versions(self) -> dict[str, str]:
        """Model and prompt by language, for `Trajectory.versions`; see `same_versions`."""
        languages = LANGUAGES if self._language is None else (self._language,)
        return {
            f"judge:{self.name}/{one}": self._version(load_prompt(self._prompt, one))
            for one in languages
        }

    def _version(self, prompt: JudgePrompt) -> str:
        return f"{self.model} {prompt.version}" + (f" x{self.votes}" if self.votes > 1 else "")

    def __call__(self, trajectory: Trajectory, room: Room | None = None, /) -> Score:
        """Return the score of a trajectory.

        Raises:
            BudgetExhausted: nothing more may be spent.
        """
        return run_in_background(self._score(trajectory, room))

    async def ascore(self, trajectory: Trajectory, room: Room | None = None, /) -> Score:
        """Return the score of a trajectory, as calling the judge does."""
        return await wait_in_background(self._score(trajectory, room))

    def judge(self, case: Case, *, first_sample: int = 0) -> Judgement:
        """Judge one case; other numbers of the first sample ask the same anew."""
        return run_in_background(self._judge(case, first_sample))

    async def ajudge(self, case: Case, *, first_sample: int = 0) -> Judgement:
        """Judge one case, as `judge`."""
        return await wait_in_background(self._judge(case, first_sample))

    async def acompare(self, first: Case, second: Case) -> Comparison:
        """Say which of two answers to one comment is better."""
        return await wait_in_background(self._compare(first, second))

    # --- in the background loop ---

    async def _score(self, trajectory: Trajectory, room: Room | None) -> Score:
        case = case_of(trajectory, room, language=self._language)
        prompt = self._prompt_for(case)
        say = partial(Score, self.name, agent=self.agent)
        if trajectory.status not in (Status.OK, Status.POLICY_TRUNCATED):
            why = f"the episode is `{trajectory.status}`"
            return say(None, cause="not_applicable", reason=why)
        is_of_reply = "reply" in prompt.materials and "calls" not in prompt.materials
        if is_of_reply and trajectory.reply is None:
            return say(0.0, reason="there is no reply")
        judged = await self._judge(case, 0)
        reason = f"{judged.reason} [{self._version(prompt)}]"
        return say(judged.value, cause=judged.cause, reason=reason)

    def _prompt_for(self, case: Case) -> JudgePrompt:
        language = self._language or (case.language if case.language in LANGUAGES else "en")
        return load_prompt(self._prompt, language)

    async def _judge(self, case: Case, first_sample: int) -> Judgement:
        prompt = self._prompt_for(case)
        request = score_request(prompt, case)
        samples = range(first_sample, first_sample + self.votes)
        verdicts, failed = await self._verdicts(request, samples)
        votes = tuple(verdict["score"] for verdict in verdicts)
        if 2 * len(votes) <= self.votes:
            return Judgement(None, votes, str(failed[0]), failed[0].cause)
        value = sum(map(prompt.value, votes)) / len(votes)
        said = verdicts[0]["reason"]
        if self.votes > 1:
            said = f"{said} (votes {' '.join(map(str, votes))} of {self.votes})"
        return Judgement(value, votes, said)

    async def _compare(self, first: Case, second: Case) -> Comparison:
        request = pair_request(self._prompt_for(first), first, second)
        verdicts, failed = await self._verdicts(request, range(1))
        if failed:
            return Comparison(None, str(failed[0]), failed[0].cause)
        return Comparison(verdicts[0]["better"], verdicts[0]["reason"])

    async def _verdicts(
        self, request: Request, samples: range
    ) -> tuple[list[dict[str, Any]], list[_NoVerdict]]:
        """Return the verdicts of these samples, and how the others failed.

        What came before `timeout_s` counts, whatever is late.
        """
        asked = [asyncio.create_task(self._sample(request, number)) for number in samples]
        try:
            _, late = await asyncio.wait(asked, timeout=self._timeout_s)
        finally:
            for task in asked:
                task.cancel()
            came = await asyncio.gather(*asked, return_exceptions=True)
        verdicts: list[dict[str, Any]] = []
        failed: list[_NoVerdict] = []
        for task, one in zip(asked, came, strict=True):
            if task in late and isinstance(one, asyncio.CancelledError):
                why = f"no verdict within `timeout_s` of {self._timeout_s:g} s"
                failed.append(_NoVerdict(why, "timeout"))
            elif isinstance(one, _NoVerdict):
                failed.append(one)
            elif isinstance(one, BaseException):
                raise one
            else:
                verdicts.append(one)
        return verdicts, failed

    async def _sample(self, request: Request, number: int) -> dict[str, Any]:
        """Return one verdict.

        Raises:
            _NoVerdict: there is none, with the cause.
        """
        key = self._key(request, number)
        if self._recorded is not None:
            if key not in self._recorded:
                raise _NoVerdict(f"no judgement by `{self.model}` of this case is recorded")
            return self._read(self._recorded[key], request)
        flight = (os.getpid(), key)
        if flight not in self._asked:
            task = asyncio.create_task(self._obtain(key, request, number))
            task.add_done_callback(partial(self._landed, flight))
            self._asked[flight] = task
        try:
            return self._read(await asyncio.shield(self._asked[flight]), request)
        except ChatError as error:
            cause: Cause = "refused" if isinstance(error, ChatRefused) else "judge_error"
            cause = "timeout" if isinstance(error, ChatTimeout) else cause
            raise _NoVerdict(str(error), cause) from error

    def _key(self, request: Request, number: int, endpoint: str = "") -> str:
        asked = (self.model, request.version, request.messages(), self._options, number)
        return answer_key(endpoint, *asked)

    def _landed(self, flight: tuple[int, str], task: asyncio.Task[KeptAnswer]) -> None:
        del self._asked[flight]
        if not task.cancelled():
            task.exception()  # seen, also where nobody waits any more

    def _read(self, kept: KeptAnswer, request: Request) -> dict[str, Any]:
        try:
            return read_verdict(kept.answer, request)
        except Unreadable as error:
            raise _NoVerdict(f"the kept answer cannot be read: {error}") from error

    async def _obtain(self, key: str, request: Request, number: int) -> KeptAnswer:
        """Return the answer from the cache, or ask for it, unless another process does."""
        if self._cache is None:
            return self._recorded_too(await self._ask(key, request, number))
        cache_key = self._key(request, number, cast("ChatClient", self._client).endpoint)
        owner, wait_s = uuid.uuid4().hex, _WAIT_S
        while True:
            found = await asyncio.to_thread(
                self._cache.get_or_claim, cache_key, owner, self._timeout_s
            )
            if isinstance(found, KeptAnswer):
                self.budget.cached += 1
                return self._recorded_too(found._replace(key=key))
            if found:
                break
            await asyncio.sleep(wait_s)
            wait_s = min(2 * wait_s, 1.0)
        try:
            kept = await self._ask(key, request, number)
            await asyncio.to_thread(self._cache.put, kept._replace(key=cache_key))
        except BaseException:
            with suppress(SharedFileError):  # what came first is told
                await asyncio.to_thread(self._cache.give_up, cache_key, owner)
            raise
        return self._recorded_too(kept)

    def _recorded_too(self, kept: KeptAnswer) -> KeptAnswer:
        if self._record is not None:
            append_recording(self._record, kept)
        return kept

    async def _ask(self, key: str, request: Request, number: int) -> KeptAnswer:
        """Ask, once have a bad answer repaired, and ask anew `retries` times."""
        problem, remark, max_tokens = "", None, self._max_tokens
        for attempt in range(self._retries + 2):
            if attempt > 1:
                await asyncio.sleep(self._backoff_s * 2 ** (attempt - 2) * _JITTER.uniform(1, 2))
            messages = request.messages(remark if attempt == 1 else None)
            try:
                answer, reason, tokens = await self._completion(request, messages, max_tokens)
            except ChatError as error:
                if error.code != "bad_answer" or attempt > self._retries:
                    raise
                continue
            if reason == "length":
                problem, max_tokens = f"it is cut off after {max_tokens} tokens", 2 * max_tokens
                continue
            try:
                read_verdict(answer, request)
            except Unreadable as error:
                problem = str(error)
                remark = remark_on(answer, problem, request) if answer.strip() else None
            else:
                return KeptAnswer(key, self.model, request.version, number, answer, *tokens)
        raise _NoVerdict(f"the judge's answer holds no verdict: {problem}")

    async def _completion(
        self, request: Request, messages: list[dict[str, str]], max_tokens: int
    ) -> tuple[str, str | None, tuple[int, int]]:
        """Return text, reason of its end, and tokens of one answer."""
        client = cast("ChatClient", self._client)
        sent = "".join(message["content"] for message in messages)
        while (held := self.budget.hold(self.model, sent, max_tokens)) is None:
            await asyncio.sleep(_WAIT_S)
        try:
            mode = await client.ajson_mode()
            asked = response_format(mode, request.name, request.schema)
            with self.budget.timing():
                done = await client.acomplete(
                    messages, max_tokens=max_tokens, **self._options, **asked
                )
            tokens = self.budget.add(self.model, sent, str(done.message), done.usage, held)
        finally:
            self.budget.release(held)
        return done.text, done.finish_reason, tokens


def _client(
    client: ChatClient | str | None, model: str | None, recorded: Mapping[str, KeptAnswer] | None
) -> ChatClient | None:
    if client is None:
        if recorded is None:
            raise ValueError("a judge needs a client, or a base URL and a model, or `recorded`")
        return None
    if recorded is not None:
        raise ValueError("a judge has a client or `recorded`, not both")
    if isinstance(client, ChatClient):
        return client
    if model is None:
        raise ValueError(f"a judge at a base URL needs the name of its `model`: {client!r}")
    return ChatClient(client, model)


def _recorded_model(model: str | None, recorded: Mapping[str, KeptAnswer] | None) -> str:
    models = sorted({kept.model for kept in (recorded or {}).values()})
    if model is not None:
        return model
    if len(models) != 1:
        raise ValueError(f"the recording holds the models {models}; name one with `model`")
    return models[0]


def same_versions(versions: Iterable[Mapping[str, str]]) -> dict[str, str]:
    """Return the judges and prompts that scored a set, from the `versions` of its members.

    Raises:
        MixedVersions: one metric was judged by several models, or by several prompts.
    """
    found: dict[str, str] = {}
    for mapping in versions:
        for key, value in mapping.items():
            if key.startswith("judge:") and found.setdefault(key, value) != value:
                raise MixedVersions(
                    f"`{key}` was judged by `{found[key]}` and by `{value}`; scores of two judges"
                    " cannot be compared: score all of them again with one"
                )
    return found
