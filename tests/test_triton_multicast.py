"""Clusters of the specialised kernel, compiled with no GPU: who sends tiles to whom, and what each block waits for."""

import functools
import itertools
import re
from collections import Counter
from collections.abc import Iterator

import pytest
import torch
import triton
from ptx_block import A, B, Block, Hang, Race, box_shapes, run_cluster

from hgemm.config import Config, warp_tile
from hgemm.devices import LIMITS
from hgemm.triton_kernels.compile_ahead import Compiled, compile_ahead
from hgemm.triton_kernels.configs import TMA
from hgemm.triton_kernels.specialized_configs import (
    MULTICAST,
    programs_of,
    sharing_of,
    specialized_options,
)

pytestmark = pytest.mark.skipif(
    triton.__version__.startswith("3.6."), reason="Gluon of Triton 3.6 sends no tile to several blocks"
)

CLUSTER = "64x64x128_s6_w32x32_multicast-b_specialized"
PROGRAMS = 2


@pytest.fixture(autouse=True, scope="module")
def kept_for_this_file(own_cache: None) -> Iterator[None]:
    yield
    made.cache_clear()


@functools.cache
def made(config: str, layout: str = "nt") -> Compiled:
    return compile_ahead(TMA, config, torch.bfloat16, 90, layout=layout)


