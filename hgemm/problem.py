"""Problem: everything about a product that decides whether and how a kernel can compute it, read off tensors once."""

from __future__ import annotations

import functools
import math
from collections.abc import Sequence
from dataclasses import dataclass, replace

import torch
from torch import Tensor

DTYPES = (torch.float16, torch.bfloat16)
LAYOUTS = ("nn", "nt", "tn", "tt")  # of a, then b: n row-major, t column-major, as both are multiplied

# 16 bytes: one vector load or store, and the unit in which the tensor memory accelerator counts addresses and strides.
VECTOR_BYTES = 16
ELEMENT_BYTES = 2
VECTOR_ELEMENTS = VECTOR_BYTES // ELEMENT_BYTES
TMA_STRIDE_BYTES = 2**40  # cuTensorMapEncodeTiled: each stride lies below
LARGEST_EXTENT = 2**31 - 1 - 256  # 32-bit coordinates, and one tile past an edge


class UnsupportedProblem(ValueError):
    """A legal product that the named backend cannot compute; the message names the rule, the value and the way out."""


def layout_letter(rows: int, columns: int, row_stride: int, column_stride: int) -> str:
    """``n`` if a matrix is best read row by row, ``t`` if column by column: along neighbouring elements.

    The stride of a dimension of size 1 means nothing, so a vector of neighbours is one row, whichever way it stands.
    Where no two elements are neighbours, or the rows overlap, it is the way with the smaller stride, or the longer one.
    """
    along_rows = column_stride == 1 or columns == 1
    along_columns = row_stride == 1 or rows == 1
    if along_rows != along_columns:
        return "n" if along_rows else "t"
    return "t" if (rows > columns if along_rows else row_stride < column_stride) else "n"


def layout_of(a: Tensor, b: Tensor) -> str:
    """``Problem.layout`` of tensors, without the rest of the description."""
    return _layout(a.shape, a.stride(), b.shape, b.stride())


@functools.lru_cache(maxsize=4096)
def _layout(a_shape: torch.Size, a_stride: Sequence[int], b_shape: torch.Size, b_stride: Sequence[int]) -> str:
    return layout_letter(*a_shape[-2:], *a_stride[-2:]) + layout_letter(*b_shape[-2:], *b_stride[-2:])


@dataclass(frozen=True)
class Operand:
    """One matrix in memory, or a batch of them. Strides count elements; ``batch_stride`` is 0 for a matrix that all
    products share. ``alignment`` is the largest power of two up to 16 that divides the address of the first element, in
    bytes."""

    rows: int
    columns: int
    row_stride: int
    column_stride: int
    alignment: int
    batch_stride: int = 0

    @classmethod
    def from_tensor(cls, tensor: Tensor) -> Operand:
        """The last two dimensions of ``tensor``, and the one before them as the batch."""
        return cls.of(tensor.shape, tensor.stride(), alignment_of(tensor))

    @classmethod
    def of(cls, shape: Sequence[int], stride: Sequence[int], alignment: int) -> Operand:
        """The same, of a tensor of this shape and these strides.

        Along a dimension of size 1 any stride is legal, and it is described with that of a matrix without gaps.
        """
        rows, columns = shape[-2:]
        row_stride, column_stride = stride[-2:]
        if layout_letter(rows, columns, row_stride, column_stride) == "n":
            row_stride, column_stride = _plain_strides(rows, columns, row_stride, column_stride)
        else:
            column_stride, row_stride = _plain_strides(columns, rows, column_stride, row_stride)
        batch_stride = stride[-3] if len(shape) > 2 and shape[-3] > 1 else 0
        return cls(rows, columns, row_stride, column_stride, alignment, batch_stride)

    @property
    def letter(self) -> str:
        """``n`` or ``t``, as ``layout_letter`` has it."""
        return layout_letter(self.rows, self.columns, self.row_stride, self.column_stride)

    @property
    def transposed(self) -> Operand:
        """The transpose, over the same memory."""
        return replace(
            self,
            rows=self.columns,
            columns=self.rows,
            row_stride=self.column_stride,
            column_stride=self.row_stride,
        )

    @property
    def stored(self) -> Operand:
        """The matrix whose rows are the runs of neighbouring elements: itself, or its transpose if its letter is t."""
        return self if self.letter == "n" else self.transposed

    @property
    def row_major(self) -> bool:
        """Whether the elements of a row are neighbours and no two rows overlap."""
        return (self.columns == 1 or self.column_stride == 1) and (self.rows == 1 or self.row_stride >= self.columns)

    @property
    def strides_found(self) -> str:
        """The strides and the shape, in the words of an error message."""
        return f"strides ({self.row_stride}, {self.column_stride}) for shape ({self.rows}, {self.columns})"


def alignment_of(tensor: Tensor) -> int:
    """The largest power of two up to 16 that divides the address of the first element, in bytes."""
    address = tensor.data_ptr() | VECTOR_BYTES
    return address & -address


