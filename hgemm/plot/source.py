"""Which results file a picture is drawn from, and where pictures go."""

from __future__ import annotations

from pathlib import Path

from hgemm.bench.metrics import timed_rows
from hgemm.bench.results import ResultsError, packaged, read
from hgemm.bench.schema import CaseResult, Results

_PACKAGE = Path(__file__).resolve().parents[1]


class NothingToDraw(ValueError):
    """The results are in order and hold nothing that this picture shows; the message says what is missing."""


def load(path: Path) -> Results:
    """Reads a results file that has something to draw. Raises ResultsError, or NothingToDraw if nobody was timed."""
    results = read(path)
    if not results.cases:
        raise NothingToDraw(f"{path}: holds no case; measure one with `python -m hgemm.bench --out FILE`")
    if not any(timed_rows(case) for case in results.cases):
        raise NothingToDraw(f"{path}: no contestant was timed in any case; its rows say why")
    return results


def newest_packaged() -> Path:
    """The newest packaged results file with something to draw. Raises NothingToDraw if there is none."""
    for path in packaged():
        try:
            load(path)
        except (ResultsError, NothingToDraw):
            continue
        return path
    raise NothingToDraw("no measurements come with this package; name a results file with --from")


def default_folder() -> Path:
    """``plots/`` of the checkout that this package runs from; of the current folder if it was installed."""
    checkout = _PACKAGE.parent
    in_checkout = (checkout / "pyproject.toml").is_file() and (checkout / "plots").is_dir()
    return (checkout if in_checkout else Path.cwd()) / "plots"


def case_name(case: CaseResult) -> str:
    """``4096³`` for a square product, ``M x N x K`` otherwise."""
    if case.M == case.N == case.K:
        return f"{case.M}³"
    return f"{case.M} x {case.N} x {case.K}"
