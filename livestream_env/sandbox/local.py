"""The sandbox in this process: tools run on the room itself."""

from __future__ import annotations

import copy
from collections import OrderedDict
from collections.abc import Hashable, Sequence
from functools import lru_cache
from typing import Any

from livestream_env.custom_tools import CustomTool, ToolContext, ToolSource, resolve_tools
from livestream_env.errors import SandboxError
from livestream_env.retrieval import Embedder, fingerprint_of, make_embedder
from livestream_env.rooms import Comment, Room
from livestream_env.tools import (
    LOCK,
    Outcome,
    RoomIndex,
    World,
    error_content,
    faq_fact,
    find_faqs,
    reply_so_far,
    run_tool,
    shared_index,
)
from livestream_env.types import (
    CommentView,
    Fact,
    FaqBrief,
    HistoryLine,
    ProductBrief,
    RoomView,
    ScriptLine,
    State,
    ToolCall,
    ToolResult,
    ToolSpec,
    TurnEvent,
    freeze,
)


class LocalSandbox:
    """Tools on one room in this process; all sandboxes of one content share its index.

    `language` is that of field names and messages, by default the room's; `tools` names the tools
    to offer, by default all; `memory=False` runs a pure tool anew each time. `session` takes the
    place of room, seed and comments in idempotency keys: it tells members of a group apart.
    """

    def __init__(
        self,
        room: Room,
        *,
        language: str | None = None,
        embedder: str | Embedder = "use-multilingual",
        tools: Sequence[ToolSource] | None = None,
        memory: bool = True,
        tool_timeout_s: float | None = None,
        session: str | None = None,
    ) -> None:
        self.room = room
        self.language = language or room.language
        self._offer = resolve_tools(tools, self.language)
        self.specs: tuple[ToolSpec, ...] = self._offer.specs
        self._memory = memory
        self._timeout_s = tool_timeout_s
        self._seed = 0
        self._session = session
        self._embedder = make_embedder(embedder)
        self._index: RoomIndex | None = None
        self._world: World | None = None
        self._calls = 0
        self._states: list[tuple[int, State]] = []

    def __getstate__(self) -> dict[str, Any]:
        """Drop what is rebuilt on first use, so that a sandbox can be sent to another process."""
        state = dict(self.__dict__)
        world = state.pop("_world")
        return {**state, "_index": None, "_open": world and (world.state, world.open_comments)}

    def __setstate__(self, state: dict[str, Any]) -> None:
        opened = state.pop("_open")
        self.__dict__.update(state)
        self._world = opened and self.index.world(opened[0], opened[1], self.language)

    @property
    def index(self) -> RoomIndex:
        """The room's index, shared by the process."""
        if self._index is None:
            self._index = shared_index(self.room, self._embedder)
        return self._index

    @property
    def calls(self) -> int:
        """How many calls were made; a server that builds a session anew sets it."""
        return self._calls

    @calls.setter
    def calls(self, calls: int) -> None:
        self._calls = calls

    @property
    def rebuildable(self) -> tuple[str, ...]:
        """The writing tools whose effects live in this sandbox alone: they may run again."""
        return tuple(s.name for s in self.specs if s.mutates and s.name not in self._offer.own)

    def is_own(self, name: str) -> bool:
        """Return whether a tool is one of the user's own."""
        return name in self._offer.own

    def reset(self, *, seed: int, comments: Sequence[str]) -> RoomView:
        """Start an episode on these comments; `seed` is for a user's own tools that draw.

        Raises:
            CommentNotFound: the room has no such comment.
        """
        view, self._world = _opened(self.index, tuple(comments), self.language)
        self._calls = 0
        self._seed = seed
        self._states = [(0, view.state)]
        return view

    def call(self, call: ToolCall) -> ToolResult:
        """Run one call on the room as of now."""
        if (recalled := self.recall(call)) is not None:
            return recalled
        world, own = self._begin_call(), self._offer.own.get(call.name)
        if own is None:
            return self._end_call(world, call, self._bundled(world, call))
        found = self._once(world, own, call)
        outcome = found or own.run(world, self._context(world), call.arguments)
        self._remember(world, own, call, outcome)
        return self._end_call(world, call, outcome)

    def recall(self, call: ToolCall) -> ToolResult | None:
        """Run a call of a pure bundled tool whose result is remembered; else do nothing."""
        if self._world is None or not (self._memory and call.name in self._offer.remembered):
            return None
        key = (self._world, call.name, call.arguments.canonical)
        found = _MEMORY.get(key)
        if found is None:
            return None
        if len(_MEMORY) > REMEMBERED // 2:
            _keep(key, found)
        self._calls += 1
        return ToolResult(call.id, found.content, found.data, found.error, None, found.events)

    async def acall(self, call: ToolCall) -> ToolResult:
        """Run one call as `call` does, awaiting a user's own tool."""
        if (recalled := self.recall(call)) is not None:
            return recalled
        world, own = self._begin_call(), self._offer.own.get(call.name)
        if own is None:
            return self._end_call(world, call, self._bundled(world, call))
        found = self._once(world, own, call)
        outcome = found or await own.arun(world, self._context(world), call.arguments)
        self._remember(world, own, call, outcome)
        return self._end_call(world, call, outcome)

    def _begin_call(self) -> World:
        if self._world is None:
            raise SandboxError("the sandbox has no episode; call `reset` first")
        self._calls += 1
        return self._world

    def _bundled(self, world: World, call: ToolCall) -> Outcome:
        name = call.name
        if name not in self._offer.names:
            return self._unknown_tool(name)
        outcome = run_tool(world, name, call.arguments)
        if self._memory and name in self._offer.remembered:
            _keep((world, name, call.arguments.canonical), outcome)
        return outcome

    def _end_call(self, world: World, call: ToolCall, outcome: Outcome) -> ToolResult:
        state = outcome.state
        if state is not None:
            self._states.append((self._calls, state))
            self._world = self.index.world(state, world.open_comments, self.language)
        return ToolResult(
            call.id, outcome.content, outcome.data, outcome.error, state, outcome.events
        )

    def _context(self, world: World) -> ToolContext:
        comments = tuple(sorted(world.open_comments))
        episode = self._session
        if episode is None:
            episode = f"{self.index.room.content_hash}:{self._seed}:{','.join(comments)}"
        return ToolContext(
            room=world.room,
            state=world.state,
            seed=self._seed,
            comments=comments,
            language=self.language,
            timeout_s=self._timeout_s,
            idempotency_key=f"{episode}:{self._calls}",
        )

    def _once(self, world: World, own: CustomTool, call: ToolCall) -> Outcome | None:
        """Return the remembered outcome of a pure tool of the user's own."""
        if not (self._memory and own.pure):
            return None
        return _MEMORY.get((world, own, call.arguments.canonical))

    def _remember(self, world: World, own: CustomTool, call: ToolCall, outcome: Outcome) -> None:
        if self._memory and own.pure:
            _keep((world, own, call.arguments.canonical), outcome)

    def _unknown_tool(self, name: str) -> Outcome:
        known = ", ".join(spec.name for spec in self.specs)
        content = error_content(self.language, "unknown_tool", given=name, known=known)
        return Outcome(content, error="unknown_tool")

    def fork(self, at_call: int | None = None) -> LocalSandbox:
        """Return a sandbox in the state after the first `at_call` calls, by default after all."""
        calls = self._calls if at_call is None else at_call
        if not 0 <= calls <= self._calls:
            raise ValueError(f"`at_call` is {at_call}; {self._calls} calls were made")
        forked = copy.copy(self)
        forked._calls = calls
        forked._states = [(n, state) for n, state in self._states if n <= calls]
        if self._world is not None:
            forked._world = self.index.world(
                forked._states[-1][1], self._world.open_comments, self.language
            )
        return forked

    def log(self) -> Sequence[TurnEvent]:
        """Return nothing: no transport is involved."""
        return ()

    def close(self) -> None:
        """Forget the episode."""
        self._world = None


