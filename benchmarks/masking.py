"""Rendering and masking against one tokenization of the same text.

`python benchmarks/masking.py --tokenizer DIR` prints, for episodes of several lengths, the CPU time
of render + mask as a ratio to `tokenizer.encode` of the same text in the same run: first with
message shapes never seen, then with shapes seen before (another episode of a group). The sampled
ids are recorded, as an engine returns them.
"""

from __future__ import annotations

import argparse
import json
import time
from collections.abc import Callable
from dataclasses import replace

from livestream_env.masking import END_TO_END
from livestream_env.renderers import ChatTemplateRenderer
from livestream_env.types import Action, Message, ToolCall, ToolSpec, Trajectory, Turn, freeze

SPEC = ToolSpec(
    "search_product_by_keyword",
    "Search the products of the room by keywords.",
    freeze({"type": "object", "properties": {"keyword": {"type": "string"}}}),
)
SYSTEM = "你是直播间的主播。先查清楚，再按规则回复观众。" * 10
COMMENT = "当前讲解：春季面霜。观众小王问：这款面霜多少钱，包邮吗？"
LENGTHS = ((5, 300), (20, 300), (100, 300), (300, 700))
"""(turns an episode, characters a tool result)."""


def episode(turns: int, characters: int, variant: int) -> Trajectory:
    """Return an episode of look-ups and a reply; variants differ in their words alone."""
    made = []
    for index in range(turns - 1):
        call = ToolCall(f"call_{index}_0", SPEC.name, freeze({"keyword": f"面霜{variant}{index}"}))
        said = {"hits": [f"春季面霜 {index} 号，券后 {39 + index % 7} 元，" * 40]}
        result = Message("tool", json.dumps(said, ensure_ascii=False)[:characters], (), call.id)
        made.append(Turn("host", Action(Message("assistant", "", (call,))), (), (result,)))
    made.append(Turn("host", Action(Message("assistant", f"亲，券后{39 + variant}元包邮哦"))))
    return Trajectory(
        room_id="bench",
        content_hash="",
        comment_ids=("c1",),
        seed=0,
        prompts={"host": (Message("system", SYSTEM), Message("user", COMMENT))},
        tools={"host": (SPEC,)},
        turns=tuple(made),
    )


def sampled(trajectory: Trajectory, renderer: ChatTemplateRenderer) -> Trajectory:
    """Return the trajectory with recorded ids and logprobs, as an engine would give them."""
    ids = {}
    for sequence in renderer.render(trajectory):
        for span in sequence.spans:
            if span.source.is_sampled:
                ids[span.turn] = sequence.token_ids[span.start : span.stop]
    turns = [
        replace(
            turn,
            action=replace(turn.action, token_ids=ids[i], logprobs=(-0.5,) * len(ids[i])),
        )
        for i, turn in enumerate(trajectory.turns)
    ]
    return trajectory.model_copy(update={"turns": tuple(turns)})


def cpu_ms(run: Callable[[], object], repeats: int) -> float:
    """Return the least CPU time of a run, in milliseconds."""
    best = float("inf")
    for _ in range(repeats):
        start = time.process_time()
        run()
        best = min(best, time.process_time() - start)
    return best * 1e3


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--tokenizer", required=True, help="folder of a Hugging Face tokenizer")
    parser.add_argument("--template", help="file of a chat template in place of its own")
    args = parser.parse_args()
    from transformers import AutoTokenizer

    tokenizer = AutoTokenizer.from_pretrained(args.tokenizer)
    template = None
    if args.template:
        with open(args.template, encoding="utf-8") as file:
            template = file.read()
    plain = tokenizer.backend_tokenizer
    titles = ("turns", "tokens", "encode ms", "first x", "known x", "sequences")
    print(" ".join(f"{title:>9}" for title in titles))
    for turns, characters in LENGTHS:
        source = ChatTemplateRenderer(tokenizer, chat_template=template)
        first = sampled(episode(turns, characters, 1), source)
        second = sampled(episode(turns, characters, 2), source)
        renderer = ChatTemplateRenderer(tokenizer, chat_template=template)
        repeats = max(3, 200 // turns)

        def run(given: Trajectory, renderer: ChatTemplateRenderer = renderer) -> list[object]:
            return [END_TO_END(sequence) for sequence in renderer.render(given)]

        new_ms = cpu_ms(lambda first=first: run(first), 1)
        known_ms = cpu_ms(lambda second=second: run(second), repeats)
        sequences = renderer.render(second)
        text = tokenizer.decode(sequences[-1].token_ids)
        floor_ms = cpu_ms(lambda text=text: plain.encode(text, add_special_tokens=False), repeats)
        print(
            f"{turns:9} {len(sequences[-1]):9} {floor_ms:9.2f} {new_ms / floor_ms:9.2f} "
            f"{known_ms / floor_ms:9.2f} {len(sequences):9}"
        )


if __name__ == "__main__":
    main()
