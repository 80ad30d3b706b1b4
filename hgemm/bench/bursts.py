"""Bursts on a CUDA device: a number of calls timed together, in one of two ways; host_burst.py has the third.

``GraphBurst``  events around a CUDA graph of the calls: launching costs nothing that is measured. What cannot be
                captured is an ``EventBurst``: eager calls, launched while the device is kept busy.
``ColdBurst``   events around each single call, which finds nothing of its operands in the L2.
"""

from __future__ import annotations

import contextlib
import gc
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from typing import Any, Literal, Protocol

import torch

from hgemm.bench.clock_counter import ClockCounter
from hgemm.bench.nvml import Reading

Call = Callable[[int], object]
"""Enqueues call number i of a burst."""

Timer = Literal["graph", "events", "wall"]

BurstTiming = Literal["device", "cold", "host"]
"""What a burst measures: the device's time, that of a call which finds a cold L2, or the host's."""

LARGEST_GRAPH = 512
"""Calls in one graph; longer bursts replay it. Capturing and instantiating some thousand takes tens of milliseconds."""

FASTEST_CLOCK_HZ = 3.2e9
"""To turn seconds into cycles for a spin: above what any GeForce boosts to, as a spin that is too short lets the device
wait for the host. A slower clock spins longer, which nobody times."""

ATTEMPTS = 5
"""At a sample in which the device never waits for the host, each with twice the spin of the one before."""

LARGEST_QUEUE = 512
"""Commands that are enqueued ahead: a stream takes about a thousand before launching blocks the host."""

COMMANDS_A_COLD_CALL = 4
"""The flush, two events and the call."""

REHEARSALS_OF_A_GRAPH = 2
"""The first launch of a graph also uploads it."""


class HostTooSlow(RuntimeError):
    """The device was done with its spin before everything was enqueued, however long the spin: no sample."""


@dataclass(frozen=True)
class Sample:
    """One timed burst."""

    at: float
    """When it began, on the machine's host clock."""
    seconds: float
    """A call, on average."""
    reading: Reading
    finished: float | None = None
    """Of host time only: seconds a call until the device had finished all of them."""


class Burst(Protocol):
    """A number of calls that can be timed again and again."""

    timer: Timer
    calls: int

    def run(self) -> Sample: ...

    def close(self) -> None:
        """Gives back what the burst holds on the device."""


class CudaHost(Protocol):
    """What bursts need of ``hgemm.bench.machine.CudaMachine``."""

    def clock(self) -> float: ...

    def synchronize(self) -> None: ...

    def read(self) -> Reading: ...

    def clock_counter(self) -> ClockCounter | None:
        """What counts the clock over a burst; None if nothing can."""

    def flush(self) -> None:
        """Enqueues reads that leave nothing else in the L2."""


def capture(call: Call, calls: int) -> torch.cuda.CUDAGraph:
    """Captures calls 0 to ``calls - 1`` on the current stream, without instantiating the graph."""
    graph = torch.cuda.CUDAGraph(keep_graph=True)
    torch.cuda.synchronize()
    graph.capture_begin(capture_error_mode="thread_local")
    try:
        for index in range(calls):
            call(index)
    finally:
        graph.capture_end()
    return graph


