"""The CUDA kernels on CPU tensors: run in the emulator, checked, with a report of what was found and counted.

    >>> product, report = hgemm.emulate(a, b, backend="cuda_tma", schedule="lazy,reversed")
    >>> report.clean, report.counters["mma"]

A schedule says when asynchronous copies land and in which order threads run: "eager", "lazy" (the default: as late as a
GPU may be), either of them with ",reversed", or "random,seed=N". HGEMM_EMULATOR names one for `hgemm.matmul`.
"""

from __future__ import annotations

import functools
import math
import os
import sys
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from hgemm.problem import Problem, UnsupportedProblem

if TYPE_CHECKING:  # importing hgemm does not import its kernels
    from hgemm.cuda_kernels.binding import HgemmProblem
    from hgemm.cuda_kernels.configs import Family
    from hgemm.cuda_kernels.emulator.library import EmulatedLibrary, Memory, Progress
    from hgemm.cuda_kernels.emulator.report import Report

DTYPE_NAMES = {torch.float16: "f16", torch.bfloat16: "bf16"}
LIMIT = 2**35
"""Multiplications above which a product is refused: most of a minute on one core, which does about 10^9 a second."""
PER_SECOND = 10**9


class EmulatorError(RuntimeError):
    """A kernel broke a rule of the machine while it ran in the emulator. `report` says which, where and how."""

    def __init__(self, report: Report) -> None:
        super().__init__(str(report))
        self.report = report


def emulate(
    a: Tensor,
    b: Tensor,
    *,
    backend: str = "cuda_tma",
    config: str | None = None,
    schedule: str | None = None,
    shared_base: int | None = None,
    threads: int = 0,
    limit: int | None = None,
    out: Tensor | None = None,
) -> tuple[Tensor, Report]:
    """`hgemm.matmul` of CPU tensors by a handwritten kernel, and the report; faults are in the report, not raised.

    `schedule` as above. `shared_base` is the address of shared memory, 1024 as on a GPU if left out; `threads` of the
    host, one a processor if 0; `limit` the largest number of multiplications, else HGEMM_EMULATOR_LIMIT, else LIMIT.

    Raises what `hgemm.matmul` raises for the tensors, ValueError for an unknown backend, configuration or schedule,
    UnsupportedProblem (the kernel refuses the product, or it is too large, or its batches take several launches), and
    BuildError (no C++ compiler).
    """
    from hgemm.arguments import check, check_memory, lazy, lazy_rule
    from hgemm.cuda_kernels.adapter import kernel_rule
    from hgemm.folding import View, fold

    shape = check(a, b, out)
    family = _family(backend)
    if config is not None and config not in (names := [kernel.name for kernel in family.configs]):
        raise ValueError(f"{backend} has no configuration {config!r}; it has {', '.join(names)}")
    if a.device.type != "cpu":
        raise ValueError(f"the emulator computes on CPU tensors, found {a.device}; pass a.cpu(), b.cpu()")
    if out is not None:
        check_memory(a, b, out)
    product = torch.empty(shape, dtype=a.dtype, device="cpu") if out is None else out
    if product.numel() == 0 or a.shape[-1] == 0:
        raise ValueError(f"nothing to emulate in a product of shapes {tuple(a.shape)} and {tuple(b.shape)}")
    tensors = (a, b, product)
    if name := lazy(a, b, product):
        raise _unsupported(backend, lazy_rule(name))
    folding = fold(*(View(tuple(tensor.shape), tensor.stride()) for tensor in tensors))
    if (launches := len(folding.offsets)) > 1:
        raise UnsupportedProblem(
            f"the batches of shapes {tuple(a.shape)} and {tuple(b.shape)} take {launches} launches, and the emulator "
            f"reports on one; pass one batch dimension, or use hgemm.matmul"
        )
    left, right, target = (
        tensor.as_strided(view.shape, view.stride, tensor.storage_offset())
        for tensor, view in zip(tensors, (folding.a, folding.b, folding.out), strict=True)
    )
    if rule := kernel_rule(family, Problem.from_tensors(left, right, target)):
        raise _unsupported(backend, rule)
    report = run(family, left, right, target, config or family.configs[0].name, schedule, shared_base, threads, limit)
    return product, report


def run(
    family: Family,
    a: Tensor,
    b: Tensor,
    out: Tensor,
    config: str,
    schedule: str | None = None,
    shared_base: int | None = None,
    threads: int = 0,
    limit: int | None = None,
    resident_blocks: int = 0,
) -> Report:
    """Writes the product of matrices, or of batches with one dimension in front, that are known to fit into `out`.

    `resident_blocks` is how many blocks of a kernel the device is said to hold, 2 if 0. The other arguments are those
    of `emulate`.
    """
    from hgemm.cuda_kernels.configs import Unit
    from hgemm.cuda_kernels.emulator.build import load_unit

    problem = Problem.from_tensors(a, b, out)
    if rule := too_large(problem, limit):
        raise UnsupportedProblem(rule)
    library = load_unit(Unit(family.name, DTYPE_NAMES[a.dtype], problem.layout))
    index = family.index(config)
    described, memories = describe(a, b, out, problem.layout)
    call = functools.partial(library.launch, described, index)
    return launch(library, call, memories, schedule, shared_base, threads, resident_blocks)


