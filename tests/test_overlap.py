"""Whether two tensors, or two elements of one, are the same memory: exact for any strides."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from hgemm.arguments import overlap, overlaps_itself


@pytest.mark.parametrize("seed", range(10))
def test_overlap_of_column_ranges_is_exact(seed: int) -> None:
    """Of matrices with rows of one length, which may run over its end."""
    memory = torch.zeros(600).half()
    generator = torch.Generator().manual_seed(seed)
    for _ in range(100):
        stride = int(torch.randint(1, 20, (), generator=generator))
        views, places = [], []
        for _ in range(2):
            rows, columns, offset = (int(torch.randint(1, high, (), generator=generator)) for high in (6, 20, 60))
            views.append(memory.as_strided((rows, columns), (stride, 1), offset))
            places.append({offset + i * stride + j for i in range(rows) for j in range(columns)})
        assert overlap(*views) == bool(places[0] & places[1])


@pytest.mark.parametrize("seed", range(20))
def test_overlap_with_itself_is_exact(seed: int) -> None:
    generator = torch.Generator().manual_seed(seed)

    def numbers(low: int, high: int) -> list[int]:
        return torch.randint(low, high, (3,), generator=generator).tolist()

    for _ in range(50):
        shape, stride = numbers(0, 5), numbers(0, 14)
        memory = torch.zeros(200).half()
        places = [
            i * stride[0] + j * stride[1] + k * stride[2]
            for i in range(shape[0])
            for j in range(shape[1])
            for k in range(shape[2])
        ]
        assert overlaps_itself(memory.as_strided(shape, stride)) == (len(set(places)) < len(places))


@pytest.mark.parametrize("seed", range(20))
def test_overlap_of_slices_of_one_array_is_exact(seed: int) -> None:
    generator = torch.Generator().manual_seed(seed)

    def number(low: int, high: int) -> int:
        return int(torch.randint(low, high, (), generator=generator))

    for _ in range(50):
        memory = torch.arange(5 * 4 * 6 * 3).view(5, 4, 6, 3).permute(torch.randperm(4, generator=generator).tolist())
        views, places = [], []
        for _ in range(2):
            view = memory
            for dimension in range(4):
                first = number(0, view.shape[dimension])
                view = view.narrow(dimension, first, number(1, view.shape[dimension] - first + 1))
            view = view[:: number(1, 3), ..., :: number(1, 3)]
            views.append(view.select(number(0, 4), 0) if number(0, 2) else view)
            places.append(set(views[-1].flatten().tolist()))
        assert overlap(*views) == bool(places[0] & places[1])


def test_slices_of_one_array_are_told_apart_without_a_look_at_each_element(monkeypatch: pytest.MonkeyPatch) -> None:
    packed = torch.ones(2, 16, 3, 4, 8).half()  # batch, token, which of three, head, element
    q, k, v = packed.transpose(1, 3).unbind(2)
    monkeypatch.setattr(torch, "zeros", None)  # of which each element would be marked
    assert not overlap(q, k)
    assert not overlap(v, k)
    assert not overlap(q[:, 1], q[:, 2])
    assert not overlap(q[:, :, :1].expand(2, 4, 16, 8), k)
    assert not overlap(packed[:, :, 0], packed[..., 1:, :, :])


@pytest.mark.parametrize("seed", range(40))
def test_overlap_is_exact(seed: int) -> None:
    """Against the sets of addresses themselves, for random views of one piece of memory."""
    memory = torch.zeros(400).half()
    generator = torch.Generator().manual_seed(seed)

    def number(low: int, high: int) -> int:
        return int(torch.randint(low, high, (), generator=generator))

    def view() -> tuple[Tensor, set[int]]:
        rows, columns, row_stride, column_stride = number(0, 6), number(0, 6), number(0, 30), number(0, 4)
        offset = number(0, 200)
        places = {offset + i * row_stride + j * column_stride for i in range(rows) for j in range(columns)}
        return memory.as_strided((rows, columns), (row_stride, column_stride), offset), places

    for _ in range(25):
        (x, places_x), (y, places_y) = view(), view()
        assert overlap(x, y) == bool(places_x & places_y)
