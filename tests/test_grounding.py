"""Which facts and texts support which claims."""

from __future__ import annotations

import pytest

from livestream_env.claims import ProductName, find_claims
from livestream_env.grounding import Ground
from livestream_env.types import Fact

CUP = (Fact("product:cup", "name", "保温杯", None, "保温杯"),)
POT = (
    Fact("product:pot", "name", "砂锅", None, "砂锅"),
    Fact("product:pot", "price", 119.0, "CNY", "119"),
)
NAMES = (ProductName("cup", "保温杯", 1), ProductName("pot", "砂锅", 2))


def verdicts(reply: str, facts: tuple[Fact, ...], *texts: str) -> set[str]:
    ground = Ground(facts, "zh", texts)
    claims = find_claims(reply, language="zh", products=NAMES)
    assert any(claim.kind.startswith("price.") for claim in claims)
    return {ground.verdict(claim) for claim in claims if claim.kind.startswith("price.")}


@pytest.mark.row("R12")
def test_a_price_said_of_nobody_in_particular_is_not_another_products() -> None:
    said = "今天拍下直接变成119元"
    assert verdicts("保温杯119元", CUP, said) == {"supported"}
    assert verdicts("保温杯119元", (*CUP, *POT), said) == {"wrong_product"}
    assert verdicts("砂锅119元", (*CUP, *POT), said) == {"supported"}
    assert verdicts("现在119元", (*CUP, *POT), said) == {"supported"}


@pytest.mark.row("R12")
def test_a_promotion_of_the_whole_room_holds_for_every_product() -> None:
    wide = (
        Fact("promotion:m", "scope", "room", None, "room"),
        Fact("promotion:m", "threshold", 119.0, "CNY", "119"),
    )
    assert verdicts("保温杯满119元减20元", (*CUP, *POT, *wide), "满119元减20元") <= {"supported"}
