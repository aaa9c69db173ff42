"""Text and tokens, with control tokens that come from the caller alone.

Added tokens are the only borders that a tokenizer never merges across, so text is encoded by a
copy of the tokenizer that knows them, white space ones apart, by secret names alone, and a
separator that stands for the control token before. No text can become a control token, and what
stands between two control tokens is encoded in one go, as the template's own text would be.
"""

from __future__ import annotations

import re
import secrets
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from livestream_env.chat_templates import Item, Remembered, Slot
from livestream_env.errors import UnsupportedTemplate, missing_dependency
from livestream_env.tokens import Source
from livestream_env.words import clean_text

Spans = list[tuple[int, Source]]
"""(length, source) of each stretch of ids."""
_STOPS = (
    *("<|im_end|>", "<|eot_id|>", "<|eom_id|>", "<|endoftext|>", "<|end_of_text|>", "</s>"),
    *("<|return|>", "<|call|>", "<|user|>", "<|observation|>", "<end_of_turn>", "<turn|>"),
    *("<|tool_response>", "<｜end▁of▁sentence｜>", "<eos>"),
)
"""End tokens that engines stop at, by the names that model families give them."""


@dataclass(frozen=True, slots=True)
class Scaffold:
    """A stretch that is the same for all words: its ids."""

    ids: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Run:
    """What stands between two control tokens: scaffold texts, and slots for words."""

    parts: tuple[str | Slot, ...]
    opens: bool
    """Whether it opens the whole text."""


Segment = tuple[Scaffold | Run, ...]


