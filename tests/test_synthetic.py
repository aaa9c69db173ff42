"""Generated rooms: repeatable, valid, solvable, and of two splits that share no wording."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from collections import Counter
from collections.abc import Iterator
from functools import cache
from itertools import combinations, islice
from pathlib import Path
from typing import Any

import pytest

import livestream_env as le
from livestream_env.room_checks import room_notes
from livestream_env.room_files import validate_room
from livestream_env.rooms import Comment, room_as_of
from livestream_env.synthetic import GeneratedRooms, make_room, parse_generated
from livestream_env.synthetic_words import PARTS, whole_grammar

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "benchmarks"))
from solvability import Checker, proof_room, tags

LANGUAGES, SPLITS, LEVELS = ("zh", "en"), ("train", "test"), (1, 2, 3)
TRADES = {"snacks", "clothing", "cosmetics", "electronics", "home", "fresh"}
every_kind = pytest.mark.parametrize(
    ("language", "split", "level"),
    [(lang, split, level) for lang in LANGUAGES for split in SPLITS for level in LEVELS],
)
by_language = pytest.mark.parametrize("language", LANGUAGES)


@cache
def made(seed: int, language: Any = "zh", split: Any = "train", level: int = 3) -> le.Room:
    return make_room(seed, language, level=level, split=split)


def skill(comment: Comment) -> str:
    return tags(comment)["skill"]


def keys(room: le.Room) -> list[Any]:
    """The comments' keys without their tags."""
    dumped = [c.model_dump(include={"expected", "follow_ups", "same_as"}) for c in room.comments]
    for key in dumped:
        del key["expected"]["provenance"]
    return dumped


# --- repeatable ------------------------------------------------------------------------------


def test_the_same_arguments_give_the_same_bytes_in_every_process() -> None:
    code = (
        "import hashlib; from livestream_env.synthetic import make_room; print(hashlib.sha256(''"
        ".join(make_room(7, language, level=3).model_dump_json() for language in ('zh', 'en'))"
        ".encode()).hexdigest())"
    )
    digests = {
        subprocess.run(
            [sys.executable, "-c", code],
            env={"PYTHONHASHSEED": seed},
            capture_output=True,
            text=True,
            check=True,
        ).stdout
        for seed in ("1", "2")
    }
    assert len(digests) == 1
    assert make_room(7).model_dump_json() == make_room(7).model_dump_json()


def test_equal_shares_give_the_same_bytes_however_they_are_written() -> None:
    rooms = [
        make_room(3, comments=2, products=2, noise=noise, chatter=chatter)
        for noise, chatter in ((0, 1), (0.0, 1.0), (-0.0, 1))
    ]
    assert len({room.model_dump_json() for room in rooms}) == 1
    first = GeneratedRooms(comments=2, products=2, noise=0.0, chatter=1.0)
    again = GeneratedRooms(comments=2, products=2, noise=0, chatter=1)
    assert first.room(3).model_dump_json() == rooms[0].model_dump_json()
    assert again.room(3).model_dump_json() == rooms[0].model_dump_json()


@by_language
def test_different_seeds_give_different_rooms(language: Any) -> None:
    rooms = [made(seed, language) for seed in range(12)]
    assert len({room.room_id for room in rooms}) == len({r.content_hash for r in rooms}) == 12
    for one, other in combinations(rooms, 2):
        names = [{product.name for product in room.products} for room in (one, other)]
        texts = [{comment.text for comment in room.comments} for room in (one, other)]
        assert len(names[0] & names[1]) < 10
        assert len(texts[0] & texts[1]) < 25


@by_language
@pytest.mark.parametrize("split", SPLITS)
def test_seeds_go_over_every_trade_and_one_to_three_shops(language: str, split: str) -> None:
    trade_of = {
        shop: trade
        for trade, words in whole_grammar("goods", language).items()
        for shop in words["shops"][split]
    }
    rooms = [made(seed, language, split, 1) for seed in range(30)]
    shops = [{str(product.merchant) for product in room.products} for room in rooms]
    assert {len(names) for names in shops} == {1, 2, 3}
    assert {trade_of[name] for names in shops for name in names} == TRADES == set(trade_of.values())


@pytest.mark.parametrize(
    ("products", "comments"), [(1, 1), (2, 3), (7, 10), (30, 60), (300, 20), (12, 300)]
)
def test_a_room_has_the_size_asked_for(products: int, comments: int) -> None:
    for language in LANGUAGES:
        room = make_room(2, language, products, comments, 3, split="test")  # type: ignore[arg-type]
        assert (len(room.products), len(room.comments)) == (products, comments)
        assert len({product.name for product in room.products}) == products
        validate_room(json.loads(room.model_dump_json(exclude_defaults=True)))


