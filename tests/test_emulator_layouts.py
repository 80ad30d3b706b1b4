"""The CUDA kernels on operands of every layout, stride, offset and batch: exact, inside out, or refused by name."""

import pytest
import torch
from placements import FORMS, SHARINGS, placed, untouched

import hgemm
from hgemm import emulation
from hgemm.cuda_kernels.configs import FAMILIES, LAYOUTS, units
from hgemm.cuda_kernels.emulator.build import build_units

BY_TMA = ("dense", "padded")
OUT_FORMS = ("n dense", "n padded", "n odd", "n strided", "t padded", "t odd")
CONFIGS = {  # of each family, one of every kernel
    "cp_async": ("128x128x32_s2_w64x32",),
    "tma": (
        "128x128x64_s3_w64x32",
        "128x128x64_s3_w64x32_store-tma",
        "256x128x64_s4_w64x64_rotate",
        "256x128x64_s4_w64x64_rotate_persistent",
        "192x256x32_s3_w96x64_rotate_persistent",
        "256x128x64_s4_w64x64_producer_persistent",
    ),
}
KERNELS = [(family, config) for family, configs in CONFIGS.items() for config in configs]
FITS = [(*kernel, form) for kernel in KERNELS for form in FORMS if kernel[0] == "cp_async" or form in BY_TMA]


@pytest.fixture(scope="module", autouse=True)
def _compiled():
    build_units(units())  # together, so that all processors have work


def check(family, config, shape, layout, form, out_form, sharing, dtype=torch.float16):
    a, b, out, expected = placed(shape, dtype, layout, form, out_form, sharing)
    report = emulation.run(FAMILIES[family], a, b, out, config)
    assert report.clean, report
    assert torch.equal(out, expected), (shape, layout, form, out_form, sharing)
    assert untouched(out)


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize(("family", "config", "form"), FITS)
def test_every_placement_is_exact(family, config, form, layout):
    shapes = [(24, 16, 40)] if form in BY_TMA else [(19, 13, 21), (24, 16, 40)]
    for shape in shapes:
        for sharing in SHARINGS:
            check(family, config, shape, layout, form, "n dense", sharing)
        for out_form in OUT_FORMS[1:]:
            check(family, config, shape, layout, form, out_form, "none", torch.bfloat16)
            check(family, config, shape, layout, form, out_form, "batch")


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize(("family", "config"), KERNELS)
def test_any_extents_over_aligned_rows(family, config, layout):
    # The copy engine counts the rows of memory, not of the matrix: 13 columns in rows of 16.
    generator = torch.Generator().manual_seed(0)
    for M, N, K in ((1, 1, 1), (1, 13, 5), (13, 1, 5), (7, 5, 1), (13, 7, 35), (130, 9, 70)):
        memory = [torch.full((136, 136), torch.nan).half() for _ in range(3)]
        a, b = (
            memory[i][: shape[0], : shape[1]] if letter == "n" else memory[i].t()[: shape[0], : shape[1]]
            for i, (shape, letter) in enumerate(zip(((M, K), (K, N)), layout, strict=True))
        )
        for operand in (a, b):
            operand.copy_(torch.randint(-4, 5, operand.shape, generator=generator))
        out = memory[2][3 : 3 + M, 5 : 5 + N]
        report = emulation.run(FAMILIES[family], a, b, out, config)
        assert report.clean, report
        assert torch.equal(out, (a.double() @ b.double()).half())
        assert untouched(out)


def test_rows_may_begin_right_behind_the_last_element_of_others():
    # Every other element, and the next row follows the last one: 31 = 15 x 2 + 1.
    a, b = torch.ones(24, 8).half(), torch.ones(8, 16).half()
    memory = torch.full((24 * 31,), torch.nan).half()
    out = memory.as_strided((24, 16), (31, 2))
    report = emulation.run(FAMILIES["cp_async"], a, b, out, FAMILIES["cp_async"].configs[0].name)
    assert report.clean, report
    assert torch.equal(out, torch.full((24, 16), 8).half())
    assert untouched(out)


@pytest.mark.parametrize("family", FAMILIES)
def test_the_op_takes_the_same_problems(family):
    from hgemm.cuda_kernels.build import load_unit
    from hgemm.cuda_kernels.configs import Unit

    for layout in LAYOUTS:
        unit = load_unit(Unit(family, "f16", layout), "cpu")
        for sharing in SHARINGS:
            a, b, out, expected = placed((24, 16, 40), torch.float16, layout, "padded", "t odd", sharing)
            torch.ops.hgemm_cuda.mm_out(a, b, out, unit.handle, 0)
            assert torch.equal(out, expected), (layout, sharing)
            assert untouched(out)


@pytest.mark.parametrize(
    ("a_shape", "b_shape"),
    [((40,), (40, 16)), ((24, 40), (40,)), ((40,), (40,)), ((2, 3, 24, 40), (2, 3, 40, 16)), ((40,), (3, 40, 16))],
)
@pytest.mark.parametrize("family", FAMILIES)
def test_emulate_folds_what_matmul_folds(family, a_shape, b_shape):
    generator = torch.Generator().manual_seed(1)
    a, b = (torch.randint(-4, 5, shape, generator=generator).half() for shape in (a_shape, b_shape))
    product, report = hgemm.emulate(a, b, backend=FAMILIES[family].backend)
    assert report.clean, report
    assert torch.equal(product, torch.matmul(a.double(), b.double()).half())
    assert torch.equal(hgemm.matmul(a, b, backend=FAMILIES[family].backend), product)


def test_emulate_reports_on_one_launch():
    a, b = torch.ones(2, 1, 8, 8).half(), torch.ones(1, 3, 8, 8).half()
    with pytest.raises(hgemm.UnsupportedProblem, match=r"take 2 launches, and the emulator reports on one"):
        hgemm.emulate(a, b)
    assert torch.equal(hgemm.matmul(a, b, backend="cuda_tma"), torch.full((2, 3, 8, 8), 8).half())


@pytest.mark.parametrize("form", ["odd", "strided"])
def test_what_tma_cannot_address_is_refused_by_name(form):
    record = hgemm.backends()["cuda_tma"]
    for layout in LAYOUTS:
        a, b, out, _ = placed((19, 13, 21), torch.float16, layout, form, "n dense", "none")
        problem = hgemm.problem.Problem.from_tensors(a, b, out)
        rule = record.accepts(problem, None)
        assert rule is not None
        assert "TMA" in rule
        with pytest.raises(hgemm.UnsupportedProblem, match="TMA needs"):  # the last check, in C++
            emulation.run(FAMILIES["tma"], a, b, out, record.configs[0])
        assert out.isnan().all()
        assert hgemm.backends()["cuda_cp_async"].accepts(problem, None) is None
