"""Two students' loss masks on one episode: a token-in token-out engine plays, `show` colours.

Needs the extra `tokens`. `python examples/loss_masks.py [FOLDER]` takes a folder with a Hugging
Face tokenizer that knows tools; without one, a byte tokenizer with a small chat template is made.
"""

from __future__ import annotations

import sys
from typing import Any

import livestream_env as le
from livestream_env.masking import MASKERS, show
from livestream_env.renderers import ChatTemplateRenderer

TURNS = (
    '<tool_call>\n{"name": "search_faq", "arguments": {"query": "包邮吗"}}\n</tool_call>',
    '<tool_call>\n{"name": "get_reply_rule", "arguments": {"intent": "物流"}}\n</tool_call>',
    "亲，满39元包邮哦",
)
CHATML = """
{%- for m in messages -%}
<|im_start|>{{ m.role }}
{% if loop.first and tools %}{{ tools | tojson }}
{% endif %}{{ m.content }}
{%- for call in m.tool_calls or [] -%}
<tool_call>
{{ call.function | tojson }}
</tool_call>
{%- endfor -%}
<|im_end|>
{% endfor -%}
{%- if add_generation_prompt -%}<|im_start|>assistant
{% endif -%}
"""


def byte_tokenizer() -> Any:
    """Return a tokenizer of bytes with ChatML's control tokens."""
    from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers
    from transformers import PreTrainedTokenizerFast

    letters = sorted(pre_tokenizers.ByteLevel.alphabet())
    made = Tokenizer(models.BPE({letter: i for i, letter in enumerate(letters)}, []))
    made.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    made.decoder = decoders.ByteLevel()
    made.add_special_tokens(["<|im_start|>", "<|im_end|>"])
    made.add_tokens([AddedToken(t, special=False) for t in ("<tool_call>", "</tool_call>")])
    tokenizer = PreTrainedTokenizerFast(tokenizer_object=made, eos_token="<|im_end|>")
    tokenizer.chat_template = CHATML
    return tokenizer


def main(folder: str | None = None) -> None:
    """Play one comment of a bundled room and print who would be trained on what."""
    if folder is None:
        tokenizer = byte_tokenizer()
    else:
        from transformers import AutoTokenizer

        tokenizer = AutoTokenizer.from_pretrained(folder)
    said = iter(TURNS)

    def generate(ids: tuple[int, ...], stop: tuple[int, ...]) -> le.Sampled:
        text = next(said) + "<|im_end|>"
        sampled = tokenizer(text, add_special_tokens=False)["input_ids"]
        return le.Sampled(tuple(sampled), tuple(-0.1 for _ in sampled))

    renderer = ChatTemplateRenderer(tokenizer)
    env = le.LiveRoomEnv("snacks", comment="c01", embedder="lexical")
    trajectory = le.rollout(env, le.TokenAgent(generate, renderer), seed=1)
    sequence = renderer.render(trajectory)[0]
    for name in ("tool_calls", "reply"):
        print(f"=== {name}")
        print(show(sequence, tokenizer, MASKERS[name]))


if __name__ == "__main__":
    main(*sys.argv[1:2])
