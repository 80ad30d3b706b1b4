"""C = A B with tensor descriptors made on the device: TMA loads and stores, the twin of ``cuda_kernels/tma.cuh``.

Constraints: row-major fp16 or bf16 operands; any M from 1; K, N and row strides multiples of 8 elements (16 bytes) and
bases on 16 bytes, which no device checks: see ``adapter.accepts``; M, N, K below 2^31 - 256, since a descriptor counts
in 32 bits. Loads past an edge give zeros, stores past it are dropped.
"""

# Triton would take the annotation of an argument for the type to compile it for.
# mypy: disable-error-code="no-untyped-def"

import contextvars
import functools
from typing import Any

import torch
import triton
import triton.language as tl
from torch import Tensor

from hgemm.triton_kernels.configs import launch_options

# Relative, so that the copy of this module that is loaded for the interpreter gets interpreted functions.
from .arithmetic import multiply_accumulate, rounded
from .tile_order import grouped_tile, tile_count

# A new shape must not mean a new compilation, and a descriptor gains nothing from knowing these numbers.
RUNTIME_NUMBERS = ("M", "N", "K", "stride_a", "stride_b", "stride_c")


@triton.jit(do_not_specialize=RUNTIME_NUMBERS)
def matmul_tma(
    a,  # M x K
    b,  # K x N
    c,  # M x N
    M,
    N,
    K,
    stride_a,  # elements from one row to the next
    stride_b,
    stride_c,
    BLOCK_M: tl.constexpr,
    BLOCK_N: tl.constexpr,
    BLOCK_K: tl.constexpr,
    GROUP_M: tl.constexpr,
    PERSISTENT: tl.constexpr = False,
):
    a_descriptor = tl.make_tensor_descriptor(a, [M, K], [stride_a, 1], [BLOCK_M, BLOCK_K])
    b_descriptor = tl.make_tensor_descriptor(b, [K, N], [stride_b, 1], [BLOCK_K, BLOCK_N])
    c_descriptor = tl.make_tensor_descriptor(c, [M, N], [stride_c, 1], [BLOCK_M, BLOCK_N])

    tiles_m, tiles_n = tile_count(M, BLOCK_M), tile_count(N, BLOCK_N)
    program, programs = tl.program_id(0), tl.num_programs(0)
    if PERSISTENT:
        # Flattened into the loop over K, the tiles are one software pipeline: loads of the next begin while this one
        # is multiplied and stored. The store finds its tile anew, so that it belongs to the end of an iteration.
        stored = program - programs
        for tile in tl.range(program, tiles_m * tiles_n, programs, flatten=True):
            m, n = _origin(tile, tiles_m, tiles_n, BLOCK_M, BLOCK_N, GROUP_M)
            accumulator = _product(a_descriptor, b_descriptor, m, n, K, BLOCK_M, BLOCK_N, BLOCK_K)
            stored += programs
            m, n = _origin(stored, tiles_m, tiles_n, BLOCK_M, BLOCK_N, GROUP_M)
            c_descriptor.store([m, n], rounded(accumulator, c.dtype.element_ty))
    else:
        m, n = _origin(program, tiles_m, tiles_n, BLOCK_M, BLOCK_N, GROUP_M)
        accumulator = _product(a_descriptor, b_descriptor, m, n, K, BLOCK_M, BLOCK_N, BLOCK_K)
        c_descriptor.store([m, n], rounded(accumulator, c.dtype.element_ty))


@triton.jit
def _origin(tile, tiles_m, tiles_n, BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr, GROUP_M: tl.constexpr):
    """The first row and column of C of an output tile."""
    tile_m, tile_n = grouped_tile(tile, tiles_m, tiles_n, GROUP_M)
    return tile_m * BLOCK_M, tile_n * BLOCK_N


@triton.jit
def _product(a_descriptor, b_descriptor, m, n, K, BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr, BLOCK_K: tl.constexpr):
    """The fp32 tile of ``A B`` whose first element is (m, n)."""
    accumulator = tl.full((BLOCK_M, BLOCK_N), 0, tl.float32)
    for step in range(tile_count(K, BLOCK_K)):
        k = step * BLOCK_K
        accumulator = multiply_accumulate(a_descriptor.load([m, k]), b_descriptor.load([k, n]), accumulator)
    return accumulator


def launch(a: Tensor, b: Tensor, out: Tensor, config: str) -> None:
    """Writes ``a[M, K] @ b[K, N]`` into ``out[M, N]``, all row-major, on the current device and stream."""
    M, K = a.shape
    N = b.shape[1]
    options = launch_options(config)
    programs = -(-M // options["BLOCK_M"]) * -(-N // options["BLOCK_N"])
    if options.get("PERSISTENT"):
        programs = min(programs, _resident_programs(a.device))
    # The descriptors lie in scratch memory that Triton asks of the allocator in the current context. Ours is set in a
    # copy of that context: it works in any thread, and the caller's own allocator stays as it is.
    contextvars.copy_context().run(_launch_with_scratch, (programs,), a, b, out, M, N, K, options)


@functools.cache
def _resident_programs(device: torch.device) -> int:
    """Programs of a persistent grid: one a multiprocessor. The interpreter gets few, so that each has several tiles."""
    return torch.cuda.get_device_properties(device).multi_processor_count if device.type == "cuda" else 2


def _launch_with_scratch(
    grid: tuple[int], a: Tensor, b: Tensor, out: Tensor, M: int, N: int, K: int, options: dict[str, Any]
) -> None:
    def allocate(size: int, alignment: int, stream: int | None) -> Tensor:
        # torch's allocator aligns to 512 bytes, more than a descriptor needs, and orders the reuse of the memory
        # after the kernel, since both are on the current stream.
        return torch.empty(size, dtype=torch.int8, device=a.device)

    triton.set_allocator(allocate)
    matmul_tma[grid](a, b, out, M, N, K, a.stride(0), b.stride(0), out.stride(0), **options)
