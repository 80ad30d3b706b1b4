"""Products whose K is cut among blocks, on a GPU: graphs, streams, and the bits of every run."""

import pytest
import torch

from hgemm.backends import get
from hgemm.reference import error_over_bound

pytestmark = pytest.mark.gpu

DEVICE = "cuda"
CUT = [name for name in get("cuda_tma").configs if "_split" in name or "_tail" in name]


@pytest.fixture(params=CUT)
def run(request):
    """Writes a @ b into out in one configuration."""
    record = get("cuda_tma")
    a, b, expected = integers(8, 8, 8)
    if reason := record.unavailable(DEVICE):
        pytest.skip(reason)
    from hgemm.problem import Problem

    if rule := record.accepts(Problem.from_tensors(a, b, expected), request.param):
        pytest.skip(rule)
    return lambda a, b, out: record.run(a, b, out, request.param)


def shape():
    """M, N, K with one tile of C more than there are multiprocessors, for the largest tiles, and a long K."""
    return 128 * torch.cuda.get_device_properties(0).multi_processor_count + 70, 264, 4104


def integers(M, N, K, seed=0):
    generator = torch.Generator(DEVICE).manual_seed(seed)
    a, b = (torch.randint(-4, 5, shape, device=DEVICE, generator=generator).half() for shape in ((M, K), (K, N)))
    return a, b, (a.double() @ b.double()).half()


def test_every_number_of_tiles_of_k_and_every_edge_is_exact(run):
    # Fewer tiles of K than parts, as many, and more; tiles of C that end within a slice, and a view of unaligned rows.
    for K in (8, 64, 72, 128, 200, 256, 328, 448, 512, 584, 1032):
        for M, N in ((1, 8), (17, 72), (130, 136), (200, 264)):
            a, b, expected = integers(M, N, K, seed=K)
            for row, first in ((N, 0), (N + 8, 8), (N + 3, 1)):
                memory = torch.full((M + 1, row + 8), -7.0, device=DEVICE).half()
                out = memory[:M, first : first + N]
                run(a, b, out)
                assert torch.equal(out, expected), (M, N, K, row)
                out.fill_(-7)
                assert (memory == -7).all(), (M, N, K, row)


def test_a_graph_is_replayed_on_new_inputs(run):
    a, b, expected = integers(*shape())
    outs = [torch.empty_like(expected) for _ in range(2)]
    run(a, b, outs[0])
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        for out in outs:  # the second may get the workspace of the first
            run(a, b, out)
    for seed in (1, 2):
        other_a, other_b, other = integers(*shape(), seed)
        a.copy_(other_a)
        b.copy_(other_b)
        for out in outs:
            out.fill_(torch.nan)
        for _ in range(3):
            graph.replay()
        torch.cuda.synchronize()
        assert all(torch.equal(out, other) for out in outs)


def test_products_on_two_streams_and_one_after_another(run):
    products = [integers(*shape(), seed) for seed in range(2)]
    outs = [[torch.full_like(expected, torch.nan) for _ in range(8)] for *_, expected in products]
    run(*products[0][:2], outs[0][0])
    torch.cuda.synchronize()
    streams = [torch.cuda.Stream() for _ in products]
    for index in range(8):
        for stream, (a, b, _), written in zip(streams, products, outs, strict=True):
            with torch.cuda.stream(stream):
                run(a, b, written[index])
                torch.full((1 << 22,), torch.nan, device=DEVICE)  # what gets the workspace next writes to it
    torch.cuda.synchronize()
    for (*_, expected), written in zip(products, outs, strict=True):
        assert all(torch.equal(out, expected) for out in written)


def test_the_sums_have_the_same_bits_each_time(run):
    M, N, K = shape()
    generator = torch.Generator(DEVICE).manual_seed(9)
    a, b = (torch.randn(shape, device=DEVICE, generator=generator).bfloat16() for shape in ((M, K), (K, N)))
    first = torch.full((M, N), torch.nan, dtype=torch.bfloat16, device=DEVICE)
    run(a, b, first)
    for _ in range(10):
        out = torch.full_like(first, torch.nan)
        run(a, b, out)
        assert torch.equal(out, first)
    assert error_over_bound(a, b, first) <= 1
