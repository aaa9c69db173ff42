"""TRL's own `GRPOTrainer` over the conformance episodes, in both modes."""

from __future__ import annotations

import copy
import functools
import importlib.util
import inspect
import itertools
import json
import math
import pickle
import tempfile
import warnings
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, ClassVar

import pytest
import torch
from conformance import (
    ASKED,
    CASES,
    FAMILIES,
    WITHOUT_A_SEAT,
    Breaking,
    Case,
    assert_closed,
    assert_same,
    expected,
    renderer_of,
    said_in,
    tokenizer_of,
)
from datasets import Dataset
from pages_for_tests import module_of, snippets
from transformers import Qwen2Config, Qwen2ForCausalLM
from transformers.utils import get_json_schema
from trl import GRPOConfig, GRPOTrainer
from trl.chat_template_utils import qwen3_template

import livestream_env as le
from livestream_env.adapters import trl
from livestream_env.adapters.data_sets import data_rows
from livestream_env.adapters.setup import Setup, task_rows
from livestream_env.trajectory_log import read_log
from livestream_env.types import Status, Trajectory

pytestmark = [
    pytest.mark.filterwarnings("ignore:You are using"),
    pytest.mark.filterwarnings("ignore::DeprecationWarning"),
]


def tiny_model(tokenizer: Any, seed: int = 0) -> Qwen2ForCausalLM:
    torch.manual_seed(seed)
    config = Qwen2Config(
        vocab_size=len(tokenizer),
        hidden_size=16,
        intermediate_size=16,
        num_hidden_layers=1,
        num_attention_heads=2,
        num_key_value_heads=1,
        max_position_embeddings=32768,
        bos_token_id=None,
        eos_token_id=tokenizer.eos_token_id,
        pad_token_id=tokenizer.pad_token_id,
    )
    model = Qwen2ForCausalLM(config)
    model.generation_config.eos_token_id = tokenizer.eos_token_id
    model.generation_config.pad_token_id = tokenizer.pad_token_id
    return model


def scripted(model: Any, say: Callable[[list[int]], list[int]]) -> Any:
    """Give a model a `generate` that says what is scripted, as `generate` pads it."""
    pad = model.generation_config.pad_token_id

    def generate(input_ids: Any, attention_mask: Any, **_: Any) -> Any:
        rows = (input_ids, attention_mask)
        said = [say(row[kept.bool()].tolist()) for row, kept in zip(*rows, strict=True)]
        longest = max(map(len, said))
        padded = [ids + [pad] * (longest - len(ids)) for ids in said]
        return torch.cat([input_ids, torch.tensor(padded, dtype=torch.long)], dim=1)

    model.generate = generate
    return model


def trainer_of(folder: Path | str, rows: Any, tokenizer: Any, **given: Any) -> GRPOTrainer:
    settings = {"num_generations": 2, "max_completion_length": 4096, "learning_rate": 0.0}
    given.setdefault("model", tiny_model(tokenizer))
    settings |= given.pop("settings", {})
    settings.setdefault("per_device_train_batch_size", settings["num_generations"])
    settings.setdefault("max_steps", 1)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        config = GRPOConfig(
            output_dir=str(folder),
            use_cpu=True,
            bf16=False,
            gradient_checkpointing=False,
            logging_steps=1,
            report_to=[],
            save_strategy="no",
            disable_tqdm=True,
            shuffle_dataset=False,
            **settings,
        )
        return GRPOTrainer(args=config, train_dataset=rows, processing_class=tokenizer, **given)


@functools.cache
def trainer_of_family(family: str) -> GRPOTrainer:
    """Return a trainer that plays whatever its `rollout_func` is set to."""
    rows = Dataset.from_list([{"prompt": [{"role": "user", "content": "?"}]}])
    return trainer_of(
        tempfile.mkdtemp(),
        rows,
        tokenizer_of(family),
        rollout_func=print,
        reward_funcs=trl.episode_reward,
    )


def data_set(case: Case, copies: int = 1) -> list[dict[str, Any]]:
    """Return the case's row; what cannot be opened has the prompt of what can."""
    options = {k: v for k, v in case.setup_options.items() if k not in ("agents", "sandbox")}
    return [*data_rows([case.row], "trl", setup=Setup(**options))] * copies


