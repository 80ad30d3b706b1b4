"""The picture of samples: each is a mark at its own deviation, and none is left out."""

import pytest
from made_up_results import RAGGED, SERIES, SQUARES, results
from made_up_suites import drifting, squares
from matplotlib.axes import Axes
from picture_texts import assert_texts_are_apart_and_inside, texts

from hgemm.bench.metrics import timed_rows
from hgemm.plot import NothingToDraw, Options, samples

ONE = SERIES[:1]


def marks(axes: Axes, place: int) -> list[tuple[str, float]]:
    """(marker, deviation) of the samples of the row at a place from below."""
    lines = [line for line in axes.lines if line.get_linestyle() == "None"]
    return [(line.get_marker(), line.get_xdata()[0]) for line in lines if round(line.get_ydata()[0]) == place]


def names(axes: Axes) -> list[str]:
    return [label.get_text() for label in axes.get_yticklabels()]


def test_every_sample_is_a_mark_at_its_deviation_from_the_median() -> None:
    made_up = results(shapes=SQUARES[:1], series=ONE, rounds=5)
    timed_rows(made_up.cases[0])[0].timing.samples_us = [100.0, 102.0, 98.0, 100.0, 101.0]
    (axes,) = samples.draw(made_up, "bf16").axes
    shown = marks(axes, names(axes).index("torch"))
    # Speeds against that of 100 us, the median: 100/102, 100/101, ...
    assert sorted(x for _, x in shown) == pytest.approx([-1.960784, -0.990099, 0, 0, 2.040816], abs=1e-5)
    assert {marker for marker, _ in shown} == {"o"}


def test_control_and_ceiling_stand_below_and_the_fastest_on_top() -> None:
    (axes,) = samples.draw(results(), "bf16").axes
    assert names(axes)[:2] == ["mma.sync ceiling", "control"]
    assert names(axes)[2] == "cuda_cp_async  128x128x32_s2_w64x32"
    assert names(axes)[-1] in ("torch", "cublas", "cublaslt")
    assert len(names(axes)) == len(SERIES) + 2


def test_throttled_samples_are_crosses() -> None:
    made_up = results(shapes=SQUARES[:1], series=ONE)
    timed_rows(made_up.cases[0])[0].timing.clocks.throttle = ["", "gpu_idle", "sw_power_cap", "", "", "hw_slowdown", ""]
    figure = samples.draw(made_up, "bf16")
    (axes,) = figure.axes
    assert [marker for marker, _ in marks(axes, names(axes).index("torch"))] == list("ooxooxo")
    assert any("held the clock down" in text for text in texts(figure))
    assert not any("held the clock down" in text for text in texts(samples.draw(results(), "bf16")))


def test_the_interval_lies_behind_the_marks() -> None:
    made_up = results(shapes=SQUARES[:1], series=ONE, rounds=3)
    timed_rows(made_up.cases[0])[0].timing.samples_us = [100.0, 102.0, 99.0]
    (axes,) = samples.draw(made_up, "bf16").axes
    box = axes.patches[names(axes).index("torch")]
    # With three samples the 95% interval of the median reaches from the smallest to the largest.
    assert box.get_x() == pytest.approx(100 * (100 / 102 - 1))
    assert box.get_x() + box.get_width() == pytest.approx(100 * (100 / 99 - 1))


def test_a_sample_far_away_is_an_arrow_at_the_edge_with_its_figure() -> None:
    made_up = results(shapes=SQUARES[:1], series=ONE)
    timing = timed_rows(made_up.cases[0])[0].timing
    timing.samples_us = [100.0] * 6 + [200.0]
    figure = samples.draw(made_up, "bf16")
    (axes,) = figure.axes
    assert ("<", axes.get_xlim()[0]) in marks(axes, names(axes).index("torch"))
    assert "−50%" in texts(figure)
    assert axes.get_xlim()[1] <= 10


def test_several_samples_far_away_are_arrows_with_one_range() -> None:
    made_up = results(shapes=SQUARES[:1], series=ONE, rounds=10)
    timed_rows(made_up.cases[0])[0].timing.samples_us = [100.0] * 6 + [200.0, 160.0, 125.0, 80.0]
    figure = samples.draw(made_up, "bf16")
    (axes,) = figure.axes
    arrows = [mark for mark in marks(axes, names(axes).index("torch")) if mark[0] in "<>"]
    assert sorted(arrows) == [("<", -10.0)] * 3 + [(">", 10.0)]
    assert {"\N{MINUS SIGN}50 to \N{MINUS SIGN}20%", "+25%"} <= set(texts(figure))
    assert_texts_are_apart_and_inside(figure)


def test_median_interval_and_noise_are_written_beside_each_row() -> None:
    made_up = results(shapes=SQUARES[:1], series=ONE, rounds=3)
    # 2 * 2048^3 operations in 20 us are 859 TFLOPS; deviations 0, +11.1, -9.1.
    timed_rows(made_up.cases[0])[0].timing.samples_us = [20.0, 18.0, 22.0]
    assert "859 TFLOPS ±10.10%, cv 10.1%" in texts(samples.draw(made_up, "bf16"))


def test_a_single_sample_has_no_interval() -> None:
    written = " ".join(texts(samples.draw(results(shapes=SQUARES[:1], series=ONE, rounds=1), "bf16")))
    assert "TFLOPS, one sample" in written
    assert "\N{PLUS-MINUS SIGN}" not in written


def test_the_host_is_given_in_microseconds() -> None:
    made_up = results(shapes=SQUARES[:1], series=ONE)
    timing = timed_rows(made_up.cases[0])[0].timing
    timing.mode, timing.samples_us = "e2e", [5.25] * 7
    assert "5.25 µs ±0.00%" in texts(samples.draw(made_up, "bf16"))


def test_the_case_shown_is_the_one_asked_for() -> None:
    made_up = results(shapes=[*SQUARES, RAGGED])
    assert any("4096³" in text for text in texts(samples.draw(made_up, "bf16")))
    asked = samples.draw(made_up, "bf16", Options(mnk=(4000, 4104, 4072)))
    assert any("4000 x 4104 x 4072" in text for text in texts(asked))
    with pytest.raises(NothingToDraw, match=r"no case of 1,2,3 in bf16; there are 2048,2048,2048, 4096"):
        samples.draw(made_up, "bf16", Options(mnk=(1, 2, 3)))


def test_layout_and_batch_are_part_of_the_name_and_the_plain_case_comes_first() -> None:
    made_up = results(shapes=[SQUARES[1]] * 2)
    first, _ = made_up.cases
    first.layout, first.batch = "nt", 8
    for options in (Options(), Options(mnk=(4096, 4096, 4096))):
        assert any(text.endswith("4096³, bf16") for text in texts(samples.draw(made_up, "bf16", options)))
    made_up.cases = [first]
    assert any("4096³, nt, batch 8, bf16" in text for text in texts(samples.draw(made_up, "bf16")))


@pytest.mark.parametrize(
    "made_up", [results(), drifting(squares()), results(rounds=40, shapes=SQUARES[1:2])], ids=["few", "drift", "many"]
)
def test_texts_do_not_collide_and_stay_inside(made_up) -> None:
    assert_texts_are_apart_and_inside(samples.draw(made_up, "bf16", Options(mnk=(4096, 4096, 4096))))
