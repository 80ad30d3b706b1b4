"""From a contestant to something that can be timed: refused, crashed or checked, then captured and checked again."""

from __future__ import annotations

import copy
import dataclasses
import math
from collections.abc import Callable
from typing import Protocol

import torch
from torch import Tensor

from hgemm.backends import Properties
from hgemm.bench.bursts import Burst, BurstTiming, Call
from hgemm.bench.contestants import Choice
from hgemm.bench.environment import scrub
from hgemm.bench.machine import Machine
from hgemm.bench.metrics import label
from hgemm.bench.operands import Operands, OperandSet
from hgemm.bench.plan import DutyCycle
from hgemm.bench.preflight import Reply
from hgemm.bench.roofs import Yardstick
from hgemm.bench.schema import Check, Mode, Role, Row, Status, Timing
from hgemm.bench.suites import Case
from hgemm.problem import Problem, UnsupportedProblem

TRIAL_CALLS = 8
"""Calls timed to find out how many fill a burst."""

FEWEST_HOST_CALLS = 4
"""In a burst of host time, where a product may take the device as long as a whole burst."""

VERIFIED = 16
"""Products of a batch that are held against fp64."""

BURSTS: dict[Mode, BurstTiming] = {"kernel": "device", "rotating": "device", "cold": "cold", "e2e": "host"}
"""How each mode times a burst."""


class Verdict(Protocol):
    """What ``hgemm.check.verify`` returns."""

    @property
    def error_over_bound(self) -> float: ...

    @property
    def passed(self) -> bool: ...


Verify = Callable[[Tensor, Tensor, Tensor, Properties], Verdict]
"""verify(a, b, c, properties): is c the product of a and b, within the bound of a backend with these properties?"""


class DeviceLost(RuntimeError):
    """The contestant of ``row`` broke the device: every call reports an error, and nothing more can be measured."""

    def __init__(self, row: Row, error: Exception) -> None:
        super().__init__(scrub(f"{label(row)} broke the device: {error}"))
        self.row = row


UNTIMED = "the run ended before the first sample"


def untimed_row(role: Role, backend: str, config: str | None = None, *, allocates: bool = False) -> Row:
    """A row as it stands until a sample is taken or something is found that speaks against taking one."""
    return Row(role, backend, config, "interrupted", UNTIMED, allocates=allocates)


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
        if self.timing is not None and self.timing.samples_us:
            self.row.timing = self.timing
        return self.row

    def close(self) -> None:
        if self.burst is not None:
            self.burst.close()


def never(choice: Choice, case: Case) -> Reply:
    """A preflight that tries nobody."""
    return None


