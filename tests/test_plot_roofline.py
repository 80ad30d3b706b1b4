"""The roofline: the numbers of its roofs, products at their intensity, axes that hold them, names that stand apart."""

import dataclasses
import math
import statistics
from collections import Counter
from collections.abc import Iterable, Iterator

import matplotlib as mpl
import matplotlib.pyplot as plt
import pytest
from made_up_results import COPY_GBS, RAGGED, SERIES, results, with_fragments, with_reads
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.path import Path as Outline
from picture_texts import assert_texts_are_apart_and_inside, texts

from hgemm.bench.metrics import CEILING, L2, speed
from hgemm.bench.schema import Results
from hgemm.bench.suites import SUITES, Shape
from hgemm.plot import roofline
from hgemm.plot.source import NothingToDraw

mpl.use("Agg")
MADE_UP = results(dtypes=("bf16", "fp16"))


@pytest.fixture(autouse=True)
def closed_figures() -> Iterator[None]:
    yield
    plt.close("all")


def slopes(figure: Figure) -> dict[float, bool]:
    """Bandwidths in TB/s of the drawn slopes, and whether they are dashed."""
    (axes,) = figure.axes
    found = {}
    for line in axes.lines:
        x, y = line.get_xdata(), line.get_ydata()
        if len(x) == 2 and line.get_linewidth() > 1 and math.isclose(y[0] / x[0], y[1] / x[1], rel_tol=1e-9):
            found[round(float(y[0] / x[0]), 3)] = line.is_dashed()
    return found


def test_the_host_s_time_has_no_roofline() -> None:
    made_up = results()
    for case in made_up.cases:
        for row in case.rows:
            if row.timing and row.role == "contestant":
                row.timing.mode = "e2e"
    with pytest.raises(NothingToDraw, match=r"the host's time was measured \(mode e2e\)"):
        roofline.draw(made_up, "bf16")


def test_bandwidths_are_slopes_solid_if_measured() -> None:
    values = {roof.name: round(roof.value / 1000, 3) for roof in MADE_UP.roofs if roof.kind == "bandwidth"}
    assert slopes(roofline.draw(MADE_UP, "bf16")) == {values["copy"]: False, values["l2"]: False, 4.8: True}
    with_read = {values["copy"]: False, 4.4: False, values["l2"]: False, 4.8: True}
    assert slopes(roofline.draw(with_reads(results(), 4400.0), "bf16")) == with_read


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
    """Nobody is faster than nine tenths of the copy allow, and each contestant slower than the one before."""
    for case in made_up.cases:
        for place, row in enumerate(case.rows):
            limit = (0.9 - 0.04 * place) * COPY_GBS / 1000 * roofline.intensity(case)
            if row.role == "contestant" and row.timing and (median := speed(row).median) > limit:
                row.timing.samples_us = [sample * median / limit for sample in row.timing.samples_us]
    return made_up


def with_l2(made_up: Results, gigabytes: float, copy: float = COPY_GBS) -> Results:
    for roof in made_up.roofs:
        if roof.kind == "bandwidth":
            roof.value = {L2: gigabytes, "copy": copy}.get(roof.name, roof.value)
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


def rising(made_up: Results) -> Results:
    """Slower the smaller the product, by orders of magnitude."""
    for case in made_up.cases:
        share = min(1.0, (roofline.intensity(case) / 700) ** 2.3)
        for row in case.rows:
            if row.role == "contestant" and row.timing:
                row.timing.samples_us = [sample / share for sample in row.timing.samples_us]
    return made_up


WEIGHTS = ((6144, 4096), (4096, 4096), (28672, 4096), (4096, 14336), (57344, 8192))
MANY_WEIGHTS = [Shape(M, N, K) for M in (1, 16, 128, 1024, 8192) for N, K in WEIGHTS]
LLM = [Shape(M, 4096, 4096) for M in (1, 16, 128, 1024, 8192)]
PICTURES = {
    "squares": MADE_UP,
    "L2 near the vendor's figure": with_l2(results(), 5200.0),
    "GeForce": slow(results(series=SERIES[2:]), "NVIDIA GeForce RTX 5090", 170),
    "projections": bound_by_memory(results(shapes=LLM)),
    "curves": rising(results(shapes=SUITES["squares"])),
    "weights": bound_by_memory(results(shapes=MANY_WEIGHTS)),
    "single": results(shapes=[Shape(4096, 4096, 4096)], series=SERIES[:1]),
}


