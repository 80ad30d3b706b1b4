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
from dataclasses import dataclass
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


# A function and its line of `cuobjdump -res-usage`.
_USAGE = re.compile(r"Function (\S+?):\s*\n?\s*(REG:[^\n]*)")

T = TypeVar("T")


@dataclass(frozen=True)
class Variant:
    """One function of a configuration's code: what one launch of it runs. Units are those of ``Resources``."""

    copy_bytes: int | None  # bytes of one cp.async, for which that family has a function each
    registers: int
    spill_bytes: int
    sass: str


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
    for mangled, text in re.findall(_USAGE, report):
        kernel = _kernel(family, mangled)
        if kernel is None:
            continue
        numbers = _numbers(text)
        registers, spill_bytes = numbers["REG"], numbers["STACK"] + numbers["LOCAL"]
        threads = kernel.threads
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


def variants(unit: Unit, arch: str) -> dict[str, list[Variant]]:
    """The functions of each configuration, as compiled for `arch`, those with the widest copies first.

    Raises BuildError.
    """
    family, cubin = FAMILIES[unit.family], build.compile_cubin(unit, arch)
    report, listing = _cuobjdump("-res-usage", cubin), _cuobjdump("-sass", cubin)
    code = {part.split(maxsplit=1)[0]: "Function : " + part for part in listing.split("Function : ")[1:]}
    found: dict[str, list[Variant]] = {}
    for mangled, text in re.findall(_USAGE, report):
        kernel = _kernel(family, mangled)
        if kernel is None:
            continue
        if mangled not in code:
            raise BuildError(f"cuobjdump shows no machine code of {mangled}", listing)
        numbers = _numbers(text)
        width = re.search(r"Config_\d+Li(\d+)E", mangled)
        variant = Variant(
            copy_bytes=int(width[1]) if width else None,
            registers=numbers["REG"],
            spill_bytes=numbers["STACK"] + numbers["LOCAL"],
            sass=code[mangled],
        )
        found.setdefault(kernel.name, []).append(variant)
    for functions in found.values():
        functions.sort(key=lambda variant: -(variant.copy_bytes or 0))
    return _all_configs(family, found, report)


def resident_blocks(capability: tuple[int, int], registers: int, shared_bytes: int, threads: int) -> int:
    """Blocks that fit a multiprocessor together: the least of `block_limits`."""
    return min(block_limits(capability, registers, shared_bytes, threads).values())


def block_limits(capability: tuple[int, int], registers: int, shared_bytes: int, threads: int) -> dict[str, int]:
    """Blocks that each resource of a multiprocessor has room for, by its name.

    `registers` a thread; `shared_bytes` and `threads` a block. Raises KeyError for a capability that LIMITS lacks.
    """
    limits = LIMITS[capability]
    warps = -(-threads // THREADS_PER_WARP)
    unit = REGISTERS_PER_ALLOCATION
    registers_per_warp = -(-registers * THREADS_PER_WARP // unit) * unit
    return {
        "registers": limits.registers_per_multiprocessor // (registers_per_warp * warps),
        "shared memory": limits.shared_bytes_per_multiprocessor // (shared_bytes + RESERVED_SHARED_BYTES),
        "threads": limits.threads_per_multiprocessor // (warps * THREADS_PER_WARP),
        "block slots": limits.blocks_per_multiprocessor,
    }


def _kernel(family: Family, mangled: str) -> KernelConfig | None:
    """The configuration whose struct a mangled kernel name holds."""
    found = _CONFIG.search(mangled)
    if found is None:
        return None
    return family.configs[int(next(digits for digits in found.groups() if digits is not None))]


def _numbers(text: str) -> dict[str, int]:
    return {name: int(value) for name, value in re.findall(r"([A-Z]+):(\d+)", text)}


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
