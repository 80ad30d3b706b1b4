"""Statistics of repeated measurements: median, percentiles, a bootstrap interval, and ratios paired by round."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

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
    """Ends of the 95% bootstrap interval of the median."""
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
    values = np.asarray(samples, dtype=np.float64)
    if values.size == 0:
        raise ValueError("there are no samples to summarise")
    if not np.isfinite(values).all():
        raise ValueError(f"samples must be finite, found {values[~np.isfinite(values)][0]}")
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


def _interval(values: NDArray[np.float64], confidence: float, seed: int) -> tuple[float, float]:
    """Percentile bootstrap of the median."""
    generator = np.random.default_rng(seed)
    picks = generator.integers(0, values.size, size=(BOOTSTRAP_RESAMPLES, values.size))
    medians = np.median(values[picks], axis=1)
    tail = 50 * (1 - confidence)
    low, high = np.percentile(medians, [tail, 100 - tail])
    return float(low), float(high)
