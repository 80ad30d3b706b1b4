"""The times of one contestant in one case of B over those in A.

Every sample is divided by the control's of the same round, so that whatever slows a round as a whole cancels, within a
run and between two. Round by round, and not by the control's median: the error of a median is common to all samples of
the case and so shows in no interval, and it does not follow what drifts.

Before that, both are brought to equal clocks, each by its own (``hgemm.bench.comparison_clocks``), because the control
is at the board's limit of power and a kernel that is not has another clock. Where the clocks over the samples were not
counted, contestant and control are taken to follow the same one.

And before that, what a launch costs is made equal. From one kernel of a graph to the next the device takes a
microsecond or two, which a busy host or another state of the machine changes by a third of one, for everybody alike:
10% of the shortest products. So each round also times a launch of nothing, and as much as that differs from its median
over both runs is taken off every sample, once for each kernel that a call launches.

The ratios of one run then face those of the other, because round 3 of one run has nothing to do with round 3 of the
other: ``hgemm.bench.statistics.shift`` of their logarithms says how far apart they are, with an interval.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Iterable, Mapping
from typing import NamedTuple

from hgemm.bench.comparison import CONFIDENCE, Change, Contestant, Ratio
from hgemm.bench.comparison_clocks import (
    LEAST_OF_CONTROL,
    Equalised,
    Logarithms,
    at_equal_clocks,
    widened,
)
from hgemm.bench.metrics import LAUNCH, find_row, throttled
from hgemm.bench.schema import CaseResult, Row, Timing
from hgemm.bench.statistics import NOISY_CV, Shift, shift


class Control(NamedTuple):
    """The control of a case, in A and in B."""

    times: tuple[Logarithms, Logarithms]
    equalised: Equalised | None
    """None where its clocks were not counted, or cannot be those of its samples."""
    doubtful: bool
    """Whether it is the latter."""

    @classmethod
    def of(cls, timings: tuple[Timing, Timing]) -> Control:
        a, b = map(logarithms, timings)
        equalised = at_equal_clocks((a, b), timings)
        doubtful = equalised is not None and equalised.share.high < LEAST_OF_CONTROL
        return cls((a, b), None if doubtful else equalised, doubtful)


class Compared(NamedTuple):
    """Logarithms of the ratios in A and in B, and what they differ by."""

    samples: tuple[list[float], list[float]]
    difference: Shift
    equalised: Equalised | None = None

    @classmethod
    def of(cls, a: Iterable[float], b: Iterable[float]) -> Compared:
        samples = [*a], [*b]
        return cls(samples, shift(*samples, confidence=CONFIDENCE))


def change_of(
    cases: tuple[CaseResult, CaseResult], who: Contestant, rows: tuple[Row, Row], control: Control | None, margin: float
) -> Change:
    """Of two timed rows; without a control, times are compared as they are."""
    a, b = rows[0].timing, rows[1].timing
    assert a and b
    plain = Compared.of(logarithms(a).values(), logarithms(b).values())
    used = _controlled(cases, rows, (a, b), control) if control else plain
    remarks = [] if a.timer == b.timer else [f"timed by {a.timer} in A and by {b.timer} in B"]
    if used is None:
        remarks.append("no round has the control: plain times")
        used = plain
    needed = "control and the clocks have" if used.equalised else "control has"
    for name, timing, samples in zip("AB", (a, b), used.samples, strict=True):
        if len(samples) < len(timing.samples_us):
            remarks.append(f"the {needed} {len(samples)} of the {len(timing.samples_us)} rounds of {name}")
        if len(samples) > 1 and statistics.stdev(samples) > NOISY_CV:
            remarks.append(f"noisy in {name}")
        if held := throttled(timing):
            remarks.append(f"{held} of {len(timing.samples_us)} throttled in {name}")
    if used.equalised and abs(used.equalised.step) > math.log1p(margin):
        percent = 100 * math.expm1(used.equalised.step)
        remarks.append(f"clock {abs(percent):.1f}% {'higher' if percent > 0 else 'lower'} in B")
    ratio = Ratio.of_logarithms(used.difference)
    if math.isinf(ratio.high):
        remarks.append(f"too few rounds for an interval: {len(used.samples[0])} and {len(used.samples[1])}")
    us = statistics.median(a.samples_us), statistics.median(b.samples_us)
    return Change(
        cases[0],
        who,
        ratio.verdict(margin),
        ratio,
        math.exp(plain.difference.estimate),
        us,
        tuple(remarks),
        used.equalised and used.equalised.share,
    )


def logarithms(timing: Timing) -> Logarithms:
    """Of the samples."""
    return {number: math.log(us) for number, us in zip(timing.rounds, timing.samples_us, strict=True)}


def launches(cases: tuple[CaseResult, CaseResult]) -> tuple[Mapping[int, float], Mapping[int, float]] | None:
    """How much longer a launch of nothing took than the median of both runs, in A and in B, in microseconds by round;
    None if either has none."""
    found = [
        dict(zip(row.timing.rounds, row.timing.samples_us, strict=True))
        for case in cases
        if (row := find_row(case, LAUNCH, "roof")) and row.timing
    ]
    if len(found) < len(cases):
        return None
    usual = statistics.median([*found[0].values(), *found[1].values()])
    a, b = ({number: us - usual for number, us in of_run.items()} for of_run in found)
    return a, b


def _controlled(
    cases: tuple[CaseResult, CaseResult], rows: tuple[Row, Row], timings: tuple[Timing, Timing], control: Control
) -> Compared | None:
    """Over the control's times of the same round, in the rounds that have it; None if a run has none."""
    times = [
        _freed(timing, len(row.kernels or (None,)), excess)
        for timing, row, excess in zip(timings, rows, launches(cases) or ({}, {}), strict=True)
    ]
    if control.equalised:
        shared = [
            {number: log for number, log in of_run.items() if number in of_control}
            for of_run, of_control in zip(times, control.equalised.times, strict=True)
        ]
        if equalised := at_equal_clocks(shared, timings):
            at_equal = Compared.of(*map(_over, equalised.times, control.equalised.times))
            difference = widened(at_equal.difference, equalised, control.equalised)
            return Compared(at_equal.samples, difference, equalised)
    a, b = map(_over, times, control.times)
    return Compared.of(a, b) if a and b else None


def _over(times: Logarithms, control: Logarithms) -> list[float]:
    return [log - control[number] for number, log in times.items() if number in control]


def _freed(timing: Timing, kernels: int, excess: Mapping[int, float]) -> Logarithms:
    """Logarithms of the samples without what a call spent on its launches beyond the usual; ``excess``: microseconds a
    launch, by round."""
    freed = {
        number: us - kernels * excess.get(number, 0.0)
        for number, us in zip(timing.rounds, timing.samples_us, strict=True)
    }
    return {number: math.log(us) for number, us in freed.items() if us > 0}
