"""A block of the specialised kernel stores a tile while it multiplies the next: in order, once, and for any K."""

import functools
import itertools
import re
from collections.abc import Iterator

import numpy as np
import pytest
import torch
from ptx_block import Block, Race, box_shapes
from ptx_numbers import Product

from hgemm.config import Config
from hgemm.problem import LAYOUTS
from hgemm.triton_kernels.compile_ahead import compile_ahead
from hgemm.triton_kernels.configs import TMA
from hgemm.triton_kernels.specialized_configs import (
    ALONE,
    Sharing,
    share,
    sharing_of,
    specialized_options,
    step_cost,
    store_steps,
)

HALVES = "128x128x64_s6_w64x32_specialized"
THIRDS = "192x192x64_s4_w64x48_specialized"  # of two tensors of sums
QUARTERS = "128x256x64_s3_w64x64_specialized"
MOST = "192x256x64_s3_w96x64_specialized"  # 192 sums a thread
IN_ONE_STEP = "128x64x128_s4_w32x32_specialized_tail"


@pytest.fixture(autouse=True, scope="module")
def kept_for_this_file(own_cache: None) -> Iterator[None]:
    yield
    made.cache_clear()


@functools.cache
def made(config: str, dtype: torch.dtype = torch.bfloat16, layout: str = "nn") -> str:
    return compile_ahead(TMA, config, dtype, 90, layout=layout).ptx


def run(config: str, K: int, tiles: int, programs: int, sharing: Sharing, layout: str = "nn") -> Product:
    """Of as many tiles one above the other, the last partly full. The product has to be exact, whole or of parts."""
    dtype = torch.bfloat16
    options = specialized_options(config)
    M, N = tiles * options["BLOCK_M"] - 42, options["BLOCK_N"] - 24
    generator = torch.Generator().manual_seed(K)
    a, b = (torch.randint(-4, 5, shape, generator=generator).to(dtype) for shape in ((M, K), (K, N)))
    product = Product(config, layout, a, b, *sharing)
    product.run(made(config, dtype, layout), programs, seed=K)
    exact = (a.double() @ b.double()).to(dtype)
    whole = min(M, sharing.whole * options["BLOCK_M"])  # rows
    assert torch.equal(product.c[:whole], exact[:whole])
    assert product.c[whole:].isnan().all()
    if sharing.whole < tiles:
        sums = torch.from_numpy(np.concatenate(product.sums.sum(0)))[: M - whole, :N]
        assert torch.equal(sums.to(dtype), exact[whole:])
    return product


@pytest.mark.parametrize(
    ("config", "K", "layout"),
    [
        *((HALVES, K, "nn") for K in (8, 64, 72, 136, 200)),  # one step that is padded to two, two, and more
        *((IN_ONE_STEP, K, "nn") for K in (8, 136)),
        (THIRDS, 72, "nn"),
        (QUARTERS, 136, "nn"),
        *((MOST, K, layout) for K, layout in zip((8, 72, 72, 136), LAYOUTS, strict=True)),
    ],
)
def test_tiles_one_after_the_other_are_exact_and_stored_once(config: str, K: int, layout: str) -> None:
    tiles = 3 if store_steps(Config.parse(config)) else 2
    product = run(config, K, tiles, 1, Sharing(tiles, 1), layout)
    assert set(product.pieces.values()) == {1}


@pytest.mark.parametrize(("programs", "whole"), [(1, 1), (2, 2), (1, 2)])
def test_a_tile_before_a_part_is_stored_once(programs: int, whole: int) -> None:
    config = HALVES + "_tail"
    product = run(config, 264, 3, programs, Sharing(whole, 2))
    rows, columns = specialized_options(config)["BLOCK_M"] // 2, specialized_options(config)["BLOCK_N"]
    pieces = itertools.product(range(0, columns, 64), range(0, whole * 2 * rows, rows))
    assert product.pieces == dict.fromkeys(pieces, 1)


def test_parts_alone_store_no_piece_of_c() -> None:
    product = run(HALVES + "_tail", 264, 2, 1, Sharing(0, 2))
    assert not product.pieces


def block_of(
    config: str, K: int, tiles: int, sharing: Sharing, program: int = 0, programs: int = 1, ptx: str = ""
) -> Block:
    options = specialized_options(config)
    numbers = [tiles * options["BLOCK_M"], options["BLOCK_N"], K, *sharing]
    ptx = ptx or made(config, layout="nt")
    block = Block(ptx, numbers, box_shapes(config, "nt"), program, programs, seed=K)
    block.run()
    return block


@pytest.mark.parametrize(
    ("config", "tensors", "later"),  # of sums, each with a wgmma for 16 of K; pieces of 64 columns
    [(HALVES, 1, 2), (THIRDS, 2, 3), (QUARTERS, 1, 4), (IN_ONE_STEP, 1, 1), (MOST, 2, 0)],
)
def test_the_tensor_cores_have_work_before_the_tile_before_is_stored(config: str, tensors: int, later: int) -> None:
    options = specialized_options(config)
    products, steps = options["BLOCK_K"] // 16, 5
    block = block_of(config, steps * options["BLOCK_K"], 3, Sharing(3, 1))
    # The first wgmma of an item puts its sums in the place of old ones.
    first, more = "M" + (products - 1) * "m", tensors * products * "m"
    if later:  # a piece of the tile before a step, behind its wgmma
        item = [tensors * first, *[more] * (steps - 1)]
        after = "".join(step + ("S" if index < later else "") for index, step in enumerate(item))
        expected = "".join(item) + 2 * after + later * "S"
    else:  # the first tensor at once, the second behind the wgmma of the first one
        tile = first + "SS" + first + more * (steps - 1) + "SSSS"
        expected = tile.replace("SS", "", 1) + 2 * tile + "SS"
    for warp in block.warps:
        if warp.products:
            assert warp.order == (expected if warp.stores else expected.replace("S", ""))
    assert sum(bool(warp.stores) for warp in block.warps) == options["DOWN"] * options["ACROSS"]


