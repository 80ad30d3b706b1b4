"""What the emulator counts, against numbers worked out by hand."""

import pytest
import torch

from hgemm import emulation
from hgemm.config import Config
from hgemm.cuda_kernels.configs import FAMILIES

SWIZZLED = [
    (family, kernel.name)
    for family in FAMILIES.values()
    for kernel in family.configs
    if "noswizzle" not in kernel.config.flags
]


def counters(backend, config, M, N, K):
    a, b = torch.ones(M, K).half(), torch.ones(K, N).half()
    _, report = emulation.emulate(a, b, backend=backend, config=config)
    assert report.clean, report
    return report.counters


def padded(extent, tile):
    return -(-extent // tile) * tile


@pytest.mark.parametrize(("family", "config"), SWIZZLED)
@pytest.mark.parametrize(("M", "N", "K"), [(256, 256, 128), (136, 264, 200)])
def test_mma_counts_the_padded_tiles(family, config, M, N, K):
    tile = Config.parse(config)
    cluster = 2 if "multicast" in tile.flags else 1  # blocks side by side, of which the last may have nothing to store
    tiles = -(-M // tile.tile_m) * -(-N // (cluster * tile.tile_n)) * cluster
    multiplications = tiles * tile.tile_m * tile.tile_n * padded(K, tile.tile_k)
    found = counters(family.backend, config, M, N, K)
    assert found["mma"] == multiplications // 2048
    # A warp tile of WM x WN takes WM/16 + WN/16 ldmatrix for WM/16 * WN/8 mma.
    per_mma = (tile.warp_m / 16 + tile.warp_n / 16) / (tile.warp_m / 16 * tile.warp_n / 8)
    # Blocks that free stages by mbarriers load one step more at their end, or of a warp tile of 96x64 one row of A and
    # all of B. Of persistent ones the emulator runs two.
    roles = {"rotate", "producer"} & set(tile.flags)
    blocks = min(tiles, 2) if "persistent" in tile.flags else tiles if roles else 0
    rows = 16 if tile.warp_m == 96 else tile.warp_m
    assert found["ldmatrix"] == found["mma"] * per_mma + blocks * tile.warps * (rows + tile.warp_n) / 16


@pytest.mark.parametrize(("family", "config"), SWIZZLED)
def test_swizzled_kernels_have_no_bank_conflicts(family, config):
    conflicts = counters(family.backend, config, 256, 256, 128)["bank_conflicts"]
    assert {"ldmatrix_x4", "ldmatrix_x4_trans"} <= conflicts.keys()
    assert not any(conflicts.values()), conflicts


def test_the_unswizzled_kernel_has_the_expected_bank_conflicts():
    found = counters("cuda_cp_async", "128x128x32_s3_w64x32_noswizzle", 256, 128, 96)
    executed, conflicts = found["executed"], found["bank_conflicts"]
    # Of A a row is 64 bytes: eight rows lie at two places across the banks, four to a place, 3 more passes a matrix.
    assert conflicts["ldmatrix_x4"] == executed["ldmatrix_x4"] * 4 * 3
    # Of B a row is 128 bytes: all eight at one place, 7 more passes.
    assert conflicts["ldmatrix_x4_trans"] == executed["ldmatrix_x4_trans"] * 4 * 7


def test_bytes_of_shared_and_global_memory():
    M, N, K = 256, 384, 96
    tiles = (M // 128) * (N // 128)
    found = counters("cuda_cp_async", "128x128x32_s3_w64x32", M, N, K)
    staged = tiles * (128 + 128) * K * 2
    assert found["global_bytes"] == {"cp_async": staged, "st_global_v4": M * N * 2}
    assert found["shared_bytes"]["cp_async"] == staged
    # C goes through shared memory once: in words, out in chunks.
    assert found["shared_bytes"]["st_shared_b32"] == found["shared_bytes"]["ld_shared_v4"] == M * N * 2
    # Every ldmatrix reads four matrices of 8 rows of 16 bytes.
    assert found["shared_bytes"]["ldmatrix_x4"] == found["executed"]["ldmatrix_x4"] * 512


def test_bytes_outside_the_matrices_are_not_read():
    M, N, K = 136, 72, 40
    found = counters("cuda_tma", "128x128x64_s3_w64x32", M, N, K)
    # Two tiles in M, one in N: A is read once, B twice.
    assert found["global_bytes"] == {"tma_load_3d": 2 * (M * K + 2 * K * N), "st_global_v4": 2 * M * N}


def test_the_counters_do_not_depend_on_the_schedule():
    a, b = torch.ones(136, 136).half(), torch.ones(136, 136).half()
    for backend in ("cuda_cp_async", "cuda_tma"):
        found = [
            emulation.emulate(a, b, backend=backend, schedule=s)[1].counters for s in ("eager", "lazy", "random,seed=5")
        ]
        assert found[0] == found[1] == found[2]
