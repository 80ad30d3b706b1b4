"""Every CUDA kernel of the package, executed: every configuration, dtype, layout, remainder of K and schedule."""

import pytest
import torch

from hgemm import emulation
from hgemm.cuda_kernels.configs import FAMILIES, LAYOUTS, Unit, units
from hgemm.cuda_kernels.emulator.build import build_units

SCHEDULES = ("eager", "lazy", "lazy,reversed", "random,seed=1")
PERSISTENT = "256x128x64_s4_w64x64_rotate_persistent"
DTYPES = {"f16": torch.float16, "bf16": torch.bfloat16}
CONFIGS = [
    pytest.param(unit, kernel.config, id=f"{unit.name}-{kernel.name}")
    for unit in units()
    for kernel in FAMILIES[unit.family].configs
]


@pytest.fixture(scope="module", autouse=True)
def _compiled():
    build_units(units())  # together, so that all processors have work


def integers(rows, columns, dtype, letter, seed):
    """Entries in [-4, 4], whose sums are exact in fp32; "t": column-major."""
    generator = torch.Generator().manual_seed(seed)
    values = torch.randint(-4, 5, (rows, columns), generator=generator).to(dtype)
    return values if letter == "n" else values.t().contiguous().t()


def check(unit, config, M, N, K, **options):
    dtype = DTYPES[unit.dtype]
    a = integers(M, K, dtype, unit.layout[0], M + K)
    b = integers(K, N, dtype, unit.layout[1], N + K)
    out = torch.full((M, N), torch.nan, dtype=dtype)
    report = emulation.run(FAMILIES[unit.family], a, b, out, config.name, **options)
    assert report.clean, report
    assert torch.equal(out, (a.double() @ b.double()).to(dtype))
    return report


def extents(config):
    """K of one tile, then of every number of tiles modulo the stages, each with a partly filled tile at the end."""
    return [8, *(config.tile_k * (config.stages + extra) + 8 for extra in range(config.stages))]


