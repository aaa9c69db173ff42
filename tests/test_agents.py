"""The scripted expert solves every bundled comment from what its tools say."""

from __future__ import annotations

import hashlib
import json
import pickle
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import cache
from typing import Any

import pytest
from answer_key import (
    ROOMS,
    Raw,
    act,
    broken_checks,
    current_product,
    product_of,
    raw_asks,
    raw_comments,
    raw_room,
    states,
    states_number,
)
from rooms_for_tests import small_room

import livestream_env as le
from livestream_env.findings import Findings
from livestream_env.prompts import make_prompt
from livestream_env.room_files import validate_room

Raws = Sequence[Raw]
FAULTS = {"tool_limit", "tool_error", "invalid_call", "reply_too_long"}
every_comment = pytest.mark.parametrize(
    ("name", "comment"),
    [pytest.param(n, c, id=f"{n}-{c['comment_id']}") for n, c in raw_comments()],
)
by_room = pytest.mark.parametrize("name", ROOMS)


def play(room: le.Room, comment: Any, agent: Any = None, **options: Any) -> le.Trajectory:
    """Play one episode, by default with the scripted agent."""
    env = le.LiveRoomEnv(room, comment=comment, **options)
    return le.rollout(env, agent or le.ScriptedAgent(room), seed=3)


@cache
def solved(name: str, comment_id: str) -> le.Trajectory:
    """The scripted agent's episode on a bundled comment."""
    return play(le.load_room(name), comment_id)


def replies(trajectory: le.Trajectory) -> list[str]:
    turns = trajectory.turns
    return [t.action.message.content for t in turns if not t.action.message.tool_calls]


def calls(trajectory: le.Trajectory) -> list[str]:
    return [call.name for turn in trajectory.turns for call in turn.action.message.tool_calls]


def kinds(trajectory: le.Trajectory) -> set[str]:
    return {event.kind for turn in trajectory.turns for event in turn.events}


def exchanges(name: str, comment: Raw) -> list[tuple[Raws, str, list[str]]]:
    """The asks of a comment with the reply to it, and those of each answer that was asked for.

    Third: the ids of the rules looked up for that reply.
    """
    rounds: list[tuple[Raws, str, list[str]]] = []
    asks, rules = raw_asks(comment), []
    for turn in solved(name, comment["comment_id"]).turns:
        facts = [fact for result in turn.results for fact in result.data]
        rules += [fact.record.removeprefix("rule:") for fact in facts if fact.field == "rule"]
        if turn.action.message.tool_calls:
            continue
        rounds.append((asks, turn.action.message.content, rules))
        for message in turn.messages:
            rules = []
            asks = raw_asks(next(f for f in comment["follow_ups"] if f["text"] == message.content))
    return rounds


# --- the key is met --------------------------------------------------------------------------


@every_comment
def test_the_expert_replies_without_a_fault(name: str, comment: Raw) -> None:
    trajectory = solved(name, comment["comment_id"])
    assert trajectory.stop_reason == le.StopReason.REPLIED
    assert not FAULTS & kinds(trajectory)
    longest = raw_room(name)["limits"]["bullet_characters"]
    assert all(len(reply) <= longest for reply in replies(trajectory))


@every_comment
def test_the_expert_states_what_is_asked_and_nothing_wrong(name: str, comment: Raw) -> None:
    room, at_s = raw_room(name), comment["at_s"]
    for asks, reply, _ in exchanges(name, comment):
        for ask in asks:
            for statement in ask.get("facts", []):
                assert states(room, at_s, statement, reply), (statement, reply)
            for statement in ask.get("must_not", []):
                assert not states(room, at_s, statement, reply), (statement, reply)


@every_comment
def test_the_expert_acts_as_the_key_says(name: str, comment: Raw) -> None:
    for asks, reply, _ in exchanges(name, comment):
        for ask in asks:
            if act(ask) == "ask":
                assert reply.endswith(("?", "？"))
                assert all(slot in reply for slot in ask["ask_for"])
            elif act(ask) == "ignore":
                assert reply == ""
            else:
                assert reply
                assert not reply.endswith(("?", "？"))
    acts = {act(ask) for ask in raw_asks(comment)}
    trajectory = solved(name, comment["comment_id"])
    assert ("hand_off" in calls(trajectory)) == (acts == {"hand_off"})
    assert (trajectory.turns[-1].action.skips == ("*",)) == (acts == {"ignore"})


