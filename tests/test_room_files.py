"""Room files: what they may hold, how they fail, how they are written and found."""

from __future__ import annotations

import copy
import json
import re
import shutil
import subprocess
import sys
from collections import Counter
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import livestream_env as le
from livestream_env import rooms as schema
from livestream_env.errors import RoomError, RoomNotFound
from livestream_env.room_checks import check_references, room_notes
from livestream_env.room_files import (
    expected_counts,
    find_rooms,
    json_path,
    read_room,
    validate_room,
)
from livestream_env.rooms import Room, room_as_of

ROOT = Path(__file__).resolve().parents[1]
FIXTURES = ROOT / "fixtures" / "rooms"
Raw = dict[str, Any]

SHOP: Raw = {
    "room_id": "shop",
    "language": "zh",
    "products": [
        {
            "product_id": "p1",
            "link_no": 1,
            "name": "茶杯",
            "merchant": "瓷坊",
            "price": 39,
            "stock": 3,
            "attributes": {"产地": "龙泉"},
            "images": ["front", "back"],
        },
        {
            "product_id": "p2",
            "link_no": 2,
            "name": "外套",
            "skus": [{"sku_id": "2-M", "price": 99}, {"sku_id": "2-L", "price": 99, "stock": 8}],
        },
    ],
    "faqs": [{"faq_id": "f1", "question": "几天发货", "answer": "两天内"}],
    "script": [{"segment_id": "s1", "start_s": 0, "end_s": 9, "text": "先看茶杯"}],
    "reply_rules": [{"rule_id": "r1", "intent": "价格", "rule": "报价"}],
    "promotions": [{"promotion_id": "full", "kind": "full_reduction", "amount": 5}],
    "comments": [{"comment_id": "c1", "viewer": "小王", "at_s": 5, "text": "多少钱"}],
}


def shop(**changes: Any) -> Raw:
    return copy.deepcopy({**SHOP, **changes})


def comment(**values: Any) -> Raw:
    return {"comment_id": "c9", "viewer": "v", "at_s": 8, "text": "t", **values}


def asking(**ask: Any) -> list[Raw]:
    """The comments of a room whose last one expects this ask."""
    expected = {"asks": [{"intent": "价格", **ask}]}
    return [*SHOP["comments"], comment(expected=expected)]


def with_product(**values: Any) -> Raw:
    """The shop with changes to its first product."""
    return shop(products=[{**SHOP["products"][0], **values}, SHOP["products"][1]])


def with_event(kind: str, target: str, value: Any = None, at_s: float = 1) -> Raw:
    return shop(events=[{"at_s": at_s, "kind": kind, "target": target, "value": value}])


def with_script(**values: Any) -> Raw:
    return shop(script=[{**SHOP["script"][0], **values}])


def with_ask(**ask: Any) -> Raw:
    return shop(comments=asking(**ask))


def with_follow_up(**values: Any) -> Raw:
    return with_comment(follow_ups=[{"text": "t", **values}])


def with_promotion(**values: Any) -> Raw:
    return shop(promotions=[{"promotion_id": "x", "kind": "gift", **values}])


ASK = "comments[1].expected.asks[0]"


def with_comment(**values: Any) -> Raw:
    return shop(comments=[*SHOP["comments"], comment(**values)])


def with_state(state: Any) -> Raw:
    return with_comment(expected={"state": state})


def with_fact(**fact: Any) -> Raw:
    return shop(comments=asking(facts=[fact]))


TARGET, VALUE = "events[0].target", "events[0].value"
FOLLOW_UP = "comments[1].follow_ups[0]"
FACT = f"{ASK}.facts[0]"
STATE = "comments[1].expected.state"


def faults(raw: Any) -> dict[str, str]:
    """Problem and remedy of each fault, by path; no path may have two."""
    with pytest.raises(RoomError) as raised:
        validate_room(raw)
    issues = raised.value.issues
    paths = Counter(issue.path for issue in issues)
    assert all(times == 1 for times in paths.values()), paths
    return {issue.path: f"{issue.problem}; {issue.remedy}" for issue in issues}


def write(path: Path, raw: Any, encoding: str = "utf-8") -> Path:
    path.write_bytes(json.dumps(raw, ensure_ascii=False, indent=1).encode(encoding))
    return path


def failure(path: Path, **options: Any) -> str:
    with pytest.raises(RoomError) as raised:
        le.load_room(path, **options)
    text = str(raised.value)
    assert str(path) in text
    assert len(raised.value.issues) >= 1
    return text


# --- bytes and encodings (D3, D4) -------------------------------------------------------------


@pytest.mark.parametrize(
    "change",
    [
        pytest.param(lambda data: b"\xef\xbb\xbf" + data, id="BOM"),
        pytest.param(lambda data: data.replace(b"\n", b"\r\n"), id="CRLF"),
        pytest.param(lambda data: b"\xef\xbb\xbf" + data.replace(b"\n", b"\r\n"), id="both"),
        pytest.param(lambda data: data + b"\n \n\n", id="blank lines"),
    ],
)
def test_a_file_saved_by_notepad_is_read(tmp_path: Path, change: Any) -> None:
    path = write(tmp_path / "shop.json", SHOP)
    path.write_bytes(change(path.read_bytes()))
    assert le.load_room(path) == validate_room(SHOP)
    assert le.load_room(path, encoding="utf-8") == validate_room(SHOP)


@pytest.mark.parametrize("encoding", ["gbk", "gb18030"])
def test_another_encoding_is_named_with_line_and_remedy(tmp_path: Path, encoding: str) -> None:
    path = write(tmp_path / "shop.json", SHOP, encoding)
    lines = path.read_bytes().split(b"\n")
    first = next(i for i, line in enumerate(lines, 1) if not line.isascii())
    text = failure(path)
    assert f"line {first} is not UTF-8" in text
    assert "encoding='gb18030'" in text
    assert le.load_room(path, encoding=encoding) == validate_room(SHOP)


@pytest.mark.parametrize("encoding", ["utf-16", "utf-16-le", "utf-16-be", "utf-32"])
def test_utf_16_is_named(tmp_path: Path, encoding: str) -> None:
    path = write(tmp_path / "shop.json", SHOP, encoding)
    text = failure(path)
    assert "line 1 is UTF-" in text
    assert f"encoding='{encoding[:6]}'" in text
    assert le.load_room(path, encoding=encoding) == validate_room(SHOP)


@pytest.mark.parametrize("encoding", ["no-such", "hex", "a\0b"])
def test_an_encoding_that_is_none_is_an_error(tmp_path: Path, encoding: str) -> None:
    text = failure(write(tmp_path / "shop.json", SHOP), encoding=encoding)
    assert "name an encoding of text" in text


