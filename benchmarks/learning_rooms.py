"""What the learning runs share: rooms, wording, a teacher, a vocabulary, a model, and figures.

The policy is a model of two layers whose vocabulary holds whole calls and beginnings of replies as
single tokens, beside numbers and the words that comments often have: it has to pick the calls by
the comment, and to copy prices and stocks from the results. It starts from a mixture: trained on
episodes of a teacher that is wrong half the time. Everything else is the package as it comes:
environment, tools, limits, rubric `single4`, masks. Only the wording is shorter than the bundled
one (`prompt=`, `result_format=`), which keeps an episode below a hundred tokens.
"""

from __future__ import annotations

import argparse
import itertools
import json
import random
import re
import statistics
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import livestream_env as le
from livestream_env.adapters.setup import Setup, TaskRow
from livestream_env.types import Message, RoomView, ToolCall, ToolResult, ToolSpec

ROOMS = "generated:level=1,language=en,products=6,comments=24,noise=0.5,split="
SKILLS = ("price", "coupon_price", "stock", "link_no")
TOOLS = ("search_product_by_keyword", "get_reply_rule")
LINKS = range(1, 7)
INTENTS = (
    "price", "stock", "link number", "off platform", "haggling", "claims", "noise", "small talk",
    "shipping", "returns",
)  # fmt: skip
HELLO = "Hi, thanks for being here"
SAID = (HELLO, "Hi, it is", "Hi, price", "Hi, coupon price", "Hi, stock", " link")
UNKNOWN = "<|unknown|>"
OFTEN = 0.01
"""The share of the comments that a word has to occur in to be known; all others are one token."""
WRONG = 0.5
"""How often the teacher is wrong, in each thing it decides."""
EVALUATION = 900_000_000
"""The first seed of the generator that is kept for measuring."""
_NAMED = re.compile(r"(?:\b(?:link|number|no\.|item)|#) ?(\d)|\b(?:this|screen|holding|current)\b")
_FOUND = re.compile(r"( link \d+) price(.+) coupon price(.+) stock( .+)")
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
    return [Message("system", "Host"), Message("user", f"screen link {link}\n {said}")]


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
    """Return rows of the split from a seed on whose comment asks for one of `SKILLS`, of a product
    named by its number or as the one on screen."""
    env = Setup(ROOMS + split, **SETUP).make_env()
    made = (TaskRow(ROOMS + split, seed) for seed in itertools.count(first))
    fitting = (row for row in made if _fits(env, row))
    return [*itertools.islice(fitting, count)]


def training_tasks(seed: int, count: int) -> list[TaskRow]:
    """Return rows of the split `train` that a run is trained on."""
    return tasks("train", 1_000_000 * (seed + 1), count)


def evaluation_tasks(seed: int, count: int, first: int = EVALUATION) -> dict[str, list[TaskRow]]:
    """Return the rows that a run is measured on before and after, the same both times.

    `seeds` are rooms of the training's templates from seeds that no run has trained on, `test` are
    rooms of the split `test`.
    """
    first += 1_000_000 * seed
    return {"seeds": tasks("train", first, count), "test": tasks("test", first, count)}


def _fits(env: Any, row: TaskRow) -> bool:
    comment = comment_of(env, row)
    return _skill(comment) in SKILLS and bool(_NAMED.search(comment.text))


def comment_of(env: Any, row: TaskRow) -> Any:
    """Return the open comment of a row."""
    room, (comment_id,) = env.task_of(row.seed)
    return room.comment(comment_id)


def _skill(comment: Any) -> str:
    return str(comment.expected.provenance.partition("skill=")[2].partition(";")[0])


class Teacher:
    """Knows the key, and decides wrongly as often as it is told."""

    def __init__(self, seed: int, wrong: float = WRONG) -> None:
        self._rng, self._wrong = random.Random(seed), wrong

    def says(self, comment: Any, told: str, *, first: bool) -> str:
        """Return its message about a comment: look up in the first, reply in the second.

        Args:
            told: all text of the episode so far.
        """
        skill, rng, wrong = _skill(comment), self._rng, self._wrong
        if first:
            named = _NAMED.search(comment.text)
            screen = re.search(r"screen link (\d+)", told)
            link = int((named and named[1]) or screen[1])
            intent = comment.expected.asks[0].intent
            if rng.random() < wrong:
                link = rng.choice(LINKS)
            if rng.random() < wrong:
                intent = rng.choice(INTENTS)
            calls = [search(link)] * (rng.random() >= wrong / 2)
            calls += [rule(intent)] * (rng.random() >= wrong / 2)
            return "".join(calls) or HELLO
        found = _FOUND.search(told)
        if found is None:
            return HELLO
        if rng.random() < wrong:
            skill = rng.choice(SKILLS)
        link, price, coupon, stock = found.groups()
        return {
            "link_no": f"Hi, it is{link}",
            "price": f"Hi, price{price}",
            "coupon_price": f"Hi, coupon price{coupon}",
            "stock": f"Hi, stock{stock}",
        }[skill]


