"""The room schema, the two halves of a room, and the room as of a second of its show."""

from __future__ import annotations

import json
import pickle
import re
import subprocess
import sys
from typing import Any

import pytest
from pydantic import ValidationError

import livestream_env as le
from livestream_env.errors import CommentNotFound
from livestream_env.room_files import validate_room
from livestream_env.rooms import (
    KEY_FIELDS,
    Moment,
    Product,
    Promotion,
    Room,
    Sku,
    promotions_of,
    room_as_of,
    strip_room,
)
from livestream_env.words import Price

BUNDLED = le.list_rooms()
by_room = pytest.mark.parametrize("name", BUNDLED)
SIX_KEYS = {"商品名", "商家名", "券后价", "库存", "商品条形码", "链接号"}
Raw = dict[str, Any]


def product(name: str, **values: Any) -> Raw:
    return {"product_id": name, "name": f"goods {name}", **values}


def sku(name: str, **values: Any) -> Raw:
    return {"sku_id": name, "spec": {"size": name}, **values}


def event(at_s: float, kind: str, target: str, value: Any = None) -> Raw:
    return {"at_s": at_s, "kind": kind, "target": target, "value": value}


def make_room(**parts: Any) -> Room:
    """A room of products `a`, `b` and `c` with the events and further parts given."""
    goods = [product("a", stock=8, price=99), product("b", images=["front", "back"]), product("c")]
    return validate_room({"room_id": "r", "language": "en", "products": goods, **parts})


def listed(moment: Moment) -> str:
    """The ids of the listed products, in order."""
    return "".join(product.product_id for product in moment.room.products)


# --- the schema ------------------------------------------------------------------------------


@pytest.mark.row("R18")
def test_a_product_is_written_under_the_six_chinese_names() -> None:
    mug = Product(
        product_id="p1",
        name="马克杯",
        merchant="瓷坊",
        price=39,
        coupon_price="券后29",
        stock=3,
        barcode="2000000000015",
        link_no=7,
    )
    written = json.loads(mug.model_dump_json(by_alias=True))
    assert {key for key in written if not key.isascii()} == SIX_KEYS
    assert (written["商品名"], written["商家名"], written["商品条形码"]) == (
        "马克杯",
        "瓷坊",
        "2000000000015",
    )
    assert (written["券后价"], written["库存"], written["链接号"]) == ("券后29", 3, 7)
    assert Product.model_validate(written) == mug


@pytest.mark.row("R18")
def test_either_name_of_a_field_is_read() -> None:
    chinese = {"product_id": "p", "商品名": "杯", "商家名": "坊", "价格": 39, "券后价": 29}
    english = {"product_id": "p", "name": "杯", "merchant": "坊", "price": 39, "coupon_price": 29}
    codes = {"库存": 3, "商品条形码": "2000000000015", "链接号": 7}
    names = {"stock": 3, "barcode": "2000000000015", "link_no": 7}
    assert Product.model_validate({**chinese, **codes}) == Product.model_validate(
        {**english, **names}
    )
    assert Sku.model_validate({"sku_id": "s", "价格": 1, "库存": 2}) == Sku(
        sku_id="s", price=1, stock=2
    )


@by_room
@pytest.mark.parametrize("by_alias", [False, True])
def test_a_room_equals_itself_after_json(name: str, by_alias: bool) -> None:
    room = le.load_room(name)
    assert Room.model_validate_json(room.model_dump_json(by_alias=by_alias)) == room
    assert pickle.loads(pickle.dumps(room)) == room


def test_a_room_is_frozen() -> None:
    with pytest.raises(ValidationError, match="frozen"):
        make_room().title = "another"  # type: ignore[misc]


@pytest.mark.parametrize("raw", ["无报价", "-", "", "面议", "３９元", "2件99", 39.9, 39])
def test_a_price_is_written_as_it_was_given(raw: str | float) -> None:
    mug = Product(product_id="p", name="杯", price=raw)
    written = json.loads(mug.model_dump_json())["price"]
    assert written == raw
    assert type(written) is type(raw)


