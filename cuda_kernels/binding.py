"""The compiled binding as Python sees it: opening units, asking for their resources, and binding products to them.

Calls go through ``torch.ops.hgemm_cuda.mm_out``, which reads and checks tensors, or, for a product that was described
once, through ``LoadedUnit.bind``, which takes nothing but addresses.
"""

from __future__ import annotations

import ctypes
import dataclasses
import math
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from hgemm.problem import Problem

DEVICE_TYPES = {"cpu": 0, "cuda": 1}  # torch's own numbers
_ERROR_BYTES = 1024


class HgemmResources(ctypes.Structure):
    """struct HgemmResources of launch.h."""

    _fields_ = [
        ("registers", ctypes.c_int),
        ("spill_bytes", ctypes.c_int),
        ("shared_bytes", ctypes.c_int),
        ("threads", ctypes.c_int),
        ("blocks_per_multiprocessor", ctypes.c_int),
    ]


class HgemmProblem(ctypes.Structure):
    """struct HgemmProblem of launch.h."""

    _fields_ = [
        *((name, ctypes.c_void_p) for name in ("a", "b", "c")),
        *((name, ctypes.c_int64) for name in ("M", "N", "K", "batch")),
        *((f"{operand}_row_stride", ctypes.c_int64) for operand in "abc"),
        *((f"{operand}_column_stride", ctypes.c_int64) for operand in "abc"),
        *((f"{operand}_batch_stride", ctypes.c_int64) for operand in "abc"),
    ]

    @classmethod
    def of(cls, problem: Problem, layout: str) -> HgemmProblem:
        """``problem``, of one batch dimension at most, without addresses, as a unit of ``layout`` reads it.

        Along an extent of 1 a stride means nothing: such rows and batches get 0, which is aligned, such columns 1.
        """
        described = cls(M=problem.M, N=problem.N, K=problem.K, batch=math.prod(problem.batch))
        operands = zip("abc", (problem.a, problem.b, problem.out), layout + "n", strict=True)
        for name, operand, letter in operands:
            stored = operand if letter == "n" else operand.transposed
            setattr(described, f"{name}_row_stride", stored.row_stride if stored.rows > 1 else 0)
            setattr(described, f"{name}_column_stride", stored.column_stride if stored.columns > 1 else 1)
            setattr(described, f"{name}_batch_stride", stored.batch_stride)
        return described


class _BoundProblem(ctypes.Structure):
    """struct HgemmBound of binding.cpp."""

    _fields_ = [
        ("unit", ctypes.c_int32),
        ("config", ctypes.c_int32),
        ("device", ctypes.c_int32),
        ("workspace_bytes", ctypes.c_int64),
        ("problem", HgemmProblem),
    ]


@dataclass(frozen=True)
class Resources:
    """What the compiler made of one configuration, and what a device makes of that."""

    registers: int  # 32-bit registers a thread
    spill_bytes: int  # local memory a thread; 0 unless the compiler spilled
    shared_bytes: int  # dynamic shared memory a block
    threads: int  # threads a block
    blocks_per_multiprocessor: int  # blocks that fit a multiprocessor together


@dataclass(frozen=True)
class LoadedUnit:
    """A unit that `torch.ops.hgemm_cuda.mm_out` can run: its handle, and its configurations by index."""

    handle: int
    path: Path
    device_type: str
    configs: tuple[str, ...]
    _binding: Binding

    def resources(self, config: int) -> Resources:
        """What configuration `config` uses on the current device. Raises RuntimeError if the unit cannot say."""
        return self._binding.resources(self.handle, config)

    def bind(self, config: int, problem: Problem) -> Callable[[int, int, int], None]:
        """What enqueues `problem` on the current stream of its device, given the addresses of a, b and out.

        A problem of this unit's dtype and layout, with one batch dimension at most. The addresses lie on that device
        and are aligned as the problem says; nothing checks it. Raises RuntimeError, with what the unit says, if it
        refuses to launch; for whatever it refuses, in the words of `mm_out`.
        """
        bound = _BoundProblem(
            self.handle, config, problem.device.index or 0, -1, HgemmProblem.of(problem, problem.layout)
        )
        launch_at, address = self._binding.launch_at, ctypes.addressof(bound)

        def launch(a: int, b: int, out: int) -> None:
            if error := launch_at(address, a, b, out):
                raise RuntimeError(error.decode(errors="replace"))

        launch.__dict__["bound"] = bound  # which lives as long as what reads it
        return launch


class Binding:
    """The shared library of binding.cpp. Loading it defines `torch.ops.hgemm_cuda`, which a process can do once."""

    def __init__(self, path: Path) -> None:
        import torch  # noqa: F401  the library resolves its symbols against torch's

        self.path = path
        self._library = ctypes.CDLL(str(path))
        self._library.hgemm_unit_config_name.restype = ctypes.c_char_p
        self.launch_at = self._library.hgemm_launch_at
        self.launch_at.argtypes = [ctypes.c_void_p] * 4
        self.launch_at.restype = ctypes.c_char_p

    def load_unit(self, path: Path, device_type: str, dtype: str, layout: str = "nn") -> LoadedUnit:
        """Opens a unit's shared library; `dtype` is "f16" or "bf16", `layout` as in hgemm.problem.LAYOUTS.

        Raises RuntimeError if it is none of launch.h.
        """
        error = ctypes.create_string_buffer(_ERROR_BYTES)
        handle = self._library.hgemm_load_unit(
            str(path).encode(),
            DEVICE_TYPES[device_type],
            dtype.encode(),
            layout.encode(),
            error,
            ctypes.c_size_t(_ERROR_BYTES),
        )
        if handle < 0:
            raise RuntimeError(f"cannot load a compiled unit: {error.value.decode(errors='replace')}")
        return LoadedUnit(handle, path, device_type, self._config_names(handle), self)

    def resources(self, handle: int, config: int) -> Resources:
        found = HgemmResources()
        error = ctypes.create_string_buffer(_ERROR_BYTES)
        status = self._library.hgemm_unit_resources(
            handle, config, ctypes.byref(found), error, ctypes.c_size_t(_ERROR_BYTES)
        )
        if status < 0:
            raise RuntimeError(f"cannot read the resources of configuration {config}: {error.value.decode()}")
        return Resources(*(getattr(found, field.name) for field in dataclasses.fields(Resources)))

    def _config_names(self, handle: int) -> tuple[str, ...]:
        names: list[str] = []
        while name := self._library.hgemm_unit_config_name(handle, len(names)):
            names.append(name.decode())
        return tuple(names)
