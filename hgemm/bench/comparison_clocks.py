"""Times at equal clocks, for a comparison: how far a row follows its clock, and what that leaves unknown.

A board at its limit of power runs some kernels half a percent slower in one run than in the other, and those that draw
less power not. So what one kernel's clock did says nothing about another's, and every row is brought to equal clocks
by its own: log t + share * log clock, with the clock that the multiprocessors counted over that very sample.

The share is how far the row follows its clock: the slope of its samples within each run, where the code is the same;
near 1 for what computes, near 0 for what waits for memory, and beyond neither. A few noisy rounds of a steady clock do
not tell the slope, and taken as it comes it would move a ratio by as much as the clocks of the runs differ. So the
interval of the ratio is that of every share within the interval of the slope: what would else be falsely the same, or
falsely slower, is ambiguous. The clocks themselves are taken to be exact; noise in them would make the slope too flat.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Mapping, Sequence
from typing import NamedTuple

from hgemm.bench.comparison import CONFIDENCE, Share
from hgemm.bench.schema import Timing
from hgemm.bench.statistics import Shift, shift, student_t

FEWEST_ROUNDS = 4
"""In each run, with clocks: with fewer, ``shift`` has no interval and a ratio no verdict that a clock could change. No
more are needed, because the interval of the slope is as wide as few rounds make it."""

SMALLEST_SPREAD = 5e-5
"""A standard deviation of the clock's logarithm: rounding alone, to a tenth of a MHz in a file, makes half of this."""

LEAST_OF_CONTROL = 0.5
"""A control computes, so it follows its clock: if its share is surely below this, what was counted is another time's
clock, or noise, and says nothing about the other rows of the case either."""

Logarithms = Mapping[int, float]
"""By round."""


class Equalised(NamedTuple):
    """One row in A and in B."""

    times: tuple[Logarithms, Logarithms]
    """At a clock of 1 MHz."""
    share: Share
    """The same in both."""
    step: float
    """By how much the logarithm of its clock is higher in B."""

    @property
    def doubt(self) -> tuple[float, float]:
        """By how much the times of B over A may be lower (at most 0) and higher (at least 0) with another share."""
        low, high = sorted(self.step * (end - self.share.value) for end in self.share[1:])
        return low, high


def counted(timing: Timing) -> Logarithms:
    """Of the clocks that were counted, one over each sample."""
    return {number: math.log(mhz) for number, mhz in zip(timing.rounds, timing.clocks.counted_mhz, strict=False) if mhz}


def at_equal_clocks(times: Sequence[Logarithms], timings: Sequence[Timing]) -> Equalised | None:
    """``times`` of A and B with the clocks of ``timings``, in the rounds that have both; None if those are too few."""
    clocks = [counted(timing) for timing in timings]
    rounds = [[number for number in t if number in c] for t, c in zip(times, clocks, strict=True)]
    if min(map(len, rounds)) < FEWEST_ROUNDS:
        return None
    x, y = ([[of[n] for n in ns] for of, ns in zip(both, rounds, strict=True)] for both in (clocks, times))
    share = follows(x, y)
    a, b = ({n: t[n] + share.value * c[n] for n in ns} for t, c, ns in zip(times, clocks, rounds, strict=True))
    return Equalised((a, b), share, shift(*x).estimate)


def follows(clocks: Sequence[Sequence[float]], times: Sequence[Sequence[float]]) -> Share:
    """From logarithms, run by run: the least-squares slope of -times over clocks, each run around its own mean, so that
    what changed between the runs has no part in it; with Student's interval. A clock that never varies tells nothing:
    0, and perhaps up to 1."""
    x = [value - statistics.fmean(of_run) for of_run in clocks for value in of_run]
    y = [statistics.fmean(of_run) - value for of_run in times for value in of_run]
    squares = math.fsum(value * value for value in x)
    if squares <= len(x) * SMALLEST_SPREAD**2:
        return Share(0.0, 0.0, 1.0)
    slope = math.fsum(a * b for a, b in zip(x, y, strict=True)) / squares
    freedom = len(x) - len(clocks) - 1
    residual = math.fsum((b - slope * a) ** 2 for a, b in zip(x, y, strict=True)) / freedom
    reach = student_t(freedom, CONFIDENCE) * math.sqrt(residual / squares)
    return Share(*(min(1.0, max(0.0, value)) for value in (slope, slope - reach, slope + reach)))


def widened(difference: Shift, row: Equalised, control: Equalised) -> Shift:
    """The interval of ``row`` over ``control`` for every share that either may have.

    The doubts are added and not their squares: a share that is cut at 0 or 1 is not off by chance to either side.
    """
    (low, high), (control_low, control_high) = row.doubt, control.doubt
    return Shift(difference.estimate, difference.low + low - control_high, difference.high + high - control_low)
