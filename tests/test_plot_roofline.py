"""The roofs of the roofline: their numbers, how they are drawn, and names that stand apart on slopes side by side."""

import dataclasses
import math
from collections.abc import Iterator

import matplotlib as mpl
import matplotlib.pyplot as plt
import pytest
from made_up_results import COPY_GBS, L2_GBS, SERIES, results
from matplotlib.figure import Figure
from matplotlib.path import Path as Outline

from hgemm.bench.metrics import CEILING, L2, speed
from hgemm.bench.schema import Results
from hgemm.bench.suites import Shape
from hgemm.plot import roofline
from hgemm.plot.levels import Level

mpl.use("Agg")
MADE_UP = results(dtypes=("bf16", "fp16"))


@pytest.fixture(autouse=True)
def closed_figures() -> Iterator[None]:
    yield
    plt.close("all")


def by_name(made_up: Results, dtype: str) -> dict[tuple[str, str], Level]:
    found = roofline.levels(made_up, dtype)
    assert len({(level.name, level.kind) for level in found}) == len(found)
    return {(level.name, level.kind): level for level in found}


@pytest.mark.parametrize("dtype", ["bf16", "fp16"])
def test_levels_are_the_roofs_of_products_that_accumulate_in_fp32(dtype: str) -> None:
    found = by_name(MADE_UP, dtype)
    assert list(found) == [
        ("mma.sync", "compute"),
        ("cublas", "compute"),
        ("copy", "bandwidth"),
        ("l2", "bandwidth"),
        ("vendor", "compute"),
        ("vendor", "bandwidth"),
    ]
    roofs = {r.name: r.value for r in MADE_UP.roofs if r.dtype in (dtype, None) and r.accumulator in ("float32", None)}
    for name in ("mma.sync", "cublas"):
        assert found[name, "compute"].value == roofs[name]
        assert found[name, "compute"].ridge == pytest.approx(roofs[name] * 1e12 / (roofs["copy"] * 1e9))
    assert found["copy", "bandwidth"].value == pytest.approx(COPY_GBS / 1000, rel=0.01)
    assert found["l2", "bandwidth"].value == pytest.approx(L2_GBS / 1000, rel=0.01)
    assert found["l2", "bandwidth"].text == f"L2 reads {roofs['l2'] / 1000:.3g} TB/s at 1980 MHz"
    assert [level.measured for level in found.values()] == [True] * 4 + [False] * 2


def test_the_vendor_s_peak_is_at_the_clock_of_mma_sync() -> None:
    made_up = results()
    for roof in made_up.roofs:
        roof.clock_mhz = 1500.0 if roof.name == CEILING else 1980.0
    peak = by_name(made_up, "bf16")["vendor", "compute"]
    # 132 multiprocessors x 4096 operations x 1500 MHz, over 4.8 TB/s.
    assert peak.value == pytest.approx(811.008)
    assert peak.ridge == pytest.approx(811.008 / 4.8)
    assert peak.text == "NVIDIA, dense, 811 TFLOPS at 1500 MHz (989.4 at 1830 MHz)"
    for roof in made_up.roofs:
        roof.clock_mhz = None
    found = by_name(made_up, "bf16")
    assert found["vendor", "compute"].value == pytest.approx(989.4, rel=1e-4)
    assert found["vendor", "compute"].text == "NVIDIA, dense, 989.4 TFLOPS at 1830 MHz"
    assert found["copy", "bandwidth"].text == "copy 4.1 TB/s"


def test_a_file_without_the_newer_roofs_has_the_others() -> None:
    older = results()
    older.roofs = [roof for roof in older.roofs if roof.name != L2]
    found = by_name(older, "bf16")
    assert ("l2", "bandwidth") not in found
    assert len(found) == 5
    bare = dataclasses.replace(older, roofs=[])
    assert list(by_name(bare, "bf16")) == [("vendor", "compute"), ("vendor", "bandwidth")]
    unknown = results(gpu="NVIDIA Unheard-of 9000")
    assert ("vendor", "compute") not in by_name(unknown, "bf16")


def slopes(figure: Figure) -> dict[float, bool]:
    """Bandwidths in TB/s of the drawn slopes, and whether they are dashed."""
    (axes,) = figure.axes
    found = {}
    for line in axes.lines:
        x, y = line.get_xdata(), line.get_ydata()
        if len(x) == 2 and line.get_linewidth() > 1 and math.isclose(y[0] / x[0], y[1] / x[1], rel_tol=1e-9):
            found[round(float(y[0] / x[0]), 3)] = line.is_dashed()
    return found


