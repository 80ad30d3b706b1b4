"""Who takes part: what a pattern matches, in which order, and what is said of one that matches nothing."""

import fnmatch
from pathlib import Path

import pytest
import torch
from bench_machine import backend

import hgemm
from hgemm.backends import Backend
from hgemm.bench.contestants import check_patterns, choose, load
from hgemm.bench.suites import SUITES, Shape, cases
from hgemm.problem import Problem


def nothing(a, b, out, config) -> None: ...


LADDER = (
    backend("torch", nothing),
    backend("cuda_x", nothing, ["64x64x32_s2_w32x32", "128x128x32_s3_w64x32"]),
    backend("triton", nothing, ["128x128x64_s3_w64x32", "64x64x64_s4_w32x32", "128x256x64_s3_w64x64"]),
)
PROBLEM = Problem.from_tensors(*(torch.empty(8, 8, dtype=torch.float16) for _ in range(3)))


def names(*patterns: str, ladder: tuple[Backend, ...] = LADDER) -> list[tuple[str, str | None]]:
    return [(choice.backend.name, choice.config) for choice in choose(patterns, ladder, PROBLEM)]


EVERY_TRITON = [("triton", config) for config in LADDER[2].configs]


@pytest.mark.parametrize(
    ("patterns", "chosen"),
    [
        (("torch",), [("torch", None)]),
        (("triton",), EVERY_TRITON),
        (("triton:default",), EVERY_TRITON[:1]),
        (("triton:64x64*",), EVERY_TRITON[1:2]),
        (("*:*_s3_*",), [("cuda_x", "128x128x32_s3_w64x32"), EVERY_TRITON[0], EVERY_TRITON[2]]),
        (("*:default",), [("torch", None), ("cuda_x", "64x64x32_s2_w32x32"), EVERY_TRITON[0]]),
        (("triton:64*", "triton:*_w32x32"), EVERY_TRITON[1:2]),
        # In the order of the ladder, whatever that of the patterns, and nobody twice.
        (("triton:default", "triton:64*", "t*:128x128*", "torch"), [("torch", None), *EVERY_TRITON[:2]]),
    ],
)
def test_patterns(patterns: tuple[str, ...], chosen: list[tuple[str, str | None]]) -> None:
    assert names(*patterns) == chosen


def test_the_default_is_the_one_that_the_backend_chooses_for_the_problem() -> None:
    record = LADDER[2]
    by_size = Backend(
        **{
            **{field: getattr(record, field) for field in record.__dataclass_fields__},
            "choose": lambda problem: record.configs[1] if problem.M < 64 else record.configs[2],
        }
    )
    assert names("triton:default", ladder=(by_size,)) == EVERY_TRITON[1:2]
    # It takes its place among the others.
    assert names("triton:default", "triton:128x128*", ladder=(by_size,)) == EVERY_TRITON[:2]


@pytest.mark.parametrize("pattern", ["tritn", "cuda_x:1x1x1", "torch:128x128x64_s3_w64x32", ""])
def test_a_pattern_that_matches_nothing_is_refused(pattern: str) -> None:
    with pytest.raises(ValueError, match=r"no backend matches .*the names are torch, cuda_x, triton"):
        check_patterns(["torch", pattern], LADDER)
    check_patterns(["torch", "*:default", "cuda_*"], LADDER)


@pytest.mark.parametrize("text", ["4096", "1,2", "1,2,3,4", "0,8,8", "-8,8,8", "8,8,8.0", "a,b,c", ""])
def test_a_shape_that_is_none_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match="three positive integers M,N,K"):
        Shape.parse(text)


def test_shapes_and_cases() -> None:
    assert Shape.parse(" 16, 24,8 ") == Shape(16, 24, 8)
    both = cases((Shape(16, 24, 8), Shape(8, 8, 8), Shape(16, 24, 8)), ("fp16", "bf16"))
    assert [(case.shape.M, case.dtype) for case in both] == [(16, "fp16"), (8, "fp16"), (16, "bf16"), (8, "bf16")]
    # 2 x 16 x 24 x 8 operations; 16 x 8 + 8 x 24 + 16 x 24 elements of 2 bytes.
    assert (both[0].flops, both[0].compulsory_bytes) == (6144, 1408)


def test_every_kernel_takes_every_suite() -> None:
    for name, shapes in SUITES.items():
        assert fnmatch.fnmatch(name, "[a-z]*")
        assert all(shape.N % 8 == 0 and shape.K % 8 == 0 for shape in shapes), name


def test_a_contestant_file_registers_backends(tmp_path: Path) -> None:
    path = tmp_path / "mine.py"
    path.write_text("import hgemm\nhgemm.register_backend('mine', lambda a, b, out, config: out.copy_(a @ b))\n")
    assert load(path) == ["mine"]
    assert "mine" in hgemm.backends().names


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("1 / 0", "ZeroDivisionError: division by zero"),
        ("import hgemm", "calls hgemm.register_backend for no new name"),
        (None, "No such file or directory"),
    ],
)
def test_a_contestant_file_that_is_of_no_use_says_why(tmp_path: Path, text: str | None, reason: str) -> None:
    path = tmp_path / "mine.py"
    if text is not None:
        path.write_text(text)
    with pytest.raises(ValueError, match=reason):
        load(path)
