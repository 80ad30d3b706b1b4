"""The run loop: cases one after another; within a case, rounds in which everybody is timed once, in random order."""

from __future__ import annotations

import contextlib
import datetime
import functools
import random
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace

import torch

from hgemm.backends import Backend
from hgemm.bench import roofs
from hgemm.bench.bursts import Sample
from hgemm.bench.contestants import Choice, choose
from hgemm.bench.environment import revision, scrub, sources_digest, torch_flags
from hgemm.bench.machine import Machine
from hgemm.bench.metrics import label
from hgemm.bench.operands import Operands, rotation
from hgemm.bench.outcome import Observer, Options, Outcome, end_process
from hgemm.bench.plan import Plan
from hgemm.bench.preflight import Reply
from hgemm.bench.prepare import DeviceLost, Entry, Preparer, Verify, ensure_alive, never, untimed_row
from hgemm.bench.results import FileFull
from hgemm.bench.resume import Previous, nothing_before
from hgemm.bench.schema import CaseResult, Results, Row, Run
from hgemm.bench.suites import Case
from hgemm.bench.watchdog import Watchdog
from hgemm.bench.yardsticks import CONTROL, Yardsticks
from hgemm.cublaslt import tune_cublaslt
from hgemm.problem import Problem, UnsupportedProblem

# Where two algorithms come out too close for so short a look, either is the fastest.
TUNE = functools.partial(tune_cublaslt, rounds=3, milliseconds=1.0)

SPENT = "the budget is spent"


