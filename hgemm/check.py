"""``python -m hgemm.check``: tries every backend that can run here, and says where each stands.

``verify`` is the quick check of one product, for use before its time is published.
"""

from __future__ import annotations

import argparse
import contextlib
import datetime
import functools
import json
import math
import sys
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn
from rich.table import Table
from torch import Tensor

import hgemm
from hgemm import isolation, search
from hgemm.backends import Backend, Properties, backends, did_you_mean, is_built_in
from hgemm.cases import Case, cases
from hgemm.conformance import Failure, Report
from hgemm.cuda_kernels.adapter import build
from hgemm.cuda_kernels.toolchain import BuildError
from hgemm.data import DATA
from hgemm.problem import DTYPES
from hgemm.program import Parser, end_with
from hgemm.reference import error_over_bound

# Rows of a large product that are checked. One in every stretch of as many rows as there are per sample, so that with
# 128 of them no tile of 64 rows is missed up to M = 8192.
SAMPLED_ROWS = 128
_ALWAYS_LAST = 8

_OTHERS_NAMED = 5


@dataclass(frozen=True)
class Verdict:
    """``error_over_bound`` is the largest |error| / bound found; a right product has at most 1."""

    error_over_bound: float

    @property
    def passed(self) -> bool:
        return self.error_over_bound <= 1


def verify(a: Tensor, b: Tensor, c: Tensor, properties: Properties | None = None) -> Verdict:
    """Holds ``c[M, N]`` against ``a[M, K] @ b[K, N]`` in fp64, with the bound of ``hgemm.reference``: the wider
    one for a backend whose ``properties`` do not promise exact sums of integers, since it may round partial sums.

    Up to 256 rows every element is. Of a larger product all columns of 128 rows spread over it are, the last 8 among
    them, and every element is held against the product that torch sums in fp32, with a bound wider by what that may be
    off: so it stays cheap in memory, and quick also on a GPU that is slow in fp64. Necessary, not sufficient:
    ``check_backend`` is the thorough one.
    """
    M = c.shape[0]
    rounded = properties is not None and not properties.exact_integers
    if M <= 2 * SAMPLED_ROWS:
        return Verdict(error_over_bound(a, b, c, partial_sums_rounded=rounded))
    with torch.device("cpu"):
        strata = torch.linspace(0, M - _ALWAYS_LAST, SAMPLED_ROWS - _ALWAYS_LAST + 1, dtype=torch.float64)
        places = torch.rand(len(strata) - 1, dtype=torch.float64, generator=torch.Generator().manual_seed(M))
        spread = (strata[:-1] + places * strata.diff()).long()
        rows = torch.cat((spread, torch.arange(M - _ALWAYS_LAST, M))).to(c.device)
    sampled = error_over_bound(a, b, c, rows, partial_sums_rounded=rounded)
    return Verdict(max(sampled, error_over_bound(a, b, c, partial_sums_rounded=rounded, in_fp32=True)))


def main(arguments: Sequence[str] | None = None) -> int:
    """The exit status: 0 if all is well, 1 after any failure, 2 if something that was asked for cannot be checked."""
    options = _parser().parse_args(arguments)
    try:
        if options.search and (reason := search.missing()):
            raise ValueError(reason)
        records = _asked_for(options.backend, options.config)
        only = Case.parse(options.case) if options.case else None
        idle = {record.name: reason for record in records if (reason := record.unavailable(options.device))}
        if options.backend and idle:
            raise ValueError("; ".join(f"{name} does not run on {options.device}: {idle[name]}" for name in idle))
        if len(idle) == len(records):
            raise ValueError(f"nothing that was asked for runs on {options.device}: {_by_reason(idle)}")
    except (ValueError, TypeError, ImportError, AttributeError, SyntaxError) as error:
        print(f"hgemm.check: {error}", file=sys.stderr)
        return 2
    spelled = {name.rpartition(":")[2]: name for name in options.backend or ()}
    dtypes = [dtype for dtype in DTYPES if options.dtype in (None, _short(dtype))]
    runs = {
        record.name: [
            (config, dtype)
            for config in ([options.config] if options.config else record.configs or (None,))
            for dtype in dtypes
        ]
        for record in records
        if record.name not in idle
    }
    try:
        reports = _checked(runs, spelled, options, only)
    except (ValueError, TypeError, RuntimeError, MemoryError, OverflowError) as error:  # not of a kernel
        if only is None:
            raise
        reason = (str(error) or type(error).__name__).splitlines()[0]
        print(f"hgemm.check: the case {only.name} cannot be set up here: {reason}", file=sys.stderr)
        return 2
    tried = {report.backend for report in reports if report.cases}
    untried = [report for report in reports if report.backend not in tried]
    passed = not untried and all(report.passed for report in reports)
    if options.json:
        print(json.dumps(_as_json(reports, idle, options.device, passed, spelled, options.search), indent=1))
    else:
        _print(reports, idle, untried, options.device, spelled)
    return 0 if passed else 1


