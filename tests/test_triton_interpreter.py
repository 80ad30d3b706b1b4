"""The Triton kernels on CPU tensors, interpreted: right in both dtypes, and beside kernels that compile."""

import os
import subprocess
import sys
import threading
from pathlib import Path

import numpy
import pytest
import torch
import triton
import triton.language as tl

from hgemm.backends import get
from hgemm.cases import tile_of
from hgemm.conformance import Case, run_case
from hgemm.reference import exact_integers
from hgemm.triton_kernels import interpreter
from hgemm.triton_kernels.compile_ahead import compile_ahead
from hgemm.triton_kernels.configs import FAMILIES, MMA_SYNC, POINTER, TMA, Family
from hgemm.triton_kernels.specialized_configs import is_specialized

if triton.__version__.startswith("3.6.") and tuple(map(int, numpy.__version__.split(".")[:2])) >= (2, 4):
    # Only this known pair: a kernel that is broken makes the backend report itself unavailable too.
    pytest.skip(f"{get('triton').unavailable('cpu')}", allow_module_level=True)

DTYPES = (torch.float16, torch.bfloat16)
ROOT = Path(__file__).resolve().parents[1]
SMALL = {POINTER: "128x128x32_s2_w64x32", TMA: "64x64x64_s4_w32x32", MMA_SYNC: "128x128x32_s4_w64x32"}
INTERPRETED = [family for family in FAMILIES if family.interpreted]
# triton_mma_sync is the Python of triton, so that here only what is its own is tried: launches and configurations.
KERNELS = (POINTER, TMA)

# Multiples of 8 in N and K, for both: one row; less than a tile; one more than a tile; several tiles and steps of K.
ALIGNED = [(1, 8, 8), (7, 24, 40), (64, 64, 64), (65, 72, 72), (129, 136, 72), (130, 200, 136)]
# Any size, for masked loads.
ANY = [(1, 1, 1), (3, 1, 5), (7, 5, 3), (129, 65, 33), (65, 130, 97), (128, 127, 31)]
PRODUCTS = [(family, shape) for family in KERNELS for shape in ALIGNED] + [(POINTER, shape) for shape in ANY]

grouped_tile = interpreter.load("tile_order").grouped_tile


@pytest.fixture(params=KERNELS, ids=lambda family: family.name)
def family(request: pytest.FixtureRequest) -> Family:
    return request.param


@pytest.fixture(params=DTYPES, ids=lambda dtype: str(dtype).removeprefix("torch."))
def dtype(request: pytest.FixtureRequest) -> torch.dtype:
    return request.param


@pytest.mark.one_triton
@pytest.mark.parametrize("data", ["signs", "one-hot", "normal"])
@pytest.mark.parametrize(
    ("family", "shape"), PRODUCTS, ids=lambda value: getattr(value, "name", None) or "x".join(map(str, value))
)
def test_products_are_right_and_stay_inside_out(
    family: Family, dtype: torch.dtype, shape: tuple[int, int, int], data: str
) -> None:
    outcome = run_case(get(family.name), SMALL[family], dtype, "cpu", Case(*shape, data))
    assert outcome.refused is None
    assert outcome.faults == ()
    assert outcome.error_over_bound <= 1


# What differs from kernel to kernel: with another Triton these are all.
KINDS = (
    *((family.name, config) for family, config in SMALL.items()),
    (TMA.name, "128x256x64_s3_w64x64_persistent"),
    (TMA.name, "16x64x128_s5_w16x16"),
    (TMA.name, "64x64x64_s4_w32x32_split4"),
    (TMA.name, None),
)


@pytest.mark.parametrize(
    ("backend", "config"),
    [
        pytest.param(*pair, marks=[] if pair in KINDS else [pytest.mark.one_triton])
        for pair in [
            *((f.name, e.config.name) for f in INTERPRETED for e in f.configs if not is_specialized(e.config.name)),
            ("triton", None),
        ]
    ],
)
def test_every_configuration_computes_a_ragged_product(backend: str, config: str | None) -> None:
    rows = 35 if tile_of(config).tile_m < 64 else 131
    outcome = run_case(get(backend), config, torch.bfloat16, "cpu", Case(rows, 264, 104, "integers"))
    assert outcome.refused is None
    assert outcome.faults == ()


