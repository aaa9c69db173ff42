"""The shop that the step benchmark plays: 48 face creams, four seasons of twelve."""

from __future__ import annotations

import json

from livestream_env.room_files import validate_room
from livestream_env.rooms import Room

SEASONS = ("春季", "夏季", "秋季", "冬季")
SKINS = (
    "干皮",
    "油皮",
    "敏感肌",
    "混合肌",
    "熟龄肌",
    "痘痘肌",
    "学生",
    "孕期",
    "男士",
    "旅行装",
    "大瓶",
    "小样",
)
TEXT = "质地轻薄不黏腻，早晚洁面后取两颗珍珠大小，由内向外按摩到吸收，阴凉干燥处保存三年用完"


def products() -> list[dict[str, object]]:
    """Return the 48 products as JSON values."""
    made: list[dict[str, object]] = []
    for season in SEASONS:
        for skin in SKINS:
            number = len(made) + 1
            name = f"{season}{skin}专用保湿修护面霜舒缓滋润50克装"
            made.append(
                {
                    "product_id": f"p{number}",
                    "link_no": number,
                    "name": name,
                    "price": 39.9 + number,
                    "stock": 10 * number,
                    "attributes": {"说明": TEXT[:45]},
                }
            )
    return made


def shop_room() -> Room:
    """Return the shop as a room with one comment."""
    return validate_room(
        {
            "room_id": "shop",
            "language": "zh",
            "products": products(),
            "reply_rules": [
                {"rule_id": "r1", "intent": "价格", "rule": "报券后价，并请观众以页面为准"}
            ],
            "comments": [{"comment_id": "c1", "viewer": "观众", "at_s": 1.0, "text": "面霜多少钱"}],
        }
    )


CATALOGUE = products()
RULES = {"价格": "报券后价，并请观众以页面为准"}


def search(keyword: str) -> str:
    """Search the catalogue in plain Python: the floor."""
    hits = [product for product in CATALOGUE if keyword in str(product["name"])][:3]
    return json.dumps(hits, ensure_ascii=False, separators=(",", ":"))


def rule(intent: str) -> str:
    """Look a rule up in plain Python: the floor."""
    return json.dumps({"intent": intent, "rule": RULES[intent]}, ensure_ascii=False)


def script(turns: int) -> list[str]:
    """Return the episode's actions as model text: `turns` - 2 searches, the rule, the reply."""
    texts = [
        _call("search_product_by_keyword", {"keyword": SEASONS[i % 4]}) for i in range(turns - 2)
    ]
    return [*texts, _call("get_reply_rule", {"intent": "价格"}), "亲，这款券后40.9元，以页面为准"]


def _call(name: str, arguments: dict[str, str]) -> str:
    call = json.dumps({"name": name, "arguments": arguments}, ensure_ascii=False)
    return f"<tool_call>{call}</tool_call>"
