"""The compiled binding: what torch.ops.hgemm_cuda hands to a unit, and what it refuses before any unit is called.

The unit is a stand-in compiled by g++ for the CPU: a plain triple loop behind the functions of launch.h.
"""

import ctypes
import gc
import re
import shutil
import subprocess
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
import torch

from hgemm.cuda_kernels import build, compilation
from hgemm.cuda_kernels.binding import HgemmProblem, Resources
from hgemm.cuda_kernels.configs import LAYOUTS
from hgemm.problem import Problem

UNIT = """
#include "launch.h"
#include <cstdio>
#include <cstring>
#include <vector>
#ifndef A_TRANSPOSED
#define A_TRANSPOSED 0
#define B_TRANSPOSED 0
#endif
extern "C" { HgemmProblem last; }
#ifdef BF16
static float widen(uint16_t bits) { uint32_t wide = uint32_t(bits) << 16; float x; memcpy(&x, &wide, 4); return x; }
static uint16_t narrow(float x) { uint32_t w; memcpy(&w, &x, 4); return (w + 0x7fff + (w >> 16 & 1)) >> 16; }
#else
static float widen(uint16_t bits) { _Float16 x; memcpy(&x, &bits, 2); return x; }
static uint16_t narrow(float x) { _Float16 y = x; uint16_t bits; memcpy(&bits, &y, 2); return bits; }
#endif
extern "C" {
int hgemm_config_count(void) { return 3; }
const char* hgemm_config_name(int config) {
  static const char* names[] = {"plain", "scratch", "refusing"};
  return config >= 0 && config < 3 ? names[config] : nullptr;
}
// "scratch" sums into a workspace of floats, one for each element of C.
size_t hgemm_workspace_bytes(const HgemmProblem* p, int config) { return config == 1 ? 4 * p->M * p->N : 0; }
const char* hgemm_launch(const HgemmProblem* p, int config, void* workspace, size_t bytes, void* stream) {
  if (stream) return "a stream on the CPU";
  if (config == 2) return "this configuration refuses everything";
  if ((config == 1) != (workspace != nullptr) || bytes != hgemm_workspace_bytes(p, config)) return "wrong workspace";
  auto a = static_cast<const uint16_t*>(p->a), b = static_cast<const uint16_t*>(p->b);
  auto c = static_cast<uint16_t*>(p->c);
  last = *p;
  for (int64_t batch = 0; batch < p->batch; ++batch)
    for (int64_t i = 0; i < p->M; ++i)
      for (int64_t j = 0; j < p->N; ++j) {
        float local = 0, *sum = config == 1 ? static_cast<float*>(workspace) + i * p->N + j : &local;
        *sum = 0;
        for (int64_t k = 0; k < p->K; ++k) {
          const int64_t a_row = A_TRANSPOSED ? k : i, a_column = A_TRANSPOSED ? i : k;
          const int64_t b_row = B_TRANSPOSED ? j : k, b_column = B_TRANSPOSED ? k : j;
          *sum += widen(a[batch * p->a_batch_stride + a_row * p->a_row_stride + a_column * p->a_column_stride]) *
                  widen(b[batch * p->b_batch_stride + b_row * p->b_row_stride + b_column * p->b_column_stride]);
        }
        c[batch * p->c_batch_stride + i * p->c_row_stride + j * p->c_column_stride] = narrow(*sum);
      }
  return nullptr;
}
const char* hgemm_resources(int config, HgemmResources* result) {
  if (config > 1) return "no kernel there";
  *result = {40 + config, 4, 1024, 128, 7};
  return nullptr;
}
}
"""
DTYPES = {"f16": torch.float16, "bf16": torch.bfloat16}


def compile_unit(folder: Path, text: str, *flags: str) -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "unit.cpp").write_text(text)
    compiler = shutil.which("g++") or pytest.fail("the tests need g++")
    command = [compiler, "-std=c++20", "-O1", "-fPIC", "-shared", "-w", f"-I{compilation.FOLDER}", *flags]
    subprocess.run([*command, str(folder / "unit.cpp"), "-o", str(folder / "unit.so")], check=True)
    return folder / "unit.so"


@pytest.fixture(scope="module")
def binding():
    return build.binding()


@pytest.fixture(scope="module")
def libraries(tmp_path_factory):
    folder = tmp_path_factory.mktemp("units")
    return {"f16": compile_unit(folder / "f16", UNIT), "bf16": compile_unit(folder / "bf16", UNIT, "-DBF16")}


@pytest.fixture(scope="module")
def units(binding, libraries):
    return {name: binding.load_unit(path, "cpu", name) for name, path in libraries.items()}


def mm_out(*arguments):
    torch.ops.hgemm_cuda.mm_out.default(*arguments)


