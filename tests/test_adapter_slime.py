"""The slime adapter: token ids through a fake router over HTTP, slime itself stood in for."""

from __future__ import annotations

import asyncio
import json
import pkgutil
import sys
from collections.abc import Iterator
from itertools import compress
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import httpx
import pytest
import yaml
from conformance import CASES, PRICE, Case, assert_closed, assert_same, expected, tokenizer_of
from pages_for_tests import snippets
from slime_for_tests import (
    Router,
    Sample,
    Status,
    answer,
    arguments,
    converted,
    installed,
    routed,
    sampling,
)

import livestream_env as le
from livestream_env.adapters import slime
from livestream_env.adapters.setup import Setup
from livestream_env.errors import MissingDependency
from livestream_env.tokens import Sampled
from livestream_env.types import Rewards, Score

ONE_TOKENIZER = {
    name: case for name, case in CASES.items() if set(case.families.values()) == {"chatml"}
}
FAILED = ["failed call", "failed reset", "failed tool of a user"]
SNACKS = {"room": "snacks", "embedder": "lexical"}


@pytest.fixture(autouse=True)
def state() -> Iterator[Any]:
    with installed(tokenizer_of("chatml")) as made:
        yield made


def sample_of(row: Any = PRICE, **given: Any) -> Sample:
    return Sample(index=5, group_index=2, metadata=row.to_json(), **given)


def router_of(case: Case) -> Router:
    """Return the router of a case, whose agents share a tokenizer."""
    return Router(lambda ids: case.samples(ids, next(iter(case.families))))


def play(case: Case, router: Router | None = None, **changes: Any) -> Any:
    """Play a case as slime does, with the options that no YAML holds."""
    made = slime.generate_with(Setup(**case.setup_options))
    with routed(router or router_of(case)) as url:
        args = arguments(url, **changes)
        return asyncio.run(made(args, sample_of(case.row), sampling()))


def test_sandboxes_are_closed_whatever_ends_an_episode() -> None:
    assert_closed(play)


def shown(case: Case, samples: list[Sample]) -> Any:
    """Return what slime's samples show."""
    used = [one for one in samples if not one.remove_sample]
    agents = {agent: [s for s in used if s.metadata["agent"] == agent] for agent in case.families}
    zeros = {id(one): [0] * (len(one.tokens) - one.response_length) for one in used}
    return {
        "token_ids": {agent: [s.tokens for s in own] for agent, own in agents.items()},
        "loss_mask": {
            agent: [zeros[id(s)] + s.loss_mask for s in own] for agent, own in agents.items()
        },
        "logprobs": {
            agent: [[*map(float, zeros[id(s)]), *s.rollout_log_probs] for s in own]
            for agent, own in agents.items()
        },
        "rewards": {agent: own[0].reward if own else None for agent, own in agents.items()},
        "truncated": samples[0].status is not Status.COMPLETED,
    }


@pytest.mark.row("R42")
@pytest.mark.parametrize("name", ONE_TOKENIZER)
def test_samples_are_what_the_core_makes(name: str) -> None:
    case = CASES[name]
    samples = play(case)
    assert_same(case, shown(case, samples))
    train = converted(arguments(), [samples], slime.compare_rewards)
    assert train["loss_masks"] == [one.loss_mask for one in samples]


def test_a_context_that_the_template_rewrites_is_a_sample_of_its_own() -> None:
    samples = play(CASES["rewritten past"])
    assert len(samples) == len(expected(CASES["rewritten past"])["token_ids"]["host"]) > 1
    assert {one.rollout_id for one in samples} == {5}


@pytest.mark.row("R54")
def test_two_agents_have_samples_with_rewards_and_masks_of_their_own() -> None:
    caller, replier = play(CASES["two agents"])
    assert [caller.metadata["agent"], replier.metadata["agent"]] == ["tool_caller", "replier"]
    cut = replier.tokens[: len(caller.tokens)]
    assert caller.tokens == cut
    starts = [len(one.tokens) - one.response_length for one in (caller, replier)]
    trained = [
        {start + at for at, bit in enumerate(one.loss_mask) if bit}
        for start, one in zip(starts, (caller, replier), strict=True)
    ]
    assert all(trained)
    assert not trained[0] & trained[1]


