"""C = A B with masked pointer loads: what Triton turns into the cp.async pipeline of ``cuda_kernels/cp_async.cuh``.

Constraints: fp16 or bf16 operands, any strides and alignment; any M, N, K and number of batches from 1. All offsets are
64-bit. Stored rows that start and end on 16 bytes are copied by 16-byte cp.async; others load element by element,
through registers.
"""

# Triton would take the annotation of an argument for the type to compile it for.
# mypy: disable-error-code="no-untyped-def"

import functools
from typing import Any

import torch
import triton
import triton.language as tl
from torch import Tensor

from hgemm.arrangement import Arrangement, arrange, arrange_problem
from hgemm.backends import LaunchAt
from hgemm.problem import VECTOR_BYTES, Problem
from hgemm.triton_kernels.configs import launch_options
from hgemm.triton_kernels.launcher import Launch, Launcher, Pointer

# Relative, so that the copy of this module that is loaded for the interpreter gets interpreted functions.
from .arithmetic import multiply_accumulate, rounded
from .tile_order import grouped_tile, tile_count

# A new shape must not mean a new compilation: all that the compiler should know of these numbers is ALIGNMENT.
RUNTIME_NUMBERS = (
    *("M", "N", "K"),
    *("stride_a", "stride_b", "stride_c"),
    *("column_a", "column_b", "column_c"),
    *("batch_a", "batch_b", "batch_c"),
)


