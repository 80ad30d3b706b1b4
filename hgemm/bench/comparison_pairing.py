"""Pairs what two results files measured: case with case, contestant with contestant, sample with control.

Every sample is first divided by the control's of the same round, so that whatever slows a round as a whole (the clock
above all) cancels, within a run and between two. Round by round, and not by the control's median: the error of a median
is common to all samples of the case and so shows in no interval, and it does not follow a clock that drifts.

Before that, what a launch costs is made equal. From one kernel of a graph to the next the device takes a microsecond or
two, which a busy host or another state of the machine changes by a third of one, for everybody alike: 10% of the
shortest products. So each round also times a launch of nothing, and as much as that differs from its median over both
runs is taken off every sample, once for each kernel that a call launches.

The ratios of one run then face those of the other, because round 3 of one run has nothing to do with round 3 of the
other: ``hgemm.bench.statistics.shift`` of their logarithms says how far apart they are, with an interval.
"""

from __future__ import annotations

import math
import statistics
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import TypeVar

from hgemm.bench.comparison import (
    CONFIDENCE,
    VERDICTS,
    Change,
    Comparison,
    Contestant,
    Mean,
    Missing,
    Ratio,
    Verdict,
)
from hgemm.bench.comparison_rules import Incomparable, differences, mode_of, refuse_unlike
from hgemm.bench.metrics import LAUNCH, clock_mhz, find_row, label, throttled, timed_rows
from hgemm.bench.schema import CaseResult, Results, Row, Timing
from hgemm.bench.statistics import NOISY_CV, Shift, mean_interval, shift
from hgemm.bench.tables import title

SHORT_US = 50.0
"""Products to which the cost of a launch matters: below this, a third of a microsecond is more than half a percent."""

FEWEST_CASES = 3
"""For an interval over cases."""


def compare(a: Results, b: Results, *, margin: float = 0.01, control: bool = True) -> Comparison:
    """Compares what ``b`` measured with what ``a`` did.

    ``margin`` is a fraction; without ``control``, times are compared as they are.

    Raises ``hgemm.bench.comparison_rules.Incomparable`` if they cannot be compared: another GPU, power limit, setting
    of torch, mode or duty cycle, or nothing in common.
    """
    refuse_unlike(a, b)
    comparison = Comparison(margin, control, mode_of(a), differences=differences(a, b))
    if a == b:
        comparison.notes.append("A and B are the same run: what is ambiguous is so by its own scatter")
    for name, results in (("A", a), ("B", b)):
        if not results.run.complete:
            comparison.notes.append(f"{name} is not complete: its run ended early")
    if control and comparison.mode == "e2e":
        comparison.controlled = False
        comparison.notes.append(
            "plain times are compared: those of mode e2e are the host's, the control's the device's"
        )
    common = _common_cases(comparison, a, b)
    yardsticks = [_controls(*cases) if comparison.controlled else None for cases in common]
    for cases, yardstick in zip(common, yardsticks, strict=True):
        _compare_case(comparison, *cases, None if isinstance(yardstick, str) else yardstick)
    if not comparison.changes:
        raise Incomparable("A and B have no contestant in common that was timed in either")
    _describe_control(comparison, yardsticks)
    short = any(change.us and min(change.us) < SHORT_US for change in comparison.changes)
    if comparison.controlled and short and a != b and not any(map(_launches, common)):
        comparison.notes.append(
            "A or B has no launches of nothing, so short products differ by what the cost of a launch differs"
        )
    comparison.clocks_mhz = _clock(a), _clock(b)
    comparison.means = _means(comparison)
    worst = {verdict: place for place, verdict in enumerate(VERDICTS)}
    comparison.changes.sort(key=lambda change: (worst[change.verdict], -(change.ratio.value if change.ratio else 0)))
    return comparison


def _common_cases(comparison: Comparison, a: Results, b: Results) -> list[tuple[CaseResult, CaseResult]]:
    """The cases of both files; those of one are filed as missing. Raises Incomparable if there is none."""
    cases_a, cases_b = _keyed(a.cases, _case_key), _keyed(b.cases, _case_key)
    for mine, others, missing in ((cases_a, cases_b, comparison.only_a), (cases_b, cases_a, comparison.only_b)):
        for key, case in mine.items():
            if key not in others:
                missing += [Missing(case, who, True, _why(row)) for (who, _), row in _contestants(case).items()]
    common = [(case, cases_b[key]) for key, case in cases_a.items() if key in cases_b]
    if not common:
        first = f"A begins with {title(a.cases[0])}, B with {title(b.cases[0])}"
        raise Incomparable(f"A and B have no case in common: {first}; measure the same shapes, dtypes and layouts")
    return common


