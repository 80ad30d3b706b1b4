"""What the warps of ``specialized.py`` do: device functions, one for each part that a warp or a warpgroup plays."""

# Triton would take the annotation of an argument for the type to compile it for. Tuples grow tensor by tensor.
# mypy: disable-error-code="no-untyped-def, assignment"

from triton.experimental import gluon
from triton.experimental.gluon import language as gl
from triton.experimental.gluon.language.nvidia.hopper import (
    mbarrier,
    tma,
    warpgroup_mma,
    warpgroup_mma_wait,
)
from triton.language.core import _aggregate as aggregate
from triton.language.extra.cuda import gdc_wait

from hgemm.triton_kernels import clusters, shared_tiles, tile_order
from hgemm.triton_kernels.specialized_store import leave, rounded_pieces, store
from hgemm.triton_kernels.specialized_sums import columns_before, no_sums, sums_of

# Gluon calls functions of its own alone; these are the same text.
grouped_tile = gluon.jit(tile_order.grouped_tile.fn)
item_of = gluon.jit(shared_tiles.item_of.fn)

# Under its name in Triton 3.9, else in the older ones.
reinterpret = getattr(gl.shared_memory_descriptor, "reinterpret", None) or gl.shared_memory_descriptor._reinterpret


@aggregate
class Work:
    """What all warps of a block know: the ring and how full it is, the tiles of C and the steps of K, and what a tile
    is. The first ``whole`` tiles are an item each, the others ``parts`` items.

    B has one ring, or where its columns are no power of two several: of 192 one for 128 and one for 64.
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
    B_FIRSTS: gl.tuple  # the first column of each ring
    BLOCK_M: gl.constexpr
    BLOCK_N: gl.constexpr
    BLOCK_K: gl.constexpr
    GROUP_M: gl.constexpr
    STAGES: gl.constexpr
    CLUSTER_M: gl.constexpr
    CLUSTER_N: gl.constexpr
    BLOCKS: gl.constexpr  # of a cluster
    SHARED: gl.constexpr
    STORE_STEPS: gl.constexpr  # of a tile, in which the one before is stored

    @gluon.constexpr_function
    def __init__(
        self, ring, numbers, a_layout, b_layout, a_copies, b_columns, widths, shape, cluster, shared, store_steps
    ):
        self.a_ring, self.b_rings, self.filled, self.freed, self.freed_by_all = ring
        self.tiles_m, self.tiles_n, self.steps, self.whole, self.parts = numbers
        self.A_LAYOUT, self.B_LAYOUT = gl.constexpr(a_layout), gl.constexpr(b_layout)
        self.A_COPIES, self.B_COLUMNS = gl.constexpr(a_copies), gl.constexpr(b_columns)
        self.B_FIRSTS = gl.tuple([gl.constexpr(sum(widths[:index])) for index in range(len(widths))])
        self.BLOCK_M, self.BLOCK_N, self.BLOCK_K, self.GROUP_M, self.STAGES = (gl.constexpr(size) for size in shape)
        self.B_COPIES = gl.tuple([gl.constexpr(ring.shape[0] // self.STAGES.value) for ring in self.b_rings])
        self.CLUSTER_M, self.CLUSTER_N, self.BLOCKS = (gl.constexpr(size) for size in cluster)
        self.SHARED, self.STORE_STEPS = gl.constexpr(shared), gl.constexpr(store_steps)

    @gluon.jit
    def items(self):
        tiles = self.tiles_m * self.tiles_n
        return self.whole + (tiles - self.whole) * self.parts if self.SHARED else tiles

    @gluon.jit
    def after(self, stage, phase):
        """The stage of the step after, and the parity of its phase."""
        wraps = stage + 1 == self.STAGES
        return gl.where(wraps, 0, stage + 1), gl.where(wraps, phase ^ 1, phase)

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
    def b_tile(self, stage, COLUMN: gl.constexpr, WIDTH: gl.constexpr):
        """Columns of a stage of B, all in one ring. If a copy has fewer: the copies of a stage lie one behind the other
        as the parts of one wide tile do, so the ring is read as one of wide tiles.
        """
        RING: gl.constexpr = _ring_of(self.B_FIRSTS, COLUMN)
        FIRST: gl.constexpr = COLUMN - self.B_FIRSTS[RING]
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
        """The tile of an item, its place in the workspace, its first step of K and how many."""
        if self.SHARED:
            return item_of(item, self.whole, self.tiles_m * self.tiles_n, self.parts, self.steps)
        else:
            return item, 0, 0, self.steps

    @gluon.jit
    def corner(self, tile):
        """The first row and column of C of a tile."""
        tile_m, tile_n = grouped_tile(tile, self.tiles_m, self.tiles_n, self.GROUP_M)
        return tile_m * self.BLOCK_M, tile_n * self.BLOCK_N


@gluon.constexpr_function
def _ring_of(firsts, column):
    """The ring of B that has a column, of rings with these first ones."""
    return max(index for index in range(len(firsts)) if firsts[index] <= column)


@gluon.jit
def copy(work, a_matrix, b_matrix):
    """The copying warp: fills the ring with the tiles of all items of the block.

    Outside of the matrices the copy engine fills in zeros, and counts the bytes of the whole tile either way.
    """
    if work.BLOCKS > 1:
        clusters.meet()
    gdc_wait()  # for the kernel in front: it may have written what is copied, and may read what is stored
    stage = 0
    phase = 1  # of an mbarrier without a completed phase, the one before the first counts as completed
    for item in range(gl.program_id(0), work.items(), gl.num_programs(0)):
        tile, _, first, count = work.item(item)
        m, n = work.corner(tile)
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
                    column = n + work.B_FIRSTS[ring] + copy * work.B_COLUMNS
                    b_tile = work.b_rings[ring].index(stage * work.B_COPIES[ring] + copy)
                    clusters.load(b_matrix, [k, column] if work.B_LAYOUT == "n" else [column, k], landed, b_tile)
            stage, phase = work.after(stage, phase)
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
    GROUP: gl.constexpr,
):
    """The multiplying warpgroup GROUP, counted from 0: its part of the tile of C of all items of the block."""
    SUMS: gl.constexpr = sums_of(work.BLOCK_M, work.BLOCK_N, DOWN, ACROSS, GROUP)
    gl.static_assert(work.STORE_STEPS > 0 or len(SUMS) == 2, "one tensor of sums is stored at once, and one later")
    if work.BLOCKS > 1:
        clusters.meet()
    tile_sums = ()  # overwritten by the first wgmma of each item
    for index in gl.static_range(len(SUMS)):
        tile_sums += (no_sums(work, SUMS, index),)
    columns: gl.constexpr = c_matrix.block_shape[1]  # of a piece of C
    rounded = rounded_pieces(tile_sums, c_matrix.dtype, columns) if work.STORE_STEPS > 0 else ()
    tile, pending = 0, 0  # the one before, and whether some of it is yet to be stored
    stage = 0
    phase = 0
    for item in range(gl.program_id(0), work.items(), gl.num_programs(0)):
        for step in gl.static_range(work.STORE_STEPS):  # the first steps, behind which the tile before is stored
            tile_sums = _start(work, stage, phase, tile_sums, step > 0, SUMS, 0, len(SUMS))
            if step > 0:
                tile_sums = _wait(tile_sums, len(SUMS))
                _free(work, stage, True)
            if pending > 0:
                _store_piece(work, rounded, c_ring, c_matrix, tile, SUMS, step, GROUP, C_BUFFERS)
            stage, phase = work.after(stage, phase)
        if work.STORE_STEPS == 0:  # the second tensor of the tile before, behind the wgmma of the first one
            first = _start(work, stage, phase, tile_sums, False, SUMS, 0, 1)
            if pending > 0:
                _store_sums(work, tile_sums, c_ring, c_matrix, tile, SUMS, 1, GROUP, C_BUFFERS)
            tile_sums = first + _start(work, stage, phase, tile_sums, False, SUMS, 1, 2)
            stage, phase = work.after(stage, phase)
        tile, place, _, count = work.item(item)
        for _ in range(max(1, work.STORE_STEPS), count):
            tile_sums = _start(work, stage, phase, tile_sums, True, SUMS, 0, len(SUMS))
            tile_sums = _wait(tile_sums, len(SUMS))
            _free(work, stage, True)
            stage, phase = work.after(stage, phase)
        tile_sums = _wait(tile_sums, 0)
        _free(work, stage, True)
        if work.STORE_STEPS > 0:
            rounded = rounded_pieces(tile_sums, c_matrix.dtype, columns)
        pending = gl.where(item < work.whole, 1, 0) if work.SHARED else 1
        if work.SHARED and item >= work.whole:
            place_sums = sums + place.to(gl.int64) * (work.BLOCK_M * work.BLOCK_N)
            for index in gl.static_range(len(SUMS)):
                leave(tile_sums[index], place_sums, SUMS[index][0], SUMS[index][1], work.BLOCK_N)
        elif work.STORE_STEPS == 0:
            _store_sums(work, tile_sums, c_ring, c_matrix, tile, SUMS, 0, GROUP, C_BUFFERS)
    if pending > 0:
        for piece in gl.static_range(work.STORE_STEPS):
            _store_piece(work, rounded, c_ring, c_matrix, tile, SUMS, piece, GROUP, C_BUFFERS)
        if work.STORE_STEPS == 0:
            _store_sums(work, tile_sums, c_ring, c_matrix, tile, SUMS, 1, GROUP, C_BUFFERS)
    tma.store_wait(0)
    if work.BLOCKS > 1:
        clusters.meet()


@gluon.jit
def _store_piece(work, rounded, c_ring, c_matrix, tile, SUMS: gl.constexpr, PIECE, GROUP, C_BUFFERS):
    """Of the rounded pieces one, which have the same rows, and columns side by side."""
    before: gl.constexpr = PIECE * c_matrix.block_shape[1]
    store(work, rounded[PIECE], c_ring, c_matrix, tile, SUMS[0][0], SUMS[0][1] + before, before, GROUP, C_BUFFERS)


@gluon.jit
def _store_sums(work, tile_sums, c_ring, c_matrix, tile, SUMS: gl.constexpr, INDEX, GROUP, C_BUFFERS):
    """Of the tensors of sums one."""
    row, column = SUMS[INDEX][0], SUMS[INDEX][1]
    store(work, tile_sums[INDEX], c_ring, c_matrix, tile, row, column, columns_before(SUMS, INDEX), GROUP, C_BUFFERS)


@gluon.jit
def _start(work, stage, phase, tile_sums, goes_on, SUMS: gl.constexpr, FIRST: gl.constexpr, END: gl.constexpr):
    """Starts the wgmma of a step when its stage is filled, a group of them for each tensor of sums from ``FIRST`` on.
    The first of an item does not go on with what is in these but puts its sums in their place, which spares setting
    them to zero."""
    mbarrier.wait(work.filled.index(stage), phase)
    started = ()
    for index in gl.static_range(FIRST, END):
        a_tile = work.a_tile(stage, SUMS[index][0], SUMS[index][2])
        b_tile = work.b_tile(stage, SUMS[index][1], SUMS[index][3])
        started += (warpgroup_mma(a_tile, b_tile, tile_sums[index], use_acc=goes_on, is_async=True),)
    return started


@gluon.jit
def _free(work, stage, really):
    """Gives back the stage before ``stage``, if ``really``."""
    if work.BLOCKS > 1:
        clusters.arrive(work.freed_by_all, work.before(stage), really, work.BLOCKS)
    else:
        mbarrier.arrive(work.freed.index(work.before(stage)), pred=really)


@gluon.jit
def _wait(tile_sums, LEFT: gl.constexpr):
    """Waits until no more than the last ``LEFT`` groups of wgmma are going on."""
    if len(tile_sums) == 1:
        return (warpgroup_mma_wait(LEFT, deps=tile_sums),)
    else:
        return warpgroup_mma_wait(LEFT, deps=tile_sums)


@gluon.jit
def multiply_first(work, c_ring, c_matrix, sums, DOWN, ACROSS, C_BUFFERS):
    _multiply(work, c_ring, c_matrix, sums, DOWN, ACROSS, C_BUFFERS, 0)


@gluon.jit
def multiply_second(work, c_ring, c_matrix, sums, DOWN, ACROSS, C_BUFFERS):
    _multiply(work, c_ring, c_matrix, sums, DOWN, ACROSS, C_BUFFERS, 1)


@gluon.jit
def multiply_third(work, c_ring, c_matrix, sums, DOWN, ACROSS, C_BUFFERS):
    _multiply(work, c_ring, c_matrix, sums, DOWN, ACROSS, C_BUFFERS, 2)
