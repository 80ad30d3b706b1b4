"""What two results files say about each other: verdicts by hand-made times, what is paired with what, the control."""

import copy
import math

import numpy as np
import pytest
from made_up_pairs import ROUNDS, SCATTER, case_of, one_case, results_of, row_of, set_samples, whole

from hgemm.bench.comparison import VERDICTS, Comparison
from hgemm.bench.comparison_pairing import compare
from hgemm.bench.comparison_rules import Incomparable
from hgemm.bench.schema import Kernel, Results

# What the verdicts are


@pytest.mark.parametrize(
    ("factor", "verdict"),
    [(1.0, "same"), (1.005, "same"), (1.05, "slower"), (0.95, "faster"), (1.01, "ambiguous"), (0.99, "ambiguous")],
)
def test_a_verdict_is_where_the_interval_lies(factor: float, verdict: str) -> None:
    [change] = compare(one_case(), one_case(factor), margin=0.01).changes
    assert change.verdict == verdict
    assert change.ratio is not None
    assert change.ratio.value == pytest.approx(factor, abs=1e-9)  # the scatter is the same in both
    assert change.ratio.low < factor < change.ratio.high


def test_the_margin_moves_the_verdict_and_not_the_interval() -> None:
    by_margin = {margin: compare(one_case(), one_case(1.03), margin=margin).changes[0] for margin in (0, 0.01, 0.05)}
    assert [change.verdict for change in by_margin.values()] == ["slower", "slower", "same"]
    assert len({change.ratio for change in by_margin.values()}) == 1


def test_the_margin_is_symmetric_in_a_and_b() -> None:
    there, back = compare(one_case(), one_case(1.03)), compare(one_case(1.03), one_case())
    assert [there.changes[0].verdict, back.changes[0].verdict] == ["slower", "faster"]
    assert there.changes[0].ratio and back.changes[0].ratio
    assert there.changes[0].ratio.low == pytest.approx(1 / back.changes[0].ratio.high)


def test_the_clock_cancels_round_by_round() -> None:
    # B runs at a clock 5% lower that wanders by another 4%; its code is 3% slower.
    clock = 1.05 + 0.02 * np.array([0, 1, 2, -1, 0.5, -2, 1.5])
    a, b = one_case(), one_case(1.03, clock=clock)
    [change] = compare(a, b, margin=0.01).changes
    assert change.verdict == "slower"
    assert change.ratio is not None and change.plain is not None
    assert change.ratio.value == pytest.approx(1.03, abs=1e-9)
    assert change.plain > 1.06
    comparison = compare(a, b, control=False)
    [plain] = comparison.changes
    assert plain.ratio is not None and plain.ratio.value == change.plain
    assert comparison.control is None


def test_one_slow_sample_in_each_run_does_not_matter() -> None:
    a, b = SCATTER.copy(), SCATTER.copy()
    a[2] *= 1.2
    b[5] *= 1.3
    assert compare(one_case(scatter=a), one_case(scatter=b)).changes[0].verdict == "same"
    assert compare(one_case(scatter=a), one_case(1.03, scatter=b)).changes[0].verdict == "slower"


def test_three_rounds_bound_nothing() -> None:
    [change] = compare(one_case(scatter=SCATTER[:3]), one_case(2.0, scatter=SCATTER[:3])).changes
    assert change.verdict == "ambiguous"
    assert change.remarks == ("too few rounds for an interval: 3 and 3",)
    [change] = compare(one_case(scatter=SCATTER[:4]), one_case(2.0, scatter=SCATTER[:4])).changes
    assert change.verdict == "slower"


def cut_short(results: Results) -> Results:
    """The same of a run that ended in the middle of its only case."""
    results.run.complete = results.cases[0].complete = False
    return results


def test_a_case_cut_short_below_an_interval_has_no_verdict() -> None:
    a, b = whole(), whole()
    for results, rounds in ((a, 3), (b, 2)):
        results.run.complete = case_of(results).complete = False
        for row in case_of(results).rows:
            if row.timing:
                set_samples(row, np.array(row.timing.samples_us[:rounds]))
    comparison = compare(a, whole(), margin=0.05)
    assert comparison.counts == dict.fromkeys(VERDICTS, 0) | {"same": 18}  # 3 and 7 rounds have an interval
    comparison = compare(a, b, margin=0.05)
    assert comparison.counts == dict.fromkeys(VERDICTS, 0) | {"same": 9}
    found = comparison.cut_short_a, comparison.cut_short_b
    assert [{(entry.case.M, entry.remark) for entry in of_run} for of_run in found] == [
        {(2048, "3 rounds")},
        {(2048, "2 rounds")},
    ]
    assert len({entry.contestant for entry in comparison.cut_short_a}) == 9
    case_of(a).complete = case_of(b).complete = True  # as asked: --rounds
    assert compare(a, b, margin=0.05).counts["ambiguous"] == 9


def test_nothing_but_what_was_cut_short_is_not_compared() -> None:
    with pytest.raises(Incomparable, match="but what was cut short"):
        compare(cut_short(one_case(scatter=SCATTER[:1])), one_case())


