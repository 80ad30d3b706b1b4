"""cuBLAS and cuBLASLt: arguments against a library of the test's own that multiplies column-major matrices on the CPU,
the layout of structures, the choice of an algorithm; and both real libraries where there is a GPU."""

import ctypes
import shutil
import subprocess
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch
from placements import SHARINGS, placed, untouched

from hgemm import baselines, cublas, cublaslt
from hgemm.cuda_kernels.configs import LAYOUTS
from hgemm.problem import Operand, Problem, UnsupportedProblem

HANDLE, STREAM = 0x123456789A, 0xFEDCBA987


@pytest.fixture(scope="module")
def library(tmp_path_factory):
    path = tmp_path_factory.mktemp("library") / "library.so"
    compiler = shutil.which("g++") or pytest.fail("the tests need g++")
    source = Path(__file__).with_name("column_major_library.c")
    subprocess.run([compiler, "-x", "c", "-O1", "-fPIC", "-shared", "-w", source, "-o", path], check=True)
    return ctypes.CDLL(str(path))


@pytest.fixture
def on_cpu(library, monkeypatch):
    """Lets cublaslt run with that library on CPU tensors."""
    monkeypatch.setattr(cublaslt, "_chosen", {})
    monkeypatch.setattr(cublaslt, "_tuned", {})
    monkeypatch.setattr(torch.cuda, "current_blas_handle", lambda: HANDLE)
    monkeypatch.setattr(torch.cuda, "current_stream", lambda device: SimpleNamespace(cuda_stream=STREAM))
    monkeypatch.setattr(torch.cuda, "current_device", lambda: -1)
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda device: (9, 0))
    return library


def operands(M, N, K, dtype, padding=(0, 0, 0)):
    """a, b and an out full of NaN; each row is followed by `padding` elements of NaN."""
    generator = torch.Generator().manual_seed(M * N * K)
    made = []
    for (rows, columns), extra in zip(((M, K), (K, N), (M, N)), padding, strict=True):
        arena = torch.full((rows, columns + extra), torch.nan, dtype=dtype)
        made.append(arena[:, :columns])
    for operand in made[:2]:
        operand.copy_(torch.randn(operand.shape, generator=generator))
    return made


def assert_product(a, b, out):
    exact = a.double() @ b.double()
    assert (out.double() - exact).abs().max() <= torch.finfo(a.dtype).eps * exact.abs().max()


SHAPES = [((5, 7, 3), (0, 0, 0)), ((7, 5, 3), (4, 2, 6)), ((1, 9, 17), (1, 0, 3)), ((6, 1, 2), (0, 3, 0))]


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
@pytest.mark.parametrize(("shape", "padding"), SHAPES)
def test_gemm_ex_computes_the_row_major_product(library, dtype, shape, padding):
    a, b, out = operands(*shape, dtype, padding)
    cublas.gemm_ex(library, HANDLE, a, b, out)
    assert_product(a, b, out)
    assert out._base is None or out._base[:, shape[1] :].isnan().all()


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
@pytest.mark.parametrize(("shape", "padding"), SHAPES)
def test_cublaslt_computes_the_row_major_product(on_cpu, dtype, shape, padding):
    a, b, out = operands(*shape, dtype, padding)
    descriptors, proposal = cublaslt._choice(on_cpu, cublaslt.Product.of_tensors(a, b, out))
    cublaslt.matmul(on_cpu, descriptors, proposal, a, b, out)
    assert_product(a, b, out)
    assert out._base is None or out._base[:, shape[1] :].isnan().all()


def run_gemm_ex(library, a, b, out):
    cublas.gemm_ex(library, HANDLE, a, b, out)