def _checked(
    runs: dict[str, list[isolation.Run]], spelled: dict[str, str], options: argparse.Namespace, only: Case | None
) -> list[Report]:
    """The reports of every backend's runs. On CUDA several configurations run at once, each in a child process."""
    apart = [name for name in runs if options.device == "cuda" and isolation.can_isolate(spelled.get(name, name))]
    workers = isolation.most_children() if apart else 1
    with contextlib.suppress(BuildError):  # the cases that need it will say so
        build([name for name in apart if is_built_in(name)], {dtype for run in runs.values() for _, dtype in run})
    tasks = [run for of_backend in runs.values() for run in of_backend]
    total = sum(1 if only else len(cases(config, options.device, options.quick)) for config, _ in tasks)
    with _progress(None if options.search else total, hidden=options.json) as show:
        rest = {
            "quick": options.quick,
            "only": only,
            "seconds": options.search and options.search * min(1.0, workers / len(tasks)),
            "before": show,
        }

        def jobs(name: str) -> Iterator[Callable[..., Iterator[Report]]]:
            for config in dict.fromkeys(config for config, _ in runs[name]):
                of_config = [run for run in runs[name] if run[0] == config]
                make = isolation.isolated_reports if name in apart else isolation.reports
                yield functools.partial(make, spelled.get(name, name), of_config, options.device, **rest)

        reports = isolation.side_by_side([job for name in apart for job in jobs(name)], workers)
        reports += [report for name in runs if name not in apart for job in jobs(name) for report in job()]
    order = list(runs)
    return sorted(reports, key=lambda report: order.index(report.backend))


def _asked_for(names: Sequence[str] | None, config: str | None) -> list[Backend]:
    """The backends of these names, each of which must have the configuration; without names those that have it, or
    all. Raises what ``isolation.load`` does, and ValueError if there are none or two are called the same."""
    if names:
        records = [isolation.load(name) for name in dict.fromkeys(names)]
        called = [record.name for record in records]
        if twice := [name for name in called if called.count(name) > 1]:
            raise ValueError(f"two of the backends are called {twice[0]!r}; check them one by one")
        for record in records:
            record.check_config(config)
        return records
    records = [record for record in backends() if config is None or config in record.configs]
    if config is not None and not records:
        known = dict.fromkeys(name for record in backends() for name in record.configs)
        raise ValueError(f"no backend has a configuration {config!r}{did_you_mean(config, known)}")
    return records


def _by_reason(idle: dict[str, str]) -> str:
    reasons: dict[str, list[str]] = {}
    for name, reason in idle.items():
        reasons.setdefault(reason, []).append(name)
    return "; ".join(f"{', '.join(names)}: {reason}" for reason, names in reasons.items())


def command(report: Report, device: str, backend: str) -> str:
    """The call that repeats the smallest failing case of a report and nothing else."""
    config = f" --config {report.config}" if report.config else ""
    return (
        f"python -m hgemm.check --device {device} --backend {backend}{config} --dtype {_short(report.dtype)} "
        f"--case {_smallest_first(report)[0].case.name}"
    )


def _smallest_first(report: Report) -> list[Failure]:
    return sorted(report.failures, key=lambda failure: failure.case.work)


def _parser() -> Parser:
    parser = Parser(
        prog="python -m hgemm.check",
        description="Checks backends against exact integers and fp64 bounds, over ragged shapes, inside arenas of NaN.",
        epilog="Exit status: 0 all is well, 1 a failure, 2 something asked for cannot be checked here.",
    )
    parser.add_argument(
        "--backend",
        action="append",
        metavar="NAME",
        help="a backend's name, or module:function for a function(a, b, out, config) of your own; may be repeated "
        "(default: every backend that can run on the device)",
    )
    parser.add_argument("--config", help="only this configuration (default backends: those that have it)")
    parser.add_argument("--dtype", choices=[_short(dtype) for dtype in DTYPES], help="only this dtype")
    parser.add_argument("--case", metavar="MxNxK:DATA", help=f"only this case; DATA is one of {', '.join(DATA)}")
    parser.add_argument("--quick", action="store_true", help="few and small shapes")
    parser.add_argument(
        "--search",
        type=_seconds,
        metavar="SECONDS",
        help="after the cases (with --quick: instead of them) search for as long for a product that fails, the time "
        "shared out evenly among backends, configurations and dtypes",
    )
    parser.add_argument("--json", action="store_true", help="print one JSON object")
    parser.add_argument(
        "--device",
        choices=("cuda", "cpu"),
        default="cuda" if torch.cuda.is_available() else "cpu",
        help="where the tensors are (default: %(default)s)",
    )
    return parser


