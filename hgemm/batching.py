"""torch.vmap over ``torch.ops.hgemm``: one more batch dimension, where torch.matmul would have it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from hgemm.problem import UnsupportedProblem


def mm(
    info: Any, in_dims: tuple[int | None, ...], a: Tensor, b: Tensor, backend: str, config: str | None
) -> tuple[Tensor, int]:
    """The rule of the op ``mm``."""
    return batched(torch.ops.hgemm.mm, in_dims, a, b, backend, config)


def batched(
    multiply: Callable[[Tensor, Tensor, str, str | None], Tensor],
    in_dims: tuple[int | None, ...],
    a: Tensor,
    b: Tensor,
    backend: str,
    config: str | None,
) -> tuple[Tensor, int]:
    """The batched product, by ``multiply``, and its dimension, 0. An operand that is not batched is repeated by
    broadcasting."""
    of_a, of_b = in_dims[:2]
    vector_a = a.dim() - (of_a is not None) == 1
    vector_b = b.dim() - (of_b is not None) == 1
    a, b = _in_front(a, of_a), _in_front(b, of_b)
    if vector_a:
        a = a.unsqueeze(-2)
    if vector_b:
        b = b.unsqueeze(-1)
    rank = max(a.dim() - (of_a is not None), b.dim() - (of_b is not None))
    a = a if of_a is None else _with_rank(a, rank + 1)
    b = b if of_b is None else _with_rank(b, rank + 1)
    product = multiply(a, b, backend, config)
    if vector_b:
        product = product.squeeze(-1)
    if vector_a:
        product = product.squeeze(-1 if vector_b else -2)
    return product, 0


def mm_out(info: Any, in_dims: tuple[int | None, ...], *args: Any) -> None:
    raise UnsupportedProblem("torch.vmap cannot batch a product written into out; leave out out, or give it the batch")


def _in_front(x: Tensor, batch: int | None) -> Tensor:
    return x if batch is None else x.movedim(batch, 0)


def _with_rank(x: Tensor, rank: int) -> Tensor:
    """``x[B, ...]`` with dimensions of size 1 after the first."""
    return x.reshape(x.shape[0], *(1,) * (rank - x.dim()), *x.shape[1:])
