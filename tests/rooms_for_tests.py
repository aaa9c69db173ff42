"""A small room with a part of every kind, for tests of what stands on rooms."""

from __future__ import annotations

from typing import Any

from livestream_env.room_files import validate_room
from livestream_env.rooms import Room

SMALL: dict[str, Any] = {
    "room_id": "small",
    "language": "zh",
    "title": "小店",
    "products": [
        {
            "product_id": "p1",
            "link_no": 1,
            "name": "原味腰果200克",
            "merchant": "果仁铺",
            "price": 39.9,
            "coupon_price": 29.9,
            "stock": 12,
            "images": ["front", "back"],
        },
        {"product_id": "p2", "link_no": 2, "name": "海盐饼干", "merchant": "麦香坊", "price": 15},
        {"product_id": "p3", "link_no": 3, "name": "山楂条", "merchant": "麦香坊", "stock": 0},
    ],
    "faqs": [
        {"faq_id": "f1", "question": "什么时候发货", "answer": "付款后48小时内发货"},
        {"faq_id": "f2", "question": "可以退货吗", "answer": "未拆封支持七天退货"},
    ],
    "script": [
        {"segment_id": "s1", "start_s": 0, "end_s": 30, "text": "先看腰果", "product_id": "p1"},
        {"segment_id": "s2", "start_s": 90, "end_s": 120, "text": "再看饼干", "product_id": "p2"},
    ],
    "reply_rules": [
        {"rule_id": "r1", "intent": "物流", "rule": "说清时效"},
        {"rule_id": "r2", "intent": "尺码", "rule": "问清身高体重再推荐"},
    ],
    "comments": [
        {"comment_id": "c1", "viewer": "小王", "at_s": 20, "text": "啥时候寄"},
        {
            "comment_id": "c2",
            "viewer": "小李",
            "at_s": 40,
            "text": "我穿多大",
            "follow_ups": [
                {"text": "170，65公斤", "when": ["身高", "体重"]},
                {"text": "170", "when": ["身高"]},
                {"text": "65公斤", "when": ["体重"]},
            ],
        },
        {"comment_id": "c3", "viewer": "小赵", "at_s": 60, "text": "饼干还有吗"},
    ],
}


def small_room(**changes: Any) -> Room:
    """Return the small room, with some of its parts replaced."""
    return validate_room({**SMALL, **changes})
