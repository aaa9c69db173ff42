"""A user's own tools and words: made, named, run; whose mistake is whose; a production format."""

from __future__ import annotations

import asyncio
import copy
import json
import multiprocessing
import pickle
import re
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Annotated, Any, Literal, Optional

import cloudpickle
import gymnasium as gym
import pytest
from pydantic import AfterValidator, BaseModel, Field
from rooms_for_tests import small_room
from test_drivers import Listed

import livestream_env as le
from livestream_env.custom_tools import CustomTool, resolve_tools
from livestream_env.errors import SandboxError, SandboxTimeout
from livestream_env.room_files import list_rooms, load_room
from livestream_env.sandbox import LocalSandbox
from livestream_env.tools import DEFAULT_TOOLS
from livestream_env.types import Fact, FrozenDict, ToolCall, ToolResult

GOLDEN = Path(__file__).parent / "golden" / "production"
ROOT = Path(__file__).resolve().parents[1]


@le.tool(facts={"券后价": ("promoPriceCent", "fen"), "库存": ("stock", "piece")})
def coupon_rpc(context: le.ToolContext, link_no: int) -> dict[str, Any]:
    """查一个商品的券后价。

    Args:
        link_no: 链接号
    """
    return {"promoPriceCent": 2990, "stock": None}


@le.tool
async def slow_stock(context: le.ToolContext, link_no: int, wait_s: float = 0.0) -> dict[str, Any]:
    """Count what is left."""
    await asyncio.sleep(wait_s)
    return {"left": link_no}


@le.tool(mutates=True)
def pin_last(context: le.ToolContext) -> le.ToolOutput:
    """Put the last product first."""
    *others, last = context.state.product_order
    return le.ToolOutput({"ok": True}, state=replace(context.state, product_order=(last, *others)))


def plain(context: le.ToolContext) -> str:
    return "ok"


named_apart = le.tool(name="another_name")(plain)


def own_env(*tools: Any, **options: Any) -> le.LiveRoomEnv:
    return le.LiveRoomEnv(small_room(), embedder="lexical", tools=list(tools), **options)


def sandbox_of(*tools: Any, **options: Any) -> LocalSandbox:
    sandbox = LocalSandbox(small_room(), embedder="lexical", tools=list(tools), **options)
    sandbox.reset(seed=0, comments=["c1"])
    return sandbox


def called(sandbox: LocalSandbox, tool: str, **arguments: Any) -> ToolResult:
    return sandbox.call(ToolCall("x", tool, FrozenDict(arguments)))


def spec_of(function: Callable[..., Any]) -> dict[str, Any]:
    parameters = le.tool(function).spec.to_openai()["function"]["parameters"]
    assert isinstance(parameters, dict)
    return parameters


def module_of(tmp_path: Path, name: str, monkeypatch: pytest.MonkeyPatch) -> str:
    """Write a module with a tool, put it on the path and return its name."""
    source = (
        "import livestream_env as le\n"
        "@le.tool\n"
        "def points(context: le.ToolContext, viewer: str) -> int:\n"
        "    'Count the points of a viewer.'\n"
        "    return len(viewer)\n"
        "def no_tool(context): ...\n"
    )
    (tmp_path / f"{name}.py").write_text(source, encoding="utf-8")
    monkeypatch.syspath_prepend(tmp_path)
    return name


# --- by object, by name, by entry point ------------------------------------------------------


def test_a_tool_is_given_as_an_object_beside_bundled_names() -> None:
    env = own_env("search_faq", coupon_rpc, slow_stock)
    observation, _ = env.reset(seed=0)
    assert [spec.name for spec in observation.tools] == ["search_faq", "coupon_rpc", "slow_stock"]
    for call, shown in (
        (le.Action.call("coupon_rpc", link_no=1), '{"promoPriceCent":2990,"stock":null}'),
        (le.Action.call("slow_stock", link_no=3), '{"left":3}'),
    ):
        assert env.step(call)[0].messages[0].content == shown


def test_a_tool_is_still_the_function() -> None:
    context: Any = None
    assert coupon_rpc(context, 1) == {"promoPriceCent": 2990, "stock": None}
    assert asyncio.run(slow_stock(context, 2)) == {"left": 2}
    assert repr(coupon_rpc) == f"<tool coupon_rpc of {__name__}:coupon_rpc>"


