"""The vendor's GEMM, called as the library offers it: cublasGemmEx of the libcublas that torch has loaded.

cuBLAS counts matrices by columns. A row-major C[M, N] = A[M, K] B[K, N] is, in the same memory, the column-major
C^T[N, M] = B^T[N, K] A^T[K, M]: the operands change places, and the stride of the stored rows becomes the leading
dimension. No row-major matrix is transposed; a column-major one is, as an option of the call.

Sums are kept in fp32 (CUBLAS_COMPUTE_32F) and the algorithm is left to the library's heuristic. The handle is torch's,
bound to the current stream, with whatever math mode torch has set: by default cuBLAS may then round the partial sums of
a K that it splits to 16 bits, as it may for torch.matmul.
"""

from __future__ import annotations

import ctypes
import functools
import math
import os
from contextlib import AbstractContextManager, nullcontext
from typing import Any

import torch
from torch import Tensor

from hgemm.arrangement import arrange
from hgemm.problem import Problem, batch_rule

# library_types.h and cublas_api.h
DATA_TYPES = {torch.float16: 2, torch.bfloat16: 14}  # CUDA_R_16F, CUDA_R_16BF
CUDA_R_32F = 0
CUBLAS_COMPUTE_32F = 68
CUBLAS_OPERATIONS = {"n": 0, "t": 1}  # by the letter of a layout: CUBLAS_OP_N, CUBLAS_OP_T
CUBLAS_GEMM_DEFAULT = -1
LARGEST_INT = 2**31 - 1

ONE = ctypes.c_float(1.0)
ZERO = ctypes.c_float(0.0)


class LibraryError(RuntimeError):
    """The library is not there, or it refused a call; the message holds its own words."""


@functools.cache
def load(name: str) -> ctypes.CDLL:
    """The shared library `name` ("cublas" or "cublasLt") that torch has loaded; raises LibraryError if it has not.

    No second copy is opened: a handle of torch's means something to torch's own library only.
    """
    if torch.version.cuda is None:
        raise LibraryError(f"torch {torch.__version__} is built without CUDA; install a CUDA build of torch")
    file = f"lib{name}.so.{torch.version.cuda.split('.')[0]}"
    try:
        return ctypes.CDLL(file, mode=os.RTLD_NOW | os.RTLD_NOLOAD)
    except OSError as error:
        raise LibraryError(f"torch has not loaded {file} as a shared library of its own") from error


def unavailable(name: str, device_type: str) -> str | None:
    """Why the library cannot be called for tensors of this device type; None if it can."""
    if device_type != "cuda":
        return f"it runs on CUDA tensors, not on {device_type} ones"
    if torch.version.cuda is not None and not torch.cuda.is_available():
        return "torch finds no CUDA device; see what nvidia-smi says"
    try:
        load(name)
    except LibraryError as error:
        return str(error)
    return None


def accepts(problem: Problem, config: str | None) -> str | None:
    """The rule broken: as ``dense_rule``, and cublasGemmEx takes 32-bit extents and leading dimensions."""
    if rule := dense_rule(problem):
        return rule
    numbers = {"M": problem.M, "N": problem.N, "K": problem.K, "the batch": math.prod(problem.batch)}
    for name, operand in problem.operands:
        which = "row" if operand.letter == "n" else "column"
        numbers[f"the {which} stride of {name}"] = operand.stored.row_stride
    for name, value in numbers.items():
        if value > LARGEST_INT:
            return f"{name} must be at most {LARGEST_INT:,} for cublasGemmEx, found {value:,}; use backend 'cublaslt'"
    return None


def dense_rule(problem: Problem) -> str | None:
    """The rule broken, with the value found, unless each matrix is row- or column-major, in one batch at most."""
    for name, operand in problem.operands:
        if not operand.stored.row_major:
            way_out = "allocate it so" if name == "out" else f"pass {name}.contiguous()"
            return (
                f"{name} must be row- or column-major (one stride 1, the other at least as long as a row or column), "
                f"found {operand.strides_found}; {way_out}"
            )
    return batch_rule(problem)


def run(a: Tensor, b: Tensor, out: Tensor, config: str | None) -> None:
    """out = a @ b, enqueued on the current stream of the tensors' device. Raises LibraryError if cuBLAS refuses."""
    library = load("cublas")
    with on_device(a.get_device()):
        gemm_ex(library, torch.cuda.current_blas_handle(), a, b, out)


def on_device(index: int) -> AbstractContextManager[object]:
    """Makes a CUDA device the current one, which costs a microsecond unless it is already."""
    return nullcontext() if torch.cuda.current_device() == index else torch.cuda.device(index)


def gemm_ex(library: Any, handle: int, a: Tensor, b: Tensor, out: Tensor) -> None:
    """One call of cublasGemmEx, or of cublasGemmStridedBatchedEx for batches, of one dtype, float16 or bfloat16.

    ``a[M, K]``, ``b[K, N]`` and ``out[M, N]`` are row- or column-major; out, and a or b, may have a batch in front.
    """
    p = arrange(a.shape, a.stride(), b.shape, b.stride(), out.shape, out.stride())
    left, right = (a, b) if p.swapped else (b, a)
    data_type = DATA_TYPES[a.dtype]
    batched = p.batches > 1

    def matrix(tensor: Tensor, row_stride: int, batch_stride: int) -> tuple[Any, ...]:
        described = ctypes.c_void_p(tensor.data_ptr()), data_type, row_stride
        return (*described, ctypes.c_longlong(batch_stride)) if batched else described

    function = "cublasGemmStridedBatchedEx" if batched else "cublasGemmEx"
    status = getattr(library, function)(
        ctypes.c_void_p(handle),
        CUBLAS_OPERATIONS[p.b_layout],
        CUBLAS_OPERATIONS[p.a_layout],
        *(p.N, p.M, p.K),
        ctypes.byref(ONE),
        *matrix(left, p.stride_b, p.batch_b),
        *matrix(right, p.stride_a, p.batch_a),
        ctypes.byref(ZERO),
        *matrix(out, p.stride_c, p.batch_c),
        *((p.batches,) if batched else ()),
        CUBLAS_COMPUTE_32F,
        CUBLAS_GEMM_DEFAULT,
    )
    check(library, "cublas", status, function)


def check(library: Any, prefix: str, status: int, function: str) -> None:
    """Raises LibraryError, with the library's name for it, unless `status` is success."""
    if status != 0:
        name = getattr(library, f"{prefix}GetStatusString")
        name.restype = ctypes.c_char_p
        raise LibraryError(f"{function} failed: {(name(status) or b'unknown').decode()} (status {status})")
