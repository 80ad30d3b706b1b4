"""`hgemm.matmul` and `hgemm.emulate` of CPU tensors by the handwritten kernels."""

import threading

import pytest
import torch

import hgemm
from hgemm import emulation
from hgemm.cuda_kernels.configs import FAMILIES, Unit
from hgemm.cuda_kernels.emulator.report import Event, Report

BACKENDS = [family.backend for family in FAMILIES.values()]


def operands(M=40, K=72, N=136, dtype=torch.float16):
    generator = torch.Generator().manual_seed(M + K + N)
    return [torch.randint(-4, 5, shape, generator=generator).to(dtype) for shape in ((M, K), (K, N))]


def product(a, b):
    return (a.double() @ b.double()).to(a.dtype)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
@pytest.mark.parametrize("backend", BACKENDS)
def test_matmul_of_cpu_tensors_runs_the_kernel(backend, dtype):
    a, b = operands(dtype=dtype)
    for config in (None, *hgemm.backends()[backend].configs):
        assert torch.equal(hgemm.matmul(a, b, backend=backend, config=config), product(a, b))
    out = torch.full((40, 136), torch.nan, dtype=dtype)
    assert hgemm.matmul(a, b, backend=backend, out=out) is out
    assert torch.equal(out, product(a, b))


def test_the_product_lies_on_the_cpu_whatever_the_default_device():
    a, b = operands()
    with torch.device("meta"):
        found, report = hgemm.emulate(a, b, backend="cuda_cp_async")
    assert report.clean
    assert torch.equal(found, product(a, b))


def test_the_registry_shows_the_kernels_as_available_on_the_cpu():
    for backend in BACKENDS:
        assert hgemm.backends()[backend].available_on("cpu")


def test_auto_leaves_cpu_tensors_to_torch(monkeypatch):
    monkeypatch.setattr(emulation, "run", None)
    a, b = operands()
    assert torch.equal(hgemm.matmul(a, b), a @ b)


def test_views_inside_larger_memory_stay_inside():
    arena = torch.full((64, 256), torch.nan).half()
    a, b = operands()
    view_a, view_b, out = arena[8:48, 8:80], torch.full((80, 160), torch.nan).half()[:72, 16:152], arena[8:48, 96:232]
    view_a.copy_(a)
    view_b.copy_(b)
    for backend in BACKENDS:
        hgemm.matmul(view_a, view_b, backend=backend, out=out)
        assert torch.equal(out, product(a, b))
        inside = torch.zeros(64, 256, dtype=torch.bool)
        inside[8:48, 8:80] = inside[8:48, 96:232] = True
        assert torch.equal(arena.isnan(), ~inside)


def test_the_torch_op_runs_an_emulated_unit():
    from hgemm.cuda_kernels.build import load_unit

    unit = load_unit(Unit("tma", "f16"), "cpu")
    assert unit.configs == tuple(kernel.name for kernel in FAMILIES["tma"].configs)
    a, b = operands()
    out = torch.empty(40, 136).half()
    torch.ops.hgemm_cuda.mm_out(a, b, out, unit.handle, 0)
    assert torch.equal(out, product(a, b))


def test_the_environment_names_the_schedule(monkeypatch):
    a, b = operands()
    monkeypatch.setenv("HGEMM_EMULATOR", "random,seed=7")
    assert hgemm.emulate(a, b)[1].schedule == "random,seed=7"
    assert hgemm.emulate(a, b, schedule="eager,reversed")[1].schedule == "eager,reversed"
    monkeypatch.setenv("HGEMM_EMULATOR", "sometimes")
    with pytest.raises(ValueError, match="schedules are eager, lazy"):
        hgemm.matmul(a, b, backend="cuda_tma")


