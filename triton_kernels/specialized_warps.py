"""What the warps of ``specialized.py`` do: device functions, one for each part that a warp or a warpgroup plays."""

# Triton would take the annotation of an argument for the type to compile it for.
# mypy: disable-error-code="no-untyped-def"

from triton.experimental import gluon
from triton.experimental.gluon import language as gl
from triton.experimental.gluon.language.nvidia.hopper import (
    fence_async_shared,
    mbarrier,
    tma,
    warpgroup_mma,
    warpgroup_mma_wait,
)
from triton.language.core import _aggregate as aggregate

from hgemm.triton_kernels import clusters, shared_tiles, tile_order

# Gluon calls functions of its own alone; these are the same text.
grouped_tile = gluon.jit(tile_order.grouped_tile.fn)
item_of = gluon.jit(shared_tiles.item_of.fn)

# Under its name in Triton 3.9, else in 3.6 and 3.7.
async_store = getattr(tma, "async_store", None) or tma.async_copy_shared_to_global


@aggregate
class Work:
    """What all warps of a block know: the ring and how full it is, the tiles of C and the steps of K, and what a tile
    is. The first ``whole`` tiles are an item each, the others ``parts`` items."""

    a_ring: gl.shared_memory_descriptor
    b_ring: gl.shared_memory_descriptor
    filled: gl.shared_memory_descriptor  # an mbarrier a stage: its tiles have arrived
    freed: gl.shared_memory_descriptor  # and: all warpgroups have read them
    freed_by_all: gl.tensor  # in a cluster, instead: those of all blocks have
    tiles_m: gl.tensor
    tiles_n: gl.tensor
    steps: gl.tensor
    whole: gl.tensor
    parts: gl.tensor
    A_LAYOUT: gl.constexpr
    B_LAYOUT: gl.constexpr
    A_COPIES: gl.constexpr  # of a stage, one above the other: that many buffers of the ring of A
    B_COPIES: gl.constexpr  # side by side
    BLOCK_M: gl.constexpr
    BLOCK_N: gl.constexpr
    BLOCK_K: gl.constexpr
    GROUP_M: gl.constexpr
    STAGES: gl.constexpr
    CLUSTER_M: gl.constexpr
    CLUSTER_N: gl.constexpr
    BLOCKS: gl.constexpr  # of a cluster

    @gluon.constexpr_function
    def __init__(self, ring, numbers, a_layout, b_layout, a_copies, b_copies, shape, cluster):
        self.a_ring, self.b_ring, self.filled, self.freed, self.freed_by_all = ring
        self.tiles_m, self.tiles_n, self.steps, self.whole, self.parts = numbers
        self.A_LAYOUT, self.B_LAYOUT = gl.constexpr(a_layout), gl.constexpr(b_layout)
        self.A_COPIES, self.B_COPIES = gl.constexpr(a_copies), gl.constexpr(b_copies)
        self.BLOCK_M, self.BLOCK_N, self.BLOCK_K, self.GROUP_M, self.STAGES = (gl.constexpr(size) for size in shape)
        self.CLUSTER_M, self.CLUSTER_N, self.BLOCKS = (gl.constexpr(size) for size in cluster)

    @gluon.jit
    def items(self):
        return self.whole + (self.tiles_m * self.tiles_n - self.whole) * self.parts

    @gluon.jit
    def before(self, stage):
        """The stage of the step before.

        Not a variable that is set to ``stage`` ahead of the loop and at the end of each step: Triton finds what a loop
        has to carry by running its body once on the values ahead of it, and that one comes out as it went in.
        """
        return gl.where(stage == 0, self.STAGES, stage) - 1

    @gluon.jit
    def item(self, item):
        """The first row and column of C of an item, its place in the workspace, its first step of K and how many."""
        tiles = self.tiles_m * self.tiles_n
        tile, place, first, count = item_of(item, self.whole, tiles, self.parts, self.steps)
        tile_m, tile_n = grouped_tile(tile, self.tiles_m, self.tiles_n, self.GROUP_M)
        return tile_m * self.BLOCK_M, tile_n * self.BLOCK_N, place, first, count