def round_up(count: int, multiple: int) -> int:
    return -(-count // multiple) * multiple


@contextlib.contextmanager
def no_collection() -> Iterator[None]:
    """No garbage is collected inside."""
    collecting = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if collecting:
            gc.enable()


class _DeviceBurst:
    """The device's time for what ``_enqueue`` enqueues. It spins while the host launches, and so never waits for it; no
    garbage is collected meanwhile, which would take the host longer than the spin.

    Where another program holds the host up, the spin may end first. So the event that follows it is asked once the last
    call is enqueued: if it has passed, the burst is measured again behind a longer spin, and after ATTEMPTS of them
    HostTooSlow is raised. That rule looks at no time that was measured, so it favours nobody.
    """

    timer: Timer = "events"

    def __init__(self, machine: CudaHost, call: Call, calls: int, rehearsals: int = 1) -> None:
        self.calls = calls
        self._machine = machine
        self._call = call
        self._start, self._end = _event(), _event()
        self._counter = machine.clock_counter()
        self._rehearse(rehearsals)

    def _rehearse(self, times: int) -> None:
        """Finds the spin that hides the launching, by the last of so many rehearsals."""
        for _ in range(times):
            with no_collection():
                began = self._machine.clock()
                self._enqueue_behind_spin()
                launching = self._machine.clock() - began
            self._machine.synchronize()
        self._spin_cycles = int(FASTEST_CLOCK_HZ * (1.5 * launching + 20e-6))

    def run(self) -> Sample:
        at = self._machine.clock()
        self._launch()
        reading = self._machine.read()  # while the device is at work
        return Sample(at, self._seconds(), self._counted(reading))

    def seconds(self) -> float:
        """About the same, without a look at the board or at who waited: for a trial."""
        self._launched_ahead(self._spin_cycles)
        return self._seconds()

    def close(self) -> None:
        pass

    def _launch(self) -> None:
        """Enqueues the burst ahead of the device. Raises HostTooSlow."""
        for attempt in range(ATTEMPTS):
            if self._launched_ahead(self._spin_cycles << attempt):
                return
            self._end.synchronize()
        raise HostTooSlow(
            f"the device waited for the host in {ATTEMPTS} of {ATTEMPTS} attempts: other programs hold the host up, or "
            "the queue of launches is full"
        )

    def _launched_ahead(self, spin_cycles: int) -> bool:
        """Whether the device was still spinning when the last call had been enqueued."""
        with no_collection():
            torch.cuda._sleep(spin_cycles)
            self._enqueue_behind_spin()
            ahead = not self._start.query()
            self._end.record()
        if self._counter:
            self._counter.end()
        return ahead

    def _enqueue_behind_spin(self) -> None:
        """The calls, and before them the first note of the clock: ahead of the spin it would count the spin too."""
        if self._counter:
            self._counter.begin()
        self._start.record()
        self._enqueue()

    def _counted(self, reading: Reading) -> Reading:
        """With the clock of the last launch, which is over."""
        return replace(reading, counted_mhz=self._counter.mhz()) if self._counter else reading

    def _seconds(self) -> float:
        self._end.synchronize()
        return float(self._start.elapsed_time(self._end)) * 1e-3 / self.calls

    def _enqueue(self) -> None:
        for index in range(self.calls):
            self._call(index)


class EventBurst(_DeviceBurst):
    """Eager calls, back to back. Where the call itself waits for the device, the host is never ahead, and the wait is
    part of what the call costs."""

    def __init__(self, machine: CudaHost, call: Call, calls: int) -> None:
        super().__init__(machine, call, calls)
        self._waits = False
        try:
            self._launch()
        except HostTooSlow:
            self._waits = True
        machine.synchronize()

    def _launch(self) -> None:
        if self._waits:
            self._launched_ahead(self._spin_cycles)
        else:
            super()._launch()


class GraphBurst(_DeviceBurst):
    """Replays of a graph that holds whole rings of calls, as many as can be enqueued ahead of the device. Raises
    whatever keeps the calls from being captured.

    How many that are depends on what a call launches, which the driver packs into its queue in ways of its own: one
    graph of LARGEST_GRAPH calls can be too much where several of another contestant's are not. So it is tried.
    """

    timer: Timer = "graph"

    def __init__(self, machine: CudaHost, call: Call, calls: int, ring: int) -> None:
        self._ring = ring
        self._in_graph = min(round_up(calls, ring), max(LARGEST_GRAPH // ring, 1) * ring)
        self._replays = -(-calls // self._in_graph)
        self._graph = _instantiated(call, self._in_graph)
        super().__init__(machine, call, self._in_graph * self._replays, REHEARSALS_OF_A_GRAPH)
        while not self._fits() and self._halve():
            pass

    def _fits(self) -> bool:
        """Whether the burst can be enqueued ahead."""
        try:
            self._launch()
        except HostTooSlow:
            return False
        self._end.synchronize()
        return True

    def _halve(self) -> bool:
        """Leaves half of the replays or, of a single one, half of the rings in the graph. False if one ring is left."""
        if self._replays > 1:
            self._replays //= 2
        elif self._in_graph > self._ring:
            self._in_graph = self._in_graph // self._ring // 2 * self._ring
            self._graph.reset()
            self._graph = _instantiated(self._call, self._in_graph)
        else:
            return False
        self.calls = self._in_graph * self._replays
        # A launch that waited for the device took as long as the device did: the spin was far longer than it need be.
        self._rehearse(REHEARSALS_OF_A_GRAPH)
        return True

    def _enqueue(self) -> None:
        for _ in range(self._replays):
            self._graph.replay()

    def close(self) -> None:
        self._graph.reset()


def _instantiated(call: Call, calls: int) -> torch.cuda.CUDAGraph:
    graph = capture(call, calls)
    graph.instantiate()
    return graph


class ColdBurst(_DeviceBurst):
    """Each call alone between two events, after a flush of the L2 that ends before the first of them.

    The flush reads a buffer of several times the L2 and writes next to nothing, so that a call has no lines of others
    to write back. The alternative, a graph of flushes and calls less a graph of flushes, takes a small difference of
    two large times. The price of the events is that each call begins on an idle device: its launch, which hides behind
    the call before it in the other modes, counts here, for everybody alike.
    """

    def __init__(self, machine: CudaHost, call: Call, calls: int) -> None:
        in_queue = min(calls, LARGEST_QUEUE // COMMANDS_A_COLD_CALL)
        self._pairs = [(_event(), _event()) for _ in range(in_queue)]
        self._stretches = -(-calls // in_queue)
        super().__init__(machine, call, in_queue)
        self.calls = in_queue * self._stretches

    def run(self) -> Sample:
        at = self._machine.clock()
        seconds = []
        for _ in range(self._stretches):
            self._launch()
            reading = self._machine.read()
            seconds.append(self._seconds())
        return Sample(at, sum(seconds) / len(seconds), self._counted(reading))

    def _enqueue(self) -> None:
        for index, (before, after) in enumerate(self._pairs):
            self._machine.flush()
            before.record()
            self._call(index)
            after.record()

    def _seconds(self) -> float:
        self._end.synchronize()
        return sum(before.elapsed_time(after) for before, after in self._pairs) * 1e-3 / len(self._pairs)


def _event() -> Any:
    return torch.cuda.Event(enable_timing=True)
