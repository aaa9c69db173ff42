"""Sequences for the eye: which tokens are trained, where each came from, and what decided."""

from __future__ import annotations

import html
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import groupby
from typing import Any, Literal

from livestream_env.errors import EmptyMaskError
from livestream_env.tokens import Masker, Source, Span, TokenSequence
from livestream_env.words import safe

_SOURCE_COLOURS = {
    Source.PROMPT: "#888888",
    Source.SCAFFOLD: "#bbbbbb",
    Source.TOOL_RESULT: "#3b6ea5",
    Source.TOOL_CALL: "#a55b00",
    Source.REPLY: "#a53b6e",
}
_TRAINED_ANSI, _CONTEXT_ANSI, _RESET_ANSI = "\x1b[30;42m", "\x1b[2m", "\x1b[0m"
_STYLE = (
    "body{font:14px/1.6 ui-monospace,monospace;margin:2em;max-width:70em}"
    "h2{font-size:1em;margin:1em 0 .2em}.trained{background:#b8e6b8}.cut{opacity:.35}"
    "span{white-space:pre-wrap}"
)


@dataclass(frozen=True, slots=True)
class _Run:
    """Tokens of one span that share what became of them."""

    start: int
    stop: int
    span: Span
    is_trained: bool
    rule: str


def show(
    sequences: TokenSequence | Sequence[TokenSequence],
    tokenizer: Any,
    masker: Masker | None = None,
    *,
    form: Literal["ansi", "plain", "html"] = "ansi",
) -> str:
    """Show sequences with their masks; texts are escaped, so none of them can act.

    Args:
        tokenizer: anything with `decode(ids) -> str`.
        masker: by default the one that trains all that was sampled.
        form: for a terminal, with trained tokens on green; `plain`, where `[` and `]` frame them;
            or a whole HTML page, in which each token tells its position, id and rule.
    """
    given = [sequences] if isinstance(sequences, TokenSequence) else list(sequences)
    if form == "html":
        return _page([_section(one, _runs(one, masker), tokenizer) for one in given])
    is_coloured = form == "ansi"
    shown = (_lines(one, _runs(one, masker), tokenizer, is_coloured) for one in given)
    return "\n\n".join("\n".join(lines) for lines in shown)


def _runs(sequence: TokenSequence, masker: Masker | None) -> list[_Run]:
    try:
        mask = sequence.full(masker).loss_mask
    except EmptyMaskError:
        mask = (0,) * len(sequence)

    def state(at: int) -> int | None:
        return mask[at] if at < len(mask) else None

    runs = []
    for span in sequence.spans:
        for kind, tokens in groupby(range(span.start, span.stop), state):
            places = list(tokens)
            rule = _rule(span.source, kind)
            runs.append(_Run(places[0], places[-1] + 1, span, kind == 1, rule))
    return runs


def _rule(source: Source, state: int | None) -> str:
    if state is None:
        return "cut: it follows the last trained token"
    if not source.is_sampled:
        return f"context: {source.value} is not sampled by the policy"
    if state:
        return f"trained: the masker picks this {source.value}"
    return f"not trained: the masker leaves out this {source.value}"


def _title(run: _Run) -> str:
    turn = "before the first turn" if run.span.turn < 0 else f"turn {run.span.turn}"
    count = run.stop - run.start
    return f"{run.span.source.value}, {turn}, {count} token{'s' * (count != 1)}, {run.rule}"


def _heading(sequence: TokenSequence, runs: Sequence[_Run]) -> str:
    trained = sum(run.stop - run.start for run in runs if run.is_trained)
    exact = "" if sequence.exact else ", made from text: not the ids that were sampled"
    return f"{sequence.agent}: {len(sequence)} tokens, {trained} trained{exact}"


def _lines(
    sequence: TokenSequence, runs: Sequence[_Run], tokenizer: Any, is_coloured: bool
) -> Iterator[str]:
    yield safe(_heading(sequence, runs))
    for run in runs:
        text = str(tokenizer.decode(list(sequence.token_ids[run.start : run.stop])))
        yield f"-- {_title(run)}"
        for line in map(safe, text.split("\n")):
            if is_coloured:
                yield f"{_TRAINED_ANSI if run.is_trained else _CONTEXT_ANSI}{line}{_RESET_ANSI}"
            else:
                yield f"[{line}]" if run.is_trained else line


def _page(sections: Sequence[str]) -> str:
    return (
        '<!doctype html><html><head><meta charset="utf-8"><title>Loss masks</title>'
        f"<style>{_STYLE}</style></head><body>{''.join(sections)}</body></html>\n"
    )


def _section(sequence: TokenSequence, runs: Sequence[_Run], tokenizer: Any) -> str:
    body = [f"<h1>{html.escape(_heading(sequence, runs))}</h1>"]
    for run in runs:
        colour = _SOURCE_COLOURS[run.span.source]
        body.append(f'<h2 style="color:{colour}">{html.escape(_title(run))}</h2><div>')
        kind = "trained" if run.is_trained else "cut" if run.rule.startswith("cut") else "context"
        for at, stop, text in _readable(sequence.token_ids, run, tokenizer):
            ids = " ".join(map(str, sequence.token_ids[at:stop]))
            where = f"{at}" if stop == at + 1 else f"{at}-{stop - 1}"
            note = html.escape(f"token {where}, id {ids}: {run.rule}", quote=True)
            shown = html.escape("\n".join(map(safe, text.split("\n"))))
            body.append(f'<span class="{kind}" title="{note}">{shown}</span>')
        body.append("</div>")
    return "".join(body)


def _readable(ids: Sequence[int], run: _Run, tokenizer: Any) -> Iterator[tuple[int, int, str]]:
    """Yield (start, stop, text) of the fewest tokens that make whole characters."""
    start = run.start
    for at in range(run.start, run.stop):
        text = str(tokenizer.decode(list(ids[start : at + 1])))
        if not text.endswith("\ufffd") or at + 1 == run.stop or at - start >= 3:
            yield start, at + 1, text
            start = at + 1
