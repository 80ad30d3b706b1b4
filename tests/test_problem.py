"""What a Problem reads off tensors, and the rules that it is held against."""

from __future__ import annotations

import pytest
import torch

from hgemm.problem import (
    LARGEST_EXTENT,
    Operand,
    Problem,
    batch_rule,
    extent_rule,
    layout_of,
    row_major_rule,
    tma_rule,
    vector_rule,
)


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


def test_a_batch_has_a_stride_of_its_own_and_a_shared_matrix_none() -> None:
    a, b = torch.zeros(3, 4, 8).half(), torch.zeros(8, 16).half()
    problem = Problem.from_tensors(a, b)
    assert problem.batch == (3,)
    assert problem.a == Operand(4, 8, 8, 1, 16, batch_stride=32)
    assert problem.b == Operand(8, 16, 16, 1, 16, batch_stride=0)
    assert problem.out == Operand(4, 16, 16, 1, 16, batch_stride=64)
    assert Problem.from_tensors(a, b.expand(3, 8, 16), torch.zeros(3, 4, 16).half()) == problem
    single = Problem.from_tensors(a[:1], b)
    assert (single.a.batch_stride, single.out.batch_stride) == (0, 0)


@pytest.mark.parametrize(
    ("shape", "found", "letter", "described"),
    [
        ((1, 8), (999, 1), "n", (8, 1)),
        ((1, 8), (999, 16), "t", (1, 16)),  # eight stored rows of one element, 16 apart
        ((8, 1), (16, 999), "n", (16, 1)),
        ((8, 1), (1, 999), "t", (1, 8)),  # one stored row of eight
        ((8, 1), (1, 1), "t", (1, 8)),
        ((1, 1), (999, 77), "n", (1, 1)),
        ((4, 8), (8, 1), "n", (8, 1)),
        ((4, 8), (1, 4), "t", (1, 4)),
        ((4, 8), (0, 1), "n", (0, 1)),
        ((4, 8), (1, 0), "t", (1, 0)),
        ((4, 8), (32, 2), "n", (32, 2)),
        ((4, 8), (2, 32), "t", (2, 32)),
    ],
)
def test_the_stride_of_a_dimension_of_size_1_means_nothing(
    shape: tuple[int, int], found: tuple[int, int], letter: str, described: tuple[int, int]
) -> None:
    tensor = torch.zeros(2000).half().as_strided(shape, found)
    operand = Operand.from_tensor(tensor)
    assert operand.letter == letter
    assert (operand.row_stride, operand.column_stride) == described
    assert layout_of(tensor, tensor) == 2 * letter
    stored = operand.stored
    assert (stored.rows, stored.columns) == (shape if letter == "n" else shape[::-1])
    assert stored.stored == stored or 1 in shape


def test_work_and_traffic() -> None:
    problem = Problem.from_tensors(matrix(3, 5), matrix(5, 7))
    assert problem.flops == 2 * 3 * 5 * 7
    assert problem.compulsory_bytes == 2 * (3 * 5 + 5 * 7 + 3 * 7)
    batched = Problem.from_tensors(torch.zeros(4, 3, 5).half(), torch.zeros(4, 5, 7).half())
    assert batched.batch == (4,)
    assert batched.flops == 4 * problem.flops
    assert batched.compulsory_bytes == 4 * problem.compulsory_bytes
    shared = Problem.from_tensors(torch.zeros(4, 3, 5).half(), matrix(5, 7))
    assert shared.compulsory_bytes == 2 * (4 * 3 * 5 + 5 * 7 + 4 * 3 * 7)


def test_layout_has_a_letter_for_each_input() -> None:
    a, b = matrix(8, 16), matrix(16, 8)
    transposed = matrix(8, 16).t()
    assert Problem.from_tensors(a, b).layout == "nn"
    assert Problem.from_tensors(a, transposed).layout == "nt"
    assert Problem.from_tensors(transposed, matrix(8, 8)).layout == "tn"
    assert Problem.from_tensors(transposed, transposed.t()).layout == "tn"
    assert Problem.from_tensors(transposed, matrix(16, 8).t()).layout == "tt"
    assert layout_of(torch.zeros(2, 8, 16).half().mT, matrix(16, 8)) == "tn"


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
    message = row_major_rule(Problem.from_tensors(a, b, out))
    assert message is not None
    position = 0
    for fragment in found.split(" * "):
        position = message.index(fragment, position)


def strided(rows: int, columns: int, row_stride: int, column_stride: int) -> torch.Tensor:
    return (
        torch.zeros(rows * row_stride + columns * column_stride + 1)
        .half()
        .as_strided((rows, columns), (row_stride, column_stride))
    )


A, B, C = matrix(8, 16), matrix(16, 8), matrix(8, 8)


