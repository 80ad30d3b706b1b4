"""Descriptors that the host makes, on a GPU: by tensors, by addresses that change, in a graph; each time exact."""

from concurrent.futures import ThreadPoolExecutor

import pytest
import torch
from taken_by_triton import taken

import hgemm
from hgemm.backends import Backend, get
from hgemm.problem import LAYOUTS, Problem
from hgemm.reference import exact_integers
from hgemm.triton_kernels import tma
from hgemm.triton_kernels.configs import DESCRIBED_BY_PROGRAMS, TMA
from hgemm.triton_kernels.specialized_configs import is_specialized
from hgemm.triton_kernels.tensor_maps import MOST_KEPT

pytestmark = pytest.mark.gpu

CONFIGS = [
    entry.config.name
    for entry in TMA.configs
    if not is_specialized(entry.config.name) and entry.config.name not in DESCRIBED_BY_PROGRAMS
]
DTYPES = (torch.float16, torch.bfloat16)


@pytest.fixture(params=CONFIGS)
def config(request: pytest.FixtureRequest) -> str:
    return taken(request.param)


@pytest.fixture
def record() -> Backend:
    return get("triton")


def product(M: int, N: int, K: int, dtype: torch.dtype, layout: str) -> tuple[torch.Tensor, ...]:
    a, b, expected = exact_integers(M, N, K, dtype, "cuda", torch.Generator("cuda").manual_seed(M + K))
    a = a.t().contiguous().t() if layout[0] == "t" else a
    b = b.t().contiguous().t() if layout[1] == "t" else b
    return a, b, expected


def test_a_thread_that_has_no_context_yet(record: Backend, config: str) -> None:
    """It makes no stream and compiles nothing, which would give it one; `out` is new, so that a map is encoded."""
    a, b, expected = product(264, 520, 136, torch.bfloat16, "nn")
    hgemm.matmul(a, b, backend="triton", config=config)
    out = torch.full_like(expected, torch.nan)
    with ThreadPoolExecutor(1) as pool:
        pool.submit(hgemm.matmul, a, b, backend="triton", config=config, out=out).result()
    assert torch.equal(out, expected)


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_less_and_more_than_a_tile_and_a_ring(record: Backend, config: str, dtype: torch.dtype, layout: str) -> None:
    """By address and by tensors: one row, a K within a box, ragged edges, several tiles."""
    tile = TMA.find(config).config
    ring = tile.stages * tile.tile_k
    for M, N, K in (
        (1, 8, 8),
        (8, 24, tile.tile_k + 8),
        (tile.tile_m + 8, tile.tile_n + 8, ring + 8),
        (200, 1032, 2056),
    ):
        if layout[0] == "t" and M % 8:
            continue
        a, b, expected = product(M, N, K, dtype, layout)
        room = torch.full((2, M + 1, N + 8), torch.nan, dtype=dtype, device="cuda")
        by_tensor, by_address = room[0, :M, :N], room[1, :M, :N]
        record.run(a, b, by_tensor, config)
        launch = record.launcher_at(Problem.from_tensors(a, b, by_tensor), config)
        assert launch is not None, "this Triton is not launched by address"
        launch(a.data_ptr(), b.data_ptr(), by_address.data_ptr())
        assert torch.equal(by_tensor, expected), (M, N, K)
        assert torch.equal(by_address, expected), (M, N, K)
        assert room[:, M:].isnan().all()
        assert room[:, :, N:].isnan().all()


def test_more_addresses_than_are_kept(record: Backend, config: str) -> None:
    a, b, expected = product(16, 1032, 520, torch.bfloat16, "nt")
    launch = record.launcher_at(Problem.from_tensors(a, b, expected), config)
    assert launch is not None
    outs = torch.empty(MOST_KEPT + 8, 16, 1032, dtype=torch.bfloat16, device="cuda")
    for _ in range(2):
        outs.fill_(torch.nan)
        for out in outs:
            launch(a.data_ptr(), b.data_ptr(), out.data_ptr())
        assert (outs == expected).all()


def test_a_graph_keeps_what_it_was_given(record: Backend, config: str) -> None:
    a, b, expected = product(16, 1032, 520, torch.float16, "nn")
    outs = torch.full((2, 16, 1032), torch.nan, dtype=torch.float16, device="cuda")
    launch = record.launcher_at(Problem.from_tensors(a, b, outs[0]), config)
    assert launch is not None
    record.run(a, b, outs[0], config)
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        record.run(a, b, outs[0], config)
        launch(a.data_ptr(), b.data_ptr(), outs[1].data_ptr())
    for out in torch.empty(MOST_KEPT + 8, *expected.shape, dtype=torch.float16, device="cuda"):
        launch(a.data_ptr(), b.data_ptr(), out.data_ptr())  # their tensor maps take the places of those captured
    outs.fill_(torch.nan)
    graph.replay()
    torch.cuda.synchronize()
    assert (outs == expected).all()


def test_no_scratch_memory_is_asked_for(record: Backend, config: str) -> None:
    record.run(*product(16, 1032, 520, torch.float16, "nn"), config)
    forms = [form.kernel.metadata for key, form in tma._launcher.forms.items() if config in key and key[5] is False]
    assert forms
    assert {metadata.global_scratch_size for metadata in forms} == {0}
