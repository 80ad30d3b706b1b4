"""Compiling kernels for the CPU: a C++ compiler is all that it takes.

HGEMM_EMULATOR_CXXFLAGS adds flags, as "-O0 -g" to step through a kernel.
"""

from __future__ import annotations

import functools
import os
import shlex
from collections.abc import Sequence
from pathlib import Path

from hgemm.cuda_kernels import build as compiling
from hgemm.cuda_kernels import cache, toolchain
from hgemm.cuda_kernels.compilation import Compilation, Progress
from hgemm.cuda_kernels.configs import Unit
from hgemm.cuda_kernels.emulator.library import EmulatedLibrary
from hgemm.cuda_kernels.toolchain import BuildError

FLAGS = (
    *("-std=c++20", "-g1", "-fPIC", "-fno-semantic-interposition", "-pthread", "-DHGEMM_EMULATOR"),
    # nvcc's unroll pragmas, and a GCC note about parameters with 64-byte alignment.
    *("-Wno-unknown-pragmas", "-Wno-psabi"),
)
# The time of a run is the emulator's: kernels are compiled once a unit, which takes half as long so, and run no slower.
CORE_OPTIMISATION, UNIT_OPTIMISATION = "-O2", "-Og"
# All units instantiate templates over structs of the same names: no symbol may be shared between the libraries.
LIBRARY_FLAGS = ("-shared", "-fno-gnu-unique", "-Wl,-Bsymbolic")
CORE = '#include "emulator/emulator.cpp"\n'


def build_units(units: Sequence[Unit], progress: Progress | None = None) -> list[Path]:
    """Paths of the units' shared libraries for the CPU; those that are missing are compiled. Raises BuildError."""
    return _link([(f"{unit.name}_emulated", unit.source()) for unit in units], progress=progress)


def build_library(name: str, text: str, folder: Path | None = None, flags: Sequence[str] = ()) -> Path:
    """Path of the shared library made of C++ text and the emulator. Raises BuildError.

    The text may include the headers of cuda_kernels, and those in `folder`, by name.
    """
    return _link([(f"{name}_emulated", text)], folder, flags)[0]


def core_object(flags: Sequence[str] = ()) -> Path:
    """Path of the emulator itself, compiled: what kernels compiled with FLAGS are linked with. Raises BuildError."""
    return compiling._build([_core(flags)], None)[0]


@functools.cache
def load_unit(unit: Unit) -> EmulatedLibrary:
    """The unit, compiled if it never was, and opened. Raises BuildError."""
    return EmulatedLibrary(build_units([unit])[0])


def _core(flags: Sequence[str]) -> Compilation:
    return _compilation("emulator", CORE, "emulator.o", ("-c", CORE_OPTIMISATION, *flags))


def _link(
    sources: Sequence[tuple[str, str]],
    folder: Path | None = None,
    flags: Sequence[str] = (),
    progress: Progress | None = None,
) -> list[Path]:
    extra = (*flags, *_wanted_flags())
    core = _core(extra)
    paths: tuple[str, ...] = (str(compiling._build([core], progress)[0]),)
    items = []
    for name, text in sources:
        requirements = [core.entry]
        if folder is not None:
            paths = (*paths, f"-I{folder}")
            requirements += [f"{file}:{cache.key(found)}" for file, found in cache.included_files(text, folder).items()]
        all_flags = (UNIT_OPTIMISATION, *LIBRARY_FLAGS, *extra)
        items.append(_compilation(name, text, f"{name}.so", all_flags, paths, tuple(requirements)))
    return compiling._build(items, progress)


def _compilation(
    name: str,
    text: str,
    product: str,
    flags: Sequence[str],
    paths: tuple[str, ...] = (),
    requirements: tuple[str, ...] = (),
) -> Compilation:
    return Compilation(name, text, ".cpp", product, toolchain.find_cxx(), (*FLAGS, *flags), paths, requirements)


def _wanted_flags() -> tuple[str, ...]:
    text = os.environ.get("HGEMM_EMULATOR_CXXFLAGS", "")
    try:
        return tuple(shlex.split(text))
    except ValueError as error:
        raise BuildError(f"HGEMM_EMULATOR_CXXFLAGS={text!r} cannot be split into flags: {error}") from error
