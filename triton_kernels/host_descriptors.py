"""Launches of a kernel whose tensor descriptors are made on the host, and of what adds the parts of shared tiles."""

from __future__ import annotations

import contextvars
import copy
import functools
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from triton.experimental.gluon.language._layouts import NVMMASharedLayout
from triton.experimental.gluon.nvidia.hopper import TensorDescriptor

from hgemm.arrangement import Arrangement, arrange, arrange_problem
from hgemm.backends import LaunchAt
from hgemm.config import Config
from hgemm.problem import Problem
from hgemm.triton_kernels.launcher import Pointer
from hgemm.triton_kernels.shared_tiles import addition
from hgemm.triton_kernels.specialized_configs import blocks, sharing_of, specialized_options

# Rows of 64 elements and more: the eight 16-byte chunks of 128 bytes, in an order that changes from row to row.
SWIZZLED = NVMMASharedLayout(swizzle_byte_width=128, element_bitwidth=16, rank=2)


class Launch:
    """The launches of one kind of product: only the addresses change.

    A descriptor is made once, and then copied with another tensor: making it anew checks again what
    ``problem.vector_rule`` has checked.
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
        self._device, self._dtype = device, dtype
        self._templates: tuple[TensorDescriptor, ...] = ()
        self._places = (tiles - sharing.whole) * sharing.parts
        self._workspace = (self._places, block_m, block_n)
        # A kernel that can share tiles is given a workspace even where it has none to share, and then leaves it alone.
        unused = self._options["SHARED"] and not self._places
        self._sums = torch.empty(4, dtype=torch.float32, device=device) if unused else None
        self._addition = addition(device, dtype, p.M, p.N, p.stride_c, sharing, self._options) if self._places else None
        self._compiled: Any = None

    def __call__(self, a: Tensor, b: Tensor, out: Tensor) -> None:
        """Launches on the current device, that of the tensors, and its current stream."""
        sums = self._launch(a, b, out)
        if self._addition is not None:
            self._addition(sums, out)

    def bind(self) -> LaunchAt | None:
        """The same with the tensors' addresses: compiled now. None where Triton keeps nothing, or adds by another
        path."""
        operand, sums = Pointer(self._dtype), Pointer(torch.float32)
        self._compile(self._arguments((operand, operand, operand), sums if self._options["SHARED"] else None))
        add = self._addition.bind(self._device, sums, operand) if self._addition else None
        if self._compiled is None or (self._addition and add is None):
            return None

        def launch(a: int, b: int, out: int) -> None:
            parts = self._launch(Address(a), Address(b), Address(out))
            if add is not None and parts is not None:
                add(parts.data_ptr(), out)

        return launch

    def _launch(self, *bases: Tensor | Address) -> Tensor | None:
        """Launches the kernel and returns its workspace. That is of torch's allocator: its next owner on this stream
        comes after the addition."""
        sums = self._sums
        if self._places:
            sums = torch.empty(self._workspace, dtype=torch.float32, device=self._device)
        arguments = self._arguments(bases, sums)
        self._compile(arguments)
        grid = (self._programs, 1, 1)
        if self._compiled is None:  # a hook of the user's compiles
            self._kernel[grid](*arguments, **self._options)
        else:  # the places of the constants are passed over
            self._compiled[grid](*arguments, *(None,) * (len(self._kernel.arg_names) - len(arguments)))
        return sums

    def _arguments(self, bases: tuple[Any, ...], sums: Any) -> tuple[Any, ...]:
        if not self._templates:
            self._templates = tuple(
                TensorDescriptor(Pointer(self._dtype), *described, SWIZZLED) for described in self._described
            )
        descriptors = [copy.copy(template) for template in self._templates]
        for descriptor, base in zip(descriptors, bases, strict=True):
            descriptor.base = base
        return (*descriptors, sums, *self._numbers)

    def _compile(self, arguments: tuple[Any, ...]) -> None:
        if self._compiled is None:
            # In an empty context, so that no triton.AsyncCompileMode of the user's puts it off.
            warm = functools.partial(self._kernel.warmup, *arguments, grid=(self._programs, 1, 1), **self._options)
            self._compiled = contextvars.Context().run(warm)


@dataclass(frozen=True)
class Address:
    """Stands for a tensor where only its address is asked for."""

    address: int

    def data_ptr(self) -> int:
        return self.address


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


def bind(kernel: Any, problem: Problem, config: str) -> LaunchAt | None:
    """``launch`` of tensors that ``problem`` describes, by address; their device is current, now and in each call. None
    for batches, and where ``Launch.bind`` returns it."""
    if problem.batch:
        return None
    p = arrange_problem(problem)
    launch = Launch(kernel, config, problem.device, problem.dtype, p).bind()
    if launch is None or not p.swapped:
        return launch
    return lambda a, b, out: launch(b, a, out)