def run_lt(library, a, b, out):
    descriptors, proposal = cublaslt._choice(library, cublaslt.Product.of_tensors(a, b, out))
    cublaslt.matmul(library, descriptors, proposal, a, b, out)


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("multiply", [run_gemm_ex, run_lt])
def test_both_libraries_take_every_dense_layout_and_batches(on_cpu, multiply, layout):
    calls = ctypes.c_int.in_dll(on_cpu, "batched_calls")
    for form in ("dense", "padded", "odd"):
        for sharing in SHARINGS:
            for out_form in ("n dense", "n odd", "t padded"):
                a, b, out, expected = placed((5, 7, 11), torch.float16, layout, form, out_form, sharing)
                problem = Problem.from_tensors(a, b, out)
                assert cublas.accepts(problem, None) is None
                assert cublas.dense_rule(problem) is None
                before = calls.value
                multiply(on_cpu, a, b, out)
                assert torch.equal(out, expected), (form, out_form, sharing)
                assert untouched(out)
                assert calls.value - before == (multiply is run_gemm_ex and sharing != "none")
                assert cublaslt.Product.of_problem(problem)[1:] == cublaslt.Product.of_tensors(a, b, out)[1:]


@pytest.mark.parametrize("multiply", [run_gemm_ex, run_lt])
def test_both_libraries_take_vectors_of_any_stride(on_cpu, multiply):
    memory = torch.randint(-4, 5, (3, 64), generator=torch.Generator().manual_seed(0)).half()
    for M, N, K in ((1, 5, 7), (5, 1, 7), (5, 7, 1), (1, 1, 1)):
        for step in (1, 3):
            a = memory[0].as_strided((M, K), (77 if M == 1 else step if K == 1 else K, 1 if K > 1 else 99))
            b = memory[1].as_strided((K, N), (77 if K == 1 else step if N == 1 else N, 1 if N > 1 else 99))
            out = torch.full((M, N), torch.nan).half()
            assert cublas.accepts(Problem.from_tensors(a, b, out), None) is None
            multiply(on_cpu, a, b, out)
            assert torch.equal(out, (a.double() @ b.double()).half()), (M, N, K, step)


@pytest.mark.parametrize(
    ("a", "b", "found"),
    [
        (((8, 16), (32, 2)), ((16, 8), (8, 1)), "a must be row- or column-major"),
        (((8, 16), (0, 1)), ((16, 8), (8, 1)), "found strides (0, 1) for shape (8, 16); pass a.contiguous()"),
        (((8, 16), (16, 1)), ((16, 8), (1, 15)), "b must be row- or column-major"),
        (((2, 3, 8, 16), (0, 0, 16, 1)), ((16, 8), (8, 1)), "a batch of shape (2, 3)"),
    ],
)
def test_what_is_not_dense_is_refused_by_both(a, b, found):
    memory = torch.zeros(1000).half()
    problem = Problem.from_tensors(memory.as_strided(*a), memory.as_strided(*b))
    records = {record.name: record for record in baselines.backends()}
    for name in ("cublas", "cublaslt"):
        assert found in records[name].accepts(problem, None)


def test_a_refusal_has_the_librarys_own_name_for_it(library):
    a, b, out = operands(4, 6, 8, torch.float16)
    overlapping = b.as_strided((8, 6), (5, 1))
    with pytest.raises(cublas.LibraryError, match="cublasGemmEx failed: CUBLAS_STATUS_INVALID_VALUE"):
        cublas.gemm_ex(library, HANDLE, a, overlapping, out)


def test_structures_have_the_size_that_the_library_gives_them(library):
    algorithm, heuristic = (ctypes.c_size_t * 2).in_dll(library, "sizes")
    assert (ctypes.sizeof(cublaslt.Algorithm), ctypes.sizeof(cublaslt.Proposal)) == (algorithm, heuristic) == (64, 96)


def product_of(a, b, out):
    return cublaslt.Product.of_tensors(a, b, out)


class Preference(ctypes.Structure):
    _fields_ = [("workspace", ctypes.c_uint64), ("schemes", ctypes.c_uint32), ("alignment", ctypes.c_uint32 * 4)]