@pytest.mark.row("R82")
def test_a_second_request_is_about_what_the_first_one_named() -> None:
    first = {"intent": "物流", "needed": ["product:p3"], "acts": ["ask"], "ask_for": ["位置"]}
    then = {
        "text": "就放到最前面吧",
        "when": ["位置"],
        "expected": {
            "asks": [{"intent": "物流", "needed": ["product:p3"]}],
            "state": {"product": "p3", "position_at_most": 1},
        },
    }
    comment = {"comment_id": "c9", "viewer": "小周", "at_s": 70, "text": "3号山楂条能往前放吗"}
    comment |= {"expected": {"asks": [first]}, "follow_ups": [then]}
    trajectory = play(small_room(comments=[comment]), "c9", embedder="lexical")
    assert [m.content for turn in trajectory.turns for m in turn.messages if m.role == "user"] == [
        "就放到最前面吧"
    ]
    assert calls(trajectory) == [
        *("search_product_by_keyword", "get_reply_rule"),
        *("move_product", "get_reply_rule"),
    ]
    assert trajectory.state is not None
    assert trajectory.state.product_order == ("p3", "p1", "p2")
    assert "3号链接" in replies(trajectory)[-1]


@every_comment
def test_the_expert_leaves_the_room_in_the_expected_state(name: str, comment: Raw) -> None:
    wanted = comment["expected"].get("state", {})
    state = solved(name, comment["comment_id"]).state
    assert state is not None
    if "position_at_most" in wanted:
        position = state.product_order.index(wanted["product"]) + 1
        assert position <= wanted["position_at_most"]
    if "image" in wanted:
        assert state.shown_image == (wanted["product"], wanted["image"])
    assert bool(state.hand_offs) == wanted.get("handed_off", False)


@every_comment
def test_the_expert_meets_the_checks_of_the_rules_it_looked_up(name: str, comment: Raw) -> None:
    room = raw_room(name)
    rules = {rule["rule_id"]: rule for rule in room["reply_rules"]}
    shown = product_of(room, f"product:{current_product(room, comment['at_s'])}")
    assert shown is not None
    for asks, reply, looked_up in exchanges(name, comment):
        assert {rules[rule_id]["intent"] for rule_id in looked_up} == {a["intent"] for a in asks}
        if reply:
            records = [record for ask in asks for record in ask.get("needed", [])]
            records += [f"product:{comment['expected'].get('state', {}).get('product')}"]
            products = [p for r in records if (p := product_of(room, r)) is not None] or [shown]
            links = {product["link_no"] for product in products}
            for rule_id in looked_up:
                checks = rules[rule_id]["checks"]
                assert broken_checks(checks, reply, links) == [], (rule_id, reply)


def test_after_the_viewers_answer_the_expert_answers_that() -> None:
    rounds = {
        f"{name}-{comment['comment_id']}": len(exchanges(name, comment))
        for name, comment in raw_comments()
        if any(act(ask) == "ask" for ask in raw_asks(comment))
    }
    assert len(rounds) == 19
    assert set(rounds.values()) == {2}
    assert "58元" in replies(solved("snacks", "c23"))[1]  # 香辣的，小袋就够: 6-L200


@pytest.mark.parametrize(
    ("text", "number", "holds"),
    [
        ("库存19件", 19, True),
        ("库存199件", 19, False),
        ("价格19.9元", 19, False),
        ("价格19.9元", 19.9, True),
        ("19号链接库存8件", 19, False),
        ("link 5 500 ml: price $24.9", 24.9, True),
    ],
)
def test_the_tests_own_matcher_is_number_exact(text: str, number: float, holds: bool) -> None:
    assert states_number(text, number) is holds


@by_room
def test_the_expert_speaks_the_other_language_too(name: str) -> None:
    room = le.load_room(name)
    language = "en" if room.language == "zh" else "zh"
    env = le.LiveRoomEnv(room, language=language)
    for comment in raw_room(name)["comments"]:
        options = {"comment": comment["comment_id"]}
        trajectory = le.rollout(env, le.ScriptedAgent(room), seed=0, options=options)
        assert trajectory.stop_reason == le.StopReason.REPLIED
        assert not {"tool_limit", "tool_error", "invalid_call"} & kinds(trajectory)
        for ask in raw_asks(comment):
            for fact in ask.get("facts", []):
                assert states(raw_room(name), comment["at_s"], fact, replies(trajectory)[0])


# --- replies come from tool results ----------------------------------------------------------


def change(value: Any, key: str, record_id: Any, path: Sequence[str], new: Any) -> None:
    """Set `path` in every object of a JSON value whose `key` is `record_id`."""
    if isinstance(value, dict) and value.get(key) == record_id:
        *parents, last = path
        inner = value
        for parent in parents:
            inner = inner[parent]
        assert last in inner
        inner[last] = new
    inner_values = value.values() if isinstance(value, dict) else value
    for one in inner_values if isinstance(value, dict | list) else ():
        change(one, key, record_id, path, new)


