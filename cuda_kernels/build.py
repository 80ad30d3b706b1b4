"""Compiling the kernels and the binding when they are first asked for, once for each source, flags and toolchain.

One ninja run compiles all that is missing of what was asked for; cache.py keeps the results and sees to it that of
several processes one builds and the others wait. HGEMM_VERBOSE=1 shows commands and compiler output, MAX_JOBS bounds
the compilers at work, HGEMM_CACHE_DIR names the cache, HGEMM_CUDA_ARCHS the architectures.
"""

from __future__ import annotations

import contextlib
import functools
import shutil
import sys
import tempfile
import threading
from collections.abc import Iterator, Sequence
from pathlib import Path

import torch

from hgemm.cuda_kernels import architectures, cache, compilation, toolchain
from hgemm.cuda_kernels.binding import Binding, LoadedUnit
from hgemm.cuda_kernels.compilation import FOLDER, Compilation, Progress
from hgemm.cuda_kernels.configs import FAMILIES, Unit
from hgemm.cuda_kernels.toolchain import BuildError

__all__ = ["BuildError", "binding", "build_library", "build_units", "compile_cubin", "load_unit"]

NVCC_FLAGS = ("-std=c++20", "-O3", "-lineinfo")
LIBRARY_FLAGS = (
    *("-shared", "-cudart", "static"),
    # All units instantiate templates over structs of the same names: no symbol may be shared between the libraries.
    *("-Xcompiler", "-fPIC,-fno-gnu-unique", "-Xlinker", "-Bsymbolic"),
)
BINDING_FLAGS = (
    *("-std=c++20", "-O2", "-fPIC", "-shared"),
    "-DTORCH_TARGET_VERSION=0x020a000000000000",  # the stable ABI as of torch 2.10
    *("-Wl,--no-as-needed", "-ltorch_cpu"),
)


def load_unit(unit: Unit, device_type: str = "cuda") -> LoadedUnit:
    """The unit, compiled if it never was, and opened: its `handle` is what `torch.ops.hgemm_cuda.mm_out` takes.

    For "cpu" it is the same source in the emulator, and a C++ compiler is enough.

    Raises BuildError, whose message names what is missing or holds the compiler's own lines.
    """
    from hgemm.cuda_kernels.emulator import build as emulator  # which stands on this module

    build_for_device = build_units if device_type == "cuda" else emulator.build_units
    with _loading:
        if (unit, device_type) not in _loaded:
            loaded = binding().load_unit(build_for_device([unit])[0], device_type, unit.dtype, unit.layout)
            names = tuple(kernel.name for kernel in FAMILIES[unit.family].configs)
            if loaded.configs != names:
                raise BuildError(f"{loaded.path} holds the configurations {loaded.configs}, configs.py lists {names}")
            _loaded[unit, device_type] = loaded
        return _loaded[unit, device_type]


def build_units(
    units: Sequence[Unit], archs: Sequence[str] | None = None, progress: Progress | None = None
) -> list[Path]:
    """Paths of the units' shared libraries; those that are missing are compiled, several at a time.

    `archs` as in ("90a",), by default `architectures.selected` for the unit's family. Without `progress` a line tells
    of it if the standard error output is a terminal. Raises BuildError.
    """
    return _build([_unit_library(unit, archs) for unit in units], progress)


def build_library(name: str, text: str, minimum_capability: tuple[int, int] = (8, 0)) -> Path:
    """Path of CUDA C++ that is no unit of configs.py, compiled into a shared library like one. Raises BuildError."""
    return _build([_library(name, text, architectures.selected(minimum_capability))], None)[0]


def compile_cubin(unit: Unit, arch: str) -> Path:
    """Path of the unit's machine code for one architecture, as a cubin file. Raises BuildError."""
    return _build([_nvcc(f"{unit.name}_{arch}", unit.source(), (arch,), ("-cubin",), "code.cubin")], None)[0]


@functools.cache
def binding() -> Binding:
    """The binding, compiled if it never was, and loaded. Raises BuildError."""
    return Binding(_build([_binding_library()], None)[0])


_loading = threading.RLock()
_loaded: dict[tuple[Unit, str], LoadedUnit] = {}


