"""Autocast as torch.matmul has it: operands are cast to the region's dtype, whatever floating dtype they have."""

from __future__ import annotations

import torch
from torch import Tensor


def cast(operand: Tensor) -> Tensor:
    """``operand`` in the dtype of the autocast region that it is in; itself outside of one, and if it is not of a
    floating dtype up to 32 bits. Differentiable. Anything else than a tensor is left to the checks."""
    if not isinstance(operand, Tensor) or not operand.is_floating_point() or operand.dtype == torch.float64:
        return operand
    device_type = operand.device.type
    if not torch.amp.is_autocast_available(device_type) or not torch.is_autocast_enabled(device_type):
        return operand
    return operand.to(torch.get_autocast_dtype(device_type))
