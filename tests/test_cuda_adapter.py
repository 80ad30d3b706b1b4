"""The handwritten families as backends: what they accept, the default for each device, why they cannot run here."""

import sys

import pytest
import torch

from hgemm import devices
from hgemm.config import Config
from hgemm.cost import Size
from hgemm.cuda_kernels import adapter, architectures, toolchain
from hgemm.cuda_kernels.adapter import DeviceLimits
from hgemm.cuda_kernels.configs import FAMILIES
from hgemm.problem import Operand, Problem

HOPPER = DeviceLimits("H200", (9, 0), 232_448, 233_472, 132)
GEFORCE = DeviceLimits("RTX 5090", (12, 0), 101_376, 102_400, 170)
AMPERE = DeviceLimits("A100", (8, 0), 166_912, 167_936, 108)
SMALL = DeviceLimits("a small device", (9, 0), 65_536, 66_560, 132)
ALMOST = DeviceLimits("1 byte short of two blocks", (9, 0), 166_912, 2 * (98_328 + 1_024) - 1, 132)
RTX_5090 = devices.rates("NVIDIA GeForce RTX 5090", (12, 0), 170)
TURING = DeviceLimits("T4", (7, 5), 65_536, 65_536, 40)

BACKENDS = {record.name: record for record in adapter.backends()}
BOTH = pytest.mark.parametrize("name", ["cuda_cp_async", "cuda_tma"])


def put_device(monkeypatch, *devices):
    """A machine with these devices and all tools."""
    monkeypatch.setattr(adapter, "device_limits", lambda index: devices[index])
    monkeypatch.setattr(torch.cuda, "is_available", lambda: bool(devices))
    monkeypatch.setattr(torch.cuda, "device_count", lambda: len(devices))
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda index: devices[index].capability)
    monkeypatch.setattr(torch.version, "cuda", "13.0")
    monkeypatch.setattr(architectures, "driver_release", lambda: (13, 0))
    for variable in ("HGEMM_CUDA_ARCHS", "TORCH_CUDA_ARCH_LIST"):
        monkeypatch.delenv(variable, raising=False)
    tool = toolchain.Tool(("tool",), "13.0.88", "PATH")
    for find in ("find_nvcc", "find_cxx", "find_ninja"):
        monkeypatch.setattr(toolchain, find, lambda: tool)


def problem(M=128, N=128, K=128, dtype=torch.bfloat16, device="cuda", **changes):
    """Contiguous operands, but for `changes` such as a={"row_stride": 136}."""
    operands = {
        name: Operand(
            **{"rows": rows, "columns": columns, "row_stride": columns, "column_stride": 1, "alignment": 16}
            | changes.get(name, {})
        )
        for name, rows, columns in (("a", M, K), ("b", K, N), ("out", M, N))
    }
    device = torch.device(device, 0) if device == "cuda" else torch.device(device)
    batch = changes.get("batch", ())
    return Problem(M, N, K, batch, dtype, torch.float32, device=device, **operands)


def test_every_family_is_a_backend_that_declares_what_its_kernels_keep():
    assert list(BACKENDS) == [family.backend for family in FAMILIES.values()]
    for family in FAMILIES.values():
        record = BACKENDS[family.backend]
        assert record.configs == tuple(kernel.name for kernel in family.configs)
        assert record.properties.deterministic and record.properties.row_invariant and record.properties.exact_integers
        assert "nvcc" in record.requires


@BOTH
def test_every_extent_and_layout_is_accepted(monkeypatch, name):
    put_device(monkeypatch, HOPPER)
    column_major = {
        "a": {"row_stride": 1, "column_stride": 136},
        "b": {"row_stride": 1, "column_stride": 264},
        "out": {"row_stride": 1, "column_stride": 77},
    }
    for config in (None, *BACKENDS[name].configs):
        for M, N, K in ((1, 8, 24), (1, 1, 8), (129, 56, 104)):
            assert BACKENDS[name].accepts(problem(M=M, N=N, K=K), config) is None
        assert (
            BACKENDS[name].accepts(problem(M=77, N=99, K=101, a={"row_stride": 104}, b={"row_stride": 104}), config)
            is None
        )
        assert BACKENDS[name].accepts(problem(**column_major), config) is None
        assert BACKENDS[name].accepts(problem(a={"batch_stride": 8}, batch=(7,)), config) is None
        assert BACKENDS[name].accepts(problem(out={"row_stride": 131, "alignment": 2}), config) is None  # no TMA there


