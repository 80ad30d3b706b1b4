"""Whether tensors are like others were, found out in one call where torch has one for it.

``torch._C._dynamo.guards.TensorGuards`` compares the type, dispatch keys, dtype, device, shape, strides and
requires_grad of several tensors with those of examples. The dispatch keys tell a lazily negated tensor, one without
memory, the kind of device, and what this thread has switched on: autocast, inference mode, a transform. It is what
torch.compile asks before each call, and not public: where it is missing, or does not tell tensors apart as expected,
``guard`` returns None.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

Guard = Callable[..., bool]


def guard(*tensors: Tensor) -> Guard | None:
    """What says whether as many tensors, no two the same, are like these in everything but their addresses; None if
    nothing can. It does not ask whether gradients are enabled, which decides what a requires_grad means."""
    return _make(tensors) if _works() else None


def _make(tensors: tuple[Tensor, ...]) -> Guard | None:
    try:
        from torch._C._dynamo import guards

        tensor_guards: Any = guards.TensorGuards
        made = tensor_guards(
            *tensors,
            dynamic_dims_sizes=[list(tensor.shape) for tensor in tensors],
            dynamic_dims_strides=[list(tensor.stride()) for tensor in tensors],
        )
        check: Guard = made.check
        return check if check(*tensors) is True else None
    except Exception:  # another torch may raise anything
        return None


@functools.cache
def _works() -> bool:
    """Whether it tells apart what matters, tried once on small tensors."""
    like = torch.zeros(2, 2, dtype=torch.float16, device="cpu")
    check = _make((like, like.clone()))
    if check is None or check(like, like.clone()) is not True:
        return False
    others = (
        like.t().contiguous().t(),
        like[:1],
        like.bfloat16(),
        like.to("meta"),
        torch._neg_view(like),
        like.clone().requires_grad_(),
        torch.nn.Parameter(like, requires_grad=False),
    )
    with torch.enable_grad():
        if any(check(like, other) is not False for other in others):
            return False
    with torch.autocast("cpu", dtype=torch.bfloat16):
        return check(like, like.clone()) is False
