"""Medians, percentiles, intervals, ratios and shifts, against values worked out by hand and known distributions."""

import itertools
import math
from collections.abc import Callable

import numpy as np
import pytest
from numpy.typing import NDArray

from hgemm.bench.statistics import mean_interval, paired_ratio, shift, student_t, summarize


def test_percentiles_of_a_known_sequence() -> None:
    # 0, 1, ..., 100 in any order: the p-th percentile is p.
    summary = summarize(list(np.random.default_rng(1).permutation(101).astype(float)))
    assert (summary.samples, summary.median, summary.p5, summary.p95) == (101, 50.0, 5.0, 95.0)


def test_coefficient_of_variation_by_hand() -> None:
    # Mean 10, squared deviations 1 + 0 + 1 over n - 1 = 2: a standard deviation of 1.
    assert summarize([9.0, 10.0, 11.0]).cv == pytest.approx(0.1)


def test_noisy_is_a_coefficient_of_variation_over_two_percent() -> None:
    # Two samples at 1 +- d have cv = sqrt(2) d.
    assert not summarize([1 - 0.0140, 1 + 0.0140]).noisy
    assert summarize([1 - 0.0143, 1 + 0.0143]).noisy


def test_one_sample_is_its_own_summary() -> None:
    summary = summarize([3.5])
    assert (summary.median, summary.p5, summary.p95, summary.ci_low, summary.ci_high) == (3.5,) * 5
    assert summary.cv == 0
    assert not summary.noisy


def test_the_interval_covers_the_median_as_often_as_it_says() -> None:
    # 300 sets of 25 samples of N(10, 1), whose median is 10. The percentile bootstrap of a median is a little too wide:
    # between 93% and 99% is what 95% comes to, with three standard deviations of the 300 trials.
    generator = np.random.default_rng(7)
    covered = 0
    for _ in range(300):
        summary = summarize(list(generator.normal(10, 1, 25)))
        covered += summary.ci_low <= 10 <= summary.ci_high
    assert 0.91 <= covered / 300 <= 0.995


def test_the_interval_covers_the_median_with_seven_samples_too() -> None:
    # The plain percentiles of the bootstrap would cover 1 - 2 (1 + 7) / 128 = 87.5%.
    generator = np.random.default_rng(11)
    covered = 0
    for _ in range(400):
        summary = summarize(list(generator.normal(10, 1, 7)))
        covered += summary.ci_low <= 10 <= summary.ci_high
    assert covered / 400 >= 0.95


def test_the_interval_of_few_samples_is_all_that_they_span() -> None:
    for count in range(2, 7):
        samples = [float(value * value) for value in range(1, count + 1)]
        summary = summarize(samples)
        assert (summary.ci_low, summary.ci_high) == (samples[0], samples[-1])


def test_the_interval_narrows_with_the_square_root_of_the_samples() -> None:
    generator = np.random.default_rng(3)
    widths = []
    for count in (100, 2500):
        summary = summarize(list(generator.normal(0, 1, count)))
        widths.append(summary.ci_high - summary.ci_low)
    # The median of n normal samples has a standard error of sqrt(pi / 2 / n): an interval of 2 x 1.96 of them.
    assert widths[0] == pytest.approx(2 * 1.96 * math.sqrt(math.pi / 2 / 100), rel=0.35)
    assert widths[1] == pytest.approx(widths[0] / 5, rel=0.35)


def test_equal_samples_give_equal_intervals() -> None:
    samples = [1.0, 1.2, 0.9, 1.1, 1.05]
    assert summarize(samples) == summarize(samples)


@pytest.mark.parametrize(("samples", "rule"), [([], "no samples"), ([1.0, math.nan], "finite"), ([math.inf], "finite")])
def test_bad_samples_are_refused(samples: list[float], rule: str) -> None:
    with pytest.raises(ValueError, match=rule):
        summarize(samples)


def test_pairing_by_round_cancels_a_drift_that_both_share() -> None:
    # The clock falls by a third over the run; the ratio of the two is 0.8 in every round.
    drift = {r: 300.0 - 10 * r for r in range(10)}
    ratio = paired_ratio({r: 0.8 * speed for r, speed in drift.items()}, drift)
    assert ratio is not None
    assert ratio.median == pytest.approx(0.8)
    assert ratio.cv == pytest.approx(0, abs=1e-12)


def test_pairing_uses_the_rounds_that_both_have() -> None:
    ratio = paired_ratio({0: 2.0, 1: 3.0, 5: 100.0}, {0: 1.0, 1: 1.0, 2: 50.0})
    assert ratio is not None
    assert (ratio.samples, ratio.median) == (2, 2.5)
    assert paired_ratio({0: 1.0}, {1: 1.0}) is None


@pytest.mark.parametrize(
    ("freedom", "confidence", "t"),
    [(1, 0.95, 12.706), (2, 0.95, 4.303), (6, 0.95, 2.447), (30, 0.95, 2.042), (100, 0.95, 1.984), (6, 0.9, 1.943)],
)
def test_students_t_as_tables_have_it(freedom: int, confidence: float, t: float) -> None:
    assert student_t(freedom, confidence) == pytest.approx(t, abs=0.0006)


