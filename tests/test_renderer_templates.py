"""Templates and tokenizers that are refused, warned of, or need care; dates and threads."""

from __future__ import annotations

import json
import os
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from datetime import date, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
from renderings_for_tests import (
    AGAIN,
    COMMENT,
    SETTINGS,
    SYSTEM,
    TOOLS,
    Episode,
    Step,
    assert_invariants,
    call_of,
    control_ids,
    ids,
    ids_of,
    own_ids,
    renderer,
    reply_of,
    result_of,
    spelled,
    steps_of,
    trajectory_of,
    without_ids,
)
from test_renderer_injection import BENIGN, everywhere
from tokenizers import (
    AddedToken,
    Tokenizer,
    decoders,
    models,
    normalizers,
    pre_tokenizers,
    trainers,
)
from tokenizers_for_tests import CORPUS, FAMILIES, pretty, qwen3, template, tokenizer
from transformers import PreTrainedTokenizer, PreTrainedTokenizerFast

import livestream_env as le
from livestream_env.renderers import ChatTemplateRenderer
from livestream_env.types import Action, Message, ToolSpec, Turn, freeze

CHATML = (
    "{%- for m in messages %}{{ '<|im_start|>' ~ m.role ~ '\n' ~ m.content }}"
    "{%- for call in m.tool_calls or [] %}{{ '<tool_call>' ~ call.function.name ~ ' ' }}"
    "{{ call.function.arguments | tojson }}{{ '</tool_call>' }}{%- endfor %}"
    "{{ '<|im_end|>\n' }}{%- endfor %}"
    "{%- if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{%- endif %}"
)


def rendered(chat_template: str, made: Any = None, **options: Any) -> ChatTemplateRenderer:
    return ChatTemplateRenderer(made or tokenizer("qwen"), chat_template=chat_template, **options)


def shown_by(chat_template: str, messages: Sequence[Message], **variables: Any) -> tuple[int, ...]:
    """Return a template's own tokens of messages without tools."""
    told = [
        {
            "role": message.role,
            "content": message.content,
            "tool_call_id": message.tool_call_id,
            "tool_calls": [
                {"id": c.id, "function": {"name": c.name, "arguments": dict(c.arguments)}}
                for c in message.tool_calls
            ],
        }
        for message in messages
    ]
    made = tokenizer("qwen")
    text = made.apply_chat_template(
        told,
        chat_template=chat_template,
        **{"tokenize": False, "add_generation_prompt": True, **variables},
    )
    return ids_of(text, made)


# --- refused -------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("chat_template", "problem"),
    [
        pytest.param(
            CHATML.replace("for m in messages", "for m in messages if m.role != 'tool'"),
            "does not show tool results",
            id="no tool role",
        ),
        pytest.param(
            CHATML.replace("m.tool_calls or []", "[]"), "does not show tool calls", id="no calls"
        ),
        pytest.param(
            "{{ raise_exception('no tools') if messages[-1].role == 'tool' }}" + CHATML,
            "refuses the conversation .*: no tools",
            id="raises on tools",
        ),
        pytest.param(
            CHATML.replace("~ m.content", "~ m.content | upper"),
            "cuts or changes texts",
            id="upper case",
        ),
        pytest.param(CHATML.replace("~ m.content", "~ m.content[:12]"), "escaping|cuts", id="cut"),
        pytest.param(
            CHATML.replace("~ m.content", "~ m.content | replace('\n', '')"),
            "no known escaping",
            id="newlines removed",
        ),
    ],
)
def test_a_template_that_cannot_show_tools_exactly_is_refused(
    chat_template: str, problem: str
) -> None:
    with pytest.raises(le.UnsupportedTemplate, match=problem):
        rendered(chat_template)


@pytest.mark.parametrize(
    ("changed", "problem"),
    [
        pytest.param("m.content | upper", "cuts or changes texts", id="upper case"),
        pytest.param("m.content[:14]", "cuts or changes texts", id="cut"),
        pytest.param("m.content | replace('\n', '')", "no known escaping", id="no newlines"),
    ],
)
def test_a_reply_that_the_template_changes_is_refused_when_shown(
    changed: str, problem: str
) -> None:
    only_replies = f"({changed} if m.role == 'assistant' and not m.tool_calls else m.content)"
    with pytest.raises(le.UnsupportedTemplate, match=problem):
        rendered(CHATML.replace("m.content", only_replies))


