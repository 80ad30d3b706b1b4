"""The launches of a product of tensors: the problem that each of them poses, and all of them one after another."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

import torch
from torch import Tensor

from hgemm import arguments
from hgemm.backends import Launch, LaunchAt
from hgemm.folding import Folding, View, fold
from hgemm.problem import ELEMENT_BYTES, VECTOR_BYTES, Problem


def problem_of(a: Tensor, b: Tensor, out: Tensor | None = None) -> Problem:
    """The problem that a backend is asked about for ``matmul(a, b, out=out)``. The arguments are known to be legal."""
    return describe(a, b, out, arguments.product_shape(a.shape, b.shape))[1]


def describe(a: Tensor, b: Tensor, out: Tensor | None, shape: torch.Size) -> tuple[Folding | None, Problem]:
    """How the product is folded, None if it needs no folding, and the problem that every launch poses.

    Its alignments are those of the launch that has the least.
    """
    target = torch.empty(shape, dtype=a.dtype, device="meta") if out is None else out  # lies at 0: aligned
    tensors = (a, b, target)
    folding = fold(*(View(tuple(tensor.shape), tensor.stride()) for tensor in tensors))
    problem = Problem.from_tensors(*next(views_of(folding, a, b, target)))
    views = (folding.a, folding.b, folding.out)
    if len(folding.offsets) == 1 and all(
        view.shape == tensor.shape and view.stride == tensor.stride()
        for view, tensor in zip(views, tensors, strict=True)
    ):
        return None, problem
    operands = {}
    for name, tensor, offsets in zip(("a", "b", "out"), tensors, zip(*folding.offsets, strict=True), strict=True):
        address = VECTOR_BYTES
        for offset in offsets:
            address |= tensor.data_ptr() + offset * tensor.element_size()
        operands[name] = replace(getattr(problem, name), alignment=address & -address)
    return folding, replace(problem, **operands)


def views_of(folding: Folding, a: Tensor, b: Tensor, out: Tensor) -> Iterator[tuple[Tensor, Tensor, Tensor]]:
    """What each launch multiplies."""
    starts = a.storage_offset(), b.storage_offset(), out.storage_offset()
    for offset_a, offset_b, offset_out in folding.offsets:
        yield (
            a.as_strided(folding.a.shape, folding.a.stride, starts[0] + offset_a),
            b.as_strided(folding.b.shape, folding.b.stride, starts[1] + offset_b),
            out.as_strided(folding.out.shape, folding.out.stride, starts[2] + offset_out),
        )


def by_views(launch: Launch, folding: Folding) -> Launch:
    """``launch`` for each of the launches of ``folding``."""

    def launches(a: Tensor, b: Tensor, out: Tensor) -> None:
        for views in views_of(folding, a, b, out):
            launch(*views)

    return launches


def by_offsets(launch_at: LaunchAt, folding: Folding) -> LaunchAt:
    """The same by address."""
    offsets = [tuple(elements * ELEMENT_BYTES for elements in each) for each in folding.offsets]

    def launches(a: int, b: int, out: int) -> None:
        for from_a, from_b, from_out in offsets:
            launch_at(a + from_a, b + from_b, out + from_out)

    return launches