REFUSED = {
    "dtype": (problem(dtype=torch.float32), "dtype must be float16 or bfloat16, found torch.float32"),
    "extent": (problem(M=2**31 - 256), "M must be at most 2,147,483,391, found 2,147,483,392"),
    "batch": (problem(batch=(2, 3)), "at most one batch dimension, found a batch of shape (2, 3)"),
}
BEYOND_TMA = {
    "element strides": (problem(a={"column_stride": 2, "row_stride": 256}), "found strides (256, 2)"),
    "row stride": (
        problem(b={"row_stride": 132}),
        "row stride of b must be a multiple of 8 elements for TMA, found 132",
    ),
    "column stride": (
        problem(b={"row_stride": 1, "column_stride": 132}),
        "column stride of b must be a multiple of 8 elements for TMA, found 132",
    ),
    "zero stride": (problem(a={"row_stride": 0}), "row stride of a must not be 0 for TMA"),
    "alignment": (
        problem(a={"alignment": 8}),
        "first element of a must lie on a 16-byte boundary for TMA, found one of 8",
    ),
    "long stride": (
        problem(a={"row_stride": 2**39}),
        "row stride of a must be below 2^40 bytes for TMA, found 1,099,511,627,776",
    ),
}


@BOTH
@pytest.mark.parametrize("rule", REFUSED)
def test_a_broken_rule_is_named_with_the_value_found(monkeypatch, name, rule):
    put_device(monkeypatch, HOPPER)
    case, message = REFUSED[rule]
    assert message in BACKENDS[name].accepts(case, None)


@pytest.mark.parametrize("rule", BEYOND_TMA)
def test_what_tma_cannot_address_goes_to_cp_async(monkeypatch, rule):
    put_device(monkeypatch, HOPPER)
    case, message = BEYOND_TMA[rule]
    assert message in BACKENDS["cuda_tma"].accepts(case, None)
    assert BACKENDS["cuda_cp_async"].accepts(case, None) is None


def test_more_shared_memory_than_the_device_has_is_refused_with_both_numbers(monkeypatch):
    put_device(monkeypatch, SMALL)
    rule = BACKENDS["cuda_tma"].accepts(problem(), "128x128x64_s3_w64x32")
    assert "128x128x64_s3_w64x32 needs 98,328 bytes" in rule
    assert "a small device has 65,536" in rule
    assert BACKENDS["cuda_tma"].accepts(problem(), "128x128x32_s3_w64x32") is None
    assert BACKENDS["cuda_tma"].accepts(problem(), None) is None


@pytest.mark.parametrize("config", ["256x128x64_s4_w64x64_rotate", "256x128x64_s4_w64x64_rotate_persistent"])
def test_the_rotating_configurations_run_on_hopper_only(monkeypatch, config):
    # 4 stages x (2 bytes x 64 x (256 + 128) + 2 mbarriers x 8) = 196,672 bytes.
    for device, fits in ((HOPPER, True), (GEFORCE, False), (ALMOST, False)):
        put_device(monkeypatch, device)
        rule = BACKENDS["cuda_tma"].accepts(problem(), config)
        if fits:
            assert rule is None
        else:
            assert f"{config} needs 196,672 bytes" in rule
            assert f"{device.name} has {device.shared_bytes_per_block:,}" in rule


def test_the_device_of_the_tensors_decides(monkeypatch):
    put_device(monkeypatch, AMPERE, HOPPER)
    rule = BACKENDS["cuda_tma"].accepts(problem(), None)
    assert rule == "cuda_tma needs compute capability 9.0 or newer, and A100 has 8.0"
    assert BACKENDS["cuda_tma"].unavailable("cuda") is None  # the second device can
    assert BACKENDS["cuda_cp_async"].accepts(problem(), None) is None


SIZES = [(128, 128, 128), (4096, 4096, 4096), (3072, 3072, 128), (1, 4096, 14336), (1024, 1024, 8192), (77, 96, 104)]