def sequences(inputs: Mapping[str, Any]) -> list[tuple[list[int], list[int]]]:
    """Return ids and loss mask of each row that TRL is about to train, without padding."""
    mask = inputs["completion_mask"] * inputs["tool_mask"]
    made = []
    for at in range(len(mask)):
        before = inputs["prompt_ids"][at][inputs["prompt_mask"][at].bool()].tolist()
        kept = inputs["completion_mask"][at].bool()
        after = inputs["completion_ids"][at][kept].tolist()
        made.append((before + after, [0] * len(before) + mask[at][kept].tolist()))
    return made


def logged(folder: Path) -> list[Trajectory]:
    return [line.trajectory for line in read_log(folder).lines]


# --- the package's loop -----------------------------------------------------------------------


def handed_over(trainer: GRPOTrainer, rollout: Any, rows: Sequence[Mapping[str, Any]]) -> Any:
    """Play rows; return what `rollout_func` gave and what TRL makes of it for the loss."""
    handed: dict[str, Any] = {}

    def watched(prompts: Any, trainer: Any) -> Any:
        handed.update(rollout(prompts, trainer))
        return dict(handed)

    trainer.rollout_func = watched
    inputs = trainer._generate_and_score_completions([dict(row) for row in rows])
    return handed, inputs


def known(rewards: Sequence[float]) -> list[float | None]:
    return [None if math.isnan(reward) else pytest.approx(reward) for reward in rewards]


@pytest.mark.row("R37", "R42")
@pytest.mark.parametrize(
    ("name", "agent"), [(name, agent) for name, case in CASES.items() for agent in case.families]
)
def test_what_trl_is_about_to_train_is_what_the_core_makes(
    name: str, agent: str, tmp_path: Path
) -> None:
    case = CASES[name]
    rows, options = data_set(case, 2), dict(case.setup_options)
    for other in case.families.keys() - {agent}:
        partner = le.TokenAgent(case.engine(other), renderer_of(case.families[other]))
        options["agents"] = {agent: options["agents"][agent]}
        options["partners"] = {other: partner}
    trainer = trainer_of_family(case.families[agent])
    scripted(trainer.model, lambda ids: [*case.samples(ids, agent).token_ids])
    rollout = trl.rollout_func(rows, **options, log_dir=str(tmp_path))
    handed, inputs = handed_over(trainer, rollout, rows)
    [(ids, mask), other_row] = sequences(inputs)
    assert other_row == (ids, mask)
    due = expected(case)
    rewards = [*trainer._logs["rewards"]["episode_reward"]][-2:]
    assert [due["rewards"][agent]] * 2 == known(rewards)
    excluded = due["excluded"][agent]
    assert [(why or "").split(":")[0] or None for why in handed["excluded"]] == [excluded] * 2
    for trajectory in logged(tmp_path):
        got: Any = {
            "messages": trajectory.messages,
            "said": said_in(trajectory.messages),
            "truncated": trajectory.status is not Status.OK,
        }
        assert_same(case, got)
    if excluded is not None:
        assert sum(mask) == 0
    elif name == "rewritten past":  # ids go on from ids, as in TRL's own loop: one context
        assert sum(mask) == sum(len(line) for line in sampled(case))
    else:
        [due_ids], [due_mask] = due["token_ids"][agent], due["loss_mask"][agent]
        assert (ids, mask) == ([*due_ids], [*due_mask])
    assert inputs["advantages"].tolist() == [0.0, 0.0]


@pytest.mark.parametrize("agent", ["tool_caller", "replier"])
@pytest.mark.parametrize("case", [CASES["two agents"], ASKED], ids=["once", "again"])
def test_the_model_itself_plays_the_seat_that_nobody_else_is_named_for(
    case: Case, agent: str
) -> None:
    rows, trainer = data_set(case, 2), trainer_of_family("chatml")
    options = dict(case.setup_options) | {"agents": {agent: case.options["agents"][agent]}}
    scripted(trainer.model, lambda ids: [*case.samples(ids, agent).token_ids])
    handed, inputs = handed_over(trainer, trl.rollout_func(rows, **options), rows)
    due = expected(case)
    assert handed["env_reward"] == [due["rewards"][agent]] * 2
    for ids, mask in sequences(inputs):
        trained = [token for token, bit in zip(ids, mask, strict=True) if bit]
        assert trained == [*due["trained_ids"][agent]]