def test_a_tokenizer_without_a_template_is_refused() -> None:
    with pytest.raises(le.UnsupportedTemplate, match="pass `chat_template`"):
        ChatTemplateRenderer(tokenizer("qwen"))


class SlowTokenizer(PreTrainedTokenizer):
    """A tokenizer of characters in Python."""

    @property
    def vocab_size(self) -> int:
        return 300

    def get_vocab(self) -> dict[str, int]:
        return {chr(i): i for i in range(300)}

    def _tokenize(self, text: str, **_: Any) -> list[str]:
        return list(text)

    def _convert_token_to_id(self, token: str) -> int:
        return ord(token)


def test_a_slow_tokenizer_is_refused() -> None:
    with pytest.raises(le.UnsupportedTemplate, match=r"`SlowTokenizer` is no fast tokenizer"):
        ChatTemplateRenderer(SlowTokenizer(), chat_template=CHATML)


def test_roles_in_plain_text_are_warned_of() -> None:
    plain = CHATML.replace("<|im_start|>", "### ").replace("<|im_end|>", "")
    with pytest.warns(UserWarning, match="parts roles by plain text"):
        rendered(plain)


# --- templates that look at the whole conversation -----------------------------------------------

NUMBERED = CHATML.replace("m.role ~", "m.role ~ (loop.index if m.role == 'tool' else '') ~")
LATE = NUMBERED.replace("loop.index ", "'!' * (loop.index > 16) ")


@pytest.mark.parametrize(
    "chat_template",
    [
        pytest.param(NUMBERED, id="seen when the renderer is made"),
        pytest.param(LATE, id="seen in a long conversation alone"),
    ],
)
def test_a_template_with_global_state_is_shown_whole_conversations(chat_template: str) -> None:
    steps = [
        Step(
            call_of(i),
            (result_of(i),),
            '<tool_call>search_product {"keyword": "面霜"}</tool_call><|im_end|>',
        )
        for i in range(9)
    ]
    steps.append(Step(reply_of(), (), "亲，包邮<|im_end|>"))
    episode = Episode("qwen2_5", tuple(steps), tools=())
    (sequence,) = rendered(chat_template).render(episode.trajectory())
    prompt = shown_by(chat_template, episode.history(9))
    assert sequence.token_ids == (*prompt, *episode.sampled[-1])


def test_continue_ids_see_the_whole_conversation_where_the_template_does() -> None:
    text = '<tool_call>search_product {"keyword": "面霜"}</tool_call><|im_end|>'
    steps = tuple(Step(call_of(i), (result_of(i),), text) for i in range(4))
    episode = Episode("qwen2_5", steps, tools=())
    rendering = rendered(NUMBERED)
    (sequence,) = rendering.render(episode.trajectory())
    added = rendering.continue_ids(sequence, steps[-1].then)
    assert (*sequence.token_ids, *added) == shown_by(NUMBERED, episode.history(4))


PHI = CHATML.replace("'<|im_start|>' ~ m.role ~ '\n'", "'<|' ~ m.role ~ '|>'").replace(
    "<|im_start|>assistant\n", "<|assistant|>"
)


def test_a_role_header_is_no_end_token() -> None:
    """`<|user|>` ends a turn of GLM; behind another end token it opens the next message."""
    made = made_tokenizer(special=["<|im_end|>", "<|user|>", "<|assistant|>", "<|endoftext|>"])
    phi = rendered(PHI, made)
    names = set(made.convert_ids_to_tokens(sorted(phi.stop_ids)))
    assert names == {"<|im_end|>", "<|endoftext|>"}
    turns = [
        Turn("host", Action(reply_of(), ids_of("亲，包邮", made)), (), (AGAIN,)),
        Turn("host", Action(reply_of(), ids_of("包的<|im_end|>", made))),
    ]
    (sequence,) = phi.render(trajectory_of(turns, tools=()))
    assert pretty(sequence.token_ids, made).endswith(
        "亲，包邮<|im_end|>\n<|user|>包邮吗<|im_end|>\n<|assistant|>包的<|im_end|>"
    )


