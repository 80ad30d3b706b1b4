"""Made-up measurements in the shape of a real run, for tests of results files and pictures. No figure here is real."""

import random
from collections.abc import Sequence

from bench_machine import environment

from hgemm.bench import roofs
from hgemm.bench.metrics import CEILING, CEILING_FP16, COPY, FRAGMENTS, L2, READ, SHARED
from hgemm.bench.schema import CaseResult, Check, Clocks, Kernel, Results, Role, Roof, Row, Run, Timing
from hgemm.bench.suites import Case, Shape

CEILING_TFLOPS = 640.0
COPY_GBS = 4100.0
READ_GBS = 4400.0
L2_GBS = 6700.0
SHARED_GBS = 33000.0

# (backend, config, share of the made-up ceiling at 4096^3, kernel's registers and shared memory)
SERIES = (
    ("torch", None, 1.13, 168, 215040),
    ("cublas", None, 1.125, 168, 215040),
    ("cublaslt", None, 1.14, 168, 215040),
    ("cuda_cp_async", "128x128x32_s2_w64x32", 0.44, 128, 32768),
    ("cuda_cp_async", "128x128x32_s3_w64x32", 0.51, 128, 49152),
    ("cuda_tma", "128x128x64_s3_w64x32", 0.655, 128, 98328),
    ("cuda_tma", "128x128x32_s3_w64x32", 0.575, 120, 49176),
    ("triton_pointer", "128x128x32_s3_w64x32", 0.62, 128, 49152),
    ("triton", "128x256x64_s3_w64x64", 1.12, 232, 147480),
)

SQUARES = (Shape(2048, 2048, 2048), Shape(4096, 4096, 4096), Shape(8192, 8192, 8192))
RAGGED = Shape(4000, 4104, 4072)


def timing(
    tera: float, flops: int, nbytes: int, rounds: int, generator: random.Random, noise: float = 0.004, sets: int = 2
) -> Timing:
    """Samples around ``tera`` TFLOPS (or, for no flops, around ``tera`` TB/s)."""
    samples = [
        (flops or nbytes) / (tera * (1 + generator.gauss(0, noise))) * 1e-6 for _ in range(rounds)
    ]  # microseconds
    return Timing(
        mode="rotating" if sets > 1 else "kernel",
        timer="graph",
        burst_ms=8.0,
        idle_ms=20.0,
        lead_in_bursts=0,
        calls=40,
        flops_per_call=flops,
        bytes_per_call=nbytes,
        operand_sets=sets,
        working_set_bytes=sets * nbytes,
        rounds=list(range(rounds)),
        at_s=[0.3 * index for index in range(rounds)],
        samples_us=samples,
        clocks=Clocks(
            sm_mhz=[1980 - 15 * (index % 2) for index in range(rounds)],
            memory_mhz=[3201] * rounds,
            power_w=[520.0 + index for index in range(rounds)],
            temperature_c=[52] * rounds,
            throttle=[""] * rounds,
        ),
    )


def with_reads(made_up: Results, gigabytes: float = READ_GBS) -> Results:
    """The run as it is where reads of device memory alone were measured too."""
    made_up.roofs.append(
        Roof(READ, "bandwidth", "GB/s", None, None, gigabytes, [gigabytes] * 7, 1980.0, "reads of 1,000,000,000 bytes")
    )
    return made_up


def with_fragments(made_up: Results, *tflops: float) -> Results:
    """The run as it is where mma.sync fed by ldmatrix was measured too, the rate of each warp tile."""
    for dtype in ("bf16", "fp16"):
        for name, value in zip(FRAGMENTS, tflops, strict=True):
            roof = Roof(name, "compute", "TFLOPS", dtype, "float32", value, [value] * 7, 1980.0, "fed by ldmatrix")
            made_up.roofs.append(roof)
    return made_up


def row(
    role: Role, backend: str, config: str | None, times: Timing, registers: int = 128, shared_bytes: int = 0
) -> Row:
    return Row(
        role=role,
        backend=backend,
        config=config,
        status="ok",
        check=None if role == "roof" else Check(0.31, True),
        kernels=[Kernel(f"{backend}_kernel", registers, 0, shared_bytes, 256, 1024)],
        timing=times,
    )


def roofs_of_the_run(dtype: str, rounds: int) -> list[Row]:
    """Those that only the first case, or the first in fp16, measures."""
    generator = random.Random(0)
    measured = [
        row("roof", L2, None, timing(L2_GBS / 1000, 0, 1 << 33, rounds, generator, 0.002, sets=1)),
        row("roof", SHARED, None, timing(SHARED_GBS / 1000, 0, 1 << 35, rounds, generator, 0.001, sets=1)),
    ]
    if dtype == "fp16":
        accumulating = timing(1.01 * CEILING_TFLOPS, 10**12, 0, rounds, generator, 0.001, sets=1)
        measured.append(row("roof", CEILING_FP16, None, accumulating))
    return measured


def case_result(
    shape: Shape, dtype: str, series: Sequence[tuple[str, str | None, float, int, int]], rounds: int, seed: int
) -> CaseResult:
    case = Case(shape, dtype)
    generator = random.Random(seed)
    size = (shape.M * shape.N * shape.K) ** (1 / 3)
    filling = min(1.0, 0.86 + 0.14 * (size / 4096) ** 2) * (0.97 if size > 6000 else 1.0)
    control = case.flops, case.compulsory_bytes
    rows = [
        row("roof", CEILING, None, timing(CEILING_TFLOPS, 10**12, 0, rounds, generator, 0.001, sets=1)),
        row("roof", COPY, None, timing(COPY_GBS / 1000, 0, 2 << 30, rounds, generator, 0.002, sets=1)),
        row("control", "torch", None, timing(720.0, *control, rounds, generator, sets=1)),
    ]
    for backend, config, share, registers, shared_bytes in series:
        speed = share * filling * CEILING_TFLOPS * generator.uniform(0.99, 1.01)
        times = timing(speed, case.flops, case.compulsory_bytes, rounds, generator)
        rows.append(row("contestant", backend, config, times, registers, shared_bytes))
    if seed == 0:
        rows += roofs_of_the_run(dtype, rounds)
    rows.append(Row("contestant", "cuda_wgmma", None, "unavailable", "needs sm_90a, found sm_120"))
    return CaseResult(
        M=shape.M,
        N=shape.N,
        K=shape.K,
        dtype=dtype,
        layout="nn",
        strides={"a": [shape.K, 1], "b": [shape.N, 1], "out": [shape.N, 1]},
        distribution="normal",
        seed=0,
        flops=case.flops,
        compulsory_bytes=case.compulsory_bytes,
        rows=rows,
    )


def results(
    shapes: Sequence[Shape] = (*SQUARES, RAGGED),
    dtypes: Sequence[str] = ("bf16",),
    series: Sequence[tuple[str, str | None, float, int, int]] = SERIES,
    rounds: int = 7,
    utc: str = "2026-01-31T12:00:00Z",
    gpu: str = "NVIDIA H200",
) -> Results:
    """A whole results file; every argument is one way in which files differ."""
    cases = [
        case_result(shape, dtype, series, rounds, seed=index) for dtype in dtypes for index, shape in enumerate(shapes)
    ]
    return Results(
        run=Run(
            utc=utc,
            seconds=93.0,
            complete=True,
            sources="0" * 64,
            revision=None,
            options={"mode": "rotating", "rounds": rounds, "sustained": False},
        ),
        env=environment(gpu),
        flags={"allow_bf16_reduced_precision_reduction": True},
        roofs=roofs.collect(cases),
        cases=cases,
    )
