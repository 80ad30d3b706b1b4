"""Launches every product of the conformance suite once, for compute-sanitizer to watch:

    compute-sanitizer --tool racecheck python tests/launch_every_case.py cuda_tma

Each tensor is an allocation of its own and ends with its last element, so that memcheck sees the byte after it, and the
gaps between rows are never written, so that initcheck sees who reads them. Prints how many products were launched.
"""

import os
import sys

os.environ["PYTORCH_NO_CUDA_MEMORY_CACHING"] = "1"

import torch
from torch import Tensor

import hgemm
from hgemm.arena import Placement
from hgemm.cases import Case, cases
from hgemm.dispatch import problem_of
from hgemm.problem import DTYPES


def main(backend: str) -> None:
    record, launched = hgemm.backends()[backend], 0
    for dtype in DTYPES:
        for config in record.configs:
            for case in dict.fromkeys(geometry(case) for case in cases(config, "cuda", quick=False)):
                a, b, out = (
                    lying(case.shape(*size), placement, dtype)
                    for size, placement in zip(
                        ((case.M, case.K), (case.K, case.N), (case.M, case.N)), case.placements, strict=True
                    )
                )
                for operand, repeated in ((a, case.shared), (b, False)):
                    operand = operand[:1] if repeated else operand
                    operand.copy_(torch.randn(operand.shape).to(dtype))
                if record.refuses(problem_of(a, b, out), config) is None:
                    hgemm.matmul(a, b, backend=backend, config=config, out=out)
                    launched += 1
    torch.cuda.synchronize()
    print(f"{backend}: {launched} products launched")


def geometry(case: Case) -> Case:
    """The case without what it holds: kernels do not look at values."""
    return Case(**{**case.__dict__, "data": "normal"})


def lying(shape: tuple[int, ...], placement: Placement, dtype: torch.dtype) -> Tensor:
    """A tensor of this shape in memory that was never written."""
    *batch, rows, columns = shape
    if placement.transposed:
        rows, columns = columns, rows
    row_stride = columns * placement.step + placement.gap
    strides = [row_stride, placement.step][:: -1 if placement.transposed else 1]
    strides = [0 if placement.repeated else rows * row_stride] * len(batch) + strides
    extent = 1 + sum((size - 1) * stride for size, stride in zip(shape, strides, strict=True))
    memory = torch.empty(placement.offset + extent, dtype=dtype, device="cuda")
    return memory.as_strided(shape, strides, placement.offset)


if __name__ == "__main__":
    main(sys.argv[1])
