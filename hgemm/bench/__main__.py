"""python -m hgemm.bench: measure backends against each other and against the device's own limits."""

from __future__ import annotations

import argparse
import datetime
import os
import re
import sys
import tempfile
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import torch
from rich.console import Console

import hgemm
from hgemm import check
from hgemm.bench import ladder
from hgemm.bench.contestants import check_patterns, load
from hgemm.bench.environment import sources_digest, torch_flags
from hgemm.bench.machine import CudaMachine, Machine
from hgemm.bench.measure import Bench
from hgemm.bench.options import SHARE, parser, plan_of, recorded, restored
from hgemm.bench.outcome import Options, Outcome, end_process
from hgemm.bench.plan import Plan
from hgemm.bench.preflight import Preflight
from hgemm.bench.prepare import never
from hgemm.bench.progress import TerminalObserver
from hgemm.bench.results import FileFull, ResultsError, dumps, read, write
from hgemm.bench.resume import Previous, nothing_before, resume
from hgemm.bench.schema import Results
from hgemm.bench.spreadsheet import csv_text
from hgemm.bench.suites import Shape
from hgemm.bench.tables import TABLE_WIDTH, markdown, print_case, print_roofs
from hgemm.program import Parser, end_with

NO_GPU = (
    "python -m hgemm.bench needs a CUDA GPU, and torch sees none; "
    "`python -m hgemm.plot` draws the measurements that come with the package, "
    "`python -m hgemm.bench --from FILE` shows a results file"
)

STDOUT = "-"


def main(argv: list[str] | None = None, machine: Machine | None = None, console: Console | None = None) -> int:
    """Runs the command line and returns the exit status.

    ``machine`` stands for the CUDA device in tests; ``console`` is where tables and progress go, by default stdout, or
    stderr where something else is printed there.
    """
    arguments = sys.argv[1:] if argv is None else argv
    if arguments[:1] == ["compare"]:
        from hgemm.bench.compare import main as compare

        return int(compare(arguments[1:]))
    parse = parser()
    options = parse.parse_args(arguments)
    try:
        parse, options, stored = _with_defaults(parse, options, arguments)
        _check_paths(options)
        plan = plan_of(options)
        if options.source:
            shown = read(options.source)
            _check_shown(options)
            return _show(shown, options, _console(options, console))
        if stored is not None and stored.run.complete:
            _console(options, console).print(f"{options.resume} is complete: nothing is left to measure")
            return 0
        if machine is None and not torch.cuda.is_available():
            print(NO_GPU, file=sys.stderr)
            return 2
        own = [name for path in options.contestant for name in load(path)]
        options.backends = list(dict.fromkeys([*options.backends, *own]))
        machine = machine or CudaMachine()
        previous = nothing_before() if stored is None else _previous(stored, options, machine)
        plan = replace(plan, patterns=tuple(options.backends))
        check_patterns(plan.patterns, hgemm.backends())
        out = options.out or options.resume
        if out is None and not _prints(options):
            out = default_path(machine.environment().gpu, Path.cwd())
            _check_folder(out, "name one elsewhere with --out")
    except ValueError as error:
        parse.error(str(error))
    console = _console(options, console)

    def deliver(outcome: Outcome) -> int:
        _deliver(outcome.results, options, console)
        if out and out.exists():
            console.print(f"results: {out}", highlight=False, soft_wrap=True)
        status = _status(outcome)
        if options.share and outcome.results.cases:
            _print_next_steps(console, out, outcome)
        return status

    def abandon(outcome: Outcome) -> None:
        status = 1
        try:
            status = deliver(outcome)
            sys.stdout.flush()
            sys.stderr.flush()
        finally:
            os._exit(status)  # an orderly exit would wait for the device

    preflight = Preflight(machine.device, options.contestant, own, options.preflight, options.limit)
    try:
        outcome = measure(
            plan,
            console,
            out,
            machine=machine,
            options=previous.run.options if previous.run else recorded(options),
            tables=not options.quiet,
            previous=previous,
            preflight=preflight,
            abandon=abandon,
        )
    finally:
        preflight.close()
    return deliver(outcome)


def measure(
    plan: Plan,
    console: Console,
    out: Path | None,
    *,
    machine: Machine,
    options: Options | None = None,
    tables: bool = True,
    previous: Previous | None = None,
    preflight: Preflight | None = None,
    abandon: Callable[[Outcome], None] = end_process,
) -> Outcome:
    """Runs a plan with progress, tables and roofs on ``console``; stores every case in ``out`` as soon as it ends."""

    def store(results: Results) -> None:
        if out is not None:
            try:
                write(results, out)
            except OSError as error:
                raise FileFull(f"{out} cannot be written: {error.strerror}") from None

    with TerminalObserver(console, tables=tables, on_case=store) as observer:
        outcome = Bench(
            plan,
            machine,
            hgemm.backends(),
            check.verify,
            options or {},
            observer,
            preflight or never,
            previous or nothing_before(),
            abandon,
        ).run()
    if outcome.results.cases:
        store(outcome.results)
    if tables:
        print_roofs(console, outcome.results)
    return outcome


def default_path(gpu: str, folder: Path) -> Path:
    """A file name in ``folder`` that says which GPU was measured when."""
    slug = re.sub(r"[^a-z0-9]+", "-", gpu.lower().replace("nvidia", "")).strip("-")
    return folder / f"hgemm-bench-{slug}-{datetime.datetime.now(datetime.UTC):%Y%m%dT%H%M%SZ}.json"


