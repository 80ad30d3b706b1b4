"""What an emulated launch leaves behind in the process: stacks are mappings, of which Linux gives a process 65,530."""

from pathlib import Path

import pytest
import torch

from hgemm import emulation
from hgemm.cuda_kernels.configs import FAMILIES

MAPPINGS = Path("/proc/self/maps")


@pytest.mark.skipif(not MAPPINGS.exists(), reason="needs Linux's list of a process's mappings")
def test_the_stacks_of_a_large_cluster_are_let_go() -> None:
    a, b = torch.ones(16, 512).half(), torch.ones(512, 64).half()
    out = torch.empty(16, 64).half()

    def launch(config: str) -> int:
        assert emulation.run(FAMILIES["tma"], a, b, out, config).clean
        return len(MAPPINGS.read_text().splitlines())

    before = launch("16x64x64_s7_w16x16")
    # Eight blocks of 128 threads, two mappings each.
    assert launch("16x64x64_s7_w16x16_split8") - before < 1000
