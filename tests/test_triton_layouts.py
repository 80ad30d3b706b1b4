"""The Triton kernels on every layout, stride and batch: exact where interpreted, the same instructions compiled."""

from __future__ import annotations

import re

import numpy
import pytest
import torch
import triton
from placements import BATCHES, FORMS, SHARINGS, placed, untouched
from test_triton_ahead_of_time import OLDEST, PUT_ASIDE, hold_their_registers

from hgemm.arrangement import arrange
from hgemm.backends import get
from hgemm.cuda_kernels.configs import LAYOUTS
from hgemm.devices import LIMITS
from hgemm.problem import Problem
from hgemm.triton_kernels.compile_ahead import Compiled, compile_ahead
from hgemm.triton_kernels.configs import MMA_SYNC, POINTER, TMA, Family

BY_TMA = ("dense", "padded")
FITS = [(POINTER, form) for form in FORMS] + [(TMA, form) for form in BY_TMA]
OUT_FORMS = ("n dense", "n padded", "t dense", "t padded")
# Every pair of a target and a layout; with another Triton every layout, the targets in turn.
TARGETS_AND_LAYOUTS = [
    pytest.param(target, layout, marks=[] if (row + column) % 2 == 0 else [pytest.mark.one_triton])
    for column, layout in enumerate(LAYOUTS)
    for row, target in enumerate((90, 120))
]


@pytest.fixture
def interpreter() -> None:
    if triton.__version__.startswith("3.6.") and tuple(map(int, numpy.__version__.split(".")[:2])) >= (2, 4):
        pytest.skip(str(get("triton").unavailable("cpu")))


def check(family: Family, config: str | None, shape: tuple[int, int, int], *placement: str) -> None:
    a, b, out, expected = placed(shape, torch.bfloat16, *placement)
    record = get(family.name)
    assert record.refuses(Problem.from_tensors(a, b, out)) is None
    record.run(a, b, out, config)
    assert torch.equal(out, expected), placement
    assert untouched(out), placement


@pytest.mark.one_triton
@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize(("family", "form"), FITS, ids=lambda value: getattr(value, "name", value))
def test_every_placement_is_exact(interpreter: None, family: Family, form: str, layout: str) -> None:
    # Both end within a tile in each extent; TMA asks for rows on 16 bytes.
    shape = (72, 80, 40) if form in BY_TMA else (67, 75, 37)
    for index, sharing in enumerate(SHARINGS):
        check(family, None, shape, layout, form, OUT_FORMS[index % 4], sharing)
    if family is POINTER:
        for out_form in ("n odd", "t strided"):
            check(family, None, shape, layout, form, out_form, "batch")


@pytest.mark.parametrize("layout", ["nt", "tn"])
def test_tiles_of_several_batches_do_not_mix(interpreter: None, layout: str) -> None:
    # Several tiles in each extent of each matrix; the persistent programs walk from one batch into the next.
    for family, config in (
        (POINTER, "128x128x32_s3_w64x32"),
        (TMA, "64x64x64_s4_w32x32"),
        (TMA, "128x256x64_s3_w64x64_persistent"),
        (MMA_SYNC, "128x256x64_s4_w64x64_persistent"),
    ):
        check(family, config, (136, 264, 72), layout, "dense", "n dense", "batch")


@pytest.mark.parametrize(("M", "N", "K"), [(1, 8, 5), (13, 8, 1), (8, 1, 13), (1, 1, 1), (3, 16, 35)])
def test_vectors_and_ragged_extents_with_odd_strides(interpreter: None, M: int, N: int, K: int) -> None:
    memory = [torch.full((64, 64), torch.nan).half() for _ in range(3)]
    generator = torch.Generator().manual_seed(0)
    a, b = memory[0][:M, :K], memory[1][:K, :N]
    for operand in (a, b):
        operand.copy_(torch.randint(-4, 5, operand.shape, generator=generator))
    out = memory[2][:M, :N] if N % 8 == 0 else memory[2].t()[:M, :N]
    expected = (a.double() @ b.double()).half()
    if 1 in (M, N, K):  # any stride is legal along an extent of 1
        a, b, out = (
            view.as_strided(view.shape, [77 if n == 1 else s for n, s in zip(view.shape, view.stride(), strict=True)])
            for view in (a, b, out)
        )
    problem = Problem.from_tensors(a, b, out)
    for name in ("triton_pointer", "triton"):
        if rule := get(name).refuses(problem):
            assert (name, (M, N, K)) == ("triton", (1, 1, 1)), rule
            continue
        get(name).run(a, b, out.fill_(torch.nan), None)
        assert torch.equal(out, expected), name
        assert untouched(out), name


@pytest.mark.one_triton
def test_the_numbers_of_an_arrangement() -> None:
    a, b, out = (torch.empty(shape).half() for shape in ((BATCHES, 16, 24), (32, 24), (BATCHES, 16, 32)))
    found = arrange(a.shape, a.stride(), b.t().shape, b.t().stride(), out.shape, out.stride())
    assert (found.swapped, found.a_layout, found.b_layout) == (False, "n", "t")
    assert (found.M, found.N, found.K, found.batches) == (16, 32, 24, BATCHES)
    assert (found.stride_a, found.stride_b, found.stride_c) == (24, 24, 32)
    assert (found.batch_a, found.batch_b, found.batch_c) == (16 * 24, 0, 16 * 32)
    assert (found.contiguous, found.alignment) == (True, 8)
    turned = arrange(b.shape, b.stride(), a.mT.shape, a.mT.stride(), out.mT.shape, out.mT.stride())
    assert turned == found._replace(swapped=True)
    odd = arrange((3, 5), (5, 1), (5, 8), (8, 1), (3, 8), (8, 1))
    assert (odd.contiguous, odd.alignment) == (True, 1)
    strided = arrange((8, 8), (16, 2), (8, 8), (8, 1), (8, 8), (8, 1))
    assert (strided.contiguous, strided.column_a, strided.alignment) == (False, 2, 1)
    single = arrange((1, 5), (77, 1), (5, 1), (1, 99), (1, 1), (3, 3))
    assert (single.stride_a, single.stride_b) == (8, 8)


