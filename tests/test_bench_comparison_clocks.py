"""Comparing at equal clocks: kernels that follow their own clock, or none, beside a control that follows its own."""

import json
import math
from pathlib import Path

import numpy as np
import pytest
from made_up_pairs import ROUNDS, SCATTER, Times, results_of, set_clocks, set_samples

from hgemm.bench import compare as command
from hgemm.bench.comparison import Change, Share
from hgemm.bench.comparison_clocks import Equalised, follows, widened
from hgemm.bench.comparison_pairing import compare
from hgemm.bench.results import write
from hgemm.bench.schema import Results
from hgemm.bench.statistics import Shift

WANDER = 1 + 0.01 * np.array([1, 1, -1, -1, 1, -1, 0])
"""What a clock does from round to round; SCATTER has no part of it."""

AT_LIMIT = 1650 * (1 + (WANDER[::-1] - 1) / 10)
"""The control's clock."""


def run(
    clock: Times | None, share: float, *, factor: float = 1.0, limit: float = 1.0, scatter: Times = SCATTER
) -> Results:
    """A contestant at its own ``clock``, which it follows by ``share``; the control is wholly at the clock that the
    limit of power leaves it, ``limit`` times the usual."""
    control = AT_LIMIT * limit
    times = 100 * factor * scatter * (1.0 if clock is None else (1800 / clock) ** share)
    results = results_of(times[None], (170 * 1650 / control)[None])
    for row, mhz in zip(results.cases[0].rows, (control, clock), strict=True):
        set_clocks(row, mhz)
    return results


def changed(a: Results, b: Results) -> Change:
    [change] = compare(a, b).changes
    assert change.ratio is not None and change.plain is not None
    return change


def without_clocks(results: Results) -> Results:
    for row in results.cases[0].rows:
        set_clocks(row, None)
    return results


# How far a row follows its clock


def test_the_share_is_the_slope_within_the_runs_with_students_interval() -> None:
    generator = np.random.default_rng(1)
    clocks = [generator.normal(7.5, 0.002, size) for size in (6, 8)]
    times = [3 + 0.1 * index - 0.6 * x + generator.normal(0, 0.0003, x.size) for index, x in enumerate(clocks)]
    design = np.zeros((14, 3))
    design[:, 0] = np.concatenate(clocks)
    design[:6, 1] = design[6:, 2] = 1
    fit, [residual], *_ = np.linalg.lstsq(design, -np.concatenate(times))
    reach = 2.2010 * math.sqrt(residual / 11 * np.linalg.inv(design.T @ design)[0, 0])  # t of 11 degrees of freedom
    share = follows([list(x) for x in clocks], [list(y) for y in times])
    assert share.value == pytest.approx(fit[0], rel=1e-6)
    assert (share.low, share.high) == pytest.approx((fit[0] - reach, fit[0] + reach), rel=1e-4)
    assert 0 < share.low < 0.6 < share.high < 1


def test_no_time_follows_its_clock_further_than_wholly_or_backwards() -> None:
    clock = np.log(WANDER)
    noise = np.log(SCATTER) / 10
    for slope, value in ((-0.5, 0.0), (1.7, 1.0)):
        assert follows([list(clock)] * 2, [list(noise - slope * clock)] * 2) == (value, value, value)


def test_a_steady_clock_tells_nothing_of_the_share() -> None:
    steady = [math.log(1980.0)] * ROUNDS
    faster = [math.log(1900.0)] * ROUNDS
    assert follows([steady, faster], [list(np.log(SCATTER))] * 2) == (0.0, 0.0, 1.0)
    rounded = [math.log(1800.0 + 0.1 * (number % 2)) for number in range(ROUNDS)]
    assert follows([rounded, faster], [list(np.log(SCATTER))] * 2) == (0.0, 0.0, 1.0)


# Verdicts


@pytest.mark.parametrize("share", [0.0, 0.4, 1.0])
def test_a_kernel_below_the_limit_is_the_same_when_the_control_slows(share: float) -> None:
    a, b = run(1800 * WANDER, share), run(1800 * WANDER, share, limit=0.96)
    change = changed(a, b)
    assert change.verdict == "same"
    assert change.ratio is not None and change.ratio.value == pytest.approx(1.0, abs=1e-6)
    assert change.clock_share is not None and change.clock_share.value == pytest.approx(share, abs=0.05)
    assert changed(without_clocks(a), without_clocks(b)).verdict == "faster"  # by the control's 4%


def test_a_kernel_at_the_limit_is_the_same_when_its_own_clock_falls_and_that_is_said() -> None:
    change = changed(run(1800 * WANDER, 1.0), run(1800 * WANDER * 0.979, 1.0))
    assert change.verdict == "same"
    assert change.plain is not None and change.plain == pytest.approx(1 / 0.979)
    assert change.remarks == ("clock 2.1% lower in B",)
    back = changed(run(1800 * WANDER * 0.979, 1.0), run(1800 * WANDER, 1.0))
    assert back.remarks == ("clock 2.1% higher in B",)
    assert changed(run(1800 * WANDER, 1.0), run(1800 * WANDER * 0.992, 1.0)).remarks == ()  # within the margin


def test_a_kernel_bound_by_memory_is_the_same_whatever_the_clocks_do() -> None:
    assert changed(run(1800 * WANDER, 0.0), run(1800 * WANDER * 0.97, 0.0, limit=0.97)).verdict == "same"


@pytest.mark.parametrize("share", [0.0, 1.0])
def test_other_code_is_slower_at_whatever_clocks(share: float) -> None:
    # At a clock 3% higher it takes no longer than before, if it follows the clock.
    change = changed(run(1800 * WANDER, share), run(1800 * WANDER * 1.03, share, factor=1.03))
    assert change.verdict == "slower"
    assert change.ratio is not None and change.ratio.value == pytest.approx(1.03, abs=2e-3)