def test_the_heuristic_is_asked_for_fp32_reductions_and_told_the_alignment(on_cpu):
    a, b, out = operands(8, 8, 8, torch.bfloat16, (8, 8, 8))
    a, b, out = a[:, 4:], b[1:5, 2:], out[:, 1:7]  # bytes from a 16-byte boundary: 8, 4, 2
    cublaslt._choice(on_cpu, product_of(a, b, out))
    asked = Preference.in_dll(on_cpu, "last_preference")
    assert asked.workspace == 32 * 2**20
    assert asked.schemes == 2
    assert list(asked.alignment) == [4, 8, 2, 2]  # cuBLAS's A is our b


def test_descriptors_are_freed(on_cpu):
    before = ctypes.c_int.in_dll(on_cpu, "objects").value
    descriptors = cublaslt.Descriptors(on_cpu, product_of(*operands(4, 4, 4, torch.float16)))
    assert ctypes.c_int.in_dll(on_cpu, "objects").value == before + 4
    del descriptors
    assert ctypes.c_int.in_dll(on_cpu, "objects").value == before


def test_the_first_proposal_is_asked_for_once_for_each_kind_of_product(on_cpu):
    a, b, out = operands(8, 8, 8, torch.bfloat16)
    first = cublaslt._choice(on_cpu, product_of(a, b, out))
    assert first[1].algorithm.data[0] == 100
    assert cublaslt._choice(on_cpu, product_of(a.clone(), b.clone(), out.clone())) is first
    assert cublaslt._choice(on_cpu, product_of(a[:4], b, out[:4])) is not first
    assert cublaslt._choice(on_cpu, product_of(*(x.half() for x in (a, b, out)))) is not first


def test_no_proposal_is_an_unsupported_problem_that_names_the_sizes(on_cpu):
    count = ctypes.c_int.in_dll(on_cpu, "proposals")
    count.value = 0
    try:
        with pytest.raises(UnsupportedProblem, match=r"no algorithm for M, N, K = 4, 6, 8 .* use backend 'cublas'"):
            cublaslt._choice(on_cpu, product_of(*operands(4, 6, 8, torch.float16)))
    finally:
        count.value = 3


def test_tuning_keeps_the_fastest_and_drops_what_is_not_usable(on_cpu, monkeypatch):
    a, b, out = operands(8, 8, 8, torch.bfloat16)
    problem = Problem.from_tensors(a, b, out)
    monkeypatch.setattr(cublaslt, "load", lambda name: on_cpu)
    monkeypatch.setattr(cublaslt, "on_device", lambda index: torch.no_grad())
    cublaslt.run(a, b, out, None)
    assert ctypes.c_uint64.in_dll(on_cpu, "last_algorithm").value == 100

    def medians(calls, rounds, milliseconds):
        for call in calls:
            call()
        return [2.0, 1.0]

    monkeypatch.setattr(cublaslt, "_interleaved_medians", medians)
    ranking = cublaslt.tune_cublaslt(problem)
    assert ranking == [cublaslt.Candidate(1, 1.0, 512), cublaslt.Candidate(0, 2.0, 0)]
    out.fill_(torch.nan)
    cublaslt.run(a, b, out, None)
    assert ctypes.c_uint64.in_dll(on_cpu, "last_algorithm").value == 102
    assert_product(a, b, out)


@pytest.mark.parametrize("sharing", ["none", "shared b", "shared a"])
def test_tuning_multiplies_operands_that_lie_as_the_problems_do(on_cpu, monkeypatch, sharing):
    a, b, out, _ = placed((5, 7, 11), torch.float16, "tn", "odd", "t padded", sharing)
    monkeypatch.setattr(cublaslt, "load", lambda name: on_cpu)
    monkeypatch.setattr(cublaslt, "on_device", lambda index: torch.no_grad())
    seen = []
    monkeypatch.setattr(cublaslt, "matmul", lambda library, descriptors, proposal, *tensors: seen.append(tensors))
    monkeypatch.setattr(cublaslt, "_interleaved_medians", lambda calls, *_: [call() or 1.0 for call in calls])
    cublaslt.tune_cublaslt(Problem.from_tensors(a, b, out))
    assert product_of(*seen[0]) == product_of(a, b, out)


