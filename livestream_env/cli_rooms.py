"""`livestream-env room`: check, show, strip and list rooms."""

from __future__ import annotations

import argparse
import json
from pathlib import Path
from typing import TYPE_CHECKING

from livestream_env.cli_play import make_room_env, print_observation
from livestream_env.terminal import UsageError, print_table, progress, safe_lines, safe_text

if TYPE_CHECKING:
    from livestream_env.rooms import Comment, Room
    from livestream_env.words import Price


def run_room_check(args: argparse.Namespace) -> int:
    """Print every fault of a room file, else its notes and counts."""
    from livestream_env.errors import RoomError
    from livestream_env.room_files import expected_counts, read_room

    try:
        room, notes = read_room(_room_path(args.room))
    except RoomError as error:
        print(safe_lines(str(error)))
        return 1
    print(safe_text(f"`{room.room_id}` ({room.language}, {room.split}): no faults"))
    for note in notes:
        print(f"note: {safe_text(note)}")
    rows = [(part, str(count)) for part, count in expected_counts(room).items()]
    print_table(("what comments carry", "comments"), rows)
    return 0


def _room_path(name: str) -> Path:
    """Return the file of a room given as a file or by its bundled name."""
    from livestream_env.room_files import load_room

    if Path(name).is_file():
        return Path(name)
    load_room(name)
    return bundled_file(name)


def bundled_file(name: str) -> Path:
    """Return the path of a bundled room."""
    from livestream_env._resources import resource_folder

    return resource_folder("fixtures") / "rooms" / f"{name}.json"


def run_room_show(args: argparse.Namespace) -> int:
    """Print a room, or what the host sees of a comment with its key."""
    from livestream_env.room_files import load_room

    room = load_room(args.room)
    if args.comment is not None:
        _show_comment(room, args.comment)
        return 0
    print(safe_text(f"{room.title} (`{room.room_id}`, {room.language}, {room.split})"))
    products = [
        (
            _text(product.link_no),
            product.product_id,
            product.name,
            _text(product.merchant),
            _price(product.lowest("price")),
            _price(product.lowest("coupon_price")),
            _text(product.total_stock),
            _text(len(product.skus) or None),
        )
        for product in room.products
    ]
    header = ("link", "product", "name", "merchant", "price", "coupon price", "stock", "skus")
    print_table(header, products, title="products")
    faqs = [(faq.faq_id, faq.scope, faq.question, faq.answer) for faq in room.faqs]
    print_table(("faq", "scope", "question", "answer"), faqs, title="FAQs")
    rules = [(rule.rule_id, rule.scope, rule.intent, rule.rule) for rule in room.reply_rules]
    print_table(("rule", "scope", "intent", "rule"), rules, title="reply rules")
    comments = [
        (one.comment_id, f"{one.at_s:.0f}", one.viewer, one.text, _acts(one))
        for one in room.comments
    ]
    print_table(("comment", "at_s", "viewer", "text", "act"), comments, title="comments")
    return 0


def _text(value: object) -> str:
    return "-" if value is None else str(value)


def _price(price: Price | None) -> str:
    if price is None or isinstance(price.raw, str):
        return "-" if price is None else str(price.raw)
    return f"from {price.raw:g}" if price.kind == "from" else f"{price.raw:g}"


def _acts(comment: Comment) -> str:
    asks = comment.expected.asks if comment.expected else ()
    return "+".join(dict.fromkeys(ask.acts[0] for ask in asks)) or "-"


def _show_comment(room: Room, comment_id: str) -> None:
    from livestream_env.rooms import KEY_FIELDS

    env = make_room_env(room, comment_id)
    with progress(lambda: "indexing the room"):
        observation, _ = env.reset(seed=0)
    print_observation(observation)
    for comment in map(room.comment, env.episode.tasks):
        key = comment.model_dump(mode="json", include=set(KEY_FIELDS), exclude_defaults=True)
        print(f"\n--- key of {safe_text(comment.comment_id)} (the host never sees it)")
        print(safe_lines(json.dumps(key, ensure_ascii=False, indent=1)))


def run_room_strip(args: argparse.Namespace) -> int:
    """Write the world half of a room."""
    from livestream_env.room_files import load_room, save_room
    from livestream_env.rooms import strip_room

    room = load_room(args.room)
    if Path(args.out).exists() and Path(args.out).samefile(_room_path(args.room)):
        raise UsageError(f"`--out {args.out}` is the room itself, whose key would be lost")
    save_room(strip_room(room), args.out)
    print(safe_text(f"{len(room.comments)} comments without key written to {args.out}"))
    return 0


def run_room_list(_: argparse.Namespace) -> int:
    """Print the bundled rooms."""
    from livestream_env.room_files import list_rooms, load_room

    rooms = [load_room(name) for name in list_rooms()]
    rows = [
        (room.room_id, room.language, room.split, str(len(room.products)), str(len(room.comments)))
        for room in rooms
    ]
    print_table(("room", "language", "split", "products", "comments"), rows)
    return 0


def run_room_make(args: argparse.Namespace) -> int:
    """Generate a room and write it."""
    from livestream_env.room_files import expected_counts, save_room
    from livestream_env.synthetic import make_room

    try:
        room = make_room(
            args.seed,
            args.language,
            args.products,
            args.comments,
            args.level,
            split=args.split,
            noise=args.noise,
            chatter=args.chatter,
        )
    except ValueError as error:
        raise UsageError(str(error)) from error
    save_room(room, args.out)
    print(safe_text(f"`{room.room_id}` written to {args.out}"))
    rows = [(part, str(count)) for part, count in expected_counts(room).items()]
    print_table(("what comments carry", "comments"), rows)
    return 0
