"""Which roofs a run measures, in which of its cases, and what its results file says of them."""

from pathlib import Path

import pytest
import torch
from bench_machine import BASE_SECONDS, FakeCeiling, FakeMachine, backend, product, verify

from hgemm.bench.measure import Bench, Outcome
from hgemm.bench.metrics import CEILING, CEILING_FP16, COPY, FRAGMENTS, L2, LAUNCH, READ, SHARED
from hgemm.bench.plan import DutyCycle, Plan
from hgemm.bench.results import read, write
from hgemm.bench.roofs import Limit, ceiling_kernel
from hgemm.bench.suites import Shape, cases
from hgemm.cuda_kernels import ceilings

SHAPES = (Shape(24, 16, 40), Shape(8, 8, 8))


def run(dtypes: tuple[str, ...], make=None) -> tuple[Outcome, list[Limit]]:
    machine = FakeMachine()
    asked: list[Limit] = []

    def make_ceiling(limit: Limit, device: torch.device) -> FakeCeiling:
        asked.append(limit)
        return make(limit) if make else FakeCeiling(machine)

    plan = Plan(cases(SHAPES, dtypes), ("*",), duty=DutyCycle(2.0, 1.0), rounds=3)
    backends = [backend("torch", product(machine, 1e-4))]
    bench = Bench(plan, machine, backends, verify, make_ceiling=make_ceiling, control_size=16)
    return bench.run(), asked


def roof_rows(outcome: Outcome) -> list[list[str]]:
    return [[row.backend for row in case.rows if row.role == "roof"] for case in outcome.results.cases]


def test_what_belongs_to_the_run_is_timed_in_its_first_case_alone() -> None:
    """And what depends on the dtype in the first case of each."""
    outcome, asked = run(("bf16", "fp16"))
    of_fragments = {(limit.name, limit.dtype) for limit in asked if limit.name in FRAGMENTS}
    assert of_fragments == {(name, dtype) for name in FRAGMENTS for dtype in (torch.bfloat16, torch.float16)}
    assert [case.dtype for case in outcome.results.cases] in (["bf16", "fp16"] * 2, ["bf16"] * 2 + ["fp16"] * 2)
    seen: set[str] = set()
    for number, (case, names) in enumerate(zip(outcome.results.cases, roof_rows(outcome), strict=True)):
        expected = {CEILING, COPY, READ, LAUNCH}
        if number == 0:
            expected |= {L2, SHARED}
        if case.dtype not in seen:
            expected |= {*FRAGMENTS, *([CEILING_FP16] if case.dtype == "fp16" else [])}
        seen.add(case.dtype)
        assert set(names) == expected
        assert len(names) == len(expected)
        for row in case.rows:
            assert row.timing is not None
            assert row.timing.rounds == [0, 1, 2]


def test_a_run_in_fp16_alone_has_all_of_them_in_its_first_case() -> None:
    outcome, asked = run(("fp16",))
    assert set(roof_rows(outcome)[0]) == {CEILING, CEILING_FP16, *FRAGMENTS, COPY, READ, LAUNCH, L2, SHARED}
    assert set(roof_rows(outcome)[1]) == {CEILING, COPY, READ, LAUNCH}
    # Each kernel is made once.
    assert sorted(limit.name for limit in asked) == sorted([CEILING, CEILING_FP16, *FRAGMENTS, READ, L2, SHARED])
    assert {limit.dtype for limit in asked} == {torch.float16}


@pytest.mark.parametrize(("dtype", "tag"), [(torch.float16, "f16"), (torch.bfloat16, "bf16")])
def test_a_row_s_name_names_its_kernel(dtype: torch.dtype, tag: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ceilings, "Ceiling", lambda *arguments: arguments)
    made = [ceiling_kernel(Limit(name, dtype), torch.device("cpu")) for name in (CEILING, *FRAGMENTS)]
    names = [f"mma_{tag}", f"ldmatrix_64x64_{tag}", f"ldmatrix_96x64_{tag}"]
    assert made == [(name, torch.device("cpu"), dtype) for name in names]
    assert set(names) <= set(ceilings.KERNELS)


def test_a_roof_that_cannot_be_measured_is_not_tried_again() -> None:
    def no_l2(limit: Limit) -> FakeCeiling:
        if limit.name == L2:
            raise RuntimeError("no nvcc: install the toolkit")
        return FakeCeiling(FakeMachine())

    outcome, asked = run(("bf16",), no_l2)
    (row,) = [row for case in outcome.results.cases for row in case.rows if row.backend == L2]
    assert (row.status, row.reason) == ("failed", "RuntimeError: no nvcc: install the toolkit")
    assert [limit.name for limit in asked].count(L2) == 1
    assert L2 not in {roof.name for roof in outcome.results.roofs}
    assert SHARED in {roof.name for roof in outcome.results.roofs}


