"""Whether facts support what a reply states, for the right product."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Sequence
from functools import cached_property, lru_cache
from itertools import pairwise
from typing import Literal, NamedTuple

from livestream_env.claims import Claim, find_claims
from livestream_env.services import services
from livestream_env.types import Fact, FactValue
from livestream_env.words import fold

Verdict = Literal["supported", "wrong_product", "contradicted", "unsupported"]
_PRICES = ("price.plain", "price.list", "price.from", "price.each")
_KINDS_OF_FIELD = {
    "price": _PRICES,
    "coupon_price": (*_PRICES, "price.coupon"),
    "amount": ("price.saved",),
    "cap": ("price.saved",),
    "threshold": ("price.threshold",),
}
_READ = frozenset(("absolute", "gift", "return", "shipping", "stock", "warranty"))
"""Kinds that must be read in the evidence, where their words may be denied (`不包邮`); but `no`."""
_FORBIDDING = re.compile(
    r"别(?!的|家|人)|勿|禁|莫|避免|婉拒"
    r"|不(?:要|得|许|准|可|应|该|能|说|谈|提|接|讲|报|夸|保证|承诺|许诺|答应|替|另)"
    r"|\b(?:never|do not|don['’]t|must not|may not|cannot|can['’]t|avoid|refuse|decline)\b"
    r"|\b(?:neither|nor|nothing)\b"
    r"|\bno\b(?![ -](?:charge|cost|extra|fee|question|reason)s?)"
)
"""What makes a clause of a reply rule, folded, one that says what not to say."""
_CLAUSES = re.compile(r"[，。；;：:,!！?？\n]|\.(?!\d)")


class _Known(NamedTuple):
    """One value that the evidence holds."""

    kind: str
    value: float | str
    unit: str | None
    product: str | None
    """`None`: it is about no product in particular."""
    pieces: int | None = None
    sku: str | None = None
    is_loose: bool = False
    """Read in a text that names no product: it may be about any."""
    source: str = ""
    """Of a gift, the folded text that it was read in."""


class Ground:
    """Facts and texts, indexed by what they can support.

    Args:
        texts: further texts of the host's own side, such as the script.
    """

    def __init__(
        self,
        facts: Iterable[Fact],
        language: str,
        texts: Sequence[str] = (),
    ) -> None:
        self._facts = tuple(facts)
        self._language = language
        self._texts = tuple(texts)

    @cached_property
    def products(self) -> frozenset[str]:
        """Ids of the products that the facts are about."""
        return frozenset(r[8:] for r, _, _ in self._owned if r.startswith("product:"))

    @cached_property
    def links(self) -> frozenset[int]:
        """Link numbers that the facts name."""
        return frozenset(
            fact.value
            for _, _, fact in self._owned
            if fact.field == "link_no" and isinstance(fact.value, int)
        )

    @cached_property
    def _owned(self) -> tuple[tuple[str, str | None, Fact], ...]:
        """(record, product, fact): SKUs and promotions belong to the product told before them."""
        owned, owner = [], None
        scopes = {f.record: str(f.value) for f in self._facts if f.field == "scope"}
        for fact in self._facts:
            kind, _, name = fact.record.partition(":")
            if kind == "product":
                owner = name
            elif kind not in ("sku", "promotion"):
                owner = None
            is_wide = kind == "promotion" and not scopes.get(fact.record, "").startswith("product:")
            owned.append((fact.record, None if is_wide else owner, fact))
        return tuple(owned)

    @cached_property
    def _known(self) -> dict[str, list[_Known]]:
        known: dict[str, list[_Known]] = {}
        for one in self._all_known():
            known.setdefault(one.kind, []).append(one)
        return known

    def _all_known(self) -> Iterator[_Known]:
        for record, owner, fact in self._owned:
            sku = record.partition(":")[2] if record.startswith("sku:") else None
            for one in _of_fact(fact, owner):
                yield one if sku is None else one._replace(sku=sku)
            text = fact.value if isinstance(fact.value, str) else fact.text
            if fact.field == "rule":
                read = _of_text(_allowed(text), self._language, owner)
                yield from (one for one in read if one.kind != "stock")  # `sold out is sold out`
            elif text and not _is_plain(text):
                yield from _of_text(text, self._language, owner)
        for text in self._texts:
            yield from _of_text(text, self._language, None)
        yield from self._savings()

    def _savings(self) -> Iterator[_Known]:
        """Yield what a coupon takes off: the price before less the price after."""
        prices: dict[str, dict[str, float]] = {}
        owners: dict[str, str | None] = {}
        for record, owner, fact in self._owned:
            if fact.field in ("price", "coupon_price") and _is_number(fact.value):
                prices.setdefault(record, {})[fact.field] = float(fact.value)  # type: ignore[arg-type]
                owners[record] = owner
        for record, both in prices.items():
            if len(both) == 2 and both["price"] > both["coupon_price"]:
                saved = round(both["price"] - both["coupon_price"], 2)
                yield _Known("price.saved", saved, None, owners[record])

    @cached_property
    def _words(self) -> str:
        """Every text of the evidence, folded, for words that only have to occur."""
        return "\n".join(map(fold, self._stated()))

    @cached_property
    def services(self) -> frozenset[str]:
        """The services that the evidence promises, see `services`."""
        found = [services(text, self._language) for text in self._stated()]
        return frozenset().union(*found)

    def _stated(self) -> Iterator[str]:
        """Yield what texts state: of rules, what they let a host say."""
        for _, _, fact in self._owned:
            if isinstance(fact.value, str):
                yield _allowed(fact.value) if fact.field == "rule" else fact.value
        yield from self._texts

    def verdict(self, claim: Claim) -> Verdict:
        """Return whether the evidence supports a claim."""
        kind = claim.kind
        if kind == "product" and claim.value in self.products:
            return "supported"
        if kind == "link" and claim.value in self.links:
            return "supported"
        if kind.startswith("price."):
            return self._price_verdict(claim)
        found = self._matched(claim, self._known.get(kind, ()))
        return found if found == "supported" else self._in_words(claim) or found or "unsupported"

    def _price_verdict(self, claim: Claim) -> Verdict:
        known = self._known.get(claim.kind, [])
        if claim.kind == "price.total":
            known = [one for kind in _PRICES for one in self._known.get(kind, ())]
        elif claim.kind == "price.coupon" and not self._knows_coupon(claim.product):
            known = [*known, *self._known.get("price.plain", ())]
        return self._matched(claim, known) or "unsupported"

    def _knows_coupon(self, product: str | None) -> bool:
        return any(
            fact.field == "coupon_price" and owner == product and fact.value is not None
            for _, owner, fact in self._owned
        )

    def _matched(self, claim: Claim, known: Iterable[_Known]) -> Verdict | None:
        """Return the verdict of values of the claim's kind; `None` where there is none.

        A price in a text that names no product supports one of a product that no other has.
        """
        elsewhere = other = loose = False
        known = list(known)
        by_sku = claim.sku is not None and any(one.sku == claim.sku for one in known)
        for one in known:
            is_its = None in (claim.product, one.product) or claim.product == one.product
            if by_sku:
                is_its = one.sku == claim.sku
            same = _same(claim, one)
            if same and is_its:
                if not (one.is_loose and claim.product and claim.kind.startswith("price.")):
                    return "supported"
                loose = True
            elsewhere = elsewhere or (same and not is_its)
            other = other or (is_its and one.product is not None)
        if loose and not elsewhere:
            return "supported"
        if elsewhere:
            return "wrong_product"
        return "contradicted" if other else None

    def _in_words(self, claim: Claim) -> Verdict | None:
        """Return `supported` where the very words of a claim occur whole in the evidence."""
        if claim.kind in _READ and claim.value not in ("no", "paid"):
            return None
        words = rf"(?<![0-9a-z]){re.escape(fold(claim.text))}(?![0-9a-z])"
        return "supported" if re.search(words, self._words) else None


def _of_fact(fact: Fact, owner: str | None) -> Iterator[_Known]:
    value, field = fact.value, fact.field
    if field == "stock" and _is_number(value):
        yield _Known("stock", float(value), None, owner)  # type: ignore[arg-type]
        yield _Known("stock", "in" if value else "out", None, owner)
    elif field == "rate" and _is_number(value):
        yield _Known("off", round(100 - 100 * float(value), 2), None, owner)  # type: ignore[arg-type]
    elif field in _KINDS_OF_FIELD and _is_number(value):
        for kind in _KINDS_OF_FIELD[field]:
            yield _Known(kind, float(value), None, owner)  # type: ignore[arg-type]
        if field == "threshold" and fact.unit == "piece":
            yield _Known("count", float(value), None, owner)  # type: ignore[arg-type]


@lru_cache(maxsize=16384)
def _of_text(text: str, language: str, owner: str | None) -> tuple[_Known, ...]:
    return tuple(
        _Known(
            claim.kind,
            claim.value,
            claim.unit,
            owner,
            claim.pieces,
            is_loose=owner is None,
            source=fold(text) if claim.kind == "gift" else "",
        )
        for claim in find_claims(text, language=language)
    )


def _allowed(rule: str | None) -> str:
    """Return a reply rule without the clauses that say what not to say."""
    clauses = _CLAUSES.split(rule or "")
    return "\n".join(one for one in clauses if not _FORBIDDING.search(fold(one)))


def _same(claim: Claim, known: _Known) -> bool:
    if claim.unit is not None and known.unit is not None and claim.unit != known.unit:
        return False
    if claim.pieces is not None and known.pieces is not None and claim.pieces != known.pieces:
        return False
    if claim.kind == "gift" and not _is_told_of(fold(claim.text), known.source):
        return False
    if _is_number(claim.value) and _is_number(known.value):
        tolerance = 0.02 * abs(float(known.value)) if claim.approx else 0.005
        return abs(float(claim.value) - float(known.value)) <= tolerance
    return claim.value == known.value


_ONE_WITH_ANOTHER = re.compile("买[^，,。;!?]{0,4}[送赠]|buy [a-z0-9]+,? ?(?:and )?get")
_OF_ANY_GIFT = re.compile(
    "[有会还再都就另额外加送赠品礼物附带您你咱们给一二两三四五六七八九十几半个份条只双套盒包袋瓶片张支把件的了是拍单下买满随机发免费0-9]"
    r"|\b(?:free|gifts?|get|gets|with|your?|we|throw|in|plus|a|an|the|of|one|two|three|each|every|order"
    r"|bonus|included?|comes?|for|and|to|is|it|as|also|complimentary|extra|buy|any|on|top|us)\b"
)


def _is_told_of(gift: str, source: str) -> bool:
    """Whether a text that promises a gift tells of this one: two of its characters, in English one
    of its words, stand there too; a gift that is not named is any."""
    if _ONE_WITH_ANOTHER.search(gift):
        return _ONE_WITH_ANOTHER.search(source) is not None
    named = _OF_ANY_GIFT.sub(" ", gift)
    words = [word.removesuffix("s") for word in re.findall("[a-z]{3,}", named)]
    for run in re.findall("[\u4e00-\u9fff]{2,}", named):
        words += map("".join, pairwise(run))
    return not words or any(word in source for word in words)


def _is_plain(text: str) -> bool:
    """Whether a fact is shown as its bare number, which states nothing more."""
    return text.replace(".", "", 1).isdigit()


def _is_number(value: FactValue) -> bool:
    return isinstance(value, (int, float)) and not isinstance(value, bool)
