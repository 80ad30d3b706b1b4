"""What stands beside the contestants of every case: the roofs of the device, and the control."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch

from hgemm.backends import TORCH, Backend
from hgemm.bench import roofs
from hgemm.bench.contestants import Choice
from hgemm.bench.machine import Machine
from hgemm.bench.metrics import COPY, LAUNCH, READ
from hgemm.bench.operands import Operands
from hgemm.bench.prepare import Entry, Preparer, not_timed, untimed_row
from hgemm.bench.suites import DTYPES, Case, Shape

CONTROL = "control"
CONTROL_SIZE = 4096
"""The control is torch's product of this size in bf16, the same in every case of every run."""


class Yardsticks:
    """Each is prepared when it is first needed, then kept for the whole run; in every case it has a row of its own."""

    def __init__(
        self,
        machine: Machine,
        preparer: Preparer,
        backends: Sequence[Backend],
        make_ceiling: roofs.MakeCeiling,
        control_size: int | None,
    ) -> None:
        self._machine = machine
        self._preparer = preparer
        self._backends = backends
        self._make_ceiling = make_ceiling
        self._control_size = control_size or CONTROL_SIZE
        self._prepared: dict[str, Entry] = {}

    def entry(self, name: str, dtype: str) -> Entry:
        """A fresh entry for one more case, which ``prepare`` makes ready to be timed."""
        if prepared := self._prepared.get(self._key(name, dtype)):
            return prepared.fresh()
        return Entry(untimed_row("control", TORCH) if name == CONTROL else untimed_row("roof", name))

    def prepare(self, name: str, dtype: str, entry: Entry) -> None:
        """Prepares what ``entry`` returned, unless that was done for an earlier case."""
        key = self._key(name, dtype)
        if key in self._prepared:
            return
        if name == CONTROL:
            self._prepare_control(entry)
        else:
            self._preparer.yardstick(entry, self._maker(name, DTYPES[dtype]))
        self._prepared[key] = entry.fresh()

    def close(self) -> None:
        for entry in self._prepared.values():
            entry.close()

    def _key(self, name: str, dtype: str) -> str:
        return name if name in (CONTROL, COPY, READ, LAUNCH) else f"{name} {dtype}"

    def _maker(self, name: str, dtype: torch.dtype) -> Callable[[], roofs.Yardstick]:
        if name == COPY:
            return lambda: roofs.copy(self._machine)
        if name == LAUNCH:
            return lambda: roofs.Yardstick(lambda index: self._machine.launch_nothing(), 0, 0)
        if name == READ:
            return lambda: roofs.read(roofs.Limit(name, dtype), self._machine, self._make_ceiling)
        return lambda: roofs.ceiling(roofs.Limit(name, dtype), self._machine, self._make_ceiling)

    def _prepare_control(self, entry: Entry) -> None:
        size = self._control_size
        case = Case(Shape(size, size, size), "bf16")
        try:
            operands = Operands.allocate(case, self._machine.device)
        except torch.OutOfMemoryError:
            not_timed(entry.row, "failed", f"there is no room for its operands, {case.compulsory_bytes:,} bytes")
            return
        backend = next(backend for backend in self._backends if backend.name == TORCH)
        self._preparer.contestant(entry, Choice(backend, None), case, operands)
