"""A block of the specialised kernel stores a tile while it multiplies the next: in order, once, and for any K."""

import functools
import itertools
from collections.abc import Iterator

import numpy as np
import pytest
import torch
from ptx_block import Block
from ptx_numbers import Product

from hgemm.config import Config
from hgemm.triton_kernels.compile_ahead import compile_ahead
from hgemm.triton_kernels.configs import TMA
from hgemm.triton_kernels.specialized_configs import (
    ALONE,
    Sharing,
    blocks,
    share,
    sharing_of,
    specialized_options,
    step_cost,
    store_steps,
)

HALVES = "128x128x64_s6_w64x32_specialized"
QUARTERS = "128x256x64_s3_w64x64_specialized"  # two pieces at a time
AT_ONCE = "128x384x64_s3_w64x96_specialized"  # 192 sums a thread
AT_ONCE_DEEP = "256x192x64_s3_w64x96_specialized"
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
    ("config", "K"),
    [
        *((HALVES, K) for K in (8, 64, 72, 136, 200)),  # one step that is padded to two, two, and more
        *((IN_ONE_STEP, K) for K in (8, 136)),
        (QUARTERS, 72),
        (AT_ONCE, 8),
        (AT_ONCE_DEEP, 72),
    ],
)
def test_tiles_one_after_the_other_are_exact_and_stored_once(config: str, K: int) -> None:
    tiles = 3 if store_steps(Config.parse(config)) else 2
    product = run(config, K, tiles, 1, Sharing(tiles, 1))
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


def block_of(config: str, K: int, tiles: int, sharing: Sharing, program: int = 0, programs: int = 1) -> Block:
    options = specialized_options(config)
    boxes = zip((0, 5), blocks(config, "n", "t")[:2], strict=True)
    shapes = {matrix: (rows, min(128, 2 * columns)) for matrix, (rows, columns) in boxes}
    numbers = [tiles * options["BLOCK_M"], options["BLOCK_N"], K, *sharing]
    block = Block(made(config, layout="nt"), numbers, shapes, program, programs, seed=K)
    block.run()
    return block


@pytest.mark.parametrize(
    ("config", "tensors", "pieces"),  # of sums, each with a wgmma for 16 of K; stored at once
    [(HALVES, 1, 1), (QUARTERS, 1, 2), (IN_ONE_STEP, 1, 1), (AT_ONCE, 2, 6), (AT_ONCE_DEEP, 4, 3)],
)
def test_the_tensor_cores_have_work_before_the_tile_before_is_stored(config: str, tensors: int, pieces: int) -> None:
    options = specialized_options(config)
    products, steps = options["BLOCK_K"] // 16, options["STORE_STEPS"]
    block = block_of(config, 4 * options["BLOCK_K"], 3, Sharing(3, 1))
    # The first wgmma of an item puts its sums in the place of old ones.
    first, more = tensors * ("M" + (products - 1) * "m"), tensors * products * "m"
    store = pieces * "S"
    if steps == 0:
        expected = 3 * (first + 3 * more + store)
    else:
        later = first + store + (steps - 1) * (more + store) + (4 - steps) * more
        expected = first + 3 * more + 2 * later + steps * store
    for warp in block.warps:
        if warp.products:
            assert warp.order == (expected if warp.stores else expected.replace("S", ""))
    assert sum(bool(warp.stores) for warp in block.warps) == options["DOWN"] * options["ACROSS"]


@pytest.mark.one_triton
def test_every_part_has_the_steps_in_which_the_tile_before_is_stored() -> None:
    step, elements = 64 * step_cost(128, 256), 128 * 256
    assert share(1, 132, 3, step, elements) == (0, 3)
    assert share(1, 132, 3, step, elements, part_steps=2) == (1, 1)
    assert share(1, 132, 7, step, elements, part_steps=2) == (0, 3)
    for tiles, steps in itertools.product((1, 5, 60, 131, 140, 200), range(2, 40)):
        found = share(tiles, 132, steps, step, elements, part_steps=2)
        assert found.parts == 1 or steps // found.parts >= 2
    for name in ALONE:
        config, least = Config.parse(name), max(1, specialized_options(name)["STORE_STEPS"])
        for tiles, K in itertools.product((1, 7, 140), (8, 64, 72, 136, 200, 520, 4096)):
            sharing = sharing_of(config, 132, tiles * config.tile_m, config.tile_n, K)
            assert sharing.parts == 1 or -(-K // config.tile_k) // sharing.parts >= least


@pytest.mark.one_triton
@pytest.mark.parametrize("K", [8, 64, 200, 520])
@pytest.mark.parametrize("config", [HALVES + "_tail", IN_ONE_STEP, AT_ONCE + "_tail"])
def test_host_and_kernel_agree_on_the_steps(config: str, K: int) -> None:
    parsed, options = Config.parse(config), specialized_options(config)
    sharing = sharing_of(parsed, 132, 133 * parsed.tile_m, parsed.tile_n, K)  # one tile is left over
    assert sharing.parts > 1 or K < 520
    steps = max(-(-K // parsed.tile_k), options["STORE_STEPS"])
    # The programs that have a part of it, or all, and a tile before.
    turns = [block_of(config, K, 133, sharing, program, 132).turn for program in range(sharing.parts)]
    assert sum(turns) == (sharing.parts + 1) * steps
    assert max(turns) == sharing.steps(133, 132, steps)