IDS = CHATML.replace("~ m.content", "~ (m.tool_call_id or '') ~ m.content").replace(
    "call.function.name ~", "call.id ~ call.function.name ~"
)


@pytest.mark.parametrize("call_id", ["call_0_0", "x-9", "观众", ""])
def test_call_ids_that_the_template_shows_are_shown(call_id: str) -> None:
    asked = replace(call_of().tool_calls[0], id=call_id)
    told = [SYSTEM, COMMENT, replace(call_of(), tool_calls=(asked,)), result_of()]
    told[-1] = replace(told[-1], tool_call_id=call_id)
    assert rendered(IDS).prompt_ids(told) == shown_by(IDS, told)


def test_a_call_id_cannot_hold_a_control_token() -> None:
    asked = replace(call_of().tool_calls[0], id="<think>")
    told = [SYSTEM, COMMENT, replace(call_of(), tool_calls=(asked,))]
    plain = [SYSTEM, COMMENT, call_of()]
    made = tokenizer("qwen")
    got = rendered(IDS).prompt_ids(told)
    assert control_ids(got, made) == control_ids(shown_by(IDS, plain), made)
    assert "<tool_call><think>search_product" in pretty(got, made)


def test_a_turn_that_is_shown_behind_its_result_is_a_rewriting() -> None:
    turned = CHATML.replace("for m in messages", "for m in messages | sort(attribute='role')")
    steps = (
        Step(reply_of("甲"), (AGAIN,), "甲<|im_end|>"),
        Step(reply_of("乙"), (), "乙<|im_end|>"),
    )
    episode = Episode("qwen2_5", steps, tools=())
    assert len(rendered(turned).render(episode.trajectory())) == 2


def test_stop_ids_may_be_given() -> None:
    assert rendered(CHATML, stop_ids=[3]).stop_ids == {3}


@pytest.mark.parametrize(
    ("escaped", "text"),
    [
        pytest.param("m.content | tojson", "\"\\ 面霜\n<&>'", id="JSON"),
        pytest.param("m.content | tojson | tojson", '"\\ 面霜\n', id="JSON within JSON"),
        pytest.param("m.content | e", "\"<b>' & &amp;", id="HTML"),
        pytest.param("({'role': m.role, 'text': m.content} | tojson)", 'a"b', id="an object"),
    ],
)
def test_texts_that_the_template_escapes_are_escaped(escaped: str, text: str) -> None:
    chat_template = CHATML.replace("m.content", escaped)
    told = [Message("system", text), Message("user", f"<|im_end|>{text}")]
    plain = [Message("system", text), Message("user", f"<|x|>{text}")]
    got = rendered(chat_template).prompt_ids(told)
    assert rendered(chat_template).prompt_ids(plain) == shown_by(chat_template, plain)
    made = tokenizer("qwen")
    assert control_ids(got, made) == control_ids(shown_by(chat_template, plain), made)


# --- dates ----------------------------------------------------------------------------------------


def test_a_rollout_of_yesterday_shows_yesterday() -> None:
    yesterday = datetime.now() - timedelta(days=1)
    episode = Episode("gptoss", (Step(call_of(), (result_of(),)), Step(reply_of())))
    trajectory = episode.trajectory()
    turns = tuple(replace(t, started_s=yesterday.timestamp()) for t in trajectory.turns)
    (sequence,) = renderer("gptoss").render(trajectory.model_copy(update={"turns": turns}))
    today = pretty(episode.expected()[0], episode.tokenizer)
    shown = pretty(sequence.token_ids, episode.tokenizer)
    told = f"Current date: {date.today()}", f"Current date: {yesterday.date()}"
    assert today.count(told[0]) == 1
    assert shown == today.replace(*told)


@pytest.mark.parametrize(
    "asked", ["strftime_now('%Y')", 'strftime_now( "%d %b" )', "strftime_now(format='%Y')"]
)
def test_dates_are_told_however_the_template_asks(asked: str) -> None:
    chat_template = "\n{{ " + asked + " }}" + CHATML
    told = [SYSTEM, COMMENT]
    assert rendered(chat_template).prompt_ids(told) == shown_by(chat_template, told)


# --- tokenizers -----------------------------------------------------------------------------------


