"""All that is to be tried is compiled once, before anything is timed: CUDA units in one build, the rest in children."""

import threading
from collections.abc import Iterable, Sequence
from typing import Any

import pytest
import torch
from bench_machine import backend

from hgemm.backends import backends
from hgemm.bench.contestants import Choice
from hgemm.bench.preflight import Reply
from hgemm.bench.suites import Case, Shape
from hgemm.cuda_kernels.toolchain import BuildError
from hgemm.tune import compiling
from hgemm.tune.compiling import Form, Job, compile_all, first_caller

SMALL, LARGE, RAGGED = (Case(Shape(*sizes)) for sizes in ((64, 64, 64), (128, 128, 64), (64, 60, 64)))


class Child:
    """In place of a process: it waits for ``together`` others to be called at the same time."""

    def __init__(self, log: list[tuple[str, str | None, Case]], replies: dict[str, Reply], together: int = 1) -> None:
        self.log, self.replies, self.closed = log, replies, False
        self.barrier = BARRIERS.setdefault(together, threading.Barrier(together))

    def __call__(self, choice: Choice, case: Case) -> Reply:
        self.barrier.wait(30)
        self.log.append((choice.backend.name, choice.config, case))
        return self.replies.get(choice.config or "")

    def close(self) -> None:
        self.closed = True


BARRIERS: dict[int, threading.Barrier] = {}


def jobs(name: str, configs: Sequence[str], cases: Iterable[Case]) -> list[Job]:
    record = backend(name, lambda *arguments: None, configs)
    return [(Choice(record, config), case) for case in cases for config in configs]


def run(work: list[Job], workers: int = 2, together: int = 1, **replies: Reply) -> tuple[Any, Any, list[Child], Any]:
    log: list[tuple[str, str | None, Case]] = []
    children: list[Child] = []
    told: list[tuple[str, int, int]] = []

    def child() -> Child:
        children.append(Child(log, replies, together))
        return children[-1]

    failures = compile_all(work, workers, child, lambda *progress: told.append(progress))
    assert all(one.closed for one in children)
    return failures, log, children, told


def test_a_form_is_compiled_once_on_its_smallest_product() -> None:
    _, log, _, told = run(jobs("mine", ("x", "y"), (LARGE, SMALL)))
    assert sorted(log, key=str) == [("mine", "x", SMALL), ("mine", "y", SMALL)]
    assert told == [("compiling", 1, 2), ("compiling", 2, 2)]


@pytest.mark.parametrize(
    "other",
    [RAGGED, Case(SMALL.shape, "fp16"), Case(SMALL.shape, layout="nt"), Case(Shape(64, 64, 64, batch=2))],
)
def test_another_alignment_dtype_layout_or_a_batch_is_another_form(other: Case) -> None:
    assert len(run(jobs("mine", ("x",), (SMALL, other)))[1]) == 2


def test_children_compile_side_by_side() -> None:
    _, log, children, _ = run(jobs("mine", ("x", "y", "z"), (SMALL,)), workers=3, together=3)
    assert len(log) == len(children) == 3
    assert len(run(jobs("mine", ("x",), (SMALL,)), workers=3)[2]) == 1, "no more children than there is to do"
    many = jobs("mine", [f"c{number}" for number in range(20)], (SMALL,))
    assert len(run(many, workers=64)[2]) == compiling.MOST_WORKERS


def test_who_fails_in_a_child_is_named_with_the_reason() -> None:
    work = jobs("mine", ("x", "y"), (SMALL, LARGE))
    failures, *_ = run(work, y=("hangs", "did not end within 1 s"))
    assert failures == {Form.of(work[1][0], SMALL): "did not end within 1 s"}
    assert Form.of(work[3][0], LARGE) in failures, "it is the same form"


def test_without_workers_and_without_configurations_nobody_is_called() -> None:
    assert run(jobs("mine", ("x",), (SMALL,)), workers=0) == ({}, [], [], [])
    nobody = backend("mine", lambda *arguments: None)
    assert run([(Choice(nobody, None), SMALL)])[1] == []


def cuda(*cases: Case) -> list[Job]:
    names = ("cuda_cp_async", "cuda_tma")
    return [(Choice(backends()[name], backends()[name].configs[0]), case) for case in cases for name in names]


def test_cuda_units_are_built_at_once_in_the_dtypes_and_layouts_asked_for(monkeypatch: pytest.MonkeyPatch) -> None:
    builds = []
    monkeypatch.setattr(compiling.adapter, "build", lambda *arguments: builds.append(arguments))
    failures, log, _, told = run(cuda(SMALL, LARGE, Case(SMALL.shape, "fp16", "nt")))
    assert builds == [(["cuda_cp_async", "cuda_tma"], [torch.bfloat16, torch.float16], ["nn", "nt"])]
    assert (failures, log, told) == ({}, [], [("building the CUDA kernels", 0, 1)])


def test_a_backend_that_does_not_build_is_no_loss_to_the_other(monkeypatch: pytest.MonkeyPatch) -> None:
    def build(names: Sequence[str], dtypes: object, layouts: object) -> None:
        if "cuda_tma" in names:
            raise BuildError("tma.cuh(1): error")

    monkeypatch.setattr(compiling.adapter, "build", build)
    failures, *_ = run(cuda(SMALL))
    assert failures == {Form.of(cuda(SMALL)[1][0], SMALL): "tma.cuh(1): error"}


def test_an_interrupt_ends_the_children() -> None:
    children = []

    def child() -> Child:
        children.append(Child([], {}))
        return children[-1]

    def interrupt(*progress: object) -> None:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        compile_all(jobs("mine", ("x", "y"), (SMALL,)), 2, child, interrupt)
    assert [one.closed for one in children] == [True, True]


def test_a_child_is_a_process_that_calls_the_kernel() -> None:
    child = first_caller(torch.device("cpu"), 120)
    try:
        torch_choice = Choice(backends()["torch"], None)
        assert child(torch_choice, SMALL) is None
        pointer = Choice(backends()["triton_pointer"], "9x9x9_s9_w9x9")
        reply = child(pointer, SMALL)
        assert reply is not None and reply[0] == "failed"
    finally:
        child.close()
