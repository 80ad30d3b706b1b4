"""python -m hgemm.profile: what a kernel is made of, from compiled code, and what it does, from Nsight Compute."""

from __future__ import annotations

import contextlib
import json
import sys
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import torch
from rich.console import Console

import hgemm
from hgemm.bench.contestants import Choice, check_patterns, choose, load
from hgemm.bench.suites import DTYPES, LAYOUTS, Case, Shape
from hgemm.cuda_kernels import architectures
from hgemm.devices import DEVICES, Device, find
from hgemm.profile import ncu
from hgemm.profile.counters import read
from hgemm.profile.defaults import without_default
from hgemm.profile.launch import Launch
from hgemm.profile.metrics import metric_names
from hgemm.profile.ncu import NoCounters
from hgemm.profile.sheets import Profile, Report
from hgemm.profile.static import Gpu, NoFacts, facts, problem_of
from hgemm.profile.tables import as_json, case_title, markdown, print_report
from hgemm.program import Parser, end_with, reading

COUNTERS = ("auto", "off", "required")
FILE_WIDTH = 150
"""Columns of a table that goes to a file: enough for the longest names of configurations."""

NO_GPU = "torch finds no CUDA device to run on"

EPILOG = """Exit status: 0; 1 if a contestant computed a wrong product; 2 for a usage error, or if --counters required
could not be met; 130 after Ctrl-C. Nothing changes a clock. The static half needs no GPU: nvcc for cuda_*, Triton for
triton*."""

Progress = Callable[[str], None]


def parser() -> Parser:
    parse = Parser("python -m hgemm.profile", description=__doc__, epilog=EPILOG)
    parse.add_argument(
        "--backend",
        nargs="+",
        metavar="PATTERN",
        default=["cuda_*", "triton*"],
        help="NAME, NAME:CONFIG or NAME:default, with * and ? (default: cuda_* triton*)",
    )
    parse.add_argument(
        "--contestant",
        type=Path,
        action="append",
        default=[],
        metavar="FILE",
        help="a Python file that calls hgemm.register_backend: what it registers is profiled too",
    )
    parse.add_argument(
        "--mnk",
        type=reading(Shape.parse),
        default=Shape(4096, 4096, 4096),
        metavar="M,N,K",
        help="the product (default: 4096,4096,4096)",
    )
    parse.add_argument("--dtype", choices=list(DTYPES), default="bf16", help="(default: bf16)")
    parse.add_argument(
        "--layout", choices=LAYOUTS, default="nn", help="of a and b: n row-major, t column-major (default: nn)"
    )
    parse.add_argument(
        "--arch",
        metavar="90a,120f",
        help="architectures to compile for (default: 90a,120f, and that of the device present)",
    )
    parse.add_argument(
        "--gpu",
        action="append",
        default=[],
        metavar="NAME",
        help="the board that tiles are dealt to, one for each architecture, as in 'RTX 5060'; without a device also "
        "the one that NAME:default chooses for (default: the device present, else the first of its kind in the table "
        "of devices)",
    )
    parse.add_argument(
        "--counters",
        choices=COUNTERS,
        default="auto",
        help="from Nsight Compute: where they can be read (default), not at all, or else fail",
    )
    form = parse.add_mutually_exclusive_group()
    form.add_argument("--json", action="store_true", help="print one JSON object")
    form.add_argument("--markdown", action="store_true", help="print Markdown")
    return parse


def main(argv: Sequence[str] | None = None) -> int:
    """Runs the command line and returns the exit status."""
    parse = parser()
    options = parse.parse_args(argv)
    case = Case(options.mnk, options.dtype, options.layout)
    try:
        case.check_size()
        boards = [_board(title) for title in options.gpu]
        gpus = _gpus(options.arch, boards)
        registered = [name for path in options.contestant for name in load(path)]
        choices = _choices([*options.backend, *registered], case, boards)
    except ValueError as error:
        parse.error(str(error))
    console = Console(highlight=False)
    with _progress() as progress:
        files = tuple(str(path.resolve()) for path in options.contestant)
        report = make_report(case, gpus, choices, options.counters, progress, files)
    if options.json:
        print(json.dumps(as_json(report), indent=1))
    elif options.markdown:
        print(markdown(report), end="")
    else:
        if not console.is_terminal:
            console.width = max(console.width, FILE_WIDTH)
        console.print(f"{case_title(case)}\n", style="bold")
        print_report(console, report)
    return status(report, options.counters)


