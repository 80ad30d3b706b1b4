"""Kernels inside torch on a GPU: graphs, streams, devices, threads, processes, and a process left as it was found."""

from __future__ import annotations

import os
import subprocess
import sys
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
import torch
from torch import Tensor

import hgemm
from hgemm.backends import get
from hgemm.launches import problem_of
from hgemm.reference import exact_integers

BACKENDS = (*hgemm.backends().names, "auto")
SIZES = (272, 264, 136)

pytestmark = pytest.mark.gpu


@pytest.fixture(params=BACKENDS)
def backend(request: pytest.FixtureRequest) -> str:
    name: str = request.param
    if name != "auto" and (reason := get(name).unavailable("cuda")):
        pytest.skip(reason)
    return name


@pytest.fixture(autouse=True)
def settled() -> Iterator[None]:
    yield
    torch.cuda.synchronize()


def integers(seed: int, device: str = "cuda", dtype: torch.dtype = torch.float16) -> tuple[Tensor, Tensor, Tensor]:
    """``a``, column-major ``b`` (the weight of an nn.Linear as ``w.t()``) and their product."""
    generator = torch.Generator().manual_seed(seed)
    a, b, expected = (x.to(device) for x in exact_integers(*SIZES, dtype, "cpu", generator))
    return a, b.t().contiguous().t(), expected


def test_a_graph_is_replayed_after_the_inputs_change(backend: str) -> None:
    a, b, expected = integers(0)
    out = torch.full_like(expected, torch.nan)
    hgemm.matmul(a, b, backend=backend, out=out)  # what is compiled or allocated once is, before the capture
    side = torch.cuda.Stream()
    side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side):
        hgemm.matmul(a, b, backend=backend)
    torch.cuda.current_stream().wait_stream(side)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        hgemm.matmul(a, b, backend=backend, out=out)
        fresh = hgemm.matmul(a, b, backend=backend)
    for seed in range(1, 4):
        new_a, new_b, expected = integers(seed)
        kept = [torch.full((1 << 20,), torch.nan, device="cuda") for _ in range(8)]
        a.copy_(new_a)
        b.copy_(new_b)
        out.fill_(torch.nan)
        del kept
        hgemm.matmul(new_a, new_b, backend=backend)  # another call in between, with other addresses
        graph.replay()
        assert torch.equal(out, expected)
        assert torch.equal(fresh, expected)


def test_work_is_enqueued_on_the_current_stream(backend: str) -> None:
    """The operands are written on a side stream after a long wait: any other stream would read NaN."""
    a, b, expected = integers(0)
    hgemm.matmul(a, b, backend=backend)
    torch.cuda.synchronize()
    side = torch.cuda.Stream()
    with torch.cuda.stream(side):
        late_a, late_b = torch.full_like(a, torch.nan), torch.full_like(b, torch.nan)
        out = torch.full_like(expected, torch.nan)
        torch.cuda._sleep(50_000_000)
        late_a.copy_(a)
        late_b.copy_(b)
        hgemm.matmul(late_a, late_b, backend=backend, out=out)
        product = hgemm.matmul(late_a, late_b, backend=backend)
        late_a.fill_(torch.nan)
        assert torch.cuda.current_stream() == side
    side.synchronize()
    assert torch.equal(out, expected)
    assert torch.equal(product, expected)


@pytest.mark.skipif(torch.cuda.device_count() < 2, reason="needs two CUDA devices")
def test_a_device_that_is_not_current_and_two_in_one_process(backend: str) -> None:
    torch.cuda.set_device(0)
    for dtype in (torch.float16, torch.bfloat16):
        for index in (1, 0, 1, 1, 0, 0, 1):
            a, b, expected = integers(index, f"cuda:{index}", dtype)
            product = hgemm.matmul(a, b, backend=backend)
            assert product.device == a.device
            assert torch.equal(product, expected)
            assert torch.cuda.current_device() == 0
    side = torch.cuda.Stream(1)
    a, b, expected = integers(5, "cuda:1")
    torch.cuda.synchronize(1)
    with torch.cuda.stream(side), torch.cuda.device(0):
        torch.cuda._sleep(1000)
        product = hgemm.matmul(a, b, backend=backend)
    torch.cuda.synchronize(1)
    assert torch.equal(product, expected)
    with pytest.raises(ValueError, match="cuda:1 and cuda:0"):
        hgemm.matmul(a, b.to("cuda:0"), backend=backend)


def test_a_call_computes_what_the_backend_does_with_its_tensors(backend: str) -> None:
    """`matmul` may have bound the product, and pass addresses; `Backend.run` reads everything off the tensors."""
    if backend == "auto":
        pytest.skip("it has no way of its own")
    record = get(backend)
    generator = torch.Generator("cuda").manual_seed(0)
    rows = torch.randn(3, 264, 272, device="cuda", generator=generator).half()
    columns = torch.randn(3, 264, 272, device="cuda", generator=generator).half().mT
    places = torch.empty(3, 264, 264, device="cuda").half()
    for a, b, out in (
        (rows[0], columns[0], places[0]),
        (rows[0], rows[1].mT, places[0].mT),
        (columns[0], rows[1], torch.empty(272, 272, device="cuda").half()),
        (rows[0][:, 8:136], columns[1][8:136], places[0]),
        (rows, columns, places),
        (rows, columns[0].expand(3, 272, 264), places),
        (rows[0][8:9], columns[0], places[0][8:9]),
    ):
        problem = problem_of(a, b, out)
        if record.refuses(problem):
            continue
        record.run(a, b, out.fill_(torch.nan), config := record.choose(problem))
        expected, version = out.clone(), out._version
        for _ in range(2):
            assert hgemm.matmul(a, b, backend=backend, config=config, out=out.fill_(torch.nan)) is out
            assert torch.equal(out, expected)
        assert out._version >= version + 4  # fill_ and the product, twice; torch counts its own as well
        assert torch.equal(hgemm.matmul(a, b, backend=backend, config=config), expected)


