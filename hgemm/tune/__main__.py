"""python -m hgemm.tune: finds the fastest configuration for products on this GPU and keeps it for backend="auto"."""

from __future__ import annotations

import argparse
import contextlib
import functools
import json
import math
import os
import sys
from collections.abc import Sequence

import torch
from rich.console import Console

import hgemm
from hgemm import check, isolation, tuned_file
from hgemm.bench.contestants import check_patterns
from hgemm.bench.machine import CudaMachine, Machine
from hgemm.bench.options import add_shapes, cases_of
from hgemm.bench.suites import Case
from hgemm.bench.watchdog import Watchdog
from hgemm.cuda_kernels.toolchain import BuildError
from hgemm.program import Parser, end_with
from hgemm.tune import compiling
from hgemm.tune.candidates import DEFAULT_PATTERNS, problem_of
from hgemm.tune.showing import Progress, as_json, print_entries, print_outcome, print_tuned
from hgemm.tune.trials import Trials
from hgemm.tune.tuner import Outcome, Tuned, Tuner

NO_GPU = (
    "python -m hgemm.tune needs a CUDA GPU, and torch sees none; python -m hgemm.tune --list shows what was tuned here"
)

DESCRIPTION = """Finds the fastest configuration for products on this GPU; hgemm.matmul with backend="auto" follows it.

  python -m hgemm.tune --mnk 4096,4096,4096               every kernel of the package that takes it
  python -m hgemm.tune --suite llm --budget 20            go on later with the same command
  python -m hgemm.tune --shapes mine.csv --layouts nn,nt
  python -m hgemm.tune --list                             what was tuned here
  python -m hgemm.tune --forget --mnk 4096,4096,4096      no longer; without shapes: all of this GPU"""

EPILOG = """Every candidate is checked before it is timed; nothing changes a clock or a power limit. Products that were
tuned before are skipped. Each is stored as soon as it ends, beside the compiled kernels (HGEMM_CACHE_DIR), for
this kind of GPU, these versions of torch and Triton and these kernels: after a change it has to be tuned again, and
hgemm.explain says so.

Exit status: 0, or 1 if a candidate computed a wrong product, broke the device or never ended, or a product had no
candidate that could be timed; 2 for a usage error or no GPU; 130 after Ctrl-C."""


