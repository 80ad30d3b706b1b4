"""Launches of a kernel whose tensor descriptors are made on the host, and of what adds the parts of shared tiles."""

from __future__ import annotations

import contextvars
import functools
from typing import Any

import torch
from torch import Tensor
from triton.experimental.gluon.language._layouts import NVMMASharedLayout
from triton.experimental.gluon.nvidia.hopper import TensorDescriptor

from hgemm.arrangement import Arrangement, arrange
from hgemm.config import Config
from hgemm.triton_kernels.shared_tiles import addition
from hgemm.triton_kernels.specialized_configs import blocks, sharing_of, specialized_options

# Rows of 64 elements and more: the eight 16-byte chunks of 128 bytes, in an order that changes from row to row.
SWIZZLED = NVMMASharedLayout(swizzle_byte_width=128, element_bitwidth=16, rank=2)


class Launch:
    """The launches of one kind of product, for one thread at a time: only the addresses change.

    A descriptor is made once, and its tensor is exchanged: making it anew checks again what ``problem.vector_rule`` has
    checked, for 10 us each.
    """

    def __init__(self, kernel: Any, config: str, device: torch.device, dtype: torch.dtype, p: Arrangement) -> None:
        self._kernel = kernel
        self._options = {"A_LAYOUT": p.a_layout, "B_LAYOUT": p.b_layout, **specialized_options(config)}
        block_m, block_n = self._options["BLOCK_M"], self._options["BLOCK_N"]
        tiles = -(-p.M // block_m) * -(-p.N // block_n)
        programs = torch.cuda.get_device_properties(device).multi_processor_count
        sharing = sharing_of(Config.parse(config), programs, p.M, p.N, p.K)
        self._programs = min(programs, sharing.items(tiles))
        self._numbers = (p.M, p.N, p.K, *sharing)
        stored = (
            ((p.M, p.K) if p.a_layout == "n" else (p.K, p.M), p.stride_a),
            ((p.K, p.N) if p.b_layout == "n" else (p.N, p.K), p.stride_b),
            ((p.M, p.N), p.stride_c),
        )
        self._described = tuple(
            (list(shape), [stride, 1], list(block))
            for (shape, stride), block in zip(stored, blocks(config, p.a_layout, p.b_layout), strict=True)
        )
        self._descriptors: tuple[TensorDescriptor, ...] = ()
        self._places = (tiles - sharing.whole) * sharing.parts
        self._workspace = (self._places, block_m, block_n)
        # A kernel that can share tiles is given a workspace even where it has none to share, and then leaves it alone.
        unused = self._options["SHARED"] and not self._places
        self._sums = torch.empty(4, dtype=torch.float32, device=device) if unused else None
        self._addition = addition(device, dtype, p.M, p.N, p.stride_c, sharing, self._options) if self._places else None
        self._compiled: Any = None

    def __call__(self, a: Tensor, b: Tensor, out: Tensor) -> None:
        """Launches on the current device, that of the tensors, and its current stream."""
        tensors = (a, b, out)
        if not self._descriptors:
            self._descriptors = tuple(
                TensorDescriptor(tensor, *described, SWIZZLED)
                for tensor, described in zip(tensors, self._described, strict=True)
            )
        for descriptor, tensor in zip(self._descriptors, tensors, strict=True):
            descriptor.base = tensor
        sums = self._sums
        if self._places:
            # Of torch's allocator: its next owner on this stream comes after the addition.
            sums = torch.empty(self._workspace, dtype=torch.float32, device=out.device)
        self._launch((*self._descriptors, sums, *self._numbers))
        for descriptor in self._descriptors:
            descriptor.base = None  # a tensor must not live on here
        if self._addition is not None:
            self._addition(sums, out)

    def _launch(self, arguments: tuple[Any, ...]) -> None:
        grid = (self._programs, 1, 1)
        if self._compiled is None:
            # In an empty context, so that no triton.AsyncCompileMode of the user's puts it off.
            warm = functools.partial(self._kernel.warmup, *arguments, grid=grid, **self._options)
            self._compiled = contextvars.Context().run(warm)
        if self._compiled is None:  # a hook of the user's compiles
            self._kernel[grid](*arguments, **self._options)
            return
        # The places of the constants are passed over.
        constants = (None,) * (len(self._kernel.arg_names) - len(arguments))
        self._compiled[grid](*arguments, *constants)


@functools.lru_cache(maxsize=4096)
def _plan(
    kernel: Any, config: str, device: torch.device, dtype: torch.dtype, *operands: Any
) -> tuple[Launch, Arrangement]:
    arrangement = arrange(*operands)
    return Launch(kernel, config, device, dtype, arrangement), arrangement


def launch(kernel: Any, a: Tensor, b: Tensor, out: Tensor, config: str) -> None:
    """Writes ``a[M, K] @ b[K, N]`` into ``out[M, N]`` on the current device and stream, of batches one matrix after
    the other; an ``a`` or ``b`` without a batch is used for all."""
    operands = (a.shape, a.stride(), b.shape, b.stride(), out.shape, out.stride())
    launches, p = _plan(kernel, config, a.device, a.dtype, *operands)
    if p.batches == 1 and out.dim() == 2:
        a, b = (b, a) if p.swapped else (a, b)
        launches(a, b, out)
        return
    for batch in range(out.shape[0]):
        left, right = (tensor[batch] if tensor.dim() == 3 else tensor for tensor in (a, b))
        if p.swapped:
            left, right = right, left
        launches(left, right, out[batch])