def _with_defaults(
    parse: Parser, options: argparse.Namespace, arguments: list[str]
) -> tuple[Parser, argparse.Namespace, Results | None]:
    """The options again, with what --resume, --share or --ladder has for defaults; and the file to be resumed."""
    stored = None
    if options.resume:
        stored = read(options.resume)
        try:
            parse = parser(restored(stored.run.options))
        except (KeyError, ValueError, TypeError) as error:
            raise ValueError(f"--resume {options.resume}: its options are those of another release ({error})") from None
        options = parse.parse_args(arguments)
    elif options.share and not (options.mnk or options.shapes):
        parse = parser(SHARE)
        options = parse.parse_args(arguments)
    elif options.ladder:
        if not (options.suite or options.mnk or options.shapes):
            options.mnk = [Shape(size, size, size) for size in ladder.SIZES]
        options.backends = ladder.contestants(hgemm.backends())
    return parse, options, stored


def _previous(stored: Results, options: argparse.Namespace, machine: Machine) -> Previous:
    try:
        return resume(stored, recorded(options), machine.environment(), torch_flags(), sources_digest())
    except ResultsError as error:
        raise ValueError(f"--resume {options.resume}: {error}") from None


def _check_paths(options: argparse.Namespace) -> None:
    """Raises ValueError for files that cannot be written, or would be lost, and for outputs that exclude each other."""
    chosen = [f"--{name}" for name in ("resume", "source", "out") if getattr(options, name)]
    if len(chosen) > 1:
        chosen = [name.replace("source", "from") for name in chosen]
        raise ValueError(
            f"{' and '.join(chosen)} exclude each other: --resume goes on in its file, --from stores nothing"
        )
    if options.out == Path(STDOUT):
        raise ValueError("--out names a results file; --json prints the results")
    printed = [name for name in ("json", "csv", "markdown") if getattr(options, name) in (True, STDOUT)]
    if len(printed) > 1:
        raise ValueError(f"only one of --{', --'.join(printed)} can be printed; name a file for the others")
    if options.share and (options.contestant or options.json):
        other = "--contestant" if options.contestant else "--json"
        raise ValueError(f"--share writes one file of the package's own kernels; leave out {other}")
    for path in (options.out, *(Path(name) for name in (options.csv, options.markdown) if name and name != STDOUT)):
        if path and path.exists():
            raise ValueError(f"{path} exists and would be overwritten; name another file or remove it")
        if path and not path.resolve().parent.is_dir():
            raise ValueError(f"the folder of {path} does not exist")
    for path in (options.out, options.resume, *map(Path, {options.csv, options.markdown} - {None, STDOUT})):
        if path:
            _check_folder(path, "name a file elsewhere")


def _check_folder(path: Path, way_out: str) -> None:
    """Raises ValueError, before minutes are measured, where no file can be made beside ``path``."""
    try:
        tempfile.TemporaryFile(dir=path.resolve().parent).close()
    except OSError as error:
        raise ValueError(f"{path} cannot be written: {error.strerror}; {way_out}") from None


def _check_shown(options: argparse.Namespace) -> None:
    """Raises ValueError for options of a measurement beside --from, which would be ignored."""
    given = [name for name in ("ladder", "share", "contestant") if getattr(options, name)]
    if not given:
        usual = recorded(parser().parse_args([]))
        changed = [name for name, value in recorded(options).items() if value != usual[name]]
        given = [name for name in changed if name != "suite"] or changed
    if given:
        flags = ", ".join(f"--{name.removesuffix('_minutes').replace('_', '-')}" for name in given)
        raise ValueError(f"--from shows the whole of a file and measures nothing; leave out {flags}")


def _prints(options: argparse.Namespace) -> bool:
    """Whether stdout is for something other than tables."""
    return bool(options.json) or STDOUT in (options.csv, options.markdown)


def _console(options: argparse.Namespace, console: Console | None) -> Console:
    console = console or Console(stderr=_prints(options), quiet=options.quiet)
    if not console.is_terminal:
        console.width = max(console.width, TABLE_WIDTH)
    return console


def _show(results: Results, options: argparse.Namespace, console: Console) -> int:
    if not _prints(options):
        for case in results.cases:
            print_case(console, case)
        print_roofs(console, results)
    _deliver(results, options, console)
    return 0


def _deliver(results: Results, options: argparse.Namespace, console: Console) -> None:
    """Prints and writes what was asked for beside the results file."""
    if options.json:
        sys.stdout.write(dumps(results))
    for name, render in (("csv", csv_text), ("markdown", markdown)):
        where = getattr(options, name)
        if where == STDOUT:
            sys.stdout.write(render(results))
        elif where:
            Path(where).write_text(render(results), encoding="utf-8")
            console.print(f"{name}: {where}", highlight=False, soft_wrap=True)


def _status(outcome: Outcome) -> int:
    if outcome.stopped:
        print(f"hgemm.bench ended early: {outcome.stopped}", file=sys.stderr)
    if outcome.interrupted:
        return 130
    bad = any(row.status in ("wrong", "hangs") for case in outcome.results.cases for row in case.rows)
    return 1 if bad or outcome.lost or outcome.full else 0


def _print_next_steps(console: Console, out: Path | None, outcome: Outcome) -> None:
    gpu = outcome.results.env.gpu
    steps = [
        "The file holds the GPU's model and limits, versions, clocks and samples; no host name, user name or path.",
        f'To share it, open an issue called "Results: {gpu}" in the project\'s tracker and attach it, or add it under '
        "plots/results/ in a pull request; CONTRIBUTING.md says how it becomes a row of the study.",
    ]
    if outcome.stopped:
        steps.insert(0, f"Not everything was measured; `python -m hgemm.bench --resume {out} --share` goes on.")
    for step in steps:
        console.print(step, highlight=False, markup=False, soft_wrap=True)


if __name__ == "__main__":
    try:
        end_with(main)
    except ResultsError as failure:
        sys.exit(f"hgemm.bench: {failure}")
