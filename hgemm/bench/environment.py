"""What a results file says of the machine and the software, with nothing in it that names a host, a user or a path."""

from __future__ import annotations

import ctypes
import importlib.metadata
import platform
import re
import subprocess
from pathlib import Path

import numpy
import torch

import hgemm
from hgemm.bench.nvml import Board
from hgemm.bench.schema import Environment
from hgemm.cuda_kernels import toolchain
from hgemm.program import printable
from hgemm.sources import sources_digest as sources_digest

_PACKAGE = Path(hgemm.__file__).resolve().parent


def describe_cuda(device: torch.device, board: Board) -> Environment:
    """The environment of a run on a CUDA device."""
    properties = torch.cuda.get_device_properties(device)
    return Environment(
        gpu=properties.name,
        compute_capability=[properties.major, properties.minor],
        multiprocessors=properties.multi_processor_count,
        l2_bytes=int(properties.L2_cache_size),
        memory_bytes=int(properties.total_memory),
        driver=board.driver,
        cuda=torch.version.cuda,
        nvcc=_nvcc(),
        cublas=_cublas(),
        torch=str(torch.__version__),
        triton=_version("triton"),
        numpy=numpy.__version__,
        python=platform.python_version(),
        hgemm=hgemm.__version__,
        platform="WSL2" if "microsoft" in platform.release().lower() else platform.system(),
        power_limit_w=board.power_limit_w,
        power_default_w=board.power_default_w,
        clock_max_mhz=board.clock_max_mhz,
        ecc=board.ecc,
    )


def torch_flags() -> dict[str, str | bool | None]:
    """Settings under which torch and cuBLAS may sum in less than fp32; None for one that this torch lacks."""
    matmul = torch.backends.cuda.matmul
    names = (
        "allow_fp16_reduced_precision_reduction",
        "allow_bf16_reduced_precision_reduction",
        "allow_fp16_accumulation",
        "allow_tf32",
    )
    flags: dict[str, str | bool | None] = {}
    for name in names:
        value = getattr(matmul, name, None)
        flags[name] = value if value is None or isinstance(value, bool) else str(value)
    return flags


def revision() -> str | None:
    """Git revision of the checkout that this package runs from, "-dirty" if anything tracked was changed."""
    root = _PACKAGE.parent
    if not (root / ".git").exists():
        return None
    commit = _output("git", "-C", str(root), "rev-parse", "HEAD")
    if commit is None or not re.fullmatch(r"[0-9a-f]{40,64}", commit):
        return None
    changes = _output("git", "-C", str(root), "status", "--porcelain", "--untracked-files=no")
    return commit if changes == "" else f"{commit}-dirty"


def scrub(text: str, limit: int = 300) -> str:
    """One line of an error message, without host name, folders or control characters: what a results file may hold of
    it."""
    line = printable(" ".join(text.split()))
    line = re.sub(r"(?:~|\.{0,2})(?:/[^\s/:'\"]+)+/([^\s/:'\"]+)", r"\1", line)
    host = platform.node()
    if host:
        line = re.sub(rf"\b{re.escape(host)}\b", "localhost", line)
    return line if len(line) <= limit else line[: limit - 3] + "..."


def _version(package: str) -> str | None:
    try:
        return importlib.metadata.version(package)
    except importlib.metadata.PackageNotFoundError:
        return None


def _output(*command: str) -> str | None:
    try:
        return subprocess.run(command, capture_output=True, text=True, timeout=20, check=True).stdout.strip()
    except (OSError, subprocess.SubprocessError):
        return None


def _nvcc() -> str | None:
    """Version of the nvcc that compiles the kernels."""
    try:
        return toolchain.find_nvcc().version
    except toolchain.BuildError:
        return None


def _cublas() -> str | None:
    """Version of the cuBLAS that torch loaded, asked of the library itself."""
    major = (torch.version.cuda or "").partition(".")[0]
    try:
        library = ctypes.CDLL(f"libcublas.so.{major}")
        parts = []
        for which in range(3):  # MAJOR_VERSION, MINOR_VERSION, PATCH_LEVEL of libraryPropertyType
            value = ctypes.c_int()
            if library.cublasGetProperty(which, ctypes.byref(value)) != 0:
                return None
            parts.append(str(value.value))
        return ".".join(parts)
    except (OSError, AttributeError):
        return None