def test_the_wrong_encoding_is_an_error_with_its_line(tmp_path: Path) -> None:
    path = write(tmp_path / "shop.json", SHOP)
    assert re.search("line [0-9]+ is not ascii", failure(path, encoding="ascii"))


def test_rooms_are_read_and_written_in_a_locale_without_utf_8(tmp_path: Path) -> None:
    path = write(tmp_path / "shop.json", SHOP)
    copied = tmp_path / "copy.json"
    code = (
        "import sys, livestream_env as le; room = le.load_room(sys.argv[1]);"
        "le.save_room(room, sys.argv[2]); print(ascii(room.products[0].name), le.list_rooms())"
    )
    done = subprocess.run(
        [sys.executable, "-W", "error", "-c", code, str(path), str(copied)],
        env={"LANG": "C", "LC_ALL": "C", "PYTHONUTF8": "0", "PYTHONCOERCECLOCALE": "0"},
        capture_output=True,
        text=True,
        check=True,
    )
    assert done.stdout.strip() == f"{'茶杯'!a} {le.list_rooms()}"
    assert le.load_room(copied) == validate_room(SHOP)


# --- text (D5, D6) ----------------------------------------------------------------------------


ODD = [chr(code) for code in (*range(0x20), 0x7F, 0x85, 0x9B, 0x2028, 0x2029, 0x202E, 0xFEFF)]


@pytest.mark.parametrize("odd", ODD, ids=ascii)
def test_any_character_survives_a_file(tmp_path: Path, odd: str) -> None:
    text = f"a{odd}b{odd}"
    raw = shop(comments=[{**SHOP["comments"][0], "text": text, "viewer": text}], title=text)
    room = le.load_room(write(tmp_path / "in.json", raw))
    assert (room.title, room.comments[0].text, room.comments[0].viewer) == (text, text, text)
    le.save_room(room, tmp_path / "out.json")
    le.save_room(le.load_room(tmp_path / "out.json"), tmp_path / "again.json")
    assert le.load_room(tmp_path / "out.json") == room
    assert (tmp_path / "out.json").read_bytes() == (tmp_path / "again.json").read_bytes()


def test_lone_surrogates_are_replaced_and_noted(tmp_path: Path) -> None:
    path = tmp_path / "shop.json"
    raw = shop(title="a\ud800", provenance={"\udc00": ["\ud800", "\ud83d\ude00"]})
    path.write_text(json.dumps(raw), encoding="utf-8")
    report = read_room(path)
    assert report.room.title == "a\ufffd"
    assert report.room.provenance == {"\ufffd": ["\ufffd", "😀"]}
    assert "3 texts held lone surrogates, now U+FFFD" in report.notes
    assert report.room.content_hash == validate_room(raw).content_hash


def test_full_width_digits_are_kept_as_shown(tmp_path: Path) -> None:
    mug = {"product_id": "ｐ１", "name": "杯", "price": "２９９元", "barcode": "２００"}
    room = le.load_room(write(tmp_path / "r.json", shop(products=[mug])))
    (product,) = room.products
    assert (product.product_id, product.barcode) == ("ｐ１", "２００")
    assert product.price is not None
    assert (product.price.raw, product.price.amount) == ("２９９元", 299.0)


def test_faults_show_hostile_text_escaped() -> None:
    found = faults(shop(faqs=[{**SHOP["faqs"][0], "scope": "product:\x1b[31m\u202e\n" + "x" * 99}]))
    assert r"\x1b[31m\u202e\n" in found["faqs[0].scope"]
    assert len(found["faqs[0].scope"]) < 200
    assert faults(shop(**{"\x1b[2J": 1})).keys() == {'["\\\\x1b[2J"]'}


# --- prices (D1, D2) --------------------------------------------------------------------------


D1 = ["无报价", "面议", "", "-"]


@pytest.mark.parametrize("price", [*D1, None])
def test_a_price_that_is_not_known_stays_unknown_and_is_counted(tmp_path: Path, price: Any) -> None:
    path = write(tmp_path / "r.json", with_product(price=price))
    room, notes = read_room(path)
    given = room.products[0].price
    assert given is None if price is None else given is not None and given.raw == price
    assert given is None or given.amount is None
    assert "1 of 3 variants have no known `price`" in notes
    assert "3 of 3 variants have no known `coupon_price`" in notes
    assert "1 of 3 variants have no known `stock`" in notes
    le.save_room(room, path)
    assert le.load_room(path) == room


D2: list[tuple[str, str, float]] = [
    ("¥59.9起", "from", 59.9),
    ("59.9-79.9", "range", 59.9),
    ("券后¥49 原价¥99", "coupon", 49),
    ("2件99", "bundle", 99),
    ("3件9.9元", "bundle", 9.9),
    ("¥1.2万", "amount", 12000),
    ("２９９元", "amount", 299),
    ("￥1,299.00", "amount", 1299),
    ("¥ 59 .9", "amount", 59.9),
]


@pytest.mark.parametrize(("text", "kind", "amount"), D2)
def test_a_price_text_is_kept_beside_its_meaning(
    tmp_path: Path, text: str, kind: str, amount: float
) -> None:
    room = le.load_room(write(tmp_path / "r.json", with_product(price=text)))
    for loaded in (room, validate_room(room.model_dump(mode="json"))):
        price = loaded.products[0].price
        assert price is not None
        assert (price.raw, price.kind, price.amount) == (text, kind, amount)


def test_a_price_beyond_all_numbers_is_unknown(tmp_path: Path) -> None:
    room, notes = read_room(write(tmp_path / "r.json", with_product(price=10**400)))
    assert room.products[0].price is not None
    assert room.products[0].price.amount is None
    assert "1 of 3 variants have no known `price`" in notes
    assert validate_room(with_product(price=float("nan"))).products[0].price.amount is None  # type: ignore[union-attr]


# --- files that are no rooms ------------------------------------------------------------------


@pytest.mark.parametrize(
    ("text", "said"),
    [
        pytest.param("", "the file is empty", id="empty"),
        pytest.param(" \n\t\n", "the file is empty", id="blank"),
        pytest.param("[]", r"\$: holds a list; a room is one JSON object", id="list"),
        pytest.param('"x"', "holds a text", id="text"),
        pytest.param("null", "holds null", id="null"),
        pytest.param("5", "holds a `int`", id="number"),
        pytest.param('{"a": 1,\n "b": }', "line 2, column 7", id="no value"),
        pytest.param('{"a": 1,\n "b": [1,', "line 2, column 10.*ends too early", id="cut"),
        pytest.param("{'a': 1}", "line 1, column 2", id="single quotes"),
        pytest.param("[" * 100_000, "recursion|nested", id="deep list"),
        pytest.param('{"a": ' * 100_000, "recursion|nested", id="deep object"),
        pytest.param('{"a": ' + "9" * 5000 + "}", "4300 digits", id="huge number"),
    ],
)
def test_a_file_that_holds_no_room_says_so(tmp_path: Path, text: str, said: str) -> None:
    path = tmp_path / "room.json"
    path.write_text(text, encoding="utf-8")
    assert re.search(said, failure(path))