@dataclass(frozen=True)
class Taught:
    """The agent of one episode, or of one of its two seats, for whom a teacher speaks."""

    teacher: Teacher
    comment: Any
    looks_up: bool | None = None
    """`None`: in its first turn alone."""

    def act(self, messages: Sequence[Message], tools: Sequence[ToolSpec]) -> str:
        told = "\n".join(message.content for message in messages)
        first = messages[-1].role == "user" if self.looks_up is None else self.looks_up
        return self.teacher.says(self.comment, told, first=first)


def taught(rows: Sequence[TaskRow], seed: int, wrong: float = WRONG) -> Iterator[le.Trajectory]:
    """Yield the teacher's episodes, played by the core."""
    setup, teacher = Setup(**SETUP), Teacher(seed, wrong)
    env = setup.make_env(rows[0].room)
    for row in rows:
        agent = Taught(teacher, comment_of(env, row))
        yield le.rollout(env, agent, **setup.opening(row))


# --- model ------------------------------------------------------------------------------------


def make_tokenizer(texts: Sequence[str], framing: Sequence[str] = ()) -> Any:
    """Return a tokenizer with a token for each call, for what replies begin with, for words and for
    numbers of up to two digits.

    Args:
        texts: whose words are learnt.
        framing: what else is a token, as what a trainer writes around results.
    """
    from tokenizers import Regex, Tokenizer, decoders, models, pre_tokenizers
    from transformers import PreTrainedTokenizerFast

    special = ["<|endoftext|>", "<|im_start|>", "<|im_end|>", UNKNOWN]
    whole = ["system\nHost " + " ".join(TOOLS), "user\nscreen", "assistant\n", "tool\n"]
    whole += [*framing, *map(search, LINKS), *map(rule, INTENTS), *SAID]
    whole += [" price", " coupon price", " stock", " unknown", " rule", " none"]
    whole += [*(f" ${n}" for n in range(100)), ".5", ".99", ".49"]
    whole.sort(key=len, reverse=True)
    words = "|".join([*map(re.escape, whole), r"\d{1,2}", r" ?[^\W\d]+", r" ?[^\w\s]", r"\s"])
    split = pre_tokenizers.Split(Regex(words), "isolated")
    counts = Counter(
        word for text in texts for word in {piece for piece, _ in split.pre_tokenize_str(text)}
    )
    known = [word for word, count in sorted(counts.items()) if count >= len(texts) * OFTEN]
    digits = [*map(str, range(100)), *(f"0{n}" for n in range(10))]
    every = dict.fromkeys([*special, *whole, *digits, " ", "\n", " $", ".", *known])
    pieces = Tokenizer(models.WordLevel({w: at for at, w in enumerate(every)}, UNKNOWN))
    pieces.pre_tokenizer = split
    pieces.decoder = decoders.Fuse()
    made = PreTrainedTokenizerFast(
        tokenizer_object=pieces,
        eos_token="<|im_end|>",
        pad_token="<|endoftext|>",
        padding_side="left",
        unk_token=UNKNOWN,
        additional_special_tokens=["<|im_start|>"],
    )
    made.chat_template = _TEMPLATE
    return made


def make_model(tokenizer: Any, seed: int, *, hidden: int = 64) -> Any:
    """Return an untrained model of two layers."""
    import torch
    from transformers import AutoConfig, AutoModelForCausalLM

    torch.manual_seed(seed)
    config = AutoConfig.for_model(
        "qwen3",
        vocab_size=len(tokenizer),
        hidden_size=hidden,
        intermediate_size=2 * hidden,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=4,
        head_dim=hidden // 4,
        max_position_embeddings=512,
        bos_token_id=None,
        eos_token_id=tokenizer.eos_token_id,
        pad_token_id=tokenizer.pad_token_id,
        tie_word_embeddings=True,
    )
    model = AutoModelForCausalLM.from_config(config)
    model.generation_config.eos_token_id = tokenizer.eos_token_id
    model.generation_config.pad_token_id = tokenizer.pad_token_id
    return model


