"""The picture of ratios: every cell is a contestant's speed over the baseline's, and says where that is uncertain."""

import pytest
from made_up_results import SQUARES, results
from made_up_suites import FULL, grid, model, squares
from matplotlib.figure import Figure
from matplotlib.patches import Rectangle
from picture_texts import assert_texts_are_apart_and_inside, texts

from hgemm.bench.metrics import timed_rows
from hgemm.bench.schema import Results
from hgemm.bench.suites import SUITES
from hgemm.plot import NothingToDraw, Options, heatmap

TORCH = ("torch", None, 1.1, 168, 0)
MINE = ("mine", "128x128x64_s3_w64x32", 0.5, 128, 0)


def timed(microseconds: dict[str, list[float]], shapes=SQUARES[:1]) -> Results:
    """One case or more, in which everybody has the samples given."""
    series = [(name, None, 0.5, 128, 0) for name in microseconds]
    made_up = results(shapes=shapes, series=series, rounds=len(next(iter(microseconds.values()))))
    for case in made_up.cases:
        for row in timed_rows(case):
            row.timing.samples_us = list(microseconds[row.backend])
    return made_up


def cells(figure: Figure) -> list[tuple[str, Rectangle]]:
    """(text, patch) of every cell, from the top left, line by line."""
    axes = figure.axes[0]
    patches = [patch for patch in axes.patches if isinstance(patch, Rectangle)]
    found = []
    for patch in sorted(patches, key=lambda patch: (patch.get_y(), patch.get_x())):
        box = patch.get_bbox()
        inside = [text.get_text() for text in axes.texts if box.contains(*text.get_position()) and text.get_text()]
        found.append((" ".join(inside), patch))
    return found


def test_a_cell_is_the_median_of_ratios_paired_by_round() -> None:
    # Twice as fast in the first three rounds, which were slow for both; 2.5 times in the others.
    made_up = timed({"torch": [200, 200, 200, 100, 100], "mine": [100, 100, 100, 40, 40]})
    ((text, _),) = cells(heatmap.draw(made_up, "bf16"))
    assert text == "2.00"


def test_cells_are_hatched_where_the_interval_contains_one() -> None:
    made_up = timed(
        {
            "torch": [100.0] * 7,
            "faster": [99.0, 98.9, 99.1, 99.0, 98.8, 99.2, 99.0],
            "doubtful": [99.0, 101.0, 98.0, 102.0, 99.5, 100.5, 101.5],
            "slower": [101.0, 101.1, 101.2, 100.9, 101.0, 101.3, 101.1],
        }
    )
    hatched = {text: bool(patch.get_hatch()) for text, patch in cells(heatmap.draw(made_up, "bf16"))}
    assert list(hatched.values()) == [False, True, False]
    assert next(iter(hatched)) == "1.010"


def test_a_single_round_leaves_everything_open() -> None:
    once = timed({"torch": [100.0], "faster": [50.0], "slower": [200.0]})
    assert [bool(patch.get_hatch()) for _, patch in cells(heatmap.draw(once, "bf16"))] == [True, True]
    twice = timed({"torch": [100.0] * 2, "faster": [50.0] * 2, "slower": [200.0] * 2})
    assert [bool(patch.get_hatch()) for _, patch in cells(heatmap.draw(twice, "bf16"))] == [False, False]


def test_colours_part_at_one_and_darken_away_from_it() -> None:
    made_up = timed({"torch": [100.0] * 3, **{f"r{us:.0f}": [us] * 3 for us in (62.0, 80.0, 100.1, 125.0, 160.0)}})
    faces = [patch.get_facecolor() for _, patch in cells(heatmap.draw(made_up, "bf16"))]
    blue_over_red = [face[2] - face[0] for face in faces]
    assert min(blue_over_red[:2]) > 0.2
    assert abs(blue_over_red[2]) < 0.03
    assert max(blue_over_red[3:]) < -0.2
    brightness = [sum(face[:3]) for face in faces]
    assert brightness[0] < brightness[1] < brightness[2] > brightness[3] > brightness[4]


def test_contestants_are_rows_and_products_columns_without_the_baseline() -> None:
    made_up = squares()
    figure = heatmap.draw(made_up, "bf16")
    assert len(cells(figure)) == (len(FULL) - 1) * len(SUITES["squares"])
    written = texts(figure)
    assert "torch" not in written
    assert "cuda_tma  256x128x64_s4_w64x64" in written
    assert all(str(shape.M) in written for shape in SUITES["squares"])


