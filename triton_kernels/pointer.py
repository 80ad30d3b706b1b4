"""C = A B with masked pointer loads: what Triton turns into the cp.async pipeline of ``cuda_kernels/cp_async.cuh``.

Constraints: row-major fp16 or bf16 operands; any M, N, K from 1; any row stride and alignment. All offsets are 64-bit.
Row strides, N and K that are multiples of 8 elements, over bases on 16 bytes, are copied by 16-byte cp.async; others
load element by element, through registers.
"""

# Triton would take the annotation of an argument for the type to compile it for.
# mypy: disable-error-code="no-untyped-def"

import triton
import triton.language as tl
from torch import Tensor

from hgemm.problem import VECTOR_ELEMENTS
from hgemm.triton_kernels.configs import launch_options

# Relative, so that the copy of this module that is loaded for the interpreter gets interpreted functions.
from .arithmetic import multiply_accumulate, rounded
from .tile_order import grouped_tile, tile_count

# A new shape must not mean a new compilation: all that the compiler should know of these numbers is ALIGNMENT.
RUNTIME_NUMBERS = ("M", "N", "K", "stride_a", "stride_b", "stride_c")


@triton.jit(do_not_specialize=RUNTIME_NUMBERS)
def matmul_pointer(
    a,  # M x K
    b,  # K x N
    c,  # M x N
    M,
    N,
    K,
    stride_a,  # elements from one row to the next
    stride_b,
    stride_c,
    ALIGNMENT: tl.constexpr,  # divides N, K and the strides
    BLOCK_M: tl.constexpr,
    BLOCK_N: tl.constexpr,
    BLOCK_K: tl.constexpr,
    GROUP_M: tl.constexpr,
):
    # Changes no value; from here on the compiler knows that these are multiples of ALIGNMENT.
    N = N // ALIGNMENT * ALIGNMENT
    K = K // ALIGNMENT * ALIGNMENT
    stride_a = (stride_a // ALIGNMENT * ALIGNMENT).to(tl.int64)
    stride_b = (stride_b // ALIGNMENT * ALIGNMENT).to(tl.int64)
    stride_c = (stride_c // ALIGNMENT * ALIGNMENT).to(tl.int64)

    tile_m, tile_n = grouped_tile(tl.program_id(0), tile_count(M, BLOCK_M), tile_count(N, BLOCK_N), GROUP_M)
    m = tile_m.to(tl.int64) * BLOCK_M + tl.arange(0, BLOCK_M)
    n = tile_n.to(tl.int64) * BLOCK_N + tl.arange(0, BLOCK_N)
    k = tl.arange(0, BLOCK_K)
    in_m = m < M
    in_n = n < N
    a_tile = a + m[:, None] * stride_a + k[None, :]
    b_tile = b + k[:, None] * stride_b + n[None, :]

    accumulator = tl.full((BLOCK_M, BLOCK_N), 0, tl.float32)
    left = K
    for _ in range(tile_count(K, BLOCK_K)):
        # What lies outside is read as zero, never as whatever is there: 0 x NaN is NaN.
        a_values = tl.load(a_tile, mask=in_m[:, None] & (k[None, :] < left), other=0.0)
        b_values = tl.load(b_tile, mask=(k[:, None] < left) & in_n[None, :], other=0.0)
        accumulator = multiply_accumulate(a_values, b_values, accumulator)
        a_tile += BLOCK_K
        b_tile += BLOCK_K * stride_b
        left -= BLOCK_K

    c_tile = c + m[:, None] * stride_c + n[None, :]
    tl.store(c_tile, rounded(accumulator, c.dtype.element_ty), mask=in_m[:, None] & in_n[None, :])


def launch(a: Tensor, b: Tensor, out: Tensor, config: str) -> None:
    """Writes ``a[M, K] @ b[K, N]`` into ``out[M, N]``, all row-major, on the current device and stream."""
    M, K = a.shape
    N = b.shape[1]
    stride_a, stride_b, stride_c = a.stride(0), b.stride(0), out.stride(0)
    options = launch_options(config)
    grid = (-(-M // options["BLOCK_M"]) * -(-N // options["BLOCK_N"]),)
    vectors = (N | K | stride_a | stride_b | stride_c) % VECTOR_ELEMENTS == 0
    alignment = VECTOR_ELEMENTS if vectors else 1
    matmul_pointer[grid](a, b, out, M, N, K, stride_a, stride_b, stride_c, ALIGNMENT=alignment, **options)
