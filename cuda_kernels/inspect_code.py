"""What the compiler made of a unit, without a GPU: registers, spills, resident blocks, machine code.

Read from a cubin with cuobjdump, which comes with Triton. A kernel is known by the name of its configuration's struct,
`Config_<index>`, inside the kernel's mangled name.
"""

from __future__ import annotations

import contextlib
import importlib.util
import re
import shutil
import subprocess
from pathlib import Path
from typing import TypeVar

from hgemm.config import THREADS_PER_WARP
from hgemm.cuda_kernels import architectures, build, toolchain
from hgemm.cuda_kernels.architectures import RESERVED_SHARED_BYTES
from hgemm.cuda_kernels.binding import Resources
from hgemm.cuda_kernels.configs import FAMILIES, Family, KernelConfig, Unit
from hgemm.cuda_kernels.toolchain import BuildError
from hgemm.devices import LIMITS

# A warp is given registers in multiples of this (cuda_occupancy.h in CUDA's headers).
REGISTERS_PER_ALLOCATION = 256
# A mangled name spells the length of an identifier before it, which tells where the index ends.
_CONFIG = re.compile(r"8Config_(\d)|9Config_(\d\d)|10Config_(\d{3})")


T = TypeVar("T")


def find_cuobjdump() -> Path:
    """cuobjdump of the Triton package, else of the toolkit, else of the PATH; or BuildError."""
    candidates = []
    triton = importlib.util.find_spec("triton")
    if triton is not None and triton.origin:
        candidates.append(Path(triton.origin).parent / "backends" / "nvidia" / "bin" / "cuobjdump")
    with contextlib.suppress(BuildError):
        candidates.append(Path(toolchain.find_nvcc().command[0]).resolve().with_name("cuobjdump"))
    if found := shutil.which("cuobjdump"):
        candidates.append(Path(found))
    for path in candidates:
        if path.is_file():
            return path
    raise BuildError("no cuobjdump: it is not in the triton package, beside nvcc nor on the PATH; pip install triton")


def resource_usage(unit: Unit, arch: str) -> dict[str, Resources]:
    """Resources by configuration name, as compiled for `arch` ("90a"). Raises BuildError.

    Shared memory is the dynamic one that configs.py asks for: the kernels declare none, and what the cubin reports is
    the system's own. Blocks per multiprocessor hold for the compute capability that the architecture begins with. Where
    a configuration is compiled in several forms (one for each copy width), each number is the worst of them.
    """
    family, capability = FAMILIES[unit.family], architectures.capability_of(arch)
    report = _cuobjdump("-res-usage", build.compile_cubin(unit, arch))
    usage: dict[str, Resources] = {}
    for mangled, text in re.findall(r"Function (\S+?):\s*\n?\s*(REG:[^\n]*)", report):
        kernel = _kernel(family, mangled)
        if kernel is None:
            continue
        numbers = {name: int(value) for name, value in re.findall(r"([A-Z]+):(\d+)", text)}
        registers, spill_bytes = numbers["REG"], numbers["STACK"] + numbers["LOCAL"]
        threads = kernel.config.threads
        if other := usage.get(kernel.name):
            registers, spill_bytes = max(registers, other.registers), max(spill_bytes, other.spill_bytes)
        usage[kernel.name] = Resources(
            registers=registers,
            spill_bytes=spill_bytes,
            shared_bytes=kernel.shared_bytes,
            threads=threads,
            blocks_per_multiprocessor=resident_blocks(capability, registers, kernel.shared_bytes, threads),
        )
    return _all_configs(family, usage, report)


def machine_code(unit: Unit, arch: str) -> dict[str, str]:
    """SASS by configuration name, as compiled for `arch`: all its functions, one after the other. Raises BuildError."""
    family = FAMILIES[unit.family]
    listing = _cuobjdump("-sass", build.compile_cubin(unit, arch))
    code: dict[str, str] = {}
    for part in listing.split("Function : ")[1:]:
        kernel = _kernel(family, part.split(maxsplit=1)[0])
        if kernel is not None:
            code[kernel.name] = code.get(kernel.name, "") + "Function : " + part
    return _all_configs(family, code, listing)


def resident_blocks(capability: tuple[int, int], registers: int, shared_bytes: int, threads: int) -> int:
    """Blocks that fit a multiprocessor together, by its registers, shared memory, threads and slots for blocks."""
    limits = LIMITS[capability]
    warps = -(-threads // THREADS_PER_WARP)
    unit = REGISTERS_PER_ALLOCATION
    registers_per_warp = -(-registers * THREADS_PER_WARP // unit) * unit
    return min(
        limits.registers_per_multiprocessor // (registers_per_warp * warps),
        limits.shared_bytes_per_multiprocessor // (shared_bytes + RESERVED_SHARED_BYTES),
        limits.threads_per_multiprocessor // (warps * THREADS_PER_WARP),
        limits.blocks_per_multiprocessor,
    )


def _kernel(family: Family, mangled: str) -> KernelConfig | None:
    """The configuration whose struct a mangled kernel name holds."""
    found = _CONFIG.search(mangled)
    if found is None:
        return None
    return family.configs[int(next(digits for digits in found.groups() if digits is not None))]


def _all_configs(family: Family, found: dict[str, T], output: str) -> dict[str, T]:
    names = [kernel.name for kernel in family.configs]
    if missing := [name for name in names if name not in found]:
        raise BuildError(f"cuobjdump shows no kernel for {', '.join(missing)}", output)
    return {name: found[name] for name in names}


def _cuobjdump(option: str, cubin: Path) -> str:
    command = (str(find_cuobjdump()), option, str(cubin))
    answer = subprocess.run(command, capture_output=True, text=True)
    if answer.returncode != 0:
        raise BuildError(f"cuobjdump {option} failed: {answer.stderr.strip()}", answer.stderr)
    return answer.stdout + answer.stderr
