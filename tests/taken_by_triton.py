"""Configurations of ``triton`` on the GPU at hand."""

import pytest
import torch

from hgemm.backends import get
from hgemm.problem import Problem


def taken(config: str) -> str:
    """``config``; skips the test, with the reason, where it cannot be had."""
    record = get("triton")
    if reason := record.unavailable("cuda"):
        pytest.skip(reason)
    a = torch.empty(8, 8, dtype=torch.bfloat16, device="cuda")
    if reason := record.accepts(Problem.from_tensors(a, a, a), config):
        pytest.skip(reason)
    return config
