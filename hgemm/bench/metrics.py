"""The numbers people ask of a results file, computed from its samples: TFLOPS, shares, ratios, clocks."""

from __future__ import annotations

import itertools
import statistics
from collections.abc import Iterable

from hgemm.bench.schema import CaseResult, Kernel, Row, Timing
from hgemm.bench.statistics import Summary, paired_ratio, summarize

CEILING = "mma.sync"
CEILING_FP16 = "mma.sync fp16 accumulate"
FRAGMENTS = ("ldmatrix+mma.sync 64x64", "ldmatrix+mma.sync 96x64")
COPY = "copy"
READ = "read"
L2 = "l2"
SHARED = "shared"
LAUNCH = "launch"
"""Names of the rows that measure roofs: register-only tensor-core rate with fp32 and with fp16 accumulation, the same
with fp32 on operands that ldmatrix loads from shared memory, by warp tile, a large copy in device memory, reads of it
alone, reads that L2 answers, reads of shared memory, and the time of a launch that does nothing."""

# Throttle reasons under which a clock reading is not the board's free choice.
_THROTTLED = frozenset(
    {"sw_power_cap", "hw_slowdown", "hw_thermal_slowdown", "hw_power_brake_slowdown", "sw_thermal_slowdown"}
)


def timed_rows(case: CaseResult, role: str = "contestant") -> list[Row]:
    """The rows of a case that carry times."""
    return [row for row in case.rows if row.role == role and row.timing is not None]


def main_kernel(row: Row) -> Kernel | None:
    """That which multiplies. What adds the parts of a cut K has no shared memory, or fewer threads."""
    return max(row.kernels or (), key=lambda k: (k.shared_bytes, k.blocks * k.threads), default=None)


def label(row: Row) -> str:
    """``backend`` or ``backend:config``, as ``--backends`` takes it."""
    return f"{row.backend}:{row.config}" if row.config else row.backend


def tflops(timing: Timing) -> dict[int, float]:
    """TFLOPS by round."""
    return {r: timing.flops_per_call / us * 1e-6 for r, us in zip(timing.rounds, timing.samples_us, strict=True)}


def gigabytes_per_second(timing: Timing) -> dict[int, float]:
    """Compulsory bytes moved a second, in 10^9, by round."""
    return {r: timing.bytes_per_call / us * 1e-3 for r, us in zip(timing.rounds, timing.samples_us, strict=True)}


def microseconds(row: Row) -> Summary:
    """Time a call of a timed row."""
    assert row.timing is not None
    return summarize(row.timing.samples_us)


def speed(row: Row) -> Summary:
    """TFLOPS of a timed row."""
    assert row.timing is not None
    return summarize(list(tflops(row.timing).values()))


def relative(row: Row, reference: Row | None) -> Summary | None:
    """Speed over the reference's, paired by round; None without a reference that was timed."""
    if row.timing is None or reference is None or reference.timing is None:
        return None
    return paired_ratio(tflops(row.timing), tflops(reference.timing))


def find_row(case: CaseResult, backend: str, role: str = "contestant", *, allocates: bool = False) -> Row | None:
    """The first timed row of a backend, called in this way, or None."""
    rows = (row for row in timed_rows(case, role) if row.backend == backend and row.allocates == allocates)
    return next(rows, None)


def clock_mhz(timings: Iterable[Timing]) -> float | None:
    """Median clock of the multiprocessors over all samples, in MHz, as they counted it where they did; None where none
    was read."""
    known = [mhz for timing in timings for mhz in clocks_mhz(timing) if mhz is not None]
    return statistics.median(known) if known else None


def clocks_mhz(timing: Timing) -> list[float | None]:
    """The clock of every sample: over the whole of it where it was counted, else as NVML read it at some moment."""
    clocks = timing.clocks
    return [
        counted or read
        for read, counted in itertools.zip_longest(clocks.sm_mhz, clocks.counted_mhz[: len(clocks.sm_mhz)])
    ]


def is_throttled(reasons: str) -> bool:
    """Whether power or temperature held the clock down, by what NVML said of one sample."""
    return bool(_THROTTLED & set(reasons.split("+")))


def throttled(timing: Timing) -> int:
    """How many samples ran while power or temperature held the clock down."""
    return sum(map(is_throttled, timing.clocks.throttle))