WAIT = r"cp\.async\.bulk\.wait_group\.read"
BEFORE_WRITING = rf"(?=(?:(?!{WAIT}).)*?stmatrix)"


@pytest.mark.one_triton
@pytest.mark.parametrize(
    ("config", "pattern", "replacement", "found"),
    [
        # One store more is still read when a piece is written: that which is read from its buffer. Of one buffer, two,
        # three and four.
        (THIRDS, rf"({WAIT}\s+)0;{BEFORE_WRITING}", r"\g<1>1;", "is overwritten"),
        (HALVES, rf"({WAIT}\s+)1;", r"\g<1>2;", "is overwritten"),
        (MOST, rf"({WAIT}\s+)2;", r"\g<1>3;", "is overwritten"),
        (QUARTERS, rf"({WAIT}\s+)3;", r"\g<1>4;", "is overwritten"),
        # Nobody waits before a piece is written, or before the block returns.
        (HALVES, rf"{WAIT}\s+1;", "", "is overwritten"),
        (QUARTERS, rf"{WAIT}\s+0;", "", "returns"),
        # The warp that issues the stores waits, but the others not for it; and it does not for what they write.
        (QUARTERS, rf"({WAIT}\s+3;\s+)bar\.sync[^;]*;", r"\1", "is overwritten"),
        (QUARTERS, r"(fence\.proxy\.async\S*;\s[^;]*?)bar\.sync[^;]*;", r"\1", "is overwritten"),
        # The third piece of a tile goes through the buffer of the second.
        (QUARTERS, r"(add\.s32\s+%r\d+, %r\d+, )114688;", r"\g<1>106496;", "is overwritten"),
        # The second piece goes through the first stage of A, which is filled while it leaves.
        (QUARTERS, r"(add\.s32\s+%r\d+, %r\d+, )106496;", r"\g<1>163840;", "is overwritten"),
        (QUARTERS, r"fence\.proxy\.async\S*;", "", "does not see"),
        (QUARTERS, r"cp\.async\.bulk\.commit_group;", "", "is overwritten"),
    ],
)
def test_a_piece_that_is_written_while_it_is_read_is_found(
    config: str, pattern: str, replacement: str, found: str
) -> None:
    ptx, count = re.subn(pattern, replacement, made(config, layout="nt"), flags=re.DOTALL)
    assert count
    with pytest.raises(Race, match=found):
        block_of(config, 4 * specialized_options(config)["BLOCK_K"], 3, Sharing(3, 1), ptx=ptx)


@pytest.mark.one_triton
def test_every_part_has_the_steps_in_which_the_tile_before_is_stored() -> None:
    step, elements = 64 * step_cost(128, 256), 128 * 256
    assert share(1, 132, 3, step, elements) == (0, 3)
    assert share(1, 132, 3, step, elements, part_steps=2) == (1, 1)
    assert share(1, 132, 7, step, elements, part_steps=2) == (0, 3)
    assert share(1, 132, 7, step, elements, part_steps=4) == (1, 1)
    for tiles, steps, least in itertools.product((1, 5, 60, 131, 140, 200), range(4, 40), (2, 3, 4)):
        found = share(tiles, 132, steps, step, elements, part_steps=least)
        assert found.parts == 1 or steps // found.parts >= least
    for name in ALONE:
        config, least = Config.parse(name), max(1, specialized_options(name)["STORE_STEPS"])
        for tiles, K in itertools.product((1, 7, 140), (8, 64, 72, 136, 200, 520, 4096)):
            sharing = sharing_of(config, 132, tiles * config.tile_m, config.tile_n, K)
            assert sharing.parts == 1 or -(-K // config.tile_k) // sharing.parts >= least


@pytest.mark.one_triton
@pytest.mark.parametrize("K", [8, 64, 200, 520])
@pytest.mark.parametrize("config", [QUARTERS + "_tail", IN_ONE_STEP, MOST + "_tail"])
def test_host_and_kernel_agree_on_the_steps(config: str, K: int) -> None:
    parsed, options = Config.parse(config), specialized_options(config)
    sharing = sharing_of(parsed, 132, 133 * parsed.tile_m, parsed.tile_n, K)  # one tile is left over
    assert sharing.parts > 1 or K < 520
    steps = max(-(-K // parsed.tile_k), options["STORE_STEPS"])
    # The programs that have a part of it, or all, and a tile before.
    turns = [block_of(config, K, 133, sharing, program, 132).turn for program in range(sharing.parts)]
    assert sum(turns) == (sharing.parts + 1) * steps
    assert max(turns) == sharing.steps(133, 132, steps)
