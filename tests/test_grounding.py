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


def verdict_of(reply: str, field: str, told: str, language: str) -> set[str]:
    ground = Ground([Fact("faq:1", field, told, None, told)], language)
    claims = find_claims(reply, language=language)
    return {c.kind if ground.verdict(c) == "supported" else f"not {c.kind}" for c in claims}


@pytest.mark.row("R26")
@pytest.mark.parametrize(
    ("reply", "told", "language", "kind"),
    [
        pytest.param("全场包邮", "我们家不包邮", "zh", "shipping", id="shipping zh"),
        pytest.param("支持无理由退货", "生鲜不支持无理由退货", "zh", "return", id="return zh"),
        pytest.param("今天送赠品", "48小时送达", "zh", "gift", id="gift zh"),
        pytest.param("全网最低", "我们不敢说全网最低", "zh", "absolute", id="absolute zh"),
        pytest.param(
            "Free shipping!", "We do not offer free shipping.", "en", "shipping", id="shipping en"
        ),
        pytest.param("Free returns.", "We have no free returns.", "en", "return", id="return en"),
        pytest.param(
            "Lifetime warranty.", "There is no lifetime warranty.", "en", "warranty", id="warranty"
        ),
    ],
)
def test_a_promise_is_not_supported_by_its_denial(
    reply: str, told: str, language: str, kind: str
) -> None:
    assert f"not {kind}" in verdict_of(reply, "answer", told, language)
    assert f"not {kind}" not in verdict_of(reply, "answer", reply, language)


@pytest.mark.row("R26")
@pytest.mark.parametrize(
    ("reply", "rule", "language"),
    [
        pytest.param("假一赔十", "不许说假一赔十", "zh", id="absolute zh"),
        pytest.param("全场包邮", "报完价再说运费，不要承诺包邮", "zh", id="shipping zh"),
        pytest.param("已经卖完了", "报实际剩余，卖完就说卖完", "zh", id="stock zh"),
        pytest.param("It is the cheapest.", "Don't say it is the cheapest.", "en", id="absolute"),
        pytest.param("It never breaks.", "Add the link. Never guess one.", "en", id="never"),
        pytest.param("Guaranteed to fit.", "Match the height, no guarantee.", "en", id="no"),
        pytest.param("Sold out.", "Say how many are left, or that it is sold out.", "en", id="out"),
    ],
)
def test_what_a_rule_forbids_or_only_words_is_no_evidence(
    reply: str, rule: str, language: str
) -> None:
    found = verdict_of(reply, "rule", rule, language)
    assert found
    assert all(one.startswith("not ") for one in found)


@pytest.mark.row("R26")
def test_what_a_rule_lets_the_host_say_is_evidence() -> None:
    rule = "可以说支持七天无理由退货，不要承诺运费"
    assert verdict_of("支持七天无理由退货", "rule", rule, "zh") == {"time", "return"}
    assert verdict_of("耗材不保修", "answer", "主机保修2年，耗材不保修", "zh") == {"warranty"}


@pytest.mark.row("R26")
def test_a_size_is_not_found_inside_another_word() -> None:
    assert verdict_of("take size M", "answer", "Comes in a mat pack of 15 mm foam", "en") == {
        "not size"
    }


@pytest.mark.row("R26")
@pytest.mark.parametrize(
    ("reply", "told", "language", "is_supported"),
    [
        pytest.param("送您一个帆布袋", "拍两件送帆布袋", "zh", True, id="the same"),
        pytest.param("有赠品的哦", "拍两件送帆布袋", "zh", True, id="any"),
        pytest.param("还送帆布袋", "满两件有赠品：帆布袋一个", "zh", True, id="named elsewhere"),
        pytest.param("送袜子一双", "拍两件送帆布袋", "zh", False, id="another"),
        pytest.param("买一送一", "拍两件送帆布袋", "zh", False, id="one for one"),
        pytest.param("今天买一送一", "新品买一送一", "zh", True, id="one for one is told"),
        pytest.param(
            "we throw in free socks", "a free tote bag with two", "en", False, id="another en"
        ),
        pytest.param("a free tote comes with it", "free tote bag with two", "en", True, id="en"),
        pytest.param("buy one get one free", "a free tote bag with two", "en", False, id="deal en"),
    ],
)
def test_a_gift_is_supported_by_what_tells_of_it(
    reply: str, told: str, language: str, is_supported: bool
) -> None:
    found = verdict_of(reply, "answer", told, language)
    assert ("gift" in found) is is_supported
    assert ("not gift" in found) is not is_supported
