"""The oracle against answers computed by hand or in exact rational arithmetic."""

from __future__ import annotations

import math
from fractions import Fraction

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from hgemm import reference
from hgemm.reference import EXACT_LIMIT, bound, error_over_bound, exact_integers, product_fp32, product_fp64

DTYPES = [torch.float16, torch.bfloat16]
INF = math.inf
NAN = math.nan


def half(rows: list[list[float]]) -> Tensor:
    return torch.tensor(rows, dtype=torch.float16)


def brain(rows: list[list[float]]) -> Tensor:
    return torch.tensor(rows, dtype=torch.bfloat16)


def generator(seed: int = 0) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def test_a_product_that_no_half_holds() -> None:
    a, b = half([[2048, 1], [0.5, -3]]), half([[1, 65504], [1, 0.25]])
    expected = [[2049, 2048 * 65504 + 0.25], [-2.5, 32752 - 0.75]]
    assert product_fp64(a, b).dtype == torch.float64
    assert product_fp64(a, b).tolist() == expected


def by_definition(a: Tensor, b: Tensor, dtype: torch.dtype) -> list[list[Fraction]]:
    """The bound of correctness, term by term, in rational arithmetic."""
    u, u_out, half_subnormal = {
        torch.float16: (Fraction(1, 2**23), Fraction(1, 2**11), Fraction(1, 2**25)),
        torch.bfloat16: (Fraction(1, 2**23), Fraction(1, 2**8), Fraction(1, 2**134)),
    }[dtype]
    K = a.shape[1]
    g = K * u / (1 - K * u)
    rows = []
    for i in range(a.shape[0]):
        row = []
        for j in range(b.shape[1]):
            terms = [Fraction(float(a[i, k])) * Fraction(float(b[k, j])) for k in range(K)]
            exact, magnitude = abs(sum(terms)), sum(map(abs, terms))
            row.append(u_out * exact + (1 + u_out) * g * magnitude + half_subnormal + K * Fraction(1, 2**126))
        rows.append(row)
    return rows


@pytest.mark.parametrize("dtype", DTYPES)
def test_the_bound_is_its_formula(dtype: torch.dtype) -> None:
    a = torch.randn(3, 40, generator=generator()).to(dtype)
    b = torch.randn(40, 2, generator=generator(1)).to(dtype)
    computed = bound(a, b, product_fp64(a, b), dtype)
    for i, row in enumerate(by_definition(a, b, dtype)):
        for j, expected in enumerate(row):
            assert float(computed[i, j]) == pytest.approx(float(expected), rel=1e-12)


def test_the_bound_of_one_times_one() -> None:
    one = half([[1]])
    assert float(bound(one, one, product_fp64(one, one), torch.float16)) == pytest.approx(
        2**-11 + (1 + 2**-11) * 2**-23 / (1 - 2**-23) + 2**-25, rel=1e-13
    )
    assert float(bound(0 * one, one, 0 * one.double(), torch.float16)) == pytest.approx(2**-25, rel=1e-13)


def test_the_bound_has_a_largest_k() -> None:
    long = torch.zeros(1, 1, dtype=torch.float16).expand(1, 2**23)
    with pytest.raises(ValueError, match="K below 2\\^23, found K = 8388608"):
        bound(long, long.t(), torch.zeros(1, 1).double(), torch.float16)


@pytest.mark.parametrize(
    ("dtype", "wrong"), [(torch.float16, 1 + 2**-10), (torch.bfloat16, 1 + 2**-7), (torch.float16, 1 - 2**-10)]
)
def test_one_unit_in_the_last_place_is_too_much_for_one_term(dtype: torch.dtype, wrong: float) -> None:
    one = torch.ones(1, 1, dtype=dtype)
    assert error_over_bound(one, one, one) == 0
    ratio = error_over_bound(one, one, torch.tensor([[wrong]], dtype=dtype))
    assert ratio == pytest.approx(2, rel=1e-3)


def test_rounded_partial_sums_are_an_error_where_they_are_not_declared() -> None:
    a = torch.tensor([[1.0, 256.0, 256.0]]).bfloat16()
    b = torch.tensor([[1.0], [1.0], [-1.0]]).bfloat16()
    lost = torch.zeros(1, 1).bfloat16()  # 257 has no place in 8 bits and becomes 256, and 256 - 256 is 0, not 1
    assert float(a[:, :2].double() @ b[:2].double()) == 257
    assert error_over_bound(a, b, lost) > 100
    assert error_over_bound(a, b, lost, partial_sums_rounded=True) == pytest.approx(
        1 / (2**-8 * (1 + 2 * 513)), rel=1e-3
    )
    assert error_over_bound(a, b, torch.full((1, 1), 8.0).bfloat16(), partial_sums_rounded=True) > 1


