"""What a Problem reads off tensors, and the rules that it is held against."""

from __future__ import annotations

import pytest
import torch

from hgemm.problem import Operand, Problem, row_major_rule, vector_rule


def matrix(rows: int, columns: int, offset: int = 0, gap: int = 0, dtype: torch.dtype = torch.float16) -> torch.Tensor:
    """A row-major matrix whose first element lies ``2 * offset`` bytes after a boundary of at least 64."""
    stride = columns + gap
    flat = torch.zeros(rows * stride + offset, dtype=dtype)
    return flat[offset:].view(rows, stride)[:, :columns]


def test_everything_is_read_off_the_tensors() -> None:
    a, b, out = matrix(3, 16, gap=8), matrix(16, 24), matrix(3, 24, gap=16)
    problem = Problem.from_tensors(a, b, out)
    assert (problem.M, problem.N, problem.K, problem.batch) == (3, 24, 16, ())
    assert (problem.dtype, problem.accumulator) == (torch.float16, torch.float32)
    assert problem.device == torch.device("cpu")
    assert problem.a == Operand(rows=3, columns=16, row_stride=24, column_stride=1, alignment=16)
    assert problem.b == Operand(rows=16, columns=24, row_stride=24, column_stride=1, alignment=16)
    assert problem.out == Operand(rows=3, columns=24, row_stride=40, column_stride=1, alignment=16)


def test_a_tensor_yet_to_be_allocated_is_row_major_and_aligned() -> None:
    problem = Problem.from_tensors(matrix(3, 16), matrix(16, 24))
    assert problem.out == Operand(3, 24, 24, 1, 16)


@pytest.mark.parametrize(("offset", "alignment"), [(0, 16), (1, 2), (2, 4), (3, 2), (4, 8), (6, 4), (8, 16), (12, 8)])
def test_alignment_is_the_largest_power_of_two_up_to_16(offset: int, alignment: int) -> None:
    assert Operand.from_tensor(matrix(4, 8, offset)).alignment == alignment


def test_work_and_traffic() -> None:
    problem = Problem.from_tensors(matrix(3, 5), matrix(5, 7))
    assert problem.flops == 2 * 3 * 5 * 7
    assert problem.compulsory_bytes == 2 * (3 * 5 + 5 * 7 + 3 * 7)
    batched = Problem.from_tensors(torch.zeros(4, 3, 5).half(), torch.zeros(4, 5, 7).half())
    assert batched.batch == (4,)
    assert batched.flops == 4 * problem.flops
    assert batched.compulsory_bytes == 4 * problem.compulsory_bytes


def test_layout_has_a_letter_for_each_input() -> None:
    a, b = matrix(8, 16), matrix(16, 8)
    transposed = matrix(8, 16).t()
    every_other = matrix(16, 16)[:, ::2]
    assert Problem.from_tensors(a, b).layout == "nn"
    assert Problem.from_tensors(a, transposed).layout == "nt"
    assert Problem.from_tensors(transposed, matrix(8, 8)).layout == "tn"
    assert Problem.from_tensors(a, every_other).layout == "nx"


def test_row_major_problems_break_no_rule() -> None:
    assert row_major_rule(Problem.from_tensors(matrix(3, 5, 1, 2), matrix(5, 7, 1, 1), matrix(3, 7, 1, 4))) is None
    assert vector_rule(Problem.from_tensors(matrix(3, 8, 8, 8), matrix(8, 16, 0, 8), matrix(3, 16, 8, 8))) is None


@pytest.mark.parametrize(
    ("a", "b", "out", "found"),
    [
        (matrix(16, 8).t(), matrix(16, 8), matrix(8, 8), "a must be row-major * strides (1, 8) for shape (8, 16)"),
        (matrix(8, 16), matrix(8, 16).t(), matrix(8, 8), "b must be row-major * strides (1, 16) for shape (16, 8)"),
        (matrix(8, 16), matrix(16, 8), matrix(8, 8).t(), "out must be row-major * strides (1, 8) for shape (8, 8)"),
        (matrix(1, 16).expand(8, 16), matrix(16, 8), matrix(8, 8), "a must be row-major * strides (0, 1)"),
        (torch.zeros(40).half().as_strided((4, 16), (8, 1)), matrix(16, 8), matrix(4, 8), "a must * strides (8, 1)"),
        (matrix(8, 32)[:, ::2], matrix(16, 8), matrix(8, 8), "a must be row-major * strides (32, 2)"),
        (torch.zeros(2, 8, 16).half(), matrix(16, 8), torch.zeros(2, 8, 8).half(), "a batch of shape (2,)"),
    ],
)
def test_a_rule_broken_is_named_with_the_value_found(
    a: torch.Tensor, b: torch.Tensor, out: torch.Tensor, found: str
) -> None:
    for rule in (row_major_rule, vector_rule):
        message = rule(Problem.from_tensors(a, b, out))
        assert message is not None
        position = 0
        for fragment in found.split(" * "):
            position = message.index(fragment, position)


@pytest.mark.parametrize(
    ("a", "b", "out", "found"),
    [
        (matrix(8, 12), matrix(12, 8), matrix(8, 8), "K must be a multiple of 8, found K = 12"),
        (matrix(8, 16), matrix(16, 9), matrix(8, 9), "N must be a multiple of 8, found N = 9"),
        (
            matrix(8, 16, gap=4),
            matrix(16, 8),
            matrix(8, 8),
            "row stride of a must be a multiple of 8 elements, found 20",
        ),
        (
            matrix(8, 16),
            matrix(16, 8, gap=1),
            matrix(8, 8),
            "row stride of b must be a multiple of 8 elements, found 9",
        ),
        (
            matrix(8, 16),
            matrix(16, 8),
            matrix(8, 8, gap=7),
            "row stride of out must be a multiple of 8 elements, found 15",
        ),
        (matrix(8, 16, offset=4), matrix(16, 8), matrix(8, 8), "first element of a must lie on a 16-byte boundary"),
        (matrix(8, 16), matrix(16, 8, offset=1), matrix(8, 8), "found one of 2 bytes"),
        (matrix(8, 16), matrix(16, 8), matrix(8, 8, offset=2), "first element of out must lie on a 16-byte boundary"),
    ],
)
def test_vectors_of_16_bytes_ask_for_more(a: torch.Tensor, b: torch.Tensor, out: torch.Tensor, found: str) -> None:
    problem = Problem.from_tensors(a, b, out)
    assert row_major_rule(problem) is None
    message = vector_rule(problem)
    assert message is not None
    assert found in message