def test_a_fault_is_an_exception_with_the_report(monkeypatch):
    event = Event("race", "ldmatrix_x4", "/somewhere/layout.cuh", 67, 3, 1, -1, "shared", 0x1400, "what happened", 12)
    report = Report("lazy", 1024, 4, {"mma": 0}, (event,))
    monkeypatch.setattr(emulation, "run", lambda *arguments: report)
    with pytest.raises(hgemm.EmulatorError) as caught:
        hgemm.matmul(*operands(), backend="cuda_tma")
    assert caught.value.report is report
    assert "[race] block 3 warp 1 at layout.cuh:67: what happened (12 times)" in str(caught.value)


def test_a_product_that_would_take_minutes_is_refused(monkeypatch):
    a, b = operands()
    with pytest.raises(hgemm.UnsupportedProblem, match=r"391,680 multiplications.*HGEMM_EMULATOR_LIMIT=391680"):
        hgemm.emulate(a, b, limit=1000)
    monkeypatch.setenv("HGEMM_EMULATOR_LIMIT", "1000")
    with pytest.raises(hgemm.UnsupportedProblem, match="HGEMM_EMULATOR_LIMIT"):
        hgemm.matmul(a, b, backend="cuda_tma")
    monkeypatch.setenv("HGEMM_EMULATOR_LIMIT", "391680")
    assert torch.equal(hgemm.matmul(a, b, backend="cuda_tma"), product(a, b))
    monkeypatch.delenv("HGEMM_EMULATOR_LIMIT")
    wide = torch.empty(1, 1).half().expand(8192, 8192)
    with pytest.raises(hgemm.UnsupportedProblem, match="10 minutes"):
        hgemm.emulate(wide, wide, backend="cuda_cp_async")


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ({"backend": "triton"}, "the emulator runs cuda_cp_async, cuda_tma"),
        ({"config": "1x1x1_s1_w1x1"}, "it has 128x128"),
        ({"schedule": "late"}, "schedules are"),
        ({"shared_base": 1025}, "no multiple of 16"),
        ({"shared_base": 2**32 + 1024}, "32-bit address, found 4294968320"),
        ({"schedule": "random,seed=-1"}, "a seed is a number from 0 to 18446744073709551615, found '-1'"),
        ({"schedule": "random,seed=18446744073709551616"}, "found '18446744073709551616'"),
    ],
)
def test_arguments_that_mean_nothing_are_refused(arguments, words):
    with pytest.raises(ValueError, match=words):
        hgemm.emulate(*operands(), **arguments)


def test_the_schedule_is_a_string():
    with pytest.raises(TypeError, match="schedule must be a string, such as 'lazy', found 5"):
        hgemm.emulate(*operands(), schedule=5)


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize(
    ("case", "words"),
    [
        ("an input", "out shares memory with a"),
        ("part of an input", "out shares memory with b"),
        ("a repeated batch", "two elements of out are the same memory"),
        ("a repeated row", "two elements of out are the same memory"),
        ("rows that overlap", "two elements of out are the same memory"),
    ],
)
def test_out_must_be_memory_of_its_own(backend, case, words):
    memory = torch.zeros(3, 64, 64).half()
    a, b = memory[0], memory[1]
    out = {
        "an input": a,
        "part of an input": memory.view(-1)[96 * 64 :].as_strided((64, 64), (64, 1)),
        "a repeated batch": memory[2].expand(2, 64, 64),
        "a repeated row": memory[2, :1].expand(64, 64),
        "rows that overlap": memory[2].as_strided((64, 64), (8, 1)),
    }[case]
    if out.dim() == 3:
        a = a.expand(2, 64, 64)
    with pytest.raises(ValueError, match=words):
        hgemm.emulate(a, b, backend=backend, out=out)


def test_a_lazily_negated_view_is_refused():
    a, b = operands()
    out = torch.empty(40, 136).half()
    for name, tensors in (("a", (torch._neg_view(a), b, None)), ("b", (a, torch._neg_view(b), None))):
        with pytest.raises(
            hgemm.UnsupportedProblem, match=rf"'cuda_tma'.*{name} must hold its own values.*resolve_neg"
        ):
            hgemm.emulate(tensors[0], tensors[1])
    with pytest.raises(hgemm.UnsupportedProblem, match=r"out must hold its own values.*pass other memory"):
        hgemm.emulate(a, b, out=torch._neg_view(out))


