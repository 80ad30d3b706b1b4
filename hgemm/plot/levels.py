"""The roofs of a roofline as numbers: what a run measured, and what the vendor quotes, at the clock of that run."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal

from hgemm import devices
from hgemm.bench.metrics import CEILING, COPY, FRAGMENTS, L2, READ
from hgemm.bench.schema import Results, Roof

CUBLAS = "cublas"
VENDOR = "vendor"


@dataclass(frozen=True)
class Level:
    """One roof of the products of one dtype, which accumulate in fp32."""

    name: str
    """As in a results file, or ``vendor``."""
    kind: Literal["compute", "bandwidth"]
    value: float
    """TFLOPS, or TB/s."""
    text: str
    """What it is, how much, and at which clock of the multiprocessors."""
    measured: bool
    ridge: float | None = None
    """FLOP a byte of device memory from which on a compute roof is the lower one; None without a bandwidth."""


def memory_limit(roofs: Mapping[str, float]) -> float | None:
    """The most that device memory gave, by name: to reads alone, or in a file without them to a copy. None without
    either."""
    return roofs.get(READ, roofs.get(COPY))


def levels(results: Results, dtype: str) -> list[Level]:
    """The roofs under which a run's products of ``dtype`` lie, measured ones first.

    The vendor's tensor peak is scaled to the clock at which mma.sync was measured. Of the warp tiles fed by ldmatrix
    the fastest is there. Left out are the rate with fp16 accumulation, which is no roof of products that accumulate in
    fp32, and the bandwidth of shared memory, whose bytes are not those of an intensity in device memory or L2.
    """
    roofs = {roof.name: roof for roof in results.roofs if roof.dtype in (dtype, None) and roof.accumulator != "float16"}
    memory = roofs[COPY].value / 1000 if COPY in roofs else None
    device = devices.find(results.env.gpu, results.env.multiprocessors)
    quoted = device.bandwidth_gbs / 1000 if device else None

    found = []
    fed = max((name for name in FRAGMENTS if name in roofs), key=lambda name: roofs[name].value, default=FRAGMENTS[0])
    for name, words in ((CEILING, "mma.sync on registers"), (fed, fed), (CUBLAS, "best cuBLAS")):
        if roof := roofs.get(name):
            text = f"{words}, {roof.value:.3g} TFLOPS{_clock(roof)}"
            found.append(Level(name, "compute", roof.value, text, True, _ridge(roof.value, memory or quoted)))
    for name, words in ((COPY, "copy"), (READ, "memory reads"), (L2, "L2 reads")):
        if roof := roofs.get(name):
            terabytes = roof.value / 1000
            found.append(Level(name, "bandwidth", terabytes, f"{words} {terabytes:.3g} TB/s{_clock(roof)}", True))
    if device and quoted:
        ceiling = roofs.get(CEILING) or roofs.get(CUBLAS)
        peak, text = _vendor_peak(device, ceiling.clock_mhz if ceiling else None)
        found.append(Level(VENDOR, "compute", peak, text, False, _ridge(peak, quoted)))
        found.append(Level(VENDOR, "bandwidth", quoted, f"NVIDIA {quoted:.3g} TB/s", False))
    return found


def _vendor_peak(device: devices.Device, clock_mhz: float | None) -> tuple[float, str]:
    rated = device.tensor_tflops()
    if clock_mhz is None or clock_mhz == device.clock_mhz:
        return rated, f"NVIDIA, dense, {rated:.4g} TFLOPS at {device.clock_mhz} MHz"
    peak = device.tensor_tflops(clock_mhz)
    quoted = f"{rated:.4g} at {device.clock_mhz} MHz"
    return peak, f"NVIDIA, dense, {peak:.4g} TFLOPS at {clock_mhz:.0f} MHz ({quoted})"


def _clock(roof: Roof) -> str:
    return f" at {roof.clock_mhz:.0f} MHz" if roof.clock_mhz else ""


def _ridge(teraflops: float, terabytes: float | None) -> float | None:
    return teraflops / terabytes if terabytes else None