def test_a_cut_room_says_where_it_ends(tmp_path: Path) -> None:
    path = write(tmp_path / "shop.json", SHOP)
    path.write_bytes(path.read_bytes()[:300])
    assert re.search(r"line \d+, column \d+", failure(path))


def test_numbers_that_json_does_not_have_are_named_by_path(tmp_path: Path) -> None:
    text = json.dumps(shop(provenance={"a b": [float("nan")]}, limits={"speech_s": float("inf")}))
    path = tmp_path / "shop.json"
    path.write_text(text.replace('"at_s": 5', '"at_s": 1e999'), encoding="utf-8")
    with pytest.raises(RoomError) as raised:
        le.load_room(path)
    found = {issue.path: issue.problem for issue in raised.value.issues}
    assert found == {
        'provenance["a b"][0]': "`NaN` is no number of JSON",
        "limits.speech_s": "`Infinity` is no number of JSON",
        "comments[0].at_s": "`1e999` is no number of JSON",
    }


def test_a_key_that_occurs_twice_is_named_by_path(tmp_path: Path) -> None:
    text = json.dumps(SHOP, ensure_ascii=False).replace('"stock": 3', '"stock": 3, "stock": 4')
    path = tmp_path / "shop.json"
    path.write_text(text.replace('"title"', '"room_id"'), encoding="utf-8")
    assert "products[0].stock: the key occurs twice; keep one" in failure(path)


def test_nesting_that_no_room_needs_is_refused(tmp_path: Path) -> None:
    nested: Any = "x"
    for _ in range(200):
        nested = [nested]
    found = faults(shop(provenance={"deep": nested}))
    assert found.keys() == {"provenance.deep[0]"}
    for _ in range(3):
        validate_room(shop(provenance={"deep": [[[["fine"]]]]}))


def test_a_folder_is_no_file(tmp_path: Path) -> None:
    with pytest.raises(RoomNotFound, match="is a folder"):
        le.load_room(tmp_path)


def test_a_file_that_cannot_be_read_says_so() -> None:
    unreadable = Path("/proc/self/mem")
    if not unreadable.is_file():
        pytest.skip("no /proc here")
    assert "the file cannot be read (" in failure(unreadable)
    with pytest.raises(RoomError, match="check that it is there"):
        read_room("/no/such/file.json")


@pytest.mark.parametrize("name", ["snak", "snacks.json", "apparrel"])
def test_a_missing_room_is_named_with_the_nearest(name: str) -> None:
    with pytest.raises(RoomNotFound, match=r"Did you mean `(snacks|apparel)`"):
        le.load_room(name)


@pytest.mark.parametrize("name", ["", "x" * 5000, "a\0b", "zzz", "\x1b[2J"])
def test_any_name_is_a_room_or_not_found(name: str) -> None:
    with pytest.raises(RoomNotFound, match="no room file and no bundled room") as raised:
        le.load_room(name)
    assert "\x1b" not in str(raised.value)
    assert len(str(raised.value)) < 600


def test_a_changed_file_is_read_anew(tmp_path: Path) -> None:
    path = write(tmp_path / "shop.json", shop(title="aaa"))
    first = le.load_room(path)
    assert le.load_room(path) is first
    write(path, shop(title="bbb"))
    assert le.load_room(path).title == "bbb"
    assert le.load_room(first) is first


# --- faults -----------------------------------------------------------------------------------


def test_all_faults_are_told_at_once_with_exact_paths() -> None:
    raw = shop(
        titel="x",
        products=[
            "no product",
            {"product_id": "p1", "商品名": "杯", "商家名": "瓷坊", "stok": 1, "price": [1]},
            {"product_id": "p2", "name": "n", "link_no": 7, "attributes": {"a b": 1, "c": "d"}},
            {"product_id": "p3", "name": "n", "link_no": 7},
            {"product_id": "p4", "name": "n", "link_no": 7},
        ],
        faqs=[
            {"faq_id": "f1", "question": "q", "answer": "a", "scope": "merchant:瓷坊"},
            {"faq_id": "f2", "question": "q", "scope": "product:p1"},
            {"faq_id": "f2", "question": "q", "answer": "a", "scope": "product:p9"},
        ],
        events=[{"at_s": "x", "kind": "stock", "target": "product:p1"}],
        comments=[comment(current_product="p8"), comment(comment_id="c2", at_s=True)],
        reply_rules=[{"rule_id": "r1", "intent": "价格"}],
    )
    raw["comments"][0]["expected"] = {"asks": [{"intent": "价格", "needed": ["faq:f3"]}]}
    found = faults(raw)
    assert found.keys() == {
        "titel",
        "products[0]",
        "products[1].stok",
        "products[1].price",
        'products[2].attributes["a b"]',
        "products[4].link_no",
        "faqs[1].answer",
        "faqs[2].faq_id",
        "faqs[2].scope",
        "events[0].at_s",
        "comments[0].current_product",
        "comments[0].expected.asks[0].needed[0]",
        "comments[1].at_s",
        "reply_rules[0].rule",
    }
    assert found["titel"].endswith("Did you mean `title`?")
    assert found["products[1].stok"].endswith("Did you mean `stock`?")
    assert found["products[4].link_no"].startswith("link number `7` stands at products[3].link_no")
    assert found["faqs[2].faq_id"].startswith("the id `f2` stands at faqs[1].faq_id already")
    assert found["faqs[1].answer"] == "is missing; add it"
    assert found['products[2].attributes["a b"]'] == "got 1; should be a valid text"


