"""Tiles whose K is cut among the blocks of a cluster: every cut of K, the order of the sum, and its memory."""

import itertools

import numpy as np
import pytest
import torch

from hgemm import emulation
from hgemm.cuda_kernels.configs import FAMILIES, Unit
from hgemm.cuda_kernels.emulator.build import load_unit

TMA = FAMILIES["tma"]
SPLITS = [kernel.config for kernel in TMA.configs if kernel.config.parts > 1]
FOUR_PARTS = "16x64x64_s7_w16x16_split4"
SCHEDULES = ("eager", "lazy", "lazy,reversed", "random,seed=1")


def in_aligned_rows(values):
    memory = torch.full((*values.shape[:-1], (values.shape[-1] + 15) // 8 * 8), torch.nan, dtype=values.dtype)
    memory[..., : values.shape[-1]] = values
    return memory[..., : values.shape[-1]]


def product(a, b, config, schedule="lazy", **options):
    out = torch.full((*a.shape[:-1], b.shape[-1]), torch.nan, dtype=a.dtype)
    report = emulation.run(TMA, in_aligned_rows(a), in_aligned_rows(b), out, config, schedule, **options)
    assert report.clean, report
    return out, report


def integers(*shape, seed=0):
    return torch.randint(-4, 5, shape, generator=torch.Generator().manual_seed(seed)).half()


@pytest.mark.parametrize("config", SPLITS, ids=str)
def test_every_number_of_tiles_of_k_is_cut_into_parts_that_sum_to_the_product(config):
    # Fewer tiles than parts, as many, and every remainder; rows and columns of C that end within a piece of a tile.
    for number, k_tiles in enumerate(range(1, 2 * config.parts + 2)):
        K = config.tile_k * k_tiles - 59 * (number % 2)
        for batch, M, N in ((2, config.tile_m + 5, 13), (1, 1, config.tile_n + 23)):
            a, b = integers(batch, M, K, seed=K), integers(batch, K, N, seed=K + 1)
            out, report = product(a, b, config.name, SCHEDULES[number % 4])
            tiles = batch * -(-M // config.tile_m) * -(-N // config.tile_n)
            assert report.blocks == tiles * config.parts
            assert torch.equal(out, (a.double() @ b.double()).half()), (batch, M, N, K)


@pytest.mark.parametrize("schedule", SCHEDULES)
def test_parts_are_added_in_the_order_of_k(schedule):
    """Sums whose value is another in another order: one tile of K is one part, and holds one number."""
    for values in itertools.permutations((1.0, 2.0**24, -(2.0**24), 3.0)):
        total = np.float32(0)
        for value in values:
            total = np.float32(total + np.float32(value))
        a, b = torch.zeros(17, 256).bfloat16(), torch.ones(256, 72).bfloat16()
        a[:, ::64] = torch.tensor(values).bfloat16()
        out, _ = product(a, b, FOUR_PARTS, schedule)
        assert (out == torch.tensor(float(total)).bfloat16()).all(), values


def test_a_row_has_the_same_bits_whatever_stands_around_it():
    generator = torch.Generator().manual_seed(4)
    a, b = torch.randn(40, 584, generator=generator).half(), torch.randn(584, 136, generator=generator).half()
    whole, _ = product(a, b, FOUR_PARTS)
    for rows in (slice(0, 1), slice(3, 20), slice(32, 40)):
        assert torch.equal(product(a[rows], b, FOUR_PARTS, "random,seed=2")[0], whole[rows])


@pytest.mark.parametrize("config", SPLITS, ids=str)
def test_the_sums_stay_within_the_cluster(config):
    """One launch, no workspace, and of global memory nothing but the operands; the sums are written and read once."""
    M, N, K = 2 * config.tile_m, 2 * config.tile_n, config.tile_k * config.parts
    library = load_unit(Unit("tma", "f16"))
    problem, _ = emulation.describe(torch.empty(M, K).half(), torch.empty(K, N).half(), torch.empty(M, N).half(), "nn")
    assert library.workspace_bytes(problem, TMA.index(config.name)) == 0
    _, report = product(integers(M, K), integers(K, N), config.name)
    found = report.counters
    assert report.blocks == 4 * config.parts
    assert found["global_bytes"].keys() == {"tma_load_3d", "st_global_v4"}
    assert found["global_bytes"]["st_global_v4"] == 2 * M * N
    for operation in ("st_shared_v4", "ld_shared_cluster_v4"):
        assert found["shared_bytes"][operation] == 4 * M * N * config.parts
        assert found["bank_conflicts"][operation] == 0


@pytest.mark.parametrize("config", SPLITS, ids=str)
def test_what_lies_outside_c_is_left_alone_where_its_rows_are_not_aligned(config):
    """Every edge of a slice, and stores of single elements: C is a view whose rows begin anywhere."""
    M, N, K = config.tile_m + 19, config.tile_n + 27, config.tile_k * 3
    a, b = integers(M, K, seed=1), integers(K, N, seed=2)
    memory = torch.full((M + 2, N + 7), -7.0).half()
    view = memory[1:-1, 3 : 3 + N]
    report = emulation.run(TMA, a, in_aligned_rows(b), view, config.name)
    assert report.clean, report
    assert torch.equal(view, (a.double() @ b.double()).half())
    view.fill_(-7)
    assert (memory == -7).all()
