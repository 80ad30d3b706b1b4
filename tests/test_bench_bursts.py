"""Bursts without a device: no garbage is collected while calls are enqueued, and none waits for the host unseen."""

import gc
from collections.abc import Callable

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
    device = Device(stalls=[1e-3, 1e-3])
    on(device, monkeypatch)
    burst = GraphBurst(device, device.enqueue, 10, 1)
    burst.run()
    first, *longer = device.spins
    assert longer == [2 * first, 4 * first]
    burst.run()  # and the next one begins with the short spin again
    assert device.spins[3:] == [first]


def test_a_host_that_never_keeps_ahead_gives_no_sample(monkeypatch: pytest.MonkeyPatch) -> None:
    device = Device(stalls=[1.0] * 100)
    on(device, monkeypatch)
    burst = GraphBurst(device, device.enqueue, 10, 1)
    with pytest.raises(bursts.HostTooSlow, match="waited for the host"):
        burst.run()
    assert len(device.spins) == bursts.ATTEMPTS
    assert burst.seconds() > 0  # a trial asks for no more than about


def test_replays_that_do_not_fit_the_launch_queue_are_halved(monkeypatch: pytest.MonkeyPatch) -> None:
    device = Device(stalls=[])
    on(device, monkeypatch)
    enqueued = 0
    spins = 0

    def replay(index: int) -> None:
        nonlocal enqueued, spins
        if spins != len(device.spins):
            enqueued, spins = 0, len(device.spins)
        enqueued += 1
        if spins and enqueued > 5:  # the queue is full: the host waits until the device has begun
            device.now = max(device.now, device.spun_until)

    burst = GraphBurst(device, replay, 16 * bursts.LARGEST_GRAPH, 1)
    assert burst.calls == 4 * bursts.LARGEST_GRAPH
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
