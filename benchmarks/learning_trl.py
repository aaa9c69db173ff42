"""A tiny model learns in TRL's `GRPOTrainer`, on rooms that the generator makes, on a CPU.

    python benchmarks/learning_trl.py --seeds 0 1 2 3 4 --svg docs/training-runs-trl.svg

The policy is a Qwen2 of two layers whose vocabulary holds whole calls and replies as single tokens,
beside pieces of words and numbers: it has to pick the calls by the comment, and to copy prices and
stocks from the results. It starts from a mixture: trained on episodes of a teacher that is wrong
half the time. Everything else is the package as it comes: environment, tools, limits, rubric
`single4`, masks, `adapters.trl.rollout_func`. Only the wording is shorter than the bundled one
(`prompt=`, `result_format=`), which keeps an episode below a hundred tokens.

Rewards are measured by `GRPOTrainer.evaluate`, sampling as in training, before the first step and
after the last: on seeds of the generator that no training row has (`seeds`), and on its split
`test` (`test`), which shares no phrasing, name or template with what was trained.
"""

from __future__ import annotations

import argparse
import itertools
import json
import os
import random
import re
import tempfile
import time
import warnings
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import livestream_env as le
from livestream_env.adapters import trl
from livestream_env.adapters.setup import Setup, TaskRow
from livestream_env.renderers import ChatTemplateRenderer
from livestream_env.types import Message, RoomView, ToolCall, ToolResult, ToolSpec

ROOMS = "generated:level=1,language=en,products=6,comments=24,noise=0.5,split="
SKILLS = ("price", "coupon_price", "stock", "link_no", "decline", "chat")
TOOLS = ("search_product_by_keyword", "get_reply_rule")
LINKS = range(1, 7)
INTENTS = (
    "price", "stock", "link number", "off platform", "haggling", "claims", "noise", "small talk",
    "shipping", "returns",
)  # fmt: skip
SAID = (
    "Hi, sorry, that is nothing we can promise; please order on the platform",
    "Hi, sorry, that is nothing we can promise; that is the live price",
    "Hi, thanks for being here",
    "Hi, it is",
    "Hi, price",
    "Hi, coupon price",
    "Hi, stock",
    " link",
)
WRONG = 0.5
"""How often the teacher is wrong, in each thing it decides."""
_NAMED = re.compile(r"(?:\b(?:link|number|no\.|item)|#) ?(\d)|\b(?:this|screen|holding|current)\b")
_TEMPLATE = (
    "{%- for m in messages %}{{- '<|im_start|>' + m.role + '\\n' + m.content }}"
    "{%- if loop.first %}{%- for t in tools or [] %}{{- ' ' + t.function.name }}{%- endfor %}"
    '{%- endif %}{%- for c in m.tool_calls or [] %}{{- \'<tool_call>\\n{"name": "\' }}'
    '{{- c.function.name + \'", "arguments": \' }}{{- c.function.arguments | tojson }}'
    "{{- '}\\n</tool_call>' }}{%- endfor %}{{- '<|im_end|>\\n' }}{%- endfor %}"
    "{%- if add_generation_prompt %}{{- '<|im_start|>assistant\\n' }}{%- endif %}"
)


# --- wording ----------------------------------------------------------------------------------


def short_prompt(
    view: RoomView, tools: Sequence[ToolSpec], /, *, max_same_tool: int
) -> list[Message]:
    """Return the comment and the link of the product on screen."""
    link = view.current_product.link_no if view.current_product else None
    said = " ".join(comment.text for comment in view.comments)
    return [Message("system", "Host"), Message("user", f"screen link {link}\n{said}")]


def short_result(call: ToolCall, result: ToolResult) -> str:
    """Return the first product of a search in a line, the rest of other results as it is."""
    told = json.loads(result.content)
    if result.error is not None or call.name != TOOLS[0] or not told.get("results"):
        return " none" if call.name == TOOLS[0] or result.error is not None else " rule"
    first = told["results"][0]
    prices = [_amount(first[key]) for key in ("price", "coupon_price")]
    return (
        f" link {first['link_no']} price{prices[0]} coupon price{prices[1]} stock {first['stock']}"
    )


def _amount(value: Any) -> str:
    return f" ${str(value).removeprefix('from ')}" if value != "unknown" else " unknown"


SETUP = {
    "embedder": "lexical",
    "tools": list(TOOLS),
    "prompt": short_prompt,
    "result_format": short_result,
}


def call_text(name: str, **arguments: Any) -> str:
    """Return a call as the policy writes it."""
    told = json.dumps({"name": name, "arguments": arguments})
    return f"<tool_call>\n{told}\n</tool_call>"