_Key = tuple[World, Hashable, str]
_MEMORY: OrderedDict[_Key, Outcome] = OrderedDict()
"""Outcomes of pure tools by world and arguments, in one LRU of the process."""
REMEMBERED = 65536


def _keep(key: _Key, outcome: Outcome) -> None:
    with LOCK:
        _MEMORY[key] = outcome
        _MEMORY.move_to_end(key)
        if len(_MEMORY) > REMEMBERED:
            _MEMORY.popitem(last=False)


# --- what the host sees at the start ---------------------------------------------------------


@lru_cache(maxsize=4096)
def _opened(
    index: RoomIndex, comment_ids: tuple[str, ...], language: str
) -> tuple[RoomView, World]:
    room = index.room
    opened = [room.comment(comment_id) for comment_id in comment_ids]
    order = {comment.comment_id: i for i, comment in enumerate(room.comments)}
    latest = max(opened, key=lambda comment: (comment.at_s, order[comment.comment_id]))
    moment = index.moment(latest.at_s, latest)
    state = State(
        latest.at_s + 0.0,
        moment.current_product,
        tuple(product.product_id for product in moment.room.products),
        moment.shown_image,
    )
    world = index.world(state, frozenset(comment_ids), language)
    current = world.product(moment.current_product)
    brief = None
    if current is not None:
        brief = ProductBrief(current.product_id, current.link_no, current.name)
    limits = room.limits
    faqs = _related_faqs(world, opened, limits.preset_faqs)
    view = RoomView(
        room_id=room.room_id,
        content_hash=room.content_hash,
        title=room.title,
        language=language,
        host=room.host,
        current_product=brief,
        script_window=tuple(_script_window(room, latest.at_s, limits.script_window_s)),
        history=tuple(_history(moment.room, opened, latest, limits.history_lines)),
        comments=tuple(_public(comment) for comment in opened),
        faqs=tuple(FaqBrief(faq.faq_id, faq.question, faq.answer) for faq in faqs),
        state=state,
        embedder=fingerprint_of(index.embedder),
        bullet_characters=limits.bullet_characters,
        speech_characters=int(limits.speech_s * limits.speech_characters_per_s),
        extras=freeze(limits.extras),
        data=(*_brief_facts(brief), *map(faq_fact, faqs)),
    )
    return view, world


