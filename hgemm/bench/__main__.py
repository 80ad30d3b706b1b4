"""python -m hgemm.bench: measure backends against each other and against the device's own limits."""

from __future__ import annotations

import argparse
import datetime
import re
import sys
from collections.abc import Callable, Iterable
from pathlib import Path

import torch
from rich.console import Console

import hgemm
from hgemm import check
from hgemm.bench.contestants import DEFAULT_PATTERNS, check_patterns, load
from hgemm.bench.machine import CudaMachine, Machine
from hgemm.bench.measure import Bench, Options, Outcome
from hgemm.bench.plan import MODES, DutyCycle, Plan
from hgemm.bench.progress import TerminalObserver
from hgemm.bench.results import ResultsError, dumps, write
from hgemm.bench.schema import Results
from hgemm.bench.suites import DISTRIBUTIONS, DTYPES, LAYOUTS, SUITES, Shape, cases
from hgemm.bench.tables import TABLE_WIDTH, print_roofs

NO_GPU = (
    "python -m hgemm.bench needs a CUDA GPU, and torch sees none; "
    "`python -m hgemm.plot` draws the measurements that come with the package"
)

EPILOG = """Exit status: 0, or 1 if a contestant computed a wrong product or broke the device, 2 for a usage error or no
GPU, 130 after Ctrl-C (what was measured until then is kept). Every contestant is checked before it is timed; nothing
changes a clock or a power limit. Results go to --out, by default hgemm-bench-GPU-TIME.json in the current folder."""


def parser() -> argparse.ArgumentParser:
    parse = argparse.ArgumentParser("python -m hgemm.bench", description=__doc__, epilog=EPILOG)
    what = parse.add_argument_group("what is measured")
    what.add_argument("--suite", choices=list(SUITES), help="a named list of shapes (default: quick)")
    what.add_argument("--mnk", type=_shape, nargs="+", metavar="M,N,K", help="shapes, instead of a suite or with it")
    what.add_argument(
        "--dtypes", type=_names(DTYPES, "dtype"), default=("bf16",), metavar="bf16,fp16", help="(default: bf16)"
    )
    what.add_argument(
        "--layouts",
        type=_names(LAYOUTS, "layout"),
        default=("nn",),
        metavar="nn,nt",
        help="of a and b: n row-major, t column-major (default: nn)",
    )
    what.add_argument(
        "--backends",
        nargs="+",
        metavar="PATTERN",
        default=list(DEFAULT_PATTERNS),
        help=f"NAME, NAME:CONFIG or NAME:default, with * and ? (default: {' '.join(DEFAULT_PATTERNS)})",
    )
    what.add_argument(
        "--contestant",
        type=Path,
        action="append",
        default=[],
        metavar="FILE",
        help="a Python file that calls hgemm.register_backend: what it registers takes part",
    )
    what.add_argument("--data", choices=DISTRIBUTIONS, default="normal", help="entries of A and B; zeros are a control")
    what.add_argument("--seed", type=int, default=0, help="of the operands and of the order (default: 0)")
    how = parse.add_argument_group("how")
    how.add_argument(
        "--mode",
        choices=MODES,
        default="rotating",
        help="rotating: device time, operands rotate through 3x the L2 (default); kernel: the same operands; "
        "e2e: hgemm.matmul by the host's clock",
    )
    how.add_argument("--burst-ms", type=float, metavar="MS", help="length of a burst (default: 8; sustained: 250)")
    how.add_argument("--idle-ms", type=float, metavar="MS", help="idle before each burst (default: 20)")
    how.add_argument("--sustained", action="store_true", help="no idle, each timed burst after an untimed one")
    how.add_argument("--rounds", type=int, default=7, help="samples a contestant (default: 7)")
    how.add_argument("--budget", type=float, metavar="MINUTES", help="begin no round after this long")
    how.add_argument(
        "--tune-cublaslt",
        action="store_true",
        help="before each case, let cublaslt try the algorithms it proposes and keep the fastest: the fair baseline",
    )
    output = parse.add_argument_group("output")
    output.add_argument("--out", type=Path, metavar="FILE", help="results file; an existing one is not overwritten")
    output.add_argument("--json", action="store_true", help="print the results as JSON, and store them only with --out")
    output.add_argument("--quiet", action="store_true", help="no tables, no progress")
    return parse


