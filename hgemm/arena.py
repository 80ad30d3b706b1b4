"""Matrices inside memory full of NaN, so that whatever reads or writes outside of them shows."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

# Elements before and after the matrix, and after each row of a strided one: multiples of 16 bytes, so that the first
# element of every row stays where a kernel that moves whole vectors can reach it.
GUARD = 64
ROW_GAP = 8


@dataclass(frozen=True)
class Arena:
    """``view[rows, columns]`` is row-major in ``memory``; ``outside`` marks the elements of memory that are not its."""

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
    rows: int, columns: int, dtype: torch.dtype, device: torch.device | str, strided: bool, values: Tensor | None = None
) -> Arena:
    """A matrix of NaN, or of ``values``, between guards of NaN; if ``strided``, with NaN between its rows too."""
    stride = columns + (ROW_GAP if strided else 0)
    memory = torch.full((GUARD + rows * stride + GUARD,), torch.nan, dtype=dtype, device=device)

    def inside(flat: Tensor) -> Tensor:
        return flat[GUARD : GUARD + rows * stride].view(rows, stride)[:, :columns]

    outside = torch.ones_like(memory, dtype=torch.bool)
    inside(outside).fill_(False)
    view = inside(memory)
    if values is not None:
        view.copy_(values)
    return Arena(memory, view, outside, bits(memory).clone())


def bits(x: Tensor) -> Tensor:
    """The bits of 16-bit floats as integers, in which a NaN equals itself and -0 is not 0."""
    return x.view(torch.int16)