def _seconds(text: str) -> float:
    seconds = float(text)
    if not 0 < seconds < math.inf:
        raise argparse.ArgumentTypeError(f"a time above 0, found {text}")
    return seconds


@contextmanager
def _progress(total: int | None, hidden: bool) -> Iterator[Callable[[str], None]]:
    """A function to call before each of ``total`` cases (None: nobody knows) with what it is; for a terminal only."""
    console = Console(stderr=True)
    columns = (BarColumn(), MofNCompleteColumn(), TimeRemainingColumn(), TextColumn("{task.description}"))
    with Progress(*columns, console=console, transient=True, disable=hidden or not console.is_terminal) as progress:
        task = progress.add_task("", total=total)
        yield lambda work: progress.update(task, description=work, advance=1)


def _print(
    reports: Iterable[Report], idle: dict[str, str], untried: Iterable[Report], device: str, spelled: dict[str, str]
) -> None:
    console = Console(highlight=False, soft_wrap=True)
    if not console.is_terminal:
        console.width = 140  # a file or a pipe has no width: room for any name
    table = Table(title=f"hgemm.check on {device}", title_justify="left")
    for heading in ("backend", "config", "dtype", "cases", "refused", "error / bound", "verdict"):
        number = heading in ("cases", "refused", "error / bound")
        table.add_column(heading, justify="right" if number else "left", no_wrap=heading != "config", overflow="fold")
    for report in reports:
        verdict = "[green]passed" if report.passed else f"[red]FAILED {len(report.failures)}"
        if report.passed and not report.cases:
            verdict = "[yellow]refused all"
        numbers = (str(report.cases), str(report.refused), f"{report.worst:.3f}")
        table.add_row(report.backend, report.config or "", _short(report.dtype), *numbers, verdict)
    console.print(table)
    for name, reason in idle.items():
        console.print(f"not run on {device}: {name}: {reason}", markup=False)
    for report in untried:
        console.print(f"nothing checked: {_title(report)} refused every case: {report.refusal}", markup=False)
    for report in reports:
        if not report.failures:
            continue
        first, *others = _smallest_first(report)
        console.print(f"{_title(report)} failed, the smallest case being {first.case.name}:", style="red", markup=False)
        for fault in first.faults:
            console.print(f"  {fault}", markup=False)
        if others:
            names = ", ".join(failure.case.name for failure in others[:_OTHERS_NAMED])
            console.print(f"  and {len(others)} more: {names}{' ...' if len(others) > _OTHERS_NAMED else ''}")
        again = command(report, device, spelled.get(report.backend, report.backend))
        console.print(f"  again: {again}", markup=False)


def _title(report: Report) -> str:
    return " ".join(filter(None, (report.backend, report.config, _short(report.dtype))))


def _as_json(
    reports: Iterable[Report],
    idle: dict[str, str],
    device: str,
    passed: bool,
    spelled: dict[str, str],
    search_seconds: float | None,
) -> dict[str, Any]:
    def one(report: Report) -> dict[str, Any]:
        backend = spelled.get(report.backend, report.backend)
        return {
            "backend": report.backend,
            "config": report.config,
            "dtype": _short(report.dtype),
            "cases": report.cases,
            "refused": report.refused,
            "refusal": report.refusal,
            "error_over_bound": report.worst if math.isfinite(report.worst) else "inf",
            "passed": report.passed,
            "failures": [
                {"case": failure.case.name, "faults": list(failure.faults)} for failure in _smallest_first(report)
            ],
            "again": command(report, device, backend) if report.failures else None,
        }

    from hgemm.bench.environment import sources_digest

    return {
        "device": device,
        "gpu": torch.cuda.get_device_name() if device == "cuda" else None,
        "utc": datetime.datetime.now(datetime.UTC).strftime("%Y-%m-%dT%H:%M:%SZ"),
        "versions": {"hgemm": hgemm.__version__, "torch": torch.__version__, "cuda": torch.version.cuda},
        "sources": sources_digest(),
        "search_seconds": search_seconds,
        "passed": passed,
        "results": [one(report) for report in reports],
        "not_run": [{"backend": name, "reason": reason} for name, reason in idle.items()],
    }


def _short(dtype: torch.dtype) -> str:
    return str(dtype).removeprefix("torch.")


if __name__ == "__main__":
    end_with(main)
