"""C stored by TMA: exact at every edge and in every placement, never past a view, and by which way."""

import pytest
import torch
from placements import untouched

from hgemm import emulation
from hgemm.cuda_kernels.configs import FAMILIES, LAYOUTS

TMA = FAMILIES["tma"]
STORES = [kernel.config for kernel in TMA.configs if "store-tma" in kernel.config.flags]
PERSISTENT = [config for config in STORES if "persistent" in config.flags]
SCHEDULES = ("eager", "lazy", "lazy,reversed", "random,seed=1")


def integers(*shape, dtype, seed=0):
    """Entries in [-4, 4], whose sums are exact in fp32, in memory whose rows start on 16 bytes."""
    memory = torch.full((*shape[:-1], (shape[-1] + 15) // 8 * 8), torch.nan, dtype=dtype)
    values = memory[..., : shape[-1]]
    return values.copy_(torch.randint(-4, 5, shape, generator=torch.Generator().manual_seed(seed)))


def stores(config, shape, out, layout="nn", dtype=torch.float16, schedule="lazy", batch=()):
    """How many boxes the copy engine has stored; ``out`` is exact, and of the memory around it nothing is written."""
    M, N, K = shape
    a = integers(*batch, M, K, dtype=dtype) if layout[0] == "n" else integers(*batch, K, M, dtype=dtype).mT
    b = integers(*batch, K, N, dtype=dtype, seed=1) if layout[1] == "n" else integers(*batch, N, K, dtype=dtype).mT
    report = emulation.run(TMA, a, b, out, config.name, schedule)
    assert report.clean, report
    assert torch.equal(out, (a.double() @ b.double()).to(dtype)), (config, shape, schedule)
    assert untouched(out)
    return report.counters["executed"].get("tma_store_3d", 0)


def nan(*shape, dtype=torch.float16):
    return torch.full(shape, torch.nan, dtype=dtype)


def pieces(config):
    """Boxes that one warp stores of a tile."""
    kernel = TMA.configs[TMA.index(config.name)]
    return config.warp_m // kernel.staged_rows


def tiles_across(config, N):
    """Tiles of C in a row: of a cluster two, of which the second may lie outside and be stored nowhere."""
    cluster = 2 if "multicast" in config.flags else 1
    return -(-N // (cluster * config.tile_n)) * cluster


@pytest.mark.parametrize("schedule", SCHEDULES)
@pytest.mark.parametrize("config", STORES, ids=str)
def test_no_edge_of_a_view_is_passed(config, schedule):
    """Rows of the view begin on 16 bytes, behind 8 elements that are not its own, and end anywhere."""
    warps_down, warps = config.tile_m // config.warp_m, config.warps
    edges = ((1, 1), (3, 7), (2, 8), (2, 9), (70, 16), (9, config.warp_n + 1), (5, config.tile_n + 8))
    # Each edge under two of the four schedules.
    for M, N in edges[SCHEDULES.index(schedule) % 2 :: 2]:
        found = stores(config, (M, N, 72), nan(M + 2, 2 * config.tile_n)[1:-1, 8 : 8 + N], schedule=schedule)
        # Where N ends within 16 bytes, the warp tiles that lie inside; otherwise all of them.
        by_tma = warps_down * (N // config.warp_n) if N % 8 else tiles_across(config, N) * warps
        assert found == by_tma * pieces(config), (M, N)


@pytest.mark.parametrize("config", STORES, ids=str)
def test_what_tma_cannot_address_is_stored_without(config):
    M, N, K = 70, 80, 40
    for out in (
        nan(M, N + 3)[:, :N],  # rows of odd length
        nan(M, N + 8)[:, 3 : 3 + N],  # a base that is off 16 bytes
        nan(M, 2 * N)[:, ::2],  # every other element
        nan(N, M + 2).mT[:M],  # column-major
    ):
        assert stores(config, (M, N, K), out) == 0, out.stride()
    for out in (nan(2 * M, N + 8)[::2, 8:], nan(M * N).view(M, N)):
        assert stores(config, (M, N, K), out) > 0, out.stride()


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("config", STORES, ids=str)
def test_batches_of_every_layout(config, layout):
    # The types take turns, from layout to layout and from configuration to configuration.
    dtype = (torch.float16, torch.bfloat16)[(layout.count("t") + STORES.index(config)) % 2]
    # Matrices one behind the other, rows of all of them in turn, and so that the second starts off 16 bytes.
    M, N, K = 70, 72, 72
    for out, by_tma in (
        (nan(3, M, N, dtype=dtype), True),
        (nan(M, 3, N, dtype=dtype).transpose(0, 1), True),
        (nan(3 * M * N + 2, dtype=dtype).as_strided((3, M, N), (M * N + 1, N, 1)), False),
    ):
        found = stores(config, (M, N, K), out, layout, dtype, batch=(3,))
        assert found == by_tma * 3 * tiles_across(config, N) * config.warps * pieces(config)


@pytest.mark.parametrize("schedule", SCHEDULES)
@pytest.mark.parametrize("config", PERSISTENT, ids=str)
def test_a_block_stores_one_tile_after_the_other_by_both_ways(config, schedule):
    # Two blocks have nine tiles, of one to three tiles of K; those of the last column are stored in part without TMA.
    M, N = 3 * config.tile_m - 9, 3 * config.tile_n - 19
    for K in ((8, 136), (64,))[SCHEDULES.index(schedule) % 2]:
        out = nan(M + 1, N + 11)[:M, 8 : 8 + N]
        inside = 3 * config.tile_m // config.warp_m * (N // config.warp_n)
        assert stores(config, (M, N, K), out, schedule=schedule) == inside * pieces(config)


@pytest.mark.parametrize("config", STORES, ids=str)
def test_bytes_and_banks(config):
    M, N, K = config.tile_m + 8, config.tile_n + 16, 72
    out = nan(M, N)
    report = emulation.run(TMA, integers(M, K, dtype=out.dtype), integers(K, N, dtype=out.dtype), out, config.name)
    counters = report.counters
    # What lies outside is staged, and left out by the copy engine; nothing is read back.
    loads = {"tma_load_3d", "tma_load_3d_multicast"} if "multicast" in config.flags else {"tma_load_3d"}
    assert counters["global_bytes"].keys() == {*loads, "tma_store_3d"}
    assert counters["global_bytes"]["tma_store_3d"] == 2 * M * N
    assert counters["shared_bytes"]["st_shared_b32"] == 4 * 2 * config.tile_m * config.tile_n
    assert "ld_shared_v4" not in counters["executed"]
    assert counters["bank_conflicts"]["st_shared_b32"] == 0


def test_a_row_that_is_read_back_hits_no_bank_twice():
    for config in STORES:
        out = nan(70, 69)
        report = emulation.run(
            TMA, integers(70, 8, dtype=out.dtype), integers(8, 69, dtype=out.dtype), out, config.name
        )
        assert report.counters["executed"]["ld_shared_v4"] > 0
        assert report.counters["bank_conflicts"]["ld_shared_v4"] == 0
