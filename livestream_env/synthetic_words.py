"""The grammars of generated rooms: their two splits, draws from them, and how viewers misspell.

Wherever the data say `{"train": ..., "test": ...}` a grammar holds one of the two, so nothing that
is drawn for one split can occur in the other.
"""

from __future__ import annotations

import json
import random
import re
from collections.abc import Callable, Mapping, Sequence
from functools import cache
from typing import Any, Literal, NamedTuple

from livestream_env._resources import data_file

Split = Literal["train", "test"]
PARTS = ("goods", "topics", "comments", "show", "noise")
MARK = re.compile("«(.*?)»")
"""What a reply has to repeat of an answer or a script line."""


@cache
def grammar(part: str, language: str, split: Split) -> dict[str, Any]:
    """Return one of `PARTS` with the templates of that split alone."""
    found: dict[str, Any] = _of_split(whole_grammar(part, language), split)
    return found


def whole_grammar(part: str, language: str) -> dict[str, Any]:
    """Return one of `PARTS` as its file has it, both splits."""
    path = data_file(f"synthetic/{part}_{language}.json")
    data: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
    return data


def _of_split(value: Any, split: Split) -> Any:
    if isinstance(value, list):
        return [_of_split(one, split) for one in value]
    if not isinstance(value, dict):
        return value
    if value.keys() == {"train", "test"}:
        return value[split]
    return {key: _of_split(one, split) for key, one in value.items()}


def generator(*key: object) -> random.Random:
    """Return the generator of a key; Python seeds it by SHA-512, alike in every process."""
    return random.Random("/".join(map(str, ("livestream_env", *key))))


class Marked(NamedTuple):
    """A text, and the phrases in it that were marked «so»."""

    text: str
    phrases: tuple[str, ...]


def marked(template: str, **slots: object) -> Marked:
    """Fill a template and take its marks out."""
    text = template.format(**slots)
    return Marked(MARK.sub(r"\1", text), tuple(MARK.findall(text)))


class Noise:
    """How hurried viewers write: their slips leave numbers and names alone, so meaning stays."""

    def __init__(self, language: str, split: Split, rng: random.Random) -> None:
        self._words = grammar("noise", language, split)
        self._is_chinese = language == "zh"
        self._rng = rng
        self._kinds: dict[str, Callable[[str], str]] = {
            "homophone": lambda text: self._replaced(text, self._words["homophones"]),
            "slang": lambda text: self._replaced(text, self._words["slang"]),
            "typo": self._mistyped,
            "dropped": self._dropped,
        }

    def roughen(self, text: str, kept: Sequence[str]) -> tuple[str, tuple[str, ...]]:
        """Return the text with one to three slips outside the `kept` words, and their kinds."""
        rng = self._rng
        kinds: list[str] = []
        for kind in rng.sample(list(self._kinds), rng.randint(1, 2)):
            changed = self._outside(text, kept, self._kinds[kind])
            if changed != text and changed.strip():
                text, kinds = changed, [*kinds, kind]
        if not kinds or rng.random() < 0.4:
            added = self._added()
            text, kinds = added[1].format(text=text), [*kinds, added[0]]
        return text, tuple(kinds)

    def _outside(self, text: str, kept: Sequence[str], change: Callable[[str], str]) -> str:
        """Change the first part of the text, outside the kept words, that can be changed."""
        names = "|".join(map(re.escape, sorted(filter(None, kept), key=len, reverse=True)))
        parts = re.split(rf"({names}|\d+)" if names else r"(\d+)", text)
        order = list(range(0, len(parts), 2))
        self._rng.shuffle(order)
        for i in order:
            changed = change(parts[i])
            if changed != parts[i]:
                return "".join([*parts[:i], changed, *parts[i + 1 :]])
        return text

    def _replaced(self, text: str, table: Mapping[str, Sequence[str]]) -> str:
        bounds = "{}" if self._is_chinese else r"(?<![a-z']){}(?![a-z'])"
        found = [word for word in table if re.search(bounds.format(re.escape(word)), text)]
        if not found:
            return text
        word = self._rng.choice(found)
        other = self._rng.choice(table[word])
        return re.sub(bounds.format(re.escape(word)), lambda _: other, text, count=1)

    def _mistyped(self, text: str) -> str:
        if self._is_chinese:
            return self._replaced(text, {k: [v] for k, v in self._words["typos"].items()})
        long = list(re.finditer("[a-z]{5,}", text))
        if not long:
            return text
        word = self._rng.choice(long)
        i = self._rng.randrange(word.start() + 1, word.end() - 2)
        return text[:i] + text[i + 1] + text[i] + text[i + 2 :]

    def _dropped(self, text: str) -> str:
        return self._replaced(text, {word: [""] for word in self._words["particles"]}).replace(
            "  ", " "
        )

    def _added(self) -> tuple[str, str]:
        """Return a kind and a template that puts something before or behind the text."""
        kind = self._rng.choice(("emoji", "prefix", "suffix"))
        if kind == "emoji":
            return kind, "{text}" + self._rng.choice(self._words["emoji"]) * self._rng.randint(1, 2)
        if kind == "prefix":
            return kind, self._rng.choice(self._words["prefixes"]) + "{text}"
        return kind, "{text}" + self._rng.choice(self._words["suffixes"])
