"""The device layer on a CUDA device: both timers agree, graphs hold what was captured, the driver names the kernels."""

import time

import pytest
import torch

from hgemm.bench.machine import LARGEST_GRAPH, CudaMachine, _EventBurst

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

    burst = _EventBurst(machine, slow_to_launch, 32)
    # The device spins for longer than the 32 launches take, at a clock of 2 GHz or less.
    assert burst._spin_cycles > 2e9 * 32 * 200e-6
    burst.run()


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