def search(link: int) -> str:
    return call_text(TOOLS[0], keyword=f"link {link}")


def rule(intent: str) -> str:
    return call_text(TOOLS[1], intent=intent)


# --- tasks and teacher ------------------------------------------------------------------------


def tasks(split: str, first: int, count: int) -> list[TaskRow]:
    """Return rows of the split from a seed on whose comment is of `SKILLS` and names its product
    by number or as the one on screen."""
    env = Setup(ROOMS + split, **SETUP).make_env()
    made = (TaskRow(ROOMS + split, seed) for seed in itertools.count(first))
    fitting = (row for row in made if _fits(env, row))
    return [*itertools.islice(fitting, count)]


def _fits(env: Any, row: TaskRow) -> bool:
    room, (comment_id,) = env.task_of(row.seed)
    comment = room.comment(comment_id)
    skill = _skill(comment)
    return skill in SKILLS and (skill in ("decline", "chat") or bool(_NAMED.search(comment.text)))


def _skill(comment: Any) -> str:
    return str(comment.expected.provenance.partition("skill=")[2].partition(";")[0])


class Teacher:
    """Knows the key, and decides wrongly as often as it is told."""

    def __init__(self, room: Any, rng: random.Random, wrong: float) -> None:
        self.room, self.rng, self.wrong = room, rng, wrong

    def start(self, observation: Any, *, seed: Any) -> Teacher:
        """Take the episode's comment."""
        self.comment = self.room.comment(observation.comments[0].comment_id)
        self.screen = int(re.search(r"link (\d+)", observation.messages[1].content)[1])
        return self

    def act(self, messages: Sequence[Message], tools: Sequence[ToolSpec]) -> str:
        """Look up in the first message, reply in the second."""
        skill, rng = _skill(self.comment), self.rng
        named = _NAMED.search(self.comment.text)
        if messages[-1].role == "user":
            right = int(named[1]) if named and named[1] else self.screen
            link = rng.choice(LINKS) if rng.random() < self.wrong else right
            intents = [ask.intent for ask in self.comment.expected.asks]
            intent = rng.choice(INTENTS) if rng.random() < self.wrong else intents[0]
            looks = skill not in ("decline", "chat")
            if rng.random() < self.wrong / 2:
                looks = not looks
            calls = [search(link)] * looks + [rule(intent)] * (rng.random() > self.wrong / 2)
            return "".join(calls) or "Hi, thanks for being here"
        found = next((m.content for m in messages if m.content.startswith(" link")), None)
        if rng.random() < self.wrong:
            skill = rng.choice(SKILLS)
        return self._reply(skill, found)

    def _reply(self, skill: str, found: str | None) -> str:
        if skill == "decline":
            return SAID[self.comment.expected.asks[0].intent == "haggling"]
        if skill == "chat" or found is None:
            return "" if self.comment.expected.asks[0].intent == "noise" else SAID[2]
        link, price, coupon, stock = re.match(
            r"( link \d+) price(.+) coupon price(.+) stock( .+)", found
        ).groups()
        return {
            "link_no": f"Hi, it is{link}",
            "price": f"Hi, price{price}",
            "coupon_price": f"Hi, coupon price{coupon}",
            "stock": f"Hi, stock{stock}",
        }[skill]


def taught(rows: Sequence[TaskRow], seed: int, wrong: float = WRONG) -> Iterator[le.Trajectory]:
    """Yield the teacher's episodes."""
    setup, rng = Setup(**SETUP), random.Random(seed)
    env = setup.make_env(rows[0].room)
    for row in rows:
        yield le.rollout(env, lambda room: Teacher(room, rng, wrong), **setup.opening(row))


# --- model ------------------------------------------------------------------------------------