def main(argv: list[str] | None = None, machine: Machine | None = None, console: Console | None = None) -> int:
    """Runs the command line and returns the exit status.

    ``machine`` stands for the CUDA device in tests; ``console`` is where tables and progress go, by default stdout, or
    stderr with ``--json``.
    """
    parse = parser()
    options = parse.parse_args(argv)
    if machine is None and not torch.cuda.is_available():
        print(NO_GPU, file=sys.stderr)
        return 2
    if options.out and options.out.exists():
        parse.error(f"{options.out} exists and would be overwritten; name another file or remove it")
    if options.out and not options.out.resolve().parent.is_dir():
        parse.error(f"the folder of {options.out} does not exist")
    try:
        for path in options.contestant:
            options.backends = [*options.backends, *load(path)]
        plan = _plan(options)
        check_patterns(plan.patterns, hgemm.backends())
    except ValueError as error:
        parse.error(str(error))
    console = console or Console(stderr=options.json, quiet=options.quiet)
    if not console.is_terminal:
        console.width = max(console.width, TABLE_WIDTH)
    machine = machine or CudaMachine()
    out = options.out or (None if options.json else default_path(machine.environment().gpu, Path.cwd()))
    outcome = measure(plan, console, out, machine=machine, options=_recorded(options), tables=not options.quiet)
    if options.json:
        sys.stdout.write(dumps(outcome.results))
    if out and out.exists():
        console.print(f"results: {out}", highlight=False, soft_wrap=True)
    return _status(outcome)


def measure(
    plan: Plan,
    console: Console,
    out: Path | None,
    *,
    machine: Machine,
    options: Options | None = None,
    tables: bool = True,
) -> Outcome:
    """Runs a plan with progress, tables and roofs on ``console``; stores every case in ``out`` as soon as it ends."""

    def store(results: Results) -> None:
        if out is not None:
            write(results, out)

    with TerminalObserver(console, tables=tables, on_case=store) as observer:
        outcome = Bench(plan, machine, hgemm.backends(), check.verify, options or {}, observer).run()
    if outcome.results.cases:
        store(outcome.results)
    if tables:
        print_roofs(console, outcome.results)
    return outcome


def default_path(gpu: str, folder: Path) -> Path:
    """A file name in ``folder`` that says which GPU was measured when."""
    slug = re.sub(r"[^a-z0-9]+", "-", gpu.lower().replace("nvidia", "")).strip("-")
    return folder / f"hgemm-bench-{slug}-{datetime.datetime.now(datetime.UTC):%Y%m%dT%H%M%SZ}.json"


def _status(outcome: Outcome) -> int:
    if outcome.stopped:
        print(f"hgemm.bench ended early: {outcome.stopped}", file=sys.stderr)
    if outcome.interrupted:
        return 130
    wrong = any(row.status == "wrong" for case in outcome.results.cases for row in case.rows)
    return 1 if wrong or outcome.lost else 0


def _plan(options: argparse.Namespace) -> Plan:
    shapes = SUITES[options.suite] if options.suite else () if options.mnk else SUITES["quick"]
    duty = DutyCycle.sustained() if options.sustained else DutyCycle()
    if options.sustained and options.idle_ms:
        raise ValueError(f"--sustained means no idle, found --idle-ms {options.idle_ms:g}; leave one of them out")
    return Plan(
        cases=cases(
            (*shapes, *(options.mnk or ())),
            options.dtypes,
            layouts=options.layouts,
            distribution=options.data,
            seed=options.seed,
        ),
        patterns=tuple(options.backends),
        mode=options.mode,
        duty=DutyCycle(
            duty.burst_ms if options.burst_ms is None else options.burst_ms,
            duty.idle_ms if options.idle_ms is None else options.idle_ms,
            duty.lead_in_bursts,
        ),
        rounds=options.rounds,
        seed=options.seed,
        tune_cublaslt=options.tune_cublaslt,
        budget_s=None if options.budget is None else 60 * options.budget,
    )


def _recorded(options: argparse.Namespace) -> Options:
    """The options as a results file keeps them: what was measured and how, and not where it was stored."""
    return {
        "suite": options.suite or (None if options.mnk else "quick"),
        "mnk": [f"{shape.M},{shape.N},{shape.K}" for shape in options.mnk or ()],
        "dtypes": list(options.dtypes),
        "layouts": list(options.layouts),
        "backends": list(options.backends),
        "data": options.data,
        "seed": options.seed,
        "mode": options.mode,
        "burst_ms": options.burst_ms,
        "idle_ms": options.idle_ms,
        "sustained": options.sustained,
        "rounds": options.rounds,
        "tune_cublaslt": options.tune_cublaslt,
        "budget_minutes": options.budget,
    }


def _shape(text: str) -> Shape:
    try:
        return Shape.parse(text)
    except ValueError as error:
        raise argparse.ArgumentTypeError(str(error)) from None


def _names(known: Iterable[str], what: str) -> Callable[[str], tuple[str, ...]]:
    """Reads names that are separated by commas."""

    def parse(text: str) -> tuple[str, ...]:
        names = tuple(dict.fromkeys(text.split(",")))
        for name in names:
            if name not in known:
                raise argparse.ArgumentTypeError(f"a {what} is one of {', '.join(known)}, found {name!r}")
        return names

    return parse


if __name__ == "__main__":
    try:
        sys.exit(main())
    except ResultsError as failure:
        sys.exit(f"hgemm.bench: {failure}")