class CorruptedSandbox:
    """A local sandbox whose results say something else about one value, in text and facts."""

    def __init__(
        self, room: le.Room, where: tuple[str, Any, Sequence[str]], fact: tuple[str, str], new: Any
    ) -> None:
        self._inner = le.LocalSandbox(room)
        self._where = where
        self._fact = fact
        self._new = new

    @property
    def specs(self) -> tuple[le.ToolSpec, ...]:
        return self._inner.specs

    def reset(self, *, seed: int, comments: Sequence[str]) -> le.RoomView:
        return self._inner.reset(seed=seed, comments=comments)

    def call(self, call: le.ToolCall) -> le.ToolResult:
        result = self._inner.call(call)
        content = json.loads(result.content)
        change(content, *self._where, self._new)
        data = tuple(
            replace(fact, value=self._new, text=str(self._new))
            if (fact.record, fact.field) == self._fact
            else fact
            for fact in result.data
        )
        return replace(result, content=json.dumps(content, ensure_ascii=False), data=data)

    def fork(self, at_call: int | None = None) -> le.Sandbox:
        return self._inner.fork(at_call)

    def log(self) -> Sequence[le.TurnEvent]:
        return self._inner.log()

    def close(self) -> None:
        self._inner.close()


@pytest.mark.parametrize(
    ("name", "comment", "where", "fact", "new", "said", "unsaid"),
    [
        pytest.param(
            *("snacks", "c02", ("链接号", 1, ["价格"]), ("product:p1", "price"), 63.7),
            *("63.7元", "59.9"),
            id="price",
        ),
        pytest.param(
            *("outdoor", "c02", ("link_no", 1, ["price"]), ("product:p1", "price"), 188),
            *("$188", "189"),
            id="price-en",
        ),
        pytest.param(
            *("snacks", "c08", ("链接号", 2, ["库存"]), ("product:p2", "stock"), 87),
            *("87件", "86"),
            id="stock",
        ),
        pytest.param(
            *("apparel", "c46", ("规格编号", "7-L", ["库存"]), ("sku:7-L", "stock"), 3),
            *("库存3件", "8件"),
            id="sku-stock",
        ),
        pytest.param(
            *("apparel", "c03", ("链接号", 1, ["属性", "领口"]), ("product:p1", "领口"), "单层"),
            *("单层", "双层"),
            id="attribute",
        ),
        pytest.param(
            *("snacks", "c54", ("问答编号", "f5", ["答案"]), ("faq:f5", "answer"), "满59元包邮"),
            *("满59元包邮", "39"),
            id="faq",
        ),
        pytest.param(
            *("snacks", "c04", ("文案编号", "s03", ["文案"]), ("script:s03", "text"), "十点熄火"),
            *("十点熄火", "九点"),
            id="script",
        ),
        pytest.param(
            *("apparel", "c31", ("优惠编号", "shoe20", ["说明文字"])),
            *(("promotion:shoe20", "text"), "满260减20", "满260减20", "满200"),
            id="promotion-text",
        ),
        pytest.param(  # 2 x 219 = 438; - 50 = 388; - 10 = 378; - 15 % = 321.30
            *("apparel", "c06", ("链接号", 2, ["价格"]), ("product:p2", "price"), 219),
            *("321.3元", "287.3"),
            id="total-by-price",
        ),
        pytest.param(  # 2 x 199 = 398; - 60 = 338; - 10 = 328; - 15 % = 278.80
            *("apparel", "c06", ("优惠编号", "full300", ["金额"])),
            *(("promotion:full300", "amount"), 60, "278.8元", "287.3"),
            id="total-by-promotion",
        ),
        pytest.param(
            *("apparel", "c06", ("链接号", 2, ["价格"]), ("product:p2", "price"), "未知"),
            *("总价暂时算不准", "287.3"),
            id="no-total",
        ),
    ],
)
def test_the_reply_follows_what_the_tools_say(
    name: str,
    comment: str,
    where: tuple[str, Any, Sequence[str]],
    fact: tuple[str, str],
    new: Any,
    said: str,
    unsaid: str,
) -> None:
    room = le.load_room(name)
    trajectory = play(room, comment, sandbox=lambda r: CorruptedSandbox(r, where, fact, new))
    assert trajectory.reply is not None
    assert said in trajectory.reply
    assert unsaid not in trajectory.reply
    assert unsaid in (solved(name, comment).reply or "")


# --- without the key -------------------------------------------------------------------------


@by_room
def test_without_a_key_the_expert_searches_looks_up_a_rule_and_replies(name: str) -> None:
    room = le.strip_room(le.load_room(name))
    env = le.LiveRoomEnv(room)
    for comment in room.comments:
        options = {"comment": comment.comment_id}
        trajectory = le.rollout(env, le.ScriptedAgent(room), seed=0, options=options)
        assert trajectory.stop_reason == le.StopReason.REPLIED
        assert not FAULTS & kinds(trajectory)
        assert calls(trajectory) == ["search_faq", "search_product_by_keyword", "get_reply_rule"]
        first = trajectory.turns[0].action.message.tool_calls[0]
        assert first.arguments == {"query": comment.text}
        assert trajectory.reply


