"""Split-K: which steps of K are in a part, and the kernel that adds the parts' sums.

A part's programs write fp32 sums to a workspace, and a second kernel adds them in the order of the parts and rounds
once. So the bits of a row depend on its operands, the configuration and K, and not on an order of arrival, on M or the
batch. There are no counters in memory that would have to be zero before, and apart for each stream and graph. What a
second kernel costs is mostly its launch, and that is done while the first one runs (programmatic dependent launch): its
programs wait on the multiprocessors for the first kernel to end.
"""

# Triton would take the annotation of an argument for the type to compile it for.
# mypy: disable-error-code="no-untyped-def"

from typing import Any

import torch
import triton
import triton.language as tl
from triton.language.extra.cuda import gdc_launch_dependents, gdc_wait

from hgemm.problem import VECTOR_ELEMENTS
from hgemm.triton_kernels.launcher import Launch, Launcher

# Relative, so that the copy of this module that is loaded for the interpreter gets interpreted functions.
from .arithmetic import INTERPRETED, rounded
from .tile_order import tile_count

# Divides N and the strides of C, as TMA needs them; the compiler is told so that threads move 16 bytes at a time.
ALIGNMENT = tl.constexpr(VECTOR_ELEMENTS)

# Columns of a program of the second kernel: 16 bytes a thread and part.
COLUMNS = 512
WARPS = 4


@triton.jit
def part_of(steps, part, PARTS: tl.constexpr):
    """The first of the ``steps`` steps of K that are in ``part``, and how many are: the same for all parts but the
    last ones, which may have fewer, or none."""
    each = tile_count(steps, PARTS)
    first = tl.minimum(part * each, steps)
    return first, tl.minimum(steps - first, each)


@triton.jit
def store_part(tile, sums, matrix, M, N, m, n, BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr):
    """Writes the fp32 ``tile`` whose first element is (m, n) to a matrix of the workspace, M x N each: all batches of
    the first part, all of the second, and so on.

    Not by TMA: the compiler places such a tile beside the ring of operands, not in it, and there is no room.
    """
    N = N // ALIGNMENT * ALIGNMENT
    rows = m + tl.arange(0, BLOCK_M)
    columns = n + tl.arange(0, BLOCK_N)
    inside = (rows < M)[:, None] & (columns < N)[None, :]
    sums += matrix.to(tl.int64) * M * N
    tl.store(sums + rows.to(tl.int64)[:, None] * N + columns[None, :], tile, mask=inside)


@triton.jit
def allow_next_kernel():
    """Lets a kernel that waits for this one, see ``wait_for_kernel``, be launched before this one ends."""
    if not INTERPRETED:
        gdc_launch_dependents()


@triton.jit
def wait_for_kernel():
    """Waits until the kernel before has ended and all that it wrote can be read."""
    if not INTERPRETED:
        gdc_wait()


@triton.jit(do_not_specialize=("M", "N", "batches", "stride_c", "batch_c"))
def add_parts(
    sums,  # PARTS x batches x M x N, contiguous
    c,  # M x N
    M,
    N,
    batches,
    stride_c,  # elements from one row to the next
    batch_c,  # elements from one matrix to the next
    PARTS: tl.constexpr,
    COLUMNS: tl.constexpr,
):
    wait_for_kernel()
    N = N // ALIGNMENT * ALIGNMENT
    blocks = tile_count(N, COLUMNS)
    program = tl.program_id(0)
    row = (program // blocks).to(tl.int64)  # of all batches
    column = program % blocks * COLUMNS + tl.arange(0, COLUMNS)
    inside = column < N
    part = M.to(tl.int64) * batches * N
    sums += row * N
    total = tl.load(sums + column, mask=inside, other=0.0)
    for index in tl.static_range(1, PARTS):
        total += tl.load(sums + index * part + column, mask=inside, other=0.0)
    c += row // M * (batch_c // ALIGNMENT * ALIGNMENT) + row % M * (stride_c // ALIGNMENT * ALIGNMENT)
    tl.store(c + column, rounded(total, c.dtype.element_ty), mask=inside)


_launcher = Launcher(add_parts)


def addition(
    device: torch.device, dtype: torch.dtype, M: int, N: int, batches: int, stride_c: int, batch_c: int, parts: int
) -> Launch:
    """The launch of ``add_parts`` on a workspace and a C of ``dtype``, directly after the kernel that fills the
    workspace. N, the strides and both addresses are as TMA needs them."""
    options: dict[str, Any] = {
        "PARTS": parts,
        "COLUMNS": COLUMNS,
        "num_warps": WARPS,
        "launch_pdl": True,
        "enable_fp_fusion": True,  # see configs.launch_options
    }
    programs = batches * M * -(-N // COLUMNS)
    return Launch(_launcher, (device, dtype, parts), programs, (M, N, batches, stride_c, batch_c), options)
