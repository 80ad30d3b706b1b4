"""The Triton backends as records: what they accept and refuse, which configuration they choose, how they launch."""

import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
import triton

from hgemm import cost, measured
from hgemm.backends import Backend
from hgemm.config import Config
from hgemm.cost import Size
from hgemm.cuda_kernels.configs import FAMILIES as CUDA_FAMILIES
from hgemm.devices import rates
from hgemm.problem import Operand, Problem
from hgemm.triton_kernels import adapter, configs, interpreter, versions
from hgemm.triton_kernels.configs import FAMILIES, GLUON, MMA_SYNC, POINTER, TMA
from hgemm.triton_kernels.versions import multicast_missing

ROOT = Path(__file__).resolve().parents[1]

H200 = SimpleNamespace(
    name="NVIDIA H200", major=9, minor=0, multi_processor_count=132, shared_memory_per_block_optin=232_448
)
RTX_5090 = SimpleNamespace(
    name="NVIDIA GeForce RTX 5090", major=12, minor=0, multi_processor_count=170, shared_memory_per_block_optin=101_376
)
RTX_4090 = SimpleNamespace(
    name="NVIDIA GeForce RTX 4090", major=8, minor=9, multi_processor_count=128, shared_memory_per_block_optin=101_376
)
TITAN_V = SimpleNamespace(
    name="NVIDIA TITAN V", major=7, minor=0, multi_processor_count=80, shared_memory_per_block_optin=98_304
)


def records() -> dict[str, Backend]:
    """Fresh ones: what a record remembers of this machine must not outlive a test that pretends another."""
    return {record.name: record for record in adapter.backends()}


@pytest.fixture
def devices(monkeypatch: pytest.MonkeyPatch) -> Callable[..., None]:
    """Makes torch report these CUDA devices, and current the first."""

    def report(*found: SimpleNamespace) -> None:
        monkeypatch.setattr(torch.version, "cuda", "13.0")
        monkeypatch.setattr(torch.cuda, "is_available", lambda: bool(found))
        monkeypatch.setattr(torch.cuda, "device_count", lambda: len(found))
        monkeypatch.setattr(torch.cuda, "current_device", lambda: 0)
        monkeypatch.setattr(torch.cuda, "get_device_properties", lambda index: found[index])

    return report


def problem(
    M: int = 512, N: int = 256, K: int = 128, device: str = "cuda:0", dtype: torch.dtype = torch.float16, **changes: Any
) -> Problem:
    """Contiguous and aligned, but for ``changes``: a field's name, or an operand's name to fields of it."""
    operands = {"a": Operand(M, K, K, 1, 16), "b": Operand(K, N, N, 1, 16), "out": Operand(M, N, N, 1, 16)}
    for name in operands.keys() & changes.keys():
        operands[name] = Operand(**{**vars(operands[name]), **changes.pop(name)})
    fields = {"batch": (), "dtype": dtype, "accumulator": torch.float32, "device": torch.device(device)}
    return Problem(M=M, N=N, K=K, **operands, **{**fields, **changes})


def test_the_ladder_lists_them_with_their_configurations() -> None:
    assert list(records()) == ["triton_pointer", "triton", "triton_mma_sync", "triton_gluon"]
    twins_of_cuda_cp_async = {"128x128x32_s2_w64x32", "128x128x32_s3_w64x32"}
    assert twins_of_cuda_cp_async <= set(records()["triton_pointer"].configs)
    twins_of_cuda_tma = {"128x128x64_s3_w64x32", "128x128x32_s3_w64x32"}
    assert twins_of_cuda_tma <= set(records()["triton"].configs)
    # With mma.sync one more stage, for as many buffers; see test_triton_ahead_of_time.py.
    twins_of_cuda_tma = {"128x128x64_s4_w64x32", "128x128x32_s4_w64x32", "128x256x64_s3_w64x64"}
    assert twins_of_cuda_tma <= set(records()["triton_mma_sync"].configs)
    assert set(records()["triton_gluon"].configs) <= {kernel.name for kernel in CUDA_FAMILIES["tma"].configs}
    for record in records().values():
        assert all(Config.parse(name).name == name for name in record.configs)
        assert record.properties.deterministic
        assert record.properties.accumulator == "float32"


def test_listing_imports_neither_triton_nor_the_kernels() -> None:
    code = (
        "import sys; from hgemm.triton_kernels import adapter; records = adapter.backends();"
        "assert 'triton' not in sys.modules; assert 'hgemm.triton_kernels.tma' not in sys.modules"
    )
    answer = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, timeout=120)
    assert answer.returncode == 0, answer.stderr