@triton.jit(do_not_specialize=RUNTIME_NUMBERS)
def matmul_pointer(
    a,  # M x K
    b,  # K x N
    c,  # M x N
    M,
    N,
    K,
    stride_a,  # elements from one stored row to the next
    stride_b,
    stride_c,
    column_a,  # elements from one element of a stored row to the next
    column_b,
    column_c,
    batch_a,  # elements from one matrix to the next
    batch_b,
    batch_c,
    A_LAYOUT: tl.constexpr,  # "n": the stored rows are those of the matrix, "t": its columns; those of c are its rows
    B_LAYOUT: tl.constexpr,
    CONTIGUOUS: tl.constexpr,  # each column stride is 1
    BATCHED: tl.constexpr,
    ALIGNMENT: tl.constexpr,  # divides the strides and the lengths of stored rows
    BLOCK_M: tl.constexpr,
    BLOCK_N: tl.constexpr,
    BLOCK_K: tl.constexpr,
    GROUP_M: tl.constexpr,
):
    # Changes no value; from here on the compiler knows that these are multiples of ALIGNMENT.
    if A_LAYOUT == "t":
        M = M // ALIGNMENT * ALIGNMENT
    if A_LAYOUT == "n" or B_LAYOUT == "t":
        K = K // ALIGNMENT * ALIGNMENT
    N = N // ALIGNMENT * ALIGNMENT
    stride_a = (stride_a // ALIGNMENT * ALIGNMENT).to(tl.int64)
    stride_b = (stride_b // ALIGNMENT * ALIGNMENT).to(tl.int64)
    stride_c = (stride_c // ALIGNMENT * ALIGNMENT).to(tl.int64)
    if CONTIGUOUS:
        column_a = 1
        column_b = 1
        column_c = 1
    else:
        column_a = column_a.to(tl.int64)
        column_b = column_b.to(tl.int64)
        column_c = column_c.to(tl.int64)

    tiles_m, tiles_n = tile_count(M, BLOCK_M), tile_count(N, BLOCK_N)
    program = tl.program_id(0)
    if BATCHED:
        batch = (program // (tiles_m * tiles_n)).to(tl.int64)
        program = program % (tiles_m * tiles_n)
        a += batch * (batch_a // ALIGNMENT * ALIGNMENT)
        b += batch * (batch_b // ALIGNMENT * ALIGNMENT)
        c += batch * (batch_c // ALIGNMENT * ALIGNMENT)
    tile_m, tile_n = grouped_tile(program, tiles_m, tiles_n, GROUP_M)
    m = tile_m.to(tl.int64) * BLOCK_M + tl.arange(0, BLOCK_M)
    n = tile_n.to(tl.int64) * BLOCK_N + tl.arange(0, BLOCK_N)
    k = tl.arange(0, BLOCK_K)
    in_m = m < M
    in_n = n < N
    if A_LAYOUT == "n":
        a_tile = a + m[:, None] * stride_a + k[None, :] * column_a
        a_step = BLOCK_K * column_a
    else:
        a_tile = a + m[:, None] * column_a + k[None, :] * stride_a
        a_step = BLOCK_K * stride_a
    if B_LAYOUT == "n":
        b_tile = b + k[:, None] * stride_b + n[None, :] * column_b
        b_step = BLOCK_K * stride_b
    else:
        b_tile = b + k[:, None] * column_b + n[None, :] * stride_b
        b_step = BLOCK_K * column_b

    accumulator = tl.full((BLOCK_M, BLOCK_N), 0, tl.float32)
    left = K
    for _ in range(tile_count(K, BLOCK_K)):
        # What lies outside is read as zero, never as whatever is there: 0 x NaN is NaN.
        a_values = tl.load(a_tile, mask=in_m[:, None] & (k[None, :] < left), other=0.0)
        b_values = tl.load(b_tile, mask=(k[:, None] < left) & in_n[None, :], other=0.0)
        accumulator = multiply_accumulate(a_values, b_values, accumulator)
        a_tile += a_step
        b_tile += b_step
        left -= BLOCK_K

    c_tile = c + m[:, None] * stride_c + n[None, :] * column_c
    tl.store(c_tile, rounded(accumulator, c.dtype.element_ty), mask=in_m[:, None] & in_n[None, :])


_launcher = Launcher(matmul_pointer)


def launch(a: Tensor, b: Tensor, out: Tensor, config: str) -> None:
    """Writes ``a[M, K] @ b[K, N]`` into ``out[M, N]`` on the current device and stream: matrices of any strides, or
    batches of them, the batch first; an ``a`` or ``b`` without a batch is used for all."""
    swapped, run = _plan(
        *(_launcher, config, a.device, a.dtype),
        # Triton sees whether an address is a multiple of 16.
        tuple(operand.data_ptr() % VECTOR_BYTES == 0 for operand in (a, b, out)),
        *(a.shape, a.stride(), b.shape, b.stride(), out.shape, out.stride()),
    )
    if swapped:
        a, b = b, a
    run(a, b, out)


@functools.lru_cache(maxsize=4096)
def _plan(
    launcher: Launcher,
    config: str,
    device: torch.device,
    dtype: torch.dtype,
    aligned: tuple[bool, ...],
    *operands: Any,
) -> tuple[bool, Launch]:
    """Whether a and b change places, and the launch. ``operands``: shapes and strides as ``arrange`` takes them."""
    p = arrange(*operands)
    return p.swapped, _arranged(launcher, config, device, dtype, aligned, p)


def _arranged(
    launcher: Launcher, config: str, device: torch.device, dtype: torch.dtype, aligned: tuple[bool, ...], p: Arrangement
) -> Launch:
    constants = {
        "A_LAYOUT": p.a_layout,
        "B_LAYOUT": p.b_layout,
        "CONTIGUOUS": p.contiguous,
        "BATCHED": p.batches > 1,
        "ALIGNMENT": p.alignment,
    }
    options = {**constants, **launch_options(config)}
    numbers = (
        *(p.M, p.N, p.K),
        *(p.stride_a, p.stride_b, p.stride_c),
        *(p.column_a, p.column_b, p.column_c),
        *(p.batch_a, p.batch_b, p.batch_c),
    )
    form = (device, dtype, config, aligned, p.swapped, *constants.values())
    programs = -(-p.M // options["BLOCK_M"]) * -(-p.N // options["BLOCK_N"]) * p.batches
    return Launch(launcher, form, programs, numbers, options)


def bind(problem: Problem, config: str) -> LaunchAt | None:
    """``launch`` of tensors that ``problem`` describes, by address; their device is current, now and in each call. None
    where ``Launch.bind`` returns it."""
    aligned = tuple(operand.alignment == VECTOR_BYTES for _, operand in problem.operands)
    p = arrange_problem(problem)
    a, b, out = (Pointer(problem.dtype, each) for each in aligned)
    if p.swapped:
        a, b = b, a
    launch = _arranged(_launcher, config, problem.device, problem.dtype, aligned, p).bind(problem.device, a, b, out)
    if launch is None or not p.swapped:
        return launch
    return lambda a, b, out: launch(b, a, out)
