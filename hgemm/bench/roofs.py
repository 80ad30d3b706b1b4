"""Roofs: what the device can do at most, measured beside the contestants in the same rounds."""

from __future__ import annotations

import statistics
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Literal, Protocol

import torch

from hgemm.bench.bursts import Call
from hgemm.bench.machine import Machine
from hgemm.bench.metrics import (
    CEILING,
    CEILING_FP16,
    COPY,
    FRAGMENTS,
    L2,
    LAUNCH,
    READ,
    SHARED,
    clock_mhz,
    gigabytes_per_second,
    speed,
    tflops,
    timed_rows,
)
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

    call: Call
    flops: int
    bytes: int
    working_set: int = 0
    """Bytes of different memory that a roof's call touches; a contestant's are those of its operands."""


@dataclass(frozen=True)
class Limit:
    """What is to be measured: the name of the row that holds it, and the dtype of the operands."""

    name: str
    dtype: torch.dtype


class CeilingKernel(Protocol):
    """What is needed of ``hgemm.cuda_kernels.ceilings.Ceiling``."""

    @property
    def data_bytes(self) -> int:
        """Bytes of different memory that it reads."""

    def work(self, iterations: int) -> int:
        """Floating-point operations, or bytes, of one launch."""

    def launch(self, iterations: int) -> None:
        """Enqueues on the current stream."""


MakeCeiling = Callable[[Limit, torch.device], CeilingKernel]


def ceiling_kernel(limit: Limit, device: torch.device) -> CeilingKernel:
    """The kernel that does nothing but what ``limit`` names; raises where it cannot be built or run."""
    from hgemm.cuda_kernels import ceilings

    if limit.name == L2:
        return ceilings.l2_ceiling(device)
    if limit.name == READ:
        return ceilings.read_ceiling(device)
    if limit.name == SHARED:
        return ceilings.shared_ceiling(device)
    if limit.name in FRAGMENTS:
        return ceilings.fragment_ceiling(limit.dtype, device, limit.name.split()[1])
    accumulator = torch.float16 if limit.name == CEILING_FP16 else torch.float32
    return ceilings.mma_ceiling(limit.dtype, device, accumulator)


def names(dtype: str, finished: Sequence[CaseResult]) -> list[str]:
    """The rows of roofs in a case that follows the ``finished`` ones.

    What is paired by round is timed in every case: mma.sync, the copy and the reads, of which shares are taken, and the
    launch of nothing. The others are the run's, and are timed in its first case, or its first in a dtype, alone.
    """
    of_dtype = [*FRAGMENTS, *([CEILING_FP16] if dtype == "fp16" else [])]
    done = {(case.dtype, row.backend) for case in finished for row in case.rows if row.role == "roof"}
    known = {name for _, name in done}
    return [
        *(CEILING, COPY, READ, LAUNCH),
        *(name for name in of_dtype if (dtype, name) not in done),
        *(name for name in (L2, SHARED) if name not in known),
    ]


def ceiling(limit: Limit, machine: Machine, make: MakeCeiling) -> Yardstick:
    """One limit's kernel, in launches of about a millisecond."""
    kernel = make(limit, machine.device)
    kernel.launch(_TRIAL_ITERATIONS)
    machine.synchronize()
    trial = machine.burst(lambda index: kernel.launch(_TRIAL_ITERATIONS), 1)
    try:
        iterations = max(1, round(_TRIAL_ITERATIONS * _LAUNCH_SECONDS / trial.run().seconds))
    finally:
        trial.close()
    work = kernel.work(iterations)
    flops, read = (0, work) if limit.name in (L2, SHARED) else (work, 0)
    return Yardstick(lambda index: kernel.launch(iterations), flops, read, kernel.data_bytes)