def _unit_library(unit: Unit, archs: Sequence[str] | None) -> Compilation:
    chosen = archs or architectures.selected(FAMILIES[unit.family].minimum_capability)
    return _library(unit.name, unit.source(), chosen)


def _library(name: str, text: str, archs: Sequence[str]) -> Compilation:
    return _nvcc(name, text, archs, LIBRARY_FLAGS, f"{name}.so")


def _nvcc(name: str, text: str, archs: Sequence[str], flags: Sequence[str], product: str) -> Compilation:
    nvcc, host = toolchain.find_nvcc(), toolchain.find_cxx()
    architectures.check_toolkit(archs, nvcc)
    all_flags = (*NVCC_FLAGS, *flags, *architectures.gencode(archs))
    paths = ("-ccbin", host.command[-1])
    return Compilation(name, text, ".cu", product, nvcc, all_flags, paths, requirements=(host.version,))


def _binding_library() -> Compilation:
    home = Path(torch.__file__).parent
    return Compilation(
        name="binding",
        text=(FOLDER / "binding.cpp").read_text(),
        suffix=".cpp",
        product="binding.so",
        compiler=toolchain.find_cxx(),
        flags=(*BINDING_FLAGS, *(("-DUSE_CUDA", "-ltorch_cuda") if torch.version.cuda else ())),
        paths=("-isystem", str(home / "include"), f"-L{home / 'lib'}"),
        requirements=(torch.__version__,),
    )


def _build(compilations: Sequence[Compilation], progress: Progress | None) -> list[Path]:
    """The product of each, in order; compiles what the cache lacks."""
    missing = {item.entry: item for item in _missing(compilations)}
    if missing:
        folder = cache.writable_folder()
        with contextlib.ExitStack() as stack:
            report = stack.enter_context(_reporting(progress, len(missing)))
            waiting = functools.partial(report, 0, len(missing), "waiting for another process")
            for entry in sorted(missing):  # one order for all processes, so that they never wait in a circle
                stack.enter_context(cache.lock(folder, entry, waiting))
            if still_missing := _missing(list(missing.values())):
                _compile(still_missing, folder, report)
    if lost := _missing(compilations):
        raise BuildError(f"{lost[0].entry} has vanished from the cache since it was built")
    return [path for item in compilations if (path := cache.find(item.entry, item.product))]


def _missing(compilations: Sequence[Compilation]) -> list[Compilation]:
    return [item for item in compilations if cache.find(item.entry, item.product) is None]


def _compile(items: Sequence[Compilation], folder: Path, report: Progress) -> None:
    """Compiles and publishes all that can be; raises BuildError for the rest."""
    ninja = toolchain.find_ninja()
    with contextlib.ExitStack() as cleaning:
        scratch = cleaning.enter_context(tempfile.TemporaryDirectory(prefix="hgemm-ninja-"))
        staged = {}
        for item in items:
            staged[item] = cache.stage(folder, item.entry)
            cleaning.callback(shutil.rmtree, staged[item], ignore_errors=True)
        failures = compilation.run_all(staged, ninja, Path(scratch), report)
        for item in staged.keys() - failures.keys():
            cache.publish(staged[item], folder, item.entry, item.product)
    if failures:
        messages = [
            f"compiling {item.name} failed ({item.compiler}):\n{compilation.error_lines(output)}"
            for item, output in failures.items()
        ]
        raise BuildError("\n".join(messages), "\n".join(failures.values()))


@contextlib.contextmanager
def _reporting(progress: Progress | None, total: int) -> Iterator[Progress]:
    """The caller's `progress`; else a line on a terminal; else nothing."""
    if progress is not None:
        yield progress
    elif not sys.stderr.isatty() or compilation.verbose():
        yield lambda finished, total, state: None
    else:
        from rich.console import Console
        from rich.progress import BarColumn, MofNCompleteColumn, SpinnerColumn, TextColumn, TimeElapsedColumn
        from rich.progress import Progress as Bars

        columns = (SpinnerColumn(), TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn())
        with Bars(*columns, TimeElapsedColumn(), console=Console(stderr=True), transient=True) as bars:
            task = bars.add_task("building CUDA kernels", total=total)

            def report(finished: int, total: int, state: str) -> None:
                bars.update(task, completed=finished, total=total, description=f"building CUDA kernels: {state}")

            yield report
