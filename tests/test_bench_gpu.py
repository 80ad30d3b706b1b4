"""The device layer on a CUDA device: graphs hold what was captured, the driver names the kernels, hangs are found."""

import time
from pathlib import Path

import pytest
import torch

import hgemm
from hgemm.bench.__main__ import main
from hgemm.bench.bursts import LARGEST_GRAPH, ColdBurst, EventBurst
from hgemm.bench.contestants import Choice, load
from hgemm.bench.host_burst import IN_FLIGHT
from hgemm.bench.machine import FLUSHED, CudaMachine
from hgemm.bench.metrics import label
from hgemm.bench.preflight import Preflight
from hgemm.bench.results import read
from hgemm.bench.suites import Case, Shape
from hgemm.bench.watchdog import Watchdog

pytestmark = pytest.mark.gpu


@pytest.fixture
def machine():
    return CudaMachine()


@pytest.fixture
def product(machine: CudaMachine):
    with machine.activate():
        a, b = (torch.randn(1024, 1024, device=machine.device).bfloat16() for _ in range(2))
        outs = [torch.empty_like(a) for _ in range(3)]

        def call(index: int) -> None:
            torch.matmul(a, b, out=outs[index % 3])

        call(0)
        yield call, outs, a @ b


def test_a_graph_holds_every_call(machine: CudaMachine, product) -> None:
    call, outs, expected = product
    burst = machine.burst(call, 4, ring=3)
    assert (burst.timer, burst.calls) == ("graph", 6)
    for out in outs:
        out.zero_()
    sample = burst.run()
    machine.synchronize()
    assert all(torch.equal(out, expected) for out in outs)
    assert 0 < sample.seconds < 1
    burst.close()


def test_the_clock_over_a_burst_is_counted(machine: CudaMachine, product) -> None:
    call, _, _ = product
    burst = machine.burst(call, 400)
    counted = [burst.run().reading.counted_mhz for _ in range(5)]
    burst.close()
    if machine.nvml.board().clock_max_mhz is None or None in counted:
        assert machine.clock_counter() is None
        return
    assert all(300 < mhz <= 1.02 * machine.nvml.board().clock_max_mhz for mhz in counted), counted


def test_a_long_burst_replays_a_graph_of_whole_rings(machine: CudaMachine, product) -> None:
    call, _, _ = product
    burst = machine.burst(call, LARGEST_GRAPH + 1, ring=3)
    assert burst.calls >= LARGEST_GRAPH + 1
    assert burst.calls % 3 == 0
    burst.run()
    burst.close()


def test_what_cannot_be_captured_is_timed_by_events_and_says_so(machine: CudaMachine, product) -> None:
    call, outs, expected = product

    def with_a_look(index: int) -> None:
        call(index)
        machine.stream.synchronize()  # not allowed while a stream captures

    burst = machine.burst(with_a_look, 3, ring=3)
    assert burst.timer == "events"
    for out in outs:
        out.zero_()
    assert burst.run().seconds > 0
    machine.synchronize()
    assert all(torch.equal(out, expected) for out in outs)
    # The stream is as good as before.
    again = machine.burst(call, 3)
    assert again.timer == "graph"
    again.run()
    again.close()


def test_the_cost_of_launching_is_outside_the_measured_time(machine: CudaMachine, product) -> None:
    call, _, _ = product

    def slow_to_launch(index: int) -> None:
        time.sleep(200e-6)
        call(index)

    burst = EventBurst(machine, slow_to_launch, 32)
    # The device spins for longer than the 32 launches take, at a clock of 2 GHz or less.
    assert burst._spin_cycles > 2e9 * 32 * 200e-6
    burst.run()


def test_thousands_of_launches_are_enqueued_ahead_of_the_device(machine: CudaMachine) -> None:
    with machine.activate():
        burst = machine.burst(lambda index: machine.launch_nothing(), 5000)
        assert burst.timer == "graph"
        assert 1e-7 < burst.run().seconds < 1e-4
        burst.close()


def test_a_sustained_burst_of_the_control_is_timed(machine: CudaMachine) -> None:
    """100 ms and more of torch's product: more calls than one graph holds, and than the queue of launches may take."""
    with machine.activate():
        a, b = (torch.randn(4096, 4096, device=machine.device).bfloat16() for _ in range(2))
        out = torch.empty_like(a)
        torch.matmul(a, b, out=out)
        burst = machine.burst(lambda index: torch.matmul(a, b, out=out), LARGEST_GRAPH + 80)
        assert burst.timer == "graph"
        assert burst.calls >= 64
        assert all(burst.run().seconds > 0 for _ in range(3))
        burst.close()


def test_kernels_are_described_by_the_driver(machine: CudaMachine, product) -> None:
    call, _, _ = product
    kernels = machine.kernels(call)
    assert kernels
    for kernel in kernels:
        assert kernel.name
        assert kernel.registers > 0
        assert kernel.threads >= 32
        assert kernel.blocks >= 1