def operands(M, N, K, dtype):
    generator = torch.Generator().manual_seed(M + N + K)
    a, b = (torch.randn(shape, generator=generator).to(dtype) for shape in ((M, K), (K, N)))
    return a, b, torch.full((M, N), torch.nan, dtype=dtype)


@pytest.mark.parametrize("name", DTYPES)
@pytest.mark.parametrize("config", [0, 1])
def test_the_unit_gets_the_product_that_was_asked_for(units, name, config):
    a, b, out = operands(5, 7, 11, DTYPES[name])
    mm_out(a, b, out, units[name].handle, config)
    exact = a.double() @ b.double()
    assert (out.double() - exact).abs().max() <= torch.finfo(DTYPES[name]).eps * exact.abs().max()


def test_row_strides_and_offsets_reach_the_unit(units):
    a, b, _ = operands(4, 6, 8, torch.bfloat16)
    arenas = [
        torch.full((rows + 1, columns + 5), torch.nan, dtype=torch.bfloat16)
        for rows, columns in ((4, 8), (8, 6), (4, 6))
    ]
    views = [arena[1:, 2:-3] for arena in arenas]
    views[0].copy_(a)
    views[1].copy_(b)
    mm_out(*views, units["bf16"].handle, 0)
    expected = torch.empty(4, 6, dtype=torch.bfloat16)
    mm_out(a, b, expected, units["bf16"].handle, 0)
    assert torch.equal(views[2], expected)
    guards = arenas[2].clone()
    guards[1:, 2:-3] = torch.nan
    assert guards.isnan().all()


@pytest.fixture(scope="module")
def layouts(binding, tmp_path_factory):
    """Units that read stored rows as their layout says, and their libraries."""
    folder = tmp_path_factory.mktemp("layouts")
    made = {}
    for layout in LAYOUTS:
        flags = [f"-D{name}_TRANSPOSED={int(letter == 't')}" for name, letter in zip("AB", layout, strict=True)]
        path = compile_unit(folder / layout, UNIT, *flags)
        made[layout] = binding.load_unit(path, "cpu", "f16", layout), ctypes.CDLL(str(path))
    return made


def exact(a, b):
    return (a.double() @ b.double()).half()


def integers(*shape):
    return torch.randint(-4, 5, shape, generator=torch.Generator().manual_seed(sum(shape))).half()


@pytest.mark.parametrize("layout", LAYOUTS)
def test_each_layout_gets_the_rows_that_it_reads(layouts, layout):
    unit, library = layouts[layout]
    wide = torch.full((40, 64), torch.nan).half()
    for M, N, K in ((5, 7, 11), (1, 7, 11), (5, 1, 11), (5, 7, 1), (1, 1, 1)):
        a, b = integers(M, K), integers(K, N)
        for spread in (1, 2):  # neighbours, or every other element
            place_a = wide[: M * spread : spread, 1 : 1 + K * spread : spread].copy_(a)
            place_b = wide.t()[24 : 24 + K * spread : spread][:, : N * spread : spread].copy_(b)
            for left, right in ((place_a, place_b), (place_b.t(), place_a.t())):
                rows, columns = left.shape[0], right.shape[1]
                out = torch.full((columns, rows), torch.nan).half().t()
                mm_out(left, right, out, unit.handle, 0)
                assert torch.equal(out, exact(left, right))
    problem = HgemmProblem.in_dll(library, "last")
    assert problem.c_column_stride == 1  # of one column


@pytest.mark.parametrize("layout", LAYOUTS)
def test_batches_step_and_shared_matrices_stay(layouts, layout):
    unit, library = layouts[layout]
    a, b = integers(3, 5, 11), integers(3, 11, 7)
    for left, right in ((a, b), (a[:1], b), (a, b[:1].expand(3, 11, 7)), (a[0], b), (a, b[1])):
        out = torch.full((5, 3, 7), torch.nan).half().transpose(0, 1)  # batches within rows
        mm_out(left, right, out, unit.handle, 0)
        assert torch.equal(out, exact(left, right))
        problem = HgemmProblem.in_dll(library, "last")
        assert problem.batch == 3
        assert (problem.a_batch_stride, problem.b_batch_stride) == (
            55 if left.dim() == 3 and left.shape[0] == 3 else 0,
            77 if right.dim() == 3 and right.stride(0) and right.shape[0] == 3 else 0,
        )