ALIKE = {"three slopes alike": with_l2(results(), 4850.0, copy=4770.0)}
READS = {
    "squares and reads": with_reads(results()),
    "weights and reads": with_reads(bound_by_memory(results(shapes=MANY_WEIGHTS))),
    "reads like a copy": with_reads(results(), COPY_GBS * 1.001),
}
FED = {
    "squares and ldmatrix": with_fragments(results(), 600.0, 620.0),
    "weights and ldmatrix": with_fragments(bound_by_memory(results(shapes=MANY_WEIGHTS)), 600.0, 639.0),
    "GeForce and ldmatrix": slow(with_fragments(results(), 630.0, 620.0), "NVIDIA GeForce RTX 5090", 170),
}


@pytest.mark.parametrize("name", [*PICTURES, *ALIKE, *READS, *FED])
def test_names_of_roofs_overlap_nothing_written(name: str) -> None:
    figure = roofline.draw((PICTURES | ALIKE | READS | FED)[name], "bf16")
    figure.canvas.draw()
    (axes,) = figure.axes
    names = [text for text in axes.texts if "TB/s" in text.get_text() or "TFLOPS" in text.get_text()]
    assert len(names) == 6 + (name in READS) + (name in FED)
    outlines = {}
    for text in names:
        patch = text.get_bbox_patch()
        outlines[text.get_text()] = patch.get_transform().transform_path(patch.get_path())
    inside = Outline.unit_rectangle().transformed(mpl.transforms.BboxTransformTo(axes.bbox.expanded(1.005, 1.005)))
    marks = [line for line in axes.lines if line.get_clip_on() and line.get_linestyle() == "None"]
    places = [place for line in marks for place in axes.transData.transform(coordinates(line))]
    lines = [Outline(axes.transData.transform(coordinates(line))) for line in curves(figure)]
    for text, outline in outlines.items():
        assert not outline.contains_points(places).any(), text
        assert not any(line.intersects_path(outline, filled=False) for line in lines), text
        assert inside.contains_points(outline.vertices).all(), text
        for other, second in outlines.items():
            assert other == text or not outline.intersects_path(second, filled=True), f"{text!r} and {other!r}"


def slope_lines(figure: Figure) -> list[Line2D]:
    (axes,) = figure.axes
    lines = [line for line in axes.lines if len(line.get_xdata()) == 2 and line.get_linewidth() > 1]
    return [
        line
        for line in lines
        if line.get_xdata()[0] == axes.get_xlim()[0] and line.get_ydata()[0] != line.get_ydata()[1]
    ]


def distances(figure: Figure) -> dict[str, tuple[float, list[float]]]:
    """Of the middle of each slope's name from its own slope and from the others, in points."""
    figure.canvas.draw()
    (axes,) = figure.axes
    found = {}
    for text in axes.texts:
        if "TB/s" not in text.get_text():
            continue
        value = float(text.get_text().partition(" TB/s")[0].split()[-1])
        middle = axes.transData.transform(text.xy)
        away = {}
        for line in slope_lines(figure):
            (x0, y0), (x1, y1) = axes.transData.transform(coordinates(line))
            area = (x1 - x0) * (middle[1] - y0) - (y1 - y0) * (middle[0] - x0)
            bandwidth = float(f"{line.get_ydata()[0] / line.get_xdata()[0]:.3g}")
            away[bandwidth] = abs(area) / math.hypot(x1 - x0, y1 - y0) * 72 / figure.dpi
        found[text.get_text()] = away.pop(value), list(away.values())
    return found


def test_names_stand_beside_their_slopes_where_there_is_room() -> None:
    figure = roofline.draw(with_l2(rising(results(shapes=SUITES["squares"])), 10200.0), "bf16")
    found = distances(figure)
    assert len(found) == 3
    for name, (own, others) in found.items():
        assert own == pytest.approx(8, abs=0.5), name
        assert min(others) > 8, name


@pytest.mark.parametrize("name", PICTURES)
def test_no_slope_strikes_the_name_of_another(name: str) -> None:
    found = distances(roofline.draw(PICTURES[name], "bf16"))
    assert len(found) == 3
    for text, (own, others) in found.items():
        assert own < 8.5, text
        assert min(others) > 4, text


Points = Counter[tuple[float, float]]


def rounded(points: Iterable[tuple[float, float]]) -> Points:
    return Counter((float(f"{x:.6g}"), float(f"{y:.6g}")) for x, y in points)


def coordinates(line: Line2D) -> list[tuple[float, float]]:
    return list(zip(map(float, line.get_xdata()), map(float, line.get_ydata()), strict=True))