def test_without_a_key_an_unknown_intent_leads_to_the_nearest_rule() -> None:
    trajectory = play(small_room(), "c1")
    refused, found = trajectory.turns[1].results[0], trajectory.turns[2].results[0]
    known = json.loads(refused.content)["可查意图"]
    assert (refused.error, found.error) == ("unknown_intent", None)
    assert trajectory.turns[2].action.message.tool_calls[0].arguments == {"intent": known[0]}
    assert trajectory.stop_reason == le.StopReason.REPLIED


def test_without_a_key_a_long_answer_is_cut_at_a_sentence() -> None:
    faq = {"faq_id": "f1", "question": "啥时候寄", "answer": "四十八小时内寄出。" + "详情" * 40}
    assert play(small_room(faqs=[faq]), "c1").reply == "亲，四十八小时内寄出"
    faq["answer"] = "详情" * 40
    assert play(small_room(faqs=[faq]), "c1").reply == "亲，" + "详情" * 29  # 60 - 2


def test_without_a_key_and_an_answer_the_first_products_price_is_told() -> None:
    assert play(small_room(faqs=[]), "c3").reply == "亲，2号链接券后价暂时没有信息"


# --- rules of the episode --------------------------------------------------------------------


class Plan:
    """Plays a list of actions, one a turn."""

    def __init__(self, *actions: le.Action) -> None:
        self._actions = actions

    def act(self, messages: Sequence[le.Message], tools: Sequence[le.ToolSpec]) -> le.Action:
        return self._actions[sum(message.role == "assistant" for message in messages)]


SEARCH = le.Action.call("search_product_by_keyword", keyword="7号链接")
RULE = le.Action.call("get_reply_rule", intent="库存查询")
ASK_RULE = le.Action.call("get_reply_rule", intent="尺码待确认")


@pytest.mark.row("R14")
@pytest.mark.parametrize(
    ("comment", "actions"),
    [
        pytest.param("c46", [SEARCH, RULE, le.Action.reply("7号黑L还有8件")], id="after-look-up"),
        pytest.param("c46", [RULE, SEARCH, le.Action.reply("7号黑L还有8件")], id="before-look-up"),
        pytest.param(
            "c40",
            [
                *(ASK_RULE, le.Action.reply("请问身高体重是多少呢？")),
                *(ASK_RULE, le.Action.reply("168选L码")),
            ],
            id="before-asking-back",
        ),
    ],
)
def test_the_rule_may_come_before_or_after_the_look_ups_and_comes_before_asking(
    comment: str, actions: Sequence[le.Action]
) -> None:
    trajectory = play(le.load_room("apparel"), comment, Plan(*actions))
    assert trajectory.stop_reason == le.StopReason.REPLIED
    assert trajectory.status == le.Status.OK
    assert len(trajectory.turns) == len(actions)


@pytest.mark.row("R14")
def test_asking_back_without_a_rule_is_a_reply_without_a_rule() -> None:
    agent = Plan(le.Action.reply("请问身高体重是多少呢？"))
    trajectory = play(le.load_room("apparel"), "c40", agent)
    assert trajectory.stop_reason == le.StopReason.REPLIED_WITHOUT_RULE


@pytest.mark.row("R16")
def test_a_reply_without_a_rule_is_one() -> None:
    trajectory = play(le.load_room("apparel"), "c46", Plan(SEARCH, le.Action.reply("还有8件")))
    assert trajectory.stop_reason == le.StopReason.REPLIED_WITHOUT_RULE
    assert "missing_rule" in kinds(trajectory)


def transcript_hash(trajectory: le.Trajectory) -> str:
    messages = [message.to_openai() for message in trajectory.messages]
    return hashlib.sha256(json.dumps(messages, ensure_ascii=False).encode()).hexdigest()


@pytest.mark.row("R38")
@pytest.mark.parametrize(
    ("name", "comment"),
    [("apparel", "c47"), ("apparel", "c40"), ("snacks", "c14"), ("outdoor", "c49")],
)
def test_one_episode_has_one_transcript_whatever_the_sandbox(name: str, comment: str) -> None:
    room = le.load_room(name)
    makers: list[Callable[[le.Room], le.Sandbox]] = [
        lambda r: le.LocalSandbox(r, memory=True),
        lambda r: le.LocalSandbox(r, memory=True),
        lambda r: le.LocalSandbox(r, memory=False),
        lambda r: pickle.loads(pickle.dumps(le.LocalSandbox(r))),
    ]
    played = [play(room, comment, sandbox=make) for make in makers]
    assert len(played[0].turns) >= 3
    assert {transcript_hash(trajectory) for trajectory in played} == {
        transcript_hash(solved(name, comment))
    }


# --- every block of the prompt is worth something --------------------------------------------


BLOCKS = ("current_product", "script_window", "history", "comments", "faqs")


def blocks(messages: Sequence[le.Message]) -> dict[str, Any]:
    """The JSON object of the first user message, by block."""
    text = next(message.content for message in messages if message.role == "user")
    shown: dict[str, Any] = json.loads(text[text.index("{") : text.rindex("}") + 1])
    return dict(zip(BLOCKS, shown.values(), strict=True))