def _public(comment: Comment) -> CommentView:
    return CommentView(
        comment.comment_id, comment.viewer, comment.at_s, comment.text, comment.current_product
    )


def _brief_facts(brief: ProductBrief | None) -> list[Fact]:
    if brief is None:
        return []
    record = f"product:{brief.product_id}"
    link = "" if brief.link_no is None else str(brief.link_no)
    return [
        Fact(record, "name", brief.name, None, brief.name),
        Fact(record, "link_no", brief.link_no, None, link),
    ]


def _related_faqs(world: World, opened: Sequence[Comment], limit: int) -> list[Any]:
    found = {
        faq.faq_id: faq
        for comment in opened
        for faq in (find_faqs(world, comment.text, limit) if limit else ())
    }
    return list(found.values())


def _script_window(room: Room, at_s: float, window_s: float) -> list[ScriptLine]:
    return [
        ScriptLine(segment.segment_id, segment.start_s, segment.end_s, segment.text)
        for segment in sorted(room.script, key=lambda segment: segment.start_s)
        if segment.start_s <= at_s and segment.end_s > at_s - window_s
    ]


def _history(
    now: Room, opened: Sequence[Comment], latest: Comment, limit: int
) -> list[HistoryLine]:
    if latest.history is not None:
        own = latest.history
        return [HistoryLine(line.by, line.text, line.at_s, line.by == "host") for line in own]
    open_ids = {comment.comment_id for comment in opened}
    said = sorted(now.comments, key=lambda comment: comment.at_s)
    earlier = said[: said.index(latest)]
    lines: list[HistoryLine] = []
    for comment in [comment for comment in earlier if comment.comment_id not in open_ids]:
        lines.append(HistoryLine(comment.viewer, comment.text, comment.at_s))
        reply = reply_so_far(comment, latest.at_s)
        if reply is not None:
            lines.append(HistoryLine("host", reply, comment.at_s, True))
    return lines[-limit:] if limit else []
