"""The last wave of clusters that share tiles of A, shared out along K: every remainder, both halves, where sums lie."""

import pytest
import torch

from hgemm import emulation
from hgemm.cuda_kernels.configs import FAMILIES, LAYOUTS, Unit
from hgemm.cuda_kernels.emulator.build import load_unit

TMA = FAMILIES["tma"]
TAILS = [kernel.config for kernel in TMA.configs if {"multicast", "tail"} <= set(kernel.config.flags)]
EACH_TAIL = pytest.mark.parametrize("tail", TAILS, ids=str)
CLUSTER = 2
SCHEDULES = ("eager", "lazy", "lazy,reversed", "random,seed=1")
DTYPES = {"f16": torch.float16, "bf16": torch.bfloat16}


def integers(*shape, transposed, dtype, seed=0):
    """Entries in [-4, 4], whose sums are exact in fp32, in memory whose rows start on 16 bytes."""
    *batch, rows, columns = (*shape[:-2], *reversed(shape[-2:])) if transposed else shape
    values = torch.full((*batch, rows, (columns + 15) // 8 * 8), torch.nan, dtype=dtype)[..., :columns]
    values.copy_(torch.randint(-4, 5, values.shape, generator=torch.Generator().manual_seed(seed)))
    return values.mT if transposed else values


def plain(tail):
    """The same kernel, of blocks that share nothing."""
    return tail.name.replace("_multicast", "").removesuffix("_tail")


def product(a, b, config, schedule="lazy", clusters=2):
    out = torch.full((*a.shape[:-1], b.shape[-1]), torch.nan, dtype=a.dtype)
    report = emulation.run(TMA, a, b, out, str(config), schedule, resident_blocks=CLUSTER * clusters)
    assert report.clean, report
    return out, report


# Of each layout either kernel multiplies one type; which of them that is changes from layout to layout.
@pytest.mark.parametrize(
    ("layout", "dtype", "tail"),
    [
        (layout, dtype, TAILS[(layout.count("t") + number) % len(TAILS)])
        for layout in LAYOUTS
        for number, dtype in enumerate(DTYPES)
    ],
    ids=str,
)
def test_every_remainder_of_tiles_is_exact(layout, dtype, tail):
    """Fewer pairs of tiles than clusters, whole waves, and every remainder: of products in a batch, or below each
    other. N ends in the first block's half, between the two, and in the second one's."""
    case = LAYOUTS.index(layout) * len(DTYPES) + list(DTYPES).index(dtype)
    clusters = 2 + case // 2  # in one dtype the odd numbers of pairs, in the other the even ones
    for pairs in range(1 + case % 2, 2 * clusters + 1, 2):
        N = (1, 101, 128, 129, 201, 256)[(pairs + case) % 6]
        batch, M = (pairs, 25) if (pairs + case) % 4 < 2 else (1, 256 * pairs - 9)
        K = tail.tile_k * 25 - (8, 11, 63)[pairs % 3]
        a = integers(batch, M, K, transposed=layout[0] == "t", dtype=DTYPES[dtype])
        b = integers(batch, K, N, transposed=layout[1] == "t", dtype=DTYPES[dtype], seed=1)
        out, report = product(a, b, tail, SCHEDULES[pairs % 4], clusters)
        assert torch.equal(out, (a.double() @ b.double()).to(out.dtype)), (clusters, pairs, M, N, K)
        # Blocks that add parts are there where a share of the last wave is shorter by 9 than the 25 tiles of K.
        rest = pairs % clusters
        cut = rest > 0 and 25 * rest // clusters <= 25 - 9
        assert (report.blocks > CLUSTER * min(clusters, pairs)) == cut, (clusters, pairs)


@EACH_TAIL
@pytest.mark.parametrize(("pair", "second_part"), [(0, 18), (1, 9)])
def test_both_tiles_of_a_pair_are_summed_part_by_part(pair, second_part, tail):
    """Three clusters share two pairs of tiles of 26 tiles of K: parts of 18 and 8, then of 9 and 17. 2^24 + 1 is
    rounded to 2^24, so that 2^24 + (1 - 2^24) is 1 only if a part begins just there."""
    rows = slice(256 * pair, 256 * pair + 256)
    a = torch.zeros(512, 26 * 64).bfloat16()
    begin = second_part * 64
    a[rows, begin - 1], a[rows, begin], a[rows, begin + 1] = 2.0**24, 1, -(2.0**24)
    b = torch.ones(26 * 64, 200).bfloat16()
    assert (product(a, b, tail, clusters=3)[0][rows] == 1).all()
    assert (product(a, b, plain(tail), clusters=3)[0][rows] == 0).all()


@EACH_TAIL
def test_a_tile_has_the_same_bits_in_either_half_and_every_run(tail):
    generator = torch.Generator().manual_seed(5)
    a, b = torch.randn(700, 1472, generator=generator).half(), torch.randn(1472, 128, generator=generator).half()
    first, _ = product(a, b.repeat(1, 2), tail)
    whole, _ = product(a, b, plain(tail))
    assert torch.equal(first[:, :128], first[:, 128:])
    assert torch.equal(first[:512], whole.repeat(1, 2)[:512])  # of three pairs the last is cut
    assert not torch.equal(first[512:], whole.repeat(1, 2)[512:])
    assert torch.allclose(first.float(), whole.repeat(1, 2).float(), atol=0.25)
    for schedule in SCHEDULES:
        assert torch.equal(product(a, b.repeat(1, 2), tail, schedule)[0], first)


@EACH_TAIL
@pytest.mark.parametrize(
    ("M", "N", "K", "slots"),
    [
        (256 * 4, 256, 4096, 0),  # two whole waves of two clusters
        (256 * 3, 256, 4096, 2),  # a pair of tiles for two clusters
        (256 * 3, 128, 4096, 2),  # of which one lies outside of C
        (256 * 3, 256, 64 * 16, 0),  # too few tiles of K
        (256, 8, 4096, 2),  # no whole pair at all
    ],
)
def test_the_workspace_has_a_slot_for_either_block(M, N, K, slots, tail):
    library = load_unit(Unit("tma", "f16"))
    tensors = torch.empty(M, K).half(), torch.empty(K, N).half(), torch.empty(M, N).half()
    problem, _ = emulation.describe(*tensors, "nn")
    library.run(lambda: None, resident_blocks=2 * CLUSTER)
    assert library.workspace_bytes(problem, TMA.index(tail.name)) == slots * CLUSTER * 4 * tail.tile_m * tail.tile_n


@EACH_TAIL
def test_only_the_last_pairs_go_through_the_workspace(tail):
    """Five pairs of tiles for two clusters: of the fifth 196 of 256 rows, once for each of two parts. Of the last 16 of
    them four lie in C, and whoever holds one of those holds another row."""
    a, b = torch.ones(4 * 256 + 196, 1536).half(), torch.ones(1536, 256).half()
    counters = product(a, b, tail)[1].counters["global_bytes"]
    assert counters["ld_global_v4"] == counters["st_global_v4"] - 2 * 196 * 256 == 2 * 4 * (192 + 2 * 4) * 256
    assert counters["tma_store_3d"] == 2 * 4 * 256 * 256
