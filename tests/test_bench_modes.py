"""Modes apart: what is called, on what clock, with how many rows; and batches, whose every product is looked at."""

import dataclasses
import itertools

import pytest
import torch
from bench_machine import FakeCeiling, FakeMachine, backend, product, verify

import hgemm
from hgemm.bench.measure import Bench
from hgemm.bench.plan import DutyCycle, Plan
from hgemm.bench.schema import CaseResult, Row
from hgemm.bench.suites import Case, Shape

SHAPE = Shape(24, 16, 40)
CASE = Case(SHAPE)


def measured(machine: FakeMachine, *contestants, case: Case = CASE, **options) -> CaseResult:
    plan = Plan((case,), ("*",), duty=options.pop("duty", DutyCycle(2.0, 1.0)), rounds=2, **options)
    backends = [backend("torch", product(machine)), *contestants]
    make = lambda limit, device: FakeCeiling(machine)  # noqa: E731
    (result,) = Bench(plan, machine, backends, verify, make_ceiling=make, control_size=16).run().results.cases
    return result


def rows(case: CaseResult, name: str, role: str = "contestant") -> list[Row]:
    return [row for row in case.rows if row.backend == name and row.role == role]


@pytest.fixture
def slow_matmul(monkeypatch: pytest.MonkeyPatch) -> tuple[FakeMachine, list[bool]]:
    """hgemm.matmul at 1 ms a call, and whether each call brought its out."""
    machine, with_out = FakeMachine(), []
    matmul = hgemm.matmul

    def slow(*arguments, **keywords):
        machine.spend(1e-3)
        with_out.append(keywords.get("out") is not None)
        return matmul(*arguments, **keywords)

    monkeypatch.setattr(hgemm, "matmul", slow)
    hgemm.register_backend("mine", lambda a, b, out, config: out.copy_(a.float() @ b.float()))
    return machine, with_out


def test_end_to_end_every_contestant_is_called_with_out_and_without(
    slow_matmul: tuple[FakeMachine, list[bool]],
) -> None:
    machine, with_out = slow_matmul
    case = measured(machine, hgemm.backends()["mine"], mode="e2e")
    mine = rows(case, "mine")
    assert [row.allocates for row in mine] == [False, True]
    for row in mine:
        assert row.timing is not None
        assert (row.timing.mode, row.timing.timer, row.timing.operand_sets) == ("e2e", "wall", 1)
        assert row.timing.samples_us == pytest.approx([1100.0] * 2)
        # The machine takes as long again until the device has finished.
        assert row.timing.finished_us == pytest.approx([2200.0] * 2)
    # First all calls of the row with out=, then all without; then the rounds.
    assert with_out[0]
    assert with_out.index(False) > 1
    assert True in with_out[with_out.index(False) :]


def test_the_yardstick_of_end_to_end_time_is_torch_alone(slow_matmul: tuple[FakeMachine, list[bool]]) -> None:
    machine, with_out = slow_matmul
    case = measured(machine, mode="e2e")
    assert with_out == []
    plain = rows(case, "torch")
    assert [(row.allocates, row.status) for row in plain] == [(False, "ok"), (True, "ok")]
    assert [row.timing.samples_us for row in plain if row.timing] == [pytest.approx([100.0] * 2)] * 2
    # The control is the device's time in every mode, or runs in different modes could not be told apart from drift.
    (control,) = rows(case, "torch", "control")
    assert control.timing is not None
    assert (control.timing.mode, control.timing.timer, control.timing.finished_us) == ("kernel", "graph", [])


def test_a_wrong_product_that_the_call_allocates_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    machine = FakeMachine()
    monkeypatch.setattr(
        hgemm,
        "matmul",
        lambda a, b, **keywords: (
            keywords["out"].copy_(a.float() @ b.float()) if "out" in keywords else torch.zeros(24, 16, dtype=a.dtype)
        ),
    )
    statuses = [row.status for row in rows(measured(machine, backend("x", product(machine)), mode="e2e"), "x")]
    assert statuses == ["ok", "wrong"]


@pytest.mark.parametrize(("mode", "timer", "sets"), [("cold", "events", 1), ("kernel", "graph", 1)])
def test_cold_calls_are_timed_one_by_one(mode: str, timer: str, sets: int) -> None:
    case = measured(FakeMachine(), mode=mode)
    (row,) = rows(case, "torch")
    assert row.timing is not None
    assert (row.timing.mode, row.timing.timer, row.timing.operand_sets) == (mode, timer, sets)
    (control,) = rows(case, "torch", "control")
    assert control.timing is not None
    assert (control.timing.mode, control.timing.timer) == ("kernel", "graph")


@pytest.mark.parametrize("mode", ["rotating", "kernel", "cold", "e2e"])
def test_sustained_running_is_there_in_every_mode(mode: str) -> None:
    machine = FakeMachine()
    (row, *_) = rows(measured(machine, mode=mode, duty=DutyCycle.sustained(2.0)), "torch")
    assert row.timing is not None
    assert (row.timing.idle_ms, row.timing.lead_in_bursts) == (0.0, 1)
    assert set(machine.slept) == {0.0}


def test_a_batch_is_one_call_with_the_work_of_all() -> None:
    machine = FakeMachine()
    shapes = []

    def batched(a, b, out, config) -> None:
        shapes.append((a.shape, a.stride(), b.shape, b.stride(), out.shape))
        out.copy_(a.float() @ b.float())

    case = measured(machine, backend("batched", batched), case=Case(dataclasses.replace(SHAPE, batch=3), layout="nt"))
    # 3 x (24 x 40), rows of 40; 3 x (40 x 16), columns of 40.
    assert set(shapes) == {((3, 24, 40), (960, 40, 1), (3, 40, 16), (640, 1, 40), (3, 24, 16))}
    (row,) = rows(case, "batched")
    assert row.timing is not None
    # 2 x 24 x 16 x 40 operations and 960 + 640 + 384 elements of two bytes, three times.
    assert (case.batch, case.flops, row.timing.flops_per_call) == (3, 92160, 92160)
    assert (case.compulsory_bytes, row.timing.bytes_per_call) == (11904, 11904)


@pytest.mark.parametrize("place", [0, 1, 2])
def test_one_wrong_product_of_a_batch_is_found(place: int) -> None:
    machine = FakeMachine()

    def wrong_in_one(a, b, out, config) -> None:
        out.copy_(a.float() @ b.float())
        out[place].neg_()

    case = measured(machine, backend("wrong", wrong_in_one), case=Case(dataclasses.replace(SHAPE, batch=3)))
    (row,) = rows(case, "wrong")
    assert (row.status, row.timing) == ("wrong", None)


def test_of_a_large_batch_some_are_held_against_fp64_the_first_and_the_last_among_them() -> None:
    machine = FakeMachine()
    seen = []

    def counting(a, b, c, properties):
        seen.append((a.storage_offset() // 32, c.shape))
        return verify(a, b, c, properties)

    plan = Plan((Case(Shape(8, 8, 4, batch=100)),), ("torch",), duty=DutyCycle(2.0, 1.0), rounds=1)
    make = lambda limit, device: FakeCeiling(machine)  # noqa: E731
    Bench(plan, machine, [backend("torch", product(machine))], counting, make_ceiling=make, control_size=16).run()
    places = [place for place, shape in seen if shape == (8, 8)]
    assert len(places) == 16
    assert (places[0], places[-1]) == (0, 99)
    assert max(b - a for a, b in itertools.pairwise(places)) <= 7
