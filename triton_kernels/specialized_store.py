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
def rounded_parts(tile_sums, dtype: gl.constexpr, PARTS: gl.constexpr):
    """The one tensor of a warpgroup's sums in half as many registers, in parts one beside the other."""
    return _rounded_parts(tile_sums[0], dtype, PARTS)


@gluon.jit
def _rounded_parts(sums, dtype: gl.constexpr, PARTS: gl.constexpr):
    if PARTS == 1:
        return (sums.to(dtype),)
    else:
        left, right = _halves(sums)
        return _rounded_parts(left, dtype, PARTS // 2) + _rounded_parts(right, dtype, PARTS // 2)


@gluon.jit
def store(
    work,
    sums,
    c_ring,
    c_matrix,
    tile,
    row: gl.constexpr,
    column: gl.constexpr,
    GROUP: gl.constexpr,
    C_BUFFERS: gl.constexpr,
):
    """Stores what a warpgroup has of a tile of C, from (``row``, ``column``) of the tile on, and rounds it if it
    is not yet."""
    m, n = work.corner(tile)
    _store_at(sums, c_ring, c_matrix, m + row, n + column, GROUP, C_BUFFERS)


@gluon.jit
def _store_at(sums, c_ring, c_matrix, m, n, GROUP: gl.constexpr, C_BUFFERS: gl.constexpr):
    """As many columns at a time as the warpgroup's buffers hold."""
    columns: gl.constexpr = c_matrix.block_shape[1]
    if sums.shape[1] > columns * C_BUFFERS:
        left, right = _halves(sums)
        _store_at(left, c_ring, c_matrix, m, n, GROUP, C_BUFFERS)
        _store_at(right, c_ring, c_matrix, m, n + left.shape[1], GROUP, C_BUFFERS)
    else:
        tma.store_wait(0)  # what was in the buffers has been read
        _fill(sums, c_ring, columns, GROUP * C_BUFFERS)
        fence_async_shared()  # what was written is seen by TMA
        for piece in gl.static_range(sums.shape[1] // columns):
            async_store(c_matrix, [m, n + piece * columns], c_ring.index(GROUP * C_BUFFERS + piece))


@gluon.jit
def _fill(sums, c_ring, columns: gl.constexpr, BUFFER: gl.constexpr):
    """Rounds sums into buffers from ``BUFFER`` on, ``columns`` in each."""
    if sums.shape[1] > columns:
        left, right = _halves(sums)
        _fill(left, c_ring, columns, BUFFER)
        _fill(right, c_ring, columns, BUFFER + left.shape[1] // columns)
    else:
        c_ring.index(BUFFER).store(sums.to(c_ring.dtype))


@gluon.jit
def _halves(sums):
    """The left and the right columns; each thread has the same of both, so nothing moves."""
    return sums.reshape([sums.shape[0], 2, sums.shape[1] // 2]).permute(0, 2, 1).split()
