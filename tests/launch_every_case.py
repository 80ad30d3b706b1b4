"""Launches every product of the conformance suite once, for compute-sanitizer to watch:

    compute-sanitizer --tool racecheck python tests/launch_every_case.py cuda_tma

Each tensor is an allocation of its own that ends with the 16 bytes of its last element, so that memcheck sees a chunk
after it. Not with the element: compute-sanitizer takes a cp.async with a source size below its copy size for a read of
the whole, which it is not. For the same reason the gaps between the rows of operands are written. Prints how many
products were launched.
"""

import os
import sys

os.environ["PYTORCH_NO_CUDA_MEMORY_CACHING"] = "1"

import torch
from torch import Tensor

import hgemm
from hgemm.arena import Placement
from hgemm.cases import Case, cases
from hgemm.launches import problem_of
from hgemm.problem import DTYPES


def main(backend: str) -> None:
    record, launched = hgemm.backends()[backend], 0
    for dtype in DTYPES:
        for config in record.configs:
            for case in dict.fromkeys(geometry(case) for case in cases(config, "cuda", quick=False)):
                in_a, in_b, in_out = case.placements
                a = lying(case.shape(case.M, case.K), in_a, dtype, written=True)
                b = lying(case.shape(case.K, case.N), in_b, dtype, written=True)
                out = lying(case.shape(case.M, case.N), in_out, dtype, written=False)
                if record.refuses(problem_of(a, b, out), config) is None:
                    hgemm.matmul(a, b, backend=backend, config=config, out=out)
                    launched += 1
    torch.cuda.synchronize()
    print(f"{backend}: {launched} products launched")


def geometry(case: Case) -> Case:
    """The case without what it holds: kernels do not look at values."""
    return Case(**{**case.__dict__, "data": "normal"})


def lying(shape: tuple[int, ...], placement: Placement, dtype: torch.dtype, *, written: bool) -> Tensor:
    """A tensor of this shape in memory of its own: random numbers, or never written."""
    *batch, rows, columns = shape
    if placement.transposed:
        rows, columns = columns, rows
    row_stride = columns * placement.step + placement.gap
    strides = [row_stride, placement.step][:: -1 if placement.transposed else 1]
    strides = [0 if placement.repeated else rows * row_stride] * len(batch) + strides
    extent = 1 + sum((size - 1) * stride for size, stride in zip(shape, strides, strict=True))
    memory = torch.empty(-(-(placement.offset + extent) // 8) * 8, dtype=dtype, device="cuda")
    if written:
        memory.copy_(torch.randn(memory.shape).to(dtype))
    return memory.as_strided(shape, strides, placement.offset)


if __name__ == "__main__":
    main(sys.argv[1])
