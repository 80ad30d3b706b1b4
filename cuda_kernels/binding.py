"""The compiled binding as Python sees it: opening units and asking for their resources. Calls go through torch.ops."""

from __future__ import annotations

import ctypes
import dataclasses
from dataclasses import dataclass
from pathlib import Path

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


class Binding:
    """The shared library of binding.cpp. Loading it defines `torch.ops.hgemm_cuda`, which a process can do once."""

    def __init__(self, path: Path) -> None:
        import torch  # noqa: F401  the library resolves its symbols against torch's

        self.path = path
        self._library = ctypes.CDLL(str(path))
        self._library.hgemm_unit_config_name.restype = ctypes.c_char_p

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
