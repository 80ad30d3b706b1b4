"""Statistics of repeated measurements: median, percentiles, a bootstrap interval, ratios paired by round, and how far
one set of samples lies from another. Made for few samples: seven is a usual number."""

from __future__ import annotations

import functools
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from statistics import NormalDist

import numpy as np
from numpy.typing import NDArray

NOISY_CV = 0.02
"""A coefficient of variation above this marks a set of samples as noisy."""

BOOTSTRAP_RESAMPLES = 4000


@dataclass(frozen=True)
class Summary:
    """``samples`` measurements of one quantity, in its own unit."""

    samples: int
    median: float
    p5: float
    p95: float
    ci_low: float
    """Ends of the 95% bootstrap interval of the median: all that the samples span for fewer than 7 of them, which then
    covers the median of their distribution with probability 1 - 2 ** (1 - samples)."""
    ci_high: float
    cv: float
    """Standard deviation over mean; 0 for a single sample."""

    @property
    def noisy(self) -> bool:
        return self.cv > NOISY_CV


def summarize(samples: Sequence[float], *, confidence: float = 0.95, seed: int = 0) -> Summary:
    """Summarises at least one finite sample. The bootstrap is seeded, so the same samples give the same interval.

    Raises ValueError for no samples or for one that is not finite.
    """
    values = _finite(samples)
    p5, median, p95 = np.percentile(values, [5, 50, 95])
    low, high = _interval(values, confidence, seed)
    cv = float(values.std(ddof=1) / values.mean()) if values.size > 1 else 0.0
    return Summary(int(values.size), float(median), float(p5), float(p95), low, high, cv)


def paired_ratio(numerator: Mapping[int, float], denominator: Mapping[int, float], *, seed: int = 0) -> Summary | None:
    """Ratios of two quantities measured in the same rounds, summarised; None if they share no round.

    Both map a round to its measurement. Pairing by round cancels what slows everything in a round alike: a clock that
    drifts with temperature moves both sides of the ratio.
    """
    shared = sorted(numerator.keys() & denominator.keys())
    if not shared:
        return None
    return summarize([numerator[key] / denominator[key] for key in shared], seed=seed)


@dataclass(frozen=True)
class Shift:
    """How far one set of samples lies above another, in their unit."""

    estimate: float
    low: float
    """Ends of the confidence interval; infinite where so few samples bound nothing at that confidence."""
    high: float


def shift(base: Sequence[float], other: Sequence[float], *, confidence: float = 0.95) -> Shift:
    """How far ``other`` lies above ``base``: the median of all differences of one sample each, with its interval.

    This is the estimator of Hodges and Lehmann with the interval that inverts the rank test of Mann and Whitney
    (Hollander, Wolfe and Chicken, Nonparametric Statistical Methods, 3rd edition, sections 4.2 and 4.3). The samples of
    the two sets need no order and no pairing. If both come from one distribution, moved or not, then each end misses
    with a probability of at most (1 - confidence) / 2, whatever that distribution is: exactly, for any number of
    samples. That is why it is no bootstrap: resampling seven samples a side, an interval of the difference of means
    misses twice as often as it says, and Student's interval is valid but one slow sample in seven makes it useless,
    while here one is ignored. On normal samples the estimate is as good as the mean of 95% as many. 95% needs 4 samples
    a side. Where one set is noisier than the other the promise is weaker: each end of a 95% interval of seven samples
    misses in 3% of cases with 3 times the noise, and in at most 6.25%.

    Raises ValueError for no samples or for one that is not finite.
    """
    a, b = _finite(base), _finite(other)
    differences = np.sort(np.subtract.outer(b, a), axis=None)
    skipped = _rank(a.size, b.size, (1 - confidence) / 2)
    low, high = (differences[skipped - 1], differences[-skipped]) if skipped else (-math.inf, math.inf)
    return Shift(float(np.median(differences)), float(low), float(high))


def mean_interval(values: Sequence[float], *, confidence: float = 0.95) -> Shift:
    """The mean of at least one finite value with Student's interval, which is infinite for a single value."""
    samples = _finite(values)
    mean = float(samples.mean())
    if samples.size == 1:
        return Shift(mean, -math.inf, math.inf)
    reach = student_t(samples.size - 1, confidence) * float(samples.std(ddof=1)) / math.sqrt(samples.size)
    return Shift(mean, mean - reach, mean + reach)


@functools.cache
def student_t(freedom: int, confidence: float) -> float:
    """The t that a variable of Student's distribution stays within with probability ``confidence``: 2.447 for 6 degrees
    of freedom and 95%. With x = sqrt(freedom) tan(angle) its density is cos(angle) ** (freedom - 1)."""
    angles = np.linspace(0.0, math.pi / 2, 100_001)
    density = np.cos(angles) ** (freedom - 1)
    cumulative = np.concatenate(([0.0], np.cumsum(density[1:] + density[:-1])))
    angle = np.interp(confidence, cumulative / cumulative[-1], angles)
    return math.sqrt(freedom) * math.tan(float(angle))


def _finite(samples: Sequence[float]) -> NDArray[np.float64]:
    values = np.asarray(samples, dtype=np.float64)
    if values.size == 0:
        raise ValueError("there are no samples to summarise")
    if not np.isfinite(values).all():
        raise ValueError(f"samples must be finite, found {values[~np.isfinite(values)][0]}")
    return values


def _interval(values: NDArray[np.float64], confidence: float, seed: int) -> tuple[float, float]:
    """Expanded percentile bootstrap of the median (Hesterberg, What Teachers Should Know About the Bootstrap, The
    American Statistician 69, 2015): the plain percentiles take samples for the whole distribution and cover 87.5%
    instead of 95% with seven samples; these lie as much further out as Student's interval is wider than the normal one.
    """
    if values.size == 1:
        return float(values[0]), float(values[0])
    generator = np.random.default_rng(seed)
    picks = generator.integers(0, values.size, size=(BOOTSTRAP_RESAMPLES, values.size))
    medians = np.median(values[picks], axis=1)
    expansion = math.sqrt(values.size / (values.size - 1)) * student_t(values.size - 1, confidence)
    tail = 100 * NormalDist().cdf(-expansion)
    low, high = np.percentile(medians, [tail, 100 - tail])
    return float(low), float(high)


EXACT_SAMPLES = 60
"""With more samples than this on both sides together, the statistic of Mann and Whitney is as good as normal."""


@functools.cache
def _rank(n: int, m: int, tail: float) -> int:
    """Which of the n m sorted differences, from either end and counted from 1, bounds an interval that misses with a
    probability of at most ``tail`` on that side; 0 if none does."""
    if n + m > EXACT_SAMPLES:
        deviation = math.sqrt(n * m * (n + m + 1) / 12)
        return max(0, math.floor(n * m / 2 + NormalDist().inv_cdf(tail) * deviation))
    return int(np.count_nonzero(np.cumsum(_mann_whitney(n, m)) <= tail * (1 + 1e-9)))  # 1 in 20 is 5%


@functools.cache
def _mann_whitney(n: int, m: int) -> NDArray[np.float64]:
    """Probability of each value 0 ... n m of the statistic of Mann and Whitney: in how many of all pairs the first
    sample is the larger one. The largest of all samples is one of the n with probability n / (n + m), and then larger
    than every one of the m."""
    if n == 0 or m == 0:
        return np.ones(1)
    probabilities = np.zeros(n * m + 1)
    probabilities[m:] += n / (n + m) * _mann_whitney(n - 1, m)
    probabilities[: n * (m - 1) + 1] += m / (n + m) * _mann_whitney(n, m - 1)
    return probabilities
