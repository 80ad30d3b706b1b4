"""What was timed, as the cost model is fitted to it and judged by it: cases of files of results, in two halves."""

from __future__ import annotations

import hashlib
import statistics
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from hgemm import devices
from hgemm.backends import TORCH, backends
from hgemm.bench.results import PACKAGED, ResultsError, packaged, read
from hgemm.bench.schema import Results
from hgemm.cost import Kernel, Size
from hgemm.devices import Rates
from hgemm.ranking import FEWEST_ROUNDS

CONFIGURATIONS = PACKAGED / "configurations"  # of every configuration, and not what a user asks of a results file
GPU = "NVIDIA H200"  # whose measurements the committed fit is of


@dataclass(frozen=True)
class Timing:
    """The median time of a kernel in one case."""

    kernel: Kernel
    size: Size
    us: float
    weight: float = 1.0


@dataclass(frozen=True)
class Case:
    """Everybody's times of one product. ``torch`` is its time in us, if it was timed."""

    size: Size
    dtype: str
    timings: tuple[Timing, ...]
    torch: float | None = None


def load(paths: Sequence[Path]) -> tuple[list[Case], Rates, list[dict[str, str]]]:
    """The cases of files of results, the device, and where they come from; without paths, of those of ``GPU`` that come
    with the package. Files of host times and of sustained running teach nothing.

    Raises ResultsError, also for files of several GPUs and for none that can be used.
    """
    found = [(path, read(path)) for path in (paths or (*sorted(packaged()), *sorted(CONFIGURATIONS.glob("*.json"))))]
    usable = [(path, results) for path, results in found if _teaches(results) and (paths or results.env.gpu == GPU)]
    gpus = sorted({results.env.gpu for _, results in usable})
    if len(gpus) != 1:
        raise ResultsError(f"a fit is of one GPU, found {', '.join(gpus) or 'no run with rotating operands'}")
    env = usable[0][1].env
    major, minor = env.compute_capability
    device = devices.rates(env.gpu, (major, minor), env.multiprocessors)
    sources = [
        {"file": path.name, "measured": results.run.utc, "sha256": hashlib.sha256(path.read_bytes()).hexdigest()}
        for path, results in usable
    ]
    latest = sorted((results for _, results in usable), key=lambda results: results.run.utc)
    return _latest([case for results in latest for case in cases_of(results, device)]), device, sources


def cases_of(results: Results, device: Rates) -> list[Case]:
    """What can be learnt from a file of results. Left out are what auto never chooses: libraries that may round partial
    sums, and cublaslt where it was tuned."""
    records = {record.name: record for record in backends() if record.kernels and record.properties.exact_integers}
    if results.run.options.get("tune_cublaslt"):
        records.pop("cublaslt", None)
    found = []
    for case in results.cases:
        size = Size(case.M, case.N, case.K, case.batch, case.layout)
        timings: list[Timing] = []
        whole = all(len(row.timing.samples_us) >= FEWEST_ROUNDS for row in case.rows if row.timing)
        for row in case.rows if whole else ():  # a run that was cut short leaves its last case with fewer rounds
            record = records.get(row.backend)
            if row.role != "contestant" or row.timing is None or record is None or record.kernels is None:
                continue
            kernel = next((k for k in record.kernels(device, size) if _config_name(k) == row.config), None)
            if kernel is not None:
                timings.append(Timing(kernel, size, statistics.median(row.timing.samples_us)))
        torch = (r for r in case.rows if r.backend == TORCH and r.role == "contestant" and r.timing is not None)
        times = [statistics.median(row.timing.samples_us) for row in torch if row.timing] if whole else []
        found.append(Case(size, case.dtype, tuple(timings), times[0] if times else None))
    return found


def _latest(cases: Sequence[Case]) -> list[Case]:
    """One case of each product and dtype. Of what was timed several times, in this order, the last time counts: the
    kernel may have changed since. What earlier runs alone timed is brought to the last one's scale by the times of the
    backend's kernels that are in both, or else by torch's."""
    merged: dict[tuple[Size, str], Case] = {}
    for earlier in reversed(cases):
        last = merged.setdefault((earlier.size, earlier.dtype), earlier)
        if last is earlier:
            continue
        known = {timing.kernel: timing.us for timing in last.timings}
        of_torch = last.torch / earlier.torch if last.torch and earlier.torch else 1.0
        changes: dict[str, list[float]] = {}
        for timing in earlier.timings:
            if timing.kernel in known:
                changes.setdefault(timing.kernel.backend, []).append(known[timing.kernel] / timing.us)
        more = []
        for timing in earlier.timings:
            if timing.kernel not in known:
                of_backend = changes.get(timing.kernel.backend)
                scale = statistics.geometric_mean(of_backend) if of_backend else of_torch
                more.append(replace(timing, us=timing.us * scale))
        merged[earlier.size, earlier.dtype] = replace(last, timings=(*last.timings, *more))
    return list(merged.values())


def split(cases: Iterable[Case]) -> tuple[list[Case], list[Case]]:
    """The fitted and the judged half; a shape is in the same one in every file, dtype and layout. Of squares, in the
    order of size, every second is fitted; of other shapes the black fields of a board of weights by M, so that each
    weight and each M is in both."""
    known = list(cases)
    sides = sorted({case.size.M for case in known if _square(case.size)})
    others = [case.size for case in known if not _square(case.size)]
    rows = sorted({size.M for size in others})
    weights = sorted({(size.batch, size.N, size.K) for size in others})

    def is_fitted(size: Size) -> bool:
        if _square(size):
            return sides.index(size.M) % 2 == 0
        return (rows.index(size.M) + weights.index((size.batch, size.N, size.K))) % 2 == 0

    return [case for case in known if is_fitted(case.size)], [case for case in known if not is_fitted(case.size)]


def _teaches(results: Results) -> bool:
    options = results.run.options
    return options.get("mode") == "rotating" and not options.get("sustained")


def _config_name(kernel: Kernel) -> str | None:
    return kernel.config.name if kernel.config else None


def _square(size: Size) -> bool:
    return size.batch == 1 and size.M == size.N == size.K
