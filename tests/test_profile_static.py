"""Occupancy, waves and reasons: what the static half of a profile says, against sums by hand."""

import math
from typing import Any

import pytest

import hgemm
from hgemm.bench.suites import Case, Shape
from hgemm.config import Config
from hgemm.cuda_kernels import toolchain
from hgemm.cuda_kernels.inspect_code import block_limits
from hgemm.profile import static
from hgemm.profile.static import Code, Gpu, NoFacts, facts, resident
from hgemm.triton_kernels import compile_ahead
from hgemm.triton_kernels.configs import Family

H200 = Gpu("H200", "90a", 132)
RTX_5090 = Gpu("RTX 5090", "120f", 170)
SQUARE = Case(Shape(4096, 4096, 4096))


def code(registers: int, shared_bytes: int, threads: int = 256) -> Code:
    return Code(registers, 0, shared_bytes, threads, None, None)


def test_room_by_each_resource() -> None:
    # 124 registers round up to 4,096 a warp: 65,536 / 32,768 = 2. Shared memory: 102,400 / (32,768 + 1,024) = 3.03.
    assert block_limits((12, 0), 124, 32_768, 256) == {
        "registers": 2,
        "shared memory": 3,
        "threads": 6,
        "block slots": 24,
    }


@pytest.mark.parametrize(
    ("gpu", "registers", "shared_bytes", "threads", "blocks", "limited_by", "occupancy"),
    [
        (H200, 124, 49_152, 256, 2, "registers", 16 / 64),
        (H200, 90, 131_104, 256, 1, "shared memory", 8 / 64),
        (RTX_5090, 126, 49_176, 256, 2, "registers, shared memory", 16 / 48),
        (RTX_5090, 32, 1_024, 256, 6, "threads", 48 / 48),
        (RTX_5090, 32, 0, 32, 24, "block slots", 24 / 48),
        (RTX_5090, 209, 196_640, 256, 0, "shared memory", 0.0),
    ],
)
def test_the_resource_that_is_used_up_first_is_named(
    gpu: Gpu, registers: int, shared_bytes: int, threads: int, blocks: int, limited_by: str, occupancy: float
) -> None:
    found = resident(code(registers, shared_bytes, threads), Config.parse("128x128x32_s3_w64x32"), SQUARE, gpu)
    assert (found.blocks, found.warps) == (blocks, blocks * threads // 32)
    assert found.limited_by == limited_by
    assert found.occupancy == pytest.approx(occupancy)
    assert f"room for {blocks} on a multiprocessor" in found.sentence


def test_tiles_and_waves_by_hand() -> None:
    # 32 x 32 tiles over 132 x 2 places: three whole waves of 264, and 232 of 264 in the fourth.
    found = resident(code(124, 49_152), Config.parse("128x128x32_s3_w64x32"), SQUARE, H200)
    assert (found.tiles, found.at_once) == (1024, 264)
    assert found.waves == pytest.approx(1024 / 264)
    assert found.last_wave == pytest.approx((1024 - 3 * 264) / 264)
    assert found.inside == 1.0


def test_a_last_wave_that_is_full_is_full() -> None:
    case = Case(Shape(128 * 132, 128 * 2, 64))
    found = resident(code(124, 49_152), Config.parse("128x128x32_s3_w64x32"), case, H200)
    assert (found.waves, found.last_wave) == (1.0, 1.0)


def test_tiles_that_hang_over_the_edge() -> None:
    # 2 x 3 tiles of 128 x 128 for 130 x 300 elements.
    found = resident(code(124, 49_152), Config.parse("128x128x32_s3_w64x32"), Case(Shape(130, 300, 64)), H200)
    assert found.tiles == 6
    assert found.inside == pytest.approx(130 * 300 / (6 * 128 * 128))


def test_a_batch_has_the_tiles_of_all_its_products() -> None:
    found = resident(code(124, 49_152), Config.parse("128x128x32_s3_w64x32"), Case(Shape(130, 300, 64, batch=8)), H200)
    assert found.tiles == 8 * 6
    assert found.inside == pytest.approx(130 * 300 / (6 * 128 * 128))


def test_a_grid_of_one_block_a_multiprocessor_has_as_many_tiles_at_once() -> None:
    name = "128x256x64_s3_w64x64_persistent"
    found = resident(code(100, 10_000), Config.parse(name), SQUARE, H200, most=1)
    assert found.blocks == 2
    assert (found.tiles, found.at_once) == (512, 132)


def test_a_persistent_kernel_of_ours_has_all_blocks_that_fit() -> None:
    # cudaOccupancyMaxActiveBlocksPerMultiprocessor says how many: with 98,352 bytes, two of 233,472.
    name = "128x128x64_s3_w64x64_rotate_persistent_tail"
    found = resident(code(228, 98_352, 128), Config.parse(name), SQUARE, H200)
    assert (found.blocks, found.at_once) == (2, 264)


@pytest.mark.parametrize(("parts", "at_once"), [(2, 132), (4, 66)])
def test_a_tile_whose_k_is_split_takes_several_places(parts: int, at_once: int) -> None:
    found = resident(code(125, 98_328), Config.parse(f"128x128x64_s3_w64x32_split{parts}"), SQUARE, H200)
    assert (found.blocks, found.tiles, found.at_once) == (2, 1024, at_once)
    assert found.waves == pytest.approx(1024 * parts / 264)


def test_clusters_are_whole_at_the_edge() -> None:
    # 17 columns of tiles are 9 pairs: the 8 blocks of the 18th compute nothing that lies inside C.
    name = "256x128x64_s4_w64x64_producer_persistent_multicast"
    found = resident(code(168, 196_672, 384), Config.parse(name), Case(Shape(2048, 17 * 128, 64)), H200, cluster=2)
    assert (found.tiles, found.at_once, found.last_wave) == (8 * 18, 132, 12 / 132)
    assert found.inside == pytest.approx(17 / 18)


@pytest.mark.nvcc
@pytest.mark.parametrize(
    ("backend", "config", "at_once"),
    [
        ("cuda_tma", "256x128x64_s4_w64x64_producer_persistent_multicast", 132),
        ("cuda_tma", "256x128x64_s3_w64x64_rotate_persistent_multicast_store-tma_tail", 132),
        ("cuda_tma", "256x128x64_s3_w64x64_producer_persistent_multicast_store-tma_tail", 132),
        ("cuda_tma", "128x128x64_s3_w64x64_rotate_persistent_tail", 264),
        ("cuda_tma", "128x128x64_s3_w64x32_split2", 132),
        ("triton", "128x128x64_s3_w64x32", 264),
        ("triton", "128x256x64_s3_w64x64_persistent", 132),
    ],
)
def test_each_family_counts_its_blocks_in_its_own_way(backend: str, config: str, at_once: int) -> None:
    case = Case(Shape(4096, 17 * 128, 4096), "fp16")
    found = facts(hgemm.backends()[backend], config, case, H200)
    assert found.at_once == at_once
    assert found.tiles == {"256x128": 16 * 18, "128x128": 32 * 17, "128x256": 32 * 9}[config.rsplit("x", 2)[0][:7]]


def test_where_nothing_fits_there_are_no_waves() -> None:
    found = resident(code(209, 196_640), Config.parse("256x128x64_s4_w64x64"), SQUARE, RTX_5090)
    assert (found.at_once, found.waves, found.last_wave) == (0, None, None)


@pytest.mark.parametrize(
    ("shape", "layout", "width"),
    [
        (Shape(64, 64, 64), "nn", 16),
        (Shape(64, 64, 68), "nn", 8),  # rows of A: 136 bytes
        (Shape(64, 68, 64), "nn", 8),  # rows of B
        (Shape(64, 68, 64), "nt", 16),  # stored rows of B are along K
        (Shape(66, 64, 64), "tn", 4),  # stored rows of A are along M
        (Shape(64, 64, 65), "nn", 2),
    ],
)
def test_the_width_of_copies_follows_the_stored_rows(shape: Shape, layout: str, width: int) -> None:
    problem = static.problem_of(Case(shape, layout=layout), static.torch.device("cpu"))
    assert problem.layout == layout
    assert static.copy_bytes(static.arrangement_of(problem)) == width


@pytest.mark.nvcc
def test_a_product_that_is_not_aligned_shows_the_function_that_it_runs() -> None:
    backend, config = hgemm.backends()["cuda_cp_async"], "128x128x32_s3_w64x32"
    copies = {}
    for K in (4096, 4100):
        loop = facts(backend, config, Case(Shape(256, 4096, K), "fp16"), H200).code.loop
        assert loop is not None
        copies[K] = loop.counts["LDGSTS"]
    assert copies[4100] == 2 * copies[4096]


@pytest.mark.nvcc
def test_cuda_and_triton_have_facts_on_both_architectures() -> None:
    for gpu, dtype in ((H200, "fp16"), (RTX_5090, "bf16")):  # what test_machine_code compiles
        square = Case(SQUARE.shape, dtype)
        cuda = facts(hgemm.backends()["cuda_tma"], "128x128x32_s3_w64x32", square, gpu)
        assert (cuda.code.shared_bytes, cuda.code.threads, cuda.blocks) == (3 * (16_384 + 8), 256, 2)
        assert cuda.code.ptx is None and cuda.code.spill_bytes == 0
        triton = facts(hgemm.backends()["triton"], "128x128x32_s4_w64x32", SQUARE, gpu)
        assert triton.code.threads == 256 and triton.blocks == 2
        assert triton.code.ptx is not None
        assert ("wgmma" in triton.code.ptx, "mma.sync" in triton.code.ptx) == (gpu is H200, gpu is RTX_5090)


def test_a_batch_has_the_code_that_batches_are_launched_with(monkeypatch: pytest.MonkeyPatch) -> None:
    made: list[compile_ahead.Compiled] = []
    compiler = compile_ahead.compile_ahead

    def keep(*arguments: Any, **form: Any) -> compile_ahead.Compiled:
        made.append(compiler(*arguments, **form))
        return made[-1]

    monkeypatch.setattr(compile_ahead, "compile_ahead", keep)
    for batch in (1, 8):
        shape = Shape(256, 256, 256, batch=batch)
        facts(hgemm.backends()["triton"], "128x128x64_s3_w64x32", Case(shape), H200)
    # The host describes the matrices of one product; of a batch each program describes its own, three of 128 bytes.
    assert [code.scratch_bytes for code in made] == [0, 3 * 128]


def test_spilled_bytes_are_told_where_there_are_some(monkeypatch: pytest.MonkeyPatch) -> None:
    compiler = compile_ahead.compile_ahead

    def over_four_warps(family: Family, config: str, *arguments: Any, **form: Any) -> Any:
        return compiler(family, "128x256x32_s2_w64x128", *arguments, **form)  # 256 sums a thread, of 255 registers

    monkeypatch.setattr(compile_ahead, "compile_ahead", over_four_warps)
    found = facts(hgemm.backends()["triton"], "128x128x64_s3_w64x32", SQUARE, RTX_5090)
    assert found.code.registers == 255
    assert found.code.spill_bytes > 0


def test_without_nvcc_the_cuda_kernels_have_a_reason_and_triton_has_facts(monkeypatch: pytest.MonkeyPatch) -> None:
    def missing() -> None:
        raise toolchain.BuildError("no nvcc: looked everywhere; pip install 'hgemm[toolkit]'")

    static._cuda_functions.cache_clear()
    monkeypatch.setattr(toolchain, "find_nvcc", missing)
    with pytest.raises(NoFacts, match=r"cannot be compiled here: no nvcc.*hgemm\[toolkit\]"):
        facts(hgemm.backends()["cuda_tma"], "128x128x64_s3_w64x32", SQUARE, H200)
    found = facts(hgemm.backends()["triton"], "128x128x64_s3_w64x32", SQUARE, H200)
    assert found.waves is not None and math.isfinite(found.waves)


@pytest.mark.parametrize(
    ("backend", "config", "case", "gpu", "reason"),
    [
        ("torch", None, SQUARE, H200, "a closed library"),
        ("cublaslt", None, SQUARE, H200, "a closed library"),
        ("cuda_tma", "128x128x64_s3_w64x32", Case(Shape(64, 64, 63)), H200, "multiple of 8"),
        ("triton", "128x128x64_s3_w64x32", Case(Shape(64, 63, 64)), H200, "multiple of 8"),
        ("cuda_tma", "128x128x64_s3_w64x32", SQUARE, Gpu("A100", "80", 108), "needs compute capability 9.0"),
        ("triton", "128x128x64_s3_w64x32", SQUARE, Gpu("A100", "80", 108), "needs compute capability 9.0"),
        ("triton", "128x128x64_s3_w64x32", SQUARE, Gpu("V100", "70", 80), "limits of architecture 70 are not known"),
        ("cuda_tma", "256x128x64_s4_w64x64", SQUARE, RTX_5090, "196,640 bytes.* has 101,376"),
    ],
)
def test_what_has_no_facts_has_a_reason(backend: str, config: str | None, case: Case, gpu: Gpu, reason: str) -> None:
    with pytest.raises(NoFacts, match=reason):
        facts(hgemm.backends()[backend], config, case, gpu)


def test_a_registered_function_has_no_facts() -> None:
    mine = hgemm.register_backend("mine", lambda a, b, out, config: None)
    with pytest.raises(NoFacts, match="how mine is compiled is not known"):
        facts(mine, None, SQUARE, H200)
