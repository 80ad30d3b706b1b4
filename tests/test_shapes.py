"""Shapes and strides as torch.matmul has them, and what of them reaches a backend: the same memory, folded."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

import hgemm

SHAPES = [
    ((5,), (5,)),
    ((5,), (5, 3)),
    ((4, 5), (5,)),
    ((4, 5), (5, 3)),
    ((1, 5), (5, 1)),
    ((4, 1), (1, 3)),
    ((2, 4, 5), (5, 3)),
    ((2, 4, 5), (5,)),
    ((5,), (2, 3, 5, 4)),
    ((4, 5), (2, 5, 3)),
    ((2, 4, 5), (2, 5, 3)),
    ((2, 1, 4, 5), (3, 5, 3)),
    ((6, 1, 2, 4, 5), (1, 3, 2, 5, 3)),
    ((1, 1, 1, 5), (1, 5, 1)),
    ((7, 1, 4, 1), (1, 3)),
]
GENERATOR = torch.Generator().manual_seed(0)
Seen = list[tuple[Tensor, Tensor, Tensor]]


def integers(*shape: int) -> Tensor:
    return torch.randint(-4, 5, shape, generator=GENERATOR).half()


@pytest.fixture(autouse=True)
def seen() -> Seen:
    """Registers ``mine``, in fp64; returns what it was given."""
    calls: Seen = []

    def fp64(a: Tensor, b: Tensor, out: Tensor, config: str | None) -> None:
        calls.append((a, b, out))
        out.copy_(a.double() @ b.double())

    hgemm.register_backend("mine", fp64)
    return calls


def reversed_in_memory(x: Tensor) -> Tensor:
    """The same elements, the first dimension the fastest."""
    order = tuple(range(x.dim()))[::-1]
    return x.permute(order).contiguous().permute(order)


@pytest.mark.filterwarnings("error")
@pytest.mark.parametrize("backend", ["mine", "torch", "auto"])
@pytest.mark.parametrize(("shape_a", "shape_b"), SHAPES)
def test_every_shape_in_every_order_of_memory(
    shape_a: tuple[int, ...], shape_b: tuple[int, ...], backend: str, seen: Seen
) -> None:
    a, b = integers(*shape_a), integers(*shape_b)
    expected = torch.matmul(a.double(), b.double()).half()
    for left in (a, reversed_in_memory(a)):
        for right in (b, reversed_in_memory(b)):
            product = hgemm.matmul(left, right, backend=backend)
            assert product.shape == expected.shape
            assert product.is_contiguous()
            assert torch.equal(product, expected)
            for out in (torch.full_like(expected, torch.nan), reversed_in_memory(torch.full_like(expected, torch.nan))):
                assert hgemm.matmul(left, right, backend=backend, out=out) is out
                assert torch.equal(out, expected)
    for tensors in seen:
        assert len({tensor.dim() for tensor in tensors}) == 1
        assert tensors[0].dim() in (2, 3)


def test_operands_lie_where_they_lay(seen: Seen) -> None:
    a, b = integers(2, 4, 6)[:, 1:3, 1:], integers(3, 5).t()
    hgemm.matmul(a, b, backend="mine")
    for given, wanted in zip(seen[0], (a, b), strict=False):
        storage, own = given.untyped_storage(), wanted.untyped_storage()
        assert storage.data_ptr() == own.data_ptr()
        assert given.storage_offset() == wanted.storage_offset()


@pytest.mark.parametrize(
    ("a", "b", "shapes", "launches"),
    [
        (integers(2, 4, 5), integers(5, 3), ((8, 5), (5, 3), (8, 3)), 1),
        (integers(2, 3, 4, 5), integers(5), ((24, 5), (5, 1), (24, 1)), 1),
        (integers(2, 3, 1, 5), integers(5, 3), ((6, 5), (5, 3), (6, 3)), 1),
        (integers(2, 4, 5), integers(5, 3).expand(2, 5, 3), ((8, 5), (5, 3), (8, 3)), 1),
        (integers(4, 3, 2, 5), integers(4, 3, 5, 2), ((12, 2, 5), (12, 5, 2), (12, 2, 2)), 1),
        (integers(4, 5), integers(2, 5, 3), ((2, 4, 5), (2, 5, 3), (2, 4, 3)), 1),
        (integers(2, 8, 5)[:, :4], integers(5, 3), ((2, 4, 5), (2, 5, 3), (2, 4, 3)), 1),
        (integers(2, 7, 3, 4).mT.mT.transpose(1, 2), integers(2, 3, 4, 5), ((3, 7, 4), (3, 4, 5), (3, 7, 5)), 2),
        (integers(6, 1, 4, 5), integers(3, 5, 2), ((6, 4, 5), (6, 5, 2), (6, 4, 2)), 3),
    ],
)
def test_batches_become_rows_or_one_batch_or_a_loop(
    a: Tensor, b: Tensor, shapes: tuple[tuple[int, ...], ...], launches: int, seen: Seen
) -> None:
    expected = torch.matmul(a.double(), b.double()).half()
    assert torch.equal(hgemm.matmul(a, b, backend="mine"), expected)
    assert [tuple(tuple(tensor.shape) for tensor in tensors) for tensors in seen] == [shapes] * launches


def test_a_loop_is_held_to_the_rules_of_its_worst_launch() -> None:
    """The first of three launches is aligned to 16 bytes, the second to 2."""
    hgemm.register_backend(
        "aligned",
        lambda a, b, out, config: None,
        accepts=lambda problem, config: None if problem.a.alignment == 16 else f"found {problem.a.alignment} bytes",
    )
    a = torch.zeros(4000).half().as_strided((3, 1, 4, 8), (41, 0, 8, 1))
    hgemm.matmul(a[:1], torch.zeros(5, 8, 8).half(), backend="aligned")
    with pytest.raises(hgemm.UnsupportedProblem, match="found 2 bytes"):
        hgemm.matmul(a, torch.zeros(5, 8, 8).half(), backend="aligned")


def test_writes_stay_inside_the_view() -> None:
    a, b = integers(2, 3, 4, 5), integers(3, 5, 6)
    expected = torch.matmul(a.double(), b.double()).half()
    memory = torch.full((2, 5, 8, 9), torch.nan).half()
    for out in (memory[:, 1:4, 2:6, 1:7], memory[:, 1:4, 2:8, 1:5].mT):
        memory.fill_(torch.nan)
        hgemm.matmul(a, b, backend="mine", out=out)
        assert torch.equal(out, expected)
        assert int(memory.isnan().sum()) == memory.numel() - expected.numel()


@pytest.mark.parametrize("backend", ["mine", "torch", "auto"])
@pytest.mark.parametrize(
    ("shape_a", "shape_b"),
    [
        ((0,), (0,)),
        ((3, 0), (0, 2)),
        ((0, 3), (3,)),
        ((2, 0, 3), (3, 4)),
        ((0, 2, 3), (3, 4)),
        ((2, 3, 0), (0, 4)),
        ((2, 1, 3, 4), (0, 4, 2)),
    ],
)
def test_empty_products_of_every_rank(
    shape_a: tuple[int, ...], shape_b: tuple[int, ...], backend: str, seen: Seen
) -> None:
    a, b = integers(*shape_a), integers(*shape_b)
    expected = torch.matmul(a, b)
    assert torch.equal(hgemm.matmul(a, b, backend=backend), expected)
    out = torch.full_like(expected, torch.nan)
    assert torch.equal(hgemm.matmul(a, b, backend=backend, out=out), expected)
    assert not seen


def test_more_elements_than_32_bits_count() -> None:
    """Of expanded views: their extents pass 2^31, their memory does not."""
    a, b = torch.ones(16).half().expand(2**28, 16), torch.ones(16, 16).half()
    assert hgemm.explain(a, b).backend == "torch"
    with pytest.raises(ValueError, match="two elements of out"):
        hgemm.matmul(a, b, backend="mine", out=torch.empty(16).half().expand(2**28, 16))
