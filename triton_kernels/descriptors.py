"""Tensor descriptors that the host makes of A, B and C as they are stored."""

from __future__ import annotations

import copy
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
import triton
from triton.tools.tensor_descriptor import TensorDescriptor

from hgemm.arrangement import Arrangement
from hgemm.triton_kernels.launcher import Pointer
from hgemm.triton_kernels.tensor_maps import make_context_current

# Whether the host makes the descriptors of what is no batch, for kernels that take them: a program that makes its own
# begins later. False has every program make them.
MADE_ON_HOST = True

Block = tuple[int, int]


class Descriptors:
    """Those of products that differ in their tensors' addresses alone.

    A descriptor is made once, and then copied with another tensor: making it anew checks again what
    ``problem.vector_rule`` has checked.
    """

    def __init__(
        self,
        describe: Callable[..., Any],
        dtype: torch.dtype,
        p: Arrangement,
        blocks: Sequence[Block],
        layouts: Sequence[Any] = (),
    ) -> None:
        """``describe``: makes one of a base, a shape, strides and a block. ``blocks``: rows and columns of what one
        copy moves, of A, B and, if C is described too, of C as they are stored. ``layouts``: theirs in shared memory,
        where ``describe`` has to be told."""
        stored = (
            ((p.M, p.K) if p.a_layout == "n" else (p.K, p.M), p.stride_a),
            ((p.K, p.N) if p.b_layout == "n" else (p.N, p.K), p.stride_b),
            ((p.M, p.N), p.stride_c),
        )
        self._templates = tuple(
            describe(Pointer(dtype), list(shape), [stride, 1], list(block), *layout)
            for (shape, stride), block, *layout in zip(stored, blocks, *([layouts] if layouts else []), strict=False)
        )

    def of(self, *operands: Any) -> list[Any]:
        """What a kernel is given for A, B, C and what follows them: the first ones described, the others as they
        are."""
        make_context_current()  # Triton encodes them before it does so itself
        described = [copy.copy(template) for template in self._templates]
        for descriptor, operand in zip(described, operands, strict=False):
            descriptor.base = operand
        return [*described, *operands[len(described) :]]


def tile_blocks(options: Mapping[str, Any], a_layout: str, b_layout: str) -> tuple[Block, ...]:
    """Rows and columns of what ``matmul_tma`` loads and stores at a time: of A, of B and, unless its sums go to a
    workspace, of C as they are stored."""
    m, n, k = options["BLOCK_M"], options["BLOCK_N"], options["BLOCK_K"]
    a, b = (m, k) if a_layout == "n" else (k, m), (k, n) if b_layout == "n" else (n, k)
    return (a, b) if options.get("PARTS", 1) > 1 else (a, b, (m, n))


def for_tiles(kernel: Any, dtype: torch.dtype, p: Arrangement, options: Mapping[str, Any]) -> Descriptors | None:
    """What ``kernel`` is given if its HOST_DESCRIPTORS says so; None where its programs make their descriptors: for a
    batch, in the interpreter, where ``options`` say so, and in a kernel that has no such constant."""
    takes_them = isinstance(kernel, triton.JITFunction) and "HOST_DESCRIPTORS" in kernel.arg_names
    wanted = MADE_ON_HOST and options.get("HOST_DESCRIPTORS", True)
    if not (wanted and takes_them and p.batches == 1):
        return None
    return Descriptors(TensorDescriptor, dtype, p, tile_blocks(options, p.a_layout, p.b_layout))
