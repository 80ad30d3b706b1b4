"""Products bound once and launched by address, on a GPU: the bits of a launch by tensor, for any alignment, device,
stream and configuration."""

from __future__ import annotations

import gc
import itertools

import pytest
import torch
from torch import Tensor

from hgemm.backends import Backend, get
from hgemm.launches import problem_of

pytestmark = pytest.mark.gpu

NAMES = ("cuda_cp_async", "cuda_tma", "triton_pointer", "triton", "triton_mma_sync", "triton_gluon")
DEVICES = [f"cuda:{index}" for index in range(torch.cuda.device_count())]


@pytest.fixture(params=NAMES)
def backend(request: pytest.FixtureRequest) -> Backend:
    record = get(request.param)
    if reason := record.unavailable("cuda"):
        pytest.skip(reason)
    return record


def place(rows: int, columns: int, offset: int, turned: bool, device: str, seed: int) -> Tensor:
    """A matrix of numbers that are exact in fp16, ``offset`` elements behind a boundary of 16 bytes."""
    generator = torch.Generator().manual_seed(seed)
    memory = torch.randint(-4, 5, (rows * columns + 8,), generator=generator).half().to(device)
    shape = (columns, rows) if turned else (rows, columns)
    matrix = memory[offset : offset + rows * columns].view(shape)
    return matrix.t() if turned else matrix


def compared(backend: Backend, config: str | None, tensors: tuple[Tensor, Tensor, Tensor]) -> bool:
    """Whether there was something to compare."""
    problem = problem_of(*tensors)
    config = config or backend.choose(problem)
    if backend.refuses(problem, config):
        return False
    a, b, out = tensors
    launch = backend.launcher_at(problem, config)
    assert launch is not None, "this Triton is not known to triton_kernels.launcher"
    backend.run(a, b, out.fill_(torch.nan), config)
    expected = out.clone()
    assert torch.equal(expected, (a.double() @ b.double()).half())
    before = torch.cuda.current_device()
    launch(a.data_ptr(), b.data_ptr(), out.fill_(torch.nan).data_ptr())
    assert torch.cuda.current_device() == before
    assert torch.equal(out, expected)
    return True


def test_any_alignment_layout_and_device(backend: Backend) -> None:
    count = 0
    for number, (offset, turned, device) in enumerate(
        itertools.product(((0, 0, 0), (1, 0, 0), (0, 2, 0), (0, 0, 4), (3, 5, 7)), range(8), DEVICES)
    ):
        sizes = ((40, 24, 72), (33, 56, 17), (130, 136, 264))[number % 3]
        M, N, K = sizes
        shapes = ((M, K), (K, N), (M, N))
        tensors = [place(*shape, offset[i], bool(turned >> i & 1), device, number) for i, shape in enumerate(shapes)]
        count += compared(backend, None, (tensors[0], tensors[1], tensors[2]))
    assert count >= 4


def test_every_configuration(backend: Backend) -> None:
    for config in backend.configs:
        tensors = [place(*shape, 0, False, "cuda", 1) for shape in ((200, 520), (520, 136), (200, 136))]
        assert compared(backend, config, (tensors[0], tensors[1], tensors[2])), config


def test_a_graph_of_launches_by_address(backend: Backend) -> None:
    a, b, out = (place(*shape, 0, False, "cuda", 2) for shape in ((72, 264), (264, 136), (72, 136)))
    launch = backend.launcher_at(problem_of(a, b, out), config := backend.choose(problem_of(a, b, out)))
    assert launch is not None
    addresses = a.data_ptr(), b.data_ptr(), out.data_ptr()
    launch(*addresses)
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        launch(*addresses)
        launch(*addresses)
    for seed in (3, 4):
        a.copy_(place(72, 264, 0, False, "cuda", seed))
        out.fill_(torch.nan)
        taken = [torch.full((1 << 18,), torch.nan, device="cuda") for _ in range(8)]
        graph.replay()
        torch.cuda.synchronize()
        del taken
        assert torch.equal(out, (a.double() @ b.double()).half()), config


def test_a_binding_outlives_what_it_was_bound_with(backend: Backend) -> None:
    first = tuple(place(*shape, 0, False, "cuda", 5) for shape in ((72, 264), (264, 136), (72, 136)))
    launch = backend.launcher_at(problem_of(*first), backend.choose(problem_of(*first)))
    assert launch is not None
    del first
    gc.collect()
    torch.cuda.empty_cache()
    side = torch.cuda.Stream()
    for seed in range(20):
        a, b, out = (place(*shape, 0, False, "cuda", seed) for shape in ((72, 264), (264, 136), (72, 136)))
        side.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(side):
            launch(a.data_ptr(), b.data_ptr(), out.fill_(torch.nan).data_ptr())
        side.synchronize()
        assert torch.equal(out, (a.double() @ b.double()).half())
