"""Handwritten CUDA kernels, and what compiles and calls them. Importing this compiles nothing and needs no GPU."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from hgemm.cuda_kernels.user_kernel import UserKernel


def load(path: str | Path) -> UserKernel:
    """A kernel of your own, for the GPU and for the emulator: see user_kernel.py."""
    from hgemm.cuda_kernels.user_kernel import load

    return load(path)
