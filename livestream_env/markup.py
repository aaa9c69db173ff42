"""What a model's text may say beside its bullet: whom it answers, what it skips, speech, gestures.

`<reply to="c1,c2" gesture="wave">...</reply>` answers some of the open comments, `<skip ids="c3"/>`
leaves some alone, `<speech tone="warm">...</speech>` is said aloud; text outside is the bullet.
What is not written like this, or is quoted (“<skip ids="c3"/>”), is text.
"""

from __future__ import annotations

import re
from typing import NamedTuple

_VALUE = r"\s*=\s*(?:\"[^\"<>]*\"|'[^'<>]*')"
_OPEN = re.compile(
    r"(?<![“‘「『\"'`])"
    rf"(?:<(reply|speech)((?:\s+\w+{_VALUE})*)\s*>|<(skip)(\s+ids{_VALUE})\s*/?>(?:\s*</skip>)?)"
)
_ATTRIBUTE = re.compile(r"(\w+)\s*=\s*(?:\"([^\"<>]*)\"|'([^'<>]*)')")


class Marked(NamedTuple):
    """A reply taken apart."""

    bullet: str
    covers: tuple[str, ...]
    skips: tuple[str, ...]
    speech: str | None
    extras: dict[str, str]
    """Attributes beside `to`, by name."""


def read_markup(text: str) -> Marked | None:
    """Take a reply's text apart; `None` where it has no markup."""
    bullets: list[str] = []
    speeches: list[str] = []
    covers: list[str] = []
    skips: list[str] = []
    extras: dict[str, str] = {}
    position = 0
    found = False
    while (tag := _OPEN.search(text, position)) is not None:
        name = tag[1] or tag[3]
        closing = f"</{name}>"
        end = tag.end() if name == "skip" else text.find(closing, tag.end())
        if end < 0:
            break
        found = True
        bullets.append(text[position : tag.start()])
        given = _ATTRIBUTE.findall(tag[2] or tag[4] or "")
        attributes = {key: double or single for key, double, single in given}
        if name == "skip":
            skips += _ids(attributes["ids"])
            position = end
            continue
        covers += _ids(attributes.pop("to", ""))
        extras |= attributes
        within = text[tag.end() : end]
        if name == "reply" and (inner := read_markup(within)) is not None:
            within = inner.bullet
            covers += inner.covers
            skips += inner.skips
            extras |= inner.extras
            speeches += () if inner.speech is None else (inner.speech,)
        (bullets if name == "reply" else speeches).append(within)
        position = end + len(closing)
    if not found:
        return None
    bullets.append(text[position:])
    bullet = " ".join(part.strip() for part in bullets if part.strip())
    speech = " ".join(part.strip() for part in speeches) if speeches else None
    return Marked(bullet, tuple(dict.fromkeys(covers)), tuple(dict.fromkeys(skips)), speech, extras)


def _ids(text: str) -> list[str]:
    return [one.strip() for one in re.split(r"[,，、]", text) if one.strip()]
