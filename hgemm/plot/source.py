"""Which results file a picture is drawn from, which of its cases, what they are called, and where pictures go."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from hgemm.bench.metrics import timed_rows
from hgemm.bench.results import ResultsError, packaged, read
from hgemm.bench.schema import CaseResult, Results

_PACKAGE = Path(__file__).resolve().parents[1]


class NothingToDraw(ValueError):
    """The results are in order and hold nothing that this picture shows; the message says what is missing."""


@dataclass(frozen=True)
class Options:
    """What the user asked of the pictures; each kind uses what applies to it."""

    mnk: tuple[int, int, int] | None = None
    """The case to show, where a picture shows one."""
    baseline: str = "torch"
    """``backend`` or ``backend:config`` that others are compared with."""
    contestant: str | None = None
    """``backend`` or ``backend:config`` that a picture of one contestant shows."""


USUAL = Options()


def load(path: Path) -> Results:
    """Reads a results file that has something to draw. Raises ResultsError, or NothingToDraw if nobody was timed."""
    results = read(path)
    if not results.cases:
        raise NothingToDraw(f"{path}: holds no case; measure one with `python -m hgemm.bench --out FILE`")
    if not any(timed_rows(case) for case in results.cases):
        raise NothingToDraw(f"{path}: no contestant was timed in any case; its rows say why")
    return results


def fullest_packaged() -> Path:
    """The packaged results file with the most rounds, the one with the most samples of several, the first by name of
    those that are alike: a run that repeats another, to show how far the two agree, is named after it. Times of the
    host do not count. Raises NothingToDraw if there is none."""
    fullness: dict[Path, tuple[int, int]] = {}
    for path in sorted(packaged(), key=lambda path: path.stem):
        try:
            fullness[path] = _rounds_and_samples(load(path))
        except (ResultsError, NothingToDraw):
            continue
    if not any(rounds for rounds, _ in fullness.values()):
        raise NothingToDraw("no measurements come with this package; name a results file with --from")
    return max(fullness, key=lambda path: fullness[path])


def _rounds_and_samples(results: Results) -> tuple[int, int]:
    """Of the device's times."""
    timings = [row.timing for case in results.cases for row in timed_rows(case)]
    counts = [len(timing.samples_us) for timing in timings if timing and timing.mode != "e2e"]
    return max(counts, default=0), sum(counts)


def default_folder() -> Path:
    """``plots/`` of the checkout that this package runs from; of the current folder if it was installed."""
    checkout = _PACKAGE.parent
    in_checkout = (checkout / "pyproject.toml").is_file() and (checkout / "plots").is_dir()
    return (checkout if in_checkout else Path.cwd()) / "plots"


def timed_cases(results: Results, dtype: str) -> list[CaseResult]:
    """The cases of a dtype in which a contestant was timed. Raises NothingToDraw if there is none."""
    cases = [case for case in results.cases if case.dtype == dtype and timed_rows(case)]
    if not cases:
        raise NothingToDraw(f"no contestant was timed in {dtype}")
    return cases


def device_cases(results: Results, dtype: str) -> list[CaseResult]:
    """Those in which the device was timed, which a roof limits, and not the host. Raises NothingToDraw for none."""
    cases = [case for case in timed_cases(results, dtype) if _on_the_device(case)]
    if not cases:
        raise NothingToDraw(f"in {dtype} the host's time was measured (mode e2e), and a roofline shows the device's")
    return cases


def _on_the_device(case: CaseResult) -> bool:
    return any(row.timing and row.timing.mode != "e2e" for row in timed_rows(case))


def one_case(cases: Sequence[CaseResult], mnk: tuple[int, int, int] | None) -> CaseResult:
    """The case of the size asked for; without one, among those whose rounds were not cut short if there are any, 4096^3
    if it was measured, else the one with the most work.

    Of several layouts or batches of that size the plain one comes first. Raises NothingToDraw if the size is not there.
    """
    if mnk is not None:
        found = [case for case in cases if (case.M, case.N, case.K) == mnk]
        if not found:
            sizes = ", ".join(dict.fromkeys(f"{case.M},{case.N},{case.K}" for case in cases))
            raise NothingToDraw(f"no case of {','.join(map(str, mnk))} in {cases[0].dtype}; there are {sizes}")
        return min(found, key=lambda case: (case.batch, case.layout != "nn"))
    return max(cases, key=lambda case: (case.complete, _is_usual(case), case.flops, case.layout == "nn"))


def _is_usual(case: CaseResult) -> bool:
    return case.M == case.N == case.K == 4096 and case.batch == 1


def wgmma_remark(results: Results) -> list[str]:
    """What has to be said where kernels are held against the rate of mma.sync; nothing but on Hopper."""
    if results.env.compute_capability != [9, 0]:
        return []
    return ["On Hopper wgmma, which cuBLAS and Triton use, is faster than mma.sync can be."]


def case_name(case: CaseResult) -> str:
    """``4096³`` for a square product, ``M x N x K`` otherwise, then its layout, batch and data where not the usual."""
    size = f"{case.M}³" if case.M == case.N == case.K else f"{case.M} x {case.N} x {case.K}"
    return size + variant(case)


def variant(case: CaseResult) -> str:
    """What sets a case apart from a row-major product of normal numbers: ``, nt, batch 8, zeros``, or nothing."""
    layout = f", {case.layout}" if case.layout != "nn" else ""
    batch = f", batch {case.batch}" if case.batch > 1 else ""
    data = f", {case.distribution}" if case.distribution != "normal" else ""
    return layout + batch + data