def test_a_stride_that_means_nothing_is_one_that_is_aligned(layouts):
    unit, library = layouts["nt"]
    a, b = integers(1, 11), integers(11, 1)
    odd = a.as_strided((1, 1, 11), (13, 17, 1)), b.as_strided((1, 11, 1), (19, 1, 23))
    out = torch.full((1, 1, 1), torch.nan).half().as_strided((1, 1, 1), (3, 5, 7))
    mm_out(*odd, out, unit.handle, 0)
    assert torch.equal(out[0], exact(a, b))
    problem = HgemmProblem.in_dll(library, "last")
    rows = problem.a_row_stride, problem.b_row_stride, problem.c_row_stride
    columns = problem.a_column_stride, problem.b_column_stride, problem.c_column_stride
    batches = problem.a_batch_stride, problem.b_batch_stride, problem.c_batch_stride
    assert (rows, columns, batches) == ((0, 0, 0), (1, 1, 1), (0, 0, 0))


def cases(a, b, out):
    """What is wrong, the arguments, and how the refusal begins. Handle and configuration are appended."""
    return {
        "dtype of a": ((a.half(), b, out), "a must be of the dtype that this unit is built for, bfloat16"),
        "dtype of b": ((a, b.float(), out), "b must be of the dtype"),
        "dtype of out": ((a, b, out.half()), "out must be of the dtype"),
        "vector": ((a[0], b, out), "a must have 2 or 3 dimensions, found 1"),
        "two batch dimensions": ((a, b, out[None, None]), "out must have 2 or 3 dimensions, found 4"),
        "batch of a": (
            (a.expand(2, 8, 16), b, out.new_empty(3, 8, 8)),
            "shapes do not agree: (2, 8, 16) @ (16, 8) -> (3, 8, 8)",
        ),
        "batch of out": ((a, b.expand(2, 16, 8), out), "shapes do not agree: (8, 16) @ (2, 16, 8) -> (8, 8)"),
        "expanded out": ((a, b, out[:1].expand(8, 8)), "out must have a place for each element, found a stride of 0"),
        "expanded batch": ((a, b, out.expand(2, 8, 8)), "out must have a place for each element"),
        "K": ((a, b[:8], out), "shapes do not agree: (8, 16) @ (8, 8) -> (8, 8)"),
        "M": ((a, b, out[:4]), "shapes do not agree: (8, 16) @ (16, 8) -> (4, 8)"),
        "N": ((a, b, out[:, :4]), "shapes do not agree"),
    }


@pytest.mark.parametrize("wrong", cases(*operands(8, 8, 16, torch.bfloat16)))
def test_wrong_arguments_are_refused_with_the_value_found(units, wrong):
    a, b, out = operands(8, 8, 16, torch.bfloat16)
    arguments, message = cases(a, b, out)[wrong]
    with pytest.raises(RuntimeError, match=re.escape(f"hgemm_cuda.mm_out: {message}")):
        mm_out(*arguments, units["bf16"].handle, 0)
    assert out.isnan().all()


@pytest.mark.parametrize("handle", [-1, 1023, 2**40])
def test_an_unknown_handle_is_refused(units, handle):
    with pytest.raises(RuntimeError, match=f"no unit has the handle {handle}"):
        mm_out(*operands(8, 8, 8, torch.bfloat16), handle, 0)


@pytest.mark.parametrize("config", [-1, 3, 2**32])
def test_an_unknown_configuration_is_refused(units, config):
    with pytest.raises(RuntimeError, match=f"configuration {config} of 3"):
        mm_out(*operands(8, 8, 8, torch.bfloat16), units["bf16"].handle, config)


def test_a_unit_for_the_gpu_refuses_tensors_on_the_cpu(binding, libraries):
    unit = binding.load_unit(libraries["bf16"], "cuda", "bf16")
    with pytest.raises(RuntimeError, match="a is a cpu tensor, and this unit is built for cuda"):
        mm_out(*operands(8, 8, 8, torch.bfloat16), unit.handle, 0)


def bound(unit, config, a, b, out):
    """Computes once by what `bind` returns."""
    unit.bind(config, Problem.from_tensors(a, b, out))(a.data_ptr(), b.data_ptr(), out.data_ptr())


@pytest.mark.parametrize("layout", LAYOUTS)
def test_a_bound_product_reaches_the_unit_as_that_of_the_op_does(layouts, layout):
    unit, library = layouts[layout]
    wide, compared = torch.full((40, 64), torch.nan).half(), 0
    for M, N, K in ((5, 7, 11), (1, 7, 11), (5, 1, 11), (5, 7, 1), (1, 1, 1)):
        a = (wide[:M, 1 : 1 + K] if layout[0] == "n" else wide.t()[:M, 1 : 1 + K]).copy_(integers(M, K))
        b = (wide[24 : 24 + K, :N] if layout[1] == "n" else wide.t()[24 : 24 + K, :N]).copy_(integers(K, N))
        out = torch.full((N, M), torch.nan).half().t()
        for left, right, result in ((a, b, out), (a.expand(3, M, K), b[None], out.expand(3, M, N).contiguous())):
            problem = Problem.from_tensors(left, right, result)
            if problem.layout != layout:
                continue  # a vector of neighbours is one row, whichever way it stands
            mm_out(left, right, result, unit.handle, 0)
            expected, asked = result.clone(), bytes(HgemmProblem.in_dll(library, "last"))
            result.fill_(torch.nan)
            bound(unit, 0, left, right, result)
            assert torch.equal(result, expected)
            assert bytes(HgemmProblem.in_dll(library, "last")) == asked
            compared += 1
    assert compared >= 2