def _describe_control(comparison: Comparison, yardsticks: Sequence[tuple[Timing, Timing] | str | None]) -> None:
    """The ratio of the control itself, and where it could not be used."""
    ratios = [
        Ratio.of_logarithms(shift(*map(_logarithms, yardstick), confidence=CONFIDENCE))
        for yardstick in yardsticks
        if isinstance(yardstick, tuple)
    ]
    if ratios:
        comparison.control = _geometric_mean(ratios)
        if abs(math.log(comparison.control.value)) > math.log1p(comparison.margin):
            comparison.notes.append(
                "the control itself changed by more than the margin, so the runs had different clocks: what does not "
                "follow the clock of the multiprocessors, such as a product bound by memory, is judged better by "
                "--no-control"
            )
    for why, count in Counter(yardstick for yardstick in yardsticks if isinstance(yardstick, str)).items():
        comparison.notes.append(f"plain times are compared in {count} case{'s' * (count > 1)}: {why}")


def _compare_case(comparison: Comparison, a: CaseResult, b: CaseResult, controls: tuple[Timing, Timing] | None) -> None:
    rows_a, rows_b = _contestants(a), _contestants(b)
    for who in dict.fromkeys([*rows_a, *rows_b]):
        row_a, row_b = rows_a.get(who), rows_b.get(who)
        if row_a is None or row_b is None:
            row, missing = (row_a, comparison.only_a) if row_b is None else (row_b, comparison.only_b)
            assert row is not None
            missing.append(Missing(a, who[0], False, _why(row)))
        elif row_a.timing and row_b.timing:
            comparison.changes.append(_timed(comparison.margin, (a, b), who[0], (row_a, row_b), controls))
        elif row_a.timing is None and row_b.timing is None:
            reasons = dict.fromkeys((_why(row_a), _why(row_b)))
            comparison.never_timed.append(Missing(a, who[0], False, "; in B: ".join(reasons)))
        else:
            untimed, missing = (row_b, comparison.only_a) if row_a.timing else (row_a, comparison.only_b)
            if untimed.status == "interrupted":  # says nothing about the contestant
                missing.append(Missing(a, who[0], False, _why(untimed)))
            else:
                verdict: Verdict = "broken" if row_a.timing else "mended"
                comparison.changes.append(Change(a, who[0], verdict, remarks=(_why(untimed),)))


def _timed(
    margin: float,
    cases: tuple[CaseResult, CaseResult],
    who: Contestant,
    rows: tuple[Row, Row],
    controls: tuple[Timing, Timing] | None,
) -> Change:
    a, b = rows[0].timing, rows[1].timing
    assert a and b
    plain = _logarithms(a), _logarithms(b)
    remarks = [] if a.timer == b.timer else [f"timed by {a.timer} in A and by {b.timer} in B"]
    if controls:
        launches = _launches(cases) or ({}, {})
        excesses = [
            {number: len(row.kernels or (None,)) * us for number, us in of_run.items()}
            for row, of_run in zip(rows, launches, strict=True)
        ]
        used = _over_control(a, controls[0], excesses[0]), _over_control(b, controls[1], excesses[1])
    else:
        used = plain
    if not all(used):
        remarks.append("no round has the control: plain times")
        used = plain
    ratio, plain_ratio = (Ratio.of_logarithms(shift(*logs, confidence=CONFIDENCE)) for logs in (used, plain))
    for name, timing, samples in zip("AB", (a, b), used, strict=True):
        if len(samples) < len(timing.samples_us):
            remarks.append(f"the control has {len(samples)} of the {len(timing.samples_us)} rounds of {name}")
        if len(samples) > 1 and statistics.stdev(samples) > NOISY_CV:
            remarks.append(f"noisy in {name}")
        if held := throttled(timing):
            remarks.append(f"{held} of {len(timing.samples_us)} throttled in {name}")
    if math.isinf(ratio.high):
        remarks.append(f"too few rounds for an interval: {len(used[0])} and {len(used[1])}")
    us = statistics.median(a.samples_us), statistics.median(b.samples_us)
    return Change(cases[0], who, ratio.verdict(margin), ratio, plain_ratio.value, us, tuple(remarks))