def make_tokenizer(comments: Sequence[str]) -> Any:
    """Return a tokenizer with a token for each call, reply and number, beside pieces of words."""
    from tokenizers import Regex, Tokenizer, decoders, models, pre_tokenizers, trainers
    from transformers import PreTrainedTokenizerFast

    special = ["<|endoftext|>", "<|im_start|>", "<|im_end|>"]
    whole = ["system\nHost " + " ".join(TOOLS), "user\nscreen", "assistant\n", "tool\n"]
    whole += [*map(search, LINKS), *map(rule, INTENTS), *SAID]
    whole += [" price", " coupon price", " stock", " unknown", " rule", " none", " screen"]
    whole += [f" ${n}{cents}" for n in range(100) for cents in ("", ".5", ".99", ".49")]
    whole.sort(key=len, reverse=True)
    words = "|".join([*map(re.escape, whole), r"\d+", r" ?[^\W\d]+", r" ?[^\w\s]", r"\s"])
    split = pre_tokenizers.Split(Regex(words), "isolated")
    bytes_of = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    pieces = Tokenizer(models.BPE())
    pieces.pre_tokenizer = pre_tokenizers.Sequence([split, bytes_of])
    trainer = trainers.BpeTrainer(
        vocab_size=700,
        special_tokens=special,
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    pieces.train_from_iterator(comments, trainer)
    model = json.loads(pieces.to_str())["model"]
    vocab = model["vocab"]
    for text in (*whole, *map(str, range(1000))):
        [(mapped, _)] = bytes_of.pre_tokenize_str(text)
        vocab.setdefault(mapped, len(vocab))
    merges = [tuple(pair) for pair in model["merges"]]
    pieces.model = models.BPE(vocab=vocab, merges=merges, ignore_merges=True)
    pieces.decoder = decoders.ByteLevel()
    made = PreTrainedTokenizerFast(
        tokenizer_object=pieces,
        eos_token="<|im_end|>",
        pad_token="<|endoftext|>",
        padding_side="left",
        additional_special_tokens=["<|im_start|>"],
    )
    made.chat_template = _TEMPLATE
    return made


def make_model(tokenizer: Any, seed: int, *, hidden: int = 64) -> Any:
    import torch
    from transformers import Qwen2Config, Qwen2ForCausalLM

    torch.manual_seed(seed)
    config = Qwen2Config(
        vocab_size=len(tokenizer),
        hidden_size=hidden,
        intermediate_size=2 * hidden,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=4,
        max_position_embeddings=512,
        bos_token_id=None,
        eos_token_id=tokenizer.eos_token_id,
        pad_token_id=tokenizer.pad_token_id,
        tie_word_embeddings=True,
    )
    model = Qwen2ForCausalLM(config)
    model.generation_config.eos_token_id = tokenizer.eos_token_id
    model.generation_config.pad_token_id = tokenizer.pad_token_id
    return model


def warm_up(model: Any, tokenizer: Any, rows: Sequence[Any], steps: int, seed: int) -> float:
    """Train on the teacher's rows, with their loss masks; return the last loss."""
    import torch

    rng, pad = random.Random(seed), tokenizer.pad_token_id
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3)
    schedule = torch.optim.lr_scheduler.LinearLR(optimizer, 1.0, 0.1, steps)
    loss = torch.zeros(())
    for _ in range(steps):
        batch = rng.sample(rows, 32)
        longest = max(len(row.token_ids) for row in batch)
        ids = torch.full((len(batch), longest), pad)
        labels = torch.full((len(batch), longest), -100)
        for at, row in enumerate(batch):
            known = torch.tensor(row.token_ids)
            ids[at, : len(known)] = known
            labels[at, : len(known)] = torch.where(torch.tensor(row.loss_mask) == 1, known, -100)
        loss = model(input_ids=ids, attention_mask=ids != pad, labels=labels).loss
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        schedule.step()
    return loss.item()


# --- the run ----------------------------------------------------------------------------------