@settings(max_examples=40, deadline=None)
@given(seed=st.integers(0, 10**6), K=st.integers(2, 300), dtype=st.sampled_from(DTYPES), parts=st.integers(2, 6))
def test_rounded_partial_sums_are_within_their_bound(seed: int, K: int, dtype: torch.dtype, parts: int) -> None:
    a = torch.randn(2, K, generator=generator(seed)).to(dtype)
    b = torch.randn(K, 3, generator=generator(seed + 1)).to(dtype)
    partial = [(x.float() @ y.float()).to(dtype) for x, y in zip(a.chunk(parts, 1), b.chunk(parts), strict=True)]
    product = torch.stack([p.float() for p in partial]).sum(0).to(dtype)
    assert error_over_bound(a, b, product, partial_sums_rounded=True) <= 1


@settings(max_examples=40, deadline=None)
@given(seed=st.integers(0, 10**6), K=st.integers(1, 300), dtype=st.sampled_from(DTYPES), positive=st.booleans())
def test_fp32_sums_in_any_order_are_within_the_bound(seed: int, K: int, dtype: torch.dtype, positive: bool) -> None:
    a = torch.randn(2, K, generator=generator(seed)).to(dtype)
    b = torch.randn(K, 3, generator=generator(seed + 1)).to(dtype)
    if positive:
        a, b = a.abs(), b.abs()
    order = torch.randperm(K, generator=generator(seed)).tolist()
    rounded = torch.zeros(2, 3)
    truncated = torch.zeros(2, 3)
    for k in order:
        term = a[:, k : k + 1].float() * b[k : k + 1].float()
        rounded = rounded + term
        truncated = towards_zero(truncated.double() + term.double())
    assert error_over_bound(a, b, rounded.to(dtype)) <= 1
    assert error_over_bound(a, b, truncated.to(dtype)) <= 1


def towards_zero(x: Tensor) -> Tensor:
    """fp64 to fp32 by dropping bits, as a tensor core may."""
    nearest = x.float()
    return torch.where(nearest.double().abs() > x.abs(), nearest.nextafter(torch.zeros_like(nearest)), nearest)


@pytest.mark.parametrize("dtype", DTYPES)
def test_sums_in_half_precision_are_not(dtype: torch.dtype) -> None:
    K = 512
    a = torch.rand(4, K, generator=generator()).to(dtype)
    b = torch.rand(K, 4, generator=generator(1)).to(dtype)
    c = torch.zeros(4, 4, dtype=dtype)
    for k in range(K):
        c = (c.float() + a[:, k : k + 1].float() * b[k : k + 1].float()).to(dtype)
    assert error_over_bound(a, b, c) > 1


def test_a_term_too_few_is_seen_while_k_is_small() -> None:
    a, b = torch.rand(4, 64, generator=generator()).half() + 0.5, torch.rand(64, 4, generator=generator(1)).half() + 0.5
    assert error_over_bound(a, b, product_fp64(a, b).half()) <= 1
    assert error_over_bound(a, b, product_fp64(a[:, :-1], b[:-1]).half()) > 1


