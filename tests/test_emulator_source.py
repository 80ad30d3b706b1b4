"""One source for the GPU and for the CPU: the emulator has every name of ptx.cuh, and kernels use nothing else."""

import re
from pathlib import Path

import pytest

KERNELS = Path(__file__).resolve().parents[1] / "cuda_kernels"
HOST_CODE = ("ptx.cuh", "launch.cuh")
HEADERS = [path for path in sorted(KERNELS.glob("*.cuh")) if path.name not in HOST_CODE]


def code(path):
    """The text of a C++ file without its comments."""
    return re.sub(r"//[^\n]*", "", path.read_text())


def declarations(path, pattern):
    """Name, return type and parameter types of every function that `pattern` finds."""
    found = {}
    for match in re.finditer(pattern + r"([\w ]+?) (\w+)\(([^)]*)\)", code(path)):
        result, name, parameters = match.groups()
        kinds = []
        for parameter in re.sub(r"\(&(\w+)\)\[4\]", r"&\1[4]", parameters).split(","):
            parameter = " ".join(parameter.split())
            if parameter and not parameter.startswith("Site"):
                kinds.append(re.sub(r"\b\w+(?=(\[4\])?$)", "", re.sub(r" = .*", "", parameter)).replace(" ", ""))
        found[name] = (" ".join(result.split()), tuple(kinds))
    return found


def with_references(path):
    """The text of a file in which `(&name)[4]` is spelt without parentheses."""
    return re.sub(r"\(&(\w+)\)\[4\]", r"&\1[4]", code(path))


@pytest.fixture
def gpu(tmp_path):
    (tmp_path / "ptx.cuh").write_text(with_references(KERNELS / "ptx.cuh"))
    return declarations(tmp_path / "ptx.cuh", r"HGEMM_DEVICE ")


@pytest.fixture
def cpu(tmp_path):
    (tmp_path / "ptx.hpp").write_text(with_references(KERNELS / "emulator" / "ptx.hpp").replace("[[noreturn]] ", ""))
    return declarations(tmp_path / "ptx.hpp", r"(?m)^")


def test_the_emulator_declares_what_ptx_cuh_does(gpu, cpu):
    assert {"mma_m16n8k16_f16", "ldmatrix_x4", "cp_async", "mbarrier_wait_parity"} <= gpu.keys()
    assert {name: cpu.get(name) for name in gpu} == gpu


def test_both_define_the_same_macros():
    names = [
        {name for name in re.findall(r"#define (HGEMM_\w+)", path.read_text()) if name != "HGEMM_EMULATOR"}
        for path in (KERNELS / "ptx.cuh", KERNELS / "emulator" / "ptx.hpp")
    ]
    assert names[0] == names[1]


@pytest.mark.parametrize("path", HEADERS, ids=lambda path: path.name)
def test_kernels_use_wrappers_only(path):
    text = code(path)
    builtins = (
        r"\b(threadIdx|blockIdx|blockDim|gridDim|__\w+sync\w*|__syncthreads|__shfl\w*|__ld\w+|atomic\w+|clock64)\b"
    )
    assert re.findall(builtins, text) == []
    assert re.findall(r"\b(std::|__half|__nv_bfloat16|half2|float4|uint4|int4)\b", text) == []
    # __device__ and its kin are spelt HGEMM_DEVICE and so on, which the emulator defines away.
    assert re.findall(r"__(?:device|host|global|forceinline|launch_bounds|grid_constant|restrict)__", text) == []


@pytest.mark.parametrize("path", HEADERS, ids=lambda path: path.name)
def test_a_tensor_map_is_a_grid_constant_parameter(path):
    for parameters in re.findall(r"HGEMM_KERNEL\([^()]*(?:\([^()]*\))?[^()]*\)\s*\w+\(([^)]*)\)", code(path)):
        for parameter in parameters.split(","):
            if "TensorMap" in parameter:
                assert " ".join(parameter.split()).startswith("const HGEMM_GRID_CONSTANT TensorMap "), parameter


def test_the_emulator_needs_no_processor_of_its_own():
    for path in sorted((KERNELS / "emulator").glob("*.[hc]*")):
        if path.suffix not in (".hpp", ".cpp", ".h"):
            continue
        assert not re.search(r"#include <\w*intrin\.h>", path.read_text()), path.name
        assert ("asm(" in path.read_text()) == (path.name == "fiber.hpp"), path.name