def values_of(block: Any) -> str:
    """All that a block says, names of its fields left out."""
    if isinstance(block, dict | list):
        return " ".join(map(values_of, block.values() if isinstance(block, dict) else block))
    return "" if block is None else str(block)


class ContextReader:
    """Answers from one block: by its text, or by what a product search for `keyword` returns.

    With `topic`, only attributes whose name shares a character with the block are told.
    """

    def __init__(self, block: str, keyword: str | None = None, *, topic: bool = False) -> None:
        self._block = block
        self._keyword = keyword
        self._topic = topic

    def act(self, messages: Sequence[le.Message], tools: Sequence[le.ToolSpec]) -> le.Action:
        said = values_of(blocks(messages)[self._block])
        results = [message.content for message in messages if message.role == "tool"]
        if not results:
            keyword = (self._keyword or "{said}").format(said=said) if said else "?"
            return le.Action.calls(
                ("get_reply_rule", {"intent": "*"}),
                ("search_product_by_keyword", {"keyword": keyword[:200]}),
            )
        if self._keyword is None:
            return le.Action.reply(said)
        entries = next(iter(json.loads(results[1]).values()))
        if self._topic:
            attributes = [pair for entry in entries for pair in entry["属性"].items()]
            return le.Action.reply("".join(v for k, v in attributes if set(k) & set(said)))
        return le.Action.reply(json.dumps(entries, ensure_ascii=False))


def prompt_without(block: str, language: str) -> Callable[..., Sequence[le.Message]]:
    """The bundled prompt with one block empty."""
    whole = make_prompt(None, language)

    def prompt(
        view: le.RoomView, tools: Sequence[le.ToolSpec], *, max_same_tool: int
    ) -> Sequence[le.Message]:
        system, user = whole(view, tools, max_same_tool=max_same_tool)
        shown = {**blocks([user]), block: None}
        return system, replace(user, content=json.dumps(shown, ensure_ascii=False))

    return prompt


def states_all_facts(trajectory: le.Trajectory, room: le.Room | None) -> le.Rewards:
    """Reward 1 for a reply that states every asked fact."""
    raw = raw_room(trajectory.room_id)
    comment = next(c for c in raw["comments"] if c["comment_id"] == trajectory.comment_ids[0])
    facts = [fact for ask in raw_asks(comment) for fact in ask["facts"]]
    reply = trajectory.reply or ""
    stated = all(states(raw, comment["at_s"], fact, reply) for fact in facts)
    return le.Rewards((le.Score("facts", float(stated)),))


@pytest.mark.row("R7")
@pytest.mark.parametrize(
    ("name", "comment", "reader"),
    [
        ("snacks", "c24", ContextReader("script_window")),
        ("apparel", "c09", ContextReader("script_window")),
        ("outdoor", "c39", ContextReader("script_window")),
        ("snacks", "c39", ContextReader("history", "山楂球", topic=True)),
        ("apparel", "c12", ContextReader("history", "{said}")),
        ("outdoor", "c38", ContextReader("history", "{said}")),
        ("snacks", "c33", ContextReader("faqs")),
        ("apparel", "c13", ContextReader("faqs")),
        ("outdoor", "c03", ContextReader("faqs")),
        ("snacks", "c02", ContextReader("current_product", "{said}")),
        ("apparel", "c02", ContextReader("current_product", "{said}")),
        ("outdoor", "c59", ContextReader("current_product", "{said}")),
    ],
)
def test_without_its_block_of_the_prompt_a_comment_cannot_be_answered(
    name: str, comment: str, reader: ContextReader
) -> None:
    room = le.load_room(name)
    whole = play(room, comment, reader, rubric=states_all_facts)
    prompt = prompt_without(reader._block, room.language)
    ablated = play(room, comment, reader, rubric=states_all_facts, prompt=prompt)
    assert (whole.reward, ablated.reward) == (1.0, 0.0)
    assert whole.stop_reason == ablated.stop_reason == le.StopReason.REPLIED


# --- odd rooms and odd texts -----------------------------------------------------------------

AGENTS = [le.ScriptedAgent, lambda room: le.WorkflowAgent(), lambda room: le.RandomAgent()]
by_agent = pytest.mark.parametrize("make_agent", AGENTS, ids=["scripted", "workflow", "random"])
SOME = [("snacks", "c02"), ("snacks", "c23"), ("apparel", "c06"), ("outdoor", "c49")]


@by_agent
@pytest.mark.parametrize(
    "text",
    [
        "查到了：很多",
        "",
        "[1, 2]",
        "null",
        '{"结果": "无", "results": 3}',
        '{"结果": [1, null, {"商品名": null}], "results": [{"name": [], "attributes": 4}]}',
        '{"结果": [{"商品名": "x", "链接号": "y", "价格": [], "规格": [{}], "优惠": [{}]}]}',
        '{"results": [{"name": "x", "price": -1, "skus": [7], "promotions": [{"kind": 1}]}]}',
        '{"results": [{"faq_id": 1}, {"rule": 2}], "known_intents": 5, "position": null}',
    ],
)
def test_agents_survive_tool_messages_of_any_form(make_agent: Any, text: str) -> None:
    for name, comment in SOME:
        room = le.load_room(name)
        agent = make_agent(room)
        trajectory = play(room, comment, agent, result_format=lambda call, result: text)
        assert trajectory.status in (le.Status.OK, le.Status.POLICY_TRUNCATED)


