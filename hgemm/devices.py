"""The table of devices: limits by compute capability, and what the vendor quotes for each board.

Limits come from the table "Technical Specifications per Compute Capability" of NVIDIA's CUDA C++ Programming Guide.
A board's peak is arithmetic and not a quotation: multiprocessors x operations a clock x rated clock. It reproduces the
figures that NVIDIA prints (989.4 TFLOPS for an H100 SXM, 209.5 for an RTX 5090), and lets them be scaled to the clock
that a measurement ran at. All figures are dense, with fp32 accumulation; data sheets often lead with the sparse ones.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Limits:
    """What one multiprocessor of a compute capability has to share out."""

    shared_bytes_per_block: int
    """The most that one block can opt in to."""
    shared_bytes_per_multiprocessor: int
    """What resident blocks share; the system reserves 1,024 of it for each of them."""
    threads_per_multiprocessor: int
    blocks_per_multiprocessor: int
    registers_per_multiprocessor: int = 65_536


LIMITS: dict[tuple[int, int], Limits] = {
    (8, 0): Limits(166_912, 167_936, 2048, 32),
    (8, 6): Limits(101_376, 102_400, 1536, 16),
    (8, 9): Limits(101_376, 102_400, 1536, 24),
    (9, 0): Limits(232_448, 233_472, 2048, 32),
    (10, 0): Limits(232_448, 233_472, 2048, 32),
    (12, 0): Limits(101_376, 102_400, 1536, 24),
    (12, 1): Limits(101_376, 102_400, 1536, 24),
}


@dataclass(frozen=True)
class Device:
    """One board. ``names`` are what its driver calls it."""

    title: str
    names: tuple[str, ...]
    compute_capability: tuple[int, int]
    multiprocessors: int
    l2_mib: int
    clock_mhz: int
    """The clock behind the vendor's tensor peak: the boost clock, lower on some Hopper boards."""
    flops_per_clock: int
    """Dense 16-bit floating-point operations with fp32 accumulation, a clock and multiprocessor."""
    bandwidth_gbs: float
    """Peak bandwidth of device memory in 10^9 bytes a second."""
    source: str

    @property
    def limits(self) -> Limits:
        return LIMITS[self.compute_capability]

    def tensor_tflops(self, clock_mhz: float | None = None) -> float:
        """Dense fp16 or bf16 peak with fp32 accumulation in TFLOPS, at ``clock_mhz`` or at the rated clock."""
        clock = self.clock_mhz if clock_mhz is None else clock_mhz
        return self.multiprocessors * self.flops_per_clock * clock * 1e-6


# Operations a clock and multiprocessor. Hopper: 4 tensor cores of 512 fused multiply-adds. GeForce Blackwell runs
# fp32 accumulation at half the rate of fp16 accumulation; the PRO boards of the same chips do not.
HOPPER = 4096
GEFORCE_BLACKWELL = 512
PRO_BLACKWELL = 1024

# Where each board's figures are printed. The data sheets lead with sparse figures, twice the dense ones, and leave out
# counts and clocks, which the white papers have. The H200 has all six memory stacks of the chip, and with them all of
# the 60 MB of L2 that the Hopper white paper gives it; an H100 of 80 GB has five, and 50 MB.
_H100 = "NVIDIA H100 data sheet and Hopper architecture white paper"
_H200 = "NVIDIA H200 data sheet and Hopper architecture white paper"
_RTX_50 = "NVIDIA RTX Blackwell architecture white paper"
_RTX_50_PAGE = "NVIDIA's product page: multiprocessors and boost clock"
_LAPTOP_PAGE = "NVIDIA's product page, at the highest boost clock; the laptop's power limit sets the real one"
_PRO = "NVIDIA RTX PRO 6000 Blackwell data sheet and RTX Blackwell PRO architecture white paper"


