"""A room of one's own: written as a dict, checked, saved, played.

Run: python examples/own_room.py
"""

import tempfile
from pathlib import Path

import livestream_env as le
from livestream_env.room_files import validate_room

ROOM = {
    "room_id": "tea_corner",
    "title": "茶叶小铺",
    "language": "zh",
    "host": "主播小叶，说话慢，爱打比方。",
    "products": [
        {
            "product_id": "p1",
            "链接号": 1,
            "商品名": "明前龙井 100克罐装",
            "价格": 168,
            "券后价": 148,
            "库存": 35,
        }
    ],
    "faqs": [{"faq_id": "f1", "question": "怎么保存", "answer": "密封放冰箱冷藏，半年内喝完。"}],
    "reply_rules": [{"rule_id": "r1", "intent": "价格咨询", "rule": "报券后价，带上链接号。"}],
    "comments": [
        {
            "comment_id": "c1",
            "viewer": "爱喝茶的猫",
            "at_s": 30,
            "text": "一号龙井券后多少钱",
            "expected": {
                "asks": [
                    {
                        "intent": "价格咨询",
                        "needed": ["product:p1"],
                        "facts": [{"record": "product:p1", "field": "coupon_price"}],
                    }
                ]
            },
        }
    ],
}


def main() -> None:
    """Check the room, once with faults and once without, and play it."""
    try:
        validate_room({**ROOM, "language": "cn", "faqs": [{"faq_id": "f1", "answer": "?"}]})
    except le.RoomError as error:
        print(error)

    room = validate_room(ROOM, source="tea_corner")
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder, "tea_corner.json")
        le.save_room(room, path)
        env = le.LiveRoomEnv(str(path))
        trajectory = le.rollout(env, le.ScriptedAgent(room), seed=0)
    print(f"{room.comments[0].text} -> {trajectory.reply} [{trajectory.stop_reason}]")


if __name__ == "__main__":
    main()