def make_report(
    case: Case,
    gpus: Sequence[Gpu],
    choices: Sequence[Choice],
    counters: str,
    progress: Progress,
    files: tuple[str, ...] = (),
) -> Report:
    """Looks at every contestant: first its code, for each GPU, then, unless ``counters`` is "off", one call of it.

    ``files`` are those that registered some of them.
    """
    profiles = [Profile(choice.backend.name, choice.config) for choice in choices]
    for choice, profile in zip(choices, profiles, strict=True):
        for gpu in gpus:
            progress(f"compiling {profile.label} for sm_{gpu.architecture}")
            try:
                profile.facts.append(facts(choice.backend, choice.config, case, gpu))
            except NoFacts as reason:
                profile.no_facts[gpu.title] = str(reason)
    note, version, title = None, None, None
    if counters != "off":
        try:
            version = _count(case, choices, profiles, progress, files)
            title = next((gpu.title for gpu in _present()), None)
        except NoCounters as reason:
            note = str(reason)
    return Report(case, gpus, profiles, note, version, title)


def status(report: Report, counters: str) -> int:
    """The exit status of a report: 2 if counters are required and something that takes the product has none."""
    if any(profile.cause == "wrong" for profile in report.profiles):
        return 1
    unmet = [f"{p.label}: {p.no_counters}" for p in report.profiles if p.counted is None and p.cause != "refused"]
    if counters == "required" and (report.note or unmet):
        print(f"hgemm.profile: --counters required: {report.note or '; '.join(unmet)}", file=sys.stderr)
        return 2
    return 0


def _count(
    case: Case, choices: Sequence[Choice], profiles: Sequence[Profile], progress: Progress, files: tuple[str, ...]
) -> str:
    """Fills in the counters; returns ncu's version. Raises NoCounters if no contestant can have any here."""
    device, program = _device(), ncu.find()
    for number, (choice, profile) in enumerate(zip(choices, profiles, strict=True), start=1):
        progress(f"profiling {profile.label}, {number} of {len(choices)}")
        try:
            launch = Launch(profile.backend, choice.config, case, device, files)
            kernels = ncu.collect(program, metric_names(), launch)
        except NoCounters as reason:
            if reason.cause == "machine":
                raise
            profile.no_counters, profile.cause = str(reason), reason.cause
        else:
            profile.counted = read(kernels)
    return ncu.version(program)


def _device() -> int:
    """The current CUDA device. Raises NoCounters if there is none."""
    if not torch.cuda.is_available():
        raise NoCounters(NO_GPU, "machine")
    return torch.cuda.current_device()


def _choices(patterns: Sequence[str], case: Case, boards: Sequence[Device]) -> list[Choice]:
    """The contestants that the patterns name. NAME:default is what the backend chooses on the device present, else on
    ``boards``. Raises ValueError for a pattern that none matches, and for NAME:default where there is neither."""
    check_patterns(patterns, hgemm.backends())
    device = torch.device("cuda", torch.cuda.current_device()) if torch.cuda.is_available() else torch.device("cpu")
    if device.type == "cpu":
        patterns = without_default(patterns, hgemm.backends(), case, boards)
    return choose(patterns, hgemm.backends(), problem_of(case, device))


def _gpus(names: str | None, boards: Sequence[Device]) -> list[Gpu]:
    """One GPU for each architecture. Raises ValueError for words that name none."""
    present = _present()
    if names is None:
        wanted = dict.fromkeys((*architectures.DEFAULT, *(gpu.architecture for gpu in present)))
    else:
        wanted = dict.fromkeys(names.split(","))
    chosen = {gpu.architecture: gpu for gpu in present}
    for board in boards:
        gpu = Gpu(board.title, architectures.of_capability(board.compute_capability), board.multiprocessors)
        chosen[gpu.architecture] = gpu
        if gpu.architecture not in wanted:
            wanted[gpu.architecture] = None
    return [chosen.get(name) or _first_board(name) for name in wanted]


def _present() -> list[Gpu]:
    """The current device, if there is one."""
    if not torch.cuda.is_available():
        return []
    properties: Any = torch.cuda.get_device_properties(torch.cuda.current_device())
    board = find(properties.name, properties.multi_processor_count)
    title = board.title if board else properties.name
    name = architectures.of_capability((properties.major, properties.minor))
    return [Gpu(title, name, properties.multi_processor_count)]


def _board(title: str) -> Device:
    for device in DEVICES:
        if title.casefold() in (device.title.casefold(), *(name.casefold() for name in device.names)):
            return device
    titles = ", ".join(device.title for device in DEVICES)
    raise ValueError(f"--gpu {title!r} is not in the table of devices; there are {titles}")


def _first_board(architecture: str) -> Gpu:
    """The first board that runs the architecture's code."""
    boards = [(architectures.of_capability(device.compute_capability), device) for device in DEVICES]
    for name, device in boards:
        if name == architecture:
            return Gpu(device.title, name, device.multiprocessors)
    known = ", ".join(dict.fromkeys(name for name, _ in boards))
    raise ValueError(
        f"--arch {architecture!r}: the table of devices has no board of it, and none is present; it has {known}"
    )


@contextlib.contextmanager
def _progress() -> Iterator[Progress]:
    """Says on a terminal what is being done; elsewhere nothing."""
    console = Console(stderr=True)
    if not console.is_terminal:
        yield lambda work: None
        return
    with console.status("") as shown:
        yield shown.update


if __name__ == "__main__":
    end_with(main)
