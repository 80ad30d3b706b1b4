"""python -m hgemm.bench compare A.json B.json: what is slower in B than in A, what is faster, what is the same."""

from __future__ import annotations

import argparse
import json
import re
import sys
from collections.abc import Callable
from pathlib import Path

from rich.console import Console

from hgemm.bench.comparison import Comparison
from hgemm.bench.comparison_pairing import compare
from hgemm.bench.comparison_rules import Incomparable
from hgemm.bench.comparison_tables import document, markdown, print_comparison
from hgemm.bench.results import ResultsError, read
from hgemm.bench.tables import TABLE_WIDTH
from hgemm.program import Parser

EPILOG = """Verdicts: the 95% interval of the ratio of times lies beyond the margin (slower, faster), inside it (same)
or across an end of it (ambiguous: measure more rounds); broken: timed in A, and no longer works in B; mended: the other
way round. What a run cut short, with too few rounds for an interval, is listed apart. The margin must exceed what two
runs of the same code differ by. Where the multiprocessors counted the clock of each sample, times are compared at equal
clocks, as far as each row follows its own; what is not known of that widens the interval. Code that
draws more power lowers its own clock, which a ratio at equal clocks does not show: see the remark "clock 2.1% lower in
B" and the plain ratio. Exit status: 0, or 1 if --fail-on matched, 2 for a usage error or files that cannot be compared:
another GPU, power limit, setting of torch, mode or duty cycle."""

FAIL_ON: dict[str, Callable[[Comparison], int]] = {
    "slower": lambda comparison: comparison.counts["slower"] + comparison.counts["broken"],
    "faster": lambda comparison: comparison.counts["faster"] + comparison.counts["mended"],
    "ambiguous": lambda comparison: comparison.counts["ambiguous"],
    "different": lambda comparison: (
        len(comparison.changes) - comparison.counts["same"] - comparison.counts["ambiguous"]
    ),
    "missing": lambda comparison: len(comparison.only_a) + len(comparison.cut_short_b),
}
"""How many findings each word of --fail-on matches."""


def parser() -> Parser:
    parse = Parser("python -m hgemm.bench compare", description=__doc__, epilog=EPILOG)
    parse.add_argument("a", type=Path, metavar="A.json", help="results to compare with, such as those of the old code")
    parse.add_argument("b", type=Path, metavar="B.json", help="results to be judged, such as those of the new code")
    parse.add_argument(
        "--margin", type=_margin, default=0.01, metavar="1%", help="differences up to this do not matter (default: 1%%)"
    )
    parse.add_argument(
        "--fail-on",
        type=_fail_on,
        default=(),
        metavar="slower,...",
        help=f"exit with status 1 if there is any: {', '.join(FAIL_ON)} (slower includes what broke, different "
        "everything but same and ambiguous, missing what only A has, or B cut short)",
    )
    parse.add_argument(
        "--no-control",
        action="store_true",
        help="compare times as they are: at whatever clocks, and not divided by the control's of the same round",
    )
    parse.add_argument("--all", action="store_true", help="list what is the same, too")
    output = parse.add_mutually_exclusive_group()
    output.add_argument("--json", action="store_true", help="print everything as JSON")
    output.add_argument("--markdown", action="store_true", help="print Markdown, for an issue or a pull request")
    return parse


def main(argv: list[str], console: Console | None = None) -> int:
    """Runs the command line and returns the exit status; ``console`` is where tables go, by default stdout."""
    options = parser().parse_args(argv)
    try:
        comparison = compare(read(options.a), read(options.b), margin=options.margin, control=not options.no_control)
    except (ResultsError, Incomparable) as error:
        print(f"hgemm.bench compare: {error}", file=sys.stderr)
        return 2
    if options.json:
        print(json.dumps(document(comparison), indent=1, allow_nan=False))
    elif options.markdown:
        sys.stdout.write(markdown(comparison, everything=options.all))
    else:
        console = console or Console()
        if not console.is_terminal:
            console.width = max(console.width, TABLE_WIDTH)
        print_comparison(console, comparison, everything=options.all)
    found = {word: count for word in options.fail_on if (count := FAIL_ON[word](comparison))}
    if found:
        print("hgemm.bench compare: " + ", ".join(f"{count} {word}" for word, count in found.items()), file=sys.stderr)
    return 1 if found else 0


def _margin(text: str) -> float:
    """ "1%" as 0.01; the sign is asked for because 0.01 and 1 could mean either."""
    if not re.fullmatch(r"\d+(\.\d+)?%", text) or float(text[:-1]) >= 100:
        raise argparse.ArgumentTypeError(f"a margin is a percentage from 0% to below 100%, as in 1%; found {text!r}")
    return float(text[:-1]) / 100


def _fail_on(text: str) -> tuple[str, ...]:
    words = tuple(dict.fromkeys(text.split(",")))
    for word in words:
        if word not in FAIL_ON:
            raise argparse.ArgumentTypeError(f"expected some of {', '.join(FAIL_ON)}, joined by commas; found {word!r}")
    return words
