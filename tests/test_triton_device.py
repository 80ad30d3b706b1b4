"""The Triton kernels on a GPU: streams, graphs, threads, devices, allocators and sizes; nothing compiled twice."""

import threading
from collections.abc import Iterator
from contextlib import contextmanager

import pytest
import torch
import triton

from hgemm.backends import Backend, get
from hgemm.conformance import Case, check_backend, run_case
from hgemm.problem import Problem
from hgemm.reference import error_over_bound, exact_integers

pytestmark = pytest.mark.gpu

DTYPES = (torch.float16, torch.bfloat16)
DEVICE = "cuda"


@pytest.fixture(params=["triton_pointer", "triton", "triton_mma_sync", "triton_gluon"])
def backend(request: pytest.FixtureRequest) -> Backend:
    record = get(request.param)
    if reason := record.unavailable(DEVICE):
        pytest.skip(reason)
    return record


def integers(M: int, N: int, K: int, seed: int = 0, device: str = DEVICE) -> tuple[torch.Tensor, ...]:
    return exact_integers(M, N, K, torch.bfloat16, device, torch.Generator(device).manual_seed(seed))


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_every_configuration_conforms(backend: Backend, dtype: torch.dtype) -> None:
    reports = list(check_backend(backend, DEVICE, configs=(None, *backend.configs), dtypes=(dtype,), quick=True))
    assert len(reports) == 1 + len(backend.configs)
    for report in reports:
        assert report.failures == (), report.config
        assert report.cases >= 5


@pytest.mark.parametrize("shape", [(1, 4096, 4096), (4100, 1000, 520), (257, 264, 8200)], ids=str)
def test_ragged_products_with_the_default_configuration(backend: Backend, shape: tuple[int, int, int]) -> None:
    for dtype in DTYPES:
        for data in ("integers", "normal"):
            outcome = run_case(backend, None, dtype, DEVICE, Case(*shape, data))
            assert outcome.refused is None
            assert outcome.faults == ()


@pytest.mark.parametrize("offset", [1, 2, 4])
def test_pointers_take_any_alignment(offset: int) -> None:
    a, b, expected = integers(130, 136, 72)
    places = torch.zeros(3, 130 * 136 + 8, dtype=torch.bfloat16, device=DEVICE)
    a = places[0, offset:][: a.numel()].view(a.shape).copy_(a)
    b = places[1, offset:][: b.numel()].view(b.shape).copy_(b)
    out = places[2, offset:][: expected.numel()].view(expected.shape)
    for config in get("triton_pointer").configs:
        get("triton_pointer").run(a, b, out.fill_(torch.nan), config)
        assert torch.equal(out, expected)


def test_a_launch_goes_to_the_current_stream(backend: Backend) -> None:
    a, b, expected = integers(512, 512, 256)
    late, out = torch.zeros_like(a), torch.empty_like(expected)
    backend.run(a, b, out, None)  # compiled before the stream is kept waiting
    torch.cuda.synchronize()
    stream = torch.cuda.Stream()
    with torch.cuda.stream(stream):
        torch.cuda._sleep(50_000_000)
        late.copy_(a)
        backend.run(late, b, out.fill_(torch.nan), None)
    stream.synchronize()
    assert torch.equal(out, expected)


def test_a_graph_is_replayed_on_new_inputs(backend: Backend) -> None:
    a, b, expected = integers(257, 264, 136)
    out = torch.empty_like(expected)
    backend.run(a, b, out, None)
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        backend.run(a, b, out, None)
    for seed in (1, 2):
        other_a, other_b, other = integers(257, 264, 136, seed)
        a.copy_(other_a)
        b.copy_(other_b)
        out.fill_(torch.nan)
        graph.replay()
        torch.cuda.synchronize()
        assert torch.equal(out, other)


SPLIT = [name for name in get("triton").configs if "_split" in name]
# A second kernel adds parts here too, but how many there are depends on the number of tiles.
ADDED = [*SPLIT, *(name for name in get("triton").configs if name.endswith("_tail"))]


def available(config: str) -> Backend:
    record = get("triton")
    if reason := record.unavailable(DEVICE):
        pytest.skip(reason)
    a, b, expected = integers(8, 8, 8)
    if reason := record.accepts(Problem.from_tensors(a, b, expected), config):
        pytest.skip(reason)
    return record


