"""``python -m hgemm.study``: the whole study on this machine, in one command.

With a CUDA GPU: builds the kernels, checks every backend, measures the quick suite and draws the charts from that. With
none: multiplies one small problem with every backend that runs on the CPU, and draws the charts from the fullest
measurements that come with the package.
"""

from __future__ import annotations

import contextlib
import io
import json
import math
import sys
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import matplotlib as mpl
import torch
from rich.console import Console
from rich.progress import Progress
from rich.table import Table

import hgemm
from hgemm import check
from hgemm.backends import Backend, backends
from hgemm.bench.__main__ import default_path
from hgemm.bench.__main__ import main as bench_main
from hgemm.bench.results import ResultsError
from hgemm.plot import KINDS, NothingToDraw, draw
from hgemm.plot.source import default_folder, fullest_packaged, load
from hgemm.problem import DTYPES, Problem
from hgemm.program import Parser, end_with

# Ragged in every dimension for every tile there is, and within the rules of every kernel: N and K multiples of 8.
M, N, K = 200, 264, 136


@dataclass(frozen=True)
class Product:
    """One small product on the CPU. ``error_over_bound`` is None if there is no number: then ``fault`` says why."""

    backend: str
    config: str | None
    dtype: str
    error_over_bound: float | None
    passed: bool
    fault: str | None = None


@dataclass(frozen=True)
class Study:
    """What was done, with paths as they were given."""

    device: str  # name of the GPU, or "cpu"
    products: list[Product]  # on the CPU
    not_run: dict[str, str]  # backend -> why it cannot run here
    check: dict[str, Any] | None  # what hgemm.check found on the GPU
    source: str | None  # the results file that the pictures show
    pictures: list[str]
    notes: list[str]  # what could not be done, and the way out
    status: int  # exit status


def main(arguments: Sequence[str] | None = None) -> int:
    parser = Parser(
        prog="python -m hgemm.study",
        description=__doc__,
        epilog="Exit status: 0 all is well, 1 a wrong product or a failed check, 2 --out is no good, 130 interrupted.",
    )
    parser.add_argument("--out", type=Path, metavar="DIR", help="folder for pictures and results (default: plots/)")
    parser.add_argument("--json", action="store_true", help="print one JSON object")
    options = parser.parse_args(arguments)
    mpl.use("Agg")  # no window, no display needed
    console = Console(highlight=False, soft_wrap=True, quiet=options.json)
    folder = options.out or default_folder()
    try:
        folder.mkdir(parents=True, exist_ok=True)  # at once: a folder that cannot be made is known before the work
        study = (on_gpu if torch.cuda.is_available() else on_cpu)(folder, console)
    except (OSError, ResultsError) as error:
        print(f"hgemm.study: {error}", file=sys.stderr)
        return 2
    if options.json:
        print(json.dumps(asdict(study), indent=1))
    return study.status


def on_cpu(folder: Path, console: Console) -> Study:
    """Multiplies with every backend that can run on CPU tensors, and draws packaged measurements into ``folder``."""
    console.print(f"[bold]No GPU here:[/] {backends()['torch'].unavailable('cuda')}")
    console.print(f"So: {M} x {N} x {K} on the CPU, in every backend that can, each error against its bound.\n")
    not_run = {record.name: reason for record in backends() if (reason := record.unavailable("cpu"))}
    products = multiply([record for record in backends() if record.name not in not_run], console)
    _print_products(products, console)
    _print_reasons(not_run, console)
    notes: list[str] = []
    source, pictures = _pictures(None, folder, notes)
    wrong = not all(product.passed for product in products)
    study = Study("cpu", products, not_run, None, source, pictures, notes, int(wrong))
    _print_end(study, console)
    return study


def on_gpu(folder: Path, console: Console) -> Study:
    """Builds, checks, measures and draws, with what is measured stored in ``folder`` beside the pictures."""
    gpu = torch.cuda.get_device_name()
    notes: list[str] = []
    console.print(f"[bold]{gpu}:[/] building the CUDA kernels (a minute at first, nothing later)")
    _build(notes)
    console.print("\nchecking every backend")
    checked, report = _check(console)
    console.print("\nmeasuring the quick suite, in bursts with idle between them")
    folder.mkdir(parents=True, exist_ok=True)
    results = default_path(gpu, folder)
    measured = bench_main(["--suite", "quick", "--out", str(results), *(["--quiet"] if console.quiet else [])])
    not_run = {record.name: reason for record in backends() if (reason := record.unavailable("cuda"))}
    if results.exists():
        source, pictures = _pictures(results, folder, notes)
    else:
        source, pictures = None, []
        notes.append(f"the measurement ended with status {measured} and left nothing to draw")
    study = Study(gpu, [], not_run, report, source, pictures, notes, measured or checked)
    _print_end(study, console)
    return study