def test_a_flag_is_no_number() -> None:
    for field in ("stock", "link_no", "price"):
        with pytest.raises(ValidationError):
            Product(product_id="p", name="n", **{field: True})
    with pytest.raises(ValidationError):
        Promotion(promotion_id="p", kind="coupon", amount=True)


@pytest.mark.parametrize("name", ["", " ", "p1 ", "\u3000p1"])
def test_an_id_is_neither_empty_nor_padded(name: str) -> None:
    with pytest.raises(ValidationError, match="an id"):
        Product(product_id=name, name="n")


def test_what_json_cannot_hold_is_in_no_field() -> None:
    for value in (float("nan"), float("inf"), {1, 2}, object()):
        with pytest.raises(ValidationError, match="JSON cannot hold"):
            Room(room_id="r", language="zh", provenance={"of": value})
    given = {"of": ["a"]}
    room = Room(room_id="r", language="zh", provenance=given)
    given["of"].append("b")
    assert room.provenance == {"of": ["a"]}


def test_an_unknown_comment_is_named_with_the_nearest() -> None:
    room = le.load_room("snacks")
    with pytest.raises(CommentNotFound, match=r"`snacks` has no comment `c410`.*`c41`"):
        room.comment("c410")
    with pytest.raises(CommentNotFound, match="it has 0"):
        make_room().comment("c1")


# --- derived values --------------------------------------------------------------------------


def test_a_product_without_variants_is_its_own_unnamed_one() -> None:
    mug = Product(product_id="p", name="n", price=5, coupon_price=4, stock=3, barcode="20")
    (own,) = mug.variants
    assert (own.sku_id, own.spec, own.stock, own.barcode) == ("p", {}, 3, "20")
    assert (mug.lowest("price"), mug.lowest("coupon_price")) == (own.price, own.coupon_price)
    assert mug.total_stock == 3


@pytest.mark.parametrize(
    ("stocks", "total"), [([3, 4], 7), ([3, 0], 3), ([3, None], None), ([0, 0], 0), ([None], None)]
)
def test_the_stock_of_a_product_is_the_sum_where_all_are_known(
    stocks: list[int | None], total: int | None
) -> None:
    skus = tuple(Sku(sku_id=str(i), stock=stock) for i, stock in enumerate(stocks))
    assert Product(product_id="p", name="n", skus=skus).total_stock == total


@pytest.mark.parametrize(
    ("prices", "kind", "amount"),
    [
        pytest.param([79, 79], "amount", 79, id="one price"),
        pytest.param([99, 79, 89], "from", 79, id="several"),
        pytest.param([79, None], "from", 79, id="one not known"),
        pytest.param([79, "面议"], "from", 79, id="one not readable"),
        pytest.param([0, 79], "from", 0, id="one for free"),
        pytest.param(["¥59.9-79.9", "¥59.9-79.9"], "range", 59.9, id="one range"),
        pytest.param(["¥59.9-79.9", 59.9], "from", 59.9, id="a range and its lower end"),
        pytest.param(["2件99", "2件99"], "bundle", 99, id="one bundle"),
        pytest.param([120, "2件99"], "from", 120, id="two for 99 are not one for 99"),
        pytest.param(["面议", "面议"], "unknown", None, id="one unreadable text"),
    ],
)
def test_the_price_of_a_product_is_the_lowest_of_its_variants(
    prices: list[Any], kind: str, amount: float | None
) -> None:
    skus = tuple(Sku(sku_id=str(i), price=price) for i, price in enumerate(prices))
    price = Product(product_id="p", name="n", skus=skus).lowest("price")
    assert price is not None
    assert (price.kind, price.amount) == (kind, amount)


@pytest.mark.parametrize("prices", [[None, None], ["面议", "待定"], ["面议", None], []])
def test_a_price_that_no_variant_knows_is_unknown(prices: list[Any]) -> None:
    skus = tuple(Sku(sku_id=str(i), price=price) for i, price in enumerate(prices))
    assert Product(product_id="p", name="n", skus=skus).lowest("price") is None