def test_readings_come_with_samples_and_the_environment_names_the_gpu(machine: CudaMachine, product) -> None:
    call, _, _ = product
    burst = machine.burst(call, 100)
    reading = burst.run().reading
    assert reading.sm_mhz is None or reading.sm_mhz > 100
    environment = machine.environment()
    assert environment.gpu == torch.cuda.get_device_name(machine.device)
    assert environment.multiprocessors > 0
    burst.close()


def test_memory_comes_back_after_bursts(machine: CudaMachine, product) -> None:
    call, _, _ = product
    machine.release()
    before = machine.free_bytes()
    for _ in range(5):
        machine.burst(call, 200).close()
    machine.release()
    assert before - machine.free_bytes() < 64 << 20


def test_a_cold_call_comes_after_a_flush_that_is_not_counted(
    machine: CudaMachine, product, monkeypatch: pytest.MonkeyPatch
) -> None:
    call, outs, expected = product
    log: list[str] = []
    flush = machine.flush
    monkeypatch.setattr(machine, "flush", lambda: (log.append("flush"), flush()))
    burst = machine.burst(lambda index: (log.append("call"), call(index)), 6, timing="cold")
    assert isinstance(burst, ColdBurst)
    for out in outs:
        out.zero_()
    log.clear()
    sample = burst.run()
    assert log == ["flush", "call"] * 6
    assert all(torch.equal(out, expected) for out in outs)
    # Six parts of a stretch of the stream, in which the flushes lie between them.
    assert 0 < sample.seconds * burst.calls < burst._start.elapsed_time(burst._end) * 1e-3
    buffer, total = machine._flush  # type: ignore[misc]
    assert buffer.nbytes >= FLUSHED * machine.l2_bytes - 4
    assert float(total) == 0


def test_host_time_never_fills_the_launch_queue(machine: CudaMachine, product, monkeypatch: pytest.MonkeyPatch) -> None:
    call, _, _ = product
    in_flight = [0]
    synchronize = machine.synchronize

    def wait() -> None:
        synchronize()
        in_flight.append(0)

    def counted(index: int) -> None:
        in_flight[-1] += 1
        call(index)

    monkeypatch.setattr(machine, "synchronize", wait)
    burst = machine.burst(counted, 2 * IN_FLIGHT + 10, timing="host")
    sample = burst.run()
    assert (burst.timer, max(in_flight), sum(in_flight)) == ("wall", IN_FLIGHT, burst.calls)
    assert sample.finished is not None
    assert 0 < sample.seconds <= sample.finished


@pytest.mark.parametrize(
    ("options", "rows"),
    [
        (["--mnk", "3x256,128,192", "--layouts", "nt"], 1),
        (["--mnk", "256,128,192", "--mode", "cold"], 1),
        (["--mnk", "1,512,256", "--layouts", "nt"], 1),
        (["--mnk", "256,256,256", "--mode", "e2e"], 2),
    ],
)
def test_every_backend_is_checked_and_timed(options: list[str], rows: int, tmp_path: Path) -> None:
    out = tmp_path / "run.json"
    how = ["--backends", "*:default", "--rounds", "2", "--burst-ms", "1", "--idle-ms", "0", "--quiet"]
    assert main([*options, *how, "--out", str(out)]) == 0
    (case,) = read(out).cases
    timed = [label(row) for row in case.rows if row.role == "contestant" and row.status == "ok"]
    assert timed.count("torch") == rows
    assert len(timed) >= 3 * rows
    assert {row.status for row in case.rows if row.role == "contestant"} <= {"ok", "refused", "unavailable"}


CONTESTANTS = """
import torch
import hgemm

def good(a, b, out, config):
    torch.matmul(a, b, out=out)

def spins(a, b, out, config):
    torch.cuda._sleep(int(30e9))

hgemm.register_backend("good", good)
hgemm.register_backend("spins", spins)
"""


def test_a_kernel_that_spins_is_found_out_in_another_process(machine: CudaMachine, tmp_path: Path) -> None:
    path = tmp_path / "mine.py"
    path.write_text(CONTESTANTS)
    names = load(path)
    preflight = Preflight(machine.device, [path], names, "own", 120.0)
    case = Case(Shape(64, 64, 64))
    good, spins = (Choice(hgemm.backends()[name], None) for name in names)
    try:
        assert preflight(good, case) is None
        preflight._limit = 2.0  # the child has started
        assert preflight(spins, case) == ("hangs", "did not end within 2 s in a process of its own")
        preflight._limit = 120.0
        assert preflight(good, Case(Shape(128, 64, 64))) is None
    finally:
        preflight.close()
    machine.synchronize()


def test_the_watchdog_sees_a_wait_for_the_device(machine: CudaMachine) -> None:
    seen: list[bool] = []
    with machine.activate():
        done = torch.cuda.Event()
        with Watchdog(0.4, lambda: seen.append(done.query())) as watchdog, watchdog.watch():
            torch.cuda._sleep(int(6e9))  # some seconds
            done.record()
            machine.synchronize()
    assert seen == [False]
