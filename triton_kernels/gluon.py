"""C = A B in Gluon, Triton's lower language: the twin of ``cuda_kernels/tma.cuh``, TMA + ldmatrix + mma.sync.

``triton`` leaves to the compiler where tiles lie, when they are fetched, what waits for them, and what is in registers
when. Here all of it is said, and on Hopper as on GeForce the tensor cores are told to multiply by mma.sync:

  start copying tiles 0 .. S-1
  wait for tile 0; load its first fragments
  for each tile of K:
    for each k-step of 16 but the last: load the next fragments, multiply these
    fence, barrier: every warp has loaded the tile's last fragments, its stage is free
    start copying tile + S into that stage
    wait for the next tile; load its first fragments
    multiply the last step
  C through shared memory, stored by TMA

Constraints: those of ``tma.py``.
"""

# Triton would take the annotation of an argument for the type to compile it for.
# mypy: disable-error-code="no-untyped-def"

from torch import Tensor
from triton.experimental import gluon
from triton.experimental.gluon import language as gl
from triton.experimental.gluon.language.nvidia.hopper import fence_async_shared, mbarrier, mma_v2, tma

from hgemm.backends import LaunchAt
from hgemm.problem import Problem
from hgemm.triton_kernels import tile_order
from hgemm.triton_kernels.configs import ring_options
from hgemm.triton_kernels.launcher import Launcher
from hgemm.triton_kernels.tma import RUNTIME_NUMBERS, bind_by, launch_by

# Gluon calls functions of its own alone; these are the same text.
grouped_tile = gluon.jit(tile_order.grouped_tile.fn)
tile_count = gluon.jit(tile_order.tile_count.fn)

# Under their names in Triton 3.9, else in 3.6 and 3.7; and 3.6 has the barrier under another.
async_load = getattr(tma, "async_load", None) or tma.async_copy_global_to_shared
async_store = getattr(tma, "async_store", None) or tma.async_copy_shared_to_global
barrier = getattr(gl, "barrier", None) or gl.thread_barrier

K_STEP = gl.constexpr(16)  # of one mma.sync


