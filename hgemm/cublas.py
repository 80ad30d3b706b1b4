"""The vendor's GEMM, called as the library offers it: cublasGemmEx of the libcublas that torch has loaded.

cuBLAS counts matrices by columns. A row-major C[M, N] = A[M, K] B[K, N] is, in the same memory, the column-major
C^T[N, M] = B^T[N, K] A^T[K, M]: the operands change places, no matrix is transposed, and each row stride becomes the
leading dimension.

Sums are kept in fp32 (CUBLAS_COMPUTE_32F) and the algorithm is left to the library's heuristic. The handle is torch's,
bound to the current stream, with whatever math mode torch has set: by default cuBLAS may then round the partial sums of
a K that it splits to 16 bits, as it may for torch.matmul.
"""

from __future__ import annotations

import ctypes
import functools
import os
from contextlib import AbstractContextManager, nullcontext
from typing import Any, NamedTuple

import torch
from torch import Tensor

from hgemm.problem import Problem

# library_types.h and cublas_api.h
DATA_TYPES = {torch.float16: 2, torch.bfloat16: 14}  # CUDA_R_16F, CUDA_R_16BF
CUDA_R_32F = 0
CUBLAS_COMPUTE_32F = 68
CUBLAS_OP_N = 0
CUBLAS_GEMM_DEFAULT = -1
LARGEST_INT = 2**31 - 1

ONE = ctypes.c_float(1.0)
ZERO = ctypes.c_float(0.0)


class LibraryError(RuntimeError):
    """The library is not there, or it refused a call; the message holds its own words."""


class ColumnMajor(NamedTuple):
    """A row-major product as cuBLAS sees it: `left` is B^T[m, k], `right` is A^T[k, n], the result C^T[m, n]."""

    m: int
    n: int
    k: int
    left_stride: int  # leading dimensions, in elements
    right_stride: int
    result_stride: int

    @classmethod
    def of_rows(cls, M: int, N: int, K: int, a_row_stride: int, b_row_stride: int, out_row_stride: int) -> ColumnMajor:
        """The product out[M, N] = a[M, K] b[K, N] of row-major matrices."""
        return cls(N, M, K, b_row_stride, a_row_stride, out_row_stride)


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
    """The rule broken: cublasGemmEx takes 32-bit extents and strides. The dispatcher has asked for row-major ones."""
    numbers = {"M": problem.M, "N": problem.N, "K": problem.K}
    numbers |= {f"the row stride of {name}": getattr(problem, name).row_stride for name in ("a", "b", "out")}
    for name, value in numbers.items():
        if value > LARGEST_INT:
            return f"{name} must be at most {LARGEST_INT:,} for cublasGemmEx, found {value:,}; use backend 'cublaslt'"
    return None


def run(a: Tensor, b: Tensor, out: Tensor, config: str | None) -> None:
    """out = a @ b, enqueued on the current stream of the tensors' device. Raises LibraryError if cuBLAS refuses."""
    library = load("cublas")
    with on_device(a.get_device()):
        gemm_ex(library, torch.cuda.current_blas_handle(), a, b, out)


def on_device(index: int) -> AbstractContextManager[object]:
    """Makes a CUDA device the current one, which costs a microsecond unless it is already."""
    return nullcontext() if torch.cuda.current_device() == index else torch.cuda.device(index)


def gemm_ex(library: Any, handle: int, a: Tensor, b: Tensor, out: Tensor) -> None:
    """One call of cublasGemmEx for row-major a[M, K], b[K, N] and out[M, N] of one dtype, float16 or bfloat16."""
    (M, K), N = a.shape, b.shape[1]
    product = ColumnMajor.of_rows(M, N, K, a.stride(0), b.stride(0), out.stride(0))
    data_type = DATA_TYPES[a.dtype]
    status = library.cublasGemmEx(
        ctypes.c_void_p(handle),
        CUBLAS_OP_N,
        CUBLAS_OP_N,
        product.m,
        product.n,
        product.k,
        ctypes.byref(ONE),
        ctypes.c_void_p(b.data_ptr()),
        data_type,
        product.left_stride,
        ctypes.c_void_p(a.data_ptr()),
        data_type,
        product.right_stride,
        ctypes.byref(ZERO),
        ctypes.c_void_p(out.data_ptr()),
        data_type,
        product.result_stride,
        CUBLAS_COMPUTE_32F,
        CUBLAS_GEMM_DEFAULT,
    )
    check(library, "cublas", status, "cublasGemmEx")


def check(library: Any, prefix: str, status: int, function: str) -> None:
    """Raises LibraryError, with the library's name for it, unless `status` is success."""
    if status != 0:
        name = getattr(library, f"{prefix}GetStatusString")
        name.restype = ctypes.c_char_p
        raise LibraryError(f"{function} failed: {(name(status) or b'unknown').decode()} (status {status})")