@pytest.mark.parametrize("config", ADDED)
def test_a_graph_of_a_split_product_is_replayed_on_new_inputs(config: str) -> None:
    record = available(config)
    a, b, expected = integers(70, 264, 4104)
    outs = [torch.empty_like(expected) for _ in range(2)]
    record.run(a, b, outs[0], config)
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        for out in outs:  # the second may get the workspace of the first
            record.run(a, b, out, config)
    for seed in (1, 2):
        other_a, other_b, other = integers(70, 264, 4104, seed)
        a.copy_(other_a)
        b.copy_(other_b)
        for out in outs:
            out.fill_(torch.nan)
        for _ in range(3):
            graph.replay()
        eager = torch.full_like(other, torch.nan)
        record.run(a, b, eager, config)
        torch.cuda.synchronize()
        assert all(torch.equal(out, other) for out in (*outs, eager))


@pytest.mark.parametrize("config", ADDED)
def test_split_products_on_two_streams_and_one_after_another(config: str) -> None:
    record = available(config)
    products = [integers(33, 1032, 4104, seed) for seed in range(2)]
    outs = [[torch.full_like(expected, torch.nan) for _ in range(50)] for *_, expected in products]
    record.run(*products[0][:2], outs[0][0], config)
    torch.cuda.synchronize()
    streams = [torch.cuda.Stream() for _ in products]
    for index in range(50):
        for stream, (a, b, _), written in zip(streams, products, outs, strict=True):
            with torch.cuda.stream(stream):
                record.run(a, b, written[index], config)
                torch.full((4 * 33 * 1032,), torch.nan, device=DEVICE)  # what gets the workspace next writes to it
    torch.cuda.synchronize()
    for (*_, expected), written in zip(products, outs, strict=True):
        assert all(torch.equal(out, expected) for out in written)


@pytest.mark.parametrize("config", SPLIT)
def test_the_sums_of_a_split_product_have_the_same_bits_each_time(config: str) -> None:
    record = get("triton")
    if reason := record.unavailable(DEVICE):
        pytest.skip(reason)
    generator = torch.Generator(DEVICE).manual_seed(9)
    a, b = (torch.randn(shape, device=DEVICE, generator=generator).bfloat16() for shape in ((130, 8200), (8200, 264)))
    first = torch.full((130, 264), torch.nan, dtype=torch.bfloat16, device=DEVICE)
    record.run(a, b, first, config)
    for rows in (130, 130, 129, 64, 1):
        out = torch.full((rows, 264), torch.nan, dtype=torch.bfloat16, device=DEVICE)
        record.run(a[:rows], b, out, config)
        assert torch.equal(out, first[:rows])
    assert error_over_bound(a, b, first) <= 1