def test_a_refusal_is_that_of_matmul_with_its_way_out():
    a, b = operands(K=73)
    with pytest.raises(hgemm.UnsupportedProblem) as by_matmul:
        hgemm.matmul(a, b, backend="cuda_tma")
    with pytest.raises(hgemm.UnsupportedProblem) as by_emulate:
        hgemm.emulate(a, b, backend="cuda_tma")
    assert str(by_matmul.value).startswith(str(by_emulate.value))
    assert "cuTensorMap" not in str(by_emulate.value)


@pytest.mark.parametrize("value", ["abc", "-1", "1e9"])
def test_a_limit_that_is_no_number_is_named(monkeypatch, value):
    monkeypatch.setenv("HGEMM_EMULATOR_LIMIT", value)
    for call in (hgemm.emulate, hgemm.matmul):
        with pytest.raises(hgemm.UnsupportedProblem, match=f"HGEMM_EMULATOR_LIMIT must be a whole.*found '{value}'"):
            call(*operands(), backend="cuda_tma")
    assert hgemm.emulate(*operands(), limit=10**6)[1].clean  # which does not ask for it


def test_a_small_product_is_not_said_to_take_minutes():
    a, b = operands(16, 16, 16)
    with pytest.raises(hgemm.UnsupportedProblem, match="less than a second of one core for 4,096 mult"):
        hgemm.emulate(a, b, limit=1)
    a = torch.empty(1, 1).half().expand(2048, 2048)
    with pytest.raises(hgemm.UnsupportedProblem, match="about 9 seconds of one core"):
        hgemm.emulate(a, a, limit=1, backend="cuda_cp_async")


@pytest.mark.parametrize("value", ["sometimes", "random,seed=-1", "random,seed=99999999999999999999"])
def test_a_schedule_of_the_environment_is_named(monkeypatch, value):
    monkeypatch.setenv("HGEMM_EMULATOR", value)
    with pytest.raises(ValueError, match=f"HGEMM_EMULATOR='{value}': "):
        hgemm.emulate(*operands())


def test_a_blank_schedule_of_the_environment_is_none(monkeypatch):
    monkeypatch.setenv("HGEMM_EMULATOR", "  ")
    assert hgemm.emulate(*operands())[1].schedule == "lazy"


def test_flags_that_cannot_be_split_are_named(monkeypatch):
    from hgemm.cuda_kernels.emulator import build

    monkeypatch.setenv("HGEMM_EMULATOR_CXXFLAGS", "'")
    with pytest.raises(hgemm.cuda_kernels.toolchain.BuildError, match=r"""HGEMM_EMULATOR_CXXFLAGS="'" .*quotation"""):
        build.build_library("unsplit", "")


def test_a_keyboard_interrupt_stops_the_emulator(monkeypatch):
    from hgemm.cuda_kernels.emulator import library

    a = torch.ones(2048, 2048).half()

    def interrupt(self):
        raise KeyboardInterrupt

    monkeypatch.setattr(emulation._ProgressLine, "update", interrupt)
    with pytest.raises(KeyboardInterrupt):
        hgemm.emulate(a, a)
    assert not [thread for thread in threading.enumerate() if thread.name == "hgemm emulator"]
    assert library.Progress().cancel == 0


def test_two_products_at_once_do_not_disturb_each_other():
    a, b = operands(200, 136, 264)
    results = {}

    def work(index):
        results[index] = hgemm.emulate(a, b, backend=BACKENDS[index % 2], schedule=f"random,seed={index}")

    threads = [threading.Thread(target=work, args=(index,)) for index in range(6)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    for index in range(6):
        found, report = results[index]
        assert report.clean and report.schedule == f"random,seed={index}"
        assert torch.equal(found, product(a, b))
