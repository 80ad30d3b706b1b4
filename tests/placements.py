"""Matrices and batches of them, placed in memory in every way that a kernel may meet; around them lies NaN."""

from __future__ import annotations

import torch

BATCHES = 3
# How the elements lie: neighbours in a row without gaps; rows 8 elements longer, begun 8 elements into memory; rows of
# odd length, begun at an odd element; every other element, and rows of odd length.
FORMS = ("dense", "padded", "odd", "strided")
# One matrix; as many as the batch; one that all share, as a matrix, and as an expanded batch.
SHARINGS = ("none", "batch", "shared a", "shared b", "expanded b")


def place(values: torch.Tensor, letter: str, form: str) -> torch.Tensor:
    """A view with these values, ``n`` row by row or ``t`` column by column; of a batch the matrices lie interleaved
    with their rows in all forms but dense ones."""
    if letter == "t":
        return place(values.mT, "n", form).mT
    *batch, rows, columns = values.shape
    if form == "dense":
        view = torch.empty_like(values, memory_format=torch.contiguous_format)
    else:
        gap, start, step = {"padded": (8, 8, 1), "odd": (1 - columns % 2, 3, 1), "strided": (3, 1, 2)}[form]
        width = columns * step + gap
        extent = start + rows * width * (batch[0] if batch else 1) + 8
        arena = torch.full((extent,), torch.nan, dtype=values.dtype, device=values.device)
        if batch:
            size, strides = (batch[0], rows, columns), (width, width * batch[0], step)
        else:
            size, strides = (rows, columns), (width, step)
        view = arena.as_strided(size, strides, start)
    return view.copy_(values)


def integers(M: int, N: int, K: int, dtype: torch.dtype, sharing: str) -> tuple[torch.Tensor, torch.Tensor]:
    """Entries in [-4, 4], whose sums are exact in fp32, of a[M, K] and b[K, N], batched as ``sharing`` says."""
    generator = torch.Generator().manual_seed(M * N * K)
    lead_a = () if sharing in ("none", "shared a") else (BATCHES,)
    lead_b = () if sharing in ("none", "shared b", "expanded b") else (BATCHES,)
    a, b = (torch.randint(-4, 5, shape, generator=generator) for shape in ((*lead_a, M, K), (*lead_b, K, N)))
    return a.to(dtype), b.to(dtype)


def placed(
    shape: tuple[int, int, int],
    dtype: torch.dtype,
    layout: str,
    form: str,
    out_form: str,
    sharing: str,
    device: str = "cpu",
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor, torch.Tensor]:
    """a, b, an out of NaN, and what out should hold afterwards. ``out_form`` is a letter and a form: "t odd"."""
    M, N, K = shape
    values_a, values_b = integers(M, N, K, dtype, sharing)
    expected = (values_a.double() @ values_b.double()).to(dtype).to(device)
    values_a, values_b = values_a.to(device), values_b.to(device)
    a, b = place(values_a, layout[0], form), place(values_b, layout[1], form)
    if sharing == "expanded b":
        b = b.expand(BATCHES, K, N)
    letter, form_of_out = out_form.split()
    return a, b, place(torch.full_like(expected, torch.nan), letter, form_of_out), expected


def untouched(view: torch.Tensor) -> bool:
    """Whether all memory around a view that ``place`` made is still NaN."""
    memory = torch.empty(0, dtype=view.dtype, device=view.device).set_(view.untyped_storage())
    inside = torch.zeros(memory.shape, dtype=torch.bool, device=view.device)
    inside.as_strided(view.shape, view.stride(), view.storage_offset()).fill_(True)
    return bool(memory[~inside].isnan().all())
