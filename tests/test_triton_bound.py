"""Kernels launched by address: Triton's C function is called with what Triton itself would call it with, and the kernel
is the one that Triton compiles for those tensors. Compiled for sm_90; the C function only records."""

from __future__ import annotations

import contextlib
import gc
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import pytest
import torch
import triton
from test_triton_launcher import CONFIG, RECORD, SPLIT, STREAM, compilations, hopper, operands  # noqa: F401  fixtures
from triton.backends.nvidia import driver

from hgemm.problem import Problem, UnsupportedProblem
from hgemm.triton_kernels import adapter, gluon, launcher, mma_sync, pointer, tma

POINTERS = "128x128x32_s3_w64x32"
CALLS: list[tuple[Any, ...]] = []
SCRATCH: list[tuple[Any, ...]] = []  # what was asked of torch's allocator


FAILURES: list[Exception] = []  # of the C function
FILL = "fill_tma_descriptor" if triton.__version__.startswith("3.6.") else "fill_tma_descriptor_tiled"
ENCODED: list[tuple[Any, ...]] = []


def record(*arguments: Any) -> None:
    CALLS.append(arguments)
    if FAILURES:
        raise FAILURES[0]


def encode(*arguments: Any) -> tuple[Any, ...]:
    """Stands for Triton's C function. Its tensor map is whatever it is made of."""
    ENCODED.append(arguments)
    return ("tensor map", *arguments)


