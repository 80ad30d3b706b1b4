"""The gradients of ``torch.ops.hgemm.mm``: two more products, by the same backend and configuration.

With C = A B and G the gradient of C, that of A is G B^T and that of B is A^T G: transposes are views, so a row-major A
and B are read as NT and TN layouts. An operand that was repeated over a batch gets the sum over it. Where B is one
matrix for a whole batch, the sum over the batch is part of the product A^T G over all rows, and is rounded once.
Products of ``mm`` again, the gradients can be differentiated in turn. In forward mode the derivative is dA B + A dB.

Autograd takes the rule of the gradients from the op. An op has none for forward mode, and the transforms of torch.func
read no op's rules: ``product`` hands them the same ones, and the ops refuse tangents that they would lose.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch._subclasses.fake_tensor import is_fake
from torch.autograd import forward_ad

from hgemm import batching
from hgemm.problem import UnsupportedProblem


def product(a: Tensor, b: Tensor, backend: str, config: str | None) -> Tensor:
    """``torch.ops.hgemm.mm``, differentiable also in forward mode, torch.func.grad, torch.vmap and what is made of
    them."""
    transformed = torch._C._are_functorch_transforms_active() or in_forward_mode()
    if transformed and not torch.compiler.is_compiling():
        return _Product.apply(a, b, backend, config)
    return torch.ops.hgemm.mm(a, b, backend, config)


def in_forward_mode() -> bool:
    """Whether a tensor may carry a tangent, which only differentiation in forward mode asks for."""
    return forward_ad._current_level >= 0


def check_tangents(*tensors: Tensor) -> None:
    """Raises UnsupportedProblem if an op of ours is about to lose a tangent, or may be: fake tensors do not say."""
    if not in_forward_mode() or not torch._C._is_fwd_grad_enabled():
        return
    if any(is_fake(tensor) or forward_ad.unpack_dual(tensor).tangent is not None for tensor in tensors):
        raise UnsupportedProblem(
            "torch.ops.hgemm has no forward-mode derivative, nor has a product that is compiled or written into out: a "
            "tangent would be lost; call hgemm.matmul(a, b) in eager mode"
        )


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

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Tensor, Tensor, str, str | None], output: Tensor) -> None:
        save(ctx, inputs, output)
        ctx.save_for_forward(*inputs[:2])

    backward = staticmethod(backward)

    @staticmethod
    def jvp(ctx: Any, tangent_a: Tensor, tangent_b: Tensor, *_: None) -> Tensor:
        a, b = ctx.saved_tensors
        return product(tangent_a, b, ctx.backend, ctx.config) + product(a, tangent_b, ctx.backend, ctx.config)

    @staticmethod
    def vmap(info: Any, in_dims: tuple[int | None, ...], *inputs: Any) -> tuple[Tensor, int]:
        return batching.batched(product, in_dims, *inputs)
