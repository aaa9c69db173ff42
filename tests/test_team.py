"""Teams: seats with their own prompts, tools, templates and endpoints; partners; whose ids are
whose."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
from test_env import small_env
from test_token_agent import REPLIED, RULE, SEARCH, Engine, renderer_for
from tokenizers_for_tests import pretty, template, tokenizer

import livestream_env as le
from livestream_env.masking import END_TO_END, REPLY, TOOL_CALLS
from livestream_env.renderers import ChatTemplateRenderer
from livestream_env.training import training_rows
from livestream_env.types import Action, Message, ToolSpec, Trajectory

NAME = "qwen3_instruct_2507"
LOOK_UP = Action.call("search_faq", query="发货")
FIND_RULE = Action.call("get_reply_rule", intent="物流")


class Listed:
    """An agent that plays a list of actions and keeps what it was told."""

    def __init__(self, *actions: Any) -> None:
        self.actions = actions
        self.told: list[tuple[list[Message], tuple[ToolSpec, ...]]] = []

    def act(self, messages: Sequence[Message], tools: Sequence[ToolSpec]) -> Any:
        self.told.append((list(messages), tuple(tools)))
        return self.actions[len(self.told) - 1]


class AsyncListed(Listed):
    async def act(self, messages: Sequence[Message], tools: Sequence[ToolSpec]) -> Any:
        await asyncio.sleep(0)
        return super().act(messages, tools)


def token_agent(*texts: str, renderer: Any = None) -> le.TokenAgent:
    """Make an agent with its own renderer, by default of the template `NAME`."""
    renderer = renderer or renderer_for(NAME)
    return le.TokenAgent(Engine(renderer.tokenizer, texts), renderer)


def llama() -> ChatTemplateRenderer:
    return ChatTemplateRenderer(tokenizer("llama"), chat_template=template("llama3_1"))


def llama_agent(*texts: str) -> le.TokenAgent:
    made = llama()
    return le.TokenAgent(Engine(made.tokenizer, texts, "<|eot_id|>"), made)


def engine_of(agent: le.TokenAgent) -> Engine:
    assert isinstance(agent.generate, Engine)
    return agent.generate


def agents_of(trajectory: Trajectory) -> list[str]:
    return [turn.agent for turn in trajectory.turns]


def host_prompt(text: str) -> Any:
    """Make a prompt whose system text is `text`."""
    return lambda view, tools, *, max_same_tool: [
        Message("system", text),
        Message("user", view.comments[0].text),
    ]


# --- seats ------------------------------------------------------------------------------------


@pytest.mark.row("R50", "R52")
def test_each_turn_goes_to_the_seat_whose_turn_it_is() -> None:
    caller, replier = Listed(LOOK_UP, FIND_RULE), Listed("好的")
    trajectory = le.rollout(small_env(), le.AgentTeam(tool_caller=caller, replier=replier), seed=0)
    assert trajectory.stop_reason == "replied"
    assert agents_of(trajectory) == ["tool_caller", "tool_caller", "replier"]
    assert [len(told) for told, _ in caller.told] == [2, 4]
    [(told, tools)] = replier.told
    assert tuple(told) == trajectory.messages[:-1]
    assert tools == caller.told[0][1]


def test_seats_have_their_own_prompts_and_tools(tmp_path: Path) -> None:
    folder = tmp_path / "caller"
    folder.mkdir()
    (folder / "system.j2").write_text("查 {{ tools | length }}", encoding="utf-8")
    caller = Listed(LOOK_UP, Action.call("search_script", query="腰果"), FIND_RULE)
    replier = Listed("好的")
    team = le.AgentTeam(
        tool_caller=caller,
        replier=replier,
        prompts={"tool_caller": str(folder), "replier": host_prompt("回复")},
        tools={"tool_caller": ["get_reply_rule", "search_faq"], "replier": []},
    )
    trajectory = le.rollout(small_env(), team, seed=0)
    assert trajectory.prompts["tool_caller"][0].content == "查 2"
    assert trajectory.prompts["replier"] == (Message("system", "回复"), Message("user", "啥时候寄"))
    names = {agent: [s.name for s in specs] for agent, specs in trajectory.tools.items()}
    assert {n: sorted(v) for n, v in names.items()} == {
        "tool_caller": ["get_reply_rule", "search_faq"],
        "replier": [],
    }
    assert [[s.name for s in tools] for _, tools in caller.told] == [names["tool_caller"]] * 3
    assert [tools for _, tools in replier.told] == [()]
    assert replier.told[0][0][2:] == caller.told[2][0][2:] + list(trajectory.messages[-3:-1])
    assert trajectory.turns[1].results[0].error == "tool_not_available"
    assert le.Trajectory.model_validate_json(trajectory.model_dump_json()) == trajectory


def test_a_tool_that_a_seat_lacks_is_not_counted_as_run() -> None:
    env = small_env()
    team = le.AgentTeam(
        tool_caller=Listed(LOOK_UP, LOOK_UP, LOOK_UP, FIND_RULE),
        replier=Listed("好的"),
        tools={"tool_caller": ["get_reply_rule"]},
    )
    trajectory = le.rollout(env, team, seed=0)
    kinds = [[event.kind for event in turn.events] for turn in trajectory.turns]
    assert kinds == [["tool_not_available"]] * 3 + [[], []]
    assert env.episode.calls_executed == 1
    assert env.fork(at_turn=4).episode.calls_executed == 1


def test_follow_ups_go_to_the_tool_caller_again() -> None:
    size = Action.call("get_reply_rule", intent="尺码")
    team = le.AgentTeam(
        tool_caller=Listed(size, size), replier=Listed("亲，身高体重多少呢？", "L码哦")
    )
    trajectory = le.rollout(small_env(), team, seed=1)
    assert agents_of(trajectory) == ["tool_caller", "replier"] * 2
    assert trajectory.stop_reason == "replied"


def test_one_agent_may_play_both_seats_as_one() -> None:
    both = Listed(LOOK_UP, FIND_RULE, "好的")
    team = le.AgentTeam(tool_caller=both, replier=both)
    assert agents_of(le.rollout(small_env(), team, seed=0)) == ["tool_caller"] * 2 + ["replier"]
    options = {"agents": ["tool_caller", "replier"]}
    room = small_env().rooms[0]
    trajectory = le.rollout(small_env(), le.ScriptedAgent(room), seed=0, options=options)
    assert trajectory.stop_reason == "replied"
    assert set(agents_of(trajectory)) == {"tool_caller", "replier"}


def test_async_members_play_in_an_event_loop_and_nowhere_else() -> None:
    def team(kind: type[Listed]) -> le.AgentTeam:
        return le.AgentTeam(tool_caller=kind(LOOK_UP, FIND_RULE), replier=kind("好的"))

    awaited = asyncio.run(le.arollout(small_env(), team(AsyncListed), seed=0))
    plain = le.rollout(small_env(), team(Listed), seed=0)
    assert awaited.messages == plain.messages
    assert agents_of(awaited) == agents_of(plain)
    assert asyncio.run(le.arollout(small_env(), team(Listed), seed=0)).messages == plain.messages
    with pytest.warns(RuntimeWarning), pytest.raises(TypeError, match="use `arollout`"):
        le.rollout(small_env(), team(AsyncListed), seed=0)


@pytest.mark.parametrize("workers", [1, 4])
def test_a_group_of_teams_plays_in_threads(workers: int) -> None:
    class Starting(Listed):
        def start(self, observation: Any, *, seed: Any) -> Listed:
            return Listed(*self.actions)

    team = le.AgentTeam(tool_caller=Starting(FIND_RULE), replier=Starting("好的"))
    group = le.rollout_group(small_env, team, size=6, seed=0, max_workers=workers)
    assert [agents_of(member) for member in group] == [["tool_caller", "replier"]] * 6
    assert {member.group for member in group} == {"small:c1:0"}


def test_a_team_is_evaluated_and_its_members_may_be_made_for_the_room() -> None:
    class Always(Listed):
        def act(self, messages: Sequence[Message], tools: Sequence[ToolSpec]) -> Any:
            return "好的"

    team = le.AgentTeam(tool_caller=le.ScriptedAgent, replier=Always())
    evaluation = le.evaluate(small_env, team, seeds=[0, 1], rubric="multi22")
    played = [result.trajectory for result in evaluation.results]
    assert [one.reply for one in played] == ["好的", "好的"]
    assert all(set(agents_of(one)) == {"tool_caller", "replier"} for one in played)


@pytest.mark.parametrize(
    ("given", "match"),
    [
        ({"tool_caller": Listed()}, "`replier` is filled by nobody"),
        (
            {"tool_caller": Listed(), "replier": Listed(), "partners": {"replier": None}},
            "`replier` is filled twice",
        ),
        ({"replier": Listed(), "partners": {"tool_caller": None}}, "only a replier's may"),
        ({"tool_caller": Listed(), "partners": {"repliers": None}}, "Did you mean `replier`"),
        ({"tool_caller": Listed(), "replier": "http://x"}, "chat:"),
        ({"tool_caller": Listed(), "replier": 3}, "`replier` is 3"),
    ],
)
def test_a_team_that_cannot_play_is_refused(given: Any, match: str) -> None:
    with pytest.raises((ValueError, TypeError), match=match):
        le.AgentTeam(**given)


@pytest.mark.parametrize(
    ("tools", "match"), [(["search_fag"], "Did you mean `search_faq`"), ("search_faq", "list")]
)
def test_tools_of_a_seat_are_checked(tools: Any, match: str) -> None:
    team = le.AgentTeam(tool_caller=Listed(), replier=Listed(), tools={"tool_caller": tools})
    with pytest.raises((ValueError, TypeError), match=match):
        le.rollout(small_env(), team, seed=0)


def test_a_team_acts_through_a_driver_alone() -> None:
    with pytest.raises(RuntimeError, match="rollout"):
        le.AgentTeam(tool_caller=Listed(), replier=Listed()).act([], [])


# --- token ids --------------------------------------------------------------------------------


@pytest.mark.row("R52")
@pytest.mark.parametrize("name", ["qwen3_instruct_2507", "qwen2_5"])
def test_the_repliers_prompt_is_the_tool_callers_transcript_id_by_id(name: str) -> None:
    caller = token_agent(SEARCH, RULE, renderer=renderer_for(name))
    replier = token_agent(REPLIED, renderer=renderer_for(name))
    team = le.AgentTeam(tool_caller=caller, replier=replier)
    trajectory = le.rollout(small_env(), team, seed=0)
    assert agents_of(trajectory) == ["tool_caller", "tool_caller", "replier"]
    [prompt] = engine_of(replier).prompts
    transcript = engine_of(caller).prompts[1] + engine_of(caller).sampled[1]
    assert prompt[: len(transcript)] == transcript
    result = trajectory.turns[1].messages[0].content
    assert pretty(prompt[len(transcript) :], tokenizer("qwen")) == (
        f"\n<|im_start|>user\n<tool_response>\n{result}\n</tool_response><|im_end|>\n"
        "<|im_start|>assistant\n"
    )
    [sequence] = renderer_for(name).render(trajectory)
    assert sequence.exact
    assert sequence.token_ids == prompt + engine_of(replier).sampled[0]


@pytest.mark.row("R52")
def test_what_was_sampled_is_kept_where_the_template_would_spell_it_otherwise() -> None:
    spaced = RULE.replace(":", " :  ")
    caller, replier = token_agent(spaced), token_agent(REPLIED)
    trajectory = le.rollout(small_env(), le.AgentTeam(tool_caller=caller, replier=replier), seed=0)
    [prompt] = engine_of(replier).prompts
    seen = engine_of(caller).prompts[0] + engine_of(caller).sampled[0]
    assert prompt[: len(seen)] == seen
    anew = renderer_for(NAME).prompt_ids(trajectory.messages[:-1], trajectory.tools["replier"])
    assert anew != prompt


@pytest.mark.row("R52")
def test_one_policy_in_both_seats_sees_one_growing_context() -> None:
    both = token_agent(SEARCH, RULE, REPLIED)
    alone = token_agent(SEARCH, RULE, REPLIED)
    le.rollout(small_env(), le.AgentTeam(tool_caller=both, replier=both), seed=0)
    le.rollout(small_env(), alone, seed=0)
    assert engine_of(both).prompts == engine_of(alone).prompts


def test_a_follow_up_gives_each_agent_the_others_ids() -> None:
    size = RULE.replace("物流", "尺码")
    caller, replier = token_agent(size, size), token_agent("亲，身高体重多少呢？", "L码哦")
    le.rollout(small_env(), le.AgentTeam(tool_caller=caller, replier=replier), seed=1)
    grown: tuple[int, ...] = ()
    for k in (0, 1):
        for engine in (engine_of(caller), engine_of(replier)):
            assert engine.prompts[k][: len(grown)] == grown
            grown = engine.prompts[k] + engine.sampled[k]


@pytest.mark.row("R52", "R90")
def test_two_tokenizers_each_render_their_own_agent() -> None:
    caller, replier = token_agent(SEARCH, RULE), llama_agent(REPLIED)
    trajectory = le.rollout(small_env(), le.AgentTeam(tool_caller=caller, replier=replier), seed=0)
    assert trajectory.stop_reason == "replied"
    messages, tools = trajectory.messages[:-1], trajectory.tools["replier"]
    assert engine_of(replier).prompts == [llama().prompt_ids(messages, tools)]
    [own] = renderer_for(NAME).render(trajectory, ["tool_caller"])
    assert own.exact
    sample = TOOL_CALLS(own)
    trained = [i for i, bit in zip(sample.token_ids, sample.loss_mask, strict=True) if bit]
    assert trained == [i for ids in engine_of(caller).sampled for i in ids]
    [other] = llama().render(trajectory, ["replier"])
    sample = REPLY(other)
    assert sample.token_ids == engine_of(replier).prompts[0] + engine_of(replier).sampled[0]
    assert sum(sample.loss_mask) == len(engine_of(replier).sampled[0])


@pytest.mark.row("R52", "R90")
def test_two_tokenizers_make_training_rows_of_two_agents() -> None:
    caller, replier = token_agent(SEARCH, RULE), llama_agent(REPLIED)
    env = small_env(rubric="multi22")
    trajectory = le.rollout(env, le.AgentTeam(tool_caller=caller, replier=replier), seed=0)
    scored = trajectory.model_copy(update={"rewards": le.Rewards(_both(1.0, 0.5))})
    renderers = {"tool_caller": renderer_for(NAME), "replier": llama()}
    rows = training_rows([scored], renderers, rubric=None)
    assert [(row.agent, row.reward, row.excluded) for row in rows] == [
        ("tool_caller", 1.0, None),
        ("replier", 0.5, None),
    ]
    assert rows[1].sample is not None
    assert rows[1].sample.token_ids == (
        engine_of(replier).prompts[0] + engine_of(replier).sampled[0]
    )


def _both(caller: float, replier: float) -> list[le.Score]:
    return [
        le.Score("a", caller, agent="tool_caller"),
        le.Score("b", replier, agent="replier"),
    ]


def test_agents_with_their_own_prompts_have_their_own_sequences() -> None:
    caller, replier = token_agent(RULE), token_agent(REPLIED)
    team = le.AgentTeam(
        tool_caller=caller,
        replier=replier,
        prompts={"replier": host_prompt("只回复")},
        tools={"replier": []},
    )
    trajectory = le.rollout(small_env(), team, seed=0)
    sequences = renderer_for(NAME).render(trajectory)
    assert [sequence.agent for sequence in sequences] == ["tool_caller", "replier"]
    [prompt] = engine_of(replier).prompts
    assert "只回复" in pretty(prompt[:40], tokenizer("qwen"))
    assert "# Tools" not in pretty(prompt, tokenizer("qwen"))
    assert sequences[1].token_ids == prompt + engine_of(replier).sampled[0]


# --- partners ---------------------------------------------------------------------------------


@pytest.mark.row("R50")
def test_without_a_replier_the_episode_ends_with_the_rules_turn() -> None:
    team = le.AgentTeam(tool_caller=token_agent(SEARCH, RULE), partners={"replier": None})
    trajectory = le.rollout(small_env(), team, seed=0)
    assert (trajectory.stop_reason, trajectory.status) == ("tools_done", "ok")
    assert agents_of(trajectory) == ["tool_caller"] * 2
    assert list(trajectory.prompts) == ["tool_caller"]
    [sequence] = renderer_for(NAME).render(trajectory)
    assert sequence.turns == (0, 1)


def test_a_partners_tokens_are_never_trained() -> None:
    caller = token_agent(SEARCH, RULE)
    team = le.AgentTeam(tool_caller=caller, partners={"replier": Listed("好的")})
    trajectory = le.rollout(small_env(), team, seed=0)
    assert (trajectory.partners, trajectory.stop_reason) == (("replier",), "replied")
    [sequence] = renderer_for(NAME).render(trajectory)
    assert sequence.exact
    sample = END_TO_END(sequence)
    trained = [i for i, bit in zip(sample.token_ids, sample.loss_mask, strict=True) if bit]
    assert trained == [i for ids in engine_of(caller).sampled for i in ids]
    assert END_TO_END.turns(trajectory) == (True, True, False)
    assert REPLY.turns(trajectory) == (False, False, False)
    scored = trajectory.model_copy(update={"rewards": le.Rewards(_both(1.0, 0.5))})
    rows = training_rows([scored], renderer_for(NAME), rubric=None)
    assert [row.agent for row in rows] == ["tool_caller"]


def test_a_frozen_tool_caller_is_the_trained_repliers_context() -> None:
    size = "尺码"
    replier = token_agent("亲，身高体重多少呢？", "L码哦")
    partner = Listed(
        Action.call("get_reply_rule", intent=size), Action.call("get_reply_rule", intent=size)
    )
    team = le.AgentTeam(replier=replier, partners={"tool_caller": partner})
    trajectory = le.rollout(small_env(), team, seed=1)
    assert agents_of(trajectory) == ["tool_caller", "replier"] * 2
    sequences = renderer_for(NAME).render(trajectory)
    engine = engine_of(replier)
    assert [s.token_ids for s in sequences] == [
        p + s for p, s in zip(engine.prompts, engine.sampled, strict=True)
    ]
    assert [sum(REPLY(s).loss_mask) for s in sequences] == list(map(len, engine.sampled))


def test_a_partner_may_stand_behind_an_endpoint() -> None:
    import httpx

    asked: list[Any] = []

    def answer(request: httpx.Request) -> httpx.Response:
        asked.append(json.loads(request.content))
        message = {"role": "assistant", "content": "48小时内发货哦"}
        choice = {"index": 0, "message": message, "finish_reason": "stop"}
        return httpx.Response(
            200, json={"id": "1", "object": "chat.completion", "choices": [choice]}
        )

    team = le.AgentTeam(
        tool_caller=token_agent(SEARCH, RULE),
        partners={"replier": "chat:http://127.0.0.1:9/v1#frozen"},
    )
    partner = team.members["replier"]
    assert (type(partner).__name__, partner.client.model) == ("ChatAgent", "frozen")
    partner.client = le.ChatClient(
        "http://127.0.0.1:9/v1", "frozen", transport=httpx.MockTransport(answer)
    )
    trajectory = le.rollout(small_env(), team, seed=0)
    assert trajectory.reply == "48小时内发货哦"
    assert [m["role"] for m in asked[0]["messages"]][-2:] == ["assistant", "tool"]
    [sequence] = renderer_for(NAME).render(trajectory)
    assert sequence.turns == (0, 1)
    named = le.AgentTeam(
        tool_caller="chat:http://127.0.0.1:9/v1#a",
        partners={"replier": "chat:http://127.0.0.1:9/v1#b"},
        is_async=True,
    )
    assert {type(member).__name__ for member in named.members.values()} == {"AsyncChatAgent"}
