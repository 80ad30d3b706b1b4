"""Where the sums of ``specialized.py`` go: rounded to C by TMA, or as they are to the workspace of shared tiles."""

# Triton would take the annotation of an argument for the type to compile it for. Tuples grow tensor by tensor.
# mypy: disable-error-code="no-untyped-def, assignment"

from triton.experimental import gluon
from triton.experimental.gluon import language as gl
from triton.experimental.gluon.language.nvidia.hopper import fence_async_shared, tma

# Under its name in Triton 3.9, else in the older ones.
async_store = getattr(tma, "async_store", None) or tma.async_copy_shared_to_global


@gluon.jit
def leave(tile_sums, part, row, column, BLOCK_N: gl.constexpr):
    """Stores sums as they are, at (row, column) of a part of a tile."""
    rows = row + gl.arange(0, tile_sums.shape[0], gl.SliceLayout(1, tile_sums.type.layout))
    columns = column + gl.arange(0, tile_sums.shape[1], gl.SliceLayout(0, tile_sums.type.layout))
    gl.store(part + rows[:, None] * BLOCK_N + columns[None, :], tile_sums)


@gluon.jit
def rounded_pieces(tile_sums, dtype: gl.constexpr, COLUMNS: gl.constexpr):
    """A warpgroup's sums in half as many registers, in pieces of ``COLUMNS``, one beside the other."""
    pieces = ()
    for index in gl.static_range(len(tile_sums)):
        pieces += _rounded_pieces(tile_sums[index], dtype, COLUMNS)
    return pieces


@gluon.jit
def _rounded_pieces(sums, dtype: gl.constexpr, COLUMNS: gl.constexpr):
    if sums.shape[1] == COLUMNS:
        return (sums.to(dtype),)
    else:
        left, right = _halves(sums)
        return _rounded_pieces(left, dtype, COLUMNS) + _rounded_pieces(right, dtype, COLUMNS)


@gluon.jit
def store(
    work,
    sums,
    c_ring,
    c_matrix,
    tile,
    row,
    column,
    BEFORE: gl.constexpr,
    GROUP: gl.constexpr,
    C_BUFFERS: gl.constexpr,
):
    """Stores what a warpgroup has of a tile of C, from (``row``, ``column``) of the tile on, and rounds it if it
    is not yet. ``BEFORE``: how many columns of the tile it has stored. Pieces take turns with its buffers."""
    m, n = work.corner(tile)
    _store_at(sums, c_ring, c_matrix, m + row, n + column, BEFORE, GROUP, C_BUFFERS)


@gluon.jit
def _store_at(sums, c_ring, c_matrix, m, n, BEFORE: gl.constexpr, GROUP: gl.constexpr, C_BUFFERS: gl.constexpr):
    columns: gl.constexpr = c_matrix.block_shape[1]
    if sums.shape[1] > columns:
        left, right = _halves(sums)
        width: gl.constexpr = left.shape[1]
        _store_at(left, c_ring, c_matrix, m, n, BEFORE, GROUP, C_BUFFERS)
        _store_at(right, c_ring, c_matrix, m, n + width, BEFORE + width, GROUP, C_BUFFERS)
    else:
        buffer = c_ring.index(GROUP * C_BUFFERS + BEFORE // columns % C_BUFFERS)
        tma.store_wait(C_BUFFERS - 1)  # what was in the buffer has been read
        buffer.store(sums.to(c_ring.dtype))
        fence_async_shared()  # what was written is seen by TMA
        async_store(c_matrix, [m, n], buffer)


@gluon.jit
def _halves(sums):
    """The left and the right columns; each thread has the same of both, so nothing moves."""
    return sums.reshape([sums.shape[0], 2, sums.shape[1] // 2]).permute(0, 2, 1).split()
