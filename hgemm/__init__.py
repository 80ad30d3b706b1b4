"""hgemm: half-precision matrix products by handwritten CUDA kernels, their Triton twins and the vendor's libraries,
behind one call.

    >>> import hgemm, torch
    >>> c = hgemm.matmul(a, b, backend="cuda_tma", config="128x128x64_s3_w64x32")
    >>> hgemm.backends()["triton"].configs

Importing the package compiles nothing and touches no GPU.
"""

from hgemm import ops as _ops  # noqa: F401  defines torch.ops.hgemm
from hgemm.backends import backends, register_backend
from hgemm.dispatch import explain, matmul
from hgemm.emulation import EmulatorError, emulate
from hgemm.problem import UnsupportedProblem

__version__ = "0.1.0"

__all__ = [
    "EmulatorError",
    "UnsupportedProblem",
    "__version__",
    "backends",
    "emulate",
    "explain",
    "matmul",
    "register_backend",
]