def made_tokenizer(
    kind: str = "bytes",
    special: Sequence[str] = tuple(FAMILIES["qwen"]["special"]),
    added: Sequence[str] = tuple(FAMILIES["qwen"]["added"]),
    blanks: Sequence[str] = (),
    scheme: str = "first",
    **flags: bool,
) -> Any:
    """Return a small tokenizer; `flags` are those of its added tokens."""
    unknown = None if kind in ("bytes", "lower case") else "<unk>"
    vocabulary = [unknown, *special] if unknown else []
    if kind == "pieces":
        made = Tokenizer(models.Unigram())
        made.pre_tokenizer = pre_tokenizers.Metaspace(prepend_scheme=scheme)
        made.decoder = decoders.Metaspace(prepend_scheme=scheme)
        trainer: Any = trainers.UnigramTrainer(
            vocab_size=300,
            special_tokens=vocabulary,
            unk_token=unknown,
            show_progress=False,
            initial_alphabet=list('<>/_{}":,|'),
        )
    elif kind == "prepended":
        made = Tokenizer(models.BPE(unk_token=unknown, fuse_unk=True))
        made.normalizer = normalizers.Sequence(
            [normalizers.Prepend("▁"), normalizers.Replace(" ", "▁")]
        )
        made.decoder = decoders.Replace("▁", " ")
        trainer = trainers.BpeTrainer(
            vocab_size=500, special_tokens=vocabulary, show_progress=False
        )
    else:
        made = Tokenizer(models.BPE())
        made.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=kind == "lower case")
        made.decoder = decoders.ByteLevel()
        if kind == "lower case":
            made.normalizer = normalizers.Sequence([normalizers.NFKC(), normalizers.Lowercase()])
        trainer = trainers.BpeTrainer(
            vocab_size=500,
            initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
            show_progress=False,
        )
    made.train_from_iterator(CORPUS * 4, trainer)
    normalized = kind == "lower case"
    made.add_special_tokens([AddedToken(t, normalized=False, **flags) for t in special])
    made.add_tokens([AddedToken(t, normalized=normalized, **flags) for t in added])
    made.add_tokens([AddedToken(t, normalized=False) for t in blanks])
    return PreTrainedTokenizerFast(tokenizer_object=made, eos_token="<|im_end|>", unk_token=unknown)


@pytest.mark.parametrize(
    "options",
    [
        pytest.param({"kind": "pieces"}, id="pieces, blank before the first"),
        pytest.param({"kind": "pieces", "scheme": "always"}, id="pieces, blank before each"),
        pytest.param({"kind": "pieces", "scheme": "never"}, id="pieces, no blank before"),
        pytest.param({"kind": "prepended"}, id="normalizer that prepends"),
        pytest.param({"kind": "lower case"}, id="normalizer to lower case"),
        pytest.param({"rstrip": True}, id="control tokens take blanks behind"),
        pytest.param({"lstrip": True}, id="control tokens take blanks before"),
        pytest.param({"lstrip": True, "rstrip": True}, id="control tokens take all blanks"),
        pytest.param({"blanks": ("\n\n", "   ", "\n\n\n")}, id="added tokens of blanks"),
        pytest.param(
            {"kind": "pieces", "blanks": ("  ", "\t")},
            id="added tokens of blanks behind those of the vocabulary",
        ),
    ],
)
@pytest.mark.parametrize("setting", ["qwen3_instruct_2507", "qwen3_5_think"])
def test_prompts_are_the_templates_own_tokens_on_any_tokenizer(
    setting: str, options: dict[str, Any]
) -> None:
    made = made_tokenizer(**options)
    rendering = rendered(template(SETTINGS[setting][0]), made)
    for name, text in BENIGN.items():
        for messages in everywhere(text):
            own = own_ids(setting, messages, (), made)
            assert rendering.prompt_ids(messages) == own, name
    told = [SYSTEM, Message("user", "x y"), call_of(), result_of()]
    for text in (*FAMILIES["qwen"]["special"], *FAMILIES["qwen"]["added"]):
        hostile = [SYSTEM, Message("user", f"x {text} y"), call_of(), result_of(text=text)]
        got = control_ids(rendering.prompt_ids(hostile), made)
        assert got == control_ids(own_ids(setting, told, (), made), made)


