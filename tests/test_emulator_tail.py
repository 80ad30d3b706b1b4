"""The last, partly filled wave of tiles of C, shared out along K: every number of tiles and of blocks."""

import pytest
import torch

from hgemm import emulation
from hgemm.backends import get
from hgemm.cuda_kernels.configs import FAMILIES, LAYOUTS, Unit
from hgemm.cuda_kernels.emulator.build import load_unit
from hgemm.cuda_kernels.emulator.library import EmulatedLibrary

TMA = FAMILIES["tma"]
TAILS = [kernel.config for kernel in TMA.configs if "tail" in kernel.config.flags]
TAIL = TAILS[0]
OF_ONE_BLOCK = [config for config in TAILS if config.cluster == 1]  # for clusters see test_emulator_shared_tail
# Shares that come behind a block's whole tiles, and shares that are blocks of their own.
EITHER = pytest.mark.parametrize(
    "config", [TAIL, next(config for config in TAILS if "persistent" not in config.flags)], ids=str
)
SCHEDULES = ("lazy", "random,seed=1", "eager,reversed")


def product(a, b, config, schedule="lazy", blocks=2):
    out = torch.full((*a.shape[:-1], b.shape[-1]), torch.nan, dtype=a.dtype)
    report = emulation.run(TMA, a, b, out, config, schedule, resident_blocks=blocks)
    assert report.clean, report
    return out, report


