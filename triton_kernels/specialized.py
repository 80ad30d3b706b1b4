"""C = A B on Hopper with warps that have different work: one copies tiles, one to three warpgroups multiply.

  the copying warp                         a multiplying warpgroup, with rows (or columns) of the tile of its own
  for each item of work of the block:      for each item of work of the block:
    for each step of K:                      for each step of K:
      wait until the stage is free             wait until the stage is filled
      copy tiles of A and B into it by TMA     start the wgmma that read it; wait for those of the step before
                                               give the stage of the step before back
                                               in the first steps: store a piece of the item before by TMA
                                             round the sums

The copying warp has few registers, so that the others can have more (setmaxnreg), and runs ahead over the ends of
items. The grid is persistent. Rounded sums take half the registers, so that the next item's have room beside them, and
the tensor cores have work while a tile of C goes through shared memory; see ``store_steps`` for where it cannot.

The extents of a tensor have to be powers of two, which 192 rows and 96 or 192 columns are not: of such a tile of A or B
there are three copies, one below or beside the other, and the sums are several tensors, see ``specialized_sums``.

An item is a tile of C, or with ``SHARED`` one part of K of a tile; see ``shared_tiles``.

With ``CLUSTER_M`` and ``CLUSTER_N`` blocks are clusters, whose blocks one above the other share tiles of B and those
side by side tiles of A; see ``clusters``. A tile is then that of the cluster, and a stage is free when all its blocks
have given it back.

A product may be launched before the kernel in front of it ends, see ``is_dependent``: its copying warp waits for that
one, and what is stored follows what was copied.

Constraints: compute capability 9.0; one matrix, not a batch; else those of ``tma.py``. The descriptors are made on the
host and arrive as arguments, so that no block waits for descriptors of its own.
"""

# Triton would take the annotation of an argument for the type to compile it for. Tuples grow tensor by tensor.
# mypy: disable-error-code="no-untyped-def, assignment"

from torch import Tensor
from triton.experimental import gluon
from triton.experimental.gluon import language as gl
from triton.experimental.gluon.language.nvidia.hopper import mbarrier
from triton.language.extra.cuda import gdc_launch_dependents

from hgemm.backends import LaunchAt
from hgemm.problem import Problem
from hgemm.triton_kernels import clusters, host_descriptors, tile_order
from hgemm.triton_kernels.launcher import Launcher
from hgemm.triton_kernels.specialized_sums import powers_of_two
from hgemm.triton_kernels.specialized_warps import (
    Work,
    copy,
    meet,
    multiply_first,
    multiply_second,
    multiply_third,
)

tile_count = gluon.jit(tile_order.tile_count.fn)  # Gluon calls functions of its own alone; this is the same text


