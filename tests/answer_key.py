"""The key of the bundled rooms, read from their files by code of its own: what a reply must state.

Nothing of the package is used, so that a fault there cannot hide itself.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Mapping, Sequence
from functools import cache
from pathlib import Path
from typing import Any

ROOMS = (
    *("apparel", "appliances", "duo", "farmstand", "phones", "skincare", "snacks"),
    *("outdoor", "pets"),
)
FOLDER = Path(__file__).resolve().parents[1] / "fixtures" / "rooms"
Raw = dict[str, Any]

_LABEL = re.compile(r"(\d+)号链接|(?<![a-z])link (\d+)")
_NUMBER = re.compile(r"\d+(?:\.\d+)?")
_CHANGED = {"stock": "stock", "price": "price", "coupon": "coupon_price"}
_DENIALS = ("没有", "do not sell")
_NOT_KNOWN = ("没有信息", "not known")


@cache
def raw_room(name: str) -> Raw:
    """Return a bundled room as its file says."""
    room: Raw = json.loads((FOLDER / f"{name}.json").read_text(encoding="utf-8"))
    return room


def raw_comments() -> list[tuple[str, Raw]]:
    """Return (room name, comment) of every bundled comment."""
    return [(name, comment) for name in ROOMS for comment in raw_room(name)["comments"]]


def raw_asks(comment: Raw) -> list[Raw]:
    """Return the questions in a comment or follow-up."""
    return list(comment.get("expected", {}).get("asks", []))


def act(ask: Raw) -> str:
    """Return the first right act."""
    return str(ask.get("acts", ["answer"])[0])


def needed(comment: Raw) -> list[str]:
    """Return the records to be seen, of alternatives the first."""
    records = [record for ask in raw_asks(comment) for record in ask.get("needed", [])]
    return [record if isinstance(record, str) else record[0] for record in records]


def product_of(room: Raw, record: str) -> Raw | None:
    """Return the product that `product:ID` or `sku:ID` names or belongs to."""
    name = record.partition(":")[2]
    for product in room["products"]:
        if name in (product["product_id"], *(sku["sku_id"] for sku in product.get("skus", []))):
            return dict(product)
    return None


def value_at(room: Raw, record: str, field: str, at_s: float) -> Any:
    """Return what a product or SKU holds once the events up to `at_s` have happened."""
    events = sorted(room["events"], key=lambda event: event["at_s"])
    changes = [
        event["value"]
        for event in events
        if event["target"] == record
        and _CHANGED.get(event["kind"]) == field
        and event["at_s"] <= at_s
    ]
    if changes:
        return changes[-1]
    product = product_of(room, record)
    assert product is not None, record
    skus = product.get("skus", [])
    if record.startswith("sku:"):
        return next(sku for sku in skus if record == f"sku:{sku['sku_id']}").get(field)
    if skus and field in ("price", "coupon_price", "stock"):
        values = [value_at(room, f"sku:{sku['sku_id']}", field, at_s) for sku in skus]
        return sum(values) if field == "stock" else min(values)
    return product.get(field, product.get("attributes", {}).get(field))


def current_product(room: Raw, at_s: float) -> str:
    """Return the id of the product being explained, by the last event; before any, the first."""
    events = [e for e in room["events"] if e["kind"] == "current_product" and e["at_s"] <= at_s]
    if not events:
        return str(room["products"][0]["product_id"])
    target: str = max(events, key=lambda event: event["at_s"])["target"]
    return target.partition(":")[2]


def links_in(text: str) -> set[int]:
    """Return the link numbers that a reply names: 3号链接, link 3."""
    return {int(zh or en) for zh, en in _LABEL.findall(text)}


def states_number(text: str, number: float) -> bool:
    """Tell whether the number itself occurs, link numbers aside: 19 is not in 199 or 19.9."""
    return number in {float(found) for found in _NUMBER.findall(_LABEL.sub("", text))}


def mentions(text: str, phrases: Iterable[str]) -> bool:
    """Tell whether one of the phrases occurs."""
    return any(phrase.casefold() in text.casefold() for phrase in phrases)


def states(room: Raw, at_s: float, statement: Mapping[str, Any], reply: str) -> bool:
    """Tell whether a reply to a comment at `at_s` makes the statement."""
    kind, phrases = statement.get("kind", "value"), statement.get("text", [])
    if kind == "absent":
        return mentions(reply, phrases) and mentions(reply, _DENIALS)
    if kind == "unknown":
        return mentions(reply, _NOT_KNOWN)
    pinned = statement.get("value")
    if phrases:
        return mentions(reply, phrases) and (pinned is None or states_number(reply, pinned))
    if pinned is not None:
        return states_number(reply, pinned)
    field = statement["field"]
    records = [r for r in (statement["record"], statement.get("other")) if r is not None]
    return all(_states_value(reply, field, value_at(room, r, field, at_s)) for r in records)


def _states_value(reply: str, field: str, value: Any) -> bool:
    if field == "link_no":
        return value in links_in(reply)
    if isinstance(value, int | float):
        return states_number(reply, value)
    return mentions(reply, [value])


def broken_checks(checks: Sequence[Raw], reply: str, links: set[int]) -> list[str]:
    """Return the kinds of a rule's checks that a reply fails; `links` are those that will do."""
    return [check["kind"] for check in checks if not _meets(check, reply, links)]


def _meets(check: Raw, reply: str, links: set[int]) -> bool:
    kind = check["kind"]
    if kind == "must_mention":
        return mentions(reply, check["any_of"])
    if kind == "must_not_promise":
        return not mentions(reply, check["any_of"])
    if kind == "must_ask":
        return reply.endswith(("?", "？")) and mentions(reply, check.get("any_of", [""]))
    if kind == "must_add_link_number":
        return bool(links & links_in(reply))
    assert kind == "max_characters"
    return len(reply) <= int(check["limit"])
