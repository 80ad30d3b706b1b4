"""The specialised kernel's PTX computes exact integers: what a wgmma reads, and where each of its sums goes."""

import functools
import re
from collections.abc import Iterator

import numpy as np
import pytest
import torch
import triton
from ptx_numbers import Product

from hgemm.triton_kernels.compile_ahead import compile_ahead
from hgemm.triton_kernels.configs import TMA
from hgemm.triton_kernels.specialized_configs import specialized_options

SQUARE = "192x192x64_s4_w64x48_specialized_tail"
CLUSTER = "64x64x128_s6_w32x32_multicast-b_specialized"
MOST = "192x256x64_s3_w96x64_specialized_tail"
TALL = "192x128x64_s4_w64x32_specialized_tail"
STORED_AT = r"(?=[\s\S]{,9000}?tensor\.2d\.global\S* \[%rd\d+, \{\2,)"  # the register that was computed


@pytest.fixture(autouse=True, scope="module")
def kept_for_this_file(own_cache: None) -> Iterator[None]:
    yield
    made.cache_clear()


@functools.cache
def made(config: str, dtype: torch.dtype, layout: str) -> str:
    return compile_ahead(TMA, config, dtype, 90, layout=layout).ptx


def computed(config: str, layout: str, dtype: torch.dtype, ptx: str) -> tuple[torch.Tensor, torch.Tensor]:
    """2 x 2 tiles that are partly full, and what they have to be. Of a kernel that shares tiles the last two are."""
    options, shared = specialized_options(config), config.endswith("_tail")
    tile_m, tile_n = options["BLOCK_M"], options["BLOCK_N"]
    M, N, K = 2 * tile_m - 42, 2 * tile_n - 24, options["BLOCK_K"] * (options["STAGES"] + 2) - 24
    generator = torch.Generator().manual_seed(3)
    a, b = (torch.randint(-4, 5, shape, generator=generator).to(dtype) for shape in ((M, K), (K, N)))
    product = Product(config, layout, a, b, *((2, 2) if shared else (4, 1)))
    product.run(ptx, programs=2, seed=1)
    if shared:  # the first two are one above the other
        assert product.c[:, tile_n:].isnan().all()
        sums = np.concatenate(product.sums.sum(0))
        assert (sums[M:] == 0).all()
        assert (sums[:, N - tile_n :] == 0).all()
        product.c[:, tile_n:] = torch.from_numpy(sums[:M, : N - tile_n]).to(dtype)
    return product.c, (a.double() @ b.double()).to(dtype)


@pytest.mark.parametrize(
    ("config", "layout", "dtype"),
    [
        # With another Triton two of the layouts, in which each operand is stored both ways.
        *((SQUARE, layout, torch.bfloat16) for layout in ("nn", "tt")),
        *(pytest.param(SQUARE, layout, torch.bfloat16, marks=pytest.mark.one_triton) for layout in ("nt", "tn")),
        (CLUSTER, "nn", torch.bfloat16),
        (TALL, "tn", torch.float16),
        (MOST, "tt", torch.float16),
    ],
    ids=str,
)
def test_the_product_is_exact(config: str, layout: str, dtype: torch.dtype) -> None:
    if "multicast" in config and triton.__version__.startswith("3.6."):
        pytest.skip("Gluon of Triton 3.6 sends no tile to several blocks")
    found, exact = computed(config, layout, dtype, made(config, dtype, layout))
    assert torch.equal(found, exact)


@pytest.mark.one_triton
@pytest.mark.parametrize(
    ("pattern", "replacement"),
    [
        # The first 64 columns of B twice: 64 columns are 0 bytes apart, not 8192.
        (r"4611686293338849280", "4611686293305294848"),
        # The second tensor of sums is A's product with A.
        (r"(m64n64k16\.[^;]*\}), (%rd\d+), %rd\d+,", r"\1, \2, \2,"),
        # The second piece of C half over the first, and the last one over it.
        (rf"(add\.s32\s+(%r\d+), %r\d+, )64;{STORED_AT}", r"\g<1>32;"),
        (rf"(add\.s32\s+(%r\d+), %r\d+, )128;{STORED_AT}", r"\g<1>0;"),
    ],
)
def test_a_column_that_is_not_its_own_is_found(pattern: str, replacement: str) -> None:
    config = SQUARE.removesuffix("_tail")
    ptx, count = re.subn(pattern, replacement, made(config, torch.bfloat16, "nn"))
    assert count
    found, exact = computed(config, "nn", torch.bfloat16, ptx)
    assert not torch.equal(found, exact)