def sampled(case: Case) -> list[list[int]]:
    tokenizer = tokenizer_of(case.families["host"])
    end = FAMILIES[case.families["host"]].end
    return [tokenizer(line.text + end)["input_ids"] for line in case.lines]


def test_a_failed_episode_moves_neither_the_group_nor_the_policy() -> None:
    case = CASES["looked up"]
    rows, numbers = data_set(case, 4), itertools.count()
    broken = lambda room: Breaking(room, 0 if next(numbers) == 2 else 99)  # noqa: E731
    trainer = trainer_of_family("chatml")
    right, wrong = (
        tokenizer_of("chatml")(text + "<|im_end|>")["input_ids"]
        for text in (case.lines[0].text, "亲")
    )
    turns = itertools.count()

    def say(ids: list[int]) -> list[int]:
        said = [*case.samples(ids).token_ids]
        return wrong if next(turns) == 0 and said == right else said

    scripted(trainer.model, say)
    trainer.num_generations = 4
    try:
        rollout = trl.rollout_func(rows, **{**case.setup_options, "sandbox": broken})
        handed, inputs = handed_over(trainer, rollout, rows)
    finally:
        trainer.num_generations = 2
    rewards = handed["env_reward"]
    failed = rewards.index(None)
    scored = torch.tensor([reward for reward in rewards if reward is not None])
    assert len(scored) == 3
    assert scored.max() > scored.min()
    due = (scored - scored.mean()) / (scored.std() + 1e-4)
    got = inputs["advantages"].tolist()
    assert got.pop(failed) == 0.0
    assert got == pytest.approx(due.tolist(), abs=1e-5)
    masks = [sum(mask) for _, mask in sequences(inputs)]
    assert masks[failed] == 0
    assert min(masks[:failed] + masks[failed + 1 :]) > 0
    gradient = gradient_of(trainer, inputs)
    kept = [at for at in range(4) if at != failed]
    alone = {k: v[kept] if v.dim() and len(v) == 4 else v for k, v in inputs.items()}
    assert torch.allclose(gradient, gradient_of(trainer, alone), atol=1e-7)
    assert gradient.abs().max() > 0


def gradient_of(trainer: GRPOTrainer, inputs: Any) -> torch.Tensor:
    trainer.model.zero_grad()
    trainer.current_gradient_accumulation_steps = 1
    trainer._compute_loss(trainer.model, inputs).backward()
    return trainer.model.lm_head.weight.grad.clone()


def test_logprobs_of_the_engine_are_handed_on() -> None:
    case = CASES["looked up"]
    rows = data_set(case, 2)

    class Engine:
        """What `rollout_func` needs of a trainer, over an engine that gives logprobs."""

        _tokenizer = tokenizer_of("chatml")
        chat_template_kwargs: ClassVar[dict[str, Any]] = {}
        eos_token_ids = (tokenizer_of("chatml").eos_token_id,)
        max_completion_length = 4096
        model = trainer_of_family("chatml").model
        state = trainer_of_family("chatml").state

        def _generate_single_turn(self, prompts: Any, images: Any, fields: Any, copies: int) -> Any:
            assert (images, fields, copies) == (None, {}, 1)
            made = [case.samples(ids) for ids in prompts]
            return [[*one.token_ids] for one in made], [[*one.logprobs] for one in made]

    handed = trl.rollout_func(rows, **case.setup_options)([row["prompt"] for row in rows], Engine())
    due = expected(case)["logprobs"]["host"][0]
    for prompt, logprobs in zip(handed["prompt_ids"], handed["logprobs"], strict=True):
        assert logprobs == [*due[len(prompt) :]]


def test_a_rollout_func_serves_trainers_of_several_tokenizers() -> None:
    case = CASES["looked up"]
    rows = data_set(case, 2)
    rollout = trl.rollout_func(rows, **case.setup_options)
    for family in ("chatml", "headers"):
        own, trainer = replace(case, families={"host": family}), trainer_of_family(family)
        scripted(trainer.model, lambda ids, own=own: [*own.samples(ids).token_ids])
        _, inputs = handed_over(trainer, rollout, rows)
        [due] = expected(own)["token_ids"]["host"]
        assert [ids for ids, _ in sequences(inputs)] == [[*due]] * 2


