"""Which sums of a tile each warpgroup of ``specialized.py`` has, and as which tensors."""

# Triton would take the annotation of an argument for the type to compile it for.
# mypy: disable-error-code="no-untyped-def"

from triton.experimental import gluon
from triton.experimental.gluon import language as gl

from hgemm.triton_kernels import clusters


@gluon.constexpr_function
def powers_of_two(number):
    """Those whose sum it is, the largest first."""
    return [1 << bit for bit in range(number.bit_length() - 1, -1, -1) if number >> bit & 1]


@gluon.constexpr_function
def sums_of(block_m, block_n, down, across, group):
    """The tensors of sums of the warpgroup ``group``, counted from 0: of each the first row and column in the tile, and
    how many rows and columns.

    Columns that are no power of two are several tensors side by side. Of the 192 rows of two warpgroups each has 64 and
    half of the columns of the last 64: a wider wgmma reads fewer bytes of A for each sum.
    """
    rows, columns = block_m // down, block_n // across
    if rows % 64 and rows > 64:
        assert (rows, down, across) == (96, 2, 1), "of other heights the rows that are left are not one tensor's"
        return (64 * group, 0, 64, columns), (64 * down, columns // down * group, 64, columns // down)
    widths = powers_of_two(columns)
    row, column = group // across * rows, group % across * columns
    return tuple((row, column + sum(widths[:index]), rows, width) for index, width in enumerate(widths))


@gluon.constexpr_function
def columns_before(sums, index):
    """Columns of the tensors before this one."""
    return sum(tensor[3] for tensor in sums[:index])


@gluon.jit
def no_sums(work, SUMS: gl.constexpr, INDEX: gl.constexpr):
    """The tensor ``INDEX`` of these, of zeros."""
    rows: gl.constexpr = SUMS[INDEX][2]
    columns: gl.constexpr = SUMS[INDEX][3]
    wgmma: gl.constexpr = clusters.sums_layout(columns // work.CLUSTER_N, work.CLUSTER_M, work.CLUSTER_N)
    return gl.full([rows, columns], 0, gl.float32, wgmma)