def test_the_error_lists_source_count_and_faults() -> None:
    with pytest.raises(RoomError) as raised:
        validate_room({"language": "zh"}, source="mine")
    assert str(raised.value) == "`mine` has 1 fault:\n  room_id: is missing; add it"
    with pytest.raises(ValueError, match="holds a list"):
        validate_room([])  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("path", "raw", "said"),
    [
        ("language", shop(language="fr"), "'zh' or 'en'"),
        ("products", shop(products="x"), 'got "x"; should be a valid list'),
        ("products[0].商品名称", with_product(商品名称="x"), "Did you mean `商品名`"),
        ("products[0].商品名", with_product(商品名="x"), "stands under `name` too"),
        ("products[0].stock", with_product(stock=-1), "greater than or equal to 0"),
        ("products[0].stock", with_product(stock="有货"), 'got "有货"'),
        ("products[0].stock", with_product(stock=True), "got true, which is no number"),
        ("products[0].price", with_product(price={}), "not `dict`"),
        ("products[0].name", with_product(name=""), "at least 1"),
        ("products[0].product_id", with_product(product_id=3), "should be a valid text"),
        (
            "events[0].value",
            shop(events=[{"at_s": 1, "kind": "price", "target": "product:p1", "value": []}]),
            "valid integer or a valid number or a valid text",
        ),
        (
            "comments[0].follow_ups[0].when",
            shop(comments=[comment(follow_ups=[{"text": "t", "when": "身高"}])]),
            "should be a valid list or 'always'",
        ),
        (
            "comments[0].expected.state",
            shop(comments=[comment(expected={"state": 3})]),
            "JSON object or a valid list",
        ),
        (f"{ASK}.fact", with_ask(fact=[]), "`facts`"),
        (f"{ASK}.acts", with_ask(acts=[]), "no act would be right"),
        (f"{ASK}.acts[0]", with_ask(acts=["say"]), "'answer'"),
        (
            "reply_rules[0].checks[0]",
            shop(reply_rules=[{**SHOP["reply_rules"][0], "checks": [{"kind": "must_mention"}]}]),
            "needs `any_of`",
        ),
        (
            "reply_rules[0].checks[0]",
            shop(reply_rules=[{**SHOP["reply_rules"][0], "checks": [{"kind": "max_characters"}]}]),
            "needs `limit`",
        ),
        (
            "script[0]",
            with_script(end_s=-1),
            "lies before `start_s`",
        ),
        ("provenance", shop(provenance={"a": {1}}), "JSON cannot hold"),
        ("title", shop(title={1}), "got {1}; should be a valid text"),
    ],
)
def test_a_fault_of_a_value_has_path_and_remedy(path: str, raw: Raw, said: str) -> None:
    found = faults(raw)
    assert found.keys() == {path}
    assert said in found[path]


@pytest.mark.parametrize(
    ("path", "raw", "said"),
    [
        ("faqs[0].scope", shop(faqs=[{**SHOP["faqs"][0], "scope": "shop"}]), "use `room`"),
        ("faqs[0].scope", shop(faqs=[{**SHOP["faqs"][0], "scope": "product"}]), "use `room`"),
        (
            "reply_rules[0].scope",
            shop(reply_rules=[{**SHOP["reply_rules"][0], "scope": "merchant:瓷店"}]),
            "no merchant `瓷店`",
        ),
        ("script[0].product_id", with_script(product_id="p"), "no product"),
        (
            "reply_rules[1].intent",
            shop(reply_rules=[*SHOP["reply_rules"], {**SHOP["reply_rules"][0], "rule_id": "r"}]),
            "stands at reply_rules[0].intent already",
        ),
        (
            "products[1].price",
            shop(products=[SHOP["products"][0], {**SHOP["products"][1], "price": 9}]),
            "takes this from them",
        ),
        (
            "products[0].skus[0].sku_id",
            with_product(product_id="p9", stock=None, price=None, skus=[{"sku_id": "p2"}]),
            "also the id of a product",
        ),
        ("products[0].attributes.stock", with_product(attributes={"stock": "x"}), "own field"),
        (
            "products[0].promotions[0].promotion_id",
            with_product(promotions=[{"promotion_id": "full", "kind": "gift"}]),
            "",
        ),
        (
            "products[0].promotions[0].scope",
            with_product(promotions=[{"promotion_id": "g", "kind": "gift", "scope": "product:x"}]),
            "no product `x`",
        ),
        (
            "promotions[0].ends_s",
            with_promotion(starts_s=5, ends_s=5),
            "never holds",
        ),
        ("promotions[0].scope", with_promotion(scope="x"), "use `room`"),
        # events
        (TARGET, with_event("stock", "p9", 1), "`sku:ID`"),
        (TARGET, with_event("listed", "sku:2-M"), "`product:ID`"),
        (TARGET, with_event("listed", "product:p3"), "Did you"),
        (TARGET, with_event("stock", "product:p2"), "name the SKU"),
        (TARGET, with_event("promotion", "promotion:ful"), "`full`"),
        (VALUE, with_event("stock", "sku:2-M", 1.5), "whole"),
        (VALUE, with_event("stock", "sku:2-M", -1), "whole"),
        (VALUE, with_event("stock", "sku:2-M", True), "true"),
        (VALUE, with_event("price", "sku:2-M", False), "false"),
        (VALUE, with_event("order", "product:p1", 0), "from 1"),
        (VALUE, with_event("order", "product:p1"), "got null"),
        (VALUE, with_event("image", "product:p1", "top"), "`front`, `back`"),
        (VALUE, with_event("image", "product:p2", "top"), "no `images`"),
        (VALUE, with_event("promotion", "promotion:full", "no"), "write true"),
        (VALUE, with_event("listed", "product:p1", 1), "no value"),
        # comments
        ("comments[1].comment_id", with_comment(comment_id="c2,c3"), "cannot stand in"),
        ("comments[1].current_product", with_comment(current_product="p3"), "no product"),
        ("comments[1].same_as", with_comment(same_as="c2"), "no comment `c2`"),
        ("comments[1].same_as", with_comment(same_as="c9"), "`c9` -> `c9`: a comment"),
        ("comments[1].same_as", with_comment(same_as="c1", at_s=2), "is later, at 5"),
        (f"{FOLLOW_UP}.when", with_follow_up(when=[]), "always"),
        (f"{FOLLOW_UP}.when", with_follow_up(when=[" "]), "any question"),
        ("comments[1].follow_ups", with_comment(follow_ups=[{"text": "t"}], expected={}), "`ask`"),
        (
            f"{FOLLOW_UP}.expected.asks[0].intent",
            with_follow_up(expected={"asks": [{"intent": "价钱"}]}),
            "Did you mean `价格`",
        ),
        # the key
        (f"{ASK}.needed[0]", with_ask(needed=["faq f1"]), "`faq:ID`"),
        (f"{ASK}.needed[0][1]", with_ask(needed=[["faq:f1", "faq:f3"]]), "`f1`"),
        (f"{ASK}.needed[0]", with_ask(needed=[[]]), "empty list"),
        (FACT, with_fact(), "no record and no text"),
        (FACT, with_fact(record="faq:f1"), "no field"),
        (FACT, with_fact(kind="absent"), "give `text`"),
        (FACT, with_fact(kind="compare", record="product:p1", field="price"), "`other`"),
        (FACT, with_fact(record="quote", field="total"), "without the other"),
        (FACT, with_fact(record="product:p1", field="price", lines=[["p1", 1]]), "without the"),
        (f"{FACT}.record", with_fact(record="sku:2-X", field="stock"), "`2-"),
        (f"{FACT}.field", with_fact(record="product:p1", field="coupon"), "`coupon_price`"),
        (f"{FACT}.field", with_fact(record="faq:f1", field="reply"), "no field `reply`"),
        (f"{FACT}.lines[0][0]", with_fact(record="quote", lines=[["2-S", 1]]), "no product or"),
        (f"{FACT}.lines[0][1]", with_fact(record="quote", lines=[["2-M", 0]]), "1 or more"),
        # states
        (STATE, with_state({}), "says nothing"),
        (STATE, with_state({"product": "p1"}), "says nothing"),
        (f"{STATE}.link_no", with_state({"link_no": 1, "handed_off": True}), "by id as `product`"),
        (f"{STATE}.handedoff", with_state({"handedoff": True, "handed_off": True}), "`handed_off`"),
        (f"{STATE}.handed_off", with_state({"handed_off": "yes"}), "write true"),
        (f"{STATE}.product", with_state({"position": 1}), "got null"),
        (f"{STATE}.product", with_state({"product": 1, "position": 1}), "by id"),
        (f"{STATE}.product", with_state({"product": "p3", "position": 1}), "no product"),
        (f"{STATE}.position", with_state({"product": "p1", "position": 0}), "from 1"),
        (f"{STATE}.position_at_most", with_state({"product": "p1", "position_at_most": 3}), "most"),
        (f"{STATE}.position", with_state({"product": "p1", "position": "1"}), "got `1`"),
        (f"{STATE}.image", with_state({"product": "p1", "image": "side"}), "`front`, `back`"),
        (f"{STATE}.image", with_state({"product": "p1", "image": ["front"]}), "name one"),
        (STATE, with_state(["p1", "p1"]), "names a product twice"),
        (f"{STATE}[1]", with_state(["p1", "p3"]), "no product"),
    ],
)  # fmt: skip
def test_a_fault_between_parts_has_path_and_remedy(path: str, raw: Raw, said: str) -> None:
    found = faults(raw)
    assert found.keys() == {path}
    assert said in found[path]