def test_threads_launch_on_streams_of_their_own(backend: Backend) -> None:
    products = [integers(100 + 8 * seed, 136, 264, seed) for seed in range(4)]
    torch.cuda.synchronize()
    faults: list[str] = []

    def work(seed: int) -> None:
        try:
            a, b, expected = products[seed]
            with torch.cuda.stream(torch.cuda.Stream()):
                for _ in range(20):
                    out = torch.full_like(expected, torch.nan)
                    backend.run(a, b, out, None)
                    if not torch.equal(out, expected):
                        faults.append(f"thread {seed}: wrong product")
        except Exception as error:
            faults.append(repr(error))

    threads = [threading.Thread(target=work, args=(seed,)) for seed in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(120)
    assert not any(thread.is_alive() for thread in threads)
    assert faults == []


def test_the_users_allocator_is_neither_called_nor_replaced() -> None:
    from triton.runtime import _allocation

    def users(size: int, alignment: int, stream: int | None) -> torch.Tensor:
        raise AssertionError("the user's allocator was called")

    a, b, expected = integers(129, 136, 72)
    out = torch.empty_like(expected)
    before = _allocation._allocator.get()
    triton.set_allocator(users)
    try:
        get("triton").run(a, b, out, None)
        assert _allocation._allocator.get() is users
    finally:
        triton.set_allocator(before)
    assert torch.equal(out, expected)


def test_a_device_that_is_not_current(backend: Backend) -> None:
    if torch.cuda.device_count() < 2:
        pytest.skip("needs two CUDA devices")
    a, b, expected = integers(129, 136, 72, device="cuda:1")
    out = torch.full_like(expected, torch.nan)
    with torch.cuda.device(0):
        backend.run(a, b, out, None)
        assert torch.cuda.current_device() == 0
    torch.cuda.synchronize(1)
    assert torch.equal(out, expected)


def test_a_product_on_the_cpu_between_two_on_the_gpu(backend: Backend) -> None:
    if reason := backend.unavailable("cpu"):
        pytest.skip(reason)
    a, b, expected = integers(65, 72, 72)
    for device in (DEVICE, "cpu", DEVICE):
        out = torch.full_like(expected, torch.nan, device=device)
        backend.run(a.to(device), b.to(device), out, None)
        assert torch.equal(out.cpu(), expected.cpu())


@contextmanager
def counted_compilations() -> Iterator[list[str]]:
    """The kernels that Triton finds no compiled form of, by name."""
    missing: list[str] = []

    def hook(*, fn: object, **_: object) -> bool:
        missing.append(getattr(fn, "name", ""))
        return False  # go on and compile

    before = triton.knobs.runtime.jit_cache_hook
    triton.knobs.runtime.jit_cache_hook = hook
    try:
        yield missing
    finally:
        triton.knobs.runtime.jit_cache_hook = before


def test_a_new_shape_compiles_nothing_new(backend: Backend) -> None:
    def multiply(M: int, N: int, K: int) -> None:
        a, b, expected = integers(M, N, K)
        out = torch.empty_like(expected)
        backend.run(a, b, out, backend.configs[0])
        assert torch.equal(out, expected)

    multiply(64, 64, 64)
    with counted_compilations() as compiled:
        for shape in ((1, 8, 8), (16, 24, 40), (129, 1000, 520), (256, 256, 256)):
            multiply(*shape)
    assert compiled == []


def test_mma_sync_launches_what_its_name_says() -> None:
    if reason := get("triton_mma_sync").unavailable(DEVICE):
        pytest.skip(reason)
    from hgemm.triton_kernels import mma_sync, tma

    a, b, expected = integers(300, 304, 264)
    for name in ("triton", "triton_mma_sync", "triton"):  # one configuration of both
        out = torch.full_like(expected, torch.nan)
        get(name).run(a, b, out, "128x128x64_s4_w64x32")
        assert torch.equal(out, expected)
    for module, holds in ((tma, True), (mma_sync, False)):
        forms = [form for key, form in module._launcher.forms.items() if "128x128x64_s4_w64x32" in key]
        assert forms
        assert all(("wgmma" in form.kernel.asm["ptx"]) == holds for form in forms)


def needs_memory(gigabytes: int) -> None:
    if torch.cuda.mem_get_info()[0] < gigabytes * 10**9:
        pytest.skip(f"needs {gigabytes} GB of free memory on the device")


@pytest.mark.parametrize("operand", ["a", "b", "out"])
def test_more_than_two_to_the_31_elements(backend: Backend, operand: str) -> None:
    needs_memory(20)
    extents = {"a": (65_544, 8, 32_776), "b": (8, 65_544, 32_776), "out": (65_544, 32_776, 8)}
    M, N, K = extents[operand]
    generator = torch.Generator(DEVICE).manual_seed(5)
    a = torch.randint(-2, 3, (M, K), device=DEVICE, generator=generator, dtype=torch.int8).to(torch.float16)
    b = torch.randint(-2, 3, (K, N), device=DEVICE, generator=generator, dtype=torch.int8).to(torch.float16)
    out = torch.full((M, N), torch.nan, dtype=torch.float16, device=DEVICE)
    backend.run(a, b, out, None)
    assert not out.isnan().any()
    rows = torch.tensor(sorted({0, 1, M // 2, M - 2, M - 1}), device=DEVICE)
    assert error_over_bound(a, b, out, rows) <= 1
    exact = a[rows].double() @ b[:, -64:].double()
    assert torch.equal(out[rows][:, -64:], exact.to(torch.float16))


def test_more_than_65_535_rows_of_tiles() -> None:
    config = "64x64x64_s4_w32x32"
    a, b, expected = integers(64 * 66_000 + 3, 8, 8)
    out = torch.full_like(expected, torch.nan)
    get("triton").run(a, b, out, config)
    assert torch.equal(out, expected)


def test_scratch_memory_is_not_reused_while_a_kernel_reads_it() -> None:
    # Launches without a pause, each freeing its scratch memory for the next, and torch filling what it gets of it.
    a, b, expected = integers(300, 304, 264)
    outs = [torch.full_like(expected, torch.nan) for _ in range(200)]
    for out in outs:
        get("triton").run(a, b, out, None)
        torch.full((4096,), 0x7F, dtype=torch.int8, device=DEVICE)
    assert all(torch.equal(out, expected) for out in outs)
