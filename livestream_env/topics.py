"""What Chinese texts are about, whatever words they use (两个箱子装一起, of merged parcels)."""

from __future__ import annotations

import json
import math
from collections import Counter, defaultdict
from collections.abc import Iterable
from functools import lru_cache
from typing import NamedTuple

from livestream_env._resources import data_file
from livestream_env.keywords import has_han
from livestream_env.words import fold


class TopicScorer:
    """Says how far texts are about the same: 寄回去谁掏钱 and 退货的运费由谁承担 share two topics.

    A score is the cosine of their topics, of four decimals; the fewer of the texts have a topic,
    the more it counts.
    """

    def __init__(self, texts: Iterable[str]) -> None:
        held = [sorted(_topics_of(text)) for text in texts]
        counts = Counter(topic for topics in held for topic in topics)
        self._weights = {
            topic: math.log((len(held) + 1) / (count + 0.5)) ** 2 for topic, count in counts.items()
        }
        self._lengths = [self._length(topics) for topics in held]
        self._postings: defaultdict[int, list[int]] = defaultdict(list)
        for number, topics in enumerate(held):
            for topic in topics:
                self._postings[topic].append(number)

    def search(self, query: str) -> dict[int, float] | None:
        """Return the score of each text that shares a topic with the query.

        None where topics say nothing: for a query that is not Chinese, or texts that have none.
        """
        if not self._weights or not has_han(query):
            return None
        asked = sorted(topic for topic in _topics_of(query) if topic in self._weights)
        length = self._length(asked)
        found: defaultdict[int, float] = defaultdict(float)
        for topic in asked:
            for number in self._postings[topic]:
                found[number] += self._weights[topic]
        lengths = self._lengths
        return {
            number: round(part / (length * lengths[number]), 4) for number, part in found.items()
        }

    def _length(self, topics: Iterable[int]) -> float:
        return math.sqrt(sum(self._weights[topic] for topic in topics))


class _Topics(NamedTuple):
    """Words by which Chinese texts of shops and viewers show what they are about."""

    of_word: dict[str, tuple[int, ...]]
    lengths: tuple[int, ...]


@lru_cache(maxsize=1)
def _topics() -> _Topics:
    lists = json.loads(data_file("topics.json").read_text(encoding="utf-8"))["zh"]
    of_word: defaultdict[str, tuple[int, ...]] = defaultdict(tuple)
    for number, words in enumerate(lists):
        for word in words:
            of_word[word] += (number,)
    return _Topics(dict(of_word), tuple(sorted({len(word) for word in of_word})))


def _topics_of(text: str) -> set[int]:
    text, (of_word, lengths) = fold(text), _topics()
    starts = range(len(text))
    return {t for n in lengths for i in starts for t in of_word.get(text[i : i + n], ())}