def learn(
    seed: int,
    *,
    steps: int = 48,
    warm_steps: int = 300,
    episodes: int = 1500,
    held_out: int = 256,
    batch: int = 96,
    learning_rate: float = 7e-4,
    log_dir: str | None = None,
) -> dict[str, Any]:
    """Train one seed and return its figures: rewards by step, on what was trained and held out."""
    import torch
    from trl import GRPOConfig, GRPOTrainer

    begun = time.time()
    torch.manual_seed(seed)
    first = 1_000_000 * (seed + 1)
    training = tasks("train", first, episodes)
    sets = {
        "seeds": tasks("train", first + 500_000, held_out),
        "test": tasks("test", first + 500_000, held_out),
    }
    played = [*taught(training, seed)]
    tokenizer = make_tokenizer([t.messages[1].content for t in played])
    model = make_model(tokenizer, seed)
    renderer = ChatTemplateRenderer(tokenizer)
    setup = Setup(**SETUP)
    rows = [row for t in played for row in setup.rows(t, renderer) if row.excluded is None]
    warm_loss = warm_up(model, tokenizer, rows, warm_steps, seed)
    warm_s = time.time() - begun
    told = {name: _data_set(given) for name, given in sets.items()}
    train_set = _data_set(training[: steps * batch // 8])
    config = GRPOConfig(
        output_dir=tempfile.mkdtemp(),
        seed=seed,
        use_cpu=True,
        bf16=False,
        gradient_checkpointing=False,
        per_device_train_batch_size=batch,
        per_device_eval_batch_size=held_out,
        num_generations=8,
        num_generations_eval=1,
        max_completion_length=96,
        learning_rate=learning_rate,
        lr_scheduler_type="constant",
        max_steps=steps,
        logging_steps=1,
        eval_strategy="steps",
        eval_steps=max(1, steps // 3),
        eval_on_start=True,
        save_strategy="no",
        report_to=[],
        disable_tqdm=True,
        beta=0.0,
    )
    trainer = GRPOTrainer(
        model=model,
        args=config,
        train_dataset=train_set,
        eval_dataset=told,
        processing_class=tokenizer,
        rollout_func=trl.rollout_func(
            itertools.chain(train_set, *told.values()), log_dir=log_dir, **SETUP
        ),
        reward_funcs=trl.episode_reward,
    )
    for callback in list(trainer.callback_handler.callbacks):
        if type(callback).__name__ == "PrinterCallback":
            trainer.remove_callback(callback)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        trainer.train()
    history = trainer.state.log_history
    return {
        "seed": seed,
        "steps": steps,
        "warm_loss": round(warm_loss, 4),
        "trained": _curve(history, "reward"),
        **{name: _curve(history, "eval_reward", f"eval_{name}_runtime") for name in told},
        "warm_s": round(warm_s),
        "all_s": round(time.time() - begun),
    }


def _data_set(rows: Sequence[TaskRow]) -> Any:
    """Return rows with their ids as prompts: the room gives the first messages."""
    from datasets import Dataset

    told = [[{"role": "user", "content": row.task_id}] for row in rows]
    return Dataset.from_list(
        [{"prompt": prompt, **row.to_json()} for prompt, row in zip(told, rows, strict=True)]
    )


def _curve(
    history: Sequence[dict[str, Any]], key: str, beside: str = ""
) -> list[tuple[int, float]]:
    """Return (step, value) of the lines that have the key, and `beside` where it is given."""
    lines = [line for line in history if key in line and (not beside or beside in line)]
    return [(line["step"], round(line[key], 4)) for line in lines]


# --- what is written --------------------------------------------------------------------------


def table(runs: Sequence[dict[str, Any]]) -> str:
    """Return the rewards before and after, as a table of Markdown."""
    lines = ["| seed | held-out seeds | rise | split `test` | rise |", "|---|---|---|---|---|"]
    for run in runs:
        cells = [str(run["seed"])]
        for name in ("seeds", "test"):
            first, last = run[name][0][1], run[name][-1][1]
            cells += [f"{first:.2f} to {last:.2f}", f"{last - first:+.2f}"]
        lines.append(f"| {' | '.join(cells)} |")
    return "\n".join(lines) + "\n"


def curves(runs: Sequence[dict[str, Any]]) -> str:
    """Return the rewards on held-out seeds (dark) and on the split `test` (light) as an SVG."""
    width, height, steps = 480, 240, max(run["steps"] for run in runs)
    parts = []
    for tenth in range(2, 9, 2):
        y = height - tenth * height // 10
        parts.append(f'<path d="M40 {y}H{width}" stroke="#ddd"/>')
        parts.append(f'<text x="8" y="{y + 4}">0.{tenth}</text>')
    for run, (name, colour) in itertools.product(runs, (("test", "#9bd"), ("seeds", "#036"))):
        points = " ".join(
            f"{40 + step * (width - 40) / steps:.0f},{height - reward * height:.0f}"
            for step, reward in run[name]
        )
        parts.append(f'<polyline points="{points}" fill="none" stroke="{colour}"/>')
    parts.append(f'<text x="{width - 60}" y="{height - 4}">step {steps}</text>')
    head = f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}"'
    return f'{head} font-family="sans-serif" font-size="11">{"".join(parts)}</svg>\n'


def main() -> None:
    """Run the seeds that are asked for, and add them to those of the file."""
    import torch

    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--seeds", type=int, nargs="*", default=[0, 1, 2, 3, 4])
    parser.add_argument("--out", type=Path, default=Path(__file__).with_name("learning_trl.json"))
    parser.add_argument("--svg", type=Path, help="draw the curves of the file's runs")
    args = parser.parse_args()
    torch.set_num_threads(1)
    for seed in args.seeds:
        run = learn(seed)
        others = [other for other in _runs(args.out) if other["seed"] != seed]
        runs = sorted([*others, run], key=lambda one: one["seed"])
        lines = ",\n".join(map(json.dumps, runs))
        args.out.write_text(f"[\n{lines}\n]\n", encoding="utf-8")
    print(table(_runs(args.out)), end="")
    if args.svg:
        args.svg.write_text(curves(_runs(args.out)), encoding="utf-8")


def _runs(path: Path) -> list[dict[str, Any]]:
    return json.loads(path.read_text(encoding="utf-8")) if path.exists() else []


if __name__ == "__main__":
    os.environ.setdefault("TRL_EXPERIMENTAL_SILENCE", "1")
    main()
