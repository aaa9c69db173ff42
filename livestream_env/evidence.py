"""What an episode looked up and said, read from its record and the key of its room.

A trajectory falls into *rounds*: what was done for the viewer's last message, up to the reply to
it. Rewards are functions of rounds, of the facts that were seen, and of the key.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from functools import cached_property, lru_cache
from typing import Any

from livestream_env.claim_promises import may_state
from livestream_env.claims import Claim, ProductName, find_claims, find_kinds
from livestream_env.coverage import Values, values_of
from livestream_env.grounding import Ground
from livestream_env.keywords import has_han
from livestream_env.rooms import Ask, Expected, Moment, Room, promotions_of, room_as_of
from livestream_env.tools import CURRENCIES, faq_fact, product_facts
from livestream_env.types import Action, Fact, ToolCall, ToolResult, Trajectory
from livestream_env.words import fold

RULE_TOOL = "get_reply_rule"


@dataclass(frozen=True, slots=True)
class LookUp:
    """One call that was answered, and the records that its result holds."""

    turn: int
    call: ToolCall
    result: ToolResult
    records: frozenset[str]

    @property
    def is_rule(self) -> bool:
        """Whether it looked up the reply rule."""
        return self.call.name == RULE_TOOL

    @property
    def is_empty(self) -> bool:
        """Whether a search came back without a hit."""
        return self.result.error is None and not self.records and self.result.state is None


@dataclass(frozen=True, slots=True)
class Round:
    """What was done for one message of the viewer."""

    asks: tuple[tuple[str, Expected | None], ...]
    """(comment id, key) of each comment that is open."""
    look_ups: tuple[LookUp, ...]
    reply: Action | None
    """The reply that stood; `None` where there is none."""

    @property
    def hands_off(self) -> bool:
        """Whether a human colleague was called."""
        return any(c.call.name == "hand_off" and c.result.error is None for c in self.look_ups)

    @property
    def text(self) -> str:
        """What the reply says, bullet and speech."""
        if self.reply is None:
            return ""
        return "\n".join(filter(None, (self.reply.message.content, self.reply.speech)))


def rounds_of(trajectory: Trajectory, room: Room | None) -> tuple[Round, ...]:
    """Split a trajectory where its viewer spoke again."""
    asked = _keys(trajectory, room)
    follow_ups = _follow_ups(trajectory, room)
    rounds: list[Round] = []
    seen: list[LookUp] = []
    reply: Action | None = None
    for number, turn in enumerate(trajectory.turns):
        calls = turn.action.message.tool_calls
        for call, result in zip(calls, turn.results, strict=False):
            records = frozenset(fact.record for fact in result.data)
            seen.append(LookUp(number, call, result, records))
        kinds = {event.kind: event.detail for event in turn.events}
        if not (calls or turn.agent == "tool_caller" or kinds.keys() & {"cut", "reminder"}):
            reply = turn.action
        if "follow_up" in kinds:
            rounds.append(Round(asked, tuple(seen), reply))
            asked = (follow_ups.get(int(kinds["follow_up"]), ("", None)),)
            seen, reply = [], None
    rounds.append(Round(asked, tuple(seen), reply))
    return tuple(rounds)


def _keys(trajectory: Trajectory, room: Room | None) -> tuple[tuple[str, Expected | None], ...]:
    """Return the key of each comment; one that repeats another has that one's."""
    if room is None:
        return tuple((comment_id, None) for comment_id in trajectory.comment_ids)
    keys = []
    for comment in map(room.comment, trajectory.comment_ids):
        key = comment.expected
        if key is None and comment.same_as is not None:
            key = room.comment(comment.same_as).expected
        keys.append((comment.comment_id, key))
    return tuple(keys)


def _follow_ups(
    trajectory: Trajectory, room: Room | None
) -> dict[int, tuple[str, Expected | None]]:
    if room is None:
        return {}
    comments = map(room.comment, trajectory.comment_ids)
    said = [(c.comment_id, f.expected) for c in comments for f in c.follow_ups]
    return dict(enumerate(said))


