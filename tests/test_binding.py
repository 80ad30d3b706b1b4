"""The compiled binding: what torch.ops.hgemm_cuda hands to a unit, and what it refuses before any unit is called.

The unit is a stand-in compiled by g++ for the CPU: a plain triple loop behind the functions of launch.h.
"""

import re
import shutil
import subprocess
from pathlib import Path

import pytest
import torch

from hgemm.cuda_kernels import build, compilation
from hgemm.cuda_kernels.binding import Resources

UNIT = """
#include "launch.h"
#include <cstdio>
#include <cstring>
#include <vector>
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
  for (int64_t i = 0; i < p->M; ++i)
    for (int64_t j = 0; j < p->N; ++j) {
      float local = 0, *sum = config == 1 ? static_cast<float*>(workspace) + i * p->N + j : &local;
      *sum = 0;
      for (int64_t k = 0; k < p->K; ++k) *sum += widen(a[i * p->a_row_stride + k]) * widen(b[k * p->b_row_stride + j]);
      static_cast<uint16_t*>(p->c)[i * p->c_row_stride + j] = narrow(*sum);
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


def cases(a, b, out):
    """What is wrong, the arguments, and how the refusal begins. Handle and configuration are appended."""
    column_major = b.t().contiguous().t()
    return {
        "dtype of a": ((a.half(), b, out), "a must be of the dtype that this unit is built for, bfloat16"),
        "dtype of b": ((a, b.float(), out), "b must be of the dtype"),
        "dtype of out": ((a, b, out.half()), "out must be of the dtype"),
        "vector": ((a[0], b, out), "a must have 2 dimensions, found 1"),
        "batch": ((a, b, out[None]), "out must have 2 dimensions, found 3"),
        "column-major": ((a, column_major, out), "b must be row-major, found strides (1, 16)"),
        "overlapping rows": ((a, b[:1].expand(16, 8), out), "b must be row-major, found strides (0, 1)"),
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
