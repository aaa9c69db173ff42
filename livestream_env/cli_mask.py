"""`livestream-env mask`: which tokens of a trajectory would be trained."""

from __future__ import annotations

import argparse
import os
import sys
from typing import TYPE_CHECKING, Literal

from livestream_env.terminal import UsageError, print_table, safe_text

if TYPE_CHECKING:
    from livestream_env.renderers import ChatTemplateRenderer
    from livestream_env.tokens import Masker, TokenSequence
    from livestream_env.types import Trajectory

MASKER_NAMES = ("end_to_end", "tool_calls", "reply")


def run_mask(args: argparse.Namespace) -> int:
    """Print a line for each sequence, and show its tokens where asked; return the exit code."""
    from livestream_env.importers import load_trajectories
    from livestream_env.masking import MASKERS, show

    renderer, masker = load_renderer(args.tokenizer), MASKERS[args.masker]
    imported = load_trajectories(args.trajectory)
    for where, reason in imported.refused:
        print(safe_text(f"refused {where}: {reason}"), file=sys.stderr)
    rows: list[list[str]] = []
    sequences: list[TokenSequence] = []
    for index, trajectory in enumerate(imported.trajectories):
        made, fault = _rendered(trajectory, renderer)
        sequences += made
        rows += [[str(index), *_row(one, masker)] for one in made]
        if fault:
            rows.append([str(index), "-", "-", "-", "-", "-", fault])
    if args.html:
        with open(args.html, "w", encoding="utf-8") as file:
            file.write(show(sequences, renderer.tokenizer, masker, form="html"))
        print(safe_text(f"{len(sequences)} sequences written to {args.html}"))
    elif args.show:
        form: Literal["ansi", "plain"] = "ansi" if sys.stdout.isatty() else "plain"
        print(show(sequences, renderer.tokenizer, masker, form=form), end="\n\n")
    print_table(("trajectory", "agent", "tokens", "trained", "exact", "turns", "note"), rows)
    return 0 if rows and all(row[-1] == "" for row in rows) and not imported.refused else 1


def _rendered(
    trajectory: Trajectory, renderer: ChatTemplateRenderer
) -> tuple[list[TokenSequence], str]:
    """Return the sequences of a trajectory, or why there are none."""
    from livestream_env.errors import PrefixMismatch, UnsupportedTemplate

    try:
        return renderer.render(trajectory), ""
    except (PrefixMismatch, UnsupportedTemplate) as error:
        return [], str(error)


def _row(sequence: TokenSequence, masker: Masker) -> list[str]:
    from livestream_env.errors import EmptyMaskError

    turns, exact = " ".join(map(str, sequence.turns)), "yes" if sequence.exact else "no"
    try:
        sample = masker(sequence)
    except EmptyMaskError as error:
        return [sequence.agent, str(len(sequence)), "0", exact, turns, str(error)]
    tokens, trained = str(len(sample.token_ids)), str(sum(sample.loss_mask))
    return [sequence.agent, tokens, trained, exact, turns, ""]


def load_renderer(folder: str) -> ChatTemplateRenderer:
    """Return a renderer for a folder that holds a tokenizer.

    Raises:
        UsageError: there is none, or it is no folder: names of a hub are not looked up.
        MissingDependency: `transformers` is not installed.
    """
    from livestream_env.errors import missing_dependency
    from livestream_env.renderers import ChatTemplateRenderer

    try:
        from transformers import AutoTokenizer
    except ImportError as error:
        raise missing_dependency("transformers", extra="tokens") from error
    if not os.path.isdir(folder):
        raise UsageError(f"`{folder}` is no folder; give one that holds `tokenizer.json`")
    try:
        return ChatTemplateRenderer(AutoTokenizer.from_pretrained(folder))
    except (ValueError, OSError) as error:
        raise UsageError(f"no tokenizer could be loaded from `{folder}`: {error}") from error
