"""Agents without a model: the scripted expert that reads the key, and the random one.

They are fakes for tests, floors and ceilings for reports, and examples of the `Agent` protocol.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from functools import cache
from typing import Any

import numpy as np

from livestream_env._resources import data_file
from livestream_env.drivers import Seed
from livestream_env.pricing import quote
from livestream_env.rooms import (
    Ask,
    Check,
    Comment,
    Expected,
    Product,
    Promotion,
    ReplyRule,
    Room,
    Sku,
    Statement,
)
from livestream_env.spaces import random_action
from livestream_env.tools import wording
from livestream_env.types import Action, Message, Observation, ToolSpec
from livestream_env.words import asks, fold, format_amount

Call = tuple[str, dict[str, Any]]


@cache
def phrases(language: str) -> dict[str, Any]:
    """Return the sentences that the agents of this package speak in `zh` or `en`."""
    table: dict[str, Any] = json.loads(data_file("agents.json").read_text(encoding="utf-8"))
    return dict(table[language])


class Findings:
    """What the tool messages of a conversation say, by record and field.

    Only their JSON is read: `values["product:p3", "coupon_price"]`, `values["faq:f2", "answer"]`.
    """

    def __init__(self, messages: Sequence[Message], room: Room | None, language: str) -> None:
        self._f: dict[str, str] = wording(language)["fields"]
        self._unknown: str = wording(language)["unknown"]
        self._room = room
        self.values: dict[tuple[str, str], Any] = {}
        self.products: dict[str, Mapping[str, Any]] = {}
        self.promotions: dict[str, Promotion] = {}
        self.rules: list[str] = []
        self.known_intents: list[str] = []
        for message in messages:
            if message.role == "tool":
                self._read(message.content)

    def _read(self, content: str) -> None:
        try:
            result = json.loads(content)
        except ValueError:
            return
        if not isinstance(result, dict):
            return
        self.known_intents += result.get(self._f["known_intents"], [])
        entries = result.get(self._f["results"], [])
        for entry in entries if isinstance(entries, list) else ():
            self._read_entry(entry)

    def _read_entry(self, entry: Mapping[str, Any]) -> None:
        f = self._f
        for kind, key, field in _TEXTS:
            if f[key] in entry:
                self.values[f"{kind}:{entry[f[key]]}", field] = entry.get(
                    f[_KEYS.get(field, field)]
                )
                return
        if f["rule"] in entry:
            self.rules.append(entry[f["rule"]])
            self.values[f"rule:{entry[f['intent']]}", "rule"] = entry[f["rule"]]
        elif f["name"] in entry:
            self._read_product(entry)

    def _read_product(self, entry: Mapping[str, Any]) -> None:
        f = self._f
        product_id = self._product_id(entry)
        self.products[product_id] = entry
        for field in ("price", "coupon_price", "stock", "merchant", "barcode", "link_no", "name"):
            self.values[f"product:{product_id}", field] = entry.get(f[field])
        for key, value in entry.get(f["attributes"], {}).items():
            self.values[f"product:{product_id}", key] = value
        for sku in entry.get(f["skus"], ()):
            for field in ("price", "coupon_price", "stock"):
                self.values[f"sku:{sku[f['sku_id']]}", field] = sku.get(f[field])
        for raw in entry.get(f["promotions"], ()):
            values = {name: raw[f[name]] for name in _PROMOTION if f.get(name) in raw}
            promotion = Promotion(**values)
            self.promotions[promotion.promotion_id] = promotion
            self.values[f"promotion:{promotion.promotion_id}", "text"] = promotion.text

    def _product_id(self, entry: Mapping[str, Any]) -> str:
        link, name = entry.get(self._f["link_no"]), entry.get(self._f["name"])
        products = self._room.products if self._room is not None else ()
        for product in products:
            if product.link_no == link and (link is not None or product.name == name):
                return product.product_id
        return next((p.product_id for p in products if p.name == name), str(link))

    def room(self) -> Room:
        """Return a room of the found products and promotions alone, for `quote`."""
        products = tuple(self._product(key, entry) for key, entry in self.products.items())
        return Room(room_id="found", language="zh", products=products)

    def _product(self, product_id: str, entry: Mapping[str, Any]) -> Product:
        f = self._f
        skus = tuple(
            Sku(sku_id=sku[f["sku_id"]], spec=sku[f["spec"]], **self._prices(sku))
            for sku in entry.get(f["skus"], ())
        )
        own = {} if skus else self._prices(entry)
        merchant = entry.get(f["merchant"])
        return Product(
            product_id=product_id, name=entry[f["name"]], merchant=merchant, skus=skus, **own
        )

    def _prices(self, entry: Mapping[str, Any]) -> dict[str, Any]:
        shown = {field: entry.get(self._f[field]) for field in ("price", "coupon_price")}
        return {field: None if value == self._unknown else value for field, value in shown.items()}


_TEXTS = (
    ("faq", "faq_id", "answer"),
    ("script", "segment_id", "text"),
    ("comment", "comment_id", "text"),
)
_KEYS = {"text": "script"}
_PROMOTION = tuple(Promotion.model_fields)


class ScriptedAgent:
    """The expert: `Expected` tells it what to look up; what it says comes from its tool results.

    For a comment without `Expected` it searches the comment, looks up the nearest known rule, and
    replies by what it found.
    """

    def __init__(self, room: Room) -> None:
        self.room = room

    def start(self, observation: Observation, *, seed: Seed | None) -> _Script:
        """Return the agent of one episode; `seed` changes nothing."""
        comments = [self.room.comment(view.comment_id) for view in observation.comments]
        return _Script(self.room, comments, tools_language(observation.tools, self.room.language))

    def act(self, messages: Sequence[Message], tools: Sequence[ToolSpec]) -> Action:
        """Refuse: the agent of an episode is made by `start`, which drivers call."""
        raise RuntimeError("call `start(observation, seed=...)` first; `rollout` does")


def tools_language(tools: Sequence[ToolSpec], default: str = "zh") -> str:
    """Return the language of the tools' descriptions, which is that of their results."""
    if not tools:
        return default
    return "zh" if any("\u4e00" <= c <= "\u9fff" for c in tools[0].description) else "en"