@dataclass
class Bench:
    """One run of a plan on one machine."""

    plan: Plan
    machine: Machine
    backends: Sequence[Backend]
    verify: Verify
    options: Options = field(default_factory=dict)
    observer: Observer = field(default_factory=Observer)
    preflight: Callable[[Choice, Case], Reply] = never
    previous: Previous = field(default_factory=nothing_before)
    abandon: Callable[[Outcome], None] = end_process
    """Called from another thread when this one hangs: it has to end the process, which nothing else can."""
    make_ceiling: roofs.MakeCeiling = roofs.ceiling_kernel
    tune_cublaslt: Callable[[Problem], object] = TUNE
    control_size: int | None = None
    """Of the control product; None for the one that makes runs comparable."""
    _done: dict[int, CaseResult] = field(default_factory=dict)
    _at_work: tuple[int, CaseResult, list[Entry], Entry] | None = None
    _rest_s: float = 0.0
    """Idle before the next burst, by the length of the last one."""

    def run(self) -> Outcome:
        """Measures every case, or as many as the budget, an interrupt or the device allows; loses none of them."""
        self._began = self.machine.clock()
        self._run = self.previous.run or Run(_utc(), 0.0, False, sources_digest(), revision(), dict(self.options))
        self._environment = self.machine.environment()
        preparer = Preparer(self.machine, self.plan.mode, self.plan.duty, self.verify, self._first_call)
        self._preparer = preparer
        self._yardsticks = Yardsticks(self.machine, preparer, self.backends, self.make_ceiling, self.control_size)
        self._done = {
            number: kept for number, case in enumerate(self.plan.cases) if (kept := self.previous.complete(case))
        }
        self._kept = frozenset(self._done)
        outcome = Outcome(self._results(complete=False))
        with self.machine.activate(), Watchdog(self.plan.limit_s, self._give_up) as self._watchdog:
            try:
                outcome.stopped = self._cases()
            except KeyboardInterrupt:
                outcome.stopped, outcome.interrupted = "interrupted", True
            except DeviceLost as error:
                outcome.stopped, outcome.lost = str(error), True
            except FileFull as error:
                outcome.stopped, outcome.full = str(error), True
            if not outcome.lost:
                self._yardsticks.close()
        outcome.results = self._results(complete=outcome.stopped is None)
        return outcome

    def _cases(self) -> str | None:
        """Why it ended early; None if it did not."""
        pending = [number for number in range(len(self.plan.cases)) if number not in self._done]
        for position, number in enumerate(pending):
            if position and self._spent():
                return SPENT
            case = self.plan.cases[number]
            self.observer.case_begins(case, number, len(self.plan.cases))
            if not self._case(case, number):
                return SPENT
        return None

    def _case(self, case: Case, number: int) -> bool:
        """Measures one case; False if the budget cut its rounds short."""
        result = _result(case)
        entries: list[Entry] = []
        try:
            self._prepare(case, result, entries, number)
            result.complete = self._rounds(result, entries, number)
        except (KeyboardInterrupt, DeviceLost) as error:
            result.complete = False
            self._finish(number, result, entries, keep=isinstance(error, DeviceLost))
            raise
        self._finish(number, result, entries, keep=True)
        for entry in entries:
            if entry.row.role == "contestant":
                entry.close()
        self.machine.release()
        return result.complete

    def _finish(self, number: int, result: CaseResult, entries: list[Entry], *, keep: bool) -> None:
        """Files a case; one that was interrupted before anybody was timed is forgotten unless ``keep``."""
        result.rows = [entry.settle() for entry in entries]
        if keep or any(row.timing is not None for row in result.rows):
            self._done[number] = result
            try:
                self.observer.case_ends(result, self._results(complete=False))
            except FileFull:
                del self._done[number]
                raise

    def _give_up(self) -> None:
        """Files what there is, while the main thread waits for something that does not end."""
        if self._at_work is None:
            return
        number, result, entries, entry = self._at_work
        # Copies, because the main thread may come back after all before the process ends.
        reason = f"did not end within {self.plan.limit_s:g} s"
        lost = replace(entry.row, status="hangs", reason=reason, timing=None)
        others = [Entry(replace(other.row), timing=other.timing) for other in entries if other is not entry]
        with contextlib.suppress(FileFull):
            self._finish(number, replace(result, complete=False), [*others, Entry(lost)], keep=True)
        gone = Outcome(self._results(complete=False), f"{label(lost)} {reason}", lost=True)
        self.abandon(gone)

    def _first_call(self, choice: Choice, case: Case) -> Reply:
        """The preflight, which has a limit of its own."""
        with self._watchdog.pause():
            return self.preflight(choice, case)

    @contextlib.contextmanager
    def _watched(self, number: int, result: CaseResult, entries: list[Entry], entry: Entry) -> Iterator[None]:
        self._at_work = number, result, entries, entry
        with self._watchdog.watch():
            yield

    def _prepare(self, case: Case, result: CaseResult, entries: list[Entry], number: int) -> None:
        """Appends everybody to ``entries``, one by one, so that an interrupt keeps those before it."""
        for name in (*roofs.names(case.dtype, list(self._done.values())), CONTROL):
            self.observer.doing(f"preparing {name}", self._progress(number, 0.0))
            entry = self._yardsticks.entry(name, case.dtype)
            entries.append(entry)
            with self._watched(number, result, entries, entry):
                self._yardsticks.prepare(name, case.dtype, entry)
        operands = self._allocate(case)
        if isinstance(operands, str):
            entries.append(Entry(Row("contestant", "every backend", None, "failed", operands)))
            return
        result.strides = operands.strides()
        first = operands.sets[0]
        problem = Problem.from_tensors(first.a, first.b, first.out)
        choices = choose(self.plan.patterns, self.backends, problem)
        if self.plan.tune_cublaslt and any(choice.backend.name == "cublaslt" for choice in choices):
            self.observer.doing("tuning cublaslt", self._progress(number, 0.0))
            with contextlib.suppress(UnsupportedProblem):  # its row will say the same
                self.tune_cublaslt(problem)
        calls = [(choice, allocates) for choice in choices for allocates in self.plan.allocates]
        for index, (choice, allocates) in enumerate(calls):
            row = untimed_row("contestant", choice.backend.name, choice.config, allocates=allocates)
            self.observer.doing(f"checking {label(row)}", self._progress(number, 0.5 * index / len(calls)))
            if given_up := self.previous.given_up(case, row):
                entries.append(Entry(given_up))
                continue
            entries.append(entry := Entry(row))
            with self._watched(number, result, entries, entry):
                self._preparer.contestant(entry, choice, case, operands)

    def _allocate(self, case: Case) -> Operands | str:
        """The operands, or why there is no room for them."""
        try:
            count = rotation(case, self.machine) if self.plan.mode == "rotating" else 1
            return Operands.allocate(case, self.machine.device, count)
        except torch.OutOfMemoryError:
            gigabytes = case.compulsory_bytes / 1e9, self.machine.free_bytes() / 1e9
            return "the operands take {:.1f} GB and {:.1f} GB of device memory are free".format(*gigabytes)

    def _rounds(self, result: CaseResult, entries: list[Entry], number: int) -> bool:
        """An untimed round, so that the board is as warm as the rounds keep it and no longer as hot as the checks in
        fp64 left it, and then the timed ones. False if the budget cut them short."""
        running = [entry for entry in entries if entry.burst is not None]
        order = random.Random(f"{self.plan.seed} {number}")
        self._rest_s = self.plan.duty.rest_s(0.0)
        for round_number in range(-1, self.plan.rounds):
            if round_number > 0 and self._spent():
                return False
            for index, entry in enumerate(order.sample(running, len(running))):
                share = (round_number + 1 + index / len(running)) / (self.plan.rounds + 1)
                text = f"round {round_number + 1} of {self.plan.rounds}" if round_number >= 0 else "warming up"
                self.observer.doing(text, self._progress(number, 0.5 + 0.5 * share))
                with self._watched(number, result, entries, entry):
                    self._time(entry, round_number)
        return True

    def _time(self, entry: Entry, round_number: int) -> None:
        """Times one burst; that of round -1 is not kept."""
        burst, timing, row = entry.burst, entry.timing, entry.row
        assert burst is not None and timing is not None
        self.machine.sleep(self._rest_s)
        try:
            for _ in range(self.plan.duty.lead_in_bursts):
                burst.run()
            sample = burst.run()
            self._rest_s = self.plan.duty.rest_s(sample.seconds * burst.calls)
        except Exception as error:
            timing.dropped += 1
            row.reason = scrub(f"{type(error).__name__}: {error}")
            if not timing.samples_us:
                row.status = "failed"
            ensure_alive(self.machine, row, row.reason)
            return
        if round_number < 0:
            return
        if row.status == "interrupted":
            row.reason = None
        row.status = "ok"
        self._keep(entry, sample, round_number)

    def _keep(self, entry: Entry, sample: Sample, round_number: int) -> None:
        timing, reading = entry.timing, sample.reading
        assert timing is not None
        timing.rounds.append(round_number)
        timing.at_s.append(round(sample.at - self._began + self._run.seconds, 4))
        timing.samples_us.append(_microseconds(sample.seconds))
        if sample.finished is not None:
            timing.finished_us.append(_microseconds(sample.finished))
        timing.clocks.sm_mhz.append(reading.sm_mhz)
        timing.clocks.counted_mhz.append(reading.counted_mhz)
        timing.clocks.memory_mhz.append(reading.memory_mhz)
        timing.clocks.power_w.append(reading.power_w)
        timing.clocks.temperature_c.append(reading.temperature_c)
        timing.clocks.throttle.append("+".join(reading.throttle))

    def _spent(self) -> bool:
        return self.plan.budget_s is not None and self.machine.clock() - self._began > self.plan.budget_s

    def _progress(self, number: int, share: float) -> float:
        """Of what this sitting has to do; the cases of an earlier one are no part of it."""
        before = sum(done < number for done in self._kept)
        return (number - before + share) / max(1, len(self.plan.cases) - len(self._kept))

    def _results(self, *, complete: bool) -> Results:
        cases = [self._done[number] for number in sorted(self._done)]
        seconds = self._run.seconds + self.machine.clock() - self._began
        return Results(
            run=replace(self._run, seconds=round(seconds, 4), complete=complete),
            env=self._environment,
            flags=torch_flags(),
            roofs=roofs.collect(cases),
            cases=cases,
        )


def _result(case: Case) -> CaseResult:
    shape = case.shape
    return CaseResult(
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
        batch=shape.batch,
        label=shape.label,
    )


def _microseconds(seconds: float) -> float:
    return float(f"{seconds * 1e6:.6g}")


def _utc() -> str:
    return datetime.datetime.now(datetime.UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
