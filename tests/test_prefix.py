"""Replies to a recorded tool chain; forks at a turn, through local and remote sandboxes."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import Any

import gymnasium as gym
import pytest
from rooms_for_tests import small_room
from servers_for_tests import running
from test_env import small_env
from test_team import (
    FIND_RULE,
    LOOK_UP,
    Listed,
    agents_of,
    engine_of,
    host_prompt,
    llama,
    llama_agent,
    renderer_for,
    token_agent,
)
from test_token_agent import RULE, SEARCH, Engine
from tokenizers_for_tests import tokenizer

import livestream_env as le
from livestream_env.errors import GroupMismatch, RoomMismatch, RoomNotFound
from livestream_env.masking import REPLY
from livestream_env.sandbox import create_app
from livestream_env.training import training_rows
from livestream_env.types import Action, Trajectory

NAME = "qwen3_instruct_2507"
MOVE = Action.call("move_product", link_no=3, position=1)
ASKS = "亲，身高体重多少呢？"


def played(*actions: Any, seed: int = 0, **options: Any) -> Trajectory:
    return le.rollout(small_env(**options), Listed(*actions), seed=seed)


def chain(seed: int = 0) -> Trajectory:
    return played(LOOK_UP, MOVE, FIND_RULE, "好的", seed=seed)


def right(trajectory: Trajectory, room: Any) -> le.Rewards:
    return le.Rewards([le.Score("right", float(trajectory.reply == "对"), agent="replier")])


class Replies(le.TokenAgent):
    """Samples the reply that the seed names, with ids."""

    def __init__(self, *texts: str) -> None:
        super().__init__(lambda ids, stop: None, renderer_for(NAME))  # type: ignore[arg-type]
        self.texts = texts
        self.prompts: list[tuple[int, ...]] = []

    def start(self, observation: le.Observation, *, seed: Any) -> Any:
        engine = Engine(tokenizer("qwen"), [self.texts[seed[1]]])
        engine.prompts = self.prompts
        return le.TokenAgent(engine, self.renderer).start(observation, seed=seed)


# --- a group of replies ---------------------------------------------------------------------------


@pytest.mark.row("R25")
def test_replies_to_one_chain_share_their_prompt_ids_and_are_a_group() -> None:
    prefix = chain()
    agent = Replies("对", "错", "不对", "嗯")
    group = le.rollout_group(
        lambda: le.prefix_env(prefix, small_room(), rubric=right), agent, size=4, seed=0
    )
    assert [member.reward for member in group] == [1.0, 0.0, 0.0, 0.0]
    assert len(set(agent.prompts)) == 1
    whole = renderer_for(NAME).prompt_ids(prefix.messages[:-1], prefix.tools["host"])
    assert agent.prompts[0] == whole
    assert {member.turns[-1].action.prompt_ids for member in group} == {whole}
    assert len({member.group for member in group}) == 1
    assert str(group[0].group).startswith("prefix:")
    rows = training_rows(group, renderer_for(NAME), rubric=None)
    assert [row.agent for row in rows] == ["replier"] * 4
    given = [row.sample.advantage for row in rows if row.sample is not None]
    # FORMULAS.md B1, binary [1, 0, 0, 0], verl
    assert given == pytest.approx([1.499997, -0.499999, -0.499999, -0.499999], abs=1e-6)
    samples = [row.sample for row in rows if row.sample is not None]
    assert {sample.token_ids[: len(whole)] for sample in samples} == {whole}
    assert all(sum(s.loss_mask) == len(s.token_ids) - len(whole) for s in samples)


@pytest.mark.row("R25")
def test_a_chain_that_was_sampled_is_continued_id_by_id() -> None:
    spaced = RULE.replace(":", " :  ")
    caller = token_agent(SEARCH, spaced)
    recorded = le.rollout(
        small_env(), le.AgentTeam(tool_caller=caller, partners={"replier": None}), seed=0
    )
    replier = token_agent("好的")
    trajectory = le.rollout(le.prefix_env(recorded, small_room()), replier, seed=0)
    seen = engine_of(caller).prompts[1] + engine_of(caller).sampled[1]
    assert engine_of(replier).prompts[0][: len(seen)] == seen
    [sequence] = renderer_for(NAME).render(trajectory)
    assert sequence.token_ids == engine_of(replier).prompts[0] + engine_of(replier).sampled[0]
    assert sequence.turns == (2,)


def test_another_models_chain_is_shown_from_its_text() -> None:
    recorded = le.rollout(small_env(), token_agent(SEARCH, RULE, "好的"), seed=0)
    replier = llama_agent("好的")
    trajectory = le.rollout(le.prefix_env(recorded, small_room()), replier, seed=0)
    shown = llama().prompt_ids(recorded.messages[:-1], recorded.tools["host"])
    assert engine_of(replier).prompts == [shown]
    [sequence] = llama().render(trajectory)
    assert REPLY(sequence).token_ids == shown + engine_of(replier).sampled[0]


def test_the_chain_is_as_it_was_and_is_not_run_again() -> None:
    prefix = chain()
    env = le.prefix_env(prefix, small_room())
    observation, info = env.reset(seed=5)
    assert observation.messages == prefix.messages[:-1]
    assert observation.tools == prefix.tools["host"]
    assert (info["phase"], info["agent"], info["turn"]) == ("reply", "replier", 3)
    sandbox_state = env.sandbox.call(replace(LOOK_UP.message.tool_calls[0], id="x")).state
    assert sandbox_state is None
    env.step("好的")
    assert env.trajectory.state == prefix.state
    assert env.trajectory.state.product_order[0] == "p3"
    assert agents_of(env.trajectory) == ["tool_caller"] * 3 + ["replier"]
    assert env.trajectory.partners == ("tool_caller",)
    assert (env.trajectory.stop_reason, env.trajectory.evidence) == ("replied", prefix.evidence)
    loaded = Trajectory.model_validate_json(env.trajectory.model_dump_json())
    assert loaded == env.trajectory


@pytest.mark.row("R25")
def test_the_group_names_the_chain_and_nothing_else() -> None:
    def group_of(trajectory: Trajectory) -> str | None:
        env = le.prefix_env(trajectory, small_room())
        env.reset(seed=0)
        env.step("好的")
        return env.trajectory.group

    first = group_of(chain())
    assert group_of(chain()) == first
    assert group_of(played(LOOK_UP, MOVE, FIND_RULE, "别的")) == first
    assert group_of(played(LOOK_UP, FIND_RULE, "好的")) != first
    assert group_of(chain(seed=2)) != first


def test_the_reward_of_a_recorded_chain_is_that_of_the_whole_episode() -> None:
    env = gym.make("LiveRoom-v0", room="snacks", embedder="lexical", rubric="multi22")
    room = env.unwrapped.rooms[0]  # type: ignore[attr-defined]
    whole = le.rollout(env, le.ScriptedAgent(room), seed=1)
    again = le.rollout(le.prefix_env(whole, rubric="multi22"), Listed(whole.reply), seed=0)
    assert (again.rewards, again.reward) == (whole.rewards, whole.reward)
    assert again.reward is not None


def test_seats_of_a_recorded_team_keep_their_prompts_and_tools() -> None:
    team = le.AgentTeam(
        tool_caller=Listed(LOOK_UP, FIND_RULE),
        replier=Listed("好的"),
        prompts={"replier": host_prompt("回复")},
        tools={
            "tool_caller": ["search_faq", "get_reply_rule"],
            "replier": ["get_reply_rule", "search_script", "search_faq"],
        },
    )
    recorded = le.rollout(small_env(), team, seed=0)
    agent = Listed("好的")
    again = le.rollout(le.prefix_env(recorded, small_room()), agent, seed=0)
    assert (again.prompts, again.tools) == (recorded.prompts, recorded.tools)
    assert [tools for _, tools in agent.told] == [recorded.tools["replier"]]
    assert again.messages == recorded.messages
    assert tuple(agent.told[0][0]) == (*recorded.prompts["replier"], *recorded.messages[2:-1])


def test_a_reply_that_asks_is_final() -> None:
    size = Action.call("get_reply_rule", intent="尺码")
    prefix = played(size, ASKS, size, "L码哦", seed=1)
    assert len(prefix.turns) == 4
    env = le.prefix_env(prefix, small_room())
    env.reset(seed=0)
    assert len(env.episode.turns) == 1
    env.step(ASKS)
    assert env.trajectory.stop_reason == "replied"


def test_look_ups_behind_the_rule_belong_to_the_chain() -> None:
    prefix = played(FIND_RULE, LOOK_UP, LOOK_UP, "好的")
    env = le.prefix_env(prefix, small_room())
    env.reset(seed=0)
    assert len(env.episode.turns) == 3
    assert not env.step(LOOK_UP)[2]
    assert env.step("好的")[2]
    assert env.trajectory.stop_reason == "replied"


def test_seeds_visit_several_chains() -> None:
    other = small_room(room_id="other")
    there = le.rollout(le.LiveRoomEnv(other, embedder="lexical"), Listed(FIND_RULE, "好的"), seed=2)
    env = le.prefix_env([chain(), there], [small_room(), other])
    assert env.tasks == 2
    seen = []
    for seed in range(4):
        env.reset(seed=seed)
        seen.append((env.episode.view.room_id, list(env.episode.tasks)))
    assert seen == [("small", ["c1"]), ("other", ["c3"])] * 2


def test_members_of_two_chains_are_no_group() -> None:
    chains = iter([chain(), played(LOOK_UP, FIND_RULE, "好的")])
    with pytest.raises(GroupMismatch):
        le.rollout_group(
            lambda: le.prefix_env(next(chains), small_room()), Listed("好的", "好的"), size=2
        )


def test_what_cannot_be_a_prefix_is_refused() -> None:
    with pytest.raises(ValueError, match="looks no reply rule up"):
        le.prefix_env(played(LOOK_UP, "好的"), small_room())
    with pytest.raises(RoomMismatch, match="another"):
        le.prefix_env(chain(), small_room(title="别的店"))
    with pytest.raises(RoomNotFound, match="`other`"):
        le.prefix_env(chain(), small_room(room_id="other"))
    with pytest.raises(RoomNotFound):
        le.prefix_env(chain())
    with pytest.raises(ValueError, match="empty"):
        le.prefix_env([])
    with pytest.raises(TypeError, match="`prefixes` holds 'x'; give trajectories"):
        le.prefix_env("x")  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="choose it by the seed"):
        le.prefix_env(chain(), small_room()).reset(options={"comment": "c2"})


def test_an_environment_behind_a_chain_forks_behind_it() -> None:
    env = le.prefix_env(chain(), small_room())
    env.reset(seed=0)
    branch = env.fork()
    branch.step("好的")
    assert branch.episode.done
    assert not env.episode.done
    assert env.fork(at_turn=3).episode.phase == "reply"
    with pytest.raises(ValueError, match="within the chain"):
        env.fork(at_turn=1)


# --- forks ----------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def url() -> Iterator[str]:
    with running(create_app()) as base:
        yield base


def actions_of(branch: int) -> Sequence[Any]:
    moves = [Action.call("move_product", link_no=2, position=1), LOOK_UP]
    return [moves[branch], FIND_RULE, "好的"]


@pytest.mark.row("R25")
@pytest.mark.parametrize("agents", [["host"], ["tool_caller", "replier"]])
def test_forks_at_a_turn_are_the_same_here_and_over_a_real_server(
    url: str, agents: list[str]
) -> None:
    ends: dict[str, list[Any]] = {}
    for sandbox in ("local", url):
        env = le.LiveRoomEnv(small_room(), sandbox=sandbox, embedder="lexical")
        env.reset(seed=0, options={"agents": agents})
        for action in (LOOK_UP, MOVE):
            env.step(action)
        forks = [env.fork(at_turn=1), env.fork(at_turn=2), env.fork(at_turn=1)]
        for branch, fork in zip((0, 0, 1), forks, strict=True):
            for action in actions_of(branch):
                fork.step(action)
        env.step(FIND_RULE)
        env.step("好的")
        ends[sandbox] = [
            (one.trajectory.messages, one.trajectory.state, agents_of(one.trajectory))
            for one in (*forks, env)
        ]
        for one in (*forks, env):
            one.close()
    assert ends["local"] == ends[url]
    orders = [state.product_order for _, state, _ in ends[url]]
    assert orders == [
        ("p2", "p1", "p3"),
        ("p2", "p3", "p1"),
        ("p1", "p2", "p3"),
        ("p3", "p1", "p2"),
    ]


def test_an_agent_plays_on_from_a_fork_with_the_ids_so_far() -> None:
    env = small_env()
    le.rollout(env, token_agent(SEARCH, RULE, "好的"), seed=0)
    from livestream_env.drivers import play_on

    agent = token_agent("不好")
    branch = play_on(env.fork(at_turn=2), agent, seed=1)
    assert branch.messages[:-1] == env.trajectory.messages[:-1]
    assert engine_of(agent).prompts == [env.trajectory.turns[2].action.prompt_ids]
