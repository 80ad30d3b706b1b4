"""No time without its check: what is wrong, crashes, is refused or breaks the device is recorded, and not timed."""

import dataclasses
import json

import pytest
import torch
from bench_machine import FakeCeiling, FakeMachine, backend, product, verify

from hgemm.backends import Properties
from hgemm.bench.measure import Bench
from hgemm.bench.metrics import CEILING, label, timed_rows
from hgemm.bench.outcome import Outcome
from hgemm.bench.plan import DutyCycle, Plan
from hgemm.bench.results import dumps
from hgemm.bench.schema import Row
from hgemm.bench.suites import Case, Shape
from hgemm.problem import UnsupportedProblem

CASES = (Case(Shape(24, 16, 40)), Case(Shape(16, 24, 8), "fp16"))


def run(machine: FakeMachine, *contestants, make_ceiling=None, **options) -> Outcome:
    backends = [backend("torch", product(machine, 1e-4)), *contestants]
    plan = Plan(CASES, ("*",), duty=DutyCycle(2.0, 1.0), **{"rounds": 3, **options})
    make = make_ceiling or (lambda limit, device: FakeCeiling(machine))
    return Bench(plan, machine, backends, verify, make_ceiling=make, control_size=16).run()


def rows(outcome: Outcome, name: str) -> list[Row]:
    return [row for case in outcome.results.cases for row in case.rows if label(row) == name and row.role != "control"]


def others_are_timed(outcome: Outcome, cases: int = 2) -> bool:
    return [len(row.timing.samples_us) for row in rows(outcome, "torch") if row.timing] == [3] * cases


def test_a_wrong_kernel_is_never_timed() -> None:
    machine = FakeMachine()
    calls = []

    def off_by_one_row(a, b, out, config) -> None:
        calls.append(1)
        out.copy_((a.float() @ b.float()).roll(1, 0))

    outcome = run(machine, backend("wrong", off_by_one_row))
    assert len(calls) == len(CASES)  # called once a case, to be checked
    for row in rows(outcome, "wrong"):
        assert (row.status, row.timing) == ("wrong", None)
        assert row.check is not None
        assert not row.check.passed
        assert "times its bound" in (row.reason or "")
    assert others_are_timed(outcome)


def test_an_element_that_nobody_writes_is_found_whatever_the_check_samples() -> None:
    machine = FakeMachine()

    def forgets_one(a, b, out, config) -> None:
        kept = out[3, 5].clone()
        out.copy_(a.float() @ b.float())
        out[3, 5] = kept

    class Passed:
        error_over_bound, passed = 0.0, True

    backends = [backend("torch", product(machine)), backend("forgets", forgets_one)]
    plan = Plan(CASES[:1], ("*",), duty=DutyCycle(2.0, 1.0), rounds=1)
    bench = Bench(
        plan,
        machine,
        backends,
        lambda a, b, c, properties: Passed(),
        make_ceiling=lambda limit, device: FakeCeiling(machine),
        control_size=16,
    )
    (row,) = rows(bench.run(), "forgets")
    assert row.status == "wrong"
    assert row.reason == "its result leaves 1 of 384 elements unwritten or NaN"
    assert row.timing is None


@pytest.mark.parametrize("mode", ["kernel", "rotating"])
def test_a_burst_that_computes_nothing_is_not_timed(mode: str) -> None:
    """As a graph does that captured none of the work, because the contestant launched it on another stream."""
    machine = FakeMachine()
    calls = 0

    def works_once(a, b, out, config) -> None:
        nonlocal calls
        calls += 1
        if calls == 1:
            out.copy_(a.float() @ b.float())

    outcome = run(machine, backend("absent", works_once), mode=mode)
    first = rows(outcome, "absent")[0]
    assert first.status == "wrong"
    assert "in a burst of calls" in (first.reason or "")
    assert first.timing is None


def test_a_burst_wrong_on_one_of_the_rotating_operands_is_not_timed() -> None:
    machine = FakeMachine(l2_bytes=1 << 12)
    places: list[int] = []

    def stale_from_the_third_on(a, b, out, config) -> None:
        if out.data_ptr() not in places:
            places.append(out.data_ptr())
        if places.index(out.data_ptr()) < 2:
            out.copy_(a.float() @ b.float())
        else:
            out.zero_()

    row = rows(run(machine, backend("stale", stale_from_the_third_on), mode="rotating"), "stale")[0]
    assert (row.status, row.timing) == ("wrong", None)


def test_a_result_that_varies_within_its_bound_is_timed() -> None:
    machine = FakeMachine()

    def varies(a, b, out, config) -> None:
        exact = a.double() @ b.double()
        out.copy_(exact + torch.rand_like(exact) * 0.002 * (a.double().abs() @ b.double().abs()))

    assert all(row.status == "ok" for row in rows(run(machine, backend("varies", varies)), "varies"))


def test_a_crash_becomes_a_row_and_the_run_goes_on() -> None:
    machine = FakeMachine()

    def crash(a, b, out, config) -> None:
        raise RuntimeError("no kernel image in /home/somebody/cache/unit.so for this device")

    outcome = run(machine, backend("crash", crash))
    for row in rows(outcome, "crash"):
        assert (row.status, row.timing, row.check) == ("failed", None, None)
        assert row.reason == "RuntimeError: no kernel image in unit.so for this device"
    assert others_are_timed(outcome)
    assert "somebody" not in dumps(outcome.results)