def test_bandwidths_are_slopes_solid_if_measured() -> None:
    values = {roof.name: round(roof.value / 1000, 3) for roof in MADE_UP.roofs if roof.kind == "bandwidth"}
    assert slopes(roofline.draw(MADE_UP, "bf16")) == {values["copy"]: False, values["l2"]: False, 4.8: True}


def test_compute_roofs_reach_as_far_left_as_l2_feeds_them() -> None:
    figure = roofline.draw(MADE_UP, "bf16")
    ceiling, l2 = (next(roof.value for roof in MADE_UP.roofs if roof.name == name) for name in (CEILING, L2))
    starts = [
        line.get_xdata()[0]
        for line in figure.axes[0].lines
        if len(line.get_ydata()) == 2 and tuple(line.get_ydata()) == (ceiling, ceiling)
    ]
    assert starts == [pytest.approx(ceiling / l2 * 1000)]


def bound_by_memory(made_up: Results) -> Results:
    """The same with nobody faster than nine tenths of the copy allows."""
    for case in made_up.cases:
        limit = 0.9 * COPY_GBS / 1000 * roofline.intensity(case)
        for row in case.rows:
            if row.role == "contestant" and row.timing and (median := speed(row).median) > limit:
                row.timing.samples_us = [sample * median / limit for sample in row.timing.samples_us]
    return made_up


def with_l2(made_up: Results, gigabytes: float) -> Results:
    for roof in made_up.roofs:
        if roof.name == L2:
            roof.value = gigabytes
    return made_up


def slow(made_up: Results, gpu: str, multiprocessors: int) -> Results:
    """Scaled to a third of the compute, under another name."""
    made_up.env = dataclasses.replace(made_up.env, gpu=gpu, multiprocessors=multiprocessors)
    for case in made_up.cases:
        for row in case.rows:
            if row.timing and row.timing.flops_per_call:
                row.timing.samples_us = [3 * sample for sample in row.timing.samples_us]
    for roof in made_up.roofs:
        roof.value /= 3 if roof.kind == "compute" else 2.6 if roof.name == "copy" else 1
    return made_up


LLM = [Shape(M, 4096, 4096) for M in (1, 16, 128, 1024, 8192)]
PICTURES = {
    "squares": MADE_UP,
    "L2 near the vendor's figure": with_l2(results(), 5200.0),
    "GeForce": slow(results(series=SERIES[2:]), "NVIDIA GeForce RTX 5090", 170),
    "projections": bound_by_memory(results(shapes=LLM)),
    "single": results(shapes=[Shape(4096, 4096, 4096)], series=SERIES[:1]),
}


@pytest.mark.parametrize("name", PICTURES)
def test_names_of_roofs_overlap_nothing_written(name: str) -> None:
    figure = roofline.draw(PICTURES[name], "bf16")
    figure.canvas.draw()
    (axes,) = figure.axes
    names = [text for text in axes.texts if "TB/s" in text.get_text() or "TFLOPS" in text.get_text()]
    assert len(names) == 6
    outlines = {}
    for text in names:
        patch = text.get_bbox_patch()
        outlines[text.get_text()] = patch.get_transform().transform_path(patch.get_path())
    inside = Outline.unit_rectangle().transformed(mpl.transforms.BboxTransformTo(axes.bbox.expanded(1.005, 1.005)))
    for text, outline in outlines.items():
        assert inside.contains_points(outline.vertices).all(), text
        for other, second in outlines.items():
            assert other == text or not outline.intersects_path(second, filled=True), f"{text!r} and {other!r}"


@pytest.mark.parametrize("name", PICTURES)
def test_points_stay_inside_and_below_the_roof_that_bounds_them(name: str) -> None:
    figure = roofline.draw(PICTURES[name], "bf16")
    (axes,) = figure.axes
    copy = next(roof.value for roof in PICTURES[name].roofs if roof.name == "copy") / 1000
    points = [
        (line.get_xdata()[0], line.get_ydata()[0])
        for line in axes.lines
        if line.get_linestyle() == "None" and line.get_markerfacecolor() == "white"
    ]
    ends = axes.transData.transform(points) * 72 / figure.dpi
    box = axes.bbox.frozen()
    for (x, y), (across, up) in zip(points, ends, strict=True):
        assert (box.x0 * 72 / figure.dpi + 3) < across < (box.x1 * 72 / figure.dpi - 3)
        assert (box.y0 * 72 / figure.dpi + 3) < up < (box.y1 * 72 / figure.dpi - 3)
        if name == "projections":
            assert y <= copy * x
