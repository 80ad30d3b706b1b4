"""``torch.ops.hgemm``: the two ops that torch traces, differentiates, compiles and exports.

``mm`` returns a new tensor, ``mm_out`` writes into ``out``; both take the shapes of torch.matmul. Which backend and
configuration compute is decided below the op, at run time, because a traced tensor has no address that could be
aligned. In eager mode ``hgemm.matmul`` skips the ops and their overhead, unless a gradient, autocast or a transform is
asked for. ``mm`` has gradients, and a batching rule for torch.vmap; ``mm_out`` refuses both.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from hgemm import arguments, autocast, batching, gradients
from hgemm.dispatch import multiply

_library = torch.library.Library("hgemm", "DEF")
_TAGS = (torch.Tag.pt2_compliant_tag, torch.Tag.needs_exact_strides)
_library.define("mm(Tensor a, Tensor b, str backend, str? config) -> Tensor", tags=_TAGS)
_library.define("mm_out(Tensor a, Tensor b, Tensor(a!) out, str backend, str? config) -> ()", tags=_TAGS)

_AUTOCAST_KEYS = {"cuda": torch._C.DispatchKey.AutocastCUDA, "cpu": torch._C.DispatchKey.AutocastCPU}


def _mm(a: Tensor, b: Tensor, backend: str, config: str | None) -> Tensor:
    gradients.check_tangents(a, b)
    return multiply(a, b, backend, config, None)


def _mm_out(a: Tensor, b: Tensor, out: Tensor, backend: str, config: str | None) -> None:
    gradients.check_tangents(a, b, out)
    multiply(a, b, backend, config, out)


def _mm_fake(a: Tensor, b: Tensor, backend: str, config: str | None) -> Tensor:
    gradients.check_tangents(a, b)
    return a.new_empty(arguments.check(a, b, None))


def _mm_out_fake(a: Tensor, b: Tensor, out: Tensor, backend: str, config: str | None) -> None:
    gradients.check_tangents(a, b, out)
    arguments.check(a, b, out)


def _mm_out_autograd(
    keys: torch._C.DispatchKeySet, a: Tensor, b: Tensor, out: Tensor, backend: str, config: str | None
) -> None:
    """Goes on to the op's own kernel, unless a gradient would be lost on the way.

    The checks below see no ``requires_grad`` on a tensor that was computed earlier in a traced function.
    """
    if torch.is_grad_enabled():
        for name, tensor in (("a", a), ("b", b), ("out", out)):
            arguments.check_gradient(name, tensor)
    with torch._C._AutoDispatchBelowAutograd():
        torch.ops.hgemm.mm_out.default.redispatch(keys & torch._C._after_autograd_keyset, a, b, out, backend, config)


def _mm_autocast(key: torch._C.DispatchKey) -> Any:
    """The kernel that casts the operands as those of torch.matmul are; calls with ``out`` have none, as torch's."""

    def kernel(a: Tensor, b: Tensor, backend: str, config: str | None) -> Tensor:
        a, b = autocast.cast(a), autocast.cast(b)
        with torch._C._ExcludeDispatchKeyGuard(torch._C.DispatchKeySet(key)):
            return torch.ops.hgemm.mm(a, b, backend, config)

    return kernel


for _device_type, _key in _AUTOCAST_KEYS.items():
    _library.impl("mm", _mm, _device_type.upper())
    _library.impl("mm_out", _mm_out, _device_type.upper())
    _library.impl("mm", _mm_autocast(_key), f"Autocast{_device_type.upper()}")
torch.library.register_fake("hgemm::mm", _mm_fake, lib=_library)
torch.library.register_fake("hgemm::mm_out", _mm_out_fake, lib=_library)
torch.library.register_autograd("hgemm::mm", gradients.backward, setup_context=gradients.save, lib=_library)
_library.impl("mm_out", _mm_out_autograd, "Autograd", with_keyset=True)
torch.library.register_vmap("hgemm::mm", batching.mm, lib=_library)
torch.library.register_vmap("hgemm::mm_out", batching.mm_out, lib=_library)