def test_what_is_not_well_formed_leaves_the_total_unknown() -> None:
    entry = {"商品名": "甲", "链接号": 1, "价格": 10, "规格": [], "优惠": [{"优惠编号": "x"}]}
    content = json.dumps({"结果": [entry]}, ensure_ascii=False)
    found = Findings([le.Message("tool", content)], None, "zh")
    assert found.values["product:1", "price"] == 10
    assert found.total([("1", 2)]) is None


@by_agent
@pytest.mark.parametrize(
    "tools", [["search_faq", "get_reply_rule"], ["get_reply_rule"], ["search_product_by_keyword"]]
)
def test_agents_do_with_the_tools_that_are_offered(make_agent: Any, tools: list[str]) -> None:
    for name, comment in SOME:
        room = le.load_room(name)
        trajectory = play(room, comment, make_agent(room), tools=tools)
        assert set(calls(trajectory)) <= set(tools)
        assert "invalid_call" not in kinds(trajectory)


@by_agent
def test_agents_play_rooms_that_hold_next_to_nothing(make_agent: Any) -> None:
    comments = [
        {"comment_id": "c1", "viewer": "甲", "at_s": 0, "text": ""},
        {"comment_id": "c2", "viewer": "乙", "at_s": 1, "text": "  \n"},
        {"comment_id": "c3", "viewer": "丙", "at_s": 2, "text": "多少钱" * 200},
    ]
    for language in ("zh", "en"):
        room = validate_room({"room_id": "bare", "language": language, "comments": comments})
        for comment in ("c1", "c2", "c3"):
            trajectory = play(room, comment, make_agent(room), embedder="lexical")
            assert trajectory.status in (le.Status.OK, le.Status.POLICY_TRUNCATED)
            assert "invalid_call" not in kinds(trajectory)


def asking(**ask: Any) -> dict[str, Any]:
    comment = {"comment_id": "c1", "viewer": "甲", "at_s": 0, "text": "问一下"}
    return {**comment, "expected": {"asks": [{"intent": "答", **ask}]}}


def bare_room(*comments: dict[str, Any], **parts: Any) -> le.Room:
    rules = [{"rule_id": "r1", "intent": "答", "rule": "直说", "checks": parts.pop("checks", [])}]
    return validate_room(
        {"room_id": "bare", "language": "zh", "reply_rules": rules, "comments": comments, **parts}
    )


def test_products_without_link_numbers_are_found_and_told_by_name() -> None:
    products = [
        {"product_id": "p1", "name": "青瓷茶杯", "price": 30, "stock": 4},
        {"product_id": "p2", "name": "竹编提篮", "price": 58},
    ]
    facts = [
        {"record": "product:p1", "field": "stock"},
        {"record": "quote", "lines": [("p1", 1), ("p2", 1)]},
        {"kind": "unknown", "record": "product:p2", "field": "stock"},
        {"kind": "unknown", "record": "product:p2", "field": "link_no"},
    ]
    room = bare_room(
        asking(needed=["product:p1", "product:p2"], facts=facts),
        products=products,
        checks=[{"kind": "must_add_link_number"}],
    )
    assert play(room, "c1", embedder="lexical").reply == (
        "亲，青瓷茶杯库存4件，一共88元，竹编提篮库存暂时没有信息，竹编提篮链接号暂时没有信息"
    )


@pytest.mark.parametrize(("language", "price"), [("zh", "20元起"), ("en", "from $20")])
def test_the_lowest_price_of_several_is_told_with_its_unit(language: Any, price: str) -> None:
    skus = [{"sku_id": f"p1-{n}", "coupon_price": n, "spec": {"色": str(n)}} for n in (20, 25)]
    room = bare_room(
        asking(needed=["product:p1"], facts=[{"record": "product:p1", "field": "coupon_price"}]),
        products=[{"product_id": "p1", "link_no": 1, "name": "青瓷茶杯", "skus": skus}],
    )
    said = play(room, "c1", embedder="lexical", language=language, rubric="single4")
    assert price in (said.reply or "")