def test_a_circle_of_repeats_is_named_on_each_of_its_comments() -> None:
    circle = [comment(comment_id=f"c{i}", same_as=f"c{(i + 1) % 3}") for i in range(3)]
    tail = comment(comment_id="c7", same_as="c0")
    found = faults(shop(comments=[*circle, tail]))
    assert found.keys() == {f"comments[{i}].same_as" for i in range(3)}
    assert found["comments[0].same_as"].startswith("`c0` -> `c1` -> `c2` -> `c0`: ")


def test_what_may_be_meant_is_no_fault() -> None:
    last_resort = {"rule_id": "r2", "intent": "*", "rule": "x"}
    own = {"product_id": "own", "name": "n", "skus": [{"sku_id": "own", "price": 5}]}
    validate_room(
        shop(
            products=[*SHOP["products"], own],
            reply_rules=[*SHOP["reply_rules"], last_resort],
            events=[
                {"at_s": -5, "kind": "stock", "target": "sku:own"},
                {"at_s": 9999, "kind": "price", "target": "product:p1", "value": "待定"},
                {"at_s": 1, "kind": "promotion", "target": "promotion:full"},
            ],
            promotions=[
                {**SHOP["promotions"][0], "stacks_with": ["no such", "coupon"], "ends_s": 3},
                {"promotion_id": "x", "kind": "a kind of its own"},
            ],
            comments=[
                *asking(
                    intent="别的",
                    facts=[
                        {"kind": "unknown", "record": "product:p1", "field": "保修"},
                        {"kind": "absent", "text": ["茶壶"]},
                        {"record": "product:p1", "field": "产地"},
                        {"text": ["两天内"]},
                        {"record": "quote", "lines": [["own", 2], ["p1", 1]]},
                    ],
                    needed=["product:p1", ["sku:2-M", "comment:c1", "rule:r1", "script:s1"]],
                ),
                comment(comment_id="c10", same_as="c1", follow_ups=[{"text": "t"}]),
                comment(comment_id="c11", expected={"state": ["p2", "p1"]}),
                comment(comment_id="c12", expected={"state": {"product": "p1", "image": "front"}}),
            ],
        )
    )


def test_references_of_a_room_made_in_python_are_checked_too() -> None:
    assert check_references(validate_room(SHOP)) == []
    room = validate_room(SHOP).model_copy(update={"products": ()})
    assert [issue.path for issue in check_references(room)] == []
    broken = Room.model_validate(with_event("listed", "product:p9"))
    assert [issue.path for issue in check_references(broken)] == [TARGET]


def test_thousands_of_references_are_checked_without_delay() -> None:
    dangling = [comment(comment_id=f"c{i}", same_as=f"d{i}") for i in range(5000)]
    assert len(faults(shop(comments=dangling))) == 5000
    chain = [comment(comment_id=f"c{i}", same_as=f"c{i - 1}" if i else None) for i in range(5000)]
    assert len(validate_room(shop(comments=chain)).comments) == 5000


@pytest.mark.parametrize(
    ("parts", "path"),
    [
        (["products", 3, "price"], "products[3].price"),
        (["products", 0, "attributes", "产地"], "products[0].attributes.产地"),
        (["a b", "c.d"], '["a b"]["c.d"]'),
        ([], "$"),
    ],
)
def test_a_path_is_written_as_json_path(parts: list[str | int], path: str) -> None:
    assert json_path(parts) == path


