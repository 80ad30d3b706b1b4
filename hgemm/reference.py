"""The oracle: products in fp64, bounds on the error of an fp32-accumulating kernel, and inputs with exact answers.

Nothing here shares code with the kernels. Operands are fp16 or bf16 matrices ``a[M, K]`` and ``b[K, N]``, of any
strides.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import torch
from torch import Tensor

# Unit of the accumulator: tensor cores may drop the bits below fp32's last place instead of rounding them, 2^-23.
ACCUMULATOR_UNIT = 2.0**-23

# Half a unit in the last place, relative: the error of one rounding to nearest.
OUTPUT_UNIT = {torch.float16: 2.0**-11, torch.bfloat16: 2.0**-8}

# Half of the smallest subnormal: the error of one rounding to nearest where the output is subnormal.
OUTPUT_TINY = {torch.float16: 2.0**-25, torch.bfloat16: 2.0**-134}

# Magnitudes from here on round to infinity: the largest finite value and half a unit in its last place.
OVERFLOW = {torch.float16: 65520.0, torch.bfloat16: 2.0**128 - 2.0**119}

# Every integer up to here is a value of the dtype.
EXACT_LIMIT = {torch.float16: 2048, torch.bfloat16: 256}

_ACCUMULATOR_MAX = torch.finfo(torch.float32).max
_ACCUMULATOR_TINY = torch.finfo(torch.float32).tiny

# Elements of b, and of c, that are held in fp64 at a time: 128 MiB of it, and as much again for their magnitudes.
_CHUNK = 2**24


def product_fp64(a: Tensor, b: Tensor) -> Tensor:
    """``a @ b`` in float64. Products of 16-bit floats are exact there; sums are good to K 2^-53 relative to |a||b|."""
    return a.double() @ b.double()


def product_fp32(a: Tensor, b: Tensor) -> Tensor:
    """``a @ b`` as torch sums it in float32, with tf32 switched off meanwhile, for the whole process: quick on GPUs
    that are slow in float64, and off by no more than the sum of any kernel here (``bound``)."""
    with _no_tf32():
        return a.float() @ b.float()


@contextmanager
def _no_tf32() -> Iterator[None]:
    flags = torch.backends.cuda.matmul
    before = flags.fp32_precision
    flags.fp32_precision = "ieee"
    try:
        yield
    finally:
        flags.fp32_precision = before


# A library that splits K rounds each partial sum once and, if it adds them up in memory, what they add up to once more.
PARTIAL_SUM_ROUNDINGS = 2


def bound(
    a: Tensor,
    b: Tensor,
    reference: Tensor,
    dtype: torch.dtype,
    *,
    partial_sums_rounded: bool = False,
    in_fp32: bool = False,
) -> Tensor:
    """How far a right result may lie from ``reference = product_fp64(a, b)``, element by element, in float64.

    With u the accumulator's unit, K terms summed in any order and each of the K steps off by at most u relative to what
    it adds up, the sum S in the accumulator satisfies (Higham, Accuracy and Stability of Numerical Algorithms, ch. 3)

        |S - C| <= g (|A||B|),   g = K u / (1 - K u).

    One rounding to ``dtype``, of unit u_out, moves S by at most u_out |S| <= u_out (|C| + g |A||B|). Together

        |C^ - C| <= u_out |C| + (1 + u_out) g (|A||B|) + tiny,

    where tiny is half the smallest subnormal of ``dtype`` plus K times the smallest normal of the accumulator, which
    may flush what is smaller. Products of two 16-bit floats are exact in fp32. Infinite where |A||B| passes the
    accumulator's range: there nothing can be asked.

    With ``partial_sums_rounded``, as cuBLAS may with the flags that torch starts with, the sums of parts of K are
    rounded to ``dtype`` before they are added up: PARTIAL_SUM_ROUNDINGS times u_out (1 + g) |A||B| more, since the
    magnitudes of the parts add up to no more than that.

    ``in_fp32`` says that ``reference`` is product_fp32: a sum in float32 itself, as |A||B| is then, so that g counts
    three times.

    Raises ValueError for K of 2^23 and more, where the formula says nothing.
    """
    K = a.shape[1]
    if K * ACCUMULATOR_UNIT >= 1:
        raise ValueError(f"the bound needs K below 2^23, found K = {K}")
    growth = K * ACCUMULATOR_UNIT / (1 - K * ACCUMULATOR_UNIT)
    if in_fp32:
        magnitude = product_fp32(a.abs(), b.abs()).double()
        growth *= 3
    else:
        magnitude = product_fp64(a.abs(), b.abs())
    unit = OUTPUT_UNIT[dtype]
    tiny = OUTPUT_TINY[dtype] + K * _ACCUMULATOR_TINY
    limit = unit * reference.abs() + (1 + unit) * growth * magnitude + tiny
    if partial_sums_rounded:
        limit += PARTIAL_SUM_ROUNDINGS * unit * (1 + growth) * magnitude
    return torch.where(magnitude * (1 + growth) > _ACCUMULATOR_MAX, torch.inf, limit)


def error_over_bound(
    a: Tensor,
    b: Tensor,
    c: Tensor,
    rows: Tensor | None = None,
    *,
    partial_sums_rounded: bool = False,
    in_fp32: bool = False,
) -> float:
    """The largest |c - a b| / bound over the elements of ``c[M, N]``, or of the rows of c that ``rows`` lists. With
    ``in_fp32`` the product it is held against is that of float32, the bound is wider by what that may be off, and
    nothing is asked of elements whose sums leave float32's range.

    At most 1 for a right result. Infinite where c is NaN and the product is not, is not NaN where the product is, or is
    another infinity. Where the exact value would round to infinity, infinity is no error; where only a value within the
    bound would, the error counts up to the value from which on it does.
    """
    if rows is not None:
        a, c = a[rows], c[rows]
    step = max(1, _CHUNK // max(1, *a.shape))
    worst = 0.0
    for start in range(0, b.shape[1], step):
        columns = slice(start, start + step)
        ratio = _ratio(a, b[:, columns], c[:, columns], partial_sums_rounded, in_fp32)
        if ratio.numel():
            worst = max(worst, float(ratio.max()))
    return worst


def _ratio(a: Tensor, b: Tensor, c: Tensor, partial_sums_rounded: bool, in_fp32: bool) -> Tensor:
    reference = product_fp32(a, b).double() if in_fp32 else product_fp64(a, b)
    limit = bound(a, b, reference, c.dtype, partial_sums_rounded=partial_sums_rounded, in_fp32=in_fp32)
    overflow = OVERFLOW[c.dtype]
    # An infinite c stands for any value beyond the range; the nearest one to the product is the edge or the product.
    edge = torch.copysign(reference.abs().clamp(min=overflow), c.double())
    ratio = (torch.where(c.isinf(), edge, c.double()) - reference).abs() / limit
    ratio = torch.where(c.isnan(), torch.inf, ratio)
    ratio = torch.where(limit.isinf(), 0.0, ratio)
    same = torch.where(reference.isnan(), c.isnan(), c.double() == reference)
    ratio = torch.where(reference.isfinite(), ratio, torch.where(same, 0.0, torch.inf))
    return torch.where(limit.isinf(), 0.0, ratio) if in_fp32 else ratio


def ulps(a: Tensor, b: Tensor, c: Tensor) -> Tensor:
    """The signed errors of ``c``, in fp64, in units in the last place of its dtype at ``a b``. NaN where either is not
    finite."""
    reference = product_fp64(a, b)
    magnitude = reference.abs().clamp(min=torch.finfo(c.dtype).tiny)
    # The power of two at or below it, all divisions exact. Not by torch.ldexp, which on a GPU other than the first may
    # read outside of its operands (pytorch/pytorch issue 189567).
    power = magnitude / torch.frexp(magnitude)[0] / 2
    errors = (c.double() - reference) / power / torch.finfo(c.dtype).eps
    return torch.where(reference.isfinite() & c.isfinite(), errors, torch.nan)


def worst_ulps(a: Tensor, b: Tensor, c: Tensor) -> float:
    """The largest error of a finite element, in units in the last place: at most 0.5 for one rounding of an exact sum.

    0 if no element is finite.
    """
    errors = ulps(a, b, c).abs().nan_to_num(0.0)
    return float(errors.max()) if errors.numel() else 0.0


def mean_ulps(a: Tensor, b: Tensor, c: Tensor) -> float:
    """The mean signed error of the finite elements, in units in the last place: near 0 if roundings have no bias, half
    a unit towards zero if the result is cut off instead of rounded."""
    return float(ulps(a, b, c).nanmean())


def exact_integers(
    M: int,
    N: int,
    K: int,
    dtype: torch.dtype,
    device: torch.device | str,
    generator: torch.Generator,
    largest: int = 4,
) -> tuple[Tensor, Tensor, Tensor]:
    """``a[M, K]``, ``b[K, N]`` of integers up to ``largest`` in magnitude, and the one right product in ``dtype``.

    No sum of terms exceeds largest^2 K <= 2^23, so fp32 adds them up exactly in any order and a right kernel returns
    the third tensor bit for bit. With ``largest=1`` the entries are -1, 0 and 1, so sparse where K is large that sums
    stay within what ``dtype`` counts exactly (8 standard deviations): no rounding hides a single wrong term.

    ``generator`` is one of ``device``. Raises ValueError if ``largest``^2 K is above 2^23.
    """
    if largest * largest * K > 2**23:
        raise ValueError(f"sums are exact while largest^2 K <= 2^23, found largest = {largest}, K = {K}")

    def integers(rows: int, columns: int) -> Tensor:
        values = torch.randint(-largest, largest + 1, (rows, columns), device=device, generator=generator)
        if largest == 1 and K:
            share = min(1.0, EXACT_LIMIT[dtype] / 8 / (K**0.5 * 2 / 3))
            values *= torch.rand((rows, columns), device=device, generator=generator) < share
        return values.to(dtype)

    a, b = integers(M, K), integers(K, N)
    return a, b, product_fp64(a, b).to(dtype)
