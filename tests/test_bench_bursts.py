"""Bursts without a device: no garbage is collected while calls are enqueued, and none waits for the host unseen."""

import gc
from collections.abc import Callable
from typing import ClassVar

import pytest
import torch
from bench_machine import READING

from hgemm.bench import bursts
from hgemm.bench.bursts import Burst, Call, ColdBurst, EventBurst, GraphBurst
from hgemm.bench.host_burst import HostBurst


class Event:
    def record(self) -> None: ...

    def query(self) -> bool:
        return False

    def synchronize(self) -> None: ...

    def elapsed_time(self, other: "Event") -> float:
        return 1.0


class Graph:
    def __init__(self, call: Call, calls: int) -> None:
        self.call = call

    def instantiate(self) -> None: ...

    def replay(self) -> None:
        self.call(0)


class Host:
    now = 0.0

    def clock(self) -> float:
        self.now += 1.0
        return self.now

    def synchronize(self) -> None: ...

    def flush(self) -> None: ...

    def clock_counter(self):
        return None

    def read(self):
        return READING


@pytest.mark.parametrize("collecting", [True, False])
@pytest.mark.parametrize(
    "make",
    [
        lambda host, call: EventBurst(host, call, 3),
        lambda host, call: GraphBurst(host, call, 3, 1),
        lambda host, call: ColdBurst(host, call, 3),
        lambda host, call: HostBurst(host, call, 3),
    ],
    ids=["events", "graph", "cold", "host"],
)
def test_no_garbage_is_collected_while_calls_are_enqueued(
    make: Callable[[Host, Call], Burst], collecting: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(torch.cuda, "_sleep", lambda cycles: None)
    monkeypatch.setattr(bursts, "_event", Event)
    monkeypatch.setattr(bursts, "capture", Graph)
    seen: list[bool] = []
    before = gc.isenabled()
    try:
        (gc.enable if collecting else gc.disable)()
        burst = make(Host(), lambda index: seen.append(gc.isenabled()))
        burst.run()
        assert gc.isenabled() == collecting
    finally:
        (gc.enable if before else gc.disable)()
    assert seen and not any(seen)


class Device:
    """A device that spins, and then works; the host enqueues a call in ``host_s``. Time passes only there."""

    def __init__(self, stalls: list[float], host_s: float = 1e-6) -> None:
        self.stalls = stalls  # of the host, in seconds, one for each burst
        self.host_s = host_s
        self.now = 0.0
        self.spun_until = 0.0
        self.spins: list[int] = []

    def sleep(self, cycles: int) -> None:
        self.spins.append(cycles)
        self.spun_until = self.now + cycles / bursts.FASTEST_CLOCK_HZ
        if len(self.spins) <= len(self.stalls):
            self.now += self.stalls[len(self.spins) - 1]

    def event(self) -> Event:
        device = self

        class Start(Event):
            def query(self) -> bool:
                return device.now >= device.spun_until

        return Start()

    def clock(self) -> float:
        return self.now

    def enqueue(self, index: int) -> None:
        self.now += self.host_s

    def synchronize(self) -> None: ...

    def flush(self) -> None: ...

    def clock_counter(self):
        return None

    def read(self):
        return READING


def on(device: Device, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "_sleep", device.sleep)
    monkeypatch.setattr(bursts, "_event", device.event)
    monkeypatch.setattr(bursts, "capture", Graph)


def test_a_burst_for_which_the_device_waited_is_measured_again_behind_a_longer_spin(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    device = Device(stalls=[])
    on(device, monkeypatch)
    burst = GraphBurst(device, device.enqueue, 10, 1)
    (first,) = device.spins  # whether it fits the queue
    device.stalls = [0.0, 1e-3, 1e-3]
    burst.run()
    assert device.spins[1:] == [first, 2 * first, 4 * first]
    burst.run()  # and the next one begins with the short spin again
    assert device.spins[4:] == [first]


def test_a_host_that_never_keeps_ahead_gives_no_sample(monkeypatch: pytest.MonkeyPatch) -> None:
    device = Device(stalls=[1.0] * 100)
    on(device, monkeypatch)
    burst = GraphBurst(device, device.enqueue, 10, 10)
    tried = len(device.spins)
    with pytest.raises(bursts.HostTooSlow, match="waited for the host"):
        burst.run()
    assert (burst.calls, tried, len(device.spins)) == (10, bursts.ATTEMPTS, 2 * bursts.ATTEMPTS)
    assert burst.seconds() > 0  # a trial asks for no more than about


class Queue(Device):
    """Takes so many launches ahead of the device; for more the host waits until the device has begun."""

    def __init__(self, room: int) -> None:
        super().__init__(stalls=[])
        self.room = room
        self.ahead = 0

    def sleep(self, cycles: int) -> None:
        super().sleep(cycles)
        self.ahead = 0

    def enqueue(self, index: int) -> None:
        super().enqueue(index)
        self.ahead += 1
        if self.ahead > self.room:
            self.now = max(self.now, self.spun_until)


class WholeGraph(Graph):
    """Takes as much room in the queue as all of its calls; notes how many those were."""

    captured: ClassVar[list[int]] = []

    def __init__(self, call: Call, calls: int) -> None:
        super().__init__(call, calls)
        self.calls = calls
        self.captured.append(calls)

    def replay(self) -> None:
        for index in range(self.calls):
            self.call(index)

    def reset(self) -> None: ...


@pytest.mark.parametrize(
    ("room", "ring", "wanted", "graphs", "calls"),
    [
        (5000, 1, 8192, [512], 4096),  # replays are given up first
        (600, 1, 590, [512], 512),
        (511, 1, 590, [512, 256], 256),  # and where one is too much, calls of the graph
        (511, 1, 400, [400], 400),
        (200, 3, 590, [510, 255, 126], 126),  # 170, 85 and 42 rings
        (1, 1, 100, [100, 50, 25, 12, 6, 3, 1], 1),
    ],
)
def test_a_burst_that_does_not_fit_the_launch_queue_is_halved(
    room: int, ring: int, wanted: int, graphs: list[int], calls: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    device = Queue(room)
    on(device, monkeypatch)
    monkeypatch.setattr(bursts, "capture", WholeGraph)
    monkeypatch.setattr(WholeGraph, "captured", [])
    burst = GraphBurst(device, device.enqueue, wanted, ring)
    assert (WholeGraph.captured, burst.calls) == (graphs, calls)
    tried = len(device.spins)
    burst.run()
    # At the first attempt, behind a spin for the launches that are left and not for those that were too many.
    (spin,) = device.spins[tried:]
    assert spin == pytest.approx(bursts.FASTEST_CLOCK_HZ * (1.5 * calls * device.host_s + 20e-6), abs=1)


def test_a_rotation_is_never_cut(monkeypatch: pytest.MonkeyPatch) -> None:
    device = Queue(room=5)
    on(device, monkeypatch)
    monkeypatch.setattr(bursts, "capture", WholeGraph)
    burst = GraphBurst(device, device.enqueue, 24, 6)
    assert burst.calls == 6
    with pytest.raises(bursts.HostTooSlow):
        burst.run()


def test_a_call_that_waits_for_the_device_itself_is_timed_with_its_wait(monkeypatch: pytest.MonkeyPatch) -> None:
    device = Device(stalls=[])
    on(device, monkeypatch)

    def waits(index: int) -> None:
        device.now = max(device.now, device.spun_until)

    burst = EventBurst(device, waits, 3)
    tried = len(device.spins)
    burst.run()
    assert (tried, len(device.spins)) == (bursts.ATTEMPTS, bursts.ATTEMPTS + 1)