# --- notes ------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("raw", "note"),
    [
        (
            with_promotion(kind="coupon"),
            "promotion `x` does not say how much it takes off: totals with it are unknown",
        ),
        (
            with_promotion(kind="coupon", amount=1, rate=0.1),
            "promotion `x` does not say how much it takes off: totals with it are unknown",
        ),
        (
            with_promotion(kind="nth_piece", rate=0.5),
            "promotion `x` does not say how many pieces it is for: totals with it are unknown",
        ),
        (
            with_promotion(kind="bundle", rate=0.5),
            "promotion `x` does not say how much it takes off and how many pieces it is for:"
            " totals with it are unknown",
        ),
        (
            with_event("listed", "product:p1", at_s=6),
            "1 of 1 events come after the last comment, at 5.0 s",
        ),
        (
            shop(
                reply_rules=[{"rule_id": "r", "intent": "*", "rule": "x"}],
                comments=asking(intent="价钱"),
            ),
            "intent `价钱`, expected 1 times, has only the rule of last resort",
        ),
        (
            with_ask(acts=["ask"]),
            "comments[1]: an ask back names no slot in `ask_for`: any question will do",
        ),
        (
            {
                **with_comment(current_product="p1"),
                "events": [{"at_s": 1, "kind": "withdrawn", "target": "product:p1"}],
            },
            "comments[1]: its current product `p1` is not in the room at 8.0 s",
        ),
        (
            with_ask(extras=[{"record": "product:p1", "field": "coupon"}]),
            "comments[1]: `product:p1` has no field `coupon`; name one it has."
            " Did you mean `coupon_price`?",
        ),
        (
            with_fact(kind="unknown", record="product:p1", field="stock"),
            "comments[1]: `stock` of `product:p1` is known then, 3",
        ),
        (
            {
                **with_fact(record="sku:2-L", field="stock", value=8),
                "events": [{"at_s": 8, "kind": "stock", "target": "sku:2-L", "value": 0}],
            },
            "comments[1]: `stock` of `sku:2-L` is 0 then, not 8",
        ),
    ],
)
def test_what_may_not_be_meant_is_noted(raw: Raw, note: str) -> None:
    assert note in list(room_notes(validate_room(raw)))


@pytest.mark.parametrize("name", le.list_rooms())
def test_a_bundled_room_has_notes_on_unknown_values_only(name: str) -> None:
    room, notes = read_room(FIXTURES / f"{name}.json")
    assert room.room_id == name
    if name != "thrift":  # one of its promotions does not say what it takes off
        assert all("variants have no known" in note for note in notes)


@pytest.mark.row("R92")
def test_the_parts_of_the_key_are_counted_by_comment() -> None:
    asks = [{"intent": "价格", "needed": ["faq:f1"], "acts": ["ask"], "ask_for": ["颜色"]}]
    facts = [{"intent": "价格", "facts": [{"text": ["x"]}]}]
    room = validate_room(
        shop(
            comments=[
                *SHOP["comments"],
                comment(comment_id="c2", expected={"asks": asks}, follow_ups=[{"text": "t"}]),
                comment(comment_id="c3", expected={"asks": facts, "state": ["p1"]}, same_as="c1"),
                comment(comment_id="c4", expected={}),
            ]
        )
    )
    assert expected_counts(room) == {
        "comments": 4,
        "expected": 3,
        "needed": 1,
        "facts": 1,
        "state": 1,
        "same_as": 1,
        "follow_ups": 1,
    }


# --- finding rooms ----------------------------------------------------------------------------


def names(rooms: list[Room]) -> list[str]:
    return [room.room_id for room in rooms]


def test_rooms_are_listed_zh_before_en_then_by_id() -> None:
    raws = [json.loads(path.read_text(encoding="utf-8")) for path in FIXTURES.glob("*.json")]
    order = sorted((raw["language"] != "zh", raw["room_id"], raw["split"]) for raw in raws)
    assert le.list_rooms() == [room_id for _, room_id, _ in order]
    for split in ("train", "test"):
        assert le.list_rooms(split) == [name for _, name, part in order if part == split]
        assert names(find_rooms(f"bundled:{split}")) == le.list_rooms(split)
    assert {path.stem for path in FIXTURES.glob("*.json")} == {raw["room_id"] for raw in raws}


def test_tasks_are_every_comment_in_file_order() -> None:
    tasks = le.list_tasks()
    assert list(dict.fromkeys(task.room_id for task in tasks)) == le.list_rooms()
    for name in le.list_rooms():
        own = [task.comment_id for task in tasks if task.room_id == name]
        assert own == [comment.comment_id for comment in le.load_room(name).comments]
    assert sorted(le.list_tasks("train") + le.list_tasks("test")) == sorted(tasks)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    place = tmp_path / "rooms [1]"
    (place / "more").mkdir(parents=True)
    write(place / "1.json", shop(room_id="e", language="en"))
    write(place / "2.json", shop(room_id="z2"))
    write(place / "3.json", shop(room_id="z1"))
    write(place / "more" / "4.json", shop(room_id="z0"))
    (place / "notes.txt").write_text("not a room", encoding="utf-8")
    (place / "folder.json").mkdir()
    return place


def test_a_file_a_folder_and_a_glob_name_rooms(folder: Path) -> None:
    assert names(find_rooms(folder)) == ["z1", "z2", "e"]
    assert names(find_rooms(str(folder) + "/")) == ["z1", "z2", "e"]
    assert names(find_rooms(folder / "2.json")) == ["z2"]
    assert names(find_rooms(str(folder.parent / "rooms*" / "[23].json"))) == ["z1", "z2"]
    assert names(find_rooms(str(folder.parent / "**" / "*.json"))) == ["z0", "z1", "z2", "e"]
    assert names(find_rooms("snacks")) == ["snacks"]
    room = validate_room(SHOP)
    assert find_rooms(room) == [room]


def test_a_file_whose_name_looks_like_a_glob_is_a_file(tmp_path: Path) -> None:
    path = write(tmp_path / "a[1]*.json", SHOP)
    assert names(find_rooms(path)) == ["shop"]


@pytest.mark.parametrize("name", ["bundled:trian", "bundled:"])
def test_an_unknown_split_is_not_found(name: str) -> None:
    with pytest.raises(RoomNotFound, match="use `bundled:train` or `bundled:test`"):
        find_rooms(name)


def test_a_place_without_rooms_is_not_found(tmp_path: Path) -> None:
    with pytest.raises(RoomNotFound, match="matches no room file"):
        find_rooms(tmp_path)
    with pytest.raises(RoomNotFound, match="matches no room file"):
        find_rooms(str(tmp_path / "*.json"))
    with pytest.raises(RoomNotFound, match="no bundled room"):
        find_rooms(tmp_path / "none.json")


def test_two_files_with_one_room_id_are_both_named(folder: Path) -> None:
    shutil.copy(folder / "2.json", folder / "9.json")
    with pytest.raises(RoomError) as raised:
        find_rooms(folder)
    assert str(folder / "2.json") in str(raised.value)
    assert str(folder / "9.json") in str(raised.value)
    assert "room_id" in str(raised.value)


def test_a_broken_file_in_a_folder_is_named(folder: Path) -> None:
    write(folder / "5.json", {"room_id": "x"})
    with pytest.raises(RoomError, match=r"5\.json.* has 1 fault"):
        find_rooms(folder)


# --- the neutral export form ------------------------------------------------------------------


