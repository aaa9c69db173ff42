"""`livestream-env judge`: trying a judge on labelled cases, bringing caches together."""

from __future__ import annotations

import argparse
import json
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from livestream_env.terminal import UsageError, print_table, progress, safe_text

if TYPE_CHECKING:
    from livestream_env.calibration import Calibration
    from livestream_env.chat import ChatClient
    from livestream_env.judge_budget import Budget
    from livestream_env.judge_cases import LabelledCase

ALL = "all"
METRIC_NAMES = ("correctness", "helpfulness", "rule", "tool_use", "fluency")
VOTES = (1, 3, 5)
SPREAD = 0.25
"""Spread of true scores inside a group that the report reckons with."""


def add_judge(parser: argparse.ArgumentParser) -> None:
    """Add the commands of `judge`."""
    commands = parser.add_subparsers(metavar="COMMAND", required=True)
    text = "try a judge on the bundled labelled cases"
    calibrate = commands.add_parser("calibrate", help=text, description=f"{text.capitalize()}.")
    calibrate.set_defaults(run=run_judge_calibrate)
    _add_calibrate(calibrate)
    cache = commands.add_parser("cache", help="work with the files that keep answers")
    inner = cache.add_subparsers(metavar="COMMAND", required=True)
    text = "add the answers of other caches to one"
    merge = inner.add_parser("merge", help=text, description=f"{text.capitalize()}.")
    merge.set_defaults(run=run_judge_cache_merge)
    merge.add_argument("target", metavar="TARGET", help="the cache that grows; made where missing")
    merge.add_argument("sources", metavar="SOURCE", nargs="+")


def _add_calibrate(parser: argparse.ArgumentParser) -> None:
    add = parser.add_argument
    add("--judge", required=True, metavar="URL", help="OpenAI-compatible, with its `/v1`")
    add("--model", required=True, metavar="NAME")
    add("--token-env", metavar="NAME", help="environment variable that holds the bearer token")
    add(
        "--header-env",
        metavar="HEADER=NAME",
        action="append",
        default=[],
        help="header whose value an environment variable holds; may be repeated",
    )
    add("--ca", metavar="FILE", help="certificates to trust")
    add("--language", choices=("zh", "en", ALL), default=ALL)
    add("--metric", choices=(*METRIC_NAMES, ALL), default=ALL)
    add("--votes", type=_positive, default=1)
    add("--workers", type=_positive, default=8, help="questions at a time, 8 by default")
    add("--requests-per-minute", type=float, metavar="N")
    add("--cache", metavar="FILE", help="keep answers here")
    add("--price-in", type=float, metavar="X", help="price of a million tokens in")
    add("--price-out", type=float, metavar="X", help="price of a million tokens out")
    add("--budget", type=float, metavar="X", help="stop at this cost; needs the prices")
    add("--json", action="store_true", help="print the figures as JSON")


def _positive(text: str) -> int:
    if not (text.isascii() and text.isdigit() and int(text)):
        raise argparse.ArgumentTypeError(f"`{text}` is no whole number from 1")
    return int(text)


def run_judge_calibrate(args: argparse.Namespace) -> int:
    """Ask the judge about the labelled cases and print how far it can be relied on."""
    from livestream_env.calibration import calibrate
    from livestream_env.judges import ChatJudge

    cases = _cases(args)
    client, budget = _client(args), _budget(args)
    count = 0

    def one_done() -> None:
        nonlocal count
        count += 1

    def judge_of(metric: str, language: str) -> ChatJudge:
        return ChatJudge(
            client,
            metric=metric,
            language=language,
            votes=args.votes,
            cache=args.cache,
            budget=budget,
        )

    with client, progress(lambda: f"{count} judgements"):
        result = calibrate(judge_of, cases, workers=args.workers, done=one_done)
    if args.json:
        print(json.dumps(_figures(result, budget), ensure_ascii=False, indent=1))
    else:
        _print_report(result, budget, args)
    return 0 if result.is_enough else 1


def _cases(args: argparse.Namespace) -> list[LabelledCase]:
    from livestream_env.judge_cases import labelled_cases

    languages = ("zh", "en") if args.language == ALL else (args.language,)
    return [
        case
        for language in languages
        for case in labelled_cases(language)
        if args.metric in (ALL, case.metric)
    ]


def _client(args: argparse.Namespace) -> ChatClient:
    from livestream_env.chat import ChatClient

    pairs = [one.partition("=") for one in args.header_env]
    if not all(header and variable for header, _, variable in pairs):
        raise UsageError("`--header-env` takes HEADER=NAME, NAME an environment variable")
    try:
        return ChatClient(
            args.judge,
            args.model,
            token_env=args.token_env,
            headers_env={header: variable for header, _, variable in pairs},
            verify=args.ca or True,
            requests_per_minute=args.requests_per_minute,
        )
    except ValueError as error:
        raise UsageError(str(error)) from error