class _Script:
    """The scripted agent of one episode: look-ups, a second try, the rules, the reply."""

    def __init__(self, room: Room, comments: Sequence[Comment], language: str) -> None:
        self._room = room
        self._language = language
        self._words = phrases(language)
        self._said = 0
        self._texts = [comment.text for comment in comments]
        self._follow_ups = [f for comment in comments for f in comment.follow_ups]
        self._asks: list[Ask] = []
        self._states: list[Any] = []
        for comment in comments:
            self._expect(comment.expected)
        self._stage = 0

    def _expect(self, expected: Expected | None) -> None:
        if expected is not None:
            self._asks += expected.asks
            self._states.append(expected.state)

    def act(self, messages: Sequence[Message], tools: Sequence[ToolSpec]) -> Action:
        """Return the next step of the script."""
        if messages[-1].role == "user" and self._stage:
            self._answered_back(messages[-1].content)
        found = Findings(messages, self._room, self._language)
        for stage in range(self._stage, len(_STAGES)):
            self._stage = stage + 1
            calls = _STAGES[stage](self, found)
            if calls:
                return Action.calls(*calls)
        return self._reply(found)

    def _answered_back(self, text: str) -> None:
        """Take over what the viewer's next message asks for."""
        said = next((f for f in self._follow_ups if f.text == text), None)
        self._asks, self._states, self._texts = [], [], [text]
        self._expect(said.expected if said is not None else None)
        self._stage = 0

    # --- look-ups -----------------------------------------------------------------------------

    def _look_up(self, found: Findings) -> list[Call]:
        if not self._asks:
            text = self._texts[0]
            return [
                ("search_faq", {"query": text}),
                ("search_product_by_keyword", {"keyword": text}),
            ]
        return [*self._searches(self._missing(found), first=True), *self._writes()]

    def _look_again(self, found: Findings) -> list[Call]:
        return self._searches(self._missing(found), first=False) if self._asks else []

    def _missing(self, found: Findings) -> list[str]:
        """Return the needed records that no tool result holds yet, and absent things to search."""
        seen = {record for record, _ in found.values}
        wanted: list[str] = []
        for ask in self._asks:
            for needed in ask.needed:
                options = (needed,) if isinstance(needed, str) else needed
                if not seen.intersection(options):
                    wanted.append(options[0])
        return list(dict.fromkeys(wanted))

    def _searches(self, records: Sequence[str], *, first: bool) -> list[Call]:
        goods = [self._product_of(r) for r in records if r.split(":")[0] in _GOODS]
        products = {product.product_id: product for product in goods if product is not None}
        calls = [_product_search(list(products.values()), first)] if products else []
        if first:
            absent = [
                s.text[0] for a in self._asks for s in a.facts if s.kind == "absent" and s.text
            ]
            calls += [("search_product_by_keyword", {"keyword": name}) for name in absent]
        for record in records:
            kind, _, name = record.partition(":")
            if kind == "faq":
                faq = next(faq for faq in self._room.faqs if faq.faq_id == name)
                texts = (faq.question, *faq.similar)
                calls.append(("search_faq", {"query": texts[0 if first else -1]}))
            elif kind == "script":
                segment = next(s for s in self._room.script if s.segment_id == name)
                calls.append(("search_script", {"query": segment.text[:200]}))
            elif kind == "comment":
                calls.append(("search_comments", {"query": self._room.comment(name).text}))
        return calls

    def _product_of(self, record: str) -> Product | None:
        kind, _, name = record.partition(":")
        for product in self._room.products:
            if kind == "product" and product.product_id == name:
                return product
            if kind == "sku" and any(sku.sku_id == name for sku in product.variants):
                return product
            if kind == "promotion" and any(p.promotion_id == name for p in product.promotions):
                return product
        return None

    def _writes(self) -> list[Call]:
        calls: list[Call] = []
        for state in self._states:
            if isinstance(state, dict):
                calls += self._write(state)
        if not calls and any(ask.acts[0] == "hand_off" for ask in self._asks):
            calls.append(("hand_off", {"reason": self._texts[0][:200] or "?"}))
        return calls

    def _write(self, state: Mapping[str, Any]) -> list[Call]:
        product = self._product_of(f"product:{state.get('product')}")
        link = product.link_no if product is not None else None
        calls: list[Call] = []
        position = state.get("position", state.get("position_at_most"))
        if position is not None:
            calls.append(("move_product", {"link_no": link, "position": position}))
        if "image" in state:
            calls.append(("show_image", {"link_no": link, "image": state["image"]}))
        if state.get("handed_off"):
            calls.append(("hand_off", {"reason": self._texts[0][:200] or "?"}))
        return calls

    def _rules(self, found: Findings) -> list[Call]:
        intents = list(dict.fromkeys(ask.intent for ask in self._asks)) or [self._texts[0][:100]]
        return [("get_reply_rule", {"intent": intents[0] if len(intents) == 1 else intents})]

    def _known_rule(self, found: Findings) -> list[Call]:
        if found.rules or not found.known_intents:
            return []
        return [("get_reply_rule", {"intent": found.known_intents[0]})]

    # --- the reply ----------------------------------------------------------------------------

    def _reply(self, found: Findings) -> Action:
        acts = [ask.acts[0] for ask in self._asks]
        if acts and all(act == "ignore" for act in acts):
            return Action.skip()
        if acts:
            parts = [part for ask in self._asks for part in self._answer(ask, found)]
        else:
            parts = self._answer_unlabelled(found)
        text = self._words["prefix"] + self._words["joiner"].join(dict.fromkeys(parts))
        return Action.reply(self._by_rules(text, found))

    def _answer(self, ask: Ask, found: Findings) -> list[str]:
        act = ask.acts[0]
        words = self._words
        if act == "ask":
            return [
                words["ask"].format(
                    slots=("、" if self._language == "zh" else " and ").join(ask.ask_for)
                )
            ]
        parts = [self._state_text(state) for state in self._states if isinstance(state, dict)]
        parts += [self._statement(statement, found) for statement in (*ask.facts, *ask.extras)]
        if act == "hand_off":
            parts.append(words["handed_off"])
        elif act in ("decline", "chat"):
            parts.append(words[act])
        return [part for part in parts if part] or [words["fallback"]]

    def _state_text(self, state: Mapping[str, Any]) -> str:
        product = self._product_of(f"product:{state.get('product')}")
        link = product.link_no if product is not None else ""
        position = state.get("position", state.get("position_at_most"))
        if position is not None:
            return str(self._words["moved"].format(link_no=link, position=position))
        return str(self._words["shown"].format(link_no=link)) if "image" in state else ""

    def _statement(self, statement: Statement, found: Findings) -> str:
        words = self._words
        if statement.kind == "absent":
            return str(words["absent"].format(name=statement.text[0] if statement.text else ""))
        if statement.record == "quote":
            promotions = list(found.promotions.values())
            made = quote(found.room(), statement.lines, promotions=promotions)
            total = "?" if made.total is None else format_amount(made.total)
            return str(words["total"].format(value=total))
        records = [r for r in (statement.record, statement.other) if r is not None]
        return str(words["joiner"].join(self._value(r, statement, found) for r in records))

    def _value(self, record: str, statement: Statement, found: Findings) -> str:
        field = statement.field or ""
        value = found.values.get((record, field))
        if value is None or value == wording(self._language)["unknown"]:
            name = self._words["fields"].get(field, field)
            return str(self._words["unknown"].format(name=self._name(record), field=name))
        if isinstance(value, str) and (statement.text or not record.startswith(("product", "sku"))):
            return _relevant(value, statement.text)
        name = self._words["fields"].get(field, field)
        return str(
            self._words["value"].format(
                name=self._name(record), field=name, value=self._shown(field, value)
            )
        )

    def _shown(self, field: str, value: Any) -> str:
        if isinstance(value, str):
            return value
        form = {"price": "currency", "coupon_price": "currency", "stock": "piece"}.get(
            field, "plain"
        )
        return str(self._words[form].format(value=format_amount(value)))

    def _name(self, record: str) -> str:
        product = self._product_of(record)
        if product is None:
            return ""
        name = product.name[:16]
        if product.link_no is not None:
            name = self._words["link"].format(link_no=product.link_no)
        sku_id = record.partition(":")[2]
        spec = next((sku.spec for sku in product.skus if sku.sku_id == sku_id), {})
        gap = "" if self._language == "zh" else " "
        return gap.join([name, *spec.values()])

    def _answer_unlabelled(self, found: Findings) -> list[str]:
        answers = [value for (record, field), value in found.values.items() if field == "answer"]
        if answers:
            return [str(answers[0])]
        for record, field in found.values:
            if field == "coupon_price" and record.startswith("product"):
                return [self._value(record, Statement(record=record, field="coupon_price"), found)]
        return [self._words["fallback"]]

    def _by_rules(self, text: str, found: Findings) -> str:
        """Add what the looked-up rules' checks ask for and the reply does not hold yet."""
        for rule in self._room.reply_rules:
            if rule.rule in found.rules:
                for check in rule.checks:
                    addition = self._addition(check, text, rule)
                    if addition:
                        text += self._words["joiner"] + addition
        return text

    def _addition(self, check: Check, text: str, rule: ReplyRule) -> str:
        if check.kind == "must_mention" and not any(fold(p) in fold(text) for p in check.any_of):
            return check.any_of[0]
        if check.kind == "must_ask" and not asks(text):
            return str(self._words["question"])
        if check.kind == "must_add_link_number" and not re.search(r"\d", text):
            records = [
                r
                for ask in self._asks
                for n in ask.needed
                for r in ([n] if isinstance(n, str) else n)
            ]
            for record in records:
                product = self._product_of(record)
                if product is not None and product.link_no is not None:
                    return str(self._words["link"].format(link_no=product.link_no))
        return ""


