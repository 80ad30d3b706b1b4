"""Products whose K is split into parts: the parts hold all of K, their sums are added in order and rounded once."""

from __future__ import annotations

import numpy
import pytest
import torch
import triton
import triton.language as tl
from placements import placed, untouched

from hgemm.backends import get
from hgemm.conformance import Case, run_case
from hgemm.reference import exact_integers
from hgemm.triton_kernels import interpreter
from hgemm.triton_kernels.configs import TMA

if triton.__version__.startswith("3.6.") and tuple(map(int, numpy.__version__.split(".")[:2])) >= (2, 4):
    pytest.skip(f"{get('triton').unavailable('cpu')}", allow_module_level=True)

DTYPES = (torch.float16, torch.bfloat16)
SKINNY = "16x64x128_s5_w16x16_split4"

part_of = interpreter.load("split_k").part_of
store_part = interpreter.load("split_k").store_part


def product(a: torch.Tensor, b: torch.Tensor, config: str) -> torch.Tensor:
    out = torch.full((*a.shape[:-1], b.shape[-1]), torch.nan, dtype=a.dtype)
    get("triton").run(a, b, out, config)
    return out


# Steps of 128 and four parts: K within one step, two of them, a part that is shorter, one that has none, many steps.
@pytest.mark.one_triton
@pytest.mark.parametrize("K", [1, 8, 200, 128 * 5, 128 * 7 - 8, 128 * 8, 128 * 13 + 8])
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_every_step_of_k_is_in_one_part(dtype: torch.dtype, K: int) -> None:
    rows = -(-K // 8) * 8  # TMA wants rows of whole 16 bytes
    a, b, expected = exact_integers(17, 72, K, dtype, "cpu", torch.Generator().manual_seed(K))
    a = torch.full((17, rows), torch.nan, dtype=dtype)[:, :K].copy_(a)
    assert torch.equal(product(a, b, SKINNY), expected)


@pytest.mark.parametrize("parts", [1, 2, 4, 8])
def test_parts_are_equal_but_for_the_last(parts: int) -> None:
    with triton.knobs.runtime.scope():
        triton.knobs.runtime.interpret = True
        kernel = triton.jit(_record_part)
    for steps in range(1, 34):
        out = torch.full((parts, 2), -1, dtype=torch.int32)
        kernel[(parts,)](out, steps, parts)
        found = [step for first, count in out.tolist() for step in range(first, first + count)]
        assert found == list(range(steps))
        assert out[:, 1].max() == -(-steps // parts)


def _record_part(out, steps, PARTS: tl.constexpr):
    part = tl.program_id(0)
    first, count = part_of(steps, part, PARTS)
    tl.store(out + 2 * part, first)
    tl.store(out + 2 * part + 1, count)


def test_a_part_is_stored_in_its_matrix_of_the_workspace_alone() -> None:
    with triton.knobs.runtime.scope():
        triton.knobs.runtime.interpret = True
        kernel = triton.jit(_store_parts)
    memory = torch.full((3 * 5 * 24 + 1024,), torch.nan)
    kernel[(3,)](memory, 5, 24, 16, 32)
    expected = torch.arange(3.0)[:, None].expand(3, 5 * 24).flatten()
    assert torch.equal(memory[: 3 * 5 * 24], expected)
    assert memory[3 * 5 * 24 :].isnan().all()


def _store_parts(sums, M, N, BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr):
    matrix = 2 - tl.program_id(0)  # so that what spills into the next matrix is seen there
    tile = tl.full((BLOCK_M, BLOCK_N), 0, tl.float32) + matrix
    store_part(tile, sums, matrix, M, N, 0, 0, BLOCK_M, BLOCK_N)


@pytest.mark.parametrize(
    "config",
    [
        pytest.param(entry.config.name, marks=[] if entry.config.name == SKINNY else [pytest.mark.one_triton])
        for entry in TMA.configs
        if entry.config.parts > 1
    ],
)
def test_every_split_configuration_sums_several_steps_a_part(config: str) -> None:
    tile = TMA.find(config).config
    K = tile.tile_k * (2 * tile.parts - 1) + 8
    outcome = run_case(
        get("triton"), config, torch.bfloat16, "cpu", Case(tile.tile_m // 2, tile.tile_n + 8, K, "signs")
    )
    assert outcome.refused is None
    assert outcome.faults == ()


@pytest.mark.one_triton
@pytest.mark.parametrize("data", ["normal", "cancelling", "limits", "nan"])
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_sums_stay_fp32_until_they_are_rounded_once(dtype: torch.dtype, data: str) -> None:
    outcome = run_case(get("triton"), SKINNY, dtype, "cpu", Case(9, 72, 1032, data))
    assert outcome.refused is None
    assert outcome.faults == ()
    assert outcome.error_over_bound <= 1


def test_the_sums_of_parts_are_added_in_their_order() -> None:
    # The parts' sums are 1, 2^24, -2^24 and 1: in fp32 (1 + 2^24) - 2^24 + 1 = 1; other orders give 0 or 2.
    a = torch.zeros(3, 512, dtype=torch.float16)
    b = torch.zeros(512, 8, dtype=torch.float16)
    for step, (left, right) in enumerate(((1.0, 1.0), (4096.0, 4096.0), (4096.0, -4096.0), (1.0, 1.0))):
        a[:, 128 * step], b[128 * step] = left, right
    assert torch.equal(product(a, b, SKINNY), torch.full((3, 8), 1.0, dtype=torch.float16))


def test_a_row_does_not_depend_on_the_others_nor_on_the_batch() -> None:
    generator = torch.Generator().manual_seed(6)
    a = torch.randn(20, 1032, generator=generator).bfloat16()
    b = torch.randn(1032, 64, generator=generator).bfloat16()
    whole = product(a, b, SKINNY)
    assert torch.equal(whole, product(a, b, SKINNY))
    order = torch.randperm(20, generator=generator)
    assert torch.equal(product(a[order], b, SKINNY), whole[order])
    batched = product(torch.stack((a.flip(0), a)), b, SKINNY)
    assert torch.equal(batched, torch.stack((whole.flip(0), whole)))


def test_nan_reaches_its_row_and_column_only() -> None:
    a, b, expected = exact_integers(20, 72, 520, torch.bfloat16, "cpu", torch.Generator().manual_seed(7))
    a[3, 519], b[0, 66] = torch.nan, torch.nan
    out = product(a, b, SKINNY)
    touched = torch.zeros(20, 72, dtype=torch.bool)
    touched[3], touched[:, 66] = True, True
    assert torch.equal(out.isnan(), touched)
    assert torch.equal(out[~touched], expected[~touched])


@pytest.mark.one_triton
@pytest.mark.parametrize(
    ("layout", "sharing", "out_form"),
    [
        ("nn", "none", "n padded"),
        ("nt", "shared b", "n padded"),
        ("tn", "shared a", "t dense"),
        ("nt", "batch", "n dense"),
        ("tt", "expanded b", "t padded"),
    ],
)
def test_every_placement_is_exact(layout: str, sharing: str, out_form: str) -> None:
    # Two tiles in each extent; K ends within the third of four parts.
    form = "padded" if out_form.endswith("padded") else "dense"
    a, b, out, expected = placed((24, 72, 328), torch.bfloat16, layout, form, out_form, sharing)
    get("triton").run(a, b, out, SKINNY)
    assert torch.equal(out, expected)
    assert untouched(out)


def test_offsets_in_out_beyond_two_to_the_31_elements() -> None:
    a, b, expected = exact_integers(40, 40, 520, torch.float16, "cpu", torch.Generator().manual_seed(8))
    out = torch.empty(39 * 2**26 + 40, dtype=torch.float16).as_strided(
        (40, 40), (2**26, 1)
    )  # only its pages are touched
    get("triton").run(a, b, out, SKINNY)
    assert torch.equal(out, expected)
