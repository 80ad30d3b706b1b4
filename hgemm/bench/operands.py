"""Operands of a case: as many sets of a, b and out as the mode rotates through."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from hgemm.bench.machine import Machine
from hgemm.bench.suites import Case

ROTATION = 3
"""A rotation is at least this many times as large as the L2, so that no operand is still in it when its turn comes."""

MOST_SETS = 512
"""Small products stop here; their rows say how large the rotation was."""

MEMORY_SHARE = 0.25
"""The rotation takes at most this share of the free memory; the check's fp64 reference needs room too."""


@dataclass(frozen=True)
class OperandSet:
    a: Tensor
    b: Tensor
    out: Tensor


@dataclass(frozen=True)
class Operands:
    """Sets of equal content in different memory; a and b in the layout of the case, out row-major.

    A batch of products is the first of three dimensions; a single product has two.
    """

    sets: tuple[OperandSet, ...]

    @classmethod
    def allocate(cls, case: Case, device: torch.device, count: int = 1) -> Operands:
        """Fills ``count`` sets of operands from the case's seed.

        Raises torch.OutOfMemoryError where not even one set fits.
        """
        shape, dtype = case.shape, case.torch_dtype
        # fp32 first: the generator's stream, and so the operands, are the same for both dtypes up to rounding.
        generator = torch.Generator(device).manual_seed(case.seed)

        def fill(rows: int, columns: int) -> Tensor:
            size = (shape.batch, rows, columns) if shape.batch > 1 else (rows, columns)
            if case.distribution == "zeros":
                return torch.zeros(size, dtype=dtype, device=device)
            return torch.randn(size, generator=generator, device=device, dtype=torch.float32).to(dtype)

        def operand(rows: int, columns: int, letter: str) -> Tensor:
            return fill(rows, columns) if letter == "n" else fill(columns, rows).mT

        a, b = operand(shape.M, shape.K, case.layout[0]), operand(shape.K, shape.N, case.layout[1])
        first = OperandSet(a, b, torch.empty((*a.shape[:-1], shape.N), dtype=dtype, device=device))
        copies = [OperandSet(a.clone(), b.clone(), torch.empty_like(first.out)) for _ in range(count - 1)]
        return cls((first, *copies))

    def __len__(self) -> int:
        return len(self.sets)

    @property
    def nbytes(self) -> int:
        return sum(tensor.nbytes for s in self.sets for tensor in (s.a, s.b, s.out))

    def poison(self) -> None:
        """Fills every out with NaN, so that an element that nobody writes is found."""
        for s in self.sets:
            s.out.fill_(float("nan"))

    def strides(self) -> dict[str, list[int]]:
        first = self.sets[0]
        return {"a": list(first.a.stride()), "b": list(first.b.stride()), "out": list(first.out.stride())}


def rotation(case: Case, machine: Machine) -> int:
    """How many sets of operands a case rotates through."""
    set_bytes = case.compulsory_bytes
    wanted = -(-ROTATION * machine.l2_bytes // set_bytes)
    affordable = int(MEMORY_SHARE * machine.free_bytes()) // set_bytes
    return max(1, min(wanted, MOST_SETS, affordable))