@BOTH
@pytest.mark.parametrize("device", [HOPPER, GEFORCE, AMPERE, ALMOST, SMALL], ids=lambda device: device.name)
def test_the_default_is_the_quickest_by_the_model_of_what_fits_the_device(monkeypatch, name, device):
    put_device(monkeypatch, device)
    record, (family,) = BACKENDS[name], (family for family in FAMILIES.values() if family.backend == name)
    if device.capability < family.minimum_capability:
        pytest.skip("refused, see test_the_device_of_the_tensors_decides")
    rates = devices.rates(device.name, device.capability, device.multiprocessors)
    for M, N, K in SIZES:
        chosen = record.choose(problem(M, N, K))
        assert record.accepts(problem(M, N, K), chosen) is None
        assert record.accepts(problem(M, N, K), None) is None
        predictions = record.predictions(problem(M, N, K), rates)
        times = {prediction.config: prediction.seconds for prediction in predictions}
        fitting = [k.name for k in family.configs if k.name in times and adapter.config_limit(k, device) is None]
        assert times[chosen] <= 1.01 * min(times[config] for config in fitting)


def test_where_nothing_fits_the_default_is_what_needs_least(monkeypatch):
    tiny = DeviceLimits("16 KB", (9, 0), 16_384, 17_408, 132)
    put_device(monkeypatch, tiny)
    least = min(FAMILIES["tma"].configs, key=lambda kernel: kernel.shared_bytes)
    assert BACKENDS["cuda_tma"].choose(problem()) == least.name
    assert "16 KB has 16,384" in BACKENDS["cuda_tma"].accepts(problem(), None)


def test_on_geforce_nothing_is_weighed_that_was_not_meant_for_it():
    weighed = {kernel.config.name for kernel in adapter.kernels(FAMILIES["tma"], RTX_5090, Size(4096, 4096, 4096))}
    assert weighed == {kernel.name for kernel in FAMILIES["tma"].configs if kernel.geforce}
    assert all(k.shared_bytes <= GEFORCE.shared_bytes_per_block for k in FAMILIES["tma"].configs if k.name in weighed)


def test_few_rows_do_not_get_a_tile_of_many(monkeypatch):
    """A tile of 128 rows would multiply 128 times what is there, and of N = 4096 it makes 32: one for a quarter of the
    multiprocessors."""
    for device in (HOPPER, GEFORCE):
        put_device(monkeypatch, device)
        config = Config.parse(BACKENDS["cuda_tma"].choose(problem(1, 4096, 4096)))
        assert config.tile_m <= 32
        large = Config.parse(BACKENDS["cuda_tma"].choose(problem(8192, 8192, 8192)))
        assert large.tile_m * large.tile_n >= 128 * 128
        assert large.parts == 1


@BOTH
def test_with_a_device_and_all_tools_a_family_is_available(monkeypatch, name):
    put_device(monkeypatch, GEFORCE)
    assert BACKENDS[name].unavailable("cuda") is None


@BOTH
def test_reasons_come_in_the_order_in_which_a_user_would_settle_them(monkeypatch, name):
    record = BACKENDS[name]

    def missing(what):
        def find():
            raise toolchain.BuildError(f"no {what}")

        return find

    put_device(monkeypatch, TURING)
    monkeypatch.setattr(toolchain, "find_ninja", missing("ninja"))
    assert "needs compute capability" in record.unavailable("cuda")
    put_device(monkeypatch, HOPPER)
    monkeypatch.setattr(toolchain, "find_ninja", missing("ninja"))
    assert record.unavailable("cuda") == "no ninja"
    monkeypatch.setattr(toolchain, "find_nvcc", missing("nvcc"))
    assert record.unavailable("cuda") == "no nvcc"
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    assert "no CUDA device" in record.unavailable("cuda")
    monkeypatch.setattr(torch.version, "cuda", None)
    assert "built without CUDA" in record.unavailable("cuda")
    monkeypatch.setattr(sys, "platform", "darwin")
    assert "Linux" in record.unavailable("cuda")
    assert record.unavailable("cpu") == "the emulator has to be compiled: no ninja"


def test_an_architecture_list_without_the_device_is_a_reason(monkeypatch):
    put_device(monkeypatch, HOPPER)
    monkeypatch.setenv("HGEMM_CUDA_ARCHS", "120f")
    assert "leaves out this device's compute capability 9.0: add 90a" in BACKENDS["cuda_tma"].unavailable("cuda")