def parser() -> Parser:
    parse = Parser(
        "python -m hgemm.tune",
        description=DESCRIPTION,
        epilog=EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    what = parse.add_argument_group("what is tuned")
    add_shapes(what)
    what.add_argument(
        "--backends",
        nargs="+",
        metavar="PATTERN",
        default=list(DEFAULT_PATTERNS),
        help=f"who is tried: NAME, NAME:CONFIG or NAME:default, with * and ? (default: {' '.join(DEFAULT_PATTERNS)})",
    )
    what.add_argument("--again", action="store_true", help="also what was tuned before, in its place")
    how = parse.add_argument_group("how")
    how.add_argument("--budget", type=float, metavar="MINUTES", help="begin no product after this long")
    how.add_argument(
        "--jobs",
        type=int,
        metavar="N",
        help="processes in which Triton compiles (default: by cores and device memory, 8 at most); 0: in this one",
    )
    how.add_argument(
        "--limit",
        type=float,
        metavar="SECONDS",
        default=isolation.LIMIT_SECONDS,
        help="a candidate that takes longer to compile or to run hangs (default: %(default)g)",
    )
    how.add_argument("--seed", type=int, default=0, help="of the operands and of the order (default: 0)")
    other = parse.add_mutually_exclusive_group()
    other.add_argument("--list", action="store_true", help="show what was tuned here; needs no GPU")
    other.add_argument("--forget", action="store_true", help="remove the products given, or all of this GPU")
    parse.add_argument("--json", action="store_true", help="print one JSON object")
    parse.set_defaults(dtypes=("bf16",), data="normal")
    return parse


def main(argv: Sequence[str] | None = None, machine: Machine | None = None) -> int:
    """Runs the command line and returns the exit status. ``machine`` stands for the CUDA device in tests."""
    parse = parser()
    options = parse.parse_args(argv)
    shapes = bool(options.suite or options.mnk or options.shapes)
    console = Console(stderr=options.json, highlight=False, soft_wrap=True)
    try:
        _check(options, shapes)
        if options.list:
            return _list(options.json, console)
        if machine is None and not torch.cuda.is_available():
            print(NO_GPU, file=sys.stderr)
            return 2
        machine = machine or CudaMachine()
        gpu = _gpu(machine)
        if options.forget:
            return _forget(gpu, cases_of(options) if shapes else None, options.json, console)
        check_patterns(options.backends, hgemm.backends())
        return _tune(options, machine, gpu, console)
    except ValueError as error:
        parse.error(str(error))
    except (BuildError, OSError) as error:
        print(f"hgemm.tune: {error}", file=sys.stderr)
        return 2


def _check(options: argparse.Namespace, shapes: bool) -> None:
    """Raises ValueError for options that do not fit together."""
    if not (shapes or options.list or options.forget):
        raise ValueError("say what to tune: --mnk M,N,K, --suite NAME or --shapes FILE.csv")
    for name in ("budget", "limit"):
        value = getattr(options, name)
        if value is not None and not (math.isfinite(value) and value > 0):
            raise ValueError(f"--{name} must be positive and finite, found {value:g}")
    if options.jobs is not None and options.jobs < 0:
        raise ValueError(f"--jobs must be at least 0, found {options.jobs}")


def _gpu(machine: Machine) -> tuned_file.Gpu:
    environment = machine.environment()
    major, minor = environment.compute_capability
    return tuned_file.Gpu(environment.gpu, (major, minor), environment.multiprocessors)


def _tune(options: argparse.Namespace, machine: Machine, gpu: tuned_file.Gpu, console: Console) -> int:
    if options.jobs is None:
        options.jobs = isolation.most_children() if machine.device.type == "cuda" else 0
    tuned_file.folder_to_write()
    outcome = Outcome()

    def end(finished: Tuned) -> None:
        outcome.tuned.append(finished)
        print_tuned(console, finished)

    def give_up() -> None:
        """Called from another thread while this one waits for something that does not end."""
        print(f"hgemm.tune: {progress.text} did not end within {options.limit:g} s", file=sys.stderr)
        if options.json:
            print(json.dumps(as_json(gpu, outcome), indent=1))
        with contextlib.suppress(OSError):
            sys.stdout.flush()
        os._exit(1)  # an orderly exit would wait for the device

    with (
        Progress(console) as progress,
        machine.activate(),
        Watchdog(options.limit, give_up) as watchdog,
    ):
        child = functools.partial(compiling.first_caller, machine.device, options.limit)
        tuner = Tuner(
            machine,
            hgemm.backends(),
            options.backends,
            Trials(machine, check.verify, watchdog, seed=options.seed, doing=progress.trying),
            lambda jobs: compiling.compile_all(jobs, options.jobs, child, progress.compiling),
            functools.partial(tuned_file.store, gpu),
            tuned_file.entries_in_use(gpu),
            again=options.again,
            budget_s=None if options.budget is None else 60 * options.budget,
            begins=progress.begins,
            ends=end,
        )
        ended = tuner.run(cases_of(options))
    if options.json:
        print(json.dumps(as_json(gpu, ended), indent=1))
    print_outcome(console, ended)
    if ended.stopped:
        print(f"hgemm.tune ended early: {ended.stopped}", file=sys.stderr)
    if ended.lost:
        sys.stdout.flush()
        os._exit(1)
    if ended.interrupted:
        return 130
    return int(any(one.wrong or one.fault for one in ended.tuned))


def _list(as_json_text: bool, console: Console) -> int:
    """Every file, whatever it was tuned with. Raises ValueError for a damaged one."""
    found = [tuned_file.contents(path) for path in tuned_file.files()]
    if as_json_text:
        documents = [tuned_file.document(gpu, tables) for gpu, tables in found]
        print(json.dumps({"in_use": vars(tuned_file.versions()), "tables": documents}, indent=1))
    else:
        print_entries(console, found)
    return 0


def _forget(gpu: tuned_file.Gpu, cases: Sequence[Case] | None, as_json_text: bool, console: Console) -> int:
    device = torch.device("cpu")
    products = None if cases is None else [tuned_file.Product.of(problem_of(case, device)) for case in cases]
    count = tuned_file.forget(gpu, products)
    if as_json_text:
        print(json.dumps({"gpu": gpu.name, "forgotten": count}))
    else:
        console.print(f"{count} tuned product{'' if count == 1 else 's'} of {gpu.name} forgotten")
    return 0


if __name__ == "__main__":
    end_with(main)