def test_what_a_steady_clock_does_not_tell_is_ambiguous() -> None:
    a, b = run(1800 * np.ones(ROUNDS), 0.0), run(1800 * np.ones(ROUNDS) * 0.97, 0.0)
    change = changed(a, b)
    assert change.verdict == "ambiguous"  # with a share of 1, B is 3% faster
    assert change.ratio is not None
    assert change.ratio.low < 0.97 and change.ratio.high == pytest.approx(1.0, abs=0.003)
    assert changed(a, run(1800 * np.ones(ROUNDS), 0.0)).verdict == "same"


def test_the_doubts_of_contestant_and_control_add_up() -> None:
    row = Equalised(({}, {}), Share(0.5, 0.4, 0.8), step=0.02)  # by 0.1 * 2% lower, by 0.3 * 2% higher
    control = Equalised(({}, {}), Share(0.9, 0.7, 1.0), step=-0.01)  # by 0.1 * 1% lower, by 0.2 * 1% higher
    assert row.doubt == pytest.approx((-0.002, 0.006))
    assert control.doubt == pytest.approx((-0.001, 0.002))
    wide = widened(Shift(0.01, 0.0, 0.03), row, control)
    assert (wide.estimate, wide.low, wide.high) == pytest.approx((0.01, -0.004, 0.037))


# Where clocks are not used


def test_times_are_compared_as_before_where_either_file_has_no_clocks() -> None:
    a, b = run(1800 * WANDER, 1.0), run(1800 * WANDER * 0.97, 1.0, limit=0.99)
    old = changed(without_clocks(run(1800 * WANDER, 1.0)), without_clocks(run(1800 * WANDER * 0.97, 1.0, limit=0.99)))
    assert old.clock_share is None and old.remarks == ()
    assert changed(a, b) != old
    for name in "ab":
        for place in (0, 1):  # the control, the contestant
            a, b = run(1800 * WANDER, 1.0), run(1800 * WANDER * 0.97, 1.0, limit=0.99)
            set_clocks((a if name == "a" else b).cases[0].rows[place], None)
            found = changed(a, b)
            assert (found.ratio, found.clock_share, found.remarks) == (old.ratio, None, ())


def test_few_clocks_are_not_used() -> None:
    for many in (3, 4):
        a, b = run(1800 * WANDER, 1.0), run(1800 * WANDER * 0.97, 1.0)
        timing = b.cases[0].rows[1].timing
        assert timing is not None
        timing.clocks.counted_mhz[many:] = [None] * (ROUNDS - many)
        change = changed(a, b)
        assert (change.clock_share is not None) == (many == 4)
    assert change.remarks[0] == "the control and the clocks have 4 of the 7 rounds of B"
    assert change.ratio is not None and change.ratio.value == pytest.approx(1.0, abs=2e-3)


def test_clocks_of_contestant_and_control_in_other_rounds_are_not_used() -> None:
    a, b = run(1800 * WANDER, 1.0), run(1800 * WANDER, 1.0)
    for row, gone in zip(b.cases[0].rows, (slice(0, 3), slice(4, 7)), strict=True):  # one round has both
        assert row.timing is not None
        row.timing.clocks.counted_mhz[gone] = [None] * 3
    change = changed(a, b)
    assert (change.clock_share, change.remarks) == (None, ())
    assert change.ratio is not None and math.isfinite(change.ratio.high)


def test_clocks_that_the_control_does_not_follow_are_not_those_of_the_samples() -> None:
    a, b = run(1800 * WANDER, 0.0), run(1800 * WANDER, 0.0)
    for results, seen in ((a, 1.0), (b, 0.96)):
        control, row = results.cases[0].rows
        set_samples(control, 170 * SCATTER)
        set_clocks(control, 1650 * WANDER * seen)
        set_clocks(row, 1800 * WANDER * seen)
    comparison = compare(a, b)
    [change] = comparison.changes
    assert (change.verdict, change.clock_share) == ("same", None)
    assert comparison.notes[-1].startswith("the counted clocks are not used in 1 case: the control does not follow")


# What is printed


def test_the_summary_says_how_much_is_at_equal_clocks(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    a, b = run(1800 * WANDER, 1.0), run(1800 * WANDER * 0.979, 1.0)
    paths = [str(tmp_path / name) for name in ("a.json", "b.json")]
    for cases, words in ((1, "round by round, at equal clocks; "), (2, "round by round, at equal clocks in 1 of 2; ")):
        if cases == 2:
            a.cases += without_clocks(run(None, 0.0)).cases
            b.cases += without_clocks(run(None, 0.0)).cases
        for results, path in zip((a, b), paths, strict=True):
            write(results, Path(path))
        assert command.main([*paths, "--markdown", "--all"]) == 0
        printed = capsys.readouterr().out
        assert words in printed and "| clock 2.1% lower in B |" in printed
    assert command.main([*paths, "--json"]) == 0
    shares = [change["clock_share"] for change in json.loads(capsys.readouterr().out)["changes"]]
    assert None in shares
    [share] = filter(None, shares)
    assert share["value"] == pytest.approx(1.0, abs=0.05) and share["low"] <= share["value"] <= share["high"]


def test_a_control_that_changed_is_no_news_at_equal_clocks() -> None:
    a, b = run(1800 * WANDER, 0.0), run(1800 * WANDER, 0.0, limit=0.98)
    assert compare(a, b).notes == []
    assert "--no-control" in compare(without_clocks(a), without_clocks(b)).notes[0]
