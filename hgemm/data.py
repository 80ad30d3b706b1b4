"""The kinds of data that a backend is tried with, each chosen for what it shows.

``integers``    up to 4 in magnitude: exact in any order of summation
``signs``       -1, 0 and 1, sparse where K is large: a single wrong term shows
``one-hot``     a selects rows of b, which hold codes of their own places: a wrong element names its source
``identity``    b picks columns of a, each in its turn: what comes out is a's own elements, to the last bit
``normal``      for the bound, and for bitwise relations between products
``positive``    nothing cancels: what is lost in each addition adds up
``cancelling``  the second half of the terms takes back the first: the sum is small, its terms are not
``scaled``      rows and columns by powers of two
``subnormal``   elements below the smallest normal number
``ties``        sums half way between two numbers of the dtype, and one to each side
``limits``      sums around the largest finite number: finite below half a step beyond it, infinite from there on
``zeros``       signed zeros, and products that round to them
``nan, inf``    one in a: its row changes and no other; one inf in b: its column changes and no other
"""

from __future__ import annotations

import torch
from torch import Tensor

from hgemm.reference import EXACT_LIMIT, exact_integers, product_fp64

DATA = (
    *("integers", "signs", "one-hot", "normal", "positive"),
    *("identity", "cancelling", "scaled", "subnormal", "ties", "limits", "zeros", "nan", "inf"),
)
NOT_FINITE = ("limits", "nan", "inf")
_SUBNORMAL = {torch.float16: 2.0**-24, torch.bfloat16: 2.0**-133}


def values(
    data: str, M: int, N: int, K: int, dtype: torch.dtype, device: str, seed: int = 0
) -> tuple[Tensor, Tensor, Tensor | None]:
    """``a[M, K]``, ``b[K, N]`` and, where it is known bit for bit, their product."""
    generator = torch.Generator(device).manual_seed(M * 1_000_003 + N * 1_009 + K + seed)

    def random(rows: int, columns: int) -> Tensor:
        return torch.randn((rows, columns), device=device, generator=generator)

    if data in ("integers", "signs"):
        return exact_integers(M, N, K, dtype, device, generator, largest=4 if data == "integers" else 1)
    if data == "one-hot":
        return _one_hot(M, N, K, dtype, device, generator)
    if data == "subnormal":
        a, b, _ = exact_integers(M, N, K, dtype, device, generator, largest=1)
        a = (a.double() * _SUBNORMAL[dtype]).to(dtype)
        # What bf16 has for subnormals the sum has too, and may flush.
        return a, b, product_fp64(a, b).to(dtype) if dtype == torch.float16 else None
    if data in ("ties", "limits"):
        return _sums_of_two(data, M, N, K, dtype, device)
    if data == "zeros":
        signs = torch.where(random(M, 1) < 0, -1.0, 1.0)
        a = (signs * torch.zeros(M, K, device=device)).to(dtype)
        b = random(K, N).to(dtype)
        a[::2, 0] = (signs[::2, 0] * _SUBNORMAL[dtype]).to(dtype)
        b[0] = (torch.where(b[0] < 0, -1.0, 1.0) * 2.0**-10).to(dtype)
        return a, b, product_fp64(a, b).to(dtype)
    a, b = random(M, K), random(K, N)
    if data == "identity":
        source = torch.arange(K - N, K, device=device) % K  # the last column of a is the last one that comes out
        a = a.to(dtype)
        return a, torch.zeros_like(b, dtype=dtype).scatter_(0, source.unsqueeze(0), 1.0), a[:, source]
    if data == "positive":
        a, b = a.abs(), b.abs()
    elif data == "cancelling":
        half = K // 2
        a[:, half : 2 * half] = a[:, :half]
        b[half : 2 * half] = -b[:half]
    elif data == "scaled":
        a *= 2.0 ** torch.randint(-6, 5, (M, 1), device=device, generator=generator)
        b *= 2.0 ** torch.randint(-6, 5, (1, N), device=device, generator=generator)
    elif data == "nan":
        a[M // 2, K - 1] = torch.nan
    elif data == "inf":
        a[M // 2, K // 2] = torch.inf
        b[K - 1, N // 2] = -torch.inf
    return a.to(dtype), b.to(dtype), None


def _one_hot(
    M: int, N: int, K: int, dtype: torch.dtype, device: str, generator: torch.Generator
) -> tuple[Tensor, Tensor, Tensor]:
    """Each element of b holds a code of its own place, never 0; row i of a picks row source[i] of b, the last row the
    last one."""
    source = torch.randint(K, (M,), device=device, generator=generator)
    source[-1] = K - 1
    rows = torch.arange(K, device=device).unsqueeze(1)
    codes = (37 * rows + 101 * torch.arange(N, device=device)) % (EXACT_LIMIT[dtype] - 5) + 1
    b = codes.to(dtype)
    a = torch.zeros(M, K, dtype=dtype, device=device).scatter_(1, source.unsqueeze(1), 1.0)
    return a, b, b[source]


def _sums_of_two(data: str, M: int, N: int, K: int, dtype: torch.dtype, device: str) -> tuple[Tensor, Tensor, Tensor]:
    """The first term and the last: a large number, and none, one half, one and three halves of half its step."""
    if data == "ties":
        large, half = float(EXACT_LIMIT[dtype]), 1.0
    else:
        large = float(torch.finfo(dtype).max)
        half = large * torch.finfo(dtype).eps / 4 / (1 - torch.finfo(dtype).eps / 2)
    a = torch.zeros(M, K, dtype=torch.float64, device=device)
    rows, columns = torch.arange(M, device=device), torch.arange(N, device=device)
    a[:, 0] = large
    if K > 1:
        a[:, -1] = torch.tensor([0.0, half / 2, half, 1.5 * half], dtype=torch.float64, device=device)[rows % 4]
    b = torch.zeros(K, N, dtype=dtype, device=device)
    b[0] = b[-1] = torch.tensor([1.0, -1.0], device=device)[columns % 2].to(dtype)
    left = a.to(dtype)
    return left, b, product_fp64(left, b).to(dtype)