@pytest.fixture(autouse=True)
def c_function(hopper: None, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:  # noqa: F811
    """Triton's own CudaLauncher, on a C function that records."""
    CALLS.clear()
    SCRATCH.clear()
    FAILURES.clear()
    ENCODED.clear()

    def allocate(size: int, stream: int) -> int:
        SCRATCH.append(("given", size, stream))
        return 2**40

    monkeypatch.setattr(launcher, "_allocator", lambda device: (allocate, lambda at: SCRATCH.append(("back", at))))
    utils = {FILL: encode, "launch": record, "build_signature_metadata": lambda signature: tuple(signature)}
    monkeypatch.setattr(RECORD, "launcher_cls", driver.CudaLauncher, raising=False)
    monkeypatch.setattr(RECORD, "utils", SimpleNamespace(**vars(RECORD.utils), **utils))
    monkeypatch.setattr(driver, "library_dirs", list)
    monkeypatch.setattr(driver, "compile_module_from_src", lambda **_: SimpleNamespace(launch=record), raising=False)
    monkeypatch.setattr(driver, "PyKernelArg", lambda **argument: tuple(argument.items()), raising=False)
    yield


def plain(call: Sequence[Any], tensors: tuple[torch.Tensor, ...]) -> list[Any]:
    """Arguments as the C function understands them: sequences alike, tensors by address, and memory by that name."""
    known = {tensor.data_ptr() for tensor in tensors}
    found: list[Any] = []
    for value in call:
        address = value.data_ptr() if isinstance(value, torch.Tensor) else value
        if isinstance(value, (tuple, list)):
            found.append(plain(value, tensors))
        elif type(address) is int and address > 2**33 and address not in known:
            found.append("memory of its own")
        else:
            found.append(address)
    return found


def by_tensor_and_by_address(
    module: Any, config: str, tensors: tuple[torch.Tensor, ...]
) -> tuple[list[list[Any]], list[list[Any]]]:
    CALLS.clear()
    module.launch(*tensors, config)
    by_tensor = [plain(call, tensors) for call in CALLS]
    CALLS.clear()
    launch = module.bind(Problem.from_tensors(*tensors), config)
    assert launch is not None, f"Triton {triton.__version__} is to be known"
    assert all(call[0] == 0 for call in CALLS)  # of no programs
    CALLS.clear()
    launch(*(tensor.data_ptr() for tensor in tensors))
    return by_tensor, [plain(call, tensors) for call in CALLS]


def various() -> Iterator[tuple[torch.Tensor, ...]]:
    a, b, out = operands()
    yield a, b, out
    yield a, b, out.t().contiguous().t()  # computed as B^T A^T
    yield a.t().contiguous().t(), b, out
    yield tuple(tensor.expand(2, *tensor.shape).contiguous() for tensor in (a, b, out))
    yield operands(40, 72, 8, torch.bfloat16)
    yield torch.empty(2**31 + 64, dtype=torch.float16).as_strided((2, 64), (2**31, 1)), b, out[:2]  # touches no page


@pytest.mark.parametrize(
    ("module", "config"),
    [(pointer, POINTERS), (tma, CONFIG), (mma_sync, CONFIG), (gluon, "128x128x64_s3_w64x32"), (tma, SPLIT)],
    ids=["pointer", "tma", "mma_sync", "gluon", "split"],
)
def test_triton_calls_its_c_function_with_the_same(
    module: Any,
    config: str,
    compilations: list[str],  # noqa: F811
) -> None:
    for tensors in various():
        before = len(compilations)
        by_tensor, by_address = by_tensor_and_by_address(module, config, tensors)
        assert by_address == by_tensor
        assert len(by_tensor) == (2 if config == SPLIT else 1)
        assert len(compilations) - before <= len(by_tensor)  # none for the second of them
        assert by_address[0][:4] == [by_tensor[0][0], 1, 1, STREAM]


@pytest.mark.parametrize("offsets", [(0, 0, 0), (1, 0, 0), (0, 4, 0), (0, 0, 2), (8, 16, 24)], ids=str)
def test_pointers_are_bound_for_their_alignment(offsets: tuple[int, ...], compilations: list[str]) -> None:  # noqa: F811
    """Whichever comes first, Triton finds in memory what it compiled for the other."""
    places = torch.zeros(3, 2**16, dtype=torch.float16)
    tensors = tuple(
        place[offset:][: tensor.numel()].view(tensor.shape)
        for place, offset, tensor in zip(places, offsets, operands(), strict=True)
    )
    launch = pointer.bind(Problem.from_tensors(*tensors), POINTERS)
    assert launch is not None
    launch(*(tensor.data_ptr() for tensor in tensors))
    assert len(compilations) == 1
    compiled = next(iter(pointer._launcher.forms.values())).kernel
    pointer._launcher.forms.clear()
    pointer.launch(*tensors, POINTERS)
    assert len(compilations) == 1
    assert next(iter(pointer._launcher.forms.values())).kernel is compiled
    assert plain(CALLS[0], tensors) == plain(CALLS[1], tensors)
    aligned = tuple(offset % 8 == 0 for offset in offsets)
    assert tuple(divisibility(compiled, index) for index in range(3)) == aligned


def divisibility(kernel: Any, argument: int) -> bool:
    """Whether the code was compiled for an address that is a multiple of 16."""
    return ["tt.divisibility", 16] in kernel.src.attrs.get((argument,), [])


def arguments_of(call: tuple[Any, ...]) -> Sequence[Any]:
    """Those of the kernel, which Triton 3.6 has after the others, and later ones in the last."""
    return call[-1] if isinstance(call[-1], (tuple, list)) else call


def test_addresses_change_and_bindings_do_not_mix(compilations: list[str]) -> None:  # noqa: F811
    shapes = ((200, 136, 64), (40, 72, 8), (129, 1000, 520))
    calls = [operands(*shape) for shape in shapes]
    launches: list[Callable[..., None]] = []
    for tensors in calls:
        launch = tma.bind(Problem.from_tensors(*tensors), CONFIG)
        assert launch is not None
        launches.append(launch)
    assert len(compilations) == 1
    gc.collect()  # the kernel is the binding's too
    for round_ in range(2):
        CALLS.clear()
        fresh = [tuple(x.clone() for x in tensors) for tensors in calls] if round_ else calls
        for launch, tensors in zip(launches, fresh, strict=True):
            launch(*(x.data_ptr() for x in tensors))
        for call, tensors, (M, N, K) in zip(CALLS, fresh, shapes, strict=True):
            arguments = arguments_of(call)
            a, b, c = (at for at, x in enumerate(arguments) if isinstance(x, tuple) and x[0] == "tensor map")
            assert [arguments[at][1] for at in (a, b, c)] == [x.data_ptr() for x in tensors]
            assert list(arguments[c + 1 : c + 8]) == [M, N, N, 1, M, N, K]


def test_hooks_are_told_of_what_is_launched_by_address() -> None:
    runtime = triton.knobs.runtime
    tensors = operands()

    def enter(metadata: Any) -> None:
        raise AssertionError("the C function calls it, and here it only records")

    runtime.launch_enter_hook.add(enter)
    try:
        by_tensor, by_address = by_tensor_and_by_address(pointer, POINTERS, tensors)
    finally:
        runtime.launch_enter_hook.remove(enter)
    told = [value.get()["name"] for value in by_address[0] if hasattr(value, "get")]
    assert told == ["matmul_pointer"]
    assert runtime.launch_enter_hook in by_address[0]
    without = [[value for value in call if not hasattr(value, "get")] for call in (*by_tensor, *by_address)]
    assert without[0] == without[1]
    by_tensor, by_address = by_tensor_and_by_address(pointer, POINTERS, tensors)
    assert by_address == by_tensor
    assert runtime.launch_enter_hook not in by_address[0]


@pytest.mark.parametrize("why", ["another Triton", "no launch", "a profiler's scratch", "nothing is compiled"])
def test_what_is_not_known_is_left_to_triton(why: str, monkeypatch: pytest.MonkeyPatch) -> None:
    before = triton.knobs.runtime.jit_cache_hook
    if why == "another Triton":
        monkeypatch.setattr(launcher, "_ORDERS", {"3.5": "scratch first"})
    elif why == "no launch":
        monkeypatch.setattr(RECORD, "launcher_cls", lambda source, metadata: SimpleNamespace(profile_scratch_size=0))
    elif why == "a profiler's scratch":
        known = driver.CudaLauncher
        monkeypatch.setattr(
            RECORD,
            "launcher_cls",
            lambda source, metadata: SimpleNamespace(**vars(known(source, metadata)) | {"profile_scratch_size": 8}),
        )
    else:
        triton.knobs.runtime.jit_cache_hook = lambda **_: True
    try:
        assert pointer.bind(Problem.from_tensors(*operands()), POINTERS) is None
        assert tma.bind(Problem.from_tensors(*operands(20, 136, 520)), SPLIT) is None
    finally:
        triton.knobs.runtime.jit_cache_hook = before


@pytest.fixture
def two_devices(monkeypatch: pytest.MonkeyPatch) -> list[tuple[str, int]]:
    """The device that is current, as torch has it, in ``RECORD.device``; a note of each binding and launch on it."""
    noted: list[tuple[str, int]] = []

    @contextlib.contextmanager
    def device(wanted: torch.device | int) -> Iterator[None]:
        before, RECORD.device = RECORD.device, wanted if isinstance(wanted, int) else wanted.index
        yield
        RECORD.device = before

    def bind(problem: Problem, config: str) -> Callable[[int, int, int], None]:
        noted.append(("bound", RECORD.device))
        return lambda a, b, out: noted.append(("launched", RECORD.device))

    monkeypatch.setattr(torch.cuda, "device", device)
    monkeypatch.setattr(torch._C, "_cuda_getDevice", lambda: RECORD.device, raising=False)
    monkeypatch.setattr(adapter, "_compiled", lambda module: SimpleNamespace(bind=bind))
    return noted


def test_a_binding_belongs_to_one_device(two_devices: list[tuple[str, int]]) -> None:
    record_ = adapter.backends()[0]
    by_device = []
    for index in (1, 0):
        problem = replace(Problem.from_tensors(*operands()), device=torch.device("cuda", index))
        launch = record_.launcher_at(problem, POINTERS)
        assert launch is not None
        by_device.append(launch)
    for current in (0, 1):
        RECORD.device = current
        for launch in by_device:
            launch(1, 2, 3)
            assert RECORD.device == current
    assert two_devices == [("bound", 1), ("bound", 0), *[("launched", 1), ("launched", 0)] * 2]


def test_too_much_shared_memory_is_a_refusal_when_it_is_bound(monkeypatch: pytest.MonkeyPatch) -> None:
    def bind(problem: Problem, config: str) -> None:
        raise triton.OutOfResources(200_000, 101_376, "shared memory")

    monkeypatch.setattr(torch.cuda, "device", lambda device: contextlib.nullcontext())
    monkeypatch.setattr(torch.cuda, "get_device_properties", lambda index: SimpleNamespace(name="Hopper Nano"))
    monkeypatch.setattr(adapter, "_compiled", lambda module: SimpleNamespace(bind=bind))
    problem = Problem.from_tensors(*operands())
    object.__setattr__(problem, "device", torch.device("cuda", 0))
    with pytest.raises(
        UnsupportedProblem, match=r"'triton_pointer' cannot .* 200,000 bytes .* Hopper Nano has 101,376"
    ):
        adapter.backends()[0].launcher_at(problem, POINTERS)


def test_on_the_cpu_the_interpreter_needs_tensors() -> None:
    for record_ in adapter.backends():
        assert record_.launcher_at(Problem.from_tensors(*operands()), None) is None


def test_scratch_memory_is_of_the_stream_and_given_back_whatever_happens(monkeypatch: pytest.MonkeyPatch) -> None:
    tensors = tuple(torch.stack((tensor, tensor)) for tensor in operands())  # programs make a batch's descriptors
    launch = tma.bind(Problem.from_tensors(*tensors), CONFIG)
    assert launch is not None
    launch(*(tensor.data_ptr() for tensor in tensors))
    (given, size, stream), back = SCRATCH
    assert (given, stream, back) == ("given", STREAM, ("back", 2**40))
    assert size > 0
    assert size % 128 == 0  # descriptors of 128 bytes
    SCRATCH.clear()

    FAILURES.append(RuntimeError("no launch"))
    with pytest.raises(RuntimeError, match="no launch"):
        launch(*(tensor.data_ptr() for tensor in tensors))
    assert [what for what, *_ in SCRATCH] == ["given", "back"]
