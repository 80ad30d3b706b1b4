"""Products of any shape as products of matrices, or of one batch of matrices, over the same memory.

``torch.matmul`` takes vectors, matrices and batches that broadcast. A kernel takes ``a[M, K]``, ``b[K, N]`` and
``out[M, N]``, or all three with one batch dimension in front. What stands between is arithmetic on sizes and strides:
nothing is copied, and elements keep their places.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

Shape = tuple[int, ...]


@dataclass(frozen=True)
class View:
    """The sizes and strides, in elements, in which a kernel sees a tensor."""

    shape: Shape
    stride: Shape


@dataclass(frozen=True)
class Folding:
    """The views of a, b and out, and for each launch the offsets of their first elements, in elements."""

    a: View
    b: View
    out: View
    offsets: tuple[tuple[int, int, int], ...]


@dataclass(frozen=True)
class _Batch:
    """One batch dimension: its size, and the strides of a, b and out along it, 0 where one of them is repeated."""

    size: int
    a: int
    b: int
    out: int


def fold(a: View, b: View, out: View) -> Folding:
    """The launches of the product of tensors that fit together, none of them empty.

    Vectors become matrices of one row or one column. Batch dimensions over which b repeats become rows where the
    strides of a and out allow; the others become one batch dimension where the strides of all three allow. Of those
    that are left the largest is the batch of each launch, and the launches loop over the rest.
    """
    a_matrix, b_matrix, out_matrix = _matrices(a, b, out)
    batches = list(_batches(a, b, out))
    while batches and (rows := _as_rows(batches[-1], a_matrix, out_matrix)):
        a_matrix, out_matrix = rows
        batches.pop()
    batches = _merged(batches)
    looped = sorted(batches, key=lambda batch: batch.size)
    batch = looped.pop() if looped else None
    offsets = tuple(
        (_offset(index, "a", looped), _offset(index, "b", looped), _offset(index, "out", looped))
        for index in itertools.product(*(range(batch.size) for batch in looped))
    )
    if batch is None:
        return Folding(a_matrix, b_matrix, out_matrix, offsets)
    return Folding(
        _stacked(a_matrix, batch.size, batch.a),
        _stacked(b_matrix, batch.size, batch.b),
        _stacked(out_matrix, batch.size, batch.out),
        offsets,
    )


def _matrices(a: View, b: View, out: View) -> tuple[View, View, View]:
    """The matrices of the last dimensions. A vector's missing dimension gets the stride of a matrix without gaps."""
    (K, N) = b.shape[-2:] if len(b.shape) > 1 else (b.shape[0], 1)
    M = a.shape[-2] if len(a.shape) > 1 else 1
    out_stride = list(out.stride)
    column = out_stride.pop() if len(b.shape) > 1 else 1
    row = out_stride.pop() if len(a.shape) > 1 else N
    return (
        View((M, K), a.stride[-2:] if len(a.shape) > 1 else (K, a.stride[0])),
        View((K, N), b.stride[-2:] if len(b.shape) > 1 else (b.stride[0], 1)),
        View((M, N), (row, column)),
    )


def _batches(a: View, b: View, out: View) -> Iterator[_Batch]:
    """The batch dimensions of more than one matrix, the outermost first."""
    rank = max(len(a.shape), len(b.shape), 2) - 2

    def strides(view: View, own: int) -> list[int]:
        shape, stride = view.shape[:own], view.stride[:own]
        kept = [0 if size == 1 else step for size, step in zip(shape, stride, strict=True)]
        return [0] * (rank - own) + kept

    of_a = strides(a, max(len(a.shape) - 2, 0))
    of_b = strides(b, max(len(b.shape) - 2, 0))
    for size, *steps in zip(out.shape[:rank], of_a, of_b, strides(out, rank), strict=True):
        if size > 1:
            yield _Batch(size, *steps)


def _as_rows(batch: _Batch, a: View, out: View) -> tuple[View, View] | None:
    """a and out with the batch as more rows, if b repeats along it and the rows lie evenly."""
    M, K = a.shape
    if batch.b != 0:
        return None
    if M == 1:
        row_a, row_out = batch.a, batch.out
    else:
        (row_a, _), (row_out, _) = a.stride, out.stride
        if batch.a != M * row_a or batch.out != M * row_out:
            return None
    rows = batch.size * M
    return (
        View((rows, K), (row_a, a.stride[1])),
        View((rows, out.shape[1]), (row_out, out.stride[1])),
    )


def _merged(batches: Sequence[_Batch]) -> list[_Batch]:
    """The same batches, neighbours made one where all three tensors run through both evenly."""
    merged: list[_Batch] = []
    for batch in batches:
        if merged and all(
            outer == inner * batch.size
            for outer, inner in zip(*((x.a, x.b, x.out) for x in (merged[-1], batch)), strict=True)
        ):
            merged[-1] = replace(batch, size=merged[-1].size * batch.size)
        else:
            merged.append(batch)
    return merged


def _offset(index: Sequence[int], name: str, batches: Sequence[_Batch]) -> int:
    """Where a tensor's matrix of this index begins, from its first element."""
    return sum(i * getattr(batch, name) for i, batch in zip(index, batches, strict=True))


def _stacked(matrix: View, size: int, stride: int) -> View:
    return View((size, *matrix.shape), (stride, *matrix.stride))