def _plain_strides(rows: int, columns: int, row_stride: int, column_stride: int) -> tuple[int, int]:
    """Strides of a matrix read row by row, those of a dimension of size 1 made those of a matrix without gaps."""
    return columns if rows == 1 else row_stride, 1 if columns == 1 else column_stride


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

        Kernels take two dimensions, or three with the batch first; of more, only the last of the batch is described.

        ``out=None`` stands for a tensor yet to be allocated: row-major, without gaps, aligned.
        """
        left, right = Operand.from_tensor(a), Operand.from_tensor(b)
        M, N, K = left.rows, right.columns, left.columns
        batch = tuple(torch.broadcast_shapes(a.shape[:-2], b.shape[:-2]))
        if out is None:
            result = Operand(M, N, N, 1, VECTOR_BYTES, batch_stride=M * N if math.prod(batch) > 1 else 0)
        else:
            result = Operand.from_tensor(out)
        return cls(
            M=M,
            N=N,
            K=K,
            batch=batch,
            dtype=a.dtype,
            accumulator=torch.float32,
            a=left,
            b=right,
            out=result,
            device=a.device,
        )

    @property
    def operands(self) -> tuple[tuple[str, Operand], ...]:
        """The three matrices with their names."""
        return ("a", self.a), ("b", self.b), ("out", self.out)

    @property
    def flops(self) -> int:
        """Floating-point operations: a multiplication and an addition for each term, 2 M N K for each matrix."""
        return 2 * self.M * self.N * self.K * math.prod(self.batch)

    @property
    def compulsory_bytes(self) -> int:
        """Bytes that must cross the memory bus if each element of a, b and out does so exactly once, those of a matrix
        that a batch shares among them."""
        count = math.prod(self.batch)
        inputs = sum(x.rows * x.columns * (count if x.batch_stride else 1) for x in (self.a, self.b))
        return (inputs + self.M * self.N * count) * self.dtype.itemsize

    @property
    def layout(self) -> str:
        """Two letters, for a and b: ``n`` for a matrix that is read row by row, ``t`` for column by column."""
        return self.a.letter + self.b.letter


def row_major_rule(problem: Problem) -> str | None:
    """The rule broken, with the value found, unless every matrix is a single row-major one."""
    if problem.batch:
        return f"the operands must be two matrices, found a batch of shape {problem.batch}"
    for name, operand in problem.operands:
        if not operand.row_major:
            way_out = "allocate it row-major" if name == "out" else f"pass {name}.contiguous()"
            return (
                f"{name} must be row-major (last stride 1, row stride at least the number of columns), "
                f"found {operand.strides_found}; {way_out}"
            )
    return None


def batch_rule(problem: Problem) -> str | None:
    """The rule broken, with the value found, unless there is one batch dimension at most."""
    if len(problem.batch) <= 1:
        return None
    return f"there must be at most one batch dimension, found a batch of shape {problem.batch}; reshape to one"


def extent_rule(problem: Problem) -> str | None:
    """The rule broken, with the value found, unless 32-bit coordinates reach every element and one tile beyond."""
    extents = {"M": problem.M, "N": problem.N, "K": problem.K, "the batch": math.prod(problem.batch)}
    for name, extent in extents.items():
        if extent > LARGEST_EXTENT:
            return f"{name} must be at most {LARGEST_EXTENT:,}, found {extent:,}; split the product"
    return None


def tma_rule(name: str, operand: Operand) -> str | None:
    """The rule broken, with the value found, unless the tensor memory accelerator can address 16-bit elements there.

    Stored rows must have neighbouring elements, and the first element, the rows and the matrices of a batch must start
    on 16 bytes (the CUDA driver API's cuTensorMapEncodeTiled). Any numbers of rows and columns will do.
    """
    stored = operand.stored
    if stored.columns > 1 and stored.column_stride != 1:
        return (
            f"TMA needs rows or columns of neighbouring elements in {name}, found {operand.strides_found}; "
            f"{_way_out(name)}"
        )
    if operand.alignment < VECTOR_BYTES:
        return (
            f"the first element of {name} must lie on a {VECTOR_BYTES}-byte boundary for TMA, found one of "
            f"{operand.alignment} bytes; {_way_out(name)} or slice at a multiple of {VECTOR_ELEMENTS}"
        )
    strides = {"row" if operand.letter == "n" else "column": stored.row_stride if stored.rows > 1 else VECTOR_ELEMENTS}
    if operand.batch_stride:
        strides["batch"] = operand.batch_stride
    for which, stride in strides.items():
        found = f"found {stride}; {_way_out(name)}"
        if stride == 0:
            return f"the {which} stride of {name} must not be 0 for TMA, {found}"
        if which != "batch" and stored.rows > 1 and stride < stored.columns:
            return f"the {which}s of {name} must not overlap for TMA, {found}"
        if stride % VECTOR_ELEMENTS:
            return (
                f"the {which} stride of {name} must be a multiple of {VECTOR_ELEMENTS} elements for TMA, {found} "
                f"or pad it with zeros"
            )
        if stride * 2 >= TMA_STRIDE_BYTES:
            return f"the {which} stride of {name} must be below 2^40 bytes for TMA, found {stride * 2:,} bytes"
    return None


def vector_rule(problem: Problem) -> str | None:
    """The rule broken, with the value found, unless TMA can load a and b and store out, each in either layout.

    A store writes whole vectors of 16 bytes, so the stored rows of out must consist of them; those of a and b need not.
    """
    stored = problem.out.stored
    if stored.columns % VECTOR_ELEMENTS:
        extent = "N" if problem.out.letter == "n" else "M"
        return (
            f"{extent} must be a multiple of {VECTOR_ELEMENTS}, found {extent} = {stored.columns}: TMA stores "
            f"{VECTOR_BYTES} bytes at a time; pad with zeros"
        )
    for name, operand in problem.operands:
        if rule := tma_rule(name, operand):
            return rule
    return batch_rule(problem) or extent_rule(problem)


def _way_out(name: str) -> str:
    return "allocate out without gaps" if name == "out" else f"copy it with {name}.clone()"