@gluon.jit
def copy(work, a_matrix, b_matrix):
    """The copying warp: fills the ring with the tiles of all items of the block.

    Outside of the matrices the copy engine fills in zeros, and counts the bytes of the whole tile either way.
    """
    if work.BLOCKS > 1:
        clusters.meet()
    stage = 0
    phase = 1  # of an mbarrier without a completed phase, the one before the first counts as completed
    for item in range(gl.program_id(0), work.items(), gl.num_programs(0)):
        m, n, _, first, count = work.item(item)
        for step in range(first, first + count):
            k = step * work.BLOCK_K
            if work.BLOCKS > 1:
                clusters.wait(work.freed_by_all, stage, phase)
            else:
                mbarrier.wait(work.freed.index(stage), phase)
            landed = work.filled.index(stage)
            a_bytes: gl.constexpr = work.A_COPIES * a_matrix.block_type.nbytes // work.CLUSTER_M
            b_bytes: gl.constexpr = work.B_COPIES * b_matrix.block_type.nbytes // work.CLUSTER_N
            bytes_of_each: gl.constexpr = a_bytes + b_bytes
            mbarrier.expect(landed, bytes_of_each)
            for copy in gl.static_range(work.A_COPIES):
                row = m + copy * (work.BLOCK_M // work.A_COPIES)
                a_tile = work.a_ring.index(stage * work.A_COPIES + copy)
                clusters.load(a_matrix, [row, k] if work.A_LAYOUT == "n" else [k, row], landed, a_tile)
            for copy in gl.static_range(work.B_COPIES):
                column = n + copy * (work.BLOCK_N // work.B_COPIES)
                b_tile = work.b_ring.index(stage * work.B_COPIES + copy)
                clusters.load(b_matrix, [k, column] if work.B_LAYOUT == "n" else [column, k], landed, b_tile)
            stage += 1
            if stage == work.STAGES:
                stage = 0
                phase ^= 1
    if work.BLOCKS > 1:
        clusters.meet()


@gluon.jit
def meet():
    """A warp that does nothing but meet those of the other blocks of the cluster."""
    clusters.meet()
    clusters.meet()


@gluon.jit
def _multiply(
    work,
    c_ring,
    c_matrix,
    sums,
    DOWN: gl.constexpr,
    ACROSS: gl.constexpr,
    C_BUFFERS: gl.constexpr,
    SHARED: gl.constexpr,
    GROUP: gl.constexpr,
):
    """The multiplying warpgroup GROUP, counted from 0: its part of the tile of C of all items of the block."""
    rows: gl.constexpr = work.BLOCK_M // DOWN
    columns: gl.constexpr = work.BLOCK_N // ACROSS
    row: gl.constexpr = GROUP // ACROSS * rows
    column: gl.constexpr = GROUP % ACROSS * columns
    copied_rows: gl.constexpr = work.BLOCK_M // work.A_COPIES
    copied_columns: gl.constexpr = work.BLOCK_N // work.B_COPIES
    wgmma: gl.constexpr = clusters.sums_layout(columns // work.CLUSTER_N, work.CLUSTER_M, work.CLUSTER_N)
    if work.BLOCKS > 1:
        clusters.meet()
    stage = 0
    phase = 0
    for item in range(gl.program_id(0), work.items(), gl.num_programs(0)):
        m, n, place, _, count = work.item(item)
        tile_sums = gl.full([rows, columns], 0, gl.float32, wgmma)
        for step in range(count):
            a_tile = work.a_ring.index(stage * work.A_COPIES + row // copied_rows)
            b_tile = work.b_ring.index(stage * work.B_COPIES + column // copied_columns)
            if work.A_LAYOUT == "t":
                a_tile = a_tile.permute([1, 0])
            if work.B_LAYOUT == "t":
                b_tile = b_tile.permute([1, 0])
            if rows < copied_rows:
                a_tile = a_tile.slice(row % copied_rows, rows, dim=0)
            if columns < copied_columns:
                b_tile = b_tile.slice(column % copied_columns, columns, dim=1)
            mbarrier.wait(work.filled.index(stage), phase)
            tile_sums = warpgroup_mma(a_tile, b_tile, tile_sums, is_async=True)
            tile_sums = warpgroup_mma_wait(1, deps=[tile_sums])
            if work.BLOCKS > 1:
                clusters.arrive(work.freed_by_all, work.before(stage), step > 0, work.BLOCKS)
            else:
                mbarrier.arrive(work.freed.index(work.before(stage)), pred=step > 0)
            stage += 1
            if stage == work.STAGES:
                stage = 0
                phase ^= 1
        tile_sums = warpgroup_mma_wait(0, deps=[tile_sums])
        if work.BLOCKS > 1:
            clusters.arrive(work.freed_by_all, work.before(stage), True, work.BLOCKS)
        else:
            mbarrier.arrive(work.freed.index(work.before(stage)))
        if SHARED and item >= work.whole:
            part = sums + place.to(gl.int64) * (work.BLOCK_M * work.BLOCK_N)
            down = row + gl.arange(0, rows, gl.SliceLayout(1, wgmma))
            across = column + gl.arange(0, columns, gl.SliceLayout(0, wgmma))
            gl.store(part + down[:, None] * work.BLOCK_N + across[None, :], tile_sums)
        else:
            _store(tile_sums, c_ring, c_matrix, m + row, n + column, GROUP, 0, C_BUFFERS)
    tma.store_wait(0)
    if work.BLOCKS > 1:
        clusters.meet()


@gluon.jit
def multiply_first(work, c_ring, c_matrix, sums, DOWN, ACROSS, C_BUFFERS, SHARED):
    _multiply(work, c_ring, c_matrix, sums, DOWN, ACROSS, C_BUFFERS, SHARED, 0)


@gluon.jit
def multiply_second(work, c_ring, c_matrix, sums, DOWN, ACROSS, C_BUFFERS, SHARED):
    _multiply(work, c_ring, c_matrix, sums, DOWN, ACROSS, C_BUFFERS, SHARED, 1)


@gluon.jit
def multiply_third(work, c_ring, c_matrix, sums, DOWN, ACROSS, C_BUFFERS, SHARED):
    _multiply(work, c_ring, c_matrix, sums, DOWN, ACROSS, C_BUFFERS, SHARED, 2)


@gluon.jit
def _store(tile_sums, c_ring, c_matrix, m, n, GROUP: gl.constexpr, FIRST_PIECE: gl.constexpr, C_BUFFERS: gl.constexpr):
    """Rounds a tile and stores it at (m, n), halved until it is as wide as a buffer: the first piece in a warpgroup's
    first buffer, and so on in turn."""
    columns: gl.constexpr = c_matrix.block_shape[1]
    if tile_sums.shape[1] == columns:
        buffer = c_ring.index(GROUP * C_BUFFERS + FIRST_PIECE % C_BUFFERS)
        tma.store_wait(C_BUFFERS - 1)  # the store before from this buffer has read it
        buffer.store(tile_sums.to(c_matrix.dtype))
        fence_async_shared()  # what was written is seen by TMA
        async_store(c_matrix, [m, n], buffer)
    else:
        half: gl.constexpr = tile_sums.shape[1] // 2
        left, right = tile_sums.reshape([tile_sums.shape[0], 2, half]).permute(0, 2, 1).split()
        _store(left, c_ring, c_matrix, m, n, GROUP, FIRST_PIECE, C_BUFFERS)
        _store(right, c_ring, c_matrix, m, n + half, GROUP, FIRST_PIECE + half // columns, C_BUFFERS)
