"""The last wave of a persistent grid: its tiles of C are shared out along K, among all programs.

With T tiles and P programs the last wave has T mod P tiles, and while these are computed the other programs would
idle. So each of them is cut into equal parts of K, which are items of work like the whole tiles before them. A part
leaves fp32 sums in a workspace, and a second kernel adds those of a tile in the order of the parts and rounds once: the
bits depend on the shape, the configuration and the device, not on an order of arrival. With fewer tiles than programs
every tile is shared.
"""

# Triton would take the annotation of an argument for the type to compile it for.
# mypy: disable-error-code="no-untyped-def"

from typing import Any

import torch
import triton
import triton.language as tl

from hgemm.triton_kernels.launcher import Launch, Launcher
from hgemm.triton_kernels.specialized_configs import Sharing, power_of_two_in

# Relative, as in the other modules of device functions.
from .arithmetic import rounded
from .split_k import ALIGNMENT, wait_for_kernel
from .tile_order import grouped_tile, tile_count

# Rows of a tile that a program of the second kernel adds, all its columns or, of 192, a third: a power of two.
ROWS = 16


@triton.jit
def item_of(item, whole, tiles, parts, steps):
    """What the item of work ``item`` is: its tile, its place in the workspace, and the first of the ``steps`` steps of
    K and how many.

    The first ``whole`` items are a tile each. The others are the parts of the tiles that are left, of all of them the
    first part, then the second, and so on: those that run at the same time read the same steps of K. The place counts
    parts in that order, and means nothing for a whole tile. Parts differ by one step at most.
    """
    shared = item >= whole
    place = item - whole
    left = tl.maximum(tiles - whole, 1)
    part = tl.where(shared, place // left, 0)
    tile = tl.where(shared, whole + place % left, item)
    parts = tl.where(shared, parts, 1)
    first = part * steps // parts
    return tile, place, first, (part + 1) * steps // parts - first


@triton.jit(do_not_specialize=("M", "N", "stride_c", "whole"))
def add_shared_tiles(
    sums,  # places x BLOCK_M x BLOCK_N, contiguous
    c,  # M x N
    M,
    N,
    stride_c,  # elements from one row to the next
    whole,
    PARTS: tl.constexpr,
    BLOCK_M: tl.constexpr,
    BLOCK_N: tl.constexpr,
    GROUP_M: tl.constexpr,
    ROWS: tl.constexpr,
    COLUMNS: tl.constexpr,
):
    wait_for_kernel()
    tiles_m, tiles_n = tile_count(M, BLOCK_M), tile_count(N, BLOCK_N)
    down: tl.constexpr = BLOCK_M // ROWS
    across: tl.constexpr = BLOCK_N // COLUMNS
    program = tl.program_id(0)
    place = program // (down * across)
    tile_m, tile_n = grouped_tile(whole + place, tiles_m, tiles_n, GROUP_M)
    rows = program // across % down * ROWS + tl.arange(0, ROWS)
    columns = program % across * COLUMNS + tl.arange(0, COLUMNS)
    inside = rows[:, None] * BLOCK_N + columns[None, :]
    left = tiles_m * tiles_n - whole
    total = tl.load(sums + place.to(tl.int64) * (BLOCK_M * BLOCK_N) + inside)
    for part in tl.static_range(1, PARTS):
        total += tl.load(sums + (part * left + place).to(tl.int64) * (BLOCK_M * BLOCK_N) + inside)
    rows += tile_m * BLOCK_M
    columns += tile_n * BLOCK_N
    # The compiler is told what TMA needs anyway, so that threads move 16 bytes at a time.
    N = N // ALIGNMENT * ALIGNMENT
    stride_c = stride_c // ALIGNMENT * ALIGNMENT
    tl.store(
        c + rows.to(tl.int64)[:, None] * stride_c + columns[None, :],
        rounded(total, c.dtype.element_ty),
        mask=(rows < M)[:, None] & (columns < N)[None, :],
    )


_launcher = Launcher(add_shared_tiles)


def addition(
    device: torch.device, dtype: torch.dtype, M: int, N: int, stride_c: int, sharing: Sharing, options: dict[str, Any]
) -> Launch:
    """The launch of ``add_shared_tiles`` on a workspace and a C of ``dtype``, directly after the kernel that fills the
    workspace. ``options``: BLOCK_M, BLOCK_N and GROUP_M of that kernel."""
    tile = {name: options[name] for name in ("BLOCK_M", "BLOCK_N", "GROUP_M")}
    columns = power_of_two_in(tile["BLOCK_N"])
    left = -(-M // tile["BLOCK_M"]) * -(-N // tile["BLOCK_N"]) - sharing.whole
    programs = left * (tile["BLOCK_M"] // ROWS) * (tile["BLOCK_N"] // columns)
    constants = {
        **tile,
        "PARTS": sharing.parts,
        "ROWS": ROWS,
        "COLUMNS": columns,
        "num_warps": 4,
        "launch_pdl": True,
        "enable_fp_fusion": True,  # see configs.launch_options
    }
    form = (device, dtype, *tile.values(), sharing.parts)
    return Launch(_launcher, form, programs, (M, N, stride_c, sharing.whole), constants)
