"""The clock of the multiprocessors over a burst, as they count it themselves.

NVML tells the clock of a moment, and a board at its limit of power lowers it for milliseconds, for a part of a burst.
So before a burst and behind it every multiprocessor notes its count of cycles, %clock64, and the time, %globaltimer:
the one over the other is the clock on average, whenever the host enqueued the notes. Both lie outside of what is timed.
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
        self._notes = torch.zeros(2, 2, MOST_MULTIPROCESSORS, dtype=torch.int64, device=device)

    @classmethod
    def available(cls, device: torch.device) -> ClockCounter | None:
        """One that has counted once, and sensibly; compiles its kernel."""
        try:
            from hgemm.triton_kernels.clock import note_clock

            counter = cls(device, note_clock)
            counter.begin()
            torch.cuda._sleep(1_000_000)
            counter.end()
            counted = counter.mhz()
        except Exception:  # no Triton, another one, or no compiler: the clock is what NVML says
            return None
        return counter if counted is not None else None

    def begin(self) -> None:
        """Enqueues the first note. Call it before the burst is enqueued, and behind the spin that hides it."""
        self._notes.zero_()
        self._note[(self._programs,)](*self._notes[0], num_warps=1)

    def end(self) -> None:
        """Enqueues the second one, behind the burst."""
        self._note[(self._programs,)](*self._notes[1], num_warps=1)

    def mhz(self) -> float | None:
        """The clock between the two notes: the median of the multiprocessors that made both, once the device is done;
        None if none did, or for what no clock can be."""
        torch.cuda.current_stream().synchronize()
        first, second = self._notes.tolist()
        clocks = [
            (count - count_before) / (time - time_before) * 1e3
            for count_before, time_before, count, time in zip(*first, *second, strict=True)
            if count_before and count > count_before and time > time_before
        ]
        mhz = statistics.median(clocks) if clocks else 0.0
        return round(mhz, 1) if PLAUSIBLE_MHZ[0] < mhz < PLAUSIBLE_MHZ[1] else None