@pytest.mark.parametrize(
    ("a", "c", "right"),
    [
        # Against b = [[1], [1]]: the sum of a row of a.
        (half([[1, 1]]), half([[NAN]]), False),
        (half([[1, 1]]), half([[INF]]), False),
        (half([[NAN, 1]]), half([[NAN]]), True),
        (half([[NAN, 1]]), half([[1]]), False),
        (half([[NAN, 1]]), half([[INF]]), False),
        (half([[INF, 1]]), half([[INF]]), True),
        (half([[INF, 1]]), half([[-INF]]), False),
        (half([[INF, 1]]), half([[65504]]), False),
        (half([[INF, 1]]), half([[NAN]]), False),
        (half([[-INF, 1]]), half([[-INF]]), True),
        (half([[INF, -INF]]), half([[NAN]]), True),
        (half([[INF, -INF]]), half([[INF]]), False),
        # 65504 is the largest fp16; from 65520 on, half a unit above, a value rounds to infinity.
        (half([[65504, 0]]), half([[65504]]), True),
        (half([[65504, 0]]), half([[INF]]), True),  # 16 below the edge, and the bound is 32
        (half([[65504, 16]]), half([[INF]]), True),
        (half([[65504, 15]]), half([[65504]]), True),
        (half([[65504, 65504]]), half([[INF]]), True),
        (half([[65504, 65504]]), half([[65504]]), False),
        (half([[-65504, -65504]]), half([[-INF]]), True),
        (half([[-65504, -65504]]), half([[INF]]), False),
        (half([[65504, -64]]), half([[INF]]), False),
        (half([[32768, 16384]]), half([[INF]]), False),
        # Subnormals: multiples of 2^-24.
        (half([[2**-24, 0]]), half([[2**-24]]), True),
        (half([[2**-24, 0]]), half([[0]]), False),
        (half([[2**-24, 2**-24]]), half([[3 * 2**-24]]), False),
        # bf16 ends where fp32 does. What the accumulator cannot hold may come out as anything.
        (brain([[3.38e38, -3.38e38]]), brain([[NAN]]), True),
        (brain([[3e38, 3e38]]), brain([[INF]]), True),
        (brain([[1e38, 1e38]]), brain([[2e38]]), True),
        (brain([[1e38, 1e38]]), brain([[INF]]), False),
        (brain([[1e38, 1e38]]), brain([[NAN]]), False),
    ],
)
def test_nan_infinity_and_the_ends_of_the_range(a: Tensor, c: Tensor, right: bool) -> None:
    b = torch.ones(2, 1, dtype=a.dtype)
    ratio = error_over_bound(a, b, c)
    assert (ratio <= 1) == right, ratio
    assert not math.isnan(ratio)


def test_a_small_product_may_vanish_below_half_a_subnormal() -> None:
    a, b = half([[2**-13]]), half([[2**-12]])  # 2^-25, a tie between 0 and 2^-24
    assert error_over_bound(a, b, half([[0]])) <= 1
    assert error_over_bound(a, b, half([[2**-24]])) <= 1
    assert error_over_bound(a, b, half([[2 * 2**-24]])) > 1


def test_an_accumulator_may_flush_what_is_below_its_normal_range() -> None:
    a, b = brain([[2.0**-60]]), brain([[2.0**-67]])  # 2^-127: subnormal in fp32, and a value of bf16
    assert error_over_bound(a, b, brain([[2.0**-127]])) == 0
    assert error_over_bound(a, b, brain([[0]])) <= 1
    assert error_over_bound(a, b, brain([[2.0**-125]])) > 1


def test_infinity_counts_up_to_the_value_from_which_on_it_is_right() -> None:
    ratio = error_over_bound(half([[65000, 0]]), half([[1], [1]]), half([[INF]]))
    held = 64992  # the fp16 next to 65000
    assert ratio == pytest.approx((65520 - held) / (held / 2048), rel=1e-2)


def test_one_nan_is_found_wherever_it_is() -> None:
    a, b = torch.randn(5, 8, generator=generator()).half(), torch.randn(8, 7, generator=generator(1)).half()
    right = product_fp64(a, b).half()
    assert error_over_bound(a, b, right) <= 1
    for place in ((0, 0), (4, 6), (2, 3)):
        c = right.clone()
        c[place] = NAN
        assert error_over_bound(a, b, c) == INF


def test_rows_are_the_rows_asked_for() -> None:
    a, b = torch.randn(6, 8, generator=generator()).half(), torch.randn(8, 3, generator=generator(1)).half()
    c = product_fp64(a, b).half()
    c[4] += 1
    assert error_over_bound(a, b, c) > 1
    assert error_over_bound(a, b, c, torch.tensor([0, 1, 2, 3, 5])) <= 1
    assert error_over_bound(a, b, c, torch.tensor([5, 4])) > 1


@pytest.mark.parametrize("columns_at_a_time", [1, 2, 5])
def test_wide_products_are_judged_piece_by_piece(monkeypatch: pytest.MonkeyPatch, columns_at_a_time: int) -> None:
    a, b = torch.randn(3, 8, generator=generator()).half(), torch.randn(8, 11, generator=generator(1)).half()
    c = product_fp64(a, b).half()
    whole = error_over_bound(a, b, c)
    monkeypatch.setattr(reference, "_CHUNK", 8 * columns_at_a_time)
    assert error_over_bound(a, b, c) == whole
    for column in range(11):
        wrong = c.clone()
        wrong[2, column] += 1
        assert error_over_bound(a, b, wrong) > 1


