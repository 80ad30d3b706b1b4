"""The gradients of ``torch.ops.hgemm.mm``: two more products, by the same backend and configuration.

With C = A B and G the gradient of C, that of A is G B^T and that of B is A^T G: transposes are views, so a row-major A
and B are read as NT and TN layouts. An operand that was repeated over a batch gets the sum over it. Where B is one
matrix for a whole batch, the sum over the batch is part of the product A^T G over all rows, and is rounded once.
Products of ``mm`` again, the gradients can be differentiated in turn.

Autograd takes these rules from the op. The transforms of torch.func do not read an op's rules, so ``product`` hands
them the same ones.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from hgemm import batching


def product(a: Tensor, b: Tensor, backend: str, config: str | None) -> Tensor:
    """``torch.ops.hgemm.mm``, differentiable also inside torch.func.grad, torch.vmap and what is made of them."""
    if torch._C._are_functorch_transforms_active() and not torch.compiler.is_compiling():
        return _Product.apply(a, b, backend, config)
    return torch.ops.hgemm.mm(a, b, backend, config)


def save(ctx: Any, inputs: tuple[Tensor, Tensor, str, str | None], output: Tensor) -> None:
    a, b, ctx.backend, ctx.config = inputs
    needs_a, needs_b = ctx.needs_input_grad[:2]
    ctx.save_for_backward(a if needs_b else None, b if needs_a else None)
    ctx.shapes = a.shape, b.shape


def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor | None, Tensor | None, None, None]:
    """``gradient`` has the shape of the product. One that is a number repeated (a sum's) is written out first, since
    most kernels need memory under each row."""
    a, b = ctx.saved_tensors
    shape_a, shape_b = ctx.shapes
    columns = len(shape_b) > 1
    if 0 in gradient.stride():
        gradient = gradient.contiguous()
    if not columns:
        gradient = gradient.unsqueeze(-1)
    if len(shape_a) == 1:
        gradient = gradient.unsqueeze(-2)

    of_a = of_b = None
    if ctx.needs_input_grad[0]:
        transposed = b.mT if columns else b.unsqueeze(0)
        of_a = product(gradient, transposed, ctx.backend, ctx.config)
        of_a = of_a.sum_to_size((1, *shape_a) if len(shape_a) == 1 else shape_a).reshape(shape_a)
    if ctx.needs_input_grad[1]:
        rows = a.unsqueeze(0) if a.dim() == 1 else a
        if len(shape_b) < 3:
            rows, gradient = rows.flatten(0, -2), gradient.flatten(0, -2)
        of_b = product(rows.mT, gradient, ctx.backend, ctx.config)
        of_b = of_b.sum_to_size(shape_b) if columns else of_b.squeeze(-1)
    return of_a, of_b, None, None


class _Product(torch.autograd.Function):
    @staticmethod
    def forward(a: Tensor, b: Tensor, backend: str, config: str | None) -> Tensor:
        return torch.ops.hgemm.mm(a, b, backend, config)

    setup_context = staticmethod(save)
    backward = staticmethod(backward)
    vmap = staticmethod(batching.mm)
