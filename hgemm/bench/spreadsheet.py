"""Results as CSV: one line a row of the file, medians and intervals instead of samples."""

from __future__ import annotations

import csv
import io
import statistics
from collections.abc import Sequence

from hgemm.bench.metrics import CEILING, clock_mhz, find_row, microseconds, relative, speed, throttled
from hgemm.bench.schema import CaseResult, Results, Row
from hgemm.bench.statistics import Summary

COLUMNS = (
    *("gpu", "label", "batch", "M", "N", "K", "dtype", "layout", "distribution"),
    *("role", "backend", "config", "allocates", "status", "reason", "error_over_bound"),
    *("mode", "burst_ms", "idle_ms", "calls", "samples", "dropped", "throttled"),
    *("us", "us_p5", "us_p95", "us_ci_low", "us_ci_high", "cv", "finished_us"),
    *("tflops", "times_torch", "times_torch_ci_low", "times_torch_ci_high", "percent_of_mma_sync"),
    *("sm_mhz", "power_w", "temperature_c"),
)
"""Times are microseconds a call; ``times_torch`` is speed over that of torch in the same call, paired by round."""


def csv_text(results: Results) -> str:
    """The whole file; a cell is empty where there is nothing to say."""
    text = io.StringIO()
    writer = csv.DictWriter(text, COLUMNS, restval="", lineterminator="\n")
    writer.writeheader()
    for case in results.cases:
        for row in case.rows:
            writer.writerow(_case_cells(results, case) | _row_cells(row) | _timing_cells(case, row))
    return text.getvalue()


def _case_cells(results: Results, case: CaseResult) -> dict[str, object]:
    names = ("label", "batch", "M", "N", "K", "dtype", "layout", "distribution")
    return {"gpu": results.env.gpu} | {name: getattr(case, name) for name in names}


def _row_cells(row: Row) -> dict[str, object]:
    names = ("role", "backend", "config", "allocates", "status", "reason")
    error = row.check.error_over_bound if row.check else None
    return {name: getattr(row, name) for name in names} | {"error_over_bound": _digits(error)}


def _timing_cells(case: CaseResult, row: Row) -> dict[str, object]:
    timing = row.timing
    if timing is None:
        return {}
    times = microseconds(row)
    ratio = relative(row, find_row(case, "torch", allocates=row.allocates)) if row.role == "contestant" else None
    share = relative(row, find_row(case, CEILING, "roof")) if timing.mode != "e2e" and timing.flops_per_call else None
    return {
        **{name: getattr(timing, name) for name in ("mode", "burst_ms", "idle_ms", "calls", "dropped")},
        "samples": len(timing.samples_us),
        "throttled": throttled(timing),
        "us": _digits(times.median),
        "us_p5": _digits(times.p5),
        "us_p95": _digits(times.p95),
        "us_ci_low": _digits(times.ci_low),
        "us_ci_high": _digits(times.ci_high),
        "cv": _digits(times.cv),
        "finished_us": _digits(statistics.median(timing.finished_us)) if timing.finished_us else "",
        "tflops": _digits(speed(row).median) if timing.flops_per_call and timing.mode != "e2e" else "",
        **_interval("times_torch", ratio),
        "percent_of_mma_sync": _digits(100 * share.median) if share else "",
        "sm_mhz": _digits(clock_mhz([timing])),
        "power_w": _median(timing.clocks.power_w),
        "temperature_c": _median(timing.clocks.temperature_c),
    }


def _interval(name: str, summary: Summary | None) -> dict[str, object]:
    if summary is None:
        return {}
    return {
        name: _digits(summary.median),
        f"{name}_ci_low": _digits(summary.ci_low),
        f"{name}_ci_high": _digits(summary.ci_high),
    }


def _median(values: Sequence[float | None]) -> str:
    known = [value for value in values if value is not None]
    return _digits(statistics.median(known)) if known else ""


def _digits(value: float | None) -> str:
    """Six significant digits."""
    return "" if value is None else f"{value:.6g}"