@pytest.mark.row("R99")
def test_a_product_is_held_by_its_own_its_shops_and_the_rooms_scope_nearest_first() -> None:
    assert Product(product_id="p", name="n", merchant="瓷坊").scopes == {
        "product:p": 0,
        "merchant:瓷坊": 1,
        "room": 2,
    }
    assert Product(product_id="p", name="n").scopes == {"product:p": 0, "room": 2}


def test_promotions_hold_where_they_are_declared_unless_they_say_otherwise() -> None:
    def promotion(name: str, scope: str | None = None) -> Raw:
        return {"promotion_id": name, "kind": "coupon", "amount": 1, "scope": scope}

    goods = [
        product("a", merchant="M", promotions=[promotion("own"), promotion("lent", "product:b")]),
        product("b", merchant="N"),
    ]
    everywhere = [promotion("all"), promotion("shop", "merchant:M"), promotion("b", "product:b")]
    room = make_room(products=goods, promotions=everywhere)
    held = [[p.promotion_id for p in promotions_of(room, product)] for product in room.products]
    assert held == [["all", "shop", "own"], ["all", "b", "lent"]]


# --- the two halves --------------------------------------------------------------------------


KEY: Raw = {
    "same_as": "c1",
    "follow_ups": [{"text": "only the key: follow-up", "when": ["size"]}],
    "expected": {"asks": [{"intent": "i", "ask_for": ["only the key: slot"], "acts": ["ask"]}]},
}


def keyed_room(key: Raw, **changes: Any) -> Room:
    first = {"comment_id": "c1", "viewer": "v", "at_s": 1, "text": "hi"}
    second = {"comment_id": "c2", "viewer": "w", "at_s": 2, "text": "hello", **key}
    rules = [{"rule_id": "r1", "intent": "i", "rule": "be kind"}]
    return make_room(comments=[first, second], reply_rules=rules, **changes)


@pytest.mark.parametrize("field", sorted(KEY_FIELDS))
def test_the_key_is_not_in_the_content_hash(field: str) -> None:
    assert keyed_room({field: KEY[field]}).content_hash == keyed_room({}).content_hash


def test_the_split_is_not_in_the_content_hash() -> None:
    assert keyed_room({}, split="test").content_hash == keyed_room({}).content_hash


WORLD: Raw = {
    "room_id": "other",
    "title": "t",
    "language": "zh",
    "host": "h",
    "products": [product("a")],
    "faqs": [{"faq_id": "f", "question": "q", "answer": "a"}],
    "script": [{"segment_id": "s", "start_s": 0, "end_s": 1, "text": "t"}],
    "reply_rules": [{"rule_id": "r9", "intent": "j", "rule": "x"}],
    "promotions": [{"promotion_id": "x", "kind": "gift"}],
    "events": [event(1, "stock", "product:a", 2)],
    "comments": [{"comment_id": "c1", "viewer": "v", "at_s": 1, "text": "hey"}],
    "limits": {"history_lines": 5},
    "provenance": {"by": "hand"},
}


@pytest.mark.parametrize("field", WORLD)
def test_every_part_of_the_world_is_in_the_content_hash(field: str) -> None:
    assert set(WORLD) == set(Room.model_fields) - {"split"}
    assert make_room(**{field: WORLD[field]}).content_hash != make_room().content_hash


@pytest.mark.parametrize(
    "change",
    [
        {"text": "bye"},
        {"viewer": "x"},
        {"at_s": 3},
        {"current_product": "a"},
        {"history": [{"by": "v", "text": "x"}]},
        {"history": []},
        {"recorded_reply": {"text": "hi"}},
    ],
)
def test_every_public_field_of_a_comment_is_in_the_content_hash(change: Raw) -> None:
    assert keyed_room(change).content_hash != keyed_room({}).content_hash


def test_a_changed_copy_of_a_room_has_its_own_hash_and_comments() -> None:
    room = keyed_room(KEY)
    assert (room.content_hash, room.comment("c1").text, len(room.all_promotions)) == (
        keyed_room({}).content_hash,
        "hi",
        0,
    )
    copy = room.model_copy(update={"title": "new", "comments": room.comments[1:]})
    assert copy.content_hash != room.content_hash
    with pytest.raises(CommentNotFound):
        copy.comment("c1")