def test_a_backend_that_chose_by_size_is_one_row() -> None:
    made_up = results(shapes=SQUARES, series=(TORCH, MINE))
    timed_rows(made_up.cases[2])[1].config = "256x128x64_s4_w64x64"
    figure = heatmap.draw(made_up, "bf16")
    assert "mine  (its choice)" in texts(figure)
    assert len(cells(figure)) == 3


def test_another_baseline_and_the_fastest_of_its_configurations() -> None:
    # Of a backend with two configurations the faster one is the baseline, and has no row of its own.
    made_up = timed({"torch": [100.0] * 3, "a": [50.0] * 3, "b": [80.0] * 3})
    for row, config in zip(
        timed_rows(made_up.cases[0])[1:], ("64x64x64_s3_w32x32", "128x128x64_s3_w64x32"), strict=True
    ):
        row.backend, row.config = "mine", config
    shown = cells(heatmap.draw(made_up, "bf16", Options(baseline="mine")))
    assert [text for text, _ in shown] == ["0.50", "0.62"]
    named = Options(baseline="mine:128x128x64_s3_w64x32")
    assert [text for text, _ in cells(heatmap.draw(made_up, "bf16", named))] == ["0.80", "1.60"]


def test_a_word_says_why_there_is_no_time() -> None:
    made_up = results(shapes=SQUARES, series=(TORCH, MINE))
    row = timed_rows(made_up.cases[1])[1]
    row.timing, row.status, row.reason = None, "wrong", "error over bound 3e4"
    figure = heatmap.draw(made_up, "bf16")
    assert [text for text, _ in cells(figure)][1] == "wrong"
    assert "A word says why there is no time." in " ".join(texts(figure))


def test_one_contestant_over_m_and_n() -> None:
    made_up = grid(sizes=(512, 1024, 2048), series=(TORCH, MINE))
    made_up.cases = [case for case in made_up.cases if (case.M, case.N) != (1024, 2048)]
    figure = heatmap.draw(made_up, "bf16", Options(contestant="mine"))
    shown = cells(figure)
    assert [bool(text) for text, _ in shown] == [True] * 5 + [False] + [True] * 3
    written = texts(figure)
    assert {"K 4096", "M 512", "M 1024", "M 2048"} <= set(written)
    # Its speed over torch's in one of the cells, by hand.
    mine, torch = (sorted(row.timing.samples_us)[3] for row in reversed(timed_rows(made_up.cases[0])))
    assert float(shown[0][0]) == pytest.approx(torch / mine, rel=0.02)


def test_a_map_needs_several_m_and_n_at_one_k() -> None:
    with pytest.raises(NothingToDraw, match=r"two or more of both at one K, and mine has no such K in bf16; without"):
        heatmap.draw(results(shapes=SQUARES, series=(TORCH, MINE)), "bf16", Options(contestant="mine"))


@pytest.mark.parametrize("options", [Options(baseline="cublass"), Options(contestant="cublass")])
def test_a_name_that_nobody_has_is_an_error_that_lists_who_is_there(options: Options) -> None:
    with pytest.raises(
        NothingToDraw, match=r"cublass was not timed in bf16; there are torch, mine:128x128x64_s3_w64x32$"
    ):
        heatmap.draw(results(shapes=SQUARES, series=(TORCH, MINE)), "bf16", options)


def test_a_baseline_alone_is_nothing() -> None:
    with pytest.raises(NothingToDraw, match="nobody but torch was timed in bf16"):
        heatmap.draw(results(shapes=SQUARES, series=(TORCH,)), "bf16")


@pytest.mark.parametrize(
    "made_up",
    [squares(), model(projections=["8B qkv", "8B gate_up", "70B down"]), results(shapes=SUITES["ragged"]), grid()],
    ids=["squares", "model", "ragged", "grid"],
)
def test_texts_do_not_collide_and_stay_inside(made_up: Results) -> None:
    assert_texts_are_apart_and_inside(heatmap.draw(made_up, "bf16"))


def test_more_products_than_the_page_is_wide_go_on_below() -> None:
    made_up = results(shapes=[shape for n in range(5) for shape in _rows(n)], series=(TORCH, MINE))
    figure = heatmap.draw(made_up, "bf16")
    assert len(cells(figure)) == 30
    assert len({patch.get_y() for _, patch in cells(figure)}) > 1
    assert_texts_are_apart_and_inside(figure)


def _rows(n: int):
    return [type(SQUARES[0])(2**power, 8192 + 8 * n, 16384 + 8 * n) for power in range(6, 12)]