@pytest.mark.parametrize(
    ("a", "b", "out"),
    [
        (A, B, C),
        (B.t(), A.t(), C.t()),
        (matrix(3, 13, gap=3), matrix(13, 8), matrix(3, 8)),  # K and M are free
        (matrix(8, 1).expand(8, 16)[:, :1], matrix(1, 8), C),
        (strided(1, 16, 17, 1), B, strided(1, 8, 3, 1)),
        (strided(16, 1, 1, 5).t(), strided(16, 1, 1, 3), strided(1, 1, 5, 3)),
        (torch.zeros(3, 8, 16).half(), B, torch.zeros(3, 8, 8).half()),
        (A.expand(3, 8, 16), torch.zeros(3, 16, 8).half(), torch.zeros(3, 8, 8).half().mT),
    ],
)
def test_the_copy_engine_takes_both_layouts_and_any_extent_it_need_not_store(
    a: torch.Tensor, b: torch.Tensor, out: torch.Tensor
) -> None:
    problem = Problem.from_tensors(a, b, out)
    assert tma_rule("a", problem.a) is None
    assert tma_rule("b", problem.b) is None
    if problem.N % 8 == 0:
        assert vector_rule(problem) is None


@pytest.mark.parametrize(
    ("a", "b", "out", "found"),
    [
        (A, matrix(16, 9, gap=7), matrix(8, 9, gap=7), "N must be a multiple of 8, found N = 9"),
        (matrix(9, 16), B, matrix(8, 9, gap=7).t(), "M must be a multiple of 8, found M = 9"),
        (matrix(8, 16, gap=4), B, C, "row stride of a must be a multiple of 8 elements for TMA, found 20"),
        (matrix(16, 8, gap=1).t(), B, C, "column stride of a must be a multiple of 8 elements for TMA, found 9"),
        (A, matrix(16, 8, gap=1), C, "row stride of b must be a multiple of 8 elements for TMA, found 9"),
        (A, B, matrix(8, 8, gap=7), "row stride of out must be a multiple of 8 elements for TMA, found 15"),
        (matrix(8, 16, offset=4), B, C, "first element of a must lie on a 16-byte boundary for TMA, found one of 8"),
        (A, matrix(16, 8, offset=1), C, "found one of 2 bytes"),
        (A, B, matrix(8, 8, offset=2), "first element of out must lie on a 16-byte boundary"),
        (matrix(1, 16).expand(8, 16), B, C, "the row stride of a must not be 0 for TMA"),
        (A, strided(16, 8, 1, 0), C, "the column stride of b must not be 0 for TMA"),
        (strided(8, 16, 8, 1), B, C, "the rows of a must not overlap for TMA, found 8"),
        (A, strided(16, 8, 32, 2), C, "TMA needs rows or columns of neighbouring elements in b, found strides (32, 2)"),
        (
            torch.zeros(2, 8, 16).half(),
            strided(2, 8 * 20, 164, 1).as_strided((2, 16, 8), (164, 8, 1)),
            torch.zeros(2, 8, 8).half(),
            "the batch stride of b must be a multiple of 8 elements for TMA, found 164",
        ),
        (torch.zeros(2, 3, 8, 16).half(), B, torch.zeros(2, 3, 8, 8).half(), "found a batch of shape (2, 3)"),
    ],
)
def test_what_the_copy_engine_cannot_address_is_named(
    a: torch.Tensor, b: torch.Tensor, out: torch.Tensor, found: str
) -> None:
    assert found in (vector_rule(Problem.from_tensors(a, b, out)) or "")


def test_a_stride_of_2_to_the_40_bytes_is_too_long_for_the_copy_engine() -> None:
    for operand in (Operand(8, 16, 2**39, 1, 16), Operand(16, 8, 1, 2**39, 16), Operand(8, 16, 16, 1, 16, 2**39)):
        assert "must be below 2^40 bytes for TMA, found 1,099,511,627,776 bytes" in (tma_rule("a", operand) or "")
    assert tma_rule("a", Operand(8, 16, 2**39 - 8, 1, 16)) is None


def test_only_one_batch_dimension_and_32_bit_extents() -> None:
    wide = torch.zeros(1, 1, 1).half()
    for shape, rule in (((7, LARGEST_EXTENT), None), ((7, LARGEST_EXTENT + 1), "M must be at most 2,147,483,391")):
        a = wide.expand(shape[0], shape[1], 1)
        found = extent_rule(Problem.from_tensors(a, wide[0], wide.expand(shape[0], shape[1], 1)))
        assert found is None if rule is None else rule in (found or "")
    batches = Problem.from_tensors(wide.expand(LARGEST_EXTENT + 1, 1, 1), wide[0])
    assert "the batch must be at most" in (extent_rule(batches) or "")
    assert batch_rule(batches) is None
    assert "(2, 3)" in (batch_rule(Problem.from_tensors(wide.expand(2, 3, 1, 1), wide[0])) or "")
