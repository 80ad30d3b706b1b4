"""``torch.ops.hgemm``: the two ops that torch traces, compiles and exports.

``mm`` returns a new tensor, ``mm_out`` writes into ``out``. Which backend and configuration compute is decided below
the op, at run time, because a traced tensor has no address that could be aligned. In eager mode ``hgemm.matmul`` skips
the ops and their overhead. An input that requires grad is refused, when the call runs and when it is traced.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from hgemm import arguments
from hgemm.dispatch import multiply

_library = torch.library.Library("hgemm", "DEF")
_TAGS = (torch.Tag.pt2_compliant_tag, torch.Tag.needs_exact_strides)
_library.define("mm(Tensor a, Tensor b, str backend, str? config) -> Tensor", tags=_TAGS)
_library.define("mm_out(Tensor a, Tensor b, Tensor(a!) out, str backend, str? config) -> ()", tags=_TAGS)


def _mm(a: Tensor, b: Tensor, backend: str, config: str | None) -> Tensor:
    return multiply(a, b, backend, config, None)


def _mm_out(a: Tensor, b: Tensor, out: Tensor, backend: str, config: str | None) -> None:
    multiply(a, b, backend, config, out)


def _mm_fake(a: Tensor, b: Tensor, backend: str, config: str | None) -> Tensor:
    return a.new_empty(arguments.check(a, b, None))


def _mm_out_fake(a: Tensor, b: Tensor, out: Tensor, backend: str, config: str | None) -> None:
    arguments.check(a, b, out)


def _refusing_gradients(op: Any, names: tuple[str, ...]) -> Callable[..., Any]:
    """The kernel for the Autograd key: goes on to the op's own, unless a gradient would be lost on the way.

    The checks below see no ``requires_grad`` on a tensor that was computed earlier in a traced function.
    """

    def kernel(keys: torch._C.DispatchKeySet, *args: Any) -> Any:
        if torch.is_grad_enabled():
            for name, tensor in zip(names, args, strict=False):
                arguments.check_gradient(name, tensor)
        with torch._C._AutoDispatchBelowAutograd():
            return op.redispatch(keys & torch._C._after_autograd_keyset, *args)

    return kernel


for _device_key in ("CPU", "CUDA"):
    _library.impl("mm", _mm, _device_key)
    _library.impl("mm_out", _mm_out, _device_key)
torch.library.register_fake("hgemm::mm", _mm_fake, lib=_library)
torch.library.register_fake("hgemm::mm_out", _mm_out_fake, lib=_library)
for _op, _tensors in ((torch.ops.hgemm.mm.default, ("a", "b")), (torch.ops.hgemm.mm_out.default, ("a", "b", "out"))):
    _library.impl(_op, _refusing_gradients(_op, _tensors), "Autograd", with_keyset=True)
