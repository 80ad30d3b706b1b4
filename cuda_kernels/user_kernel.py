"""A kernel of your own: built for the GPU and for the emulator, and called like ours.

    >>> mine = hgemm.cuda_kernels.load("mine.cu")
    >>> product, report = mine.emulate(a_cpu, b_cpu, schedule="lazy")
    >>> c = mine(a_cuda, b_cuda)
    >>> hgemm.register_backend("mine", mine.run)

The file includes "user_kernel.cuh", which says what it has to define.
"""

from __future__ import annotations

import functools
from pathlib import Path
from typing import TYPE_CHECKING

import torch
from torch import Tensor

if TYPE_CHECKING:
    from hgemm.cuda_kernels.binding import LoadedUnit
    from hgemm.cuda_kernels.emulator.library import EmulatedLibrary
    from hgemm.cuda_kernels.emulator.report import Report

DTYPE_NAMES = {torch.float16: "f16", torch.bfloat16: "bf16"}


def load(path: str | Path) -> UserKernel:
    """The kernel in a CUDA C++ file. Nothing is compiled before it is called. Raises FileNotFoundError."""
    source = Path(path).resolve()
    if not source.is_file():
        raise FileNotFoundError(f"no kernel at {source}")
    return UserKernel(source)


class UserKernel:
    """`a @ b` of row-major fp16 or bf16 matrices: of CUDA tensors on their device, of CPU tensors in the emulator."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._emulated = functools.cache(self._load_emulated)
        self._on_gpu = functools.cache(self._load_on_gpu)

    def __call__(self, a: Tensor, b: Tensor, out: Tensor | None = None) -> Tensor:
        """The product. Raises EmulatorError (a rule broken on CPU tensors), BuildError, UnsupportedProblem."""
        product = self._checked(a, b, out)
        self.run(a, b, product)
        return product

    def emulate(
        self,
        a: Tensor,
        b: Tensor,
        *,
        schedule: str | None = None,
        shared_base: int | None = None,
        threads: int = 0,
        out: Tensor | None = None,
    ) -> tuple[Tensor, Report]:
        """The product of CPU tensors and the report, as `hgemm.emulate`."""
        from hgemm import emulation

        product = self._checked(a, b, out)
        library = self._emulated(DTYPE_NAMES[a.dtype], _content(self.path))
        problem, memories = emulation.describe(a, b, product, "nn")
        call = functools.partial(library.launch, problem, 0)
        return product, emulation.launch(library, call, memories, schedule, shared_base, threads)

    def run(self, a: Tensor, b: Tensor, out: Tensor, config: str | None = None) -> None:
        """Writes the product into `out`; takes what `hgemm.register_backend` hands over."""
        from hgemm.emulation import EmulatorError

        if a.device.type == "cpu":
            _, report = self.emulate(a, b, out=out)
            if not report.clean:
                raise EmulatorError(report)
        else:
            unit = self._on_gpu(DTYPE_NAMES[a.dtype], _content(self.path))
            torch.ops.hgemm_cuda.mm_out(a, b, out, unit.handle, 0)

    def _checked(self, a: Tensor, b: Tensor, out: Tensor | None) -> Tensor:
        from hgemm.arguments import check
        from hgemm.problem import Problem, UnsupportedProblem, row_major_rule

        shape = check(a, b, out)
        product = torch.empty(shape, dtype=a.dtype, device=a.device) if out is None else out
        if rule := row_major_rule(Problem.from_tensors(a, b, product)):
            raise UnsupportedProblem(rule)
        return product

    def _text(self, dtype: str, content: str) -> str:
        return f'#define HGEMM_ELEMENT hgemm::{dtype}\n#line 1 "{self.path}"\n{content}'

    def _load_emulated(self, dtype: str, content: str) -> EmulatedLibrary:
        from hgemm.cuda_kernels.emulator.build import build_library
        from hgemm.cuda_kernels.emulator.library import EmulatedLibrary

        name = f"{self.path.stem}_{dtype}"
        return EmulatedLibrary(build_library(name, self._text(dtype, content), self.path.parent))

    def _load_on_gpu(self, dtype: str, content: str) -> LoadedUnit:
        from hgemm.cuda_kernels.build import binding, build_library

        path = build_library(f"{self.path.stem}_{dtype}", self._text(dtype, content))
        return binding().load_unit(path, "cuda", dtype)


def _content(path: Path) -> str:
    """Read at every call: a kernel that is edited is compiled anew."""
    return path.read_text()
