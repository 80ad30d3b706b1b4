"""Readings of the board: units converted, reasons named, and None for everything where NVML has no answer."""

import sys
from types import SimpleNamespace

import pytest
import torch

from hgemm.bench.graph_nodes import _KernelNodeParams, kernels_of
from hgemm.bench.nvml import Board, Nvml, Reading

CUDA = torch.device("cuda", 0)


class NotSupported(Exception):
    pass


def fake_nvml(**answers: object) -> SimpleNamespace:
    """pynvml with these answers; whatever else is asked, the board does not support."""

    def refuse(*_: object) -> object:
        raise NotSupported

    names = (
        "nvmlDeviceGetClockInfo",
        "nvmlDeviceGetMaxClockInfo",
        "nvmlDeviceGetCurrentClocksEventReasons",
        "nvmlDeviceGetPowerUsage",
        "nvmlDeviceGetTemperature",
        "nvmlSystemGetDriverVersion",
        "nvmlDeviceGetPowerManagementLimit",
        "nvmlDeviceGetPowerManagementDefaultLimit",
        "nvmlDeviceGetEccMode",
    )
    module = SimpleNamespace(
        NVML_CLOCK_SM=1,
        NVML_CLOCK_MEM=2,
        NVML_TEMPERATURE_GPU=0,
        nvmlInit=lambda: None,
        nvmlShutdown=lambda: None,
        nvmlDeviceGetHandleByUUID=lambda uuid: {"GPU-1234": "handle"}[uuid],
        **dict.fromkeys(names, refuse),
    )
    vars(module).update(answers)
    return module


@pytest.fixture
def board(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(torch.cuda, "get_device_properties", lambda device: SimpleNamespace(uuid="1234"))

    def make(**answers: object) -> Nvml:
        monkeypatch.setitem(sys.modules, "pynvml", fake_nvml(**answers))
        return Nvml(CUDA)

    return make


def test_a_reading_in_our_units(board) -> None:
    reading = board(
        nvmlDeviceGetClockInfo=lambda handle, kind: {1: 1980, 2: 3201}[kind],
        nvmlDeviceGetPowerUsage=lambda handle: 523_400,  # milliwatts
        nvmlDeviceGetTemperature=lambda handle, sensor: 54,
        nvmlDeviceGetCurrentClocksEventReasons=lambda handle: 0x4 | 0x40,
    ).read()
    assert reading == Reading(1980, 3201, 523.4, 54, ("sw_power_cap", "hw_thermal_slowdown"))


def test_the_board_in_our_units(board) -> None:
    described = board(
        nvmlSystemGetDriverVersion=lambda: b"580.1",
        nvmlDeviceGetPowerManagementLimit=lambda handle: 600_000,
        nvmlDeviceGetPowerManagementDefaultLimit=lambda handle: 700_000,
        nvmlDeviceGetMaxClockInfo=lambda handle, kind: {1: 1980}[kind],
        nvmlDeviceGetEccMode=lambda handle: [1, 1],
    ).board()
    assert described == Board("580.1", 600.0, 700.0, 1980, True)


def test_what_a_board_does_not_answer_is_none_and_the_rest_stays(board) -> None:
    nvml = board(nvmlDeviceGetTemperature=lambda handle, sensor: 54)
    assert nvml.read() == Reading(temperature_c=54)
    assert nvml.board() == Board()


def test_without_nvml_every_answer_is_none(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "pynvml", None)  # import pynvml raises ImportError
    nvml = Nvml(CUDA)
    assert nvml.read() == Reading()
    assert nvml.board() == Board()
    nvml.close()


def test_a_board_that_nvml_does_not_know_has_no_answers(board, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "get_device_properties", lambda device: SimpleNamespace(uuid="other"))
    assert board(nvmlDeviceGetTemperature=lambda handle, sensor: 54).read() == Reading()


def test_the_layout_of_the_drivers_structure() -> None:
    # CUDA_KERNEL_NODE_PARAMS_v2 on a 64-bit machine: a pointer, seven unsigned, padding to 40, four pointers.
    offsets = [getattr(_KernelNodeParams, name).offset for name, _ in _KernelNodeParams._fields_]
    assert offsets == [0, 8, 20, 32, 40, 48, 56, 64]


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a driver to ask")
def test_without_a_driver_kernels_are_unknown() -> None:
    assert kernels_of(0) is None
