"""The comments of a generated room: who asks what when, level by level.

Level 1 takes one look-up, level 2 several or a write, level 3 a second look-up that needs what the
first one found, or other words than the viewer's. Where the room cannot show a skill at that second
the next one has its turn.
"""

from __future__ import annotations

import random

from livestream_env.synthetic_goods import Raw
from livestream_env.synthetic_key import Draft, Earlier, Teller
from livestream_env.synthetic_nested import NESTED_LOOK_UPS
from livestream_env.synthetic_skills import CHATTER, ONE_LOOK_UP, SEVERAL_LOOK_UPS, Skill
from livestream_env.synthetic_words import Noise, generator
from livestream_env.synthetic_world import World, show_length

SKILLS: dict[int, dict[str, Skill]] = {
    0: CHATTER,
    1: ONE_LOOK_UP,
    2: SEVERAL_LOOK_UPS,
    3: NESTED_LOOK_UPS,
}
"""Skills by level; 0 is chatter, which counts as level 1."""
_OFTEN = {"faq": 3, "product_faq": 2, "price": 2, "stock": 2, "multi": 2, "reword": 2}
"""Skills that have more than one turn before the first comes again."""
_SHARES = {1: (1.0, 0.0, 0.0), 2: (0.4, 0.6, 0.0), 3: (0.25, 0.35, 0.4)}
"""Shares of levels 1 to 3 in a room of each level, chatter aside."""


def write_comments(
    world: World, *, seed: int, level: int, comments: int, noise: float, chatter: float
) -> list[Raw]:
    """Draw the comments of a room, in order of time."""
    key = (world.language, world.split, seed, level)
    rng, slips = generator("comments", *key), generator("noise", *key)
    teller = Teller(world, rng)
    times, levels = _times(world, comments, rng), _levels(level, comments, chatter, rng)
    writer = _Writer(teller, Noise(world.language, world.split, slips), slips, noise)
    return [writer.written(at_s, one) for at_s, one in zip(times, levels, strict=True)]


def _times(world: World, count: int, rng: random.Random) -> list[int]:
    """Draw seconds of the show, the last one its end."""
    end_s = show_length(len(world.goods))
    return [*sorted(rng.randrange(20, end_s) for _ in range(count - 1)), end_s]


def _levels(level: int, count: int, chatter: float, rng: random.Random) -> list[int]:
    """Deal out the levels of the comments, 0 for chatter."""
    chat = round(chatter * count)
    _, second, third = (round(share * (count - chat)) for share in _SHARES[level])
    levels = [0] * chat + [3] * third + [2] * min(second, count - chat - third)
    levels += [1] * (count - len(levels))
    rng.shuffle(levels)
    return levels


class _Writer:
    """Turns drafts into comments; each skill has its turn before the first comes again."""

    def __init__(self, teller: Teller, noise: Noise, slips: random.Random, share: float) -> None:
        self._teller = teller
        self._noise = noise
        self._slips = slips
        self._share = share
        self._turns = {
            level: [name for name in skills for _ in range(_OFTEN.get(name, 1))]
            for level, skills in SKILLS.items()
        }
        for skills in self._turns.values():
            teller.rng.shuffle(skills)
        self._texts: set[str] = set()
        self._count = 0

    def written(self, at_s: int, level: int) -> Raw:
        """Return the next comment, of that level or, where the room has none, of one below."""
        self._teller.go_to(at_s, self._teller.rng.choice(self._teller.show["viewers"]))
        for lower in range(level, -1, -1):
            for skill in list(self._turns[lower]):
                drafted = self._new(SKILLS[lower][skill])
                if drafted is not None:
                    self._turns[lower].remove(skill)
                    self._turns[lower].append(skill)
                    return self._comment(drafted, max(lower, 1), skill)
        repeated = SKILLS[0]["chat"](self._teller)
        assert repeated is not None
        return self._comment(repeated, 1, "chat")

    def _new(self, skill: Skill) -> Draft | None:
        """Draw from a skill until the text is new to the room."""
        for _ in range(4):
            drafted = skill(self._teller)
            if drafted is not None and drafted.text not in self._texts:
                return drafted
        return None

    def _comment(self, drafted: Draft, level: int, skill: str) -> Raw:
        self._count += 1
        text = drafted.text
        slips: tuple[str, ...] = ()
        self._texts.add(text)
        if not drafted.is_clean and self._slips.random() < self._share:
            text, slips = self._noise.roughen(text, drafted.kept)
        comment_id, viewer = f"c{self._count}", drafted.viewer or self._teller.viewer
        if drafted.asked is not None:
            self._teller.earlier.append(Earlier(comment_id, viewer, *drafted.asked))
        tags = f"level={level};skill={skill}" + (f";noise={'+'.join(slips)}" if slips else "")
        expected = {"asks": list(drafted.asks), "state": drafted.state, "provenance": tags}
        raw = {"comment_id": comment_id, "viewer": viewer, "at_s": self._teller.at_s, "text": text}
        raw |= {"expected": expected, "follow_ups": list(drafted.follow_ups)}
        return raw | {"history": drafted.history, "same_as": drafted.same_as}