def test_a_promotion_and_a_comment_can_be_needed() -> None:
    said = {"comment_id": "c0", "viewer": "乙", "at_s": 0, "text": "杯子烫手吗"}
    reply = {**said, "recorded_reply": {"text": "双层的不烫", "at_s": 0}}
    facts = [
        {"record": "promotion:m1", "field": "text"},
        {"record": "comment:c0", "field": "reply"},
    ]
    asked = asking(needed=["promotion:m1", "comment:c0"], facts=facts)
    promotion = {"promotion_id": "m1", "kind": "coupon", "amount": 5, "text": "瓷坊减5元"}
    room = bare_room(
        reply,
        {**asked, "at_s": 9},
        products=[{"product_id": "p1", "link_no": 1, "name": "青瓷茶杯", "merchant": "瓷坊"}],
        promotions=[{**promotion, "scope": "merchant:瓷坊"}],
    )
    assert play(room, "c1", embedder="lexical").reply == "亲，瓷坊减5元，双层的不烫"


def test_membership_prices_and_deposits_are_not_in_a_total() -> None:
    product = {"product_id": "p1", "link_no": 1, "name": "青瓷茶杯", "price": 40}
    kept = {"promotion_id": "a", "kind": "coupon", "amount": 5, "stacks_with": ["*"]}
    member = {"promotion_id": "b", "kind": "member", "rate": 0.5, "stacks_with": ["*"]}
    facts = [{"record": "quote", "lines": [("p1", 2)]}]
    room = bare_room(
        asking(needed=["product:p1"], facts=facts),
        products=[{**product, "promotions": [kept, member]}],
    )
    assert play(room, "c1", embedder="lexical").reply == "亲，一共75元"  # 2 x 40 - 5


def test_extras_are_left_out_where_the_reply_would_be_too_long() -> None:
    product = {"product_id": "p1", "link_no": 1, "name": "青瓷茶杯", "price": 40, "stock": 3}
    extras = [
        {"record": "product:p1", "field": "price"},
        {"record": "product:p1", "field": "产地"},
    ]
    asked = asking(
        needed=["product:p1"], facts=[{"record": "product:p1", "field": "stock"}], extras=extras
    )
    room = bare_room(
        asked,
        products=[{**product, "attributes": {"产地": "龙泉"}}],
        checks=[
            {"kind": "max_characters", "limit": 26},
            {"kind": "must_mention", "any_of": ["以页面为准"]},
        ],
    )
    assert (
        play(room, "c1", embedder="lexical").reply
        == "亲，1号链接库存3件，1号链接价格40元，以页面为准"
    )


def test_the_expert_asks_where_a_rule_wants_it() -> None:
    room = bare_room(asking(acts=["chat"]), checks=[{"kind": "must_ask"}])
    assert play(room, "c1", embedder="lexical").reply == "亲，谢谢您来直播间，您看可以吗？"
    checks = [{"kind": "must_ask", "any_of": ["预算", "口味"]}]
    room = bare_room(asking(), checks=checks)
    assert (play(room, "c1", embedder="lexical").reply or "").endswith("预算、口味是多少呢？")


class Flaky(CorruptedSandbox):
    """A local sandbox whose first calls of one tool find nothing."""

    def __init__(
        self, room: le.Room, tool: str, *, times: int = 1, error: str | None = None
    ) -> None:
        super().__init__(room, ("", "", ["x"]), ("", ""), None)
        self._tool = tool
        self._left = times
        self._error = error

    def call(self, call: le.ToolCall) -> le.ToolResult:
        if call.name == self._tool and self._left:
            self._left -= 1
            return le.ToolResult(call.id, '{"结果":[]}', error=self._error)
        return super().call(call)


@pytest.mark.row("R6")
@pytest.mark.parametrize(
    ("comment", "tool", "said"),
    [
        ("c10", "search_faq", "48小时内发出"),
        ("c02", "search_product_by_keyword", "59.9元"),
        ("c04", "search_script", "九点准时熄火"),
    ],
)
def test_what_is_not_found_at_first_is_searched_once_more(
    comment: str, tool: str, said: str
) -> None:
    trajectory = play(le.load_room("snacks"), comment, sandbox=lambda r: Flaky(r, tool))
    assert calls(trajectory) == [tool, tool, "get_reply_rule"]
    assert said in (trajectory.reply or "")


def test_the_second_try_keeps_to_the_limit_of_the_tool() -> None:
    # two FAQs are needed and both searched at once: a third call would be refused
    def nothing_at_first(room: le.Room) -> Flaky:
        return Flaky(room, "search_faq", times=2)

    trajectory = play(le.load_room("snacks"), "c54", sandbox=nothing_at_first)
    assert calls(trajectory) == ["search_faq", "search_faq", "get_reply_rule"]
    assert "tool_limit" not in kinds(trajectory)
    assert trajectory.stop_reason == le.StopReason.REPLIED


def test_of_a_long_answer_only_the_asked_sentence_is_told() -> None:
    answer = "先说别的。" + "再说别的，" * 12 + "说完。杯子不烫手。最后说别的。"
    fact = {"record": "faq:f1", "field": "answer", "text": ["不冰手", "不烫手"]}
    faq = {"faq_id": "f1", "question": "杯子烫手吗", "answer": answer}
    room = bare_room(asking(needed=["faq:f1"], facts=[fact]), faqs=[faq])
    assert play(room, "c1", embedder="lexical").reply == "亲，杯子不烫手"


