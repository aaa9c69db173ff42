"""What a tool tells when its data are old or gone: changed results, values and facts alike."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from dataclasses import replace
from functools import cache
from typing import Any

from livestream_env.tools import to_json, wording
from livestream_env.types import Fact, ToolResult
from livestream_env.words import format_amount

PRICE_RISE = 1.2
STOCK_THEN = 3
Change = tuple[ToolResult, str]
"""The changed result, and what changed; empty where nothing fits."""
_NO_HITS = {
    "search_product_by_keyword": "no_product",
    "search_faq": "no_faq",
    "search_script": "no_script",
    "search_comments": "no_comment",
}


def old_stock(result: ToolResult, tool: str) -> Change:
    """Tell the stock of some time ago: twice what there is, some where there is none."""
    return _older(result, {"stock"}, lambda value: 2 * value or STOCK_THEN)


def old_prices(result: ToolResult, tool: str) -> Change:
    """Tell the prices of before they fell by a sixth, as they will have by the reply."""
    return _older(result, {"price", "coupon_price"}, lambda value: round(value * PRICE_RISE, 2))


def empty_hits(result: ToolResult, tool: str) -> Change:
    """Tell of a search that it found nothing."""
    content = _json(result.content)
    if not tool.startswith("search_") or not isinstance(content, dict):
        return result, ""
    full = [key for key, value in content.items() if isinstance(value, list) and value]
    if not full:
        return result, ""
    emptied = {**content, **{key: [] for key in full}}
    for language in ("zh", "en"):
        words = wording(language)
        if full == [words["fields"]["results"]] and tool in _NO_HITS:
            emptied[words["fields"]["note"]] = words[_NO_HITS[tool]]
    return replace(result, content=to_json(emptied), data=()), f"{tool} found nothing"


def _older(result: ToolResult, names: set[str], then: Callable[[Any], Any]) -> Change:
    """Change the facts of these fields and the places of the content that show them."""
    content = _json(result.content)
    shown: dict[str, tuple[Fact, ...]] = {}
    for fact in result.data:
        is_number = isinstance(fact.value, (int, float)) and not isinstance(fact.value, bool)
        if fact.field in names and is_number:
            shown[fact.text] = (*shown.get(fact.text, ()), fact)
    texts: dict[str, Any] = {}
    made = _with_leaves(content, lambda key, leaf: _old_leaf(key, leaf, shown, names, then, texts))
    changed = [f for text in texts for f in shown[text]]
    if not changed:
        return result, ""
    facts = {f: replace(f, value=then(f.value), text=texts[f.text]) for f in changed}
    data = tuple(facts.get(fact, fact) for fact in result.data)
    told = [f"{f.record} {f.field} {f.text} told as {facts[f].text}" for f in changed]
    return replace(result, content=to_json(made), data=data), "; ".join(told)


def _old_leaf(
    key: str,
    leaf: Any,
    shown: Mapping[str, tuple[Fact, ...]],
    names: set[str],
    then: Callable[[Any], Any],
    texts: dict[str, Any],
) -> Any:
    """Return what a place shows that shows one of the facts, and keep it in `texts`."""
    text = leaf if isinstance(leaf, str) else to_json(leaf)
    facts = shown.get(text, ())
    field = _english().get(key)
    if not facts or (field is not None and field not in names):
        return leaf
    value = facts[0].value
    assert isinstance(value, (int, float))
    made = _old_text(leaf, value, then) if isinstance(leaf, str) else _old_number(leaf, value, then)
    if made != leaf:
        texts[text] = made if isinstance(made, str) else to_json(made)
    return made


def _old_text(leaf: str, value: float, then: Callable[[Any], Any]) -> str:
    return leaf.replace(format_amount(value), format_amount(then(value)), 1)


def _old_number(leaf: float, value: float, then: Callable[[Any], Any]) -> float:
    """Return the number in the unit that is shown, which may be fen where the fact is yuan."""
    scale = leaf / value if value else 1
    made: float = round(then(value) * scale, 2)
    return int(made) if made == int(made) else made


def _with_leaves(value: Any, change: Callable[[str, Any], Any], key: str = "") -> Any:
    if isinstance(value, dict):
        return {
            name: item if name in _names_of_goods() else _with_leaves(item, change, name)
            for name, item in value.items()
        }
    if isinstance(value, list):
        return [_with_leaves(item, change, key) for item in value]
    return change(key, value)


@cache
def _english() -> dict[str, str]:
    """Return the field that a label of a result stands for."""
    tables = [wording(language)["fields"] for language in ("zh", "en")]
    return {label: field for table in tables for field, label in table.items()}


@cache
def _names_of_goods() -> frozenset[str]:
    """Return the labels under which a merchant's own names stand."""
    tables = [wording(language)["fields"] for language in ("zh", "en")]
    return frozenset(table[field] for table in tables for field in ("attributes", "spec"))


def _json(text: str) -> Any:
    try:
        return json.loads(text)
    except ValueError:
        return None
