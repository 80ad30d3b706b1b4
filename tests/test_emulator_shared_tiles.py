"""Kernels whose blocks share tiles of A by multicast: every edge, every number of clusters, and what is read."""

import pytest
import torch

from hgemm import emulation
from hgemm.cuda_kernels.configs import FAMILIES, LAYOUTS

TMA = FAMILIES["tma"]
CONFIGS = [kernel.config for kernel in TMA.configs if "multicast" in kernel.config.flags]
SCHEDULES = ("eager", "lazy", "lazy,reversed", "random,seed=1")
CLUSTER = 2


def integers(rows, columns, transposed, seed):
    """Entries in [-4, 4], whose sums are exact in fp32, in memory whose rows start on 16 bytes."""
    stored = (columns, rows) if transposed else (rows, columns)
    memory = torch.full((stored[0], (stored[1] + 15) // 8 * 8), torch.nan).half()
    values = memory[:, : stored[1]]
    values.copy_(torch.randint(-4, 5, stored, generator=torch.Generator().manual_seed(seed)))
    return values.mT if transposed else values


def product(config, M, N, K, schedule="lazy", resident_blocks=2, layout="nn"):
    """The report of a product that is right."""
    a, b = integers(M, K, layout[0] == "t", 0), integers(K, N, layout[1] == "t", 1)
    out = torch.full((M, N), torch.nan).half()
    report = emulation.run(TMA, a, b, out, config.name, schedule, resident_blocks=resident_blocks)
    assert report.clean, report
    assert torch.equal(out, (a.double() @ b.double()).half()), (M, N, K)
    return report


@pytest.mark.parametrize("schedule", SCHEDULES)
@pytest.mark.parametrize("config", CONFIGS, ids=str)
def test_every_number_of_clusters_goes_through_all_tiles(config, schedule):
    """Two rows of tiles and five columns, so that the last cluster of each row has a tile outside of C."""
    M, N, K = config.tile_m + 5, 4 * config.tile_n + 9, config.tile_k + 8
    # Each number under two of the four schedules, of which each has numbers on either side of the six pairs of tiles.
    for resident_blocks in ((1, 3, 7, 12), (2, 4, 10, 64))[SCHEDULES.index(schedule) % 2]:
        report = product(config, M, N, K, schedule, resident_blocks)
        assert report.blocks == CLUSTER * min(6, max(1, resident_blocks // CLUSTER))


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("config", CONFIGS, ids=str)
def test_every_edge_within_either_half(config, layout):
    """Rows that end in the first half of A's tile, in the second or between; columns in either block's tile. Every two
    of these ends meet in two of the four layouts."""
    half = config.tile_m // 2
    columns = (1, config.tile_n + 1), (config.tile_n, 2 * config.tile_n)
    for number, M in enumerate((1, half - 3, half, half + 1, 2 * half, 2 * half + 2)):
        for N in columns[(number + layout.count("t")) % 2]:
            product(config, M, N, 8 + 56 * number, SCHEDULES[number % 4], layout=layout)


@pytest.mark.parametrize("config", CONFIGS, ids=str)
def test_a_cluster_reads_its_tiles_of_a_once(config):
    M, N, K = config.tile_m + 8, 3 * config.tile_n, 200
    found = product(config, M, N, K).counters["global_bytes"]
    assert found["tma_load_3d_multicast"] == 2 * M * K * 2  # for the first two columns of tiles, and for the third
    assert found["tma_load_3d"] == 2 * N * K * 2  # for either row of tiles
