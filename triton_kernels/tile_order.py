"""Which output tile a program computes: device functions that every kernel of this folder shares."""

# Triton would take the annotation of an argument for the type to compile it for.
# mypy: disable-error-code="no-untyped-def"

import triton
import triton.language as tl


@triton.jit
def tile_count(extent, BLOCK: tl.constexpr):
    """Tiles of ``BLOCK`` that cover ``extent`` >= 1; written so that it cannot overflow for any ``extent``."""
    return (extent - 1) // BLOCK + 1


@triton.jit
def grouped_tile(program, tiles_m, tiles_n, GROUP_M: tl.constexpr):
    """The row and the column, in tiles, of the output tile of ``program``.

    Programs that run at the same time should share operands in the L2 cache. Row after row would read all of B for each
    row of tiles; here ``GROUP_M`` rows of tiles are walked down and then one column on, so that W programs touch
    about GROUP_M tiles of A and W / GROUP_M of B. The last group is shorter if GROUP_M does not divide ``tiles_m``.
    """
    programs_per_group = GROUP_M * tiles_n
    first_m = program // programs_per_group * GROUP_M
    rows = tl.minimum(tiles_m - first_m, GROUP_M)
    within = program % programs_per_group
    return first_m + within % rows, within // rows