@settings(max_examples=40, deadline=None)
@given(seed=st.integers(0, 10**6), K=st.integers(1, 300), dtype=st.sampled_from(DTYPES))
def test_held_against_fp32_right_is_right_and_a_term_too_many_is_seen(seed: int, K: int, dtype: torch.dtype) -> None:
    a = torch.randn(5, K, generator=generator(seed)).to(dtype)
    b = torch.randn(K, 4, generator=generator(seed + 1)).to(dtype)
    right = product_fp64(a, b)
    assert error_over_bound(a, b, right.to(dtype), in_fp32=True) <= 1
    for column in range(4):
        wrong = right.clone()
        wrong[3, column] += 0.1 + 0.1 * wrong[3, column].abs()
        assert error_over_bound(a, b, wrong.to(dtype), in_fp32=True) > 1


def test_held_against_fp32_nothing_is_asked_beyond_its_range() -> None:
    a, b = brain([[3e38, 3e38]]), torch.ones(2, 1).bfloat16()
    for value in (INF, NAN, 0):
        assert error_over_bound(a, b, brain([[value]]), in_fp32=True) == 0
    assert error_over_bound(brain([[NAN, 1]]), b, brain([[1]]), in_fp32=True) == INF


def test_float32_products_leave_the_flag_for_tf32_as_it_was() -> None:
    flags = torch.backends.cuda.matmul
    before = flags.fp32_precision
    try:
        for wanted in ("tf32", "ieee"):
            flags.fp32_precision = wanted
            assert torch.equal(product_fp32(half([[3]]), half([[5]])), torch.tensor([[15.0]]))
            assert flags.fp32_precision == wanted
    finally:
        flags.fp32_precision = before


def test_nothing_is_right() -> None:
    assert error_over_bound(torch.zeros(0, 8).half(), torch.zeros(8, 4).half(), torch.zeros(0, 4).half()) == 0
    assert error_over_bound(torch.zeros(4, 8).half(), torch.zeros(8, 0).half(), torch.zeros(4, 0).half()) == 0
    assert error_over_bound(torch.zeros(4, 0).half(), torch.zeros(0, 4).half(), torch.zeros(4, 4).half()) == 0


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("largest", [1, 2, 4])
def test_integers_have_one_right_product(dtype: torch.dtype, largest: int) -> None:
    a, b, c = exact_integers(9, 7, 33, dtype, "cpu", generator(), largest)
    assert a.dtype == b.dtype == c.dtype == dtype
    values = {int(x) for x in torch.cat([a.flatten(), b.flatten()]).tolist()}
    assert values == set(range(-largest, largest + 1))
    for i in range(9):
        for j in range(7):
            exact = sum(int(a[i, k]) * int(b[k, j]) for k in range(33))
            assert float(c[i, j]) == float(torch.tensor(float(exact), dtype=torch.float64).to(dtype))


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("K", [8, 4096, 65536])
def test_signs_never_need_rounding(dtype: torch.dtype, K: int) -> None:
    a, b, c = exact_integers(32, 32, K, dtype, "cpu", generator(), largest=1)
    exact = a.double() @ b.double()
    assert exact.abs().max() <= EXACT_LIMIT[dtype]
    assert torch.equal(exact, c.double())
    assert exact.abs().max() >= (4 if K == 8 else 16), "and still have something to get wrong"


def test_integers_follow_their_generator() -> None:
    first = exact_integers(4, 4, 4, torch.float16, "cpu", generator(7))
    again = exact_integers(4, 4, 4, torch.float16, "cpu", generator(7))
    other = exact_integers(4, 4, 4, torch.float16, "cpu", generator(8))
    assert all(torch.equal(x, y) for x, y in zip(first, again, strict=True))
    assert not torch.equal(first[0], other[0])


def test_integers_that_fp32_could_not_add_exactly_are_refused() -> None:
    exact_integers(1, 1, 2**19, torch.float16, "cpu", generator())
    with pytest.raises(ValueError, match="largest = 4, K = 524289"):
        exact_integers(1, 1, 2**19 + 1, torch.float16, "cpu", generator())
    assert exact_integers(2, 3, 0, torch.float16, "cpu", generator())[2].eq(0).all()
