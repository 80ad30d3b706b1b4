"""A product as kernels and libraries are told of it: numbers read off shapes and strides, once for each kind.

Operands are read in stored rows, along which the elements are neighbours: rows of a matrix with the letter "n", columns
of one with "t". C is written in rows; a column-major C is the row-major C^T = B^T A^T, so a and b change places.
"""

from __future__ import annotations

import functools
import math
from typing import NamedTuple

from hgemm.problem import VECTOR_BYTES, VECTOR_ELEMENTS, Operand, Problem


class Arrangement(NamedTuple):
    """Of ``c[M, N] = a[M, K] b[K, N]``, once for each of ``batches``. Strides count elements: ``stride_`` from one
    stored row to the next, ``column_`` from an element to the next in it, ``batch_`` from a matrix to the next."""

    swapped: bool  # a is here b transposed, b is a transposed, c is out transposed
    a_layout: str  # "n" or "t"
    b_layout: str
    M: int
    N: int
    K: int
    batches: int
    stride_a: int
    stride_b: int
    stride_c: int
    column_a: int
    column_b: int
    column_c: int
    batch_a: int
    batch_b: int
    batch_c: int

    @property
    def contiguous(self) -> bool:
        """Whether the elements of every stored row are neighbours."""
        return self.column_a == self.column_b == self.column_c == 1

    @property
    def alignment(self) -> int:
        """8 if, from bases on 16 bytes, every stored row starts and ends on 16 bytes; else 1."""
        a_row = self.K if self.a_layout == "n" else self.M
        b_row = self.N if self.b_layout == "n" else self.K
        numbers = a_row | b_row | self.N | self.stride_a | self.stride_b | self.stride_c
        numbers |= self.batch_a | self.batch_b | self.batch_c
        return VECTOR_ELEMENTS if self.contiguous and numbers % VECTOR_ELEMENTS == 0 else 1


@functools.lru_cache(maxsize=4096)
def arrange(
    a_shape: tuple[int, ...],
    a_stride: tuple[int, ...],
    b_shape: tuple[int, ...],
    b_stride: tuple[int, ...],
    out_shape: tuple[int, ...],
    out_stride: tuple[int, ...],
) -> Arrangement:
    """The arrangement of matrices, or of batches of them with one batch dimension in front."""
    a, b, out = (
        Operand.of(shape, stride, VECTOR_BYTES)
        for shape, stride in ((a_shape, a_stride), (b_shape, b_stride), (out_shape, out_stride))
    )
    return arrange_operands(a, b, out, out_shape[0] if len(out_shape) > 2 else 1)


def arrange_problem(problem: Problem) -> Arrangement:
    """The same, of a problem of one batch dimension at most."""
    return arrange_operands(problem.a, problem.b, problem.out, math.prod(problem.batch))


def arrange_operands(a: Operand, b: Operand, out: Operand, batches: int) -> Arrangement:
    """The same, of operands that are described already."""
    swapped = out.letter == "t"
    if swapped:
        a, b, out = b.transposed, a.transposed, out.transposed
    stored = (a.stored, b.stored, out)
    return Arrangement(
        swapped,
        a.letter,
        b.letter,
        out.rows,
        out.columns,
        a.columns,
        batches,
        *(_row_stride(operand) for operand in stored),
        *(operand.column_stride for operand in stored),
        *(operand.batch_stride for operand in stored),
    )


def _row_stride(stored: Operand) -> int:
    """Of a single row it means nothing, but a tensor descriptor wants a multiple of 16 bytes."""
    return -(-stored.columns // VECTOR_ELEMENTS) * VECTOR_ELEMENTS if stored.rows == 1 else stored.row_stride
