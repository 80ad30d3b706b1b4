"""Which products are measured: a case is one product or a batch of equal ones, a suite a named list of shapes."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass

import torch

DTYPES = {"bf16": torch.bfloat16, "fp16": torch.float16}
"""The short names of dtypes, as options and results spell them."""

LAYOUTS = ("nn", "nt", "tn", "tt")
"""Of a, then b: "n" row-major, "t" column-major. The weight of an nn.Linear, as `w.t()`, is a "t" on the right."""

DISTRIBUTIONS = ("normal", "zeros")
"""Entries of A and B: N(0, 1), or zeros, which draw less power, run faster and are a control, never a result."""

MOST_DIGITS = 18
"""Of M, N, K and the batch: more than any device holds, few enough to compute with."""


@dataclass(frozen=True)
class Shape:
    """out[M, N] = a[M, K] @ b[K, N], or ``batch`` such products in one call: out[batch, M, N]."""

    M: int
    N: int
    K: int
    batch: int = 1
    label: str | None = None
    """What the product is in a model, such as "8B gate_up"."""

    @classmethod
    def parse(cls, text: str) -> Shape:
        """Reads ``M,N,K`` or ``BxM,N,K``, as ``str`` writes them; raises ValueError naming the form and the text."""
        number = rf"[1-9]\d{{0,{MOST_DIGITS - 1}}}"
        match = re.fullmatch(rf"\s*(?:({number})\s*x)?((?:\s*{number}\s*,){{2}}\s*{number})\s*", text)
        if match is None:
            raise ValueError(
                "a shape is three positive integers M,N,K, as in 4096,4096,4096, or for a batch of products BxM,N,K, "
                f"as in 8x1024,1024,512; found {text!r:.80}"
            )
        M, N, K = (int(part) for part in match[2].split(","))
        return cls(M, N, K, batch=int(match[1] or 1))

    def __str__(self) -> str:
        batch = f"{self.batch}x" if self.batch > 1 else ""
        return f"{batch}{self.M},{self.N},{self.K}"


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
        """2 M N K for each product of the batch."""
        return 2 * self.shape.M * self.shape.N * self.shape.K * self.shape.batch

    @property
    def compulsory_bytes(self) -> int:
        """Bytes of a, b and out, each read or written once."""
        M, N, K = self.shape.M, self.shape.N, self.shape.K
        return (M * K + K * N + M * N) * self.shape.batch * self.torch_dtype.itemsize

    def check_size(self) -> None:
        """Raises ValueError for a product that no device holds, and no results file either."""
        if max(self.compulsory_bytes, self.flops) >= 2**63:
            raise ValueError(f"{self.shape}: no device holds a product of {self.flops:.3g} operations")


def _squares(*sizes: int) -> tuple[Shape, ...]:
    return tuple(Shape(size, size, size) for size in sizes)


# The last tiles of M, N and K are partly filled; N and K are multiples of 8, so that every kernel takes them.
_RAGGED = Shape(4000, 4104, 4072)
_RAGGED_OTHERS = (Shape(1000, 2056, 520), Shape(2047, 2040, 2056), Shape(8200, 1032, 4104), Shape(137, 8200, 4104))

TOKENS = (1, 16, 128, 1024, 8192)
"""M of a projection: tokens that go through it together, from one that is generated alone to a long prompt."""


@dataclass(frozen=True)
class _Model:
    hidden: int
    intermediate: int
    heads: int
    key_value_heads: int

    def projections(self) -> dict[str, tuple[int, int]]:
        """(N, K) of what a layer multiplies by, with q, k, v and gate, up each joined into one product."""
        head = self.hidden // self.heads
        return {
            "qkv": ((self.heads + 2 * self.key_value_heads) * head, self.hidden),
            "o": (self.hidden, self.heads * head),
            "gate_up": (2 * self.intermediate, self.hidden),
            "down": (self.hidden, self.intermediate),
        }


# hidden_size, intermediate_size, num_attention_heads and num_key_value_heads in the config.json that Meta publishes
# with the weights of Llama 3 and 3.1, 8B and 70B, which agree.
_MODELS = {"8B": _Model(4096, 14336, 32, 8), "70B": _Model(8192, 28672, 64, 8)}


def _projections() -> Iterator[Shape]:
    for name, model in _MODELS.items():
        for projection, (N, K) in model.projections().items():
            for M in TOKENS:
                yield Shape(M, N, K, label=f"{name} {projection}")


# Many small products, few large ones, and three whose batch is 32 heads or 8 experts of a model.
_BATCHED = (
    Shape(128, 128, 128, batch=512),
    Shape(512, 512, 512, batch=64),
    Shape(2048, 2048, 2048, batch=8),
    Shape(2048, 2048, 128, batch=32, label="attention scores"),
    Shape(2048, 128, 2048, batch=32, label="attention values"),
    Shape(256, 14336, 4096, batch=8, label="experts up"),
)

SUITES: dict[str, tuple[Shape, ...]] = {
    "quick": (*_squares(2048, 4096), _RAGGED),
    "study": (*_squares(2048, 4096, 8192), _RAGGED),
    "squares": _squares(256, 512, 1024, 1536, 2048, 3072, 4096, 6144, 8192, 12288, 16384),
    "llm": tuple(_projections()),
    "ragged": (_RAGGED, *_RAGGED_OTHERS),
    "batched": _BATCHED,
}
"""Shapes by the name of the suite."""

DEFAULT_LAYOUT = {"llm": "nt"}
"""The layout of a suite, where it is not "nn": a projection is ``x @ w.t()``, as nn.Linear keeps its weight."""


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