@pytest.mark.row("R45")
@pytest.mark.parametrize("name", FAILED)
def test_a_failed_environment_is_removed_and_has_no_reward(
    name: str, caplog: pytest.LogCaptureFixture
) -> None:
    (sample,) = play(CASES[name])
    assert (sample.status, sample.remove_sample, sample.reward) == (Status.FAILED, True, None)
    assert sample.metadata["excluded"].startswith("env_error")
    assert asyncio.run(slime.reward_func(None, sample)) is None
    assert asyncio.run(slime.reward_func(None, [sample, sample])) == [None, None]
    assert not slime.keep_group(None, [[sample], [sample]])
    assert "a group is left out: env_error" in caplog.text
    train = converted(arguments(), [[sample]], slime.compare_rewards)
    assert train["loss_masks"] == [[0]]


def test_an_episode_without_a_score_is_removed() -> None:
    def rubric(trajectory: le.Trajectory, room: le.Room | None) -> Rewards:
        return Rewards((Score("judge", None, cause="judge_error", reason="no verdict"),))

    case = CASES["looked up"]
    made = slime.generate_with(Setup(**case.setup_options, rubric=rubric))
    with routed(router_of(case)) as url:
        (sample,) = asyncio.run(made(arguments(url), sample_of(), sampling()))
    assert (sample.remove_sample, sample.reward) == (True, None)
    assert sample.metadata["excluded"].startswith("judge_error")


def removed(**changes: Any) -> Sample:
    made = scored(None, **changes)
    made.remove_sample = True
    made.metadata["excluded"] = "env_error: down"
    return made


def scored(reward: float | None, rollout: int = 0, group: int = 0, agent: str = "host") -> Sample:
    told = {"agent": agent, "livestream": {"turns": float(rollout)}}
    made = Sample(group_index=group, rollout_id=rollout, reward=reward, metadata=told)
    made.tokens, made.response_length = [1, 2], 1
    made.loss_mask, made.rollout_log_probs = [1], [0.0]
    return made


def test_a_removed_sample_has_no_part_in_the_mean() -> None:
    group = [scored(1.0, 0), scored(0.0, 1), removed(rollout=2)]
    raw, compared = slime.compare_rewards(arguments(), group)
    # mean 0.5 of two, spread sqrt((0.25 + 0.25) / 1)
    assert raw == [1.0, 0.0, 0.5]
    assert compared == [pytest.approx(0.5 / (0.5**0.5 + 1e-6)), -compared[0], 0.0]
    plain = arguments(grpo_std_normalization=False)
    assert slime.compare_rewards(plain, group)[1] == [0.5, -0.5, 0.0]
    assert slime.compare_rewards(arguments(rewards_normalization=False), group)[1] == [
        1.0,
        0.0,
        0.0,
    ]
    assert slime.compare_rewards(arguments(advantage_estimator="ppo"), group)[1] == [1.0, 0.0, 0.0]


def test_agents_and_groups_are_compared_apart_and_an_episode_counts_once() -> None:
    group = [
        scored(1.0, 0),
        scored(1.0, 0),  # another context of the same episode
        scored(0.0, 1),
        scored(4.0, 0, agent="replier"),
        scored(2.0, 1, agent="replier"),
        scored(9.0, 2, group=1),
    ]
    plain = arguments(grpo_std_normalization=False)
    assert slime.compare_rewards(plain, group)[1] == [0.5, 0.5, -0.5, 1.0, -1.0, 0.0]
    assert slime.compare_rewards(arguments(), group)[1][-1] == 0.0
    assert slime.keep_group(None, [group, removed()])


def test_the_router_is_asked_by_ids_and_within_slimes_limits() -> None:
    case = CASES["several turns"]
    router = router_of(case)
    (sample,) = play(case, router)
    prompt = len(sample.tokens) - sample.response_length
    first, second, _ = router.asked
    assert first["return_logprob"]
    assert first["sampling_params"]["no_stop_trim"]
    assert first["sampling_params"]["max_new_tokens"] == 4000
    assert first["sampling_params"]["temperature"] == 1.0
    assert tokenizer_of("chatml").eos_token_id in first["sampling_params"]["stop_token_ids"]
    assert second["input_ids"][:prompt] == first["input_ids"] == sample.tokens[:prompt]
    spent = len(second["input_ids"]) - prompt
    assert second["sampling_params"]["max_new_tokens"] == 4000 - spent
    assert sample.weight_versions == ["7", "7", "7"]
    assert "X-SMG-Routing-Key" not in router.headers[0]