def drawn(figure: Figure, *, hollow: bool) -> Points:
    """Where the hollow markers on the axes are, or the dots."""
    (axes,) = figure.axes
    marks = [line for line in axes.lines if line.get_linestyle() == "None" and line.get_clip_on()]
    lines = [line for line in marks if (line.get_markerfacecolor() == "white") is hollow and len(line.get_xdata())]
    return rounded(point for line in lines for point in coordinates(line))


def measured(made_up: Results) -> Points:
    """FLOP a byte and TFLOPS of every contestant, from its shape and samples."""
    found = []
    for case in (case for case in made_up.cases if case.dtype == "bf16"):
        flops = 2 * case.M * case.N * case.K
        nbytes = 2 * (case.M * case.K + case.K * case.N + case.M * case.N)
        for row in case.rows:
            if row.role == "contestant" and row.timing:
                found.append((flops / nbytes, flops / statistics.median(row.timing.samples_us) * 1e-6))
    return rounded(found)


@pytest.mark.parametrize("name", PICTURES)
def test_every_contestant_is_drawn_at_its_intensity_and_speed(name: str) -> None:
    figure = roofline.draw(PICTURES[name], "bf16")
    assert drawn(figure, hollow=True) + drawn(figure, hollow=False) == measured(PICTURES[name])


def test_markers_are_the_fastest_configurations_of_each_backend() -> None:
    # In SERIES the second of two configurations of cuda_cp_async is the faster one, and the first of cuda_tma.
    swapped = rising(results(shapes=SUITES["squares"]))
    slower = {"128x128x32_s2_w64x32": "cuda_cp_async", "128x128x32_s3_w64x32": "cuda_tma"}
    expected = dataclasses.replace(swapped, cases=[dataclasses.replace(case) for case in swapped.cases])
    for case in expected.cases:
        case.rows = [row for row in case.rows if row.config is None or slower.get(row.config) != row.backend]
    figure = roofline.draw(swapped, "bf16")
    assert drawn(figure, hollow=True) == measured(expected)
    assert drawn(figure, hollow=False) == measured(swapped) - measured(expected)


def curves(figure: Figure) -> list[Line2D]:
    (axes,) = figure.axes
    return [line for line in axes.lines if line.get_linewidth() == 1.0 and line.get_linestyle() == "-"]


@pytest.mark.parametrize("name", ["curves", "weights", "projections"])
def test_each_backend_is_a_curve_through_its_markers_in_order_of_intensity(name: str) -> None:
    figure = roofline.draw(PICTURES[name], "bf16")
    found = curves(figure)
    assert len(found) == len({backend for backend, *_ in SERIES})
    assert rounded(point for line in found for point in coordinates(line)) == drawn(figure, hollow=True)
    for line in found:
        across = list(line.get_xdata())
        assert across == sorted(set(across))


def test_of_products_that_share_an_intensity_the_median_has_the_marker() -> None:
    shapes = [Shape(1, N, 4096) for N in (4096, 8192, 16384)] + [Shape(M, 4096, 4096) for M in (256, 4096)]
    made_up = results(shapes=shapes, series=SERIES[:1])
    for case, tera in zip(made_up.cases, (3.0, 1.0, 2.0, 300.0, 700.0), strict=True):
        for row in case.rows:
            if row.role == "contestant" and row.timing:
                row.timing.samples_us = [case.flops / tera * 1e-6] * 7
    figure = roofline.draw(made_up, "bf16")
    assert sorted(y for _, y in drawn(figure, hollow=True)) == [2.0, 300.0, 700.0]
    assert sorted(y for _, y in drawn(figure, hollow=False)) == [1.0, 3.0]
    written = " ".join(texts(figure))
    assert "of those that share an intensity the median has the marker, others are dots" in written


def test_the_footer_says_what_is_left_faint() -> None:
    assert "faint: other configurations" in " ".join(texts(roofline.draw(PICTURES["curves"], "bf16")))
    single = results(shapes=SUITES["squares"], series=SERIES[:3])
    written = " ".join(texts(roofline.draw(single, "bf16")))
    assert "Each backend in its fastest configuration at each product." in written
    assert "dots" not in written
    assert "faint" not in written


def test_one_point_without_roofs_has_axes_around_it() -> None:
    bare = results(shapes=[Shape(4096, 4096, 4096)], series=SERIES[:1], gpu="NVIDIA Unheard-of 9000")
    bare.roofs = []
    figure = roofline.draw(bare, "bf16")
    (axes,) = figure.axes
    ((x, y),) = drawn(figure, hollow=True)
    for value, (low, high) in ((x, axes.get_xlim()), (y, axes.get_ylim())):
        assert low < value / 3
        assert value < high < 2 * value
    assert_texts_are_apart_and_inside(figure)