NEUTRAL: Raw = {
    "room_id": "n",
    "locale": "zh-CN",
    "licence": "MIT",
    "sources": ["a"],
    "products": [
        {"name": "杯", "merchant": "坊", "price": 5, "coupon_price": None, "stock": None},
        {"name": "杯", "merchant": None, "price": "", "barcode": "20", "attributes": None},
    ],
    "faqs": [{"question": "q", "answer": "a"}, {"question": "q", "answer": "b"}],
    "script": [
        {"t0": 0, "t1": 2.5, "text": "t", "product": "杯"},
        {"t0": 3, "t1": 4, "text": "u", "product": None},
        {"t0": 5, "t1": 6, "text": "u", "product": ""},
    ],
    "danmaku": [{"t": 1.5, "user": "u9", "text": "几号"}, {"t": 2, "user": None, "text": "1"}],
    "reply_rules": [{"intent": "*", "rule": "r"}],
}


def test_the_neutral_form_takes_positions_as_ids() -> None:
    room = validate_room(NEUTRAL)
    assert (room.title, room.language) == ("n", "zh")
    assert [p.product_id for p in room.products] == ["p1", "p2"]
    assert [f.faq_id for f in room.faqs] == ["f1", "f2"]
    assert [(s.segment_id, s.product_id) for s in room.script] == [
        ("s1", "p1"),
        ("s2", None),
        ("s3", None),
    ]
    assert [(c.comment_id, c.viewer, c.at_s) for c in room.comments] == [
        ("c1", "u9", 1.5),
        ("c2", "", 2.0),
    ]
    assert room.provenance == {"licence": "MIT", "sources": ["a"]}
    first, second = room.products
    assert (first.coupon_price, first.stock, second.merchant) == (None, None, None)
    assert second.price is not None
    assert (second.price.raw, second.price.amount) == ("", None)


def test_the_neutral_form_may_hold_more_of_the_schema() -> None:
    promotion = {"promotion_id": "x", "kind": "gift"}
    danmaku = [{"t": 1, "user": "u", "text": "t", "current_product": "p2", "comment_id": "mine"}]
    room = validate_room({**NEUTRAL, "promotions": [promotion], "danmaku": danmaku})
    assert room.promotions[0].promotion_id == "x"
    assert (room.comments[0].comment_id, room.comments[0].current_product) == ("mine", "p2")


def test_faults_of_the_neutral_form_have_its_paths() -> None:
    raw = {
        **NEUTRAL,
        "danmaku": ["x", {"user": "u", "text": 3}, {"t": "x", "user": "u", "txet": "t"}],
        "script": [
            {"t0": 5, "t1": "x", "text": "t"},
            {"t0": 1, "t1": 2, "text": "t", "product": "碗"},
            {"t0": 1, "t1": 2, "text": "t", "product": ["杯"]},
        ],
        "products": [*NEUTRAL["products"], 7],
        "locale": "fr-FR",
    }
    found = faults(raw)
    assert found.keys() == {
        "danmaku[0]",
        "danmaku[1].t",
        "danmaku[1].text",
        "danmaku[2].t",
        "danmaku[2].text",
        "danmaku[2].txet",
        "script[0].t1",
        "script[1].product",
        "script[2].product",
        "products[2]",
        "locale",
    }
    assert faults({**NEUTRAL, "comments": []}).keys() == {"danmaku"}
    assert "no product `碗`" in found["script[1].product"]


def test_a_neutral_room_without_locale_is_noted(tmp_path: Path) -> None:
    raw = {key: value for key, value in NEUTRAL.items() if key != "locale"}
    room, notes = read_room(write(tmp_path / "n.json", raw))
    assert room.language == "zh"
    assert "the file has no `locale`: taken as zh" in notes
    assert faults({**NEUTRAL, "locale": 5}).keys() == {"locale"}
    assert faults({**NEUTRAL, "danmaku": 5}).keys() == {"danmaku"}
    assert faults({**NEUTRAL, "products": 5, "script": 5}).keys() == {"products", "script"}


@pytest.mark.row("R92")
@pytest.mark.parametrize(
    ("name", "language", "products", "faqs", "script", "comments", "rules"),
    [
        ("zh_midea_ecombench", "zh", 52, 456, 106, 81, 49),
        ("zh_mall_phones", "zh", 20, 25, 20, 17, 30),
        ("en_tau2_retail", "en", 50, 30, 50, 125, 67),
    ],
)
def test_a_real_room_loads_whole_and_keeps_what_it_does_not_know(
    shared_data: Path,
    tmp_path: Path,
    name: str,
    language: str,
    products: int,
    faqs: int,
    script: int,
    comments: int,
    rules: int,
) -> None:
    path = shared_data / "rooms" / f"{name}.json"
    raw = json.loads(path.read_text(encoding="utf-8"))
    room = le.load_room(path)
    assert (room.room_id, room.language) == (name, language)
    sizes = [len(x) for x in (room.products, room.faqs, room.script, room.comments)]
    assert [*sizes, len(room.reply_rules)] == [products, faqs, script, comments, rules]
    for item, product in zip(raw["products"], room.products, strict=True):
        for field in ("price", "coupon_price"):
            price = getattr(product, field)
            assert (None if price is None else price.raw) == item[field]
        assert (product.stock, product.link_no) == (item["stock"], item["link_no"])
    assert [(f.question, f.answer) for f in room.faqs] == [
        (f["question"], f["answer"]) for f in raw["faqs"]
    ]
    assert [(c.at_s, c.text) for c in room.comments] == [
        (d["t"], d["text"]) for d in raw["danmaku"]
    ]
    assert all(segment.product_id for segment in room.script)
    assert set(expected_counts(room).values()) == {0, comments}
    assert room.provenance["licence"] == raw["licence"]
    le.save_room(room, tmp_path / "out.json")
    assert le.load_room(tmp_path / "out.json") == room


def test_near_identical_questions_are_all_kept(shared_data: Path) -> None:
    room = le.load_room(shared_data / "rooms" / "zh_midea_ecombench.json")
    twice = [q for q, n in Counter(faq.question for faq in room.faqs).items() if n == 2]
    assert len(twice) == 1
    assert len({faq.answer for faq in room.faqs if faq.question == twice[0]}) <= 2


# --- any room, any JSON -----------------------------------------------------------------------


texts = st.text(max_size=8)
plain = st.text(min_size=1, max_size=6).filter(str.strip)
seconds = st.floats(-1e6, 1e6)
prices = st.none() | texts | st.floats(0, 1e6) | st.integers(0, 10**30)
stocks = st.none() | st.integers(0, 10**9)
numbers = st.integers(-(10**9), 10**9) | st.floats(-1e9, 1e9)
json_values: st.SearchStrategy[Any] = st.recursive(
    st.none() | st.booleans() | numbers | texts,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(texts, inner, max_size=3),
    max_leaves=8,
)