def warm_up(
    model: Any,
    tokenizer: Any,
    rows: Sequence[tuple[Sequence[int], Sequence[int]]],
    steps: int,
    seed: int,
) -> float:
    """Train on ids and loss masks of the teacher's episodes; return the last loss."""
    import torch

    rng, pad = random.Random(seed), tokenizer.pad_token_id
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3)
    schedule = torch.optim.lr_scheduler.LinearLR(optimizer, 1.0, 0.1, steps)
    loss = torch.zeros(())
    for _ in range(steps):
        batch = rng.sample(rows, 32)
        longest = max(len(ids) for ids, _ in batch)
        told = torch.full((len(batch), longest), pad)
        labels = torch.full((len(batch), longest), -100)
        for at, (ids, mask) in enumerate(batch):
            known = torch.tensor(ids)
            told[at, : len(ids)] = known
            labels[at, : len(ids)] = torch.where(torch.tensor(mask) == 1, known, -100)
        loss = model(input_ids=told, attention_mask=told != pad, labels=labels).loss
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        schedule.step()
    return loss.item()


# --- figures ----------------------------------------------------------------------------------


def compared(before: Mapping[Any, float], after: Mapping[Any, float]) -> dict[str, float]:
    """Return means and standard errors of two measurements of the same tasks, and of the rise."""
    if before.keys() != after.keys():
        raise ValueError("the two measurements are not of the same tasks")
    told: dict[str, float] = {"episodes": len(before)}
    rises = [after[task] - before[task] for task in before]
    for name, values in (("before", before.values()), ("after", after.values()), ("rise", rises)):
        told[name] = round(statistics.fmean(values), 4)
        told[f"{name}_se"] = round(statistics.stdev(values) / len(before) ** 0.5, 4)
    return told


def table(runs: Sequence[Mapping[str, Any]]) -> str:
    """Return the rewards before and after with their standard errors, as a table of Markdown."""
    lines = ["| seed | held-out seeds | rise | split `test` | rise |", "|---|---|---|---|---|"]
    for run in runs:
        cells = [str(run["seed"])]
        for one in (run["seeds"], run["test"]):
            cells.append(f"{one['before']:.3f} to {one['after']:.3f}")
            cells.append(f"{one['rise']:+.3f} ± {one['rise_se']:.3f}")
        lines.append(f"| {' | '.join(cells)} |")
    return "\n".join(lines) + "\n"


Line = tuple[Sequence[tuple[float, float]], str]
"""Points `(step, reward)`, and a colour."""


def curves(runs: Sequence[Mapping[str, Any]]) -> str:
    """Return what was trained (grey), and the two measurements on held-out seeds (dark) and on the
    split `test` (light), as an SVG."""
    lines: list[Line] = [(means(run["trained"]), "#ccc") for run in runs]
    for run, (name, colour) in itertools.product(runs, (("test", "#9bd"), ("seeds", "#036"))):
        lines.append(([(0, run[name]["before"]), (run["steps"], run[name]["after"])], colour))
    return chart(lines, max(run["steps"] for run in runs))


def means(trained: Sequence[tuple[int, float]], *, window: int = 8) -> list[tuple[float, float]]:
    """Return the rewards of the steps as means of `window` steps."""
    rewards = [reward for _, reward in trained]
    return [
        (at - window / 2, statistics.fmean(rewards[at - window : at]))
        for at in range(window, len(rewards) + 1)
    ]


def chart(lines: Sequence[Line], steps: int) -> str:
    """Return lines over the steps as an SVG."""
    width, height = 480, 240
    parts = []
    for tenth in range(2, 9, 2):
        y = height - tenth * height // 10
        parts.append(f'<path d="M40 {y}H{width}" stroke="#eee"/>')
        parts.append(f'<text x="8" y="{y + 4}">0.{tenth}</text>')
    for points, colour in lines:
        told = " ".join(
            f"{40 + step * (width - 40) / steps:.0f},{height - reward * height:.0f}"
            for step, reward in points
        )
        parts.append(f'<polyline points="{told}" fill="none" stroke="{colour}"/>')
    parts.append(f'<text x="{width - 60}" y="{height - 4}">step {steps}</text>')
    head = f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}"'
    return f'{head} font-family="sans-serif" font-size="11">{"".join(parts)}</svg>\n'


def run_seeds(
    learn: Callable[[int], dict[str, Any]],
    out: Path,
    about: str,
    table: Callable[[Sequence[Mapping[str, Any]]], str] = table,
    curves: Callable[[Sequence[Mapping[str, Any]]], str] = curves,
) -> None:
    """Run the seeds that are asked for, and add each to the file as soon as it has ended."""
    parser = argparse.ArgumentParser(description=about)
    parser.add_argument("--seeds", type=int, nargs="*", default=[])
    parser.add_argument("--out", type=Path, default=out)
    parser.add_argument("--svg", type=Path, help="draw the curves of the file's runs")
    args = parser.parse_args()
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