# --- valid -----------------------------------------------------------------------------------


@every_kind
def test_a_room_is_valid_and_only_unknown_values_are_noted(
    language: str, split: str, level: int
) -> None:
    for seed in range(3):
        room = made(seed, language, split, level)
        raw = json.loads(room.model_dump_json(exclude_defaults=True))
        assert validate_room(raw).content_hash == room.content_hash
        assert [n for n in room_notes(room) if "have no known" not in n] == []
        assert room.split == split


def test_a_saved_room_is_read_back_whole(tmp_path: Path) -> None:
    room = made(4)
    le.save_room(room, tmp_path / "room.json")
    assert le.load_room(tmp_path / "room.json").model_dump() == room.model_dump()


@by_language
def test_every_intent_has_a_rule_with_checks(language: str) -> None:
    used: set[str] = set()
    for seed in range(6):
        room = made(seed, language)
        rules = {rule.intent: rule for rule in room.reply_rules}
        assert all(rule.checks for rule in room.reply_rules)
        assert "*" in rules
        asked = {ask["intent"] for key in keys(room) for ask in key["expected"]["asks"]}
        assert asked <= rules.keys()
        used |= asked
    assert len(used) >= 25


def test_knobs_turn_things_off() -> None:
    plain = make_room(
        5, near_duplicates=0, noise=0, chatter=0, events=False, promotions=False, level=3
    )
    assert plain.events == plain.all_promotions == ()
    assert {skill(comment) for comment in plain.comments}.isdisjoint({"chat", "promotion"})
    assert all("noise" not in tags(comment) for comment in plain.comments)
    variants = whole_grammar("show", "zh")["variants"]
    assert not any(product.name.endswith(tuple(variants)) for product in plain.products)
    twins = make_room(5, near_duplicates=0.5)
    assert sum(p.name.endswith(tuple(variants)) for p in twins.products) >= 15
    assert sum(skill(c) == "chat" for c in make_room(5, chatter=0.5).comments) == 30


@by_language
def test_noise_changes_words_and_nothing_else(language: Any) -> None:
    for seed in range(4):
        clean = make_room(seed, language, level=3, noise=0)
        rough = make_room(seed, language, level=3, noise=1)
        assert keys(clean) == keys(rough)
        assert clean.products == rough.products
        pairs = [(a.text, b.text) for a, b in zip(clean.comments, rough.comments, strict=True)]
        assert sum(a != b for a, b in pairs) > 45
        assert all(re.findall(r"\d+", a) == re.findall(r"\d+", b) for a, b in pairs)
        rewritten = [c for c, (a, b) in zip(rough.comments, pairs, strict=True) if a != b]
        assert all("noise" in tags(comment) for comment in rewritten)


@by_language
def test_a_comment_that_repeats_another_asks_the_same(language: str) -> None:
    repeats = [
        (room.comment(c.same_as), c)
        for room in (made(seed, language) for seed in range(8))
        for c in room.comments
        if c.same_as is not None
    ]
    assert repeats
    for first, again in repeats:
        assert first.expected is not None
        assert again.expected is not None
        assert first.viewer == again.viewer
        assert first.expected.asks[0].needed == again.expected.asks[0].needed


@by_language
def test_totals_are_what_the_pieces_cost_where_nothing_is_reduced(language: Any) -> None:
    counted = 0
    for seed in range(4):
        room = make_room(seed, language, level=2, promotions=False)
        for comment in room.comments:
            if skill(comment) not in ("total_one", "total_two"):
                continue
            assert comment.expected is not None
            fact = comment.expected.asks[0].facts[0]
            held = {p.product_id: p for p in room_as_of(room, comment.at_s).room.products}
            cents = 0
            for name, pieces in fact.lines:
                prices = [held[name].lowest("price"), held[name].lowest("coupon_price")]
                paid = min(price.amount for price in prices if price and price.amount)
                cents += pieces * round(paid * 100)
            assert round(float(fact.value or 0) * 100) == cents
            counted += 1
    assert counted >= 4


# --- levels ----------------------------------------------------------------------------------


