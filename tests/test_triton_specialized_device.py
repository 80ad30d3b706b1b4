"""The specialised kernel on Hopper: every length of its ring, several tiles a block, shared tiles; again and again."""

import pytest
import torch
import triton
from taken_by_triton import taken

from hgemm.backends import Backend, get
from hgemm.problem import LAYOUTS, Problem
from hgemm.reference import exact_integers
from hgemm.triton_kernels import host_descriptors
from hgemm.triton_kernels.configs import TMA
from hgemm.triton_kernels.specialized_configs import SPECIALIZED
from hgemm.triton_kernels.tensor_maps import MOST_KEPT

pytestmark = pytest.mark.gpu


@pytest.fixture(params=SPECIALIZED)
def config(request: pytest.FixtureRequest) -> str:
    return taken(request.param)


@pytest.fixture
def record() -> Backend:
    return get("triton")


@pytest.mark.parametrize("layout", LAYOUTS)
def test_every_length_of_the_ring_is_exact_each_time(record: Backend, config: str, layout: str) -> None:
    tile = TMA.find(config).config
    ring = tile.stages * tile.tile_k
    generator = torch.Generator("cuda").manual_seed(3)
    for K in (8, tile.tile_k, tile.tile_k + 8, ring - 8, ring, ring + 8, 2 * ring, 9 * ring + 8):
        a, b, expected = exact_integers(520, 776, K, torch.bfloat16, "cuda", generator)
        a = a.t().contiguous().t() if layout[0] == "t" else a
        b = b.t().contiguous().t() if layout[1] == "t" else b
        for _ in range(20):
            out = torch.full_like(expected, torch.nan)
            record.run(a, b, out, config)
            assert torch.equal(out, expected), K


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16], ids=str)
def test_blocks_with_several_tiles_and_a_last_wave(record: Backend, config: str, dtype: torch.dtype) -> None:
    programs = torch.cuda.get_device_properties(0).multi_processor_count
    tile = TMA.find(config).config
    # Two waves and a half, and ragged edges. Of K also one step and two, in which the tile before is stored.
    M, N = 10 * tile.tile_m - 3, (programs // 4) * tile.tile_n - 8
    generator = torch.Generator("cuda").manual_seed(4)
    room = torch.full((M + 1, N + 8), torch.nan, dtype=dtype, device="cuda")
    for K in (8, tile.tile_k + 8, 2048):
        a, b, expected = exact_integers(M, N, K, dtype, "cuda", generator)
        for _ in range(5):
            out = room[:M, :N]
            record.run(a, b, out.fill_(torch.nan), config)
            assert torch.equal(out, expected), K
            assert room[M:].isnan().all()
            assert room[:, N:].isnan().all()


def test_parts_are_added_to_the_same_bits_each_time(record: Backend, config: str) -> None:
    generator = torch.Generator("cuda").manual_seed(5)
    a = torch.randn(300, 8192, generator=generator, device="cuda").bfloat16()
    b = torch.randn(8192, 1032, generator=generator, device="cuda").bfloat16()
    first = torch.empty(300, 1032, dtype=torch.bfloat16, device="cuda")
    record.run(a, b, first, config)
    exact = a.double() @ b.double()
    assert (first.double() - exact).abs().max() <= 2.0**-8 * exact.abs().max()
    for _ in range(20):
        again = torch.full_like(first, torch.nan)
        record.run(a, b, again, config)
        assert torch.equal(again, first)


def test_by_address_it_goes_to_tritons_c_function(
    record: Backend, config: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Tensor maps of more addresses than are kept, each used twice; where tiles are shared, in a workspace."""

    def slower(*_: object) -> None:
        raise AssertionError(f"Triton {triton.__version__} refused what it is given by address")

    generator = torch.Generator("cuda").manual_seed(6)
    for M, N, K in ((128, 256, 256), (300, 1032, 8192)):
        a, b, expected = exact_integers(M, N, K, torch.bfloat16, "cuda", generator)
        monkeypatch.setattr(host_descriptors.Launch, "_multiply_by_descriptors", slower)
        launch = record.launcher_at(Problem.from_tensors(a, b, expected), config)
        assert launch is not None
        outs = torch.empty(MOST_KEPT + 8, M, N, dtype=torch.bfloat16, device="cuda")
        for _ in range(2):
            outs.fill_(torch.nan)
            for out in outs:
                launch(a.data_ptr(), b.data_ptr(), out.data_ptr())
            assert (outs == expected).all()
