"""The specialised kernel compiled for sm_90 and launched on a driver that only records: by Triton's own path, once."""

from __future__ import annotations

import gc
from collections.abc import Iterator
from types import SimpleNamespace

import pytest
import torch
import triton
from test_triton_launcher import RECORD, STREAM, compilations, hopper

from hgemm.problem import Problem
from hgemm.triton_kernels import host_descriptors, shared_tiles, specialized
from hgemm.triton_kernels.launcher import Launcher

LARGEST = "128x256x64_s4_w64x64_specialized_tail"
SMALL = "128x64x128_s4_w32x32_specialized_tail"
CLUSTER = "64x64x128_s6_w32x32_multicast-b_specialized"
NOT_3_6 = pytest.mark.skipif(
    triton.__version__.startswith("3.6."), reason="Gluon of Triton 3.6 sends no tile to several blocks"
)
__all__ = ["compilations", "hopper"]  # fixtures


@pytest.fixture(autouse=True)
def fresh(hopper: None, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setattr(torch.cuda, "get_device_properties", lambda index: SimpleNamespace(multi_processor_count=132))
    monkeypatch.setattr(shared_tiles, "_launcher", Launcher(shared_tiles.add_shared_tiles))
    monkeypatch.setattr(specialized, "_launcher", Launcher(specialized.matmul_specialized))
    host_descriptors._plan.cache_clear()
    kernels = specialized.matmul_specialized, shared_tiles.add_shared_tiles
    for kernel in kernels:
        kernel.device_caches.clear()
    yield
    # What was loaded on the recording driver is unloaded there.
    for kernel in kernels:
        kernel.device_caches.clear()
    host_descriptors._plan.cache_clear()
    gc.collect()


def test_what_is_compiled_once_is_launched_with_new_tensors(compilations: list[str]) -> None:
    outs = []
    for _ in range(3):
        a, b = torch.zeros(200, 4096, dtype=torch.bfloat16), torch.zeros(264, 4096, dtype=torch.bfloat16).t()
        outs.append(torch.zeros(200, 264, dtype=torch.bfloat16))
        specialized.launch(a, b, outs[-1], LARGEST)
    names = [RECORD.kernels[launch.function].name for launch in RECORD.launches]
    assert names == ["matmul_specialized", "add_shared_tiles"] * 3
    assert len(compilations) == 2
    (first, added), *_ = zip(RECORD.launches[::2], RECORD.launches[1::2], strict=True)
    assert first.stream == added.stream == STREAM
    assert first.scratch is None  # no descriptor is made on the device
    # 4 tiles in 8 parts of 8 steps of K; 4 tiles of 128 rows, 16 of them a program.
    assert first.grid == (32, 1, 1)
    assert added.grid == (32, 1, 1)
    descriptors, sums, numbers = first.arguments[:3], first.arguments[3], first.arguments[4:9]
    assert [d.shape for d in descriptors] == [[200, 4096], [264, 4096], [200, 264]]
    assert descriptors[2].base is outs[0]
    assert sums.shape == (32, 128, 256)
    assert numbers == (200, 264, 4096, 0, 8)
    assert set(first.arguments[9:]) == {None}
    assert added.arguments[0] is sums
    assert [launch.arguments[1] for launch in RECORD.launches[1::2]] == outs
    code = b"".join(kernel.code for kernel in RECORD.kernels)
    assert b"matmul_specialized" in code


def test_192_columns_of_a_part_are_added_64_at_a_time() -> None:
    a, b = torch.zeros(200, 4096, dtype=torch.bfloat16), torch.zeros(264, 4096, dtype=torch.bfloat16).t()
    specialized.launch(a, b, torch.zeros(200, 264, dtype=torch.bfloat16), "192x192x64_s4_w64x48_specialized_tail")
    multiply, add = RECORD.launches
    assert multiply.grid == (32, 1, 1)  # 4 tiles in 8 parts
    assert multiply.arguments[3].shape == (32, 192, 192)
    assert add.grid == (4 * 12 * 3, 1, 1)  # 16 rows and 64 columns each


def test_a_whole_wave_needs_no_second_kernel(compilations: list[str]) -> None:
    a, b = torch.zeros(128, 64, dtype=torch.float16), torch.zeros(64, 256, dtype=torch.float16)
    for config in (LARGEST, LARGEST.removesuffix("_tail")):
        specialized.launch(a, b, torch.zeros(128, 256, dtype=torch.float16), config)
    assert [RECORD.kernels[launch.function].name for launch in RECORD.launches] == ["matmul_specialized"] * 2
    assert [launch.arguments[7:9] for launch in RECORD.launches] == [(1, 1)] * 2
    assert [launch.arguments[3] is None for launch in RECORD.launches] == [False, True]


def test_by_address_the_same_is_launched() -> None:
    a, b = torch.zeros(200, 4096, dtype=torch.float16), torch.zeros(4096, 264, dtype=torch.float16)
    problem = Problem.from_tensors(a, b, torch.zeros(264, 200, dtype=torch.float16).t())
    launch = specialized.bind(problem, LARGEST.removesuffix("_tail"))
    assert launch is not None
    launch(16, 32, 48)
    (found,) = RECORD.launches
    assert [d.base.data_ptr() for d in found.arguments[:3]] == [32, 16, 48]  # computed transposed
    assert [d.shape for d in found.arguments[:3]] == [[4096, 264], [200, 4096], [264, 200]]
    batch = Problem.from_tensors(torch.stack((a, a)), b, torch.zeros(2, 200, 264, dtype=torch.float16))
    assert specialized.bind(batch, LARGEST) is None


@pytest.mark.parametrize(
    ("M", "N", "config", "dependent"),
    [
        (512, 512, SMALL, True),
        (128, 4096, SMALL, False),  # reads B for longer than it multiplies
        pytest.param(128, 4096, CLUSTER, True, marks=NOT_3_6),
    ],
)
def test_a_product_may_be_launched_before_the_kernel_in_front_ends(
    M: int, N: int, config: str, dependent: bool, compilations: list[str]
) -> None:
    a, b = torch.zeros(M, 64, dtype=torch.bfloat16), torch.zeros(64, N, dtype=torch.bfloat16)
    specialized.launch(a, b, torch.zeros(M, N, dtype=torch.bfloat16), config)
    (form,) = specialized._launcher.forms.values()
    assert form.kernel.metadata.launch_pdl == dependent
    (launch,) = RECORD.launches
    assert RECORD.kernels[launch.function].name == "matmul_specialized"


def test_both_ways_of_launching_are_compiled_once_each(compilations: list[str]) -> None:
    for M in (512, 64, 512, 64):
        a, b = torch.zeros(M, 64, dtype=torch.bfloat16), torch.zeros(64, 512, dtype=torch.bfloat16)
        specialized.launch(a, b, torch.zeros(M, 512, dtype=torch.bfloat16), SMALL)
    assert len(compilations) == 2
    first, second = specialized._launcher.forms.values()
    assert first.kernel.metadata.launch_pdl
    assert not second.kernel.metadata.launch_pdl
    functions = [launch.function for launch in RECORD.launches]
    assert functions == functions[:2] * 2
    assert len(set(functions)) == 2