@pytest.mark.row("R77")
@by_language
@pytest.mark.parametrize("level", LEVELS)
def test_a_room_mixes_the_levels_up_to_its_own(language: str, level: int) -> None:
    counts: Counter[int] = Counter()
    for seed in range(4):
        comments = made(seed, language, "train", level).comments
        counts += Counter(int(tags(comment)["level"]) for comment in comments)
    assert set(counts) == set(range(1, level + 1))
    assert counts[level] >= 0.3 * counts.total()


def test_every_skill_occurs() -> None:
    from livestream_env.synthetic_comments import SKILLS

    wanted = {name for skills in SKILLS.values() for name in skills}
    for language in LANGUAGES:
        rooms = [made(seed, language) for seed in range(8)]
        assert {skill(comment) for room in rooms for comment in room.comments} == wanted


def look_ups(trajectory: le.Trajectory) -> list[set[str]]:
    """The tools called in each turn, rules aside."""
    turns = [{call.name for call in t.action.message.tool_calls} for t in trajectory.turns]
    return [turn - {"get_reply_rule"} for turn in turns if turn - {"get_reply_rule"}]


@pytest.mark.row("R6", "R77")
@by_language
def test_level_1_takes_one_look_up_and_level_3_takes_one_after_another(language: str) -> None:
    checker = Checker(made(1, language))
    for comment in checker.room.comments:
        turns, level = look_ups(checker.play(comment.comment_id)), tags(comment)["level"]
        if level == "1":
            assert len(turns) <= 1
            assert sum(map(len, turns)) <= 1
        if level == "3":
            assert len(turns) == 2


@pytest.mark.row("R6")
@pytest.mark.parametrize("embedder", ["lexical", "use-multilingual"])
def test_what_is_worded_otherwise_is_found_only_by_other_words(embedder: str) -> None:
    empty: Counter[bool] = Counter()
    for language, split in [(lang, split) for lang in LANGUAGES for split in SPLITS]:
        for seed in range(6 if embedder == "lexical" else 2):
            checker = Checker(made(seed, language, split), embedder)
            for comment in checker.room.comments:
                if skill(comment) == "reword":
                    first, second = checker.play(comment.comment_id).turns[:2]
                    empty[not any(result.data for result in first.results)] += 1
                    assert any(result.data for result in (*first.results, *second.results))
    assert empty[True] >= 0.95 * empty.total() > 5


def test_a_nested_question_cannot_be_answered_from_the_first_look_up() -> None:
    checker = Checker(made(2))
    nested = [c for c in checker.room.comments if skill(c) in ("cheapest_faq", "hook", "name_faq")]
    assert nested
    for comment in nested:
        first = checker.play(comment.comment_id).turns[0]
        seen = {fact.record for result in first.results for fact in result.data}
        assert comment.expected is not None
        assert not seen.issuperset(map(str, comment.expected.asks[0].needed))


# --- splits ----------------------------------------------------------------------------------


def nodes(value: Any) -> Iterator[dict[str, Any]]:
    """Every place where the data differ by split."""
    if isinstance(value, dict) and value.keys() == {"train", "test"}:
        yield value
    elif isinstance(value, dict | list):
        for one in value.values() if isinstance(value, dict) else value:
            yield from nodes(one)


def texts(value: Any) -> Iterator[str]:
    """All names and templates; values of attributes and units are common words."""
    if isinstance(value, str):
        yield value
    elif isinstance(value, dict):
        for key, one in value.items():
            if key not in ("own", "unit"):
                yield from texts(one)
    elif isinstance(value, list):
        for one in value:
            yield from texts(one)


@by_language
def test_the_splits_share_no_template_no_phrasing_and_no_name(language: str) -> None:
    held: dict[str, set[str]] = {split: set() for split in SPLITS}
    for part in PARTS:
        for node in nodes(whole_grammar(part, language)):
            for split in SPLITS:
                found = list(texts(node[split]))
                assert found
                held[split] |= set(found)
    assert held["train"] & held["test"] == set()
    assert len(held["train"]) > 500
    assert len(held["test"]) > 300


@by_language
def test_every_comment_template_is_of_one_split(language: str) -> None:
    comments, topics = whole_grammar("comments", language), whole_grammar("topics", language)
    for part in ("refs", "fragments", "skills"):
        assert all(words.keys() == {"train", "test"} for words in comments[part].values())
    assert all(words["lines"].keys() == {"train", "test"} for words in comments["spoken"].values())
    for words in topics.values():
        assert words["asks"].keys() == words["phrasings"].keys() == {"train", "test"}


