"""cuBLAS and cuBLASLt: arguments against a library of the test's own that multiplies column-major matrices on the CPU,
the layout of structures, the choice of an algorithm; and both real libraries where there is a GPU."""

import ctypes
import shutil
import subprocess
from types import SimpleNamespace

import pytest
import torch

from hgemm import baselines, cublas, cublaslt
from hgemm.problem import Operand, Problem, UnsupportedProblem

# Column-major throughout: element (i, j) of a matrix with leading dimension ld lies at i + j * ld.
LIBRARY = """
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <math.h>
static float widen(int type, uint16_t bits) {
  if (type == 14) { uint32_t wide = (uint32_t)bits << 16; float x; memcpy(&x, &wide, 4); return x; }
  _Float16 x; memcpy(&x, &bits, 2); return x;
}
static uint16_t narrow(int type, float x) {
  if (type == 14) { uint32_t wide; memcpy(&wide, &x, 4); return (wide + 0x7fff + (wide >> 16 & 1)) >> 16; }
  _Float16 y = x; uint16_t bits; memcpy(&bits, &y, 2); return bits;
}
static int gemm(int type, int64_t m, int64_t n, int64_t k, float alpha, const uint16_t* A, int64_t lda,
                const uint16_t* B, int64_t ldb, float beta, uint16_t* C, int64_t ldc) {
  if (lda < m || ldb < k || ldc < m) return 7;  // CUBLAS_STATUS_INVALID_VALUE
  for (int64_t i = 0; i < m; ++i)
    for (int64_t j = 0; j < n; ++j) {
      float sum = 0;
      for (int64_t l = 0; l < k; ++l) sum += widen(type, A[i + l * lda]) * widen(type, B[l + j * ldb]);
      C[i + j * ldc] = narrow(type, alpha * sum + (beta ? beta * widen(type, C[i + j * ldc]) : 0));
    }
  return 0;
}
const char* cublasGetStatusString(int status) { return status == 7 ? "CUBLAS_STATUS_INVALID_VALUE" : "other"; }
const char* cublasLtGetStatusString(int status) { return cublasGetStatusString(status); }
int cublasGemmEx(void* handle, int ta, int tb, int m, int n, int k, const void* alpha, const void* A, int At, int lda,
                 const void* B, int Bt, int ldb, const void* beta, void* C, int Ct, int ldc, int compute, int algo) {
  if (handle != (void*)0x123456789a || ta || tb || At != Bt || Bt != Ct || compute != 68 || algo != -1) return 13;
  return gemm(At, m, n, k, *(float*)alpha, A, lda, B, ldb, *(float*)beta, C, ldc);
}

typedef struct { int type; uint64_t rows, cols; int64_t ld; } Layout;
typedef struct { uint64_t workspace; uint32_t schemes, alignment[4]; } Preference;
typedef struct { uint64_t data[8]; } Algo;
typedef struct { Algo algo; size_t workspace; int state; float waves; int reserved[4]; } Heuristic;
int objects = 0, proposals = 3;
uint64_t last_algorithm;
Preference last_preference;
size_t sizes[2] = {sizeof(Algo), sizeof(Heuristic)};
int cublasLtMatmulDescCreate(void** made, int compute, int scale) {
  if (compute != 68 || scale != 0) return 13;
  ++objects; *made = malloc(1); return 0;
}
int cublasLtMatrixLayoutCreate(Layout** made, int type, uint64_t rows, uint64_t cols, int64_t ld) {
  ++objects; *made = malloc(sizeof(Layout)); **made = (Layout){type, rows, cols, ld}; return 0;
}
int cublasLtMatmulPreferenceCreate(Preference** made) { ++objects; *made = calloc(1, sizeof(Preference)); return 0; }
int cublasLtMatmulDescDestroy(void* x) { --objects; free(x); return 0; }
int cublasLtMatrixLayoutDestroy(void* x) { --objects; free(x); return 0; }
int cublasLtMatmulPreferenceDestroy(void* x) { --objects; free(x); return 0; }
int cublasLtMatmulPreferenceSetAttribute(Preference* p, int attribute, const void* value, size_t size) {
  if (attribute == 1 && size == 8) memcpy(&p->workspace, value, 8);
  else if (attribute == 3 && size == 4) memcpy(&p->schemes, value, 4);
  else if (attribute >= 5 && attribute <= 8 && size == 4) memcpy(&p->alignment[attribute - 5], value, 4);
  else return 7;
  return 0;
}
int cublasLtMatmulAlgoGetHeuristic(void* handle, void* op, Layout* A, Layout* B, Layout* C, Layout* D, Preference* p,
                                   int requested, Heuristic* results, int* found) {
  if (handle != (void*)0x123456789a || C != D) return 7;
  last_preference = *p;
  *found = requested < proposals ? requested : proposals;
  for (int i = 0; i < *found; ++i)
    results[i] = (Heuristic){{{100 + i}}, 256 * i, i == 1 ? 15 : 0, 1.0f, {0}};  // the second one is not usable
  return *found ? 0 : 15;
}
int cublasLtMatmul(void* handle, void* op, const void* alpha, const void* A, Layout* a, const void* B, Layout* b,
                   const void* beta, const void* C, Layout* c, void* D, Layout* d, const Algo* algo, void* workspace,
                   size_t size, void* stream) {
  if (handle != (void*)0x123456789a || stream != (void*)0xfedcba987 || C != D || c != d) return 13;
  if (a->cols != b->rows || a->rows != d->rows || b->cols != d->cols) return 7;
  if ((size != 0) != (workspace != 0) || size != 256 * (algo->data[0] - 100)) return 8;
  last_algorithm = algo->data[0];
  return gemm(a->type, a->rows, b->cols, a->cols, *(float*)alpha, A, a->ld, B, b->ld, *(float*)beta, D, d->ld);
}
"""
HANDLE, STREAM = 0x123456789A, 0xFEDCBA987


@pytest.fixture(scope="module")
def library(tmp_path_factory):
    folder = tmp_path_factory.mktemp("library")
    (folder / "library.c").write_text(LIBRARY)
    compiler = shutil.which("g++") or pytest.fail("the tests need g++")
    command = [
        compiler,
        "-x",
        "c",
        "-O1",
        "-fPIC",
        "-shared",
        "-w",
        str(folder / "library.c"),
        "-o",
        str(folder / "library.so"),
    ]
    subprocess.run(command, check=True)
    return ctypes.CDLL(str(folder / "library.so"))


@pytest.fixture
def on_cpu(library, monkeypatch):
    """Lets cublaslt run with that library on CPU tensors."""
    monkeypatch.setattr(cublaslt, "_chosen", {})
    monkeypatch.setattr(cublaslt, "_tuned", {})
    monkeypatch.setattr(torch.cuda, "current_blas_handle", lambda: HANDLE)
    monkeypatch.setattr(torch.cuda, "current_stream", lambda device: SimpleNamespace(cuda_stream=STREAM))
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
    monkeypatch.setattr(torch.cuda, "current_device", lambda: -1)
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
