"""The host's time for a number of calls: what issuing one costs a program."""

from __future__ import annotations

from hgemm.bench.bursts import Call, CudaHost, Sample, Timer, no_collection

IN_FLIGHT = 200
"""Calls between two waits of a HostBurst. A call may be two or three launches; the queue must never be full."""


class HostBurst:
    """The host's time for eager calls: until they have returned, and until the device has finished them.

    After every IN_FLIGHT calls the host waits for the device, outside the first of the two times. A longer stretch
    would fill the launch queue, in which a call waits for room, and that would measure the device. No garbage is
    collected meanwhile.
    """

    timer: Timer = "wall"

    def __init__(self, machine: CudaHost, call: Call, calls: int) -> None:
        self.calls = calls
        self._machine = machine
        self._call = call

    def run(self) -> Sample:
        at = self._machine.clock()
        issued, finished = self._stretches()
        return Sample(at, issued / self.calls, self._machine.read(), finished / self.calls)

    def seconds(self) -> float:
        """Seconds a call until the device has finished: for a trial."""
        return self._stretches()[1] / self.calls

    def close(self) -> None:
        pass

    def _stretches(self) -> tuple[float, float]:
        clock, synchronize, call = self._machine.clock, self._machine.synchronize, self._call
        issued = finished = 0.0
        with no_collection():
            for first in range(0, self.calls, IN_FLIGHT):
                numbers = range(first, min(first + IN_FLIGHT, self.calls))
                synchronize()
                began = clock()
                for number in numbers:
                    call(number)
                issued += clock() - began
                synchronize()
                finished += clock() - began
        return issued, finished
