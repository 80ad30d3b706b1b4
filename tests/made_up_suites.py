"""Made-up measurements of whole suites, for the pictures that show many cases. No figure here is real."""

import random
from collections.abc import Sequence
from dataclasses import replace

from made_up_results import SERIES, case_result, results

from hgemm.bench import roofs
from hgemm.bench.schema import CaseResult, Results
from hgemm.bench.suites import SUITES, Shape

# (backend, config, share of the made-up ceiling at 4096^3, registers, shared memory)
FULL = (
    *SERIES,
    ("cuda_cp_async", "128x128x32_s3_w64x32_noswizzle", 0.17, 128, 49152),
    ("cuda_tma", "128x256x64_s2_w64x64", 0.82, 128, 98328),
    ("cuda_tma", "256x128x64_s4_w64x64", 0.81, 128, 196632),
    ("triton_pointer", "128x128x32_s2_w64x32", 0.53, 128, 32768),
    ("triton_mma_sync", "128x128x64_s3_w64x32", 0.78, 128, 98328),
    ("triton_gluon", "128x256x64_s3_w64x64", 1.09, 168, 147480),
)

# Llama 3 8B: hidden 4096, intermediate 14336, 32 heads of 128 and 8 for k and v: 32 + 2 x 8 heads, 6144 columns.
# 70B: hidden 8192, intermediate 28672, 64 heads of 128 and 8 for k and v: 80 heads, 10240 columns.
PROJECTIONS = {
    "8B qkv": (6144, 4096),
    "8B o": (4096, 4096),
    "8B gate_up": (28672, 4096),
    "8B down": (4096, 14336),
    "70B qkv": (10240, 8192),
    "70B o": (8192, 8192),
    "70B gate_up": (57344, 8192),
    "70B down": (8192, 28672),
}
ROWS = (1, 16, 128, 1024, 8192)

Series = Sequence[tuple[str, str | None, float, int, int]]


def squares(series: Series = FULL, dtypes: Sequence[str] = ("bf16",)) -> Results:
    """The squares of every size; small ones are bound by the time of a launch."""
    made_up = results(shapes=SUITES["squares"], series=series, dtypes=dtypes)
    for case in made_up.cases:
        _bind_to_memory(case)
    return with_cases(made_up, made_up.cases)


def model(series: Series = FULL, projections: Sequence[str] = tuple(PROJECTIONS), rounds: int = 7) -> Results:
    """The projections of two models at every M: bound by memory where M is small."""
    cases = []
    for name in projections:
        N, K = PROJECTIONS[name]
        for M in ROWS:
            case = case_result(Shape(M, N, K), "bf16", series, rounds, seed=M + N)
            case.label, case.layout = name, "nt"
            _bind_to_memory(case)
            cases.append(case)
    return with_cases(results(shapes=()), cases)


def grid(sizes: Sequence[int] = (512, 1024, 2048, 4096), K: int = 4096, series: Series = SERIES) -> Results:
    """Every M with every N at one K."""
    return results(shapes=[Shape(M, N, K) for M in sizes for N in sizes], series=series)


def with_cases(made_up: Results, cases: list[CaseResult]) -> Results:
    """The same run with other cases, each timed after the one before, and the roofs of those."""
    begin = 0.0
    for case in cases:
        begin = _in_time(case, begin)
    return replace(made_up, cases=cases, roofs=roofs.collect(cases))


def _in_time(case: CaseResult, begin: float) -> float:
    """Sets when each sample began: everybody once a round, in random order; returns when the case ended."""
    generator = random.Random(case.flops)
    timings = [row.timing for row in case.rows if row.timing]
    now = begin + 1.5
    for place in range(max((len(timing.at_s) for timing in timings), default=0)):
        for timing in generator.sample(timings, len(timings)):
            timing.at_s[place] = round(now, 4)
            now += 0.04
    return now


def drifting(made_up: Results) -> Results:
    """The same run on a board that warms up, and is held back by its power limit in the last third."""
    cases = made_up.cases
    with_cases(made_up, cases)
    timings = [row.timing for case in cases for row in case.rows if row.timing]
    end = max(at for timing in timings for at in timing.at_s)
    for timing in timings:
        for place, at in enumerate(timing.at_s):
            share = at / end
            held = share > 0.67
            clock = 1980 - (15 * round((share - 0.67) * 40) + 90 if held else 0)
            timing.clocks.sm_mhz[place] = clock
            timing.clocks.power_w[place] = round(420 + 270 * min(1.0, 1.5 * share) + 6 * (place % 3), 1)
            timing.clocks.temperature_c[place] = round(38 + 30 * share)
            timing.clocks.throttle[place] = "sw_power_cap" if held else ""
            timing.samples_us[place] *= 1980 / clock
    return made_up


def _bind_to_memory(case: CaseResult) -> None:
    """Nothing is faster than its bytes at 4.1 TB/s, or than 6 microseconds."""
    generator = random.Random(case.flops)
    for row in case.rows:
        if row.role == "contestant" and row.timing:
            floor = max(case.compulsory_bytes / 4.1e6 * generator.uniform(1.05, 1.5), 6.0)
            row.timing.samples_us = [max(us, floor * (1 + us % 0.01)) for us in row.timing.samples_us]
