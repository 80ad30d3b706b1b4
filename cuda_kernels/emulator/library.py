"""An emulated shared library as Python sees it: the C interfaces of launch.h and control.h."""

from __future__ import annotations

import _ctypes
import contextlib
import ctypes
import json
import os
import re
import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from hgemm.cuda_kernels.binding import HgemmProblem

LARGEST_SEED = 2**64 - 1
SCHEDULES = "schedules are eager, lazy, eager,reversed, lazy,reversed and random,seed=N"  # as in schedule.hpp


class _Memory(ctypes.Structure):
    """struct HgemmMemory of control.h."""

    _fields_ = [
        ("name", ctypes.c_char_p),
        ("base", ctypes.c_void_p),
        ("sizes", ctypes.c_int64 * 3),
        ("strides", ctypes.c_int64 * 3),
        ("writable", ctypes.c_int32),
    ]


class Progress(ctypes.Structure):
    """struct HgemmProgress of control.h: read it from another thread while a launch runs; `cancel = 1` stops it."""

    _fields_ = [("blocks_done", ctypes.c_int64), ("blocks_total", ctypes.c_int64), ("cancel", ctypes.c_int32)]


class _Options(ctypes.Structure):
    """struct HgemmEmulatorOptions of control.h."""

    _fields_ = [
        ("schedule", ctypes.c_char_p),
        ("shared_base", ctypes.c_uint32),
        ("threads", ctypes.c_int32),
        ("progress", ctypes.POINTER(Progress)),
        ("trace_bytes", ctypes.c_uint32),
        ("resident_blocks", ctypes.c_uint32),
    ]


@dataclass(frozen=True)
class Memory:
    """Global memory that a kernel may touch, in 16-bit elements: sizes and strides of batch, row and column."""

    name: str
    address: int
    sizes: tuple[int, int, int]
    strides: tuple[int, int, int]
    writable: bool = False

    def described(self) -> _Memory:
        sizes, strides = (ctypes.c_int64 * 3)(*self.sizes), (ctypes.c_int64 * 3)(*self.strides)
        return _Memory(self.name.encode(), self.address, sizes, strides, self.writable)


class EmulatedLibrary:
    """A shared library compiled against the emulator. Calls into it release Python's lock."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.functions = ctypes.CDLL(str(path))
        for name in ("hgemm_launch", "hgemm_emulator_begin", "hgemm_emulator_end", "hgemm_config_name"):
            with contextlib.suppress(AttributeError):  # not every library is a unit
                getattr(self.functions, name).restype = ctypes.c_char_p
        with contextlib.suppress(AttributeError):
            self.functions.hgemm_workspace_bytes.restype = ctypes.c_size_t

    def run(
        self,
        call: Callable[[], bytes | None],
        memories: Sequence[Memory] = (),
        schedule: str | None = None,
        shared_base: int = 0,
        threads: int = 0,
        progress: Progress | None = None,
        trace_bytes: int = 0,
        resident_blocks: int = 0,
    ) -> tuple[str | None, dict[str, Any]]:
        """Runs `call`, which launches kernels of this library: what it returned, and the report as plain data.

        With `trace_bytes`, the size of a stage, its "trace" lists [step, "issued" | "landed" | "read", stage] of block
        0; a step is an instruction of a warp.

        Without `schedule` it is that of HGEMM_EMULATOR. Raises ValueError for one that cannot be read, and for an
        address that is none, TypeError for a schedule that is no string.
        """
        source = "schedule"
        if schedule is None:
            source, schedule = "HGEMM_EMULATOR", os.environ.get("HGEMM_EMULATOR", "").strip()
        elif not isinstance(schedule, str):
            raise TypeError(f"schedule must be a string, such as 'lazy', found {schedule!r}")
        for seed in re.findall(r"seed=([^,]*)", schedule):
            if not (seed.isascii() and seed.isdecimal() and int(seed) <= LARGEST_SEED):
                raise ValueError(
                    f"{source}={schedule!r}: a seed is a number from 0 to {LARGEST_SEED}, found {seed!r}; {SCHEDULES}"
                )
        if not 0 <= shared_base < 2**32:
            raise ValueError(f"shared_base is a 32-bit address, found {shared_base}")
        options = _Options(
            schedule.encode(),
            shared_base,
            threads,
            ctypes.pointer(progress) if progress is not None else None,
            trace_bytes,
            resident_blocks,
        )
        array = (_Memory * max(1, len(memories)))(*(m.described() for m in memories))
        refusal = self.functions.hgemm_emulator_begin(array, ctypes.c_size_t(len(memories)), ctypes.byref(options))
        if refusal is not None:
            found = refusal.decode(errors="replace")
            raise ValueError(f"HGEMM_EMULATOR={schedule!r}: {found}" if source == "HGEMM_EMULATOR" else found)
        error = call()
        report = json.loads(self.functions.hgemm_emulator_end())
        return (error.decode(errors="replace") if error else None), report

    def close(self) -> None:
        """Unloads the library, which keeps the stacks of all its threads: those of a hundred libraries are more
        mappings than a process may have. Nothing of it can be called any more."""
        _ctypes.dlclose(self.functions._handle)

    def workspace_bytes(self, problem: HgemmProblem, config: int) -> int:
        """hgemm_workspace_bytes."""
        return int(self.functions.hgemm_workspace_bytes(ctypes.byref(problem), config))

    def launch(self, problem: HgemmProblem, config: int) -> bytes | None:
        """hgemm_launch, with a workspace if the configuration wants one: the message, or None.

        The workspace is full of NaN, and nobody has written it: a kernel that reads it before it does is at fault.
        """
        size = self.workspace_bytes(problem, config)
        workspace = None
        if size:
            workspace = (ctypes.c_char * size)()
            ctypes.memset(workspace, 0xFF, size)
            address, elements = ctypes.addressof(workspace), size // 2
            memory = Memory("workspace", address, (1, 1, elements), (0, 0, 1), writable=True)
            self.functions.hgemm_emulator_memory(ctypes.byref(memory.described()))
        result: bytes | None = self.functions.hgemm_launch(
            ctypes.byref(problem), config, workspace, ctypes.c_size_t(size), None
        )
        return result


def in_thread(work: Callable[[], None], watch: Callable[[], None], progress: Progress, seconds: float = 0.1) -> None:
    """Runs `work` in a thread and calls `watch` now and then, so that a keyboard interrupt can stop the emulator."""
    failure: list[BaseException] = []

    def guarded() -> None:
        try:
            work()
        except BaseException as error:
            failure.append(error)

    thread = threading.Thread(target=guarded, name="hgemm emulator")
    thread.start()
    try:
        while thread.is_alive():
            thread.join(seconds)
            watch()
    except BaseException:
        progress.cancel = 1
        thread.join()
        raise
    if failure:
        raise failure[0]