@pytest.mark.parametrize("seed", ["0", "1", "4242"])
def test_the_content_hash_is_the_same_in_every_process(seed: str) -> None:
    code = "import livestream_env as le\nfor n in le.list_rooms():\n"
    code += "    print(le.load_room(n).content_hash)"
    done = subprocess.run(
        [sys.executable, "-c", code],
        env={"PYTHONHASHSEED": seed, "LC_ALL": "C", "PYTHONUTF8": "0", "TZ": "Asia/Shanghai"},
        capture_output=True,
        text=True,
        check=True,
    )
    hashes = [le.load_room(name).content_hash for name in BUNDLED]
    assert done.stdout.split() == hashes
    assert all(re.fullmatch("[0-9a-f]{32}", value) for value in hashes)


def test_a_stripped_room_is_the_world_alone() -> None:
    room = keyed_room(KEY)
    assert room.comment("c2").expected is not None  # fills the cache that a copy must not share
    world = strip_room(room)
    assert world.content_hash == room.content_hash
    assert world == keyed_room({})
    for comment in (world.comments[1], world.comment("c2")):
        assert (comment.same_as, comment.follow_ups, comment.expected) == (None, (), None)
    assert "only the key" not in world.model_dump_json()
    assert strip_room(world) == world


def strings(value: Any) -> set[str]:
    if isinstance(value, dict):
        return set().union(*map(strings, value.values()))
    if isinstance(value, list):
        return set().union(*map(strings, value))
    return {value} if isinstance(value, str) else set()


@pytest.mark.parametrize("name", [name for name in BUNDLED if name != "thrift"])  # it has no key
def test_nothing_of_the_key_is_left_in_a_stripped_bundled_room(name: str) -> None:
    room = le.load_room(name)
    room.comment(room.comments[0].comment_id)
    raw = room.model_dump(mode="json")
    key = [{field: comment.pop(field) for field in KEY_FIELDS} for comment in raw["comments"]]
    only = {text for text in strings(key) if text not in json.dumps(raw, ensure_ascii=False)}
    assert len(only) > 20
    for held in (strip_room(room), pickle.loads(pickle.dumps(strip_room(room)))):
        kept = {**held.__dict__, "room": held.model_dump_json()}
        assert not [text for text in only if text in repr(kept)]


# --- the room as of a second -----------------------------------------------------------------


def test_an_event_counts_from_its_second_on() -> None:
    room = make_room(events=[event(10, "stock", "product:a", 2)])
    stocks = [room_as_of(room, at_s).room.products[0].stock for at_s in (9.99, 10, 11)]
    assert stocks == [8, 2, 2]
    assert room.products[0].stock == 8


def test_each_kind_of_value_changes() -> None:
    events = [
        event(1, "stock", "product:a", 0),
        event(1, "price", "product:a", "¥89起"),
        event(1, "coupon", "product:a", 79),
    ]
    changed = room_as_of(make_room(events=events), 1).room.products[0]
    assert changed.stock == 0
    assert changed.price == Price("¥89起", "from", 89.0)
    assert changed.coupon_price == Price(79, "amount", 79.0)


def test_a_value_may_become_unknown() -> None:
    events = [event(1, kind, "product:a") for kind in ("stock", "price", "coupon")]
    changed = room_as_of(make_room(events=events), 1).room.products[0]
    assert (changed.stock, changed.price, changed.coupon_price) == (None, None, None)


def test_the_later_event_wins_and_of_two_at_once_the_later_in_the_file() -> None:
    events = [event(9, "stock", "product:a", 1), event(5, "stock", "product:a", 2)]
    events += [event(9, "stock", "product:a", 3)]
    room = make_room(events=events)
    stocks = [room_as_of(room, at_s).room.products[0].stock for at_s in (5, 9)]
    assert stocks == [2, 3]


@pytest.mark.row("R96")
def test_the_black_coat_in_l_sells_out_at_1970_seconds() -> None:
    room = le.load_room("apparel")

    def black_l(at_s: float) -> int | None:
        skus = [s for p in room_as_of(room, at_s).room.products for s in p.skus]
        return next(s.stock for s in skus if s.sku_id == "7-L")

    assert next(s for p in room.products for s in p.skus if s.sku_id == "7-L").spec["尺码"] == "L"
    assert [black_l(at_s) for at_s in (1960, 1969.9, 1970, 1995)] == [8, 8, 0, 0]


