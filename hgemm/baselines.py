"""What the kernels are measured against: torch.matmul and the vendor's two libraries, as backends."""

from __future__ import annotations

import functools

import torch
from torch import Tensor

from hgemm import cublas, cublaslt
from hgemm.backends import TORCH, Backend, Properties
from hgemm.cost import Kernel
from hgemm.problem import Problem

# With the flags that torch starts with, partial sums of a split K may be rounded to 16 bits.
_LIBRARY = Properties(deterministic=True, row_invariant=False, accumulator="float32", exact_integers=False)
_FP32_REDUCTIONS = Properties(deterministic=True, row_invariant=False, accumulator="float32", exact_integers=True)


def backends() -> list[Backend]:
    """The records of torch, cublas and cublaslt."""
    return [
        Backend(
            name=TORCH,
            idea="torch.matmul, with the flags that torch has",
            requires=(),
            configs=(),
            properties=_LIBRARY,
            unavailable=_torch_unavailable,
            accepts=lambda problem, config: None,
            choose=_no_config,
            run=_torch_run,
        ),
        Backend(
            name="cublas",
            idea="cublasGemmEx with fp32 sums, the algorithm left to its heuristic",
            requires=("CUDA device", "torch's cuBLAS"),
            configs=(),
            properties=_LIBRARY,
            unavailable=functools.partial(cublas.unavailable, "cublas"),
            accepts=cublas.accepts,
            choose=_no_config,
            run=cublas.run,
        ),
        Backend(
            name="cublaslt",
            idea="cublasLtMatmul: the heuristic's first algorithm, after tuning the fastest of its proposals",
            requires=("CUDA device", "torch's cuBLASLt"),
            configs=(),
            properties=_FP32_REDUCTIONS,
            unavailable=functools.partial(cublas.unavailable, "cublasLt"),
            accepts=lambda problem, config: cublas.dense_rule(problem),
            choose=_no_config,
            run=cublaslt.run,
            kernels=lambda device, size: (Kernel("cublaslt", None),),
        ),
    ]


def _torch_unavailable(device_type: str) -> str | None:
    if device_type == "cuda" and torch.version.cuda is None:
        return f"torch {torch.__version__} is built without CUDA; install a CUDA build of torch"
    if device_type == "cuda" and not torch.cuda.is_available():
        return "torch finds no CUDA device; see what nvidia-smi says"
    return None


def _torch_run(a: Tensor, b: Tensor, out: Tensor, config: str | None) -> None:
    torch.matmul(a, b, out=out)


def _no_config(problem: Problem) -> str | None:
    return None
