"""The device layer of a measurement: a protocol that the run loop is written against, and its CUDA implementation."""

from __future__ import annotations

import contextlib
import functools
import time
from collections.abc import Iterator
from typing import Protocol

import torch

from hgemm.bench.bursts import (
    LARGEST_QUEUE,
    Burst,
    BurstTiming,
    Call,
    ColdBurst,
    EventBurst,
    GraphBurst,
    capture,
    round_up,
)
from hgemm.bench.clock_counter import ClockCounter
from hgemm.bench.environment import describe_cuda
from hgemm.bench.graph_nodes import kernels_of
from hgemm.bench.host_burst import HostBurst
from hgemm.bench.nvml import Nvml, Reading
from hgemm.bench.schema import Environment, Kernel

FLUSHED = 3
"""A flush of the L2 reads this many times as much."""


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

    def launch_nothing(self) -> None:
        """Enqueues a kernel of one thread that ends at once."""

    def seconds(self, call: Call, calls: int, timing: BurstTiming = "device") -> float:
        """About how long a call takes in such a burst, flush and all, from one trial of ``calls`` calls."""

    def burst(self, call: Call, calls: int, *, ring: int = 1, timing: BurstTiming = "device") -> Burst:
        """Prepares at least ``calls`` calls, in whole multiples of ``ring``, or as many as can be timed that way.

        Calls must have run once before.
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
        self._flush: tuple[torch.Tensor, torch.Tensor] | None = None

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

    def read(self) -> Reading:
        return self.nvml.read()

    @functools.cached_property
    def _clock_counter(self) -> ClockCounter | None:
        return ClockCounter.available(self.device)

    def clock_counter(self) -> ClockCounter | None:
        return self._clock_counter

    def flush(self) -> None:
        """Enqueues a sum over FLUSHED times the L2: reads only, and one number written."""
        if self._flush is None:
            elements = FLUSHED * self.l2_bytes // 4
            buffer = torch.zeros(elements, dtype=torch.float32, device=self.device)
            self._flush = buffer, torch.zeros((), dtype=torch.float32, device=self.device)
        buffer, total = self._flush
        torch.sum(buffer, dim=0, out=total)

    def launch_nothing(self) -> None:
        torch.cuda._sleep(0)

    def seconds(self, call: Call, calls: int, timing: BurstTiming = "device") -> float:
        if timing == "host":
            return HostBurst(self, call, calls).seconds()

        def flushed(index: int) -> None:
            self.flush()
            call(index)

        return EventBurst(self, flushed if timing == "cold" else call, calls).seconds()

    def burst(self, call: Call, calls: int, *, ring: int = 1, timing: BurstTiming = "device") -> Burst:
        if timing == "host":
            return HostBurst(self, call, round_up(calls, ring))
        if timing == "cold":
            return ColdBurst(self, call, calls)
        try:
            return GraphBurst(self, call, calls, ring)
        except Exception:  # whatever kept the calls from being captured; the row tells how they were timed instead
            self.synchronize()
            return EventBurst(self, call, min(round_up(calls, ring), LARGEST_QUEUE))

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
