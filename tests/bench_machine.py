"""A machine for testing the benchmark without a GPU: CPU tensors, and a clock that only contestants move."""

import contextlib
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch

from hgemm.backends import Backend, Properties
from hgemm.bench.bursts import BurstTiming, Call, Sample
from hgemm.bench.nvml import Reading
from hgemm.bench.schema import Environment, Kernel

READING = Reading(1830, 2619, 350.0, 45, ("sw_power_cap",))

BASE_SECONDS = 1e-4  # a call costs this much before the contestant adds its own


def environment(gpu: str = "NVIDIA H200", multiprocessors: int = 132) -> Environment:
    return Environment(
        gpu=gpu,
        compute_capability=[9, 0],
        multiprocessors=multiprocessors,
        l2_bytes=50 << 20,
        memory_bytes=140 << 30,
        driver="580.00",
        cuda="13.0",
        nvcc="13.0.88",
        cublas="13.1.0",
        torch="2.11.0",
        triton="3.6.0",
        numpy="2.4.0",
        python="3.12.0",
        hgemm="0.1.0",
        platform="Linux",
        power_limit_w=700.0,
        power_default_w=700.0,
        clock_max_mhz=1980,
        ecc=True,
    )


@dataclass
class FakeMachine:
    """Bursts run their calls eagerly; what they cost is what the calls ``spend``."""

    l2_bytes: int = 1 << 16
    free: int = 1 << 20
    device: torch.device = field(default_factory=lambda: torch.device("cpu"))
    reading: Reading = READING
    time: float = 0.0
    broken: str | None = None  # once set, the device answers nothing any more
    slept: list[float] = field(default_factory=list)
    bursts_closed: int = 0
    bursts_opened: int = 0
    on_burst: Callable[[], None] = lambda: None

    def spend(self, seconds: float) -> None:
        self.time += seconds

    @contextlib.contextmanager
    def activate(self) -> Iterator[None]:
        threads = torch.get_num_threads()
        torch.set_num_threads(1)  # the products are small, and threads wait for each other where the cores are taken
        try:
            yield
        finally:
            torch.set_num_threads(threads)

    def environment(self) -> Environment:
        return environment()

    def free_bytes(self) -> int:
        return self.free

    def clock(self) -> float:
        return self.time

    def sleep(self, seconds: float) -> None:
        self.slept.append(seconds)
        self.time += seconds

    def launch_nothing(self) -> None:
        pass

    def synchronize(self) -> None:
        if self.broken:
            raise RuntimeError(self.broken)

    def seconds(self, call: Call, calls: int, timing: BurstTiming = "device") -> float:
        return FakeBurst(self, call, calls, timing).run().seconds

    def burst(self, call: Call, calls: int, *, ring: int = 1, timing: BurstTiming = "device") -> "FakeBurst":
        self.bursts_opened += 1
        return FakeBurst(self, call, -(-calls // ring) * ring, timing)

    def kernels(self, call: Call) -> list[Kernel] | None:
        return [Kernel("kernel", 128, 0, 49152, 256, 1024)]

    def release(self) -> None:
        pass


@dataclass
class FakeBurst:
    machine: FakeMachine
    call: Call
    calls: int
    timing: BurstTiming

    @property
    def timer(self) -> Any:
        return {"device": "graph", "cold": "events", "host": "wall"}[self.timing]

    def run(self) -> Sample:
        self.machine.on_burst()
        began = self.machine.time
        for index in range(self.calls):
            self.call(index)
            self.machine.spend(BASE_SECONDS)
        seconds = (self.machine.time - began) / self.calls
        if self.timing == "host":  # the device takes as long again as the host
            self.machine.spend(self.calls * seconds)
            return Sample(began, seconds, self.machine.reading, 2 * seconds)
        return Sample(began, seconds, self.machine.reading)

    def close(self) -> None:
        self.machine.bursts_closed += 1


class FakeCeiling:
    """1e9 operations or bytes an iteration, 1e-6 s each beyond the base."""

    data_bytes = 4 * 10**9

    def __init__(self, machine: FakeMachine) -> None:
        self.machine = machine

    def work(self, iterations: int) -> int:
        return 10**9 * iterations

    def launch(self, iterations: int) -> None:
        self.machine.spend(1e-6 * iterations)


@dataclass
class Verdict:
    error_over_bound: float
    passed: bool


def verify(a: torch.Tensor, b: torch.Tensor, c: torch.Tensor, properties: Properties) -> Verdict:
    """The rounded product is within 1% of the fp64 one, or the verdict is bad."""
    error = (c.double() - a.double() @ b.double()).abs() / (0.01 * (a.double().abs() @ b.double().abs()) + 1e-9)
    worst = float(error.nan_to_num(nan=float("inf")).max())
    return Verdict(worst, worst <= 1)


def backend(
    name: str,
    fn: Callable[..., None],
    configs: Sequence[str] = (),
    unavailable: str | None = None,
    accepts: Callable[..., str | None] = lambda problem, config: None,
) -> Backend:
    return Backend(
        name=name,
        idea="",
        requires=(),
        configs=tuple(configs),
        properties=Properties(),
        unavailable=lambda device_type: unavailable,
        accepts=accepts,
        choose=lambda problem: configs[0] if configs else None,
        run=fn,
    )


def product(
    machine: FakeMachine, seconds: float = 0.0, log: list[str] | None = None, name: str = ""
) -> Callable[..., None]:
    """A right contestant of known cost that logs its calls."""

    def run(a: torch.Tensor, b: torch.Tensor, out: torch.Tensor, config: str | None) -> None:
        machine.spend(seconds)
        if log is not None:
            log.append(f"{name}:{config}" if config else name)
        out.copy_(a.float() @ b.float())

    return run


def runs(log: Sequence[str]) -> Iterator[tuple[str, int]]:
    """(name, calls in a row) for each stretch of equal entries."""
    start = 0
    for end in range(1, len(log) + 1):
        if end == len(log) or log[end] != log[start]:
            yield log[start], end - start
            start = end