def too_large(problem: Problem, limit: int | None = None) -> str | None:
    """The rule that a product breaks which would take minutes, with the way out; None if it is small enough."""
    if limit is None:
        text = os.environ.get("HGEMM_EMULATOR_LIMIT", "").strip() or str(LIMIT)
        if not text.isdecimal():
            return (
                f"HGEMM_EMULATOR_LIMIT must be a whole number of multiplications, found {text!r}; correct or unset it"
            )
        limit = int(text)
    count = problem.flops // 2
    if count <= limit:
        return None
    return (
        f"the emulator would take {_time(count)} of one core for {count:,} multiplications, more than its limit of "
        f"{limit:,}; take a smaller product, or set HGEMM_EMULATOR_LIMIT={count}"
    )


def describe(a: Tensor, b: Tensor, out: Tensor, layout: str) -> tuple[HgemmProblem, list[Memory]]:
    """The arguments of hgemm_launch, and the memory that the kernel may touch."""
    from hgemm.cuda_kernels.binding import HgemmProblem
    from hgemm.cuda_kernels.emulator.library import Memory

    described = HgemmProblem.of(Problem.from_tensors(a, b, out), layout)
    memories = []
    for name, matrix in (("a", a), ("b", b), ("c", out)):
        setattr(described, name, matrix.data_ptr())
        batches = matrix.shape[0] if matrix.dim() > 2 else 1
        sizes = (batches, matrix.shape[-2], matrix.shape[-1])
        strides = (matrix.stride(0) if batches > 1 else 0, matrix.stride(-2), matrix.stride(-1))
        memories.append(Memory(name, matrix.data_ptr(), sizes, strides, writable=name == "c"))
    return described, memories


def launch(
    library: EmulatedLibrary,
    call: Any,
    memories: list[Memory],
    schedule: str | None = None,
    shared_base: int | None = None,
    threads: int = 0,
    resident_blocks: int = 0,
) -> Report:
    """Runs `call`, which launches kernels of `library`, and returns the report.

    A line tells of the progress on a terminal if it takes longer than a second. Raises UnsupportedProblem if the
    library refuses to launch.
    """
    from hgemm.cuda_kernels.emulator.library import Progress, in_thread
    from hgemm.cuda_kernels.emulator.report import Report

    progress = Progress()
    answer: list[tuple[str | None, dict[str, Any]]] = []

    def work() -> None:
        run = functools.partial(library.run, call, memories, schedule, shared_base or 0, threads, progress)
        answer.append(run(resident_blocks=resident_blocks))

    with _ProgressLine(progress) as line:
        in_thread(work, line.update, progress)
    error, data = answer[0]
    report = Report.from_dict(data, library.path)
    if error and report.clean:
        raise UnsupportedProblem(error)
    return report


class _ProgressLine:
    """A bar on a terminal, from the second second on."""

    def __init__(self, progress: Progress) -> None:
        self._progress = progress
        self._calls = 0
        self._bars: Any = None

    def __enter__(self) -> _ProgressLine:
        return self

    def update(self) -> None:
        self._calls += 1
        if self._bars is None and self._calls > 10 and sys.stderr.isatty():
            from rich.console import Console
            from rich.progress import Progress as Bars

            self._bars = Bars(console=Console(stderr=True), transient=True)
            self._bars.start()
            self._task = self._bars.add_task("emulating blocks", total=None)
        if self._bars is not None:
            self._bars.update(self._task, completed=self._progress.blocks_done, total=self._progress.blocks_total)

    def __exit__(self, *exception: object) -> None:
        if self._bars is not None:
            self._bars.stop()


def _family(backend: str) -> Family:
    from hgemm.cuda_kernels.configs import FAMILIES

    for family in FAMILIES.values():
        if family.backend == backend:
            return family
    names = ", ".join(family.backend for family in FAMILIES.values())
    raise ValueError(f"the emulator runs {names}, and {backend!r} is none of them")


def _time(count: int) -> str:
    """How long one core takes for so many multiplications."""
    seconds = math.ceil(count / PER_SECOND)
    if seconds <= 1:
        return "less than a second"
    return f"about {seconds} seconds" if seconds < 120 else f"about {math.ceil(seconds / 60)} minutes"


def _unsupported(backend: str, rule: str) -> UnsupportedProblem:
    return UnsupportedProblem(f"backend {backend!r} cannot compute this product: {rule}")