# --- bursts ----------------------------------------------------------------------------------


@by_agent
@by_room
@pytest.mark.parametrize("size", [2, 9])
def test_agents_play_bursts(make_agent: Any, name: str, size: int) -> None:
    room = le.load_room(name)
    burst = [comment.comment_id for comment in room.comments[:size]]
    trajectory = play(room, burst, make_agent(room))
    assert trajectory.comment_ids == tuple(burst)
    assert trajectory.status in (le.Status.OK, le.Status.POLICY_TRUNCATED)
    assert "invalid_call" not in kinds(trajectory)


def test_a_burst_is_answered_in_one_reply_and_noise_is_left_alone() -> None:
    room = le.load_room("snacks")
    env = le.LiveRoomEnv(room, comment=["c46", "c47", "c48"])
    trajectory = le.rollout(env, le.ScriptedAgent(room), seed=0)
    assert "右下角客服窗口" in (trajectory.reply or "")
    assert "坏几件补几件" in (trajectory.reply or "")
    assert env.episode.tasks == {"c46": "answered", "c47": "skipped", "c48": "answered"}


def test_a_burst_may_hold_comments_without_a_key() -> None:
    unlabelled = {"comment_id": "c2", "viewer": "乙", "at_s": 1, "text": "啥时候寄"}
    faq = {"faq_id": "f1", "question": "啥时候寄", "answer": "明早寄出"}
    room = bare_room(asking(acts=["chat"]), unlabelled, faqs=[faq])
    trajectory = play(room, ["c1", "c2"], embedder="lexical")
    assert trajectory.reply == "亲，谢谢您来直播间，明早寄出"
    assert trajectory.stop_reason == le.StopReason.REPLIED


# --- reminders and misuse --------------------------------------------------------------------


def test_a_reminder_lets_the_expert_try_the_same_again() -> None:
    def no_rule_at_first(room: le.Room) -> Flaky:
        return Flaky(room, "get_reply_rule", error="unknown_intent")

    room = le.load_room("snacks")
    trajectory = play(room, "c02", sandbox=no_rule_at_first, on_missing_rule="remind")
    assert "reminder" in kinds(trajectory)
    assert trajectory.stop_reason == le.StopReason.REPLIED
    assert "59.9元" in (trajectory.reply or "")


@by_agent
def test_without_any_tool_an_agent_replies(make_agent: Any) -> None:
    env = le.LiveRoomEnv("outdoor", comment="c02")
    observation, _ = env.reset(seed=0)
    agent = make_agent(env.room).start(replace(observation, tools=()), seed=0)
    action = agent.act(observation.messages, ())
    assert action.message.content
    assert not action.message.tool_calls


@by_agent
def test_an_agent_acts_only_once_it_is_started(make_agent: Any) -> None:
    agent = make_agent(le.load_room("snacks"))
    with pytest.raises(RuntimeError, match="start"):
        agent.act([], [])


# --- the random agent ------------------------------------------------------------------------


def random_group(seed: int, agent_seed: int) -> list[str]:
    def make_env() -> le.LiveRoomEnv:
        return le.LiveRoomEnv("snacks", comment="c02")

    group = le.rollout_group(make_env, le.RandomAgent(agent_seed), size=4, seed=seed)
    return [transcript_hash(trajectory) for trajectory in group]


def test_random_episodes_differ_within_a_group_and_repeat_with_their_seeds() -> None:
    first = random_group(seed=1, agent_seed=0)
    assert len(set(first)) == 4
    assert random_group(seed=1, agent_seed=0) == first
    assert not set(random_group(seed=1, agent_seed=5)) & set(first)
    assert not set(random_group(seed=2, agent_seed=0)) & set(first)


def test_a_hundred_random_episodes_end() -> None:
    env = le.LiveRoomEnv("bundled:train")
    agent = le.RandomAgent()
    played = [le.rollout(env, agent, seed=seed) for seed in range(100)]
    assert all(trajectory.stop_reason is not None for trajectory in played)
    assert all(len(trajectory.turns) <= 8 for trajectory in played)
    assert "invalid_call" not in {kind for trajectory in played for kind in kinds(trajectory)}
    assert {t.status for t in played} == {le.Status.OK, le.Status.POLICY_TRUNCATED}


def test_real_rooms_are_played_without_an_exception(shared_data: Any) -> None:
    for name in ("zh_midea_ecombench", "zh_mall_phones", "en_tau2_retail"):
        room = le.load_room(shared_data / "rooms" / f"{name}.json")
        env = le.LiveRoomEnv(room, embedder="lexical")
        for comment in room.comments:
            options = {"comment": comment.comment_id}
            trajectory = le.rollout(env, le.ScriptedAgent(room), seed=0, options=options)
            assert trajectory.status == le.Status.OK
            assert trajectory.reply
            assert len(trajectory.reply) <= room.limits.bullet_characters
