"""Bursts without a device: no garbage is collected while calls are enqueued, and collection goes on afterwards."""

import gc
from collections.abc import Callable

import pytest
import torch
from bench_machine import READING

from hgemm.bench import bursts
from hgemm.bench.bursts import Burst, Call, ColdBurst, EventBurst, GraphBurst, HostBurst


class Event:
    def record(self) -> None: ...

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