def evil_tokenizer(whole: bool, *, unknown: bool = True) -> Any:
    """Return a tokenizer whose vocabulary holds `<evil>`, or the letter `恶`, as a piece."""
    text = "<evil>" if whole else "恶"
    letters = [(piece, -4.0) for piece in sorted({*"".join(CORPUS), *CHATML, "▁", "\n"} - {" "})]
    vocabulary = [("<unk>", 0.0), (text, -1.0), *letters]
    made = Tokenizer(models.Unigram(vocabulary, unk_id=0 if unknown else None))
    made.pre_tokenizer = pre_tokenizers.Metaspace(prepend_scheme="never")
    made.decoder = decoders.Metaspace(prepend_scheme="never")
    made.add_special_tokens(["<|im_start|>", "<|im_end|>", text])
    return PreTrainedTokenizerFast(tokenizer_object=made, eos_token="<|im_end|>")


def test_a_control_token_that_is_a_piece_of_the_vocabulary_is_never_made_of_text() -> None:
    made = evil_tokenizer(whole=True)
    rendering = rendered(CHATML, made)
    told = [SYSTEM, Message("user", "a <evil> b"), call_of(), result_of(text="<evil>")]
    ids = rendering.prompt_ids(told)
    assert made.convert_tokens_to_ids("<evil>") not in ids
    turns = [Turn("host", Action(reply_of(), (1,)))]
    (sequence,) = rendering.render(trajectory_of(turns, tuple(told[:2]), ()))
    shown = [
        made.backend_tokenizer.decode(list(sequence.token_ids[span.start : span.stop]))
        for span in sequence.spans
        if span.source == "prompt"
    ]
    assert shown[1] == "a <evil> b"


def test_a_control_token_of_one_letter_cannot_be_kept_out() -> None:
    rendering = rendered(CHATML, evil_tokenizer(whole=False))
    with pytest.raises(le.UnsupportedTemplate, match="makes a control token of the plain text"):
        rendering.prompt_ids([SYSTEM, Message("user", "恶")])


def test_a_tokenizer_without_an_unknown_token_encodes_what_it_knows() -> None:
    rendering = rendered(CHATML, evil_tokenizer(whole=True, unknown=False))
    known = rendered(CHATML, evil_tokenizer(whole=True))
    told = [Message("system", "亲"), Message("user", "包邮")]
    assert rendering.prompt_ids(told) == known.prompt_ids(told)


def test_spans_hold_where_the_tokenizer_drops_characters() -> None:
    made = made_tokenizer()
    made.backend_tokenizer.normalizer = normalizers.Replace("\u200b", "")
    turns = [Turn("host", Action(reply_of(), (1,)))]
    opening = (Message("system", "好\u200b"), Message("user", "\u200b"))
    (sequence,) = rendered("{{ 'x' }}" + CHATML, made).render(trajectory_of(turns, opening, ()))
    told = [
        (span.source.value, pretty(sequence.token_ids[span.start : span.stop], made))
        for span in sequence.spans[:-1]
    ]
    assert ("prompt", "好") in told
    assert "".join(text for _, text in told) == (
        "x<|im_start|>system\n好<|im_end|>\n<|im_start|>user\n<|im_end|>\n<|im_start|>assistant\n"
    )


def test_unknown_characters_are_no_control_tokens() -> None:
    made = made_tokenizer("pieces")
    rendering = rendered(CHATML, made)
    told = [SYSTEM, Message("user", "ЖЖ ☃")]
    assert rendering.prompt_ids(told) == ids_of(
        "<|im_start|>system\n你是主播<|im_end|>\n<|im_start|>user\nЖЖ ☃<|im_end|>\n"
        "<|im_start|>assistant\n",
        made,
    )
    assert made.unk_token_id in rendering.prompt_ids(told)


@pytest.mark.parametrize("told", [True, False], ids=["template with BOS", "template without"])
def test_m8_a_prompt_has_the_templates_bos_and_no_other(told: bool) -> None:
    from tokenizers.processors import TemplateProcessing

    made = made_tokenizer(special=["<s>", *FAMILIES["qwen"]["special"]])
    bos = made.convert_tokens_to_ids("<s>")
    made.backend_tokenizer.post_processor = TemplateProcessing(
        single="<s> $A", pair=None, special_tokens=[("<s>", bos)]
    )
    made.bos_token = "<s>"
    assert made("x")["input_ids"][0] == bos
    rendering = rendered(("{{ bos_token }}" if told else "") + CHATML, made)
    assert rendering.prompt_ids([SYSTEM, COMMENT]).count(bos) == int(told)


