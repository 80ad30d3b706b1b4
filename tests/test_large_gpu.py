"""Sizes that 32 bits do not count: more than 2^31 elements, and more tiles along an axis than a grid has room for."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import torch
from torch import Tensor

import hgemm
from hgemm.backends import TORCH, get
from hgemm.problem import UnsupportedProblem

pytestmark = pytest.mark.gpu
BACKENDS = (*(name for name in hgemm.backends().names if name != TORCH), "auto")
BLOCK = 2**13  # rows that are compared at a time
BYTES = 16 * 2**30


@pytest.fixture(params=BACKENDS)
def backend(request: pytest.FixtureRequest) -> Iterator[str]:
    name: str = request.param
    if name != "auto" and (reason := get(name).unavailable("cuda")):
        pytest.skip(reason)
    if torch.cuda.mem_get_info()[0] < BYTES:
        pytest.skip(f"needs {BYTES:,} bytes of free GPU memory")
    yield name
    torch.cuda.empty_cache()


def sparse(rows: int, columns: int) -> Tensor:
    """Integers up to 3 that change from row to row and column to column, one in 16 not 0: sums stay small."""
    matrix = torch.empty(rows, columns, device="cuda", dtype=torch.float16)
    across = torch.arange(columns, device="cuda")
    for start in range(0, rows, BLOCK):
        down = torch.arange(start, min(start + BLOCK, rows), device="cuda").unsqueeze(1)
        mixed = down * 7919 + across * 104729
        matrix[start : start + BLOCK] = torch.where(mixed % 16 == 0, mixed % 7 - 3, 0)
    return matrix


def check(backend: str, a: Tensor, b: Tensor) -> None:
    try:
        product = hgemm.matmul(a, b, backend=backend)
    except UnsupportedProblem as refusal:
        pytest.skip(str(refusal))
    for start in range(0, a.shape[0], BLOCK):
        rows = slice(start, start + BLOCK)
        expected = (a[rows].float() @ b.float()).half()
        assert torch.equal(product[rows], expected), f"rows from {start} on"


@pytest.mark.parametrize(
    ("M", "N", "K"),
    [
        (2**17 + 8, 24, 2**14 + 8),  # a has more than 2^31 elements
        (24, 2**17 + 8, 2**14 + 8),  # b
        (2**16 + 8, 2**15 + 8, 24),  # out
        (128 * 65536 + 8, 8, 16),  # more than 65,536 tiles along M
        (8, 256 * 65536 + 8, 16),  # and along N
    ],
)
def test_large_products(backend: str, M: int, N: int, K: int) -> None:
    check(backend, sparse(M, K), sparse(K, N))


def test_more_than_65535_matrices(backend: str) -> None:
    a, b = sparse(70_000 * 8, 16).view(70_000, 8, 16), sparse(70_000 * 16, 8).view(70_000, 16, 8)
    try:
        product = hgemm.matmul(a, b, backend=backend)
    except UnsupportedProblem as refusal:
        pytest.skip(str(refusal))
    assert torch.equal(product, (a.float() @ b.float()).half())


def test_a_row_stride_that_takes_a_small_matrix_past_2_31(backend: str) -> None:
    wide = sparse(2**15 + 8, 2**16 + 8)
    check(backend, wide[:, 2**16 - 56 :], sparse(64, 40))