def test_a_bound_product_takes_other_addresses_each_time_and_from_two_threads(units):
    a, b, out = operands(33, 7, 40, torch.float16)
    launch = units["f16"].bind(1, Problem.from_tensors(a, b, out))  # each with a workspace of its own
    gc.collect()

    def computed(seed):
        left, right = (torch.randn(x.shape, generator=torch.Generator().manual_seed(seed)).half() for x in (a, b))
        result, expected = torch.full_like(out, torch.nan), torch.empty_like(out)
        mm_out(left, right, expected, units["f16"].handle, 1)
        for _ in range(50):
            launch(left.data_ptr(), right.data_ptr(), result.fill_(torch.nan).data_ptr())
            if not torch.equal(result, expected):
                return False
        return True

    with ThreadPoolExecutor(2) as pool:
        assert all(pool.map(computed, range(4)))


def test_what_a_unit_says_of_a_bound_product_is_said_in_the_words_of_the_op(units):
    a, b, out = operands(8, 8, 8, torch.bfloat16)
    for config in (2, 3):
        with pytest.raises(RuntimeError) as by_op:
            mm_out(a, b, out, units["bf16"].handle, config)
        with pytest.raises(RuntimeError) as raised:
            bound(units["bf16"], config, a, b, out)
        assert str(by_op.value).startswith(str(raised.value))
        assert str(raised.value).startswith("hgemm_cuda.mm_out: ")
    assert out.isnan().all()


def test_what_the_unit_says_reaches_the_caller(units):
    a, b, out = operands(8, 8, 8, torch.bfloat16)
    with pytest.raises(RuntimeError, match="this configuration refuses everything"):
        mm_out(a, b, out, units["bf16"].handle, 2)
    assert out.isnan().all()


def test_each_load_has_a_handle_of_its_own_and_knows_its_configurations(binding, units, libraries):
    again = binding.load_unit(libraries["f16"], "cpu", "f16")
    assert len({again.handle, units["f16"].handle, units["bf16"].handle}) == 3
    assert again.configs == ("plain", "scratch", "refusing")
    assert again.path == libraries["f16"]


def test_resources_come_from_the_unit(units):
    assert units["f16"].resources(1) == Resources(41, 4, 1024, 128, 7)
    with pytest.raises(RuntimeError, match="resources of configuration 2: no kernel there"):
        units["f16"].resources(2)


def test_what_is_no_unit_is_refused_with_its_name(binding, tmp_path):
    with pytest.raises(RuntimeError, match=r"nowhere\.so: cannot open"):
        binding.load_unit(tmp_path / "nowhere.so", "cpu", "f16")
    text = UNIT.replace("hgemm_workspace_bytes", "hgemm_scratch_bytes")
    with pytest.raises(RuntimeError, match=r"unit\.so exports no hgemm_workspace_bytes"):
        binding.load_unit(compile_unit(tmp_path, f"#define hgemm_scratch_bytes other\n{text}"), "cpu", "f16")
    with pytest.raises(RuntimeError, match="a unit's dtype is f16 or bf16, found f32"):
        binding.load_unit(tmp_path / "unit.so", "cpu", "f32")
    for layout in ("n", "nx", "nnn"):
        with pytest.raises(RuntimeError, match=f"a unit's layout is nn, nt, tn or tt, found {layout}"):
            binding.load_unit(tmp_path / "unit.so", "cpu", "f16", layout)


def test_the_schema_says_what_is_written():
    schema = torch.ops.hgemm_cuda.mm_out.default._schema
    assert str(schema) == "hgemm_cuda::mm_out(Tensor a, Tensor b, Tensor(a!) out, int unit, int config) -> ()"
    assert [argument.is_write for argument in schema.arguments] == [False, False, True, False, False]


def test_the_binding_is_free_of_cuda_headers_and_needs_no_cuda_library():
    includes = re.findall(r"#include [<\"](.*)[>\"]", (compilation.FOLDER / "binding.cpp").read_text())
    assert not [name for name in includes if "cuda" in name.lower()]
    if torch.version.cuda is None:
        needed = subprocess.run(["ldd", str(build.binding().path)], capture_output=True, text=True, check=True).stdout
        assert "torch_cpu" in needed
        assert "cuda" not in needed