FITS_BOTH = [
    problem(),
    problem(M=1),
    problem(M=7, N=8, K=8),
    problem(M=7, N=8, K=13, a={"row_stride": 16}),
    problem(N=255, out={"row_stride": 1, "column_stride": 512}, b={"row_stride": 256}),  # M is the stored row
    problem(a={"row_stride": 1, "column_stride": 512}, b={"row_stride": 1, "column_stride": 128}),
    problem(batch=(3,), a={"batch_stride": 64}, out={"batch_stride": 2**20}),
    problem(M=129, N=1000, K=520, dtype=torch.bfloat16),
    problem(a={"row_stride": 136}, b={"row_stride": 264}, out={"row_stride": 4096}),
    problem(device="cpu"),
]
FITS_POINTER = [
    problem(M=1, N=1, K=1),
    problem(N=255),
    problem(K=127),
    problem(a={"row_stride": 129}, out={"alignment": 2}),
    problem(M=2**31, N=8, K=8),
    problem(a={"column_stride": 2, "row_stride": 256}, b={"row_stride": 0}),
    problem(batch=(3,), a={"batch_stride": 63}),
]
BROKEN = [
    (problem(N=255), "N must be a multiple of 8, found N = 255"),
    (problem(a={"row_stride": 129}), "row stride of a must be a multiple of 8 elements for TMA, found 129"),
    (problem(b={"row_stride": 260}), "row stride of b must be a multiple of 8 elements for TMA, found 260"),
    (problem(out={"row_stride": 258}), "row stride of out must be a multiple of 8 elements for TMA, found 258"),
    (
        problem(out={"alignment": 8}),
        "first element of out must lie on a 16-byte boundary for TMA, found one of 8 bytes",
    ),
    (problem(b={"row_stride": 0}), "row stride of b must not be 0 for TMA"),
    (
        problem(batch=(3,), b={"batch_stride": 12}),
        "batch stride of b must be a multiple of 8 elements for TMA, found 12",
    ),
    (problem(M=2**31, N=8, K=8), "M must be at most 2,147,483,391, found 2,147,483,648"),
]
BROKEN_FOR_BOTH = [
    (problem(dtype=torch.float32), "dtype must be float16 or bfloat16, found torch.float32"),
    (problem(accumulator=torch.float16), "accumulator must be float32, found torch.float16"),
    (problem(batch=(3, 2)), "found a batch of shape (3, 2)"),
]


def test_products_are_accepted_or_refused_by_the_rule_they_break(devices: Callable[..., None]) -> None:
    for device in (H200, RTX_5090):
        devices(device)
        for case in FITS_BOTH:
            assert records()["triton"].accepts(case, None) is None
            assert records()["triton_gluon"].accepts(case, None) is None
        for case in FITS_BOTH + FITS_POINTER:
            assert records()["triton_pointer"].accepts(case, None) is None
        for case, rule in BROKEN:
            assert rule in (records()["triton"].accepts(case, None) or "")
            assert rule in (records()["triton_gluon"].accepts(case, None) or "")
    devices(H200)
    assert all(records()["triton_mma_sync"].accepts(case, None) is None for case in FITS_BOTH)
    for case, rule in BROKEN:
        assert rule in (records()["triton_mma_sync"].accepts(case, None) or "")
        for case, rule in BROKEN_FOR_BOTH:
            assert all(rule in (record.accepts(case, None) or "") for record in records().values())


def test_shared_memory_beyond_the_devices_is_refused_with_both_numbers(devices: Callable[..., None]) -> None:
    for record, family in zip(records().values(), (POINTER, TMA, MMA_SYNC, GLUON), strict=True):
        for entry in family.configs:
            for target, device in ((90, H200), (120, RTX_5090)):
                if target not in entry.shared_bytes:
                    continue
                if entry.config.cluster > 1 and multicast_missing():
                    continue  # refused for that, see test_triton_shared_tiles
                bytes_needed = entry.shared_bytes[target]
                devices(device)
                fits = bytes_needed <= device.shared_memory_per_block_optin
                assert (record.accepts(problem(), entry.config.name) is None) == fits
                devices(SimpleNamespace(**{**vars(device), "shared_memory_per_block_optin": bytes_needed - 1}))
                rule = record.accepts(problem(), entry.config.name) or ""
                assert f"{entry.config.name} needs {bytes_needed:,} bytes" in rule
                assert f"{device.name} has {bytes_needed - 1:,}" in rule