@pytest.mark.row("R96")
def test_a_variants_stock_and_prices_change_and_the_products_follow() -> None:
    coat = product("coat", skus=[sku("M", price=99, stock=5), sku("L", price=99, stock=8)])
    events = [
        event(10, "stock", "sku:L", 0),
        event(20, "price", "sku:M", 89),
        event(20, "coupon", "sku:M", 79),
    ]
    room = make_room(products=[product("a"), coat], events=events)
    before, sold_out, cheaper = (room_as_of(room, at_s).room.products[1] for at_s in (9, 10, 20))
    assert (before.total_stock, sold_out.total_stock) == (13, 5)
    assert before.lowest("price") == Price(99, "amount", 99.0)
    assert cheaper.lowest("price") == Price(89.0, "from", 89.0)
    assert cheaper.lowest("coupon_price") == Price(79.0, "from", 79.0)
    assert [s.stock for s in room.products[1].skus] == [5, 8]


@pytest.mark.parametrize(
    ("events", "order"),
    [
        pytest.param([event(1, "order", "product:c", 1)], "cab", id="to the front"),
        pytest.param([event(1, "order", "product:a", 2)], "bac", id="to the second place"),
        pytest.param([event(1, "order", "product:a", 3)], "bca", id="to the end"),
        pytest.param([event(1, "withdrawn", "product:b")], "ac", id="withdrawn"),
        pytest.param([event(1, "listed", "product:a")], "bca", id="listed at the end"),
        pytest.param([event(9, "listed", "product:a")], "bc", id="listed later"),
        pytest.param(
            [event(1, "order", "product:a", 1), event(9, "listed", "product:a")],
            "bc",
            id="moved before it is listed",
        ),
        pytest.param(
            [event(1, "listed", "product:a"), event(2, "order", "product:a", 1)],
            "abc",
            id="listed, then moved",
        ),
        pytest.param(
            [event(1, "withdrawn", "product:a"), event(2, "listed", "product:a")],
            "bca",
            id="withdrawn and listed again",
        ),
        pytest.param(
            [event(8, "withdrawn", "product:a"), event(9, "listed", "product:a")],
            "abc",
            id="in the room before it is withdrawn and listed again",
        ),
        pytest.param(
            [event(1, "listed", "product:a"), event(2, "withdrawn", "product:a")],
            "bc",
            id="listed and withdrawn",
        ),
        pytest.param(
            [event(1, "withdrawn", "product:a"), event(2, "withdrawn", "product:a")],
            "bc",
            id="withdrawn twice",
        ),
        pytest.param(
            [event(1, "withdrawn", "product:a"), event(2, "order", "product:a", 1)],
            "bc",
            id="moved after it was withdrawn",
        ),
    ],
)
def test_products_are_listed_withdrawn_and_moved(events: list[Raw], order: str) -> None:
    assert listed(room_as_of(make_room(events=events), 5)) == order


def test_the_picture_is_the_last_one_shown() -> None:
    events = [event(1, "image", "product:b", "front"), event(5, "image", "product:b", "back")]
    room = make_room(events=events)
    shown = [room_as_of(room, at_s).shown_image for at_s in (0, 1, 5)]
    assert shown == [None, ("b", "front"), ("b", "back")]


def test_promotions_hold_in_their_time_and_a_switch_overrides_it() -> None:
    timed = {"promotion_id": "t", "kind": "coupon", "amount": 1, "starts_s": 10, "ends_s": 20}
    own = {"promotion_id": "own", "kind": "gift"}
    room = make_room(
        products=[product("a", promotions=[own])],
        promotions=[timed],
        events=[
            event(5, "promotion", "promotion:t", True),
            event(8, "promotion", "promotion:t", False),
            event(30, "promotion", "promotion:t"),
            event(12, "promotion", "promotion:own", False),
        ],
    )

    def held(at_s: float) -> list[str]:
        return [p.promotion_id for p in room_as_of(room, at_s).room.all_promotions]

    assert [held(at_s) for at_s in (0, 5, 8, 15, 30)] == [["own"], ["t", "own"], ["own"], [], ["t"]]
    unswitched = make_room(promotions=[timed])
    times = [bool(room_as_of(unswitched, at_s).room.promotions) for at_s in (9.9, 10, 19.9, 20)]
    assert times == [False, True, True, False]


