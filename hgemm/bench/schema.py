"""The schema of a results file: these dataclasses are its one definition, field for field.

A file holds what was measured and what is needed to judge it; medians, intervals and ratios are computed from the
samples on reading. Times are microseconds a call, clocks MHz, memory bytes. Nothing names a host, a user or a path.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Literal

SCHEMA = "hgemm-bench"
SCHEMA_VERSION = 2
READABLE_VERSIONS = (1, 2)
"""Version 2 added batch, label, complete, allocates, finished_us, the mode "cold" and the status "hangs"; what a file
of version 1 lacks takes its default."""

Mode = Literal["kernel", "cold", "rotating", "e2e"]
"""kernel: device time on one set of operands, warm in L2. cold: device time of a call after the L2 was flushed, which
is not counted. rotating: device time, operands rotating through at least three times the L2. e2e: the host's time to
issue a call of the public function, few enough in flight that the host never waits for the device."""

Status = Literal["ok", "refused", "unavailable", "failed", "hangs", "wrong", "interrupted"]
"""ok: timed. refused: does not take this product. unavailable: cannot run on this machine. failed: raised an exception,
or ended its process. hangs: did not end within the limit. wrong: computed something else, and was not timed.
interrupted: the run ended before its first sample."""

Role = Literal["contestant", "control", "roof"]
"""contestant: computes the case. control: the same product in every case of every run. roof: what the device can do."""


@dataclass
class Clocks:
    """What NVML said while each sample ran, and what was counted, sample by sample; None where nothing was."""

    sm_mhz: list[int | None] = field(default_factory=list)
    memory_mhz: list[int | None] = field(default_factory=list)
    power_w: list[float | None] = field(default_factory=list)
    temperature_c: list[int | None] = field(default_factory=list)
    throttle: list[str] = field(default_factory=list)
    """What held the clock down, joined by "+", such as "sw_power_cap"; empty for nothing."""
    counted_mhz: list[float | None] = field(default_factory=list)
    """The clock of the multiprocessors over the whole sample, as they count it; empty in files before it was."""


@dataclass
class Timing:
    """Samples of one contestant: one a round, each the mean of ``calls`` calls."""

    mode: Mode
    timer: Literal["graph", "events", "wall"]
    """graph: events around a CUDA graph of the calls. events: around eager calls. wall: the host's clock."""
    burst_ms: float
    idle_ms: float
    """Before each burst; after one longer than ``burst_ms`` longer in proportion."""
    lead_in_bursts: int
    """Untimed bursts before each timed one: 0 in bursts, at least 1 in sustained running."""
    calls: int
    flops_per_call: int
    bytes_per_call: int
    """Compulsory bytes: each element read or written once."""
    operand_sets: int
    working_set_bytes: int
    rounds: list[int] = field(default_factory=list)
    """The round of each sample: samples of one round, of whichever contestant, were taken close together."""
    at_s: list[float] = field(default_factory=list)
    """When each sample began, in seconds since the run did."""
    samples_us: list[float] = field(default_factory=list)
    finished_us: list[float] = field(default_factory=list)
    """Mode e2e: the same calls until the device had finished them, sample by sample; empty in the other modes."""
    clocks: Clocks = field(default_factory=Clocks)
    dropped: int = 0
    """Samples lost to an error, or because the device waited for the host however often they were tried."""


@dataclass
class Kernel:
    """One kernel launch of a call, as the driver describes it."""

    name: str
    registers: int
    """32-bit registers a thread."""
    local_bytes: int
    """Local memory a thread: spilled registers, and arrays that were not kept in registers."""
    shared_bytes: int
    """Shared memory a block, static and dynamic."""
    threads: int
    blocks: int


@dataclass
class Check:
    """The largest error over its bound (hgemm.check); None if it is not finite."""

    error_over_bound: float | None
    passed: bool


@dataclass
class Row:
    """One contestant in one case."""

    role: Role
    backend: str
    config: str | None
    status: Status
    reason: str | None = None
    check: Check | None = None
    kernels: list[Kernel] | None = None
    """None where the driver could not be asked."""
    timing: Timing | None = None
    allocates: bool = False
    """In mode e2e everybody has two rows: called with ``out=``, and (True) without, so that each call allocates."""


@dataclass
class CaseResult:
    """One product, or a batch of them, and everybody's attempt at it. Strides count elements; flops and bytes are those
    of the whole batch."""

    M: int
    N: int
    K: int
    dtype: str
    layout: str
    strides: dict[str, list[int]]
    distribution: str
    seed: int
    flops: int
    compulsory_bytes: int
    rows: list[Row] = field(default_factory=list)
    batch: int = 1
    label: str | None = None
    """What the product is in a model, such as "8B gate_up"."""
    complete: bool = True
    """False if the run ended while this case was measured: rows may be missing or short of samples."""


@dataclass
class Roof:
    """A limit as this run measured it."""

    name: str
    kind: Literal["compute", "bandwidth"]
    unit: Literal["TFLOPS", "GB/s"]
    dtype: str | None
    accumulator: str | None
    value: float
    """Median of the samples."""
    samples: list[float]
    clock_mhz: float | None
    """Median clock of the multiprocessors while it was measured."""
    note: str
    """What was run to measure it."""


@dataclass
class Run:
    """How the file came to be. A resumed run began when its first sitting did; ``seconds`` add up its sittings."""

    utc: str
    """When the run began, as 2026-01-31T12:00:00Z."""
    seconds: float
    complete: bool
    """False if a budget, an interrupt or a lost device ended it early."""
    sources: str
    """Digest of the kernel sources."""
    revision: str | None
    """Git revision of the checkout, with "-dirty" for uncommitted changes; None outside one."""
    options: dict[str, str | int | float | bool | list[str] | None]


@dataclass
class Environment:
    """The machine and the software; None where it could not be asked."""

    gpu: str
    compute_capability: list[int]
    multiprocessors: int
    l2_bytes: int
    memory_bytes: int
    driver: str | None
    cuda: str | None
    """The CUDA release that torch was built for."""
    nvcc: str | None
    cublas: str | None
    torch: str
    triton: str | None
    numpy: str
    python: str
    hgemm: str
    platform: str
    """"Linux" or "WSL2"."""
    power_limit_w: float | None
    power_default_w: float | None
    clock_max_mhz: int | None
    ecc: bool | None


@dataclass
class Results:
    """A results file."""

    run: Run
    env: Environment
    flags: dict[str, str | bool | None]
    """Settings of torch that change what its products compute."""
    roofs: list[Roof]
    cases: list[CaseResult]
    schema: str = SCHEMA
    schema_version: int = SCHEMA_VERSION