def multiply(records: Iterable[Backend], console: Console) -> list[Product]:
    """The small problem on CPU tensors in both dtypes, each record in the configuration that it chooses itself."""
    generator = torch.Generator().manual_seed(0)
    a, b = torch.randn(M, K, generator=generator), torch.randn(K, N, generator=generator)
    jobs = [(record, dtype) for record in records for dtype in DTYPES]
    with Progress(console=console, transient=True, disable=not console.is_terminal) as progress:
        tracked = progress.track(jobs, description="multiplying")
        return [_multiply(record, a.to(dtype), b.to(dtype)) for record, dtype in tracked]


def _multiply(record: Backend, a: torch.Tensor, b: torch.Tensor) -> Product:
    config = record.choose(Problem.from_tensors(a, b))
    dtype = str(a.dtype).removeprefix("torch.")
    try:
        c = hgemm.matmul(a, b, backend=record.name, config=config)
    except Exception as error:  # one that fails is a finding, and no reason to leave out the others
        return Product(record.name, config, dtype, None, False, f"{type(error).__name__}: {error}")
    verdict = check.verify(a, b, c)
    if not math.isfinite(verdict.error_over_bound):
        return Product(record.name, config, dtype, None, False, "NaN or infinity where none belongs")
    return Product(record.name, config, dtype, verdict.error_over_bound, verdict.passed)


def _build(notes: list[str]) -> None:
    """Compiles what ``matmul`` runs; a terminal shows the progress. A failure becomes a note: the rest goes on."""
    from hgemm.cuda_kernels.adapter import build
    from hgemm.cuda_kernels.toolchain import BuildError

    try:
        build([record.name for record in backends() if record.available_on("cuda")], DTYPES)
    except BuildError as error:
        notes.append(str(error))


def _check(console: Console) -> tuple[int, dict[str, Any] | None]:
    """The exit status of ``hgemm.check --quick``, and its findings instead of its table if ``console`` is quiet."""
    if not console.quiet:
        return check.main(["--quick"]), None
    printed = io.StringIO()
    with contextlib.redirect_stdout(printed):
        status = check.main(["--quick", "--json"])
    return status, json.loads(printed.getvalue())


def _pictures(source: Path | None, folder: Path, notes: list[str]) -> tuple[str | None, list[str]]:
    """Draws every kind of picture from ``source``, by default the fullest packaged file; says what it cannot draw."""
    files: list[Path] = []
    try:
        source = source or fullest_packaged()
        results = load(source)
    except (NothingToDraw, ResultsError) as error:
        notes.append(f"no pictures: {error}")
        return None, []
    for kind in KINDS:
        try:
            files += draw(results, kind, folder)
        except NothingToDraw as error:
            notes.append(f"no {kind}: {error}")
    return _shown(source), [_shown(path) for path in files]


def _shown(path: Path) -> str:
    """Relative to the current folder if it lies below that."""
    current = Path.cwd()
    return str(path.resolve().relative_to(current) if path.resolve().is_relative_to(current) else path)


def _print_products(products: Iterable[Product], console: Console) -> None:
    table = Table()
    for heading in ("backend", "config", "dtype", "error / bound", "verdict"):
        table.add_column(heading, justify="right" if heading == "error / bound" else "left", no_wrap=True)
    for product in products:
        error = "" if product.error_over_bound is None else f"{product.error_over_bound:.3f}"
        verdict = "[green]right" if product.passed else "[red]WRONG"
        table.add_row(product.backend, product.config or "", product.dtype, error, verdict)
    console.print(table)
    for product in products:
        if product.fault:
            console.print(f"{product.backend} {product.dtype}: {product.fault}", markup=False)


def _print_reasons(not_run: dict[str, str], console: Console) -> None:
    names: dict[str, list[str]] = {}
    for name, reason in not_run.items():
        names.setdefault(reason, []).append(name)
    for reason, together in names.items():
        console.print(f"not run: {', '.join(together)}: {reason}", markup=False)


def _print_end(study: Study, console: Console) -> None:
    for note in study.notes:
        console.print(f"[yellow]note:[/] {note}")
    if study.pictures:
        console.print(f"\npictures of {study.source}:")
    for picture in study.pictures:
        console.print(f"  {picture}", markup=False)


if __name__ == "__main__":
    end_with(main)