@BOTH
def test_tensors_on_the_cpu_go_to_the_emulator(name):
    assert BACKENDS[name].accepts(problem(device="cpu"), None) is None
    assert BACKENDS[name].choose(problem(device="cpu")) == BACKENDS[name].configs[0]


@BOTH
def test_a_unit_is_loaded_once_for_each_dtype_and_layout_and_then_called_directly(monkeypatch, name):
    put_device(monkeypatch, HOPPER)
    loads, calls = [], []

    def load(family, dtype, layout, config):
        loads.append((dtype, layout, config))
        return lambda *arguments: calls.append((layout, *arguments)), 17, family.index(config)

    monkeypatch.setattr(adapter, "_load", load)
    monkeypatch.setattr(Problem, "from_tensors", classmethod(lambda cls, a, b, out: problem()))
    record = next(record for record in adapter.backends() if record.name == name)
    a = torch.zeros(8, 8, dtype=torch.bfloat16, device="meta")  # on the CPU it would be emulated
    for config in (record.configs[1], None, record.configs[1]):
        record.run(a, a, a, config)
    record.run(a.half(), a, a, record.configs[1])
    record.run(a, a.t(), a, record.configs[1])
    record.run(a.expand(3, 8, 8).mT, a, a, record.configs[1])
    assert [handle for *_, handle, _ in calls] == [17] * 6
    assert [layout for layout, *_ in calls] == ["nn"] * 4 + ["nt", "tn"]
    assert calls[0][5] == 1
    assert len(loads) == len(set(loads))
    assert {dtype for dtype, _, _ in loads} == {torch.bfloat16, torch.float16}


@pytest.mark.gpu
@BOTH
@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_every_configuration_multiplies_on_a_side_stream(name, dtype):
    record = BACKENDS[name]
    if reason := record.unavailable("cuda"):
        pytest.skip(reason)
    generator = torch.Generator().manual_seed(1)
    a, b = (torch.randint(-4, 5, shape, generator=generator).to(dtype) for shape in ((200, 104), (104, 136)))
    expected = (a.double() @ b.double()).to(dtype)
    for config in record.configs:
        out = torch.full((200, 136), torch.nan, dtype=dtype, device="cuda")
        if record.accepts(Problem.from_tensors(a.cuda(), b.cuda(), out), config):
            continue
        stream = torch.cuda.Stream()
        stream.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(stream):
            on_device = a.cuda(), b.cuda()
            record.run(*on_device, out, config)
        stream.synchronize()
        assert torch.equal(out.cpu(), expected), config


@pytest.mark.gpu
@pytest.mark.parametrize("K", [8, 72, 328])
def test_persistent_blocks_compute_more_tiles_than_the_device_holds(K):
    record, config = BACKENDS["cuda_tma"], "256x128x64_s4_w64x64_rotate_persistent"
    if reason := record.unavailable("cuda"):
        pytest.skip(reason)
    generator = torch.Generator().manual_seed(2)
    a, b = (
        torch.randint(-4, 5, (3, *shape), generator=generator).to("cuda", torch.bfloat16)
        for shape in ((4104, K), (K, 2056))
    )
    out = torch.full((3, 4104, 2056), torch.nan, dtype=torch.bfloat16, device="cuda")  # 3 x 17 x 17 tiles
    if rule := record.accepts(Problem.from_tensors(a, b, out), config):
        pytest.skip(rule)
    record.run(a, b, out, config)
    assert torch.equal(out, (a.double() @ b.double()).bfloat16())


@pytest.mark.gpu
@BOTH
def test_the_device_reports_the_resources_of_every_configuration(name):
    from hgemm.cuda_kernels.build import load_unit
    from hgemm.cuda_kernels.configs import Unit

    if reason := BACKENDS[name].unavailable("cuda"):
        pytest.skip(reason)
    family = next(family for family in FAMILIES.values() if family.backend == name)
    unit = load_unit(Unit(family.name, "bf16"))
    for index, kernel in enumerate(family.configs):
        if adapter.config_limit(kernel, adapter.device_limits(0)) is None:
            resources = unit.resources(index)
            assert resources.shared_bytes == kernel.shared_bytes
            assert resources.threads == kernel.config.threads
            assert resources.spill_bytes == 0
            assert resources.blocks_per_multiprocessor >= 1