# --- threads --------------------------------------------------------------------------------------


def test_threads_render_the_same() -> None:
    name, variables = SETTINGS["qwen3_instruct_2507"]
    fresh = rendered(template(name), **variables)
    jobs = []
    for index in range(48):
        tool = ToolSpec(f"tool_{index % 8}", f"<think>{index % 8}", freeze({"type": "object"}))
        steps = steps_of(("tool", "tools", "pair", "comment")[index % 4], thinking=False)
        jobs.append(Episode("qwen3_instruct_2507", steps, tools=(tool,)).trajectory())
    with ThreadPoolExecutor(16) as pool:
        together = [ids(made) for made in pool.map(fresh.render, jobs)]
    alone = rendered(template(name), **variables)
    assert together == [ids(alone.render(job)) for job in jobs]


def test_many_shapes_do_not_pile_up() -> None:
    from livestream_env.chat_templates import Remembered

    kept: Remembered[int] = Remembered()
    for index in range(10_000):
        kept[index] = index
    assert len(kept) < 5_000
    assert kept[9_999] == 9_999


# --- the real tokenizer of Qwen3 -----------------------------------------------------------------

FOLDER = os.environ.get("LIVESTREAM_ENV_QWEN3") or str(
    Path(__file__).parents[1] / ".cache" / "qwen3" / "models"
)


@pytest.fixture(scope="module")
def real_renderers() -> dict[str, ChatTemplateRenderer]:
    made = qwen3(FOLDER)
    told = ("qwen2_5", "qwen3", "qwen3_instruct_2507", "qwen3_5_think")
    return {name: ChatTemplateRenderer(made, chat_template=template(name)) for name in told}


@pytest.mark.row("R44")
@pytest.mark.parametrize("setting", ["qwen2_5", "qwen3", "qwen3_instruct_2507", "qwen3_5_think"])
@pytest.mark.parametrize("thinking", [False, True], ids=["", "thinking"])
def test_sequences_on_the_real_qwen3_tokenizer(
    real_renderers: dict[str, ChatTemplateRenderer], setting: str, thinking: bool
) -> None:
    for case in ("tool", "tools", "pair", "text", "comment", "replies"):
        episode = Episode(setting, steps_of(case, thinking), made=qwen3(FOLDER))
        sequences = real_renderers[setting].render(episode.trajectory())
        assert ids(sequences) == episode.expected()
        assert_invariants(sequences, episode.trajectory())


@pytest.mark.parametrize("setting", ["qwen2_5", "qwen3_5_think"])
def test_prompts_on_the_real_qwen3_tokenizer(
    real_renderers: dict[str, ChatTemplateRenderer], setting: str
) -> None:
    made = qwen3(FOLDER)
    for name, text in BENIGN.items():
        for messages in everywhere(text):
            got = real_renderers[setting].prompt_ids(messages, TOOLS)
            assert got == own_ids(setting, messages, made=made), name
    neutral = real_renderers[setting].prompt_ids([SYSTEM, Message("user", "x")], TOOLS)
    for text in made.get_added_vocab():
        got = real_renderers[setting].prompt_ids([SYSTEM, Message("user", text)], TOOLS)
        assert control_ids(got, made) == control_ids(neutral, made)
        assert text in made.decode(got)


def test_the_first_release_of_qwen3_is_rendered_by_its_own_template() -> None:
    made = qwen3(FOLDER)
    own = made.apply_chat_template(
        [json.loads(json.dumps(m.to_openai())) for m in (SYSTEM, COMMENT)],
        tools=[tool.to_openai() for tool in TOOLS],
        add_generation_prompt=True,
        return_dict=False,
    )
    rendering = ChatTemplateRenderer(made)
    assert rendering.prompt_ids([SYSTEM, COMMENT], TOOLS) == tuple(own)
    episode = Episode("qwen3", steps_of("tool", thinking=False), made=made)
    (sequence,) = rendering.render(episode.trajectory())
    assert pretty(sequence.token_ids, made).endswith(spelled("qwen3", reply_of()))
    assert not rendering.render(without_ids(episode.trajectory()))[0].exact
