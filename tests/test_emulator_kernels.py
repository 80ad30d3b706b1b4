"""Every CUDA kernel of the package, executed: every configuration, dtype, layout, remainder of K and schedule."""

import pytest
import torch

from hgemm import emulation
from hgemm.cuda_kernels.configs import FAMILIES, LAYOUTS, Unit, units
from hgemm.cuda_kernels.emulator.build import build_units

SCHEDULES = ("eager", "lazy", "lazy,reversed", "random,seed=1")
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


@pytest.mark.parametrize(("unit", "config"), CONFIGS)
def test_every_kernel_is_exact_and_silent(unit, config):
    # K of one tile, then of every number of tiles modulo the stages, each with a partly filled tile at the end.
    extents = [8, *(config.tile_k * (config.stages + extra) + 8 for extra in range(config.stages))]
    shapes = [((8, 8), 0x400), ((config.tile_m + 8, config.tile_n + 8), 0xC00)]
    for K in extents:
        for schedule in SCHEDULES:
            for (M, N), base in shapes:
                check(unit, config, M, N, K, schedule=schedule, shared_base=base)


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


def test_a_tma_kernel_checks_that_its_tiles_are_aligned():
    a, b = torch.ones(8, 8).half(), torch.ones(8, 8).half()
    _, report = emulation.emulate(a, b, backend="cuda_tma", shared_base=0x410)
    assert report.kinds == ("trap",)
    assert report.events[0].place.startswith("tma.cuh:")
