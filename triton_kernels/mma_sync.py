"""The kernel of ``tma.py`` compiled to mma.sync where Triton would take wgmma: the instructions of ``cuda_tma``.

A function of its own to Triton, which keeps what it compiled by function and does not ask there what the environment
was; and under a name of its own, so that profilers tell the two apart.
"""

import functools
from typing import Any

import triton
from torch import Tensor

from hgemm.backends import LaunchAt
from hgemm.problem import Problem
from hgemm.triton_kernels.configs import MMA_SYNC, launch_options
from hgemm.triton_kernels.launcher import Launcher

# Relative, so that the copy of this module that is loaded for the interpreter gets interpreted functions.
from .tma import RUNTIME_NUMBERS, bind_by, launch_by, matmul_tma

matmul_mma_sync = triton.jit(
    matmul_tma.fn, do_not_specialize=RUNTIME_NUMBERS, repr=lambda specialization: MMA_SYNC.kernel
)

_launcher = Launcher(matmul_mma_sync, MMA_SYNC.environment, MMA_SYNC.without)


@functools.cache
def _options(config: str) -> dict[str, Any]:
    """Its programs make their descriptors: otherwise Triton 3.9 spills in the loop of the largest tile."""
    return {**launch_options(config), "HOST_DESCRIPTORS": False}


def launch(a: Tensor, b: Tensor, out: Tensor, config: str) -> None:
    """Writes ``a @ b`` into ``out``, as ``tma.launch`` does."""
    launch_by(_launcher, a, b, out, config, _options)


def bind(problem: Problem, config: str) -> LaunchAt | None:
    """``launch`` by address, as ``tma.bind`` does."""
    return bind_by(_launcher, problem, config, _options)
