"""From a contestant to something that can be timed: refused, crashed or checked, then captured and checked again."""

from __future__ import annotations

import copy
import dataclasses
import math
from collections.abc import Callable
from typing import Protocol

from torch import Tensor

from hgemm.bench.contestants import Choice
from hgemm.bench.environment import scrub
from hgemm.bench.machine import Burst, Call, Machine
from hgemm.bench.metrics import label
from hgemm.bench.operands import Operands, OperandSet
from hgemm.bench.plan import DutyCycle
from hgemm.bench.roofs import Yardstick
from hgemm.bench.schema import Check, Mode, Role, Row, Status, Timing
from hgemm.bench.suites import Case
from hgemm.problem import Problem, UnsupportedProblem

TRIAL_CALLS = 8
"""Calls timed to find out how many fill a burst."""


class Verdict(Protocol):
    """What ``hgemm.check.verify`` returns."""

    @property
    def error_over_bound(self) -> float: ...

    @property
    def passed(self) -> bool: ...


Verify = Callable[[Tensor, Tensor, Tensor], Verdict]
"""verify(a, b, c): is c the product of a and b, within its bound?"""


class DeviceLost(RuntimeError):
    """The contestant of ``row`` broke the device: every call reports an error, and nothing more can be measured."""

    def __init__(self, row: Row, error: Exception) -> None:
        super().__init__(scrub(f"{label(row)} broke the device: {error}"))
        self.row = row


@dataclasses.dataclass
class Entry:
    """One contestant of one case; ``burst`` is None, and ``row`` says why, if it cannot be timed."""

    row: Row
    burst: Burst | None = None
    timing: Timing | None = None

    def fresh(self) -> Entry:
        """The same burst with a row of its own: for a yardstick, which is prepared once and timed in every case."""
        return Entry(copy.deepcopy(self.row), self.burst, copy.deepcopy(self.timing))

    def settle(self) -> Row:
        """The finished row: with its times, or with the reason for having none."""
        if self.burst is not None and self.timing is not None:
            if self.timing.samples_us:
                self.row.timing = self.timing
            elif self.timing.dropped == 0:
                self.row.status, self.row.reason = "interrupted", "the run ended before the first sample"
        return self.row

    def close(self) -> None:
        if self.burst is not None:
            self.burst.close()


@dataclasses.dataclass(frozen=True)
class Preparer:
    """Prepares entries on one machine under one mode and duty cycle."""

    machine: Machine
    mode: Mode
    duty: DutyCycle
    verify: Verify

    def contestant(self, choice: Choice, case: Case, operands: Operands, role: Role = "contestant") -> Entry:
        """Checks a contestant on the very operands that it will be timed on, then captures its burst."""
        row = Row(role, choice.backend.name, choice.config, "ok")
        first = operands.sets[0]
        host = self.mode == "e2e" and role == "contestant"

        def attempt() -> Entry:
            if refusal := choice.refusal(Problem.from_tensors(first.a, first.b, first.out)):
                return Entry(not_timed(row, *refusal))
            call = choice.user_call(operands) if host else choice.kernel_call(operands)
            operands.poison()
            call(0)
            self.machine.synchronize()
            if not self._passes(row, first, "its result"):
                return Entry(row)
            expected = first.out.clone()
            row.kernels = self.machine.kernels(call)
            burst = self._burst(call, ring=len(operands), host=host)
            if not self._repeats(row, burst, operands, expected):
                burst.close()
                return Entry(row)
            work = Yardstick(call, case.flops, case.compulsory_bytes)
            return Entry(row, burst, self._timing("kernel" if role == "control" else self.mode, burst, work, operands))

        return self._guarded(row, attempt)

    def yardstick(self, name: str, make: Callable[[], Yardstick]) -> Entry:
        """Prepares a roof, which has no product to check."""
        row = Row("roof", name, None, "ok")

        def attempt() -> Entry:
            work = make()
            work.call(0)
            self.machine.synchronize()
            row.kernels = self.machine.kernels(work.call)
            burst = self._burst(work.call, ring=1, host=False)
            burst.run()
            return Entry(row, burst, self._timing("kernel", burst, work, None))

        return self._guarded(row, attempt)

    def _guarded(self, row: Row, attempt: Callable[[], Entry]) -> Entry:
        try:
            return attempt()
        except UnsupportedProblem as error:
            return Entry(not_timed(row, "refused", str(error)))
        except Exception as error:  # a contestant may raise anything: its row says so and the run goes on
            reason = f"{type(error).__name__}: {error}"
            ensure_alive(self.machine, row, reason)
            return Entry(not_timed(row, "failed", reason))

    def _passes(self, row: Row, s: OperandSet, what: str) -> bool:
        unwritten = int(s.out.isnan().sum())
        if unwritten:  # the operands are finite, so only the poison is NaN; the verdict may sample rows
            row.check = Check(None, False)
            not_timed(row, "wrong", f"{what} leaves {unwritten:,} of {s.out.numel():,} elements unwritten or NaN")
            return False
        verdict = self.verify(s.a, s.b, s.out)
        error = verdict.error_over_bound
        finite = math.isfinite(error)
        row.check = Check(error if finite else None, verdict.passed)
        if not verdict.passed:
            fault = f"has an error of {error:.3g} times its bound" if finite else "is not finite where it must be"
            not_timed(row, "wrong", f"{what} {fault}")
        return verdict.passed

    def _repeats(self, row: Row, burst: Burst, operands: Operands, expected: Tensor) -> bool:
        """Whether the burst itself computes the product: a graph that captured nothing leaves its poison behind."""
        operands.poison()
        burst.run()
        self.machine.synchronize()
        for s in operands.sets[: burst.calls]:
            same = bool((s.out == expected).all())
            if not same and not self._passes(row, s, "its result in a burst of calls"):
                return False
        return True

    def _burst(self, call: Call, *, ring: int, host: bool) -> Burst:
        """A burst as long as the duty cycle asks for."""
        wanted = self.duty.burst_ms * 1e-3
        seconds = self._seconds(call, 1, host)
        if seconds * TRIAL_CALLS < wanted:
            seconds = self._seconds(call, TRIAL_CALLS, host)
        return self.machine.burst(call, max(1, round(wanted / max(seconds, 1e-7))), ring=ring, host=host)

    def _seconds(self, call: Call, calls: int, host: bool) -> float:
        trial = self.machine.burst(call, calls, host=host)
        try:
            trial.run()
            return trial.run().seconds
        finally:
            trial.close()

    def _timing(self, mode: Mode, burst: Burst, work: Yardstick, operands: Operands | None) -> Timing:
        sets, size = (len(operands), operands.nbytes) if operands else (1, work.working_set)
        return Timing(
            mode=mode,
            timer=burst.timer,
            burst_ms=self.duty.burst_ms,
            idle_ms=self.duty.idle_ms,
            lead_in_bursts=self.duty.lead_in_bursts,
            calls=burst.calls,
            flops_per_call=work.flops,
            bytes_per_call=work.bytes,
            operand_sets=sets,
            working_set_bytes=size,
        )


def ensure_alive(machine: Machine, row: Row, reason: str) -> None:
    """Raises DeviceLost, with the row marked as failed, if the device no longer answers after an exception."""
    try:
        machine.synchronize()
    except Exception as error:
        raise DeviceLost(not_timed(row, "failed", reason), error) from None


def not_timed(row: Row, status: Status, reason: str) -> Row:
    """Marks a row with why it has no times."""
    row.status, row.reason = status, scrub(reason)
    return row
