"""The conformance suite's kinds of data, layouts and relations: what each was made to find, it finds."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch import Tensor

import hgemm
from hgemm.arena import Placement, arena, bits
from hgemm.backends import Properties
from hgemm.cases import Case
from hgemm.conformance import run_case
from hgemm.data import DATA, values
from hgemm.reference import mean_ulps, worst_ulps

Kernel = Callable[[Tensor, Tensor, Tensor, "str | None"], None]
EVERY_CLAIM = Properties(deterministic=True, row_invariant=True)
CASES = [
    *(f"9x24x40:{data}" for data in DATA),
    *(f"1x1x1:{data}" for data in DATA),
    "9x24x40:normal:nt",
    "9x24x40:one-hot:tn:out-t:gap1:offset3",
    "9x24x40:integers:tt:batch3:contiguous",
    "9x24x40:ties:batch2:shared:contiguous:step2",
    "1x24x40:normal:batch3:shared",
    "40x33x24:positive:tt:out-t",
    "9x64x24:identity:nt:batch3",
]


def right(a: Tensor, b: Tensor, out: Tensor, config: str | None) -> None:
    """Exact, rounded once."""
    out.copy_(a.double() @ b.double())


def in_fp32(a: Tensor, b: Tensor, out: Tensor, config: str | None) -> None:
    """Summed as a kernel does, in one order whatever M is."""
    total = torch.zeros(out.shape)
    for k in range(a.shape[-1]):
        total += a[..., k : k + 1].float() * b[..., k : k + 1, :].float()
    out.copy_(total)


def faults(kernel: Kernel, case: str, dtype: torch.dtype = torch.float16, properties: Properties = EVERY_CLAIM) -> str:
    record = hgemm.register_backend("subject", kernel, properties=properties)
    outcome = run_case(record, None, dtype, "cpu", Case.parse(case))
    assert outcome.refused is None
    return "; ".join(outcome.faults)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
@pytest.mark.parametrize("case", CASES)
def test_a_right_backend_has_no_fault(case: str, dtype: torch.dtype) -> None:
    assert Case.parse(case).name == case
    for kernel in (right, in_fp32):
        assert faults(kernel, case, dtype) == ""


def cut_off(a: Tensor, b: Tensor, out: Tensor, config: str | None) -> None:
    exact = a.double() @ b.double()
    out.copy_(exact)
    too_far = out.double().abs() > exact.abs()
    out.view(torch.int16)[too_far] -= 1


def without_the_last_bit_of_a(a: Tensor, b: Tensor, out: Tensor, config: str | None) -> None:
    right((a.contiguous().view(torch.int16) & ~1).view(a.dtype), b, out, config)


def half_away(a: Tensor, b: Tensor, out: Tensor, config: str | None) -> None:
    """Rounds a tie away from zero."""
    exact = a.double() @ b.double()
    out.copy_(exact * (1 + 2.0**-20))


def saturates(a: Tensor, b: Tensor, out: Tensor, config: str | None) -> None:
    largest = torch.finfo(out.dtype).max
    out.copy_((a.double() @ b.double()).clamp(-largest, largest))


def overflows_early(a: Tensor, b: Tensor, out: Tensor, config: str | None) -> None:
    exact = a.double() @ b.double()
    out.copy_(
        torch.where(
            exact.abs() >= torch.finfo(out.dtype).max, torch.copysign(torch.full_like(exact, torch.inf), exact), exact
        )
    )


def flushes_subnormals(a: Tensor, b: Tensor, out: Tensor, config: str | None) -> None:
    tiny = torch.finfo(a.dtype).tiny
    out.copy_(torch.where(a.abs() < tiny, 0.0, a.double()) @ b.double())


def loses_the_sign_of_zero(a: Tensor, b: Tensor, out: Tensor, config: str | None) -> None:
    right(a, b, out, config)
    out[out == 0] = 0.0


def nan_in_the_next_row_too(a: Tensor, b: Tensor, out: Tensor, config: str | None) -> None:
    exact = a.double() @ b.double()
    out.copy_(torch.where(exact.roll(1, 0).isnan(), torch.nan, exact))


def inf_in_the_next_column_too(a: Tensor, b: Tensor, out: Tensor, config: str | None) -> None:
    exact = a.double() @ b.double()
    out.copy_(torch.where((~exact.roll(1, 1).isfinite()).all(0), torch.inf, exact))


def no_nan(a: Tensor, b: Tensor, out: Tensor, config: str | None) -> None:
    right(a.nan_to_num(0.0), b, out, config)


def first_matrix_only(a: Tensor, b: Tensor, out: Tensor, config: str | None) -> None:
    right(a[:1], b[:1], out, config)


def takes_b_for_row_major(a: Tensor, b: Tensor, out: Tensor, config: str | None) -> None:
    right(a, b.as_strided(b.shape, (b.shape[1], 1)), out, config)


def takes_out_for_row_major(a: Tensor, b: Tensor, out: Tensor, config: str | None) -> None:
    right(a, b, out.as_strided(out.shape, (out.shape[1], 1)), config)


def ignores_the_offset(a: Tensor, b: Tensor, out: Tensor, config: str | None) -> None:
    right(a.as_strided(a.shape, a.stride(), a.storage_offset() & -8), b, out, config)


def ignores_the_step(a: Tensor, b: Tensor, out: Tensor, config: str | None) -> None:
    right(a.as_strided(a.shape, (a.stride(0), 1)), b, out, config)


def stores_whole_vectors(a: Tensor, b: Tensor, out: Tensor, config: str | None) -> None:
    columns = -(-out.shape[1] // 8) * 8
    right(a, torch.nn.functional.pad(b, (0, columns - b.shape[1])), out.as_strided((9, columns), out.stride()), config)


@pytest.mark.parametrize(
    ("kernel", "case", "found"),
    [
        (cut_off, "40x33x24:positive", "units in the last place in the mean"),
        (without_the_last_bit_of_a, "9x24x40:identity", "elements wrong"),
        (half_away, "9x24x40:ties", "elements wrong"),
        (saturates, "9x24x40:limits", "elements wrong"),
        (overflows_early, "9x24x40:limits", "elements wrong"),
        (flushes_subnormals, "9x24x40:subnormal", "elements wrong"),
        (loses_the_sign_of_zero, "9x24x40:zeros", "out[0, 0] is 0, should be -0"),
        (nan_in_the_next_row_too, "9x24x40:nan", "error is inf times its bound"),
        (inf_in_the_next_column_too, "9x24x40:inf", "error is inf times its bound"),
        (no_nan, "9x24x40:nan", "error is inf times its bound"),
        (first_matrix_only, "9x24x40:integers:batch3", "elements wrong"),
        (first_matrix_only, "9x24x40:one-hot:batch3", "out[1, "),
        (first_matrix_only, "9x24x40:normal:batch3:shared", "times its bound"),
        (takes_b_for_row_major, "9x24x40:one-hot:nt:contiguous", "elements wrong"),
        (takes_out_for_row_major, "9x24x40:one-hot:out-t:contiguous", "elements wrong"),
        (ignores_the_offset, "9x24x40:one-hot:offset3", "NaN in out"),
        (ignores_the_step, "9x24x40:one-hot:step2", "NaN in out"),
        (stores_whole_vectors, "9x21x40:normal:gap3", "wrote 27 elements outside of out"),
    ],
)
def test_a_wrong_backend_is_found_out(kernel: Kernel, case: str, found: str) -> None:
    assert found in faults(kernel, case)


def by_place(a: Tensor, b: Tensor, out: Tensor, config: str | None) -> None:
    """The bits of the second row are others than those of the same row elsewhere."""
    right(a, b, out, config)
    if len(out) > 1:
        out.view(torch.int16)[1] ^= 1


def by_number_of_rows(a: Tensor, b: Tensor, out: Tensor, config: str | None) -> None:
    right(a, b, out, config)
    if len(out) == 1:
        out.view(torch.int16)[0, 0] ^= 1


def by_memory(a: Tensor, b: Tensor, out: Tensor, config: str | None) -> None:
    right(a, b, out, config)
    if a.is_contiguous():
        out.view(torch.int16)[0, 0] ^= 1


def by_size(a: Tensor, b: Tensor, out: Tensor, config: str | None) -> None:
    right(a, b, out, config)
    if float(a.abs().max()) > 4.5:
        out.view(torch.int16)[0, 0] ^= 1


@pytest.mark.parametrize(
    ("kernel", "found"),
    [
        (by_place, "rows in another order gave other bits"),
        (by_number_of_rows, "the last row alone gave other bits"),
        (by_memory, "elsewhere in memory gave other bits"),
        (by_size, "twice an operand did not give twice the product"),
    ],
)
def test_relations_hold_what_a_backend_declares(kernel: Kernel, found: str) -> None:
    assert found in faults(kernel, "9x24x40:normal")
    undeclared = faults(kernel, "9x24x40:normal", properties=Properties(deterministic=True))
    assert "other bits" not in undeclared
    assert "twice" not in undeclared


def test_units_in_the_last_place() -> None:
    one = torch.ones(1, 1).half()
    exact = torch.tensor([[1.0, 2.0, 1024.0]]).half()
    found = torch.tensor([[1 + 2.0**-10, 2.0 - 2.0**-10, 1027.0]]).half()
    assert worst_ulps(one, exact, found) == 3.0
    assert mean_ulps(one, exact, found) == pytest.approx((1 - 0.5 + 3) / 3)
    assert worst_ulps(one, torch.tensor([[torch.nan]]).half(), one) == 0.0
    smallest = torch.tensor([[2.0**-24]]).half()
    assert worst_ulps(one, 3 * smallest, smallest) == 2.0


@pytest.mark.parametrize("data", DATA)
@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_data_are_what_they_are_called(data: str, dtype: torch.dtype) -> None:
    a, b, expected = values(data, 9, 24, 40, dtype, "cpu")
    product = a.double() @ b.double()
    assert expected is None or torch.equal(expected, product.to(dtype))
    finfo = torch.finfo(dtype)
    holds = {
        "positive": a.ge(0).all() & b.ge(0).all(),
        "identity": (a.double()[:, -24:] == product).all(),
        "cancelling": product.abs().max() < 1e-9,
        "scaled": a.abs().amax(1).max() > 20 * a.abs().amax(1).min(),
        "subnormal": (a != 0).any() & (a.abs() < finfo.tiny).all(),
        "ties": product.abs().unique().numel() == 4,
        "limits": product.to(dtype).isinf().any() & (product.to(dtype).abs() == finfo.max).any(),
        "zeros": (product.to(dtype) == 0).all() & (product != 0).any() & a.signbit().any(),
        "nan": (product.isnan().sum(1) > 0).sum() == 1,
        "inf": (product.isfinite().sum(1) > 0).sum() == 8,
    }
    assert holds.get(data, torch.tensor(True))


def test_an_arena_has_its_view_where_it_was_asked_for() -> None:
    whole = torch.arange(24.0).half().reshape(2, 3, 4)
    for transposed in (False, True):
        placement = Placement(transposed, gap=3, step=2, offset=5)
        made = arena((2, 3, 4), torch.float16, "cpu", placement, whole)
        assert torch.equal(made.view, whole)
        stored, length = (4, 3) if transposed else (3, 4)
        row = length * 2 + 3
        strides = (stored * row, 2, row) if transposed else (stored * row, row, 2)
        assert made.view.stride() == strides
        assert made.view.storage_offset() % 8 == 5
        assert int(made.memory.isnan().sum()) == made.memory.numel() - 24 == int(made.outside.sum())
        made.memory[0] = 1
        made.view[0, 0, 0] = 7
        assert (made.trespassed(), made.changed()) == (1, 2)
    repeated = arena((3, 2, 2), torch.float16, "cpu", Placement(repeated=True), whole[:1, :2, :2].expand(3, 2, 2))
    assert repeated.view.stride() == (0, 2, 1)
    assert bits(torch.tensor([-0.0]).half()).item() == -(2**15)
