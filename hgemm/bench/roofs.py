"""Roofs: what the device can do at most, measured beside the contestants in the same rounds."""

from __future__ import annotations

import statistics
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Literal, Protocol

import torch

from hgemm.bench.machine import Machine
from hgemm.bench.metrics import CEILING, COPY, clock_mhz, gigabytes_per_second, speed, tflops, timed_rows
from hgemm.bench.schema import CaseResult, Roof, Timing

COPY_BYTES = 1 << 30
"""Of one buffer; a copy reads and writes as much. Many times any L2."""

_LAUNCH_SECONDS = 1e-3
_TRIAL_ITERATIONS = 1000

CUBLAS = ("torch", "cublas", "cublaslt")
"""The backends that end in cuBLAS; the best of them is a roof too."""


@dataclass(frozen=True)
class Yardstick:
    """A call that is timed like a contestant, and the work it does."""

    call: Callable[[int], None]
    flops: int
    bytes: int


class CeilingKernel(Protocol):
    """What is needed of ``hgemm.cuda_kernels.ceilings.MmaCeiling``."""

    def flops(self, iterations: int) -> int:
        """Floating-point operations of one launch."""

    def launch(self, iterations: int) -> None:
        """Enqueues on the current stream."""


MakeCeiling = Callable[[torch.dtype, torch.device], CeilingKernel]


def mma_ceiling(dtype: torch.dtype, device: torch.device) -> CeilingKernel:
    """The kernel that does nothing but mma.sync on registers; raises where it cannot be built or run."""
    from hgemm.cuda_kernels.ceilings import MmaCeiling

    kernel: CeilingKernel = MmaCeiling(dtype, device)
    return kernel


def ceiling(dtype: torch.dtype, machine: Machine, make: MakeCeiling) -> Yardstick:
    """Register-only mma.sync, in launches of about a millisecond."""
    kernel = make(dtype, machine.device)
    kernel.launch(_TRIAL_ITERATIONS)
    machine.synchronize()
    trial = machine.burst(lambda index: kernel.launch(_TRIAL_ITERATIONS), 1)
    try:
        iterations = max(1, round(_TRIAL_ITERATIONS * _LAUNCH_SECONDS / trial.run().seconds))
    finally:
        trial.close()
    return Yardstick(lambda index: kernel.launch(iterations), kernel.flops(iterations), 0)


def copy(machine: Machine) -> Yardstick:
    """Every word of one buffer read and, inverted, written to another.

    Each is as large as COPY_BYTES where a quarter of the free memory holds both. It is a kernel because the driver's
    own copy need not reach the memory's bandwidth.
    """
    words = min(COPY_BYTES, machine.free_bytes() // 8) // 4096 * 1024
    generator = torch.Generator(machine.device).manual_seed(0)
    source = torch.randint(-(2**31), 2**31, (words,), dtype=torch.int32, device=machine.device, generator=generator)
    target = torch.empty_like(source)
    return Yardstick(lambda index: void(torch.bitwise_not(source, out=target)), 0, 2 * 4 * words)


def void(_: object) -> None:
    """Drops a result that a call must not keep alive."""


def collect(cases: Iterable[CaseResult]) -> list[Roof]:
    """The roofs of a run, from the rows that measured them, dtype by dtype."""
    cases = list(cases)
    roofs = []
    for dtype in dict.fromkeys(case.dtype for case in cases):
        timings = [t for case in cases if case.dtype == dtype for t in _timings(case, CEILING)]
        samples = [value for timing in timings for value in tflops(timing).values()]
        if samples:
            note = "mma.sync m16n8k16 on registers, no memory traffic"
            roofs.append(_roof(CEILING, "compute", dtype, samples, timings, note))
        if best := _best_cublas([case for case in cases if case.dtype == dtype]):
            roofs.append(best)
    timings = [timing for case in cases for timing in _timings(case, COPY)]
    samples = [value for timing in timings for value in gigabytes_per_second(timing).values()]
    if samples:
        note = f"copy of {timings[0].bytes_per_call // 2:,} bytes in device memory, bytes read and written"
        roofs.append(_roof(COPY, "bandwidth", None, samples, timings, note))
    return roofs


def _timings(case: CaseResult, name: str) -> list[Timing]:
    return [row.timing for row in timed_rows(case, "roof") if row.backend == name and row.timing]


def _best_cublas(cases: list[CaseResult]) -> Roof | None:
    candidates = [(speed(row).median, case, row) for case in cases for row in timed_rows(case) if row.backend in CUBLAS]
    if not candidates:
        return None
    _, case, row = max(candidates, key=lambda candidate: candidate[0])
    assert row.timing is not None
    note = f"{row.backend} at {case.M} x {case.N} x {case.K}"
    return _roof("cublas", "compute", case.dtype, list(tflops(row.timing).values()), [row.timing], note)


def _roof(
    name: str,
    kind: Literal["compute", "bandwidth"],
    dtype: str | None,
    samples: list[float],
    timings: list[Timing],
    note: str,
) -> Roof:
    return Roof(
        name=name,
        kind=kind,
        unit="TFLOPS" if kind == "compute" else "GB/s",
        dtype=dtype,
        accumulator="float32" if kind == "compute" else None,
        value=_digits(statistics.median(samples)),
        samples=[_digits(sample) for sample in samples],
        clock_mhz=clock_mhz(timings),
        note=note,
    )


def _digits(value: float) -> float:
    """Six significant digits."""
    return float(f"{value:.6g}")
