"""The clock over a burst: from what the multiprocessors noted, and from nothing else."""

from __future__ import annotations

import random
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from bench_machine import READING
from made_up_results import timing

from hgemm.bench import bursts, clock_counter
from hgemm.bench.bursts import EventBurst
from hgemm.bench.clock_counter import ClockCounter
from hgemm.bench.metrics import clock_mhz


class Event:
    def record(self) -> None: ...

    def query(self) -> bool:
        return False

    def synchronize(self) -> None: ...

    def elapsed_time(self, other: Any) -> float:
        return 10.0  # ms


@pytest.fixture
def device(monkeypatch: pytest.MonkeyPatch) -> torch.device:
    properties = SimpleNamespace(multi_processor_count=4)
    monkeypatch.setattr(torch.cuda, "get_device_properties", lambda device: properties)
    monkeypatch.setattr(torch.cuda, "Event", lambda **_: Event())
    monkeypatch.setattr(torch.cuda, "current_stream", lambda: SimpleNamespace(synchronize=lambda: None))
    monkeypatch.setattr(torch.cuda, "_sleep", lambda cycles: None)
    return torch.device("cpu")


class Notes:
    """Stands for the kernel: the multiprocessors' counts, a list for each launch, and times 10 ms apart."""

    def __init__(self, *counts: list[int]) -> None:
        self.counts = list(counts)
        self.now = 10**18

    def __getitem__(self, grid: tuple[int, ...]) -> Any:
        assert grid == (4,)

        def launch(counts: torch.Tensor, times: torch.Tensor, num_warps: int) -> None:
            counted = self.counts.pop(0)
            self.now += 10_000_000
            counts[: len(counted)] = torch.tensor(counted)
            times[: len(counted)] = self.now

        return launch


def counted(device: torch.device, *counts: list[int]) -> float | None:
    counter = ClockCounter(device, Notes(*counts))
    counter.begin()
    counter.end()
    return counter.mhz()


def test_the_clock_is_cycles_over_time(device: torch.device) -> None:
    # 10 ms at 1,980 MHz are 19.8 million cycles; where each multiprocessor begins to count is its own affair.
    begin, cycles = [5, 10**15, 7_000, 1], 19_800_000
    assert counted(device, begin, [count + cycles for count in begin]) == 1980.0
    # The median: one that was noted late does not count.
    assert counted(device, begin, [count + cycles for count in begin[:3]] + [10**12]) == 1980.0


def test_a_multiprocessor_without_both_notes_is_left_out(device: torch.device) -> None:
    assert counted(device, [1, 0, 3, 0], [15_000_001, 99, 15_000_003, 0]) == 1500.0
    assert counted(device, [0, 0, 0, 0], [15_000_001, 99, 15_000_003, 7]) is None
    assert counted(device, [5, 5, 5, 5], [6, 6, 6, 6]) is None, "no clock is that slow"
    assert counted(device, [5, 5], [10**14, 10**14]) is None, "nor that fast"


def test_notes_of_a_burst_before_are_forgotten(device: torch.device) -> None:
    counter = ClockCounter(device, Notes([1, 1, 1, 1], [100, 100, 100, 100], [1, 0, 1, 1], [20_000_001] * 4))
    counter.begin()
    counter.end()
    counter.begin()
    counter.end()
    assert counter.mhz() == 2000.0
    assert int((counter._notes[0, 0] > 0).sum()) == 3


def test_nothing_counts_where_the_kernel_cannot_run() -> None:
    assert ClockCounter.available(torch.device("cpu")) is None


@pytest.fixture
def order(device: torch.device, monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """What was enqueued, and when: every entry takes the host 1 ms."""
    order: list[str] = []
    monkeypatch.setattr(bursts, "_event", Event)
    monkeypatch.setattr(torch.cuda, "_sleep", lambda cycles: order.append(f"spin {cycles}"))
    return order


def eager_burst(
    device: torch.device, order: list[str], monkeypatch: pytest.MonkeyPatch, *counts: list[int]
) -> EventBurst:
    """Of two calls, with a counter of these counts."""
    counter = ClockCounter(device, Notes(*counts))
    for name in ("begin", "end"):
        monkeypatch.setattr(counter, name, _noted(order, name, getattr(counter, name)))
    host = SimpleNamespace(
        clock=lambda: len(order) * 1e-3,
        synchronize=lambda: None,
        read=lambda: READING,
        clock_counter=lambda: counter,
        flush=None,
    )
    return EventBurst(host, lambda index: order.append("call"), 2)


def _noted(order: list[str], name: str, function: Any) -> Any:
    return lambda: (order.append(name), function())


# Of the rehearsal, of the launch that shows whether a call waits, and of the burst.
COUNTS = [1] * 4, [1] * 4, [2] * 4, [1] * 4, [17_550_001] * 4


def test_a_burst_stores_the_clock_beside_what_nvml_said(
    device: torch.device, order: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    reading = eager_burst(device, order, monkeypatch, *COUNTS).run().reading
    assert (reading.counted_mhz, reading.sm_mhz) == (1755.0, READING.sm_mhz)


def test_the_clock_is_counted_over_the_burst_alone(
    device: torch.device, order: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    burst = eager_burst(device, order, monkeypatch, *COUNTS)
    order.clear()
    burst.run()
    spin, *behind = order
    assert behind == ["begin", "call", "call", "end"], "the spin is no part of the burst"
    # Until the last call is enqueued the host needs 3 ms, of which the note takes one: the spin outlasts all three.
    assert int(spin.removeprefix("spin ")) > 3e-3 * bursts.FASTEST_CLOCK_HZ * 1.49


def test_a_counted_clock_goes_before_a_read_one() -> None:
    times = timing(1.0, 10**9, 10**6, 4, random.Random(0))
    times.clocks.sm_mhz = [1980, 1980, 1980, None]
    assert clock_mhz([times]) == 1980
    times.clocks.counted_mhz = [1700.0, 1710.0, None, 1720.0]
    assert clock_mhz([times]) == pytest.approx((1710 + 1720) / 2)


def test_the_kernel_reads_the_registers_on_either_target() -> None:
    triton = pytest.importorskip("triton")
    from triton.backends.compiler import GPUTarget
    from triton.compiler import ASTSource

    from hgemm.triton_kernels.clock import note_clock

    for target in (90, 120):
        source = ASTSource(note_clock, {"counts": "*i64", "times": "*i64"}, {})
        ptx = triton.compile(source, target=GPUTarget("cuda", target, 32), options={"num_warps": 1}).asm["ptx"]
        assert "%clock64" in ptx
        assert "%globaltimer" in ptx
        assert "%smid" in ptx
    assert clock_counter.MOST_MULTIPROCESSORS >= 256
