"""Episodes in threads whose turns are generated together, in the caller's thread.

A trainer's model generates whole batches, and its collectives and graphs belong to one thread.
Each episode plays in a thread of its own up to its next turn; once every playing one waits, their
prompts are one batch, in the order of the episodes. Which prompts share a batch therefore depends
on no clock.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Container, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from functools import partial
from typing import TypeAlias, TypeVar

from livestream_env.tokens import Sampled

Ids: TypeAlias = tuple[int, ...]
Ask = Callable[[Ids, Ids], Sampled]
"""What `TokenAgent` takes: `(ids, stop)`, waits for the batch."""
GenerateBatch = Callable[[Sequence[Ids], Ids], Sequence[Sampled]]
"""`generate(prompts, stop)`: what was sampled after each prompt."""
T = TypeVar("T")


def in_lockstep(
    plays: Sequence[Callable[[Ask], T]], generate: GenerateBatch, *, max_workers: int | None = None
) -> list[T]:
    """Call each of `plays` in a thread, with what it asks for a turn; return what they return.

    `generate` is called in this thread. What it or a play raises is raised here, once no thread is
    left playing.

    Args:
        max_workers: how many play at once, by default all; a batch has no more prompts.
    """
    if not plays:
        return []
    workers = min(max_workers or len(plays), len(plays))
    turns = _Turns(len(plays), workers)
    with ThreadPoolExecutor(workers, "livestream_env rollout") as pool:
        played = [pool.submit(play, partial(turns.ask, at)) for at, play in enumerate(plays)]
        for one in played:
            one.add_done_callback(lambda _: turns.ended())
        try:
            while asked := turns.due():
                turns.tell(asked, generate)
        except BaseException as error:
            pool.shutdown(wait=False, cancel_futures=True)
            turns.give_up(error)
            raise
    return [one.result() for one in played]


def up_to_end(
    ids: Sequence[int], logprobs: Sequence[float] | None, ends: Container[int]
) -> Sampled:
    """Return what a row of a generated batch holds up to its first end token, or all: then it was
    cut. What stands behind is padding."""
    end = next((at for at, token in enumerate(ids) if token in ends), None)
    kept = len(ids) if end is None else end + 1
    told = None if logprobs is None else tuple(logprobs[:kept])
    return Sampled(tuple(ids[:kept]), told, "length" if end is None else "stop")


class _Asked:
    """A turn that an episode waits for."""

    def __init__(self, ids: Ids, stop: Ids) -> None:
        self.ids, self.stop = ids, stop
        self.answer: Future[Sampled] = Future()


class _Turns:
    """The turns that episodes wait for."""

    def __init__(self, episodes: int, workers: int) -> None:
        self._left, self._workers = episodes, workers
        self._asked: dict[int, _Asked] = {}
        self._waiting: Sequence[_Asked] = ()
        """Those of the batch that is being generated."""
        self._changed = threading.Condition()
        self._error: BaseException | None = None

    def ask(self, episode: int, ids: Ids, stop: Ids) -> Sampled:
        """Wait for the batch that the prompt is generated in."""
        asked = _Asked(ids, stop)
        with self._changed:
            if self._error is not None:
                raise self._error
            self._asked[episode] = asked
            self._changed.notify_all()
        return asked.answer.result()

    def ended(self) -> None:
        """Note that an episode has ended."""
        with self._changed:
            self._left -= 1
            self._changed.notify_all()

    def due(self) -> list[_Asked]:
        """Wait until every episode that plays asks; none asks where all have ended."""
        with self._changed:
            self._changed.wait_for(lambda: len(self._asked) >= min(self._workers, self._left))
            asked, self._asked = self._asked, {}
            return [asked[episode] for episode in sorted(asked)]

    def tell(self, asked: Sequence[_Asked], generate: GenerateBatch) -> None:
        """Generate a batch and let its episodes go on."""
        self._waiting = asked
        made = generate([one.ids for one in asked], asked[0].stop)
        if len(made) != len(asked):
            raise ValueError(f"got {len(made)} completions of {len(asked)} prompts")
        for one, sampled in zip(asked, made, strict=True):
            one.answer.set_result(sampled)
        self._waiting = ()

    def give_up(self, error: BaseException) -> None:
        """Raise `error` in every episode that asks."""
        with self._changed:
            self._error = error
            for one in (*self._waiting, *self._asked.values()):
                if not one.answer.done():  # an interrupt may come while a batch is told
                    one.answer.set_exception(error)