# Every kind of value that an fp32 sum can be: ordinary, halfway between two bf16 (1 + 2^-8 and 1 + 3 * 2^-8, made of
# factors that have 8 bits each), subnormal, beyond the largest fp16 and bf16, zero.
FACTORS = torch.tensor(
    [1.0, -1.0, 1.0078125, 1.9921875, 255.0, -3.0, 0.0, 1.5 * 2.0**-14, 2.0**-70, -(2.0**-66), 2.0**66, 1.25 * 2.0**61]
)


def test_sums_are_rounded_to_the_nearest_even_bit_for_bit(family: Family, dtype: torch.dtype) -> None:
    generator = torch.Generator().manual_seed(1)
    random = torch.randint(-(2**15), 2**15, (180,), generator=generator).to(torch.int16).view(dtype)
    finite = torch.cat((FACTORS.to(dtype).nan_to_num(), random[random.isfinite()]))[:160]
    a = torch.zeros(160, 8, dtype=dtype)
    b = torch.zeros(8, 160, dtype=dtype)
    a[:, 3], b[3] = finite, finite.flip(0)
    out = torch.full((160, 160), torch.nan, dtype=dtype)
    get(family.name).run(a, b, out, SMALL[family])
    exact = a[:, 3:4].double() * b[3:4].double()
    # The product of two values has at most 22 bits, so it is exact in fp32 wherever it is within fp32's normal range.
    expected = (exact.float() + 0.0).to(dtype)
    normal = (exact == 0) | (exact.abs() >= 2.0**-126)
    assert normal.float().mean() > 0.7
    assert torch.equal(out[normal], expected[normal])
    assert torch.equal(out.isinf(), expected.isinf())
    assert out.isinf().any()


def test_nan_and_infinity_reach_their_row_and_column_only(family: Family, dtype: torch.dtype) -> None:
    a, b, expected = exact_integers(70, 72, 72, dtype, "cpu", torch.Generator().manual_seed(2))
    a[5, 71], b[2, 66] = torch.nan, torch.inf
    a[:, 2] = 1
    out = torch.empty(70, 72, dtype=dtype)
    get(family.name).run(a, b, out, SMALL[family])
    touched = torch.zeros(70, 72, dtype=torch.bool)
    touched[5], touched[:, 66] = True, True
    assert out[5].isnan().all()
    assert (out[torch.arange(70) != 5, 66] == torch.inf).all()
    clean = (a.double().nan_to_num() @ b.double().nan_to_num(posinf=0)).to(dtype)
    assert torch.equal(out[~touched], clean[~touched])
    assert expected.isfinite().all()


@pytest.mark.parametrize("operand", ["a", "b", "out"])
def test_offsets_beyond_two_to_the_31_elements(family: Family, operand: str) -> None:
    # Rows 2^26 elements apart: row 32 starts at element 2^31. Only the pages that hold the rows are ever touched.
    a, b, expected = exact_integers(40, 40, 40, torch.float16, "cpu", torch.Generator().manual_seed(3))
    far = torch.empty(39 * 2**26 + 40, dtype=torch.float16).as_strided((40, 40), (2**26, 1))
    a = far.copy_(a) if operand == "a" else a
    b = far.copy_(b) if operand == "b" else b
    out = far if operand == "out" else torch.empty(40, 40, dtype=torch.float16)
    get(family.name).run(a, b, out, SMALL[family])
    assert torch.equal(out, expected)


def test_parameters_multiply_where_no_gradient_is_asked_for() -> None:
    a, b, expected = exact_integers(9, 16, 8, torch.bfloat16, "cpu", torch.Generator().manual_seed(4))
    weight = torch.nn.Parameter(b)
    out = torch.empty_like(expected)
    with torch.no_grad():
        get("triton").run(a, weight, out, None)
    assert torch.equal(out, expected)


@pytest.mark.parametrize("family", INTERPRETED, ids=lambda family: family.name)
def test_interpreted_and_compiled_kernels_share_a_process(family: Family) -> None:
    dot = tl.dot
    environment = os.environ.get("TRITON_INTERPRET")
    a, b, expected = exact_integers(66, 72, 72, torch.bfloat16, "cpu", torch.Generator().manual_seed(5))
    for _ in range(2):
        out = torch.empty_like(expected)
        get(family.name).run(a, b, out, SMALL[family])
        assert torch.equal(out, expected)
        assert not triton.knobs.runtime.interpret
        assert os.environ.get("TRITON_INTERPRET") == environment
        assert tl.dot is dot
        instruction = "mma.sync" if family is MMA_SYNC else "wgmma"
        assert instruction in compile_ahead(family, SMALL[family], torch.bfloat16, 90).ptx


