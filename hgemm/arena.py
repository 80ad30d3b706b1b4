"""Matrices inside memory full of NaN, so that whatever reads or writes outside of them shows."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

# Elements before the first matrix and after the last one: a multiple of 16 bytes.
GUARD = 64


@dataclass(frozen=True)
class Placement:
    """How matrices lie in memory, in elements. By default without gaps and from 16 bytes on."""

    transposed: bool = False  # stored column by column
    gap: int = 0  # after each stored row, and so between the matrices of a batch
    step: int = 1  # from an element to the next one of its stored row
    offset: int = 0  # of the first element from the 16-byte boundary before it
    repeated: bool = False  # one matrix for a whole batch: the batch stride is 0


@dataclass(frozen=True)
class Arena:
    """``view`` lies in ``memory``; ``outside`` marks the elements of memory that are not its."""

    memory: Tensor
    view: Tensor
    outside: Tensor
    before: Tensor  # the bits of memory at the start

    def trespassed(self) -> int:
        """How many elements outside of the view have other bits than at the start."""
        return int(((bits(self.memory) != self.before) & self.outside).sum())

    def changed(self) -> int:
        """How many elements, inside or outside of the view, have other bits than at the start."""
        return int((bits(self.memory) != self.before).sum())


def arena(
    shape: tuple[int, ...],
    dtype: torch.dtype,
    device: torch.device | str,
    placement: Placement,
    values: Tensor | None = None,
) -> Arena:
    """A view of ``shape``, matrices of NaN or of ``values``, between guards of NaN and with NaN in every gap.

    ``shape`` is (rows, columns), or has the batch in front of them.
    """
    rows, columns = shape[-2:][::-1] if placement.transposed else shape[-2:]
    stride = columns * placement.step + placement.gap
    count = 1 if placement.repeated or len(shape) == 2 else shape[0]
    start = GUARD + placement.offset
    memory = torch.full((start + count * rows * stride + GUARD,), torch.nan, dtype=dtype, device=device)

    def inside(flat: Tensor) -> Tensor:
        sizes, strides = (count, rows, columns), (rows * stride, stride, placement.step)
        matrices = flat.as_strided(sizes, strides, start)
        matrices = matrices.mT if placement.transposed else matrices
        return matrices[0] if len(shape) == 2 else matrices

    outside = torch.ones_like(memory, dtype=torch.bool)
    inside(outside).fill_(False)
    view = inside(memory)
    if values is not None:
        view.copy_(values[:count] if len(shape) > 2 else values)
    return Arena(memory, view.expand(shape), outside, bits(memory).clone())


def bits(x: Tensor) -> Tensor:
    """The bits of 16-bit floats as integers, in which a NaN equals itself and -0 is not 0."""
    return x.view(torch.int16)