def test_the_mean_of_a_contestant_is_geometric() -> None:
    a = results_of(100 * np.tile(SCATTER, (2, 1)), np.full((2, ROUNDS), 170.0))
    b = results_of(100 * np.array([[2.0], [0.5]]) * SCATTER, np.full((2, ROUNDS), 170.0))
    [mean] = compare(a, b).means
    assert (mean.cases, mean.verdict) == (2, "ambiguous")
    assert mean.ratio.value == pytest.approx(1.0)
    assert (mean.ratio.low, mean.ratio.high) == (0.0, math.inf)  # two cases bound nothing
    a = results_of(100 * np.tile(SCATTER, (3, 1)), np.full((3, ROUNDS), 170.0))
    b = results_of(100 * np.array([[1.1], [1.1], [1.11]]) * SCATTER, np.full((3, ROUNDS), 170.0))
    [mean] = compare(a, b).means
    assert (mean.cases, mean.verdict) == (3, "slower")
    assert 1.08 < mean.ratio.low < 1.1 < mean.ratio.high < 1.13
    [mean] = compare(one_case(), one_case(1.05)).means
    assert mean.ratio == compare(one_case(), one_case(1.05)).changes[0].ratio


def test_a_run_compared_with_itself_is_one_remark() -> None:
    assert compare(whole(), whole()).notes == ["A and B are the same run: what is ambiguous is so by its own scatter"]
    other = whole()
    other.run.utc = "2026-02-01T12:00:00Z"
    assert not [note for note in compare(whole(), other).notes if "same run" in note]


# What is paired with what


def verdicts(comparison: Comparison) -> dict[str, list[str]]:
    found: dict[str, list[str]] = {}
    for change in comparison.changes:
        found.setdefault(change.verdict, []).append(f"{change.contestant} {change.case.M}")
    return found


def test_every_contestant_of_every_case_is_somewhere() -> None:
    a, b = whole(), whole()
    b.cases.reverse()
    case_of(b).rows.reverse()
    comparison = compare(a, b, margin=0.05)
    assert comparison.counts == dict.fromkeys(VERDICTS, 0) | {"same": 18}
    assert not comparison.only_a and not comparison.only_b
    assert [str(entry.contestant) for entry in comparison.never_timed] == ["cuda_wgmma"] * 2
    assert comparison.never_timed[0].remark == "unavailable: needs sm_90a, found sm_120"


@pytest.mark.parametrize("status", ["failed", "wrong", "refused", "hangs", "unavailable"])
def test_what_no_longer_works_is_broken(status: str) -> None:
    a, b = whole(), whole()
    row = row_of(b, "triton")
    row.status, row.timing, row.reason = status, None, "what happened"  # type: ignore[assignment]
    comparison = compare(a, b, margin=0.05)
    assert verdicts(comparison)["broken"] == ["triton:128x256x64_s3_w64x64 2048"]
    assert comparison.changes[0].verdict == "broken"
    assert comparison.changes[0].remarks == (f"{status}: what happened",)
    assert verdicts(compare(b, a, margin=0.05))["mended"] == ["triton:128x256x64_s3_w64x64 2048"]


def test_what_a_run_did_not_get_to_is_missing_and_not_broken() -> None:
    a, b = whole(), whole()
    row = row_of(b, "triton")
    row.status, row.timing = "interrupted", None
    b.run.complete = False
    comparison = compare(a, b)
    assert "broken" not in verdicts(comparison)
    assert [str(entry.contestant) for entry in comparison.only_a] == ["triton:128x256x64_s3_w64x64"]
    assert "B is not complete: its run ended early" in comparison.notes


def test_what_one_file_lacks_is_listed() -> None:
    a, b = whole(), whole()
    case_of(a).rows.remove(row_of(a, "cublas"))
    row_of(b, "torch").config = "other"
    b.cases.pop()
    comparison = compare(a, b)
    assert [(str(e.contestant), e.case.M, e.whole_case) for e in comparison.only_a][-1] == ("torch", 2048, False)
    assert {e.case.M for e in comparison.only_a if e.whole_case} == {4096}
    assert sum(e.whole_case for e in comparison.only_a) == 10
    assert {(str(e.contestant), e.case.M) for e in comparison.only_b} == {("torch:other", 2048), ("cublas", 2048)}


def test_what_makes_times_doubtful_is_remarked() -> None:
    a, b = one_case(), one_case()
    timing = b.cases[0].rows[1].timing
    assert timing is not None
    timing.timer = "events"
    timing.clocks.throttle[:2] = ["sw_power_cap", "hw_thermal_slowdown"]
    assert compare(a, b).changes[0].remarks == ("timed by graph in A and by events in B", "2 of 7 throttled in B")
    # The standard deviation of SCATTER is 0.105%: 1.9 and 2.3% of the time.
    assert compare(a, one_case(scatter=1 + 18 * (SCATTER - 1))).changes[0].remarks == ()
    assert compare(a, one_case(scatter=1 + 22 * (SCATTER - 1))).changes[0].remarks == ("noisy in B",)


