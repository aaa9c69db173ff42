"""Small tokenizers that know the control tokens of each model family, and its chat template."""

from __future__ import annotations

import functools
import hashlib
import json
from pathlib import Path
from typing import Any

import pytest


def _family(special: str, added: str = "", *, eos: str, bos: str | None = None) -> dict[str, Any]:
    return {"special": special.split(), "added": added.split(), "eos": eos, "bos": bos}


FAMILIES = {
    "qwen": _family(
        "<|endoftext|> <|im_start|> <|im_end|>",
        "<tool_call> </tool_call> <tool_response> </tool_response> <think> </think>",
        eos="<|im_end|>",
    ),
    "llama": _family(
        "<|begin_of_text|> <|start_header_id|> <|end_header_id|> <|eot_id|> <|eom_id|>"
        " <|end_of_text|> <|python_tag|>",
        bos="<|begin_of_text|>",
        eos="<|eot_id|>",
    ),
    "glm": _family(
        "<|endoftext|> [gMASK] <sop> <|system|> <|user|> <|assistant|> <|observation|>",
        "<think> </think> <tool_call> </tool_call> <arg_key> </arg_key> <arg_value> </arg_value>"
        " /nothink",
        eos="<|endoftext|>",
    ),
    "deepseek": _family(
        "<｜begin▁of▁sentence｜> <｜end▁of▁sentence｜> <｜User｜> <｜Assistant｜>"
        " <｜tool▁calls▁begin｜> <｜tool▁calls▁end｜> <｜tool▁call▁begin｜> <｜tool▁call▁end｜>"
        " <｜tool▁outputs▁begin｜> <｜tool▁outputs▁end｜> <｜tool▁output▁begin｜>"
        " <｜tool▁output▁end｜> <｜tool▁sep｜>",
        bos="<｜begin▁of▁sentence｜>",
        eos="<｜end▁of▁sentence｜>",
    ),
    "gptoss": _family(
        "<|startoftext|> <|endoftext|> <|start|> <|end|> <|message|> <|channel|> <|constrain|>"
        " <|return|> <|call|>",
        eos="<|return|>",
    ),
    "gemma": _family(
        '<bos> <eos> <pad> <|turn> <turn|> <|channel> <channel|> <|think|> <|"|> <|tool> <tool|>'
        " <|tool_call> <tool_call|> <|tool_response> <tool_response|>",
        bos="<bos>",
        eos="<turn|>",
    ),
}
TEMPLATES: dict[str, tuple[str, dict[str, Any]]] = {
    **dict.fromkeys(
        ("qwen2_5", "qwen2_5_training", "qwen3", "qwen3_training", "qwen3_instruct_2507"),
        ("qwen", {}),
    ),
    **dict.fromkeys(
        ("qwen3_instruct_2507_training", "qwen3_5_think", "qwen3_5_think_training"),
        ("qwen", {}),
    ),
    **dict.fromkeys(("qwen3_5_nothink", "qwen3_5_nothink_training"), ("qwen", {})),
    **dict.fromkeys(("qwen3_6", "qwen3_6_training", "qwen3_8", "qwen3_8_training"), ("qwen", {})),
    "llama3_1": ("llama", {}),
    **dict.fromkeys(("glm4moe", "glm4moe_training"), ("glm", {})),
    **dict.fromkeys(("deepseekv3", "deepseekv3_training"), ("deepseek", {})),
    **dict.fromkeys(("gptoss", "gptoss_training"), ("gptoss", {})),
    "gemma4": ("gemma", {}),
}
"""TRL's packaged templates: tokenizer family and template variables."""
CORPUS = (
    "亲，这款面霜券后价39元，全国包邮，三天内发货哦。宝宝可以放心拍，七天无理由退换。",
    "Shipping is free and returns are accepted within thirty days of delivery.",
    '{"keyword": "面霜", "intent": "物流", "products": [{"name": "春季面霜", "price": 99.0}]}',
    "system\n\n# Tools\n\nYou may call one or more functions to assist with the user query.\n\n",
    "search_product_by_keyword get_reply_rule search_faq name arguments description type object",
)


@functools.cache
def tokenizer(family: str) -> Any:
    """Return a byte-level BPE of about 600 pieces with the family's control tokens."""
    transformers = pytest.importorskip("transformers", reason="needs the `tokens` extra")
    from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers, trainers

    told = FAMILIES[family]
    made = Tokenizer(models.BPE())
    made.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    made.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=600,
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    made.train_from_iterator(CORPUS * 4, trainer)
    made.add_special_tokens([AddedToken(t, normalized=False) for t in told["special"]])
    made.add_tokens([AddedToken(t, normalized=False, special=False) for t in told["added"]])
    return transformers.PreTrainedTokenizerFast(
        tokenizer_object=made, bos_token=told.get("bos"), eos_token=told["eos"]
    )


def template(name: str) -> str:
    """Return one of TRL's packaged chat templates."""
    trl = pytest.importorskip("trl", reason="TRL packages the chat templates")
    path = Path(trl.__file__).parent / "chat_templates" / f"{name}.jinja"
    return path.read_text(encoding="utf-8")


QWEN3_SHA256 = "aeb13307a71acd8fe81861d94ad54ab689df773318809eed3cbe794b4492dae4"


@functools.cache
def qwen3(folder: str) -> Any:
    """Return the real Qwen3 tokenizer from a folder, checked by its hash."""
    transformers = pytest.importorskip("transformers", reason="needs the `tokens` extra")
    file = Path(folder) / "tokenizer.json"
    if not file.is_file():
        pytest.skip(f"the real Qwen3 tokenizer is not at {folder}: `make tokenizer` fetches it")
    assert hashlib.sha256(file.read_bytes()).hexdigest() == QWEN3_SHA256
    return transformers.AutoTokenizer.from_pretrained(folder)


def pretty(ids: Any, made: Any) -> str:
    """Return the text of ids, control tokens included."""
    return str(made.decode(list(ids), skip_special_tokens=False))


def compact(value: Any) -> str:
    """Return JSON without blanks, as many models write it."""
    return json.dumps(value, ensure_ascii=False, separators=(",", ":"))