def test_only_comments_so_far_are_in_the_room() -> None:
    room = keyed_room({})
    said = [len(room_as_of(room, at_s).room.comments) for at_s in (0, 1, 2)]
    assert said == [0, 1, 2]
    assert room_as_of(room, 2).room.events == ()


SCRIPT = [
    {"segment_id": "s1", "start_s": 0, "end_s": 9, "text": "t", "product_id": "c"},
    {"segment_id": "s2", "start_s": 10, "end_s": 19, "text": "t", "product_id": "b"},
    {"segment_id": "s3", "start_s": 12, "end_s": 14, "text": "no product"},
]


@pytest.mark.row("R96")
@pytest.mark.parametrize(
    ("at_s", "parts", "current"),
    [
        pytest.param(5, {}, "a", id="the first listed"),
        pytest.param(5, {"events": [event(1, "order", "product:c", 1)]}, "c", id="first in order"),
        pytest.param(5, {"script": SCRIPT}, "c", id="the script"),
        pytest.param(15, {"script": SCRIPT}, "b", id="the last of the script"),
        pytest.param(
            15,
            {"script": SCRIPT, "events": [event(9, "current_product", "product:a")]},
            "a",
            id="an event before the script",
        ),
        pytest.param(
            5,
            {"events": [event(9, "current_product", "product:b")]},
            "a",
            id="no event to come",
        ),
        pytest.param(
            15,
            {"script": SCRIPT, "events": [event(1, "withdrawn", "product:b")]},
            "c",
            id="no product of the script that was withdrawn",
        ),
        pytest.param(
            5,
            {
                "events": [
                    event(1, "current_product", "product:b"),
                    event(2, "withdrawn", "product:b"),
                ]
            },
            "a",
            id="no product of an event that was withdrawn",
        ),
        pytest.param(5, {"products": []}, None, id="an empty room"),
    ],
)
def test_the_current_product_is_found_by_rule(at_s: float, parts: Raw, current: str | None) -> None:
    assert room_as_of(make_room(**parts), at_s).current_product == current


@pytest.mark.row("R96")
def test_the_comments_own_product_goes_before_every_event() -> None:
    room = keyed_room({"current_product": "c"}, events=[event(1, "current_product", "product:b")])
    assert room_as_of(room, 2, comment=room.comment("c2")).current_product == "c"
    assert room_as_of(room, 2, comment=room.comment("c1")).current_product == "b"


# --- what the bundled rooms must not hold ----------------------------------------------------


@pytest.mark.row("R19")
@by_room
def test_a_bundled_room_holds_no_phone_number_and_in_store_barcodes_only(name: str) -> None:
    room = le.load_room(name)
    barcodes = [x.barcode for p in room.products for x in (p, *p.skus) if x.barcode is not None]
    assert barcodes
    assert all(re.fullmatch(r"2\d{12}", barcode) for barcode in barcodes)
    texts = strings(room.model_dump(mode="json")) - set(barcodes)
    phone = re.compile(
        r"(?<!\d)(?:\+?86[-\s]?)?1[3-9]\d(?:[-\s]?\d{4}){2}(?!\d)"  # mobile
        r"|(?<!\d)0\d{2,3}[-\s]?\d{7,8}(?!\d)|(?<!\d)[48]00[-\s]?\d{3}[-\s]?\d{4}(?!\d)"
        r"|\(?\b\d{3}\)?[-.\s]\d{3}[-.\s]\d{4}\b|\+\d{8,}|(?<!\d)\d{11}(?!\d)"
    )
    assert not [text for text in texts if phone.search(text)]
    assert phone.search("微信13800138000")
    assert phone.search("call (555) 123-4567")