def copy(machine: Machine) -> Yardstick:
    """Every word of one buffer read and, inverted, written to another.

    Each is as large as COPY_BYTES where a quarter of the free memory holds both. It is a kernel because the driver's
    own copy need not reach the memory's bandwidth.
    """
    words = min(COPY_BYTES, machine.free_bytes() // 8) // 4096 * 1024
    generator = torch.Generator(machine.device).manual_seed(0)
    source = torch.randint(-(2**31), 2**31, (words,), dtype=torch.int32, device=machine.device, generator=generator)
    target = torch.empty_like(source)
    moved = 2 * 4 * words
    return Yardstick(lambda index: torch.bitwise_not(source, out=target), 0, moved, moved)


def read(limit: Limit, machine: Machine, make: MakeCeiling) -> Yardstick:
    """Every byte of a buffer of many times the L2 read once: what a product of few rows does to its weights."""
    kernel = make(limit, machine.device)
    iterations = kernel.data_bytes // kernel.work(1)
    return Yardstick(lambda index: kernel.launch(iterations), 0, kernel.work(iterations), kernel.data_bytes)


def collect(cases: Iterable[CaseResult]) -> list[Roof]:
    """The roofs of a run, from the rows that measured them: of each dtype, then of the device."""
    cases = list(cases)
    roofs: list[Roof | None] = []
    for dtype in dict.fromkeys(case.dtype for case in cases):
        of_dtype = [case for case in cases if case.dtype == dtype]
        for row, accumulator in ((CEILING, "float32"), (CEILING_FP16, "float16")):
            note = f"mma.sync m16n8k16 on registers, {accumulator} accumulation, no memory traffic"
            roofs.append(_compute(CEILING, _timings(of_dtype, row), dtype, accumulator, note))
        for name in FRAGMENTS:
            note = f"mma.sync m16n8k16 on what ldmatrix loads, {name.split()[1]} a warp, no copies to shared memory"
            roofs.append(_compute(name, _timings(of_dtype, name), dtype, "float32", note))
        roofs.append(_best_cublas(of_dtype))
    copies = _timings(cases, COPY)
    moved = copies[0].bytes_per_call // 2 if copies else 0
    roofs.append(_bandwidth(COPY, copies, f"copy of {moved:,} bytes in device memory, bytes read and written"))
    reads = _timings(cases, READ)
    read_bytes = reads[0].bytes_per_call if reads else 0
    roofs.append(_bandwidth(READ, reads, f"reads of {read_bytes:,} bytes in device memory, each of them once"))
    l2 = _timings(cases, L2)
    held = l2[0].working_set_bytes if l2 else 0
    roofs.append(_bandwidth(L2, l2, f"all multiprocessors read the same {held:,} bytes again and again, past L1"))
    note = "all multiprocessors read 16-byte vectors without bank conflicts, bytes of all of them"
    roofs.append(_bandwidth(SHARED, _timings(cases, SHARED), note))
    return [roof for roof in roofs if roof is not None]


def _timings(cases: Iterable[CaseResult], name: str) -> list[Timing]:
    return [row.timing for case in cases for row in timed_rows(case, "roof") if row.backend == name and row.timing]


def _best_cublas(cases: list[CaseResult]) -> Roof | None:
    candidates = [(speed(row).median, case, row) for case in cases for row in timed_rows(case) if row.backend in CUBLAS]
    if not candidates:
        return None
    _, case, row = max(candidates, key=lambda candidate: candidate[0])
    assert row.timing is not None
    note = f"{row.backend} at {case.M} x {case.N} x {case.K}"
    return _compute("cublas", [row.timing], case.dtype, "float32", note)


def _compute(name: str, timings: list[Timing], dtype: str, accumulator: str, note: str) -> Roof | None:
    samples = [value for timing in timings for value in tflops(timing).values()]
    return _roof(name, "compute", dtype, accumulator, samples, timings, note)


def _bandwidth(name: str, timings: list[Timing], note: str) -> Roof | None:
    samples = [value for timing in timings for value in gigabytes_per_second(timing).values()]
    return _roof(name, "bandwidth", None, None, samples, timings, note)


def _roof(
    name: str,
    kind: Literal["compute", "bandwidth"],
    dtype: str | None,
    accumulator: str | None,
    samples: list[float],
    timings: list[Timing],
    note: str,
) -> Roof | None:
    """A roof, or None if nothing was measured."""
    if not samples:
        return None
    return Roof(
        name=name,
        kind=kind,
        unit="TFLOPS" if kind == "compute" else "GB/s",
        dtype=dtype,
        accumulator=accumulator,
        value=_digits(statistics.median(samples)),
        samples=[_digits(sample) for sample in samples],
        clock_mhz=clock_mhz(timings),
        note=note,
    )


def _digits(value: float) -> float:
    """Six significant digits."""
    return float(f"{value:.6g}")