def test_a_launch_of_the_reads_takes_every_byte_once() -> None:
    outcome, asked = run(("bf16", "fp16"))
    assert [limit.name for limit in asked].count(READ) == 1  # the dtype is none of its business
    timings = [row.timing for case in outcome.results.cases for row in case.rows if row.backend == READ]
    assert len(timings) == 4  # and it is timed in every case, as the copy is
    for timing in timings:
        assert timing is not None
        assert (timing.flops_per_call, timing.bytes_per_call, timing.working_set_bytes) == (0, 4 * 10**9, 4 * 10**9)
        # Four iterations of 1e9 bytes in 1e-6 s each, and what the machine itself takes.
        assert timing.samples_us == [round(1e6 * (BASE_SECONDS + 4e-6), 1)] * 3
    (roof,) = [roof for roof in outcome.results.roofs if roof.name == READ]
    assert len(roof.samples) == 12
    assert abs(roof.value / (4e9 / (BASE_SECONDS + 4e-6) * 1e-9) - 1) < 1e-5


def test_where_no_kernel_can_be_built_there_are_the_roofs_that_need_none() -> None:
    def none(limit: Limit) -> FakeCeiling:
        raise RuntimeError("no nvcc: install the toolkit")

    outcome, asked = run(("bf16",), none)
    assert {roof.name for roof in outcome.results.roofs} == {"cublas", COPY}
    for case in outcome.results.cases:
        (row,) = [row for row in case.rows if row.backend == READ]
        assert (row.status, row.reason, row.timing) == ("failed", "RuntimeError: no nvcc: install the toolkit", None)
    assert [limit.name for limit in asked].count(READ) == 1


def test_each_roof_is_stored_with_accumulator_clock_and_how_it_was_measured(tmp_path: Path) -> None:
    outcome, _ = run(("bf16", "fp16"))
    write(outcome.results, tmp_path / "run.json")
    stored = read(tmp_path / "run.json").roofs
    assert [(roof.name, roof.dtype, roof.accumulator, roof.unit) for roof in stored] == [
        ("mma.sync", "bf16", "float32", "TFLOPS"),
        ("ldmatrix+mma.sync 64x64", "bf16", "float32", "TFLOPS"),
        ("ldmatrix+mma.sync 96x64", "bf16", "float32", "TFLOPS"),
        ("cublas", "bf16", "float32", "TFLOPS"),
        ("mma.sync", "fp16", "float32", "TFLOPS"),
        ("mma.sync", "fp16", "float16", "TFLOPS"),
        ("ldmatrix+mma.sync 64x64", "fp16", "float32", "TFLOPS"),
        ("ldmatrix+mma.sync 96x64", "fp16", "float32", "TFLOPS"),
        ("cublas", "fp16", "float32", "TFLOPS"),
        ("copy", None, None, "GB/s"),
        ("read", None, None, "GB/s"),
        ("l2", None, None, "GB/s"),
        ("shared", None, None, "GB/s"),
    ]
    assert {roof.clock_mhz for roof in stored} == {1830}
    assert [len(roof.samples) for roof in stored if roof.name in FRAGMENTS] == [3] * 4  # of its own dtype's case
    notes = {(roof.name, roof.accumulator): roof.note for roof in stored if roof.dtype != "bf16"}
    assert "registers, float16 accumulation" in notes["mma.sync", "float16"]
    assert "registers, float32 accumulation" in notes["mma.sync", "float32"]
    assert "on what ldmatrix loads, 96x64 a warp" in notes["ldmatrix+mma.sync 96x64", "float32"]
    assert notes["read", None] == "reads of 4,000,000,000 bytes in device memory, each of them once"
    assert "the same 4,000,000,000 bytes again and again, past L1" in notes["l2", None]
    assert "without bank conflicts" in notes["shared", None]


def test_bandwidths_count_bytes_and_rates_count_operations() -> None:
    outcome, _ = run(("fp16",))
    rows = {row.backend: row.timing for row in outcome.results.cases[0].rows if row.role == "roof"}
    for name in (L2, SHARED):
        timing = rows[name]
        assert timing is not None
        # Iterations of 1e9 bytes in 1e-6 s, and what the machine itself takes: about a millisecond a launch.
        iterations = timing.bytes_per_call // 10**9
        assert timing.samples_us == [round(1e6 * (BASE_SECONDS + 1e-6 * iterations), 1)] * 3
        assert 0.8e3 < timing.samples_us[0] < 1.2e3
        assert (timing.flops_per_call, timing.working_set_bytes, timing.mode) == (0, 4 * 10**9, "kernel")
    for name in (CEILING, CEILING_FP16, *FRAGMENTS):
        timing = rows[name]
        assert timing is not None
        assert timing.bytes_per_call == 0
        assert timing.flops_per_call >= 10**9
    roofs = {(roof.name, roof.accumulator): roof for roof in outcome.results.roofs}
    assert 0.8e6 < roofs["l2", None].value < 1e6  # 1e15 bytes a second less the machine's share, in GB/s
    assert len(roofs["l2", None].samples) == 3
    assert len(roofs["mma.sync", "float32"].samples) == 6
    assert len(roofs["mma.sync", "float16"].samples) == 3
