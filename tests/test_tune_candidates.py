"""Who is tried when a product is tuned, who is not, and on what ground: all of it before anything compiles."""

from collections.abc import Callable

import pytest
import torch
from bench_machine import backend

from hgemm.backends import Backend, Properties, backends
from hgemm.bench.suites import Case, Shape
from hgemm.problem import Problem
from hgemm.tune.candidates import DEFAULT_PATTERNS, HOPELESS, candidates, problem_of

CPU = torch.device("cpu")


def never(*arguments: object) -> None:
    raise AssertionError("it ran")


def kernels(*configs: str, accepts: Callable[..., str | None] = lambda problem, config: None) -> list[Backend]:
    return [backend("mine", never, configs, accepts=accepts)]


def sift(records: list[Backend], shape: str, multiprocessors: int = 132) -> tuple[list[str | None], dict[str, str]]:
    """The configurations that are tried, and the ground on which each of the others is not."""
    problem = problem_of(Case(Shape.parse(shape)), CPU)
    kept, pruned = candidates(["*"], records, problem, multiprocessors)
    return [choice.config for choice in kept], {one.choice.config or "": one.ground for one in pruned}


def test_a_problem_is_that_of_the_operands() -> None:
    problem = problem_of(Case(Shape(48, 24, 40, batch=3), "fp16", "tn"), torch.device("cuda", 1))
    a = torch.empty(3, 40, 48, dtype=torch.float16).mT
    b, out = torch.empty(3, 40, 24, dtype=torch.float16), torch.empty(3, 48, 24, dtype=torch.float16)
    expected = Problem.from_tensors(a, b, out)
    assert (problem.a, problem.b, problem.out) == (expected.a, expected.b, expected.out)
    assert (problem.batch, problem.layout, problem.dtype) == ((3,), "tn", torch.float16)
    assert problem.device == torch.device("cuda", 1)


def test_by_default_the_kernels_of_the_package() -> None:
    kept, pruned = candidates(DEFAULT_PATTERNS, backends(), problem_of(Case(Shape(64, 64, 64)), CPU), 1)
    names = {choice.backend.name for choice in kept} | {one.choice.backend.name for one in pruned}
    assert {"cuda_cp_async", "cuda_tma", "triton", "triton_pointer"} <= names
    assert not names & {"torch", "cublas", "cublaslt"}


def test_what_is_refused_is_counted_by_its_ground() -> None:
    def accepts(problem: Problem, config: str | None) -> str | None:
        rules = {
            "64x64x32_s2_w32x32": "configuration c needs 300,000 bytes of shared memory for a block, and it has 1",
            "64x64x32_s3_w32x32": "N must be a multiple of 8, found N = 7",
        }
        return rules.get(config or "")

    records = kernels("64x64x32_s2_w32x32", "64x64x32_s3_w32x32", "64x64x32_s4_w32x32", accepts=accepts)
    records.append(backend("absent", never, ("64x64x32_s5_w32x32",), unavailable="no compiler"))
    kept, grounds = sift(records, "64,7,64")
    assert kept == ["64x64x32_s4_w32x32"]
    assert grounds == {
        "64x64x32_s2_w32x32": "shared memory",
        "64x64x32_s3_w32x32": "refused",
        "64x64x32_s5_w32x32": "unavailable",
    }


def test_accumulators_that_leave_no_registers() -> None:
    # 128 x 256 over 4 warps: 256 accumulators a thread of at most 255 registers; over 8 warps 128.
    kept, grounds = sift(kernels("128x256x64_s3_w64x128", "128x256x64_s3_w64x64"), "8192,8192,64")
    assert kept == ["128x256x64_s3_w64x64"]
    assert grounds == {"128x256x64_s3_w64x128": "registers"}


def test_hopeless_waves() -> None:
    assert HOPELESS == 4
    large, middle, small = "256x128x64_s3_w64x64", "128x128x64_s3_w64x32", "64x64x64_s3_w32x32"
    # 512 x 512 on 132 multiprocessors: one wave of 8, 16 or 64 tiles, of 8, 4 and 1 times 64 x 64 elements.
    kept, grounds = sift(kernels(large, middle, small), "512,512,64")
    assert kept == [middle, small]
    assert grounds == {large: "waves"}
    # On 8 multiprocessors it is 1, 2 and 8 waves: the same work for all.
    assert sift(kernels(large, middle, small), "512,512,64", multiprocessors=8)[1] == {}
    # A batch of 16 fills all of them.
    assert sift(kernels(large, middle, small), "16x512,512,64")[1] == {}
    # Of one row, a tile computes one row.
    assert sift(kernels(large, small), "1,256,64")[1] == {}


def test_what_divides_k_or_has_a_name_of_its_own_is_not_judged_by_its_tiles() -> None:
    small = "64x64x64_s3_w32x32"
    for name in ("256x128x64_s3_w64x64_tail", "fast"):
        assert sift(kernels(name, small), "512,512,64") == ([name, small], {})


@pytest.mark.parametrize("exact", [True, False])
def test_auto_is_given_nobody_who_rounds_partial_sums(exact: bool) -> None:
    record = backend("mine", never)
    record = Backend(**{**vars(record), "properties": Properties(exact_integers=exact)})
    kept, pruned = candidates(["mine"], [record], problem_of(Case(Shape(8, 8, 8)), CPU), 1)
    assert bool(kept) is exact
    assert [one.ground for one in pruned] == ([] if exact else ["rounds partial sums"])