def test_an_interval_of_a_mean_by_hand() -> None:
    # Mean 2, standard deviation 1, t of 2 degrees of freedom 4.303, over the root of 3.
    interval = mean_interval([1.0, 2.0, 3.0])
    assert interval.estimate == 2.0
    assert (interval.low, interval.high) == pytest.approx((2 - 2.484, 2 + 2.484), abs=0.001)
    single = mean_interval([5.0])
    assert (single.estimate, single.low, single.high) == (5.0, -math.inf, math.inf)


def test_a_shift_by_hand() -> None:
    # Of the 16 differences, sorted: 4 5 5 6 6 6 7 7 | 7 7 8 8 8 9 9 10. With 4 samples a side, only the outermost
    # ordering has a probability below 2.5%, 1 in 70, so that the interval is all of them.
    found = shift([0.0, 1.0, 2.0, 3.0], [7.0, 8.0, 9.0, 10.0])
    assert (found.estimate, found.low, found.high) == (7.0, 4.0, 10.0)


@pytest.mark.parametrize(
    ("n", "m", "critical"), [(5, 5, 2), (7, 7, 8), (5, 8, 6), (8, 5, 6), (10, 10, 23), (20, 20, 127)]
)
def test_the_interval_of_a_shift_by_published_critical_values(n: int, m: int, critical: int) -> None:
    # Mann and Whitney's U at 5%, two-sided: the interval leaves out that many differences at either end.
    base = [100.0 * i for i in range(n)]
    other = [float(j) for j in range(m)]
    differences = sorted(b - a for a in base for b in other)
    found = shift(base, other)
    assert (found.low, found.high) == (differences[critical], differences[-1 - critical])


def test_too_few_samples_bound_nothing() -> None:
    found = shift([1.0, 2.0, 3.0], [11.0, 12.0, 13.0])
    assert (found.estimate, found.low, found.high) == (10.0, -math.inf, math.inf)
    assert math.isfinite(shift([1.0, 2.0, 3.0], [11.0, 12.0, 13.0], confidence=0.9).low)


def test_the_promise_of_a_shift_is_exact() -> None:
    # All 252 equally likely ways to deal ten values to two runs: Mann and Whitney's U is 2 or less in 4 of them.
    values = [float(value**3) for value in range(10)]
    above = below = 0
    for chosen in itertools.combinations(range(10), 5):
        found = shift([values[i] for i in chosen], [values[i] for i in range(10) if i not in chosen])
        above += found.low > 0
        below += found.high < 0
    assert (above, below) == (4, 4)


def normal(generator: np.random.Generator, count: int) -> NDArray[np.float64]:
    return generator.normal(0, 1, count)


def cauchy(generator: np.random.Generator, count: int) -> NDArray[np.float64]:
    """Has no mean: single samples are thousands of times the others."""
    return generator.standard_cauchy(count)


def skewed(generator: np.random.Generator, count: int) -> NDArray[np.float64]:
    return generator.exponential(1, count)


@pytest.mark.parametrize("kind", [normal, cauchy, skewed])
@pytest.mark.parametrize(("n", "m"), [(7, 7), (5, 9), (40, 30)])
def test_a_shift_misses_as_often_as_it_says_whatever_the_distribution(
    kind: Callable[[np.random.Generator, int], NDArray[np.float64]], n: int, m: int
) -> None:
    # 2.5% a side at most, and three standard deviations of 1500 trials; not much less, or the interval were useless.
    generator = np.random.default_rng(5)
    found = [shift(list(kind(generator, n)), list(3 + kind(generator, m))) for _ in range(1500)]
    for missed in (sum(one.low > 3 for one in found), sum(one.high < 3 for one in found)):
        assert 0.009 <= missed / 1500 <= 0.037


def test_a_shift_of_normal_samples_is_nearly_as_narrow_as_students() -> None:
    # Half of it: t of 12 degrees of freedom, 2.179, times the root of 2 / 7 for the difference of two means of seven.
    generator = np.random.default_rng(9)
    found = [shift(list(normal(generator, 7)), list(normal(generator, 7))) for _ in range(500)]
    assert np.mean([one.high - one.low for one in found]) / 2 == pytest.approx(2.179 * math.sqrt(2 / 7), rel=0.15)


def test_one_sample_in_seven_cannot_move_a_shift_far() -> None:
    base, other = [1.0, 1.1, 1.2, 1.3, 1.4, 1.5, 1.6], [2.03, 2.13, 2.23, 2.33, 2.43, 2.53, 2.63]
    found = shift(base, [*other[:-1], 1e9])
    assert found.estimate == pytest.approx(shift(base, other).estimate, abs=0.1)
    assert found.high < 1.7


@pytest.mark.parametrize("sides", [([], [1.0]), ([1.0], []), ([1.0], [math.inf])])
def test_a_shift_of_bad_samples_is_refused(sides: tuple[list[float], list[float]]) -> None:
    with pytest.raises(ValueError, match="samples"):
        shift(*sides)