def runs(unit, config):
    """(tiles of C, K, schedule) of a unit. When copies land has nothing to do with what the elements are, nor with how
    they lie: of every K and schedule two layouts have a single tile, and of every K both types have four, each in a
    layout of its own (of few K in more)."""
    layout, dtype = LAYOUTS.index(unit.layout), list(DTYPES).index(unit.dtype)
    for number, K in enumerate(extents(config)):
        half = (number + layout + dtype) % 2
        yield 1, K, SCHEDULES[half + 2 * ((number // 2 + layout // 2) % 2)]
        if (number + layout + 2 * dtype) % 4 == 0 or (config.stages == 2 and half):
            yield 4, K, SCHEDULES[layout]


@pytest.mark.parametrize(("unit", "config"), CONFIGS)
def test_every_kernel_is_exact_and_silent(unit, config):
    shapes = {1: ((8, 8), 0x400), 4: ((config.tile_m + 8, config.tile_n + 8), 0xC00)}
    for tiles, K, schedule in runs(unit, config):
        shape, base = shapes[tiles]
        check(unit, config, *shape, K, schedule=schedule, shared_base=base)


def test_types_and_layouts_share_the_work_and_leave_nothing_out():
    for family in FAMILIES.values():
        for config in (kernel.config for kernel in family.configs):
            found = {
                (layout, dtype): list(runs(Unit(family.name, dtype, layout), config))
                for layout in LAYOUTS
                for dtype in DTYPES
            }
            one, four = ([run[1:] for of in found.values() for run in of if run[0] == tiles] for tiles in (1, 4))
            assert sorted(one) == sorted((K, schedule) for K in extents(config) for schedule in 2 * SCHEDULES)
            assert {K for K, _ in four} == set(extents(config))
            assert all(len({schedule for k, schedule in four if k == K}) >= 2 for K in extents(config))
            for layout in LAYOUTS:
                both = [run for dtype in DTYPES for run in found[layout, dtype]]
                assert {K for tiles, K, _ in both if tiles == 1} == set(extents(config))
                assert {schedule for tiles, _, schedule in both if tiles == 1} == set(SCHEDULES)
            for dtype in DTYPES:
                every = {(tiles, schedule) for layout in LAYOUTS for tiles, _, schedule in found[layout, dtype]}
                assert every == {(tiles, schedule) for tiles in (1, 4) for schedule in SCHEDULES}, (config, dtype)
                assert {K for layout in LAYOUTS for tiles, K, _ in found[layout, dtype] if tiles == 4} == set(
                    extents(config)
                )
            for unit, of_unit in found.items():
                schedules = {schedule for tiles, _, schedule in of_unit if tiles == 1}
                assert len(schedules) == min(len(SCHEDULES), len(extents(config))), (config, unit)
                assert any(tiles == 4 for tiles, *_ in of_unit), (config, unit)


def in_aligned_rows(values, letter):
    """The same matrices in memory whose rows, or columns for "t", start on 16 bytes, and NaN between them."""
    stored = values if letter == "n" else values.mT
    *batch, rows, columns = stored.shape
    memory = torch.full((*batch, rows, (columns + 15) // 8 * 8), torch.nan, dtype=values.dtype)
    memory[..., :columns] = stored
    return memory[..., :columns] if letter == "n" else memory[..., :columns].mT


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("dtype", DTYPES)
def test_a_persistent_block_goes_on_with_its_next_tiles(layout, dtype):
    # The emulator has two blocks: of five tiles of C one computes three, the other two. Copies run ahead by two tiles
    # of K, which with one tile of K are two tiles of C. Odd extents, and 1 to 5 tiles of K.
    generator = torch.Generator().manual_seed(3)
    for batch, M, N in ((5, 70, 69), (1, 513, 131)):
        for K in (1, 67, 130, 193, 257):
            a, b = (
                torch.randint(-4, 5, (batch, *shape), generator=generator).to(DTYPES[dtype])
                for shape in ((M, K), (K, N))
            )
            expected = (a.double() @ b.double()).to(DTYPES[dtype])
            memory = torch.full((batch, M + 2, N + 5), torch.nan, dtype=DTYPES[dtype])
            out = memory[:, 1:-1, 3:-2]
            operands = (in_aligned_rows(x, letter) for x, letter in zip((a, b), layout, strict=True))
            schedule = ("lazy", "lazy,reversed", "eager", "random,seed=5")[K % 4]
            report = emulation.run(FAMILIES["tma"], *operands, out, PERSISTENT, schedule)
            assert report.clean, report
            assert report.blocks == 2
            assert torch.equal(out, expected), (batch, M, N, K)
            assert memory.isnan().sum() == memory.numel() - out.numel()


@pytest.mark.parametrize(
    "config", [kernel.config for kernel in FAMILIES["tma"].configs if "rotate" in kernel.config.flags], ids=str
)
def test_warps_that_begin_with_the_second_tile_of_k_know_whether_there_is_one(config):
    # One tile of K, two, and three, the last partly filled: of one tile of C, where there is no other to copy ahead; of
    # two, which are two blocks' or one cluster's; and of three, of which one block, or the cluster, has the next too.
    for tiles in (1, 2, 3):
        for M, N in ((24, 16), (24, config.tile_n + 8), (2 * config.tile_m + 8, 16)):
            for schedule in SCHEDULES:
                check(Unit("tma", "f16"), config, M, N, config.tile_k * tiles - 8, schedule=schedule)


@pytest.mark.parametrize("schedule", SCHEDULES)
def test_rows_do_not_depend_on_the_tiles_that_a_block_computed_before(schedule):
    generator = torch.Generator().manual_seed(4)
    a, b = torch.randn(520, 264, generator=generator).half(), torch.randn(264, 136, generator=generator).half()
    (whole, report), (rows, other) = (
        emulation.emulate(left, b, backend="cuda_tma", config=PERSISTENT, schedule=schedule) for left in (a, a[512:])
    )
    assert report.clean and other.clean
    assert torch.equal(whole[512:], rows)


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize(
    ("M", "N", "K"), [(1, 1, 1), (3, 5, 7), (130, 131, 33), (20, 36, 44), (12, 20, 260), (9, 6, 10)]
)
def test_the_cp_async_family_takes_every_alignment(layout, dtype, M, N, K):
    # 16-, 8- and 4-byte copies, and element by element.
    config = FAMILIES["cp_async"].configs[0].config
    for schedule in SCHEDULES:
        check(Unit("cp_async", dtype, layout), config, M, N, K, schedule=schedule)


@pytest.mark.parametrize("family", FAMILIES)
def test_batches_are_computed_one_by_one(family):
    generator = torch.Generator().manual_seed(0)
    a = torch.randint(-4, 5, (3, 136, 72), generator=generator).half()
    b = torch.randint(-4, 5, (72, 136), generator=generator).half().expand(3, 72, 136)
    out = torch.full((3, 136, 136), torch.nan).half()
    config = FAMILIES[family].configs[0].name
    for schedule in SCHEDULES:
        report = emulation.run(FAMILIES[family], a, b, out, config, schedule)
        assert report.clean, report
        assert torch.equal(out, (a.double() @ b.double()).half())


def test_real_numbers_are_within_the_bound():
    from hgemm.reference import error_over_bound

    generator = torch.Generator().manual_seed(0)
    for dtype in DTYPES.values():
        a = torch.randn(200, 264, generator=generator).to(dtype)
        b = torch.randn(264, 136, generator=generator).to(dtype)
        out, report = emulation.emulate(a, b)
        assert report.clean
        assert error_over_bound(a, b, out) <= 1


@pytest.mark.parametrize(("config", "file"), [(None, "tma.cuh"), (PERSISTENT, "tma_ring.cuh")])
def test_a_tma_kernel_checks_that_its_tiles_are_aligned(config, file):
    a, b = torch.ones(8, 8).half(), torch.ones(8, 8).half()
    _, report = emulation.emulate(a, b, backend="cuda_tma", config=config, shared_base=0x410)
    assert report.kinds == ("trap",)
    assert report.events[0].place.startswith(f"{file}:")
