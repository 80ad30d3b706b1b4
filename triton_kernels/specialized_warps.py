"""What the warps of ``specialized.py`` do: device functions, one for each part that a warp or a warpgroup plays."""

# Triton would take the annotation of an argument for the type to compile it for. Tuples grow tensor by tensor.
# mypy: disable-error-code="no-untyped-def, assignment"

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

# Under their names in Triton 3.9, else in the older ones.
async_store = getattr(tma, "async_store", None) or tma.async_copy_shared_to_global
reinterpret = getattr(gl.shared_memory_descriptor, "reinterpret", None) or gl.shared_memory_descriptor._reinterpret


@gluon.constexpr_function
def powers_of_two(number):
    """Those whose sum it is, the largest first."""
    return [1 << bit for bit in range(number.bit_length() - 1, -1, -1) if number >> bit & 1]


@aggregate
class Work:
    """What all warps of a block know: the ring and how full it is, the tiles of C and the steps of K, and what a tile
    is. The first ``whole`` tiles are an item each, the others ``parts`` items.

    The sums of a warpgroup are one tensor, or where its columns are no power of two several side by side: of 192 one of
    128 and one of 64. Each has a ring for its columns of B.
    """

    a_ring: gl.shared_memory_descriptor
    b_rings: gl.tuple  # of shared_memory_descriptor
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
    B_COPIES: gl.tuple  # side by side, of a stage of each ring
    B_COLUMNS: gl.constexpr  # of a copy
    FIRSTS: gl.tuple  # the first column of each tensor of a warpgroup's sums,
    WIDTHS: gl.tuple  # and how many it has
    BLOCK_M: gl.constexpr
    BLOCK_N: gl.constexpr
    BLOCK_K: gl.constexpr
    GROUP_M: gl.constexpr
    STAGES: gl.constexpr
    CLUSTER_M: gl.constexpr
    CLUSTER_N: gl.constexpr
    BLOCKS: gl.constexpr  # of a cluster

    @gluon.constexpr_function
    def __init__(self, ring, numbers, a_layout, b_layout, a_copies, b_columns, widths, shape, cluster):
        self.a_ring, self.b_rings, self.filled, self.freed, self.freed_by_all = ring
        self.tiles_m, self.tiles_n, self.steps, self.whole, self.parts = numbers
        self.A_LAYOUT, self.B_LAYOUT = gl.constexpr(a_layout), gl.constexpr(b_layout)
        self.A_COPIES, self.B_COLUMNS = gl.constexpr(a_copies), gl.constexpr(b_columns)
        self.FIRSTS = gl.tuple([gl.constexpr(sum(widths[:index])) for index in range(len(widths))])
        self.WIDTHS = gl.tuple([gl.constexpr(width) for width in widths])
        self.BLOCK_M, self.BLOCK_N, self.BLOCK_K, self.GROUP_M, self.STAGES = (gl.constexpr(size) for size in shape)
        self.B_COPIES = gl.tuple([gl.constexpr(ring.shape[0] // self.STAGES.value) for ring in self.b_rings])
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
    def a_tile(self, stage, FIRST: gl.constexpr, ROWS: gl.constexpr):
        """Rows of a stage of A, of one copy."""
        copied: gl.constexpr = self.BLOCK_M // self.A_COPIES
        a_tile = self.a_ring.index(stage * self.A_COPIES + FIRST // copied)
        if self.A_LAYOUT == "t":
            a_tile = a_tile.permute([1, 0])
        if ROWS < copied:
            a_tile = a_tile.slice(FIRST % copied, ROWS, dim=0)
        return a_tile

    @gluon.jit
    def b_tile(self, stage, RING: gl.constexpr, FIRST: gl.constexpr, WIDTH: gl.constexpr):
        """``WIDTH`` columns of a stage of a ring of B, from ``FIRST`` of that ring on. If a copy has fewer: the copies
        of a stage lie one behind the other as the parts of one wide tile do, so the ring is read as one of wide tiles.
        """
        ring = self.b_rings[RING]
        if WIDTH > self.B_COLUMNS:
            tile: gl.constexpr = [self.BLOCK_K, WIDTH] if self.B_LAYOUT == "n" else [WIDTH, self.BLOCK_K]
            b_tile = reinterpret(ring, ring.dtype, [self.STAGES] + tile, ring.layout).index(stage)  # noqa: RUF005
        else:
            b_tile = ring.index(stage * self.B_COPIES[RING] + FIRST // self.B_COLUMNS)
        if self.B_LAYOUT == "t":
            b_tile = b_tile.permute([1, 0])
        if WIDTH < self.B_COLUMNS:
            b_tile = b_tile.slice(FIRST % self.B_COLUMNS, WIDTH, dim=1)
        return b_tile

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
            b_copies: gl.constexpr = work.BLOCK_N // work.B_COLUMNS
            b_bytes: gl.constexpr = b_copies * b_matrix.block_type.nbytes // work.CLUSTER_N
            bytes_of_each: gl.constexpr = a_bytes + b_bytes
            mbarrier.expect(landed, bytes_of_each)
            for copy in gl.static_range(work.A_COPIES):
                row = m + copy * (work.BLOCK_M // work.A_COPIES)
                a_tile = work.a_ring.index(stage * work.A_COPIES + copy)
                clusters.load(a_matrix, [row, k] if work.A_LAYOUT == "n" else [k, row], landed, a_tile)
            for ring in gl.static_range(len(work.B_COPIES)):
                for copy in gl.static_range(work.B_COPIES[ring]):
                    column = n + work.FIRSTS[ring] + copy * work.B_COLUMNS
                    b_tile = work.b_rings[ring].index(stage * work.B_COPIES[ring] + copy)
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
    tensors: gl.constexpr = len(work.WIDTHS)
    if work.BLOCKS > 1:
        clusters.meet()
    stage = 0
    phase = 0
    for item in range(gl.program_id(0), work.items(), gl.num_programs(0)):
        m, n, place, _, count = work.item(item)
        tile_sums = ()
        for index in gl.static_range(tensors):
            tile_sums += (_no_sums(work, rows, work.WIDTHS[index]),)
        for step in range(count):
            a_tile = work.a_tile(stage, row, rows)
            b_tiles = ()
            for index in gl.static_range(tensors):
                b_tiles += (work.b_tile(stage, index, column, work.WIDTHS[index]),)
            mbarrier.wait(work.filled.index(stage), phase)
            tile_sums = _wait(_start(a_tile, b_tiles, tile_sums), tensors)
            if work.BLOCKS > 1:
                clusters.arrive(work.freed_by_all, work.before(stage), step > 0, work.BLOCKS)
            else:
                mbarrier.arrive(work.freed.index(work.before(stage)), pred=step > 0)
            stage += 1
            if stage == work.STAGES:
                stage = 0
                phase ^= 1
        tile_sums = _wait(tile_sums, 0)
        if work.BLOCKS > 1:
            clusters.arrive(work.freed_by_all, work.before(stage), True, work.BLOCKS)
        else:
            mbarrier.arrive(work.freed.index(work.before(stage)))
        if SHARED and item >= work.whole:
            part = sums + place.to(gl.int64) * (work.BLOCK_M * work.BLOCK_N)
            for index in gl.static_range(tensors):
                _leave(tile_sums[index], part, row, column + work.FIRSTS[index], work.BLOCK_N)
        else:
            width: gl.constexpr = c_matrix.block_shape[1]
            for index in gl.static_range(tensors):
                x = n + column + work.FIRSTS[index]
                _store(tile_sums[index], c_ring, c_matrix, m + row, x, GROUP, work.FIRSTS[index] // width, C_BUFFERS)
    tma.store_wait(0)
    if work.BLOCKS > 1:
        clusters.meet()


@gluon.jit
def _no_sums(work, rows: gl.constexpr, columns: gl.constexpr):
    wgmma: gl.constexpr = clusters.sums_layout(columns // work.CLUSTER_N, work.CLUSTER_M, work.CLUSTER_N)
    return gl.full([rows, columns], 0, gl.float32, wgmma)


@gluon.jit
def _start(a_tile, b_tiles, tile_sums):
    """Starts the wgmma of a step, a group of them for each tensor of sums."""
    started = ()
    for index in gl.static_range(len(tile_sums)):
        started += (warpgroup_mma(a_tile, b_tiles[index], tile_sums[index], is_async=True),)
    return started


@gluon.jit
def _wait(tile_sums, LEFT: gl.constexpr):
    """Waits until no more than the last ``LEFT`` groups of wgmma are going on."""
    if len(tile_sums) == 1:
        return (warpgroup_mma_wait(LEFT, deps=tile_sums),)
    else:
        return warpgroup_mma_wait(LEFT, deps=tile_sums)


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
def _leave(tile_sums, part, row, column, BLOCK_N: gl.constexpr):
    """Stores sums as they are, at (row, column) of a part of a tile."""
    rows = row + gl.arange(0, tile_sums.shape[0], gl.SliceLayout(1, tile_sums.type.layout))
    columns = column + gl.arange(0, tile_sums.shape[1], gl.SliceLayout(0, tile_sums.type.layout))
    gl.store(part + rows[:, None] * BLOCK_N + columns[None, :], tile_sums)


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