class Reading:
    """A trajectory beside its room: what rewards look at, each part made once."""

    def __init__(self, trajectory: Trajectory, room: Room | None) -> None:
        self.trajectory = trajectory
        self.room = room
        self.rounds = rounds_of(trajectory, room)

    @cached_property
    def language(self) -> str:
        """The language that the host speaks."""
        if self.room is not None:
            return self.room.language
        said = "".join(message.content for message in self.trajectory.messages[:2])
        return "zh" if has_han(said) else "en"

    @cached_property
    def world(self) -> World | None:
        """The room as of the comments; `None` where the room is not known."""
        if self.room is None or not self.trajectory.comment_ids:
            return None
        return _world(_Same(self.room), self.trajectory.comment_ids)

    @cached_property
    def facts(self) -> tuple[Fact, ...]:
        """The facts that this episode saw: the prompt's, then each result's."""
        seen = [fact for turn in self.trajectory.turns for r in turn.results for fact in r.data]
        return (*self.trajectory.evidence, *seen)

    @cached_property
    def shown(self) -> frozenset[str]:
        """Records that the prompt shows; the name of a thing alone is not the thing looked up."""
        evidence = self.trajectory.evidence
        return frozenset(f.record for f in evidence if f.field not in ("name", "link_no"))

    @cached_property
    def seen(self) -> Ground:
        """What this episode's facts and prompt support."""
        script = () if self.world is None else self.world.script
        return Ground(self.facts, self.language, script)

    @cached_property
    def priced(self) -> frozenset[str]:
        """Records whose price this episode saw."""
        prices = [f for f in self.facts if f.field in ("price", "coupon_price")]
        return frozenset(fact.record for fact in prices if fact.value is not None)

    @cached_property
    def product_names(self) -> tuple[ProductName, ...]:
        """The products as a reply may name them: the room's, else those that were seen."""
        return _names_in(self.facts) if self.world is None else self.world.names

    @cached_property
    def claims(self) -> tuple[tuple[Claim, ...], ...]:
        """What the reply of each round states."""
        return tuple(self._claims_of(one) for one in self.rounds)

    def _claims_of(self, one: Round) -> tuple[Claim, ...]:
        if not one.text:
            return ()
        return find_claims(
            one.text,
            language=self.language,
            products=self.product_names,
            current=self._meant(one),
        )

    def _meant(self, one: Round) -> str | None:
        """Return the product that a reply is about where it names none: the one that was asked
        about, `None` where that is none or several, else the one being explained."""
        needed = {
            record
            for _, key in one.asks
            for ask in (key.asks if key is not None else ())
            for need in ask.needed
            for record in ((need,) if isinstance(need, str) else need)
        }
        if needed:
            products = {self._product_of(record) for record in needed}
            return products.pop() if len(products) == 1 else None
        return None if self.world is None else self.world.moment.current_product

    def _product_of(self, record: str) -> str | None:
        kind, _, name = record.partition(":")
        if kind == "product":
            return name
        owners = [p.product_id for p in self.product_names for s in p.skus if s.sku_id == name]
        return owners[0] if kind == "sku" and owners else None

    @cached_property
    def met_links(self) -> frozenset[Any]:
        """Link numbers that the prompt, a viewer in it, or a call that ran names."""
        said = [m.content for m in self.trajectory.messages if m.role == "user"]
        claims = [c for text in said for c in find_claims(text, language=self.language)]
        ran = [c.call.arguments for one in self.rounds for c in one.look_ups if not c.result.error]
        moved = [arguments.get("link_no") for arguments in ran]
        return frozenset((*(c.value for c in claims if c.kind == "link"), *moved))

    @cached_property
    def abstains(self) -> bool | None:
        """Whether the last reply says that it cannot tell, and states nothing beside it.

        `None` where there is no reply.
        """
        text = self.rounds[-1].text
        if not text.strip():
            return None
        if not may_state("abstain", text, self.language):
            return False
        return dodges(find_kinds(text, language=self.language, products=self.product_names))

    def unlinked(self, number: int) -> str:
        """Return a reply without its link numbers, which are no amounts."""
        text = self.rounds[number].text
        for claim in sorted(self.claims[number], key=lambda claim: -claim.start):
            if claim.kind == "link":
                text = f"{text[: claim.start]} {text[claim.stop :]}"
        return text

    def asks(self) -> Iterator[tuple[int, str, Ask]]:
        """Yield every question of the key, with the number of its round and its comment."""
        for number, one in enumerate(self.rounds):
            for comment_id, key in one.asks:
                for ask in key.asks if key is not None else ():
                    yield number, comment_id, ask