@st.composite
def rooms(draw: st.DrawFn) -> Raw:
    """A sound room as JSON values."""
    count = draw(st.integers(1, 4))
    products = []
    for i in range(count):
        product: Raw = {
            "product_id": f"p{i}",
            draw(st.sampled_from(["name", "商品名"])): draw(plain),
            "link_no": draw(st.none() | st.just(i)),
            "merchant": draw(st.none() | st.just("M")),
            "barcode": draw(st.none() | texts),
            "attributes": draw(st.dictionaries(texts.map(lambda t: "a " + t), texts, max_size=2)),
            "images": draw(st.lists(texts, max_size=2)),
        }
        values = {"price": draw(prices), "coupon_price": draw(prices), "stock": draw(stocks)}
        if draw(st.booleans()):
            product["skus"] = [
                {"sku_id": f"s{i}", "spec": draw(st.dictionaries(texts, texts)), **values}
            ]
        else:
            product |= values
        products.append(product)
    name = st.integers(0, count - 1).map(lambda i: f"product:p{i}")
    events = st.builds(
        lambda at_s, kind, target: {"at_s": at_s, "kind": kind, "target": target},
        seconds,
        st.sampled_from(["listed", "withdrawn", "current_product"]),
        name,
    )
    comments = [
        {
            "comment_id": f"c{i}",
            "viewer": draw(texts),
            "at_s": draw(seconds),
            "text": draw(texts),
            "history": draw(
                st.none()
                | st.lists(st.fixed_dictionaries({"by": texts, "text": texts}), max_size=1)
            ),
            "expected": draw(st.none() | st.builds(lambda p: {"asks": [], "provenance": p}, texts)),
        }
        for i in range(draw(st.integers(0, 3)))
    ]
    return {
        "room_id": "r",
        "language": draw(st.sampled_from(["zh", "en"])),
        "title": draw(texts),
        "products": products,
        "faqs": [
            {"faq_id": "f", "question": draw(plain), "answer": draw(texts), "scope": draw(name)}
        ],
        "events": draw(st.lists(events, max_size=4)),
        "comments": comments,
        "provenance": draw(st.dictionaries(texts, json_values, max_size=2)),
    }


@given(raw=rooms())
@settings(max_examples=150, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_any_sound_room_equals_itself_after_a_file(raw: Raw, tmp_path: Path) -> None:
    room = validate_room(raw)
    path = tmp_path / "room.json"
    le.save_room(room, path)
    loaded = le.load_room(path)
    assert loaded == room
    assert loaded.content_hash == room.content_hash
    assert le.strip_room(loaded).content_hash == room.content_hash
    list(room_notes(room))


FIELDS = sorted({*Room.model_fields, "danmaku", "locale"})


@given(
    raw=json_values
    | st.dictionaries(st.sampled_from(FIELDS), json_values, max_size=4)
    | st.dictionaries(
        st.sampled_from(FIELDS), st.lists(st.dictionaries(texts, json_values)), max_size=4
    )
)
@settings(max_examples=300)
def test_any_json_is_a_room_or_a_room_error(raw: Any) -> None:
    with suppress(RoomError):
        validate_room(raw)


def places(value: Any, at: tuple[Any, ...] = ()) -> list[tuple[Any, ...]]:
    if isinstance(value, dict):
        return [at, *(p for key, item in value.items() for p in places(item, (*at, key)))]
    if isinstance(value, list):
        return [at, *(p for i, item in enumerate(value) for p in places(item, (*at, i)))]
    return [at]


FULL = shop(
    events=[{"at_s": 1, "kind": "stock", "target": "sku:2-M", "value": 3}],
    comments=[
        *asking(
            needed=["faq:f1", ["product:p1"]],
            facts=[{"record": "quote", "lines": [["p1", 1]], "text": ["x"]}],
            acts=["ask"],
            ask_for=["x"],
        ),
        comment(
            comment_id="c2",
            same_as="c1",
            follow_ups=[{"text": "t", "when": ["x"], "expected": {"asks": []}}],
            recorded_reply={"text": "t", "tool_calls": [{"name": "n", "arguments": {"a": 1}}]},
            history=[{"by": "v", "text": "t", "at_s": 1}],
        ),
        comment(comment_id="c3", expected={"state": {"product": "p1", "position": 1}}),
    ],
)


@given(place=st.sampled_from(places(FULL)), value=json_values, remove=st.booleans())
@settings(max_examples=400)
def test_a_room_with_one_part_replaced_is_a_room_or_a_room_error(
    place: tuple[Any, ...], value: Any, remove: bool
) -> None:
    raw = copy.deepcopy(FULL)
    if not place:
        raw = value
    else:
        holder = raw
        for part in place[:-1]:
            holder = holder[part]
        if remove:
            del holder[place[-1]]
        else:
            holder[place[-1]] = value
    with suppress(RoomError):
        room = validate_room(raw)
        room_as_of(room, 5)
        list(room_notes(room))


@given(data=st.binary(max_size=60), encoding=st.sampled_from([None, "gb18030", "utf-16"]))
@settings(max_examples=150, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_any_bytes_are_no_room(data: bytes, encoding: str | None, tmp_path: Path) -> None:
    path = tmp_path / "room.json"
    path.write_bytes(data)
    with pytest.raises(RoomError):
        le.load_room(path, encoding=encoding)


# --- the documentation ------------------------------------------------------------------------


def test_the_rooms_of_the_documentation_load() -> None:
    page = (ROOT / "docs" / "rooms.md").read_text(encoding="utf-8")
    found = re.findall(r"^```json\n(.*?)^```", page, re.MULTILINE | re.DOTALL)
    read = [validate_room(json.loads(text)) for text in found]
    assert len(read) == 2
    assert read[0].comments
    assert not list(set(expected_counts(read[0]).values()) & {0})


def test_the_documentation_names_every_field() -> None:
    page = (ROOT / "docs" / "rooms.md").read_text(encoding="utf-8")
    for model in vars(schema).values():
        if isinstance(model, type) and issubclass(model, schema._Model):
            for name in model.model_fields:
                assert f"`{name}`" in page, f"{model.__name__}.{name}"


def test_an_event_may_name_its_target_by_a_plain_id() -> None:
    plain = with_event("stock", "2-M", 0)
    full = with_event("stock", "sku:2-M", 0)
    assert validate_room(plain) == validate_room(full)
    assert validate_room(with_event("withdrawn", "p1")).events[0].target == "product:p1"


def test_a_bundled_name_comes_before_a_file_of_that_name(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "snacks").mkdir()
    (tmp_path / "outdoor").write_text("{}", encoding="utf-8")
    assert le.load_room("outdoor").room_id == "outdoor"
    assert [room.room_id for room in find_rooms("snacks")] == ["snacks"]
    with pytest.raises(RoomError):
        le.load_room("./outdoor")