def test_a_prompt_may_be_text_of_the_rows_own() -> None:
    case = CASES["looked up"]
    rows = [{**row, "prompt": case.row.task_id} for row in data_set(case, 2)]
    trainer = trainer_of_family("chatml")
    scripted(trainer.model, lambda ids: [*case.samples(ids).token_ids])
    _, inputs = handed_over(trainer, trl.rollout_func(rows, **case.setup_options), rows)
    [due] = expected(case)["token_ids"]["host"]
    assert [ids for ids, _ in sequences(inputs)] == [[*due]] * 2


def test_sandboxes_are_closed_whatever_ends_an_episode() -> None:
    trainer = trainer_of_family("chatml")

    def play(case: Case) -> None:
        rows = data_set(CASES[case.name], 2)
        scripted(trainer.model, lambda ids: [*case.samples(ids).token_ids])
        handed_over(trainer, trl.rollout_func(rows, **case.setup_options), rows)

    assert_closed(play)


def test_an_episode_that_outgrows_the_completion_is_cut() -> None:
    case = CASES["several turns"]
    rows, first = data_set(case, 2), len(sampled(case)[0])
    trainer = trainer_of_family("chatml")
    scripted(trainer.model, lambda ids: [*case.samples(ids).token_ids])
    whole = trainer.max_completion_length
    trainer.max_completion_length = first - 3
    try:
        handed, inputs = handed_over(trainer, trl.rollout_func(rows, **case.setup_options), rows)
    finally:
        trainer.max_completion_length = whole
    assert handed["stop_reason"] == ["token_limit"] * 2
    for _, mask in sequences(inputs):
        assert sum(mask) == first - 3


def test_metrics_and_step_reach_trl_and_the_log(tmp_path: Path) -> None:
    case = CASES["looked up"]
    rows = Dataset.from_list(data_set(case, 2))
    model = scripted(tiny_model(tokenizer_of("chatml")), lambda ids: [*case.samples(ids).token_ids])
    trainer = trainer_of(
        tmp_path / "trainer",
        rows,
        tokenizer_of("chatml"),
        model=model,
        rollout_func=trl.rollout_func(rows, **case.setup_options, log_dir=str(tmp_path / "log")),
        reward_funcs=trl.episode_reward,
    )
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        trainer.train()
    [line] = [line for line in trainer.state.log_history if "reward" in line]
    assert line["livestream/stop/replied"] == 1.0
    assert line["livestream/episodes"] == 2.0
    assert line["reward"] == pytest.approx(expected(case)["rewards"]["host"])
    assert [kept.step for kept in read_log(tmp_path / "log").lines] == [0, 0]


# --- what is refused --------------------------------------------------------------------------


def test_every_bundled_task_is_found_by_its_prompt() -> None:
    rows = [*data_rows(task_rows("bundled:train"), "trl", setup=Setup(embedder="lexical"))]
    rollout = trl.rollout_func(rows, embedder="lexical")
    for row in rows:
        found = rollout._row(row["prompt"])
        assert (found.room, found.comment) == (row["room"], tuple(row["comment"]))


@pytest.mark.parametrize(
    ("rows", "options", "named"),
    [
        ([{"room": "snacks", "seed": 1}], {}, "prompt"),
        ([{"prompt": [{"role": "user", "content": "?"}]}], {}, "room"),
        (
            [
                {"prompt": [{"role": "user", "content": "?"}], "room": "snacks", "seed": seed}
                for seed in (1, 2)
            ],
            {},
            "have one prompt",
        ),
        ([], {"agents": {"tool_caller": "tool_calls", "replier": "reply"}}, "partners"),
    ],
)
def test_what_trl_cannot_play_is_refused(rows: Any, options: Any, named: str) -> None:
    with pytest.raises(ValueError, match=named):
        trl.rollout_func(rows, **options)


@pytest.mark.parametrize(("agents", "seat", "told"), WITHOUT_A_SEAT)
def test_a_partner_without_a_seat_is_refused(agents: dict[str, str], seat: str, told: str) -> None:
    with pytest.raises(ValueError, match=told):
        trl.rollout_func([], agents=agents, partners={seat: "chat:http://localhost#m"})


def test_what_is_no_row_or_no_number_of_threads_is_refused() -> None:
    [row] = data_set(CASES["looked up"])
    with pytest.raises(TypeError, match="a task row is a mapping"):
        trl.rollout_func(row, embedder="lexical")  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="`max_workers` is 0"):
        trl.rollout_func([row], embedder="lexical", max_workers=0)