def test_threads_share_the_kernels(backend: str) -> None:
    """Each on a stream of its own, all starting at once."""
    products = [integers(seed) for seed in range(8)]
    torch.cuda.synchronize()
    start = threading.Barrier(len(products))

    def work(operands: tuple[Tensor, Tensor, Tensor]) -> bool:
        a, b, expected = operands
        start.wait(60)
        right = True
        with torch.cuda.stream(torch.cuda.Stream()):
            for _ in range(10):
                right &= torch.equal(hgemm.matmul(a, b, backend=backend), expected)
        return right

    with ThreadPoolExecutor(len(products)) as pool:
        assert all(pool.map(work, products))


CHILD = """
import multiprocessing, sys, torch, hgemm

def work(name, queue):
    a = torch.ones(40, 24, device="cuda").half()
    queue.put(hgemm.matmul(a, a.t().contiguous(), backend=name).eq(24).all().item())

if __name__ == "__main__":
    torch.ones(1, device="cuda")
    context = multiprocessing.get_context("spawn")
    queue = context.Queue()
    children = [context.Process(target=work, args=(sys.argv[1], queue)) for _ in range(2)]
    for child in children:
        child.start()
    assert [queue.get(timeout=240) for _ in children] == [True, True]
    for child in children:
        child.join(60)
        assert child.exitcode == 0
"""


def test_spawned_processes(backend: str, tmp_path: Path) -> None:
    script = tmp_path / "spawning.py"
    script.write_text(CHILD)
    path = str(Path(hgemm.__file__).parents[1])
    command = [sys.executable, str(script), backend]
    done = subprocess.run(command, env={**os.environ, "PYTHONPATH": path}, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stderr


def test_the_process_is_left_as_it_was_found(backend: str) -> None:
    triton = pytest.importorskip("triton")
    from triton.runtime import _allocation

    def mine(size: int, alignment: int, stream: int | None) -> Tensor:
        raise AssertionError("hgemm has an allocator of its own")

    before = _allocation._allocator.get()
    triton.set_allocator(mine)
    try:
        torch.set_default_device("cpu")
        torch.set_default_dtype(torch.float64)
        a, b, expected = integers(0)
        stream, device = torch.cuda.current_stream(), torch.cuda.current_device()
        flags = torch.backends.cuda.matmul.allow_tf32, torch.get_float32_matmul_precision()
        assert torch.equal(hgemm.matmul(a, b, backend=backend), expected)
        assert torch.equal(hgemm.matmul(a.t().contiguous().t(), b.contiguous(), backend=backend), expected)
        assert _allocation._allocator.get() is mine
        assert torch.get_default_dtype() == torch.float64
        assert torch.get_default_device() == torch.device("cpu")
        assert (torch.cuda.current_stream(), torch.cuda.current_device()) == (stream, device)
        assert flags == (torch.backends.cuda.matmul.allow_tf32, torch.get_float32_matmul_precision())
    finally:
        triton.set_allocator(before)
        torch.set_default_dtype(torch.float32)
        torch.set_default_device(None)


def test_a_call_does_not_wait_for_the_gpu(backend: str) -> None:
    a, b, expected = integers(0)
    out = torch.empty_like(expected)
    hgemm.matmul(a, b, backend=backend, out=out)
    torch.cuda.synchronize()
    torch.cuda._sleep(2_000_000_000)
    done = torch.cuda.Event()
    hgemm.matmul(a, b, backend=backend, out=out)
    done.record()
    assert not done.query(), "about a second of sleep lies ahead of the product"
    torch.cuda.synchronize()
    assert torch.equal(out, expected)


def test_gradients_and_autocast_on_a_gpu(backend: str) -> None:
    a, b, expected = integers(0)
    weight = b.float().requires_grad_()
    with torch.autocast("cuda", dtype=torch.float16):
        product = hgemm.matmul(a.float(), weight, backend=backend)
    assert torch.equal(product, expected)
    product.backward(torch.ones_like(product))
    assert weight.grad is not None
    assert torch.equal(weight.grad, a.double().sum(0).half().float().unsqueeze(1).expand_as(weight))


def test_compiled_with_the_default_compiler(backend: str) -> None:
    torch._dynamo.reset()
    function = torch.compile(lambda a, b: hgemm.matmul(a, b, backend=backend) * 2, fullgraph=True)
    for seed in range(2):
        a, b, expected = integers(seed)
        assert torch.equal(function(a, b), expected * 2)
