"""Tiles whose K is cut among blocks: every cut of K, the order of the sum, and what of the workspace is touched."""

import itertools

import numpy as np
import pytest
import torch

from hgemm import emulation
from hgemm.cuda_kernels.configs import FAMILIES, Unit
from hgemm.cuda_kernels.emulator.build import load_unit
from hgemm.cuda_kernels.emulator.library import EmulatedLibrary

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
            assert report.blocks >= tiles * min(k_tiles, config.parts)
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


def workspace(config, M, N, K, batch=1):
    library = load_unit(Unit("tma", "f16"))
    a, b, out = torch.empty(batch, M, K).half(), torch.empty(batch, K, N).half(), torch.empty(batch, M, N).half()
    problem, _ = emulation.describe(a, b, out, "nn")
    return library.workspace_bytes(problem, TMA.index(config))


def test_the_workspace_holds_a_tile_of_fp32_for_every_part_and_is_not_there_without_parts():
    assert workspace(FOUR_PARTS, 16, 64, 4096) == 4 * 16 * 64 * 4
    assert workspace(FOUR_PARTS, 17, 65, 4096, batch=3) == 3 * 4 * 4 * 16 * 64 * 4
    assert workspace(FOUR_PARTS, 16, 64, 136) == 3 * 16 * 64 * 4  # three tiles of K are three parts
    for kernel in TMA.configs:
        if kernel.config.parts == 1 and "tail" not in kernel.config.flags:
            assert workspace(kernel.name, 4096, 4096, 4096) == 0


def test_a_workspace_that_is_too_small_is_refused_before_anything_runs(monkeypatch):
    monkeypatch.setattr(EmulatedLibrary, "workspace_bytes", lambda self, problem, config: 64)
    a, b = torch.ones(16, 256).half(), torch.ones(256, 64).half()
    out = torch.full((16, 64), torch.nan).half()
    with pytest.raises(emulation.UnsupportedProblem, match=r"a workspace of 64 bytes: 16x64x64.* needs 16384"):
        emulation.run(TMA, a, b, out, FOUR_PARTS)
    assert out.isnan().all()