COLUMN_MAJOR_A = {"row_stride": 1, "column_stride": 512}
COLUMN_MAJOR_B = {"row_stride": 1, "column_stride": 128}
COLUMN_MAJOR_OUT = {"row_stride": 1, "column_stride": 512}
# Barriers of 8 bytes, as many as buffers, on 16 bytes: three on sm_90, two on sm_120.
SHARED_BY_LAYOUT = [
    ({}, 98_328, 65_552),
    ({"b": COLUMN_MAJOR_B}, 98_328, 65_552),
    ({"a": COLUMN_MAJOR_A}, 98_328, 65_552),
    ({"a": COLUMN_MAJOR_A, "b": COLUMN_MAJOR_B}, 98_328 + 32, 65_552 + 16),
    # A column-major out is computed as B^T A^T, whose operands are column-major if A and B are row-major.
    ({"out": COLUMN_MAJOR_OUT}, 98_328 + 32, 65_552 + 16),
    ({"out": COLUMN_MAJOR_OUT, "b": COLUMN_MAJOR_B}, 98_328, 65_552),
]


@pytest.mark.parametrize(("operands", "hopper", "geforce"), SHARED_BY_LAYOUT)
def test_shared_memory_is_that_of_the_layout(
    operands: dict[str, dict[str, int]], hopper: int, geforce: int, devices: Callable[..., None]
) -> None:
    for device, needed in ((H200, hopper), (RTX_5090, geforce)):
        for limit in (needed, needed - 1):
            devices(SimpleNamespace(**{**vars(device), "shared_memory_per_block_optin": limit}))
            rule = records()["triton"].accepts(problem(**operands), "128x128x64_s3_w64x32")
            assert (rule is None) == (limit == needed)
            assert rule is None or f"needs {needed:,} bytes" in rule


def test_each_device_is_asked_for_its_own_capability(devices: Callable[..., None]) -> None:
    devices(H200, RTX_4090, TITAN_V, RTX_5090)
    assert all(record.unavailable("cuda") is None for record in records().values())
    assert records()["triton"].accepts(problem(device="cuda:1"), None) == (
        "triton needs compute capability 9.0 or newer, and NVIDIA GeForce RTX 4090 has 8.9"
    )
    assert records()["triton_pointer"].accepts(problem(device="cuda:1"), None) is None
    assert "8.0 or newer, and NVIDIA TITAN V has 7.0" in (
        records()["triton_pointer"].accepts(problem(device="cuda:2"), None) or ""
    )


def test_mma_sync_is_for_hopper_alone(devices: Callable[..., None]) -> None:
    B200 = SimpleNamespace(**{**vars(H200), "name": "NVIDIA B200", "major": 10})
    elsewhere = {
        RTX_4090.name: "8.9",
        RTX_5090.name: "12.0, where triton compiles to mma.sync itself",
        B200.name: "10.0",
    }
    for device in (RTX_4090, RTX_5090, B200):
        devices(device)
        rule = (
            f"triton_mma_sync is for compute capability 9.x, where triton compiles to wgmma, and {device.name} has "
            f"{elsewhere[device.name]}"
        )
        assert records()["triton_mma_sync"].unavailable("cuda") == rule
        devices(H200, device)
        assert records()["triton_mma_sync"].unavailable("cuda") is None
        assert records()["triton_mma_sync"].accepts(problem(), None) is None
        assert records()["triton_mma_sync"].accepts(problem(device="cuda:1"), None) == rule
    assert "9.x" in records()["triton_mma_sync"].requires[0]
    assert "9.0 or newer" in records()["triton"].requires[0]


def test_unavailable_says_what_is_missing(devices: Callable[..., None], monkeypatch: pytest.MonkeyPatch) -> None:
    def reason(name: str = "triton", device_type: str = "cuda") -> str:
        return records()[name].unavailable(device_type) or ""

    devices(RTX_4090, TITAN_V)
    assert reason() == "triton needs compute capability 9.0 or newer, and NVIDIA GeForce RTX 4090 has 8.9"
    assert reason("triton_pointer") == ""
    devices(H200)
    with triton.knobs.runtime.scope():
        triton.knobs.runtime.interpret = True
        assert "TRITON_INTERPRET is set" in reason()
    devices()
    assert "no CUDA device" in reason()
    monkeypatch.setattr(torch.version, "cuda", None)
    assert "built without CUDA" in reason()
    monkeypatch.setattr(triton, "__version__", "3.5.1")
    versions.triton_missing.cache_clear()
    assert "needs Triton 3.6 or newer, found 3.5.1" in reason()
    monkeypatch.setitem(sys.modules, "triton", None)
    versions.triton_missing.cache_clear()
    assert "Triton cannot be imported" in reason()
    assert "Triton cannot be imported" in reason(device_type="cpu")
    versions.triton_missing.cache_clear()


