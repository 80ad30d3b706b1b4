"""What the pictures show: every contestant where its figures put it, roofs at their rates, text that stays text."""

import re
from dataclasses import replace
from pathlib import Path

import matplotlib as mpl
import matplotlib.pyplot as plt
import pytest
from made_up_results import COPY_GBS, RAGGED, SERIES, SQUARES, results
from matplotlib.figure import Figure
from picture_texts import assert_texts_are_apart_and_inside, texts

from hgemm import plot
from hgemm.bench.metrics import CEILING, label, speed, timed_rows
from hgemm.bench.schema import Results
from hgemm.bench.suites import Shape
from hgemm.plot import ceiling, roofline, style
from hgemm.plot.source import NothingToDraw

mpl.use("Agg")
MADE_UP = results()


@pytest.fixture(autouse=True)
def closed_figures():
    yield
    plt.close("all")


def markers(figure: Figure) -> list[tuple[str, str, float, float]]:
    """(marker, colour, x, y) of every contestant's point."""
    (axes,) = figure.axes
    return [
        (line.get_marker(), line.get_markeredgecolor(), x, y)
        for line in axes.lines
        if line.get_linestyle() == "None" and line.get_markerfacecolor() == "white" and line.get_clip_on()
        for x, y in zip(line.get_xdata(), line.get_ydata(), strict=True)
    ]


def test_every_contestant_is_a_point_at_its_speed() -> None:
    points = markers(roofline.draw(MADE_UP, "bf16"))
    assert len(points) == len(SERIES) * len(MADE_UP.cases)
    expected = sorted(speed(row).median for case in MADE_UP.cases for row in timed_rows(case))
    assert sorted(y for *_, y in points) == pytest.approx(expected, rel=1e-6)


def test_series_differ_in_marker_and_families_in_colour() -> None:
    rows = timed_rows(MADE_UP.cases[0])
    looks = style.looks(rows)
    assert len({look.marker for look in looks.values()}) == len(SERIES)
    families = {row.backend: looks[label(row)].colour for row in rows}
    assert len(set(families.values())) == len(families)
    assert {point[:2] for point in markers(roofline.draw(MADE_UP, "bf16"))} == {
        (look.marker, look.colour) for look in looks.values()
    }


@pytest.mark.parametrize(
    "made_up",
    [
        MADE_UP,
        results(shapes=SQUARES[:1], series=SERIES[:1]),
        results(shapes=[Shape(64, 4096, 4096), Shape(1024, 4096, 4096)]),
        results(
            series=[*SERIES, *(("mine", f"128x128x64_s{n}_w64x32_rotate_persistent", 0.7, 1, 1) for n in range(2, 7))]
        ),
    ],
    ids=["four cases", "single", "skinny", "many series"],
)
@pytest.mark.parametrize("kind", ["roofline", "ceiling"])
def test_texts_do_not_collide_and_stay_inside(made_up: Results, kind: str) -> None:
    assert_texts_are_apart_and_inside(plot.KINDS[kind](made_up, "bf16"))


def test_roofs_and_ridges_are_those_of_the_run() -> None:
    written = " / ".join(texts(roofline.draw(MADE_UP, "bf16")))
    value = next(roof.value for roof in MADE_UP.roofs if roof.name == CEILING)
    bandwidth = next(roof.value for roof in MADE_UP.roofs if roof.name == "copy")
    assert bandwidth == pytest.approx(COPY_GBS, rel=0.01)
    ridge = value * 1e12 / (bandwidth * 1e9)
    assert re.search(rf"mma.sync on registers\n{value:.3g} TFLOPS at 19\d+ MHz", written)
    assert f"Ridges: mma.sync {ridge:.0f}, best cuBLAS" in written
    assert "best cuBLAS" in written
    # 132 x 4096 x 1980 MHz = 1070.5 TFLOPS over 4.8 TB/s.
    assert "NVIDIA, dense\n1071 TFLOPS at 1980 MHz" in written
    assert "989.4 TFLOPS at 1830 MHz" in written
    assert "NVIDIA 223 FLOP / byte" in written
    assert "NVIDIA 4.8 TB/s" in written


def test_measured_roofs_are_solid_and_quoted_ones_dashed() -> None:
    (axes,) = roofline.draw(MADE_UP, "bf16").axes
    flat = {
        round(float(line.get_ydata()[0])): line.is_dashed()
        for line in axes.lines
        if len(line.get_ydata()) == 2 and line.get_ydata()[0] == line.get_ydata()[1] and line.get_linewidth() > 1
    }
    measured = {round(roof.value) for roof in MADE_UP.roofs if roof.unit == "TFLOPS"}
    assert {value for value, dashed in flat.items() if not dashed} == measured
    assert {value for value, dashed in flat.items() if dashed} == {1071}


def test_an_unknown_device_has_measured_roofs_alone() -> None:
    written = " / ".join(texts(roofline.draw(results(gpu="NVIDIA Unheard-of 9000"), "bf16")))
    assert "NVIDIA, dense" not in written
    assert "mma.sync on registers" in written


def test_without_roofs_the_points_are_drawn_all_the_same() -> None:
    bare = results(gpu="NVIDIA Unheard-of 9000")
    bare.roofs = []
    assert len(markers(roofline.draw(bare, "bf16"))) == len(SERIES) * len(bare.cases)
    compute_only = results(gpu="NVIDIA Unheard-of 9000")
    compute_only.roofs = compute_only.roofs[:1]
    assert any("mma.sync" in text for text in texts(roofline.draw(compute_only, "bf16")))