class Codec:
    """Encodes plans by a Hugging Face tokenizer.

    Raises:
        UnsupportedTemplate: the tokenizer is no fast one.
    """

    def __init__(self, tokenizer: Any) -> None:
        try:
            from tokenizers import AddedToken
        except ImportError as error:
            raise missing_dependency("transformers", extra="tokens") from error
        backend = getattr(tokenizer, "backend_tokenizer", None)
        if backend is None or not hasattr(backend, "get_added_tokens_decoder"):
            raise UnsupportedTemplate(
                f"`{type(tokenizer).__name__}` is no fast tokenizer; load one with "
                "`AutoTokenizer.from_pretrained(..., use_fast=True)`"
            )
        added = sorted(backend.get_added_tokens_decoder().items())
        shown = {number: token.content for number, token in added if not token.content.isspace()}
        self._separator = f"<|{secrets.token_hex(8)}|>"
        held = [pair for pair in added if backend.model.token_to_id(pair[1].content) is not None]
        # Under a secret name a token of the vocabulary takes a new id, so these come last: the ids
        # of white space tokens stay.
        ordered = [*(pair for pair in added if pair not in held), *held]
        hidden = [
            AddedToken(f"<|{number}{self._separator}", normalized=False)
            if number in shown
            else token
            for number, token in ordered
        ]
        self._full = _copy(backend, [token for _, token in added])
        self._plain = _copy(backend, [*hidden, AddedToken(self._separator, normalized=False)])
        self.control_ids = frozenset(shown) - _unknown_ids(backend.model)
        self._pieces = {number for number, _ in held if number in self.control_ids}
        """Control tokens that the vocabulary holds as ordinary pieces too."""
        names = sorted(shown.values(), key=len, reverse=True)
        self.control_text = re.compile("|".join(map(re.escape, names)) or r"(?!)")
        """What spells a control token."""
        ends = {number for number, name in shown.items() if name in _STOPS}
        end = getattr(tokenizer, "eos_token_id", None)
        self.stop_ids = frozenset(ends if end is None else ends | {end})
        self._controls = Remembered[tuple[tuple[int, int, int], ...]]()

    def find_controls(self, text: str) -> tuple[tuple[int, int, int], ...]:
        """Return (start, stop, id) of each control token that a scaffold text spells."""
        found = self._controls.get(text)
        if found is None:
            encoded = self._full.encode(text, add_special_tokens=False)
            found = self._controls[text] = tuple(
                (start, stop, token)
                for token, (start, stop) in zip(encoded.ids, encoded.offsets, strict=True)
                if token in self.control_ids
            )
        return found

    def decode(self, ids: Iterable[int]) -> str:
        """Return the text of ids, control tokens included."""
        return str(self._full.decode(list(ids), skip_special_tokens=False))

    def compile(self, items: Sequence[Item]) -> Segment:
        """Encode what does not depend on words."""
        made: list[Scaffold | Run] = []
        constant: list[int] = []
        for item_or_run in _runs(items):
            if isinstance(item_or_run, int):
                constant.append(item_or_run)
            elif any(isinstance(part, Slot) for part in item_or_run.parts):
                if constant:
                    made.append(Scaffold(tuple(constant)))
                    constant = []
                made.append(item_or_run)
            else:
                text = "".join(map(str, item_or_run.parts))
                constant += self._encoded(text, item_or_run.opens).ids[not item_or_run.opens :]
        return (*made, Scaffold(tuple(constant))) if constant else tuple(made)

    def encode(
        self, segment: Segment, words: Mapping[str, Sequence[str]]
    ) -> tuple[list[int], Spans]:
        """Encode a segment, words in their slots; return ids and (length, source) of spans.

        Raises:
            UnsupportedTemplate: the tokenizer makes a control token of plain text even letter by
                letter.
        """
        ids: list[int] = []
        spans: Spans = []
        for part in segment:
            if isinstance(part, Scaffold):
                ids += part.ids
                spans.append((len(part.ids), Source.SCAFFOLD))
            else:
                self._encode_run(part, words, ids, spans)
        return ids, spans

    def _encode_run(
        self,
        run: Run,
        words: Mapping[str, Sequence[str]],
        ids: list[int],
        spans: Spans,
    ) -> None:
        texts = [
            part if isinstance(part, str) else part.transform(words[part.kind][part.number])
            for part in run.parts
        ]
        try:
            encoded = self._encoded("".join(texts), run.opens)
        except TypeError:
            texts = list(map(clean_text, texts))
            encoded = self._encoded("".join(texts), run.opens)
        made = encoded.ids
        if not run.opens:
            del made[0]
        if self._pieces and not self._pieces.isdisjoint(made):
            for part, text in zip(run.parts, texts, strict=True):
                letters = self._letters(text)
                ids += letters
                spans.append((len(letters), _source(part)))
            return
        ids += made
        at = 0 if run.opens else 1
        end = 0 if run.opens else len(self._separator)
        length = end + sum(map(len, texts))
        for part, text in zip(run.parts[:-1], texts, strict=False):
            end += len(text)
            to = _tokens_before(encoded, end, length)
            spans.append((to - at, _source(part)))
            at = to
        spans.append((len(encoded) - at, _source(run.parts[-1])))

    def _encoded(self, text: str, opens: bool) -> Any:
        given = text if opens else self._separator + text
        return self._plain.encode(given, add_special_tokens=False)

    def _letters(self, text: str) -> list[int]:
        """Encode text apart, letter by letter where the vocabulary holds a control string as an
        ordinary piece."""
        whole = list(self._encoded(text, False).ids[1:])
        if self._pieces.isdisjoint(whole):
            return whole
        letters = [i for letter in text for i in self._encoded(letter, False).ids[1:]]
        if self._pieces.isdisjoint(letters):
            return letters
        raise UnsupportedTemplate(
            f"the tokenizer makes a control token of the plain text {text[:40]!r}"
        )


def _copy(backend: Any, added: Sequence[Any]) -> Any:
    """Return a tokenizer of the same model that has these added tokens, and nothing around."""
    made = type(backend)(backend.model)
    made.normalizer, made.pre_tokenizer = backend.normalizer, backend.pre_tokenizer
    made.decoder = backend.decoder
    made.add_tokens(list(added))
    return made


def _unknown_ids(model: Any) -> set[int]:
    """Return what the model makes of a character that it does not know: no control token."""
    try:
        return {token.id for token in model.tokenize("\U0010ffff")}
    except Exception:  # it has no such token and says so by an error of its own
        return set()


def _runs(items: Sequence[Item]) -> Iterator[Run | int]:
    """Yield control ids, and the runs between them."""
    parts: list[str | Slot] = []
    opens = bool(items) and items[0].start == 0
    for item in items:
        if item.control is None:
            parts.append(item.slot or item.text)
            continue
        if parts:
            yield Run(tuple(parts), opens)
        yield item.control
        parts, opens = [], False
    if parts:
        yield Run(tuple(parts), opens)


def _source(part: str | Slot) -> Source:
    return Source.SCAFFOLD if isinstance(part, str) else part.source


def _tokens_before(encoded: Any, char: int, length: int) -> int:
    """Return how many tokens start before a character of a text of `length` characters."""
    for at in range(char, length):
        token = encoded.char_to_token(at)
        if token is not None:
            return int(token) + int(encoded.token_to_chars(token)[0] < char)
    return len(encoded)
