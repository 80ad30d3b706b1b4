"""Problem: everything about a product that decides whether and how a kernel can compute it, read off tensors once."""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import Tensor

DTYPES = (torch.float16, torch.bfloat16)

# 16 bytes: one vector load or store, and the unit in which the tensor memory accelerator counts addresses and strides.
VECTOR_BYTES = 16
VECTOR_ELEMENTS = VECTOR_BYTES // 2


class UnsupportedProblem(ValueError):
    """A legal product that the named backend cannot compute; the message names the rule, the value and the way out."""


@dataclass(frozen=True)
class Operand:
    """One matrix in memory. Strides count elements; ``alignment`` is the largest power of two up to 16 that divides
    the address of its first element, in bytes."""

    rows: int
    columns: int
    row_stride: int
    column_stride: int
    alignment: int

    @classmethod
    def from_tensor(cls, tensor: Tensor) -> Operand:
        """The last two dimensions of ``tensor``, which has at least two."""
        rows, columns = tensor.shape[-2:]
        row_stride, column_stride = tensor.stride()[-2:]
        address = tensor.data_ptr() | VECTOR_BYTES
        return cls(rows, columns, row_stride, column_stride, alignment=address & -address)

    @property
    def row_major(self) -> bool:
        return self.column_stride == 1 and self.row_stride >= self.columns


@dataclass(frozen=True)
class Problem:
    """out[M, N] = a[M, K] @ b[K, N] for each index of ``batch``: summed in ``accumulator``, rounded once to ``dtype``.

    The number of multiplications is M N K for each matrix; all three are at least 1 by the time a backend sees them.
    """

    M: int
    N: int
    K: int
    batch: tuple[int, ...]
    dtype: torch.dtype
    accumulator: torch.dtype
    a: Operand
    b: Operand
    out: Operand
    device: torch.device

    @classmethod
    def from_tensors(cls, a: Tensor, b: Tensor, out: Tensor | None = None) -> Problem:
        """Describes tensors of at least two dimensions, whose shapes, dtypes and device are known to agree.

        ``out=None`` stands for a tensor yet to be allocated: row-major, without gaps, aligned.
        """
        left, right = Operand.from_tensor(a), Operand.from_tensor(b)
        M, N, K = left.rows, right.columns, left.columns
        return cls(
            M=M,
            N=N,
            K=K,
            batch=tuple(torch.broadcast_shapes(a.shape[:-2], b.shape[:-2])),
            dtype=a.dtype,
            accumulator=torch.float32,
            a=left,
            b=right,
            out=Operand(M, N, N, 1, VECTOR_BYTES) if out is None else Operand.from_tensor(out),
            device=a.device,
        )

    @property
    def flops(self) -> int:
        """Floating-point operations: a multiplication and an addition for each term, 2 M N K for each matrix."""
        return 2 * self.M * self.N * self.K * math.prod(self.batch)

    @property
    def compulsory_bytes(self) -> int:
        """Bytes that must cross the memory bus if each element of a, b and out does so exactly once."""
        elements = self.M * self.K + self.K * self.N + self.M * self.N
        return elements * self.dtype.itemsize * math.prod(self.batch)

    @property
    def layout(self) -> str:
        """Two letters, for a and b: ``n`` row-major, ``t`` column-major, ``x`` neither."""
        return _layout_letter(self.a) + _layout_letter(self.b)


def _layout_letter(operand: Operand) -> str:
    if operand.row_major:
        return "n"
    return "t" if operand.row_stride == 1 and operand.column_stride >= operand.rows else "x"


def row_major_rule(problem: Problem) -> str | None:
    """The rule broken, with the value found, unless every matrix is a single row-major one."""
    if problem.batch:
        return f"the operands must be two matrices, found a batch of shape {problem.batch}"
    for name, operand in (("a", problem.a), ("b", problem.b), ("out", problem.out)):
        if not operand.row_major:
            way_out = "allocate it row-major" if name == "out" else f"pass {name}.contiguous()"
            found = f"({operand.row_stride}, {operand.column_stride}) for shape ({operand.rows}, {operand.columns})"
            return (
                f"{name} must be row-major (last stride 1, row stride at least the number of columns), "
                f"found strides {found}; {way_out}"
            )
    return None


def vector_rule(problem: Problem) -> str | None:
    """The rule broken, with the value found, unless rows can be moved 16 bytes at a time.

    For kernels that load and store whole vectors, tensor-map ones included: row-major operands, K and N multiples of 8,
    row strides multiples of 8 elements, base addresses multiples of 16 bytes. M is free.
    """
    if rule := row_major_rule(problem):
        return rule
    for name, extent in (("K", problem.K), ("N", problem.N)):
        if extent % VECTOR_ELEMENTS:
            return f"{name} must be a multiple of {VECTOR_ELEMENTS}, found {name} = {extent}; pad with zeros"
    for name, operand in (("a", problem.a), ("b", problem.b), ("out", problem.out)):
        if operand.row_stride % VECTOR_ELEMENTS:
            return (
                f"the row stride of {name} must be a multiple of {VECTOR_ELEMENTS} elements, "
                f"found {operand.row_stride}; copy it with .contiguous() or pad its rows"
            )
        if operand.alignment < VECTOR_BYTES:
            return (
                f"the first element of {name} must lie on a {VECTOR_BYTES}-byte boundary, found one of "
                f"{operand.alignment} bytes; copy it with .clone() or slice at a multiple of {VECTOR_ELEMENTS}"
            )
    return None
