"""Pictures of how the kernels work: drawn from their own functions or from running them, so no results file is needed.

A kind is a module of this package with ``picture(options) -> Picture``. What a picture shows comes from the kernels
compiled for the emulator, which a C++ compiler is enough for.
"""

from __future__ import annotations

import argparse
import ctypes
import importlib
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from matplotlib.figure import Figure

import hgemm
from hgemm.backends import did_you_mean
from hgemm.bench.environment import sources_digest
from hgemm.bench.suites import Shape
from hgemm.cuda_kernels.configs import FAMILIES, Family, KernelConfig, Unit
from hgemm.devices import DEVICES, Device
from hgemm.plot import style
from hgemm.program import reading

KINDS = ("swizzle", "pipeline", "raster")

OPTIONS = {"config": KINDS, "gpu": ("raster",), "mnk": ("raster",)}
"""The kinds that an option of the command line is for."""


@dataclass(frozen=True)
class Kernel:
    """One compiled configuration of one family."""

    family: Family
    config: KernelConfig

    @property
    def label(self) -> str:
        """``backend:config``, as everywhere."""
        return f"{self.family.backend}:{self.config.name}"

    @property
    def index(self) -> int:
        return self.family.index(self.config.name)

    @property
    def stage_bytes(self) -> int:
        """A tile of A and one of B, in 2-byte elements."""
        shape = self.config.config
        return 2 * shape.tile_k * (shape.tile_m + shape.tile_n)


@dataclass(frozen=True)
class Options:
    """What the command line chose; None is the picture's own choice."""

    config: Kernel | None = None
    gpu: Device | None = None
    mnk: Shape | None = None

    @property
    def suffix(self) -> str:
        """What the name of a file says of the options."""
        words = [self.config.label] if self.config else []
        words += [self.gpu.title] if self.gpu else []
        words += [f"{self.mnk.M}x{self.mnk.N}x{self.mnk.K}"] if self.mnk else []
        return "".join("-" + re.sub(r"[^a-z0-9_]+", "-", word.lower()) for word in words)


@dataclass(frozen=True)
class Picture:
    """A figure, and the numbers that it shows as plain data."""

    figure: Figure
    facts: dict[str, Any]


class Functions:
    """The functions of launch.h that the pictures draw, in the unit of a kernel with row-major fp16 operands."""

    def __init__(self, kernel: Kernel) -> None:
        """Raises BuildError, whose message says what is missing, where the kernels cannot be compiled for the CPU."""
        from hgemm.cuda_kernels.emulator.build import load_unit

        self.kernel = kernel
        self.library = load_unit(Unit(kernel.family.name, "f16", "nn"))
        functions = self.library.functions
        index = ctypes.POINTER(ctypes.c_int64)
        functions.hgemm_swizzle.argtypes = [ctypes.c_uint32, ctypes.c_uint32]
        functions.hgemm_swizzle.restype = ctypes.c_uint32
        functions.hgemm_ldmatrix_offset.argtypes = [ctypes.c_int] * 6
        functions.hgemm_ldmatrix_offset.restype = ctypes.c_int64
        functions.hgemm_raster.argtypes = [ctypes.c_int64, ctypes.c_int64, ctypes.c_int64, index, index]
        functions.hgemm_raster.restype = None

    def swizzle(self, span: int, offset: int) -> int:
        """hgemm_swizzle."""
        return int(self.library.functions.hgemm_swizzle(span, offset))

    def ldmatrix_offset(self, operand: str, warp: int, lane: int, fragment: int, step: int) -> int:
        """hgemm_ldmatrix_offset for operand "A" or "B". Raises ValueError if the kernel has no such lane."""
        number = "AB".index(operand)
        function = self.library.functions.hgemm_ldmatrix_offset
        offset = int(function(self.kernel.index, number, warp, lane, fragment, step))
        if offset < 0:
            raise ValueError(f"{self.kernel.label} has no warp {warp}, lane {lane}, fragment {fragment}, step {step}")
        return offset

    def raster(self, index: int, tiles_m: int, tiles_n: int) -> tuple[int, int]:
        """hgemm_raster: row and column, in tiles, of what block ``index`` computes."""
        row, column = ctypes.c_int64(), ctypes.c_int64()
        self.library.functions.hgemm_raster(index, tiles_m, tiles_n, ctypes.byref(row), ctypes.byref(column))
        return row.value, column.value


def kernel(name: str) -> Kernel:
    """The kernel called ``backend:config`` or, where one backend alone has it, ``config``. Raises ValueError."""
    known = {each.label: each for each in _kernels()}
    if name in known:
        return known[name]
    same = [each for each in known.values() if each.config.name == name]
    if len(same) == 1:
        return same[0]
    if same:
        raise ValueError(f"several backends have {name}: say {' or '.join(each.label for each in same)}")
    close = did_you_mean(name, known if ":" in name else [each.config.name for each in known.values()])
    raise ValueError(f"unknown configuration {name!r}{close}; there are {', '.join(known)}")


def board(name: str) -> Device:
    """The board of hgemm.devices with this title, or driver's name, in any case. Raises ValueError."""
    known = {each: device for device in DEVICES for each in (device.title, *device.names)}
    wanted = name.strip().lower()
    for each, device in known.items():
        if wanted == each.lower():
            return device
    titles = [device.title for device in DEVICES]
    by_lower = {title.lower(): title for title in titles}
    close = did_you_mean(wanted, by_lower)
    for lower, title in by_lower.items():
        close = close.replace(repr(lower), repr(title))
    raise ValueError(f"unknown GPU {name!r}{close}; there are {', '.join(titles)}")


def add_options(parse: argparse.ArgumentParser) -> None:
    """The options of the kinds that need no results file."""
    group = parse.add_argument_group(f"of {', '.join(KINDS)}, which need no results file")
    group.add_argument(
        "--config",
        type=reading(kernel),
        metavar="BACKEND:CONFIG",
        help="kernel to draw (default: the instructive ones)",
    )
    group.add_argument("--gpu", type=reading(board), help="GPU whose waves raster draws (default: RTX 5090)")


def draw_all(
    kinds: Sequence[str],
    options: Options,
    folder: Path,
    formats: Sequence[str],
    save: Callable[[Figure, Path], None],
) -> tuple[list[Path], dict[str, Any]]:
    """Draws ``KIND.FORMAT``, with the options in its name, in ``folder``: the files, and the numbers behind each kind.

    Raises BuildError (no C++ compiler), NothingToDraw (the picture cannot show that), OSError (it cannot be written).
    """
    files: list[Path] = []
    facts: dict[str, Any] = {}
    for kind in kinds:
        used = Options(**{name: getattr(options, name) for name, takers in OPTIONS.items() if kind in takers})
        picture: Picture = importlib.import_module(f"hgemm.plot.{kind}").picture(used)
        facts[kind] = picture.facts
        folder.mkdir(parents=True, exist_ok=True)
        for form in formats:
            files.append(folder / f"{kind}{used.suffix}.{form}")
            save(picture.figure, files[-1])
    return files, facts


def footer(figure: Figure, *lines: str) -> None:
    """Remarks, and below them which sources the picture was drawn from, at the bottom left."""
    source = f"drawn from the kernels' own code, sources {sources_digest()[:12]} · hgemm {hgemm.__version__}"
    style.notes(figure, *lines, source)


def _kernels() -> list[Kernel]:
    return [Kernel(family, config) for family in FAMILIES.values() for config in family.configs]