def _logarithms(timing: Timing) -> list[float]:
    return [math.log(us) for us in timing.samples_us]


def _over_control(timing: Timing, control: Timing, excess: Mapping[int, float]) -> list[float]:
    """Logarithms of the samples over the control's, of the rounds that both have; ``excess``: microseconds that a call
    spent on launching beyond the usual, by round, which the samples are freed of."""
    by_round = dict(zip(control.rounds, control.samples_us, strict=True))
    return [
        math.log((us - excess.get(number, 0.0)) / by_round[number])
        for number, us in zip(timing.rounds, timing.samples_us, strict=True)
        if number in by_round and us > excess.get(number, 0.0)
    ]


def _launches(cases: tuple[CaseResult, CaseResult]) -> tuple[Mapping[int, float], Mapping[int, float]] | None:
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


def _controls(a: CaseResult, b: CaseResult) -> tuple[Timing, Timing] | str:
    """The control's times in A and in B, or why they cannot stand for each other."""
    rows = timed_rows(a, "control"), timed_rows(b, "control")
    for name, found in zip("AB", rows, strict=True):
        if not found:
            return f"{name} has no control there"
    row_a, row_b = rows[0][0], rows[1][0]
    assert row_a.timing and row_b.timing
    if (label(row_a), row_a.timing.flops_per_call) != (label(row_b), row_b.timing.flops_per_call):
        return "their controls are different products"
    if row_a.kernels and row_b.kernels:
        kernels = [tuple(kernel.name for kernel in row.kernels or ()) for row in (row_a, row_b)]
        if kernels[0] != kernels[1]:
            return "their controls ran different kernels"
    return row_a.timing, row_b.timing


def _means(comparison: Comparison) -> list[Mean]:
    ratios: dict[Contestant, list[Ratio]] = {}
    for change in comparison.changes:
        if change.ratio:
            ratios.setdefault(change.contestant, []).append(change.ratio)
    means = []
    for who, found in ratios.items():
        ratio = _geometric_mean(found)
        means.append(Mean(who, len(found), ratio, ratio.verdict(comparison.margin)))
    return sorted(means, key=lambda mean: -mean.ratio.value)


def _geometric_mean(ratios: Sequence[Ratio]) -> Ratio:
    """With an interval over the ratios; of a single one its own.

    Of two there is none: with one degree of freedom Student's t is 12.7, so that two ratios that differ by 1% would
    have an interval 13% wide, which says how few they are and nothing about the code.
    """
    if len(ratios) == 1:
        return ratios[0]
    mean = mean_interval([math.log(ratio.value) for ratio in ratios], confidence=CONFIDENCE)
    if len(ratios) < FEWEST_CASES:
        mean = Shift(mean.estimate, -math.inf, math.inf)
    return Ratio.of_logarithms(mean)


def _contestants(case: CaseResult) -> dict[tuple[Contestant, int], Row]:
    rows = [row for row in case.rows if row.role == "contestant"]
    return _keyed(rows, lambda row: Contestant(label(row), row.allocates))


def _case_key(case: CaseResult) -> tuple[int | str, ...]:
    """What makes two cases the same."""
    return case.M, case.N, case.K, case.batch, case.dtype, case.layout, case.distribution


Key = TypeVar("Key")
Item = TypeVar("Item")


def _keyed(items: Iterable[Item], key: Callable[[Item], Key]) -> dict[tuple[Key, int], Item]:
    """Items by key and by how many with that key came before: a shape that two models share is there twice."""
    seen: Counter[Key] = Counter()
    found = {}
    for item in items:
        found[key(item), seen[key(item)]] = item
        seen[key(item)] += 1
    return found


def _why(row: Row) -> str:
    return "" if row.timing else ": ".join(filter(None, (row.status, row.reason)))


def _clock(results: Results) -> float | None:
    return clock_mhz(row.timing for case in results.cases for row in case.rows if row.timing)