def test_threads_interpret_while_another_compiles() -> None:
    products = [exact_integers(70, 72, 72, torch.bfloat16, "cpu", torch.Generator().manual_seed(n)) for n in range(4)]
    faults: list[str] = []

    def interpret(seed: int) -> None:
        a, b, expected = products[seed]
        for _ in range(3):
            out = torch.empty_like(expected)
            get("triton" if seed % 2 else "triton_pointer").run(a, b, out, None)
            if not torch.equal(out, expected):
                faults.append(f"thread {seed}: wrong product")

    def compile_kernels() -> None:
        for dtype in DTYPES:
            for family, instruction in ((TMA, "wgmma"), (MMA_SYNC, "mma.sync"), (TMA, "wgmma")):
                if instruction not in compile_ahead(family, SMALL[family], dtype, 90).ptx:
                    faults.append(f"{family.name}: compiled something else")

    def guarded(work, *arguments) -> None:
        try:
            work(*arguments)
        except Exception as error:
            faults.append(repr(error))

    threads = [threading.Thread(target=guarded, args=(interpret, seed)) for seed in range(4)]
    threads.append(threading.Thread(target=guarded, args=(compile_kernels,)))
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    assert not any(thread.is_alive() for thread in threads)
    assert faults == []


@pytest.mark.one_triton
def test_tiles_are_walked_in_groups_of_rows() -> None:
    # 5 x 3 tiles in groups of two rows, by hand: down two rows, then one column on; the last group has one row.
    expected = [
        *[(0, 0), (1, 0), (0, 1), (1, 1), (0, 2), (1, 2)],
        *[(2, 0), (3, 0), (2, 1), (3, 1), (2, 2), (3, 2)],
        *[(4, 0), (4, 1), (4, 2)],
    ]
    assert _tile_order(5, 3, 2) == expected
    for tiles_m, tiles_n in ((1, 1), (1, 7), (7, 1), (8, 3), (9, 4), (17, 5)):
        every = {(m, n) for m in range(tiles_m) for n in range(tiles_n)}
        order = _tile_order(tiles_m, tiles_n, 8)
        assert len(order) == len(every)
        assert set(order) == every


def _tile_order(tiles_m: int, tiles_n: int, group_m: int) -> list[tuple[int, int]]:
    """The tiles in the order of the programs, from the function that the kernels call."""
    with triton.knobs.runtime.scope():
        triton.knobs.runtime.interpret = True
        kernel = triton.jit(_record_tile)
    out = torch.full((tiles_m * tiles_n, 2), -1, dtype=torch.int32)
    kernel[(tiles_m * tiles_n,)](out, tiles_m, tiles_n, group_m)
    return [(m, n) for m, n in out.tolist()]


def _record_tile(out, tiles_m, tiles_n, group_m):
    program = tl.program_id(0)
    tile_m, tile_n = grouped_tile(program, tiles_m, tiles_n, group_m)
    tl.store(out + 2 * program, tile_m)
    tl.store(out + 2 * program + 1, tile_n)


UNDER_TRITON_INTERPRET = """
import torch
from hgemm.backends import get
from hgemm.reference import exact_integers
from hgemm.triton_kernels.compile_ahead import compile_ahead
from hgemm.triton_kernels.configs import TMA

a, b, expected = exact_integers(66, 72, 72, torch.bfloat16, "cpu", torch.Generator().manual_seed(0))
for name in ("triton_pointer", "triton", "triton_mma_sync"):
    out = torch.empty_like(expected)
    get(name).run(a, b, out, None)
    assert torch.equal(out, expected), name
try:
    compile_ahead(TMA, "64x64x64_s4_w32x32", torch.bfloat16, 90)
except RuntimeError as error:
    print(error)
"""


def test_with_triton_interpret_set_cpu_tensors_work_and_compiling_is_refused() -> None:
    answer = subprocess.run(
        [sys.executable, "-c", UNDER_TRITON_INTERPRET],
        env={**os.environ, "TRITON_INTERPRET": "1"},
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=120,
    )
    assert answer.returncode == 0, answer.stderr
    assert "TRITON_INTERPRET was set" in answer.stdout
