"""hgemm.check.verify: one product held to its bound, all of it or rows that are spread over it."""

from __future__ import annotations

import math

import pytest
import torch

from hgemm.check import SAMPLED_ROWS, verify
from hgemm.reference import exact_integers


def test_verify_holds_a_product_to_its_bound() -> None:
    a, b, c = exact_integers(64, 24, 40, torch.bfloat16, "cpu", torch.Generator().manual_seed(0))
    assert verify(a, b, c).passed
    assert verify(a, b, c).error_over_bound <= 1
    for row in (0, 31, 63):
        wrong = c.clone()
        wrong[row, 5] += 8
        assert not verify(a, b, wrong).passed
    wrong[0, 0] = math.nan
    assert verify(a, b, wrong).error_over_bound == math.inf


@pytest.mark.parametrize("M", [2 * SAMPLED_ROWS + 1, 1000, 8192])
def test_verify_of_a_large_product_looks_into_every_tile(M: int) -> None:
    a, b, c = exact_integers(M, 8, 8, torch.float16, "cpu", torch.Generator().manual_seed(0))
    assert verify(a, b, c).passed
    for row in range(M - 8, M):
        wrong = c.clone()
        wrong[row, -1] += 100
        assert not verify(a, b, wrong).passed, f"of the last 8 rows, {row} was not looked at"
    for start in range(0, M - 127, 97):
        wrong = c.clone()
        wrong[start : start + 128, 3] += 100
        assert not verify(a, b, wrong).passed, f"no row of a tile at {start} was looked at"


def test_verify_of_a_large_product_needs_fp64_for_few_rows_only(monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[tuple[int, bool]] = []

    def error_over_bound(a, b, c, rows=None, *, in_fp32=False, **_):
        seen.append((len(c) if rows is None else len(set(rows.tolist())), in_fp32))
        return 0.5

    monkeypatch.setattr("hgemm.check.error_over_bound", error_over_bound)
    a = torch.zeros(5000, 8).half()
    assert verify(a, a[:8, :8], a).error_over_bound == 0.5
    assert seen == [(SAMPLED_ROWS, False), (5000, True)]


def test_verify_of_a_large_product_sees_a_single_wrong_row() -> None:
    a, b, c = exact_integers(3000, 16, 256, torch.bfloat16, "cpu", torch.Generator().manual_seed(0))
    assert verify(a, b, c).passed
    for row in range(0, 3000, 101):
        wrong = c.clone()
        wrong[row, 7] += 200
        assert not verify(a, b, wrong).passed, f"row {row} was not looked at"


def test_verify_whatever_the_default_device() -> None:
    a, b, c = exact_integers(1000, 8, 8, torch.float16, "cpu", torch.Generator().manual_seed(0))
    with torch.device("meta"):
        assert verify(a, b, c).passed
        assert not verify(a, b, -c).passed