@gluon.jit(do_not_specialize=RUNTIME_NUMBERS)
def matmul_gluon(
    a,  # M x K
    b,  # K x N
    c,  # M x N
    M,
    N,
    K,
    batches,
    stride_a,  # elements from one stored row to the next
    stride_b,
    stride_c,
    batch_a,  # elements from one matrix to the next
    batch_b,
    batch_c,
    A_LAYOUT: gl.constexpr,  # "n": the stored rows are those of the matrix, "t": its columns; those of c are its rows
    B_LAYOUT: gl.constexpr,
    BATCHED: gl.constexpr,
    BLOCK_M: gl.constexpr,
    BLOCK_N: gl.constexpr,
    BLOCK_K: gl.constexpr,
    GROUP_M: gl.constexpr,
    STAGES: gl.constexpr,
    WARPS_M: gl.constexpr,  # the warps that share the tile: rows of them, and columns
    WARPS_N: gl.constexpr,
):
    dtype: gl.constexpr = a.dtype.element_ty
    mma: gl.constexpr = gl.NVMMADistributedLayout(version=[2, 0], warps_per_cta=[WARPS_M, WARPS_N], instr_shape=[16, 8])
    tiles_m, tiles_n = tile_count(M, BLOCK_M), tile_count(N, BLOCK_N)
    program = gl.program_id(0)
    if BATCHED:
        batch = (program // (tiles_m * tiles_n)).to(gl.int64)
        program = program % (tiles_m * tiles_n)
        a += batch * batch_a
        b += batch * batch_b
        c += batch * batch_c
    tile_m, tile_n = grouped_tile(program, tiles_m, tiles_n, GROUP_M)
    m, n, k_tiles = tile_m * BLOCK_M, tile_n * BLOCK_N, tile_count(K, BLOCK_K)

    a_matrix = _describe(a, M, K, stride_a, A_LAYOUT, BLOCK_M, BLOCK_K)
    b_matrix = _describe(b, K, N, stride_b, B_LAYOUT, BLOCK_K, BLOCK_N)
    a_ring = _allocate(a_matrix, STAGES)
    b_ring = _allocate(b_matrix, STAGES)
    # An mbarrier a stage and operand: where two copies share one, Triton puts a barrier of all threads between them.
    a_landed = gl.allocate_shared_memory(gl.int64, [STAGES, 1], mbarrier.MBarrierLayout())
    b_landed = gl.allocate_shared_memory(gl.int64, [STAGES, 1], mbarrier.MBarrierLayout())
    for stage in gl.static_range(STAGES):
        mbarrier.init(a_landed.index(stage), count=1)
        mbarrier.init(b_landed.index(stage), count=1)
    for stage in gl.static_range(STAGES):
        _copy(
            stage,
            stage,
            k_tiles,
            a_matrix,
            b_matrix,
            m,
            n,
            a_ring,
            b_ring,
            a_landed,
            b_landed,
            A_LAYOUT,
            B_LAYOUT,
            BLOCK_K,
        )

    sums = gl.full([BLOCK_M, BLOCK_N], 0, gl.float32, mma)
    mbarrier.wait(a_landed.index(0), 0)
    mbarrier.wait(b_landed.index(0), 0)
    a_step = _load(a_ring.index(0), 0, 0, A_LAYOUT, mma)
    b_step = _load(b_ring.index(0), 0, 1, B_LAYOUT, mma)
    stage = 0
    phase = 0
    for k_tile in range(STAGES, STAGES + k_tiles - 1):  # the tile that refills this one's stage
        a_step, b_step, sums = _multiply_up_to_last_step(
            a_ring.index(stage), b_ring.index(stage), a_step, b_step, sums, A_LAYOUT, B_LAYOUT, BLOCK_K, mma
        )
        _copy(
            stage,
            k_tile,
            k_tiles,
            a_matrix,
            b_matrix,
            m,
            n,
            a_ring,
            b_ring,
            a_landed,
            b_landed,
            A_LAYOUT,
            B_LAYOUT,
            BLOCK_K,
        )
        # Triton wants a barrier between what a copy writes and the next read of the ring. Here it delays no read: 3.7
        # would put it behind the waits, where the reads are next.
        barrier()
        stage += 1
        if stage == STAGES:  # each tile completes a phase of its stage's mbarriers
            stage = 0
            phase ^= 1
        mbarrier.wait(a_landed.index(stage), phase)
        mbarrier.wait(b_landed.index(stage), phase)
        a_first = _load(a_ring.index(stage), 0, 0, A_LAYOUT, mma)
        b_first = _load(b_ring.index(stage), 0, 1, B_LAYOUT, mma)
        sums = mma_v2(a_step, b_step, sums)
        a_step = a_first
        b_step = b_first
    a_step, b_step, sums = _multiply_up_to_last_step(
        a_ring.index(stage), b_ring.index(stage), a_step, b_step, sums, A_LAYOUT, B_LAYOUT, BLOCK_K, mma
    )
    sums = mma_v2(a_step, b_step, sums)

    # Every copy that was started has been waited for, and behind the barrier every tile has been read: what follows may
    # lie in the memory of the ring and of its mbarriers.
    barrier()
    for stage in gl.static_range(STAGES):
        mbarrier.invalidate(a_landed.index(stage))
        mbarrier.invalidate(b_landed.index(stage))
    c_matrix = _describe(c, M, N, stride_c, "n", BLOCK_M, BLOCK_N)
    c_tile = gl.allocate_shared_memory(dtype, c_matrix.block_shape, c_matrix.layout, sums.to(dtype))
    fence_async_shared()  # what was stored is seen by TMA
    async_store(c_matrix, [m, n], c_tile)
    tma.store_wait(0)


@gluon.jit
def _describe(
    matrix, rows, columns, stride, LAYOUT: gl.constexpr, BLOCK_ROWS: gl.constexpr, BLOCK_COLUMNS: gl.constexpr
):
    """The descriptor of a matrix as it is stored, transposed if its layout is "t", and its tiles swizzled."""
    if LAYOUT == "n":
        block: gl.constexpr = [BLOCK_ROWS, BLOCK_COLUMNS]
        tile: gl.constexpr = gl.NVMMASharedLayout.get_default_for(block, matrix.dtype.element_ty)
        return tma.make_tensor_descriptor(matrix, [rows, columns], [stride, 1], block, tile)
    else:
        return _describe(matrix, columns, rows, stride, "n", BLOCK_COLUMNS, BLOCK_ROWS)


@gluon.jit
def _allocate(matrix, STAGES: gl.constexpr):
    """Shared memory for as many tiles of a matrix, swizzled as its descriptor has it."""
    shape: gl.constexpr = [STAGES] + matrix.block_shape  # noqa: RUF005
    return gl.allocate_shared_memory(matrix.dtype, shape, matrix.layout)


@gluon.jit
def _copy(
    stage,
    k_tile,
    k_tiles,
    a_matrix,
    b_matrix,
    m,
    n,
    a_ring,
    b_ring,
    a_landed,
    b_landed,
    A_LAYOUT: gl.constexpr,
    B_LAYOUT: gl.constexpr,
    BLOCK_K: gl.constexpr,
):
    """Starts copying the tiles of A and B at (m, k) and (k, n) into a stage that was read before, if K has that tile.

    Outside of the matrices the copy engine fills in zeros, and counts the bytes of the whole tile either way.
    """
    wanted = k_tile < k_tiles
    k = k_tile * BLOCK_K
    mbarrier.expect(a_landed.index(stage), a_matrix.block_type.nbytes, pred=wanted)
    mbarrier.expect(b_landed.index(stage), b_matrix.block_type.nbytes, pred=wanted)
    # A barrier alone does not wait for an ldmatrix in flight, and the copy engine does not queue behind it as other
    # accesses to shared memory do: each thread fences what it has read, and then all meet.
    fence_async_shared()
    barrier()
    async_load(a_matrix, _stored(m, k, A_LAYOUT), a_landed.index(stage), a_ring.index(stage), pred=wanted)
    async_load(b_matrix, _stored(k, n, B_LAYOUT), b_landed.index(stage), b_ring.index(stage), pred=wanted)


@gluon.jit
def _stored(row, column, LAYOUT: gl.constexpr):
    """Where the element (row, column) of a matrix stands in what is stored."""
    return [row, column] if LAYOUT == "n" else [column, row]


@gluon.jit
def _load(tile, step, OPERAND: gl.constexpr, LAYOUT: gl.constexpr, mma: gl.constexpr):
    """The fragments of the k-step ``step`` of a tile of A, the operand 0, or of B, the operand 1: by ldmatrix."""
    fragments: gl.constexpr = gl.DotOperandLayout(OPERAND, mma, k_width=2)
    if LAYOUT == "t":
        tile = tile.permute([1, 0])
    return tile.slice(step * K_STEP, K_STEP, dim=1 - OPERAND).load(fragments)


@gluon.jit
def _multiply_up_to_last_step(
    a_tile,
    b_tile,
    a_step,
    b_step,
    sums,
    A_LAYOUT: gl.constexpr,
    B_LAYOUT: gl.constexpr,
    BLOCK_K: gl.constexpr,
    mma: gl.constexpr,
):
    """With the first fragments of a tile loaded: multiplies all its k-steps but the last, whose fragments it loads."""
    for step in gl.static_range(1, BLOCK_K // K_STEP):
        a_next = _load(a_tile, step, 0, A_LAYOUT, mma)
        b_next = _load(b_tile, step, 1, B_LAYOUT, mma)
        sums = mma_v2(a_step, b_step, sums)
        a_step = a_next
        b_step = b_next
    return a_step, b_step, sums


def launch(a: Tensor, b: Tensor, out: Tensor, config: str) -> None:
    """Writes ``a @ b`` into ``out``, as ``tma.launch`` does."""
    launch_by(_launcher, a, b, out, config, ring_options)


def bind(problem: Problem, config: str) -> LaunchAt | None:
    """``launch`` by address, as ``tma.bind`` does."""
    return bind_by(_launcher, problem, config, ring_options)


_launcher = Launcher(matmul_gluon)