def dodges(kinds: Iterable[str]) -> bool:
    """Return whether claims of these kinds say that one cannot tell, and nothing beside it."""
    is_unsure = False
    for kind in kinds:
        if kind not in _OF_A_DODGE:
            return False
        is_unsure = is_unsure or kind == "abstain"
    return is_unsure


_OF_A_DODGE = frozenset(("abstain", "product", "link"))


class World:
    """A room as of the comments of an episode, each part made once."""

    def __init__(self, room: Room, comment_ids: tuple[str, ...]) -> None:
        comments = [room.comment(one) for one in comment_ids]
        latest = max(comments, key=lambda comment: comment.at_s)
        self.room = room
        self.moment: Moment = room_as_of(room, latest.at_s, comment=latest)
        self._at_s = latest.at_s

    @cached_property
    def names(self) -> tuple[ProductName, ...]:
        """The products as a reply may name them."""
        products = self.moment.room.products
        return tuple(ProductName(p.product_id, p.name, p.link_no, tuple(p.skus)) for p in products)

    @cached_property
    def intents(self) -> frozenset[str]:
        """Intents, folded, that have a rule for the product being explained, or for the room."""
        moment = self.moment
        now = [p for p in moment.room.products if p.product_id == moment.current_product]
        scopes = now[0].scopes if now else {"room": 0}
        return frozenset(fold(r.intent) for r in moment.room.reply_rules if r.scope in scopes)

    @cached_property
    def script(self) -> tuple[str, ...]:
        """What the host was saying, which the prompt shows."""
        since_s = self._at_s - self.room.limits.script_window_s
        said = [s for s in self.room.script if s.start_s <= self._at_s and s.end_s > since_s]
        return tuple(segment.text for segment in said)

    @cached_property
    def ground(self) -> Ground:
        """What the room supports, looked up or not."""
        script = [segment.text for segment in self.room.script]
        return Ground(_room_facts(self.moment), self.room.language, script)

    @cached_property
    def values(self) -> Values:
        """What each (record, field) holds."""
        return values_of(self.moment)


class _Same:
    """A room as a key: the very object."""

    __slots__ = ("room",)

    def __init__(self, room: Room) -> None:
        self.room = room

    def __hash__(self) -> int:
        return id(self.room)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, _Same) and other.room is self.room


@lru_cache(maxsize=1024)
def _world(same: _Same, comment_ids: tuple[str, ...]) -> World:
    return World(same.room, comment_ids)


def _room_facts(moment: Moment) -> tuple[Fact, ...]:
    room = moment.room
    facts = [faq_fact(faq) for faq in room.faqs]
    facts += [Fact(f"rule:{r.rule_id}", "rule", r.rule, None, r.rule) for r in room.reply_rules]
    for product in room.products:
        facts += product_facts(product, promotions_of(room, product), CURRENCIES[room.language])
    return tuple(facts)


def _names_in(facts: Iterable[Fact]) -> tuple[ProductName, ...]:
    names: dict[str, str] = {}
    links: dict[str, int] = {}
    for fact in facts:
        if fact.record.startswith("product:"):
            if fact.field == "name":
                names[fact.record] = str(fact.value)
            elif fact.field == "link_no" and isinstance(fact.value, int):
                links[fact.record] = fact.value
    return tuple(
        ProductName(record.partition(":")[2], name, links.get(record))
        for record, name in names.items()
    )