def test_a_context_that_is_full_cuts_the_episode() -> None:
    case = CASES["several turns"]
    router = router_of(case)
    play(case, router)
    longest = len(router.asked[1]["input_ids"])
    (sample,) = play(case, router_of(case), rollout_max_context_len=longest)
    assert (sample.status, len(sample.tokens)) == (Status.TRUNCATED, longest)


def test_an_evaluation_has_a_context_of_its_own() -> None:
    case = CASES["looked up"]
    made = slime.generate_with(Setup(**case.setup_options))
    with routed(router_of(case)) as url:
        args = arguments(url, rollout_max_context_len=10, eval_max_context_len=16000)
        (sample,) = asyncio.run(made(args, sample_of(), sampling(), evaluation=True))
    assert sample.reward == 1.0


def test_a_context_without_room_for_a_word_is_the_callers_mistake() -> None:
    """Every group would be dropped, without end."""
    with pytest.raises(ValueError, match=r"first prompt has \d+ tokens.*raise `rollout_max_con"):
        play(CASES["looked up"], rollout_max_context_len=10)


@pytest.mark.parametrize("end", ["of slime's", "a text"])
def test_an_answer_ends_where_the_engine_says(end: str) -> None:
    """slime's `rollout_stop_token_ids` and `rollout_stop` end answers beside the template's end."""
    case = CASES["looked up"]
    pad = tokenizer_of("chatml").convert_tokens_to_ids("<|endoftext|>")

    def stops_otherwise(ids: tuple[int, ...]) -> Sampled:
        made = case.samples(ids)
        last = (pad,) if end == "of slime's" else ()
        logprobs = (made.logprobs or ())[: len(made.token_ids) - 1 + len(last)]
        return Sampled((*made.token_ids[:-1], *last), logprobs, "stop")

    made = play(case, Router(stops_otherwise))  # another end makes another context
    assert {(one.status, one.reward) for one in made} == {(Status.COMPLETED, 1.0)}


def test_a_session_is_routed_to_one_engine() -> None:
    router, setup = router_of(CASES["looked up"]), Setup(**CASES["looked up"].setup_options)
    with routed(router) as url:
        args = arguments(url, router_policy="consistent_hashing")
        asyncio.run(slime.generate_with(setup)(args, sample_of(session_id="s1"), sampling()))
    assert {headers["X-SMG-Routing-Key"] for headers in router.headers} == {"s1"}


def test_an_aborted_sample_is_handed_back_as_it_came() -> None:
    router = Router(lambda _: answer(Sampled((), (), "abort")))
    sample = play(CASES["looked up"], router)
    assert sample == sample_of(status=Status.ABORTED)


def test_an_abort_between_two_turns_asks_for_no_more(state: Any) -> None:
    case = CASES["several turns"]

    def aborts(ids: tuple[int, ...]) -> Sampled:
        state.aborted = True
        return case.samples(ids)

    router = Router(aborts)
    assert play(case, router) == sample_of(status=Status.ABORTED)
    assert len(router.asked) == 1


@pytest.mark.parametrize(
    "broken",
    [httpx.Response(500), httpx.Response(200, json="no"), httpx.Response(200, json={"error": "x"})],
    ids=["status 500", "no object", "no answer"],
)
def test_an_engine_that_fails_is_no_policys_mistake(broken: httpx.Response) -> None:
    (sample,) = play(CASES["looked up"], Router(lambda _: broken))
    assert (sample.status, sample.reward) == (Status.FAILED, None)
    assert "ChatError" in sample.metadata["excluded"]


def test_the_setup_of_a_yaml_file_is_played(tmp_path: Path) -> None:
    case = CASES["looked up"]
    with routed(router_of(case)) as url:
        options = {**SNACKS, "masker": "reply", "log_dir": str(tmp_path)}
        args = arguments(url, livestream=options)
        (sample,) = asyncio.run(slime.generate(args, sample_of(), sampling(), evaluation=True))
    text = tokenizer_of("chatml").decode(
        list(compress(sample.tokens[-sample.response_length :], sample.loss_mask))
    )
    assert text == case.lines[-1].text + "<|im_end|>"
    logged = [path.read_text(encoding="utf-8") for path in tmp_path.rglob("*.jsonl")]
    assert json.loads(logged[0].split("\n")[0])["policy_version"] == "7"


