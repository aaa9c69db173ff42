"""Sub-agents on forks: run apart, joined, and learnt from apart."""

from __future__ import annotations

from typing import Any

import pytest
from rooms_for_tests import small_room
from test_env import failing_env, small_env
from test_team import FIND_RULE, LOOK_UP, Listed, engine_of, renderer_for, token_agent
from test_token_agent import RULE, SEARCH

import livestream_env as le
from livestream_env.masking import END_TO_END
from livestream_env.training import training_rows
from livestream_env.types import Action, Trajectory

NAME = "qwen3_instruct_2507"
PRICE = '<tool_call>{"name":"search_product_by_keyword","arguments":{"keyword":"腰果"}}</tool_call>'
MOVE = Action.call("move_product", link_no=3, position=1)


def worth(trajectory: Trajectory, room: Any) -> le.Rewards:
    return le.Rewards([le.Score("worth", float(trajectory.reply == "对"))])


def sampled() -> tuple[le.TokenAgent, dict[str, le.TokenAgent]]:
    host = token_agent(RULE, "对")
    return host, {"finder": token_agent(SEARCH, "完"), "pricer": token_agent(PRICE, "完")}


@pytest.mark.row("R64")
def test_sub_agents_look_up_apart_and_the_host_knows_it_all() -> None:
    branches = {
        "finder": Listed(LOOK_UP, MOVE, LOOK_UP),
        "pricer": Listed(Action.call("search_product_by_keyword", keyword="腰果"), "完"),
    }
    host = Listed(FIND_RULE, "好的")
    joined, finder, pricer = le.rollout_branches(small_env(), host, branches, seed=0)
    assert [turn.agent for turn in joined.turns] == ["finder", "finder", "pricer", "host", "host"]
    assert joined.stop_reason == "replied"
    assert joined.state is not None
    assert joined.state.product_order[0] == "p3"
    assert [len(told) for told, _ in branches["pricer"].told] == [2, 4]
    assert tuple(host.told[0][0]) == joined.messages[:8]
    assert [turn.agent for turn in finder.turns] == ["finder"] * 2
    assert [turn.agent for turn in pricer.turns] == ["pricer"] * 2
    assert pricer.state is not None
    assert pricer.state.product_order[0] == "p1"
    own = [turn.results[0].data for turn in (*finder.turns, pricer.turns[0])]
    assert [turn.results[0].data for turn in joined.turns[:3]] == own
    ids = [call.id for turn in joined.turns for call in turn.action.message.tool_calls]
    assert len(set(ids)) == len(ids) == 4


@pytest.mark.row("R64")
def test_the_advantage_keys_of_sub_agents_are_separate() -> None:
    played: list[Trajectory] = []
    engines: dict[str, list[Any]] = {"finder": [], "pricer": [], "host": []}
    for reply in ("对", "错", "不对", "嗯"):
        host, branches = sampled()
        host = token_agent(RULE, reply)
        env = small_env(rubric=worth)
        played += le.rollout_branches(env, host, branches, seed=0)
        for name, agent in {**branches, "host": host}.items():
            engines[name] += engine_of(agent).sampled
    assert len({trajectory.group for trajectory in played}) == 1
    agents = dict.fromkeys(("host", "finder", "pricer"), END_TO_END)
    rows = training_rows(played, renderer_for(NAME), agents=agents, rubric=None)
    assert [(row.agent, row.excluded) for row in rows] == [
        ("host", None),
        ("finder", None),
        ("pricer", None),
    ] * 4
    for name in agents:
        samples = [row.sample for row in rows if row.agent == name and row.sample is not None]
        # FORMULAS.md B1, binary [1, 0, 0, 0], verl: for each agent on its own
        expected = [1.499997, -0.499999, -0.499999, -0.499999]
        assert [s.advantage for s in samples] == pytest.approx(expected, abs=1e-6)
        trained = [
            token
            for sample in samples
            for token, bit in zip(sample.token_ids, sample.loss_mask, strict=True)
            if bit
        ]
        assert trained == [token for ids in engines[name] for token in ids]