def test_the_worst_comes_first() -> None:
    factors = np.array([0.9, 1.0, 1.2, 1.01, 0.8, 1.1])[:, None]
    control = np.full((len(factors), ROUNDS), 170.0)
    a, b = results_of(np.tile(100 * SCATTER, (len(factors), 1)), control), results_of(100 * factors * SCATTER, control)
    ratios = [change.ratio.value for change in compare(a, b).changes if change.ratio]
    assert ratios == pytest.approx([1.2, 1.1, 1.01, 1.0, 0.9, 0.8])


def test_calls_that_allocate_face_calls_that_allocate() -> None:
    def run(with_out: float, allocating: float) -> Results:
        results = one_case(with_out)
        [case] = results.cases
        second = copy.deepcopy(case.rows[1])
        second.allocates = True
        set_samples(second, 100 * allocating * SCATTER)
        case.rows.append(second)
        for row in case.rows[1:]:
            assert row.timing is not None
            row.timing.mode, row.timing.finished_us = "e2e", list(row.timing.samples_us)
        return results

    changes = {change.contestant.allocates: change for change in compare(run(1.0, 2.0), run(1.0, 2.2)).changes}
    assert (changes[False].verdict, changes[True].verdict) == ("same", "slower")


def test_batches_and_layouts_are_cases_of_their_own() -> None:
    a, b = one_case(), one_case(1.05)
    for results in (a, b):
        for name, value in (("batch", 2), ("layout", "nt"), ("dtype", "fp16")):
            other = copy.deepcopy(results.cases[0])
            setattr(other, name, value)
            other.flops = 2 * other.batch * 256**3
            results.cases.append(other)
    b.cases.reverse()
    set_samples(b.cases[2].rows[1], 100 * SCATTER)  # the batch
    found = {(it.case.batch, it.case.dtype, it.case.layout): it.verdict for it in compare(a, b).changes}
    assert found == {
        (1, "bf16", "nn"): "slower",
        (1, "bf16", "nt"): "slower",
        (1, "fp16", "nn"): "slower",
        (2, "bf16", "nn"): "same",
    }


def test_a_shape_that_is_there_twice_is_compared_twice() -> None:
    a, b = one_case(), one_case()
    for results, factor in ((a, 1.0), (b, 1.05)):
        results.cases += one_case(factor).cases
    assert [change.verdict for change in compare(a, b).changes] == ["slower", "same"]


# The control


def test_without_a_control_plain_times_are_compared_and_that_is_said() -> None:
    a, b = one_case(), one_case(1.03, clock=1.05)
    b.cases[0].rows = b.cases[0].rows[1:]
    comparison = compare(a, b)
    assert comparison.notes == ["plain times are compared in 1 case: B has no control there"]
    assert comparison.changes[0].ratio is not None
    assert comparison.changes[0].ratio.value == pytest.approx(1.03 * 1.05)


@pytest.mark.parametrize(
    ("change", "note"),
    [("flops", "their controls are different products"), ("kernel", "their controls ran different kernels")],
)
def test_a_control_that_is_another_one_is_not_used(change: str, note: str) -> None:
    a, b = one_case(), one_case(1.03, clock=1.05)
    control = b.cases[0].rows[0]
    assert control.timing is not None
    if change == "flops":
        control.timing.flops_per_call *= 2
    else:
        control.kernels = [Kernel("another", 32, 0, 0, 128, 1)]
    comparison = compare(a, b)
    assert comparison.notes == [f"plain times are compared in 1 case: {note}"]
    assert comparison.changes[0].ratio is not None
    assert comparison.changes[0].ratio.value == pytest.approx(1.03 * 1.05)


def test_the_control_says_what_changed_between_the_runs() -> None:
    comparison = compare(one_case(), one_case(clock=1.05))
    assert comparison.control is not None and comparison.control.value == pytest.approx(1.05)
    assert comparison.changes[0].verdict == "same"
    assert "--no-control" in comparison.notes[0]
    assert not compare(one_case(), one_case(clock=1.005)).notes


def test_samples_without_a_control_in_their_round_are_left_out() -> None:
    a, b = one_case(), one_case(1.03, clock=np.array([1, 1, 1, 1, 1, 1.2, 1.2]))
    timing = b.cases[0].rows[0].timing
    assert timing is not None
    set_samples(b.cases[0].rows[0], np.array(timing.samples_us[:5]))
    [change] = compare(a, b).changes
    assert change.remarks == ("the control has 5 of the 7 rounds of B",)
    assert change.ratio is not None and change.ratio.high < 1.05


def test_host_times_are_not_divided_by_a_device_time() -> None:
    a, b = one_case(), one_case(clock=1.05)
    for results in (a, b):
        timing = results.cases[0].rows[1].timing
        assert timing is not None
        timing.mode, timing.finished_us = "e2e", list(timing.samples_us)
    comparison = compare(a, b)
    assert comparison.changes[0].verdict == "slower"
    assert "mode e2e" in comparison.notes[0]
