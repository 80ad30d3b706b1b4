"""Launches of a kernel whose tensor descriptors are made on the host, and of what adds the parts of shared tiles."""

from __future__ import annotations

import functools
import math
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
from hgemm.triton_kernels import launcher
from hgemm.triton_kernels.clusters import bases
from hgemm.triton_kernels.descriptors import Descriptors
from hgemm.triton_kernels.launcher import Launcher, Pointer, workspace
from hgemm.triton_kernels.shared_tiles import addition
from hgemm.triton_kernels.specialized_configs import (
    blocks,
    is_dependent,
    programs_of,
    sharing_of,
    specialized_options,
)


def layouts(config: str, a_layout: str, b_layout: str) -> tuple[NVMMASharedLayout, ...]:
    """Of what one copy moves, of A, B and C as they are stored: of rows of 64 elements and more, the eight 16-byte
    chunks of 128 bytes, in an order that changes from row to row. And which block of a cluster has what."""
    o = specialized_options(config)
    m, n = o["CLUSTER_M"], o["CLUSTER_N"]
    of_each = bases(m, n, 1, 0), bases(m, n, 0, 1), bases(m, n, 1, 1)
    stored = a_layout, b_layout, "n"
    found = []
    for block, cga, letter in zip(blocks(config, a_layout, b_layout), of_each, stored, strict=True):
        cga = [basis if letter == "n" else basis[::-1] for basis in cga]
        parts = 1 << sum(basis[1] > 0 for basis in cga)
        more = {"cga_layout": cga} if cga else {}
        width = min(128, 2 * block[1] // parts)
        found.append(NVMMASharedLayout(swizzle_byte_width=width, element_bitwidth=16, rank=2, **more))
    return tuple(found)


class Launch:
    """The launches of one kind of product: only the addresses change."""

    def __init__(self, kernel: Launcher, config: str, device: torch.device, dtype: torch.dtype, p: Arrangement) -> None:
        parsed = Config.parse(config)
        dependent = is_dependent(parsed, p.M, p.N)
        self._options = {"A_LAYOUT": p.a_layout, "B_LAYOUT": p.b_layout, **specialized_options(config)}
        if dependent:
            self._options["launch_pdl"] = True
        block_m, block_n = self._options["BLOCK_M"], self._options["BLOCK_N"]
        tiles = -(-p.M // block_m) * -(-p.N // block_n)  # of a cluster, where blocks are one
        multiprocessors = torch.cuda.get_device_properties(device).multi_processor_count
        programs = programs_of(parsed, multiprocessors)
        sharing = sharing_of(parsed, multiprocessors, p.M, p.N, p.K)
        form = (config, device, dtype, p.a_layout, p.b_layout, dependent)
        numbers = (p.M, p.N, p.K, *sharing)
        self._multiply = launcher.Launch(kernel, form, min(programs, sharing.items(tiles)), numbers, self._options)
        self._described = Descriptors(
            TensorDescriptor,
            dtype,
            p,
            blocks(config, p.a_layout, p.b_layout),
            layouts(config, p.a_layout, p.b_layout),
        )
        self._device, self._dtype = device, dtype
        self._places = (tiles - sharing.whole) * sharing.parts
        self._workspace = (self._places, block_m, block_n)
        # A kernel that can share tiles is given a workspace even where it has none to share, and then leaves it alone.
        unused = self._options["SHARED"] and not self._places
        self._sums = torch.empty(4, dtype=torch.float32, device=device) if unused else None
        self._addition = addition(device, dtype, p.M, p.N, p.stride_c, sharing, self._options) if self._places else None

    def __call__(self, a: Tensor, b: Tensor, out: Tensor) -> None:
        """Launches on the current device, that of the tensors, and its current stream. A workspace is of torch's
        allocator: its next owner on that stream comes after the addition."""
        if self._addition is None:
            self._multiply(*self._described.of(a, b, out), self._sums)
            return
        sums = torch.empty(self._workspace, dtype=torch.float32, device=self._device)
        self._multiply(*self._described.of(a, b, out), sums)
        self._addition(sums, out)

    def bind(self) -> LaunchAt | None:
        """The same with the tensors' addresses: compiled now. None where Triton keeps nothing, or adds by another
        path."""
        operand, sums = Pointer(self._dtype), Pointer(torch.float32)
        described = self._described.of(operand, operand, operand)
        multiply = self._multiply.bind(self._device, *described, sums if self._options["SHARED"] else None)
        if multiply is None and self._multiply.kept:
            multiply = self._multiply_by_descriptors
        if self._addition is None:
            return None if multiply is None else lambda a, b, out: multiply(a, b, out, None)
        add = self._addition.bind(self._device, sums, operand)
        if multiply is None or add is None:
            return None
        take, give_back = workspace(self._device, torch.float32.itemsize * math.prod(self._workspace))

        def launch(a: int, b: int, out: int) -> None:
            parts = take()
            try:
                multiply(a, b, out, parts)
                add(parts, out)
            finally:
                give_back(parts)

        return launch

    def _multiply_by_descriptors(self, a: int, b: int, c: int, sums: int | None) -> None:
        """In a Triton whose C function is not known."""
        self._multiply(*self._described.of(Address(a), Address(b), Address(c)), self._sums if sums is None else sums)


@dataclass(frozen=True)
class Address:
    """Stands for a tensor where only its address is asked for."""

    address: int

    def data_ptr(self) -> int:
        return self.address


@functools.lru_cache(maxsize=4096)
def _plan(
    kernel: Launcher, config: str, device: torch.device, dtype: torch.dtype, *operands: Any
) -> tuple[Launch, Arrangement]:
    arrangement = arrange(*operands)
    return Launch(kernel, config, device, dtype, arrangement), arrangement


def launch(kernel: Launcher, a: Tensor, b: Tensor, out: Tensor, config: str) -> None:
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


def bind(kernel: Launcher, problem: Problem, config: str) -> LaunchAt | None:
    """``launch`` of tensors that ``problem`` describes, by address; their device is current, now and in each call. None
    for batches, and where ``Launch.bind`` returns it."""
    if problem.batch:
        return None
    p = arrange_problem(problem)
    launch = Launch(kernel, config, problem.device, problem.dtype, p).bind()
    if launch is None or not p.swapped:
        return launch
    return lambda a, b, out: launch(b, a, out)
