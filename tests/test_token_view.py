"""Sequences shown for the eye: colours, rules, and nothing that acts."""

from __future__ import annotations

import html
import re
from collections.abc import Sequence
from pathlib import Path

import pytest
from tokenizers_for_tests import template, tokenizer

from livestream_env.cli import main
from livestream_env.masking import END_TO_END, REPLY, TOOL_CALLS, show
from livestream_env.tokens import Source, Span, TokenSequence
from livestream_env.types import Action, Message, Trajectory, Turn

HOSTILE = "<script>alert(1)</script>\x1b[31m\u202e&amp;\"'"


class Words:
    """Decodes ids as indexes into a list of texts."""

    def __init__(self, *texts: str) -> None:
        self.texts = texts

    def decode(self, ids: Sequence[int]) -> str:
        return "".join(self.texts[i] for i in ids)


def made(*parts: tuple[str, Source, int]) -> tuple[TokenSequence, Words]:
    spans = tuple(Span(i, i + 1, source, turn) for i, (_, source, turn) in enumerate(parts))
    ids = tuple(range(len(parts)))
    return TokenSequence(ids, None, spans), Words(*(text for text, _, _ in parts))


EPISODE = (
    ("几块", Source.PROMPT, -1),
    ("call()", Source.TOOL_CALL, 0),
    ("39元", Source.TOOL_RESULT, 0),
    ("亲39元", Source.REPLY, 1),
)


def test_trained_tokens_are_green_and_the_rest_is_dim() -> None:
    sequence, words = made(*EPISODE)
    lines = show(sequence, words, REPLY).split("\n")
    assert "\x1b[30;42m亲39元\x1b[0m" in lines
    assert "\x1b[2mcall()\x1b[0m" in lines


def test_the_plain_form_frames_what_is_trained() -> None:
    sequence, words = made(*EPISODE)
    lines = show(sequence, words, form="plain").split("\n")
    assert [line for line in lines if line.startswith("[")] == ["[call()]", "[亲39元]"]
    assert "39元" in lines


@pytest.mark.parametrize(
    ("masker", "rules"),
    [
        (END_TO_END, ["context", "trained", "context", "trained"]),
        (REPLY, ["context", "not trained", "context", "trained"]),
        (TOOL_CALLS, ["context", "trained", "cut", "cut"]),
    ],
)
def test_each_stretch_tells_the_rule_that_decided(masker: object, rules: list[str]) -> None:
    sequence, words = made(*EPISODE)
    shown = show(sequence, words, masker, form="plain")  # type: ignore[arg-type]
    told = re.findall(r"1 token, ([a-z ]+):", shown)
    assert told == rules


@pytest.mark.parametrize("form", ["ansi", "plain", "html"])
def test_texts_do_not_act(form: str) -> None:
    sequence, words = made((HOSTILE, Source.PROMPT, -1), ("好", Source.REPLY, 0))
    shown = show(sequence, words, form=form)  # type: ignore[arg-type]
    assert "\x1b[31m" not in shown
    assert "\u202e" not in shown
    assert "\\x1b[31m" in html.unescape(shown)
    assert ("<script>" in shown) == (form != "html")


def test_every_token_of_the_page_tells_position_id_and_rule() -> None:
    sequence, words = made(*EPISODE)
    page = html.unescape(show(sequence, words, REPLY, form="html"))
    assert re.findall(r'title="(token \d+, id \d+: [a-z ]+):', page) == [
        "token 0, id 0: context",
        "token 1, id 1: not trained",
        "token 2, id 2: context",
        "token 3, id 3: trained",
    ]
    assert page.count('class="trained"') == 1


def test_half_characters_are_shown_together() -> None:
    tok = tokenizer("qwen")
    ids = tuple(tok("😊", add_special_tokens=False)["input_ids"])
    assert len(ids) > 1
    sequence = TokenSequence(ids, None, (Span(0, len(ids), Source.REPLY, 0),))
    page = show(sequence, tok, form="html")
    assert "😊</span>" in page
    assert "\ufffd" not in page