def test_a_crash_in_the_rounds_drops_samples_and_keeps_the_others() -> None:
    machine = FakeMachine()
    checked = product(machine)

    def crashes_in_the_second_round(a, b, out, config) -> None:
        # Nine take turns, after a warm-up of nine, and each is preceded by idle time.
        if 18 < len(machine.slept) <= 27:
            raise RuntimeError("late")
        checked(a, b, out, config)

    first = rows(run(machine, backend("late", crashes_in_the_second_round)), "late")[0]
    assert first.status == "ok"
    assert first.timing is not None
    assert (first.timing.rounds, first.timing.dropped) == ([0, 2], 1)
    assert first.reason == "RuntimeError: late"


def test_refusals_and_absences_become_rows_with_their_reasons() -> None:
    machine = FakeMachine()

    def never(a, b, out, config) -> None:
        raise AssertionError("called")

    def raises_unsupported(a, b, out, config) -> None:
        raise UnsupportedProblem("K must be a multiple of 64, found 40")

    outcome = run(
        machine,
        backend("absent", never, unavailable="no nvcc: install the toolkit"),
        backend("picky", never, accepts=lambda problem, config: f"N must be a multiple of 32, found {problem.N}"),
        backend("late", raises_unsupported),
    )
    first = {label(row): row for row in outcome.results.cases[0].rows if row.role == "contestant"}
    assert (first["absent"].status, first["absent"].reason) == ("unavailable", "no nvcc: install the toolkit")
    assert (first["picky"].status, first["picky"].reason) == ("refused", "N must be a multiple of 32, found 16")
    assert (first["late"].status, first["late"].reason) == ("refused", "K must be a multiple of 64, found 40")
    assert others_are_timed(outcome)


def test_without_a_ceiling_the_run_says_why_and_goes_on() -> None:
    machine = FakeMachine()

    def no_compiler(limit, device):
        raise RuntimeError("no nvcc: install the toolkit")

    outcome = run(machine, make_ceiling=no_compiler)
    for row in rows(outcome, CEILING):
        assert (row.status, row.reason) == ("failed", "RuntimeError: no nvcc: install the toolkit")
    assert others_are_timed(outcome)
    assert CEILING not in {roof.name for roof in outcome.results.roofs}


def test_a_broken_device_ends_the_run_and_keeps_what_was_measured() -> None:
    machine = FakeMachine()
    checked = product(machine)

    def breaks_the_second_case(a, b, out, config) -> None:
        if a.dtype == torch.float16:
            machine.broken = "an illegal memory access was encountered"
        checked(a, b, out, config)

    outcome = run(machine, backend("breaks", breaks_the_second_case), backend("never", checked))
    assert outcome.lost
    assert "breaks broke the device: an illegal memory access" in (outcome.stopped or "")
    complete, broken = outcome.results.cases
    assert {label(row) for row in timed_rows(complete)} == {"torch", "breaks", "never"}
    culprit = next(row for row in broken.rows if row.backend == "breaks")
    assert culprit.status == "failed"
    assert "never" not in {row.backend for row in broken.rows}
    assert json.loads(dumps(outcome.results))["run"]["complete"] is False


@pytest.mark.parametrize("interrupted_at", [50, 400])
def test_an_interrupt_keeps_what_was_measured(interrupted_at: int) -> None:
    machine = FakeMachine()
    bursts = 0

    def interrupt() -> None:
        nonlocal bursts
        bursts += 1
        if bursts == interrupted_at:
            raise KeyboardInterrupt

    machine.on_burst = interrupt
    outcome = run(machine, backend("x", product(machine, 1e-4)), rounds=40)
    assert outcome.interrupted
    assert outcome.stopped == "interrupted"
    assert bursts == interrupted_at
    kept = [row.timing for case in outcome.results.cases for row in case.rows if row.timing]
    assert kept
    # Each round takes 7 bursts; nobody lost more than the round that was interrupted.
    lengths = {
        len(times.samples_us) for case in outcome.results.cases[-1:] for times in [r.timing for r in case.rows] if times
    }
    assert max(lengths) - min(lengths) <= 1
    dumps(outcome.results)


def test_an_interrupt_before_the_first_sample_keeps_nothing() -> None:
    machine = FakeMachine()

    def interrupt(a, b, out, config) -> None:
        raise KeyboardInterrupt

    outcome = run(machine, backend("x", interrupt))
    assert outcome.interrupted
    assert outcome.results.cases == []


def test_each_is_held_to_the_bound_of_its_own_properties() -> None:
    machine = FakeMachine()
    rounding = dataclasses.replace(backend("rounding", product(machine)), properties=Properties(exact_integers=False))
    seen = {}

    def noting(a, b, c, properties):
        seen[properties.exact_integers] = True
        return verify(a, b, c, properties)

    plan = Plan(CASES[:1], ("*",), duty=DutyCycle(2.0, 1.0), rounds=1)
    Bench(
        plan,
        machine,
        [backend("torch", product(machine)), rounding],
        noting,
        make_ceiling=lambda limit, device: FakeCeiling(machine),
        control_size=16,
    ).run()
    assert seen == {True: True, False: True}
