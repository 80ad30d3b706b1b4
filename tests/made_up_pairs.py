"""Results files to compare with each other, with times that a test chooses. No figure here is real."""

from dataclasses import replace

import made_up_results
import numpy as np
from numpy.typing import NDArray

from hgemm.bench.schema import CaseResult, Clocks, Results, Row
from hgemm.bench.suites import Shape

Times = NDArray[np.float64]

ROUNDS = 7
# Odd enough that no two samples are equal; the spread is 0.3% and the median 1.
SCATTER = np.array([1.0, 0.9985, 1.0011, 0.9992, 1.0015, 0.9997, 1.0004])


def results_of(times: Times, controls: Times) -> Results:
    """A file with one contestant: a case for each row of ``times``, a round for each column, in microseconds."""
    results = made_up_results.results(shapes=(Shape(256, 256, 256),), series=made_up_results.SERIES[3:4])
    [template] = results.cases
    template.rows = [row for row in template.rows if row.timing and row.role != "roof"]
    results.cases = []
    for samples, control in zip(times, controls, strict=True):
        rows = [replace(row, timing=row.timing and replace(row.timing)) for row in template.rows]
        case = replace(template, rows=rows)
        for row, us in zip(case.rows, (control, samples), strict=True):
            set_samples(row, us)
        results.cases.append(case)
    return results


def set_samples(row: Row, us: Times) -> None:
    timing = row.timing
    assert timing is not None
    timing.samples_us, timing.rounds = list(map(float, us)), list(range(len(us)))
    timing.at_s = [0.1 * index for index in range(len(us))]
    timing.clocks = Clocks(*(column[:1] * len(us) for column in vars(timing.clocks).values()))


def set_clocks(row: Row, mhz: Times | None) -> None:
    """The counted ones; None for a file before they were."""
    assert row.timing is not None
    row.timing.clocks = replace(row.timing.clocks, counted_mhz=[] if mhz is None else list(map(float, mhz)))


def one_case(factor: float = 1.0, scatter: Times = SCATTER, clock: Times | float = 1.0) -> Results:
    """A single case whose contestant takes ``factor`` times 100 us; ``clock`` slows it and the control alike."""
    return results_of(100 * factor * scatter[None] * clock, 170 * np.ones((1, len(scatter))) * clock)


def whole() -> Results:
    """Two cases with ten contestants, the same samples in every call."""
    return made_up_results.results(shapes=made_up_results.SQUARES[:2])


def case_of(results: Results, index: int = 0) -> CaseResult:
    return results.cases[index]


def row_of(results: Results, backend: str, case: int = 0) -> Row:
    return next(row for row in case_of(results, case).rows if (row.role, row.backend) == ("contestant", backend))
