"""Everything that is to be tried is compiled before anything is timed, so that no compiler runs beside a measurement.

The CUDA kernels are built at once by their own build. Everybody else with configurations is called once in one of
several child processes: Triton compiles one kernel at a time in a process, and leaves it in its cache on disk, where
this process finds it. A configuration that hangs or crashes does so in a child, and is not tried.
"""

from __future__ import annotations

import queue
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor, as_completed
from typing import NamedTuple, Protocol

import torch

from hgemm.arrangement import arrange_operands
from hgemm.bench.contestants import Choice
from hgemm.bench.preflight import Preflight, Reply
from hgemm.bench.suites import DTYPES, Case
from hgemm.cuda_kernels import adapter
from hgemm.cuda_kernels.configs import FAMILIES
from hgemm.cuda_kernels.toolchain import BuildError
from hgemm.tune.candidates import problem_of

MOST_WORKERS = 8
"""Each takes seconds to import torch and to start on the device, and some hundred MiB of its memory."""


class Form(NamedTuple):
    """What of a product decides what is compiled. Forms that differ may still share machine code: that costs a call."""

    backend: str
    config: str | None
    dtype: str
    layout: str
    batched: bool
    alignment: int

    @classmethod
    def of(cls, choice: Choice, case: Case) -> Form:
        problem = problem_of(case, torch.device("cpu"))
        arranged = arrange_operands(problem.a, problem.b, problem.out, case.shape.batch)
        batched = case.shape.batch > 1
        return cls(choice.backend.name, choice.config, case.dtype, problem.layout, batched, arranged.alignment)


Job = tuple[Choice, Case]
Progress = Callable[[str, int, int], None]
"""What is being compiled, how much of it is done, and how much there is."""


class FirstCaller(Protocol):
    """What is needed of ``hgemm.bench.preflight.Preflight``."""

    def __call__(self, choice: Choice, case: Case) -> Reply: ...

    def close(self) -> None: ...


def compile_all(
    jobs: Iterable[Job], workers: int, child: Callable[[], FirstCaller], progress: Progress
) -> dict[Form, str]:
    """Compiles what the jobs need, with up to ``workers`` children that ``child`` makes (0: Triton compiles in this
    process, when a configuration is first tried). Returns why forms cannot be used; those that are not in it can."""
    forms = _smallest(jobs)
    handwritten = {family.backend for family in FAMILIES.values()}
    failures = _build([form for form in forms if form.backend in handwritten], progress)
    others = {form: job for form, job in forms.items() if form.backend not in handwritten and form.config}
    return failures | _call_each(others, min(workers, MOST_WORKERS, len(others)), child, progress)


def first_caller(device: torch.device, limit: float) -> FirstCaller:
    """A child process on the device that ends whatever takes longer than ``limit`` seconds."""
    return Preflight(device, (), (), "all", limit)


def _smallest(jobs: Iterable[Job]) -> dict[Form, Job]:
    """The job of each form that takes the least time and memory."""
    smallest: dict[Form, Job] = {}
    for choice, case in jobs:
        form = Form.of(choice, case)
        if form not in smallest or case.flops < smallest[form][1].flops:
            smallest[form] = choice, case
    return smallest


def _build(forms: Sequence[Form], progress: Progress) -> dict[Form, str]:
    """Builds the handwritten kernels; those of a backend that does not compile are no loss to the others."""
    if not forms:
        return {}
    dtypes = [dtype for name, dtype in DTYPES.items() if any(form.dtype == name for form in forms)]
    layouts = sorted({form.layout for form in forms})
    names = sorted({form.backend for form in forms})
    progress("building the CUDA kernels", 0, 1)
    failures: dict[Form, str] = {}
    try:
        adapter.build(names, dtypes, layouts)
    except BuildError:
        for name in names:
            try:
                adapter.build([name], dtypes, layouts)
            except BuildError as error:
                failures |= {form: str(error) for form in forms if form.backend == name}
    return failures


def _call_each(
    jobs: dict[Form, Job], workers: int, child: Callable[[], FirstCaller], progress: Progress
) -> dict[Form, str]:
    if not workers:
        return {}
    children = [child() for _ in range(workers)]
    idle: queue.SimpleQueue[FirstCaller] = queue.SimpleQueue()
    for one in children:
        idle.put(one)

    def call(job: Job) -> Reply:
        mine = idle.get()
        try:
            return mine(*job)
        finally:
            idle.put(mine)

    failures = {}
    pool = ThreadPoolExecutor(workers)
    try:
        waiting = {pool.submit(call, job): form for form, job in jobs.items()}
        for done, future in enumerate(as_completed(waiting), 1):
            if reply := future.result():
                failures[waiting[future]] = reply[1]
            progress("compiling", done, len(jobs))
    finally:
        pool.shutdown(wait=False, cancel_futures=True)
        for one in children:
            one.close()  # a call that is still waited for ends with its child
    return failures
