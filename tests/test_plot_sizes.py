"""The picture of speed over size: a line a backend at its fastest, in panels that hold what can be compared."""

import math

import pytest
from made_up_results import CEILING_TFLOPS, COPY_GBS, SERIES, SQUARES, results, with_reads
from made_up_suites import FULL, PROJECTIONS, grid, model, squares, with_cases
from matplotlib.axes import Axes
from picture_texts import assert_texts_are_apart_and_inside, texts

from hgemm.bench.metrics import speed, timed_rows
from hgemm.bench.schema import Results
from hgemm.bench.suites import SUITES, Shape
from hgemm.plot import NothingToDraw, sizes, style

SUITE = squares()


def marked(axes: Axes) -> dict[str, tuple[list[float], list[float]]]:
    """x and y of the lines with hollow markers, by colour; the lines' ends beside the axes are left out."""
    return {
        line.get_color(): (list(line.get_xdata()), list(line.get_ydata()))
        for line in axes.lines
        if line.get_markerfacecolor() == "white" and line.get_linestyle() == "-"
    }


def test_every_backend_is_a_line_through_its_fastest_configurations() -> None:
    (axes,) = sizes.draw(SUITE, "bf16").axes
    lines = marked(axes)
    assert len(lines) == len({backend for backend, *_ in FULL})
    for backend in ("torch", "cuda_tma", "cuda_cp_async", "triton_gluon"):
        x, y = lines[style.looks(timed_rows(SUITE.cases[0]))[label_of(backend)].colour]
        assert x == [shape.M for shape in SUITES["squares"]]
        best = [max(speed(row).median for row in timed_rows(case) if row.backend == backend) for case in SUITE.cases]
        assert y == pytest.approx(best)


def label_of(backend: str) -> str:
    config = next(config for name, config, *_ in FULL if name == backend)
    return f"{backend}:{config}" if config else backend


def test_other_configurations_are_thin_and_the_footer_says_so() -> None:
    figure = sizes.draw(SUITE, "bf16")
    (axes,) = figure.axes
    thin = [line for line in axes.lines if line.get_linewidth() < 1 and len(line.get_xdata()) == len(SUITE.cases)]
    # 3 of cuda_cp_async, 4 of cuda_tma, 2 of triton_pointer; a backend with one configuration has its bold line only.
    assert len(thin) == 9
    assert all(line.get_marker() == "None" for line in thin)
    assert "thin: its other configurations" in " ".join(texts(figure)).replace("\n", " ")
    one_each = results(shapes=SQUARES, series=SERIES[:3])
    assert "thin" not in " ".join(texts(sizes.draw(one_each, "bf16")))


def test_the_band_is_the_interval_of_the_median() -> None:
    made_up = results(shapes=SQUARES[:2], series=SERIES[:1])
    (axes,) = sizes.draw(made_up, "bf16").axes
    (band,) = axes.collections
    vertices = band.get_paths()[0].vertices
    for case in made_up.cases:
        (row,) = timed_rows(case)
        heights = [y for x, y in vertices if x == pytest.approx(case.M)]
        assert min(heights) == pytest.approx(speed(row).ci_low)
        assert max(heights) == pytest.approx(speed(row).ci_high)


def test_the_ceiling_of_the_run_is_a_line_and_named() -> None:
    figure = sizes.draw(SUITE, "bf16")
    value = next(roof.value for roof in SUITE.roofs if roof.name == "mma.sync")
    assert value == pytest.approx(CEILING_TFLOPS, rel=0.01)
    levels = [line.get_ydata()[0] for line in figure.axes[0].lines if list(line.get_xdata()) == [0, 1]]
    assert levels == [value]
    assert f"mma.sync ceiling  {value:.3g}" in texts(figure)


def test_sizes_stand_on_a_log2_axis() -> None:
    (axes,) = sizes.draw(SUITE, "bf16").axes
    assert axes.get_xscale() == "log"
    assert axes.xaxis.get_transform().base == 2
    assert [tick for tick in axes.get_xticks() if tick in (256, 1024, 16384)] == [256, 1024, 16384]


def test_a_size_that_was_not_timed_leaves_a_gap() -> None:
    made_up = results(shapes=SQUARES, series=SERIES[:2])
    torch_row = next(row for row in timed_rows(made_up.cases[1]) if row.backend == "torch")
    torch_row.timing, torch_row.status, torch_row.reason = None, "failed", "out of memory"
    (axes,) = sizes.draw(made_up, "bf16").axes
    _, y = marked(axes)[style.BLACK]
    assert [math.isnan(value) for value in y] == [False, True, False]


