"""`livestream-env export`: trajectories into training files, tasks into data sets."""

from __future__ import annotations

import argparse
from collections import Counter
from collections.abc import Iterable

from livestream_env.cli_mask import load_renderer
from livestream_env.terminal import UsageError, print_table, progress, safe_text

FORMATS = ("messages", "prompt_completion", "tokens", "sharegpt", "verl")
VIEWS = ("tool_calls", "reply", "end_to_end")
DATA_FORMATS = ("jsonl", "trl", "verl", "openrlhf", "slime", "nemo_gym")


def run_export_sft(args: argparse.Namespace) -> int:
    """Write the rows of an SFT data set, and print what was left out and why."""
    from livestream_env.export import export_sft, write_export
    from livestream_env.importers import load_trajectories

    if args.format == "tokens" and args.tokenizer is None:
        raise UsageError("`--format tokens` needs `--tokenizer DIR`")
    renderer = load_renderer(args.tokenizer) if args.format == "tokens" else None
    with progress(lambda: "reading and exporting"):
        imported = load_trajectories(args.source)
        export = export_sft(
            imported.trajectories,
            view=args.view,
            format=args.format,
            strip_thinking=args.strip_thinking,
            renderer=renderer,
        )
        if export.rows:
            write_export(export, args.out)
    count = len(imported.trajectories)
    if export.rows:
        print(safe_text(f"{len(export.rows)} rows of {count} trajectories written to {args.out}"))
    else:
        print(safe_text(f"no rows of {count} trajectories; {args.out} is not written"))
    _print_reasons("excluded", (reason for _, reason in export.excluded))
    _print_reasons("records refused", (reason for _, reason in imported.refused))
    return 0 if export.rows else 1


def run_export_rl(args: argparse.Namespace) -> int:
    """Write the task rows of an RL data set."""
    from livestream_env.adapters.data_sets import write_data_set
    from livestream_env.adapters.setup import task_rows

    with progress(lambda: "writing rows"):
        rows = task_rows(args.room, count=args.count, seed=args.seed)
        count = write_data_set(rows, args.out, args.format)
    print(safe_text(f"{count} rows written to {args.out}"))
    return 0


def _print_reasons(title: str, reasons: Iterable[str]) -> None:
    counts = Counter(reasons)
    if counts:
        print(f"\n{sum(counts.values())} {title}")
        print_table(("count", "reason"), [(str(n), why) for why, n in counts.most_common()])