def test_few_products_have_a_marker_a_configuration_and_many_a_curve_a_backend() -> None:
    few = roofline.draw(MADE_UP, "bf16")
    legend = [text.get_text() for text in few.legends[0].get_texts()]
    assert legend == [f"{backend}  {config}" if config else backend for backend, config, *_ in SERIES]
    assert not curves(few)
    assert {"2048³", "4096³", "8192³", "4000 x 4104 x 4072"} <= set(texts(few))
    five = roofline.draw(results(shapes=LLM), "bf16")
    assert not five.legends
    assert len(curves(five)) == 7
    sixteen = [("mine", f"128x128x64_s{n}_w64x32", 0.5 + n / 100, 1, 1) for n in range(2, 18)]
    crowd = roofline.draw(results(shapes=[Shape(4096, 4096, 4096)], series=sixteen), "bf16")
    assert not crowd.legends
    assert len(drawn(crowd, hollow=True)) == 1


@pytest.mark.parametrize("name", PICTURES)
def test_the_axes_hold_points_and_ridges_and_a_little_of_the_slopes(name: str) -> None:
    figure = roofline.draw(PICTURES[name], "bf16")
    (axes,) = figure.axes
    points = measured(PICTURES[name])
    ridges = [(level.ridge, level.value) for level in roofline.levels(PICTURES[name], "bf16") if level.ridge]
    assert len(ridges) == 3
    ends = axes.transData.transform([*points, *ridges]) * 72 / figure.dpi
    (left, bottom), (right, top) = axes.bbox.get_points() * 72 / figure.dpi
    assert ends[:, 0].min() > left + 6
    assert ends[:, 0].max() == pytest.approx(right - 12, abs=1)
    assert ends[:, 1].min() > bottom + 6
    assert ends[:, 1].max() < top - 6
    assert min(x for x, _ in [*points, *ridges]) / axes.get_xlim()[0] < 20


def test_curves_are_named_where_they_end() -> None:
    figure = roofline.draw(PICTURES["curves"], "bf16")
    assert_texts_are_apart_and_inside(figure)
    (axes,) = figure.axes
    backends = list(dict.fromkeys(backend for backend, *_ in SERIES))
    names = {text.get_text(): text for text in axes.texts if text.get_text() in backends}
    assert list(names) == backends
    last = {backend: float(line.get_ydata()[-1]) for backend, line in zip(backends, curves(figure), strict=True)}
    heights = {backend: names[backend].xy[1] for backend in backends}
    assert sorted(backends, key=last.__getitem__) == sorted(backends, key=heights.__getitem__)
    assert all(text.get_window_extent().x0 > axes.bbox.x1 for text in names.values())
    beside = [line for line in axes.lines if not line.get_clip_on() and line.get_linestyle() == "None"]
    for backend, line, curve in zip(backends, beside, curves(figure), strict=True):
        assert line.get_ydata()[0] == pytest.approx(heights[backend])
        assert line.get_markeredgecolor() == curve.get_color()


def test_names_of_products_lead_to_their_intensity() -> None:
    # Both at 1365 and 1352 FLOP a byte: closer than two upright names.
    figure = roofline.draw(results(shapes=[Shape(4096, 4096, 4096), RAGGED]), "bf16")
    (axes,) = figure.axes
    guides = [coordinates(line) for line in axes.lines if line.get_color() == "#b8bcc0"]
    names = [text for text in axes.texts if text.get_rotation() == 90]
    assert [text.get_text() for text in names] == ["4096³", "4000 x 4104 x 4072"]
    expected = [roofline.intensity(case) for case in results(shapes=[Shape(4096, 4096, 4096), RAGGED]).cases]
    assert [guide[-1][0] for guide in guides] == pytest.approx(expected)
    assert [guide[0][0] for guide in guides] == pytest.approx([text.xy[0] for text in names])
    assert_texts_are_apart_and_inside(figure)


@pytest.mark.parametrize("name", ["projections", "weights"])
def test_points_bound_by_memory_are_under_the_slope(name: str) -> None:
    figure = roofline.draw(PICTURES[name], "bf16")
    copy = next(roof.value for roof in PICTURES[name].roofs if roof.name == "copy") / 1000
    points = drawn(figure, hollow=True) + drawn(figure, hollow=False)
    assert min(x for x, _ in points) == pytest.approx(1.0, rel=0.01)
    assert all(y <= copy * x for x, y in points)
