"""Which products are measured: a case is one product, a suite a named list of shapes."""

from __future__ import annotations

import re
from dataclasses import dataclass

import torch

DTYPES = {"bf16": torch.bfloat16, "fp16": torch.float16}
"""The short names of dtypes, as options and results spell them."""

LAYOUTS = ("nn", "nt", "tn", "tt")
"""Of a, then b: "n" row-major, "t" column-major. The weight of an nn.Linear, as `w.t()`, is a "t" on the right."""

DISTRIBUTIONS = ("normal", "zeros")
"""Entries of A and B: N(0, 1), or zeros, which draw less power, run faster and are a control, never a result."""


@dataclass(frozen=True)
class Shape:
    """out[M, N] = a[M, K] @ b[K, N]."""

    M: int
    N: int
    K: int

    @classmethod
    def parse(cls, text: str) -> Shape:
        """Reads ``M,N,K``; raises ValueError naming the form and what was found."""
        if not re.fullmatch(r"\s*[1-9]\d*\s*(,\s*[1-9]\d*\s*){2}", text):
            raise ValueError(f"a shape is three positive integers M,N,K, as in 4096,4096,4096; found {text!r}")
        return cls(*(int(part) for part in text.split(",")))


@dataclass(frozen=True)
class Case:
    """One product to be measured: what it computes, and how its operands are laid out and filled."""

    shape: Shape
    dtype: str = "bf16"
    layout: str = "nn"
    distribution: str = "normal"
    seed: int = 0

    @property
    def torch_dtype(self) -> torch.dtype:
        return DTYPES[self.dtype]

    @property
    def flops(self) -> int:
        """2 M N K."""
        return 2 * self.shape.M * self.shape.N * self.shape.K

    @property
    def compulsory_bytes(self) -> int:
        """Bytes of a, b and out, each read or written once."""
        M, N, K = self.shape.M, self.shape.N, self.shape.K
        return (M * K + K * N + M * N) * self.torch_dtype.itemsize


def _squares(*sizes: int) -> tuple[Shape, ...]:
    return tuple(Shape(size, size, size) for size in sizes)


# The last tiles of M, N and K are partly filled; N and K are multiples of 8, so that every kernel takes them.
_RAGGED = Shape(4000, 4104, 4072)
_RAGGED_OTHERS = (Shape(1000, 2056, 520), Shape(2047, 2040, 2056), Shape(8200, 1032, 4104), Shape(137, 8200, 4104))

SUITES: dict[str, tuple[Shape, ...]] = {
    "quick": (*_squares(2048, 4096), _RAGGED),
    "study": (*_squares(2048, 4096, 8192), _RAGGED),
    "squares": _squares(256, 512, 1024, 1536, 2048, 3072, 4096, 6144, 8192, 12288, 16384),
    "ragged": (_RAGGED, *_RAGGED_OTHERS),
}
"""Shapes by the name of the suite."""


def cases(
    shapes: tuple[Shape, ...],
    dtypes: tuple[str, ...],
    *,
    layouts: tuple[str, ...] = ("nn",),
    distribution: str = "normal",
    seed: int = 0,
) -> tuple[Case, ...]:
    """Every shape in every dtype and layout, dtype by dtype."""
    return tuple(
        Case(shape, dtype, layout, distribution, seed)
        for dtype in dtypes
        for shape in dict.fromkeys(shapes)
        for layout in layouts
    )