def test_a_tool_is_named_by_module(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    module = module_of(tmp_path, "shop_by_module", monkeypatch)
    env = own_env(f"{module}:points", "search_faq")
    env.reset(seed=0)
    assert env.step(le.Action.call("points", viewer="abc"))[0].messages[0].content == "3"


@pytest.mark.row("R63")
def test_a_tool_is_found_by_its_entry_point(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    module = module_of(tmp_path, "shop_by_entry_point", monkeypatch)
    info = tmp_path / "shop_plugin-1.0.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: shop-plugin\nVersion: 1.0\n")
    points = f"viewer_points = {module}:points\nbroken = no_such_module:x\n"
    (info / "entry_points.txt").write_text(f"[livestream_env.tools]\n{points}")
    env = own_env("viewer_points")
    env.reset(seed=0)
    assert env.step(le.Action.call("points", viewer="abcd"))[0].messages[0].content == "4"
    with pytest.raises(ValueError, match="Did you mean `viewer_points`"):
        own_env("viewer_pionts")
    with pytest.raises(ValueError, match="no tool `no_such_module:x`"):
        own_env("broken")


def test_the_spec_of_an_environment_with_named_tools_survives_json(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    module = module_of(tmp_path, "shop_by_json", monkeypatch)
    tools = [f"{module}:points", "get_reply_rule"]
    env = gym.make("LiveRoom-v0", room="snacks", embedder="lexical", tools=tools)
    assert env.spec is not None
    again = gym.make(gym.envs.registration.EnvSpec.from_json(env.spec.to_json()))
    first, second = env.reset(seed=1)[0], again.reset(seed=1)[0]
    assert first == second
    assert [spec.name for spec in second.tools] == ["points", "get_reply_rule"]


@pytest.mark.parametrize(
    ("source", "error", "message"),
    [
        pytest.param("serch_faq", ValueError, "Did you mean `search_faq`", id="typo"),
        pytest.param("no_such_module:x", ValueError, "No module named", id="no module"),
        pytest.param(":x", ValueError, "Empty module name", id="empty module"),
        pytest.param(
            f"{__name__}:coupon_rcp", ValueError, "Did you mean `coupon_rpc`", id="no attribute"
        ),
        pytest.param(f"{__name__}:plain", TypeError, "@livestream_env.tool", id="by name, no tool"),
        pytest.param(plain, TypeError, "@livestream_env.tool", id="no tool"),
        pytest.param(3, TypeError, "@livestream_env.tool", id="number"),
    ],
)
def test_what_is_no_tool_is_refused_when_the_environment_is_made(
    source: Any, error: type[Exception], message: str
) -> None:
    with pytest.raises(error, match=message):
        own_env("search_faq", source)


def test_two_tools_of_one_name_are_refused_and_one_given_twice_is_not() -> None:
    twin = le.tool(name="coupon_rpc")(plain)
    with pytest.raises(ValueError, match="two tools are named `coupon_rpc`"):
        own_env(coupon_rpc, twin)
    assert len(resolve_tools([coupon_rpc, "search_faq", coupon_rpc, "search_faq"], "zh")[0]) == 2
    with pytest.raises(TypeError, match="list of names"):
        resolve_tools("search_faq", "zh")


@pytest.mark.parametrize("first", [True, False])
def test_a_tool_named_like_a_bundled_one_takes_its_place(first: bool) -> None:
    @le.tool
    def get_reply_rule(context: le.ToolContext, intent: str) -> str:
        """Ask the rule service."""
        return f"rule of {intent}"

    tools = [get_reply_rule, "get_reply_rule"] if first else ["get_reply_rule", get_reply_rule]
    env = own_env(*tools, "search_faq")
    observation, _ = env.reset(seed=0)
    assert observation.tools[0].description == "Ask the rule service."
    told, *_ = env.step(le.Action.call("get_reply_rule", intent="包邮"))
    assert told.messages[0].content == '"rule of 包邮"'
    *_, terminated, _, info = env.step("包邮的")
    assert (terminated, info["stop_reason"]) == (True, "replied")


def test_the_bundled_rule_look_up_is_missed_where_an_own_one_failed() -> None:
    @le.tool
    def get_reply_rule(context: le.ToolContext, intent: str) -> str:
        raise le.ToolError("没有这个意图")

    env = own_env(get_reply_rule)
    env.reset(seed=0)
    env.step(le.Action.call("get_reply_rule", intent="包邮"))
    assert env.step("包邮的")[-1]["stop_reason"] == "replied_without_rule"


# --- what the policy is told -----------------------------------------------------------------


def test_a_spec_comes_from_signature_and_docstring() -> None:
    def book(
        context: le.ToolContext,
        link_no: int,
        size: Literal["S", "M"],
        tags: list[str],
        amount: float = 1.5,
        is_gift: bool = False,
        note: Optional[str] = None,  # noqa: UP045
    ) -> None:
        """Book a product
        for a viewer.

        More that the policy need not know.

        Args:
            link_no: the link number
            size (str): S or M,
                nothing else
            tags: what the viewer
              said: as it is
            nobody: not an argument

        Returns:
            amount: not this one
        """

    spec = le.tool(name="book_it")(book).spec
    assert (spec.name, spec.description) == ("book_it", "Book a product for a viewer.")
    assert (spec.pure, spec.mutates) == (False, False)
    assert spec.to_openai()["function"]["parameters"] == {
        "type": "object",
        "properties": {
            "link_no": {"type": "integer", "description": "the link number"},
            "size": {
                "type": "string",
                "enum": ["S", "M"],
                "description": "S or M, nothing else",
            },
            "tags": {
                "type": "array",
                "items": {"type": "string"},
                "description": "what the viewer said: as it is",
            },
            "amount": {"type": "number", "default": 1.5},
            "is_gift": {"type": "boolean", "default": False},
            "note": {"anyOf": [{"type": "string"}, {"type": "null"}], "default": None},
        },
        "required": ["link_no", "size", "tags"],
        "additionalProperties": False,
    }


def test_a_tool_without_arguments_or_docstring_has_a_spec() -> None:
    spec = le.tool(plain).spec
    assert spec.description == "plain"
    assert spec.parameters == {"type": "object", "properties": {}, "additionalProperties": False}


def test_a_docstring_without_a_blank_line_before_its_arguments_is_read() -> None:
    @le.tool
    def one(context: le.ToolContext, x: int) -> None:
        """Do one thing.
        Args:
          x: how often
        """

    assert one.spec.description == "Do one thing."
    assert one.spec.parameters["properties"]["x"]["description"] == "how often"


def test_names_of_pydantic_and_properties_called_title_are_arguments_like_others() -> None:
    def odd(
        context: le.ToolContext, title: str, json: int, model_config: int, schema: dict[str, Any]
    ) -> dict[str, Any]:
        return {"title": title, "json": json, "model_config": model_config, "schema": schema}

    arguments = {"title": "t", "json": 1, "model_config": 2, "schema": {"title": "x"}}
    assert list(spec_of(odd)["properties"]) == list(arguments)
    assert json.loads(called(sandbox_of(le.tool(odd)), "odd", **arguments).content) == arguments


class Line(BaseModel):
    link_no: int
    quantity: int = 1


def test_hints_may_bear_limits_models_and_defaults() -> None:
    def quote_lines(
        context: le.ToolContext,
        lines: list[Line],
        percent: Annotated[int, Field(ge=0, le=100, description="discount")] = 0,
        words: dict[str, str] = {"title": "x"},  # noqa: B006
    ) -> Any:
        return [type(lines[0]).__name__, lines[0].quantity, percent]

    schema = spec_of(quote_lines)
    assert schema["properties"]["percent"] == {
        "type": "integer",
        "minimum": 0,
        "maximum": 100,
        "description": "discount",
        "default": 0,
    }
    assert schema["properties"]["words"]["default"] == {"title": "x"}
    assert schema["$defs"]["Line"]["properties"] == {
        "link_no": {"type": "integer"},
        "quantity": {"type": "integer", "default": 1},
    }
    sandbox = sandbox_of(le.tool(quote_lines))
    assert called(sandbox, "quote_lines", lines=[{"link_no": 3}]).content == '["Line",1,0]'
    assert called(sandbox, "quote_lines", lines=[], percent=101).error == "invalid_arguments"


def test_hints_of_the_arguments_alone_must_be_known() -> None:
    def hinted(context: Nowhere.ToolContext, x: int) -> Nowhere: ...  # type: ignore[name-defined] # noqa: F821

    assert spec_of(hinted)["required"] == ["x"]


SPEC = {
    "type": "function",
    "function": {
        "name": "find_coupon",
        "description": "查优惠券",
        "parameters": {
            "type": "object",
            "properties": {"link_no": {"type": "integer"}, "kind": {"enum": ["a", "b"]}},
            "required": ["link_no"],
        },
    },
}


@pytest.mark.parametrize("kind", ["text", "path", "dict"])
def test_a_spec_comes_from_a_json_file(kind: str, tmp_path: Path) -> None:
    path = tmp_path / "find_coupon.json"
    path.write_text("\ufeff" + json.dumps(SPEC, ensure_ascii=False), encoding="utf-8")
    source: Any = {"text": str(path), "path": path, "dict": SPEC}[kind]

    @le.tool(spec=source, pure=True)
    def look(context, link_no, kind="a"):  # type: ignore[no-untyped-def]
        return [link_no, kind]

    assert look.spec.to_openai() == SPEC
    assert look.spec.pure
    sandbox = sandbox_of(look)
    assert called(sandbox, "find_coupon", link_no=2).content == '[2,"a"]'
    assert called(sandbox, "find_coupon", link_no=2, kind="c").error == "invalid_arguments"
    assert le.tool(spec=source, name="mine")(look.function).spec.name == "mine"


def no_context(link_no: int) -> int:
    return link_no


def nothing() -> None: ...


def no_hint(context, link_no): ...  # type: ignore[no-untyped-def]


def rest(context: le.ToolContext, *rest: int) -> None: ...


def keywords(context: le.ToolContext, **rest: int) -> None: ...


def positional(context: le.ToolContext, x: int, /) -> None: ...


def unknown_hint(context: le.ToolContext, x: Nowhere) -> None: ...  # type: ignore[name-defined] # noqa: F821


def odd_syntax(context: le.ToolContext, x: "1 +") -> None: ...  # type: ignore[syntax] # noqa: F722


def odd_value(context: le.ToolContext, x: 1 / 0) -> None: ...  # type: ignore[valid-type]


def no_schema(context: le.ToolContext, x: threading.Lock) -> None: ...


def no_json(context: le.ToolContext, x: Callable[[], int]) -> None: ...


@pytest.mark.parametrize(
    ("function", "options", "error", "message"),
    [
        pytest.param(no_context, {}, TypeError, "takes a `ToolContext` first", id="no context"),
        pytest.param(nothing, {}, TypeError, "takes a `ToolContext` first", id="no parameter"),
        pytest.param(no_hint, {}, TypeError, "`link_no` of tool `no_hint` needs", id="no hint"),
        pytest.param(rest, {}, TypeError, "by name", id="args"),
        pytest.param(keywords, {}, TypeError, "by name", id="kwargs"),
        pytest.param(positional, {}, TypeError, "by name", id="positional"),
        pytest.param(unknown_hint, {}, TypeError, "Nowhere", id="unknown hint"),
        pytest.param(no_schema, {}, TypeError, "make no JSON Schema", id="no schema"),
        pytest.param(no_json, {}, TypeError, "make no JSON Schema", id="no JSON Schema"),
        pytest.param("search", {}, TypeError, "takes a function", id="text"),
        pytest.param(Line, {}, TypeError, "takes a function", id="class"),
        pytest.param(lambda context: 1, {}, ValueError, "give it a `name=`", id="lambda"),
        pytest.param(plain, {"name": "查券"}, ValueError, "chat APIs", id="name"),
        pytest.param(plain, {"pure": True, "mutates": True}, ValueError, "both", id="pure write"),
        pytest.param(
            plain, {"facts": {"价": ("p", "fenn")}}, ValueError, "Did you mean `fen`", id="unit"
        ),
        pytest.param(plain, {"facts": {"价": "p"}}, TypeError, "key in the result", id="fact"),
        pytest.param(plain, {"spec": {"name": "x"}}, ValueError, "parameters", id="no spec"),
        pytest.param(plain, {"spec": "no/file.json"}, ValueError, "no/file.json", id="no file"),
        pytest.param(plain, {"spec": SPEC}, TypeError, "what its spec says", id="extra argument"),
        pytest.param(
            no_hint,
            {"spec": {"name": "x", "parameters": {"properties": {"link_no": {}}}}},
            TypeError,
            "missing a required argument",
            id="missing argument",
        ),
        pytest.param(
            plain,
            {"spec": {"name": "x", "parameters": {"type": "objekt"}}},
            ValueError,
            "no usable JSON Schema",
            id="wrong schema",
        ),
        pytest.param(
            plain,
            {"spec": {"name": "x", "parameters": {"type": "array"}}},
            ValueError,
            "arguments of a call are an object",
            id="schema of no object",
        ),
        pytest.param(
            plain,
            {"spec": {"name": "x", "parameters": {"$ref": "http://127.0.0.1:9/schema.json"}}},
            ValueError,
            "refers to `http://127.0.0.1:9/schema.json`",
            id="schema elsewhere",
        ),
        pytest.param(odd_syntax, {}, TypeError, "make no JSON Schema", id="hint of no syntax"),
        pytest.param(odd_value, {}, TypeError, "make no JSON Schema", id="hint that raises"),
        pytest.param(plain, {"name": ""}, ValueError, "chat APIs", id="empty name"),
        pytest.param(plain, {"facts": ["p"]}, TypeError, "it is label -> ", id="list of facts"),
        pytest.param(
            plain, {"facts": {"价": ("p", [])}}, TypeError, "(key in", id="unit of a list"
        ),
        pytest.param(
            plain, {"facts": {"价": (1, "fen")}}, TypeError, "(key in", id="key of a fact"
        ),
    ],
)
def test_what_cannot_be_a_tool_says_so_when_it_is_made(
    function: Any, options: dict[str, Any], error: type[Exception], message: str
) -> None:
    with pytest.raises(error, match=re.escape(message)):
        le.tool(**options)(function)


@pytest.mark.parametrize(
    "default", [object(), float("nan"), threading.Lock()], ids=["object", "nan", "lock"]
)
def test_a_default_that_is_no_json_is_the_functions_own_and_not_told(default: Any) -> None:
    @le.tool
    def look(context: le.ToolContext, limit: float = default) -> list[Any]:
        return [limit is default, type(limit).__name__]

    assert look.spec.parameters["properties"]["limit"] == {"type": "number"}
    assert called(sandbox_of(look), "look").content.startswith("[true,")
    assert called(sandbox_of(look), "look", limit=2).content == '[false,"float"]'


# --- facts -----------------------------------------------------------------------------------

UNITS = {
    "券后价": ("cents", "fen"),
    "price": ("dollars", "cent"),
    "库存": ("left", "piece"),
    "重量": ("grams", "gram"),
    "产地": ("from", ""),
}


def facts_of(returned: Any, language: str | None = None, **arguments: Any) -> tuple[Fact, ...]:
    @le.tool(facts=UNITS)
    def look(context: le.ToolContext, link_no: Any = None) -> Any:
        return returned

    return called(sandbox_of(look, language=language), "look", **arguments).data


@pytest.mark.parametrize(
    ("returned", "field", "value", "unit", "text"),
    [
        pytest.param({"cents": 2990}, "coupon_price", 29.9, "yuan", "2990", id="fen"),
        pytest.param({"cents": "2990"}, "coupon_price", 29.9, "yuan", "2990", id="fen as text"),
        pytest.param({"cents": "面议"}, "coupon_price", None, "yuan", "面议", id="no number"),
        pytest.param({"cents": "nan"}, "coupon_price", None, "yuan", "nan", id="nan"),
        pytest.param({"cents": None}, "coupon_price", None, "yuan", "null", id="unknown"),
        pytest.param({"dollars": 1999}, "price", 19.99, "dollar", "1999", id="cent"),
        pytest.param({"left": 12}, "stock", 12, "piece", "12", id="piece"),
        pytest.param({"grams": 0.125}, "重量", 0.125, "gram", "0.125", id="not rounded"),
        pytest.param({"left": True}, "stock", True, "piece", "true", id="bool"),
        pytest.param({"from": "新疆"}, "产地", "新疆", None, "新疆", id="text"),
        pytest.param({"from": ["a", 1]}, "产地", '["a",1]', None, '["a",1]', id="list"),
    ],
)
def test_declared_facts_have_units(
    returned: Any, field: str, value: Any, unit: str | None, text: str
) -> None:
    facts = facts_of(returned, link_no=2)
    assert facts == (Fact("product:p2", field, value, unit, text),)
    assert type(facts[0].value) is type(value)


@pytest.mark.parametrize("language", ["zh", "en"])
def test_labels_become_the_english_fields_in_either_language(language: str) -> None:
    assert [fact.field for fact in facts_of({"cents": 1, "from": "x"}, language)] == [
        "coupon_price",
        "产地",
    ]


@pytest.mark.parametrize(
    ("returned", "link_no", "records"),
    [
        pytest.param({"left": 1}, 1, ["product:p1"], id="argument"),
        pytest.param({"left": 1, "link_no": 3}, 1, ["product:p3"], id="the result's own"),
        pytest.param({"left": 1, "链接号": 3}, None, ["tool:look"], id="argument of none"),
        pytest.param({"left": 1}, 9, ["tool:look"], id="no such product"),
        pytest.param({"left": 1}, True, ["tool:look"], id="true is not 1"),
        pytest.param({"left": 1}, "1", ["tool:look"], id="text"),
        pytest.param(
            [{"link_no": 1, "left": 1}, {"link_no": 2, "left": 2}, 7],
            9,
            ["product:p1", "product:p2"],
            id="list",
        ),
        pytest.param(
            {"items": [{"link_no": 1, "sku": {"left": 1}}, {"link_no": 2, "left": 1}]},
            9,
            ["product:p1", "product:p2"],
            id="nested",
        ),
    ],
)
def test_a_fact_is_of_the_product_whose_link_number_is_nearest(
    returned: Any, link_no: Any, records: list[str]
) -> None:
    assert [fact.record for fact in facts_of(returned, link_no=link_no)] == records


def test_a_chinese_link_number_names_the_product_too() -> None:
    assert [fact.record for fact in facts_of({"left": 1, "链接号": 3})] == ["product:p3"]


def test_a_tool_may_state_facts_of_its_own() -> None:
    fact = Fact("rule:r1", "rule", "说清时效", None, "说清时效")

    @le.tool
    def look(context: le.ToolContext) -> le.ToolOutput:
        return le.ToolOutput({"a": 1}, facts=(fact, fact))

    assert called(sandbox_of(look), "look").data == (fact,)


# --- arguments -------------------------------------------------------------------------------


@pytest.mark.row("R75")
@pytest.mark.parametrize(
    ("arguments", "problem"),
    [
        pytest.param({}, "must hold `link_no`", id="missing"),
        pytest.param({"link_no": "3"}, "must be integer", id="type"),
        pytest.param({"link_no": True}, "must be integer", id="bool"),
        pytest.param({"link_no": 1, "x": 1}, "must not hold `x`", id="extra"),
        pytest.param({"link_no": 1, "even": 3}, "3 is odd", id="validator"),
    ],
)
def test_wrong_arguments_are_told_and_the_body_does_not_run(
    arguments: dict[str, Any], problem: str
) -> None:
    def checked(value: int) -> int:
        if value % 2:
            raise ValueError(f"{value} is odd")
        return value

    runs = []

    def look(context: le.ToolContext, link_no: int, even: Any = 0) -> int:
        runs.append(link_no)
        return link_no

    look.__annotations__["even"] = Annotated[int, AfterValidator(checked)]

    async def alook(context: le.ToolContext, link_no: int, even: Any = 0) -> int:
        return look(context, link_no)

    alook.__annotations__["even"] = look.__annotations__["even"]
    for function in (look, alook):
        env = own_env(le.tool(name="look")(function))
        env.reset(seed=0)
        *_, info = env.step(le.Action.call("look", **arguments))
        result = env.trajectory.turns[0].results[0]
        assert result.error == "invalid_arguments"
        assert problem in result.content
        assert info["events"] == ["tool_error"]
    assert not runs


class Strict(BaseModel, extra="forbid"):
    """Lines that take no other key."""

    sku: str


@pytest.mark.parametrize(
    ("arguments", "told"),
    [
        ({"lines": [{}], "sku": "a"}, "arguments.lines[0] must hold `sku`"),
        (
            {"lines": [{"sku": "a", "n": 1}]},
            "arguments.lines[0] must not hold `n`; it takes `sku`",
        ),
        ({"lines": [], "limit": "x"}, "arguments.limit must be integer or null"),
        ({"lines": [], "share": 10**400}, "a number that cannot be checked"),
    ],
)
def test_what_is_wrong_within_arguments_is_told_of_the_place(
    arguments: dict[str, Any], told: str
) -> None:
    @le.tool
    def order(
        context: le.ToolContext,
        lines: list[Strict],
        sku: str = "",
        limit: int | None = None,
        share: Annotated[float, Field(multiple_of=0.01)] = 0.0,
    ) -> int:
        return 1

    env = own_env(order)
    env.reset(seed=0)
    observation, *_ = env.step(le.Action.call("order", **arguments))
    assert told in observation.messages[0].content
    assert "neither empty" not in observation.messages[0].content
    assert env.trajectory.turns[0].results[0].error == "invalid_arguments"


def test_an_argument_of_a_tool_whose_schema_has_no_properties_is_told() -> None:
    spec = {"name": "bare", "parameters": {"type": "object", "additionalProperties": False}}
    result = called(sandbox_of(le.tool(spec=spec)(plain)), "bare", link_no=1)
    assert result.error == "invalid_arguments"
    assert "must not hold `link_no`; it takes nothing" in result.content


def test_arguments_come_as_their_hints_and_are_copies() -> None:
    seen = []

    @le.tool
    def look(context: le.ToolContext, count: int, words: list[str], extra: dict[str, Any]) -> None:
        seen.append((count, type(count), type(words), type(extra)))
        words.append("x")
        extra["x"] = 1

    env = own_env(look)
    env.reset(seed=0)
    env.step(le.Action.call("look", count=3.0, words=["a"], extra={"deep": []}))
    assert seen == [(3, int, list, dict)]
    arguments = env.trajectory.turns[0].action.message.tool_calls[0].arguments
    assert arguments == {"count": 3.0, "words": ["a"], "extra": {"deep": []}}


def test_a_default_is_the_functions_own() -> None:
    seen = []

    @le.tool
    def look(context: le.ToolContext, size: str = "M", more: dict[str, int] | None = None) -> str:
        seen.append((size, more))
        return size

    env = own_env(look)
    env.reset(seed=0)
    assert env.step(le.Action.call("look"))[0].messages[0].content == '"M"'
    assert env.trajectory.turns[0].action.message.tool_calls[0].arguments == {}
    assert seen == [("M", None)]


def test_calls_of_one_turn_may_leave_out_arguments_with_a_default() -> None:
    env = own_env(slow_stock)
    env.reset(seed=0)
    observation, *_ = env.step(
        le.Action.calls(("slow_stock", {"link_no": 1}), ("slow_stock", {"link_no": 2}))
    )
    assert [message.content for message in observation.messages] == ['{"left":1}', '{"left":2}']


# --- whose mistake ---------------------------------------------------------------------------


class Unshown(BaseException):
    """An exception whose text raises."""

    def __repr__(self) -> str:
        raise RuntimeError


class UnshownToolError(le.ToolError):
    """A policy's mistake whose text raises."""

    def __str__(self) -> str:
        raise RuntimeError


def tool_that(how: str, is_async: bool) -> CustomTool:
    """Make a tool that fails in the way named, sync or async."""

    deep: list[Any] = []
    for _ in range(100_000):
        deep = [deep]

    def fail() -> Any:
        if how == "tool error":
            raise le.ToolError("没有这张券：" + "很长" * 200 + "\ud800")
        if how == "stop":
            return next(iter(()))
        if how == "sandbox error":
            raise SandboxError("the upstream is down")
        if how == "exit":
            sys.exit(3)
        if how == "base":
            raise Unshown
        if how == "unshown tool error":
            raise UnshownToolError
        if how == "cancelled":
            raise asyncio.CancelledError
        if how == "own time-out":
            raise TimeoutError("read timed out")
        wrong: dict[str, Any] = {
            "deep": deep,
            "twice": {"a": [{1: "x", "1": "y"}]},
            "set": {1},
            "nan": float("nan"),
            "object": object(),
            "state": le.ToolOutput(1, state="x"),  # type: ignore[arg-type]
            "facts": le.ToolOutput(1, facts=(1,)),  # type: ignore[arg-type]
        }
        return wrong[how]

    def failing(context: le.ToolContext) -> Any:
        return time.sleep(0.3) if how == "time-out" else fail()

    async def afailing(context: le.ToolContext) -> Any:
        return await asyncio.sleep(0.3) if how == "time-out" else fail()

    return le.tool(name="failing", mutates=True)(afailing if is_async else failing)


FAILURES = [
    ("key", "KeyError('key')"),
    ("stop", "StopIteration"),
    ("sandbox error", "the upstream is down"),
    ("time-out", "`tool_timeout_s` of 0.05"),
    ("own time-out", "read timed out"),
    ("exit", "SystemExit(3)"),
    ("base", "failed: Unshown"),
    ("twice", "no JSON: two keys"),
    ("set", "no JSON: Object of type set"),
    ("nan", "no JSON"),
    ("object", "no JSON"),
    ("deep", "no JSON"),
    ("state", "return a `State`"),
    ("facts", "no `Fact`"),
]


@pytest.mark.parametrize("is_async", [False, True], ids=["sync", "async"])
@pytest.mark.parametrize(("how", "cause"), FAILURES, ids=[how for how, _ in FAILURES])
def test_every_other_exception_is_infrastructures(how: str, cause: str, is_async: bool) -> None:
    if (how, is_async) == ("stop", True):
        cause = "coroutine raised StopIteration"
    timeout_s = 0.05 if how == "time-out" else 20
    options: dict[str, Any] = {"sandbox_options": {"tool_timeout_s": timeout_s}}
    failing = tool_that(how, is_async)
    call = le.Action.call("failing")
    env = own_env(failing, **options)
    env.reset(seed=0)
    with pytest.raises(SandboxError) as caught:
        env.step(call)
    assert cause in str(caught.value)
    trajectories = [
        env.trajectory,
        le.rollout(own_env(failing, **options), Listed(call), seed=0),
        asyncio.run(le.arollout(own_env(failing, **options), Listed(call), seed=0)),
    ]
    for trajectory in trajectories:
        assert (trajectory.status, trajectory.stop_reason) == ("env_error", "env_error")
        assert cause in trajectory.faults[0].detail
        assert trajectory.turns[0].results == ()
    truncating = own_env(failing, on_env_error="truncate", **options)
    truncating.reset(seed=0)
    *_, truncated, info = truncating.step(call)
    assert (truncated, info["status"]) == (True, "env_error")


@pytest.mark.row("R75")
@pytest.mark.parametrize("is_async", [False, True], ids=["sync", "async"])
def test_a_tool_error_is_the_policys_and_told_whole(is_async: bool) -> None:
    failing = tool_that("tool error", is_async)
    agent = Listed(le.Action.call("failing"), "好的")
    played = [
        le.rollout(own_env(failing), agent, seed=0),
        asyncio.run(
            le.arollout(own_env(failing), Listed(le.Action.call("failing"), "好的"), seed=0)
        ),
    ]
    for trajectory in played:
        assert trajectory.status == "ok"
        result = trajectory.turns[0].results[0]
        assert result.error == "tool_error"
        told = {"错误": "tool_error", "说明": "没有这张券：" + "很长" * 200 + "\ufffd"}
        assert json.loads(result.content) == told
        assert trajectory.turns[0].events[0].kind == "tool_error"
    assert "很长" in agent.told[1][-1].content


def test_a_cancelled_task_inside_a_tool_is_infrastructures() -> None:
    failing = tool_that("cancelled", True)
    trajectory = le.rollout(own_env(failing), Listed(le.Action.call("failing")), seed=0)
    assert trajectory.status == "env_error"
    env = own_env(failing)
    trajectory = asyncio.run(le.arollout(env, Listed(le.Action.call("failing")), seed=0))
    assert trajectory.status == "env_error"


def test_cancelling_the_rollout_cancels_the_tool_and_is_no_failure_of_it() -> None:
    ended = []

    @le.tool
    async def waiting(context: le.ToolContext) -> None:
        try:
            await asyncio.sleep(60)
        finally:
            ended.append(True)

    async def play() -> None:
        env = own_env(waiting)
        task = asyncio.create_task(le.arollout(env, Listed(le.Action.call("waiting")), seed=0))
        await asyncio.sleep(0.05)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        assert env.trajectory.stop_reason == "aborted"

    asyncio.run(play())
    assert ended


def test_a_tool_that_hangs_holds_up_neither_the_episode_nor_the_exit() -> None:
    code = (
        "import asyncio, time, livestream_env as le\n"
        "@le.tool\n"
        "def hanging(context: le.ToolContext) -> None:\n"
        "    time.sleep(60)\n"
        "@le.tool\n"
        "async def waiting(context: le.ToolContext) -> None:\n"
        "    await asyncio.sleep(60)\n"
        "class Agent:\n"
        "    def __init__(self, name): self.name = name\n"
        "    def act(self, messages, tools): return le.Action.call(self.name)\n"
        "for tool in (hanging, waiting):\n"
        "    env = le.LiveRoomEnv('snacks', embedder='lexical', tools=[tool],\n"
        "        sandbox_options={'tool_timeout_s': 0.05})\n"
        "    print(le.rollout(env, Agent(tool.name), seed=0).status)\n"
        "    print(asyncio.run(le.arollout(env, Agent(tool.name), seed=0)).status)\n"
    )
    done = subprocess.run(
        [sys.executable, "-W", "error", "-c", code],
        capture_output=True,
        text=True,
        timeout=40,
        check=True,
    )
    assert (done.stdout, done.stderr) == ("env_error\n" * 4, "")


def test_a_tool_error_without_a_text_is_told_by_its_name() -> None:
    for is_async in (False, True):
        result = called(sandbox_of(tool_that("unshown tool error", is_async)), "failing")
        assert result.error == "tool_error"
        assert json.loads(result.content)["说明"] == "UnshownToolError"


def test_an_interrupt_in_a_tool_reaches_the_caller_and_ends_no_other_tool() -> None:
    @le.tool
    async def interrupted(context: le.ToolContext) -> None:
        raise KeyboardInterrupt

    @le.tool
    def stopped(context: le.ToolContext) -> None:
        raise KeyboardInterrupt

    sandbox = sandbox_of(interrupted, stopped, slow_stock)
    for name in ("interrupted", "stopped"):
        with pytest.raises(KeyboardInterrupt):
            called(sandbox, name)
    assert called(sandbox, "slow_stock", link_no=5).content == '{"left":5}'


@pytest.mark.parametrize("is_async", [False, True], ids=["sync", "async"])
@pytest.mark.parametrize("timeout_s", [None, 20.0])
@pytest.mark.parametrize(
    ("error", "cause"),
    [
        (SandboxTimeout("the upstream is slow"), "^the upstream is slow$"),
        (TimeoutError("read timed out"), r"`(waits|awaits)` failed: TimeoutError\('read"),
    ],
)
def test_a_tools_own_time_out_is_one_and_keeps_its_text(
    error: Exception, cause: str, timeout_s: float | None, is_async: bool
) -> None:
    @le.tool
    def waits(context: le.ToolContext) -> None:
        raise error

    @le.tool
    async def awaits(context: le.ToolContext) -> None:
        raise error

    sandbox = sandbox_of(waits, awaits, tool_timeout_s=timeout_s)
    for name in ("waits", "awaits"):
        call = ToolCall("x", name, FrozenDict({}))
        with pytest.raises(SandboxTimeout, match=cause):
            asyncio.run(sandbox.acall(call)) if is_async else sandbox.call(call)


def test_an_async_tool_that_blocks_its_loop_is_given_up_and_others_go_on() -> None:
    released = threading.Event()

    @le.tool
    async def blocking(context: le.ToolContext) -> None:
        released.wait(60)

    sandbox = sandbox_of(blocking, slow_stock, tool_timeout_s=0.05)
    with pytest.raises(SandboxError, match=r"longer than `tool_timeout_s` of 0\.05"):
        called(sandbox, "blocking")
    assert called(sandbox, "slow_stock", link_no=5).content == '{"left":5}'
    released.set()


@pytest.mark.parametrize("is_async", [False, True], ids=["sync", "async"])
def test_a_coroutine_that_a_sync_function_returns_is_named(is_async: bool) -> None:
    @le.tool
    def wrapped(context: le.ToolContext) -> Any:
        return slow_stock.function(context, 1)

    sandbox, call = sandbox_of(wrapped), ToolCall("x", "wrapped", FrozenDict({}))
    with pytest.raises(SandboxError, match="give `tool` the `async def` itself"):
        asyncio.run(sandbox.acall(call)) if is_async else sandbox.call(call)


# --- async -----------------------------------------------------------------------------------


def test_many_async_tools_overlap_in_one_loop() -> None:
    async def play() -> list[le.Trajectory]:
        barrier = asyncio.Barrier(40)

        @le.tool
        async def together(context: le.ToolContext) -> bool:
            await asyncio.wait_for(barrier.wait(), 20)
            return True

        agents = [Listed(le.Action.call("together"), "好的") for _ in range(40)]
        return await asyncio.gather(
            *(le.arollout(own_env(together), agent, seed=0) for agent in agents)
        )

    assert {trajectory.status for trajectory in asyncio.run(play())} == {"ok"}


def test_many_sync_tools_overlap_in_threads_without_blocking_the_loop() -> None:
    barrier = threading.Barrier(40)

    @le.tool
    def together(context: le.ToolContext) -> bool:
        barrier.wait(20)
        return True

    async def play() -> list[le.Trajectory]:
        agents = [Listed(le.Action.call("together"), "好的") for _ in range(40)]
        return await asyncio.gather(
            *(le.arollout(own_env(together), agent, seed=0) for agent in agents)
        )

    assert {trajectory.status for trajectory in asyncio.run(play())} == {"ok"}


def test_async_tools_of_sync_environments_share_a_loop_and_overlap_in_threads() -> None:
    barrier = asyncio.Barrier(4)
    loops = set()

    @le.tool
    async def together(context: le.ToolContext) -> bool:
        loops.add(asyncio.get_running_loop())
        await asyncio.wait_for(barrier.wait(), 20)
        return True

    class Starting:
        def start(self, observation: le.Observation, *, seed: Any) -> Listed:
            return Listed(le.Action.call("together"), "好的")

        def act(self, messages: Any, tools: Any) -> Any: ...

    group = le.rollout_group(lambda: own_env(together), Starting(), size=8, max_workers=4)
    assert {trajectory.status for trajectory in group} == {"ok"}
    assert len(loops) == 1


def test_an_async_tool_runs_in_a_sync_environment_inside_a_running_loop() -> None:
    async def notebook() -> str:
        env = own_env(slow_stock)
        env.reset(seed=0)
        call = le.Action.call("slow_stock", link_no=2, wait_s=0.01)
        return env.step(call)[0].messages[0].content

    assert asyncio.run(notebook()) == '{"left":2}'


@pytest.mark.filterwarnings("ignore:This process:DeprecationWarning")
def test_an_async_tool_runs_in_a_forked_child() -> None:
    sandbox = sandbox_of(slow_stock)
    called(sandbox, "slow_stock", link_no=1)
    context = multiprocessing.get_context("fork")
    queue = context.SimpleQueue()

    def work() -> None:
        queue.put(called(sandbox, "slow_stock", link_no=5).content)

    child = context.Process(target=work)
    child.start()
    child.join(20)
    assert child.exitcode == 0
    assert queue.get() == '{"left":5}'


# --- memory, context, state ------------------------------------------------------------------


def test_a_pure_tool_is_remembered_and_another_is_not() -> None:
    runs = {"pure": 0, "live": 0, "apure": 0}

    def counting(name: str, *, pure: bool) -> CustomTool:
        def look(context: le.ToolContext, x: Any) -> Any:
            runs[name] += 1
            if x == "wrong":
                raise le.ToolError("no")
            return x

        async def alook(context: le.ToolContext, x: Any) -> Any:
            return look(context, x)

        return le.tool(name=name, pure=pure)(alook if name == "apure" else look)

    tools = [counting("pure", pure=True), counting("live", pure=False)]
    tools.append(counting("apure", pure=True))

    async def acalled(sandbox: LocalSandbox, name: str, x: Any) -> ToolResult:
        return await sandbox.acall(ToolCall("y", name, FrozenDict(x=x)))

    for sandbox in (sandbox_of(*tools), sandbox_of(*tools)):
        for x in ({"a": 1, "b": 2}, {"b": 2, "a": 1}, "wrong", "wrong"):
            for name in runs:
                result = called(sandbox, name, x=x)
                assert asyncio.run(acalled(sandbox, name, x)) == replace(result, call_id="y")
                assert result.error == ("tool_error" if x == "wrong" else None)
    assert runs == {"pure": 2, "live": 16, "apure": 2}
    forgetful = sandbox_of(*tools, memory=False)
    for _ in range(2):
        called(forgetful, "pure", x="wrong")
    assert runs["pure"] == 4


def test_a_pure_tool_runs_anew_in_another_state() -> None:
    @le.tool(pure=True)
    def first(context: le.ToolContext) -> str:
        return context.state.product_order[0]

    sandbox = sandbox_of(first, "move_product")
    assert called(sandbox, "first").content == '"p1"'
    called(sandbox, "move_product", link_no=3, position=1)
    assert called(sandbox, "first").content == '"p3"'


def test_the_context_holds_the_room_as_of_now_without_its_key() -> None:
    seen: list[le.ToolContext] = []

    @le.tool
    def look(context: le.ToolContext) -> None:
        seen.append(context)

    for seed, comments, language in ((7, ["c2"], None), (8, ["c3", "c2"], "en")):
        options: dict[str, Any] = {"language": language}
        options["sandbox_options"] = {"tool_timeout_s": 2.5}
        env = own_env(look, "move_product", **options)
        env.reset(seed=seed, options={"comment": comments})
        env.step(le.Action.call("move_product", link_no=3, position=1))
        env.step(le.Action.call("look"))
    first, second = seen
    assert [comment.comment_id for comment in first.room.comments] == ["c1", "c2"]
    for comment in first.room.comments:
        assert (comment.follow_ups, comment.expected, comment.same_as) == ((), None, None)
    assert (first.state.at_s, first.state.product_order) == (40, ("p3", "p1", "p2"))
    assert (first.seed, first.comments, first.language, first.timeout_s) == (7, ("c2",), "zh", 2.5)
    assert (second.seed, second.comments, second.language) == (8, ("c2", "c3"), "en")


def test_the_idempotency_key_is_that_of_a_call_and_of_its_repeat() -> None:
    keys: list[str] = []

    @le.tool
    def buy(context: le.ToolContext, x: int) -> None:
        keys.append(context.idempotency_key)

    env = own_env(buy, max_same_tool=5)
    env.reset(seed=0)
    for x in (1, 1, 2):
        env.step(le.Action.call("buy", x=x))
    assert len(set(keys)) == 3
    fork = env.fork(at_turn=1)
    fork.step(le.Action.call("buy", x=1))
    assert keys[3] == keys[1]  # the same call under the same number
    other = env.fork(at_turn=1)
    other.step(le.Action.call("buy", x=5))
    assert keys[4] not in keys[:4]  # another call under that number
    env.reset(seed=1, options={"comment": "c1"})
    env.step(le.Action.call("buy", x=1))
    assert keys[5] not in keys[:5]


def test_a_write_makes_a_new_state_that_forks_do_not_share() -> None:
    env = own_env(pin_last, "move_product", max_same_tool=5)
    env.reset(seed=0)
    env.step(le.Action.call("pin_last"))
    env.step(le.Action.call("pin_last"))
    assert env.episode.state.product_order == ("p2", "p3", "p1")
    fork = env.fork(at_turn=1)
    assert fork.episode.state.product_order == ("p3", "p1", "p2")
    fork.step(le.Action.call("move_product", link_no=1, position=1))
    assert fork.episode.state.product_order == ("p1", "p3", "p2")
    assert env.episode.state.product_order == ("p2", "p3", "p1")
    assert pin_last.spec.mutates


def test_a_state_of_a_tool_that_declares_no_write_is_refused() -> None:
    silent = le.tool(name="silent")(pin_last.function)
    with pytest.raises(SandboxError, match="declare `mutates=True`"):
        called(sandbox_of(silent), "silent")


# --- sending it elsewhere --------------------------------------------------------------------


@pytest.mark.parametrize("dumps", [pickle.dumps, cloudpickle.dumps])
def test_an_environment_with_own_tools_pickles_in_mid_episode(dumps: Any) -> None:
    env = own_env(coupon_rpc, slow_stock, pin_last, named_apart)
    env.reset(seed=0)
    env.step(le.Action.call("pin_last"))
    twin = pickle.loads(dumps(env))
    for name, arguments in (
        ("coupon_rpc", {"link_no": 1}),
        ("slow_stock", {"link_no": 2}),
        ("pin_last", {}),
        ("another_name", {}),
    ):
        call = le.Action.call(name, **arguments)
        assert twin.step(call)[0] == env.step(call)[0]
    assert twin.episode.state == env.episode.state
    assert pickle.loads(dumps(coupon_rpc)) is coupon_rpc
    again = pickle.loads(dumps(named_apart))
    assert (again.spec, again.function) == (named_apart.spec, plain)


def test_a_tool_of_a_functions_body_goes_by_value_or_not_at_all() -> None:
    offset = 5

    @le.tool(facts={"库存": ("left", "piece")}, name="closure")
    def local(context: le.ToolContext, link_no: int) -> dict[str, int]:
        return {"left": link_no + offset}

    with pytest.raises((AttributeError, pickle.PicklingError), match="local"):
        pickle.dumps(local)
    again = pickle.loads(cloudpickle.dumps(local))
    assert called(sandbox_of(again), "closure", link_no=1) == called(
        sandbox_of(local), "closure", link_no=1
    )
    env = own_env(local)
    env.reset(seed=0)
    twin = copy.deepcopy(env)
    assert twin.step(le.Action.call("closure", link_no=1))[0].messages[0].content == '{"left":6}'


# --- the held-out tool -----------------------------------------------------------------------


def test_the_held_out_tool_is_offered_by_name_only() -> None:
    assert "compare_products" not in DEFAULT_TOOLS
    assert "compare_products" not in [spec.name for spec in resolve_tools(None, "zh")[0]]
    env = le.LiveRoomEnv(small_room(), embedder="lexical")
    assert "compare_products" not in repr(env.reset(seed=0)[0])


@pytest.mark.parametrize(
    ("language", "shown", "description"),
    [
        (
            "zh",
            {
                "结果": [
                    {"链接号": 1, "商品名": "原味腰果200克", "价格": 39.9, "券后价": 29.9}
                    | {"库存": 12},
                    {"链接号": 3, "商品名": "山楂条", "价格": "未知", "券后价": "未知", "库存": 0},
                ]
            },
            "并排",
        ),
        (
            "en",
            {
                "results": [
                    {"link_no": 1, "name": "原味腰果200克", "price": 39.9, "coupon_price": 29.9}
                    | {"stock": 12},
                    {"link_no": 3, "name": "山楂条", "price": "unknown"}
                    | {"coupon_price": "unknown", "stock": 0},
                ]
            },
            "side by side",
        ),
    ],
)
def test_the_held_out_tool_compares_products(
    language: Any, shown: dict[str, Any], description: str
) -> None:
    env = own_env("compare_products", "get_reply_rule", language=language)
    observation, _ = env.reset(seed=0)
    assert description in observation.tools[0].description
    env.step(le.Action.call("compare_products", link_nos=[1, 3]))
    result = env.trajectory.turns[0].results[0]
    assert json.loads(result.content) == shown
    assert Fact("product:p1", "coupon_price", 29.9, "yuan", "29.9") in result.data
    env.step(le.Action.call("compare_products", link_nos=[1, 9]))
    assert env.trajectory.turns[1].results[0].error == "unknown_link"


def test_no_bundled_room_mentions_the_held_out_tool_or_needs_it() -> None:
    for room_id in list_rooms():
        room = load_room(room_id)
        assert "compare_products" not in room.model_dump_json()
        env = le.LiveRoomEnv(room, comment=room.comments[0].comment_id, embedder="lexical")
        agent = le.ScriptedAgent(room)
        trajectory = le.rollout(env, agent, seed=0)
        calls = {c.name for turn in trajectory.turns for c in turn.action.message.tool_calls}
        assert calls <= set(DEFAULT_TOOLS)


# --- own words -------------------------------------------------------------------------------


@pytest.mark.row("R98")
def test_a_production_format_is_met_byte_for_byte() -> None:
    env = le.LiveRoomEnv(
        small_room(),
        comment="c3",
        embedder="lexical",
        on_missing_rule="remind",
        prompt=str(GOLDEN),
        result_format=str(GOLDEN / "result.j2"),
    )
    messages = list(env.reset(seed=0)[0].messages)
    search = "search_product_by_keyword"
    for action in (
        le.Action.calls((search, {"keyword": "1号和2号"}), (search, {"keyword": "火箭"})),
        le.Action.call("move_product", link_no=9, position=1),
        "有的",
        le.Action.call("get_reply_rule", intent=["物流", "尺码"]),
    ):
        messages += env.step(action)[0].messages
    text = "".join(f"[{message.role}]\n{message.content}\n" for message in messages)
    assert text.encode() == (GOLDEN / "transcript.txt").read_bytes()


@pytest.mark.row("R98")
def test_a_template_names_its_files_so_that_the_format_survives_json() -> None:
    options: dict[str, Any] = {"room": "snacks", "comment": "c10", "embedder": "lexical"}
    options |= {"prompt": str(GOLDEN), "result_format": str(GOLDEN / "result.j2")}
    env = gym.make("LiveRoom-v0", **options)
    assert env.spec is not None
    again = gym.make(gym.envs.registration.EnvSpec.from_json(env.spec.to_json()))
    call = le.Action.call("search_product_by_keyword", keyword="1号")
    assert env.reset(seed=1)[0] == again.reset(seed=1)[0]
    first = env.step(call)[0]
    assert first == again.step(call)[0]
    assert first.messages[0].content.startswith('已找到相关商品：[{"商品名": "')