DEVICES: tuple[Device, ...] = (
    Device("H200", ("NVIDIA H200",), (9, 0), 132, 60, 1830, HOPPER, 4800.0, _H200),
    Device("H200 NVL", ("NVIDIA H200 NVL",), (9, 0), 132, 60, 1545, HOPPER, 4800.0, _H200),
    Device("H100 SXM", ("NVIDIA H100 80GB HBM3",), (9, 0), 132, 50, 1830, HOPPER, 3350.0, _H100),
    Device("H100 PCIe", ("NVIDIA H100 PCIe",), (9, 0), 114, 50, 1620, HOPPER, 2000.0, _H100),
    Device("H100 NVL", ("NVIDIA H100 NVL",), (9, 0), 132, 50, 1545, HOPPER, 3900.0, _H100),
    Device("RTX 5090", ("NVIDIA GeForce RTX 5090",), (12, 0), 170, 96, 2407, GEFORCE_BLACKWELL, 1792.0, _RTX_50),
    Device("RTX 5080", ("NVIDIA GeForce RTX 5080",), (12, 0), 84, 64, 2617, GEFORCE_BLACKWELL, 960.0, _RTX_50),
    Device("RTX 5070 Ti", ("NVIDIA GeForce RTX 5070 Ti",), (12, 0), 70, 48, 2452, GEFORCE_BLACKWELL, 896.0, _RTX_50),
    Device("RTX 5070", ("NVIDIA GeForce RTX 5070",), (12, 0), 48, 48, 2512, GEFORCE_BLACKWELL, 672.0, _RTX_50),
    Device(
        "RTX 5060 Ti", ("NVIDIA GeForce RTX 5060 Ti",), (12, 0), 36, 32, 2572, GEFORCE_BLACKWELL, 448.0, _RTX_50_PAGE
    ),
    Device("RTX 5060", ("NVIDIA GeForce RTX 5060",), (12, 0), 30, 32, 2497, GEFORCE_BLACKWELL, 448.0, _RTX_50_PAGE),
    Device(
        "RTX 5060 Laptop",
        ("NVIDIA GeForce RTX 5060 Laptop GPU",),
        (12, 0),
        26,
        32,
        2497,
        GEFORCE_BLACKWELL,
        384.0,
        _LAPTOP_PAGE,
    ),
    Device(
        "RTX PRO 6000",
        (
            "NVIDIA RTX PRO 6000 Blackwell Workstation Edition",
            "NVIDIA RTX PRO 6000 Blackwell Server Edition",
        ),
        (12, 0),
        188,
        128,
        2617,
        PRO_BLACKWELL,
        1792.0,
        _PRO,
    ),
    Device(
        "RTX PRO 6000 Max-Q",
        ("NVIDIA RTX PRO 6000 Blackwell Max-Q Workstation Edition",),
        (12, 0),
        188,
        128,
        2280,
        PRO_BLACKWELL,
        1792.0,
        _PRO,
    ),
)


@dataclass(frozen=True)
class Rates:
    """What the cost model knows of the device that it predicts for, in SI units; tensor work is that of wgmma on
    Hopper, with fp32 accumulation."""

    title: str
    capability: tuple[int, int]
    multiprocessors: int
    shared_bytes: int
    """Of a multiprocessor, see ``Limits``."""
    flops_per_clock: float
    """Of a multiprocessor."""
    clock_hz: float
    bandwidth: float
    """Of the device's memory, bytes a second."""


# Boards that stand for a compute capability of which the table above has none: operations a clock and multiprocessor,
# rated clock in MHz, GB/s for each multiprocessor. A100, RTX 3090, RTX 4090 and B200, from NVIDIA's data sheets.
_TYPICAL = {
    (8, 0): (2048, 1410, 2039 / 108),
    (8, 6): (512, 1695, 936 / 82),
    (8, 9): (512, 2520, 1008 / 128),
    (10, 0): (8192, 1850, 8000 / 148),
}


def rates(name: str, capability: tuple[int, int], multiprocessors: int) -> Rates:
    """The rates of the board that a driver, or the table, calls ``name``; for one that the table lacks those of a board
    of its compute capability, or of the newest that is not newer, by its count of multiprocessors."""
    board = find(name, multiprocessors) or next((device for device in DEVICES if device.title == name), None)
    known = {device.compute_capability: device for device in reversed(DEVICES)}
    older = [found for found in LIMITS if found <= capability]
    stands_for = max((found for found in older if found in known or found in _TYPICAL), default=min(_TYPICAL))
    board = board or known.get(stands_for)
    limits = limits_of(capability)
    if board is None:
        flops, clock_mhz, bandwidth_gbs = _TYPICAL[stands_for]
    else:
        flops, clock_mhz = board.flops_per_clock, board.clock_mhz
        bandwidth_gbs = board.bandwidth_gbs / board.multiprocessors
    shared = limits.shared_bytes_per_multiprocessor
    return Rates(
        name, capability, multiprocessors, shared, flops, clock_mhz * 1e6, bandwidth_gbs * multiprocessors * 1e9
    )


def limits_of(capability: tuple[int, int]) -> Limits:
    """Those of the compute capability, or of the newest in the table that is not newer."""
    return LIMITS[max((found for found in LIMITS if found <= capability), default=min(LIMITS))]


def find(name: str, multiprocessors: int | None = None) -> Device | None:
    """The board that a driver calls ``name``, or None if the table lacks it.

    A count of ``multiprocessors`` other than the board's (a partition of it, or another variant under the same name)
    finds nothing, because the board's peaks would not hold.
    """
    for device in DEVICES:
        if name in device.names and multiprocessors in (None, device.multiprocessors):
            return device
    return None