@dataclasses.dataclass(frozen=True)
class Preparer:
    """Prepares entries on one machine under one mode and duty cycle."""

    machine: Machine
    mode: Mode
    duty: DutyCycle
    verify: Verify
    preflight: Callable[[Choice, Case], Reply] = never

    def contestant(self, entry: Entry, choice: Choice, case: Case, operands: Operands) -> None:
        """Checks a contestant on the very operands that it will be timed on, then captures its burst."""
        row, first, properties = entry.row, operands.sets[0], choice.backend.properties
        mode: Mode = "kernel" if row.role == "control" else self.mode
        timing = BURSTS[mode]

        def attempt() -> None:
            if refusal := choice.refusal(Problem.from_tensors(first.a, first.b, first.out)):
                not_timed(row, *refusal)
                return
            if reply := self.preflight(choice, case):
                not_timed(row, *reply)
                return
            if timing == "host":
                call = choice.user_call(operands, allocates=row.allocates)
            else:
                call = choice.kernel_call(operands)
            operands.poison()
            product = call(0)
            self.machine.synchronize()
            result = product if row.allocates and isinstance(product, Tensor) else first.out
            if not self._passes(row, properties, dataclasses.replace(first, out=result), "its result"):
                return
            expected = None if row.allocates else first.out.clone()
            del product, result
            row.kernels = self.machine.kernels(call)
            burst = self._burst(call, ring=len(operands), timing=timing)
            if expected is not None and not self._repeats(row, properties, burst, operands, expected):
                burst.close()
                return
            work = Yardstick(call, case.flops, case.compulsory_bytes)
            entry.burst, entry.timing = burst, self._timing(mode, burst, work, operands)

        self._guarded(row, attempt)

    def yardstick(self, entry: Entry, make: Callable[[], Yardstick]) -> None:
        """Prepares a roof, which has no product to check."""

        def attempt() -> None:
            work = make()
            work.call(0)
            self.machine.synchronize()
            entry.row.kernels = self.machine.kernels(work.call)
            burst = self._burst(work.call, ring=1, timing="device")
            burst.run()
            entry.burst, entry.timing = burst, self._timing("kernel", burst, work, None)

        self._guarded(entry.row, attempt)

    def _guarded(self, row: Row, attempt: Callable[[], None]) -> None:
        try:
            attempt()
        except UnsupportedProblem as error:
            not_timed(row, "refused", str(error))
        except Exception as error:  # a contestant may raise anything: its row says so and the run goes on
            reason = f"{type(error).__name__}: {error}"
            ensure_alive(self.machine, row, reason)
            not_timed(row, "failed", reason)

    def _passes(self, row: Row, properties: Properties, s: OperandSet, what: str) -> bool:
        unwritten = int(s.out.isnan().sum())
        if unwritten:  # the operands are finite, so only the poison is NaN
            row.check = Check(None, False)
            not_timed(row, "wrong", f"{what} leaves {unwritten:,} of {s.out.numel():,} elements unwritten or NaN")
            return False
        verdict = self._verdict(properties, s)
        error = verdict.error_over_bound
        finite = math.isfinite(error)
        row.check = Check(error if finite else None, verdict.passed)
        if not verdict.passed:
            fault = f"has an error of {error:.3g} times its bound" if finite else "is not finite where it must be"
            not_timed(row, "wrong", f"{what} {fault}")
        return verdict.passed

    def _verdict(self, properties: Properties, s: OperandSet) -> Verdict:
        """The worst verdict: of a batch, of VERIFIED products spread over it, the first and the last among them."""
        if s.out.dim() == 2:
            return self.verify(s.a, s.b, s.out, properties)
        count = min(len(s.out), VERIFIED)
        places = [round(number * (len(s.out) - 1) / max(count - 1, 1)) for number in range(count)]
        verdicts = [self.verify(s.a[place], s.b[place], s.out[place], properties) for place in places]
        return max(verdicts, key=lambda verdict: (not verdict.passed, verdict.error_over_bound))

    def _repeats(self, row: Row, properties: Properties, burst: Burst, operands: Operands, expected: Tensor) -> bool:
        """Whether the burst itself computes the product: a graph that captured nothing leaves its poison behind."""
        operands.poison()
        burst.run()
        self.machine.synchronize()
        sets = operands.sets[: burst.calls]
        same = torch.stack([(s.out == expected).all() for s in sets]).tolist()  # one wait for the device, not one each
        others = (s for s, equal in zip(sets, same, strict=True) if not equal)
        return all(self._passes(row, properties, s, "its result in a burst of calls") for s in others)

    def _burst(self, call: Call, *, ring: int, timing: BurstTiming) -> Burst:
        """A burst as long as the duty cycle asks for."""
        wanted = self.duty.burst_ms * 1e-3
        seconds = self.machine.seconds(call, 1, timing)
        if seconds * TRIAL_CALLS < wanted:
            seconds = self.machine.seconds(call, TRIAL_CALLS, timing)
        calls = max(FEWEST_HOST_CALLS if timing == "host" else 1, round(wanted / max(seconds, 1e-7)))
        return self.machine.burst(call, calls, ring=ring, timing=timing)

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