_GOODS = ("product", "sku", "promotion")
_STAGES = (_Script._look_up, _Script._look_again, _Script._rules, _Script._known_rule)


def _product_search(products: Sequence[Product], first: bool) -> Call:
    """Search several products at once by link number, one by its name at the second try."""
    links = [product.link_no for product in products if product.link_no is not None]
    if len(links) == len(products) and (first or len(links) > 1):
        keyword = "、".join(f"{link}号链接" for link in links)
    else:
        keyword = products[0].name[:200]
    return "search_product_by_keyword", {"keyword": keyword}


def _relevant(value: str, texts: Sequence[str]) -> str:
    """Return the sentence of the value that holds one of the phrases; the whole where none does."""
    for phrase in texts:
        if phrase in value and len(value) > 60:
            sentences = re.split(r"(?<=[。；;！!])|(?<=\. )", value)
            return next((s.strip() for s in sentences if phrase in s), value)
    return value


class RandomAgent:
    """Draws calls and replies at random: a floor, and a check of spaces and parallel runs."""

    def __init__(self, seed: int = 0) -> None:
        self.seed = seed

    def start(self, observation: Observation, *, seed: Seed | None) -> RandomAgent:
        """Return the agent of one episode, drawing from its own generator."""
        episode = RandomAgent(self.seed)
        more = seed if isinstance(seed, tuple) else (seed or 0,)
        episode._rng = np.random.default_rng((self.seed, *more))
        episode._texts = [comment.text[:100] or "?" for comment in observation.comments]
        episode._specs = observation.tools
        return episode

    _rng: np.random.Generator | None = None
    _texts: Sequence[str] = ()
    _specs: Sequence[ToolSpec] = ()

    def act(self, messages: Sequence[Message], tools: Sequence[ToolSpec]) -> Action:
        """Draw a call of one of the tools, or a reply."""
        if self._rng is None:
            self._rng = np.random.default_rng(self.seed)
        specs = tools or self._specs
        language = tools_language(specs)
        return random_action(self._rng, specs, self._texts or ["?"], language=language)