def test_a_prompt_of_another_data_set_is_refused() -> None:
    rollout = trl.rollout_func(data_set(CASES["looked up"]), embedder="lexical")
    with pytest.raises(ValueError, match="every data set"):
        rollout([[{"role": "user", "content": "?"}]], trainer_of_family("chatml"))


# --- TRL's loop -------------------------------------------------------------------------------

LOOPED = (
    "looked up",
    "several turns",
    "wrong arguments",
    "cut reply",
    "turn limit",
    "failed call",
    "failed reset",
    "failed tool of a user",
    "unlabelled room",
    "burst",
)
CLASSES = {
    name: trl.environment_class(
        f"Room{at}",
        stop_ids=(tokenizer_of("chatml").eos_token_id,),
        log_dir=tempfile.mkdtemp(),
        **CASES[name].setup_options,
    )
    for at, name in enumerate(LOOPED)
}
globals().update({made.__name__: made for made in CLASSES.values()})


@pytest.mark.row("R37")
@pytest.mark.parametrize("name", LOOPED)
def test_trls_own_loop_plays_and_scores_what_the_core_does(name: str, tmp_path: Path) -> None:
    case, made = CASES[name], CLASSES[name]
    tokenizer = copy.deepcopy(tokenizer_of("chatml"))
    tokenizer.response_template = qwen3_template
    rows = data_set(case, 2)
    trainer = trainer_of(
        tmp_path,
        Dataset.from_list(rows),
        tokenizer,
        environment_factory=made,
        reward_funcs=made.episode_reward,
        settings={
            "max_tool_calling_iterations": case.options.get("max_turns", 8),
        },
    )
    closing = tokenizer("好的<|im_end|>")["input_ids"]  # TRL asks once more behind the last results

    def say(ids: list[int]) -> list[int]:
        said = tokenizer.decode(ids).count(FAMILIES["chatml"].opening) - 1
        return [*case.samples(ids).token_ids] if said < len(case.lines) else closing

    scripted(trainer.model, say)
    trainer._generate_and_score_completions([dict(row) for row in rows])
    due = expected(case)
    rewards = [*trainer._logs["rewards"]["episode_reward"]][-2:]
    assert [due["rewards"]["host"]] * 2 == known(rewards)
    for trajectory in logged(Path(made._setup.log.folder)):
        truncated = trajectory.status is not Status.OK
        got: Any = {"said": said_in(trajectory.messages), "truncated": truncated}
        if due["excluded"]["host"] is None:
            got["messages"] = trajectory.messages
        assert_same(case, got)


def test_a_room_of_trls_loop_is_closed_once_it_is_scored() -> None:
    case = CASES["looked up"]

    def play(case: Case) -> None:
        name = "Closed"
        made = trl.environment_class(name, stop_ids=(0,), **case.setup_options)
        rooms = [made(), made()]
        calls = [
            {"function": {"name": "search_product_by_keyword", "arguments": {"keyword": "1号链接"}}}
        ]
        said = [
            {"role": "assistant", "content": "", "tool_calls": calls},
            {"role": "tool", "name": "search_product_by_keyword", "content": ""},
            {"role": "assistant", "content": "亲"},
        ]
        for room in rooms:
            room.reset(**data_set(CASES[case.name])[0])
            room.search_product_by_keyword(keyword="1号链接")  # type: ignore[attr-defined]
        made.episode_reward([said] * 2, [[0]] * 2, rooms, print)

    play(case)
    assert_closed(play)


@pytest.mark.parametrize("stop_ids", [(), (None,)])
def test_ids_that_end_a_message_are_needed(stop_ids: Any) -> None:
    with pytest.raises(ValueError, match="the ids that end a message"):
        trl.environment_class("Never", "snacks", embedder="lexical", stop_ids=stop_ids)


def test_schemas_that_trl_reads_say_what_the_specs_say() -> None:
    made = CLASSES["looked up"]
    for spec in Setup("snacks", embedder="lexical").make_env().action_space.specs:
        function = get_json_schema(getattr(made, spec.name))["function"]
        assert (function["name"], function["description"]) == (spec.name, spec.description)
        due = json.loads(json.dumps(spec.parameters))
        assert function["parameters"]["required"] == due["required"]
        for name, schema in due["properties"].items():
            told = function["parameters"]["properties"][name]
            assert told["description"] == schema["description"]
            kinds = {one["type"] for one in schema.get("anyOf", [schema])}
            given = told.get("type") or [one["type"] for one in told["anyOf"]]
            assert {given} if isinstance(given, str) else {*given} == kinds