def test_products_of_one_weight_share_a_panel_over_m() -> None:
    figure = sizes.draw(model(), "bf16")
    assert len(figure.axes) == len(PROJECTIONS)
    assert len({axes.get_ylim() for axes in figure.axes}) == 1
    written = texts(figure)
    for name, (N, K) in PROJECTIONS.items():
        assert name in written
        assert f"% of the limit over M; N {N}, K {K}, nt" in written


@pytest.mark.parametrize("read", [None, 4500.0])
def test_panels_over_m_show_shares_of_what_ceiling_and_memory_allow(read: float | None) -> None:
    made_up = model(series=SERIES[:1], projections=["8B o", "8B down"])
    if read:
        made_up = with_reads(made_up, read)
    figure = sizes.draw(made_up, "bf16")
    first = figure.axes[0]
    written = " ".join(texts(figure)).replace("\n", " ")
    assert ("the memory reads' 4.5 TB/s" in written) == (read is not None)
    assert ("a large copy's 4.1 TB/s" in written) == (read is None)
    assert ("faster than a copy" in written) == (read is None)
    ((x, y),) = marked(first).values()
    assert x == [1, 16, 128, 1024, 8192]
    for case, share in zip(made_up.cases[:5], y, strict=True):
        M, N, K = case.M, case.N, case.K
        terabytes = (read or COPY_GBS) / 1000
        limit = min(CEILING_TFLOPS, 2 * M * N * K / (2 * (M * K + K * N + M * N)) * terabytes)
        (row,) = timed_rows(case)
        assert share == pytest.approx(100 * speed(row).median / limit, rel=0.01)


def test_operands_that_may_lie_in_the_l2_have_no_limit_by_memory() -> None:
    made_up = model(series=SERIES[:2], projections=["8B o", "8B down"])
    for case in made_up.cases:
        for row in timed_rows(case):
            row.timing.mode = "kernel"
    figure = sizes.draw(made_up, "bf16")
    assert {axes.get_yscale() for axes in figure.axes} == {"log"}
    assert "TFLOPS over M; N 4096, K 4096, nt" in texts(figure)


def test_products_with_nothing_in_common_are_points_side_by_side() -> None:
    ragged = results(shapes=SUITES["ragged"])
    figure = sizes.draw(ragged, "bf16")
    (axes,) = figure.axes
    points = [line for line in axes.lines if line.get_linestyle() == "None" and line.get_markerfacecolor() == "white"]
    assert len(points) == len({backend for backend, *_ in SERIES})
    for place in range(len(ragged.cases)):
        x = [line.get_xdata()[place] for line in points]
        assert len({round(value, 3) for value in x}) == len(points)
        assert all(abs(value - place) < 0.5 for value in x)
    assert "4000\n4104\n4072" in texts(figure)


def test_the_time_of_the_host_is_shown_as_time() -> None:
    made_up = results(shapes=SQUARES, series=SERIES[:2])
    for case in made_up.cases:
        for row in timed_rows(case):
            row.timing.mode = "e2e"
            row.timing.samples_us = [5.0 + 0.1 * n for n in range(7)]
    figure = sizes.draw(made_up, "bf16")
    (axes,) = figure.axes
    assert axes.get_ylabel() == "µs a call"
    assert all(y == pytest.approx([5.3] * 3) for _, y in marked(axes).values())
    assert not any("ceiling" in text for text in texts(figure))


@pytest.mark.parametrize(
    "made_up",
    [
        SUITE,
        model(),
        with_cases(squares(), [*squares().cases, *model(projections=["8B o"]).cases]),
        results(shapes=SUITES["ragged"], series=FULL),
        grid(),
        results(shapes=SQUARES[:2], series=SERIES[:1], gpu="NVIDIA RTX PRO 6000 Blackwell Max-Q Workstation Edition"),
        results(series=[*FULL, *((f"mine_{n}", None, 0.6 + n / 100, 1, 1) for n in range(12))]),
    ],
    ids=["squares", "model", "mixed", "ragged", "grid", "long name", "many backends"],
)
def test_texts_do_not_collide_and_stay_inside(made_up: Results) -> None:
    assert_texts_are_apart_and_inside(sizes.draw(made_up, "bf16"))


def test_a_single_size_is_refused_with_the_way_out() -> None:
    with pytest.raises(NothingToDraw, match=r"4096³ is the only one in bf16; the pictures `samples` and `ceiling`"):
        sizes.draw(results(shapes=[Shape(4096, 4096, 4096)]), "bf16")
    with pytest.raises(NothingToDraw, match="no contestant was timed in fp16"):
        sizes.draw(SUITE, "fp16")