@by_language
def test_rooms_of_the_two_splits_have_nothing_in_common(language: Any) -> None:
    seen: dict[str, set[str]] = {split: set() for split in SPLITS}
    for split in SPLITS:
        for seed in range(10):
            room = make_room(seed, language, level=3, split=split, noise=0)  # type: ignore[arg-type]
            seen[split] |= {comment.text for comment in room.comments}
            seen[split] |= {product.name for product in room.products}
            seen[split] |= {text for faq in room.faqs for text in (faq.question, *faq.similar)}
    assert seen["train"] & seen["test"] == set()


@by_language
def test_no_answer_reads_like_the_end_of_another(language: str) -> None:
    for words in whole_grammar("topics", language).values():
        for one, other in combinations(words["slots"]["n"], 2):
            assert not one.endswith(other)
            assert not other.endswith(one)


# --- generated:... ---------------------------------------------------------------------------


def test_a_text_names_generated_rooms() -> None:
    rooms = parse_generated("generated:level=3, language=en,split=test,noise=0,events=false")
    assert rooms == GeneratedRooms("en", level=3, split="test", noise=0, events=False)
    assert rooms.comments == 60
    assert parse_generated("generated:") == GeneratedRooms()


def test_a_seed_visits_comment_after_comment_and_room_after_room() -> None:
    rooms = GeneratedRooms(products=5, comments=4)
    expected = make_room(2, products=5, comments=4)
    room, index = rooms.find(9)  # 9 = 2 * 4 + 1
    assert room.model_dump() == expected.model_dump()
    assert index == 1
    assert rooms.room(2) is room
    first = [room.room_id for room in islice(rooms, 3)]
    assert first == [rooms.room(number).room_id for number in range(3)]


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("generated:lvel=2", "no key `lvel`.*Did you mean `level`"),
        ("generated:level=4", "`level` is 4; it is one of 1, 2, 3"),
        ("generated:level=two", "`level` is `two`; write a number"),
        ("generated:language=fr", "`language` is 'fr'; it is one of 'zh', 'en'"),
        ("generated:split=tets", "Did you mean `test`"),
        ("generated:noise=2", "`noise` is 2.0; it is a share, 0 to 1"),
        ("generated:noise=nan", "`noise` is nan; it is a share"),
        ("generated:events=maybe", "`events` is `maybe`; write true or false"),
        ("generated:products=0", "`products` is 0; it is a whole number, 1 to 300"),
        ("generated:level=1,level=2", "gives `level` twice"),
        ("bundled:train", "names no generated rooms"),
    ],
)
def test_a_wrong_text_is_refused(text: str, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        parse_generated(text)


@pytest.mark.parametrize("seed", [-1, 1.5, "3", True])
def test_a_seed_is_a_whole_number(seed: Any) -> None:
    with pytest.raises(ValueError, match="`seed` is"):
        make_room(seed)


def test_a_true_is_no_number() -> None:
    with pytest.raises(ValueError, match="`products`"):
        make_room(1, products=True)
    for level in (True, 2.0):
        with pytest.raises(ValueError, match="`level`"):
            make_room(1, level=level)  # type: ignore[arg-type]


# --- solvable --------------------------------------------------------------------------------


@pytest.mark.row("R6")
@pytest.mark.parametrize("number", range(40))
def test_the_expert_answers_every_comment_whole(number: int) -> None:
    room = proof_room(number, products=12, comments=16)
    assert Checker(room).faults() == []


@pytest.mark.parametrize("number", [0, 1, 4])
def test_the_expert_does_so_with_the_default_embedder(number: int) -> None:
    room = proof_room(number, products=12, comments=16)
    assert Checker(room, "use-multilingual").faults() == []


def test_the_checker_sees_what_is_wrong() -> None:
    checker = Checker(made(3))
    checker.agent = le.WorkflowAgent()
    faults = checker.faults()
    for kind in ("not stated", "not seen", "not the act", "rules of", "position", "hand-off"):
        assert any(kind in fault for fault in faults), kind


def test_a_product_is_found_first_by_the_name_that_viewers_use() -> None:
    for language in LANGUAGES:
        room = made(0, language)
        sandbox = le.LocalSandbox(room, embedder="lexical")
        sandbox.reset(seed=0, comments=[room.comments[0].comment_id])
        listed = room_as_of(room, room.comments[0].at_s).room.products
        for product in listed:
            call = le.Action.call("search_product_by_keyword", keyword=product.name)
            found = sandbox.call(call.message.tool_calls[0]).data
            assert found[0].record == f"product:{product.product_id}"