@pytest.mark.parametrize("fault", ["raises", "wrong"])
def test_a_pair_of_triton_and_numpy_that_cannot_interpret_is_reported(
    fault: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    def launch(a: torch.Tensor, b: torch.Tensor, out: torch.Tensor, config: str) -> None:
        if fault == "raises":
            raise TypeError("only 0-dimensional arrays can be converted")
        out.copy_(a @ b)[3, 5] += 1

    import numpy

    interpreter.defect.cache_clear()
    monkeypatch.setattr(interpreter, "load", lambda module: SimpleNamespace(launch=launch))
    reason = records()["triton"].unavailable("cpu") or ""
    interpreter.defect.cache_clear()
    assert f"Triton {triton.__version__} cannot interpret kernels with numpy {numpy.__version__}" in reason
    assert ("only 0-dimensional arrays" if fault == "raises" else "a wrong product") in reason
    assert "install" in reason


SIZES = [
    (256, 256, 256),
    (4096, 4096, 4096),
    (1024, 1024, 8192),
    (1, 4096, 4096),
    (512, 512, 16384),
    (128, 16896, 4096),
]


@pytest.mark.parametrize("device", [H200, RTX_5090, RTX_4090], ids=lambda device: device.name)
def test_the_default_is_the_quickest_as_measured_or_by_the_model(
    device: SimpleNamespace, devices: Callable[..., None]
) -> None:
    devices(device)
    capability = device.major, device.minor
    board = rates(device.name, capability, device.multi_processor_count)
    for record, family in zip(records().values(), FAMILIES, strict=True):
        if capability < family.minimum_capability or family.only_major not in (None, device.major):
            continue
        entries = [e.config for e in family.configs if configs.target_of(capability) in e.targets]
        fitted = cost.committed().traits  # without which no cluster is weighed
        clusters = {str(config) for config in entries if config.cluster > 1 and not multicast_missing()}
        meant = {config.name for config in entries if config.cluster == 1}
        meant |= {name for name in clusters if f"{family.name}:{name}" in fitted}
        for M, N, K in SIZES:
            case = problem(M=M, N=N, K=K)
            predictions = record.predictions(case, board)
            assert {prediction.config for prediction in predictions} == meant
            known = measured.configuration(board.title, record.name, Size(M, N, K))
            assert known is None or known in {str(config) for config in entries}
            assert record.choose(case) == (known if known in meant else predictions[0].config)
            assert predictions[0].seconds <= 1.01 * min(prediction.seconds for prediction in predictions)
            assert record.accepts(case, None) is None


def test_few_rows_do_not_get_a_tile_of_many(devices: Callable[..., None]) -> None:
    for device in (H200, RTX_5090):
        devices(device)
        assert Config.parse(records()["triton"].choose(problem(M=1, N=4096, K=4096)) or "").tile_m <= 32
        large = Config.parse(records()["triton"].choose(problem(M=8192, N=8192, K=8192)) or "")
        assert large.tile_m * large.tile_n >= 64 * 64
        assert large.parts == 1


def test_for_a_batch_no_program_is_persistent(devices: Callable[..., None]) -> None:
    devices(H200)
    for M, N, K, batch in ((256, 256, 4096, 66), (4096, 4096, 4096, 2)):
        chosen = Config.parse(records()["triton"].choose(problem(M=M, N=N, K=K, batch=(batch,))) or "")
        assert "persistent" not in chosen.flags


def test_a_column_major_out_is_chosen_for_as_the_transposed_product(devices: Callable[..., None]) -> None:
    devices(H200)
    choose = records()["triton"].choose
    column_major = {"row_stride": 1, "column_stride": 16896}
    for M, N, K in ((16896, 128, 4096), (4096, 1, 4096), (4096, 16, 512)):
        transposed = problem(
            M=N,
            N=M,
            K=K,
            a={"row_stride": 1, "column_stride": N},
            b={"row_stride": 1, "column_stride": K},
        )
        assert choose(problem(M=M, N=N, K=K, out=column_major)) == choose(transposed)


def test_every_family_has_something_for_each_of_its_targets() -> None:
    for family in FAMILIES:
        assert family is GLUON if family.interpreted is None else family.find(family.interpreted)
        capabilities = [(9, 0)] if family.only_major else [(9, 0), (10, 0), (10, 3), (11, 0), (12, 0), (12, 1)]
        for capability in capabilities:
            assert adapter.kernels(family, rates("a board", capability, 100), Size(256, 256, 256))


def test_programs_that_share_a_multiprocessor_are_those_that_registers_allow() -> None:
    def resident(name: str, capability: tuple[int, int] = (9, 0), family: str = "triton") -> int:
        (kernel,) = (k for k in adapter._kernels(family, capability) if k.config and k.config.name == name)
        return kernel.resident

    # By threads: 90 registers x 256 of 65,536, 154 x 256, by the estimate 158 x 256 where they are 128, and 119 x 256.
    assert resident("128x128x64_s3_w64x32") == 2
    assert resident("128x256x64_s3_w64x64") == 1
    assert resident("128x128x64_s3_w64x32", (12, 0)) == 1
    assert resident("128x128x32_s4_w64x32", (12, 0)) == 2
    assert resident("128x256x64_s3_w64x64_persistent") == 1
