"""The clock of the multiprocessors over a burst, as they count it themselves.

NVML tells the clock of a moment, and a board at its limit of power lowers it for milliseconds, for a part of a burst.
So before a burst and behind it every multiprocessor notes its count of cycles, %clock64; what lies in between, over the
time between two events, is the clock on average. Both notes lie outside of what is timed.
"""

from __future__ import annotations

import statistics
from typing import Any

import torch

MOST_MULTIPROCESSORS = 1024
"""More than any device numbers, gaps included."""

PLAUSIBLE_MHZ = (100.0, 5000.0)


class ClockCounter:
    """Counts on the current device and stream. ``available`` is None where Triton is missing, or what it makes of the
    notes does not work."""

    def __init__(self, device: torch.device, note: Any) -> None:
        self._note = note
        self._programs = torch.cuda.get_device_properties(device).multi_processor_count
        self._counts = torch.zeros(2, MOST_MULTIPROCESSORS, dtype=torch.int64, device=device)
        self._began: Any = torch.cuda.Event(enable_timing=True)

    @classmethod
    def available(cls, device: torch.device) -> ClockCounter | None:
        """One that has counted once, and sensibly; compiles its kernel."""
        try:
            from hgemm.triton_kernels.clock import note_clock

            counter = cls(device, note_clock)
            ended: Any = torch.cuda.Event(enable_timing=True)
            counter.begin()
            torch.cuda._sleep(1_000_000)
            ended.record()
            counter.end()
            counted = counter.mhz(ended)
        except Exception:  # no Triton, another one, or no compiler: the clock is what NVML says
            return None
        return counter if counted is not None else None

    def begin(self) -> None:
        """Enqueues the first note. Call it before the burst is enqueued, and before the spin that it hides behind."""
        self._counts.zero_()
        self._note[(self._programs,)](self._counts[0], num_warps=1)
        self._began.record()

    def end(self) -> None:
        """Enqueues the second one, behind the event that ends the burst."""
        self._note[(self._programs,)](self._counts[1], num_warps=1)

    def mhz(self, ended: Any) -> float | None:
        """The clock from ``begin`` to the event ``ended``, which stands right before ``end``: the median of the
        multiprocessors that noted both, once the device is done; None if none did, or for what no clock can be."""
        torch.cuda.current_stream().synchronize()
        first, second = self._counts.tolist()
        cycles = [late - early for early, late in zip(first, second, strict=True) if early and late > early]
        seconds = self._began.elapsed_time(ended) * 1e-3
        if not cycles or seconds <= 0:
            return None
        mhz = statistics.median(cycles) / seconds * 1e-6
        return round(mhz, 1) if PLAUSIBLE_MHZ[0] < mhz < PLAUSIBLE_MHZ[1] else None
