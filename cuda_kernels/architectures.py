"""Which GPU architectures the kernels are compiled for, under nvcc's names: "80", "90a", "120f"."""

from __future__ import annotations

import ctypes
import functools
import os
import re
from collections.abc import Sequence

import torch

from hgemm.cuda_kernels.toolchain import BuildError, Tool

DEFAULT = ("90a", "120f")  # Hopper, and the GeForce Blackwell family (120 and 121)
# Targets with a suffix, and the first nvcc that compiles the kernels for them: TMA is written in PTX ISA 8.6.
SPECIFIC = {90: ("90a", (12, 8)), 120: ("120f", (12, 9)), 121: ("120f", (12, 9))}
# The system takes this much of a multiprocessor's shared memory for each resident block (CUDA C++ Programming Guide,
# "Compute Capability 8.x" and later).
RESERVED_SHARED_BYTES = 1024


def of_capability(capability: tuple[int, int]) -> str:
    """The architecture built for a device of this compute capability: (9, 0) -> "90a", (8, 6) -> "86"."""
    number = 10 * capability[0] + capability[1]
    return SPECIFIC[number][0] if number in SPECIFIC else str(number)


def capability_of(architecture: str) -> tuple[int, int]:
    """The least compute capability that runs code for `architecture`: "120f" -> (12, 0)."""
    major, minor = divmod(int(architecture.rstrip("af")), 10)
    return major, minor


def runs_on(architecture: str, capability: tuple[int, int]) -> bool:
    """Whether a device runs machine code for `architecture`: 8.6 to 8.9 run "86", 9.0 alone "90a", 12.x "120f"."""
    target = capability_of(architecture)
    if architecture.endswith("a"):
        return target == capability
    return target[0] == capability[0] and target[1] <= capability[1]


def selected(minimum: tuple[int, int] = (8, 0)) -> tuple[str, ...]:
    """Architectures to build for, those below the compute capability `minimum` left out.

    HGEMM_CUDA_ARCHS ("90a;120f") decides; else TORCH_CUDA_ARCH_LIST ("8.0 9.0+PTX", of which PTX is ignored); else the
    devices present; else DEFAULT. Raises BuildError for an entry that cannot be read, and if nothing is left.
    """
    wanted, source = _wanted()
    chosen = tuple(dict.fromkeys(name for name in wanted if capability_of(name) >= minimum))
    if not chosen:
        raise BuildError(
            f"no architecture to build for: {source} gives {', '.join(wanted)}, and these kernels need compute "
            f"capability {minimum[0]}.{minimum[1]} or newer; set HGEMM_CUDA_ARCHS, for example to '90a;120f'"
        )
    return chosen


def not_covered(capability: tuple[int, int]) -> str | None:
    """Why nothing that would be built now runs on a device of this capability, or None."""
    wanted, source = _wanted()
    if any(runs_on(name, capability) for name in wanted):
        return None
    return (
        f"{source} ({', '.join(wanted)}) leaves out this device's compute capability {capability[0]}.{capability[1]}: "
        f"add {of_capability(capability)} to HGEMM_CUDA_ARCHS"
    )


def check_toolkit(architectures: Sequence[str], nvcc: Tool) -> None:
    """Raises BuildError if `nvcc` is too old for one of the architectures, or too new for the driver that is installed.

    Its major version need not be torch's. Every library built here holds its own CUDA runtime (`-cudart static`), and
    all that torch hands over are addresses and a stream, which belong to the driver. The driver must know the toolkit's
    major version; within one, any minor version will do, because no PTX is embedded.
    """
    for name, first in SPECIFIC.values():
        if name in architectures and nvcc.release < first:
            raise BuildError(
                f"architecture {name} needs nvcc {first[0]}.{first[1]} or newer, found {nvcc}: pip install "
                "'hgemm[toolkit]', set CUDA_HOME to a newer toolkit, or name other architectures in HGEMM_CUDA_ARCHS"
            )
    if torch.cuda.is_available():
        driver = driver_release()[0]
        if nvcc.release[0] > driver:
            raise BuildError(
                f"nvcc {nvcc} makes programs for CUDA {nvcc.release[0]}, and the driver knows CUDA {driver} at most: "
                f"update the driver, or set CUDA_HOME to a toolkit of CUDA {driver}"
            )


@functools.cache
def driver_release() -> tuple[int, int]:
    """The newest CUDA that the installed driver knows."""
    version = ctypes.c_int()
    ctypes.CDLL("libcuda.so.1").cuDriverGetVersion(ctypes.byref(version))
    return version.value // 1000, version.value % 1000 // 10


def gencode(architectures: Sequence[str]) -> tuple[str, ...]:
    """nvcc's flags for machine code of exactly these architectures, without PTX."""
    return tuple(word for name in architectures for word in ("-gencode", f"arch=compute_{name},code=sm_{name}"))


def _wanted() -> tuple[tuple[str, ...], str]:
    """Architectures and where they come from, before any is left out."""
    for variable in ("HGEMM_CUDA_ARCHS", "TORCH_CUDA_ARCH_LIST"):
        entries = re.split(r"[;,\s]+", os.environ.get(variable, "").strip(" ;,"))
        if entries != [""]:
            return tuple(_parse(entry, variable) for entry in entries), variable
    if torch.cuda.is_available():
        devices = (torch.cuda.get_device_capability(index) for index in range(torch.cuda.device_count()))
        return tuple(of_capability(capability) for capability in devices), "the list of devices present"
    return DEFAULT, "the default"


def _parse(entry: str, variable: str) -> str:
    """One entry in nvcc's spelling, "90a", or in torch's, "9.0+PTX", which stands for what such a device gets."""
    match = re.fullmatch(r"(\d+)\.(\d)([af]?)(?:\+PTX)?|(?:sm_)?(\d{2,3}[af]?)", entry)
    if match is None:
        raise BuildError(f"{variable}: {entry!r} is no architecture; write them as '90a;120f' (or '9.0;12.0')")
    major, minor, suffix, plain = match.groups()
    if plain:
        return plain
    return f"{major}{minor}{suffix}" if suffix else of_capability((int(major), int(minor)))
