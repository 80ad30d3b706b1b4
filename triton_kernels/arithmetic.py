"""The product of two tiles and the rounding of the result: device functions, right also where Triton interprets.

Compiled, these are ``tl.dot`` and a conversion. Triton's interpreter stores bf16 as its bits in 16-bit integers, would
multiply those as integers, and cuts fp32 to bf16 instead of rounding it; so there both are done here, on the bits.
"""

# Triton would take the annotation of an argument for the type to compile it for.
# mypy: disable-error-code="no-untyped-def"

import triton
import triton.language as tl

# True in the copy of this module that is loaded for the interpreter.
INTERPRETED = tl.constexpr(triton.knobs.runtime.interpret)


@triton.jit
def multiply_accumulate(a, b, accumulator):
    """``accumulator + a @ b`` for half-precision tiles and an fp32 accumulator."""
    if INTERPRETED:
        return tl.dot(_widened(a), _widened(b), accumulator)
    else:
        return tl.dot(a, b, accumulator)


@triton.jit
def rounded(accumulator, dtype: tl.constexpr):
    """The fp32 tile ``accumulator`` in ``dtype``, fp16 or bf16, rounded to the nearest, ties to even."""
    if INTERPRETED and dtype == tl.bfloat16:
        bits = accumulator.to(tl.uint32, bitcast=True)
        kept = bits >> 16
        dropped = bits & 0xFFFF
        up = (dropped > 0x8000) | ((dropped == 0x8000) & (kept & 1 == 1))
        # Carrying into the exponent is right (it rounds up to the next power of two, in the end to infinity), except
        # for a NaN, which keeps its upper bits and gets the one that makes it quiet.
        kept = tl.where(accumulator != accumulator, kept | 0x40, kept + up.to(tl.uint32))
        return kept.to(tl.uint16).to(tl.bfloat16, bitcast=True)
    else:
        return accumulator.to(dtype)


@triton.jit
def _widened(tile):
    """A half-precision tile in fp32, exactly: a bf16 is the upper half of the fp32 of the same value."""
    if tile.dtype == tl.bfloat16:
        return (tile.to(tl.uint16, bitcast=True).to(tl.uint32) << 16).to(tl.float32, bitcast=True)
    else:
        return tile.to(tl.float32)
