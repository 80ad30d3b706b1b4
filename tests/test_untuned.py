"""A call with an untuned shape compiles one kernel, launches one, and searches nothing. Compilations are counted:
Triton's for a Hopper whose driver only records, the CUDA kernels' by what is asked of the emulator's build."""

import functools
from dataclasses import replace
from types import SimpleNamespace

import pytest
import torch
from test_triton_launcher import RECORD, compilations, hopper  # noqa: F401  fixtures

import hgemm
from hgemm import dispatch, select
from hgemm.backends import Backend, Launch, backends
from hgemm.cuda_kernels.configs import Unit
from hgemm.cuda_kernels.emulator import build as emulator
from hgemm.devices import rates
from hgemm.problem import Problem
from hgemm.triton_kernels import adapter, tma

H200 = SimpleNamespace(
    name="An unmeasured GPU", major=9, minor=0, multi_processor_count=132, shared_memory_per_block_optin=232_448
)


@pytest.fixture
def unmeasured(monkeypatch: pytest.MonkeyPatch) -> None:
    """``auto`` chooses for CPU tensors as for those on a GPU that nobody has measured, and launches Triton's kernels on
    the recording driver."""
    monkeypatch.setattr(adapter, "_device", lambda problem: H200)
    monkeypatch.setattr(tma, "_resident_programs", lambda device: 132)
    monkeypatch.setattr(select, "_device", lambda device: rates("An unmeasured GPU", (10, 0), 132))

    def on_it(record: Backend) -> Backend:
        def bind(problem: Problem, config: str | None) -> Launch:
            assert record.name == "triton" and config is not None
            return lambda a, b, out: tma.launch(a, b, out, config)

        return replace(record, unavailable=lambda device_type: None, bind=bind)

    records = {record.name: on_it(record) for record in backends()}
    choose = select.choose
    monkeypatch.setattr(select, "backends", lambda: records)
    monkeypatch.setattr(dispatch, "get", lambda name: records[name])
    monkeypatch.setattr(dispatch, "choose", lambda problem: choose(replace(problem, device=torch.device("cuda", 0))))
    monkeypatch.setattr(dispatch, "_plans", {})
    monkeypatch.setattr(dispatch, "_seen", {})


def test_triton_compiles_one_kernel_for_an_untuned_shape(
    unmeasured: None,
    compilations: list[str],  # noqa: F811
) -> None:
    a, b = torch.zeros(200, 64).half(), torch.zeros(64, 136).half()
    for call in range(1, 4):
        hgemm.matmul(a, b)
        assert compilations == ["matmul_tma"]
        assert (len(RECORD.kernels), len(RECORD.launches)) == (1, call)
    # Another shape of the same configuration, dtype and layout has nothing left to compile, one launch a call.
    hgemm.matmul(a[:72], b)
    assert (len(compilations), len(RECORD.kernels), len(RECORD.launches)) == (1, 1, 4)
    # A large one has another configuration: one more.
    hgemm.matmul(torch.zeros(4096, 64).half(), torch.zeros(64, 4096).half())
    assert (len(compilations), len(RECORD.kernels), len(RECORD.launches)) == (2, 2, 5)


@pytest.mark.parametrize("backend", ["cuda_cp_async", "cuda_tma"])
def test_a_cuda_kernel_asks_for_one_unit(backend: str, monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[Unit] = []
    launched: list[int] = []
    monkeypatch.setattr(dispatch, "_plans", {})
    monkeypatch.setattr(dispatch, "_seen", {})
    monkeypatch.setattr(emulator, "load_unit", functools.cache(emulator.load_unit.__wrapped__))
    build_units = emulator.build_units
    monkeypatch.setattr(emulator, "build_units", lambda units: asked.extend(units) or build_units(units))
    launch = emulator.EmulatedLibrary.launch
    monkeypatch.setattr(
        emulator.EmulatedLibrary,
        "launch",
        lambda library, described, index: launched.append(index) or launch(library, described, index),
    )
    a, b = torch.ones(40, 72).half(), torch.ones(72, 136).half()
    for call in range(1, 3):
        assert torch.equal(hgemm.matmul(a, b, backend=backend), torch.full((40, 136), 72.0).half())
        assert [(unit.dtype, unit.layout) for unit in asked] == [("f16", "nn")]
        assert len(launched) == call