def in_aligned_rows(values, letter):
    stored = values if letter == "n" else values.mT
    memory = torch.full((*stored.shape[:-1], (stored.shape[-1] + 15) // 8 * 8), torch.nan, dtype=values.dtype)
    memory[..., : stored.shape[-1]] = stored
    return memory[..., : stored.shape[-1]] if letter == "n" else memory[..., : stored.shape[-1]].mT


def integers(*shape, seed=0):
    return torch.randint(-4, 5, shape, generator=torch.Generator().manual_seed(seed)).half()


@pytest.mark.parametrize("blocks", [2, 3, 5])
@pytest.mark.parametrize("config", OF_ONE_BLOCK, ids=str)
def test_every_remainder_of_tiles_is_exact(config, blocks):
    # Fewer tiles than blocks, full waves, every remainder; 24 tiles of K, the last partly filled, or 3: too few to cut.
    # Of five blocks' ten numbers of tiles, each configuration has the odd ones or the even ones.
    numbers = range(1 + OF_ONE_BLOCK.index(config) % 2, 11, 2) if blocks == 5 else range(1, 2 * blocks + 1)
    for tiles in numbers:
        batch, M = (tiles, 24) if tiles % 4 < 2 else (1, config.tile_m * tiles - 9)
        for K in (config.tile_k * 24 - 8, config.tile_k * 3 - 8)[: 1 + (tiles < blocks)]:
            a, b = integers(batch, M, K, seed=K), integers(batch, K, 16, seed=M)
            out, _ = product(a, b, config.name, SCHEDULES[tiles % 3], blocks)
            assert torch.equal(out, (a.float() @ b.float()).half()), (tiles, K)


@pytest.mark.parametrize("layout", LAYOUTS)
@EITHER
def test_shares_are_exact_in_every_layout(config, layout):
    # Tiles of C and of K that end outside, rows of C that begin anywhere. The first tiles of all are cut for three
    # blocks; of six the last for five; of eight three for five, of which the second and the fourth have parts of two.
    # Of each layout one of the two has the one type, the other the other.
    dtype = (torch.float16, torch.bfloat16)[(layout.count("t") + (config is TAIL)) % 2]
    M, N, K = 2 * config.tile_m - 61, config.tile_n - 3, config.tile_k * 25 + 9
    for batch, blocks, schedule in ((1, 3, "lazy"), (3, 5, "random,seed=2"), (4, 5, "eager,reversed")):
        a, b = integers(batch, M, K, seed=K).to(dtype), integers(batch, K, N, seed=M).to(dtype)
        memory = torch.full((batch, M + 2, N + 5), torch.nan, dtype=dtype)
        out = memory[:, 1:-1, 3:-2]
        operands = (in_aligned_rows(x, letter) for x, letter in zip((a, b), layout, strict=True))
        report = emulation.run(TMA, *operands, out, config.name, schedule, resident_blocks=blocks)
        assert report.clean, report
        assert torch.equal(out, (a.double() @ b.double()).to(dtype)), (batch, blocks)
        assert memory.isnan().sum() == memory.numel() - out.numel()


@EITHER
@pytest.mark.parametrize(("tile", "second_part"), [(0, 18), (1, 9)])
def test_a_cut_tile_is_summed_part_by_part(config, tile, second_part):
    """Three blocks share two tiles of 26 tiles of K: parts of 18 and 8, then of 9 and 17. 2^24 + 1 is rounded to 2^24,
    so that 2^24 + (1 - 2^24) is 1 only if a part begins just there."""
    rows = slice(config.tile_m * tile, config.tile_m * (tile + 1))
    a = torch.zeros(2 * config.tile_m, 26 * 64).bfloat16()
    a[rows, 0], a[rows, second_part * 64], a[rows, second_part * 64 + 64] = 2.0**24, 1, -(2.0**24)
    b = torch.ones(26 * 64, 8).bfloat16()
    assert (product(a, b, config.name, blocks=3)[0][rows] == 1).all()
    assert (product(a, b, config.name.removesuffix("_tail"), blocks=3)[0][rows] == 0).all()


@EITHER
def test_whole_tiles_have_the_bits_that_they_have_without_a_tail(config):
    generator, M, done = torch.Generator().manual_seed(5), 3 * config.tile_m - 68, 2 * config.tile_m
    a, b = torch.randn(M, 1472, generator=generator).half(), torch.randn(1472, 40, generator=generator).half()
    (cut, report), (whole, plain) = (product(a, b, name) for name in (config.name, config.name.removesuffix("_tail")))
    assert plain.blocks == (2 if "persistent" in config.flags else 3)
    added = -(-(config.tile_m // 16 * config.tile_n // config.warp_n) // 4)  # four warps a block, a piece each
    assert report.blocks == (2 if "persistent" in config.flags else 2 + 2) + added
    assert torch.equal(cut[:done], whole[:done])
    assert torch.allclose(cut.float(), whole.float(), atol=0.25)
    for schedule in SCHEDULES:
        assert torch.equal(product(a, b, config.name, schedule)[0], cut)


@EITHER
@pytest.mark.parametrize(
    ("tiles", "K", "slots"),
    [
        (4, 4096, 0),  # two full waves of two blocks
        (3, 4096, 2),  # one tile for two blocks
        (3, 64 * 16, 0),  # 8 tiles of K each, which saves 8 less one for a longer share
        (3, 64 * 18, 2),
        (1, 4096, 2),  # no whole tile at all
    ],
)
def test_the_workspace_is_for_the_last_wave_alone(config, tiles, K, slots):
    library, M = load_unit(Unit("tma", "f16")), config.tile_m * tiles
    tensors = torch.empty(M, K).half(), torch.empty(K, 128).half(), torch.empty(M, 128).half()
    problem, _ = emulation.describe(*tensors, "nn")
    library.run(lambda: None, resident_blocks=2)
    assert library.workspace_bytes(problem, TMA.index(config.name)) == slots * 4 * config.tile_m * config.tile_n


def test_without_a_tail_there_is_no_workspace():
    library = load_unit(Unit("tma", "f16"))
    tensors = torch.empty(64, 4096).half(), torch.empty(4096, 64).half(), torch.empty(64, 64).half()
    problem, _ = emulation.describe(*tensors, "nn")
    library.run(lambda: None, resident_blocks=4)  # of which two may be a cluster
    for kernel in TMA.configs:
        assert (library.workspace_bytes(problem, TMA.index(kernel.name)) > 0) == ("tail" in kernel.config.flags)


def test_a_workspace_that_is_too_small_is_refused_before_anything_runs(monkeypatch):
    monkeypatch.setattr(EmulatedLibrary, "workspace_bytes", lambda self, problem, config: 64)
    a, b = torch.ones(16, 4096).half(), torch.ones(4096, 64).half()
    out = torch.full((16, 64), torch.nan).half()
    with pytest.raises(emulation.UnsupportedProblem, match=r"a workspace of 64 bytes: 256x128x64.* needs 262144"):
        emulation.run(TMA, a, b, out, TAIL.name)
    assert out.isnan().all()


def test_only_a_tail_makes_a_row_depend_on_the_others():
    record = get("cuda_tma")
    for name in record.configs:
        assert record.properties_of(name).row_invariant == ("tail" not in name)
        assert record.properties_of(name).deterministic
    assert record.properties.row_invariant
    # The default follows M, and of the configurations that it is chosen from some cut K.
    assert not record.properties_of(None).row_invariant
    assert get("cuda_cp_async").properties_of(None) == get("cuda_cp_async").properties