def compiled(family: Family, config: str, layout: str, target: int, batched: bool) -> Compiled:
    made = compile_ahead(family, config, torch.bfloat16, target, layout=layout, batched=batched)
    assert made.shared_bytes == family.shared_bytes(config, target, layout)
    assert made.shared_bytes <= LIMITS[divmod(target, 10)].shared_bytes_per_block
    assert made.spill_loads <= (PUT_ASIDE.get(config, 0) if OLDEST else 0)
    hold_their_registers(made, config, target, layout)
    wgmma = target == 90 and family is not MMA_SYNC and family.find(config).config.tile_m >= 64
    assert ("wgmma" if wgmma else "mma.sync") in made.ptx
    return made


@pytest.mark.parametrize(("target", "layout"), TARGETS_AND_LAYOUTS)
def test_every_layout_is_loaded_by_tma(own_cache: None, target: int, layout: str) -> None:
    made = compiled(TMA, "128x128x64_s3_w64x32", layout, target, batched=layout == "nt")
    assert re.search(r"cp\.async\.bulk\.tensor\.2d\.shared::\w+\.global", made.ptx)
    assert not re.search(r"\bld\.global\b[^\n]*\.b16", made.ptx)
    if target == 90:  # a transposed tile is read by wgmma where it lies, not copied
        assert made.registers <= 96


@pytest.mark.parametrize(
    ("config", "layout"),
    [
        pytest.param(entry.config.name, layout, marks=[] if row == column else [pytest.mark.one_triton])
        for row, entry in enumerate(MMA_SYNC.configs)
        for column, layout in enumerate(LAYOUTS)
    ],
)
def test_mma_sync_on_sm_90_reads_every_layout_without_spills(own_cache: None, config: str, layout: str) -> None:
    made = compiled(MMA_SYNC, config, layout, 90, batched=False)
    assert re.search(r"cp\.async\.bulk\.tensor\.2d\.shared::\w+\.global", made.ptx)
    assert "ldmatrix" in made.ptx
    reads_behind_one_barrier(made.ptx, layout)


def reads_behind_one_barrier(ptx: str, layout: str) -> None:
    """In a step of K. Where both operands are column-major each is waited for, and a barrier is between."""
    words = re.findall(r"\b(?:bar\.sync|ldmatrix|mma\.sync)", ptx)
    order = "".join(word[0] for word in words)
    assert ("lbl" in order) <= (layout == "tt")


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("config", ["128x256x64_s3_w64x64", "128x128x64_s4_w64x32"])
def test_what_is_read_behind_a_barrier_leaves_registers_on_sm_120(own_cache: None, config: str, layout: str) -> None:
    made = compiled(TMA, config, layout, 120, batched=False)
    reads_behind_one_barrier(made.ptx, layout)


@pytest.mark.parametrize(("stages", "target"), [(3, 90), (4, 90), (3, 120), (4, 120)])
def test_two_column_major_operands_have_barriers_of_their_own(own_cache: None, stages: int, target: int) -> None:
    compiled(TMA, f"128x128x32_s{stages}_w64x32", "tt", target, batched=True)


# "nn" is what test_triton_ahead_of_time compiles.
@pytest.mark.parametrize(("target", "layout"), [case for case in TARGETS_AND_LAYOUTS if case.values[1] != "nn"])
def test_few_rows_are_multiplied_in_every_layout_without_spills(own_cache: None, target: int, layout: str) -> None:
    for config in ("16x32x256_s5_w16x8", "16x64x128_s5_w16x16_split4", "32x128x128_s3_w32x32"):
        compiled(TMA, config, layout, target, batched=layout == "tt")


@pytest.mark.parametrize(("target", "layout"), TARGETS_AND_LAYOUTS)
def test_every_layout_is_copied_16_bytes_at_a_time(own_cache: None, target: int, layout: str) -> None:
    made = compiled(POINTER, "128x128x32_s3_w64x32", layout, target, batched=layout == "nt")
    copies = re.findall(r"cp\.async\.(c[ag])\.shared\.global\s*\[[^]]*\]\s*,\s*\[[^]]*\]\s*,\s*(\w+)", made.ptx)
    assert {(kind, int(size, 0)) for kind, size in copies} == {("cg", 16)}


def test_persistent_batches_and_strided_elements_compile(own_cache: None) -> None:
    compile_ahead(TMA, "128x256x64_s3_w64x64_persistent", torch.bfloat16, 90, batched=True, layout="tn")
    wide = ("M", "stride_a", "column_b", "batch_c")
    made = compile_ahead(
        POINTER, "128x128x32_s2_w64x32", torch.bfloat16, 90, aligned=False, contiguous=False, batched=True, wide=wide
    )
    assert made.spill_loads == 0
