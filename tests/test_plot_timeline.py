"""The picture of a run over time: what the control did, and what NVML said, sample by sample."""

from pathlib import Path

import pytest
from made_up_results import SERIES, SQUARES, results
from made_up_suites import drifting, model, squares, with_cases
from matplotlib.axes import Axes
from matplotlib.lines import Line2D
from picture_texts import assert_texts_are_apart_and_inside, texts

from hgemm import plot
from hgemm.bench.schema import Clocks, Results
from hgemm.plot import NothingToDraw, timeline


def run(**changes) -> Results:
    made_up = results(shapes=SQUARES, series=SERIES[:3], **changes)
    return with_cases(made_up, made_up.cases)


def line(axes: Axes, marker: str) -> Line2D:
    (found,) = (line for line in axes.lines if line.get_marker() == marker)
    return found


def test_speed_clock_power_and_temperature_share_the_time() -> None:
    figure = timeline.draw(run())
    assert [axes.get_ylabel() for axes in figure.axes] == [
        "speed, % beyond\nthe median",
        "SM clock, MHz",
        "power, W",
        "temperature, °C",
    ]
    assert len({axes.get_xlim() for axes in figure.axes}) == 1


def test_the_control_is_a_line_against_its_median_over_the_whole_run() -> None:
    made_up = run(rounds=1)
    # Its work is the same in every case: here 10 us, then 11, then 10.
    for case, us in zip(made_up.cases, (10.0, 11.0, 10.0), strict=True):
        control = next(row.timing for row in case.rows if row.role == "control")
        control.samples_us, control.flops_per_call = [us], 10**12
    control_line = line(timeline.draw(made_up).axes[0], "D")
    assert list(control_line.get_ydata()) == pytest.approx([0.0, 100 * (10 / 11 - 1), 0.0])
    times = [next(row.timing.at_s[0] for row in case.rows if row.role == "control") for case in made_up.cases]
    assert list(control_line.get_xdata()) == times


def test_every_sample_of_nvml_is_drawn_when_it_was_taken() -> None:
    made_up = run()
    drawn = line(timeline.draw(made_up).axes[2], ".")
    timings = [row.timing for case in made_up.cases for row in case.rows if row.timing]
    expected = sorted((at, watt) for t in timings for at, watt in zip(t.at_s, t.clocks.power_w, strict=True))
    assert sorted(zip(drawn.get_xdata(), drawn.get_ydata(), strict=True)) == expected


def test_throttled_samples_are_crosses_on_the_clock_and_counted() -> None:
    made_up = drifting(squares(series=SERIES[:3]))
    figure = timeline.draw(made_up)
    crosses = line(figure.axes[1], "x")
    timings = [row.timing for case in made_up.cases for row in case.rows if row.timing]
    held = [at for t in timings for at, why in zip(t.at_s, t.clocks.throttle, strict=True) if why]
    assert sorted(crosses.get_xdata()) == sorted(held)
    assert f"{len(held)} of {sum(len(t.at_s) for t in timings)} samples ran while" in " ".join(texts(figure))


def test_the_axis_of_speed_holds_the_control_and_not_every_stray() -> None:
    made_up = results(shapes=SQUARES)
    rows = made_up.cases[0].rows
    next(row.timing for row in rows if row.role == "control").samples_us[3] *= 1.25
    figure = timeline.draw(with_cases(made_up, made_up.cases))
    assert figure.axes[0].get_ylim()[0] < -20
    next(row.timing for row in rows if row.role == "contestant").samples_us[3] *= 4
    figure = timeline.draw(with_cases(made_up, made_up.cases))
    assert figure.axes[0].get_ylim()[0] > -30
    assert "1 beyond the axis of speed." in " ".join(texts(figure))


def test_limits_of_the_board_are_dashed_lines_where_they_matter() -> None:
    figure = timeline.draw(drifting(squares(series=SERIES[:3])))
    dashed = [{line.get_ydata()[0] for line in axes.lines if line.is_dashed()} for axes in figure.axes]
    assert dashed == [set(), {1980}, {700.0}, set()]
    # A board that draws 520 W of 700 has room for the line; one that draws 50 W would lose its own curve.
    idle = run()
    for case in idle.cases:
        for row in case.rows:
            if row.timing:
                row.timing.clocks.power_w = [50.0] * 7
    assert not any(line.is_dashed() for line in timeline.draw(idle).axes[2].lines)


def test_what_nvml_did_not_tell_is_left_out_and_said() -> None:
    made_up = run()
    for case in made_up.cases:
        for row in case.rows:
            if row.timing:
                row.timing.clocks = Clocks([None] * 7, [None] * 7, [None] * 7, [41] * 7, [""] * 7)
    figure = timeline.draw(made_up)
    assert [axes.get_ylabel() for axes in figure.axes[1:]] == ["temperature, °C"]
    assert "NVML did not tell the clock and the power." in " ".join(texts(figure))


def test_a_run_without_a_control_shows_the_others() -> None:
    made_up = run()
    for case in made_up.cases:
        case.rows = [row for row in case.rows if row.role != "control"]
    figure = timeline.draw(made_up)
    assert not any(line.get_marker() == "D" for line in figure.axes[0].lines)
    assert not any("the control, the same" in text for text in texts(figure))


def test_cases_are_named_where_their_names_fit_and_dtypes_elsewhere() -> None:
    assert {"2048³", "4096³", "8192³"} <= set(texts(timeline.draw(run())))
    written = texts(timeline.draw(drifting(squares(series=SERIES[:3], dtypes=("bf16", "fp16")))))
    assert {"bf16, 11 cases", "fp16, 11 cases"} <= set(written)


def test_one_picture_a_run_whatever_its_dtypes(tmp_path: Path) -> None:
    files = plot.draw(run(dtypes=("bf16", "fp16")), "timeline", tmp_path, ("svg",))
    assert [path.name for path in files] == ["timeline.svg"]
    only = timeline.draw(run(dtypes=("bf16", "fp16")), "fp16")
    assert any("H200, fp16" in text for text in texts(only))


def test_many_samples_are_an_image_and_texts_stay_text(tmp_path: Path) -> None:
    (path,) = plot.draw(drifting(model()), "timeline", tmp_path, ("svg",))
    svg = path.read_text()
    assert len(svg) < 400_000
    assert ">SM clock, MHz<" in svg


def test_a_run_without_a_sample_is_an_error() -> None:
    with pytest.raises(NothingToDraw, match="no sample was taken in any case in fp16"):
        timeline.draw(run(), "fp16")
    with pytest.raises(NothingToDraw, match=r"no sample was taken in any case$"):
        timeline.draw(results(shapes=()))


@pytest.mark.parametrize(
    "made_up",
    [run(), drifting(model(projections=["8B qkv", "8B o"])), run(rounds=1), results(shapes=SQUARES[:1])],
    ids=["three", "model", "one round", "one case"],
)
def test_texts_do_not_collide_and_stay_inside(made_up: Results) -> None:
    assert_texts_are_apart_and_inside(timeline.draw(made_up))
