"""Products of few rows: where in K each column of tiles begins, by sums that depend on the order of their terms."""

import pytest
import torch

import hgemm
from hgemm.config import Config

LARGE = 2.0**24  # to which 1 can be added without an effect in fp32


def in_order_from(first: int, steps: int, terms: torch.Tensor) -> float:
    """The fp32 sum of a term for each step of K, from the step ``first`` on and round."""
    total = torch.tensor(0.0)
    for step in range(first, first + steps):
        total = total + terms[step % steps]
    return float(total)


@pytest.mark.parametrize(
    ("backend", "name"),
    [
        ("cuda_tma", "16x64x64_s7_w16x16"),
        ("cuda_tma", "32x64x128_s4_w32x16"),
        ("triton", "16x64x128_s5_w16x16"),
        ("triton", "32x128x128_s3_w32x32"),
    ],
)
@pytest.mark.parametrize("steps", [7, 10])
def test_each_column_of_tiles_begins_five_steps_further_on(backend: str, name: str, steps: int) -> None:
    config, columns = Config.parse(name), 4
    # One element of each step: 2^24 in the first, 1 in those between, -2^24 in the last but one. The ones that come
    # between the two large numbers are lost.
    terms = torch.ones(steps)
    terms[0], terms[-2] = LARGE, -LARGE
    a = torch.zeros(3, steps * config.tile_k, dtype=torch.bfloat16)
    a[:, :: config.tile_k] = terms.bfloat16()
    b = torch.ones(a.shape[1], columns * config.tile_n, dtype=torch.bfloat16)
    product = hgemm.matmul(a, b, backend=backend, config=name)
    expected = [in_order_from(5 * column % steps, steps, terms) for column in range(columns)]
    assert len(set(expected)) > 1
    assert torch.equal(product.float(), torch.tensor(expected).repeat_interleave(config.tile_n).expand(3, -1))
