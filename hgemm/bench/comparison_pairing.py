"""Pairs what two results files measured: case with case, contestant with contestant; ``hgemm.bench.comparison_ratio``
says what the times of a pair differ by."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
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
from hgemm.bench.comparison_clocks import FEWEST_ROUNDS
from hgemm.bench.comparison_ratio import Control, change_of, launches
from hgemm.bench.comparison_rules import Incomparable, differences, mode_of, refuse_unlike
from hgemm.bench.metrics import clock_mhz, label, timed_rows
from hgemm.bench.schema import CaseResult, Results, Row
from hgemm.bench.statistics import Shift, mean_interval, shift
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
    controls = [_control(*cases) if comparison.controlled else None for cases in common]
    for cases, found in zip(common, controls, strict=True):
        _compare_case(comparison, *cases, None if isinstance(found, str) else found)
    if not comparison.changes:
        cut_short = bool(comparison.cut_short_a or comparison.cut_short_b)
        why = "but what was cut short; a larger --budget has more rounds" if cut_short else "that was timed in either"
        raise Incomparable(f"A and B have no contestant in common {why}")
    _describe_control(comparison, controls)
    short = any(change.us and min(change.us) < SHORT_US for change in comparison.changes)
    if comparison.controlled and short and a != b and not any(map(launches, common)):
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


def _describe_control(comparison: Comparison, controls: Sequence[Control | str | None]) -> None:
    """The ratio of the control itself, and where it or its clocks could not be used."""
    used = [control for control in controls if isinstance(control, Control)]
    if used:
        shifts = (shift(*([*of_run.values()] for of_run in control.times), confidence=CONFIDENCE) for control in used)
        comparison.control = _geometric_mean([*map(Ratio.of_logarithms, shifts)])
        changed = abs(math.log(comparison.control.value)) > math.log1p(comparison.margin)
        if changed and any(change.ratio and change.clock_share is None for change in comparison.changes):
            comparison.notes.append(
                "the control itself changed by more than the margin, so the runs had different clocks: what does not "
                "follow the clock of the multiprocessors, such as a product bound by memory, is judged better by "
                "--no-control where its own clock was not counted"
            )
    if doubtful := sum(control.doubtful for control in used):
        comparison.notes.append(
            f"the counted clocks are not used in {_cases(doubtful)}: the control does not follow them, so they are not "
            "those of the samples"
        )
    for why, count in Counter(control for control in controls if isinstance(control, str)).items():
        comparison.notes.append(f"plain times are compared in {_cases(count)}: {why}")


def _cases(count: int) -> str:
    return f"{count} case{'s' * (count > 1)}"


def _compare_case(comparison: Comparison, a: CaseResult, b: CaseResult, control: Control | None) -> None:
    rows_a, rows_b = _contestants(a), _contestants(b)
    for who in dict.fromkeys([*rows_a, *rows_b]):
        row_a, row_b = rows_a.get(who), rows_b.get(who)
        if row_a is None or row_b is None:
            row, missing = (row_a, comparison.only_a) if row_b is None else (row_b, comparison.only_b)
            assert row is not None
            missing.append(Missing(a, who[0], False, _why(row)))
        elif row_a.timing and row_b.timing:
            change = change_of((a, b), who[0], (row_a, row_b), control, comparison.margin)
            if not _cut_short(comparison, change, (a, row_a), (b, row_b)):
                comparison.changes.append(change)
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


def _cut_short(comparison: Comparison, change: Change, a: tuple[CaseResult, Row], b: tuple[CaseResult, Row]) -> bool:
    """Whether there is no interval because a run ended in the middle of the case, and files it so."""
    if change.ratio and math.isfinite(change.ratio.high):
        return False
    cut = False
    for (case, row), missing in ((a, comparison.cut_short_a), (b, comparison.cut_short_b)):
        rounds = len(row.timing.samples_us) if row.timing else 0
        if not case.complete and rounds < FEWEST_ROUNDS:
            missing.append(Missing(case, change.contestant, False, f"{rounds} round{'s' * (rounds > 1)}"))
            cut = True
    return cut


def _control(a: CaseResult, b: CaseResult) -> Control | str:
    """The control in A and in B, or why they cannot stand for each other."""
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
    return Control.of((row_a.timing, row_b.timing))


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