@gluon.jit(do_not_specialize=("M", "N", "K", "whole", "parts"))
def matmul_specialized(
    a_matrix,  # descriptors of what is stored: M x K, or K x M if A_LAYOUT is "t"
    b_matrix,
    c_matrix,
    sums,  # fp32, see shared_tiles; None if not SHARED
    M,
    N,
    K,
    whole,  # this and parts are read only if SHARED
    parts,
    A_LAYOUT: gl.constexpr,
    B_LAYOUT: gl.constexpr,
    BLOCK_M: gl.constexpr,
    BLOCK_N: gl.constexpr,
    BLOCK_K: gl.constexpr,
    GROUP_M: gl.constexpr,
    STAGES: gl.constexpr,
    DOWN: gl.constexpr,  # warpgroups that multiply: one above the other,
    ACROSS: gl.constexpr,  # or one beside the other
    C_BUFFERS: gl.constexpr,  # of each warpgroup
    CLUSTER_M: gl.constexpr,  # blocks
    CLUSTER_N: gl.constexpr,
    SHARED: gl.constexpr,
    STORE_STEPS: gl.constexpr,  # of a tile, in which the one before is stored
    REGISTERS: gl.constexpr,  # of a multiplying thread
    COPY_REGISTERS: gl.constexpr,
):
    # The next kernel may be launched by now if it waits itself for this one: one that adds parts, or another of these.
    gdc_launch_dependents()
    groups: gl.constexpr = DOWN * ACROSS
    a_copies: gl.constexpr = BLOCK_M // a_matrix.block_shape[0 if A_LAYOUT == "n" else 1]
    b_columns: gl.constexpr = b_matrix.block_shape[1 if B_LAYOUT == "n" else 0]
    widths: gl.constexpr = powers_of_two(BLOCK_N // ACROSS)
    gl.static_assert(ACROSS == 1 or len(widths) == 1, "a ring of B has the columns of all warpgroups in their order")
    a_ring = _allocate(a_matrix, STAGES * a_copies)
    b_rings = ()
    for index in gl.static_range(len(widths)):
        b_rings += (_allocate(b_matrix, STAGES * (ACROSS * widths[index] // b_columns)),)
    c_ring = _allocate(c_matrix, groups * C_BUFFERS)
    blocks: gl.constexpr = CLUSTER_M * CLUSTER_N
    filled = gl.allocate_shared_memory(gl.int64, [STAGES, blocks], clusters.barriers_of_each(blocks))
    freed = filled
    if blocks == 1:
        freed = gl.allocate_shared_memory(gl.int64, [STAGES, 1], mbarrier.MBarrierLayout())
    for stage in gl.static_range(STAGES):
        mbarrier.init(filled.index(stage), count=1)
        if blocks == 1:
            mbarrier.init(freed.index(stage), count=groups)
    freed_by_all = gl.to_tensor(0)
    if blocks > 1:
        freed_by_all = clusters.allocate_barriers()
        clusters.init(freed_by_all, STAGES, groups * blocks)
    # A short K is padded by steps of zeros: an item has the steps in which the tile before is stored.
    steps = gl.maximum(tile_count(K, BLOCK_K), max(1, STORE_STEPS))
    work = Work(
        (a_ring, b_rings, filled, freed, freed_by_all),
        (tile_count(M, BLOCK_M), tile_count(N, BLOCK_N), steps, whole, parts),
        A_LAYOUT,
        B_LAYOUT,
        a_copies,
        b_columns,
        widths,
        (BLOCK_M, BLOCK_N, BLOCK_K, GROUP_M, STAGES),
        (CLUSTER_M, CLUSTER_N, blocks),
        SHARED,
        STORE_STEPS,
    )
    if blocks > 1:  # the three warps beside the copying one have to meet those of other blocks too
        gl.static_assert(groups == 1, "no cluster has several multiplying warpgroups")
        gl.warp_specialize(
            [
                (multiply_first, (work, c_ring, c_matrix, sums, DOWN, ACROSS, C_BUFFERS)),
                (copy, (work, a_matrix, b_matrix)),
                (meet, ()),
                (meet, ()),
                (meet, ()),
            ],
            [1, 1, 1, 1],
            [COPY_REGISTERS, COPY_REGISTERS, COPY_REGISTERS, COPY_REGISTERS],
        )
    elif groups == 1:
        gl.warp_specialize(
            [
                (multiply_first, (work, c_ring, c_matrix, sums, DOWN, ACROSS, C_BUFFERS)),
                (copy, (work, a_matrix, b_matrix)),
            ],
            [1],
            [COPY_REGISTERS],
        )
    elif groups == 2:
        gl.warp_specialize(
            [
                (multiply_first, (work, c_ring, c_matrix, sums, DOWN, ACROSS, C_BUFFERS)),
                (multiply_second, (work, c_ring, c_matrix, sums, DOWN, ACROSS, C_BUFFERS)),
                (copy, (work, a_matrix, b_matrix)),
            ],
            [4, 1],
            [REGISTERS, COPY_REGISTERS],
        )
    else:
        gl.warp_specialize(
            [
                (multiply_first, (work, c_ring, c_matrix, sums, DOWN, ACROSS, C_BUFFERS)),
                (multiply_second, (work, c_ring, c_matrix, sums, DOWN, ACROSS, C_BUFFERS)),
                (multiply_third, (work, c_ring, c_matrix, sums, DOWN, ACROSS, C_BUFFERS)),
                (copy, (work, a_matrix, b_matrix)),
            ],
            [4, 4, 1],
            [REGISTERS, REGISTERS, COPY_REGISTERS],
        )


@gluon.jit
def _allocate(matrix, BUFFERS: gl.constexpr):
    """Shared memory for as many tiles of a matrix, swizzled as its descriptor has it."""
    shape: gl.constexpr = [BUFFERS] + matrix.block_shape  # noqa: RUF005
    return gl.allocate_shared_memory(matrix.dtype, shape, matrix.layout)


_launcher = Launcher(matmul_specialized)


def launch(a: Tensor, b: Tensor, out: Tensor, config: str) -> None:
    """Writes ``a @ b`` into ``out``, as ``tma.launch`` does; of batches one matrix after the other."""
    host_descriptors.launch(_launcher, a, b, out, config)


def bind(problem: Problem, config: str) -> LaunchAt | None:
    """``launch`` by address, as ``tma.bind`` does; None for batches."""
    return host_descriptors.bind(_launcher, problem, config)
