"""Clocks, power, temperature and throttle reasons of a GPU, read through NVML. Nothing here changes a setting."""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, TypeVar

import torch

T = TypeVar("T")

# Bits of nvmlDeviceGetCurrentClocksEventReasons (nvml.h); "gpu_idle" and clocks that a user set are no throttling.
THROTTLE_REASONS = {
    0x1: "gpu_idle",
    0x2: "applications_clocks",
    0x4: "sw_power_cap",
    0x8: "hw_slowdown",
    0x10: "sync_boost",
    0x20: "sw_thermal_slowdown",
    0x40: "hw_thermal_slowdown",
    0x80: "hw_power_brake_slowdown",
    0x100: "display_clocks",
}


@dataclass(frozen=True)
class Reading:
    """One look at the board; None where NVML has no answer."""

    sm_mhz: int | None = None
    memory_mhz: int | None = None
    power_w: float | None = None
    temperature_c: int | None = None
    throttle: tuple[str, ...] = ()
    counted_mhz: float | None = None
    """The clock over a whole burst, as the multiprocessors count it: ``hgemm.bench.clock_counter``."""


@dataclass(frozen=True)
class Board:
    """What NVML knows of the board itself; None where it has no answer."""

    driver: str | None = None
    power_limit_w: float | None = None
    power_default_w: float | None = None
    clock_max_mhz: int | None = None
    ecc: bool | None = None


class Nvml:
    """The board behind a CUDA device. Where NVML is missing or refuses, every answer is None and nothing raises."""

    def __init__(self, device: torch.device) -> None:
        self._nvml: Any = None
        try:
            import pynvml

            pynvml.nvmlInit()
            # The UUID, because NVML counts all boards and CUDA only those that CUDA_VISIBLE_DEVICES leaves.
            uuid = f"GPU-{torch.cuda.get_device_properties(device).uuid}"
            self._handle = pynvml.nvmlDeviceGetHandleByUUID(uuid)
            self._nvml = pynvml
        except Exception:  # no library, no driver, no permission, no such board: all of it is "no answer"
            self._nvml = None

    def read(self) -> Reading:
        """Takes a few microseconds to a few milliseconds; call it while the work to be described is running."""
        if self._nvml is None:
            return Reading()
        n = self._nvml
        # The clock and what holds it down come first: a burst lasts milliseconds, and so may these questions.
        sm_mhz = self._ask(lambda: int(n.nvmlDeviceGetClockInfo(self._handle, n.NVML_CLOCK_SM)))
        reasons = self._ask(lambda: n.nvmlDeviceGetCurrentClocksEventReasons(self._handle))
        power = self._ask(lambda: n.nvmlDeviceGetPowerUsage(self._handle))
        return Reading(
            sm_mhz=sm_mhz,
            memory_mhz=self._ask(lambda: int(n.nvmlDeviceGetClockInfo(self._handle, n.NVML_CLOCK_MEM))),
            power_w=None if power is None else power / 1000,
            temperature_c=self._ask(lambda: int(n.nvmlDeviceGetTemperature(self._handle, n.NVML_TEMPERATURE_GPU))),
            throttle=tuple(name for bit, name in THROTTLE_REASONS.items() if (reasons or 0) & bit),
        )

    def board(self) -> Board:
        if self._nvml is None:
            return Board()
        n = self._nvml
        driver = self._ask(n.nvmlSystemGetDriverVersion)
        limit = self._ask(lambda: n.nvmlDeviceGetPowerManagementLimit(self._handle))
        default = self._ask(lambda: n.nvmlDeviceGetPowerManagementDefaultLimit(self._handle))
        return Board(
            driver=driver.decode() if isinstance(driver, bytes) else driver,
            power_limit_w=None if limit is None else limit / 1000,
            power_default_w=None if default is None else default / 1000,
            clock_max_mhz=self._ask(lambda: int(n.nvmlDeviceGetMaxClockInfo(self._handle, n.NVML_CLOCK_SM))),
            ecc=self._ask(lambda: bool(n.nvmlDeviceGetEccMode(self._handle)[0])),
        )

    def close(self) -> None:
        if self._nvml is not None:
            self._ask(self._nvml.nvmlShutdown)
            self._nvml = None

    @staticmethod
    def _ask(question: Callable[[], T]) -> T | None:
        with contextlib.suppress(Exception):  # boards differ in what they answer (pynvml.NVMLError_NotSupported)
            return question()
        return None
