"""The run loop: cases one after another; within a case, rounds in which everybody is timed once, in random order."""

from __future__ import annotations

import contextlib
import datetime
import random
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace

import torch

from hgemm.backends import Backend
from hgemm.bench import roofs
from hgemm.bench.contestants import Choice, choose
from hgemm.bench.environment import revision, scrub, sources_digest, torch_flags
from hgemm.bench.machine import Machine, Sample
from hgemm.bench.metrics import CEILING, COPY
from hgemm.bench.operands import Operands
from hgemm.bench.plan import Plan
from hgemm.bench.prepare import DeviceLost, Entry, Preparer, Verify, ensure_alive
from hgemm.bench.schema import CaseResult, Results, Row, Run
from hgemm.bench.suites import Case, Shape
from hgemm.cublaslt import tune_cublaslt
from hgemm.problem import Problem, UnsupportedProblem

CONTROL_SIZE = 4096
"""The control is torch's product of this size in bf16, the same in every case of every run."""

Options = Mapping[str, str | int | float | bool | list[str] | None]


class Observer:
    """Told how a run proceeds; this one says nothing to nobody."""

    def case_begins(self, case: Case, number: int, count: int) -> None: ...

    def doing(self, text: str, done: float) -> None:
        """What happens now, and how much of the run is done, from 0 to 1."""

    def case_ends(self, results: Results) -> None:
        """Everything measured so far; the last case is the one that ended."""


@dataclass
class Outcome:
    """What a run measured, and how it ended."""

    results: Results
    stopped: str | None = None
    """Why the run ended early; None if it did not."""
    interrupted: bool = False
    lost: bool = False