def test_provenance_is_in_the_footer() -> None:
    written = " ".join(texts(roofline.draw(MADE_UP, "bf16")))
    for part in ("NVIDIA H200 (700 W)", "CUDA 13.0", "torch 2.11.0", "Triton 3.6.0", "8 ms bursts, 20 ms idle"):
        assert part in written
    assert "medians of 7 interleaved rounds" in written
    assert "2026-01-31" in written


def test_ceiling_bars_are_shares_of_the_ceiling_of_the_same_case() -> None:
    figure = ceiling.draw(MADE_UP, "bf16")
    (axes,) = figure.axes
    widths = [bar.get_width() for bar in axes.patches]
    # The made-up series at 4096^3: shares within 2% of what they were made from, the largest on top.
    assert widths == sorted(widths)
    assert widths == pytest.approx(sorted(100 * share for _, _, share, _, _ in SERIES), rel=0.02)
    names = [label.get_text() for label in axes.get_yticklabels()]
    assert names[0] == "cuda_cp_async  128x128x32_s2_w64x32"
    assert any("4096³" in text for text in texts(figure))


def test_a_case_cut_short_is_not_the_one_shown_and_its_rounds_are_told() -> None:
    made_up = results(shapes=SQUARES[:2])
    cut = results(shapes=SQUARES[1:3], rounds=2).cases[1]
    cut.complete = False
    made_up.cases.append(cut)
    assert [case.M for case in made_up.cases] == [2048, 4096, 8192]
    for drawn, size in ((made_up, "4096³"), (replace(made_up, cases=[made_up.cases[0], cut]), "2048³")):
        figure = ceiling.draw(drawn, "bf16")
        assert any(f", {size}," in text for text in texts(figure))
        assert any("medians of 2 to 7 interleaved rounds" in text for text in texts(figure))
    assert any(", 8192³," in text for text in texts(ceiling.draw(replace(made_up, cases=[cut]), "bf16")))


def test_the_line_of_the_ceiling_runs_through_no_figures() -> None:
    series = [("cuda_tma", f"128x128x64_s{stages}_w64x32", 0.1 * stages, 200, 98_304) for stages in range(2, 13)]
    figure = ceiling.draw(results(shapes=SQUARES[1:2], series=series), "bf16")
    assert_texts_are_apart_and_inside(figure)
    (axes,) = figure.axes
    line = axes.transData.transform((100, 0))[0]
    spans = [text.get_window_extent() for text in axes.texts if "TFLOPS" in text.get_text()]
    assert len(spans) == len(series)
    assert [span for span in spans if span.x0 < line < span.x1] == []
    assert sum(span.x1 < line for span in spans) >= 3, "a short bar has its figures behind itself"


def test_the_axis_of_the_ceiling_names_100_percent_however_long_it_is() -> None:
    for fastest in (0.9, 1.3):
        series = (("torch", None, fastest, 128, 98304), *((f"b{n}", "c" * 60, 0.5, 128, 98304) for n in range(3)))
        (axes,) = ceiling.draw(results(shapes=SQUARES[1:2], series=series), "bf16").axes
        assert 100 in axes.get_xticks(), axes.get_xlim()


def test_ceiling_takes_the_largest_case_where_4096_is_missing() -> None:
    figure = ceiling.draw(results(shapes=[SQUARES[0], SQUARES[2], RAGGED]), "bf16")
    assert any("8192³" in text for text in texts(figure))


def test_svg_text_stays_text_and_equal_results_give_equal_files(tmp_path: Path) -> None:
    first = plot.draw(MADE_UP, "roofline", tmp_path / "a", ("svg", "png", "pdf"))
    second = plot.draw(MADE_UP, "roofline", tmp_path / "b", ("svg", "png", "pdf"))
    assert [path.name for path in first] == ["roofline-bf16.svg", "roofline-bf16.png", "roofline-bf16.pdf"]
    svg = first[0].read_text()
    assert ">cuda_cp_async  128x128x32_s2_w64x32<" in svg
    assert ">arithmetic intensity, FLOP / byte<" in svg
    for one, other in zip(first, second, strict=True):
        assert one.read_bytes() == other.read_bytes(), one.name
    # 9 inches at 200 pixels an inch: twice the width of a README.
    assert plt.imread(first[1]).shape[1] == 1800


def test_one_picture_a_dtype(tmp_path: Path) -> None:
    files = plot.draw(results(dtypes=("bf16", "fp16")), "ceiling", tmp_path, ("svg",))
    assert [path.name for path in files] == ["ceiling-bf16.svg", "ceiling-fp16.svg"]


def test_settings_of_the_caller_are_left_alone(tmp_path: Path) -> None:
    before = dict(mpl.rcParams)
    plot.draw(MADE_UP, "roofline", tmp_path, ("svg",))
    assert dict(mpl.rcParams) == before


def test_nothing_to_draw_is_an_error_that_says_why(tmp_path: Path) -> None:
    with pytest.raises(NothingToDraw, match="no contestant was timed"):
        plot.draw(results(series=()), "roofline", tmp_path)
    no_ceiling = results()
    for case in no_ceiling.cases:
        case.rows = [row for row in case.rows if row.backend != CEILING]
    with pytest.raises(NothingToDraw, match=r"no case in bf16 was timed together with the mma\.sync ceiling"):
        plot.draw(no_ceiling, "ceiling", tmp_path)
    assert list(tmp_path.iterdir()) == []
