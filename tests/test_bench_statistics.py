"""Medians, percentiles, intervals and paired ratios, against values worked out by hand and known distributions."""

import math

import numpy as np
import pytest

from hgemm.bench.statistics import paired_ratio, summarize


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