def test_a_mask_that_trains_nothing_is_shown_all_the_same() -> None:
    sequence, words = made(("几块", Source.PROMPT, -1), ("call()", Source.TOOL_CALL, 0))
    assert "0 trained" in show(sequence, words, REPLY)


def test_several_sequences_make_one_page() -> None:
    sequence, words = made(*EPISODE)
    page = show([sequence, sequence], words, form="html")
    assert page.count("<!doctype html>") == 1
    assert page.count("<h1>") == 2


def test_what_was_made_from_text_says_so() -> None:
    sequence = TokenSequence((0,), None, (Span(0, 1, Source.REPLY, 0),), exact=False)
    assert "made from text" in show(sequence, Words("好"))


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Return a folder with a tokenizer and its chat template."""
    import copy

    tok = copy.deepcopy(tokenizer("qwen"))
    tok.chat_template = template("qwen3_instruct_2507")
    tok.save_pretrained(tmp_path / "tokenizer")
    return tmp_path / "tokenizer"


def file_of(tmp_path: Path, *turns: Turn) -> Path:
    prompts = {"host": (Message("system", "系统"), Message("user", "包邮吗"))}
    trajectory = Trajectory(
        room_id="r",
        content_hash="",
        comment_ids=("c1",),
        seed=0,
        prompts=prompts,
        tools={"host": ()},
        turns=turns,
    )
    path = tmp_path / "trajectories.jsonl"
    path.write_text(trajectory.model_dump_json() + "\n", encoding="utf-8")
    return path


REPLIED = Turn("host", Action(Message("assistant", "包邮哦")))


def test_the_command_prints_a_line_a_sequence(
    tmp_path: Path, folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = file_of(tmp_path, REPLIED)
    code = main(["mask", "--trajectory", str(path), "--tokenizer", str(folder)])
    header, row = capsys.readouterr().out.strip().split("\n")
    assert code == 0
    assert header.split()[:5] == ["trajectory", "agent", "tokens", "trained", "exact"]
    tok = tokenizer("qwen")
    trained = len(tok("包邮哦<|im_end|>", add_special_tokens=False)["input_ids"])
    assert row.split()[1] == "host"
    assert row.split()[3:5] == [str(trained), "no"]


def test_the_command_shows_tokens_and_writes_a_page(
    tmp_path: Path, folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = file_of(tmp_path, REPLIED)
    given = ["mask", "--trajectory", str(path), "--tokenizer", str(folder), "--masker", "reply"]
    assert main([*given, "--show"]) == 0
    assert "[包邮哦<|im_end|>]" in capsys.readouterr().out
    page = tmp_path / "page.html"
    assert main([*given, "--html", str(page)]) == 0
    assert "包邮哦" in re.sub(r"<[^>]*>", "", page.read_text(encoding="utf-8"))


def test_a_masker_that_trains_nothing_is_told_and_fails(
    tmp_path: Path, folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = file_of(tmp_path, REPLIED)
    given = ["mask", "--trajectory", str(path), "--tokenizer", str(folder)]
    assert main([*given, "--masker", "tool_calls"]) == 1
    assert "it holds reply" in capsys.readouterr().out


def test_thinking_that_the_template_cannot_show_is_told(
    tmp_path: Path, folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    thought = Turn("host", Action(Message("assistant", "包邮哦", reasoning="想想")))
    path = file_of(tmp_path, thought)
    assert main(["mask", "--trajectory", str(path), "--tokenizer", str(folder)]) == 1
    assert "strip thinking" in capsys.readouterr().out


def test_a_missing_tokenizer_is_named(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = file_of(tmp_path, REPLIED)
    missing = tmp_path / "none"
    assert main(["mask", "--trajectory", str(path), "--tokenizer", str(missing)]) == 2
    assert "is no folder" in capsys.readouterr().err