@pytest.mark.parametrize(
    ("changes", "told"),
    [
        ({"partial_rollout": True}, "no partial rollout"),
        ({"group_rm": True}, "no `group_rm`"),
        ({"use_rollout_routing_replay": True}, "routing replay"),
        ({"rollout_top_p": 0.9}, "rollout_top_p=1"),
    ],
)
def test_what_slime_cannot_do_here_is_refused(changes: dict[str, Any], told: str) -> None:
    with pytest.raises(ValueError, match=told):
        asyncio.run(
            slime.generate(arguments(livestream=SNACKS, **changes), sample_of(), sampling())
        )


def test_arguments_without_a_setup_are_the_callers_mistake() -> None:
    for changes in ({}, {"livestream": "snacks"}):
        with pytest.raises(ValueError, match="`--custom-config-path` holds"):
            asyncio.run(slime.generate(arguments(**changes), sample_of(), sampling()))


def test_a_sample_without_a_row_is_the_callers_mistake() -> None:
    args = arguments(livestream=SNACKS)
    with pytest.raises(ValueError, match="needs `seed`"):
        asyncio.run(slime.generate(args, Sample(), sampling()))


def test_metrics_go_into_slimes_own_figures() -> None:
    extra: dict[str, Any] = {"rollout/x": 1.0}
    samples = [scored(1.0, 1), scored(1.0, 1), scored(1.0, 3), removed(rollout=5)]
    assert not slime.log_rollout(0, None, samples, extra, 1.0)
    assert extra == {"rollout/x": 1.0, "rollout/livestream/turns": 3.0}
    assert not slime.log_rollout(0, None, samples, None, 1.0)


def test_removed_samples_are_not_in_the_mean_of_an_evaluation() -> None:
    def told(*samples: Sample) -> dict[str, Any]:
        return {
            "rewards": [one.reward for one in samples],
            "truncated": [False] * len(samples),
            "samples": list(samples),
        }

    data, extra = {"rooms": told(scored(1.0, 1), removed(rollout=3)), "down": told(removed())}, {}
    assert not slime.log_eval_rollout(0, None, data, extra)
    assert list(data) == ["rooms"]
    assert (data["rooms"]["rewards"], data["rooms"]["truncated"]) == ([1.0], [False])
    assert extra == {"eval/rooms/livestream/turns": 2.0, "eval/down/livestream/turns": 0.0}


def test_without_slime_the_version_that_was_read_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "slime.rollout.sglang_rollout", None)
    with pytest.raises(MissingDependency, match=r"0\.3\.1.*git\+https://github.com/THUDM/slime"):
        asyncio.run(slime.generate(arguments(livestream=SNACKS), sample_of(), sampling()))


def test_a_trained_seat_has_no_partner() -> None:
    setup = Setup(**CASES["two agents"].setup_options)
    for partners, told in (({"replier": None}, "both trained"), ({"host": None}, "both|no ")):
        with pytest.raises(ValueError, match=told):
            slime.generate_with(setup, partners=partners)
    with pytest.raises(ValueError, match="no seat for replier"):
        slime.generate_with(Setup(**SNACKS), partners={"replier": SimpleNamespace()})


def test_the_arguments_of_the_page_are_functions_of_the_adapter() -> None:
    (told,) = snippets("slime", "bash")
    flags = dict(line.split()[:2] for line in told.splitlines() if "livestream_env." in line)
    assert len(flags) == 6
    assert all(callable(pkgutil.resolve_name(name)) for name in flags.values())
    assert pkgutil.resolve_name(flags["--custom-generate-function-path"]) is slime.generate
    given = yaml.safe_load(told.split("# ")[1].splitlines()[0])
    with routed(router_of(CASES["looked up"])) as url:
        args = arguments(url, **given)
        (made,) = asyncio.run(slime.generate(args, sample_of(), sampling()))
    assert made.reward == 1.0