def test_the_class_is_found_by_its_name_and_shows_tools_alone() -> None:
    made = CLASSES["looked up"]
    assert pickle.loads(pickle.dumps(made)) is made
    shown = {name for name, _ in inspect.getmembers(made, inspect.isfunction) if name[0] != "_"}
    specs = Setup("snacks", embedder="lexical").make_env().action_space.specs
    assert shown == {"reset", *[spec.name for spec in specs]}


def test_another_prompt_than_the_episodes_is_refused() -> None:
    room = CLASSES["looked up"]()
    [row] = data_set(CASES["looked up"])
    with pytest.raises(ValueError, match="not what the episode opens with"):
        room.reset(**{**row, "prompt": [{"role": "user", "content": "?"}]})


def test_calls_beyond_the_limit_are_told_so_and_run_no_tool() -> None:
    case = CASES["looked up"]
    room = CLASSES["looked up"]()
    room.reset(**data_set(case)[0])
    told = [json.loads(room.search_product_by_keyword(keyword=f"{at}号链接")) for at in range(40)]
    assert ["错误" in one or "error" in one for one in told] == [False] * 2 + [True] * 38


# --- examples and learning --------------------------------------------------------------------

ROOT = Path(__file__).parents[2]


def load(path: str) -> Any:
    spec = importlib.util.spec_from_file_location(Path(path).stem, ROOT / path)
    assert spec is not None
    assert spec.loader is not None
    made = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(made)
    return made


@pytest.mark.row("R43")
@pytest.mark.parametrize("option", ["", "--trls-loop"])
def test_the_example_trains_in_both_modes(
    option: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.syspath_prepend(ROOT / "examples" / "trainers")
    monkeypatch.setattr("sys.argv", ["trl_grpo.py", option])
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        load("examples/trainers/trl_grpo.py").main()
    told = [line for line in capsys.readouterr().out.splitlines() if line.startswith("{'step'")]
    assert len(told) == 2
    assert "'livestream/stop/token_limit': 1.0" in told[-1]


@pytest.mark.row("R37")
@pytest.mark.timeout(1800)
def test_a_tiny_model_learns_on_generated_rooms(monkeypatch: pytest.MonkeyPatch) -> None:
    """The short form of benchmarks/learning_trl.py, one seed; docs/training-runs.md has all."""
    monkeypatch.syspath_prepend(ROOT / "benchmarks")
    torch.set_num_threads(1)
    run = load("benchmarks/learning_trl.py").learn(
        0, steps=16, batch=64, warm_steps=500, episodes=500, held_out=128
    )
    assert [step for step, _ in run["trained"]] == [*range(1, 17)]
    assert run["seeds"]["rise"] > 0.03


def test_the_code_of_the_page_makes_trainers(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    given: list[dict[str, Any]] = []

    class Trainer:
        def __init__(self, model: str, **named: Any) -> None:
            given.append(named)

        def train(self) -> None: ...

    rows = [*data_rows(task_rows("snacks", count=2, embedder="lexical"), "trl")]
    lines = "".join(f"{json.dumps(row)}\n" for row in rows)
    (tmp_path / "rows.jsonl").write_text(lines, encoding="utf-8")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("datasets.config.HF_DATASETS_CACHE", tmp_path / "cache")
    monkeypatch.setattr("trl.GRPOTrainer", Trainer)
    monkeypatch.setattr("trl.GRPOConfig", dict)
    whole, simple = snippets("TRL")
    page = module_of(whole)
    assert given[0]["rollout_func"]._row(rows[1]["prompt"]).seed == 1
    simple = simple.replace("    ...,\n", "    'tiny',\n")
    names = {name: getattr(page, name) for name in ("trl", "GRPOConfig", "GRPOTrainer")}
    room = module_of(simple, tokenizer=tokenizer_of("chatml"), **names).Room
    assert given[1]["environment_factory"] is room
    assert {"get_reply_rule", "search_faq"} <= set(dir(room))