def test_extents_beyond_32_bits_are_refused_with_the_value():
    big = 2**31

    def problem(M, N, K, a_stride):
        a, b, out = Operand(M, K, a_stride, 1, 16), Operand(K, N, N, 1, 16), Operand(M, N, N, 1, 16)
        return Problem(M, N, K, (), torch.float16, torch.float32, a, b, out, torch.device("cuda", 0))

    assert cublas.accepts(problem(4, 4, 4, big - 1), None) is None
    assert "M must be at most 2,147,483,647 for cublasGemmEx, found 2,147,483,648" in cublas.accepts(
        problem(big, 4, 4, 4), None
    )
    assert "row stride of a must be" in cublas.accepts(problem(4, 4, 4, big), None)


def test_where_the_libraries_are_missing_the_reason_is_given():
    records = {record.name: record for record in baselines.backends()}
    assert list(records) == ["torch", "cublas", "cublaslt"]
    for name in ("cublas", "cublaslt"):
        assert "CUDA tensors" in records[name].unavailable("cpu")
        if torch.version.cuda is None:
            assert "built without CUDA" in records[name].unavailable("cuda")
    assert records["torch"].unavailable("cpu") is None


def test_the_torch_backend_is_torch():
    a, b, out = operands(5, 7, 3, torch.bfloat16)
    baselines.backends()[0].run(a, b, out, None)
    assert torch.equal(out, torch.matmul(a, b))


@pytest.mark.gpu
@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
@pytest.mark.parametrize("name", ["cublas", "cublaslt"])
@pytest.mark.parametrize(
    ("shape", "padding"), [((256, 384, 128), (0, 0, 0)), ((33, 70, 90), (6, 2, 4)), ((1, 8, 8), (0, 8, 0))]
)
def test_the_real_libraries_multiply(name, dtype, shape, padding):
    record = {record.name: record for record in baselines.backends()}[name]
    assert record.unavailable("cuda") is None
    made = operands(*shape, dtype, padding)
    a, b, out = (
        torch.full((x.shape[0], x.stride(0)), torch.nan, dtype=dtype, device="cuda")[:, : x.shape[1]] for x in made
    )
    a.copy_(made[0])
    b.copy_(made[1])
    stream = torch.cuda.Stream()
    stream.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(stream):
        record.run(a, b, out, None)
    stream.synchronize()
    assert_product(*(x.cpu() for x in (a, b, out)))


@pytest.mark.gpu
def test_tuning_on_a_device_keeps_a_correct_algorithm():
    a, b = (torch.randn(shape, dtype=torch.bfloat16, device="cuda") for shape in ((512, 256), (256, 384)))
    out = torch.full((512, 384), torch.nan, dtype=torch.bfloat16, device="cuda")
    ranking = cublaslt.tune_cublaslt(Problem.from_tensors(a, b, out), rounds=3, milliseconds=0.5)
    assert [candidate.milliseconds for candidate in ranking] == sorted(candidate.milliseconds for candidate in ranking)
    assert ranking[0].milliseconds > 0
    cublaslt.run(a, b, out, None)
    assert_product(*(x.cpu() for x in (a, b, out)))


def test_torch_built_without_cuda_is_said_to_be(monkeypatch):
    torch_record = next(record for record in baselines.backends() if record.name == "torch")
    monkeypatch.setattr(torch.version, "cuda", None)
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    assert "built without CUDA; install a CUDA build" in torch_record.unavailable("cuda")
    monkeypatch.setattr(torch.version, "cuda", "13.0")
    assert "nvidia-smi" in torch_record.unavailable("cuda")
    assert torch_record.unavailable("cpu") is None