@dataclass
class Bench:
    """One run of a plan on one machine."""

    plan: Plan
    machine: Machine
    backends: Sequence[Backend]
    verify: Verify
    options: Options = field(default_factory=dict)
    observer: Observer = field(default_factory=Observer)
    make_ceiling: roofs.MakeCeiling = roofs.ceiling_kernel
    tune_cublaslt: Callable[[Problem], object] = tune_cublaslt
    control_size: int | None = None  # CONTROL_SIZE, but for tests
    _finished: list[CaseResult] = field(default_factory=list)
    _yardsticks: dict[str, Entry] = field(default_factory=dict)

    def run(self) -> Outcome:
        """Measures every case, or as many as the budget, an interrupt or the device allows; loses none of them."""
        self._began = self.machine.clock()
        utc = datetime.datetime.now(datetime.UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
        self._run = Run(utc, 0.0, False, sources_digest(), revision(), dict(self.options))
        self._environment = self.machine.environment()
        self._preparer = Preparer(self.machine, self.plan.mode, self.plan.duty, self.verify)
        self._order = random.Random(self.plan.seed)
        outcome = Outcome(self._results(complete=False))
        with self.machine.activate():
            try:
                for number, case in enumerate(self.plan.cases):
                    if number and self._spent():
                        outcome.stopped = "the budget is spent"
                        break
                    self.observer.case_begins(case, number, len(self.plan.cases))
                    if not self._case(case, number):
                        outcome.stopped = "the budget is spent"
            except KeyboardInterrupt:
                outcome.stopped, outcome.interrupted = "interrupted", True
            except DeviceLost as error:
                outcome.stopped, outcome.lost = str(error), True
            if not outcome.lost:
                for entry in self._yardsticks.values():
                    entry.close()
        outcome.results = self._results(complete=outcome.stopped is None)
        return outcome

    def _case(self, case: Case, number: int) -> bool:
        """Measures one case; False if the budget cut its rounds short."""
        shape = case.shape
        result = CaseResult(
            M=shape.M,
            N=shape.N,
            K=shape.K,
            dtype=case.dtype,
            layout=case.layout,
            strides={},
            distribution=case.distribution,
            seed=case.seed,
            flops=case.flops,
            compulsory_bytes=case.compulsory_bytes,
        )
        entries: list[Entry] = []
        try:
            self._prepare(case, result, entries, number)
            whole = self._rounds(entries, number)
        except (KeyboardInterrupt, DeviceLost) as error:
            if isinstance(error, DeviceLost) and all(entry.row is not error.row for entry in entries):
                entries.append(Entry(error.row))
            self._finish(result, entries, keep=isinstance(error, DeviceLost))
            raise
        self._finish(result, entries, keep=True)
        for entry in entries:
            if entry.row.role == "contestant":
                entry.close()
        self.machine.release()
        return whole

    def _finish(self, result: CaseResult, entries: list[Entry], *, keep: bool) -> None:
        """Files a case; one that was interrupted before anybody was timed is forgotten unless ``keep``."""
        result.rows = [entry.settle() for entry in entries]
        if keep or any(row.timing is not None for row in result.rows):
            self._finished.append(result)
            self.observer.case_ends(self._results(complete=False))

    def _prepare(self, case: Case, result: CaseResult, entries: list[Entry], number: int) -> None:
        """Appends everybody to ``entries``, one by one, so that an interrupt keeps those before it."""
        for name in (*roofs.names(case.dtype, self._finished), "control"):
            self.observer.doing(f"preparing {name}", self._done(number, 0.0))
            entries.append(self._yardstick(name, case).fresh())
        operands = self._allocate(case, rotating=self.plan.mode == "rotating")
        if isinstance(operands, str):
            entries.append(Entry(Row("contestant", "every backend", None, "failed", operands)))
            return
        result.strides = operands.strides()
        first = operands.sets[0]
        problem = Problem.from_tensors(first.a, first.b, first.out)
        choices = choose(self.plan.patterns, self.backends, problem)
        if self.plan.tune_cublaslt and any(choice.backend.name == "cublaslt" for choice in choices):
            self.observer.doing("tuning cublaslt", self._done(number, 0.0))
            with contextlib.suppress(UnsupportedProblem):  # its row will say the same
                self.tune_cublaslt(problem)
        for index, choice in enumerate(choices):
            name = f"{choice.backend.name} {choice.config or ''}".strip()
            self.observer.doing(f"checking {name}", self._done(number, 0.5 * index / len(choices)))
            entries.append(self._preparer.contestant(choice, case, operands))

    def _allocate(self, case: Case, *, rotating: bool) -> Operands | str:
        """The operands, or why there is no room for them."""
        try:
            return Operands.allocate(case, self.machine, rotating=rotating)
        except torch.OutOfMemoryError:
            gigabytes = case.compulsory_bytes / 1e9, self.machine.free_bytes() / 1e9
            return "the operands take {:.1f} GB and {:.1f} GB of device memory are free".format(*gigabytes)

    def _yardstick(self, name: str, case: Case) -> Entry:
        """A roof or the control: prepared when first needed, then kept for the whole run."""
        key = f"{name} {case.dtype}" if name == CEILING else name
        if key not in self._yardsticks:
            self._yardsticks[key] = self._prepare_yardstick(name, case.torch_dtype)
        return self._yardsticks[key]

    def _prepare_yardstick(self, name: str, dtype: torch.dtype) -> Entry:
        machine = self.machine
        if name == COPY:
            return self._preparer.yardstick(name, lambda: roofs.copy(machine))
        if name != "control":
            limit = roofs.Limit(name, dtype)
            return self._preparer.yardstick(name, lambda: roofs.ceiling(limit, machine, self.make_ceiling))
        size = self.control_size or CONTROL_SIZE
        case = Case(Shape(size, size, size), "bf16")
        operands = self._allocate(case, rotating=False)
        if isinstance(operands, str):
            return Entry(Row("control", "torch", None, "failed", operands))
        backend = next(backend for backend in self.backends if backend.name == "torch")
        return self._preparer.contestant(Choice(backend, None), case, operands, role="control")

    def _rounds(self, entries: list[Entry], number: int) -> bool:
        running = [entry for entry in entries if entry.burst is not None]
        for round_number in range(self.plan.rounds):
            if round_number and self._spent():
                return False
            for index, entry in enumerate(self._order.sample(running, len(running))):
                share = (round_number + index / len(running)) / self.plan.rounds
                text = f"round {round_number + 1} of {self.plan.rounds}"
                self.observer.doing(text, self._done(number, 0.5 + 0.5 * share))
                self._time(entry, round_number)
        return True

    def _time(self, entry: Entry, round_number: int) -> None:
        burst, timing = entry.burst, entry.timing
        assert burst is not None and timing is not None
        self.machine.sleep(self.plan.duty.idle_ms * 1e-3)
        try:
            for _ in range(self.plan.duty.lead_in_bursts):
                burst.run()
            sample = burst.run()
        except Exception as error:
            timing.dropped += 1
            entry.row.reason = scrub(f"{type(error).__name__}: {error}")
            if not timing.samples_us:
                entry.row.status = "failed"
            ensure_alive(self.machine, entry.row, entry.row.reason)
            return
        entry.row.status = "ok"
        self._keep(entry, sample, round_number)

    def _keep(self, entry: Entry, sample: Sample, round_number: int) -> None:
        timing, reading = entry.timing, sample.reading
        assert timing is not None
        timing.rounds.append(round_number)
        timing.at_s.append(round(sample.at - self._began, 4))
        timing.samples_us.append(float(f"{sample.seconds * 1e6:.6g}"))
        timing.clocks.sm_mhz.append(reading.sm_mhz)
        timing.clocks.memory_mhz.append(reading.memory_mhz)
        timing.clocks.power_w.append(reading.power_w)
        timing.clocks.temperature_c.append(reading.temperature_c)
        timing.clocks.throttle.append("+".join(reading.throttle))

    def _spent(self) -> bool:
        return self.plan.budget_s is not None and self.machine.clock() - self._began > self.plan.budget_s

    def _done(self, number: int, share: float) -> float:
        return (number + share) / len(self.plan.cases)

    def _results(self, *, complete: bool) -> Results:
        return Results(
            run=replace(self._run, seconds=round(self.machine.clock() - self._began, 1), complete=complete),
            env=self._environment,
            flags=torch_flags(),
            roofs=roofs.collect(self._finished),
            cases=list(self._finished),
        )
