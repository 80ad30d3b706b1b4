"""Backends that take addresses instead of tensors: which ones they are given, and for which products."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from types import SimpleNamespace

import pytest
import torch
from torch import Tensor

import hgemm
from hgemm.backends import _registered, register_backend
from hgemm.problem import Problem


@pytest.fixture
def bound() -> list[SimpleNamespace]:
    """Registers ``bound``, which notes each binding and the addresses of its launches."""
    bindings: list[SimpleNamespace] = []

    def bind_at(problem: Problem, config: str | None) -> Callable[[int, int, int], None]:
        binding = SimpleNamespace(problem=problem, config=config, launches=[])
        bindings.append(binding)
        return lambda a, b, out: binding.launches.append((a, b, out))

    def by_tensor(a: Tensor, b: Tensor, out: Tensor, config: str | None) -> None:
        raise AssertionError("it needs no tensors")

    record = register_backend("bound", by_tensor, configs=("one", "two"))
    _registered["bound"] = dataclasses.replace(record, bind_at=bind_at)
    return bindings


def matrix(rows: int = 8, columns: int = 16, dtype: torch.dtype = torch.float16) -> Tensor:
    return torch.zeros(rows, columns, dtype=dtype)


def addresses(*tensors: Tensor) -> tuple[int, ...]:
    return tuple(tensor.data_ptr() for tensor in tensors)


def test_a_binding_is_kept_and_gets_the_addresses_of_each_call(bound: list[SimpleNamespace]) -> None:
    calls = [(matrix(), matrix(16, 24), matrix(8, 24)) for _ in range(3)]
    for a, b, out in calls:
        assert hgemm.matmul(a, b, backend="bound", out=out) is out
    (binding,) = bound
    assert binding.launches == [addresses(*call) for call in calls]
    assert binding.problem == Problem.from_tensors(*calls[0])
    assert binding.config == "one"


def test_without_out_there_is_a_new_tensor_each_time(bound: list[SimpleNamespace]) -> None:
    a, b = matrix(dtype=torch.bfloat16), torch.nn.Parameter(matrix(16, 24, torch.bfloat16), requires_grad=False)
    products = [hgemm.matmul(a, b, backend="bound") for _ in range(2)]
    products.append(hgemm.matmul(b.t(), a.t(), backend="bound"))
    launches = [launch for binding in bound for launch in binding.launches]
    assert launches == [addresses(a, b, product) for product in products[:2]] + [addresses(b, a, products[2])]
    for product, shape in zip(products, [(8, 24), (8, 24), (24, 8)], strict=True):
        assert type(product) is Tensor
        assert (product.shape, product.stride()) == (shape, (shape[1], 1))
        assert (product.dtype, product.requires_grad) == (torch.bfloat16, False)


def test_a_binding_is_not_taken_for_another_problem(bound: list[SimpleNamespace]) -> None:
    """One thing differs at a time; what is left to the launch is told by nothing but an address."""
    flat = torch.zeros(4096).half()

    def view(rows: int, columns: int, stride: tuple[int, int], offset: int = 0) -> Tensor:
        return flat.as_strided((rows, columns), stride, offset)

    a, b, out = view(8, 16, (16, 1)), view(16, 8, (8, 1), 1024), view(8, 8, (8, 1), 2048)
    calls: list[tuple[Tensor, Tensor, Tensor | None]] = [
        (a, b, out),
        (a, b, None),
        (view(8, 16, (24, 1)), b, out),  # strides
        (view(8, 16, (1, 8)), b, out),
        (a, view(16, 8, (1, 16), 1024), out),
        (a, b, view(8, 8, (1, 8), 2048)),
        (view(8, 16, (16, 1), 1), b, out),  # alignments
        (a, view(16, 8, (8, 1), 1028), out),
        (a, b, view(8, 8, (8, 1), 2050)),
        (view(9, 16, (16, 1)), b, view(9, 8, (8, 1), 2048)),  # shapes
        (view(8, 24, (24, 1)), view(24, 8, (8, 1), 1024), out),
    ]
    for _ in range(2):
        for left, right, target in calls:
            hgemm.matmul(left, right, backend="bound", out=target)
    hgemm.matmul(a, b, backend="bound", config="two", out=out)
    hgemm.matmul(*(x.bfloat16() for x in (a, b)), backend="bound", out=out.bfloat16())
    assert [len(binding.launches) for binding in bound] == [2] * len(calls) + [1, 1]
    for binding, (left, right, target) in zip(bound, calls, strict=False):
        assert binding.problem == Problem.from_tensors(left, right, target)
        for launch in binding.launches:
            assert launch[:2] == addresses(left, right)
    assert [bound[-2].config, bound[-1].problem.dtype] == ["two", torch.bfloat16]


def test_batches_that_are_looped_over_are_launches_at_their_addresses(bound: list[SimpleNamespace]) -> None:
    a = torch.zeros(3, 2, 8, 16).half().transpose(0, 1)  # [2, 3]: no stride runs through both
    b = torch.zeros(2, 3, 16, 24).half()
    for out in (torch.zeros(2, 3, 8, 24).half(), None):
        product = hgemm.matmul(a, b, backend="bound", out=out)
        (binding,) = bound
        assert binding.problem.batch == (3,)
        assert binding.launches == [addresses(a[i], b[i], product[i]) for i in range(2)]
        bound.clear()


def test_out_is_known_to_have_been_written(bound: list[SimpleNamespace]) -> None:
    a, b, out = matrix(), matrix(16, 24), matrix(8, 24)
    versions = [out._version]
    for _ in range(2):
        hgemm.matmul(a, b, backend="bound", out=out)
        versions.append(out._version)
    assert versions == [0, 1, 2]
    assert (a._version, b._version) == (0, 0)


def test_memory_that_is_shared_is_found_before_the_launch(bound: list[SimpleNamespace]) -> None:
    flat = torch.zeros(1024).half()
    a, b = flat[:64].view(8, 8), flat[64:128].view(8, 8)
    hgemm.matmul(a, b, backend="bound", out=flat[128:192].view(8, 8))
    for offset, name in ((0, "a"), (56, "a"), (64, "b"), (120, "b")):
        with pytest.raises(ValueError, match=f"out shares memory with {name}"):
            hgemm.matmul(a, b, backend="bound", out=flat[offset : offset + 64].view(8, 8))
    assert len(bound[0].launches) == 1