@pytest.mark.row("R64")
def test_a_sub_agents_row_is_the_context_that_it_sampled_in() -> None:
    host, branches = sampled()
    joined, *apart = le.rollout_branches(small_env(), host, branches, seed=0)
    for (name, agent), branch in zip(branches.items(), apart, strict=True):
        [sequence] = renderer_for(NAME).render(branch)
        engine = engine_of(agent)
        assert sequence.token_ids == engine.prompts[-1] + engine.sampled[-1]
        assert (sequence.agent, sequence.exact) == (name, True)
    [sequence] = renderer_for(NAME).render(joined)
    assert sequence.turns == (2, 3)
    assert sequence.token_ids == engine_of(host).prompts[-1] + engine_of(host).sampled[-1]


def test_a_missing_reward_of_the_episode_is_missing_for_the_branches() -> None:
    def failed(trajectory: Trajectory, room: Any) -> le.Rewards:
        return le.Rewards([le.Score("worth", None, cause="timeout")])

    branches = {"finder": Listed(LOOK_UP, LOOK_UP)}
    host = Listed(FIND_RULE, "好的")
    _, finder = le.rollout_branches(small_env(rubric=failed), host, branches, seed=0)
    assert finder.rewards is not None
    assert (finder.rewards.total("finder"), finder.rewards.scores[0].cause) == (None, "timeout")
    host = Listed(FIND_RULE, "好的")
    branches = {"finder": Listed(LOOK_UP, LOOK_UP)}
    _, finder = le.rollout_branches(small_env(rubric=None), host, branches, seed=0)
    assert finder.rewards is None


def test_failing_infrastructure_marks_what_failed() -> None:
    [reset] = le.rollout_branches(failing_env(-1), Listed(), {"finder": Listed()}, seed=0)
    assert reset.status == "env_error"
    played = le.rollout_branches(
        failing_env(0), Listed(FIND_RULE), {"finder": Listed(LOOK_UP, "完")}, seed=0
    )
    assert [(one.status, one.stop_reason) for one in played] == [("env_error", "env_error")] * 2
    assert all(one.reward is None for one in played)


def test_members_of_a_group_sample_apart() -> None:
    seeds: list[Any] = []

    class Starting(Listed):
        def start(self, observation: Any, *, seed: Any) -> Listed:
            seeds.append(seed)
            return Listed(*self.actions)

    branches = {"a": Starting(LOOK_UP, "完"), "b": Starting(LOOK_UP, "完")}
    for member in range(2):
        le.rollout_branches(
            small_env(), Listed(FIND_RULE, "好的"), branches, seed=0, agent_seed=(0, member)
        )
    assert len(set(seeds)) == 4


def test_branches_need_names_of_their_own() -> None:
    for branches in ({}, {"host": Listed()}):
        with pytest.raises(ValueError, match="other than `host`"):
            le.rollout_branches(small_env(), Listed(), branches)
    with pytest.raises(ValueError, match="1 or more turns"):
        le.rollout_branches(small_env(), Listed(), {"a": Listed()}, max_turns=0)


def test_sub_agents_look_up_over_a_server_as_here() -> None:
    from servers_for_tests import running

    from livestream_env.sandbox import create_app

    def ends(sandbox: str) -> list[Any]:
        branches = {"a": Listed(LOOK_UP, MOVE), "b": Listed(LOOK_UP, LOOK_UP)}
        env = le.LiveRoomEnv(small_room(), sandbox=sandbox, embedder="lexical")
        played = le.rollout_branches(env, Listed(FIND_RULE, "好的"), branches, seed=0)
        env.close()
        return [(one.messages, one.state) for one in played]

    with running(create_app()) as url:
        assert ends(url) == ends("local")
