"""The device layer of a measurement: a protocol that the run loop is written against, and its CUDA implementation.

A burst is a number of calls enqueued back to back and timed together. On a CUDA device the calls are captured into a
graph first, so that the cost of launching them from Python is outside the measured time; a contestant that cannot be
captured is timed by events around eager calls, launched while the device is kept busy, and its rows say so.
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Literal, Protocol

import torch

from hgemm.bench.environment import describe_cuda
from hgemm.bench.graph_nodes import kernels_of
from hgemm.bench.nvml import Nvml, Reading
from hgemm.bench.schema import Environment, Kernel

Call = Callable[[int], None]
"""Enqueues call number i of a burst."""

Timer = Literal["graph", "events", "wall"]

LARGEST_GRAPH = 1024
"""Calls in one graph; longer bursts replay it. Some thousand nodes take tens of milliseconds to instantiate."""

FASTEST_CLOCK_HZ = 2e9
"""To turn seconds into cycles for a spin; a device with a faster clock spins a little shorter."""

LARGEST_QUEUE = 512
"""Eager calls in one burst: a stream takes about a thousand commands before launching blocks the host."""


@dataclass(frozen=True)
class Sample:
    """One timed burst."""

    at: float
    """When it began, on the machine's host clock."""
    seconds: float
    """A call, on average."""
    reading: Reading


class Burst(Protocol):
    """A number of calls that can be timed again and again."""

    timer: Timer
    calls: int

    def run(self) -> Sample: ...

    def close(self) -> None:
        """Gives back what the burst holds on the device."""


class Machine(Protocol):
    """What the run loop needs of a device and of time."""

    device: torch.device
    l2_bytes: int

    def activate(self) -> contextlib.AbstractContextManager[None]:
        """Within it, work goes to the device and stream that are measured."""

    def environment(self) -> Environment: ...

    def free_bytes(self) -> int: ...

    def clock(self) -> float:
        """The host's clock, in seconds."""

    def sleep(self, seconds: float) -> None: ...

    def synchronize(self) -> None:
        """Waits for the device; raises if it reports an error."""

    def burst(self, call: Call, calls: int, *, ring: int = 1, host: bool = False) -> Burst:
        """Prepares at least ``calls`` calls, in whole multiples of ``ring`` where the timer allows.

        ``host`` asks for the host's clock; otherwise it is the device's time. Calls must have run once before.
        """

    def kernels(self, call: Call) -> list[Kernel] | None:
        """The kernels that one call launches; None if they cannot be known."""

    def release(self) -> None:
        """Gives unused memory back to the device."""


class CudaMachine:
    """A CUDA device and one stream on it, on which operands are made and everything is timed."""

    def __init__(self, index: int | None = None) -> None:
        self.device = torch.device("cuda", torch.cuda.current_device() if index is None else index)
        self.stream = torch.cuda.Stream(self.device)
        self.l2_bytes = int(torch.cuda.get_device_properties(self.device).L2_cache_size)
        self.nvml = Nvml(self.device)

    @contextlib.contextmanager
    def _activated(self) -> Iterator[None]:
        with torch.cuda.device(self.device), torch.cuda.stream(self.stream):
            yield

    def activate(self) -> contextlib.AbstractContextManager[None]:
        return self._activated()

    def environment(self) -> Environment:
        return describe_cuda(self.device, self.nvml.board())

    def free_bytes(self) -> int:
        free, _ = torch.cuda.mem_get_info(self.device)
        return free + torch.cuda.memory_reserved(self.device) - torch.cuda.memory_allocated(self.device)

    def clock(self) -> float:
        return time.perf_counter()

    def sleep(self, seconds: float) -> None:
        time.sleep(seconds)

    def synchronize(self) -> None:
        torch.cuda.synchronize(self.device)

    def burst(self, call: Call, calls: int, *, ring: int = 1, host: bool = False) -> Burst:
        if host:
            return _WallBurst(self, call, _round_up(calls, ring))
        try:
            return _GraphBurst(self, call, calls, ring)
        except Exception:  # whatever kept the calls from being captured; the row tells how they were timed instead
            self.synchronize()
            return _EventBurst(self, call, min(_round_up(calls, ring), LARGEST_QUEUE))

    def kernels(self, call: Call) -> list[Kernel] | None:
        try:
            graph = capture(call, 1)
        except Exception:
            self.synchronize()
            return None
        try:
            return kernels_of(graph.raw_cuda_graph())
        finally:
            graph.reset()

    def release(self) -> None:
        torch.cuda.empty_cache()


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


def _round_up(count: int, multiple: int) -> int:
    return -(-count // multiple) * multiple


class _DeviceBurst:
    """Device time between two events around what ``_enqueue`` enqueues."""

    def __init__(self, machine: CudaMachine, calls: int) -> None:
        self.calls = calls
        self._machine = machine
        self._start = torch.cuda.Event(enable_timing=True)
        self._end = torch.cuda.Event(enable_timing=True)
        self._spin_cycles = 0

    def _rehearse(self) -> None:
        """Measures what launching costs the host: the device will spin that long first, and never wait for a launch."""
        for _ in range(2):  # the first launch also uploads or loads things
            began = self._machine.clock()
            self._enqueue()
            seconds = self._machine.clock() - began
            self._machine.synchronize()
        self._spin_cycles = int(FASTEST_CLOCK_HZ * (1.5 * seconds + 20e-6))

    def run(self) -> Sample:
        at = self._machine.clock()
        torch.cuda._sleep(self._spin_cycles)
        self._start.record()
        self._enqueue()
        self._end.record()
        reading = self._machine.nvml.read()  # while the device is at work
        self._end.synchronize()
        return Sample(at, self._start.elapsed_time(self._end) * 1e-3 / self.calls, reading)

    def _enqueue(self) -> None:
        raise NotImplementedError


class _GraphBurst(_DeviceBurst):
    timer: Timer = "graph"

    def __init__(self, machine: CudaMachine, call: Call, calls: int, ring: int) -> None:
        in_graph = min(_round_up(calls, ring), max(LARGEST_GRAPH // ring, 1) * ring)
        self._replays = -(-calls // in_graph)
        super().__init__(machine, in_graph * self._replays)
        self._call = call  # keeps the memory alive that the graph reads and writes
        self._graph = capture(call, in_graph)
        self._graph.instantiate()
        self._rehearse()

    def _enqueue(self) -> None:
        for _ in range(self._replays):
            self._graph.replay()

    def close(self) -> None:
        self._graph.reset()


class _EventBurst(_DeviceBurst):
    timer: Timer = "events"

    def __init__(self, machine: CudaMachine, call: Call, calls: int) -> None:
        super().__init__(machine, calls)
        self._call = call
        self._rehearse()

    def _enqueue(self) -> None:
        for index in range(self.calls):
            self._call(index)

    def close(self) -> None:
        pass


class _WallBurst:
    timer: Timer = "wall"

    def __init__(self, machine: CudaMachine, call: Call, calls: int) -> None:
        self.calls = calls
        self._machine = machine
        self._call = call

    def run(self) -> Sample:
        self._machine.synchronize()
        at = self._machine.clock()
        for index in range(self.calls):
            self._call(index)
        self._machine.synchronize()
        seconds = self._machine.clock() - at
        return Sample(at, seconds / self.calls, self._machine.nvml.read())

    def close(self) -> None:
        pass