def _budget(args: argparse.Namespace) -> Budget:
    from livestream_env.judge_budget import Budget

    price_in, price_out = args.price_in, args.price_out
    if (price_in is None) != (price_out is None) or (args.budget and price_in is None):
        raise UsageError("`--budget` and the cost need both `--price-in` and `--price-out`")
    prices = {} if price_in is None else {args.model: (price_in, price_out)}
    return Budget(cost=args.budget, prices=prices)


def _figures(result: Calibration, budget: Budget) -> dict[str, Any]:
    return {
        "cases": result.cases,
        "judged": result.judged,
        "failures": result.failures,
        "problem": result.problem,
        "right": result.right,
        "right_interval": list(result.right_interval),
        "kappa": result.plain_kappa,
        "quadratic_kappa": result.quadratic_kappa,
        "confusion": result.table.tolist(),
        "test_retest": result.repeated._asdict() if result.repeated else None,
        "positions": result.positions._asdict() if result.positions else None,
        "pairs_right": result.pairs_right,
        "length_slope": result.slope,
        "requests": budget.requests,
        "prompt_tokens": budget.prompt_tokens,
        "completion_tokens": budget.completion_tokens,
        "cost": budget.spent if budget.prices else None,
        "versions": result.versions,
    }


def _print_report(result: Calibration, budget: Budget, args: argparse.Namespace) -> None:
    print(safe_text(f"judge `{args.model}` at {args.judge}"))
    failures = ", ".join(f"{count} {cause}" for cause, count in result.failures.items())
    print(f"{result.judged} of {result.cases} cases judged; no verdict: {failures or 'never'}")
    if result.problem:
        print(safe_text(f"  the first of them: {result.problem}"))
    low, high = result.right_interval
    print(f"right {_share(result.right, result.judged)}, 95 % [{low:.3f}, {high:.3f}]")
    kappas = f"kappa {_number(result.plain_kappa)}, quadratic {_number(result.quadratic_kappa)}"
    verdict = "enough" if result.is_enough else "not enough"
    print(f"{kappas}: {verdict} (0.6 is needed, and 90 % judged)")
    rows = [(f"label {i}", *map(str, row)) for i, row in enumerate(result.table.tolist())]
    print_table(("", "given 0", "given 1", "given 2"), rows)
    for line in (*_noise_lines(result), *_bias_lines(result), _cost_line(budget)):
        print(line)


def _noise_lines(result: Calibration) -> list[str]:
    from livestream_env.agreement import majority_right, noise_of_mean, signal_left

    repeated = result.repeated
    if repeated is None:
        return ["test-retest: nothing was judged twice"]
    lines = [f"test-retest: same {repeated.same:.3f}, noise of a score {repeated.noise:.3f}"]
    share = result.right / result.judged if result.judged else 0.0
    for votes in VOTES:
        noise = noise_of_mean(repeated.noise, votes)
        lines.append(
            f"  {votes} vote{'s' if votes > 1 else ''}: noise {noise:.3f}, correlation with the"
            f" truth {_number(signal_left(SPREAD, noise))} at a spread of {SPREAD}, majority right"
            f" {majority_right(share, votes):.3f} were errors independent"
        )
    return lines


def _bias_lines(result: Calibration) -> list[str]:
    pairs = result.positions
    slope = f"length: {_number(result.slope)} a score for 100 more characters, at equal labels"
    if pairs is None:
        return ["position bias: no pair was judged", slope]
    return [
        f"position bias {pairs.bias:+.3f}, flip rate {pairs.flip_rate:.3f}, better reply found in"
        f" both orders {_share(result.pairs_right, pairs.n)}",
        slope,
    ]


def _cost_line(budget: Budget) -> str:
    tokens = f"{budget.prompt_tokens} tokens in, {budget.completion_tokens} out"
    estimated = f" ({budget.estimated} requests estimated)" if budget.estimated else ""
    cost = f", cost {budget.spent:.4g}" if budget.prices else ""
    return f"{budget.requests} requests, {budget.cached} from the cache, {tokens}{estimated}{cost}"


def _share(part: int, whole: int) -> str:
    return f"{part} of {whole} ({part / whole:.3f})" if whole else "0 of 0"


def _number(value: float | None) -> str:
    return "unknown" if value is None else f"{value:.3f}"


def run_judge_cache_merge(args: argparse.Namespace) -> int:
    """Merge caches and print what came of each."""
    from livestream_env.judge_cache import merge_caches

    merged = merge_caches(args.target, args.sources)
    rows: Sequence[Sequence[str]] = [
        (one.source, str(one.added), str(one.known), str(one.differing)) for one in merged
    ]
    print_table(("source", "added", "known", "of them differing"), rows)
    return 0