@pytest.mark.parametrize("config", MULTICAST)
def test_a_cluster_fits_and_its_shared_tiles_are_sent_by_one_block(config: str) -> None:
    code, parsed = made(config), Config.parse(config)
    down, across = parsed.cluster_shape
    assert f".reqnctapercluster {parsed.cluster}" in code.ptx
    assert (parsed.warp_m, parsed.warp_n) == warp_tile(parsed.tile_m, parsed.tile_n, parsed.warps)
    assert code.threads == 32 * (parsed.warps + 4)
    assert code.spill_loads == code.stack_bytes == 0
    assert code.shared_bytes == MULTICAST[config] == TMA.shared_bytes(config, 90, "nn")
    assert code.shared_bytes <= LIMITS[9, 0].shared_bytes_per_block
    assert code.registers * code.threads <= LIMITS[9, 0].registers_per_multiprocessor
    # Boxes of 64 elements of K. A is copied by warpgroup, and of B 192 columns are three copies.
    boxes = parsed.tile_k // 64
    copies_of_a = boxes * (parsed.warps // 4 if parsed.tile_m > 64 else 1)
    copies_of_b = boxes * (3 if parsed.tile_n % 3 == 0 else 1)
    sent = len(re.findall(r"tensor\.2d\.shared::cluster\.global\S*\.multicast::cluster", code.ptx))
    assert sent == copies_of_a * (across > 1) + copies_of_b * (down > 1)
    copied = len(re.findall(r"tensor\.2d\.shared::\w+\.global", code.ptx))
    assert copied == copies_of_a + copies_of_b
    # A block expects what it is sent, whoever sends it.
    stage_bytes = 2 * parsed.tile_k * (parsed.tile_m + parsed.tile_n)
    assert set(re.findall(r"expect_tx\S* _, \[%r\d+\], (\d+);", code.ptx)) == {str(stage_bytes)}


def run_clusters(config: str, ptx: str, seed: int, layout: str = "nt") -> Iterator[Block]:
    """The blocks of a product of 3 x 3 tiles of clusters, the last partly full, with more steps of K than stages."""
    options, size = specialized_options(config), Config.parse(config).cluster
    M, N, K = 3 * options["BLOCK_M"] - 42, 3 * options["BLOCK_N"] - 8, depth(config)
    boxes = box_shapes(config, layout)
    numbers = [M, N, K, 8, 3] if config.endswith("_tail") else [M, N, K, 9, 1]
    for program in range(PROGRAMS):
        cluster = [
            Block(ptx, numbers, boxes, program, PROGRAMS, 8 * seed + 4 * program + rank, rank, size)
            for rank in range(size)
        ]
        run_cluster(cluster)
        yield from cluster


def depth(config: str) -> int:
    parsed = Config.parse(config)
    return (parsed.stages + 3) * parsed.tile_k - 24


def turns_of(config: str, products: list[set[tuple[int, ...]]]) -> list[tuple[int, int, int]]:
    """First row, first column and step of what a warpgroup multiplied, turn by turn; operands are stored along K."""
    parsed, options = Config.parse(config), specialized_options(config)
    rows, columns, step = parsed.tile_m // options["DOWN"], parsed.tile_n // options["ACROSS"], parsed.tile_k
    found = []
    for turn, operands in enumerate(products, 1):
        m, n = (min(row for _, matrix, _, row in operands if matrix == wanted) for wanted in (A, B))
        k = min(column for _, _, column, _ in operands)
        along_k = range(k, k + step, 64)
        expected = {(turn, A, x, y) for x in along_k for y in range(m, m + rows, 64)}
        assert operands == expected | {(turn, B, x, y) for x in along_k for y in range(n, n + columns, 64)}
        found.append((m, n, k // step))
    return found


@pytest.mark.parametrize("config", MULTICAST)
def test_every_block_multiplies_its_own_tiles_and_stores_them(config: str) -> None:
    options, parsed = specialized_options(config), Config.parse(config)
    rows, columns = parsed.tile_m // options["DOWN"], parsed.tile_n // options["ACROSS"]
    width, steps = min(64, columns), -(-depth(config) // parsed.tile_k)
    multiplied: Counter[tuple[int, int, int]] = Counter()
    stored: Counter[tuple[int, int]] = Counter()
    for block in run_clusters(config, made(config).ptx, 5):
        busy = [warp for warp in block.warps if warp.products]
        assert len(busy) == parsed.warps
        for first in range(0, parsed.warps, 4):
            warps = busy[first : first + 4]
            assert all(warp.products == warps[0].products for warp in warps)
            turns = turns_of(config, warps[0].products)
            multiplied.update(turns)
            tiles = [(m, n, len(list(run))) for (m, n), run in itertools.groupby(turns, lambda turn: turn[:2])]
            pieces = [(n + x, m) for m, n, count in tiles if count == steps for x in range(0, columns, width)]
            assert [corner for warp in warps for corner in warp.stores] == pieces
            stored.update(pieces)
    firsts = range(0, 3 * options["BLOCK_M"], rows), range(0, 3 * options["BLOCK_N"], columns)
    assert multiplied == Counter(itertools.product(*firsts, range(steps)))
    assert stored.total() == len(stored)
    whole = 8 if config.endswith("_tail") else 9
    all_pieces = len(firsts[0]) * 3 * options["BLOCK_N"] // width
    assert len(stored) == all_pieces * whole // 9


@pytest.mark.one_triton
@pytest.mark.parametrize("layout", ["nn", "tn", "tt"])
def test_no_layout_hangs_or_overwrites_what_is_read(layout: str) -> None:
    options, parsed = specialized_options(CLUSTER), Config.parse(CLUSTER)
    code = made(CLUSTER, layout)
    assert code.spill_loads == code.stack_bytes == 0
    stored = Counter(
        corner for block in run_clusters(CLUSTER, code.ptx, 6, layout) for warp in block.warps for corner in warp.stores
    )
    rows, width = parsed.tile_m // options["DOWN"], min(64, parsed.tile_n // options["ACROSS"])
    pieces = itertools.product(range(0, 3 * options["BLOCK_N"], width), range(0, 3 * options["BLOCK_M"], rows))
    assert stored == Counter(pieces)


ARRIVALS = r"mbarrier\.init\S+ \[%r\d+\], "


@pytest.mark.one_triton
@pytest.mark.parametrize(
    ("pattern", "replacement"),
    [
        # A block's own warpgroup alone: a stage is sent while it is read. Or one that is not there.
        (rf"({ARRIVALS})2;", r"\g<1>1;"),
        (rf"({ARRIVALS})2;", r"\g<1>3;"),
        # Each arrives in its own block alone, or in one.
        (r"setp\.lt\.u32 %arrives, %rank, (%r\d+);", r"setp.lt.u32 %arrives, %rank, 1;"),
        (r"(mapa\.shared::cluster\.u32 %remote, %r\d+), %rank;", r"\1, %cluster_ctarank;"),
        # One block is sent the tile, or the bytes are not all expected.
        (r"mov\.b16 (\s*%rs\d+), 3;", r"mov.b16 \1, 1;"),
        (r"mov\.b16 (\s*%rs\d+), 3;", r"mov.b16 \1, 2;"),
        (r"expect_tx(\S+) _, \[(%r\d+)\], 32768", r"expect_tx\1 _, [\2], 24576"),
        # The copying warp does not wait for the stage.
        (r"mbarrier\.try_wait[^;]*;(\s*@!complete bra\.uni waitLoop;\s*mov)", r"\1"),
        # Nobody waits for the others, before the first tile is sent and after the last one.
        (r"barrier\.cluster\.wait\.acquire\.aligned;", ""),
        # A warp does not come where all have to.
        (r"barrier\.cluster\.arrive\.relaxed\.aligned;(?!.*barrier\.cluster\.arrive)", ""),
    ],
)
def test_a_cluster_out_of_step_is_found(pattern: str, replacement: str) -> None:
    ptx, count = re.subn(pattern, replacement, made(CLUSTER).ptx, flags=re.DOTALL)
    assert count
    with pytest.raises((Hang, Race)):
        for seed in range(12):
            for _ in run_clusters(CLUSTER, ptx, seed):
                pass


def test_the_tiles_of_a_cluster_are_one_where_the_last_wave_is_shared() -> None:
    config = Config.parse("128x256x64_s4_w64x64_multicast-b_specialized_tail")
    assert programs_of(config, 132) == 66
    assert specialized_options(config.name)["num_ctas"] == 2
    assert programs_of(Config.parse(CLUSTER), 8) == 4
    # 8 x 12 tiles of 256 x 256: one wave of 66 and 30 left.
    whole, parts = sharing_of(config, 132, 2048, 3072, 8192)
    assert (whole, parts) == (66, 2)
    assert sharing_of(Config.parse(config.name.removesuffix("_tail")), 132, 2048, 3072, 8192) == (96, 1)
    # 65 rows are two tiles of 64, and one of the cluster.
    assert sharing_of(Config.parse(CLUSTER), 132, 65, 64, 64) == (1, 1)
